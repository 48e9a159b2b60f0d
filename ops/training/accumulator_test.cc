// SPDX-License-Identifier: Apache-2.0
#include "ops/training/accumulator.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/cancellation.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/kernels/accumulator.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: training: accumulators add dense and sparse gradients, give their mean or sum to who
//   takes, drop and count those of earlier steps; takes wait in line without a thread

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// --- The ops, by reference and by handle ---------------------------------------------------------

struct Form {
  const char* name;
  bool by_handle;
};

class DenseAccumulatorTest : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    MakeAccumulator(handle_, "MEAN");
    ASSERT_OK_AND_ASSIGN(session_, NewSession());
  }
  void MakeAccumulator(Output& handle, const std::string& reduction) {
    const AccumulatorAttrs attrs = {.shared_name = "sum_of_" + reduction,
                                    .reduction_type = reduction};
    handle = GetParam().by_handle
                 ? ResourceConditionalAccumulator(root_, DT_FLOAT, PartialShape(Shape{2}), attrs)
                 : ConditionalAccumulator(root_, DT_FLOAT, PartialShape(Shape{2}), attrs);
  }
  Operation Apply(Output handle, int64_t step, Output gradient) {
    const Output at = Const(root_, step);
    return GetParam().by_handle ? ResourceAccumulatorApplyGradient(root_, handle, at, gradient)
                                : AccumulatorApplyGradient(root_, handle, at, gradient);
  }
  Output Take(Output handle, int32_t required) {
    const Output n = Const(root_, required);
    return GetParam().by_handle ? ResourceAccumulatorTakeGradient(root_, handle, n, DT_FLOAT)
                                : AccumulatorTakeGradient(root_, handle, n, DT_FLOAT);
  }
  Output Count(Output handle) {
    return GetParam().by_handle ? ResourceAccumulatorNumAccumulated(root_, handle)
                                : AccumulatorNumAccumulated(root_, handle);
  }
  Status RunOp(const Operation& op) {
    MR_RETURN_IF_ERROR(root_.status());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    return session_->Run({}, {}, {op}).status();
  }
  StatusOr<Tensor> Value(Output output) {
    MR_RETURN_IF_ERROR(root_.status());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> values, session_->Run({}, {output}));
    return values[0];
  }

  const Scope root_;
  Output handle_;
  std::unique_ptr<Session> session_;
};
INSTANTIATE_TEST_SUITE_P(Forms, DenseAccumulatorTest,
                         ::testing::Values(Form{"Reference", false}, Form{"Resource", true}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// TensorFlow's own documented example: gradients 1 and 3 have the mean 2.
TEST_P(DenseAccumulatorTest, TheMeanOfWhatIsThereIsTaken) {
  ASSERT_OK(RunOp(Apply(handle_, 0, Const(root_, Tensor::Of<float>({1, 10})))));
  ASSERT_OK(RunOp(Apply(handle_, 0, Const(root_, Tensor::Of<float>({3, 30})))));
  ASSERT_OK_AND_ASSIGN(const Tensor count, Value(Count(handle_)));
  ExpectTensorEqual(count, Tensor::Scalar<int32_t>(2));
  ASSERT_OK_AND_ASSIGN(const Tensor mean, Value(Take(handle_, 1)));
  ExpectTensorEqual(mean, Tensor::Of<float>({2, 20}));
  ASSERT_OK_AND_ASSIGN(const Tensor none, Value(Count(handle_)));
  ExpectTensorEqual(none, Tensor::Scalar<int32_t>(0));
}

TEST_P(DenseAccumulatorTest, TheSumIsTakenWhereTheReductionIsSum) {
  Output sum;
  MakeAccumulator(sum, "SUM");
  ASSERT_OK(RunOp(Apply(sum, 0, Const(root_, Tensor::Of<float>({1, 10})))));
  ASSERT_OK(RunOp(Apply(sum, 0, Const(root_, Tensor::Of<float>({3, 30})))));
  ASSERT_OK_AND_ASSIGN(const Tensor taken, Value(Take(sum, 2)));
  ExpectTensorEqual(taken, Tensor::Of<float>({4, 40}));
}

TEST_P(DenseAccumulatorTest, GradientsOfEarlierStepsAreDropped) {
  const Operation stale = Apply(handle_, 0, Const(root_, Tensor::Of<float>({1, 1})));
  ASSERT_OK(RunOp(stale));
  ASSERT_OK(Value(Take(handle_, 1)).status());  // its step is 1 now
  ASSERT_OK(RunOp(stale));
  ASSERT_OK_AND_ASSIGN(const Tensor count, Value(Count(handle_)));
  ExpectTensorEqual(count, Tensor::Scalar<int32_t>(0));
  ASSERT_OK(RunOp(Apply(handle_, 1, Const(root_, Tensor::Of<float>({5, 5})))));
  ASSERT_OK_AND_ASSIGN(const Tensor mean, Value(Take(handle_, 1)));
  ExpectTensorEqual(mean, Tensor::Of<float>({5, 5}));
}

TEST_P(DenseAccumulatorTest, TheStepCanBeSet) {
  const Output at = Const(root_, int64_t{7});
  ASSERT_OK(RunOp(GetParam().by_handle ? ResourceAccumulatorSetGlobalStep(root_, handle_, at)
                                       : AccumulatorSetGlobalStep(root_, handle_, at)));
  ASSERT_OK(RunOp(Apply(handle_, 6, Const(root_, Tensor::Of<float>({1, 1})))));
  ASSERT_OK(RunOp(Apply(handle_, 7, Const(root_, Tensor::Of<float>({2, 2})))));
  ASSERT_OK_AND_ASSIGN(const Tensor mean, Value(Take(handle_, 1)));
  ExpectTensorEqual(mean, Tensor::Of<float>({2, 2}));
}

TEST_P(DenseAccumulatorTest, WhatDoesNotFitIsRefusedAndNotAdded) {
  EXPECT_STATUS(RunOp(Apply(handle_, 0, Const(root_, Tensor::Of<float>({1, 2, 3})))), kInvalid,
                "Shape mismatch: expected [2], got [3]");
  EXPECT_STATUS(Value(Take(handle_, 0)), kInvalid, "Argument num_required must be positive, was 0");
  EXPECT_STATUS(Value(Take(handle_, -3)), kInvalid,
                "Argument num_required must be positive, was -3");
  ASSERT_OK_AND_ASSIGN(const Tensor count, Value(Count(handle_)));
  ExpectTensorEqual(count, Tensor::Scalar<int32_t>(0));
}

TEST_P(DenseAccumulatorTest, OneNameIsOneAccumulatorAndMustAgree) {
  const AccumulatorAttrs same = {.shared_name = "sum_of_MEAN"};
  const PartialShape two = PartialShape(Shape{2});
  const Output again = GetParam().by_handle
                           ? ResourceConditionalAccumulator(root_, DT_FLOAT, two, same)
                           : ConditionalAccumulator(root_, DT_FLOAT, two, same);
  ASSERT_OK(RunOp(Apply(handle_, 0, Const(root_, Tensor::Of<float>({1, 2})))));
  ASSERT_OK_AND_ASSIGN(const Tensor count, Value(Count(again)));
  ExpectTensorEqual(count, Tensor::Scalar<int32_t>(1));
  const PartialShape three = PartialShape(Shape{3});
  const Output other = GetParam().by_handle
                           ? ResourceConditionalAccumulator(root_, DT_FLOAT, three, same)
                           : ConditionalAccumulator(root_, DT_FLOAT, three, same);
  EXPECT_STATUS(Value(Count(other)), kInvalid,
                "Shared conditional accumulator 'sum_of_MEAN' has shape [2] but requested shape "
                "[3]");
}

// A take waits for the gradients of other steps, and a step that is cancelled leaves the line.
TEST_P(DenseAccumulatorTest, ATakeWaitsForGradientsOfOtherSteps) {
  const Output take = Take(handle_, 2);
  const Operation apply = Apply(handle_, 0, Const(root_, Tensor::Of<float>({4, 8})));
  ASSERT_OK(root_.status());
  ASSERT_OK(session_->Extend(root_));
  StatusOr<std::vector<Tensor>> taken = absl::UnknownError("");
  std::thread taker([&] { taken = session_->Run({}, {take}); });
  EXPECT_OK(session_->Run({}, {}, {apply}).status());
  EXPECT_OK(session_->Run({}, {}, {apply}).status());
  taker.join();
  ASSERT_OK(taken);
  ExpectTensorEqual((*taken)[0], Tensor::Of<float>({4, 8}));
}

class SparseAccumulatorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(session_, NewSession()); }
  Status Apply(Output handle, int64_t step, const Tensor& ids, const Tensor& rows,
               const Tensor& shape, bool known) {
    const Operation op =
        SparseAccumulatorApplyGradient(root_, handle, Const(root_, step), Const(root_, ids),
                                       Const(root_, rows), Const(root_, shape), known);
    MR_RETURN_IF_ERROR(root_.status());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    return session_->Run({}, {}, {op}).status();
  }
  StatusOr<std::vector<Tensor>> Take(Output handle, int32_t required) {
    const TakenSparseGradient taken =
        SparseAccumulatorTakeGradient(root_, handle, Const(root_, required), DT_FLOAT);
    MR_RETURN_IF_ERROR(root_.status());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    return session_->Run({}, {taken.indices, taken.values, taken.shape});
  }

  const Scope root_;
  std::unique_ptr<Session> session_;
  const Tensor shape_ = Tensor::Vector<int64_t>({4, 2});
};

