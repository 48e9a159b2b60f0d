// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_fill_empty_rows.h"

#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are filled up in empty rows as TensorFlow does; wrong indices and
//   shapes are refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Fill(Tensor indices, Tensor values, Tensor shape, Tensor default_value) {
  return OpCall("SparseFillEmptyRows")
      .Input(std::move(indices))
      .Input(std::move(values))
      .Input(std::move(shape))
      .Input(std::move(default_value));
}

void ExpectOutputs(const OpCall& call, const std::vector<Tensor>& expected) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
  ASSERT_EQ(out.size(), expected.size());
  for (size_t i = 0; i < out.size(); ++i) ExpectTensorEqual(out[i], expected[i]);
}

TEST(SparseFillEmptyRows, GivesEveryRowAnElement) {
  const Tensor shape = Tensor::Of<int64_t>({5, 6}), none = Tensor::Scalar<int64_t>(-1);
  // The example of TensorFlow's documentation.
  ExpectOutputs(Fill(Tensor::Of<int64_t>({{0, 1}, {0, 3}, {2, 0}, {3, 1}}),
                     Tensor::Of({"a", "b", "c", "d"}), shape, Tensor::Scalar("-")),
                {Tensor::Of<int64_t>({{0, 1}, {0, 3}, {1, 0}, {2, 0}, {3, 1}, {4, 0}}),
                 Tensor::Of({"a", "b", "-", "c", "d", "-"}),
                 Tensor::Of({false, true, false, false, true}), Tensor::Of<int64_t>({0, 1, 3, 4})});
  // Rows in any order; elements of a row stay in theirs.
  ExpectOutputs(
      Fill(Tensor::Of<int64_t>({{2, 4}, {0, 1}, {2, 0}}), Tensor::Of<int64_t>({7, 8, 9}),
           Tensor::Of<int64_t>({3, 6}), none),
      {Tensor::Of<int64_t>({{0, 1}, {1, 0}, {2, 4}, {2, 0}}), Tensor::Of<int64_t>({8, -1, 7, 9}),
       Tensor::Of({false, true, false}), Tensor::Of<int64_t>({2, 0, 3})});
  // All full and in order.
  const Tensor full = Tensor::Of<int64_t>({{0, 3}, {1, 1}});
  ExpectOutputs(
      Fill(full, Tensor::Of<float>({1, 2}), Tensor::Of<int64_t>({2, 6}), Tensor::Scalar(0.0f)),
      {full, Tensor::Of<float>({1, 2}), Tensor::Of({false, false}), Tensor::Of<int64_t>({0, 1})});
  // All full, but not in order.
  ExpectOutputs(Fill(Tensor::Of<int64_t>({{1, 3}, {0, 1}}), Tensor::Of<float>({1, 2}),
                     Tensor::Of<int64_t>({2, 6}), Tensor::Scalar(0.0f)),
                {Tensor::Of<int64_t>({{0, 1}, {1, 3}}), Tensor::Of<float>({2, 1}),
                 Tensor::Of({false, false}), Tensor::Of<int64_t>({1, 0})});
  // No element at all, no row at all.
  ExpectOutputs(Fill(TensorOf<int64_t>({0, 2}, {}), TensorOf<int64_t>({0}, {}),
                     Tensor::Of<int64_t>({2, 0}), none),
                {Tensor::Of<int64_t>({{0, 0}, {1, 0}}), Tensor::Of<int64_t>({-1, -1}),
                 Tensor::Of({true, true}), TensorOf<int64_t>({0}, {})});
  ExpectOutputs(Fill(TensorOf<int64_t>({0, 2}, {}), TensorOf<int64_t>({0}, {}),
                     Tensor::Of<int64_t>({0, 5}), none),
                {TensorOf<int64_t>({0, 2}, {}), TensorOf<int64_t>({0}, {}), TensorOf<bool>({0}, {}),
                 TensorOf<int64_t>({0}, {})});
}

