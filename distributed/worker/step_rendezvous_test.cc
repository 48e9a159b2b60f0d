// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/step_rendezvous.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/kept_status.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/link/link.h"
#include "distributed/worker/parked_bytes.h"
#include "distributed/worker/push_sink.h"
#include "distributed/worker/pushed_edges.h"
#include "distributed/worker/pushed_message.h"
#include "distributed/worker/send_groups.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/step_table.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"
#include "run/training_run.h"
#include "runtime/plan.h"

// covers: clusters: a rendezvous keeps sent tensors until they are received or its time ends
// covers: clusters: a step's received elements stay taken
// covers: clusters: what a step sends to a task in one wave leaves together, whatever of it is dead
//   or large; what may wait for another step, in a function too, and what is in a loop holds
//   nothing back
// covers: clusters: what a task remembers for late callers has a bound in bytes; steps that
//   strangers make fail drive out nothing that a running job needs

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

tensorflow::NodeDef EndOf(const std::string& name, bool send, const std::string& edge,
                          const std::string& src, const std::string& dst) {
  tensorflow::NodeDef node;
  node.set_name(name);
  node.set_op(send ? "_Send" : "_Recv");
  const auto set = [&](const char* attr, const auto& value) {
    SetAttr(value, &(*node.mutable_attr())[attr]);
  };
  set("tensor_name", edge);
  set("send_device", src + "/device:CPU:0");
  set("recv_device", dst + "/device:CPU:0");
  set("send_device_incarnation", int64_t{42});
  set("client_terminated", false);
  return node;
}

// The ps sends a and b at once and c after it has received g.
tensorflow::GraphDef PsGraph() {
  tensorflow::GraphDef graph;
  *graph.add_node() = EndOf("send_b", true, "b", kPs, kWorker);
  *graph.add_node() = EndOf("send_a", true, "a", kPs, kWorker);
  *graph.add_node() = EndOf("recv_g", false, "g", kWorker, kPs);
  tensorflow::NodeDef send_c = EndOf("send_c", true, "c", kPs, kWorker);
  send_c.add_input("^recv_g");
  *graph.add_node() = send_c;
  return graph;
}

// Of a plan made of this graph.
std::shared_ptr<const TransferTable> TransfersOf(const tensorflow::GraphDef& graph) {
  auto table = std::make_shared<TransferTable>();
  for (const tensorflow::NodeDef& node : graph.node()) {
    table->Add(*RendezvousKey::Of(&node), node.name());
  }
  return table;
}

// Of a partition, and of the plan that was made of it.
StatusOr<StepEdges> EdgesOf(const tensorflow::GraphDef& wire,
                            std::shared_ptr<const TransferTable> transfers) {
  Graph graph;
  for (const tensorflow::NodeDef& node : wire.node()) {
    MR_RETURN_IF_ERROR(graph.AddNode(node).status());
  }
  for (const tensorflow::NodeDef& node : wire.node()) {
    for (const std::string& input : node.input()) {
      if (input[0] == '^') {
        graph.AddControlEdge(graph.FindNode(input.substr(1)), graph.FindNode(node.name()));
      }
    }
  }
  const std::vector<tensorflow::NodeDef> ends(wire.node().begin(), wire.node().end());
  return StepEdges::Of(graph, ends, std::move(transfers), kPs);
}

RendezvousKey KeyOf(const std::string& edge) {
  return *RendezvousKey::Parse(RendezvousKey::Make(
      std::string(kPs) + "/device:CPU:0", 42, std::string(kWorker) + "/device:CPU:0", edge, 0, 0));
}

// Writes down what it is given: "0=1.5 | flush".
class Recorder : public PushSink {
 public:
  void OnSendTimes(uint64_t index, const SendTimes& sent) override { times[index] = sent; }
  int64_t OnTensor(uint64_t index, Tensor value, bool is_dead) override {
    const int64_t bytes = value.TotalBytes();
    events.push_back(absl::StrCat(index, is_dead ? " dead" : ""));
    values.push_back(std::move(value));
    return bytes;
  }
  void Flush() override { events.push_back("flush"); }
  void OnDone(const Status& status) override { events.push_back(status.ToString()); }
  std::vector<std::string> events;
  std::vector<Tensor> values;
  std::map<uint64_t, SendTimes> times;
};

// Links are only compared here.
const Link* const kLink = reinterpret_cast<const Link*>(&kPs);
const Link* const kOtherLink = reinterpret_cast<const Link*>(&kWorker);

class StepRendezvousTest : public ::testing::Test {
 protected:
  StepRendezvousTest() {
    const tensorflow::GraphDef graph = PsGraph();
    auto edges = EdgesOf(graph, TransfersOf(graph));
    EXPECT_OK(edges);
    edges_ = std::make_shared<const StepEdges>(*std::move(edges));
  }
  // The worker asks for what the step sends it, each tensor by its key; what it has heard so far:
  // "OK" of each, or why not.
  using Heard = std::shared_ptr<std::vector<std::string>>;
  Heard Ask(int64_t step, CancellationManager* call = nullptr) {
    auto heard = std::make_shared<std::vector<std::string>>();
    for (const char* edge : {"a", "b", "c"}) {
      table_->FindOrExpect(step)->ServeTensor(
          KeyOf(edge).text, call,
          [heard](const Status& status, Tensor, bool) { heard->push_back(status.ToString()); });
    }
    return heard;
  }
  static bool IsAllOk(const Heard& heard) { return *heard == std::vector<std::string>(3, "OK"); }

  FakeClock clock_;
  std::shared_ptr<StepTable> table_ = std::make_shared<StepTable>(&clock_);
  std::shared_ptr<const StepEdges> edges_;
};

TEST_F(StepRendezvousTest, EdgesAreSortedAndKnowWhatIsReadyAtOnce) {
  ASSERT_EQ(edges_->sends.size(), 1u);
  const StepEdges::Peer& sends = edges_->sends[0];
  EXPECT_EQ(sends.task, kWorker);
  EXPECT_EQ(sends.wire_keys,
            (std::vector<std::string>{KeyOf("a").text, KeyOf("b").text, KeyOf("c").text}));
  EXPECT_EQ(sends.numbers, (std::vector<uint32_t>{1, 0, 3}));
  EXPECT_EQ(sends.immediate, (std::vector<bool>{true, true, false}));
  EXPECT_EQ(sends.num_immediate, 2);
  ASSERT_EQ(edges_->recvs.size(), 1u);
  EXPECT_EQ(edges_->recvs[0].task, kWorker);
  EXPECT_EQ(edges_->num_sends, 3);
}

TEST_F(StepRendezvousTest, AStepIsForgottenWhenAllWasAskedFor) {
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  const Heard heard = Ask(1);
  EXPECT_TRUE(heard->empty());
  ASSERT_OK(step->Send(KeyOf("b"), Tensor::Scalar(2.0f), false));
  ASSERT_OK(step->Send(KeyOf("c"), Tensor(), true));
  table_->End(step.get(), absl::OkStatus());
  EXPECT_EQ(heard->size(), 2u);
  EXPECT_EQ(table_->num_steps(), 1);
  ASSERT_OK(step->Send(KeyOf("a"), Tensor::Scalar(1.0f), false));
  EXPECT_TRUE(IsAllOk(heard));
  EXPECT_EQ(table_->num_steps(), 0);
}

