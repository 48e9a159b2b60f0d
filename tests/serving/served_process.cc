// SPDX-License-Identifier: Apache-2.0
#include "tests/serving/served_process.h"

#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/testing/free_port.h"
#include "net/security.h"
#include "nlohmann/json.hpp"
#include "proto/serving/method_paths.h"
#include "proto/tensor.pb.h"
#include "proto/types.pb.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int kMaxStarts = 5;  // a port may be taken by somebody else each time

std::string WordOf(int x) { return absl::StrCat("w", x); }

// y of the row {x, x + 1}: the scale, when both agree.
StatusOr<float> ScaleBy(int x, float first, float second) {
  const float scale = second - first;  // exact for the small numbers of tests
  if (first == static_cast<float>(x) * scale) return scale;
  return Internal("Scaling: y must be a multiple of [", x, ", ", x + 1, "], got [", first, ", ",
                  second, "]");
}

Status NotARightReply(const RawHttpReply& reply) {
  if (reply.status == 0) return absl::UnavailableError("HTTP: no reply came");
  return Internal("HTTP: the reply must be the right one, got status ", reply.status, ": ",
                  reply.body.substr(0, 500));
}

}  // namespace

tensorflow::serving::PredictRequest ScalingRequest(const std::string& model, int x) {
  tensorflow::serving::PredictRequest request;
  request.mutable_model_spec()->set_name(model);
  tensorflow::TensorProto& numbers = (*request.mutable_inputs())["x"];
  numbers.set_dtype(tensorflow::DT_FLOAT);
  numbers.mutable_tensor_shape()->add_dim()->set_size(1);
  numbers.mutable_tensor_shape()->add_dim()->set_size(2);
  numbers.add_float_val(static_cast<float>(x));
  numbers.add_float_val(static_cast<float>(x + 1));
  tensorflow::TensorProto& words = (*request.mutable_inputs())["w"];
  words.set_dtype(tensorflow::DT_STRING);
  words.mutable_tensor_shape()->add_dim()->set_size(1);
  words.add_string_val(WordOf(x));
  return request;
}

StatusOr<float> ScaleOf(const tensorflow::serving::PredictResponse& response, int x) {
  const auto y = response.outputs().find("y"), s = response.outputs().find("s");
  if (y == response.outputs().end() || s == response.outputs().end() ||
      y->second.float_val_size() != 2 || s->second.string_val_size() != 1 ||
      s->second.string_val(0) != WordOf(x)) {
    return Internal("Scaling: the reply must be to ", x, ", got ", response.ShortDebugString());
  }
  return ScaleBy(x, y->second.float_val(0), y->second.float_val(1));
}

std::string ScalingRestBody(int x) {
  return absl::StrCat(R"({"instances": [{"x": [)", x, ", ", x + 1, R"(], "w": ")", WordOf(x),
                      R"("}]})");
}

std::string ScalingV2Body(int x) {
  return absl::StrCat(
      R"({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [)", x, ", ", x + 1,
      R"(]}, {"name": "w", "shape": [1], "datatype": "BYTES", "data": [")", WordOf(x), R"("]}]})");
}

StatusOr<float> ScaleOfRest(const RawHttpReply& reply, int x) {
  const json body = json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (reply.status != 200 || !body.is_object() || !body.contains("predictions") ||
      body["predictions"].size() != 1) {
    return NotARightReply(reply);
  }
  const json& row = body["predictions"][0];
  if (!row.is_object() || row.value("s", "") != WordOf(x) || !row.contains("y") ||
      row["y"].size() != 2) {
    return NotARightReply(reply);
  }
  return ScaleBy(x, row["y"][0].get<float>(), row["y"][1].get<float>());
}

StatusOr<float> ScaleOfV2(const RawHttpReply& reply, int x) {
  const json body = json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  // By name: s, y.
  if (reply.status != 200 || !body.is_object() || !body.contains("outputs") ||
      body["outputs"].size() != 2) {
    return NotARightReply(reply);
  }
  const json &s = body["outputs"][0], &y = body["outputs"][1];
  if (s.value("name", "") != "s" || y.value("name", "") != "y" ||
      s["data"] != json::array({WordOf(x)}) || y["data"].size() != 2) {
    return NotARightReply(reply);
  }
  return ScaleBy(x, y["data"][0].get<float>(), y["data"][1].get<float>());
}

void PauseServing() { absl::SleepFor(absl::Milliseconds(10)); }

