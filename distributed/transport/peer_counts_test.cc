// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/peer_counts.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

// covers: clusters: each task counts what it exchanges with each other

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

TEST(PeerCountsTest, EachPeerHasItsOwn) {
  const PeerCounters counters({kPs, kWorker});
  EXPECT_TRUE(counters.Read().empty());
  EXPECT_EQ(counters.ToString(), "");
  counters.Find(kPs)->AddSent(100, 2, 1500);
  counters.Find(kPs)->AddSent(20, 0, 500);
  counters.Find(kPs)->AddReceived(7, 1);
  const auto read = counters.Read();
  ASSERT_EQ(read.size(), 1u);
  const PeerCounts& ps = read.at(kPs);
  EXPECT_EQ(ps.bytes_sent, 120);
  EXPECT_EQ(ps.messages_sent, 2);
  EXPECT_EQ(ps.tensors_sent, 2);
  EXPECT_EQ(ps.queued_ns, 2000);
  EXPECT_EQ(ps.bytes_received, 7);
  EXPECT_EQ(ps.messages_received, 1);
  EXPECT_EQ(ps.tensors_received, 1);
  EXPECT_EQ(counters.ToString(),
            "to /job:ps/replica:0/task:0 2 tensors in 2 messages of 120 bytes, which waited 2us, "
            "from it 1 in 1 of 7 bytes");
}

TEST(PeerCountsTest, TasksThatCallersMakeUpShareOneCounter) {
  const PeerCounters counters({kPs});
  const auto one = counters.Find("/job:made/replica:0/task:1");
  EXPECT_EQ(counters.Find("up"), one);
  EXPECT_EQ(counters.Find(""), one);
  EXPECT_NE(counters.Find(kPs), one);
  one->AddReceived(1, 1);
  EXPECT_EQ(counters.Read().count(PeerCounters::kOthers), 1u);
}

TEST(PeerCountsTest, StreamsKeepTheirCounter) {
  std::shared_ptr<PeerCounter> counter;
  {
    const PeerCounters counters({kPs});
    counter = counters.Find(kPs);
  }
  counter->AddSent(1, 1, 1);
  EXPECT_EQ(counter->Read().messages_sent, 1);
}

TEST(PeerCountsTest, ManyThreadsLoseNothing) {
  const PeerCounters counters({kPs});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&counters] {
      const auto counter = counters.Find(kPs);
      for (int j = 0; j < 1000; ++j) counter->AddSent(3, 2, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const PeerCounts counts = counters.Read().at(kPs);
  EXPECT_EQ(counts.bytes_sent, 12000);
  EXPECT_EQ(counts.messages_sent, 4000);
  EXPECT_EQ(counts.tensors_sent, 8000);
  EXPECT_EQ(counts.queued_ns, 4000);
}

}  // namespace
}  // namespace millrace
