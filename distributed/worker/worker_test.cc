// SPDX-License-Identifier: Apache-2.0
//
// A worker against peers and masters that misbehave. Workers in good company:
// master_test.cc.
#include "distributed/worker/worker.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/hash64.h"
#include "core/io_pool.h"
#include "core/notification.h"
#include "core/shape.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/tensor_source.h"
#include "distributed/worker/foreign_requests.h"
#include "distributed/worker/step_edges.h"
#include "graph/attr.h"
#include "gtest/gtest.h"
#include "net/timers.h"
#include "run/training_run.h"
#include "runtime/kernel.h"
#include "runtime/rendezvous.h"
#include "runtime/testing/step_ops.h"

// covers: steps: a kernel that never answers keeps its compute threads after its worker ends
// covers: steps: graphs with a forged equal hash are not confused
// covers: clusters: two programs of one task name do not end each other's sessions
// covers: clusters: a worker's end is bounded, even if a kernel hangs
// covers: clusters: kernels that stay when their graphs are dropped are bounded in each session

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

// Answers each RecvTensor at once: with `end`, and that of `tensors` which has the edge's name.
class HastyPeer : public TensorSource {
 public:
  void RecvTensor(const CallOptions&, const tensorflow::RecvTensorRequest& request,
                  NamedTensor* tensor, CallDone done) override {
    const auto key = RendezvousKey::Parse(request.rendezvous_key());
    EXPECT_OK(key);
    if (key.ok()) {
      asked.insert(absl::StrCat(request.step_id(), " ", key->edge_name));
      tensor->value = tensors[key->edge_name];
    }
    done(end);
  }
  std::map<std::string, Tensor> tensors;
  std::multiset<std::string> asked;  // "step edge"
  Status end;
};

