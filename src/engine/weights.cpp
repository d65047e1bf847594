#include "engine/weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

namespace sparkinfer {

CheckpointBytes::CheckpointBytes(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), files_(checkpoint.files().size(), -1) {
    for (const StoredTensor& t : checkpoint.tensors())
        if (t.bytes > 0) tensors_.emplace(t.data, &t);
}

CheckpointBytes::~CheckpointBytes() {
    for (int fd : files_)
        if (fd >= 0) ::close(fd);
}

Result<int> CheckpointBytes::file(int index) {
    const std::lock_guard lock(mutex_);
    int& fd = files_[size_t(index)];
    const std::string& path = checkpoint_.files()[size_t(index)].path;
    if (fd < 0) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return bad_input("{}: cannot be opened: {}", path, std::strerror(errno));
    return fd;
}

Result<void> CheckpointBytes::read(const void* view, std::span<std::byte> to) {
    const auto* at = static_cast<const std::byte*>(view);
    auto next = tensors_.upper_bound(at);
    const StoredTensor* t = next == tensors_.begin() ? nullptr : std::prev(next)->second;
    if (t == nullptr || at >= t->data + t->bytes) {
        std::memcpy(to.data(), view, to.size());
        return {};
    }
    CHECK(to.size() <= t->bytes - uint64_t(at - t->data), "{}: a view of {} bytes reaches over its end",
          t->name, to.size());
    TRY(const int fd, file(t->file));
    uint64_t offset = t->file_offset + uint64_t(at - t->data);
    while (!to.empty()) {
        const ssize_t n = ::pread(fd, to.data(), to.size(), off_t(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return bad_input("{}: {} bytes of tensor {} at offset {} cannot be read: {}",
                             checkpoint_.files()[size_t(t->file)].path, to.size(), t->name, offset,
                             n < 0 ? std::strerror(errno) : "the file has become shorter");
        to = to.subspan(size_t(n));
        offset += uint64_t(n);
    }
    return {};
}

std::vector<WeightGroup> PlacedWeights::groups(const Tape& tape) {
    std::vector<WeightGroup> groups;
    std::set<Key> seen;
    for (const Instr& i : tape.instrs()) {
        WeightGroup group{i.code, {}};
        bool fresh = false;
        visit(i, [&](const auto& op) {
            for_each_weight(op, [&](const Weight& w) {
                group.weights.push_back(w);
                fresh = seen.insert(key(i.code, w)).second || fresh;
            });
        });
        if (fresh) groups.push_back(std::move(group));
    }
    return groups;
}

Result<void> PlacedWeights::place(const Tape& tape, Backend& backend, ByteSource& source,
                                  const PlaceProgress& progress) {
    const std::vector<WeightGroup> given = groups(tape);
    TRY(const std::vector<std::vector<Weight>> answers, backend.place_all(given, source, progress));
    CHECK(answers.size() == given.size(), "{} groups placed of {}", answers.size(), given.size());
    for (size_t g = 0; g < given.size(); ++g) {
        const std::vector<Weight>& weights = given[g].weights;
        CHECK(answers[g].size() == weights.size(), "{} weights placed of {}", answers[g].size(),
              weights.size());
        for (size_t n = 0; n < weights.size(); ++n)
            placed_.insert_or_assign(key(given[g].op, weights[n]), answers[g][n]);
    }
    return {};
}

void PlacedWeights::bind(Tape& tape) const {
    for (Instr& i : tape.instrs())
        visit(i, [&](auto& op) {
            for_each_weight(op, [&](Weight& w) {
                const auto found = placed_.find(key(i.code, w));
                CHECK(found != placed_.end(), "{}: a weight [{}, {}] was never placed", op_name(i.code),
                      w.out, w.in);
                w = found->second;
            });
        });
}

}  // namespace sparkinfer
