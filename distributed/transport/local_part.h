// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_LOCAL_PART_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_LOCAL_PART_H_

// LocalPart: how a master has the part of a step run that belongs to its own task, by the worker of
// the same process.
//
// It is a function call, and no message: tensors share their buffers, and the step may run in the
// calling thread. Parts on other tasks begin with a RUN on a link (distributed/link).
//
// Thread-safety: Run, from any thread; it throws nothing. Lifetime: it outlives the masters that
// have it; requests and results outlive `done`.
// Failure: the error of the step is `done`'s status, never in the response.

#include <vector>

#include "absl/types/span.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/named_tensor.h"
#include "proto/worker.pb.h"

namespace millrace {

class LocalPart {
 public:
  virtual ~LocalPart() = default;

  // The step exchanges tensors with other tasks by links. `send` and `received` are by rendezvous
  // keys, or for a graph with _Arg and _Retval nodes by position, without names (null without a
  // result). With `block` the step runs to its end in the calling thread before this returns. The
  // request is `graph` and `step` together: what is the same for all steps of a graph (handles,
  // flags), and this step's id and options. They may be one message. `options.deadline` is that of
  // the step: it ends then, within kAnswerTime (runtime/engine/executor.h), and the error says what
  // it waited for.
  virtual void Run(const CallOptions& options, const tensorflow::RunGraphRequest& graph,
                   const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send,
                   bool block, tensorflow::RunGraphResponse* response,
                   std::vector<NamedTensor>* received, CallDone done) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_LOCAL_PART_H_
