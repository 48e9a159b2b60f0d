// SPDX-License-Identifier: Apache-2.0
//
// Decoders of what strangers send, on the calling and on the serving side (fuzz.h).

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/grpc_wire.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/wire_tensor.h"
#include "distributed/master/master.h"
#include "distributed/master/master_options.h"
#include "distributed/master/master_service.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/step_limit.h"
#include "distributed/transport/tensor_source.h"
#include "distributed/transport/transport.pb.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/foreign_requests.h"
#include "distributed/worker/in_process_control.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "distributed/worker/worker_service.h"
#include "graph/attr.h"
#include "gtest/gtest.h"
#include "net/call_limits.h"
#include "net/duplex_call.h"
#include "net/rpc_server.h"
#include "net/status_payloads.h"
#include "net/tensor_coding.h"
#include "proto/master.pb.h"
#include "proto/worker.pb.h"
#include "proto/worker_control.pb.h"
#include "run/training_run.h"
#include "runtime/rendezvous.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutator.h"

// covers: clusters: decoders of messages (each method of a worker, answers too) survive a seeded
//   mutator

namespace millrace {
namespace {

constexpr char kTask[] = "/job:ps/replica:0/task:0";

// In pieces, as the network gives them.
grpc::ByteBuffer BufferOf(const std::string& bytes, Mutator* mutator) {
  std::vector<grpc::Slice> slices;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t n = std::min<size_t>(bytes.size() - at, 1 + mutator->Below(1 + bytes.size()));
    slices.emplace_back(bytes.substr(at, n));
    at += n;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::vector<tensorflow::TensorProto> Tensors() {
  std::vector<tensorflow::TensorProto> protos;
  for (const Tensor& tensor :
       {Tensor::Vector<float>({1, 2, 3}), Tensor::Scalar(true), Tensor::Scalar<int64_t>(-1),
        Tensor::Vector<std::string>({"a", "", "long enough for the heap, this one"}),
        *Tensor::Zeros(DT_DOUBLE, *Shape::Make({0, 3}))}) {
    EXPECT_OK(TensorToProto(tensor, &protos.emplace_back()));
  }
  tensorflow::TensorProto& splat = protos.emplace_back();
  splat.set_dtype(tensorflow::DT_INT32);
  splat.mutable_tensor_shape()->add_dim()->set_size(100);
  splat.add_int_val(7);
  tensorflow::TensorProto& variant = protos.emplace_back();
  variant.set_dtype(tensorflow::DT_VARIANT);
  variant.mutable_tensor_shape();
  variant.add_variant_val()->set_type_name("list");
  *variant.mutable_variant_val(0)->add_tensors() = protos[0];
  tensorflow::TensorProto& handle = protos.emplace_back();
  handle.set_dtype(tensorflow::DT_RESOURCE);
  handle.mutable_tensor_shape();
  handle.add_resource_handle_val()->set_name("w");
  return protos;
}

template <typename Request>
std::string Raw(const Request& request) {
  return request.SerializeAsString();
}

// Whether there are any.
bool CheckTensors(const Status& status, const std::vector<DecodedTensor>& tensors) {
  if (!status.ok()) return false;
  int64_t bytes = 0;
  for (const DecodedTensor& tensor : tensors) {
    if (tensor.value.has_value()) bytes += tensor.value.TotalBytes();
  }
  EXPECT_LE(bytes, kMaxFuzzedTensorBytes);
  return !tensors.empty();
}

// --- Messages ------------------------------------------------------------------------------------

TEST(DecodersTest, MessagesWithTensors) {
  std::vector<std::string> corpus;
  for (const tensorflow::TensorProto& tensor : Tensors()) {
    tensorflow::RunStepRequest run;
    run.set_session_handle("handle");
    run.add_fetch("loss:0");
    run.add_feed()->set_name("x:0");
    *run.mutable_feed(0)->mutable_tensor() = tensor;
    corpus.push_back(Raw(run));
    tensorflow::RunCallableRequest call;
    call.set_handle(1);
    *call.add_feed() = tensor;
    corpus.push_back(Raw(call));
  }
  int runs = 0, calls = 0;  // that were accepted
  Fuzz(100'000, corpus, [&](const std::string& bytes, Mutator* mutator) {
    const grpc::ByteBuffer buffer = BufferOf(bytes, mutator);
    std::vector<DecodedTensor> tensors;
    tensorflow::RunStepRequest run;
    tensorflow::RunCallableRequest call;
    if (mutator->Below(2) == 0) {
      const Status read =
          DecodeMessage("Fuzz", buffer, 2, TensorField::kNamedOrIndexed, &tensors, &run);
      runs += CheckTensors(read, tensors) ? 1 : 0;
    } else {
      const Status read = DecodeMessage("Fuzz", buffer, 3, TensorField::kTensor, &tensors, &call);
      calls += CheckTensors(read, tensors) ? 1 : 0;
    }
  });
  // Of the 6,250 valid inputs half is of each kind, and half of these meets its decoder.
  EXPECT_GT(runs, 100);
  EXPECT_GT(calls, 100);
}

// What a client is answered.
TEST(DecodersTest, AnswersWithTensors) {
  std::vector<std::string> corpus;
  for (const tensorflow::TensorProto& tensor : Tensors()) {
    tensorflow::RunStepResponse step;
    step.add_tensor()->set_name("loss:0");
    *step.mutable_tensor(0)->mutable_tensor() = tensor;
    step.mutable_metadata()->mutable_step_stats()->add_dev_stats()->set_device("cpu");
    corpus.push_back(Raw(step));
    tensorflow::RunGraphResponse graph;
    graph.add_recv()->set_name("key");
    *graph.mutable_recv(0)->mutable_tensor() = tensor;
    graph.set_status_error_message("none");
    corpus.push_back(Raw(graph));
    tensorflow::RecvTensorResponse received;
    *received.mutable_tensor() = tensor;
    received.set_send_start_micros(7);
    corpus.push_back(Raw(received));
    tensorflow::RunCallableResponse callable;
    *callable.add_fetch() = tensor;
    corpus.push_back(Raw(callable));
  }
  int steps = 0, graphs = 0, received = 0, callables = 0;  // that were accepted
  Fuzz(60'000, corpus, [&](const std::string& bytes, Mutator* mutator) {
    const grpc::ByteBuffer buffer = BufferOf(bytes, mutator);
    std::vector<DecodedTensor> tensors;
    const auto is_read = [&](TensorField form, google::protobuf::MessageLite* rest) {
      const Status read = DecodeMessage("Fuzz", buffer, 1, form, &tensors, rest);
      return CheckTensors(read, tensors) ? 1 : 0;
    };
    tensorflow::RunStepResponse step;
    tensorflow::RunGraphResponse graph;
    tensorflow::RecvTensorResponse recv;
    tensorflow::RunCallableResponse callable;
    switch (mutator->Below(4)) {
      case 0:
        steps += is_read(TensorField::kNamedOrIndexed, &step);
        return;
      case 1:
        graphs += is_read(TensorField::kNamedOrIndexed, &graph);
        return;
      case 2:
        received += is_read(TensorField::kTensor, &recv);
        return;
      default:
        callables += is_read(TensorField::kTensor, &callable);
    }
  });
  // Of the 3,750 valid inputs a third is of each kind, and a quarter of these meets its decoder.
  EXPECT_GT(steps, 60);
  EXPECT_GT(graphs, 60);
  EXPECT_GT(received, 60);
  EXPECT_GT(callables, 60);
}

TEST(DecodersTest, SessionTermsAndStatusPayloadsAndStepLimits) {
  tensorflow::CreateSessionRequest with_terms;
  with_terms.set_target("target");
  AddSessionTerms({.run = {.name = "/logs/a",
                           .id = "0123456789abcdef0123456789abcdef",
                           .is_chief = true,
                           .chief = "chief",
                           .epoch = 3},
                   .lease = absl::Seconds(60)},
                  &with_terms);
  tensorflow::RunGraphResponse failed;
  const Status ended = RunEndedError("Session", {.name = "/logs/a", .id = "id"},
                                     {.global_step = 7, .checkpoint = "c", .reason = "r"});
  AddPayloads(ended, &failed);
  wire::StepLimit limit;
  limit.set_timeout_in_us(1'000'000);
  int with_runs = 0, beside = 0, alone = 0, limits = 0;  // that were understood
  Fuzz(30'000, {Raw(with_terms), Raw(failed), PayloadBytes(ended), Raw(limit)},
       [&](const std::string& bytes, Mutator*) {
         tensorflow::CreateSessionRequest create;
         if (create.ParseFromString(bytes)) {
           const auto terms = SessionTermsOf(create);
           if (terms.ok()) {
             EXPECT_OK(CheckRun(terms->run));
             with_runs += terms->run.name == "/logs/a" ? 1 : 0;
             EXPECT_GE(terms->lease, absl::ZeroDuration());
             EXPECT_LE(terms->lease, absl::Hours(24));
           }
         }
         tensorflow::RunGraphResponse response;
         if (response.ParseFromString(bytes)) {
           const Status status = WithPayloadsOf(absl::AbortedError("a"), response);
           EXPECT_FALSE(status.ok());
           beside += RunEndOf(status).has_value() ? 1 : 0;
           limits += StepDeadlineOf(response) != absl::InfiniteFuture() ? 1 : 0;
         }
         const Status status = WithPayloads(absl::AbortedError("a"), bytes);
         EXPECT_FALSE(status.ok());
         alone += RunEndOf(status).has_value() ? 1 : 0;
         wire::RunEnd end;
         if (end.ParseFromString(bytes)) FromWire(end);
       });
  // The valid inputs alone are more than 400 of each.
  EXPECT_GT(with_runs, 100);
  EXPECT_GT(beside, 100);
  EXPECT_GT(alone, 100);
  EXPECT_GT(limits, 100);
}

// --- What a worker is asked for ------------------------------------------------------------------

tensorflow::RegisterGraphRequest SmallGraph() {
  tensorflow::RegisterGraphRequest request;
  request.set_session_handle("session");
  tensorflow::GraphDef* const graph = request.mutable_graph_def();
  graph->mutable_versions()->set_producer(134);
  const auto add = [&](const char* op, const char* name) {
    tensorflow::NodeDef* const node = graph->add_node();
    node->set_name(name);
    node->set_op(op);
    node->set_device(absl::StrCat(kTask, "/device:CPU:0"));
    return node;
  };
  const auto set = [](tensorflow::NodeDef* node, const char* attr, const auto& value) {
    SetAttr(value, &(*node->mutable_attr())[attr]);
  };
  auto* const arg = add("_Arg", "arg");
  set(arg, "T", DT_FLOAT);
  set(arg, "index", int64_t{0});
  auto* const constant = add("Const", "constant");
  set(constant, "dtype", DT_FLOAT);
  set(constant, "value", Tensor::Vector<float>({1, 2, 3}));
  auto* const result = add("_Retval", "result");
  result->add_input("arg");
  set(result, "T", DT_FLOAT);
  set(result, "index", int64_t{0});
  auto* const recv = add("_Recv", "recv");
  set(recv, "tensor_type", DT_FLOAT);
  set(recv, "tensor_name", std::string("edge"));
  set(recv, "send_device", std::string("/job:worker/replica:0/task:0/device:CPU:0"));
  set(recv, "recv_device", absl::StrCat(kTask, "/device:CPU:0"));
  set(recv, "send_device_incarnation", int64_t{42});
  set(recv, "client_terminated", false);
  return request;
}

// Of a task that cannot be reached.
class GoneSource : public TensorSource {
 public:
  void RecvTensor(const CallOptions&, const tensorflow::RecvTensorRequest&, NamedTensor*,
                  CallDone done) override {
    done(absl::UnavailableError("it is gone"));
  }
};

class WorkerDecodersTest : public ::testing::Test {
 protected:
  WorkerDecodersTest() {
    WorkerOptions options;
    options.task = kTask;
    options.own_arena = Arena::Make(1);
    options.io_pool = IoPool::Default();
    options.source = [](absl::string_view) { return std::make_shared<GoneSource>(); };
    worker_ = std::make_unique<Worker>(std::move(options));
    Open("session");
  }
  void Open(const std::string& handle) {
    EXPECT_OK(worker_->CreateWorkerSession({.handle = handle}));
  }
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerDecodersTest, RegisteredGraphs) {
  int registered = 0;
  std::string handle = "session";
  Fuzz(6'000, {Raw(SmallGraph())}, [&](const std::string& bytes, Mutator* mutator) {
    tensorflow::RegisterGraphRequest request;
    if (!DecodeMessage("RegisterGraph", BufferOf(bytes, mutator), &request).ok()) return;
    if (request.session_handle() == "session") request.set_session_handle(handle);
    if (!worker_->RegisterGraph(OrderOf(std::move(request))).ok()) return;
    if (++registered % 1000 != 0) return;
    // So that they do not gather. A handle that was closed is not opened again.
    EXPECT_OK(worker_->DeleteWorkerSession(handle));
    handle = absl::StrCat("session ", registered);
    Open(handle);
  });
  EXPECT_GT(registered, 10);  // the mutator leaves some alone
}

