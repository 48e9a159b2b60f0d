// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_add.h"

#include <cmath>
#include <complex>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are added as TensorFlow does; wrong indices and shapes are refused
//   by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

struct Sparse {
  Tensor indices, values, shape;
};
OpCall Call(const char* op, const Sparse& a) {
  return OpCall(op).Input(a.indices).Input(a.values).Input(a.shape);
}
OpCall Call(const char* op, const Sparse& a, const Sparse& b) {
  return Call(op, a).Input(b.indices).Input(b.values).Input(b.shape);
}
void ExpectOutputs(const OpCall& call, const std::vector<Tensor>& expected) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
  ASSERT_EQ(out.size(), expected.size());
  for (size_t i = 0; i < out.size(); ++i) ExpectTensorEqual(out[i], expected[i]);
}
Sparse A() {
  return {Tensor::Of<int64_t>({{0, 1}, {1, 0}, {2, 1}}), Tensor::Of<float>({1, 2, 3}),
          Ints({3, 2})};
}
Sparse B() {
  return {Tensor::Of<int64_t>({{0, 0}, {1, 0}, {2, 1}}), Tensor::Vector<float>({10, -1.5f, -3}),
          Ints({3, 2})};
}

TEST(SparseAdd, AddsWhereEitherHasAnElement) {
  ExpectOutputs(Call("SparseAdd", A(), B()).Input(Tensor::Scalar(0.0f)),
                {Tensor::Of<int64_t>({{0, 0}, {0, 1}, {1, 0}, {2, 1}}),
                 Tensor::Vector<float>({10, 1, 0.5f, 0}), Ints({3, 2})});
  // Sums below the threshold are left out, those of one alone, too.
  ExpectOutputs(Call("SparseAdd", A(), B()).Input(Tensor::Scalar(0.5f)),
                {Tensor::Of<int64_t>({{0, 0}, {0, 1}, {1, 0}}),
                 Tensor::Vector<float>({10, 1, 0.5f}), Ints({3, 2})});
  ExpectOutputs(Call("SparseAdd", A(), B()).Input(Tensor::Scalar(2.0f)),
                {Tensor::Of<int64_t>({{0, 0}}), Tensor::Of<float>({10}), Ints({3, 2})});
  const Sparse none = {TensorOf<int64_t>({0, 2}, {}), TensorOf<float>({0}, {}), Ints({3, 2})};
  ExpectOutputs(Call("SparseAdd", none, A()).Input(Tensor::Scalar(0.0f)),
                {A().indices, A().values, A().shape});
  ExpectOutputs(Call("SparseAdd", none, none).Input(Tensor::Scalar(0.0f)),
                {none.indices, none.values, none.shape});
  using C = std::complex<float>;
  const Sparse c = {Tensor::Of<int64_t>({{0}}), TensorOf<C>({1}, {{3, 4}}), Ints({1})};
  ExpectOutputs(Call("SparseAdd", c, c).Input(Tensor::Scalar(10.0f)),
                {c.indices, TensorOf<C>({1}, {{6, 8}}), c.shape});
  // The threshold of small integers has their type.
  const Sparse small = {Tensor::Of<int64_t>({{0}, {1}}), Tensor::Vector<int8_t>({3, 1}), Ints({2})};
  ExpectOutputs(Call("SparseAdd", small, small).Input(Tensor::Scalar<int8_t>(4)),
                {Tensor::Of<int64_t>({{0}}), Tensor::Vector<int8_t>({6}), Ints({2})});
  const Sparse half = {small.indices, Tensor::Vector<int16_t>({-300, 0}), Ints({2})};
  ExpectOutputs(Call("SparseAdd", half, half).Input(Tensor::Scalar<int16_t>(1)),
                {Tensor::Of<int64_t>({{0}}), Tensor::Vector<int16_t>({-600}), Ints({2})});
}

TEST(SparseAdd, RefusesOperandsThatDoNotFit) {
  const auto add = [](const Sparse& a, const Sparse& b) {
    return Call("SparseAdd", a, b).Input(Tensor::Scalar(0.0f));
  };
  Sparse bad = B();
  bad.shape = Ints({3, 3});
  ExpectOpError(add(A(), bad), kInvalid, "a_shape and b_shape must be equal, got [3,2] and [3,3]");
  bad = {Tensor::Of<int64_t>({{0}}), Tensor::Of<float>({1}), Ints({3})};
  ExpectOpError(add(A(), bad), kInvalid, "b_shape must have 2 dimensions as a_shape, got 1");
  bad = B();
  bad.indices = Tensor::Of<int64_t>({{1, 0}, {0, 0}, {2, 1}});
  ExpectOpError(add(A(), bad), kInvalid, "b_indices[1] = [0,0] is out of order, behind [1,0]");
  bad.indices = Tensor::Of<int64_t>({{0, 0}, {1, 0}, {2, 2}});
  ExpectOpError(add(bad, A()), kInvalid,
                "a_indices[2] = [2,2] is out of bounds: need 0 <= index < [3,2]");
  bad = B();
  bad.values = Tensor::Of<float>({1});
  ExpectOpError(add(A(), bad), kInvalid, "b_indices must have one row for each of the 1 b_values");
  ExpectOpError(Call("SparseAdd", A(), B()).Input(Tensor::Of<float>({0})), kInvalid, "thresh");
  EXPECT_SHAPE("SparseAdd", {}, {"[?,2]", "[?]", "[?]", "[?,?]", "[?]", "[?]", "[]"},
               "[?,2];[?];[2]");
}

