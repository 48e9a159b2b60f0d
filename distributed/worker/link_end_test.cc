// SPDX-License-Identifier: Apache-2.0
//
// A worker whose peer, at the other end of a link, is the test. Whole steps over links:
// distributed/link_steps_test.cc and distributed/master:master_links_test.
#include "distributed/worker/link_end.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/arena.h"
#include "core/hash64.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "core/visit.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/in_process_link.h"
#include "distributed/link/link.h"
#include "distributed/link/peer_links.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/run_times.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "gmock/gmock.h"
#include "graph/attr.h"
#include "gtest/gtest.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/step_loans.h"
#include "runtime/testing/step_ops.h"

// covers: clusters: a step over links: tensors that come before their step wait within a bound;
// what
//   does not fit ends the step, not the link; a lost link ends the steps that wait on it

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

std::string DeviceOf(absl::string_view task) { return absl::StrCat(task, "/device:CPU:0"); }

// The one link of the worker, when there is one.
class OneLink : public PeerLinks {
 public:
  void Get(absl::string_view task, Got got) override {
    if (holds) return held.push_back(std::move(got));
    if (link == nullptr) return got(absl::UnavailableError(absl::StrCat(task, " is not there")));
    got(link);
  }
  std::shared_ptr<Link> link;
  bool holds = false;  // it is still being dialled
  std::vector<Got> held;
};

// A link whose questions the test answers.
class AskedLink : public Link {
 public:
  AskedLink() { set_peer({kWorker, 2}); }
  Status Send(LinkMessage) override { return absl::OkStatus(); }
  void Flush() override {}
  void Acknowledge(int64_t, uint64_t) override {}
  void Ask(absl::AnyInvocable<void()> answered) override {
    questions.push_back(std::move(answered));
  }
  int64_t queued_bytes() const override { return 0; }
  void Close(const Status&) override {}
  std::vector<absl::AnyInvocable<void()>> questions;
};

// A link that takes no report, and writes down END.
class NoReportLink : public Link {
 public:
  NoReportLink() { set_peer({kWorker, 2}); }
  Status Send(LinkMessage message) override {
    const auto* const tensors = std::get_if<SentTensors>(&message);
    if (tensors != nullptr && tensors->purpose == TensorsPurpose::kReport) {
      return absl::ResourceExhaustedError("too much waits");
    }
    if (const auto* const sent = std::get_if<EndFrame>(&message)) {
      end = *sent;
      ended.Notify();
    }
    return absl::OkStatus();
  }
  void Flush() override {}
  void Acknowledge(int64_t, uint64_t) override {}
  void Ask(absl::AnyInvocable<void()>) override {}
  int64_t queued_bytes() const override { return 0; }
  void Close(const Status&) override {}
  EndFrame end;  // before `ended`
  Notification ended;
};

class LinkEndTest : public ::testing::Test {
 protected:
  LinkEndTest() { Start(); }
  ~LinkEndTest() override {
    Close();
    worker_->Shutdown(absl::AbortedError("Shutdown"));
  }

  void Start(const ServerLimits& limits = {},
             std::function<void(const SentTensors&)> on_tensors = nullptr) {
    Close();
    peer_ = std::make_shared<RecordingEnd>();
    peer_->on_tensors = std::move(on_tensors);
    WorkerOptions options;
    options.task = kPs;
    options.own_arena = Arena::Make(2);
    options.io_pool = IoPool::Default();
    options.limits = limits;
    options.links = &links_;
    worker_ = std::make_unique<Worker>(std::move(options));
    EXPECT_OK(worker_->CreateWorkerSession({.handle = "session"}));
    const std::shared_ptr<Worker> borrowed(std::shared_ptr<Worker>(), worker_.get());
    links_.link =
        OpenInProcessLink({kPs, 1}, std::make_shared<WorkerLinkEnd>(borrowed), {kWorker, 2}, peer_)
            .first;
  }
  void Close() {
    if (links_.link != nullptr) links_.link->Close(absl::AbortedError("the test is over"));
    links_.link = nullptr;
    if (peer_ != nullptr) peer_->LetGo();
  }

