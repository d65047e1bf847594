// settings_view.js — the dialog of settings: every field says at once what is wrong with it; what is right is kept.
import { api_key, set_api_key } from "./api.js";
import { h } from "./dom.js";
import { kFields, save_settings, text_of } from "./settings.js";

export class SettingsView {
    // actions: changed(settings), key_changed(), export_all(), import_file(file), remove_all()
    constructor(settings, actions) {
        this.settings = settings;
        this.actions = actions;
        this.dialog = document.getElementById("settings");
        this.inputs = new Map();
        this.context = 0;
        this.build();
        this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.dialog.close(); });
    }

    open(focus = "") {
        for (const field of kFields) {
            this.inputs.get(field.name).value = text_of(field, this.settings[field.name]);
            this.complain(field, "");
        }
        this.key.value = api_key();
        if (!this.dialog.open) this.dialog.showModal();
        (focus === "key" ? this.key : this.inputs.get("system")).focus();
    }

    build() {
        const section = (title, ...children) => h("section", {}, h("h3", {}, title), ...children);
        const by_name = new Map(kFields.map((f) => [f.name, f]));
        const numbers = kFields.filter((f) => f.kind === "number").map((f) => this.field(f));
        this.key = h("input", { id: "set-key", class: "field", type: "password", autocomplete: "off", spellcheck: "false", "aria-describedby": "hint-key" });
        this.key.addEventListener("change", () => {
            set_api_key(this.key.value.trim());
            this.actions.key_changed();
        });
        const reset = h("button", { type: "button", class: "button", onclick: () => this.reset() }, "Back to the model's defaults");
        const file = h("input", { type: "file", accept: "application/json,.json", class: "visually-hidden", tabindex: "-1", "aria-label": "File to import", id: "import-file" });
        file.addEventListener("change", () => { if (file.files[0]) this.actions.import_file(file.files[0]); file.value = ""; });
        const button = (label, onclick, kind = "button") => h("button", { type: "button", class: kind, onclick }, label);
        this.dialog.append(
            h("header", {}, h("h2", { id: "settings-title" }, "Settings"), button("Done", () => this.dialog.close(), "button primary")),
            h("div", { class: "settings-body" },
                section("Instructions", this.field(by_name.get("system"))),
                section("Sampling", h("p", { class: "hint" }, "Empty fields leave it to the model."), h("div", { class: "grid" }, numbers), reset),
                section("Tools", this.field(by_name.get("tools"))),
                section("Access", h("div", { class: "setting" }, h("label", { for: "set-key" }, "API key"), this.key,
                    h("p", { class: "hint", id: "hint-key" }, "Needed if the server was started with keys. Forgotten when this tab closes."))),
                section("Conversations", h("div", { class: "row" }, button("Export all", () => this.actions.export_all()),
                    button("Import…", () => file.click()), file, button("Delete all…", () => this.confirm_remove(), "button danger")), this.confirm = h("div", { class: "confirm" })),
                section("Keys", h("dl", { class: "keys" }, shortcuts().flatMap(([keys, what]) => [h("dt", {}, keys.map((k) => h("kbd", {}, k))), h("dd", {}, what)])))));
    }

    field(field) {
        const id = `set-${field.name}`;
        const props = { id, class: field.code ? "field code" : "field", spellcheck: "false", "aria-describedby": `hint-${field.name} error-${field.name}` };
        const input = field.kind === "text" ? h("textarea", { ...props, rows: field.code ? "6" : "4" })
            : h("input", { ...props, type: "text", inputmode: "decimal", placeholder: "default", autocomplete: "off" });
        input.addEventListener("input", () => this.take(field, input.value));
        this.inputs.set(field.name, input);
        return h("div", { class: field.kind === "text" ? "setting wide" : "setting" }, h("label", { for: id }, field.label), input,
            h("p", { class: "hint", id: `hint-${field.name}` }, field.hint), h("p", { class: "error", id: `error-${field.name}` }));
    }

    take(field, text) {
        const { value, error } = field.check(text);
        const beyond = field.name === "max_tokens" && this.context && value > this.context;
        this.complain(field, error ?? (beyond ? `The model's context has ${this.context} tokens.` : ""));
        if (error || beyond) return;
        this.settings[field.name] = value;
        save_settings(this.settings);
        this.actions.changed();
    }

    complain(field, text) {
        document.getElementById(`error-${field.name}`).textContent = text;
        this.inputs.get(field.name).setAttribute("aria-invalid", String(Boolean(text)));
    }

    reset() {
        for (const field of kFields.filter((f) => f.kind === "number")) {
            this.inputs.get(field.name).value = "";
            this.take(field, "");
        }
    }

    confirm_remove() {
        const close = () => this.confirm.replaceChildren();
        const yes = h("button", { type: "button", class: "button danger", onclick: () => { close(); this.actions.remove_all(); } }, "Delete all");
        this.confirm.replaceChildren(h("p", {}, "This deletes every conversation in this browser. It cannot be undone."), yes,
            h("button", { type: "button", class: "button", onclick: close }, "Keep them"));
        yes.focus();
    }
}

function shortcuts() {
    return [
        [["Enter"], "Send"],
        [["Shift", "Enter"], "New line"],
        [["Esc"], "Stop the answer"],
        [["↑"], "Edit the last message, from an empty field"],
        [["/"], "To the message field"],
        [["Ctrl", "Shift", "O"], "New chat"],
        [["Ctrl", "K"], "Search conversations"],
    ];
}
