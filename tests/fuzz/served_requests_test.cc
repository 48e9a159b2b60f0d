// SPDX-License-Identifier: Apache-2.0
//
// What strangers send to a model server, and the texts that configure it (fuzz.h): paths, bodies of
// the Open Inference Protocol, PredictRequests to a loaded model, configurations. rest_bodies_test
// has the bodies of TensorFlow Serving's REST.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/dtype.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/tensor_coding.h"
#include "proto/serving/predict.pb.h"
#include "proto/tensor.pb.h"
#include "proto/types.pb.h"
#include "serving/aliased_tensor.h"
#include "serving/batching/batch_parameters.h"
#include "serving/model_config.h"
#include "serving/model_requests.h"
#include "serving/model_versions.h"
#include "serving/protocols/v2_infer.h"
#include "serving/protocols/v2_json.h"
#include "serving/rest/rest_path.h"
#include "serving/served_model.h"
#include "serving/server/model_server.h"
#include "serving/server/predict_call.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutator.h"
#include "tests/serving/served_models.h"

// covers: serving: paths, bodies of the Open Inference Protocol, PredictRequests, and texts of
//   configurations survive a seeded mutator: each is read or refused, and a body that is written
//   and read again is the same

namespace millrace {
namespace {

using tensorflow::serving::PredictRequest;
using tensorflow::serving::PredictResponse;

bool IsOfTheSender(const Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
         absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) ||
         absl::IsNotFound(status) || absl::IsOutOfRange(status);
}

TEST(ServedRequestsTest, Paths) {
  const std::vector<std::string> paths = {"/v1/models",
                                          "/v1/models/m",
                                          "/v1/models/m:predict",
                                          "/V1/models/m/versions/12:classify",
                                          "/v1/models/m/metadata",
                                          "/v1/models/a%20b/labels/stable:regress",
                                          "/v1/models/m/versions/3"};
  int read = 0;
  Fuzz(20000, paths, [&](const std::string& path, Mutator* mutator) {
    EXPECT_LE(PercentDecoded(path).size(), path.size());
    const char* const method = mutator->Below(2) == 0 ? "GET" : "POST";
    if (!IsRestPath(path)) return;
    const StatusOr<RestTarget> target = ParseRestPath(method, path);
    if (!target.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(target.status())) << target.status();
      return;
    }
    ++read;
    EXPECT_EQ(target->model_name.empty(), target->kind == RestTarget::Kind::kListModels) << path;
    EXPECT_GE(target->version.value_or(0), 0) << path;
  });
  EXPECT_GT(read, 0);
}

TEST(ServedRequestsTest, V2Bodies) {
  const std::vector<std::string> bodies = {
      R"({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2.5, -3, NaN]}]})",
      R"({"id": "42", "parameters": {"signature_name": "s"}, "inputs": [
          {"name": "a", "datatype": "INT64", "shape": [1, 2], "data": [[1, -2]]},
          {"name": "b", "shape": [2], "datatype": "BYTES", "data": ["a\u00e9\n", {"b64": "aGVsbG8="}]}],
          "outputs": [{"name": "a"}]})",
      R"({"inputs": [{"name": "x", "data": [true, false], "datatype": "BOOL", "shape": [2]}],
          "outputs": [{"name": "y", "parameters": {"binary_data": false}}]})",
      R"({"inputs": [{"name": "x", "shape": [], "datatype": "UINT8", "data": [255]},
                     {"name": "z", "shape": [0, 3], "datatype": "INT8", "data": []}]})"};
  int read = 0;
  Fuzz(20000, bodies, [&](const std::string& body, Mutator*) {
    const StatusOr<V2Infer> request = ReadV2Json(body, "");
    if (!request.ok()) {
      EXPECT_TRUE(IsOfTheSender(request.status())) << request.status() << "\n" << body;
      return;
    }
    ++read;
    for (const AliasedTensor& input : request->inputs) {
      ASSERT_LE(input.tensor.TotalBytes(), kMaxFuzzedTensorBytes);
    }
    // As the reply of a model that gives its inputs back, and that read again.
    V2Infer all_outputs;
    all_outputs.id = request->id;
    all_outputs.raw_outputs = request->raw_outputs;
    const StatusOr<V2JsonReply> reply = WriteV2Json("m", 1, all_outputs, request->inputs);
    if (!reply.ok()) {
      // Text that is no UTF-8, half-precision numbers.
      EXPECT_TRUE(IsOfTheSender(reply.status())) << reply.status() << "\n" << body;
      return;
    }
    const absl::string_view all = reply->body;
    const StatusOr<V2Infer> again = ReadV2Json(
        absl::StrReplaceAll(all.substr(0, reply->json_bytes), {{"\"outputs\":", "\"inputs\":"}}),
        all.substr(reply->json_bytes));
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << body << "\n" << reply->body;
    ASSERT_EQ(again->inputs.size(), request->inputs.size());
    for (size_t i = 0; i < again->inputs.size(); ++i) {
      const Tensor &got = again->inputs[i].tensor, &wanted = request->inputs[i].tensor;
      // RapidJSON does not read each of 17 digits back.
      if (wanted.dtype() == DT_DOUBLE) continue;
      EXPECT_EQ(got, wanted) << body << "\n" << reply->body;
    }
  });
  EXPECT_GT(read, 0);
}

