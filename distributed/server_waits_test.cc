// SPDX-License-Identifier: Apache-2.0
//
// What a server still does while others keep it waiting.
#include <grpcpp/support/slice.h>

#include <atomic>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/master/grpc_master.h"
#include "distributed/master/master_interface.h"
#include "distributed/server.h"
#include "distributed/testing/raw_client.h"
#include "distributed/transport/grpc_control.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/tensor_source.h"
#include "distributed/transport/worker_control.h"
#include "graph/attr.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "runtime/kernel.h"
#include "runtime/rendezvous.h"
#include "runtime/session.h"

// covers: clusters: slow kernels block no status, renewal or close; an exception of a handler is
//   its call's status
// covers: clusters: sessions that wait for tasks block no close
// covers: clusters: `Stop` lets running steps end and other tasks receive what was sent to them

namespace millrace {
namespace {

// A kernel that blocks its thread until the test lets all of them go.
struct Latch {
  Mutex mu;
  CondVar changed;
  int waiting ABSL_GUARDED_BY(mu) = 0;
  bool open ABSL_GUARDED_BY(mu) = false;

  void Wait() {
    MutexLock lock(&mu);
    ++waiting;
    changed.SignalAll();
    while (!open) changed.Wait(&mu);
    --waiting;
    changed.SignalAll();
  }
  void Close() {
    MutexLock lock(&mu);
    open = false;
  }
  void Open() {
    MutexLock lock(&mu);
    open = true;
    changed.SignalAll();
  }
  bool AwaitNone() {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    MutexLock lock(&mu);
    while (waiting > 0 && absl::Now() < deadline) {
      changed.WaitWithTimeout(&mu, deadline - absl::Now());
    }
    return waiting == 0;
  }
  bool AwaitWaiting(int n) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    MutexLock lock(&mu);
    while (waiting < n && absl::Now() < deadline) {
      changed.WaitWithTimeout(&mu, deadline - absl::Now());
    }
    return waiting >= n;
  }
};
Latch& latch() {
  static Latch* const latch = new Latch;
  return *latch;
}

class BlockKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override {
    latch().Wait();
    return absl::OkStatus();
  }
};
const OpRegistration kBlock = OpSpec("TestBlock")
                                  .Stateful()
                                  .WaitsForSteps(WaitsForSteps::kMay)
                                  .Shape([](InferenceContext*) { return absl::OkStatus(); })
                                  .NotDifferentiable();
const KernelRegistration kBlockKernel("TestBlock", KernelFor<BlockKernel>());

class QuickKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override { return absl::OkStatus(); }
};
const OpRegistration kQuick = OpSpec("TestQuick")
                                  .Stateful()
                                  .Shape([](InferenceContext*) { return absl::OkStatus(); })
                                  .NotDifferentiable();
const KernelRegistration kQuickKernel("TestQuick", KernelFor<QuickKernel>());

class ServerWaitsTest : public ::testing::Test {
 protected:
  ServerWaitsTest() { latch().Close(); }
  ~ServerWaitsTest() override { latch().Open(); }

