// SPDX-License-Identifier: Apache-2.0
#include "train/supervisor.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "ops/array/identity.h"
#include "proto/meta_graph.pb.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

// A task that waits says so this often.
constexpr absl::Duration kReportPeriod = absl::Seconds(10);
// Names of variables in one log line.
constexpr size_t kNamesInMessage = 8;

std::string SomeNames(const std::vector<std::string>& names) {
  if (names.size() <= kNamesInMessage) return absl::StrJoin(names, ", ");
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(kNamesInMessage), ", "),
      " and ", names.size() - kNamesInMessage, " more");
}

// Marks the NaN guard's errors.
constexpr char kLossNotFinite[] = "loss_not_finite";

// OK when a file can be made in `directory`, which is created.
Status CheckWritable(FileSystem* fs, const std::string& directory) {
  const Status status = [&]() -> Status {
    MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(directory));
    const std::string path = JoinPath(directory, absl::StrCat(".writable_", RandomHexName()));
    {
      MR_ASSIGN_OR_RETURN(const auto file, fs->NewExclusiveFile(path));
      MR_RETURN_IF_ERROR(file->Close());
    }
    return fs->DeleteFile(path);
  }();
  if (status.ok()) return status;
  return Status(status.code(),
                absl::StrCat("Supervisor: logdir '", directory,
                             "' must be a directory that can be written, got ", status.message()));
}

// A task went away; a new session may find it back.
bool IsRetryable(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status);
}

// Does `assign` write what a RestoreV2 node has read? TensorFlow puts an Identity between.
bool AssignsRestored(const Node& assign) {
  if (assign.op() != "AssignVariableOp" && assign.op() != "Assign") return false;
  if (assign.num_inputs() < 2) return false;
  const Node* value = assign.input(1).node;
  if (value->op() == "Identity" && value->num_inputs() > 0) value = value->input(0).node;
  return value->op() == "RestoreV2";
}

// One Saver used by the caller's thread and the service thread.
class SharedSaver : public Saver {
 public:
  SharedSaver(Saver* saver, std::unique_ptr<Saver> owned)
      : owned_(std::move(owned)), saver_(owned_ != nullptr ? owned_.get() : saver) {}

  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> global_step) override {
    MutexLock lock(&mu_);
    StatusOr<std::string> path = saver_->Save(session, prefix, global_step);
    if (path.ok()) last_saved_ = *path;
    return path;
  }
  Status Restore(Session* session, const std::string& checkpoint) override {
    MutexLock lock(&mu_);
    return saver_->Restore(session, checkpoint);
  }
  Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
    MutexLock lock(&mu_);
    return saver_->RecoverLastCheckpoints(paths);
  }
  std::vector<std::string> last_checkpoints() const override {
    MutexLock lock(&mu_);
    return saver_->last_checkpoints();
  }
  const tensorflow::SaverDef& def() const override { return saver_->def(); }

  // What this object wrote last; "" when nothing.
  std::string last_saved() const {
    MutexLock lock(&mu_);
    return last_saved_;
  }

 private:
  mutable Mutex mu_;
  std::string last_saved_ ABSL_GUARDED_BY(mu_);
  const std::unique_ptr<Saver> owned_;
  Saver* const saver_;
};

}  // namespace

struct Supervisor::Impl {
  Impl(const Scope& s, SupervisorOptions o) : scope(s), options(std::move(o)) {}

  void CompleteGraph();
  StatusOr<std::shared_ptr<Session>> OpenSession(const std::string& target, absl::Time deadline);
  Status PrepareAsChief(Session* session);
  // True when all variables are ready; false when the chief has not got there yet.
  StatusOr<bool> PrepareAsWorker(Session* session, std::vector<std::string>* missing);
  StatusOr<std::vector<std::string>> Uninitialized(Session* session, const std::string& fetch);
  Status RunLocalInitAndCheck(Session* session);
  StatusOr<int64_t> ReadGlobalStep(Session* session);
  // Refuses when a stop has been requested: Stop may have gone by already.
  Status StartServices(std::shared_ptr<Session> session);
  // False when the service did not end in time and its session was closed.
  bool StopServices();
  // `services_ended`: what StopServices returned.
  StatusOr<std::string> SaveLast(bool services_ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_mu);
  std::string save_path() const { return JoinPath(options.logdir, options.checkpoint_basename); }
  void SaveLoop(std::shared_ptr<Session> session);
  void RequestStop(const Status& reason);
  // Why there is no session after a request to stop.
  Status Stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  Scope scope;
  SupervisorOptions options;
  Status status;  // of completing the graph

