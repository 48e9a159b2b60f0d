// SPDX-License-Identifier: Apache-2.0
//
// What travels between the tasks of a cluster in this process, over loopback: tensors, errors and
// garbage.
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/notification.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/raw_client.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/grpc_control.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/tensor_source.h"
#include "distributed/transport/worker_control.h"
#include "graph/attr.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/state/state.h"
#include "proto/config.pb.h"
#include "proto/worker.pb.h"
#include "runtime/kernel.h"
#include "runtime/rendezvous.h"
#include "runtime/session.h"

namespace millrace {
namespace {

Status VectorOutput(InferenceContext* c) {
  c->set_output(0, PartialShape::UnknownOfRank(1));
  return absl::OkStatus();
}

class QuoteBytesKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override {
    return absl::InvalidArgumentError("text must be a number, got '\xff\xfe'");
  }
};

const OpRegistration kQuoteBytes =
    OpSpec("TestQuoteBytes").Output("y: float").Stateful().Shape(VectorOutput).NotDifferentiable();
const KernelRegistration kQuoteBytesKernel("TestQuoteBytes", KernelFor<QuoteBytesKernel>());

Output Source(ScopeAt at, const char* op) { return NodeBuilder(at, op).Finish().output(0); }

TEST(ServerTest, StringsAndDeadAndEmptyTensorsTravel) {
  LoopbackCluster cluster;
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Scope worker = root.WithDevice("/job:worker/task:0");
  const Output text = Placeholder(worker, DT_STRING);
  const Output empty = Placeholder(worker, DT_INT64);
  const Output text_back = Identity(worker, Identity(ps, text));
  const Output empty_back = Identity(worker, Identity(ps, empty));
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  const Tensor words = Tensor::Vector<std::string>({"a", std::string(5000, 'b'), ""});
  const Tensor none = *Tensor::Zeros(DT_INT64, *Shape::Make({0, 3}));
  ASSERT_OK_AND_ASSIGN(const auto out,
                       session->Run({{text, words}, {empty, none}}, {text_back, empty_back}));
  ExpectTensorEqual(out[0], words);
  ExpectTensorEqual(out[1], none);
}

TEST(ServerTest, EmbeddingRowsTravelInsteadOfTables) {
  LoopbackCluster cluster;
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Scope worker = root.WithDevice("/job:worker/task:0");
  const Variable table = MakeVariable(ps.WithName("table"),
                                      Fill(ps, Const<int32_t>(ps, {10'000, 8}), Const(ps, 1.0f)));
  const Output ids = Placeholder(worker, DT_INT64, {-1});
  const Output updates = Placeholder(worker, DT_FLOAT, {-1, 8});
  const Output rows = Identity(worker, ResourceGather(ps, table.handle, ids, DT_FLOAT));
  const Operation add = ResourceScatterAdd(ps.WithName("add"), table.handle, ids, updates);
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {table.initializer}));
  const Tensor some = Tensor::Vector<int64_t>({7, 9'999});
  const auto sent = [&] {
    int64_t bytes = 0;
    for (const char* job : {"ps", "worker"}) {
      for (const auto& [task, peer] : CountsOf(*cluster.server(job, 0)).peers) {
        bytes += peer.bytes_sent;
      }
    }
    return bytes;
  };
  const int64_t before = sent();
  ASSERT_OK(session->Run({{ids, some}, {updates, *Tensor::Zeros(DT_FLOAT, *Shape::Make({2, 8}))}},
                         {}, {add}));
  Tensor ones = *Tensor::Allocate(DT_FLOAT, *Shape::Make({2, 8}));
  for (float& v : ones.mutable_flat<float>()) v = 1;
  ASSERT_OK(session->Run({{ids, some}, {updates, ones}}, {}, {add}));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{ids, some}}, {rows}));
  const int64_t bytes = sent() - before;
  EXPECT_EQ(out[0].flat<float>()[0], 2.0f);
  EXPECT_GT(bytes, 0);
  EXPECT_LT(bytes, 1000);
}

TEST(ServerTest, RecvTensorWaitsForAStepThatHasNotBegunAndRefusesOtherKeys) {
  LoopbackCluster cluster;
  const std::string task = "/job:ps/replica:0/task:0";
  const auto channel =
      RpcChannel::Make(absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port()));
  const auto control = MakeGrpcControl(task, channel);
  const auto source = MakeGrpcTensorSource(channel);
  std::vector<tensorflow::DeviceAttributes> devices;
  Notification got;
  control->GetStatus({}, &devices, [&](const Status& s) {
    EXPECT_OK(s);
    got.Notify();
  });
  got.Wait();
  ASSERT_EQ(devices.size(), 1u);
  const std::string device = task + "/device:CPU:0";
  const uint64_t incarnation = devices[0].incarnation();
  const auto recv = [&](int64_t step, const std::string& key, int64_t id, NamedTensor* tensor) {
    tensorflow::RecvTensorRequest request;
    request.set_step_id(step);
    request.set_rendezvous_key(key);
    request.set_request_id(id);
    Notification done;
    Status result;
    CallOptions options;
    options.deadline = absl::Now() + absl::Milliseconds(500);
    source->RecvTensor(options, request, tensor, [&](const Status& s) {
      result = s;
      done.Notify();
    });
    done.Wait();
    return result;
  };
  const std::string key = RendezvousKey::Make(device, incarnation, device, "edge", 0, 0);
  NamedTensor tensor;
  // The step has not begun: it is waited for, until the caller's deadline.
  EXPECT_STATUS(recv(5, key, 1, &tensor), absl::StatusCode::kDeadlineExceeded, "");
  EXPECT_STATUS(recv(5, key, 1, &tensor), absl::StatusCode::kAborted, "received twice");
  const std::string old = RendezvousKey::Make(device, incarnation + 1, device, "edge", 0, 0);
  EXPECT_STATUS(recv(5, old, 2, &tensor), absl::StatusCode::kAborted,
                "RecvTensor expects a different device incarnation");
  EXPECT_STATUS(recv(5, "nonsense", 3, &tensor), absl::StatusCode::kInvalidArgument,
                "Invalid rendezvous key");
}

// A master of TensorFlow: parts are registered and run by calls, and the worker's part asks the
// ps's for what it sends.
class ForeignMaster {
 public:
  struct Part {
    std::string device;
    std::unique_ptr<RawClient> client;
    uint64_t incarnation = 0;
    tensorflow::GraphDef graph;
    std::string handle;

