// SPDX-License-Identifier: Apache-2.0
//
// Which tensors a graph's steps let the receiver keep, and when these leave without their bytes: by
// LinkSink and the steps' rendezvous, over a link that writes down what it is given.
#include "distributed/worker/sent_reads.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/kept_tensors.h"
#include "distributed/link/link.h"
#include "distributed/worker/pushed_edges.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/step_rendezvous.h"
#include "distributed/worker/step_table.h"
#include "gtest/gtest.h"
#include "runtime/rendezvous.h"

// covers: clusters: an edge that sends an equal tensor again lets its receiver keep it, and sends
//   it without its bytes once the peer has the whole step that brought it; one that changes keeps
//   nothing

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";
constexpr int64_t kTensorBytes = 8192;

class KeepingLink : public Link {
 public:
  explicit KeepingLink(int64_t max_bytes = int64_t{1} << 20) {
    set_peer({kWorker, 2});
    auto table = std::make_shared<KeptByPeer>(nullptr);
    table->Open(max_bytes);
    set_kept_by_peer(std::move(table));
  }
  Status Send(LinkMessage message) override {
    if (auto* const tensors = std::get_if<SentTensors>(&message)) {
      for (SentTensor& tensor : tensors->tensors) sent[tensor.index] = std::move(tensor);
    }
    return absl::OkStatus();
  }
  void Flush() override {}
  void Acknowledge(int64_t, uint64_t) override {}
  void Ask(absl::AnyInvocable<void()>) override {}
  int64_t queued_bytes() const override { return 0; }
  void Close(const Status&) override {}
  std::map<uint32_t, SentTensor> sent;  // since a step began
};

Tensor TensorOf(float value, int64_t num_bytes = kTensorBytes) {
  Tensor tensor = *Tensor::Allocate(DT_FLOAT, Shape{num_bytes / 4});
  for (float& element : tensor.mutable_flat<float>()) element = value;
  return tensor;
}

class SentReadsTest : public ::testing::Test {
 protected:
  // A partition that sends two tensors to the worker, in no wave.
  SentReadsTest() {
    auto transfers = std::make_shared<TransferTable>();
    auto edges = std::make_shared<StepEdges>();
    StepEdges::Peer peer;
    peer.task = kWorker;
    peer.fingerprint = 17;
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string key = RendezvousKey::Make(absl::StrCat(kPs, "/device:CPU:0"), 42,
                                                  absl::StrCat(kWorker, "/device:CPU:0"),
                                                  absl::StrCat("edge", i), 0, 0);
      peer.numbers.push_back(transfers->Add(*RendezvousKey::Parse(key), absl::StrCat("send", i)));
      peer.wire_keys.push_back(key);
      peer.immediate.push_back(false);
      peer.groups.push_back(StepEdges::kNoGroup);
    }
    edges->sends.push_back(std::move(peer));
    edges->num_sends = 2;
    edges->is_sent.resize(2, true);
    edges->transfers = std::move(transfers);
    edges_ = std::move(edges);
  }

  // A step that has not sent anything yet.
  std::shared_ptr<StepRendezvous> Begin(bool is_traced = false) {
    link_->sent.clear();
    const auto step = table_->Start(++last_step_, edges_);
    EXPECT_OK(step.status());
    if (!step.ok()) return nullptr;
    (*step)->Push(edges_->sends[0], link_.get(),
                  std::make_shared<LinkSink>(link_, *step, edges_, &edges_->sends[0], nullptr,
                                             reads_, is_traced));
    return *step;
  }
  // "whole", "keep 3", "kept 3": how edge 0 sends the value; edge 1 sends a small one.
  std::string Send(StepRendezvous* step, const Tensor& value, bool is_dead = false) {
    EXPECT_OK(step->Send(Transfer(0), value, is_dead));
    EXPECT_OK(step->Send(Transfer(1), Tensor::Scalar(1.0f), false));
    EXPECT_EQ(link_->sent.size(), 2u);
    EXPECT_EQ(link_->sent[1].keep_number, 0u) << "small tensors are not kept";
    const SentTensor& sent = link_->sent[0];
    EXPECT_EQ(sent.is_dead, is_dead);
    EXPECT_EQ(sent.value.SharesBufferWith(value), !is_dead);
    if (sent.keep_number == 0) return "whole";
    return absl::StrCat(sent.is_kept ? "kept " : "keep ", sent.keep_number);
  }
  // A whole step, which has ended well.
  std::string Step(const Tensor& value, bool is_traced = false) {
    const auto step = Begin(is_traced);
    if (step == nullptr) return "none";
    std::string how = Send(step.get(), value);
    table_->End(step.get(), absl::OkStatus());
    return how;
  }
  // The peer has so many tensors of the last step.
  void Receive(uint64_t tensors = 2) {
    table_->Received(last_step_, kWorker, link_.get(), tensors);
  }
  std::string ReceivedStep(const Tensor& value) {
    std::string how = Step(value);
    Receive();
    return how;
  }
  KeptByPeer* kept() { return link_->kept_by_peer().get(); }

  FakeClock clock_;
  std::shared_ptr<StepTable> table_ = std::make_shared<StepTable>(&clock_);
  std::shared_ptr<const StepEdges> edges_;
  std::shared_ptr<SentReads> reads_ = std::make_shared<SentReads>(2);
  std::shared_ptr<KeepingLink> link_ = std::make_shared<KeepingLink>();
  int64_t last_step_ = 0;
};

