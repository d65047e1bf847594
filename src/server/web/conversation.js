// conversation.js — a conversation is a tree: editing or regenerating adds a sibling, nothing is overwritten. Plain
// objects that are stored as they are; no DOM.
//
//   conversation {id, title, named, created, updated, nodes: {id: node}}
//   node         {id, parent, children: [id], active, role, content, created, …}   `active`: which child is shown
//   assistant    + {reasoning, calls: [{id, name, arguments, result}], state, note, failure, stats, model}
//   state        "waiting" (no token yet), "streaming", "done", "stopped", "failed"

export function make_id() {
    return Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");
}

export function new_conversation() {
    const now = Date.now();
    const root = { id: "root", parent: null, children: [], active: 0, role: "root", content: "", created: now };
    return { id: make_id(), title: "", named: false, created: now, updated: now, nodes: { root } };
}

// Adds a child of `parent` and shows it.
export function add_node(conversation, parent, fields) {
    const node = { id: make_id(), parent, children: [], active: 0, created: Date.now(), content: "", ...fields };
    conversation.nodes[node.id] = node;
    const above = conversation.nodes[parent];
    above.active = above.children.push(node.id) - 1;
    conversation.updated = node.created;
    if (!conversation.named && node.role === "user" && !conversation.title) conversation.title = title_of(node.content);
    return node;
}

export function add_user(conversation, parent, content) {
    return add_node(conversation, parent, { role: "user", content });
}

export function add_assistant(conversation, parent) {
    return add_node(conversation, parent, { role: "assistant", reasoning: "", calls: [], state: "waiting", note: "", failure: null, stats: {}, model: "" });
}

export function title_of(text) {
    const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
    return line.length > 60 ? line.slice(0, 59).trimEnd() + "…" : line || "New chat";
}

// The nodes that are shown, from the first message on.
export function shown_path(conversation) {
    const path = [];
    for (let node = conversation.nodes.root; (node = conversation.nodes[node.children[node.active]]); ) path.push(node);
    return path;
}

// The nodes from the first message to `id`.
export function path_to(conversation, id) {
    const path = [];
    for (let node = conversation.nodes[id]; node && node.role !== "root"; node = conversation.nodes[node.parent]) path.unshift(node);
    return path;
}

export function branch_of(conversation, node) {
    const siblings = conversation.nodes[node.parent].children;
    return { index: siblings.indexOf(node.id), count: siblings.length };
}

export function switch_branch(conversation, node, step) {
    const above = conversation.nodes[node.parent];
    const index = above.children.indexOf(node.id) + step;
    if (index >= 0 && index < above.children.length) above.active = index;
}

// What the server is asked: the path to `parent`, the settings that are set.
export function request_body(conversation, parent, settings, model) {
    const messages = settings.system ? [{ role: "system", content: settings.system }] : [];
    for (const node of path_to(conversation, parent)) messages.push(...messages_of(node));
    const body = { model, messages, stream: true, stream_options: { include_usage: true } };
    for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
        if (settings[name] !== null && settings[name] !== undefined) body[name] = settings[name];
    }
    if (settings.thinking !== "auto") body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
    if (settings.tools?.length) body.tools = settings.tools;
    return body;
}

function messages_of(node) {
    if (node.role === "user") return [{ role: "user", content: node.content }];
    const message = { role: "assistant", content: node.content };
    if (node.reasoning) message.reasoning_content = node.reasoning;
    if (!node.calls.length) return [message];
    // Templates refuse a call without a result, so one says that there is none.
    message.tool_calls = node.calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
    return [message, ...node.calls.map((c) => ({ role: "tool", tool_call_id: c.id, content: c.result ?? "No result was given." }))];
}

