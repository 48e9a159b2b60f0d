// SPDX-License-Identifier: Apache-2.0
//
// take_and_wait: one task of a cluster (TF_CONFIG), for tests that kill it. The ps serves until
// SIGTERM. A worker runs one step on the ps that takes an element of queue 'shards' and then waits
// for one of queue 'never'.

#include <cstdint>

#include "core/exit_code.h"
#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "ops/control/queue.h"
#include "runtime/session.h"

namespace millrace {
namespace {

Status Main() {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  if (cluster.job() == "ps") return server->Join();
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const auto take = [&](const char* name) {
    const Output queue = FIFOQueueV2(ps, {DT_INT32}, {.shared_name = name});
    return QueueDequeueV2(ps, queue, {DT_INT32})[0];
  };
  const Output shard = take("shards"), never = take("never");
  MR_ASSIGN_OR_RETURN(const auto session, NewSession({.target = server->target()}));
  MR_RETURN_IF_ERROR(session->Extend(root));
  return session->Run({}, {shard, never}).status();
}

}  // namespace
}  // namespace millrace

int main(int, char** argv) { return millrace::ReportedExitCode(argv[0], millrace::Main()); }
