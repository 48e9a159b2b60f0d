// SPDX-License-Identifier: Apache-2.0
//
// Tensors of links that lie in memory which both ends share (core/shared_pool.h), over simulated
// wires that pass descriptors.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/buffer.h"
#include "core/owned_fd.h"
#include "core/shared_pool.h"
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
#include "distributed/link/outgoing_tensors.h"
#include "distributed/link/testing/byte_link_ends.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/testing/simulated_wire.h"
#include "distributed/link/wire_tensor.h"
#include "gtest/gtest.h"

// covers: clusters: large tensors of two tasks of a host lie in shared memory: floats are handed
//   over, all else is copied before it is looked at, and what breaks the rules breaks the link

namespace millrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

SimulatedWay::Options WithDescriptors(bool passes = true) {
  SimulatedWay::Options options;
  options.passes_descriptors = passes;
  return options;
}

// Two ends with pools, each with a budget of twice as much (one link has half at most). What comes
// is kept until the test lets go.
class Host {
 public:
  explicit Host(int64_t pool_bytes, uint64_t seed = 1,
                SimulatedWay::Options way_options = WithDescriptors())
      : pair(seed, way_options) {
    for (int end = 0; end < 2; ++end) {
      pair.options[end].max_pool_bytes = pool_bytes;
      pair.options[end].pools = pools[end] = std::make_shared<LinkPools>(2 * pool_bytes);
      pair.ends[end]->on_tensors = [this, end](const SentTensors& tensors) {
        for (const SentTensor& tensor : tensors.tensors) kept[end].push_back(tensor);
      };
      pair.ends[end]->writes_down = false;
    }
  }

  void OpenBoth() { pair.OpenBoth(); }
  void Run() { EXPECT_TRUE(pair.time.Run()); }
  // From end 0; all of it arrives.
  void Send(SentTensors message) {
    ASSERT_OK(pair.links[0]->Send(std::move(message)));
    Run();
  }
  // End 1 lets go of what it has, and says so.
  void LetGo() {
    kept[1].clear();
    pair.links[1]->Flush();
    Run();
  }
  int64_t num_pooled() const { return pools[0]->sent_tensors.load(); }
  int64_t num_refused() const { return pools[0]->refused_tensors.load(); }

  std::shared_ptr<LinkPools> pools[2];
  std::vector<SentTensor> kept[2];
  ByteLinkEnds pair;
};

Tensor Floats(int64_t num_bytes, float value) {
  Tensor tensor = *Tensor::Allocate(DT_FLOAT, Shape{num_bytes / 4});
  for (float& element : tensor.mutable_flat<float>()) element = value;
  return tensor;
}

// Too large for int32, so they travel as they are.
Tensor WideIds(int64_t num_bytes) {
  Tensor tensor = *Tensor::Allocate(DT_INT64, Shape{num_bytes / 8});
  int64_t next = int64_t{1} << 40;
  for (int64_t& element : tensor.mutable_flat<int64_t>()) element = next++;
  return tensor;
}

SentTensors Of(std::vector<Tensor> values, int64_t step_id = 7) {
  SentTensors message;
  message.step_id = step_id;
  for (Tensor& value : values) {
    SentTensor& tensor = message.tensors.emplace_back();
    tensor.index = static_cast<uint32_t>(message.tensors.size() - 1);
    tensor.value = std::move(value);
  }
  return message;
}

bool IsShared(const Tensor& tensor) { return tensor.buffer() && tensor.buffer()->is_read_only(); }