// A timer fires as soon as it is set, once, in a thread that the destructor waits for.
class HastyTimers : public Timers {
 public:
  ~HastyTimers() override { Join(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  Clock* clock() override {
    ++times_asked;
    return Clock::Real();
  }
  std::shared_ptr<Timer> Make(absl::AnyInvocable<void()> fire) override {
    return std::make_shared<Hasty>(this, std::move(fire));
  }
  std::atomic<int> times_asked{0};

 private:
  class Hasty : public Timer {
   public:
    Hasty(HastyTimers* timers, absl::AnyInvocable<void()> fire)
        : timers_(timers), fire_(std::make_shared<absl::AnyInvocable<void()>>(std::move(fire))) {}
    void Set(absl::Time) override {
      if (fire_ != nullptr)
        timers_->thread_ = std::thread([fire = std::move(fire_)] { (*fire)(); });
    }
    void Cancel() override {}

   private:
    HastyTimers* const timers_;
    std::shared_ptr<absl::AnyInvocable<void()>> fire_;
  };
  std::thread thread_;
};

struct RunOptions {
  std::vector<std::string> recv_keys;
  bool block = false;
  absl::Time deadline = absl::InfiniteFuture();
};

class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() { Start(); }
  ~WorkerTest() override { testing::ClearHooks(); }

  void Start() {
    WorkerOptions options;
    options.task = kPs;
    options.own_arena = Arena::Make(2);
    options.io_pool = IoPool::Default();
    options.shutdown_bound = shutdown_bound_;
    options.limits = limits_;
    options.timers = timers_;
    options.source = [this](absl::string_view task) -> std::shared_ptr<TensorSource> {
      return task == kWorker ? peer_ : nullptr;
    };
    worker_ = std::make_unique<Worker>(std::move(options));
    EXPECT_OK(worker_->CreateWorkerSession({.handle = "session"}));
  }

  // Of the chief of a run; what follows is in it.
  void OpenRun(const std::string& handle) {
    EXPECT_OK(worker_->CreateWorkerSession(
        {.handle = handle,
         .terms = {.run = {.name = "/a", .id = "a1", .is_chief = true, .chief = "the chief"}}}));
    session_ = handle;
  }
  void Close(const std::string& handle) { EXPECT_OK(worker_->DeleteWorkerSession(handle)); }

  std::string Device() const { return std::string(kPs) + "/device:CPU:0"; }
  template <typename T>
  static void Set(tensorflow::NodeDef* node, const char* attr, const T& value) {
    SetAttr(value, &(*node->mutable_attr())[attr]);
  }
  tensorflow::NodeDef* Add(const char* op, const std::string& name) {
    tensorflow::NodeDef* const node = graph_.add_node();
    node->set_name(name);
    node->set_op(op);
    node->set_device(Device());
    return node;
  }
  // What was added since the last time.
  std::string Register() {
    graph_.mutable_versions()->set_producer(134);
    const auto part = worker_->RegisterGraph({session_, std::exchange(graph_, {})});
    EXPECT_OK(part);
    return part.ok() ? part->graph_handle : std::string();
  }
  // Receives a float under each name from the worker.
  std::string RegisterReceiver(const std::vector<std::string>& edges, int64_t wave = -1) {
    for (const std::string& edge : edges) {
      tensorflow::NodeDef* const node = Add("_Recv", "recv_" + edge);
      const auto set = [&](const char* attr, const auto& value) { Set(node, attr, value); };
      set("tensor_type", DT_FLOAT);
      set("tensor_name", edge);
      set("send_device", std::string(kWorker) + "/device:CPU:0");
      set("recv_device", Device());
      set("send_device_incarnation", int64_t{42});
      set("client_terminated", false);
      if (wave >= 0) set("_wave", wave);
    }
    return Register();
  }
  // Gives a constant.
  std::string RegisterConstant(const Tensor& value) {
    tensorflow::NodeDef* const constant = Add("Const", "constant");
    Set(constant, "dtype", value.dtype());
    Set(constant, "value", value);
    tensorflow::NodeDef* const result = Add("_Retval", "result");
    result->add_input("constant");
    Set(result, "T", value.dtype());
    Set(result, "index", int64_t{0});
    return Register();
  }
  void AddVariable() {
    tensorflow::NodeDef* const variable = Add("VarHandleOp", "v");
    Set(variable, "container", std::string());
    Set(variable, "shared_name", std::string("v"));
    Set(variable, "dtype", DT_FLOAT);
    Set(variable, "shape", PartialShape::Scalar());
  }
  std::string RegisterAssignment(float value) {
    AddVariable();
    tensorflow::NodeDef* const constant = Add("Const", "constant");
    Set(constant, "dtype", DT_FLOAT);
    Set(constant, "value", Tensor::Scalar(value));
    tensorflow::NodeDef* const assign = Add("AssignVariableOp", "assign");
    assign->add_input("v");
    assign->add_input("constant");
    Set(assign, "dtype", DT_FLOAT);
    return Register();
  }
  std::string RegisterRead() {
    AddVariable();
    tensorflow::NodeDef* const read = Add("ReadVariableOp", "read");
    read->add_input("v");
    Set(read, "dtype", DT_FLOAT);
    tensorflow::NodeDef* const result = Add("_Retval", "result");
    result->add_input("read");
    Set(result, "T", DT_FLOAT);
    Set(result, "index", int64_t{0});
    return Register();
  }
  Status RunGraph(const std::string& handle, int64_t step_id, const RunOptions& options = {}) {
    tensorflow::RunGraphRequest request;
    request.set_session_handle(session_);
    request.set_graph_handle(handle);
    request.set_step_id(step_id);
    for (const std::string& key : options.recv_keys) request.add_recv_key(key);
    tensorflow::RunGraphResponse response;
    received_.clear();
    Notification ended;
    Status result;
    worker_->RunGraph(request, request, EdgesBy::kRecvTensor, {}, options.block, options.deadline,
                      nullptr, &response, &received_, [&](const Status& status) {
                        if (at_end_ != nullptr) at_end_();
                        result = status;
                        ended.Notify();
                      });
    if (!ended.WaitFor(absl::Seconds(20))) {
      worker_->Shutdown(absl::AbortedError("the step did not end by itself"));
      ended.Wait();
    }
    return result;
  }

  absl::Duration shutdown_bound_ = absl::Seconds(10);
  ServerLimits limits_;
  Timers* timers_ = Timers::Real();
  std::shared_ptr<HastyPeer> peer_ = std::make_shared<HastyPeer>();
  std::unique_ptr<Worker> worker_;
  tensorflow::GraphDef graph_;
  std::string session_ = "session";    // whose graphs are meant
  std::function<void()> at_end_;       // of a step, before it lets go of its plan
  std::vector<NamedTensor> received_;  // by the last step
};

// Waves tell when tensors travel; what a partition computes is the same.
TEST_F(WorkerTest, PartitionsThatDifferInWavesShareAPlan) {
  const std::string one = RegisterReceiver({"a"}, /*wave=*/1);
  const std::string other = RegisterReceiver({"a"}, /*wave=*/3);
  const std::string without = RegisterReceiver({"a"});
  EXPECT_EQ(worker_->num_plans(), 1);
  peer_->tensors = {{"a", Tensor::Scalar(1.0f)}};
  int64_t step = 1;
  for (const std::string& handle : {one, other, without}) EXPECT_OK(RunGraph(handle, step++));
}

// covers: clusters: a step that a foreign master starts by RunGraph asks its peers for each tensor
//   by RecvTensor
TEST_F(WorkerTest, AForeignMastersStepAsksForEachTensorOnceByItsKey) {
  const std::string handle = RegisterReceiver({"a", "b"});
  peer_->tensors = {{"a", Tensor::Scalar(1.0f)}, {"b", Tensor::Scalar(2.0f)}};
  EXPECT_OK(RunGraph(handle, 1));
  EXPECT_OK(RunGraph(handle, 2, {.recv_keys = {}, .block = true}));
  EXPECT_EQ(peer_->asked, (std::multiset<std::string>{"1 a", "1 b", "2 a", "2 b"}));
}

// A lost connection knows an address at most.
TEST_F(WorkerTest, APeerThatIsLostIsNamed) {
  const std::string handle = RegisterReceiver({"a"});
  peer_->end = absl::UnavailableError("connection refused");
  EXPECT_STATUS(RunGraph(handle, 1), absl::StatusCode::kUnavailable,
                "RecvTensor from /job:worker/replica:0/task:0: connection refused");
}

TEST_F(WorkerTest, TensorsOfAnotherTypeFailTheStep) {
  const std::string handle = RegisterReceiver({"a"});
  peer_->tensors = {{"a", Tensor::Scalar(1.0)}};
  EXPECT_STATUS(RunGraph(handle, 1), absl::StatusCode::kInternal, "must be of type float");
  peer_->tensors = {{"a", Tensor()}};
  EXPECT_STATUS(RunGraph(handle, 2), absl::StatusCode::kInternal, "must be of type float");
}

TEST_F(WorkerTest, AFetchThatNothingSendsIsAnError) {
  const std::string handle = RegisterReceiver({"a"});
  peer_->tensors = {{"a", Tensor::Scalar(1.0f)}};
  const std::string nothing = RendezvousKey::Make(Device(), 1, Device(), "nothing", 0, 0);
  EXPECT_STATUS(RunGraph(handle, 1, {.recv_keys = {nothing}}), absl::StatusCode::kInternal,
                "must have been sent when all nodes have run, got nothing");
  EXPECT_STATUS(RunGraph(handle, 2, {.recv_keys = {"nonsense"}}),
                absl::StatusCode::kInvalidArgument, "Invalid rendezvous key");
}

TEST_F(WorkerTest, ARecvTensorWhoseCallerHasGoneLeavesNothing) {
  tensorflow::RecvTensorRequest request;
  request.set_step_id(5);
  const uint64_t incarnation = worker_->DeviceAttributes()[0].incarnation();
  request.set_rendezvous_key(RendezvousKey::Make(Device(), incarnation, Device(), "a", 0, 0));
  CancellationManager call;
  Status answer;
  worker_->RecvTensor(request, &call, [&](const Status& s, Tensor, bool) { answer = s; });
  EXPECT_EQ(worker_->num_steps(), 1);
  call.StartCancel();
  EXPECT_STATUS(answer, absl::StatusCode::kCancelled, "cancelled by its caller");
  EXPECT_EQ(worker_->num_steps(), 0);
}

// It computes there when the worker is gone, and lets go of them on one of them.
TEST_F(WorkerTest, AKernelThatDoesNotAnswerKeepsTheThreadsOfItsWorker) {
  for (const bool block : {false, true}) {
    KernelContext* context = nullptr;
    AsyncKernel::DoneCallback silent;
    testing::SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      context = ctx;
      silent = std::move(done);
    });
    tensorflow::NodeDef* const node = Add("TestProbeAsync", "mute");
    Set(node, "N", int64_t{0});
    Set(node, "M", int64_t{1});
    Set(node, "hook", std::string("silent"));
    EXPECT_STATUS(
        RunGraph(
            Register(), 1,
            {.recv_keys = {}, .block = block, .deadline = absl::Now() + absl::Milliseconds(20)}),
        absl::StatusCode::kDeadlineExceeded, "TestProbeAsync 'mute'");
    worker_ = nullptr;
    const auto answered = std::make_shared<Notification>();
    context->step().arena->Schedule([answered, context, done = std::move(silent)]() mutable {
      context->ParallelFor(1000, 1e4, [](int64_t, int64_t) {});
      done(absl::OkStatus());
      answered->Notify();
    });
    answered->Wait();
    Start();
  }
}