TEST_F(StepRendezvousTest, WhatWasSentIsWaitedForUntilItIsTakenOrItsSessionEnds) {
  const auto session = std::make_shared<SessionLife>(), other = std::make_shared<SessionLife>();
  const auto closes = std::make_shared<SessionLife>();
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_, session));
  ASSERT_OK_AND_ASSIGN(const auto failed, table_->Start(2, edges_, other));
  ASSERT_OK_AND_ASSIGN(const auto closed, table_->Start(3, edges_, closes));
  table_->End(failed.get(), absl::AbortedError("failed"));
  table_->End(closed.get(), absl::OkStatus());
  const absl::Time deadline = clock_.Now() + absl::Seconds(5);
  bool all_taken = false;
  std::thread waiting([&] { all_taken = table_->AwaitTaken(deadline); });
  clock_.AwaitWaiters(1);
  closes->End(absl::AbortedError("closed"));
  table_->LookForTaken();
  waiting.join();
  EXPECT_TRUE(all_taken);  // running steps are the caller's to wait for

  for (const char* edge : {"a", "b", "c"}) {
    ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
  }
  table_->End(step.get(), absl::OkStatus());
  std::thread in_vain([&] { all_taken = table_->AwaitTaken(deadline); });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(5));
  in_vain.join();
  EXPECT_FALSE(all_taken);

  std::thread taken([&] { all_taken = table_->AwaitTaken(absl::InfiniteFuture()); });
  clock_.AwaitWaiters(1);
  EXPECT_TRUE(IsAllOk(Ask(1)));
  taken.join();
  EXPECT_TRUE(all_taken);
}

// --- What is pushed ------------------------------------------------------------------------------

// Writes down what it is given: "2 tensors", "failed", "lost".
class PushRecorder : public PushReceiver {
 public:
  void OnPushed(PushedMessage message) override {
    const auto n = message.tensors.tensors.size();
    events.push_back(message.kind == PushedMessage::Kind::kTensors  ? absl::StrCat(n, " tensors")
                     : message.kind == PushedMessage::Kind::kFailed ? "failed"
                                                                    : "lost");
  }
  std::vector<std::string> events;
};

PushedMessage TensorsOf(const char* task, int n) {
  PushedMessage message;
  message.task = task;
  message.link = kLink;
  for (int i = 0; i < n; ++i) {
    SentTensor& tensor = message.tensors.tensors.emplace_back();
    tensor.index = static_cast<uint32_t>(i);
    tensor.value = Tensor::Scalar(1.0f);
  }
  return message;
}

TEST_F(StepRendezvousTest, WhatIsPushedLeavesAsItIsMadeAndIsHeldUntilItIsReceived) {
  const auto session = std::make_shared<SessionLife>();
  const auto loans = std::make_shared<StepLoans>();
  int given_back = 0;
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_, session, loans));
  loans->Lend([&] { ++given_back; });
  auto sink = std::make_shared<Recorder>();
  step->Push(edges_->sends[0], kLink, sink);
  for (const char* edge : {"b", "a", "c"}) {
    ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
  }
  EXPECT_EQ(sink->events, (std::vector<std::string>{"1", "flush", "0", "flush", "2", "OK"}));
  table_->End(step.get(), absl::OkStatus());
  EXPECT_EQ(table_->num_steps(), 1);
  // Another task, another link, and more than was sent: a peer may say anything.
  table_->Received(1, kPs, kLink, 3);
  table_->Received(1, kWorker, kOtherLink, 3);
  table_->Received(7, kWorker, kLink, 3);
  table_->Received(1, kWorker, kLink, 2);
  EXPECT_EQ(table_->num_steps(), 1);
  bool all_received = false;
  std::thread waiting([&] { all_received = table_->AwaitTaken(absl::InfiniteFuture()); });
  clock_.AwaitWaiters(1);
  table_->Received(1, kWorker, kLink, UINT64_MAX);
  waiting.join();
  EXPECT_TRUE(all_received);
  EXPECT_EQ(table_->num_steps(), 0);
  // It stays taken.
  loans->GiveBack();
  EXPECT_EQ(given_back, 0);
}

// Its receiver may keep them for a step that never begins, and hold back the link's credit for it.
TEST_F(StepRendezvousTest, AnAbortIsToldToReceiversOnceUnlessTheyHaveTakenAll) {
  enum class Left { kUnsent, kUnreceived, kNone };
  int64_t id = 0;
  for (const Left left : {Left::kUnsent, Left::kUnreceived, Left::kNone}) {
    SCOPED_TRACE(++id);
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(id, edges_));
    const auto sink = std::make_shared<Recorder>();
    step->Push(edges_->sends[0], kLink, sink);
    for (const char* edge : {"a", "b", "c"}) {
      if (left == Left::kUnsent && edge[0] == 'c') continue;
      ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
    }
    if (left == Left::kNone) table_->Received(id, kWorker, kLink, 3);
    const size_t before = sink->events.size();
    step->StartAbort(absl::CancelledError("by its master"));
    step->StartAbort(absl::CancelledError("again"));
    table_->End(step.get(), absl::CancelledError("by its master"));
    if (left == Left::kNone) {
      EXPECT_EQ(sink->events.size(), before);
    } else {
      ASSERT_EQ(sink->events.size(), before + 1);
      EXPECT_TRUE(absl::StrContains(sink->events.back(), "by its master")) << sink->events.back();
    }
  }
}

TEST_F(StepRendezvousTest, ReceiptsOfWhatWasNotSentDoNotCount) {
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  step->Push(edges_->sends[0], kLink, std::make_shared<Recorder>());
  ASSERT_OK(step->Send(KeyOf("a"), Tensor::Scalar(1.0f), false));
  table_->Received(1, kWorker, kLink, 3);
  table_->Received(1, kWorker, kLink, 3);
  for (const char* edge : {"b", "c"}) {
    ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
  }
  table_->End(step.get(), absl::OkStatus());
  EXPECT_EQ(table_->num_steps(), 1);
  table_->Received(1, kWorker, kLink, 2);
  EXPECT_EQ(table_->num_steps(), 0);
}

