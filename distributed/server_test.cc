// SPDX-License-Identifier: Apache-2.0
//
// Several servers of one cluster in this process, over loopback.
#include "distributed/server.h"

#include <fcntl.h>
#include <grpcpp/support/slice.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/buffer.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/grpc_session.h"
#include "distributed/master/grpc_master.h"
#include "distributed/master/master_interface.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/grpc_transport.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/transport.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "net/rpc.h"
#include "net/tensor_coding.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/state/state.h"
#include "run/run_file.h"
#include "run/run_session.h"
#include "run/training_run.h"
#include "runtime/kernel.h"
#include "runtime/rendezvous.h"
#include "runtime/session.h"

// covers: steps: a kernel that never answers holds up no step of a cluster beyond its time, and is
//   named, on a worker, a ps, by name and prepared
// covers: clusters: a training step costs at most 3 calls per parameter server and one copy per
//   sent tensor
// covers: clusters: a second job on a used parameter server initialises and never sees the first
//   one's variables; a chief that returns adopts its own run's; the state of a run that is over is
//   freed
// covers: clusters: of two chiefs of a run the older one's steps are refused, on every server
//   alike, and it cannot come back
// covers: clusters: a task that starts after the end of a run, or waits for it, learns of the end;
//   the server then leaves, by message or by reading the logdir, and stays for a chief that trains
//   further
// covers: clusters: sessions of dead remote clients end
// covers: article 2-7: Server with master and worker on one port, `target()`
// covers: article 2-8: `Join` until a signal, exit code 0; leaves by itself when the run has ended

namespace millrace {
namespace {

class Cluster {
 public:
  explicit Cluster(int num_ps = 1, int num_workers = 1) {
    const std::vector<int> ports = FreePorts(num_ps + num_workers);
    const auto list = [&](int begin, int n) {
      std::string text;
      for (int i = 0; i < n; ++i) {
        absl::StrAppend(&text, i == 0 ? "" : ",",
                        "\"127.0.0.1:", ports[static_cast<size_t>(begin + i)], "\"");
      }
      return text;
    };
    cluster_ = absl::StrCat("{\"ps\": [", list(0, num_ps), "], \"worker\": [",
                            list(num_ps, num_workers), "]}");
    for (int i = 0; i < num_ps; ++i) Start("ps", i);
    for (int i = 0; i < num_workers; ++i) Start("worker", i);
  }
  ClusterConfig Config(const std::string& job, int task) const {
    const auto config =
        ClusterConfig::Parse(absl::StrCat("{\"cluster\": ", cluster_, ", \"task\": {\"type\": \"",
                                          job, "\", \"index\": ", task, "}}"));
    EXPECT_OK(config);
    return config.value_or(ClusterConfig());
  }
  void Start(const std::string& job, int task) {
    auto server = Server::Start(Config(job, task));
    EXPECT_OK(server);
    if (server.ok()) servers_[Name(job, task)] = *std::move(server);
  }
  void Kill(const std::string& job, int task) { servers_.erase(Name(job, task)); }
  Server* server(const std::string& job, int task) { return servers_.at(Name(job, task)).get(); }
  std::unique_ptr<Session> NewSession(const Scope& scope, int worker = 0) {
    SessionOptions options;
    options.target = server("worker", worker)->target();
    options.creation_timeout = absl::Seconds(30);
    auto session = millrace::NewSession(options);
    EXPECT_OK(session);
    if (!session.ok()) return nullptr;
    EXPECT_OK((*session)->Extend(scope));
    return *std::move(session);
  }

 private:
  static std::string Name(const std::string& job, int task) { return absl::StrCat(job, task); }
  std::string cluster_;
  std::map<std::string, std::unique_ptr<Server>> servers_;
};

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

std::vector<Feed> Batch(const SmallModel& model) {
  return {{model.x, Tensor::Vector<float>({-1, 0, 1})},
          {model.y, Tensor::Vector<float>({-2, 1, 4})}};
}

// Calls begun since `before`, without the addresses.
// gRPC's other name of the same address: the server is not taken for one of this process. (Not
// "localhost": Debian's c-ares leaks what it looks up.)
std::string RemoteTarget(const Server& server) {
  return absl::StrCat("grpc://ipv4:127.0.0.1:", server.port());
}

std::map<std::string, int64_t> CallsSince(const std::map<std::string, int64_t>& before) {
  std::map<std::string, int64_t> result;
  for (const auto& [name, count] : RpcCallsBegun()) {
    const auto it = before.find(name);
    const int64_t fresh = count - (it == before.end() ? 0 : it->second);
    if (absl::EndsWith(name, "/RenewSessions")) continue;  // by time, not by step
    if (fresh > 0) result[name.substr(name.find('/'))] += fresh;
  }
  return result;
}

TEST(ServerTest, TrainsOverProcessBordersInAtMostThreeCallsPerStepAndServer) {
  Cluster cluster(/*num_ps=*/2);
  const SmallModel model =
      MakeSmallModel("/job:worker/task:0", {"/job:ps/task:0", "/job:ps/task:1"});
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  const std::vector<FetchName> fetches = {model.loss}, targets = {model.train};
  ASSERT_OK(session->Run(Batch(model), fetches, targets));
  const auto before = RpcCallsBegun();
  constexpr int kSteps = 200;
  float loss = 1;
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run(Batch(model), fetches, targets));
    loss = out[0].scalar<float>();
  }
  EXPECT_LT(loss, 1e-6f);
  const std::map<std::string, int64_t> calls = CallsSince(before);
  int64_t total = 0;
  for (const auto& [method, count] : calls) total += count;
  EXPECT_LE(total, 3 * 2 * kSteps) << ::testing::PrintToString(calls);
  EXPECT_EQ(calls.at("/tensorflow.grpc.WorkerService/RunGraph"), 2 * kSteps);
  ASSERT_OK_AND_ASSIGN(const auto values, session->Run({}, {model.w.value, model.b.value}));
  ExpectTensorNear(values[0], Tensor::Scalar(3.0f), 0, 1e-2);
  ExpectTensorNear(values[1], Tensor::Scalar(1.0f), 0, 1e-2);
  ASSERT_OK(session->Close());
  EXPECT_STATUS(session->Run({}, {model.loss}), absl::StatusCode::kCancelled,
                "Session has been closed.");
}

