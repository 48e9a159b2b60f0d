// SPDX-License-Identifier: Apache-2.0
//
// What the bytes of a Predict cost, counted. That they mean what their messages mean is
// tests/fuzz/served_requests_test.
#include "serving/server/predict_call.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/tensor_coding.h"
#include "proto/serving/predict.pb.h"
#include "serving/server/model_server.h"
#include "serving/testing/test_model.h"

// covers: serving: numbers of a Predict over gRPC are copied once on their way in and not at all on
//   their way out, from raw content and from lists

namespace millrace {
namespace {

using tensorflow::serving::PredictRequest;
using tensorflow::serving::PredictResponse;

constexpr int64_t kRows = 1 << 17;
constexpr int64_t kBytes = kRows * 2 * int64_t{sizeof(float)};

class PredictCallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(base_));
    ASSERT_OK(ExportTestModel(JoinPath(base_, "1")));
  }
  void TearDown() override { EXPECT_OK(FileSystem::Posix()->RecursivelyDelete(base_)); }

  void Start(bool as_content) {
    ModelServerOptions options;
    options.models = {{.name = "m", .base_path = base_}};
    options.versions.source.trust_new_versions = true;
    options.versions.poll_period = absl::ZeroDuration();
    options.model.serialize_as_tensor_content = as_content;
    StatusOr<std::unique_ptr<ModelServer>> server = ModelServer::Start(options);
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  // x of kRows rows, all 1.5, and k = 2.
  static PredictRequest Request(bool as_content) {
    PredictRequest request;
    request.mutable_model_spec()->set_name("m");
    Tensor x = *Tensor::Allocate(DT_FLOAT, *Shape::Make({kRows, 2}));
    for (float& value : x.mutable_flat<float>()) value = 1.5f;
    auto& inputs = *request.mutable_inputs();
    EXPECT_OK(as_content ? TensorToContentProto(x, &inputs["x"])
                         : TensorToListedProto(x, &inputs["x"]));
    EXPECT_OK(TensorToListedProto(Tensor::Scalar(2.0f), &inputs["k"]));
    return request;
  }

  const std::string base_ =
      JoinPath(::testing::TempDir(), absl::StrCat("predict_call_", RandomHexName()));
  std::unique_ptr<ModelServer> server_;
};

TEST_F(PredictCallTest, NumbersAreCopiedOnceInAndNotAtAllOut) {
  ASSERT_NO_FATAL_FAILURE(Start(/*as_content=*/false));
  for (const bool as_content : {false, true}) {
    SCOPED_TRACE(as_content);
    ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer bytes, EncodeMessage(Request(as_content)));
    const TensorCodingCounters before = GetTensorCodingCounters();
    ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer reply,
                         AnswerPredict(server_->requests(), bytes, {}, {}));
    const TensorCodingCounters after = GetTensorCodingCounters();
    // x, or its place, and the four bytes of k.
    EXPECT_EQ(after.received_copied + after.received_in_place - before.received_copied -
                  before.received_in_place,
              kBytes + 4);
    // "product" and "sum"; "words" is a list of strings.
    EXPECT_EQ(after.sent_by_reference - before.sent_by_reference, 2 * kBytes);
    EXPECT_EQ(after.through_proto - before.through_proto, 1);

    PredictResponse response;
    ASSERT_OK(DecodeMessage("PredictResponse", reply, &response));
    const auto& product = response.outputs().at("product");
    ASSERT_EQ(product.float_val_size(), 2 * kRows);
    EXPECT_EQ(product.float_val(0), 3.0f);
    EXPECT_EQ(product.float_val(2 * kRows - 1), 3.0f);
    EXPECT_EQ(response.outputs().at("words").string_val(0), "w");
    EXPECT_EQ(response.model_spec().version().value(), 1);
    EXPECT_EQ(response.model_spec().signature_name(), "serving_default");
  }
}

TEST_F(PredictCallTest, RepliesHaveRawContentWhereTheServerIsToldSo) {
  ASSERT_NO_FATAL_FAILURE(Start(/*as_content=*/true));
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer bytes, EncodeMessage(Request(true)));
  const TensorCodingCounters before = GetTensorCodingCounters();
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer reply,
                       AnswerPredict(server_->requests(), bytes, {}, {}));
  EXPECT_EQ(GetTensorCodingCounters().sent_by_reference - before.sent_by_reference, 2 * kBytes);
  PredictResponse response;
  ASSERT_OK(DecodeMessage("PredictResponse", reply, &response));
  EXPECT_EQ(response.outputs().at("sum").tensor_content().size(), static_cast<size_t>(kBytes));
  EXPECT_EQ(response.outputs().at("words").tensor_content(), std::string("\x01w"));
}

// The same text as by messages: TensorFlow Serving's.
TEST_F(PredictCallTest, ATensorThatIsNoneIsRefusedByItsAlias) {
  ASSERT_NO_FATAL_FAILURE(Start(/*as_content=*/false));
  PredictRequest request = Request(true);
  (*request.mutable_inputs())["k"].set_tensor_content("four bytes and more");
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer bytes, EncodeMessage(request));
  EXPECT_STATUS(AnswerPredict(server_->requests(), bytes, {}, {}),
                absl::StatusCode::kInvalidArgument, "tensor parsing error: k");
}

// Two bytes on the wire must not become a hundred in memory, as often as a stranger likes.
TEST_F(PredictCallTest, EntriesWithoutNumberAreOneForTheMessage) {
  ASSERT_NO_FATAL_FAILURE(Start(/*as_content=*/false));
  std::string text = Request(true).SerializeAsString();
  for (int i = 0; i < 5000; ++i) text += std::string("\x12\x00", 2);
  PredictRequest request;
  ASSERT_TRUE(request.ParseFromString(text));
  ASSERT_EQ(request.inputs_size(), 3);  // all of them have the key ""
  const grpc::Slice slice(text);
  PredictResponse response;
  const Status expected = server_->requests().Predict(request, {}, &response);
  EXPECT_FALSE(expected.ok());
  EXPECT_EQ(AnswerPredict(server_->requests(), grpc::ByteBuffer(&slice, 1), {}, {}).status(),
            expected);
  std::vector<DecodedTensor> tensors;
  EXPECT_STATUS(DecodeMessage("m", grpc::ByteBuffer(&slice, 1), 2, TensorField::kNamedOrIndexed,
                              &tensors, nullptr, kMaxSplatBytes, /*max_tensors=*/100),
                absl::StatusCode::kInvalidArgument, "more than 100 tensors");
  EXPECT_EQ(tensors.size(), 100u);
}

}  // namespace
}  // namespace millrace
