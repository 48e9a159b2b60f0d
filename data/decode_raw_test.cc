// SPDX-License-Identifier: Apache-2.0
#include "data/decode_raw.h"

#include <zlib.h>

#include <complex>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: input: a compressed file of a few bytes is read in the pieces that are used, or refused

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (const int v : values) bytes.push_back(static_cast<char>(v));
  return bytes;
}

OpCall Raw(const Tensor& bytes, DType dtype, bool little_endian = true) {
  return OpCall("DecodeRaw")
      .Input(bytes)
      .Attr("out_type", dtype)
      .Attr("little_endian", little_endian);
}

TEST(DecodeRaw, ReadsNumbersOfBothByteOrders) {
  ExpectTensorEqual(RunOp1(Raw(Tensor::Of({"A", "a"}), DT_UINT8)),
                    Tensor::Of<uint8_t>({{65}, {97}}));
  const Tensor two = Tensor::Of({Bytes({1, 0, 255, 255}), Bytes({0, 1, 0, 128})});
  ExpectTensorEqual(RunOp1(Raw(two, DT_INT16)), TensorOf<int16_t>({2, 2}, {1, -1, 256, -32768}));
  ExpectTensorEqual(RunOp1(Raw(two, DT_INT16, false)),
                    TensorOf<int16_t>({2, 2}, {256, -1, 1, 128}));
  ExpectTensorEqual(RunOp1(Raw(Tensor::Scalar(Bytes({0, 0, 0x80, 0x3f})), DT_FLOAT)),
                    Tensor::Of({1.0f}));
  ExpectTensorEqual(RunOp1(Raw(Tensor::Scalar(Bytes({0x3f, 0x80, 0, 0})), DT_FLOAT, false)),
                    Tensor::Of({1.0f}));
  // Each part of a complex number is a number.
  ExpectTensorEqual(
      RunOp1(Raw(Tensor::Scalar(Bytes({0x3f, 0x80, 0, 0, 0x40, 0, 0, 0})), DT_COMPLEX64, false)),
      Tensor::Of({std::complex<float>(1, 2)}));
  ExpectTensorEqual(RunOp1(Raw(Tensor::Scalar(Bytes({0, 1, 2, 255})), DT_BOOL)),
                    Tensor::Of<bool>({false, true, true, true}));
}

TEST(DecodeRaw, EmptyStringsHaveNoNumbers) {
  ExpectTensorEqual(RunOp1(Raw(Tensor::Of({"", ""}), DT_INT32)), TensorOf<int32_t>({2, 0}, {}));
  ExpectTensorEqual(RunOp1(Raw(TensorOf<std::string>({0, 3}, {}), DT_INT32)),
                    TensorOf<int32_t>({0, 3, 0}, {}));
  EXPECT_SHAPE("DecodeRaw", {{"out_type", DT_FLOAT}}, {"[2,?]"}, "[2,?,?]");
  EXPECT_SHAPE("DecodeRaw", {{"out_type", DT_FLOAT}}, {"<unknown>"}, "<unknown>");
}

TEST(DecodeRaw, LengthsMustBeEqualAndFit) {
  ExpectOpError(Raw(Tensor::Of({"ab", "abc"}), DT_UINT8), kInvalid,
                "DecodeRaw requires input strings to all be the same size, but element 1 has size "
                "3 != 2");
  ExpectOpError(Raw(Tensor::Of({"123", "456"}), DT_INT16), kInvalid,
                "Input to DecodeRaw has length 3 that is not a multiple of 2, the size of int16");
}

OpCall Padded(const Tensor& bytes, int32_t length, DType dtype) {
  return OpCall("DecodePaddedRaw")
      .Input(bytes)
      .Input(Tensor::Scalar(length))
      .Attr("out_type", dtype);
}