TEST_F(SparseAccumulatorTest, RowsOfOneIdAreAddedAndTheMeanIsOverThoseThatHaveIt) {
  const Output handle = SparseConditionalAccumulator(root_, DT_FLOAT, PartialShape(Shape{4, 2}));
  // In no order, and one id twice in one gradient, which counts once.
  ASSERT_OK(Apply(handle, 0, Tensor::Vector<int64_t>({3, 0}), Tensor::Of<float>({{1, 2}, {3, 4}}),
                  shape_, true));
  ASSERT_OK(Apply(handle, 0, Tensor::Vector<int64_t>({1, 3, 1}),
                  Tensor::Of<float>({{10, 20}, {5, 6}, {1, 1}}), shape_, true));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> taken, Take(handle, 2));
  ExpectTensorEqual(taken[0], Tensor::Vector<int64_t>({0, 1, 3}));
  ExpectTensorEqual(taken[1], Tensor::Of<float>({{3, 4}, {11, 21}, {3, 4}}));
  ExpectTensorEqual(taken[2], Tensor::Vector<int64_t>({4, 2}));
}

TEST_F(SparseAccumulatorTest, TheSumOfRows) {
  const Output handle = SparseConditionalAccumulator(root_, DT_FLOAT, PartialShape(Shape{4, 2}),
                                                     {.reduction_type = "SUM"});
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(Apply(handle, 0, Tensor::Vector<int64_t>({2, i}), Tensor::Of<float>({{1, 1}, {2, 2}}),
                    shape_, true));
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> taken, Take(handle, 3));
  ExpectTensorEqual(taken[0], Tensor::Vector<int64_t>({0, 1, 2}));
  ExpectTensorEqual(taken[1], Tensor::Of<float>({{2, 2}, {2, 2}, {5, 5}}));
}