TEST(SparseAddGrad, GivesNothingToSumsThatWereLeftOut) {
  const auto call = [](Tensor grad, Tensor sums) {
    return OpCall("SparseAddGrad")
        .Input(std::move(grad))
        .Input(A().indices)
        .Input(B().indices)
        .Input(std::move(sums));
  };
  ExpectOutputs(call(Tensor::Of<float>({5, 6, 7}), Tensor::Of<int64_t>({{0, 0}, {0, 1}, {1, 0}})),
                {Tensor::Of<float>({6, 7, 0}), Tensor::Of<float>({5, 7, 0})});
  ExpectOutputs(call(TensorOf<float>({0}, {}), TensorOf<int64_t>({0, 2}, {})),
                {Tensor::Of<float>({0, 0, 0}), Tensor::Of<float>({0, 0, 0})});
  ExpectOpError(call(Tensor::Of<float>({5}), TensorOf<int64_t>({0, 2}, {})), kInvalid,
                "backprop_val_grad must have one element for each of the 0 sum_indices, got 1");
  ExpectOpError(call(TensorOf<float>({0}, {}), TensorOf<int64_t>({0, 1}, {})), kInvalid,
                "must have equally many columns, got 2, 2 and 1");
  EXPECT_SHAPE("SparseAddGrad", {}, {"[?]", "[3,2]", "[?,2]", "[?,2]"}, "[3];[?]");
}

TEST(SparseSparse, TakesTheLargerOrSmallerOfBothAndOfZero) {
  const Sparse a = {Tensor::Of<int64_t>({{0}, {1}, {2}}), Tensor::Of<float>({-1, 2, 3}), Ints({4})};
  const Sparse b = {Tensor::Of<int64_t>({{2}, {3}}), Tensor::Of<float>({5, -7}), Ints({4})};
  const Tensor places = Tensor::Of<int64_t>({{0}, {1}, {2}, {3}});
  ExpectOutputs(Call("SparseSparseMaximum", a, b), {places, Tensor::Of<float>({0, 2, 5, 0})});
  ExpectOutputs(Call("SparseSparseMinimum", a, b), {places, Tensor::Of<float>({-1, 0, 3, -7})});
  const Sparse none = {TensorOf<int64_t>({0, 1}, {}), TensorOf<float>({0}, {}), Ints({4})};
  ExpectOutputs(Call("SparseSparseMinimum", none, none), {none.indices, none.values});
  ExpectOpError(Call("SparseSparseMaximum", a, A()), kInvalid, "b_shape must have 1 dimensions");
  EXPECT_SHAPE("SparseSparseMinimum", {}, {"[?,2]", "[?]", "[?]", "[?,?]", "[?]", "[?]"},
               "[?,2];[?]");
}

TEST(SparseTensorDenseAdd, AddsElementsToADenseTensor) {
  const Tensor dense = Tensor::Of<float>({{1, 2}, {3, 4}, {5, 6}});
  ExpectTensorEqual(RunOp1(Call("SparseTensorDenseAdd", A()).Input(dense)),
                    Tensor::Of<float>({{1, 3}, {5, 4}, {5, 9}}));
  // Indices of int32; several elements in one place.
  ExpectTensorEqual(RunOp1(OpCall("SparseTensorDenseAdd")
                               .Input(Tensor::Of<int32_t>({{1}, {0}, {1}}))
                               .Input(Tensor::Of<int32_t>({5, 6, 7}))
                               .Input(Tensor::Of<int32_t>({2}))
                               .Input(Tensor::Of<int32_t>({100, 200}))),
                    Tensor::Of<int32_t>({106, 212}));
  ExpectTensorEqual(RunOp1(Call("SparseTensorDenseAdd", {TensorOf<int64_t>({0, 1}, {}),
                                                         TensorOf<float>({0}, {}), Ints({0})})
                               .Input(TensorOf<float>({0}, {}))),
                    TensorOf<float>({0}, {}));
  ExpectOpError(Call("SparseTensorDenseAdd", A()).Input(Tensor::Of<float>({{1, 2}})), kInvalid,
                "a_shape must be the shape of b [1,2], got [3,2]");
  ExpectOpError(Call("SparseTensorDenseAdd", A()).Input(Tensor::Of<float>({1})), kInvalid,
                "b must have rank 2, got shape [1]");
  Sparse bad = A();
  bad.indices = Tensor::Of<int64_t>({{0, 1}, {1, 0}, {2, -1}});
  ExpectOpError(Call("SparseTensorDenseAdd", bad).Input(dense), kInvalid,
                "a_indices[2] = [2,-1] is out of bounds");
  EXPECT_SHAPE("SparseTensorDenseAdd", {{"Tindices", DT_INT64}}, {"[?,2]", "[?]", "[?]", "[3,?]"},
               "[3,?]");
}

