// SPDX-License-Identifier: Apache-2.0
//
// Messages as bodies of REST, over real sockets.
#include "serving/server/rest_protobuf.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "net/http/testing/raw_http_client.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/regression.pb.h"
#include "serving/server/model_server.h"
#include "serving/server/testing/served_test_models.h"

// covers: serving: Predict, Classify and Regress by messages over REST: the path says which model,
//   a message that contradicts it is refused, errors are JSON with gRPC's texts

namespace millrace {
namespace {

using tensorflow::serving::PredictRequest;
using tensorflow::serving::PredictResponse;

constexpr char kProtobuf[] = "Content-Type: application/x-protobuf\r\n";
constexpr char kPath[] = "/v1/models/m:predict";

class RestProtobufTest : public ServedTestModels {
 protected:
  void SetUp() override {
    AddVersion("m", 3);
    ModelServerOptions options = Options({"m"});
    options.models[0].labels = {{"stable", 3}};
    options.http.max_body_bytes = 64 << 10;
    options.rest.limits.max_body_bytes = 64 << 10;
    options.model.max_splat_bytes = 1 << 20;
    Start(std::move(options));
  }

  static PredictRequest Request() {
    PredictRequest request;
    tensorflow::TensorProto& x = (*request.mutable_inputs())["x"];
    x.set_dtype(tensorflow::DT_FLOAT);
    x.mutable_tensor_shape()->add_dim()->set_size(1);
    x.mutable_tensor_shape()->add_dim()->set_size(2);
    x.add_float_val(1);
    x.add_float_val(2);
    tensorflow::TensorProto& k = (*request.mutable_inputs())["k"];
    k.set_dtype(tensorflow::DT_FLOAT);
    k.mutable_tensor_shape();
    k.add_float_val(2);
    return request;
  }
  RawHttpReply Post(const PredictRequest& request, absl::string_view path = kPath,
                    absl::string_view headers = kProtobuf) {
    return Rest("POST", path, request.SerializeAsString(), headers);
  }
  // An error, as JSON.
  void ExpectRefused(const RawHttpReply& reply, int status, absl::string_view text) {
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(reply.header("content-type"), "application/json");
    EXPECT_TRUE(absl::StartsWith(reply.body, "{\n    \"error\": \"")) << reply.body;
    EXPECT_TRUE(absl::StrContains(reply.body, text)) << reply.body;
  }
};

TEST_F(RestProtobufTest, AnswersWithMessages) {
  for (const char* path :
       {kPath, "/v1/models/m/versions/3:predict", "/v1/models/m/labels/stable:predict"}) {
    SCOPED_TRACE(path);
    const RawHttpReply reply = Post(Request(), path);
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.header("content-type"), "application/x-protobuf");
    PredictResponse response;
    ASSERT_TRUE(response.ParseFromString(reply.body));
    EXPECT_EQ(response.model_spec().name(), "m");
    EXPECT_EQ(response.model_spec().version().value(), 3);
    EXPECT_EQ(response.model_spec().signature_name(), "serving_default");
    ASSERT_EQ(response.outputs().at("product").float_val_size(), 2);
    EXPECT_EQ(response.outputs().at("product").float_val(1), 4);
  }

  tensorflow::serving::ClassificationRequest classify;
  // The classes of "classify" are bytes, not text.
  classify.mutable_model_spec()->set_signature_name("classify_scores");
  *classify.mutable_input() = InputOf({1, 2});
  const RawHttpReply classes =
      Rest("POST", "/v1/models/m:classify", classify.SerializeAsString(), kProtobuf);
  tensorflow::serving::ClassificationResponse classified;
  ASSERT_EQ(classes.status, 200) << classes.body;
  ASSERT_TRUE(classified.ParseFromString(classes.body));
  ASSERT_EQ(classified.result().classifications_size(), 2);
  EXPECT_EQ(classified.result().classifications(1).classes(0).score(), 5);

