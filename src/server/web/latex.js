// latex.js — the mathematics that models write, from TeX to MathML as plain nodes {tag, attrs, children}, which
// browsers typeset by themselves. What is not known here makes the whole formula null: its source is shown instead.
import { kAccents, kBig, kDelimiters, kFunctions, kLimits, kOperators, kSpaces, kStyles, kSymbols } from "./latex_symbols.js";

const kLengthMax = 8000;
const kDepthMax = 40;
const kToken = /\s+|%[^\n]*|\\(?:[a-zA-Z]+\*?|[^])|\d+(?:[.,]\d+)*|[^]/gu;
const kMatrices = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], smallmatrix: ["", ""], array: ["", ""], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], gathered: ["", ""], split: ["", ""], equation: ["", ""], "equation*": ["", ""] };

const node = (tag, children, attrs = {}) => ({ tag, attrs, children });
const row = (children) => (children.length === 1 ? children[0] : node("mrow", children));
const operator = (text, attrs = {}) => node("mo", [text], attrs);
const fence = (text) => (text ? [operator(text, { stretchy: "true", fence: "true" })] : []);

// A sign after an operator belongs to what follows it.
function sign(made, before) {
    const is_sign = made.tag === "mo" && /^[−+±∓]$/.test(made.children[0]);
    const unary = before && before.tag === "mo" && !/^[)\]}|⟩⌋⌉!′]$/.test(before.children[0]);
    return is_sign && unary ? operator(made.children[0], { form: "prefix" }) : made;
}

class Unknown extends Error {}

export function to_mathml(text, display) {
    if (text.length > kLengthMax) return null;
    try {
        const parser = new Parser(text, display);
        const children = parser.until([]);
        if (parser.peek() !== undefined) return null;
        return node("math", [row(children)], display ? { display: "block" } : {});
    } catch (error) {
        if (error instanceof Unknown) return null;
        throw error;
    }
}

class Parser {
    constructor(text, display) {
        this.tokens = (text.match(kToken) ?? []).filter((t) => t[0] !== "%");
        this.at = 0;
        this.depth = 0;
        this.display = display;
    }

    peek() {
        while (/^\s/.test(this.tokens[this.at] ?? "")) ++this.at;
        return this.tokens[this.at];
    }

    take(expected) {
        const token = this.peek();
        if (token === undefined || (expected !== undefined && token !== expected)) throw new Unknown();
        ++this.at;
        return token;
    }

