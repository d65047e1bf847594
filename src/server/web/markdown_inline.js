// markdown_inline.js — what stands inside a paragraph: emphasis, code, links, mathematics, line breaks.
// Emphasis follows the delimiter algorithm of CommonMark. Every scan is bounded, so that no input costs more than
// about its length times a small constant.

const kPunctuation = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const kEntities = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", mdash: "—", ndash: "–", hellip: "…", times: "×", rarr: "→", larr: "←" };
const kUrl = /https?:\/\/[^\s<>"'`\\^{}|[\]]{1,2000}/y;
const kLinkTail = /\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:\s+(?:"[^"\n]*"|'[^'\n]*'|\([^()\n]*\)))?\s*\)/y;
const kBracketsMax = 64; // open at once; more stay text
const kEmphasisDepthMax = 16;

const node = (tag, attrs, children) => ({ tag, attrs, children });

// The address if a link may go there, else null. Only absolute http, https and mailto.
export function safe_url(text) {
    // eslint-disable-next-line no-control-regex
    if (/[\u0000-\u0020\u007f-\u009f]/.test(text) || !/^(?:https?:\/\/|mailto:)/i.test(text)) return null;
    try {
        const url = new URL(text);
        return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
    } catch {
        return null;
    }
}

// A link shows where it goes, unless its text says so.
function link(href, children) {
    const text = plain_text(children).trim();
    const url = new URL(href);
    const says_target = text === href || text === href.replace(/\/$/, "") || href === "mailto:" + text;
    const target = url.protocol === "mailto:" ? url.pathname : url.host;
    const a = node("a", { href, title: href, target: "_blank", rel: "noopener noreferrer" }, children);
    return says_target ? [a] : [a, node("span", { class: "link-target" }, [` (${target})`])];
}

export function plain_text(nodes) {
    return nodes.map((n) => (typeof n === "string" ? n : n.text ?? plain_text(n.children))).join("");
}

export function parse_inline(text, streaming = false) {
    return new InlineParser(text, streaming).run();
}

class InlineParser {
    constructor(text, streaming) {
        this.text = text;
        this.streaming = streaming;
        this.at = 0;
        this.items = []; // nodes, {run} delimiters and {bracket}s, resolved at the end
        this.brackets = [];
        this.no_ticks = new Set(); // lengths of backtick runs that have no closer ahead
        this.absent = new Set(); // closers that do not come any more
    }

    // Where `close` comes next; a search that finds nothing is not made again.
    find(close, from) {
        const at = this.absent.has(close) ? -1 : this.text.indexOf(close, from);
        if (at < 0) this.absent.add(close);
        return at;
    }

    run() {
        const special = /[\\`*_~[\]!<&$\n]|https?:\/\//g;
        while (this.at < this.text.length) {
            special.lastIndex = this.at;
            const found = special.exec(this.text);
            const end = found ? found.index : this.text.length;
            if (end > this.at) this.push(this.text.slice(this.at, end));
            this.at = end;
            if (found) this.special(this.text[this.at]);
        }
        return this.finish();
    }

    push(item) {
        if (item !== "") this.items.push(item);
    }

    literal(length) {
        this.push(this.text.slice(this.at, this.at + length));
        this.at += length;
    }

    special(c) {
        switch (c) {
            case "\\": return this.escape();
            case "`": return this.code();
            case "*": case "_": case "~": return this.delimiter(c);
            case "[": return this.open_bracket(1);
            case "!": return this.text[this.at + 1] === "[" ? this.open_bracket(2) : this.literal(1);
            case "]": return this.close_bracket();
            case "<": return this.angle();
            case "&": return this.entity();
            case "$": return this.dollar();
            case "\n": return this.newline();
            default: return this.bare_url();
        }
    }

    escape() {
        const next = this.text[this.at + 1];
        if (next === "(" || next === "[") {
            const close = this.find(next === "(" ? "\\)" : "\\]", this.at + 2);
            if (close >= 0 || this.streaming) {
                const end = close >= 0 ? close : this.text.length;
                this.push({ tag: "math", text: this.text.slice(this.at + 2, end).trim(), display: next === "[" });
                this.at = end + 2;
                return;
            }
        }
        if (next === "\n") {
            this.push(node("br", {}, []));
            this.at += 2;
        } else if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
            this.push(next);
            this.at += 2;
        } else {
            this.literal(1);
        }
    }

    code() {
        const ticks = /`+/y;
        ticks.lastIndex = this.at;
        const length = ticks.exec(this.text)[0].length;
        const start = this.at + length;
        let end = -1;
        if (!this.no_ticks.has(length)) {
            const runs = /`+/g;
            runs.lastIndex = start;
            for (let m; (m = runs.exec(this.text)); ) {
                if (m[0].length === length) { end = m.index; break; }
            }
            if (end < 0) this.no_ticks.add(length);
        }
        if (end < 0 && !(this.streaming && length === 1)) return this.literal(length);
        let body = this.text.slice(start, end < 0 ? undefined : end).replace(/\n/g, " ");
        if (body.startsWith(" ") && body.endsWith(" ") && body.trim() !== "") body = body.slice(1, -1);
        if (body !== "") this.push(node("code", {}, [body]));
        this.at = end < 0 ? this.text.length : end + length;
    }

    delimiter(c) {
        let end = this.at;
        while (this.text[end] === c) ++end;
        const length = end - this.at;
        const before = this.text[this.at - 1] ?? " ", after = this.text[end] ?? " ";
        const space_after = /\s/.test(after), space_before = /\s/.test(before);
        const left = !space_after && (!kPunctuation.test(after) || space_before || kPunctuation.test(before));
        const right = !space_before && (!kPunctuation.test(before) || space_after || kPunctuation.test(after));
        let open = left, close = right;
        if (c === "_") {
            open = left && (!right || kPunctuation.test(before));
            close = right && (!left || kPunctuation.test(after));
        }
        if (c === "~" && length !== 2) open = close = false;
        if (length > 64) open = close = false;
        const at_end = this.streaming && end >= this.text.length;
        // What was just opened at the end of growing text has nothing to emphasise yet: not shown.
        if (at_end && !close) { this.at = end; return; }
        if (!open && !close) return this.literal(length);
        this.items.push({ run: c, length, original: length, open, close });
        this.at = end;
    }

    open_bracket(length) {
        const bracket = { bracket: true, image: length === 2, index: this.items.length, text: length === 2 ? "![" : "[" };
        if (this.brackets.length >= kBracketsMax) return this.literal(length);
        this.items.push(bracket);
        this.brackets.push(bracket);
        this.at += length;
    }

    close_bracket() {
        const open = this.brackets.pop();
        if (!open) return this.literal(1);
        kLinkTail.lastIndex = this.at + 1;
        const tail = kLinkTail.exec(this.text);
        const partial = !tail && this.streaming && /^\([^\s)]*$/.test(this.text.slice(this.at + 1, this.at + 2049));
        if (!tail && !partial) return this.literal(1);
        const children = resolve(this.items.splice(open.index).slice(1));
        if (partial) { // its address still comes in
            for (const child of children) this.push(child);
            this.at = this.text.length;
            return;
        }
        this.at += 1 + tail[0].length;
        const href = safe_url((tail[1] ?? tail[2] ?? "").replace(/\\([!-/:-@[-`{-~])/g, "$1"));
        if (open.image) {
            const label = node("span", { class: "image-label" }, ["image"]);
            const alt = plain_text(children) || "without a description";
            if (href) for (const n of link(href, [label, " " + alt])) this.push(n);
            else this.push(node("span", { class: "image-blocked" }, [label, " " + alt]));
        } else if (href) {
            for (const n of link(href, children)) this.push(n);
            for (const b of this.brackets) b.dead = !b.image; // no links in links
            this.brackets = this.brackets.filter((b) => !b.dead);
        } else {
            // Not a place that links may go to: the text as it was written.
            this.push("[");
            for (const child of children) this.push(child);
            this.push("]" + tail[0]);
        }
    }

    angle() {
        const rest = this.text.slice(this.at, this.at + 2048);
        const br = /^<br\s*\/?>/i.exec(rest);
        const auto = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(rest);
        const href = auto && safe_url(auto[1]);
        if (br) {
            this.push(node("br", {}, []));
            this.at += br[0].length;
        } else if (href) {
            for (const n of link(href, [auto[1]])) this.push(n);
            this.at += auto[0].length;
        } else {
            this.literal(1);
        }
    }

    entity() {
        const found = /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(\w{2,8}));/.exec(this.text.slice(this.at, this.at + 12));
        const code = found && (found[1] ? Number(found[1]) : found[2] ? parseInt(found[2], 16) : -1);
        const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000);
        const text = !found ? null : found[3] ? kEntities[found[3]] : valid ? String.fromCodePoint(code) : null;
        if (!text) return this.literal(1);
        this.push(text);
        this.at += found[0].length;
    }

    // $x$ where the dollars hug their content and no digit follows, so that prices stay prices.
    dollar() {
        const double = this.text[this.at + 1] === "$";
        if (double) {
            const end = this.find("$$", this.at + 2);
            if (end < 0 || end === this.at + 2) return this.literal(2);
            this.push({ tag: "math", text: this.text.slice(this.at + 2, end).trim(), display: true });
            this.at = end + 2;
            return;
        }
        const end = this.find("$", this.at + 1);
        const body = end < 0 ? "" : this.text.slice(this.at + 1, end);
        const hugs = body !== "" && !/^\s|\s$|\n\n/.test(body) && !/\d/.test(this.text[end + 1] ?? "");
        if (!hugs || body.endsWith("\\")) return this.literal(1);
        this.push({ tag: "math", text: body, display: false });
        this.at = end + 1;
    }

    newline() {
        const last = this.items.at(-1);
        const hard = typeof last === "string" && last.endsWith("  ");
        if (typeof last === "string") this.items[this.items.length - 1] = last.trimEnd();
        this.push(hard ? node("br", {}, []) : "\n");
        ++this.at;
    }

    bare_url() {
        kUrl.lastIndex = this.at;
        const found = kUrl.exec(this.text);
        const before = this.text[this.at - 1] ?? " ";
        if (!found || /\w/.test(before)) return this.literal(4);
        let url = found[0].replace(/[?!.,:;*_~'"\]]+$/, "");
        while (url.endsWith(")") && url.split(")").length > url.split("(").length) url = url.slice(0, -1);
        const href = safe_url(url);
        const inside_link = this.brackets.some((b) => !b.image);
        if (!href || inside_link) return this.literal(url.length || 4);
        for (const n of link(href, [url])) this.push(n);
        this.at += url.length;
    }

    finish() {
        return resolve(this.items, this.streaming);
    }
}

// Turns delimiter runs into em, strong and del; what matches nothing becomes text again.
function resolve(items, streaming = false) {
    if (streaming) close_open_runs(items);
    const stack = []; // indices into `out` of runs that may open
    const out = [];
    for (const item of items) {
        if (item.run && item.close) close_run(item, out, stack);
        if (item.run && item.length > 0 && item.open) stack.push(out.length);
        if (!item.run || item.length > 0) out.push(item);
    }
    return merge_text(out);
}

// For every opener without a closer, its closer at the end.
function close_open_runs(items) {
    const open = [];
    for (const item of items) {
        if (!item.run) continue;
        const match = item.close ? open.findLastIndex((o) => o.run === item.run && o.original === item.original) : -1;
        if (match >= 0) open.splice(match);
        else if (item.open) open.push(item);
    }
    for (const item of open.reverse().slice(0, kEmphasisDepthMax)) {
        items.push({ run: item.run, length: item.original, original: item.original, open: false, close: true });
    }
}

function close_run(closer, out, stack) {
    while (closer.length > 0) {
        let at = stack.length - 1;
        for (; at >= 0; --at) {
            const o = out[stack[at]];
            const of_three = (o.close || closer.open) && (o.original + closer.original) % 3 === 0 &&
                !(o.original % 3 === 0 && closer.original % 3 === 0);
            if (o.run === closer.run && !of_three) break;
            if (stack.length - at > kBracketsMax) { at = -1; break; }
        }
        if (at < 0) return;
        const opener = out[stack[at]];
        const count = closer.run === "~" ? 2 : opener.length >= 2 && closer.length >= 2 ? 2 : 1;
        const children = merge_text(out.splice(stack[at] + 1));
        stack.length = at + 1;
        const tag = closer.run === "~" ? "del" : count === 2 ? "strong" : "em";
        const depth = 1 + Math.max(0, ...children.map((c) => c.depth ?? 0));
        opener.length -= count;
        closer.length -= count;
        if (opener.length === 0) {
            out.pop();
            stack.pop();
        }
        if (depth > kEmphasisDepthMax) out.push(...children);
        else out.push({ ...node(tag, {}, children), depth });
    }
}

function merge_text(items) {
    const out = [];
    for (const item of items) {
        const text = typeof item === "string" ? item : item.run ? item.run.repeat(item.length) : item.bracket ? item.text : null;
        if (text === null) out.push(item);
        else if (typeof out.at(-1) === "string") out[out.length - 1] += text;
        else out.push(text);
    }
    return out;
}
