// SPDX-License-Identifier: Apache-2.0
//
// Train, Evaluate, Predict and exports in one process.

#include "estimator/estimator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "estimator/exporter.h"
#include "estimator/testing/line_model.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/linalg/matmul.h"
#include "proto/event.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/summary.pb.h"
#include "runtime/session.h"
#include "saver/event_reader.h"
#include "saver/loaded_model.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "train/gradient_descent.h"
#include "train/hooks/checkpoint_saver.h"
#include "train/session_run_hook.h"

// covers: article 0-45: five checkpoints, one in ten minutes
// covers: article 1-1: train, evaluate and predict, each alone
// covers: article 1-7: model_dir next to the config
// covers: article 3-7: an Estimator of model_fn, model_dir, config, params, warm start
// covers: article 3-11: an EstimatorSpec with eleven fields
// covers: scenario F6: a user's Estimator
// covers: scenario F8: checkpoints: how often, how many, continuing

namespace millrace {
namespace {

// Notes the order of its calls.
class NoteHook : public SessionRunHook {
 public:
  NoteHook(std::string id, std::vector<std::string>* notes) : id_(std::move(id)), notes_(notes) {}
  std::string name() const override { return id_; }
  Status Begin(HookSetup*) override { return Note("Begin"); }
  Status AfterCreateSession(RunContext*, const CreatedSession&) override { return Note("Created"); }
  StatusOr<GroupMask> BeforeRun(RunContext*) override {
    MR_RETURN_IF_ERROR(Note("BeforeRun"));
    return kNoGroups;
  }
  Status AfterRun(RunContext*, const RunValues&) override { return Note("AfterRun"); }
  Status End(const LoopEnd&) override { return Note("End"); }

