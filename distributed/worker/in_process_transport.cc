// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/in_process_transport.h"

#include <utility>
#include <vector>

#include "core/tensor.h"
#include "distributed/worker/step_edges.h"
#include "graph/graph.h"
#include "run/training_run.h"

namespace millrace {
namespace {

class InProcessTransport : public Transport {
 public:
  InProcessTransport(Worker* worker, const std::string& address)
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
  void RunGraph(const CallOptions& options, const tensorflow::RunGraphRequest& graph,
                const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send,
                bool block, tensorflow::RunGraphResponse* response,
                std::vector<NamedTensor>* received, Done done) override {
    worker_->RunGraph(graph, step, EdgesBy::kLinks, send, block, options.deadline,
                      options.cancellation, response, received, std::move(done));
  }
  void RecvTensor(const CallOptions& options, const tensorflow::RecvTensorRequest& request,
                  NamedTensor* tensor, Done done) override {
    worker_->RecvTensor(
        request, options.cancellation,
        [tensor, done = std::move(done)](const Status& status, Tensor value, bool is_dead) mutable {
          tensor->value = std::move(value);
          tensor->is_dead = is_dead;
          done(status);
        });
  }

 private:
  Worker* const worker_;
  const std::string address_;
};

}  // namespace

std::shared_ptr<Transport> MakeInProcessTransport(Worker* worker, const std::string& address) {
  return std::make_shared<InProcessTransport>(worker, address);
}

}  // namespace millrace
