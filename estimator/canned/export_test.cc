// SPDX-License-Identifier: Apache-2.0
//
// What a trained pre-made model offers when it is exported: the same predictions, by Example, CSV
// and JSON, wherever the export is put; an embedding; a frozen graph.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "data/feature_spec.h"
#include "estimator/canned/dnn.h"
#include "estimator/canned/dnn_linear_combined.h"
#include "estimator/canned/logits.h"
#include "estimator/canned/testing/premade_test.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/parse_spec.h"
#include "estimator/estimator.h"
#include "estimator/export_output.h"
#include "estimator/heads/regression_head.h"
#include "estimator/model_fn.h"
#include "estimator/model_tensors.h"
#include "estimator/serving_input.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/freeze_graph.h"
#include "saver/loaded_model.h"
#include "saver/saved_model.h"
#include "train/gradient_descent.h"

// covers: training: pre-made Estimators have TensorFlow's defaults and names; checkpoint and
//   signatures of the same model in TensorFlow have the same names, dtypes, shapes and parts
// covers: training: Examples, CSV rows and JSON values predict the same; a vocabulary travels with
//   the export; a frozen export predicts the same
// covers: article 0-10, 0-11: pre-made Estimators; wide and deep with two optimizers
// covers: article 0-22, 0-23: receivers of values, CSV rows (some columns dropped) and Examples
// covers: article 4-20: variables become constants
// covers: scenario F11: exports by JSON, CSV, Examples; an embedding, a vocabulary, a frozen graph

namespace millrace {
namespace {

std::string Example(float age, const std::string& trade) {
  tensorflow::Example example;
  auto& features = *example.mutable_features()->mutable_feature();
  features["age"].mutable_float_list()->add_value(age);
  features["trade"].mutable_bytes_list()->add_value(trade);
  return example.SerializeAsString();
}

// What is in a directory, copied to another.
void CopyTree(FileSystem* fs, const std::string& from, const std::string& to) {
  ASSERT_OK(fs->RecursivelyCreateDirectory(to));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> children, fs->GetChildren(from));
  for (const std::string& child : children) {
    const std::string source = JoinPath(from, child), target = JoinPath(to, child);
    ASSERT_OK_AND_ASSIGN(const bool is_directory, fs->IsDirectory(source));
    if (is_directory) {
      CopyTree(fs, source, target);
    } else {
      ASSERT_OK_AND_ASSIGN(const std::string content, ReadFileToString(fs, source));
      ASSERT_OK(WriteFileAtomically(fs, target, content));
    }
  }
}

class ExportTest : public PremadeTest {
 protected:
  ExportTest() {
    EXPECT_OK(WriteFileAtomically(fs(), vocabulary_, "baker\nsmith\nminer\n"));
    trade_ = CategoricalColumnWithVocabularyFile("trade", vocabulary_, {.num_oov_buckets = 2});
  }

  Estimator Trained() {
    const NumericColumn age("age");
    const Estimator estimator =
        DNNLinearCombinedClassifier({.linear_feature_columns = {trade_},
                                     .dnn_feature_columns = {age, EmbeddingColumn(trade_, 3)},
                                     .dnn_hidden_units = {4}},
                                    InDir());
    EXPECT_OK(estimator.Train(
        Rows({{"age", ages_}, {"trade", trades_}}, {Tensor::Of<int64_t>({1, 0, 1})}),
        {.max_steps = 20}));
    return estimator;
  }
  StatusOr<FeatureSpecs> Specs() const {
    return MakeParseExampleSpec({NumericColumn("age"), trade_});
  }

  // `logits` of the three rows, by the model in this process.
  Tensor Logits(const Estimator& estimator) {
    auto predicted = Predicted(estimator, Rows({{"age", ages_}, {"trade", trades_}}));
    std::vector<float> logits;
    for (const Tensor& row : predicted["logits"]) logits.push_back(row.flat<float>()[0]);
    EXPECT_EQ(logits.size(), 3u);
    return Tensor::Of({{logits[0]}, {logits[1]}, {logits[2]}});
  }

