// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_BUNDLE_PATHS_H_
#define MILLRACE_SAVER_BUNDLE_PATHS_H_

// The names of a bundle's files (saver/tensor_bundle.h). Thread-safety: pure functions.

#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// "<prefix>.index" and "<prefix>.data-00001-of-00003".
std::string BundleIndexPath(absl::string_view prefix);
std::string BundleDataPath(absl::string_view prefix, int shard, int num_shards);

// ".data-00000-of-00002": what follows the prefix in the name of a data file.
bool IsDataSuffix(absl::string_view text);
// "run/ckpt-7" of "run/ckpt-7.index", "run/ckpt-7.meta" and "run/ckpt-7.data-00000-of-00001"; any
// other path as it is. No file is looked at.
std::string CheckpointOfFile(absl::string_view path);

// "<prefix>.lock": there while somebody gives files their names; a killed process leaves it behind,
// unlocked.
std::string BundleLockPath(absl::string_view prefix);

}  // namespace millrace

#endif  // MILLRACE_SAVER_BUNDLE_PATHS_H_
