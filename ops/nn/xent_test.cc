// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/xent.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

OpCall Dense(const Tensor& features, const Tensor& labels) {
  return OpCall("SoftmaxCrossEntropyWithLogits").Input(features).Input(labels);
}
OpCall Sparse(const Tensor& features, const Tensor& labels) {
  return OpCall("SparseSoftmaxCrossEntropyWithLogits").Input(features).Input(labels);
}

TEST(Xent, LossAndBackpropOfEachRow) {
  const Tensor x = TensorOf<double>({2, 3}, {1, 2, 3, 1001, 1002, 1003});
  const Tensor t = TensorOf<double>({2, 3}, {0, 0, 1, 0.5, 0.5, 0});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, RunOp(Dense(x, t)));
  ExpectTensorNear(got[0], TensorOf<double>({2}, {0.4076059644443802, 1.9076059644443802}), 1e-13,
                   0);
  ExpectTensorNear(
      got[1],
      TensorOf<double>({2, 3}, {0.09003057317038046, 0.24472847105479764, -0.3347590442251782,
                                -0.40996942682961954, -0.25527152894520236, 0.6652409557748218}),
      1e-13, 0);
}

TEST(Xent, SparseLabelsAreOneHotLabels) {
  const Tensor x = TensorOf<float>({3, 4}, {1, 2, 3, 0, -1, 5, 2, 2, 7, 0, 0, 0});
  const Tensor t = TensorOf<float>({3, 4}, {0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> dense, RunOp(Dense(x, t)));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> sparse,
                       RunOp(Sparse(x, Tensor::Vector<int64_t>({2, 0, 3}))));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> sparse32,
                       RunOp(Sparse(x, Tensor::Vector<int32_t>({2, 0, 3}))));
  for (size_t i = 0; i < 2; ++i) {
    ExpectTensorNear(sparse[i], dense[i], 1e-5, 1e-6);
    ExpectTensorEqual(sparse32[i], sparse[i]);
  }
}

TEST(Xent, ShapesAreBroadcastToAMatrix) {
  const Tensor x = TensorOf<float>({2, 2}, {1, 2, 3, 5});
  const auto expect_same = [](const Tensor& x1, const Tensor& t1, const Tensor& x2,
                              const Tensor& t2) {
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> a, RunOp(Dense(x1, t1)));
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> b, RunOp(Dense(x2, t2)));
    ExpectTensorEqual(a[0], b[0]);
    ExpectTensorEqual(a[1], b[1]);
  };
  expect_same(x, TensorOf<float>({1, 2}, {0.25f, 0.75f}), x,
              TensorOf<float>({2, 2}, {0.25f, 0.75f, 0.25f, 0.75f}));
  expect_same(x, TensorOf<float>({2}, {0.25f, 0.75f}), x,
              TensorOf<float>({2, 2}, {0.25f, 0.75f, 0.25f, 0.75f}));
  expect_same(TensorOf<float>({2, 1}, {4, 7}), x, TensorOf<float>({2, 2}, {4, 4, 7, 7}), x);
  expect_same(Tensor::Scalar(4.0f), x, TensorOf<float>({2, 2}, {4, 4, 4, 4}), x);
}

TEST(Xent, ALabelOfZeroTakesNothingFromAMaskedLogit) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      RunOp(Dense(TensorOf<float>({1, 3}, {0, -kInf, 0}), TensorOf<float>({1, 3}, {1, 0, 0}))));
  ExpectTensorNear(got[0], TensorOf<float>({1}, {std::log(2.0f)}), 1e-6, 0);
  ExpectTensorNear(got[1], TensorOf<float>({1, 3}, {-0.5f, 0, 0.5f}), 1e-6, 0);
}

