// SPDX-License-Identifier: Apache-2.0
#include "ops/array/reverse.h"

#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

// [[0 1 2 3], [10 11 12 13], [20 21 22 23]]
Tensor Grid() { return TensorOf<float>({3, 4}, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23}); }

TEST(Reverse, TurnsDimensionsAround) {
  ExpectTensorEqual(RunOp1(OpCall("ReverseV2").Input(Grid()).Input(Ints({1}))),
                    TensorOf<float>({3, 4}, {3, 2, 1, 0, 13, 12, 11, 10, 23, 22, 21, 20}));
  ExpectTensorEqual(RunOp1(OpCall("ReverseV2").Input(Grid()).Input(Ints({-2, 1}))),
                    TensorOf<float>({3, 4}, {23, 22, 21, 20, 13, 12, 11, 10, 3, 2, 1, 0}));
  ExpectOpError(OpCall("ReverseV2").Input(Grid()).Input(Ints({2})), kInvalid,
                "axis[0] must be in [-2, 2), got 2");
  ExpectOpError(OpCall("ReverseV2").Input(Grid()).Input(Ints({1, -1})), kInvalid,
                "axis must name a dimension once, got 1 twice");
  EXPECT_SHAPE("ReverseV2", {}, {"[2,?]", Ints({0})}, "[2,?]");
}

OpCall ReverseSequenceCall(const Tensor& input, const Tensor& lengths, int64_t seq, int64_t batch) {
  return OpCall("ReverseSequence")
      .Input(input)
      .Input(lengths)
      .Attr("seq_dim", seq)
      .Attr("batch_dim", batch);
}

TEST(ReverseSequence, TurnsTheBeginningOfEachAround) {
  ExpectTensorEqual(RunOp1(ReverseSequenceCall(Grid(), Tensor::Vector<int64_t>({0, 3, 4}), 1, 0)),
                    TensorOf<float>({3, 4}, {0, 1, 2, 3, 12, 11, 10, 13, 23, 22, 21, 20}));
  ExpectTensorEqual(RunOp1(ReverseSequenceCall(Grid(), Ints({1, 2, 3, 0}), 0, 1)),
                    TensorOf<float>({3, 4}, {0, 11, 22, 3, 10, 1, 12, 13, 20, 21, 2, 23}));
  // Dimensions between and behind: [seq 2, 2, batch 2, 1].
  const Tensor x = TensorOf<float>({2, 2, 2, 1}, {0, 1, 2, 3, 4, 5, 6, 7});
  ExpectTensorEqual(RunOp1(ReverseSequenceCall(x, Ints({2, 1}), 0, 2)),
                    TensorOf<float>({2, 2, 2, 1}, {4, 1, 6, 3, 0, 5, 2, 7}));
  ExpectTensorEqual(RunOp1(ReverseSequenceCall(x, Ints({2, 1}), 2, 0)),
                    TensorOf<float>({2, 2, 2, 1}, {1, 0, 3, 2, 4, 5, 6, 7}));
  ExpectTensorEqual(
      RunOp1(ReverseSequenceCall(TensorOf<std::string>({1, 2}, {"a", "b"}), Ints({2}), 1, 0)),
      TensorOf<std::string>({1, 2}, {"b", "a"}));
  const Tensor empty = TensorOf<float>({0, 3}, {});
  ExpectTensorEqual(RunOp1(ReverseSequenceCall(empty, Ints({}), 1, 0)), empty);
}

TEST(ReverseSequence, RefusesWhatIsNotLegal) {
  ExpectOpError(ReverseSequenceCall(Grid(), Ints({0, 5, 0}), 1, 0), kInvalid,
                "seq_lengths[1] must be in [0, 4], the size of dimension 1, got 5");
  ExpectOpError(ReverseSequenceCall(Grid(), Ints({0, 0, -1}), 1, 0), kInvalid, "seq_lengths[2]");
  ExpectOpError(ReverseSequenceCall(Grid(), Ints({0, 0}), 1, 0), kInvalid,
                "seq_lengths must have an element for each of the 3 of dimension 0, got shape [2]");
  ExpectOpError(ReverseSequenceCall(Grid(), Ints({0, 0, 0}), 2, 0), kInvalid,
                "seq_dim must be in [0, 2), the rank of the input, got 2");
  ExpectOpError(ReverseSequenceCall(Grid(), Ints({0, 0, 0}), 0, 0), kInvalid,
                "batch_dim must not be seq_dim, got 0 for both");
  EXPECT_SHAPE("ReverseSequence", {{"seq_dim", 1}}, {"[2,?]", "[?]"}, "[2,?]");
}

TEST(ReverseGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 3}, {1, -2, 3, 4, 5, -6});
  const auto ints = [](const Scope& s, std::initializer_list<int32_t> v) {
    return Const<int32_t>(s, v);
  };
  const BuildOutput builds[] = {
      [=](const Scope& s, const std::vector<Output>& in) {
        return ReverseV2(s, in[0], ints(s, {1}));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return ReverseSequence(s, in[0], ints(s, {1, 3}), 1);
      },
  };
  for (const BuildOutput& build : builds) ExpectGradientsMatch(build, {x});
}

}  // namespace
}  // namespace millrace
