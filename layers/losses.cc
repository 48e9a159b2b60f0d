// SPDX-License-Identifier: Apache-2.0
#include "layers/losses.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>
#include <utility>

#include "core/status.h"
#include "graph/graph.h"
#include "layers/regularizers.h"
#include "layers/weight.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/array/scalar_like.h"
#include "ops/array/slice.h"
#include "ops/control/asserts.h"
#include "ops/math/add_n.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/math/select.h"
#include "ops/nn/activations.h"
#include "ops/nn/xent.h"
#include "proto/meta_graph.pb.h"

namespace millrace {
namespace {

constexpr char kLosses[] = "losses";

bool IsNumber(DType dtype) {
  dtype = WithoutRef(dtype);
  return IsFloating(dtype) || IsInteger(dtype) || dtype == DT_BOOL;
}

Output CastTo(ScopeAt at, const Output& x, DType dtype) {
  return WithoutRef(x.dtype()) == dtype ? x : Cast(at, x, dtype);
}
Output ToFloat(ScopeAt at, const Output& x) { return CastTo(at, x, DT_FLOAT); }

// One loss while it is built: its scope, and how it is called in messages.
class Loss {
 public:
  // `kind` is the function, `scope_name` the default of the scope's name.
  Loss(const ScopeAt& at, const char* kind, const char* scope_name)
      : where_(at.where),
        kind_(kind),
        title_(
            absl::StrCat(kind, " '", at.scope.prefix(), at.scope.RequestedName(scope_name), "'")),
        scope_(at.scope.CompositeScope(scope_name)) {}

  const Scope& scope() const { return scope_; }
  ScopeAt at() const { return ScopeAt(scope_, where_); }
  std::source_location where() const { return where_; }

  template <typename... Parts>
  bool Refuse(const Parts&... parts) const {
    scope_.UpdateStatus(InvalidArgument(title_, ": ", parts...), where_);
    return false;
  }
  bool IsNumbers(const char* name, const Output& x) const {
    if (!x.valid()) return Refuse(name, " must be a tensor of the graph, got an invalid Output");
    if (x.node()->graph() != scope_.graph()) {
      return Refuse(name, " must be of the same graph, got '", x.name(), "' of another");
    }
    return IsNumber(x.dtype()) ||
           Refuse(name, " must be numbers, got ", x.dtype(), " from '", x.name(), "'");
  }
  bool IsFloats(const char* name, const Output& x) const {
    return IsNumbers(name, x) && (IsFloating(WithoutRef(x.dtype())) ||
                                  Refuse(name, " must be floating, got ", x.dtype()));
  }
  // Numbers of one shape? Where that shows in the step only, `b` becomes a tensor that is there
  // when they are: what is computed from it never broadcasts.
  bool AreAlike(const char* a_name, const Output& a, const char* b_name, Output* b) const;
  // Does `labels` have the shape of `logits` without the last dimension? As above.
  bool AreOfRows(Output* labels, const Output& logits) const;
  bool IsInRange(const char* name, double value, double low, double high) const {
    return (value >= low && value <= high) ||
           Refuse(name, " must be in [", low, ", ", high, "], got ", value);
  }

  Output Weighted(Output losses, const LossAttrs& attrs) const;
  // The scope whose nodes run after `weights` have been found to fit `values`; none when they
  // cannot.
  std::optional<Scope> AfterWeightsFit(const NumberOrOutput& weights, const Output& values) const;
  Output SumOverLosses(const ScopeAt& at, const Output& x, const Output& losses) const;
  // Elements of `losses`, a float scalar.
  Output Count(const Output& losses) const;
  Output Enter(Output loss, const std::string& collection) const {
    if (loss.valid() && !collection.empty()) scope_.AddToNodeCollection(collection, loss.name());
    return loss;
  }

 private:
  // x, of the shape `known`, once fits(at, shape of a, shape of b), a bool scalar, is true. Else
  // the step ends with InvalidArgument: "<rule>, got", and the two shapes.
  template <typename Fits>
  Output OnceShapesFit(const std::string& rule, const Output& a, const Output& b, const Output& x,
                       const PartialShape& known, Fits fits) const;