// The timer of a step may be what ends it. The worker's options, its timers among them, may be gone
// from then on.
TEST_F(WorkerTest, AStepThatItsTimerHasEndedAsksItsWorkerNothing) {
  HastyTimers timers;
  timers_ = &timers;
  Start();
  testing::SetAsyncHook("cancelled", [](KernelContext* context, AsyncKernel::DoneCallback done) {
    const auto answer = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
    CancellationManager::Token token;
    const bool waits = context->cancellation()->Register(
        &token, [answer] { (*answer)(absl::CancelledError("as it was told")); });
    if (!waits) (*answer)(absl::CancelledError("before it began"));
  });
  tensorflow::NodeDef* const node = Add("TestProbeAsync", "waits");
  Set(node, "N", int64_t{0});
  Set(node, "M", int64_t{1});
  Set(node, "hook", std::string("cancelled"));
  int asked_at_end = -1;
  at_end_ = [&] { asked_at_end = timers.times_asked; };
  EXPECT_STATUS(
      RunGraph(Register(), 1,
               {.recv_keys = {}, .block = false, .deadline = absl::Now() + absl::Hours(1)}),
      absl::StatusCode::kDeadlineExceeded, "");
  timers.Join();
  EXPECT_EQ(timers.times_asked, asked_at_end);
  worker_ = nullptr;
}

