// GGUF: the input is the beginning of a file. First as it is, then with zeros for the weights behind it.
#include "load/gguf.h"

#include "model_files.h"

using namespace sparkinfer;

namespace {
constexpr uint64_t kWeightBytes = uint64_t(16) << 20;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span bytes = std::as_bytes(std::span(data, size));
    const auto contents = parse_gguf(bytes, "fuzz.gguf");
    if (contents.ok()) {
        for (const StoredTensor& t : contents.value().tensors)
            CHECK(t.file_offset <= size && t.bytes <= size - t.file_offset, "{}: {} bytes at {} of {}",
                  t.name, t.bytes, t.file_offset, size);
    } else {
        check_error(contents.error());
    }
    static MemoryFile file;
    file.set(text_of(data, size), size + kWeightBytes);
    use_model(file.path());
    return 0;
}
