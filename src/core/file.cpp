#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/unfinished.h"

namespace sparkinfer {

namespace {

// A file descriptor that closes itself.
struct Descriptor {
    explicit Descriptor(int number) : fd(number) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
    int fd;
};

Error system_trouble(const std::string& path, const char* what, int code) {
    const std::string reason = std::generic_category().message(code);
    if (code == ENOMEM || code == EMFILE || code == ENFILE)
        return out_of_resources("{}: cannot {}: {}", path, what, reason);
    return bad_input("{}: cannot {}: {}", path, what, reason);
}

// Opens for reading without waiting for the other end of a pipe.
int open_quietly(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

// The size of the regular file behind fd.
Result<uint64_t> regular_size(const std::string& path, int fd) {
    struct stat info = {};
    if (::fstat(fd, &info) != 0) return system_trouble(path, "read file information", errno);
    if (S_ISDIR(info.st_mode)) return bad_input("{}: is a directory, expected a file", path);
    if (!S_ISREG(info.st_mode)) return bad_input("{}: is a pipe or device, expected a regular file", path);
    return uint64_t(info.st_size);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
    const Descriptor file(open_quietly(path));
    if (file.fd < 0) return system_trouble(path, "open the file", errno);
    MappedFile mapped;
    mapped.path_ = path;
    TRY(mapped.size_, regular_size(path, file.fd));
    if (mapped.size_ == 0) return mapped;
    void* start = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (start == MAP_FAILED) {
        mapped.size_ = 0;
        return system_trouble(path, "map the file", errno);
    }
    mapped.data_ = static_cast<const std::byte*>(start);
    mapped.watched_ = watch(mapped);
    return mapped;
}

// What the handler of SIGBUS must know of a map. Entries are made under a mutex, taken again, and never
// freed, so that the handler can walk them at any time; one in use does not change.
struct MappedFile::Watched {
    std::atomic<const std::byte*> data = nullptr;  // null: free
    uint64_t size = 0;
    std::string path;
    Watched* next = nullptr;

    static std::atomic<Watched*> first;
    static std::atomic<void (*)()> before;
    static std::mutex mutex;
};
std::atomic<MappedFile::Watched*> MappedFile::Watched::first = nullptr;
std::atomic<void (*)()> MappedFile::Watched::before = nullptr;
std::mutex MappedFile::Watched::mutex;

MappedFile::Watched* MappedFile::watch(const MappedFile& file) {
    const std::lock_guard lock(Watched::mutex);
    Watched* entry = Watched::first;
    while (entry && entry->data) entry = entry->next;
    const bool fresh = !entry;
    if (fresh) entry = new Watched;
    entry->size = file.size_;
    entry->path = file.path_;
    entry->data = file.data_;
    if (fresh) {
        entry->next = Watched::first;
        Watched::first = entry;
    }
    return entry;
}

namespace {

// A line put together without allocating; what does not fit is left out.
class Line {
  public:
    Line& text(std::string_view text) {
        for (const char c : text)
            if (size_ < sizeof bytes_) bytes_[size_++] = uint8_t(c) < 0x20 || c == 0x7f ? '?' : c;
        return *this;
    }
    Line& number(uint64_t value) {
        char digits[20];
        const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
        return text({digits, size_t(end - digits)});
    }
    void write() {
        bytes_[std::min(size_, sizeof bytes_ - 1)] = '\n';
        [[maybe_unused]] const ssize_t wrote =
            ::write(STDERR_FILENO, bytes_, std::min(size_ + 1, sizeof bytes_));
    }

  private:
    char bytes_[8192];
    size_t size_ = 0;
};

}  // namespace

void MappedFile::on_lost_page(int, siginfo_t* info, void*) {
    const auto* at = static_cast<const std::byte*>(info->si_addr);
    for (const Watched* entry = Watched::first; entry; entry = entry->next) {
        const std::byte* data = entry->data;
        if (!data || at < data || at >= data + entry->size) continue;
        if (const auto before = Watched::before.load()) before();
        static std::atomic_flag said;
        if (!said.test_and_set())
            Line()
                .text("sparkinfer: error: ")
                .text(entry->path)
                .text(": byte ")
                .number(uint64_t(at - data))
                .text(" cannot be read any more: the file has become shorter than its ")
                .number(entry->size)
                .text(" bytes, or its disk fails")
                .write();
        end_process(int(ErrorKind::bad_input));
    }
    std::signal(SIGBUS, SIG_DFL);  // not ours: its usual effect
    std::raise(SIGBUS);
}

void watch_lost_pages(void (*before)()) {
    MappedFile::Watched::before = before;
    struct sigaction action = {};
    action.sa_sigaction = MappedFile::on_lost_page;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      watched_(std::exchange(other.watched_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(watched_, other.watched_);
    return *this;
}

MappedFile::~MappedFile() {
    if (watched_) watched_->data = nullptr;
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes) {
    const Descriptor file(open_quietly(path));
    if (file.fd < 0) return system_trouble(path, "open the file", errno);
    TRY(const uint64_t size, regular_size(path, file.fd));
    if (size > max_bytes) return bad_input("{}: has {} bytes, expected at most {}", path, size, max_bytes);
    std::string text(size, '\0');
    uint64_t done = 0;
    while (done < size) {
        const ssize_t got = ::read(file.fd, text.data() + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return system_trouble(path, "read the file", errno);
        if (got == 0) break;  // it shrank meanwhile
        done += uint64_t(got);
    }
    text.resize(done);
    return text;
}

}  // namespace sparkinfer
