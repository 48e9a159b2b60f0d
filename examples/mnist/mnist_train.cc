// SPDX-License-Identifier: Apache-2.0
// mnist_train: trains a convolutional network on handwritten digits, in one process or on a
// cluster.
//
// The same program is every task: TF_CONFIG says which (ps, master or chief, worker); without it
// one process does everything. Workers compute gradients independently (asynchronous data
// parallelism); the parameter servers hold the variables; the master also saves checkpoints, judges
// the model on the test images and exports it at the end.
//
//   mnist_train --max_steps=1000 --log_dir=run --model_dir=run/export
//   launch --ps=1 --master --workers=2 -- mnist_train --max_steps=1000 ...

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "examples/mnist/digits.h"
#include "examples/mnist/model.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "train/progress.h"
#include "train/supervisor.h"

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
  if (absl::GetFlag(FLAGS_log_dir).empty()) {
    return absl::InvalidArgumentError("--log_dir: must name a directory, got \"\"");
  }
  return absl::OkStatus();
}

// What one trainer (master or worker) does.
class Trainer {
 public:
  Trainer(const ClusterConfig& cluster, std::string target)
      : cluster_(cluster), target_(std::move(target)) {}

  Status Run() {
    MR_ASSIGN_OR_RETURN(data_, LoadDigits(absl::GetFlag(FLAGS_data), absl::GetFlag(FLAGS_seed)));
    Scope root;
    root.SetGraphSeed(static_cast<int64_t>(absl::GetFlag(FLAGS_seed)));
    trainer_ = BuildMnistTrainer(root.WithDevice(ReplicaDeviceSetter(cluster_)));
    SupervisorOptions options;
    options.is_chief = cluster_.is_chief();
    options.logdir = absl::GetFlag(FLAGS_log_dir);
    options.global_step = trainer_.global_step;
    options.save_model_period = absl::ZeroDuration();  // this program saves by steps
    Supervisor supervisor(root, options);
    MR_RETURN_IF_ERROR(supervisor.status());

    batches_ = std::make_unique<BatchIterator>(
        &data_.train, absl::GetFlag(FLAGS_seed) * 1000003 +
                          (cluster_.is_chief() ? 0 : 1 + static_cast<uint64_t>(cluster_.task())));
    const absl::Time start = absl::Now();
    // A lost parameter server ends a session; with a new one training goes on from the checkpoint.
    MR_RETURN_IF_ERROR(
        RunWithRecovery(&supervisor, target_, absl::GetFlag(FLAGS_max_recoveries),
                        [&](Session* session) { return TrainInSession(&supervisor, session); }));
    LogInfo("Trained ", own_steps_, " of ", step_, " steps in ",
            absl::StrFormat("%.1f s", absl::ToDoubleSeconds(absl::Now() - start)));
    MR_RETURN_IF_ERROR(supervisor.Stop());
    if (!cluster_.is_chief() || absl::GetFlag(FLAGS_model_dir).empty()) return absl::OkStatus();
    MR_RETURN_IF_ERROR(ExportMnist(last_checkpoint_, absl::GetFlag(FLAGS_model_dir)));
    std::printf("Exported %s from %s\n", absl::GetFlag(FLAGS_model_dir).c_str(),
                last_checkpoint_.c_str());
    return absl::OkStatus();
  }

 private:
  Status TrainInSession(Supervisor* supervisor, Session* session) {
    const int64_t max_steps = absl::GetFlag(FLAGS_max_steps);
    const int64_t period = absl::GetFlag(FLAGS_checkpoint);
    const float keep = static_cast<float>(absl::GetFlag(FLAGS_keep_prob));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> first,
                        session->Run({}, {trainer_.global_step.value}));
    step_ = first[0].scalar<int64_t>();
    LogInfo("First step is ", step_);
    int64_t next_report = (step_ / period + 1) * period;
    Progress progress({.last_step = max_steps});
    while (!supervisor->ShouldStop() && step_ < max_steps) {
      MR_ASSIGN_OR_RETURN(DigitBatch batch, batches_->Next(absl::GetFlag(FLAGS_batch_size)));
      MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out,
                          session->Run({{trainer_.images, std::move(batch.images)},
                                        {trainer_.labels, std::move(batch.labels)},
                                        {trainer_.keep_prob, Tensor::Scalar<float>(keep)}},
                                       {trainer_.loss, trainer_.step}));
      // Other workers count, too: what this one saw last may be more.
      step_ = std::max(step_, out[1].scalar<int64_t>());
      ++own_steps_;
      const float loss = out[0].scalar<float>();
      MR_RETURN_IF_ERROR(CheckLossIsFinite(out[0], step_));
      if (cluster_.is_chief())
        progress.Update(std::min(step_, max_steps), static_cast<double>(loss));
      if (step_ < next_report) continue;
      next_report = (step_ / period + 1) * period;
      if (!cluster_.is_chief()) {
        std::printf("Step: %lld, Train loss: %f\n", static_cast<long long>(step_),
                    static_cast<double>(loss));
        std::fflush(stdout);
        continue;
      }
      if (step_ < max_steps) MR_RETURN_IF_ERROR(SaveAndJudge(supervisor, session, &progress));
    }
    if (cluster_.is_chief()) MR_RETURN_IF_ERROR(SaveAndJudge(supervisor, session, &progress));
    return absl::OkStatus();
  }

  Status SaveAndJudge(Supervisor* supervisor, Session* session, Progress* progress) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> now,
                        session->Run({}, {trainer_.global_step.value}));
    step_ = std::max(step_, now[0].scalar<int64_t>());
    MR_ASSIGN_OR_RETURN(last_checkpoint_,
                        supervisor->saver()->Save(session, supervisor->save_path(), step_));
    MR_ASSIGN_OR_RETURN(const MnistScore score,
                        Evaluate(session, trainer_, data_.test, absl::GetFlag(FLAGS_batch_size)));
    progress->EndLine();
    std::printf("Step: %lld, Test loss: %f, Test accuracy: %.4f\n", static_cast<long long>(step_),
                score.loss, score.accuracy);
    std::fflush(stdout);
    return absl::OkStatus();
  }

  const ClusterConfig& cluster_;
  const std::string target_;
  DigitSets data_;
  MnistTrainer trainer_;
  std::unique_ptr<BatchIterator> batches_;
  int64_t step_ = 0;
  int64_t own_steps_ = 0;
  std::string last_checkpoint_;
};

Status Main() {
  MR_RETURN_IF_ERROR(CheckFlags());
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  if (cluster.is_local()) return Trainer(cluster, "").Run();
  // A trainer that is told to stop in the middle of a job dies of the signal (143); a parameter
  // server has done its work then.
  if (cluster.job() == "ps") HandleTerminationSignals();
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  LogInfo("Task ", cluster.task_device(), " listens at ", server->target());
  if (cluster.job() == "ps") return server->Join();
  return Trainer(cluster, server->target()).Run();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains a network on handwritten digits, in one process or on a cluster (TF_CONFIG).");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  millrace::InitLogging(argv[0]);
  if (rest.size() > 1) {
    std::fprintf(stderr, "mnist_train: unknown argument '%s'; see --help\n", rest[1]);
    return 1;
  }
  const millrace::Status status = millrace::Main();
  if (status.ok()) return 0;
  std::fprintf(stderr, "mnist_train: %s\n", status.ToString().c_str());
  return millrace::ExitCode(status);
}
