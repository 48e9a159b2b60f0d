// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_MODEL_TENSORS_H_
#define MILLRACE_ESTIMATOR_MODEL_TENSORS_H_

// Features, Labels, Predictions, Receivers: tensors of a graph by names of the user's, or one
// without a name.
//
//   Features features = {{"age", age}, {"hours", hours}};
//   features["age"]                                    // an Output
//   Labels labels = y;                                 // one
//   Sub(scope, prediction, labels)                     // it is an Output by itself
//
// The four are different types, so that a function says by its parameters which of them it takes. A
// single tensor is also found under the default name of its role ("feature", "label"), and the only
// one of a map is also a single one. In TensorFlow a single tensor and a map are told apart by who
// uses them; so here.
//
// What the Estimator hands to a function knows the graph: a name that is not there, or several
// tensors where one is asked for, is the graph's error then (Scope::status), with the line that
// asked.
//
// Values; thread-compatible.

#include <initializer_list>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "graph/scope.h"

namespace millrace {

// A name together with the source line that asks for it; made implicitly.
struct NameAt {
  NameAt(const char* n, std::source_location w = std::source_location::current())  // NOLINT
      : name(n), where(w) {}
  NameAt(absl::string_view n, std::source_location w = std::source_location::current())  // NOLINT
      : name(n), where(w) {}
  NameAt(const std::string& n, std::source_location w = std::source_location::current())  // NOLINT
      : name(n), where(w) {}
  absl::string_view name;
  std::source_location where;
};

namespace estimator_internal {

using TensorMap = std::map<std::string, Output>;

// Both report into `scope`, when there is one, and return an invalid Output then.
Output FindTensor(const char* role, const TensorMap& tensors, const std::optional<Scope>& scope,
                  const NameAt& name);
Output OnlyTensor(const char* role, const TensorMap& tensors, const std::optional<Scope>& scope,
                  std::source_location where);

}  // namespace estimator_internal

template <typename Role>
class ModelTensors {
 public:
  using Map = std::map<std::string, Output>;

  ModelTensors() = default;  // none
  ModelTensors(Output one)   // NOLINT
      : tensors_{{Role::kDefaultName, std::move(one)}}, is_single_(true) {}
  ModelTensors(Map tensors) : tensors_(std::move(tensors)) {}  // NOLINT
  ModelTensors(std::initializer_list<Map::value_type> tensors) : tensors_(tensors) {}

  bool empty() const { return tensors_.empty(); }
  // Made of one tensor without a name.
  bool is_single() const { return is_single_; }
  bool has(absl::string_view name) const { return tensors_.count(std::string(name)) > 0; }
  // By name, in the order of the names; a single one by its default name.
  const Map& map() const { return tensors_; }

  // Invalid, and the graph's error, when there is none of that name.
  Output operator[](const NameAt& name) const {
    return estimator_internal::FindTensor(Role::kRole, tensors_, scope_, name);
  }
  // The only one. Invalid, and the graph's error, when there are none or several.
  Output single(std::source_location where = std::source_location::current()) const {
    return estimator_internal::OnlyTensor(Role::kRole, tensors_, scope_, where);
  }
  operator Output() const { return single(); }  // NOLINT

  // The same, whose errors are those of the scope's graph.
  ModelTensors In(const Scope& scope) const {
    ModelTensors bound = *this;
    bound.scope_ = scope;
    return bound;
  }

 private:
  Map tensors_;
  bool is_single_ = false;
  std::optional<Scope> scope_;
};

namespace estimator_internal {

struct FeaturesRole {
  static constexpr char kRole[] = "features";
  static constexpr char kDefaultName[] = "feature";
};
struct LabelsRole {
  static constexpr char kRole[] = "labels";
  static constexpr char kDefaultName[] = "label";
};
struct PredictionsRole {
  static constexpr char kRole[] = "predictions";
  static constexpr char kDefaultName[] = "output";
};
struct ReceiversRole {
  static constexpr char kRole[] = "receiver tensors";
  static constexpr char kDefaultName[] = "input";
};

}  // namespace estimator_internal

// What a model computes from.
using Features = ModelTensors<estimator_internal::FeaturesRole>;
// What it is to find out; none when it predicts.
using Labels = ModelTensors<estimator_internal::LabelsRole>;
// What it gives.
using Predictions = ModelTensors<estimator_internal::PredictionsRole>;
// What callers of an exported model feed.
using Receivers = ModelTensors<estimator_internal::ReceiversRole>;

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_MODEL_TENSORS_H_