TEST_F(WorkerDecodersTest, RunRequests) {
  tensorflow::RegisterGraphRequest small = SmallGraph();
  small.mutable_graph_def()->mutable_node()->RemoveLast();  // nothing that would wait
  ASSERT_OK_AND_ASSIGN(const RegisteredPart part,
                       worker_->RegisterGraph(OrderOf(std::move(small))));
  tensorflow::RunGraphRequest run;
  run.set_session_handle("session");
  run.set_graph_handle(part.graph_handle);
  run.set_step_id(1);
  auto* const send = run.add_send();
  ASSERT_OK(TensorToProto(Tensor::Vector<float>({1, 2}), send->mutable_tensor()));
  run.mutable_exec_opts()->set_record_costs(true);
  int64_t step = 1;
  int ran = 0;
  Fuzz(6'000, {Raw(run)}, [&](const std::string& bytes, Mutator* mutator) {
    tensorflow::RunGraphRequest request;
    std::vector<DecodedTensor> tensors;
    const Status read = DecodeMessage("RunGraphRequest", BufferOf(bytes, mutator), 3,
                                      TensorField::kNamedOrIndexed, &tensors, &request);
    CheckTensors(read, tensors);
    if (!read.ok()) return;
    std::vector<NamedTensor> values;
    for (DecodedTensor& tensor : tensors) {
      values.push_back({tensor.name, std::move(tensor.value), tensor.is_dead});
    }
    request.set_step_id(++step);
    tensorflow::RunGraphResponse answer;
    std::vector<NamedTensor> received;
    int done = 0;
    worker_->RunGraph(request, request, EdgesBy::kRecvTensor, values, /*block=*/true,
                      absl::Now() + absl::Seconds(10), nullptr, &answer, &received,
                      [&](const Status& status) {
                        ++done;
                        if (status.ok()) ++ran;
                      });
    EXPECT_EQ(done, 1);
  });
  EXPECT_GT(ran, 10);
}

