// faults.cpp — linked into faulty_sparkinfer, the program with calls that fail on demand. `--wrap` of the
// linker leads every call of the functions below here, from C++ and Rust alike; operator new is replaced.
//
// FAULT=kind:n      the n-th call of that kind fails (1: the first), or for kinds that begin with "short"
// moves one byte FAULT_REPORT=path at the end: a line "kind count" for each kind, and a line "leak what" for
// what is still held
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

extern "C" FILE* __real_fopen(const char* path, const char* mode);

namespace {

constexpr size_t kLargeBytes = 64 << 10;

enum Kind {
    open_file,
    map,
    read_file,
    short_read,
    write_file,
    short_write,
    rename_file,
    sync_file,
    close_file,
    stat_file,
    allocation,
    thread,
    kinds
};
struct KindFacts {
    const char* name;
    int error;
};
constexpr KindFacts kFacts[kinds] = {{"open", EMFILE},  {"map", ENOMEM},        {"read", EIO},
                                     {"short-read", 0}, {"write", ENOSPC},      {"short-write", 0},
                                     {"rename", EIO},   {"sync", EIO},          {"close", EIO},
                                     {"stat", EIO},     {"allocation", ENOMEM}, {"thread", EAGAIN}};

std::atomic<long> g_counts[kinds];
int g_kind = -1;
long g_call = 0;

// What is held, for the report. Places are few enough to be searched.
struct Held {
    static constexpr size_t kPlaces = 4096;
    std::atomic<const void*> places[kPlaces];
    const char* name;
    void take(const void* what) {
        for (auto& place : places) {
            const void* none = nullptr;
            if (place.compare_exchange_strong(none, what)) return;
        }
    }
    void give(const void* what) {
        for (auto& place : places) {
            const void* found = what;
            if (place.compare_exchange_strong(found, nullptr)) return;
        }
    }
};
Held g_files{.places = {}, .name = "a file"}, g_maps{.places = {}, .name = "a map"},
    g_blocks{.places = {}, .name = "an allocation"};

const void* as_pointer(int fd) { return reinterpret_cast<const void*>(intptr_t(fd) + 1); }

// Whether this call, the next of its kind, is the one to fail; sets errno then.
bool fails(Kind kind) {
    const bool failed = ++g_counts[kind] == g_call && g_kind == kind;
    if (failed) errno = kFacts[kind].error;
    return failed;
}

__attribute__((constructor(101))) void begin() {
    const char* fault = std::getenv("FAULT");
    const char* colon = fault ? std::strchr(fault, ':') : nullptr;
    if (!colon) return;
    for (int kind = 0; kind < kinds; ++kind)
        if (std::string_view(fault, size_t(colon - fault)) == kFacts[kind].name) g_kind = kind;
    g_call = std::atol(colon + 1);
}

// After every destructor of C++.
__attribute__((destructor(101))) void report() {
    const char* path = std::getenv("FAULT_REPORT");
    FILE* file = path ? __real_fopen(path, "w") : nullptr;
    if (!file) return;
    for (int kind = 0; kind < kinds; ++kind)
        std::fprintf(file, "%s %ld\n", kFacts[kind].name, g_counts[kind].load());
    for (const Held* held : {&g_files, &g_maps, &g_blocks})
        for (const auto& place : held->places)
            if (place.load()) std::fprintf(file, "leak %s\n", held->name);
    std::fclose(file);
}

void* allocate(size_t bytes, size_t alignment) {
    const bool large = bytes > kLargeBytes;
    if (large && fails(allocation)) return nullptr;
    void* block = alignment > alignof(std::max_align_t)
                      ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                      : std::malloc(bytes ? bytes : 1);
    if (large && block) g_blocks.take(block);
    return block;
}
void* allocate_or_throw(size_t bytes, size_t alignment) {
    if (void* block = allocate(bytes, alignment)) return block;
    throw std::bad_alloc();
}
void release(void* block, size_t bytes = SIZE_MAX) {
    if (block && bytes > kLargeBytes) g_blocks.give(block);
    std::free(block);
}

}  // namespace

void* operator new(size_t n) { return allocate_or_throw(n, 0); }
void* operator new[](size_t n) { return allocate_or_throw(n, 0); }
void* operator new(size_t n, std::align_val_t a) { return allocate_or_throw(n, size_t(a)); }
void* operator new[](size_t n, std::align_val_t a) { return allocate_or_throw(n, size_t(a)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n, 0); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n, 0); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t n) noexcept { release(p, n); }
void operator delete[](void* p, size_t n) noexcept { release(p, n); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t n, std::align_val_t) noexcept { release(p, n); }
void operator delete[](void* p, size_t n, std::align_val_t) noexcept { release(p, n); }

