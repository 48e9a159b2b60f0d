// SPDX-License-Identifier: Apache-2.0
#include "serving/server/rest_front.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/input.pb.h"
#include "proto/serving/model.pb.h"
#include "proto/serving/regression.pb.h"
#include "saver/model_signature.h"
#include "serving/aliased_tensor.h"
#include "serving/model_versions.h"
#include "serving/request_observer.h"
#include "serving/rest/json_examples.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/json_tensors.h"
#include "serving/rest/rest_answer.h"
#include "serving/rest/rest_messages.h"
#include "serving/rest/rest_path.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

namespace serving = tensorflow::serving;

constexpr char kSignatureDef[] = "signature_def";
constexpr size_t kMaxShownName = 1024;

class Front : public std::enable_shared_from_this<Front> {
 public:
  Front(std::shared_ptr<const ModelRequests> requests, RestFrontOptions options)
      : requests_(std::move(requests)), options_(std::move(options)) {}

  void Serve(std::unique_ptr<HttpRequest> request) const;

 private:
  struct Asked {
    const RestTarget& target;
    absl::string_view body;
    StepBounds bounds;
    ObservedRequest* observed;
  };

  // Says whether there is a reply.
  bool AnswerTo(HttpRequest* request, StatusOr<std::string> reply) const;
  // Runs a step of a model, or waits for the model.
  static bool MayTakeLong(const RestTarget& target);
  StatusOr<std::string> Reply(const RestTarget& target, const HttpRequest& request,
                              const StepBounds& bounds) const;
  // What `answer` replies, seen by the observer.
  StatusOr<std::string> Observed(RequestApi api, const RestTarget& target,
                                 const HttpRequest& request, const StepBounds& bounds,
                                 StatusOr<std::string> (Front::*answer)(const ServedModel&,
                                                                        const Asked&) const) const;
  StatusOr<ModelRequests::Pinned> Pin(const RestTarget& target,
                                      const StepBounds& bounds = {}) const {
    return requests_->Pin(target.model_name, target.version, target.label, bounds);
  }
  StatusOr<std::string> Predict(const ServedModel& model, const Asked& asked) const;
  StatusOr<std::string> Classify(const ServedModel& model, const Asked& asked) const;
  StatusOr<std::string> Regress(const ServedModel& model, const Asked& asked) const;
  StatusOr<std::string> StatusOf(const RestTarget& target) const;
  StatusOr<std::string> MetadataOf(const RestTarget& target, const StepBounds& bounds) const;
  std::string Models() const;

  const std::shared_ptr<const ModelRequests> requests_;
  const RestFrontOptions options_;
};

// Those that the signature has, by alias.
StatusOr<std::vector<JsonInput>> InputsOf(const ServedModel& model, absl::string_view name) {
  const std::string key(name.empty() ? kDefaultServingSignature : name);
  const auto it = model.signatures().find(key);
  if (it == model.signatures().end()) {
    return InvalidArgument("Serving signature name: \"", key, "\" not found in signature def");
  }
  std::vector<JsonInput> inputs;
  for (const auto& [alias, info] : it->second.inputs()) {
    inputs.push_back({.alias = alias, .dtype = info.dtype(), .shape = info.shape()});
  }
  return inputs;
}

// Examples as the messages of Classify and Regress have them.
template <typename Request>
StatusOr<Request> ExamplesRequest(const RestTarget& target, absl::string_view body,
                                  const JsonLimits& limits) {
  MR_ASSIGN_OR_RETURN(JsonExamplesRequest read, ReadExamplesRequest(body, limits));
  Request request;
  request.mutable_model_spec()->set_name(target.model_name);
  request.mutable_model_spec()->set_signature_name(read.signature_name);
  serving::Input* const input = request.mutable_input();
  if (read.context.has_value()) {
    auto* const list = input->mutable_example_list_with_context();
    *list->mutable_context() = *std::move(read.context);
    for (tensorflow::Example& example : read.examples) *list->add_examples() = std::move(example);
  } else {
    auto* const list = input->mutable_example_list();
    for (tensorflow::Example& example : read.examples) *list->add_examples() = std::move(example);
  }
  return request;
}

// The reply, its request ended while what its record points to is there.
StatusOr<std::string> Ended(StatusOr<std::string> reply, ObservedRequest* observed) {
  if (reply.ok()) observed->record()->bytes_out = static_cast<int64_t>(reply->size());
  MR_RETURN_IF_ERROR(observed->End(reply.status()));
  return reply;
}

