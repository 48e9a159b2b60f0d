// SPDX-License-Identifier: Apache-2.0
//
// What a peer may not take from a server, or do to those who use it: each attack is refused, takes
// less than 64 MiB, and a session trains on meanwhile.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/server.h"
#include "distributed/testing/half_sender.h"
#include "distributed/testing/raw_client.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/two_servers.h"
#include "formats/graph_files.h"
#include "graph/node_builder.h"
#include "gtest/gtest.h"
#include "net/call_metadata.h"
#include "net/rpc_channel.h"
#include "net/security.h"
#include "net/testing/test_certificates.h"
#include "ops/array/constant.h"
#include "proto/master.pb.h"
#include "proto/worker.pb.h"
#include "proto/worker_control.pb.h"
#include "runtime/rendezvous.h"
#include "runtime/session.h"

// covers: clusters: 44 bytes that claim 2 GB, too large or too many requests, calls, sessions,
//   graphs are refused with the limit's name, within 64 MiB, while a session trains; a stranger's
//   CleanupAll or Reset ends no job
// covers: clusters: graphs use files of the server's roots only, also through `..` and links

namespace millrace {
namespace {

constexpr int64_t kMaxGrowth = int64_t{64} << 20;
constexpr char kMaster[] = "/tensorflow.grpc.MasterService/";
constexpr char kWorker[] = "/tensorflow.grpc.WorkerService/";

// Of /proc/self/status, in bytes.
int64_t StatusField(absl::string_view name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    int64_t kib = 0;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &kib)) {
      return kib << 10;
    }
  }
  ADD_FAILURE() << name << " must be in /proc/self/status";
  return 0;
}

// How much more memory the process has had at a time since this was made.
class MemoryGrowth {
 public:
  MemoryGrowth() {
    std::ofstream peak("/proc/self/clear_refs");
    peak << "5";  // it begins anew
    peak.close();
    is_measured_ = !peak.fail();
#ifdef __SANITIZE_ADDRESS__
    is_measured_ = false;  // its shadow and its quarantine grow, too
#endif
    before_ = StatusField("VmRSS");
  }
  // Says so where the system does not let a process measure it.
  void ExpectBounded(int64_t bound = kMaxGrowth) const {
    if (!is_measured_) {
      std::printf("memory is not measured: no /proc/self/clear_refs, or a sanitizer's memory\n");
      return;
    }
    EXPECT_LE(bytes(), bound);
  }
  int64_t bytes() const { return StatusField("VmHWM") - before_; }

 private:
  bool is_measured_ = false;
  int64_t before_ = 0;
};

// A session that trains while it lives.
class Training {
 public:
  explicit Training(TwoServers* servers) : model_(MakeSmallModel()) {
    auto session = servers->NewSession(model_.root);
    EXPECT_OK(session);
    if (!session.ok()) return;
    session_ = *std::move(session);
    EXPECT_OK(session_->Run({}, {}, {model_.init}));
    thread_ = std::thread([this] {
      while (!stop_) {
        const Status ran = session_
                               ->Run({{model_.x, Tensor::Vector<float>({-1, 0, 1})},
                                      {model_.y, Tensor::Vector<float>({-2, 1, 4})}},
                                     {}, {model_.train})
                               .status();
        EXPECT_OK(ran);
        if (!ran.ok()) return;
        ++steps_;
      }
    });
    AwaitSteps(10);
  }
  ~Training() {
    AwaitSteps(10);
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  // So many more. A step that fails ends the wait.
  void AwaitSteps(int64_t n) {
    const int64_t goal = steps_ + n;
    const absl::Time hang = absl::Now() + absl::Seconds(60);
    while (steps_ < goal && absl::Now() < hang && !::testing::Test::HasFailure()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_GE(steps_, goal);
  }

  const SmallModel model_;
  std::unique_ptr<Session> session_;
  std::atomic<int64_t> steps_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Calls of one connection that are under way at the same time.
class ManyCalls {
 public:
  explicit ManyCalls(const std::string& address, bool own_connection = false)
      : stub_(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                        Arguments(own_connection))) {}

  void Begin(const std::string& method, const std::string& request) {
    Call& call = *calls_.emplace_back(std::make_unique<Call>());
    const grpc::Slice slice(request);
    call.reader =
        stub_.PrepareUnaryCall(&call.context, method, grpc::ByteBuffer(&slice, 1), &queue_);
    call.reader->StartCall();
    call.reader->Finish(&call.response, &call.status, &call);
  }
  // The next of them that ends.
  grpc::Status AwaitOne() {
    void* tag = nullptr;
    bool ok = false;
    const auto hang = std::chrono::system_clock::now() + std::chrono::seconds(60);
    if (queue_.AsyncNext(&tag, &ok, hang) != grpc::CompletionQueue::GOT_EVENT) {
      return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no call has ended");
    }
    return static_cast<Call*>(tag)->status;
  }
  void CancelAll() {
    for (const auto& call : calls_) call->context.TryCancel();
  }

 private:
  static grpc::ChannelArguments Arguments(bool own_connection) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, own_connection ? 1 : 0);
    return arguments;
  }
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    grpc::ByteBuffer response;
    grpc::Status status;
  };
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Call>> calls_;
};

