// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_IN_PROCESS_TRANSPORT_H_
#define MILLRACE_DISTRIBUTED_WORKER_IN_PROCESS_TRANSPORT_H_

// The way to a worker of this process: calls are function calls, tensors share their buffers.
//
// Thread-safety: as the worker. Lifetime: the worker outlives it. Failure: what the worker answers.

#include <memory>
#include <string>

#include "distributed/transport/transport.h"
#include "distributed/worker/worker.h"

namespace millrace {

std::shared_ptr<Transport> MakeInProcessTransport(Worker* worker, const std::string& address);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_IN_PROCESS_TRANSPORT_H_
