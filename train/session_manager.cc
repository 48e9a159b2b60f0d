// SPDX-License-Identifier: Apache-2.0
#include "train/session_manager.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/refusal.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "ops/array/identity.h"
#include "proto/meta_graph.pb.h"
#include "run/end_belief.h"
#include "run/run_file.h"
#include "run/training_run.h"
#include "saver/restore_variables.h"
#include "saver/tensor_bundle.h"
#include "train/sync_collections.h"

namespace millrace {
namespace {

// A task that waits says so this often. No try to open a session is longer either: between two
// tries a task sees that it has been stopped, or that the run has ended.
constexpr absl::Duration kReportPeriod = absl::Seconds(10);
// The first waits of several: a chief is often as far a moment later.
constexpr absl::Duration kFirstWait = absl::Milliseconds(10);
// Later ones are such a part of the time that was waited, so that a task is late by an eighth of it
// at most, and a long wait costs little.
constexpr int kWaitParts = 8;
// The least time for a try to open a session.
constexpr absl::Duration kLeastTry = absl::Milliseconds(50);
// Preparations in a row that may end with something that has no value: variables can be lost in
// between, but an init operation that forgets one forgets it each time.
constexpr int kMaxPreparations = 3;
constexpr size_t kNamesInMessage = 8;
constexpr char kTableInitializers[] = "table_initializer";

std::vector<std::string> Texts(const Tensor& names) {
  std::vector<std::string> texts;
  for (const std::string& name : names.flat<std::string>()) texts.push_back(name);
  return texts;
}

std::string AtStep(int64_t step) {
  return step >= 0 ? absl::StrCat(" at global step ", step) : std::string();
}

}  // namespace

std::string SomeNames(const std::vector<std::string>& names) {
  if (names.size() <= kNamesInMessage) return absl::StrJoin(names, ", ");
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(kNamesInMessage), ", "),
      " and ", names.size() - kNamesInMessage, " more");
}

bool IsSessionLost(const Status& status) {
  if (IsFenced(status) || IsRefusal(status) || RunEndOf(status).has_value()) return false;
  if (absl::IsUnavailable(status) || absl::IsAborted(status)) return true;
  // What an update says of a variable whose container was cleared; a read calls it uninitialized.
  if (absl::IsNotFound(status) && absl::StrContains(status.message(), "Resource ") &&
      absl::StrContains(status.message(), "/Var does not exist")) {
    return true;
  }
  return absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "uninitialized");
}

struct SessionManager::Impl {
  Impl(const Scope& s, SessionManagerOptions o) : scope(s), options(std::move(o)) {}

  // What a try came to.
  struct Try {
    bool is_ready = false;
    std::vector<std::string> not_ready = {};
  };

  // Who tells that the run has ended, as one wait knows it.
  struct EndSource {
    explicit EndSource(EndBelief::Rule rule) : belief(rule) {}
    EndBelief belief;
    RunEnd end;  // what it told last, if it told of one
  };
  struct Ends {
    explicit Ends(EndBelief::Rule rule) : files(rule), servers(rule) {}
    EndSource files, servers;
    std::optional<std::string> owner = {};  // token of the chief that has the directory
    std::string chief = "";                 // which one that is, in words
  };

  void CompleteGraph();
  StatusOr<std::shared_ptr<Session>> OpenSession(const std::string& target, absl::Time deadline);
  StatusOr<std::vector<std::string>> NotReady(Session* session, const std::string& fetch);
  StatusOr<std::optional<std::string>> FindCheckpoint(std::optional<CheckpointState>* state);
  StatusOr<Try> GiveValues(Session* session, bool may_initialize, Ready* ready);
  StatusOr<Try> Wait(Session* session, Ready* ready);
  // Not ready when local initialisation or ready_op leaves something.
  StatusOr<Try> InitializeLocally(Session* session, Ready* ready);
  Status RestoreSome(Session* session, const std::string& checkpoint,
                     const std::vector<std::string>& missing);
  StatusOr<int64_t> ReadGlobalStep(Session* session) const;
  void LookAtFiles(Ends* ends) const;
  // The source tells of `end`, of the owner with `token`, if it says whose it is.
  void HearEnd(const RunEnd& end, const std::string& token, EndSource* source) const;
  void HearNone(EndSource* source) const;
  // ", of a chief ...": what a wait is for, as far as the directory says.
  std::string Whom(const Ends& ends) const;
  // RunEndedError when an end is to be believed now.
  Status CheckEnds(const Ends& ends) const;
  // Tries until `attempt` says that the model is ready.
  StatusOr<Ready> Until(const std::string& target, bool is_chief,
                        const std::function<StatusOr<Try>(Session*, Ready*)>& attempt);

