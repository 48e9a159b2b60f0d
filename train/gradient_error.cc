// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_error.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "graph/central_difference.h"
#include "graph/gradient.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/rules/nd_index.h"
#include "runtime/session.h"

namespace millrace {
namespace {

// Any fixed one: a check that fails fails again.
constexpr uint32_t kSeed = 20150509;

constexpr absl::string_view kUnknownShapes = ", with inputs of unknown shapes";

// The largest difference of all inputs, and of those that have one above their tolerance: where it
// is, and both numbers.
struct Found {
  double error = 0, error_above = 0;
  std::string above;  // "": none
};

// Whether input i is to be moved.
bool IsChecked(const std::vector<Tensor>& inputs, const GradientErrorOptions& options, size_t i) {
  const std::vector<int>& constant = options.constant_inputs;
  return IsTrainable(inputs[i].dtype()) &&
         std::find(constant.begin(), constant.end(), static_cast<int>(i)) == constant.end();
}

// One graph: the function with its gradients.
class Comparison {
 public:
  Comparison(const OutputsFunction& build, const std::vector<Tensor>& inputs,
             const GradientErrorOptions& options, bool known_shapes)
      : build_(build), inputs_(inputs), options_(options), known_shapes_(known_shapes) {}

  Status Run(Found* found) {
    MR_RETURN_IF_ERROR(BuildFunction());
    MR_RETURN_IF_ERROR(DrawWeights());
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> gradients, Gradients());
    for (size_t k = 0; k < checked_.size(); ++k) {
      MR_RETURN_IF_ERROR(CompareInput(checked_[k], gradients[k], found));
    }
    return absl::OkStatus();
  }

 private:
  // A tensor that is fed like `value`. Not the placeholder itself: a function, or a gradient, may
  // return what it got, and a step does not fetch what is fed.
  Output Fed(const Tensor& value) {
    const PartialShape shape = known_shapes_ ? PartialShape(value.shape()) : PartialShape();
    placeholders_.push_back(Placeholder(root_, value.dtype(), shape));
    return Identity(root_, placeholders_.back());
  }

  Status BuildFunction() {
    for (const Tensor& input : inputs_) xs_.push_back(Fed(input));
    ys_ = build_(root_, xs_);
    MR_RETURN_IF_ERROR(root_.status());
    if (ys_.empty()) return InvalidArgument("the function must return an output, got none");
    for (size_t i = 0; i < ys_.size(); ++i) {
      if (!ys_[i].valid()) {
        return InvalidArgument("output ", i, " must be an output of a node, got an invalid one");
      }
      if (!IsTrainable(ys_[i].dtype())) {
        return InvalidArgument("output ", i, " must be of a floating or complex type, got ",
                               ys_[i].dtype());
      }
    }
    MR_ASSIGN_OR_RETURN(session_, NewSession());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    MR_ASSIGN_OR_RETURN(values_, Step(ys_));
    return absl::OkStatus();
  }

  // Fed with all that has a placeholder so far.
  StatusOr<std::unique_ptr<PreparedStep>> Step(const std::vector<Output>& fetches) {
    return session_->Prepare(std::vector<FetchName>(placeholders_.begin(), placeholders_.end()),
                             std::vector<FetchName>(fetches.begin(), fetches.end()));
  }

