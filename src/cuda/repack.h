// repack.h — from the file's blocks to slabs (quant/slab.h), on the device, without loss.
#pragma once
#include <cuda_runtime.h>

#include "quant/quant.h"

namespace sparkinfer::cuda {

// The slab form of a file format, if it has one.
bool slab_of(Quant file, Quant* slab);

// What a scan of the tensor's scales finds: bits of the greatest |d| and |dmin|, as non-negative floats order
// as integers.
struct ScaleRange {
    uint32_t d, dmin;
};
// Adds `rows` rows of raw blocks to `range` (device memory, zero before the first).
void scan_scales(const void* raw, int64_t rows, int32_t columns, Quant file, ScaleRange* range,
                 cudaStream_t stream);

// The powers of two by which D and M are stored, for the range found; the factors that undo them go into
// Weight::scale.
struct SlabPowers {
    int32_t d, m;
};
SlabPowers slab_powers(const ScaleRange& range, Quant file);

struct Repack {
    const std::byte* first;   // raw rows of the weight, or of the gate
    const std::byte* second;  // raw rows of the up; null: not paired
    std::byte* to;            // slabs
    int64_t slabs;            // to write: paired slabs take 8 rows of each
    int32_t columns;
    SlabPowers powers;
    int32_t* lossy;  // set to 1 when a scale does not survive its power of two
};
void repack(const Repack& r, Quant file, cudaStream_t stream);

// For each row of `count` slabs [count, 16] a power of two: times it, the row's scales fill FP16. Behind the
// slabs.
void row_powers(const std::byte* slabs, int64_t count, int32_t columns, Quant file, const SlabPowers& powers,
                int8_t* to, cudaStream_t stream);

}  // namespace sparkinfer::cuda
