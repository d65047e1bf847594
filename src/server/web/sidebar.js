// sidebar.js — the list of conversations: search, rename, export, delete with undo; a drawer on narrow screens.
import { announce, h, icon_button } from "./dom.js";

const kDay = 86_400_000;

function group_of(time) {
    const today = new Date().setHours(0, 0, 0, 0);
    if (time >= today) return "Today";
    if (time >= today - kDay) return "Yesterday";
    if (time >= today - 7 * kDay) return "Last 7 days";
    return "Older";
}

export class Sidebar {
    // actions: rename(id, title), remove(id), export_one(id)
    constructor(store, actions) {
        this.store = store;
        this.actions = actions;
        this.current = "";
        this.running = new Set();
        this.list = document.getElementById("conversations");
        this.search = document.getElementById("search");
        this.element = document.getElementById("sidebar");
        this.opener = document.getElementById("open-sidebar");
        this.narrow = matchMedia("(max-width: 820px)");
        let timer;
        this.search.addEventListener("input", () => {
            clearTimeout(timer);
            timer = setTimeout(() => this.refresh(), 150);
        });
        this.search.addEventListener("keydown", (event) => {
            if (event.key === "Escape" && this.search.value) { event.stopPropagation(); this.search.value = ""; this.refresh(); }
        });
        this.opener.addEventListener("click", () => this.open(true));
        document.getElementById("backdrop").addEventListener("click", () => this.open(false));
        document.getElementById("close-sidebar").addEventListener("click", () => this.open(false));
        this.list.addEventListener("click", (event) => { if (event.target.closest("a")) this.open(false); });
        this.narrow.addEventListener("change", () => this.open(false));
        this.open(false);
    }

    // As a drawer it takes the focus and leaves the page behind it inert.
    open(open) {
        const was = document.body.classList.contains("drawer-open");
        document.body.classList.toggle("drawer-open", open && this.narrow.matches);
        this.element.inert = this.narrow.matches && !open;
        document.querySelector("main").inert = this.narrow.matches && open;
        this.opener.setAttribute("aria-expanded", String(open));
        if (open) document.getElementById("close-sidebar").focus();
        else if (was) this.opener.focus();
    }

    get is_open() {
        return document.body.classList.contains("drawer-open");
    }

    async refresh() {
        const turn = (this.turn = (this.turn ?? 0) + 1);
        const query = this.search.value.trim();
        const entries = await this.store.list();
        const found = query ? await this.store.search(query) : null;
        if (turn !== this.turn || this.renaming) return;
        const shown = found ? entries.filter((e) => found.has(e.id)) : entries;
        const groups = new Map();
        for (const entry of shown) {
            const name = found ? "Found" : group_of(entry.updated);
            if (!groups.has(name)) groups.set(name, []);
            groups.get(name).push(entry);
        }
        const focused = document.activeElement?.closest?.("[data-entry]")?.dataset.entry;
        const parts = [...groups].flatMap(([name, list]) => [h("h2", { class: "group" }, name), h("ul", {}, list.map((e) => this.item(e)))]);
        if (!parts.length) parts.push(h("p", { class: "hint empty" }, query ? "No conversation has these words." : "No conversations yet."));
        this.list.replaceChildren(...parts);
        if (focused) this.list.querySelector(`[data-entry="${focused}"] a`)?.focus();
        if (query) announce(`${shown.length} conversations found`);
    }

    item(entry) {
        const current = entry.id === this.current;
        const title = entry.title || "New chat";
        const link = h("a", { href: `#${entry.id}`, "aria-current": current ? "page" : null, title },
            this.running.has(entry.id) ? h("span", { class: "running", role: "img", "aria-label": "answering" }) : null, h("span", { class: "entry-title" }, title));
        const item = h("li", { "data-entry": entry.id, class: current ? "entry current" : "entry" }, link,
            h("span", { class: "entry-actions" },
                icon_button("edit", `Rename ${title}`, () => this.rename(item, entry)),
                icon_button("download", `Export ${title}`, () => this.actions.export_one(entry.id)),
                icon_button("trash", `Delete ${title}`, () => this.actions.remove(entry.id))));
        return item;
    }

    rename(item, entry) {
        this.renaming = true;
        const input = h("input", { class: "field", type: "text", "aria-label": "New title", value: entry.title, maxlength: "200" });
        let done = false;
        const close = async (keep) => {
            if (done) return;
            done = true;
            this.renaming = false;
            if (keep && input.value.trim()) await this.actions.rename(entry.id, input.value.trim());
            await this.refresh();
            this.list.querySelector(`[data-entry="${entry.id}"] a`)?.focus();
        };
        input.addEventListener("keydown", (event) => {
            if (event.isComposing) return;
            if (event.key === "Enter") close(true);
            if (event.key === "Escape") { event.stopPropagation(); close(false); }
        });
        input.addEventListener("blur", () => close(true));
        item.replaceChildren(input);
        input.focus();
        input.select();
    }
}

// A line at the foot of the page for a while, with one thing that can be done.
export function toast(text, label, action) {
    const place = document.getElementById("toasts");
    const close = () => { clearTimeout(timer); element.remove(); };
    const timer = setTimeout(() => element.remove(), 8000);
    const element = h("div", { class: "toast" }, h("span", {}, text),
        label ? h("button", { type: "button", class: "button small", onclick: () => { close(); action(); } }, label) : null,
        icon_button("close", "Close", close));
    place.replaceChildren(element);
    announce(label ? `${text} ${label} is possible.` : text);
}
