// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/allocator.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"

// covers: training: metrics are what their definitions give by hand, over batches, weighted, at
//   thresholds, in counts beyond float32; labels, predictions and weights never broadcast by
//   accident; their variables are on their own task, in no checkpoint, and take no place on a
//   parameter server
// covers: training: metrics at thresholds take memory by the batch and the thresholds, not their
//   product; NaN exceeds no threshold
// covers: article 3-10: the metric mse

namespace millrace::metrics {
namespace {

using absl::StatusCode;
constexpr auto kInvalid = StatusCode::kInvalidArgument;

using Make = std::function<Metric(const Scope& s, const Output& labels, const Output& predictions)>;

Make Plain(Metric (*function)(ScopeAt, Output, Output, const MetricAttrs&)) {
  return [function](const Scope& s, const Output& labels, const Output& predictions) {
    return function(s, labels, predictions, {});
  };
}

// A metric of fed labels and predictions, run.
class Measured {
 public:
  explicit Measured(const Make& make, DType labels = DT_FLOAT, DType predictions = DT_FLOAT,
                    const PartialShape& shape = {-1}) {
    labels_ = Placeholder(root_, labels, shape);
    predictions_ = Placeholder(root_, predictions, shape);
    metric_ = make(root_, labels_, predictions_);
    init_ = LocalVariablesInitializer(root_);
    EXPECT_OK(root_.status());
    auto session = NewSession();
    EXPECT_OK(session);
    session_ = *std::move(session);
    EXPECT_OK(session_->Extend(root_));
    Begin();
  }
  void Begin() { EXPECT_OK(session_->Run({}, {}, {init_})); }
  StatusOr<Tensor> TryUpdate(const Tensor& labels, const Tensor& predictions) {
    auto out = session_->Run({{labels_, labels}, {predictions_, predictions}}, {metric_.update});
    if (!out.ok()) return out.status();
    return (*out)[0];
  }
  Tensor Update(const Tensor& labels, const Tensor& predictions) {
    const StatusOr<Tensor> updated = TryUpdate(labels, predictions);
    EXPECT_OK(updated);
    const Tensor value = Value();
    if (updated.ok()) ExpectTensorEqual(*updated, value);
    return value;
  }
  Tensor Value() {
    const auto out = session_->Run({}, {metric_.value});
    EXPECT_OK(out);
    return out.ok() ? (*out)[0] : Tensor();
  }

 private:
  Scope root_;
  Output labels_, predictions_;
  Metric metric_;
  Operation init_;
  std::unique_ptr<Session> session_;
};

Tensor Floats(std::initializer_list<float> values) { return Tensor::Vector<float>(values); }
Tensor Doubles(std::initializer_list<double> values) { return Tensor::Vector<double>(values); }

// --- Means ---------------------------------------------------------------------------------------

TEST(Metrics, AMeanIsOfAllBatches) {
  Measured mean(
      [](const Scope& s, const Output&, const Output& values) { return Mean(s, values); });
  ExpectTensorEqual(mean.Value(), Tensor::Scalar(0.0f));
  const Tensor none = Floats({});
  ExpectTensorEqual(mean.Update(none, Floats({1, 2, 3})), Tensor::Scalar(2.0f));
  ExpectTensorEqual(mean.Update(none, Floats({4})), Tensor::Scalar(2.5f));
  ExpectTensorEqual(mean.Update(none, none), Tensor::Scalar(2.5f));
  mean.Begin();
  ExpectTensorEqual(mean.Value(), Tensor::Scalar(0.0f));
}

TEST(Metrics, AMeanMayBeWeighted) {
  // The other placeholder is the weights: one per value.
  Measured mean([](const Scope& s, const Output& weights, const Output& values) {
    return Mean(s, values, {.weights = weights});
  });
  ExpectTensorEqual(mean.Update(Floats({1, 0, 3}), Floats({1, 100, 5})), Tensor::Scalar(4.0f));
  ExpectTensorEqual(mean.Update(Floats({0}), Floats({7})), Tensor::Scalar(4.0f));
  EXPECT_STATUS(mean.TryUpdate(Floats({1, 2}), Floats({1, 2, 3})), kInvalid, "Incompatible shapes");
  // One weight, shape [1], counts for all values; more weights than values are an error.
  ExpectTensorEqual(mean.Update(Floats({4}), Floats({4, 4})), Tensor::Scalar(4.0f));
  EXPECT_STATUS(mean.TryUpdate(Floats({1, 1}), Floats({1})), kInvalid,
                "weights must broadcast to the shape of the values, got");

  Measured half([](const Scope& s, const Output&, const Output& values) {
    return Mean(s, values, {.weights = 0.5});
  });
  ExpectTensorEqual(half.Update(Floats({}), Floats({1, 3})), Tensor::Scalar(2.0f));

  // One per row.
  Scope root;
  const Output matrix = Const(root, TensorOf<float>({2, 2}, {1, 2, 3, 4}));
  const Metric rows = Mean(root, matrix, {.weights = Const<int32_t>(root, {0, 1})});
  const Operation init = LocalVariablesInitializer(root);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {init}));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {rows.update}));
  ExpectTensorEqual(out[0], Tensor::Scalar(3.5f));
}

