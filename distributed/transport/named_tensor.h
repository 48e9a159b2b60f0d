// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_NAMED_TENSOR_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_NAMED_TENSOR_H_

// NamedTensor: a tensor on its way, under a rendezvous key or the name that a client gave it. Plain
// data.

#include <cstdint>
#include <string>

#include "core/tensor.h"

namespace millrace {

struct NamedTensor {
  std::string name;
  Tensor value;
  bool is_dead = false;
  // Of RecvTensor: when it left, in nanoseconds since the epoch by the sender's clock; 0: not told.
  int64_t sent_ns = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_NAMED_TENSOR_H_
