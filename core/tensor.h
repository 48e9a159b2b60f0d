// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TENSOR_H_
#define MILLRACE_CORE_TENSOR_H_

// Tensor: a dtype, a shape and a shared buffer of elements in row-major order.
//
//   Tensor x = Tensor::Of<float>({{1, 2}, {3, 4}});
//   x.mutable_flat<float>()[0] = 5;
//   for (absl::Span<const float> row : x.rows<float>()) ...
//
// A Tensor is a value: copying one shares the buffer, and mutable_flat copies elements that
// somebody else holds (a variable, a constant, a step that runs) before they can be written. What
// is said to be unchecked is the kernels': there elements may be written only while the buffer is
// not shared (BufferIsUnique), which is how a fresh or forwarded output is.
//
// Invariants: the buffer holds exactly the elements of the shape (or more, when
// the tensor is a slice of rows of another); the data of a tensor that this
// project allocated is aligned to Allocator::kAlignment. Strings are std::string objects.
//
// Thread-safety: a value; distinct Tensors that share a buffer may be read from many threads.
// Failure: functions that allocate return ResourceExhausted; those whose result has no place for a
// Status throw std::bad_alloc, as any object does. Access of the wrong kind: see there.

#include <cassert>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <new>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/dtype.h"     // IWYU pragma: export
#include "core/int_span.h"  // IWYU pragma: export
#include "core/shape.h"     // IWYU pragma: export
#include "core/status.h"

namespace millrace {

class Resource;  // core/resource_handle.h

namespace tensor_internal {
[[noreturn]] void NoSuchRow(int64_t row, int64_t num_rows);

// Values in braces of whatever types convert to E.
template <typename E>
struct Literals {
  Literals(std::initializer_list<E> v) : values(v) {}  // NOLINT
  std::vector<E> values;
};
}  // namespace tensor_internal

// The rows of a tensor, for range-based for; valid as long as the tensor. A row that is not there
// ends the program with a message.
template <typename T>
class TensorRows {
 public:
  TensorRows(const T* data, int64_t num_rows, int64_t row_size)
      : data_(data), num_rows_(num_rows), row_size_(row_size) {}

  class Iterator {
   public:
    Iterator(const TensorRows* rows, int64_t row) : rows_(rows), row_(row) {}
    absl::Span<const T> operator*() const { return rows_->Row(row_); }
    Iterator& operator++() {
      ++row_;
      return *this;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.row_ == b.row_; }

   private:
    const TensorRows* rows_;
    int64_t row_;
  };
  Iterator begin() const { return Iterator(this, 0); }
  Iterator end() const { return Iterator(this, num_rows_); }
  int64_t size() const { return num_rows_; }
  absl::Span<const T> operator[](int64_t row) const {
    if (ABSL_PREDICT_FALSE(row < 0 || row >= num_rows_)) tensor_internal::NoSuchRow(row, num_rows_);
    return Row(row);
  }

 private:
  absl::Span<const T> Row(int64_t row) const {
    return {data_ + row * row_size_, static_cast<size_t>(row_size_)};
  }

  const T* data_;
  int64_t num_rows_, row_size_;
};

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
  // Literals of rank 1 to 3: Of({1.0f, 2.0f}), Of<int64_t>({{1, 2}, {3, 4}}), Of({"a", "b"}). The
  // elements are E, if it is given (values are converted), else of the values' type. Rows of
  // different lengths end the program with a message.
  template <typename E = void, typename T>
  static Tensor Of(std::initializer_list<T> values);
  template <typename E = void, typename T>
  static Tensor Of(std::initializer_list<std::initializer_list<T>> rows);
  template <typename E = void, typename T>
  static Tensor Of(std::initializer_list<std::initializer_list<std::initializer_list<T>>> blocks);
  // Values of several types, Of<float>({1, 2.5f}), and none, Of<float>({}).
  template <typename E>
  static Tensor Of(tensor_internal::Literals<E> values);
  // One element.
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

  // --- Access for callers
  //
  // Other bytes are never returned: another T than the dtype's element type, a wrong number of
  // indices or elements, an index out of range are refused. values and value tell it by a Status,
  // for tensors that come from elsewhere; the others end the program with a message and, all but
  // at, the line of the call.

  // All elements. InvalidArgument for another T.
  template <typename T>
  StatusOr<absl::Span<const T>> values() const {
    if (DTypeOf<T> != dtype_) return WrongType("values", DTypeOf<T>);
    return raw<T>();
  }
  // The only element. InvalidArgument for another T or number of elements.
  template <typename T>
  StatusOr<T> value() const {
    if (DTypeOf<T> != dtype_) return WrongType("value", DTypeOf<T>);
    if (num_elements() != 1) return NotOneElement("value");
    return raw_scalar<T>();
  }
  // All elements as one span.
  template <typename T>
  absl::Span<const T> flat(std::source_location where = std::source_location::current()) const {
    CheckAccess("flat", DTypeOf<T>, where);
    return raw<T>();
  }
  // The same to be written; elements that others hold, too, are copied before, so spans that were
  // taken before may be of other elements. To be taken anew once the tensor was copied or fed.
  template <typename T>
  absl::Span<T> mutable_flat(std::source_location where = std::source_location::current()) {
    CheckAccess("mutable_flat", DTypeOf<T>, where);
    MakeUnique();
    return mutable_raw<T>();
  }
  // The only element.
  template <typename T>
  const T& scalar(std::source_location where = std::source_location::current()) const {
    CheckAccess("scalar", DTypeOf<T>, where);
    if (ABSL_PREDICT_FALSE(num_elements() != 1)) EndRead(NotOneElement("scalar"), where);
    return *static_cast<const T*>(data_);
  }
  // The element at these indices, one per dimension: t.at<float>(1, 2).
  template <typename T, typename... Index>
  const T& at(Index... indices) const {
    CheckAccess("at", DTypeOf<T>, {});
    return static_cast<const T*>(data_)[OffsetOf({static_cast<int64_t>(indices)...})];
  }
  // Dimension 0, row by row; a row is the span of its elements. Not of a scalar.
  template <typename T>
  TensorRows<T> rows(std::source_location where = std::source_location::current()) const& {
    CheckAccess("rows", DTypeOf<T>, where);
    if (ABSL_PREDICT_FALSE(rank() == 0)) EndRead(NoRows(), where);
    return TensorRows<T>(static_cast<const T*>(data_), dim(0), shape_.NumElements(1, rank()));
  }
  template <typename T>
  TensorRows<T> rows() const&& = delete;  // the rows would outlive the tensor
  // Copies the elements into a buffer of their own when others hold them.
  void MakeUnique();