  Status DrawWeights() {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> y, values_->Run(inputs_));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> again, values_->Run(inputs_));
    std::mt19937 random(kSeed);
    for (size_t i = 0; i < y.size(); ++i) {
      MR_RETURN_IF_ERROR(CheckIsFinite(i, y[i]));
      MR_RETURN_IF_ERROR(CheckIsRepeated(i, y[i], again[i]));
      MR_ASSIGN_OR_RETURN(Tensor weights, DrawnWeights(y[i], &random));
      weights_.push_back(std::move(weights));
    }
    return absl::OkStatus();
  }

  // One that is not finite would spoil the differences of all input elements.
  static Status CheckIsFinite(size_t output, const Tensor& y) {
    for (size_t i = 0; i < NumComponents(y); ++i) {
      if (std::isfinite(Component(y, i))) continue;
      return InvalidArgument("output ", output, At(y, i), " must be finite, got ",
                             Number(Component(y, i)), "; choose other inputs");
    }
    return absl::OkStatus();
  }

  // Rounding may differ, of a sum whose order is not fixed: by less than what would move a
  // difference by its tolerance.
  static Status CheckIsRepeated(size_t output, const Tensor& a, const Tensor& b) {
    const DifferenceScale scale = DifferenceScaleOf(a.dtype());
    const bool same_shape = a.shape() == b.shape();
    for (size_t i = 0; same_shape && i < NumComponents(a); ++i) {
      const double x = Component(a, i), y = Component(b, i);
      if (RelativeDifference(x, y) <= scale.step * scale.tolerance) continue;
      return InvalidArgument("output ", output, At(a, i), " must depend on the inputs alone, got ",
                             Number(x), " and, in a second step, ", Number(y),
                             "; random numbers can not be checked");
    }
    if (same_shape) return absl::OkStatus();
    return InvalidArgument("output ", output, " must depend on the inputs alone, got shape ",
                           a.shape(), " and, in a second step, ", b.shape());
  }

  // Of the inputs in checked_; no value where none flows.
  StatusOr<std::vector<Tensor>> Gradients() {
    GradientOptions options;
    for (const Tensor& weights : weights_) options.grad_ys.push_back(Fed(weights));
    std::vector<Output> xs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!IsChecked(inputs_, options_, i)) continue;
      checked_.push_back(i);
      xs.push_back(xs_[i]);
    }
    MR_ASSIGN_OR_RETURN(const std::vector<Gradient> gradients,
                        AddGradients(root_, ys_, xs, options));
    std::vector<Output> fetches;
    for (const Gradient& gradient : gradients) {
      if (HasGradient(gradient)) fetches.push_back(DenseGradient(root_, gradient));
    }
    MR_RETURN_IF_ERROR(root_.status());
    std::vector<Tensor> result(gradients.size());
    if (fetches.empty()) return result;
    std::vector<Tensor> feeds = inputs_;
    feeds.insert(feeds.end(), weights_.begin(), weights_.end());
    MR_ASSIGN_OR_RETURN(const auto step, Step(fetches));
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> fetched, step->Run(feeds));
    for (size_t k = 0, next = 0; k < gradients.size(); ++k) {
      if (HasGradient(gradients[k])) result[k] = std::move(fetched[next++]);
    }
    return result;
  }

  StatusOr<double> SumWith(size_t input, Tensor value) const {
    std::vector<Tensor> feeds = inputs_;
    feeds[input] = std::move(value);
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> y, values_->Run(feeds));
    return WeightedSum(y, weights_);
  }

  // That of the coarsest type on the way, but for what the caller has chosen.
  DifferenceScale ScaleOf(const Tensor& input) const {
    DifferenceScale scale = DifferenceScaleOf(input.dtype());
    for (const Output& y : ys_) {
      const DifferenceScale other = DifferenceScaleOf(y.dtype());
      if (other.step > scale.step) scale = other;
    }
    if (options_.step > 0) scale.step = options_.step;
    if (options_.tolerance > 0) scale.tolerance = options_.tolerance;
    return scale;
  }

  Status CompareInput(size_t input, const Tensor& gradient, Found* found) const {
    const Tensor& x = inputs_[input];
    const std::string name = absl::StrCat("inputs[", input, "]");
    if (gradient.has_value() && (gradient.dtype() != x.dtype() || gradient.shape() != x.shape())) {
      return InvalidArgument("the gradient of ", name, " must be like the input, ", x.dtype(), " ",
                             x.shape(), ", got ", gradient.dtype(), " ", gradient.shape());
    }
    const DifferenceScale scale = ScaleOf(x);
    size_t num_above = 0, largest = 0;
    double error = -1, central_there = 0, gradient_there = 0;
    for (size_t i = 0; i < NumComponents(x); ++i) {
      const StatusOr<double> central = CentralDifference(
          x, i, scale.step, [&](Tensor moved) { return SumWith(input, std::move(moved)); });
      if (!central.ok()) return Prefixed(absl::StrCat(name, At(x, i)), central.status());
      const double given = gradient.has_value() ? Component(gradient, i) : 0;
      const double difference = RelativeDifference(given, *central);
      if (difference > scale.tolerance) ++num_above;
      if (difference <= error) continue;
      error = difference;
      largest = i;
      central_there = *central;
      gradient_there = given;
    }
    found->error = std::max(found->error, error);
    if (num_above == 0 || error <= found->error_above) return absl::OkStatus();
    found->error_above = error;
    found->above = absl::StrCat(
        "the gradient of ", name, At(x, largest), " must be the central difference, ",
        Number(central_there), ", got ", Number(gradient_there),
        gradient.has_value() ? "" : WhyNone(input), "; ", num_above, " of ", NumComponents(x),
        " numbers differ by more than ", scale.tolerance,
        std::isfinite(error) ? "" : ", choose other inputs", known_shapes_ ? "" : kUnknownShapes);
    return absl::OkStatus();
  }

  std::string WhyNone(size_t input) const {
    return absl::StrCat(" (no gradient flows there: ", WhyNoGradient(ys_[0], xs_[input]), ")");
  }

  // Enough digits to see a difference above the tolerance; 0 for -0.
  static std::string Number(double value) { return absl::StrFormat("%.9g", value + 0.0); }

  // " at [1,0]" of component i; a scalar has no place, only a part.
  static std::string At(const Tensor& x, size_t i) {
    const bool is_complex = IsComplex(x.dtype());
    const auto element = static_cast<int64_t>(is_complex ? i / 2 : i);
    std::string text =
        x.rank() == 0 ? "" : absl::StrCat(" at [", IndexText(x.shape(), element), "]");
    if (is_complex) absl::StrAppend(&text, i % 2 == 0 ? " (real part)" : " (imaginary part)");
    return text;
  }

  const OutputsFunction& build_;
  const std::vector<Tensor>& inputs_;
  const GradientErrorOptions& options_;
  const bool known_shapes_;
  Scope root_;
  std::vector<Output> placeholders_, xs_, ys_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<PreparedStep> values_;  // of ys_
  std::vector<Tensor> weights_;
  std::vector<size_t> checked_;  // inputs by index
};