void ExpectRefused(const grpc::Status& status, grpc::StatusCode code, const std::string& text) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  EXPECT_NE(status.error_message().find(text), std::string::npos) << status.error_message();
}

// A tensor of `elements` whose message lists one.
tensorflow::TensorProto Splat(int64_t elements, tensorflow::DataType dtype) {
  tensorflow::TensorProto tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_tensor_shape()->add_dim()->set_size(elements);
  if (dtype == tensorflow::DT_FLOAT) tensor.add_float_val(1);
  if (dtype == tensorflow::DT_STRING) tensor.add_string_val(std::string(100, 'x'));
  return tensor;
}

// --- What a request says is larger than what it is -----------------------------------------------

TEST(AttackTest, TensorsThatListFewOfTheirElementsAreRefusedByEachMethodThatTakesTensors) {
  TwoServers servers;
  Training training(&servers);
  RawClient client(servers.worker_address());
  tensorflow::TensorProto nested;
  nested.set_dtype(tensorflow::DT_VARIANT);
  nested.mutable_tensor_shape();
  *nested.add_variant_val()->add_tensors() = Splat(int64_t{1} << 29, tensorflow::DT_FLOAT);
  nested.mutable_variant_val(0)->set_type_name("t");
  for (const tensorflow::TensorProto& tensor :
       {Splat(int64_t{1} << 29, tensorflow::DT_FLOAT),
        Splat(int64_t{1} << 24, tensorflow::DT_STRING),
        Splat(int64_t{1} << 28, tensorflow::DT_RESOURCE),
        Splat(int64_t{1} << 28, tensorflow::DT_BOOL), nested}) {
    const MemoryGrowth growth;
    tensorflow::RunStepRequest run;
    run.set_session_handle("none");
    run.add_feed()->set_name("x:0");
    *run.mutable_feed(0)->mutable_tensor() = tensor;
    tensorflow::RunCallableRequest call;
    *call.add_feed() = tensor;
    tensorflow::RunGraphRequest graph;
    graph.add_send()->set_name("x");
    *graph.mutable_send(0)->mutable_tensor() = tensor;
    const std::vector<std::pair<std::string, std::string>> requests = {
        {absl::StrCat(kMaster, "RunStep"), run.SerializeAsString()},
        {absl::StrCat(kMaster, "RunCallable"), call.SerializeAsString()},
        {absl::StrCat(kWorker, "RunGraph"), graph.SerializeAsString()}};
    for (const auto& [method, bytes] : requests) {
      EXPECT_LT(bytes.size(), 200u);
      ExpectRefused(client.Call(method, bytes), grpc::StatusCode::RESOURCE_EXHAUSTED,
                    "ServerLimits::max_splat_bytes");
    }
    SCOPED_TRACE(tensor.ShortDebugString());
    growth.ExpectBounded();
  }
}