  void StartServers(const ServerOptions& options = {}) {
    const std::vector<int> ports = FreePorts(2);
    cluster_ = absl::StrCat("{\"ps\": [\"127.0.0.1:", ports[0],
                            "\"], \"worker\": [\"127.0.0.1:", ports[1], "\"]}");
    ps_ = StartServer("ps", options);
    worker_ = StartServer("worker", options);
  }
  std::unique_ptr<Server> StartServer(const char* job, const ServerOptions& options = {}) {
    auto server = Server::Start(
        *ClusterConfig::Parse(absl::StrCat("{\"cluster\": ", cluster_, ", \"task\": {\"type\": \"",
                                           job, "\", \"index\": 0}}")),
        options);
    EXPECT_OK(server);
    return server.ok() ? *std::move(server) : nullptr;
  }
  std::shared_ptr<WorkerControl> ToPs() {
    return MakeGrpcControl("/job:ps/replica:0/task:0",
                           RpcChannel::Make(absl::StrCat("127.0.0.1:", ps_->port())));
  }
  static CallOptions Within(absl::Duration time) {
    CallOptions options;
    options.deadline = absl::Now() + time;
    return options;
  }
  // Of the ps; hang guards are generous.
  static Status AskStatus(WorkerControl* task) {
    std::vector<tensorflow::DeviceAttributes> devices;
    Status status;
    Notification done;
    task->GetStatus(Within(absl::Seconds(60)), &devices, [&](const Status& answer) {
      status = answer;
      done.Notify();
    });
    done.Wait();
    return status;
  }
  static Status Renew(WorkerControl* task) {
    const std::vector<std::string> handles = {"nobody's"};
    std::vector<std::string> unknown;
    Status status;
    Notification done;
    task->RenewSessions(Within(absl::Seconds(60)), handles, &unknown, [&](const Status& answer) {
      status = answer;
      done.Notify();
    });
    done.Wait();
    EXPECT_EQ(unknown, handles);
    return status;
  }

  static ServerOptions LittlePatience() {
    ServerOptions options;
    options.stop_grace = absl::ZeroDuration();
    options.stop_bound = absl::Milliseconds(200);
    return options;
  }
  struct Stopped {
    Status step;
    std::string log;  // of the stop
  };
  // Stops the ps, and destroys it, while `block`, a TestBlock there, runs in a step; the kernel
  // returns afterwards.
  Stopped StopPsInside(const Scope& root, const Operation& block) {
    const auto session = NewSession({.target = worker_->target()});
    EXPECT_OK(session);
    if (!session.ok()) return {};
    EXPECT_OK((*session)->Extend(root));
    return StopPsDuring([&] { return (*session)->Run({}, {}, {block}).status(); });
  }
  // The same during `run`, a step with one TestBlock there.
  Stopped StopPsDuring(absl::FunctionRef<Status()> run) {
    Stopped stopped;
    std::thread step([&] { stopped.step = run(); });
    EXPECT_TRUE(latch().AwaitWaiting(1));
    ::testing::internal::CaptureStderr();
    ps_->Stop();
    ps_ = nullptr;
    stopped.log = ::testing::internal::GetCapturedStderr();
    step.join();
    EXPECT_TRUE(latch().AwaitWaiting(1));  // it still runs, of a server that is gone
    latch().Open();
    EXPECT_TRUE(latch().AwaitNone());
    return stopped;
  }

  std::string cluster_;
  std::unique_ptr<Server> ps_, worker_;
};

TEST_F(ServerWaitsTest, SlowKernelsKeepNoPoller) {
  StartServers();
  Scope root;
  const Operation block =
      NodeBuilder(root.WithDevice("/job:ps/task:0").WithName("block"), "TestBlock").Finish();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession({.target = worker_->target()}));
  ASSERT_OK(session->Extend(root));
  constexpr int kSteps = 8;
  std::vector<std::thread> steps;
  std::atomic<int> ok{0};
  for (int i = 0; i < kSteps; ++i) {
    steps.emplace_back([&] { ok += session->Run({}, {}, {block}).ok() ? 1 : 0; });
  }
  EXPECT_TRUE(latch().AwaitWaiting(kSteps));
  const auto ps = ToPs();
  EXPECT_OK(AskStatus(ps.get()));
  EXPECT_OK(Renew(ps.get()));
  latch().Open();
  for (std::thread& step : steps) step.join();
  EXPECT_EQ(ok, kSteps);
}

