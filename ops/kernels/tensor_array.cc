// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/tensor_array.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/loops/binary.h"

namespace millrace {
namespace {

template <typename... Parts>
Status ArrayError(const std::string& name, const Parts&... parts) {
  return InvalidArgument("TensorArray ", name, ": ", parts...);
}

}  // namespace

bool TensorArrayStorage::Writer::operator<(const Writer& other) const {
  return std::tie(frame, iteration, node) < std::tie(other.frame, other.iteration, other.node);
}

TensorArrayStorage::TensorArrayStorage(TensorArraySpec spec)
    : spec_(std::move(spec)),
      size_(spec_.size),
      element_shape_(spec_.element_shape),
      dynamic_size_(spec_.dynamic_size) {}

std::string TensorArrayStorage::DebugString() const {
  MutexLock lock(&mu_);
  return absl::StrCat("TensorArray[", size_, "]");
}

Status TensorArrayStorage::CheckOpen() const {
  if (!closed_) return absl::OkStatus();
  return InvalidArgument("TensorArray ", spec_.name, " has already been closed.");
}

TensorArrayStorage::Element* TensorArrayStorage::Find(int64_t index) {
  const auto it = chunks_.find(index / kChunk);
  return it == chunks_.end() ? nullptr : &(*it->second)[static_cast<size_t>(index % kChunk)];
}

TensorArrayStorage::Element* TensorArrayStorage::FindOrMake(int64_t index) {
  std::unique_ptr<Chunk>& chunk = chunks_[index / kChunk];
  if (chunk == nullptr) chunk = std::make_unique<Chunk>();
  return &(*chunk)[static_cast<size_t>(index % kChunk)];
}

// --- Writing -------------------------------------------------------------------------------------

Status TensorArrayStorage::WriteLocked(const KernelContext& ctx, int64_t index, Tensor value) {
  MR_RETURN_IF_ERROR(CheckOpen());
  if (index < 0 || (!dynamic_size_ && index >= size_)) {
    return ArrayError(spec_.name, "Tried to write to index ", index,
                      " but array is not resizeable and size is: ", size_);
  }
  if (value.dtype() != spec_.dtype) {
    return ArrayError(spec_.name, "Could not write to TensorArray index ", index,
                      " because the value dtype is ", value.dtype(), " but TensorArray dtype is ",
                      spec_.dtype, ".");
  }
  if (!element_shape_.IsCompatibleWith(value.shape())) {
    return ArrayError(spec_.name, "Could not write to TensorArray index ", index,
                      " because the value shape is ", value.shape(),
                      " which is incompatible with the TensorArray's inferred element shape: ",
                      element_shape_, " (consider setting infer_shape=False).");
  }
  Element* const element = FindOrMake(index);
  if (element->is_read) {
    return ArrayError(spec_.name, "Could not write to TensorArray index ", index,
                      " because it has already been read.");
  }
  if (element->is_written && !spec_.is_gradient) {
    return ArrayError(spec_.name, "Could not write to TensorArray index ", index,
                      " because it has already been written to.");
  }
  if (element->is_written && element->shape != value.shape()) {
    return ArrayError(spec_.name, "Could not aggregate to TensorArray index ", index,
                      " because the existing shape is ", element->shape,
                      " but the new input shape is ", value.shape(), ".");
  }
  size_ = std::max(size_, index + 1);
  if (spec_.identical_element_shapes && !element_shape_.IsFullyDefined()) {
    element_shape_ = PartialShape(value.shape());
  }
  element->shape = value.shape();
  element->is_written = true;
  if (!spec_.is_gradient) {
    element->value = std::move(value);
    return absl::OkStatus();
  }
  if (element->parts == nullptr) element->parts = std::make_unique<std::vector<Part>>();
  element->parts->push_back({{ctx.frame_id(), ctx.iteration(), ctx.node_name()}, std::move(value)});
  has_sums_ = has_sums_ || element->parts->size() > 1;
  return absl::OkStatus();
}

Status TensorArrayStorage::Write(const KernelContext& ctx, int64_t index, Tensor value) {
  MutexLock lock(&mu_);
  return WriteLocked(ctx, index, std::move(value));
}

Status TensorArrayStorage::WriteMany(const KernelContext& ctx, absl::Span<const int32_t> indices,
                                     absl::FunctionRef<StatusOr<Tensor>(int64_t i)> value) {
  MutexLock lock(&mu_);
  for (size_t i = 0; i < indices.size(); ++i) {
    MR_ASSIGN_OR_RETURN(Tensor element, value(static_cast<int64_t>(i)));
    MR_RETURN_IF_ERROR(WriteLocked(ctx, indices[i], std::move(element)));
  }
  return CheckOpen();
}

Status TensorArrayStorage::Fill(const KernelContext& ctx, int64_t n,
                                absl::FunctionRef<StatusOr<Tensor>(int64_t i)> value) {
  MutexLock lock(&mu_);
  if (!spec_.is_gradient) filled_size_ = n;
  for (int64_t i = 0; i < n; ++i) {
    MR_ASSIGN_OR_RETURN(Tensor element, value(i));
    MR_RETURN_IF_ERROR(WriteLocked(ctx, i, std::move(element)));
  }
  return CheckOpen();
}

// --- Reading -------------------------------------------------------------------------------------

StatusOr<Tensor> TensorArrayStorage::SumOfParts(KernelContext* ctx, Element* element) {
  std::vector<Part>& parts = *element->parts;
  if (parts.size() == 1) return parts[0].value;
  const math::BinaryFn add = math::FindBinary(math::BinaryOp::kAdd, spec_.dtype);
  if (add == nullptr || spec_.dtype == DT_STRING) {
    return Unimplemented("TensorArray ", spec_.name, ": elements of type ", spec_.dtype,
                         " cannot be added up");
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.writer < b.writer; });
  MR_ASSIGN_OR_RETURN(Tensor sum, ctx->AllocateTemp(spec_.dtype, element->shape));
  void* const out = sum.mutable_raw_data();
  const void* so_far = parts[0].value.raw_data();
  for (size_t i = 1; i < parts.size(); ++i) {
    add(so_far, false, parts[i].value.raw_data(), false, out, sum.num_elements());
    so_far = out;
  }
  return sum;
}

