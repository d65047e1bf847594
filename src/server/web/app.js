// app.js — the chat page: ties conversations, answers under way, and what is on the screen together.
import { is_ready, list_models } from "./api.js";
import { bind_attachments } from "./attach.js";
import { add_assistant, add_user, checked, context_used, new_conversation, shown_path, switch_branch } from "./conversation.js";
import { announce, format_count, icon } from "./dom.js";
import { fit } from "./message_view.js";
import { Run } from "./run.js";
import { load_settings, save_settings } from "./settings.js";
import { SettingsView } from "./settings_view.js";
import { Sidebar, toast } from "./sidebar.js";
import { Store } from "./store.js";
import { Thread, welcome } from "./thread.js";

const at = (id) => document.getElementById(id);
const kSaveMs = 1000;
const kDraft = "sparkinfer.draft";

class App {
    constructor(store) {
        this.store = store;
        this.settings = load_settings();
        this.models = [];
        this.runs = new Map(); // node id -> Run
        this.conversation = new_conversation();
        this.frame = 0;
        this.dirty = new Set();
        this.removed = new Set(); // ids of conversations that a run must not bring back
        this.input = at("input");
        this.thread = new Thread({ scroller: at("scroller"), list: at("messages"), jump: at("jump") }, this.message_actions());
        this.sidebar = new Sidebar(store, { rename: (id, t) => this.rename(id, t), remove: (id) => this.remove(id), export_one: (id) => this.export_one(id) });
        this.settings_view = new SettingsView(this.settings, {
            changed: () => this.show_settings(), key_changed: () => this.load_models(),
            export_all: () => this.export_all(), import_file: (file) => this.import_file(file), remove_all: () => this.remove_all(),
        });
    }

    message_actions() {
        return {
            switch: (node, step) => { switch_branch(this.conversation, node, step); this.keep(); this.show(); },
            edit: (node, text) => { this.stop(); this.ask(node.parent, text); },
            regenerate: (node) => { this.stop(); this.answer(node.parent); },
            // What had come before it failed is kept as a version.
            retry: (node) => { this.stop(); this.answer(node.parent, node.content || node.reasoning || node.calls.length ? undefined : node); },
            stop: (node) => this.runs.get(node.id)?.stop(),
            result: (node, index, text) => this.give_result(node, index, text),
            open_settings: (focus) => this.settings_view.open(focus),
        };
    }

    // The run of the conversation that is shown, or null.
    busy() {
        return [...this.runs.values()].find((run) => run.conversation === this.conversation) ?? null;
    }

    ask(parent, text) {
        const node = add_user(this.conversation, parent, text);
        this.answer(node.id);
    }

    // Starts an answer below `parent`; `node`: again into this one, which had failed.
    async answer(parent, node = add_assistant(this.conversation, parent)) {
        const { conversation } = this;
        Object.assign(node, { content: "", reasoning: "", calls: [], state: "waiting", failure: null, note: "", stats: {} });
        const run = new Run(conversation, node, { settings: this.settings, model: () => this.model(), changed: (n, ended) => this.run_changed(run, n, ended) });
        this.runs.set(node.id, run);
        this.thread.follows = true;
        this.show();
        announce("Answer started");
        await this.save(conversation);
        location.replace(`#${conversation.id}`);
        this.mark_running();
        await run.run();
    }

    // The model that is chosen. Asked for when a request is sent: after a restart it may be another.
    async model() {
        if (!this.models.length) await this.load_models();
        return at("model").value || "default";
    }

    run_changed(run, node, ended) {
        if (ended) {
            this.runs.delete(node.id);
            this.save(run.conversation);
            this.mark_running();
            if (run.conversation === this.conversation) {
                this.dirty.delete(node);
                this.show();
                announce(ending_of(node));
            }
            if (node.failure?.kind === "offline" || this.models.length === 0) this.load_models();
            return;
        }
        if (!this.save_timer) this.save_timer = setTimeout(() => { this.save_timer = 0; this.save(run.conversation); }, kSaveMs);
        if (run.conversation !== this.conversation) return;
        this.dirty.add(node);
        this.frame ||= requestAnimationFrame(() => {
            this.frame = 0;
            for (const n of this.dirty) this.thread.update(n, this.runs.get(n.id) ?? null);
            this.dirty.clear();
        });
    }

