// SPDX-License-Identifier: Apache-2.0
#include "ops/summary/image_summary.h"

#include <png.h>

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/summary.pb.h"
#include "runtime/testing/op_test.h"

// covers: events: summary ops make TensorFlow's bytes; values that are not finite, repeated tags
//   and non-images are refused by name

namespace millrace {
namespace {

using ::testing::ElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Images(const Tensor& tensor, int64_t max_images = 3) {
  return OpCall("ImageSummary")
      .Input(Tensor::Scalar("x"))
      .Input(tensor)
      .Attr("max_images", max_images)
      .Attr("bad_color", Tensor::Of<uint8_t>({255, 0, 7, 9}));
}

tensorflow::Summary Parsed(const Tensor& summary) {
  tensorflow::Summary parsed;
  EXPECT_TRUE(parsed.ParseFromString(summary.scalar<std::string>()));
  return parsed;
}

// The pixels of a PNG, as it says itself how they are.
std::vector<int> PixelsOf(const tensorflow::Summary::Image& summary) {
  const std::string& bytes = summary.encoded_image_string();
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()), 0);
  EXPECT_EQ(static_cast<int>(image.width), summary.width());
  EXPECT_EQ(static_cast<int>(image.height), summary.height());
  EXPECT_EQ(static_cast<int>(PNG_IMAGE_SAMPLE_CHANNELS(image.format)), summary.colorspace());
  std::vector<png_byte> pixels(PNG_IMAGE_SIZE(image));
  EXPECT_NE(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr), 0);
  return {pixels.begin(), pixels.end()};
}

std::vector<int> FirstPixels(const OpCall& call) {
  return PixelsOf(Parsed(RunOp1(call)).value(0).image());
}

TEST(ImageSummary, HasAPngPerImage) {
  const Tensor two = TensorOf<uint8_t>({2, 1, 3, 1}, {1, 2, 3, 4, 5, 255});
  const tensorflow::Summary summary = Parsed(RunOp1(Images(two)));
  ASSERT_EQ(summary.value_size(), 2);
  EXPECT_EQ(summary.value(0).tag(), "x/image/0");
  EXPECT_EQ(summary.value(1).tag(), "x/image/1");
  EXPECT_EQ(summary.value(1).image().height(), 1);
  EXPECT_EQ(summary.value(1).image().width(), 3);
  EXPECT_EQ(summary.value(1).image().colorspace(), 1);
  EXPECT_THAT(PixelsOf(summary.value(0).image()), ElementsAre(1, 2, 3));
  EXPECT_THAT(PixelsOf(summary.value(1).image()), ElementsAre(4, 5, 255));

  const tensorflow::Summary first = Parsed(RunOp1(Images(two, 1)));
  ASSERT_EQ(first.value_size(), 1);
  EXPECT_EQ(first.value(0).tag(), "x/image");
  EXPECT_EQ(Parsed(RunOp1(Images(TensorOf<uint8_t>({0, 1, 3, 1}, {})))).value_size(), 0);
}

TEST(ImageSummary, KeepsColoursAndAlpha) {
  EXPECT_THAT(FirstPixels(Images(TensorOf<uint8_t>({1, 2, 1, 3}, {1, 2, 3, 4, 5, 6}))),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(FirstPixels(Images(TensorOf<uint8_t>({1, 1, 2, 4}, {1, 2, 3, 0, 5, 6, 7, 128}))),
              ElementsAre(1, 2, 3, 0, 5, 6, 7, 128));
}

TEST(ImageSummary, ScalesFloats) {
  // 255 / 2, cut.
  EXPECT_THAT(FirstPixels(Images(TensorOf<float>({1, 1, 4, 1}, {0, 1, 2, 0.5f}))),
              ElementsAre(0, 127, 255, 63));
  // 128 + 127 / 4 of each.
  EXPECT_THAT(FirstPixels(Images(TensorOf<double>({1, 1, 4, 1}, {-4, 0, 2, 4}))),
              ElementsAre(1, 128, 191, 255));
  EXPECT_THAT(FirstPixels(Images(TensorOf<Half>({1, 1, 2, 1}, {ToHalf(0.5f), ToHalf(1)}))),
              ElementsAre(127, 255));
  // Nothing to see: black, or grey.
  EXPECT_THAT(FirstPixels(Images(TensorOf<float>({1, 1, 2, 1}, {0, 1e-7f}))), ElementsAre(0, 0));
  EXPECT_THAT(FirstPixels(Images(TensorOf<float>({1, 1, 2, 1}, {0, -1e-7f}))),
              ElementsAre(128, 128));
  // Each image by itself.
  const tensorflow::Summary two = Parsed(RunOp1(Images(TensorOf<float>({2, 1, 1, 1}, {1, 10}))));
  EXPECT_THAT(PixelsOf(two.value(0).image()), ElementsAre(255));
  EXPECT_THAT(PixelsOf(two.value(1).image()), ElementsAre(255));
}

TEST(ImageSummary, PaintsWhatIsNotFinite) {
  EXPECT_THAT(FirstPixels(Images(TensorOf<float>({1, 1, 3, 1}, {1, NAN, INFINITY}))),
              ElementsAre(255, 255, 255));
  EXPECT_THAT(FirstPixels(Images(TensorOf<float>({1, 1, 2, 3}, {1, 0, 2, 1, -INFINITY, 1}))),
              ElementsAre(127, 0, 255, 255, 0, 7));
  EXPECT_THAT(FirstPixels(Images(TensorOf<float>({1, 1, 1, 4}, {NAN, 1, 1, 1}))),
              ElementsAre(255, 0, 7, 9));
}

TEST(ImageSummary, RefusesWhatIsNoImage) {
  struct Case {
    const char* shape;
    const char* text;
  };
  const Case cases[] = {
      {"[2,2,1]", "tensor must have rank 4, got shape [2,2,1]"},
      {"[?,2,2,2]", "tensor must have 1, 3 or 4 channels, got shape [?,2,2,2]"},
      {"[1,0,2,1]", "images must have pixels, got shape [1,0,2,1]"},
      {"[1,2,0,1]", "images must have pixels, got shape [1,2,0,1]"},
  };
  for (const Case& c : cases) EXPECT_SHAPE_ERROR("ImageSummary", {}, {"[]", c.shape}, c.text);
  EXPECT_SHAPE("ImageSummary", {}, {"[]", "[?,?,?,?]"}, "[]");
  const Tensor x = TensorOf<uint8_t>({1, 1, 1, 3}, {1, 2, 3});
  ExpectOpError(Images(x).Attr("bad_color", Tensor::Of<uint8_t>({1, 2})), kInvalid,
                "bad_color must have a value for each of 3 channels, got 2");
  ExpectOpError(Images(x).Attr("bad_color", Tensor::Of<int32_t>({1, 2, 3})), kInvalid,
                "bad_color must be a vector of uint8, got int32[3]");
}

}  // namespace
}  // namespace millrace