TEST_F(SparseAccumulatorTest, WhatIsTakenIsGoneAndTheNextMayHaveOtherRows) {
  const Output handle = SparseConditionalAccumulator(root_, DT_FLOAT, PartialShape());
  const Tensor none = Tensor::Vector<int64_t>(absl::Span<const int64_t>());
  ASSERT_OK(
      Apply(handle, 0, Tensor::Vector<int64_t>({7}), Tensor::Of<float>({{1, 2}}), none, false));
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> taken, Take(handle, 1));
  ExpectTensorEqual(taken[2], Tensor::Vector<int64_t>({-1, 2}));
  // Step 1 now: one of step 0 is dropped; rows may be wider, and there may be none.
  ASSERT_OK(
      Apply(handle, 0, Tensor::Vector<int64_t>({7}), Tensor::Of<float>({{9, 9}}), none, false));
  ASSERT_OK(Apply(handle, 1, none, *Tensor::Zeros(DT_FLOAT, Shape{0, 3}), none, false));
  ASSERT_OK(
      Apply(handle, 1, Tensor::Vector<int64_t>({5}), Tensor::Of<float>({{1, 2, 3}}), none, false));
  ASSERT_OK_AND_ASSIGN(taken, Take(handle, 2));
  ExpectTensorEqual(taken[0], Tensor::Vector<int64_t>({5}));
  ExpectTensorEqual(taken[1], Tensor::Of<float>({{1, 2, 3}}));
}

