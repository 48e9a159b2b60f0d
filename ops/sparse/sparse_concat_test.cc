// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_concat.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are concatenated as TensorFlow does; wrong indices and shapes are
//   refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }
Tensor NoIndices(int64_t rank) { return TensorOf<int64_t>({0, rank}, {}); }

struct Sparse {
  Tensor indices, values, shape;
};

OpCall Concat(const std::vector<Sparse>& inputs, int64_t axis) {
  std::vector<OpInput> indices, values, shapes;
  for (const Sparse& s : inputs) {
    indices.push_back(s.indices);
    values.push_back(s.values);
    shapes.push_back(s.shape);
  }
  return OpCall("SparseConcat")
      .Inputs(indices)
      .Inputs(values)
      .Inputs(shapes)
      .Attr("concat_dim", axis);
}
OpCall Split(int64_t axis, const Sparse& s, int64_t n) {
  return OpCall("SparseSplit")
      .Input(Tensor::Scalar(axis))
      .Input(s.indices)
      .Input(s.values)
      .Input(s.shape)
      .Attr("num_split", n);
}
OpCall Slice(const Sparse& s, Tensor start, Tensor size) {
  return OpCall("SparseSlice")
      .Input(s.indices)
      .Input(s.values)
      .Input(s.shape)
      .Input(std::move(start))
      .Input(std::move(size));
}

void ExpectOutputs(const OpCall& call, const std::vector<Tensor>& expected) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
  ASSERT_EQ(out.size(), expected.size());
  for (size_t i = 0; i < out.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectTensorEqual(out[i], expected[i]);
  }
}

// [[. . a] [b c .]] and [[. d .] [e . .]], TensorFlow's example.
Sparse A() {
  return {Tensor::Of<int64_t>({{0, 2}, {1, 0}, {1, 1}}), Tensor::Of({"a", "b", "c"}), Ints({2, 3})};
}
Sparse B() { return {Tensor::Of<int64_t>({{0, 1}, {0, 2}}), Tensor::Of({"d", "e"}), Ints({2, 4})}; }

TEST(SparseConcat, PutsInputsBehindEachOther) {
  for (const int64_t axis : {1, -1}) {
    ExpectOutputs(Concat({A(), B()}, axis),
                  {Tensor::Of<int64_t>({{0, 2}, {0, 4}, {0, 5}, {1, 0}, {1, 1}}),
                   Tensor::Of({"a", "d", "e", "b", "c"}), Ints({2, 7})});
  }
  ExpectOutputs(Concat({A(), A()}, 0),
                {Tensor::Of<int64_t>({{0, 2}, {1, 0}, {1, 1}, {2, 2}, {3, 0}, {3, 1}}),
                 Tensor::Of({"a", "b", "c", "a", "b", "c"}), Ints({4, 3})});
  // Inputs without elements, without size, without order.
  const Sparse none = {NoIndices(2), TensorOf<std::string>({0}, {}), Ints({2, 0})};
  ExpectOutputs(Concat({none, A(), none}, 1), {A().indices, A().values, A().shape});
  const Sparse mixed = {Tensor::Of<int64_t>({{1, 1}, {0, 2}, {1, 0}}), Tensor::Of({"c", "a", "b"}),
                        Ints({2, 3})};
  ExpectOutputs(Concat({none, mixed}, 1), {A().indices, A().values, A().shape});
  const Sparse flat = {NoIndices(2), TensorOf<std::string>({0}, {}), Ints({2, 0})};
  ExpectOutputs(Concat({flat, flat}, 0),
                {NoIndices(2), TensorOf<std::string>({0}, {}), Ints({4, 0})});
}