TEST_F(SentReadsTest, WhatLeavesAgainIsKeptAndDoesNotTravel) {
  const Tensor value = TensorOf(1);
  EXPECT_EQ(ReceivedStep(value), "whole");
  EXPECT_EQ(ReceivedStep(value), "keep 1");
  for (int i = 0; i < 300; ++i) ASSERT_EQ(ReceivedStep(value), "kept 1");
  EXPECT_EQ(kept()->counts()->kept_tensors.load(), 300);
  EXPECT_GE(kept()->bytes(), kTensorBytes);
  // It has saved something, so what comes in its place is kept at once.
  const Tensor next = TensorOf(2);
  EXPECT_EQ(ReceivedStep(next), "keep 2");
  EXPECT_EQ(kept()->TakeForgotten(10), std::vector<uint64_t>{1});
  EXPECT_TRUE(value.BufferIsUnique());
  EXPECT_EQ(ReceivedStep(next), "kept 2");
  // The graph is gone.
  reads_ = std::make_shared<SentReads>(2);
  link_->sent.clear();
  EXPECT_EQ(kept()->TakeForgotten(10), std::vector<uint64_t>{2});
  EXPECT_TRUE(next.BufferIsUnique());
  EXPECT_EQ(kept()->bytes(), 0);
}

TEST_F(SentReadsTest, ATensorIsNamedOnceThePeerHasTheWholeStepThatBroughtIt) {
  const Tensor value = TensorOf(1);
  EXPECT_EQ(ReceivedStep(value), "whole");
  EXPECT_EQ(Step(value), "keep 1");
  const int64_t brings = last_step_;
  EXPECT_EQ(Step(value), "whole");
  // The receipt of a step that came later says nothing of the one before.
  Receive();
  EXPECT_EQ(ReceivedStep(value), "whole");
  table_->Received(brings, kWorker, link_.get(), 1);
  EXPECT_EQ(ReceivedStep(value), "whole") << "one of two";
  table_->Received(brings, kWorker, link_.get(), 1);
  EXPECT_EQ(ReceivedStep(value), "kept 1");
}

// FORGET must not come before what names the number.
TEST_F(SentReadsTest, ANumberIsForgottenWhenNoStepThatNamesItIsUnderWay) {
  const Tensor first = TensorOf(1), second = TensorOf(2);
  for (int i = 0; i < 2; ++i) ReceivedStep(first);
  EXPECT_EQ(Step(first), "kept 1");
  const int64_t names = last_step_;
  EXPECT_EQ(ReceivedStep(second), "keep 2");
  EXPECT_EQ(kept()->forgotten_bytes(), 0);
  EXPECT_FALSE(first.BufferIsUnique());
  table_->Received(names, kWorker, link_.get(), 2);
  EXPECT_EQ(kept()->TakeForgotten(10), std::vector<uint64_t>{1});
  EXPECT_TRUE(first.BufferIsUnique());
}

