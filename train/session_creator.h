// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SESSION_CREATOR_H_
#define MILLRACE_TRAIN_SESSION_CREATOR_H_

// SessionCreators: how a MonitoredSession gets its session, the first and those after a loss.
//
//   ChiefSessionCreator     adopts, restores or initialises (SessionManager::PrepareSession)
//   WorkerSessionCreator    waits until the chief has
//
// Both are faces of train/job_sessions.h: a chief with a checkpoint_dir owns it and the run that is
// trained there, as a Supervisor does, and TellEnd says for everybody that training is over.
//
//   made -> completed      CompleteGraph, once, when the hooks have added to the graph
//   completed -> completed CreateSession, as often as sessions are lost
//
// Thread-safety: Stop, session and SaveBeside from any thread, the rest from one at a time.
// Lifetime: the graph, and what the Scaffold names, as long as the creator.
// Failure: as SessionManager; InvalidArgument for options that exclude each other, and for a
// collection ("ready_op", ...) with several elements; FencedError.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
#include "train/session_manager.h"

namespace millrace {

class JobSessions;   // train/job_sessions.h
struct RunEnd;       // run/training_run.h
struct RunTrainers;  // run/training_run.h

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
  FileSystem* file_system = FileSystem::Posix();
};

class SessionCreator {
 public:
  virtual ~SessionCreator() = default;
  // Adds what is missing to the graph and finalizes it. `last_step`: at which training is to end; 0
  // when nobody knows.
  virtual Status CompleteGraph(int64_t last_step) = 0;
  virtual StatusOr<SessionManager::Ready> CreateSession() = 0;
  // Ends the wait of a CreateSession that runs, and all later ones at once, with `reason` (not OK).
  // From any thread, after CompleteGraph.
  virtual void Stop(const Status& reason);
  // That a CreateSession opened and has not returned yet: whoever closes it ends what that waits
  // for, unless it is storage. Null: none. From any thread, after CompleteGraph.
  virtual std::shared_ptr<Session> session() const { return nullptr; }
  // Writes a checkpoint beside a step that does not end, as the last one was written, and returns
  // its path; "" where nobody keeps checkpoints. From any thread.
  virtual StatusOr<std::string> SaveBeside(Session* session);
  // Tasks that train the session's run beside this one (RunSession::OtherTrainers), asked for by
  // the chief, which is to end the run after them. Also finds out whether the session is lost.
  virtual StatusOr<RunTrainers> OtherTrainers(Session* session);
  // None before CompleteGraph, and where nothing is saved.
  virtual std::shared_ptr<Saver> saver() const { return nullptr; }
  // That training is over, for all tasks.
  virtual Status TellEnd(Session* session, const RunEnd& end);
};

class ChiefSessionCreator : public SessionCreator {
 public:
  ChiefSessionCreator(const Scope& scope, SessionCreatorOptions options);
  ~ChiefSessionCreator() override;
  Status CompleteGraph(int64_t last_step) override;
  StatusOr<SessionManager::Ready> CreateSession() override;
  void Stop(const Status& reason) override;
  std::shared_ptr<Session> session() const override;
  StatusOr<std::string> SaveBeside(Session* session) override;
  StatusOr<RunTrainers> OtherTrainers(Session* session) override;
  std::shared_ptr<Saver> saver() const override;
  Status TellEnd(Session* session, const RunEnd& end) override;

 private:
  const Scope scope_;
  const SessionCreatorOptions options_;
  std::shared_ptr<JobSessions> sessions_;  // null before CompleteGraph
};

class WorkerSessionCreator : public SessionCreator {
 public:
  WorkerSessionCreator(const Scope& scope, SessionCreatorOptions options);
  ~WorkerSessionCreator() override;
  Status CompleteGraph(int64_t last_step) override;
  StatusOr<SessionManager::Ready> CreateSession() override;
  void Stop(const Status& reason) override;
  std::shared_ptr<Session> session() const override;

 private:
  const Scope scope_;
  const SessionCreatorOptions options_;
  std::shared_ptr<JobSessions> sessions_;  // null before CompleteGraph
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SESSION_CREATOR_H_