  const std::source_location where_;
  const char* const kind_;
  const std::string title_;  // with the name
  const Scope scope_;
};

bool AreEqual(const PartialShape& a, const PartialShape& b) {
  return a.IsFullyDefined() && b.IsFullyDefined() && a == b;
}

// --- Shapes that are known in the step only ------------------------------------------------------

// Vectors of dimensions: as many as `other` has, those of `shape` first, then (of a shorter one)
// those of `other`.
Output InTheRankOf(ScopeAt at, const Output& other, const Output& shape) {
  return Slice(at, ConcatV2(at, {shape, other}, Const(at, int32_t{0})), Const<int32_t>(at, {0}),
               Reshape(at, Size(at, other), Const<int32_t>(at, {1})));
}
Output AllEqual(ScopeAt at, const Output& a, const Output& b) {
  return ReduceAll(at, Equal(at, a, b), {0});
}
// All but the last dimension.
Output LeadingDims(ScopeAt at, const Output& shape) {
  return StridedSlice(at, shape, Const<int32_t>(at, {0}), Const<int32_t>(at, {-1}),
                      Const<int32_t>(at, {1}), {.begin_mask = 1});
}

template <typename Fits>
Output Loss::OnceShapesFit(const std::string& rule, const Output& a, const Output& b,
                           const Output& x, const PartialShape& known, Fits fits) const {
  const Scope sub = scope_.WithSubScope("assert_shapes");
  const ScopeAt in(sub, where_);
  const Output a_shape = ShapeOf(in, a, {.out_type = DT_INT64});
  const Output b_shape = ShapeOf(in, b, {.out_type = DT_INT64});
  const Operation fit = Assert(
      in, fits(in, a_shape, b_shape),
      {Const(in, absl::StrCat(kind_, ": ", rule, ", got")), a_shape, b_shape}, {.summarize = -1});
  const Output checked = Identity({sub.WithControlDependencies({fit}), where_}, x);
  scope_.SetShape(checked, known, where_);
  return checked;
}

bool Loss::AreAlike(const char* a_name, const Output& a, const char* b_name, Output* b) const {
  if (!scope_.ok() || !IsNumbers(a_name, a) || !IsNumbers(b_name, *b)) return false;
  const PartialShape a_shape = scope_.shape(a), b_shape = scope_.shape(*b);
  const std::string rule = absl::StrCat(a_name, " and ", b_name, " must have one shape");
  const StatusOr<PartialShape> shape = a_shape.MergeWith(b_shape);
  if (!shape.ok()) return Refuse(rule, ", got ", a_shape, " and ", b_shape);
  if (AreEqual(a_shape, b_shape) || a == *b) return true;
  const bool ranks_are_known = a_shape.has_rank() && b_shape.has_rank();
  *b = OnceShapesFit(rule, a, *b, *b, *shape,
                     [&](ScopeAt in, const Output& a_dims, const Output& b_dims) {
                       if (ranks_are_known) return AllEqual(in, a_dims, b_dims);
                       const Output dims = AllEqual(in, InTheRankOf(in, b_dims, a_dims), b_dims);
                       return LogicalAnd(in, Equal(in, Size(in, a_dims), Size(in, b_dims)), dims);
                     });
  return scope_.ok();
}

bool Loss::AreOfRows(Output* labels, const Output& logits) const {
  const PartialShape labels_shape = scope_.shape(*labels), shape = scope_.shape(logits);
  const std::string rule = "labels must have the shape of logits without its last dimension";
  PartialShape known;
  if (shape.has_rank()) {
    if (shape.rank() == 0) return Refuse("logits must have a dimension of classes, got shape []");
    const StatusOr<PartialShape> rows =
        PartialShape::Make(shape.dims().first(shape.dims().size() - 1));
    const StatusOr<PartialShape> merged = rows.ok() ? labels_shape.MergeWith(*rows) : rows;
    if (!merged.ok()) return Refuse(rule, ", got shapes ", labels_shape, " and ", shape);
    // Of a matrix and a vector the op sees it.
    if (labels_shape.has_rank() && (shape.rank() == 2 || AreEqual(labels_shape, *rows))) {
      return true;
    }
    if (labels_shape.has_rank()) known = *merged;
  }
  *labels = OnceShapesFit(rule, *labels, logits, *labels, known,
                          [](ScopeAt in, const Output& labels_dims, const Output& dims) {
                            // That there is one label for each row the op sees: what labels have
                            // behind these dimensions is ones.
                            const Output rows = LeadingDims(in, dims);
                            return AllEqual(in, InTheRankOf(in, rows, labels_dims), rows);
                          });
  return scope_.ok();
}

// --- Weights -------------------------------------------------------------------------------------

// 1 where weights are not 0. Nothing flows back through it.
Output IsPresent(ScopeAt at, const Output& weights) {
  return Cast(at, NotEqual(at, weights, ScalarLike(at, weights, 0)), DT_FLOAT);
}

// A bool scalar: is `weights` a scalar, or of the rank of `values` with dimensions of 1 or theirs?
Output WeightsFit(ScopeAt at, Output weights_shape, Output values_shape, bool ranks_are_equal) {
  if (!ranks_are_equal) {
    const Output zero = Const(at, int32_t{0});
    const Output rank = Size(at, weights_shape), values_rank = Size(at, values_shape);
    const Output rank_fits = LogicalOr(at, Equal(at, rank, zero), Equal(at, rank, values_rank));
    weights_shape = InTheRankOf(at, values_shape, weights_shape);
    return LogicalAnd(at, rank_fits, WeightsFit(at, weights_shape, values_shape, true));
  }
  const Output one = Const(at, int64_t{1});
  return ReduceAll(
      at, LogicalOr(at, Equal(at, weights_shape, values_shape), Equal(at, weights_shape, one)),
      {0});
}

std::optional<Scope> Loss::AfterWeightsFit(const NumberOrOutput& weights,
                                           const Output& values) const {
  if (weights.is_number()) {
    if (!std::isfinite(weights.number())) {
      Refuse("weights must be finite, got ", weights.number());
      return std::nullopt;
    }
    return scope_;
  }
  if (!IsNumbers("weights", weights.output())) return std::nullopt;
  const PartialShape w = scope_.shape(weights.output()), v = scope_.shape(values);
  if (w.has_rank() && w.rank() == 0) return scope_;
  bool known = w.has_rank() && v.has_rank(), fits = !known || w.rank() == v.rank();
  const bool ranks_are_equal = known && fits;
  for (int i = 0; ranks_are_equal && i < w.rank(); ++i) {
    if (w.dim(i) == 1) continue;
    if (w.dim(i) < 0 || v.dim(i) < 0) {
      known = false;
    } else if (w.dim(i) != v.dim(i)) {
      fits = false;
    }
  }
  if (!fits) {
    Refuse(
        "weights must be a scalar or have the rank of the losses with dimensions of 1 or theirs, "
        "got shape ",
        w, " for losses of shape ", v);
    return std::nullopt;
  }
  if (known) return scope_;
  const Scope sub = scope_.WithSubScope("assert_broadcastable");
  const ScopeAt in(sub, where_);
  const auto shape = [&](const char* part, const Output& x) {
    return ShapeOf({sub.WithName(absl::StrCat(part, "/shape")), where_}, x, {.out_type = DT_INT64});
  };
  const Output weights_shape = shape("weights", weights.output());
  const Output values_shape = shape("values", values);
  const Output is_valid = WeightsFit(in, weights_shape, values_shape, ranks_are_equal);
  const Operation fit =
      Assert({sub.WithName("AssertGuard/Assert"), where_}, is_valid,
             {Const(in, "weights can not be broadcast to values."), Const(in, "weights.shape="),
              weights_shape, Const(in, "values.shape="), values_shape},
             {.summarize = 16});
  if (!fit.valid()) return std::nullopt;
  return scope_.WithControlDependencies({fit});
}

Output Loss::Count(const Output& losses) const {
  const Output size =
      Size({scope_.WithName("num_elements"), where_}, losses, {.out_type = DT_INT64});
  return Cast({scope_.WithName("num_elements/Cast"), where_}, size, DT_FLOAT);
}

// The sum of what `x`, of the shape of the weights, is for each of the losses. Broadcasting repeats
// every element equally often: no tensor of the losses' size is needed.
Output Loss::SumOverLosses(const ScopeAt& at, const Output& x, const Output& losses) const {
  const Output sum = ReduceSum(at, x);
  if (AreEqual(scope_.shape(x), scope_.shape(losses))) return sum;
  const Output size = Cast(at, Size(at, x, {.out_type = DT_INT64}), DT_FLOAT);
  return Mul(at, sum, DivNoNan(at, Count(losses), size));
}

Output Loss::Weighted(Output losses, const LossAttrs& attrs) const {
  if (!losses.valid()) return Output();
  const std::optional<Scope> checked = AfterWeightsFit(attrs.weights, losses);
  if (!checked) return Output();
  const ScopeAt in(*checked, where_);
  const DType dtype = WithoutRef(losses.dtype());
  losses = ToFloat(in, losses);
  const bool is_one = attrs.weights.is_number() && attrs.weights.number() == 1;
  Output weights, loss = losses;
  if (!is_one) {
    weights = attrs.weights.is_number() ? ScalarLike(in, losses, attrs.weights.number())
                                        : ToFloat(in, attrs.weights.output());
    loss = Mul(in, losses, weights);
  }
  if (attrs.reduction != LossReduction::kNone) loss = ReduceSum(in, loss);
  Output divisor;
  switch (attrs.reduction) {
    case LossReduction::kNone:
    case LossReduction::kSum:
      break;
    case LossReduction::kSumOverBatchSize:
      divisor = Count(losses);
      break;
    case LossReduction::kMean:
      divisor = is_one ? Count(losses) : SumOverLosses(in, weights, losses);
      break;
    case LossReduction::kSumByNonzeroWeights:
      if (attrs.weights.is_number() && attrs.weights.number() != 0) {
        divisor = Count(losses);
      } else {
        const Scope present = checked->WithSubScope("num_present");
        const ScopeAt here(present, where_);
        divisor = SumOverLosses(here, IsPresent(here, weights), losses);
      }
      break;
  }
  if (divisor.valid()) loss = DivNoNan({checked->WithName("value"), where_}, loss, divisor);
  return Enter(CastTo(in, loss, dtype), attrs.collection);
}

template <typename Attrs>
LossAttrs CommonOf(const Attrs& attrs) {
  return {attrs.weights, attrs.reduction, attrs.collection};
}

// --- Cross entropies -----------------------------------------------------------------------------

// The matrix of the last dimension.
Output RowsOf(ScopeAt at, Output x, Output shape) {
  const Output last = StridedSlice(at, shape, Const<int32_t>(at, {-1}), Const<int32_t>(at, {0}),
                                   Const<int32_t>(at, {1}), {.end_mask = 1});
  return Reshape(at, x, ConcatV2(at, {Const<int64_t>(at, {-1}), last}, Const(at, int32_t{0})));
}

// Narrow logits in float: exponentials of 16-bit numbers are too coarse.
Output Precise(ScopeAt at, const Output& logits) {
  const DType dtype = WithoutRef(logits.dtype());
  return dtype == DT_HALF || dtype == DT_BFLOAT16 ? Cast(at, logits, DT_FLOAT) : logits;
}

// Of each element; the last node is called `name`.
Output SigmoidLosses(ScopeAt in, const Output& labels, const Output& logits, const char* name) {
  // -log(sigmoid(x)) is softplus(-x). Two of them, never softplus(x) - x y: that cancels for large
  // x, and never |x|: its gradient is wrong at x = 0, where models begin.
  const Output missed = Mul(in, labels, Softplus(in, Neg(in, logits)));
  const Output excess = Mul(in, Sub(in, ScalarLike(in, labels, 1), labels), Softplus(in, logits));
  return Add({in.scope.WithName(name), in.where}, missed, excess);
}

Output SoftmaxLosses(const Loss& l, Output labels, Output logits) {
  const ScopeAt in = l.at();
  const DType dtype = WithoutRef(logits.dtype());
  logits = Precise(in, logits);
  labels = CastTo(in, labels, WithoutRef(logits.dtype()));
  const PartialShape shape = l.scope().shape(logits);
  const bool is_matrix = shape.has_rank() && shape.rank() == 2;
  Output dims;
  if (!is_matrix) {
    dims = ShapeOf(in, logits, {.out_type = DT_INT64});
    labels = RowsOf(in, labels, dims);
    logits = RowsOf(in, logits, dims);
  }
  Output losses =
      SoftmaxCrossEntropyWithLogits({l.scope().WithName("xentropy"), l.where()}, logits, labels)
          .loss;
  if (!is_matrix) {
    losses = Reshape(in, losses, LeadingDims(in, dims));
  }
  return CastTo(in, losses, dtype);
}

Output SparseSoftmaxLosses(const Loss& l, Output labels, Output logits) {
  const ScopeAt in = l.at();
  const DType dtype = WithoutRef(logits.dtype());
  logits = Precise(in, logits);
  const PartialShape shape = l.scope().shape(logits);
  const bool is_matrix = shape.has_rank() && shape.rank() == 2;
  Output dims;
  if (is_matrix && !l.scope().shape(labels).has_rank()) {
    // A column is a vector, too: the losses are one.
    labels = Reshape(in, labels, Const<int32_t>(in, {-1}));
  } else if (!is_matrix) {
    dims = ShapeOf(in, labels, {.out_type = DT_INT64});
    labels = Reshape(in, labels, Const<int32_t>(in, {-1}));
    logits = RowsOf(in, logits, ShapeOf(in, logits, {.out_type = DT_INT64}));
  }
  Output losses = SparseSoftmaxCrossEntropyWithLogits({l.scope().WithName("xentropy"), l.where()},
                                                      logits, labels)
                      .loss;
  if (!is_matrix) losses = Reshape(in, losses, dims);
  return CastTo(in, losses, dtype);
}

// May the last dimension be dropped?
bool EndsWithOne(const PartialShape& shape) {
  return shape.rank() > 0 && (shape.dim(shape.rank() - 1) == 1 || shape.dim(shape.rank() - 1) < 0);
}

Output WithoutLast(ScopeAt at, const Output& x) { return Squeeze(at, x, {.squeeze_dims = {-1}}); }

}  // namespace

// --- Of each element -----------------------------------------------------------------------------

Output SigmoidCrossEntropyWithLogits(ScopeAt at, Output labels, Output logits) {
  if (!at.scope.ok() || !labels.valid() || !logits.valid()) return Output();
  const std::string name = ReserveName(at.scope, "logistic_loss");
  const Scope scope = at.scope.WithSubScope(name + "/");
  return SigmoidLosses({scope, at.where}, labels, logits, (name + "/").c_str());
}

Output LogPoissonLoss(ScopeAt at, Output targets, Output log_input, bool compute_full_loss) {
  if (!at.scope.ok() || !targets.valid() || !log_input.valid()) return Output();
  const std::string name = ReserveName(at.scope, "log_poisson_loss");
  const Scope scope = at.scope.WithSubScope(name + "/");
  const ScopeAt in(scope, at.where);
  const Output product = Mul(in, log_input, targets);
  if (!compute_full_loss) {
    return Sub({scope.WithName(name + "/"), at.where}, Exp(in, log_input), product);
  }
  const auto number = [&](double value) { return ScalarLike(in, targets, value); };
  // log(n!) is about n log(n) - n + log(2 pi n) / 2, and 0 for 0 and 1: 1 stands in for them, since
  // log(0) times 0 is no number.
  const Output one = OnesLike(in, targets);
  const Output is_large = Greater(in, targets, one);
  const Output n = Select(in, is_large, targets, one);
  const Output stirling =
      Add(in, Sub(in, Mul(in, n, Log(in, n)), n),
          Mul(in, number(0.5), Log(in, Mul(in, number(2 * std::numbers::pi), n))));
  const Output correction = Select(in, is_large, stirling, ZerosLike(in, targets));
  return Add({scope.WithName(name + "/"), at.where}, Sub(in, Exp(in, log_input), product),
             correction);
}

// --- Losses --------------------------------------------------------------------------------------

Output ComputeWeightedLoss(ScopeAt at, Output losses, const LossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "ComputeWeightedLoss", "weighted_loss");
  return l.IsNumbers("losses", losses) ? l.Weighted(losses, attrs) : Output();
}