  const std::string vocabulary_ = dir_ + "_trades.txt";
  CategoricalColumn trade_;
  const Tensor ages_ = Tensor::Of({20.f, 30.f, 40.f});
  const Tensor trades_ = Tensor::Of<std::string>({"baker", "smith", "diver"});
  const Tensor examples_ =
      Tensor::Of<std::string>({Example(20, "baker"), Example(30, "smith"), Example(40, "diver")});
};

// covers: training: exports may have graphs that train and evaluate, by TensorFlow's tags,
//   signatures and ops, which another program trains on and measures
// Training and evaluation have ops of their own here; what leaves the program has TensorFlow's.
TEST_F(ExportTest, GraphsThatTrainAndEvaluateAreTensorFlows) {
  const Estimator estimator = Trained();
  const auto receiver = BuildRawSupervisedInputReceiverFn(
      {{"age", {DT_FLOAT, {-1}}}, {"trade", {DT_STRING, {-1}}}}, {{"rich", {DT_INT64, {-1}}}});
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      estimator.ExportAllSavedModels(dir_ + "/all", {.train = receiver, .eval = receiver}));
  for (const char* tag : {kSavedModelTagTrain, kSavedModelTagEval}) {
    ASSERT_OK_AND_ASSIGN(const SavedModelBundle model, LoadSavedModel({}, path, {tag}));
    for (const tensorflow::NodeDef& node : model.meta_graph_def->graph_def().node()) {
      EXPECT_NE(node.op()[0], '_') << node.name();
      EXPECT_EQ(node.device(), "") << node.name();
    }
    ASSERT_OK_AND_ASSIGN(const ModelSignature signature, model.Signature(tag));
    const auto output = [&](const char* name) { return signature.outputs().at(name).name(); };
    const std::vector<Feed> feeds = {
        {signature.inputs().at("age").name(), ages_},
        {signature.inputs().at("trade").name(), trades_},
        {signature.inputs().at("rich").name(), Tensor::Of<int64_t>({1, 0, 1})}};
    if (tag == std::string(kSavedModelTagEval)) {
      EXPECT_EQ(signature.outputs().count("metrics/auc/value"), 1u);
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                           model.session->Run(feeds, {output("predictions/logits")}));
      ExpectTensorNear(out[0], Logits(estimator), 1e-5, 1e-5);
      continue;
    }
    const std::string train_op =
        model.meta_graph_def->collection_def().at("saved_model_train_op").node_list().value(0);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> before,
                         model.session->Run(feeds, {output("loss")}));
    for (int i = 0; i < 20; ++i) ASSERT_OK(model.session->Run(feeds, {}, {train_op}).status());
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> after,
                         model.session->Run(feeds, {output("loss")}));
    EXPECT_LT(after[0].scalar<float>(), before[0].scalar<float>());
  }
  // Those of the graph that trains.
  const auto variables = VariablesIn(path + "/variables/variables");
  EXPECT_TRUE(std::any_of(variables.begin(), variables.end(), [](const std::string& variable) {
    return absl::StrContains(variable, "/Adagrad ");
  }));
}

