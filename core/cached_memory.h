// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_CACHED_MEMORY_H_
#define MILLRACE_CORE_CACHED_MEMORY_H_

// What allocators keep for the next request, given back to the system: for a program that has just
// let go of much and will not want it again soon (a server that unloads a model).

#include <cstdint>

namespace millrace {

// Frees the blocks that DefaultAllocator() (core/allocator.h) keeps, those of the calling thread
// among them, and what the C library keeps free. Other threads' caches stay: 4 MiB each at most.
// The number of the allocator's bytes that were freed, to what other threads take and give
// meanwhile. Any thread, at any time; milliseconds, in which others may have to ask the system.
int64_t ReleaseCachedMemory();

}  // namespace millrace

#endif  // MILLRACE_CORE_CACHED_MEMORY_H_