  std::vector<Variable> variables, local_variables;
  absl::flat_hash_map<std::string, std::string> restore_target;  // variable -> restoring node
  std::string init_op, local_init_op;
  bool default_init_op = false;
  std::string global_report, all_report;  // fetches: names of uninitialised variables
  std::optional<Variable> global_step;
  std::unique_ptr<SharedSaver> saver;

  Mutex stop_mu;  // held by who stops, before mu: the others wait for the last checkpoint
  mutable Mutex mu;
  CondVar stop_cv;
  bool should_stop ABSL_GUARDED_BY(mu) = false;
  Status first_error ABSL_GUARDED_BY(mu);
  bool services_should_stop ABSL_GUARDED_BY(mu) = false;
  bool save_running ABSL_GUARDED_BY(mu) = false;
  Start start ABSL_GUARDED_BY(mu) = Start::kInitialized;
  std::string restored ABSL_GUARDED_BY(mu);
  std::shared_ptr<Session> session ABSL_GUARDED_BY(mu);
  int64_t first_step ABSL_GUARDED_BY(mu) = -1;      // the global step that `session` began with
  bool last_save_done ABSL_GUARDED_BY(mu) = false;  // SaveLast was called for `session`
  std::thread save_thread ABSL_GUARDED_BY(mu);      // moved out by whoever joins it
};

void Supervisor::Impl::CompleteGraph() {
  if (!scope.ok()) {
    status = scope.status();
    return;
  }
  if (options.is_chief && !options.logdir.empty()) {
    status = CheckWritable(options.file_system, options.logdir);
    if (!status.ok()) return;
  }
  const Scope root = scope.WithRootPrefix().WithoutControlDependencies();
  variables = VariablesOf(root, "variables");
  local_variables = VariablesOf(root, "local_variables");
  global_step = options.global_step;
  if (!global_step && root.collections()->contains("global_step")) global_step = GlobalStep(root);

  if (options.init_op.valid()) {
    init_op = options.init_op.name();
  } else {
    init_op = GlobalVariablesInitializer(root).name();
    default_init_op = true;
  }
  if (options.local_init_op.valid()) {
    local_init_op = options.local_init_op.name();
  } else if (!local_variables.empty()) {
    local_init_op = LocalVariablesInitializer(root).name();
  }
  if (!variables.empty()) {
    global_report = ReportUninitializedVariables(root, variables).name();
  }
  std::vector<Variable> all = variables;
  all.insert(all.end(), local_variables.begin(), local_variables.end());
  if (!all.empty()) {
    all_report =
        local_variables.empty() ? global_report : ReportUninitializedVariables(root, all).name();
  }
  if (options.saver != nullptr) {
    saver = std::make_unique<SharedSaver>(options.saver, nullptr);
  } else if (!options.logdir.empty() && !variables.empty()) {
    SaverOptions saver_options;
    saver_options.file_system = options.file_system;
    StatusOr<std::unique_ptr<Saver>> made = Saver::Make(root, saver_options);
    if (!made.ok()) {
      status = made.status();
      return;
    }
    saver = std::make_unique<SharedSaver>(nullptr, *std::move(made));
  }
  if (saver != nullptr) {
    // A restore is an assignment from a RestoreV2 node; which node restores which variable is read
    // off the graph, so that single variables can be restored.
    absl::flat_hash_map<const Node*, std::string> variable_of;
    for (const Variable& variable : variables) variable_of[variable.handle.node()] = variable.name;
    const std::string prefix =
        saver->def().restore_op_name().substr(0, saver->def().restore_op_name().rfind('/') + 1);
    for (const auto& node : root.graph()->nodes()) {
      if (node == nullptr || !absl::StartsWith(node->name(), prefix)) continue;
      if (!AssignsRestored(*node)) continue;
      const auto found = variable_of.find(node->input(0).node);
      if (found != variable_of.end()) restore_target[found->second] = node->name();
    }
  }
  status = root.status();
  root.Finalize();
}

