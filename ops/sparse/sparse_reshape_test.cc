// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_reshape.h"

#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are reshaped as TensorFlow does; wrong indices and shapes are
//   refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

OpCall Reshape(Tensor indices, Tensor shape, Tensor new_shape) {
  return OpCall("SparseReshape")
      .Input(std::move(indices))
      .Input(std::move(shape))
      .Input(std::move(new_shape));
}
OpCall Reorder(Tensor indices, Tensor values, Tensor shape) {
  return OpCall("SparseReorder")
      .Input(std::move(indices))
      .Input(std::move(values))
      .Input(std::move(shape));
}

void ExpectOutputs(const OpCall& call, const Tensor& first, const Tensor& second) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
  ExpectTensorEqual(out[0], first);
  ExpectTensorEqual(out[1], second);
}

TEST(SparseReshape, KeepsRowMajorPlaces) {
  // The example of TensorFlow's documentation.
  const Tensor indices =
      Tensor::Of<int64_t>({{0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {1, 0, 0}, {1, 2, 3}});
  ExpectOutputs(Reshape(indices, Ints({2, 3, 6}), Ints({9, -1})),
                Tensor::Of<int64_t>({{0, 0}, {0, 1}, {1, 2}, {4, 2}, {8, 1}}), Ints({9, 4}));
  ExpectOutputs(Reshape(indices, Ints({2, 3, 6}), Ints({2, 3, 6})), indices, Ints({2, 3, 6}));
  ExpectOutputs(Reshape(indices, Ints({2, 3, 6}), Ints({36})),
                Tensor::Of<int64_t>({{0}, {1}, {6}, {18}, {33}}), Ints({36}));
  // To a scalar and back.
  ExpectOutputs(Reshape(Tensor::Of<int64_t>({{0, 0}}), Ints({1, 1}), Ints({})),
                TensorOf<int64_t>({1, 0}, {}), Ints({}));
  ExpectOutputs(Reshape(TensorOf<int64_t>({1, 0}, {}), Ints({}), Ints({1, -1})),
                Tensor::Of<int64_t>({{0, 0}}), Ints({1, 1}));
  // Nothing is in an empty tensor.
  ExpectOutputs(Reshape(TensorOf<int64_t>({0, 2}, {}), Ints({0, 5}), Ints({3, -1})),
                TensorOf<int64_t>({0, 2}, {}), Ints({3, 0}));
  // More elements than any dense tensor has.
  const int64_t many = int64_t{1} << 31;
  ExpectOutputs(Reshape(TensorOf<int64_t>({1, 2}, {many - 1, 5}), Ints({many, many}), Ints({-1})),
                TensorOf<int64_t>({1, 1}, {(many - 1) * many + 5}), Ints({many * many}));
}

TEST(SparseReshape, RefusesShapesThatDoNotFit) {
  const Tensor indices = Tensor::Of<int64_t>({{0, 0}, {1, 3}});
  ExpectOpError(Reshape(indices, Ints({2, 3}), Ints({3, 2})), kInvalid,
                "input_indices[1] = [1,3] is out of bounds: need 0 <= index < [2,3]");
  ExpectOpError(Reshape(indices, Ints({2, 4}), Ints({3, 3})), kInvalid,
                "new_shape must make as many elements as input_shape [2,4], got [3,3]");
  ExpectOpError(Reshape(indices, Ints({2, 4}), Ints({3, -1})), kInvalid,
                "new_shape must make as many elements as input_shape [2,4], got [3,-1]");
  ExpectOpError(Reshape(indices, Ints({2, 4}), Ints({0, -1})), kInvalid, "got [0,-1]");
  ExpectOpError(Reshape(indices, Ints({2, 4}), Ints({-1, -1})), kInvalid,
                "new_shape must have at most one -1");
  ExpectOpError(Reshape(indices, Ints({2, 4}), Ints({-2, 4})), kInvalid,
                "new_shape[0] must be >= -1, got -2");
  ExpectOpError(Reshape(indices, Ints({-2, 4}), Ints({8})), kInvalid,
                "input_shape[0] must be >= 0, got -2");
  const int64_t huge = int64_t{1} << 40;
  ExpectOpError(Reshape(indices, Ints({huge, huge}), Ints({8})), kInvalid,
                "input_shape must have fewer than 2^63 elements");
  ExpectOpError(Reshape(indices, Ints({2, 4}), Ints({huge, huge})), kInvalid,
                "new_shape must have fewer than 2^63 elements");
  ExpectOpError(Reshape(Ints({0, 1}), Ints({2, 4}), Ints({8})), kInvalid,
                "input_indices must be a matrix, got shape [2]");
  ExpectOpError(Reshape(indices, Ints({2, 4, 1}), Ints({8})), kInvalid,
                "input_indices must have one column for each of the 3 dimensions of input_shape, "
                "got shape [2,2]");
  EXPECT_SHAPE("SparseReshape", {}, {"[?,2]", "[2]", "[3]"}, "[?,3];[3]");
  EXPECT_SHAPE("SparseReshape", {}, {"<unknown>", "<unknown>", "<unknown>"}, "[?,?];[?]");
  EXPECT_SHAPE_ERROR("SparseReshape", {}, {"[?,2]", "[3]", "[3]"}, "one column for each");
  EXPECT_SHAPE_ERROR("SparseReshape", {}, {"[?,2]", "[2]", "[]"}, "new_shape");
}

TEST(SparseReorder, SortsPlacesAndKeepsTheOrderWithinOne) {
  const Tensor shape = Ints({2, 3});
  ExpectOutputs(Reorder(Tensor::Of<int64_t>({{1, 2}, {0, 1}, {1, 0}, {0, 1}}),
                        Tensor::Of({"d", "a", "c", "b"}), shape),
                Tensor::Of<int64_t>({{0, 1}, {0, 1}, {1, 0}, {1, 2}}),
                Tensor::Of({"a", "b", "c", "d"}));
  const Tensor sorted = Tensor::Of<int64_t>({{0, 1}, {1, 0}});
  ExpectOutputs(Reorder(sorted, Tensor::Of<float>({1, 2}), shape), sorted,
                Tensor::Of<float>({1, 2}));
  ExpectOutputs(Reorder(TensorOf<int64_t>({0, 2}, {}), TensorOf<bool>({0}, {}), shape),
                TensorOf<int64_t>({0, 2}, {}), TensorOf<bool>({0}, {}));
  ExpectOpError(Reorder(Tensor::Of<int64_t>({{0, -1}}), Tensor::Of<float>({1}), shape), kInvalid,
                "input_indices[0] = [0,-1] is out of bounds: need 0 <= index < [2,3]");
  ExpectOpError(Reorder(sorted, Tensor::Of<float>({1}), shape), kInvalid,
                "input_indices must have one row for each of the 1 input_values, got shape [2,2]");
  ExpectOpError(Reorder(sorted, Tensor::Of<float>({{1, 2}}), shape), kInvalid,
                "input_values must be a vector, got shape [1,2]");
  EXPECT_SHAPE("SparseReorder", {}, {"[?,2]", "[4]", "[?]"}, "[4,2];[4]");
}

TEST(SparseReorder, GradientMatchesFiniteDifferences) {
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        const Output indices = Const(s, Tensor::Of<int64_t>({{1, 2}, {0, 1}, {1, 0}, {0, 0}}));
        return SparseReorder(s, {indices, in[0], Const<int64_t>(s, {2, 3})}).values;
      },
      {Tensor::Vector<double>({1.0, 2.0, -3.0, 4.0})});
}

}  // namespace
}  // namespace millrace
