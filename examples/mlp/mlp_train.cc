// SPDX-License-Identifier: Apache-2.0
// mlp_train: a network of two hidden layers on handwritten digits, in one process: batches,
// checkpoints, evaluation, export. Ctrl-C ends it with a checkpoint; started again, it goes on.
//
//   mlp_train --dir=run --export_to=digits && mlp_predict --model=digits

#include <cstdio>
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
#include "examples/mnist/digits.h"
#include "graph/scope.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adam.h"
#include "train/train.h"

ABSL_FLAG(std::string, data, "",
          "directory with MNIST's idx files (plain or .gz); empty: digits that the program draws");
ABSL_FLAG(std::string, dir, "mlp_run", "directory of checkpoints");
ABSL_FLAG(std::string, export_to, "", "directory of the exported SavedModel; empty: no export");
ABSL_FLAG(int64_t, steps, 2000, "steps of 100 images");
ABSL_FLAG(uint64_t, seed, 1, "of initial values, drawn digits and the order of images");

namespace millrace {
namespace {

constexpr int64_t kBatch = 100;

Status Run() {
  MR_ASSIGN_OR_RETURN(const DigitSets digits,
                      LoadDigits(absl::GetFlag(FLAGS_data), absl::GetFlag(FLAGS_seed)));
  BatchIterator batches(&digits.train, absl::GetFlag(FLAGS_seed));
  Scope model;
  model.SetGraphSeed(static_cast<int64_t>(absl::GetFlag(FLAGS_seed)));

  const Output images = Placeholder(model.WithName("images"), DT_FLOAT, {-1, kDigitPixels});
  const Output labels = Placeholder(model.WithName("labels"), DT_FLOAT, {-1, kDigitClasses});
  const Output hidden1 = Dense(model.WithName("hidden1"), images, 256, {.activation = Relu});
  const Output hidden2 = Dense(model.WithName("hidden2"), hidden1, 128, {.activation = Relu});
  const Output logits = Dense(model.WithName("logits"), hidden2, kDigitClasses);
  const Output loss = SoftmaxCrossEntropy(model, labels, logits);
  const Output axis = Const(model, int32_t{1});
  const Output digit = ArgMax(model.WithName("digit"), logits, axis);
  const Output right = Cast(model, Equal(model, digit, ArgMax(model, labels, axis)), DT_FLOAT);
  const Output accuracy = ReduceMean(model, right);
  const Operation train = AdamOptimizer({.learning_rate = 1e-3}).Minimize(model, loss);

  MR_ASSIGN_OR_RETURN(const DigitBatch test, MakeBatch(digits.test, 0, digits.test.size()));
  TrainOptions options = {
      .data = [&]() -> FeedsOrEnd {
        MR_ASSIGN_OR_RETURN(DigitBatch batch, batches.Next(kBatch));
        return Feeds{{images, std::move(batch.images)}, {labels, std::move(batch.labels)}};
      },
      .steps = absl::GetFlag(FLAGS_steps),
      .dir = absl::GetFlag(FLAGS_dir),
      .loss = loss,
      .eval = [&](Session* session) -> StatusOr<std::string> {
        MR_ASSIGN_OR_RETURN(
            const auto out,
            session->Run({{images, test.images}, {labels, test.labels}}, {accuracy}));
        return absl::StrFormat("test accuracy: %.4f", out[0].scalar<float>());
      },
      .eval_every = 500,
      .save_every = 500};
  if (!absl::GetFlag(FLAGS_export_to).empty()) {
    options.export_to = absl::GetFlag(FLAGS_export_to);
    options.signature = {.inputs = {{"images", images}},
                         .outputs = {{"digit", digit}, {"logits", logits}}};
  }
  return Train(model, train, options).status();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Trains a multi-layer perceptron on handwritten digits.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Run());
}