  const Scope scope;
  SessionManagerOptions options;
  Status status;  // of completing the graph

  std::vector<Variable> variables;
  RestoreVariables restore;  // single variables
  std::string init_op, local_init_op;
  bool default_init_op = false;
  std::string ready_op, ready_for_local_init_op, uninitialized;  // fetches; "": always ready

  Status StopReason() {
    MutexLock lock(&mu);
    return stop_reason;
  }
  // Waits; returns at once with the reason when the manager is stopped.
  Status WaitUnlessStopped(absl::Time wake) {
    MutexLock lock(&mu);
    while (stop_reason.ok() && options.clock->Now() < wake) {
      options.clock->WaitUntil(&stopped, &mu, wake);
    }
    return stop_reason;
  }
  // Of the call that runs.
  void SetSession(std::shared_ptr<Session> s) {
    MutexLock lock(&mu);
    session = std::move(s);
  }

  mutable Mutex mu;
  CondVar stopped;
  Status stop_reason ABSL_GUARDED_BY(mu);
  std::shared_ptr<Session> session ABSL_GUARDED_BY(mu);
};

void SessionManager::Impl::CompleteGraph() {
  if (!scope.ok()) {
    status = scope.status();
    return;
  }
  if (!options.begin_from.empty() && options.saver == nullptr) {
    status = InvalidArgument(options.name, ": begin_from must come with a Saver, got '",
                             options.begin_from, "' and none");
    return;
  }
  const Scope root = scope.WithRootPrefix().WithoutControlDependencies();
  variables = VariablesOf(root, "variables");
  const std::vector<Variable> local_variables = VariablesOf(root, "local_variables");
  if (options.init_op.valid()) {
    init_op = options.init_op.name();
  } else {
    init_op = GlobalVariablesInitializer(root).name();
    default_init_op = true;
  }
  std::vector<Operation> local;
  const auto add_collection = [&](const char* collection) {
    const auto found = root.collections()->find(collection);
    if (found == root.collections()->end()) return;
    for (const std::string& name : found->second.node_list().value()) {
      Node* const node = root.graph()->FindNode(name);
      if (node == nullptr) {
        status = InvalidArgument(options.name, ": collection '", collection,
                                 "' must name operations of the graph, got '", name, "'");
        return;
      }
      local.push_back(Operation(node));
    }
  };
  if (options.local_init_op.valid()) {
    local.push_back(options.local_init_op);
  } else {
    if (!local_variables.empty()) local.push_back(LocalVariablesInitializer(root));
    add_collection(kTableInitializers);
  }
  add_collection(kSyncReplicasJoins);
  if (!status.ok()) return;
  if (local.size() == 1) local_init_op = local[0].name();
  if (local.size() > 1) local_init_op = Group(root.WithName("init_local_and_tables"), local).name();
  if (!variables.empty()) uninitialized = ReportUninitializedVariables(root, variables).name();
  ready_for_local_init_op = options.ready_for_local_init_op.valid()
                                ? options.ready_for_local_init_op.name()
                                : uninitialized;
  if (options.ready_op.valid()) {
    ready_op = options.ready_op.name();
  } else if (local_variables.empty()) {
    ready_op = uninitialized;
  } else {
    std::vector<Variable> all = variables;
    all.insert(all.end(), local_variables.begin(), local_variables.end());
    ready_op = ReportUninitializedVariables(root, all).name();
  }
  if (options.saver != nullptr) {
    restore = RestoreVariables(*root.graph(), options.saver->def(), variables);
  }
  status = root.status();
}

StatusOr<std::shared_ptr<Session>> SessionManager::Impl::OpenSession(const std::string& target,
                                                                     absl::Time deadline) {
  SessionOptions session_options = options.session;
  session_options.target = target;
  session_options.creation_timeout =
      std::min({session_options.creation_timeout, deadline - options.clock->Now(), kReportPeriod});
  MR_ASSIGN_OR_RETURN(std::shared_ptr<Session> opened, NewSession(session_options));
  MR_RETURN_IF_ERROR(opened->Extend(scope));
  return opened;
}