TEST(ServerTest, LargeTensorsTravelWithOneCopyOnReceiptAndNoneOnSending) {
  Cluster cluster;
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
  Cluster cluster;
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

TEST(ServerTest, ClientsOfAnotherProcessReachTheMasterOverTheNetwork) {
  Cluster cluster;
  const SmallModel model = MakeSmallModel();
  SessionOptions options;
  options.target = RemoteTarget(*cluster.server("worker", 0));
  options.creation_timeout = absl::Seconds(30);
  const auto before = RpcCallsBegun();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {model.init}));
  tensorflow::RunMetadata metadata;
  tensorflow::RunOptions traced;
  traced.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  const std::vector<Feed> feeds = Batch(model);
  // Fetching an operation runs it; what was fed comes back.
  const std::vector<FetchName> fetches = {model.train, model.loss, model.x};
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run(traced, feeds, fetches, {}, &metadata));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_GT(out[0].scalar<float>(), 0);
  ExpectTensorEqual(out[1], feeds[0].value);
  EXPECT_EQ(metadata.step_stats().dev_stats_size(), 2);
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({{"y", "x"}, {"loss"}, {}}));
  ASSERT_OK_AND_ASSIGN(const auto loss, step->Run({feeds[1].value, feeds[0].value}));
  EXPECT_LT(loss[0].scalar<float>(), out[0].scalar<float>());
  ASSERT_OK_AND_ASSIGN(const auto devices, session->ListDevices());
  EXPECT_EQ(devices.size(), 2u);
  EXPECT_STATUS(session->Run({}, {"nothing"}), absl::StatusCode::kNotFound, "nothing");
  const auto calls = CallsSince(before);
  EXPECT_GE(calls.at("/tensorflow.grpc.MasterService/RunStep"), 2);
  EXPECT_EQ(calls.at("/tensorflow.grpc.MasterService/RunCallable"), 1);
  ASSERT_OK(session->Close());
}

TEST(ServerTest, ErrorsNameTaskNodeAndSourceLine) {
  Cluster cluster;
  SmallModel model = MakeSmallModel();
  const Output bad =
      TestFail(model.root.WithDevice("/job:ps/task:0").WithName("bad"), model.w.value);
  const Output after = Identity(model.root.WithDevice("/job:worker/task:0"), bad);
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  const auto failed = session->Run({}, {after});
  EXPECT_STATUS(failed, absl::StatusCode::kInvalidArgument,
                "From /job:ps/replica:0/task:0:\nTestFail 'bad': value must be better");
  EXPECT_TRUE(absl::StrContains(failed.status().message(), "{{node bad}}"));
  EXPECT_TRUE(absl::StrContains(failed.status().message(), "; built at distributed/server_test.cc"))
      << failed.status();
  EXPECT_OK(session->Run(Batch(model), {model.loss}));
}

