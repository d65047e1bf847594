// .npy arrays of token ids.
#include "cli/npy.h"

#include "fuzz.h"

using namespace sparkinfer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto ids = parse_npy_ids("fuzz.npy", text_of(data, size));
    if (!ids.ok()) {
        check_error(ids.error());
        return 0;
    }
    CHECK(ids.value().size() * 4 <= size, "{} ids of {} bytes", ids.value().size(), size);
    for (const int32_t id : ids.value()) CHECK(id >= 0, "id {}", id);
    return 0;
}
