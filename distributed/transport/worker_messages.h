// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_MESSAGES_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_MESSAGES_H_

// Messages between a GrpcTransport and the worker that serves it: which fields are tensors, which
// net/tensor_coding.h reads and writes next to the message.
//
// Thread-safety: functions of their arguments. Failure: that of MessageWriter.

#include <grpcpp/support/byte_buffer.h>

#include <utility>
#include <vector>

#include "core/status.h"
#include "distributed/transport/transport.h"
#include "net/tensor_coding.h"

namespace millrace {

inline constexpr int kRunGraphSend = 3;      // RunGraphRequest.send
inline constexpr int kRunGraphRecv = 1;      // RunGraphResponse.recv
inline constexpr int kRecvTensorTensor = 1;  // RecvTensorResponse.tensor
inline constexpr int kPulled = 1;            // PullResponse.tensor

// A message without tensors.
inline StatusOr<grpc::ByteBuffer> Encode(const google::protobuf::MessageLite& message) {
  MessageWriter writer;
  writer.AddMessage(message);
  return writer.Finish();
}

inline std::vector<NamedTensor> ToNamed(std::vector<DecodedTensor> tensors) {
  std::vector<NamedTensor> result;
  for (DecodedTensor& tensor : tensors) {
    result.push_back({std::move(tensor.name), std::move(tensor.value), tensor.is_dead});
  }
  return result;
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_MESSAGES_H_
