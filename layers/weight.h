// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_WEIGHT_H_
#define MILLRACE_LAYERS_WEIGHT_H_

// What the layers share: their weights, and the checks of their inputs.
//
// A layer is a function that builds ops and variables in one name scope ("dense", "dense_1", or
// what WithName says) and returns its output, which knows the layer's variables:
//
//   const DenseLayer hidden = Dense(model, x, 128, {.activation = Relu});
//   Output logits = Dense(model.WithName("logits"), hidden, 10);  // "logits/kernel", ...
//
// Variables have the names that TensorFlow's tf.layers give them, so that checkpoints agree, and go
// where the scope's device function sends them. A weight's regularisation loss is computed next to
// it and entered into the collection "regularization_losses".
//
// Failure: an error in the Scope, "<Layer> '<name>': ...", and an invalid output.

#include <functional>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/partitioner.h"
#include "layers/regularizers.h"
#include "layers/variable.h"

namespace millrace {

// What follows a layer: Relu, or any function of this form.
using Activation = std::function<Output(ScopeAt at, Output x)>;

// An error of the layer that would be named so.
template <typename... Parts>
void LayerError(const ScopeAt& at, absl::string_view layer, absl::string_view default_name,
                const Parts&... parts) {
  at.scope.UpdateStatus(Prefixed(absl::StrCat(layer, " '", at.scope.prefix(),
                                              at.scope.RequestedName(default_name), "'"),
                                 InvalidArgument(parts...)),
                        at.where);
}

// Is x a tensor of this graph, of a rank within the bounds as far as it is known? `name` is the
// argument's.
bool CheckLayerTensor(const ScopeAt& at, absl::string_view layer, absl::string_view default_name,
                      const Output& x, int min_rank, int max_rank, absl::string_view name = "x");
// And a floating one?
bool CheckLayerInput(const ScopeAt& at, absl::string_view layer, absl::string_view default_name,
                     const Output& x, int min_rank, int max_rank);

struct WeightAttrs {
  Initializer initializer;
  Regularizer regularizer = {};
  bool trainable = true;
};
// The variable `name` in the scope. InvalidArgument for dimensions that make no shape.
Variable MakeWeight(const ScopeAt& at, const std::string& name, std::initializer_list<int64_t> dims,
                    DType dtype, const WeightAttrs& attrs);
// The same in parts, each with a regularisation loss of its own; one part, the whole, without a
// partitioner, whatever the scope says of tables. The parts behind one that could not be made are
// missing.
PartitionedVariable MakeWeightParts(const ScopeAt& at, const std::string& name,
                                    std::initializer_list<int64_t> dims, DType dtype,
                                    const Partitioner& partitioner, const WeightAttrs& attrs);
// The regularisation loss of a weight that exists; nothing without a regulariser.
void AddRegularizationLoss(const ScopeAt& at, const Variable& weight,
                           const Regularizer& regularizer);

// The full name of the result of a builder whose other nodes stand in the scope of that name, as
// TensorFlow's functions with a name_scope have them: what WithName asked for, else `default_name`;
// unique, and reserved. Both WithSubScope(name + "/") and WithName(name + "/") take it as it is.
std::string ReserveName(const Scope& scope, absl::string_view default_name);

// activation(x), or x where there is none. In a function of the program its own lines count.
inline Output Activated(const ScopeAt& at, const Activation& activation, const Output& x) {
  if (!activation || !x.valid()) return x;
  const Scope scope = at.scope.BuiltWhereCalled();
  return activation(ScopeAt(scope, at.where), x);
}

}  // namespace millrace

#endif  // MILLRACE_LAYERS_WEIGHT_H_