TEST(Xent, HalfComputesInFloat) {
  const Tensor x = TensorOf<Half>({1, 2}, {ToHalf(10), ToHalf(20)});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       RunOp(Sparse(x, Tensor::Vector<int64_t>({0}))));
  ExpectTensorNear(got[0], TensorOf<Half>({1}, {ToHalf(10.0000454f)}), 1e-3, 0);
}

TEST(Xent, EmptyTensors) {
  const auto zeros = [](std::initializer_list<int64_t> dims) {
    return *Tensor::Zeros(DT_FLOAT, ShapeOf(dims));
  };
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> got, RunOp(Dense(zeros({0, 3}), zeros({0, 3}))));
  ExpectTensorEqual(got[0], zeros({0}));
  ExpectTensorEqual(got[1], zeros({0, 3}));
  ASSERT_OK_AND_ASSIGN(got, RunOp(Dense(zeros({2, 0}), zeros({2, 0}))));
  ExpectTensorEqual(got[0], zeros({2}));
  ASSERT_OK_AND_ASSIGN(got, RunOp(Sparse(zeros({0, 3}), TensorOf<int64_t>({0}, {}))));
  ExpectTensorEqual(got[0], zeros({0}));
  ExpectTensorEqual(got[1], zeros({0, 3}));
}

TEST(Xent, RefusesWhatDoesNotFit) {
  struct Case {
    bool sparse;
    std::initializer_list<int64_t> features, labels;
    const char* text;
  };
  for (const Case& c : {
           Case{false,
                {2, 3},
                {2, 4},
                "logits and labels must be broadcastable: logits_size=[2,3] labels_size=[2,4]"},
           Case{false, {2, 3, 4}, {2, 3, 4}, "must be matrices or broadcast to a matrix"},
           Case{false,
                {3},
                {3},
                "must be matrices or broadcast to a matrix, got shapes [3] and [3]"},
           Case{false, {}, {}, "must be matrices or broadcast to a matrix"},
           Case{true, {3}, {3}, "logits must be 2-D, but got shape [3]"},
           Case{true, {}, {}, "logits must be 2-D, but got shape []"},
           Case{true, {2, 3}, {2, 1}, "labels must be 1-D, but got shape [2,1]"},
           Case{true, {2, 3}, {}, "labels must be 1-D, but got shape []"},
           Case{true,
                {2, 3},
                {3},
                "logits and labels must have the same first dimension, got logits shape [2,3] and "
                "labels shape [3]"},
           Case{true, {2, 0}, {2}, "Must have at least one class, but got logits shape [2,0]"},
       }) {
    SCOPED_TRACE(c.text);
    ASSERT_OK_AND_ASSIGN(const Tensor x, Tensor::Zeros(DT_FLOAT, ShapeOf(c.features)));
    ASSERT_OK_AND_ASSIGN(const Tensor t,
                         Tensor::Zeros(c.sparse ? DT_INT64 : DT_FLOAT, ShapeOf(c.labels)));
    ExpectOpError(c.sparse ? Sparse(x, t) : Dense(x, t), absl::StatusCode::kInvalidArgument,
                  c.text);
    EXPECT_SHAPE_ERROR(
        c.sparse ? "SparseSoftmaxCrossEntropyWithLogits" : "SoftmaxCrossEntropyWithLogits", {},
        {x.shape().ToString(), t.shape().ToString()}, c.text);
  }
}

TEST(Xent, ALabelOutsideTheClassesIsNamed) {
  const Tensor x = *Tensor::Zeros(DT_FLOAT, ShapeOf({3, 3}));
  ExpectOpError(Sparse(x, Tensor::Vector<int64_t>({0, 3, 1})), absl::StatusCode::kInvalidArgument,
                "Received a label value of 3 which is outside the valid range of [0, 3).  Label "
                "values: 0 3 1; it is in row 1 of 3");
  ExpectOpError(Sparse(x, Tensor::Vector<int32_t>({0, -1, 1})), absl::StatusCode::kInvalidArgument,
                "Received a label value of -1");
  ExpectOpError(Sparse(x, Tensor::Vector<int64_t>({0, 0, INT64_MIN})),
                absl::StatusCode::kInvalidArgument, "outside the valid range of [0, 3)");
}