    tensorflow::NodeDef* Add(const char* op, const std::string& name) {
      tensorflow::NodeDef* const node = graph.add_node();
      node->set_name(name);
      node->set_op(op);
      node->set_device(device);
      return node;
    }
  };

  explicit ForeignMaster(LoopbackCluster* cluster) {
    for (Part* const part : {&ps, &worker}) {
      const std::string job = part == &ps ? "ps" : "worker";
      part->device = absl::StrCat("/job:", job, "/replica:0/task:0/device:CPU:0");
      part->client =
          std::make_unique<RawClient>(absl::StrCat("127.0.0.1:", cluster->server(job, 0)->port()));
      tensorflow::GetStatusResponse status;
      Expect(part->client->Call(kService + "GetStatus", tensorflow::GetStatusRequest(), &status));
      if (status.device_attributes_size() > 0) {
        part->incarnation = status.device_attributes(0).incarnation();
      }
      tensorflow::CreateWorkerSessionRequest open;
      open.set_session_handle("foreign");
      tensorflow::CreateWorkerSessionResponse opened;
      Expect(part->client->Call(kService + "CreateWorkerSession", open, &opened));
    }
  }
  // The ps has such a constant.
  void AddConstant(const std::string& name, const Tensor& value) {
    tensorflow::NodeDef* const constant = ps.Add("Const", name);
    Set(constant, "dtype", value.dtype());
    Set(constant, "value", value);
  }
  // The worker receives the floats of this node of the ps, and has them for the master.
  void AddEdge(const std::string& node) {
    AddSend(node, node, worker, /*to_client=*/false, &ps);
    tensorflow::NodeDef* const recv = worker.Add("_Recv", "recv_" + node);
    Set(recv, "tensor_type", DT_FLOAT);
    SetEnds(node, ps, worker, /*to_client=*/false, recv);
    AddSend("fetch_" + node, recv->name(), worker, /*to_client=*/true, &worker);
  }
  // Of what the worker received from the node.
  std::string FetchKey(const std::string& node) const {
    return RendezvousKey::Make(worker.device, worker.incarnation, worker.device, "fetch_" + node,
                               /*frame_id=*/0, /*iteration=*/0);
  }
  void Register() {
    for (Part* const part : {&ps, &worker}) {
      tensorflow::RegisterGraphRequest request;
      request.set_session_handle("foreign");
      request.set_create_worker_session_called(true);
      part->graph.mutable_versions()->set_producer(134);
      request.mutable_graph_def()->Swap(&part->graph);
      tensorflow::RegisterGraphResponse response;
      Expect(part->client->Call(kService + "RegisterGraph", request, &response));
      part->handle = response.graph_handle();
    }
  }
  static tensorflow::RunGraphRequest RequestFor(const Part& part, int64_t step) {
    tensorflow::RunGraphRequest request;
    request.set_session_handle("foreign");
    request.set_create_worker_session_called(true);
    request.set_graph_handle(part.handle);
    request.set_step_id(step);
    return request;
  }
  static grpc::Status Run(Part* part, const tensorflow::RunGraphRequest& request,
                          tensorflow::RunGraphResponse* response) {
    return part->client->Call(kService + "RunGraph", request, response);
  }
  struct Ended {
    grpc::Status ps, worker;
    std::map<std::string, Tensor> fetched;  // by node
  };
  // The worker's part is begun first.
  Ended RunStep(int64_t step, const std::vector<std::string>& nodes) {
    Ended ended;
    tensorflow::RunGraphResponse fetched, nothing;
    tensorflow::RunGraphRequest request = RequestFor(worker, step);
    for (const std::string& node : nodes) request.add_recv_key(FetchKey(node));
    std::thread receiver([&] { ended.worker = Run(&worker, request, &fetched); });
    ended.ps = Run(&ps, RequestFor(ps, step), &nothing);
    receiver.join();
    for (const auto& named : fetched.recv()) {
      for (const std::string& node : nodes) {
        if (named.name() != FetchKey(node)) continue;
        const StatusOr<Tensor> value = TensorFromProto(named.tensor());
        EXPECT_OK(value);
        if (value.ok()) ended.fetched[node] = *value;
      }
    }
    return ended;
  }

