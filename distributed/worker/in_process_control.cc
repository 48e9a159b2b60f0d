// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/in_process_control.h"

#include <utility>
#include <vector>

#include "distributed/transport/named_tensor.h"
#include "distributed/worker/step_edges.h"
#include "graph/graph.h"
#include "run/training_run.h"

namespace millrace {
namespace {

class InProcessControl : public WorkerControl {
 public:
  InProcessControl(Worker* worker, const std::string& address)
      : worker_(worker), address_(address) {}

  const std::string& task() const override { return worker_->task(); }
  const std::string& address() const override { return address_; }
  bool is_local() const override { return true; }

  void GetStatus(const CallOptions&, std::vector<tensorflow::DeviceAttributes>* devices,
                 Done done) override {
    *devices = worker_->DeviceAttributes();
    done(absl::OkStatus());
  }
  void CreateWorkerSession(const CallOptions&, const SessionOrder& order, Done done) override {
    done(worker_->CreateWorkerSession(order));
  }
  void DeleteWorkerSession(const CallOptions&, const std::string& session_handle,
                           Done done) override {
    done(worker_->DeleteWorkerSession(session_handle));
  }
  void RenewSessions(const CallOptions&, absl::Span<const std::string> handles,
                     std::vector<std::string>* unknown, Done done) override {
    *unknown = worker_->RenewSessions(handles);
    done(absl::OkStatus());
  }
  void FindRun(const CallOptions&, const std::string& name, const std::string& id, FoundRun* found,
               Done done) override {
    *found = worker_->FindRun(name, id);
    done(absl::OkStatus());
  }
  void EndRun(const CallOptions&, const std::string& session_handle, const RunEnd& end,
              Done done) override {
    done(worker_->EndRun(session_handle, end));
  }
  void RegisterGraph(const CallOptions&, PartOrder order, RegisteredPart* part,
                     Done done) override {
    StatusOr<RegisteredPart> registered = worker_->RegisterGraph(std::move(order));
    if (registered.ok()) *part = *std::move(registered);
    done(registered.status());
  }
  void DeregisterGraph(const CallOptions&, const std::string& session_handle,
                       const std::string& graph_handle, Done done) override {
    done(worker_->DeregisterGraph(session_handle, graph_handle));
  }
  void CleanupAll(const CallOptions&, absl::Span<const std::string> containers,
                  Done done) override {
    done(worker_->CleanupAll(containers));
  }

 private:
  Worker* const worker_;
  const std::string address_;
};

class WorkersLocalPart : public LocalPart {
 public:
  explicit WorkersLocalPart(Worker* worker) : worker_(worker) {}
  void Run(const CallOptions& options, const tensorflow::RunGraphRequest& graph,
           const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send, bool block,
           tensorflow::RunGraphResponse* response, std::vector<NamedTensor>* received,
           CallDone done) override {
    worker_->RunGraph(graph, step, EdgesBy::kLinks, send, block, options.deadline,
                      options.cancellation, response, received, std::move(done));
  }

 private:
  Worker* const worker_;
};

}  // namespace

std::shared_ptr<WorkerControl> MakeInProcessControl(Worker* worker, const std::string& address) {
  return std::make_shared<InProcessControl>(worker, address);
}

std::shared_ptr<LocalPart> MakeLocalPart(Worker* worker) {
  return std::make_shared<WorkersLocalPart>(worker);
}

}  // namespace millrace
