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

  void GetStatus(const CallOptions&, tensorflow::GetStatusResponse* response, Done done) override {
    for (const tensorflow::DeviceAttributes& device : worker_->DeviceAttributes()) {
      *response->add_device_attributes() = device;
    }
    done(absl::OkStatus());
  }
  void CreateWorkerSession(const CallOptions&,
                           const tensorflow::CreateWorkerSessionRequest& request,
                           Done done) override {
    done(worker_->CreateWorkerSession(request));
  }
  void DeleteWorkerSession(const CallOptions&,
                           const tensorflow::DeleteWorkerSessionRequest& request,
                           Done done) override {
    done(worker_->DeleteWorkerSession(request));
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
  void RegisterGraph(const CallOptions&, const tensorflow::RegisterGraphRequest& request,
                     tensorflow::RegisterGraphResponse* response, Done done) override {
    done(worker_->RegisterGraph(request, nullptr, response));
  }
  void RegisterGraph(const CallOptions&, const tensorflow::RegisterGraphRequest& request,
                     std::unique_ptr<Graph> graph, tensorflow::RegisterGraphResponse* response,
                     Done done) override {
    done(worker_->RegisterGraph(request, std::move(graph), response));
  }
  void DeregisterGraph(const CallOptions&, const tensorflow::DeregisterGraphRequest& request,
                       Done done) override {
    done(worker_->DeregisterGraph(request));
  }
  void CleanupAll(const CallOptions&, const tensorflow::CleanupAllRequest& request,
                  Done done) override {
    const std::vector<std::string> containers(request.container().begin(),
                                              request.container().end());
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
