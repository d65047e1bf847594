// api.js — what the page says to its server: one streamed chat call, the model list, readiness. Failures become one
// sentence for the person in front of the page.

const kSilenceMs = 60_000; // the server sends a keep-alive every few seconds; longer silence is a lost connection
const kLineMax = 32 * 1024 * 1024;

export class ApiFailure extends Error {
    // kind: "offline" (no connection), "busy" (429, 503: later), "key" (401), "lost" (mid-answer), "refused" (all else).
    constructor(kind, message, more = {}) {
        super(message);
        this.kind = kind;
        this.status = more.status ?? 0;
        this.code = more.code ?? "";
        this.retry_after_s = more.retry_after_s ?? 0;
    }
}

// The key lives as long as the tab and is never stored with the conversations.
export function api_key() {
    try { return sessionStorage.getItem("sparkinfer.key") ?? ""; } catch { return ""; }
}

export function set_api_key(key) {
    try {
        if (key) sessionStorage.setItem("sparkinfer.key", key);
        else sessionStorage.removeItem("sparkinfer.key");
        return true;
    } catch {
        return false;
    }
}

async function send(path, options) {
    const headers = { ...options.headers };
    if (api_key()) headers.Authorization = `Bearer ${api_key()}`;
    let response;
    try {
        response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "error", referrerPolicy: "no-referrer" });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiFailure("offline", "The server cannot be reached.");
    }
    if (!response.ok) throw await failure_of(response);
    return response;
}

async function failure_of(response) {
    let text = "", error = {};
    try {
        text = await response.text();
        const body = JSON.parse(text);
        error = typeof body.error === "object" && body.error ? body.error : { message: body.error ?? body.message };
    } catch {
        error = { message: text && text.length < 300 && !text.includes("<") ? text : "" };
    }
    const status = response.status;
    const retry_after_s = Math.min(Number(response.headers.get("retry-after")) || 0, 120);
    const more = { status, code: String(error.code ?? ""), retry_after_s };
    const said = typeof error.message === "string" ? error.message.trim() : "";
    if (status === 401 || status === 403) {
        const what = api_key() ? "The server did not accept the API key." : "This server asks for an API key.";
        return new ApiFailure("key", status === 403 && said ? said : what, more);
    }
    if (status === 429 || status === 503) return new ApiFailure("busy", said || "The server is busy.", more);
    if (more.code === "context_length_exceeded") {
        return new ApiFailure("refused", `The conversation is longer than the model's context. ${said}`.trim(), more);
    }
    if (status >= 502) return new ApiFailure("busy", "The server behind the proxy does not answer.", more);
    return new ApiFailure("refused", said || `The server answered with status ${status}.`, more);
}

// {id, context} of every model.
export async function list_models() {
    const body = await (await send("v1/models", { signal: AbortSignal.timeout(10_000) })).json();
    const models = Array.isArray(body.data) ? body.data : [];
    const context = (m) => [m.max_model_len, m.context_length, m.context_window, m.meta?.n_ctx].find((n) => Number.isFinite(n) && n > 0);
    return models.filter((m) => typeof m.id === "string").map((m) => ({ id: m.id, context: context(m) ?? 0 }));
}

export async function is_ready() {
    try {
        const response = await fetch("health/ready", { cache: "no-store", signal: AbortSignal.timeout(5_000) });
        return response.ok;
    } catch {
        return false;
    }
}

export async function dashboard_data(signal) {
    return (await send("dashboard/data", { signal })).json();
}

// Splits a stream of text pieces into the data of server-sent events. Comments (keep-alives) are passed over.
export class SseParser {
    constructor() {
        this.rest = "";
        this.data = [];
        this.skip_newline = false;
    }

    // Returns the data of the events that `text` completes.
    push(text) {
        const events = [];
        if (text === "") return events;
        const skip = this.skip_newline && text.startsWith("\n"); // the second half of a \r\n that was cut in two
        this.skip_newline = text.endsWith("\r");
        if (skip) text = text.slice(1);
        if (this.rest.length + text.length > kLineMax) throw new ApiFailure("lost", "The server sent a line without end.");
        const lines = (this.rest + text).split(/\r\n|\n|\r/);
        this.rest = lines.pop();
        for (const line of lines) {
            if (line === "") {
                if (this.data.length) events.push(this.data.join("\n"));
                this.data = [];
            } else if (line.startsWith("data:")) {
                this.data.push(line.slice(line[5] === " " ? 6 : 5));
            }
        }
        return events;
    }
}

// The chunks of one streamed answer, in order. Ends after [DONE]; throws an ApiFailure when it ends otherwise.
export async function* stream_chat(body, signal) {
    const silence = new AbortController();
    let timer;
    const heard = () => {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), kSilenceMs);
    };
    heard();
    try {
        const response = await send("v1/chat/completions", {
            method: "POST",
            headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
            body: JSON.stringify(body),
            signal: AbortSignal.any([signal, silence.signal]),
        });
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        const parser = new SseParser();
        for (;;) {
            const { value, done } = await reader.read();
            heard();
            if (done) throw new ApiFailure("lost", "The connection ended before the answer was complete.");
            for (const data of parser.push(value)) {
                if (data.trim() === "[DONE]") return;
                yield chunk_of(data);
            }
        }
    } catch (error) {
        if (error instanceof ApiFailure || signal.aborted) throw error;
        throw new ApiFailure("lost", silence.signal.aborted ? "The server fell silent." : "The connection to the server was lost.");
    } finally {
        clearTimeout(timer);
        silence.abort();
    }
}

function chunk_of(data) {
    let chunk;
    try {
        chunk = JSON.parse(data);
    } catch {
        throw new ApiFailure("lost", "The server sent something that is not JSON.");
    }
    if (chunk.error) {
        const said = typeof chunk.error === "string" ? chunk.error : chunk.error.message;
        throw new ApiFailure("lost", String(said || "The server broke the answer off."), { code: String(chunk.error.code ?? "") });
    }
    return chunk;
}