StatusOr<std::unique_ptr<ServedProcess>> ServedProcess::Start(const ServedProcessOptions& options) {
  const bool may_retry = options.grpc_port == 0 || options.rest_port == 0;
  for (int start = 0;; ++start) {
    std::unique_ptr<ServedProcess> server(new ServedProcess);
    server->grpc_port_ = options.grpc_port > 0 ? options.grpc_port : FreePort();
    server->rest_port_ = options.rest_port > 0 ? options.rest_port : FreePort();
    std::vector<std::string> args = options.args;
    args.push_back(absl::StrCat("--port=", server->grpc_port_));
    args.push_back(absl::StrCat("--rest_api_port=", server->rest_port_));
    MR_ASSIGN_OR_RETURN(server->process_, Process::Start({.name = "model_server",
                                                          .program = "tools/model_server",
                                                          .args = std::move(args)}));
    const StatusOr<std::string> opened =
        server->process_->WaitForLine("Serves REST on port", kServingHang);
    if (opened.ok()) {
      server->channel_ = RpcChannel::Make(absl::StrCat("127.0.0.1:", server->grpc_port_),
                                          std::make_shared<Credentials>());
      return server;
    }
    // Its output has ended, the process may end a moment later.
    if (absl::IsOutOfRange(opened.status())) {
      server->process_->WaitForExit(kServingHang).IgnoreError();
    }
    if (!may_retry || start + 1 >= kMaxStarts || !EndedBecausePortIsInUse(server->process())) {
      return opened.status();
    }
  }
}

Status ServedProcess::Predict(const tensorflow::serving::PredictRequest& request,
                              tensorflow::serving::PredictResponse* response) const {
  return Call(kPredictPath, request, response);
}

Status ServedProcess::CallRaw(const std::string& path, const std::string& bytes) const {
  const grpc::Slice slice(bytes);
  return channel_->Call(path, {.deadline = absl::Now() + kServingHang}, grpc::ByteBuffer(&slice, 1))
      .status();
}

StatusOr<float> ServedProcess::AskGrpc(const std::string& model, int x,
                                       std::optional<int64_t> version) const {
  tensorflow::serving::PredictRequest request = ScalingRequest(model, x);
  if (version.has_value()) request.mutable_model_spec()->mutable_version()->set_value(*version);
  tensorflow::serving::PredictResponse response;
  MR_RETURN_IF_ERROR(Predict(request, &response));
  if (version.has_value() && response.model_spec().version().value() != *version) {
    return Internal("Predict: version ", *version, " must answer, got ",
                    response.model_spec().version().value());
  }
  return ScaleOf(response, x);
}

RawHttpReply ServedProcess::Rest(absl::string_view method, absl::string_view path,
                                 absl::string_view body, absl::string_view headers) const {
  RawHttpClient client(rest_port_);
  return client.connected() ? client.Ask(HttpRequestText(method, path, body, headers))
                            : RawHttpReply();
}

StatusOr<ServedProcess::Versions> ServedProcess::StatusOf(const std::string& model) const {
  tensorflow::serving::GetModelStatusRequest request;
  request.mutable_model_spec()->set_name(model);
  tensorflow::serving::GetModelStatusResponse response;
  MR_RETURN_IF_ERROR(Call(kGetModelStatusPath, request, &response));
  Versions versions;
  for (const auto& version : response.model_version_status()) {
    versions[version.version()] = version;
  }
  return versions;
}

bool ServedProcess::AwaitState(const std::string& model, int64_t version,
                               tensorflow::serving::ModelVersionStatus::State state) const {
  return AwaitServing([&] {
    const auto versions = StatusOf(model);
    if (!versions.ok()) return false;
    const auto found = versions->find(version);
    return found != versions->end() && found->second.state() == state;
  });
}

StatusOr<int64_t> ServedProcess::NumRunning() const {
  const RawHttpReply reply = Rest("GET", "/millrace/status");
  const json body = json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (reply.status != 200 || !body.is_object() || !body.contains("requests")) {
    return NotARightReply(reply);
  }
  return body["requests"].value("running", int64_t{-1});
}

StatusOr<int> ServedProcess::Terminate(absl::Duration timeout) const {
  MR_RETURN_IF_ERROR(process_->Signal(SIGTERM));
  return process_->WaitForExit(timeout);
}

StatusOr<float> RestAsker::Ask(int x) {
  if (!client_.has_value()) client_.emplace(port_);
  const bool is_v2 = api_ == Api::kV2;
  const RawHttpReply reply =
      client_->Ask(HttpRequestText("POST",
                                   is_v2 ? absl::StrCat("/v2/models/", model_, "/infer")
                                         : absl::StrCat("/v1/models/", model_, ":predict"),
                                   is_v2 ? ScalingV2Body(x) : ScalingRestBody(x)));
  if (reply.status == 0 || reply.header("connection") == "close") client_.reset();
  return is_v2 ? ScaleOfV2(reply, x) : ScaleOfRest(reply, x);
}

}  // namespace millrace
