// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_TENSOR_SOURCE_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_TENSOR_SOURCE_H_

// TensorSource: a task that is asked for tensors one by one, by their keys.
//
// So the steps of foreign masters, which begin by TensorFlow's RunGraph, get what they receive. In
// steps of our own masters tensors are pushed on links (distributed/link).
//
// Thread-safety: RecvTensor, from any thread; it throws nothing. Lifetime: `tensor` outlives
// `done`; a source that is released meanwhile lets its calls end.
// Failure: what the worker says; Unavailable when it cannot be reached; Cancelled and
// DeadlineExceeded by the options of the call; ResourceExhausted without memory.

#include <memory>
#include <string>

#include "distributed/transport/call_options.h"
#include "distributed/transport/named_tensor.h"
#include "net/rpc_channel.h"
#include "proto/worker.pb.h"

namespace millrace {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual void RecvTensor(const CallOptions& options, const tensorflow::RecvTensorRequest& request,
                          NamedTensor* tensor, CallDone done) = 0;
};

// By WorkerService/RecvTensor.
std::shared_ptr<TensorSource> MakeGrpcTensorSource(std::shared_ptr<RpcChannel> channel);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_TENSOR_SOURCE_H_