TEST(AttackTest, ListsOfOtherTypesThanTheTensorsDoNotCountAsItsElements) {
  TwoServers servers;
  Training training(&servers);
  RawClient client(servers.worker_address());
  constexpr int kElements = 1'000'000;
  tensorflow::RunStepRequest run;
  run.set_session_handle("none");
  run.add_feed()->set_name("x:0");
  tensorflow::TensorProto* const tensor = run.mutable_feed(0)->mutable_tensor();
  tensor->set_dtype(tensorflow::DT_STRING);
  tensor->mutable_tensor_shape()->add_dim()->set_size(kElements);
  tensor->add_string_val(std::string(1 << 20, 'x'));
  for (int i = 0; i < kElements; ++i) tensor->add_bool_val(true);
  ExpectRefused(client.Call(absl::StrCat(kMaster, "RunStep"), run.SerializeAsString()),
                grpc::StatusCode::RESOURCE_EXHAUSTED, "ServerLimits::max_splat_bytes");
}

TEST(AttackTest, ManySmallSplatsInOneRequestAreCountedTogether) {
  TwoServers servers;
  Training training(&servers);
  RawClient client(servers.worker_address());
  tensorflow::RunStepRequest run;
  for (int i = 0; i < 1000; ++i) {
    auto* const feed = run.add_feed();
    feed->set_name(absl::StrCat("x", i, ":0"));
    *feed->mutable_tensor() = Splat(int64_t{1} << 20, tensorflow::DT_FLOAT);
  }
  const MemoryGrowth growth;
  ExpectRefused(client.Call(absl::StrCat(kMaster, "RunStep"), run.SerializeAsString()),
                grpc::StatusCode::RESOURCE_EXHAUSTED, "ServerLimits::max_splat_bytes");
  growth.ExpectBounded();
}

TEST(AttackTest, ASplatWithinTheBoundIsFed) {
  TwoServers servers;
  RawClient client(servers.worker_address());
  tensorflow::RunStepRequest run;
  run.set_session_handle("none");
  run.add_feed()->set_name("x:0");
  *run.mutable_feed(0)->mutable_tensor() = Splat(int64_t{1} << 20, tensorflow::DT_FLOAT);
  ExpectRefused(client.Call(absl::StrCat(kMaster, "RunStep"), run.SerializeAsString()),
                grpc::StatusCode::ABORTED, "Session none is not found");
}

TEST(AttackTest, RequestsAboveTheLimitAreNotReceived) {
  ServerOptions options;
  options.limits.max_message_bytes = 1 << 20;
  TwoServers servers(options, options);
  Training training(&servers);
  RawClient client(servers.worker_address());
  const std::string large(8 << 20, 'x');
  const MemoryGrowth growth;
  for (const char* method : {"CreateSession", "RunStep"}) {
    ExpectRefused(client.Call(absl::StrCat(kMaster, method), large),
                  grpc::StatusCode::RESOURCE_EXHAUSTED, "larger than max");
  }
  // Our own callers hear which limit it was.
  const auto channel = RpcChannel::Make(servers.worker_address());
  const grpc::Slice slice(large);
  EXPECT_STATUS(channel->Call(absl::StrCat(kMaster, "RunStep"), {}, grpc::ByteBuffer(&slice, 1)),
                absl::StatusCode::kResourceExhausted, "ServerLimits::max_message_bytes");
  growth.ExpectBounded();
}

