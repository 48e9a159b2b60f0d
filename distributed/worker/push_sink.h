// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_PUSH_SINK_H_
#define MILLRACE_DISTRIBUTED_WORKER_PUSH_SINK_H_

// PushSink: where the tensors go that a step pushes to one task.
//
// Threads: OnTensor and OnTensorInLoop, any, several at once; OnDone is called once, or once more
// with an error. Lifetime: the step keeps it until the end.

#include <cstdint>

#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// By the sender's clock, in nanoseconds since the epoch.
struct SendTimes {
  int64_t ready_ns = 0;
  int64_t left_ns = 0;
};

class PushSink {
 public:
  virtual ~PushSink() = default;
  // Of a traced step: before OnTensor of the same index, by the same thread.
  virtual void OnSendTimes(uint64_t /*index*/, const SendTimes& /*times*/) {}
  // The tensor of key number `index` of the sorted keys (StepEdges::Peer::numbers). How many bytes
  // of it travel.
  virtual int64_t OnTensor(uint64_t index, Tensor value, bool is_dead) = 0;
  // The tensor of key number `index` of those in loops, in an iteration of a frame. It leaves at
  // once. Also after OnDone.
  virtual void OnTensorInLoop(uint64_t /*index*/, uint64_t /*frame_id*/, int64_t /*iteration*/,
                              Tensor /*value*/, bool /*is_dead*/) {}
  // More may take a while: what was given so far should leave now. Until this or the end a sink
  // may keep it.
  virtual void Flush() {}
  // The peer has received all that was given. Any thread; a step may fail meanwhile.
  virtual void OnAllReceived() {}
  // The end: after all tensors (but those of loops), or an error.
  virtual void OnDone(const Status& status) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_PUSH_SINK_H_
