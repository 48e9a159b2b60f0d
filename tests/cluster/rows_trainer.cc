// SPDX-License-Identifier: Apache-2.0
//
// rows_trainer: a task of a cluster that counts a step for each row of its own finite data, with a
// MonitoredTrainingSession; for tests of how a run ends with its data.

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/hooks/monitored_training_session.h"

ABSL_FLAG(std::string, dir, "", "of the run");
ABSL_FLAG(int, rows, 100, "of this task");
ABSL_FLAG(int, row_ms, 0, "that a row takes");
ABSL_FLAG(int, trainers, 0, "of the cluster");
ABSL_FLAG(int, save_steps, 100, "global steps between checkpoints");

namespace millrace {
namespace {

Status Run() {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  // A trainer that dies is waited for as long as its lease.
  ServerOptions server_options;
  server_options.lease = absl::Seconds(6);
  server_options.lease_period = absl::Seconds(1);
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster, server_options));
  std::printf("listens on %s\n", server->target().c_str());
  std::fflush(stdout);
  const std::string dir = absl::GetFlag(FLAGS_dir);
  if (cluster.job() == "ps") return server->Join({.exit_when_done = true, .logdir = dir});
  Scope root;
  const Scope model = root.WithDevice(ReplicaDeviceSetter(cluster));
  const Output x = Placeholder(model.WithName("x"), DT_FLOAT, {});
  const Variable sum = MakeVariable(model.WithName("sum"), Const(model, 0.0f));
  const Variable step = GlobalStep(model);
  const Operation add = AssignAddVariableOp(model.WithName("add"), sum.handle, x);
  const Operation count =
      AssignAddVariableOp(model.WithName("count").ColocatedWith(step.handle.op()), step.handle,
                          Const(model.ColocatedWith(step.handle.op()), int64_t{1}));
  MonitoredTrainingSessionOptions options;
  options.target = server->target();
  options.is_chief = cluster.is_chief();
  options.checkpoint_dir = dir;
  options.save_checkpoint_every = absl::GetFlag(FLAGS_save_steps);
  options.num_trainers = absl::GetFlag(FLAGS_trainers);
  MR_ASSIGN_OR_RETURN(const auto session, MonitoredTrainingSession(root, options));
  int row = 0;
  return session->Loop([&]() -> Status {
    if (row == absl::GetFlag(FLAGS_rows)) return absl::OutOfRangeError("no more rows");
    absl::SleepFor(absl::Milliseconds(absl::GetFlag(FLAGS_row_ms)));
    MR_RETURN_IF_ERROR(session->Run({{x, Tensor::Scalar(1.0f)}}, {}, {add, count}).status());
    std::printf("row %d\n", ++row);
    std::fflush(stdout);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::ParseProgramFlags(argc, argv);
  return millrace::ReportedExitCode(argv[0], millrace::Run());
}
