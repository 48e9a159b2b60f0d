// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/cluster.h"

#include <cstdlib>
#include <utility>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/cluster.pb.h"

namespace millrace {
namespace {

// covers: article 2-5: TF_CONFIG: cluster, task type and index; nothing means `{}`
TEST(ClusterConfigTest, NothingMeansOneProcess) {
  for (const char* text :
       {"", "  \n", "{}", R"({"task": {"type": "worker", "index": 0}})", R"({"cluster": null})",
        R"({"cluster": {}})", R"({"cluster": {"ps": []}})"}) {
    ASSERT_OK_AND_ASSIGN(const ClusterConfig config, ClusterConfig::Parse(text));
    EXPECT_TRUE(config.is_local()) << text;
    EXPECT_TRUE(config.is_chief()) << text;
    EXPECT_EQ(config.job(), "");
    EXPECT_EQ(config.task_device(), "");
  }
}

// covers: article 2-5: TF_CONFIG: cluster, task type and index; nothing means `{}`
TEST(ClusterConfigTest, ReadsJobsTasksAndUnknownFields) {
  ASSERT_OK_AND_ASSIGN(const ClusterConfig config, ClusterConfig::Parse(R"({
      "cluster": {"ps": ["a:1", "b:2"], "master": ["m:3"], "worker": ["w:4", "[::1]:5"]},
      "task": {"type": "worker", "index": 1}, "environment": "cloud", "job": {"x": 1}})"));
  EXPECT_EQ(config.job(), "worker");
  EXPECT_EQ(config.task(), 1);
  EXPECT_EQ(config.task_device(), "/job:worker/task:1");
  EXPECT_EQ(config.cluster().jobs(), (std::vector<std::string>{"master", "ps", "worker"}));
  EXPECT_EQ(config.cluster().num_tasks("ps"), 2);
  EXPECT_EQ(config.cluster().address("worker", 1).value(), "[::1]:5");
  EXPECT_STATUS(config.cluster().address("ps", 2), absl::StatusCode::kNotFound,
                "task 2 of job 'ps'");
}

TEST(ClusterConfigTest, IndexMayBeTextAndTasksMayBeSparse) {
  ASSERT_OK_AND_ASSIGN(const ClusterConfig config, ClusterConfig::Parse(R"({
      "cluster": {"worker": {"2": "a:1", "5": "b:1"}}, "task": {"type": "worker", "index": "5"}})"));
  EXPECT_EQ(config.task(), 5);
  EXPECT_EQ(config.cluster().tasks("worker"), (std::vector<int>{2, 5}));
  EXPECT_FALSE(config.is_chief());
}

TEST(ClusterConfigTest, ChiefIsChiefOrMasterOrTheFirstWorker) {
  const auto is_chief = [](const std::string& cluster, const std::string& task) {
    const auto config =
        ClusterConfig::Parse("{\"cluster\": " + cluster + ", \"task\": " + task + "}");
    EXPECT_OK(config);
    return config.ok() && config->is_chief();
  };
  const std::string with_master = R"({"master": ["m:1"], "worker": ["w:1"], "ps": ["p:1"]})";
  EXPECT_TRUE(is_chief(with_master, R"({"type": "master", "index": 0})"));
  EXPECT_FALSE(is_chief(with_master, R"({"type": "worker", "index": 0})"));
  EXPECT_FALSE(is_chief(with_master, R"({"type": "ps", "index": 0})"));
  const std::string workers = R"({"worker": ["w:1", "w:2"], "ps": ["p:1"]})";
  EXPECT_TRUE(is_chief(workers, R"({"type": "worker", "index": 0})"));
  EXPECT_FALSE(is_chief(workers, R"({"type": "worker", "index": 1})"));
  EXPECT_FALSE(is_chief(workers, R"({"type": "evaluator", "index": 0})"));
}

TEST(ClusterConfigTest, EvaluatorIsNoTaskOfTheCluster) {
  ASSERT_OK_AND_ASSIGN(const ClusterConfig config,
                       ClusterConfig::Parse(R"({"cluster": {"chief": ["c:1"], "evaluator": ["e:1"]},
                               "task": {"type": "evaluator", "index": 0}})"));
  EXPECT_EQ(config.job(), "evaluator");
  EXPECT_EQ(config.cluster().num_tasks("evaluator"), 0);
}

TEST(ClusterConfigTest, BadInputsAreNamedInOneLine) {
  struct Case {
    const char* text;
    const char* message;
  };
  const Case cases[] = {
      {"{\"cluster\": {",
       "TF_CONFIG: must be JSON, got an error at byte 14 (line 1, column 14), after "
       R"('{\"cluster\": {')"},
      // A comma is missing between the workers.
      {"{\n  \"cluster\": {\"ps\": [\"a:1\" \"b:1\"]}}",
       "TF_CONFIG: must be JSON, got an error at byte 34 (line 2, column 32), after "
       R"('{\n  \"cluster\": {\"ps\": [\"a:1\" \"b:1\"')"},
      // Of the 69 bytes that were read the last 60 are shown.
      {R"({"cluster": {"chief": ["chief.example.org:2222"], "worker": ["a:1", }, "x": 1})",
       R"(, got an error at byte 69 (line 1, column 69), after '...\": {\"chief\": )"
       R"([\"chief.example.org:2222\"], \"worker\": [\"a:1\", }')"},
      {"[1]", "TF_CONFIG: must be a JSON object, got '[1]'"},
      {R"({"cluster": 3})", "TF_CONFIG: cluster must be an object, got '3'"},
      {R"({"cluster": {"master": ["a:1", "b:1"]}, "task": {"type": "master"}})",
       "TF_CONFIG: cluster.master must have exactly 1 task, got 2"},
      {R"({"cluster": {"master": ["a:1"], "master": ["b:1"]}, "task": {"type": "master"}})",
       "TF_CONFIG: a key must be given once, got 'master' twice"},
      {R"({"cluster": {"master": ["a:1"], "chief": ["b:1"]}, "task": {"type": "master"}})",
       "TF_CONFIG: cluster must have either 'chief' or 'master', got both"},
      {R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}})",
       "TF_CONFIG: task.index must be in [0,1] for job 'worker', got 2"},
      {R"({"cluster": {"worker": {"1": "a:1"}}, "task": {"type": "worker", "index": 0}})",
       "TF_CONFIG: task.index must be one of 1 for job 'worker', got 0"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}})",
       "TF_CONFIG: task.index must be an integer >= 0, got '-1'"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "one"}})",
       "TF_CONFIG: task.index must be an integer >= 0"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 99999999999999}})",
       "TF_CONFIG: task.index must be an integer >= 0"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})",
       "TF_CONFIG: task.index must be an integer >= 0, got none"},
      {R"({"task": {"type": "evaluator", "index": 0}})",
       "TF_CONFIG: task.type must be 'worker' without a cluster, got 'evaluator'; give the "
       "cluster to every task"},
      {R"({"cluster": {}, "task": {"type": "worker", "index": 1}})",
       "TF_CONFIG: task.index must be 0 without a cluster, got '1'"},
      {R"({"task": "worker"})", "TF_CONFIG: task must be an object with type and index"},
      {R"({"service": 3})", "TF_CONFIG: service must be an object, got '3'"},
      {R"({"model_dir": ["x"]})", "TF_CONFIG: model_dir must be a text"},
      {R"({"cluster": {"worker": ["a:1"], "ps": ["a:1"]}, "task": {"type": "worker"}})",
       "addresses must be unique, got 'a:1' for ps[0] and worker[0]"},
      {R"({"cluster": {"worker": ["a"]}, "task": {"type": "worker"}})",
       "the address of worker[0] must be host:port, got 'a'"},
      {R"({"cluster": {"worker": ["a:"]}, "task": {"type": "worker"}})", "must be host:port"},
      {R"({"cluster": {"worker": ["a:65536"]}, "task": {"type": "worker"}})", "must be host:port"},
      {R"({"cluster": {"worker": ["::1:80"]}, "task": {"type": "worker"}})", "must be host:port"},
      {R"({"cluster": {"worker": [7]}, "task": {"type": "worker"}})", "must be host:port, got '7'"},
      {R"({"cluster": {"worker": "a:1"}, "task": {"type": "worker"}})",
       "must be a list of addresses"},
      {R"({"cluster": {"wor ker": ["a:1"]}, "task": {"type": "worker"}})", "a job's name"},
      {R"({"cluster": {"ps": ["a:1"]}, "task": {"type": "ps"}})",
       "TF_CONFIG: cluster must have a chief, master or worker task, got only ps"},
      {R"({"cluster": {"worker": ["a:1"]}})",
       "TF_CONFIG: task must be an object with type and index, got none"},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"index": 0}})",
       "TF_CONFIG: task.type must be a job's name, got none"},
      {"{\"cluster\": {\"worker\": [\"a:1\"]}, \"task\": {\"type\": \"wrk\\nr\"}}",
       "TF_CONFIG: task.type must be one of worker or evaluator, got 'wrk\\nr'"},
  };
  for (const Case& c : cases) {
    const auto config = ClusterConfig::Parse(c.text);
    EXPECT_STATUS(config, absl::StatusCode::kInvalidArgument, c.message) << c.text;
    EXPECT_EQ(config.status().message().find('\n'), absl::string_view::npos) << c.text;
  }
}

