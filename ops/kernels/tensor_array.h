// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_TENSOR_ARRAY_H_
#define MILLRACE_OPS_KERNELS_TENSOR_ARRAY_H_

// TensorArrayStorage: the array behind the handles of TensorArray ops (ops/control/tensor_array.h).
//
// An element: unwritten -> written -> read (-> cleared). It is written once, except in the array of
// a gradient, where everything that is written to an element is added up: the reads of the forward
// element were several. The sum is made when the element is read, in the order of frames,
// iterations and writers' names, so that its bits do not depend on who came first.
//
// Elements share the memory of what was written; memory grows with the elements that are written,
// never with a size or an index alone.
//
// Thread-safety: all methods, from any thread.
// Failure: InvalidArgument in TensorFlow's words.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/kernels/step_objects.h"
#include "runtime/kernel.h"

namespace millrace {

struct TensorArraySpec {
  std::string name;
  DType dtype = DT_INVALID;
  int64_t size = 0;
  PartialShape element_shape;
  bool identical_element_shapes = false;  // the first one written is that of all
  bool dynamic_size = false;              // writes make it longer
  bool clear_after_read = true;           // what was read is given up, and cannot be read again
  bool is_gradient = false;
};

class TensorArrayStorage : public StepObject {
 public:
  static constexpr const char* kTypeName = "TensorArray";

  explicit TensorArrayStorage(TensorArraySpec spec);

  const std::string& name() const { return spec_.name; }
  DType dtype() const { return spec_.dtype; }
  std::string DebugString() const override;
  void EndWithStep() override { Close(); }

  Status Write(const KernelContext& ctx, int64_t index, Tensor value);
  // value(i) at indices[i], all of them or, after an error, some.
  Status WriteMany(const KernelContext& ctx, absl::Span<const int32_t> indices,
                   absl::FunctionRef<StatusOr<Tensor>(int64_t i)> value);
  // value(i) at i, for i in [0, n): what is split into or unpacked. PackedSize() is then n.
  Status Fill(const KernelContext& ctx, int64_t n,
              absl::FunctionRef<StatusOr<Tensor>(int64_t i)> value);
  StatusOr<Tensor> Read(KernelContext* ctx, int64_t index);
  StatusOr<std::vector<Tensor>> ReadMany(KernelContext* ctx, absl::Span<const int32_t> indices);
  // Elements [0, n).
  StatusOr<std::vector<Tensor>> ReadFirst(KernelContext* ctx, int64_t n);

  StatusOr<int64_t> Size() const;
  // So many elements are packed or concatenated: all, or as many as have been split into the array
  // that this is the gradient of.
  StatusOr<int64_t> PackedSize() const;
  bool has_dynamic_size() const;
  // What is known of elements becomes more.
  Status MergeElementShape(const PartialShape& shape);
  // Frees the elements; everything fails from now on.
  void Close();

  // The array of its gradients for `source`, made at the first call: of its size, which is final
  // from now on, with elements of its elements' shapes, `prepended` put before.
  struct GradientArray {
    std::shared_ptr<TensorArrayStorage> array;
    bool is_new = false;
  };
  StatusOr<GradientArray> Gradient(const std::string& source, const Shape& prepended);

 private:
  // Who wrote: orders the parts of a sum.
  struct Writer {
    uint64_t frame = 0;
    int64_t iteration = 0;
    std::string node;
    bool operator<(const Writer& other) const;
  };
  struct Part {
    Writer writer;
    Tensor value;
  };
  struct Element {
    Tensor value;  // none where only the shape is known: zeros
    Shape shape;
    std::unique_ptr<std::vector<Part>> parts;  // of a gradient: what is to be added up
    bool is_written = false;
    bool is_read = false;
    bool is_cleared = false;
  };
  static constexpr int64_t kChunk = 16;
  using Chunk = std::array<Element, kChunk>;

  Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null when nothing near it has been written.
  Element* Find(int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Element* FindOrMake(int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status WriteLocked(const KernelContext& ctx, int64_t index, Tensor value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<Tensor> ReadLocked(KernelContext* ctx, int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<Tensor> SumOfParts(KernelContext* ctx, Element* element)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TensorArraySpec spec_;
  mutable Mutex mu_;
  int64_t size_ ABSL_GUARDED_BY(mu_);
  int64_t filled_size_ ABSL_GUARDED_BY(mu_) = -1;  // none was split into it
  PartialShape element_shape_ ABSL_GUARDED_BY(mu_);
  bool dynamic_size_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool has_sums_ ABSL_GUARDED_BY(mu_) = false;  // an element was written more than once
  HashMap<int64_t, std::unique_ptr<Chunk>> chunks_ ABSL_GUARDED_BY(mu_);  // by index / kChunk
  std::map<std::string, std::shared_ptr<TensorArrayStorage>> gradients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_TENSOR_ARRAY_H_
