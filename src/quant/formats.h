// formats.h — every Format<Q>, and with_format: the only switch on a Quant.
#pragma once
#include <utility>

#include "core/check.h"
#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/f32.h"
#include "quant/fp8.h"
#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"
#include "quant/nvfp4_split.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"
#include "quant/slab.h"

namespace sparkinfer {

// Calls f(Format<q>{}) and returns its result: `with_format(w.quant, [&](auto f) { return f.block; })`.
template <class F>
decltype(auto) with_format(Quant q, F&& f) {
    switch (q) {
#define X(name, text, id) \
    case Quant::name: return std::forward<F>(f)(Format<Quant::name>{});
        FOREACH_QUANT(X)
#undef X
    }
    CHECK(false, "quant {}", int(q));
    __builtin_unreachable();
}

}  // namespace sparkinfer
