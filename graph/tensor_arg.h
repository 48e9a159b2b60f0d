// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_TENSOR_ARG_H_
#define MILLRACE_GRAPH_TENSOR_ARG_H_

// TensorArg: what a builder takes for a tensor: the tensor itself, or the values of one. It
// converts from both:
//
//   Reshape(m, x, {-1, 4});
//   Less(m, x, 1.5);
//   Pad(m, x, {{1, 1}, {0, 0}});
//
// Values become a constant next to the node, "<node>/<input>" ("Reshape/shape", "Less/y"), at the
// line of the call. Its dtype is the one that the op asks for there: that of its other inputs where
// they share one, else the op's default, else int32 (int64 for larger numbers), float, bool or
// string. A Tensor keeps its own. InvalidArgument for a number that the dtype does not have.
//
// A list in braces is a vector, a list of lists a matrix, and `{}` an int vector without elements:
// the shape of a scalar.
//
// A value; thread-compatible.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/status.h"
#include "graph/scope.h"

namespace millrace {

class Tensor;  // core/tensor.h

// An element of a literal: a number, a bool or a text.
template <typename T>
concept LiteralElement = (std::is_arithmetic_v<T> && !std::same_as<T, char>) ||
                         std::is_convertible_v<const T&, absl::string_view>;

class TensorArg {
 public:
  TensorArg(const Output& tensor);  // NOLINT
  // What converts to an Output: the labels of a model function, a BuiltNode.
  template <typename T>
    requires(std::is_class_v<T> && !std::is_base_of_v<Output, T> &&
             std::is_convertible_v<const T&, Output>)
  TensorArg(const T& tensor) : TensorArg(Converted(tensor)) {}  // NOLINT

  template <LiteralElement T>
  TensorArg(T value) {  // NOLINT
    Begin(0, 0);
    Add(Widened(value));
  }
  template <LiteralElement T>
  TensorArg(std::initializer_list<T> values) {  // NOLINT
    Begin(1, values.size());
    for (const T& value : values) Add(Widened(value));
  }
  // {}, and lists of several integer types.
  TensorArg(std::initializer_list<int64_t> values);  // NOLINT
  template <LiteralElement T>
  TensorArg(std::initializer_list<std::initializer_list<T>> rows) {  // NOLINT
    Begin(2, rows.size());
    for (const auto& row : rows) {
      AddRow(row.size());
      for (const T& value : row) Add(Widened(value));
    }
  }
  template <LiteralElement T>
  TensorArg(const std::vector<T>& values) {  // NOLINT
    Begin(1, values.size());
    for (const auto& value : values) Add(Widened(static_cast<const T&>(value)));
  }
  // The dimensions; -1 for one that is not known.
  TensorArg(const Shape& shape);         // NOLINT
  TensorArg(const PartialShape& shape);  // NOLINT
  TensorArg(const Tensor& value);        // NOLINT

  TensorArg(const TensorArg& other);
  TensorArg& operator=(const TensorArg& other);
  ~TensorArg();

  bool is_literal() const { return literal_ != nullptr; }
  // Invalid for a literal.
  const Output& output() const { return output_; }

  // --- For NodeBuilder, of literals

  // What it is where nothing asks for a dtype.
  DType own_type() const;
  // As a tensor of `dtype`. InvalidArgument for a value that the dtype does not have, and for rows
  // of different lengths.
  StatusOr<Tensor> As(DType dtype) const;

 private:
  struct Literal;

  template <typename T>
  static Output Converted(const T& tensor) {
    Output output = tensor;
    return output;
  }
  // All integers as int64 (beyond its range as double), all floating numbers as double.
  template <typename T>
  static auto Widened(const T& value) {
    if constexpr (std::same_as<T, bool>) {
      return value;
    } else if constexpr (std::is_same_v<T, uint64_t> || std::is_same_v<T, unsigned long long>) {
      constexpr T kMost = static_cast<T>(std::numeric_limits<int64_t>::max());
      return Unsigned{value <= kMost, static_cast<int64_t>(value & kMost),
                      static_cast<double>(value)};
    } else if constexpr (std::integral<T>) {
      return static_cast<int64_t>(value);
    } else if constexpr (std::floating_point<T>) {
      return static_cast<double>(value);
    } else {
      return absl::string_view(value);
    }
  }
  struct Unsigned {
    bool fits;
    int64_t integer;
    double number;
  };

  void Begin(int rank, size_t size);
  void AddRow(size_t size);
  void Add(int64_t value);
  void Add(double value);
  void Add(bool value);
  void Add(absl::string_view value);
  void Add(const Unsigned& value) { value.fits ? Add(value.integer) : Add(value.number); }

  Output output_;
  std::shared_ptr<Literal> literal_;  // immutable once made
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_TENSOR_ARG_H_
