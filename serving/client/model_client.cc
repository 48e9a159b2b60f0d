// SPDX-License-Identifier: Apache-2.0
#include "serving/client/model_client.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/exceptions.h"
#include "net/rpc_channel.h"
#include "net/tensor_coding.h"
#include "proto/meta_graph.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/method_paths.h"
#include "proto/serving/model.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/status.pb.h"
#include "saver/model_signature.h"
#include "serving/client/call_retries.h"

namespace millrace {
namespace {

using tensorflow::serving::ModelSpec;

// Fields of PredictRequest and PredictResponse that are maps to tensors.
constexpr int kInputsField = 2, kOutputsField = 1;
constexpr char kSignatureField[] = "signature_def";

Status CheckAddress(const std::string& address) {
  absl::string_view rest = address;
  if (absl::StartsWith(rest, "unix:")) {
    if (rest.size() > sizeof("unix:") - 1) return absl::OkStatus();
  } else {
    const size_t colon = rest.rfind(':');
    int port = 0;
    if (colon != absl::string_view::npos && colon > 0 &&
        absl::SimpleAtoi(rest.substr(colon + 1), &port) && port > 0 && port <= 65535) {
      return absl::OkStatus();
    }
  }
  return InvalidArgument("ModelClient: address must be host:port or unix:/path, got '", address,
                         "'");
}

Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration() && timeout < absl::InfiniteDuration()) return absl::OkStatus();
  return InvalidArgument("ModelClient: timeout must be positive and finite, got ",
                         absl::FormatDuration(timeout));
}

// What a request asks.
Status Fill(const std::string& model, const ModelVersionChoice& which, ModelSpec* spec) {
  if (which.version.has_value() && !which.label.empty()) {
    return InvalidArgument("ModelClient: at most one of version and label must be given, got ",
                           *which.version, " and '", which.label, "'");
  }
  spec->set_name(model);
  if (which.version.has_value()) spec->mutable_version()->set_value(*which.version);
  if (!which.label.empty()) spec->set_version_label(which.label);
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<ModelClient>> ModelClient::Connect(const std::string& address,
                                                            const ModelClientOptions& options) {
  MR_RETURN_IF_ERROR(CheckAddress(address));
  MR_RETURN_IF_ERROR(CheckTimeout(options.timeout));
  if (options.max_retries < 0) {
    return InvalidArgument("ModelClient: max_retries must be >= 0, got ", options.max_retries);
  }
  std::shared_ptr<const Credentials> credentials = options.credentials;
  if (credentials == nullptr) {
    MR_ASSIGN_OR_RETURN(credentials, ClusterCredentials());
  }
  return NoExceptions("ModelClient", [&]() -> StatusOr<std::unique_ptr<ModelClient>> {
    return std::unique_ptr<ModelClient>(
        new ModelClient(RpcChannel::Make(address, std::move(credentials)), options));
  });
}

ModelClient::ModelClient(std::shared_ptr<RpcChannel> channel, const ModelClientOptions& options)
    : channel_(std::move(channel)), timeout_(options.timeout), max_retries_(options.max_retries) {}
ModelClient::~ModelClient() = default;

const std::string& ModelClient::address() const { return channel_->address(); }

absl::Time ModelClient::DeadlineOf(std::optional<absl::Duration> timeout) const {
  return absl::Now() + timeout.value_or(timeout_);
}

StatusOr<ModelPrediction> ModelClient::Predict(const std::string& model,
                                               const std::map<std::string, Tensor>& inputs,
                                               const ModelPredictOptions& options) const {
  return NoExceptions("Predict", [&]() -> StatusOr<ModelPrediction> {
    if (options.timeout.has_value()) MR_RETURN_IF_ERROR(CheckTimeout(*options.timeout));
    const absl::Time deadline = DeadlineOf(options.timeout);
    tensorflow::serving::PredictRequest request;
    MR_RETURN_IF_ERROR(Fill(model, options.which, request.mutable_model_spec()));
    request.mutable_model_spec()->set_signature_name(options.signature);
    for (const std::string& output : options.outputs) request.add_output_filter(output);
    MessageWriter writer;
    writer.AddMessage(request);
    for (const auto& [alias, tensor] : inputs) {
      if (!tensor.has_value()) {
        return InvalidArgument("ModelClient: input '", alias,
                               "' must have a value, got an empty tensor");
      }
      MR_RETURN_IF_ERROR(writer.AddNamedTensor(kInputsField, alias, tensor));
    }
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, writer.Finish());
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer reply,
                        CallWithRetries(channel_.get(), kPredictPath, bytes,
                                        {.deadline = deadline, .max_retries = max_retries_}));
    std::vector<DecodedTensor> tensors;
    tensorflow::serving::PredictResponse rest;
    MR_RETURN_IF_ERROR(DecodeMessage("PredictResponse", reply, kOutputsField,
                                     TensorField::kNamedOrIndexed, &tensors, &rest));
    ModelPrediction prediction;
    prediction.version = rest.model_spec().version().value();
    prediction.signature = rest.model_spec().signature_name();
    for (DecodedTensor& tensor : tensors) {
      prediction.outputs[tensor.name] = std::move(tensor.value);
    }
    return prediction;
  });
}