// Asks the model; after an error the request has ended.
template <typename Request, typename Response>
Status RunExamples(const ServedModel& model,
                   Status (ServedModel::*ask)(const Request&, const StepBounds&, Response*) const,
                   const Request& request, const StepBounds& bounds, Response* response,
                   ObservedRequest* observed) {
  RequestRecord* const record = observed->record();
  record->signature = request.model_spec().signature_name();
  record->num_examples = request.input().example_list().examples_size() +
                         request.input().example_list_with_context().examples_size();
  record->request = &request;
  record->response = response;
  observed->BeginRun();
  Status status = (model.*ask)(request, bounds, response);
  observed->EndRun();
  return status.ok() ? status : observed->End(std::move(status));
}

void Front::Serve(std::unique_ptr<HttpRequest> request) const {
  if (!IsRestPath(request->path())) {
    if (options_.pages && options_.pages(request.get())) return;
    return request->Answer(404, {}, "");
  }
  if (options_.cors && request->method() == "OPTIONS") return AnswerPreflight(request.get());
  const absl::Time deadline = absl::Now() + options_.timeout;
  const Status taken = NoExceptions("REST", [&]() -> Status {
    MR_ASSIGN_OR_RETURN(RestTarget target, ParseRestPath(request->method(), request->path()));
    if (options_.lanes == nullptr || !MayTakeLong(target)) {
      if (MayTakeLong(target) && !request->Unpack()) return absl::OkStatus();
      AnswerTo(request.get(), Reply(target, *request, {.deadline = deadline}));
      return absl::OkStatus();
    }
    return options_.lanes->Run(&request, request->path(), deadline,
                               [self = shared_from_this(), target = std::move(target)](
                                   HttpRequest* asked, const StepBounds& bounds) {
                                 return self->AnswerTo(asked, NoExceptions("REST", [&] {
                                                         return self->Reply(target, *asked, bounds);
                                                       }));
                               });
  });
  if (!taken.ok() && request != nullptr) AnswerTo(request.get(), taken);
}

bool Front::AnswerTo(HttpRequest* request, StatusOr<std::string> reply) const {
  if (reply.ok()) {
    request->Answer(200, RestReplyHeaders(options_.cors), *std::move(reply));
  } else {
    AnswerRestError(request, reply.status(), options_.cors);
  }
  return reply.ok();
}

bool Front::MayTakeLong(const RestTarget& target) {
  return target.kind == RestTarget::Kind::kPredict || target.kind == RestTarget::Kind::kClassify ||
         target.kind == RestTarget::Kind::kRegress || target.kind == RestTarget::Kind::kMetadata;
}

StatusOr<std::string> Front::Reply(const RestTarget& target, const HttpRequest& request,
                                   const StepBounds& bounds) const {
  switch (target.kind) {
    case RestTarget::Kind::kPredict:
      return Observed(RequestApi::kPredict, target, request, bounds, &Front::Predict);
    case RestTarget::Kind::kClassify:
      return Observed(RequestApi::kClassify, target, request, bounds, &Front::Classify);
    case RestTarget::Kind::kRegress:
      return Observed(RequestApi::kRegress, target, request, bounds, &Front::Regress);
    case RestTarget::Kind::kStatus:
      return StatusOf(target);
    case RestTarget::Kind::kMetadata:
      return MetadataOf(target, bounds);
    case RestTarget::Kind::kListModels:
      break;
  }
  return Models();
}

StatusOr<std::string> Front::Observed(
    RequestApi api, const RestTarget& target, const HttpRequest& request, const StepBounds& bounds,
    StatusOr<std::string> (Front::*answer)(const ServedModel&, const Asked&) const) const {
  std::optional<ModelRequests::Pinned> model;  // until the observer has seen the end
  ObservedRequest observed(requests_->observer(), api,
                           {.entrypoint = RequestEntrypoint::kRest,
                            .client = request.peer(),
                            .bytes_in = static_cast<int64_t>(request.body().size())});
  observed.record()->model = target.model_name;
  StatusOr<ModelRequests::Pinned> found = Pin(target, bounds);
  if (!found.ok()) return observed.End(found.status());
  model.emplace(*std::move(found));
  observed.Found(**model);
  StatusOr<std::string> reply = NoExceptions("REST", [&] {
    return (this->*answer)(
        **model,
        {.target = target, .body = request.body(), .bounds = bounds, .observed = &observed});
  });
  // Of a body that was not read, or an exception; else the end was before.
  if (!reply.ok()) return observed.EndWithoutMessages(reply.status());
  return reply;
}