Output MeanSquaredError(ScopeAt at, Output labels, Output predictions, const LossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "MeanSquaredError", "mean_squared_error");
  if (!l.AreAlike("labels", labels, "predictions", &predictions)) return Output();
  const ScopeAt in = l.at();
  return l.Weighted(SquaredDifference(in, ToFloat(in, predictions), ToFloat(in, labels)), attrs);
}

Output AbsoluteDifference(ScopeAt at, Output labels, Output predictions, const LossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "AbsoluteDifference", "absolute_difference");
  if (!l.AreAlike("labels", labels, "predictions", &predictions)) return Output();
  const ScopeAt in = l.at();
  return l.Weighted(Abs(in, Sub(in, ToFloat(in, predictions), ToFloat(in, labels))), attrs);
}

Output HuberLoss(ScopeAt at, Output labels, Output predictions, const HuberLossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "HuberLoss", "huber_loss");
  if (!l.AreAlike("labels", labels, "predictions", &predictions)) return Output();
  if (!(attrs.delta > 0 && std::isfinite(attrs.delta))) {
    l.Refuse("delta must be > 0, got ", attrs.delta);
    return Output();
  }
  const ScopeAt in = l.at();
  const Output error = Abs(in, Sub(in, ToFloat(in, predictions), ToFloat(in, labels)));
  const Output delta = ScalarLike(in, error, attrs.delta);
  const Output quadratic = Minimum(in, error, delta);
  // Not Maximum(error - delta, 0): where error is delta the gradient must come in once only.
  const Output linear = Sub(in, error, quadratic);
  const Output half_square = Mul(in, ScalarLike(in, error, 0.5), Mul(in, quadratic, quadratic));
  return l.Weighted(Add(in, half_square, Mul(in, delta, linear)), CommonOf(attrs));
}

