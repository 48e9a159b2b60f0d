// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_split.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/loops/strided_copy.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- StringSplit ---------------------------------------------------------------------------------

Status StringSplitShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 1).status());
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0).status());
  c->set_output(0, PartialShape({-1, 2}));
  c->set_output(1, PartialShape({-1}));
  c->set_output(2, PartialShape({2}));
  return absl::OkStatus();
}

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

class StringSplitKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(skip_empty_, c->GetAttr<bool>("skip_empty"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Tensor input = ctx->input(0);
    if (!input.shape().is_vector()) {
      return absl::InvalidArgumentError(
          absl::StrCat("input must be a vector, got shape ", input.shape().ToString()));
    }
    MR_ASSIGN_OR_RETURN(const std::string delimiters,
                        ctx->ScalarInput<std::string>(1, "delimiter"));
    std::vector<std::string> words;
    std::vector<int64_t> places;  // string, number of the word in it
    int64_t longest = 0;
    for (int64_t row = 0; row < input.num_elements(); ++row) {
      int64_t number = 0;
      for (std::string& word :
           WordsOf(input.raw<std::string>()[static_cast<size_t>(row)], delimiters, skip_empty_)) {
        words.push_back(std::move(word));
        places.push_back(row);
        places.push_back(number++);
      }
      longest = std::max(longest, number);
    }
    MR_ASSIGN_OR_RETURN(const Shape indices_shape,
                        Shape::Make({static_cast<int64_t>(words.size()), 2}));
    MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, indices_shape));
    std::copy(places.begin(), places.end(), indices->mutable_raw<int64_t>().begin());
    MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, Shape::Vector(words.size())));
    std::move(words.begin(), words.end(), values->mutable_raw<std::string>().begin());
    MR_ASSIGN_OR_RETURN(Tensor * shape, ctx->AllocateOutput(2, Shape::Vector(2)));
    shape->mutable_raw<int64_t>()[0] = input.num_elements();
    shape->mutable_raw<int64_t>()[1] = longest;
    return absl::OkStatus();
  }

 private:
  bool skip_empty_ = true;
};

const OpRegistration kStringSplit = OpSpec("StringSplit")
                                        .Input("input: string")
                                        .Input("delimiter: string")
                                        .Output("indices: int64")
                                        .Output("values: string")
                                        .Output("shape: int64")
                                        .Attr("skip_empty: bool = true")
                                        .Shape(StringSplitShape)
                                        .NotDifferentiable();
const KernelRegistration kStringSplitKernel = KernelFor<StringSplitKernel>("StringSplit");

// --- ReduceJoin ----------------------------------------------------------------------------------

// The dimensions that are joined, counted from the front, in their order; the only place that knows
// which are legal.
StatusOr<std::vector<int>> JoinedDims(int rank, absl::Span<const int64_t> reduction_indices) {
  std::vector<int> dims;
  for (size_t i = 0; i < reduction_indices.size(); ++i) {
    const StatusOr<int> dim = ResolveAxis(reduction_indices[i], rank);
    if (!dim.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("reduction_indices[", i, "] must be in [",
                                                     -rank, ", ", rank, "), got ",
                                                     reduction_indices[i]));
    }
    if (std::find(dims.begin(), dims.end(), *dim) != dims.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("reduction_indices must name a dimension once, got ", *dim, " twice"));
    }
    dims.push_back(*dim);
  }
  return dims;
}

StatusOr<PartialShape> JoinedShape(const PartialShape& inputs, absl::Span<const int> joined,
                                   bool keep_dims) {
  std::vector<int64_t> dims;
  for (int d = 0; d < inputs.rank(); ++d) {
    const bool gone = std::find(joined.begin(), joined.end(), d) != joined.end();
    if (!gone) dims.push_back(inputs.dim(d));
    if (gone && keep_dims) dims.push_back(1);
  }
  return PartialShape::Make(dims);
}

Status ReduceJoinShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool keep_dims, c->GetAttr<bool>("keep_dims"));
  if (!c->input(0).has_rank()) return absl::OkStatus();
  const std::optional<std::vector<int64_t>> indices = ConstantInts(c, 1);
  if (!indices) {
    if (keep_dims) c->set_output(0, PartialShape::UnknownOfRank(c->input(0).rank()));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const std::vector<int> joined, JoinedDims(c->input(0).rank(), *indices));
  MR_ASSIGN_OR_RETURN(PartialShape shape, JoinedShape(c->input(0), joined, keep_dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// Offsets of all indices of a box, the last dimension fastest.
std::vector<int64_t> BoxOffsets(absl::Span<const int64_t> dims, absl::Span<const int64_t> strides) {
  std::vector<int64_t> offsets = {0};
  for (size_t d = 0; d < dims.size(); ++d) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * static_cast<size_t>(dims[d]));
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < dims[d]; ++i) next.push_back(offset + i * strides[d]);
    }
    offsets = std::move(next);
  }
  return offsets;
}

class ReduceJoinKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(keep_dims_, c->GetAttr<bool>("keep_dims"));
    MR_ASSIGN_OR_RETURN(separator_, c->GetAttr<std::string>("separator"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Tensor inputs = ctx->input(0);
    const std::vector<int64_t> indices = IntElements(ctx->input(1));
    MR_ASSIGN_OR_RETURN(const std::vector<int> joined, JoinedDims(inputs.rank(), indices));
    MR_ASSIGN_OR_RETURN(const PartialShape known, JoinedShape(inputs.shape(), joined, keep_dims_));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    if (joined.empty()) {
      ctx->set_output(0, ctx->TakeInput(0));
      return absl::OkStatus();
    }
    // Offsets of the results' first strings, and of a result's strings from its first one.
    const auto strides = math::DenseStrides(inputs.shape().dims());
    std::vector<int64_t> kept_dims, kept_strides, joined_dims, joined_strides;
    for (int d = 0; d < inputs.rank(); ++d) {
      if (std::find(joined.begin(), joined.end(), d) != joined.end()) continue;
      kept_dims.push_back(inputs.dim(d));
      kept_strides.push_back(strides[static_cast<size_t>(d)]);
    }
    for (size_t i = joined.size(); i-- > 0;) {
      joined_dims.push_back(inputs.dim(joined[i]));
      joined_strides.push_back(strides[static_cast<size_t>(joined[i])]);
    }
    const std::vector<int64_t> starts = BoxOffsets(kept_dims, kept_strides);
    const std::vector<int64_t> steps = BoxOffsets(joined_dims, joined_strides);
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    const std::string* from = inputs.raw<std::string>().data();
    for (size_t i = 0; i < starts.size(); ++i) {
      std::string& text = out->mutable_raw<std::string>()[i];
      for (size_t k = 0; k < steps.size(); ++k) {
        if (k > 0) text += separator_;
        text += from[starts[i] + steps[k]];
      }
    }
    return absl::OkStatus();
  }

 private:
  bool keep_dims_ = false;
  std::string separator_;
};

const OpRegistration kReduceJoin = OpSpec("ReduceJoin")
                                       .Input("inputs: string")
                                       .Input("reduction_indices: int32")
                                       .Output("output: string")
                                       .Attr("keep_dims: bool = false")
                                       .Attr("separator: string = ''")
                                       .Shape(ReduceJoinShape)
                                       .NotDifferentiable();
const KernelRegistration kReduceJoinKernel = KernelFor<ReduceJoinKernel>("ReduceJoin");

}  // namespace
}  // namespace millrace
