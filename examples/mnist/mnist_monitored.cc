// SPDX-License-Identifier: Apache-2.0
// mnist_monitored: what mnist_dist does, with a MonitoredTrainingSession: saving, reporting,
// guarding and ending are hooks, a lost session is made anew by itself, and the program's loop is
// one line.
//
//   launch --ps=1 --chief --workers=2 -- mnist_monitored --max_steps=1000 --log_dir=run

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/usage.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "examples/mnist/article.h"
#include "examples/mnist/digits.h"
#include "graph/scope.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"
#include "saver/event_writer.h"
#include "saver/saver.h"
#include "train/hooks/checkpoint_saver.h"
#include "train/hooks/logging_tensor.h"
#include "train/hooks/monitored_training_session.h"
#include "train/hooks/nan_tensor.h"
#include "train/hooks/progress_hook.h"
#include "train/hooks/stop_at_step.h"
#include "train/monitored_session.h"
#include "train/session_run_hook.h"

namespace millrace {
namespace {

// Judges each checkpoint and writes what TensorBoard shows of it.
class JudgeCheckpoints : public CheckpointSaverListener {
 public:
  JudgeCheckpoints(const ArticleGraph& graph, const Digits& test, const ArticleJob& job)
      : graph_(graph), test_(test), job_(job) {}

  Status Begin(HookSetup* setup) override {
    MR_ASSIGN_OR_RETURN(events_, EventWriter::Open(job_.log_dir));
    MR_ASSIGN_OR_RETURN(const auto graph_def, setup->scope().ToGraphDef());
    return events_->AddGraph(graph_def);
  }
  StatusOr<bool> AfterSave(Session* session, int64_t step, const std::string&) override {
    MR_RETURN_IF_ERROR(JudgeAndShow(session, graph_, test_, job_.batch_size, step,
                                    [this](const std::string& summary, int64_t at) -> Status {
                                      MR_RETURN_IF_ERROR(
                                          events_->AddSerializedSummary(summary, at));
                                      return events_->Flush();
                                    }));
    return false;
  }
  Status End(Session*, int64_t) override { return events_->Close(); }

 private:
  const ArticleGraph& graph_;
  const Digits& test_;
  const ArticleJob& job_;
  std::shared_ptr<EventWriter> events_;
};

Status RunTrainer(const ArticleJob& job, const ClusterConfig& cluster, const std::string& target) {
  MR_ASSIGN_OR_RETURN(const DigitSets data, LoadDigits(job.data, job.seed));
  Scope root;
  root.SetGraphSeed(static_cast<int64_t>(job.seed));
  const ArticleGraph graph =
      BuildArticleGraph(root.WithDevice(ReplicaDeviceSetter(cluster)), job.batch_size);
  BatchIterator batches = BatchesOf(data, job, cluster);

  StopAtStepHook stop({.last_step = job.max_steps});
  NanTensorHook nan(graph.loss);
  LoggingTensorHook log({.tensors = {{"Step", graph.global_step.value}, {"Train loss", graph.loss}},
                         .every = job.checkpoint});
  ProgressHook progress({.loss = graph.loss});
  JudgeCheckpoints judge(graph, data.test, job);
  MR_ASSIGN_OR_RETURN(const auto session,
                      MonitoredTrainingSession(root, {.target = target,
                                                      .is_chief = cluster.is_chief(),
                                                      .checkpoint_dir = job.log_dir,
                                                      .hooks = {&stop, &nan, &log, &progress},
                                                      .saving_listeners = {&judge},
                                                      .save_checkpoint_every = job.checkpoint}));
  int64_t own_steps = 0;
  MR_RETURN_IF_ERROR(session->Loop([&]() -> Status {
    MR_ASSIGN_OR_RETURN(DigitBatch batch, batches.Next(job.batch_size));
    MR_RETURN_IF_ERROR(session
                           ->Run({{graph.images, std::move(batch.images)},
                                  {graph.labels, std::move(batch.labels)},
                                  {graph.keep_prob, Tensor::Scalar<float>(0.5f)}},
                                 {}, {graph.train})
                           .status());
    ++own_steps;
    return absl::OkStatus();
  }));
  LogInfo("This task did ", own_steps, " steps; all together were to do ", job.max_steps);
  if (!cluster.is_chief()) return absl::OkStatus();
  const auto checkpoint = LatestCheckpoint(FileSystem::Default(), job.log_dir);
  MR_RETURN_IF_ERROR(ExportArticle(checkpoint.value_or(""), job.model_dir));
  LogInfo("Exported ", checkpoint.value_or(""), " to ", job.model_dir);
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains a network on handwritten digits with a MonitoredTrainingSession, in one process or "
      "on a cluster (TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::RunArticleTask(millrace::RunTrainer));
}