TEST(ServerTest, APortInUseIsAnErrorAtOnceWithItsAddress) {
  Cluster cluster;
  const absl::Time start = absl::Now();
  const auto second = Server::Start(cluster.Config("ps", 0));
  EXPECT_STATUS(second, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port(),
                             " must be free, got: port is in use"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST(ServerTest, AHostThatIsNotThisMachineIsAnError) {
  // TEST-NET-1 is nobody's address.
  ASSERT_OK_AND_ASSIGN(const ClusterConfig config,
                       ClusterConfig::Parse(R"({"cluster": {"worker": ["192.0.2.1:4711"]},
                                                "task": {"type": "worker", "index": 0}})"));
  EXPECT_STATUS(Server::Start(config), absl::StatusCode::kFailedPrecondition,
                "192.0.2.1:4711 must be one of this machine");
}

TEST(ServerTest, AMissingTaskEndsTheCreationOfASession) {
  Cluster cluster;
  cluster.Kill("ps", 0);
  SessionOptions options;
  options.target = cluster.server("worker", 0)->target();
  options.creation_timeout = absl::Milliseconds(300);
  EXPECT_STATUS(NewSession(options), absl::StatusCode::kDeadlineExceeded,
                "got none from /job:ps/replica:0/task:0 at 127.0.0.1:");
}

TEST(ServerTest, AMissingMasterEndsTheCreationOfASession) {
  SessionOptions options;
  options.target = absl::StrCat("grpc://127.0.0.1:", FreePort());
  options.creation_timeout = absl::Milliseconds(300);
  EXPECT_STATUS(NewSession(options), absl::StatusCode::kDeadlineExceeded,
                "Session: the master at 127.0.0.1:");
  options.target = "grpc://";
  EXPECT_STATUS(NewSession(options), absl::StatusCode::kInvalidArgument, "grpc://host:port");
}

TEST(ServerTest, TasksMayStartInAnyOrder) {
  Cluster cluster;
  cluster.Kill("ps", 0);
  SessionOptions options;
  options.target = cluster.server("worker", 0)->target();
  options.creation_timeout = absl::Seconds(60);
  Status status;
  std::thread client([&] { status = NewSession(options).status(); });
  cluster.Start("ps", 0);
  client.join();
  EXPECT_OK(status);
}

TEST(ServerTest, LosingATaskDuringAStepIsUnavailableAtOnce) {
  Cluster cluster;
  SmallModel model = MakeSmallModel();
  const Output wait = TestWait(model.root.WithDevice("/job:ps/task:0"));
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  const auto before = RpcCallsBegun();
  Status status;
  std::thread step([&] { status = session->Run({}, {wait}).status(); });
  while (CallsSince(before).count("/tensorflow.grpc.WorkerService/RunGraph") == 0) {
    std::this_thread::yield();
  }
  const absl::Time start = absl::Now();
  cluster.Kill("ps", 0);
  step.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  // Stopped in good order it still says Aborted; cut off it is Unavailable.
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsAborted(status)) << status;
  EXPECT_STATUS(session->Run({}, {model.w.value}), absl::StatusCode::kUnavailable,
                "From /job:ps/replica:0/task:0:\nTask at 127.0.0.1:");
}

TEST(ServerTest, ARestartedTaskIsNoticedAndANewSessionWorks) {
  Cluster cluster;
  const SmallModel model = MakeSmallModel();
  auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  ASSERT_OK(session->Run(Batch(model), {model.loss}, {model.train}));
  cluster.Kill("ps", 0);
  cluster.Start("ps", 0);
  // The first calls may still meet the old connection.
  Status status;
  for (int i = 0; i < 100; ++i) {
    status = session->Run(Batch(model), {model.loss}, {model.train}).status();
    if (!absl::IsUnavailable(status)) break;
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_STATUS(status, absl::StatusCode::kAborted, "restarted");
  EXPECT_STATUS(session->Run({}, {model.w.value}), absl::StatusCode::kAborted,
                "variables there are lost, restore from a checkpoint");
  session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  EXPECT_STATUS(session->Run({}, {model.w.value}), absl::StatusCode::kFailedPrecondition,
                "uninitialized");
  ASSERT_OK(session->Run({}, {}, {model.init}));
  EXPECT_OK(session->Run(Batch(model), {model.loss}, {model.train}));
}

TEST(ServerTest, TimeLimitsAndCloseEndStepsThatWait) {
  Cluster cluster;
  SmallModel model = MakeSmallModel();
  const Output wait = TestWait(model.root.WithDevice("/job:ps/task:0"));
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(100);
  const std::vector<FetchName> fetches = {wait};
  EXPECT_STATUS(session->Run(options, {}, fetches, {}, nullptr),
                absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
  const auto before = RpcCallsBegun();
  Status status;
  std::thread step([&] { status = session->Run({}, {wait}).status(); });
  while (CallsSince(before).count("/tensorflow.grpc.WorkerService/RunGraph") == 0) {
    std::this_thread::yield();
  }
  EXPECT_OK(session->Close());
  step.join();
  EXPECT_STATUS(status, absl::StatusCode::kCancelled, "Session has been closed.");
}

// A session in this process, with its master in this process, and behind a network; nodes here and
// elsewhere; steps by name and prepared: one promise.
TEST(ServerTest, AKernelThatNeverAnswersHoldsUpNoStepBeyondItsTimeAndIsNamed) {
  enum Kind { kLocal, kOwnMaster, kNetwork };
  for (const Kind kind : {kLocal, kOwnMaster, kNetwork}) {
    struct Place {
      const char* device;
      bool taken_along;  // the silent part waits for the own one, whose time is over first
    };
    for (const Place& place : {Place{"/job:worker/task:0", false}, Place{"/job:ps/task:0", false},
                               Place{"/job:ps/task:0", true}}) {
      const auto& [device, taken_along] = place;
      if (kind == kLocal && absl::StrContains(device, "ps")) continue;
      SCOPED_TRACE(absl::StrCat("kind ", kind, ", ", device, ", ", taken_along));
      Cluster cluster;
      Scope root;
      const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
      const Scope there = kind == kLocal ? root : root.WithDevice(device);
      const Output beside = taken_along ? Identity(there.WithName("beside"), TestWait(root))
                                        : Identity(there.WithName("beside"), x);
      const Output silent = TestSilent(there.WithName("silent"));
      const Output y = Identity(root.WithName("y"), silent);
      const Output z = Identity(root.WithName("z"), beside);
      const Output ok = Identity(there.WithName("ok"), x);
      SessionOptions options;
      if (kind == kOwnMaster) options.target = cluster.server("worker", 0)->target();
      if (kind == kNetwork) options.target = RemoteTarget(*cluster.server("worker", 0));
      ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
      ASSERT_OK(session->Extend(root));
      const Tensor one = Tensor::Scalar(1.0f);
      // Compiled and connected: what follows is the step alone.
      ASSERT_OK(session->Run({{x, one}}, {ok}));
      ASSERT_OK_AND_ASSIGN(const auto step,
                           session->Prepare({{x.name()}, {y.name(), z.name()}, {}}));
      tensorflow::RunOptions limit;
      limit.set_timeout_in_ms(200);
      const std::vector<Feed> feeds = {{x, one}};
      const std::vector<FetchName> fetches = {y, z};
      const std::vector<Tensor> values = {one};
      for (const bool prepared : {false, true}) {
        const absl::Time start = absl::Now();
        const Status status = prepared ? step->Run(limit, values, nullptr).status()
                                       : session->Run(limit, feeds, fetches, {}, nullptr).status();
        const absl::Duration took = absl::Now() - start;
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        EXPECT_TRUE(absl::StartsWith(status.message(),
                                     "Timed out waiting for notification; the "
                                     "step waited for "))
            << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "TestSilent 'silent'")) << status;
        if (kind != kLocal && absl::StrContains(device, "ps")) {
          EXPECT_TRUE(absl::StrContains(status.message(), " on /job:ps/replica:0/task:0"))
              << status;
        }
        EXPECT_GE(took, absl::Milliseconds(200));
        EXPECT_LT(took, absl::Seconds(3)) << "prepared " << prepared;
      }
      // Neither the session nor the servers wait for it.
      EXPECT_OK(session->Run({{x, one}}, {ok}));
      EXPECT_OK(session->Close());
      if (taken_along) EndSilentKernels();
    }
  }
  EndSilentKernels();
}

TEST(ServerTest, TwoWorkersTrainOneModelAtTheSameTime) {
  Cluster cluster(/*num_ps=*/1, /*num_workers=*/2);
  const SmallModel model0 = MakeSmallModel("/job:worker/task:0");
  const SmallModel model1 = MakeSmallModel("/job:worker/task:1");
  const auto session0 = cluster.NewSession(model0.root, 0);
  const auto session1 = cluster.NewSession(model1.root, 1);
  ASSERT_NE(session0, nullptr);
  ASSERT_NE(session1, nullptr);
  ASSERT_OK(session0->Run({}, {}, {model0.init}));
  const auto train = [](Session* session, const SmallModel& model) {
    for (int i = 0; i < 150; ++i) EXPECT_OK(session->Run(Batch(model), {}, {model.train}));
  };
  std::thread other([&] { train(session1.get(), model1); });
  train(session0.get(), model0);
  other.join();
  ASSERT_OK_AND_ASSIGN(const auto values, session1->Run({}, {model1.w.value}));
  ExpectTensorNear(values[0], Tensor::Scalar(3.0f), 0, 5e-2);
}

TEST(ServerTest, EmbeddingRowsTravelInsteadOfTables) {
  Cluster cluster;
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
  const TensorCodingCounters before = GetTensorCodingCounters();
  ASSERT_OK(session->Run({{ids, some}, {updates, *Tensor::Zeros(DT_FLOAT, *Shape::Make({2, 8}))}},
                         {}, {add}));
  Tensor ones = *Tensor::Allocate(DT_FLOAT, *Shape::Make({2, 8}));
  for (float& v : ones.mutable_flat<float>()) v = 1;
  ASSERT_OK(session->Run({{ids, some}, {updates, ones}}, {}, {add}));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{ids, some}}, {rows}));
  const TensorCodingCounters after = GetTensorCodingCounters();
  EXPECT_EQ(out[0].flat<float>()[0], 2.0f);
  EXPECT_LT(
      after.sent_copied + after.sent_by_reference - before.sent_copied - before.sent_by_reference,
      1000);
}