  static inline const std::string kService = "/tensorflow.WorkerService/";
  Part ps, worker;

 private:
  static void Expect(const grpc::Status& status) {
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  template <typename T>
  static void Set(tensorflow::NodeDef* node, const char* attr, const T& value) {
    SetAttr(value, &(*node->mutable_attr())[attr]);
  }
  static void SetEnds(const std::string& edge, const Part& from, const Part& to, bool to_client,
                      tensorflow::NodeDef* end) {
    Set(end, "tensor_name", edge);
    Set(end, "send_device", from.device);
    Set(end, "recv_device", to.device);
    Set(end, "send_device_incarnation", static_cast<int64_t>(from.incarnation));
    Set(end, "client_terminated", to_client);
  }
  static void AddSend(const std::string& edge, const std::string& input, const Part& to,
                      bool to_client, Part* from) {
    tensorflow::NodeDef* const send = from->Add("_Send", "send_" + edge);
    send->add_input(input);
    Set(send, "T", DT_FLOAT);
    SetEnds(edge, *from, to, to_client, send);
  }
};

// covers: clusters: a step that a foreign master starts by RunGraph asks its peers for each tensor
//   by RecvTensor; what it has received, its master fetches by key
TEST(ServerTest, AForeignMastersStepCrossesByRecvTensor) {
  LoopbackCluster cluster;
  ForeignMaster master(&cluster);
  const std::map<std::string, Tensor> sent = {{"a", Tensor::Vector<float>({1, 2, 3})},
                                              {"b", Tensor::Vector<float>({})},
                                              {"c", Tensor::Scalar(4.0f)}};
  std::vector<std::string> nodes;
  for (const auto& [node, value] : sent) {
    nodes.push_back(node);
    master.AddConstant(node, value);
    master.AddEdge(node);
  }
  master.Register();
  const ForeignMaster::Ended ended = master.RunStep(7, nodes);
  EXPECT_TRUE(ended.ps.ok()) << ended.ps.error_message();
  EXPECT_TRUE(ended.worker.ok()) << ended.worker.error_message();
  ASSERT_EQ(ended.fetched.size(), sent.size());
  for (const auto& [node, value] : sent) ExpectTensorEqual(ended.fetched.at(node), value);
  EXPECT_EQ(CountsOf(*cluster.server("ps", 0)).calls("RecvTensor"), 3);
  EXPECT_EQ(CountsOf(*cluster.server("worker", 0)).calls("RecvTensor"), 0);
  EXPECT_EQ(CountsOf(*cluster.server("ps", 0)).calls("Connect"), 0);
}

// covers: clusters: a foreign master's RunGraph that is cancelled while its part waits in
// RecvTensor
//   ends, and its part with it; the next step of the same parts runs
TEST(ServerTest, AForeignMasterCancelsAStepThatWaitsInRecvTensor) {
  LoopbackCluster cluster;
  ForeignMaster master(&cluster);
  master.AddConstant("a", Tensor::Scalar(1.0f));
  master.AddEdge("a");
  master.Register();
  CancellationManager cancel;
  Status ended;
  std::thread step([&] {
    const auto channel =
        RpcChannel::Make(absl::StrCat("127.0.0.1:", cluster.server("worker", 0)->port()));
    RpcOptions options;
    options.deadline = absl::Now() + absl::Seconds(60);
    options.cancellation = &cancel;
    const grpc::Slice request(ForeignMaster::RequestFor(master.worker, 7).SerializeAsString());
    ended =
        channel->Call(ForeignMaster::kService + "RunGraph", options, grpc::ByteBuffer(&request, 1))
            .status();
  });
  // The ps's part is never begun.
  const absl::Time hang = absl::Now() + absl::Seconds(50);
  while (CountsOf(*cluster.server("ps", 0)).calls("RecvTensor") == 0 && absl::Now() < hang) {
    std::this_thread::yield();
  }
  EXPECT_EQ(CountsOf(*cluster.server("ps", 0)).calls("RecvTensor"), 1);
  cancel.StartCancel();
  step.join();
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled) << ended;
  const ForeignMaster::Ended next = master.RunStep(8, {"a"});
  EXPECT_TRUE(next.worker.ok()) << next.worker.error_message();
  ASSERT_EQ(next.fetched.count("a"), 1u);
  ExpectTensorEqual(next.fetched.at("a"), Tensor::Scalar(1.0f));
  // A part that still waited would keep the stop for its grace.
  ::testing::internal::CaptureStderr();
  cluster.Kill("worker", 0);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("cancels the steps that still run"), std::string::npos) << log;
}

