// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/notification.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr char kWorker[] = "/job:worker/replica:0/task:0/device:CPU:0";
constexpr char kPs[] = "/job:ps/replica:0/task:0/device:CPU:0";

RendezvousKey Key(const std::string& edge) {
  return *RendezvousKey::Parse(RendezvousKey::Make(kWorker, 42, kPs, edge, 0, 0));
}

int Value(const Tensor& t) { return t.scalar<int32_t>(); }

TEST(RendezvousKeyTest, TextIsTensorFlows) {
  const std::string text = RendezvousKey::Make(kWorker, 42, kPs, "edge_12_x", 0, 0);
  EXPECT_EQ(text,
            "/job:worker/replica:0/task:0/device:CPU:0;000000000000002a;"
            "/job:ps/replica:0/task:0/device:CPU:0;edge_12_x;0:0");
  ASSERT_OK_AND_ASSIGN(const RendezvousKey key, RendezvousKey::Parse(text));
  EXPECT_EQ(key.text, text);
  EXPECT_EQ(key.src_device, kWorker);
  EXPECT_EQ(key.src_incarnation, 42u);
  EXPECT_EQ(key.dst_device, kPs);
  EXPECT_EQ(key.edge_name, "edge_12_x");
}

TEST(RendezvousKeyTest, LargeNumbersSurvive) {
  const std::string text =
      RendezvousKey::Make(kWorker, 0xfedcba9876543210ull, kPs, "e", 1496156560211570566ull, 7);
  EXPECT_NE(text.find(";fedcba9876543210;"), std::string::npos);
  EXPECT_NE(text.find(";1496156560211570566:7"), std::string::npos);
  EXPECT_EQ(RendezvousKey::Parse(text)->src_incarnation, 0xfedcba9876543210ull);
}

TEST(RendezvousKeyTest, OtherTextIsRefused) {
  const std::string w = kWorker;
  const std::string p = kPs;
  const std::string bad[] = {
      "",
      "a;b",
      w + ";000000000000002a;" + p + ";e",
      w + ";000000000000002a;" + p + ";e;0:0;more",
      w + ";2a;" + p + ";e;0:0",
      w + ";00000000000000zz;" + p + ";e;0:0",
      w + ";-00000000000002a;" + p + ";e;0:0",
      "/job:worker;000000000000002a;" + p + ";e;0:0",
      w + ";000000000000002a;nonsense;e;0:0",
      w + ";000000000000002a;" + p + ";e;0",
      w + ";000000000000002a;" + p + ";e;0:x",
      w + ";000000000000002a;" + p + ";e;:0",
  };
  for (const std::string& text : bad) {
    EXPECT_STATUS(RendezvousKey::Parse(text), absl::StatusCode::kInvalidArgument,
                  "Invalid rendezvous key: ");
  }
}

TEST(RendezvousKeyTest, AKeyOfALoopIsThatOfTheRootFrameElsewhere) {
  const std::string root = Key("e").text;
  const std::string in_loop = RendezvousKey::InFrame(root, 1496156560211570566ull, 7);
  EXPECT_EQ(in_loop, RendezvousKey::Make(kWorker, 42, kPs, "e", 1496156560211570566ull, 7));
  std::string back;
  uint64_t frame_id = 0;
  int64_t iteration = 0;
  EXPECT_TRUE(RendezvousKey::SplitFrame(in_loop, &back, &frame_id, &iteration));
  EXPECT_EQ(back, root);
  EXPECT_EQ(frame_id, 1496156560211570566ull);
  EXPECT_EQ(iteration, 7);
  for (const std::string& text : {root, std::string(), std::string("a;b"), std::string(";1"),
                                  std::string("x:0;y"), std::string(";9999999999999999999999:1")}) {
    EXPECT_FALSE(RendezvousKey::SplitFrame(text, &back, &frame_id, &iteration)) << text;
    EXPECT_EQ(frame_id, 0u);
  }
}