TEST(AttackTest, RequestsThatTogetherAreTooMuchAreNotDecoded) {
  ServerOptions options;
  options.limits.max_pending_bytes = 1 << 20;
  TwoServers servers(options, options);
  Training training(&servers);
  RawClient client(servers.worker_address());
  ExpectRefused(client.Call(absl::StrCat(kMaster, "RunStep"), std::string(2 << 20, '\xff')),
                grpc::StatusCode::RESOURCE_EXHAUSTED, "ServerLimits::max_pending_bytes");
  // What was counted is given back.
  for (int i = 0; i < 30; ++i) {
    ExpectRefused(client.Call(absl::StrCat(kMaster, "RunStep"), std::string(100 << 10, '\xff')),
                  grpc::StatusCode::INVALID_ARGUMENT, "well formed");
  }
}

// Requests of 64 MiB of which 48 MiB come, on several connections: of more bytes than a server may
// hold.
constexpr int64_t kClaimedBytes = int64_t{64} << 20, kSentBytes = int64_t{48} << 20;
constexpr int kSenders = 4, kCallsOfSender = 8;

// How many more bytes of the heap were in use at a time since this was made, sampled: what malloc
// keeps of memory that was freed depends on the threads that happened to free it.
class HeapGrowth {
 public:
  HeapGrowth()
      : before_(InUse()), sampler_([this] {
          while (!stop_) {
            most_ = std::max(most_.load(), InUse());
            absl::SleepFor(absl::Milliseconds(1));
          }
        }) {}
  ~HeapGrowth() {
    stop_ = true;
    sampler_.join();
  }
  int64_t bytes() const { return std::max<int64_t>(most_ - before_, 0); }

 private:
  static int64_t InUse() {
    const struct mallinfo2 heap = mallinfo2();
    return static_cast<int64_t>(heap.uordblks) + static_cast<int64_t>(heap.hblkhd);
  }

  const int64_t before_;
  std::atomic<int64_t> most_{0};
  std::atomic<bool> stop_{false};
  std::thread sampler_;
};

// covers: clusters: requests that begin and never end take no more than the bound
TEST(AttackTest, RequestsThatNeverEndAreBrokenOffWithinTheBoundAndTheServerServesOn) {
  ServerOptions options;
  options.limits.max_pending_bytes = 64 << 20;
  TwoServers servers(options, options);
  {
    // What a server with connections, calls and a model needs.
    Training training(&servers);
  }
  {
    const HeapGrowth growth;
    std::vector<std::unique_ptr<HalfSender>> senders;
    int64_t sent = 0;
    int ended = 0;
    for (int i = 0; i < kSenders; ++i) {
      senders.push_back(std::make_unique<HalfSender>(servers.ps().port()));
      senders.back()->Send(absl::StrCat(kWorker, "RunGraph"), kCallsOfSender, kClaimedBytes,
                           kSentBytes);
      sent += senders.back()->bytes_sent();
      ended += senders.back()->calls_ended();
    }
    std::printf("%lld MiB sent, %d of %d calls ended, %lld MiB grown\n",
                static_cast<long long>(sent >> 20), ended, kSenders * kCallsOfSender,
                static_cast<long long>(growth.bytes() >> 20));
    // The attack was larger than the bound, which docs/security.md names.
    EXPECT_GT(sent, options.limits.max_pending_bytes + ServerLimits::kReceiveSlackBytes);
#ifndef __SANITIZE_ADDRESS__  // its heap says nothing of itself
    EXPECT_GT(growth.bytes(), 0);
#endif
    // gRPC breaks off one call after another, and more arrives until it gets to it: on a busy
    // machine up to the message that each sender was about to send (without the bound, all that was
    // sent).
    EXPECT_LE(growth.bytes(), options.limits.max_pending_bytes + ServerLimits::kReceiveSlackBytes +
                                  kSenders * kSentBytes);
    // While they are still there.
    Training training(&servers);
  }
  Training training(&servers);
}

