// SPDX-License-Identifier: Apache-2.0
//
// Models of feature columns that real TensorFlow trained, built once more in C++: names, shapes and
// slices of their variables, and what they predict from them.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/model_tensors.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"
#include "tests/compat/json_tensor.h"
#include "train/adam.h"

// covers: columns: variables are named absolutely, in parts with slices, in the order of names,
//   never twice
// covers: columns: a DNN regressor restored from TensorFlow's variables predicts what TensorFlow's
//   does; wide and deep gives its logits

namespace millrace {
namespace {

using nlohmann::json;

constexpr char kBabyweight[] = "saved_models/babyweight_dnn_estimator";
constexpr char kTaxi[] = "saved_models/taxi_wide_deep_1_12";

#define SKIP_WITHOUT_SHARED_DATA() \
  if (!SharedDataAvailable()) GTEST_SKIP() << "MILLRACE_SHARED has no data"

// --- The models ----------------------------------------------------------------------------------

// What every estimator of TensorFlow 1.15 cuts its variables with on one machine: one part.
Partitioner OnePart() {
  return MinMaxVariablePartitioner({.max_partitions = 1, .min_slice_size = int64_t{64} << 20});
}

// The layers of a DNN estimator.
Output HiddenLayers(const Scope& dnn, Output x, const std::vector<int64_t>& units, bool batch_norm,
                    bool training) {
  for (size_t i = 0; i < units.size(); ++i) {
    const std::string layer = absl::StrCat("hiddenlayer_", i);
    x = Dense(dnn.WithName(layer), x, units[i], {.activation = Relu, .partitioner = OnePart()});
    if (!batch_norm) continue;
    const Scope inside = dnn.WithSubScope(absl::StrCat("dnn/", layer, "/"));
    x = BatchNormalization(inside.WithName(absl::StrCat("batchnorm_", i)), x, training,
                           {.momentum = 0.999});
  }
  return Dense(dnn.WithName("logits"), x, 1, {.partitioner = OnePart()});
}

InputLayerOutput DnnInput(const Scope& dnn, const Features& features,
                          const std::vector<DenseColumn>& columns) {
  return InputLayer(dnn.WithSubScope("input_from_feature_columns"), features, columns,
                    {.partitioner = OnePart()});
}

std::vector<DenseColumn> BabyweightColumns() {
  const auto words = [](const char* key, const Vocabulary& vocabulary, int64_t dimension) {
    return EmbeddingColumn(CategoricalColumnWithVocabularyList(key, vocabulary), dimension);
  };
  return {NumericColumn("mother_age"),
          NumericColumn("plurality"),
          NumericColumn("gestation_weeks"),
          words("is_male", {"True", "False"}, 2),
          words("mother_race",
                {"White", "Black", "American Indian", "Chinese", "Japanese", "Hawaiian", "Filipino",
                 "Unknown", "Asian Indian", "Korean", "Samaon", "Vietnamese"},
                4),
          words("mother_married", {"True", "False"}, 2),
          words("cigarette_use", {"True", "False", "None"}, 2),
          words("alcohol_use", {"True", "False", "None"}, 2)};
}

Features BabyweightFeatures(const Scope& scope) {
  Features::Map features;
  for (const char* key :
       {"is_male", "mother_race", "mother_married", "cigarette_use", "alcohol_use"}) {
    features[key] = Placeholder(scope.WithName(key), DT_STRING, {-1});
  }
  for (const char* key : {"mother_age", "plurality", "gestation_weeks"}) {
    features[key] = Placeholder(scope.WithName(key), DT_FLOAT, {-1});
  }
  return features;
}

Output Babyweight(const Scope& root, const Features& features, bool training) {
  const Scope dnn = root.WithSubScope("dnn");
  const Output input = DnnInput(dnn, features, BabyweightColumns());
  return HiddenLayers(dnn, input, {32, 22, 15}, /*batch_norm=*/true, training);
}

// Of the columns that tf.Transform made: their keys end in _xf.
Output Taxi(const Scope& root, const Features& features) {
  const Scope dnn = root.WithSubScope("dnn");
  const Output input = DnnInput(
      dnn, features,
      {NumericColumn("trip_miles_xf"), NumericColumn("fare_xf"), NumericColumn("trip_seconds_xf")});
  const Output deep =
      HiddenLayers(dnn, input, {100, 70, 48, 34}, /*batch_norm=*/false, /*training=*/false);
  std::vector<FeatureColumn> wide;
  const std::pair<const char*, int64_t> ids[] = {
      {"payment_type_xf", 1010},   {"company_xf", 1010},        {"pickup_latitude_xf", 10},
      {"pickup_longitude_xf", 10}, {"dropoff_latitude_xf", 10}, {"dropoff_longitude_xf", 10},
      {"trip_start_hour_xf", 24},  {"trip_start_day_xf", 31},   {"trip_start_month_xf", 12}};
  for (const auto& [key, buckets] : ids) {
    wide.push_back(CategoricalColumnWithIdentity(key, buckets, 0));
  }
  const Scope linear = root.WithSubScope("linear").WithSubScope("linear_model");
  const Output sum = LinearModel(
      linear, features, wide, {.variable_scope = "linear/linear_model", .partitioner = OnePart()});
  return Add(root, deep, sum);
}

// --- Variables -----------------------------------------------------------------------------------

// "name float[3,2]" and the slices in which it is stored, for each tensor of a checkpoint.
StatusOr<std::set<std::string>> StoredTensors(const std::string& checkpoint) {
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(FileSystem::Posix(), checkpoint));
  std::set<std::string> texts;
  for (const BundleReader::Entry& entry : reader->entries()) {
    std::string text =
        absl::StrCat(entry.name, " ", DTypeName(entry.dtype), entry.shape.ToString());
    for (const TensorSlice& slice : entry.slices) absl::StrAppend(&text, " ", slice.ToString());
    texts.insert(std::move(text));
  }
  return texts;
}

// The graph's Saver stores what TensorFlow's stored.
void ExpectSameVariables(const Scope& scope, const std::string& checkpoint) {
  ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(scope));
  const Operation init = GlobalVariablesInitializer(scope);
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  const std::string prefix = absl::StrCat(testing::TempDir(), "/same_variables/model");
  ASSERT_OK_AND_ASSIGN(const std::string saved, saver->Save(session.get(), prefix, 1));
  ASSERT_OK_AND_ASSIGN(const std::set<std::string> ours, StoredTensors(saved));
  ASSERT_OK_AND_ASSIGN(const std::set<std::string> theirs, StoredTensors(checkpoint));
  std::vector<std::string> missing, more;
  std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(),
                      std::back_inserter(missing));
  std::set_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                      std::back_inserter(more));
  EXPECT_TRUE(missing.empty()) << "missing here:\n" << absl::StrJoin(missing, "\n");
  EXPECT_TRUE(more.empty()) << "only here:\n" << absl::StrJoin(more, "\n");
}

