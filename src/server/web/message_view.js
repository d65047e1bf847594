// message_view.js — one message on the screen. Kept as long as its message is shown and only ever updated, so that
// nothing flickers while an answer streams in.
import { branch_of } from "./conversation.js";
import { copy_text, format_count, format_seconds, h, icon, icon_button } from "./dom.js";
import { MarkdownView } from "./markdown_view.js";
import { ToolCard } from "./tool_card.js";

// What a message can do to its conversation: switch(node, step), edit(node, text), regenerate(node), result(node,
// call, text), retry(node), stop(node), open_settings().

class BranchSwitch {
    constructor(node, actions) {
        this.label = h("span", { class: "branch-count" });
        this.previous = icon_button("left", "Previous version", () => actions.switch(node, -1));
        this.next = icon_button("right", "Next version", () => actions.switch(node, 1));
        this.element = h("span", { class: "branch", role: "group", "aria-label": "Versions" }, this.previous, this.label, this.next);
    }

    update({ index, count }) {
        this.element.hidden = count < 2;
        this.label.textContent = `${index + 1}/${count}`;
        this.previous.disabled = index === 0;
        this.next.disabled = index === count - 1;
    }
}

export class UserView {
    constructor(node, actions) {
        this.node = node;
        this.actions = actions;
        this.text = h("div", { class: "user-text" }, node.content);
        this.branch = new BranchSwitch(node, actions);
        this.edit_button = icon_button("edit", "Edit", () => this.edit());
        const copy = icon_button("copy", "Copy", () => copy_text(node.content, copy));
        this.bar = h("div", { class: "message-bar" }, this.branch.element, copy, this.edit_button);
        this.element = h("article", { class: "message user", "aria-label": "You", "data-id": node.id }, this.text, this.bar);
    }

    update(conversation) {
        this.branch.update(branch_of(conversation, this.node));
    }

    edit() {
        const area = h("textarea", { class: "field edit-area", "aria-label": "Edit message", value: this.node.content, rows: "1" });
        const close = () => {
            form.replaceWith(this.text);
            this.bar.hidden = false;
            this.edit_button.focus();
        };
        const submit = () => {
            const text = area.value.trim();
            if (!text) return area.focus();
            close();
            this.actions.edit(this.node, text);
        };
        const form = h("form", { class: "edit-form", onsubmit: (event) => { event.preventDefault(); submit(); } }, area,
            h("div", { class: "edit-buttons" },
                h("span", { class: "hint" }, "The old version is kept."),
                h("button", { type: "button", class: "button", onclick: close }, "Cancel"),
                h("button", { type: "submit", class: "button primary" }, "Send")));
        area.addEventListener("keydown", (event) => {
            if (event.isComposing) return;
            if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); close(); }
            if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); submit(); }
        });
        area.addEventListener("input", () => fit(area));
        this.text.replaceWith(form);
        this.bar.hidden = true;
        fit(area);
        area.focus();
    }
}

