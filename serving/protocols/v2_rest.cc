// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/v2_rest.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "proto/inference/grpc_service.pb.h"
#include "serving/aliased_tensor.h"
#include "serving/available_versions.h"
#include "serving/protocols/v2_infer.h"
#include "serving/protocols/v2_json.h"
#include "serving/request_observer.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/rest_answer.h"
#include "serving/rest/rest_path.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"

namespace millrace {
namespace {

constexpr char kHeaderLength[] = "Inference-Header-Content-Length";
constexpr size_t kMaxShownPath = 1024;

bool IsV2Path(absl::string_view path) { return path == "/v2" || absl::StartsWith(path, "/v2/"); }

struct Target {
  enum class Kind { kServer, kLive, kReady, kModel, kModelReady, kInfer };
  Kind kind = Kind::kServer;
  V2Target model;
};

// Nothing for a path that is none of the protocol's.
StatusOr<std::optional<Target>> ParsePath(absl::string_view path) {
  std::vector<absl::string_view> parts = absl::StrSplit(path.substr(1), '/');
  if (parts.size() > 1 && parts.back().empty()) parts.pop_back();
  const auto is = [&](size_t i, absl::string_view word) {
    return i < parts.size() && parts[i] == word;
  };
  Target target;
  if (parts.size() == 1) return std::optional<Target>(target);
  if (parts.size() == 3 && is(1, "health") && (is(2, "live") || is(2, "ready"))) {
    target.kind = is(2, "live") ? Target::Kind::kLive : Target::Kind::kReady;
    return std::optional<Target>(target);
  }
  if (parts.size() < 3 || !is(1, "models") || parts[2].empty()) return std::optional<Target>();
  std::string version;
  size_t next = 3;
  if (is(3, "versions") && parts.size() > 4 && !parts[4].empty()) {
    version = PercentDecoded(parts[4]);
    next = 5;
  }
  if (next == parts.size()) {
    target.kind = Target::Kind::kModel;
  } else if (next + 1 == parts.size() && (is(next, "ready") || is(next, "infer"))) {
    target.kind = is(next, "ready") ? Target::Kind::kModelReady : Target::Kind::kInfer;
  } else {
    return std::optional<Target>();
  }
  MR_ASSIGN_OR_RETURN(target.model, V2TargetOf(PercentDecoded(parts[2]), version));
  return std::optional<Target>(std::move(target));
}

struct Reply {
  int status = 200;
  std::string body;
  size_t json_bytes = 0;
};

class Front : public std::enable_shared_from_this<Front> {
 public:
  Front(std::shared_ptr<const ModelRequests> requests, std::shared_ptr<const Readiness> readiness,
        V2RestOptions options)
      : requests_(std::move(requests)), readiness_(std::move(readiness)), options_(options) {}

  void Serve(std::unique_ptr<HttpRequest> request) const;

 private:
  // Says whether there is a reply.
  bool AnswerTo(HttpRequest* request, StatusOr<Reply> reply) const;
  static StatusOr<Target> TargetOf(const HttpRequest& request);
  StatusOr<Reply> ReplyTo(const HttpRequest& request, const Target& target,
                          const StepBounds& bounds) const;
  StatusOr<Reply> Infer(const HttpRequest& request, const V2Target& target,
                        const StepBounds& bounds) const;
  StatusOr<Reply> InferOn(const ServedModel& model, const HttpRequest& request,
                          const V2Target& target, const StepBounds& bounds,
                          ObservedRequest* observed) const;
  static Reply Whole(std::string body, bool is_so = true) {
    const size_t bytes = body.size();
    return {.status = is_so ? 200 : 503, .body = std::move(body), .json_bytes = bytes};
  }