// Takes one chunk of a stream into `node`. Returns what came: "reasoning", "content", "call", or "" for none of them.
export function apply_chunk(node, chunk) {
    if (chunk.usage) apply_usage(node.stats, chunk.usage);
    if (typeof chunk.model === "string") node.model = chunk.model;
    const choice = chunk.choices?.[0];
    if (!choice) return "";
    const delta = choice.delta ?? {};
    let kind = "";
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (typeof reasoning === "string" && reasoning) { node.reasoning += reasoning; kind = "reasoning"; }
    if (typeof delta.content === "string" && delta.content) { node.content += delta.content; kind = "content"; }
    for (const part of Array.isArray(delta.tool_calls) ? delta.tool_calls : []) {
        const index = Number.isInteger(part.index) && part.index >= 0 && part.index < 256 ? part.index : 0;
        while (node.calls.length <= index) node.calls.push({ id: "", name: "", arguments: "", result: null });
        const call = node.calls[index];
        if (part.id) call.id = String(part.id);
        call.name += part.function?.name ?? "";
        call.arguments += part.function?.arguments ?? "";
        kind = "call";
    }
    if (choice.finish_reason) node.stats.finish = String(choice.finish_reason);
    return kind;
}

function apply_usage(stats, usage) {
    const count = (n) => (Number.isFinite(n) ? n : undefined);
    stats.prompt_tokens = count(usage.prompt_tokens);
    stats.completion_tokens = count(usage.completion_tokens);
    stats.cached_tokens = count(usage.prompt_tokens_details?.cached_tokens);
    stats.reasoning_tokens = count(usage.completion_tokens_details?.reasoning_tokens);
}

// Tokens of the context that the shown path takes, as the server last counted them; 0: not known.
export function context_used(conversation) {
    for (const node of shown_path(conversation).reverse()) {
        if (node.stats?.prompt_tokens) return node.stats.prompt_tokens + (node.stats.completion_tokens ?? 0);
    }
    return 0;
}

// A conversation from a file, with nothing in it that the page does not know; throws a sentence when it is none.
export function checked(data) {
    const text = (v) => (typeof v === "string" ? v : "");
    if (typeof data !== "object" || data === null || typeof data.nodes !== "object" || data.nodes === null) {
        throw new Error("this is no conversation: it has no messages");
    }
    const nodes = Object.create(null);
    for (const [id, n] of Object.entries(data.nodes)) {
        if (!/^[0-9a-z]{1,64}$/.test(id)) throw new Error(`a message has the id "${id.slice(0, 40)}", expected letters and digits`);
        if (!["root", "user", "assistant"].includes(n?.role)) throw new Error(`message ${id} has the role "${n?.role}", expected user or assistant`);
        const children = Array.isArray(n.children) ? n.children.filter((c) => data.nodes[c]?.parent === id && c !== id) : [];
        const active = Number.isInteger(n.active) && n.active >= 0 && n.active < children.length ? n.active : 0;
        nodes[id] = { id, parent: n.role === "root" ? null : text(n.parent), children, active, role: n.role, content: text(n.content), created: Number(n.created) || 0 };
        if (n.role === "assistant") Object.assign(nodes[id], checked_answer(n, text));
    }
    if (nodes.root?.role !== "root") throw new Error("this is no conversation: it has no beginning");
    for (const node of Object.values(nodes)) check_reaches_root(nodes, node);
    const created = Number(data.created) || Date.now();
    return { id: /^[0-9a-f]{24}$/.test(data.id) ? data.id : make_id(), title: text(data.title).slice(0, 200) || "Imported chat",
        named: data.named === true, created, updated: Number(data.updated) || created, nodes };
}

function checked_answer(n, text) {
    const calls = Array.isArray(n.calls) ? n.calls : [];
    const stats = Object.entries(n.stats ?? {}).filter(([k, v]) => /^[a-z_]{1,32}$/.test(k) && (Number.isFinite(v) || typeof v === "string"));
    return {
        reasoning: text(n.reasoning), model: text(n.model), note: text(n.note),
        calls: calls.map((c) => ({ id: text(c?.id), name: text(c?.name), arguments: text(c?.arguments), result: typeof c?.result === "string" ? c.result : null })),
        state: ["done", "failed"].includes(n.state) ? n.state : "stopped",
        failure: n.failure ? { kind: text(n.failure.kind), message: text(n.failure.message) } : null,
        stats: Object.fromEntries(stats),
    };
}

function check_reaches_root(nodes, node) {
    const count = Object.keys(nodes).length;
    let steps = 0;
    for (let n = node; n?.role !== "root"; n = nodes[n.parent]) {
        if (!n || ++steps > count) throw new Error(`message ${node.id} hangs on nothing`);
    }
}
