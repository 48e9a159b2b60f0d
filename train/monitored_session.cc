// SPDX-License-Identifier: Apache-2.0
#include "train/monitored_session.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/bounded_call.h"
#include "core/logging.h"
#include "train/coordinator.h"
#include "train/hooked_session.h"
#include "train/hooks/run_state.h"
#include "train/session_manager.h"

namespace millrace {
namespace {

constexpr char kName[] = "MonitoredSession";
// For what should return at once: closing a session.
constexpr absl::Duration kCloseTime = absl::Seconds(5);
// The wait before a second session after a loss; it doubles with each.
constexpr absl::Duration kFirstWait = absl::Milliseconds(10);
constexpr absl::Duration kMaxRecoveryWait = absl::Seconds(2);

}  // namespace

// What a MonitoredSession does. Its states are those of monitored_session.h.
class MonitoredLoop {
 public:
  MonitoredLoop(const Scope& scope, std::unique_ptr<SessionCreator> creator,
                MonitoredSessionOptions options)
      : options_(std::move(options)),
        clock_(options_.clock),
        creator_(std::move(creator)),
        hooked_(scope, options_.hooks, clock_),
        coordinator_(clock_) {}

  Status Open() {
    if (options_.max_recoveries < 0 || options_.recovery_wait < absl::ZeroDuration() ||
        options_.recovery_wait > kMaxRecoveryWait) {
      return InvalidArgument(kName, ": max_recoveries must be >= 0 and recovery_wait 0 to ",
                             absl::FormatDuration(kMaxRecoveryWait), ", got ",
                             options_.max_recoveries, " and ",
                             absl::FormatDuration(options_.recovery_wait));
    }
    MR_RETURN_IF_ERROR(hooked_.Begin());
    MR_RETURN_IF_ERROR(creator_->CompleteGraph(hooked_.last_step()));
    return Recovering([] { return absl::OkStatus(); });
  }

  // Gives `attempt` a session, and another one for as long as it loses them.
  Status Recovering(absl::FunctionRef<Status()> attempt) {
    while (true) {
      Status status = EnsureSession();
      if (status.ok()) status = attempt();
      if (status.ok()) {
        last_error_ = absl::OkStatus();
        return status;
      }
      // What a thread has met may be why the step failed: its queue was closed, say.
      const Status of_threads = coordinator_.error();
      if (!IsSessionLost(status) && IsSessionLost(of_threads)) status = of_threads;
      if (absl::IsOutOfRange(status)) {
        EndOfData(status);
        return status;
      }
      if (!IsSessionLost(status) || options_.max_recoveries == 0) {
        last_error_ = status;
        return status;
      }
      const Status gave_up = NoteLoss(status);
      if (!gave_up.ok()) {
        last_error_ = gave_up;
        return gave_up;
      }
    }
  }

  // One run of a step, with the recovery that belongs to it.
  Status Run(size_t step, absl::Span<const Tensor> feeds, absl::Span<Tensor> results) {
    MR_RETURN_IF_ERROR(CheckMayRun());
    return Recovering([&] { return hooked_.Run(step, feeds, results); });
  }
  // Within a step function, which is called again as a whole.
  StatusOr<std::vector<Tensor>> RunByName(const std::vector<Feed>& feeds,
                                          const std::vector<FetchName>& fetches,
                                          const std::vector<FetchName>& targets, bool recover) {
    MR_RETURN_IF_ERROR(CheckMayRun());
    const size_t step = hooked_.FindOrAddStep(feeds, fetches, targets);
    std::vector<Tensor> values;
    for (const Feed& feed : feeds) values.push_back(feed.value);
    std::vector<Tensor> results(hooked_.num_results(step));
    const auto run = [&] { return hooked_.Run(step, values, absl::MakeSpan(results)); };
    MR_RETURN_IF_ERROR(recover ? Recovering(run) : run());
    return results;
  }

  Status CheckMayRun() const {
    if (closed_) return FailedPrecondition(kName, ": Run must come before Close, got it after");
    if (!ShouldStop()) return absl::OkStatus();
    return FailedPrecondition(kName, ": Run called even after should_stop requested.");
  }

  bool ShouldStop() const {
    return closed_ || data_ended_ || hooked_.run().stop_requested || StoppedByThreads();
  }

  void RequestStop(absl::string_view reason) {
    RunContext(hooked_.mutable_run(), 0).RequestStop(reason);
  }

  void EndOfData(const Status& status) {
    data_ended_ = true;
    if (!status.message().empty()) end_of_data_ = std::string(status.message());
    last_error_ = absl::OkStatus();
  }

