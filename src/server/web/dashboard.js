// dashboard.js — figures of the server, asked for once a second.
//
// GET dashboard/data (with the API key, where there is one) answers a JSON object. Times are Unix seconds, durations
// seconds, memory bytes; what was not measured yet is null or absent, and shown as "–".
//   model      name of the model                    started    when the server started
//   state      "loading", "ready", "draining"       ready      whether it takes requests
//   now        the server's time
//   requests      {running, waiting, slots}
//   tokens_per_s  {prompt, generated}               over the last second or so; prompt: computed, not taken from cache
//   ttft, itl     {p50, p90, p99}                   of the last minutes
//   kv            {used, cached, total}             bytes; cached: those that the prefix cache keeps, of used
//   checkpoints   {count, bytes, budget}            recurrent states, on the device; and, if kept there, in the host's
//                 host: {count, bytes, budget}      memory
//   cache         {hit_tokens, query_tokens, misses: {reason: count}}     since the start
//   recent        [{id, route, start, queue_s, prefill_s, decode_s, prompt_tokens, cached_tokens, tokens, finish}]
//                 the latest first, at most 100; finish: "stop", "length", "tool_calls", "cancelled", "error", and null
//                 while it runs
//   errors        [{time, status, message, id}]     the latest first, at most 50
//   history       [{time, prompt, generated, running, waiting, ttft}]     optional: the last minutes, oldest first
import { ApiFailure, dashboard_data, set_api_key } from "./api.js";
import { Chart } from "./chart.js";
import { format_bytes, format_count, format_seconds, h, icon } from "./dom.js";

const at = (id) => document.getElementById(id);
const kEveryMs = 1000;
const kHistoryS = 300;
const kRowsMax = 30;

