// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/in_loop_edges.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/link/link.h"
#include "distributed/worker/parked_bytes.h"
#include "distributed/worker/pushed_edges.h"
#include "distributed/worker/pushed_message.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/step_rendezvous.h"
#include "distributed/worker/step_table.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "runtime/rendezvous.h"
#include "runtime/step_loans.h"

// covers: clusters: a tensor of a loop is pushed as it is sent, waits for its iteration within a
//   bound, and is acknowledged when that has it; errors, lost links and cancellations reach an
//   iteration that waits

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";
constexpr uint64_t kFrame = 77;

// Writes down what is sent and acknowledged by it: "sent 0 in 77:4", "taken 1", "flush", "cancel".
class LoopLink : public Link {
 public:
  Status Send(LinkMessage message) override {
    if (std::holds_alternative<SentTensors>(message) && before_tensors) {
      std::exchange(before_tensors, nullptr)();
    }
    MutexLock lock(&mu_);
    if (const auto* const tensors = std::get_if<SentTensors>(&message)) {
      for (const SentTensor& t : tensors->tensors) {
        events_.push_back(
            absl::StrCat("sent ", t.index, t.is_dead ? " dead" : "",
                         t.in_loop ? absl::StrCat(" in ", t.frame_id, ":", t.iteration) : ""));
      }
      last = *tensors;
    } else if (std::holds_alternative<CancelFrame>(message)) {
      events_.push_back("cancel");
    }
    return sends;
  }
  void Flush() override { Write("flush"); }
  void Acknowledge(int64_t, uint64_t tensors) override {
    Write(absl::StrCat("taken ", tensors));
    num_taken.fetch_add(static_cast<int64_t>(tensors), std::memory_order_relaxed);
  }
  void Ask(absl::AnyInvocable<void()>) override {}
  int64_t queued_bytes() const override { return 0; }
  void Close(const Status&) override {}
  void HoldCredit(int64_t bytes) override { held.fetch_add(bytes); }
  void LetGoOfCredit(int64_t bytes) override { held.fetch_sub(bytes); }

  std::vector<std::string> TakeEvents() {
    MutexLock lock(&mu_);
    return std::exchange(events_, {});
  }
  std::atomic<int64_t> held{0}, num_taken{0};
  Status sends;                          // what Send returns
  std::function<void()> before_tensors;  // called once, before tensors are sent
  SentTensors last;                      // what was sent last

 private:
  void Write(std::string event) {
    MutexLock lock(&mu_);
    events_.push_back(std::move(event));
  }
  Mutex mu_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mu_);
};

using Events = std::vector<std::string>;

SentTensor Round(int64_t iteration, Tensor value = Tensor::Scalar(1.0f)) {
  SentTensor tensor;
  tensor.is_dead = !value.has_value();
  tensor.value = std::move(value);
  tensor.in_loop = true;
  tensor.frame_id = kFrame;
  tensor.iteration = iteration;
  return tensor;
}

// What a _Recv got: "2", "dead", or its error.
Rendezvous::DoneCallback Into(std::string* got) {
  return [got](const Status& status, Tensor value, bool is_dead) {
    *got += !status.ok() ? status.ToString()
            : is_dead    ? "dead"
                         : absl::StrCat(value.scalar<float>());
  };
}

class InLoopEdgesTest : public ::testing::Test {
 protected:
  static Transfer Of(int64_t iteration) { return {3, "", kFrame, iteration}; }

  const std::shared_ptr<LoopLink> link_ = std::make_shared<LoopLink>();
  const std::shared_ptr<ParkedBytes> parked_ = std::make_shared<ParkedBytes>(10'000, 50'000);
  InLoopEdges edges_{1, parked_};
};

