// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/master.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "distributed/master/endable_wait.h"
#include "distributed/master/master_session.h"
#include "distributed/master/master_step.h"
#include "distributed/master/task_calls.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/worker_control.h"
#include "graph/device_name.h"
#include "graph/signature.h"

namespace millrace {
namespace {

RunSignature SignatureOf(const tensorflow::RunStepRequest& request,
                         absl::Span<const NamedTensor> feeds, std::vector<Tensor>* values) {
  RunSignature signature;
  for (const NamedTensor& feed : feeds) {
    signature.feeds.push_back(feed.name);
    values->push_back(feed.value);
  }
  signature.fetches.assign(request.fetch().begin(), request.fetch().end());
  signature.targets.assign(request.target().begin(), request.target().end());
  return signature;
}

}  // namespace

Master::Master(MasterOptions options)
    : shared_options_(std::make_shared<const MasterOptions>(std::move(options))),
      options_(*shared_options_),
      keeper_(options_.clock, std::min(options_.lease_period, options_.lease / 3)),
      idle_(std::numeric_limits<int64_t>::max()),
      long_steps_(options_.log_clock, [this] { return WaitsOfSteps(); }),
      leases_(options_.clock, [this](const std::string& handle, absl::Duration silent) {
        LeaseExpired(handle, silent);
      }) {}
Master::~Master() { Shutdown(absl::AbortedError("Shutdown")); }

StatusOr<std::shared_ptr<MasterSession>> Master::FindSession(const std::string& handle,
                                                             absl::string_view hint) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(shut_down_);
  const auto it = sessions_.find(handle);
  if (it == sessions_.end()) {
    return absl::AbortedError(absl::StrCat("Session ", handle, " is not found.", hint));
  }
  Use(handle, &it->second);
  return it->second.session;
}

void Master::Use(const std::string& handle, Entry* entry) {
  if (entry->lease != nullptr) entry->lease->Renew();
  if (!entry->is_idle) return;
  entry->lease = leases_.Grant(handle, options_.limits.idle_session_time);
  entry->is_idle = false;
  idle_.Erase(handle);
}

StatusOr<std::shared_ptr<MasterSession>> Master::FindToUse(const std::string& handle) {
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(shut_down_);
    MR_RETURN_IF_ERROR(takes_);
  }
  return FindSession(handle);
}

Status Master::CreateSession(const tensorflow::CreateSessionRequest& request,
                             absl::Duration timeout, int max_cached_plans,
                             tensorflow::CreateSessionResponse* response) {
  return CreateSessionFor(nullptr, request, timeout, max_cached_plans, response);
}

Status Master::ExtendSession(const tensorflow::ExtendSessionRequest& request,
                             tensorflow::ExtendSessionResponse* response) {
  return ExtendSessionFor(nullptr, request, response);
}

Status Master::CreateSessionFor(CancellationManager* caller,
                                const tensorflow::CreateSessionRequest& request,
                                absl::Duration timeout, int max_cached_plans,
                                tensorflow::CreateSessionResponse* response) {
  tensorflow::ConfigProto config = options_.default_config;
  if (request.config().device_filters_size() > 0) config.clear_device_filters();
  config.MergeFrom(request.config());
  MR_ASSIGN_OR_RETURN(const SessionTerms terms, SessionTermsOf(request));
  auto session =
      std::make_shared<MasterSession>(shared_options_, &keeper_, &compiles_, RandomHexName(),
                                      std::move(config), terms, timeout, max_cached_plans);
  const auto check_limits = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> Status {
    const auto n = static_cast<int64_t>(sessions_.size());
    if (n < options_.limits.max_sessions) return absl::OkStatus();
    return BeyondLimit(absl::StrCat("CreateSession on ", options_.task), "open sessions",
                       "max_sessions", options_.limits.max_sessions, n + 1);
  };
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(shut_down_);
    MR_RETURN_IF_ERROR(opens_);
    MR_RETURN_IF_ERROR(check_limits());
  }
  const WaitEnds ends = {.shutdown = &shutdown_, .caller = caller};
  int64_t version = 0;
  const Status status = NoExceptions("CreateSession", [&]() -> Status {
    MR_RETURN_IF_ERROR(session->Create(ends));
    if (request.graph_def().node_size() > 0) {
      MR_RETURN_IF_ERROR(session->Extend(request.graph_def(), 0, ends, &version));
    }
    if (caller != nullptr && caller->IsCancelled()) {
      return absl::CancelledError("Session: its client has gone, nobody would close it");
    }
    AddSessionTerms({.run = session->run()}, response);
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(shut_down_);
    MR_RETURN_IF_ERROR(check_limits());
    Entry& entry = sessions_[session->handle()];
    entry.session = session;
    if (terms.lease > absl::ZeroDuration()) {
      entry.lease = leases_.Grant(session->handle(), terms.lease);
    } else if (caller != nullptr) {
      entry.may_be_idle = true;
      entry.lease = leases_.Grant(session->handle(), options_.limits.idle_session_time);
    }
    return absl::OkStatus();
  });
  if (!status.ok()) {
    session->Close(status);
    return status;
  }
  response->set_session_handle(session->handle());
  response->set_graph_version(version);
  return absl::OkStatus();
}

