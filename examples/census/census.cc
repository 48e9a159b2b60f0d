// SPDX-License-Identifier: Apache-2.0
// census: a wide and deep model of the Census Income data, by a pre-made Estimator. The same
// program is one process, or any task of a cluster.
//
//   census --train-files adult.data.csv --eval-files adult.test.csv --job-dir run --train-steps
//   1000 launch --ps=1 --chief --workers=2 --evaluator -- census --job-dir=run --train-steps=1000

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program.h"
#include "core/status.h"
#include "data/dataset.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/run_config.h"
#include "estimator/tf_config.h"
#include "estimator/train_and_evaluate.h"
#include "examples/census/flags.h"
#include "examples/census/model.h"
#include "examples/census/people.h"

namespace millrace::census {
namespace {

// As many as the files have about twice as many of; the evaluation reads 4,000 by itself.
constexpr int64_t kDrawnToTrain = 16'000, kDrawnToTest = 4'000;

// Those of the files, or drawn ones.
PeopleOptions Some(const std::vector<std::string>& files, int64_t count, int64_t seed) {
  PeopleOptions people = {.files = files};
  if (files.empty()) people.rows = DrawPeople(count, static_cast<uint64_t>(seed));
  return people;
}

Status Run(const Flags& flags) {
  RunConfigFields fields = {.experimental_max_worker_delay_secs =
                                static_cast<double>(flags.max_worker_delay_secs)};
  if (!flags.job_dir.empty()) fields.model_dir = flags.job_dir;
  if (flags.seed > 0) fields.tf_random_seed = flags.seed;
  if (flags.save_checkpoints_steps) {
    fields.save_checkpoints_steps = flags.save_checkpoints_steps;
  }
  MR_ASSIGN_OR_RETURN(const RunConfig config, RunConfig::Make(fields));
  const bool alone = config.cluster_spec().empty() && config.task_type() != "evaluator";
  if (flags.job_dir.empty() && !alone) {
    return InvalidArgument("--job-dir must be given to the tasks of a cluster, got none");
  }
  const ModelOptions model = {
      .embedding_size = flags.embedding_size,
      .hidden_units = HiddenUnits(flags.first_layer_size, flags.num_layers, flags.scale_factor),
      .capital_gain_scale = flags.capital_gain_scale};
  const Estimator income = IncomeModel(model, config);
  MR_RETURN_IF_ERROR(income.status());

  PeopleOptions train = Some(flags.train_files, kDrawnToTrain, flags.seed);
  train.num_epochs = flags.num_epochs;
  train.batch_size = flags.train_batch_size;
  train.most_kept_bytes = flags.keep_mb << 20;
  PeopleOptions test = Some(flags.eval_files, kDrawnToTest, flags.seed + 1);
  test.shuffle = false;
  test.batch_size = flags.eval_batch_size;
  train.prepare =
      test.prepare = [model](const data::Dataset& people) { return WithIds(model, people); };
  train.skip_header_lines = test.skip_header_lines = flags.skip_header_lines;
  std::optional<int64_t> eval_steps = flags.eval_steps;
  if (eval_steps == 0) {
    eval_steps.reset();
    test.num_epochs = 1;
  }

  const TrainSpec train_spec = {.input_fn = People(train), .max_steps = flags.train_steps};
  const EvalSpec eval_spec = {
      .input_fn = People(test),
      .steps = eval_steps,
      .name = "census-eval",
      .exporters = {std::make_shared<FinalExporter>("census", Receiver(flags.export_format))},
      .start_delay_secs = static_cast<double>(flags.eval_start_delay_secs),
      .throttle_secs = static_cast<double>(flags.eval_throttle_secs)};
  const TrainAndEvaluateOptions options = {.wait_for_evaluator_secs =
                                               static_cast<double>(flags.wait_for_evaluator_secs)};
  std::printf("model dir %s\n", income.model_dir().c_str());
  std::fflush(stdout);
  MR_ASSIGN_OR_RETURN(const TrainAndEvaluateResult done,
                      TrainAndEvaluate(income, train_spec, eval_spec, options));
  if (done.evaluation) std::printf("Evaluation: %s\n", done.evaluation->ToString().c_str());
  for (const std::string& path : done.exports) std::printf("Exported: %s\n", path.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  EnterCallersDirectory();
  const Status cluster = SetTfConfigFromFlags(&argc, argv);
  if (!cluster.ok()) return ReportedExitCode(argv[0], cluster);
  const std::vector<std::string> args(argv + 1, argv + argc);
  const StatusOr<Flags> flags = ParseFlags(args);
  if (!flags.ok()) return ReportedExitCode(argv[0], flags.status());
  if (flags->help || flags->version) {
    std::fputs((flags->help ? HelpText(Help()) : VersionText("census")).c_str(), stdout);
    return kExitOk;
  }
  SetMinLogLevel(flags->verbosity);
  InitLogging(argv[0]);
  if (!flags->ignored.empty()) {
    LogWarning("census: arguments that are not known are ignored: ",
               absl::StrJoin(flags->ignored, ", "));
  }
  return ReportedExitCode(argv[0], Run(*flags));
}

}  // namespace
}  // namespace millrace::census

int main(int argc, char** argv) { return millrace::census::Main(argc, argv); }