// What Hash64 makes `mixed` of: the block of 8 bytes that enters the hash as `mixed`.
uint64_t Hash64Block(uint64_t mixed) {
  constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995ull;
  uint64_t inverse = kMultiplier;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMultiplier * inverse;
  mixed *= inverse;
  return (mixed ^ (mixed >> 47)) * inverse;
}

// A difference in the top bit of a mixed block comes out of the multiplication as it went in,
// whatever the seed, and the same one in the next block takes it away.
TEST_F(WorkerTest, GraphsWhoseHashesWereMadeEqualAreNotTakenForOneAnother) {
  std::vector<int64_t> zeros(256), forged(256);
  forged[0] = forged[1] = static_cast<int64_t>(Hash64Block(uint64_t{1} << 63));
  const Tensor a = Tensor::Vector<int64_t>(zeros), b = Tensor::Vector<int64_t>(forged);
  const auto text = [](const Tensor& t) {
    return absl::string_view(t.bytes().data(), t.bytes().size());
  };
  for (const uint64_t seed : {kHash64DefaultSeed, uint64_t{2048}}) {
    ASSERT_EQ(Hash64(text(a), seed), Hash64(text(b), seed));
  }
  int64_t step = 0;
  for (const Tensor& value : {a, b}) {
    ASSERT_OK(RunGraph(RegisterConstant(value), ++step));
    ASSERT_EQ(received_.size(), 1u);
    ExpectTensorEqual(received_[0].value, value);
  }
}

TEST_F(WorkerTest, OnlyTheEarlierLivesOfTheSameMasterLoseTheirSessions) {
  const auto open = [&](const std::string& handle, const std::vector<std::string>& devices,
                        uint64_t incarnation) {
    tensorflow::CreateWorkerSessionRequest request;
    request.set_session_handle(handle);
    for (const std::string& device : devices) {
      tensorflow::DeviceAttributes* const attributes = request.add_cluster_device_attributes();
      attributes->set_name(device);
      attributes->set_incarnation(incarnation);
    }
    EXPECT_OK(worker_->CreateWorkerSession(OrderOf(request)));
    return worker_->num_sessions();
  };
  const std::string w0 = "/job:worker/replica:0/task:0/device:CPU:0";
  const std::string w1 = "/job:worker/replica:0/task:1/device:CPU:0";
  EXPECT_EQ(worker_->num_sessions(), 1);
  EXPECT_EQ(open("a", {w0}, 1), 2);
  EXPECT_EQ(open("b", {w0}, 1), 3);
  EXPECT_EQ(open("c", {w1}, 7), 4);
  EXPECT_EQ(open("d", {}, 0), 5);        // a master that does not say who it is
  EXPECT_EQ(open("e", {w0, w1}, 2), 6);  // or tells of its whole cluster
  EXPECT_EQ(open("f", {"nonsense"}, 2), 7);
  EXPECT_EQ(open("g", {w0}, 2), 6);  // a and b end
  EXPECT_EQ(open("g", {w0}, 2), 6);  // a retry
}