Status Master::ExtendSessionFor(CancellationManager* caller,
                                const tensorflow::ExtendSessionRequest& request,
                                tensorflow::ExtendSessionResponse* response) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<MasterSession> session,
                      FindToUse(request.session_handle()));
  int64_t version = 0;
  MR_RETURN_IF_ERROR(session->Extend(request.graph_def(), request.current_graph_version(),
                                     {.shutdown = &shutdown_, .caller = caller}, &version));
  response->set_new_graph_version(version);
  return absl::OkStatus();
}

StatusOr<StepResult> Master::RunStep(const tensorflow::RunStepRequest& request,
                                     absl::Span<const NamedTensor> feeds) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<MasterSession> session,
                      FindToUse(request.session_handle()));
  long_steps_.Start();
  const absl::Time deadline = session->DeadlineOf(request.options());
  std::vector<Tensor> values;
  const RunSignature signature = SignatureOf(request, feeds, &values);
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const MasterBinding> binding,
                      session->Bind(signature, deadline));
  return session->RunAndWait(std::move(binding), values, request.options(), deadline);
}

void Master::RunStepAsync(const tensorflow::RunStepRequest& request,
                          absl::Span<const NamedTensor> feeds, CancellationManager* cancellation,
                          StepDone done) {
  std::shared_ptr<MasterSession> session;
  std::shared_ptr<const MasterBinding> binding;
  std::vector<Tensor> values;
  MasterStepOptions options;
  const Status status = NoExceptions("RunStep", [&]() -> Status {
    MR_ASSIGN_OR_RETURN(session, FindToUse(request.session_handle()));
    long_steps_.Start();
    options.deadline = session->DeadlineOf(request.options());
    MR_ASSIGN_OR_RETURN(binding,
                        session->Bind(SignatureOf(request, feeds, &values), options.deadline));
    options.run = request.options();
    options.block = false;
    options.cancellation = cancellation;
    return absl::OkStatus();
  });
  if (!status.ok()) return done(status);
  session->Run(std::move(binding), values, options, std::move(done));
}

Status Master::MakeCallable(const tensorflow::MakeCallableRequest& request,
                            tensorflow::MakeCallableResponse* response) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<MasterSession> session,
                      FindToUse(request.session_handle()));
  const tensorflow::CallableOptions& options = request.options();
  if (options.tensor_connection_size() > 0) {
    return absl::UnimplementedError("MakeCallable: tensor connections are not supported");
  }
  RunSignature signature;
  signature.feeds.assign(options.feed().begin(), options.feed().end());
  signature.fetches.assign(options.fetch().begin(), options.fetch().end());
  signature.targets.assign(options.target().begin(), options.target().end());
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const MasterBinding> binding, session->Bind(signature));
  MR_ASSIGN_OR_RETURN(const int64_t handle,
                      session->AddCallable(std::move(binding), options.run_options(),
                                           static_cast<int64_t>(request.ByteSizeLong())));
  response->set_handle(handle);
  return absl::OkStatus();
}

StatusOr<StepResult> Master::RunCallable(const tensorflow::RunCallableRequest& request,
                                         absl::Span<const Tensor> feeds,
                                         const tensorflow::RunOptions* options) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<MasterSession> session,
                      FindToUse(request.session_handle()));
  long_steps_.Start();
  MR_ASSIGN_OR_RETURN(auto callable, session->FindCallable(request.handle()));
  const tensorflow::RunOptions& run = options == nullptr ? callable.options : *options;
  return session->RunAndWait(std::move(callable.binding), feeds, run, session->DeadlineOf(run));
}