Output LogLoss(ScopeAt at, Output labels, Output predictions, const LogLossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "LogLoss", "log_loss");
  if (!l.AreAlike("labels", labels, "predictions", &predictions)) return Output();
  if (!(attrs.epsilon >= 0 && std::isfinite(attrs.epsilon))) {
    l.Refuse("epsilon must be >= 0, got ", attrs.epsilon);
    return Output();
  }
  const ScopeAt in = l.at();
  const Output p = ToFloat(in, predictions), y = ToFloat(in, labels);
  const Output one = ScalarLike(in, p, 1), epsilon = ScalarLike(in, p, attrs.epsilon);
  const Output positive = Mul(in, y, Log(in, Add(in, p, epsilon)));
  const Output negative = Mul(in, Sub(in, one, y), Log(in, Add(in, Sub(in, one, p), epsilon)));
  return l.Weighted(Sub(in, Neg(in, positive), negative), CommonOf(attrs));
}

Output HingeLoss(ScopeAt at, Output labels, Output logits, const LossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "HingeLoss", "hinge_loss");
  if (!l.AreAlike("labels", labels, "logits", &logits)) return Output();
  const ScopeAt in = l.at();
  const Output x = ToFloat(in, logits), y = ToFloat(in, labels);
  const Output one = ScalarLike(in, x, 1);
  const Output sign = Sub(in, Mul(in, ScalarLike(in, x, 2), y), one);
  return l.Weighted(Relu(in, Sub(in, one, Mul(in, sign, x))), attrs);
}

