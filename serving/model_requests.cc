// SPDX-License-Identifier: Apache-2.0
#include "serving/model_requests.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/exceptions.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/input.pb.h"
#include "proto/serving/model.pb.h"
#include "proto/serving/model_management.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/regression.pb.h"
#include "serving/model_config.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

using tensorflow::serving::ModelVersionStatus;

void Fill(const Status& status, tensorflow::serving::StatusProto* proto) {
  proto->set_error_code(static_cast<tensorflow::error::Code>(status.code()));
  proto->set_error_message(std::string(status.message()));
}

template <typename Request>
const tensorflow::serving::ModelSpec* SpecOf(const Request& request) {
  return request.has_model_spec() ? &request.model_spec() : nullptr;
}

int64_t NumExamples(const tensorflow::serving::PredictRequest&) { return 0; }
template <typename Request>
int64_t NumExamples(const Request& request) {
  // One of them; the other one is empty.
  return request.input().example_list().examples_size() +
         request.input().example_list_with_context().examples_size();
}

}  // namespace

StatusOr<ModelRequests::Pinned> ModelRequests::Pin(const std::string& name,
                                                   std::optional<int64_t> version,
                                                   const std::optional<std::string>& label,
                                                   const StepBounds& bounds) const {
  StatusOr<ModelVersions::Pin> pin = label.has_value()
                                         ? versions_->GetLabelled(name, *label, bounds)
                                         : versions_->Get(name, version, bounds);
  MR_RETURN_IF_ERROR(pin.status());
  return Pinned(*std::move(pin));
}

StatusOr<ModelRequests::Pinned> ModelRequests::PinSpec(const tensorflow::serving::ModelSpec* spec,
                                                       const StepBounds& bounds) const {
  if (spec == nullptr) return InvalidArgument("Missing ModelSpec");
  if (spec->name().empty()) return InvalidArgument("ModelSpec has no name specified.");
  std::optional<int64_t> version;
  std::optional<std::string> label;
  if (spec->has_version()) version = spec->version().value();
  // As there: an empty label is none.
  if (!spec->version_label().empty()) label = spec->version_label();
  return Pin(spec->name(), version, label, bounds);
}

template <typename Request, typename Response>
Status ModelRequests::Ask(RequestApi api, const tensorflow::serving::ModelSpec* spec,
                          const Request& request, const StepBounds& bounds, Response* response,
                          const RequestOrigin& origin,
                          Status (ServedModel::*ask)(const Request&, const StepBounds&, Response*)
                              const) const {
  if (observer_ == nullptr) {
    MR_ASSIGN_OR_RETURN(const Pinned model, PinSpec(spec, bounds));
    return ((*model).*ask)(request, bounds, response);
  }
  std::optional<Pinned> model;  // until the observer has seen the end
  ObservedRequest observed(observer_.get(), api, origin);
  RequestRecord* const record = observed.record();
  if (spec != nullptr) {
    record->model = spec->name();
    record->signature = spec->signature_name();
  }
  StatusOr<Pinned> found = PinSpec(spec, bounds);
  if (!found.ok()) return observed.End(found.status());
  model.emplace(*std::move(found));
  observed.Found(**model);
  record->num_examples = NumExamples(request);
  record->request = &request;
  record->response = response;
  observed.BeginRun();
  Status status = ((**model).*ask)(request, bounds, response);
  observed.EndRun();
  return observed.End(std::move(status));
}

Status ModelRequests::Predict(const tensorflow::serving::PredictRequest& request,
                              const StepBounds& bounds,
                              tensorflow::serving::PredictResponse* response,
                              const RequestOrigin& origin) const {
  return Ask(RequestApi::kPredict, SpecOf(request), request, bounds, response, origin,
             &ServedModel::Predict);
}

Status ModelRequests::PredictTensors(const tensorflow::serving::PredictRequest& request,
                                     absl::Span<const AliasedTensor> inputs,
                                     const StepBounds& bounds, WriteReplyFn reply,
                                     const RequestOrigin& origin) const {
  std::optional<Pinned> model;  // until the observer has seen the end
  ObservedRequest observed(observer_.get(), RequestApi::kPredict, origin);
  RequestRecord* const record = observed.record();
  record->model = request.model_spec().name();
  record->signature = request.model_spec().signature_name();
  StatusOr<Pinned> found = PinSpec(SpecOf(request), bounds);
  if (!found.ok()) return observed.End(found.status());
  model.emplace(*std::move(found));
  const ServedModel& served = **model;
  observed.Found(served);
  record->request = &request;
  record->inputs = inputs;
  const std::vector<std::string> filter(request.output_filter().begin(),
                                        request.output_filter().end());
  observed.BeginRun();
  const StatusOr<std::vector<AliasedTensor>> outputs = served.PredictTensors(
      request.model_spec().signature_name(), inputs, filter, bounds, PredictCaller::kGrpc);
  observed.EndRun();
  if (!outputs.ok()) return observed.End(outputs.status());
  record->outputs = *outputs;
  tensorflow::serving::ModelSpec spec;
  FillModelSpec(request.model_spec(), served.version(), &spec);
  const StatusOr<int64_t> bytes = reply(PredictedTensors{
      .outputs = *outputs, .spec = spec, .as_content = served.serializes_as_tensor_content()});
  record->bytes_out = bytes.value_or(0);
  return observed.End(bytes.status());
}

