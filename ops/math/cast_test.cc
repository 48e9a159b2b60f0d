// SPDX-License-Identifier: Apache-2.0
#include "ops/math/cast.h"

#include <bit>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Call(const Tensor& x, DType dst) {
  return RunOp1(OpCall("Cast").Input(x).Attr("DstT", dst));
}

const DType kTypes[] = {DT_BOOL,     DT_INT8,   DT_UINT8,  DT_INT16,     DT_UINT16,
                        DT_INT32,    DT_UINT32, DT_INT64,  DT_UINT64,    DT_HALF,
                        DT_BFLOAT16, DT_FLOAT,  DT_DOUBLE, DT_COMPLEX64, DT_COMPLEX128};

// 0 and 1 exist in every type: through any pair of types they come back.
TEST(Cast, EveryPairKeepsZeroAndOne) {
  const Tensor start = Tensor::Vector<bool>({true, false, true});
  for (const DType from : kTypes) {
    const Tensor x = Call(start, from);
    ASSERT_EQ(x.dtype(), from);
    for (const DType to : kTypes) {
      SCOPED_TRACE(absl::StrCat(DTypeName(from), " to ", DTypeName(to)));
      const Tensor y = Call(x, to);
      ASSERT_EQ(y.dtype(), to);
      ExpectTensorEqual(Call(y, DT_DOUBLE), Tensor::Vector<double>({1, 0, 1}));
    }
  }
}

TEST(Cast, RoundsFloatsTowardsZeroAndNeverOverflows) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  ExpectTensorEqual(Call(Tensor::Vector<float>({1.9f, -1.9f, 0.5f}), DT_INT32),
                    Tensor::Vector<int32_t>({1, -1, 0}));
  ExpectTensorEqual(Call(Tensor::Vector<float>({kNan, kInf, -kInf, 3e9f}), DT_INT32),
                    Tensor::Vector<int32_t>({0, 2147483647, -2147483647 - 1, 2147483647}));
  ExpectTensorEqual(Call(Tensor::Vector<double>({1e300, -5, 255.9}), DT_UINT8),
                    Tensor::Vector<uint8_t>({255, 0, 255}));
  ExpectTensorEqual(Call(Tensor::Vector<double>({9.3e18, -9.3e18}), DT_INT64),
                    Tensor::Vector<int64_t>({std::numeric_limits<int64_t>::max(),
                                             std::numeric_limits<int64_t>::lowest()}));
  ExpectTensorEqual(Call(Tensor::Vector<float>({kNan, 0, -2}), DT_BOOL),
                    Tensor::Vector<bool>({true, false, true}));
}

TEST(Cast, IntegersKeepTheirLowBits) {
  ExpectTensorEqual(Call(Tensor::Vector<int32_t>({257, -1}), DT_UINT8),
                    Tensor::Vector<uint8_t>({1, 255}));
  ExpectTensorEqual(Call(Tensor::Vector<int64_t>({(int64_t{1} << 32) + 7}), DT_INT32),
                    Tensor::Vector<int32_t>({7}));
}

TEST(Cast, ComplexToRealDropsTheImaginaryPart) {
  using C = std::complex<float>;
  ExpectTensorEqual(Call(TensorOf<C>({2}, {{1.5, 9}, {-2, 0}}), DT_INT64),
                    Tensor::Vector<int64_t>({1, -2}));
  ExpectTensorEqual(Call(Tensor::Vector<int32_t>({3}), DT_COMPLEX64), TensorOf<C>({1}, {{3, 0}}));
}

TEST(Cast, TruncateCutsWhereTheDefaultRounds) {
  // 1 + 2^-8 + 2^-9 lies above the middle between two bfloat16 values.
  const Tensor x = Tensor::Vector<float>({1.005859375f, -1.005859375f});
  const auto call = [&](bool truncate) {
    return Call(
        RunOp1(OpCall("Cast").Input(x).Attr("DstT", DT_BFLOAT16).Attr("Truncate", truncate)),
        DT_FLOAT);
  };
  ExpectTensorEqual(call(false), Tensor::Vector<float>({1.0078125f, -1.0078125f}));
  ExpectTensorEqual(call(true), Tensor::Vector<float>({1, -1}));
}