TEST(TransferTableTest, TheTwoEndsOfAnEdgeHaveOneNumber) {
  TransferTable table;
  EXPECT_EQ(table.Add(Key("a"), "send_a"), 0u);
  EXPECT_EQ(table.Add(Key("b"), "recv_b"), 1u);
  EXPECT_EQ(table.Add(Key("a"), "recv_a"), 0u);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.NumberOfKey(Key("b").text), 1u);
  EXPECT_EQ(table.NumberOfNode("recv_a"), 0u);
  EXPECT_EQ(table.NumberOfKey(Key("c").text), Transfer::kUnnumbered);
  EXPECT_EQ(table.NumberOfNode("c"), Transfer::kUnnumbered);
  EXPECT_FALSE(table.IsInLoop(1));
  EXPECT_TRUE(table.IsInLoop(table.Add(Key("d"), "send_d", /*in_loop=*/true)));
}

// With keys that are names alone, and with keys that have numbers.
class RendezvousTest : public ::testing::TestWithParam<bool> {
 protected:
  static std::shared_ptr<Rendezvous> Make() {
    if (!GetParam()) return MakeLocalRendezvous();
    auto table = std::make_shared<TransferTable>();
    for (const char* edge : {"a", "b", "parked", "x", "never"}) table->Add(Key(edge), edge);
    for (int i = 0; i < 200; ++i) {
      table->Add(Key(absl::StrCat(i)), absl::StrCat(i));
      table->Add(Key(absl::StrCat("edge_", i)), absl::StrCat("edge_", i));
    }
    return MakeLocalRendezvous(std::move(table));
  }
};

