// dom.js — elements by hand: h("button", {class: "icon", onclick: f}, "text"). Strings become text nodes, always.

const kSvg = "http://www.w3.org/2000/svg";

export function h(tag, props = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) {
        if (value === undefined || value === null || value === false) continue;
        if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
        else if (name === "class") element.className = value;
        else if (name === "value" || name === "checked" || name === "textContent") element[name] = value;
        else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
    return element;
}

// Outlines on a grid of 24, stroked in the colour of the text.
const kIcons = {
    plus: "M12 5v14M5 12h14",
    menu: "M4 7h16M4 12h16M4 17h16",
    search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
    send: "M12 19V5M6 11l6-6 6 6",
    copy: "M9 9h10v11H9zM15 9V4H5v11h4",
    check: "M5 13l4 4L19 7",
    edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
    retry: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
    trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
    left: "M14 6l-6 6 6 6",
    right: "M10 6l6 6-6 6",
    down: "M6 10l6 6 6-6",
    arrow_down: "M12 5v14M6 13l6 6 6-6",
    close: "M6 6l12 12M18 6L6 18",
    settings: "M4 7h10M18 7h2M4 17h2M10 17h10M14 5v4h4V5zM6 15v4h4v-4z",
    sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
    moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5z",
    chart: "M4 20V4M4 20h16M8 16v-4M12 16V8M16 16v-6",
    wrench: "M14.5 6.5a4 4 0 0 1 5-1.2L17 8l1 2 2.700-.8a4 4 0 0 1-5.700 3.300L8 19.500 4.500 16l7-7a4 4 0 0 1 3-2.500z",
    bulb: "M9 18h6M10 21h4M12 3a6 6 0 0 0-3.600 10.800c.6.5 1.100 1.300 1.100 2.200h5c0-.9.5-1.700 1.100-2.200A6 6 0 0 0 12 3z",
    alert: "M12 4l9 16H3zM12 10v4M12 17v.01",
    more: "M5 12h.01M12 12h.01M19 12h.01",
    download: "M12 4v11M7 11l5 5 5-5M5 20h14",
    upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
    spark: "M12 2c.8 5.600 3.400 8.600 10 10-6.600 1.400-9.200 4.400-10 10-.8-5.600-3.400-8.600-10-10 6.600-1.400 9.200-4.400 10-10z",
    clip: "M19 11.500l-7.200 7.200a4.500 4.500 0 0 1-6.400-6.400L13 4.700a3 3 0 0 1 4.300 4.300l-7.500 7.500a1.500 1.500 0 0 1-2.200-2.200L14 8",
    chat: "M4 5h16v11H9l-5 4z",
    keyboard: "M3 7h18v10H3zM7 10.500h.01M11 10.500h.01M15 10.500h.01M17 10.500h.01M8 14h8",
};

export function icon(name) {
    const svg = document.createElementNS(kSvg, "svg");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("class", name === "spark" || name === "stop" ? "icon solid" : "icon");
    svg.setAttribute("aria-hidden", "true");
    const shape = document.createElementNS(kSvg, name === "stop" ? "rect" : "path");
    if (name === "stop") for (const [k, v] of Object.entries({ x: 6, y: 6, width: 12, height: 12, rx: 2 })) shape.setAttribute(k, v);
    else shape.setAttribute("d", kIcons[name]);
    svg.append(shape);
    return svg;
}

export function svg(tag, attributes, ...children) {
    const element = document.createElementNS(kSvg, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
}

// A button that shows an icon and says `label`.
export function icon_button(name, label, onclick, props = {}) {
    return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...props }, icon(name));
}

// Copies and says so on the button for a moment. Without a secure context there is no clipboard API.
export async function copy_text(text, button) {
    let done = true;
    try {
        if (navigator.clipboard && window.isSecureContext) await navigator.clipboard.writeText(text);
        else done = copy_by_selection(text);
    } catch {
        done = copy_by_selection(text);
    }
    const before = [...button.childNodes];
    button.replaceChildren(icon(done ? "check" : "alert"), ...(button.classList.contains("icon-button") ? [] : [done ? "Copied" : "Not copied"]));
    setTimeout(() => button.replaceChildren(...before), 1500);
    announce(done ? "Copied" : "Could not copy");
}

function copy_by_selection(text) {
    const area = h("textarea", { class: "visually-hidden", value: text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
}

// Says one sentence to a screen reader.
export function announce(text) {
    const live = document.getElementById("live");
    if (live) live.textContent = text;
}

export function format_count(n) {
    return Math.round(n).toLocaleString("en-US");
}

export function format_seconds(s) {
    return s < 1 ? `${Math.round(s * 1000)} ms` : s < 60 ? `${s.toFixed(s < 10 ? 2 : 1)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

export function format_bytes(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (bytes >= 1024 && i < units.length - 1) { bytes /= 1024; ++i; }
    return `${bytes >= 100 || i === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[i]}`;
}