TEST(Xent, ShapesOfPartlyKnownInputs) {
  const char* dense = "SoftmaxCrossEntropyWithLogits";
  EXPECT_SHAPE(dense, {}, {"[?,10]", "[?,10]"}, "[?];[?,10]");
  EXPECT_SHAPE(dense, {}, {"[5,10]", "[?,?]"}, "[5];[5,10]");
  EXPECT_SHAPE(dense, {}, {"[1,10]", "[5,10]"}, "[5];[5,10]");
  EXPECT_SHAPE(dense, {}, {"<unknown>", "[5,10]"}, "[?];[?,?]");
  const char* sparse = "SparseSoftmaxCrossEntropyWithLogits";
  EXPECT_SHAPE(sparse, {}, {"[?,10]", "[5]"}, "[5];[5,10]");
  EXPECT_SHAPE(sparse, {}, {"<unknown>", "[5]"}, "[5];[5,?]");
  EXPECT_SHAPE(sparse, {}, {"[?,10]", "<unknown>"}, "[?];[?,10]");
}

TEST(XentGradient, MatchesFiniteDifferencesInBothOutputsAndInputs) {
  const Tensor x = TensorOf<double>({2, 3}, {0.3, -1, 2, 0.5, 0.25, -0.75});
  const Tensor t = TensorOf<double>({2, 3}, {0.2, 0.5, 0.3, 0.1, 0.1, 0.8});
  const Tensor row = TensorOf<double>({1, 3}, {0.2, 0.5, 0.3});
  const Tensor column = TensorOf<double>({2, 1}, {0.2, 0.5});
  const auto loss = [](const Scope& s, const std::vector<Output>& in) {
    return SoftmaxCrossEntropyWithLogits(s, in[0], in[1]).loss;
  };
  const auto backprop = [](const Scope& s, const std::vector<Output>& in) {
    return SoftmaxCrossEntropyWithLogits(s, in[0], in[1]).backprop;
  };
  const BuildOutputs both = [](const Scope& s, const std::vector<Output>& in) {
    const CrossEntropyOutputs out = SoftmaxCrossEntropyWithLogits(s, in[0], in[1]);
    return std::vector<Output>{out.loss, out.backprop};
  };
  ExpectGradientsMatch(BuildOutput(loss), {x, t});
  ExpectGradientsMatch(BuildOutput(backprop), {x, t});
  ExpectGradientsMatch(both, {x, t});
  // Broadcast either way. backprop takes the labels of a row to add up to 1.
  const Tensor thirds = TensorOf<double>({2, 1}, {1.0 / 3, 1.0 / 3});
  ExpectGradientsMatch(both, {x, row});
  ExpectGradientsMatch(both, {row, t});
  ExpectGradientsMatch(both, {x, thirds});
  ExpectGradientsMatch(both, {column, t});
}

TEST(XentGradient, SparseMatchesFiniteDifferencesInBothOutputs) {
  const Tensor x = TensorOf<double>({2, 3}, {0.3, -1, 2, 0.5, 0.25, -0.75});
  const BuildOutputs both = [](const Scope& s, const std::vector<Output>& in) {
    const CrossEntropyOutputs out =
        SparseSoftmaxCrossEntropyWithLogits(s, in[0], Const<int64_t>(s, {2, 0}));
    return std::vector<Output>{out.loss, out.backprop};
  };
  ExpectGradientsMatch(both, {x});
  ExpectGradientsMatch(
      BuildOutput([](const Scope& s, const std::vector<Output>& in) {
        return SparseSoftmaxCrossEntropyWithLogits(s, in[0], Const<int64_t>(s, {2, 0})).loss;
      }),
      {x});
}

}  // namespace
}  // namespace millrace
