// SPDX-License-Identifier: Apache-2.0
//
// What the receiver of a link keeps: the tables of both ends, and links over simulated wires.
#include "distributed/link/kept_tensors.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/buffer.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/link.h"
#include "distributed/link/link_pools.h"
#include "distributed/link/testing/byte_link_ends.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/testing/simulated_wire.h"
#include "distributed/link/wire_tensor.h"
#include "gtest/gtest.h"

// covers: clusters: a tensor that its receiver has kept does not travel again: its number is of one
//   link and used once, both ends bound what is kept, and who names what is not kept loses the link

namespace millrace {
namespace {

using EntryPtr = std::shared_ptr<KeptByPeer::Entry>;

constexpr int64_t kKiB = int64_t{1} << 10;

Tensor FloatsOf(int64_t num_bytes, float value) {
  Tensor tensor = *Tensor::Allocate(DT_FLOAT, Shape{num_bytes / 4});
  for (float& element : tensor.mutable_flat<float>()) element = value;
  return tensor;
}

TEST(KeptByPeerTest, NoNumberIsUsedTwiceAndTheBoundHolds) {
  const auto counts = std::make_shared<KeptCounts>();
  const auto table = std::make_shared<KeptByPeer>(counts);
  const Tensor value = FloatsOf(64 * kKiB, 1);
  EXPECT_EQ(table->Keep(value), nullptr) << "before the link is open";
  table->Open(200 * kKiB);
  EntryPtr first = table->Keep(value);
  EntryPtr second = table->Keep(FloatsOf(64 * kKiB, 2));
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(first->number(), 1u);
  EXPECT_EQ(second->number(), 2u);
  // A part of a buffer keeps all of it.
  EXPECT_EQ(table->Keep(FloatsOf(128 * kKiB, 3).Rows(0, 2048)), nullptr);
  EXPECT_GE(table->bytes(), 128 * kKiB);
  EXPECT_EQ(counts->bytes_at_peers.load(), table->bytes());

  EXPECT_FALSE(first->is_there());
  first->HasCome();
  EXPECT_TRUE(first->is_there());
  second->MayNotCome();
  EXPECT_TRUE(second->is_lost());
  EXPECT_FALSE(second->is_there());

  EXPECT_EQ(table->forgotten_bytes(), 0);
  first = nullptr;
  second = nullptr;
  EXPECT_EQ(table->bytes(), 0);
  EXPECT_EQ(counts->bytes_at_peers.load(), 0);
  EXPECT_GE(table->forgotten_bytes(), 128 * kKiB);
  EXPECT_EQ(table->TakeForgotten(1).size(), 1u);
  EXPECT_GT(table->forgotten_bytes(), 0);
  EXPECT_EQ(table->TakeForgotten(10).size(), 1u);
  EXPECT_EQ(table->forgotten_bytes(), 0);
  EXPECT_TRUE(table->TakeForgotten(10).empty());
  EXPECT_EQ(table->Keep(value)->number(), 3u);
}

TEST(KeptByPeerTest, AnEntryIsTheTensorInItsPlaceOnly) {
  const auto table = std::make_shared<KeptByPeer>(nullptr);
  table->Open(int64_t{1} << 20);
  Tensor value = FloatsOf(64 * kKiB, 1);
  const EntryPtr entry = table->Keep(value);
  ASSERT_NE(entry, nullptr);
  EXPECT_TRUE(entry->is_of(table.get()));
  EXPECT_TRUE(entry->Is(value));
  EXPECT_TRUE(entry->Is(*value.Reshaped(Shape{16384})));
  EXPECT_FALSE(entry->Is(*value.Reshaped(Shape{2, 8192})));
  EXPECT_FALSE(entry->Is(value.Rows(0, 8192)));
  EXPECT_FALSE(entry->Is(value.Rows(1, 16384)));
  EXPECT_FALSE(entry->Is(FloatsOf(64 * kKiB, 1))) << "as large, and equal, and another one";
  EXPECT_FALSE(entry->Is(Tensor()));
  const EntryPtr half = table->Keep(value.Rows(0, 8192));
  ASSERT_NE(half, nullptr);
  EXPECT_TRUE(half->Is(value.Rows(0, 8192)));
  EXPECT_FALSE(half->Is(value.Rows(8192, 16384))) << "the other one";
  // Who writes it writes a copy.
  value.mutable_flat<float>()[0] = 2;
  EXPECT_FALSE(entry->Is(value));

  const Tensor other = FloatsOf(64 * kKiB, 3);
  const EntryPtr of_other = table->Keep(other);
  ASSERT_NE(of_other, nullptr);
  EXPECT_FALSE(other.BufferIsUnique());
  table->Close();
  EXPECT_TRUE(other.BufferIsUnique()) << "a link that is lost lets go";
  EXPECT_FALSE(of_other->Is(other));
  EXPECT_EQ(table->bytes(), 0);
  EXPECT_TRUE(table->is_closed());
  EXPECT_EQ(table->Keep(other), nullptr);
}

TEST(KeptByPeerTest, WhatNoMessageNamesForLongIsForgotten) {
  const auto table = std::make_shared<KeptByPeer>(nullptr);
  table->Open(int64_t{1} << 20);
  const Tensor value = FloatsOf(64 * kKiB, 1);
  const EntryPtr entry = table->Keep(value);
  ASSERT_NE(entry, nullptr);
  // On its way: by a message that has not ended.
  for (int i = 0; i < 2 * KeptByPeer::kMaxIdle; ++i) table->Age();
  EXPECT_TRUE(entry->Is(value));
  EXPECT_FALSE(entry->Use(value)) << "the peer may not have it";
  entry->HasCome();
  entry->EndUse();
  for (int i = 1; i < KeptByPeer::kMaxIdle; ++i) table->Age();
  EXPECT_FALSE(entry->Use(FloatsOf(64 * kKiB, 1))) << "another one";
  ASSERT_TRUE(entry->Use(value));
  for (int i = 0; i < 2 * KeptByPeer::kMaxIdle; ++i) table->Age();
  EXPECT_TRUE(entry->is_there()) << "a message that names it is under way";
  entry->EndUse();
  for (int i = 1; i < KeptByPeer::kMaxIdle; ++i) table->Age();
  EXPECT_TRUE(entry->Is(value));
  table->Age();
  EXPECT_FALSE(entry->Use(value));
  EXPECT_TRUE(entry->is_lost());
  EXPECT_TRUE(value.BufferIsUnique());
  EXPECT_EQ(table->bytes(), 0);
  EXPECT_EQ(table->TakeForgotten(10), std::vector<uint64_t>{1});
  table->Age();
}

// Two links of a task: the bound of all.
TEST(KeptByPeerTest, AllLinksHaveABoundTogether) {
  const auto counts = std::make_shared<KeptCounts>(100 * kKiB);
  const auto one = std::make_shared<KeptByPeer>(counts),
             other = std::make_shared<KeptByPeer>(counts);
  one->Open(100 * kKiB);
  other->Open(100 * kKiB);
  EntryPtr first = one->Keep(FloatsOf(60 * kKiB, 1));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(other->Keep(FloatsOf(60 * kKiB, 2)), nullptr);
  EXPECT_EQ(other->bytes(), 0);
  first = nullptr;
  const EntryPtr second = other->Keep(FloatsOf(60 * kKiB, 2));
  ASSERT_NE(second, nullptr);
  other->Close();
  EXPECT_EQ(counts->bytes_at_peers.load(), 0);

  // What they tell their peers that these may have kept here.
  {
    const KeptForPeer a(100 * kKiB, counts), b(100 * kKiB, counts), small(kKiB, counts);
    EXPECT_EQ(a.max_bytes(), 25 * kKiB);
    EXPECT_EQ(b.max_bytes(), 75 * kKiB / 4);
    EXPECT_EQ(small.max_bytes(), kKiB);
    EXPECT_EQ(counts->offered_bytes.load(), 25 * kKiB + 75 * kKiB / 4 + kKiB);
  }
  EXPECT_EQ(counts->offered_bytes.load(), 0);
}

TEST(KeptByPeerTest, WhatIsNoMemoryOfThisProcessAloneIsNotKept) {
  EXPECT_TRUE(KeptByPeer::MayKeep(FloatsOf(kMinKeptBytes, 1)));
  EXPECT_FALSE(KeptByPeer::MayKeep(FloatsOf(kMinKeptBytes - 4, 1)));
  EXPECT_FALSE(KeptByPeer::MayKeep(Tensor()));
  EXPECT_FALSE(KeptByPeer::MayKeep(*Tensor::Zeros(DT_FLOAT, Shape{0, 1 << 20})));
  EXPECT_FALSE(KeptByPeer::MayKeep(Tensor::Scalar(std::string(100'000, 'x'))));
  std::vector<float> memory(4096);
  const size_t size = memory.size() * sizeof(float);
  const Shape shape{4096};
  EXPECT_FALSE(KeptByPeer::MayKeep(
      *Tensor::FromBuffer(DT_FLOAT, shape, Buffer::External(memory.data(), size, [] {}), 0)));
  EXPECT_FALSE(KeptByPeer::MayKeep(
      *Tensor::FromBuffer(DT_FLOAT, shape, Buffer::ReadOnly(memory.data(), size, [] {}), 0)));
}

TEST(KeptForPeerTest, WhatIsKeptIsBoundedAndKnownByItsNumber) {
  const auto counts = std::make_shared<KeptCounts>();
  KeptForPeer kept(20 * kKiB, counts);
  const Tensor first = FloatsOf(8 * kKiB, 1), second = FloatsOf(12 * kKiB, 2);
  ASSERT_OK(kept.Keep(7, first));
  ASSERT_OK(kept.Keep(3, second));
  EXPECT_EQ(counts->bytes_for_peers.load(), 20 * kKiB);
  ASSERT_OK_AND_ASSIGN(const Tensor found, kept.Find(7));
  EXPECT_TRUE(found.SharesBufferWith(first));
  EXPECT_STATUS(kept.Keep(8, FloatsOf(4 * kKiB, 3)), absl::StatusCode::kInvalidArgument,
                "Link: the bytes of tensors to be kept must be at most 20480 (max_kept_bytes), got "
                "4096 beyond 20480");
  EXPECT_STATUS(kept.Keep(8, FloatsOf(4 * kKiB - 4, 3)), absl::StatusCode::kInvalidArgument,
                "must have at least 4096 bytes, got 4092");
  kept.Forget(3);
  kept.Forget(3);
  kept.Forget(99);
  EXPECT_EQ(counts->bytes_for_peers.load(), 8 * kKiB);
  EXPECT_STATUS(kept.Keep(7, second), absl::StatusCode::kInvalidArgument,
                "must be a new one, got 7 again");
  EXPECT_STATUS(kept.Find(3), absl::StatusCode::kInvalidArgument,
                "Link: a kept tensor must be one that was sent to be kept, got number 3");
  kept.Clear();
  EXPECT_EQ(kept.bytes(), 0);
  EXPECT_EQ(counts->bytes_for_peers.load(), 0);
}

// --- Over links ----------------------------------------------------------------------------------

// Two ends that keep; with pools, which pass by what is kept.
class Keepers {
 public:
  explicit Keepers(int64_t bytes_of_worker, int64_t bytes_of_ps, uint64_t seed = 1)
      : pair(seed, {.passes_descriptors = true}) {
    const int64_t bytes[] = {bytes_of_worker, bytes_of_ps};
    for (int end = 0; end < 2; ++end) {
      pair.options[end].max_kept_bytes = bytes[end];
      pair.options[end].kept_counts = counts[end] = std::make_shared<KeptCounts>();
      pair.options[end].max_pool_bytes = int64_t{64} << 20;
      pair.options[end].pools = pools[end] = std::make_shared<LinkPools>(int64_t{128} << 20);
    }
  }
  // From end 0 in step `step_id`, tensor 0.
  void Send(int64_t step_id, const Tensor& value, const EntryPtr& entry, bool is_kept) {
    SentTensors message;
    message.step_id = step_id;
    SentTensor& tensor = message.tensors.emplace_back();
    tensor.value = value;
    if (entry != nullptr) tensor.keep_number = entry->number();
    tensor.is_kept = is_kept;
    ASSERT_OK(pair.links[0]->Send(std::move(message)));
  }
  void Run() { ASSERT_TRUE(pair.time.Run()); }
  KeptByPeer* table() { return pair.links[0]->kept_by_peer().get(); }

  std::shared_ptr<KeptCounts> counts[2];
  std::shared_ptr<LinkPools> pools[2];
  ByteLinkEnds pair;
};

TEST(KeptTensorsTest, WhatIsKeptComesAgainWithoutItsBytes) {
  Tensor ids = *Tensor::Zeros(DT_INT64, Shape{1000});
  ids.mutable_flat<int64_t>()[7] = -5;
  for (const Tensor& value : {FloatsOf(4 * kKiB, 1.5f), FloatsOf(300 * kKiB, 2.5f), ids}) {
    SCOPED_TRACE(value.TotalBytes());
    Keepers link(1 << 20, 1 << 20);
    link.pair.OpenBoth();
    ASSERT_NE(link.table(), nullptr);
    EntryPtr entry = link.table()->Keep(value);
    ASSERT_NE(entry, nullptr);
    link.Send(1, value, entry, /*is_kept=*/false);
    link.Run();
    EXPECT_EQ(link.counts[1]->bytes_for_peers.load(), value.TotalBytes());
    // What is kept would hold its block.
    EXPECT_EQ(link.pools[0]->sent_tensors.load(), 0);
    entry->HasCome();
    const uint64_t before = link.pair.way->written_bytes(0);
    for (int64_t step = 2; step < 5; ++step) link.Send(step, value, entry, /*is_kept=*/true);
    link.Run();
    EXPECT_LT(link.pair.way->written_bytes(0) - before, 400u);
    const std::vector<SentTensor> came = link.pair.ends[1]->tensors();
    ASSERT_EQ(came.size(), 4u);
    for (size_t i = 0; i < came.size(); ++i) {
      ExpectTensorEqual(came[i].value, value);
      EXPECT_EQ(came[i].is_kept, i > 0);
      EXPECT_TRUE(came[i].value.SharesBufferWith(came[0].value));
      EXPECT_FALSE(came[i].value.buffer()->is_read_only());
    }
    // FORGET rides; without a message two Ticks bring it.
    entry = nullptr;
    EXPECT_EQ(link.counts[1]->bytes_for_peers.load(), value.TotalBytes());
    link.pair.Pass(0, 2);
    EXPECT_EQ(link.counts[1]->bytes_for_peers.load(), 0);
    EXPECT_EQ(link.counts[0]->bytes_at_peers.load(), 0);
    EXPECT_EQ(link.pair.ends[0]->num_losses(), 0);
  }
}

TEST(KeptTensorsTest, ForgettingRidesOnTheNextMessage) {
  Keepers link(64 * kKiB, 1 << 20);
  link.pair.OpenBoth();
  // The bound holds one of them: the second is kept as the first is forgotten.
  EntryPtr entry = link.table()->Keep(FloatsOf(40 * kKiB, 1));
  ASSERT_NE(entry, nullptr);
  link.Send(1, FloatsOf(40 * kKiB, 1), entry, false);
  link.Run();
  entry = nullptr;
  const int64_t writes = link.pair.way->num_writes(0);
  const Tensor second = FloatsOf(40 * kKiB, 2);
  entry = link.table()->Keep(second);
  ASSERT_NE(entry, nullptr);
  link.Send(2, second, entry, false);
  EXPECT_EQ(link.pair.way->num_writes(0), writes + 1);
  link.Run();
  EXPECT_EQ(link.counts[1]->bytes_for_peers.load(), 40 * kKiB);
  EXPECT_EQ(link.pair.ends[1]->num_losses(), 0);
}

TEST(KeptTensorsTest, TheSmallerBoundHoldsAndNoBoundKeepsNothing) {
  const struct {
    int64_t worker, ps;
  } cases[] = {{0, 1 << 20}, {1 << 20, 0}, {0, 0}};
  for (const auto& c : cases) {
    Keepers link(c.worker, c.ps);
    link.pair.OpenBoth();
    EXPECT_EQ(link.pair.links[0]->kept_by_peer(), nullptr);
    EXPECT_EQ(link.pair.links[1]->kept_by_peer(), nullptr);
  }
  Keepers link(8 * kKiB, 1 << 20);
  link.pair.OpenBoth();
  for (const std::shared_ptr<ByteLink>& end : link.pair.links) {
    ASSERT_NE(end->kept_by_peer(), nullptr);
    EXPECT_EQ(end->kept_by_peer()->Keep(FloatsOf(12 * kKiB, 1)), nullptr);
    EXPECT_NE(end->kept_by_peer()->Keep(FloatsOf(4 * kKiB, 1)), nullptr);
  }
}

TEST(KeptTensorsTest, ALinkThatIsLostLetsGoOfAll) {
  const Tensor value = FloatsOf(40 * kKiB, 1);
  Keepers link(1 << 20, 1 << 20);
  link.pair.OpenBoth();
  const EntryPtr entry = link.table()->Keep(value);
  ASSERT_NE(entry, nullptr);
  link.Send(1, value, entry, false);
  link.Run();
  entry->HasCome();
  link.pair.links[1]->Close(absl::UnavailableError("the task stops"));
  link.Run();
  EXPECT_EQ(link.pair.ends[0]->num_losses(), 1);
  for (const auto& counts : link.counts) {
    EXPECT_EQ(counts->bytes_at_peers.load(), 0);
    EXPECT_EQ(counts->bytes_for_peers.load(), 0);
  }
  EXPECT_FALSE(entry->Is(value));
  EXPECT_TRUE(value.BufferIsUnique());
}

// Messages of any tensors, whole, to be kept and kept, in a random order of arrival: what comes is
// what was sent, and nothing is left in the end. Each seed has a window that is small, so that
// large tensors are overtaken.
TEST(KeptTensorsTest, RandomSendersAreNeverMisunderstood) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    Keepers link(2 << 20, 2 << 20, seed);
    link.pair.options[0].window_bytes = link.pair.options[1].window_bytes = kMinWindowBytes;
    link.pair.ends[1]->writes_down = false;
    struct Edge {
      Tensor value;
      EntryPtr entry;
    };
    std::vector<Edge> edges(6);
    struct Step {
      size_t num_tensors = 0;
      std::vector<EntryPtr> brings, names;
    };
    std::map<int64_t, Step> steps;
    std::map<std::pair<int64_t, uint32_t>, Tensor> want;
    float next_value = 0;
    int64_t num_kept = 0;
    size_t came = 0;
    link.pair.ends[1]->on_tensors = [&](const SentTensors& tensors) {
      for (const SentTensor& tensor : tensors.tensors) {
        ++came;
        const auto sent = want.find({tensors.step_id, tensor.index});
        ASSERT_NE(sent, want.end());
        ExpectTensorEqual(tensor.value, sent->second);
      }
    };
    link.pair.OpenBoth();
    const auto take_receipts = [&] {
      for (auto it = steps.begin(); it != steps.end();) {
        if (link.pair.ends[0]->received(it->first) < it->second.num_tensors) {
          ++it;
          continue;
        }
        for (const EntryPtr& entry : it->second.brings) entry->HasCome();
        it = steps.erase(it);
      }
    };
    for (int64_t id = 1; id <= 150; ++id) {
      take_receipts();
      Step& step = steps[id];
      SentTensors message;
      message.step_id = id;
      for (size_t i = 0; i < edges.size(); ++i) {
        if (random() % 3 == 0) continue;
        Edge& edge = edges[i];
        if (!edge.value.has_value() || random() % 4 == 0) {
          edge.value = FloatsOf(random() % 4 == 0 ? 300 * kKiB : 5 * kKiB, ++next_value);
        }
        SentTensor& tensor = message.tensors.emplace_back();
        tensor.index = static_cast<uint32_t>(i);
        tensor.value = edge.value;
        want[{id, tensor.index}] = edge.value;
        if (edge.entry != nullptr && edge.entry->Is(edge.value)) {
          if (!edge.entry->is_there()) continue;
          tensor.is_kept = true;
          ++num_kept;
        } else {
          edge.entry = link.table()->Keep(edge.value);
          if (edge.entry == nullptr) continue;
          step.brings.push_back(edge.entry);
        }
        tensor.keep_number = edge.entry->number();
        step.names.push_back(edge.entry);
      }
      step.num_tensors = message.tensors.size();
      if (message.tensors.empty()) continue;
      ASSERT_OK(link.pair.links[0]->Send(std::move(message)));
      const uint64_t pause = random() % 4;
      if (pause == 0) link.pair.links[1]->Flush();
      if (pause > 1) link.pair.time.RunFor(absl::Milliseconds(random() % 20));
    }
    link.Run();
    link.pair.links[1]->Flush();
    link.Run();
    take_receipts();
    EXPECT_TRUE(steps.empty());
    EXPECT_GT(num_kept, 0);
    EXPECT_EQ(link.pair.ends[0]->num_losses() + link.pair.ends[1]->num_losses(), 0);
    EXPECT_EQ(came, want.size());
    edges.clear();
    link.pair.Pass(0, 2);
    EXPECT_EQ(link.counts[1]->bytes_for_peers.load(), 0);
    EXPECT_EQ(link.counts[0]->bytes_at_peers.load(), 0);
  }
}

// --- What breaks the rules -----------------------------------------------------------------------

// A peer of one link that says what it likes; the link keeps 64 KiB for it.
class LiarThatKeeps {
 public:
  LiarThatKeeps() : link(64 * kKiB, 0), wire(link.pair.way->TakeWire(1)) {
    link.pair.Open(0);
    wire->Start(user);
    HelloFrame hello;
    hello.task = "/job:ps/replica:0/task:0";
    hello.incarnation = 42;
    hello.window_bytes = kDefaultWindowBytes;
    Say(FrameBytes(hello));
  }
  ~LiarThatKeeps() {
    wire->Close();
    link.Run();
  }
  void Say(const std::string& bytes) {
    ByteChain chain;
    chain.Append(bytes);
    wire->Write(std::move(chain));
    link.Run();
  }
  void SayKeep(uint64_t number, int64_t num_bytes) {
    TensorsFrame frame;
    frame.step_id = 7;
    TensorEntry& entry = frame.tensors.emplace_back();
    const StatusOr<WireTensor> value = WireTensor::Of(FloatsOf(num_bytes, 1));
    ASSERT_OK(value);
    entry.value = *value;
    entry.keep_number = number;
    Say(FrameBytes(frame));
  }
  // `credit_bytes`: beyond those of the frame.
  void SayKept(uint64_t number, int64_t credit_bytes, uint32_t times = 1) {
    TensorsFrame frame;
    frame.step_id = 7;
    for (uint32_t i = 0; i < times; ++i) {
      TensorEntry& entry = frame.tensors.emplace_back();
      entry.index = i;
      entry.keep_number = number;
      entry.is_kept = true;
    }
    frame.credit_bytes = static_cast<int64_t>(FrameBytes(frame).size()) + credit_bytes;
    Say(FrameBytes(frame));
  }

  Keepers link;
  const std::unique_ptr<ByteWire> wire;
  const std::shared_ptr<RawPeer> user = std::make_shared<RawPeer>();
};

TEST(KeptTensorsTest, WhoBreaksTheRulesLosesTheLinkAndHearsWhy) {
  const struct {
    const char* what;
    std::function<void(LiarThatKeeps*)> lie;
    const char* why;
  } cases[] = {
      {"what was never kept", [](LiarThatKeeps* liar) { liar->SayKept(9, 0); },
       "a kept tensor must be one that was sent to be kept, got number 9"},
      {"what was forgotten",
       [](LiarThatKeeps* liar) {
         liar->Say(FrameBytes(ForgetFrame{{1, 77}}));
         liar->SayKept(1, 0);
       },
       "a kept tensor must be one that was sent to be kept, got number 1"},
      {"a number twice", [](LiarThatKeeps* liar) { liar->SayKeep(1, 8 * kKiB); },
       "must be a new one, got 1 again"},
      {"a small tensor", [](LiarThatKeeps* liar) { liar->SayKeep(2, kMinKeptBytes - 4); },
       "must have at least 4096 bytes, got 4092"},
      {"more than the bound",
       [](LiarThatKeeps* liar) {
         liar->SayKeep(2, 40 * kKiB);
         EXPECT_EQ(liar->link.pair.ends[0]->num_losses(), 0);
         liar->SayKeep(3, 24 * kKiB);
       },
       "must be at most 65536 (max_kept_bytes), got 24576 beyond 49152"},
      {"a number twice in a message", [](LiarThatKeeps* liar) { liar->SayKept(1, 0, 2); },
       "must name a kept tensor once, got number 1 twice"},
      {"too much credit", [](LiarThatKeeps* liar) { liar->SayKept(1, 8 * kKiB + 1); },
       "of the window, got"},
      {"too little credit", [](LiarThatKeeps* liar) { liar->SayKept(1, -1); },
       "of the window, got"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    LiarThatKeeps liar;
    liar.SayKeep(1, 8 * kKiB);
    liar.SayKept(1, 8 * kKiB);
    liar.SayKept(1, 0);
    ASSERT_EQ(liar.link.pair.ends[0]->tensors().size(), 3u);
    ASSERT_EQ(liar.link.pair.ends[0]->num_losses(), 0);
    c.lie(&liar);
    EXPECT_EQ(liar.link.pair.ends[0]->num_losses(), 1);
    EXPECT_TRUE(absl::StrContains(liar.link.pair.ends[0]->lost().message(), c.why))
        << liar.link.pair.ends[0]->lost();
    EXPECT_TRUE(absl::StrContains(liar.user->received, c.why)) << "BYE says it to the peer";
    EXPECT_EQ(liar.link.counts[0]->bytes_for_peers.load(), 0);
  }
}

}  // namespace
}  // namespace millrace
