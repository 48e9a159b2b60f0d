// SPDX-License-Identifier: Apache-2.0
#include "core/shape.h"

#include <algorithm>
#include <cassert>
#include <ostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/tensor_shape.pb.h"

namespace millrace {
namespace {

constexpr int64_t kUnknownDim = -1;

std::string DimsToString(absl::Span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ',';
    if (dims[i] == kUnknownDim) {
      text += '?';
    } else {
      absl::StrAppend(&text, dims[i]);
    }
  }
  text += ']';
  return text;
}

// A shape of hostile rank is not printed in full.
std::string DimsForMessage(absl::Span<const int64_t> dims) {
  constexpr size_t kMaxPrinted = 16;
  if (dims.size() <= kMaxPrinted) return DimsToString(dims);
  std::string text = DimsToString(dims.subspan(0, kMaxPrinted));
  text.pop_back();
  return absl::StrCat(text, ",... ", dims.size() - kMaxPrinted, " more]");
}

// The rules of both kinds of shape; `lowest` is the smallest legal dimension. The product leaves
// out unknown dimensions and zeros, so that no partial product of a legal shape overflows.
Status CheckDims(absl::Span<const int64_t> dims, int64_t lowest) {
  if (dims.size() > static_cast<size_t>(Shape::kMaxRank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape: the rank must be at most ", Shape::kMaxRank, ", got ", dims.size()));
  }
  int64_t product = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < lowest) {
      return absl::InvalidArgumentError(absl::StrCat("Shape ", DimsForMessage(dims), ": dimension ",
                                                     i, " must be >= ", lowest, ", got ", dims[i]));
    }
    if (dims[i] <= 0) continue;
    if (dims[i] > Shape::kMaxElements / product) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Shape ", DimsForMessage(dims), ": the product of the dimensions must be at most ",
          Shape::kMaxElements, ", got more at dimension ", i));
    }
    product *= dims[i];
  }
  return absl::OkStatus();
}

int64_t Product(absl::Span<const int64_t> dims) {
  int64_t product = 1;
  for (const int64_t dim : dims) {
    // Zero first: [2^40,2^40,0] is no legal shape, but no order of factors may overflow anyway.
    if (dim == 0) return 0;
    product *= dim;
  }
  return product;
}

StatusOr<absl::InlinedVector<int64_t, 4>> DimsFromProto(const tensorflow::TensorShapeProto& proto) {
  if (proto.dim_size() > Shape::kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat("Shape: the rank must be at most ",
                                                   Shape::kMaxRank, ", got ", proto.dim_size()));
  }
  absl::InlinedVector<int64_t, 4> dims;
  dims.reserve(static_cast<size_t>(proto.dim_size()));
  for (const auto& dim : proto.dim()) dims.push_back(dim.size());
  return dims;
}

void DimsToProto(absl::Span<const int64_t> dims, tensorflow::TensorShapeProto* proto) {
  proto->Clear();
  for (const int64_t dim : dims) proto->add_dim()->set_size(dim);
}

Status CannotBroadcast(const std::string& a, const std::string& b) {
  return absl::InvalidArgumentError(absl::StrCat("Incompatible shapes: ", a, " vs. ", b));
}

// Dimension `i` counted from the left of a result of rank `rank`; missing ones are 1.
int64_t BroadcastDim(absl::Span<const int64_t> dims, size_t rank, size_t i) {
  const size_t missing = rank - dims.size();
  return i < missing ? 1 : dims[i - missing];
}

// NumPy's rule for one dimension, with unknown ones. False when it does not hold.
bool BroadcastOneDim(int64_t a, int64_t b, int64_t* out) {
  if (a == 1) {
    *out = b;
  } else if (b == 1 || a == b) {
    *out = a;
  } else if (a == kUnknownDim) {
    *out = b;  // b is not 1, so a must turn out to be 1 or b
  } else if (b == kUnknownDim) {
    *out = a;
  } else {
    return false;
  }
  return true;
}

