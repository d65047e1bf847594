// tape_fixture.h — a small recorded tape for the tests of its readers.
#pragma once
#include "ops/tape.h"

namespace sparkinfer {

// Weights here are never read: any address that is not null will do.
inline const void* some_bytes() {
    static const int64_t kBytes = 0;
    return &kBytes;
}
inline Weight matrix(int32_t out, int32_t in, Quant quant = Quant::f32, int32_t experts = 1) {
    Weight w;
    w.data = some_bytes();
    w.experts = experts;
    w.out = out;
    w.in = in;
    w.quant = quant;
    return w;
}

// A dense layer and a head: D = 64, F = 96, H = 4, G = 2, d = 16, V = 128.
inline Tape dense_tape(int32_t rows, OutputKind kind) {
    Tape t({}, {}, nullptr);
    Tensor x = t.embed(matrix(128, 64, Quant::q8_0), rows);
    {
        auto scope = t.scope();
        const Weight parts[] = {matrix(64, 64, Quant::q4_1), matrix(32, 64, Quant::q4_1),
                                matrix(32, 64, Quant::q8_0)};
        auto qkv = t.norm_linear(x, matrix(1, 64), 1e-5f, parts);
        Attention op{};
        op.q = qkv[0], op.k = qkv[1], op.v = qkv[2];
        op.heads = 4;
        op.kv.heads = 2, op.kv.width = 16, op.kv.dtype = DType::f32;
        op.rope.dims = 16, op.rope.frequency = matrix(1, 8);
        Tensor a = t.attention(op);
        t.linear_add(a, matrix(64, 64, Quant::q4_1), x);
    }
    {
        auto scope = t.scope();
        Tensor h =
            t.linear_glu(x, matrix(1, 64), 1e-5f, matrix(96, 64, Quant::q4_1), matrix(96, 64, Quant::q4_1));
        t.linear_add(h, matrix(64, 96, Quant::q4_1), x);
    }
    Batch batch;
    batch.rows = rows;
    batch.output = kind;
    batch.outputs = 1;
    t.output(x, matrix(1, 64), 1e-5f, matrix(128, 64, Quant::q8_0), batch);
    return t;
}

}  // namespace sparkinfer
