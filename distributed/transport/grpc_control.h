// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_GRPC_CONTROL_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_GRPC_CONTROL_H_

// WorkerControl over an RpcChannel. Its other side is distributed/worker/worker_service.h; the
// services are service_names.h.
//
// Thread-safety: from any thread.

#include <memory>
#include <string>

#include "distributed/transport/worker_control.h"
#include "net/rpc_channel.h"

namespace millrace {

std::shared_ptr<WorkerControl> MakeGrpcControl(const std::string& task,
                                               std::shared_ptr<RpcChannel> channel);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_GRPC_CONTROL_H_
