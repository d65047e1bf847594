// matmul.h — products with weights as they lie in the file: a few rows are taken apart at a time, each once,
// and multiplied with every activation row: as float32 (dot.h), or the codes with integers
// (integer_products.h).
#pragma once
#include <cstdint>
#include <initializer_list>

#include "cpu/integer_rows.h"
#include "cpu/run.h"

namespace sparkinfer {

// Weight rows that are taken apart together: few enough for the second-level cache, enough to amortise
// loading x.
int chunk_rows(int64_t k);
constexpr int kMaxChunkRows = 32;
inline int64_t chunks_of(const Weight& w) { return (w.out + chunk_rows(w.in) - 1) / chunk_rows(w.in); }

// Room for each thread's decoded or packed rows. most_k: the widest weight it will see.
struct DecodeBuffers {
    int64_t each;  // floats
    float* values;
    DecodeBuffers(Carver& c, int64_t most_k, int threads);
    float* of(int worker) const { return values + worker * each; }
};

// A chunk of the rows of one matrix.
struct RowChunk {
    int first, rows;
};
RowChunk chunk_of(const Weight& w, int64_t chunk);

// Rows of activations, wherever they lie.
struct ActivationRows {
    const float* const* values;
    const IntegerGroup* const* integers;  // looked at unless kind is f32
    Activations kind;
    ActivationRows from(int64_t row) const { return {values + row, integers + row, kind}; }
};

// In scratch: pointers to rows of `width` values, and their integers.
struct RowSpace {
    int64_t width;
    const float** values;           // [count] set by the owner
    const IntegerGroup** integers;  // [count]
    RowSpace(Carver& c, int64_t count, int64_t width);
    // Makes integers of the values of rows begin … end, unless kind is f32.
    void convert(int64_t begin, int64_t end, Activations kind) const;
    void convert(Pool& pool, int64_t count, Activations kind) const;
    ActivationRows rows(Activations kind) const { return {values, integers, kind}; }

  private:
    IntegerGroup* groups_;  // [count, width / 32]
};

// The form in which products with these weights want activations: f32 if none is of integers.
Activations wanted(const Context& context, std::initializer_list<const Weight*> weights);

// out[t · out_stride + r] = x[t] · w[expert, chunk.first + r]   for the chunk's rows r and t < tokens
// x: [tokens] rows of w.in values. buffer: a thread's, of DecodeBuffers.
void multiply_chunk(const Weight& w, int expert, RowChunk chunk, const ActivationRows& x, int tokens,
                    float* out, int64_t out_stride, float* buffer);

// The one row of a vector parameter [1, n] (or all rows of a small matrix) as float32, in scratch.
struct VectorParameter {
    float* values;  // [w.out · w.in], null when w is empty
    VectorParameter(Carver& c, const Weight& w);
};

// n[t] = x[t] / sqrt(mean(x²) + eps) · norm, in scratch.
struct NormedRows {
    VectorParameter norm;
    float* values;  // [T, D]
    RowSpace space;
    NormedRows(Carver& c, const Weight& norm, int64_t count, int64_t width);
    ActivationRows compute(Pool& pool, const Tensor& x, float eps, Activations kind);
};

// The rows of x.
struct TensorRows {
    RowSpace space;
    TensorRows(Carver& c, const Tensor& x);
};

}  // namespace sparkinfer