TEST(SparseConcat, RefusesInputsThatDoNotFit) {
  ExpectOpError(Concat({A(), B()}, 0), kInvalid,
                "input 1: shape[1] must be 3 as in the inputs before it, got 4");
  ExpectOpError(Concat({A(), B()}, 2), kInvalid, "");
  Sparse bad = B();
  bad.shape = Ints({2, 2});
  ExpectOpError(Concat({A(), bad}, 1), kInvalid,
                "input 1: indices[1] = [0,2] is out of bounds: need 0 <= index < [2,2]");
  bad = {Tensor::Of<int64_t>({{0}}), Tensor::Of({"x"}), Ints({2})};
  ExpectOpError(Concat({A(), bad}, 1), kInvalid,
                "input 1: must have rank 2 as the inputs before it, got 1");
  bad = A();
  bad.values = Tensor::Of({"a"});
  ExpectOpError(Concat({A(), bad}, 1), kInvalid, "input 1: indices must have one row for each of");
  bad = A();
  bad.shape = Ints({2, std::numeric_limits<int64_t>::max()});
  ExpectOpError(Concat({bad, bad}, 1), kInvalid, "must have fewer than 2^63 elements");
  ExpectOpError(Concat({bad, A()}, 1), kInvalid, "must have fewer than 2^63 elements");
  bad.shape = Ints({2, -1});
  ExpectOpError(Concat({A(), bad}, 1), kInvalid, "input 1: shape[1] must be >= 0, got -1");
  EXPECT_SHAPE("SparseConcat", {{"N", int64_t{2}}, {"concat_dim", int64_t{0}}},
               {"[3,2]", "[4,?]", "[?]", "[?]", "[?]", "[?]"}, "[7,2];[7];[2]");
  EXPECT_SHAPE("SparseConcat", {{"N", int64_t{2}}, {"concat_dim", int64_t{0}}},
               {"[3,2]", "[?,?]", "[?]", "[?]", "[?]", "[?]"}, "[?,2];[?];[2]");
}

TEST(SparseSplit, CutsAsEvenlyAsItGoes) {
  // [[. a . b .] [c . . d e]] along columns: 3 + 2.
  const Sparse input = {Tensor::Of<int64_t>({{0, 1}, {0, 3}, {1, 0}, {1, 3}, {1, 4}}),
                        Tensor::Of({"a", "b", "c", "d", "e"}), Ints({2, 5})};
  for (const int64_t axis : {1, -1}) {
    ExpectOutputs(
        Split(axis, input, 2),
        {Tensor::Of<int64_t>({{0, 1}, {1, 0}}), Tensor::Of<int64_t>({{0, 0}, {1, 0}, {1, 1}}),
         Tensor::Of({"a", "c"}), Tensor::Of({"b", "d", "e"}), Ints({2, 3}), Ints({2, 2})});
  }
  ExpectOutputs(Split(0, input, 1), {input.indices, input.values, input.shape});
  ExpectOutputs(Split(0, {NoIndices(1), TensorOf<float>({0}, {}), Ints({2})}, 2),
                {NoIndices(1), NoIndices(1), TensorOf<float>({0}, {}), TensorOf<float>({0}, {}),
                 Ints({1}), Ints({1})});
  ExpectOpError(Split(0, input, 3), kInvalid,
                "num_split must be at most 2, the size of dimension 0, got 3");
  ExpectOpError(Split(2, input, 1), kInvalid, "");
  Sparse bad = input;
  bad.shape = Ints({2, 4});
  ExpectOpError(Split(0, bad, 1), kInvalid,
                "indices[4] = [1,4] is out of bounds: need 0 <= index < [2,4]");
  EXPECT_SHAPE("SparseSplit", {{"num_split", int64_t{2}}}, {"[]", "[?,3]", "[?]", "[?]"},
               "[?,3];[?,3];[?];[?];[3];[3]");
}