// covers: clusters: when the sender's part of a foreign master's step fails, the part that waits
//   for its tensors ends with what it says
TEST(ServerTest, AForeignMastersStepWhoseSenderFailsEndsOnTheReceiverToo) {
  LoopbackCluster cluster;
  ForeignMaster master(&cluster);
  master.ps.Add("TestQuoteBytes", "bad");
  master.AddEdge("bad");
  master.Register();
  const ForeignMaster::Ended ended = master.RunStep(7, {"bad"});
  for (const grpc::Status* const status : {&ended.ps, &ended.worker}) {
    EXPECT_EQ(status->error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status->error_message().find("text must be a number"), std::string::npos)
        << status->error_message();
  }
  EXPECT_TRUE(ended.fetched.empty());
}

// On a link the bytes themselves, as in one process; in messages of protobuf as \xNN.
TEST(ServerTest, ErrorsThatQuoteAnyBytesArrive) {
  LoopbackCluster cluster;
  Scope root;
  const Output bad = Source(root.WithDevice("/job:ps/task:0").WithName("bad"), "TestQuoteBytes");
  const Output after = Identity(root.WithDevice("/job:worker/task:0"), bad);
  const std::string text = "text must be a number, got '\\xff\\xfe'";
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  EXPECT_STATUS(session->Run({}, {after}), absl::StatusCode::kInvalidArgument,
                "text must be a number, got '\xff\xfe'");
  // A client of another process.
  SessionOptions options;
  options.target = RemoteTarget(*cluster.server("worker", 0));
  ASSERT_OK_AND_ASSIGN(const auto remote, NewSession(options));
  ASSERT_OK(remote->Extend(root));
  EXPECT_STATUS(remote->Run({}, {after}), absl::StatusCode::kInvalidArgument, text);
}

