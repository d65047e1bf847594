#include "quant/decode.h"

#include "core/check.h"
#include "quant/clones.h"
#include "quant/formats.h"

namespace sparkinfer {

namespace {

template <class F>
SPARKINFER_INLINE void decode_row_as(const Weight& w, int expert, int row, float* out) {
    if constexpr (F::split) {
        F::decode_row(w, expert, row, out);
    } else {
        const int64_t blocks = w.in / F::block, r = weight_row(w, expert, row);
        F::decode_blocks(static_cast<const std::byte*>(w.data) + r * blocks * F::bytes, blocks, out);
    }
    if (w.scale_count == 0) return;
    const float factor = w.scale[w.scale_count == 1 ? 0 : expert];
    for (int i = 0; i < w.in; i++) out[i] *= factor;
}

using RowFunction = void (*)(const Weight&, int, int, float*);

#define X(name, text, id)                                                                 \
    SPARKINFER_CLONES void row_##name(const Weight& w, int expert, int row, float* out) { \
        decode_row_as<Format<Quant::name>>(w, expert, row, out);                          \
    }
FOREACH_QUANT(X)
#undef X

constexpr RowFunction kRowFunctions[] = {
#define X(name, text, id) row_##name,
    FOREACH_QUANT(X)
#undef X
};

}  // namespace

void decode_row(const Weight& w, int expert, int row, float* out) {
    CHECK(expert >= 0 && expert < w.experts && row >= 0 && row < w.out, "expert {} of {}, row {} of {}",
          expert, w.experts, row, w.out);
    kRowFunctions[int(w.quant)](w, expert, row, out);
}

float decode_element(const Weight& w, int expert, int row, int col) {
    CHECK(col >= 0 && col < w.in, "column {} of {}", col, w.in);
    const float value = with_format(w.quant, [&](auto f) -> float {
        using F = decltype(f);
        if constexpr (F::split) {
            return F::decode(w, expert, row, col);
        } else {
            const int64_t blocks = w.in / F::block, r = weight_row(w, expert, row);
            const auto* bytes =
                static_cast<const std::byte*>(w.data) + (r * blocks + col / F::block) * F::bytes;
            return F::decode_block(bytes, col % F::block);
        }
    });
    return w.scale_count == 0 ? value : value * w.scale[w.scale_count == 1 ? 0 : expert];
}

}  // namespace sparkinfer