TEST(Metrics, CountsGoOnBeyondTheWholeNumbersOfFloats) {
  Measured positives([](const Scope& s, const Output& labels, const Output& predictions) {
    return TruePositives(s, labels, predictions, {.weights = 1 << 24});
  });
  const Tensor one = Floats({1});
  positives.Update(one, one);
  Measured count([](const Scope& s, const Output& labels, const Output& predictions) {
    return TruePositives(s, labels, predictions, {.weights = (1 << 24) + 1});
  });
  ExpectTensorEqual(count.Update(one, one), Tensor::Scalar(16777217.0));
  ExpectTensorEqual(count.Update(one, one), Tensor::Scalar(33554434.0));
}

TEST(Metrics, AccuracyIsHowOftenBothAreEqual) {
  Measured accuracy(Plain(Accuracy), DT_INT64, DT_INT32);
  ExpectTensorEqual(accuracy.Update(Tensor::Of<int64_t>({1, 2, 3, 4}), Tensor::Of({1, 2, 0, 0})),
                    Tensor::Scalar(0.5f));
  ExpectTensorEqual(accuracy.Update(Tensor::Of<int64_t>({7}), Tensor::Of({7})),
                    Tensor::Scalar(0.6f));
  Measured weighted([](const Scope& s, const Output& labels, const Output& predictions) {
    return Accuracy(s, labels, predictions, {.weights = Const<float>(s, {1, 3})});
  });
  ExpectTensorEqual(weighted.Update(Floats({1, 1}), Floats({0, 1})), Tensor::Scalar(0.75f));
}

TEST(Metrics, ErrorsOfNumbers) {
  const Tensor labels = Floats({1, 3, 2}), predictions = Floats({2, 4, 6});  // off by 1, 1, 4
  Measured squared(Plain(MeanSquaredError));
  ExpectTensorEqual(squared.Update(labels, predictions), Tensor::Scalar(6.0f));
  ExpectTensorEqual(squared.Update(Floats({0}), Floats({0})), Tensor::Scalar(4.5f));
  Measured root(Plain(RootMeanSquaredError));
  ExpectTensorEqual(root.Value(), Tensor::Scalar(0.0f));
  ExpectTensorEqual(root.Update(labels, predictions),
                    Tensor::Scalar(static_cast<float>(std::sqrt(6.0))));
  Measured absolute(Plain(MeanAbsoluteError));
  ExpectTensorEqual(absolute.Update(labels, predictions), Tensor::Scalar(2.0f));
  ExpectTensorEqual(absolute.Update(Floats({-1}), Floats({-11})), Tensor::Scalar(4.0f));
}

// --- Two classes ---------------------------------------------------------------------------------

