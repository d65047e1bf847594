// npy.h — NumPy's .npy arrays, as far as perplexity needs them: reading 1-D integer arrays, writing 2-D
// float32 ones row by row. Format: numpy.lib.format, versions 1.0, 2.0 and 3.0.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/new_file.h"
#include "core/result.h"

namespace sparkinfer {

// The values of a 1-D array of type <i4 or <i8, checked against the size of `bytes` before anything is
// allocated. `name` stands for the file in errors; values must lie in [0, 2^31).
Result<std::vector<int32_t>> parse_npy_ids(const std::string& name, std::string_view bytes);
Result<std::vector<int32_t>> read_npy_ids(const std::string& path);

// Writes a float32 array [rows, columns] row by row; the file appears with commit(), or not at all.
class NpyWriter {
  public:
    static Result<NpyWriter> create(const std::string& path, int64_t rows, int64_t columns);

    // REQUIRES: row.size() == columns, at most `rows` calls.
    Result<void> write_row(std::span<const float> row);
    // Errors: the disk's. REQUIRES: all rows were written.
    Result<void> commit();

  private:
    NpyWriter(NewFile file, int64_t rows, int64_t columns)
        : file_(std::move(file)), rows_(rows), columns_(columns) {}

    NewFile file_;
    int64_t rows_ = 0, columns_ = 0, written_ = 0;
};

}  // namespace sparkinfer
