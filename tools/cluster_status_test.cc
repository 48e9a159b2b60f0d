// SPDX-License-Identifier: Apache-2.0
//
// cluster_status: its report of statuses that are written here, and the program on the servers of a
// cluster in this process.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "distributed/task_status.h"
#include "distributed/transport/peer_counts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "net/security.h"
#include "nlohmann/json.hpp"
#include "tools/cluster_report.h"

// covers: programs: `cluster_status` prints who of a cluster answers, whose sessions they have and
//   what they have exchanged, as tables and as JSON, once or at an interval; exit code 1 when a
//   task is dead, silent, another one or refuses, 2 for a wrong cluster

namespace millrace {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kPs[] = "/job:ps/task:0";
constexpr char kWorker[] = "/job:worker/task:0";
// Far more than an answer takes: tests that expect all answers do not end by it.
constexpr char kPatient[] = " --timeout=60";

// --- The report ----------------------------------------------------------------------------------

std::vector<TaskAnswer> TwoTasks() {
  TaskAnswer ps;
  ps.asked = {kPs, "a:2222"};
  ps.state = TaskAnswer::State::kAnswers;
  ps.task = kPs;
  ps.job = "ps";
  ps.index = 0;
  ps.incarnation = 0xab;
  ps.devices = {{"/job:ps/replica:0/task:0/device:CPU:0", "CPU", 0xab, 256}};
  ps.sessions = std::vector<TaskAnswer::Sessions>{{kWorker, 1, 2}, {"", 2, 0}};
  PeerCounts counts;
  counts.bytes_sent = 800;
  counts.messages_sent = 2;
  counts.tensors_sent = 4;
  counts.queued_ns = 1'500'000;
  counts.bytes_received = 40;
  counts.messages_received = 1;
  counts.tensors_received = 3;
  ps.peers = std::map<std::string, PeerCounts>{{kWorker, counts}};
  TaskAnswer worker;
  worker.asked = {kWorker, "b:2222"};
  worker.reason = "Task at b:2222 must be reachable, got: no\x1b[2J";
  return {ps, worker};
}

TEST(ClusterReportTest, IsAlignedAndPrintable) {
  EXPECT_EQ(
      ClusterReport(TwoTasks()),
      "task                address  state    incarnation       devices  sessions  running_steps\n"
      "/job:ps/task:0      a:2222   answers  00000000000000ab        1         3              2\n"
      "/job:worker/task:0  b:2222   absent   -                       -         -              -\n"
      "\n"
      "/job:worker/task:0: Task at b:2222 must be reachable, got: no\\x1b[2J\n"
      "\n"
      "sessions_on     opened_by           open  running_steps\n"
      "/job:ps/task:0  /job:worker/task:0     1              2\n"
      "/job:ps/task:0  -                      2              0\n"
      "\n"
      "exchanged_by    with                messages_sent  bytes_sent  tensors_sent  queued_ms  "
      "messages_received  bytes_received  tensors_received\n"
      "/job:ps/task:0  /job:worker/task:0              2         800             4      1.500      "
      "            1              40                 3\n"
      "\n"
      "1 of 2 tasks answer\n");
}

TEST(ClusterReportTest, LeavesOutTablesThatAreEmpty) {
  TaskAnswer task;
  task.asked = {"", "a:1"};
  task.state = TaskAnswer::State::kOther;
  task.task = kPs;
  task.reason = "another";
  EXPECT_EQ(ClusterReport({task}),
            "task            address  state  incarnation       devices  sessions  running_steps\n"
            "/job:ps/task:0  a:1      other  0000000000000000        0         -              -\n"
            "\n"
            "another\n"
            "\n"
            "0 of 1 task answers\n");
}

TEST(ClusterReportTest, IsOneJsonObjectOnOneLine) {
  const std::string text = ClusterReportJson(TwoTasks());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const json want = json::parse(R"({"asked": 2, "answering": 1, "tasks": [
      {"address": "a:2222", "asked_task": "/job:ps/task:0", "state": "answers", "reason": null,
       "task": "/job:ps/task:0", "job": "ps", "index": 0, "incarnation": "00000000000000ab",
       "devices": [{"name": "/job:ps/replica:0/task:0/device:CPU:0", "type": "CPU",
                    "incarnation": "00000000000000ab", "memory_limit_bytes": 256}],
       "sessions": [{"master": "/job:worker/task:0", "open": 1, "running_steps": 2},
                    {"master": null, "open": 2, "running_steps": 0}],
       "peers": [{"task": "/job:worker/task:0", "messages_sent": 2, "bytes_sent": 800,
                  "tensors_sent": 4, "queued_ns": 1500000, "messages_received": 1,
                  "bytes_received": 40, "tensors_received": 3}]},
      {"address": "b:2222", "asked_task": "/job:worker/task:0", "state": "absent",
       "reason": "Task at b:2222 must be reachable, got: no\u001b[2J", "task": null, "job": null,
       "index": null, "incarnation": null, "devices": [], "sessions": null, "peers": null}]})");
  EXPECT_EQ(json::parse(text, nullptr, /*allow_exceptions=*/false), want) << text;
}