StatusOr<Tensor> TensorArrayStorage::ReadLocked(KernelContext* ctx, int64_t index) {
  MR_RETURN_IF_ERROR(CheckOpen());
  if (index < 0 || (!spec_.is_gradient && index >= size_)) {
    return InvalidArgument("Tried to read from index ", index, " but array size is: ", size_);
  }
  Element* element = Find(index);
  if (element == nullptr || !element->is_written) {
    // Zeros, where the elements' shape is known: the gradient of an element that nothing flowed
    // back to, or an element that was never written.
    const StatusOr<Shape> shape = element_shape_.ToShape();
    if (!shape.ok()) {
      return ArrayError(
          spec_.name, "Could not read from TensorArray index ", index,
          ".  Furthermore, the element shape is not fully defined: ", element_shape_,
          ".  It is possible you are working with a resizeable TensorArray and stop_gradients is "
          "not allowing the gradients to be written.  If you set the full element_shape property "
          "on the forward TensorArray, the proper all-zeros tensor will be returned instead of "
          "incurring this error.");
    }
    element = FindOrMake(index);
    element->shape = *shape;
    element->is_written = true;
    size_ = std::max(size_, index + 1);
  }
  if (element->is_cleared) {
    return ArrayError(spec_.name, "Could not read index ", index,
                      " twice because it was cleared after a previous read (perhaps try setting "
                      "clear_after_read = false?).");
  }
  if (element->parts != nullptr) {
    MR_ASSIGN_OR_RETURN(element->value, SumOfParts(ctx, element));
    element->parts.reset();
  } else if (!element->value.has_value()) {
    if (!IsMemcopyable(spec_.dtype) && spec_.dtype != DT_STRING) {
      return Unimplemented("TensorArray ", spec_.name, ": elements of type ", spec_.dtype,
                           " have no zeros");
    }
    MR_ASSIGN_OR_RETURN(Tensor zeros, ctx->AllocateTemp(spec_.dtype, element->shape));
    const absl::Span<char> bytes = zeros.mutable_bytes();
    std::fill(bytes.begin(), bytes.end(), '\0');
    element->value = std::move(zeros);
  }
  element->is_read = true;
  if (!spec_.clear_after_read) return element->value;
  element->is_cleared = true;
  return std::move(element->value);
}

StatusOr<Tensor> TensorArrayStorage::Read(KernelContext* ctx, int64_t index) {
  MutexLock lock(&mu_);
  return ReadLocked(ctx, index);
}