 private:
  Status Note(const std::string& what) {
    notes_->push_back(absl::StrCat(id_, ".", what));
    return absl::OkStatus();
  }
  const std::string id_;
  std::vector<std::string>* const notes_;
};

class EstimatorTest : public testing::Test {
 protected:
  EstimatorTest() : dir_(absl::StrCat(testing::TempDir(), "/", TestName())) {
    fs()->RecursivelyDelete(dir_).IgnoreError();
  }
  static std::string TestName() {
    return testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  static FileSystem* fs() { return FileSystem::Posix(); }

  Estimator Make(const ModelFn& model_fn, const EstimatorOptions& given = {},
                 RunConfigFields fields = {}) {
    EstimatorOptions options = given;
    if (options.model_dir.empty()) options.model_dir = dir_ + "/model";
    if (!options.config) {
      if (!fields.save_checkpoints_steps && !fields.save_checkpoints_secs) {
        fields.save_checkpoints_steps = 100;
      }
      options.config = *RunConfig::Make(fields, "");
    }
    const auto made = Estimator::Make(model_fn, options);
    EXPECT_OK(made.status());
    return *made;
  }
  Estimator Line() { return Make(LineModel); }

  // Tag -> value, of all event files of a directory, with its step.
  std::map<std::string, std::pair<int64_t, float>> ScalarsOf(const std::string& directory) {
    std::map<std::string, std::pair<int64_t, float>> scalars;
    auto events = EventReader::Open(fs(), directory);
    EXPECT_OK(events.status());
    if (!events.ok()) return scalars;
    for (;;) {
      const auto event = (*events)->Next();
      if (!event.ok()) break;
      for (const auto& value : event->summary().value()) {
        if (value.has_tensor()) {
          const auto text = TensorFromProto(value.tensor());
          if (text.ok()) texts_[value.tag()] = text->scalar<std::string>();
        }
        scalars[value.tag()] = {event->step(), value.simple_value()};
      }
    }
    return scalars;
  }

  const std::string dir_;
  std::map<std::string, std::string> texts_;
};

// --- Train ---------------------------------------------------------------------------------------

TEST_F(EstimatorTest, TrainsToTheLastStepOnceAndGoesOnFromThere) {
  const Estimator line = Line();
  ASSERT_OK_AND_ASSIGN(const TrainOutcome first, line.Train(Points, {.max_steps = 20}));
  EXPECT_TRUE(first.trained);
  EXPECT_EQ(first.own_steps, 20);
  EXPECT_EQ(line.latest_checkpoint(), dir_ + "/model/model.ckpt-20");
  ASSERT_OK_AND_ASSIGN(const TrainOutcome again, line.Train(Points, {.max_steps = 20}));
  EXPECT_FALSE(again.trained);
  ASSERT_OK_AND_ASSIGN(const TrainOutcome further, line.Train(Points, {.max_steps = 30}));
  EXPECT_EQ(further.own_steps, 10);
  EXPECT_LT(*further.loss, *first.loss);
  ASSERT_OK_AND_ASSIGN(const TrainOutcome more, line.Train(Points, {.steps = 5}));
  EXPECT_EQ(more.own_steps, 5);
  ASSERT_OK_AND_ASSIGN(const Tensor step, line.GetVariableValue("global_step"));
  EXPECT_EQ(step.scalar<int64_t>(), 35);
  ASSERT_OK_AND_ASSIGN(const auto names, line.GetVariableNames());
  EXPECT_EQ(names, (std::vector<std::string>{"b", "global_step", "w"}));
}

// covers: article 3-13: without steps: the ten rows, a checkpoint of step 10
TEST_F(EstimatorTest, TrainsToTheEndOfTheData) {
  const Estimator line = Line();
  ASSERT_OK_AND_ASSIGN(const TrainOutcome outcome, line.Train([] { return FewPoints(10); }));
  EXPECT_EQ(outcome.own_steps, 10);
  EXPECT_EQ(line.latest_checkpoint(), dir_ + "/model/model.ckpt-10");
  // The data starts again.
  ASSERT_OK(line.Train([] { return FewPoints(10); }).status());
  EXPECT_EQ(line.latest_checkpoint(), dir_ + "/model/model.ckpt-20");
}

TEST_F(EstimatorTest, ADatasetWithoutBatchesIsNamedWhereTheModelWantsRows) {
  const auto rows = [](const Scope& scope, const Features& features, const Labels& labels,
                       Mode mode) {
    const Variable w = MakeVariable(scope.WithName("w"), Const(scope, Tensor::Of({{1.f}})));
    const Output y = MatMul(scope, features["x"], w.value);
    EstimatorSpec spec{.mode = mode, .predictions = y};
    spec.loss = MeanSquaredError(scope, labels, y);
    spec.train_op = GradientDescentOptimizer({.learning_rate = 0.1})
                        .Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
    return spec;
  };
  const auto points =
      data::Dataset::FromTensorSlices({Tensor::Of({0.f, 1.f}), Tensor::Of({1.f, 2.f})});
  const auto train = [&](const data::Dataset& dataset) {
    return Make(rows)
        .Train([&] {
          return Input(dataset, {.names = {"x", "y"}, .labels = {"y"}});
        })
        .status();
  };
  const std::string hint =
      "; the elements of the dataset are (float [], float []), no batches: did you forget Batch?";
  EXPECT_STATUS(train(points), absl::StatusCode::kInvalidArgument, hint);
  // The model wants a matrix: of batches that is its own rule.
  const Status batched = train(points.Batch(2));
  EXPECT_STATUS(batched, absl::StatusCode::kInvalidArgument, "");
  EXPECT_FALSE(absl::StrContains(batched.message(), "forget")) << batched;
}

// covers: article 1-2: a checkpoint every 300 s, the last three are kept
TEST_F(EstimatorTest, KeepsAsManyCheckpointsAsItIsTold) {
  const Estimator line =
      Make(LineModel, {}, {.save_checkpoints_steps = 5, .keep_checkpoint_max = 2});
  ASSERT_OK(line.Train(Points, {.max_steps = 30}).status());
  const auto state = ReadCheckpointState(fs(), line.model_dir());
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->all, (std::vector<std::string>{dir_ + "/model/model.ckpt-25",
                                                  dir_ + "/model/model.ckpt-30"}));
  EXPECT_TRUE(fs()->FileExists(dir_ + "/model/model.ckpt-30.meta"));
  EXPECT_TRUE(fs()->FileExists(dir_ + "/model/graph.pbtxt"));
}

TEST_F(EstimatorTest, AModelDirOfAnotherModelIsRefused) {
  ASSERT_OK(Line().Train(Points, {.max_steps = 2}).status());
  const auto model = [](const Scope& scope, const Features& features, const Labels& labels,
                        Mode mode) {
    EstimatorSpec spec = LineModel(scope, features, labels, mode);
    MakeVariable(scope.WithName("r"), Shape{3}, DT_FLOAT, GlorotUniformInitializer());
    return spec;
  };
  const Status refused = Make(model).Train(Points, {.max_steps = 3}).status();
  EXPECT_STATUS(refused, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("model_dir '", dir_, "/model' must hold checkpoints of this model"));
  EXPECT_STATUS(refused, absl::StatusCode::kFailedPrecondition, "lacks 1 ('r'; built at ");
  EXPECT_STATUS(refused, absl::StatusCode::kFailedPrecondition,
                "; give this program another model_dir, or move that one away");
  ASSERT_OK_AND_ASSIGN(const TrainOutcome more, Line().Train(Points, {.max_steps = 3}));
  EXPECT_EQ(more.own_steps, 1);
  EXPECT_EQ(more.reason, "reached step 3 of 3");
}

TEST_F(EstimatorTest, WithoutCheckpointsNoneAreWritten) {
  const Estimator line = Make(LineModel, {}, {.save_checkpoints_steps = kNoValue});
  ASSERT_OK(line.Train(Points, {.max_steps = 3}).status());
  EXPECT_EQ(line.latest_checkpoint(), "");
}

TEST_F(EstimatorTest, TheLossIsASummary) {
  const Estimator line = Make(LineModel, {}, {.save_summary_steps = 2});
  ASSERT_OK(line.Train(Points, {.max_steps = 10}).status());
  EXPECT_EQ(ScalarsOf(line.model_dir()).count("loss"), 1u);
}

TEST_F(EstimatorTest, TheSeedMakesRunsAlike) {
  const auto model = [](const Scope& scope, const Features& features, const Labels& labels,
                        Mode mode) {
    EstimatorSpec spec = LineModel(scope, features, labels, mode);
    MakeVariable(scope.WithName("r"), Shape{3}, DT_FLOAT, GlorotUniformInitializer());
    return spec;
  };
  std::vector<Tensor> values;
  for (const int i : {0, 1}) {
    const Estimator line =
        Make(model, {.model_dir = absl::StrCat(dir_, "/", i)}, {.tf_random_seed = 7});
    ASSERT_OK(line.Train(Points, {.max_steps = 1}).status());
    ASSERT_OK_AND_ASSIGN(Tensor value, line.GetVariableValue("r"));
    values.push_back(value);
  }
  ExpectTensorEqual(values[0], values[1]);
}

// covers: article 3-5: four kinds of hooks, each where it belongs
TEST_F(EstimatorTest, HooksRunWhereTheyBelong) {
  std::vector<std::string> notes;
  const auto model = [&notes](const Scope& scope, const Features& features, const Labels& labels,
                              Mode mode) {
    EstimatorSpec spec = LineModel(scope, features, labels, mode);
    spec.training_chief_hooks = {std::make_shared<NoteHook>("chief", &notes)};
    spec.training_hooks = {std::make_shared<NoteHook>("train", &notes)};
    spec.evaluation_hooks = {std::make_shared<NoteHook>("eval", &notes)};
    spec.prediction_hooks = {std::make_shared<NoteHook>("predict", &notes)};
    return spec;
  };
  const Estimator line = Make(model);
  ASSERT_OK(
      line.Train(Points, {.max_steps = 1, .hooks = {std::make_shared<NoteHook>("user", &notes)}})
          .status());
  EXPECT_EQ(notes, (std::vector<std::string>{"chief.Begin", "user.Begin", "train.Begin",
                                             "chief.Created", "user.Created", "train.Created",
                                             "chief.BeforeRun", "user.BeforeRun", "train.BeforeRun",
                                             "chief.AfterRun", "user.AfterRun", "train.AfterRun",
                                             "chief.End", "user.End", "train.End"}));
  notes.clear();
  ASSERT_OK(line.Evaluate(Points, {.steps = 1}).status());
  EXPECT_EQ(notes, (std::vector<std::string>{"eval.Begin", "eval.Created", "eval.BeforeRun",
                                             "eval.AfterRun", "eval.End"}));
  notes.clear();
  {
    ASSERT_OK_AND_ASSIGN(const auto stream, line.Predict(Points));
    Prediction row;
    ASSERT_OK_AND_ASSIGN(const bool more, stream->Next(&row));
    EXPECT_TRUE(more);
  }
  EXPECT_EQ(notes, (std::vector<std::string>{"predict.Begin", "predict.Created",
                                             "predict.BeforeRun", "predict.AfterRun"}))
      << "a stream that is dropped has not ended";
}

class StopListener : public CheckpointSaverListener {
 public:
  explicit StopListener(std::vector<int64_t>* saves) : saves_(saves) {}
  StatusOr<bool> AfterSave(Session*, int64_t step, const std::string&) override {
    saves_->push_back(step);
    return step >= 10;
  }

