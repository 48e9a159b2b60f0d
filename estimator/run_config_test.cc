// SPDX-License-Identifier: Apache-2.0
#include "estimator/run_config.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "estimator/tf_config.h"
#include "gtest/gtest.h"

// covers: article 0-5: TF_CONFIG, and flags in its place
// covers: article 0-12: RunConfig and its copy with another model_dir
// covers: article 0-45: five checkpoints, one in ten minutes
// covers: article 1-5: by seconds or by steps, not both
// covers: article 3-24: TF_CONFIG is read when RunConfig is made, and can be rewritten before
// covers: article 3-31: the task by flags, hosts separated by `;` or `,`
// covers: article 3-34: rules of TF_CONFIG
// covers: article 3-35: two chiefs, two tasks of one address: refused
// covers: scenario F25: wrong configurations: one line, exit code 1

namespace millrace {
namespace {

constexpr char kCluster[] = R"({"chief": ["c:1"], "ps": ["p:1", "p:2"], "worker": ["w:1", "w:2"]})";

std::string TfConfig(const std::string& cluster, const std::string& task,
                     const std::string& more = "") {
  return absl::StrCat("{\"cluster\": ", cluster, ", \"task\": ", task, more, "}");
}
std::string TaskOf(const std::string& type, int index) {
  return absl::StrCat("{\"type\": \"", type, "\", \"index\": ", index, "}");
}

TEST(RunConfigTest, DefaultsAreTensorFlows) {
  ASSERT_OK_AND_ASSIGN(const RunConfig config, RunConfig::Make({}, ""));
  EXPECT_EQ(config.model_dir(), "");
  EXPECT_EQ(config.tf_random_seed(), std::nullopt);
  EXPECT_EQ(config.save_summary_steps(), 100);
  EXPECT_EQ(config.save_checkpoints_secs(), 600);
  EXPECT_EQ(config.save_checkpoints_steps(), std::nullopt);
  EXPECT_EQ(config.keep_checkpoint_max(), 5);
  EXPECT_EQ(config.keep_checkpoint_every_n_hours(), 10000);
  EXPECT_EQ(config.log_step_count_steps(), 100);
  EXPECT_EQ(config.protocol(), "grpc");
  EXPECT_EQ(config.session_creation_timeout_secs(), 7200);
  EXPECT_TRUE(config.checkpoint_save_graph_def());
  EXPECT_FALSE(config.portable_graph());
  EXPECT_FALSE(config.read_ahead());
  EXPECT_FALSE(config.sync().has_value());
  EXPECT_TRUE(config.session_config().allow_soft_placement);
  EXPECT_TRUE(config.session_config().device_filters.empty());
  EXPECT_FALSE(config.device_fn());
  EXPECT_EQ(config.task_type(), "worker");
  EXPECT_EQ(config.task_id(), 0);
  EXPECT_EQ(config.num_worker_replicas(), 1);
  EXPECT_EQ(config.global_id_in_cluster(), 0);
  EXPECT_TRUE(config.is_chief());
  EXPECT_EQ(config.master(), "");
}

TEST(RunConfigTest, ReplaceChangesWhatIsGivenAndChecksAgain) {
  ASSERT_OK_AND_ASSIGN(const RunConfig config, RunConfig::Make({.model_dir = "run"}, ""));
  ASSERT_OK_AND_ASSIGN(const RunConfig by_steps, config.Replace({.save_checkpoints_steps = 7}));
  EXPECT_EQ(by_steps.save_checkpoints_steps(), 7);
  EXPECT_EQ(by_steps.save_checkpoints_secs(), std::nullopt);
  EXPECT_EQ(by_steps.model_dir(), "run");
  ASSERT_OK_AND_ASSIGN(const RunConfig by_secs, by_steps.Replace({.save_checkpoints_secs = 1.5}));
  EXPECT_EQ(by_secs.save_checkpoints_secs(), 1.5);
  EXPECT_EQ(by_secs.save_checkpoints_steps(), std::nullopt);
  ASSERT_OK_AND_ASSIGN(const RunConfig never, by_secs.Replace({.save_checkpoints_steps = kNoValue,
                                                               .save_checkpoints_secs = kNoValue}));
  EXPECT_EQ(never.save_checkpoints_secs(), std::nullopt);
  EXPECT_EQ(never.save_checkpoints_steps(), std::nullopt);
  ASSERT_OK_AND_ASSIGN(const RunConfig all, config.Replace({.keep_checkpoint_max = kNoValue,
                                                            .log_step_count_steps = kNoValue}));
  EXPECT_EQ(all.keep_checkpoint_max(), std::nullopt);
  EXPECT_EQ(all.log_step_count_steps(), std::nullopt);
  EXPECT_EQ(config.partition_tables_above(), int64_t{64} << 20);
  ASSERT_OK_AND_ASSIGN(const RunConfig whole, config.Replace({.partition_tables_above = 0}));
  EXPECT_EQ(whole.partition_tables_above(), 0);
  EXPECT_STATUS(config.Replace({.save_summary_steps = -1}), absl::StatusCode::kInvalidArgument,
                "RunConfig: save_summary_steps must be >= 0, got -1");
  EXPECT_EQ(config.save_checkpoints_secs(), 600) << "the original stays";
}

TEST(RunConfigTest, SynchronousTrainingStaysUntilItIsTakenAway) {
  const std::string task = TfConfig(kCluster, TaskOf("worker", 0));
  ASSERT_OK_AND_ASSIGN(const RunConfig config,
                       RunConfig::Make({.sync = SyncTraining{.backup_workers = 2}}, task));
  ASSERT_OK_AND_ASSIGN(const RunConfig named, config.Replace({.model_dir = "run"}));
  ASSERT_TRUE(named.sync().has_value());
  EXPECT_EQ(named.sync()->backup_workers, 2);
  ASSERT_OK_AND_ASSIGN(const RunConfig none, named.Replace({.sync = kNoValue}));
  EXPECT_FALSE(none.sync().has_value());
  EXPECT_OK(none.Replace({.read_ahead = true}));
  EXPECT_STATUS(config.Replace({.read_ahead = true}), absl::StatusCode::kInvalidArgument,
                "sync and read_ahead");
  // What an evaluator, or one process, is asked for is not compared with its trainers.
  const RunConfigFields many = {.sync = SyncTraining{.replicas_to_aggregate = 100}};
  EXPECT_OK(RunConfig::Make(many, ""));
  EXPECT_OK(RunConfig::Make(many, TfConfig(kCluster, TaskOf("evaluator", 0))));
}

TEST(RunConfigTest, WrongFieldsAreNamed) {
  struct Case {
    RunConfigFields fields;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{.model_dir = ""}, "RunConfig: model_dir must not be empty, got ''"},
      {{.save_summary_steps = -2}, "RunConfig: save_summary_steps must be >= 0, got -2"},
      {{.save_checkpoints_steps = 3, .save_checkpoints_secs = 4.0},
       "RunConfig: save_checkpoints_steps and save_checkpoints_secs must not both be given, got 3 "
       "and 4"},
      {{.save_checkpoints_steps = -1}, "RunConfig: save_checkpoints_steps must be >= 0, got -1"},
      {{.save_checkpoints_secs = -1.0}, "RunConfig: save_checkpoints_secs must be >= 0, got -1"},
      {{.keep_checkpoint_max = -1}, "RunConfig: keep_checkpoint_max must be >= 0, got -1"},
      {{.keep_checkpoint_every_n_hours = 0.0},
       "RunConfig: keep_checkpoint_every_n_hours must be > 0, got 0"},
      {{.log_step_count_steps = 0}, "RunConfig: log_step_count_steps must be > 0, got 0"},
      {{.partition_tables_above = -1}, "RunConfig: partition_tables_above must be >= 0, got -1"},
      {{.protocol = "udp"}, "RunConfig: protocol must be 'grpc' or 'grpc+verbs', got 'udp'"},
      {{.experimental_max_worker_delay_secs = -1.0},
       "RunConfig: experimental_max_worker_delay_secs must be >= 0, got -1"},
      {{.session_creation_timeout_secs = 0.0},
       "RunConfig: session_creation_timeout_secs must be > 0, got 0"},
  };
  for (const Case& c : cases) {
    const auto config = RunConfig::Make(c.fields, "");
    EXPECT_STATUS(config, absl::StatusCode::kInvalidArgument, c.message);
    EXPECT_EQ(config.status().message(), c.message);
  }
  using absl::Seconds;
  const std::vector<Case> of_sync = {
      {{.sync = SyncTraining{.replicas_to_aggregate = -1}},
       "RunConfig: sync.replicas_to_aggregate must be >= 0, got -1"},
      {{.sync = SyncTraining{.backup_workers = -1}},
       "RunConfig: sync.backup_workers must be >= 0, got -1"},
      {{.sync = SyncTraining{.start_wait = Seconds(-1)}},
       "RunConfig: sync.start_wait must be >= 0, got -1s"},
      {{.read_ahead = true, .sync = SyncTraining{}},
       "RunConfig: sync and read_ahead must not both be given, got both; what is read ahead is of "
       "the step before"},
      {{.portable_graph = true, .sync = SyncTraining{}},
       "RunConfig: sync and portable_graph must not both be given, got both; synchronous steps "
       "have ops that TensorFlow has not"},
      // A chief and two workers.
      {{.sync = SyncTraining{.replicas_to_aggregate = 4}},
       "RunConfig: sync.replicas_to_aggregate + sync.backup_workers must be <= the trainers (chief "
       "and workers), 3, got 4 + 0"},
      {{.sync = SyncTraining{.backup_workers = 3}},
       "RunConfig: sync.replicas_to_aggregate + sync.backup_workers must be <= the trainers (chief "
       "and workers), 3, got 1 + 3"},
  };
  for (const Case& c : of_sync) {
    const auto config = RunConfig::Make(c.fields, TfConfig(kCluster, TaskOf("worker", 0)));
    EXPECT_STATUS(config, absl::StatusCode::kInvalidArgument, c.message);
    EXPECT_EQ(config.status().message(), c.message);
  }
  EXPECT_STATUS(RunConfig::Make({.protocol = "grpc+verbs"}, ""), absl::StatusCode::kUnimplemented,
                "protocol");
}

// covers: article 3-21: with a chief, worker 0 is nothing special; global ids
TEST(RunConfigTest, TaskOfACluster) {
  struct Case {
    std::string type;
    int index;
    std::string master;
    bool is_chief;
    int global_id;
    std::vector<std::string> filters;
  };
  const std::vector<Case> cases = {
      {"chief", 0, "grpc://c:1", true, 0, {"/job:ps", "/job:chief"}},
      {"worker", 0, "grpc://w:1", false, 1, {"/job:ps", "/job:worker/task:0"}},
      {"worker", 1, "grpc://w:2", false, 2, {"/job:ps", "/job:worker/task:1"}},
      {"ps", 0, "grpc://p:1", false, 3, {"/job:ps", "/job:worker", "/job:chief", "/job:master"}},
      {"ps", 1, "grpc://p:2", false, 4, {"/job:ps", "/job:worker", "/job:chief", "/job:master"}},
  };
  for (const Case& c : cases) {
    ASSERT_OK_AND_ASSIGN(const RunConfig config,
                         RunConfig::Make({}, TfConfig(kCluster, TaskOf(c.type, c.index))));
    EXPECT_EQ(config.task_type(), c.type);
    EXPECT_EQ(config.task_id(), c.index);
    EXPECT_EQ(config.master(), c.master);
    EXPECT_EQ(config.evaluation_master(), "");
    EXPECT_EQ(config.is_chief(), c.is_chief);
    EXPECT_EQ(config.num_ps_replicas(), 2);
    EXPECT_EQ(config.num_worker_replicas(), 3);
    EXPECT_EQ(config.global_id_in_cluster(), c.global_id);
    EXPECT_EQ(config.session_config().device_filters, c.filters);
  }
}

// covers: article 3-20: roles master, chief, evaluator
TEST(RunConfigTest, MasterOfACluster) {
  ASSERT_OK_AND_ASSIGN(
      const RunConfig config,
      RunConfig::Make({}, TfConfig(R"({"master": ["m:1"], "ps": ["p:1"]})", TaskOf("master", 0))));
  EXPECT_TRUE(config.is_chief());
  EXPECT_EQ(config.session_config().device_filters,
            (std::vector<std::string>{"/job:ps", "/job:master"}));
  EXPECT_EQ(config.num_worker_replicas(), 1);
}

TEST(RunConfigTest, AnEvaluatorIsInNoCluster) {
  ASSERT_OK_AND_ASSIGN(const RunConfig config,
                       RunConfig::Make({}, TfConfig(kCluster, TaskOf("evaluator", 0),
                                                    R"(, "eval_session_master": "local")")));
  EXPECT_TRUE(config.cluster().is_local());
  EXPECT_TRUE(config.cluster_spec().empty());
  EXPECT_EQ(config.task_type(), "evaluator");
  EXPECT_EQ(config.master(), "");
  EXPECT_EQ(config.evaluation_master(), "local");
  EXPECT_FALSE(config.is_chief());
  EXPECT_EQ(config.num_ps_replicas(), 0);
  EXPECT_EQ(config.num_worker_replicas(), 0);
  EXPECT_EQ(config.global_id_in_cluster(), std::nullopt);
  EXPECT_TRUE(config.session_config().device_filters.empty());
}

TEST(RunConfigTest, AClusterOfOneNodeNeedsNoServer) {
  ASSERT_OK_AND_ASSIGN(const RunConfig config,
                       RunConfig::Make({}, TfConfig(R"({"chief": ["c:1"]})", TaskOf("chief", 0))));
  EXPECT_EQ(config.master(), "");
}

TEST(RunConfigTest, TellsTheFieldsNextToTheCluster) {
  ASSERT_OK_AND_ASSIGN(
      const RunConfig config,
      RunConfig::Make({}, TfConfig(kCluster, TaskOf("chief", 0),
                                   R"(, "session_master": "grpc://x:1", "model_dir": "dir",
                                      "environment": "cloud", "service": {"key": [1]})")));
  EXPECT_EQ(config.master(), "grpc://x:1");
  EXPECT_EQ(config.model_dir(), "dir");
  EXPECT_EQ(config.environment(), "cloud");
  EXPECT_EQ(config.service().at("key"), "[1]");
  EXPECT_STATUS(config.Replace({.model_dir = "other"}), absl::StatusCode::kInvalidArgument,
                "RunConfig: model_dir must be that of TF_CONFIG, 'dir', got 'other'");
}

TEST(RunConfigTest, AGivenSessionConfigIsKeptAsItIs) {
  SessionConfig mine;
  mine.intra_op_parallelism_threads = 2;
  ASSERT_OK_AND_ASSIGN(
      const RunConfig config,
      RunConfig::Make({.session_config = mine}, TfConfig(kCluster, TaskOf("chief", 0))));
  EXPECT_EQ(config.session_config().intra_op_parallelism_threads, 2);
  EXPECT_FALSE(config.session_config().allow_soft_placement);
  EXPECT_TRUE(config.session_config().device_filters.empty());
}

// The errors of TF_CONFIG, each in one line that names the field.
struct WrongTfConfig {
  std::string name, text, message;
};
class WrongTfConfigTest : public testing::TestWithParam<WrongTfConfig> {};

TEST_P(WrongTfConfigTest, IsOneLineThatNamesTheField) {
  const auto config = RunConfig::Make({}, GetParam().text);
  EXPECT_STATUS(config, absl::StatusCode::kInvalidArgument, GetParam().message);
  EXPECT_EQ(config.status().message().find('\n'), absl::string_view::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongTfConfigTest,
    testing::ValuesIn(std::vector<WrongTfConfig>{
        {"NoChief", TfConfig(R"({"worker": ["w:1"], "ps": ["p:1"]})", TaskOf("worker", 0)),
         "TF_CONFIG: cluster must have one task of job 'chief', got only ps, worker"},
        // The sample of the third article.
        {"TwoChiefs",
         TfConfig(R"({"ps": ["a:1001", "b:1002"], "worker": ["a:1003", "b:1005"],
                      "chief": ["a:1004", "b:1003"]})",
                  TaskOf("worker", 0)),
         "TF_CONFIG: cluster.chief must have exactly 1 task, got 2"},
        {"OneAddressTwice",
         TfConfig(R"({"ps": ["a:1"], "worker": ["b:1004"], "chief": ["b:1004"]})",
                  TaskOf("worker", 0)),
         "addresses must be unique, got 'b:1004' for chief[0] and worker[0]"},
        {"NoTask", R"({"cluster": {"chief": ["c:1"]}})",
         "TF_CONFIG: task must be an object with type and index, got none"},
        {"NoType", TfConfig(kCluster, R"({"index": 0})"),
         "TF_CONFIG: task.type must be a job's name, got none"},
        {"NoIndex", TfConfig(kCluster, R"({"type": "worker"})"),
         "TF_CONFIG: task.index must be an integer >= 0, got none"},
        {"NegativeIndex", TfConfig(kCluster, TaskOf("worker", -1)),
         "TF_CONFIG: task.index must be an integer >= 0, got '-1'"},
        {"NoNumber", TfConfig(kCluster, R"({"type": "worker", "index": "one"})"),
         "TF_CONFIG: task.index must be an integer >= 0, got '\\\"one\\\"'"},
        {"TypeNotInCluster", TfConfig(R"({"chief": ["c:1"]})", TaskOf("worker", 0)),
         "TF_CONFIG: task.type must be one of chief or evaluator, got 'worker'"},
        {"IndexNotInCluster", TfConfig(kCluster, TaskOf("worker", 2)),
         "TF_CONFIG: task.index must be in [0,1] for job 'worker', got 2"},
        {"MasterAndChief", TfConfig(R"({"chief": ["c:1"], "master": ["m:1"]})", TaskOf("chief", 0)),
         "TF_CONFIG: cluster must have either 'chief' or 'master', got both"},
        {"MasterAndEvaluator", TfConfig(R"({"master": ["m:1"]})", TaskOf("evaluator", 0)),
         "TF_CONFIG: task.type must not be 'evaluator' in a cluster with a master"},
        {"EvaluatorAlone", R"({"task": {"type": "evaluator", "index": 0}})",
         "TF_CONFIG: task.type must be 'worker' without a cluster, got"},
        {"IndexWithoutCluster", R"({"task": {"type": "worker", "index": 1}})",
         "TF_CONFIG: task.index must be 0 without a cluster, got '1'"},
        {"EmptyModelDir", R"({"model_dir": ""})", "TF_CONFIG: model_dir must not be empty, got ''"},
        {"ServiceIsNoObject", R"({"service": [1]})", "TF_CONFIG: service must be an object"},
        {"NoJson", "{", "TF_CONFIG: must be JSON"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(TfConfigTest, FlagsBecomeTfConfigAndOtherArgumentsStay) {
  std::vector<std::string> words = {"program",
                                    "--ps-hosts=a:1;b:1",
                                    "--max_steps=5",
                                    "-worker_hosts",
                                    "c:1,d:1",
                                    "--chief-hosts=e:1",
                                    "--evaluator=x:1",
                                    "--worker-type",
                                    "worker",
                                    "--worker-index=1",
                                    "left"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(words.size());
  ASSERT_OK(SetTfConfigFromFlags(&argc, argv.data()));
  ASSERT_EQ(argc, 3);
  EXPECT_STREQ(argv[1], "--max_steps=5");
  EXPECT_STREQ(argv[2], "left");
  EXPECT_EQ(argv[3], nullptr);
  ASSERT_OK_AND_ASSIGN(const RunConfig config, RunConfig::Make());
  unsetenv("TF_CONFIG");
  EXPECT_EQ(config.task_type(), "worker");
  EXPECT_EQ(config.task_id(), 1);
  EXPECT_EQ(config.cluster_spec().address("worker", 1).value(), "d:1");
  EXPECT_EQ(config.num_ps_replicas(), 2);
}

TEST(TfConfigTest, WithoutFlagsNothingChanges) {
  char program[] = "program", flag[] = "--x=1";
  char* argv[] = {program, flag, nullptr};
  int argc = 2;
  unsetenv("TF_CONFIG");
  ASSERT_OK(SetTfConfigFromFlags(&argc, argv));
  EXPECT_EQ(argc, 2);
  EXPECT_EQ(getenv("TF_CONFIG"), nullptr);
}

TEST(TfConfigTest, WrongFlagsAreNamed) {
  struct Case {
    std::vector<std::string> words;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{"--chief-hosts=c:1"}, "--worker_type: must be ps, worker, chief or evaluator, got none"},
      {{"--chief-hosts=c:1", "--worker-type=chief"}, "--worker_index: must be an integer >= 0"},
      {{"--chief-hosts=c:1", "--worker-type=chief", "--worker-index=x"},
       "--worker_index: must be an integer >= 0, got 'x'"},
      {{"--worker-type"}, "--worker_type: must have a value, got none"},
      {{"--chief-hosts=c", "--worker-type=chief", "--worker-index=0"}, "must be host:port"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> words = c.words;
    words.insert(words.begin(), "program");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int argc = static_cast<int>(words.size());
    EXPECT_STATUS(SetTfConfigFromFlags(&argc, argv.data()), absl::StatusCode::kInvalidArgument,
                  c.message);
  }
}

// covers: article 3-22: a master is a chief that evaluates; or becomes a chief
// covers: scenario F5: a master, and one made a chief
TEST(TfConfigTest, AMasterBecomesAChief) {
  const std::string with_master = R"({"master": ["m:1"], "ps": ["p:1"], "worker": ["w:1"]})";
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       MasterAsChief(TfConfig(with_master, TaskOf("master", 0))));
  ASSERT_OK_AND_ASSIGN(const RunConfig config, RunConfig::Make({}, text));
  EXPECT_EQ(config.task_type(), "chief");
  EXPECT_EQ(config.master(), "grpc://m:1");

  setenv("TF_CONFIG", TfConfig(with_master, TaskOf("evaluator", 0)).c_str(), 1);
  setenv("MILLRACE_MASTER_AS_CHIEF", "1", 1);
  const auto evaluator = RunConfig::Make();
  unsetenv("TF_CONFIG");
  unsetenv("MILLRACE_MASTER_AS_CHIEF");
  ASSERT_OK(evaluator.status());
  EXPECT_EQ(evaluator->task_type(), "evaluator");
}

}  // namespace
}  // namespace millrace
