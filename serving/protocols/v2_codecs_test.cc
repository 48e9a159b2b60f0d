// SPDX-License-Identifier: Apache-2.0
//
// Tensors of the Open Inference Protocol: raw, in messages, in JSON; there and back, and hostile.

#include <google/protobuf/text_format.h>

#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/inference/grpc_service.pb.h"
#include "serving/aliased_tensor.h"
#include "serving/protocols/v2_infer.h"
#include "serving/protocols/v2_json.h"
#include "serving/protocols/v2_messages.h"
#include "serving/protocols/v2_tensors.h"
#include "serving/rest/json_scan.h"

// covers: serving: tensors of every datatype of the Open Inference Protocol go through its
// messages,
//   its raw form and its JSON and come back; wrong sizes, shapes, names and types are refused by
//   name

namespace millrace {
namespace {

using ::inference::ModelInferRequest;
using ::inference::ModelInferResponse;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// One of each datatype with a typed form, at the ends of its range.
std::vector<Tensor> TypedTensors() {
  return {
      Tensor::Of<bool>({true, false}),
      Tensor::Of<int8_t>({-128, 127}),
      Tensor::Of<int16_t>({-32768, 32767}),
      Tensor::Of<int32_t>({std::numeric_limits<int32_t>::min(), 7}),
      Tensor::Of<int64_t>({std::numeric_limits<int64_t>::min(), int64_t{7}}),
      Tensor::Of<uint8_t>({0, 255}),
      Tensor::Of<uint16_t>({0, 65535}),
      Tensor::Of<uint32_t>({uint32_t{0}, std::numeric_limits<uint32_t>::max()}),
      Tensor::Of<uint64_t>({uint64_t{0}, std::numeric_limits<uint64_t>::max()}),
      Tensor::Of<float>({0.1f, -2.5f}),
      Tensor::Of<double>({0.1, -1e300}),
      Tensor::Of({"", "a\"\n"}),
      Tensor::Of<float>({{1, 2, 3}, {4, 5, 6}}),
      Tensor::Scalar<float>(2.5f),
      TensorOf<float>({0, 3}, {}),
      TensorOf<std::string>({2, 0}, {}),
  };
}
std::vector<Tensor> AllTensors() {
  std::vector<Tensor> tensors = TypedTensors();
  tensors.push_back(Tensor::Of<Half>({1, 2}));
  tensors.push_back(Tensor::Of<Bfloat16>({1, 2}));
  return tensors;
}
std::vector<AliasedTensor> Named(const std::vector<Tensor>& tensors) {
  std::vector<AliasedTensor> named;
  for (const Tensor& tensor : tensors) named.push_back({absl::StrCat("t", named.size()), tensor});
  return named;
}
void ExpectSame(const std::vector<AliasedTensor>& got, const std::vector<AliasedTensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].alias, want[i].alias);
    EXPECT_EQ(got[i].tensor, want[i].tensor) << want[i].alias;
  }
}

// An output of a response has the fields of an input of a request.
ModelInferRequest RequestOf(const ModelInferResponse& response) {
  ModelInferRequest request;
  for (const auto& output : response.outputs()) {
    EXPECT_TRUE(request.add_inputs()->ParseFromString(output.SerializeAsString()));
  }
  *request.mutable_raw_input_contents() = response.raw_output_contents();
  return request;
}

TEST(V2Codecs, MessagesComeBack) {
  for (const bool raw : {false, true}) {
    SCOPED_TRACE(raw);
    const auto sent = Named(raw ? AllTensors() : TypedTensors());
    ModelInferResponse response;
    ASSERT_OK(WriteInferOutputs(sent, raw, &response));
    EXPECT_EQ(response.raw_output_contents_size(), raw ? response.outputs_size() : 0);
    const StatusOr<V2Infer> read = ReadInferRequest(RequestOf(response));
    ASSERT_OK(read);
    ExpectSame(read->inputs, sent);
    EXPECT_EQ(read->raw_outputs, raw);
  }
}

