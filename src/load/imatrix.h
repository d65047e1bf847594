// imatrix.h — importance matrices as llama.cpp's llama-imatrix writes them: for each matrix of a model, the
// mean square of each input column over a text.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/result.h"

namespace sparkinfer {

struct Imatrix {
    // Tensor name -> one value a column, expert after expert; all finite and at least 0.
    std::map<std::string, std::vector<float>, std::less<>> columns;
    std::string dataset;  // what was read to make it; may be empty
    int64_t chunks = 0;   // of that
};

// Reads a GGUF with general.type "imatrix", or the older format without a header. Errors: a file that is
// neither, ends early, or holds counts or values that make no sense.
Result<Imatrix> read_imatrix(const std::string& path);

}  // namespace sparkinfer