TEST_F(SparseAccumulatorTest, WhatDoesNotFitIsRefusedInTensorFlowsWords) {
  const Output handle = SparseConditionalAccumulator(root_, DT_FLOAT, PartialShape(Shape{4, 2}));
  const Tensor one = Tensor::Vector<int64_t>({1});
  const Tensor row = Tensor::Of<float>({{1, 2}});
  const auto apply = [&](const Tensor& ids, const Tensor& rows, const Tensor& shape) {
    return Apply(handle, 0, ids, rows, shape, true);
  };
  EXPECT_STATUS(apply(Tensor::Scalar<int64_t>(1), row, shape_), kInvalid,
                "Input indices should be vector but received shape: []");
  EXPECT_STATUS(apply(one, Tensor::Scalar(1.0f), shape_), kInvalid,
                "Values cannot be 0-dimensional.");
  EXPECT_STATUS(apply(one, Tensor::Of<float>({{1, 2}, {3, 4}}), shape_), kInvalid,
                "Expected 1 non-empty input values, got 2");
  EXPECT_STATUS(apply(one, row, Tensor::Vector<int64_t>({4})), kInvalid,
                "Shape mismatch: expected shape rank at least 2, got 1");
  EXPECT_STATUS(apply(one, row, Tensor::Vector<int64_t>({5, 2})), kInvalid,
                "Shape mismatch: expected dim 0 to be 4, got 5");
  EXPECT_STATUS(apply(Tensor::Vector<int64_t>({4}), row, shape_), kInvalid,
                "index of slice 0 exceeded limits of shape; index is 4 exceeded 4");
  EXPECT_STATUS(apply(Tensor::Vector<int64_t>({-1}), row, shape_), kInvalid,
                "index of slice 0 must be >= 0, got -1");
  EXPECT_STATUS(apply(one, Tensor::Of<float>({{1, 2, 3}}), shape_), kInvalid,
                "Shape mismatch: expected values dim 1 to be 2, got 3");
  EXPECT_STATUS(apply(one, Tensor::Of<float>({1}), shape_), kInvalid,
                "Shape mismatch: expected values rank at least 2, got 1");
  // Nothing of them is there.
  ASSERT_OK(apply(one, row, shape_));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> taken, Take(handle, 1));
  ExpectTensorEqual(taken[0], one);
  ExpectTensorEqual(taken[1], row);
}

// A dense gradient for a sparse accumulator, and the other way round.
TEST_F(SparseAccumulatorTest, TheFormsAreNotMixed) {
  const Output sparse = SparseConditionalAccumulator(root_, DT_FLOAT, PartialShape(Shape{4, 2}));
  const Operation dense_into_sparse = AccumulatorApplyGradient(
      root_, sparse, Const(root_, int64_t{0}), Const(root_, Tensor::Of<float>({{1, 2}})));
  const Output dense = ConditionalAccumulator(root_, DT_FLOAT, PartialShape(Shape{4, 2}));
  ASSERT_OK(root_.status());
  ASSERT_OK(session_->Extend(root_));
  EXPECT_STATUS(session_->Run({}, {}, {dense_into_sparse}), kInvalid, "must be dense");
  EXPECT_STATUS(Take(dense, 1), kInvalid, "must be sparse");
}

// --- The resource --------------------------------------------------------------------------------

AccumulatorSpec DenseSpec() {
  AccumulatorSpec spec;
  spec.dtype = DT_FLOAT;
  spec.shape = PartialShape(Shape{1});
  spec.name = "a";
  return spec;
}

TEST(GradientAccumulatorTest, StaleGradientsAreCounted) {
  const auto accumulator = std::make_shared<GradientAccumulator>(DenseSpec());
  accumulator->SetGlobalStep(2);
  for (int64_t step = 0; step < 4; ++step) {
    ASSERT_OK_AND_ASSIGN(const bool added,
                         accumulator->Apply(step, {.values = Tensor::Of<float>({1})}));
    EXPECT_EQ(added, step >= 2);
  }
  EXPECT_EQ(accumulator->num_dropped(), 2);
  EXPECT_EQ(accumulator->num_accumulated(), 2);
  EXPECT_EQ(accumulator->DebugString(),
            "accumulator 'a': step 2, 2 gradients, 2 of earlier steps dropped");
}