StatusOr<std::vector<std::string>> Supervisor::Impl::Uninitialized(Session* s,
                                                                   const std::string& fetch) {
  std::vector<std::string> names;
  if (fetch.empty()) return names;
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, s->Run({}, {fetch}));
  for (const std::string& name : out[0].flat<std::string>()) names.push_back(name);
  return names;
}

StatusOr<int64_t> Supervisor::Impl::ReadGlobalStep(Session* s) {
  if (!global_step) return int64_t{-1};
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, s->Run({}, {global_step->value}));
  return out[0].dtype() == DT_INT32 ? int64_t{out[0].scalar<int32_t>()} : out[0].scalar<int64_t>();
}

Status Supervisor::Impl::RunLocalInitAndCheck(Session* s) {
  if (!local_init_op.empty()) MR_RETURN_IF_ERROR(s->Run({}, {}, {local_init_op}).status());
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> missing, Uninitialized(s, all_report));
  if (missing.empty()) return absl::OkStatus();
  return FailedPrecondition("Supervisor: init operations did not make the model ready (init_op '",
                            init_op, "', local_init_op '", local_init_op,
                            "'): variables not initialized: ", SomeNames(missing));
}

Status Supervisor::Impl::PrepareAsChief(Session* s) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> missing, Uninitialized(s, global_report));
  std::optional<CheckpointState> state;
  std::optional<std::string> checkpoint;
  if (!options.logdir.empty() && saver != nullptr) {
    state = ReadCheckpointState(options.file_system, options.logdir);
    checkpoint = LatestCheckpoint(options.file_system, options.logdir);
    // Beginning anew would lose what was trained; a missing index means that somebody removed it.
    if (!checkpoint && state && options.file_system->FileExists(BundleIndexPath(state->latest))) {
      auto reader = BundleReader::Open(options.file_system, state->latest);
      const Status whole = reader.ok() ? (*reader)->CheckFiles() : reader.status();
      if (!whole.ok()) {
        return Prefixed(absl::StrCat("Supervisor: no checkpoint of '", options.logdir,
                                     "' is whole; the latest"),
                        whole);
      }
    }
  }
  size_t kept = variables.size() - missing.size();
  Start how = Start::kInitialized;
  if (missing.empty() && !variables.empty()) {
    how = Start::kAdopted;
  } else if (checkpoint) {
    how = Start::kRestored;
    if (kept == 0) {
      MR_RETURN_IF_ERROR(saver->Restore(s, *checkpoint));
    } else {
      std::vector<FetchName> targets;
      for (const std::string& name : missing) {
        const auto found = restore_target.find(name);
        if (found == restore_target.end()) {
          return absl::NotFoundError(absl::StrCat(
              "Supervisor: variable '", name, "' must be saved by the Saver to be restored from ",
              *checkpoint, ", got a Saver without it"));
        }
        targets.push_back(found->second);
      }
      const Feed filename(saver->def().filename_tensor_name(),
                          Tensor::Scalar<std::string>(*checkpoint));
      MR_RETURN_IF_ERROR(s->Run({filename}, {}, targets).status());
    }
  } else if (kept == 0 || !default_init_op) {
    kept = 0;  // what the caller's operation initialises is not known: all, as far as we can say
    MR_RETURN_IF_ERROR(s->Run({}, {}, {init_op}).status());
    if (options.init_fn) MR_RETURN_IF_ERROR(options.init_fn(s));
  } else {
    std::vector<FetchName> targets;
    const absl::flat_hash_set<std::string> wanted(missing.begin(), missing.end());
    for (const Variable& variable : variables) {
      if (wanted.contains(variable.name)) targets.push_back(variable.initializer);
    }
    MR_RETURN_IF_ERROR(s->Run({}, {}, targets).status());
  }
  // Checkpoints of an earlier process may be deleted later, like those of this one.
  if (state && saver != nullptr && saver->last_checkpoints().empty()) {
    MR_RETURN_IF_ERROR(saver->RecoverLastCheckpoints(state->all));
  }
  MR_RETURN_IF_ERROR(RunLocalInitAndCheck(s));
  MR_ASSIGN_OR_RETURN(const int64_t step, ReadGlobalStep(s));
  const std::string at = step >= 0 ? absl::StrCat(" at global step ", step) : "";
  switch (how) {
    case Start::kAdopted:
      LogInfo("Supervisor: adopted all ", variables.size(),
              " variables that the parameter servers hold", at);
      break;
    case Start::kRestored:
      if (kept == 0) {
        LogInfo("Supervisor: restored ", variables.size(), " variables from ", *checkpoint, at);
      } else {
        LogInfo("Supervisor: adopted ", kept, " variables, restored ", missing.size(), " from ",
                *checkpoint, at, ": ", SomeNames(missing));
      }
      break;
    default:
      if (kept == 0) {
        LogInfo("Supervisor: initialized ", variables.size(), " variables", at);
      } else {
        LogInfo("Supervisor: adopted ", kept, " variables, initialized ", missing.size(), at, ": ",
                SomeNames(missing));
      }
  }
  MutexLock lock(&mu);
  start = how;
  first_step = step;
  restored = how == Start::kRestored ? *checkpoint : "";
  return absl::OkStatus();
}