Output CosineDistance(ScopeAt at, Output labels, Output predictions, int64_t axis,
                      const LossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "CosineDistance", "cosine_distance_loss");
  if (!l.AreAlike("labels", labels, "predictions", &predictions)) return Output();
  const PartialShape shape = l.scope().shape(predictions);
  if (shape.has_rank() && (axis < -shape.rank() || axis >= shape.rank())) {
    l.Refuse("axis must be in [", -shape.rank(), ", ", shape.rank(), "), got ", axis);
    return Output();
  }
  const ScopeAt in = l.at();
  const Output products = Mul(in, ToFloat(in, predictions), ToFloat(in, labels));
  const Output sums = ReduceSum(in, products, {axis}, {.keep_dims = true});
  return l.Weighted(Sub(in, ScalarLike(in, sums, 1), sums), attrs);
}

Output SigmoidCrossEntropy(ScopeAt at, Output labels, Output logits,
                           const CrossEntropyAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "SigmoidCrossEntropy", "sigmoid_cross_entropy_loss");
  if (!l.AreAlike("labels", labels, "logits", &logits) || !l.IsFloats("logits", logits) ||
      !l.IsInRange("label_smoothing", attrs.label_smoothing, 0, 1)) {
    return Output();
  }
  const ScopeAt in = l.at();
  Output y = CastTo(in, labels, WithoutRef(logits.dtype()));
  if (attrs.label_smoothing > 0) {
    y = Add(in, Mul(in, y, ScalarLike(in, y, 1 - attrs.label_smoothing)),
            ScalarLike(in, y, 0.5 * attrs.label_smoothing));
  }
  const Output losses = SigmoidLosses(in, y, logits, "xentropy");
  return l.Weighted(losses, CommonOf(attrs));
}

