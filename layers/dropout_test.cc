// SPDX-License-Identifier: Apache-2.0
#include "layers/dropout.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: values: dropout drops at its rate and keeps the mean

namespace millrace {
namespace {

Tensor Ones(std::initializer_list<int64_t> dims) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, ShapeOf(dims));
  for (float& v : t.mutable_flat<float>()) v = 1;
  return t;
}

TEST(Dropout, DropsAtTheRateAndKeepsTheMean) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {-1, 100});
  const Output y = Dropout(scope, x, 0.25, {.seed = 7});
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       EvaluateGraph(scope, {{x, Ones({1000, 100})}}, {y}));
  int64_t dropped = 0;
  for (const float v : got[0].flat<float>()) {
    if (v == 0) {
      ++dropped;
    } else {
      ASSERT_FLOAT_EQ(v, 1 / 0.75f);
    }
  }
  // Six standard deviations of a binomial distribution of 100,000 draws.
  EXPECT_NEAR(static_cast<double>(dropped), 25000, 6 * std::sqrt(100000 * 0.25 * 0.75));
}

TEST(Dropout, AFedRateOfZeroPassesEverything) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2, 3});
  const Output rate = TestInput(scope, DT_FLOAT, {});
  const Output keep_prob = TestInput(scope, DT_FLOAT, {});
  const Output y = Dropout(scope, x, rate);
  const Output z = DropoutByKeepProb(scope, x, keep_prob);
  const Tensor value = TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      EvaluateGraph(scope,
                    {{x, value}, {rate, Tensor::Scalar(0.0f)}, {keep_prob, Tensor::Scalar(1.0f)}},
                    {y, z}));
  ExpectTensorEqual(got[0], value);
  ExpectTensorEqual(got[1], value);
}

TEST(Dropout, ANoiseShapeDropsWholeRows) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {64, 8});
  const Output y =
      Dropout(scope, x, 0.5, {.noise_shape = Const<int32_t>(scope, {64, 1}), .seed = 3});
  EXPECT_EQ(scope.shape(y).ToString(), "[64,8]");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       EvaluateGraph(scope, {{x, Ones({64, 8})}}, {y}));
  int rows_kept = 0;
  for (size_t r = 0; r < 64; ++r) {
    for (size_t c = 1; c < 8; ++c) {
      ASSERT_EQ(got[0].flat<float>()[r * 8 + c], got[0].flat<float>()[r * 8]);
    }
    rows_kept += got[0].flat<float>()[r * 8] != 0 ? 1 : 0;
  }
  EXPECT_GT(rows_kept, 8);
  EXPECT_LT(rows_kept, 56);
}

TEST(Dropout, ARateOfZeroAddsNoNode) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2});
  EXPECT_TRUE(Dropout(scope, x, 0.0) == x);
  EXPECT_TRUE(DropoutByKeepProb(scope, x, 1.0) == x);
  EXPECT_EQ(scope.graph()->num_nodes(), 1);
}

TEST(Dropout, NodesStandInOneScope) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2});
  EXPECT_EQ(Dropout(scope.WithName("drop"), x, 0.5).name().rfind("drop/", 0), 0u);
}

TEST(Dropout, BadArgumentsAreErrorsOfTheScope) {
  struct Case {
    std::function<Output(const Scope&)> build;
    const char* text;
  };
  const auto x = [](const Scope& s) { return TestInput(s, DT_FLOAT, {2}); };
  const Case cases[] = {
      {[&](const Scope& s) { return Dropout(s, x(s), 1.0); },
       "Dropout: rate must be in the range [0, 1), got 1"},
      {[&](const Scope& s) { return Dropout(s, x(s), -0.1); }, "rate must be in the range [0, 1)"},
      {[&](const Scope& s) { return Dropout(s, x(s), std::nan("")); },
       "rate must be in the range [0, 1), got nan"},
      {[&](const Scope& s) { return DropoutByKeepProb(s, x(s), 0.0); },
       "keep_prob must be in the range (0, 1], got 0"},
      {[&](const Scope& s) { return Dropout(s, TestInput(s, DT_INT32, {2}), 0.5); },
       "Dropout: x must be floating, got int32"},
      {[&](const Scope& s) { return Dropout(s, x(s), TestInput(s, DT_FLOAT, {2})); },
       "Dropout: rate must be a scalar, got shape [2]"},
  };
  for (const Case& c : cases) {
    Scope scope;
    EXPECT_FALSE(c.build(scope).valid());
    EXPECT_STATUS(scope.status(), absl::StatusCode::kInvalidArgument, c.text);
    EXPECT_NE(std::string(scope.status().message()).find("dropout_test.cc"), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace
