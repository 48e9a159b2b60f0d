// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_GRPC_MASTER_H_
#define MILLRACE_DISTRIBUTED_MASTER_GRPC_MASTER_H_

// A master in another process, over gRPC: the client's side of master_service.h.
//
// Fed and fetched tensors travel as slices of their own, next to the messages of TensorFlow's
// MasterService. Thread-safety and failure: master_interface.h.

#include <memory>

#include "distributed/cluster/lease_keeper.h"
#include "distributed/master/master_interface.h"
#include "net/rpc_channel.h"

namespace millrace {

// A LeaseKeeper can renew sessions on it.
class RemoteMaster : public MasterInterface, public SessionHost {};

std::shared_ptr<RemoteMaster> MakeGrpcMaster(std::shared_ptr<RpcChannel> channel);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_GRPC_MASTER_H_