StatusOr<std::vector<std::string>> SessionManager::Impl::NotReady(Session* s,
                                                                  const std::string& fetch) {
  if (fetch.empty()) return std::vector<std::string>();
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, s->Run({}, {fetch}));
  if (out[0].dtype() != DT_STRING) {
    return InvalidArgument(options.name, ": ready operation '", fetch,
                           "' must give the names of what is not ready, got ", out[0].dtype());
  }
  return Texts(out[0]);
}

StatusOr<int64_t> SessionManager::Impl::ReadGlobalStep(Session* s) const {
  if (!options.global_step) return int64_t{-1};
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, s->Run({}, {options.global_step->value}));
  return out[0].dtype() == DT_INT32 ? int64_t{out[0].scalar<int32_t>()} : out[0].scalar<int64_t>();
}

StatusOr<std::optional<std::string>> SessionManager::Impl::FindCheckpoint(
    std::optional<CheckpointState>* state) {
  FileSystem* const fs = options.file_system;
  const std::optional<std::string> first = options.begin_from.empty() || options.wait_for_checkpoint
                                               ? std::nullopt
                                               : std::make_optional(options.begin_from);
  if (options.saver == nullptr) return std::optional<std::string>();
  if (options.checkpoint_dir.empty()) return first;
  *state = ReadCheckpointState(fs, options.checkpoint_dir);
  std::optional<std::string> checkpoint = LatestCheckpoint(fs, options.checkpoint_dir);
  // Beginning anew would lose what was trained; a missing index means that somebody removed it.
  if (!checkpoint && *state && fs->FileExists(BundleIndexPath((*state)->latest))) {
    const auto reader = BundleReader::Open(fs, (*state)->latest);
    const Status whole = reader.ok() ? (*reader)->CheckFiles() : reader.status();
    if (!whole.ok()) {
      return Prefixed(absl::StrCat(options.name, ": no checkpoint of '", options.checkpoint_dir,
                                   "' is whole; the latest"),
                      whole);
    }
  }
  return checkpoint ? checkpoint : first;
}

Status SessionManager::Impl::RestoreSome(Session* s, const std::string& checkpoint,
                                         const std::vector<std::string>& missing) {
  return restore.Restore(s, checkpoint, missing, options.name);
}

