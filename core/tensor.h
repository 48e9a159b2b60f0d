// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TENSOR_H_
#define MILLRACE_CORE_TENSOR_H_

// Tensor: a dtype, a shape and a shared buffer of elements in row-major order.
//
// Copying a Tensor shares the buffer; elements are never copied except by the
// functions that say so. Elements may be written only while the buffer is not
// shared (BufferIsUnique), which is how a kernel's fresh or forwarded output is.
//
// Invariants: the buffer holds exactly the elements of the shape (or more, when
// the tensor is a slice of rows of another); the data of a tensor that this
// project allocated is aligned to Allocator::kAlignment. Strings are std::string objects.
//
// Thread-safety: a value; distinct Tensors that share a buffer may be read from many threads.
// Failure: functions that allocate return ResourceExhausted. The typed accessors flat, mutable_flat
// and scalar end the program with a named failure when T is not the dtype's element type; raw,
// mutable_raw and raw_scalar are the kernels' and do not look.

#include <cassert>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/dtype.h"     // IWYU pragma: export
#include "core/int_span.h"  // IWYU pragma: export
#include "core/shape.h"     // IWYU pragma: export
#include "core/status.h"

namespace millrace {

class Resource;  // core/resource_handle.h

class Tensor {
 public:
  // DT_INVALID, no elements: "no value".
  Tensor() = default;

  // Numbers are not initialised; strings, handles and variants are default-constructed.
  // ResourceExhausted when there is no memory; InvalidArgument for DT_INVALID and reference types.
  static StatusOr<Tensor> Allocate(DType dtype, const Shape& shape,
                                   Allocator* allocator = DefaultAllocator());
  // Zeros, false, "".
  static StatusOr<Tensor> Zeros(DType dtype, const Shape& shape,
                                Allocator* allocator = DefaultAllocator());
  // Memory that somebody else filled: `offset` bytes into `buffer`. Memcopyable dtypes only.
  // InvalidArgument when the buffer is too small or the address misaligned for the element.
  static StatusOr<Tensor> FromBuffer(DType dtype, const Shape& shape, BufferRef buffer,
                                     size_t offset);
  // One element. (Throws std::bad_alloc like any small object when there is no memory.)
  template <typename T>
  static Tensor Scalar(T value);
  static Tensor Scalar(const char* value) { return Scalar(std::string(value)); }
  // Copies `values`. InvalidArgument when their number is not that of the shape.
  template <typename T>
  static StatusOr<Tensor> FromValues(const Shape& shape, absl::Span<const T> values);
  // A vector, copied.
  template <typename T>
  static Tensor Vector(absl::Span<const T> values);
  template <typename T>
  static Tensor Vector(std::initializer_list<T> values) {
    return Vector<T>(absl::MakeConstSpan(values.begin(), values.size()));
  }

  // What travels along an edge from a reference variable: a value of a reference type without
  // elements (shape [0]) that refers to `resource`. `dtype` is a reference type.
  static Tensor Reference(DType dtype, std::shared_ptr<Resource> resource);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int i) const { return shape_.dim(i); }
  int64_t num_elements() const { return shape_.num_elements(); }
  // False for the default-constructed tensor.
  bool has_value() const { return dtype_ != DT_INVALID; }
  // Is this a reference to a variable?
  bool is_reference() const { return IsRef(dtype_); }
  // Requires is_reference().
  const std::shared_ptr<Resource>& reference() const;
  // Bytes of the elements (string contents included).
  int64_t TotalBytes() const;

  // All elements as one span. Another T than the dtype's element type ends the program with a
  // message that names both: other bytes are never returned.
  template <typename T>
  absl::Span<const T> flat() const {
    CheckAccess("flat", DTypeOf<T>);
    return raw<T>();
  }
  template <typename T>
  absl::Span<T> mutable_flat() {
    CheckAccess("mutable_flat", DTypeOf<T>);
    return mutable_raw<T>();
  }
  // The only element; as flat, and a tensor of another number of elements ends the program, too.
  template <typename T>
  const T& scalar() const {
    CheckAccess("scalar", DTypeOf<T>);
    CheckOneElement();
    return *static_cast<const T*>(data_);
  }