TEST(ServerTest, LongErrorsOfAnyAlphabetFitIntoTheTrailers) {
  RpcServer::Options options;
  options.address = absl::StrCat("127.0.0.1:", FreePort());
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "\u00e4";
  options.handlers["/test/Fail"] = [&](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer&) {
    call->FinishWithStatus(absl::OutOfRangeError(text));
  };
  const std::string address = options.address;
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start(std::move(options)));
  RpcOptions call;
  call.deadline = absl::Now() + absl::Seconds(20);
  call.wait_for_ready = true;
  const grpc::Slice nothing;
  EXPECT_STATUS(RpcChannel::Make(address)->Call("/test/Fail", call, grpc::ByteBuffer(&nothing, 1)),
                absl::StatusCode::kOutOfRange, "\u00e4\u00e4\u00e4");
}

TEST(ServerTest, GarbageIsRefusedAndHarmsNobody) {
  LoopbackCluster cluster;
  const auto channel =
      RpcChannel::Make(absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port()));
  const grpc::Slice garbage("\xff\xff\xff\xff\xff garbage");
  const grpc::ByteBuffer bytes(&garbage, 1);
  RpcOptions options;
  options.deadline = absl::Now() + absl::Seconds(10);
  for (const char* method :
       {"/tensorflow.grpc.WorkerService/RunGraph", "/tensorflow.grpc.WorkerService/RegisterGraph",
        "/tensorflow.grpc.WorkerService/RecvTensor", "/tensorflow.grpc.MasterService/RunStep",
        "/tensorflow.grpc.MasterService/CreateSession"}) {
    EXPECT_STATUS(channel->Call(method, options, bytes), absl::StatusCode::kInvalidArgument, "")
        << method;
  }
  EXPECT_STATUS(channel->Call("/no.Service/Method", options, bytes),
                absl::StatusCode::kUnimplemented, "");
  const grpc::Slice nothing;
  EXPECT_STATUS(channel->Call("/tensorflow.grpc.WorkerService/RunGraph", options,
                              grpc::ByteBuffer(&nothing, 1)),
                absl::StatusCode::kAborted, "Session handle is not found");
  EXPECT_NE(cluster.NewSession(MakeSmallModel().root), nullptr);
}

}  // namespace
}  // namespace millrace