// --- The program ---------------------------------------------------------------------------------

struct Ended {
  int code = 0;
  std::string text;
};

// `environment`: "NAME='value' ".
Ended RunStatus(const std::string& arguments, const std::string& environment = "",
                const char* errors = "2>&1") {
  const std::string command =
      absl::StrCat(environment, "tools/cluster_status ", arguments, " ", errors);
  FILE* const pipe = popen(command.c_str(), "r");
  Ended ended;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    ended.text.append(buffer, n);
  }
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}

// A ps and a worker in this process.
class Cluster {
 public:
  explicit Cluster(const ServerOptions& options = {}) : ports_(FreePorts(2)) {
    for (const char* job : {"ps", "worker"}) {
      const auto config = ClusterConfig::Parse(TfConfig(job));
      EXPECT_OK(config);
      if (!config.ok()) continue;
      auto server = Server::Start(*config, options);
      EXPECT_OK(server);
      servers_.push_back(server.ok() ? *std::move(server) : nullptr);
    }
  }
  std::string ps_address() const { return absl::StrCat("127.0.0.1:", ports_[0]); }
  std::string worker_address() const { return absl::StrCat("127.0.0.1:", ports_[1]); }
  std::string spec() const {
    return absl::StrCat("{\"ps\": [\"", ps_address(), "\"], \"worker\": [\"", worker_address(),
                        "\"]}");
  }
  std::string TfConfig(const std::string& job) const {
    return absl::StrCat("{\"cluster\": ", spec(), ", \"task\": {\"type\": \"", job,
                        "\", \"index\": 0}}");
  }
  std::string flag() const { return absl::StrCat("--cluster_spec='", spec(), "'"); }
  void KillPs() { servers_[0].reset(); }

 private:
  const std::vector<int> ports_;
  std::vector<std::unique_ptr<Server>> servers_;
};

TEST(ClusterStatusTest, AllTasksAnswerAndTheCodeIsZero) {
  const Cluster cluster;
  const Ended ended = RunStatus(absl::StrCat(cluster.flag(), kPatient));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr(absl::StrCat("\n", kPs, "      ", cluster.ps_address(), " ")));
  EXPECT_THAT(ended.text, HasSubstr(absl::StrCat("\n", kWorker, "  ", cluster.worker_address())));
  EXPECT_THAT(ended.text, EndsWith("\n2 of 2 tasks answer\n"));
}

