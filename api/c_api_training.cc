// SPDX-License-Identifier: Apache-2.0
//
// Variables, gradients, optimizers.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "api/c_api.h"
#include "api/c_api_handle.h"
#include "api/c_api_internal.h"
#include "core/status.h"
#include "graph/gradient.h"
#include "graph/node_builder.h"
#include "layers/initialized_value.h"
#include "layers/variable.h"
#include "ops/array/identity.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/moving_average.h"
#include "train/optimizer.h"
#include "train/rms_prop.h"

namespace millrace::c_api {
namespace {

// The numbers of a caller's options: which are given, and which the optimizer takes.
class Numbers {
 public:
  Numbers(const MillraceOptimizerOptions& options, absl::string_view where)
      : options_(options), where_(where) {}

  bool IsGiven(uint32_t bit) const {
    return (options_.given & bit) != 0 || options_.*FieldOf(bit).value != 0;
  }
  // What is not given leaves the optimizer's default.
  template <typename Option>
  void Take(uint32_t bit, Option* option) {
    taken_ |= bit;
    if (IsGiven(bit)) *option = options_.*FieldOf(bit).value;
  }
  // After all Takes. InvalidArgument for what nobody has taken and for what is no number.
  Status Check() const {
    uint32_t known = 0;
    for (const Field& field : kFields) {
      known |= field.bit;
      const double value = options_.*field.value;
      if (!std::isfinite(value)) {
        return InvalidArgument(where_, ": options.", field.name, " must be finite, got ", value);
      }
      if (!IsGiven(field.bit) || (taken_ & field.bit) != 0) continue;
      return InvalidArgument(where_, ": options.", field.name, " must not be given to ",
                             options_.optimizer, ", which has none, got ", value);
    }
    if ((options_.given & ~known) == 0) return absl::OkStatus();
    return InvalidArgument(where_, ": options.given must be made of MILLRACE_LEARNING_RATE to ",
                           "MILLRACE_DECAY, got ", options_.given);
  }

 private:
  struct Field {
    uint32_t bit;
    double MillraceOptimizerOptions::*value;
    const char* name;
  };
  static constexpr Field kFields[] = {
      {MILLRACE_LEARNING_RATE, &MillraceOptimizerOptions::learning_rate, "learning_rate"},
      {MILLRACE_BETA1, &MillraceOptimizerOptions::beta1, "beta1"},
      {MILLRACE_BETA2, &MillraceOptimizerOptions::beta2, "beta2"},
      {MILLRACE_EPSILON, &MillraceOptimizerOptions::epsilon, "epsilon"},
      {MILLRACE_INITIAL_ACCUMULATOR_VALUE, &MillraceOptimizerOptions::initial_accumulator_value,
       "initial_accumulator_value"},
      {MILLRACE_MOMENTUM, &MillraceOptimizerOptions::momentum, "momentum"},
      {MILLRACE_DECAY, &MillraceOptimizerOptions::decay, "decay"},
  };
  static const Field& FieldOf(uint32_t bit) {
    return *std::find_if(std::begin(kFields), std::end(kFields),
                         [&](const Field& field) { return field.bit == bit; });
  }

