// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_LOCAL_CLUSTER_H_
#define MILLRACE_TOOLS_LOCAL_CLUSTER_H_

// A cluster of one program on this machine: a process per task, each with its TF_CONFIG.
//
// A task:  starting -> running -> ended
//             ^____________|  (a dead ps, master or evaluator, while restarts are left)
//
// What happens when a task ends (dead: a signal or an exit code other than 0):
//   * it never got its port ("port is in use" in its last lines): all are killed and start again on
//     new ports, at most kMaxPortRetries times;
//   * a dead worker: reported, the job goes on;
//   * a dead ps, master (chief) or evaluator: started again with the same TF_CONFIG while
//     `restarts` are left; else the job ends with that task's code, without an evaluator it goes
//     on;
//   * the last trainer (master, chief, worker): ps get SIGTERM, the evaluator, which has the last
//     checkpoint to judge, is waited for; when no trainer has succeeded it gets SIGTERM, too.
// With `max_workers` the number of workers may change while the job runs. All of them are in the
// cluster from the beginning, each with its port, and `workers` of them are started. SIGUSR1 to
// this process starts one more, the first that does not run and has not done its work; SIGUSR2 asks
// the last one that runs to end, with SIGTERM, unless only `workers` run. A worker that was asked
// fails no job. Without `max_workers` these two signals end the job, as they end any process.
//
// A signal to this process (Ctrl-C; one that comes before the first task starts none) is passed on
// to all tasks, once to each, and ends the job: the trainers and the evaluator get it first, so
// that they can save what the ps hold; the ps when these have ended. A second one kills all. A task
// that is asked to end and does not within `grace` is killed. Each task has a process group of its
// own, which is killed when the task has ended: nothing is left behind, and tasks die with this
// process.
//
// Several trainers without a ps would each train a model of its own: they are refused, unless
// `no_ps` says that this is no training. A chief
// without an evaluator is legal, and a program of TrainAndEvaluate then evaluates and exports
// nothing: the first line says so. (A master evaluates, unless MILLRACE_MASTER_AS_CHIEF=1 makes it
// a chief.)
//
// The result is 0 when the master and every worker and evaluator that was not killed succeeded (at
// least one trainer did), else the code of the first that did not: 128 + n for signal n. After a
// signal to this process it is what the tasks say, too: 0 when all had done their work, 143 of a
// chief that has saved and ended as it was asked, 128 of one that could not save. Then a worker or
// an evaluator that was killed counts like the others: it was not done.
//
// The tasks share the cores of this machine: each gets MILLRACE_NUM_THREADS by the rule of
// tools/task_threads.h, and one line says how many and why. They keep this process' limit of open
// files; its own is raised, as far as the system lets it, to what so many tasks need.
//
// Output: the tasks' lines, each once, with "[worker 0] " before them, and reports that begin with
// the name of the program that runs the cluster ("launch: "); a table of all tasks at the end says
// how and why each ended. With `show` only the lines of some tasks; of another one that fails, its
// last ones. On a terminal the last line says how far the job is: the progress of all trainers
// (tools/task_output.h), or, for programs that write none, how long it has run and which tasks do.
// Elsewhere that is said when no line was written for `silence`.
//
// Threads: one per process may run a cluster: it reads signals (signalfd) and restores what
// it changed. Failure: InvalidArgument for options, FailedPrecondition for more tasks than files
// may be open, Unavailable without free ports, Internal when the system refuses a process.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "tools/cluster_task.h"
#include "tools/task_record.h"

namespace millrace {

inline constexpr int kMaxPortRetries = 3;
// As long as cluster managers wait where nobody says otherwise.
inline constexpr absl::Duration kGrace = absl::Seconds(30);

// What a cluster is like at a moment.
struct LocalClusterView {
  std::vector<TaskRecord> tasks = {};
  // By a signal to this process.
  bool asked_to_end = false;
  // At the end of the job.
  std::optional<int> code = {};
};

// Hears what becomes of a cluster. Called by the thread that runs it, which waits.
class LocalClusterObserver {
 public:
  virtual ~LocalClusterObserver() = default;
  // Before the first task starts, when signals to this process are already the cluster's; after
  // tasks have started, ended or were asked to end; at last with the job's code.
  virtual void Changed(const LocalClusterView& view) = 0;
};

struct LocalClusterOptions {
  // Of the program that runs it, for reports and errors.
  std::string name = "launch";
  int ps = 0;
  // "master", "chief" or "" for none.
  std::string chief = {};
  int workers = 0;
  // 0: always `workers`.
  int max_workers = 0;
  // The program needs no ps, as batch_predict.
  bool no_ps = false;
  bool evaluator = false;
  // How often dead ps, masters and evaluators may start again, in all.
  int restarts = 0;
  // Whose lines are shown.
  TaskFilter show = {};
  // "" or a directory (created) for one file per task.
  std::string log_dir = {};
  // Whether a file that cannot be made there is an error; else the task has none, and a line says
  // so.
  bool needs_logs = true;
  std::string host = "127.0.0.1";
  // With how many each task computes; 0: as the environment says; none: see task_threads.h.
  std::optional<int> threads_per_task = {};
  // From a request to end to being killed.
  absl::Duration grace = kGrace;
  // Without a line of any task, until it is said which run.
  absl::Duration silence = absl::Minutes(1);
  // Program and arguments.
  std::vector<std::string> command = {};
  // "NAME=value": what each task has in its environment, besides what is inherited.
  std::vector<std::string> environment = {};
  // Where lines go; status lines are rewritten in place when it is a terminal.
  int output_fd = 1;
  // May be null; until RunLocalCluster returns.
  LocalClusterObserver* observer = nullptr;
};

// Runs the cluster to its end.
StatusOr<int> RunLocalCluster(const LocalClusterOptions& options);

// The value of TF_CONFIG for one task. `addresses`: job and its tasks' "host:port", in order.
std::string TfConfigText(
    const std::vector<std::pair<std::string, std::vector<std::string>>>& addresses,
    const std::string& job, int index);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_LOCAL_CLUSTER_H_