// covers: clusters: requests that begin and never end take no more than the bound
TEST(AttackTest, RequestsOfStrangersThatNeverEndAreNotReceivedAndATrainingGoesOn) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/half_token_", ::getpid());
  WriteTestFile(path, "the-token-of-this-cluster-0123456789", 0600);
  ServerOptions options;
  options.limits.max_pending_bytes = 64 << 20;
  options.security = SecurityOptions{.token_file = path};
  TwoServers servers(options, options);
  Training training(&servers);
  const MemoryGrowth growth;
  std::vector<std::unique_ptr<HalfSender>> senders;
  for (int i = 0; i < kSenders; ++i) {
    senders.push_back(std::make_unique<HalfSender>(servers.ps().port()));
    senders.back()->Send(absl::StrCat(kWorker, "RunGraph"), kCallsOfSender, kClaimedBytes,
                         kSentBytes);
    EXPECT_EQ(senders.back()->calls_ended(), kCallsOfSender);
  }
  growth.ExpectBounded();
}

// --- What stays ----------------------------------------------------------------------------------

TEST(AttackTest, CallsThatWaitAreBoundedPerCallerAndLeaveRoomForOthers) {
  ServerOptions options;
  options.limits.max_calls_of_connection = 100;
  TwoServers servers(options, options);
  Training training(&servers);
  RawClient client(servers.ps_address());
  tensorflow::GetStatusResponse devices;
  const std::string get_status = absl::StrCat(kWorker, "GetStatus");
  ASSERT_TRUE(client.Call(get_status, tensorflow::GetStatusRequest(), &devices).ok());
  const std::string device = devices.device_attributes(0).name();
  tensorflow::RecvTensorRequest request;
  request.set_rendezvous_key(RendezvousKey::Make(device, devices.device_attributes(0).incarnation(),
                                                 device, "edge", 0, 0));
  const MemoryGrowth growth;
  ManyCalls waiting(servers.ps_address());
  constexpr int kCalls = 500, kRefused = kCalls - 100;
  for (int i = 0; i < kCalls; ++i) {
    request.set_step_id(3'000'000 + i);
    request.set_request_id(i + 1);
    waiting.Begin(absl::StrCat(kWorker, "RecvTensor"), request.SerializeAsString());
  }
  for (int i = 0; i < kRefused; ++i) {
    ExpectRefused(waiting.AwaitOne(), grpc::StatusCode::RESOURCE_EXHAUSTED,
                  "ServerLimits::max_calls_of_connection");
  }
  growth.ExpectBounded();
  waiting.CancelAll();
  for (int i = kRefused; i < kCalls; ++i) waiting.AwaitOne();
  // Those that have gone count no more.
  const absl::Time hang = absl::Now() + absl::Seconds(60);
  while (!client.Call(get_status, "").ok() && absl::Now() < hang) std::this_thread::yield();
  EXPECT_TRUE(client.Call(get_status, "").ok());
}

TEST(AttackTest, CallsOfManyConnectionsAreBoundedTogether) {
  ServerOptions options;
  options.limits.max_calls = 100;
  TwoServers servers(options, options);
  RawClient client(servers.ps_address());
  tensorflow::GetStatusResponse devices;
  const std::string get_status = absl::StrCat(kWorker, "GetStatus");
  ASSERT_TRUE(client.Call(get_status, tensorflow::GetStatusRequest(), &devices).ok());
  const std::string device = devices.device_attributes(0).name();
  tensorflow::RecvTensorRequest request;
  request.set_rendezvous_key(RendezvousKey::Make(device, devices.device_attributes(0).incarnation(),
                                                 device, "edge", 0, 0));
  constexpr int kConnections = 4, kCallsOfOne = 40;
  std::vector<std::unique_ptr<ManyCalls>> callers;
  for (int i = 0; i < kConnections; ++i) {
    callers.push_back(std::make_unique<ManyCalls>(servers.ps_address(), /*own_connection=*/true));
    for (int j = 0; j < kCallsOfOne; ++j) {
      request.set_step_id(5'000'000 + i * kCallsOfOne + j);
      request.set_request_id(i * kCallsOfOne + j + 1);
      callers[static_cast<size_t>(i)]->Begin(absl::StrCat(kWorker, "RecvTensor"),
                                             request.SerializeAsString());
    }
  }
  // Which of them are refused, the network decides.
  const absl::Time hang = absl::Now() + absl::Seconds(60);
  grpc::Status status;
  while (status.ok() && absl::Now() < hang) status = client.Call(get_status, "");
  ExpectRefused(status, grpc::StatusCode::RESOURCE_EXHAUSTED, "ServerLimits::max_calls)");
  for (const auto& caller : callers) caller->CancelAll();
  for (const auto& caller : callers) {
    for (int j = 0; j < kCallsOfOne; ++j) caller->AwaitOne();
  }
  while (!client.Call(get_status, "").ok() && absl::Now() < hang) std::this_thread::yield();
  Training training(&servers);
}