TEST(ClusterStatusTest, JsonHasEachTask) {
  const Cluster cluster;
  const Ended ended =
      RunStatus(absl::StrCat("--json ", cluster.flag(), kPatient), "", "2>/dev/null");
  EXPECT_EQ(ended.code, 0) << ended.text;
  const json report = json::parse(ended.text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << ended.text;
  EXPECT_EQ(report["asked"], 2);
  EXPECT_EQ(report["answering"], 2);
  ASSERT_EQ(report["tasks"].size(), 2u);
  EXPECT_EQ(report["tasks"][0]["task"], kPs);
  EXPECT_EQ(report["tasks"][0]["state"], "answers");
  EXPECT_EQ(report["tasks"][0]["address"], cluster.ps_address());
  EXPECT_EQ(report["tasks"][0]["sessions"], json::array());
  EXPECT_EQ(report["tasks"][0]["peers"], json::array());
  EXPECT_EQ(report["tasks"][1]["job"], "worker");
  EXPECT_EQ(report["tasks"][1]["index"], 0);
  EXPECT_EQ(report["tasks"][1]["devices"][0]["name"], "/job:worker/replica:0/task:0/device:CPU:0");
}

TEST(ClusterStatusTest, TheClusterMayBeThatOfTfConfigOrAddressesAlone) {
  const Cluster cluster;
  const Ended of_environment =
      RunStatus(kPatient, absl::StrCat("TF_CONFIG='", cluster.TfConfig("evaluator"), "' "));
  EXPECT_EQ(of_environment.code, 0) << of_environment.text;
  EXPECT_THAT(of_environment.text, EndsWith("\n2 of 2 tasks answer\n"));
  const Ended target =
      RunStatus(absl::StrCat("--target grpc://", cluster.worker_address(), kPatient));
  EXPECT_EQ(target.code, 0) << target.text;
  EXPECT_THAT(target.text, HasSubstr(absl::StrCat("\n", kWorker, "  ", cluster.worker_address())));
  EXPECT_THAT(target.text, EndsWith("\n1 of 1 task answers\n"));
}

TEST(ClusterStatusTest, ADeadTaskIsNamedWithItsReason) {
  Cluster cluster;
  cluster.KillPs();
  const Ended ended = RunStatus(absl::StrCat(cluster.flag(), kPatient));
  EXPECT_EQ(ended.code, 1) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr(absl::StrCat("\n", kPs, ": Task at ", cluster.ps_address(),
                                                 " must be reachable, got: ")));
  EXPECT_THAT(ended.text, EndsWith("\n1 of 2 tasks answer\n"));
}

TEST(ClusterStatusTest, AnotherTaskAtAnAddressIsNoAnswer) {
  const Cluster cluster;
  const Ended ended = RunStatus(
      absl::StrCat("--cluster_spec='{\"ps\": {\"7\": \"", cluster.ps_address(), "\"}}'", kPatient));
  EXPECT_EQ(ended.code, 1) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr(" must be /job:ps/task:7, got /job:ps/task:0; "));
}

TEST(ClusterStatusTest, ASilentTaskIsWaitedForNoLongerThanItsTime) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(fd, generic, size), 0);
  ASSERT_EQ(::listen(fd, 16), 0);
  ASSERT_EQ(::getsockname(fd, generic, &size), 0);
  // It would hang here for ever.
  const Ended ended =
      RunStatus(absl::StrCat("--json --timeout=2 --target=127.0.0.1:", ntohs(address.sin_port)), "",
                "2>/dev/null");
  ::close(fd);
  EXPECT_EQ(ended.code, 1) << ended.text;
  const json report = json::parse(ended.text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << ended.text;
  EXPECT_EQ(report["answering"], 0);
  EXPECT_EQ(report["tasks"][0]["state"], "absent");
  EXPECT_TRUE(report["tasks"][0]["asked_task"].is_null());
  EXPECT_THAT(report["tasks"][0]["reason"].get<std::string>(), HasSubstr(" must "));
}

