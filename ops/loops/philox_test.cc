// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/philox.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "gtest/gtest.h"

namespace millrace::math {
namespace {

// Published with the generator (Random123's known-answer test).
TEST(Philox, GivesThePublishedWords) {
  const PhiloxStream::Block zero = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT_EQ(PhiloxStream(0, 0).Next(), zero);
}

TEST(Philox, SkippingIsTakingBlocks) {
  PhiloxStream walked(5, 6);
  for (int i = 0; i < 1000; ++i) walked.Next();
  EXPECT_EQ(walked.Next(), PhiloxStream(5, 6).At(1000).Next());
  // The counter carries over 64 bits: from its lower half into seed2's half.
  PhiloxStream wide(5, 6);
  wide.SkipWide(uint64_t{1} << 63, 2);
  EXPECT_EQ(wide.Next(), PhiloxStream(5, 7).Next());
  PhiloxStream last = PhiloxStream(5, 6).At(~uint64_t{0});
  last.Next();
  EXPECT_EQ(last.Next(), PhiloxStream(5, 7).Next());
}

// What TensorFlow 1.x gives for these seeds, to the digits that are published.
TEST(Philox, UniformNormalAndTruncatedAreTensorFlows) {
  std::vector<float> out(5);
  PhiloxUniform<float>(PhiloxStream(87654321, 1), 0, absl::MakeSpan(out));
  const float uniform[] = {0.23903739f, 0.92039955f, 0.05051243f, 0.49574447f, 0.83552229f};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(out[i], uniform[i], 5e-9) << i;
  out.resize(6);
  PhiloxNormal<float>(PhiloxStream(87654321, 1), 0, absl::MakeSpan(out));
  const float normal[] = {-0.8113182f, 1.4845988f, 0.0653294f, -2.4427042f, 0.0992484f, 0.5912243f};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(out[i], normal[i], 2e-7) << i;
  out.resize(4);
  PhiloxNormal<float>(PhiloxStream(5, 1), 0, absl::MakeSpan(out));
  const float other[] = {-1.3768897f, -0.0125832f, -0.169515f, 1.0824056f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(out[i], other[i], 2e-7) << i;
  out.resize(8);
  PhiloxTruncatedNormal<float>(PhiloxStream(1, 2), 0, absl::MakeSpan(out));
  const float truncated[] = {-1.046779f, 0.8397046f, 1.235836f, 0.3037427f,
                             0.3886909f, 1.236705f,  0.240398f, -0.1571426f};
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(out[i], truncated[i], 6e-7) << i;
}

template <typename T, typename Fill>
void ExpectPartsEqualWhole(const Fill& fill) {
  constexpr int64_t kGroup = kPhiloxGroup<T>;
  std::vector<T> whole(static_cast<size_t>(10 * kGroup + 1)), parts(whole.size());
  fill(int64_t{0}, absl::MakeSpan(whole));
  const size_t cut = static_cast<size_t>(3 * kGroup);
  fill(int64_t{3}, absl::MakeSpan(parts).subspan(cut));
  fill(int64_t{0}, absl::MakeSpan(parts).subspan(0, cut));
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], parts[i]) << i;
}

TEST(Philox, PartsAreThoseOfTheWhole) {
  const PhiloxStream stream(3, 4);
  ExpectPartsEqualWhole<float>(
      [&](int64_t g, absl::Span<float> out) { PhiloxUniform<float>(stream, g, out); });
  ExpectPartsEqualWhole<double>(
      [&](int64_t g, absl::Span<double> out) { PhiloxNormal<double>(stream, g, out); });
  ExpectPartsEqualWhole<float>(
      [&](int64_t g, absl::Span<float> out) { PhiloxTruncatedNormal<float>(stream, g, out); });
  ExpectPartsEqualWhole<double>(
      [&](int64_t g, absl::Span<double> out) { PhiloxTruncatedNormal<double>(stream, g, out); });
  ExpectPartsEqualWhole<int64_t>([&](int64_t g, absl::Span<int64_t> out) {
    PhiloxUniformInt<int64_t>(stream, g, -5, 10, out);
  });
}

TEST(Philox, ValuesAreInsideOfTheirRanges) {
  std::vector<float> f(10000);
  PhiloxTruncatedNormal<float>(PhiloxStream(9, 9), 0, absl::MakeSpan(f));
  for (float v : f) ASSERT_LT(std::abs(v), 2.0f);
  PhiloxUniform<float>(PhiloxStream(9, 9), 0, absl::MakeSpan(f));
  double sum = 0;
  for (float v : f) {
    ASSERT_GE(v, 0);
    ASSERT_LT(v, 1);
    sum += static_cast<double>(v);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
  std::vector<double> d(10000);
  PhiloxNormal<double>(PhiloxStream(9, 9), 0, absl::MakeSpan(d));
  double mean = 0, square = 0;
  for (double v : d) {
    mean += v / 10000;
    square += v * v / 10000;
  }
  EXPECT_NEAR(mean, 0, 0.05);
  EXPECT_NEAR(square, 1, 0.05);
  std::vector<int32_t> n(1000);
  PhiloxUniformInt<int32_t>(PhiloxStream(9, 9), 0, -3, 6, absl::MakeSpan(n));
  for (int32_t v : n) {
    ASSERT_GE(v, -3);
    ASSERT_LT(v, 3);
  }
  // The whole range of the type.
  PhiloxUniformInt<int32_t>(PhiloxStream(0, 0), 0, INT32_MIN, uint32_t{0xffffffff},
                            absl::MakeSpan(n).subspan(0, 1));
  EXPECT_EQ(n[0], static_cast<int32_t>(0x6627e8d5u + 0x80000000u));
}

TEST(Philox, NarrowTypesHaveTheirFewBits) {
  std::vector<Half> h(1);
  PhiloxUniform<Half>(PhiloxStream(0, 0), 0, absl::MakeSpan(h));
  EXPECT_EQ(ToFloat(h[0]), static_cast<float>(0x6627e8d5 & 0x3ff) / 1024);
  std::vector<Bfloat16> b(1);
  PhiloxUniform<Bfloat16>(PhiloxStream(0, 0), 0, absl::MakeSpan(b));
  EXPECT_EQ(ToFloat(b[0]), static_cast<float>(0x6627e8d5 & 0x7f) / 128);
}

}  // namespace
}  // namespace millrace::math
