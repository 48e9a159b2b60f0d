// SPDX-License-Identifier: Apache-2.0
#include "ops/linalg/einsum.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/scope.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/array/transpose.h"
#include "ops/linalg/matmul.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"

namespace millrace {
namespace {

// One letter for each dimension.
using Labels = std::string;

bool Has(const Labels& labels, char label) { return labels.find(label) != Labels::npos; }

// Those of `labels` that are (or are not) in `others`, in their order.
Labels Common(const Labels& labels, const Labels& others, bool common = true) {
  Labels found;
  for (const char label : labels) {
    if (Has(others, label) == common) found += label;
  }
  return found;
}

struct Equation {
  std::vector<Labels> inputs;
  Labels output;
};

Status CheckLabels(const Labels& labels) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (!absl::ascii_isalpha(static_cast<unsigned char>(labels[i]))) {
      return InvalidArgument("a label must be a letter, got '", labels.substr(i, 1), "'");
    }
    if (labels.find(labels[i]) != i) {
      return Unimplemented("a label must appear once in a tensor, got '", labels, "'");
    }
  }
  return absl::OkStatus();
}

StatusOr<Equation> Parse(absl::string_view text) {
  std::string packed(text);
  packed.erase(std::remove(packed.begin(), packed.end(), ' '), packed.end());
  if (packed.find('.') != std::string::npos) {
    return Unimplemented("there must be a label for each dimension, got '...'");
  }
  const size_t arrow = packed.find("->");
  Equation equation;
  Labels all;
  for (const absl::string_view labels :
       absl::StrSplit(absl::string_view(packed).substr(0, arrow), ',')) {
    equation.inputs.emplace_back(labels);
    MR_RETURN_IF_ERROR(CheckLabels(equation.inputs.back()));
    all += equation.inputs.back();
  }
  if (arrow == std::string::npos) {
    for (const char label : all) {
      if (std::count(all.begin(), all.end(), label) == 1) equation.output += label;
    }
    std::sort(equation.output.begin(), equation.output.end());
    return equation;
  }
  equation.output = packed.substr(arrow + 2);
  MR_RETURN_IF_ERROR(CheckLabels(equation.output));
  for (const char label : equation.output) {
    if (Has(all, label)) continue;
    return InvalidArgument("a label of the result must be one of a tensor's, got '",
                           std::string(1, label), "'");
  }
  return equation;
}

struct Labelled {
  Output tensor;
  Labels labels;
};

// Its dimensions in the order of `labels`, which are the same ones.
Labelled InOrder(const ScopeAt& in, const Labelled& x, const Labels& labels) {
  if (x.labels == labels) return x;
  std::vector<int32_t> perm;
  for (const char label : labels) perm.push_back(static_cast<int32_t>(x.labels.find(label)));
  return {Transpose(in, x.tensor, perm), labels};
}

// Without the labels that are not in `kept`.
Labelled SummedOver(const ScopeAt& in, const Labelled& x, const Labels& kept) {
  const Labels stay = Common(x.labels, kept);
  if (stay == x.labels) return x;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < x.labels.size(); ++i) {
    if (!Has(kept, x.labels[i])) axes.push_back(static_cast<int64_t>(i));
  }
  return {ReduceSum(in, x.tensor, axes), stay};
}

// The sizes of `labels` of x, as an int64 vector: one each, or (`as_one`) their product.
Output Sizes(const ScopeAt& in, const Labelled& x, const Labels& labels, bool as_one) {
  const Output all = ShapeOf(in, x.tensor, {.out_type = DT_INT64});
  std::vector<Output> sizes;
  for (const char label : labels) {
    const auto i = static_cast<int64_t>(x.labels.find(label));
    sizes.push_back(Slice(in, all, {i}, {int64_t{1}}));
  }
  if (sizes.empty()) return Const<int64_t>(in, {1});  // the product of none
  const Output joined = sizes.size() == 1 ? sizes[0] : ConcatV2(in, sizes, 0);
  return as_one && sizes.size() > 1 ? ReduceProd(in, joined, {0}, {.keep_dims = true}) : joined;
}

