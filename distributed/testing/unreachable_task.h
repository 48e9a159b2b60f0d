// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_UNREACHABLE_TASK_H_
#define MILLRACE_DISTRIBUTED_TESTING_UNREACHABLE_TASK_H_

// UnreachableTask: a WorkerControl that answers every call with Unavailable, at
// once; tests override the calls that they are about.
//
// Thread-safety: as WorkerControl. Lifetime: answers come before the calls return.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "distributed/transport/worker_control.h"
#include "run/training_run.h"

namespace millrace {

class UnreachableTask : public WorkerControl {
 public:
  explicit UnreachableTask(std::string task, std::string address = "ps.example:2222")
      : task_(std::move(task)), address_(std::move(address)) {}

  const std::string& task() const override { return task_; }
  const std::string& address() const override { return address_; }
  void GetStatus(const CallOptions&, std::vector<tensorflow::DeviceAttributes>*,
                 Done done) override {
    done(Gone());
  }
  void CreateWorkerSession(const CallOptions&, const SessionOrder&, Done done) override {
    done(Gone());
  }
  void DeleteWorkerSession(const CallOptions&, const std::string&, Done done) override {
    done(Gone());
  }
  void RenewSessions(const CallOptions&, absl::Span<const std::string>, std::vector<std::string>*,
                     Done done) override {
    done(Gone());
  }
  void FindRun(const CallOptions&, const std::string&, const std::string&, FoundRun*,
               Done done) override {
    done(Gone());
  }
  void EndRun(const CallOptions&, const std::string&, const RunEnd&, Done done) override {
    done(Gone());
  }
  void RegisterGraph(const CallOptions&, PartOrder, RegisteredPart*, Done done) override {
    done(Gone());
  }
  void DeregisterGraph(const CallOptions&, const std::string&, const std::string&,
                       Done done) override {
    done(Gone());
  }
  void CleanupAll(const CallOptions&, absl::Span<const std::string>, Done done) override {
    done(Gone());
  }

 protected:
  Status Gone() const { return absl::UnavailableError(absl::StrCat(task_, " is gone")); }

 private:
  const std::string task_, address_;
};

// Answers GetStatus only when it is cancelled: a task that is not there.
class AbsentTask : public UnreachableTask {
 public:
  using UnreachableTask::UnreachableTask;
  void GetStatus(const CallOptions& options, std::vector<tensorflow::DeviceAttributes>*,
                 Done done) override {
    asked.fetch_add(1);
    auto shared = std::make_shared<Done>(std::move(done));
    CancellationManager::Token token;
    if (!options.cancellation->Register(
            &token, [shared] { (*shared)(absl::CancelledError("cancelled")); })) {
      (*shared)(absl::CancelledError("cancelled"));
    }
  }
  std::atomic<int> asked{0};
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_UNREACHABLE_TASK_H_