  tensorflow::NodeDef* AddEnd(const char* op, const std::string& edge, const char* src,
                              const char* dst) {
    tensorflow::NodeDef* const node = graph_.add_node();
    node->set_name(absl::StrCat(op, "_", edge));
    node->set_op(op);
    node->set_device(DeviceOf(kPs));
    const auto set = [&](const char* attr, const auto& value) {
      SetAttr(value, &(*node->mutable_attr())[attr]);
    };
    set(absl::string_view(op) == "_Recv" ? "tensor_type" : "T", DT_FLOAT);
    set("tensor_name", edge);
    set("send_device", DeviceOf(src));
    set("recv_device", DeviceOf(dst));
    set("send_device_incarnation", int64_t{42});
    set("client_terminated", false);
    return node;
  }
  // Receives each edge from the peer.
  std::string RegisterReceiver(const std::vector<std::string>& edges) {
    for (const std::string& edge : edges) AddEnd("_Recv", edge, kWorker, kPs);
    return Register();
  }
  // Sends the peer 1.5.
  std::string RegisterSender(const std::string& edge) {
    tensorflow::NodeDef* const constant = graph_.add_node();
    constant->set_name("constant");
    constant->set_op("Const");
    constant->set_device(DeviceOf(kPs));
    SetAttr(DT_FLOAT, &(*constant->mutable_attr())["dtype"]);
    SetAttr(Tensor::Scalar(1.5f), &(*constant->mutable_attr())["value"]);
    AddEnd("_Send", edge, kPs, kWorker)->add_input("constant");
    return Register();
  }
  // Sends the peer what the hook puts out.
  std::string RegisterTaker(const std::string& edge, const std::string& hook) {
    tensorflow::NodeDef* const taker = graph_.add_node();
    taker->set_name("taker");
    taker->set_op("TestProbeAsync");
    taker->set_device(DeviceOf(kPs));
    SetAttr(int64_t{0}, &(*taker->mutable_attr())["N"]);
    SetAttr(int64_t{1}, &(*taker->mutable_attr())["M"]);
    SetAttr(hook, &(*taker->mutable_attr())["hook"]);
    AddEnd("_Send", edge, kPs, kWorker)->add_input("taker");
    return Register();
  }
  std::string Register() {
    graph_.mutable_versions()->set_producer(134);
    const auto part = worker_->RegisterGraph({"session", std::exchange(graph_, {})});
    EXPECT_OK(part);
    if (!part.ok()) return "";
    EXPECT_EQ(part->link_version, kLinkVersion);
    return part->graph_handle;
  }
  // Of edges in the order of their names.
  static uint64_t FingerprintOf(const std::vector<std::string>& edges) {
    uint64_t fingerprint = 0;
    for (const std::string& edge : edges) {
      fingerprint = Hash64(RendezvousKey::Make(DeviceOf(kWorker), 42, DeviceOf(kPs), edge, 0, 0),
                           fingerprint + 1);
    }
    return fingerprint;
  }

