// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_CHECKPOINT_EDIT_H_
#define MILLRACE_TOOLS_CHECKPOINT_EDIT_H_

// Checkpoints made of checkpoints: with other names, other dtypes, the mean of several; from
// numpy's files and into them; and what differs between two.
//
// Tensors are read and written one at a time. What is written is a bundle (TensorFlow's V2 format),
// durable and whole or not there (saver/tensor_bundle.h); tensors that were stored in slices are
// whole in it.
//
// Thread-safety: pure functions of files. Failure: InvalidArgument for edits that fit no tensor or
// give two the same name, AlreadyExists where the output is there, the errors of the files.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/file_system.h"
#include "core/status.h"
#include "tools/checkpoint_file.h"

namespace millrace {

struct CheckpointEdit {
  // Names of tensors: OLD, NEW. Each must be there.
  std::vector<std::pair<std::string, std::string>> renamed = {};
  // Expressions of RE2 and what takes the place of each match ("\\1" is its first group), one after
  // the other, on names that are not in `renamed`.
  std::vector<std::pair<std::string, std::string>> replaced = {};
  // Tensors whose whole name matches the expression are kept, or left out. "": all, none.
  std::string kept = "", dropped = "";
  // Of floating tensors that are kept; DT_INVALID: as they are.
  DType dtype = DT_INVALID;
};

// How many tensors were written.
StatusOr<int64_t> EditCheckpoint(FileSystem* fs, const CheckpointFile& from,
                                 const CheckpointEdit& edit, const std::string& to);

// Floating tensors: the mean of all, added up in double. Others: those of the last one. All have
// the same names, dtypes and shapes.
StatusOr<int64_t> AverageCheckpoints(FileSystem* fs, absl::Span<const CheckpointFile> from,
                                     const std::string& to);

// Each array under its tensor's name.
StatusOr<int64_t> CheckpointToNpz(FileSystem* fs, const CheckpointFile& from,
                                  const std::string& npz);
StatusOr<int64_t> NpzToCheckpoint(FileSystem* fs, const std::string& npz, const std::string& to);

// Sentences, one for each difference: "only in A: NAME float [2,3]", "NAME: shape [2] and [3]",
// "NAME: 2 of 6 values differ, by at most 0.5". Values of floating tensors may differ by
// `tolerance`; NaN is equal to NaN.
StatusOr<std::vector<std::string>> DifferencesOf(const CheckpointFile& a, const CheckpointFile& b,
                                                 double tolerance);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_CHECKPOINT_EDIT_H_