bool BroadcastDims(absl::Span<const int64_t> a, absl::Span<const int64_t> b,
                   absl::InlinedVector<int64_t, 4>* out) {
  const size_t rank = std::max(a.size(), b.size());
  out->resize(rank);
  for (size_t i = 0; i < rank; ++i) {
    if (!BroadcastOneDim(BroadcastDim(a, rank, i), BroadcastDim(b, rank, i), &(*out)[i])) {
      return false;
    }
  }
  return true;
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> dims) : dims_(dims) {
  const Status legal = CheckDims(dims_, /*lowest=*/0);
  if (!legal.ok()) EndProgram(legal);
}

StatusOr<Shape> Shape::Make(absl::Span<const int64_t> dims) {
  MR_RETURN_IF_ERROR(CheckDims(dims, 0));
  Shape shape;
  shape.dims_.assign(dims.begin(), dims.end());
  return shape;
}

StatusOr<Shape> Shape::FromProto(const tensorflow::TensorShapeProto& proto) {
  if (proto.unknown_rank()) {
    return absl::InvalidArgumentError("Shape: the rank must be known, got an unknown rank");
  }
  MR_ASSIGN_OR_RETURN(const auto dims, DimsFromProto(proto));
  return Make(dims);
}

Shape Shape::Vector(size_t size) {
  assert(size <= static_cast<size_t>(kMaxElements));
  Shape shape;
  shape.dims_.push_back(static_cast<int64_t>(size));
  return shape;
}

int64_t Shape::NumElements(int begin, int end) const {
  return Product(dims().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
}

Shape Shape::Slice(int begin, int end) const {
  Shape shape;
  shape.dims_.assign(dims_.begin() + begin, dims_.begin() + end);
  return shape;
}

Shape Shape::WithoutDim(int i) const {
  Shape shape = *this;
  shape.dims_.erase(shape.dims_.begin() + i);
  return shape;
}

Shape Shape::WithInsertedOne(int i) const {
  Shape shape = *this;
  shape.dims_.insert(shape.dims_.begin() + i, 1);
  return shape;
}

void Shape::ToProto(tensorflow::TensorShapeProto* proto) const { DimsToProto(dims_, proto); }

std::string Shape::ToString() const { return DimsToString(dims_); }

PartialShape::PartialShape(const Shape& shape)
    : dims_(shape.dims().begin(), shape.dims().end()), has_rank_(true) {}

PartialShape::PartialShape(std::initializer_list<int64_t> dims)
    : dims_(dims), has_rank_(true), valid_(CheckDims(dims_, kUnknownDim).ok()) {}

StatusOr<PartialShape> PartialShape::Make(absl::Span<const int64_t> dims) {
  MR_RETURN_IF_ERROR(CheckDims(dims, kUnknownDim));
  PartialShape shape;
  shape.dims_.assign(dims.begin(), dims.end());
  shape.has_rank_ = true;
  return shape;
}

StatusOr<PartialShape> PartialShape::FromProto(const tensorflow::TensorShapeProto& proto) {
  if (proto.unknown_rank()) {
    if (proto.dim_size() > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Shape: an unknown rank must come without dimensions, got ", proto.dim_size()));
    }
    return PartialShape();
  }
  MR_ASSIGN_OR_RETURN(const auto dims, DimsFromProto(proto));
  return Make(dims);
}

StatusOr<PartialShape> PartialShape::Parse(absl::string_view text) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  if (rest == "<unknown>") return PartialShape();
  if (!absl::ConsumePrefix(&rest, "[") || !absl::ConsumeSuffix(&rest, "]")) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape: the text must be like '[2,?]' or '<unknown>', got '", text, "'"));
  }
  absl::InlinedVector<int64_t, 4> dims;
  if (!absl::StripAsciiWhitespace(rest).empty()) {
    for (absl::string_view part : absl::StrSplit(rest, ',')) {
      part = absl::StripAsciiWhitespace(part);
      int64_t dim = kUnknownDim;
      if (part != "?" && (!absl::SimpleAtoi(part, &dim) || dim < 0)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Shape '", text, "': a dimension must be a number >= 0 or '?', got '", part, "'"));
      }
      dims.push_back(dim);
    }
  }
  return Make(dims);
}