StatusOr<std::vector<ServedVersionStatus>> ModelClient::GetModelStatus(
    const std::string& model, std::optional<int64_t> version) const {
  return NoExceptions("GetModelStatus", [&]() -> StatusOr<std::vector<ServedVersionStatus>> {
    tensorflow::serving::GetModelStatusRequest request;
    MR_RETURN_IF_ERROR(Fill(model, {.version = version}, request.mutable_model_spec()));
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, EncodeMessage(request));
    MR_ASSIGN_OR_RETURN(
        const grpc::ByteBuffer reply,
        CallWithRetries(channel_.get(), kGetModelStatusPath, bytes,
                        {.deadline = DeadlineOf(std::nullopt), .max_retries = max_retries_}));
    tensorflow::serving::GetModelStatusResponse response;
    MR_RETURN_IF_ERROR(DecodeMessage("GetModelStatusResponse", reply, &response));
    std::vector<ServedVersionStatus> versions;
    for (const auto& one : response.model_version_status()) {
      versions.push_back({.version = one.version(),
                          .state = static_cast<ServedVersionState>(one.state()),
                          .error = Status(static_cast<absl::StatusCode>(one.status().error_code()),
                                          one.status().error_message())});
    }
    return versions;
  });
}

StatusOr<ServedModelMetadata> ModelClient::GetMetadata(const std::string& model,
                                                       const ModelVersionChoice& which) const {
  return NoExceptions("GetModelMetadata", [&]() -> StatusOr<ServedModelMetadata> {
    tensorflow::serving::GetModelMetadataRequest request;
    MR_RETURN_IF_ERROR(Fill(model, which, request.mutable_model_spec()));
    request.add_metadata_field(kSignatureField);
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, EncodeMessage(request));
    MR_ASSIGN_OR_RETURN(
        const grpc::ByteBuffer reply,
        CallWithRetries(channel_.get(), kGetModelMetadataPath, bytes,
                        {.deadline = DeadlineOf(std::nullopt), .max_retries = max_retries_}));
    tensorflow::serving::GetModelMetadataResponse response;
    MR_RETURN_IF_ERROR(DecodeMessage("GetModelMetadataResponse", reply, &response));
    ServedModelMetadata metadata;
    metadata.version = response.model_spec().version().value();
    const auto found = response.metadata().find(kSignatureField);
    tensorflow::serving::SignatureDefMap signatures;
    if (found == response.metadata().end() || !found->second.UnpackTo(&signatures)) {
      return InvalidArgument("GetModelMetadataResponse: it must have '", kSignatureField,
                             "', got none");
    }
    for (const auto& [key, def] : signatures.signature_def()) {
      if (key == kInitOpSignature) continue;  // nothing to ask
      metadata.signatures.emplace(key, ModelSignature(def));
    }
    return metadata;
  });
}

}  // namespace millrace