TEST(PooledTensorsTest, FloatsAreHandedOverAndAllElseIsCopied) {
  Host host(64 * kMiB);
  host.OpenBoth();
  Tensor bools = *Tensor::Zeros(DT_BOOL, Shape{kMiB});
  bools.mutable_flat<bool>()[5] = true;
  Tensor narrow = *Tensor::Zeros(DT_INT64, Shape{kMiB / 8});
  narrow.mutable_flat<int64_t>()[3] = -3;
  const std::vector<Tensor> sent = {
      Floats(kMiB, 3),
      *Tensor::Zeros(DT_HALF, Shape{kMiB / 2}),
      *Tensor::Zeros(DT_DOUBLE, Shape{kMiB / 8}),
      WideIds(kMiB),
      narrow,
      bools,
      *Tensor::Zeros(DT_COMPLEX64, Shape{kMiB / 8}),
      Tensor::Scalar(std::string(100'000, 'x')),
      Floats(OutgoingTensors::kMinPooledBytes, 4),
      Floats(OutgoingTensors::kMinPooledBytes - 4, 5),
  };
  const size_t num_floats = 3;
  const uint64_t before = host.pair.way->written_bytes(0);
  host.Send(Of(sent));
  // All but the last one lie in the pool.
  EXPECT_EQ(host.num_pooled(), static_cast<int64_t>(sent.size()) - 1);
  // What went through the wire is that one, and heads.
  EXPECT_LT(host.pair.way->written_bytes(0) - before,
            static_cast<uint64_t>(OutgoingTensors::kMinPooledBytes) + 10'000);
  ASSERT_EQ(host.kept[1].size(), sent.size());
  for (const SentTensor& got : host.kept[1]) {
    SCOPED_TRACE(got.index);
    ASSERT_LT(got.index, sent.size());
    ExpectTensorEqual(got.value, sent[got.index]);
    EXPECT_EQ(IsShared(got.value), got.index < num_floats || got.index == sent.size() - 2);
  }
}

// What a reader may have first leaves first, and larger tensors in frames of their own.
TEST(PooledTensorsTest, SmallTensorsDoNotWaitForCopies) {
  Host host(64 * kMiB);
  std::vector<std::vector<uint32_t>> came;  // by message
  host.pair.ends[1]->on_tensors = [&](const SentTensors& tensors) {
    std::vector<uint32_t>& indices = came.emplace_back();
    for (const SentTensor& tensor : tensors.tensors) indices.push_back(tensor.index);
  };
  host.OpenBoth();
  host.Send(
      Of({Floats(9 * kMiB, 1), Floats(100, 2), Floats(9 * kMiB, 3), Floats(kMiB, 4), WideIds(80)}));
  EXPECT_EQ(came, (std::vector<std::vector<uint32_t>>{{1, 4}, {0}, {2, 3}}));
  EXPECT_EQ(host.num_pooled(), 3);
}

// The receiver would copy them, and there they come straight into their memory.
TEST(PooledTensorsTest, LargeTensorsThatAreNoFloatsGoThroughTheWire) {
  Host host(64 * kMiB);
  host.OpenBoth();
  const std::vector<Tensor> sent = {WideIds(kMiB + 8), *Tensor::Zeros(DT_COMPLEX64, Shape{kMiB}),
                                    WideIds(kMiB), Floats(kMiB + 8, 1)};
  host.Send(Of(sent));
  EXPECT_EQ(host.num_pooled(), 2);
  ASSERT_EQ(host.kept[1].size(), sent.size());
  for (const SentTensor& got : host.kept[1]) {
    SCOPED_TRACE(got.index);
    ExpectTensorEqual(got.value, sent[got.index]);
    EXPECT_EQ(IsShared(got.value), got.index == 3);
  }
}

// covers: clusters: a pool that is full sends no tensor away: it goes through the socket
TEST(PooledTensorsTest, WhileThePoolIsFullTensorsGoThroughTheWire) {
  Host host(kMiB);
  host.OpenBoth();
  for (int i = 0; i < 3; ++i) host.Send(Of({Floats(kMiB / 2, static_cast<float>(i))}));
  EXPECT_EQ(host.num_pooled(), 2);
  EXPECT_EQ(host.num_refused(), 1);
  EXPECT_EQ(host.pools[0]->block_bytes->load(), kMiB);
  ASSERT_EQ(host.kept[1].size(), 3u);
  EXPECT_GT(host.pair.way->written_bytes(0), static_cast<uint64_t>(kMiB / 2));
  EXPECT_FALSE(IsShared(host.kept[1][2].value));
  for (int i = 0; i < 3; ++i) {
    ExpectTensorEqual(host.kept[1][static_cast<size_t>(i)].value,
                      Floats(kMiB / 2, static_cast<float>(i)));
  }
  // Also one that is larger than the bound.
  host.Send(Of({Floats(2 * kMiB, 9)}));
  EXPECT_EQ(host.num_pooled(), 2);
  EXPECT_EQ(host.num_refused(), 2);
  host.LetGo();
  EXPECT_EQ(host.pools[0]->block_bytes->load(), 0);
  host.Send(Of({Floats(kMiB, 10)}));
  EXPECT_EQ(host.num_pooled(), 3);
  ExpectTensorEqual(host.kept[1].back().value, Floats(kMiB, 10));
}

// As a queue of batches does: those that it has keep their blocks, however long.
// covers: clusters: a receiver that keeps what came in shared memory stops nobody: what finds no
//   room there goes through the socket, is counted, and goes in shared memory again with the room
TEST(PooledTensorsTest, AReceiverThatKeepsTensorsStopsNobody) {
  Host host(4 * kMiB);
  host.pair.options[0].window_bytes = host.pair.options[1].window_bytes = kMinWindowBytes;
  host.OpenBoth();
  constexpr int kBatches = 40;
  for (int i = 0; i < kBatches; ++i) {
    host.Send(Of({Floats(kMiB, static_cast<float>(i)), Floats(100, -1)}));
    // Each arrives before the next one is sent, and time passes as it does for others.
    ASSERT_EQ(host.kept[1].size(), 2u * static_cast<size_t>(i + 1));
    EXPECT_EQ(host.pair.links[0]->queued_bytes(), 0);
    host.pair.time.clock()->Advance(absl::Seconds(1));
    for (const std::shared_ptr<ByteLink>& link : host.pair.links) link->Tick();
    host.Run();
  }
  EXPECT_EQ(host.num_pooled(), 4);  // all that there is room for
  EXPECT_EQ(host.num_refused(), kBatches - 4);
  for (const SentTensor& tensor : host.kept[1]) {
    if (tensor.index == 1) continue;
    EXPECT_EQ(tensor.value.num_elements(), kMiB / 4);
  }
  // One batch of those in the pool goes, and the next one has its room. It came first.
  host.kept[1].erase(host.kept[1].begin(), host.kept[1].begin() + 2);
  host.pair.links[1]->Flush();
  host.Run();
  host.Send(Of({Floats(kMiB, 7)}));
  EXPECT_EQ(host.num_pooled(), 5);
  EXPECT_EQ(host.num_refused(), kBatches - 4);
  EXPECT_EQ(host.pair.ends[0]->num_losses(), 0) << host.pair.ends[0]->lost();
}

// covers: clusters: gradients larger than a segment of shared memory take the same memory in each
//   step
TEST(PooledTensorsTest, ATensorLargerThanASegmentHasTheSameMemoryInEachStep) {
  const int64_t size = SharedPool::kSegmentBytes + 4096;
  Host host(4 * SharedPool::kSegmentBytes);
  host.OpenBoth();
  const Tensor sent = Floats(size, 1);
  const uint64_t before = host.pair.way->written_bytes(0);
  const void* place = nullptr;
  for (int step = 0; step < 4; ++step) {
    host.Send(Of({sent}, step));
    ASSERT_EQ(host.kept[1].size(), 1u);
    const void* const data = host.kept[1][0].value.buffer()->data();
    if (step == 0) place = data;
    EXPECT_EQ(data, place);
    host.LetGo();
  }
  EXPECT_EQ(host.num_pooled(), 4);
  // Heads alone.
  EXPECT_LT(host.pair.way->written_bytes(0) - before, 10'000u);
}

TEST(PooledTensorsTest, ABlockComesBackWithAMessageOrWithTime) {
  Host host(kMiB);
  host.OpenBoth();
  host.Send(Of({Floats(kMiB, 1)}));
  host.kept[1].clear();
  const int64_t writes = host.pair.way->num_writes(1);
  host.Run();
  EXPECT_EQ(host.pair.way->num_writes(1), writes) << "letting go sends nothing";
  // With the next message.
  RunFrame run;
  ASSERT_OK(host.pair.links[1]->Send(run));
  host.Run();
  host.Send(Of({Floats(kMiB, 2)}));
  EXPECT_EQ(host.num_pooled(), 2);
  // With two Ticks.
  host.kept[1].clear();
  for (int i = 0; i < 2; ++i) {
    host.pair.time.clock()->Advance(absl::Seconds(1));
    host.pair.links[1]->Tick();
  }
  host.Run();
  host.Send(Of({Floats(kMiB, 3)}));
  EXPECT_EQ(host.num_pooled(), 3);
  // What was copied out comes back without the tensor.
  host.LetGo();
  host.Send(Of({WideIds(kMiB)}));
  host.pair.links[1]->Flush();
  host.Run();
  ASSERT_EQ(host.kept[1].size(), 1u);
  host.Send(Of({WideIds(kMiB)}));
  EXPECT_EQ(host.num_pooled(), 5);
}

// covers: clusters: a pool that is not used gives its memory back, and is there again when it is
TEST(PooledTensorsTest, MemoryThatIsNotUsedGoesWithTime) {
  Host host(kMiB);
  host.OpenBoth();
  for (int round = 1; round <= 2; ++round) {
    host.Send(Of({Floats(kMiB, 1)}));
    EXPECT_EQ(host.num_pooled(), round);
    EXPECT_EQ(host.pools[0]->budget->left(), kMiB);
    host.LetGo();
    EXPECT_EQ(host.pools[0]->budget->left(), kMiB);
    for (int ticks = 0; ticks < 4; ++ticks) {
      host.pair.time.clock()->Advance(absl::Seconds(5));
      host.pair.links[0]->Tick();
      host.Run();
    }
    EXPECT_EQ(host.pools[0]->budget->left(), 2 * kMiB);
  }
  // The peer has heard of it: it maps no more than 1 MiB.
  EXPECT_EQ(host.pair.ends[1]->num_losses(), 0) << host.pair.ends[1]->lost();
}

TEST(PooledTensorsTest, WhatIsCancelledGivesItsBlocksBack) {
  Host host(kMiB);
  host.OpenBoth();
  host.pair.way->StopReading(1);
  // The way is busy, so that what follows waits.
  ASSERT_OK(host.pair.links[0]->Send(Of({Floats(OutgoingTensors::kMinPooledBytes - 4, 0)}, 1)));
  ASSERT_OK(host.pair.links[0]->Send(Of({Floats(OutgoingTensors::kMinPooledBytes - 4, 0)}, 2)));
  ASSERT_OK(host.pair.links[0]->Send(Of({Floats(OutgoingTensors::kMinPooledBytes - 4, 0)}, 3)));
  host.Run();
  ASSERT_OK(host.pair.links[0]->Send(Of({Floats(kMiB, 1)}, 8)));
  EXPECT_EQ(host.num_pooled(), 1);
  ASSERT_OK(host.pair.links[0]->Send(Of({Floats(kMiB, 1)}, 9)));
  EXPECT_EQ(host.num_pooled(), 1);
  ASSERT_OK(host.pair.links[0]->Send(CancelFrame{8, absl::CancelledError("stop")}));
  ASSERT_OK(host.pair.links[0]->Send(Of({Floats(kMiB, 1)}, 10)));
  EXPECT_EQ(host.num_pooled(), 2);
  host.pair.way->GoOnReading(1);
  host.Run();
  EXPECT_EQ(host.kept[1].size(), 5u);
}

// Each frame counts as three quarters of the window, or as what is left of it.
TEST(PooledTensorsTest, TensorsAboveTheWindowArrive) {
  Host host(64 * kMiB);
  host.pair.options[0].window_bytes = host.pair.options[1].window_bytes = kMinWindowBytes;
  int64_t received = 0;
  host.pair.ends[1]->on_tensors = [&](const SentTensors& tensors) {
    received += static_cast<int64_t>(tensors.tensors.size());
  };
  host.OpenBoth();
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(host.pair.links[0]->Send(Of({Floats(8 * kMiB, 1), Floats(kMiB, 2), Floats(100, 3)})));
  }
  host.Run();
  EXPECT_EQ(received, 30);
  EXPECT_EQ(host.pair.links[0]->queued_bytes(), 0);
}

// As when tensors wait here for a step that has not begun: a frame that would take three quarters
// of the window takes what is left.
TEST(PooledTensorsTest, TensorsArriveWhileMostOfTheWindowIsHeldBack) {
  Host host(64 * kMiB);
  host.OpenBoth();
  const int64_t held = kDefaultWindowBytes - 2 * kMaxFrameBytes;
  host.pair.links[1]->HoldCredit(held);
  int64_t received = 0;
  host.pair.ends[1]->on_tensors = [&](const SentTensors& tensors) {
    received += static_cast<int64_t>(tensors.tensors.size());
  };
  // More than the window in all, with what is held: the receiver returns what it need not hold.
  for (int i = 0; i < 12; ++i) {
    host.Send(Of({Floats(8 * kMiB, 1)}));
    EXPECT_EQ(received, i + 1);
    EXPECT_EQ(host.pair.links[0]->queued_bytes(), 0);
    host.pair.links[1]->Flush();
    host.Run();
  }
  EXPECT_EQ(host.num_pooled(), 12);
}

TEST(PooledTensorsTest, AllArrivesHoweverTheNetworkCuts) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SimulatedWay::Options way = WithDescriptors();
    way.max_piece_bytes = 1 + seed * 997;
    way.buffer_bytes = seed * 1000;
    Host host(4 * kMiB, seed, way);
    host.pair.options[0].window_bytes = host.pair.options[1].window_bytes = kMinWindowBytes;
    std::vector<float> values[2];  // sent, by index
    size_t num_received[2] = {};
    for (int end = 0; end < 2; ++end) {
      host.pair.ends[end]->on_tensors = [&, end](const SentTensors& tensors) {
        for (const SentTensor& tensor : tensors.tensors) {
          const absl::Span<const float> got = tensor.value.flat<float>();
          const float want = values[1 - end][tensor.index];
          EXPECT_TRUE(std::all_of(got.begin(), got.end(), [&](float f) { return f == want; }));
          ++num_received[end];
          host.kept[end].push_back(tensor);
        }
        // Some are kept for long, most are not.
        if (host.pair.time.Draw(3) > 0) host.kept[end].clear();
      };
    }
    host.OpenBoth();
    for (int i = 0; i < 60; ++i) {
      const int from = static_cast<int>(host.pair.time.Draw(2));
      const auto num_bytes =
          static_cast<int64_t>(host.pair.time.Draw(1'500'000) >> host.pair.time.Draw(6));
      values[from].push_back(static_cast<float>(i));
      SentTensors message = Of({Floats(num_bytes, static_cast<float>(i))});
      message.tensors[0].index = static_cast<uint32_t>(values[from].size() - 1);
      ASSERT_OK(host.pair.links[from]->Send(std::move(message)));
      if (host.pair.time.Draw(3) == 0) {
        ASSERT_TRUE(host.pair.time.RunFor(absl::Milliseconds(2)));
      }
    }
    host.Run();
    for (int end = 0; end < 2; ++end) {
      EXPECT_EQ(num_received[end], values[1 - end].size());
      EXPECT_EQ(host.pair.ends[end]->num_losses(), 0) << host.pair.ends[end]->lost();
    }
    // The first large one of each direction at least; two thirds of them are large.
    EXPECT_GE(host.num_pooled() + host.pools[1]->sent_tensors.load(), 2);
    host.kept[0].clear();
    host.kept[1].clear();
  }
}

// covers: clusters: a lost link leaves its receiver what it has, and its owner the bound
TEST(PooledTensorsTest, WhatTheReceiverHasOutlivesTheLink) {
  std::vector<SentTensor> kept;
  {
    Host host(kMiB);
    host.OpenBoth();
    host.Send(Of({Floats(kMiB / 2, 1)}));
    ASSERT_OK(host.pair.links[0]->Send(Of({Floats(kMiB / 4, 2)})));  // perhaps it arrives
    host.pair.way->BreakAfter(0, 0);
    host.Run();
    EXPECT_EQ(host.pair.ends[0]->num_losses(), 1);
    EXPECT_EQ(host.pair.ends[1]->num_losses(), 1);
    EXPECT_EQ(host.pools[0]->budget->left(), 2 * kMiB);
    EXPECT_FALSE(host.pair.links[0]->Send(Of({Floats(kMiB / 4, 3)})).ok());
    kept = host.kept[1];
  }
  ASSERT_FALSE(kept.empty());
  EXPECT_TRUE(IsShared(kept[0].value));
  ExpectTensorEqual(kept[0].value, Floats(kMiB / 2, 1));
}

TEST(PooledTensorsTest, ATensorThatIsTooLargeFailsItsStepAndGivesItsBlockBack) {
  Host host(4 * kMiB);
  host.pair.options[1].transfers.max_tensor_bytes = kMiB;
  host.OpenBoth();
  for (int i = 0; i < 3; ++i) {
    host.Send(Of({Floats(4 * kMiB, 1)}));
    host.LetGo();
  }
  EXPECT_EQ(host.num_pooled(), 3);
  const std::vector<std::string> lines = host.pair.ends[1]->lines();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) {
                            return absl::StartsWith(line, "refused step=7") &&
                                   absl::StrContains(line, "max_tensor_bytes");
                          }),
            3);
  host.Send(Of({Floats(kMiB, 2)}));
  EXPECT_EQ(host.kept[1].size(), 1u);
}

