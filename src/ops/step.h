// step.h — what changes from step to step (Step) and what lasts with a sequence (Slots).
//
// Both are plain bytes at fixed addresses that a tape refers to. A step is one image, written by one copy
// before the tape runs. A slot is a record that `embed` (by Step's changes) and `output` (the cursor) write.
// Rows beyond StepHeader::rows, and rows of a stopped slot whose token comes from its cursor, are *absent*:
// they touch no expert, no page and no state.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/hd.h"

namespace sparkinfer {

constexpr int kPageTokens = 64;    // tokens in a KV page
constexpr int kMaxVerifyRows = 8;  // rows a recurrent state can hold logged instead of folded
constexpr int kMaxStopIds = 16;    // end tokens decided on the device
constexpr int kMaxBias = 512;      // logit-bias entries of one sequence
constexpr int kMaxTopLogprobs = 20;

enum RowFlag : uint32_t {
    kRowOutput = 1,      // this row wants the step's output
    kRowVerify = 2,      // a drafted token: logged, not folded into the recurrent state
    kRowFromCursor = 4,  // token, index and positions come from the slot's cursor
};

struct Row {
    int32_t token;  // id to embed; < 0: row ~token of an input tensor (kept open)
    int32_t slot;
    int32_t index;        // place in the sequence, i.e. in its KV pages
    int32_t position[3];  // rotary positions (time, height, width); text: all equal to index
    uint32_t flags;
    int32_t target;  // kind logprobs: the token whose log-probability is asked; -1: none
};
static_assert(sizeof(Row) == 32);

// A run of rows of one sequence at consecutive indices.
struct Segment {
    int32_t slot;
    int32_t first_row, rows;
    int32_t state_in, state_out;  // recurrent state slots; -1: starts from zero / not kept
    int32_t accepted;             // logged rows of state_in to fold first; -1: the cursor says
    int32_t first_save, saves;    // entries of Step's saves: states to keep after inner rows
};
static_assert(sizeof(Segment) == 32);

struct Save {
    int32_t row;    // state after this row of the step …
    int32_t state;  // … is also written here
};

// Writes `count` words of Step's payload into a slot record, from word `word` on.
struct SlotChange {
    int32_t slot, word, count, payload;
};

struct StepHeader {
    int32_t rows, segments, outputs, saves, changes;
    int32_t payload_words;
    // Byte offsets from the header, each a multiple of 16.
    int32_t rows_at, segments_at, outputs_at, saves_at, changes_at, payload_at;
    int32_t bytes;  // of the whole image
    int32_t reserved[3];
};
static_assert(sizeof(StepHeader) == 64);

// Reads an image. `outputs` lists the rows with kRowOutput, ascending.
struct StepView {
    const std::byte* base = nullptr;
    HD const StepHeader& header() const { return *reinterpret_cast<const StepHeader*>(base); }
    HD const Row* rows() const { return at<Row>(header().rows_at); }
    HD const Segment* segments() const { return at<Segment>(header().segments_at); }
    HD const int32_t* outputs() const { return at<int32_t>(header().outputs_at); }
    HD const Save* saves() const { return at<Save>(header().saves_at); }
    HD const SlotChange* changes() const { return at<SlotChange>(header().changes_at); }
    HD const uint32_t* payload() const { return at<uint32_t>(header().payload_at); }

  private:
    template <class T>
    HD const T* at(int32_t offset) const {
        return reinterpret_cast<const T*>(base + offset);
    }
};

// Device-owned: advanced by `output` (and later by verify_draft); written by the host through SlotChange only
// when a sequence is admitted, stopped or sent back.
struct Cursor {
    int32_t next_token;  // the row that kRowFromCursor stands for …
    int32_t index;       // … and its place in the sequence
    int32_t generated;   // tokens selected so far
    int32_t limit;       // stop when `generated` reaches it
    int32_t stopped;     // 0, or a StopReason
    int32_t accepted;    // logged rows that the next step folds
    int32_t prompt;      // tokens before the first generated one
    int32_t reserved;
};

enum StopReason : int32_t { kRunning = 0, kStopToken = 1, kStopLimit = 2, kStopHost = 3 };

// How one token is chosen. Neutral values switch a filter off.
struct Sampling {
    float temperature;        // 0: greedy
    int32_t top_k;            // 0: off
    float top_p;              // 1: off
    float min_p;              // 0: off
    float repeat_penalty;     // 1: off; over the last repeat_last_n tokens of prompt and output
    int32_t repeat_last_n;    // -1: all
    float presence_penalty;   // 0: off; over generated tokens
    float frequency_penalty;  // 0: off; over generated tokens
    uint32_t seed[2];         // Philox key
    int32_t top_logprobs;     // 0 … kMaxTopLogprobs: also report this many alternatives
    int32_t mask;             // row of the mask array of allowed tokens; -1: none
    int32_t biases;           // entries of Slot::bias in use
    int32_t stop_ids;         // entries of Slot::stop_id in use
};

struct Bias {
    int32_t token;
    float value;
};

// The fixed part of a slot record; behind it lie int32 pages[max_pages] and int32 history[max_tokens]: the
// token at each index, written by `embed`.
struct Slot {
    Cursor cursor;
    Sampling sampling;
    int32_t stop_id[kMaxStopIds];
    Bias bias[kMaxBias];
};
static_assert(sizeof(Slot) % 8 == 0);

struct SlotsView {
    std::byte* base = nullptr;
    uint32_t* masks = nullptr;  // [mask rows, ceil(V/32)] bit i of a row: token i is allowed
    int64_t stride = 0;         // bytes of one record
    int32_t count = 0, max_pages = 0, max_tokens = 0, mask_words = 0;

    HD Slot& slot(int s) const { return *reinterpret_cast<Slot*>(base + s * stride); }
    HD int32_t* pages(int s) const { return reinterpret_cast<int32_t*>(base + s * stride + sizeof(Slot)); }
    HD int32_t* history(int s) const { return pages(s) + max_pages; }
    HD uint32_t* words(int s) const { return reinterpret_cast<uint32_t*>(base + s * stride); }
};
inline int64_t slot_bytes(int64_t max_pages, int64_t max_tokens) {
    return (int64_t(sizeof(Slot)) + 4 * (max_pages + max_tokens) + 63) / 64 * 64;
}

// A row as ops see it: the cursor already looked up.
struct LiveRow {
    bool present;
    int32_t token, slot, index;
    int32_t position[3];
};
HD inline LiveRow live_row(const StepView& step, const SlotsView& slots, int r) {
    if (r >= step.header().rows) return {false, 0, 0, 0, {0, 0, 0}};
    const Row& row = step.rows()[r];
    if (!(row.flags & kRowFromCursor))
        return {true, row.token, row.slot, row.index, {row.position[0], row.position[1], row.position[2]}};
    const Cursor& c = slots.slot(row.slot).cursor;
    return {c.stopped == 0, c.next_token, row.slot, c.index, {c.index, c.index, c.index}};
}

// What `output` (kind select) reports for one row.
struct Selected {
    int32_t row, slot;
    int32_t token;              // -1: the row was absent
    int32_t stopped;            // the slot's StopReason after this token
    float logprob;              // of the token, log-softmax of the raw logits
    int32_t tops;               // entries of top in use
    Bias top[kMaxTopLogprobs];  // best first; value = log-probability
};

// What `output` (kind logprobs) reports for one row.
struct TokenLogprob {
    int32_t row, target;
    float logprob;  // of the target; 0 when target is -1
    float log_sum_exp;
    int32_t tops, reserved;
    Bias top[kMaxTopLogprobs];
};

}  // namespace sparkinfer
