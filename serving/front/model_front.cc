// SPDX-License-Identifier: Apache-2.0
#include "serving/front/model_front.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "nlohmann/json.hpp"
#include "serving/front/node_plan.h"
#include "serving/front/node_process.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/rest_path.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using Kind = FrontTarget::Kind;

constexpr char kSocketDirName[] = "/millrace_front_";
constexpr size_t kMaxChangeBytes = 64 << 10;
constexpr int kMaxChanging = 100;

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string JsonText(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// {"error": {"code": 404, "message": "...", "status": "NOT_FOUND"}}, as the hosted service has it.
void AnswerChange(HttpRequest* request, const StatusOr<std::string>& reply) {
  HttpHeaders headers = {{"Content-Type", "application/json"}};
  if (reply.ok()) return request->Answer(200, std::move(headers), *reply);
  const Status& status = reply.status();
  const int code = HttpStatus(status.code());
  if (code == 429 || code == 503) headers.emplace_back("Retry-After", "1");
  const Json error = {{"error",
                       {{"code", code},
                        {"message", std::string(status.message())},
                        {"status", absl::StatusCodeToString(status.code())}}}};
  request->Answer(code, std::move(headers), JsonText(error));
}

// {"error": "..."}, as predictions have it.
void AnswerPredictError(HttpRequest* request, const Status& error) {
  request->Answer(HttpStatus(error.code()), {{"Content-Type", "application/json"}},
                  ErrorReply(error));
}

std::string ModelPath(const std::string& project, const std::string& model) {
  return absl::StrCat("projects/", project, "/models/", model);
}

Json VersionJson(const std::string& model_path, const CatalogModel& model, const std::string& name,
                 const CatalogVersion& version, const FleetStatus& status) {
  Json json = {{"name", absl::StrCat(model_path, "/versions/", name)}};
  if (!version.description.empty()) json["description"] = version.description;
  if (model.default_version == name) json["isDefault"] = true;
  json["deploymentUri"] = version.directory;
  json["createTime"] = TimeText(absl::FromUnixSeconds(version.create_seconds));
  if (status.last_use > absl::InfinitePast()) json["lastUseTime"] = TimeText(status.last_use);
  json["state"] = status.is_failing ? "FAILED" : "READY";
  if (status.is_failing) json["errorMessage"] = status.last_error;
  json["minNodes"] = version.min_nodes;
  json["maxNodes"] = version.max_nodes;
  json["concurrencyTarget"] = version.concurrency_target;
  json["idleSeconds"] = version.idle_seconds;
  Json nodes = Json::array();
  for (const FleetStatus::Node& node : status.nodes) {
    Json one = {{"state", std::string(FrontNodeStateName(node.state))}};
    one["pid"] = node.pid;
    one["running"] = node.running;
    nodes.push_back(std::move(one));
  }
  json["nodes"] = std::move(nodes);
  json["waiting"] = status.num_waiting;
  return json;
}

std::vector<FleetVersion> FleetVersions(const CatalogContents& contents) {
  std::vector<FleetVersion> versions;
  for (const auto& [key, model] : contents.models) {
    for (const auto& [name, version] : model.versions) {
      versions.push_back({.id = version.id,
                          .model = key.second,
                          .label = absl::StrCat(key.second, "/", name),
                          .directory = version.directory,
                          .min_nodes = version.min_nodes,
                          .max_nodes = version.max_nodes,
                          .target = version.concurrency_target,
                          .idle_time = absl::Seconds(version.idle_seconds)});
    }
  }
  return versions;
}

// Ends what an earlier front has left.
void EndFormerNodes(const std::string& socket_dir) {
  // Written by a front; anything else is not touched.
  if (!absl::StartsWith(socket_dir, "/") || !absl::StrContains(socket_dir, kSocketDirName)) return;
  const int ended = KillProcessesWith(absl::StrCat("=", socket_dir, "/"));
  if (ended > 0) LogInfo("Ends ", ended, " node(s) of an earlier front");
  FileSystem::Posix()->RecursivelyDelete(socket_dir).IgnoreError();
}

}  // namespace

Status ModelFront::OpenState(const ModelFrontOptions& options) {
  FileSystem* const fs = FileSystem::Posix();
  state_dir_ = options.state_dir;
  if (state_dir_.empty()) return InvalidArgument("State directory: it must have a name, got ''");
  MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(state_dir_));
  MR_ASSIGN_OR_RETURN(lock_, fs->TryLockFile(JoinPath(state_dir_, "front.lock"),
                                             absl::StrCat("front, pid ", getpid())));
  const std::string sockets_file = JoinPath(state_dir_, "sockets");
  if (fs->FileExists(sockets_file)) {
    MR_ASSIGN_OR_RETURN(const std::string former, ReadFileToString(fs, sockets_file));
    EndFormerNodes(former);
  }
  std::string name = absl::StrCat(options.socket_parent, kSocketDirName, "XXXXXX");
  if (mkdtemp(name.data()) == nullptr) {
    return FailedPrecondition("Directory of sockets '", name, "': ", std::strerror(errno));
  }
  socket_dir_ = name;
  return WriteFileAtomically(fs, sockets_file, socket_dir_);
}

