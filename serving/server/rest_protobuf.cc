// SPDX-License-Identifier: Apache-2.0
#include "serving/server/rest_protobuf.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/model.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/regression.pb.h"
#include "serving/cut_text.h"
#include "serving/request_observer.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/rest_lanes.h"
#include "serving/rest/rest_path.h"
#include "serving/step_bounds.h"

namespace millrace {
namespace {

namespace serving = tensorflow::serving;

constexpr absl::string_view kTypes[] = {"application/x-protobuf", "application/protobuf"};
constexpr int64_t kMostBytes = INT32_MAX;  // protobuf's
constexpr size_t kMaxErrorBytes = 16 << 10;
constexpr size_t kMaxShownName = 1024;

// "application/protobuf; q=0.9" is the second of kTypes; "": none of them.
absl::string_view ProtobufType(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text.substr(0, text.find(';')));
  for (const absl::string_view type : kTypes) {
    if (absl::EqualsIgnoreCase(text, type)) return type;
  }
  return "";
}

// The request's own type, unless Accept has only the other one.
absl::string_view ReplyType(absl::string_view own, absl::string_view accept) {
  absl::string_view other;
  for (const absl::string_view one : absl::StrSplit(accept, ',')) {
    const absl::string_view type = ProtobufType(one);
    if (type == own) return own;
    if (!type.empty()) other = type;
  }
  return other.empty() ? own : other;
}

bool RunsModel(RestTarget::Kind kind) {
  return kind == RestTarget::Kind::kPredict || kind == RestTarget::Kind::kClassify ||
         kind == RestTarget::Kind::kRegress;
}

template <typename Path, typename Message>
Status Contradiction(absl::string_view what, const Path& path, const Message& message) {
  return InvalidArgument("REST: ", what, " of the message must be that of the path, ",
                         CutText(absl::StrCat(path), kMaxShownName), ", got ",
                         CutText(absl::StrCat(message), kMaxShownName));
}

// The model that the path means, with what only the message says.
Status FillSpec(const RestTarget& target, serving::ModelSpec* spec) {
  if (!spec->name().empty() && spec->name() != target.model_name) {
    return Contradiction("the model", target.model_name, spec->name());
  }
  spec->set_name(target.model_name);
  if (target.version.has_value()) {
    if (!spec->version_label().empty()) {
      return Contradiction("the version", *target.version,
                           absl::StrCat("label ", spec->version_label()));
    }
    if (spec->has_version() && spec->version().value() != *target.version) {
      return Contradiction("the version", *target.version, spec->version().value());
    }
    spec->mutable_version()->set_value(*target.version);
  }
  if (target.label.has_value()) {
    if (spec->has_version()) {
      return Contradiction("the label", *target.label,
                           absl::StrCat("version ", spec->version().value()));
    }
    if (!spec->version_label().empty() && spec->version_label() != *target.label) {
      return Contradiction("the label", *target.label, spec->version_label());
    }
    spec->set_version_label(*target.label);
  }
  return absl::OkStatus();
}

class Front : public std::enable_shared_from_this<Front> {
 public:
  Front(std::shared_ptr<const ModelRequests> requests, const RestFrontOptions& options,
        HttpHandler next)
      : requests_(std::move(requests)), options_(options), next_(std::move(next)) {}

  void Serve(std::unique_ptr<HttpRequest> request) const;

 private:
  HttpHeaders Headers(absl::string_view type) const {
    HttpHeaders headers;
    for (const auto& [name, value] : ReplyHeaders(options_.cors)) {
      headers.emplace_back(std::string(name), std::string(name == "Content-Type" ? type : value));
    }
    return headers;
  }
  // Says whether there is a reply.
  bool AnswerTo(HttpRequest* request, absl::string_view type, StatusOr<std::string> reply) const;
  StatusOr<std::string> Reply(const RestTarget& target, const HttpRequest& request,
                              const StepBounds& bounds) const;
  template <typename Request, typename Response>
  StatusOr<std::string> Ask(Status (ModelRequests::*ask)(const Request&, const StepBounds&,
                                                         Response*, const RequestOrigin&) const,
                            const RestTarget& target, const HttpRequest& request,
                            const StepBounds& bounds) const;

