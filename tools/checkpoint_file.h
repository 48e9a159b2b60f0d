// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_CHECKPOINT_FILE_H_
#define MILLRACE_TOOLS_CHECKPOINT_FILE_H_

// CheckpointFile: a checkpoint of either of TensorFlow's formats, as tools read it: what is in it,
// and each tensor whole, whatever slices it was stored in.
//
// Thread-safety: as its readers: any thread. Failure: NotFound where there is no checkpoint, else
// what saver/tensor_bundle.h and saver/checkpoint_v1.h say.

#include <functional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/file_system.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

struct CheckpointFile {
  struct Entry {
    std::string name;
    DType dtype = DT_INVALID;
    Shape shape;
  };
  std::string prefix;
  std::vector<Entry> entries;  // sorted by name
  int num_shards = 0;
  bool is_compressed = false;  // a block of the index, or of a file of the first format
  std::function<StatusOr<Tensor>(const std::string& name)> read;

  // Null: it has none of this name.
  const Entry* Find(const std::string& name) const;

  // What CheckpointNamed (saver/checkpoint_name.h) makes of `path`.
  static StatusOr<CheckpointFile> Open(FileSystem* fs, const std::string& path);
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_CHECKPOINT_FILE_H_
