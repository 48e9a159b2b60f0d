// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_FAULTY_WIRE_H_
#define MILLRACE_DISTRIBUTED_TESTING_FAULTY_WIRE_H_

// FaultyWire: a WorkerControl to another one that looks like a network and can be cut.
//
//   whole -> cut         nothing arrives: every call is Unavailable
//         -> deaf        calls arrive and are done, their answers are lost
//
// Only calls of sessions and runs can be deaf.
//
// Threads: all methods, from any thread. Lifetime: `to` outlives it.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "distributed/transport/worker_control.h"
#include "run/training_run.h"

namespace millrace {

class FaultyWire : public WorkerControl {
 public:
  enum class State { kWhole, kCut, kDeaf };
  explicit FaultyWire(std::shared_ptr<WorkerControl> to) : to_(std::move(to)) {}

  void Set(State state) { state_.store(state); }
  int renewals() const { return renewals_.load(); }

  const std::string& task() const override { return to_->task(); }
  const std::string& address() const override { return to_->address(); }

  void GetStatus(const CallOptions& o, std::vector<tensorflow::DeviceAttributes>* devices,
                 Done d) override {
    if (IsCut()) return d(Lost());
    to_->GetStatus(o, devices, std::move(d));
  }
  void CreateWorkerSession(const CallOptions& o, const SessionOrder& order, Done d) override {
    if (IsCut()) return d(Lost());
    to_->CreateWorkerSession(o, order, Heard(std::move(d)));
  }
  void DeleteWorkerSession(const CallOptions& o, const std::string& session, Done d) override {
    if (IsCut()) return d(Lost());
    to_->DeleteWorkerSession(o, session, Heard(std::move(d)));
  }
  void RenewSessions(const CallOptions& o, absl::Span<const std::string> handles,
                     std::vector<std::string>* unknown, Done d) override {
    if (IsCut()) return d(Lost());
    renewals_.fetch_add(1);
    to_->RenewSessions(o, handles, unknown, Heard(std::move(d)));
  }
  void FindRun(const CallOptions& o, const std::string& name, const std::string& id,
               FoundRun* found, Done d) override {
    if (IsCut()) return d(Lost());
    to_->FindRun(o, name, id, found, Heard(std::move(d)));
  }
  void EndRun(const CallOptions& o, const std::string& handle, const RunEnd& end, Done d) override {
    if (IsCut()) return d(Lost());
    to_->EndRun(o, handle, end, Heard(std::move(d)));
  }
  void RegisterGraph(const CallOptions& o, PartOrder order, RegisteredPart* part, Done d) override {
    if (IsCut()) return d(Lost());
    to_->RegisterGraph(o, std::move(order), part, std::move(d));
  }
  void DeregisterGraph(const CallOptions& o, const std::string& session, const std::string& graph,
                       Done d) override {
    if (IsCut()) return d(Lost());
    to_->DeregisterGraph(o, session, graph, std::move(d));
  }
  void CleanupAll(const CallOptions& o, absl::Span<const std::string> containers, Done d) override {
    if (IsCut()) return d(Lost());
    to_->CleanupAll(o, containers, std::move(d));
  }

 private:
  bool IsWhole() const { return state_.load() == State::kWhole; }
  bool IsCut() const { return state_.load() == State::kCut; }
  Status Lost() const {
    return absl::UnavailableError(absl::StrCat("the way to ", task(), " is cut"));
  }
  // By the state when the call began.
  Done Heard(Done done) const {
    if (IsWhole()) return done;
    return [done = std::move(done), lost = Lost()](const Status&) mutable { done(lost); };
  }

  const std::shared_ptr<WorkerControl> to_;
  std::atomic<State> state_{State::kWhole};
  std::atomic<int> renewals_{0};
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_FAULTY_WIRE_H_