StatusOr<SessionManager::Impl::Try> SessionManager::Impl::GiveValues(Session* s,
                                                                     bool may_initialize,
                                                                     Ready* ready) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> missing, NotReady(s, uninitialized));
  std::optional<CheckpointState> state;
  MR_ASSIGN_OR_RETURN(const std::optional<std::string> checkpoint, FindCheckpoint(&state));
  MR_RETURN_IF_ERROR(StopReason());
  size_t kept = variables.size() - missing.size();
  ready->start = Start::kInitialized;
  ready->restored_checkpoint = "";
  if (missing.empty() && !variables.empty()) {
    ready->start = Start::kAdopted;
  } else if (checkpoint) {
    ready->start = Start::kRestored;
    ready->restored_checkpoint = *checkpoint;
    const bool is_foreign =
        *checkpoint == options.begin_from &&
        (options.checkpoint_dir.empty() ||
         !LatestCheckpoint(options.file_system, options.checkpoint_dir).has_value());
    if (kept > 0 && is_foreign) {
      // What is held was trained from another beginning, or initialised by a chief that died in the
      // middle, and nothing of it was saved: no model is made of two.
      LogWarning(options.name, ": the ", kept, " variables that the parameter servers hold are ",
                 "replaced, too: ", missing.size(), " others have no value, and '",
                 options.checkpoint_dir, "' has no checkpoint");
      kept = 0;
    }
    MR_RETURN_IF_ERROR(kept == 0 ? options.saver->Restore(s, *checkpoint)
                                 : RestoreSome(s, *checkpoint, missing));
  } else if (options.wait_for_checkpoint) {
    return Try{.not_ready = {absl::StrCat("a checkpoint in '", options.checkpoint_dir, "'")}};
  } else if (!may_initialize) {
    return Try{.not_ready = missing};
  } else if (kept == 0 || !default_init_op) {
    kept = 0;  // what the caller's operation initialises is not known: all, as far as we can say
    MR_RETURN_IF_ERROR(s->Run(options.init_feeds, {}, {init_op}).status());
    if (options.init_fn) {
      MR_RETURN_IF_ERROR(StopReason());
      MR_RETURN_IF_ERROR(options.init_fn(s));
    }
  } else {
    std::vector<FetchName> targets;
    const absl::flat_hash_set<std::string> wanted(missing.begin(), missing.end());
    for (const Variable& variable : variables) {
      if (wanted.contains(variable.name)) targets.push_back(variable.initializer);
    }
    MR_RETURN_IF_ERROR(s->Run(options.init_feeds, {}, targets).status());
  }
  // Checkpoints of an earlier process may be deleted later, like those of this one.
  if (state && options.saver != nullptr && options.saver->last_checkpoints().empty()) {
    MR_RETURN_IF_ERROR(options.saver->RecoverLastCheckpoints(state->all));
  }
  MR_ASSIGN_OR_RETURN(Try local, InitializeLocally(s, ready));
  if (!local.is_ready) return local;
  const std::string at = AtStep(ready->global_step);
  switch (ready->start) {
    case Start::kAdopted:
      LogInfo(options.name, ": adopted all ", variables.size(),
              " variables that the parameter servers hold", at);
      break;
    case Start::kRestored:
      if (kept == 0) {
        LogInfo(options.name, ": restored ", variables.size(), " variables from ", *checkpoint, at);
      } else {
        LogInfo(options.name, ": adopted ", kept, " variables, restored ", missing.size(), " from ",
                *checkpoint, at, ": ", SomeNames(missing));
      }
      break;
    default:
      if (kept == 0) {
        LogInfo(options.name, ": initialized ", variables.size(), " variables", at);
      } else {
        LogInfo(options.name, ": adopted ", kept, " variables, initialized ", missing.size(), at,
                ": ", SomeNames(missing));
      }
  }
  return local;
}

StatusOr<SessionManager::Impl::Try> SessionManager::Impl::InitializeLocally(Session* s,
                                                                            Ready* ready) {
  MR_ASSIGN_OR_RETURN(std::vector<std::string> not_ready, NotReady(s, ready_for_local_init_op));
  if (not_ready.empty()) {
    if (!local_init_op.empty()) MR_RETURN_IF_ERROR(s->Run({}, {}, {local_init_op}).status());
    MR_ASSIGN_OR_RETURN(not_ready, NotReady(s, ready_op));
  }
  if (!not_ready.empty()) return Try{.not_ready = std::move(not_ready)};
  MR_ASSIGN_OR_RETURN(ready->global_step, ReadGlobalStep(s));
  return Try{.is_ready = true};
}

StatusOr<SessionManager::Impl::Try> SessionManager::Impl::Wait(Session* s, Ready* ready) {
  MR_ASSIGN_OR_RETURN(std::vector<std::string> missing, NotReady(s, uninitialized));
  if (!missing.empty()) return Try{.not_ready = std::move(missing)};
  MR_ASSIGN_OR_RETURN(Try local, InitializeLocally(s, ready));
  if (!local.is_ready) return local;
  ready->start = Start::kWaited;
  LogInfo(options.name, ": the model is ready", AtStep(ready->global_step));
  return local;
}

void SessionManager::Impl::HearEnd(const RunEnd& end, const std::string& token,
                                   EndSource* source) const {
  source->end = end;
  const EndBelief::Told told = {.token = token, .global_step = end.global_step};
  if (!source->belief.Hear(told, options.clock->Now()) || !source->belief.is_doubted()) return;
  LogInfo(options.name, ": the run has ended", AtStep(end.global_step), " (", end.reason,
          "); leaves unless a chief goes on with it within ",
          absl::FormatDuration(options.end_grace));
}

void SessionManager::Impl::HearNone(EndSource* source) const {
  source->belief.Hear(std::nullopt, options.clock->Now());
}

