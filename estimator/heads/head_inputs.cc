// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/head_inputs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "layers/lookup.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/control/asserts.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"

namespace millrace {
namespace {

bool IsNumber(DType dtype) {
  dtype = WithoutRef(dtype);
  return IsFloating(dtype) || IsInteger(dtype) || dtype == DT_BOOL;
}

// Can a tensor of shape `x` have that of `logits`, with `dimension` in place of the last one?
bool MayBeLike(const PartialShape& x, const PartialShape& logits, int64_t dimension) {
  if (!x.has_rank()) return true;
  if (x.rank() < 2) return false;
  const int64_t last = x.dim(x.rank() - 1);
  if (last >= 0 && last != dimension) return false;
  if (!logits.has_rank()) return true;
  if (x.rank() != logits.rank()) return false;
  for (int i = 0; i + 1 < x.rank(); ++i) {
    if (x.dim(i) >= 0 && logits.dim(i) >= 0 && x.dim(i) != logits.dim(i)) return false;
  }
  return true;
}

// MayBeLike, and both are known.
bool IsLike(const PartialShape& x, const PartialShape& logits, int64_t dimension) {
  return x.IsFullyDefined() && logits.IsFullyDefined() && MayBeLike(x, logits, dimension);
}

// A bool scalar: are these dimensions equal, whatever the ranks? Each is made as long as both with
// -1, which no dimension is.
Output AreEqual(ScopeAt in, const Output& a, const Output& b) {
  const Output none = Const(in, int64_t{-1}), zero = Const(in, int32_t{0});
  const auto lengthened = [&](const Output& dims, const Output& by) {
    return ConcatV2(in, {dims, Fill(in, ShapeOf(in, by), none)}, zero);
  };
  return ReduceAll(in, Equal(in, lengthened(a, b), lengthened(b, a)));
}

Output DimsOf(ScopeAt in, const Output& x) { return ShapeOf(in, x, {.out_type = DT_INT64}); }

// [D0, D1, ..., n] -> [D0, D1, ...]
Output LeadingDims(ScopeAt in, const Output& dims) {
  return StridedSlice(in, dims, Const<int32_t>(in, {0}), Const<int32_t>(in, {-1}),
                      Const<int32_t>(in, {1}), {.begin_mask = 1});
}

}  // namespace

HeadInputs::HeadInputs(Scope scope, std::source_location where, const std::string& name)
    : scope_(std::move(scope)),
      where_(where),
      title_(absl::StrCat("Head '", name.empty() ? "head" : name, "'")) {}

Output HeadInputs::Once(const Scope& in, const Output& condition, absl::string_view rule,
                        absl::Span<const Output> got, const Output& x) const {
  const std::string text =
      absl::StrReplaceAll(absl::StrCat(title_, ": ", rule, ", got"), {{"'", ""}});
  std::vector<Output> data = {Const(Named(in), text)};
  data.insert(data.end(), got.begin(), got.end());
  const Operation holds = Assert(Named(in), condition, data, {.summarize = 8});
  if (!holds.valid()) return Output();
  const Output checked = Identity(Named(in.WithControlDependencies({holds})), x);
  scope_.SetShape(checked, scope_.shape(x), where_);
  return checked;
}

// --- Logits --------------------------------------------------------------------------------------

Output HeadInputs::Logits(const Output& logits, int64_t dimension) const {
  if (!scope_.ok()) return Output();
  if (!logits.valid()) return Refuse("logits must be a tensor of the graph, got an invalid Output");
  if (logits.node()->graph() != scope_.graph()) {
    return Refuse("logits must be of the same graph, got '", logits.name(), "' of another");
  }
  if (!IsNumber(logits.dtype())) {
    return Refuse("logits must be numbers, got ", logits.dtype(), " from '", logits.name(), "'");
  }
  const Scope sub = scope_.WithSubScope("logits");
  const ScopeAt in = Named(sub);
  const Output floats =
      WithoutRef(logits.dtype()) == DT_FLOAT ? logits : Cast(in, logits, DT_FLOAT);
  const PartialShape shape = scope_.shape(logits);
  const std::string rule =
      absl::StrCat("logits must have shape [D0, ..., ", dimension, "] (its logits_dimension)");
  if (shape.has_rank()) {
    const int64_t last = shape.rank() > 0 ? shape.dim(shape.rank() - 1) : dimension;
    if (shape.rank() < 2 || (last >= 0 && last != dimension)) {
      return Refuse(rule, ", got shape ", shape, " of '", logits.name(), "'");
    }
    if (last >= 0) return floats;
  }
  const Output dims = DimsOf(in, logits), two = Const(in, int32_t{2});
  const Output last = StridedSlice(in, dims, Const<int32_t>(in, {-1}), Const<int32_t>(in, {0}),
                                   Const<int32_t>(in, {1}), {.end_mask = 1});
  const Output fits = LogicalAnd(in, GreaterEqual(in, Size(in, dims), two),
                                 ReduceAll(in, Equal(in, last, Const<int64_t>(in, {dimension}))));
  const Output checked = Once(sub, fits, rule, {dims}, floats);
  if (shape.has_rank() && checked.valid()) {
    std::vector<int64_t> known(shape.dims().begin(), shape.dims().end());
    known.back() = dimension;
    const StatusOr<PartialShape> with_last = PartialShape::Make(known);
    if (with_last.ok()) scope_.SetShape(checked, *with_last, where_);
  }
  return checked;
}

// --- Labels --------------------------------------------------------------------------------------

Output HeadInputs::OnceShaped(const char* what, const char* scope_name, const Output& x,
                              const Output& logits, int64_t dimension, bool or_like_logits) const {
  const Scope sub = scope_.WithSubScope(scope_name);
  const ScopeAt in = Named(sub);
  const Output dims = DimsOf(in, x), logits_dims = DimsOf(in, logits);
  const PartialShape logits_shape = scope_.shape(logits);
  const bool last_is_that =
      logits_shape.has_rank() && logits_shape.dim(logits_shape.rank() - 1) == dimension;
  const Output wanted =
      last_is_that ? logits_dims
                   : ConcatV2(in, {LeadingDims(in, logits_dims), Const<int64_t>(in, {dimension})},
                              Const(in, int32_t{0}));
  const PartialShape shape = scope_.shape(x);
  const bool ranks_agree =
      shape.has_rank() && logits_shape.has_rank() && shape.rank() == logits_shape.rank();
  const auto equal = [&](const Output& a, const Output& b) {
    return ranks_agree ? ReduceAll(in, Equal(in, a, b)) : AreEqual(in, a, b);
  };
  Output fits = equal(dims, wanted);
  if (or_like_logits && !last_is_that) fits = LogicalOr(in, fits, equal(dims, logits_dims));
  const std::string rule =
      absl::StrCat(what, " must have shape [D0, ..., ", dimension, "]",
                   or_like_logits ? " or that of logits" : "", " for logits [D0, ..., n]");
  return Once(sub, fits, rule, {dims, Const(in, "and"), logits_dims}, x);
}

Output HeadInputs::OnlyLabel(const Labels& labels, int64_t dimension) const {
  if (!scope_.ok()) return Output();
  if (labels.empty()) {
    return Refuse(
        "labels must be given to train and to evaluate, got none; does the input function return "
        "them?");
  }
  if (labels.map().empty()) {
    return Refuse(
        "labels must be dense, got a sparse tensor; they are one tensor of shape [batch, ",
        dimension, "], as SparseToDense makes one");
  }
  if (labels.map().size() + labels.sparse_map().size() > 1) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : labels.map()) names.push_back(absl::StrCat("'", name, "'"));
    for (const auto& [name, tensor] : labels.sparse_map()) {
      names.push_back(absl::StrCat("'", name, "'"));
    }
    return Refuse("labels must be one tensor, got ", absl::StrJoin(names, ", "));
  }
  const Output& label = labels.map().begin()->second;
  return label.valid() ? label
                       : Refuse("labels must be a tensor of the graph, got an invalid Output");
}