TEST(Metrics, CountTheFourOutcomes) {
  const Tensor labels = Floats({1, 1, 1, 0, 0, 0, 0, 1}), seen = Floats({1, 1, 0, 1, 0, 0, 0, 2});
  struct Case {
    Make make;
    double want;
  };
  const Case cases[] = {{Plain(TruePositives), 3},
                        {Plain(FalseNegatives), 1},
                        {Plain(FalsePositives), 1},
                        {Plain(TrueNegatives), 3}};
  for (const Case& c : cases) {
    Measured run(c.make);
    ExpectTensorEqual(run.Update(labels, seen), Tensor::Scalar(c.want));
    ExpectTensorEqual(run.Update(labels, seen), Tensor::Scalar(2 * c.want));
  }
}

TEST(Metrics, PrecisionAndRecallAreSharesOfThem) {
  Measured precision(Plain(Precision), DT_BOOL, DT_INT32);
  ExpectTensorEqual(precision.Update(Tensor::Of<bool>({false, true}), Tensor::Of({0, 0})),
                    Tensor::Scalar(0.0f));
  ExpectTensorEqual(precision.Update(Tensor::Of<bool>({false, true, true}), Tensor::Of({1, 1, 1})),
                    Tensor::Scalar(static_cast<float>(2.0 / 3)));
  Measured recall(Plain(Recall), DT_BOOL, DT_INT32);
  ExpectTensorEqual(recall.Update(Tensor::Of<bool>({false, false}), Tensor::Of({1, 0})),
                    Tensor::Scalar(0.0f));
  ExpectTensorEqual(
      recall.Update(Tensor::Of<bool>({true, true, true, true}), Tensor::Of({1, 0, 0, 0})),
      Tensor::Scalar(0.25f));
  Measured weighted([](const Scope& s, const Output& labels, const Output& predictions) {
    return Precision(s, labels, predictions, {.weights = Const<float>(s, {2, 5, 6})});
  });
  ExpectTensorEqual(weighted.Update(Floats({1, 1, 0}), Floats({1, 0, 1})), Tensor::Scalar(0.25f));
}

// --- At thresholds -------------------------------------------------------------------------------

TEST(Metrics, AtThresholdsCountWhatLiesAbove) {
  const std::vector<float> thresholds = {0.5f, 0.85f, 0.9f, 0.0f};
  const Tensor labels = Floats({1, 1, 0, 0}), predictions = Floats({0.9f, 0.2f, 0.8f, 0.1f});
  struct Case {
    Metric (*make)(ScopeAt, Output, Output, const std::vector<float>&, const MetricAttrs&);
    Tensor want;
  };
  const Case cases[] = {
      {TruePositivesAtThresholds, Doubles({1, 1, 0, 2})},
      {FalsePositivesAtThresholds, Doubles({1, 0, 0, 2})},
      {TrueNegativesAtThresholds, Doubles({1, 2, 2, 0})},
      {FalseNegativesAtThresholds, Doubles({1, 1, 2, 0})},
      {PrecisionAtThresholds, Floats({0.5f, 1, 0, 0.5f})},
      {RecallAtThresholds, Floats({0.5f, 0.5f, 0, 1})},
  };
  for (const Case& c : cases) {
    Measured run([&](const Scope& s, const Output& l, const Output& p) {
      return c.make(s, l, p, thresholds, {});
    });
    run.Update(Floats({}), Floats({}));
    ExpectTensorEqual(run.Update(labels, predictions), c.want);
  }
}

