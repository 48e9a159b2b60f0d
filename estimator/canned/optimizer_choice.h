// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_OPTIMIZER_CHOICE_H_
#define MILLRACE_ESTIMATOR_CANNED_OPTIMIZER_CHOICE_H_

// OptimizerChoice: how a user says with what a pre-made model trains. All of these convert to it:
//
//   .optimizer = "Adam"                                    // the model's learning rate
//   .optimizer = AdagradOptions{.learning_rate = 0.1}
//   .optimizer = [](const Scope& scope) {                  // in each graph that trains
//     return std::make_unique<AdamOptimizer>(AdamOptions{
//         .learning_rate = ExponentialDecay(scope, 0.1, GlobalStep(scope).value,
//                                           {.decay_steps = 1000, .decay_rate = 0.96})});
//   }
//   .optimizer = std::make_shared<MyOptimizer>()           // keeps all graphs that it was used in
//
// Names: Adagrad, Adam, Ftrl, RMSProp, SGD (TensorFlow's).
//
// A value; threads may share it if the function allows that.
// Failure: InvalidArgument for another name, and for a function that returns null.

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "core/status.h"
#include "graph/scope.h"
#include "train/optimizer.h"
#include "train/optimizers.h"  // IWYU pragma: export

namespace millrace {

class OptimizerChoice {
 public:
  OptimizerChoice() = default;                                   // none
  OptimizerChoice(const char* name) : name_(name) {}             // NOLINT
  OptimizerChoice(std::string name) : name_(std::move(name)) {}  // NOLINT
  OptimizerChoice(const AdagradOptions& options);                // NOLINT
  OptimizerChoice(const AdamOptions& options);                   // NOLINT
  OptimizerChoice(const FtrlOptions& options);                   // NOLINT
  OptimizerChoice(const GradientDescentOptions& options);        // NOLINT
  OptimizerChoice(const MomentumOptions& options);               // NOLINT
  OptimizerChoice(const RMSPropOptions& options);                // NOLINT
  template <std::derived_from<Optimizer> T>
  OptimizerChoice(std::shared_ptr<T> optimizer)  // NOLINT
      : make_([optimizer](const Scope&) { return optimizer; }) {}
  // A function of (const Scope&), or of nothing, that returns a pointer that owns an Optimizer.
  template <typename F>
    requires(std::invocable<F&, const Scope&> || std::invocable<F&>)
  OptimizerChoice(F f) {  // NOLINT
    make_ = [f = std::move(f)](const Scope& scope) mutable -> std::shared_ptr<Optimizer> {
      if constexpr (std::invocable<F&, const Scope&>) {
        return f(scope);
      } else {
        return f();
      }
    };
  }

  bool valid() const { return make_ != nullptr || !name_.empty(); }
  // What is wrong with the name, if it is one. `field` is the option's.
  Status Check(const char* field) const;
  // `learning_rate`: of one that is chosen by name.
  StatusOr<std::shared_ptr<Optimizer>> Make(const Scope& scope, double learning_rate) const;

 private:
  std::string name_;
  std::function<std::shared_ptr<Optimizer>(const Scope& scope)> make_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_CANNED_OPTIMIZER_CHOICE_H_