Output SoftmaxCrossEntropy(ScopeAt at, Output onehot_labels, Output logits,
                           const CrossEntropyAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "SoftmaxCrossEntropy", "softmax_cross_entropy_loss");
  if (!l.AreAlike("onehot_labels", onehot_labels, "logits", &logits) ||
      !l.IsFloats("logits", logits) ||
      !l.IsInRange("label_smoothing", attrs.label_smoothing, 0, 1)) {
    return Output();
  }
  const PartialShape shape = l.scope().shape(logits);
  if (shape.has_rank() && shape.rank() == 0) {
    l.Refuse("logits must have a dimension of classes, got shape ", shape);
    return Output();
  }
  const ScopeAt in = l.at();
  Output y = CastTo(in, onehot_labels, WithoutRef(logits.dtype()));
  if (attrs.label_smoothing > 0) {
    const Output last =
        StridedSlice(in, ShapeOf(in, y), Const<int32_t>(in, {-1}), Const<int32_t>(in, {0}),
                     Const<int32_t>(in, {1}), {.shrink_axis_mask = 1});
    const Output num_classes = Cast(in, last, WithoutRef(logits.dtype()));
    y = Add(in, Mul(in, y, ScalarLike(in, y, 1 - attrs.label_smoothing)),
            RealDiv(in, ScalarLike(in, y, attrs.label_smoothing), num_classes));
  }
  y = StopGradient({l.scope().WithName("labels_stop_gradient"), l.where()}, y);
  return l.Weighted(SoftmaxLosses(l, y, logits), CommonOf(attrs));
}

