// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/session_table.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "distributed/cluster/kept_status.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/worker/handles.h"
#include "distributed/worker/shared_plans.h"
#include "net/call_limits.h"

namespace millrace {

SessionTable::SessionTable(const WorkerOptions* options, const TaskDevices* devices,
                           RunRegistry* runs, LeaseTable* leases)
    : options_(options),
      devices_(devices),
      runs_(runs),
      leases_(leases),
      idle_(std::numeric_limits<int64_t>::max()),
      ended_(options->limits.max_ended_session_bytes),
      never_opened_(options->limits.max_ended_session_bytes) {}

WorkerSession* SessionTable::Find(const std::string& handle) const {
  const auto it = open_.find(handle);
  return it == open_.end() ? nullptr : it->second.get();
}

StatusOr<std::shared_ptr<WorkerSession>> SessionTable::FindAndRenew(const std::string& handle) {
  const auto it = open_.find(handle);
  if (it != open_.end()) {
    Use(it->second.get());
    return it->second;
  }
  MR_RETURN_IF_ERROR(EndOf(handle));
  return absl::AbortedError(absl::StrCat("Session handle is not found: ", ShownHandle(handle),
                                         ". Possibly this worker (\"", options_->task,
                                         "\") just restarted."));
}

bool SessionTable::Renew(const std::string& handle) {
  WorkerSession* const session = Find(handle);
  if (session == nullptr) return false;
  Use(session);
  return true;
}

void SessionTable::Use(WorkerSession* session) {
  if (session->lease != nullptr) session->lease->Renew();
  if (!session->is_idle) return;
  session->lease = leases_->Grant(session->handle, options_->limits.idle_session_time);
  session->is_idle = false;
  idle_.Erase(session->handle);
}

std::vector<std::string> SessionTable::BeIdle(WorkerSession* session) {
  MR_DCHECK(session->may_be_idle(), "the lease of every other one ends its session");
  const ServerLimits& limits = options_->limits;
  idle_.Put(session->handle, true, 0, options_->clock->Now());
  session->is_idle = true;
  std::vector<std::string> ended;
  while (static_cast<int64_t>(idle_.size()) > std::max<int64_t>(limits.max_idle_sessions, 0)) {
    ended.push_back(idle_.DropOldest());
    End(ended.back(),
        absl::AbortedError(absl::StrCat(
            "Session handle is not found: ", ended.back(), ". It had no lease, nobody used it for ",
            absl::FormatDuration(limits.idle_session_time), ", and more than ",
            limits.max_idle_sessions, " sessions on ", options_->task,
            " are idle (ServerLimits::max_idle_sessions); open a new session")));
  }
  return ended;
}

Status SessionTable::EndOf(const std::string& handle) const {
  const Status* why = ended_.Find(handle);
  if (why == nullptr) why = never_opened_.Find(handle);
  return why == nullptr ? absl::OkStatus() : *why;
}

Status SessionTable::Open(const std::shared_ptr<WorkerSession>& session) {
  EndEarlierLivesOf(session->opener);
  if (Renew(session->handle)) return absl::OkStatus();
  MR_RETURN_IF_ERROR(Add(session));
  if (session->run.is_chief) EndRefused();
  return absl::OkStatus();
}

void SessionTable::EndEarlierLivesOf(const SessionOpener& opener) {
  for (auto it = open_.begin(); it != open_.end();) {
    const auto old = it++;
    if (!old->second->opener.IsEarlierLifeOf(opener)) continue;
    // Its master may live: two programs may take themselves for the same task.
    if (old->second->lease_time > absl::ZeroDuration()) {
      leases_->Doubt(old->first);
    } else {
      End(old, absl::AbortedError(absl::StrCat("Session handle is not found: ", old->first,
                                               ". It was opened by ", opener.task,
                                               " before that task restarted.")));
    }
  }
}

Status SessionTable::Add(const std::shared_ptr<WorkerSession>& session) {
  // Before the run is claimed.
  if (const auto n = static_cast<int64_t>(open_.size()); n >= options_->limits.max_sessions) {
    return BeyondLimit(absl::StrCat("CreateWorkerSession on ", options_->task), "open sessions",
                       "max_sessions", options_->limits.max_sessions, n + 1);
  }
  std::shared_ptr<RunResources> container;  // of the run, once it is open
  if (!session->run.empty()) {
    MR_ASSIGN_OR_RETURN(container, runs_->Open(session->run));
  }
  try {
    if (container != nullptr) session->devices = DevicesOf(*container);
    if (session->isolated) {
      session->devices = devices_->MakeOwn();
    } else if (session->run.empty()) {
      session->devices = devices_->shared();
    }
    session->functions = FunctionsOn(session->devices, session->kernels);
    if (session->lease_time > absl::ZeroDuration()) {
      session->lease = leases_->Grant(session->handle, session->lease_time);
    } else if (session->may_be_idle()) {
      session->lease = leases_->Grant(session->handle, options_->limits.idle_session_time);
    }
    MR_DCHECK(!session->devices.empty(),
              "the devices of an open session are its run's, its own or the task's");
    open_.emplace(session->handle, session);
    runs_->NoteTrainer(session->run, session->opener.task);
  } catch (...) {
    // A session that is not in the list is counted nowhere.
    leases_->Drop(session->handle);
    if (!session->run.empty()) runs_->Close(session->run);
    throw;
  }
  return absl::OkStatus();
}

void SessionTable::EndRefused() {
  for (auto it = open_.begin(); it != open_.end();) {
    const auto old = it++;
    if (old->second->run.empty()) continue;
    if (const Status check = runs_->Check(old->second->run); !check.ok()) End(old, check);
  }
}

bool SessionTable::End(const std::string& handle, const Status& why) {
  const auto it = open_.find(handle);
  if (it == open_.end()) return false;
  End(it, why);
  return true;
}

void SessionTable::End(Sessions::iterator it, const Status& why) {
  MR_DCHECK(!why.ok(), "a session ends for a reason: its steps and its master hear it");
  std::shared_ptr<WorkerSession> session = std::move(it->second);
  open_.erase(it);
  session->life->End(why);
  last_ended_ = options_->clock->Now();
  if (session->lease != nullptr) leases_->Drop(session->handle);
  idle_.Erase(session->handle);
  if (!session->run.empty()) runs_->Close(session->run);
  RememberEnd(session->handle, why, &ended_);
  ending_.push_back(std::move(session));
}

void SessionTable::EndAllOfRun(absl::string_view run_id, const Status& why) {
  for (auto it = open_.begin(); it != open_.end();) {
    const auto old = it++;
    if (old->second->run.id == run_id) End(old, why);
  }
}

void SessionTable::Close(const std::string& handle) {
  const Status closed = absl::AbortedError(
      absl::StrCat("Session handle is not found: ", ShownHandle(handle), ". It has been closed."));
  // No longer one was ever opened.
  if (handle.size() > kMaxHandleBytes) return;
  if (!End(handle, closed)) RememberEnd(handle, closed, &never_opened_);
}

void SessionTable::RememberEnd(const std::string& handle, const Status& why, Ends* ends) {
  if (!EndOf(handle).ok()) return;
  const Status kept = KeptStatus(why);
  // The key is a copy of its own.
  const int64_t held_bytes = KeptBytes(kept) + static_cast<int64_t>(handle.size());
  ends->Put(handle, kept, held_bytes, options_->clock->Now());
}

std::vector<std::shared_ptr<WorkerSession>> SessionTable::TakeEnding() {
  std::vector<std::shared_ptr<WorkerSession>> ending;
  ending.swap(ending_);
  return ending;
}

std::set<std::string> SessionTable::TrainersOf(absl::string_view run_id) const {
  std::set<std::string> trainers;
  for (const auto& [handle, session] : open_) {
    if (session->run.id != run_id || session->run.is_chief) continue;
    trainers.insert(session->opener.task);
  }
  return trainers;
}

bool SessionTable::HasOneWithoutRun() const {
  return std::any_of(open_.begin(), open_.end(),
                     [](const auto& session) { return session.second->run.empty(); });
}

Status SessionTable::CheckMayClear(absl::string_view method,
                                   absl::Span<const std::string> containers,
                                   int master_sessions) const {
  const auto refuse = [&](const auto&... got) {
    return absl::PermissionDeniedError(absl::StrCat(
        method, " on ", options_->task, ": who clears variables must be a member of the cluster, ",
        "who shows a token (MILLRACE_TOKEN_FILE) or a certificate, or nobody's variables may be ",
        "there, got a caller that need not show either, and ", got...));
  };
  const int open = std::max(master_sessions, static_cast<int>(open_.size()));
  if (open > 0) return refuse(open, " open sessions");
  for (const std::string& container : containers) {
    if (runs_->ContainerOf(container) != nullptr) {
      return refuse("container '", ShownHandle(container), "', which belongs to a training run");
    }
  }
  const absl::Duration ago = options_->clock->Now() - last_ended_;
  if (ago >= options_->run_linger) return absl::OkStatus();
  return refuse("a session that ended ", absl::FormatDuration(absl::Trunc(ago, absl::Seconds(1))),
                " ago, of the ", absl::FormatDuration(options_->run_linger),
                " (ServerOptions::run_linger) in which its client may come again");
}

}  // namespace millrace