// A ps that waits to stop must not wait for a trainer that was killed; what that one did not say to
// have received is given back.
TEST_F(StepRendezvousTest, ALostLinkEndsRunningStepsAndGivesBackWhatEndedOnesSent) {
  const auto session = std::make_shared<SessionLife>();
  const auto loans = std::make_shared<StepLoans>();
  int given_back = 0;
  table_->LinkOpened(kLink);
  EXPECT_TRUE(table_->IsOpen(kLink));
  ASSERT_OK_AND_ASSIGN(const auto ended, table_->Start(1, edges_, session, loans));
  ASSERT_OK_AND_ASSIGN(const auto running, table_->Start(2, edges_, session));
  ASSERT_OK_AND_ASSIGN(const auto by_another, table_->Start(3, edges_, session));
  loans->Lend([&] { ++given_back; });
  ended->Push(edges_->sends[0], kLink, std::make_shared<Recorder>());
  for (const char* edge : {"a", "b", "c"}) {
    ASSERT_OK(ended->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
  }
  table_->End(ended.get(), absl::OkStatus());
  auto sink = std::make_shared<Recorder>();
  running->Push(edges_->sends[0], kLink, sink);
  by_another->Push(edges_->sends[0], kOtherLink, std::make_shared<Recorder>());
  table_->LinkLost(kWorker, kLink, absl::UnavailableError("Socket closed"));
  EXPECT_FALSE(table_->IsOpen(kLink));
  EXPECT_EQ(given_back, 1);
  EXPECT_TRUE(table_->AwaitTaken(clock_.Now()));
  EXPECT_STATUS(running->aborted(), absl::StatusCode::kUnavailable,
                "Push to /job:worker/replica:0/task:0: Socket closed");
  ASSERT_EQ(sink->events.size(), 1u);  // the peer, if it lives, is told
  EXPECT_NE(sink->events[0].find("Socket closed"), std::string::npos);
  EXPECT_OK(by_another->aborted());
}

// The abort finds nothing that waits, and nobody will say that the tensors have come.
TEST_F(StepRendezvousTest, AStepThatEndsWellAsItIsAbortedIsGivenBackAtOnce) {
  const auto session = std::make_shared<SessionLife>();
  int given_back = 0;
  const auto start = [&](int64_t id) {
    const auto loans = std::make_shared<StepLoans>();
    StatusOr<std::shared_ptr<StepRendezvous>> step = table_->Start(id, edges_, session, loans);
    EXPECT_OK(step);
    loans->Lend([&given_back] { ++given_back; });
    (*step)->Push(edges_->sends[0], kLink, std::make_shared<Recorder>());
    for (const char* edge : {"a", "b", "c"}) {
      EXPECT_OK((*step)->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
    }
    return *std::move(step);
  };
  // Before the table lists it.
  const auto first = start(1);
  first->StartAbort(absl::UnavailableError("Socket closed"));
  table_->End(first.get(), absl::OkStatus());
  EXPECT_EQ(given_back, 1);
  EXPECT_EQ(table_->num_steps(), 0);
  // After it, when the link's loss found it running.
  class Ending : public PushReceiver {
   public:
    void OnPushed(PushedMessage) override { end(); }
    std::function<void()> end;
  };
  const auto second = start(2);
  const auto receiver = std::make_shared<Ending>();
  receiver->end = [&] { table_->End(second.get(), absl::OkStatus()); };
  second->ReceivePushes(receiver);
  table_->LinkLost(kWorker, kLink, absl::UnavailableError("Socket closed"));
  EXPECT_EQ(given_back, 2);
  EXPECT_EQ(table_->num_steps(), 0);
}

// Writes down what it is told of what has come: "taken 1: 2", "flush".
class RecordingLink : public Link {
 public:
  Status Send(LinkMessage) override { return sends; }
  void Flush() override { events.push_back("flush"); }
  void Acknowledge(int64_t step_id, uint64_t tensors) override {
    events.push_back(absl::StrCat("taken ", step_id, ": ", tensors));
  }
  void Ask(absl::AnyInvocable<void()>) override {}
  int64_t queued_bytes() const override { return 0; }
  void Close(const Status&) override {}
  std::vector<std::string> events;
  Status sends;  // what Send returns
};

// Nobody will say that the tensors have come, and no session's end finds a step that was aborted.
TEST_F(StepRendezvousTest, WhatCannotBePushedIsGivenBackAtOnceWhenItsStepHasEndedWell) {
  const auto session = std::make_shared<SessionLife>();
  for (const bool is_dialled : {false, true}) {
    const int64_t id = is_dialled ? 2 : 1;
    const auto loans = std::make_shared<StepLoans>();
    int given_back = 0;
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(id, edges_, session, loans));
    loans->Lend([&] { ++given_back; });
    for (const char* edge : {"a", "b", "c"}) {
      ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
    }
    table_->End(step.get(), absl::OkStatus());
    EXPECT_EQ(given_back, 0);
    EXPECT_EQ(table_->num_steps(), 1);
    if (is_dialled) {
      const auto link = std::make_shared<RecordingLink>();
      link->sends = absl::UnavailableError("Socket closed");
      step->Push(edges_->sends[0], link.get(),
                 std::make_shared<LinkSink>(link, step, edges_, &edges_->sends[0], nullptr));
    } else {
      step->FailPushes(kWorker, absl::UnavailableError("no route"));
    }
    EXPECT_TRUE(absl::IsUnavailable(step->aborted())) << step->aborted();
    EXPECT_EQ(given_back, 1);
    EXPECT_EQ(table_->num_steps(), 0);
  }
}

TEST_F(StepRendezvousTest, AStepThatRunsKnowsThatItsReceiverIsLostBeforeItIsAborted) {
  class Asking : public PushReceiver {
   public:
    void OnPushed(PushedMessage) override { knew.push_back(step->has_lost_receiver()); }
    StepRendezvous* step = nullptr;
    std::vector<bool> knew;
  };
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  const auto receiver = std::make_shared<Asking>();
  receiver->step = step.get();
  step->ReceivePushes(receiver);
  step->LoseReceiver(kPs);  // it sends nothing there
  EXPECT_FALSE(step->has_lost_receiver());
  step->Push(edges_->sends[0], kLink, std::make_shared<Recorder>());
  table_->LinkLost(kWorker, kOtherLink, absl::UnavailableError("Socket closed"));
  EXPECT_OK(step->aborted());
  table_->LinkLost(kWorker, kLink, absl::UnavailableError("Socket closed"));
  EXPECT_EQ(receiver->knew, (std::vector<bool>{false, true}));
  EXPECT_STATUS(step->aborted(), absl::StatusCode::kUnavailable, "Push to ");
}

// A sender gives back what its step has taken when the receiver's never begins, and a task that
// stops waits until it is told.
TEST_F(StepRendezvousTest, WhatIsParkedIsAcknowledgedWhenItsStepTakesItAndWhatIsLateAtOnce) {
  using Events = std::vector<std::string>;
  const auto link = std::make_shared<RecordingLink>();
  const auto tensors_of_step = [&](int64_t id, int n) {
    PushedMessage message = TensorsOf(kWorker, n);
    message.tensors.step_id = id;
    message.tensors.fingerprint = edges_->recvs[0].fingerprint;
    message.link = link.get();
    message.creditor = link;
    return message;
  };
  const auto take_events = [&] { return std::exchange(link->events, {}); };
  table_->TakePushed(1, tensors_of_step(1, 1));
  EXPECT_EQ(take_events(), Events());
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  EXPECT_EQ(take_events(), Events());
  const auto arriving = std::make_shared<ArrivingEdges>(step, edges_);
  step->ReceivePushes(arriving);
  EXPECT_EQ(take_events(), Events{"taken 1: 1"});
  table_->End(step.get(), absl::AbortedError("failed"));
  table_->TakePushed(1, tensors_of_step(1, 2));
  EXPECT_EQ(take_events(), (Events{"taken 1: 2", "flush"}));
  // A foreign master's step takes nothing.
  table_->TakePushed(2, tensors_of_step(2, 1));
  ASSERT_OK_AND_ASSIGN(const auto foreign, table_->Start(2, edges_));
  foreign->ReceivePushes(nullptr);
  EXPECT_EQ(take_events(), (Events{"taken 2: 1", "flush"}));
  // One that fails before it takes any, or before it begins.
  table_->TakePushed(3, tensors_of_step(3, 1));
  table_->Refuse(3, absl::AbortedError("no such session"));
  EXPECT_EQ(take_events(), (Events{"taken 3: 1", "flush"}));
  table_->TakePushed(5, tensors_of_step(5, 1));
  ASSERT_OK_AND_ASSIGN(const auto failed, table_->Start(5, edges_));
  table_->End(failed.get(), absl::AbortedError("failed"));
  EXPECT_EQ(take_events(), (Events{"taken 5: 1", "flush"}));
  // One that never begins: neither when its sender cancels it nor when its time is over.
  table_->TakePushed(4, tensors_of_step(4, 1));
  PushedMessage cancel = TensorsOf(kWorker, 0);
  cancel.kind = PushedMessage::Kind::kFailed;
  cancel.error = absl::CancelledError("cancelled");
  table_->PushFailed(4, cancel);
  table_->TakePushed(6, tensors_of_step(6, 1));
  clock_.Advance(StepTable::kEndedExpiry + absl::Minutes(1));
  table_->Sweep();
  EXPECT_EQ(take_events(), Events());
  EXPECT_EQ(table_->parked_bytes(), 0);
}

// A training step sends to whom it receives from, in the next step at the latest.
TEST_F(StepRendezvousTest, AcknowledgementsLeaveAloneOnlyIfNothingMayCarryThemOrForLargeTensors) {
  const tensorflow::GraphDef graph = [] {
    tensorflow::GraphDef only_receives;
    *only_receives.add_node() = EndOf("recv_g", false, "g", kWorker, kPs);
    return only_receives;
  }();
  ASSERT_OK_AND_ASSIGN(StepEdges received, EdgesOf(graph, TransfersOf(graph)));
  const auto only_receives = std::make_shared<const StepEdges>(std::move(received));
  const struct {
    std::shared_ptr<const StepEdges> edges;
    size_t elements;
    bool flushes;
  } kCases[] = {
      {edges_, 1, false},
      {edges_, SendGroups::kLargeBytes / 4 - 1, false},
      {edges_, SendGroups::kLargeBytes / 4, true},
      {only_receives, 1, true},
  };
  int64_t id = 0;
  for (const auto& c : kCases) {
    ++id;
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(id, c.edges));
    const auto link = std::make_shared<RecordingLink>();
    ArrivingEdges arriving(step, c.edges);
    arriving.Expect(kWorker, link);
    PushedMessage message = TensorsOf(kWorker, 1);
    message.tensors.fingerprint = c.edges->recvs[0].fingerprint;
    message.tensors.tensors[0].value = *Tensor::Zeros(DT_FLOAT, Shape::Vector(c.elements));
    arriving.OnPushed(std::move(message));
    arriving.Flush();
    EXPECT_EQ(link->events.size(), c.flushes ? 1u : 0u) << id;
    EXPECT_OK(step->aborted());
  }
}

