// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/run_finder.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "distributed/master/task_calls.h"
#include "distributed/transport/timers.h"

namespace millrace {
namespace {

// How often the log names the tasks that do not know the run.
constexpr absl::Duration kLogPeriod = absl::Seconds(10);
// Between two rounds of questions: a chief that comes up with the others is noticed soon, one that
// does not costs little.
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
// One question.
constexpr absl::Duration kAskTimeout = absl::Seconds(10);
// Rounds in which tasks may disagree whether the run has ended: some seconds.
constexpr int kDisagreeingRounds = 8;

// What ends the wait from outside.
struct Stopper {
  Mutex mu;
  CondVar changed;
  Status stopped ABSL_GUARDED_BY(mu);
  CancellationManager calls;

  void Stop(const Status& status) {
    {
      MutexLock lock(&mu);
      if (stopped.ok()) stopped = status;
      changed.SignalAll();
    }
    calls.StartCancel();
  }
};

struct Round {
  std::set<std::string> ids;         // of those that have claimed runs
  std::vector<std::string> missing;  // tasks that do not know it, and why
  bool any_has_runs = false;
  int ended = 0;
  RunEnd end;
  TrainingRun found;
  bool superseded = false;
};

Round AskAll(absl::Span<const std::shared_ptr<Transport>> tasks, const TrainingRun& run,
             Timers* timers, Stopper* stopper) {
  std::vector<FoundRun> answers(tasks.size());
  // It lasts as long as one period of the log.
  TaskCalls calls(static_cast<int>(tasks.size()),
                  absl::StrCat("The search for run '", run.name, "'"), timers->clock());
  CallOptions options = CallWithin(kAskTimeout, timers);
  options.cancellation = &stopper->calls;
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks[i]->FindRun(options, run.name, run.id, &answers[i],
                      calls.Done(static_cast<int>(i), *tasks[i]));
  }
  const std::vector<Status>& statuses = calls.Wait();
  Round round;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (absl::IsUnimplemented(statuses[i])) continue;
    round.any_has_runs = true;
    const FoundRun& answer = answers[i];
    const std::string who = absl::StrCat(tasks[i]->task(), " at ", tasks[i]->address());
    if (!statuses[i].ok()) {
      round.missing.push_back(absl::StrCat(who, " (", statuses[i].message(), ")"));
    } else if (answer.state == FoundRun::State::kUnknown) {
      round.missing.push_back(who);
    } else if (answer.state == FoundRun::State::kSuperseded) {
      round.superseded = true;
    } else {
      round.found = answer.run;
      round.ids.insert(answer.run.id);
      if (answer.state == FoundRun::State::kEnded) {
        ++round.ended;
        round.end = answer.end;
      }
    }
  }
  return round;
}

StatusOr<std::string> Await(absl::Span<const std::shared_ptr<Transport>> tasks,
                            const TrainingRun& run, const AwaitOptions& options, Stopper* stopper) {
  Clock* const clock = options.clock;
  const std::string where = absl::StrCat("Session on ", options.own_task);
  const absl::Time deadline = clock->Now() + options.timeout;
  absl::Time next_log = clock->Now() + kLogPeriod;
  absl::Duration pause = kFirstPause;
  int disagreeing = 0;
  for (;;) {
    const Round round = AskAll(tasks, run, options.timers, stopper);
    {
      MutexLock lock(&stopper->mu);
      MR_RETURN_IF_ERROR(stopper->stopped);
    }
    if (!round.any_has_runs) {
      LogInfo(where, ": none of its tasks knows of training runs, run '", run.name,
              "' is in their default containers");
      return run.id;
    }
    if (round.superseded) {
      return absl::AbortedError(absl::StrCat(where, ": run '", run.name, "' (", run.id,
                                             ") must be the newest of its name, got one that "
                                             "another has superseded; look at its logdir again"));
    }
    if (round.ended > 0) {
      const bool agree = round.ids.size() == 1 && round.missing.empty() &&
                         round.ended == static_cast<int>(tasks.size());
      if (agree || ++disagreeing >= kDisagreeingRounds) {
        return RunEndedError(where, round.found, round.end);
      }
    } else if (round.missing.empty() && round.ids.size() == 1) {
      return *round.ids.begin();
    }
    const std::string why =
        round.missing.empty()
            ? absl::StrCat("the tasks have different ones: ", absl::StrJoin(round.ids, ", "))
            : absl::StrCat("not known to ", absl::StrJoin(round.missing, ", "));
    MutexLock lock(&stopper->mu);
    const absl::Time now = clock->Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(where, ": the chief of run '", run.name, "' must open a session within ",
                       absl::FormatDuration(options.timeout), ", got none: ", why));
    }
    if (now >= next_log) {
      LogInfo("CreateSession still waiting for the chief of run '", run.name, "': ", why);
      next_log = now + kLogPeriod;
    }
    const absl::Time wake = std::min(deadline, now + pause);
    while (stopper->stopped.ok() && clock->Now() < wake) {
      clock->WaitUntil(&stopper->changed, &stopper->mu, wake);
    }
    MR_RETURN_IF_ERROR(stopper->stopped);
    pause = std::min(pause * 1.5, kLongestPause);
  }
}

}  // namespace

StatusOr<std::string> AwaitRun(absl::Span<const std::shared_ptr<Transport>> tasks,
                               const TrainingRun& run, const AwaitOptions& options) {
  Stopper stopper;
  CancellationManager::Token shutdown_token, caller_token;
  if (options.shutdown != nullptr && !options.shutdown->Register(&shutdown_token, [&stopper] {
        stopper.Stop(
            absl::AbortedError("Session: the server was stopped while it waited for its run"));
      })) {
    return absl::AbortedError("Session: the server must be running, got one that has stopped");
  }
  StatusOr<std::string> id =
      absl::CancelledError("Session: its client has gone while the master waited for its run");
  const Status gone = id.status();
  if (options.caller == nullptr ||
      options.caller->Register(&caller_token, [&] { stopper.Stop(gone); })) {
    id = Await(tasks, run, options, &stopper);
    if (options.caller != nullptr) options.caller->Deregister(caller_token);
  }
  if (options.shutdown != nullptr) options.shutdown->Deregister(shutdown_token);
  return id;
}

}  // namespace millrace
