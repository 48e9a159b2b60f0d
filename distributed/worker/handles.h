// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_HANDLES_H_
#define MILLRACE_DISTRIBUTED_WORKER_HANDLES_H_

// Handles: what masters and workers call sessions and graphs.
//
// TensorFlow's masters and ours make 16 bytes. The programs that open sessions decide how much of
// them a worker remembers, so it opens none under a longer handle than kMaxHandleBytes, and keeps
// and shows no more of one that it does not know.
//
// Thread-safety: functions of their arguments.

#include <cstddef>

#include "absl/strings/string_view.h"

namespace millrace {

inline constexpr size_t kMaxHandleBytes = 256;

// A handle, or the name of a container, as messages show it.
inline absl::string_view ShownHandle(absl::string_view handle) {
  return handle.substr(0, kMaxHandleBytes);
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_HANDLES_H_
