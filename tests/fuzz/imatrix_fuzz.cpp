// Importance matrices, as GGUF and in the older format.
#include "load/imatrix.h"

#include <cmath>

#include "fuzz.h"

using namespace sparkinfer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static MemoryFile file;
    file.set(text_of(data, size));
    const auto imatrix = read_imatrix(file.path());
    if (!imatrix.ok()) {
        check_error(imatrix.error());
        return 0;
    }
    size_t values = 0;
    for (const auto& [name, columns] : imatrix.value().columns) {
        values += columns.size();
        for (const float value : columns) CHECK(std::isfinite(value) && value >= 0, "{}: {}", name, value);
    }
    CHECK(values * sizeof(float) <= size, "{} values of {} bytes", values, size);
    return 0;
}
