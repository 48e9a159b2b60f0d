// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/byte_link.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/testing/byte_link_ends.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/testing/simulated_wire.h"
#include "distributed/link/wire_tensor.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using World = ByteLinkEnds;

// Bytes from end 1 to a link at end 0, and what becomes of both.
struct RawTalk {
  explicit RawTalk(World* world)
      : wire(world->way->TakeWire(1)), peer(std::make_shared<RawPeer>()), time(&world->time) {
    world->Open(0);
    wire->Start(peer);
  }
  ~RawTalk() {
    wire->Close();
    EXPECT_TRUE(time->Run());
  }
  void Say(const std::string& bytes) {
    ByteChain chain;
    chain.Append(bytes);
    wire->Write(std::move(chain));
    EXPECT_TRUE(time->Run());
  }
  const std::unique_ptr<ByteWire> wire;
  const std::shared_ptr<RawPeer> peer;
  SeededTime* const time;
};

// A wire that takes all at once, as a socket does whose peer reads fast. What it hears is the
// test's to say.
class FastWire : public ByteWire {
 public:
  struct Seen {
    std::shared_ptr<ByteWire::User> user;
    int num_writes = 0, num_later = 0;
    bool is_closed = false, throws = false;
  };
  explicit FastWire(std::shared_ptr<Seen> seen) : seen_(std::move(seen)) {}
  void Start(std::shared_ptr<User> user) override { seen_->user = std::move(user); }
  bool Write(ByteChain) override {
    ++seen_->num_writes;
    if (seen_->throws) throw std::bad_alloc();
    return true;
  }
  bool WriteLater(ByteChain) override {
    ++seen_->num_later;
    return false;
  }
  void Close() override { seen_->is_closed = true; }

 private:
  const std::shared_ptr<Seen> seen_;
};

HelloFrame PsHello() {
  HelloFrame hello;
  hello.task = "/job:ps/replica:0/task:0";
  hello.incarnation = 42;
  hello.window_bytes = kDefaultWindowBytes;
  return hello;
}

SentTensors Of(int64_t step_id, uint32_t index, Tensor value) {
  SentTensors message;
  message.step_id = step_id;
  SentTensor& tensor = message.tensors.emplace_back();
  tensor.index = index;
  tensor.value = std::move(value);
  return message;
}

// What is bounded while it waits.
SentTensors ResultsOf(int64_t step_id, uint32_t index, Tensor value) {
  SentTensors message = Of(step_id, index, std::move(value));
  message.purpose = TensorsPurpose::kResults;
  return message;
}

Tensor Filled(int64_t elements, float value) {
  Tensor tensor = *Tensor::Zeros(DT_FLOAT, *Shape::Make({elements}));
  for (float& element : tensor.mutable_flat<float>()) element = value;
  return tensor;
}

RunFrame RunOf(int64_t step_id) {
  RunFrame run;
  run.step_id = step_id;
  return run;
}

int64_t CountLines(const RecordingEnd& end, absl::string_view prefix) {
  const std::vector<std::string> lines = end.lines();
  return std::count_if(lines.begin(), lines.end(),
                       [&](const std::string& line) { return absl::StartsWith(line, prefix); });
}

// covers: clusters: a link over bytes gives the same tensors for any cuts and delays of the
// network,
//   also when its buffers are small
TEST(ByteLinkTest, AllArrivesHoweverTheNetworkCuts) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SimulatedWay::Options small;
    small.max_piece_bytes = 1 + seed * 997;
    small.buffer_bytes = seed * 1000;
    World world(seed, small);
    world.options[0].window_bytes = world.options[1].window_bytes = kMinWindowBytes;
    world.OpenBoth();
    std::vector<int64_t> sizes[2];
    for (int i = 0; i < 30; ++i) {
      const int from = static_cast<int>(world.time.Draw(2));
      // From no elements to 1.2 MB.
      const int64_t elements =
          static_cast<int64_t>(world.time.Draw(300'000) >> world.time.Draw(19));
      const auto index = static_cast<uint32_t>(sizes[from].size());
      sizes[from].push_back(elements);
      ASSERT_OK(world.links[from]->Send(Of(7, index, Filled(elements, static_cast<float>(index)))));
      if (world.time.Draw(3) == 0) {
        ASSERT_TRUE(world.time.RunFor(absl::Milliseconds(1)));
      }
    }
    ASSERT_TRUE(world.time.Run());
    for (int from = 0; from < 2; ++from) {
      const std::vector<SentTensor> got = world.ends[1 - from]->tensors();
      ASSERT_EQ(got.size(), sizes[from].size());
      std::vector<bool> seen(got.size(), false);
      for (const SentTensor& tensor : got) {
        ASSERT_LT(tensor.index, seen.size());
        EXPECT_FALSE(seen[tensor.index]);
        seen[tensor.index] = true;
        ExpectTensorEqual(tensor.value,
                          Filled(sizes[from][tensor.index], static_cast<float>(tensor.index)));
      }
      EXPECT_EQ(world.links[from]->queued_bytes(), 0);
    }
  }
}

// Bytes, not times: whole, and in parts where half of them are too many for one frame.
TEST(ByteLinkTest, IdsTakeFourBytesEachOnTheWire) {
  World world;
  RawTalk talk(&world);
  talk.Say(FrameBytes(PsHello()));
  const struct {
    int64_t elements, last, most_bytes;
  } cases[] = {
      {1'000, 999, 4'000 + 64},
      {1'000, int64_t{1} << 31, 8'000 + 64},
      {20'000, 19'999, 80'000 + 128},
      {20'000, -(int64_t{1} << 40), 160'000 + 128},
  };
  uint32_t index = 0;
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.elements, " ids, the last one is ", c.last));
    std::vector<int64_t> ids;
    for (int64_t i = 0; i + 1 < c.elements; ++i) ids.push_back(i);
    ids.push_back(c.last);
    const size_t before = talk.peer->received.size();
    ASSERT_OK(world.links[0]->Send(Of(7, index++, Tensor::Vector<int64_t>(ids))));
    ASSERT_TRUE(world.time.Run());
    const auto bytes = static_cast<int64_t>(talk.peer->received.size() - before);
    EXPECT_LE(bytes, c.most_bytes);
    EXPECT_GT(bytes, c.most_bytes - 128);
  }
}

