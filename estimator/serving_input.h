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
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "data/csv.h"           // IWYU pragma: export
#include "data/feature_spec.h"  // IWYU pragma: export
#include "estimator/model_tensors.h"
#include "graph/scope.h"

namespace millrace {

struct ServingInputReceiver {
  Features features = {};
  Receivers receivers = {};
  // Other ways to feed the same: each makes a further signature `<name>:<output>` per output.
  std::map<std::string, Receivers> receiver_alternatives = {};
  // Of graphs that train or evaluate (Estimator::ExportAllSavedModels); others do without.
  Labels labels = {};
};

// The functions that this header makes build their nodes at `where`, the line that made them.

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
    std::optional<int64_t> default_batch_size = std::nullopt,
    std::source_location where = std::source_location::current());

// The same for labels, too: what a graph that trains or evaluates is fed. InvalidArgument for a
// name that is in both.
ServingInputReceiverFn BuildRawSupervisedInputReceiverFn(
    std::map<std::string, RawFeature> features, std::map<std::string, RawFeature> labels,
    std::optional<int64_t> default_batch_size = std::nullopt,
    std::source_location where = std::source_location::current());

// --- Parsing: serialized tensorflow.Examples -----------------------------------------------------

// One string placeholder "input_example_tensor" [batch], receiver "examples". VarLen and sparse
// features are sparse tensors.
ServingInputReceiverFn BuildParsingServingInputReceiverFn(
    FeatureSpecs features, std::optional<int64_t> default_batch_size = std::nullopt,
    std::source_location where = std::source_location::current());

// --- CSV: rows of text ---------------------------------------------------------------------------

struct CsvServingOptions {
  // Columns of the rows that are no features: the label, what the model does not use.
  std::vector<std::string> left_out = {};
  std::optional<int64_t> default_batch_size = std::nullopt;
};
// One string placeholder "csv_row" [batch], receiver "csv_row". `csv` says what the columns are, as
// it does for the data that the model was trained on; they need names. Each feature is [batch, 1].
ServingInputReceiverFn BuildCsvServingInputReceiverFn(
    data::CsvOptions csv, CsvServingOptions options = {},
    std::source_location where = std::source_location::current());

// --- JSON: a value per feature and instance ------------------------------------------------------

// A placeholder for each feature, of its name: what `{"age": 25, "education": "11th"}` fills. Those
// with at most one value per example (shape [] or [1], a VarLenFeature) are [batch].
ServingInputReceiverFn BuildJsonServingInputReceiverFn(
    FeatureSpecs features, std::optional<int64_t> default_batch_size = std::nullopt,
    std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_SERVING_INPUT_H_