void SessionManager::Impl::LookAtFiles(Ends* ends) const {
  if (options.checkpoint_dir.empty()) return;
  FileSystem* const fs = options.file_system;
  // Errors are not ours to judge: the chief reads the same files.
  const StatusOr<std::optional<RunFile>> run = ReadRunFile(fs, options.checkpoint_dir);
  if (!run.ok()) return;
  const std::string& name = options.session.run->name;
  if (*run && !name.empty() && (*run)->name != name) {
    HearNone(&ends->files);
    return;
  }
  const std::string owner = *run ? (*run)->token : std::string();
  // The servers may still know the end before this chief, which claims the run there next.
  if (ends->owner && *ends->owner != owner) ends->servers.belief.Forget();
  ends->owner = owner;
  ends->chief = *run ? (*run)->chief : std::string();
  const StatusOr<std::optional<RunEndFile>> end = ReadRunEnd(fs, options.checkpoint_dir);
  if (!end.ok()) return;
  if (!*end) return HearNone(&ends->files);
  HearEnd({.global_step = (*end)->global_step,
           .checkpoint = (*end)->checkpoint,
           .reason = (*end)->reason},
          (*end)->token, &ends->files);
}

std::string SessionManager::Impl::Whom(const Ends& ends) const {
  if (!ends.owner) return "";
  return ends.chief.empty()
             ? absl::StrCat(", of a chief: none has taken '", options.checkpoint_dir, "' over yet")
             : absl::StrCat(", of a chief: the last one was ", ends.chief);
}

Status SessionManager::Impl::CheckEnds(const Ends& ends) const {
  const absl::Time now = options.clock->Now();
  for (const EndSource* source : {&ends.files, &ends.servers}) {
    if (!source->belief.is_believed(now)) continue;
    return RunEndedError(options.name, *options.session.run, source->end);
  }
  return absl::OkStatus();
}

StatusOr<SessionManager::Ready> SessionManager::Impl::Until(
    const std::string& target, bool is_chief,
    const std::function<StatusOr<Try>(Session*, Ready*)>& attempt) {
  MR_RETURN_IF_ERROR(status);
  Clock* const clock = options.clock;
  const absl::Time begin = clock->Now();
  const absl::Time deadline = begin + options.max_wait;
  absl::Time next_report = begin + kReportPeriod;
  Ready ready;
  Ends ends({.grace = options.end_grace, .goal = options.last_step});
  const auto leave = [&] {
    return std::min(ends.files.belief.believed_from(), ends.servers.belief.believed_from());
  };
  // A status of the servers as it is, but an end that is not believed yet as a loss: this try has
  // ended then, the wait has not.
  const auto judged = [&](const Status& told) -> Status {
    const std::optional<RunEnd> end = RunEndOf(told);
    if (is_chief || !end) return told;
    HearEnd(*end, /*token=*/"", &ends.servers);
    MR_RETURN_IF_ERROR(CheckEnds(ends));
    return absl::UnavailableError(told.message());
  };
  const auto close = [&] {
    if (ready.session != nullptr) ready.session->Close().IgnoreError();
    ready.session = nullptr;
    SetSession(nullptr);
  };
  int preparations = 0;  // in a row, that left something without a value
  std::string last;      // why the last try did not succeed
  while (true) {
    const StatusOr<bool> tried = [&]() -> StatusOr<bool> {
      if (!is_chief) {
        LookAtFiles(&ends);
        MR_RETURN_IF_ERROR(CheckEnds(ends));
      }
      if (ready.session == nullptr) {
        const absl::Time until = std::max(leave(), clock->Now() + kLeastTry);
        StatusOr<std::shared_ptr<Session>> opened = OpenSession(target, std::min(deadline, until));
        if (absl::IsDeadlineExceeded(opened.status())) {
          // This try has ended, the wait has not.
          return absl::UnavailableError(opened.status().message());
        }
        MR_RETURN_IF_ERROR(judged(opened.status()));
        ready.session = *std::move(opened);
        SetSession(ready.session);
        HearNone(&ends.servers);
      }
      const StatusOr<Try> made = attempt(ready.session.get(), &ready);
      MR_RETURN_IF_ERROR(judged(made.status()));
      if (made->is_ready) return true;
      last = absl::StrCat("variables not initialized: ", SomeNames(made->not_ready));
      if (!is_chief && options.session.run->empty() && !target.empty()) {
        absl::StrAppend(&last, "; this task was given no logdir: a chief that was keeps its own");
      }
      if (!is_chief || options.wait_for_checkpoint || ++preparations < kMaxPreparations) {
        return false;
      }
      return FailedPrecondition(options.name,
                                ": init operations did not make the model ready (init_op '",
                                init_op, "', local_init_op '", local_init_op, "'): ", last);
    }();
    if (tried.ok() && *tried) {
      MutexLock lock(&mu);
      if (stop_reason.ok()) {
        session = nullptr;
        return ready;
      }
    } else if (!tried.ok()) {
      close();
      // What an initial value reads and nobody writes is not lost; others wait for its writer.
      preparations = absl::IsFailedPrecondition(tried.status()) ? preparations + 1 : 0;
      if (!IsSessionLost(tried.status()) || (is_chief && preparations >= kMaxPreparations)) {
        return tried.status();
      }
      last = std::string(tried.status().message());
    }
    const absl::Time now = clock->Now();
    const absl::Duration wait =
        std::min(std::max(kFirstWait, (now - begin) / kWaitParts), options.recovery_wait);
    if (!tried.value_or(false) && now + wait >= deadline) {
      close();
      // Who was waited for may be there the next time.
      return WithExitCode(absl::DeadlineExceededError(
                              absl::StrCat(options.name, ": session was not ready after ",
                                           absl::FormatDuration(options.max_wait), ": ", last)),
                          kExitRetryable);
    }
    if (now >= next_report) {
      next_report = now + kReportPeriod;
      LogInfo(options.name, ": waiting for the model to be ready since ",
              absl::FormatTime("%H:%M:%S", begin, absl::LocalTimeZone()), Whom(ends), "; ", last);
    }
    const Status reason = WaitUnlessStopped(std::min(now + wait, leave()));
    if (!reason.ok()) {
      close();
      return reason;
    }
  }
}