const number = (value) => (Number.isFinite(value) ? value : null);
const shown = (value, format) => (number(value) === null ? "–" : format(value));
const rate = (value) => (value < 100 ? value.toFixed(1).replace(/\.0$/, "") : format_count(value));
const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(part < whole && part > 0 ? 1 : 0)} %` : "–");

class Dashboard {
    constructor() {
        this.points = [];
        this.by_time = false;
        const one = (key, css, format) => [{ key, css, format }];
        this.charts = [
            new Chart(at("chart-generated"), one("generated", "generated", rate), "Generated tokens per second"),
            new Chart(at("chart-prompt"), one("prompt", "prompt", rate), "Prompt tokens per second"),
            new Chart(at("chart-queue"), [...one("running", "generated", format_count), ...one("waiting", "waiting", format_count)], "Requests running and waiting", true),
            new Chart(at("chart-ttft"), one("ttft", "ttft", format_seconds), "Median time to the first token"),
        ];
        for (const [id, by_time] of [["by-duration", false], ["by-time", true]]) at(id).addEventListener("click", () => this.order(by_time));
        at("key-form").addEventListener("submit", (event) => {
            event.preventDefault();
            set_api_key(at("key").value.trim());
            this.poll();
        });
    }

    order(by_time) {
        this.by_time = by_time;
        at("by-time").setAttribute("aria-pressed", String(by_time));
        at("by-duration").setAttribute("aria-pressed", String(!by_time));
        if (this.data) this.show_recent(this.data);
    }

    async poll() {
        clearTimeout(this.timer);
        const turn = (this.turn = (this.turn ?? 0) + 1);
        let pause = kEveryMs;
        try {
            const data = await dashboard_data(AbortSignal.timeout(5000));
            if (turn !== this.turn) return;
            this.data = data;
            at("key-form").hidden = true;
            this.show(data);
        } catch (error) {
            if (turn !== this.turn) return;
            pause = this.fail(error) ? 2 * kEveryMs : null;
        }
        if (pause) this.timer = setTimeout(() => this.poll(), document.hidden ? 10 * pause : pause);
    }

    // Says what is wrong; returns whether asking again may help.
    fail(error) {
        const known = error instanceof ApiFailure;
        const key = known && error.kind === "key";
        if (!known && error.name !== "TimeoutError") console.error(error);
        this.state(key ? "needs a key" : known ? "not reachable" : "no answer", "bad");
        document.body.classList.add("stale");
        if (key) {
            if (!at("key-form").hidden) at("key-error").textContent = error.message;
            at("key-form").hidden = false;
            at("key").focus();
        }
        return !key;
    }

    state(text, kind) {
        if (at("state").textContent !== text) at("state").textContent = text;
        at("state").dataset.kind = kind;
    }

    show(data) {
        document.body.classList.remove("stale");
        const ready = data.ready !== false;
        this.state(data.state ?? (ready ? "ready" : "loading"), ready ? "good" : "wait");
        at("model").textContent = data.model ?? "";
        const now = number(data.now) ?? Date.now() / 1000;
        at("uptime").textContent = number(data.started) === null ? "" : `up ${uptime(now - data.started)}`;
        this.remember(data, now);
        this.show_tiles(data);
        for (const chart of this.charts) chart.draw(this.points, now, kHistoryS);
        for (const name of ["ttft", "itl"]) {
            for (const p of ["p50", "p90", "p99"]) at(`${name}-${p}`).textContent = shown(data[name]?.[p], format_seconds);
        }
        this.show_memory(data);
        this.show_cache(data.cache ?? {});
        this.show_recent(data);
        this.show_errors(data.errors ?? []);
    }

    remember(data, now) {
        // The server's own history has no holes from when this page was hidden.
        if (Array.isArray(data.history)) this.points = data.history.filter((p) => number(p?.time) !== null);
        if (this.points.length && now < this.points.at(-1).time) this.points = []; // the server's clock went back
        this.points.push({ time: now, prompt: number(data.tokens_per_s?.prompt), generated: number(data.tokens_per_s?.generated),
            running: number(data.requests?.running), waiting: number(data.requests?.waiting), ttft: number(data.ttft?.p50) });
        while (this.points[0].time < now - kHistoryS - 5) this.points.shift();
    }

    show_tiles(data) {
        const requests = data.requests ?? {}, tokens_per_s = data.tokens_per_s ?? {}, cache = data.cache ?? {};
        at("now-generated").textContent = shown(tokens_per_s.generated, rate);
        at("now-prompt").textContent = shown(tokens_per_s.prompt, rate);
        at("now-running").textContent = shown(requests.running, format_count);
        at("now-slots").textContent = number(requests.slots) === null ? "requests" : `of ${format_count(requests.slots)} at once`;
        at("now-waiting").textContent = shown(requests.waiting, format_count);
        at("now-ttft").textContent = shown(data.ttft?.p50, format_seconds);
        at("now-cache").textContent = percent(cache.hit_tokens ?? 0, cache.query_tokens ?? 0);
    }

    show_memory({ kv, checkpoints }) {
        const rows = [];
        if (kv) rows.push(meter("Keys and values", kv.used, kv.total, number(kv.cached) === null ? "" : `${format_bytes(kv.cached)} kept for reuse`));
        if (checkpoints) rows.push(meter("Checkpoints", checkpoints.bytes, checkpoints.budget, `${shown(checkpoints.count, format_count)} states`));
        if (checkpoints?.host) rows.push(meter("Checkpoints, host memory", checkpoints.host.bytes, checkpoints.host.budget, `${shown(checkpoints.host.count, format_count)} states`));
        at("memory").replaceChildren(...(rows.length ? rows : [nothing("No figures yet.")]));
    }

    show_cache({ hit_tokens, query_tokens, misses }) {
        const rows = [meter("Tokens from cache", hit_tokens, query_tokens, percent(hit_tokens ?? 0, query_tokens ?? 0), format_count)];
        const reasons = Object.entries(misses ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
        const most = Math.max(1, ...reasons.map(([, n]) => n));
        rows.push(h("h3", {}, "Misses by reason"));
        if (!reasons.length) rows.push(nothing("None."));
        rows.push(h("div", { class: "reasons" }, reasons.flatMap(([reason, n]) => [
            h("span", {}, reason.replace(/_/g, " ")), bar(n / most, "miss"), h("span", { class: "count" }, format_count(n))])));
        at("cache").replaceChildren(...rows);
    }

    show_recent(data) {
        const list = (Array.isArray(data.recent) ? data.recent : []).slice(0, kRowsMax);
        if (!list.length) { at("recent").replaceChildren(nothing("No requests yet.")); return; }
        const total = (r) => (r.queue_s ?? 0) + (r.prefill_s ?? 0) + (r.decode_s ?? 0);
        const now = number(data.now) ?? Date.now() / 1000;
        const from = Math.min(...list.map((r) => r.start ?? now));
        const span = this.by_time ? Math.max(now - from, 1) : Math.max(0.001, ...list.map(total));
        const body = list.map((r) => waterfall_row(r, this.by_time ? (r.start ?? now) - from : 0, span, total(r)));
        const heads = ["Request", "Started", "", "Total", "Prompt", "Cached", "Tokens", "End"];
        at("recent").replaceChildren(h("table", { class: "waterfall" },
            h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name || h("span", { class: "visually-hidden" }, "Queue, prefill, decode"))))),
            h("tbody", {}, body)));
    }

    show_errors(list) {
        if (!list.length) { at("errors").replaceChildren(nothing("None.")); return; }
        at("errors").replaceChildren(h("ul", { class: "errors" }, list.slice(0, 50).map((e) => h("li", {},
            h("time", {}, clock(e.time)), h("span", { class: "status" }, e.status ? String(e.status) : "error"),
            h("span", { class: "error-text" }, String(e.message ?? "")), e.id ? h("code", {}, String(e.id)) : null))));
    }
}

const nothing = (text) => h("p", { class: "hint" }, text);

function bar(share, kind) {
    const fill = h("span", { class: `fill ${kind}` });
    fill.style.width = `${Math.max(0, Math.min(share, 1)) * 100}%`;
    return h("span", { class: "track" }, fill);
}

function meter(name, used, total, note, format = format_bytes) {
    const share = total > 0 ? used / total : 0;
    const figures = `${shown(used, format)} of ${shown(total, format)}`;
    const track = bar(share, "memory");
    for (const [k, v] of Object.entries({ role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": total ?? 0, "aria-valuenow": used ?? 0, "aria-valuetext": figures })) track.setAttribute(k, v);
    return h("div", { class: "memory-row" }, h("span", {}, name), h("span", { class: "figures" }, figures, note ? h("span", { class: "hint" }, ` · ${note}`) : null), track);
}

function waterfall_row(r, offset, span, total) {
    const track = h("div", { class: "bars" });
    let x = offset;
    for (const [kind, seconds] of [["queue", r.queue_s], ["prefill", r.prefill_s], ["decode", r.decode_s]]) {
        if (!(seconds > 0)) continue;
        const part = h("span", { class: `part ${kind}`, title: `${kind} ${format_seconds(seconds)}` });
        part.style.left = `${(100 * x) / span}%`;
        part.style.width = `max(2px, ${(100 * seconds) / span}%)`;
        track.append(part);
        x += seconds;
    }
    const phases = `queue ${shown(r.queue_s, format_seconds)}, prefill ${shown(r.prefill_s, format_seconds)}, decode ${shown(r.decode_s, format_seconds)}`;
    track.append(h("span", { class: "visually-hidden" }, phases));
    const finish = r.finish ?? "running";
    return h("tr", { "data-finish": finish },
        h("td", {}, h("span", { class: "route" }, String(r.route ?? "")), h("code", { title: String(r.id ?? "") }, String(r.id ?? "").slice(-10))),
        h("td", {}, clock(r.start)), h("td", { class: "track-cell" }, track), h("td", { class: "right" }, format_seconds(total)),
        h("td", { class: "right" }, shown(r.prompt_tokens, format_count)), h("td", { class: "right" }, shown(r.cached_tokens, format_count)),
        h("td", { class: "right" }, shown(r.tokens, format_count)), h("td", {}, h("span", { class: "finish" }, finish.replace(/_/g, " "))));
}

function clock(time) {
    return number(time) === null ? "–" : new Date(time * 1000).toLocaleTimeString("en-GB");
}

function uptime(s) {
    const days = Math.floor(s / 86400), hours = Math.floor(s / 3600) % 24, minutes = Math.floor(s / 60) % 60;
    return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.max(0, Math.floor(s))} s`;
}

function show_theme() {
    const dark = globalThis.theme_is_dark();
    at("theme").replaceChildren(icon(dark ? "sun" : "moon"));
    at("theme").setAttribute("aria-label", dark ? "Switch to light" : "Switch to dark");
}

for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
at("theme").addEventListener("click", () => { globalThis.switch_theme(); show_theme(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show_theme);
show_theme();
const dashboard = new Dashboard();
document.addEventListener("visibilitychange", () => { if (!document.hidden) dashboard.poll(); });
dashboard.poll();
