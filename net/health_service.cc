// SPDX-License-Identifier: Apache-2.0
#include "net/health_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "net/tensor_coding.h"
#include "proto/health/health.pb.h"

namespace millrace {
namespace {

constexpr char kCheckPath[] = "/grpc.health.v1.Health/Check";
constexpr char kWatchPath[] = "/grpc.health.v1.Health/Watch";

StatusOr<grpc::ByteBuffer> Message(Health health) {
  grpc::health::v1::HealthCheckResponse response;
  response.set_status(
      static_cast<grpc::health::v1::HealthCheckResponse::ServingStatus>(static_cast<int>(health)));
  return EncodeMessage(response);
}

StatusOr<std::string> ServiceOf(const grpc::ByteBuffer& bytes) {
  grpc::health::v1::HealthCheckRequest request;
  MR_RETURN_IF_ERROR(DecodeMessage(request.GetTypeName(), bytes, &request));
  return request.service();
}

}  // namespace

// All but call and name under the service's lock.
struct HealthService::Watcher {
  std::shared_ptr<ServerCall> call;
  std::string name;
  Health wanted = Health::kServiceUnknown;  // what is true
  std::optional<Health> sent;               // what the client has heard, or is about to
  bool writes = false;                      // a write is under way
  bool client_has_gone = false;
  bool is_over = false;  // the call's end was begun
};

HealthService::HealthService(Options options) : options_(std::move(options)) {}

std::shared_ptr<HealthService> HealthService::Create(Options options) {
  return std::shared_ptr<HealthService>(new HealthService(std::move(options)));
}

std::map<std::string, RpcServer::Handler> HealthService::Handlers() {
  std::map<std::string, RpcServer::Handler> handlers;
  // Neither waits behind requests that run models.
  handlers[kCheckPath] = RpcServer::Handler(
      [self = shared_from_this()](std::shared_ptr<ServerCall> call,
                                  const grpc::ByteBuffer& request) {
        FinishWith(call.get(), [&] { return self->Check(request); });
      },
      CallWeight::kUrgent);
  handlers[kWatchPath] = RpcServer::Handler(
      [self = shared_from_this()](std::shared_ptr<ServerCall> call,
                                  const grpc::ByteBuffer& request) {
        const Status watched = self->Watch(call, request);
        if (!watched.ok()) call->FinishWithStatus(watched);
      },
      CallWeight::kUrgent);
  return handlers;
}

Health HealthService::StatusOf(absl::string_view name) const { return options_.look()(name); }

size_t HealthService::num_watchers() const {
  MutexLock lock(&mu_);
  return watchers_.size();
}

StatusOr<grpc::ByteBuffer> HealthService::Check(const grpc::ByteBuffer& request) const {
  MR_ASSIGN_OR_RETURN(const std::string name, ServiceOf(request));
  const Health health = StatusOf(name);
  if (health == Health::kServiceUnknown) {
    return absl::NotFoundError(
        absl::StrCat("Health: service must be ", options_.known_names, ", got '", name, "'"));
  }
  return Message(health);
}

Status HealthService::Watch(std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& request) {
  auto watcher = std::make_shared<Watcher>();
  MR_ASSIGN_OR_RETURN(watcher->name, ServiceOf(request));
  watcher->call = std::move(call);
  // Before the watcher is one of the list: what throws until then is the call's end. The call owns
  // the callback, so that owns neither.
  CancellationManager::Token token = 0;
  const bool is_there = watcher->call->cancellation()->Register(
      &token, [service = weak_from_this(), gone = std::weak_ptr<Watcher>(watcher)] {
        const auto self = service.lock();
        const auto w = gone.lock();
        if (self != nullptr && w != nullptr) self->ClientHasGone(w);
      });
  if (!is_there) return absl::CancelledError("the client has gone");
  {
    MutexLock lock(&mu_);
    if (watchers_.size() >= options_.max_watchers) {
      return absl::ResourceExhaustedError(absl::StrCat("Health: at most ", options_.max_watchers,
                                                       " watchers at a time, got another one"));
    }
    if (!watcher->client_has_gone) watchers_.insert(watcher);
    // Under the lock: of two that look, the one who looked last decides.
    watcher->wanted = StatusOf(watcher->name);
    if (stopped_ && watcher->wanted == Health::kServing) watcher->wanted = Health::kNotServing;
  }
  GoOn(watcher);
  return absl::OkStatus();
}

void HealthService::GoOn(const std::shared_ptr<Watcher>& watcher) {
  std::optional<Health> to_write;
  Status end;
  {
    MutexLock lock(&mu_);
    if (watcher->writes || watcher->is_over) return;
    if (watcher->client_has_gone) {
      end = absl::CancelledError("the client has gone");
    } else if (watcher->sent != watcher->wanted) {
      to_write = watcher->sent = watcher->wanted;
      watcher->writes = true;
    } else if (stopped_) {
      end = absl::UnavailableError("the server stops");
    } else {
      return;
    }
    if (!to_write.has_value()) {
      watcher->is_over = true;
      watchers_.erase(watcher);
    }
  }
  if (!to_write.has_value()) return watcher->call->FinishWithStatus(end);
  const StatusOr<grpc::ByteBuffer> message =
      NoExceptions("Health", [&] { return Message(*to_write); });
  const auto written = [self = shared_from_this(), watcher] {
    {
      MutexLock lock(&self->mu_);
      watcher->writes = false;
    }
    self->GoOn(watcher);
  };
  if (message.ok()) return watcher->call->Write(*message, written);
  {
    MutexLock lock(&mu_);
    watcher->is_over = true;
    watchers_.erase(watcher);
  }
  watcher->call->FinishWithStatus(message.status());
}

// Out of the list at once: a server that is closed ends no write.
void HealthService::ClientHasGone(const std::shared_ptr<Watcher>& watcher) {
  {
    MutexLock lock(&mu_);
    watcher->client_has_gone = true;
    watchers_.erase(watcher);
  }
  GoOn(watcher);
}

void HealthService::NoteChange() {
  const Status told = NoExceptions("Health", [&] {
    std::vector<std::shared_ptr<Watcher>> watchers;
    {
      MutexLock lock(&mu_);
      if (watchers_.empty()) return absl::OkStatus();
      const Look look = options_.look();
      for (const std::shared_ptr<Watcher>& watcher : watchers_) {
        watcher->wanted = look(watcher->name);
        if (stopped_ && watcher->wanted == Health::kServing) watcher->wanted = Health::kNotServing;
      }
      watchers.assign(watchers_.begin(), watchers_.end());
    }
    for (const std::shared_ptr<Watcher>& watcher : watchers) GoOn(watcher);
    return absl::OkStatus();
  });
  if (!told.ok()) LogWarning(told.message());
}

void HealthService::End() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    // With it: a write that ends now must not be the last one.
    for (const std::shared_ptr<Watcher>& watcher : watchers_) {
      if (watcher->wanted == Health::kServing) watcher->wanted = Health::kNotServing;
    }
  }
  NoteChange();
}

}  // namespace millrace