  Status Close(const Status& ended_with, bool in_order) {
    if (closed_) return closed_with_;
    // Only the program's own end of data comes here so.
    if (absl::IsOutOfRange(ended_with)) EndOfData(ended_with);
    Status status = absl::IsOutOfRange(ended_with) ? absl::OkStatus() : ended_with;
    status.Update(last_error_);
    Status of_threads = coordinator_.error();
    status.Update(of_threads);
    const std::optional<RunEnd> ended_elsewhere = RunEndOf(status);
    const bool has_session = session_ != nullptr;
    const bool well = in_order && status.ok() && has_session;
    const RunState& run = hooked_.run();
    if (well) status.Update(hooked_.End());
    closed_ = true;
    coordinator_.RequestStop();
    status.Update(
        coordinator_.Join({.stop_grace = options_.stop_grace, .ignore_live_threads = !well}));
    if (well && status.ok() && run.leave_with.ok() && (run.is_goal || data_ended_)) TellEnd();
    if (in_order) status.Update(run.leave_with);
    CloseSession();
    if (ended_elsewhere) {
      LogInfo(status.message());
      status = absl::OkStatus();
    }
    closed_with_ = status;
    return status;
  }

  HookedSession* hooked() { return &hooked_; }
  Session* session() const { return session_.get(); }
  int recoveries() const { return recoveries_; }

 private:
  bool StoppedByThreads() const {
    // A session that is lost is replaced by the next run.
    return coordinator_.ShouldStop() &&
           !(options_.max_recoveries > 0 && IsSessionLost(coordinator_.error()));
  }

