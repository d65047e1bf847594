#include "quant/quant.h"

#include <algorithm>
#include <iterator>

#include "quant/formats.h"

namespace sparkinfer {

namespace {

struct GgmlType {
    uint32_t id;
    const char* name;
    int block, bytes;
};

// Every type id of the GGUF format that is in use, also those without a decoder here: their geometry lets a
// file be validated and listed.
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

const GgmlType* find_type(uint32_t id) {
    const auto* found = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                                     [id](const GgmlType& type) { return type.id == id; });
    return found == std::end(kGgmlTypes) ? nullptr : found;
}

}  // namespace

const char* quant_name(Quant q) {
    static constexpr const char* kNames[] = {
#define X(name, text, id) text,
        FOREACH_QUANT(X)
#undef X
    };
    return kNames[int(q)];
}

bool quant_from_ggml(uint32_t type_id, Quant* out) {
#define X(name, text, id)                        \
    if ((id) >= 0 && int64_t(type_id) == (id)) { \
        *out = Quant::name;                      \
        return true;                             \
    }
    FOREACH_QUANT(X)
#undef X
    return false;
}

const char* ggml_type_name(uint32_t type_id) {
    const GgmlType* type = find_type(type_id);
    return type ? type->name : "unknown";
}

bool ggml_type_geometry(uint32_t type_id, int* block, int* bytes) {
    const GgmlType* type = find_type(type_id);
    if (!type) return false;
    *block = type->block;
    *bytes = type->bytes;
    return true;
}

int quant_block(Quant q) {
    return with_format(q, [](auto f) { return f.block; });
}

int64_t row_bytes(Quant q, int64_t in) {
    return with_format(q, [&](auto f) { return in / f.block * f.bytes; });
}

int64_t weight_bytes(const Weight& w) {
    return with_format(w.quant, [&](auto f) {
        int64_t bytes = int64_t(w.experts) * w.out * (w.in / f.block) * f.bytes;
        if constexpr (f.split) bytes += f.scale_bytes(w.experts, w.out, w.in);
        return bytes + int64_t(w.scale_count) * 4;
    });
}

}  // namespace sparkinfer
