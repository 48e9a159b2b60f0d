// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_reduce.h"

#include <cmath>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are reduced as TensorFlow does; wrong indices and shapes are
//   refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }
Tensor Axes(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

struct Sparse {
  Tensor indices, values, shape;
};
// [[1 . 2] [. -3 .]]
Sparse Input() {
  return {Tensor::Of<int64_t>({{0, 2}, {0, 0}, {1, 1}}), Tensor::Of<float>({2, 1, -3}),
          Ints({2, 3})};
}
OpCall Call(const char* op, const Sparse& a, Tensor axes, bool keep_dims = false) {
  return OpCall(op)
      .Input(a.indices)
      .Input(a.values)
      .Input(a.shape)
      .Input(std::move(axes))
      .Attr("keep_dims", keep_dims);
}
void ExpectOutputs(const OpCall& call, const std::vector<Tensor>& expected) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
  ASSERT_EQ(out.size(), expected.size());
  for (size_t i = 0; i < out.size(); ++i) ExpectTensorEqual(out[i], expected[i]);
}

TEST(SparseReduce, ReducesToDenseTensors) {
  const char *sum = "SparseReduceSum", *max = "SparseReduceMax";
  ExpectTensorEqual(RunOp1(Call(sum, Input(), Axes({1}))), Tensor::Of<float>({3, -3}));
  ExpectTensorEqual(RunOp1(Call(sum, Input(), Axes({-1}), true)), Tensor::Of<float>({{3}, {-3}}));
  ExpectTensorEqual(RunOp1(Call(sum, Input(), Axes({0}))), Tensor::Of<float>({1, -3, 2}));
  ExpectTensorEqual(RunOp1(Call(sum, Input(), Axes({0, 1}))), Tensor::Scalar(0.0f));
  ExpectTensorEqual(RunOp1(Call(sum, Input(), Axes({1, 0, 0}), true)), Tensor::Of<float>({{0}}));
  ExpectTensorEqual(RunOp1(Call(sum, Input(), Tensor::Scalar<int32_t>(1))),
                    Tensor::Of<float>({3, -3}));
  ExpectTensorEqual(RunOp1(Call(sum, Input(), Axes({}))),
                    Tensor::Of<float>({{1, 0, 2}, {0, -3, 0}}));
  // The largest of what is there, even if it is negative; nothing is 0.
  ExpectTensorEqual(RunOp1(Call(max, Input(), Axes({1}))), Tensor::Of<float>({2, -3}));
  Sparse input = Input();
  input.shape = Ints({3, 3});
  ExpectTensorEqual(RunOp1(Call(max, input, Axes({1}))), Tensor::Of<float>({2, -3, 0}));
  ExpectTensorEqual(
      RunOp1(Call(sum, {TensorOf<int64_t>({0, 2}, {}), TensorOf<float>({0}, {}), Ints({2, 0})},
                  Axes({1}))),
      Tensor::Of<float>({0, 0}));
}

TEST(SparseReduce, ReducesToSparseTensors) {
  const char *sum = "SparseReduceSumSparse", *max = "SparseReduceMaxSparse";
  Sparse input = Input();
  input.shape = Ints({3, 3});
  ExpectOutputs(Call(sum, input, Axes({1})),
                {Tensor::Of<int64_t>({{0}, {1}}), Tensor::Of<float>({3, -3}), Ints({3})});
  ExpectOutputs(Call(max, input, Axes({1}), true),
                {Tensor::Of<int64_t>({{0, 0}, {1, 0}}), Tensor::Of<float>({2, -3}), Ints({3, 1})});
  ExpectOutputs(Call(sum, input, Axes({0})),
                {Tensor::Of<int64_t>({{0}, {1}, {2}}), Tensor::Of<float>({1, -3, 2}), Ints({3})});
  ExpectOutputs(Call(max, input, Axes({0, 1})),
                {TensorOf<int64_t>({1, 0}, {}), Tensor::Of<float>({2}), Ints({})});
  ExpectOutputs(
      Call(sum, {TensorOf<int64_t>({0, 2}, {}), TensorOf<float>({0}, {}), Ints({2, 0})}, Axes({1})),
      {TensorOf<int64_t>({0, 1}, {}), TensorOf<float>({0}, {}), Ints({2})});
  EXPECT_SHAPE("SparseReduceSumSparse", {}, {"[?,3]", "[?]", "[?]", Axes({1})}, "[?,2];[?];[2]");
  EXPECT_SHAPE("SparseReduceSumSparse", {}, {"[?,3]", "[?]", "[?]", "[?]"}, "[?,?];[?];[?]");
}