TEST(SparseSlice, TakesWhatLiesInTheBox) {
  const Sparse input = {Tensor::Of<int64_t>({{0, 1}, {0, 3}, {1, 0}, {1, 3}, {1, 4}}),
                        Tensor::Of({"a", "b", "c", "d", "e"}), Ints({2, 5})};
  ExpectOutputs(
      Slice(input, Ints({0, 1}), Ints({2, 3})),
      {Tensor::Of<int64_t>({{0, 0}, {0, 2}, {1, 2}}), Tensor::Of({"a", "b", "d"}), Ints({2, 3})});
  // More than there is.
  const int64_t max = std::numeric_limits<int64_t>::max();
  ExpectOutputs(Slice(input, Ints({1, 3}), Ints({5, max})),
                {Tensor::Of<int64_t>({{0, 0}, {0, 1}}), Tensor::Of({"d", "e"}), Ints({1, 2})});
  ExpectOutputs(Slice(input, Ints({2, 0}), Ints({1, 5})),
                {NoIndices(2), TensorOf<std::string>({0}, {}), Ints({0, 5})});
  ExpectOpError(Slice(input, Ints({-1, 0}), Ints({1, 5})), kInvalid,
                "start[0] must be >= 0, got -1");
  ExpectOpError(Slice(input, Ints({0, 0}), Ints({1, -1})), kInvalid,
                "size[1] must be >= 0, got -1");
  ExpectOpError(Slice(input, Ints({0}), Ints({1, 1})), kInvalid,
                "start must have one element for each of the 2 dimensions, got 1");
  ExpectOpError(Slice(input, Ints({0, 0}), Ints({1})), kInvalid,
                "size must have one element for each of the 2 dimensions, got 1");
  EXPECT_SHAPE("SparseSlice", {}, {"[?,?]", "[?]", "[?]", "[2]", "[?]"}, "[?,2];[?];[2]");
}

TEST(SparseSliceGrad, RefusesElementsThatWereNotThere) {
  const auto call = [](Tensor grad, Tensor inputs, Tensor start, Tensor outputs) {
    return OpCall("SparseSliceGrad")
        .Input(std::move(grad))
        .Input(std::move(inputs))
        .Input(std::move(start))
        .Input(std::move(outputs));
  };
  const Tensor inputs = Tensor::Of<int64_t>({{0, 1}, {0, 3}, {1, 0}});
  ExpectTensorEqual(RunOp1(call(Tensor::Of<float>({5, 7}), inputs, Ints({0, 1}),
                                Tensor::Of<int64_t>({{0, 0}, {0, 2}}))),
                    Tensor::Of<float>({5, 7, 0}));
  ExpectTensorEqual(RunOp1(call(TensorOf<float>({0}, {}), inputs, Ints({0, 1}), NoIndices(2))),
                    Tensor::Of<float>({0, 0, 0}));
  ExpectOpError(
      call(Tensor::Of<float>({5, 7}), inputs, Ints({0, 1}), Tensor::Of<int64_t>({{0, 2}, {0, 0}})),
      kInvalid, "output_indices[1] must be one of input_indices less input_start");
  ExpectOpError(
      call(Tensor::Of<float>({5}), inputs, Ints({0, 1}), Tensor::Of<int64_t>({{0, 2}, {0, 0}})),
      kInvalid, "backprop_val_grad must have one element for each of the 2 output_indices");
  ExpectOpError(call(Tensor::Of<float>({5}), inputs, Ints({0, 1}), Tensor::Of<int64_t>({{0}})),
                kInvalid, "output_indices must have 2 columns as input_indices, got 1");
  EXPECT_SHAPE("SparseSliceGrad", {}, {"[?]", "[7,2]", "[2]", "[?,2]"}, "[7]");
}

TEST(SparseConcat, GradientsMatchFiniteDifferences) {
  const Tensor a = Tensor::Vector<double>({1.5, -2.0, 3.0}), b = Tensor::Vector<double>({0.5, 4.0});
  const auto sparse = [](const Scope& s, const Sparse& parts, Output values) {
    return SparseTensor{Const(s, parts.indices), values, Const(s, parts.shape)};
  };
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        // Not an order that is its own inverse.
        return SparseConcat(
                   s, {sparse(s, A(), in[0]), sparse(s, B(), in[1]), sparse(s, A(), in[2])}, 1)
            .values;
      },
      {a, b, Tensor::Vector<double>({7, -1, 0.25})});
  // Both parts of a split, and one alone.
  for (const size_t parts : {2u, 1u}) {
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          std::vector<Output> values;
          for (const SparseTensor& part :
               SparseSplit(s, Const<int64_t>(s, 1), sparse(s, A(), in[0]), 2)) {
            values.push_back(part.values);
          }
          values.resize(parts);
          return values;
        },
        {a});
  }
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        return SparseSlice(s, sparse(s, A(), in[0]), Const<int64_t>(s, {0, 1}),
                           Const<int64_t>(s, {2, 2}))
            .values;
      },
      {a});
}

}  // namespace
}  // namespace millrace