 private:
  std::vector<int64_t>* const saves_;
};

TEST_F(EstimatorTest, ListenersHearOfSavesAndMayStop) {
  std::vector<int64_t> saves;
  const Estimator line = Make(LineModel, {}, {.save_checkpoints_steps = 5});
  ASSERT_OK_AND_ASSIGN(
      const TrainOutcome outcome,
      line.Train(Points,
                 {.max_steps = 100, .saving_listeners = {std::make_shared<StopListener>(&saves)}}));
  EXPECT_EQ(saves, (std::vector<int64_t>{0, 5, 10}));
  EXPECT_EQ(outcome.own_steps, 10);
}

TEST_F(EstimatorTest, ALossThatIsNotFiniteEndsTheTraining) {
  const auto nan = [](const Scope& scope) {
    return Input({{"x", Const(scope, std::nanf(""))}}, Const(scope, 1.f));
  };
  EXPECT_STATUS(Line().Train(nan, {.max_steps = 10}), absl::StatusCode::kInvalidArgument,
                "NaN guard: the loss must be finite, got nan");
}

TEST_F(EstimatorTest, AGeneratorThatFailsIsTheErrorOfTheTraining) {
  const data::ElementSpec spec = {{DT_FLOAT, PartialShape{1}, "x"},
                                  {DT_FLOAT, PartialShape{1}, "y"}};
  const auto input = [spec] {
    return Input(data::Dataset::FromGenerator(
                     [](CancellationManager*) -> StatusOr<data::Generator> {
                       return [rows = 0](data::Element* row) mutable -> StatusOr<bool> {
                         if (++rows == 4) return absl::DataLossError("row 4 is torn");
                         *row = {Tensor::Of({1.f}), Tensor::Of({1.f})};
                         return true;
                       };
                     },
                     spec),
                 {.labels = {"y"}});
  };
  const Estimator line = Line();
  const Status status = line.Train(input, {.max_steps = 10}).status();
  EXPECT_STATUS(status, absl::StatusCode::kDataLoss, "row 4 is torn");
  EXPECT_EQ(ExitCode(status), 1);
}

TEST_F(EstimatorTest, TwoSaversOfOneDirectoryAreRefused) {
  const auto saver = [&] {
    return std::make_shared<CheckpointSaverHook>(
        CheckpointSaverOptions{.checkpoint_dir = dir_ + "/model", .every = 5});
  };
  const Estimator line = Line();
  // A saver hook of the program replaces the Estimator's.
  ASSERT_OK(line.Train(Points, {.max_steps = 6, .hooks = {saver()}}).status());
  EXPECT_TRUE(fs()->FileExists(dir_ + "/model/model.ckpt-5.index"));
  EXPECT_STATUS(line.Train(Points, {.max_steps = 10, .hooks = {saver(), saver()}}),
                absl::StatusCode::kAlreadyExists, "CheckpointSaverHook");
}

TEST_F(EstimatorTest, ColumnsOfADatasetAreFeaturesAndLabels) {
  const data::Dataset two = data::Dataset::FromTensorSlices({Tensor::Of({1.f}), Tensor::Of({2.f})});
  const auto input_of = [&](DatasetColumns columns, data::Dataset dataset) {
    return [=] { return Input(dataset, columns); };
  };
  const auto model = [](const Scope& scope, Output x, Output y, Mode mode) {
    return EstimatorSpec{.mode = mode, .predictions = x, .loss = Sub(scope, y, x)};
  };
  // Without names the second of two components is the label.
  ASSERT_OK_AND_ASSIGN(const EvalResult result, Make(model).Evaluate(input_of({}, two)));
  EXPECT_EQ(result["loss"], 1);
  struct Case {
    DatasetColumns columns;
    data::Dataset dataset;
    std::string message;
  };
  const data::Dataset three =
      data::Dataset::FromTensorSlices({Tensor::Of({1.f}), Tensor::Of({2.f}), Tensor::Of({3.f})});
  const std::vector<Case> cases = {
      {{}, three, "Input: names must be given for a dataset of more than a feature and a label"},
      {{.labels = {"y"}}, two, "Input: names must be given for labels to be among them"},
      {{.names = {"x"}}, two, "there must be a name for each component of the dataset"},
      {{.names = {"x", "x"}}, two, "Input: names must be texts that differ, got 'x' twice"},
      {{.names = {"x", "y"}, .labels = {"z"}},
       two,
       "Input: labels must be among the names, 'x', 'y', got 'z'"},
      {{.names = {"x", "y"}, .labels = {"x", "y"}},
       two,
       "Input: at least one component must be a feature"},
      {{}, data::Dataset(), ""},
  };
  for (const Case& c : cases) {
    const Status status = Make(model).Evaluate(input_of(c.columns, c.dataset)).status();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(absl::StrContains(status.message(), c.message)) << status;
  }
}

TEST_F(EstimatorTest, WarmStartTakesTrainablesAlone) {
  const Estimator other = Make(LineModel, {.model_dir = dir_ + "/other"});
  ASSERT_OK(other.Train(Points, {.max_steps = 50}).status());
  ASSERT_OK_AND_ASSIGN(const Tensor w, other.GetVariableValue("w"));
  const Estimator warm = Make(LineModel, {.warm_start_from = WarmStart{dir_ + "/other", "w"}},
                              {.save_checkpoints_steps = 1});
  ASSERT_OK(warm.Train(Points, {.max_steps = 1}).status());
  // The checkpoint with which training begins.
  const Estimator begin = *warm.With(*RunConfig::Make({}, ""));
  ASSERT_OK_AND_ASSIGN(
      const EvalResult at_begin,
      begin.Evaluate(Points, {.steps = 1, .checkpoint_path = dir_ + "/model/model.ckpt-0"}));
  EXPECT_EQ(at_begin.global_step, 0) << "the global step is no trainable";
  ASSERT_OK_AND_ASSIGN(const Tensor b_now, warm.GetVariableValue("b"));
  ASSERT_OK_AND_ASSIGN(const Tensor w_now, warm.GetVariableValue("w"));
  EXPECT_NEAR(w_now.scalar<float>(), w.scalar<float>(), 0.2);
  EXPECT_LT(b_now.scalar<float>(), 0.4f) << "b began at 0.1";
  // All trainable variables are not all variables.
  const Estimator all =
      Make(LineModel, {.model_dir = dir_ + "/all", .warm_start_from = WarmStart{dir_ + "/other"}});
  ASSERT_OK(all.Train(Points, {.max_steps = 1}).status());
  ASSERT_OK_AND_ASSIGN(const Tensor step, all.GetVariableValue("global_step"));
  EXPECT_EQ(step.scalar<int64_t>(), 1);
  ASSERT_OK_AND_ASSIGN(const Tensor b_all, all.GetVariableValue("b"));
  EXPECT_GT(b_all.scalar<float>(), 0.6f);
}

TEST_F(EstimatorTest, WrongWarmStartsAreNamed) {
  EXPECT_STATUS(
      Make(LineModel, {.warm_start_from = WarmStart{"nowhere"}}).Train(Points, {.max_steps = 1}),
      absl::StatusCode::kNotFound, "WarmStart: there must be a checkpoint");
  const Estimator other = Make(LineModel, {.model_dir = dir_ + "/other"});
  ASSERT_OK(other.Train(Points, {.max_steps = 1}).status());
  EXPECT_STATUS(Make(LineModel, {.warm_start_from = WarmStart{dir_ + "/other", "("}})
                    .Train(Points, {.max_steps = 1}),
                absl::StatusCode::kInvalidArgument,
                "WarmStart: vars_to_warm_start must be a regular expression, got '('");
}

// --- Evaluate ------------------------------------------------------------------------------------

// covers: article 1-16: an evaluation of a part, by steps
// covers: article 1-27: metrics are in the event files of `eval`
TEST_F(EstimatorTest, EvaluatesACheckpointAndWritesWhatItMeasured) {
  const Estimator line = Line();
  ASSERT_OK_AND_ASSIGN(const EvalResult before, line.Evaluate(Points, {.steps = 3}));
  EXPECT_EQ(before.checkpoint, "");
  EXPECT_EQ(before.global_step, 0);
  // w = b = 0.1: (0.9^2 + 1.6^2) / 2.
  EXPECT_NEAR(before["loss"], 1.685, 1e-5);
  EXPECT_NEAR(before["mse"], 1.685, 1e-5);
  EXPECT_TRUE(std::isnan(before["nothing"]));
  ASSERT_OK_AND_ASSIGN(const double mse, before.at("mse"));
  EXPECT_EQ(mse, before["mse"]);
  EXPECT_STATUS(before.at("mce"), absl::StatusCode::kNotFound,
                "EvalResult: a metric of one number must be one of global_step, loss");
  EXPECT_STATUS(before.at("mce"), absl::StatusCode::kNotFound, "got 'mce'; did you mean 'mse'?");
  EXPECT_STATUS(EvalResult().at("auc"), absl::StatusCode::kNotFound, "must be one of none, got");
  ASSERT_OK(line.Train(Points, {.max_steps = 20}).status());
  ASSERT_OK_AND_ASSIGN(const EvalResult after, line.Evaluate(Points, {.steps = 3, .name = "two"}));
  EXPECT_EQ(after.global_step, 20);
  EXPECT_EQ(after.checkpoint, dir_ + "/model/model.ckpt-20");
  EXPECT_LT(after["loss"], 0.2);
  EXPECT_TRUE(absl::StartsWith(after.ToString(), "global_step = 20, loss = "));
  auto scalars = ScalarsOf(dir_ + "/model/eval_two");
  EXPECT_EQ(scalars["loss"].first, 20);
  EXPECT_NEAR(static_cast<double>(scalars["mse"].second), after["mse"], 1e-6);
  EXPECT_EQ(scalars.count("global_step"), 0u);
  EXPECT_EQ(texts_["checkpoint_path"], after.checkpoint);
  EXPECT_TRUE(fs()->FileExists(dir_ + "/model/eval"));
  // A checkpoint by its name, by one of its files, and by its directory.
  for (const std::string end : {"/model.ckpt-20", "/model.ckpt-20.index", ""}) {
    ASSERT_OK_AND_ASSIGN(
        const EvalResult again,
        line.Evaluate(Points, {.steps = 1, .checkpoint_path = dir_ + "/model" + end}));
    EXPECT_EQ(again.checkpoint, after.checkpoint);
  }
}

TEST_F(EstimatorTest, AnEvaluationWhoseResultsCannotBeWrittenHasResults) {
  const Estimator line = Line();
  ASSERT_OK(line.Train(Points, {.max_steps = 5}).status());
  ASSERT_OK(WriteFileAtomically(fs(), dir_ + "/model/eval", "no directory"));
  testing::internal::CaptureStderr();
  const auto result = line.Evaluate(Points, {.steps = 1});
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(result.status());
  EXPECT_EQ(result->global_step, 5);
  EXPECT_TRUE(absl::StrContains(log, "the results of an evaluation are not in '" + dir_)) << log;
}

TEST_F(EstimatorTest, EvaluatesToTheEndOfTheData) {
  const Estimator line = Line();
  ASSERT_OK_AND_ASSIGN(const EvalResult result, line.Evaluate([] { return FewPoints(4); }));
  // x = 0, 0.25, 0.5, 0.75: errors 0.9 + 0.7 x.
  EXPECT_NEAR(result["mse"], (0.81 + 1.155625 + 1.5625 + 2.030625) / 4, 1e-5);
}

// covers: input: training and evaluation without a row name the files; there may be nothing to
//   predict
TEST_F(EstimatorTest, DataWithoutARowIsAnErrorThatNamesTheFiles) {
  ASSERT_OK(fs()->RecursivelyCreateDirectory(dir_));
  const std::string path = dir_ + "/none.csv";
  ASSERT_OK(WriteFileAtomically(fs(), path, "x,y\n"));
  const auto none = [path] {
    const Tensor number = Tensor::Scalar(0.f);
    return Input(data::CsvDataset({path}, {.defaults = {number, number}, .names = {"x", "y"}},
                                  {.has_header = true})
                     .Batch(1),
                 {.labels = {"y"}});
  };
  const Estimator line = Line();
  const std::string error = absl::StrCat(
      "the data must have at least one element, got none from CsvRecords('", path, "')");
  EXPECT_STATUS(line.Train(none), absl::StatusCode::kInvalidArgument, error);
  EXPECT_STATUS(line.Evaluate(none), absl::StatusCode::kInvalidArgument, error);
  ASSERT_OK_AND_ASSIGN(const auto stream, line.Predict(none));
  Prediction row;
  ASSERT_OK_AND_ASSIGN(const bool more, stream->Next(&row));
  EXPECT_FALSE(more);
}

TEST_F(EstimatorTest, ChecksWhatEvaluateIsGiven) {
  const Estimator line = Line();
  EXPECT_STATUS(line.Evaluate(Points, {.steps = 0}), absl::StatusCode::kInvalidArgument,
                "Estimator: Evaluate: steps must be > 0, got 0");
  EXPECT_STATUS(line.Evaluate(Points, {.steps = 1, .checkpoint_path = "nowhere"}),
                absl::StatusCode::kNotFound,
                "Estimator: checkpoint_path must be a checkpoint, got 'nowhere'");
  EXPECT_STATUS(line.Evaluate(Points, {.steps = 1, .name = "a/b"}),
                absl::StatusCode::kInvalidArgument, "name must be part of a directory's name");
}

// --- Predict -------------------------------------------------------------------------------------

// covers: article 3-9: predictions that are one tensor: `output`
// covers: article 3-38: predictions per row, a dict or bare
TEST_F(EstimatorTest, PredictsRowsOfABareTensor) {
  const Estimator line = Line();
  ASSERT_OK(line.Train(Points, {.max_steps = 1}).status());
  ASSERT_OK_AND_ASSIGN(const auto stream, line.Predict([] { return FewPoints(10); }));
  Prediction row;
  int rows = 0;
  for (;; ++rows) {
    ASSERT_OK_AND_ASSIGN(const bool more, stream->Next(&row));
    if (!more) break;
    EXPECT_EQ(row.single().dtype(), DT_FLOAT);
    EXPECT_EQ(row.single().rank(), 0);
  }
  EXPECT_EQ(rows, 10);
  ASSERT_OK_AND_ASSIGN(const bool more, stream->Next(&row));
  EXPECT_FALSE(more) << "the end repeats";
}

EstimatorSpec TwoOutputs(const Scope& scope, const Features& features) {
  const Output x = features["x"];
  return {.mode = Mode::kPredict, .predictions = {{"x", x}, {"twice", Add(scope, x, x)}}};
}

// covers: article 3-16: predictions are pulled; stopping early frees everything
TEST_F(EstimatorTest, StreamsInterleave) {
  const Estimator two = Make(TwoOutputs);
  const auto input = [](const Scope& scope) {
    return Features({{"x", Const(scope, Tensor::Of({1.f, 2.f}))}});
  };
  ASSERT_OK_AND_ASSIGN(const auto a, two.Predict(input));
  ASSERT_OK_AND_ASSIGN(const auto b, two.Predict(input, {.predict_keys = {"twice"}}));
  Prediction row;
  for (const float x : {1.f, 2.f}) {
    ASSERT_OK(a->Next(&row).status());
    EXPECT_EQ(row.Get("x")->scalar<float>(), x);
    EXPECT_EQ(row.Get("twice")->scalar<float>(), 2 * x);
    ASSERT_OK(b->Next(&row).status());
    EXPECT_EQ(row.tensors.size(), 1u);
    EXPECT_EQ(row.single().scalar<float>(), 2 * x);
    EXPECT_STATUS(row.Get("x"), absl::StatusCode::kNotFound, "one of the predictions, twice");
  }
}

// covers: article 3-38: predictions per row, a dict or bare
TEST_F(EstimatorTest, PredictGivesBatchesWhenAsked) {
  const Estimator two = Make(TwoOutputs);
  const auto input = [](const Scope& scope) {
    return Features({{"x", Const(scope, Tensor::Of({1.f, 2.f}))}});
  };
  ASSERT_OK_AND_ASSIGN(const auto stream, two.Predict(input, {.yield_single_examples = false}));
  Prediction batch;
  ASSERT_OK(stream->Next(&batch).status());
  EXPECT_EQ(batch.Get("x")->shape().ToString(), "[2]");
}

// covers: article 3-9: predictions that are one tensor: `output`
TEST_F(EstimatorTest, WrongPredictionsAreNamed) {
  const auto input = [](const Scope& scope) { return Const(scope, Tensor::Of({1.f, 2.f})); };
  const auto bare = [](const Scope&, Output x) {
    return EstimatorSpec{.mode = Mode::kPredict, .predictions = x};
  };
  EXPECT_STATUS(Make(bare).Predict(input, {.predict_keys = {"y"}}),
                absl::StatusCode::kInvalidArgument,
                "predict_keys must come with predictions that have names, got 'y'");
  const auto named = [](const Scope&, Output x) {
    return EstimatorSpec{.mode = Mode::kPredict, .predictions = {{"x", x}}};
  };
  EXPECT_STATUS(Make(named).Predict(input, {.predict_keys = {"y"}}),
                absl::StatusCode::kInvalidArgument,
                "predict_keys must be among the predictions, x, got 'y'");
  const auto uneven = [](const Scope& scope, Output x) {
    return EstimatorSpec{.mode = Mode::kPredict,
                         .predictions = {{"x", x}, {"y", Const(scope, Tensor::Of({1.f}))}}};
  };
  ASSERT_OK_AND_ASSIGN(const auto stream, Make(uneven).Predict(input));
  Prediction row;
  for (int i = 0; i < 2; ++i) {
    EXPECT_STATUS(stream->Next(&row), absl::StatusCode::kInvalidArgument,
                  "all predictions must have as many rows, got 2 of 'x' and 1 of 'y'");
  }
}

// --- What functions and calls must be ------------------------------------------------------------

struct WrongCall {
  std::string name;
  std::function<Status(const std::string& dir)> call;
  absl::StatusCode code;
  std::string message;
};
class WrongCallTest : public testing::TestWithParam<WrongCall> {};

Status TrainWith(const std::string& dir, const ModelFn& model_fn, const TrainCall& call = {},
                 const InputFn& input_fn = Points, const EstimatorOptions& given = {},
                 const std::string& tf_config = "") {
  EstimatorOptions options = given;
  options.model_dir = dir;
  MR_ASSIGN_OR_RETURN(options.config, RunConfig::Make({}, tf_config));
  MR_ASSIGN_OR_RETURN(const Estimator estimator, Estimator::Make(model_fn, options));
  return estimator.Train(input_fn, call).status();
}

TEST_P(WrongCallTest, IsOneMessage) {
  const std::string dir = absl::StrCat(testing::TempDir(), "/wrong_", GetParam().name);
  FileSystem::Posix()->RecursivelyDelete(dir).IgnoreError();
  const Status status = GetParam().call(dir);
  EXPECT_STATUS(status, GetParam().code, GetParam().message);
  EXPECT_EQ(ExitCode(status), 1);
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
INSTANTIATE_TEST_SUITE_P(
    All, WrongCallTest,
    testing::ValuesIn(std::vector<WrongCall>{
        {"NoModelFn", [](const auto& dir) { return TrainWith(dir, ModelFn()); }, kInvalid,
         "Estimator: model_fn must be a function, got none"},
        {"NoInputFn", [](const auto& dir) { return TrainWith(dir, LineModel, {}, InputFn()); },
         kInvalid, "Estimator: input_fn must be a function, got none"},
        {"StepsAndMaxSteps",
         [](const auto& dir) { return TrainWith(dir, LineModel, {.steps = 1, .max_steps = 2}); },
         kInvalid, "Estimator: Train must be given steps or max_steps, got both, 1 and 2"},
        {"NoSteps", [](const auto& dir) { return TrainWith(dir, LineModel, {.steps = 0}); },
         kInvalid, "Estimator: Train: steps must be > 0, got 0"},
        {"NegativeMaxSteps",
         [](const auto& dir) { return TrainWith(dir, LineModel, {.max_steps = -1}); }, kInvalid,
         "Estimator: Train: max_steps must be > 0, got -1"},
        {"NullHook",
         [](const auto& dir) {
           return TrainWith(dir, LineModel, {.max_steps = 1, .hooks = {nullptr}});
         },
         kInvalid, "Estimator: Train: hooks must be hooks, got a null one"},
        {"LabelsNotTaken",
         [](const auto& dir) {
           return TrainWith(dir, [](const Scope&, const Features&, Mode mode) {
             return EstimatorSpec{.mode = mode};
           });
         },
         kInvalid, "Estimator: model_fn must take Labels, since input_fn returns some"},
        {"ParamsNotTaken",
         [](const auto& dir) {
           return TrainWith(dir, LineModel, {.max_steps = 1}, Points, {.params = {{"a", 1}}});
         },
         kInvalid, "Estimator: model_fn must take Params, since some were given"},
        {"NoFeatures",
         [](const auto& dir) {
           return TrainWith(dir, LineModel, {.max_steps = 1}, [] { return Features(); });
         },
         kInvalid, "Estimator: input_fn must return features, got none"},
        {"NoLoss",
         [](const auto& dir) {
           return TrainWith(dir,
                            [](const Scope&, const Features&, const Labels&, Mode mode) {
                              return EstimatorSpec{.mode = mode};
                            },
                            {.max_steps = 1});
         },
         kInvalid, "model_fn in mode train: loss must be given, got none"},
        {"InputThatFails",
         [](const auto& dir) {
           return TrainWith(dir, LineModel, {.max_steps = 1}, []() -> StatusOr<Input> {
             return absl::NotFoundError("no such file");
           });
         },
         absl::StatusCode::kNotFound, "no such file"},
        {"ListenersWithoutCheckpoints",
         [](const auto& dir) {
           EstimatorOptions options;
           std::vector<int64_t> saves;
           options.model_dir = dir;
           options.config = *RunConfig::Make({.save_checkpoints_steps = kNoValue}, "");
           return Estimator::Make(LineModel, options)
               ->Train(Points, {.max_steps = 1,
                                .saving_listeners = {std::make_shared<StopListener>(&saves)}})
               .status();
         },
         kInvalid, "saving_listeners must come with checkpoints that the RunConfig asks for"},
        {"TrainAsPs",
         [](const auto& dir) {
           return TrainWith(dir, LineModel, {}, Points, {},
                            R"({"cluster": {"chief": ["a:1"], "ps": ["b:1"]},
                                "task": {"type": "ps", "index": 0}})");
         },
         absl::StatusCode::kFailedPrecondition,
         "Estimator: Train must be called by a task that trains, got ps 0"},
        {"TrainAsEvaluator",
         [](const auto& dir) {
           return TrainWith(dir, LineModel, {}, Points, {},
                            R"({"cluster": {"chief": ["a:1"]},
                                "task": {"type": "evaluator", "index": 0}})");
         },
         absl::StatusCode::kFailedPrecondition, "got evaluator 0"},
        {"TwoModelDirs",
         [](const auto& dir) {
           const RunConfig config = *RunConfig::Make({.model_dir = dir + "1"}, "");
           return Estimator::Make(LineModel, {.model_dir = dir, .config = config}).status();
         },
         kInvalid, "Estimator: model_dir must be that of the RunConfig"},
    }),
    [](const auto& info) { return info.param.name; });

// --- Export --------------------------------------------------------------------------------------

ServingInputReceiver FeedX(const Scope& scope) {
  const Output x = Placeholder(scope.WithName("input_x"), DT_FLOAT, {-1});
  return {.features = {{"x", x}}, .receivers = {{"x", x}}};
}

// covers: article 3-15: the export returns its path
TEST_F(EstimatorTest, ExportsWhatWasTrained) {
  const Estimator line = Line();
  EXPECT_STATUS(line.ExportSavedModel(dir_ + "/export", FeedX),
                absl::StatusCode::kFailedPrecondition, "must have a checkpoint, got none");
  ASSERT_OK(line.Train(Points, {.max_steps = 50}).status());
  ASSERT_OK(WriteFileAtomically(fs(), dir_ + "/notes.txt", "extra"));
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      line.ExportSavedModel(dir_ + "/export", FeedX,
                            {.assets_extra = {{"more/n.txt", dir_ + "/notes.txt"}}}));
  EXPECT_EQ(Basename(path).size(), 10u);
  EXPECT_TRUE(fs()->FileExists(path + "/assets.extra/more/n.txt"));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(path));
  EXPECT_EQ(model.signatures().count("serving_default"), 1u);
  ASSERT_OK_AND_ASSIGN(const auto out, model.Predict({{"x", Tensor::Of({0.f, 1.f})}}));
  ASSERT_EQ(out.count("output"), 1u);
  ASSERT_OK_AND_ASSIGN(const Tensor w, line.GetVariableValue("w"));
  ASSERT_OK_AND_ASSIGN(const Tensor b, line.GetVariableValue("b"));
  EXPECT_FLOAT_EQ(out.at("output").flat<float>()[1], w.scalar<float>() + b.scalar<float>());
  ASSERT_OK_AND_ASSIGN(const auto names, fs()->GetChildren(dir_ + "/export"));
  EXPECT_EQ(names.size(), 1u) << "nothing unfinished";
}