TEST_F(InLoopEdgesTest, ATensorMeetsItsIterationWhicheverIsFirst) {
  ASSERT_OK(edges_.Came(3, Round(1, Tensor::Scalar(2.0f)), link_, nullptr));
  ASSERT_OK(edges_.Came(3, Round(2, Tensor()), link_, nullptr));
  EXPECT_EQ(link_->TakeEvents(), Events());
  EXPECT_EQ(parked_->bytes(), 4 + 2 * PushedMessage::kOverheadBytes);
  std::string third, other, dead, first;
  edges_.RecvAsync(Of(3), Into(&third));
  edges_.RecvAsync({4, "", kFrame, 1}, Into(&other));
  edges_.RecvAsync(Of(2), Into(&dead));
  edges_.RecvAsync(Of(1), Into(&first));
  EXPECT_EQ(dead, "dead");
  EXPECT_EQ(first, "2");
  EXPECT_EQ(third + other, "");
  EXPECT_EQ(link_->TakeEvents(), (Events{"taken 1", "taken 1"}));
  EXPECT_EQ(parked_->bytes(), 0);
  ASSERT_OK(edges_.Came(3, Round(3, Tensor::Scalar(5.0f)), link_, nullptr));
  EXPECT_EQ(third, "5");
  EXPECT_EQ(link_->TakeEvents(), (Events{"taken 1"}));
  EXPECT_TRUE(edges_.End(absl::AbortedError("over")));
  EXPECT_NE(other.find("over"), std::string::npos);
}

TEST_F(InLoopEdgesTest, TheEndDropsWhatIsKeptAndTellsThoseThatWaitNowAndLater) {
  for (const int64_t iteration : {1, 2}) {
    ASSERT_OK(edges_.Came(3, Round(iteration), link_, nullptr));
  }
  std::string waits, late;
  edges_.RecvAsync(Of(9), Into(&waits));
  EXPECT_TRUE(edges_.End(absl::UnavailableError("Socket closed")));
  EXPECT_FALSE(edges_.End(absl::AbortedError("again")));
  EXPECT_EQ(waits, "UNAVAILABLE: Socket closed");
  EXPECT_EQ(parked_->bytes(), 0);
  EXPECT_EQ(link_->TakeEvents(), (Events{"taken 1", "taken 1", "flush"}));
  edges_.RecvAsync(Of(1), Into(&late));
  EXPECT_EQ(late, "UNAVAILABLE: Socket closed");
  EXPECT_OK(edges_.Came(3, Round(4), link_, nullptr));
  EXPECT_EQ(link_->TakeEvents(), (Events{"taken 1", "flush"}));
  EXPECT_EQ(parked_->bytes(), 0);
}

TEST_F(InLoopEdgesTest, WhatIsThereTwiceIsAnError) {
  ASSERT_OK(edges_.Came(3, Round(1), link_, nullptr));
  EXPECT_STATUS(edges_.Came(3, Round(1), link_, nullptr), absl::StatusCode::kInternal,
                "must come once, got that of iteration 1 of frame 77 twice");
  EXPECT_EQ(link_->TakeEvents(), (Events{"taken 1"}));
  std::string first, second;
  edges_.RecvAsync(Of(2), Into(&first));
  edges_.RecvAsync(Of(2), Into(&second));
  EXPECT_NE(second.find("must be received once"), std::string::npos) << second;
  EXPECT_TRUE(edges_.End(absl::AbortedError("over")));
  EXPECT_EQ(first, "ABORTED: over");
}

