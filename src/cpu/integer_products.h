// integer_products.h — products of quantised weights with activations as integers.
//
//   y[t][r] = Σ over groups g of 32 columns, ascending:  scale_w · scale_x · Σ codes · integers
//                                                        + min_w · scale_x · Σ integers
//
// with scale_w · codes + min_w = the weights as the format's decoder gives them, but for the rounding of that
// sum. The inner sums are exact integers; what is added to y in float32 is the same for one row and for many,
// for AVX2 and AVX-512. So a result's bits depend on its two rows alone.
//
// Weights are packed sixteen rows at a time into a tile that stays in the first-level cache, each once for
// all activation rows of the step.
#pragma once
#include <cstdint>

#include "cpu/integer_rows.h"
#include "quant/quant.h"

namespace sparkinfer {

constexpr int kTileRows = 16;
constexpr int kTileGroups = 24;  // most groups of 32 columns in a tile

// 32 columns of sixteen rows, the format's own blocks taken apart.
struct alignas(64) PackedGroup {
    uint8_t codes[8][kTileRows][4];  // [i][row]: columns 4i … 4i + 3
    float scale[2][kTileRows];       // one for each half of the columns, or only the first for both
    float min[2][kTileRows];
};
static_assert(sizeof(PackedGroup) == 768);

// Whether this machine can, the format's blocks can be packed, and no factor follows.
bool has_integer_form(const Weight& w);

// Where the weights lie that are wanted after a tile: `lines` cache lines in each row from `row` on. A tile
// is too small for the machine to see by itself where reading goes on.
struct NextTile {
    const std::byte* row = nullptr;
    int64_t stride = 0;
    int lines = 0;
};
// to[g] = columns 32 · (first_group + g) … of `rows` ≤ 16 rows from `row` on; g < groups ≤ kTileGroups. Rows
// behind the last are copies of it. first_group: a multiple of the format's block.
struct TilePlace {
    int expert, row, rows, first_group, groups;
};
void pack_tile(const Weight& w, const TilePlace& place, PackedGroup* to, const NextTile& next = {},
               IntegerForm form = integer_form());

// Of the tile after `place`, whatever of it this matrix has.
NextTile next_tile(const Weight& w, const TilePlace& place);

// out[t · out_stride + r] (+)= the tile's part of the sum, t < tokens; the sum begins with first_group 0.
struct TileProduct {
    const PackedGroup* tile;
    const IntegerGroup* const* x;  // [tokens] whole rows
    int tokens, rows, first_group, groups;
    bool halves, planes;  // a scale for each half; 16-bit activations
    float* out;
    int64_t out_stride;
    NextTile next = {};  // asked for on the way
};
void multiply_tile(const TileProduct& p, IntegerForm form = integer_form());

bool has_half_scales(Quant quant);

}  // namespace sparkinfer