TEST(ServerTest, RecvTensorWaitsForAStepThatHasNotBegunAndRefusesOtherKeys) {
  Cluster cluster;
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

TEST(ServerTest, ATensorThatCannotTravelEndsTheStepAtOnce) {
  Cluster cluster;
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

TEST(ServerTest, ErrorsThatQuoteAnyBytesArrive) {
  Cluster cluster;
  Scope root;
  const Output bad = Source(root.WithDevice("/job:ps/task:0").WithName("bad"), "TestQuoteBytes");
  const Output after = Identity(root.WithDevice("/job:worker/task:0"), bad);
  const std::string text = "text must be a number, got '\\xff\\xfe'";
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  EXPECT_STATUS(session->Run({}, {after}), absl::StatusCode::kInvalidArgument, text);
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

TEST(ServerTest, APreparedStepsTimeLimitHoldsOverTheNetwork) {
  Cluster cluster;
  Scope root;
  const Output wait = TestWait(root.WithDevice("/job:ps/task:0").WithName("wait"));
  SessionOptions options;
  options.target = RemoteTarget(*cluster.server("worker", 0));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(root));
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({{}, {wait.name()}, {}}));
  tensorflow::RunOptions limit;
  limit.set_timeout_in_ms(200);
  Status ended;
  std::thread run([&] { ended = step->Run(limit, {}, nullptr).status(); });
  run.join();
  EXPECT_STATUS(ended, absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
}

// A master that answers with nothing.
class EmptyMaster : public MasterInterface {
 public:
  Status CreateSession(const tensorflow::CreateSessionRequest&, absl::Duration, int,
                       tensorflow::CreateSessionResponse* response) override {
    response->set_session_handle("empty");
    return absl::OkStatus();
  }
  Status ExtendSession(const tensorflow::ExtendSessionRequest&,
                       tensorflow::ExtendSessionResponse*) override {
    return absl::OkStatus();
  }
  StatusOr<StepResult> RunStep(const tensorflow::RunStepRequest& request,
                               absl::Span<const NamedTensor>) override {
    limit_ms = request.options().timeout_in_ms();
    return StepResult();
  }
  Status MakeCallable(const tensorflow::MakeCallableRequest&,
                      tensorflow::MakeCallableResponse* response) override {
    response->set_handle(1);
    return absl::OkStatus();
  }
  StatusOr<StepResult> RunCallable(const tensorflow::RunCallableRequest&, absl::Span<const Tensor>,
                                   const tensorflow::RunOptions* options) override {
    limit_ms = options == nullptr ? 0 : options->timeout_in_ms();
    return StepResult();
  }
  Status ReleaseCallable(const tensorflow::ReleaseCallableRequest&) override {
    return absl::OkStatus();
  }
  Status CloseSession(const tensorflow::CloseSessionRequest&) override { return absl::OkStatus(); }
  Status ListDevices(const tensorflow::ListDevicesRequest&,
                     tensorflow::ListDevicesResponse*) override {
    return absl::OkStatus();
  }
  Status EndRun(const std::string&, const RunEnd&) override { return absl::OkStatus(); }
  StatusOr<RunTrainers> FindTrainers(const std::string&) override { return RunTrainers(); }
  Status Reset(const tensorflow::ResetRequest&) override { return absl::OkStatus(); }

  int64_t limit_ms = -1;  // of the last step
};

TEST(GrpcSessionTest, TheSessionsLimitIsThatOfStepsWithoutTheirOwn) {
  const auto master = std::make_shared<EmptyMaster>();
  RegisterLocalMaster("empty.example:1", master);
  SessionOptions options;
  options.target = "grpc://empty.example:1";
  options.config.operation_timeout_in_ms = 30'000;
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  UnregisterLocalMaster("empty.example:1");
  tensorflow::RunOptions own;
  own.set_timeout_in_ms(200);
  ASSERT_OK(session->Run({}, {}, {"x"}));
  EXPECT_EQ(master->limit_ms, 30'000);
  ASSERT_OK(session->Run(own, {}, {}, {"x"}, nullptr));
  EXPECT_EQ(master->limit_ms, 200);
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({{}, {}, {"x"}}));
  ASSERT_OK(step->Run({}));
  EXPECT_EQ(master->limit_ms, 30'000);
  ASSERT_OK(step->Run(own, {}, nullptr));
  EXPECT_EQ(master->limit_ms, 200);
}

TEST(GrpcSessionTest, AMasterThatAnswersWithTooFewTensorsIsAnError) {
  RegisterLocalMaster("empty.example:1", std::make_shared<EmptyMaster>());
  SessionOptions options;
  options.target = "grpc://empty.example:1";
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  UnregisterLocalMaster("empty.example:1");
  EXPECT_STATUS(session->Run({}, {"x"}), absl::StatusCode::kInternal,
                "the master must answer with 1 tensors, got 0");
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({{}, {"x"}, {}}));
  EXPECT_STATUS(step->Run({}), absl::StatusCode::kInternal,
                "the master must answer with 1 tensors, got 0");
}

// The time of each call passes at once, without an answer.
class SilentChannel : public RpcChannel {
 public:
  void Unary(const std::string&, const RpcOptions& options, const grpc::ByteBuffer&,
             UnaryDone done) override {
    deadline = options.deadline;
    done(absl::DeadlineExceededError("Deadline Exceeded"), grpc::ByteBuffer());
  }
  void Stream(const std::string&, const RpcOptions&, const grpc::ByteBuffer&, OnMessage,
              StreamDone done) override {
    done(absl::UnimplementedError("no streams"));
  }
  const std::string& address() const override { return address_; }
  absl::Time deadline;  // of the last call

 private:
  const std::string address_ = "silent.example:1";
};

TEST(GrpcSessionTest, AMasterThatIgnoresAStepsLimitIsNamed) {
  const auto channel = std::make_shared<SilentChannel>();
  const std::shared_ptr<MasterInterface> master = MakeGrpcMaster(channel);
  constexpr char kText[] =
      "Session: the master at silent.example:1 must end a step within its limit of 200ms and "
      "answer within 5s more, got no answer; it hangs or does not know the limit";
  tensorflow::RunStepRequest step;
  step.mutable_options()->set_timeout_in_ms(200);
  const absl::Time start = absl::Now();
  EXPECT_STATUS(master->RunStep(step, {}), absl::StatusCode::kDeadlineExceeded, kText);
  EXPECT_GE(channel->deadline - start, absl::Milliseconds(5200));
  EXPECT_STATUS(master->RunCallable({}, {}, &step.options()), absl::StatusCode::kDeadlineExceeded,
                kText);
}

// What the test above takes for granted.
TEST(GrpcSessionTest, ACallWithoutAnAnswerEndsWithGrpcsOwnText) {
  Mutex mu;
  std::shared_ptr<ServerCall> unanswered;
  RpcServer::Options options;
  options.address = "127.0.0.1:0";
  options.handlers["/test/Ignore"] = [&](std::shared_ptr<ServerCall> call,
                                         const grpc::ByteBuffer&) {
    MutexLock lock(&mu);
    unanswered = std::move(call);
  };
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start(std::move(options)));
  RpcOptions call;
  call.deadline = absl::Now() + absl::Milliseconds(200);
  call.wait_for_ready = true;
  const grpc::Slice nothing;
  const Status status = RpcChannel::Make(absl::StrCat("127.0.0.1:", server->port()))
                            ->Call("/test/Ignore", call, grpc::ByteBuffer(&nothing, 1))
                            .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "Deadline Exceeded");
  MutexLock lock(&mu);
  if (unanswered != nullptr) unanswered->FinishWithStatus(absl::CancelledError("over"));
  unanswered = nullptr;
}

