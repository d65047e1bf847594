// packed_rows.cuh — rows of x as the matrix kernels for many rows read them: 16 bits an element, 64 columns
// of a row in 128 bytes.
//
//   data = [plane][columns / 64][padded rows][128 bytes], the eight 16-byte chunks of a piece at chunk ^ (row
//   & 7): any run of rows that begins at a multiple of 8 is, for one 64 columns, one contiguous copy into
//   shared memory, there without bank conflicts for ldmatrix, and what wgmma calls K-major with a 128-byte
//   swizzle.
//
// One plane: FP16 times a power of two that is the row's own (`factor` undoes it), so that its largest entry
// lies in [2^14, 2^15). Two planes: BF16 of x and BF16 of what that leaves, no factor.
#pragma once
#include <cstdint>

#include "core/hd.h"

namespace sparkinfer::cuda {

constexpr int kPackColumns = 64;  // of a piece
constexpr int kPackRows = 8;      // runs of rows begin at multiples of it
constexpr int kPackSlack = 64;    // rows that may be read behind the last: readers take them in fixed numbers

struct PackedRows {
    std::byte* data;
    float* factor;    // [padded]: x = stored · factor; null with two planes
    int32_t padded;   // rows, a multiple of kPackRows
    int32_t columns;  // a multiple of 64; those beyond x's are zero
    HD int64_t plane_bytes() const { return int64_t(columns) * padded * 2; }
    // Bytes from `data` to the 16-byte chunk (of 8 columns) of a row.
    HD int64_t chunk_at(int row, int chunk) const {
        return (int64_t(chunk / 8) * padded + row) * 128 + ((chunk % 8) ^ (row & 7)) * 16;
    }
};

// The rows of an expert op in the order of their experts. A *pair* is (row t, j of its K experts), t·K + j; a
// *place* is where the pair lies in that order. An expert's places begin at a multiple of kPackRows.
struct ExpertOrder {
    int32_t* place;  // [pairs] -1: the row is absent
    int32_t* pair;   // [places] -1: nothing lies there
    int4* tile;      // {expert, first place, pairs, 0}: at most tile_rows places of one expert
    int32_t* tiles;  // how many there are
    int32_t pairs, places, most_tiles, tile_rows;
};

}  // namespace sparkinfer::cuda
