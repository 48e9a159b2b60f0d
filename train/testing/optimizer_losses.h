// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TESTING_OPTIMIZER_LOSSES_H_
#define MILLRACE_TRAIN_TESTING_OPTIMIZER_LOSSES_H_

// LinearLoss and TableLoss: two small models to try optimizers on, one with a dense gradient that
// is fed, one with a gradient of some rows. Around them, the gradients that tests feed and the
// names of the slots that an optimizer has made.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/state/state.h"
#include "runtime/session.h"

namespace millrace {

// A model with one vector variable whose gradient is fed: loss = sum(g * w).
struct LinearLoss {
  Scope root;
  Output gradient, loss;
  Variable w;

  explicit LinearLoss(std::initializer_list<float> initial) {
    gradient = Placeholder(root.WithName("g"), DT_FLOAT, {static_cast<int64_t>(initial.size())});
    w = MakeVariable(root.WithName("w"), Const<float>(root, initial));
    loss = ReduceSum(root, Mul(root, gradient, w.value));
  }

  // The values of w after each of `gradients` has been applied by `train`.
  StatusOr<std::vector<Tensor>> Train(Operation train, const std::vector<Tensor>& gradients,
                                      const std::vector<FetchName>& also = {}) {
    const Operation init = GlobalVariablesInitializer(root);
    MR_RETURN_IF_ERROR(root.status());
    MR_ASSIGN_OR_RETURN(session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(root));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
    for (const Tensor& g : gradients) {
      MR_RETURN_IF_ERROR(session->Run({{gradient, g}}, {}, {train}).status());
    }
    std::vector<FetchName> fetches = {w.value};
    fetches.insert(fetches.end(), also.begin(), also.end());
    return session->Run({}, fetches);
  }
  std::unique_ptr<Session> session;
};

// A table of 4 rows of which rows 1, 3, 1 are looked up: loss = sum of the rows, so every look-up
// contributes ones.
struct TableLoss {
  Scope root;
  Variable table;
  Output loss;
  TableLoss() {
    table = MakeVariable(root.WithName("table"),
                         Const(root, TensorOf<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7})));
    loss = ReduceSum(root,
                     ResourceGather(root, table.handle, Const<int64_t>(root, {1, 3, 1}), DT_FLOAT));
  }
  StatusOr<Tensor> TrainOnce(Operation train) { return TrainFor(1, train); }
  StatusOr<Tensor> TrainFor(int steps, Operation train) {
    const Operation init = GlobalVariablesInitializer(root);
    MR_RETURN_IF_ERROR(root.status());
    MR_ASSIGN_OR_RETURN(auto session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(root));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
    for (int i = 0; i < steps; ++i) MR_RETURN_IF_ERROR(session->Run({}, {}, {train}).status());
    MR_ASSIGN_OR_RETURN(auto out, session->Run({}, {table.value}));
    return out[0];
  }
  // Whether a node of the training graph updates the whole table.
  bool HasDenseGradient() const {
    for (const auto& node : root.graph()->nodes()) {
      if (node == nullptr) continue;
      if (node->op().rfind("ResourceApply", 0) == 0) return true;
    }
    return false;
  }
};

inline const std::vector<std::vector<double>> kGradients = {
    {0.5, -1, 0}, {0.25, 3, 0}, {-2, 0.125, 1}};

inline std::vector<Tensor> GradientTensors() {
  std::vector<Tensor> tensors;
  for (const auto& g : kGradients) {
    tensors.push_back(TensorOf<float>(
        {3}, {static_cast<float>(g[0]), static_cast<float>(g[1]), static_cast<float>(g[2])}));
  }
  return tensors;
}

inline Tensor ThreeFloats(const double* d) {
  return TensorOf<float>(
      {3}, {static_cast<float>(d[0]), static_cast<float>(d[1]), static_cast<float>(d[2])});
}

// The variables other than w, in the order in which they were made.
inline std::vector<std::string> SlotNames(const Scope& root) {
  std::vector<std::string> names;
  for (const Variable& variable : VariablesOf(root)) names.push_back(variable.name);
  names.erase(names.begin());
  return names;
}

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TESTING_OPTIMIZER_LOSSES_H_
