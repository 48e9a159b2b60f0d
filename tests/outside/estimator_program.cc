// SPDX-License-Identifier: Apache-2.0
// A program outside of Millrace's tree with an Estimator: who earns much? Wide and deep, of a CSV
// file; trained, evaluated and exported by one call, which is the same in one process and in each
// task of a cluster. Who has exported asks the export about two people.
//
//   estimator_program people.csv model_dir
//   launch --ps=1 --chief --evaluator -- estimator_program people.csv model_dir
#include <millrace/estimator.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

using namespace millrace;

// age,job,hours,income
data::CsvOptions Row() {
  const Tensor number = Tensor::Scalar(0.0f), text = Tensor::Scalar("");
  return {.defaults = {number, text, number, text}, .names = {"age", "job", "hours", "income"}};
}

InputFn People(const std::string& file) {
  return [file](Mode mode) {
    auto people = data::Dataset::TextLines({file}).Skip(1).Map(data::DecodeCsv(Row()));
    if (mode == Mode::kTrain) people = people.Shuffle(1000).Repeat();
    return Input(people.Batch(50), {.labels = {"income"}});
  };
}

Estimator Income(const RunConfig& config) {
  const NumericColumn age("age"), hours("hours");
  const BucketizedColumn ages(age, {25, 35, 45, 55});
  const auto job = CategoricalColumnWithHashBucket("job", 20);
  return DNNLinearCombinedClassifier(
      {.linear_feature_columns = {ages, job, CrossedColumn({ages, "job"}, 100)},
       .linear_optimizer = FtrlOptions{.learning_rate = 0.2},
       .dnn_feature_columns = {age, hours, EmbeddingColumn(job, 4)},
       .dnn_hidden_units = {16, 8},
       .label_vocabulary = {"little", "much"}},
      {.config = config});
}

// How many steps this task has made.
class OwnSteps : public SessionRunHook {
 public:
  std::string name() const override { return "OwnSteps"; }
  Status AfterRun(RunContext*, const RunValues&) override {
    ++steps_;
    return absl::OkStatus();
  }
  int64_t steps() const { return steps_; }

 private:
  int64_t steps_ = 0;
};

Status AskAboutTwo(const std::string& exported) {
  MR_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(exported));
  MR_ASSIGN_OR_RETURN(const NamedTensors out,
                      model.Predict({{"age", Tensor::Of({50.f, 20.f})},
                                     {"job", Tensor::Of<std::string>({"lawyer", "painter"})},
                                     {"hours", Tensor::Of({40.f, 40.f})}},
                                    {.signature = "predict"}));
  const auto classes = out.at("classes").flat<std::string>();
  std::printf("Lawyer of 50: %s, painter of 20: %s\n", classes[0].c_str(), classes[1].c_str());
  return absl::OkStatus();
}

Status TrainAndAsk(const std::string& file, const std::string& model_dir) {
  MR_ASSIGN_OR_RETURN(const RunConfig config, RunConfig::Make({.model_dir = model_dir,
                                                               .tf_random_seed = 1,
                                                               .save_checkpoints_steps = 200}));
  const Estimator income = AddMetrics(Income(config), [](const Scope& scope, const Labels& labels,
                                                         const Predictions& predictions) {
    const Output is_rich = Equal(scope, labels, Const(scope, "much"));
    return MetricOps{{"brier", metrics::MeanSquaredError(scope, is_rich, predictions["logistic"])}};
  });
  const auto receiver = BuildRawServingInputReceiverFn(
      {{"age", {DT_FLOAT, {-1}}}, {"hours", {DT_FLOAT, {-1}}}, {"job", {DT_STRING, {-1}}}});
  const auto own_steps = std::make_shared<OwnSteps>();
  const TrainSpec train = {.input_fn = People(file), .max_steps = 400, .hooks = {own_steps}};
  const EvalSpec eval = {.input_fn = People(file),
                         .steps = {},
                         .exporters = {std::make_shared<FinalExporter>("final", receiver)},
                         .start_delay_secs = 0,
                         .throttle_secs = 1};
  MR_ASSIGN_OR_RETURN(const TrainAndEvaluateResult done, TrainAndEvaluate(income, train, eval));
  std::printf("Own steps: %lld\n", static_cast<long long>(own_steps->steps()));
  if (done.evaluation) std::printf("Evaluation: %s\n", done.evaluation->ToString().c_str());
  if (done.exports.empty()) return absl::OkStatus();
  std::printf("Exported: %s\n", done.exports.back().c_str());
  return AskAboutTwo(done.exports.back());
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s people.csv model_dir\n", argv[0]);
    return 2;
  }
  InitLogging(argv[0]);
  return ReportedExitCode(argv[0], TrainAndAsk(argv[1], argv[2]));
}
