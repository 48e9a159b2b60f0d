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

#include <concepts>
#include <initializer_list>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "graph/scope.h"
#include "ops/sparse/sparse_tensor.h"

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

// A tensor of a graph, dense or sparse; made implicitly of either.
struct DenseOrSparse {
  template <std::convertible_to<Output> T>
  DenseOrSparse(const T& tensor) : dense(tensor) {}                  // NOLINT
  DenseOrSparse(SparseTensor tensor) : sparse(std::move(tensor)) {}  // NOLINT
  bool is_sparse() const { return sparse.valid(); }
  Output dense;  // one of both is valid
  SparseTensor sparse;
};

namespace estimator_internal {

using TensorMap = std::map<std::string, Output>;
using SparseTensorMap = std::map<std::string, SparseTensor>;

// What a set of tensors looks through; kept by the caller for the call.
struct TensorsByName {
  const char* role;
  const TensorMap& dense;
  const SparseTensorMap& sparse;
  const std::optional<Scope>& scope;
};
// They report into the scope, when there is one, and return an invalid tensor then.
Output FindTensor(const TensorsByName& tensors, const NameAt& name);
SparseTensor FindSparseTensor(const TensorsByName& tensors, const NameAt& name);
Output OnlyTensor(const TensorsByName& tensors, std::source_location where);

}  // namespace estimator_internal

template <typename Role>
class ModelTensors {
 public:
  using Map = std::map<std::string, Output>;
  using SparseMap = std::map<std::string, SparseTensor>;

  ModelTensors() = default;  // none
  ModelTensors(Output one)   // NOLINT
      : tensors_{{Role::kDefaultName, std::move(one)}}, is_single_(true) {}
  ModelTensors(Map tensors) : tensors_(std::move(tensors)) {}  // NOLINT
  ModelTensors(std::initializer_list<Map::value_type> tensors)
    requires(!Role::kMayBeSparse)
      : tensors_(tensors) {}

  ModelTensors(Map tensors, SparseMap sparse_tensors)
    requires(Role::kMayBeSparse)
      : tensors_(std::move(tensors)), sparse_(std::move(sparse_tensors)) {}
  ModelTensors(
      std::initializer_list<std::pair<const std::string, DenseOrSparse>> tensors)  // NOLINT
    requires(Role::kMayBeSparse)
  {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.is_sparse()) {
        sparse_.emplace(name, tensor.sparse);
      } else {
        tensors_.emplace(name, tensor.dense);
      }
    }
  }

  bool empty() const { return tensors_.empty() && sparse_.empty(); }
  // Made of one tensor without a name.
  bool is_single() const { return is_single_; }
  bool has(absl::string_view name) const {
    return tensors_.count(std::string(name)) > 0 || is_sparse(name);
  }
  bool is_sparse(absl::string_view name) const { return sparse_.count(std::string(name)) > 0; }
  // The dense ones by name, in the order of the names; a single one by its default name.
  const Map& map() const { return tensors_; }
  const SparseMap& sparse_map() const { return sparse_; }

  // Invalid, and the graph's error, when there is no dense one of that name.
  Output operator[](const NameAt& name) const {
    return estimator_internal::FindTensor(ByName(), name);
  }
  // The same for a sparse one.
  SparseTensor sparse(const NameAt& name) const {
    return estimator_internal::FindSparseTensor(ByName(), name);
  }
  // The only one. Invalid, and the graph's error, when there are none or several, or it is sparse.
  Output single(std::source_location where = std::source_location::current()) const {
    return estimator_internal::OnlyTensor(ByName(), where);
  }
  operator Output() const { return single(); }  // NOLINT

  // The same, whose errors are those of the scope's graph.
  ModelTensors In(const Scope& scope) const {
    ModelTensors bound = *this;
    bound.scope_ = scope;
    return bound;
  }

 private:
  estimator_internal::TensorsByName ByName() const {
    return {Role::kRole, tensors_, sparse_, scope_};
  }

  Map tensors_;
  SparseMap sparse_;  // other names than those of tensors_
  bool is_single_ = false;
  std::optional<Scope> scope_;
};

namespace estimator_internal {

struct FeaturesRole {
  static constexpr bool kMayBeSparse = true;
  static constexpr char kRole[] = "features";
  static constexpr char kDefaultName[] = "feature";
};
struct LabelsRole {
  static constexpr bool kMayBeSparse = true;
  static constexpr char kRole[] = "labels";
  static constexpr char kDefaultName[] = "label";
};
struct PredictionsRole {
  static constexpr bool kMayBeSparse = false;
  static constexpr char kRole[] = "predictions";
  static constexpr char kDefaultName[] = "output";
};
struct ReceiversRole {
  static constexpr bool kMayBeSparse = false;
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