  // Unchecked access, for kernels: they are chosen by dtype, so T is right by construction (checked
  // in debug builds only).
  template <typename T>
  absl::Span<const T> raw() const {
    assert(DTypeOf<T> == dtype_);
    // Not in braces: two values would be an initializer list of bools.
    return absl::Span<const T>(static_cast<const T*>(data_),
                               static_cast<size_t>(shape_.num_elements()));
  }
  template <typename T>
  absl::Span<T> mutable_raw() {
    assert(DTypeOf<T> == dtype_);
    return absl::Span<T>(static_cast<T*>(data_), static_cast<size_t>(shape_.num_elements()));
  }
  // Requires num_elements() == 1 (check the shape first).
  template <typename T>
  const T& raw_scalar() const {
    assert(DTypeOf<T> == dtype_ && num_elements() == 1);
    return *static_cast<const T*>(data_);
  }
  // The elements of an int32 or int64 tensor, which this must be, as int64.
  IntSpan ints() const {
    if (dtype_ == DT_INT32) return raw<int32_t>();
    return raw<int64_t>();
  }
  // Elements as raw bytes; memcopyable dtypes only (empty otherwise).
  absl::Span<const char> bytes() const;
  absl::Span<char> mutable_bytes();
  const void* raw_data() const { return data_; }
  void* mutable_raw_data() { return data_; }

  // The same elements seen in another shape; shares the buffer. InvalidArgument when the
  // number of elements differs.
  StatusOr<Tensor> Reshaped(const Shape& shape) const;
  // Rows [begin, end) of dimension 0; shares the buffer. 0 <= begin <= end <= dim(0), rank >= 1.
  Tensor Rows(int64_t begin, int64_t end) const;
  // A copy of the elements in a buffer of its own.
  StatusOr<Tensor> Clone(Allocator* allocator = DefaultAllocator()) const;

  // No other tensor shares the elements, so they may be overwritten.
  bool BufferIsUnique() const { return buffer_ && buffer_->RefCountIsOne(); }
  bool SharesBufferWith(const Tensor& other) const {
    return buffer_.get() == other.buffer_.get() && buffer_;
  }
  // Null for an empty tensor.
  const BufferRef& buffer() const { return buffer_; }

  // "float[2,3]: 1 2 3 4 5 6" with at most `max_elements` of them, for messages and tests.
  std::string DebugString(int max_elements = 8) const;

 private:
  Tensor(DType dtype, const Shape& shape, BufferRef buffer, void* data)
      : buffer_(std::move(buffer)), data_(data), dtype_(dtype), shape_(shape) {}

  void CheckAccess(const char* accessor, DType wanted) const {
    if (ABSL_PREDICT_FALSE(wanted != dtype_)) WrongAccess(accessor, wanted);
  }
  void CheckOneElement() const {
    if (ABSL_PREDICT_FALSE(num_elements() != 1)) NotOneElement();
  }
  [[noreturn]] void WrongAccess(const char* accessor, DType wanted) const;
  [[noreturn]] void NotOneElement() const;

  BufferRef buffer_;
  void* data_ = nullptr;
  DType dtype_ = DT_INVALID;
  Shape shape_;
};
static_assert(sizeof(Tensor) <= 64);  // one cache line per edge of a step

// Element-wise equality of dtype, shape and values (NaN equals NaN bit for bit).
bool operator==(const Tensor& a, const Tensor& b);
inline bool operator!=(const Tensor& a, const Tensor& b) { return !(a == b); }

template <typename T>
Tensor Tensor::Scalar(T value) {
  StatusOr<Tensor> t = Allocate(DTypeOf<T>, Shape());
  if (!t.ok()) throw std::bad_alloc();
  t->template mutable_raw<T>()[0] = std::move(value);
  return *std::move(t);
}

template <typename T>
StatusOr<Tensor> Tensor::FromValues(const Shape& shape, absl::Span<const T> values) {
  if (static_cast<int64_t>(values.size()) != shape.num_elements()) {
    return absl::InvalidArgumentError(absl::StrCat("Tensor: shape ", shape.ToString(), " needs ",
                                                   shape.num_elements(), " values, got ",
                                                   values.size()));
  }
  MR_ASSIGN_OR_RETURN(Tensor t, Allocate(DTypeOf<T>, shape));
  absl::Span<T> out = t.template mutable_raw<T>();
  for (size_t i = 0; i < values.size(); ++i) out[i] = values[i];
  return t;
}

template <typename T>
Tensor Tensor::Vector(absl::Span<const T> values) {
  StatusOr<Tensor> t = FromValues<T>(Shape::Vector(values.size()), values);
  if (!t.ok()) throw std::bad_alloc();
  return *std::move(t);
}

}  // namespace millrace

#endif  // MILLRACE_CORE_TENSOR_H_