TEST(Metrics, ThresholdsMayBeInAnyOrderAndTwice) {
  // Compared with a double loop over predictions and thresholds, with exact ties and their
  // neighbours.
  std::vector<float> predictions, labels;
  for (int i = 0; i <= 40; ++i) {
    const float p = static_cast<float>(i) / 40;
    for (const float x : {std::nextafter(p, -1.0f), p, std::nextafter(p, 2.0f)}) {
      predictions.push_back(x);
      labels.push_back(static_cast<float>((i * 7) % 3 == 0));
    }
  }
  const std::vector<float> thresholds = {
      0.5f, -1, 0.25f, 0.5f, 2, 0.075f, 0, 1, std::numeric_limits<float>::infinity()};
  std::vector<double> above, not_above;
  for (const float t : thresholds) {
    double positives = 0, negatives = 0;
    for (size_t i = 0; i < predictions.size(); ++i) {
      if (predictions[i] > t) {
        positives += static_cast<double>(labels[i]);
      } else {
        negatives += 1 - static_cast<double>(labels[i]);
      }
    }
    above.push_back(positives);
    not_above.push_back(negatives);
  }
  Measured tp([&](const Scope& s, const Output& l, const Output& p) {
    return TruePositivesAtThresholds(s, l, p, thresholds);
  });
  ExpectTensorEqual(tp.Update(Tensor::Vector<float>(labels), Tensor::Vector<float>(predictions)),
                    Tensor::Vector<double>(above));
  Measured tn([&](const Scope& s, const Output& l, const Output& p) {
    return TrueNegativesAtThresholds(s, l, p, thresholds);
  });
  ExpectTensorEqual(tn.Update(Tensor::Vector<float>(labels), Tensor::Vector<float>(predictions)),
                    Tensor::Vector<double>(not_above));
}

// A prediction that is NaN is above no threshold.
TEST(Metrics, NanIsAboveNoThreshold) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Measured run([&](const Scope& s, const Output& l, const Output& p) {
    return FalseNegativesAtThresholds(s, l, p, {-1.0f, 0.5f});
  });
  ExpectTensorEqual(run.Update(Floats({1, 1, 1}), Floats({nan, 0.7f, 0})), Doubles({1, 2}));
}

// covers: article 1-21, 1-22: evaluations of batches of 32,768, over 3.2 million rows, in memory
//   that does not grow
// Two million predictions at 200 thresholds: a byte for each pair would be 400 MB.
TEST(Metrics, ThresholdsDoNotMultiplyTheMemoryOfABatch) {
  constexpr int64_t kBatch = int64_t{1} << 21;
  Measured run([](const Scope& s, const Output& l, const Output& p) { return Auc(s, l, p); });
  Tensor labels = *Tensor::Zeros(DT_FLOAT, Shape{kBatch});
  Tensor predictions = *Tensor::Zeros(DT_FLOAT, Shape{kBatch});
  for (size_t i = 0; i < kBatch; ++i) {
    labels.mutable_flat<float>()[i] = static_cast<float>(i % 2);
    predictions.mutable_flat<float>()[i] = static_cast<float>((i * 37) % 1000) / 1000;
  }
  run.Update(labels.Rows(0, 1024), predictions.Rows(0, 1024));
  // 200 thresholds of a bool, or of a float, each would be 200 or 800 bytes.
  SetDefaultAllocatorLimit(DefaultAllocatorStats().bytes_in_use + kBatch * 120);
  const float auc = run.Update(labels, predictions).scalar<float>();
  SetDefaultAllocatorLimit(0);
  EXPECT_NEAR(static_cast<double>(auc), 0.5, 1e-2);
}

