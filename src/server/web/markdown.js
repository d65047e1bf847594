// markdown.js — Markdown as models write it, to a tree of plain objects; no DOM, so that it runs under Node too.
//
// The text is hostile input: no raw HTML (it stays text, <br> alone is a line break), no images (a link instead),
// links only where safe_url() lets them. A node is a string or {tag, attrs, children}; a code block is
// {tag: "code_block", lang, text, closed}, mathematics {tag: "math", text, display}.
// `streaming` says that the text will grow: markers that are still open at its end count as closed there, so that
// what is on the screen does not change its look when they close.
import { parse_inline } from "./markdown_inline.js";

const kDepthMax = 12; // quotes and lists within each other; deeper ones stay text
const kFence = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t](.*)|)$/;
const kRule = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const kQuote = /^ {0,3}> ?/;
const kItem = /^( {0,3})([-*+]|(\d{1,9})[.)])(?:([ \t]+)(.*)|[ \t]*)$/;
const kDelimiterRow = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const kSetext = /^ {0,3}(=+|-+)[ \t]*$/;
const kMathOpen = /^ {0,3}(\$\$|\\\[)(.*)$/;
// A line that may become the marker of a block with its next character, and looks wrong until then.
const kPartialMarker = /(^|\n)[ \t]*(?:`{1,2}|~{1,2}|#{1,6}|[-*+]|\d{1,3}[.)]?|>|-{2}|\$\$?|\|)[ \t]*$/;

export const node = (tag, attrs, children) => ({ tag, attrs: attrs || {}, children: children || [] });
const is_blank = (line) => /^[ \t]*$/.test(line);

// All blocks of `text`: [{start, node}], `start` the offset at which the block's first line begins. Text before the
// last block's start never changes its meaning by what is appended.
export function parse_blocks(text, streaming = false) {
    if (streaming) text = text.replace(kPartialMarker, "$1");
    const lines = text.split("\n");
    const offsets = [];
    let offset = 0;
    for (let i = 0; i < lines.length; ++i) {
        offsets.push(offset);
        offset += lines[i].length + 1;
        if (lines[i].endsWith("\r")) lines[i] = lines[i].slice(0, -1);
    }
    return new BlockParser(lines, 0, streaming).run().map((b) => ({ start: offsets[b.line], node: b.node }));
}

export function parse(text, streaming = false) {
    return parse_blocks(text, streaming).map((b) => b.node);
}

// Cuts the row of a table at its unescaped bars; bars in code spans do not count.
export function split_row(line) {
    const cells = [];
    let cell = "", ticks = 0;
    const text = line.trim().replace(/^\|/, "");
    for (let i = 0; i < text.length; ++i) {
        const c = text[i];
        if (c === "\\" && text[i + 1] === "|") { cell += "|"; ++i; continue; }
        if (c === "`") ticks ^= 1;
        if (c === "|" && !(ticks && text.indexOf("`", i) >= 0)) { cells.push(cell.trim()); cell = ""; continue; }
        cell += c;
    }
    if (cell.trim() !== "" || cells.length === 0) cells.push(cell.trim());
    return cells;
}

class BlockParser {
    constructor(lines, depth, streaming) {
        this.lines = lines;
        this.depth = depth;
        this.streaming = streaming;
        this.at = 0;
        this.blocks = [];
    }

    run() {
        while (this.at < this.lines.length) {
            if (is_blank(this.lines[this.at])) { ++this.at; continue; }
            const line = this.at;
            const found = this.fence() || this.heading() || this.rule() || this.quote() || this.list() ||
                this.math() || this.table() || this.indented_code() || this.paragraph();
            this.blocks.push({ line, node: found });
        }
        return this.blocks;
    }

    // Only the block that ends the text can have open markers.
    inline(text) {
        return parse_inline(text, this.streaming && this.at >= this.lines.length);
    }

    inner(lines) {
        const open = this.streaming && this.at >= this.lines.length;
        return new BlockParser(lines, this.depth + 1, open).run().map((b) => b.node);
    }