Output SparseSoftmaxCrossEntropy(ScopeAt at, Output labels, Output logits, const LossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "SparseSoftmaxCrossEntropy", "sparse_softmax_cross_entropy_loss");
  if (!l.IsNumbers("labels", labels) || !l.IsFloats("logits", logits)) return Output();
  const DType dtype = WithoutRef(labels.dtype());
  if (dtype != DT_INT32 && dtype != DT_INT64) {
    l.Refuse("labels must be int32 or int64, got ", labels.dtype());
    return Output();
  }
  const ScopeAt in = l.at();
  const PartialShape labels_shape = l.scope().shape(labels), shape = l.scope().shape(logits);
  int labels_rank = labels_shape.has_rank() ? labels_shape.rank() : -1;
  if (labels_shape.has_rank() && shape.has_rank()) {
    const int extra = shape.rank() - labels_rank;
    if (extra == 0 && EndsWithOne(labels_shape)) {
      labels = WithoutLast(in, labels);
      --labels_rank;
    } else if (extra == 2 && EndsWithOne(shape)) {
      logits = WithoutLast(in, logits);
    } else if (extra != 1) {
      l.Refuse("labels must have one dimension less than logits, got shapes ", labels_shape,
               " and ", shape);
      return Output();
    }
  }
  if (!l.AreOfRows(&labels, logits)) return Output();
  LossAttrs weighting = attrs;
  if (!attrs.weights.is_number() && labels_rank >= 0) {
    const Output weights = attrs.weights.output();
    if (!l.IsNumbers("weights", weights)) return Output();
    const PartialShape weights_shape = l.scope().shape(weights);
    if (weights_shape.has_rank() && weights_shape.rank() == labels_rank + 1 &&
        EndsWithOne(weights_shape)) {
      weighting.weights = WithoutLast(in, weights);
    }
  }
  return l.Weighted(SparseSoftmaxLosses(l, labels, logits), weighting);
}