// The tensor as a matrix (of a batch): dimensions `batch`, then all of `rows`, then all of
// `columns`, in which order x has them.
Output AsMatrix(const ScopeAt& in, const Labelled& x, const Labels& batch, const Labels& rows,
                const Labels& columns) {
  if (rows.size() == 1 && columns.size() == 1) return x.tensor;
  std::vector<Output> sizes;
  if (!batch.empty()) sizes.push_back(Sizes(in, x, batch, false));
  sizes.push_back(Sizes(in, x, rows, true));
  sizes.push_back(Sizes(in, x, columns, true));
  return Reshape(in, x.tensor, ConcatV2(in, sizes, 0));
}

// The products of both, summed over what is neither in the result nor in a later tensor (`kept`).
Labelled Multiplied(const ScopeAt& in, Labelled a, Labelled b, const Labels& kept) {
  a = SummedOver(in, a, kept + b.labels);
  b = SummedOver(in, b, kept + a.labels);
  const Labels common = Common(a.labels, b.labels);
  const Labels batch = Common(common, kept), summed = Common(common, kept, false);
  const Labels left = Common(a.labels, b.labels, false), right = Common(b.labels, a.labels, false);
  const Labels result = batch + left + right;
  if (summed.empty()) {
    // Dimensions of 1 where the other one has its own.
    Output x = InOrder(in, a, batch + left).tensor, y = InOrder(in, b, batch + right).tensor;
    for (size_t i = 0; i < right.size(); ++i) x = ExpandDims(in, x, -1);
    const auto place = static_cast<int32_t>(batch.size());
    for (size_t i = 0; i < left.size(); ++i) y = ExpandDims(in, y, place);
    return {Mul(in, x, y), result};
  }
  a = InOrder(in, a, batch + left + summed);
  b = InOrder(in, b, batch + summed + right);
  const Output x = AsMatrix(in, a, batch, left, summed);
  const Output y = AsMatrix(in, b, batch, summed, right);
  const Output product = batch.empty() ? MatMul(in, x, y) : BatchMatMulV2(in, x, y);
  if (left.size() == 1 && right.size() == 1) return {product, result};
  std::vector<Output> sizes;
  if (!batch.empty()) sizes.push_back(Sizes(in, a, batch, false));
  if (!left.empty()) sizes.push_back(Sizes(in, a, left, false));
  if (!right.empty()) sizes.push_back(Sizes(in, b, right, false));
  if (sizes.empty()) return {Reshape(in, product, {}), result};
  return {Reshape(in, product, sizes.size() == 1 ? sizes[0] : ConcatV2(in, sizes, 0)), result};
}

Status CheckInputs(const Scope& scope, const Equation& equation, absl::Span<const Output> inputs) {
  if (inputs.size() != equation.inputs.size()) {
    return InvalidArgument("there must be ", equation.inputs.size(), " tensors, got ",
                           inputs.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].valid()) {
      return InvalidArgument("inputs[", i,
                             "] must be a tensor of the graph, got an invalid Output");
    }
    const PartialShape shape = scope.shape(inputs[i]);
    const auto rank = static_cast<int>(equation.inputs[i].size());
    if (shape.has_rank() && shape.rank() != rank) {
      return InvalidArgument("inputs[", i, "] must have rank ", rank, " as '", equation.inputs[i],
                             "', got shape ", shape, " of '", inputs[i].name(), "'");
    }
  }
  return absl::OkStatus();
}

}  // namespace

Output Einsum(ScopeAt at, absl::string_view equation, absl::Span<const Output> inputs) {
  if (!at.scope.ok()) return Output();
  const StatusOr<Equation> parsed = Parse(equation);
  const Status status = parsed.ok() ? CheckInputs(at.scope, *parsed, inputs) : parsed.status();
  if (!status.ok()) {
    at.scope.UpdateStatus(Prefixed(absl::StrCat("Einsum '", equation, "'"), status), at.where);
    return Output();
  }
  const Scope scope = at.here().CompositeScope("einsum");
  const ScopeAt in(scope, at.where);
  Labelled product = {inputs[0], parsed->inputs[0]};
  for (size_t i = 1; i < inputs.size(); ++i) {
    Labels kept = parsed->output;
    for (size_t later = i + 1; later < inputs.size(); ++later) kept += parsed->inputs[later];
    product = Multiplied(in, product, {inputs[i], parsed->inputs[i]}, kept);
  }
  product = SummedOver(in, product, parsed->output);
  return InOrder(in, product, parsed->output).tensor;
}

}  // namespace millrace