// A call that keeps how it ended.
class KeptCall : public ServerCall {
 public:
  const std::string& method() const override { return method_; }
  // What waits for tasks gives up then.
  absl::Time deadline() const override { return deadline_; }
  CancellationManager* cancellation() override { return &cancellation_; }
  const CallLimits& limits() const override { return limits_; }
  bool is_from_member() const override { return false; }
  void Write(const grpc::ByteBuffer&, absl::AnyInvocable<void()> written) override {
    MutexLock lock(&mu_);
    written_ = std::move(written);
  }
  void Finish(const grpc::ByteBuffer&) override { End(absl::OkStatus()); }
  void FinishWithStatus(const Status& status) override { End(status); }

  int ends() {
    MutexLock lock(&mu_);
    return ends_;
  }
  // False when it hangs.
  bool AwaitEnd() {
    const absl::Time hang = absl::Now() + absl::Minutes(1);
    MutexLock lock(&mu_);
    while (ends_ == 0 && absl::Now() < hang) ended_.WaitWithTimeout(&mu_, absl::Seconds(1));
    return ends_ > 0;
  }
  bool is_ok() {
    MutexLock lock(&mu_);
    return ends_ > 0 && status_.ok();
  }
  Status status() {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  void End(const Status& status) {
    MutexLock lock(&mu_);
    ++ends_;
    status_ = status;
    ended_.SignalAll();
  }

  const std::string method_ = "/test/Kept";
  const absl::Time deadline_ = absl::Now() + absl::Seconds(5);
  const CallLimits limits_;
  CancellationManager cancellation_;
  Mutex mu_;
  CondVar ended_;
  absl::AnyInvocable<void()> written_ ABSL_GUARDED_BY(mu_);
  int ends_ ABSL_GUARDED_BY(mu_) = 0;
  Status status_ ABSL_GUARDED_BY(mu_);
};

// All that the network may ask a worker, as it comes in: bytes. A call that was cancelled has
// ended, once.
TEST_F(WorkerDecodersTest, RequestsOfEachMethod) {
  const std::string key = RendezvousKey::Make(
      absl::StrCat(kTask, "/device:CPU:0"), worker_->DeviceAttributes()[0].incarnation(),
      "/job:worker/replica:0/task:0/device:CPU:0", "edge", 0, 0);
  tensorflow::CreateWorkerSessionRequest create;
  create.set_session_handle("another");
  create.add_cluster_device_attributes()->set_name("/job:worker/replica:0/task:0/device:CPU:0");
  wire::CreateWorkerSessionRequest own_create;
  own_create.set_session_handle("one more");
  own_create.set_master_task("/job:worker/replica:0/task:0");
  own_create.set_master_incarnation(7);
  ToWire({.run = {.name = "/logs/a", .id = "a1", .is_chief = true, .chief = "chief"},
          .lease = absl::Seconds(60)},
         own_create.mutable_terms());
  wire::DeleteWorkerSessionRequest own_close;
  own_close.set_session_handle("one more");
  tensorflow::RegisterGraphRequest small = SmallGraph();
  wire::RegisterGraphRequest own_graph;
  own_graph.set_session_handle("session");
  own_graph.mutable_graph_def()->Swap(small.mutable_graph_def());
  wire::DeregisterGraphRequest own_drop;
  own_drop.set_session_handle("session");
  own_drop.set_graph_handle("1");
  tensorflow::DeleteWorkerSessionRequest close;
  close.set_session_handle("another");
  tensorflow::DeregisterGraphRequest drop;
  drop.set_session_handle("session");
  drop.set_graph_handle("1");
  tensorflow::CleanupGraphRequest cleanup;
  cleanup.set_step_id(3);
  tensorflow::RecvTensorRequest recv;
  recv.set_step_id(5);
  recv.set_rendezvous_key(key);
  recv.set_request_id(7);
  wire::RenewSessionsRequest renew;
  renew.add_session_handle("session");
  wire::FindRunRequest find;
  find.set_name("/logs/a");
  find.set_id("a1");
  wire::EndRunRequest end;
  end.set_session_handle("session");
  end.mutable_end()->set_global_step(7);
  const std::string service = "/tensorflow.grpc.WorkerService/", own = "/millrace.WorkerControl/";
  const std::map<std::string, std::string> requests = {
      {service + "GetStatus", ""},
      {service + "CreateWorkerSession", Raw(create)},
      {service + "DeleteWorkerSession", Raw(close)},
      {service + "RegisterGraph", Raw(SmallGraph())},
      {service + "DeregisterGraph", Raw(drop)},
      {service + "CleanupGraph", Raw(cleanup)},
      {service + "CleanupAll", ""},
      {service + "RunGraph",
       "\n\a"
       "session"},
      {service + "RecvTensor", Raw(recv)},
      {service + "Logging", ""},
      {service + "Tracing", ""},
      {own + "GetStatus", ""},
      {own + "CreateWorkerSession", Raw(own_create)},
      {own + "DeleteWorkerSession", Raw(own_close)},
      {own + "RegisterGraph", Raw(own_graph)},
      {own + "DeregisterGraph", Raw(own_drop)},
      {own + "CleanupAll", ""},
      {own + "RenewSessions", Raw(renew)},
      {own + "FindRun", Raw(find)},
      {own + "EndRun", Raw(end)},
      {own + "GetPeerCounts", ""},
  };
  const std::map<std::string, RpcServer::Handler> handlers = WorkerHandlers(worker_.get());
  // A method without a request here has no fuzzer.
  for (const auto& [name, handler] : handlers) EXPECT_EQ(requests.count(name), 1u) << name;
  for (const auto& [name, request] : requests) {
    SCOPED_TRACE(name);
    ASSERT_EQ(handlers.count(name), 1u);
    int answered = 0;
    Fuzz(1'000, {request}, [&](const std::string& bytes, Mutator* mutator) {
      const auto call = std::make_shared<KeptCall>();
      handlers.at(name)(call, BufferOf(bytes, mutator));
      answered += call->is_ok() ? 1 : 0;
      call->cancellation()->StartCancel();
      EXPECT_EQ(call->ends(), 1);
    });
    // These take anything that is a message.
    if (request.empty() && !absl::EndsWith(name, "/CleanupAll")) {
      EXPECT_GE(answered, 62);
    }
  }
}