PartialShape PartialShape::UnknownOfRank(int rank) {
  assert(rank >= 0 && rank <= Shape::kMaxRank);
  PartialShape shape;
  shape.dims_.assign(static_cast<size_t>(rank), kUnknownDim);
  shape.has_rank_ = true;
  return shape;
}

bool PartialShape::IsFullyDefined() const {
  return has_rank_ && valid_ &&
         std::none_of(dims_.begin(), dims_.end(), [](int64_t dim) { return dim == kUnknownDim; });
}

StatusOr<Shape> PartialShape::ToShape() const {
  if (!has_rank_) {
    return absl::InvalidArgumentError("Shape: the rank must be known, got <unknown>");
  }
  if (valid_ && !IsFullyDefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape: every dimension must be known, got ", ToString()));
  }
  return Shape::Make(dims_);
}

int64_t PartialShape::num_elements() const { return IsFullyDefined() ? Product(dims_) : -1; }

bool PartialShape::IsCompatibleWith(const PartialShape& other) const {
  if (!has_rank_ || !other.has_rank_) return true;
  return std::equal(
      dims_.begin(), dims_.end(), other.dims_.begin(), other.dims_.end(),
      [](int64_t a, int64_t b) { return a == b || a == kUnknownDim || b == kUnknownDim; });
}

bool PartialShape::IsCompatibleWith(const Shape& other) const {
  if (!has_rank_) return true;
  const absl::Span<const int64_t> dims = other.dims();
  return std::equal(dims_.begin(), dims_.end(), dims.begin(), dims.end(),
                    [](int64_t a, int64_t b) { return a == b || a == kUnknownDim; });
}

StatusOr<PartialShape> PartialShape::MergeWith(const PartialShape& other) const {
  if (!has_rank_) return other;
  if (!other.has_rank_) return *this;
  if (rank() != other.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("Shapes must be equal rank, but are ", rank(),
                                                   " and ", other.rank(), " (", ToString(), " and ",
                                                   other.ToString(), ")"));
  }
  absl::InlinedVector<int64_t, 4> merged = dims_;
  for (size_t i = 0; i < merged.size(); ++i) {
    const int64_t theirs = other.dims_[i];
    if (merged[i] == kUnknownDim) {
      merged[i] = theirs;
    } else if (theirs != kUnknownDim && theirs != merged[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Dimension ", i, " in both shapes must be equal, but are ", merged[i], " and ", theirs,
          ". Shapes are ", ToString(), " and ", other.ToString(), "."));
    }
  }
  return Make(merged);
}

void PartialShape::ToProto(tensorflow::TensorShapeProto* proto) const {
  DimsToProto(dims_, proto);
  if (!has_rank_) proto->set_unknown_rank(true);
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.ToString(); }
std::ostream& operator<<(std::ostream& out, const PartialShape& shape) {
  return out << shape.ToString();
}

std::string PartialShape::ToString() const { return has_rank_ ? DimsToString(dims_) : "<unknown>"; }

StatusOr<int> ResolveAxis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("axis must be in [", -rank, ", ", rank, "), got ", axis));
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

StatusOr<int64_t> CheckedProduct(int64_t a, int64_t b) {
  assert(a >= 0 && b >= 0);
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > Shape::kMaxElements) {
    return absl::InvalidArgumentError(absl::StrCat("the product of sizes must be at most ",
                                                   Shape::kMaxElements, ", got ", a, " * ", b));
  }
  return product;
}

StatusOr<Shape> BroadcastShape(const Shape& a, const Shape& b) {
  absl::InlinedVector<int64_t, 4> dims;
  if (!BroadcastDims(a.dims(), b.dims(), &dims)) return CannotBroadcast(a.ToString(), b.ToString());
  return Shape::Make(dims);
}

StatusOr<PartialShape> BroadcastShape(const PartialShape& a, const PartialShape& b) {
  if (!a.has_rank() || !b.has_rank()) return PartialShape();
  absl::InlinedVector<int64_t, 4> dims;
  if (!BroadcastDims(a.dims(), b.dims(), &dims)) return CannotBroadcast(a.ToString(), b.ToString());
  return PartialShape::Make(dims);
}

}  // namespace millrace