TEST(ServedRequestsTest, TextsOfConfigurations) {
  const std::vector<std::string> texts = {
      R"pb(model_config_list {
             config { name: "a" base_path: "/a" model_platform: "tensorflow" }
             config {
               name: "b"
               base_path: "/b"
               model_type: TENSORFLOW
               model_version_policy { specific { versions: 3 versions: 1 } }
               version_labels { key: "stable" value: 3 }
               logging_config {
                 log_collector_config { type: "file" filename_prefix: "/logs/b" }
                 sampling_config { sampling_rate: 0.25 }
               }
             }
           })pb",
      R"pb(max_batch_size { value: 8 }
           batch_timeout_micros { value: 1000 }
           max_enqueued_batches { value: 100 }
           num_batch_threads { value: 4 }
           allowed_batch_sizes: 2
           allowed_batch_sizes: 8
           pad_variable_length_inputs: true)pb"};
  int models_read = 0, parameters_read = 0;
  Fuzz(5000, texts, [&](const std::string& text, Mutator*) {
    const StatusOr<std::vector<ModelSettings>> models = ReadModelConfig(text);
    models_read += models.ok() && models->size() == 2 ? 1 : 0;
    EXPECT_TRUE(models.ok() || IsOfTheSender(models.status())) << models.status();
    const StatusOr<BatchParameters> parameters = ReadBatchParameters(text);
    if (!parameters.ok()) {
      EXPECT_TRUE(IsOfTheSender(parameters.status())) << parameters.status();
      return;
    }
    ++parameters_read;
    EXPECT_GT(parameters->max_batch_size, 0) << text;
    EXPECT_GT(parameters->max_enqueued_batches, 0) << text;
    EXPECT_GE(parameters->batch_timeout, absl::ZeroDuration()) << text;
  });
  EXPECT_GT(models_read, 0);
  EXPECT_GT(parameters_read, 0);
}

class ServedModelFuzzTest : public ::testing::Test {
 protected:
  static constexpr float kScale = 3;