TEST(ServerTest, GarbageIsRefusedAndHarmsNobody) {
  Cluster cluster;
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

TEST(ServerTest, StopEndsJoinAndSessionsThatOutliveTheServerOnlyRefuse) {
  Cluster cluster;
  const SmallModel model = MakeSmallModel();
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  Server* const ps = cluster.server("ps", 0);
  Status joined = absl::UnknownError("not yet");
  std::thread join([&] { joined = ps->Join(); });
  ps->Stop();
  join.join();
  EXPECT_OK(joined);
  ps->Stop();
  cluster.Kill("worker", 0);
  EXPECT_STATUS(session->Run({}, {model.w.value}), absl::StatusCode::kAborted, "Shutdown");
}

TEST(ServerDeathTest, ATerminationSignalEndsJoinWithOk) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Cluster cluster;
        Server* const ps = cluster.server("ps", 0);
        Status joined = absl::UnknownError("not yet");
        std::thread join([&] { joined = ps->Join(); });
        // The signal is for those who have joined; the one that comes too early would end us.
        absl::SleepFor(absl::Milliseconds(200));
        kill(getpid(), SIGTERM);
        join.join();
        std::_Exit(joined.ok() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "was told to end");
}

TEST(ServerDeathTest, WithoutJoinATerminationSignalEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Cluster cluster;
        Server* const ps = cluster.server("ps", 0);
        std::thread join([&] { ps->Join().IgnoreError(); });
        ps->Stop();
        join.join();
        kill(getpid(), SIGTERM);
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

// --- Runs ----------------------------------------------------------------------------------------

TrainingRun Chief(const std::string& name, const std::string& id, int64_t epoch = 1) {
  return {.name = name,
          .id = id,
          .is_chief = true,
          .chief = absl::StrCat("chief ", epoch),
          .epoch = epoch};
}

StatusOr<std::unique_ptr<Session>> NewRunSession(const std::string& target, const TrainingRun& run,
                                                 const SmallModel& model,
                                                 absl::Duration lease = absl::Seconds(60)) {
  MR_ASSIGN_OR_RETURN(
      auto session,
      NewSession(
          {.target = target, .creation_timeout = absl::Seconds(30), .run = run, .lease = lease}));
  MR_RETURN_IF_ERROR(session->Extend(model.root));
  return session;
}

// The client is in the process of its master, and in another one.
TEST(ServerRunTest, RunsAreKeptApartFencedAndEndedOverTheWire) {
  for (const bool remote : {false, true}) {
    Cluster cluster(/*num_ps=*/2, /*num_workers=*/2);
    const auto target = [&](int worker) {
      const Server& server = *cluster.server("worker", worker);
      return remote ? RemoteTarget(server) : server.target();
    };
    const SmallModel model =
        MakeSmallModel("/job:worker/task:0", {"/job:ps/task:0", "/job:ps/task:1"});
    const SmallModel model1 =
        MakeSmallModel("/job:worker/task:1", {"/job:ps/task:0", "/job:ps/task:1"});
    ASSERT_OK_AND_ASSIGN(const auto chief, NewRunSession(target(0), Chief("/a", "a1"), model));
    EXPECT_EQ(chief->run_session()->run_id(), "a1");
    ASSERT_OK(chief->Run({}, {}, {model.init}));
    ASSERT_OK(chief->Run(Batch(model), {}, {model.train}));
    ASSERT_OK_AND_ASSIGN(const auto w, chief->Run({}, {model.w.value}));

    // A second job on the same servers.
    ASSERT_OK_AND_ASSIGN(const auto other, NewRunSession(target(0), Chief("/b", "b1"), model));
    EXPECT_STATUS(other->Run({}, {model.w.value}).status(), absl::StatusCode::kFailedPrecondition,
                  "w");
    ASSERT_OK(other->Run({}, {}, {model.init}));
    EXPECT_STATUS(other->run_session()->EndRun({}), absl::StatusCode::kOk, "");

    ASSERT_OK_AND_ASSIGN(const auto trainer, NewRunSession(target(1), {.name = "/a"}, model1));
    EXPECT_EQ(trainer->run_session()->run_id(), "a1");
    ASSERT_OK_AND_ASSIGN(const auto same_w, trainer->Run({}, {model1.w.value}));
    ExpectTensorEqual(same_w[0], w[0]);
    EXPECT_STATUS(trainer->run_session()->EndRun({}), absl::StatusCode::kFailedPrecondition,
                  "got another trainer's");

    // A newer chief: what the older one prepared is refused, too.
    ASSERT_OK_AND_ASSIGN(const auto prepared,
                         chief->Prepare({model.x, model.y}, {model.loss}, {model.train}));
    ASSERT_OK_AND_ASSIGN(const auto newer, NewRunSession(target(1), Chief("/a", "a1", 2), model1));
    const Status refused = chief->Run(Batch(model), {}, {model.train}).status();
    EXPECT_TRUE(IsFenced(refused)) << refused;
    const auto batch = Batch(model);
    const Status prepared_refused = prepared->Run({batch[0].value, batch[1].value}).status();
    EXPECT_TRUE(IsFenced(prepared_refused)) << prepared_refused;
    const Status again = NewRunSession(target(0), Chief("/a", "a1"), model).status();
    EXPECT_TRUE(IsFenced(again)) << again;
    ASSERT_OK(newer->Run(Batch(model1), {}, {model1.train}));

    const RunEnd end = {.global_step = 2, .checkpoint = "/a/ckpt-2", .reason = "reached step 2"};
    ASSERT_OK(newer->run_session()->EndRun(end));
    const Status late = NewRunSession(target(1), {.name = "/a"}, model1).status();
    EXPECT_EQ(RunEndOf(late), end) << late;
  }
}

TEST(ServerRunTest, ATrainerHearsOfTheEndFromServersThatRestartedWhenOneStillKnows) {
  Cluster cluster(/*num_ps=*/2, /*num_workers=*/2);
  const SmallModel model = MakeSmallModel();
  {
    ASSERT_OK_AND_ASSIGN(const auto chief, NewRunSession(cluster.server("worker", 0)->target(),
                                                         Chief("/a", "a1"), model));
    ASSERT_OK(chief->run_session()->EndRun({.global_step = 3}));
  }
  cluster.Kill("ps", 1);
  cluster.Start("ps", 1);
  EXPECT_EQ(
      RunEndOf(
          NewRunSession(cluster.server("worker", 1)->target(), {.name = "/a"}, model).status()),
      (RunEnd{.global_step = 3}));
}

// A client that dies says nothing any more: here, one that never says it lives.
TEST(ServerRunTest, TheSessionOfARemoteClientThatDiedEndsOnAllTasks) {
  Cluster cluster;
  const SmallModel model = MakeSmallModel();
  // The shortest that a client which lives can keep on a busy machine.
  const absl::Duration lease = absl::Seconds(3);
  ASSERT_OK_AND_ASSIGN(const auto live,
                       NewRunSession(RemoteTarget(*cluster.server("worker", 0)), {}, model, lease));
  ASSERT_OK(live->Run({}, {}, {model.init}));
  const std::string address = absl::StrCat("127.0.0.1:", cluster.server("worker", 0)->port());
  const auto master = MakeGrpcMaster(RpcChannel::Make(address));
  tensorflow::CreateSessionRequest request;
  AddSessionTerms({.lease = lease}, &request);
  tensorflow::CreateSessionResponse dead;
  ASSERT_OK(master->CreateSession(request, absl::Seconds(30), 16, &dead));

  // All tasks know it by the handle of the attempt that opened it; to ask the ps for it is no sign
  // of life at its master.
  const auto ps = MakeGrpcTransport(
      "/job:ps/replica:0/task:0",
      RpcChannel::Make(absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port())));
  const std::vector<std::string> handles = {dead.session_handle() + ".1"};
  const auto is_on_ps = [&] {
    CallOptions options;
    options.deadline = absl::Now() + absl::Seconds(10);
    std::vector<std::string> unknown;
    Status status;
    Notification answered;
    ps->RenewSessions(options, handles, &unknown, [&](const Status& answer) {
      status = answer;
      answered.Notify();
    });
    answered.Wait();
    EXPECT_OK(status);
    return unknown.empty();
  };
  EXPECT_TRUE(is_on_ps());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (is_on_ps() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(is_on_ps());
  tensorflow::ListDevicesRequest devices;
  devices.set_session_handle(dead.session_handle());
  tensorflow::ListDevicesResponse listed;
  EXPECT_STATUS(master->ListDevices(devices, &listed), absl::StatusCode::kInvalidArgument,
                "is not found");
  // The older one has outlived its lease by now, and nobody has run a step in it meanwhile.
  EXPECT_OK(live->Run(Batch(model), {}, {model.train}));
}

// --- Leaving when the run is over ----------------------------------------------------------------

class ExitWhenDoneTest : public ::testing::Test {
 protected:
  ExitWhenDoneTest() { EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(logdir_)); }
  ~ExitWhenDoneTest() override {
    if (join_.joinable()) join_.join();
    FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError();
  }
  void Join(const JoinOptions& options) {
    join_ = std::thread([this, options] {
      joined_ = cluster_.server("ps", 0)->Join(options);
      has_left_.Notify();
    });
  }
  std::string target(int worker = 0) { return cluster_.server("worker", worker)->target(); }

  const std::string logdir_ = absl::StrCat(::testing::TempDir(), "/exit_", RandomHexName());
  Cluster cluster_{1, 2};
  const SmallModel model_ = MakeSmallModel();
  Status joined_ = absl::UnknownError("not yet");
  Notification has_left_;
  std::thread join_;
};