// covers: clusters: a link that is lost in the middle of a frame is lost at both ends within 30 s,
//   and nothing arrives in part
TEST(ByteLinkTest, ALossInTheMiddleOfAFrame) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World world(seed);
    world.OpenBoth();
    const absl::Time start = world.time.clock()->Now();
    world.way->BreakAfter(0, 1 + world.time.Draw(500'000));
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_OK(world.links[0]->Send(Of(7, i, Filled(40'000, 1))));
    }
    ASSERT_TRUE(world.time.Run());
    EXPECT_LE(world.time.clock()->Now() - start, absl::Seconds(31));
    for (int end = 0; end < 2; ++end) {
      EXPECT_EQ(world.ends[end]->num_losses(), 1);
      EXPECT_FALSE(world.ends[end]->lost_by_peer());
      EXPECT_STATUS(world.ends[end]->lost(), absl::StatusCode::kUnavailable,
                    "the connection was lost");
      EXPECT_TRUE(absl::StartsWith(world.ends[end]->lines().back(), "lost"));
    }
    for (const SentTensor& tensor : world.ends[1]->tensors()) {
      ExpectTensorEqual(tensor.value, Filled(40'000, 1));
    }
    EXPECT_LT(world.ends[1]->tensors().size(), 4u);
    EXPECT_EQ(world.links[0]->queued_bytes(), 0);  // nothing is kept for a link that is lost
    EXPECT_STATUS(world.links[0]->Send(RunOf(1)), absl::StatusCode::kUnavailable,
                  "Link to /job:ps/replica:0/task:0: the connection was lost");
  }
}

// covers: clusters: a peer that ended, and whose system says so, is a close by the peer
TEST(ByteLinkTest, TheEndOfThePeersProcessIsAClose) {
  World world;
  RawTalk talk(&world);
  talk.Say(FrameBytes(PsHello()));
  talk.wire->Close();
  ASSERT_TRUE(world.time.Run());
  EXPECT_TRUE(world.ends[0]->lost_by_peer());
  EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kUnavailable, "the end of the stream");
}

// covers: clusters: a reader that stops for a minute costs its sender references within a bound:
//   tensors beyond it are refused, the link lives, and all that was taken arrives afterwards
TEST(ByteLinkTest, AReaderThatStopsBoundsItsSender) {
  World world;
  world.options[0].max_queued_bytes = int64_t{8} << 20;
  world.options[1].window_bytes = int64_t{4} << 20;
  world.OpenBoth();
  world.way->StopReading(1);
  constexpr int64_t kElements = 64 << 10;  // 256 KiB
  int64_t taken = 0;
  Status refused;
  for (uint32_t i = 0; i < 1000 && refused.ok(); ++i) {
    refused = world.links[0]->Send(ResultsOf(7, i, Filled(kElements, static_cast<float>(i))));
    if (refused.ok()) ++taken;
    ASSERT_TRUE(world.time.Run());
  }
  EXPECT_STATUS(refused, absl::StatusCode::kResourceExhausted, "ServerLimits::max_queued_bytes");
  // The queue, and a write or two that the network has taken.
  EXPECT_GE(taken, 32);
  EXPECT_LE(taken, 36);
  EXPECT_LE(world.links[0]->queued_bytes(), int64_t{8} << 20);
  EXPECT_LE(world.way->bytes_under_way(0), uint64_t{1} << 20);
  // The step that got the error ends; messages are still taken.
  ASSERT_OK(world.links[0]->Send(RunOf(8)));
  ASSERT_TRUE(world.time.RunFor(absl::Seconds(20)));
  world.way->GoOnReading(1);
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(static_cast<int64_t>(world.ends[1]->tensors().size()), taken);
  EXPECT_EQ(CountLines(*world.ends[1], "run step=8"), 1);
  EXPECT_EQ(world.links[0]->queued_bytes(), 0);
  ASSERT_OK(world.links[0]->Send(Of(9, 0, Filled(kElements, 1))));
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(CountLines(*world.ends[1], "tensors step=9"), 1);
}

// covers: clusters: a network that takes megabytes gets parts of large tensors as fast as the peer
//   reads them, so messages and small tensors are not behind all of one
TEST(ByteLinkTest, PartsOfALargeTensorDoNotFillANetworkThatTakesMegabytes) {
  for (const bool takes_megabytes : {false, true}) {
    SimulatedWay::Options way;
    way.takes_megabytes = takes_megabytes;
    way.buffer_bytes = uint64_t{256} << 20;
    World world(1, way);
    world.OpenBoth();
    world.way->StopReading(1);
    constexpr int64_t kElements = 8 << 20;  // 32 MiB
    ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(kElements, 3))));
    ASSERT_TRUE(world.time.Run());
    const uint64_t parts = world.way->bytes_under_way(0);
    if (takes_megabytes) {
      EXPECT_LE(parts, uint64_t{1} << 20 | uint64_t{10} << 10);
    } else {
      EXPECT_GE(parts, uint64_t{32} << 20);
    }
    // What may overtake is not kept back with them.
    ASSERT_OK(world.links[0]->Send(Of(8, 0, Filled(10'000, 1))));
    ASSERT_OK(world.links[0]->Send(RunOf(9)));
    ASSERT_TRUE(world.time.Run());
    EXPECT_GE(world.way->bytes_under_way(0), parts + 40'000);
    world.way->GoOnReading(1);
    ASSERT_TRUE(world.time.Run());
    ASSERT_EQ(world.ends[1]->tensors().size(), 2u);
    EXPECT_EQ(world.ends[1]->tensors()[1].value.num_elements(),
              takes_megabytes ? kElements : 10'000);
    EXPECT_EQ(CountLines(*world.ends[1], "run step=9"), 1);
    EXPECT_EQ(world.links[0]->queued_bytes(), 0);
    EXPECT_EQ(world.ends[0]->num_losses() + world.ends[1]->num_losses(), 0);
  }
}

// A message is taken whatever its size when no tensors wait.
TEST(ByteLinkTest, ATensorLargerThanTheBoundTravels) {
  World world;
  world.options[0].max_queued_bytes = 1000;
  world.OpenBoth();
  ASSERT_OK(world.links[0]->Send(ResultsOf(7, 0, Filled(4 << 20, 3))));
  EXPECT_STATUS(world.links[0]->Send(ResultsOf(7, 1, Filled(1, 3))),
                absl::StatusCode::kResourceExhausted, "max_queued_bytes");
  ASSERT_TRUE(world.time.Run());
  ASSERT_EQ(world.ends[1]->tensors().size(), 1u);
  EXPECT_EQ(world.ends[1]->tensors()[0].value.num_elements(), 4 << 20);
}

// covers: clusters: a step of any size travels over a link: its edges wait for a slow peer without
//   a bound, large and small, and leave room for what is bounded
TEST(ByteLinkTest, EdgesOfStepsWaitHoweverLargeTheModelIs) {
  World world;
  world.options[0].max_queued_bytes = 100'000;
  world.options[1].window_bytes = int64_t{4} << 20;
  world.OpenBoth();
  world.way->StopReading(1);
  constexpr uint32_t kEdges = 100;
  for (uint32_t i = 0; i < kEdges; ++i) {
    // 256 KiB, in parts, and 40 KB.
    const int64_t elements = i % 2 == 0 ? 64 << 10 : 10'000;
    ASSERT_OK(world.links[0]->Send(Of(7, i, Filled(elements, static_cast<float>(i)))));
  }
  EXPECT_GE(world.links[0]->queued_bytes(), int64_t{10} << 20);
  ASSERT_OK(world.links[0]->Send(ResultsOf(8, 0, Filled(1000, 1))));
  ASSERT_OK(world.links[0]->Send(ResultsOf(8, 1, Filled(1000, 1))));
  world.way->GoOnReading(1);
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(world.ends[1]->tensors().size(), kEdges + 2);
  EXPECT_EQ(world.links[0]->queued_bytes(), 0);
  // Nothing of them counts any more.
  world.way->StopReading(1);
  Status refused;
  uint32_t sent = 0;
  for (; refused.ok() && sent < 10; ++sent) {
    refused = world.links[0]->Send(ResultsOf(9, sent, Filled(20'000, 1)));
  }
  EXPECT_STATUS(refused, absl::StatusCode::kResourceExhausted, "max_queued_bytes");
  EXPECT_GE(sent, 2u);
}

// covers: clusters: an end of a link that keeps more than it may stops the sender's tensors, and
//   nothing else, until it lets go of them
TEST(ByteLinkTest, AnEndThatKeepsTooMuchStopsItsSenderUntilItLetsGo) {
  World world;
  world.options[1].window_bytes = kMinWindowBytes;
  bool keeps = true;
  int64_t kept_bytes = 0;
  world.ends[1]->on_tensors = [&](const SentTensors& message) {
    if (!keeps) return;
    const int64_t bytes = message.tensors[0].value.TotalBytes();
    world.links[1]->HoldCredit(bytes);
    kept_bytes += bytes;
  };
  world.OpenBoth();
  for (uint32_t i = 0; i < 100; ++i) ASSERT_OK(world.links[0]->Send(Of(7, i, Filled(10'000, 1))));
  ASSERT_TRUE(world.time.Run());
  // 40 KB each, within 2 MiB.
  EXPECT_GE(world.ends[1]->tensors().size(), 40u);
  EXPECT_LE(world.ends[1]->tensors().size(), 52u);
  ASSERT_OK(world.links[0]->Send(RunOf(8)));
  ASSERT_OK(world.links[1]->Send(RunOf(9)));
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(CountLines(*world.ends[1], "run step=8"), 1);
  EXPECT_LE(world.ends[1]->tensors().size(), 52u);
  keeps = false;
  world.links[1]->LetGoOfCredit(kept_bytes);
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(world.ends[1]->tensors().size(), 100u);
  EXPECT_EQ(world.links[0]->queued_bytes(), 0);
}

// When a step takes its tensors is its own affair, and may be never: that is told by Acknowledge.
// covers: clusters: a step that never takes its tensors stops no other step of its link: credit
//   comes back as the bytes come, not as they are used
TEST(ByteLinkTest, CreditComesBackThoughNoStepTakesItsTensors) {
  for (const bool has_pools : {false, true}) {
    SCOPED_TRACE(has_pools);
    SimulatedWay::Options way;
    way.passes_descriptors = has_pools;
    World world(1, way);
    for (ByteLinkOptions& options : world.options) {
      options.window_bytes = kMinWindowBytes;
      options.max_pool_bytes = has_pools ? 8 * kMinWindowBytes : 0;
    }
    world.ends[1]->acknowledges = true;  // and never does; it keeps all that comes
    world.OpenBoth();
    // Three windows in frames, and three in parts or in the pool.
    uint32_t sent = 0;
    for (const int64_t elements : {10'000, 100'000}) {
      for (int64_t bytes = 0; bytes < 3 * kMinWindowBytes; bytes += 4 * elements) {
        ASSERT_OK(world.links[0]->Send(Of(7, sent++, Filled(elements, 1))));
      }
    }
    ASSERT_TRUE(world.time.Run());
    EXPECT_EQ(world.ends[1]->tensors().size(), sent);
    EXPECT_EQ(world.links[0]->queued_bytes(), 0);
    EXPECT_EQ(world.ends[0]->received(7), 0u);
    ASSERT_OK(world.links[0]->Send(Of(8, 0, Filled(10'000, 1))));
    ASSERT_OK(world.links[0]->Send(Of(8, 1, Filled(100'000, 1))));
    ASSERT_TRUE(world.time.Run());
    EXPECT_EQ(CountLines(*world.ends[1], "tensors step=8"), 2);
    EXPECT_EQ(world.ends[0]->num_losses(), 0) << world.ends[0]->lost();
  }
}

// covers: clusters: messages without tensors that nobody takes end the link, within a bound
TEST(ByteLinkTest, MessagesThatNobodyTakesEndTheLink) {
  World world;
  world.options[0].max_queued_message_bytes = 10'000;
  world.OpenBoth();
  world.way->StopReading(1);
  ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(1 << 20, 1))));  // the network is full
  Status status;
  int64_t sent = 0;
  while (status.ok() && sent < 100'000) {
    status = world.links[0]->Send(RunOf(++sent));
  }
  EXPECT_STATUS(status, absl::StatusCode::kUnavailable,
                "Link to /job:ps/replica:0/task:0: the peer must take messages, got ");
  EXPECT_LT(sent, 1000);
  ASSERT_TRUE(world.time.RunFor(absl::Seconds(1)));
  EXPECT_EQ(world.ends[0]->num_losses(), 1);
  EXPECT_EQ(world.links[0]->queued_bytes(), 0);
}

// covers: clusters: RUN, END and CANCEL overtake the parts of large tensors on a link
TEST(ByteLinkTest, MessagesOvertakeLargeTensors) {
  World world;
  world.OpenBoth();
  ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(8 << 20, 1))));  // 32 MiB
  ASSERT_OK(world.links[0]->Send(RunOf(8)));
  ASSERT_OK(world.links[0]->Send(Of(8, 0, Filled(1, 2))));
  // Two writes may have left before: what was under way, and what was being written.
  while (CountLines(*world.ends[1], "tensors step=8") == 0) {
    ASSERT_LT(world.way->written_bytes(0), uint64_t{1} << 20);
    ASSERT_TRUE(world.time.RunFor(absl::Microseconds(100)));
  }
  EXPECT_EQ(CountLines(*world.ends[1], "run step=8"), 1);
  EXPECT_EQ(CountLines(*world.ends[1], "tensors step=7"), 0);
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(CountLines(*world.ends[1], "tensors step=7"), 1);
}

// covers: clusters: a tensor that is cancelled in the middle of its parts frees the sender and the
//   receiver of it, and the link goes on
TEST(ByteLinkTest, ACancelInTheMiddleOfALargeTensor) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed);
    world.OpenBoth();
    const Tensor large = Filled(8 << 20, 1);
    ASSERT_OK(world.links[0]->Send(Of(7, 0, large)));
    ASSERT_TRUE(world.time.RunFor(absl::Milliseconds(static_cast<int64_t>(seed))));
    ASSERT_OK(world.links[0]->Send(CancelFrame{7, absl::CancelledError("enough")}));
    EXPECT_LE(world.links[0]->queued_bytes(), 200);
    ASSERT_OK(world.links[0]->Send(Of(8, 0, Filled(100'000, 2))));
    ASSERT_TRUE(world.time.Run());
    EXPECT_TRUE(large.BufferIsUnique());
    EXPECT_EQ(CountLines(*world.ends[1], "tensors step=7"), 0);
    EXPECT_EQ(CountLines(*world.ends[1], "tensors step=8"), 1);
    EXPECT_EQ(world.ends[1]->num_losses(), 0);
  }
}

// The master waits for it: END came before.
TEST(ByteLinkTest, ACancelInTheMiddleOfALargeReportLetsItCome) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed);
    world.OpenBoth();
    SentTensors report = Of(7, 0, Filled(8 << 20, 1));
    report.purpose = TensorsPurpose::kReport;
    ASSERT_OK(world.links[0]->Send(std::move(report)));
    ASSERT_TRUE(world.time.RunFor(absl::Milliseconds(static_cast<int64_t>(seed))));
    ASSERT_OK(world.links[0]->Send(CancelFrame{7, absl::CancelledError("enough")}));
    ASSERT_TRUE(world.time.Run());
    EXPECT_EQ(CountLines(*world.ends[1], "tensors step=7"), 1);
    EXPECT_EQ(CountLines(*world.ends[1], "cancel step=7"), 1);
    EXPECT_EQ(world.links[0]->queued_bytes(), 0);
    EXPECT_EQ(world.ends[1]->num_losses(), 0);
  }
}

// covers: clusters: a tensor above its receiver's limits ends its step and not the link
TEST(ByteLinkTest, ATensorAboveTheLimitEndsItsStepOnly) {
  World world;
  world.options[1].transfers.max_tensor_bytes = 1'000'000;
  world.OpenBoth();
  ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(250'001, 1))));
  ASSERT_OK(world.links[0]->Send(Of(8, 0, Filled(250'000, 1))));
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(CountLines(*world.ends[1],
                       "refused step=7 Link: bytes of a tensor must be at most 1000000 "
                       "(ServerLimits::max_tensor_bytes), got 1000004"),
            1);
  EXPECT_EQ(CountLines(*world.ends[1], "tensors step=8"), 1);
  EXPECT_EQ(world.links[0]->queued_bytes(), 0);  // its bytes were skipped, and returned
}

// covers: clusters: acknowledgements on a link cost no message of their own while steps run
TEST(ByteLinkTest, AcknowledgementsRideOnMessages) {
  World world;
  world.OpenBoth();
  const int64_t before = world.way->num_writes(1);
  for (int64_t step = 1; step <= 10; ++step) {
    ASSERT_OK(world.links[0]->Send(Of(step, 0, Filled(100, 1))));
    ASSERT_TRUE(world.time.Run());
  }
  EXPECT_EQ(world.way->num_writes(1), before);
  EXPECT_EQ(world.ends[0]->received(1), 0u);
  EndFrame end;
  end.step_id = 10;
  ASSERT_OK(world.links[1]->Send(end));
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(world.way->num_writes(1), before + 1);
  for (int64_t step = 1; step <= 10; ++step) EXPECT_EQ(world.ends[0]->received(step), 1u);
  // A quarter of the window does not wait.
  ASSERT_OK(world.links[0]->Send(Of(11, 0, Filled(5 << 20, 1))));
  ASSERT_TRUE(world.time.Run());
  EXPECT_GT(world.way->num_writes(1), before + 1);
}

// covers: clusters: what a task has acknowledged leaves when nothing else does for two Ticks
TEST(ByteLinkTest, AcknowledgementsWaitForTwoTicksAtMost) {
  World world;
  world.OpenBoth();
  ASSERT_OK(world.links[0]->Send(Of(1, 0, Filled(100, 1))));
  ASSERT_TRUE(world.time.Run());
  world.Pass(1, 1);
  EXPECT_EQ(world.ends[0]->received(1), 0u);
  // What rides on a message has not waited.
  ASSERT_OK(world.links[1]->Send(RunOf(7)));
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(world.ends[0]->received(1), 1u);
  ASSERT_OK(world.links[0]->Send(Of(2, 0, Filled(100, 1))));
  ASSERT_TRUE(world.time.Run());
  world.Pass(1, 1);
  EXPECT_EQ(world.ends[0]->received(2), 0u);
  world.Pass(1, 1);
  EXPECT_EQ(world.ends[0]->received(2), 1u);
  const int64_t writes = world.way->num_writes(1);
  world.Pass(1, 3);
  EXPECT_EQ(world.way->num_writes(1), writes);
}

// covers: clusters: a training step over a link is two writes each way: RUN, variables, gradients,
//   END; acknowledgements and the rest of a wave cost none
TEST(ByteLinkTest, AStepIsTwoWritesEachWay) {
  World world;
  RecordingEnd* const worker = world.ends[0].get();
  RecordingEnd* const ps = world.ends[1].get();
  ps->on_run = [ps](const RunFrame& run) {
    LinkCork cork;
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_OK(ps->link()->Send(Of(run.step_id, i, Filled(100, 1))));
    }
  };
  int variables = 0, gradients = 0;
  worker->on_tensors = [worker, &variables](const SentTensors& tensors) {
    variables += static_cast<int>(tensors.tensors.size());
    if (variables % 3 != 0) return;
    LinkCork cork;
    for (uint32_t i = 0; i < 2; ++i) {
      EXPECT_OK(worker->link()->Send(Of(tensors.step_id, i, Filled(100, 2))));
    }
  };
  ps->on_tensors = [ps, &gradients](const SentTensors& tensors) {
    gradients += static_cast<int>(tensors.tensors.size());
    if (gradients % 2 != 0) return;
    EndFrame end;
    end.step_id = tensors.step_id;
    EXPECT_OK(ps->link()->Send(end));
  };
  world.OpenBoth();
  const int64_t by_worker = world.way->num_writes(0), by_ps = world.way->num_writes(1);
  for (int64_t step = 1; step <= 10; ++step) {
    ASSERT_OK(world.links[0]->Send(RunOf(step)));
    ASSERT_TRUE(world.time.Run());
    EXPECT_EQ(worker->last_end().step_id, step);
    EXPECT_EQ(ps->received(step), 3u);
    EXPECT_EQ(worker->received(step), 2u);
  }
  EXPECT_EQ(world.way->num_writes(0) - by_worker, 20);
  EXPECT_EQ(world.way->num_writes(1) - by_ps, 20);
}

// covers: clusters: a peer of another version, task, incarnation or window is refused when a link
//   opens, and is told why
TEST(ByteLinkTest, AGreetingThatDoesNotFitIsRefused) {
  HelloFrame version = PsHello(), task = PsHello(), incarnation = PsHello(), window = PsHello(),
             takes = PsHello();
  version.version = kLinkVersion + 1;
  task.task = "/job:ps/replica:0/task:1";
  incarnation.incarnation = 43;
  window.window_bytes = kMinWindowBytes - 1;
  takes.takes_offer = true;
  const struct {
    std::string bytes;
    absl::StatusCode code;
    std::string message;
  } cases[] = {
      {FrameBytes(version), absl::StatusCode::kFailedPrecondition,
       "both tasks must speak version 5 of links, got a peer of version 6"},
      {FrameBytes(task), absl::StatusCode::kFailedPrecondition,
       "Link to /job:ps/replica:0/task:0: that task must answer, got /job:ps/replica:0/task:1"},
      {FrameBytes(incarnation), absl::StatusCode::kAborted,
       "the task restarted (incarnation 42 expected, 43 found)"},
      {FrameBytes(window), absl::StatusCode::kInvalidArgument,
       "the window must be at least 2097152 bytes, got 2097151"},
      {FrameBytes(takes), absl::StatusCode::kInvalidArgument,
       "Link to /job:ps/replica:0/task:0: HELLO must take an offer that was made, got none"},
      {FrameBytes(PingFrame{1}), absl::StatusCode::kInvalidArgument,
       "the first frame must be HELLO"},
      {RawFrame(6, std::string("\x01\x00", 2), "abc"), absl::StatusCode::kInvalidArgument,
       "the first frame must be HELLO, got a CHUNK"},
      {"GET / HTTP/1.1\r\n\r\n", absl::StatusCode::kInvalidArgument, "got kind 71"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    World world;
    world.options[0].peer_incarnation = 42;
    RawTalk talk(&world);
    talk.Say(c.bytes);
    EXPECT_TRUE(world.ends[0]->link() == nullptr);
    EXPECT_EQ(world.ends[0]->num_losses(), 1);
    EXPECT_FALSE(world.ends[0]->lost_by_peer());
    EXPECT_STATUS(world.ends[0]->lost(), c.code, c.message);
    EXPECT_TRUE(talk.peer->is_closed && talk.peer->closed_by_peer);
    EXPECT_TRUE(absl::StrContains(talk.peer->received, c.message));
  }
}

// covers: clusters: who was dialled may refuse the caller by its HELLO, and then neither end was
//   open
TEST(ByteLinkTest, WhoWasDialledMayRefuseBeforeEitherEndIsOpen) {
  for (const bool waits : {true, false}) {
    SCOPED_TRACE(waits);
    World world;
    world.options[1].waits_for_hello = waits;
    world.options[1].admit = [](const LinkPeer& peer) {
      return absl::PermissionDeniedError(absl::StrCat("not ", peer.task, " ", peer.incarnation));
    };
    world.OpenBoth();
    EXPECT_EQ(world.ends[1]->lines(),
              std::vector<std::string>{"lost not /job:worker/replica:0/task:0 41"});
    EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kPermissionDenied,
                  "was closed by the peer: not /job:worker/replica:0/task:0 41");
    EXPECT_TRUE(world.ends[0]->lost_by_peer());
    // HELLO that did not wait has opened the caller's end for a moment.
    EXPECT_EQ(world.ends[0]->link() == nullptr, waits);
  }
  World world;
  world.options[1].waits_for_hello = true;
  world.options[1].admit = [](const LinkPeer&) { return absl::OkStatus(); };
  world.OpenBoth();
  EXPECT_TRUE(world.ends[0]->link() != nullptr && world.ends[1]->link() != nullptr);
}

// covers: clusters: who dials a link may offer another way, and both ends know, before they are
//   open, whether it was taken
TEST(ByteLinkTest, AnOfferIsTakenOrNotBeforeEitherEndIsOpen) {
  for (const bool takes : {true, false}) {
    SCOPED_TRACE(takes);
    World world;
    world.options[0].offer = "another way";
    std::vector<std::string> offers;
    world.options[1].waits_for_hello = true;
    world.options[1].takes_offer = [&](const LinkPeer& peer, const std::string& offer) {
      EXPECT_EQ(peer.task, "/job:worker/replica:0/task:0");
      EXPECT_EQ(peer.incarnation, 41u);
      EXPECT_TRUE(world.ends[0]->link() == nullptr && world.ends[1]->link() == nullptr);
      offers.push_back(offer);
      return takes;
    };
    world.OpenBoth();
    EXPECT_EQ(offers, std::vector<std::string>{"another way"});
    ASSERT_TRUE(world.ends[0]->link() != nullptr && world.ends[1]->link() != nullptr);
    EXPECT_EQ(world.ends[0]->link()->peer().takes_offer, takes);
    EXPECT_FALSE(world.ends[1]->link()->peer().takes_offer);
  }
  // Nothing is taken from who is refused, or offers nothing.
  for (const bool offers : {true, false}) {
    SCOPED_TRACE(offers);
    World world;
    if (offers) world.options[0].offer = "another way";
    world.options[1].waits_for_hello = true;
    if (offers) {
      world.options[1].admit = [](const LinkPeer&) { return absl::PermissionDeniedError("no"); };
    }
    world.options[1].takes_offer = [](const LinkPeer&, const std::string&) {
      ADD_FAILURE() << "there is none";
      return true;
    };
    world.OpenBoth();
    EXPECT_EQ(world.ends[0]->link() == nullptr, offers);
  }
}

// covers: clusters: frames of a stranger that break the rules of a link end it, and the stranger is
//   told which
TEST(ByteLinkTest, FramesThatBreakTheRulesEndTheLink) {
  TensorsFrame parts;
  TensorEntry entry;
  entry.transfer = 5;
  entry.dtype = DT_FLOAT;
  entry.shape = Shape{100};
  entry.num_bytes = 400;
  parts.tensors = {entry};
  const std::string announced = FrameBytes(parts);
  entry.transfer = 4;
  parts.tensors = {entry};
  const std::string announced_before = FrameBytes(parts);
  entry.transfer = 5;
  entry.num_bytes = 404;
  parts.tensors = {entry};
  const std::string wrong_size = FrameBytes(parts);
  const auto chunk = [](int transfer, int offset, size_t bytes) {
    std::string head;
    head.push_back(static_cast<char>(transfer));
    head.push_back(static_cast<char>(offset));
    return RawFrame(6, head, std::string(bytes, 'x'));
  };
  const struct {
    std::string bytes, message;
  } cases[] = {
      {FrameBytes(PsHello()), "HELLO must come once"},
      {FrameBytes(ReceivedFrame{1, {}}), "credit that is returned must have been taken"},
      {FrameBytes(ReceivedFrame{INT64_MAX, {}}), "must have been taken"},
      {announced + announced, "the number of a transfer must be above 5, got 5"},
      {announced + announced_before, "the number of a transfer must be above 5, got 4"},
      {wrong_size, "a tensor float[100] must have 400 bytes, got 404"},
      {chunk(5, 0, 1), "a chunk must be of a transfer that is open, got number 5"},
      {chunk(5, 0, 100) + announced, "a chunk must be of a transfer that is open, got number 5"},
      {announced + chunk(6, 0, 1), "a chunk must be of a transfer that is open, got number 6"},
      {announced + chunk(5, 1, 1), "must begin at byte 0, got 1"},
      {announced + chunk(5, 0, 100) + chunk(5, 0, 100), "must begin at byte 100, got 0"},
      {announced + chunk(5, 0, 401), "transfer 5 must have 400 bytes, got 401 from byte 0"},
      {announced + chunk(5, 0, 400) + chunk(5, 0, 1), "a transfer that is open, got number 5"},
      {FrameBytes(CancelFrame{0, absl::CancelledError("x")}) + "\x7f", "got kind 127"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    World world;
    RawTalk talk(&world);
    talk.Say(FrameBytes(PsHello()));
    talk.Say(c.bytes);
    EXPECT_EQ(world.ends[0]->num_losses(), 1);
    EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kInvalidArgument, c.message);
    EXPECT_TRUE(absl::StrContains(talk.peer->received, c.message));
  }
}

// covers: clusters: credit that a stranger returns twice ends the link
TEST(ByteLinkTest, CreditThatIsReturnedTwiceEndsTheLink) {
  World world;
  RawTalk talk(&world);
  talk.Say(FrameBytes(PsHello()));
  const size_t before = talk.peer->received.size();
  ASSERT_OK(world.links[0]->Send(Of(1, 0, Filled(100, 1))));
  ASSERT_TRUE(world.time.Run());
  // Nothing else was owed, so this is the frame with the tensor.
  const auto taken = static_cast<int64_t>(talk.peer->received.size() - before);
  ASSERT_GT(taken, 400);
  const std::string received = FrameBytes(ReceivedFrame{taken, {{1, 1}}});
  talk.Say(received);
  EXPECT_EQ(world.ends[0]->num_losses(), 0);
  EXPECT_EQ(world.ends[0]->received(1), 1u);
  talk.Say(received);
  EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kInvalidArgument,
                "credit that is returned must have been taken");
  EXPECT_EQ(world.ends[0]->received(1), 1u);
}

// covers: clusters: what a stranger sends behind its farewell is not read
TEST(ByteLinkTest, NothingIsReadBehindAFarewell) {
  World world;
  RawTalk talk(&world);
  talk.Say(FrameBytes(PsHello()));
  const std::string bye = FrameBytes(ByeFrame{absl::AbortedError("I go")});
  talk.Say(bye + FrameBytes(RunOf(7)) + bye + "\x7f");
  EXPECT_EQ(world.ends[0]->num_losses(), 1);
  EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kAborted, "closed by the peer: I go");
  EXPECT_TRUE(world.ends[0]->lost_by_peer());
  EXPECT_EQ(CountLines(*world.ends[0], "run "), 0);
}

// covers: clusters: a stranger that sends more than its credit is cut off
TEST(ByteLinkTest, ASenderWithoutCreditIsCutOff) {
  World world;
  world.options[0].window_bytes = kMinWindowBytes;
  RawTalk talk(&world);
  talk.Say(FrameBytes(PsHello()));
  // It does not read, so nothing is returned to it.
  world.way->StopReading(1);
  ASSERT_OK(world.links[0]->Send(Of(1, 0, Filled(100'000, 1))));
  TensorsFrame frame;
  TensorEntry entry;
  entry.value = *WireTensor::Of(Filled(60'000, 1));
  frame.tensors = {entry};
  const std::string bytes = FrameBytes(frame);
  for (int i = 0; i < 8; ++i) talk.Say(bytes);  // 1.9 MB
  EXPECT_EQ(world.ends[0]->tensors().size(), 8u);
  talk.Say(bytes);
  EXPECT_EQ(world.ends[0]->tensors().size(), 8u);
  EXPECT_STATUS(world.links[0]->Send(RunOf(1)), absl::StatusCode::kInvalidArgument,
                "a frame must be within the window");
  world.time.clock()->Advance(absl::Seconds(2));
  world.links[0]->Tick();  // it does not read the farewell either
  ASSERT_TRUE(world.time.Run());
  EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kInvalidArgument,
                "a frame must be within the window");
}

// covers: clusters: a link notices, by its owner's clock, a peer that says no HELLO, is silent, or
//   never returns credit
TEST(ByteLinkTest, APeerThatDoesNothingLosesTheLink) {
  {
    World world;
    RawTalk talk(&world);  // half open
    talk.Say(FrameBytes(PsHello()).substr(0, 5));
    world.Pass(0, 9);
    EXPECT_EQ(world.ends[0]->num_losses(), 0);
    world.Pass(0, 2);
    EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kUnavailable,
                  "HELLO must come within 10s, got none");
  }
  {
    World world;
    RawTalk talk(&world);
    talk.Say(FrameBytes(PsHello()));
    const size_t before = talk.peer->received.size();
    world.Pass(0, 12);
    EXPECT_EQ(talk.peer->received.size() - before, FrameBytes(PingFrame{1}).size());  // once
    talk.Say(FrameBytes(PongFrame{1, 2}));
    world.Pass(0, 29);
    EXPECT_EQ(world.ends[0]->num_losses(), 0);
    world.Pass(0, 2);
    EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kUnavailable,
                  "the peer must answer within 30s, got no byte for ");
  }
  // None, and a byte from time to time.
  for (const int64_t returned : {0, 1}) {
    World world;
    RawTalk talk(&world);
    HelloFrame hello = PsHello();
    hello.window_bytes = kMinWindowBytes;
    talk.Say(FrameBytes(hello));
    ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(1 << 20, 1))));  // twice the window
    ASSERT_TRUE(world.time.Run());
    EXPECT_GT(world.links[0]->queued_bytes(), 0);
    for (int i = 0; i < 13 && world.ends[0]->num_losses() == 0; ++i) {
      talk.Say(FrameBytes(ReceivedFrame{returned, {}}));  // it lives
      world.Pass(0, 10);
    }
    EXPECT_STATUS(
        world.ends[0]->lost(), absl::StatusCode::kUnavailable,
        "the peer must read on and return credit for a frame within 2m, got too little for ");
    EXPECT_EQ(world.links[0]->queued_bytes(), 0);
  }
}

// covers: clusters: a step that ends with the loss of a link names the task and its address
TEST(ByteLinkTest, WhatIsSaidOfALinkNamesTheTaskAndWhereItListens) {
  const auto address = [](const std::string& task) -> std::string {
    return task == "/job:ps/replica:0/task:0" ? "ps-0.train:2222" : "";
  };
  // As who has dialled it, and as who heard its name from it.
  for (const bool dialled : {true, false}) {
    World world;
    world.options[0].address = address;
    if (!dialled) world.options[0].peer_task = "";
    world.OpenBoth();
    world.links[1]->Close(absl::UnavailableError("the server has stopped"));
    ASSERT_TRUE(world.time.Run());
    EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kUnavailable,
                  "Link to /job:ps/replica:0/task:0 at ps-0.train:2222 was closed by the peer: the "
                  "server has stopped");
  }
  World world;  // of a task that the cluster does not name
  world.options[1].address = address;
  world.OpenBoth();
  world.links[0]->Close(absl::UnavailableError("the server has stopped"));
  ASSERT_TRUE(world.time.Run());
  EXPECT_STATUS(world.ends[1]->lost(), absl::StatusCode::kUnavailable,
                "Link to /job:worker/replica:0/task:0 was closed by the peer: the server");
}

// covers: clusters: a link tells whether its peer answers, so that one of two can be chosen
TEST(ByteLinkTest, APeerThatIsAskedGivesASignOfLife) {
  World world;
  world.OpenBoth();
  world.links[0]->Ping();
  world.Pass(0, 1);
  EXPECT_EQ(world.links[0]->Unanswered(), absl::ZeroDuration());
  world.way->StopReading(1);
  world.links[0]->Ping();
  world.Pass(0, 2);
  world.links[0]->Ping();  // it was asked
  world.Pass(0, 2);
  EXPECT_GE(world.links[0]->Unanswered(), absl::Seconds(4));
  world.way->GoOnReading(1);
  world.Pass(0, 1);
  EXPECT_EQ(world.links[0]->Unanswered(), absl::ZeroDuration());
}

// covers: clusters: a peer that answers and never reads loses its link, so it holds no tensors for
//   ever
TEST(ByteLinkTest, APeerThatNeverReadsLosesTheLink) {
  World world;
  RawTalk talk(&world);
  talk.Say(FrameBytes(PsHello()));
  world.way->StopReading(1);
  ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(1 << 20, 1))));
  for (int i = 0; i < 11; ++i) {
    talk.Say(FrameBytes(PongFrame{1, 2}));
    world.Pass(0, 10);
  }
  EXPECT_EQ(world.ends[0]->num_losses(), 0);
  talk.Say(FrameBytes(PongFrame{1, 2}));
  world.Pass(0, 11);
  EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kUnavailable,
                "the peer must take what is written within 2m, got one write that has not left");
  EXPECT_EQ(world.links[0]->queued_bytes(), 0);
}

// covers: clusters: a step that is cancelled while it waits for credit leaves no wait behind it
TEST(ByteLinkTest, AStepThatWasDroppedWaitsForNoCredit) {
  World world;
  RawTalk talk(&world);
  HelloFrame hello = PsHello();
  hello.window_bytes = kMinWindowBytes;
  talk.Say(FrameBytes(hello));
  ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(1 << 20, 1))));
  ASSERT_TRUE(world.time.Run());
  ASSERT_OK(world.links[0]->Send(CancelFrame{7, absl::CancelledError("enough")}));
  for (int i = 0; i < 13; ++i) {
    talk.Say(FrameBytes(PongFrame{1, 2}));
    world.Pass(0, 10);
  }
  EXPECT_EQ(world.ends[0]->num_losses(), 0);
}

// covers: clusters: a process that was stopped for an hour, or whose clock was set, keeps its links
TEST(ByteLinkTest, AProcessThatWasStoppedKeepsItsLinks) {
  World world;
  RawTalk talk(&world);
  talk.Say(FrameBytes(PsHello()));
  const size_t before = talk.peer->received.size();
  // Before PING, and after it.
  for (int i = 0; i < 5; ++i) {
    world.time.clock()->Advance(absl::Hours(1));
    world.links[0]->Tick();
    ASSERT_TRUE(world.time.Run());
    EXPECT_EQ(world.ends[0]->num_losses(), 0);
  }
  EXPECT_EQ(talk.peer->received.size() - before, FrameBytes(PingFrame{1}).size());
  talk.Say(FrameBytes(PongFrame{1, 2}));
  world.Pass(0, 29);
  EXPECT_EQ(world.ends[0]->num_losses(), 0);
  world.Pass(0, 2);
  EXPECT_EQ(world.ends[0]->num_losses(), 1);
}

// covers: clusters: what was sent before a peer was refused does not reach it
TEST(ByteLinkTest, APeerThatIsRefusedGetsNothingElse) {
  World world;
  world.options[0].peer_incarnation = 42;
  RawTalk talk(&world);
  ASSERT_OK(world.links[0]->Send(RunOf(7)));
  ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(1, 1))));
  HelloFrame hello = PsHello();
  hello.incarnation = 43;
  talk.Say(FrameBytes(hello));
  EXPECT_TRUE(absl::StrContains(talk.peer->received, "(incarnation 42 expected, 43 found)"));
  EXPECT_FALSE(absl::StrContains(talk.peer->received, FrameBytes(RunOf(7))));
  EXPECT_EQ(world.links[0]->queued_bytes(), 0);
}

// covers: clusters: dead tensors and such without elements are bounded while they wait on a link
TEST(ByteLinkTest, TensorsWithoutElementsAreBounded) {
  World world;
  world.options[0].max_queued_bytes = 100'000;
  world.OpenBoth();
  world.way->StopReading(1);
  SentTensors dead = ResultsOf(7, 0, Tensor());
  dead.tensors[0].is_dead = true;
  Status status;
  int64_t sent = 0;
  for (; status.ok() && sent < 100'000; ++sent) status = world.links[0]->Send(dead);
  EXPECT_STATUS(status, absl::StatusCode::kResourceExhausted, "max_queued_bytes");
  EXPECT_LT(sent, 10'000);
}

// covers: clusters: a message of more large tensors than may arrive at a time goes through: they
//   are announced one after the other
TEST(ByteLinkTest, MoreLargeTensorsThanMayArriveAtATime) {
  World world;
  world.options[1].transfers.max_transfers = 2;
  world.options[1].transfers.max_pending_bytes = 300'000;
  world.OpenBoth();
  SentTensors message = Of(7, 0, Filled(70'000, 0));  // 280 kB
  for (uint32_t i = 1; i < 10; ++i) {
    message.tensors.push_back(message.tensors[0]);
    message.tensors[i].index = i;
  }
  ASSERT_OK(world.links[0]->Send(message));
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(CountLines(*world.ends[1], "refused"), 0);
  const std::vector<SentTensor> got = world.ends[1]->tensors();
  ASSERT_EQ(got.size(), 10u);
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(got[i].index, i);
}

// covers: clusters: RUN, END and CANCEL wait for one write, also behind many small tensors
TEST(ByteLinkTest, MessagesOvertakeManySmallTensors) {
  World world;
  world.OpenBoth();
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_OK(world.links[0]->Send(Of(7, i, Filled(10'000, 1))));  // 4 MB together
  }
  ASSERT_OK(world.links[0]->Send(CancelFrame{8, absl::CancelledError("enough")}));
  while (CountLines(*world.ends[1], "cancel step=8") == 0) {
    ASSERT_LT(world.way->written_bytes(0), uint64_t{1} << 20);
    ASSERT_TRUE(world.time.RunFor(absl::Microseconds(100)));
  }
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(world.ends[1]->tensors().size(), 100u);
}

// covers: clusters: small tensors that never end do not keep a large one from arriving
TEST(ByteLinkTest, SmallTensorsDoNotStopALargeOne) {
  World world;
  world.OpenBoth();
  ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(1 << 19, 1))));  // 2 MiB
  const Tensor small = Filled(10'000, 2);
  uint32_t index = 0;
  int turns = 0;
  for (; turns < 2000 && CountLines(*world.ends[1], "tensors step=7") == 0; ++turns) {
    while (world.links[0]->queued_bytes() < 4'000'000) {
      ASSERT_OK(world.links[0]->Send(Of(8, index++, small)));
    }
    ASSERT_TRUE(world.time.RunFor(absl::Milliseconds(1)));
  }
  EXPECT_LT(turns, 2000);
  EXPECT_GT(CountLines(*world.ends[1], "tensors step=8"), 0);
}

// covers: clusters: a thread that sends on a link writes a few times at most, however much waits
TEST(ByteLinkTest, ASenderDoesNotWriteForOthersForEver) {
  const auto seen = std::make_shared<FastWire::Seen>();
  const auto end = std::make_shared<RecordingEnd>();
  FakeClock clock;
  ByteLinkOptions options;
  options.clock = &clock;
  const std::shared_ptr<ByteLink> link =
      ByteLink::Open(std::make_unique<FastWire>(seen), end, options);
  seen->user->OnBytes(FrameBytes(PsHello()));
  const int before = seen->num_writes;
  ASSERT_OK(link->Send(Of(7, 0, Filled(8 << 20, 1))));  // 32 MiB
  EXPECT_LE(seen->num_writes - before, 10);
  EXPECT_EQ(seen->num_later, 1);
  EXPECT_GT(link->queued_bytes(), 20 << 20);
  int turns = 0;
  for (; link->queued_bytes() > 0 && turns < 1000; ++turns) seen->user->OnWritten();
  EXPECT_GT(turns, 10);
  EXPECT_LT(turns, 1000);
  link->Close(absl::AbortedError("the test is over"));
  link->Close(absl::AbortedError("the test is over"));
  EXPECT_TRUE(seen->is_closed);
  const std::shared_ptr<ByteWire::User> user = std::move(seen->user);
  user->OnClosed(absl::UnavailableError("closed here"), /*by_peer=*/false);
  end->LetGo();
}

// covers: clusters: a link without memory for what leaves is lost: nothing is left out in silence
TEST(ByteLinkTest, AWriteWithoutMemoryLosesTheLink) {
  const auto seen = std::make_shared<FastWire::Seen>();
  const auto end = std::make_shared<RecordingEnd>();
  FakeClock clock;
  ByteLinkOptions options;
  options.clock = &clock;
  const std::shared_ptr<ByteLink> link =
      ByteLink::Open(std::make_unique<FastWire>(seen), end, options);
  seen->user->OnBytes(FrameBytes(PsHello()));
  seen->throws = true;
  EXPECT_OK(link->Send(RunOf(7)));  // it was on its way
  EXPECT_TRUE(seen->is_closed);
  // A step ends with it before OnLost comes, so it is one that passes.
  EXPECT_STATUS(link->Send(RunOf(8)), absl::StatusCode::kUnavailable, "Link: out of memory");
  const std::shared_ptr<ByteWire::User> user = std::move(seen->user);
  user->OnClosed(absl::UnavailableError("closed here"), /*by_peer=*/false);
  EXPECT_STATUS(end->lost(), absl::StatusCode::kResourceExhausted, "Link: out of memory");
  end->LetGo();
}

// covers: clusters: closing a link whose peer does not read ends after the farewell's time
TEST(ByteLinkTest, AFarewellDoesNotWaitForEver) {
  World world;
  world.OpenBoth();
  world.way->StopReading(1);
  ASSERT_OK(world.links[0]->Send(Of(7, 0, Filled(1 << 20, 1))));
  ASSERT_TRUE(world.time.Run());
  world.links[0]->Close(absl::AbortedError("stop"));
  ASSERT_TRUE(world.time.Run());
  EXPECT_EQ(world.ends[0]->num_losses(), 0);
  world.time.clock()->Advance(absl::Seconds(2));
  world.links[0]->Tick();
  ASSERT_TRUE(world.time.Run());
  EXPECT_STATUS(world.ends[0]->lost(), absl::StatusCode::kAborted, "stop");
}

}  // namespace
}  // namespace millrace
