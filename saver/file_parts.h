// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_FILE_PARTS_H_
#define MILLRACE_SAVER_FILE_PARTS_H_

// RunParts: file work in parts, on several threads of an I/O pool.
//
// The calling thread does parts, too, and waits only for parts that others have begun: it may be a
// thread of the pool itself, however full that is.
//
// Thread-safety: any thread. Failure: the first error of a part; parts that have not begun by then
// are left out.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/io_pool.h"
#include "core/status.h"

namespace millrace {

// Calls part(0) to part(n - 1), several at a time, from at most `threads` threads. A null pool: the
// calling thread alone.
Status RunParts(IoPool* pool, int threads, int64_t n, absl::FunctionRef<Status(int64_t i)> part);

}  // namespace millrace

#endif  // MILLRACE_SAVER_FILE_PARTS_H_