SessionManager::SessionManager(ScopeAt at, SessionManagerOptions options)
    : impl_(std::make_unique<Impl>(at.here(), std::move(options))) {
  impl_->CompleteGraph();
}

SessionManager::~SessionManager() = default;

const Status& SessionManager::status() const { return impl_->status; }

void SessionManager::SetRun(const TrainingRun& run) { impl_->options.session.run = run; }

StatusOr<SessionManager::Ready> SessionManager::PrepareSession(const std::string& target) {
  return impl_->Until(target, /*is_chief=*/true, [this](Session* session, Ready* ready) {
    return impl_->GiveValues(session, /*may_initialize=*/true, ready);
  });
}

StatusOr<SessionManager::Ready> SessionManager::WaitForSession(const std::string& target) {
  return impl_->Until(target, /*is_chief=*/false, [this](Session* session, Ready* ready) {
    return impl_->Wait(session, ready);
  });
}

StatusOr<SessionManager::Ready> SessionManager::RecoverSession(
    const std::string& target, std::vector<std::string>* not_ready) {
  MR_RETURN_IF_ERROR(impl_->status);
  {
    MutexLock lock(&impl_->mu);
    MR_RETURN_IF_ERROR(impl_->stop_reason);
  }
  StatusOr<std::shared_ptr<Session>> opened =
      impl_->OpenSession(target, impl_->options.clock->Now() + impl_->options.max_wait);
  if (absl::IsDeadlineExceeded(opened.status())) {
    return WithExitCode(opened.status(), kExitRetryable);
  }
  MR_RETURN_IF_ERROR(opened.status());
  Ready ready;
  ready.session = *std::move(opened);
  StatusOr<Impl::Try> made =
      impl_->GiveValues(ready.session.get(), /*may_initialize=*/false, &ready);
  if (!made.ok()) {
    ready.session->Close().IgnoreError();
    return made.status();
  }
  *not_ready = std::move(made->not_ready);
  return ready;
}

void SessionManager::Stop(const Status& reason) {
  MutexLock lock(&impl_->mu);
  if (!impl_->stop_reason.ok()) return;
  impl_->stop_reason = reason;
  impl_->stopped.SignalAll();
}

std::shared_ptr<Session> SessionManager::session() const {
  MutexLock lock(&impl_->mu);
  return impl_->session;
}

StatusOr<int64_t> SessionManager::ReadGlobalStep(Session* session) const {
  return impl_->ReadGlobalStep(session);
}

}  // namespace millrace