// Two programs that take themselves for one task: each would end the other's sessions for ever.
TEST_F(WorkerTest, ASessionWhoseLeaseIsRenewedIsNotEndedByAnotherProgramOfItsMastersName) {
  const auto open = [&](const std::string& handle, uint64_t incarnation) {
    EXPECT_OK(worker_->CreateWorkerSession(
        {.handle = handle, .opener = {kWorker, incarnation}, .terms = {.lease = absl::Hours(1)}}));
  };
  open("a", 1);
  open("b", 2);
  open("c", 1);
  EXPECT_TRUE(worker_->RenewSessions({"a", "b", "c"}).empty());
}

TEST_F(WorkerTest, ShutdownIsBoundedNamesTheKernelsThatDoNotAnswerAndLeavesThem) {
  worker_ = nullptr;
  shutdown_bound_ = absl::Milliseconds(200);
  Start();
  Notification begun;
  AsyncKernel::DoneCallback silent;
  testing::SetAsyncHook("silent", [&](KernelContext*, AsyncKernel::DoneCallback done) {
    silent = std::move(done);
    begun.Notify();
  });
  tensorflow::NodeDef* const node = Add("TestProbeAsync", "mute");
  Set(node, "N", int64_t{0});
  Set(node, "M", int64_t{0});
  Set(node, "hook", std::string("silent"));
  const std::string graph = Register();
  Status status;
  std::thread step([&] { status = RunGraph(graph, 1); });
  begun.Wait();
  ::testing::internal::CaptureStderr();
  worker_->Shutdown(absl::AbortedError("Shutdown"));
  const std::string log = ::testing::internal::GetCapturedStderr();
  step.join();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(log.find("step 1 of session session has not ended 200ms after it was cancelled"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("TestProbeAsync 'mute'"), std::string::npos) << log;
  worker_ = nullptr;
  silent(absl::OkStatus());
}

TEST_F(WorkerTest, AWorkerThatStopsLetsStepsEndAndTakesNoNewOnes) {
  Notification begun;
  AsyncKernel::DoneCallback slow;
  testing::SetAsyncHook("slow", [&](KernelContext*, AsyncKernel::DoneCallback done) {
    slow = std::move(done);
    begun.Notify();
  });
  tensorflow::NodeDef* const node = Add("TestProbeAsync", "slow");
  Set(node, "N", int64_t{0});
  Set(node, "M", int64_t{0});
  Set(node, "hook", std::string("slow"));
  const std::string graph = Register();
  Status status = absl::UnknownError("not yet");
  std::thread step([&] { status = RunGraph(graph, 1); });
  begun.Wait();
  worker_->StopTaking(absl::UnavailableError("is stopping"));
  EXPECT_FALSE(worker_->AwaitSteps(absl::InfinitePast()));
  tensorflow::RunGraphRequest request;
  request.set_session_handle(session_);
  request.set_graph_handle(graph);
  request.set_step_id(2);
  tensorflow::RunGraphResponse response;
  std::vector<NamedTensor> received;
  Status refused;
  worker_->RunGraph(request, request, EdgesBy::kRecvTensor, {}, false, absl::InfiniteFuture(),
                    nullptr, &response, &received, [&](const Status& answer) { refused = answer; });
  EXPECT_STATUS(refused, absl::StatusCode::kUnavailable, "is stopping");
  EXPECT_STATUS(worker_->CreateWorkerSession({.handle = "late"}), absl::StatusCode::kUnavailable,
                "is stopping");
  slow(absl::OkStatus());
  EXPECT_TRUE(worker_->AwaitSteps(absl::InfiniteFuture()));
  step.join();
  EXPECT_OK(status);
}

TEST_F(WorkerTest, StrangersMayClearWhatNobodyWantsBackAndNeverWhatBelongsToARun) {
  FakeClock clock;
  WorkerOptions options;
  options.task = kPs;
  options.clock = &clock;
  options.run_linger = absl::Minutes(10);
  Worker worker(std::move(options));
  EXPECT_OK(worker.CheckMayClear("CleanupAll", {}));
  const auto open = [&](const std::string& handle, const TrainingRun& run) {
    return worker.CreateWorkerSession({.handle = handle, .terms = {.run = run}});
  };
  const auto close = [&](const std::string& handle) { return worker.DeleteWorkerSession(handle); };
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  ASSERT_OK(open("a", {}));
  EXPECT_STATUS(worker.CheckMayClear("CleanupAll", {}), kDenied, "and 1 open sessions");
  EXPECT_STATUS(worker.CheckMayClear("Reset", {}, 3), kDenied, "and 3 open sessions");
  ASSERT_OK(close("a"));
  EXPECT_STATUS(worker.CheckMayClear("CleanupAll", {}), kDenied, "a session that ended 0 ago");
  clock.Advance(absl::Minutes(10) - absl::Seconds(1));
  EXPECT_STATUS(worker.CheckMayClear("CleanupAll", {"x"}), kDenied, "ended 9m59s ago, of the 10m");
  clock.Advance(absl::Seconds(1));
  EXPECT_OK(worker.CheckMayClear("CleanupAll", {}));

  ASSERT_OK(open("b", {.name = "/b", .id = "b1", .is_chief = true, .chief = "c", .epoch = 1}));
  ASSERT_OK(close("b"));
  clock.Advance(absl::Hours(100));
  EXPECT_OK(worker.CheckMayClear("CleanupAll", {}));
  EXPECT_STATUS(worker.CheckMayClear("CleanupAll", {"", "b1"}), kDenied,
                "container 'b1', which belongs to a training run");
}

TEST_F(WorkerTest, AHandleOfASessionHasAtMost256Bytes) {
  EXPECT_OK(worker_->CreateWorkerSession({.handle = std::string(256, 'h')}));
  EXPECT_STATUS(worker_->CreateWorkerSession({.handle = std::string(257, 'h')}),
                absl::StatusCode::kInvalidArgument,
                "session_handle must have at most 256 bytes, got 257");
}

// A step that has not quite ended keeps a plan whose devices are those of the freed container.
TEST_F(WorkerTest, KernelsThatASessionKeepsAreBoundedAlsoWhenTheirGraphsAreDropped) {
  testing::SetAsyncHook(
      "none", [](KernelContext*, AsyncKernel::DoneCallback done) { done(absl::OkStatus()); });
  limits_.max_session_kernels = 10;
  Start();
  const auto add_and_drop = [&](int i) {
    tensorflow::NodeDef* const node = Add("TestProbeAsync", absl::StrCat("probe", i));
    Set(node, "N", int64_t{0});
    Set(node, "M", int64_t{0});
    Set(node, "hook", std::string("none"));
    graph_.mutable_versions()->set_producer(134);
    const auto part = worker_->RegisterGraph({session_, std::exchange(graph_, {})});
    return part.ok() ? worker_->DeregisterGraph(session_, part->graph_handle) : part.status();
  };
  for (int i = 0; i < 10; ++i) ASSERT_OK(add_and_drop(i));
  for (int i = 10; i < 1000; ++i) {
    ASSERT_TRUE(absl::IsResourceExhausted(add_and_drop(i))) << i;
  }
  EXPECT_STATUS(add_and_drop(0), absl::StatusCode::kResourceExhausted,
                "stateful kernels and functions of a session must be at most 10 "
                "(ServerLimits::max_session_kernels), got 11");
  OpenRun("other");
  EXPECT_OK(add_and_drop(10));
}

TEST_F(WorkerTest, ARunThatComesAgainDoesNotGetThePlansOfItsFreedContainer) {
  OpenRun("first");
  ASSERT_OK(RunGraph(RegisterAssignment(1), 1));
  std::string again;
  at_end_ = [&] {
    EXPECT_OK(worker_->EndRun("first", {}));
    Close("first");
    OpenRun("second");
    again = RegisterRead();
  };
  ASSERT_OK(RunGraph(RegisterRead(), 2));
  at_end_ = nullptr;
  ASSERT_OK(RunGraph(RegisterAssignment(2), 3));
  ASSERT_OK(RunGraph(again, 4));
  ASSERT_EQ(received_.size(), 1u);
  ExpectTensorEqual(received_[0].value, Tensor::Scalar(2.0f));
}

TEST_F(WorkerTest, NoRunIsFinishedWhileASessionWithoutARunIsOpen) {
  OpenRun("chief");
  ASSERT_OK(worker_->EndRun("chief", {.global_step = 3}));
  EXPECT_FALSE(worker_->FindFinishedRun().has_value());
  Close("session");
  const auto finished = worker_->FindFinishedRun();
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->end.global_step, 3);
  EXPECT_EQ(finished->sessions, 1);
}

}  // namespace
}  // namespace millrace
