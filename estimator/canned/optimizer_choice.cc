// SPDX-License-Identifier: Apache-2.0
#include "estimator/canned/optimizer_choice.h"

#include "train/ftrl.h"

namespace millrace {
namespace {

template <typename O, typename Options>
std::function<std::shared_ptr<Optimizer>(const Scope&)> Maker(const Options& options) {
  return [options](const Scope&) { return std::make_shared<O>(options); };
}

// Null for no name of an optimizer.
std::shared_ptr<Optimizer> ByName(const std::string& name, double learning_rate) {
  if (name == "Adagrad") {
    return std::make_shared<AdagradOptimizer>(AdagradOptions{.learning_rate = learning_rate});
  }
  if (name == "Adam") {
    return std::make_shared<AdamOptimizer>(AdamOptions{.learning_rate = learning_rate});
  }
  if (name == "Ftrl") {
    return std::make_shared<FtrlOptimizer>(FtrlOptions{.learning_rate = learning_rate});
  }
  if (name == "RMSProp") {
    return std::make_shared<RMSPropOptimizer>(RMSPropOptions{.learning_rate = learning_rate});
  }
  if (name == "SGD") {
    return std::make_shared<GradientDescentOptimizer>(
        GradientDescentOptions{.learning_rate = learning_rate});
  }
  return nullptr;
}

}  // namespace

OptimizerChoice::OptimizerChoice(const AdagradOptions& options)
    : make_(Maker<AdagradOptimizer>(options)) {}
OptimizerChoice::OptimizerChoice(const AdamOptions& options)
    : make_(Maker<AdamOptimizer>(options)) {}
OptimizerChoice::OptimizerChoice(const FtrlOptions& options)
    : make_(Maker<FtrlOptimizer>(options)) {}
OptimizerChoice::OptimizerChoice(const GradientDescentOptions& options)
    : make_(Maker<GradientDescentOptimizer>(options)) {}
OptimizerChoice::OptimizerChoice(const MomentumOptions& options)
    : make_(Maker<MomentumOptimizer>(options)) {}
OptimizerChoice::OptimizerChoice(const RMSPropOptions& options)
    : make_(Maker<RMSPropOptimizer>(options)) {}

Status OptimizerChoice::Check(const char* field) const {
  if (!valid()) return InvalidArgument(field, " must be given, got none");
  if (make_ != nullptr || ByName(name_, 1) != nullptr) return absl::OkStatus();
  return InvalidArgument(field, " must be Adagrad, Adam, Ftrl, RMSProp or SGD, got '", name_, "'");
}

StatusOr<std::shared_ptr<Optimizer>> OptimizerChoice::Make(const Scope& scope,
                                                           double learning_rate) const {
  std::shared_ptr<Optimizer> made =
      make_ ? make_(scope.BuiltWhereCalled()) : ByName(name_, learning_rate);
  MR_RETURN_IF_ERROR(scope.status());
  if (made != nullptr) return made;
  MR_RETURN_IF_ERROR(Check("optimizer"));
  return InvalidArgument("optimizer must be a function that returns one, got a null one");
}

}  // namespace millrace