  void SetUp() override {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(base_));
    const std::string dir = JoinPath(base_, "7");
    ASSERT_OK(ExportScaling(dir, {.scale = kScale}));
    options_.max_splat_bytes = int64_t{1} << 20;
    StatusOr<std::unique_ptr<ServedModel>> model = ServedModel::Load("m", 7, dir, options_);
    ASSERT_OK(model);
    model_ = *std::move(model);
    SetMinLogLevel(LogLevel::kError);
  }
  void TearDown() override { EXPECT_OK(FileSystem::Posix()->RecursivelyDelete(base_)); }
  static PredictRequest Request(bool as_content) {
    PredictRequest request;
    request.mutable_model_spec()->set_name("m");
    request.mutable_model_spec()->set_signature_name("serving_default");
    tensorflow::TensorProto& x = (*request.mutable_inputs())["x"];
    x.set_dtype(tensorflow::DT_FLOAT);
    for (int i = 0; i < 2; ++i) x.mutable_tensor_shape()->add_dim()->set_size(2);
    const float values[] = {1, 2, 3, 4};
    for (const float value : values) {
      if (!as_content) x.add_float_val(value);
    }
    if (as_content) {
      x.set_tensor_content(reinterpret_cast<const char*>(values), sizeof(values));
      request.add_output_filter("y");
    }
    tensorflow::TensorProto& w = (*request.mutable_inputs())["w"];
    w.set_dtype(tensorflow::DT_STRING);
    w.mutable_tensor_shape()->add_dim()->set_size(2);
    w.add_string_val("a");
    w.add_string_val("b");
    return request;
  }

  const std::string base_ =
      JoinPath(::testing::TempDir(), absl::StrCat("fuzz_served_", RandomHexName()));
  ServedModelOptions options_;
  std::unique_ptr<ServedModel> model_;
};

// What a front reads by itself is what protobuf reads: the same replies, codes and texts.
TEST_F(ServedModelFuzzTest, BytesOfPredictRequestsMeanWhatTheirMessagesMean) {
  ModelServerOptions options;
  options.models = {{.name = "m", .base_path = base_}};
  options.model = options_;
  options.versions.source.trust_new_versions = true;
  options.versions.poll_period = absl::ZeroDuration();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelServer> server, ModelServer::Start(options));
  const ModelRequests& requests = server->requests();
  const std::vector<std::string> corpus = {Request(false).SerializeAsString(),
                                           Request(true).SerializeAsString()};
  int answered = 0;
  Fuzz(20000, corpus, [&](const std::string& bytes, Mutator*) {
    const grpc::Slice slice(bytes);
    const StatusOr<grpc::ByteBuffer> reply =
        AnswerPredict(requests, grpc::ByteBuffer(&slice, 1), {}, {});
    PredictRequest request;
    if (!request.ParseFromString(bytes)) {
      EXPECT_TRUE(absl::IsInvalidArgument(reply.status())) << reply.status() << "\n"
                                                           << absl::BytesToHexString(bytes);
      return;
    }
    PredictResponse expected, response;
    const Status status = requests.Predict(request, {}, &expected);
    EXPECT_EQ(reply.status(), status) << request.ShortDebugString();
    if (!reply.ok() || !status.ok()) return;
    ASSERT_OK(DecodeMessage("PredictResponse", *reply, &response));
    EXPECT_EQ(response.ShortDebugString(), expected.ShortDebugString());
    ++answered;
  });
  EXPECT_GE(answered, 20000 / kValidInputEach);
}

TEST_F(ServedModelFuzzTest, PredictRequests) {
  const std::vector<std::string> corpus = {Request(false).SerializeAsString(),
                                           Request(true).SerializeAsString()};
  int answered = 0;
  Fuzz(20000, corpus, [&](const std::string& bytes, Mutator*) {
    PredictRequest request;
    if (!request.ParseFromString(bytes)) return;
    PredictResponse response;
    const Status status = model_->Predict(request, {}, &response);
    if (!status.ok()) {
      EXPECT_TRUE(IsOfTheSender(status)) << status << "\n" << request.ShortDebugString();
      EXPECT_EQ(response.ByteSizeLong(), 0u);
      return;
    }
    EXPECT_EQ(response.model_spec().version().value(), 7);
    if (bytes != corpus[0] && bytes != corpus[1]) return;
    ++answered;
    const auto y = response.outputs().find("y");
    ASSERT_NE(y, response.outputs().end());
    ASSERT_EQ(y->second.float_val_size(), 4) << response.ShortDebugString();
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(y->second.float_val(i), kScale * static_cast<float>(i + 1));
    }
  });
  // The valid ones that Fuzz promises.
  EXPECT_GE(answered, 20000 / kValidInputEach);
}

}  // namespace
}  // namespace millrace