// Each step sends its own value: whole, or by a number that stands for it.
TEST_F(SentReadsTest, StepsThatOverlapNameTheirOwnTensors) {
  const Tensor first = TensorOf(1), second = TensorOf(2);
  for (int i = 0; i < 2; ++i) ReceivedStep(first);
  const auto older = Begin();
  const auto newer = Begin();
  ASSERT_TRUE(older != nullptr && newer != nullptr);
  EXPECT_EQ(Send(older.get(), first), "kept 1");
  link_->sent.clear();
  EXPECT_EQ(Send(newer.get(), second), "keep 2");
  table_->End(older.get(), absl::OkStatus());
  table_->End(newer.get(), absl::OkStatus());
  // One that read before comes after.
  EXPECT_EQ(Step(first), "whole");
}

TEST_F(SentReadsTest, WhatAFailedStepBroughtIsNotNamed) {
  const Tensor value = TensorOf(1);
  EXPECT_EQ(ReceivedStep(value), "whole");
  auto step = Begin();
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(Send(step.get(), value), "keep 1");
  table_->End(step.get(), absl::AbortedError("a kernel failed"));
  step = nullptr;
  EXPECT_EQ(ReceivedStep(value), "whole");
  EXPECT_EQ(kept()->TakeForgotten(10), std::vector<uint64_t>{1});
  EXPECT_EQ(ReceivedStep(value), "keep 2");
  EXPECT_EQ(ReceivedStep(value), "kept 2");
  // A step that fails with a tensor that is kept takes nothing from others.
  step = Begin();
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(Send(step.get(), value), "kept 2");
  table_->End(step.get(), absl::AbortedError("a kernel failed"));
  step = nullptr;
  EXPECT_EQ(ReceivedStep(value), "kept 2");
}

TEST_F(SentReadsTest, ANewLinkBeginsEmpty) {
  const Tensor value = TensorOf(1);
  for (int i = 0; i < 2; ++i) ReceivedStep(value);
  const auto lost = link_;
  lost->kept_by_peer()->Close();
  EXPECT_EQ(lost->kept_by_peer()->bytes(), 0);
  link_ = std::make_shared<KeepingLink>();
  const Tensor other = TensorOf(2);
  EXPECT_EQ(kept()->Keep(other)->number(), 1u);
  EXPECT_EQ(ReceivedStep(value), "whole");
  EXPECT_EQ(ReceivedStep(value), "keep 2");
  EXPECT_EQ(ReceivedStep(value), "kept 2");
  // One by which nothing is kept.
  class OtherLink : public KeepingLink {
   public:
    OtherLink() { set_kept_by_peer(nullptr); }
  };
  link_ = std::make_shared<OtherLink>();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ReceivedStep(value), "whole");
}

// As in training: it lies where it lay and is another one, or lies elsewhere and is equal.
TEST_F(SentReadsTest, WhatChangesInEachStepIsNotKept) {
  Tensor in_place = TensorOf(1);
  const void* const place = in_place.raw_data();
  for (int i = 0; i < 300; ++i) {
    for (float& element : in_place.mutable_flat<float>()) element += 1;
    ASSERT_EQ(in_place.raw_data(), place) << "nobody refers to it beyond its step";
    ASSERT_EQ(ReceivedStep(in_place), "whole");
    link_->sent.clear();
  }
  Tensor turns[] = {TensorOf(1), TensorOf(1)};
  for (int i = 0; i < 300; ++i) ASSERT_EQ(ReceivedStep(turns[i % 2]), "whole");
  EXPECT_EQ(kept()->bytes(), 0);
  EXPECT_EQ(kept()->forgotten_bytes(), 0);
}

