// quant.h — a weight matrix is bytes plus a format tag. One Format<Q> per tag holds the block geometry and
// the defining decoder; with_format is the only switch on the tag.
//
// Formats of two kinds:
//  * self-contained blocks (all GGUF types): `decode_block(const std::byte* block, int i)` is element i of a
//  block;
//    rows are contiguous runs of blocks, and no block straddles two rows.
//  * split planes (safetensors NVFP4 and FP8): codes and scales lie in separate tensors; `decode(const
//  Weight&,
//    expert, row, col)` is an element before the factor(s) in Weight::scale.
// Both kinds offer `decode_row(const Weight&, expert, row, float* out)`, through quant/decode.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/hd.h"

namespace sparkinfer {

// name in code, name people know, ggml type id (-1: not a GGUF type)
#define FOREACH_QUANT(X)              \
    X(f32, "F32", 0)                  \
    X(f16, "F16", 1)                  \
    X(bf16, "BF16", 30)               \
    X(q4_0, "Q4_0", 2)                \
    X(q4_1, "Q4_1", 3)                \
    X(q5_0, "Q5_0", 6)                \
    X(q5_1, "Q5_1", 7)                \
    X(q8_0, "Q8_0", 8)                \
    X(q2_k, "Q2_K", 10)               \
    X(q3_k, "Q3_K", 11)               \
    X(q4_k, "Q4_K", 12)               \
    X(q5_k, "Q5_K", 13)               \
    X(q6_k, "Q6_K", 14)               \
    X(iq4_nl, "IQ4_NL", 20)           \
    X(iq4_xs, "IQ4_XS", 23)           \
    X(mxfp4, "MXFP4", 39)             \
    X(nvfp4, "NVFP4", 40)             \
    X(nvfp4_split, "NVFP4-split", -1) \
    X(fp8_channel, "FP8-channel", -1) \
    X(fp8_tensor, "FP8-tensor", -1)   \
    X(fp8_block, "FP8-block", -1)     \
    X(q4_k_slab, "Q4_K-slab", -1)     \
    X(q5_k_slab, "Q5_K-slab", -1)     \
    X(q6_k_slab, "Q6_K-slab", -1)     \
    X(q8_0_slab, "Q8_0-slab", -1)     \
    X(q4_0_slab, "Q4_0-slab", -1)     \
    X(q4_1_slab, "Q4_1-slab", -1)     \
    X(iq4_xs_slab, "IQ4_XS-slab", -1) \
    X(mxfp4_slab, "MXFP4-slab", -1)

enum class Quant : uint8_t {
#define X(name, text, id) name,
    FOREACH_QUANT(X)
#undef X
};

// Slabs of 16 rows may hold 8 rows of a gate and 8 of its up: row r of the gate is row r%8 of slab r/8, row r
// of the up is row 8 + r%8 of it.
enum class Pairing : uint8_t { none, gate, up };

// A weight matrix [experts,] [out, in], exactly as it lies in memory. A view: the checkpoint (or a backend's
// memory) owns the bytes.
struct Weight {
    const void* data = nullptr;    // blocks, row after row, expert after expert
    const void* scales = nullptr;  // split-plane formats: their scales; else null
    const float* scale = nullptr;  // factor(s) applied after decode: one, or one per expert; null = 1
    int32_t experts = 1, out = 0, in = 0;
    int32_t scale_count = 0;  // 0, 1 or experts
    int32_t expert_rows = 0;  // rows from one expert to the next; 0: out (a fused gate|up tensor has 2·F)
    Quant quant = Quant::f32;
    Pairing pairing = Pairing::none;
};

template <Quant>
struct Format;  // quant/<name>.h

const char* quant_name(Quant q);                     // "Q4_K"
bool quant_from_ggml(uint32_t type_id, Quant* out);  // false: no such type here
const char* ggml_type_name(uint32_t type_id);  // also of types that are not supported; "unknown" otherwise
bool ggml_type_geometry(uint32_t type_id, int* block, int* bytes);  // any type in use; false: no such id

int quant_block(Quant q);  // elements per block; `in` is a multiple of it
int64_t row_bytes(Quant q, int64_t in);
inline int64_t row_bytes(const Weight& w) { return row_bytes(w.quant, w.in); }
// Where a row lies, in rows from `data` (and from `scales`).
HD HD inline int64_t weight_row(const Weight& w, int expert, int row) {
    return int64_t(expert) * (w.expert_rows ? w.expert_rows : w.out) + row;
}
int64_t weight_bytes(const Weight& w);  // codes and scales, all experts

}  // namespace sparkinfer