StatusOr<std::unique_ptr<Session>> RestoredSession(const Scope& scope,
                                                   const std::string& checkpoint) {
  MR_ASSIGN_OR_RETURN(const auto saver, Saver::Make(scope));
  const Operation tables = TablesInitializer(scope);
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(scope));
  MR_RETURN_IF_ERROR(saver->Restore(session.get(), checkpoint));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {tables}).status());
  return session;
}

json CaseOf(const std::string& name) {
  for (const json& one : CasesOfKind("saved_model_run")) {
    if (one.at("name") == name) return one;
  }
  ADD_FAILURE() << "cases.json has no " << name;
  return {};
}

TEST(Babyweight, PredictsFromTensorFlowsVariables) {
  SKIP_WITHOUT_SHARED_DATA();
  Scope root;
  const Features features = BabyweightFeatures(root);
  const Output predictions = Babyweight(root, features, /*training=*/false);
  GlobalStep(root);
  ASSERT_OK(root.status());
  const std::string variables = SharedDataPath(kBabyweight) + "/variables/variables";
  ExpectSameVariables(root, variables);

  ASSERT_OK_AND_ASSIGN(const auto session, RestoredSession(root, variables));
  const json one = CaseOf("babyweight_dnn_estimator/predict");
  std::vector<Feed> feeds;
  for (const auto& [key, value] : one.at("inputs").items()) {
    ASSERT_OK_AND_ASSIGN(Tensor tensor, TensorFromJson(value));
    feeds.emplace_back(features[key], std::move(tensor));
  }
  ASSERT_OK_AND_ASSIGN(const Tensor want, TensorFromJson(one.at("outputs").at("predictions")));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, session->Run(feeds, {predictions}));
  EXPECT_EQ(Difference(out[0], want, 1e-4, 1e-5), "");
}

TEST(Babyweight, TrainsTheVariablesOfTensorFlowsCheckpoint) {
  SKIP_WITHOUT_SHARED_DATA();
  Scope root;
  const Features features = BabyweightFeatures(root);
  const Output predictions = Babyweight(root, features, /*training=*/true);
  const Scope head = root.WithSubScope("head");
  const Output loss = ReduceSum(head, Square(head, predictions));
  AdamOptimizer({.learning_rate = 0.001}).Minimize(head, loss, {.global_step = GlobalStep(root)});
  ASSERT_OK(root.status());
  ExpectSameVariables(root, SharedDataPath("checkpoints/babyweight_1000") + "/model.ckpt-1000");
}

