// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_IN_PROCESS_CONTROL_H_
#define MILLRACE_DISTRIBUTED_WORKER_IN_PROCESS_CONTROL_H_

// The way to a worker of this process: calls are function calls, tensors share their buffers.
//
// Thread-safety: as the worker. Lifetime: the worker outlives both. Failure: what the worker
// answers.

#include <memory>
#include <string>

#include "distributed/transport/local_part.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/worker.h"

namespace millrace {

std::shared_ptr<WorkerControl> MakeInProcessControl(Worker* worker, const std::string& address);

// For the master of the same task.
std::shared_ptr<LocalPart> MakeLocalPart(Worker* worker);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_IN_PROCESS_CONTROL_H_