bool HeadInputs::AreWords(const Output& labels) const {
  if (WithoutRef(labels.dtype()) == DT_STRING) return true;
  Refuse("labels must be strings where there is a label_vocabulary, got ", labels.dtype(),
         " from '", labels.name(), "'");
  return false;
}

Output HeadInputs::LabelsLike(Output labels, const Output& logits, int64_t dimension) const {
  if (!scope_.ok() || !labels.valid()) return Output();
  const PartialShape logits_shape = scope_.shape(logits);
  PartialShape shape = scope_.shape(labels);
  const std::string given = shape.ToString();
  if (dimension == 1 && shape.has_rank() && logits_shape.has_rank() &&
      shape.rank() == logits_shape.rank() - 1) {
    labels = ExpandDims(at(), labels, Const(at(), int32_t{-1}));
    shape = scope_.shape(labels);
  }
  if (!scope_.ok()) return Output();
  if (!MayBeLike(shape, logits_shape, dimension)) {
    const bool are_one_hot = dimension == 1 && shape.has_rank() && logits_shape.has_rank() &&
                             shape.rank() == logits_shape.rank() && shape.dim(shape.rank() - 1) > 1;
    return Refuse(
        "labels must have shape [D0, ..., ", dimension, "] for logits of shape ", logits_shape,
        ", got ", given, " of '", labels.name(), "'",
        are_one_hot ? "; one-hot labels are made the indices of their classes by ArgMax" : "");
  }
  if (IsLike(shape, logits_shape, dimension)) return labels;
  return OnceShaped("labels", "labels", labels, logits, dimension, /*or_like_logits=*/false);
}

