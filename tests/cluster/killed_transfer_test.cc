// SPDX-License-Identifier: Apache-2.0
//
// kill -9 of either side of a large tensor that has arrived in part, over gRPC and through a Unix
// socket, or that is being copied into memory which both share, with real processes: the step ends
// as Unavailable and names who has gone, and nothing is left of the tensor and of the one who was
// killed.
//
// Which part has arrived is read from the receiver's resident memory, and the receiver is stopped
// there. In shared memory a tensor arrives as a whole, so its sender is stopped while it has the
// memory and has not filled it. Who was faster than the test's look is tried again, with fresh
// processes.
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/cluster/process.h"
#include "tests/cluster/process_state.h"
#include "tests/cluster/watched_cluster.h"

// covers: clusters: kill -9 of the sender or the receiver of a tensor of 512 MiB, in the middle of
//   it, over gRPC, over Unix sockets and in shared memory: the step is Unavailable, and memory,
//   descriptors, sockets and files are as before

namespace millrace {
namespace {

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr absl::Duration kGuard = absl::Minutes(2);
constexpr int kAttempts = 8;

using Way = WatchedCluster::Way;

class KilledTransferTest : public ::testing::TestWithParam<std::tuple<Way, bool>> {
 protected:
  Way way() const { return std::get<0>(GetParam()); }
  int victim() const {
    return std::get<1>(GetParam()) ? WatchedCluster::kSender : WatchedCluster::kReceiver;
  }
  int survivor() const {
    return std::get<1>(GetParam()) ? WatchedCluster::kReceiver : WatchedCluster::kSender;
  }

  // False: the tensor was there before the test has looked.
  bool Kill(WatchedCluster* cluster);
};

bool KilledTransferTest::Kill(WatchedCluster* cluster) {
  cluster->OpenSession();
  // Links are open, and what is made once is made.
  EXPECT_OK(cluster->Move(4096, 1));
  Process* const sender = cluster->ps(WatchedCluster::kSender);
  Process* const receiver = cluster->ps(WatchedCluster::kReceiver);
  Process* const killed = cluster->ps(victim());
  Process* const stopped = way() == Way::kShared ? sender : receiver;
  const pid_t other = cluster->ps(survivor())->pid();
  const int64_t used = cluster->UsedBytes(survivor());
  const int fds = NumFds(other);
  const std::set<std::string> sockets = UnixSocketsOf(killed->pid());
  const int64_t rss = RssBytes(receiver->pid());

  Status ended;
  Notification has_ended;
  std::thread step([&] {
    ended = cluster->Move(kBytes, 2, kGuard);
    has_ended.Notify();
  });
  // The tensor before was too small for shared memory, so there was none.
  const auto has_begun = [&] {
    return way() == Way::kShared ? !SharedMemoryOf(sender->pid()).empty()
                                 : RssBytes(receiver->pid()) > rss + kBytes / 16;
  };
  EXPECT_TRUE(WatchedCluster::Await([&] { return has_begun() || has_ended.HasBeenNotified(); }));
  EXPECT_OK(stopped->Signal(SIGSTOP));
  EXPECT_TRUE(WatchedCluster::Await([&] { return IsStopped(stopped->pid()); }));
  const int64_t arrived = RssBytes(receiver->pid()) - rss;
  if (has_ended.HasBeenNotified() || arrived > kBytes / 4 * 3) {
    EXPECT_OK(stopped->Signal(SIGCONT));
    step.join();
    EXPECT_OK(ended);
    return false;
  }
  EXPECT_OK(killed->Signal(SIGKILL));
  const absl::Time killed_at = absl::Now();
  if (killed != stopped) {
    EXPECT_OK(stopped->Signal(SIGCONT));
  }
  step.join();
  std::printf("%lld MiB of %lld had arrived; the step ended after %s\n",
              static_cast<long long>(arrived >> 20), static_cast<long long>(kBytes >> 20),
              absl::FormatDuration(absl::Now() - killed_at).c_str());
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_TRUE(absl::StrContains(ended.message(), absl::StrCat("/job:ps/replica:0/task:", victim())))
      << ended;
  const auto code = killed->WaitForExit(kGuard);
  EXPECT_OK(code);
  EXPECT_EQ(code.value_or(0), 128 + SIGKILL);

  // It had begun there, too; a receiver has no tensor of its own for what comes in shared memory.
  // The session is still open. Threads count some pages of what they take by themselves.
  if (way() != Way::kShared || survivor() == WatchedCluster::kSender) {
    EXPECT_GE(cluster->PeakTensorBytes(survivor()), kBytes / 8 * 7);
  }
  EXPECT_TRUE(WatchedCluster::Await([&] {
    return cluster->UsedBytes(survivor()) < used + kBytes / 8;
  })) << used
      << " bytes before, now " << cluster->UsedBytes(survivor());
  EXPECT_TRUE(WatchedCluster::Await([&] { return NumFds(other) <= fds; }))
      << fds << " descriptors before, now " << NumFds(other);
  EXPECT_TRUE(WatchedCluster::Await([&] { return SharedMemoryOf(other).empty(); }));
  const std::set<std::string> left = UnixSockets();
  for (const std::string& socket : sockets) {
    if (!absl::StartsWith(socket, "@millrace-")) continue;  // what it has inherited
    EXPECT_EQ(left.count(socket), 0u) << socket;
  }
  EXPECT_TRUE(std::filesystem::is_empty(cluster->tmp_dir()));

  // The survivor serves on, and finds the next life of the one that was killed.
  cluster->StartPs(victim());
  cluster->OpenSession();
  EXPECT_OK(cluster->Move(kBytes / 16, 3));
  return true;
}

TEST_P(KilledTransferTest, TheStepIsUnavailableAndNothingIsLeft) {
  for (int i = 0; i < kAttempts; ++i) {
    WatchedCluster cluster(way());
    if (Kill(&cluster) || HasFailure()) return;
  }
  FAIL() << "the tensor arrived " << kAttempts << " times before a process could be stopped";
}

INSTANTIATE_TEST_SUITE_P(Ways, KilledTransferTest,
                         ::testing::Combine(::testing::Values(Way::kGrpc, Way::kUnix, Way::kShared),
                                            ::testing::Bool()),
                         [](const auto& param) {
                           return absl::StrCat(WatchedCluster::Name(std::get<0>(param.param)),
                                               std::get<1>(param.param) ? "Sender" : "Receiver");
                         });

}  // namespace
}  // namespace millrace