TEST_F(ExitWhenDoneTest, WhoWaitsForTheRunStillHearsOfItsEndWhenItsSessionsHaveClosed) {
  Join({.exit_when_done = true});
  ASSERT_OK_AND_ASSIGN(auto chief, NewRunSession(target(), Chief("/a", "a1"), model_));
  ASSERT_OK(chief->run_session()->EndRun({.global_step = 1}));
  ASSERT_OK(chief->Close());
  EXPECT_TRUE(RunEndOf(NewRunSession(target(1), {.name = "/a"}, model_).status()).has_value());
  join_.join();
  EXPECT_OK(joined_);
}

TEST_F(ExitWhenDoneTest, ASessionThatStaysOpenIsToldAndDoesNotKeepTheServer) {
  Join({.exit_when_done = true, .grace = absl::Seconds(8)});
  ASSERT_OK_AND_ASSIGN(auto chief, NewRunSession(target(), Chief("/a", "a1"), model_));
  ASSERT_OK(chief->Run({}, {}, {model_.init}));
  ASSERT_OK_AND_ASSIGN(auto trainer, NewRunSession(target(1), {.name = "/a"}, model_));
  ASSERT_OK_AND_ASSIGN(auto slow, NewRunSession(target(1), {.name = "/a"}, model_));
  ASSERT_OK(slow->Run({}, {model_.w.value}));
  ASSERT_OK(chief->run_session()->EndRun({.global_step = 1}));
  ASSERT_OK(chief->Close());
  Status refused;
  while (refused.ok()) refused = trainer->Run({}, {model_.w.value}).status();
  EXPECT_TRUE(RunEndOf(refused).has_value()) << refused;
  // Who was between two steps hears it, too.
  refused = slow->Run({}, {model_.w.value}).status();
  EXPECT_TRUE(RunEndOf(refused).has_value()) << refused;
  join_.join();
  EXPECT_OK(joined_);
}