Status CheckOption(absl::string_view name, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return InvalidArgument("options.", name, " must be a number >= 0, got ", value);
}

Status CheckArguments(const std::vector<Tensor>& inputs, const GradientErrorOptions& options) {
  MR_RETURN_IF_ERROR(CheckOption("step", options.step));
  MR_RETURN_IF_ERROR(CheckOption("tolerance", options.tolerance));
  for (const int i : options.constant_inputs) {
    if (i < 0 || i >= static_cast<int>(inputs.size())) {
      return InvalidArgument("options.constant_inputs must name inputs, of which ", "there are ",
                             inputs.size(), ", got ", i);
    }
  }
  bool any_checked = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const DType dtype = inputs[i].dtype();
    if (!inputs[i].has_value()) {
      return InvalidArgument("inputs[", i, "] must have a value, got a tensor without one");
    }
    if (dtype == DT_RESOURCE || dtype == DT_VARIANT) {
      return InvalidArgument("inputs[", i, "] must be numbers, bools or strings, got ", dtype);
    }
    any_checked |= IsChecked(inputs, options, i);
  }
  if (any_checked) return absl::OkStatus();
  return InvalidArgument("inputs must have one of a floating or complex type that is no constant, ",
                         "got none of ", inputs.size());
}

StatusOr<Found> Compare(const OutputsFunction& build, const std::vector<Tensor>& inputs,
                        const GradientErrorOptions& options) {
  MR_RETURN_IF_ERROR(CheckArguments(inputs, options));
  Found found;
  for (const bool known_shapes : {true, false}) {
    if (!known_shapes && !options.also_unknown_shapes) continue;
    const Status compared = Comparison(build, inputs, options, known_shapes).Run(&found);
    if (!compared.ok()) return known_shapes ? compared : Suffixed(compared, kUnknownShapes);
  }
  return found;
}

OutputsFunction ListOf(const OutputFunction& build) {
  return [&build](const Scope& scope, const std::vector<Output>& inputs) {
    return std::vector<Output>{build(scope, inputs)};
  };
}

}  // namespace

StatusOr<double> GradientError(const OutputsFunction& build, const std::vector<Tensor>& inputs,
                               const GradientErrorOptions& options) {
  StatusOr<Found> found = Compare(build, inputs, options);
  if (!found.ok()) return Prefixed("GradientError", found.status());
  return found->error;
}

StatusOr<double> GradientError(const OutputFunction& build, const std::vector<Tensor>& inputs,
                               const GradientErrorOptions& options) {
  return GradientError(ListOf(build), inputs, options);
}

Status CheckGradients(const OutputsFunction& build, const std::vector<Tensor>& inputs,
                      const GradientErrorOptions& options) {
  StatusOr<Found> found = Compare(build, inputs, options);
  if (!found.ok()) return Prefixed("CheckGradients", found.status());
  if (found->above.empty()) return absl::OkStatus();
  return InvalidArgument("CheckGradients: ", found->above);
}

Status CheckGradients(const OutputFunction& build, const std::vector<Tensor>& inputs,
                      const GradientErrorOptions& options) {
  return CheckGradients(ListOf(build), inputs, options);
}

}  // namespace millrace
