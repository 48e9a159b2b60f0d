// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TESTING_COUNTED_NEW_H_
#define MILLRACE_CORE_TESTING_COUNTED_NEW_H_

// Replaces operator new of the test that links it: what the calling thread allocates is counted,
// and one allocation of it can be made to fail. Such a test is kept from the sanitizers, which
// replace it themselves; valgrind --soname-synonyms=somalloc=nouserintercepts leaves it alone.

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace millrace::testing {

// By the calling thread so far; the second less the blocks that it has freed.
int64_t Allocations();
int64_t LiveBlocks();

// The k-th allocation of the calling thread from here on fails (std::bad_alloc); for 0 none does.
void FailAllocation(int64_t k);

// Calls `body` with its k-th allocation failing (std::bad_alloc), for k = 1, 2, ... until it needs
// fewer; `after` follows each call. Returns how many have failed.
int64_t ForEveryAllocation(absl::FunctionRef<void()> body,
                           absl::FunctionRef<void(int64_t k, bool failed)> after);

}  // namespace millrace::testing

#endif  // MILLRACE_CORE_TESTING_COUNTED_NEW_H_