// Both ends have to want pools, on a wire that passes descriptors.
TEST(PooledTensorsTest, WithoutPoolsAtBothEndsTensorsGoThroughTheWire) {
  for (int missing = 0; missing < 3; ++missing) {
    SCOPED_TRACE(missing);
    Host host(4 * kMiB, 1, WithDescriptors(missing < 2));
    if (missing < 2) host.pair.options[missing].max_pool_bytes = 0;
    host.OpenBoth();
    host.Send(Of({Floats(kMiB, 1)}));
    EXPECT_EQ(host.num_pooled(), 0);
    ASSERT_EQ(host.kept[1].size(), 1u);
    EXPECT_FALSE(IsShared(host.kept[1][0].value));
  }
}

// --- A peer that breaks the rules

// A ps in bytes, with a pool of 1 MiB, at end 1; the link is at end 0.
class Liar {
 public:
  explicit Liar(int64_t pool_bytes = kMiB, int64_t max_splat_bytes = int64_t{1} << 20)
      : host(pool_bytes), wire(host.pair.way->TakeWire(1)) {
    host.pair.options[0].max_splat_bytes = max_splat_bytes;
    host.pair.Open(0);
    wire->Start(user);
    HelloFrame hello;
    hello.task = "/job:ps/replica:0/task:0";
    hello.incarnation = 42;
    hello.window_bytes = kDefaultWindowBytes;
    hello.pool_bytes = kMiB;
    Say(FrameBytes(hello));
  }
  ~Liar() {
    wire->Close();
    host.Run();
  }