// covers: training: exports of one second do not wait; the largest number is the newest
// The clock stands still: a wait for another second would have no end.
TEST_F(EstimatorTest, ExportsOfOneSecondDoNotWaitAndTheLargestNumberIsTheNewest) {
  ASSERT_OK(Line().Train(Points, {.max_steps = 1}).status());
  FakeClock clock(absl::FromUnixSeconds(1'700'000'000));
  const Estimator line = Make(LineModel, {.clock = &clock});
  const std::string base = dir_ + "/export";
  const auto next = [&] {
    const StatusOr<std::string> path = line.ExportSavedModel(base, FeedX);
    return path.ok() ? Basename(*path) : std::string(path.status().message());
  };
  EXPECT_EQ(next(), "1700000000");
  EXPECT_EQ(next(), "1700000001");
  EXPECT_EQ(next(), "1700000002");
  // An exporter that keeps one. The present second is free and would be older than what is there.
  ASSERT_OK(fs()->RecursivelyDelete(base + "/1700000000"));
  ASSERT_OK(fs()->RecursivelyDelete(base + "/1700000001"));
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(next(), "1700000003");
  clock.Advance(absl::Seconds(9));
  EXPECT_EQ(next(), "1700000010");
  // Of an export that was killed, or is not ready yet.
  ASSERT_OK(fs()->RecursivelyCreateDirectory(base + "/temp-1700000011"));
  EXPECT_EQ(next(), "1700000012");
  ASSERT_OK_AND_ASSIGN(const auto names, fs()->GetChildren(base));
  EXPECT_EQ(names, (std::vector<std::string>{"1700000002", "1700000003", "1700000010", "1700000012",
                                             "temp-1700000011"}));
  ASSERT_OK(fs()->RecursivelyCreateDirectory(base + "/9999999999"));
  EXPECT_EQ(next(), absl::StrCat("Estimator: export: numbers of exports in '", base,
                                 "' must be at most 9999999999, got 10000000000"));
}

// covers: article 3-14: a feature that no receiver reaches: exported, with a warning
// The third article's receiver: it does not feed the feature.
TEST_F(EstimatorTest, ExportsAlthoughAFeatureIsNotFed) {
  const Estimator line = Line();
  ASSERT_OK(line.Train(Points, {.max_steps = 1}).status());
  ASSERT_OK_AND_ASSIGN(
      const std::string path, line.ExportSavedModel(dir_ + "/export", [](const Scope& scope) {
        return ServingInputReceiver{
            .features = {{"x", Placeholder(scope.WithName("input_x"), DT_FLOAT, {-1, 1})}},
            .receivers = Placeholder(scope.WithName("output_tensor"), DT_FLOAT, {-1, 1})};
      }));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(path));
  const ModelSignature& signature = model.signatures().at("serving_default");
  EXPECT_EQ(signature.inputs().begin()->first, "input");
  EXPECT_EQ(signature.outputs().begin()->first, "output");
  EXPECT_STATUS(model.Predict({{"input", Tensor::Of({{1.f}})}}), kInvalid, "input_x");
}

TEST_F(EstimatorTest, SignaturesOfExamplesAndOfAlternatives) {
  const auto model = [](const Scope& scope, const Features& features, const Labels& labels,
                        Mode mode) {
    EstimatorSpec spec = LineModel(scope, features, labels, mode);
    if (mode != Mode::kPredict) return spec;
    const Output y = spec.predictions;
    spec.export_outputs = {{"serving_default", RegressionOutput(y)},
                           {"classify", ClassificationOutput(y)},
                           {"all", PredictOutput({{"y", y}})}};
    return spec;
  };
  const Estimator line = Make(model);
  ASSERT_OK(line.Train(Points, {.max_steps = 1}).status());
  ASSERT_OK_AND_ASSIGN(
      const std::string of_examples,
      line.ExportSavedModel(dir_ + "/examples", BuildParsingServingInputReceiverFn(
                                                    {{"x", FixedLenFeature{.dtype = DT_FLOAT}}})));
  ASSERT_OK_AND_ASSIGN(const LoadedModel examples, LoadModel(of_examples));
  ASSERT_EQ(examples.signatures().size(), 3u);
  EXPECT_EQ(examples.signatures().at("serving_default").method_name(),
            "tensorflow/serving/regress");
  EXPECT_EQ(examples.signatures().at("serving_default").inputs().begin()->first, "inputs");
  EXPECT_EQ(examples.signatures().at("classify").outputs().begin()->first, "scores");
  EXPECT_EQ(examples.signatures().at("all").inputs().begin()->first, "examples");

  const auto two_ways = [](const Scope& scope) {
    const Output x = Placeholder(scope.WithName("x"), DT_FLOAT, {-1});
    return ServingInputReceiver{
        .features = {{"x", x}}, .receivers = {{"x", x}}, .receiver_alternatives = {{"bare", x}}};
  };
  ASSERT_OK_AND_ASSIGN(const std::string of_floats,
                       line.ExportSavedModel(dir_ + "/floats", two_ways));
  ASSERT_OK_AND_ASSIGN(const LoadedModel floats, LoadModel(of_floats));
  std::vector<std::string> keys;
  for (const auto& [key, signature] : floats.signatures()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"all", "bare:all"}))
      << "Regress and Classify take examples alone";
}

