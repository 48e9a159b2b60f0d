// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_to_dense.h"

#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are made dense as TensorFlow does; wrong indices and shapes are
//   refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall ToDense(Tensor indices, Tensor shape, Tensor values, Tensor default_value,
               bool validate = true) {
  return OpCall("SparseToDense")
      .Input(std::move(indices))
      .Input(std::move(shape))
      .Input(std::move(values))
      .Input(std::move(default_value))
      .Attr("validate_indices", validate);
}

TEST(SparseToDense, WritesValuesIntoTheirPlaces) {
  const Tensor shape = Tensor::Of<int64_t>({2, 3});
  ExpectTensorEqual(RunOp1(ToDense(Tensor::Of<int64_t>({{0, 1}, {1, 0}}), shape,
                                   Tensor::Of<float>({5, 7}), Tensor::Scalar(-1.0f))),
                    Tensor::Of<float>({{-1, 5, -1}, {7, -1, -1}}));
  // A vector of indices, one value for all, int32.
  ExpectTensorEqual(RunOp1(ToDense(Tensor::Of<int32_t>({1, 3}), Tensor::Of<int32_t>({5}),
                                   Tensor::Scalar("x"), Tensor::Scalar(""))),
                    Tensor::Of({"", "x", "", "x", ""}));
  // A scalar index.
  ExpectTensorEqual(RunOp1(ToDense(Tensor::Scalar<int32_t>(2), Tensor::Of<int32_t>({3}),
                                   Tensor::Scalar(true), Tensor::Scalar(false))),
                    Tensor::Of({false, false, true}));
  // Without indices, and of an empty shape.
  ExpectTensorEqual(RunOp1(ToDense(TensorOf<int64_t>({0, 2}, {}), shape, TensorOf<float>({0}, {}),
                                   Tensor::Scalar(2.0f))),
                    Tensor::Of<float>({{2, 2, 2}, {2, 2, 2}}));
  ExpectTensorEqual(RunOp1(ToDense(TensorOf<int64_t>({0, 2}, {}), Tensor::Of<int64_t>({0, 3}),
                                   TensorOf<float>({0}, {}), Tensor::Scalar(2.0f))),
                    TensorOf<float>({0, 3}, {}));
  // Of several values the last one stays.
  ExpectTensorEqual(
      RunOp1(ToDense(Tensor::Of<int64_t>({2, 0, 2}), Tensor::Of<int64_t>({3}),
                     Tensor::Of<int32_t>({1, 2, 3}), Tensor::Scalar<int32_t>(0), false)),
      Tensor::Of<int32_t>({2, 0, 3}));
}

TEST(SparseToDense, RefusesIndicesThatDoNotFit) {
  const Tensor shape = Tensor::Of<int64_t>({2, 3});
  const Tensor two = Tensor::Of<float>({5, 7}), none = Tensor::Scalar(0.0f);
  const auto indices = [](int64_t a, int64_t b, int64_t c, int64_t d) {
    return Tensor::Of<int64_t>({{a, b}, {c, d}});
  };
  for (const bool validate : {true, false}) {
    ExpectOpError(ToDense(indices(0, 0, 2, 0), shape, two, none, validate), kInvalid,
                  "sparse_indices[1] = [2,0] is out of bounds: need 0 <= index < [2,3]");
  }
  ExpectOpError(
      ToDense(indices(1, 0, 0, 2), shape, two, none), kInvalid,
      "sparse_indices[1] = [0,2] is out of order, behind [1,0]; SparseReorder sorts them");
  ExpectOpError(ToDense(indices(1, 0, 1, 0), shape, two, none), kInvalid,
                "sparse_indices[1] = [1,0] is repeated");
  ExpectOpError(ToDense(indices(0, 0, 1, 0), Tensor::Of<int64_t>({2, 3, 1}), two, none), kInvalid,
                "output_shape must have 2 dimensions, as many as the indices have");
  ExpectOpError(ToDense(indices(0, 0, 1, 0), shape, Tensor::Of<float>({1, 2, 3}), none), kInvalid,
                "sparse_values must be a scalar or have one element for each of the 2 indices");
  ExpectOpError(ToDense(indices(0, 0, 1, 0), shape, Tensor::Of<float>({{1, 2}}), none), kInvalid,
                "sparse_values must be a scalar or a vector, got shape [1,2]");
  ExpectOpError(ToDense(indices(0, 0, 1, 0), shape, two, Tensor::Of<float>({0})), kInvalid,
                "default_value");
  ExpectOpError(ToDense(indices(0, 0, 1, 0), Tensor::Of<int64_t>({2, -3}), two, none), kInvalid,
                "output_shape[1] must be >= 0, got -3");
  const int64_t huge = int64_t{1} << 39;
  ExpectOpError(ToDense(indices(0, 0, 1, 0), Tensor::Of<int64_t>({huge, huge}), two, none),
                kInvalid, "");
  ExpectOpError(ToDense(Tensor::Of<int64_t>({{{0}}}), shape, two, none), kInvalid,
                "sparse_indices must have rank at most 2");
  EXPECT_SHAPE("SparseToDense", {}, {"[?,2]", Tensor::Of<int64_t>({2, 3}), "[?]", "[]"}, "[2,3]");
  EXPECT_SHAPE("SparseToDense", {{"Tindices", DT_INT64}}, {"[?,2]", "[2]", "[?]", "[]"}, "[?,?]");
}

TEST(SparseToDense, GradientsMatchFiniteDifferences) {
  const auto build = [](const Tensor& indices, bool validate) {
    return [=](const Scope& s, const std::vector<Output>& in) {
      return SparseToDense(s, Const(s, indices), Const<int64_t>(s, {2, 3}), in[0], in[1],
                           {.validate_indices = validate});
    };
  };
  const Tensor values = Tensor::Vector<double>({1.5, -2.0}), rest = Tensor::Scalar(0.5);
  const Tensor sorted = Tensor::Of<int64_t>({{0, 1}, {1, 2}});
  ExpectGradientsMatch(build(sorted, true), {values, rest});
  ExpectGradientsMatch(build(sorted, true), {Tensor::Scalar(3.0), rest});
  ExpectGradientsMatch(build(Tensor::Of<int64_t>({{1, 1}, {0, 1}}), false), {values, rest});
  // The first value is written over.
  ExpectGradientsMatch(build(Tensor::Of<int64_t>({{1, 1}, {1, 1}}), false), {values, rest});
}

TEST(DenseToSparse, TakesWhatDiffersFromTheMissingValue) {
  Scope s;
  const Output dense = Const(s, Tensor::Of({{"a", ""}, {"", "b"}}));
  const SparseTensor sparse = DenseToSparse(s, dense, Const(s, ""));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       EvaluateGraph(s, {},
                                     {sparse.indices, sparse.values, sparse.dense_shape,
                                      SparseTensorToDense(s, sparse, Const(s, "-"))}));
  ExpectTensorEqual(out[0], Tensor::Of<int64_t>({{0, 0}, {1, 1}}));
  ExpectTensorEqual(out[1], Tensor::Of({"a", "b"}));
  ExpectTensorEqual(out[2], Tensor::Of<int64_t>({2, 2}));
  ExpectTensorEqual(out[3], Tensor::Of({{"a", "-"}, {"-", "b"}}));
}

}  // namespace
}  // namespace millrace