  void Say(const std::string& bytes, std::shared_ptr<const OwnedFd> fd = nullptr) {
    ByteChain chain;
    if (fd != nullptr) {
      chain.AppendWithDescriptor(bytes, std::move(fd));
    } else {
      chain.Append(bytes);
    }
    wire->Write(std::move(chain));
    host.Run();
  }
  // What the pool has to say.
  void SayNews() {
    for (SharedPool::News& news : pool->TakeNews()) {
      Say(FrameBytes(SegmentFrame{news.segment, news.bytes}), std::move(news.fd));
    }
  }
  // `credit_bytes`: what the frame says; 0: as little as it may.
  void SayTensor(uint64_t segment, uint64_t offset, int64_t num_bytes, DType dtype = DT_FLOAT,
                 int64_t credit_bytes = 0) {
    TensorsFrame frame;
    frame.step_id = 7;
    TensorEntry& entry = frame.tensors.emplace_back();
    entry.dtype = dtype;
    entry.shape = Shape{num_bytes / static_cast<int64_t>(DTypeSize(dtype))};
    entry.num_bytes = num_bytes;
    entry.segment = segment;
    entry.offset = offset;
    frame.credit_bytes = credit_bytes;
    if (credit_bytes == 0) frame.credit_bytes = static_cast<int64_t>(FrameBytes(frame).size());
    Say(FrameBytes(frame));
  }
  // The link is over, and said why.
  void ExpectBroken(absl::string_view why) {
    EXPECT_EQ(host.pair.ends[0]->num_losses(), 1) << why;
    EXPECT_TRUE(absl::StrContains(host.pair.ends[0]->lost().message(), why))
        << host.pair.ends[0]->lost();
    EXPECT_TRUE(absl::StrContains(user->received, why)) << "BYE says it to the peer";
  }