TEST_F(StepRendezvousTest, AwaitTakenAsksWhatWasTakenAndAsksAgain) {
  const auto session = std::make_shared<SessionLife>();
  Mutex mu;
  int asked = 0;
  table_->LinkOpened(kLink, [&](absl::AnyInvocable<void()> answered) {
    answered();
    MutexLock lock(&mu);
    ++asked;
  });
  const auto times_asked = [&] {
    MutexLock lock(&mu);
    return asked;
  };
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_, session));
  step->Push(edges_->sends[0], kLink, std::make_shared<Recorder>());
  for (const char* edge : {"a", "b", "c"}) {
    ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
  }
  table_->End(step.get(), absl::OkStatus());
  bool all_taken = false;
  std::thread waiting([&] { all_taken = table_->AwaitTaken(absl::InfiniteFuture()); });
  clock_.AwaitWaiters(1);
  EXPECT_EQ(times_asked(), 1);
  clock_.Advance(absl::Milliseconds(100));
  while (times_asked() < 2) std::this_thread::yield();
  table_->Received(1, kWorker, kLink, 3);
  waiting.join();
  EXPECT_TRUE(all_taken);
  EXPECT_EQ(table_->num_steps(), 0);
}

TEST_F(StepRendezvousTest, MessagesAreParkedUntilTheRunTakesThem) {
  table_->TakePushed(1, TensorsOf(kWorker, 2));
  EXPECT_EQ(table_->num_steps(), 1);
  EXPECT_EQ(table_->parked_bytes(), 3 * PushedMessage::kOverheadBytes + 2 * 4);
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  table_->TakePushed(1, TensorsOf(kWorker, 1));
  table_->LinkLost(kPs, kLink, absl::UnavailableError("lost"));
  auto receiver = std::make_shared<PushRecorder>();
  step->ReceivePushes(receiver);
  EXPECT_EQ(receiver->events, (std::vector<std::string>{"2 tensors", "1 tensors", "lost"}));
  EXPECT_EQ(table_->parked_bytes(), 0);
  table_->TakePushed(1, TensorsOf(kWorker, 0));
  EXPECT_EQ(receiver->events.back(), "0 tensors");
  table_->End(step.get(), absl::AbortedError("failed"));
  table_->TakePushed(1, TensorsOf(kWorker, 2));  // late
  EXPECT_EQ(receiver->events.size(), 4u);
  EXPECT_EQ(table_->parked_bytes(), 0);
}

TEST_F(StepRendezvousTest, AStepThatIsNotPushedDropsWhatStrangersPush) {
  table_->TakePushed(1, TensorsOf(kWorker, 2));
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  step->ReceivePushes(nullptr);
  table_->TakePushed(1, TensorsOf(kWorker, 2));
  EXPECT_EQ(table_->parked_bytes(), 0);
  EXPECT_OK(step->aborted());
}

TEST_F(StepRendezvousTest, ParkedMessagesGoWithTheirStepOrWithTime) {
  table_->TakePushed(1, TensorsOf(kWorker, 1));
  table_->Refuse(1, absl::AbortedError("no such session"));
  EXPECT_EQ(table_->parked_bytes(), 0);
  table_->TakePushed(2, TensorsOf(kWorker, 1));
  PushedMessage failed = TensorsOf(kPs, 0);
  failed.kind = PushedMessage::Kind::kFailed;
  failed.error = absl::CancelledError("cancelled");
  table_->PushFailed(2, failed);  // of a task that has sent nothing
  EXPECT_GT(table_->parked_bytes(), 0);
  failed.task = kWorker;
  table_->PushFailed(2, failed);
  EXPECT_EQ(table_->parked_bytes(), 0);
  table_->PushFailed(3, failed);
  table_->TakePushed(4, TensorsOf(kWorker, 1));
  clock_.Advance(StepTable::kEndedExpiry + absl::Minutes(1));
  table_->Sweep();
  EXPECT_EQ(table_->parked_bytes(), 0);
  EXPECT_STATUS(table_->Start(4, edges_), absl::StatusCode::kAborted, "");
  table_->TakePushed(5, TensorsOf(kWorker, 1));
  EXPECT_GT(table_->parked_bytes(), 0);
  table_->AbortAll(absl::AbortedError("Shutdown"));
  EXPECT_EQ(table_->parked_bytes(), 0);
}

TEST_F(StepRendezvousTest, ParkedBytesHaveABoundAndOneMessageAloneHasNone) {
  ParkedBytes bytes(100);
  EXPECT_TRUE(bytes.Take(1000));
  EXPECT_FALSE(bytes.Take(1));
  bytes.Return(1000);
  EXPECT_TRUE(bytes.Take(60));
  EXPECT_TRUE(bytes.Take(40));
  EXPECT_FALSE(bytes.Take(1));
  EXPECT_EQ(bytes.bytes(), 100);
}

TEST_F(StepRendezvousTest, ParkedBytesBeyondTheBoundHaveThreeWindowsOfEachLink) {
  ParkedBytes bytes(100, /*window=*/10);
  EXPECT_TRUE(bytes.Take(100));
  EXPECT_EQ(bytes.TakeHeld(4), 4);
  EXPECT_EQ(bytes.TakeHeld(1000), 10);  // a larger one takes one window
  EXPECT_EQ(bytes.TakeHeld(10), 10);
  EXPECT_EQ(bytes.TakeHeld(7), 0);
  EXPECT_EQ(bytes.TakeHeld(6), 6);
  EXPECT_EQ(bytes.bytes(), 1120);
  EXPECT_FALSE(bytes.Take(1));
  bytes.set_links(2);
  EXPECT_EQ(bytes.TakeHeld(30), 10);
  bytes.set_links(0);  // what is there stays
  EXPECT_EQ(bytes.TakeHeld(1), 0);
  bytes.Return(1130, 40);
  EXPECT_EQ(bytes.bytes(), 20);
  EXPECT_EQ(bytes.TakeHeld(10), 10);
}

TEST_F(StepRendezvousTest, AwaitTakenEndsWithTheCleanupOfWhatItWaitsFor) {
  const auto session = std::make_shared<SessionLife>();
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_, session));
  table_->End(step.get(), absl::OkStatus());
  bool all_taken = false;
  std::thread waiting([&] { all_taken = table_->AwaitTaken(absl::InfiniteFuture()); });
  clock_.AwaitWaiters(1);
  table_->Cleanup(1, absl::AbortedError("Cleanup 1"));
  waiting.join();
  EXPECT_TRUE(all_taken);
}

// --- What a step has taken -----------------------------------------------------------------------

class StepLoansTest : public StepRendezvousTest {
 protected:
  // Ends well and sends a, b and c.
  void RunWell(int64_t id) {
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(id, edges_, session_, loans_));
    loans_->Lend([this] { ++given_back_; });
    for (const char* key : {"a", "b", "c"}) {
      ASSERT_OK(step->Send(KeyOf(key), Tensor::Scalar(1.0f), false));
    }
    table_->End(step.get(), absl::OkStatus());
  }
  void EndSession(const Status& why = absl::AbortedError("The session has ended")) {
    session_->End(why);
    table_->DropOfEndedSessions();
  }

  const std::shared_ptr<SessionLife> session_ = std::make_shared<SessionLife>();
  const std::shared_ptr<StepLoans> loans_ = std::make_shared<StepLoans>();
  int given_back_ = 0;
};

