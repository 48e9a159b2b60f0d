// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_CHECKPOINT_V1_H_
#define MILLRACE_SAVER_CHECKPOINT_V1_H_

// Checkpoints of TensorFlow's first format: each file is a sorted table; key "" holds a
// SavedTensorSlices message that lists tensors and their slices, every other key one slice with
// its data as a TensorProto. A checkpoint may be several files, given by a pattern.
//
// The files are not trusted: structure, checksums, dtypes and sizes are checked before use.
//
// Thread-safety: a reader may be used from many threads.
// Failure: NotFound "Key K not found in checkpoint"; DataLoss with the file and what is wrong.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/table_reader.h"
#include "core/tensor.h"
#include "saver/tensor_slice.h"

namespace millrace {

class CheckpointV1Reader {
 public:
  struct Entry {
    std::string name;
    DType dtype = DT_INVALID;
    Shape shape;
    std::vector<TensorSlice> slices;  // never empty
  };

  // `pattern`: a path whose last part may have '?' (any character) and '*' (any characters), or the
  // common part of the names "<pattern>-00000-of-00002", ...
  static StatusOr<std::unique_ptr<CheckpointV1Reader>> Open(FileSystem* fs,
                                                            const std::string& pattern);

  // Sorted by name.
  const std::vector<Entry>& entries() const { return entries_; }
  StatusOr<Entry> Find(absl::string_view name) const;
  StatusOr<Tensor> Read(absl::string_view name) const;
  StatusOr<Tensor> ReadSlice(absl::string_view name, const TensorSlice& slice) const;

 private:
  CheckpointV1Reader() = default;

  std::string pattern_;
  std::vector<Entry> entries_;
  std::vector<std::unique_ptr<TableReader>> tables_;
};

// The files of a checkpoint of the first format, sorted; empty when there are none.
std::vector<std::string> CheckpointV1Files(FileSystem* fs, const std::string& pattern);

}  // namespace millrace

#endif  // MILLRACE_SAVER_CHECKPOINT_V1_H_