TEST_F(ServerWaitsTest, StopLetsRunningStepsEndAndRefusesNewOnes) {
  ServerOptions options;
  options.stop_grace = absl::Minutes(2);
  StartServers(options);
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Operation block = NodeBuilder(ps.WithName("block"), "TestBlock").Finish();
  const Operation quick = NodeBuilder(ps.WithName("quick"), "TestQuick").Finish();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession({.target = worker_->target()}));
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {quick}));
  Status ended = absl::UnknownError("not yet");
  std::thread step([&] { ended = session->Run({}, {}, {block}).status(); });
  EXPECT_TRUE(latch().AwaitWaiting(1));
  std::thread stop([&] { ps_->Stop(); });
  Status refused;
  const absl::Time hang = absl::Now() + absl::Seconds(60);
  while (refused.ok() && absl::Now() < hang) refused = session->Run({}, {}, {quick}).status();
  EXPECT_STATUS(refused, absl::StatusCode::kUnavailable, "got one that is stopping");
  EXPECT_STATUS(NewSession({.target = worker_->target()}), absl::StatusCode::kUnavailable,
                "got one that is stopping");
  latch().Open();
  step.join();
  stop.join();
  EXPECT_OK(ended);
}

// Of a step that has ended, to a worker that has still to ask for it.
TEST_F(ServerWaitsTest, StopWaitsForTensorsThatATaskHasStillToReceive) {
  ServerOptions options;
  options.stop_grace = absl::Minutes(2);
  StartServers(options);
  const auto ps = ToPs();
  const auto ask = [](auto begin) {
    Notification done;
    Status status;
    begin([&](const Status& answer) {
      status = answer;
      done.Notify();
    });
    done.Wait();
    return status;
  };
  const CallOptions call = Within(absl::Seconds(60));
  std::vector<tensorflow::DeviceAttributes> devices;
  ASSERT_OK(ask([&](auto done) { ps->GetStatus(call, &devices, done); }));
  const tensorflow::DeviceAttributes& device = devices.at(0);
  SessionOrder open = {.handle = "session"};
  ASSERT_OK(ask([&](auto done) { ps->CreateWorkerSession(call, open, done); }));

  tensorflow::GraphDef graph;
  graph.mutable_versions()->set_producer(134);
  const auto add = [&](const char* op, const char* name) {
    tensorflow::NodeDef* const node = graph.add_node();
    node->set_name(name);
    node->set_op(op);
    node->set_device(device.name());
    return node;
  };
  const auto set = [](tensorflow::NodeDef* node, const char* attr, const auto& value) {
    SetAttr(value, &(*node->mutable_attr())[attr]);
  };
  tensorflow::NodeDef* const constant = add("Const", "constant");
  set(constant, "dtype", DT_FLOAT);
  set(constant, "value", Tensor::Scalar(3.0f));
  tensorflow::NodeDef* const send = add("_Send", "send");
  send->add_input("constant");
  const std::string receiver = "/job:worker/replica:0/task:0/device:CPU:0";
  set(send, "T", DT_FLOAT);
  set(send, "tensor_name", std::string("edge"));
  set(send, "send_device", device.name());
  set(send, "recv_device", receiver);
  set(send, "send_device_incarnation", static_cast<int64_t>(device.incarnation()));
  set(send, "client_terminated", false);
  RegisteredPart registered;
  ASSERT_OK(ask(
      [&](auto done) { ps->RegisterGraph(call, PartOrder("session", graph), &registered, done); }));
  tensorflow::RunGraphRequest run;
  run.set_session_handle("session");
  run.set_graph_handle(registered.graph_handle);
  run.set_step_id(7);
  // A foreign master's step: what it sends waits until somebody asks for it.
  tensorflow::RunGraphResponse ran;
  const std::string ps_address = absl::StrCat("127.0.0.1:", ps_->port());
  RawClient foreign(ps_address);
  const grpc::Status ended = foreign.Call(absl::StrCat(kWorkerService, "RunGraph"), run, &ran);
  ASSERT_TRUE(ended.ok()) << ended.error_message();

  std::thread stop([&] { ps_->Stop(); });
  Status refused;
  const absl::Time hang = absl::Now() + absl::Seconds(60);
  for (int i = 0; refused.ok() && absl::Now() < hang; ++i) {
    open.handle = absl::StrCat("other ", i);
    refused = ask([&](auto done) { ps->CreateWorkerSession(call, open, done); });
  }
  EXPECT_STATUS(refused, absl::StatusCode::kUnavailable, "got one that is stopping");
  tensorflow::RecvTensorRequest recv;
  recv.set_step_id(7);
  recv.set_rendezvous_key(RendezvousKey::Make(device.name(), device.incarnation(), receiver, "edge",
                                              /*frame_id=*/0, /*iteration=*/0));
  NamedTensor tensor;
  const auto source = MakeGrpcTensorSource(RpcChannel::Make(ps_address));
  EXPECT_OK(ask([&](auto done) { source->RecvTensor(call, recv, &tensor, done); }));
  ExpectTensorEqual(tensor.value, Tensor::Scalar(3.0f));
  stop.join();
}

