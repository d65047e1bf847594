// machine.h — what this machine offers: cores, memory, read bandwidth; and what this process has used.
#pragma once
#include <cstdint>
#include <string>

namespace sparkinfer {

// Physical cores this process may run on (affinity, and a container's CPU limit): hyperthreads of one core
// count once. At least 1.
int usable_cores();

// Bytes of memory that can be had without swapping, also under a container's limit; INT64_MAX when unknown.
int64_t available_memory();

// Largest resident memory of this process so far, in bytes.
int64_t peak_resident_bytes();

// Bytes a second that `threads` threads read from memory together, the best of a few passes over a buffer
// much larger than a private cache. Takes about a third of a second.
double read_bandwidth(int threads);

// "Intel(R) Xeon(R) Processor"; "unknown" when the system does not say.
std::string cpu_name();

}  // namespace sparkinfer