TEST_F(StepLoansTest, WhatWasAskedForIsNotGivenBack) {
  ASSERT_NO_FATAL_FAILURE(RunWell(1));
  EXPECT_TRUE(IsAllOk(Ask(1)));
  EndSession();
  loans_->GiveBack();
  EXPECT_EQ(given_back_, 0);
}

TEST_F(StepLoansTest, WhatNobodyAskedForIsGivenBackWhenItsSessionEndsAndNotServedAsWell) {
  ASSERT_NO_FATAL_FAILURE(RunWell(1));
  table_->DropOfEndedSessions();  // another session has ended
  EXPECT_EQ(given_back_, 0);
  EndSession();
  EXPECT_EQ(given_back_, 1);
  const Heard late = Ask(1);
  ASSERT_EQ(late->size(), 3u);
  for (const std::string& heard : *late) {
    EXPECT_NE(heard.find("The session has ended"), std::string::npos) << heard;
  }
  EndSession();
  EXPECT_EQ(given_back_, 1);
}

// The call that closes a session may overtake the receipt of what its client has used.
TEST_F(StepLoansTest, WhatWasPushedIsGivenBackAtItsSessionsEndOnlyWhenItWasNotTaken) {
  enum class Peer { kHasTakenIt, kHasNot, kIsLost };
  for (const Peer peer : {Peer::kHasTakenIt, Peer::kHasNot, Peer::kIsLost}) {
    SCOPED_TRACE(static_cast<int>(peer));
    table_ = std::make_shared<StepTable>(&clock_);
    std::vector<absl::AnyInvocable<void()>> questions;
    table_->LinkOpened(kLink, [&](absl::AnyInvocable<void()> answered) {
      questions.push_back(std::move(answered));
    });
    const auto session = std::make_shared<SessionLife>();
    const auto loans = std::make_shared<StepLoans>();
    int given_back = 0;
    loans->Lend([&] { ++given_back; });
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_, session, loans));
    const auto sink = std::make_shared<Recorder>();
    step->Push(edges_->sends[0], kLink, sink);
    for (const char* key : {"a", "b", "c"}) {
      ASSERT_OK(step->Send(KeyOf(key), Tensor::Scalar(1.0f), false));
    }
    table_->End(step.get(), absl::OkStatus());
    session->End(absl::AbortedError("The session has ended"));
    table_->DropOfEndedSessions();
    table_->DropOfEndedSessions();  // another session has ended, too
    EXPECT_EQ(given_back, 0);
    EXPECT_TRUE(table_->AwaitTaken(clock_.Now()));  // nobody stays for it
    ASSERT_EQ(questions.size(), 1u);
    if (peer == Peer::kHasTakenIt) table_->Received(1, kWorker, kLink, 3);
    if (peer == Peer::kHasNot) questions[0]();
    questions.clear();
    EXPECT_EQ(given_back, peer == Peer::kHasTakenIt ? 0 : 1);
    loans->GiveBack();  // it stays taken
    EXPECT_EQ(given_back, peer == Peer::kHasTakenIt ? 0 : 1);
    // Who has it for a step that will never begin hears so.
    EXPECT_EQ(absl::StrContains(sink->events.back(), "The session has ended"),
              peer != Peer::kHasTakenIt)
        << sink->events.back();
  }
}

// Whoever comes for its tensors then must know that training is over, and not that it failed.
TEST_F(StepLoansTest, WhoComesAfterTheSessionHearsWhyItEnded) {
  ASSERT_NO_FATAL_FAILURE(RunWell(1));
  const RunEnd end = {.global_step = 7, .reason = "done"};
  EndSession(RunEndedError("ps", {.name = "/run", .id = "a1"}, end));
  EndSession(absl::AbortedError("closed later"));
  Status heard;
  table_->FindOrExpect(1)->ServeTensor(KeyOf("a").text, nullptr,
                                       [&](const Status& status, Tensor, bool) { heard = status; });
  EXPECT_EQ(RunEndOf(heard), end) << heard;
  EXPECT_TRUE(IsDerived(heard)) << heard;
}

TEST_F(StepLoansTest, WhatNobodyAskedForIsGivenBackWhenItsStepExpires) {
  ASSERT_NO_FATAL_FAILURE(RunWell(1));
  clock_.Advance(StepTable::kEndedExpiry + absl::Minutes(10));
  table_->Sweep();
  EXPECT_EQ(given_back_, 1);
}

TEST_F(StepLoansTest, WhatItsMasterCleansUpStaysTaken) {
  ASSERT_NO_FATAL_FAILURE(RunWell(1));
  table_->Cleanup(1, absl::AbortedError("Cleanup 1"));
  EndSession();
  EXPECT_EQ(given_back_, 0);
}

TEST_F(StepLoansTest, LoansGoBackInReverseOrderAndThoseThatComeLaterAtOnce) {
  StepLoans loans;
  std::vector<int> given_back;
  for (const int i : {1, 2, 3}) loans.Lend([&given_back, i] { given_back.push_back(i); });
  loans.GiveBack();
  EXPECT_EQ(given_back, (std::vector<int>{3, 2, 1}));
  loans.Settle();
  loans.Lend([&] { given_back.push_back(4); });
  loans.GiveBack();
  EXPECT_EQ(given_back, (std::vector<int>{3, 2, 1, 4}));

  StepLoans settled;
  settled.Lend([&] { given_back.push_back(5); });
  settled.Settle();
  settled.Lend([&] { given_back.push_back(6); });
  settled.GiveBack();
  EXPECT_EQ(given_back.size(), 4u);
}

TEST_F(StepRendezvousTest, ItSaysWhatItWaitsForByItsNameOnTheWireAndSinceWhen) {
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  clock_.Advance(absl::Milliseconds(1500));
  EXPECT_EQ(step->Describe(edges_->recvs[0].numbers[0]),
            "tensor 'g' of /job:worker/replica:0/task:0, for 1.5s");
  EXPECT_EQ(step->Describe(edges_->sends[0].numbers[0]), "");
}

TEST_F(StepRendezvousTest, PushesOfATracedStepHearWhenEachTensorWasSent) {
  for (const bool traced : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(traced ? 1 : 2, edges_));
    if (traced) step->TraceSends();
    const int64_t before = absl::GetCurrentTimeNanos();
    ASSERT_OK(step->Send(Transfer(edges_->sends[0].numbers[1]), Tensor::Scalar(1.0f), false));
    const int64_t after = absl::GetCurrentTimeNanos();
    auto sink = std::make_shared<Recorder>();
    step->Push(edges_->sends[0], kLink, sink);
    ASSERT_EQ(sink->values.size(), 1u);
    ASSERT_EQ(sink->times.size(), traced ? 1u : 0u);
    if (!traced) continue;
    // When it was sent, not when there was a link.
    EXPECT_GE(sink->times.at(1).ready_ns, before);
    EXPECT_LE(sink->times.at(1).ready_ns, after);
    EXPECT_EQ(sink->times.at(1).left_ns, 0);
  }
}

TEST_F(StepRendezvousTest, ARequestThatComesFirstWaitsForTheStep) {
  CancellationManager call;
  const Heard heard = Ask(1, &call);
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  for (const char* edge : {"a", "b", "c"}) {
    ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
  }
  table_->End(step.get(), absl::OkStatus());
  EXPECT_TRUE(IsAllOk(heard));
  EXPECT_EQ(table_->num_steps(), 0);
}

