// SPDX-License-Identifier: Apache-2.0
//
// Where variables are is no part of a checkpoint: what was saved with variables placed in turn is
// restored where they are placed by bytes, and the other way round, on two parameter servers that
// are servers of this process. And an Estimator's default places by bytes, in each task alike.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "estimator/input_fn.h"
#include "estimator/mode.h"
#include "estimator/model_fn.h"
#include "estimator/model_graph.h"
#include "estimator/run_config.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/embedding.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/operators.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/process.h"
#include "train/adam.h"
#include "train/session_run_hook.h"
#include "train/train.h"

// covers: clusters: variables are spread over the ps by bytes, in each task alike
// covers: clusters: checkpoints do not depend on where variables are
// covers: clusters: tables above 64 MiB are cut into a part for each ps, unless the program says
//   otherwise; checkpoints do not depend on it
// covers: clusters: the chief's log names the bytes of each ps and what helps where one has too
//   many

namespace millrace {
namespace {

// 4 + 400 + 4 + 40 floats, and a table of 30 rows of 2 in two parts. In turn: a 0, b 1, c 0, d 1,
// the parts 0 and 1. By bytes: a (16 bytes) 0, b (1,600) 1, c 0, d 0, both parts (120 each) 0.
struct Model {
  explicit Model(const DeviceFunction& device) {
    const Scope scope = root.WithDevice(device);
    for (const auto& [name, size] :
         std::vector<std::pair<std::string, int64_t>>{{"a", 4}, {"b", 400}, {"c", 4}, {"d", 40}}) {
      variables.push_back(MakeVariable(scope.WithName(name), Shape{size}, DT_FLOAT,
                                       RandomUniformInitializer({.seed = 7})));
    }
    const PartitionedVariable table = MakePartitionedVariable(
        scope.WithName("table"), Shape{30, 2}, DT_FLOAT, 2, RandomUniformInitializer({.seed = 8}));
    for (const Variable& part : table.parts) variables.push_back(part);
    for (const Variable& variable : variables) values.push_back(variable.value);
    init = GlobalVariablesInitializer(root);
  }
  std::string Places() const {
    std::string places;
    for (const Variable& variable : variables) {
      const std::string& device = variable.handle.node()->requested_device();
      places += absl::StrContains(device, "/job:ps/task:1") ? '1' : '0';
    }
    return places;
  }
  Scope root;
  std::vector<Variable> variables;
  std::vector<Output> values;
  Operation init;
};

// Two parameter servers and a chief.
class PlacingTest : public ::testing::Test {
 protected:
  PlacingTest() {
    ports_ = FreeClusterPorts(3, 0, 0);
    ports_.host = "127.0.0.1";
    ports_.chief = {ports_.ps.back()};
    ports_.ps.pop_back();
  }
  std::string Config(const std::string& job, int task) const { return TfConfig(ports_, job, task); }
  ClusterConfig ChiefConfig() const {
    const auto config = ClusterConfig::Parse(Config("chief", 0));
    EXPECT_OK(config);
    return config.value_or(ClusterConfig());
  }
  void StartServers() {
    for (const auto& [job, task] :
         std::vector<std::pair<std::string, int>>{{"ps", 0}, {"ps", 1}, {"chief", 0}}) {
      ASSERT_OK_AND_ASSIGN(const ClusterConfig config, ClusterConfig::Parse(Config(job, task)));
      ASSERT_OK_AND_ASSIGN(auto server, Server::Start(config));
      servers_.push_back(std::move(server));
    }
  }
  std::string target() const { return servers_.back()->target(); }