StatusOr<bool> Supervisor::Impl::PrepareAsWorker(Session* s, std::vector<std::string>* missing) {
  MR_ASSIGN_OR_RETURN(*missing, Uninitialized(s, global_report));
  if (!missing->empty()) return false;
  MR_RETURN_IF_ERROR(RunLocalInitAndCheck(s));
  MR_ASSIGN_OR_RETURN(const int64_t step, ReadGlobalStep(s));
  LogInfo("Supervisor: the model is ready",
          step >= 0 ? absl::StrCat(" at global step ", step) : std::string());
  MutexLock lock(&mu);
  start = Start::kWaited;
  restored.clear();
  return true;
}

StatusOr<std::shared_ptr<Session>> Supervisor::Impl::OpenSession(const std::string& target,
                                                                 absl::Time deadline) {
  SessionOptions session_options = options.session;
  session_options.target = target;
  session_options.creation_timeout =
      std::min(session_options.creation_timeout, deadline - options.clock->Now());
  MR_ASSIGN_OR_RETURN(std::shared_ptr<Session> opened, NewSession(session_options));
  MR_RETURN_IF_ERROR(opened->Extend(scope));
  return opened;
}

void Supervisor::Impl::RequestStop(const Status& reason) {
  MutexLock lock(&mu);
  should_stop = true;
  if (!reason.ok() && !absl::IsOutOfRange(reason)) first_error.Update(reason);
  stop_cv.SignalAll();
}

Status Supervisor::Impl::Stopped() const {
  return first_error.ok() ? absl::CancelledError("Supervisor: a stop has been requested")
                          : first_error;
}

Status Supervisor::Impl::StartServices(std::shared_ptr<Session> s) {
  MutexLock lock(&mu);
  if (should_stop) return Stopped();
  session = s;
  last_save_done = false;
  services_should_stop = false;
  if (options.is_chief && saver != nullptr && !options.logdir.empty() &&
      options.save_model_period > absl::ZeroDuration()) {
    save_running = true;
    save_thread = std::thread([this, s = std::move(s)] {
      SaveLoop(s);
      MutexLock done(&mu);
      save_running = false;
      stop_cv.SignalAll();
    });
  }
  return absl::OkStatus();
}

bool Supervisor::Impl::StopServices() {
  std::shared_ptr<Session> blocked;
  std::thread ending;
  {
    MutexLock lock(&mu);
    services_should_stop = true;
    stop_cv.SignalAll();
    const absl::Time deadline = options.clock->Now() + options.stop_grace;
    while (save_running && options.clock->Now() < deadline) {
      options.clock->WaitUntil(&stop_cv, &mu, deadline);
    }
    if (save_running) blocked = session;
    ending = std::move(save_thread);
  }
  if (blocked != nullptr) {
    LogWarning("Supervisor: the checkpoint service did not end within ",
               absl::FormatDuration(options.stop_grace), ", closing its session");
    blocked->Close().IgnoreError();
  }
  if (ending.joinable()) ending.join();
  return blocked == nullptr;
}

