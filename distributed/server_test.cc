// SPDX-License-Identifier: Apache-2.0
//
// How a server starts, is waited for and ends: several of one cluster in this process, over
// loopback.
#include "distributed/server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/small_model.h"
#include "gtest/gtest.h"
#include "runtime/session.h"

// covers: article 2-7: Server with master and worker on one port, `target()`
// covers: article 2-8: `Join` until a signal, exit code 0; leaves by itself when the run has ended

namespace millrace {
namespace {

TEST(ServerTest, APortInUseIsAnErrorAtOnceWithItsAddress) {
  LoopbackCluster cluster;
  const absl::Time start = absl::Now();
  const auto second = Server::Start(cluster.Config("ps", 0));
  EXPECT_STATUS(second, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port(),
                             " must be free, got: port is in use"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST(ServerTest, AHostThatIsNotThisMachineIsAnError) {
  // TEST-NET-1 is nobody's address.
  ASSERT_OK_AND_ASSIGN(const ClusterConfig config,
                       ClusterConfig::Parse(R"({"cluster": {"worker": ["192.0.2.1:4711"]},
                                                "task": {"type": "worker", "index": 0}})"));
  EXPECT_STATUS(Server::Start(config), absl::StatusCode::kFailedPrecondition,
                "192.0.2.1:4711 must be one of this machine");
}

TEST(ServerTest, AMissingTaskEndsTheCreationOfASession) {
  LoopbackCluster cluster;
  cluster.Kill("ps", 0);
  SessionOptions options;
  options.target = cluster.server("worker", 0)->target();
  options.creation_timeout = absl::Milliseconds(300);
  EXPECT_STATUS(NewSession(options), absl::StatusCode::kDeadlineExceeded,
                "got none from /job:ps/replica:0/task:0 at 127.0.0.1:");
}

TEST(ServerTest, AMissingMasterEndsTheCreationOfASession) {
  SessionOptions options;
  options.target = absl::StrCat("grpc://127.0.0.1:", FreePort());
  options.creation_timeout = absl::Milliseconds(300);
  EXPECT_STATUS(NewSession(options), absl::StatusCode::kDeadlineExceeded,
                "Session: the master at 127.0.0.1:");
  options.target = "grpc://";
  EXPECT_STATUS(NewSession(options), absl::StatusCode::kInvalidArgument, "grpc://host:port");
}

TEST(ServerTest, TasksMayStartInAnyOrder) {
  LoopbackCluster cluster;
  cluster.Kill("ps", 0);
  SessionOptions options;
  options.target = cluster.server("worker", 0)->target();
  options.creation_timeout = absl::Seconds(60);
  Status status;
  std::thread client([&] { status = NewSession(options).status(); });
  cluster.Start("ps", 0);
  client.join();
  EXPECT_OK(status);
}

TEST(ServerTest, StopEndsJoinAndSessionsThatOutliveTheServerOnlyRefuse) {
  LoopbackCluster cluster;
  const SmallModel model = MakeSmallModel();
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  Server* const ps = cluster.server("ps", 0);
  Status joined = absl::UnknownError("not yet");
  std::thread join([&] { joined = ps->Join(); });
  ps->Stop();
  join.join();
  EXPECT_OK(joined);
  ps->Stop();  // a second time is harmless
  cluster.Kill("worker", 0);
  EXPECT_STATUS(session->Run({}, {model.w.value}), absl::StatusCode::kAborted, "Shutdown");
}

TEST(ServerDeathTest, ATerminationSignalEndsJoinWithOk) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        LoopbackCluster cluster;
        Server* const ps = cluster.server("ps", 0);
        Status joined = absl::UnknownError("not yet");
        std::thread join([&] { joined = ps->Join(); });
        // A signal that comes before Join handles it would end the process.
        struct sigaction action = {};
        do {
          std::this_thread::yield();
          sigaction(SIGTERM, nullptr, &action);
        } while (action.sa_handler == SIG_DFL);
        kill(getpid(), SIGTERM);
        join.join();
        std::_Exit(joined.ok() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "was told to end");
}

TEST(ServerDeathTest, WithoutJoinATerminationSignalEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        LoopbackCluster cluster;
        Server* const ps = cluster.server("ps", 0);
        std::thread join([&] { ps->Join().IgnoreError(); });
        ps->Stop();
        join.join();
        kill(getpid(), SIGTERM);
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(ServerTest, WithoutAClusterSessionsRunInThisProcess) {
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start(ClusterConfig()));
  EXPECT_EQ(server->target(), "");
  EXPECT_EQ(server->port(), 0);
  const SmallModel model = MakeSmallModel();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession({.target = server->target()}));
  EXPECT_OK(session->Extend(model.root));
  std::thread join([&] { EXPECT_OK(server->Join()); });
  server->Stop();
  join.join();
  EXPECT_OK(server->Join());
}

// No descriptor can be opened in its life.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(next, 0);
    ::close(next);
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit none = {static_cast<rlim_t>(next), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_EQ(::open("/dev/null", O_RDONLY | O_CLOEXEC), -1);
  }
  ~NoMoreFiles() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

TEST(ServerTest, AServerThatGotNoDescriptorForItsEndHearsOfItAllTheSame) {
  StatusOr<std::unique_ptr<Server>> server = absl::UnknownError("not started");
  {
    const NoMoreFiles full;
    server = Server::Start(ClusterConfig());
  }
  ASSERT_OK(server);
  std::thread join([&] { EXPECT_OK((*server)->Join()); });
  (*server)->Stop();
  join.join();
}

}  // namespace
}  // namespace millrace
