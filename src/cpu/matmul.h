// matmul.h — products with weights as they lie in the file: a few rows are decoded at a time, each once, and
// multiplied with every activation row.
#pragma once
#include <cstdint>

#include "cpu/run.h"

namespace sparkinfer {

// Weight rows that are decoded together: few enough for the second-level cache, enough to amortise loading x.
int chunk_rows(int64_t k);
constexpr int kMaxChunkRows = 32;
inline int64_t chunks_of(const Weight& w) { return (w.out + chunk_rows(w.in) - 1) / chunk_rows(w.in); }

// Room for each thread's decoded rows. most_k: the widest weight it will see.
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

// out[t · out_stride + r] = x[t] · w[expert, chunk.first + r]   for the chunk's rows r and t < tokens
// x: [tokens] pointers to rows of w.in values. buffer: a thread's, of DecodeBuffers.
void multiply_chunk(const Weight& w, int expert, RowChunk chunk, const float* const* x, int tokens,
                    float* out, int64_t out_stride, float* buffer);

// The one row of a vector parameter [1, n] (or all rows of a small matrix) as float32, in scratch.
struct VectorParameter {
    float* values;  // [w.out · w.in], null when w is empty
    VectorParameter(Carver& c, const Weight& w);
};

// n[t] = x[t] / sqrt(mean(x²) + eps) · norm, in scratch, with a pointer to each row.
struct NormedRows {
    VectorParameter norm;
    float* values;       // [T, D]
    const float** rows;  // [T]
    NormedRows(Carver& c, const Weight& norm, int64_t count, int64_t width);
    void compute(Pool& pool, const Tensor& x, float eps);
};

// Pointers to the rows of x, in scratch.
struct RowPointers {
    const float** rows;  // [T]
    RowPointers(Carver& c, const Tensor& x);
};

}  // namespace sparkinfer