  const MillraceOptimizerOptions& options_;
  const absl::string_view where_;
  uint32_t taken_ = 0;
};

StatusOr<std::unique_ptr<Optimizer>> OptimizerOf(const Scope& scope,
                                                 const MillraceOptimizerOptions& options,
                                                 absl::string_view where) {
  MR_RETURN_IF_ERROR(CheckText(options.optimizer, where, "options.optimizer"));
  const absl::string_view kind = options.optimizer;
  Numbers numbers(options, where);
  Output rate;
  if (options.learning_rate_tensor != nullptr) {
    if (numbers.IsGiven(MILLRACE_LEARNING_RATE)) {
      return InvalidArgument(where,
                             ": options must have learning_rate or learning_rate_tensor, got both");
    }
    MR_ASSIGN_OR_RETURN(rate, FindTensor(scope, options.learning_rate_tensor, where));
  }
  std::unique_ptr<Optimizer> made;
  // What all of them have.
  const auto common = [&](auto* own) {
    numbers.Take(MILLRACE_LEARNING_RATE, &own->learning_rate);
    if (rate.valid()) own->learning_rate = rate;
    own->use_locking = options.use_locking != 0;
  };
  if (kind == "GradientDescent") {
    GradientDescentOptions own;
    common(&own);
    made = std::make_unique<GradientDescentOptimizer>(own);
  } else if (kind == "Momentum") {
    MomentumOptions own;
    common(&own);
    numbers.Take(MILLRACE_MOMENTUM, &own.momentum);
    own.use_nesterov = options.use_nesterov != 0;
    made = std::make_unique<MomentumOptimizer>(own);
  } else if (kind == "Adam") {
    AdamOptions own;
    common(&own);
    numbers.Take(MILLRACE_BETA1, &own.beta1);
    numbers.Take(MILLRACE_BETA2, &own.beta2);
    numbers.Take(MILLRACE_EPSILON, &own.epsilon);
    made = std::make_unique<AdamOptimizer>(own);
  } else if (kind == "Adagrad") {
    AdagradOptions own;
    common(&own);
    numbers.Take(MILLRACE_INITIAL_ACCUMULATOR_VALUE, &own.initial_accumulator_value);
    made = std::make_unique<AdagradOptimizer>(own);
  } else if (kind == "RMSProp") {
    RMSPropOptions own;
    common(&own);
    numbers.Take(MILLRACE_DECAY, &own.decay);
    numbers.Take(MILLRACE_MOMENTUM, &own.momentum);
    numbers.Take(MILLRACE_EPSILON, &own.epsilon);
    own.centered = options.centered != 0;
    made = std::make_unique<RMSPropOptimizer>(own);
  } else {
    return InvalidArgument(where,
                           ": options.optimizer must be GradientDescent, Momentum, Adam, Adagrad "
                           "or RMSProp, got '",
                           kind, "'");
  }
  MR_RETURN_IF_ERROR(numbers.Check());
  const bool no_nesterov = options.use_nesterov != 0 && kind != "Momentum";
  if (no_nesterov || (options.centered != 0 && kind != "RMSProp")) {
    return InvalidArgument(where, ": options.", no_nesterov ? "use_nesterov" : "centered",
                           " must not be set for ", kind, ", which has none, got ",
                           no_nesterov ? options.use_nesterov : options.centered);
  }
  return made;
}

StatusOr<MinimizeOptions> MinimizeOptionsOf(const Scope& scope,
                                            const MillraceOptimizerOptions& options,
                                            absl::string_view where) {
  MinimizeOptions result;
  result.name = TextOrNone(options.name);
  if (options.global_step != nullptr) {
    MR_ASSIGN_OR_RETURN(result.global_step, FindVariable(scope, options.global_step, where));
    const DType dtype = result.global_step->dtype;
    if (dtype != DT_INT64 && dtype != DT_INT32) {
      return InvalidArgument(where, ": options.global_step must be int64 or int32, got ", dtype);
    }
  }
  MR_ASSIGN_OR_RETURN(
      const std::vector<std::string> names,
      TextsOf(options.variables, options.num_variables, where, "options.variables"));
  MR_ASSIGN_OR_RETURN(result.variables, FindVariables(scope, names, where));
  return result;
}

}  // namespace
}  // namespace millrace::c_api

using namespace millrace;         // NOLINT: this file is the C face of it
using namespace millrace::c_api;  // NOLINT

const char* millrace_graph_add_variable(MillraceGraph* graph, const char* name,
                                        const char* initial_value,
                                        const MillraceVariableOptions* options,
                                        MillraceStatus* status) {
  const absl::string_view where = __func__;
  return EditForName(graph, status, where, [&](const Scope& scope) -> StatusOr<Operation> {
    MillraceVariableOptions known;
    MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &known));
    MR_RETURN_IF_ERROR(CheckText(initial_value, where, "initial_value"));
    MR_ASSIGN_OR_RETURN(const Output initial, FindTensor(scope, initial_value, where));
    VariableAttrs attrs;
    attrs.trainable = known.not_trainable == 0;
    attrs.local = known.local != 0;
    attrs.container = TextOrNone(known.container);
    Scope here = Named(scope, name);
    if (known.device != nullptr) here = here.WithDevice(known.device);
    return MakeVariable(here, initial, attrs).handle.op();
  });
}

