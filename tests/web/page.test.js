// Risk: events of a stream are lost or joined at odd cuts; a conversation forgets a branch or sends the wrong path;
// a setting out of range is sent; a crafted file gets into the store; colours change or lose characters of code.
import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import test from "node:test";

import { SseParser } from "../web/api.js";
import { add_assistant, add_user, apply_chunk, branch_of, checked, context_used, new_conversation, path_to, request_body, shown_path, switch_branch, title_of } from "../web/conversation.js";
import { find_language, highlight_line } from "../web/highlight.js";
import { check_tools, kDefaults, kFields } from "../web/settings.js";

globalThis.crypto ??= webcrypto; // Node 18 has it in its module alone

test("events are the same however the stream is cut", () => {
    const stream = ": keep-alive\n\ndata: {\"a\":1}\n\ndata:two\r\n\r\nevent: x\ndata: three\ndata: lines\r\rid: 7\n\ndata: [DONE]\n\n";
    const expected = ['{"a":1}', "two", "three\nlines", "[DONE]"];
    for (let size = 1; size <= stream.length; ++size) {
        const parser = new SseParser();
        const events = [];
        for (let i = 0; i < stream.length; i += size) events.push(...parser.push(stream.slice(i, i + size)));
        assert.deepEqual(events, expected, `pieces of ${size}`);
    }
});

test("editing and regenerating add versions and keep the old ones", () => {
    const c = new_conversation();
    const first = add_user(c, "root", "one");
    const answer = add_assistant(c, first.id);
    const follow = add_user(c, answer.id, "more");
    const again = add_assistant(c, first.id);
    assert.deepEqual(shown_path(c).map((n) => n.id), [first.id, again.id]);
    assert.deepEqual(branch_of(c, again), { index: 1, count: 2 });
    switch_branch(c, again, -1);
    assert.deepEqual(shown_path(c).map((n) => n.id), [first.id, answer.id, follow.id]);
    switch_branch(c, answer, -1);
    assert.equal(shown_path(c)[1].id, answer.id, "there is nothing before the first");
    const edited = add_user(c, "root", "two");
    assert.deepEqual(shown_path(c).map((n) => n.content), ["two"]);
    assert.deepEqual(path_to(c, follow.id).map((n) => n.content), ["one", "", "more"]);
    assert.equal(branch_of(c, edited).count, 2);
    assert.equal(c.title, "one");
});

test("a request has the path, the system prompt, tool results, and only settings that are set", () => {
    const c = new_conversation();
    const user = add_user(c, "root", "hi");
    const answer = Object.assign(add_assistant(c, user.id), { content: "", reasoning: "hm", calls: [{ id: "c1", name: "f", arguments: '{"a":1}', result: "42" }, { id: "c2", name: "g", arguments: "{}", result: null }] });
    const body = request_body(c, answer.id, { ...kDefaults, system: "Be brief.", temperature: 0, top_k: 5, thinking: "off" }, "m");
    assert.deepEqual(body, {
        model: "m", stream: true, stream_options: { include_usage: true }, temperature: 0, top_k: 5, chat_template_kwargs: { enable_thinking: false },
        messages: [{ role: "system", content: "Be brief." }, { role: "user", content: "hi" },
            { role: "assistant", content: "", reasoning_content: "hm", tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: '{"a":1}' } }, { id: "c2", type: "function", function: { name: "g", arguments: "{}" } }] },
            { role: "tool", tool_call_id: "c1", content: "42" }, { role: "tool", tool_call_id: "c2", content: "No result was given." }],
    });
    assert.deepEqual(Object.keys(request_body(c, user.id, kDefaults, "m")).sort(), ["messages", "model", "stream", "stream_options"]);
});

test("chunks add up to the answer", () => {
    const c = new_conversation();
    const node = add_assistant(c, add_user(c, "root", "x").id);
    const delta = (d, more = {}) => apply_chunk(node, { choices: [{ index: 0, delta: d, ...more }] });
    assert.equal(delta({ role: "assistant", content: "" }), "");
    assert.equal(delta({ reasoning_content: "hm" }), "reasoning");
    assert.equal(delta({ content: "a" }), "content");
    assert.equal(delta({ tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: "" } }, { index: 1, id: "c2", function: { name: "g", arguments: "{" } }] }), "call");
    delta({ tool_calls: [{ index: 0, function: { arguments: "{}" } }, { index: 1, function: { arguments: "}" } }] });
    delta({}, { finish_reason: "tool_calls" });
    apply_chunk(node, { choices: [], usage: { prompt_tokens: 10, completion_tokens: 5, prompt_tokens_details: { cached_tokens: 8 } } });
    assert.deepEqual(node.calls.map((k) => [k.id, k.name, k.arguments]), [["c1", "f", "{}"], ["c2", "g", "{}"]]);
    assert.deepEqual([node.reasoning, node.content, node.stats.finish, node.stats.cached_tokens], ["hm", "a", "tool_calls", 8]);
    assert.equal(context_used(c), 15);
    for (const odd of [{}, { choices: null }, { choices: [{}] }, { choices: [{ delta: { tool_calls: "x", content: 7 } }] }, { choices: [{ delta: { tool_calls: [{ index: 1e9 }] } }] }]) apply_chunk(node, odd);
    assert.equal(node.content, "a");
    assert.ok(node.calls.length <= 256);
});

test("titles are one short line", () => {
    assert.equal(title_of("  Hello\nworld"), "Hello");
    assert.equal(title_of("x".repeat(200)).length, 60);
    assert.equal(title_of(" \n "), "New chat");
});