// The rule for one number is core/dtype.h's. All upper halves of a float, with lower halves around
// those where rounding turns.
TEST(Cast, FloatsAndBfloat16AreCastAsOneByOne) {
  std::vector<float> floats;
  std::vector<Bfloat16> all;
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    all.push_back(Bfloat16{static_cast<uint16_t>(upper)});
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      floats.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  const Tensor narrow = Call(Tensor::Vector<float>(floats), DT_BFLOAT16);
  const auto bfloat16s = narrow.flat<Bfloat16>();
  ASSERT_EQ(bfloat16s.size(), floats.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(bfloat16s[i].bits, ToBfloat16(floats[i]).bits) << std::bit_cast<uint32_t>(floats[i]);
  }
  const Tensor wide = Call(Tensor::Vector<Bfloat16>(all), DT_FLOAT);
  const auto back = wide.flat<float>();
  ASSERT_EQ(back.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(ToFloat(all[i])));
  }
}

TEST(Cast, HandlesEmptyAndSameType) {
  ExpectTensorEqual(Call(TensorOf<float>({0, 2}, {}), DT_INT32), TensorOf<int32_t>({0, 2}, {}));
  ExpectTensorEqual(Call(TensorOf<std::string>({1}, {"a"}), DT_STRING),
                    TensorOf<std::string>({1}, {"a"}));
  ExpectOpError(OpCall("Cast").Input(TensorOf<std::string>({1}, {"a"})).Attr("DstT", DT_INT32),
                absl::StatusCode::kUnimplemented, "Cast string to int32 is not supported");
  EXPECT_SHAPE("Cast", {{"DstT", DT_INT32}}, {"[2,?]"}, "[2,?]");
}

TEST(Cast, GradientIsCastBack) {
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return Cast(s, Cast(s, in[0], DT_COMPLEX128), DT_DOUBLE);
                       }),
                       {TensorOf<double>({2}, {1, -2})});
}

TEST(Bitcast, SeesTheSameBytes) {
  const auto call = [](const Tensor& x, DType type) {
    return RunOp1(OpCall("Bitcast").Input(x).Attr("type", type));
  };
  ExpectTensorEqual(call(Tensor::Vector<float>({1}), DT_INT32),
                    Tensor::Vector<int32_t>({0x3f800000}));
  ExpectTensorEqual(call(Tensor::Vector<uint32_t>({0x04030201}), DT_UINT8),
                    TensorOf<uint8_t>({1, 4}, {1, 2, 3, 4}));
  ExpectTensorEqual(call(TensorOf<uint8_t>({1, 4}, {1, 2, 3, 4}), DT_UINT32),
                    Tensor::Vector<uint32_t>({0x04030201}));
  ExpectTensorEqual(call(TensorOf<float>({0}, {}), DT_INT32), TensorOf<int32_t>({0}, {}));
  // Of memory that somebody else may write only floats refer to it still.
  alignas(64) float theirs = 1;
  const StatusOr<Tensor> shared =
      Tensor::FromBuffer(DT_FLOAT, Shape{1}, Buffer::ReadOnly(&theirs, sizeof(theirs), [] {}), 0);
  ASSERT_OK(shared);
  const Tensor bits = call(*shared, DT_INT32), same = call(*shared, DT_FLOAT);
  theirs = 2;
  ExpectTensorEqual(bits, Tensor::Vector<int32_t>({0x3f800000}));
  ExpectTensorEqual(same, Tensor::Vector<float>({2}));
  ExpectOpError(OpCall("Bitcast").Input(TensorOf<uint8_t>({3}, {1, 2, 3})).Attr("type", DT_UINT32),
                kInvalid, "the last dimension must be 4, got shape [3]");
  ExpectOpError(OpCall("Bitcast").Input(Tensor::Scalar<uint8_t>(1)).Attr("type", DT_UINT32),
                kInvalid, "the last dimension must be 4, got shape []");
  EXPECT_SHAPE("Bitcast", {{"type", DT_INT8}}, {"[2,?]"}, "[2,?,4]");
  EXPECT_SHAPE("Bitcast", {{"type", DT_DOUBLE}}, {"[3,?]"}, "[3]");
  EXPECT_SHAPE_ERROR("Bitcast", {{"type", DT_DOUBLE}}, {"[3,3]"}, "must be 2");
}

}  // namespace
}  // namespace millrace