Output MeanPairwiseSquaredError(ScopeAt at, Output labels, Output predictions,
                                const PairwiseLossAttrs& attrs) {
  if (!at.scope.ok()) return Output();
  const Loss l(at, "MeanPairwiseSquaredError", "mean_pairwise_squared_error");
  if (!l.AreAlike("labels", labels, "predictions", &predictions)) return Output();
  const std::optional<Scope> checked = l.AfterWeightsFit(attrs.weights, labels);
  if (!checked) return Output();
  const ScopeAt in(*checked, l.where());
  const auto named_value = [&] { return checked->WithName("value"); };

  const Output diffs = Sub(in, ToFloat(in, predictions), ToFloat(in, labels));
  const PartialShape shape = l.scope().shape(diffs);
  Output axes;  // all but the first
  if (shape.has_rank()) {
    std::vector<int32_t> rest(static_cast<size_t>(std::max(shape.rank() - 1, 0)));
    std::iota(rest.begin(), rest.end(), 1);
    axes = ConstVector<int32_t>(in, rest);
  } else {
    axes = Range(in, Const(in, int32_t{1}), Rank(in, diffs), Const(in, int32_t{1}));
  }
  const ReductionAttrs keep = {.keep_dims = true};
  const Output weights = attrs.weights.is_number() ? ScalarLike(in, diffs, attrs.weights.number())
                                                   : ToFloat(in, attrs.weights.output());
  const Scope present_scope = checked->WithSubScope("num_present");
  const ScopeAt here(present_scope, l.where());
  Output present = IsPresent(here, weights);
  if (!AreEqual(l.scope().shape(weights), shape)) {
    present = Mul(here, present, OnesLike(here, diffs));
  }
  const Output count = Sum(here, present, axes, keep);
  const Output zero = ScalarLike(in, count, 0), two = ScalarLike(in, count, 2);
  const Output others = Sub(in, count, ScalarLike(in, count, 1));
  const Output squares =
      DivNoNan({named_value(), l.where()}, Sum(in, Square(in, diffs), axes, keep),
               Maximum(in, others, zero));
  const Output square_of_sum =
      DivNoNan({named_value(), l.where()}, Square(in, Sum(in, diffs, axes, keep)),
               Maximum(in, Mul(in, count, others), zero));
  const Output losses = Sub(in, Mul(in, two, squares), Mul(in, two, square_of_sum));
  const Output loss = ReduceSum(in, Mul(in, losses, weights));
  const Output any = Greater(in, ReduceSum(in, count), zero);
  return l.Enter(Select({named_value(), l.where()}, any, loss, ZerosLike(in, loss)),
                 attrs.collection);
}

// --- Collections ---------------------------------------------------------------------------------

std::vector<Output> LossesOf(ScopeAt at, const std::string& collection) {
  std::vector<Output> losses;
  const auto found = at.scope.collections()->find(collection);
  if (found == at.scope.collections()->end()) return losses;
  for (const std::string& name : found->second.node_list().value()) {
    const StatusOr<TensorName> parsed = ParseTensorName(name);
    Node* node = parsed.ok() ? at.scope.graph()->FindNode(parsed->node) : nullptr;
    if (node == nullptr || parsed->index < 0 || parsed->index >= node->num_outputs()) {
      at.scope.UpdateStatus(absl::NotFoundError(absl::StrCat(
                                "collection '", collection,
                                "': an entry must be a tensor of the graph, got '", name, "'")),
                            at.where);
      return {};
    }
    losses.emplace_back(node, parsed->index);
  }
  return losses;
}

Output RegularizationLoss(ScopeAt at) {
  const std::vector<Output> losses = LossesOf(at, kRegularizationLosses);
  const Scope scope = at.scope.WithName(at.scope.RequestedName("total_regularization_loss"));
  const ScopeAt named(scope, at.where);
  return losses.empty() ? Const(named, 0.0f) : AddN(named, losses);
}

Output TotalLoss(ScopeAt at, const TotalLossAttrs& attrs) {
  std::vector<Output> losses = LossesOf(at, kLosses);
  if (attrs.add_regularization_losses) {
    const std::vector<Output> more = LossesOf(at, kRegularizationLosses);
    losses.insert(losses.end(), more.begin(), more.end());
  }
  if (losses.empty()) {
    at.scope.UpdateStatus(
        InvalidArgument("TotalLoss: the graph must have losses in collection 'losses', got none"),
        at.where);
    return Output();
  }
  return AddN({at.scope.WithName(at.scope.RequestedName("total_loss")), at.where}, losses);
}

}  // namespace millrace