void Master::RunCallableAsync(const tensorflow::RunCallableRequest& request,
                              absl::Span<const Tensor> feeds, const tensorflow::RunOptions* run,
                              CancellationManager* cancellation, StepDone done) {
  std::shared_ptr<MasterSession> session;
  MasterSession::Callable callable;
  MasterStepOptions options;
  const Status status = NoExceptions("RunCallable", [&]() -> Status {
    MR_ASSIGN_OR_RETURN(session, FindToUse(request.session_handle()));
    long_steps_.Start();
    MR_ASSIGN_OR_RETURN(callable, session->FindCallable(request.handle()));
    options.run = callable.options;
    if (run != nullptr) options.run.set_timeout_in_ms(run->timeout_in_ms());
    options.block = false;
    options.cancellation = cancellation;
    return absl::OkStatus();
  });
  if (!status.ok()) return done(status);
  session->Run(std::move(callable.binding), feeds, options, std::move(done));
}

Status Master::ReleaseCallable(const tensorflow::ReleaseCallableRequest& request) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<MasterSession> session,
                      FindSession(request.session_handle()));
  return session->RemoveCallable(request.handle());
}

Status Master::CloseSession(const tensorflow::CloseSessionRequest& request) {
  MR_ASSIGN_OR_RETURN(
      const std::shared_ptr<MasterSession> session,
      FindSession(request.session_handle(), " Possibly, this master has restarted."));
  {
    MutexLock lock(&mu_);
    sessions_.erase(session->handle());
    idle_.Erase(session->handle());
  }
  leases_.Drop(session->handle());
  session->Close(absl::CancelledError("Session has been closed."));
  return absl::OkStatus();
}

Status Master::EndRun(const std::string& session_handle, const RunEnd& end) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<MasterSession> session, FindSession(session_handle));
  return session->EndRun(end);
}

StatusOr<RunTrainers> Master::FindTrainers(const std::string& session_handle) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<MasterSession> session, FindSession(session_handle));
  return session->FindTrainers();
}

std::vector<std::string> Master::RenewSessions(absl::Span<const std::string> handles) {
  std::vector<std::string> unknown;
  MutexLock lock(&mu_);
  for (const std::string& handle : handles) {
    const auto it = sessions_.find(handle);
    if (it == sessions_.end()) {
      unknown.push_back(handle);
    } else {
      Use(handle, &it->second);
    }
  }
  return unknown;
}

void Master::LeaseExpired(const std::string& handle, absl::Duration silent) {
  std::shared_ptr<MasterSession> ended;
  std::vector<std::shared_ptr<MasterSession>> too_many;
  {
    MutexLock lock(&mu_);
    const auto it = sessions_.find(handle);
    if (it == sessions_.end()) return;
    Entry& entry = it->second;
    // Its client waits for the step: a call whose client is gone is cancelled.
    if (entry.lease != nullptr && entry.session->has_running_steps()) {
      entry.lease = leases_.Grant(handle, entry.lease->time());
      return;
    }
    if (entry.may_be_idle) {
      too_many = BeIdle(handle, &entry);
    } else {
      ended = std::move(entry.session);
      sessions_.erase(it);
    }
  }
  for (const auto& session : too_many) {
    CloseLater(session, absl::AbortedError(absl::StrCat(
                            "Session ", session->handle(), " has ended: it had no lease, and is ",
                            "the longest idle of more than ", options_.limits.max_idle_sessions,
                            " (ServerLimits::max_idle_sessions)")));
  }
  if (ended == nullptr) return;
  CloseLater(ended, absl::AbortedError(absl::StrCat("Session ", ended->handle(),
                                                    " has ended: its client was not heard of for ",
                                                    absl::FormatDuration(silent))));
}

std::vector<std::shared_ptr<MasterSession>> Master::BeIdle(const std::string& handle,
                                                           Entry* entry) {
  idle_.Put(handle, true, 0, options_.clock->Now());
  entry->is_idle = true;
  std::vector<std::shared_ptr<MasterSession>> ended;
  const int64_t most = std::max<int64_t>(options_.limits.max_idle_sessions, 0);
  while (static_cast<int64_t>(idle_.size()) > most) {
    const auto longest = sessions_.find(idle_.DropOldest());
    ended.push_back(std::move(longest->second.session));
    sessions_.erase(longest);
  }
  return ended;
}

