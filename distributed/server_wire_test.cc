// SPDX-License-Identifier: Apache-2.0
//
// What travels between the tasks of a cluster in this process, over loopback: tensors, errors and
// garbage, and what copies they cost.
#include <grpcpp/support/slice.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/buffer.h"
#include "core/notification.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/step_wire.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/grpc_transport.h"
#include "distributed/transport/transport.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "net/tensor_coding.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/state/state.h"
#include "proto/config.pb.h"
#include "runtime/kernel.h"
#include "runtime/rendezvous.h"
#include "runtime/session.h"

// covers: clusters: a training step costs at most 3 calls per parameter server and one copy per
//   sent tensor

namespace millrace {
namespace {

// More than one message may have; its pages are all the same one.
constexpr int64_t kHugeElements = (int64_t{1} << 29) + 1024;

Status VectorOutput(InferenceContext* c) {
  c->set_output(0, PartialShape::UnknownOfRank(1));
  return absl::OkStatus();
}

class HugeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const size_t size = static_cast<size_t>(kHugeElements) * sizeof(float);
    void* const pages =
        mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return absl::ResourceExhaustedError("no address space");
    BufferRef buffer = Buffer::External(pages, size, [pages, size] { munmap(pages, size); });
    MR_ASSIGN_OR_RETURN(Tensor huge, Tensor::FromBuffer(DT_FLOAT, *Shape::Make({kHugeElements}),
                                                        std::move(buffer), 0));
    ctx->set_output(0, std::move(huge));
    return absl::OkStatus();
  }
};

class QuoteBytesKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override {
    return absl::InvalidArgumentError("text must be a number, got '\xff\xfe'");
  }
};

const OpRegistration kHuge =
    OpSpec("TestHuge").Output("y: float").Stateful().Shape(VectorOutput).NotDifferentiable();
const OpRegistration kQuoteBytes =
    OpSpec("TestQuoteBytes").Output("y: float").Stateful().Shape(VectorOutput).NotDifferentiable();
const KernelRegistration kHugeKernel("TestHuge", KernelFor<HugeKernel>());
const KernelRegistration kQuoteBytesKernel("TestQuoteBytes", KernelFor<QuoteBytesKernel>());

Output Source(ScopeAt at, const char* op) { return NodeBuilder(at, op).Finish().output(0); }

// By calls; over links the bytes of tensors are read into their memory (distributed/link).
TEST(ServerTest, LargeTensorsTravelWithOneCopyOnReceiptAndNoneOnSending) {
  LoopbackCluster cluster(/*num_ps=*/1, /*num_workers=*/1, StepWire::kCalls);
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Scope worker = root.WithDevice("/job:worker/task:0");
  constexpr int64_t kElements = 16 << 20;  // 64 MiB
  const Output x = Placeholder(worker, DT_FLOAT, {kElements});
  // worker -> ps -> worker
  const Output there = Identity(ps.WithName("there"), x);
  const Output back = Identity(worker.WithName("back"), there);
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  Tensor value = *Tensor::Allocate(DT_FLOAT, *Shape::Make({kElements}));
  for (size_t i = 0; i < kElements; ++i) value.mutable_flat<float>()[i] = float(i % 1000);
  ASSERT_OK(session->Run({{x, value}}, {back}));
  const TensorCodingCounters before = GetTensorCodingCounters();
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, value}}, {back}));
  const TensorCodingCounters after = GetTensorCodingCounters();
  ExpectTensorEqual(out[0], value);
  EXPECT_EQ(after.sent_by_reference - before.sent_by_reference, 2 * value.TotalBytes());
  EXPECT_EQ(after.sent_copied - before.sent_copied, 0);
  EXPECT_EQ(after.received_copied - before.received_copied + after.received_in_place -
                before.received_in_place,
            2 * value.TotalBytes());
  EXPECT_EQ(after.through_proto - before.through_proto, 0);
}

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
  const auto transport = MakeGrpcTransport(
      task, RpcChannel::Make(absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port())));
  tensorflow::GetStatusResponse devices;
  Notification got;
  transport->GetStatus({}, &devices, [&](const Status& s) {
    EXPECT_OK(s);
    got.Notify();
  });
  got.Wait();
  ASSERT_EQ(devices.device_attributes_size(), 1);
  const std::string device = task + "/device:CPU:0";
  const uint64_t incarnation = devices.device_attributes(0).incarnation();
  const auto recv = [&](int64_t step, const std::string& key, int64_t id, NamedTensor* tensor) {
    tensorflow::RecvTensorRequest request;
    request.set_step_id(step);
    request.set_rendezvous_key(key);
    request.set_request_id(id);
    Notification done;
    Status result;
    CallOptions options;
    options.deadline = absl::Now() + absl::Milliseconds(500);
    transport->RecvTensor(options, request, tensor, [&](const Status& s) {
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

// By calls; over links it travels.
TEST(ServerTest, ATensorThatCannotTravelEndsTheStepAtOnce) {
  LoopbackCluster cluster(/*num_ps=*/1, /*num_workers=*/1, StepWire::kCalls);
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Scope worker = root.WithDevice("/job:worker/task:0");
  // The ps waits for what the worker makes of the tensor before it has all that the worker pulls.
  const Output there = Identity(worker, Source(ps.WithName("huge"), "TestHuge"));
  const Output back = Identity(ps.WithName("back"), there);
  const Output again = Identity(worker.WithName("again"), back);
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(20'000);
  const std::vector<FetchName> targets = {again.op()};
  EXPECT_STATUS(session->Run(options, {}, {}, targets, nullptr),
                absl::StatusCode::kResourceExhausted, "must be below 2 GiB");
}

// On a link the bytes themselves, as in one process; in messages of protobuf as \xNN.
void ExpectAnyBytesQuoted(StepWire wire) {
  LoopbackCluster cluster(/*num_ps=*/1, /*num_workers=*/1, wire);
  Scope root;
  const Output bad = Source(root.WithDevice("/job:ps/task:0").WithName("bad"), "TestQuoteBytes");
  const Output after = Identity(root.WithDevice("/job:worker/task:0"), bad);
  const std::string text = "text must be a number, got '\\xff\\xfe'";
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  EXPECT_STATUS(
      session->Run({}, {after}), absl::StatusCode::kInvalidArgument,
      wire == StepWire::kLinks ? std::string("text must be a number, got '\xff\xfe'") : text);
  // A client of another process.
  SessionOptions options;
  options.target = RemoteTarget(*cluster.server("worker", 0));
  ASSERT_OK_AND_ASSIGN(const auto remote, NewSession(options));
  ASSERT_OK(remote->Extend(root));
  EXPECT_STATUS(remote->Run({}, {after}), absl::StatusCode::kInvalidArgument, text);
}

TEST(ServerTest, ErrorsThatQuoteAnyBytesArrive) {
  ExpectAnyBytesQuoted(StepWire::kLinks);
  ExpectAnyBytesQuoted(StepWire::kCalls);
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
