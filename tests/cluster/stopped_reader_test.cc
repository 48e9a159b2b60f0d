// SPDX-License-Identifier: Apache-2.0
//
// A receiver that is stopped (SIGSTOP) while steps send it large tensors: its sender keeps what as
// many steps of the session have sent as its limit says (ServerLimits::max_untaken_steps), the
// newest ones, and goes on when the receiver does. Real processes, over gRPC, through a Unix socket
// and in memory that both share.
//
// All that happens while it is stopped takes some seconds: after 30 s its links would be lost.
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/credit.h"
#include "gtest/gtest.h"
#include "tests/cluster/process.h"
#include "tests/cluster/process_state.h"
#include "tests/cluster/watched_cluster.h"

// covers: clusters: the sender to a process that is stopped keeps what so many steps have sent
//   as its limit says, whatever gives up, and steps that wait end well when the process goes on

namespace millrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Of a tensor: no network takes so much ahead. Its block has up to a quarter more.
constexpr int64_t kBytes = 16 * kMiB;
constexpr int64_t kBlockBytes = kBytes / 4 * 5;
constexpr int kGivenUp = 16;
constexpr int kWaiting = 4;
// Steps that the limit leaves, of one tensor each: those that wait are among them.
constexpr int kKept = 5;
static_assert(kWaiting <= kKept);
// Messages that wait, the network's own buffers, and a tensor of which a part is being written: it
// has to leave, whatever becomes of its step.
constexpr int64_t kMost = kKept * kBlockBytes + kBlockBytes + 32 * kMiB;
// In shared memory all for which there is credit has left, and what it lies in is the reader's
// until it says that it has read: a window, of which the last tensor may take what is left.
constexpr int64_t kMostShared = kMost + kDefaultWindowBytes + kBytes;
static_assert(kGivenUp * kBytes > kMostShared, "it is seen when all that gave up is kept");

using Way = WatchedCluster::Way;

class StoppedReaderTest : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, StoppedReaderTest,
                         ::testing::Values(Way::kGrpc, Way::kUnix, Way::kShared),
                         [](const auto& param) { return WatchedCluster::Name(param.param); });

TEST_P(StoppedReaderTest, ItsSenderKeepsWithinItsLimitAndGoesOnWithIt) {
  const int64_t most = GetParam() == Way::kShared ? kMostShared : kMost;
  WatchedCluster cluster(GetParam(), /*max_untaken_steps=*/kKept);
  cluster.OpenSession();
  for (int i = 0; i < 2; ++i) ASSERT_OK(cluster.Move(kBytes, 1));
  const int64_t before = cluster.UsedBytes(WatchedCluster::kSender);
  const auto kept = [&] { return cluster.UsedBytes(WatchedCluster::kSender) - before; };
  Process* const reader = cluster.ps(WatchedCluster::kReceiver);
  ASSERT_OK(reader->Signal(SIGSTOP));
  ASSERT_TRUE(WatchedCluster::Await([&] { return IsStopped(reader->pid()); }));

  // Steps that do not wait for ever: all at once, as each may take a second more than its time.
  std::vector<Status> gave_up(kGivenUp);
  std::vector<std::thread> steps;
  for (Status& status : gave_up) {
    steps.emplace_back([&] { status = cluster.Move(kBytes, 7, absl::Seconds(1)); });
  }
  for (std::thread& step : steps) step.join();
  for (const Status& status : gave_up) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  }
  EXPECT_TRUE(WatchedCluster::Await([&] { return kept() < most; })) << kept();
  std::printf("kept of steps that gave up: %lld MiB\n", static_cast<long long>(kept() / kMiB));

  // Steps that wait: half a tensor is more than what else comes and goes.
  std::vector<Status> ended(kWaiting);
  steps.clear();
  for (int i = 0; i < kWaiting; ++i) {
    steps.emplace_back([&cluster, &status = ended[static_cast<size_t>(i)], i] {
      status = cluster.Move(kBytes, static_cast<float>(i));
    });
  }
  EXPECT_TRUE(WatchedCluster::Await([&] { return kept() > kWaiting * kBytes - kBytes / 2; }));
  EXPECT_TRUE(WatchedCluster::Await([&] { return kept() < most; })) << kept();
  std::printf("kept with steps that wait: %lld MiB\n", static_cast<long long>(kept() / kMiB));

  ASSERT_OK(reader->Signal(SIGCONT));
  for (std::thread& step : steps) step.join();
  for (const Status& status : ended) EXPECT_OK(status);
  EXPECT_OK(cluster.Move(kBytes, 8));
  // Blocks that the allocator keeps for the next steps stay.
  EXPECT_TRUE(WatchedCluster::Await([&] { return kept() < 3 * kBlockBytes; })) << kept();
}

}  // namespace
}  // namespace millrace
