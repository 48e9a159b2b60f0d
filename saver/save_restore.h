// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_SAVE_RESTORE_H_
#define MILLRACE_SAVER_SAVE_RESTORE_H_

// Save and restore: tensors by name to and from checkpoints: what the ops SaveV2,
// RestoreV2 and MergeV2Checkpoints do, and their builders.
//
// Names come with shape-and-slice specs (saver/tensor_slice.h): "" for a whole tensor.
// Checkpoints of the first format (one table of SavedTensorSlices) are read, never written.
//
// Thread-safety: pure functions over files. They block: kernels call them on the I/O pool.
// Failure: the file system's, with the path; NotFound "Key K not found in checkpoint"; DataLoss;
// InvalidArgument for another dtype or shape than asked for (both printed).

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/node_builder.h"
#include "saver/behind_training.h"
#include "saver/tensor_bundle.h"

namespace millrace {

// Asked again and again, at least between tensors; not OK: the work ends with it.
using StopCheck = std::function<Status()>;

// The rows of tensors of numbers that belong together (a table and its slots), a few at a time, so
// that nobody needs all of them at once.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int num_members() const = 0;
  virtual DType dtype(int member) const = 0;
  virtual const Shape& shape(int member) const = 0;
  // The next bytes of each member, in row-major order, until the next call; all empty after the
  // last. At most `member_bytes` of a member, or one row.
  virtual StatusOr<absl::Span<const absl::string_view>> Next(size_t member_bytes) = 0;
  // While other sources are written, too: lets go of what would cost others memory by now. True: it
  // keeps some that may do so soon, and wants to be asked again before long.
  virtual bool LetGo() = 0;

  // The members of a piece are together at most so much, or one record: large enough that the
  // change of threads for each (saver/behind_training.h) is small against writing it.
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  // While some source keeps values: each step of training meanwhile may take memory of its own for
  // what it changes in them, until that is noticed before the next piece.
  static constexpr size_t kSmallPieceBytes = size_t{256} << 10;
};
struct RowsToSave {
  std::shared_ptr<RowSource> source;
  int member = 0;
};

// What a checkpoint stores under a name.
using ValueToSave = std::variant<Tensor, RowsToSave>;

// The three lists have one length. All or nothing: on error no file is left. Tensors are laid out
// in the order of the names; rows of one source are written together, after all other values.
// Sources are used through `in_front` (saver/behind_training.h) alone: they take locks of
// variables.
Status SaveTensors(
    FileSystem* fs, const std::string& prefix, absl::Span<const std::string> names,
    absl::Span<const std::string> specs, absl::Span<const ValueToSave> values,
    const StopCheck& stop = nullptr,
    InFront in_front = [](absl::FunctionRef<void()> step) { step(); });
// `path`: of the checkpoint, or of one of its files ("ckpt-7.index"). The three lists have one
// length. Tensors are read by several threads of `pool`, `stop` is asked by all of them.
StatusOr<std::vector<Tensor>> RestoreTensors(FileSystem* fs, const std::string& path,
                                             absl::Span<const std::string> names,
                                             absl::Span<const std::string> specs,
                                             absl::Span<const DType> dtypes,
                                             const StopCheck& stop = nullptr,
                                             IoPool* pool = nullptr);

// What RestoreTensors would be asked for.
struct RestoreRequest {
  std::vector<std::string> names, specs;
  std::vector<DType> dtypes;
};
// What RestoreTensors says before it reads the first tensor, of several requests at once: all that
// the index and the sizes of the files that they read can tell. The index is read once.
Status CheckRestores(FileSystem* fs, const std::string& prefix,
                     absl::Span<const RestoreRequest> requests);

// "<basename>-00001-of-00003". InvalidArgument unless 0 <= shard < num_shards.
StatusOr<std::string> ShardedName(const std::string& basename, int shard, int num_shards);

// --- Builders ------------------------------------------------------------------------------------

// Writes a checkpoint. prefix: string scalar; tensor_names and shape_and_slices: string vectors,
// one element per tensor. Numbers, bools and strings; Unimplemented for other dtypes.
inline Operation SaveV2(ScopeAt at, Output prefix, Output tensor_names, Output shape_and_slices,
                        absl::Span<const Output> tensors) {
  return NodeBuilder(at, "SaveV2")
      .Input(prefix)
      .Input(tensor_names)
      .Input(shape_and_slices)
      .Input(tensors)
      .Finish()
      .operation();
}
// Reads tensors of these dtypes from a checkpoint.
inline std::vector<Output> RestoreV2(ScopeAt at, Output prefix, Output tensor_names,
                                     Output shape_and_slices, const std::vector<DType>& dtypes) {
  return NodeBuilder(at, "RestoreV2")
      .Input(prefix)
      .Input(tensor_names)
      .Input(shape_and_slices)
      .Attr("dtypes", dtypes)
      .Finish()
      .outputs(0, static_cast<int>(dtypes.size()));
}
struct MergeV2CheckpointsAttrs {
  bool delete_old_dirs = true;
};
// Makes one checkpoint of parts (a vector of prefixes).
inline Operation MergeV2Checkpoints(ScopeAt at, Output checkpoint_prefixes,
                                    Output destination_prefix,
                                    const MergeV2CheckpointsAttrs& attrs = {}) {
  return NodeBuilder(at, "MergeV2Checkpoints")
      .Input(checkpoint_prefixes)
      .Input(destination_prefix)
      .Attr("delete_old_dirs", attrs.delete_old_dirs)
      .Finish()
      .operation();
}
// "<basename>-<shard>-of-<num_shards>", five digits each; scalars.
inline Output ShardedFilename(ScopeAt at, Output basename, Output shard, Output num_shards) {
  return NodeBuilder(at, "ShardedFilename")
      .Input(basename)
      .Input(shard)
      .Input(num_shards)
      .Finish()
      .output(0);
}
// "<basename>-?????-of-<num_shards>": the pattern of all of them.
inline Output ShardedFilespec(ScopeAt at, Output basename, Output num_shards) {
  return NodeBuilder(at, "ShardedFilespec").Input(basename).Input(num_shards).Finish().output(0);
}

}  // namespace millrace

#endif  // MILLRACE_SAVER_SAVE_RESTORE_H_
