// attention_page.h — the products of attention with one page of keys or values, for several queries at once.
//
// Each result is one sum in ascending order, so its bits do not depend on the queries beside it.
#pragma once
#include <cstdint>

namespace sparkinfer {

// scores[c · stride + j] = Σ_i q[i · columns + c] · k[j · d + i]   c < columns, j < count, i < d ascending
// Keys are read, and scores written, up to the next multiple of sixteen above count; k has so many rows.
// turned: room for 16 · d floats, 64-aligned.
struct PageScores {
    const float* q;  // [d, columns]
    int columns;
    const float* k;
    int count, d;
    float* scores;
    int64_t stride;
    float* turned;
};
void page_scores(const PageScores& a);

// out[c][i] = Σ_j p[c][j] · v[j · v_stride + i]   c < columns, i < width, j < rows ascending
struct PageSums {
    const float* const* p;  // [columns] of rows
    int columns;
    const float* v;
    int64_t v_stride;
    int rows, width;
    float* const* out;  // [columns] of width
};
void page_sums(const PageSums& a);

}  // namespace sparkinfer
