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

Status ModelRequests::Predict(const tensorflow::serving::PredictRequest& request,
                              const StepBounds& bounds,
                              tensorflow::serving::PredictResponse* response) const {
  MR_ASSIGN_OR_RETURN(const Pinned model, PinOf(request, bounds));
  return model->Predict(request, bounds, response);
}

Status ModelRequests::Classify(const tensorflow::serving::ClassificationRequest& request,
                               const StepBounds& bounds,
                               tensorflow::serving::ClassificationResponse* response) const {
  MR_ASSIGN_OR_RETURN(const Pinned model, PinOf(request, bounds));
  return model->Classify(request, bounds, response);
}

Status ModelRequests::Regress(const tensorflow::serving::RegressionRequest& request,
                              const StepBounds& bounds,
                              tensorflow::serving::RegressionResponse* response) const {
  MR_ASSIGN_OR_RETURN(const Pinned model, PinOf(request, bounds));
  return model->Regress(request, bounds, response);
}

// The model of the first task; what is missing there is an empty spec.
Status ModelRequests::MultiInference(const tensorflow::serving::MultiInferenceRequest& request,
                                     const StepBounds& bounds,
                                     tensorflow::serving::MultiInferenceResponse* response) const {
  const tensorflow::serving::ModelSpec none;
  const bool has_spec = !request.tasks().empty() && request.tasks(0).has_model_spec();
  MR_ASSIGN_OR_RETURN(const Pinned model,
                      PinSpec(has_spec ? &request.tasks(0).model_spec() : &none, bounds));
  return model->MultiInference(request, bounds, response);
}

Status ModelRequests::GetModelMetadata(
    const tensorflow::serving::GetModelMetadataRequest& request,
    tensorflow::serving::GetModelMetadataResponse* response) const {
  MR_ASSIGN_OR_RETURN(const Pinned model, PinOf(request));
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