// 5,000 bytes each, as they are counted: two are within the bound, and 30 more in the room for what
// holds back credit, which is three windows of 50,000.
TEST_F(InLoopEdgesTest, BeyondTheBoundCreditIsHeldUntilAnIterationTakesIt) {
  const auto large = [] {
    return *Tensor::Zeros(DT_INT8, Shape{5'000 - PushedMessage::kOverheadBytes});
  };
  for (int64_t i = 0; i < 32; ++i) ASSERT_OK(edges_.Came(3, Round(i, large()), link_, nullptr));
  EXPECT_EQ(link_->held, 150'000);
  EXPECT_STATUS(edges_.Came(3, Round(32, large()), link_, nullptr),
                absl::StatusCode::kResourceExhausted, "max_parked_bytes");
  EXPECT_EQ(link_->TakeEvents(), (Events{"taken 1"}));
  // One that was within the bound, in whose place the first one comes that was not; one that held
  // credit itself.
  const auto ignore = [](const Status& status, Tensor, bool) { EXPECT_OK(status); };
  edges_.RecvAsync(Of(0), ignore);
  EXPECT_EQ(link_->held, 145'000);
  edges_.RecvAsync(Of(31), ignore);
  EXPECT_EQ(link_->held, 140'000);
  // Those that were parked together hold together, until the last one of them is taken.
  auto held = std::make_shared<const HeldCredit>(link_, 1'000);
  ASSERT_OK(edges_.Came(3, Round(33, large()), link_, held));
  held = nullptr;
  EXPECT_EQ(link_->held, 141'000);
  edges_.End(absl::AbortedError("over"));
  EXPECT_EQ(link_->held, 0);
  EXPECT_EQ(parked_->bytes(), 0);
}

// 5,000 bytes each, as above: 32 have room. A job tries again what is Unavailable.
TEST_F(InLoopEdgesTest, ALoopThatHasMostOfTheRoomItselfIsNotToldToTryAgain) {
  const auto large = [] {
    return *Tensor::Zeros(DT_INT8, Shape{5'000 - PushedMessage::kOverheadBytes});
  };
  InLoopEdges other(2, parked_);
  for (int64_t i = 0; i < 20; ++i) ASSERT_OK(edges_.Came(3, Round(i, large()), link_, nullptr));
  for (int64_t i = 0; i < 12; ++i) ASSERT_OK(other.Came(3, Round(i, large()), link_, nullptr));
  EXPECT_STATUS(edges_.Came(3, Round(20, large()), link_, nullptr),
                absl::StatusCode::kResourceExhausted, "max_parked_bytes");
  EXPECT_STATUS(other.Came(3, Round(12, large()), link_, nullptr), absl::StatusCode::kUnavailable,
                "max_parked_bytes");
  // What was taken counts no more: 15 are less than half of it.
  const auto ignore = [](const Status& status, Tensor, bool) { EXPECT_OK(status); };
  for (int64_t i = 0; i < 5; ++i) edges_.RecvAsync(Of(i), ignore);
  for (int64_t i = 12; i < 17; ++i) ASSERT_OK(other.Came(3, Round(i, large()), link_, nullptr));
  EXPECT_STATUS(edges_.Came(3, Round(21, large()), link_, nullptr), absl::StatusCode::kUnavailable,
                "max_parked_bytes");
  edges_.End(absl::AbortedError("over"));
  other.End(absl::AbortedError("over"));
  EXPECT_EQ(parked_->bytes(), 0);
  EXPECT_EQ(link_->held, 0);
}

// Whoever takes in order, as iterations do, gives back as much credit with each tensor, from the
// first one on: a loop that runs ahead goes on, and the two that are kept last hold none.
TEST_F(InLoopEdgesTest, ALoopThatRunsAheadGetsItsCreditBackAsIterationsTakeInOrder) {
  const auto large = [] {
    return *Tensor::Zeros(DT_INT8, Shape{5'000 - PushedMessage::kOverheadBytes});
  };
  const auto ignore = [](const Status& status, Tensor, bool) { EXPECT_OK(status); };
  for (int64_t i = 0; i < 12; ++i) ASSERT_OK(edges_.Came(3, Round(i, large()), link_, nullptr));
  EXPECT_EQ(link_->held, 50'000);
  // Far beyond the bound, one for one.
  for (int64_t i = 0; i < 100; ++i) {
    edges_.RecvAsync(Of(i), ignore);
    EXPECT_EQ(link_->held, 45'000) << i;
    ASSERT_OK(edges_.Came(3, Round(12 + i, large()), link_, nullptr));
    EXPECT_EQ(link_->held, 50'000) << i;
  }
  for (int64_t i = 100; i < 110; ++i) edges_.RecvAsync(Of(i), ignore);
  EXPECT_EQ(link_->held, 0);
  EXPECT_EQ(parked_->bytes(), 10'000);
  // One that is larger than the bound holds none once it is alone.
  ASSERT_OK(edges_.Came(3, Round(112, *Tensor::Zeros(DT_INT8, Shape{20'000})), link_, nullptr));
  EXPECT_GT(link_->held, 20'000);
  edges_.RecvAsync(Of(110), ignore);
  EXPECT_GT(link_->held, 20'000);
  edges_.RecvAsync(Of(111), ignore);
  EXPECT_EQ(link_->held, 0);
  edges_.RecvAsync(Of(112), ignore);
  EXPECT_EQ(parked_->bytes(), 0);
}

// Each wait ends once, and each tensor is acknowledged once, whoever is first.
TEST_F(InLoopEdgesTest, TensorsIterationsAndTheEndMayRace) {
  constexpr int64_t kRounds = 20, kTensors = 50;
  for (int64_t round = 0; round < kRounds; ++round) {
    const auto parked = std::make_shared<ParkedBytes>(1 << 20);
    const auto link = std::make_shared<LoopLink>();
    InLoopEdges edges(1, parked);
    std::atomic<int64_t> ended{0};
    std::thread sends([&] {
      for (int64_t i = 0; i < kTensors; ++i) EXPECT_OK(edges.Came(3, Round(i), link, nullptr));
    });
    std::thread receives([&] {
      for (int64_t i = kTensors - 1; i >= 0; --i) {
        edges.RecvAsync(Of(i), [&](const Status&, Tensor, bool) { ended.fetch_add(1); });
      }
    });
    for (int64_t i = 0; i < round; ++i) std::this_thread::yield();
    edges.End(absl::CancelledError("by its master"));
    sends.join();
    receives.join();
    EXPECT_EQ(ended, kTensors);
    EXPECT_EQ(link->num_taken, kTensors);
    EXPECT_EQ(parked->bytes(), 0);
  }
}

// --- In steps ------------------------------------------------------------------------------------

tensorflow::NodeDef EndOf(const std::string& name, bool send, const std::string& edge) {
  tensorflow::NodeDef node;
  node.set_name(name);
  node.set_op(send ? "_Send" : "_Recv");
  const auto set = [&](const char* attr, const auto& value) {
    SetAttr(value, &(*node.mutable_attr())[attr]);
  };
  set("tensor_name", edge);
  set("send_device", absl::StrCat(send ? kPs : kWorker, "/device:CPU:0"));
  set("recv_device", absl::StrCat(send ? kWorker : kPs, "/device:CPU:0"));
  set("send_device_incarnation", int64_t{42});
  set("client_terminated", false);
  return node;
}

// The ps sends s and receives r in a loop; with `plain` it sends p and receives q in none as well.
class LoopStepsTest : public ::testing::Test {
 protected:
  LoopStepsTest() { edges_ = EdgesOf(/*plain=*/false); }

  std::shared_ptr<const StepEdges> EdgesOf(bool plain) {
    std::vector<tensorflow::NodeDef> ends = {EndOf("send_s", true, "s"),
                                             EndOf("recv_r", false, "r")};
    if (plain) {
      ends.push_back(EndOf("send_p", true, "p"));
      ends.push_back(EndOf("recv_q", false, "q"));
    }
    Graph graph;
    const auto table = std::make_shared<TransferTable>();
    for (size_t i = 0; i < ends.size(); ++i) {
      EXPECT_OK(graph.AddNode(ends[i]).status());
      table->Add(*RendezvousKey::Of(&ends[i]), ends[i].name(), /*in_loop=*/i < 2);
    }
    StatusOr<StepEdges> edges = StepEdges::Of(graph, ends, table, kPs);
    EXPECT_OK(edges);
    s_ = table->NumberOfNode("send_s");
    r_ = table->NumberOfNode("recv_r");
    return std::make_shared<const StepEdges>(*std::move(edges));
  }
  // Started, as the run of a step by links does it.
  std::shared_ptr<StepRendezvous> Start(int64_t id) {
    auto step = table_->Start(id, edges_, session_, loans_);
    EXPECT_OK(step);
    arriving_ = std::make_shared<ArrivingEdges>(*step, edges_);
    (*step)->ReceivePushes(arriving_);
    return *std::move(step);
  }
  void Push(const std::shared_ptr<StepRendezvous>& step) {
    step->Push(edges_->sends[0], link_.get(),
               std::make_shared<LinkSink>(link_, step, edges_, &edges_->sends[0], nullptr));
  }
  PushedMessage MessageOf(int64_t id, std::vector<SentTensor> tensors) {
    PushedMessage message;
    message.task = kWorker;
    message.link = link_.get();
    message.creditor = link_;
    message.tensors.step_id = id;
    message.tensors.fingerprint = edges_->recvs[0].loop_fingerprint;
    message.tensors.tensors = std::move(tensors);
    return message;
  }
  void Recv(StepRendezvous* step, int64_t iteration, std::string* got) {
    step->RecvAsync({r_, "", kFrame, iteration}, Into(got));
  }
  Status Send(StepRendezvous* step, int64_t iteration, bool is_dead = false) {
    return step->Send({s_, "", kFrame, iteration}, is_dead ? Tensor() : Tensor::Scalar(1.0f),
                      is_dead);
  }

  FakeClock clock_;
  const std::shared_ptr<LoopLink> link_ = std::make_shared<LoopLink>();
  const std::shared_ptr<SessionLife> session_ = std::make_shared<SessionLife>();
  const std::shared_ptr<StepLoans> loans_ = std::make_shared<StepLoans>();
  const std::shared_ptr<StepTable> table_ = std::make_shared<StepTable>(&clock_);
  std::shared_ptr<const StepEdges> edges_;
  std::shared_ptr<ArrivingEdges> arriving_;
  uint32_t s_ = 0, r_ = 0;
};

TEST_F(LoopStepsTest, EdgesOfLoopsHaveIndicesAndAFingerprintOfTheirOwn) {
  ASSERT_EQ(edges_->sends.size(), 1u);
  ASSERT_EQ(edges_->recvs.size(), 1u);
  EXPECT_TRUE(edges_->sends[0].numbers.empty());
  EXPECT_EQ(edges_->sends[0].loop_numbers, std::vector<uint32_t>{s_});
  EXPECT_EQ(edges_->recvs[0].loop_numbers, std::vector<uint32_t>{r_});
  EXPECT_EQ(edges_->recvs[0].fingerprint, 0u);
  EXPECT_NE(edges_->recvs[0].loop_fingerprint, 0u);
  const auto with_plain = EdgesOf(/*plain=*/true);
  EXPECT_EQ(with_plain->recvs[0].numbers.size(), 1u);
  EXPECT_EQ(with_plain->recvs[0].loop_numbers.size(), 1u);
  EXPECT_EQ(with_plain->num_sends, 1);
  EXPECT_NE(with_plain->recvs[0].loop_fingerprint, with_plain->recvs[0].fingerprint);
  EXPECT_NE(with_plain->recvs[0].loop_fingerprint, edges_->recvs[0].loop_fingerprint);
}

TEST_F(LoopStepsTest, EachTensorLeavesAtOnceOrWhenThereIsALinkAndTheStepStaysUntilAllAreReceived) {
  const auto step = Start(1);
  ASSERT_OK(Send(step.get(), 0));
  EXPECT_EQ(step->untaken_bytes(), 4);
  Push(step);
  EXPECT_EQ(step->untaken_bytes(), 0);
  ASSERT_OK(Send(step.get(), 1, /*is_dead=*/true));
  EXPECT_EQ(link_->TakeEvents(), (Events{"sent 0 in 77:0", "sent 0 dead in 77:1"}));
  EXPECT_EQ(link_->last.fingerprint, edges_->sends[0].loop_fingerprint);
  // All that was sent is received, and the loop may go on.
  table_->Received(1, kWorker, link_.get(), 100);
  EXPECT_TRUE(step->AwaitsReceipt(kWorker, link_.get()));
  ASSERT_OK(Send(step.get(), 2));
  table_->End(step.get(), absl::OkStatus());
  EXPECT_EQ(table_->num_steps(), 1);
  EXPECT_TRUE(step->AwaitsReceipt(kWorker, link_.get()));
  table_->Received(1, kWorker, link_.get(), 1);
  EXPECT_EQ(table_->num_steps(), 0);
}

TEST_F(LoopStepsTest, AStepWhoseRunEndsBeforeThereIsALinkStillSends) {
  const auto step = Start(1);
  ASSERT_OK(Send(step.get(), 0));
  table_->End(step.get(), absl::OkStatus());
  EXPECT_EQ(table_->num_steps(), 1);
  Push(step);
  EXPECT_EQ(link_->TakeEvents(), (Events{"sent 0 in 77:0"}));
  table_->Received(1, kWorker, link_.get(), 1);
  EXPECT_EQ(table_->num_steps(), 0);
  // One that has sent nothing waits for nothing.
  const auto silent = Start(2);
  table_->End(silent.get(), absl::OkStatus());
  EXPECT_EQ(table_->num_steps(), 0);
  Push(silent);
  EXPECT_FALSE(silent->AwaitsReceipt(kWorker, link_.get()));
}

TEST_F(LoopStepsTest, AnAbortIsToldToTheReceiverAndNothingIsSentAfterIt) {
  for (const bool before : {true, false}) {
    const auto step = Start(before ? 1 : 2);
    if (before) Push(step);
    ASSERT_OK(Send(step.get(), 0));
    link_->TakeEvents();
    step->StartAbort(absl::CancelledError("by its master"));
    if (!before) Push(step);
    EXPECT_EQ(link_->TakeEvents(), (Events{"cancel"}));
    EXPECT_STATUS(Send(step.get(), 1), absl::StatusCode::kCancelled, "by its master");
    EXPECT_EQ(link_->TakeEvents(), Events());
    EXPECT_EQ(step->untaken_bytes(), before ? 0 : 4);
    table_->End(step.get(), absl::CancelledError("by its master"));
  }
}

// Else they would be parked at a receiver whose step never begins.
TEST_F(LoopStepsTest, ACancelThatTensorsOvertakeIsSentAgainBehindThem) {
  for (const bool in_loop : {false, true}) {
    const auto step = Start(in_loop ? 1 : 2);
    const auto edges = EdgesOf(/*plain=*/true);
    LinkSink sink(link_, step, edges, &edges->sends[0], nullptr);
    link_->before_tensors = [&] { sink.OnDone(absl::CancelledError("by its master")); };
    const auto send = [&] {
      if (in_loop) return sink.OnTensorInLoop(0, kFrame, 4, Tensor::Scalar(1.0f), false);
      sink.OnTensor(0, Tensor::Scalar(1.0f), false);
      sink.Flush();
    };
    send();
    EXPECT_EQ(link_->TakeEvents(),
              (Events{"cancel", in_loop ? "sent 0 in 77:4" : "sent 0", "cancel"}));
    send();  // later there is nothing to overtake
    EXPECT_EQ(link_->TakeEvents(), Events());
    table_->End(step.get(), absl::CancelledError("by its master"));
  }
}

TEST_F(LoopStepsTest, ALinkThatTakesNothingEndsTheStep) {
  const auto step = Start(1);
  Push(step);
  link_->sends = absl::UnavailableError("Socket closed");
  EXPECT_OK(Send(step.get(), 0));
  EXPECT_STATUS(step->aborted(), absl::StatusCode::kUnavailable,
                "Push to /job:worker/replica:0/task:0: Socket closed");
}

TEST_F(LoopStepsTest, WhatComesBeforeItsStepIsParkedAndGoesOnWithIt) {
  table_->TakePushed(1, MessageOf(1, {Round(0, Tensor::Scalar(7.0f)), Round(1)}));
  EXPECT_GT(table_->parked_bytes(), 0);
  EXPECT_EQ(link_->TakeEvents(), Events());
  const auto step = Start(1);
  EXPECT_GT(table_->parked_bytes(), 0);
  EXPECT_EQ(link_->TakeEvents(), Events());
  std::string got, next;
  Recv(step.get(), 0, &got);
  EXPECT_EQ(got, "7");
  EXPECT_EQ(link_->TakeEvents(), (Events{"taken 1"}));
  // What no iteration has asked for goes as the run ends.
  table_->End(step.get(), absl::OkStatus());
  EXPECT_EQ(link_->TakeEvents(), (Events{"taken 1", "flush"}));
  EXPECT_EQ(table_->parked_bytes(), 0);
  EXPECT_EQ(table_->num_steps(), 0);
}

TEST_F(LoopStepsTest, WhatEndsTheStepReachesAnIterationThatWaits) {
  const struct {
    std::function<void(StepRendezvous*)> end;
    std::string error;
  } kCases[] = {
      {[](StepRendezvous* step) { step->StartAbort(absl::CancelledError("by its master")); },
       "by its master"},
      {[this](StepRendezvous*) {
         table_->LinkLost(kWorker, link_.get(), absl::UnavailableError("Socket closed"));
       },
       "Push from /job:worker/replica:0/task:0: Socket closed"},
      {[this](StepRendezvous* step) {
         PushedMessage failed = MessageOf(step->step_id(), {});
         failed.kind = PushedMessage::Kind::kFailed;
         failed.error = absl::AbortedError("its part failed");
         table_->PushFailed(step->step_id(), std::move(failed));
       },
       "its part failed"},
      {[this](StepRendezvous* step) {
         table_->TakePushed(step->step_id(), MessageOf(step->step_id(), {Round(5), Round(5)}));
       },
       "iteration 5 of frame 77 twice"},
      {[this](StepRendezvous* step) {
         SentTensor other = Round(5);
         other.index = 1;
         table_->TakePushed(step->step_id(), MessageOf(step->step_id(), {std::move(other)}));
       },
       "the number of a tensor in a loop must be below 1, got 1"},
      {[this](StepRendezvous* step) {
         PushedMessage other = MessageOf(step->step_id(), {Round(5)});
         ++other.tensors.fingerprint;
         table_->TakePushed(step->step_id(), std::move(other));
       },
       "tensors of other names"},
      {[this](StepRendezvous*) { table_->AbortAll(absl::AbortedError("Shutdown")); }, "Shutdown"},
  };
  int64_t id = 0;
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.error);
    const auto step = Start(++id);
    table_->LinkOpened(link_.get());
    arriving_->Expect(kWorker, link_);
    table_->TakePushed(id, MessageOf(id, {Round(0), Round(1)}));
    const int64_t taken = link_->num_taken;
    std::string got, waits;
    Recv(step.get(), 0, &got);
    EXPECT_EQ(got, "1");
    Recv(step.get(), 2, &waits);
    EXPECT_EQ(waits, "");
    c.end(step.get());
    EXPECT_NE(waits.find(c.error), std::string::npos) << waits;
    EXPECT_FALSE(step->aborted().ok());
    table_->End(step.get(), step->aborted());
    EXPECT_EQ(table_->parked_bytes(), 0);
    // All that came is acknowledged: what a failed step has taken is gone.
    EXPECT_GE(link_->num_taken - taken, 2);
    // What comes later is, too.
    table_->TakePushed(id, MessageOf(id, {Round(7)}));
    EXPECT_EQ(table_->parked_bytes(), 0);
  }
}

// It has all that it needed, though no one could know it before.
TEST_F(LoopStepsTest, TheLossOfALinkIsNothingToAStepWhoseRunHasEnded) {
  const auto step = Start(1);
  arriving_->Expect(kWorker, link_);
  const auto other = std::make_shared<LoopLink>();
  step->Push(edges_->sends[0], other.get(),
             std::make_shared<LinkSink>(other, step, edges_, &edges_->sends[0], nullptr));
  ASSERT_OK(Send(step.get(), 0));
  table_->End(step.get(), absl::OkStatus());
  PushedMessage lost;
  lost.kind = PushedMessage::Kind::kLost;
  lost.task = kWorker;
  lost.link = link_.get();
  lost.error = absl::UnavailableError("Socket closed");
  arriving_->OnPushed(std::move(lost));
  EXPECT_OK(step->aborted());
  EXPECT_EQ(table_->num_steps(), 1);
  table_->Received(1, kWorker, other.get(), 1);
  EXPECT_EQ(table_->num_steps(), 0);
}

// Sends, the link's loss, a cancellation and the end of the run at once: whatever comes first, no
// wait is left, what was taken is settled or given back, and nothing is kept.
TEST_F(LoopStepsTest, SendsArrivalsLossesCancellationsAndEndsMayRace) {
  constexpr int64_t kRounds = 40;
  for (int64_t id = 1; id <= kRounds; ++id) {
    table_->LinkOpened(link_.get());
    const auto step = Start(id);
    arriving_->Expect(kWorker, link_);
    std::atomic<int64_t> waits{10};
    for (int64_t i = 0; i < 10; ++i) {
      step->RecvAsync({r_, "", kFrame, i},
                      [&waits](const Status&, Tensor, bool) { waits.fetch_sub(1); });
    }
    std::vector<std::thread> threads;
    threads.emplace_back([&] { Push(step); });
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 10; ++i) Send(step.get(), i).IgnoreError();
    });
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 20; ++i) table_->TakePushed(id, MessageOf(id, {Round(i)}));
    });
    threads.emplace_back([&] { table_->Received(id, kWorker, link_.get(), 5); });
    threads.emplace_back([&] {
      if (id % 2 == 0) {
        table_->LinkLost(kWorker, link_.get(), absl::UnavailableError("Socket closed"));
      } else {
        step->StartAbort(absl::CancelledError("by its master"));
      }
    });
    for (std::thread& thread : threads) thread.join();
    EXPECT_FALSE(step->aborted().ok());
    EXPECT_EQ(waits, 0);
    table_->End(step.get(), step->aborted());
    EXPECT_EQ(table_->parked_bytes(), 0);
    EXPECT_EQ(link_->held, 0);
  }
}

}  // namespace
}  // namespace millrace