INSTANTIATE_TEST_SUITE_P(Keys, RendezvousTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Numbered" : "Named"; });

TEST_P(RendezvousTest, ValueWaitsForItsReceiver) {
  const auto rendezvous = Make();
  ASSERT_OK(rendezvous->Send(Key("a"), Tensor::Scalar<int32_t>(7), false));
  bool is_dead = true;
  ASSERT_OK_AND_ASSIGN(const Tensor got, rendezvous->Recv(Key("a"), &is_dead));
  EXPECT_EQ(Value(got), 7);
  EXPECT_FALSE(is_dead);
}

// By number where there is one, by key from outside: both find the tensor of this very iteration.
TEST_P(RendezvousTest, InALoopTensorsMeetByFrameAndIteration) {
  const auto rendezvous = Make();
  const std::string root = Key("a").text;
  const uint32_t number = GetParam() ? 0 : Transfer::kUnnumbered;
  const auto send = [&](uint64_t frame, int64_t iteration, int32_t value) {
    EXPECT_OK(rendezvous->Send(Transfer(number, root, frame, iteration),
                               Tensor::Scalar<int32_t>(value), false));
  };
  std::vector<int> got;
  rendezvous->RecvAsync(Transfer(number, root, 5, 1),
                        [&](const Status& status, Tensor value, bool) {
                          EXPECT_OK(status);
                          got.push_back(Value(value));
                        });
  send(5, 0, 50);
  send(6, 1, 61);
  ASSERT_OK(rendezvous->Send(Key("a"), Tensor::Scalar<int32_t>(0), false));
  EXPECT_TRUE(got.empty());
  send(5, 1, 51);
  EXPECT_EQ(got, std::vector<int>{51});
  const std::string text = RendezvousKey::InFrame(root, 6, 1);
  ASSERT_OK_AND_ASSIGN(const RendezvousKey key, RendezvousKey::Parse(text));
  ASSERT_OK_AND_ASSIGN(Tensor value, rendezvous->Recv(key, nullptr));
  EXPECT_EQ(Value(value), 61);
  ASSERT_OK_AND_ASSIGN(value, rendezvous->Recv(Transfer(number, root, 5, 0), nullptr));
  EXPECT_EQ(Value(value), 50);
  ASSERT_OK_AND_ASSIGN(value, rendezvous->Recv(Key("a"), nullptr));
  EXPECT_EQ(Value(value), 0);
  Status ended;
  rendezvous->RecvAsync(Transfer(number, root, 5, 2),
                        [&](const Status& status, Tensor, bool) { ended = status; });
  rendezvous->StartAbort(absl::AbortedError("over"));
  EXPECT_STATUS(ended, absl::StatusCode::kAborted, "over");
  EXPECT_STATUS(rendezvous->Send(Transfer(number, root, 5, 3), Tensor(), true),
                absl::StatusCode::kAborted, "over");
}

TEST_P(RendezvousTest, ReceiverWaitsForItsValue) {
  const auto rendezvous = Make();
  int calls = 0;
  rendezvous->RecvAsync(Key("a"), [&](const Status& status, Tensor value, bool is_dead) {
    ++calls;
    EXPECT_OK(status);
    EXPECT_FALSE(value.has_value());
    EXPECT_TRUE(is_dead);
  });
  EXPECT_EQ(calls, 0);
  ASSERT_OK(rendezvous->Send(Key("b"), Tensor::Scalar<int32_t>(1), false));
  EXPECT_EQ(calls, 0);
  ASSERT_OK(rendezvous->Send(Key("a"), Tensor(), true));
  EXPECT_EQ(calls, 1);
}

TEST_P(RendezvousTest, ValuesAndReceiversOfAKeyAreFirstInFirstOut) {
  const auto rendezvous = Make();
  for (int32_t i = 0; i < 5; ++i) {
    ASSERT_OK(rendezvous->Send(Key("a"), Tensor::Scalar<int32_t>(i), false));
  }
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(Value(*rendezvous->Recv(Key("a"), nullptr)), i);
  std::vector<std::pair<int, int>> got;  // receiver, value
  for (int i = 0; i < 5; ++i) {
    rendezvous->RecvAsync(Key("a"), [&got, i](const Status&, Tensor value, bool) {
      got.emplace_back(i, Value(value));
    });
  }
  for (int32_t i = 10; i < 15; ++i) {
    ASSERT_OK(rendezvous->Send(Key("a"), Tensor::Scalar<int32_t>(i), false));
  }
  EXPECT_EQ(got, (std::vector<std::pair<int, int>>{{0, 10}, {1, 11}, {2, 12}, {3, 13}, {4, 14}}));
}

TEST_P(RendezvousTest, CallbackMayUseTheRendezvous) {
  const auto rendezvous = Make();
  int last = -1;
  rendezvous->RecvAsync(Key("a"), [&](const Status&, Tensor value, bool) {
    // Same key, so the same shard and the same lock.
    ASSERT_OK(rendezvous->Send(Key("a"), std::move(value), false));
    rendezvous->RecvAsync(Key("a"),
                          [&](const Status&, Tensor again, bool) { last = Value(again); });
  });
  ASSERT_OK(rendezvous->Send(Key("a"), Tensor::Scalar<int32_t>(3), false));
  EXPECT_EQ(last, 3);
}

TEST_P(RendezvousTest, AbortEndsWaitersAndLaterCallsWithTheFirstStatus) {
  const auto rendezvous = Make();
  ASSERT_OK(rendezvous->Send(Key("parked"), Tensor::Scalar<int32_t>(1), false));
  std::vector<Status> ended;
  for (int i = 0; i < 20; ++i) {
    rendezvous->RecvAsync(Key(std::to_string(i)),
                          [&](const Status& status, Tensor, bool) { ended.push_back(status); });
  }
  rendezvous->StartAbort(absl::AbortedError("first"));
  rendezvous->StartAbort(absl::InternalError("second"));
  ASSERT_EQ(ended.size(), 20u);
  for (const Status& status : ended) EXPECT_EQ(status, absl::AbortedError("first"));
  EXPECT_EQ(rendezvous->Send(Key("x"), Tensor(), false), absl::AbortedError("first"));
  EXPECT_EQ(rendezvous->Recv(Key("parked"), nullptr).status(), absl::AbortedError("first"));
}

TEST_P(RendezvousTest, AbortFreesParkedTensors) {
  const auto rendezvous = Make();
  const Tensor t = Tensor::Scalar<int32_t>(1);
  ASSERT_OK(rendezvous->Send(Key("a"), t, false));
  EXPECT_FALSE(t.BufferIsUnique());
  rendezvous->StartAbort(absl::AbortedError("over"));
  EXPECT_TRUE(t.BufferIsUnique());
}

TEST_P(RendezvousTest, AbortWithOkIsOurBug) {
  const auto rendezvous = Make();
  rendezvous->StartAbort(absl::OkStatus());
  EXPECT_STATUS(rendezvous->Send(Key("a"), Tensor(), false), absl::StatusCode::kInternal,
                "must not be OK");
}

TEST_P(RendezvousTest, DestructionEndsWaiters) {
  auto rendezvous = Make();
  Status ended;
  rendezvous->RecvAsync(Key("a"), [&](const Status& status, Tensor, bool) { ended = status; });
  rendezvous.reset();
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
}

TEST_P(RendezvousTest, RecvGivesUpAfterItsTimeout) {
  const auto rendezvous = Make();
  EXPECT_STATUS(rendezvous->Recv(Key("never"), nullptr, absl::Milliseconds(1)),
                absl::StatusCode::kDeadlineExceeded, "nothing was sent for key");
}

TEST_P(RendezvousTest, EveryReceiverOfManyThreadsIsCalledOnceAlsoWhenAborted) {
  constexpr int kThreads = 4;
  constexpr int kKeys = 200;
  for (const bool abort : {false, true}) {
    const auto rendezvous = Make();
    std::atomic<int> received{0};  // relaxed: read after join
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kKeys; ++i) {
          const RendezvousKey key = Key(absl::StrCat("edge_", i));
          if (t % 2 == 0) {
            rendezvous->Send(key, Tensor::Scalar<int32_t>(i), false).IgnoreError();
          } else {
            rendezvous->RecvAsync(key, [&, i](const Status& status, Tensor value, bool) {
              EXPECT_TRUE(!status.ok() || Value(value) == i);
              (status.ok() ? received : ended).fetch_add(1, std::memory_order_relaxed);
            });
          }
          if (abort && t == 0 && i == kKeys / 2) {
            rendezvous->StartAbort(absl::AbortedError("half way"));
          }
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(received + ended, kThreads / 2 * kKeys);
    EXPECT_TRUE(abort || ended == 0);
  }
}

TEST(NumberedRendezvousTest, ATransferIsTheSameByItsNumberAndByItsKey) {
  auto table = std::make_shared<TransferTable>();
  table->Add(Key("a"), "a");
  table->Add(Key("b"), "b");
  const auto rendezvous = MakeLocalRendezvous(table);
  ASSERT_OK(rendezvous->Send(Transfer(1), Tensor::Scalar<int32_t>(1), false));
  ASSERT_OK(rendezvous->Send(Key("a"), Tensor::Scalar<int32_t>(2), false));
  EXPECT_EQ(Value(*rendezvous->Recv(Key("b"), nullptr)), 1);
  EXPECT_EQ(Value(*rendezvous->Recv(Transfer(0), nullptr)), 2);
}

TEST(NumberedRendezvousTest, WhereThereIsNoSuchNumberTheKeyCounts) {
  const RendezvousKey key = Key("a");
  const auto rendezvous = MakeLocalRendezvous();
  ASSERT_OK(rendezvous->Send(Transfer(7, key.text), Tensor::Scalar<int32_t>(1), false));
  EXPECT_EQ(Value(*rendezvous->Recv(key, nullptr)), 1);
}

}  // namespace
}  // namespace millrace