const char* millrace_graph_variable_value(MillraceGraph* graph, const char* variable,
                                          MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<const char*>(graph, status, where, nullptr,
                          [&](GraphState* state, const Scope& scope) -> StatusOr<const char*> {
                            MR_RETURN_IF_ERROR(CheckText(variable, where, "variable"));
                            MR_ASSIGN_OR_RETURN(const Variable found,
                                                FindVariable(scope, variable, where));
                            return state->Keep(found.value.name());
                          });
}

const char* millrace_graph_initialized_value(MillraceGraph* graph, const char* variable,
                                             MillraceStatus* status) {
  const absl::string_view where = __func__;
  // A tensor's name: that of its node where it is output 0, which this one is.
  return EditForName(graph, status, where, [&](const Scope& scope) -> StatusOr<Operation> {
    MR_RETURN_IF_ERROR(CheckText(variable, where, "variable"));
    MR_ASSIGN_OR_RETURN(const Variable found, FindVariable(scope, variable, where));
    return InitializedValue(scope, found).op();
  });
}

MillraceStrings* millrace_graph_variables(MillraceGraph* graph, MillraceStatus* status) {
  return Ask<MillraceStrings*>(graph, status, __func__, nullptr,
                               [](GraphState*, const Scope& scope) -> StatusOr<MillraceStrings*> {
                                 StringsObject names;
                                 for (const Variable& variable : VariablesOf(scope))
                                   names.strings.push_back(variable.name);
                                 return Handles<StringsObject>::New(std::move(names));
                               });
}

const char* millrace_graph_add_initializer(MillraceGraph* graph, const char* name,
                                           MillraceStatus* status) {
  return EditForName(graph, status, __func__, [&](const Scope& scope) -> StatusOr<Operation> {
    std::vector<Operation> initializers;
    for (const char* collection : {"variables", "local_variables"}) {
      for (const Variable& variable : VariablesOf(scope, collection)) {
        if (variable.initializer.valid()) initializers.push_back(variable.initializer);
      }
    }
    return Group(scope.WithName(name == nullptr ? "init" : name), initializers);
  });
}

const char* millrace_graph_global_step(MillraceGraph* graph, MillraceStatus* status) {
  return EditForName(graph, status, __func__, [](const Scope& scope) -> StatusOr<Operation> {
    return GlobalStep(scope).handle.op();
  });
}

MillraceCode millrace_graph_add_gradients(MillraceGraph* graph, const char* const* ys, int num_ys,
                                          const char* const* xs, int num_xs,
                                          const char* const* grad_ys, const char** gradients,
                                          MillraceStatus* status) {
  if (gradients != nullptr) std::fill_n(gradients, std::max(num_xs, 0), nullptr);
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const GraphObject* object,
                        Handles<GraphObject>::Get(graph, where, "graph"));
    const std::shared_ptr<GraphState> state = object->state;
    MR_ASSIGN_OR_RETURN(const auto y_names, TextsOf(ys, num_ys, where, "ys"));
    MR_ASSIGN_OR_RETURN(const auto x_names, TextsOf(xs, num_xs, where, "xs"));
    MR_RETURN_IF_ERROR(CheckArray(gradients, num_xs, where, "gradients"));
    if (num_ys == 0) return InvalidArgument(where, ": there must be at least one y, got none");
    std::vector<const char*> names(x_names.size());
    MR_RETURN_IF_ERROR(state->Edit([&](const Scope& scope) -> Status {
      std::vector<Output> y_outputs, x_outputs;
      GradientOptions options;
      for (size_t i = 0; i < y_names.size(); ++i) {
        MR_ASSIGN_OR_RETURN(Output y, FindTensor(scope, y_names[i], where));
        if (grad_ys != nullptr) {
          Output grad_y;
          if (grad_ys[i] != nullptr) {
            MR_ASSIGN_OR_RETURN(grad_y, FindTensor(scope, grad_ys[i], where));
          } else {
            grad_y = BuildOp(scope, "OnesLike", {y});
          }
          options.grad_ys.push_back(std::move(grad_y));
        }
        y_outputs.push_back(std::move(y));
      }
      for (const std::string& name : x_names) {
        MR_ASSIGN_OR_RETURN(Output x, FindTensor(scope, name, where));
        x_outputs.push_back(std::move(x));
      }
      MR_ASSIGN_OR_RETURN(const std::vector<Gradient> made,
                          AddGradients(scope, y_outputs, x_outputs, options));
      for (size_t i = 0; i < made.size(); ++i) {
        const Output dense = DenseGradient(scope, made[i]);
        names[i] = dense.valid() ? state->Keep(dense.name()) : nullptr;
      }
      MR_RETURN_IF_ERROR(scope.status());
      return absl::OkStatus();
    }));
    std::copy(names.begin(), names.end(), gradients);
    return absl::OkStatus();
  });
}

