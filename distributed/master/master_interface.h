// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_MASTER_INTERFACE_H_
#define MILLRACE_DISTRIBUTED_MASTER_MASTER_INTERFACE_H_

// MasterInterface: what a client asks of a master, in this process or over gRPC.
//
// The calls are those of TensorFlow's MasterService, with tensors next to the messages instead of
// in them. A client cannot tell the master of its own process (master.h) from one behind a network
// (grpc_master.h), but for what single methods say.
//
// Thread-safety: all methods, from any thread. They block; never on a poller.
// Failure: what the master says; Aborted for sessions that it does not know, Unavailable when it
// cannot be reached.

#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/transport/named_tensor.h"
#include "proto/master.pb.h"
#include "run/training_run.h"

namespace millrace {

inline constexpr int kDefaultMaxCachedPlans = 128;
// Held on all tasks together, besides the signature that was compiled last.
inline constexpr int64_t kMaxCachedPlanBytes = int64_t{256} << 20;

// Without its feeds (or fetches), which travel with it.
struct StepResult {
  std::vector<Tensor> fetches;  // in the order asked for
  tensorflow::RunMetadata metadata;
};

using StepDone = absl::AnyInvocable<void(StatusOr<StepResult>)>;

class MasterInterface {
 public:
  virtual ~MasterInterface() = default;

  // Waits for the session's tasks and run, at most `timeout`. The request's SessionTerms say for
  // which run the session is and how long its master keeps it unheard of; the response's, which run
  // it was.
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
  // replaces the callable's own; of it only timeout_in_ms travels over a network.
  virtual StatusOr<StepResult> RunCallable(const tensorflow::RunCallableRequest& request,
                                           absl::Span<const Tensor> feeds,
                                           const tensorflow::RunOptions* options) = 0;
  virtual Status ReleaseCallable(const tensorflow::ReleaseCallableRequest& request) = 0;
  virtual Status CloseSession(const tensorflow::CloseSessionRequest& request) = 0;
  virtual Status ListDevices(const tensorflow::ListDevicesRequest& request,
                             tensorflow::ListDevicesResponse* response) = 0;
  virtual Status Reset(const tensorflow::ResetRequest& request) = 0;
  // Tells the session's tasks that training of its run is over (RunSession::EndRun).
  virtual Status EndRun(const std::string& session_handle, const RunEnd& end) = 0;
  // RunSession::OtherTrainers.
  virtual StatusOr<RunTrainers> FindTrainers(const std::string& session_handle) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_MASTER_INTERFACE_H_