// Computed by another program as a sum over the thresholds. The 1e-6 that is added to the counts
// changes the seventh digit.
TEST(Metrics, AreasUnderCurves) {
  struct Case {
    Tensor labels, predictions;
    double roc, pr, careful;
  };
  const Case cases[] = {
      {Floats({0, 0, 1, 1}), Floats({0.1f, 0.4f, 0.35f, 0.8f}), 0.7499997500000624,
       0.7916663611112233, 0.7972674459459178},
      {Floats({0, 0, 0, 0, 1, 1, 1}), Floats({0, 0.1f, 0.2f, 0.33f, 0.3f, 0.4f, 0.5f}),
       0.9166664652778189, 0.9027775057871188, 0.9041059758494063},
      {Floats({1, 0, 0}), Floats({1, 1, 0.5f}), 0.7499998749998125, NAN, NAN},
      {Floats({0, 0}), Floats({0.1f, 0.9f}), 0.99999950000025, 0, 0},
      {Floats({1, 1}), Floats({0.1f, 0.9f}), 0, NAN, NAN},
  };
  const auto auc = [](AucCurve curve, AucSum sum) -> Make {
    return [=](const Scope& s, const Output& l, const Output& p) {
      return Auc(s, l, p, {.curve = curve, .summation = sum});
    };
  };
  for (const Case& c : cases) {
    const std::pair<Make, double> curves[] = {
        {auc(AucCurve::kRoc, AucSum::kTrapezoidal), c.roc},
        {auc(AucCurve::kPr, AucSum::kTrapezoidal), c.pr},
        {auc(AucCurve::kPr, AucSum::kCarefulInterpolation), c.careful}};
    for (const auto& [make, want] : curves) {
      if (std::isnan(want)) continue;
      Measured run(make);
      const int64_t n = c.labels.dim(0);
      // In two batches.
      run.Update(c.labels.Rows(0, n / 2), c.predictions.Rows(0, n / 2));
      const Tensor got = run.Update(c.labels.Rows(n / 2, n), c.predictions.Rows(n / 2, n));
      EXPECT_NEAR(static_cast<double>(got.scalar<float>()), want, 2e-7) << c.labels.DebugString();
    }
  }
  Measured weighted([](const Scope& s, const Output& l, const Output& p) {
    return Auc(s, l, p, {.weights = Const<float>(s, {1, 2, 3, 4}), .curve = AucCurve::kPr});
  });
  EXPECT_NEAR(
      static_cast<double>(weighted.Update(cases[0].labels, cases[0].predictions).scalar<float>()),
      0.8809522782978209, 2e-7);
}

TEST(Metrics, AreasNeedProbabilities) {
  Measured run([](const Scope& s, const Output& l, const Output& p) { return Auc(s, l, p); });
  for (const float bad : {-0.1f, 1.1f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_STATUS(run.TryUpdate(Floats({0, 1}), Floats({0.5f, bad})), kInvalid,
                  "predictions must be in [0, 1], got");
  }
  EXPECT_OK(run.TryUpdate(Floats({0, 1}), Floats({0, 1})));
}

// --- Shapes, names, places -----------------------------------------------------------------------

TEST(Metrics, LabelsAndPredictionsNeverBroadcast) {
  Measured run(Plain(MeanSquaredError), DT_FLOAT, DT_FLOAT, PartialShape());
  ExpectTensorEqual(run.Update(TensorOf<float>({2, 1}, {1, 2}), TensorOf<float>({2, 1}, {1, 4})),
                    Tensor::Scalar(2.0f));
  for (const auto& [a, b] :
       {std::pair{Floats({1, 2}), Floats({1})}, std::pair{Floats({1, 2}), Tensor::Scalar(1.0f)},
        std::pair{TensorOf<float>({1, 2}, {1, 2}), Floats({1, 2})},
        std::pair{TensorOf<float>({2, 1}, {1, 2}), Floats({1, 2})}}) {
    for (const bool swapped : {false, true}) {
      EXPECT_EQ(run.TryUpdate(swapped ? b : a, swapped ? a : b).status().code(), kInvalid)
          << a.shape().ToString() << " " << b.shape().ToString();
    }
  }
  // A last dimension of 1 that the graph knows is ignored.
  Scope root;
  const Output column = Placeholder(root, DT_FLOAT, {-1, 1}),
               row = Placeholder(root, DT_FLOAT, {-1});
  EXPECT_TRUE(MeanSquaredError(root, column, row).value.valid());
  EXPECT_TRUE(MeanSquaredError(root, row, column).value.valid());
  EXPECT_OK(root.status());
}

TEST(Metrics, WhatIsWrongInTheGraphIsRefused) {
  struct Case {
    std::function<void(const Scope&)> build;
    const char* text;
  };
  const Case cases[] = {
      {[](const Scope& s) {
         Accuracy(s.WithName("acc"), Const<float>(s, {1, 2}), Const<float>(s, {1, 2, 3}));
       },
       "Metric 'acc': labels and predictions must have one shape, got [2] and [3]"},
      {[](const Scope& s) { Mean(s, Output()); },
       "Metric 'mean': values must be a tensor of the graph, got an invalid Output"},
      {[](const Scope& s) { Mean(s, Const(s, "a")); }, "values must be numbers, got string"},
      {[](const Scope& s) { Mean(s, Const(s, 1.0f), {.weights = NAN}); },
       "weights must be finite, got nan"},
      {[](const Scope& s) {
         Mean(s, Const<float>(s, {1, 2}), {.weights = Const<float>(s, {1, 2, 3})});
       },
       "weights must broadcast to the shape of the values, got [3] for values of shape [2]"},
      {[](const Scope& s) {
         Auc(s, Const<float>(s, {1}), Const<float>(s, {1}), {.num_thresholds = 1});
       },
       "Metric 'auc': num_thresholds must be >= 2, got 1"},
      {[](const Scope& s) {
         Auc(s, Const<float>(s, {1}), Const<float>(s, {1}),
             {.summation = AucSum::kCarefulInterpolation});
       },
       "careful interpolation must be of the PR curve, got ROC"},
      {[](const Scope& s) {
         RecallAtThresholds(s, Const<float>(s, {1}), Const<float>(s, {1}), {});
       },
       "thresholds must not be empty, got none"},
      {[](const Scope& s) {
         RecallAtThresholds(s, Const<float>(s, {1}), Const<float>(s, {1}), {NAN});
       },
       "thresholds must be numbers, got nan"},
  };
  for (const Case& c : cases) {
    Scope root;
    c.build(root);
    EXPECT_STATUS(root.status(), kInvalid, c.text);
  }
}

TEST(Metrics, AreNamedAsTensorFlowNamesThem) {
  Scope root;
  const Output x = Const<float>(root, {1, 0});
  const Metric first = Accuracy(root, x, x), second = Accuracy(root, x, x);
  EXPECT_EQ(first.value.name(), "accuracy/value:0");
  EXPECT_EQ(first.update.name(), "accuracy/update_op:0");
  EXPECT_EQ(second.value.name(), "accuracy_1/value:0");
  Precision(root.WithName("p"), x, x);
  Auc(root, x, x);
  ASSERT_OK(root.status());
  std::vector<std::string> names;
  for (const Variable& v : VariablesOf(root, "metric_variables")) names.push_back(v.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "accuracy/total", "accuracy/count", "accuracy_1/total", "accuracy_1/count",
                       "p/true_positives/count", "p/false_positives/count", "auc/true_positives",
                       "auc/false_negatives", "auc/true_negatives", "auc/false_positives"}));
  EXPECT_EQ(VariablesOf(root, "local_variables").size(), names.size());
  EXPECT_TRUE(VariablesOf(root).empty()) << "no checkpoint has them";
}

