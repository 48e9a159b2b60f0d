// SPDX-License-Identifier: Apache-2.0
// wide_deep_train: a linear model of crossed categories and a network over embeddings, trained
// together (Cheng et al., 2016), in one process or on a cluster.
//
//   launch --ps=1 --workers=2 -- wide_deep_train --dir=run --export_to=income

#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_format.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "examples/wide_deep/census.h"
#include "graph/scope.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adagrad.h"
#include "train/train.h"

ABSL_FLAG(std::string, data, "",
          "directory with adult.data.csv and adult.test.csv; empty: people that the program draws");
ABSL_FLAG(std::string, dir, "wide_deep_run", "directory of checkpoints; all tasks must see it");
ABSL_FLAG(std::string, export_to, "", "directory of the exported SavedModel; empty: no export");
ABSL_FLAG(int64_t, steps, 2000, "global steps of all workers together");
ABSL_FLAG(uint64_t, seed, 1, "of initial values, drawn people and batches");

namespace millrace {
namespace {

constexpr size_t kBatch = 128;
constexpr int64_t kDimension = 8;

Status Run() {
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  if (cluster.job() == "ps") {
    return server->Join({.exit_when_done = true, .logdir = absl::GetFlag(FLAGS_dir)});
  }
  Census people = DrawCensus(20'000, seed), test = DrawCensus(2'000, seed + 1);
  if (const std::string data = absl::GetFlag(FLAGS_data); !data.empty()) {
    MR_ASSIGN_OR_RETURN(people, ReadCensus(data + "/adult.data.csv"));
    MR_ASSIGN_OR_RETURN(test, ReadCensus(data + "/adult.test.csv"));
  }
  Scope root;
  root.SetGraphSeed(static_cast<int64_t>(seed));
  const Scope model = root.WithDevice(ReplicaDeviceSetter(cluster));

  const Output numbers = Placeholder(model.WithName("numbers"), DT_FLOAT, {-1, kNumbers});
  const Output ids = Placeholder(model.WithName("categories"), DT_INT64, {-1, kCategories});
  const Output crosses = Placeholder(model.WithName("crosses"), DT_INT64, {-1, kCrosses});
  const Output labels = Placeholder(model.WithName("labels"), DT_FLOAT, {-1, 1});
  // Wide: a weight per category and per cross, added up for each person.
  const auto weights = [&](const char* name, const Output& of, int64_t num_ids) {
    return ReduceSum(
        model, Embedding(model.WithName(name), of, num_ids, 1, {.initializer = ZerosInitializer()}),
        {1});
  };
  const Output wide = weights("wide/categories", ids, kCategories * kCategoryIds) +
                      weights("wide/crosses", crosses, kCrosses * kCrossIds);
  // Deep: embeddings and numbers through two hidden layers.
  const Output embedded =
      Embedding(model.WithName("deep"), ids, kCategories * kCategoryIds, kDimension,
                {.initializer = TruncatedNormalInitializer({.stddev = 0.1})});
  const Output deep =
      ConcatV2(model, {numbers, Flatten(model, embedded)}, Const(model, int32_t{1}));
  const Output hidden1 = Dense(model.WithName("hidden1"), deep, 64, {.activation = Relu});
  const Output hidden2 = Dense(model.WithName("hidden2"), hidden1, 32, {.activation = Relu});
  const Output logit = wide + Dense(model.WithName("logit"), hidden2, 1);
  const Output probability = Sigmoid(model.WithName("probability"), logit);
  const Output loss = SigmoidCrossEntropy(model, labels, logit);
  const Output half = Const(model, 0.5f);
  const Output right =
      Equal(model, Greater(model, probability, half), Greater(model, labels, half));
  const Output accuracy = ReduceMean(model, Cast(model, right, DT_FLOAT));
  const Operation train = AdagradOptimizer({.learning_rate = 0.05}).Minimize(model, loss);

  const auto feeds = [&](CensusBatch batch) {
    return Feeds{{numbers, std::move(batch.numbers)},
                 {ids, std::move(batch.categories)},
                 {crosses, std::move(batch.crosses)},
                 {labels, std::move(batch.labels)}};
  };
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(cluster.task()));
  TrainOptions options = {
      .data = [&]() -> FeedsOrEnd {
        MR_ASSIGN_OR_RETURN(CensusBatch batch, RandomBatch(people, kBatch, &random));
        return feeds(std::move(batch));
      },
      .steps = absl::GetFlag(FLAGS_steps),
      .dir = absl::GetFlag(FLAGS_dir),
      .target = server->target(),
      .is_chief = cluster.is_chief(),
      .loss = loss,
      .eval = [&](Session* session) -> StatusOr<std::string> {
        std::vector<size_t> all(static_cast<size_t>(test.size()));
        std::iota(all.begin(), all.end(), size_t{0});
        MR_ASSIGN_OR_RETURN(CensusBatch batch, MakeBatch(test, all));
        MR_ASSIGN_OR_RETURN(const auto out, session->Run(feeds(std::move(batch)), {accuracy}));
        return absl::StrFormat("test accuracy: %.4f", out[0].scalar<float>());
      },
      .eval_every = 500,
      .save_every = 500};
  if (!absl::GetFlag(FLAGS_export_to).empty()) {
    options.export_to = absl::GetFlag(FLAGS_export_to);
    options.signature = {
        .inputs = {{"numbers", numbers}, {"categories", ids}, {"crosses", crosses}},
        .outputs = {{"probability", probability}}};
  }
  return Train(model, train, options).status();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Trains a wide and deep model, alone or on a cluster (TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Run());
}
