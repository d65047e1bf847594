// tool_card.js — one call of a function that the model asks for: name, arguments, what became of it. Nothing is
// run: the person gives the result, and only then it is sent.
import { h, icon } from "./dom.js";
import { CodeView } from "./markdown_view.js";

const kStates = {
    writing: "Writing arguments…",
    waiting: "Waits for a result",
    answered: "Answered",
    stopped: "Not finished",
};

export class ToolCard {
    // `on_result(text)` is called with the result that the person gives.
    constructor(on_result) {
        this.name = h("span", { class: "tool-name" });
        this.state = h("span", { class: "tool-state" });
        this.code = new CodeView({ lang: "json", text: "" }, "Arguments");
        this.input = h("textarea", { class: "field code", rows: "3", "aria-label": "Result of the call", placeholder: "Result, as text or JSON", spellcheck: "false" });
        this.give = h("form", { class: "tool-give", onsubmit: (event) => { event.preventDefault(); on_result(this.input.value); } },
            this.input, h("button", { type: "submit", class: "button primary" }, "Give result"));
        this.given = new CodeView({ lang: "json", text: "" }, "Result");
        this.summary = h("summary", {}, icon("wrench"), this.name, this.state, icon("down"));
        this.element = h("details", { class: "tool-card", open: true }, this.summary,
            h("div", { class: "tool-body" }, this.code.element, this.give, this.given.element));
    }

    update(call, writing, ended_well) {
        const state = writing ? "writing" : typeof call.result === "string" ? "answered" : ended_well ? "waiting" : "stopped";
        this.name.textContent = call.name || "…";
        this.state.textContent = kStates[state];
        this.element.dataset.state = state;
        this.code.update({ text: pretty(call.arguments, writing) });
        this.give.hidden = state !== "waiting";
        this.given.element.hidden = state !== "answered";
        if (state === "answered") this.given.update({ text: pretty(call.result, false) });
    }
}

function pretty(text, writing) {
    if (writing) return text;
    try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