TEST_F(ExportTest, ExamplesCsvAndJsonPredictTheSame) {
  const Estimator estimator = Trained();
  const Tensor logits = Logits(estimator);
  EXPECT_NE(logits.flat<float>()[0], logits.flat<float>()[1]);
  ASSERT_OK_AND_ASSIGN(const FeatureSpecs specs, Specs());

  const auto exported = [&](const ServingInputReceiverFn& receiver) -> StatusOr<LoadedModel> {
    MR_ASSIGN_OR_RETURN(const std::string path,
                        estimator.ExportSavedModel(dir_ + "/export", receiver));
    return LoadModel(path);
  };
  const auto signatures = [](const LoadedModel& model) {
    std::vector<std::string> keys;
    for (const auto& [key, signature] : model.signatures()) keys.push_back(key);
    return keys;
  };
  const std::vector<std::string> all = {"classification", "predict", "regression",
                                        "serving_default"};

  ASSERT_OK_AND_ASSIGN(const LoadedModel by_example,
                       exported(BuildParsingServingInputReceiverFn(specs)));
  EXPECT_EQ(signatures(by_example), all);
  ASSERT_OK_AND_ASSIGN(const NamedTensors of_examples,
                       by_example.Predict({{"examples", examples_}}, {.signature = "predict"}));
  ExpectTensorNear(of_examples.at("logits"), logits, 1e-6, 1e-6);
  // The three methods agree with each other.
  ASSERT_OK_AND_ASSIGN(const NamedTensors classified, by_example.Predict({{"inputs", examples_}}));
  ExpectTensorEqual(classified.at("scores"), of_examples.at("probabilities"));
  ExpectTensorEqual(classified.at("classes"),
                    Tensor::Of<std::string>({{"0", "1"}, {"0", "1"}, {"0", "1"}}));
  ASSERT_OK_AND_ASSIGN(const NamedTensors regressed,
                       by_example.Predict({{"inputs", examples_}}, {.signature = "regression"}));
  ExpectTensorEqual(regressed.at("outputs"), of_examples.at("logistic"));

  // Rows as the training data has them; the label is left out of what the model gets.
  const data::CsvOptions csv = {
      .defaults = {Tensor::Scalar(0.f), Tensor::Scalar("none"), Tensor::Scalar(int64_t{0})},
      .names = {"age", "trade", "hired"}};
  ASSERT_OK_AND_ASSIGN(const LoadedModel by_csv,
                       exported(BuildCsvServingInputReceiverFn(csv, {.left_out = {"hired"}})));
  EXPECT_EQ(signatures(by_csv), all);
  const Tensor rows = Tensor::Of<std::string>({"20,baker,1", "30,smith,", "40,diver,0"});
  ASSERT_OK_AND_ASSIGN(const NamedTensors of_rows,
                       by_csv.Predict({{"csv_row", rows}}, {.signature = "predict"}));
  ExpectTensorEqual(of_rows.at("logits"), of_examples.at("logits"));

  ASSERT_OK_AND_ASSIGN(const LoadedModel by_json, exported(BuildJsonServingInputReceiverFn(specs)));
  EXPECT_EQ(signatures(by_json), std::vector<std::string>{"predict"});
  ASSERT_OK_AND_ASSIGN(
      const NamedTensors of_values,
      by_json.Predict({{"age", ages_}, {"trade", trades_}}, {.signature = "predict"}));
  ExpectTensorEqual(of_values.at("logits"), of_examples.at("logits"));
}

TEST_F(ExportTest, AVocabularyTravelsWithTheExport) {
  const Estimator estimator = Trained();
  ASSERT_OK_AND_ASSIGN(const FeatureSpecs specs, Specs());
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      estimator.ExportSavedModel(dir_ + "/export", BuildParsingServingInputReceiverFn(specs)));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> assets, fs()->GetChildren(path + "/assets"));
  ASSERT_EQ(assets.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const std::string words,
                       ReadFileToString(fs(), JoinPath(path + "/assets", assets[0])));
  EXPECT_EQ(words, "baker\nsmith\nminer\n");
  const Tensor logits = Logits(estimator);

  // Somewhere else, with the places gone that it was made in.
  const std::string elsewhere = dir_ + "_elsewhere";
  fs()->RecursivelyDelete(elsewhere).IgnoreError();
  CopyTree(fs(), path, elsewhere);
  ASSERT_OK(fs()->RecursivelyDelete(dir_));
  ASSERT_OK(fs()->DeleteFile(vocabulary_));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(elsewhere));
  ASSERT_OK_AND_ASSIGN(const NamedTensors predicted,
                       model.Predict({{"examples", examples_}}, {.signature = "predict"}));
  ExpectTensorNear(predicted.at("logits"), logits, 1e-6, 1e-6);
}