  const std::shared_ptr<const ModelRequests> requests_;
  const RestFrontOptions options_;
  const HttpHandler next_;
};

void Front::Serve(std::unique_ptr<HttpRequest> request) const {
  const absl::string_view own = ProtobufType(request->header("Content-Type"));
  if (own.empty() || request->method() != "POST" || !IsRestPath(request->path())) {
    return next_(std::move(request));
  }
  const absl::string_view type = ReplyType(own, request->header("Accept"));
  const absl::Time deadline = absl::Now() + options_.timeout;
  const Status taken = NoExceptions("REST", [&]() -> Status {
    MR_ASSIGN_OR_RETURN(RestTarget target, ParseRestPath(request->method(), request->path()));
    if (!RunsModel(target.kind)) {
      next_(std::move(request));
      return absl::OkStatus();
    }
    if (options_.lanes == nullptr) {
      if (!request->Unpack()) return absl::OkStatus();
      AnswerTo(request.get(), type, Reply(target, *request, {.deadline = deadline}));
      return absl::OkStatus();
    }
    // They take less time than the same as JSON.
    const std::string kind = absl::StrCat(request->path(), " protobuf");
    return options_.lanes->Run(&request, kind, deadline,
                               [self = shared_from_this(), type, target = std::move(target)](
                                   HttpRequest* asked, const StepBounds& bounds) {
                                 return self->AnswerTo(asked, type, NoExceptions("REST", [&] {
                                                         return self->Reply(target, *asked, bounds);
                                                       }));
                               });
  });
  if (!taken.ok() && request != nullptr) AnswerTo(request.get(), type, taken);
}

bool Front::AnswerTo(HttpRequest* request, absl::string_view type,
                     StatusOr<std::string> reply) const {
  if (reply.ok()) {
    request->Answer(200, Headers(type), *std::move(reply));
    return true;
  }
  const Status& status = reply.status();
  HttpHeaders headers = Headers("application/json");
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) {
    headers.emplace_back("Retry-After", "1");
  }
  request->Answer(HttpStatus(status.code()), std::move(headers),
                  ErrorReply(Status(status.code(), CutText(status.message(), kMaxErrorBytes))));
  return false;
}

StatusOr<std::string> Front::Reply(const RestTarget& target, const HttpRequest& request,
                                   const StepBounds& bounds) const {
  switch (target.kind) {
    case RestTarget::Kind::kClassify:
      return Ask(&ModelRequests::Classify, target, request, bounds);
    case RestTarget::Kind::kRegress:
      return Ask(&ModelRequests::Regress, target, request, bounds);
    default:
      return Ask(&ModelRequests::Predict, target, request, bounds);
  }
}

template <typename Request, typename Response>
StatusOr<std::string> Front::Ask(Status (ModelRequests::*ask)(const Request&, const StepBounds&,
                                                              Response*, const RequestOrigin&)
                                     const,
                                 const RestTarget& target, const HttpRequest& request,
                                 const StepBounds& bounds) const {
  const absl::string_view body = request.body();
  const int64_t most = std::min(options_.limits.max_body_bytes, kMostBytes);
  if (static_cast<int64_t>(body.size()) > most) {
    return InvalidArgument("REST: a body may have at most ", most, " bytes, got ", body.size());
  }
  Request message;
  if (!message.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return InvalidArgument("REST: the body must be a ", message.GetTypeName(), ", got ",
                           body.size(), " bytes that are none");
  }
  MR_RETURN_IF_ERROR(FillSpec(target, message.mutable_model_spec()));
  Response response;
  MR_RETURN_IF_ERROR(((*requests_).*ask)(message, bounds, &response,
                                         {.entrypoint = RequestEntrypoint::kRest,
                                          .client = request.peer(),
                                          .bytes_in = static_cast<int64_t>(body.size())}));
  std::string bytes;
  if (!response.SerializeToString(&bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("REST: a ", response.GetTypeName(), " must have less than 2 GiB, got more"));
  }
  return bytes;
}

}  // namespace

HttpHandler ProtobufRestFront(std::shared_ptr<const ModelRequests> requests,
                              const RestFrontOptions& options, HttpHandler next) {
  return [front = std::make_shared<const Front>(std::move(requests), options, std::move(next))](
             std::unique_ptr<HttpRequest> request) { front->Serve(std::move(request)); };
}

}  // namespace millrace
