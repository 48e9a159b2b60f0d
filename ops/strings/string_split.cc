// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_split.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "ops/loops/strided_copy.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- StringSplit ---------------------------------------------------------------------------------

// How many words there are is left to the kernel.
Status SparseMatrixOfWords(RuleContext* c, absl::string_view separator) {
  const PartialShape& input = c->input(0);
  if (input.has_rank() && input.rank() != 1) {
    return InvalidArgument("input must be a vector, got shape ", input);
  }
  if (c->input(1).has_rank() && c->input(1).rank() != 0) {
    return InvalidArgument(separator, " must be a scalar, got shape ", c->input(1));
  }
  c->set_output(0, {-1, 2});
  c->set_output(1, {-1});
  c->set_output(2, {2});
  return absl::OkStatus();
}

using Words = std::vector<absl::string_view>;  // of a text that is somewhere else

// split(text, &words) adds the words of one text.
template <typename Split>
Status MakeWords(KernelContext* ctx, Split split) {
  const absl::Span<const std::string> texts = ctx->input(0).raw<std::string>();
  Words words;
  std::vector<int64_t> ends;  // of each text's words
  int64_t longest = 0;
  for (const std::string& text : texts) {
    const size_t before = words.size();
    split(text, &words);
    longest = std::max(longest, static_cast<int64_t>(words.size() - before));
    ends.push_back(static_cast<int64_t>(words.size()));
  }
  MR_ASSIGN_OR_RETURN(const Shape places_shape,
                      Shape::Make({static_cast<int64_t>(words.size()), 2}));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, places_shape));
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, Shape::Vector(words.size())));
  int64_t* place = indices->mutable_raw<int64_t>().data();
  std::string* value = values->mutable_raw<std::string>().data();
  int64_t word = 0;
  for (size_t row = 0; row < ends.size(); ++row) {
    for (int64_t number = 0; word < ends[row]; ++word, ++number) {
      *place++ = static_cast<int64_t>(row);
      *place++ = number;
      const absl::string_view text = words[static_cast<size_t>(word)];
      (value++)->assign(text.data(), text.size());
    }
  }
  MR_ASSIGN_OR_RETURN(Tensor * shape, ctx->AllocateOutput(2));
  shape->mutable_raw<int64_t>()[0] = static_cast<int64_t>(texts.size());
  shape->mutable_raw<int64_t>()[1] = longest;
  return absl::OkStatus();
}

struct StringSplitRule {
  bool skip_empty = true;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "skip_empty", &skip_empty); }
  Status operator()(RuleContext* c) const { return SparseMatrixOfWords(c, "delimiter"); }
};

Status RunStringSplit(KernelContext* ctx, const StringSplitRule& rule) {
  const std::string& delimiters = ctx->input(1).raw_scalar<std::string>();
  return MakeWords(ctx, [&](absl::string_view text, Words* words) {
    if (delimiters.empty()) {
      for (size_t i = 0; i < text.size(); ++i) words->push_back(text.substr(i, 1));
      return;
    }
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find_first_of(delimiters, begin), text.size());
      if (end > begin || !rule.skip_empty) words->push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  });
}

const OpRegistration kStringSplit =
    OpSpec("StringSplit",
           "input: string, delimiter: string -> indices: int64, values: string, shape: int64",
           "skip_empty: bool = true")
        .With(RuledKernelFor<StringSplitRule>(RunStringSplit))
        .NotDifferentiable();

// --- StringSplitV2 -------------------------------------------------------------------------------

struct StringSplitV2Rule {
  int64_t maxsplit = -1;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "maxsplit", &maxsplit); }
  Status operator()(RuleContext* c) const { return SparseMatrixOfWords(c, "sep"); }
};

void SplitAt(absl::string_view separator, int64_t maxsplit, absl::string_view text, Words* words) {
  for (int64_t splits = 0; splits != maxsplit; ++splits) {
    const size_t at = text.find(separator);
    if (at == absl::string_view::npos) break;
    words->push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  words->push_back(text);
}

void SplitAtBlanks(int64_t maxsplit, absl::string_view text, Words* words) {
  text = absl::StripLeadingAsciiWhitespace(text);
  for (int64_t splits = 0; splits != maxsplit; ++splits) {
    if (text.empty()) return;
    const auto end = std::find_if(text.begin(), text.end(), [](char c) {
      return absl::ascii_isspace(static_cast<unsigned char>(c));
    });
    const size_t size = static_cast<size_t>(end - text.begin());
    words->push_back(text.substr(0, size));
    text = absl::StripLeadingAsciiWhitespace(text.substr(size));
  }
  words->push_back(text);  // in TensorFlow also where nothing is left
}

Status RunStringSplitV2(KernelContext* ctx, const StringSplitV2Rule& rule) {
  const std::string& separator = ctx->input(1).raw_scalar<std::string>();
  return MakeWords(ctx, [&](absl::string_view text, Words* words) {
    if (rule.maxsplit == 0) {
      words->push_back(text);
    } else if (separator.empty()) {
      SplitAtBlanks(rule.maxsplit, text, words);
    } else {
      SplitAt(separator, rule.maxsplit, text, words);
    }
  });
}

const OpRegistration kStringSplitV2 =
    OpSpec("StringSplitV2",
           "input: string, sep: string -> indices: int64, values: string, shape: int64",
           "maxsplit: int = -1")
        .With(RuledKernelFor<StringSplitV2Rule>(RunStringSplitV2))
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
