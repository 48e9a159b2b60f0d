// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_FORWARDING_CONTROL_H_
#define MILLRACE_DISTRIBUTED_TESTING_FORWARDING_CONTROL_H_

// ForwardingControl: a WorkerControl that hands each call on to another one, which To() names anew
// every time; tests override the calls that they are about.
//
// Thread-safety: as WorkerControl, when To() is. Lifetime: a call keeps what it was handed on to
// only until it has begun there.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "distributed/transport/worker_control.h"
#include "run/training_run.h"

namespace millrace {

class ForwardingControl : public WorkerControl {
 public:
  ForwardingControl(std::string task, std::string address)
      : task_(std::move(task)), address_(std::move(address)) {}

  const std::string& task() const override { return task_; }
  const std::string& address() const override { return address_; }
  bool is_local() const override { return To()->is_local(); }

  void GetStatus(const CallOptions& o, std::vector<tensorflow::DeviceAttributes>* devices,
                 Done d) override {
    To()->GetStatus(o, devices, std::move(d));
  }
  void CreateWorkerSession(const CallOptions& o, const SessionOrder& order, Done d) override {
    To()->CreateWorkerSession(o, order, std::move(d));
  }
  void DeleteWorkerSession(const CallOptions& o, const std::string& session, Done d) override {
    To()->DeleteWorkerSession(o, session, std::move(d));
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
  void RegisterGraph(const CallOptions& o, PartOrder order, RegisteredPart* part, Done d) override {
    To()->RegisterGraph(o, std::move(order), part, std::move(d));
  }
  void DeregisterGraph(const CallOptions& o, const std::string& session, const std::string& graph,
                       Done d) override {
    To()->DeregisterGraph(o, session, graph, std::move(d));
  }
  void CleanupAll(const CallOptions& o, absl::Span<const std::string> containers, Done d) override {
    To()->CleanupAll(o, containers, std::move(d));
  }

 protected:
  // Where the next call goes; never null.
  virtual std::shared_ptr<WorkerControl> To() const = 0;

 private:
  const std::string task_, address_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_FORWARDING_CONTROL_H_