    give_result(node, index, text) {
        node.calls[index].result = text;
        if (node.calls.every((c) => typeof c.result === "string")) this.answer(node.id);
        else { this.keep(); this.show(); }
    }

    // Brings everything on the screen up to date.
    show() {
        const empty = this.conversation.nodes.root.children.length === 0;
        at("welcome").replaceChildren(...(empty ? [welcome(this.models[0]?.id, (text) => this.suggest(text))] : []));
        this.thread.show(this.conversation, (node) => this.runs.get(node.id) ?? null);
        const busy = Boolean(this.busy());
        document.body.classList.toggle("busy", busy);
        const send = at("send");
        send.replaceChildren(icon(busy ? "stop" : "send"));
        send.setAttribute("aria-label", busy ? "Stop (Esc)" : "Send (Enter)");
        send.title = send.getAttribute("aria-label");
        this.show_send();
        this.show_context();
        document.title = this.conversation.title ? `${this.conversation.title} · sparkinfer` : "sparkinfer";
    }

    show_send() {
        at("send").disabled = !this.busy() && this.input.value.trim() === "";
    }

    show_context() {
        const used = context_used(this.conversation);
        const context = this.models.find((m) => m.id === at("model").value)?.context ?? 0;
        const meter = at("context");
        meter.hidden = !context;
        if (!context) return;
        const share = Math.min(used / context, 1);
        at("context-bar").style.width = `${(share * 100).toFixed(1)}%`;
        meter.classList.toggle("nearly-full", share > 0.85);
        at("context-text").textContent = used ? `${format_count(used)} of ${format_count(context)} tokens` : `${format_count(context)} tokens of context`;
        at("context-bar").parentElement.hidden = !used;
    }

    show_settings() {
        const thinking = { auto: "Thinking: default", on: "Thinking: on", off: "Thinking: off" }[this.settings.thinking];
        at("thinking").querySelector("span").textContent = thinking;
        at("thinking").dataset.value = this.settings.thinking;
    }

    suggest(text) {
        this.input.value = text;
        this.typed();
        this.input.focus();
    }

    typed() {
        fit(this.input);
        this.show_send();
        try { sessionStorage.setItem(kDraft, this.input.value); } catch { /* a reload forgets it */ }
    }

    // Adds a text that came from a file.
    attach(text) {
        const before = this.input.value;
        this.input.value = before && !before.endsWith("\n") ? `${before}\n\n${text}` : before + text;
        this.typed();
        this.input.focus();
    }

    submit() {
        const run = this.busy();
        const text = this.input.value.trim();
        if (run || !text) return;
        this.input.value = "";
        this.typed();
        this.ask(shown_path(this.conversation).at(-1)?.id ?? "root", text);
    }

    stop() {
        this.busy()?.stop();
    }

    new_chat() {
        this.conversation = new_conversation();
        if (location.hash) history.pushState(null, "", location.pathname + location.search);
        this.opened();
        this.sidebar.open(false);
        this.input.focus();
    }

    // Shows what the address says.
    async follow_address() {
        const id = location.hash.slice(1);
        if (id === this.conversation.id) return;
        const found = id ? await this.find(id) : null;
        if (id && !found) history.replaceState(null, "", location.pathname + location.search);
        this.conversation = found ?? new_conversation();
        for (const node of Object.values(this.conversation.nodes)) {
            if (["waiting", "streaming"].includes(node.state) && !this.runs.has(node.id)) {
                node.state = "stopped";
                node.failure = null;
                node.note = "The page was closed before the answer was complete.";
            }
        }
        this.opened();
    }

    opened() {
        this.sidebar.current = this.conversation.id;
        this.show();
        this.sidebar.refresh();
    }

