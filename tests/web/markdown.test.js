// Risk: model output becomes an element, an attribute or a link that it must not; ordinary Markdown is read wrongly;
// an input makes the page hang; what grows on the screen looks different from what stands there in the end.
import assert from "node:assert/strict";
import test from "node:test";

import { parse, parse_blocks, split_row } from "../web/markdown.js";
import { safe_url } from "../web/markdown_inline.js";

// As HTML without attributes but href, so that expectations can be read.
function show(n) {
    if (typeof n === "string") return n.replace(/&/g, "&amp;").replace(/</g, "&lt;");
    if (n.tag === "code_block") return `<pre ${n.lang}${n.closed ? "" : " open"}>${show(n.text)}</pre>`;
    if (n.tag === "math") return n.display ? `<MATH>${n.text}</MATH>` : `<math>${n.text}</math>`;
    const href = n.attrs.href ? ` ${n.attrs.href}` : "";
    return `<${n.tag}${href}>${n.children.map(show).join("")}</${n.tag}>`;
}
const html = (text, streaming = false) => parse(text, streaming).map(show).join("");

function all_nodes(nodes) {
    return nodes.flatMap((n) => (typeof n === "string" ? [] : [n, ...all_nodes(n.children ?? [])]));
}

const kCases = [
    ["plain", "<p>plain</p>"],
    ["# One\n## Two ##\n####### seven", "<h1>One</h1><h2>Two</h2><p>####### seven</p>"],
    ["Title\n===\nSub\n---", "<h1>Title</h1><h2>Sub</h2>"],
    ["#no heading", "<p>#no heading</p>"],
    ["a\nb  \nc\\\nd", "<p>a\nb<br></br>c<br></br>d</p>"],
    ["*a* **b** ***c*** _d_ __e__", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong></p>"],
    ["**a *b* c** and *a **b** c*", "<p><strong>a <em>b</em> c</strong> and <em>a <strong>b</strong> c</em></p>"],
    ["snake_case_name and 2 * 3 * 4 and **", "<p>snake_case_name and 2 * 3 * 4 and **</p>"],
    ["**Note:** text**bold**text", "<p><strong>Note:</strong> text<strong>bold</strong>text</p>"],
    ["~~gone~~ ~one~", "<p><del>gone</del> ~one~</p>"],
    ["`a*b*` ``x ` y`` `open", "<p><code>a*b*</code> <code>x ` y</code> `open</p>"],
    ["\\*no\\* \\<b> \\q", "<p>*no* &lt;b> \\q</p>"],
    ["&amp; &lt;b&gt; &copy; &#65; &#x1F600; &nope; &#0;", "<p>&amp; &lt;b> © A 😀 &amp;nope; &amp;#0;</p>"],
    ["- a\n- b\n\n- c", "<ul><li><p>a</p></li><li><p>b</p></li><li><p>c</p></li></ul>"],
    ["- a\n  - b\n    - c\n- d", "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>"],
    ["1. a\n   - x\n2. b\n\n   more", "<ol><li><p>a</p><ul><li>x</li></ul></li><li><p>b</p><p>more</p></li></ol>"],
    ["- a\n  - b\n\n    c\n- d", "<ul><li>a<ul><li><p>b</p><p>c</p></li></ul></li><li>d</li></ul>"],
    ["3) a\n4) b", "<ol><li>a</li><li>b</li></ol>"],
    ["1. a\n  - two columns\n2. b", "<ol><li>a<ul><li>two columns</li></ul></li><li>b</li></ol>"],
    ["text\n- item", "<p>text</p><ul><li>item</li></ul>"],
    ["text\n2024. was a year", "<p>text\n2024. was a year</p>"],
    ["- [x] done\n- [ ] open", "<ul><li><span>☑</span> done</li><li><span>☐</span> open</li></ul>"],
    ["> a\n> b\nlazy\n\nout", "<blockquote><p>a\nb\nlazy</p></blockquote><p>out</p>"],
    ["> > deep", "<blockquote><blockquote><p>deep</p></blockquote></blockquote>"],
    ["***\n---\n_ _ _", "<hr></hr><hr></hr><hr></hr>"],
    ["```py\nx = `1`\n\n# no heading\n```\nafter", "<pre py>x = `1`\n\n# no heading</pre><p>after</p>"],
    ["~~~\n```\n~~~", "<pre >```</pre>"],
    ["````md\n```js\n```\n````", "<pre md>```js\n```</pre>"],
    ["```c++ title=x\nint a;", "<pre c++ open>int a;</pre>"],
    ["- a\n\n  ```c\n  int x;\n  ```\n- b", "<ul><li><p>a</p><pre c>int x;</pre></li><li><p>b</p></li></ul>"],
    ["    indented\n      code\n\nx", "<pre >indented\n  code</pre><p>x</p>"],
    ["| a | b |\n|:--|--:|\n| 1 | 2 |\n| 3 |\n\nx", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr><tr><td>3</td><td></td></tr></tbody></table><p>x</p>"],
    ["a | b\n--|--\n`x|y` | \\| z", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>x|y</code></td><td>| z</td></tr></tbody></table>"],
    ["not | a table\nat all", "<p>not | a table\nat all</p>"],
    ["a<br>b<br/>c<BR />d", "<p>a<br></br>b<br></br>c<br></br>d</p>"],
    ["$5 and $10, $x^2$ and \\(a_b\\)", "<p>$5 and $10, <math>x^2</math> and <math>a_b</math></p>"],
    ["$$\na\n$$\n\\[ b \\]", "<MATH>a</MATH><MATH>b</MATH>"],
    ["line\r\nnext\r\n\r\npara", "<p>line\nnext</p><p>para</p>"],
    ["", ""],
    ["\n\n  \n", ""],
];

for (const [text, expected] of kCases) {
    test(`reads ${JSON.stringify(text).slice(0, 50)}`, () => assert.equal(html(text), expected));
}

test("a link shows where it goes unless its text says so", () => {
    assert.equal(html("[a](https://b.example/c)"), "<p><a https://b.example/c>a</a><span> (b.example)</span></p>");
    assert.equal(html("[https://bank.example](https://evil.example)"), "<p><a https://evil.example/>https://bank.example</a><span> (evil.example)</span></p>");
    assert.equal(html("https://b.example/c(d)."), "<p><a https://b.example/c(d)>https://b.example/c(d)</a>.</p>");
    assert.equal(html("<mailto:x@y.example>"), "<p><a mailto:x@y.example>mailto:x@y.example</a></p>");
    assert.equal(html('[a](<https://b.example/x y> "t")'), '<p>[a](&lt;https://b.example/x y> "t")</p>');
    assert.equal(html('[a **b**](https://b.example "t")'), "<p><a https://b.example/>a <strong>b</strong></a><span> (b.example)</span></p>");
    for (const link of all_nodes(parse("[a](http://b.example) https://c.example <https://d.example>")).filter((n) => n.tag === "a")) {
        assert.equal(link.attrs.rel, "noopener noreferrer");
        assert.equal(link.attrs.target, "_blank");
    }
});

test("a name in another script shows as what it is", () => {
    assert.match(html("[x](https://аpple.example)"), /\(xn--pple-43d\.example\)/);
});

const kHostile = [
    "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))", "[x](  javascript:alert(1))", "[x](java\nscript:alert(1))", "[x](java&#115;cript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)", "[x](vbscript:x)", "[x](file:///etc/passwd)", "[x](//evil.example)", "[x](/dashboard)", "[x](blob:https://a.example/1)",
    "<javascript:alert(1)>", "[x](\u0000javascript:alert(1))", "[x](https:evil)", "[x](http:\\\\evil.example)", "[x]( https://ok.example\u0001 )",
    "<a href='javascript:alert(1)'>x</a>", "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "<svg/onload=alert(1)>", "<iframe src=//evil>", "<style>*{}</style>",
    "![x](javascript:alert(1))", "[![x](javascript:a)](javascript:b)", "<div style='background:url(https://evil.example)'>", "<!--><script>", "]]><script>", "```\"><script>alert(1)</script>\nx\n```",
    "<br onload=alert(1)>", "<https://a.example\" onmouseover=alert(1)>", "[x](https://a.example\" onmouseover=\"alert(1))", "&lt;script&gt;alert(1)&lt;/script&gt;", "| <img src=x onerror=y> |\n|---|\n| <script> |",
];
const kTags = new Set("p h1 h2 h3 h4 h5 h6 hr br blockquote ul ol li strong em del code a span table thead tbody tr th td code_block math".split(" "));

for (const text of kHostile) {
    test(`harmless: ${JSON.stringify(text).slice(0, 60)}`, () => {
        for (const streaming of [false, true]) {
            for (let end = text.length; end > 0; end -= streaming ? 1 : text.length) {
                for (const n of all_nodes(parse(text.slice(0, end), streaming))) {
                    assert.ok(kTags.has(n.tag), n.tag);
                    for (const name of Object.keys(n.attrs ?? {})) assert.ok(["href", "title", "target", "rel", "class", "start"].includes(name), name);
                    if (n.attrs?.href) assert.match(n.attrs.href, /^(https?:\/\/[^\s"'<>]+|mailto:[^\s"'<>]+)$/);
                    if (n.attrs?.class) assert.match(n.attrs.class, /^[a-z- ]+$/);
                }
            }
        }
    });
}

test("nothing but absolute http, https and mailto is an address", () => {
    for (const bad of ["", "x", "javascript:1", " https://a.example", "https://", "http:/a", "ftp://a.example", "https://a b.example", "HTTPS//x", "about:blank", "\thttps://a.example"]) {
        assert.equal(safe_url(bad), null, bad);
    }
    assert.equal(safe_url("HTTPS://A.example"), "https://a.example/");
});

test("an image is a link, and never an image", () => {
    assert.match(html("![a cat](https://evil.example/x.png)"), /^<p><a https:\/\/evil\.example\/x\.png><span>image<\/span> a cat<\/a><span> \(evil\.example\)<\/span><\/p>$/);
    assert.equal(html("![a cat](x.png)"), "<p><span><span>image</span> a cat</span></p>");
});

test("markers that are open at the end of growing text count as closed", () => {
    for (const [text, expected] of [
        ["**bo", "<p><strong>bo</strong></p>"], ["a *b **c", "<p>a <em>b <strong>c</strong></em></p>"], ["a **", "<p>a </p>"], ["`co", "<p><code>co</code></p>"],
        ["[text](https://exa", "<p>text</p>"], ["| a | b", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody></tbody></table>"],
        ["text\n``", "<p>text</p>"], ["text\n\n- ", "<p>text</p>"], ["# ", ""], ["```js\nx", "<pre js open>x</pre>"], ["\\(x", "<p><math>x</math></p>"], ["- a\n- **b", "<ul><li>a</li><li><strong>b</strong></li></ul>"],
    ]) assert.equal(html(text, true), expected, text);
});

const kDocument = kCases.map(([text]) => text.replace(/\r/g, "")).filter((t) => !/```c\+\+|`open/.test(t)).join("\n\n");

test("text before the last block never changes by what is appended", () => {
    // What the view does: parse from the last block on, keep what is before.
    let kept = [];
    for (let end = 1; end <= kDocument.length; ++end) {
        const from = kept.length ? kept.at(-1).start : 0;
        const parsed = parse_blocks(kDocument.slice(from, end), true).map((b) => ({ start: b.start + from, html: show(b.node) }));
        kept = [...kept.slice(0, -1), ...parsed];
    }
    const whole = parse_blocks(kDocument).map((b) => show(b.node));
    const last = parse_blocks(kDocument.slice(kept.at(-1).start)).map((b) => show(b.node));
    assert.deepEqual([...kept.slice(0, -1).map((b) => b.html), ...last], whole);
});

test("no input takes long", () => {
    const inputs = ["[".repeat(50000), "*a ".repeat(20000), "a`b``".repeat(10000), "> ".repeat(20000), "*".repeat(50000), "a**b".repeat(15000), "- ".repeat(20000), "$a ".repeat(20000),
        "_*".repeat(25000), "![".repeat(20000) + "](".repeat(20000), "http://".repeat(8000), "<".repeat(50000), "[a](".repeat(10000), "|".repeat(50000) + "\n" + "|-".repeat(25000), "# " + " ".repeat(50000) + "x#",
        " ".repeat(50000) + "x\ny", "x" + " ".repeat(50000) + "y\nz", "`" + " ".repeat(50000) + "x", "https://a.example/" + ".".repeat(50000) + "(", "- - ".repeat(10000) + "x", "&".repeat(50000), "\\(".repeat(20000),
        "~~a".repeat(15000), "1. a\n".repeat(10000), "> a\n".repeat(10000), "[a](https://b.example ".repeat(5000), "[a](" + "(".repeat(50000), "```\n".repeat(10001), "| a ".repeat(3000) + "\n" + "|-".repeat(3000) + "\n" + "| b ".repeat(3000), "$$".repeat(20000),
        " - a\n".repeat(1) + Array.from({ length: 200 }, (_, i) => " ".repeat(2 * i) + "- a\n").join("")];
    for (const text of inputs) {
        for (const streaming of [false, true]) {
            const start = performance.now();
            parse(text, streaming);
            const took = performance.now() - start;
            assert.ok(took < 4000, `${Math.round(took)} ms for ${text.length} characters of ${JSON.stringify(text.slice(0, 20))}`);
        }
    }
});

test("rows of tables are cut at unescaped bars outside of code", () => {
    assert.deepEqual(split_row("| a | `b|c` | d\\|e |"), ["a", "`b|c`", "d|e"]);
    assert.deepEqual(split_row("a|b"), ["a", "b"]);
    assert.deepEqual(split_row("| ` | x |"), ["`", "x"]);
});