// The first and the last element are looked at, too.
TEST_F(SentReadsTest, AChangeAtEitherEndIsSeen) {
  for (const bool at_end : {false, true}) {
    reads_ = std::make_shared<SentReads>(2);
    Tensor value = TensorOf(1, kTensorBytes + 4);
    for (int i = 0; i < 4; ++i) {
      const auto elements = value.mutable_flat<float>();
      (at_end ? elements.back() : elements.front()) += 1;
      ASSERT_EQ(ReceivedStep(value), "whole");
      link_->sent.clear();
    }
  }
}

// A guess that saves nothing is not made again for a hundred steps, and one that was right is found
// by then.
TEST_F(SentReadsTest, AnEdgeThatSavesNothingRests) {
  int keeps = 0;
  for (int i = 0; i < 200; ++i) {
    const Tensor value = TensorOf(static_cast<float>(i));
    for (int k = 0; k < 2; ++k) {
      const std::string how = ReceivedStep(value);
      EXPECT_NE(how.substr(0, 4), "kept") << "of two sends none is named";
      keeps += how == "whole" ? 0 : 1;
    }
    link_->sent.clear();
  }
  // 400 sends.
  EXPECT_GE(keeps, 1);
  EXPECT_LE(keeps, 5);
  const Tensor value = TensorOf(-1);
  int whole = 0;
  while (ReceivedStep(value) == "whole" && whole < 1000) ++whole;
  EXPECT_LE(whole, static_cast<int>(SentReads::kLooks + SentReads::kRest));
  EXPECT_EQ(ReceivedStep(value).substr(0, 5), "kept ");
}

TEST_F(SentReadsTest, TracedStepsDeadAndSmallTensorsKeepNothing) {
  const Tensor value = TensorOf(1), small = TensorOf(1, kMinKeptBytes - 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Step(value, /*is_traced=*/true), "whole");
    Receive();
    EXPECT_EQ(ReceivedStep(small), "whole");
  }
  for (int i = 0; i < 2; ++i) ReceivedStep(value);
  const auto step = Begin();
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(Send(step.get(), Tensor(), /*is_dead=*/true), "whole");
  table_->End(step.get(), absl::OkStatus());
  Receive();
  EXPECT_EQ(ReceivedStep(value), "kept 1");
  // A small one takes its place.
  EXPECT_EQ(ReceivedStep(small), "whole");
  EXPECT_EQ(kept()->bytes(), 0);
}

// There is room for one and a half.
TEST_F(SentReadsTest, WhatIsReplacedMakesRoom) {
  const Tensor first = TensorOf(1), second = TensorOf(2);
  link_ = std::make_shared<KeepingLink>(static_cast<int64_t>(first.buffer()->size()) * 3 / 2);
  EXPECT_EQ(ReceivedStep(first), "whole");
  EXPECT_EQ(ReceivedStep(first), "keep 1");
  EXPECT_EQ(ReceivedStep(first), "kept 1");
  EXPECT_EQ(ReceivedStep(second), "keep 2");
  EXPECT_EQ(ReceivedStep(second), "kept 2");
}

// As of a signature that nobody calls any more; when it is called again it begins anew.
TEST_F(SentReadsTest, AnEdgeThatSendsNothingForLongLetsGo) {
  const Tensor value = TensorOf(1);
  for (int i = 0; i < 3; ++i) ReceivedStep(value);
  for (int i = 0; i < KeptByPeer::kMaxIdle; ++i) kept()->Age();
  link_->sent.clear();
  EXPECT_TRUE(value.BufferIsUnique());
  EXPECT_EQ(kept()->TakeForgotten(10), std::vector<uint64_t>{1});
  EXPECT_EQ(ReceivedStep(value), "whole");
  EXPECT_EQ(ReceivedStep(value), "keep 2");
  EXPECT_EQ(ReceivedStep(value), "kept 2");
}

TEST_F(SentReadsTest, WithoutRoomTensorsTravel) {
  link_ = std::make_shared<KeepingLink>(kTensorBytes / 2);
  const Tensor value = TensorOf(1);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(ReceivedStep(value), "whole");
  EXPECT_EQ(kept()->bytes(), 0);
}

}  // namespace
}  // namespace millrace