TEST(ClusterStatusTest, ATokenIsShownWhereItIsAskedFor) {
  const std::string path =
      JoinPath(::testing::TempDir(), absl::StrCat("cluster_status_token_", RandomHexName()));
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, "the-token-of-this-cluster-01234"));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  ServerOptions options;
  options.security = SecurityOptions{.token_file = path};
  const Cluster cluster(options);
  const std::string arguments = absl::StrCat(cluster.flag(), kPatient);
  const Ended stranger = RunStatus(arguments);
  EXPECT_EQ(stranger.code, 1) << stranger.text;
  EXPECT_THAT(stranger.text, HasSubstr("  refuses  "));
  EXPECT_THAT(stranger.text, HasSubstr("callers must show the token of this cluster, got none"));
  const Ended member = RunStatus(arguments, absl::StrCat("MILLRACE_TOKEN_FILE='", path, "' "));
  EXPECT_EQ(member.code, 0) << member.text;
  const Ended without_file =
      RunStatus(arguments, absl::StrCat("MILLRACE_TOKEN_FILE='", path, "x' "));
  EXPECT_EQ(without_file.code, 2) << without_file.text;
  EXPECT_THAT(without_file.text, HasSubstr("cluster_status: error: "));
  EXPECT_EQ(::unlink(path.c_str()), 0);
}

TEST(ClusterStatusTest, WrongFlagsAreNamedAndTheCodeIsTwo) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "one of --cluster_spec, --target and a TF_CONFIG with a cluster is needed"},
      {"--cluster_spec='{'", "argument --cluster_spec: must be JSON, got an error at byte 2"},
      {"--cluster_spec='[]'", "argument --cluster_spec: must be a JSON object, got '[]'"},
      {"--cluster_spec='{}'", "argument --cluster_spec: must name a task that listens, got '{}'"},
      {"--cluster_spec='{\"ps\": \"a:1\"}'",
       "argument --cluster_spec: 'ps' must be a list of addresses"},
      {"--cluster_spec='{\"ps\": [\"a\"]}'",
       "argument --cluster_spec: the address of ps[0] must be host:port, got 'a'"},
      {"--target=a", "argument --target: ClusterSpec: the address of target[0] must be host:port"},
      {"--target=a:1 --target=a:1", "addresses must be unique, got 'a:1'"},
      {"--target=a:1 --cluster_spec='{}'",
       "argument --target: not allowed with argument --cluster_spec"},
      {"--target=a:1 --timeout=0", "argument --timeout: must be an integer in [1, 3600], got '0'"},
      {"--target=a:1 --watch=soon", "argument --watch: must be an integer in [1, 86400]"},
      {"a:1", "unrecognized arguments: a:1"},
  };
  for (const auto& [arguments, message] : cases) {
    const Ended ended = RunStatus(arguments, "TF_CONFIG= ");
    EXPECT_EQ(ended.code, 2) << arguments;
    EXPECT_THAT(ended.text, HasSubstr("usage: cluster_status ")) << arguments;
    EXPECT_THAT(ended.text, HasSubstr("cluster_status: error: "));
    EXPECT_THAT(ended.text, HasSubstr(message)) << arguments;
  }
  const Ended config = RunStatus("", "TF_CONFIG='{\"cluster\": 3}' ");
  EXPECT_EQ(config.code, 2);
  EXPECT_THAT(config.text, HasSubstr("TF_CONFIG: cluster must be an object, got '3'"));
}

TEST(ClusterStatusTest, WatchAsksAgainUntilNobodyReads) {
  Cluster cluster;
  const std::string command = absl::StrCat("tools/cluster_status --json --watch=1 ", cluster.flag(),
                                           kPatient, " 2>/dev/null");
  FILE* const pipe = popen(command.c_str(), "r");
  std::vector<json> reports;
  char* line = nullptr;
  size_t capacity = 0;
  while (reports.size() < 2 && getline(&line, &capacity, pipe) > 0) {
    reports.push_back(json::parse(line, nullptr, /*allow_exceptions=*/false));
    if (reports.size() == 1) cluster.KillPs();
  }
  std::free(line);
  pclose(pipe);  // waits: it ends when it writes the next report
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0]["answering"], 2);
  EXPECT_EQ(reports[1]["tasks"][1]["state"], "answers");
}

}  // namespace
}  // namespace millrace