  ClusterPorts ports_;
  std::vector<std::unique_ptr<Server>> servers_;
};

TEST_F(PlacingTest, CheckpointsDoNotDependOnIt) {
  StartServers();
  const std::vector<std::pair<std::function<DeviceFunction(const ClusterConfig&)>, std::string>>
      ways = {
          {[](const ClusterConfig& cluster) { return ReplicaDeviceSetter(cluster); }, "010101"},
          {[](const ClusterConfig& cluster) { return BalancedDeviceSetter(cluster); }, "010000"}};
  for (size_t from = 0; from < 2; ++from) {
    const auto& [save_under, saved_places] = ways[from];
    const auto& [restore_under, restored_places] = ways[1 - from];
    SCOPED_TRACE(absl::StrCat("from ", saved_places));
    const std::string dir = JoinPath(::testing::TempDir(), "placing_" + RandomHexName());
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir));
    std::string checkpoint;
    std::vector<Tensor> saved;
    {
      Model model(save_under(ChiefConfig()));
      EXPECT_EQ(model.Places(), saved_places);
      ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(model.root));
      ASSERT_OK_AND_ASSIGN(const auto session, NewSession({.target = target()}));
      ASSERT_OK(session->Extend(model.root));
      ASSERT_OK(session->Run({}, {}, {model.init}).status());
      ASSERT_OK_AND_ASSIGN(saved, session->Run({}, model.values));
      ASSERT_OK_AND_ASSIGN(checkpoint, saver->Save(session.get(), JoinPath(dir, "model"), 1));
      // The values of the other placing are to come from the file.
      ASSERT_OK(session->Run({}, {}, {model.init}).status());
      ASSERT_OK(session->Close());
    }
    Model model(restore_under(ChiefConfig()));
    EXPECT_EQ(model.Places(), restored_places);
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(model.root));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession({.target = target()}));
    ASSERT_OK(session->Extend(model.root));
    ASSERT_OK(saver->Restore(session.get(), checkpoint));
    ASSERT_OK_AND_ASSIGN(const auto restored, session->Run({}, model.values));
    ASSERT_EQ(restored.size(), saved.size());
    for (size_t i = 0; i < saved.size(); ++i) {
      SCOPED_TRACE(model.variables[i].name);
      ASSERT_EQ(restored[i].shape(), saved[i].shape());
      const auto want = saved[i].flat<float>(), got = restored[i].flat<float>();
      for (size_t j = 0; j < want.size(); ++j) ASSERT_EQ(got[j], want[j]) << j;
    }
    ASSERT_OK(session->Close());
  }
}

TEST_F(PlacingTest, TheChiefOfTrainSaysWhatIsWhere) {
  StartServers();
  const Scope root;
  const Scope scope = root.WithDevice(BalancedDeviceSetter(ChiefConfig()));
  const Variable step = GlobalStep(scope);  // 8 bytes on the first
  const Variable w =
      MakeVariable(scope.WithName("w"), Shape{100}, DT_FLOAT, ZerosInitializer());  // the second
  const Output loss = ReduceMean(scope, Square(scope, w.value));
  const Operation op =
      AdamOptimizer({.learning_rate = 0.1}).Minimize(scope, loss, {.global_step = step});
  testing::internal::CaptureStderr();
  const auto trained =
      Train(root, op, {.steps = 1, .target = target(), .progress = false, .handle_signals = false});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_OK(trained);
  // w and its two slots are 1,200 bytes, Adam's powers 8.
  EXPECT_TRUE(absl::StrContains(
      log,
      "Train: variables on the parameter servers: /job:ps/task:0 8 bytes, /job:ps/task:1 1208 "
      "bytes; /job:ps/task:1 has 2 times the mean: cut 'w', 400 bytes, into parts with a "
      "partitioner"))
      << log;
}

// The model of an Estimator: global step 8 bytes, then 400, 40 and 4,000.
EstimatorSpec ThreeVariables(const Scope& scope, const Features&, const Labels&, Mode mode) {
  std::vector<Variable> made;
  for (const auto& [name, size] :
       std::vector<std::pair<std::string, int64_t>>{{"a", 100}, {"b", 10}, {"c", 1000}}) {
    made.push_back(MakeVariable(scope.WithName(name), Shape{size}, DT_FLOAT, ZerosInitializer()));
  }
  EstimatorSpec spec{.mode = mode, .predictions = made[0].value};
  spec.loss = ReduceMean(scope, Square(scope, made[0].value));
  spec.train_op = AdamOptimizer({.learning_rate = 0.1})
                      .Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
  return spec;
}