    mark_running() {
        this.sidebar.running = new Set([...this.runs.values()].map((run) => run.conversation.id));
        this.sidebar.current = this.conversation.id;
        this.sidebar.refresh();
    }

    keep() {
        this.conversation.updated = Date.now();
        return this.save(this.conversation);
    }

    async save(conversation) {
        if (this.removed.has(conversation.id)) return;
        try {
            await this.store.put(conversation);
        } catch (error) {
            toast(`The conversation could not be kept: ${error.message || "the browser's storage is full"}.`);
        }
    }

    // The one object of a conversation that is shown or answered, else a copy from the store.
    async find(id) {
        if (this.conversation.id === id) return this.conversation;
        return [...this.runs.values()].find((run) => run.conversation.id === id)?.conversation ?? this.store.get(id);
    }

    async rename(id, title) {
        const conversation = await this.find(id);
        Object.assign(conversation, { title, named: true });
        await this.save(conversation);
        this.show();
    }

    async remove(id) {
        const conversation = await this.find(id);
        if (!conversation) return this.sidebar.refresh(); // another tab was faster
        this.removed.add(id);
        for (const run of this.runs.values()) if (run.conversation.id === id) run.stop();
        await this.store.remove(id);
        if (this.conversation.id === id) this.new_chat();
        await this.sidebar.refresh();
        toast(`“${conversation.title}” is deleted.`, "Undo", async () => {
            this.removed.delete(id);
            await this.save(conversation);
            location.hash = id;
            this.sidebar.refresh();
        });
    }

    async remove_all() {
        for (const run of this.runs.values()) {
            this.removed.add(run.conversation.id);
            run.stop();
        }
        await this.store.clear();
        this.new_chat();
        this.sidebar.refresh();
        toast("All conversations are deleted.");
    }

    async export_one(id) {
        const conversation = await this.store.get(id);
        download(`${conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "chat"}.json`, [conversation]);
    }

    async export_all() {
        download("sparkinfer-chats.json", await this.store.all());
    }

    async import_file(file) {
        try {
            const data = JSON.parse(await file.text());
            const list = Array.isArray(data) ? data : Array.isArray(data.conversations) ? data.conversations : [data];
            const conversations = list.map(checked);
            for (const c of conversations) {
                this.removed.delete(c.id);
                await this.store.put(c);
            }
            this.sidebar.refresh();
            toast(`${conversations.length} conversation${conversations.length === 1 ? "" : "s"} imported.`);
        } catch (error) {
            toast(`“${file.name}” was not imported: ${error.message}.`);
        }
    }

    async load_models() {
        const state = at("server-state");
        try {
            this.models = await list_models();
            state.hidden = true;
        } catch (error) {
            state.textContent = error.message;
            state.hidden = false;
            state.dataset.kind = error.kind ?? "";
            clearTimeout(this.models_timer);
            if (error.kind !== "key") this.models_timer = setTimeout(() => this.load_models(), 3000);
        }
        const chosen = at("model").value;
        at("model").replaceChildren(...this.models.map((m) => new Option(m.id, m.id, false, m.id === chosen)));
        at("model").disabled = this.models.length < 2;
        at("model-name").textContent = this.models.find((m) => m.id === at("model").value)?.id ?? "no model";
        this.settings_view.context = this.models[0]?.context ?? 0;
        this.show();
    }

    // Looks every few seconds whether the server still answers; a restart may bring another model.
    async watch_server() {
        const ready = await is_ready();
        const state = at("server-state");
        if (!ready && state.hidden) {
            state.hidden = false;
            state.dataset.kind = "offline";
            state.textContent = "The server is away. The page goes on when it answers.";
        } else if (ready && !state.hidden && state.dataset.kind !== "key") {
            await this.load_models();
        }
        setTimeout(() => this.watch_server(), document.hidden ? 30_000 : ready ? 10_000 : 2000);
    }
}

