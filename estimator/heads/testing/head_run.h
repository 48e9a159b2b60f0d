// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_TESTING_HEAD_RUN_H_
#define MILLRACE_ESTIMATOR_HEADS_TESTING_HEAD_RUN_H_

// HeadRun: a head over logits that are given, in a graph of its own, run in one mode.
//
//   HeadRun run(BinaryHead(), Mode::kEval);
//   run.labels = Tensor::Of<int32_t>({{1}, {1}});
//   ASSERT_OK(run.Run(Tensor::Of({{45.f}, {-41.f}})));
//   EXPECT_EQ(run.loss, 41);

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/heads/head.h"
#include "estimator/model_fn.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/sparse/sparse_tensor.h"
#include "proto/summary.pb.h"
#include "runtime/session.h"
#include "train/gradient_descent.h"
#include "train/summaries.h"

namespace millrace {

struct SparseLabels {
  Tensor indices, values, dense_shape;
};

class HeadRun {
 public:
  HeadRun(HeadPtr head, Mode mode) : head_(std::move(head)), mode_(mode) {}

  // What is given. Tensors are fed, so that the graph knows their ranks alone (`shapes_are_known`:
  // they are constants).
  std::map<std::string, Tensor> features = {};
  std::optional<Tensor> labels = {};
  std::map<std::string, Tensor> labels_by_name = {};  // in place of `labels`
  std::optional<SparseLabels> sparse_labels = {};
  std::vector<float> regularization_losses = {};
  bool shapes_are_known = false;
  bool ranks_are_known = true;

  // What came out.
  EstimatorSpec spec;
  std::map<std::string, Tensor> predictions;
  double loss = 0;
  std::map<std::string, double> metrics;    // after one batch
  std::map<std::string, double> summaries;  // kTrain
  std::map<std::string, Tensor> exports;    // kPredict: "<signature>/scores|classes|value|<key>"

  // In kTrain a variable is added to the logits; `trained` is its value after one step of gradient
  // descent at rate 1.
  double trained = 0;
  int64_t global_step = 0;

  Status Run(const Tensor& logits) {
    const Scope scope = root_;
    Output given = Given("logits_given", logits);
    Variable shift;
    if (mode_ == Mode::kTrain) {
      GlobalStep(scope);
      shift = MakeVariable(scope.WithName("shift"), Const(scope, 0.0f));
      given = Add(scope, given, shift.value);
    }
    Features::Map tensors;
    for (const auto& [name, tensor] : features) tensors[name] = Given("f_" + name, tensor);
    const Features all = Features(tensors).In(scope);
    Labels target;
    if (labels) target = Given("labels_given", *labels);
    if (!labels_by_name.empty()) {
      Labels::Map named;
      for (const auto& [name, tensor] : labels_by_name) named[name] = Given("l_" + name, tensor);
      target = named;
    }
    if (sparse_labels) {
      target = Labels(Labels::Map(),
                      {{"label", SparseTensor{Given("indices", sparse_labels->indices),
                                              Given("values", sparse_labels->values),
                                              Given("dense_shape", sparse_labels->dense_shape)}}});
    }
    std::vector<Output> regularization;
    for (const float value : regularization_losses) regularization.push_back(Const(scope, value));
    GradientDescentOptimizer optimizer({.learning_rate = 1});
    spec = head_->CreateEstimatorSpec(scope,
                                      {.features = all,
                                       .mode = mode_,
                                       .logits = given,
                                       .labels = target.In(scope),
                                       .optimizer = mode_ == Mode::kTrain ? &optimizer : nullptr,
                                       .regularization_losses = regularization});
    MR_RETURN_IF_ERROR(scope.status());
    MR_RETURN_IF_ERROR(CheckSpec(scope, mode_, &spec));
    const Operation init =
        Group(scope, {GlobalVariablesInitializer(scope), LocalVariablesInitializer(scope),
                      TablesInitializer(scope)});
    const Output summary = MergeAllSummaries(scope);
    MR_RETURN_IF_ERROR(scope.status());
    MR_ASSIGN_OR_RETURN(const auto session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(scope));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());