TEST(AttackTest, LongMetadataIsNotTaken) {
  TwoServers servers;
  Training training(&servers);
  RawClient client(servers.ps_address());
  client.SetMetadata({{"long", std::string(1 << 20, 'x')}});
  const MemoryGrowth growth;
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(client.Call(absl::StrCat(kWorker, "GetStatus"), "").ok());
  }
  growth.ExpectBounded();
}

TEST(AttackTest, SessionsAreBoundedAtMasterAndWorker) {
  ServerOptions options;
  options.limits.max_sessions = 10;
  TwoServers servers(options, options);
  Training training(&servers);
  const MemoryGrowth growth;
  RawClient worker(servers.ps_address());
  grpc::Status status;
  int opened = 0;
  for (int i = 0; i < 20; ++i) {
    tensorflow::CreateWorkerSessionRequest request;
    request.set_session_handle(absl::StrCat("stranger", i));
    tensorflow::CreateWorkerSessionResponse response;
    status = worker.Call(absl::StrCat(kWorker, "CreateWorkerSession"), request, &response);
    if (!status.ok()) break;
    ++opened;
  }
  EXPECT_EQ(opened, 9);  // and that of the training
  ExpectRefused(status, grpc::StatusCode::RESOURCE_EXHAUSTED, "ServerLimits::max_sessions");
  for (int i = 0; i < opened; ++i) {
    tensorflow::DeleteWorkerSessionRequest request;
    request.set_session_handle(absl::StrCat("stranger", i));
    tensorflow::DeleteWorkerSessionResponse response;
    EXPECT_TRUE(worker.Call(absl::StrCat(kWorker, "DeleteWorkerSession"), request, &response).ok());
  }
  RawClient master(servers.worker_address());
  opened = 0;
  for (int i = 0; i < 20; ++i) {
    tensorflow::CreateSessionResponse response;
    status = master.Call(absl::StrCat(kMaster, "CreateSession"), tensorflow::CreateSessionRequest(),
                         &response);
    if (!status.ok()) break;
    ++opened;
  }
  EXPECT_EQ(opened, 9);
  ExpectRefused(status, grpc::StatusCode::RESOURCE_EXHAUSTED, "ServerLimits::max_sessions");
  growth.ExpectBounded();
}