// Lets a text area be as tall as its text.
export function fit(area) {
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

export class AssistantView {
    constructor(node, actions) {
        this.node = node;
        this.actions = actions;
        this.cards = [];
        this.fold_touched = false;
        this.reasoning = h("div", { class: "reasoning-text markdown" });
        this.reasoning_view = new MarkdownView(this.reasoning);
        this.reasoning_title = h("span", { class: "reasoning-title" });
        const summary = h("summary", { onclick: () => { this.fold_touched = true; } }, icon("bulb"), this.reasoning_title, icon("down"));
        this.fold = h("details", { class: "reasoning", hidden: true }, summary, this.reasoning);
        this.pulse = h("div", { class: "pulse" }, h("span"), h("span"), h("span"));
        this.content = h("div", { class: "markdown answer" });
        this.content_view = new MarkdownView(this.content);
        this.tools = h("div", { class: "tools" });
        this.notice = h("div", { class: "notice-slot" });
        this.branch = new BranchSwitch(node, actions);
        this.stats = h("span", { class: "stats" });
        const copy = icon_button("copy", "Copy answer", () => copy_text(node.content, copy));
        const again = icon_button("retry", "Regenerate", () => actions.regenerate(node));
        this.bar = h("div", { class: "message-bar" }, this.branch.element, copy, again, this.stats);
        this.element = h("article", { class: "message assistant", "aria-label": "Assistant", "data-id": node.id },
            this.fold, this.content, this.tools, this.pulse, this.notice, this.bar);
    }

    // `run` is what produces this answer now, or null.
    update(conversation, run) {
        const { node } = this;
        const live = Boolean(run);
        this.element.dataset.state = live ? node.state : "ended";
        this.element.setAttribute("aria-busy", String(live));
        this.update_reasoning(live);
        this.content_view.update(node.content, live);
        node.calls.forEach((call, i) => {
            this.cards[i] ??= this.add_card(i);
            this.cards[i].update(call, live && i === node.calls.length - 1, node.state === "done");
        });
        for (const card of this.cards.splice(node.calls.length)) card.element.remove();
        this.pulse.hidden = !live || node.state !== "waiting" || Boolean(node.failure);
        this.update_notice(run);
        this.bar.hidden = live;
        this.branch.update(branch_of(conversation, node));
        if (!live) this.stats.replaceChildren(...stat_spans(node.stats));
    }

    add_card(index) {
        const card = new ToolCard((text) => this.actions.result(this.node, index, text));
        this.tools.append(card.element);
        return card;
    }

    update_reasoning(live) {
        const { node } = this;
        this.fold.hidden = !node.reasoning;
        if (!node.reasoning) return;
        const thinking = live && !node.content && !node.calls.length;
        if (!this.fold_touched && this.fold.open !== thinking) this.fold.open = thinking;
        this.fold.dataset.thinking = String(thinking);
        const took = node.stats.think_s;
        const title = thinking ? "Thinking…" : took >= 0.05 ? `Thought for ${format_seconds(took)}` : "Thoughts";
        if (this.reasoning_title.textContent !== title) this.reasoning_title.textContent = title;
        this.reasoning_view.update(node.reasoning, thinking);
    }

    update_notice(run) {
        const { node, actions } = this;
        const key = JSON.stringify([node.failure, node.state, node.note, node.stats.finish, run?.retry_at && Math.ceil((run.retry_at - Date.now()) / 1000)]);
        if (key === this.notice_key) return;
        this.notice_key = key;
        this.notice.replaceChildren(...notices(node, run, actions));
    }
}

const button = (label, onclick, primary = false) => h("button", { type: "button", class: primary ? "button small primary" : "button small", onclick }, label);

function notices(node, run, actions) {
    if (node.failure && run) {
        const left = Math.max(0, Math.ceil((run.retry_at - Date.now()) / 1000));
        const when = left > 0 ? `Next try in ${left} s.` : "Trying again…";
        return [notice("wait", `${node.failure.message} The message is kept. ${when}`, button("Try now", () => run.retry_now()), button("Cancel", () => actions.stop(node)))];
    }
    if (run) return [];
    if (node.failure) {
        const key = node.failure.kind === "key" ? [button("Enter key", () => actions.open_settings("key"), true)] : [];
        return [notice("error", node.failure.message, ...key, button("Try again", () => actions.retry(node)))];
    }
    if (node.note) return [notice("info", node.note)];
    if (node.state === "stopped") return [notice("info", "Stopped.")];
    if (node.stats.finish === "length") return [notice("info", "The answer reached its token limit and ends here.")];
    if (node.state === "done" && !node.content && !node.calls.length) return [notice("info", "The answer is empty.")];
    return [];
}

function notice(kind, text, ...buttons) {
    return h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "note" },
        icon(kind === "error" ? "alert" : kind === "wait" ? "retry" : "chat"), h("span", { class: "notice-text" }, text), ...buttons);
}

// Figures of one answer, as short as they can be said; titles say them in full.
function stat_spans(stats) {
    const spans = [];
    const add = (text, title) => spans.push(h("span", { class: "stat", title }, text));
    if (stats.ttft_s !== undefined) add(`TTFT ${format_seconds(stats.ttft_s)}`, "Time to the first token");
    if (stats.tokens_per_s) add(`${stats.tokens_per_s.toFixed(stats.tokens_per_s < 100 ? 1 : 0)} tok/s`, "Tokens per second after the first");
    if (stats.completion_tokens !== undefined) {
        const thought = stats.reasoning_tokens ? `, ${format_count(stats.reasoning_tokens)} of them reasoning` : "";
        add(`${format_count(stats.completion_tokens)} tokens`, `Tokens of the answer${thought}`);
    }
    if (stats.prompt_tokens !== undefined) {
        const cached = stats.cached_tokens === undefined ? "" : ` · ${format_count(stats.cached_tokens)} cached`;
        add(`prompt ${format_count(stats.prompt_tokens)}${cached}`, "Tokens of the prompt, and how many of them were not computed again");
    }
    return spans;
}
