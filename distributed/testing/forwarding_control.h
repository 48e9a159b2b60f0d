// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_FORWARDING_CONTROL_H_
#define MILLRACE_DISTRIBUTED_TESTING_FORWARDING_CONTROL_H_

// ForwardingControl: a WorkerControl that hands each call on to another one, which To() names anew
// every time; tests override the calls that they are about.
//
// Each form of a call is handed on as it is: who overrides RegisterGraph overrides the form that
// masters call, which has the graph beside the request.
//
// Thread-safety: as WorkerControl, when To() is. Lifetime: a call keeps what it was handed on to
// only until it has begun there.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "distributed/transport/worker_control.h"
#include "graph/graph.h"
#include "run/training_run.h"

namespace millrace {

class ForwardingControl : public WorkerControl {
 public:
  ForwardingControl(std::string task, std::string address)
      : task_(std::move(task)), address_(std::move(address)) {}

  const std::string& task() const override { return task_; }
  const std::string& address() const override { return address_; }
  bool is_local() const override { return To()->is_local(); }

  void GetStatus(const CallOptions& o, tensorflow::GetStatusResponse* r, Done d) override {
    To()->GetStatus(o, r, std::move(d));
  }
  void CreateWorkerSession(const CallOptions& o, const tensorflow::CreateWorkerSessionRequest& r,
                           Done d) override {
    To()->CreateWorkerSession(o, r, std::move(d));
  }
  void DeleteWorkerSession(const CallOptions& o, const tensorflow::DeleteWorkerSessionRequest& r,
                           Done d) override {
    To()->DeleteWorkerSession(o, r, std::move(d));
  }
  void RenewSessions(const CallOptions& o, absl::Span<const std::string> handles,
                     std::vector<std::string>* unknown, Done d) override {
    To()->RenewSessions(o, handles, unknown, std::move(d));
  }
  void FindRun(const CallOptions& o, const std::string& name, const std::string& id,
               FoundRun* found, Done d) override {
    To()->FindRun(o, name, id, found, std::move(d));
  }
  void EndRun(const CallOptions& o, const std::string& handle, const RunEnd& end, Done d) override {
    To()->EndRun(o, handle, end, std::move(d));
  }
  void RegisterGraph(const CallOptions& o, const tensorflow::RegisterGraphRequest& r,
                     tensorflow::RegisterGraphResponse* s, Done d) override {
    To()->RegisterGraph(o, r, s, std::move(d));
  }
  void RegisterGraph(const CallOptions& o, const tensorflow::RegisterGraphRequest& r,
                     std::unique_ptr<Graph> graph, tensorflow::RegisterGraphResponse* s,
                     Done d) override {
    To()->RegisterGraph(o, r, std::move(graph), s, std::move(d));
  }
  void DeregisterGraph(const CallOptions& o, const tensorflow::DeregisterGraphRequest& r,
                       Done d) override {
    To()->DeregisterGraph(o, r, std::move(d));
  }
  void CleanupAll(const CallOptions& o, const tensorflow::CleanupAllRequest& r, Done d) override {
    To()->CleanupAll(o, r, std::move(d));
  }

 protected:
  // Where the next call goes; never null.
  virtual std::shared_ptr<WorkerControl> To() const = 0;

 private:
  const std::string task_, address_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_FORWARDING_CONTROL_H_