    fence() {
        const open = kFence.exec(this.lines[this.at]);
        if (!open || (open[2][0] === "~" && open[3].includes("~"))) return null;
        const closing = new RegExp(`^ {0,3}${open[2][0]}{${open[2].length},}[ \\t]*$`);
        const indent = new RegExp(`^ {0,${open[1].length}}`);
        const body = [];
        let closed = false;
        for (++this.at; this.at < this.lines.length && !closed; ++this.at) {
            if (closing.test(this.lines[this.at])) closed = true;
            else body.push(this.lines[this.at].replace(indent, ""));
        }
        const lang = open[3].trim().split(/[\s{,:]/)[0].toLowerCase().slice(0, 32);
        return { tag: "code_block", lang, text: body.join("\n"), closed };
    }

    heading() {
        const found = kHeading.exec(this.lines[this.at]);
        if (!found) return null;
        ++this.at;
        let text = (found[2] ?? "").trim();
        const last = text.lastIndexOf(" ");
        if (/^#+$/.test(text.slice(last + 1))) text = text.slice(0, Math.max(last, 0)).trimEnd();
        return node(`h${found[1].length}`, {}, this.inline(text));
    }

    rule() {
        if (!kRule.test(this.lines[this.at])) return null;
        ++this.at;
        return node("hr");
    }

    quote() {
        if (this.depth >= kDepthMax || !kQuote.test(this.lines[this.at])) return null;
        const body = [];
        for (; this.at < this.lines.length; ++this.at) {
            const line = this.lines[this.at];
            if (kQuote.test(line)) body.push(line.replace(kQuote, ""));
            else if (!is_blank(line) && !is_blank(body.at(-1)) && !this.begins_block(line)) body.push(line);
            else break;
        }
        return node("blockquote", {}, this.inner(body));
    }

    list() {
        const first = kItem.exec(this.lines[this.at]);
        if (this.depth >= kDepthMax || !first) return null;
        const kind = first[2].at(-1);
        const items = [];
        let loose = false;
        while (this.at < this.lines.length) {
            const item = kItem.exec(this.lines[this.at]);
            if (!item || item[2].at(-1) !== kind || kRule.test(this.lines[this.at])) break;
            const { lines, gap } = this.item_lines(item);
            const next = kItem.exec(this.lines[this.at] ?? "");
            items.push(this.list_item(lines));
            // Loose: blank lines between items, or between the blocks of one.
            loose ||= items.at(-1).loose || (gap && next !== null && next[2].at(-1) === kind);
        }
        const start = first[3] !== undefined && first[3] !== "1" ? { start: String(Number(first[3])) } : {};
        const tight = (blocks) => blocks.flatMap((b) => (b.tag === "p" ? b.children : [b]));
        const nodes = items.map(({ blocks, box }) => node("li", box ? { class: "task" } : {}, [...(box ? [box, " "] : []), ...(loose ? blocks : tight(blocks))]));
        return node(first[3] === undefined ? "ul" : "ol", start, nodes);
    }

    // Takes the lines of one item, without their indentation; `gap`: blank lines follow it.
    item_lines(item) {
        const spaces = item[4] === undefined || item[4].length > 4 ? 1 : item[4].length;
        const width = item[1].length + item[2].length + spaces;
        const lines = [(item[4]?.length > 4 ? item[4].slice(1) : "") + (item[5] ?? "")];
        let gap = false;
        let fenced = kFence.test(lines[0]);
        for (++this.at; this.at < this.lines.length; ++this.at) {
            const line = this.lines[this.at].replace(/^\t/, "    ");
            const indent = /^ */.exec(line)[0].length;
            if (is_blank(line)) { gap = true; lines.push(""); continue; }
            // Models indent what belongs to an item by two or three columns as often as by the exact width.
            const belongs = indent >= width || (indent >= 2 && (fenced || kItem.test(line.slice(2)) || kFence.test(line)));
            if (!belongs && (gap || this.begins_block(line) || kItem.test(line))) break;
            const text = line.slice(Math.min(indent, width));
            if (kFence.test(text)) fenced = !fenced;
            lines.push(text);
            gap = false;
        }
        while (lines.length > 1 && is_blank(lines.at(-1))) lines.pop();
        return { lines, gap };
    }

    // The blocks of one item; `box`: of a task.
    list_item(lines) {
        const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
        if (task) lines = [lines[0].slice(task[0].length), ...lines.slice(1)];
        const open = this.streaming && this.at >= this.lines.length;
        const blocks = new BlockParser(lines, this.depth + 1, open).run();
        const loose = blocks.some((b, i) => i > 0 && is_blank(lines[b.line - 1]));
        const done = task && task[1] !== " ";
        const box = task && node("span", { class: done ? "box done" : "box" }, [done ? "☑" : "☐"]);
        return { blocks: blocks.map((b) => b.node), loose, box };
    }

    math() {
        const open = kMathOpen.exec(this.lines[this.at]);
        if (!open) return null;
        const close = open[1] === "$$" ? "$$" : "\\]";
        const body = [];
        let rest = open[2], at = this.at;
        for (;;) {
            const end = rest.indexOf(close);
            if (end >= 0 && is_blank(rest.slice(end + 2))) { body.push(rest.slice(0, end)); break; }
            if (end >= 0) return null;
            body.push(rest);
            if (++at >= this.lines.length) {
                if (!this.streaming) return null;
                break;
            }
            rest = this.lines[at];
        }
        this.at = at + 1;
        return { tag: "math", text: body.join("\n").trim(), display: true };
    }

    table() {
        const head = this.lines[this.at];
        if (!head.includes("|")) return null;
        const next = this.lines[this.at + 1];
        const names = split_row(head);
        // While it streams, a row that begins with a bar is going to be a table's head.
        const early = this.streaming && /^ {0,3}\|/.test(head) && this.at + 2 >= this.lines.length &&
            /^[ \t|:-]*$/.test(next ?? "");
        const row = next !== undefined && kDelimiterRow.test(next) ? split_row(next) : null;
        if (!early && (!row || row.length !== names.length)) return null;
        const align = names.map((_, i) => /^(:?)-+(:?)$/.exec(row?.[i] ?? "")).map((m) =>
            !m ? "" : m[1] && m[2] ? "center" : m[2] ? "right" : "");
        this.at = Math.min(this.at + 2, this.lines.length);
        const rows = [];
        for (; this.at < this.lines.length; ++this.at) {
            const line = this.lines[this.at];
            if (is_blank(line) || this.begins_block(line)) break;
            rows.push(split_row(line));
        }
        const cell = (tag, text, i) => node(tag, align[i] ? { class: align[i] } : {}, this.inline(text));
        const line = (cells) => node("tr", {}, names.map((_, i) => cell("td", cells[i] ?? "", i)));
        const head_row = node("tr", {}, names.map((name, i) => cell("th", name, i)));
        return node("table", {}, [node("thead", {}, [head_row]), node("tbody", {}, rows.map(line))]);
    }

    indented_code() {
        if (!/^(?: {4}|\t)/.test(this.lines[this.at])) return null;
        const body = [];
        for (; this.at < this.lines.length; ++this.at) {
            const line = this.lines[this.at];
            if (!is_blank(line) && !/^(?: {4}|\t)/.test(line)) break;
            body.push(line.replace(/^(?: {1,4}|\t)/, ""));
        }
        while (is_blank(body.at(-1))) body.pop();
        return { tag: "code_block", lang: "", text: body.join("\n"), closed: true };
    }

    paragraph() {
        const body = [this.lines[this.at++].trimStart()];
        for (; this.at < this.lines.length; ++this.at) {
            const line = this.lines[this.at];
            const setext = kSetext.exec(line);
            if (setext) {
                ++this.at;
                return node(setext[1][0] === "=" ? "h1" : "h2", {}, this.inline(body.join("\n")));
            }
            if (is_blank(line) || this.begins_block(line)) break;
            if (line.includes("|") && kDelimiterRow.test(this.lines[this.at + 1] ?? "") && line.trim().startsWith("|")) break;
            body.push(line.trimStart());
        }
        return node("p", {}, this.inline(body.join("\n").trimEnd()));
    }

    // Whether `line` ends a paragraph by beginning something else.
    begins_block(line) {
        const item = kItem.exec(line);
        return kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line) || kMathOpen.test(line) ||
            (item !== null && item[5] !== undefined && (item[3] === undefined || item[3] === "1"));
    }
}
