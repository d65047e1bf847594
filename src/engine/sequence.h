// sequence.h — what the engine knows of one sequence, of a kept point of one, and of a step under way.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/mask_pool.h"
#include "engine/step_image.h"

namespace sparkinfer {

enum class SnapshotId : int64_t {};

// A point to which a sequence can return, or from which others start: references, no copies.
struct Snapshot {
    std::vector<TokenId> tokens;  // whose rows the pages and the state hold
    PageList pages;
    int32_t state = -1;  // recurrent state; -1: none
    int32_t logged = 0;  // rows of its log that count
};

struct Sequence {
    RequestId id{};
    SamplingParams sampling;
    std::vector<TokenId> stop_tokens;
    int32_t logprobs = -1;
    int32_t prompt_logprobs = -1;
    int32_t scored = 0;  // rows of the prompt whose log-probabilities are queued or told
    std::shared_ptr<Constraint> constraint;
    Admission admission;     // what is to be told when it leaves the queue …
    bool admitted = false;   // … for the first time
    bool from_host = false;  // it began at a point of the prefix cache with copies in host memory

    // The prefix cache: whether a kept beginning is wanted, whether this one's points are kept, and where
    // (prompt lengths, ascending, multiples of the cache's granule).
    bool looks_up = false, keeps = false;
    std::string salt;
    std::vector<int32_t> keep_at;

    std::vector<TokenId> tokens;  // the prompt and what was collected since
    int32_t prompt = 0;           // tokens before the first generated one
    int32_t limit = 0;            // most tokens to generate
    // Rows before this index carry their token; later ones take the cursor's.
    int32_t explicit_end = 0;
    int32_t fed = 0;      // rows queued; the next row has this index
    int32_t selects = 0;  // tokens chosen by rows queued or collected

    int32_t slot = -1;          // -1: waiting
    bool write_record = false;  // the slot's record must be written with the next rows …
    bool write_cursor = false;  // … or only its cursor
    int32_t pages_written = 0;  // entries of `pages` that the record has
    PageList pages;
    int32_t state = -1;  // recurrent state behind row fed-1; -1: before the first row, or none
    int32_t logged = 0;  // rows of its log to fold before the next row

    std::shared_ptr<MaskJob> mask;  // of the next token, asked or answered
    int32_t save_every = 0;         // keep a snapshot at multiples of this many prompt tokens; 0: none
    int32_t saved = 0;              // tokens of the longest one
    std::vector<SnapshotId> saves;

    int32_t generated() const { return int32_t(tokens.size()) - prompt; }
    bool explicit_rows_left() const { return fed < explicit_end; }
    bool wants_row() const { return explicit_rows_left() || selects < limit; }
};

// The rows of one sequence in a step under way.
struct FlightSegment {
    std::optional<RequestId> request;  // none: the sequence has ended meanwhile
    int32_t first_index = 0, rows = 0;
    int32_t score_row = 0, score_rows = 0;  // rows of the step that rate the prompt's next token
    std::vector<TokenLogprobs> scores;      // theirs
    int32_t output = -1;                    // its place among the step's outputs; -1: wants none
    bool masked = false;
    // While the host may still take the rows back: the state before them, one reference held. -1: none or
    // confirmed.
    bool voidable = false;
    int32_t fallback = -1, fallback_logged = 0;
};

// A step that is planned or queued and not yet collected.
struct Flight {
    explicit Flight(const StepLimits& limits) : image(limits) {}
    StepImage image;
    std::vector<FlightSegment> segments;
    std::vector<int32_t> outputs;        // rows that want output, ascending
    std::vector<int32_t> plain, masked;  // outputs without and with a mask (places in `outputs`)
    std::vector<int32_t> released;       // states to give back once the step is queued
    int32_t prefill_rows = 0;
    int32_t lane = 0;
    bool select_pending = false;  // the masked rows' choice is not queued yet
    Ticket ticket, masked_ticket;
    double queued_at = 0;  // s
};

}  // namespace sparkinfer