// covers: columns: nodes are TensorFlow's, by op and name
// Each node that TensorFlow made of the columns is here under its name, but for constants (whose
// values become other nodes) and what is listed.
TEST(Babyweight, HasTensorFlowsNodes) {
  SKIP_WITHOUT_SHARED_DATA();
  ASSERT_OK_AND_ASSIGN(const SavedModelBundle theirs,
                       LoadSavedModel({}, SharedDataPath(kBabyweight), {"serve"}));
  Scope root;
  Babyweight(root, BabyweightFeatures(root), /*training=*/false);
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef ours, root.ToGraphDef());
  std::map<std::string, std::string> ops;
  for (const tensorflow::NodeDef& node : ours.node()) ops[node.name()] = node.op();

  constexpr char kLayer[] = "dnn/input_from_feature_columns/input_layer/";
  std::map<std::string, int> different;
  int same = 0;
  for (const tensorflow::NodeDef& node : theirs.meta_graph_def->graph_def().node()) {
    absl::string_view name = node.name();
    if (!absl::ConsumePrefix(&name, kLayer) || node.op() == "Const" ||
        absl::StrContains(name, "/embedding_weights/")) {
      continue;
    }
    const auto found = ops.find(node.name());
    if (found != ops.end() && found->second == node.op()) {
      ++same;
      continue;
    }
    // Of any column: "<key>_embedding/<key>_lookup/range".
    std::string inside(name);
    const std::string key = inside.substr(0, inside.find("_embedding"));
    inside = absl::StrReplaceAll(inside, {{key, "*"}});
    ++different[absl::StrCat(node.op(), " ", inside, ": ",
                             found == ops.end() ? "none" : found->second)];
  }
  const std::map<std::string, int> expected = {
      // Rows of resource variables are gathered where they are; 1.13 wrote reference variables.
      {"GatherV2 *_embedding/*_embedding_weights/embedding_lookup_sparse/embedding_lookup: "
       "ResourceGather",
       5},
      {"Identity "
       "*_embedding/*_embedding_weights/embedding_lookup_sparse/embedding_lookup/Identity: "
       "none",
       5},
      // The ids of a vocabulary are a constant; 1.15 has names of its own for ops of tables.
      {"Range *_embedding/*_lookup/range: none", 5},
      {"Cast *_embedding/*_lookup/ToInt64: none", 5},
      {"LookupTableImportV2 *_embedding/*_lookup/hash_table/table_init: none", 5},
      {"LookupTableFindV2 *_embedding/hash_table_Lookup: none", 5}};
  EXPECT_EQ(different, expected);
  EXPECT_EQ(same, 208);
}

TEST(Taxi, GivesTensorFlowsLogitsForItsTransformedFeatures) {
  SKIP_WITHOUT_SHARED_DATA();
  ASSERT_OK_AND_ASSIGN(const SavedModelBundle theirs,
                       LoadSavedModel({}, SharedDataPath(kTaxi), {"serve"}));
  // What their columns read, by our columns' keys.
  const std::string transformed = "transform/transform/";
  const std::pair<const char*, std::string> sources[] = {
      {"fare_xf", transformed + "scale_to_z_score_1/Select:0"},
      {"trip_miles_xf", transformed + "scale_to_z_score/Select:0"},
      {"trip_seconds_xf", transformed + "scale_to_z_score_2/Select:0"},
      {"company_xf",
       transformed + "compute_and_apply_vocabulary_1/apply_vocab/string_to_index_Lookup:0"},
      {"payment_type_xf",
       transformed + "compute_and_apply_vocabulary/apply_vocab/string_to_index_Lookup:0"},
      {"pickup_latitude_xf", transformed + "bucketize/apply_buckets/ToInt64:0"},
      {"pickup_longitude_xf", transformed + "bucketize_1/apply_buckets/ToInt64:0"},
      {"dropoff_latitude_xf", transformed + "bucketize_2/apply_buckets/ToInt64:0"},
      {"dropoff_longitude_xf", transformed + "bucketize_3/apply_buckets/ToInt64:0"},
      {"trip_start_hour_xf", transformed + "Squeeze_9:0"},
      {"trip_start_day_xf", transformed + "Squeeze_10:0"},
      {"trip_start_month_xf", transformed + "Squeeze_11:0"}};
  const json one = CaseOf("taxi_wide_deep_1_12/predict");
  const json& examples = one.at("inputs").at("examples");
  ASSERT_OK_AND_ASSIGN(const Tensor serialized, TensorFromJson(examples));
  std::vector<FetchName> fetches;
  for (const auto& [key, tensor] : sources) fetches.emplace_back(tensor);
  const auto values =
      theirs.session->Run({Feed(examples.at("tensor").get<std::string>(), serialized)}, fetches);
  ASSERT_OK(values.status());

  Scope root;
  Features::Map features;
  std::vector<Feed> feeds;
  for (size_t i = 0; i < std::size(sources); ++i) {
    const Tensor& value = (*values)[i];
    features[sources[i].first] = Placeholder(root, value.dtype(), {-1});
    feeds.emplace_back(features[sources[i].first], value);
  }
  const Output logits = Taxi(root, features);
  GlobalStep(root);
  ASSERT_OK(root.status());
  const std::string variables = SharedDataPath(kTaxi) + "/variables/variables";
  ExpectSameVariables(root, variables);
  ASSERT_OK_AND_ASSIGN(const auto session, RestoredSession(root, variables));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, session->Run(feeds, {logits}));
  ASSERT_OK_AND_ASSIGN(const Tensor want, TensorFromJson(one.at("outputs").at("logits")));
  EXPECT_EQ(Difference(out[0], want, 0, 1e-4), "");
}

}  // namespace
}  // namespace millrace