void Master::CloseLater(std::shared_ptr<MasterSession> session, const Status& why) {
  LogInfo("Master on ", options_.task, ": ", why.message());
  // A session that ends may wait for its tasks; the leases of others do not.
  closes_.Schedule([session = std::move(session), why] { session->Close(why); });
}

std::vector<WaitWatch::Wait> Master::WaitsOfSteps() const {
  std::vector<std::shared_ptr<MasterSession>> sessions;
  {
    MutexLock lock(&mu_);
    for (const auto& [handle, entry] : sessions_) sessions.push_back(entry.session);
  }
  std::vector<WaitWatch::Wait> result;
  for (const auto& session : sessions) {
    for (WaitWatch::Wait& step : session->WaitsOfSteps()) result.push_back(std::move(step));
  }
  return result;
}

int Master::num_sessions() const {
  MutexLock lock(&mu_);
  return static_cast<int>(sessions_.size());
}

Status Master::ListDevices(const tensorflow::ListDevicesRequest& request,
                           tensorflow::ListDevicesResponse* response) {
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(shut_down_);
    if (sessions_.count(request.session_handle()) == 0) {
      return InvalidArgument("Session ", request.session_handle(),
                             " is not found. Possibly, this master has restarted.");
    }
  }
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<MasterSession> session,
                      FindSession(request.session_handle()));
  session->ListDevices(response);
  return absl::OkStatus();
}

Status Master::Reset(const tensorflow::ResetRequest& request) {
  Sessions sessions;
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(shut_down_);
    sessions.swap(sessions_);
    idle_.DropBefore(absl::InfiniteFuture());
  }
  std::vector<std::shared_ptr<MasterSession>> closing;
  for (const auto& [handle, entry] : sessions) {
    leases_.Drop(handle);
    closing.push_back(entry.session);
  }
  MasterSession::CloseAll(closing,
                          absl::AbortedError("Session has been closed by a reset of its master."),
                          options_, &keeper_);
  const std::vector<std::string> filters(request.device_filters().begin(),
                                         request.device_filters().end());
  std::vector<std::shared_ptr<WorkerControl>> tasks;
  for (const std::string& job : options_.cluster.jobs()) {
    for (const int task : options_.cluster.tasks(job)) {
      const std::string name = absl::StrCat("/job:", job, "/replica:0/task:", task);
      MR_ASSIGN_OR_RETURN(const bool wanted, PassesDeviceFilters(name, filters));
      if (!wanted && name != options_.task) continue;
      if (auto control = options_.peer(name)) tasks.push_back(std::move(control));
    }
  }
  const std::vector<std::string> containers(request.container().begin(), request.container().end());
  TaskCalls calls(static_cast<int>(tasks.size()),
                  absl::StrCat("A reset by the master on ", options_.task), options_.clock);
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks[i]->CleanupAll(CallWithin(kCleanupTimeout, options_.timers), containers,
                         calls.Done(static_cast<int>(i), *tasks[i]));
  }
  const std::vector<Status>& statuses = calls.Wait();
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (!statuses[i].ok()) return FromTask(tasks[i]->task(), statuses[i]);
  }
  return absl::OkStatus();
}

void Master::StopOpening(const Status& status) {
  MutexLock lock(&mu_);
  if (opens_.ok()) opens_ = status;
}

void Master::StopTaking(const Status& status) {
  MutexLock lock(&mu_);
  if (opens_.ok()) opens_ = status;
  if (takes_.ok()) takes_ = status;
}

bool Master::AwaitSteps(absl::Time deadline) {
  for (;;) {
    std::shared_ptr<MasterSession> busy;
    {
      MutexLock lock(&mu_);
      for (const auto& [handle, entry] : sessions_) {
        if (entry.session->has_running_steps()) busy = entry.session;
      }
    }
    if (busy == nullptr) return true;
    if (!busy->StepsEndBefore(deadline)) return false;
  }
}

void Master::Shutdown(const Status& status) {
  Sessions sessions;
  {
    MutexLock lock(&mu_);
    if (shut_down_.ok()) shut_down_ = status;
    sessions.swap(sessions_);
    idle_.DropBefore(absl::InfiniteFuture());
  }
  shutdown_.StartCancel();
  leases_.Stop();
  long_steps_.Stop();
  std::vector<std::shared_ptr<MasterSession>> closing;
  for (const auto& [handle, entry] : sessions) closing.push_back(entry.session);
  MasterSession::CloseAll(closing, status, options_, &keeper_);
  keeper_.Stop();
}

}  // namespace millrace
