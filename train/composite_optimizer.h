// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_COMPOSITE_OPTIMIZER_H_
#define MILLRACE_TRAIN_COMPOSITE_OPTIMIZER_H_

// CompositeOptimizer: several optimizers, each for variables of its own, as one that counts the
// global step once.
//
//   CompositeOptimizer optimizer({{std::make_unique<AdagradOptimizer>(), network},
//                                 {std::make_unique<FtrlOptimizer>(), weights}});
//   const Operation train = optimizer.Minimize(model, loss, {.global_step = step});
//
// Values, slots and checkpoints are those of the parts, each with a Minimize of its own. The global
// step is counted when all parts have changed their variables. What wraps an optimizer
// (SyncReplicasOptimizer, StalenessAwareOptimizer) wraps all of them at once: the gradients of one
// step are of one round.
//
// MinimizeOptions: `clip` sees the gradients of all parts together. `variables` chooses among those
// of the parts; empty: all of them. A part without any of them does nothing.
//
// Thread-safety, lifetime: as Optimizer.
// Errors go into the scope: no parts, one without an optimizer or variables, a variable in two
// parts, a variable that no part has.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "train/optimizer.h"

namespace millrace {

class CompositeOptimizer : public Optimizer {
 public:
  struct Part {
    std::shared_ptr<Optimizer> optimizer;
    std::vector<Variable> variables;
  };
  explicit CompositeOptimizer(std::vector<Part> parts, const std::string& name = "composite");

  // In the order of the parts.
  std::vector<GradientAndVariable> ComputeGradients(ScopeAt at, Output loss,
                                                    const MinimizeOptions& options = {}) override;
  Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                           const MinimizeOptions& options = {}) override;
  // Of the variable's part.
  Variable GetSlot(const Variable& variable, absl::string_view slot) const override;
  // Of all parts.
  std::vector<std::string> GetSlotNames() const override;
  std::vector<Variable> Variables(const Scope& scope) const override;

 protected:
  Status CheckOptions(const Scope& scope) const override;

 private:
  // The index of the part that has it; parts_.size(): none.
  size_t PartOf(const Variable& variable) const;
  Status NoPartHas(const Variable& variable) const;

  const std::vector<Part> parts_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_COMPOSITE_OPTIMIZER_H_