Status ModelRequests::Classify(const tensorflow::serving::ClassificationRequest& request,
                               const StepBounds& bounds,
                               tensorflow::serving::ClassificationResponse* response,
                               const RequestOrigin& origin) const {
  return Ask(RequestApi::kClassify, SpecOf(request), request, bounds, response, origin,
             &ServedModel::Classify);
}

Status ModelRequests::Regress(const tensorflow::serving::RegressionRequest& request,
                              const StepBounds& bounds,
                              tensorflow::serving::RegressionResponse* response,
                              const RequestOrigin& origin) const {
  return Ask(RequestApi::kRegress, SpecOf(request), request, bounds, response, origin,
             &ServedModel::Regress);
}

// The model of the first task; what is missing there is an empty spec.
Status ModelRequests::MultiInference(const tensorflow::serving::MultiInferenceRequest& request,
                                     const StepBounds& bounds,
                                     tensorflow::serving::MultiInferenceResponse* response,
                                     const RequestOrigin& origin) const {
  const tensorflow::serving::ModelSpec none;
  const bool has_spec = !request.tasks().empty() && request.tasks(0).has_model_spec();
  return Ask(RequestApi::kMultiInference, has_spec ? &request.tasks(0).model_spec() : &none,
             request, bounds, response, origin, &ServedModel::MultiInference);
}

Status ModelRequests::GetModelMetadata(const tensorflow::serving::GetModelMetadataRequest& request,
                                       tensorflow::serving::GetModelMetadataResponse* response,
                                       const StepBounds& bounds) const {
  MR_ASSIGN_OR_RETURN(const Pinned model, PinOf(request, bounds));
  return model->GetModelMetadata(request, response);
}

Status ModelRequests::GetModelStatus(const tensorflow::serving::GetModelStatusRequest& request,
                                     tensorflow::serving::GetModelStatusResponse* response) const {
  if (!request.has_model_spec()) return InvalidArgument("Missing ModelSpec");
  const tensorflow::serving::ModelSpec& spec = request.model_spec();
  std::optional<int64_t> version;
  if (spec.has_version()) version = spec.version().value();
  MR_ASSIGN_OR_RETURN(const std::vector<VersionStatus> statuses,
                      versions_->GetStatus(spec.name(), version));
  response->Clear();
  for (const VersionStatus& status : statuses) {
    ModelVersionStatus* const out = response->add_model_version_status();
    out->set_version(status.version);
    out->set_state(static_cast<ModelVersionStatus::State>(ServingStateNumber(status.state)));
    Fill(status.status, out->mutable_status());
  }
  return absl::OkStatus();
}

Status ModelRequests::ReloadConfig(const tensorflow::serving::ReloadConfigRequest& request,
                                   tensorflow::serving::ReloadConfigResponse* response) const {
  const absl::Time deadline = absl::Now() + reload_timeout_;
  const auto reload = [&]() -> Status {
    if (!request.config().has_model_config_list()) {
      return InvalidArgument(
          "ServerModelConfig type not supported by HandleReloadConfigRequest. Only ModelConfigList "
          "is currently supported");
    }
    MR_ASSIGN_OR_RETURN(std::vector<ModelSettings> models, SettingsOf(request.config()));
    const std::vector<ModelSettings> before = versions_->models();
    MR_RETURN_IF_ERROR(versions_->Reload(std::move(models), deadline));
    std::vector<std::pair<std::string, Status>> failed;
    for (auto& model : versions_->WaitUntilTried(deadline)) {
      const bool is_new = std::none_of(before.begin(), before.end(),
                                       [&](const auto& old) { return old.name == model.first; });
      if (is_new) failed.push_back(std::move(model));
    }
    return failed.empty() ? absl::OkStatus() : ModelsNotAvailable(failed);
  };
  // A second one would take a thread, and its list might be lost.
  Status status = absl::UnavailableError("HandleReloadConfigRequest: another one must have ended");
  if (reload_mu_.TryLock()) {
    status = NoExceptions("HandleReloadConfigRequest", reload);  // the lock goes in any case
    reload_mu_.Unlock();
  }
  Fill(status, response->mutable_status());
  return status;
}

Status ModelsNotAvailable(const std::vector<std::pair<std::string, Status>>& models) {
  const Status& first = models.front().second;
  return Status(first.ok() ? absl::StatusCode::kDeadlineExceeded : first.code(),
                absl::StrCat(models.size(), " model(s) did not become available: {",
                             absl::StrJoin(models, ", ",
                                           [](std::string* out, const auto& model) {
                                             absl::StrAppend(out, model.first, ": ",
                                                             model.second.ToString());
                                           }),
                             "}"));
}

}  // namespace millrace
