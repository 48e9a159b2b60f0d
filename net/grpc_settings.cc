// SPDX-License-Identifier: Apache-2.0
#include "net/grpc_settings.h"

#include <malloc.h>

#include <cstdlib>

namespace millrace {
namespace {

// What malloc keeps free at the end of a heap before it gives memory back to the system.
constexpr int kMallocKeepsBytes = 64 << 20;

}  // namespace

// With glibc's own limit of 128 KiB each megabyte of a tensor costs new pages: a third of the time
// of a large pull (transport_benchmark).
void KeepFreedMemory() {
  static const bool done = [] {
    if (std::getenv("GLIBC_TUNABLES") == nullptr &&
        std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) {
      mallopt(M_TRIM_THRESHOLD, kMallocKeepsBytes);
    }
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace millrace