TEST_F(StepRendezvousTest, WhileCorkedTensorsThatAreReadyAtOnceLeaveTogether) {
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  auto sink = std::make_shared<Recorder>();
  step->Push(edges_->sends[0], kLink, sink);
  {
    StepRendezvous::Cork cork(step.get());
    ASSERT_OK(step->Send(KeyOf("a"), Tensor::Scalar(1.0f), false));
    EXPECT_EQ(sink->events, (std::vector<std::string>{"0"}));
    ASSERT_OK(step->Send(KeyOf("b"), Tensor::Scalar(1.0f), false));
    // The last that needs nothing from others: no reason to hold them longer.
    EXPECT_EQ(sink->events, (std::vector<std::string>{"0", "1", "flush"}));
  }
  ASSERT_OK(step->Send(KeyOf("c"), Tensor::Scalar(1.0f), false));
  EXPECT_EQ(sink->events.back(), "OK");
}

TEST_F(StepRendezvousTest, TheEndOfTheCorkFlushes) {
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  auto sink = std::make_shared<Recorder>();
  step->Push(edges_->sends[0], kLink, sink);
  {
    StepRendezvous::Cork cork(step.get());
    ASSERT_OK(step->Send(KeyOf("a"), Tensor::Scalar(1.0f), false));
  }
  EXPECT_EQ(sink->events, (std::vector<std::string>{"0", "flush"}));
}

// --- Groups --------------------------------------------------------------------------------------

// a and b of wave 0, c of wave 2; d has no wave.
class StepGroupsTest : public StepRendezvousTest {
 protected:
  StepGroupsTest() {
    tensorflow::GraphDef graph = PsGraph();
    *graph.add_node() = EndOf("send_d", true, "d", kPs, kWorker);
    for (tensorflow::NodeDef& node : *graph.mutable_node()) {
      if (node.name() == "send_d" || node.op() == "_Recv") continue;
      SetAttr(int64_t{node.name() == "send_c" ? 2 : 0}, &(*node.mutable_attr())["_wave"]);
    }
    graph_ = graph;
    auto edges = EdgesOf(graph, TransfersOf(graph));
    EXPECT_OK(edges);
    edges_ = std::make_shared<const StepEdges>(*std::move(edges));
    auto step = table_->Start(1, edges_);
    EXPECT_OK(step);
    step_ = *std::move(step);
  }
  void BeginPush() { step_->Push(edges_->sends[0], kLink, sink_); }
  void Send(const char* edge, bool is_dead = false) {
    ASSERT_OK(step_->Send(KeyOf(edge), is_dead ? Tensor() : Tensor::Scalar(1.0f), is_dead));
  }
  using Events = std::vector<std::string>;

  tensorflow::GraphDef graph_;
  std::shared_ptr<StepRendezvous> step_;
  const std::shared_ptr<Recorder> sink_ = std::make_shared<Recorder>();
};