StatusOr<std::vector<Tensor>> TensorArrayStorage::ReadMany(KernelContext* ctx,
                                                           absl::Span<const int32_t> indices) {
  MutexLock lock(&mu_);
  std::vector<Tensor> values;
  values.reserve(indices.size());
  for (const int32_t index : indices) {
    MR_ASSIGN_OR_RETURN(Tensor value, ReadLocked(ctx, index));
    values.push_back(std::move(value));
  }
  return values;
}

StatusOr<std::vector<Tensor>> TensorArrayStorage::ReadFirst(KernelContext* ctx, int64_t n) {
  MutexLock lock(&mu_);
  std::vector<Tensor> values;  // grows with what is there: n may be a size that nobody has filled
  for (int64_t i = 0; i < n; ++i) {
    MR_ASSIGN_OR_RETURN(Tensor value, ReadLocked(ctx, i));
    values.push_back(std::move(value));
  }
  return values;
}

// --- The array -----------------------------------------------------------------------------------

StatusOr<int64_t> TensorArrayStorage::Size() const {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(CheckOpen());
  return size_;
}

StatusOr<int64_t> TensorArrayStorage::PackedSize() const {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(CheckOpen());
  return spec_.is_gradient && filled_size_ >= 0 ? filled_size_ : size_;
}

bool TensorArrayStorage::has_dynamic_size() const {
  MutexLock lock(&mu_);
  return dynamic_size_;
}

Status TensorArrayStorage::MergeElementShape(const PartialShape& shape) {
  MutexLock lock(&mu_);
  MR_ASSIGN_OR_RETURN(element_shape_, element_shape_.MergeWith(shape));
  return absl::OkStatus();
}

void TensorArrayStorage::Close() {
  // Destroyed without the lock: gradients have locks of their own.
  HashMap<int64_t, std::unique_ptr<Chunk>> chunks;
  std::map<std::string, std::shared_ptr<TensorArrayStorage>> gradients;
  MutexLock lock(&mu_);
  chunks.swap(chunks_);
  gradients.swap(gradients_);
  size_ = 0;
  closed_ = true;
}

StatusOr<TensorArrayStorage::GradientArray> TensorArrayStorage::Gradient(const std::string& source,
                                                                         const Shape& prepended) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(CheckOpen());
  // Elements that are written later would have no place in the gradient's array.
  dynamic_size_ = false;
  if (has_sums_) {
    return InvalidArgument(
        "Unable to create a gradients TensorArray for ", spec_.name,
        ".  Perhaps you used the multiple_writes_aggregate flag on a previous write?  Gradient "
        "calculation is impossible when multiple writes are performed to the same index.");
  }
  std::shared_ptr<TensorArrayStorage>& gradient = gradients_[source];
  if (gradient != nullptr) return GradientArray{gradient, false};

  const auto extended = [&](const PartialShape& element) -> StatusOr<PartialShape> {
    if (!element.has_rank()) return element;
    std::vector<int64_t> dims(prepended.dims().begin(), prepended.dims().end());
    dims.insert(dims.end(), element.dims().begin(), element.dims().end());
    return PartialShape::Make(dims);
  };
  MR_ASSIGN_OR_RETURN(PartialShape element_shape, extended(element_shape_));
  auto made = std::make_shared<TensorArrayStorage>(
      TensorArraySpec{.name = absl::StrCat(spec_.name, "@", source),
                      .dtype = spec_.dtype,
                      .size = size_,
                      .element_shape = std::move(element_shape),
                      .identical_element_shapes = spec_.identical_element_shapes,
                      .clear_after_read = true,
                      .is_gradient = true});
  MutexLock made_lock(&made->mu_);
  made->filled_size_ = filled_size_;
  for (const auto& [number, chunk] : chunks_) {
    for (int64_t i = 0; i < kChunk; ++i) {
      const Element& element = (*chunk)[static_cast<size_t>(i)];
      if (!element.is_written) continue;
      MR_ASSIGN_OR_RETURN(const PartialShape shape, extended(element.shape));
      Element* const copy = made->FindOrMake(number * kChunk + i);
      copy->shape = Shape::Of(shape);
      copy->is_written = true;
    }
  }
  gradient = made;
  return GradientArray{std::move(made), true};
}

}  // namespace millrace