  const std::shared_ptr<const ModelRequests> requests_;
  const std::shared_ptr<const Readiness> readiness_;
  const V2RestOptions options_;
};

void Front::Serve(std::unique_ptr<HttpRequest> request) const {
  if (options_.cors && request->method() == "OPTIONS") return AnswerPreflight(request.get());
  const absl::Time deadline = absl::Now() + options_.timeout;
  const Status taken = NoExceptions("REST", [&]() -> Status {
    MR_ASSIGN_OR_RETURN(Target target, TargetOf(*request));
    // A model may have to load before it says what it is.
    const bool may_take_long =
        target.kind == Target::Kind::kInfer || target.kind == Target::Kind::kModel;
    if (options_.lanes == nullptr || !may_take_long) {
      if (may_take_long && !request->Unpack()) return absl::OkStatus();
      AnswerTo(request.get(), ReplyTo(*request, target, {.deadline = deadline}));
      return absl::OkStatus();
    }
    return options_.lanes->Run(
        &request, request->path(), deadline,
        [self = shared_from_this(), target = std::move(target)](HttpRequest* asked,
                                                                const StepBounds& bounds) {
          return self->AnswerTo(
              asked, NoExceptions("REST", [&] { return self->ReplyTo(*asked, target, bounds); }));
        });
  });
  if (!taken.ok() && request != nullptr) AnswerTo(request.get(), taken);
}

bool Front::AnswerTo(HttpRequest* request, StatusOr<Reply> reply) const {
  if (!reply.ok()) {
    AnswerRestError(request, reply.status(), options_.cors);
    return false;
  }
  HttpHeaders headers = RestReplyHeaders(options_.cors);
  if (reply->json_bytes < reply->body.size()) {
    for (auto& [name, value] : headers) {
      if (name == "Content-Type") value = "application/octet-stream";
    }
    headers.emplace_back(kHeaderLength, absl::StrCat(reply->json_bytes));
  }
  request->Answer(reply->status, std::move(headers), std::move(reply->body));
  return true;
}

StatusOr<Target> Front::TargetOf(const HttpRequest& request) {
  const auto shown = [&] {
    return absl::StrCat(request.method(), " ", request.path().substr(0, kMaxShownPath));
  };
  MR_ASSIGN_OR_RETURN(std::optional<Target> target, ParsePath(request.path()));
  if (!target.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("Path must be one of the Open Inference Protocol, got ", shown()));
  }
  const bool is_infer = target->kind == Target::Kind::kInfer;
  // The server cuts the bodies of replies to HEAD.
  const bool is_get = request.method() == "GET" || request.method() == "HEAD";
  if (is_infer ? request.method() != "POST" : !is_get) {
    return InvalidArgument("Malformed request: ", shown());
  }
  return *std::move(target);
}

StatusOr<Reply> Front::ReplyTo(const HttpRequest& request, const Target& target,
                               const StepBounds& bounds) const {
  switch (target.kind) {
    case Target::Kind::kServer:
      return Whole(V2MetadataJson(ServerMetadataV2()));
    case Target::Kind::kLive:
      return Whole("{\"live\":true}");
    case Target::Kind::kReady: {
      const bool ready = readiness_->is_ready();
      return Whole(ready ? "{\"ready\":true}" : "{\"ready\":false}", ready);
    }
    case Target::Kind::kModel: {
      MR_ASSIGN_OR_RETURN(const auto metadata, ModelMetadataV2(*requests_, target.model, bounds));
      return Whole(V2MetadataJson(metadata));
    }
    case Target::Kind::kModelReady: {
      const V2Ready ready = IsModelReadyV2(*requests_, *readiness_, target.model);
      if (ready == V2Ready::kUnknown) {
        return ServableNotFound(target.model.model, target.model.version);
      }
      const bool is_ready = ready == V2Ready::kReady;
      return Whole(absl::StrCat("{\"name\":", QuotedJson(target.model.model, kMaxShownPath),
                                ",\"ready\":", is_ready ? "true" : "false", "}"),
                   is_ready);
    }
    case Target::Kind::kInfer:
      break;
  }
  return Infer(request, target.model, bounds);
}

StatusOr<Reply> Front::Infer(const HttpRequest& request, const V2Target& target,
                             const StepBounds& bounds) const {
  std::optional<ModelRequests::Pinned> model;  // until the observer has seen the end
  ObservedRequest observed(requests_->observer(), RequestApi::kPredict,
                           {.entrypoint = RequestEntrypoint::kRest,
                            .client = request.peer(),
                            .bytes_in = static_cast<int64_t>(request.body().size())});
  observed.record()->model = target.model;
  StatusOr<Reply> reply = NoExceptions("REST", [&]() -> StatusOr<Reply> {
    MR_ASSIGN_OR_RETURN(ModelRequests::Pinned pinned, PinV2(*requests_, target, bounds));
    model.emplace(std::move(pinned));
    observed.Found(**model);
    return InferOn(**model, request, target, bounds, &observed);
  });
  // Of what did not come to the model; else the end was before.
  if (!reply.ok()) return observed.EndWithoutMessages(reply.status());
  return reply;
}

// Ends `observed` while the tensors are there; after an error before the model it has not ended.
StatusOr<Reply> Front::InferOn(const ServedModel& model, const HttpRequest& request,
                               const V2Target& target, const StepBounds& bounds,
                               ObservedRequest* observed) const {
  absl::string_view json = request.body(), binary;
  if (const absl::string_view header = request.header(kHeaderLength); !header.empty()) {
    uint64_t bytes = 0;
    if (!absl::SimpleAtoi(header, &bytes) || bytes > json.size()) {
      return InvalidArgument(kHeaderLength, " must be a number of bytes within the ", json.size(),
                             " of the body, got ", header.substr(0, kMaxShownPath));
    }
    binary = json.substr(bytes);
    json = json.substr(0, bytes);
  }
  MR_ASSIGN_OR_RETURN(const V2Infer read, ReadV2Json(json, binary, options_.limits));
  MR_ASSIGN_OR_RETURN(const std::vector<AliasedTensor> outputs,
                      RunObservedV2(model, read, bounds, PredictCaller::kRest, observed));
  StatusOr<V2JsonReply> reply = WriteV2Json(target.model, model.version(), read, outputs);
  if (reply.ok()) observed->record()->bytes_out = static_cast<int64_t>(reply->body.size());
  MR_RETURN_IF_ERROR(observed->End(reply.status()));
  return Reply{.status = 200, .body = std::move(reply->body), .json_bytes = reply->json_bytes};
}

}  // namespace

HttpHandler V2RestFront(std::shared_ptr<const ModelRequests> requests,
                        std::shared_ptr<const Readiness> readiness, V2RestOptions options,
                        HttpHandler others) {
  return [front = std::make_shared<const Front>(std::move(requests), std::move(readiness), options),
          others = std::move(others)](std::unique_ptr<HttpRequest> request) {
    if (!IsV2Path(request->path())) return others(std::move(request));
    front->Serve(std::move(request));
  };
}

}  // namespace millrace
