// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_INPUT_FN_H_
#define MILLRACE_ESTIMATOR_INPUT_FN_H_

// InputFn: the function that a user writes to say where data comes from. Input: what it returns: a
// Dataset, or tensors of the graph.
//
//   auto train = [] {                                              // a Dataset
//     return Input(data::Dataset::TextLines({"points.tsv"}).Map(columns).Batch(32),
//                  {.names = {"x", "y"}, .labels = {"y"}});
//   };
//   auto constant = [](const Scope& scope) {                       // tensors
//     return Input({{"x", Const(scope, {1.f, 2.f})}}, Const(scope, {3.f, 5.f}));
//   };
//
// It takes of (Scope, Mode, Params, RunConfig) what it wants, in this order, and returns an Input,
// a Dataset, SharedFiles, Features, a single Output, or a StatusOr of one of them. It is called
// once per graph, so once per Train, Evaluate or Predict: data begin anew with each. The scope puts
// its nodes on this task.
//
// Components of a Dataset are features and labels by their names: those given, else those of its
// spec. Without any names one component is the feature, and of two the second is the label.
// Datasets are read in this process; the graph gets their elements by IteratorV2 and
// IteratorGetNext, initialised in each session. One without any element is an InvalidArgument that
// names its files when a model is evaluated with it, or trained by one task.
//
// Values. Thread-safety: those of the functions.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/status.h"
#include "data/dataset.h"    // IWYU pragma: export
#include "data/share_out.h"  // IWYU pragma: export
#include "estimator/call_with.h"
#include "estimator/mode.h"
#include "estimator/model_tensors.h"
#include "estimator/params.h"
#include "estimator/run_config.h"
#include "graph/scope.h"

namespace millrace {

// What the components of a dataset are.
struct DatasetColumns {
  // In the order of the components; empty: as the dataset's spec names them.
  std::vector<std::string> names = {};
  // Which of the names are labels, the others are features. One label, or one feature, has its
  // name and is a single tensor, too.
  std::vector<std::string> labels = {};
};

// Files that the trainers share out among themselves: estimator/shared_files.h.
struct SharedFiles {
  std::vector<std::string> files = {};   // patterns; each file is a shard
  std::vector<data::Shard> shards = {};  // parts of files, by file, begin and end
  // The elements of a shard, in batches.
  data::ReadShardFunction read = {};
  int64_t num_epochs = 1;    // of the run; -1: without end
  int64_t shuffle_seed = 0;  // of the order of the shards; 0: as they are listed
};

class Input {
 public:
  Input(Features features, Labels labels = {})  // NOLINT
      : features_(std::move(features)), labels_(std::move(labels)) {}
  Input(Output features, Labels labels = {})  // NOLINT
      : features_(std::move(features)), labels_(std::move(labels)) {}
  Input(data::Dataset dataset, DatasetColumns columns = {})  // NOLINT
      : dataset_(std::move(dataset)), columns_(std::move(columns)) {}
  Input(SharedFiles shared, DatasetColumns columns = {})  // NOLINT
      : shared_(std::move(shared)), columns_(std::move(columns)) {}
  template <typename F, typename L>
  Input(std::pair<F, L> both)  // NOLINT
      : features_(std::move(both.first)), labels_(std::move(both.second)) {}

  const Features& features() const { return features_; }
  const Labels& labels() const { return labels_; }
  const std::optional<data::Dataset>& dataset() const { return dataset_; }
  const std::optional<SharedFiles>& shared() const { return shared_; }
  const DatasetColumns& columns() const { return columns_; }

 private:
  Features features_;
  Labels labels_;
  std::optional<data::Dataset> dataset_;
  std::optional<SharedFiles> shared_;
  DatasetColumns columns_;
};

// What an input function is called with.
struct InputFnCall {
  const Scope& scope;
  Mode mode;
  const Params& params;
  const RunConfig& config;
};

class InputFn {
 public:
  InputFn() = default;  // none
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, InputFn>)
  InputFn(F f) {  // NOLINT
    constexpr unsigned kTaken = estimator_internal::TakenArguments<F, 0, const Scope&, Mode,
                                                                   const Params&, const RunConfig&>;
    static_assert(kTaken != estimator_internal::kNoArguments,
                  "an input function takes, in this order, what it wants of (const Scope&, Mode, "
                  "Params, RunConfig)");
    if constexpr (kTaken != estimator_internal::kNoArguments) {
      call_ = [f = std::move(f)](const InputFnCall& call) mutable -> StatusOr<Input> {
        return ToInput(estimator_internal::CallWith<kTaken>(
            f, std::tuple<const Scope&, Mode, const Params&, const RunConfig&>(
                   call.scope, call.mode, call.params, call.config)));
      };
    }
  }

  bool valid() const { return call_ != nullptr; }
  // What the function returns, or the first error of its graph.
  StatusOr<Input> operator()(const InputFnCall& call) const;

 private:
  template <typename T>
  static StatusOr<Input> ToInput(StatusOr<T> result) {
    if (!result.ok()) return result.status();
    return Input(*std::move(result));
  }
  template <typename T>
  static StatusOr<Input> ToInput(T result) {
    return Input(std::move(result));
  }

  std::function<StatusOr<Input>(const InputFnCall&)> call_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_INPUT_FN_H_