const char* millrace_graph_minimize(MillraceGraph* graph, const char* loss,
                                    const MillraceOptimizerOptions* options,
                                    MillraceStatus* status) {
  const absl::string_view where = __func__;
  return EditForName(graph, status, where, [&](const Scope& scope) -> StatusOr<Operation> {
    MillraceOptimizerOptions known;
    MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &known));
    MR_RETURN_IF_ERROR(CheckText(loss, where, "loss"));
    MR_ASSIGN_OR_RETURN(const Output output, FindTensor(scope, loss, where));
    MR_ASSIGN_OR_RETURN(const auto optimizer, OptimizerOf(scope, known, where));
    MR_ASSIGN_OR_RETURN(const MinimizeOptions minimize, MinimizeOptionsOf(scope, known, where));
    return optimizer->Minimize(scope, output, minimize);
  });
}

const char* millrace_graph_apply_gradients(MillraceGraph* graph, const char* const* gradients,
                                           const char* const* variables, int count,
                                           const MillraceOptimizerOptions* options,
                                           MillraceStatus* status) {
  const absl::string_view where = __func__;
  return EditForName(graph, status, where, [&](const Scope& scope) -> StatusOr<Operation> {
    MillraceOptimizerOptions known;
    MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &known));
    MR_ASSIGN_OR_RETURN(const auto gradient_names, TextsOf(gradients, count, where, "gradients"));
    MR_ASSIGN_OR_RETURN(const auto variable_names, TextsOf(variables, count, where, "variables"));
    if (known.num_variables != 0) {
      return InvalidArgument(where, ": options.variables must be none (variables say which), ",
                             "got ", known.num_variables);
    }
    MR_ASSIGN_OR_RETURN(const auto found, FindVariables(scope, variable_names, where));
    std::vector<GradientAndVariable> pairs;
    for (size_t i = 0; i < found.size(); ++i) {
      MR_ASSIGN_OR_RETURN(const Output gradient, FindTensor(scope, gradient_names[i], where));
      const Variable& variable = found[i];
      if (gradient.dtype() != variable.dtype ||
          !scope.shape(gradient).IsCompatibleWith(variable.shape)) {
        return InvalidArgument(where, ": the gradient of '", variable.name, "' must be ",
                               variable.dtype, variable.shape, ", got ", gradient.dtype(),
                               scope.shape(gradient), " '", gradient_names[i], "'");
      }
      pairs.push_back({gradient, variable});
    }
    MR_ASSIGN_OR_RETURN(const auto optimizer, OptimizerOf(scope, known, where));
    MR_ASSIGN_OR_RETURN(const MinimizeOptions minimize, MinimizeOptionsOf(scope, known, where));
    return optimizer->ApplyGradients(scope, pairs, minimize);
  });
}

const char* millrace_graph_add_moving_average(MillraceGraph* graph, const char* const* variables,
                                              int count,
                                              const MillraceMovingAverageOptions* options,
                                              MillraceStatus* status) {
  const absl::string_view where = __func__;
  return EditForName(graph, status, where, [&](const Scope& scope) -> StatusOr<Operation> {
    MillraceMovingAverageOptions known;
    MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &known));
    MR_ASSIGN_OR_RETURN(const auto names, TextsOf(variables, count, where, "variables"));
    MR_ASSIGN_OR_RETURN(const auto found, FindVariables(scope, names, where));
    ExponentialMovingAverageOptions own;
    if (known.decay != 0) own.decay = known.decay;
    if (known.name != nullptr) own.name = known.name;
    if (known.num_updates != nullptr) {
      MR_ASSIGN_OR_RETURN(own.num_updates, FindTensor(scope, known.num_updates, where));
    }
    Scope here = scope;
    if (known.after != nullptr) {
      MR_ASSIGN_OR_RETURN(const Operation after, FindNode(scope, known.after, where));
      here = here.WithControlDependencies({after});
    }
    return ExponentialMovingAverage(own).Apply(here, found);
  });
}