  Host host;
  const std::unique_ptr<ByteWire> wire;
  const std::shared_ptr<RawPeer> user = std::make_shared<RawPeer>();
  const std::shared_ptr<SharedPool> pool = SharedPool::Make({kMiB, kMiB, nullptr});
};

std::shared_ptr<const OwnedFd> File(int64_t bytes, bool is_sealed = true) {
  auto fd =
      std::make_shared<const OwnedFd>(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd->get(), bytes), 0);
  EXPECT_EQ(::fcntl(fd->get(), F_ADD_SEALS,
                    F_SEAL_SHRINK | F_SEAL_GROW | (is_sealed ? F_SEAL_WRITE | F_SEAL_SEAL : 0)),
            0);
  return fd;
}

// covers: clusters: an owner that writes again what it has given may spoil floats, and nothing
//   that was checked
TEST(PooledTensorsTest, AnOwnerThatScribblesSpoilsFloatsOnly) {
  Liar liar;
  const int64_t size = kMiB / 4;
  SharedBlock floats = liar.pool->Allocate(size), ids = liar.pool->Allocate(size);
  liar.SayNews();
  std::memset(floats.data(), 0, static_cast<size_t>(size));
  std::memset(ids.data(), 0, static_cast<size_t>(size));
  liar.SayTensor(floats.segment(), floats.offset(), size);
  liar.SayTensor(ids.segment(), ids.offset(), size, DT_INT64);
  ASSERT_EQ(liar.host.kept[0].size(), 2u);
  std::memset(floats.data(), 0x7f, static_cast<size_t>(size));
  std::memset(ids.data(), 0x7f, static_cast<size_t>(size));
  EXPECT_NE(liar.host.kept[0][0].value.flat<float>()[0], 0.0f);
  const absl::Span<const int64_t> kept = liar.host.kept[0][1].value.flat<int64_t>();
  EXPECT_TRUE(std::all_of(kept.begin(), kept.end(), [](int64_t id) { return id == 0; }));
  EXPECT_EQ(liar.host.pair.ends[0]->num_losses(), 0);
}