// covers: training: exports may have graphs that train and evaluate, by TensorFlow's tags,
//   signatures and ops, which another program trains on and measures
TEST_F(EstimatorTest, ExportsGraphsThatTrainAndEvaluate) {
  const Estimator line = Line();
  ASSERT_OK(line.Train(Points, {.max_steps = 5}).status());
  const auto with_labels =
      BuildRawSupervisedInputReceiverFn({{"x", {DT_FLOAT, {-1}}}}, {{"y", {DT_FLOAT, {-1}}}});
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      line.ExportAllSavedModels(dir_ + "/all",
                                {.train = with_labels, .eval = with_labels, .predict = FeedX}));
  ASSERT_OK_AND_ASSIGN(const Tensor w, line.GetVariableValue("w"));
  ASSERT_OK_AND_ASSIGN(const Tensor b, line.GetVariableValue("b"));
  const auto names = [](const auto& tensors) {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors) all.push_back(name);
    return all;
  };
  const auto loss_of = [](float error) { return static_cast<double>(error) * error; };
  const double wrong = loss_of(w.scalar<float>() + b.scalar<float>() - 3);

  // Another program continues the training.
  ASSERT_OK_AND_ASSIGN(const SavedModelBundle train,
                       LoadSavedModel({}, path, {kSavedModelTagTrain}));
  ASSERT_OK_AND_ASSIGN(const ModelSignature step, train.Signature("train"));
  EXPECT_EQ(train.meta_graph_def->signature_def_size(), 1);
  EXPECT_EQ(step.method_name(), "tensorflow/supervised/training");
  EXPECT_EQ(names(step.inputs()), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(names(step.outputs()), (std::vector<std::string>{"loss", "predictions"}));
  const auto& collections = train.meta_graph_def->collection_def();
  ASSERT_EQ(collections.count("saved_model_train_op"), 1u);
  const std::string train_op = collections.at("saved_model_train_op").node_list().value(0);
  const std::vector<Feed> feeds = {{step.inputs().at("x").name(), Tensor::Of({1.f})},
                                   {step.inputs().at("y").name(), Tensor::Of({3.f})}};
  const std::string loss = step.outputs().at("loss").name();
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out, train.session->Run(feeds, {loss}));
  EXPECT_NEAR(static_cast<double>(out[0].scalar<float>()), wrong, 1e-5);
  ASSERT_OK(train.session->Run(feeds, {}, {train_op}).status());
  ASSERT_OK_AND_ASSIGN(out,
                       train.session->Run(feeds, {loss, step.outputs().at("predictions").name()}));
  EXPECT_LT(static_cast<double>(out[0].scalar<float>()), wrong / 2);
  EXPECT_GT(out[1].flat<float>()[0], w.scalar<float>() + b.scalar<float>());

  // And another one evaluates.
  ASSERT_OK_AND_ASSIGN(const SavedModelBundle eval, LoadSavedModel({}, path, {kSavedModelTagEval}));
  ASSERT_OK_AND_ASSIGN(const ModelSignature measure, eval.Signature("eval"));
  EXPECT_EQ(measure.method_name(), "tensorflow/supervised/eval");
  EXPECT_EQ(names(measure.outputs()),
            (std::vector<std::string>{"loss", "metrics/mse/update_op", "metrics/mse/value",
                                      "predictions"}));
  EXPECT_EQ(eval.meta_graph_def->collection_def().count("saved_model_train_op"), 0u);
  const auto output = [&](const char* name) { return measure.outputs().at(name).name(); };
  for (const float y : {3.f, 5.f}) {
    ASSERT_OK(eval.session
                  ->Run({{measure.inputs().at("x").name(), Tensor::Of({1.f})},
                         {measure.inputs().at("y").name(), Tensor::Of({y})}},
                        {output("metrics/mse/update_op")})
                  .status());
  }
  ASSERT_OK_AND_ASSIGN(out, eval.session->Run({}, {output("metrics/mse/value")}));
  const double worse = loss_of(w.scalar<float>() + b.scalar<float>() - 5);
  EXPECT_NEAR(static_cast<double>(out[0].scalar<float>()), (wrong + worse) / 2, 1e-4);

  ASSERT_OK_AND_ASSIGN(const LoadedModel serving, LoadModel(path));
  ASSERT_OK_AND_ASSIGN(const auto predicted, serving.Predict({{"x", Tensor::Of({0.f})}}));
  EXPECT_FLOAT_EQ(predicted.at("output").flat<float>()[0], b.scalar<float>());
}