// Variables with their devices, slots too.
StatusOr<std::map<std::string, std::string>> PlacesOf(const RunConfigFields& fields,
                                                      const std::string& tf_config) {
  EstimatorParts parts;
  parts.model_fn = ThreeVariables;
  parts.model_dir = "placing_model";
  MR_ASSIGN_OR_RETURN(parts.config, RunConfig::Make(fields, tf_config));
  const InputFn input = [](const Scope& scope) {
    return Input({{"x", Const(scope, 1.0f)}}, Const(scope, 1.0f));
  };
  MR_ASSIGN_OR_RETURN(const ModelGraph graph, BuildModelGraph(parts, Mode::kTrain, input));
  std::map<std::string, std::string> places;
  for (const Variable& variable : VariablesOf(graph.root)) {
    places[variable.name] = variable.handle.node()->requested_device();
  }
  return places;
}

TEST_F(PlacingTest, AnEstimatorPlacesByBytesInEachTaskAlike) {
  ports_.worker = {1, 2};
  ASSERT_OK_AND_ASSIGN(const auto chief, PlacesOf({.model_dir = "m"}, Config("chief", 0)));
  // The global step on the first, a on the second; b on the first, c there, too: 48 against 400.
  const std::map<std::string, std::string> want = {
      {"global_step", "/job:ps/task:0"}, {"a", "/job:ps/task:1"},
      {"b", "/job:ps/task:0"},           {"c", "/job:ps/task:0"},
      {"a/Adam", "/job:ps/task:1"},      {"a/Adam_1", "/job:ps/task:1"},
      {"beta1_power", "/job:ps/task:1"}, {"beta2_power", "/job:ps/task:1"}};
  EXPECT_EQ(chief, want);
  ASSERT_OK_AND_ASSIGN(const auto again, PlacesOf({.model_dir = "m"}, Config("chief", 0)));
  EXPECT_EQ(again, want);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto worker, PlacesOf({.model_dir = "m"}, Config("worker", i)));
    EXPECT_EQ(worker, want) << i;
  }
}

// Ends a training before its session is made: no task is needed.
class RefusingHook : public SessionRunHook {
 public:
  std::string name() const override { return "RefusingHook"; }
  Status Begin(HookSetup*) override { return absl::FailedPreconditionError("no session, please"); }
};

// What a task logs when an Estimator has made its graph.
std::string LogOfEstimator(const std::string& tf_config) {
  const InputFn input = [](const Scope& scope) {
    return Input({{"x", Const(scope, 1.0f)}}, Const(scope, 1.0f));
  };
  const std::string dir = JoinPath(::testing::TempDir(), "placing_" + RandomHexName());
  const auto config = RunConfig::Make({.model_dir = dir}, tf_config);
  EXPECT_OK(config);
  const auto estimator = Estimator::Make(ThreeVariables, {.config = config.value_or(RunConfig())});
  EXPECT_OK(estimator);
  if (!estimator.ok()) return "";
  testing::internal::CaptureStderr();
  const auto trained =
      estimator->Train(input, {.steps = 1, .hooks = {std::make_shared<RefusingHook>()}});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_STATUS(trained.status(), absl::StatusCode::kFailedPrecondition, "no session, please");
  return log;
}

TEST_F(PlacingTest, TheChiefOfAnEstimatorSaysWhatIsWhere) {
  ports_.worker = {1};
  // The global step, b and c are 8 + 40 + 4,000 bytes; a with its two slots 1,200, Adam's powers 8.
  // The mean is 2,628.
  const std::string chief = LogOfEstimator(Config("chief", 0));
  EXPECT_TRUE(absl::StrContains(
      chief,
      "Estimator: Train: variables on the parameter servers: /job:ps/task:0 4048 bytes, "
      "/job:ps/task:1 1208 bytes; /job:ps/task:0 has 1.5 times the mean: cut 'c', 4000 bytes, into "
      "parts with a partitioner"))
      << chief;
  const std::string worker = LogOfEstimator(Config("worker", 0));
  EXPECT_FALSE(absl::StrContains(worker, "variables on the parameter servers")) << worker;
}

