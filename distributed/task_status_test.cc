// SPDX-License-Identifier: Apache-2.0
#include "distributed/task_status.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/testing/tensor_testing.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/two_servers.h"
#include "gmock/gmock.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "net/rpc_server.h"
#include "net/security.h"
#include "net/testing/test_certificates.h"
#include "runtime/session.h"

// covers: clusters: a caller that is no task hears from each task of a cluster at once who it is,
//   whose sessions it has and what it has exchanged, and of each that does not answer why: absent,
//   silent, another task, no task, a token, TLS

namespace millrace {
namespace {

using ::testing::HasSubstr;
using State = TaskAnswer::State;

constexpr char kPs[] = "/job:ps/task:0";
constexpr char kWorker[] = "/job:worker/task:0";
constexpr absl::Duration kTimeout = absl::Seconds(30);

std::string AddressOf(Server* server) { return absl::StrCat("127.0.0.1:", server->port()); }

TaskAnswer AskOne(const std::string& task, const std::string& address,
                  absl::Duration timeout = kTimeout) {
  TaskAsker asker({{task, address}});
  const std::vector<TaskAnswer> statuses = asker.Ask(timeout);
  EXPECT_EQ(statuses.size(), 1u);
  return statuses.empty() ? TaskAnswer() : statuses[0];
}

// Takes connections into its backlog and never says a word.
class SilentListener {
 public:
  SilentListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(fd_, generic, size), 0);
    EXPECT_EQ(::listen(fd_, 128), 0);
    EXPECT_EQ(::getsockname(fd_, generic, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentListener() { ::close(fd_); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  const int fd_;
  int port_ = 0;
};

TEST(TaskStatusTest, TasksSayWhoTheyAreAndWhatTheyHaveExchanged) {
  LoopbackCluster cluster;
  const SmallModel model = MakeSmallModel();
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(session->Run(SmallModelBatch(model), {}, {model.train}));
  }
  ASSERT_OK(session->Close());
  TaskAsker asker(
      {{kPs, AddressOf(cluster.server("ps", 0))}, {"", AddressOf(cluster.server("worker", 0))}});
  const std::vector<TaskAnswer> statuses = asker.Ask(kTimeout);
  ASSERT_EQ(statuses.size(), 2u);
  for (const TaskAnswer& status : statuses) {
    EXPECT_EQ(status.state, State::kAnswers) << status.reason;
    EXPECT_EQ(status.reason, "");
    EXPECT_EQ(status.index, 0);
    EXPECT_FALSE(status.devices.empty());
    EXPECT_NE(status.incarnation, 0u);
    EXPECT_EQ(status.incarnation, status.devices[0].incarnation);
    EXPECT_EQ(status.devices[0].type, "CPU");
    ASSERT_TRUE(status.sessions.has_value());
    ASSERT_TRUE(status.peers.has_value());
    ASSERT_EQ(status.peers->size(), 1u);
  }
  EXPECT_EQ(statuses[0].task, kPs);
  EXPECT_EQ(statuses[0].job, "ps");
  EXPECT_EQ(statuses[0].devices[0].name, "/job:ps/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(statuses[1].task, kWorker);
  EXPECT_EQ(statuses[1].asked.task, "");
  const PeerCounts want =
      CountsOf(*cluster.server("ps", 0)).peers.at("/job:worker/replica:0/task:0");
  const PeerCounts& got = statuses[0].peers->at(kWorker);
  EXPECT_GT(got.messages_sent, 0);
  EXPECT_EQ(got.messages_sent, want.messages_sent);
  EXPECT_EQ(got.bytes_sent, want.bytes_sent);
  EXPECT_EQ(got.tensors_sent, want.tensors_sent);
  EXPECT_EQ(got.queued_ns, want.queued_ns);
  EXPECT_EQ(got.messages_received, want.messages_received);
  EXPECT_EQ(got.bytes_received, want.bytes_received);
  EXPECT_EQ(got.tensors_received, want.tensors_received);
}

TEST(TaskStatusTest, SessionsAndRunningStepsAreThoseOfTheirMasters) {
  LoopbackCluster cluster;
  TaskAsker asker({{kPs, AddressOf(cluster.server("ps", 0))}});
  EXPECT_TRUE(asker.Ask(kTimeout)[0].sessions.value().empty());
  const Scope root;
  const Output waits = TestWait(root.WithDevice(kPs));
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  std::thread step([&] { EXPECT_FALSE(session->Run({}, {waits}).ok()); });
  std::vector<TaskAnswer::Sessions> sessions;
  const absl::Time give_up = absl::Now() + kTimeout;
  do {  // until the step has reached the ps
    sessions = asker.Ask(kTimeout)[0].sessions.value();
  } while ((sessions.empty() || sessions[0].running_steps == 0) && absl::Now() < give_up);
  EXPECT_OK(session->Close());
  step.join();
  ASSERT_EQ(sessions.size(), 1u);
  EXPECT_EQ(sessions[0].master, kWorker);
  EXPECT_EQ(sessions[0].open, 1);
  EXPECT_EQ(sessions[0].running_steps, 1);
}

TEST(TaskStatusTest, ATaskThatIsGoneIsAbsentAndAnotherLifeHasAnotherIncarnation) {
  LoopbackCluster cluster;
  TaskAsker asker({{kPs, AddressOf(cluster.server("ps", 0))},
                   {kWorker, AddressOf(cluster.server("worker", 0))}});
  const uint64_t first = asker.Ask(kTimeout)[0].incarnation;
  cluster.Kill("ps", 0);
  const std::vector<TaskAnswer> statuses = asker.Ask(kTimeout);
  EXPECT_EQ(statuses[0].state, State::kAbsent);
  EXPECT_THAT(statuses[0].reason, HasSubstr("must be reachable, got: "));
  EXPECT_EQ(statuses[0].task, "");
  EXPECT_FALSE(statuses[0].peers.has_value());
  EXPECT_FALSE(statuses[0].sessions.has_value());
  EXPECT_EQ(statuses[1].state, State::kAnswers) << statuses[1].reason;
  cluster.Start("ps", 0);
  const TaskAnswer again = AskOne(kPs, AddressOf(cluster.server("ps", 0)));
  EXPECT_EQ(again.state, State::kAnswers) << again.reason;
  EXPECT_NE(again.incarnation, first);
}

TEST(TaskStatusTest, AnotherTaskAtTheAddressIsNamed) {
  TwoServers servers;
  const TaskAnswer status = AskOne("/job:ps/task:1", servers.worker_address());
  EXPECT_EQ(status.state, State::kOther);
  EXPECT_EQ(status.task, kWorker);
  EXPECT_EQ(status.reason, absl::StrCat("Task at ", servers.worker_address(),
                                        " must be /job:ps/task:1, got /job:worker/task:0; does "
                                        "the cluster name the right port?"));
}

TEST(TaskStatusTest, AServerThatIsNoTaskRefuses) {
  RpcServer::Options options;
  options.address = "127.0.0.1:0";
  options.credentials = std::make_shared<const Credentials>();
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start(std::move(options)));
  const TaskAnswer status = AskOne(kPs, absl::StrCat("127.0.0.1:", server->port()));
  EXPECT_EQ(status.state, State::kRefuses);
  EXPECT_THAT(status.reason, HasSubstr("must be a task of a cluster, got a server that is none"));
}

TEST(TaskStatusTest, ManySilentTasksTakeNoLongerThanOne) {
  std::vector<std::unique_ptr<SilentListener>> listeners;
  std::vector<AskedTask> tasks;
  for (int i = 0; i < 20; ++i) {
    listeners.push_back(std::make_unique<SilentListener>());
    tasks.push_back({absl::StrCat("/job:ps/task:", i), listeners.back()->address()});
  }
  TaskAsker asker(tasks);
  const absl::Time begun = absl::Now();
  const std::vector<TaskAnswer> statuses = asker.Ask(absl::Seconds(4));
  // One after the other they would take 20 times as long.
  EXPECT_LT(absl::Now() - begun, absl::Seconds(60));
  ASSERT_EQ(statuses.size(), 20u);
  for (const TaskAnswer& status : statuses) {
    EXPECT_EQ(status.state, State::kAbsent);
    EXPECT_TRUE(absl::StrContains(status.reason, "must be reachable") ||
                absl::StrContains(status.reason, "must answer within 4s"))
        << status.reason;
  }
}

TEST(TaskStatusTest, WithoutTasksThereIsNothingToWaitFor) {
  EXPECT_TRUE(TaskAsker({}).Ask(absl::Hours(1)).empty());
}

// What this process shows is the whole process's: each test leaves it as it was.
class SecureTaskStatusTest : public ::testing::Test {
 protected:
  ~SecureTaskStatusTest() override { EXPECT_OK(SetClusterSecurity({})); }

  static ServerOptions With(const SecurityOptions& security) {
    ServerOptions options;
    options.security = security;
    return options;
  }
  // As one that shows `client` sees the ps of a cluster that shows `servers`.
  static TaskAnswer Seen(const SecurityOptions& servers, const SecurityOptions& client) {
    const TwoServers two(With(servers), With(servers));
    EXPECT_OK(SetClusterSecurity(client));
    return AskOne(kPs, two.ps_address());
  }
};

TEST_F(SecureTaskStatusTest, ATokenIsAskedFor) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/task_status_test_token_", ::getpid());
  WriteTestFile(path, "the-token-of-this-cluster-0123456789", 0600);
  const SecurityOptions token{.token_file = path};
  const TaskAnswer stranger = Seen(token, {});
  EXPECT_EQ(stranger.state, State::kRefuses);
  EXPECT_THAT(stranger.reason, HasSubstr("callers must show the token of this cluster, got none"));
  EXPECT_FALSE(stranger.peers.has_value());
  const TaskAnswer member = Seen(token, token);
  EXPECT_EQ(member.state, State::kAnswers) << member.reason;
}

TEST_F(SecureTaskStatusTest, CertificatesThatDoNotFitAreNamed) {
  const TestAuthority stranger(::testing::TempDir(), absl::StrCat("status_other", ::getpid()));
  TestAuthority authority(::testing::TempDir(), absl::StrCat("status_ca", ::getpid()));
  const TestCertificate local = authority.Sign("local", "IP:127.0.0.1");
  const SecurityOptions tls{.ca_file = authority.ca_file(),
                            .certificate_file = local.certificate_file,
                            .key_file = local.key_file};
  const TaskAnswer plain = Seen(tls, {});
  EXPECT_EQ(plain.state, State::kRefuses);
  EXPECT_THAT(plain.reason, HasSubstr("it speaks TLS, but this process was given no CA"));
  const TaskAnswer other = Seen(tls, {.ca_file = stranger.ca_file()});
  EXPECT_EQ(other.state, State::kRefuses);
  EXPECT_THAT(other.reason, HasSubstr("is not signed by the CA of MILLRACE_CA_FILE here"));
  const TaskAnswer member = Seen(tls, tls);
  EXPECT_EQ(member.state, State::kAnswers) << member.reason;
}

}  // namespace
}  // namespace millrace