    std::vector<std::pair<std::string, Output>> fetched;
    for (const auto& [key, tensor] : spec.predictions.map()) fetched.emplace_back(key, tensor);
    MR_RETURN_IF_ERROR(Fetch(session.get(), fetched, &predictions));
    if (mode_ == Mode::kPredict) return FetchExports(session.get());
    if (mode_ == Mode::kEval) {
      std::vector<FetchName> updates = {spec.loss}, values;
      for (const auto& [key, metric] : spec.eval_metric_ops) {
        updates.emplace_back(metric.update);
        values.emplace_back(metric.value);
      }
      MR_ASSIGN_OR_RETURN(const auto updated, session->Run(feeds_, updates));
      MR_ASSIGN_OR_RETURN(const auto value, session->Run({}, values));
      loss = NumberIn(updated[0]);
      size_t i = 0;
      for (const auto& [key, metric] : spec.eval_metric_ops) {
        metrics[key] = NumberIn(value[i]);
        EXPECT_EQ(NumberIn(updated[i + 1]), metrics[key]) << key;
        ++i;
      }
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(const auto before, session->Run(feeds_, {spec.loss, summary}));
    loss = NumberIn(before[0]);
    tensorflow::Summary message;
    EXPECT_TRUE(message.ParseFromString(before[1].scalar<std::string>()));
    for (const auto& one : message.value()) {
      summaries[one.tag()] = static_cast<double>(one.simple_value());
    }
    MR_RETURN_IF_ERROR(session->Run(feeds_, {}, {spec.train_op}).status());
    MR_ASSIGN_OR_RETURN(const auto after, session->Run({}, {shift.value, GlobalStep(scope).value}));
    trained = NumberIn(after[0]);
    global_step = after[1].scalar<int64_t>();
    return absl::OkStatus();
  }

  const Scope& root() const { return root_; }

 private:
  static double NumberIn(const Tensor& tensor) {
    return tensor.dtype() == DT_DOUBLE ? tensor.scalar<double>()
                                       : static_cast<double>(tensor.scalar<float>());
  }

  Output Given(const std::string& name, const Tensor& value) {
    if (shapes_are_known) return Const(root_.WithName(name), value);
    PartialShape shape;
    if (ranks_are_known) {
      std::vector<int64_t> dims(value.shape().dims().begin(), value.shape().dims().end());
      if (!dims.empty()) dims[0] = -1;
      shape = *PartialShape::Make(dims);
    }
    const Output placeholder = Placeholder(root_.WithName(name), value.dtype(), shape);
    feeds_.push_back({placeholder, value});
    return placeholder;
  }

  Status Fetch(Session* session, const std::vector<std::pair<std::string, Output>>& wanted,
               std::map<std::string, Tensor>* got) {
    std::vector<FetchName> fetches;
    for (const auto& [key, tensor] : wanted) fetches.emplace_back(tensor);
    MR_ASSIGN_OR_RETURN(const auto out, session->Run(feeds_, fetches));
    for (size_t i = 0; i < out.size(); ++i) (*got)[wanted[i].first] = out[i];
    return absl::OkStatus();
  }

  Status FetchExports(Session* session) {
    std::vector<std::pair<std::string, Output>> wanted;
    for (const auto& [key, output] : spec.export_outputs) {
      if (output.scores.valid()) wanted.emplace_back(key + "/scores", output.scores);
      if (output.classes.valid()) wanted.emplace_back(key + "/classes", output.classes);
      if (output.value.valid()) wanted.emplace_back(key + "/value", output.value);
      for (const auto& [of, tensor] : output.outputs.map()) {
        wanted.emplace_back(key + "/" + of, tensor);
      }
    }
    return Fetch(session, wanted, &exports);
  }

  const HeadPtr head_;
  const Mode mode_;
  const Scope root_;
  std::vector<Feed> feeds_;
};

// The keys of a map.
template <typename V>
std::vector<std::string> KeysOf(const std::map<std::string, V>& map) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

// These metrics and no others, with these values.
inline void ExpectMetrics(const HeadRun& run, const std::map<std::string, double>& want,
                          double tolerance = 1e-5) {
  EXPECT_EQ(KeysOf(run.metrics), KeysOf(want));
  for (const auto& [key, value] : want) {
    ASSERT_EQ(run.metrics.count(key), 1u) << key;
    EXPECT_NEAR(run.metrics.at(key), value, tolerance * std::max(1.0, std::abs(value))) << key;
  }
}

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_TESTING_HEAD_RUN_H_
