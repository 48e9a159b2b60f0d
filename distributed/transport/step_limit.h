// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_STEP_LIMIT_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_STEP_LIMIT_H_

// The time limit of a step on the wire. TensorFlow's RunCallableRequest has no
// place for it, and the limit of the call itself would end it before the other side can say what
// the step waited for. So it is a field of its own in that message, which others skip; the call
// may take kStepAnswerSlack longer.
//
// Thread-safety: functions of their arguments. Failure: a request without the field has no limit.

#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "net/tensor_coding.h"

namespace millrace {

// From the end of a step's time to the end of the call: for kernels to answer, and for the way.
inline constexpr absl::Duration kStepAnswerSlack = absl::Seconds(5);

// Adds nothing for InfiniteFuture.
void AddStepLimit(absl::Time deadline, MessageWriter* writer);
// InfiniteFuture without a limit.
absl::Time StepDeadlineOf(const google::protobuf::Message& request);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_STEP_LIMIT_H_
