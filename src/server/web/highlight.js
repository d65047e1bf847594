// highlight.js — light colouring of code: comments, strings, numbers, keywords, names of functions and types.
// One line at a time with a small state between lines, so that code which still streams in is coloured once a line.

const words = (text) => new Set(text.split(" "));
const kCommon = "if else for while do switch case default break continue return try catch finally throw new class struct enum interface extends implements import from export package namespace using public private protected static const void";
const kLiterals = words("true false null nil none None True False undefined NaN this self super nullptr");

const slashes = { line: ["//"], block: ["/*", "*/"], strings: ['"', "'"] };
const hashes = { line: ["#"], strings: ['"', "'"] };
const language = (base, keywords, more = {}) => ({ ...base, keywords: words(`${kCommon} ${keywords}`), ...more });

const kLanguages = {
    c: language(slashes, "auto bool char double extern float goto inline int long register short signed sizeof typedef union unsigned volatile alignas alignof concept consteval constexpr constinit co_await co_return co_yield decltype delete explicit friend mutable noexcept operator override final requires static_assert template thread_local typename virtual __global__ __device__ __host__ __shared__ #include #define #if #ifdef #ifndef #endif #else #pragma", { preprocessor: true }),
    js: language(slashes, "function let var typeof instanceof in of async await yield delete get set as type readonly declare abstract keyof satisfies debugger with", { strings: ['"', "'"], multiline: ["`"] }),
    java: language(slashes, "abstract boolean byte char double final float int long native short synchronized throws transient volatile record var val fun when object data sealed override open internal companion string decimal foreach var async await get set readonly virtual", {}),
    go: language(slashes, "func var type map chan go defer select range fallthrough string int int32 int64 uint byte rune error float64 bool any", { multiline: ["`"] }),
    rust: language({ line: ["//"], block: ["/*", "*/"], strings: ['"'] }, "fn let mut pub mod use crate impl trait where match loop move ref dyn unsafe async await type as in i8 i16 i32 i64 u8 u16 u32 u64 usize isize f32 f64 bool str String Vec Option Result Self", {}),
    swift: language(slashes, "func let var guard where in is as extension protocol init deinit inout mutating override some any async await throws", { multiline: ['"""'] }),
    python: language(hashes, "def lambda and or not in is pass raise with as assert async await del elif except global nonlocal yield match", { multiline: ['"""', "'''"] }),
    shell: language(hashes, "then fi elif done esac function in local echo cd exit set unset source alias read shift trap sudo", { strings: ['"', "'"] }),
    ruby: language(hashes, "def end module require include attr_accessor elsif unless until then yield begin rescue ensure and or not lambda proc puts", {}),
    lua: language({ line: ["--"], strings: ['"', "'"] }, "function local end then elseif repeat until and or not in", {}),
    sql: { line: ["--"], block: ["/*", "*/"], strings: ["'", '"'], any_case: true, keywords: words("select from where and or not in is null insert into values update set delete create table index view drop alter add primary key foreign references join left right inner outer full on as group by order having limit offset union all distinct case when then else end exists between like with recursive returning integer int text varchar boolean timestamp default unique constraint begin commit rollback asc desc") },
    json: { line: [], strings: ['"'], keywords: new Set(), keys: true },
    yaml: { line: ["#"], strings: ['"', "'"], keywords: words("true false null yes no on off"), keys: true },
    css: { line: [], block: ["/*", "*/"], strings: ['"', "'"], keywords: words("@media @import @keyframes @supports @font-face !important"), keys: true },
    markup: { line: [], block: ["<!--", "-->"], strings: ['"', "'"], keywords: new Set(), tags: true },
    diff: { diff: true },
};

const kNames = {
    c: "c h cc cpp cxx c++ hpp cu cuda cuh objc glsl hlsl", js: "js javascript jsx ts typescript tsx mjs node", java: "java kotlin kt scala cs csharp c# dart groovy php",
    go: "go golang", rust: "rust rs", swift: "swift", python: "python py python3 ipython pycon", shell: "sh bash shell zsh fish console shellsession dockerfile makefile make cmake powershell ps1",
    ruby: "ruby rb perl elixir r julia", lua: "lua haskell hs", sql: "sql sqlite postgresql mysql", json: "json jsonc json5 jsonl", yaml: "yaml yml toml ini conf properties env",
    css: "css scss less", markup: "html xml svg xhtml vue markup", diff: "diff patch",
};
const kByName = new Map(Object.entries(kNames).flatMap(([key, names]) => names.split(" ").map((n) => [n, kLanguages[key]])));