TEST(DecodePaddedRaw, FillsUpAndCuts) {
  ExpectTensorEqual(RunOp1(Padded(Tensor::Of({"A", "", "abcdef"}), 4, DT_UINT8)),
                    Tensor::Of<uint8_t>({{65, 0, 0, 0}, {0, 0, 0, 0}, {97, 98, 99, 100}}));
  ExpectTensorEqual(RunOp1(Padded(Tensor::Of({Bytes({1}), Bytes({1, 2, 3, 4, 5})}), 4, DT_INT32)),
                    Tensor::Of<int32_t>({{1}, {0x04030201}}));
  ExpectOpError(Padded(Tensor::Of({"a"}), 0, DT_UINT8), kInvalid,
                "fixed_length (0) must be greater than zero");
  ExpectOpError(Padded(Tensor::Of({"a"}), 3, DT_INT16), kInvalid,
                "fixed_length (3) must be a multiple of the size of out_type (2)");
  EXPECT_SHAPE("DecodePaddedRaw", {{"out_type", DT_INT16}}, {"[2]", Tensor::Scalar(6)}, "[2,3]");
  EXPECT_SHAPE("DecodePaddedRaw", {{"out_type", DT_INT16}}, {"[2]", "[]"}, "[2,?]");
}

// --- DecodeCompressed

std::string Compressed(const std::string& text, bool gzip) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, gzip ? 15 + 16 : 15, 8,
                         Z_DEFAULT_STRATEGY),
            Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}
OpCall Decompress(const Tensor& bytes, const std::string& type) {
  return OpCall("DecodeCompressed").Input(bytes).Attr("compression_type", type);
}

TEST(DecodeCompressed, GivesWhatWasCompressed) {
  std::string large;
  for (int i = 0; i < 100000; ++i) large += std::to_string(i);
  const Tensor texts = Tensor::Of<std::string>({std::string("hello"), std::string(), large});
  std::vector<std::string> zlib, gzip;
  for (const std::string& text : texts.flat<std::string>()) {
    zlib.push_back(Compressed(text, false));
    gzip.push_back(Compressed(text, true));
  }
  ExpectTensorEqual(RunOp1(Decompress(Tensor::Vector<std::string>(zlib), "ZLIB")), texts);
  ExpectTensorEqual(RunOp1(Decompress(Tensor::Vector<std::string>(gzip), "GZIP")), texts);
  ExpectTensorEqual(RunOp1(Decompress(texts, "")), texts);
  // Two files one behind the other are one, as gzip itself has it; nothing is nothing.
  ExpectTensorEqual(RunOp1(Decompress(Tensor::Scalar(gzip[0] + gzip[0]), "GZIP")),
                    Tensor::Scalar("hellohello"));
  ExpectTensorEqual(RunOp1(Decompress(Tensor::Of({"", ""}), "GZIP")), Tensor::Of({"", ""}));
  EXPECT_SHAPE("DecodeCompressed", {}, {"[2,?]"}, "[2,?]");
}

TEST(DecodeCompressed, OtherBytesAreRefused) {
  const std::string good = Compressed("hello, hello, hello", true);
  for (size_t size = 1; size < good.size(); ++size) {
    ExpectOpError(Decompress(Tensor::Of<std::string>({good, good.substr(0, size)}), "GZIP"),
                  absl::StatusCode::kDataLoss, "bytes[1]: truncated compressed data");
  }
  ExpectOpError(Decompress(Tensor::Scalar("garbage"), "ZLIB"), absl::StatusCode::kDataLoss,
                "bytes[0]: corrupted compressed data");
  ExpectOpError(Decompress(Tensor::Scalar(good + "x"), "GZIP"), absl::StatusCode::kDataLoss,
                "bytes[0]: ");
  ExpectOpError(Decompress(Tensor::Scalar(good), "SNAPPY"), kInvalid,
                "Only ZLIB, GZIP or NONE are supported compressions, got 'SNAPPY'");
}

}  // namespace
}  // namespace millrace