test("a conversation survives export and import", () => {
    const c = new_conversation();
    const node = add_assistant(c, add_user(c, "root", "x").id);
    Object.assign(node, { content: "y", reasoning: "z", state: "done", stats: { ttft_s: 0.5, finish: "stop" }, calls: [{ id: "1", name: "f", arguments: "{}", result: "r" }] });
    const back = checked(JSON.parse(JSON.stringify(c)));
    assert.deepEqual(JSON.parse(JSON.stringify(back)), JSON.parse(JSON.stringify(c)));
});

test("a crafted file is refused, or what the page does not know is dropped", () => {
    const root = { id: "root", parent: null, children: [], active: 0, role: "root", content: "" };
    for (const bad of [null, 7, {}, { nodes: null }, { nodes: {} }, { nodes: { root: { role: "user" } } }, { nodes: { root, "<b>": { role: "user" } } }, { nodes: { root, a: { role: "system", parent: "root" } } },
        { nodes: { root, a: { role: "user", parent: "b", children: ["b"] }, b: { role: "user", parent: "a", children: ["a"] } } }, { nodes: { root, a: { role: "user", parent: "nowhere" } } }, JSON.parse('{"nodes":{"__proto__":{"role":"root"}}}')]) {
        assert.throws(() => checked(bad), /^Error: (this is no|message|a message)/, JSON.stringify(bad));
    }
    const odd = checked({ id: "../x", title: 5, nodes: { root: { ...root, children: ["a", "zz", 3], active: 9 }, a: { role: "assistant", parent: "root", content: {}, evil: 1, calls: [null], stats: { x: {}, ttft_s: 1 }, state: "streaming", failure: { message: 3 } } } });
    assert.match(odd.id, /^[0-9a-f]{24}$/);
    assert.deepEqual(odd.nodes.root.children, ["a"]);
    assert.equal(odd.nodes.root.active, 0);
    assert.equal(odd.nodes.a.content, "");
    assert.equal(odd.nodes.a.evil, undefined);
    assert.equal(odd.nodes.a.state, "stopped");
    assert.deepEqual(odd.nodes.a.stats, { ttft_s: 1 });
});

test("settings say what is wrong with them", () => {
    const check = (name, text) => kFields.find((f) => f.name === name).check(text);
    for (const [name, good] of [["temperature", ["", "0", "0.7", "2", "0,5", " 1 "]], ["top_p", ["1", "0.95"]], ["top_k", ["0", "40"]], ["min_p", ["0.05"]], ["max_tokens", ["1", "4096"]], ["seed", ["0", "123456789"]]]) {
        for (const text of good) assert.equal(check(name, text).error, undefined, `${name} ${text}`);
    }
    for (const [name, bad] of [["temperature", ["-1", "2.1", "hot", "NaN", "Infinity", "1e9"]], ["top_p", ["1.1", "-0.1"]], ["top_k", ["1.5", "-1"]], ["min_p", ["2"]], ["max_tokens", ["0", "1.5", "-3"]], ["seed", ["-1", "1e300"]]]) {
        for (const text of bad) assert.match(check(name, text).error, /^.+\.$/, `${name} ${text}`);
    }
    assert.equal(check("temperature", "0,5").value, 0.5);
    assert.equal(check("temperature", "").value, null);
});

test("tools are checked and brought into one form", () => {
    assert.deepEqual(check_tools('[{"name":"f","parameters":{}}]').value, [{ type: "function", function: { name: "f", parameters: {} } }]);
    assert.deepEqual(check_tools('[{"type":"function","function":{"name":"g"}}]').value, [{ type: "function", function: { name: "g" } }]);
    for (const bad of ["{", "{}", "[1]", "[null]", '[{"name":"a b"}]', '[{"name":"f","parameters":[]}]']) assert.ok(check_tools(bad).error, bad);
});

test("colouring keeps every character, in whole and line by line", () => {
    const code = ['def f(x):  # comment', '    """doc', "    string 'here'", '    """', "    return x * 0x1F + 'a\\'b'", "/* block", "still */ int y = 1.5e-3f; // end", "#include <x>", "<a href=\"b\">t</a> <!-- c", "-->", '{"key": "v", "n": [1, true]}', "+added", "-removed", "let s = `a", "b`;", "'open", "\u{1F600} 日本 ()", "x".repeat(5000), ""];
    for (const name of ["python", "cpp", "js", "rust", "go", "sh", "sql", "json", "yaml", "html", "css", "diff", "java", "swift", "ruby", "lua", "nolanguage"]) {
        let state = null;
        for (const line of code) {
            const done = highlight_line(line, find_language(name), state);
            assert.equal(done.tokens.map((t) => t[1]).join(""), line, name);
            state = done.state;
        }
    }
});

test("colours are right where it matters", () => {
    const kinds = (line, name, state = null) => highlight_line(line, find_language(name), state).tokens.filter((t) => t[0]).map(([kind, text]) => `${kind}:${text}`);
    assert.deepEqual(kinds("def f(x): return 1 # c", "py"), ["keyword:def", "function:f", "keyword:return", "number:1", "comment:# c"]);
    assert.deepEqual(kinds('{"a": "b", "c": 1}', "json"), ["key:\"a\"", "string:\"b\"", "key:\"c\"", "number:1"]);
    assert.deepEqual(kinds("echo $#x # c", "sh"), ["keyword:echo", "comment:# c"]);
    assert.deepEqual(kinds("int x; /* a", "cpp"), ["keyword:int", "comment:/* a"]);
    const open = highlight_line("/* a", find_language("cpp"), null).state;
    assert.deepEqual(kinds("b */ int", "cpp", open), ["comment:b */", "keyword:int"]);
});