StatusOr<std::string> Supervisor::Impl::SaveLast(bool services_ended) {
  if (!options.is_chief || saver == nullptr || options.logdir.empty()) return std::string();
  std::shared_ptr<Session> s;
  int64_t first = 0;
  {
    MutexLock lock(&mu);
    if (session == nullptr) return std::string();
    last_save_done = true;
    s = session;
    first = first_step;
  }
  const auto not_written = [](const Status& why) {
    return Prefixed("Supervisor: last checkpoint not written", why);
  };
  if (!services_ended) {
    return not_written(absl::DeadlineExceededError(
        absl::StrCat("the one before it did not end within ",
                     absl::FormatDuration(options.stop_grace), ", and the session was closed")));
  }
  const StatusOr<int64_t> step = ReadGlobalStep(s.get());
  if (!step.ok()) return not_written(step.status());
  // A step that does not count tells nothing about the variables: a loop may train without it.
  const std::string last = saver->last_saved();
  if (*step > first && *step >= 0 && last == absl::StrCat(save_path(), "-", *step)) return last;
  const StatusOr<std::string> path =
      saver->Save(s.get(), save_path(), *step >= 0 ? std::optional<int64_t>(*step) : std::nullopt);
  if (!path.ok()) return not_written(path.status());
  LogInfo("Supervisor: saved ", *path, *step >= 0 ? absl::StrCat(" at global step ", *step) : "");
  return *path;
}

// The first checkpoint is written at once, so that a job that dies early loses nothing it started
// from.
void Supervisor::Impl::SaveLoop(std::shared_ptr<Session> s) {
  absl::Time next = options.clock->Now();
  while (true) {
    {
      MutexLock lock(&mu);
      while (!services_should_stop && options.clock->Now() < next) {
        options.clock->WaitUntil(&stop_cv, &mu, next);
      }
      if (services_should_stop) return;
    }
    StatusOr<int64_t> step = ReadGlobalStep(s.get());
    Status saved = step.status();
    if (saved.ok()) {
      saved = saver
                  ->Save(s.get(), save_path(),
                         *step >= 0 ? std::optional<int64_t>(*step) : std::nullopt)
                  .status();
    }
    if (!saved.ok()) {
      if (IsRetryable(saved) || absl::IsCancelled(saved)) {
        // The training loop sees the same loss and decides; a new session starts a new service.
        LogWarning("Supervisor: checkpoint not written: ", saved.message());
        return;
      }
      RequestStop(Prefixed("Supervisor: checkpoint not written", saved));
      return;
    }
    next += options.save_model_period;
    next = std::max(next, options.clock->Now());
  }
}

Supervisor::Supervisor(const Scope& scope, SupervisorOptions options)
    : impl_(std::make_unique<Impl>(scope, std::move(options))) {
  impl_->CompleteGraph();
}

Supervisor::~Supervisor() {
  {
    MutexLock lock(&impl_->mu);
    impl_->last_save_done = true;
  }
  Stop().IgnoreError();
}

StatusOr<std::shared_ptr<Session>> Supervisor::ManagedSession(const std::string& target) {
  MR_RETURN_IF_ERROR(impl_->status);
  impl_->StopServices();
  std::shared_ptr<Session> former;
  {
    MutexLock lock(&impl_->mu);
    if (impl_->should_stop) return impl_->Stopped();  // Stop closes the session.
    former = std::move(impl_->session);
    impl_->session = nullptr;
  }
  if (former != nullptr) former->Close().IgnoreError();

  Clock* clock = impl_->options.clock;
  const absl::Time deadline = clock->Now() + impl_->options.max_wait;
  absl::Time next_report = clock->Now() + kReportPeriod;
  std::shared_ptr<Session> session;
  Status last;  // why the last try did not succeed
  while (true) {
    std::vector<std::string> missing;
    if (session == nullptr) {
      StatusOr<std::shared_ptr<Session>> opened = impl_->OpenSession(target, deadline);
      if (opened.ok()) {
        session = *std::move(opened);
      } else if (IsRetryable(opened.status())) {
        last = opened.status();
      } else {
        return opened.status();
      }
    }
    if (session != nullptr) {
      StatusOr<bool> ready = true;
      if (impl_->options.is_chief) {
        const Status prepared = impl_->PrepareAsChief(session.get());
        if (!prepared.ok()) ready = prepared;
      } else {
        ready = impl_->PrepareAsWorker(session.get(), &missing);
      }
      if (ready.ok() && *ready) break;
      if (ready.ok()) {
        last = FailedPrecondition("variables not initialized: ", SomeNames(missing));
      } else if (IsRetryable(ready.status())) {
        last = ready.status();
        session->Close().IgnoreError();
        session = nullptr;
      } else {
        session->Close().IgnoreError();
        return ready.status();
      }
    }
    const absl::Time now = clock->Now();
    if (now + impl_->options.recovery_wait >= deadline) {
      if (session != nullptr) session->Close().IgnoreError();
      return absl::DeadlineExceededError(absl::StrCat("Supervisor: session was not ready after ",
                                                      absl::FormatDuration(impl_->options.max_wait),
                                                      ": ", last.message()));
    }
    if (now >= next_report) {
      next_report = now + kReportPeriod;
      LogInfo("Supervisor: waiting for the model to be ready: ", last.message());
    }
    MutexLock lock(&impl_->mu);
    const absl::Time wake = now + impl_->options.recovery_wait;
    while (!impl_->should_stop && clock->Now() < wake) {
      clock->WaitUntil(&impl_->stop_cv, &impl_->mu, wake);
    }
    if (impl_->should_stop) {
      if (session != nullptr) session->Close().IgnoreError();
      return impl_->Stopped();
    }
  }
  const Status started = impl_->StartServices(session);
  if (!started.ok()) {
    session->Close().IgnoreError();
    return started;
  }
  return session;
}