TEST(SparseReduce, RefusesAxesAndIndicesThatAreNotThere) {
  for (const char* op :
       {"SparseReduceSum", "SparseReduceMax", "SparseReduceSumSparse", "SparseReduceMaxSparse"}) {
    ExpectOpError(Call(op, Input(), Axes({0, 2})), kInvalid,
                  "reduction_axes[1] must be in [-2, 2), got 2");
    ExpectOpError(Call(op, Input(), Axes({-3})), kInvalid,
                  "reduction_axes[0] must be in [-2, 2), got -3");
    ExpectOpError(Call(op, Input(), Tensor::Of<int32_t>({{1}})), kInvalid, "reduction_axes");
    Sparse bad = Input();
    bad.shape = Ints({2, 2});
    ExpectOpError(Call(op, bad, Axes({0})), kInvalid,
                  "input_indices[0] = [0,2] is out of bounds: need 0 <= index < [2,2]");
    bad.shape = Ints({2, -2});
    ExpectOpError(Call(op, bad, Axes({0})), kInvalid, "input_shape[1] must be >= 0, got -2");
  }
  EXPECT_SHAPE("SparseReduceSum", {{"keep_dims", true}}, {"[?,2]", "[?]", Ints({4, 5}), Axes({0})},
               "[1,5]");
  EXPECT_SHAPE("SparseReduceSum", {}, {"[?,2]", "[?]", "[?]", Axes({0})}, "[?]");
  EXPECT_SHAPE("SparseReduceSum", {}, {"[?,2]", "[?]", "[?]", "[?]"}, "<unknown>");
}

TEST(SparseSoftmax, IsOverTheElementsThatAreThere) {
  const auto call = [](Tensor indices, Tensor values, Tensor shape) {
    return OpCall("SparseSoftmax")
        .Input(std::move(indices))
        .Input(std::move(values))
        .Input(std::move(shape));
  };
  const double e = std::exp(1.0);
  // TensorFlow's example: [[e .] [. .]; ...] has rows of one and of two elements.
  ExpectTensorNear(RunOp1(call(Tensor::Of<int64_t>({{0, 0, 1}, {0, 1, 0}, {0, 1, 1}, {1, 0, 0}}),
                               Tensor::Vector<double>({1000.0, 1.0, 2.0, -5.0}), Ints({2, 2, 2}))),
                   Tensor::Of<double>({1.0, 1 / (1 + e), e / (1 + e), 1.0}), 1e-12, 0);
  ExpectTensorEqual(
      RunOp1(call(TensorOf<int64_t>({0, 2}, {}), TensorOf<float>({0}, {}), Ints({3, 0}))),
      TensorOf<float>({0}, {}));
  ExpectOpError(call(Tensor::Of<int64_t>({{0}}), Tensor::Of<float>({1}), Ints({2})), kInvalid,
                "sp_shape must have at least 2 dimensions, got 1");
  ExpectOpError(
      call(Tensor::Of<int64_t>({{0, 1}, {0, 0}}), Tensor::Of<float>({1, 2}), Ints({2, 2})),
      kInvalid, "sp_indices[1] = [0,0] is out of order");
  EXPECT_SHAPE("SparseSoftmax", {}, {"[?,2]", "[4]", "[2]"}, "[4]");
}

TEST(SparseReduce, GradientsMatchFiniteDifferences) {
  const Tensor values = Tensor::Vector<double>({2.0, 1.0, -3.0});
  const auto input = [](const Scope& s, Output v) {
    return SparseTensor{Const(s, Input().indices), v, Const(s, Input().shape)};
  };
  const Tensor axes[] = {Axes({1}), Axes({0}), Axes({-1, 0}), Axes({}), Tensor::Scalar<int32_t>(1)};
  for (const auto& op : {SparseReduceSum, SparseReduceMax}) {
    for (const Tensor& a : axes) {
      for (const bool keep_dims : {false, true}) {
        ExpectGradientsMatch(
            [&](const Scope& s, const std::vector<Output>& in) {
              return op(s, input(s, in[0]), Const(s, a), {.keep_dims = keep_dims});
            },
            {values});
      }
    }
  }
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        const Output indices = Const(s, Tensor::Of<int64_t>({{0, 0}, {0, 2}, {1, 1}}));
        return SparseSoftmax(s, {indices, in[0], Const(s, Input().shape)}).values;
      },
      {values});
}

}  // namespace
}  // namespace millrace