TEST(AttackTest, RegisteredGraphsAreBoundedByNumberAndBytes) {
  ServerOptions options;
  options.limits.max_graphs = 5;
  options.limits.max_graph_bytes = 1 << 20;
  TwoServers servers(options, options);
  Training training(&servers);
  RawClient client(servers.ps_address());
  const auto open = [&](const std::string& handle) {
    tensorflow::CreateWorkerSessionRequest request;
    request.set_session_handle(handle);
    tensorflow::CreateWorkerSessionResponse response;
    return client.Call(absl::StrCat(kWorker, "CreateWorkerSession"), request, &response).ok();
  };
  const auto add = [&](const std::string& handle, size_t bytes, std::string* graph = nullptr) {
    Scope root;
    Const(root.WithDevice("/job:ps/replica:0/task:0/device:CPU:0").WithName("c"),
          Tensor::Vector<std::string>({std::string(bytes, 'x')}));
    tensorflow::RegisterGraphRequest request;
    request.set_session_handle(handle);
    *request.mutable_graph_def() = root.ToGraphDef().value_or(tensorflow::GraphDef());
    tensorflow::RegisterGraphResponse response;
    const grpc::Status status =
        client.Call(absl::StrCat(kWorker, "RegisterGraph"), request, &response);
    if (graph != nullptr) *graph = response.graph_handle();
    return status;
  };
  ASSERT_TRUE(open("many"));
  std::string last;
  for (int i = 0; i < 5; ++i) {
    const grpc::Status status = add("many", 10, &last);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  ExpectRefused(add("many", 10), grpc::StatusCode::RESOURCE_EXHAUSTED, "ServerLimits::max_graphs");
  tensorflow::DeregisterGraphRequest drop;
  drop.set_session_handle("many");
  drop.set_graph_handle(last);
  tensorflow::DeregisterGraphResponse dropped;
  EXPECT_TRUE(client.Call(absl::StrCat(kWorker, "DeregisterGraph"), drop, &dropped).ok());
  EXPECT_TRUE(add("many", 10).ok());
  ASSERT_TRUE(open("large"));
  EXPECT_TRUE(add("large", 600 << 10).ok());
  ExpectRefused(add("large", 600 << 10), grpc::StatusCode::RESOURCE_EXHAUSTED,
                "ServerLimits::max_graph_bytes");
}

TEST(AttackTest, LongHandlesThatAreNotThereAreNotKept) {
  TwoServers servers;
  Training training(&servers);
  RawClient client(servers.ps_address());
  const MemoryGrowth growth;
  for (int i = 0; i < 100; ++i) {
    tensorflow::RunGraphRequest request;
    request.set_session_handle(std::string(2 << 20, 'x'));
    request.set_step_id(4'000'000 + i);
    const grpc::Status status =
        client.Call(absl::StrCat(kWorker, "RunGraph"), request.SerializeAsString());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  }
  growth.ExpectBounded();
}

// --- What others have ----------------------------------------------------------------------------

// A stranger to a server without a token, and one with a token.
class ClearingTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Methods, ClearingTest,
                         ::testing::Values("CleanupAll", "OwnCleanupAll", "Reset"));

grpc::Status Clear(const char* method, RawClient* ps, RawClient* worker) {
  if (absl::string_view(method) == "Reset") {
    tensorflow::ResetResponse response;
    return worker->Call(absl::StrCat(kMaster, "Reset"), tensorflow::ResetRequest(), &response);
  }
  if (absl::string_view(method) == "OwnCleanupAll") {
    wire::CleanupAllResponse response;
    return ps->Call("/millrace.WorkerControl/CleanupAll", wire::CleanupAllRequest(), &response);
  }
  tensorflow::CleanupAllResponse response;
  return ps->Call(absl::StrCat(kWorker, "CleanupAll"), tensorflow::CleanupAllRequest(), &response);
}

