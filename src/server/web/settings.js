// settings.js — what can be set, how it is checked, where it is kept. Empty means: the model's own default.

const kStorage = "sparkinfer.settings";

const number = (name, label, low, high, hint) => ({ name, label, hint, kind: "number", check: (text) => check_number(text, low, high, false) });
const integer = (name, label, low, high, hint) => ({ name, label, hint, kind: "number", check: (text) => check_number(text, low, high, true) });

export const kFields = [
    { name: "system", label: "System prompt", kind: "text", hint: "Stands before every conversation.", check: (text) => ({ value: text.trim() === "" ? "" : text }) },
    number("temperature", "Temperature", 0, 2, "0 takes the likeliest token every time; higher is more varied."),
    number("top_p", "Top p", 0, 1, "Keeps the likeliest tokens that make up this share."),
    integer("top_k", "Top k", 0, 1_000_000, "Keeps this many tokens; 0 keeps all."),
    number("min_p", "Min p", 0, 1, "Drops tokens below this share of the likeliest."),
    integer("max_tokens", "Longest answer", 1, 10_000_000, "In tokens, reasoning included."),
    integer("seed", "Seed", 0, Number.MAX_SAFE_INTEGER, "The same seed gives the same answer."),
    { name: "tools", label: "Functions that the model may ask for", kind: "text", code: true, hint: "A JSON list of {name, description, parameters}. Nothing is run: you give the results by hand.", check: check_tools },
];

export const kDefaults = { system: "", temperature: null, top_p: null, top_k: null, min_p: null, max_tokens: null, seed: null, tools: [], thinking: "auto" };

function check_number(text, low, high, whole) {
    if (text.trim() === "") return { value: null };
    const value = Number(text.trim().replace(",", "."));
    const range = high >= 1_000_000 ? `of ${low} or more` : `from ${low} to ${high}`;
    if (!Number.isFinite(value)) return { error: `“${text.trim().slice(0, 20)}” is not a number.` };
    if (whole && !Number.isInteger(value)) return { error: `A whole number ${range} is needed.` };
    if (value < low || value > high) return { error: `A ${whole ? "whole number" : "number"} ${range} is needed.` };
    return { value };
}

export function check_tools(text) {
    if (text.trim() === "") return { value: [] };
    let list;
    try {
        list = JSON.parse(text);
    } catch (error) {
        return { error: `This is not JSON: ${error.message}.` };
    }
    if (!Array.isArray(list)) return { error: "A JSON list is needed: [ … ]." };
    const tools = list.map((t) => (t && typeof t === "object" && t.function ? t : { type: "function", function: t }));
    for (const [i, tool] of tools.entries()) {
        const name = tool.function?.name;
        if (typeof name !== "string" || !/^[\w.-]{1,64}$/.test(name)) return { error: `Tool ${i + 1} needs a “name” of letters, digits, “_” or “-”.` };
        const parameters = tool.function.parameters;
        if (parameters !== undefined && (typeof parameters !== "object" || parameters === null || Array.isArray(parameters))) {
            return { error: `“parameters” of ${name} must be a JSON Schema object.` };
        }
    }
    return { value: tools };
}

// The text in a field for a value.
export function text_of(field, value) {
    if (field.name === "tools") return value?.length ? JSON.stringify(value, null, 2) : "";
    return value === null || value === undefined ? "" : String(value);
}

// What was kept and is still valid.
export function load_settings() {
    const settings = { ...kDefaults };
    try {
        const kept = JSON.parse(localStorage.getItem(kStorage) ?? "{}");
        for (const field of kFields) {
            const done = field.check(text_of(field, kept[field.name] ?? kDefaults[field.name]));
            if (!done.error) settings[field.name] = done.value;
        }
        if (["auto", "on", "off"].includes(kept.thinking)) settings.thinking = kept.thinking;
    } catch { /* nothing kept, or not readable: defaults */ }
    return settings;
}

export function save_settings(settings) {
    try { localStorage.setItem(kStorage, JSON.stringify(settings)); } catch { /* kept until the page closes */ }
}