Supervisor::Start Supervisor::start() const {
  MutexLock lock(&impl_->mu);
  return impl_->start;
}

std::string Supervisor::restored_checkpoint() const {
  MutexLock lock(&impl_->mu);
  return impl_->restored;
}

bool Supervisor::ShouldStop() const {
  MutexLock lock(&impl_->mu);
  return impl_->should_stop;
}

void Supervisor::RequestStop(const Status& reason) { impl_->RequestStop(reason); }

Status Supervisor::Stop() {
  impl_->RequestStop(absl::OkStatus());
  MutexLock stopping(&impl_->stop_mu);
  const bool services_ended = impl_->StopServices();
  bool save = false;
  {
    MutexLock lock(&impl_->mu);
    const Status& error = impl_->first_error;
    save = !impl_->last_save_done && !IsRetryable(error) && !IsLossNotFinite(error);
  }
  Status saved;
  if (save) {
    saved = impl_->SaveLast(services_ended).status();
    if (!saved.ok()) LogWarning(saved.message());
  }
  std::shared_ptr<Session> session;
  Status error;
  {
    MutexLock lock(&impl_->mu);
    session = std::move(impl_->session);
    impl_->session = nullptr;
    impl_->first_error.Update(saved);
    error = impl_->first_error;
  }
  // What is still blocked in the session ends with it; its own errors do not matter any more.
  if (session != nullptr) session->Close().IgnoreError();
  return error;
}

StatusOr<std::string> Supervisor::SaveLast() {
  MutexLock stopping(&impl_->stop_mu);
  return impl_->SaveLast(impl_->StopServices());
}

Saver* Supervisor::saver() const { return impl_->saver.get(); }

std::string Supervisor::save_path() const { return impl_->save_path(); }

Status Supervisor::status() const { return impl_->status; }

Status RunWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                       absl::FunctionRef<Status(Session*)> body) {
  for (int recoveries = 0;; ++recoveries) {
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, supervisor->ManagedSession(target));
    const Status status = body(session.get());
    if (status.ok() || !IsRetryable(status)) return status;
    if (recoveries >= max_recoveries) {
      return Suffixed(status, absl::StrCat("; gave up after ", recoveries, " new sessions"));
    }
    LogWarning("The session was lost, making a new one: ", status.message());
  }
}

Status CheckLossIsFinite(const Tensor& loss, int64_t step) {
  double bad = 0;  // the first element that is not finite
  const auto scan = [&bad](const auto values) {
    for (const auto v : values) {
      if (std::isfinite(v)) continue;
      bad = static_cast<double>(v);
      return;
    }
  };
  switch (loss.dtype()) {
    case DT_FLOAT:
      scan(loss.flat<float>());
      break;
    case DT_DOUBLE:
      scan(loss.flat<double>());
      break;
    default:
      return InvalidArgument("NaN guard: the loss must be float or double, got ",
                             DTypeName(loss.dtype()));
  }
  if (std::isfinite(bad)) return absl::OkStatus();
  Status status =
      InvalidArgument("NaN guard: the loss must be finite, got ",
                      std::isnan(bad) ? "nan" : (bad > 0 ? "inf" : "-inf"), " at global step ",
                      step, "; lower the learning rate or look for bad input");
  status.SetPayload(kLossNotFinite, absl::Cord());
  return status;
}

bool IsLossNotFinite(const Status& status) { return status.GetPayload(kLossNotFinite).has_value(); }

}  // namespace millrace