StatusOr<std::string> Front::Predict(const ServedModel& model, const Asked& asked) const {
  std::vector<JsonInput> inputs;  // of the signature that was asked for last
  MR_ASSIGN_OR_RETURN(
      const JsonPredictRequest request,
      ReadPredictRequest(
          asked.body,
          [&](absl::string_view signature) -> StatusOr<absl::Span<const JsonInput>> {
            MR_ASSIGN_OR_RETURN(inputs, InputsOf(model, signature));
            return absl::MakeConstSpan(inputs);
          },
          options_.limits));
  RequestRecord* const record = asked.observed->record();
  record->signature = request.signature_name;
  record->inputs = request.inputs;
  asked.observed->BeginRun();
  const StatusOr<std::vector<AliasedTensor>> outputs = model.PredictTensors(
      request.signature_name, request.inputs, {}, asked.bounds, PredictCaller::kRest);
  asked.observed->EndRun();
  if (!outputs.ok()) return asked.observed->End(outputs.status());
  record->outputs = *outputs;
  return Ended(PredictReply(*outputs, request.form), asked.observed);
}

StatusOr<std::string> Front::Classify(const ServedModel& model, const Asked& asked) const {
  MR_ASSIGN_OR_RETURN(const auto request, ExamplesRequest<serving::ClassificationRequest>(
                                              asked.target, asked.body, options_.limits));
  serving::ClassificationResponse response;
  MR_RETURN_IF_ERROR(
      RunExamples(model, &ServedModel::Classify, request, asked.bounds, &response, asked.observed));
  std::vector<std::vector<ClassAndScore>> examples;
  for (const serving::Classifications& classes : response.result().classifications()) {
    auto& out = examples.emplace_back();
    for (const serving::Class& one : classes.classes()) out.push_back({one.label(), one.score()});
  }
  return Ended(ClassifyReply(examples), asked.observed);
}

StatusOr<std::string> Front::Regress(const ServedModel& model, const Asked& asked) const {
  MR_ASSIGN_OR_RETURN(const auto request, ExamplesRequest<serving::RegressionRequest>(
                                              asked.target, asked.body, options_.limits));
  serving::RegressionResponse response;
  MR_RETURN_IF_ERROR(
      RunExamples(model, &ServedModel::Regress, request, asked.bounds, &response, asked.observed));
  std::vector<float> values;
  for (const serving::Regression& one : response.result().regressions()) {
    values.push_back(one.value());
  }
  return Ended(RegressReply(values), asked.observed);
}

StatusOr<std::string> Front::StatusOf(const RestTarget& target) const {
  serving::GetModelStatusRequest request;
  serving::ModelSpec* const spec = request.mutable_model_spec();
  spec->set_name(target.model_name);
  // A label says nothing here: all versions, as in TensorFlow Serving.
  if (target.version.has_value()) spec->mutable_version()->set_value(*target.version);
  serving::GetModelStatusResponse response;
  MR_RETURN_IF_ERROR(requests_->GetModelStatus(request, &response));
  return StatusReply(response);
}

StatusOr<std::string> Front::MetadataOf(const RestTarget& target, const StepBounds& bounds) const {
  MR_ASSIGN_OR_RETURN(const ModelRequests::Pinned model, Pin(target, bounds));
  serving::GetModelMetadataRequest request;
  request.mutable_model_spec()->set_name(target.model_name);
  request.add_metadata_field(kSignatureDef);
  serving::GetModelMetadataResponse response;
  MR_RETURN_IF_ERROR(model->GetModelMetadata(request, &response));
  serving::SignatureDefMap signatures;
  const auto it = response.metadata().find(kSignatureDef);
  if (it == response.metadata().end() || !it->second.UnpackTo(&signatures)) {
    return Internal("Metadata of ", target.model_name,
                    ": it must have signature_def as a SignatureDefMap, got something else");
  }
  return MetadataReply(response.model_spec(), signatures);
}

std::string Front::Models() const {
  const auto version_text = [](std::string* out, const VersionStatus& version) {
    absl::StrAppend(
        out, "{\"version\": \"", version.version, "\", \"state\": \"",
        serving::ModelVersionStatus::State_Name(
            static_cast<serving::ModelVersionStatus::State>(ServingStateNumber(version.state))),
        "\"}");
  };
  std::vector<std::string> models;
  for (const ModelStatus& model : requests_->versions()->GetStatuses()) {
    if (!model.is_listed) continue;
    models.push_back(absl::StrCat("  {\"name\": ", QuotedJson(model.name, kMaxShownName),
                                  ", \"model_version_status\": [",
                                  absl::StrJoin(model.versions, ", ", version_text), "]}"));
  }
  return absl::StrCat("{\n \"models\": [\n", absl::StrJoin(models, ",\n"), "\n ]\n}\n");
}

}  // namespace

HttpHandler RestFront(std::shared_ptr<const ModelRequests> requests, RestFrontOptions options) {
  return [front = std::make_shared<const Front>(std::move(requests), std::move(options))](
             std::unique_ptr<HttpRequest> request) { front->Serve(std::move(request)); };
}

}  // namespace millrace
