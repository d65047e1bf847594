// A folder of safetensors. Parts: config.json, model.safetensors.index.json (empty: there is none), and the
// beginning of model.safetensors, with zeros for the weights behind it.
#include "load/safetensors.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "model_files.h"

using namespace sparkinfer;

namespace {

constexpr uint64_t kWeightBytes = uint64_t(64) << 20;

// The bytes of the file if its header tells the truth: to the end of the tensor that ends last.
uint64_t stated_size(std::string_view file) {
    uint64_t header = 0;
    if (file.size() < sizeof header) return file.size();
    std::memcpy(&header, file.data(), sizeof header);
    if (header > file.size() - sizeof header) return file.size();
    const auto json = parse_json(file.substr(sizeof header, header), "header");
    if (!json.ok() || !json.value().is_object()) return file.size();
    int64_t last = 0;
    for (const auto& [name, entry] : json.value().get_object()) {
        const Json* range = entry.is_object() ? json_find(entry.get_object(), "data_offsets") : nullptr;
        int64_t end = 0;
        if (range && range->is_array() && range->get_array().size() == 2 &&
            json_is_int(range->get_array()[1], &end))
            last = std::max(last, end);
    }
    return sizeof header + header + std::min<uint64_t>(uint64_t(last), kWeightBytes);
}

// One folder for the whole run, in memory where there is such a place.
class Folder {
  public:
    Folder() {
        const char* root = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
        path_ = fmt::format("{}/sparkinfer-fuzz-{}", root, ::getpid());
        std::filesystem::create_directory(path_);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() { std::filesystem::remove_all(path_); }
    const std::string& path() const { return path_; }
    void set(const char* name, std::string_view bytes, uint64_t size) const {
        const std::string path = path_ + "/" + name;
        std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
        if (size > bytes.size()) std::filesystem::resize_file(path, size);
    }
    void remove(const char* name) const { std::filesystem::remove(path_ + "/" + name); }

  private:
    std::string path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::vector<std::string> parts = parts_of(text_of(data, size), 3);
    const std::string& file = parts[2];
    const auto tensors = parse_safetensors(std::as_bytes(std::span(file)), "fuzz.safetensors");
    if (tensors.ok()) {
        for (const StoredTensor& t : tensors.value())
            CHECK(t.file_offset <= file.size() && t.bytes <= file.size() - t.file_offset,
                  "{}: {} bytes at {} of {}", t.name, t.bytes, t.file_offset, file.size());
    } else {
        check_error(tensors.error());
    }
    static const Folder folder;
    folder.set("config.json", parts[0], 0);
    if (parts[1].empty())
        folder.remove("model.safetensors.index.json");
    else
        folder.set("model.safetensors.index.json", parts[1], 0);
    folder.set("model.safetensors", file, stated_size(file));
    use_model(folder.path());
    return 0;
}
