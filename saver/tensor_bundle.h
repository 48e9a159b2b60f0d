// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_TENSOR_BUNDLE_H_
#define MILLRACE_SAVER_TENSOR_BUNDLE_H_

// Tensor bundles: TensorFlow's V2 checkpoint format: tensors by name in data files
// (`<prefix>.data-00000-of-00001`, ...) and a sorted index (`<prefix>.index`).
//
// A bundle appears as a whole or not at all: everything is written under temporary
// names and synced; then the data file and, last, the index get their names. A bundle that is
// replaced stays whole until then: the new one has another number of data files (an empty one more
// when the numbers would agree), and the old files are deleted afterwards.
//
// Reading trusts nothing: sizes are checked against the files before anything is allocated, every
// tensor's checksum before it is returned. A stored tensor (or stored slice) of which a part is
// wanted is read and checked as a whole when it is small (64 MiB at most) or more than half of its
// rows are wanted; of others only those rows are read. They are checked by the checksums of their
// blocks (saver/block_checksums.h), which a writer adds to large tensors. Where there are none, in
// files of TensorFlow, the checksum of the whole can be compared only when one reader has read all
// of its rows, in parts that do not overlap (the same part may come again): the read that completes
// them then fails.
//
// Thread-safety: a writer is thread-compatible; a reader may be used from many threads.
// Failure: NotFound "Key <name> not found in checkpoint"; DataLoss names file, tensor and what
// is wrong. Source: TensorFlow's tensor_bundle.proto and tensor_bundle.cc (format facts).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "proto/tensor_bundle.pb.h"
#include "saver/bundle_paths.h"  // IWYU pragma: export
#include "saver/tensor_slice.h"

namespace millrace {

class BundleWriter {
 public:
  // The most of a stored tensor that is read, and checked, as a whole for any part of it: a second
  // or less of a slow disk. Larger ones have checksums of their blocks.
  static constexpr uint64_t kWholeBytes = uint64_t{64} << 20;

  // Makes the directory. Files of an interrupted writer under the same prefix do not disturb.
  // `whole_bytes`: for tests.
  static StatusOr<std::unique_ptr<BundleWriter>> Open(FileSystem* fs, std::string prefix,
                                                      uint64_t whole_bytes = kWholeBytes);
  // Removes the temporary files of a writer that was not finished.
  ~BundleWriter();

  // InvalidArgument: name empty or used before. Unimplemented: resource and variant tensors.
  Status Add(absl::string_view name, const Tensor& value);
  // A part of a larger tensor. A part that is the whole is stored as an ordinary tensor.
  Status AddSlice(absl::string_view name, const Shape& full_shape, const TensorSlice& slice,
                  const Tensor& value);
  // The same for a tensor of numbers whose bytes come later, piece by piece through Fill, so that
  // nobody needs all of them at once and several tensors can be written side by side. Returns its
  // place.
  StatusOr<int> Reserve(absl::string_view name, DType dtype, const Shape& shape);
  StatusOr<int> ReserveSlice(absl::string_view name, const Shape& full_shape,
                             const TensorSlice& slice, DType dtype, const Shape& shape);
  // The next bytes of a place, in row-major order. Internal: more than its shape has.
  Status Fill(int place, absl::string_view bytes);
  // Writes the index; durable when it returns OK. Add must not be called afterwards. Internal: a
  // place is not full. `stop` ends a wait for others who name files under the prefix.
  Status Finish(const std::function<Status()>& stop = nullptr);

 private:
  struct State;
  explicit BundleWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Makes one bundle of several (the parts of a sharded save): data files are renamed in order of
// first appearance, the indexes merged. With `delete_parts` the parts' indexes (and the directory
// they were in, when empty) go away. InvalidArgument: one tensor in two parts, or slices of one
// tensor that disagree on shape or dtype. After an error (a full disk) the parts are what they
// were, unless the merged one may be there. `stop` as in BundleWriter::Finish.
Status MergeBundles(FileSystem* fs, absl::Span<const std::string> parts, const std::string& merged,
                    bool delete_parts, const std::function<Status()>& stop = nullptr);

class BundleReader {
 public:
  struct Entry {
    std::string name;
    DType dtype = DT_INVALID;
    Shape shape;                      // the full shape
    std::vector<TensorSlice> slices;  // empty for a tensor stored whole
  };

  static constexpr uint64_t kWholeBytes = BundleWriter::kWholeBytes;

  // Tensors are read by several threads of `pool` (null: by the caller), which outlives the reader.
  // Besides the tensors themselves a read needs 256 KiB of memory a thread, whatever part of
  // whatever tensor it is; of strings what is stored. `whole_bytes`: for tests.
  static StatusOr<std::unique_ptr<BundleReader>> Open(FileSystem* fs, std::string prefix,
                                                      IoPool* pool = nullptr,
                                                      uint64_t whole_bytes = kWholeBytes);
  ~BundleReader();

  int num_shards() const;
  // Sorted by name; slices are listed with their tensor, not by themselves.
  const std::vector<Entry>& entries() const;
  bool Contains(absl::string_view name) const;
  // NotFound.
  StatusOr<Entry> Find(absl::string_view name) const;
  // Are all data files there, and long enough for what the index says? Reads no tensors.
  Status CheckFiles() const;
  // The same of the data files that a read of these parts of tensors would open. NotFound for a
  // tensor that is not there.
  struct Part {
    std::string name;
    TensorSlice slice;
  };
  Status CheckFilesOf(absl::Span<const Part> parts) const;
  // Several parts, in their order; `stop`, between pieces of 4 MiB at most, ends the work. Small
  // tensors are read side by side, large ones by several threads each.
  StatusOr<std::vector<Tensor>> ReadParts(absl::Span<const Part> parts,
                                          const std::function<Status()>& stop = nullptr) const;
  // A whole tensor, put together from its slices when it has any.
  StatusOr<Tensor> Read(absl::string_view name) const;
  // A part, whatever parts it was stored in. Of large tensors of numbers only the rows in it are
  // read.
  StatusOr<Tensor> ReadSlice(absl::string_view name, const TensorSlice& slice) const;

 private:
  struct State;
  explicit BundleReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_SAVER_TENSOR_BUNDLE_H_