extern "C" {

// NAME(parameters): the wrapper, which calls __real_NAME(arguments).
#define WRAP(result, name, parameters) \
    result __real_##name parameters;   \
    result __wrap_##name parameters

static int opened(int fd) {
    if (fd >= 0) g_files.take(as_pointer(fd));
    return fd;
}

#define WRAP_OPEN(name)                                                               \
    int __real_##name(const char* path, int flags, ...);                              \
    int __wrap_##name(const char* path, int flags, ...) {                             \
        va_list more;                                                                 \
        va_start(more, flags);                                                        \
        const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                                 \
        return fails(open_file) ? -1 : opened(__real_##name(path, flags, mode));      \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

WRAP(int, mkostemp, (char* path, int flags)) {
    return fails(open_file) ? -1 : opened(__real_mkostemp(path, flags));
}
WRAP(FILE*, fopen, (const char* path, const char* mode)) {
    return fails(open_file) ? nullptr : __real_fopen(path, mode);
}
WRAP(FILE*, fopen64, (const char* path, const char* mode)) {
    return fails(open_file) ? nullptr : __real_fopen64(path, mode);
}
WRAP(int, close, (int fd)) {
    g_files.give(as_pointer(fd));
    const bool failed = fails(close_file);
    const int closed = __real_close(fd);
    return failed ? (errno = kFacts[close_file].error, -1) : closed;
}

static void* mapped(void* at) {
    if (at != MAP_FAILED) g_maps.take(at);
    return at;
}
WRAP(void*, mmap, (void* at, size_t bytes, int access, int flags, int fd, off_t offset)) {
    return fails(map) ? MAP_FAILED : mapped(__real_mmap(at, bytes, access, flags, fd, offset));
}
WRAP(void*, mmap64, (void* at, size_t bytes, int access, int flags, int fd, off64_t offset)) {
    return fails(map) ? MAP_FAILED : mapped(__real_mmap64(at, bytes, access, flags, fd, offset));
}
WRAP(int, munmap, (void* at, size_t bytes)) {
    g_maps.give(at);
    return __real_munmap(at, bytes);
}

static size_t shortened(Kind kind, size_t bytes) { return bytes > 1 && fails(kind) ? 1 : bytes; }

WRAP(ssize_t, read, (int fd, void* to, size_t bytes)) {
    return fails(read_file) ? -1 : __real_read(fd, to, shortened(short_read, bytes));
}
WRAP(ssize_t, pread, (int fd, void* to, size_t bytes, off_t at)) {
    return fails(read_file) ? -1 : __real_pread(fd, to, shortened(short_read, bytes), at);
}
WRAP(ssize_t, pread64, (int fd, void* to, size_t bytes, off64_t at)) {
    return fails(read_file) ? -1 : __real_pread64(fd, to, shortened(short_read, bytes), at);
}
// What cannot be written to stderr cannot be told.
WRAP(ssize_t, write, (int fd, const void* from, size_t bytes)) {
    if (fd == STDERR_FILENO) return __real_write(fd, from, bytes);
    return fails(write_file) ? -1 : __real_write(fd, from, shortened(short_write, bytes));
}
WRAP(ssize_t, pwrite, (int fd, const void* from, size_t bytes, off_t at)) {
    return fails(write_file) ? -1 : __real_pwrite(fd, from, shortened(short_write, bytes), at);
}
WRAP(int, ftruncate, (int fd, off_t bytes)) { return fails(write_file) ? -1 : __real_ftruncate(fd, bytes); }
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t bytes)) {
    return fails(write_file) ? -1 : __real_fallocate(fd, mode, at, bytes);
}
WRAP(int, rename, (const char* from, const char* to)) {
    return fails(rename_file) ? -1 : __real_rename(from, to);
}
WRAP(int, fsync, (int fd)) { return fails(sync_file) ? -1 : __real_fsync(fd); }
WRAP(int, stat, (const char* path, struct stat* to)) { return fails(stat_file) ? -1 : __real_stat(path, to); }
WRAP(int, fstat, (int fd, struct stat* to)) { return fails(stat_file) ? -1 : __real_fstat(fd, to); }

WRAP(int, pthread_create, (pthread_t * to, const pthread_attr_t* how, void* (*body)(void*), void* with)) {
    return fails(thread) ? kFacts[thread].error : __real_pthread_create(to, how, body, with);
}

}  // extern "C"
