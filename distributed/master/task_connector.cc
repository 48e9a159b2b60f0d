// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/task_connector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/refusal.h"
#include "distributed/master/task_calls.h"

namespace millrace {
namespace {

// One attempt to reach a task that is not there yet.
constexpr absl::Duration kConnectAttempt = absl::Seconds(10);
constexpr absl::Duration kConnectPause = absl::Milliseconds(100);
// A task that has just said that it is there may open a session so long, also when that took all of
// the time.
constexpr absl::Duration kLeastOpening = absl::Seconds(1);

using Devices = std::vector<tensorflow::DeviceAttributes>;

// What the attempts to reach several tasks share; they may end after the wait for them.
struct Attempts {
  struct Task {
    std::shared_ptr<WorkerControl> control;
    bool asked = false;
    bool answered = false;
    absl::Time next_attempt = absl::InfinitePast();
    std::string last_error = "no answer yet";
    std::shared_ptr<Devices> devices;
    Status refusal;  // it will not let us in
    // What it says is what a task of another release says, or another program: one that is about to
    // leave the port, or a proxy whose task is not there. While a job is replaced, its old tasks
    // are there a little longer, and others come.
    bool is_of_other_release = false;
    bool is_told = false;  // the log has said so

    void Hear(const Status& answer) {
      // Tasks of other releases look at the version before they look for the method.
      if (absl::IsUnimplemented(answer)) {
        last_error =
            absl::StrCat("GetStatus: the task must be one of Millrace, got another program",
                         answer.message().empty() ? "" : ": ", answer.message());
      }
      is_of_other_release =
          !IsRefusal(answer) && (TellsOfOtherRelease(answer) || absl::IsUnimplemented(answer));
      if (is_of_other_release) return;
      if (IsRefusal(answer) || absl::IsFailedPrecondition(answer)) refusal = answer;
    }
  };
  explicit Attempts(std::shared_ptr<EndableWait::Shared> w) : wait(std::move(w)) {}

  const std::shared_ptr<EndableWait::Shared> wait;
  Mutex mu;
  std::vector<Task> tasks ABSL_GUARDED_BY(mu);
};

// Asks one task that is not being asked.
void Ask(const std::shared_ptr<Attempts>& attempts, size_t i, const AwaitOptions& await) {
  std::shared_ptr<WorkerControl> control;
  std::shared_ptr<Devices> devices;
  {
    MutexLock lock(&attempts->mu);
    control = attempts->tasks[i].control;
    devices = attempts->tasks[i].devices;
  }
  CallOptions options = CallWithin(kConnectAttempt, await.timers);
  options.cancellation = attempts->wait->calls();
  options.asks_for_refusal = true;
  control->GetStatus(
      options, devices.get(), [attempts, devices, clock = await.clock, i](const Status& answer) {
        {
          MutexLock lock(&attempts->mu);
          Attempts::Task& task = attempts->tasks[i];
          MR_DCHECK(task.asked && !task.answered,
                    "one question at a time, and none after the answer");
          task.asked = false;
          task.answered = answer.ok() && !devices->empty();
          task.last_error = std::string(answer.ok() && devices->empty() ? "it named no devices"
                                                                        : answer.message());
          task.next_attempt = clock->Now() + kConnectPause;
          task.Hear(answer);
        }
        attempts->wait->Wake();
      });
}

// Until all have answered.
Status AwaitAnswers(const std::shared_ptr<Attempts>& attempts, const AwaitOptions& options,
                    EndableWait* wait) {
  Clock* const clock = options.clock;
  const absl::Time deadline = clock->Now() + options.timeout;
  for (;;) {
    // Calls are begun without the lock: an answer may come in this thread.
    std::vector<size_t> to_ask;
    std::vector<std::string> missing;
    absl::Time wake = std::min(deadline, wait->next_say());
    {
      MutexLock lock(&attempts->mu);
      const absl::Time now = clock->Now();
      for (size_t i = 0; i < attempts->tasks.size(); ++i) {
        Attempts::Task& task = attempts->tasks[i];
        if (task.answered) continue;
        if (!task.refusal.ok()) return FromTask(task.control->task(), task.refusal);
        missing.push_back(Whereabouts(*task.control));
        if (task.is_of_other_release && !std::exchange(task.is_told, true)) {
          LogWarning("Session on ", options.own_task, ": waits for another task at the place of ",
                     missing.back(),
                     ", which is of another release, or another program: ", task.last_error);
        }
        if (task.asked) continue;
        if (task.next_attempt <= now) {
          task.asked = true;
          task.devices = std::make_shared<Devices>();
          to_ask.push_back(i);
        } else {
          wake = std::min(wake, task.next_attempt);
        }
      }
      if (missing.empty()) return absl::OkStatus();
      MR_RETURN_IF_ERROR(wait->ended());
      if (wait->IsTimeToSay()) {
        for (const std::string& task : missing) {
          LogInfo("CreateSession still waiting for response from worker: ", task);
        }
      }
      if (now >= deadline) {
        const auto find = [&tasks = attempts->tasks](auto is) {
          return std::find_if(tasks.begin(), tasks.end(), is);
        };
        auto first = find([](const Attempts::Task& task) { return task.is_of_other_release; });
        if (first == attempts->tasks.end()) {
          first = find([](const Attempts::Task& task) { return !task.answered; });
        }
        return absl::DeadlineExceededError(
            absl::StrCat("Session on ", options.own_task, ": all its tasks must answer within ",
                         absl::FormatDuration(options.timeout), ", got none from ",
                         absl::StrJoin(missing, ", "), " (", first->last_error, ")"));
      }
    }
    if (to_ask.empty()) MR_RETURN_IF_ERROR(wait->Until(wake));
    for (const size_t i : to_ask) Ask(attempts, i, options);
  }
}

// Where worker sessions are kept.
class WorkerHost : public SessionHost {
 public:
  WorkerHost(std::shared_ptr<WorkerControl> task, Timers* timers)
      : task_(std::move(task)), timers_(timers) {}
  const std::string& name() const override { return task_->task(); }
  void Renew(const std::vector<std::string>& handles, absl::Duration timeout,
             Renewed done) override {
    auto unknown = std::make_shared<std::vector<std::string>>();
    std::vector<std::string>* const result = unknown.get();
    task_->RenewSessions(CallWithin(timeout, timers_), handles, result,
                         [unknown = std::move(unknown), done = std::move(done)](
                             const Status& status) mutable { done(status, *unknown); });
  }
  void End(const std::string& handle, absl::Duration timeout, Done done) override {
    task_->DeleteWorkerSession(CallWithin(timeout, timers_), handle, std::move(done));
  }

