// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/slurm_environment.h"

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "gtest/gtest.h"

// covers: article 4-13: the environment of Slurm, and of mpirun in it, is a cluster
// covers: scenario F21: Slurm's environment: lists, several tasks a host, heterogeneous jobs
// covers: clusters: where a task of Slurm listens is what the other tasks compute: what Slurm says
//   of its place is compared with it

namespace millrace {
namespace {

using Variables = std::map<std::string, std::string>;

StatusOr<std::string> TextOf(const Variables& variables) {
  return TfConfigOfSlurm([&variables](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    variables[name] = value;
    if (value == "-") variables.erase(name);
  }
  return variables;
}

// "chief 0 | chief n1:8888 | ps n1:8889 n2:8888"; or the error.
std::string Summary(const Variables& variables) {
  const StatusOr<std::string> text = TextOf(variables);
  if (!text.ok()) return std::string(text.status().message());
  const StatusOr<ClusterConfig> config = ClusterConfig::Parse(*text);
  if (!config.ok()) return std::string(config.status().message());
  std::string summary = absl::StrCat(config->job(), " ", config->task());
  for (const std::string& job : config->cluster().jobs()) {
    absl::StrAppend(&summary, " | ", job);
    for (const int task : config->cluster().tasks(job)) {
      absl::StrAppend(&summary, " ", config->cluster().address(job, task).value());
    }
  }
  return summary;
}

// As srun --nodes=2 --ntasks=5 sets it for rank 0.
Variables Step() {
  return {{"SLURM_JOB_NODELIST", "n[1-4]"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURM_NTASKS", "5"},
          {"SLURM_STEP_NUM_TASKS", "5"},
          {"SLURM_TASKS_PER_NODE", "3,2"},
          {"SLURM_STEP_TASKS_PER_NODE", "3,2"},
          {"SLURM_PROCID", "0"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "0"},
          {"SLURM_STEP_ID", "0"},
          {"MILLRACE_PS_TASKS", "2"}};
}

TEST(SlurmEnvironmentTest, RolesGoByRankAndPortsByTheNumberOnTheHost) {
  const std::string cluster = " | chief n1:8888 | ps n1:8889 n1:8890 | worker n2:8888 n2:8889";
  EXPECT_EQ(Summary(Step()), "chief 0" + cluster);
  const auto rank = [](int rank, int local, int node) {
    return With(Step(), {{"SLURM_PROCID", absl::StrCat(rank)},
                         {"SLURM_LOCALID", absl::StrCat(local)},
                         {"SLURM_NODEID", absl::StrCat(node)}});
  };
  EXPECT_EQ(Summary(rank(1, 1, 0)), "ps 0" + cluster);
  EXPECT_EQ(Summary(rank(2, 2, 0)), "ps 1" + cluster);
  EXPECT_EQ(Summary(rank(3, 0, 1)), "worker 0" + cluster);
  EXPECT_EQ(Summary(rank(4, 1, 1)), "worker 1" + cluster);
}

TEST(SlurmEnvironmentTest, AnEvaluatorIsInNoCluster) {
  const Variables variables = With(Step(), {{"MILLRACE_EVALUATOR_TASKS", "1"},
                                            {"MILLRACE_PS_TASKS", "1"},
                                            {"SLURM_PROCID", "1"},
                                            {"SLURM_LOCALID", "1"}});
  EXPECT_EQ(Summary(variables),
            "evaluator 0 | chief n1:8888 | ps n1:8890 | worker n2:8888 n2:8889");
}

TEST(SlurmEnvironmentTest, TheFirstTaskMayBeAMasterAndPortsMayBeOthers) {
  EXPECT_EQ(Summary(With(Step(), {{"MILLRACE_CHIEF_JOB", "master"}, {"MILLRACE_PORT", "20000"}})),
            "master 0 | master n1:20000 | ps n1:20001 n1:20002 | worker n2:20000 n2:20001");
  EXPECT_EQ(Summary(With(Step(), {{"MILLRACE_PORT", "20000"},
                                  {"SLURM_STEP_RESV_PORTS", "12000-12001,12007"}})),
            "chief 0 | chief n1:12000 | ps n1:12001 n1:12007 | worker n2:12000 n2:12001");
}

TEST(SlurmEnvironmentTest, RanksGoOverHostsAsTheDistributionSays) {
  const Variables cyclic = With(Step(), {{"SLURM_DISTRIBUTION", "cyclic:block"}});
  EXPECT_EQ(Summary(cyclic),
            "chief 0 | chief n1:8888 | ps n2:8888 n1:8889 | worker n2:8889 "
            "n1:8890");
  const Variables plane =
      With(Step(), {{"SLURM_DISTRIBUTION", "plane"}, {"SLURM_DIST_PLANESIZE", "2"}});
  EXPECT_EQ(Summary(plane),
            "chief 0 | chief n1:8888 | ps n1:8889 n2:8888 | worker n2:8889 n1:8890");
  EXPECT_EQ(Summary(With(Step(), {{"SLURM_DISTRIBUTION", "block:block"}})), Summary(Step()));
}

TEST(SlurmEnvironmentTest, AJobStepAndOldNamesAreRead) {
  // In the batch script's own allocation, and of releases before steps had lists.
  const Variables job = With(Step(), {{"SLURM_STEP_NODELIST", "-"},
                                      {"SLURM_JOB_NODELIST", "-"},
                                      {"SLURM_NODELIST", "n[1-2]"},
                                      {"SLURM_STEP_NUM_TASKS", "-"},
                                      {"SLURM_STEP_TASKS_PER_NODE", "-"},
                                      {"SLURM_NTASKS", "-"},
                                      {"SLURM_NPROCS", "5"}});
  EXPECT_EQ(Summary(job), Summary(Step()));
  const Variables same = With(
      job, {{"SLURM_TASKS_PER_NODE", "-"}, {"SLURM_NTASKS_PER_NODE", "2"}, {"SLURM_NPROCS", "4"}});
  EXPECT_EQ(Summary(same), "chief 0 | chief n1:8888 | ps n1:8889 n2:8888 | worker n2:8889");
  EXPECT_EQ(Summary(With(same, {{"MILLRACE_TASKS_PER_NODE", "1,3"}})),
            "chief 0 | chief n1:8888 | ps n2:8888 n2:8889 | worker n2:8890");
}

TEST(SlurmEnvironmentTest, TheGroupsOfAHeterogeneousJobFollowEachOther) {
  const Variables job = {{"SLURM_HET_SIZE", "2"},
                         {"SLURM_JOB_NODELIST", "big1"},
                         {"SLURM_JOB_NODELIST_HET_GROUP_0", "big1"},
                         {"SLURM_TASKS_PER_NODE_HET_GROUP_0", "1"},
                         {"SLURM_JOB_NODELIST_HET_GROUP_1", "n[1-2]"},
                         {"SLURM_TASKS_PER_NODE_HET_GROUP_1", "2(x2)"},
                         {"SLURM_NTASKS", "5"},
                         {"SLURM_PROCID", "3"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_STEP_ID", "0"},
                         {"MILLRACE_PS_TASKS", "1"}};
  const std::string cluster = " | chief big1:8888 | ps n1:8888 | worker n1:8889 n2:8888 n2:8889";
  EXPECT_EQ(Summary(job), "worker 1" + cluster);
  // Groups that share a host share its ports.
  EXPECT_EQ(Summary(With(job, {{"SLURM_JOB_NODELIST_HET_GROUP_1", "big1,n2"}})),
            "worker 1 | chief big1:8888 | ps big1:8889 | worker big1:8890 n2:8888 n2:8889");
  EXPECT_EQ(Summary(With(job, {{"SLURM_TASKS_PER_NODE_HET_GROUP_1", "-"}})),
            "MILLRACE_CLUSTER=slurm: SLURM_TASKS_PER_NODE_HET_GROUP_1 must be set, got nothing; is "
            "this a task of srun?");
  Variables old;
  for (const auto& [name, value] : job) {
    std::string renamed = name;
    if (const size_t at = renamed.find("_HET_"); at != renamed.npos)
      renamed.replace(at, 5, "_PACK_");
    old[renamed] = value;
  }
  EXPECT_EQ(Summary(old), "worker 1" + cluster);
}

// As Slurm 22.05 set them for rank 2 of sbatch -n1 -w n2 : -n4 -w n1, srun --het-group=0-1.
TEST(SlurmEnvironmentTest, TheSortedListsOfAHeterogeneousStepAreNotItsRanks) {
  const Variables recorded = {{"SLURM_DISTRIBUTION", "cyclic"},
                              {"SLURM_HET_SIZE", "2"},
                              {"SLURM_JOB_NODELIST", "n[1-2]"},
                              {"SLURM_JOB_NODELIST_HET_GROUP_0", "n2"},
                              {"SLURM_JOB_NODELIST_HET_GROUP_1", "n1"},
                              {"SLURM_LOCALID", "1"},
                              {"SLURM_NODEID", "1"},
                              {"SLURM_NTASKS", "5"},
                              {"SLURM_PROCID", "2"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_STEP_NODELIST", "n[1-2]"},
                              {"SLURM_STEP_NUM_TASKS", "5"},
                              {"SLURM_STEP_TASKS_PER_NODE", "4,1"},
                              {"SLURM_TASKS_PER_NODE", "4,1"},
                              {"SLURM_TASKS_PER_NODE_HET_GROUP_0", "1"},
                              {"SLURM_TASKS_PER_NODE_HET_GROUP_1", "4"},
                              {"MILLRACE_PS_TASKS", "1"}};
  EXPECT_EQ(Summary(recorded),
            "worker 0 | chief n2:8888 | ps n1:8888 | worker n1:8889 n1:8890 n1:8891");
  // A step of one group of it.
  EXPECT_EQ(Summary(With(recorded, {{"SLURM_STEP_NODELIST", "n1"},
                                    {"SLURM_STEP_NUM_TASKS", "4"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "4"},
                                    {"SLURM_NTASKS", "4"},
                                    {"SLURM_DISTRIBUTION", "block"},
                                    {"SLURM_LOCALID", "2"},
                                    {"SLURM_NODEID", "0"}})),
            "worker 0 | chief n1:8888 | ps n1:8889 | worker n1:8890 n1:8891");
}

TEST(SlurmEnvironmentTest, MpirunCountsItsOwnTasks) {
  // The variables of Slurm are of mpirun's daemon: one task on each host.
  const Variables daemon = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"SLURM_JOB_NODELIST", "n[1-2]"},
                            {"SLURM_STEP_NODELIST", "n2"},
                            {"SLURM_STEP_TASKS_PER_NODE", "1"},
                            {"SLURM_STEP_NUM_TASKS", "1"},
                            {"SLURM_TASKS_PER_NODE", "1(x2)"},
                            {"SLURM_NTASKS", "1"},
                            {"SLURM_PROCID", "0"},
                            {"SLURM_LOCALID", "0"},
                            {"MILLRACE_PS_TASKS", "1"}};
  EXPECT_EQ(Summary(daemon), "worker 1 | chief n1:8888 | ps n1:8889 | worker n2:8888 n2:8889");
  // Slurm's own counts are right where they add up.
  EXPECT_EQ(Summary(With(daemon, {{"SLURM_TASKS_PER_NODE", "1,3"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}})),
            "worker 1 | chief n1:8888 | ps n2:8888 | worker n2:8889 n2:8890");
  EXPECT_EQ(Summary(With(daemon, {{"OMPI_COMM_WORLD_SIZE", "5"}})),
            "OMPI_COMM_WORLD_SIZE: must be the tasks of all hosts together, 4, got 5");
  EXPECT_EQ(Summary(With(daemon, {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})),
            "OMPI_COMM_WORLD_LOCAL_RANK: must be 1 for rank 3 on host 'n2', got 0; ranks must go "
            "over the hosts as SLURM_DISTRIBUTION says, block without it and in a heterogeneous "
            "job");
}

TEST(SlurmEnvironmentTest, OneTaskIsOneProcess) {
  EXPECT_EQ(TextOf({{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}}).value(), "");
  EXPECT_EQ(TextOf({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}).value(), "");
}

TEST(SlurmEnvironmentTest, MistakesNameTheVariable) {
  const std::pair<Variables, std::string> cases[] = {
      {{{"SLURM_STEP_NODELIST", "n[1-"}}, "SLURM_STEP_NODELIST: a range's end must be a number"},
      {{{"SLURM_STEP_NODELIST", "n[1-3]"}},
       "SLURM_STEP_TASKS_PER_NODE: must be of the 3 hosts of SLURM_STEP_NODELIST ('n[1-3]'), got 2 "
       "('3,2')"},
      {{{"SLURM_STEP_TASKS_PER_NODE", "3(x"}}, "SLURM_STEP_TASKS_PER_NODE: "},
      {{{"SLURM_STEP_TASKS_PER_NODE", "2,2"}},
       "SLURM_NTASKS: must be the tasks of all hosts together, 4, got 5"},
      {{{"SLURM_PROCID", "5"}}, "SLURM_PROCID: must be an integer in [0, 4], got '5'"},
      {{{"SLURM_PROCID", "one"}}, "SLURM_PROCID: must be an integer in [0, 4], got 'one'"},
      {{{"SLURM_PROCID", "-"}}, "MILLRACE_CLUSTER=slurm: SLURM_PROCID must be set, got nothing"},
      {{{"SLURM_STEP_NUM_TASKS", "0"}}, "SLURM_STEP_NUM_TASKS: must be an integer in [1, 65536]"},
      {{{"SLURM_STEP_NODELIST", "-"}, {"SLURM_JOB_NODELIST", "-"}},
       "MILLRACE_CLUSTER=slurm: SLURM_STEP_NODELIST must be set, got nothing; is this a task of "
       "srun?"},
      {{{"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "2"}, {"SLURM_NODEID", "1"}},
       "SLURM_LOCALID: must be 0 for rank 3 on host 'n2', got 2; ranks must go over the hosts"},
      {{{"SLURM_PROCID", "3"}}, "SLURM_NODEID: must be 1 for rank 3 on host 'n2', got 0"},
      {{{"SLURM_DISTRIBUTION", "arbitrary"}},
       "SLURM_DISTRIBUTION: must begin with block, cyclic or plane, got 'arbitrary'"},
      {{{"SLURM_DISTRIBUTION", "plane"}}, "SLURM_DIST_PLANESIZE must be set"},
      {{{"SLURM_STEP_ID", "-"}},
       "MILLRACE_CLUSTER=slurm: a program of 5 tasks must be started by srun, got one of the batch "
       "script itself (SLURM_STEP_ID is not set)"},
      {{{"MILLRACE_PS_TASKS", "-"}},
       "MILLRACE_PS_TASKS: must say how many of the 5 tasks are parameter servers, got nothing; 0 "
       "is none"},
      {{{"MILLRACE_PS_TASKS", "5"}},
       "MILLRACE_PS_TASKS: must leave a trainer of the 5 tasks, got 5 ps and 0 evaluators"},
      {{{"MILLRACE_PS_TASKS", "-1"}}, "MILLRACE_PS_TASKS: must be an integer in [0, 65536]"},
      {{{"MILLRACE_EVALUATOR_TASKS", "2"}},
       "MILLRACE_EVALUATOR_TASKS: must be an integer in [0, 1], got '2'"},
      {{{"MILLRACE_CHIEF_JOB", "boss"}}, "MILLRACE_CHIEF_JOB: must be 'chief' or 'master'"},
      {{{"MILLRACE_PORT", "65534"}},
       "MILLRACE_PORT: must leave a port for each of the 3 tasks of a host, got 65534"},
      {{{"SLURM_STEP_RESV_PORTS", "12000-12001"}},
       "SLURM_STEP_RESV_PORTS: must have a port for each of the 3 tasks of a host, got 2; srun "
       "--resv-ports=3"},
      {{{"SLURM_STEP_RESV_PORTS", "12001-12000"}}, "must be ports and ranges of ports"},
      {{{"SLURM_HET_SIZE", "x"}}, "SLURM_HET_SIZE: must be an integer in [1, 128], got 'x'"},
  };
  for (const auto& [more, message] : cases) {
    const Variables variables = With(Step(), more);
    EXPECT_STATUS(TextOf(variables), absl::StatusCode::kInvalidArgument, message);
  }
}

TEST(SlurmEnvironmentTest, IsReadWhereTfConfigIsNot) {
  unsetenv("TF_CONFIG");
  for (const auto& [name, value] : Step()) setenv(name.c_str(), value.c_str(), 1);
  EXPECT_TRUE(ClusterConfig::FromEnvironment()->is_local()) << "nobody has asked for it";
  setenv("MILLRACE_CLUSTER", "slurm", 1);
  setenv("SLURM_PROCID", "4", 1);
  setenv("SLURM_LOCALID", "1", 1);
  setenv("SLURM_NODEID", "1", 1);
  EXPECT_EQ(ClusterConfig::FromEnvironment()->task_device(), "/job:worker/task:1");
  setenv("TF_CONFIG", " ", 1);
  EXPECT_EQ(ClusterConfig::FromEnvironment()->task_device(), "/job:worker/task:1");
  setenv("TF_CONFIG", "{}", 1);
  EXPECT_TRUE(ClusterConfig::FromEnvironment()->is_local()) << "TF_CONFIG counts";
  unsetenv("TF_CONFIG");
  setenv("MILLRACE_CLUSTER", "pbs", 1);
  EXPECT_STATUS(ClusterConfig::FromEnvironment(), absl::StatusCode::kInvalidArgument,
                "MILLRACE_CLUSTER: must be 'slurm' or not set, got 'pbs'");
  unsetenv("MILLRACE_CLUSTER");
}

}  // namespace
}  // namespace millrace
