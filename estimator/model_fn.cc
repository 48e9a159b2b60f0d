// SPDX-License-Identifier: Apache-2.0
#include "estimator/model_fn.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"

namespace millrace {
namespace {

class SpecCheck {
 public:
  SpecCheck(const Scope& scope, Mode mode) : scope_(scope), mode_(mode) {}

  template <typename... Parts>
  Status Wrong(const Parts&... parts) const {
    return InvalidArgument("model_fn in mode ", ModeName(mode_), ": ", parts...);
  }

  Status IsHere(const std::string& what, const Node* node) const {
    if (node == nullptr) return Wrong(what, " must be of the graph, got an invalid one");
    if (node->graph() == scope_.graph()) return absl::OkStatus();
    return Wrong(what, " must be of the scope's graph, got '", node->name(),
                 "' of another one; build with the scope that the function is given");
  }
  Status IsHere(const std::string& what, const Output& output) const {
    return IsHere(what, output.node());
  }

  Status Hooks(const char* field, const millrace::Hooks& hooks) const {
    std::set<const SessionRunHook*> seen;
    for (const auto& hook : hooks) {
      if (hook == nullptr) return Wrong(field, " must be hooks, got a null one");
      if (!seen.insert(hook.get()).second) {
        return Wrong(field, " must be hooks of their own, got ", hook->name(), " twice");
      }
    }
    return absl::OkStatus();
  }

  // The loss as a scalar.
  Status Loss(Output* loss) const {
    MR_RETURN_IF_ERROR(IsHere("loss", *loss));
    const DType dtype = WithoutRef(loss->dtype());
    if (dtype != DT_FLOAT && dtype != DT_DOUBLE) {
      return Wrong("loss must be float or double, got ", dtype, " '", loss->name(), "'");
    }
    const PartialShape shape = scope_.shape(*loss);
    if (shape.has_rank() && shape.rank() == 0) return absl::OkStatus();
    if (shape.IsFullyDefined() && shape.num_elements() != 1) {
      return Wrong("loss must have one element, got '", loss->name(), "' of shape ", shape,
                   "; ReduceMean makes one of many");
    }
    *loss =
        Reshape(scope_.WithName("loss_scalar"), *loss, Const(scope_, Tensor::Vector<int32_t>({})));
    return scope_.status();
  }

 private:
  const Scope& scope_;
  const Mode mode_;
};

}  // namespace

StatusOr<EstimatorSpec> ModelFn::operator()(const ModelFnCall& call) const {
  if (!valid()) return InvalidArgument("Estimator: model_fn must be a function, got none");
  StatusOr<EstimatorSpec> spec = call_(call);
  // What builders have met comes first: what the function says may follow from it.
  MR_RETURN_IF_ERROR(call.scope.status());
  return spec;
}

Status CheckSpec(const Scope& scope, Mode mode, EstimatorSpec* spec) {
  const SpecCheck check(scope, mode);
  if (spec->mode != mode) {
    return check.Wrong("mode of the EstimatorSpec must be that of the call, got ",
                       ModeName(spec->mode));
  }
  if (mode != Mode::kPredict) {
    if (!spec->loss.valid()) return check.Wrong("loss must be given, got none");
    MR_RETURN_IF_ERROR(check.Loss(&spec->loss));
  }
  if (mode == Mode::kTrain) {
    if (!spec->train_op.valid()) return check.Wrong("train_op must be given, got none");
    MR_RETURN_IF_ERROR(check.IsHere("train_op", spec->train_op.node()));
  }
  if (mode == Mode::kPredict && spec->predictions.empty()) {
    return check.Wrong("predictions must be given, got none");
  }
  for (const auto& [name, output] : spec->predictions.map()) {
    MR_RETURN_IF_ERROR(check.IsHere(absl::StrCat("predictions['", name, "']"), output));
  }
  for (const auto& [name, metric] : spec->eval_metric_ops) {
    for (const char* reserved : {"loss", "global_step"}) {
      if (mode != Mode::kEval || name != reserved) continue;
      return check.Wrong(
          "eval_metric_ops must have names other than 'loss' and 'global_step', "
          "which each evaluation has, got '",
          name, "'");
    }
    MR_RETURN_IF_ERROR(
        check.IsHere(absl::StrCat("the value of eval_metric_ops['", name, "']"), metric.value));
    MR_RETURN_IF_ERROR(
        check.IsHere(absl::StrCat("the update of eval_metric_ops['", name, "']"), metric.update));
  }
  MR_RETURN_IF_ERROR(check.Hooks("training_chief_hooks", spec->training_chief_hooks));
  MR_RETURN_IF_ERROR(check.Hooks("training_hooks", spec->training_hooks));
  MR_RETURN_IF_ERROR(check.Hooks("evaluation_hooks", spec->evaluation_hooks));
  MR_RETURN_IF_ERROR(check.Hooks("prediction_hooks", spec->prediction_hooks));
  if (spec->saver != nullptr && spec->scaffold.saver == nullptr) {
    spec->scaffold.saver = spec->saver.get();
  }
  return absl::OkStatus();
}

}  // namespace millrace