// A call whose peer is the test. What is written to it never leaves.
class SpokenCall : public DuplexCall {
 public:
  void Start(std::shared_ptr<User> user) override { user_ = std::move(user); }
  void Write(const grpc::ByteBuffer&) override {}
  void Close() override {}
  void Say(const grpc::ByteBuffer& message) { user_->OnMessage(message); }
  void End() {
    const std::shared_ptr<User> user = std::move(user_);
    user->OnEnded(absl::UnavailableError("the test is over"), /*by_peer=*/true);
  }

 private:
  std::shared_ptr<User> user_;
};

// Messages of /millrace.Link/Connect, in several of the call's. frames_test.cc has the frames.
TEST(DecodersTest, MessagesOfALink) {
  HelloFrame hello;
  hello.task = "/job:worker/replica:0/task:0";
  hello.incarnation = 41;
  hello.window_bytes = kDefaultWindowBytes;
  hello.offer = "another way";
  RunFrame run;
  run.step_id = 7;
  run.number = 1;
  TensorsFrame tensors;
  tensors.step_id = 7;
  TensorEntry& entry = tensors.tensors.emplace_back();
  ASSERT_OK_AND_ASSIGN(entry.value, WireTensor::Of(Tensor::Vector<float>({1, 2, 3})));
  EndFrame end;
  end.step_id = 7;
  const std::string talk =
      absl::StrCat(FrameBytes(hello), FrameBytes(BindFrame{1, "session", "graph"}), FrameBytes(run),
                   FrameBytes(tensors), FrameBytes(end));
  int opened = 0, whole = 0;
  Fuzz(10'000, {talk}, [&](const std::string& bytes, Mutator* mutator) {
    const auto call = std::make_shared<SpokenCall>();
    const auto listener = std::make_shared<RecordingEnd>();
    ByteLinkOptions options;
    options.task = kTask;
    options.incarnation = 42;
    options.waits_for_hello = true;
    const auto link = ByteLink::Open(AcceptGrpcWire(call), listener, std::move(options));
    const size_t half = mutator->Below(1 + bytes.size());
    call->Say(BufferOf(bytes.substr(0, half), mutator));
    call->Say(BufferOf(bytes.substr(half), mutator));
    opened += listener->link() != nullptr ? 1 : 0;
    whole += listener->last_end().step_id == 7 ? 1 : 0;
    call->End();
    EXPECT_EQ(listener->num_losses(), 1);
    listener->LetGo();
  });
  EXPECT_GE(opened, 100);
  EXPECT_GE(whole, 50);
}