TEST(GradientAccumulatorTest, TakesAreServedInTheirOrderAndACancelledOneLeavesTheLine) {
  const auto accumulator = std::make_shared<GradientAccumulator>(DenseSpec());
  std::vector<std::string> ended;
  const auto take = [&](const char* name, CancellationManager* cancellation, int64_t required) {
    accumulator->Take(cancellation, required,
                      [&ended, name](StatusOr<GradientAccumulator::Taken> taken) {
                        ended.push_back(taken.ok() ? name : std::string(taken.status().message()));
                      });
  };
  CancellationManager first, second, third;
  take("first", &first, 3);
  take("second", &second, 1);
  take("third", &third, 1);
  const auto apply = [&](int64_t step, float value) {
    EXPECT_OK(accumulator->Apply(step, {.values = Tensor::Of<float>({value})}).status());
  };
  apply(0, 1);  // not enough for the first, and the others wait behind it
  EXPECT_TRUE(ended.empty());
  first.StartCancel();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0], "TakeGrad operation was cancelled");
  EXPECT_EQ(ended[1], "second");
  apply(0, 2);  // of an earlier step
  EXPECT_EQ(ended.size(), 2u);
  apply(1, 2);
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_EQ(ended[2], "third");
  // One whose step was cancelled before.
  take("late", &first, 1);
  ASSERT_EQ(ended.size(), 4u);
  EXPECT_EQ(ended[3], "TakeGrad operation was cancelled");
}

// What a step gave away stays as it is: the sum is made in memory of its own.
TEST(GradientAccumulatorTest, AGradientThatOthersHoldIsNotWritten) {
  const auto accumulator = std::make_shared<GradientAccumulator>(DenseSpec());
  const Tensor mine = Tensor::Of<float>({1});
  ASSERT_OK(accumulator->Apply(0, {.values = mine}).status());
  ASSERT_OK(accumulator->Apply(0, {.values = mine}).status());
  Tensor mean;
  accumulator->Take(nullptr, 2, [&](StatusOr<GradientAccumulator::Taken> taken) {
    ASSERT_OK(taken);
    mean = taken->values;
  });
  ExpectTensorEqual(mean, Tensor::Of<float>({1}));
  ExpectTensorEqual(mine, Tensor::Of<float>({1}));
  EXPECT_FALSE(mean.SharesBufferWith(mine));
}

// Many rows in random order against a plain sum.
TEST(GradientAccumulatorTest, ManyRowsAreTheSumsOfTheirIds) {
  constexpr int64_t kRows = 1000, kIds = 700, kWidth = 3;
  AccumulatorSpec spec;
  spec.is_sparse = true;
  spec.dtype = DT_DOUBLE;
  spec.is_mean = false;
  const auto accumulator = std::make_shared<GradientAccumulator>(spec);
  std::vector<double> expected(kIds * kWidth);
  std::vector<bool> seen(kIds);
  uint64_t random = 1;
  for (int gradient = 0; gradient < 5; ++gradient) {
    Tensor ids = *Tensor::Allocate(DT_INT64, Shape{kRows});
    Tensor rows = *Tensor::Allocate(DT_DOUBLE, Shape{kRows, kWidth});
    for (int64_t i = 0; i < kRows; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const int64_t id = static_cast<int64_t>((random >> 33) % kIds);
      seen[static_cast<size_t>(id)] = true;
      ids.mutable_flat<int64_t>()[static_cast<size_t>(i)] = id;
      for (int64_t k = 0; k < kWidth; ++k) {
        const double value = static_cast<double>(i % 17 + k);  // whole: sums are exact
        rows.mutable_flat<double>()[static_cast<size_t>(i * kWidth + k)] = value;
        expected[static_cast<size_t>(id * kWidth + k)] += value;
      }
    }
    ASSERT_OK(accumulator->Apply(0, {.values = rows, .indices = ids}).status());
  }
  GradientAccumulator::Taken taken;
  accumulator->Take(nullptr, 5, [&](StatusOr<GradientAccumulator::Taken> result) {
    ASSERT_OK(result);
    taken = *std::move(result);
  });
  const absl::Span<const int64_t> ids = taken.indices.raw<int64_t>();
  const absl::Span<const double> rows = taken.values.raw<double>();
  ASSERT_EQ(static_cast<int64_t>(ids.size()), std::count(seen.begin(), seen.end(), true));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) {
      ASSERT_LT(ids[i - 1], ids[i]);
    }
    for (size_t k = 0; k < kWidth; ++k) {
      ASSERT_EQ(rows[i * kWidth + k], expected[static_cast<size_t>(ids[i]) * kWidth + k]);
    }
  }
}

}  // namespace
}  // namespace millrace
