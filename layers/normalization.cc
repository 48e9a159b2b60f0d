// SPDX-License-Identifier: Apache-2.0
#include "layers/normalization.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/array/scalar_like.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/math/select.h"
#include "ops/nn/fused_batch_norm.h"
#include "ops/state/resource_variable.h"
#include "proto/meta_graph.pb.h"

namespace millrace {
namespace {

constexpr char kUpdateOps[] = "update_ops";

// Statistics are float at least: half and bfloat16 have too few digits for them.
DType StatisticsType(DType x) {
  const DType dtype = WithoutRef(x);
  return dtype == DT_DOUBLE ? DT_DOUBLE : DT_FLOAT;
}
Output CastTo(const ScopeAt& in, const Output& x, DType dtype) {
  return WithoutRef(x.dtype()) == dtype ? x : Cast(in, x, dtype);
}

// The last dimension of x; -1 after an error.
int64_t CheckNormalization(const ScopeAt& at, const char* layer, const char* name, const Output& x,
                           double epsilon) {
  if (!CheckLayerInput(at, layer, name, x, 2, Shape::kMaxRank)) return -1;
  const PartialShape shape = at.scope.shape(x);
  if (!shape.has_rank() || shape.dim(shape.rank() - 1) < 1) {
    LayerError(at, layer, name, "the last dimension of x must be known and >= 1, got shape ", shape,
               " of '", x.name(), "'");
    return -1;
  }
  if (!(epsilon > 0) || !std::isfinite(epsilon)) {
    LayerError(at, layer, name, "epsilon must be > 0 and finite, got ", epsilon);
    return -1;
  }
  return shape.dim(shape.rank() - 1);
}

struct Moments {
  Output mean, variance;  // biased
};
// Along these axes, which stay as 1.
Moments MomentsOf(const ScopeAt& in, const Output& x, const std::vector<int64_t>& axes) {
  const Scope scope = in.scope.WithSubScope("moments");
  const ScopeAt here(scope, in.where);
  const Output mean = ReduceMean({scope.WithName("mean"), in.where}, x, axes, {.keep_dims = true});
  // The gradient of the mean square about the mean does not depend on the mean.
  const Output squares = SquaredDifference(here, x, StopGradient(here, mean));
  return {mean,
          ReduceMean({scope.WithName("variance"), in.where}, squares, axes, {.keep_dims = true})};
}

// (x - mean) / sqrt(variance + epsilon) * gamma + beta; gamma and beta may be invalid.
Output Normalized(const ScopeAt& in, const Output& x, const Moments& moments, double epsilon,
                  const Output& gamma, const Output& beta) {
  const Scope scope = in.scope.WithSubScope("batchnorm");
  const ScopeAt here(scope, in.where);
  Output inverse = Rsqrt(here, Add(here, moments.variance, ScalarLike(here, x, epsilon)));
  if (gamma.valid()) inverse = Mul(here, inverse, gamma);
  const Output shift = Mul(here, moments.mean, inverse);
  return Add(here, Mul(here, x, inverse), beta.valid() ? Sub(here, beta, shift) : Neg(here, shift));
}

// average -= (average - value) * (1 - momentum), on the average's device; nothing where `only_if`,
// when it is valid, is false.
Operation MoveAverage(const ScopeAt& in, const Variable& average, const Output& value,
                      double momentum, const Output& only_if) {
  const std::string name = in.scope.UniqueName("AssignMovingAvg");
  const Scope scope = in.scope.WithSubScope(name + "/").ColocatedWith(average.handle.op());
  const ScopeAt here(scope, in.where);
  const Output decay = ScalarLike({scope.WithName("decay"), in.where}, value, 1 - momentum);
  Output delta = Mul(here, Sub(here, average.value, value), decay);
  if (only_if.valid()) delta = Select(here, only_if, delta, ZerosLike(here, delta));
  const Operation update =
      AssignSubVariableOp({scope.WithName(name + "/"), in.where}, average.handle, delta);
  if (update.valid()) in.scope.AddToNodeCollection(kUpdateOps, update.name());
  return update;
}

// A bool scalar: has the batch any element? Invalid where that is known while the graph is built.
// An empty one has no mean and moves no average: NaN would stay in it for good.
Output HasElements(const ScopeAt& in, const Output& x) {
  const PartialShape shape = in.scope.shape(x);
  if (shape.IsFullyDefined() && shape.num_elements() > 0) return Output();
  return Greater(in, Size(in, x, {.out_type = DT_INT64}), Const(in, int64_t{0}));
}

// What is multiplied by and added; invalid where there is none.
struct Affine {
  Output gamma, beta;
};

// The op for images. The flag is known.
Output Fused(const ScopeAt& in, const Output& x, const Affine& affine, bool training,
             int64_t channels, const BatchNormalizationAttrs& attrs,
             BatchNormalizationLayer* layer) {
  const auto constant = [&](const char* name, float value, const Output& given) -> Output {
    if (given.valid()) return given;
    return Fill({in.scope.WithName(name), in.where}, Const<int64_t>(in, {channels}),
                Const(in, value));
  };
  const Output gamma = constant("gamma_ones", 1, affine.gamma);
  const Output beta = constant("beta_zeros", 0, affine.beta);
  const Output none = Const(in, Tensor::Vector<float>({}));
  const FusedBatchNormOutputs out =
      FusedBatchNormV3(in, x, gamma, beta, training ? none : layer->moving_mean.value,
                       training ? none : layer->moving_variance.value,
                       {.epsilon = static_cast<float>(attrs.epsilon), .is_training = training});
  if (training) {
    const Output moves = HasElements(in, x);
    layer->updates = {
        MoveAverage(in, layer->moving_mean, out.batch_mean, attrs.momentum, moves),
        MoveAverage(in, layer->moving_variance, out.batch_variance, attrs.momentum, moves)};
  }
  return out.y;
}

Output Composed(const ScopeAt& in, const Output& x, const Affine& affine,
                const TrainingFlag& training, int rank, const BatchNormalizationAttrs& attrs,
                BatchNormalizationLayer* layer) {
  const Output flag =
      std::holds_alternative<Output>(training) ? std::get<Output>(training) : Output();
  const Output wide = CastTo(in, x, layer->moving_mean.dtype);
  Moments moments = {layer->moving_mean.value, layer->moving_variance.value};
  if (flag.valid() || std::get<bool>(training)) {
    std::vector<int64_t> axes;
    for (int64_t i = 0; i + 1 < rank; ++i) axes.push_back(i);
    const Moments kept = MomentsOf(in, wide, axes);
    const Output channels = Const<int32_t>(in, {-1});
    Moments batch = {Reshape(in, kept.mean, channels), Reshape(in, kept.variance, channels)};
    const Output present = HasElements(in, x);
    if (present.valid()) {
      // Numbers, whatever they are: nothing is normalised, but gamma has a gradient.
      batch.mean = Select(in, present, batch.mean, ZerosLike(in, batch.mean));
      batch.variance = Select(in, present, batch.variance, OnesLike(in, batch.variance));
    }
    Output averaged = batch.variance;
    if (rank == 4 && layer->moving_mean.dtype == DT_FLOAT) {
      // As the op for images, which TensorFlow runs here, too: of a sample, not of a population.
      const auto size = [&](const Output& of) { return Cast(in, Size(in, of), DT_FLOAT); };
      const Output one = Const(in, 1.0f), n = RealDiv(in, size(wide), size(averaged));
      averaged = Mul(in, averaged, RealDiv(in, n, Maximum(in, Sub(in, n, one), one)));
    }
    const Output moves = flag.valid() && present.valid() ? LogicalAnd(in, flag, present)
                                                         : (flag.valid() ? flag : present);
    layer->updates = {MoveAverage(in, layer->moving_mean, batch.mean, attrs.momentum, moves),
                      MoveAverage(in, layer->moving_variance, averaged, attrs.momentum, moves)};
    moments = !flag.valid() ? batch
                            : Moments{Select(in, flag, batch.mean, moments.mean),
                                      Select(in, flag, batch.variance, moments.variance)};
  }
  return CastTo(in, Normalized(in, wide, moments, attrs.epsilon, affine.gamma, affine.beta),
                WithoutRef(x.dtype()));
}

}  // namespace

BatchNormalizationLayer BatchNormalization(ScopeAt at, const Output& x,
                                           const TrainingFlag& training,
                                           const BatchNormalizationAttrs& attrs) {
  constexpr char kLayer[] = "BatchNormalization", kName[] = "batch_normalization";
  const int64_t channels = CheckNormalization(at, kLayer, kName, x, attrs.epsilon);
  if (channels < 0) return {};
  if (!(attrs.momentum >= 0 && attrs.momentum <= 1)) {
    LayerError(at, kLayer, kName, "momentum must be in [0, 1], got ", attrs.momentum);
    return {};
  }
  if (const Output* flag = std::get_if<Output>(&training)) {
    if (!CheckLayerTensor(at, kLayer, kName, *flag, 0, 0, "training")) return {};
    if (flag->dtype() != DT_BOOL) {
      LayerError(at, kLayer, kName, "training must be bool, got ", flag->dtype(), " from '",
                 flag->name(), "'");
      return {};
    }
  }
  const DType dtype = StatisticsType(x.dtype());
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  BatchNormalizationLayer layer;
  if (attrs.scale) {
    layer.gamma_parts =
        MakeWeightParts(in, "gamma", {channels}, dtype, attrs.partitioner,
                        {attrs.gamma_initializer, attrs.gamma_regularizer, attrs.trainable});
  }
  if (attrs.center) {
    layer.beta_parts =
        MakeWeightParts(in, "beta", {channels}, dtype, attrs.partitioner,
                        {attrs.beta_initializer, attrs.beta_regularizer, attrs.trainable});
  }
  layer.moving_mean = MakeWeight(in, "moving_mean", {channels}, dtype,
                                 {attrs.moving_mean_initializer, {}, /*trainable=*/false});
  layer.moving_variance = MakeWeight(in, "moving_variance", {channels}, dtype,
                                     {attrs.moving_variance_initializer, {}, /*trainable=*/false});
  if (!at.scope.ok()) return {};
  if (!attrs.partitioner) {
    if (attrs.scale) layer.gamma = layer.gamma_parts.parts[0];
    if (attrs.center) layer.beta = layer.beta_parts.parts[0];
  }
  const Affine affine = {attrs.scale ? WholeValue(in, layer.gamma_parts) : Output(),
                         attrs.center ? WholeValue(in, layer.beta_parts) : Output()};
  const int rank = at.scope.shape(x).rank();
  const bool* const flag = std::get_if<bool>(&training);
  const Output y = rank == 4 && dtype == DT_FLOAT && flag != nullptr
                       ? Fused(in, x, affine, *flag, channels, attrs, &layer)
                       : Composed(in, x, affine, training, rank, attrs, &layer);
  static_cast<Output&>(layer) = y;
  return layer;
}

std::vector<Operation> UpdateOps(ScopeAt at) {
  const Scope& scope = at.scope;
  std::vector<Operation> operations;
  const auto found = scope.collections()->find(kUpdateOps);
  if (found == scope.collections()->end()) return operations;
  // Entries name operations, or tensors of them (of TensorFlow's reference variables).
  for (const std::string& name : found->second.node_list().value()) {
    const StatusOr<TensorName> parsed = ParseTensorName(name);
    Node* const node = parsed.ok() ? scope.graph()->FindNode(parsed->node) : nullptr;
    if (node == nullptr) {
      scope.UpdateStatus(
          absl::NotFoundError(absl::StrCat("collection '", kUpdateOps,
                                           "': an entry must be of the graph, got '", name, "'")),
          at.where);
      return {};
    }
    operations.push_back(Operation(node));
  }
  return operations;
}

Operation TrainWithUpdates(ScopeAt at, const Operation& train) {
  if (!train.valid()) {
    LayerError(at, "TrainWithUpdates", "train", "train must be an operation, got an invalid one");
    return Operation();
  }
  std::vector<Operation> operations = UpdateOps(at);
  operations.push_back(train);
  return Group(at, operations);
}

LayerNormalizationLayer LayerNormalization(ScopeAt at, const Output& x,
                                           const LayerNormalizationAttrs& attrs) {
  constexpr char kLayer[] = "LayerNormalization", kName[] = "layer_normalization";
  const int64_t features = CheckNormalization(at, kLayer, kName, x, attrs.epsilon);
  if (features < 0) return {};
  const DType dtype = StatisticsType(x.dtype());
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  LayerNormalizationLayer layer;
  if (attrs.scale) {
    layer.gamma = MakeWeight(in, "gamma", {features}, dtype,
                             {attrs.gamma_initializer, attrs.gamma_regularizer, attrs.trainable});
  }
  if (attrs.center) {
    layer.beta = MakeWeight(in, "beta", {features}, dtype,
                            {attrs.beta_initializer, attrs.beta_regularizer, attrs.trainable});
  }
  if (!at.scope.ok()) return {};
  const Output wide = CastTo(in, x, dtype);
  const Moments moments = MomentsOf(in, wide, {-1});
  static_cast<Output&>(layer) =
      CastTo(in, Normalized(in, wide, moments, attrs.epsilon, layer.gamma.value, layer.beta.value),
             WithoutRef(x.dtype()));
  return layer;
}

}  // namespace millrace
