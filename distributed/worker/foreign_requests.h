// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_FOREIGN_REQUESTS_H_
#define MILLRACE_DISTRIBUTED_WORKER_FOREIGN_REQUESTS_H_

// What a foreign master asks of a worker in TensorFlow's messages, as orders of our own masters.
//
// Thread-safety: functions of their arguments. Failure: none; what cannot be done the worker says.

#include "distributed/transport/worker_control.h"
#include "proto/worker.pb.h"

namespace millrace {

// Its opener is the task of all its devices, when they are of one; it has no terms.
SessionOrder OrderOf(const tensorflow::CreateWorkerSessionRequest& request);

// Uses the request's graph up.
PartOrder OrderOf(tensorflow::RegisterGraphRequest&& request);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_FOREIGN_REQUESTS_H_
