// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_H_
#define MILLRACE_DISTRIBUTED_MASTER_H_

// Master: runs the steps of clients' graphs over the tasks of a cluster.
//
// A session has a graph and the tasks it needs. For each signature (feeds, fetches, targets) the
// graph is pruned, placed over the devices of these tasks and cut into one partition per task,
// which is registered there once; a step then is one RunGraph per task. Compiled signatures
// are kept, the least recently used go first.
//
// The tasks of a session: its own, those that the device filters admit (without filters: the
// parameter servers), and those that nodes name. Creating a session waits for each of them, in
// any order of start, and says every 10 s who is missing.
//
// A step ends with its first real error, after all its tasks have ended. A task that restarted
// makes its sessions Aborted for good: what its variables held is gone, a new session is needed.
//
// Thread-safety: all methods, from any thread. Those without `done` block; never on a poller.
// Lifetime: Shutdown() first; it returns when no step runs any more.
// Failure: Aborted for sessions that this process does not know.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster.h"
#include "distributed/transport.h"
#include "proto/master.pb.h"

namespace millrace {

inline constexpr int kDefaultMaxCachedPlans = 128;

// Without its feeds (or fetches), which go beside it.
struct StepResult {
  std::vector<Tensor> fetches;  // in the order asked for
  tensorflow::RunMetadata metadata;
};

// What clients call; in this process or over gRPC.
class MasterInterface {
 public:
  virtual ~MasterInterface() = default;

  // Waits for the session's tasks, at most `timeout`.
  virtual Status CreateSession(const tensorflow::CreateSessionRequest& request,
                               absl::Duration timeout, int max_cached_plans,
                               tensorflow::CreateSessionResponse* response) = 0;
  virtual Status ExtendSession(const tensorflow::ExtendSessionRequest& request,
                               tensorflow::ExtendSessionResponse* response) = 0;
  // `feeds` by the names that the client gave them, in place of request.feed.
  virtual StatusOr<StepResult> RunStep(const tensorflow::RunStepRequest& request,
                                       absl::Span<const NamedTensor> feeds) = 0;
  virtual Status MakeCallable(const tensorflow::MakeCallableRequest& request,
                              tensorflow::MakeCallableResponse* response) = 0;
  // `feeds` in the order of the callable's, in place of request.feed. `options` (may be null)
  // replaces the callable's own; only a master of this process gets it.
  virtual StatusOr<StepResult> RunCallable(const tensorflow::RunCallableRequest& request,
                                           absl::Span<const Tensor> feeds,
                                           const tensorflow::RunOptions* options) = 0;
  virtual Status ReleaseCallable(const tensorflow::ReleaseCallableRequest& request) = 0;
  virtual Status CloseSession(const tensorflow::CloseSessionRequest& request) = 0;
  virtual Status ListDevices(const tensorflow::ListDevicesRequest& request,
                             tensorflow::ListDevicesResponse* response) = 0;
  virtual Status Reset(const tensorflow::ResetRequest& request) = 0;
};

struct MasterOptions {
  std::string task;  // "/job:worker/replica:0/task:0"
  ClusterSpec cluster;
  // Used where a session says nothing.
  tensorflow::ConfigProto default_config;
  // The way to a task; null for one that is not in the cluster.
  std::function<std::shared_ptr<Transport>(absl::string_view task)> peer;
  Clock* clock = Clock::Real();
};

class Master : public MasterInterface {
 public:
  using StepDone = absl::AnyInvocable<void(StatusOr<StepResult>)>;

  explicit Master(MasterOptions options);
  ~Master() override;

  Status CreateSession(const tensorflow::CreateSessionRequest& request, absl::Duration timeout,
                       int max_cached_plans, tensorflow::CreateSessionResponse* response) override;
  Status ExtendSession(const tensorflow::ExtendSessionRequest& request,
                       tensorflow::ExtendSessionResponse* response) override;
  StatusOr<StepResult> RunStep(const tensorflow::RunStepRequest& request,
                               absl::Span<const NamedTensor> feeds) override;
  Status MakeCallable(const tensorflow::MakeCallableRequest& request,
                      tensorflow::MakeCallableResponse* response) override;
  StatusOr<StepResult> RunCallable(const tensorflow::RunCallableRequest& request,
                                   absl::Span<const Tensor> feeds,
                                   const tensorflow::RunOptions* options) override;
  Status ReleaseCallable(const tensorflow::ReleaseCallableRequest& request) override;
  Status CloseSession(const tensorflow::CloseSessionRequest& request) override;
  Status ListDevices(const tensorflow::ListDevicesRequest& request,
                     tensorflow::ListDevicesResponse* response) override;
  Status Reset(const tensorflow::ResetRequest& request) override;

  // As RunStep and RunCallable, but once the signature is compiled no thread waits. `cancellation`
  // (may be null) outlives `done`.
  void RunStepAsync(const tensorflow::RunStepRequest& request, absl::Span<const NamedTensor> feeds,
                    CancellationManager* cancellation, StepDone done);
  void RunCallableAsync(const tensorflow::RunCallableRequest& request,
                        absl::Span<const Tensor> feeds, CancellationManager* cancellation,
                        StepDone done);

  // Ends all sessions: their steps with `status`, waits for tasks too. Idempotent.
  void Shutdown(const Status& status);

 private:
  class Session;

  StatusOr<std::shared_ptr<Session>> FindSession(const std::string& handle,
                                                 absl::string_view hint = "") const;

  const MasterOptions options_;
  CancellationManager shutdown_;  // ends waits for tasks
  mutable Mutex mu_;
  Status shut_down_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_H_
