// SPDX-License-Identifier: Apache-2.0
//
// task: one task of a cluster (TF_CONFIG) that serves until SIGTERM, for tests that kill it.

#include "core/exit_code.h"
#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"

namespace millrace {
namespace {

Status Main() {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  return server->Join();
}

}  // namespace
}  // namespace millrace

int main(int, char** argv) { return millrace::ReportedExitCode(argv[0], millrace::Main()); }