    // Everything up to one of `ends`, which is left.
    until(ends) {
        if (++this.depth > kDepthMax) throw new Unknown();
        const out = [];
        for (let token; (token = this.peek()) !== undefined && !ends.includes(token); ) {
            if (token === "}" || token === "&" || token === "\\\\") {
                if (token !== "\\\\") throw new Unknown();
                this.take();
                out.push(node("mspace", [], { linebreak: "newline" }));
                continue;
            }
            const function_name = kFunctions.has(token.slice(1)) || token === "\\operatorname";
            out.push(sign(this.scripted(), out.at(-1)));
            // The thin space between a function and an argument without parentheses.
            if (function_name && !/^(?:[()[\],^_}]|\\left|\\[bB]ig.*)?$/.test(this.peek() ?? "")) out.push(node("mspace", [], { width: "0.17em" }));
        }
        --this.depth;
        return out;
    }

    group() {
        const token = this.peek();
        if (/^\d./.test(token ?? "")) { // without braces it is one digit
            this.tokens.splice(this.at, 1, token[0], token.slice(1));
            return this.atom();
        }
        if (token !== "{") return this.atom();
        this.take("{");
        const inner = row(this.until(["}"]));
        this.take("}");
        return inner;
    }

    // The letters of {…}, as they are.
    words() {
        let text = "", open = 0;
        this.take("{");
        for (; this.at < this.tokens.length; ++this.at) {
            const token = this.tokens[this.at];
            if (token === "}" && open-- === 0) break;
            if (token === "{") ++open;
            text += token.replace(/^\\([^a-zA-Z])$/, "$1").replace(/^\s+$/, "\u00a0");
        }
        this.take("}");
        return text;
    }

    // An atom with what hangs on it: x_i^2, \sum_{i=1}^n, f''.
    scripted() {
        const token = this.peek();
        const base = token === "^" || token === "_" ? node("mrow", []) : this.atom();
        let sub = null, sup = null, primes = "";
        for (let t; ["^", "_", "'"].includes((t = this.peek())); ) {
            this.take();
            if (t === "'") primes += "′";
            else if (t === "^" && !sup) sup = this.group();
            else if (t === "_" && !sub) sub = this.group();
            else throw new Unknown();
        }
        if (primes) sup = sup ? row([operator(primes), sup]) : operator(primes);
        if (!sub && !sup) return base;
        const limits = base.limits || (this.display && kLimits.has(token)) || base.under;
        const [both, below, above] = limits ? ["munderover", "munder", "mover"] : ["msubsup", "msub", "msup"];
        return sub && sup ? node(both, [base, sub, sup]) : sub ? node(below, [base, sub]) : node(above, [base, sup]);
    }

    atom() {
        const token = this.take();
        if (token === "{") {
            const inner = row(this.until(["}"]));
            this.take("}");
            return node("mrow", [inner]);
        }
        if (/^\d/.test(token)) return node("mn", [token]);
        if (/^\p{L}$/u.test(token)) return node("mi", [token]);
        if (token[0] !== "\\") return "()[]|".includes(token) ? operator(token, { stretchy: "false" }) : operator(token === "-" ? "−" : token === "*" ? "∗" : token === "~" ? "\u00a0" : token);
        return this.command(token.slice(1), token);
    }

    command(name, token) {
        if (name in kSymbols) return node("mi", [kSymbols[name]], /^[A-Z]/.test(name) || "∞∂∇∅ℏ∀∃".includes(kSymbols[name]) ? { mathvariant: "normal" } : {});
        if (name in kOperators) return operator(kOperators[name], kDelimiters[token] ? { stretchy: "false" } : {});
        if (name in kBig) return operator(kBig[name], kLimits.has(token) ? {} : { movablelimits: "false" });
        if (kFunctions.has(name)) return node("mi", [name], { mathvariant: "normal" });
        if (name in kSpaces) return node("mspace", [], { width: kSpaces[name] });
        if (name in kAccents) return this.accent(name);
        if (name in kStyles) return this.styled(name);
        switch (name) {
            case "frac": case "dfrac": case "tfrac": case "cfrac": return node("mfrac", [this.group(), this.group()]);
            case "binom": case "dbinom": return node("mrow", [...fence("("), node("mfrac", [this.group(), this.group()], { linethickness: "0" }), ...fence(")")]);
            case "sqrt": return this.root();
            case "left": return this.fenced();
            case "begin": return this.environment();
            case "text": case "textrm": case "mbox": case "textit": case "textbf": case "mathrm": case "operatorname": case "operatorname*": return this.upright(name);
            case "overset": case "stackrel": { const above = this.group(); return node("mover", [this.group(), above]); }
            case "underset": { const below = this.group(); return node("munder", [this.group(), below]); }
            case "boxed": return node("mrow", [this.group()], { class: "boxed" });
            case "displaystyle": case "textstyle": case "limits": case "nolimits": case "nonumber": case "notag": return node("mrow", []);
            case "big": case "Big": case "bigg": case "Bigg": case "bigl": case "bigr": case "Bigl": case "Bigr": case "biggl": case "biggr": return operator(this.delimiter(), { stretchy: "true", minsize: /^b.{2}$|^big[lr]$/.test(name) ? "1.3em" : "1.8em" });
            case "not": return operator(this.group().children[0] + "\u0338");
            case "tag": return node("mtext", [`\u2003(${this.words()})`]);
            default: throw new Unknown();
        }
    }

    accent(name) {
        const { mark, under, stretchy } = kAccents[name];
        const made = node(under ? "munder" : "mover", [this.group(), operator(mark, { stretchy: String(stretchy) })], under ? { accentunder: "true" } : { accent: "true" });
        made.under = name.endsWith("brace");
        return made;
    }

    // Letters of another alphabet have code points of their own.
    styled(name) {
        const convert = (n) => {
            if (typeof n === "string") return [...n].map((c) => kStyles[name](c)).join("");
            return { ...n, children: n.children.map(convert), attrs: n.tag === "mi" ? { mathvariant: "normal" } : n.attrs };
        };
        return convert(this.group());
    }

    upright(name) {
        const words = this.words();
        return /^operatorname|mathrm/.test(name) ? node("mi", [words], { mathvariant: "normal" }) : node("mtext", [words]);
    }

    root() {
        if (this.peek() !== "[") return node("msqrt", [this.group()]);
        this.take("[");
        const index = row(this.until(["]"]));
        this.take("]");
        return node("mroot", [this.group(), index]);
    }

    delimiter() {
        const token = this.take();
        if (!(token in kDelimiters)) throw new Unknown();
        return kDelimiters[token];
    }

    fenced() {
        const open = this.delimiter();
        const out = [...fence(open)];
        for (;;) {
            out.push(...this.until(["\\right", "\\middle"]));
            const which = this.take();
            out.push(...fence(this.delimiter()));
            if (which === "\\right") return node("mrow", out);
        }
    }

    environment() {
        const name = this.words();
        if (!Object.hasOwn(kMatrices, name)) throw new Unknown();
        if (name === "array" && this.peek() === "{") this.words();
        const rows = [[]];
        for (;;) {
            rows.at(-1).push(node("mtd", [row(this.until(["&", "\\\\", "\\end"]))]));
            const end = this.take();
            if (end === "\\\\") rows.push([]);
            if (end === "\\end") break;
        }
        if (this.words() !== name) throw new Unknown();
        if (rows.length > 1 && rows.at(-1).length === 1 && rows.at(-1)[0].children[0].children?.length === 0) rows.pop();
        const aligned = /^(align|split|aligned)/.test(name), left = name === "cases";
        const table = node("mtable", rows.map((cells) => node("mtr", cells)), { class: aligned ? "aligned" : left ? "cases" : "matrix", displaystyle: String(aligned) });
        const [open, close] = kMatrices[name];
        return node("mrow", [...fence(open), table, ...fence(close)]);
    }
}