  // --- Unchecked access, for kernels: they are chosen by dtype, so T is right by construction
  // (checked in debug builds only).
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

  void CheckAccess(const char* accessor, DType wanted, const std::source_location& where) const {
    if (ABSL_PREDICT_FALSE(wanted != dtype_)) EndRead(WrongType(accessor, wanted), where);
  }
  // Ends the program with the message and the line that reads, where one is known.
  [[noreturn]] static void EndRead(const Status& status, const std::source_location& where);
  Status WrongType(const char* accessor, DType wanted) const;
  Status NotOneElement(const char* accessor) const;
  Status NoRows() const;
  // Of the element at `indices`; refuses what is none.
  int64_t OffsetOf(std::initializer_list<int64_t> indices) const;
  // For Of: a tensor to be filled, and the check of each row or block.
  static Tensor Literal(DType dtype, std::initializer_list<size_t> dims);
  static void CheckLength(size_t row, size_t length, size_t wanted) {
    if (ABSL_PREDICT_FALSE(length != wanted)) EndProgram(Ragged(row, length, wanted));
  }
  static Status Ragged(size_t row, size_t length, size_t wanted);

  BufferRef buffer_;
  void* data_ = nullptr;
  DType dtype_ = DT_INVALID;
  Shape shape_;
};
static_assert(sizeof(Tensor) <= 64);  // one cache line per edge of a step

// As DebugString.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

// Element-wise equality of dtype, shape and values (NaN equals NaN bit for bit).
bool operator==(const Tensor& a, const Tensor& b);
inline bool operator!=(const Tensor& a, const Tensor& b) { return !(a == b); }

namespace tensor_internal {

// The element type of a literal of Ts: characters stand for strings.
template <typename E, typename T>
using ElementFor = std::conditional_t<
    !std::is_void_v<E>, E,
    std::conditional_t<std::is_convertible_v<T, absl::string_view>, std::string, T>>;

template <typename E, typename T>
E LiteralValue(const T& value) {
  if constexpr (std::is_same_v<E, Half> && !std::is_same_v<T, Half>) {
    return ToHalf(static_cast<float>(value));
  } else if constexpr (std::is_same_v<E, Bfloat16> && !std::is_same_v<T, Bfloat16>) {
    return ToBfloat16(static_cast<float>(value));
  } else {
    return static_cast<E>(value);
  }
}

}  // namespace tensor_internal

template <typename E, typename T>
Tensor Tensor::Of(std::initializer_list<T> values) {
  using Element = tensor_internal::ElementFor<E, T>;
  Tensor tensor = Literal(DTypeOf<Element>, {values.size()});
  Element* out = tensor.mutable_raw<Element>().data();
  for (const T& value : values) *out++ = tensor_internal::LiteralValue<Element>(value);
  return tensor;
}

template <typename E>
Tensor Tensor::Of(tensor_internal::Literals<E> values) {
  Tensor tensor = Literal(DTypeOf<E>, {values.values.size()});
  E* out = tensor.mutable_raw<E>().data();
  for (const E& value : values.values) *out++ = value;
  return tensor;
}

template <typename E, typename T>
Tensor Tensor::Of(std::initializer_list<std::initializer_list<T>> rows) {
  using Element = tensor_internal::ElementFor<E, T>;
  const size_t length = rows.size() == 0 ? 0 : rows.begin()->size();
  Tensor tensor = Literal(DTypeOf<Element>, {rows.size(), length});
  Element* out = tensor.mutable_raw<Element>().data();
  size_t row = 0;
  for (const auto& values : rows) {
    CheckLength(row++, values.size(), length);
    for (const T& value : values) *out++ = tensor_internal::LiteralValue<Element>(value);
  }
  return tensor;
}

template <typename E, typename T>
Tensor Tensor::Of(std::initializer_list<std::initializer_list<std::initializer_list<T>>> blocks) {
  using Element = tensor_internal::ElementFor<E, T>;
  const size_t num_rows = blocks.size() == 0 ? 0 : blocks.begin()->size();
  const size_t length = num_rows == 0 ? 0 : blocks.begin()->begin()->size();
  Tensor tensor = Literal(DTypeOf<Element>, {blocks.size(), num_rows, length});
  Element* out = tensor.mutable_raw<Element>().data();
  size_t row = 0;
  for (const auto& block : blocks) {
    CheckLength(row, block.size(), num_rows);
    for (const auto& values : block) {
      CheckLength(row++, values.size(), length);
      for (const T& value : values) *out++ = tensor_internal::LiteralValue<Element>(value);
    }
  }
  return tensor;
}

template <typename T>
Tensor Tensor::Scalar(T value) {
  Tensor tensor = Literal(DTypeOf<T>, {});
  tensor.mutable_raw<T>()[0] = std::move(value);
  return tensor;
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