TEST_F(PlacingTest, TheProgramsOwnDeviceFunctionWins) {
  const DeviceFunction in_turn = ReplicaDeviceSetter(ChiefConfig());
  ASSERT_OK_AND_ASSIGN(const auto places,
                       PlacesOf({.model_dir = "m", .device_fn = in_turn}, Config("chief", 0)));
  EXPECT_EQ(places.at("global_step"), "/job:ps/task:0");
  EXPECT_EQ(places.at("a"), "/job:ps/task:1");
  EXPECT_EQ(places.at("b"), "/job:ps/task:0");
  EXPECT_EQ(places.at("c"), "/job:ps/task:1");
}

// --- Tables that are cut by themselves -----------------------------------------------------------

// A table of 400 bytes, one of 40, and a linear model, trained by two steps of Adam.
struct TableModel {
  explicit TableModel(const DeviceFunction& device) {
    root.SetGraphSeed(11);
    const Scope scope = root.WithDevice(device);
    const Output ids = Const<int64_t>(scope, {0, 7, 49, 25, 7});
    const Output rows = Const<int64_t>(scope, {0, 0, 1, 2, 2});
    const EmbeddingLayer large = Embedding(scope.WithName("large"), ids, 50, 2);
    const Output few = FloorMod(scope, ids, Const(scope, int64_t{5}));
    const EmbeddingLayer small = Embedding(scope.WithName("small"), few, 5, 2);
    const LinearLayer linear = Linear(scope, {.ids = ids, .rows = rows}, 60);
    const Output loss = ReduceMean(scope, Square(scope, Add(scope, large, small))) +
                        ReduceMean(scope, Square(scope, linear - Const(scope, 1.0f)));
    train = AdamOptimizer({.learning_rate = 0.1})
                .Minimize(scope, loss, {.global_step = GlobalStep(scope)});
    init = GlobalVariablesInitializer(root);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Variable& variable : VariablesOf(root, "trainable_variables")) {
      names.push_back(variable.name);
    }
    return names;
  }
  Scope root;
  Operation train, init;
};

void ExpectSameTensors(const std::string& checkpoint, const std::string& other) {
  ASSERT_OK_AND_ASSIGN(const auto a, BundleReader::Open(FileSystem::Posix(), checkpoint));
  ASSERT_OK_AND_ASSIGN(const auto b, BundleReader::Open(FileSystem::Posix(), other));
  ASSERT_EQ(a->entries().size(), b->entries().size());
  for (const BundleReader::Entry& entry : a->entries()) {
    ASSERT_OK_AND_ASSIGN(const Tensor want, a->Read(entry.name));
    ASSERT_OK_AND_ASSIGN(const Tensor got, b->Read(entry.name));
    SCOPED_TRACE(entry.name);
    ExpectTensorEqual(got, want);
  }
}

// Whole as with one ps, in two parts as with two: what one has trained and saved, slots too, the
// other restores, bit by bit, and trains on.
TEST_F(PlacingTest, TablesThatAreCutRestoreWhatWasSavedWholeAndTheReverse) {
  StartServers();
  const std::vector<std::string> whole_names = {"large/embeddings", "small/embeddings",
                                                "linear/weights", "linear/bias"};
  // 240 bytes of linear weights stay whole, as 40 of the small table.
  const std::vector<std::string> cut_names = {"large/embeddings/part_0", "large/embeddings/part_1",
                                              "small/embeddings", "linear/weights", "linear/bias"};
  for (const bool cut_first : {false, true}) {
    SCOPED_TRACE(cut_first ? "saved in parts" : "saved whole");
    const std::string dir = JoinPath(::testing::TempDir(), "tables_" + RandomHexName());
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir));
    std::string saved, again;
    for (const bool cut : {cut_first, !cut_first}) {
      const TableModel model(
          ReplicaDeviceSetter(ChiefConfig(), {.partition_tables_above = cut ? 256 : 0}));
      ASSERT_OK(model.root.status());
      EXPECT_EQ(model.Names(), cut ? cut_names : whole_names);
      ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(model.root));
      ASSERT_OK_AND_ASSIGN(const auto session, NewSession({.target = target()}));
      ASSERT_OK(session->Extend(model.root));
      if (cut == cut_first) {
        ASSERT_OK(session->Run({}, {}, {model.init}).status());
        for (int i = 0; i < 2; ++i) ASSERT_OK(session->Run({}, {}, {model.train}).status());
        ASSERT_OK_AND_ASSIGN(saved, saver->Save(session.get(), JoinPath(dir, "first"), 2));
      } else {
        ASSERT_OK(saver->Restore(session.get(), saved));
        ASSERT_OK_AND_ASSIGN(again, saver->Save(session.get(), JoinPath(dir, "second"), 2));
        ASSERT_OK(session->Run({}, {}, {model.train}).status());
      }
      ASSERT_OK(session->Close());
    }
    ExpectSameTensors(saved, again);
  }
}