TEST_P(ClearingTest, AStrangersCallLeavesAJobThatTrainsAlone) {
  ServerOptions options;
  options.run_linger = absl::ZeroDuration();
  TwoServers servers(options, options);
  RawClient ps(servers.ps_address()), worker(servers.worker_address());
  {
    Training training(&servers);
    ExpectRefused(Clear(GetParam(), &ps, &worker), grpc::StatusCode::PERMISSION_DENIED,
                  "MILLRACE_TOKEN_FILE");
    // The ps's own master has no session, its worker has.
    ExpectRefused(Clear(GetParam(), &ps, &ps), grpc::StatusCode::PERMISSION_DENIED,
                  "MILLRACE_TOKEN_FILE");
  }
  // When nobody uses the server, it may be cleared.
  const grpc::Status status = Clear(GetParam(), &ps, &worker);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// Between two sessions of a trainer that recovers nothing is open, and all it has trained is there.
TEST_P(ClearingTest, AStrangersCallBetweenTwoSessionsOfATrainerLeavesWhatItHasTrained) {
  TwoServers servers;
  RawClient ps(servers.ps_address()), worker(servers.worker_address());
  const SmallModel model = MakeSmallModel();
  {
    ASSERT_OK_AND_ASSIGN(const auto session, servers.NewSession(model.root));
    ASSERT_OK(session->Run({}, {}, {model.init}));
    ASSERT_OK(session->Close());
  }
  ExpectRefused(Clear(GetParam(), &ps, &worker), grpc::StatusCode::PERMISSION_DENIED,
                "ago, of the 10m (ServerOptions::run_linger) in which its client may come again");
  ASSERT_OK_AND_ASSIGN(const auto session, servers.NewSession(model.root));
  EXPECT_OK(session->Run({}, {model.w.value}));
}

TEST_P(ClearingTest, AMembersCallIsServed) {
  const std::string token = "the-token-of-this-cluster-0123456789";
  const std::string path = absl::StrCat(::testing::TempDir(), "/attacks_token_", ::getpid());
  WriteTestFile(path, token, 0600);
  ServerOptions options;
  options.security = SecurityOptions{.token_file = path};
  TwoServers servers(options, options);
  RawClient ps(servers.ps_address()), worker(servers.worker_address());
  const SmallModel model = MakeSmallModel();
  ASSERT_OK_AND_ASSIGN(const auto session, servers.NewSession(model.root));
  ASSERT_OK(session->Run({}, {}, {model.init}));
  ExpectRefused(Clear(GetParam(), &ps, &worker), grpc::StatusCode::UNAUTHENTICATED, "");
  EXPECT_OK(session->Run({}, {model.w.value}));
  for (RawClient* client : {&ps, &worker}) {
    client->SetMetadata({{kTokenKey, absl::StrCat(kTokenPrefix, token)}});
  }
  const grpc::Status status = Clear(GetParam(), &ps, &worker);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(session->Run({}, {model.w.value}).ok());
}

// --- Files ---------------------------------------------------------------------------------------

TEST(ServerFilesTest, GraphsReadAndWriteInTheRootsOfTheServerOnly) {
  const std::string base = absl::StrCat(::testing::TempDir(), "/server_files_", ::getpid());
  const std::string root = JoinPath(base, "root"), outside = JoinPath(base, "outside");
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(root));
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(outside));
  ServerOptions options;
  options.file_roots = {root};
  TwoServers servers(options, options);
  const auto save = [&](const std::string& prefix) {
    Scope scope;
    const Scope ps = scope.WithDevice("/job:ps/task:0");
    const auto strings = [&](const std::string& text) {
      return Const(ps, Tensor::Vector<std::string>({text}));
    };
    const Output at = Const(ps, prefix);
    const std::vector<Output> values = {Const(ps, 1.0f)};
    const Operation node = NodeBuilder(ps.WithName("save"), "SaveV2")
                               .Input(at)
                               .Input(strings("w"))
                               .Input(strings(""))
                               .Input(values)
                               .Finish();
    const auto session = servers.NewSession(scope);
    EXPECT_OK(session);
    return session.ok() ? (*session)->Run({}, {}, {node}).status() : session.status();
  };
  EXPECT_OK(save(JoinPath(root, "ckpt")));
  EXPECT_TRUE(FileSystem::Posix()->FileExists(JoinPath(root, "ckpt.index")));
  for (const std::string& prefix :
       {JoinPath(outside, "ckpt"), absl::StrCat(root, "/../outside/ckpt"), std::string("/ckpt")}) {
    EXPECT_STATUS(save(prefix), absl::StatusCode::kPermissionDenied,
                  "graphs may use files of this server's roots only");
  }
  EXPECT_OK(SetGraphFileRoots({}));
  EXPECT_OK(FileSystem::Posix()->RecursivelyDelete(base));
}

}  // namespace
}  // namespace millrace