 private:
  const std::shared_ptr<WorkerControl> task_;
  Timers* const timers_;
};

}  // namespace

StatusOr<std::vector<ReachedTask>> AwaitTasks(
    absl::Span<const std::shared_ptr<WorkerControl>> controls, const AwaitOptions& options) {
  EndableWait wait(options.ends, "its tasks", options.clock);
  const auto attempts = std::make_shared<Attempts>(wait.keep());
  {
    MutexLock lock(&attempts->mu);
    for (const auto& control : controls) attempts->tasks.emplace_back().control = control;
  }
  MR_RETURN_IF_ERROR(wait.ended());
  MR_RETURN_IF_ERROR(AwaitAnswers(attempts, options, &wait));
  std::vector<ReachedTask> result;
  MutexLock lock(&attempts->mu);
  for (const Attempts::Task& task : attempts->tasks) {
    MR_DCHECK(task.answered, "AwaitAnswers is OK when all have answered, and none is asked again");
    result.push_back({task.control, *task.devices});
  }
  return result;
}

Status OpenWorkerSessions(absl::Span<const ReachedTask> tasks, const SessionOrder& order,
                          LeaseKeeper* keeper, const AwaitOptions& options,
                          const std::function<void(const OpenSession&)>& lost) {
  const std::string& handle = order.handle;
  SessionOrder unleased = order;
  unleased.terms.lease = absl::ZeroDuration();
  EndableWait wait(options.ends, "its tasks", options.clock);
  MR_RETURN_IF_ERROR(wait.ended());
  CallOptions call =
      CallWithin(std::clamp(options.timeout, kLeastOpening, kSetupTimeout), options.timers);
  call.cancellation = wait.calls();
  TaskCalls calls(static_cast<int>(tasks.size()),
                  absl::StrCat("Session ", handle, ", which opens on its tasks"), options.clock);
  for (size_t i = 0; i < tasks.size(); ++i) {
    WorkerControl& task = *tasks[i].control;
    task.CreateWorkerSession(call, task.is_local() ? unleased : order,
                             calls.Done(static_cast<int>(i), task));
  }
  const std::vector<Status>& statuses = calls.Wait();
  const auto failed =
      std::find_if(statuses.begin(), statuses.end(), [](const Status& s) { return !s.ok(); });
  if (failed == statuses.end()) {
    for (const ReachedTask& task : tasks) {
      if (task.control->is_local() || order.terms.lease <= absl::ZeroDuration()) continue;
      LeaseKeeper::Lost on_lost;
      if (lost) on_lost = [lost, session = OpenSession{task.control, handle}] { lost(session); };
      keeper->Keep(std::make_shared<WorkerHost>(task.control, options.timers), handle,
                   std::move(on_lost));
    }
    return absl::OkStatus();
  }
  // Also on the one that failed: perhaps only its answer was lost.
  for (const ReachedTask& task : tasks) {
    EndWorkerSession({task.control, handle}, keeper, options.timers);
  }
  MR_RETURN_IF_ERROR(wait.ended());
  return FromTask(tasks[static_cast<size_t>(failed - statuses.begin())].control->task(), *failed);
}

void EndWorkerSession(const OpenSession& session, LeaseKeeper* keeper, Timers* timers) {
  keeper->End(std::make_shared<WorkerHost>(session.task, timers), session.handle);
}

void CloseWorkerSessions(absl::Span<const OpenSession> sessions, LeaseKeeper* keeper, Clock* clock,
                         Timers* timers) {
  TaskCalls calls(static_cast<int>(sessions.size()), "Sessions that end on their tasks", clock);
  for (size_t i = 0; i < sessions.size(); ++i) {
    const auto& [task, handle] = sessions[i];
    keeper->End(std::make_shared<WorkerHost>(task, timers), handle,
                calls.Done(static_cast<int>(i), *task));
  }
  calls.Wait();
}

}  // namespace millrace
