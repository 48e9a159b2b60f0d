// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/v2_infer.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "proto/inference/grpc_service.pb.h"
#include "saver/model_signature.h"
#include "serving/model_versions.h"
#include "serving/protocols/v2_tensors.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

constexpr char kPlatform[] = "tensorflow_savedmodel";
constexpr size_t kMaxShown = 64;

template <typename Tensors>
void AddTensors(const std::map<std::string, SignatureTensor>& tensors, Tensors* out) {
  for (const auto& [alias, info] : tensors) {
    auto* const tensor = out->Add();
    tensor->set_name(alias);
    const absl::string_view datatype = V2Datatype(info.dtype());
    tensor->set_datatype(datatype.empty() ? DTypeEnumName(info.dtype()) : std::string(datatype));
    if (!info.shape().has_rank()) tensor->add_shape(-1);
    for (const int64_t dim : info.shape().dims()) tensor->add_shape(dim);
  }
}

}  // namespace

StatusOr<V2Target> V2TargetOf(absl::string_view model, absl::string_view version) {
  V2Target target = {.model = std::string(model), .version = std::nullopt};
  if (version.empty()) return target;
  int64_t number = 0;
  if (!absl::SimpleAtoi(version, &number) || number < 0) {
    return InvalidArgument("Model ", model.substr(0, kMaxShown),
                           ": version must be a number >= 0, got '", version.substr(0, kMaxShown),
                           "'");
  }
  target.version = number;
  return target;
}

StatusOr<ModelRequests::Pinned> PinV2(const ModelRequests& requests, const V2Target& target,
                                      const StepBounds& bounds) {
  return requests.Pin(target.model, target.version, std::nullopt, bounds);
}

StatusOr<std::vector<AliasedTensor>> RunV2(const ServedModel& model, const V2Infer& request,
                                           const StepBounds& bounds, PredictCaller caller) {
  std::vector<std::string> filter;
  std::set<absl::string_view> names;
  for (const V2Infer::Output& output : request.outputs) {
    if (!names.insert(output.name).second) {
      return InvalidArgument("Inference request: each output must be asked for once, got '",
                             output.name, "' twice");
    }
    filter.push_back(output.name);
  }
  MR_ASSIGN_OR_RETURN(
      std::vector<AliasedTensor> outputs,
      model.PredictTensors(request.signature_name, request.inputs, filter, bounds, caller));
  if (filter.empty()) return outputs;
  std::vector<AliasedTensor> ordered;
  for (const std::string& name : filter) {
    const auto output = std::find_if(outputs.begin(), outputs.end(),
                                     [&](const AliasedTensor& o) { return o.alias == name; });
    if (output == outputs.end()) {
      return Internal("Inference request: the step must give output '", name, "', got none");
    }
    ordered.push_back(*output);
  }
  return ordered;
}

StatusOr<std::vector<AliasedTensor>> RunObservedV2(const ServedModel& model, const V2Infer& request,
                                                   const StepBounds& bounds, PredictCaller caller,
                                                   ObservedRequest* observed) {
  RequestRecord* const record = observed->record();
  record->signature = request.signature_name;
  record->inputs = request.inputs;
  observed->BeginRun();
  StatusOr<std::vector<AliasedTensor>> outputs = RunV2(model, request, bounds, caller);
  observed->EndRun();
  if (!outputs.ok()) return observed->End(outputs.status());
  record->outputs = *outputs;
  return outputs;
}

V2Ready IsModelReadyV2(const ModelRequests& requests, const Readiness& readiness,
                       const V2Target& target) {
  // A pin would load a model that rests.
  for (const ModelStatus& model : requests.versions()->GetStatuses()) {
    if (model.name != target.model) continue;
    const auto is_meant = [&](const VersionStatus& version) {
      return version.state != VersionState::kEnded &&
             (!target.version.has_value() || version.version == *target.version);
    };
    const bool answers = std::any_of(
        model.versions.begin(), model.versions.end(), [&](const VersionStatus& version) {
          return version.state == VersionState::kAvailable && is_meant(version);
        });
    if (answers && readiness.phase() != Readiness::Phase::kStopping) return V2Ready::kReady;
    const bool holds = std::any_of(model.versions.begin(), model.versions.end(), is_meant);
    const bool may_come = model.is_listed && !target.version.has_value();
    return holds || may_come ? V2Ready::kNotReady : V2Ready::kUnknown;
  }
  return V2Ready::kUnknown;
}

StatusOr<inference::ModelMetadataResponse> ModelMetadataV2(const ModelRequests& requests,
                                                           const V2Target& target,
                                                           const StepBounds& bounds) {
  MR_ASSIGN_OR_RETURN(const ModelRequests::Pinned model, PinV2(requests, target, bounds));
  inference::ModelMetadataResponse response;
  response.set_name(target.model);
  response.set_platform(kPlatform);
  // Ascending, as Triton lists them.
  std::set<int64_t> versions = {model->version()};
  const auto statuses = requests.versions()->GetStatus(target.model);
  if (statuses.ok()) {
    for (const VersionStatus& version : *statuses) {
      if (version.state == VersionState::kAvailable) versions.insert(version.version);
    }
  }
  for (const int64_t version : versions) response.add_versions(absl::StrCat(version));
  const auto signature = model->signatures().find(kDefaultServingSignature);
  if (signature == model->signatures().end()) return response;
  AddTensors(signature->second.inputs(), response.mutable_inputs());
  AddTensors(signature->second.outputs(), response.mutable_outputs());
  return response;
}

inference::ServerMetadataResponse ServerMetadataV2() {
  inference::ServerMetadataResponse response;
  response.set_name("millrace");
  // Of TensorFlow, whose models it runs; Millrace has no releases.
  response.set_version("1.15");
  response.add_extensions("binary_tensor_data");
  response.add_extensions("parameters");
  return response;
}

}  // namespace millrace
