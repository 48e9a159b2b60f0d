// SPDX-License-Identifier: Apache-2.0
//
// What a user writes: functions that take what they want, tensors by names, and the rules of what
// they return.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "estimator/serving_input.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/sparse/sparse_tensor.h"
#include "runtime/testing/op_test.h"
#include "train/metrics.h"
#include "train/session_run_hook.h"

// covers: input: receivers take Examples, CSV rows and JSON instances
// covers: article 0-15: input functions with and without arguments
// covers: article 3-3: train, evaluate, predict are three modes
// covers: article 3-4: what each mode's spec must have
// covers: article 3-11: an EstimatorSpec with eleven fields

namespace millrace {
namespace {

EstimatorSpec Predicts(const Output& y) {
  return EstimatorSpec{.mode = Mode::kPredict, .predictions = y};
}

class ModelFnTest : public testing::Test {
 protected:
  StatusOr<EstimatorSpec> Call(const ModelFn& f, Mode mode = Mode::kPredict) {
    return f(ModelFnCall{root_, features_, labels_, mode, params_, config_});
  }
  Scope root_;
  Output x_ = Placeholder(root_.WithName("x"), DT_FLOAT, {});
  Features features_ = Features({{"x", x_}}).In(root_);
  Labels labels_ = Labels().In(root_);
  Params params_;
  RunConfig config_;
};

TEST_F(ModelFnTest, TakesWhatItWants) {
  const auto least = [](const Scope&, const Features& f) { return Predicts(f["x"]); };
  EXPECT_FALSE(ModelFn(least).takes_labels());
  EXPECT_OK(Call(least).status());
  EXPECT_OK(Call([](const Scope&, const Features& f, Mode) { return Predicts(f); }).status());
  EXPECT_OK(Call([](const Scope&, Output f, const Params&) { return Predicts(f); }).status());
  const auto all = [](const Scope&, const Features& f, const Labels&, Mode mode, const Params&,
                      const RunConfig& config) -> StatusOr<EstimatorSpec> {
    EXPECT_EQ(mode, Mode::kPredict);
    EXPECT_EQ(config.task_type(), "worker");
    return Predicts(f["x"]);
  };
  EXPECT_TRUE(ModelFn(all).takes_labels());
  EXPECT_TRUE(ModelFn(all).takes_params());
  EXPECT_OK(Call(all).status());
  const auto outputs = [](const Scope& scope, Output f, Output l) {
    return Predicts(Add(scope, f, l));
  };
  EXPECT_TRUE(ModelFn(outputs).takes_labels());
  labels_ = Labels(x_).In(root_);
  EXPECT_OK(Call(outputs).status());
}

TEST_F(ModelFnTest, ErrorsOfTheGraphAreItsErrors) {
  const auto wrong = [](const Scope&, const Features& f) { return Predicts(f["y"]); };
  const Status status = Call(wrong).status();
  EXPECT_STATUS(status, absl::StatusCode::kInvalidArgument,
                "Estimator: features['y'] must be one of those given, 'x', got 'y'");
  EXPECT_STATUS(status, absl::StatusCode::kInvalidArgument, "model_test.cc:");
  EXPECT_STATUS(Call(ModelFn()), absl::StatusCode::kInvalidArgument, "model_fn must be a function");
}

TEST_F(ModelFnTest, SeveralTensorsAreNotOne) {
  features_ = Features({{"a", x_}, {"b", x_}}).In(root_);
  EXPECT_STATUS(Call([](const Scope&, Output f) { return Predicts(f); }),
                absl::StatusCode::kInvalidArgument,
                "features used as one tensor must be one, got 'a', 'b'");
}

TEST_F(ModelFnTest, LabelsThatAreNotThereAreAnError) {
  EXPECT_STATUS(
      Call([](const Scope& scope, Output f, Output l) { return Predicts(Add(scope, f, l)); }),
      absl::StatusCode::kInvalidArgument, "labels used as one tensor must be one, got none");
}

TEST(ModelTensorsTest, ASingleOneHasItsDefaultName) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  const Features one = x;
  EXPECT_TRUE(one.is_single());
  EXPECT_EQ(one["feature"], x);
  EXPECT_EQ(one.single(), x);
  const Labels label = x;
  EXPECT_TRUE(label.has("label"));
  EXPECT_EQ(Predictions(x).map().begin()->first, "output");
  EXPECT_EQ(Receivers(x).map().begin()->first, "input");
  const Features named = {{"age", x}};
  EXPECT_FALSE(named.is_single());
  EXPECT_EQ(named.single(), x);
  EXPECT_TRUE(Labels().empty());
}

TEST_F(ModelFnTest, FeaturesAndLabelsMayBeSparse) {
  const SparseTensor words = {Placeholder(root_, DT_INT64, {-1, 2}),
                              Placeholder(root_, DT_STRING, {-1}),
                              Placeholder(root_, DT_INT64, {2})};
  const Features both = {{"x", x_}, {"words", words}};
  EXPECT_TRUE(both.has("words"));
  EXPECT_TRUE(both.is_sparse("words"));
  EXPECT_FALSE(both.is_sparse("x"));
  EXPECT_EQ(both["x"], x_);
  EXPECT_EQ(both.sparse("words").values, words.values);
  EXPECT_EQ(both.map().size(), 1u);
  EXPECT_EQ(both.sparse_map().size(), 1u);
  EXPECT_FALSE(Features(Features::Map(), {{"words", words}}).empty());
  EXPECT_TRUE(Labels({{"tags", words}}).is_sparse("tags"));

  features_ = both.In(root_);
  EXPECT_STATUS(Call([](const Scope&, Output f) { return Predicts(f); }),
                absl::StatusCode::kInvalidArgument,
                "features used as one tensor must be one dense one, got 'x', 'words' (sparse)");
}

TEST_F(ModelFnTest, ASparseTensorIsAskedForAsSuch) {
  const SparseTensor words = {Placeholder(root_, DT_INT64, {-1, 2}),
                              Placeholder(root_, DT_STRING, {-1}),
                              Placeholder(root_, DT_INT64, {2})};
  features_ = Features({{"x", x_}, {"words", words}}).In(root_);
  EXPECT_STATUS(Call([](const Scope&, const Features& f) { return Predicts(f["words"]); }),
                absl::StatusCode::kInvalidArgument,
                "features['words'] must be a dense tensor here, got a sparse one; ask for it by "
                "features.sparse");
}

TEST_F(ModelFnTest, ADenseTensorIsNoSparseOne) {
  features_ = Features({{"x", x_}}).In(root_);
  EXPECT_STATUS(
      Call([](const Scope&, const Features& f) { return Predicts(f.sparse("x").values); }),
      absl::StatusCode::kInvalidArgument,
      "features['x'] must be a sparse tensor here, got a dense one");
}

TEST(ParamsTest, ValuesHaveTheTypeThatIsAskedFor) {
  const Params params = {{"rate", 0.5}, {"layers", 3}, {"name", "Adam"}, {"on", true}};
  EXPECT_EQ(params.Get("rate", 0.1), 0.5);
  EXPECT_EQ(params.Get("layers", 1), 3);
  EXPECT_EQ(params.Get("layers", 1.5), 3.0);
  EXPECT_EQ(params.Get("name", ""), "Adam");
  EXPECT_TRUE(params.Get("on", false));
  EXPECT_EQ(params.Get("name", 7), 7) << "a text is no number";
  EXPECT_EQ(params.Get("none", 2.5), 2.5);
  EXPECT_TRUE(params.has("rate"));
  EXPECT_FALSE(params.has("none"));
}

class InputFnTest : public testing::Test {
 protected:
  StatusOr<Input> Call(const InputFn& f) {
    return f(InputFnCall{root_, Mode::kTrain, params_, config_});
  }
  Scope root_;
  Params params_;
  RunConfig config_;
};

TEST_F(InputFnTest, ReturnsTensorsOrADataset) {
  ASSERT_OK_AND_ASSIGN(const Input dataset, Call([] { return data::Dataset::Range(3); }));
  EXPECT_TRUE(dataset.dataset().has_value());
  ASSERT_OK_AND_ASSIGN(const Input both, Call([](const Scope& scope) {
                         return Input({{"x", Const(scope, 1.f)}}, Const(scope, 2.f));
                       }));
  EXPECT_TRUE(both.features().has("x"));
  EXPECT_TRUE(both.labels().is_single());
  ASSERT_OK_AND_ASSIGN(const Input one, Call([](const Scope& scope) { return Const(scope, 1.f); }));
  EXPECT_TRUE(one.features().is_single());
  EXPECT_TRUE(one.labels().empty());
  ASSERT_OK_AND_ASSIGN(const Input pair, Call([](const Scope& scope, Mode mode) {
                         EXPECT_EQ(mode, Mode::kTrain);
                         return std::pair(Features(Const(scope, 1.f)), Labels(Const(scope, 2.f)));
                       }));
  EXPECT_FALSE(pair.labels().empty());
  EXPECT_STATUS(Call([](const Params&, const RunConfig&) -> StatusOr<data::Dataset> {
                  return absl::NotFoundError("no file");
                }),
                absl::StatusCode::kNotFound, "no file");
  EXPECT_STATUS(Call(InputFn()), absl::StatusCode::kInvalidArgument, "input_fn must be a function");
}

// --- What a spec must have -----------------------------------------------------------------------

class NoHook : public SessionRunHook {
  std::string name() const override { return "NoHook"; }
};

struct WrongSpec {
  std::string name;
  Mode mode;
  std::function<EstimatorSpec(const Scope&)> make;
  std::string message;
};
class WrongSpecTest : public testing::TestWithParam<WrongSpec> {};

TEST_P(WrongSpecTest, NamesTheField) {
  Scope root;
  EstimatorSpec spec = GetParam().make(root);
  ASSERT_OK(root.status());
  EXPECT_STATUS(CheckSpec(root, GetParam().mode, &spec), absl::StatusCode::kInvalidArgument,
                GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongSpecTest,
    testing::ValuesIn(std::vector<WrongSpec>{
        {"TrainWithoutLoss", Mode::kTrain,
         [](const Scope&) { return EstimatorSpec{.mode = Mode::kTrain}; },
         "model_fn in mode train: loss must be given, got none"},
        {"TrainWithoutOp", Mode::kTrain,
         [](const Scope& s) { return EstimatorSpec{.mode = Mode::kTrain, .loss = Const(s, 1.f)}; },
         "model_fn in mode train: train_op must be given, got none"},
        {"EvalWithoutLoss", Mode::kEval,
         [](const Scope&) { return EstimatorSpec{.mode = Mode::kEval}; },
         "model_fn in mode eval: loss must be given, got none"},
        {"PredictWithoutPredictions", Mode::kPredict,
         [](const Scope&) { return EstimatorSpec{.mode = Mode::kPredict}; },
         "model_fn in mode infer: predictions must be given, got none"},
        {"OtherMode", Mode::kEval,
         [](const Scope& s) { return EstimatorSpec{.mode = Mode::kTrain, .loss = Const(s, 1.f)}; },
         "mode of the EstimatorSpec must be that of the call, got train"},
        {"LossOfManyElements", Mode::kEval,
         [](const Scope& s) {
           return EstimatorSpec{.mode = Mode::kEval, .loss = Const(s, Tensor::Of({1.f, 2.f}))};
         },
         "loss must have one element, got 'Const:0' of shape [2]"},
        {"LossOfIntegers", Mode::kEval,
         [](const Scope& s) { return EstimatorSpec{.mode = Mode::kEval, .loss = Const(s, 1)}; },
         "loss must be float or double, got int32 'Const:0'"},
        {"OtherGraph", Mode::kPredict,
         [](const Scope&) {
           Scope other;
           return EstimatorSpec{.mode = Mode::kPredict, .predictions = Const(other, 1.f)};
         },
         "predictions['output'] must be of the scope's graph, got 'Const' of another one"},
        {"MetricCalledLoss", Mode::kEval,
         [](const Scope& s) {
           const Output x = Const(s, 1.f);
           return EstimatorSpec{
               .mode = Mode::kEval, .loss = x, .eval_metric_ops = {{"loss", {x, x}}}};
         },
         "eval_metric_ops must have names other than 'loss' and 'global_step'"},
        {"MetricWithoutUpdate", Mode::kEval,
         [](const Scope& s) {
           const Output x = Const(s, 1.f);
           return EstimatorSpec{
               .mode = Mode::kEval, .loss = x, .eval_metric_ops = {{"m", {x, Output()}}}};
         },
         "the update of eval_metric_ops['m'] must be of the graph, got an invalid one"},
        {"NullHook", Mode::kPredict,
         [](const Scope& s) {
           return EstimatorSpec{
               .mode = Mode::kPredict, .predictions = Const(s, 1.f), .prediction_hooks = {nullptr}};
         },
         "prediction_hooks must be hooks, got a null one"},
        {"HookTwice", Mode::kPredict,
         [](const Scope& s) {
           const auto hook = std::make_shared<NoHook>();
           return EstimatorSpec{.mode = Mode::kPredict,
                                .predictions = Const(s, 1.f),
                                .prediction_hooks = {hook, hook}};
         },
         "prediction_hooks must be hooks of their own, got NoHook twice"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(EstimatorSpecTest, ALossOfOneElementBecomesAScalar) {
  Scope root;
  EstimatorSpec spec{.mode = Mode::kEval, .loss = Const(root, Tensor::Of<float>({{3.f}}))};
  ASSERT_OK(CheckSpec(root, Mode::kEval, &spec));
  EXPECT_EQ(root.shape(spec.loss), PartialShape::Scalar());
}

// --- Exported outputs ----------------------------------------------------------------------------

TEST(ExportOutputTest, TheDefaultSignature) {
  Scope root;
  const Output y = Const(root, 1.f), text = Const(root, "a");
  ASSERT_OK_AND_ASSIGN(auto none, ResolveExportOutputs({}, y));
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none.at("serving_default").outputs.map().begin()->first, "output");
  ASSERT_OK_AND_ASSIGN(auto one, ResolveExportOutputs({{"mine", RegressionOutput(y)}}, y));
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one.at("serving_default").kind, ExportOutput::Kind::kRegression);
  EXPECT_STATUS(ResolveExportOutputs({{"a", RegressionOutput(y)}, {"b", RegressionOutput(y)}}, y),
                absl::StatusCode::kInvalidArgument,
                "model_fn: export_outputs must have one called 'serving_default', got 'a', 'b'");
  EXPECT_STATUS(ResolveExportOutputs({{"a", RegressionOutput(text)}}, y),
                absl::StatusCode::kInvalidArgument,
                "export_outputs['a'].value must be of a floating type, got string");
  EXPECT_STATUS(ResolveExportOutputs({{"a", ClassificationOutput(text)}}, y),
                absl::StatusCode::kInvalidArgument, "export_outputs['a'].scores");
  EXPECT_STATUS(ResolveExportOutputs({{"a", ClassificationOutput(y, y)}}, y),
                absl::StatusCode::kInvalidArgument,
                "export_outputs['a'].classes must be strings, got float");
  EXPECT_STATUS(ResolveExportOutputs({{"a", ClassificationOutput(Output())}}, y),
                absl::StatusCode::kInvalidArgument, "must have scores or classes, got none");
}

// --- Receivers -----------------------------------------------------------------------------------

TEST(ServingInputTest, RawReceiversHaveAnOpenBatch) {
  Scope root;
  ASSERT_OK_AND_ASSIGN(
      const ServingInputReceiver receiver,
      BuildRawServingInputReceiverFn({{"x", {DT_FLOAT, {32, 3}}}, {"k", {DT_INT64, {1}}}})(root));
  EXPECT_EQ(root.shape(receiver.features["x"]).ToString(), "[?,3]");
  EXPECT_EQ(receiver.receivers["x"], receiver.features["x"]);
  EXPECT_EQ(receiver.features["k"].name(), "k:0");
  Scope fixed;
  ASSERT_OK_AND_ASSIGN(const ServingInputReceiver of_four,
                       BuildRawServingInputReceiverFn({{"x", {DT_FLOAT, {1, 3}}}}, 4)(fixed));
  EXPECT_EQ(fixed.shape(of_four.features["x"]).ToString(), "[4,3]");
  EXPECT_STATUS(BuildRawServingInputReceiverFn({{"x", {DT_FLOAT, {1}}}}, 0)(fixed),
                absl::StatusCode::kInvalidArgument, "default_batch_size must be > 0, got 0");
}

TEST(ServingInputTest, ParsedReceiversTakeExamples) {
  Scope root;
  ASSERT_OK_AND_ASSIGN(
      const ServingInputReceiver receiver,
      BuildParsingServingInputReceiverFn(
          {{"x", FixedLenFeature{.dtype = DT_FLOAT, .shape = {2}}},
           {"y", FixedLenFeature{.dtype = DT_INT64, .default_value = Tensor::Scalar(int64_t{7})}}})(
          root));
  EXPECT_EQ(receiver.receivers["examples"].name(), "input_example_tensor:0");
  EXPECT_EQ(root.shape(receiver.features["x"]).ToString(), "[?,2]");
  EXPECT_EQ(receiver.features["y"].dtype(), DT_INT64);
  EXPECT_STATUS(BuildParsingServingInputReceiverFn(
                    {{"x", FixedLenFeature{.default_value = Tensor::Scalar(7)}}})(root),
                absl::StatusCode::kInvalidArgument,
                "feature 'x' must have a default value of float, got int32");
}

TEST(ServingInputTest, ParsedFeaturesMayBeSparse) {
  Scope root;
  ASSERT_OK_AND_ASSIGN(
      const ServingInputReceiver receiver,
      BuildParsingServingInputReceiverFn({{"words", VarLenFeature{.dtype = DT_STRING}},
                                          {"x", FixedLenFeature{}},
                                          {"m", SparseFeature{.index_key = {"i"},
                                                              .value_key = "v",
                                                              .size = {9},
                                                              .already_sorted = true}}})(root));
  EXPECT_TRUE(receiver.features.is_sparse("words"));
  EXPECT_EQ(root.shape(receiver.features.sparse("words").indices).ToString(), "[?,2]");
  EXPECT_EQ(receiver.features.sparse("m").dtype(), DT_FLOAT);
  EXPECT_FALSE(receiver.features.is_sparse("x"));
  EXPECT_OK(root.status());
}

TEST(ServingInputTest, CsvReceiversTakeRows) {
  const data::CsvOptions csv = {
      .defaults = {Tensor::Scalar(0.f), Tensor::Scalar(""), Tensor::Vector<int64_t>({})},
      .names = {"age", "education", "label"}};
  Scope root;
  ASSERT_OK_AND_ASSIGN(const ServingInputReceiver receiver,
                       BuildCsvServingInputReceiverFn(csv, {.left_out = {"label"}})(root));
  EXPECT_EQ(receiver.receivers["csv_row"].name(), "csv_row:0");
  EXPECT_EQ(receiver.features.map().size(), 2u);
  EXPECT_EQ(root.shape(receiver.features["age"]).ToString(), "[?,1]");
  EXPECT_EQ(receiver.features["education"].dtype(), DT_STRING);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      EvaluateGraph(root,
                    {{receiver.receivers["csv_row"], Tensor::Of({"25, 11th,0", ", HS-grad,1"})}},
                    {receiver.features["age"], receiver.features["education"]}));
  ExpectTensorEqual(got[0], Tensor::Of<float>({{25}, {0}}));
  ExpectTensorEqual(got[1], Tensor::Of({{" 11th"}, {" HS-grad"}}));
}

TEST(ServingInputTest, WrongCsvReceiversAreErrors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::vector<Tensor> two = {Tensor::Scalar(0.f), Tensor::Scalar("")};
  const auto error = [](data::CsvOptions csv, CsvServingOptions options = {}) {
    Scope root;
    return BuildCsvServingInputReceiverFn(std::move(csv), std::move(options))(root).status();
  };
  EXPECT_STATUS(error({.defaults = two}), kInvalid, "CSV columns must have names, got none");
  EXPECT_STATUS(error({.defaults = two, .names = {"a"}}), kInvalid, "there must be 2 names, got 1");
  EXPECT_STATUS(error({.defaults = two, .names = {"a", "a"}}), kInvalid,
                "names of CSV columns must differ, got 'a' twice");
  EXPECT_STATUS(error({.defaults = two, .names = {"a", "b"}}, {.left_out = {"c"}}), kInvalid,
                "what is left out must be a CSV column, got 'c'");
  EXPECT_STATUS(error({.defaults = two, .names = {"a", "b"}, .field_delim = ";;"}), kInvalid,
                "field_delim must be one character");
  EXPECT_STATUS(error({.defaults = two, .names = {"a", "b"}}, {.default_batch_size = 0}), kInvalid,
                "default_batch_size must be > 0, got 0");
}

TEST(ServingInputTest, JsonReceiversTakeAValuePerFeature) {
  Scope root;
  ASSERT_OK_AND_ASSIGN(
      const ServingInputReceiver receiver,
      BuildJsonServingInputReceiverFn({{"age", FixedLenFeature{.shape = {1}}},
                                       {"n", FixedLenFeature{.dtype = DT_INT64}},
                                       {"pixels", FixedLenFeature{.shape = {28, 28}}},
                                       {"word", VarLenFeature{.dtype = DT_STRING}}})(root));
  EXPECT_EQ(receiver.receivers["age"], receiver.features["age"]);
  EXPECT_EQ(receiver.receivers["age"].name(), "age:0");
  EXPECT_EQ(root.shape(receiver.features["age"]).ToString(), "[?]");
  EXPECT_EQ(root.shape(receiver.features["n"]).ToString(), "[?]");
  EXPECT_EQ(root.shape(receiver.features["pixels"]).ToString(), "[?,28,28]");
  EXPECT_EQ(receiver.features["word"].dtype(), DT_STRING);
  EXPECT_STATUS(BuildJsonServingInputReceiverFn({{"x", FixedLenSequenceFeature{}}})(root),
                absl::StatusCode::kInvalidArgument,
                "feature 'x' must be FixedLen or VarLen to be served as JSON, got a sequence");
}

TEST(ServingInputTest, WrongReceiversAreErrors) {
  Scope root, other;
  EXPECT_STATUS(ServingInputReceiverFn()(root), absl::StatusCode::kInvalidArgument,
                "serving_input_receiver_fn must be a function");
  EXPECT_STATUS(ServingInputReceiverFn([](const Scope& s) {
                  return ServingInputReceiver{.features = Const(s, 1.f)};
                })(root),
                absl::StatusCode::kInvalidArgument, "receivers must be given, got none");
  EXPECT_STATUS(ServingInputReceiverFn([&](const Scope& s) {
                  return ServingInputReceiver{.features = Const(s, 1.f),
                                              .receivers = Const(other, 1.f)};
                })(root),
                absl::StatusCode::kInvalidArgument,
                "receivers['input'] must be a tensor of the scope's graph, got one of another");
}

}  // namespace
}  // namespace millrace