// 4,000 bytes.
EstimatorSpec OneTable(const Scope& scope, const Features&, const Labels&, Mode mode) {
  const EmbeddingLayer rows = Embedding(scope, Const<int64_t>(scope, {0, 499, 250}), 500, 2);
  EstimatorSpec spec{.mode = mode, .predictions = rows};
  spec.loss = ReduceMean(scope, Square(scope, rows));
  spec.train_op = AdamOptimizer({.learning_rate = 0.1})
                      .Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
  return spec;
}

TEST_F(PlacingTest, AnEstimatorCutsTablesWhereItTrainsOnSeveralPs) {
  const auto names = [](const RunConfigFields& fields, const std::string& tf_config,
                        Mode mode) -> StatusOr<std::vector<std::string>> {
    EstimatorParts parts;
    parts.model_fn = OneTable;
    parts.model_dir = "placing_model";
    MR_ASSIGN_OR_RETURN(parts.config, RunConfig::Make(fields, tf_config));
    const InputFn input = [](const Scope& scope) {
      return Input({{"x", Const(scope, 1.0f)}}, Const(scope, 1.0f));
    };
    MR_ASSIGN_OR_RETURN(const ModelGraph graph, BuildModelGraph(parts, mode, input));
    std::vector<std::string> names;
    for (const Variable& variable : VariablesOf(graph.root, "trainable_variables")) {
      names.push_back(variable.name);
    }
    return names;
  };
  const std::vector<std::string> whole = {"embedding/embeddings"};
  const std::vector<std::string> cut = {"embedding/embeddings/part_0",
                                        "embedding/embeddings/part_1"};
  const RunConfigFields above_2000 = {.model_dir = "m", .partition_tables_above = 2000};
  const std::string chief = Config("chief", 0);
  const struct {
    RunConfigFields fields;
    std::string tf_config;
    Mode mode;
    std::vector<std::string> want;
  } cases[] = {
      {{.model_dir = "m"}, chief, Mode::kTrain, whole},  // not above 64 MiB
      {above_2000, chief, Mode::kTrain, cut},
      // In one process: an evaluation of the chief, a program without a cluster.
      {above_2000, chief, Mode::kEval, whole},
      {above_2000, "", Mode::kTrain, whole},
      {{.model_dir = "m", .partition_tables_above = 4000}, chief, Mode::kTrain, whole},
      {{.model_dir = "m", .partition_tables_above = 0}, chief, Mode::kTrain, whole},
      // The program's own device function is told, too.
      {{.model_dir = "m",
        .device_fn = ReplicaDeviceSetter(ChiefConfig()),
        .partition_tables_above = 2000},
       chief,
       Mode::kTrain,
       cut},
  };
  int i = 0;
  for (const auto& c : cases) {
    SCOPED_TRACE(i++);
    ASSERT_OK_AND_ASSIGN(const auto got, names(c.fields, c.tf_config, c.mode));
    EXPECT_EQ(got, c.want);
  }
}

}  // namespace
}  // namespace millrace