StatusOr<std::unique_ptr<ModelFront>> ModelFront::Start(ModelFrontOptions options) {
  MR_RETURN_IF_ERROR(CheckCatalogName("Project", options.default_project));
  for (const std::string& flag : options.node_flags) {
    // The front asks its nodes by plain HTTP and shows no token.
    for (const char* const refused : {"--token_file", "--ssl_config_file"}) {
      if (absl::StartsWith(flag, refused)) {
        return InvalidArgument("Flags of nodes must be without ", refused, ", got '", flag, "'");
      }
    }
  }
  if (access(options.model_server.c_str(), X_OK) != 0) {
    return FailedPrecondition("Model server '", options.model_server,
                              "': it must be a program, got ", std::strerror(errno));
  }
  auto front = std::unique_ptr<ModelFront>(new ModelFront());
  front->default_project_ = options.default_project;
  MR_RETURN_IF_ERROR(front->OpenState(options));
  NodeFleet::Options nodes = options.nodes;
  nodes.model_server = options.model_server;
  nodes.node_flags = options.node_flags;
  nodes.socket_dir = front->socket_dir_;
  MR_ASSIGN_OR_RETURN(front->fleet_, NodeFleet::Start(std::move(nodes)));
  MR_ASSIGN_OR_RETURN(
      front->catalog_,
      ModelCatalog::Open({.path = JoinPath(options.state_dir, "models.json"),
                          .now = [] { return absl::ToUnixSeconds(absl::Now()); },
                          .on_change =
                              [fleet = front->fleet_.get()](const CatalogContents& contents) {
                                fleet->SetVersions(FleetVersions(contents));
                              }}));
  front->fleet_->SetVersions(FleetVersions(*front->catalog_->contents()));
  front->changes_ = std::make_unique<IoPool>(1);
  HttpServerOptions http = options.http;
  http.addresses = options.addresses;
  MR_ASSIGN_OR_RETURN(front->http_,
                      HttpServer::Start(std::move(http), [serving = front.get()](
                                                             std::unique_ptr<HttpRequest> request) {
                        serving->Serve(std::move(request));
                      }));
  return front;
}

ModelFront::~ModelFront() { Stop(absl::ZeroDuration()); }

void ModelFront::Stop(absl::Duration drain) {
  SetNotReady();
  if (http_ != nullptr) http_->Stop(drain);
  changes_.reset();
  if (fleet_ != nullptr) fleet_->Stop();
  if (socket_dir_.empty()) return;
  FileSystem::Posix()->RecursivelyDelete(socket_dir_).IgnoreError();
  FileSystem::Posix()->DeleteFile(JoinPath(state_dir_, "sockets")).IgnoreError();
  socket_dir_.clear();
}

// As a model server's.
bool ModelFront::AnswerProbe(HttpRequest* request) const {
  const bool is_live = request->path() == "/v2/health/live";
  if (!is_live && request->path() != "/v2/health/ready") return false;
  if (request->method() != "GET" && request->method() != "HEAD") return false;
  const bool is_so = is_live || is_ready_;
  request->Answer(
      is_so ? 200 : 503, {{"Content-Type", "application/json"}},
      absl::StrCat("{\"", is_live ? "live" : "ready", "\":", is_so ? "true" : "false", "}"));
  return true;
}

void ModelFront::Serve(std::unique_ptr<HttpRequest> request) {
  if (AnswerProbe(request.get())) return;
  StatusOr<FrontTarget> target =
      ParseFrontPath(request->method(), request->path(), default_project_);
  if (!target.ok()) {
    // In the form that its client reads.
    return absl::EndsWith(request->path(), ":predict")
               ? AnswerPredictError(request.get(), target.status())
               : AnswerChange(request.get(), target.status());
  }
  switch (target->kind) {
    case Kind::kPredict:
    case Kind::kMetadata:
      return Predict(*std::move(target), std::move(request));
    case Kind::kListModels:
    case Kind::kGetModel:
    case Kind::kListVersions:
    case Kind::kGetVersion:
      return AnswerChange(request.get(), Read(*target));
    case Kind::kCreateModel:
    case Kind::kDeleteModel:
    case Kind::kCreateVersion:
    case Kind::kDeleteVersion:
    case Kind::kSetDefault:
      return Change(*target, std::move(request));
  }
}

