// SPDX-License-Identifier: Apache-2.0
#include "graph/tensor_arg.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <variant>

#include "core/shape.h"
#include "core/small_tensors.h"
#include "core/tensor.h"

namespace millrace {

struct TensorArg::Literal {
  using Element = std::variant<int64_t, double, bool, std::string>;
  std::vector<int64_t> dims;
  std::vector<Element> elements;  // row by row
  bool is_ragged = false;
  std::optional<Tensor> tensor;  // instead of the others
};

TensorArg::TensorArg(const Output& tensor) : output_(tensor) {}
TensorArg::TensorArg(const TensorArg& other) = default;
TensorArg& TensorArg::operator=(const TensorArg& other) = default;
TensorArg::~TensorArg() = default;

TensorArg::TensorArg(std::initializer_list<int64_t> values) {
  Begin(1, values.size());
  for (const int64_t value : values) Add(value);
}

TensorArg::TensorArg(const Shape& shape) : TensorArg(PartialShape(shape)) {}

TensorArg::TensorArg(const PartialShape& shape) {
  // Where the rank is not known -1 stands for the whole, as ops have it.
  if (!shape.has_rank()) {
    Begin(0, 0);
    Add(int64_t{-1});
    return;
  }
  Begin(1, shape.dims().size());
  for (const int64_t dim : shape.dims()) Add(dim);
}

TensorArg::TensorArg(const Tensor& value) : literal_(std::make_shared<Literal>()) {
  literal_->tensor = value;
}

void TensorArg::Begin(int rank, size_t size) {
  literal_ = std::make_shared<Literal>();
  if (rank > 0) literal_->dims.push_back(static_cast<int64_t>(size));
  if (rank > 1) literal_->dims.push_back(0);
}

void TensorArg::AddRow(size_t size) {
  const auto length = static_cast<int64_t>(size);
  if (literal_->elements.empty() && literal_->dims[1] == 0) literal_->dims[1] = length;
  literal_->is_ragged = literal_->is_ragged || literal_->dims[1] != length;
}

void TensorArg::Add(int64_t value) { literal_->elements.emplace_back(value); }
void TensorArg::Add(double value) { literal_->elements.emplace_back(value); }
void TensorArg::Add(bool value) { literal_->elements.emplace_back(value); }
void TensorArg::Add(absl::string_view value) {
  literal_->elements.emplace_back(std::string(value));
}

DType TensorArg::own_type() const {
  if (literal_->tensor) return literal_->tensor->dtype();
  DType type = DT_INT32;
  for (const Literal::Element& element : literal_->elements) {
    if (std::holds_alternative<std::string>(element)) return DT_STRING;
    if (std::holds_alternative<bool>(element)) return DT_BOOL;
    if (std::holds_alternative<double>(element)) return DT_FLOAT;
    const int64_t value = std::get<int64_t>(element);
    if (value < INT32_MIN || value > INT32_MAX) type = DT_INT64;
  }
  return type;
}

namespace {

// One element of a literal as a scalar of the dtype.
struct ElementAs {
  DType dtype;

  StatusOr<Tensor> operator()(int64_t value) const { return ScalarTensor(dtype, value); }
  StatusOr<Tensor> operator()(double value) const { return ScalarTensor(dtype, value); }
  StatusOr<Tensor> operator()(bool value) const {
    if (dtype == DT_BOOL) return Tensor::Scalar<bool>(value);
    return InvalidArgument("a value must be of the dtype ", dtype, ", got a bool");
  }
  StatusOr<Tensor> operator()(const std::string& value) const {
    if (dtype == DT_STRING) return Tensor::Scalar<std::string>(value);
    return InvalidArgument("a value must be of the dtype ", dtype, ", got the text '", value, "'");
  }
};

}  // namespace

StatusOr<Tensor> TensorArg::As(DType dtype) const {
  const Literal& literal = *literal_;
  if (literal.tensor) {
    if (literal.tensor->dtype() == dtype) return *literal.tensor;
    return InvalidArgument("a Tensor must be of the dtype ", dtype, ", got ",
                           literal.tensor->dtype());
  }
  if (literal.is_ragged) {
    return InvalidArgument("all rows of a list must be as long as the first, ", literal.dims[1]);
  }
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(literal.dims));
  MR_ASSIGN_OR_RETURN(Tensor result, Tensor::Allocate(dtype, shape));
  for (size_t i = 0; i < literal.elements.size(); ++i) {
    MR_ASSIGN_OR_RETURN(const Tensor element, std::visit(ElementAs{dtype}, literal.elements[i]));
    if (dtype == DT_STRING) {
      result.mutable_raw<std::string>()[i] = element.raw_scalar<std::string>();
    } else {
      const size_t size = DTypeSize(dtype);
      std::memcpy(result.mutable_bytes().data() + i * size, element.bytes().data(), size);
    }
  }
  return result;
}

}  // namespace millrace