TEST(V2Codecs, OneOutputWithoutATypedFormMakesTheResponseRaw) {
  ModelInferResponse response;
  ASSERT_OK(WriteInferOutputs(Named({Tensor::Of<float>({1}), Tensor::Of<Half>({1})}), /*raw=*/false,
                              &response));
  EXPECT_EQ(response.raw_output_contents_size(), 2);
  EXPECT_FALSE(response.outputs(0).has_contents());
  EXPECT_STATUS(
      WriteInferOutputs(Named({Tensor::Of<std::complex<float>>({std::complex<float>(1)})}), false,
                        &response),
      absl::StatusCode::kUnimplemented, "complex64");
}

TEST(V2Codecs, RawFormsAreThoseOfTheProtocol) {
  const StatusOr<std::string> bytes = RawV2("x", Tensor::Of({"ab", ""}));
  ASSERT_OK(bytes);
  EXPECT_EQ(*bytes, std::string("\2\0\0\0ab\0\0\0\0", 10));
  const StatusOr<std::string> numbers = RawV2("x", Tensor::Of<int16_t>({1, -2}));
  ASSERT_OK(numbers);
  EXPECT_EQ(*numbers, std::string("\1\0\xfe\xff", 4));
  // Any byte but 0 is true.
  const StatusOr<Tensor> bools =
      TensorOfRawV2("x", DT_BOOL, Shape{3}, absl::string_view("\0\1\x80", 3));
  ASSERT_OK(bools);
  EXPECT_EQ(*bools, Tensor::Of<bool>({false, true, true}));
}

TEST(V2Codecs, RawBytesMayLieInPieces) {
  const auto sent = Named(AllTensors());
  ModelInferResponse response;
  ASSERT_OK(WriteInferOutputs(sent, /*raw=*/true, &response));
  const ModelInferRequest request = RequestOf(response);
  // Each cut in two, some in the middle of an element.
  std::vector<std::vector<absl::string_view>> pieces;
  for (const std::string& one : request.raw_input_contents()) {
    const absl::string_view whole = one;
    pieces.push_back({whole.substr(0, whole.size() / 3), whole.substr(whole.size() / 3)});
  }
  const V2RawContents raw(pieces.begin(), pieces.end());
  const StatusOr<V2Infer> read = ReadInferRequest(request, raw);
  ASSERT_OK(read);
  ExpectSame(read->inputs, sent);
}

TEST(V2Codecs, WrongRawBytesAreRefused) {
  const auto read = [](DType dtype, const Shape& shape, absl::string_view raw) {
    return TensorOfRawV2("Input 'x'", dtype, shape, raw).status();
  };
  const auto raw = [](const char* bytes, size_t n) { return absl::string_view(bytes, n); };
  EXPECT_STATUS(read(DT_FLOAT, Shape{2}, raw("1234567", 7)), kInvalid,
                "Input 'x': FP32 of shape [2] must have 8 bytes, got 7");
  EXPECT_STATUS(read(DT_FLOAT, Shape{}, ""), kInvalid, "must have 4 bytes, got 0");
  // Nothing is allocated for what is not there.
  EXPECT_STATUS(read(DT_DOUBLE, Shape{int64_t{1} << 40}, "1"), kInvalid, "got 1");
  EXPECT_STATUS(read(DT_STRING, Shape{int64_t{1} << 40}, "1"), kInvalid, "got 1 bytes in all");
  EXPECT_STATUS(read(DT_STRING, Shape{1}, raw("\xff\xff\xff\xff", 4)), kInvalid,
                "got one at byte 0 of length 4294967295");
  EXPECT_STATUS(read(DT_STRING, Shape{1}, raw("\3\0\0\0ab", 6)), kInvalid, "of length 3");
  // The first one leaves three bytes for the second one's length.
  EXPECT_STATUS(read(DT_STRING, Shape{2}, raw("\1\0\0\0a\0\0\0", 8)), kInvalid, "at byte 5");
  EXPECT_STATUS(read(DT_STRING, Shape{1}, raw("\1\0\0\0ab", 6)), kInvalid, "got elements of 5");
}