TEST_F(StepGroupsTest, EdgesKnowTheGroupOfWhatTheySend) {
  const StepEdges::Peer& sends = edges_->sends[0];
  EXPECT_EQ(sends.groups, (std::vector<int>{0, 0, 1, StepEdges::kNoGroup}));
  EXPECT_EQ(sends.group_sizes, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(sends.immediate, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(sends.num_immediate, 1);
  EXPECT_TRUE(edges_->recvs[0].groups.empty());
}

TEST_F(StepGroupsTest, AGroupLeavesWithItsLastCorkedOrNot) {
  BeginPush();
  StepRendezvous::Cork cork(step_.get());
  Send("b");
  EXPECT_EQ(sink_->events, Events{"1"});
  Send("a");
  EXPECT_EQ(sink_->events, (Events{"1", "0", "flush"}));
  Send("c");
  EXPECT_EQ(sink_->events, (Events{"1", "0", "flush", "2", "flush"}));
  Send("d");
  EXPECT_EQ(sink_->events.back(), "OK");
}

TEST_F(StepGroupsTest, ADeadTensorIsOneOfItsGroup) {
  BeginPush();
  Send("a", /*is_dead=*/true);
  Send("b");
  EXPECT_EQ(sink_->events, (Events{"0 dead", "1", "flush"}));
}

TEST_F(StepGroupsTest, WhatHasNoWaveLeavesAtOnceAndTakesAlongWhatIsThere) {
  BeginPush();
  Send("a");
  Send("d");
  EXPECT_EQ(sink_->events, (Events{"0", "3", "flush"}));
  Send("b");
  EXPECT_EQ(sink_->events, (Events{"0", "3", "flush", "1", "flush"}));
}

TEST_F(StepGroupsTest, ALargeTensorLeavesAtOnce) {
  BeginPush();
  const Tensor large = *Tensor::Zeros(DT_FLOAT, Shape::Vector(SendGroups::kLargeBytes / 4));
  ASSERT_OK(step_->Send(KeyOf("a"), large, false));
  EXPECT_EQ(sink_->events, (Events{"0", "flush"}));
  Send("b");
  EXPECT_EQ(sink_->events, (Events{"0", "flush", "1", "flush"}));
}

TEST_F(StepGroupsTest, AFailureLetsNothingWait) {
  BeginPush();
  Send("a");
  table_->End(step_.get(), absl::InternalError("broken"));
  ASSERT_EQ(sink_->events.size(), 2u);
  EXPECT_NE(sink_->events[1].find("broken"), std::string::npos) << sink_->events[1];
}

// Not after a run that sends all; whatever it is, nothing is held back.
TEST_F(StepGroupsTest, TheEndOfTheRunLetsNothingWait) {
  BeginPush();
  Send("a");
  table_->End(step_.get(), absl::OkStatus());
  EXPECT_EQ(sink_->events, (Events{"0", "flush"}));
}

TEST_F(StepGroupsTest, APushThatComesLateHasWholeGroups) {
  for (const char* edge : {"a", "b", "c", "d"}) Send(edge);
  BeginPush();
  EXPECT_EQ(sink_->events, (Events{"0", "1", "flush", "2", "flush", "3", "OK"}));
}

TEST_F(StepGroupsTest, MalformedWavesAreRefused) {
  const auto transfers = TransfersOf(graph_);
  SetAttr(int64_t{-2}, &(*graph_.mutable_node(0)->mutable_attr())["_wave"]);
  EXPECT_STATUS(EdgesOf(graph_, transfers), absl::StatusCode::kInvalidArgument,
                "'send_b': attr '_wave' must be >= 0, got -2");
  SetAttr(DT_FLOAT, &(*graph_.mutable_node(0)->mutable_attr())["_wave"]);
  EXPECT_STATUS(EdgesOf(graph_, transfers), absl::StatusCode::kInvalidArgument, "_wave");
}

// --- Errors --------------------------------------------------------------------------------------

TEST_F(StepRendezvousTest, AnErrorReachesThoseWhoWaitAndThoseWhoComeLate) {
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  auto early = std::make_shared<Recorder>();
  step->Push(edges_->sends[0], kLink, early);
  const Heard waiting = Ask(1);
  table_->End(step.get(), absl::InternalError("broken"));
  ASSERT_EQ(early->events.size(), 1u);
  EXPECT_NE(early->events[0].find("[_Derived_]broken"), std::string::npos) << early->events[0];
  EXPECT_TRUE(step->cancellation()->IsCancelled());
  for (const Heard& heard : {waiting, Ask(1)}) {
    ASSERT_EQ(heard->size(), 3u);
    for (const std::string& status : *heard) {
      EXPECT_NE(status.find("broken"), std::string::npos) << status;
    }
  }
}

TEST_F(StepRendezvousTest, APlanThatCallsOtherTasksByOtherNamesServesTheNamesOnTheWire) {
  constexpr char kPeer[] = "/job:peer0/replica:0/task:0";
  tensorflow::GraphDef plan;
  for (const char* edge : {"a", "b"}) {
    *plan.add_node() = EndOf(absl::StrCat("send_", edge), true, edge, kPs, kPeer);
  }
  tensorflow::GraphDef wire;
  for (const char* edge : {"b", "a"}) {
    *wire.add_node() = EndOf(absl::StrCat("send_", edge), true, edge, kPs, kWorker);
  }
  const std::shared_ptr<const TransferTable> transfers = TransfersOf(plan);
  ASSERT_OK_AND_ASSIGN(StepEdges edges, EdgesOf(wire, transfers));
  ASSERT_OK_AND_ASSIGN(const auto step,
                       table_->Start(1, std::make_shared<const StepEdges>(std::move(edges))));
  std::vector<float> got;
  for (const char* edge : {"a", "b"}) {
    step->ServeTensor(KeyOf(edge).text, nullptr, [&](const Status& status, Tensor value, bool) {
      ASSERT_OK(status);
      got.push_back(value.scalar<float>());
    });
  }
  const auto send = [&](const char* node, float value) {
    return step->Send(Transfer(transfers->NumberOfNode(node)), Tensor::Scalar(value), false);
  };
  ASSERT_OK(send("send_b", 2));
  ASSERT_OK(send("send_a", 1));
  EXPECT_EQ(got, (std::vector<float>{2, 1}));
}

// What a foreign master's step receives it asks for, as its _Recv wants it, by the name on the
// wire; what comes from its own task it takes there.
TEST_F(StepRendezvousTest, AForeignStepAsksForWhatItReceives) {
  std::vector<std::string> fetched;
  std::vector<Rendezvous::DoneCallback> answers;
  ASSERT_OK_AND_ASSIGN(const auto step,
                       table_->Start(1, edges_, {}, nullptr,
                                     [&](const std::string& task, const std::string& key,
                                         Rendezvous::DoneCallback done) {
                                       fetched.push_back(absl::StrCat(task, " ", key));
                                       answers.push_back(std::move(done));
                                     }));
  std::vector<std::string> received;
  const auto receive = [&](uint32_t number) {
    step->RecvAsync(Transfer(number), [&](const Status& status, Tensor, bool) {
      received.push_back(status.ToString());
    });
  };
  EXPECT_TRUE(fetched.empty());
  receive(edges_->recvs[0].numbers[0]);
  EXPECT_EQ(fetched,
            std::vector<std::string>{absl::StrCat(kWorker, " ", edges_->recvs[0].wire_keys[0])});
  EXPECT_TRUE(received.empty());
  answers[0](absl::OkStatus(), Tensor::Scalar(3.0f), false);
  EXPECT_EQ(received, std::vector<std::string>{"OK"});
  receive(edges_->sends[0].numbers[0]);
  EXPECT_EQ(fetched.size(), 1u);
  step->StartAbort(absl::AbortedError("broken"));
  ASSERT_EQ(received.size(), 2u);
  receive(edges_->recvs[0].numbers[0]);
  EXPECT_EQ(fetched.size(), 1u);
  ASSERT_EQ(received.size(), 3u);
  EXPECT_NE(received[2].find("broken"), std::string::npos) << received[2];
}

// So do its loops, for each iteration, and a step that has ended stays until all of what they have
// sent was fetched.
TEST_F(StepRendezvousTest, LoopsFetchTheTensorsOfTheirIterations) {
  constexpr char kPeer[] = "/job:peer0/replica:0/task:0";
  tensorflow::GraphDef plan, wire;
  auto table = std::make_shared<TransferTable>();
  for (const bool on_wire : {false, true}) {
    const char* const other = on_wire ? kWorker : kPeer;
    tensorflow::GraphDef& graph = on_wire ? wire : plan;
    *graph.add_node() = EndOf("send_s", true, "s", kPs, other);
    *graph.add_node() = EndOf("recv_r", false, "r", other, kPs);
  }
  for (const tensorflow::NodeDef& node : plan.node()) {
    table->Add(*RendezvousKey::Of(&node), node.name(), /*in_loop=*/true);
  }
  ASSERT_OK_AND_ASSIGN(StepEdges edges, EdgesOf(wire, table));
  ASSERT_EQ(edges.sends.size(), 1u);
  EXPECT_TRUE(edges.sends[0].numbers.empty());
  ASSERT_EQ(edges.recvs.size(), 1u);
  EXPECT_TRUE(edges.recvs[0].numbers.empty());
  EXPECT_EQ(edges.num_sends, 0);
  std::vector<std::string> fetched;
  std::vector<Rendezvous::DoneCallback> answers;
  ASSERT_OK_AND_ASSIGN(
      const auto step,
      table_->Start(
          1, std::make_shared<const StepEdges>(std::move(edges)), {}, nullptr,
          [&](const std::string& task, const std::string& key, Rendezvous::DoneCallback done) {
            fetched.push_back(task + " " + key);
            answers.push_back(std::move(done));
          }));
  const Transfer r(table->NumberOfNode("recv_r"), "", 77, 4);
  Tensor received;
  step->RecvAsync(r, [&](const Status& status, Tensor value, bool) {
    EXPECT_OK(status);
    received = std::move(value);
  });
  const std::string root = RendezvousKey::Make(std::string(kWorker) + "/device:CPU:0", 42,
                                               std::string(kPs) + "/device:CPU:0", "r", 77, 4);
  EXPECT_EQ(fetched, std::vector<std::string>{std::string(kWorker) + " " + root});
  answers[0](absl::OkStatus(), Tensor::Scalar(3.0f), false);
  ExpectTensorEqual(received, Tensor::Scalar(3.0f));
  EXPECT_NE(step->Describe(r.number).find("tensor 'r' of /job:worker"), std::string::npos);

  ASSERT_OK(
      step->Send(Transfer(table->NumberOfNode("send_s"), "", 77, 0), Tensor::Scalar(1.0f), false));
  ASSERT_OK(step->Send(Transfer(table->NumberOfNode("send_s"), "", 77, 1), Tensor(), true));
  table_->End(step.get(), absl::OkStatus());
  EXPECT_EQ(table_->num_steps(), 1);
  for (const int64_t iteration : {1, 0}) {
    const std::string key = RendezvousKey::InFrame(KeyOf("s").text, 77, iteration);
    bool served = false;
    table_->FindOrExpect(1)->ServeTensor(key, nullptr,
                                         [&](const Status& status, Tensor value, bool is_dead) {
                                           EXPECT_OK(status);
                                           EXPECT_EQ(is_dead, iteration == 1);
                                           EXPECT_EQ(value.has_value(), iteration == 0);
                                           served = true;
                                         });
    EXPECT_TRUE(served);
  }
  EXPECT_EQ(table_->num_steps(), 0);
}

TEST_F(StepRendezvousTest, AStepRunsOnce) {
  ASSERT_OK(table_->Start(1, edges_));
  EXPECT_STATUS(table_->Start(1, edges_), absl::StatusCode::kAlreadyExists, "Step 1");
}

TEST_F(StepRendezvousTest, EndedStepsThatNobodyFetchedExpire) {
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  table_->End(step.get(), absl::OkStatus());
  table_->Sweep();
  EXPECT_EQ(table_->num_steps(), 1);
  clock_.Advance(StepTable::kEndedExpiry + absl::Seconds(1));
  table_->Sweep();
  EXPECT_EQ(table_->num_steps(), 0);
}

TEST_F(StepRendezvousTest, ATensorThatIsNotWaitedForAnyMoreLeavesNothing) {
  std::vector<std::string> answers;
  const auto record = [&](const Status& status, Tensor, bool) {
    answers.push_back(status.ToString());
  };
  CancellationManager first, second;
  table_->FindOrExpect(1)->ServeTensor(KeyOf("a").text, &first, record);
  table_->FindOrExpect(1)->ServeTensor(KeyOf("a").text, &second, record);
  first.StartCancel();
  EXPECT_EQ(table_->num_steps(), 1);
  second.StartCancel();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_NE(answers[1].find("CANCELLED"), std::string::npos);
  EXPECT_EQ(table_->num_steps(), 0);
  // The caller may have gone before its wait begins.
  table_->FindOrExpect(1)->ServeTensor(KeyOf("a").text, &second, record);
  EXPECT_EQ(answers.size(), 3u);
  EXPECT_EQ(table_->num_steps(), 0);
}

TEST_F(StepRendezvousTest, ASecondRequestForTheSameTensorsEndsWithTheStepAndKeepsNothing) {
  Heard first, second;
  std::weak_ptr<StepRendezvous> kept;
  {
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
    kept = step;
    first = Ask(1);
    second = Ask(1);
    for (const char* edge : {"a", "b", "c"}) {
      ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
    }
    table_->End(step.get(), absl::OkStatus());
  }
  EXPECT_TRUE(IsAllOk(first));
  EXPECT_EQ(table_->num_steps(), 0);
  EXPECT_TRUE(kept.expired());
  ASSERT_EQ(second->size(), 3u);
  for (const std::string& heard : *second) {
    EXPECT_NE(heard.find("CANCELLED"), std::string::npos) << heard;
  }
}

// A hundred times what there is room for, by steps that ran and by calls that were refused.
TEST_F(StepRendezvousTest, StepsThatFailAreRememberedWithinABoundAndDriveOutNoOther) {
  constexpr int64_t kBound = 64 << 10;
  ServerLimits limits;
  limits.max_failed_step_bytes = kBound;
  table_ = std::make_shared<StepTable>(&clock_, limits);
  const auto session = std::make_shared<SessionLife>();
  ASSERT_OK_AND_ASSIGN(const auto running, table_->Start(-1, edges_, session));
  ASSERT_OK_AND_ASSIGN(const auto untaken, table_->Start(-2, edges_, session));
  for (const char* edge : {"a", "b", "c"}) {
    ASSERT_OK(untaken->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
  }
  table_->End(untaken.get(), absl::OkStatus());

  const Status why = absl::AbortedError(absl::StrCat("Session gone ", std::string(10'000, 'x')));
  constexpr int64_t kSteps = 100 * kBound / static_cast<int64_t>(kMaxKeptMessageBytes);
  for (int64_t id = 1; id <= kSteps; ++id) {
    if (id % 2 == 0) {
      ASSERT_OK_AND_ASSIGN(const auto failed, table_->Start(id, edges_, session));
      table_->End(failed.get(), why);
    } else {
      table_->Refuse(id, why);
    }
    ASSERT_LE(table_->failed_bytes(), kBound);
  }
  EXPECT_LE(table_->num_steps(), kBound / static_cast<int64_t>(kMaxKeptMessageBytes) + 2);
  // Late comers hear the beginning of the reason.
  const Heard late = Ask(kSteps);
  ASSERT_EQ(late->size(), 3u);
  EXPECT_NE(late->front().find("Session gone xxx"), std::string::npos);
  EXPECT_LT(late->front().size(), 2 * kMaxKeptMessageBytes);

  EXPECT_TRUE(IsAllOk(Ask(-2)));
  EXPECT_OK(running->aborted());
  clock_.Advance(StepTable::kEndedExpiry + absl::Seconds(1));
  table_->Refuse(-3, why);
  EXPECT_EQ(table_->num_steps(), 2);  // that one, and the one that runs
}

TEST_F(StepRendezvousTest, ACallOfAnotherSessionDoesNotEndAStepThatRuns) {
  ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(1, edges_));
  table_->Refuse(1, absl::AbortedError("Session handle is not found"));
  EXPECT_OK(step->aborted());
  // One that is only expected hears of it.
  const Heard heard = Ask(2);
  table_->Refuse(2, absl::AbortedError("Session handle is not found"));
  ASSERT_EQ(heard->size(), 3u);
  EXPECT_NE(heard->front().find("Session handle is not found"), std::string::npos);
}

TEST_F(StepRendezvousTest, ASessionWhoseStepsNobodyTakesLosesItsOwnOnly) {
  ServerLimits limits;
  limits.max_untaken_steps = 10;
  table_ = std::make_shared<StepTable>(&clock_, limits);
  const auto honest = std::make_shared<SessionLife>(), other = std::make_shared<SessionLife>();
  const auto run = [&](int64_t id, const std::shared_ptr<SessionLife>& session,
                       const std::shared_ptr<StepLoans>& loans) {
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(id, edges_, session, loans));
    for (const char* edge : {"a", "b", "c"}) {
      ASSERT_OK(step->Send(KeyOf(edge), Tensor::Scalar(1.0f), false));
    }
    table_->End(step.get(), absl::OkStatus());
  };
  ASSERT_NO_FATAL_FAILURE(run(-1, honest, nullptr));
  int given_back = 0;
  for (int64_t id = 1; id <= 1000; ++id) {
    const auto loans = std::make_shared<StepLoans>();
    loans->Lend([&given_back] { ++given_back; });
    ASSERT_NO_FATAL_FAILURE(run(id, other, loans));
    ASSERT_LE(table_->num_steps(), 11);
  }
  EXPECT_EQ(given_back, 990);
  for (const int64_t id : {int64_t{-1}, int64_t{1000}}) {
    EXPECT_TRUE(IsAllOk(Ask(id))) << id;
  }
  // What was taken makes room.
  ASSERT_NO_FATAL_FAILURE(run(1001, other, nullptr));
  EXPECT_EQ(given_back, 990);
  other->End(absl::AbortedError("The session has ended"));
  table_->DropOfEndedSessions();
  EXPECT_EQ(given_back, 999);
}

TEST_F(StepRendezvousTest, BytesThatNobodyTakesAreBoundedInEachSessionAndTheLastStepStays) {
  constexpr int64_t kTensor = 1024;
  ServerLimits limits;
  limits.max_untaken_bytes = 10 * kTensor;
  table_ = std::make_shared<StepTable>(&clock_, limits);
  const auto honest = std::make_shared<SessionLife>(), other = std::make_shared<SessionLife>();
  // Sends "a", of so many bytes.
  const auto run = [&](int64_t id, const std::shared_ptr<SessionLife>& session, int64_t bytes) {
    ASSERT_OK_AND_ASSIGN(const auto step, table_->Start(id, edges_, session));
    const Tensor value = Tensor::Vector<float>(std::vector<float>(static_cast<size_t>(bytes) / 4));
    ASSERT_OK(step->Send(Transfer(edges_->sends[0].numbers[0]), value, false));
    EXPECT_EQ(step->untaken_bytes(), bytes);
    table_->End(step.get(), absl::OkStatus());
  };
  ASSERT_NO_FATAL_FAILURE(run(-1, honest, kTensor));
  for (int64_t id = 1; id <= 1000; ++id) {
    ASSERT_NO_FATAL_FAILURE(run(id, other, kTensor));
    ASSERT_LE(table_->num_steps(), 11);
  }
  EXPECT_EQ(table_->num_steps(), 11);
  ASSERT_NO_FATAL_FAILURE(run(1001, other, 100 * kTensor));
  EXPECT_EQ(table_->num_steps(), 2);
  for (const int64_t id : {int64_t{-1}, int64_t{1001}}) {
    const std::shared_ptr<StepRendezvous> step = table_->FindOrExpect(id);
    Status heard = absl::UnknownError("nothing was heard");
    step->ServeTensor(KeyOf("a").text, nullptr,
                      [&](const Status& status, Tensor, bool) { heard = status; });
    EXPECT_OK(heard) << id;
    EXPECT_EQ(step->untaken_bytes(), 0);
  }
}

TEST_F(StepRendezvousTest, MalformedTransfersAreRefused) {
  tensorflow::GraphDef graph = PsGraph();
  (*graph.mutable_node(0)->mutable_attr())["recv_device"].set_s("nonsense");
  EXPECT_STATUS(EdgesOf(graph, edges_->transfers), absl::StatusCode::kInvalidArgument, "");
  EXPECT_STATUS(EdgesOf(PsGraph(), nullptr), absl::StatusCode::kInternal,
                "'send_b' must have a number in its plan");
}

}  // namespace
}  // namespace millrace