// null: a language that is not known, shown without colours.
export const find_language = (name) => kByName.get(name) ?? null;

const kLineMax = 2000; // longer lines stay plain
const kWord = /[A-Za-z_$@#!][\w$-]*/y;
const kPlainWord = /[A-Za-z_$][\w$]*/y;
const kNumber = /(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[a-zA-Z%]{0,4}/y;

// Colours one line: [kind, text] pairs that join to the line, and the state for the next (null, or the text that
// closes what is open and its kind).
export function highlight_line(line, lang, state) {
    if (!lang || line.length > kLineMax) return { tokens: [["", line]], state: lang ? state : null };
    if (lang.diff) return { tokens: [[diff_kind(line), line]], state: null };
    return new LineScanner(line, lang, state).run();
}

function diff_kind(line) {
    if (/^(?:\+\+\+|---|@@|diff |index )/.test(line)) return "keyword";
    return line[0] === "+" ? "added" : line[0] === "-" ? "removed" : "";
}

class LineScanner {
    constructor(line, lang, state) {
        this.line = line;
        this.lang = lang;
        this.state = state;
        this.at = 0;
        this.tokens = [];
    }

    run() {
        if (this.state) this.until(this.state.close, this.state.kind, 0);
        while (this.at < this.line.length) this.next();
        return { tokens: this.tokens, state: this.state };
    }

    push(kind, end) {
        const text = this.line.slice(this.at, end);
        this.at = end;
        const last = this.tokens.at(-1);
        if (last && last[0] === kind) last[1] += text;
        else this.tokens.push([kind, text]);
    }

    // Takes everything up to `close`, or the rest of the line and leaves the state open.
    until(close, kind, from) {
        const end = this.line.indexOf(close, this.at + from);
        this.state = end < 0 ? { close, kind } : null;
        this.push(kind, end < 0 ? this.line.length : end + close.length);
    }

    next() {
        const { line, lang, at } = this;
        const c = line[at];
        if (/\s/.test(c)) return this.push("", at + 1);
        if (lang.block && line.startsWith(lang.block[0], at)) return this.until(lang.block[1], "comment", lang.block[0].length);
        for (const mark of lang.line) {
            const alone = mark !== "#" || at === 0 || /[\s;]/.test(line[at - 1]);
            if (alone && line.startsWith(mark, at)) return this.push("comment", line.length);
        }
        for (const mark of lang.multiline ?? []) {
            if (line.startsWith(mark, at)) return this.until(mark, "string", mark.length);
        }
        if (lang.strings.includes(c)) return this.string(c);
        if (lang.tags && c === "<") return this.tag();
        if (/\d/.test(c)) return this.match(kNumber, "number");
        return this.word();
    }

    string(quote) {
        let end = this.at + 1;
        while (end < this.line.length && this.line[end] !== quote) end += this.line[end] === "\\" ? 2 : 1;
        end = Math.min(end + 1, this.line.length);
        const key = this.lang.keys && /^\s*:/.test(this.line.slice(end, end + 8));
        this.push(key ? "key" : "string", end);
    }

    tag() {
        const name = /<[/!?]?[\w:-]*/y;
        this.match(name, "keyword");
    }

    match(pattern, kind) {
        pattern.lastIndex = this.at;
        const found = pattern.exec(this.line);
        this.push(kind, found && found[0] ? this.at + found[0].length : this.at + 1);
    }

    word() {
        const { lang, line } = this;
        const pattern = lang.keys || lang.preprocessor || lang.tags ? kWord : kPlainWord;
        pattern.lastIndex = this.at;
        const found = pattern.exec(line);
        if (!found) return this.push("", this.at + 1);
        const text = found[0], end = this.at + text.length;
        const after = line.slice(end, end + 8);
        let kind = "";
        if (lang.keywords.has(lang.any_case ? text.toLowerCase() : text)) kind = "keyword";
        else if (kLiterals.has(text)) kind = "number";
        else if (lang.keys && /^\s*[:=]/.test(after)) kind = "key";
        else if (lang.tags && after[0] === "=") kind = "key";
        else if (after[0] === "(") kind = "function";
        else if (/^[A-Z][a-z]\w*$/.test(text) && !lang.tags) kind = "type";
        this.push(kind, end);
    }
}
