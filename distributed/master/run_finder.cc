// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/run_finder.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/clock.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "distributed/master/endable_wait.h"
#include "distributed/master/task_calls.h"
#include "net/timers.h"
#include "run/run_id_text.h"

namespace millrace {
namespace {

// Between two rounds of questions, as train/session_manager.h waits: 10 ms at first, then an eighth
// of what was waited. A chief that comes up with the others is noticed soon, one that does not
// costs little.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr int kWaitParts = 8;
constexpr absl::Duration kLongestPause = absl::Seconds(1);
// One question.
constexpr absl::Duration kAskTimeout = absl::Seconds(10);
// How long tasks may disagree whether the run has ended.
constexpr absl::Duration kDisagreement = absl::Seconds(3);

struct Round {
  std::set<std::string> ids;         // of those that have claimed runs
  std::vector<std::string> missing;  // tasks that do not know it, and why
  int ended = 0;
  RunEnd end;
  TrainingRun found;
  bool superseded = false;
};

Round AskAll(absl::Span<const std::shared_ptr<WorkerControl>> tasks, const TrainingRun& run,
             Timers* timers, const EndableWait& wait) {
  std::vector<FoundRun> answers(tasks.size());
  // It lasts as long as one period of the log.
  TaskCalls calls(static_cast<int>(tasks.size()),
                  absl::StrCat("The search for run '", run.name, "'"), timers->clock());
  CallOptions options = CallWithin(kAskTimeout, timers);
  options.cancellation = wait.calls();
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks[i]->FindRun(options, run.name, run.id, &answers[i],
                      calls.Done(static_cast<int>(i), *tasks[i]));
  }
  const std::vector<Status>& statuses = calls.Wait();
  Round round;
  for (size_t i = 0; i < tasks.size(); ++i) {
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

}  // namespace

StatusOr<std::string> AwaitRun(absl::Span<const std::shared_ptr<WorkerControl>> tasks,
                               const TrainingRun& run, const AwaitOptions& options) {
  Clock* const clock = options.clock;
  EndableWait wait(options.ends, "its run", clock);
  const std::string where = absl::StrCat("Session on ", options.own_task);
  const absl::Time begun = clock->Now();
  const absl::Time deadline = begun + options.timeout;
  absl::Time disagree_since = absl::InfiniteFuture();
  for (;;) {
    MR_RETURN_IF_ERROR(wait.ended());
    const Round round = AskAll(tasks, run, options.timers, wait);
    MR_RETURN_IF_ERROR(wait.ended());
    const absl::Time now = clock->Now();
    if (round.superseded) {
      return absl::AbortedError(absl::StrCat(where, ": run '", run.name, "' (", RunIdText(run.id),
                                             ") must be the newest of its name, got one that "
                                             "another has superseded; look at its logdir again"));
    }
    MR_DCHECK(!round.missing.empty() || !round.ids.empty(),
              "each task names this run or is missing");
    if (round.ended == 0) disagree_since = absl::InfiniteFuture();
    if (round.ended > 0) {
      const bool agree = round.ids.size() == 1 && round.missing.empty() &&
                         round.ended == static_cast<int>(tasks.size());
      disagree_since = std::min(disagree_since, now);
      if (agree || now - disagree_since >= kDisagreement) {
        return RunEndedError(where, round.found, round.end);
      }
    } else if (round.missing.empty() && round.ids.size() == 1) {
      return *round.ids.begin();
    }
    const std::string why =
        round.missing.empty()
            ? absl::StrCat("the tasks have different ones: ", absl::StrJoin(round.ids, ", "))
            : absl::StrCat("not known to ", absl::StrJoin(round.missing, ", "));
    if (now >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(where, ": the chief of run '", run.name, "' must open a session within ",
                       absl::FormatDuration(options.timeout), ", got none: ", why));
    }
    if (wait.IsTimeToSay()) {
      LogInfo("CreateSession still waiting for the chief of run '", run.name, "': ", why);
    }
    const absl::Duration pause = std::clamp((now - begun) / kWaitParts, kFirstPause, kLongestPause);
    MR_RETURN_IF_ERROR(wait.Until(std::min(deadline, now + pause)));
  }
}

}  // namespace millrace
