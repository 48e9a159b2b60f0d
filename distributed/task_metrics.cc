// SPDX-License-Identifier: Apache-2.0
#include "distributed/task_metrics.h"

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/metrics.h"
#include "core/mutex.h"
#include "core/process_metrics.h"
#include "distributed/transport/peer_counts.h"

namespace millrace {
namespace {

using Emit = MetricRegistry::Emit;
using Labels = std::vector<std::string>;

// The tasks of this process. Locked while they are read: a task that goes waits for that.
struct Tasks {
  static Tasks& Of() {
    static Tasks* const tasks = new Tasks;
    return *tasks;
  }

  Tasks();

  template <typename F>
  void ForEach(const F& f) {
    MutexLock lock(&mu);
    for (const TaskMetrics* const task : live) f(task->figures());
  }
  template <typename F>
  void Add(const char* name, const char* help, MetricKind kind, Labels more_labels, F emit_all) {
    Labels labels = {"task"};
    labels.insert(labels.end(), more_labels.begin(), more_labels.end());
    ProcessMetrics().AddReader({name, help, std::move(labels)}, kind, [this, emit_all](Emit emit) {
      ForEach([&](const TaskFigures& figures) { emit_all(figures, emit); });
    });
  }
  // One number of a task.
  template <typename F>
  void AddOne(const char* name, const char* help, MetricKind kind, F value) {
    Add(name, help, kind, {}, [value](const TaskFigures& figures, Emit emit) {
      emit({figures.task}, static_cast<double>(value(figures)));
    });
  }
  // One number for each other task.
  void AddOfPeers(const char* name, const char* help, int64_t PeerCounts::*count,
                  double scale = 1) {
    Add(name, help, MetricKind::kCounter, {"peer"},
        [count, scale](const TaskFigures& figures, Emit emit) {
          for (const auto& [peer, counts] : figures.counts.peers) {
            emit({figures.task, peer}, static_cast<double>(counts.*count) * scale);
          }
        });
  }

  Mutex mu;
  std::set<const TaskMetrics*> live ABSL_GUARDED_BY(mu);
};

Tasks::Tasks() {
  constexpr MetricKind kCounter = MetricKind::kCounter;
  constexpr MetricKind kGauge = MetricKind::kGauge;
  AddOne("millrace_task_serving", "1 while the task takes sessions; 0 from a signal to its end.",
         kGauge, [](const TaskFigures& f) { return f.is_serving ? 1 : 0; });
  Add("millrace_rpc_calls_total", "Calls that were taken up.", kCounter, {"method"},
      [](const TaskFigures& f, Emit emit) {
        for (const auto& [method, counts] : f.counts.methods) {
          emit({f.task, method}, static_cast<double>(counts.calls));
        }
      });
  Add("millrace_sessions_open", "Sessions that are open, by the task whose master opened them.",
      kGauge, {"master"}, [](const TaskFigures& f, Emit emit) {
        std::map<std::string, int64_t> open;
        for (const TaskFigures::Session& session : f.sessions) ++open[session.master];
        for (const auto& [master, n] : open) emit({f.task, master}, static_cast<double>(n));
      });
  AddOne("millrace_steps_running", "Parts of steps that run here now.", kGauge,
         [](const TaskFigures& f) {
           int64_t running = 0;
           for (const TaskFigures::Session& session : f.sessions) running += session.running_steps;
           return running;
         });
  AddOfPeers("millrace_peer_bytes_sent_total", "Bytes of tensors of steps.",
             &PeerCounts::bytes_sent);
  AddOfPeers("millrace_peer_bytes_received_total", "Bytes of tensors of steps.",
             &PeerCounts::bytes_received);
  AddOfPeers("millrace_peer_messages_sent_total", "Messages with tensors.",
             &PeerCounts::messages_sent);
  AddOfPeers("millrace_peer_messages_received_total", "Messages with tensors.",
             &PeerCounts::messages_received);
  AddOfPeers("millrace_peer_queued_seconds_total", "What messages waited until they left.",
             &PeerCounts::queued_ns, 1e-9);
  AddOne("millrace_link_shared_bytes", "Of tensors that lie in memory shared with other tasks.",
         kGauge, [](const TaskFigures& f) { return f.counts.pooled_bytes; });
  AddOne("millrace_link_kept_tensors_total", "Tensors that left without their bytes: kept there.",
         kCounter, [](const TaskFigures& f) { return f.counts.kept_tensors; });
  AddOne("millrace_link_bytes_kept_for_peers", "Of tensors that this task keeps for others.",
         kGauge, [](const TaskFigures& f) { return f.counts.bytes_kept_for_peers; });
}

}  // namespace

TaskMetrics::TaskMetrics(Read read) : read_(std::move(read)) {
  Tasks& tasks = Tasks::Of();
  MutexLock lock(&tasks.mu);
  tasks.live.insert(this);
}

TaskMetrics::~TaskMetrics() {
  Tasks& tasks = Tasks::Of();
  MutexLock lock(&tasks.mu);
  tasks.live.erase(this);
}

Status HealthOfTasks() {
  Status health;
  Tasks::Of().ForEach([&](const TaskFigures& figures) {
    if (figures.is_serving) return;
    health.Update(absl::UnavailableError(absl::StrCat(figures.task, " is stopping")));
  });
  return health;
}

}  // namespace millrace
