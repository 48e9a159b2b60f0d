// SPDX-License-Identifier: Apache-2.0
#include "estimator/add_metrics.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "estimator/testing/line_model.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/math/cwise_binary.h"
#include "train/metrics.h"

// covers: training: AddMetrics measures more and changes nothing else; an Estimator keeps its first
//   error and the line of it
// covers: article 1-10, 1-11: one more metric, by AddMetrics: rmse, whose square is average_loss
// covers: scenario F7: a regressor with one more metric, 3.2 million rows

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class AddMetricsTest : public testing::Test {
 protected:
  AddMetricsTest()
      : dir_(absl::StrCat(testing::TempDir(), "/",
                          testing::UnitTest::GetInstance()->current_test_info()->name())) {
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
  }
  Estimator Line() {
    auto made = Estimator::Make(
        LineModel,
        {.config = *RunConfig::Make({.model_dir = dir_, .save_checkpoints_steps = 100}, "")});
    EXPECT_OK(made.status());
    return *made;
  }
  const std::string dir_;
};

TEST_F(AddMetricsTest, MeasuresMoreAndIsTheSameModel) {
  const Estimator line = Line();
  ASSERT_OK(line.Train(Points, {.max_steps = 10}).status());
  const Estimator more = AddMetrics(
      line, [](const Scope& scope, const Labels& labels, const Predictions& predictions) {
        return MetricOps{{"rmse", metrics::RootMeanSquaredError(scope, labels, predictions)}};
      });
  ASSERT_OK(more.status());
  EXPECT_EQ(more.model_dir(), line.model_dir());
  ASSERT_OK_AND_ASSIGN(const EvalResult result, more.Evaluate(Points, {.steps = 3}));
  EXPECT_EQ(result.global_step, 10);
  EXPECT_NEAR(result["rmse"] * result["rmse"], result["mse"], 1e-5);
  ASSERT_OK_AND_ASSIGN(const EvalResult before, line.Evaluate(Points, {.steps = 3}));
  EXPECT_TRUE(std::isnan(before["rmse"]));
  // The Estimator with more metrics continues the training.
  ASSERT_OK_AND_ASSIGN(const TrainOutcome outcome, more.Train(Points, {.max_steps = 12}));
  EXPECT_EQ(outcome.own_steps, 2);
}

TEST_F(AddMetricsTest, ItsMetricCountsBeforeThatOfTheModel) {
  const Estimator more =
      AddMetrics(Line(), [](const Scope& scope, const Features& features, const RunConfig& config) {
        EXPECT_EQ(config.task_type(), "worker");
        return MetricOps{{"mse", metrics::Mean(scope, Add(scope, features["x"], features["x"]))}};
      });
  ASSERT_OK_AND_ASSIGN(const EvalResult result, more.Evaluate(Points, {.steps = 1}));
  EXPECT_NEAR(result["mse"], 1, 1e-6);
  // A second AddMetrics on top of the first.
  const Estimator two =
      AddMetrics(more, [](const Scope& scope, const Labels& labels) -> StatusOr<MetricOps> {
        return MetricOps{{"y", metrics::Mean(scope, labels)}};
      });
  ASSERT_OK_AND_ASSIGN(const EvalResult both, two.Evaluate(Points, {.steps = 1}));
  EXPECT_NEAR(both["mse"], 1, 1e-6);
  EXPECT_NEAR(both["y"], 1.4, 1e-6);
}

TEST_F(AddMetricsTest, WrongMetricsAreNamed) {
  const Estimator none = AddMetrics(Line(), MetricFn());
  EXPECT_STATUS(none.Evaluate(Points, {.steps = 1}), kInvalid,
                "AddMetrics: metric_fn must be a function, got none; built at ");
  const Estimator missing =
      AddMetrics(Line(), [](const Scope& scope, const Labels&, const Predictions& predictions) {
        return MetricOps{{"m", metrics::Mean(scope, predictions["price"])}};
      });
  EXPECT_STATUS(missing.Evaluate(Points, {.steps = 1}), kInvalid,
                "predictions['price'] must be one of those given");
  const Estimator reserved = AddMetrics(Line(), [](const Scope& scope, const Labels& labels) {
    return MetricOps{{"loss", metrics::Mean(scope, labels)}};
  });
  EXPECT_STATUS(reserved.Evaluate(Points, {.steps = 1}), kInvalid,
                "eval_metric_ops must have names other than 'loss'");
}

TEST_F(AddMetricsTest, AnErrorOfTheEstimatorStays) {
  const Estimator broken = Estimator::ErrorAt(std::source_location::current(),
                                              absl::NotFoundError("DNNRegressor: no columns"));
  const int line = __LINE__ - 2;
  const Estimator more = AddMetrics(broken, MetricFn());
  const std::string want = absl::StrCat("DNNRegressor: no columns; built at ", __FILE__, ":", line);
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  EXPECT_STATUS(more.status(), kNotFound, want);
  EXPECT_STATUS(more.Train(Points, {.max_steps = 1}), kNotFound, want);
  EXPECT_STATUS(more.Evaluate(Points), kNotFound, want);
  EXPECT_STATUS(more.Predict(Points), kNotFound, want);
  EXPECT_STATUS(more.ExportSavedModel(dir_, [](const Scope&) { return ServingInputReceiver(); }),
                kNotFound, want);
  EXPECT_STATUS(more.With(*RunConfig::Make({}, "")), kNotFound, want);
  EXPECT_STATUS(more.GetVariableNames(), kNotFound, want);
  EXPECT_STATUS(more.GetVariableValue("w"), kNotFound, want);
  EXPECT_EQ(more.latest_checkpoint(), "");
}

}  // namespace
}  // namespace millrace