// A cluster of one task.
class MasterDecodersTest : public WorkerDecodersTest {
 protected:
  MasterDecodersTest() {
    MasterOptions options;
    options.task = kTask;
    const auto cluster = ClusterSpec::Make({{"ps", {"127.0.0.1:1"}}});
    EXPECT_OK(cluster);
    if (cluster.ok()) options.cluster = *cluster;
    options.peer = [this](absl::string_view task) -> std::shared_ptr<WorkerControl> {
      if (task != kTask) return nullptr;
      return MakeInProcessControl(worker_.get(), "127.0.0.1:1");
    };
    options.local_part = MakeLocalPart(worker_.get());
    master_ = std::make_unique<Master>(std::move(options));
  }
  ~MasterDecodersTest() override { master_->Shutdown(absl::AbortedError("over")); }

  // With a graph that has x, a constant, and y, an identity of x.
  tensorflow::CreateSessionRequest NewSession() {
    tensorflow::CreateSessionRequest request;
    tensorflow::GraphDef* const graph = request.mutable_graph_def();
    graph->mutable_versions()->set_producer(134);
    tensorflow::NodeDef* const x = graph->add_node();
    x->set_name("x");
    x->set_op("Const");
    SetAttr(DT_FLOAT, &(*x->mutable_attr())["dtype"]);
    SetAttr(Tensor::Vector<float>({1, 2}), &(*x->mutable_attr())["value"]);
    tensorflow::NodeDef* const y = graph->add_node();
    y->set_name("y");
    y->set_op("Identity");
    y->add_input("x");
    SetAttr(DT_FLOAT, &(*y->mutable_attr())["T"]);
    return request;
  }
  std::string OpenSession() {
    tensorflow::CreateSessionResponse response;
    EXPECT_OK(master_->CreateSession(NewSession(), absl::Seconds(30), 16, &response));
    return response.session_handle();
  }

