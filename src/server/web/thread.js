// thread.js — the messages of the conversation that is shown, and the scroll position: it follows a growing answer
// only while its end is in sight.
import { shown_path } from "./conversation.js";
import { h } from "./dom.js";
import { AssistantView, UserView } from "./message_view.js";

const kNearPx = 80;

export class Thread {
    constructor({ scroller, list, jump }, actions) {
        this.scroller = scroller;
        this.list = list;
        this.jump = jump;
        this.actions = actions;
        this.views = new Map();
        this.follows = true;
        this.expected_top = -1;
        scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
        jump.addEventListener("click", () => this.to_end());
        new ResizeObserver(() => this.keep_end()).observe(list);
    }

    // Shows `conversation`; `run_of(node)` is what produces a message now, or null.
    show(conversation, run_of) {
        if (this.conversation !== conversation) {
            this.views.clear();
            this.list.replaceChildren();
            this.follows = true;
        }
        this.conversation = conversation;
        const path = shown_path(conversation);
        const wanted = new Set(path.map((n) => n.id));
        for (const [id, view] of this.views) {
            if (!wanted.has(id)) { view.element.remove(); this.views.delete(id); }
        }
        path.forEach((node, i) => {
            let view = this.views.get(node.id);
            if (!view) {
                view = new (node.role === "user" ? UserView : AssistantView)(node, this.actions);
                this.views.set(node.id, view);
            }
            if (this.list.children[i] !== view.element) this.list.insertBefore(view.element, this.list.children[i] ?? null);
            view.update(conversation, run_of(node));
        });
        this.keep_end();
    }

    update(node, run) {
        this.views.get(node.id)?.update(this.conversation, run);
    }

    edit(node) {
        this.views.get(node.id)?.edit();
    }

    scrolled() {
        const { scroller } = this;
        const left = scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
        this.jump.hidden = left < 2 * kNearPx;
        // A scroll up by the person ends the following; growth below does not look like one.
        if (scroller.scrollTop < this.expected_top - 2) this.follows = left < 4;
        if (left < 4) this.follows = true;
        this.expected_top = scroller.scrollTop;
    }

    keep_end() {
        const { scroller } = this;
        if (this.follows) {
            scroller.scrollTop = scroller.scrollHeight;
            this.expected_top = scroller.scrollTop;
        }
        this.jump.hidden = scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop < 2 * kNearPx;
    }

    to_end() {
        this.follows = true;
        this.keep_end();
    }
}

// What stands there before the first message.
export function welcome(model, on_choose) {
    const ideas = [
        ["Explain", "how a hash map works, with a small example in Python"],
        ["Write", "a polite reply that moves a meeting to next week"],
        ["Compare", "TCP and UDP in a table"],
        ["Review", "a shell script that I paste, line by line"],
    ];
    return h("div", { class: "welcome" },
        h("h1", {}, "What can I help with?"),
        h("p", { class: "hint" }, model ? `Answers come from ${model}, on this server. Conversations stay in this browser.` : "Conversations stay in this browser."),
        h("div", { class: "ideas" }, ideas.map(([verb, rest]) =>
            h("button", { type: "button", class: "idea", onclick: () => on_choose(`${verb} ${rest}`) }, h("strong", {}, verb), " ", rest))));
}
