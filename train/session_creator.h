// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SESSION_CREATOR_H_
#define MILLRACE_TRAIN_SESSION_CREATOR_H_

// SessionCreators: how a MonitoredSession gets its session, the first and those after a loss.
//
//   ChiefSessionCreator     adopts, restores or initialises
//   WorkerSessionCreator    waits until the chief has
//
// Both say with which options train/job_sessions.h is to do so, and fill in what the collections of
// the graph name.
//
// Thread-safety: thread-compatible.
// Lifetime: the graph, and what the Scaffold names, as long as the sessions that it made.
// Failure: as JobSessions; InvalidArgument for options that exclude each other, and for a
// collection ("ready_op", ...) with several elements.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/job_sessions.h"

namespace millrace {

// What a training graph needs besides itself. What is not given is the one element of the
// collection of its name ("init_op", "ready_op", "ready_for_local_init_op", "local_init_op",
// "summary_op"); without it, what SessionManager takes, and a Saver of all variables. A copy with
// some fields set is TensorFlow's copy_from_scaffold.
struct Scaffold {
  Operation init_op = {};
  std::vector<Feed> init_feeds = {};
  std::function<Status(Session*)> init_fn = {};
  Output ready_op = {};
  Output ready_for_local_init_op = {};
  Operation local_init_op = {};
  Output summary_op = {};
  Saver* saver = nullptr;  // not owned
};

struct SessionCreatorOptions {
  Scaffold scaffold = {};
  std::string target = "";
  // Where the chief restores from and keeps what it says of the run; "": no run, unless session.run
  // has a name. Tasks that wait read there whether the run has ended.
  std::string checkpoint_dir = "";
  // What the caller's own caller knows it as, for errors.
  std::string directory_option = "checkpoint_dir";
  // The checkpoint to restore, in place of checkpoint_dir.
  std::string checkpoint_path = "";
  // A checkpoint of elsewhere to begin from as long as checkpoint_dir has none.
  std::string begin_from = "";
  std::optional<Variable> global_step = {};  // GlobalStep of the graph otherwise, if it has one
  // Of the chief's Saver of all variables, where the scaffold has none: how many it keeps, and the
  // like. Its file system and may_commit are the creator's.
  SaverOptions saver = {};
  // See SessionManagerOptions.
  absl::Duration recovery_wait = absl::Seconds(1);
  absl::Duration end_grace = absl::Seconds(20);
  absl::Duration max_wait = absl::Seconds(7200);
  SessionOptions session = {};
  Clock* clock = Clock::Real();
  FileSystem* file_system = FileSystem::Default();
};

class SessionCreator {
 public:
  virtual ~SessionCreator() = default;
  // Adds what is missing to the graph and finalizes it; once, when the hooks have added to it.
  // `last_step`: at which training is to end; 0 when nobody knows.
  virtual StatusOr<std::shared_ptr<JobSessions>> CompleteGraph(int64_t last_step) = 0;

  // The line that opens the session, which the nodes of CompleteGraph name; before it.
  void set_opened_at(std::source_location where) { opened_at_ = where; }

 protected:
  const std::source_location& opened_at() const { return opened_at_; }

 private:
  std::source_location opened_at_;
};

class ChiefSessionCreator : public SessionCreator {
 public:
  ChiefSessionCreator(const Scope& scope, SessionCreatorOptions options);
  StatusOr<std::shared_ptr<JobSessions>> CompleteGraph(int64_t last_step) override;

 private:
  const Scope scope_;
  const SessionCreatorOptions options_;
};

class WorkerSessionCreator : public SessionCreator {
 public:
  WorkerSessionCreator(const Scope& scope, SessionCreatorOptions options);
  StatusOr<std::shared_ptr<JobSessions>> CompleteGraph(int64_t last_step) override;

 private:
  const Scope scope_;
  const SessionCreatorOptions options_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SESSION_CREATOR_H_