  // --- What the peer sends
  void Bind(uint64_t number, const std::string& handle) {
    EXPECT_OK(peer_->link()->Send(BindFrame{number, "session", handle}));
  }
  void Run(int64_t step, uint64_t number) {
    RunFrame run;
    run.step_id = step;
    run.number = number;
    EXPECT_OK(peer_->link()->Send(run));
  }
  void SendTensor(int64_t step, uint64_t fingerprint, uint32_t index,
                  Tensor value = Tensor::Scalar(1.0f)) {
    SentTensors tensors;
    tensors.step_id = step;
    tensors.fingerprint = fingerprint;
    SentTensor& tensor = tensors.tensors.emplace_back();
    tensor.index = index;
    tensor.value = std::move(value);
    EXPECT_OK(peer_->link()->Send(std::move(tensors)));
  }
  // END of the step, as soon as it has come: "end step=1 OK".
  std::string EndOf(int64_t step) {
    const std::string begin = absl::StrCat("end step=", step, " ");
    for (int i = 0; i < 20'000; ++i) {
      for (const std::string& line : peer_->lines()) {
        if (line.compare(0, begin.size(), begin) == 0) return line;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    return "no END";
  }
  // The part of this task's own master; its status once it has ended.
  struct Call {
    tensorflow::RunGraphRequest request;
    tensorflow::RunGraphResponse response;
    std::vector<NamedTensor> received;
    Notification ended;
    Status status;
  };
  std::unique_ptr<Call> RunOwnPart(int64_t step, const std::string& handle,
                                   std::function<void()> at_end = nullptr) {
    auto call = std::make_unique<Call>();
    call->request.set_session_handle("session");
    call->request.set_graph_handle(handle);
    call->request.set_step_id(step);
    worker_->RunGraph(call->request, call->request, EdgesBy::kLinks, {}, /*block=*/false,
                      absl::InfiniteFuture(), nullptr, &call->response, &call->received,
                      [call = call.get(), at_end = std::move(at_end)](const Status& status) {
                        if (at_end) at_end();
                        call->status = status;
                        call->ended.Notify();
                      });
    return call;
  }

  tensorflow::GraphDef graph_;
  OneLink links_;
  std::shared_ptr<RecordingEnd> peer_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(LinkEndTest, APartRunsByItsNumberAndEndsWhenItsTensorsHaveCome) {
  Bind(7, RegisterReceiver({"a", "b"}));
  const uint64_t fingerprint = FingerprintOf({"a", "b"});
  for (const int64_t step : {1, 2}) {
    Run(step, 7);
    SendTensor(step, fingerprint, 1);
    EXPECT_EQ(worker_->num_steps(), 1);
    SendTensor(step, fingerprint, 0);
    EXPECT_EQ(EndOf(step), absl::StrCat("end step=", step, " OK"));
  }
}

// The network's thread would read nothing, not even PING, while the second one runs.
TEST_F(LinkEndTest, APartThatTheVisitDoesNotTakeRunsOnAThreadThatComputes) {
  Mutex mu;
  std::map<int64_t, std::thread::id> ran_by;  // by step
  Start({}, [&](const SentTensors& tensors) {
    MutexLock lock(&mu);
    ran_by[tensors.step_id] = std::this_thread::get_id();
  });
  Bind(1, RegisterSender("a"));
  Visit visit;
  Run(1, 1);
  Run(2, 1);
  EXPECT_EQ(EndOf(2), "end step=2 OK");  // before the visit's work begins
  {
    MutexLock lock(&mu);
    EXPECT_EQ(ran_by.count(1), 0u);
    EXPECT_NE(ran_by[2], std::this_thread::get_id());
  }
  Visit::Work* const work = visit.End();
  ASSERT_NE(work, nullptr);
  Visit::Run(work);
  EXPECT_EQ(EndOf(1), "end step=1 OK");
}

TEST_F(LinkEndTest, WhatAPartSendsIsPushedUnasked) {
  Bind(1, RegisterSender("a"));
  Run(5, 1);
  EXPECT_EQ(EndOf(5), "end step=5 OK");
  ASSERT_EQ(peer_->tensors().size(), 1u);
  EXPECT_EQ(peer_->tensors()[0].index, 0u);
  ExpectTensorEqual(peer_->tensors()[0].value, Tensor::Scalar(1.5f));
  // It is in the peer's memory.
  for (int i = 0; i < 20'000 && worker_->num_steps() > 0; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(worker_->num_steps(), 0);
}

TEST_F(LinkEndTest, TensorsThatComeBeforeTheirStepWaitForIt) {
  Bind(1, RegisterReceiver({"a", "b"}));
  const uint64_t fingerprint = FingerprintOf({"a", "b"});
  SendTensor(3, fingerprint, 0);
  EXPECT_GE(worker_->parked_bytes(), 4);
  Run(3, 1);
  EXPECT_EQ(worker_->parked_bytes(), 0);
  SendTensor(3, fingerprint, 1);
  EXPECT_EQ(EndOf(3), "end step=3 OK");
  // As the own part of this task's master, too.
  const std::string handle = RegisterReceiver({"c"});
  SendTensor(4, FingerprintOf({"c"}), 0);
  const auto call = RunOwnPart(4, handle);
  call->ended.Wait();
  EXPECT_OK(call->status);
}

TEST_F(LinkEndTest, BeyondTheBoundTheStepFailsAndOthersGoOn) {
  ServerLimits limits;
  limits.max_parked_bytes = 10'000;
  Start(limits);
  Bind(1, RegisterReceiver({"a"}));
  const uint64_t fingerprint = FingerprintOf({"a"});
  const Tensor large =
      Tensor::Vector<float>(std::vector<float>(static_cast<size_t>(kDefaultWindowBytes) / 4));
  // What comes alone has room, and three windows beyond the bound.
  for (const int64_t step : {1, 2, 3, 4}) SendTensor(step, fingerprint, 0, large);
  EXPECT_GT(worker_->parked_bytes(), 4 * kDefaultWindowBytes);
  const int64_t parked = worker_->parked_bytes();
  SendTensor(5, fingerprint, 0);
  EXPECT_EQ(worker_->parked_bytes(), parked);
  Run(5, 1);
  EXPECT_THAT(EndOf(5), HasSubstr("Step 5: what /job:worker/replica:0/task:0 pushes: bytes for "
                                  "steps that have not begun must be at most 10000 "
                                  "(ServerLimits::max_parked_bytes), got "));
  // The next try may find room.
  EXPECT_TRUE(absl::IsUnavailable(peer_->last_end().status));
  for (const int64_t step : {1, 2, 3, 4}) {
    Run(step, 1);
    EXPECT_EQ(EndOf(step), absl::StrCat("end step=", step, " OK"));
  }
  EXPECT_EQ(worker_->parked_bytes(), 0);
  Run(6, 1);
  SendTensor(6, fingerprint, 0);
  EXPECT_EQ(EndOf(6), "end step=6 OK");
}

TEST_F(LinkEndTest, WhatDoesNotFitEndsTheStepAndNotTheLink) {
  Bind(1, RegisterReceiver({"a", "b"}));
  const uint64_t fingerprint = FingerprintOf({"a", "b"});
  const std::string prefix = "Push from /job:worker/replica:0/task:0: ";
  const struct {
    std::function<void(int64_t step)> send;
    std::string error;
  } kCases[] = {
      {[&](int64_t step) { SendTensor(step, fingerprint + 1, 0); },
       prefix + "both tasks must have parts of one graph, got tensors of other names"},
      {[&](int64_t step) { SendTensor(step, fingerprint, 2); },
       prefix + "the number of a tensor in no loop must be below 2, got 2"},
      {[&](int64_t step) {
         SendTensor(step, fingerprint, 1);
         SendTensor(step, fingerprint, 1);
       },
       prefix + "each tensor must come once, got number 1 twice"},
      {[&](int64_t step) {
         SentTensors tensors;
         tensors.step_id = step;
         tensors.fingerprint = fingerprint;
         SentTensor& tensor = tensors.tensors.emplace_back();
         tensor.value = Tensor::Scalar(1.0f);
         tensor.in_loop = true;
         EXPECT_OK(peer_->link()->Send(std::move(tensors)));
       },
       prefix + "the number of a tensor in a loop must be below 0, got 0"},
      {[&](int64_t step) { SendTensor(step, fingerprint, 0, Tensor::Scalar(1.0)); },
       "must be of type float"},
  };
  int64_t step = 0;
  for (const auto& c : kCases) {
    for (const bool before : {false, true}) {
      ++step;
      if (before) c.send(step);
      Run(step, 1);
      if (!before) c.send(step);
      EXPECT_THAT(EndOf(step), HasSubstr(c.error)) << before;
    }
  }
  ++step;
  Run(step, 1);
  SendTensor(step, fingerprint, 0);
  SendTensor(step, fingerprint, 1);
  EXPECT_EQ(EndOf(step), absl::StrCat("end step=", step, " OK"));
  EXPECT_EQ(peer_->num_losses(), 0);
}

TEST_F(LinkEndTest, AStrangersMessagesChangeNothing) {
  Bind(1, RegisterReceiver({"a"}));
  const uint64_t fingerprint = FingerprintOf({"a"});
  const auto link = peer_->link();
  SentTensors results;
  results.step_id = 99;
  results.purpose = TensorsPurpose::kResults;
  results.tensors.emplace_back().value = Tensor::Scalar(1.0f);
  EXPECT_OK(link->Send(results));
  results.purpose = TensorsPurpose::kArgs;
  EXPECT_OK(link->Send(results));
  EndFrame end;
  end.step_id = 99;
  EXPECT_OK(link->Send(end));
  EXPECT_OK(link->Send(CancelFrame{99, absl::CancelledError("no such step")}));
  EXPECT_OK(link->Send(UnbindFrame{99}));
  EXPECT_EQ(worker_->num_steps(), 0);
  EXPECT_EQ(worker_->parked_bytes(), 0);
  // A step that never begins is kept within the bound, and in no one's way.
  SendTensor(99, 12345, 77);
  EXPECT_EQ(worker_->num_steps(), 1);
  Run(1, 1);
  SendTensor(1, fingerprint, 0);
  EXPECT_EQ(EndOf(1), "end step=1 OK");
  EXPECT_EQ(peer_->num_losses(), 0);
}

TEST_F(LinkEndTest, MessagesThatComeTwiceAreRefusedOrChangeNothing) {
  const std::string handle = RegisterReceiver({"a"});
  Bind(1, handle);
  Bind(1, handle);
  Run(1, 1);
  Run(1, 1);
  EXPECT_THAT(EndOf(1), HasSubstr("RUN of step 1 must come once by a link, got it twice"));
  // The first one goes on.
  SendTensor(1, FingerprintOf({"a"}), 0);
  const auto ended_well = [this] {
    const std::vector<std::string> lines = peer_->lines();
    return std::count(lines.begin(), lines.end(), "end step=1 OK") == 1;
  };
  for (int i = 0; i < 20'000 && !ended_well(); ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(ended_well());
  Run(2, 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_OK(peer_->link()->Send(CancelFrame{2, absl::CancelledError("enough")}));
  }
  EXPECT_THAT(EndOf(2), Not(HasSubstr("OK")));
  for (int i = 0; i < 2; ++i) EXPECT_OK(peer_->link()->Send(UnbindFrame{1}));
  Run(3, 1);
  EXPECT_THAT(EndOf(3), HasSubstr("its graph must be bound"));
  EXPECT_EQ(peer_->num_losses(), 0);
}

TEST_F(LinkEndTest, APartWhoseReportCannotBeSentHasEndedWell) {
  const auto link = std::make_shared<NoReportLink>();
  WorkerLinkEnd end(std::shared_ptr<Worker>(std::shared_ptr<Worker>(), worker_.get()));
  end.OnOpen(link);
  end.OnBind({1, "session", RegisterSender("a")});
  RunFrame run;
  run.step_id = 5;
  run.number = 1;
  run.wants_trace = true;
  end.OnRun(run);
  link->ended.Wait();
  EXPECT_OK(link->end.status);
  EXPECT_FALSE(link->end.has_report);
  end.OnLost(absl::UnavailableError("the test is over"), /*by_peer=*/false);
}

// What is sent has its times, and the report comes before END.
TEST_F(LinkEndTest, APartThatIsTracedSendsTimesAndItsReport) {
  std::vector<SentTensors> came;
  Mutex mu;
  Start({}, [&](const SentTensors& tensors) {
    MutexLock lock(&mu);
    came.push_back(tensors);
  });
  AddEnd("_Recv", "b", kWorker, kPs);
  Bind(1, RegisterSender("a"));
  const int64_t before_ns = absl::GetCurrentTimeNanos();
  for (const bool traced : {true, false}) {
    RunFrame run;
    run.step_id = traced ? 1 : 2;
    run.number = 1;
    run.wants_trace = traced;
    run.wants_graphs = true;
    EXPECT_OK(peer_->link()->Send(run));
    SendTensor(run.step_id, FingerprintOf({"b"}), 0);
    EXPECT_THAT(EndOf(run.step_id), HasSubstr(" OK"));
    EXPECT_TRUE(peer_->last_end().has_report);
    MutexLock lock(&mu);
    ASSERT_EQ(came.size(), 2u);
    EXPECT_EQ(came[0].purpose, TensorsPurpose::kEdges);
    const SentTensor& edge = came[0].tensors.at(0);
    EXPECT_EQ(edge.ready_ns >= before_ns, traced);
    EXPECT_EQ(edge.left_ns >= before_ns, traced);
    EXPECT_LE(edge.ready_ns, edge.left_ns);
    EXPECT_EQ(came[1].purpose, TensorsPurpose::kReport);
    ASSERT_EQ(came[1].tensors.size(), 1u);
    const Tensor bytes = came[1].tensors[0].value;
    tensorflow::RunGraphResponse report;
    ASSERT_TRUE(report.ParseFromArray(bytes.flat<uint8_t>().data(),
                                      static_cast<int>(bytes.num_elements())));
    EXPECT_EQ(report.partition_graph_size(), 1);
    EXPECT_EQ(report.has_step_stats(), traced);
    std::set<std::string> devices;
    for (const auto& device : report.step_stats().dev_stats()) devices.insert(device.device());
    // The peer's has the line of what came from there only if that had told its times.
    EXPECT_EQ(devices, traced ? std::set<std::string>{DeviceOf(kPs)} : std::set<std::string>());
    // By the caller's times it would be an exchange.
    AddCallerTimes(before_ns, absl::GetCurrentTimeNanos(), &report);
    EXPECT_EQ(ClockExchangeOf(report).has_value(), traced);
    came.clear();
  }
}

TEST_F(LinkEndTest, RunsThatCannotBeEndWithTheReason) {
  Run(1, 8);
  EXPECT_THAT(EndOf(1), HasSubstr("RUN of step 1 on /job:ps/replica:0/task:0: its graph must be "
                                  "bound, got number 8"));
  const std::string handle = RegisterReceiver({"a"});
  Bind(8, handle);
  Bind(8, handle);  // the same
  RunFrame run;
  run.step_id = 2;
  run.number = 8;
  run.num_args = 1;
  EXPECT_OK(peer_->link()->Send(run));
  EXPECT_THAT(EndOf(2), HasSubstr("all arguments must be of the master's own part, got 1"));
  EXPECT_OK(peer_->link()->Send(UnbindFrame{8}));
  Run(4, 8);
  EXPECT_THAT(EndOf(4), HasSubstr("its graph must be bound"));
  EXPECT_OK(peer_->link()->Send(BindFrame{9, "no session", "no graph"}));
  Run(5, 9);
  EXPECT_THAT(EndOf(5), HasSubstr("Session handle is not found"));
  EXPECT_EQ(peer_->num_losses(), 0);
  // Only what makes numbers ambiguous ends the link.
  EXPECT_OK(peer_->link()->Send(BindFrame{9, "session", "another graph"}));
  EXPECT_THAT(std::string(peer_->lost().message()),
              HasSubstr("BIND on /job:ps/replica:0/task:0: a number must stand for one graph"));
}

// Its sender does not wait for it, and the room is for others.
TEST_F(LinkEndTest, ARunThatIsRefusedDropsWhatHasComeForItsStep) {
  ServerLimits limits;
  limits.max_calls_of_connection = 2;
  Start(limits);
  const uint64_t fingerprint = FingerprintOf({"a", "b"});
  Bind(1, RegisterReceiver({"a", "b"}));
  for (const int64_t step : {1, 4}) Run(step, 1);
  SendTensor(2, fingerprint, 0);
  EXPECT_GT(worker_->parked_bytes(), 0);
  Run(2, 7);
  EXPECT_THAT(EndOf(2), HasSubstr("its graph must be bound, got number 7"));
  EXPECT_EQ(worker_->parked_bytes(), 0);
  EXPECT_EQ(peer_->received(2), 1u);
  SendTensor(3, fingerprint, 0);
  Run(3, 1);
  EXPECT_THAT(EndOf(3), HasSubstr("max_calls_of_connection"));
  EXPECT_EQ(worker_->parked_bytes(), 0);
  EXPECT_EQ(peer_->received(3), 1u);
  // One that comes twice goes on.
  for (const uint32_t index : {0u, 1u}) SendTensor(4, fingerprint, index);
  EXPECT_EQ(EndOf(4), "end step=4 OK");
  Run(1, 1);
  EXPECT_THAT(EndOf(1), HasSubstr("must come once by a link"));
  for (const uint32_t index : {0u, 1u}) SendTensor(1, fingerprint, index);
  for (int i = 0; i < 20'000 && !peer_->last_end().status.ok(); ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_OK(peer_->last_end().status);
}

TEST_F(LinkEndTest, GraphsOfALinkAreBounded) {
  ServerLimits limits;
  limits.max_graphs = 2;
  Start(limits);
  const std::string handle = RegisterSender("a");
  for (const uint64_t number : {uint64_t{1}, uint64_t{2}, uint64_t{3}}) Bind(number, handle);
  Run(1, 3);
  EXPECT_EQ(EndOf(1),
            "end step=1 BIND on /job:ps/replica:0/task:0: graphs of one link must be at most 2 "
            "(ServerLimits::max_graphs), got 3");
  EXPECT_TRUE(absl::IsResourceExhausted(peer_->last_end().status));
  // Steps of the others go on, what is forgotten makes room, and the same may be said twice.
  Bind(2, handle);
  Run(2, 2);
  EXPECT_EQ(EndOf(2), "end step=2 OK");
  EXPECT_OK(peer_->link()->Send(UnbindFrame{1}));
  Bind(3, handle);
  Run(3, 3);
  EXPECT_EQ(EndOf(3), "end step=3 OK");
  EXPECT_EQ(peer_->num_losses(), 0);
}

TEST_F(LinkEndTest, HandlesOfALinkAreBounded) {
  const std::string longest(256, 'h');
  EXPECT_OK(peer_->link()->Send(BindFrame{1, "session", longest + "h"}));
  Run(1, 1);
  EXPECT_EQ(EndOf(1),
            "end step=1 BIND on /job:ps/replica:0/task:0: a handle must have at most 256 bytes, "
            "got 257");
  EXPECT_OK(peer_->link()->Send(BindFrame{1, longest + "h", "graph"}));
  Run(2, 1);
  EXPECT_THAT(EndOf(2), HasSubstr("a handle must have at most 256 bytes, got 257"));
  EXPECT_OK(peer_->link()->Send(BindFrame{1, longest, longest}));
  Run(3, 1);
  EXPECT_THAT(EndOf(3), HasSubstr("Session handle is not found"));
  EXPECT_EQ(peer_->num_losses(), 0);
}

TEST_F(LinkEndTest, PartsThatRunForALinkAreBounded) {
  ServerLimits limits;
  limits.max_calls_of_connection = 2;
  Start(limits);
  Bind(1, RegisterReceiver({"a"}));
  for (const int64_t step : {1, 2, 3}) Run(step, 1);
  EXPECT_EQ(EndOf(3),
            "end step=3 RUN of step 3 on /job:ps/replica:0/task:0: parts that run for one link "
            "must be at most 2 (ServerLimits::max_calls_of_connection), got 3");
  EXPECT_TRUE(absl::IsResourceExhausted(peer_->last_end().status));
  SendTensor(1, FingerprintOf({"a"}), 0);
  EXPECT_EQ(EndOf(1), "end step=1 OK");
  Run(4, 1);
  SendTensor(4, FingerprintOf({"a"}), 0);
  EXPECT_EQ(EndOf(4), "end step=4 OK");
  SendTensor(2, FingerprintOf({"a"}), 0);
  EXPECT_EQ(EndOf(2), "end step=2 OK");
}

TEST_F(LinkEndTest, ACancelEndsThePartAndLateTensorsOfItAreDropped) {
  Bind(1, RegisterReceiver({"a"}));
  Run(1, 1);
  EXPECT_OK(peer_->link()->Send(CancelFrame{1, absl::CancelledError("by its master")}));
  EXPECT_THAT(EndOf(1), Not(HasSubstr("OK")));
  SendTensor(1, FingerprintOf({"a"}), 0);
  EXPECT_EQ(worker_->parked_bytes(), 0);
  // What waits for a step that will never begin goes with its CANCEL.
  SendTensor(2, FingerprintOf({"a"}), 0);
  EXPECT_GT(worker_->parked_bytes(), 0);
  EXPECT_OK(peer_->link()->Send(CancelFrame{2, absl::CancelledError("by its master")}));
  EXPECT_EQ(worker_->parked_bytes(), 0);
}

TEST_F(LinkEndTest, AFailureOfThePeersPartEndsAStepThatWaitsForIt) {
  const auto call = RunOwnPart(1, RegisterReceiver({"a"}));
  EXPECT_FALSE(call->ended.HasBeenNotified());
  EXPECT_OK(peer_->link()->Send(CancelFrame{1, absl::InternalError("the peer's part failed")}));
  call->ended.Wait();
  EXPECT_TRUE(absl::IsInternal(call->status)) << call->status;
  EXPECT_TRUE(IsDerived(call->status)) << call->status;
}

TEST_F(LinkEndTest, ALostLinkEndsTheStepsThatWaitOnItAndNamesTheTask) {
  const std::string receiver = RegisterReceiver({"a", "b"});
  Bind(1, receiver);
  Run(1, 1);
  const auto call = RunOwnPart(2, receiver);
  SendTensor(2, FingerprintOf({"a", "b"}), 0);
  peer_->link()->Close(absl::AbortedError("Shutdown"));
  call->ended.Wait();
  EXPECT_STATUS(call->status, absl::StatusCode::kUnavailable,
                "Push from /job:worker/replica:0/task:0: ");
  EXPECT_TRUE(worker_->AwaitSteps(absl::Now() + absl::Seconds(20)));
  links_.link = nullptr;
  const auto later = RunOwnPart(3, receiver);
  later->ended.Wait();
  EXPECT_STATUS(
      later->status, absl::StatusCode::kUnavailable,
      "Push from /job:worker/replica:0/task:0: /job:worker/replica:0/task:0 is not there");
  const auto sender = RunOwnPart(4, RegisterSender("c"));
  sender->ended.Wait();
  EXPECT_STATUS(sender->status, absl::StatusCode::kUnavailable,
                "Push to /job:worker/replica:0/task:0: ");
}

// The step hears first of its peer's loss, and then of its master's cancellation.
TEST_F(LinkEndTest, WhatAStepTookForAPeerThatIsLostIsGivenBack) {
  std::atomic<int> given_back{0};
  std::atomic<bool> waits{false};
  Mutex mu;
  AsyncKernel::DoneCallback waiting;  // under mu
  testing::SetAsyncHook("take", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    StepLoans::Of(*ctx)->Lend([&] { given_back.fetch_add(1); });
    ctx->set_output(0, Tensor::Scalar(1.5f));
    if (!waits) return done(absl::OkStatus());
    MutexLock lock(&mu);
    waiting = std::move(done);
  });
  const auto await_taken = [&]() -> AsyncKernel::DoneCallback {
    for (int i = 0; i < 20'000; ++i) {
      {
        MutexLock lock(&mu);
        if (waiting) return std::move(waiting);
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    return [](const Status&) { ADD_FAILURE() << "nothing was taken"; };
  };
  const std::string taker = RegisterTaker("a", "take");
  // It ends well, and then there is no link.
  links_.holds = true;
  const auto ended = RunOwnPart(1, taker);
  ended->ended.Wait();
  EXPECT_OK(ended->status);
  EXPECT_EQ(given_back.load(), 0);
  ASSERT_EQ(links_.held.size(), 1u);
  links_.held[0](absl::UnavailableError("no route"));
  EXPECT_EQ(given_back.load(), 1);
  EXPECT_EQ(worker_->num_steps(), 0);
  // It runs when there is no link, and when the link is lost.
  waits = true;
  const auto not_dialled = RunOwnPart(2, taker);
  AsyncKernel::DoneCallback taken = await_taken();
  ASSERT_EQ(links_.held.size(), 2u);
  links_.held[1](absl::UnavailableError("no route"));
  taken(absl::OkStatus());
  not_dialled->ended.Wait();
  EXPECT_STATUS(not_dialled->status, absl::StatusCode::kUnavailable,
                "Push to /job:worker/replica:0/task:0: no route");
  EXPECT_EQ(given_back.load(), 2);
  links_.holds = false;
  const auto lost = RunOwnPart(3, taker);
  taken = await_taken();
  peer_->link()->Close(absl::UnavailableError("Socket closed"));
  taken(absl::OkStatus());
  lost->ended.Wait();
  EXPECT_STATUS(lost->status, absl::StatusCode::kUnavailable, "Push to ");
  EXPECT_EQ(given_back.load(), 3);
  testing::ClearHooks();
}

// The client may close its session before the worker has forgotten that the step ran: what it has
// sent is then asked for as after it, and not dropped with what the peer may have used.
TEST_F(LinkEndTest, ASessionThatEndsAsItsStepAnswersAsksWhatWasTaken) {
  for (const bool is_taken : {true, false}) {
    SCOPED_TRACE(is_taken);
    Start();
    Close();
    const auto link = std::make_shared<AskedLink>();
    const std::shared_ptr<Worker> borrowed(std::shared_ptr<Worker>(), worker_.get());
    WorkerLinkEnd end(borrowed);
    end.OnOpen(link);
    links_.link = link;
    std::atomic<int> given_back{0};
    testing::SetAsyncHook("take", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      StepLoans::Of(*ctx)->Lend([&] { given_back.fetch_add(1); });
      ctx->set_output(0, Tensor::Scalar(1.5f));
      done(absl::OkStatus());
    });
    const auto call = RunOwnPart(1, RegisterTaker("a", "take"),
                                 [&] { EXPECT_OK(worker_->DeleteWorkerSession("session")); });
    call->ended.Wait();
    EXPECT_OK(call->status);
    ASSERT_EQ(link->questions.size(), 1u);
    if (is_taken) end.OnReceived(1, 1);
    link->questions[0]();
    link->questions.clear();
    EXPECT_EQ(given_back.load(), is_taken ? 0 : 1);
    EXPECT_EQ(worker_->num_steps(), is_taken ? 0 : 1);  // why, for who comes late
    end.OnLost(absl::AbortedError("the test is over"), false);
    EXPECT_TRUE(worker_->AwaitSteps(absl::Now() + absl::Seconds(20)));
    testing::ClearHooks();
  }
}

// A peer that stops well has sent all, and closes.
TEST_F(LinkEndTest, WhatCameWholeBeforeTheLinkWasLostIsEnough) {
  const std::string receiver = RegisterReceiver({"a", "b"});
  SendTensor(1, FingerprintOf({"a", "b"}), 0);
  SendTensor(1, FingerprintOf({"a", "b"}), 1);
  SendTensor(2, FingerprintOf({"a", "b"}), 0);
  peer_->link()->Close(absl::UnavailableError("Socket closed"));
  peer_->LetGo();
  // There is another link by now.
  peer_ = std::make_shared<RecordingEnd>();
  const std::shared_ptr<Worker> borrowed(std::shared_ptr<Worker>(), worker_.get());
  links_.link =
      OpenInProcessLink({kPs, 1}, std::make_shared<WorkerLinkEnd>(borrowed), {kWorker, 2}, peer_)
          .first;
  const auto whole = RunOwnPart(1, receiver), half = RunOwnPart(2, receiver);
  whole->ended.Wait();
  EXPECT_OK(whole->status);
  half->ended.Wait();
  EXPECT_STATUS(half->status, absl::StatusCode::kUnavailable,
                "Push from /job:worker/replica:0/task:0: ");
}

// A task that has sent all may leave, and nobody needs its link then.
TEST_F(LinkEndTest, AStepThatHasAllNeedsNoLinkToItsSender) {
  const std::string receiver = RegisterReceiver({"a", "b"});
  SendTensor(1, FingerprintOf({"a", "b"}), 0);
  SendTensor(1, FingerprintOf({"a", "b"}), 1);
  peer_->link()->Close(absl::UnavailableError("Socket closed"));
  links_.link = nullptr;
  const auto whole = RunOwnPart(1, receiver), none = RunOwnPart(2, receiver);
  whole->ended.Wait();
  EXPECT_OK(whole->status);
  none->ended.Wait();
  EXPECT_STATUS(
      none->status, absl::StatusCode::kUnavailable,
      "Push from /job:worker/replica:0/task:0: /job:worker/replica:0/task:0 is not there");
}

// Its sender gives back what its own step has taken for it when the step never begins here.
TEST_F(LinkEndTest, TensorsAreAcknowledgedWhenTheirStepTakesThem) {
  Bind(1, RegisterReceiver({"a", "b"}));
  const uint64_t fingerprint = FingerprintOf({"a", "b"});
  SendTensor(1, fingerprint, 0);
  SendTensor(2, fingerprint, 0);
  EXPECT_EQ(peer_->received(1), 0u);
  Run(1, 1);
  EXPECT_EQ(peer_->received(1), 1u);
  SendTensor(1, fingerprint, 1);
  EXPECT_EQ(peer_->received(1), 2u);
  EXPECT_EQ(EndOf(1), "end step=1 OK");
  EXPECT_EQ(peer_->received(2), 0u);
  // A step that has failed takes no more; its sender does not wait for it.
  EXPECT_OK(peer_->link()->Send(CancelFrame{2, absl::CancelledError("by its master")}));
  EXPECT_EQ(peer_->received(2), 0u);
  SendTensor(2, fingerprint, 1);
  EXPECT_EQ(peer_->received(2), 1u);
}

TEST_F(LinkEndTest, AWorkerWithoutLinksRefusesStepsWithOtherTasks) {
  WorkerOptions options;
  options.task = kWorker;
  options.io_pool = IoPool::Default();
  Worker worker(std::move(options));
  ASSERT_OK(worker.CreateWorkerSession({.handle = "session"}));
  graph_.mutable_versions()->set_producer(134);
  AddEnd("_Recv", "a", kPs, kWorker)->set_device(DeviceOf(kWorker));
  ASSERT_OK_AND_ASSIGN(const RegisteredPart registered,
                       worker.RegisterGraph({"session", std::exchange(graph_, {})}));
  EXPECT_EQ(registered.link_version, 0u);
  tensorflow::RunGraphRequest run;
  run.set_session_handle("session");
  run.set_graph_handle(registered.graph_handle);
  run.set_step_id(1);
  tensorflow::RunGraphResponse response;
  std::vector<NamedTensor> received;
  Status status;
  worker.RunGraph(run, run, EdgesBy::kLinks, {}, /*block=*/true, absl::InfiniteFuture(), nullptr,
                  &response, &received, [&](const Status& ended) { status = ended; });
  EXPECT_STATUS(status, absl::StatusCode::kFailedPrecondition,
                "this task must have links to exchange tensors with /job:ps/replica:0/task:0");
}

}  // namespace
}  // namespace millrace