Output HeadInputs::InRange(const Output& labels, int64_t most, absl::string_view hint) const {
  if (!labels.valid() || !scope_.ok()) return Output();
  const Scope sub = scope_.WithSubScope("assert_range");
  const ScopeAt in = Named(sub);
  const DType dtype = WithoutRef(labels.dtype());
  const Output low = Cast(in, Const(in, int64_t{0}), dtype);
  const Output high = Cast(in, Const(in, most), dtype);
  // Not by the smallest and the largest one: NaN is neither.
  const Output fits =
      ReduceAll(in, LogicalAnd(in, GreaterEqual(in, labels, low), LessEqual(in, labels, high)));
  return Once(sub, fits, absl::StrCat("labels must be in [0, ", most, "]", hint),
              {ReduceMin(in, labels), Const(in, "to"), ReduceMax(in, labels)}, labels);
}

Output HeadInputs::IndicesOf(const Output& words,
                             const std::vector<std::string>& vocabulary) const {
  if (!words.valid() || !scope_.ok()) return Output();
  const IndexTable table = IndexTableFromTensor(Named(scope_.WithName("class_id_lookup")),
                                                Tensor::Vector<std::string>(vocabulary));
  const Output ids = Lookup(at(), table, words);
  if (!ids.valid()) return Output();
  const Scope sub = scope_.WithSubScope("assert_range");
  const ScopeAt in = Named(sub);
  const Output fits = ReduceAll(in, GreaterEqual(in, ids, Const(in, int64_t{0})));
  return Once(sub, fits, "labels must be in the label_vocabulary", {words}, ids);
}

// --- Weights, losses -----------------------------------------------------------------------------

Output HeadInputs::Weights(const Features& features, const WeightColumn& column,
                           const Output& logits, bool per_logit) const {
  if (!column.valid() || !scope_.ok() || !logits.valid()) return Output();
  const std::string title = absl::StrCat("weight_column '", column.key(), "'");
  const auto found = features.map().find(column.key());
  if (found == features.map().end()) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : features.map()) names.push_back(absl::StrCat("'", name, "'"));
    return Refuse(title, " must be a dense feature, got ",
                  features.is_sparse(column.key()) ? "a sparse one" : absl::StrJoin(names, ", "));
  }
  Output weights = found->second;
  if (!weights.valid()) return Refuse(title, " must be a tensor, got an invalid Output");
  const PartialShape logits_shape = scope_.shape(logits);
  if (scope_.shape(weights).has_rank() && scope_.shape(weights).rank() == 1) {
    weights = ExpandDims(at(), weights, Const(at(), int32_t{-1}));
  }
  if (column.normalizer()) {
    const Scope own = scope_.BuiltWhereCalled();
    weights = column.normalizer()(Named(own), weights);
  }
  if (!weights.valid()) return Refuse(title, " must be a tensor, got an invalid Output");
  if (!IsNumber(weights.dtype())) {
    return Refuse(title, " must be numbers, got ", weights.dtype(), " from '",
                  column.normalizer() ? weights.name() : found->second.name(), "'");
  }
  if (WithoutRef(weights.dtype()) != DT_FLOAT) {
    weights = Cast(Named(scope_.WithName("weights")), weights, DT_FLOAT);
  }
  PartialShape shape = scope_.shape(weights);
  if (shape.has_rank() && logits_shape.has_rank() && shape.rank() == logits_shape.rank() - 1) {
    weights = ExpandDims(at(), weights, Const(at(), int32_t{-1}));
    shape = scope_.shape(weights);
  }
  if (!scope_.ok()) return Output();
  const int64_t last = logits_shape.has_rank() ? logits_shape.dim(logits_shape.rank() - 1) : -1;
  const bool may_be_per_logit = per_logit && last > 1;
  const bool fits = MayBeLike(shape, logits_shape, 1) ||
                    (may_be_per_logit && MayBeLike(shape, logits_shape, last));
  if (!fits) {
    return Refuse(title, " must have shape [D0, ...] or [D0, ..., 1]",
                  may_be_per_logit ? " or that of logits" : "", " for logits of shape ",
                  logits_shape, ", got ", scope_.shape(found->second));
  }
  if (IsLike(shape, logits_shape, 1) || (may_be_per_logit && IsLike(shape, logits_shape, last))) {
    return weights;
  }
  return OnceShaped(title.c_str(), "weights", weights, logits, 1, may_be_per_logit);
}

Output HeadInputs::LossesLike(const Output& losses, const Output& logits, int64_t dimension) const {
  if (!scope_.ok() || !losses.valid()) return Output();
  if (!IsNumber(losses.dtype())) {
    return Refuse("loss_fn must return numbers, got ", losses.dtype());
  }
  const PartialShape shape = scope_.shape(losses), logits_shape = scope_.shape(logits);
  if (!MayBeLike(shape, logits_shape, dimension)) {
    return Refuse("loss_fn must return losses of shape [D0, ..., ", dimension,
                  "] for logits of shape ", logits_shape, ", got ", shape);
  }
  const Output floats =
      WithoutRef(losses.dtype()) == DT_FLOAT ? losses : Cast(at(), losses, DT_FLOAT);
  if (IsLike(shape, logits_shape, dimension)) return floats;
  return OnceShaped("what loss_fn returns", "check_loss_shape", floats, logits, dimension,
                    /*or_like_logits=*/false);
}

}  // namespace millrace
