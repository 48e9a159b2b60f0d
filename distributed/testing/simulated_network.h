// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_SIMULATED_NETWORK_H_
#define MILLRACE_DISTRIBUTED_TESTING_SIMULATED_NETWORK_H_

// SimulatedNetwork: the way of calls between the tasks of one simulation, with a network's faults:
// sessions, runs and graphs. Steps travel on links (simulated_links.h).
//
// It behaves as calls over gRPC do:
//   * a request travels, is done where it arrives, and its answer travels back; calls keep
//     no order;
//   * a call ends once, at its caller: by the answer, its deadline (DeadlineExceeded), its
//     cancellation (Cancelled), or the loss of the connection (Unavailable);
//   * when it ends before its answer, what still runs for it is cancelled where it arrived, later;
//   * who is silent for 30 s is taken for lost, by both sides (keepalive);
//   * a task that is not there refuses at once, or is waited for (wait_for_ready).
//
// Faults, each drawn from the seed: requests and answers that are lost, messages that take long and
// overtake others, links that are cut in one or both directions, tasks that end and begin anew.
//
// The trace has a line for each message and each end of a call: time, from, to, number of the call,
// what. It does not say what happens inside of a task between two of them.
//
// Threads: as Simulation, whose turns it uses. Lifetime: the simulation outlives it, and it the
// controls' users. Tasks are killed before their worker is destroyed. Failure: as WorkerControl.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "distributed/testing/simulation.h"
#include "distributed/transport/local_part.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/worker.h"

namespace millrace {

class Master;  // distributed/master/master.h

class SimulatedNetwork {
 public:
  // One life of a task.
  struct Life {
    std::string task;
    Simulation::Place* place = nullptr;
    Worker* worker = nullptr;
    Master* master = nullptr;          // null: it has none
    std::atomic<bool> is_over{false};  // relaxed: turns order it
    CancellationManager killed;        // started when it ends
  };
  struct Rates {
    double lost_request = 0, lost_answer = 0, long_delay = 0;
    absl::Duration usual_delay = absl::Milliseconds(3), longest_delay = absl::Seconds(90);
  };
  // Called when RUN is sent, when it has arrived, and when it was answered there (by the links).
  struct Observer {
    std::function<void(const Life& from, int64_t call)> step_begins;
    std::function<void(const Life& at, int64_t call)> step_arrives;
    std::function<void(const Life& at, int64_t call, const Status&)> step_answers;
    std::function<void(const Life& at, const SessionOrder&, const Status&)> session_opened;
    std::function<void(const Life& at, const std::string& session_handle, int64_t call)>
        step_of_session;
  };

  explicit SimulatedNetwork(Simulation* simulation) : simulation_(simulation) {}

  Rates rates;
  Observer observer;

  // A life of `task` that nobody can reach yet.
  std::shared_ptr<Life> Begin(const std::string& task);
  // Now it can be. The worker lives at life->place, at least until Kill.
  void Attach(const std::shared_ptr<Life>& life, Worker* worker);
  // The way from there to `task`, whoever that is at the time. Within a life it is a function call.
  std::shared_ptr<WorkerControl> WayTo(const std::shared_ptr<Life>& from, absl::string_view task);
  // How a master of this life has its own task's parts run.
  static std::shared_ptr<LocalPart> LocalPartOf(const std::shared_ptr<Life>& life);
  // Its calls end, those to it are lost. What is destroyed afterwards reaches nobody.
  void Kill(const std::shared_ptr<Life>& life);
  bool is_up(const std::string& task) const { return lives_.count(task) != 0; }

  // Nothing arrives from `from` at `to`.
  void Cut(const std::string& from, const std::string& to);
  void HealAll();

  int64_t calls_begun() const { return calls_begun_; }
  int64_t calls_ended() const { return calls_ended_; }
  // Numbers and methods of those that are under way; for messages.
  std::string OpenCalls() const;

 private:
  struct Call;
  class Way;
  friend class Way;

  using Served = std::function<void(const std::shared_ptr<Call>&)>;
  absl::Duration Delay();
  bool IsCut(const std::string& from, const std::string& to) const {
    return cut_.count({from, to}) != 0;
  }
  void TraceCall(const Call& call, absl::string_view what, bool back = false);
  void BeginCall(std::shared_ptr<Call> call, const CallOptions& options);
  void Arrive(const std::shared_ptr<Call>& call);
  // The answer to the caller; `take` gets it there.
  void SendBack(const std::shared_ptr<Call>& call, absl::string_view what,
                absl::AnyInvocable<void()> take);
  void Answer(const std::shared_ptr<Call>& call, const Status& status,
              absl::AnyInvocable<void()> take);
  // The connection of this call is lost; its caller notices later.
  void Lose(const std::shared_ptr<Call>& call, absl::Duration noticed_after,
            const std::string& why);
  void End(const std::shared_ptr<Call>& call, const Status& status, absl::string_view how);
  void CancelAtServer(const std::shared_ptr<Call>& call);

  Simulation* const simulation_;
  std::map<std::string, std::shared_ptr<Life>> lives_;
  std::map<std::pair<std::string, std::string>, int64_t> cut_;  // with the number of the cut
  int64_t last_cut_ = 0;
  std::map<int64_t, std::shared_ptr<Call>> open_;    // at their callers
  std::map<int64_t, std::shared_ptr<Call>> served_;  // arrived, and not answered
  int64_t calls_begun_ = 0, calls_ended_ = 0;
};

// "ps0" of "/job:ps/replica:0/task:0".
std::string ShortTask(absl::string_view task);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_SIMULATED_NETWORK_H_