void ModelFront::Predict(FrontTarget target, std::unique_ptr<HttpRequest> request) {
  const std::shared_ptr<const CatalogContents> contents = catalog_->contents();
  const auto find = [&]() -> StatusOr<int64_t> {
    if (target.version.empty()) {
      MR_ASSIGN_OR_RETURN(target.version, contents->DefaultVersion(target.project, target.model));
    }
    MR_ASSIGN_OR_RETURN(const CatalogVersion* const version,
                        contents->FindVersion(target.project, target.model, target.version));
    return version->id;
  };
  const StatusOr<int64_t> id = find();
  if (!id.ok()) return AnswerPredictError(request.get(), id.status());
  fleet_->Predict(*id, std::move(request));
}

void ModelFront::Change(const FrontTarget& target, std::unique_ptr<HttpRequest> request) {
  if (request->body().size() > kMaxChangeBytes) {
    return AnswerChange(request.get(),
                        InvalidArgument("Request: its body must have at most ", kMaxChangeBytes,
                                        " bytes, got ", request->body().size()));
  }
  if (num_changing_.fetch_add(1, std::memory_order_relaxed) >= kMaxChanging) {
    num_changing_.fetch_sub(1, std::memory_order_relaxed);
    return AnswerChange(request.get(), absl::ResourceExhaustedError(absl::StrCat(
                                           "Request: at most ", kMaxChanging,
                                           " changes must wait for each other, got one more")));
  }
  changes_->Schedule([this, target, asked = std::move(request)] {
    const StatusOr<std::string> reply =
        NoExceptions("Front", [&] { return Changed(target, asked->body()); });
    num_changing_.fetch_sub(1, std::memory_order_relaxed);
    AnswerChange(asked.get(), reply);
  });
}

StatusOr<std::string> ModelFront::Changed(const FrontTarget& target, absl::string_view body) {
  FrontTarget changed = target;
  switch (target.kind) {
    case Kind::kCreateModel: {
      MR_ASSIGN_OR_RETURN(changed.model, catalog_->CreateModel(target.project, body));
      changed.kind = Kind::kGetModel;
      break;
    }
    case Kind::kCreateVersion: {
      MR_ASSIGN_OR_RETURN(changed.version,
                          catalog_->CreateVersion(target.project, target.model, body));
      changed.kind = Kind::kGetVersion;
      break;
    }
    case Kind::kSetDefault:
      MR_RETURN_IF_ERROR(catalog_->SetDefault(target.project, target.model, target.version));
      changed.kind = Kind::kGetVersion;
      break;
    case Kind::kDeleteModel:
      MR_RETURN_IF_ERROR(catalog_->DeleteModel(target.project, target.model));
      return std::string("{}\n");
    default:
      MR_RETURN_IF_ERROR(catalog_->DeleteVersion(target.project, target.model, target.version));
      return std::string("{}\n");
  }
  return Read(changed);
}

StatusOr<std::string> ModelFront::Read(const FrontTarget& target) const {
  const std::shared_ptr<const CatalogContents> contents = catalog_->contents();
  const auto version_json = [&](const std::string& path, const CatalogModel& model,
                                const std::string& name) {
    const CatalogVersion& version = model.versions.at(name);
    return VersionJson(path, model, name, version, fleet_->StatusOf(version.id));
  };
  const auto model_json = [&](const std::string& name, const CatalogModel& model) {
    const std::string path = ModelPath(target.project, name);
    Json json = {{"name", path}};
    if (!model.description.empty()) json["description"] = model.description;
    json["createTime"] = TimeText(absl::FromUnixSeconds(model.create_seconds));
    if (!model.default_version.empty()) {
      json["defaultVersion"] = version_json(path, model, model.default_version);
    }
    return json;
  };
  if (target.kind == Kind::kListModels) {
    Json models = Json::array();
    for (const auto& [key, model] : contents->models) {
      if (key.first == target.project) models.push_back(model_json(key.second, model));
    }
    Json json = Json::object();
    json["models"] = std::move(models);
    return JsonText(json);
  }
  MR_ASSIGN_OR_RETURN(const CatalogModel* const model,
                      contents->FindModel(target.project, target.model));
  if (target.kind == Kind::kGetModel) return JsonText(model_json(target.model, *model));
  const std::string path = ModelPath(target.project, target.model);
  if (target.kind == Kind::kListVersions) {
    Json versions = Json::array();
    for (const auto& [name, version] : model->versions) {
      versions.push_back(version_json(path, *model, name));
    }
    Json json = Json::object();
    json["versions"] = std::move(versions);
    return JsonText(json);
  }
  MR_RETURN_IF_ERROR(contents->FindVersion(target.project, target.model, target.version).status());
  return JsonText(version_json(path, *model, target.version));
}

}  // namespace millrace
