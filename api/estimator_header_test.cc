// SPDX-License-Identifier: Apache-2.0
//
// What programs outside include who have an Estimator: first, so that it stands alone.

#include <millrace/estimator.h>

// Every header of protobuf defines it.
#ifdef GOOGLE_PROTOBUF_VERSION
constexpr bool kHasProtobuf = true;
#else
constexpr bool kHasProtobuf = false;
#endif

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: outside: `#include <millrace/estimator.h>` has Estimators, knows no protobuf; linking
//   `//:millrace` is enough to train one

namespace millrace {
namespace {

TEST(EstimatorHeader, IsFreeOfProtobuf) { EXPECT_FALSE(kHasProtobuf); }

// Linking //:millrace is enough to train, and to ask.
TEST(MillraceLibrary, HasEstimators) {
  ASSERT_OK_AND_ASSIGN(const RunConfig config,
                       RunConfig::Make({.model_dir = testing::TempDir() + "/line"}, ""));
  const Estimator line =
      LinearRegressor({.feature_columns = {NumericColumn("x")}}, {.config = config});
  const InputFn points = [](Mode mode) {
    const Tensor x = Tensor::Of({1.f, 2.f}), y = Tensor::Of({2.f, 4.f});
    const auto both = data::Dataset::FromTensorSlices({x, y}).Batch(2);
    return Input(mode == Mode::kTrain ? both.Repeat() : both,
                 {.names = {"x", "y"}, .labels = {"y"}});
  };
  ASSERT_OK(line.Train(points, {.max_steps = 100}).status());
  ASSERT_OK_AND_ASSIGN(const EvalResult result, line.Evaluate(points));
  EXPECT_EQ(result.global_step, 100);
  EXPECT_LT(result["average_loss"], 1);
  ASSERT_OK_AND_ASSIGN(const auto predictions, line.Predict(points));
  Prediction row;
  ASSERT_OK_AND_ASSIGN(const bool is_there, predictions->Next(&row));
  EXPECT_TRUE(is_there);
  EXPECT_EQ(row.tensors.count("predictions"), 1u);
}

}  // namespace
}  // namespace millrace