TEST_F(ExitWhenDoneTest, AServerThatCameUpAfterTheEndReadsItInTheLogdirAndTells) {
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK(WriteRunFile(fs, logdir_, {.id = "a1", .name = "/a", .token = "t", .epoch = 1}));
  ASSERT_OK(
      WriteRunEnd(fs, logdir_, {.id = "a1", .token = "t", .global_step = 7, .reason = "done"}));
  Join({.exit_when_done = true,
        .logdir = logdir_,
        .grace = absl::Seconds(3),
        .stale_grace = absl::Seconds(1)});
  const Status late = NewRunSession(target(1), {.name = "/a"}, model_).status();
  const auto end = RunEndOf(late);
  ASSERT_TRUE(end.has_value()) << late;
  EXPECT_EQ(end->global_step, 7);
  join_.join();
  EXPECT_OK(joined_);
}

TEST_F(ExitWhenDoneTest, WithoutTheOptionAServerStays) {
  Join({.logdir = logdir_});
  ASSERT_OK_AND_ASSIGN(auto chief, NewRunSession(target(), Chief("/a", "a1"), model_));
  ASSERT_OK(chief->run_session()->EndRun({.global_step = 1}));
  ASSERT_OK(chief->Close());
  // Longer than a server asks.
  EXPECT_FALSE(has_left_.WaitFor(absl::Seconds(1)));
  cluster_.server("ps", 0)->Stop();
}

TEST(ServerTest, WithoutAClusterSessionsRunInThisProcess) {
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start(ClusterConfig()));
  EXPECT_EQ(server->target(), "");
  EXPECT_EQ(server->port(), 0);
  const SmallModel model = MakeSmallModel();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession({.target = server->target()}));
  EXPECT_OK(session->Extend(model.root));
  std::thread join([&] { EXPECT_OK(server->Join()); });
  server->Stop();
  join.join();
  EXPECT_OK(server->Join());
}

// No descriptor can be opened in its life.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(next, 0);
    ::close(next);
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit none = {static_cast<rlim_t>(next), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_EQ(::open("/dev/null", O_RDONLY | O_CLOEXEC), -1);
  }
  ~NoMoreFiles() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

TEST(ServerTest, AServerThatGotNoDescriptorForItsEndHearsOfItAllTheSame) {
  StatusOr<std::unique_ptr<Server>> server = absl::UnknownError("not started");
  {
    const NoMoreFiles full;
    server = Server::Start(ClusterConfig());
  }
  ASSERT_OK(server);
  std::thread join([&] { EXPECT_OK((*server)->Join()); });
  (*server)->Stop();
  join.join();
}

}  // namespace
}  // namespace millrace
