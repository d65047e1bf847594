// chart.js — lines over the last minutes, drawn by hand as SVG; colours come from the style sheet by class.
import { h, svg } from "./dom.js";

const kLeft = 46, kRight = 8, kTop = 8, kBottom = 20;

// A round number that is not below `value`, and whose half is round as well.
export function round_up(value) {
    if (!(value > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(value));
    const step = [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find((s) => s * power >= value * 0.999999);
    return step * power;
}

export class Chart {
    // series: [{key, css, format}]; `whole`: the values are counts, the axis has no fractions.
    constructor(element, series, label, whole = false) {
        this.element = element;
        this.series = series;
        this.label = label;
        this.whole = whole;
        this.tip = h("div", { class: "chart-tip", hidden: true });
        this.points = [];
        element.setAttribute("role", "img");
        element.addEventListener("pointermove", (event) => this.point_at(event));
        element.addEventListener("pointerleave", () => { this.pointer = null; this.render(); });
        new ResizeObserver(() => this.render()).observe(element);
    }

    draw(points, now, span_s) {
        Object.assign(this, { points, now, span_s });
        this.render();
    }

    render() {
        const width = this.element.clientWidth, height = this.element.clientHeight;
        if (!width || !this.points.length) return;
        const values = this.points.flatMap((p) => this.series.map((s) => p[s.key] ?? 0));
        const most = round_up(Math.max(...values));
        const top = this.whole ? Math.max(4, 2 * Math.ceil(most / 2)) : most;
        const x = (time) => kLeft + (width - kLeft - kRight) * (1 - (this.now - time) / this.span_s);
        const y = (value) => kTop + (height - kTop - kBottom) * (1 - value / top);
        this.scale = { x, y, width, height };
        const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
        for (const share of [0, 0.5, 1]) {
            const line = y(top * share);
            root.append(svg("line", { class: "grid", x1: kLeft, x2: width - kRight, y1: line, y2: line }),
                svg("text", { class: "axis", x: kLeft - 8, y: line + 4, "text-anchor": "end" }, this.series[0].format(top * share)));
        }
        const step = width < 420 ? 2 : 1;
        for (let minute = 0; minute * 60 <= this.span_s; minute += step) {
            const text = minute === 0 ? "now" : `−${minute} min`;
            root.append(svg("text", { class: "axis", x: x(this.now - minute * 60), y: height - 4, "text-anchor": minute === 0 ? "end" : minute * 60 === this.span_s ? "start" : "middle" }, text));
        }
        for (const series of this.series) root.append(...this.line(series, x, y));
        if (this.pointer) root.append(...this.marker());
        this.element.replaceChildren(root, this.tip);
        const last = this.points.at(-1);
        const now = this.series.map((s) => `${s.key} ${last[s.key] === null ? "not known" : s.format(last[s.key])}`).join(", ");
        this.element.setAttribute("aria-label", `${this.label}, now: ${now}`);
    }

    // Gaps stay gaps: where nothing was heard, nothing is drawn.
    line(series, x, y) {
        let path = "", area = "", start = 0, before = null;
        const close = () => { if (before) area += `L${x(before.time).toFixed(1)},${y(0)}L${start},${y(0)}Z`; };
        for (const point of this.points) {
            const value = point[series.key];
            if (!Number.isFinite(value)) continue;
            const px = x(point.time).toFixed(1), py = y(value).toFixed(1);
            if (px < kLeft) continue;
            const joined = before && point.time - before.time < 5;
            if (!joined) { close(); start = px; }
            path += `${joined ? "L" : "M"}${px},${py}`;
            area += `${joined ? "L" : "M"}${px},${py}`;
            before = point;
        }
        close();
        return [svg("path", { class: `area ${series.css}`, d: area }), svg("path", { class: `line ${series.css}`, d: path })];
    }

    point_at(event) {
        this.pointer = event.clientX - this.element.getBoundingClientRect().left;
        this.render();
    }

    // A line at the point nearest to the pointer, and its values.
    marker() {
        const { x, y, width } = this.scale;
        const near = this.points.reduce((a, b) => (Math.abs(x(b.time) - this.pointer) < Math.abs(x(a.time) - this.pointer) ? b : a));
        const px = x(near.time);
        this.tip.replaceChildren(h("span", { class: "hint" }, `${Math.max(0, Math.round(this.now - near.time))} s ago`),
            ...this.series.map((s) => h("span", {}, h("span", { class: `key ${s.css}` }), near[s.key] === null ? "–" : s.format(near[s.key]))));
        this.tip.hidden = false;
        this.tip.style.left = `${Math.min(px + 10, width - 110)}px`;
        const dots = this.series.filter((s) => Number.isFinite(near[s.key])).map((s) => svg("circle", { class: `dot ${s.css}`, cx: px, cy: y(near[s.key]), r: 3.5 }));
        return [svg("line", { class: "cross", x1: px, x2: px, y1: kTop, y2: this.scale.height - kBottom }), ...dots];
    }
}
