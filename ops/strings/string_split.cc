// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_split.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/loops/strided_copy.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- StringSplit ---------------------------------------------------------------------------------

// How many words there are is left to the kernel.
struct StringSplitRule {
  bool skip_empty = true;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "skip_empty", &skip_empty); }
  Status operator()(RuleContext* c) const {
    const PartialShape& input = c->input(0);
    const PartialShape& delimiter = c->input(1);
    if (input.has_rank() && input.rank() != 1) {
      return InvalidArgument("input must be a vector, got shape ", input);
    }
    if (delimiter.has_rank() && delimiter.rank() != 0) {
      return InvalidArgument("delimiter must be a scalar, got shape ", delimiter);
    }
    c->set_output(0, {-1, 2});
    c->set_output(1, {-1});
    c->set_output(2, {2});
    return absl::OkStatus();
  }
};

std::vector<std::string> WordsOf(const std::string& text, const std::string& delimiters,
                                 bool skip_empty) {
  std::vector<std::string> words;
  if (delimiters.empty()) {
    for (const char c : text) words.emplace_back(1, c);
    return words;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(delimiters, begin), text.size());
    if (end > begin || !skip_empty) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

Status RunStringSplit(KernelContext* ctx, const StringSplitRule& rule) {
  const absl::Span<const std::string> texts = ctx->input(0).raw<std::string>();
  const std::string& delimiters = ctx->input(1).raw_scalar<std::string>();
  std::vector<std::string> words;
  std::vector<int64_t> places;  // string, number of the word in it
  int64_t longest = 0;
  for (size_t row = 0; row < texts.size(); ++row) {
    int64_t number = 0;
    for (std::string& word : WordsOf(texts[row], delimiters, rule.skip_empty)) {
      words.push_back(std::move(word));
      places.insert(places.end(), {static_cast<int64_t>(row), number++});
    }
    longest = std::max(longest, number);
  }
  MR_ASSIGN_OR_RETURN(const Shape places_shape,
                      Shape::Make({static_cast<int64_t>(words.size()), 2}));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, places_shape));
  std::copy(places.begin(), places.end(), indices->mutable_raw<int64_t>().begin());
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, Shape::Vector(words.size())));
  std::move(words.begin(), words.end(), values->mutable_raw<std::string>().begin());
  MR_ASSIGN_OR_RETURN(Tensor * shape, ctx->AllocateOutput(2));
  shape->mutable_raw<int64_t>()[0] = static_cast<int64_t>(texts.size());
  shape->mutable_raw<int64_t>()[1] = longest;
  return absl::OkStatus();
}

const OpRegistration kStringSplit =
    OpSpec("StringSplit",
           "input: string, delimiter: string -> indices: int64, values: string, shape: int64",
           "skip_empty: bool = true")
        .With(RuledKernelFor<StringSplitRule>(RunStringSplit))
        .NotDifferentiable();

// --- ReduceJoin ----------------------------------------------------------------------------------

// The dimensions that are joined, counted from the front, in their order.
StatusOr<std::vector<int>> JoinedDims(int rank, absl::Span<const int64_t> reduction_indices) {
  std::vector<int> dims;
  for (size_t i = 0; i < reduction_indices.size(); ++i) {
    const StatusOr<int> dim = ResolveAxis(reduction_indices[i], rank);
    if (!dim.ok()) {
      return InvalidArgument("reduction_indices[", i, "] must be in [", -rank, ", ", rank,
                             "), got ", reduction_indices[i]);
    }
    if (std::find(dims.begin(), dims.end(), *dim) != dims.end()) {
      return InvalidArgument("reduction_indices must name a dimension once, got ", *dim, " twice");
    }
    dims.push_back(*dim);
  }
  return dims;
}

struct ReduceJoinRule {
  bool keep_dims = false;
  std::string separator;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "keep_dims", &keep_dims, "separator", &separator);
  }
  StatusOr<Planned<std::vector<int>>> operator()(RuleContext* c) const {
    const PartialShape& inputs = c->input(0);
    // Of any rank, as they always were.
    const Tensor* const known = c->input_tensor(1);
    const PartialInts indices = known == nullptr ? PartialInts() : PartialInts(known->ints());
    if (!inputs.has_rank()) return inputs;
    if (!indices.all_known()) {
      return keep_dims ? PartialShape::UnknownOfRank(inputs.rank()) : PartialShape();
    }
    MR_ASSIGN_OR_RETURN(const std::vector<int> joined, JoinedDims(inputs.rank(), indices.values()));
    std::vector<int64_t> dims;
    for (int d = 0; d < inputs.rank(); ++d) {
      const bool is_joined = std::find(joined.begin(), joined.end(), d) != joined.end();
      if (!is_joined || keep_dims) dims.push_back(is_joined ? 1 : inputs.dim(d));
    }
    return WithPlan(PartialShape::Make(dims), joined);
  }
};

Status RunReduceJoin(KernelContext* ctx, const ReduceJoinRule& rule) {
  const Tensor& inputs = ctx->input(0);
  const std::vector<int>& joined = ctx->plan(rule);
  if (joined.empty()) return ctx->PassInput(0);
  std::vector<int> order;  // the other dimensions, and those that are joined, the last one first
  for (int d = 0; d < inputs.rank(); ++d) {
    if (std::find(joined.begin(), joined.end(), d) == joined.end()) order.push_back(d);
  }
  order.insert(order.end(), joined.rbegin(), joined.rend());
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  if (inputs.num_elements() == 0) return absl::OkStatus();  // empty texts, or none
  const auto strides = math::DenseStrides(inputs.shape().dims());
  const std::string* from = inputs.raw<std::string>().data();
  std::string* const texts = out->mutable_raw<std::string>().data();
  const int64_t count = inputs.num_elements() / out->num_elements();
  for (int64_t i = 0; i < inputs.num_elements(); ++i) {
    int64_t at = 0, rest = i;  // element i when one walks by `order`, the last one fastest
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
      at += rest % inputs.dim(*d) * strides[static_cast<size_t>(*d)];
      rest /= inputs.dim(*d);
    }
    std::string& text = texts[i / count];
    if (i % count > 0) text += rule.separator;
    text += from[at];
  }
  return absl::OkStatus();
}

const OpRegistration kReduceJoin =
    OpSpec("ReduceJoin", "inputs: string, reduction_indices: int32 -> output: string",
           "keep_dims: bool = false; separator: string = ''")
        .With(RuledKernelFor<ReduceJoinRule>(RunReduceJoin))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
