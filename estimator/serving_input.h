// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_SERVING_INPUT_H_
#define MILLRACE_ESTIMATOR_SERVING_INPUT_H_

// ServingInputReceiver: what callers of an exported model feed (receivers), and the features that
// the model computes from, made of them.
//
//   ServingInputReceiver Points(const Scope& scope) {
//     Output x = Placeholder(scope.WithName("x"), DT_FLOAT, {-1});
//     return {.features = {{"x", x}}, .receivers = {{"x", x}}};
//   }
//
// Callers feed receivers by their names; a single one is called "input". A Dataset is never part of
// an exported model.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"

namespace millrace {

struct ServingInputReceiver {
  Features features = {};
  Receivers receivers = {};
  // Other ways to feed the same: each makes a further signature `<name>:<output>` per output.
  std::map<std::string, Receivers> receiver_alternatives = {};
};

// A function of the scope; it returns a ServingInputReceiver or a StatusOr of one.
class ServingInputReceiverFn {
 public:
  ServingInputReceiverFn() = default;  // none
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, ServingInputReceiverFn> &&
             std::is_invocable_v<F&, const Scope&>)
  ServingInputReceiverFn(F f) : call_(std::move(f)) {}  // NOLINT

  bool valid() const { return call_ != nullptr; }
  // What the function returns, or the first error of its graph.
  StatusOr<ServingInputReceiver> operator()(const Scope& scope) const;

 private:
  std::function<StatusOr<ServingInputReceiver>(const Scope&)> call_;
};

// --- Raw: a placeholder for each feature, of its name --------------------------------------------

struct RawFeature {
  DType dtype = DT_FLOAT;
  // Of a batch; the first dimension is left open, whatever it is.
  PartialShape shape = {};
};
// `default_batch_size`: in place of an open first dimension.
ServingInputReceiverFn BuildRawServingInputReceiverFn(
    std::map<std::string, RawFeature> features,
    std::optional<int64_t> default_batch_size = std::nullopt);

// --- Parsing: serialized tensorflow.Examples -----------------------------------------------------

// A feature of a fixed number of values per example.
struct FixedLenFeature {
  DType dtype = DT_FLOAT;                       // float, int64 or string
  PartialShape shape = PartialShape::Scalar();  // of one example
  // Of that shape, for examples without the feature; none: it is required.
  std::optional<Tensor> default_value = {};
};
// One string placeholder "input_example_tensor" [batch], receiver "examples".
ServingInputReceiverFn BuildParsingServingInputReceiverFn(
    std::map<std::string, FixedLenFeature> features,
    std::optional<int64_t> default_batch_size = std::nullopt);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_SERVING_INPUT_H_