TEST(SparseDenseCwise, BroadcastsTheDenseSide) {
  const Tensor row = Tensor::Of<float>({10, 20}), column = Tensor::Of<float>({{2}, {4}, {8}});
  ExpectTensorEqual(RunOp1(Call("SparseDenseCwiseAdd", A()).Input(row)),
                    Tensor::Of<float>({21, 12, 23}));
  ExpectTensorEqual(RunOp1(Call("SparseDenseCwiseMul", A()).Input(column)),
                    Tensor::Of<float>({2, 8, 24}));
  ExpectTensorEqual(RunOp1(Call("SparseDenseCwiseDiv", A()).Input(column)),
                    Tensor::Vector<float>({0.5f, 0.5f, 0.375f}));
  ExpectTensorEqual(RunOp1(Call("SparseDenseCwiseMul", A()).Input(Tensor::Scalar(3.0f))),
                    Tensor::Of<float>({3, 6, 9}));
  const Sparse ints = {Ints({0, 1}).Reshaped(Shape({2, 1})).value(), Tensor::Of<int32_t>({7, 9}),
                       Ints({2})};
  ExpectTensorEqual(RunOp1(Call("SparseDenseCwiseDiv", ints).Input(Tensor::Of<int32_t>({2, -2}))),
                    Tensor::Of<int32_t>({3, -4}));
  ExpectOpError(Call("SparseDenseCwiseDiv", ints).Input(Tensor::Of<int32_t>({2, 0})), kInvalid,
                "dense must not be 0 where an integer is divided by it");
  ExpectTensorEqual(RunOp1(Call("SparseDenseCwiseMul", {TensorOf<int64_t>({0, 2}, {}),
                                                        TensorOf<float>({0}, {}), Ints({0, 2})})
                               .Input(row)),
                    TensorOf<float>({0}, {}));
  ExpectOpError(Call("SparseDenseCwiseMul", A()).Input(Tensor::Of<float>({1, 2, 3})), kInvalid,
                "dense must be broadcast to sp_shape [3,2], got shape [3]");
  ExpectOpError(Call("SparseDenseCwiseMul", A()).Input(Tensor::Of<float>({{{1}}})), kInvalid,
                "dense must have at most 2 dimensions, those of sp_shape, got shape [1,1,1]");
  EXPECT_SHAPE("SparseDenseCwiseMul", {}, {"[5,2]", "[?]", "[?]", "[?]"}, "[5]");
}

TEST(SparseAdd, GradientsMatchFiniteDifferences) {
  const Tensor a = Tensor::Vector<double>({1.5, -2.0, 3.0}),
               b = Tensor::Vector<double>({0.5, 4.0, 1.0});
  const auto sparse = [](const Scope& s, const Sparse& parts, Output values) {
    return SparseTensor{Const(s, parts.indices), values, Const(s, parts.shape)};
  };
  for (const double thresh : {0.0, 1.0}) {
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return SparseAdd(s, sparse(s, A(), in[0]), sparse(s, B(), in[1]), Const(s, thresh))
              .values;
        },
        {a, b});
  }
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        return SparseTensorDenseAdd(s, sparse(s, A(), in[0]), in[1]);
      },
      {a, TensorOf<double>({3, 2}, {1, 2, 3, 4, 5, 6})});
  const Tensor dense[] = {TensorOf<double>({3, 2}, {1, 2, 3, 4, 5, 6}), Tensor::Scalar(3.0),
                          Tensor::Vector<double>({3.0, -2.0}),
                          TensorOf<double>({3, 1}, {1, -2, 3})};
  for (const auto& op : {SparseDenseCwiseAdd, SparseDenseCwiseMul, SparseDenseCwiseDiv}) {
    for (const Tensor& d : dense) {
      ExpectGradientsMatch(
          [&](const Scope& s, const std::vector<Output>& in) {
            return op(s, sparse(s, A(), in[0]), in[1]).values;
          },
          {a, d});
    }
    using C = std::complex<double>;
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return op(s, sparse(s, A(), in[0]), in[1]).values;
        },
        {TensorOf<C>({3}, {{1, 2}, {0.5, -1}, {2, 0}}), TensorOf<C>({2}, {{1, -2}, {0.5, 1}})});
  }
}

}  // namespace
}  // namespace millrace