function ending_of(node) {
    if (node.failure) return "";
    if (node.state === "stopped") return "Answer stopped";
    const text = node.content.replace(/\s+/g, " ").trim();
    return text.length <= 400 ? `Answer: ${text}` : `The answer is complete, ${text.split(" ").length} words`;
}

function download(name, conversations) {
    const text = JSON.stringify({ format: "sparkinfer-conversations", version: 1, conversations }, null, 2);
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function bind_composer(app) {
    const { input } = app;
    input.addEventListener("input", () => app.typed());
    input.addEventListener("keydown", (event) => {
        if (event.isComposing || event.keyCode === 229) return; // an input method is still composing
        if (event.key === "Enter" && !event.shiftKey) {
            event.preventDefault();
            app.submit();
        } else if (event.key === "ArrowUp" && input.value === "" && !app.busy()) {
            const last = shown_path(app.conversation).findLast((n) => n.role === "user");
            if (last) { event.preventDefault(); app.thread.edit(last); }
        }
    });
    at("composer").addEventListener("submit", (event) => {
        event.preventDefault();
        if (app.busy()) app.stop();
        else app.submit();
    });
    bind_attachments({ button: at("attach"), input: at("files"), area: input, take: (text) => app.attach(text), complain: (text) => toast(text) });
    at("thinking").addEventListener("click", () => {
        const next = { auto: "on", on: "off", off: "auto" };
        app.settings.thinking = next[app.settings.thinking];
        save_settings(app.settings);
        app.show_settings();
        announce(at("thinking").textContent.trim());
    });
}

function bind_page(app) {
    at("new-chat").addEventListener("click", () => app.new_chat());
    at("new-chat-top").addEventListener("click", () => app.new_chat());
    at("open-settings").addEventListener("click", () => app.settings_view.open());
    at("theme").addEventListener("click", () => show_theme(globalThis.switch_theme()));
    at("model").addEventListener("change", () => { at("model-name").textContent = at("model").value; app.show_context(); });
    at("server-state").addEventListener("click", () => {
        if (at("server-state").dataset.kind === "key") app.settings_view.open("key");
        else app.load_models();
    });
    document.addEventListener("keydown", (event) => {
        const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
        const command = event.ctrlKey || event.metaKey;
        if (event.key === "Escape" && app.sidebar.is_open) app.sidebar.open(false);
        else if (event.key === "Escape" && !document.querySelector("dialog[open]")) app.stop();
        else if (command && event.shiftKey && event.key.toLowerCase() === "o") { event.preventDefault(); app.new_chat(); }
        else if (command && !event.shiftKey && event.key.toLowerCase() === "k") { event.preventDefault(); app.sidebar.open(true); app.sidebar.search.focus(); }
        else if (event.key === "/" && !typing && !command && !document.querySelector("dialog[open]")) { event.preventDefault(); app.input.focus(); }
    });
    addEventListener("hashchange", () => app.follow_address());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show_theme());
    app.store.on_change(async (id) => {
        app.sidebar.refresh();
        if (id !== app.conversation.id || app.busy()) return;
        const found = await app.store.get(id);
        if (found) { app.conversation = found; app.show(); }
    });
}

function show_theme() {
    const dark = globalThis.theme_is_dark();
    at("theme").replaceChildren(icon(dark ? "sun" : "moon"));
    at("theme").setAttribute("aria-label", dark ? "Switch to light" : "Switch to dark");
    at("theme").title = at("theme").getAttribute("aria-label");
}

async function start() {
    for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
    const app = new App(await Store.open());
    bind_composer(app);
    bind_page(app);
    show_theme();
    app.show_settings();
    await app.follow_address();
    app.opened();
    if (!app.store.persistent) toast("This browser keeps no data for this page: conversations end with the tab.");
    try { app.input.value = sessionStorage.getItem(kDraft) ?? ""; } catch { /* no draft */ }
    app.typed();
    if (!app.sidebar.narrow.matches) app.input.focus();
    await app.load_models();
    app.watch_server();
}

start();