TEST(ClusterConfigTest, ReadsWhatIsBesideTheCluster) {
  ASSERT_OK_AND_ASSIGN(const ClusterConfig config, ClusterConfig::Parse(R"({
      "model_dir": "gs://b", "session_master": "grpc://a:1", "eval_session_master": "local",
      "environment": "google", "service": {"a": 1, "b": [2]}})"));
  EXPECT_EQ(config.extras().model_dir, "gs://b");
  EXPECT_EQ(config.extras().session_master, "grpc://a:1");
  EXPECT_EQ(config.extras().eval_session_master, "local");
  EXPECT_EQ(config.extras().environment, "google");
  EXPECT_EQ(config.extras().service,
            (std::map<std::string, std::string>{{"a", "1"}, {"b", "[2]"}}));
}

TEST(ClusterConfigTest, ANumberThatNothingHoldsIsAnErrorAndNoCrash) {
  EXPECT_STATUS(ClusterConfig::Parse(R"({"cluster": {"worker": ["a:1"]}, "more": 1e9999})"),
                absl::StatusCode::kInvalidArgument, "numbers that can be read");
}

TEST(ClusterConfigTest, DeepNestingIsAnErrorAndNoCrash) {
  std::string text(200'000, '[');
  EXPECT_STATUS(ClusterConfig::Parse(text), absl::StatusCode::kInvalidArgument,
                "TF_CONFIG: values must be nested at most 64 deep, got 200000");
}

TEST(ClusterConfigTest, EnvironmentVariableIsRead) {
  ASSERT_EQ(setenv("TF_CONFIG",
                   R"({"cluster": {"chief": ["c:1"]}, "task": {"type": "chief", "index": 0}})", 1),
            0);
  ASSERT_OK_AND_ASSIGN(const ClusterConfig config, ClusterConfig::FromEnvironment());
  EXPECT_EQ(config.task_device(), "/job:chief/task:0");
  unsetenv("TF_CONFIG");
  ASSERT_OK_AND_ASSIGN(const ClusterConfig none, ClusterConfig::FromEnvironment());
  EXPECT_TRUE(none.is_local());
}

TEST(ClusterSpecTest, SurvivesTheRoundTripThroughItsMessage) {
  ASSERT_OK_AND_ASSIGN(const ClusterSpec spec,
                       ClusterSpec::Make({{"ps", {"a:1", "b:1"}}, {"worker", {"c:1"}}}));
  ASSERT_OK_AND_ASSIGN(const ClusterSpec copy, ClusterSpec::FromProto(spec.ToProto()));
  EXPECT_EQ(copy.jobs(), spec.jobs());
  EXPECT_EQ(copy.address("ps", 1).value(), "b:1");
}

TEST(ClusterSpecTest, IsReadFromTheTextOfItsJobs) {
  ASSERT_OK_AND_ASSIGN(const ClusterSpec spec,
                       ClusterSpec::Parse(R"({"ps": {"3": "p:1"}, "evaluator": ["e:1"]})"));
  EXPECT_EQ(spec.jobs(), std::vector<std::string>{"ps"});
  EXPECT_EQ(spec.address("ps", 3).value(), "p:1");
  ASSERT_OK_AND_ASSIGN(const ClusterSpec empty, ClusterSpec::Parse("{}"));
  EXPECT_TRUE(empty.empty());
}

TEST(ClusterSpecTest, BadTextsAreNamedWithTheirSource) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "--spec: must be JSON, got an error at byte 1"},
      {"[]", "--spec: must be a JSON object, got '[]'"},
      {R"({"ps": 3})", "--spec: 'ps' must be a list of addresses, got '3'"},
      {R"({"ps": ["a"]})", "--spec: the address of ps[0] must be host:port, got 'a'"},
      {R"({"ps": [1]})", "--spec: 'ps'['0'] must be host:port, got '1'"},
      {R"({"ps": ["a:1"], "ps": ["b:1"]})", "--spec: a key must be given once, got 'ps' twice"},
      {R"({"ps": ["a:1"], "worker": ["a:1"]})", "--spec: addresses must be unique, got 'a:1'"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_STATUS(ClusterSpec::Parse(text, "--spec"), absl::StatusCode::kInvalidArgument, message)
        << text;
  }
}

// covers: article 3-35: two chiefs, two tasks of one address: refused
TEST(ClusterSpecTest, RefusesWhatCannotBeACluster) {
  EXPECT_STATUS(ClusterSpec::Make({{"ps", {"a:1"}}, {"worker", {"a:1"}}}),
                absl::StatusCode::kInvalidArgument, "ClusterSpec: addresses must be unique");
  tensorflow::ClusterDef def;
  (*def.add_job()->mutable_tasks())[-1] = "a:1";
  def.mutable_job(0)->set_name("ps");
  EXPECT_STATUS(ClusterSpec::FromProto(def), absl::StatusCode::kInvalidArgument, "must be >= 0");
  def.add_job()->set_name("ps");
  EXPECT_STATUS(ClusterSpec::FromProto(def), absl::StatusCode::kInvalidArgument, "'ps' twice");
}

}  // namespace
}  // namespace millrace