TEST(V2Codecs, WrongMessagesAreRefused) {
  const auto read = [](const std::string& text) {
    ModelInferRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
    return ReadInferRequest(request).status();
  };
  const struct {
    const char *request, *error;
  } bad[] = {
      {R"(inputs { name: "x" datatype: "FLOAT" })", "Input 'x': datatype must be one"},
      {R"(inputs { name: "x" shape: 1 })", "got ''"},
      {R"(inputs { name: "x" datatype: "FP32" shape: -1 })", "Input 'x'"},
      {R"(inputs { name: "x" datatype: "FP32" shape: [4611686018427387904, 4] })", "Input 'x'"},
      {R"(inputs { name: "x" datatype: "FP32" shape: 2 })", "must have 2 elements"},
      {R"(inputs { name: "x" datatype: "FP32" shape: 2 contents { fp32_contents: 1 } })",
       "must have 2 elements in the field of its datatype, got 1"},
      {R"(inputs { name: "x" datatype: "FP32" shape: 1 contents { fp64_contents: 1 } })",
       "must have 1 elements in the field of its datatype, got 0"},
      {R"(inputs { name: "x" datatype: "FP32" shape: 1
                   contents { fp32_contents: 1 int_contents: 1 } })",
       "got elements in others, too"},
      {R"(inputs { name: "x" datatype: "INT8" shape: 1 contents { int_contents: 128 } })",
       "elements must be INT8s, got 128"},
      {R"(inputs { name: "x" datatype: "UINT8" shape: 1 contents { uint_contents: 256 } })",
       "elements must be UINT8s, got 256"},
      {R"(inputs { name: "x" datatype: "FP16" shape: 1 contents { fp32_contents: 1 } })",
       "FP16 has no typed contents"},
      {R"(inputs { name: "x" datatype: "INT8" shape: 0 }
          inputs { name: "x" datatype: "INT8" shape: 0 })",
       "Input 'x': inputs must have different names"},
      {R"(inputs { name: "x" datatype: "INT8" shape: 1 } raw_input_contents: ["a", "b"])",
       "must be one for each of 1 inputs, got 2"},
      {R"(inputs { name: "x" datatype: "INT8" shape: 1 contents { int_contents: 1 } }
          raw_input_contents: "a")",
       "got both"},
      {R"(parameters { key: "signature_name" value { int64_param: 1 } })", "must be a string"},
  };
  for (const auto& c : bad) EXPECT_STATUS(read(c.request), kInvalid, c.error);
  EXPECT_STATUS(read(R"(inputs { name: "x" parameters { key: "shared_memory_region"
                                 value { string_param: "r" } } })"),
                absl::StatusCode::kUnimplemented, "shared_memory_region");
}

// --- JSON.

TEST(V2Codecs, JsonComesBack) {
  for (const bool raw : {false, true}) {
    SCOPED_TRACE(raw);
    const auto sent = Named(raw ? AllTensors() : TypedTensors());
    V2Infer asked;
    asked.raw_outputs = raw;
    const StatusOr<V2JsonReply> reply = WriteV2Json("m", 3, asked, sent);
    ASSERT_OK(reply);
    EXPECT_EQ(reply->json_bytes < reply->body.size(), raw);
    // The tensors of a reply have the form of a request's.
    const absl::string_view json = absl::string_view(reply->body).substr(0, reply->json_bytes);
    const absl::string_view binary = absl::string_view(reply->body).substr(reply->json_bytes);
    constexpr absl::string_view kOutputs = "\"outputs\":";
    const size_t at = json.find(kOutputs);
    ASSERT_NE(at, absl::string_view::npos);
    const std::string request = absl::StrCat("{\"inputs\":", json.substr(at + kOutputs.size()));
    const StatusOr<V2Infer> read = ReadV2Json(request, binary);
    ASSERT_OK(read);
    ExpectSame(read->inputs, sent);
  }
}

