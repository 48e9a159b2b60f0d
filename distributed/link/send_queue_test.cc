// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/send_queue.h"

#include <cstdint>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/link.h"
#include "distributed/link/testing/frame_text.h"
#include "gtest/gtest.h"

// covers: clusters: messages without tensors pass tensors that wait for credit or for room, large
//   tensors wait for small ones, and a step that has ended takes what waits of it along

namespace millrace {
namespace {

const absl::Time kStart = absl::UnixEpoch();

// Frames by their first two words: "RUN step=7".
class Frames : public FrameReader::Owner {
 public:
  Status OnFrame(LinkFrame frame, int64_t) override {
    const std::vector<std::string> words = absl::StrSplit(FrameText(frame), ' ');
    names.push_back(absl::StrCat(words[0], " ", words[1]));
    return absl::OkStatus();
  }
  StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame&) override { return absl::Span<char>(); }

  std::vector<std::string> names;
};

// What leaves in one write.
std::vector<std::string> NextWrite(SendQueue* queue, absl::Time now = kStart) {
  ByteChain batch;
  queue->Fill(now, &batch);
  Frames frames;
  FrameReader reader(&frames);
  EXPECT_OK(reader.Read(batch.ToString()));
  EXPECT_OK(reader.End());
  return frames.names;
}

std::string Text(const std::vector<std::string>& names) { return absl::StrJoin(names, ", "); }

void AddRun(SendQueue* queue, int64_t step_id) {
  RunFrame run;
  run.step_id = step_id;
  std::list<SendQueue::Message> message;
  message.emplace_back().bytes = FrameBytes(run);
  queue->Add(&message);
  EXPECT_TRUE(message.empty());
}

// Floats of a step, of so many bytes.
void AddTensor(SendQueue* queue, int64_t step_id, int64_t num_bytes,
               TensorsPurpose purpose = TensorsPurpose::kEdges) {
  SentTensors message;
  message.step_id = step_id;
  message.purpose = purpose;
  message.tensors.emplace_back().value = *Tensor::Zeros(DT_FLOAT, Shape{num_bytes / 4});
  OutgoingTensors outgoing(message, /*pool=*/nullptr, /*counts=*/nullptr);
  ASSERT_OK(outgoing.Next());
  ASSERT_TRUE(outgoing.is_done());
  int64_t cost = 0;
  for (const OutgoingFrame& frame : outgoing.frames) cost += frame.cost();
  for (const OutgoingTransfer& transfer : outgoing.transfers) cost += transfer.cost();
  queue->Add(&outgoing, cost);
}

TEST(SendQueueTest, AllButLargeTensorsLeavesAsItWasSent) {
  SendQueue queue;
  ASSERT_OK(queue.OpenCredit(kMinWindowBytes));
  AddRun(&queue, 1);
  AddTensor(&queue, 2, 100);
  AddTensor(&queue, 3, 400'000);  // two chunks, of which the first one fills a write
  AddRun(&queue, 4);
  AddTensor(&queue, 5, 100);
  EXPECT_GT(queue.message_bytes(), 0);
  EXPECT_GT(queue.tensor_bytes(), 400'000);
  EXPECT_EQ(queue.bounded_bytes(), 0);
  EXPECT_EQ(Text(NextWrite(&queue)),
            "RUN step=1, TENSORS step=2, RUN step=4, TENSORS step=5, TENSORS step=3, "
            "CHUNK transfer=1");
  EXPECT_EQ(Text(NextWrite(&queue)), "CHUNK transfer=1");
  EXPECT_EQ(Text(NextWrite(&queue)), "");
  EXPECT_EQ(queue.message_bytes(), 0);
  EXPECT_EQ(queue.tensor_bytes(), 0);
}

TEST(SendQueueTest, PartsThatWaitForAnAnswerKeepNothingElseBack) {
  SendQueue queue(/*bounds_parts=*/true);
  ASSERT_OK(queue.OpenCredit(kDefaultWindowBytes));
  AddTensor(&queue, 1, 4 << 20);
  EXPECT_EQ(Text(NextWrite(&queue)), "TENSORS step=1, CHUNK transfer=1");
  EXPECT_FALSE(queue.NeedsMark());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Text(NextWrite(&queue)), "CHUNK transfer=1");
    if (queue.NeedsMark()) queue.Mark(kStart);
  }
  EXPECT_EQ(Text(NextWrite(&queue, kStart + absl::Seconds(1))), "");
  EXPECT_EQ(queue.WaitedForCredit(kStart + absl::Seconds(3)), absl::Seconds(2));
  AddTensor(&queue, 2, 100);
  AddRun(&queue, 3);
  EXPECT_EQ(Text(NextWrite(&queue)), "TENSORS step=2, RUN step=3");
  queue.Arrived(1, kStart + absl::Seconds(4));
  EXPECT_EQ(Text(NextWrite(&queue, kStart + absl::Seconds(4))), "CHUNK transfer=1");
  EXPECT_EQ(queue.WaitedForCredit(kStart + absl::Seconds(5)), absl::ZeroDuration());
  // The step is over.
  while (!NextWrite(&queue, kStart + absl::Seconds(5)).empty()) {
  }
  EXPECT_GT(queue.WaitedForCredit(kStart + absl::Seconds(6)), absl::ZeroDuration());
  SendQueue::Dropped dropped;
  queue.DropStep(1, &dropped);
  EXPECT_EQ(queue.WaitedForCredit(kStart + absl::Seconds(7)), absl::ZeroDuration());
}

// Frames of tensors that fill each write do not keep a large tensor from leaving.
TEST(SendQueueTest, AWriteWithoutRoomForAChunkIsFollowedByOneThatBeginsWithIt) {
  SendQueue queue;
  ASSERT_OK(queue.OpenCredit(kDefaultWindowBytes));
  AddTensor(&queue, 1, 400'000);
  for (int i = 0; i < 10; ++i) AddTensor(&queue, 2, OutgoingTensors::kMaxWholeBytes);
  const std::vector<std::string> first = NextWrite(&queue);
  ASSERT_FALSE(first.empty());
  for (const std::string& name : first) EXPECT_EQ(name, "TENSORS step=2");
  const std::vector<std::string> second = NextWrite(&queue);
  ASSERT_GE(second.size(), 2u);
  EXPECT_EQ(second[0], "TENSORS step=1");
  EXPECT_EQ(second[1], "CHUNK transfer=1");
}

TEST(SendQueueTest, MessagesPassTensorsWithoutCredit) {
  SendQueue queue;
  ASSERT_OK(queue.OpenCredit(kMinWindowBytes));
  constexpr int kFrames = 40;  // more than the window
  static_assert(kFrames * OutgoingTensors::kMaxWholeBytes > kMinWindowBytes);
  for (int i = 0; i < kFrames; ++i) AddTensor(&queue, 1, OutgoingTensors::kMaxWholeBytes);
  int left = 0;
  for (;;) {
    const std::vector<std::string> names = NextWrite(&queue);
    if (names.empty()) break;
    left += static_cast<int>(names.size());
  }
  EXPECT_GT(left, 0);
  EXPECT_LE(left, kMinWindowBytes / OutgoingTensors::kMaxWholeBytes);
  EXPECT_EQ(queue.WaitedForCredit(kStart + absl::Seconds(5)), absl::Seconds(5));
  AddTensor(&queue, 2, 400'000);
  AddRun(&queue, 3);
  EXPECT_EQ(Text(NextWrite(&queue)), "RUN step=3");
  ASSERT_OK(queue.ReturnCredit(OutgoingTensors::kMaxWholeBytes));
  EXPECT_EQ(Text(NextWrite(&queue)), "TENSORS step=1");
  EXPECT_FALSE(queue.ReturnCredit(2 * kMinWindowBytes).ok());
}

TEST(SendQueueTest, AStepThatHasEndedTakesItsTensorsAlongButNoReport) {
  SendQueue queue;
  ASSERT_OK(queue.OpenCredit(kMinWindowBytes));
  AddTensor(&queue, 7, 100);
  AddTensor(&queue, 7, 400'000);
  AddTensor(&queue, 7, 200, TensorsPurpose::kReport);
  AddTensor(&queue, 8, 100);
  AddRun(&queue, 7);
  EXPECT_GE(queue.bounded_bytes(), 200);
  SendQueue::Dropped dropped;
  queue.DropStep(7, &dropped);
  EXPECT_EQ(dropped.frames.size(), 1u);
  EXPECT_EQ(dropped.transfers.size(), 1u);
  EXPECT_TRUE(dropped.messages.empty());
  EXPECT_EQ(Text(NextWrite(&queue)), "TENSORS step=7, TENSORS step=8, RUN step=7");
  EXPECT_EQ(queue.tensor_bytes(), 0);
  EXPECT_EQ(queue.bounded_bytes(), 0);
  // All of it, as a link that is lost.
  AddTensor(&queue, 9, 100);
  AddRun(&queue, 9);
  queue.DropTensors(&dropped);
  queue.DropMessages(&dropped);
  EXPECT_EQ(dropped.frames.size(), 2u);
  EXPECT_EQ(dropped.messages.size(), 1u);
  EXPECT_EQ(queue.tensor_bytes() + queue.message_bytes(), 0);
  EXPECT_EQ(Text(NextWrite(&queue)), "");
}

}  // namespace
}  // namespace millrace
