// SPDX-License-Identifier: Apache-2.0
//
// A receiver that is stopped (SIGSTOP) while steps send it large tensors: its sender keeps what its
// running steps have anyway, and no more, however many other steps have given up; and goes on when
// the receiver does. Real processes, over links of both kinds.
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/cluster/process.h"
#include "tests/cluster/process_state.h"
#include "tests/cluster/watched_cluster.h"

// covers: clusters: the sender to a process that is stopped keeps the tensors of steps that run and
//   none of those that have given up, and its steps end well when the process goes on

namespace millrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Of a tensor: no network takes so much ahead. Its block has up to a quarter more.
constexpr int64_t kBytes = 32 * kMiB;
constexpr int64_t kBlockBytes = kBytes / 4 * 5;
constexpr int kWaiting = 4;
constexpr int kGivenUp = 16;
// Messages that wait, the network's own buffers, and a tensor of which a part is being written: it
// has to leave, whatever becomes of its step.
constexpr int64_t kMost = kWaiting * kBlockBytes + kBlockBytes + 32 * kMiB;
static_assert(kGivenUp * kBytes > kMost, "it is seen when what gave up is kept");

class StoppedReaderTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Kinds, StoppedReaderTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Unix" : "Grpc"; });

TEST_P(StoppedReaderTest, ItsSenderKeepsWhatRunsAndGoesOnWithIt) {
  WatchedCluster cluster(GetParam());
  cluster.OpenSession();
  for (int i = 0; i < 2; ++i) ASSERT_OK(cluster.Move(kBytes, 1));
  const int64_t before = cluster.UsedBytes(WatchedCluster::kSender);
  Process* const reader = cluster.ps(WatchedCluster::kReceiver);
  ASSERT_OK(reader->Signal(SIGSTOP));
  ASSERT_TRUE(WatchedCluster::Await([&] { return IsStopped(reader->pid()); }));

  std::vector<Status> ended(kWaiting);
  std::vector<std::thread> steps;
  for (int i = 0; i < kWaiting; ++i) {
    steps.emplace_back([&cluster, &status = ended[static_cast<size_t>(i)], i] {
      status = cluster.Move(kBytes, static_cast<float>(i));
    });
  }
  // All have sent theirs: half a tensor is more than what else comes and goes.
  const auto kept = [&] { return cluster.UsedBytes(WatchedCluster::kSender) - before; };
  EXPECT_TRUE(WatchedCluster::Await([&] { return kept() > kWaiting * kBytes - kBytes / 2; }));
  EXPECT_LT(kept(), kMost);
  // Steps that do not wait for ever. Without a limit on what is kept of them it grows by each.
  for (int i = 0; i < kGivenUp; ++i) {
    EXPECT_EQ(cluster.Move(kBytes, 7, absl::Milliseconds(20)).code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_TRUE(WatchedCluster::Await([&] { return kept() < kMost; }));
  std::printf("kept while the reader is stopped: %lld MiB\n",
              static_cast<long long>(kept() / kMiB));

  ASSERT_OK(reader->Signal(SIGCONT));
  for (std::thread& step : steps) step.join();
  for (const Status& status : ended) EXPECT_OK(status);
  EXPECT_OK(cluster.Move(kBytes, 8));
  EXPECT_TRUE(WatchedCluster::Await([&] { return kept() < kBytes; })) << kept();
}

}  // namespace
}  // namespace millrace
