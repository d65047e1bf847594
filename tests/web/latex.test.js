// Risk: a formula shows something else than it says, or makes elements that it must not, or hangs the page.
import assert from "node:assert/strict";
import test from "node:test";

import { to_mathml } from "../web/latex.js";

const show = (n) => (typeof n === "string" ? n : `${n.tag}(${n.children.map(show).join(" ")})`);
const read = (text, display = false) => {
    const tree = to_mathml(text, display);
    return tree && show(tree.children[0]);
};

const kCases = [
    ["\\frac12", "mfrac(mn(1) mn(2))"],
    ["x", "mi(x)"], ["12.5", "mn(12.5)"], ["a+b", "mrow(mi(a) mo(+) mi(b))"], ["-x", "mrow(mo(−) mi(x))"],
    ["x^2", "msup(mi(x) mn(2))"], ["x_i^{2n}", "msubsup(mi(x) mi(i) mrow(mn(2) mi(n)))"], ["f''(x)", "mrow(msup(mi(f) mo(′′)) mo(() mi(x) mo()))"],
    ["\\frac{a}{b+1}", "mfrac(mi(a) mrow(mi(b) mo(+) mn(1)))"], ["\\sqrt{x}", "msqrt(mi(x))"], ["\\sqrt[3]{x}", "mroot(mi(x) mn(3))"],
    ["\\alpha \\le \\infty", "mrow(mi(α) mo(≤) mi(∞))"], ["\\mathbb{R}^n", "msup(mi(ℝ) mi(n))"], ["\\mathbf{x}", "mi(𝐱)"], ["\\text{if } x", "mrow(mtext(if\u00a0) mi(x))"],
    ["\\sin x", "mrow(mi(sin) mspace() mi(x))"], ["\\sin(x)", "mrow(mi(sin) mo(() mi(x) mo()))"], ["\\left(x\\right]", "mrow(mo(() mi(x) mo(]))"],
    ["\\begin{pmatrix}a & b\\\\c & d\\end{pmatrix}", "mrow(mo(() mtable(mtr(mtd(mi(a)) mtd(mi(b))) mtr(mtd(mi(c)) mtd(mi(d)))) mo()))"],
    ["\\hat{y}", "mover(mi(y) mo(^))"], ["a % comment\nb", "mrow(mi(a) mi(b))"], ["\\{x\\}", "mrow(mo({) mi(x) mo(}))"], ["", "mrow()"],
];
for (const [text, expected] of kCases) test(`reads ${text}`, () => assert.equal(read(text), expected));

test("limits stand below and above only where a formula is displayed", () => {
    assert.equal(read("\\sum_{i}^n", true), "munderover(mo(∑) mi(i) mi(n))");
    assert.equal(read("\\sum_{i}^n", false), "msubsup(mo(∑) mi(i) mi(n))");
    assert.equal(read("\\int_0^1", true), "msubsup(mo(∫) mn(0) mn(1))");
});

test("what is not known gives nothing, so that its source is shown", () => {
    for (const text of ["\\weird", "{", "}", "x^", "x_", "x^2^3", "\\frac{a}", "\\left(x", "\\right)", "\\begin{x}y\\end{x}", "\\begin{matrix}a", "\\begin{matrix}a\\end{cases}", "\\", "a & b", "\\href{javascript:alert(1)}{x}", "\\constructor", "\\toString", "\\begin{__proto__}x\\end{__proto__}", "\\left\\constructor x\\right)"]) {
        assert.equal(read(text), null, text);
    }
});

const kTags = new Set("math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd".split(" "));
test("only elements of presentation come out, whatever goes in", () => {
    const pieces = ["\\frac", "{", "}", "^", "_", "x", "1", "\\sqrt", "[", "]", "\\left(", "\\right)", "&", "\\\\", "\\begin{matrix}", "\\end{matrix}", "\\text{<img onerror=x>}", "\\sum", "'", " ", "\\mathbb", "<script>", "\\hat", "\\,", "|", "日", "😀"];
    let seed = 7, known = 0;
    const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
    const look = (n) => {
        if (typeof n === "string") return;
        assert.ok(kTags.has(n.tag), n.tag);
        for (const [k, v] of Object.entries(n.attrs)) assert.match(`${k}=${v}`, /^[a-z]+=[a-z0-9.-]+$/);
        n.children.forEach(look);
    };
    for (let i = 0; i < 20000; ++i) {
        const text = Array.from({ length: 1 + random(12) }, () => pieces[random(pieces.length)]).join("");
        const tree = to_mathml(text, i % 2 === 0);
        if (tree) { ++known; look(tree); }
    }
    assert.ok(known > 500, `${known} of them could be read`);
});

test("no formula takes long", () => {
    for (const text of ["{".repeat(8000), "x^".repeat(4000), "\\frac".repeat(1500), "\\sqrt{".repeat(1000), "a_b".repeat(2600), "\\left(".repeat(1300), "\\begin{matrix}".repeat(500), "x".repeat(100000)]) {
        const start = performance.now();
        to_mathml(text, true);
        assert.ok(performance.now() - start < 2000, text.slice(0, 20));
    }
});