  Status EnsureSession() {
    if (session_ != nullptr) {
      if (!coordinator_.ShouldStop()) return absl::OkStatus();
      const Status of_threads = coordinator_.error();
      return IsSessionLost(of_threads) ? of_threads : absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(const SessionManager::Ready ready, creator_->CreateSession());
    session_ = ready.session;
    if (ready.global_step > furthest_) {
      furthest_ = ready.global_step;
      losses_ = 0;
    }
    if (is_recovery_) ++recoveries_;
    CreatedSession created;
    created.session = session_;
    created.coordinator = coordinator_;
    created.saver = creator_->saver();
    created.start = ready.start;
    created.restored_checkpoint = ready.restored_checkpoint;
    created.global_step = ready.global_step;
    created.last_step = hooked_.last_step();
    created.is_recovery = is_recovery_;
    const Status started = hooked_.Start(created);
    // No run may use a session that some hook has not seen; the next one makes another.
    if (!started.ok()) DropSession();
    return started;
  }

  // Ends the session and its threads; another one may follow.
  void DropSession() {
    is_recovery_ = true;
    coordinator_.RequestStop();
    // What threads wait for in the session ends with it.
    CloseSession();
    const Status joined =
        coordinator_.Join({.stop_grace = kCloseTime, .ignore_live_threads = true});
    if (!joined.ok() && !IsSessionLost(joined)) LogWarning(kName, ": ", joined.message());
    coordinator_ = Coordinator(clock_);
  }

  // Notes that the session is lost, and says whether there may be another.
  Status NoteLoss(const Status& why) {
    if (++losses_ > options_.max_recoveries) {
      return Suffixed(
          why, absl::StrCat("; gave up after ", options_.max_recoveries, " new sessions in a row"));
    }
    LogWarning(kName, ": the session was lost, making a new one (", losses_, " of at most ",
               options_.max_recoveries, " in a row): ", why.message());
    DropSession();
    if (losses_ > 1) {
      absl::Duration wait = kFirstWait;
      for (int i = 2; i < losses_ && wait < options_.recovery_wait; ++i) wait *= 2;
      clock_->SleepFor(std::min(wait, options_.recovery_wait));
    }
    return absl::OkStatus();
  }

  void CloseSession() {
    hooked_.Drop();
    if (session_ == nullptr) return;
    BoundedCall closing(clock_,
                        [session = std::move(session_)] { session->Close().IgnoreError(); });
    session_ = nullptr;
    if (closing.WaitUntil(clock_->Now() + kCloseTime)) return;
    LogWarning(kName, ": the session did not close within ", absl::FormatDuration(kCloseTime),
               "; what it waits for is left behind");
  }

  void TellEnd() {
    const RunState& run = hooked_.run();
    const RunEnd end = {.reason = run.is_goal ? run.reason : end_of_data_};
    // A small file and a call; storage that hangs does not hold up the end.
    BoundedCall call(clock_, [creator = creator_, session = session_, end] {
      const Status told = creator->TellEnd(session.get(), end);
      if (told.ok()) return;
      LogWarning(kName, ": the end of training was not told to all: ", told.message());
    });
    if (!call.WaitUntil(clock_->Now() + kCloseTime)) {
      LogWarning(kName, ": the end of training was not told to all within ",
                 absl::FormatDuration(kCloseTime));
    }
  }

  MonitoredSessionOptions options_;
  Clock* const clock_;
  const std::shared_ptr<SessionCreator> creator_;  // also of a call that is left behind
  HookedSession hooked_;
  Coordinator coordinator_;  // of the session
  std::shared_ptr<Session> session_;
  bool is_recovery_ = false;
  int recoveries_ = 0;
  int losses_ = 0;         // since a session began further than all before
  int64_t furthest_ = -1;  // global step that a session began with
  bool data_ended_ = false;
  std::string end_of_data_ = "the data has ended";
  Status last_error_;  // of the last run; OK when it succeeded
  bool closed_ = false;
  Status closed_with_;
};

// --- MonitoredSession ----------------------------------------------------------------------------

StatusOr<std::unique_ptr<MonitoredSession>> MonitoredSession::Open(
    const Scope& scope, std::unique_ptr<SessionCreator> creator, MonitoredSessionOptions options) {
  MR_RETURN_IF_ERROR(scope.status());
  std::set<const SessionRunHook*> seen;
  for (const SessionRunHook* hook : options.hooks) {
    if (hook != nullptr && seen.insert(hook).second) continue;
    return InvalidArgument(kName, ": each hook must be given once, got ",
                           hook == nullptr ? "a null one" : absl::StrCat(hook->name(), " twice"));
  }
  auto loop = std::make_unique<MonitoredLoop>(scope, std::move(creator), std::move(options));
  std::unique_ptr<MonitoredSession> session(new MonitoredSession(std::move(loop)));
  MR_RETURN_IF_ERROR(session->loop_->Open());
  return session;
}

MonitoredSession::MonitoredSession(std::unique_ptr<MonitoredLoop> loop) : loop_(std::move(loop)) {}

MonitoredSession::~MonitoredSession() {
  loop_->Close(absl::OkStatus(), /*in_order=*/false).IgnoreError();
}

StatusOr<std::vector<Tensor>> MonitoredSession::Run(const std::vector<Feed>& feeds,
                                                    const std::vector<FetchName>& fetches,
                                                    const std::vector<FetchName>& targets) {
  return loop_->RunByName(feeds, fetches, targets, /*recover=*/true);
}

StatusOr<MonitoredStep> MonitoredSession::Prepare(const std::vector<FetchName>& feeds,
                                                  const std::vector<FetchName>& fetches,
                                                  const std::vector<FetchName>& targets) {
  return MonitoredStep(loop_.get(), loop_->hooked()->AddStep(feeds, fetches, targets));
}

Status MonitoredSession::RunStepFn(absl::FunctionRef<Status(const StepContext&)> step) {
  MR_RETURN_IF_ERROR(loop_->CheckMayRun());
  const StepContext context(loop_.get());
  return loop_->Recovering([&] { return step(context); });
}

bool MonitoredSession::ShouldStop() const { return loop_->ShouldStop(); }

Status MonitoredSession::Loop(absl::FunctionRef<Status()> body) {
  Status status;
  while (status.ok() && !ShouldStop()) status = body();
  return Close(status);
}

Status MonitoredSession::Close(const Status& status) {
  return loop_->Close(status, /*in_order=*/true);
}

Session* MonitoredSession::raw_session() const { return loop_->session(); }

int MonitoredSession::recoveries() const { return loop_->recoveries(); }

// --- What a program holds of it ------------------------------------------------------------------

Session* StepContext::session() const { return loop_->session(); }

StatusOr<std::vector<Tensor>> StepContext::RunWithHooks(
    const std::vector<Feed>& feeds, const std::vector<FetchName>& fetches,
    const std::vector<FetchName>& targets) const {
  return loop_->RunByName(feeds, fetches, targets, /*recover=*/false);
}

Status StepContext::RequestStop(absl::string_view reason) const {
  loop_->RequestStop(reason);
  return OutOfRange(reason);
}

Status MonitoredStep::RunInto(absl::Span<const Tensor> feeds, absl::Span<Tensor> results) const {
  if (loop_ == nullptr) {
    return FailedPrecondition("MonitoredStep: a step must be prepared before it is run, got none");
  }
  return loop_->Run(step_, feeds, results);
}

StatusOr<std::unique_ptr<MonitoredSession>> SingularMonitoredSession(
    const Scope& scope, SessionCreatorOptions options, MonitoredSessionOptions session) {
  session.max_recoveries = 0;
  return MonitoredSession::Open(
      scope, std::make_unique<ChiefSessionCreator>(scope, std::move(options)), std::move(session));
}

}  // namespace millrace