TEST_F(EstimatorTest, ExportsTheGraphsThatAreAskedFor) {
  const Estimator line = Line();
  ASSERT_OK(line.Train(Points, {.max_steps = 1}).status());
  EXPECT_STATUS(line.ExportAllSavedModels(dir_ + "/none", {}), kInvalid,
                "Estimator: export: a receiver function must be given to train, evaluate or "
                "predict, got none");
  EXPECT_STATUS(line.ExportAllSavedModels(
                    dir_ + "/none", {.eval = BuildRawSupervisedInputReceiverFn(
                                         {{"x", {DT_FLOAT, {-1}}}}, {{"x", {DT_FLOAT, {-1}}}})}),
                kInvalid,
                "ServingInputReceiver: features and labels must have different names, got 'x' in "
                "both");
  EXPECT_STATUS(line.ExportAllSavedModels(dir_ + "/none", {.eval = FeedX}), kInvalid, "labels");
  EXPECT_FALSE(fs()->FileExists(dir_ + "/none"));
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      line.ExportAllSavedModels(
          dir_ + "/eval", {.eval = BuildRawSupervisedInputReceiverFn({{"x", {DT_FLOAT, {-1}}}},
                                                                     {{"y", {DT_FLOAT, {-1}}}})}));
  EXPECT_OK(LoadSavedModel({}, path, {kSavedModelTagEval}).status());
  EXPECT_EQ(LoadModel(path).status().code(), absl::StatusCode::kNotFound);
}