  std::unique_ptr<Master> master_;
};

// All that clients may ask a master. Each method has a session of its own.
TEST_F(MasterDecodersTest, RequestsOfEachMethod) {
  const auto requests = [this]() -> std::map<std::string, std::string> {
    const std::string session = OpenSession();
    tensorflow::ExtendSessionRequest extend;
    extend.set_session_handle(session);
    extend.set_current_graph_version(1);
    *extend.mutable_graph_def() = NewSession().graph_def();
    extend.mutable_graph_def()->mutable_node()->RemoveLast();
    extend.mutable_graph_def()->mutable_node(0)->set_name("z");
    tensorflow::RunStepRequest run;
    run.set_session_handle(session);
    run.add_feed()->set_name("x:0");
    EXPECT_OK(TensorToProto(Tensor::Vector<float>({3, 4}), run.mutable_feed(0)->mutable_tensor()));
    run.add_fetch("y:0");
    tensorflow::MakeCallableRequest make;
    make.set_session_handle(session);
    make.mutable_options()->add_feed("x:0");
    make.mutable_options()->add_fetch("y:0");
    tensorflow::MakeCallableResponse made;
    EXPECT_OK(master_->MakeCallable(make, &made));
    tensorflow::RunCallableRequest call;
    call.set_session_handle(session);
    call.set_handle(made.handle());
    *call.add_feed() = run.feed(0).tensor();
    tensorflow::ReleaseCallableRequest release;
    release.set_session_handle(session);
    release.set_handle(made.handle());
    tensorflow::CloseSessionRequest close;
    close.set_session_handle(session);
    tensorflow::ListDevicesRequest list;
    list.set_session_handle(session);
    tensorflow::ResetRequest reset;
    reset.add_container("c");
    wire::RenewSessionsRequest renew;
    renew.add_session_handle(session);
    wire::EndRunRequest end;
    end.set_session_handle(session);
    end.mutable_end()->set_reason("done");
    wire::FindTrainersRequest trainers;
    trainers.set_session_handle(session);
    const std::string service = "/tensorflow.grpc.MasterService/", own = "/millrace.Master/";
    return {
        {service + "CreateSession", Raw(NewSession())},
        {service + "ExtendSession", Raw(extend)},
        {service + "RunStep", Raw(run)},
        {service + "MakeCallable", Raw(make)},
        {service + "RunCallable", Raw(call)},
        {service + "ReleaseCallable", Raw(release)},
        {service + "CloseSession", Raw(close)},
        {service + "ListDevices", Raw(list)},
        {service + "Reset", Raw(reset)},
        {own + "RenewSessions", Raw(renew)},
        {own + "EndRun", Raw(end)},
        {own + "FindTrainers", Raw(trainers)},
    };
  };
  MasterPools pools;
  const std::map<std::string, RpcServer::Handler> handlers =
      MasterHandlers(master_.get(), &pools, [](absl::Span<const std::string>, int sessions) {
        return sessions > 0 ? absl::PermissionDeniedError("for members") : absl::OkStatus();
      });
  const auto known = requests();
  EXPECT_EQ(known.size(), handlers.size());
  for (const auto& [name, handler] : handlers) {
    SCOPED_TRACE(name);
    // A method without a request here has no fuzzer.
    ASSERT_EQ(known.count(name), 1u);
    const std::string request = requests().at(name);
    int answered = 0;
    Status refused;  // of a valid one
    Fuzz(500, {request}, [&](const std::string& bytes, Mutator* mutator) {
      const auto call = std::make_shared<KeptCall>();
      handler(call, BufferOf(bytes, mutator));
      ASSERT_TRUE(call->AwaitEnd());
      EXPECT_EQ(call->ends(), 1);
      answered += call->is_ok() ? 1 : 0;
      if (bytes == request && refused.ok()) refused = call->status();
    });
    for (const char* many : {"CreateSession", "RunStep", "MakeCallable", "RunCallable",
                             "ListDevices", "RenewSessions"}) {
      if (absl::EndsWith(name, absl::StrCat("/", many))) {
        EXPECT_GE(answered, 31) << refused;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
