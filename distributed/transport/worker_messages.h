// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_MESSAGES_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_MESSAGES_H_

// Messages of steps of foreign masters: which fields are tensors, which net/tensor_coding.h reads
// and writes next to the message.
//
// Thread-safety: functions of their arguments. Failure: that of MessageWriter.

#include <utility>
#include <vector>

#include "distributed/transport/named_tensor.h"
#include "net/tensor_coding.h"

namespace millrace {

inline constexpr int kRunGraphSend = 3;      // RunGraphRequest.send
inline constexpr int kRunGraphRecv = 1;      // RunGraphResponse.recv
inline constexpr int kRecvTensorTensor = 1;  // RecvTensorResponse.tensor

inline std::vector<NamedTensor> ToNamed(std::vector<DecodedTensor> tensors) {
  std::vector<NamedTensor> result;
  for (DecodedTensor& tensor : tensors) {
    result.push_back({std::move(tensor.name), std::move(tensor.value), tensor.is_dead});
  }
  return result;
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_MESSAGES_H_
