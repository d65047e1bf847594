// run.js — one answer under way: streams it into its node, measures it, waits for a server that is away.
import { ApiFailure, is_ready, stream_chat } from "./api.js";
import { apply_chunk, request_body } from "./conversation.js";

const kPatienceMs = 5 * 60_000; // how long an answer waits for a server that restarts
const kPauseS = [1, 2, 3, 5];

const seconds_since = (start) => (performance.now() - start) / 1000;

export class Run {
    // `changed(node, ended)` is called after every step; `settings` are taken as they are now, `model()` is asked.
    constructor(conversation, node, { settings, model, changed }) {
        this.conversation = conversation;
        this.node = node;
        this.body = request_body(conversation, node.parent, settings, "");
        this.model = model;
        this.changed = changed;
        this.abort = new AbortController();
        this.retry_at = 0; // when it tries again, 0: it is not waiting
        this.wake = null;
    }

    stop() {
        this.abort.abort();
        this.wake?.();
    }

    retry_now() {
        this.wake?.();
    }

    // Resolves when the answer has ended, however it ended.
    async run() {
        const patience = performance.now();
        for (let attempt = 0; ; ++attempt) {
            try {
                await this.stream();
                this.end("done");
            } catch (error) {
                if (this.abort.signal.aborted) {
                    this.end("stopped");
                } else if (this.may_wait(error) && performance.now() - patience < kPatienceMs) {
                    await this.wait(error, attempt);
                    if (!this.abort.signal.aborted) continue;
                    this.end("stopped");
                } else {
                    this.fail(error);
                }
            }
            return;
        }
    }

    async stream() {
        const { node } = this;
        this.body.model = await this.model();
        const start = performance.now();
        let first = 0, last = 0;
        node.stats = {};
        node.failure = null;
        for await (const chunk of stream_chat(this.body, this.abort.signal)) {
            const kind = apply_chunk(node, chunk);
            if (kind) {
                last = performance.now();
                if (!first) {
                    first = last;
                    node.stats.ttft_s = (first - start) / 1000;
                    node.state = "streaming";
                }
                if (kind !== "reasoning" && node.reasoning && node.stats.think_s === undefined) node.stats.think_s = seconds_since(first);
            }
            node.stats.total_s = seconds_since(start);
            const count = node.stats.completion_tokens;
            // Over a shorter time than this, or from a single piece, the rate would be that of the network.
            if (count > 1 && last - first > 100) node.stats.tokens_per_s = (count - 1) / ((last - first) / 1000);
            this.changed(node, false);
        }
        if (node.reasoning && node.stats.think_s === undefined) node.stats.think_s = (last - first) / 1000;
    }

    // Before the first token nothing is lost by asking again.
    may_wait(error) {
        return error instanceof ApiFailure && this.node.state === "waiting" &&
            (error.kind === "offline" || error.kind === "busy" || error.kind === "lost");
    }

    async wait(error, attempt) {
        const pause_s = error.retry_after_s || kPauseS[Math.min(attempt, kPauseS.length - 1)];
        this.retry_at = Date.now() + pause_s * 1000;
        this.node.failure = { kind: error.kind, message: error.message };
        this.changed(this.node, false);
        await new Promise((resolve) => {
            const timer = setInterval(async () => {
                const due = Date.now() >= this.retry_at;
                this.changed(this.node, false);
                // A server that is away is asked only whether it is ready; the prompt is sent once it is.
                if (due && (error.kind !== "offline" || await is_ready())) this.wake?.();
                else if (due) this.retry_at = Date.now() + 2000;
            }, 1000);
            this.wake = () => { clearInterval(timer); resolve(); };
        });
        this.wake = null;
        this.retry_at = 0;
        this.node.failure = null;
        this.changed(this.node, false);
    }

    fail(error) {
        const known = error instanceof ApiFailure;
        if (!known) console.error(error);
        this.node.failure = { kind: known ? error.kind : "refused", message: known ? error.message : "The page made a mistake; its console says more." };
        this.end("failed");
    }

    end(state) {
        this.node.state = state;
        this.changed(this.node, true);
    }
}
