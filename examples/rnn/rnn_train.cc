// SPDX-License-Identifier: Apache-2.0
// rnn_train: an LSTM that learns to add two marked numbers of a sequence, in one process or on a
// cluster. The sequences differ in length; the loop runs as long as the batch's tensor.
//
//   rnn_train --dir=run --export_to=sums
//   launch --ps=1 --workers=2 -- rnn_train --dir=run --export_to=sums

#include <cstdio>
#include <random>
#include <string>
#include <utility>

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
#include "examples/rnn/sums.h"
#include "graph/scope.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adam.h"
#include "train/train.h"

ABSL_FLAG(std::string, dir, "rnn_run", "directory of checkpoints; all tasks must see it");
ABSL_FLAG(std::string, export_to, "", "directory of the exported SavedModel; empty: no export");
ABSL_FLAG(int64_t, steps, 1500, "global steps of all workers together, of 64 sequences each");
ABSL_FLAG(int64_t, longest, 20, "steps of the longest sequence");
ABSL_FLAG(uint64_t, seed, 1, "of initial values and sequences");

namespace millrace {
namespace {

constexpr int64_t kBatch = 64;
constexpr int64_t kTest = 1000;

Status Run() {
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  const int64_t longest = absl::GetFlag(FLAGS_longest);
  if (longest < 4 || longest > 10'000) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--longest must be 4 to 10000, got %d", longest));
  }
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  if (cluster.job() == "ps") {
    return server->Join({.exit_when_done = true, .logdir = absl::GetFlag(FLAGS_dir)});
  }
  Scope root;
  root.SetGraphSeed(static_cast<int64_t>(seed));
  const Scope model = root.WithDevice(ReplicaDeviceSetter(cluster));

  const Output steps = Placeholder(model.WithName("steps"), DT_FLOAT, {-1, -1, 2});
  const Output lengths = Placeholder(model.WithName("lengths"), DT_INT32, {-1});
  const Output sums = Placeholder(model.WithName("sums"), DT_FLOAT, {-1, 1});
  const RnnOutputs rnn = DynamicRnn(model, LSTMCell(32), steps, {.sequence_length = lengths});
  const Output answer = Dense(model.WithName("answer"), rnn.state[1], 1);
  const Output sum = Identity(model.WithName("sum"), answer);
  const Output loss = ReduceMean(model.WithName("loss"), Square(model, sum - sums));
  const Operation train = AdamOptimizer({.learning_rate = 0.01}).Minimize(model, loss);

  const auto feeds = [&](SumsBatch batch) {
    return Feeds{{steps, std::move(batch.steps)},
                 {lengths, std::move(batch.lengths)},
                 {sums, std::move(batch.sums)}};
  };
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(cluster.task()));
  TrainOptions options = {
      .data = [&]() -> FeedsOrEnd {
        MR_ASSIGN_OR_RETURN(SumsBatch batch, DrawSums(kBatch, longest, &random));
        return feeds(std::move(batch));
      },
      .steps = absl::GetFlag(FLAGS_steps),
      .dir = absl::GetFlag(FLAGS_dir),
      .target = server->target(),
      .is_chief = cluster.is_chief(),
      .loss = loss,
      .eval = [&](Session* session) -> StatusOr<std::string> {
        std::mt19937_64 others(seed + 1);
        MR_ASSIGN_OR_RETURN(SumsBatch batch, DrawSums(kTest, longest, &others));
        MR_ASSIGN_OR_RETURN(const auto out, session->Run(feeds(std::move(batch)), {loss}));
        return absl::StrFormat("test loss: %.5f", out[0].scalar<float>());
      },
      .eval_every = 500,
      .save_every = 500};
  if (!absl::GetFlag(FLAGS_export_to).empty()) {
    options.export_to = absl::GetFlag(FLAGS_export_to);
    options.signature = {.inputs = {{"steps", steps}, {"lengths", lengths}},
                         .outputs = {{"sum", sum}}};
  }
  return Train(model, train, options).status();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains an LSTM to add two marked numbers of a sequence, alone or on a cluster (TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Run());
}
