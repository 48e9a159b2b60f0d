// SPDX-License-Identifier: Apache-2.0
//
// Wrong requests, each with a right one before and behind it, while clients of all fronts ask
// rightly: unbatched, batched, and batched by parameters as TensorFlow Serving has them. What is
// right is answered rightly, also from a batch that a wrong one has joined; what is wrong has its
// code and text (TensorFlow Serving's, where it has one), and memory stays bounded.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/http/gzip.h"
#include "net/http/testing/raw_http_client.h"
#include "proto/inference/grpc_service.pb.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/method_paths.h"
#include "proto/serving/model_management.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/regression.pb.h"
#include "proto/tensor.pb.h"
#include "proto/types.pb.h"
#include "tests/cluster/process_state.h"
#include "tests/serving/served_models.h"
#include "tests/serving/served_process.h"
#include "tests/serving/served_test.h"
#include "tests/serving/steady_load.h"

// covers: serving: bad requests mixed with good ones over gRPC, REST and /v2, batched and not:
//   every good one is answered rightly, every bad one has its code and text, memory is bounded

namespace millrace {
namespace {

using absl::StatusCode;
using tensorflow::serving::PredictRequest;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr float kScale = 5;
constexpr int kRounds = 2;
constexpr char kInferPath[] = "/inference.GRPCInferenceService/ModelInfer";

struct BadCall {
  std::string what;
  std::string path;
  std::string bytes;
  StatusCode code;
  std::string text;
};

struct BadHttp {
  std::string what;
  std::string request;  // whole
  int status;           // 0: 200 or 400
  std::string text;
};

BadCall BadPredict(const std::string& what, const std::function<void(PredictRequest*)>& change,
                   StatusCode code, const std::string& text) {
  PredictRequest request = ScalingRequest("m", 1);
  change(&request);
  return {what, kPredictPath, request.SerializeAsString(), code, text};
}

tensorflow::TensorProto* InputOf(PredictRequest* request, const char* alias) {
  return &(*request->mutable_inputs())[alias];
}

std::vector<BadCall> BadPredicts() {
  constexpr auto kInvalid = StatusCode::kInvalidArgument;
  const auto spec = [](PredictRequest* r) { return r->mutable_model_spec(); };
  std::vector<BadCall> calls = {
      BadPredict(
          "another dtype",
          [](PredictRequest* r) {
            InputOf(r, "x")->set_dtype(tensorflow::DT_INT32);
            InputOf(r, "x")->clear_float_val();
            InputOf(r, "x")->add_int_val(7);
          },
          kInvalid, "Cannot feed value of type int32"),
      BadPredict(
          "another shape",
          [](PredictRequest* r) {
            InputOf(r, "x")->mutable_tensor_shape()->mutable_dim(1)->set_size(3);
            InputOf(r, "x")->add_float_val(7);
          },
          kInvalid, ""),
      BadPredict(
          "no shape",
          [](PredictRequest* r) {
            InputOf(r, "x")->clear_tensor_shape();
            InputOf(r, "x")->mutable_float_val()->Truncate(1);
          },
          kInvalid, ""),
      BadPredict(
          "a missing input", [](PredictRequest* r) { r->mutable_inputs()->erase("w"); }, kInvalid,
          "input size does not match signature: 1!=2 len({x}) != len({w,x}). Sent extra: {}. "
          "Missing but required: {w}."),
      BadPredict(
          "an extra input", [](PredictRequest* r) { *InputOf(r, "z") = *InputOf(r, "w"); },
          kInvalid,
          "input size does not match signature: 3!=2 len({w,x,z}) != len({w,x}). Sent extra: {z}. "
          "Missing but required: {}."),
      BadPredict(
          "another input",
          [](PredictRequest* r) {
            *InputOf(r, "z") = *InputOf(r, "w");
            r->mutable_inputs()->erase("w");
          },
          kInvalid, "Signature input alias: w"),
      BadPredict(
          "an unknown output", [](PredictRequest* r) { r->add_output_filter("nil"); }, kInvalid,
          "output tensor alias not found in signature: nil Outputs expected to be in the set "
          "{s,y}."),
      BadPredict(
          "an output twice",
          [](PredictRequest* r) {
            for (int i = 0; i < 2; ++i) r->add_output_filter("y");
          },
          kInvalid, "duplicate output tensor alias: y"),
      BadPredict(
          "10,000 outputs",
          [](PredictRequest* r) {
            for (int i = 0; i < 10'000; ++i) r->add_output_filter(absl::StrCat("o", i));
          },
          kInvalid, "output tensor alias not found in signature: o0"),
      BadPredict(
          "an unknown signature", [&](PredictRequest* r) { spec(r)->set_signature_name("nil"); },
          StatusCode::kFailedPrecondition, "Serving signature key \"nil\" not found."),
      BadPredict(
          "an unknown model", [&](PredictRequest* r) { spec(r)->set_name("n"); },
          StatusCode::kNotFound, "Servable not found for request: Latest(n)"),
      BadPredict(
          "an unknown version",
          [&](PredictRequest* r) { spec(r)->mutable_version()->set_value(99); },
          StatusCode::kNotFound, "Servable not found for request: Specific(m, 99)"),
      BadPredict(
          "an unknown label", [&](PredictRequest* r) { spec(r)->set_version_label("stable"); },
          kInvalid, "Unrecognized servable version label: stable"),
      BadPredict(
          "no spec", [](PredictRequest* r) { r->clear_model_spec(); }, kInvalid,
          "Missing ModelSpec"),
      BadPredict(
          "no name", [&](PredictRequest* r) { spec(r)->clear_name(); }, kInvalid,
          "ModelSpec has no name specified."),
      BadPredict(
          "2^40 elements in few bytes",
          [](PredictRequest* r) {
            InputOf(r, "x")->mutable_tensor_shape()->mutable_dim(0)->set_size(int64_t{1} << 39);
          },
          StatusCode::kResourceExhausted, "elements that the inputs do not list"),
      BadPredict(
          "a negative dimension",
          [](PredictRequest* r) {
            InputOf(r, "x")->mutable_tensor_shape()->mutable_dim(0)->set_size(-1);
          },
          kInvalid, "tensor parsing error: x"),
      BadPredict(
          "too few bytes",
          [](PredictRequest* r) {
            InputOf(r, "x")->clear_float_val();
            InputOf(r, "x")->set_tensor_content("abc");
          },
          kInvalid, "tensor parsing error: x"),
      BadPredict(
          "a dtype of nobody",
          [](PredictRequest* r) {
            InputOf(r, "x")->set_dtype(static_cast<tensorflow::DataType>(999));
          },
          kInvalid, ""),
  };
  // Of version and label, which are one field, the last one counts.
  PredictRequest by_version = ScalingRequest("m", 1), by_label;
  by_version.mutable_model_spec()->mutable_version()->set_value(1);
  by_label.mutable_model_spec()->set_version_label("stable");
  calls.push_back({"a version and a label", kPredictPath,
                   by_version.SerializeAsString() + by_label.SerializeAsString(), kInvalid,
                   "Unrecognized servable version label: stable"});
  calls.push_back(
      {"no message", kPredictPath, "\xff\xff\xff", kInvalid, "the message must be well formed"});
  calls.push_back({"an empty message", kPredictPath, "", kInvalid, "Missing ModelSpec"});
  // model_spec { name: "\xff" }
  calls.push_back({"a name that is no UTF-8", kPredictPath, std::string("\x0a\x03\x0a\x01\xff", 5),
                   kInvalid, "the message must be well formed"});
  return calls;
}

std::vector<BadCall> OtherBadCalls() {
  constexpr auto kInvalid = StatusCode::kInvalidArgument;
  std::vector<BadCall> calls;
  calls.push_back({"a method of nobody", "/tensorflow.serving.PredictionService/Guess", "",
                   StatusCode::kUnimplemented, ""});
  tensorflow::serving::ClassificationRequest classify;
  classify.mutable_model_spec()->set_name("m");
  classify.mutable_model_spec()->set_signature_name("nil");
  calls.push_back({"classify, an unknown signature", kClassifyPath, classify.SerializeAsString(),
                   kInvalid, "No signature was found with the name: nil"});
  tensorflow::serving::RegressionRequest regress;
  regress.mutable_model_spec()->set_name("m");
  regress.mutable_model_spec()->set_signature_name("nil");
  calls.push_back({"regress, an unknown signature", kRegressPath, regress.SerializeAsString(),
                   kInvalid, "No signature was found with the name: nil"});
  calls.push_back(
      {"no tasks", kMultiInferencePath, "", kInvalid, "ModelSpec has no name specified."});
  tensorflow::serving::GetModelMetadataRequest metadata;
  metadata.mutable_model_spec()->set_name("m");
  calls.push_back({"no field of metadata", kGetModelMetadataPath, metadata.SerializeAsString(),
                   kInvalid, "must specify at least one metadata_field"});
  metadata.add_metadata_field("weights");
  calls.push_back({"another field of metadata", kGetModelMetadataPath, metadata.SerializeAsString(),
                   kInvalid, "Metadata field weights is not supported"});
  tensorflow::serving::GetModelStatusRequest status;
  status.mutable_model_spec()->set_name("n");
  calls.push_back({"the status of an unknown model", kGetModelStatusPath,
                   status.SerializeAsString(), StatusCode::kNotFound,
                   "Could not find any versions of model n"});
  calls.push_back({"a configuration that is no list", kHandleReloadConfigRequestPath, "", kInvalid,
                   "Only ModelConfigList is currently supported"});

  inference::ModelInferRequest infer;
  infer.set_model_name("n");
  calls.push_back({"/v2 by gRPC, an unknown model", kInferPath, infer.SerializeAsString(),
                   StatusCode::kNotFound, "Latest(n)"});
  infer.set_model_name("m");
  infer.set_model_version("v2");
  calls.push_back({"/v2 by gRPC, a version that is no number", kInferPath,
                   infer.SerializeAsString(), kInvalid, "version must be a number"});
  infer.clear_model_version();
  auto* const x = infer.add_inputs();
  x->set_name("x");
  x->set_datatype("FP32");
  x->add_shape(1);
  x->add_shape(2);
  infer.add_raw_input_contents("abc");
  calls.push_back({"/v2 by gRPC, too few bytes", kInferPath, infer.SerializeAsString(), kInvalid,
                   "must have 8 bytes, got 3"});
  x->set_datatype("FLOAT");
  calls.push_back({"/v2 by gRPC, another datatype", kInferPath, infer.SerializeAsString(), kInvalid,
                   "datatype must be one of the protocol"});
  return calls;
}

BadHttp BadBody(const std::string& what, const std::string& body, const std::string& text,
                int status = 400) {
  return {what, HttpRequestText("POST", "/v1/models/m:predict", body), status, text};
}
BadHttp BadV2(const std::string& what, const std::string& body, const std::string& text,
              int status = 400) {
  return {what, HttpRequestText("POST", "/v2/models/m/infer", body), status, text};
}
BadHttp BadPath(const std::string& method, const std::string& path, const std::string& body,
                int status, const std::string& text) {
  return {absl::StrCat(method, " ", path), HttpRequestText(method, path, body), status, text};
}
BadHttp BadHead(const std::string& what, const std::string& headers, const std::string& body,
                int status, const std::string& text) {
  return {
      what,
      absl::StrCat("POST /v1/models/m:predict HTTP/1.1\r\nHost: test\r\n", headers, "\r\n", body),
      status, text};
}

std::vector<BadHttp> BadRests() {
  const std::string row = R"({"x": [1, 2], "w": "a"})";
  return {
      BadBody("no body", "", "JSON Parse error: The document is empty"),
      BadBody("a body that breaks off", R"({"instances": [1.0)", "JSON Parse error: "),
      BadBody("a list", "[]", "Is not object"),
      BadBody("no data", "{}", "Missing 'inputs' or 'instances' key"),
      BadBody("both forms", absl::StrCat(R"({"instances": [)", row, R"(], "inputs": )", row, "}"),
              "expecting only one of 'inputs' or 'instances' keys to exist"),
      BadBody("no rows", R"({"instances": []})", "No values in 'instances' array"),
      BadBody("rows that are no list", R"({"instances": 7})",
              "Expecting 'instances' to be an list/array"),
      BadBody("an unknown signature",
              absl::StrCat(R"({"signature_name": "nil", "instances": [)", row, "]}"),
              "not found in signature def"),
      BadBody("a signature that is no text",
              absl::StrCat(R"({"signature_name": 7, "instances": [)", row, "]}"),
              "'signature_name' key must be a string value"),
      BadBody("ragged rows", absl::StrCat(R"({"instances": [)", row, R"(, {"x": [1], "w": "b"}]})"),
              "\"error\": \""),
      BadBody("ragged lists", R"({"inputs": {"x": [[1, 2], [3]], "w": ["a", "b"]}})",
              "Encountered list at unexpected size"),
      BadBody("a row without an input", R"({"instances": [{"x": [1, 2]}]})",
              "Failed to process element: 0 of 'instances' list"),
      BadBody("a missing column", R"({"inputs": {"x": [[1, 2]]}})",
              "Missing named input: w in 'inputs' object."),
      BadBody("text for a number", R"({"inputs": {"x": [["a", 2]], "w": ["a"]}})",
              "is not of expected type: float"),
      BadBody("a number for text", R"({"inputs": {"x": [[1, 2]], "w": [7]}})",
              "is not of expected type: string"),
      BadBody("base64 that is none", R"({"inputs": {"x": [[1, 2]], "w": [{"b64": "%%%"}]}})",
              "Unable to base64 decode"),
      BadBody("another shape", R"({"inputs": {"x": [[1, 2, 3]], "w": ["a"]}})", "\"error\": \""),
      BadBody("100,000 brackets", absl::StrCat(R"({"inputs": )", std::string(100'000, '[')),
              "nested deeper than 1000"),
      // The parser of TensorFlow Serving does not look at it.
      BadBody("text that is no UTF-8", "{\"inputs\": {\"x\": [[1, 2]], \"w\": [\"\xff\"]}}", "", 0),
      BadPath("POST", "/v1/models/n:predict", "{}", 404,
              "Servable not found for request: Latest(n)"),
      BadPath("POST", "/v1/models/m/versions/99:predict", "{}", 404,
              "Servable not found for request: Specific(m, 99)"),
      BadPath("POST", "/v1/models/m/versions/99999999999999999999:predict", "{}", 400,
              "Failed to convert version: 99999999999999999999 to numeric."),
      BadPath("POST", "/v1/models/m/labels/stable:predict", "{}", 400,
              "Unrecognized servable version label: stable"),
      BadPath("POST", "/v1/models/m:guess", "{}", 400, "Malformed request: POST"),
      BadPath("DELETE", "/v1/models/m", "", 400, "Malformed request: DELETE /v1/models/m"),
      BadPath("GET", "/v1/models/n", "", 404, "Could not find any versions of model n"),
      BadPath("GET", "/nothing", "", 404, ""),
      BadPath("POST", "/v1/models/m:classify", "{}", 400, "'examples' is expected"),
      BadHead("another coding", "Content-Encoding: br\r\nContent-Length: 2\r\n", "{}", 415,
              "Content-Encoding must be gzip or identity"),
      BadHead("gzip that is none", "Content-Encoding: gzip\r\nContent-Length: 2\r\n", "{}", 400,
              "gzip: the bytes must be gzip"),
      BadHead("1 TB to come", "Content-Length: 1000000000000\r\n", "", 413,
              "the body must be at most"),
      BadHead("two lengths", "Content-Length: 2\r\nContent-Length: 3\r\n", "{}", 400,
              "there must be one Content-Length"),
      BadHead("another transfer coding", "Transfer-Encoding: gzip\r\n", "", 501,
              "Transfer-Encoding must be chunked"),
  };
}

std::vector<BadHttp> BadV2s() {
  const std::string x = R"({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]})";
  const std::string w = R"({"name": "w", "shape": [1], "datatype": "BYTES", "data": ["a"]})";
  const auto inputs = [](const std::string& list, const std::string& more = "") {
    return absl::StrCat(R"({"inputs": [)", list, "]", more, "}");
  };
  return {
      BadV2("/v2: no body", "", "\"error\": \""),
      BadV2("/v2: a body that breaks off", R"({"inputs": [)", "JSON Parse error: "),
      BadV2("/v2: no inputs", "{}", "'inputs' must be given"),
      BadV2("/v2: a missing input", inputs(x), "input size does not match signature: 1!=2"),
      BadV2("/v2: an input twice", inputs(absl::StrCat(x, ", ", x)),
            "inputs must have different names"),
      BadV2("/v2: an unknown output",
            inputs(absl::StrCat(x, ", ", w), R"(, "outputs": [{"name": "nil"}])"),
            "output tensor alias not found in signature: nil"),
      BadV2("/v2: an output twice",
            inputs(absl::StrCat(x, ", ", w), R"(, "outputs": [{"name": "y"}, {"name": "y"}])"),
            "each output must be asked for once"),
      BadV2("/v2: another datatype",
            inputs(R"({"name": "x", "shape": [1, 2], "datatype": "FLOAT", "data": [1, 2]})"),
            "datatype must be one of the protocol"),
      BadV2("/v2: too few elements",
            inputs(R"({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1]})"),
            "'data' must be flat with 2 elements"),
      BadV2("/v2: a negative dimension",
            inputs(R"({"name": "x", "shape": [-1, 2], "datatype": "FP32", "data": [1, 2]})"),
            "must be a list of numbers >= 0"),
      BadV2("/v2: 2^40 elements",
            inputs(R"({"name": "x", "shape": [549755813888, 2], "datatype": "FP32", "data": [1]})"),
            "'data' must be flat with 1099511627776 elements"),
      BadV2("/v2: 100,000 brackets", absl::StrCat(R"({"inputs": )", std::string(100'000, '[')),
            "\"error\": \""),
      BadPath("POST", "/v2/models/n/infer", "{}", 404, "Latest(n)"),
      BadPath("POST", "/v2/models/m/versions/x/infer", "{}", 400, "version must be a number"),
      BadPath("GET", "/v2/models/m/infer", "", 400, "Malformed request: GET /v2/models/m/infer"),
      BadPath("GET", "/v2/models/m/config", "", 404, "Path must be one of"),
      {"/v2: a length beyond the body",
       HttpRequestText("POST", "/v2/models/m/infer", "{}",
                       "Inference-Header-Content-Length: 3\r\n"),
       400, "Inference-Header-Content-Length must be"},
  };
}

// 8 x 32 MiB of zeros: above the bound of a body, in a few hundred KiB.
StatusOr<std::string> GzipBomb() {
  MR_ASSIGN_OR_RETURN(const std::string member, Gzip(std::string(size_t{32} << 20, '\0')));
  std::string bomb;
  for (int i = 0; i < 8; ++i) bomb += member;
  return bomb;
}

class BadRequestsTest : public ServedProcessTest {
 protected:
  void SetUp() override {
    ServedProcessTest::SetUp();
    ASSERT_OK(ExportScaling(Version(1), {.scale = kScale}));
  }

  void Mix(const std::vector<std::string>& flags) {
    ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = Args(flags)}));
    const pid_t pid = server->process()->pid();
    RestAsker rest(server->rest_port(), "m", RestAsker::Api::kRest);
    RestAsker v2(server->rest_port(), "m", RestAsker::Api::kV2);
    ASSERT_OK(Expect(kScale, server->AskGrpc("m", 1)));
    ASSERT_OK(Expect(kScale, rest.Ask(1)));
    ASSERT_OK(Expect(kScale, v2.Ask(1)));
    const int64_t base = RssBytes(pid);
    ASSERT_GT(base, 0);

    std::vector<BadCall> calls = BadPredicts();
    for (BadCall& call : OtherBadCalls()) calls.push_back(std::move(call));
    std::vector<BadHttp> https = BadRests();
    for (BadHttp& http : BadV2s()) https.push_back(std::move(http));
    ASSERT_OK_AND_ASSIGN(const std::string bomb, GzipBomb());
    https.push_back(
        BadHead("a gzip bomb",
                absl::StrCat("Content-Encoding: gzip\r\nContent-Length: ", bomb.size(), "\r\n"),
                bomb, 413, "gzip: the "));

    SteadyLoad load({GrpcClient(*server, kScale), GrpcClient(*server, kScale),
                     RestClient(*server, RestAsker::Api::kRest, kScale),
                     RestClient(*server, RestAsker::Api::kV2, kScale)});
    int number = 1;
    for (int round = 0; round < kRounds; ++round) {
      for (const BadCall& bad : calls) {
        SCOPED_TRACE(bad.what);
        EXPECT_STATUS(server->CallRaw(bad.path, bad.bytes), bad.code, bad.text);
        EXPECT_OK(Expect(kScale, server->AskGrpc("m", NumberOf(number++))));
      }
      for (const BadHttp& bad : https) {
        SCOPED_TRACE(bad.what);
        RawHttpClient client(server->rest_port());
        const RawHttpReply reply = client.Ask(bad.request);
        const bool is_right = bad.status != 0 ? reply.status == bad.status
                                              : reply.status == 200 || reply.status == 400;
        EXPECT_TRUE(is_right) << "must be " << bad.status << ", got " << reply.status << ": "
                              << reply.body.substr(0, 500);
        EXPECT_TRUE(absl::StrContains(reply.body, bad.text))
            << "must have '" << bad.text << "', got " << reply.body.substr(0, 500);
        EXPECT_OK(Expect(kScale, rest.Ask(NumberOf(number++))));
        EXPECT_OK(Expect(kScale, v2.Ask(NumberOf(number++))));
      }
    }
    EXPECT_TRUE(load.AwaitMore(5));
    EXPECT_OK(load.Stop());
    // What each of the large ones asks for would be more.
    EXPECT_LE(RssBytes(pid), base + 256 * kMiB);
    ASSERT_OK_AND_ASSIGN(const int code, server->Terminate());
    EXPECT_EQ(code, 0) << server->process()->output();
  }
};

TEST_F(BadRequestsTest, Unbatched) { Mix({}); }

TEST_F(BadRequestsTest, Batched) { Mix({"--enable_batching"}); }

TEST_F(BadRequestsTest, BatchedByParameters) {
  ASSERT_OK(WriteFileAtomically(files(), Path("batching"),
                                "max_batch_size { value: 8 } batch_timeout_micros { value: 1000 } "
                                "max_enqueued_batches { value: 100 } "
                                "num_batch_threads { value: 2 }"));
  Mix({"--enable_batching", absl::StrCat("--batching_parameters_file=", Path("batching"))});
}

// By parameters, as TensorFlow Serving; without them such a request runs alone, and the model says
// what it thinks of it.
TEST_F(BadRequestsTest, InputsOfDifferentRowsAreRefusedWhereRowsMatter) {
  PredictRequest request = ScalingRequest("m", 1);
  tensorflow::TensorProto* const w = InputOf(&request, "w");
  w->mutable_tensor_shape()->mutable_dim(0)->set_size(2);
  w->add_string_val("b");
  ASSERT_OK(WriteFileAtomically(files(), Path("batching"), "max_batch_size { value: 8 }"));
  ASSERT_OK_AND_ASSIGN(
      const auto server,
      ServedProcess::Start(
          {.args = Args({"--enable_batching",
                         absl::StrCat("--batching_parameters_file=", Path("batching"))})}));
  EXPECT_STATUS(server->CallRaw(kPredictPath, request.SerializeAsString()),
                StatusCode::kInvalidArgument,
                "Batching Run() input tensors must have equal 0th-dimension size");
  EXPECT_OK(Expect(kScale, server->AskGrpc("m", 3)));
}

}  // namespace
}  // namespace millrace
