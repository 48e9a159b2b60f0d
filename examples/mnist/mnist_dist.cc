// SPDX-License-Identifier: Apache-2.0
// mnist_dist: asynchronous data parallel training by hand, with a Supervisor.
//
// All tasks run this program; TF_CONFIG says which is which, and without it one process does
// everything. Parameter servers hold the variables; workers and the master compute gradients of
// batches of their own and update with each; the master, the chief, also initialises, saves every
// --checkpoint steps, judges the model, writes summaries, and exports at the end.
//
//   launch --ps=1 --master --workers=2 -- mnist_dist --max_steps=1000 --log_dir=run
//       --model_dir=model
//   tensorboard --logdir run
//   mnist_predict_meta --model_dir=model

#include <algorithm>
#include <memory>
#include <optional>
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
#include "proto/event.pb.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"
#include "saver/event_writer.h"
#include "saver/saver.h"
#include "train/supervisor.h"

namespace millrace {
namespace {

// New sessions after a lost parameter server before giving up.
constexpr int kMaxRecoveries = 20;

Status WriteSessionLog(EventWriter* events, tensorflow::SessionLog::SessionStatus status,
                       int64_t step) {
  tensorflow::SessionLog log;
  log.set_status(status);
  return events->AddSessionLog(log, step);
}

Status RunTrainer(const ArticleJob& job, const ClusterConfig& cluster, const std::string& target) {
  MR_ASSIGN_OR_RETURN(const DigitSets data, LoadDigits(job.data, job.seed));
  Scope root;
  root.SetGraphSeed(static_cast<int64_t>(job.seed));
  const ArticleGraph graph =
      BuildArticleGraph(root.WithDevice(ReplicaDeviceSetter(cluster)), job.batch_size);
  BatchIterator batches = BatchesOf(data, job, cluster);

  // Summaries and checkpoints by hand: the Supervisor's own services are off.
  Supervisor supervisor(root, {.is_chief = cluster.is_chief(),
                               .logdir = job.log_dir,
                               .global_step = graph.global_step,
                               .last_step = job.max_steps,
                               .save_model_period = absl::ZeroDuration()});
  MR_RETURN_IF_ERROR(supervisor.status());
  std::shared_ptr<EventWriter> events;
  if (cluster.is_chief()) {
    MR_ASSIGN_OR_RETURN(events, EventWriter::Open(job.log_dir));
    MR_ASSIGN_OR_RETURN(const auto graph_def, root.ToGraphDef());
    MR_RETURN_IF_ERROR(events->AddGraph(graph_def));
  }
  const auto show = [&](const std::string& summary, int64_t step) -> Status {
    MR_RETURN_IF_ERROR(events->AddSerializedSummary(summary, step));
    return events->Flush();
  };

  int64_t step = 0, reports = 0, own_steps = 0;
  std::optional<DigitBatch> batch;
  const auto begin = [&](Session*) -> Status {
    step = std::max<int64_t>(supervisor.first_step(), 0);
    reports = step / job.checkpoint;
    if (step >= job.max_steps) {  // an earlier run has done them
      supervisor.NothingToSave();
      supervisor.RequestStop();
    }
    return events == nullptr ? absl::OkStatus()
                             : WriteSessionLog(events.get(), tensorflow::SessionLog::START, step);
  };
  const auto train_step = [&](Session* session) -> StatusOr<bool> {
    if (!batch) {
      MR_ASSIGN_OR_RETURN(batch, batches.Next(job.batch_size));
    }
    // The step that is fetched with the update may be the one before it or after it, and others
    // count, too: it is good for reports and for the end, not for numbering updates.
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out,
                        session->Run({{graph.images, batch->images},
                                      {graph.labels, batch->labels},
                                      {graph.keep_prob, Tensor::Scalar<float>(0.5f)}},
                                     {graph.loss, graph.global_step.value}, {graph.train}));
    batch.reset();
    ++own_steps;
    step = out[1].scalar<int64_t>();
    MR_RETURN_IF_ERROR(CheckLossIsFinite(out[0], step));
    if (step > job.checkpoint * reports || step >= job.max_steps) {
      reports = (step + job.checkpoint - 1) / job.checkpoint;
      LogInfo("Step: ", step, ", Train loss: ", out[0].scalar<float>());
      if (cluster.is_chief()) {
        MR_RETURN_IF_ERROR(supervisor.Save(step).status());
        MR_RETURN_IF_ERROR(JudgeAndShow(session, graph, data.test, job.batch_size, step, show));
      }
    }
    return step < job.max_steps;
  };
  MR_RETURN_IF_ERROR(RunStepsWithRecovery(&supervisor, target, kMaxRecoveries, begin, train_step));
  LogInfo("This task did ", own_steps, " steps; all together were to do ", job.max_steps);

  if (cluster.is_chief() && supervisor.signal() == 0) {
    MR_ASSIGN_OR_RETURN(std::string checkpoint, supervisor.SaveLast());
    if (checkpoint.empty()) {
      checkpoint = LatestCheckpoint(FileSystem::Default(), job.log_dir).value_or("");
    }
    // The graph above names tasks of this cluster, which a program that predicts has not.
    MR_RETURN_IF_ERROR(ExportArticle(checkpoint, job.model_dir));
    LogInfo("Exported ", checkpoint, " to ", job.model_dir);
    MR_RETURN_IF_ERROR(WriteSessionLog(events.get(), tensorflow::SessionLog::STOP, step));
    MR_RETURN_IF_ERROR(events->Close());
  }
  supervisor.RequestStop();
  return supervisor.Stop();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains a network on handwritten digits with a Supervisor, in one process or on a cluster "
      "(TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::RunArticleTask(millrace::RunTrainer));
}