  tensorflow::serving::RegressionRequest regress;
  regress.mutable_model_spec()->set_signature_name("regress");
  *regress.mutable_input() = InputOf({1, 2});
  const RawHttpReply values =
      Rest("POST", "/V1/models/m:regress", regress.SerializeAsString(), kProtobuf);
  tensorflow::serving::RegressionResponse regressed;
  ASSERT_EQ(values.status, 200) << values.body;
  ASSERT_TRUE(regressed.ParseFromString(values.body));
  ASSERT_EQ(regressed.result().regressions_size(), 2);
  EXPECT_EQ(regressed.result().regressions(1).value(), 6);
}

TEST_F(RestProtobufTest, TheTypeOfTheReplyIsTheRequestsOrWhatItAccepts) {
  const struct {
    const char *headers, *want;
  } cases[] = {
      {"Content-Type: application/protobuf\r\n", "application/protobuf"},
      {"Content-Type: Application/X-Protobuf; charset=binary\r\n", "application/x-protobuf"},
      {"Content-Type: application/x-protobuf\r\nAccept: application/protobuf\r\n",
       "application/protobuf"},
      {"Content-Type: application/protobuf\r\nAccept: */*\r\n", "application/protobuf"},
      {"Content-Type: application/protobuf\r\nAccept: application/x-protobuf, "
       "application/protobuf; q=0.5\r\n",
       "application/protobuf"},
  };
  for (const auto& c : cases) {
    const RawHttpReply reply = Post(Request(), kPath, c.headers);
    EXPECT_EQ(reply.status, 200) << c.headers << reply.body;
    EXPECT_EQ(reply.header("content-type"), c.want) << c.headers;
  }
  // What is no message stays JSON.
  const RawHttpReply json = Rest("POST", kPath, R"({"inputs": {"x": [[1, 2]], "k": 2}})",
                                 "Content-Type: application/json\r\n");
  EXPECT_EQ(json.status, 200) << json.body;
  EXPECT_EQ(json.header("content-type"), "application/json");
}

// A body of less than 64 KiB that would take more than four times as much: 40 bytes for each text.
TEST_F(RestProtobufTest, WhatWouldTakeTooMuchMemoryIsNotRead) {
  PredictRequest request = Request();
  for (int i = 0; i < 10'000; ++i) (*request.mutable_inputs())["x"].add_string_val("");
  ExpectRefused(Post(request), 400, "may take at most 262144 bytes of memory");
}

TEST_F(RestProtobufTest, ThePathSaysWhichModel) {
  PredictRequest same = Request();
  same.mutable_model_spec()->set_name("m");
  same.mutable_model_spec()->mutable_version()->set_value(3);
  EXPECT_EQ(Post(same).status, 200);
  EXPECT_EQ(Post(same, "/v1/models/m/versions/3:predict").status, 200);

  PredictRequest request = Request();
  request.mutable_model_spec()->set_name("n");
  ExpectRefused(Post(request), 400, "the model of the message must be that of the path, m, got n");
  ExpectRefused(Post(same, "/v1/models/m/versions/4:predict"), 400,
                "the version of the message must be that of the path, 4, got 3");
  ExpectRefused(Post(same, "/v1/models/m/labels/stable:predict"), 400,
                "the label of the message must be that of the path, stable, got version 3");
  request = Request();
  request.mutable_model_spec()->set_version_label("canary");
  ExpectRefused(Post(request, "/v1/models/m/versions/3:predict"), 400, "got label canary");
  ExpectRefused(Post(request, "/v1/models/m/labels/stable:predict"), 400,
                "must be that of the path, stable, got canary");
  // What only the message says counts.
  ExpectRefused(Post(request), 400, "Unrecognized servable version label: canary");
}

TEST_F(RestProtobufTest, ErrorsAreJsonWithTheTextsOfGrpc) {
  ExpectRefused(Rest("POST", kPath, "\xff\xff no message", kProtobuf), 400,
                "the body must be a tensorflow.serving.PredictRequest, got 13 bytes");
  ExpectRefused(Rest("POST", kPath, "", kProtobuf), 400,
                "input size does not match signature: 0!=2");
  ExpectRefused(Post(Request(), "/v1/models/n:predict"), 404,
                "Servable not found for request: Latest(n)");
  ExpectRefused(Post(Request(), "/v1/models/m:explain"), 400,
                "Malformed request: POST /v1/models/m:explain");
  PredictRequest request = Request();
  request.mutable_model_spec()->set_signature_name("s");
  ExpectRefused(Post(request), 400, "Serving signature key \\\"s\\\" not found.");
  // A few bytes that stand for 2^30 elements.
  request = Request();
  (*request.mutable_inputs())["x"].mutable_tensor_shape()->mutable_dim(0)->set_size(1 << 29);
  ExpectRefused(Post(request), 429, "elements that the inputs do not list must take at most");
}

TEST_F(RestProtobufTest, ALargeBodyIsRefused) {
  PredictRequest request = Request();
  for (int i = 0; i < 64 << 10; ++i) (*request.mutable_inputs())["x"].add_float_val(1);
  EXPECT_EQ(Post(request).status, 413);
}

}  // namespace
}  // namespace millrace