// Each may have elements that it does not list, as far as one that comes in parts may.
TEST(PooledTensorsTest, WhatIsNotListedIsBoundedForEachTensor) {
  // A TensorProto of two strings, which lists the first one: dtype, shape, string_val.
  const std::string text(70'000, 'x');
  const std::string proto =
      std::string("\x08\x07\x12\x04\x12\x02\x08\x02\x42\xf0\xa2\x04", 12) + text;
  for (const int64_t max_splat_bytes : {100'000, 60'000}) {
    SCOPED_TRACE(max_splat_bytes);
    Liar liar(kMiB, max_splat_bytes);
    TensorsFrame frame;
    frame.step_id = 7;
    std::vector<SharedBlock> blocks;
    for (uint32_t i = 0; i < 3; ++i) {
      blocks.push_back(liar.pool->Allocate(static_cast<int64_t>(proto.size())));
      std::memcpy(blocks.back().data(), proto.data(), proto.size());
      TensorEntry& entry = frame.tensors.emplace_back();
      entry.index = i;
      entry.form = WireTensor::Form::kProto;
      entry.num_bytes = static_cast<int64_t>(proto.size());
      entry.segment = blocks.back().segment();
      entry.offset = blocks.back().offset();
    }
    liar.SayNews();
    frame.credit_bytes = static_cast<int64_t>(FrameBytes(frame).size());
    liar.Say(FrameBytes(frame));
    const bool fits = max_splat_bytes > 70'000;
    EXPECT_EQ(liar.host.kept[0].size(), fits ? 3u : 0u);
    if (fits) {
      ExpectTensorEqual(liar.host.kept[0][2].value, Tensor::Of<std::string>({text, text}));
    }
    EXPECT_EQ(liar.host.pair.ends[0]->num_losses(), 0) << liar.host.pair.ends[0]->lost();
  }
}

TEST(PooledTensorsTest, LiesBreakTheLinkByName) {
  constexpr int64_t kLeast = OutgoingTensors::kMinPooledBytes;
  const struct {
    const char* what;
    std::function<void(Liar*)> lie;
    const char* why;
  } cases[] = {
      {"a segment that was not said", [](Liar* liar) { liar->SayTensor(2, 0, kLeast); },
       "its segment must be there, got number 2"},
      {"an offset outside", [](Liar* liar) { liar->SayTensor(1, kMiB, kLeast); },
       "it must lie within its 1048576 bytes"},
      {"an end outside", [](Liar* liar) { liar->SayTensor(1, kMiB - kLeast + 64, kLeast); },
       "it must lie within its 1048576 bytes"},
      {"an offset of 2^64",
       [](Liar* liar) { liar->SayTensor(1, std::numeric_limits<uint64_t>::max() - 63, kLeast); },
       "it must lie within its 1048576 bytes"},
      {"an odd offset", [](Liar* liar) { liar->SayTensor(1, 4, kLeast); }, "at a multiple of 64"},
      {"a small block", [](Liar* liar) { liar->SayTensor(1, 0, kLeast - 4); },
       "a tensor in a pool must have at least 65536 bytes, got 65532"},
      {"too little credit", [](Liar* liar) { liar->SayTensor(1, 0, kLeast, DT_FLOAT, 1); },
       "a frame with tensors in a pool, or kept ones, must take"},
      {"too much credit", [](Liar* liar) { liar->SayTensor(1, 0, kLeast, DT_FLOAT, 2 * kLeast); },
       "a frame with tensors in a pool, or kept ones, must take"},
      {"a block that is in use",
       [](Liar* liar) {
         liar->SayTensor(1, 0, 2 * kLeast);
         liar->SayTensor(1, kLeast, kLeast);
       },
       "it must lie apart from those in use"},
      {"a segment that goes while it is in use",
       [](Liar* liar) {
         liar->SayTensor(1, 0, kLeast);
         liar->Say(FrameBytes(SegmentFrame{1, 0}));
       },
       "must have no block in use"},
      {"a segment twice",
       [](Liar* liar) {
         liar->Say(FrameBytes(SegmentFrame{1, 4096}), File(4096));
       },
       "its number must be above 1, got 1"},
      {"a segment that was never there goes",
       [](Liar* liar) {
         liar->Say(FrameBytes(SegmentFrame{9, 0}));
       },
       "got number 9"},
      {"more than was allowed",
       [](Liar* liar) {
         liar->Say(FrameBytes(SegmentFrame{2, 4096}), File(4096));
       },
       "all must have at most 1048576 bytes, got 4096 next to 1048576"},
      {"no descriptor",
       [](Liar* liar) {
         liar->Say(FrameBytes(SegmentFrame{2, 4096}));
       },
       "SEGMENT must come with a descriptor, got none"},
      {"a descriptor without a segment",
       [](Liar* liar) { liar->Say(FrameBytes(PingFrame{1}), File(4096)); },
       "a descriptor must come with a SEGMENT, got one without"},
      {"a descriptor with a segment that goes",
       [](Liar* liar) {
         liar->Say(FrameBytes(SegmentFrame{1, 0}), File(4096));
       },
       "a descriptor must come with a SEGMENT, got one without"},
      {"two descriptors",
       [](Liar* liar) {
         const std::string segment = FrameBytes(SegmentFrame{2, 4096});
         liar->Say(segment.substr(0, 1), File(4096));
         liar->Say(segment.substr(1), File(4096));
       },
       "got another one before that"},
      {"a block that was not given",
       [](Liar* liar) {
         liar->Say(FrameBytes(ReleaseFrame{{{1, 0}}}));
       },
       "a block that is released must have been given, got offset 0 of segment 1"},
      {"a block twice",
       [](Liar* liar) {
         ASSERT_OK(liar->host.pair.links[0]->Send(Of({Floats(kLeast, 1)})));
         liar->host.Run();
         EXPECT_EQ(liar->host.num_pooled(), 1);
         liar->Say(FrameBytes(ReleaseFrame{{{1, 0}}}));
         EXPECT_EQ(liar->host.pair.ends[0]->num_losses(), 0);
         liar->Say(FrameBytes(ReleaseFrame{{{1, 0}}}));
       },
       "a block that is released must have been given, got offset 0 of segment 1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Liar liar;
    const SharedBlock all = liar.pool->Allocate(kMiB);
    liar.SayNews();
    ASSERT_EQ(liar.host.pair.ends[0]->num_losses(), 0);
    c.lie(&liar);
    liar.ExpectBroken(c.why);
  }
}

TEST(PooledTensorsTest, SegmentsThatAreNotWhatWasSaidBreakTheLink) {
  const struct {
    std::shared_ptr<const OwnedFd> file;
    int64_t said;
    const char* why;
  } cases[] = {
      {File(4096, /*is_sealed=*/false), 4096, "must be sealed"},
      {File(4096), 8192, "must have the 8192 bytes that were said, got 4096"},
      {std::make_shared<const OwnedFd>(::open("/proc/version", O_RDONLY | O_CLOEXEC)), 4096,
       "must be a memory file"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.why);
    Liar liar;
    liar.Say(FrameBytes(SegmentFrame{1, c.said}), c.file);
    liar.ExpectBroken(c.why);
  }
}

TEST(PooledTensorsTest, WithoutPoolsNothingOfThemIsTaken) {
  const struct {
    std::function<void(Liar*)> lie;
    const char* why;
  } cases[] = {
      {[](Liar* liar) {
         liar->Say(FrameBytes(SegmentFrame{1, 4096}), File(4096));
       },
       "a descriptor must be asked for, got one on a link without pools"},
      {[](Liar* liar) {
         liar->Say(FrameBytes(SegmentFrame{1, 4096}));
       },
       "SEGMENT must be asked for, got one on a link without pools"},
      {[](Liar* liar) { liar->SayTensor(1, 0, OutgoingTensors::kMinPooledBytes); },
       "got one in a pool on a link without pools"},
      {[](Liar* liar) {
         liar->Say(FrameBytes(ReleaseFrame{{{1, 0}}}));
       },
       "RELEASE must be of a block that was given, got one on a link without pools"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.why);
    Liar liar(/*pool_bytes=*/0);
    c.lie(&liar);
    liar.ExpectBroken(c.why);
  }
}

}  // namespace
}  // namespace millrace