// covers: article 1-20, 1-25: LatestExporter keeps all, or the last five; one exporter, several,
//   none
// covers: scenario F10: latest and best exporters
TEST_F(EstimatorTest, ExportersWriteWhenTheyAreAsked) {
  const Estimator line = Line();
  ASSERT_OK(line.Train(Points, {.max_steps = 1}).status());
  EvalResult result;
  ExporterCall call = {.estimator = line,
                       .export_path = dir_ + "/f",
                       .checkpoint_path = line.latest_checkpoint(),
                       .result = result};
  FinalExporter final("f", ServingInputReceiverFn(FeedX));
  ASSERT_OK_AND_ASSIGN(std::string path, final.Export(call));
  EXPECT_EQ(path, "");
  call.is_the_final_export = true;
  ASSERT_OK_AND_ASSIGN(path, final.Export(call));
  EXPECT_TRUE(fs()->FileExists(path));

  LatestExporter latest("l", ServingInputReceiverFn(FeedX), {.exports_to_keep = 2});
  call.is_the_final_export = false;
  call.export_path = dir_ + "/l";
  for (const char* old : {"1000000001", "1000000002", "temp-1000000003", "100000000", "mine"}) {
    ASSERT_OK(fs()->RecursivelyCreateDirectory(absl::StrCat(call.export_path, "/", old)));
  }
  ASSERT_OK_AND_ASSIGN(path, latest.Export(call));
  ASSERT_OK_AND_ASSIGN(const auto left, fs()->GetChildren(call.export_path));
  std::vector<std::string> want = {"1000000002", "temp-1000000003", "100000000", "mine",
                                   Basename(path)};
  std::sort(want.begin(), want.end());
  EXPECT_EQ(left, want) << "directories of others stay";
  call.is_the_final_export = true;
  ASSERT_OK_AND_ASSIGN(path, latest.Export(call));
  EXPECT_EQ(path, "") << "this checkpoint is exported already";
  EXPECT_STATUS(
      LatestExporter("l", ServingInputReceiverFn(FeedX), {.exports_to_keep = 0}).Export(call),
      kInvalid, "LatestExporter 'l': exports_to_keep must be > 0, got 0");
}

}  // namespace
}  // namespace millrace
