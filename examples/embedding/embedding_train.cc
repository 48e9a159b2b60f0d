// SPDX-License-Identifier: Apache-2.0
// embedding_train: a click model with two large embedding tables, in one process or on a cluster.
//
// The tables are partitioned over the parameter servers by rows; a step pulls only the rows of its
// batch and sends back only their gradients. No dense gradient of a table ever exists.
//
//   embedding_train --max_steps=2000
//   launch --ps=2 --master --workers=1 -- embedding_train --max_steps=2000

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "examples/embedding/clicks.h"
#include "graph/scope.h"
#include "layers/dense.h"
#include "layers/embedding.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adagrad.h"
#include "train/optimizer.h"
#include "train/progress.h"
#include "train/supervisor.h"

ABSL_FLAG(int64_t, num_ids, 1000000, "ids of each of the two columns");
ABSL_FLAG(int64_t, dimension, 16, "numbers in an embedding");
ABSL_FLAG(int, partitions, 2, "parts of each table");
ABSL_FLAG(int64_t, batch_size, 512, "examples in a step");
ABSL_FLAG(int64_t, max_steps, 2000, "global steps of all workers together");
ABSL_FLAG(double, learning_rate, 0.1, "of Adagrad");
ABSL_FLAG(uint64_t, seed, 1, "of initial values and examples");
ABSL_FLAG(int64_t, eval_examples, 51200,
          "held-out examples that the loss at the end is taken over");

namespace millrace {
namespace {

constexpr int64_t kHidden = 32;

struct ClickModel {
  Output users, items, clicks;  // placeholders
  Output loss;                  // mean cross entropy
  Operation train;
  Output step;  // int64 scalar: the global step, read after the step's own update
  Variable global_step;
};

Output EmbeddingOf(const Scope& scope, const std::string& name, Output ids) {
  const int64_t dimension = absl::GetFlag(FLAGS_dimension);
  const double bound = 1 / std::sqrt(static_cast<double>(dimension));
  return Embedding(scope.WithName(name), ids, absl::GetFlag(FLAGS_num_ids), dimension,
                   {.initializer = RandomUniformInitializer({.minval = -bound, .maxval = bound}),
                    .partitioner = FixedSizePartitioner(absl::GetFlag(FLAGS_partitions))});
}

ClickModel BuildClickModel(const Scope& scope) {
  ClickModel model;
  model.users = Placeholder(scope.WithName("users"), DT_INT64, {-1});
  model.items = Placeholder(scope.WithName("items"), DT_INT64, {-1});
  model.clicks = Placeholder(scope.WithName("clicks"), DT_FLOAT, {-1, 1});
  model.global_step = GlobalStep(scope);
  const Output user = EmbeddingOf(scope, "user", model.users);
  const Output item = EmbeddingOf(scope, "item", model.items);
  const Output both = ConcatV2(scope, {user, item, user * item}, Const(scope, int32_t{1}));
  const Output hidden = Dense(scope.WithName("hidden"), both, kHidden, {.activation = Relu});
  const Output logit = Dense(scope.WithName("logit"), hidden, 1);
  // Cross entropy of a sigmoid: log(1 + e^x) - x z.
  model.loss = ReduceMean(scope.WithName("loss"), Softplus(scope, logit) - logit * model.clicks);
  model.train = AdagradOptimizer({.learning_rate = absl::GetFlag(FLAGS_learning_rate)})
                    .Minimize(scope, model.loss, {.global_step = model.global_step});
  model.step = StepAfter(scope, model.train, model.global_step);
  return model;
}

std::vector<Feed> FeedsOf(const ClickModel& model, ClickBatch batch) {
  return {{model.users, std::move(batch.users)},
          {model.items, std::move(batch.items)},
          {model.clicks, std::move(batch.clicks)}};
}

Status TrainAndJudge(const ClusterConfig& cluster, const std::string& target) {
  Scope root;
  root.SetGraphSeed(static_cast<int64_t>(absl::GetFlag(FLAGS_seed)));
  const ClickModel model = BuildClickModel(root.WithDevice(ReplicaDeviceSetter(cluster)));
  SupervisorOptions options;
  options.is_chief = cluster.is_chief();
  options.global_step = model.global_step;
  Supervisor supervisor(root, options);
  MR_ASSIGN_OR_RETURN(const auto session, supervisor.ManagedSession(target));

  const int64_t max_steps = absl::GetFlag(FLAGS_max_steps);
  const uint64_t stream_number = cluster.is_chief() ? 1 : 2 + static_cast<uint64_t>(cluster.task());
  ClickStream stream(absl::GetFlag(FLAGS_num_ids),
                     absl::GetFlag(FLAGS_seed) * 1000003 + stream_number);
  Progress progress({.last_step = max_steps});
  int64_t step = 0;
  while (!supervisor.ShouldStop() && step < max_steps) {
    MR_ASSIGN_OR_RETURN(ClickBatch batch, stream.Next(absl::GetFlag(FLAGS_batch_size)));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out,
                        session->Run(FeedsOf(model, std::move(batch)), {model.loss, model.step}));
    step = std::max(step, out[1].scalar<int64_t>());
    MR_RETURN_IF_ERROR(CheckLossIsFinite(out[0], step));
    if (cluster.is_chief()) {
      progress.Update(std::min(step, max_steps), static_cast<double>(out[0].scalar<float>()));
    }
  }
  progress.EndLine();
  if (!cluster.is_chief() || supervisor.signal() != 0) return supervisor.Stop();

  // The same examples in every run, which no worker trains on: stream 0.
  ClickStream held_out(absl::GetFlag(FLAGS_num_ids), absl::GetFlag(FLAGS_seed) * 1000003);
  double sum = 0;
  int64_t batches = 0;
  for (int64_t done = 0; done < absl::GetFlag(FLAGS_eval_examples); ++batches) {
    const int64_t count = absl::GetFlag(FLAGS_batch_size);
    MR_ASSIGN_OR_RETURN(ClickBatch batch, held_out.Next(count));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out,
                        session->Run(FeedsOf(model, std::move(batch)), {model.loss}));
    sum += static_cast<double>(out[0].scalar<float>());
    done += count;
  }
  std::printf("Step: %lld, Held-out loss: %.5f\n", static_cast<long long>(step),
              sum / static_cast<double>(std::max<int64_t>(batches, 1)));
  return supervisor.Stop();
}

Status Main() {
  for (const auto& [flag, value] :
       {std::pair<const char*, int64_t>{"num_ids", absl::GetFlag(FLAGS_num_ids)},
        {"dimension", absl::GetFlag(FLAGS_dimension)},
        {"partitions", absl::GetFlag(FLAGS_partitions)},
        {"batch_size", absl::GetFlag(FLAGS_batch_size)},
        {"max_steps", absl::GetFlag(FLAGS_max_steps)}}) {
    if (value < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": must be >= 1, got ", value));
    }
  }
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  if (cluster.job() == "ps") return server->Join();
  return TrainAndJudge(cluster, server->target());
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Trains a click model with large embedding tables.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}