TEST(V2Codecs, RepliesAreCompactJson) {
  V2Infer asked;
  asked.id = "4\"2";
  const StatusOr<V2JsonReply> reply =
      WriteV2Json("m", 3, asked, Named({TensorOf<float>({1, 2}, {1.5f, 2}), Tensor::Of({"w"})}));
  ASSERT_OK(reply);
  EXPECT_EQ(reply->body, R"({"model_name":"m","model_version":"3","id":"4\"2","outputs":[)"
                         R"({"name":"t0","datatype":"FP32","shape":[1,2],"data":[1.5,2.0]},)"
                         R"({"name":"t1","datatype":"BYTES","shape":[1],"data":["w"]}]})");
  EXPECT_EQ(reply->json_bytes, reply->body.size());
  const auto write = [&](const Tensor& tensor, int64_t max_bytes) {
    return WriteV2Json("m", 3, asked, Named({tensor}), max_bytes).status();
  };
  EXPECT_STATUS(write(Tensor::Of<Half>({1}), 1000), kInvalid, "ask for binary_data");
  EXPECT_STATUS(write(Tensor::Of({"\xff"}), 1000), kInvalid, "must be text");
  EXPECT_STATUS(write(Tensor::Of<float>({1, 2, 3}), 100), absl::StatusCode::kResourceExhausted,
                "at most 100 bytes");
}

TEST(V2Codecs, JsonIsReadInAnyOrderAndNesting) {
  const Tensor want = Tensor::Of<float>({{1, 2}, {3, 4}});
  for (const char* input : {
           R"({"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]})",
           R"({"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]})",
           R"({"data": [1, 2, 3, 4], "datatype": "FP32", "shape": [2, 2], "name": "x"})",
           R"({"data": [[1, 2], [3, 4]], "name": "x", "shape": [2, 2], "datatype": "FP32"})",
           R"({"datatype": "FP32", "data": [1, 2, 3, 4], "shape": [2, 2], "name": "x",
               "parameters": {"a": [{"b": {}}]}, "other": [{}, [1], "s"]})",
       }) {
    SCOPED_TRACE(input);
    const StatusOr<V2Infer> read = ReadV2Json(
        absl::StrCat(R"({"other": {"inputs": 1}, "id": "7", "inputs": [)", input,
                     R"(], "parameters": {"signature_name": "s", "binary_data_output": true},
                        "outputs": [{"name": "y", "parameters": {"binary_data": false}},
                                    {"name": "z"}]})"),
        "");
    ASSERT_OK(read);
    ASSERT_EQ(read->inputs.size(), 1u);
    EXPECT_EQ(read->inputs[0].alias, "x");
    EXPECT_EQ(read->inputs[0].tensor, want);
    EXPECT_EQ(read->id, "7");
    EXPECT_EQ(read->signature_name, "s");
    ASSERT_EQ(read->outputs.size(), 2u);
    EXPECT_FALSE(read->outputs[0].raw);
    EXPECT_TRUE(read->outputs[1].raw);
  }
  const StatusOr<V2Infer> read = ReadV2Json(
      R"({"id": null, "parameters": null, "outputs": null,
          "inputs": [{"name": "s", "shape": [], "datatype": "BYTES", "data": [{"b64": "AP8="}]}]})",
      "");
  ASSERT_OK(read);
  EXPECT_EQ(read->inputs[0].tensor, Tensor::Scalar(std::string("\0\xff", 2)));
}