TEST_F(ServerWaitsTest, StopLeavesAKernelThatDoesNotReturnBehind) {
  StartServers(LittlePatience());
  Scope root;
  const Operation block =
      NodeBuilder(root.WithDevice("/job:ps/task:0").WithName("block"), "TestBlock").Finish();
  const Stopped stopped = StopPsInside(root, block);
  EXPECT_NE(stopped.log.find("is left behind"), std::string::npos) << stopped.log;
  EXPECT_FALSE(stopped.step.ok());
}

// A foreign master's: the thread that takes up the call runs the kernel.
TEST_F(ServerWaitsTest, StopLeavesACallBehindWhoseKernelDoesNotReturn) {
  StartServers(LittlePatience());
  RawClient foreign(absl::StrCat("127.0.0.1:", ps_->port()));
  const auto call = [&](const char* method, const google::protobuf::MessageLite& request,
                        google::protobuf::MessageLite* response) {
    const grpc::Status status =
        foreign.Call(absl::StrCat(kWorkerService, method), request, response);
    return Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  };
  tensorflow::CreateWorkerSessionRequest open;
  open.set_session_handle("session");
  tensorflow::CreateWorkerSessionResponse opened;
  ASSERT_OK(call("CreateWorkerSession", open, &opened));
  tensorflow::RegisterGraphRequest graph;
  graph.set_session_handle("session");
  graph.mutable_graph_def()->mutable_versions()->set_producer(134);
  tensorflow::NodeDef* const block = graph.mutable_graph_def()->add_node();
  block->set_name("block");
  block->set_op("TestBlock");
  block->set_device("/job:ps/replica:0/task:0/device:CPU:0");
  tensorflow::RegisterGraphResponse registered;
  ASSERT_OK(call("RegisterGraph", graph, &registered));
  tensorflow::RunGraphRequest run;
  run.set_session_handle("session");
  run.set_graph_handle(registered.graph_handle());
  run.set_step_id(7);
  tensorflow::RunGraphResponse ran;
  const Stopped stopped = StopPsDuring([&] { return call("RunGraph", run, &ran); });
  const std::string& log = stopped.log;
  EXPECT_NE(log.find("is left behind"), std::string::npos) << log;
  EXPECT_NE(log.find("/tensorflow.grpc.WorkerService/RunGraph since"), std::string::npos) << log;
  EXPECT_FALSE(stopped.step.ok());
}

TEST_F(ServerWaitsTest, StopLeavesAKernelBehindThatRunsBehindAMessage) {
  // The network thread that takes the token off the wire runs the kernel (core/visit.h).
  StartServers(LittlePatience());
  Scope root;
  const Operation token =
      NodeBuilder(root.WithDevice("/job:worker/task:0").WithName("token"), "TestQuick").Finish();
  const Operation block =
      NodeBuilder(root.WithDevice("/job:ps/task:0").WithName("block"), "TestBlock")
          .ControlInput(token)
          .Finish();
  EXPECT_STATUS(StopPsInside(root, block).step, absl::StatusCode::kUnavailable,
                "/job:ps/replica:0/task:0");
}