TEST(SparseFillEmptyRows, RefusesRowsThatAreNotThere) {
  const Tensor one = Tensor::Of<float>({1}), none = Tensor::Scalar(0.0f);
  const Tensor shape = Tensor::Of<int64_t>({5, 6});
  for (const int64_t row : {int64_t{5}, int64_t{-1}}) {
    ExpectOpError(
        Fill(TensorOf<int64_t>({1, 2}, {row, 0}), one, shape, none), kInvalid,
        absl::StrCat("indices[0,0] must be in [0, 5), the rows of dense_shape, got ", row));
  }
  ExpectOpError(Fill(Tensor::Of<int64_t>({{0, 0}}), one, Tensor::Of<int64_t>({0, 6}), none),
                kInvalid, "must be in [0, 0)");
  ExpectOpError(Fill(TensorOf<int64_t>({1, 0}, {}), one, TensorOf<int64_t>({0}, {}), none),
                kInvalid, "dense_shape must have at least one dimension");
  ExpectOpError(Fill(Tensor::Of<int64_t>({{0, 0}}), one, Tensor::Of<int64_t>({-2, 6}), none),
                kInvalid, "dense_shape[0] must be >= 0, got -2");
  ExpectOpError(Fill(Tensor::Of<int64_t>({{0, 0}}), one, Tensor::Of<int64_t>({-1, 6}), none),
                kInvalid, "dense_shape[0] must be >= 0, got -1");
  ExpectOpError(Fill(Tensor::Of<int64_t>({{0, 0}}), one, shape, one), kInvalid, "default_value");
  ExpectOpError(Fill(Tensor::Of<int64_t>({{0, 0}}), Tensor::Of<float>({1, 2}), shape, none),
                kInvalid, "indices must have one row for each of the 2 values");
  // More rows than there is memory for.
  const Status status = RunOp(Fill(Tensor::Of<int64_t>({{0, 0}}), one,
                                   TensorOf<int64_t>({2}, {int64_t{1} << 39, 1}), none))
                            .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_SHAPE("SparseFillEmptyRows", {}, {"[7,2]", "[?]", Tensor::Of<int64_t>({4, 9}), "[]"},
               "[?,2];[?];[4];[7]");
  EXPECT_SHAPE("SparseFillEmptyRows", {}, {"[?,?]", "[?]", "[?]", "[]"}, "[?,?];[?];[?];[?]");
}

TEST(SparseFillEmptyRows, GradientsMatchFiniteDifferences) {
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        const Output indices = Const(s, Tensor::Of<int64_t>({{3, 0}, {1, 1}, {1, 0}}));
        return SparseFillEmptyRows(s, {indices, in[0], Const<int64_t>(s, {5, 2})}, in[1])
            .output.values;
      },
      {Tensor::Vector<double>({1.0, -2.0, 0.5}), Tensor::Scalar(4.0)});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) -> std::vector<Output> {
        const auto grads = SparseFillEmptyRowsGrad(s, Const<int64_t>(s, {3, 0}), in[0]);
        return {grads.d_values, grads.d_default_value};
      },
      {Tensor::Vector<double>({1.0, -2.0, 0.5, 3.0})});
}

TEST(SparseFillEmptyRowsGrad, RefusesPlacesThatAreNotThere) {
  const auto call = [](Tensor map, Tensor grad) {
    return OpCall("SparseFillEmptyRowsGrad").Input(std::move(map)).Input(std::move(grad));
  };
  ExpectOutputs(call(Tensor::Of<int64_t>({2, 0}), Tensor::Of<int32_t>({1, 2, 3, 4})),
                {Tensor::Of<int32_t>({3, 1}), Tensor::Scalar<int32_t>(6)});
  ExpectOutputs(call(TensorOf<int64_t>({0}, {}), TensorOf<float>({0}, {})),
                {TensorOf<float>({0}, {}), Tensor::Scalar(0.0f)});
  ExpectOpError(call(Tensor::Of<int64_t>({2}), Tensor::Of<float>({1, 2})), kInvalid,
                "reverse_index_map[0] must be in [0, 2), the elements of grad_values, got 2");
  ExpectOpError(call(Tensor::Of<int64_t>({{0}}), Tensor::Of<float>({1, 2})), kInvalid,
                "reverse_index_map");
  EXPECT_SHAPE("SparseFillEmptyRowsGrad", {}, {"[3]", "[?]"}, "[3];[]");
}

TEST(SparseRetain, LeavesElementsOut) {
  Scope s;
  const SparseTensor input = {Const(s, Tensor::Of<int64_t>({{0, 1}, {2, 0}, {2, 1}})),
                              Const(s, Tensor::Of({"a", "b", "c"})), Const<int64_t>(s, {3, 2})};
  const SparseTensor kept = SparseRetain(s, input, Const(s, Tensor::Of({true, false, true})));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       EvaluateGraph(s, {}, {kept.indices, kept.values, kept.dense_shape}));
  ExpectTensorEqual(out[0], Tensor::Of<int64_t>({{0, 1}, {2, 1}}));
  ExpectTensorEqual(out[1], Tensor::Of({"a", "c"}));
  ExpectTensorEqual(out[2], Tensor::Of<int64_t>({3, 2}));
}

}  // namespace
}  // namespace millrace
