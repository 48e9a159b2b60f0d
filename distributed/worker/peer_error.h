// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_PEER_ERROR_H_
#define MILLRACE_DISTRIBUTED_WORKER_PEER_ERROR_H_

// Errors of a step that come from the way to another task: they name the task. What a lost
// connection says knows at most an address.
//
// Thread-safety: functions of their arguments. Errors that were only passed on stay as they are.

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// "Push from <task>: <why>": it did not give its tensors.
Status PushFromError(absl::string_view task, const Status& why);
// "Push to <task>: <why>": it did not get them.
Status PushToError(absl::string_view task, const Status& why);
// "RecvTensor from <task>: <why>": it did not answer a request for one of a foreign master's step.
Status RecvTensorError(absl::string_view task, const Status& why);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_PEER_ERROR_H_
