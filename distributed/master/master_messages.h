// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_MASTER_MESSAGES_H_
#define MILLRACE_DISTRIBUTED_MASTER_MASTER_MESSAGES_H_

// Messages between a client and a master that serves it: the numbers of the fields that hold
// tensors, which net/tensor_coding.h reads and writes next to the message.

namespace millrace {

inline constexpr int kRunStepFeed = 2;       // RunStepRequest.feed
inline constexpr int kRunStepTensor = 1;     // RunStepResponse.tensor
inline constexpr int kRunCallableFeed = 3;   // RunCallableRequest.feed
inline constexpr int kRunCallableFetch = 1;  // RunCallableResponse.fetch

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_MASTER_MESSAGES_H_
