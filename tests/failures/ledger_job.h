// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_FAILURES_LEDGER_JOB_H_
#define MILLRACE_TESTS_FAILURES_LEDGER_JOB_H_

// LedgerJob: the processes of one training job, the networks between them, and what can happen to
// them.
//
//   LedgerJob job("ps_killed", {.workers = 1});
//   ASSERT_OK(job.Start());                          // ps-0, chief-0, worker-0
//   ASSERT_OK(job.AwaitSaved());
//   job.Kill("ps-0");
//   ASSERT_OK(job.StartTask("ps-0"));
//   ASSERT_OK(job.AwaitSteps("worker-0"));
//   job.ExpectEndsWell();                            // all leave with 0, and the ledger holds
//
// Each trainer reaches the ps, and the ps each trainer, through a TcpProxy of its own.
//
// Nothing here waits for less than kGuard, which no healthy job needs: tests assert what happens,
// and say how long it took ("MEASURED ..."), so that a busy machine is slow and not wrong.
//
// Threads: a job is used by the thread that made it; several jobs may run at once.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "tests/cluster/process.h"
#include "tests/failures/ledger.h"
#include "tests/failures/tcp_proxy.h"

namespace millrace {

inline constexpr absl::Duration kGuard = absl::Seconds(150);

struct LedgerJobOptions {
  int workers = 1;
  bool evaluator = false;
  // Trainers train synchronously, so many of them at most (ledger_train --sync); 0: they do not.
  int sync = 0;
  std::vector<std::string> args = {};                                  // of all tasks
  std::map<std::string, std::vector<std::string>> args_of = {};        // by task
  std::map<std::string, std::map<std::string, std::string>> env = {};  // by task
};

class LedgerJob {
 public:
  explicit LedgerJob(std::string name, LedgerJobOptions options = {});
  ~LedgerJob();
  LedgerJob(const LedgerJob&) = delete;
  LedgerJob& operator=(const LedgerJob&) = delete;

  // All tasks listen.
  Status Start();
  // One task, perhaps again; its former process must have ended, or is forgotten and goes on
  // (`beside`).
  Status StartTask(const std::string& task, bool beside = false);
  // The next process of `task` listens on another port; who dials through a proxy finds it there.
  // Not `through_proxies`: others still dial the former one.
  void MoveTask(const std::string& task, bool through_proxies);
  // Of the next process of `task`, instead of what the options say.
  void SetEnvironment(const std::string& task, std::map<std::string, std::string> env) {
    options_.env[task] = std::move(env);
  }
  Process* task(const std::string& task) { return processes_.at(task).get(); }
  // Former processes of StartTask(beside), the last one first.
  Process* former() { return former_.back().get(); }

  void Kill(const std::string& task);       // kill -9, and its end
  void Terminate(const std::string& task);  // SIGTERM, not its end
  void Pause(const std::string& task);      // SIGSTOP
  void Continue(const std::string& task);
  // Without an end: the job is over for the test.
  void KillAll();

  TcpProxy* proxy(const std::string& viewer, const std::string& target);
  // What `from` sends to `to`, and what it answers.
  void Set(const std::string& from, const std::string& to, TcpProxy::Flow flow);
  // Both ways.
  void SetBoth(const std::string& a, const std::string& b, TcpProxy::Flow flow);
  void Heal();

  // `trainer` completes so many steps that begin from now on. How long that took.
  StatusOr<absl::Duration> AwaitSteps(const std::string& trainer, int steps = 3);
  // Its chief commits a checkpoint that it begins from now on.
  StatusOr<absl::Duration> AwaitSaved(const std::string& chief = "chief-0");
  // A step of `trainer` fails from now on; its line in the ledger.
  StatusOr<std::string> AwaitLost(const std::string& trainer);
  // `trainer` gets a session from now on that came to its values so.
  Status AwaitSession(const std::string& trainer, absl::string_view how);
  // Steps that `trainer` has completed so far.
  int64_t StepsOf(const std::string& trainer) const;

  // `task` has said `text`.
  void ExpectOutput(const std::string& task, absl::string_view text);
  // Training ends.
  void SayEnough();
  // The process ends with `code`; how long that took.
  absl::Duration ExpectExit(const std::string& task, int code = 0);
  // Says enough; all tasks but `gone` end with 0, then the ledger holds.
  void ExpectEndsWell(const std::vector<std::string>& gone = {});
  // The most acknowledged steps that may be lost with the ps, to be asked for when it has been
  // killed: what trainers have heard since the newest committed checkpoint was begun, and a line
  // that each of them may still write.
  StatusOr<int64_t> StepsAtStake() const;
  // What the ledger says so far; while trainers step it may fail for what is under way.
  StatusOr<LedgerReport> Audit() const;
  // Every checkpoint agrees with what trainers say; prints the report. At most `rolled_back`
  // acknowledged steps were lost.
  LedgerReport ExpectLedgerHolds(int64_t rolled_back);

  // The newest checkpoint has every step that was acknowledged.
  void ExpectAcknowledgedAreSaved() const;

  // A figure for docs/failures.md.
  void Measured(absl::string_view what, absl::Duration time) const;

  const std::string& name() const { return name_; }
  std::string log_dir() const;
  std::string LedgerPath(const std::string& task) const;

 private:
  Status StartAll();
  std::string TfConfigOf(const std::string& task);
  std::map<std::string, std::string> Ledgers() const;  // of trainers, by their names
  StatusOr<std::vector<LedgerEvent>> EventsSince(const std::string& task, int64_t ns) const;

  const std::string name_;
  LedgerJobOptions options_;
  const std::string directory_;
  std::map<std::string, int> ports_;    // by task, where it listens
  std::map<std::string, int> dialled_;  // where others think it does, without a proxy
  std::map<std::pair<std::string, std::string>, std::unique_ptr<TcpProxy>> proxies_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Process>> former_;
};

// Runs cases beside each other, `at_once` at a time: they mostly wait.
struct LedgerCase {
  const char* name;
  void (*run)(const char* name);
};
void RunAtOnce(const std::vector<LedgerCase>& cases, int at_once = 3);

}  // namespace millrace

#endif  // MILLRACE_TESTS_FAILURES_LEDGER_JOB_H_