TEST(V2Codecs, WrongJsonIsRefused) {
  const auto of_input = [](const std::string& fields) {
    return absl::StrCat(R"({"inputs": [{"name": "x", )", fields, "}]}");
  };
  const struct {
    std::string json;
    const char* error;
  } bad[] = {
      {"", "The document is empty"},
      {"{", "JSON Parse error"},
      {"[]", "it must be an object"},
      {"1", "it must be an object"},
      {"{}", "'inputs' must be given"},
      {R"({"inputs": {}})", "'inputs' must be a list of objects"},
      {R"({"inputs": [1]})", "must be objects"},
      {R"({"inputs": [[]]})", "must be objects"},
      {R"({"inputs": [], "inputs": []})", "'inputs' must be there once"},
      {R"({"inputs": [], "id": 7})", "'id' must be a string, got Number"},
      {R"({"inputs": [], "parameters": []})", "'parameters' must be an object"},
      {R"({"inputs": [], "parameters": {"signature_name": 1}})", "must be a string"},
      {R"({"inputs": [], "parameters": {"binary_data_output": 1}})", "must be true or false"},
      {R"({"inputs": [], "outputs": [{}]})", "Output 0: 'name' must be given"},
      {R"({"inputs": [{}]})", "Input 0: 'name' must be given"},
      {of_input(R"("shape": [1], "data": [1])"), "Input 'x': 'datatype' must be given"},
      {of_input(R"("datatype": "FP32", "data": [1])"), "Input 'x': 'shape' must be given"},
      {of_input(R"("datatype": "FP32", "shape": [1])"), "got none"},
      {of_input(R"("datatype": "FP32", "shape": [1], "data": [1],
                   "parameters": {"binary_data_size": 4})"),
       "got both"},
      {of_input(R"("datatype": "FP33", "shape": [1], "data": [1])"), "got 'FP33'"},
      {of_input(R"("datatype": "FP32", "shape": [-1], "data": [1])"), "'shape' must be a list"},
      {of_input(R"("datatype": "FP32", "shape": [1.5], "data": [1])"), "got 1.5"},
      {of_input(R"("datatype": "FP32", "shape": ["1"], "data": [1])"), "'shape' must be a list"},
      {of_input(R"("datatype": "FP32", "shape": [4611686018427387904, 4], "data": [1])"),
       "Input 'x'"},
      {of_input(R"("datatype": "FP32", "shape": [2], "data": [1])"),
       "'data' must be flat with 2 elements or nested as its shape [2], got a list of shape [1]"},
      {of_input(R"("datatype": "FP32", "shape": [1, 4], "data": [[1, 2], [3, 4]])"),
       "got a list of shape [2,2]"},
      {of_input(R"("datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3]])"), "Input 'x'"},
      {of_input(R"("datatype": "FP32", "shape": [1], "data": 1)"), "'data' must be a list"},
      {of_input(R"("datatype": "FP32", "shape": [1], "data": ["a"])"), "Input 'x'"},
      {of_input(R"("datatype": "INT8", "shape": [1], "data": [128])"), "Input 'x'"},
      {of_input(R"("datatype": "BOOL", "shape": [1], "data": [1])"), "Input 'x'"},
      {of_input(R"("data": [128], "datatype": "INT8", "shape": [1])"), "Input 'x'"},
      {of_input(R"("datatype": "FP16", "shape": [1], "data": [1])"), "FP16 has no form in JSON"},
      {of_input(R"("datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4})"),
       "must be within the 0 bytes"},
      {of_input(R"("datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": -4})"),
       "'binary_data_size' must be a number"},
      {of_input(R"("datatype": "FP32", "shape": [0], "data": []}, {"name": "x",
                   "datatype": "FP32", "shape": [0], "data": [])"),
       "inputs must have different names"},
      {of_input(
           absl::StrCat(R"("datatype": "FP32", "shape": [1], "data": )", std::string(2000, '['))),
       "nested deeper than 1000"},
  };
  for (const auto& c : bad) {
    SCOPED_TRACE(c.json.substr(0, 200));
    EXPECT_STATUS(ReadV2Json(c.json, "").status(), kInvalid, c.error);
  }
  EXPECT_STATUS(ReadV2Json(of_input(R"("parameters": {"shared_memory_region": "r"})"), "").status(),
                absl::StatusCode::kUnimplemented, "shared_memory_region");
  const std::string of_four_bytes =
      of_input(R"("datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4})");
  EXPECT_OK(ReadV2Json(of_four_bytes, "1234"));
  EXPECT_STATUS(ReadV2Json(of_four_bytes, "12345").status(), kInvalid, "1 are left");
  EXPECT_STATUS(ReadV2Json(of_four_bytes, "123").status(), kInvalid, "within the 3 bytes");
  JsonLimits few;
  few.max_elements = 3;
  EXPECT_STATUS(
      ReadV2Json(of_input(R"("datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4])"), "", few)
          .status(),
      kInvalid, "at most 3 elements");
}

TEST(V2Codecs, VersionsAreNumbers) {
  const StatusOr<V2Target> latest = V2TargetOf("m", "");
  ASSERT_OK(latest);
  EXPECT_FALSE(latest->version.has_value());
  const StatusOr<V2Target> three = V2TargetOf("m", "3");
  ASSERT_OK(three);
  EXPECT_EQ(three->version, 3);
  for (const char* text : {"v3", "-1", "9223372036854775808", " "}) {
    EXPECT_STATUS(V2TargetOf("m", text).status(), kInvalid, "Model m: version must be a number");
  }
}

}  // namespace
}  // namespace millrace