// covers: article 1-19: an export offers the chosen outputs, an embedding too
TEST_F(ExportTest, AnEmbeddingIsAnOutputOfItsOwn) {
  const DenseColumn embedding = EmbeddingColumn(CategoricalColumnWithIdentity("id", 4), 2);
  const Estimator estimator = *Estimator::Make(
      [=](const Scope& scope, const Features& features, const Labels& labels, Mode mode) {
        const Output rows = InputLayer(scope.WithName("rows"), features, {embedding});
        const NetworkLogits network =
            DnnLogits(scope, features, mode, {.feature_columns = {embedding}});
        GradientDescentOptimizer optimizer({.learning_rate = 0.1});
        EstimatorSpec spec = RegressionHead()->CreateEstimatorSpec(
            scope, {.features = features,
                    .mode = mode,
                    .logits = network.logits,
                    .labels = labels,
                    .optimizer = mode == Mode::kTrain ? &optimizer : nullptr});
        if (mode == Mode::kPredict) spec.export_outputs["row"] = PredictOutput({{"row", rows}});
        return spec;
      },
      InDir());
  ASSERT_OK(estimator.Train(Rows({{"id", Tensor::Of<int64_t>({0, 3})}}, {Tensor::Of({1.f, 2.f})}),
                            {.max_steps = 2}));
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      estimator.ExportSavedModel(dir_ + "/export",
                                 BuildRawServingInputReceiverFn({{"id", {DT_INT64, {-1}}}})));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(path));
  ASSERT_OK_AND_ASSIGN(const NamedTensors got,
                       model.Predict({{"id", Tensor::Of<int64_t>({3, 1})}}, {.signature = "row"}));
  ASSERT_OK_AND_ASSIGN(const Tensor table,
                       estimator.GetVariableValue("rows/id_embedding/embedding_weights"));
  const auto t = table.flat<float>();
  ExpectTensorEqual(got.at("row"), Tensor::Of({{t[6], t[7]}, {t[2], t[3]}}));
}

TEST_F(ExportTest, AFrozenGraphPredictsTheSame) {
  const Estimator estimator =
      DNNRegressor({.hidden_units = {3},
                    .feature_columns = {NumericColumn("x"),
                                        EmbeddingColumn(CategoricalColumnWithIdentity("id", 4), 2)},
                    .batch_norm = true},
                   InDir());
  const Tensor x = Tensor::Of({1.f, -2.f}), id = Tensor::Of<int64_t>({0, 3});
  ASSERT_OK(
      estimator.Train(Rows({{"x", x}, {"id", id}}, {Tensor::Of({1.f, 2.f})}), {.max_steps = 5}));
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      estimator.ExportSavedModel(
          dir_ + "/export",
          BuildRawServingInputReceiverFn({{"x", {DT_FLOAT, {-1}}}, {"id", {DT_INT64, {-1}}}})));
  ASSERT_OK_AND_ASSIGN(const SavedModelBundle model,
                       LoadSavedModel({}, path, {kSavedModelTagServe}));
  ASSERT_OK_AND_ASSIGN(const ModelSignature signature, model.Signature("predict"));
  const std::string output = signature.outputs().at("predictions").name();
  ASSERT_OK_AND_ASSIGN(
      const FrozenGraph frozen,
      FreezeGraph(model.session.get(), model.meta_graph_def->graph_def(), {.outputs = {output}}));
  for (const auto& node : frozen.graph.node()) {
    EXPECT_EQ(node.op().find("Variable"), std::string::npos) << node.name();
  }
  const std::vector<Feed> feeds = {{signature.inputs().at("x").name(), x},
                                   {signature.inputs().at("id").name(), id}};
  ASSERT_OK_AND_ASSIGN(const auto want, model.session->Run(feeds, {output}));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(frozen.graph));
  ASSERT_OK_AND_ASSIGN(const auto got, session->Run(feeds, {output}));
  ExpectTensorEqual(got[0], want[0]);
}

}  // namespace
}  // namespace millrace
