// SPDX-License-Identifier: Apache-2.0
// mnist_train: trains a convolutional network on handwritten digits, in one process or on a
// cluster.
//
// The same program is every task: TF_CONFIG says which (ps, master or chief, worker); without it
// one process does everything. Workers compute gradients independently (asynchronous data
// parallelism), or, with --sync, of one step together; the parameter servers hold the variables;
// the master also saves checkpoints, judges the model on the test images and exports it at the end.
//
//   mnist_train --max_steps=1000 --log_dir=run --model_dir=run/export
//   launch --ps=1 --master --workers=2 -- mnist_train --max_steps=1000 ...

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "examples/mnist/digits.h"
#include "examples/mnist/model.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "train/train.h"

ABSL_FLAG(int64_t, batch_size, 100, "images in a step");
ABSL_FLAG(int64_t, max_steps, 10000, "global steps of all workers together");
ABSL_FLAG(int64_t, checkpoint, 100, "global steps between checkpoints and evaluations");
ABSL_FLAG(std::string, log_dir, "mnist_logs", "directory of checkpoints; all tasks must see it");
ABSL_FLAG(std::string, model_dir, "",
          "directory of the exported SavedModel, which must not exist; empty: no export");
ABSL_FLAG(std::string, data, "",
          "directory with MNIST's idx files (plain or .gz); empty: digits that the program draws");
ABSL_FLAG(uint64_t, seed, 1, "of initial values, dropout, drawn digits and the order of images");
ABSL_FLAG(double, keep_prob, 0.5, "share of hidden units that dropout keeps in training");
ABSL_FLAG(bool, read_ahead, false,
          "on a cluster: variables come with the end of the step before (docs/training_runs.md)");
ABSL_FLAG(int64_t, sync, 0,
          "on a cluster: each global step applies the mean of so many trainers' gradients; 0: each "
          "trainer's by itself (docs/training_runs.md)");
ABSL_FLAG(int, max_recoveries, 20, "new sessions after a lost parameter server before giving up");

namespace millrace {
namespace {

Status CheckFlags() {
  const auto at_least_one = [](const char* flag, int64_t value) -> Status {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": must be >= 1, got ", value));
  };
  MR_RETURN_IF_ERROR(at_least_one("batch_size", absl::GetFlag(FLAGS_batch_size)));
  MR_RETURN_IF_ERROR(at_least_one("max_steps", absl::GetFlag(FLAGS_max_steps)));
  MR_RETURN_IF_ERROR(at_least_one("checkpoint", absl::GetFlag(FLAGS_checkpoint)));
  const double keep = absl::GetFlag(FLAGS_keep_prob);
  if (!(keep > 0 && keep <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("--keep_prob: must be in (0, 1], got ", keep));
  }
  if (absl::GetFlag(FLAGS_sync) < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--sync: must be >= 0, got %d", absl::GetFlag(FLAGS_sync)));
  }
  if (absl::GetFlag(FLAGS_sync) > 0 && absl::GetFlag(FLAGS_read_ahead)) {
    return absl::InvalidArgumentError(
        "--sync: must be given without --read_ahead, got both; what is read ahead is of the step "
        "before");
  }
  if (absl::GetFlag(FLAGS_log_dir).empty()) {
    return absl::InvalidArgumentError("--log_dir: must name a directory, got \"\"");
  }
  return absl::OkStatus();
}

// What one trainer (master or worker) does.
Status RunTrainer(const ClusterConfig& cluster, const std::string& target) {
  MR_ASSIGN_OR_RETURN(const DigitSets data,
                      LoadDigits(absl::GetFlag(FLAGS_data), absl::GetFlag(FLAGS_seed)));
  const int64_t batch_size = absl::GetFlag(FLAGS_batch_size);
  Scope root;
  root.SetGraphSeed(static_cast<int64_t>(absl::GetFlag(FLAGS_seed)));
  const MnistTrainer trainer =
      BuildMnistTrainer(root.WithDevice(ReplicaDeviceSetter(cluster)), absl::GetFlag(FLAGS_sync));
  BatchIterator batches(&data.train,
                        absl::GetFlag(FLAGS_seed) * 1000003 +
                            (cluster.is_chief() ? 0 : 1 + static_cast<uint64_t>(cluster.task())));
  const Tensor keep_prob =
      Tensor::Scalar<float>(static_cast<float>(absl::GetFlag(FLAGS_keep_prob)));
  const int64_t period = absl::GetFlag(FLAGS_checkpoint);
  const TrainOptions options = {
      .data = [&]() -> FeedsOrEnd {
        MR_ASSIGN_OR_RETURN(DigitBatch batch, batches.Next(batch_size));
        return Feeds{{trainer.images, std::move(batch.images)},
                     {trainer.labels, std::move(batch.labels)},
                     {trainer.keep_prob, keep_prob}};
      },
      .steps = absl::GetFlag(FLAGS_max_steps),
      .dir = absl::GetFlag(FLAGS_log_dir),
      .target = target,
      .is_chief = cluster.is_chief(),
      .read_ahead = absl::GetFlag(FLAGS_read_ahead),
      .loss = trainer.mean_loss,
      .eval = [&](Session* session) -> StatusOr<std::string> {
        MR_ASSIGN_OR_RETURN(const MnistScore score,
                            Evaluate(session, trainer, data.test, batch_size));
        return absl::StrFormat("Test loss: %f, Test accuracy: %.4f", score.mean_loss,
                               score.accuracy);
      },
      .eval_every = period,
      .save_every = period,
      .report_every = cluster.is_chief() ? 0 : period,  // the chief has its progress line
      .max_recoveries = absl::GetFlag(FLAGS_max_recoveries)};
  const absl::Time start = absl::Now();
  MR_ASSIGN_OR_RETURN(const TrainResult result, Train(root, trainer.train, options));
  LogInfo("Trained ", result.own_steps, " of ", result.global_step, " steps in ",
          absl::StrFormat("%.1f s", absl::ToDoubleSeconds(absl::Now() - start)));
  if (!cluster.is_chief() || absl::GetFlag(FLAGS_model_dir).empty()) return absl::OkStatus();
  // Without the dropout that the training graph has.
  MR_RETURN_IF_ERROR(ExportMnist(result.checkpoint, absl::GetFlag(FLAGS_model_dir)));
  std::printf("Exported %s from %s\n", absl::GetFlag(FLAGS_model_dir).c_str(),
              result.checkpoint.c_str());
  return absl::OkStatus();
}

Status Main() {
  MR_RETURN_IF_ERROR(CheckFlags());
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  if (!cluster.is_local()) {
    LogInfo("Task ", cluster.task_device(), " listens at ", server->target());
  }
  if (cluster.job() == "ps") {
    return server->Join({.exit_when_done = true, .logdir = absl::GetFlag(FLAGS_log_dir)});
  }
  return RunTrainer(cluster, server->target());
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains a network on handwritten digits, in one process or on a cluster (TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}
