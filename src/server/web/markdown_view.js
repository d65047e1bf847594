// markdown_view.js — shows a growing Markdown text and touches only what changed, so that selections, scroll
// positions and the reader's eye stay where they are. The one place where model output becomes elements: tags and
// attributes are those listed here, text is text nodes.
import { copy_text, h, icon } from "./dom.js";
import { find_language, highlight_line } from "./highlight.js";
import { to_mathml } from "./latex.js";
import { parse_blocks } from "./markdown.js";
import { safe_url } from "./markdown_inline.js";

const kTags = new Set("p h1 h2 h3 h4 h5 h6 hr br blockquote ul ol li strong em del code a span table thead tbody tr th td".split(" "));
const kMathTags = new Set("math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd".split(" "));
const kMathAttributes = new Set("display mathvariant stretchy fence movablelimits linebreak width linethickness class minsize accent accentunder displaystyle form".split(" "));
const kMathNamespace = "http://www.w3.org/1998/Math/MathML";
const kAttributes = new Set(["class", "title", "target", "rel", "start"]);

export class MarkdownView {
    constructor(element) {
        this.element = element;
        this.text = "";
        this.blocks = []; // {start, node, view}
    }

    // Shows `text`. When it continues what is shown, blocks before the last one are not looked at again.
    update(text, streaming) {
        if (text === this.text && streaming === this.streaming) return;
        this.streaming = streaming;
        const grows = text.startsWith(this.text);
        const keep = grows ? Math.max(this.blocks.length - 1, 0) : 0;
        const from = keep > 0 ? this.blocks[keep].start : 0;
        const parsed = parse_blocks(text.slice(from), streaming).map((b) => ({ start: b.start + from, node: b.node }));
        const old = this.blocks.slice(keep);
        const views = patch(this.element, keep, old.map((b) => b.view), parsed.map((b) => b.node));
        this.blocks.length = keep;
        parsed.forEach((b, i) => this.blocks.push({ ...b, view: views[i] }));
        this.text = text;
    }
}

// A view is {node, dom, children?, code?}. Brings the children of `parent` from index `first` on to `nodes`.
function patch(parent, first, views, nodes) {
    const result = nodes.map((node, i) => {
        const view = views[i];
        if (view && can_update(view.node, node)) return update(view, node);
        const made = create(node);
        if (view) view.dom.replaceWith(made.dom);
        else parent.insertBefore(made.dom, parent.childNodes[first + i] ?? null);
        return made;
    });
    for (const view of views.slice(nodes.length)) view.dom.remove();
    return result;
}

function can_update(old, node) {
    if (typeof old === "string" || typeof node === "string") return typeof old === typeof node;
    if (old.tag !== node.tag) return false;
    if (node.tag === "code_block") return old.lang === node.lang;
    if (node.tag === "math") return old.text === node.text && old.display === node.display;
    const a = old.attrs, b = node.attrs;
    return Object.keys(a).length === Object.keys(b).length && Object.keys(a).every((k) => a[k] === b[k]);
}

function update(view, node) {
    if (typeof node === "string") {
        if (node.startsWith(view.node)) view.dom.appendData(node.slice(view.node.length));
        else view.dom.data = node;
    } else if (node.tag === "code_block") {
        view.code.update(node);
    } else if (node.tag !== "math") {
        view.children = patch(view.inner, 0, view.children, node.children);
    }
    view.node = node;
    return view;
}

function create(node) {
    if (typeof node === "string") return { node, dom: document.createTextNode(node) };
    if (node.tag === "code_block") {
        const code = new CodeView(node);
        return { node, dom: code.element, code };
    }
    if (node.tag === "math") return { node, dom: math_element(node) };
    const dom = document.createElement(kTags.has(node.tag) ? node.tag : "span");
    for (const [name, value] of Object.entries(node.attrs)) {
        if (name === "href" && safe_url(value)) dom.setAttribute("href", value);
        else if (kAttributes.has(name)) dom.setAttribute(name, value);
    }
    const view = { node, dom, inner: dom };
    if (node.tag === "table") view.dom = h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Table" }, dom);
    view.children = patch(dom, 0, [], node.children);
    return view;
}

// Typeset where all of it is known, else its source.
function math_element({ text, display }) {
    const tree = to_mathml(text, display);
    const kind = display ? " display" : text.length > 60 ? " wide" : ""; // formulas do not break: a wide one scrolls
    const element = h(display ? "div" : "span", { class: `math${kind}${tree ? "" : " source"}`, title: tree ? text : null });
    element.append(tree ? mathml(tree) : text);
    return element;
}

function mathml(node) {
    if (typeof node === "string") return document.createTextNode(node);
    const element = document.createElementNS(kMathNamespace, kMathTags.has(node.tag) ? node.tag : "mrow");
    for (const [name, value] of Object.entries(node.attrs)) if (kMathAttributes.has(name)) element.setAttribute(name, value);
    element.append(...node.children.map(mathml));
    return element;
}

// A block of code: its language, a copy button, lines coloured once each.
export class CodeView {
    // node {lang, text}; `label` stands over it instead of the language.
    constructor(node, label = node.lang || "text") {
        this.lang = find_language(node.lang);
        this.code = h("code", {});
        this.lines = []; // {text, before, state, dom, last}: states before and after the line
        const copy = h("button", { type: "button", class: "code-copy", "aria-label": "Copy code" }, icon("copy"), "Copy");
        copy.addEventListener("click", () => copy_text(this.text, copy));
        this.element = h("figure", { class: "code-block" },
            h("figcaption", {}, h("span", { class: "code-lang" }, label), copy),
            h("pre", { tabindex: "0", role: "region", "aria-label": `Code, ${label}` }, this.code));
        this.update(node);
    }

    update(node) {
        this.text = node.text;
        const texts = node.text.split("\n");
        for (const line of this.lines.splice(texts.length)) line.dom.remove();
        let state = null;
        texts.forEach((text, i) => {
            const line = this.lines[i];
            const last = i === texts.length - 1;
            const before = state?.close;
            if (line && line.text === text && line.last === last && line.before === before) { state = line.state; return; }
            const done = highlight_line(text, this.lang, state);
            state = done.state;
            const parts = done.tokens.map(([kind, part]) => (kind ? h("span", { class: `hl-${kind}` }, part) : part));
            const dom = line?.dom ?? this.code.appendChild(h("span", { class: "line" }));
            dom.replaceChildren(...parts, ...(last ? [] : ["\n"]));
            this.lines[i] = { text, before, state, dom, last };
        });
    }
}
