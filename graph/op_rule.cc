// SPDX-License-Identifier: Apache-2.0
#include "graph/op_rule.h"

#include <algorithm>
#include <limits>
#include <string>

namespace millrace {
namespace {

// Of an int vector that a rule reads: what PartialInts::size() can tell.
constexpr int64_t kMaxElements = std::numeric_limits<int>::max();

bool IsIndexTensor(const Tensor* t) { return t != nullptr && IsIndexType(t->dtype()); }

std::string NameOf(int i, absl::string_view name) {
  return name.empty() ? absl::StrCat("input ", i) : std::string(name);
}

}  // namespace

PartialInts::PartialInts(IntSpan ints) : values_(ints.ToVector()), has_size_(true) {}

PartialInts::PartialInts(const PartialValue& value) : has_size_(true) {
  bool all_known = true;
  for (const std::optional<int64_t>& element : value.elements) {
    values_.push_back(element.value_or(-1));
    unknown_.push_back(element.has_value() ? 0 : 1);
    all_known = all_known && element.has_value();
  }
  if (all_known) unknown_.clear();
}

PartialInts PartialInts::UnknownOfSize(int64_t size) {
  PartialInts ints;
  if (size > kMaxConstantElements) return ints;
  ints.has_size_ = true;
  ints.values_.assign(static_cast<size_t>(size), -1);
  ints.unknown_.assign(static_cast<size_t>(size), 1);
  return ints;
}

StatusOr<PartialShape> RuleContext::InputWithRank(int i, int rank, absl::string_view name) const {
  const PartialShape& in = input(i);
  if (!in.has_rank()) return PartialShape::UnknownOfRank(rank);
  if (in.rank() == rank) return in;
  return InvalidArgument(NameOf(i, name), " must have rank ", rank, ", got shape ", in);
}

StatusOr<PartialShape> RuleContext::InputWithRankAtLeast(int i, int rank,
                                                         absl::string_view name) const {
  const PartialShape& in = input(i);
  if (!in.has_rank() || in.rank() >= rank) return in;
  return InvalidArgument(NameOf(i, name), " must have rank at least ", rank, ", got shape ", in);
}

StatusOr<PartialInts> RuleContext::IntVector(int i, absl::string_view name, bool allow_scalar) {
  const PartialShape& shape = input(i);
  if (shape.has_rank() && shape.rank() != 1 && !(allow_scalar && shape.rank() == 0)) {
    return InvalidArgument(name, " must be a ", allow_scalar ? "scalar or a vector" : "vector",
                           ", got shape ", shape);
  }
  if (shape.has_rank() && shape.num_elements() > kMaxElements) {
    return InvalidArgument(name, " must have at most ", kMaxElements, " elements, got shape ",
                           shape);
  }
  const Tensor* const constant = input_tensor(i);
  if (IsIndexTensor(constant)) return PartialInts(constant->ints());
  if (source_ != nullptr && constant == nullptr) {
    const std::optional<PartialValue> value = source_->PartialInput(i);
    if (value && (allow_scalar || !value->is_scalar)) return PartialInts(*value);
  }
  if (shape.has_rank() && shape.num_elements() >= 0) {
    return PartialInts::UnknownOfSize(shape.num_elements());
  }
  return PartialInts();
}

StatusOr<std::optional<int64_t>> RuleContext::IntScalar(int i, absl::string_view name,
                                                        bool allow_single) {
  const PartialShape& shape = input(i);
  const bool is_legal = !shape.has_rank() || shape.rank() == 0 ||
                        (allow_single && (!shape.IsFullyDefined() || shape.num_elements() == 1));
  if (!is_legal) return InvalidArgument(name, " must be a scalar, got shape ", shape);
  const Tensor* const constant = input_tensor(i);
  if (IsIndexTensor(constant) && constant->num_elements() == 1) {
    return std::optional<int64_t>(constant->ints()[0]);
  }
  if (source_ != nullptr && constant == nullptr) {
    const std::optional<PartialValue> value = source_->PartialInput(i);
    if (value && value->elements.size() == 1 && (allow_single || value->is_scalar)) {
      return value->elements[0];
    }
  }
  return std::optional<int64_t>();
}

StatusOr<PartialShape> RuleContext::input_as_shape(int i) {
  const PartialShape& in = input(i);
  if (in.has_rank() && in.rank() > 1) {
    return InvalidArgument("input ", i, " must be a vector that gives a shape, got shape ", in);
  }
  if (in.has_rank() && in.rank() == 1 && in.dim(0) > Shape::kMaxRank) {
    return InvalidArgument("input ", i, " must give a shape of rank <= ", Shape::kMaxRank, ", got ",
                           in.dim(0));
  }
  PartialShape result;
  if (source_ != nullptr) {
    MR_ASSIGN_OR_RETURN(result, source_->ShapeInput(i));
  }
  if (!result.has_rank() && in.has_rank() && in.rank() == 1 && in.dim(0) >= 0) {
    return PartialShape::UnknownOfRank(static_cast<int>(in.dim(0)));
  }
  return result;
}

StatusOr<PartialShape> MergeAll(RuleContext* c, int begin_input, int end_input) {
  PartialShape merged;
  for (int i = begin_input; i < end_input; ++i) {
    StatusOr<PartialShape> next = merged.MergeWith(c->input(i));
    if (!next.ok()) {
      return InvalidArgument("input ", i, " must have the shape of the inputs before it, ", merged,
                             ", got ", c->input(i));
    }
    merged = *std::move(next);
  }
  return merged;
}

StatusOr<PartialShape> ShapeOfElements(const Tensor& ints) {
  if (ints.rank() == 0) {
    if (ints.ints()[0] == -1) return PartialShape();
    return InvalidArgument(
        "a shape must be a vector, or the scalar -1 when its rank is unknown, got the scalar ",
        ints.ints()[0]);
  }
  std::vector<int64_t> dims = ints.ints().ToVector();
  for (int64_t& dim : dims) dim = std::max<int64_t>(dim, -1);
  return PartialShape::Make(dims);
}

}  // namespace millrace