TEST_F(ServerWaitsTest, SessionsThatWaitForTasksKeepNobodyFromClosing) {
  const std::vector<int> ports = FreePorts(2);
  cluster_ = absl::StrCat("{\"ps\": [\"127.0.0.1:", ports[0],
                          "\"], \"worker\": [\"127.0.0.1:", ports[1], "\"]}");
  worker_ = StartServer("worker");
  const std::string address = absl::StrCat("127.0.0.1:", worker_->port());
  const auto master = MakeGrpcMaster(RpcChannel::Make(address));
  tensorflow::CreateSessionRequest alone;
  alone.mutable_config()->add_device_filters("/job:worker");
  std::vector<std::string> open;
  for (int i = 0; i < 4; ++i) {
    tensorflow::CreateSessionResponse response;
    ASSERT_OK(master->CreateSession(alone, absl::Seconds(60), 16, &response));
    open.push_back(response.session_handle());
  }
  const auto begun = [] {
    int64_t count = 0;
    for (const auto& [name, calls] : RpcCallsBegun()) {
      if (absl::EndsWith(name, "/CreateSession")) count += calls;
    }
    return count;
  };
  const int64_t before = begun();
  constexpr int kWaiting = 70;
  std::vector<std::thread> waiting;
  for (int i = 0; i < kWaiting; ++i) {
    waiting.emplace_back([&] {
      tensorflow::CreateSessionResponse response;
      EXPECT_FALSE(master->CreateSession({}, absl::Minutes(5), 16, &response).ok());
    });
  }
  const absl::Time hang = absl::Now() + absl::Seconds(60);
  while (begun() < before + kWaiting && absl::Now() < hang) std::this_thread::yield();
  EXPECT_GE(begun(), before + kWaiting);
  for (const std::string& handle : open) {
    tensorflow::CloseSessionRequest request;
    request.set_session_handle(handle);
    EXPECT_OK(master->CloseSession(request));
  }
  worker_->Stop();
  for (std::thread& thread : waiting) thread.join();
}

TEST(RpcServerTest, WhatAHandlerThrowsIsTheStatusOfItsCall) {
  RpcServer::Options options;
  options.address = absl::StrCat("127.0.0.1:", FreePort());
  const auto no_memory = [](std::shared_ptr<ServerCall>, const grpc::ByteBuffer&) {
    throw std::bad_alloc();
  };
  const auto broken = [](std::shared_ptr<ServerCall>, const grpc::ByteBuffer&) {
    throw std::runtime_error("no such thing");
  };
  const auto answered = [](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer&) {
    call->Finish(grpc::ByteBuffer());
    throw std::runtime_error("afterwards");
  };
  for (const auto& [name, weight] :
       std::map<std::string, CallWeight>{{"light", CallWeight::kLight},
                                         {"heavy", CallWeight::kHeavy},
                                         {"urgent", CallWeight::kUrgent}}) {
    options.handlers["/memory/" + name] = {no_memory, weight};
    options.handlers["/broken/" + name] = {broken, weight};
    options.handlers["/answered/" + name] = {answered, weight};
  }
  const std::string address = options.address;
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start(std::move(options)));
  const auto channel = RpcChannel::Make(address);
  RpcOptions call;
  call.deadline = absl::Now() + absl::Seconds(60);
  call.wait_for_ready = true;
  const grpc::Slice nothing;
  const grpc::ByteBuffer bytes(&nothing, 1);
  for (const char* name : {"light", "heavy", "urgent"}) {
    EXPECT_STATUS(channel->Call(absl::StrCat("/memory/", name), call, bytes),
                  absl::StatusCode::kResourceExhausted, "out of memory");
    EXPECT_STATUS(channel->Call(absl::StrCat("/broken/", name), call, bytes),
                  absl::StatusCode::kInternal, "no such thing");
    EXPECT_OK(channel->Call(absl::StrCat("/answered/", name), call, bytes));
  }
}

}  // namespace
}  // namespace millrace
