// clones.h — functions that are compiled for several instruction sets.
#pragma once

// Before a function: one copy per instruction-set level, chosen when the program is loaded. Sanitizers
// instrument the choosing function, which runs before they are ready, so they get the plain copy.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer) && !__has_feature(memory_sanitizer)
#define SPARKINFER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#else
#define SPARKINFER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#endif
#ifndef SPARKINFER_CLONES
#define SPARKINFER_CLONES
#endif