TEST(Metrics, StayOnTheirTaskAndTakeNoPlaceOnParameterServers) {
  const auto cluster = ClusterConfig::Parse(
      R"({"cluster": {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]},
          "task": {"type": "worker", "index": 1}})");
  ASSERT_OK(cluster);
  Scope root;
  const Scope model = root.WithDevice(ReplicaDeviceSetter(*cluster));
  const Variable before = MakeVariable(model.WithName("before"), Const(model, 1.0f));
  const Output x = Const<float>(model, {1, 0});
  Accuracy(model, x, x);
  Auc(model, x, x);
  const Variable after = MakeVariable(model.WithName("after"), Const(model, 1.0f));
  ASSERT_OK(root.status());
  EXPECT_EQ(before.handle.node()->requested_device(), "/job:ps/task:0");
  EXPECT_EQ(after.handle.node()->requested_device(), "/job:ps/task:1");
  for (const auto& node : root.graph()->nodes()) {
    if (absl::StartsWith(node->name(), "accuracy/") || absl::StartsWith(node->name(), "auc/")) {
      EXPECT_EQ(node->requested_device(), "/job:worker/task:1") << node->name();
    }
  }
  // The initial value may come from elsewhere: the variable stays here.
  const Variable copy = MakeVariable(model.WithName("copy"), before.value, {.local = true});
  ASSERT_OK(root.status());
  EXPECT_EQ(copy.handle.node()->requested_device(), "/job:worker/task:1");
  EXPECT_EQ(copy.initializer.node()->requested_device(), "/job:worker/task:1");
}

}  // namespace
}  // namespace millrace::metrics
