// SPDX-License-Identifier: Apache-2.0
//
// Strangers at real servers while a job trains: each method alone, then all together, with messages
// that are random, nearly right and right, to an open cluster and to one with a token. When nobody
// has used for a while what they left, the heap of each task is within 64 MiB of what it was.
//
// A dozen seconds of calls; $MILLRACE_SOAK_SECONDS says otherwise. $MILLRACE_FUZZ_SEED begins
// elsewhere; the seed is printed.

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/testing/raw_client.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/session_terms.h"
#include "google/protobuf/message_lite.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "net/call_metadata.h"
#include "net/testing/test_certificates.h"
#include "ops/array/constant.h"
#include "proto/master.pb.h"
#include "proto/worker.pb.h"
#include "proto/worker_control.pb.h"
#include "run/training_run.h"
#include "runtime/rendezvous.h"
#include "tests/cluster/process.h"
#include "tests/fuzz/mutator.h"

// covers: clusters: random, nearly right and right calls of all methods leave each task within
//   64 MiB of its heap, open and with a token, while a job trains on

namespace millrace {
namespace {

constexpr int64_t kMaxGrowth = int64_t{64} << 20;
constexpr absl::Duration kGuard = absl::Seconds(120);
constexpr int kThreads = 4;
constexpr char kToken[] = "the-token-of-this-cluster-0123456789";
// Some requests wait for steps that never come.
constexpr std::chrono::milliseconds kCallTime(100);

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

using Metadata = std::map<std::string, std::string>;

struct Method {
  std::string name;
  std::vector<std::string> corpus;  // requests that are right
  bool ends_work_of_others = false;
};

// Who is called.
struct Target {
  std::string address;
  std::string device;
  uint64_t incarnation = 0;
  std::vector<Method> methods = {};
};

tensorflow::GraphDef OneConstant(const std::string& device) {
  const Scope root;
  Const((device.empty() ? root : root.WithDevice(device)).WithName("c"),
        Tensor::Vector<std::string>({std::string(1000, 'x')}));
  const auto graph = root.ToGraphDef();
  EXPECT_OK(graph);
  return graph.value_or(tensorflow::GraphDef());
}

// The methods of a task, with requests that are large enough to be noticed when they stay.
class MethodList {
 public:
  explicit MethodList(const Target& target)
      : key_(RendezvousKey::Make(target.device, target.incarnation, target.device, "edge", 0, 0)),
        incarnation_(target.incarnation),
        placed_(OneConstant(target.device)) {
    AddWorkerMethods();
    AddControlMethods();
    AddMasterMethods();
  }
  std::vector<Method> Take() { return std::move(methods_); }

 private:
  void Add(absl::string_view service, absl::string_view name,
           std::initializer_list<const google::protobuf::MessageLite*> requests) {
    Method& method = methods_.emplace_back();
    method.name = absl::StrCat(service, name);
    for (const auto* request : requests) method.corpus.push_back(request->SerializeAsString());
  }

  void AddWorkerMethods() {
    const tensorflow::GetStatusRequest get_status;
    Add(kWorkerService, "GetStatus", {&get_status});
    tensorflow::CreateWorkerSessionRequest open, other, own;
    open.set_session_handle("stranger");
    other.set_session_handle("of another task");
    auto* const device = other.add_cluster_device_attributes();
    device->set_name("/job:worker/replica:0/task:7/device:CPU:0");
    device->set_incarnation(7);
    own.set_session_handle(std::string(200, 'h'));
    own.set_isolate_session_state(true);
    Add(kWorkerService, "CreateWorkerSession", {&open, &other, &own});
    tensorflow::DeleteWorkerSessionRequest close, close_long;
    close.set_session_handle("stranger");
    close_long.set_session_handle(long_);
    Add(kWorkerService, "DeleteWorkerSession", {&close, &close_long});
    tensorflow::RegisterGraphRequest graph;
    graph.set_session_handle("stranger");
    *graph.mutable_graph_def() = placed_;
    Add(kWorkerService, "RegisterGraph", {&graph});
    tensorflow::DeregisterGraphRequest drop;
    drop.set_session_handle("stranger");
    drop.set_graph_handle(long_);
    Add(kWorkerService, "DeregisterGraph", {&drop});
    tensorflow::RunGraphRequest run, run_long;
    run.set_session_handle("stranger");
    run.set_graph_handle("none");
    run.set_step_id(12345678);
    run.set_store_errors_in_response_body(true);
    run_long.set_session_handle(long_);
    run_long.set_step_id(87654321);
    run_long.add_recv_key(key_);
    Add(kWorkerService, "RunGraph", {&run, &run_long});
    tensorflow::CleanupGraphRequest cleanup;
    cleanup.set_step_id(12345678);
    Add(kWorkerService, "CleanupGraph", {&cleanup});
    tensorflow::CleanupAllRequest clear;
    clear.add_container(long_);
    Add(kWorkerService, "CleanupAll", {&clear});
    methods_.back().ends_work_of_others = true;
    tensorflow::RecvTensorRequest recv, recv_long;
    recv.set_step_id(1234567);
    recv.set_rendezvous_key(key_);
    recv_long.set_step_id(7654321);
    recv_long.set_rendezvous_key(absl::StrCat(key_, long_));
    Add(kWorkerService, "RecvTensor", {&recv, &recv_long});
    tensorflow::LoggingRequest logging;
    logging.set_enable_rpc_logging(true);
    logging.add_fetch_step_id(12345678);
    Add(kWorkerService, "Logging", {&logging});
    tensorflow::TracingRequest tracing;
    tracing.mutable_options()->set_duration(1e9);
    Add(kWorkerService, "Tracing", {&tracing});
  }

  void AddControlMethods() {
    const wire::GetStatusRequest get_status;
    Add(kControlService, "GetStatus", {&get_status});
    wire::CreateWorkerSessionRequest open, chief, trainer;
    open.set_session_handle("a member");
    chief.set_session_handle("the chief");
    ToWire({.run = {.name = "/stranger", .id = "s1", .is_chief = true, .chief = "a stranger"},
            .lease = absl::Seconds(1)},
           chief.mutable_terms());
    trainer.set_session_handle("a trainer");
    trainer.set_master_task("/job:worker/replica:0/task:7");
    trainer.set_master_incarnation(7);
    ToWire({.run = {.name = "/stranger", .id = "s1"}}, trainer.mutable_terms());
    Add(kControlService, "CreateWorkerSession", {&open, &chief, &trainer});
    wire::DeleteWorkerSessionRequest close, close_long;
    close.set_session_handle("a member");
    close_long.set_session_handle(long_);
    Add(kControlService, "DeleteWorkerSession", {&close, &close_long});
    wire::RegisterGraphRequest graph;
    graph.set_session_handle("a member");
    *graph.mutable_graph_def() = placed_;
    Add(kControlService, "RegisterGraph", {&graph});
    wire::DeregisterGraphRequest drop;
    drop.set_session_handle("a member");
    drop.set_graph_handle(long_);
    Add(kControlService, "DeregisterGraph", {&drop});
    wire::CleanupAllRequest clear;
    clear.add_container(long_);
    Add(kControlService, "CleanupAll", {&clear});
    methods_.back().ends_work_of_others = true;
    wire::RenewSessionsRequest renew;
    renew.add_session_handle("stranger");
    renew.add_session_handle(long_);
    Add(kControlService, "RenewSessions", {&renew});
    Add(kOwnMasterService, "RenewSessions", {&renew});
    wire::FindRunRequest find;
    find.set_name("/stranger");
    Add(kControlService, "FindRun", {&find});
    wire::EndRunRequest end;
    end.set_session_handle("the chief");
    end.mutable_end()->set_global_step(7);
    end.mutable_end()->set_checkpoint(long_);
    end.mutable_end()->set_reason(long_);
    Add(kControlService, "EndRun", {&end});
    Add(kOwnMasterService, "EndRun", {&end});
    const wire::GetPeerCountsRequest counts;
    Add(kControlService, "GetPeerCounts", {&counts});
    wire::FindTrainersRequest trainers;
    trainers.set_session_handle("none");
    Add(kOwnMasterService, "FindTrainers", {&trainers});
  }

  void AddMasterMethods() {
    tensorflow::CreateSessionRequest create, leased, with_config;
    *create.mutable_graph_def() = OneConstant("");
    AddSessionTerms({.lease = absl::Seconds(1)}, &leased);
    with_config.mutable_config()->add_device_filters("/job:ps");
    with_config.mutable_config()->add_device_filters(long_);
    Add(kMasterService, "CreateSession", {&create, &leased, &with_config});
    tensorflow::ExtendSessionRequest extend;
    extend.set_session_handle("none");
    *extend.mutable_graph_def() = OneConstant("");
    Add(kMasterService, "ExtendSession", {&extend});
    tensorflow::RunStepRequest step;
    step.set_session_handle("none");
    step.add_fetch("c:0");
    step.add_fetch(long_);
    Add(kMasterService, "RunStep", {&step});
    tensorflow::MakeCallableRequest make;
    make.set_session_handle("none");
    make.mutable_options()->add_fetch(long_);
    Add(kMasterService, "MakeCallable", {&make});
    tensorflow::RunCallableRequest call;
    call.set_session_handle("none");
    call.set_handle(1);
    Add(kMasterService, "RunCallable", {&call});
    tensorflow::ReleaseCallableRequest release;
    release.set_session_handle("none");
    release.set_handle(1);
    Add(kMasterService, "ReleaseCallable", {&release});
    tensorflow::CloseSessionRequest close;
    close.set_session_handle(long_);
    Add(kMasterService, "CloseSession", {&close});
    tensorflow::ListDevicesRequest list;
    list.set_session_handle(long_);
    Add(kMasterService, "ListDevices", {&list});
    tensorflow::ResetRequest reset;
    reset.add_container(long_);
    Add(kMasterService, "Reset", {&reset});
    methods_.back().ends_work_of_others = true;
  }

  const std::string long_ = std::string(20'000, 'x');
  const std::string key_;
  const uint64_t incarnation_;
  const tensorflow::GraphDef placed_;
  std::vector<Method> methods_;
};

// Sessions, a graph, steps and a callable, all of them right, and nobody closes anything. Whether
// all was answered; where strangers have taken all places, it is not.
bool OpenAndLeave(RawClient* client, const Target& target, int64_t number) {
  bool is_well = true;
  const auto call = [&](absl::string_view service, absl::string_view method,
                        const google::protobuf::MessageLite& request,
                        google::protobuf::MessageLite* response) {
    is_well = is_well && client->Call(absl::StrCat(service, method), request, response).ok();
  };
  const std::string handle = absl::StrCat("left ", ::getpid(), " ", number);
  tensorflow::CreateWorkerSessionRequest open;
  open.set_session_handle(handle);
  tensorflow::CreateWorkerSessionResponse opened;
  call(kWorkerService, "CreateWorkerSession", open, &opened);
  tensorflow::RegisterGraphRequest add;
  add.set_session_handle(handle);
  *add.mutable_graph_def() = OneConstant(target.device);
  tensorflow::RegisterGraphResponse added;
  call(kWorkerService, "RegisterGraph", add, &added);
  tensorflow::RunGraphRequest run;
  run.set_session_handle(handle);
  run.set_graph_handle(added.graph_handle());
  run.set_step_id(1'000'000'000 + number);
  tensorflow::RunGraphResponse ran;
  call(kWorkerService, "RunGraph", run, &ran);

  tensorflow::CreateSessionRequest create;
  *create.mutable_graph_def() = OneConstant("");
  tensorflow::CreateSessionResponse created;
  call(kMasterService, "CreateSession", create, &created);
  tensorflow::RunStepRequest step;
  step.set_session_handle(created.session_handle());
  step.add_fetch("c:0");
  tensorflow::RunStepResponse stepped;
  call(kMasterService, "RunStep", step, &stepped);
  tensorflow::MakeCallableRequest make;
  make.set_session_handle(created.session_handle());
  make.mutable_options()->add_fetch("c:0");
  tensorflow::MakeCallableResponse made;
  call(kMasterService, "MakeCallable", make, &made);
  tensorflow::RunCallableRequest again;
  again.set_session_handle(created.session_handle());
  again.set_handle(made.handle());
  tensorflow::RunCallableResponse called;
  call(kMasterService, "RunCallable", again, &called);
  return is_well;
}

// Threads that call targets for a while, and what came of it.
class Strangers {
 public:
  Strangers(std::vector<Target> targets, Metadata metadata, uint64_t seed)
      : targets_(std::move(targets)), metadata_(std::move(metadata)), seed_(seed) {}

  size_t num_methods() const { return targets_[0].methods.size(); }
  // One method, by its index; num_methods(): OpenAndLeave; num_methods() + 1: all in turns.
  void Call(size_t what, absl::Duration time) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([this, what, time, seed = ++seed_] { CallInThread(what, time, seed); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // A member's calls must not end the training.
  void SpareTheWorkOfOthers() { spares_work_of_others_ = true; }
  int64_t calls() const { return calls_; }
  int64_t answered() const { return answered_; }

 private:
  void CallInThread(size_t what, absl::Duration time, uint64_t seed) {
    std::vector<std::unique_ptr<RawClient>> clients;
    std::vector<std::vector<Mutator>> mutators(targets_.size());
    for (size_t i = 0; i < targets_.size(); ++i) {
      clients.push_back(std::make_unique<RawClient>(targets_[i].address));
      clients.back()->SetMetadata(metadata_);
      clients.back()->SetTimeout(kCallTime);
      for (const Method& method : targets_[i].methods) {
        mutators[i].emplace_back(seed, method.corpus);
      }
    }
    for (const absl::Time end = absl::Now() + time; absl::Now() < end;) {
      for (size_t i = 0; i < targets_.size(); ++i) {
        const size_t n = num_methods();
        const size_t one = what > n ? static_cast<size_t>(mutators[i][0].Below(n + 1)) : what;
        const bool is_well =
            one == n ? OpenAndLeave(clients[i].get(), targets_[i], ++left_)
                     : CallOnce(clients[i].get(), targets_[i].methods[one], &mutators[i][one]);
        calls_.fetch_add(1);
        if (is_well) answered_.fetch_add(1);
      }
    }
  }
  bool CallOnce(RawClient* client, const Method& method, Mutator* mutator) {
    if (method.ends_work_of_others && spares_work_of_others_) return false;
    const bool is_right = mutator->Below(4) == 0;
    const std::string request =
        is_right ? method.corpus[mutator->Below(method.corpus.size())] : mutator->Next();
    return client->Call(method.name, request).ok();
  }

  const std::vector<Target> targets_;
  const Metadata metadata_;
  uint64_t seed_;
  bool spares_work_of_others_ = false;
  std::atomic<int64_t> calls_{0}, answered_{0}, left_{0};
};

// A ps and a worker that trains, each in a process of its own.
class SoakTest : public ::testing::Test {
 protected:
  SoakTest() { std::printf("MILLRACE_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed_)); }

  void Start(const std::map<std::string, std::string>& environment, const Metadata& metadata) {
    for (const char* job : {"ps", "worker"}) {
      std::map<std::string, std::string> env = environment;
      env["TF_CONFIG"] = TfConfig(ports_, job, 0);
      env["MILLRACE_SOAK_LINGER_MS"] = absl::StrCat(absl::ToInt64Milliseconds(linger_));
      ASSERT_OK_AND_ASSIGN(processes_[job], Process::Start({.name = job,
                                                            .program = "tests/cluster/soak_task",
                                                            .env = std::move(env)}));
      ASSERT_OK(processes_[job]->WaitForLine("listens on", kGuard).status());
    }
    const absl::Time guard = absl::Now() + kGuard;
    while (Look("worker").steps < 100 && absl::Now() < guard && !HasFailure()) continue;
    for (const char* job : {"ps", "worker"}) {
      ASSERT_NO_FATAL_FAILURE(FindTarget(job, metadata));
      before_[job] = Look(job);
    }
  }
  void FindTarget(const std::string& job, const Metadata& metadata) {
    Target target;
    target.address = absl::StrCat("localhost:", job == "ps" ? ports_.ps[0] : ports_.worker[0]);
    RawClient client(target.address);
    client.SetMetadata(metadata);
    tensorflow::GetStatusResponse devices;
    const grpc::Status status = client.Call(absl::StrCat(kWorkerService, "GetStatus"),
                                            tensorflow::GetStatusRequest(), &devices);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_GT(devices.device_attributes_size(), 0);
    target.device = devices.device_attributes(0).name();
    target.incarnation = devices.device_attributes(0).incarnation();
    target.methods = MethodList(target).Take();
    targets_.push_back(std::move(target));
  }

  // What a task says of itself now.
  struct State {
    int64_t heap_bytes = 0;
    int64_t steps = 0;
  };
  State Look(const std::string& job) {
    Process* const process = processes_.at(job).get();
    size_t from = process->lines().size();
    const auto line = process->WaitForLine("soak-end", kGuard, &from);
    EXPECT_OK(line.status());
    State state;
    if (!line.ok()) return state;
    const std::vector<std::string> words = absl::StrSplit(*line, ' ');
    EXPECT_TRUE(words.size() == 4 && absl::SimpleAtoi(words[1], &state.heap_bytes) &&
                absl::SimpleAtoi(words[2], &state.steps))
        << *line;
    return state;
  }

  // Half of the time each method alone, then all.
  void Soak(Strangers* strangers, absl::Duration time) {
    const size_t n = strangers->num_methods();
    const int64_t steps = Look("worker").steps;
    for (size_t i = 0; i <= n && !HasFailure(); ++i) {
      strangers->Call(i, time / 2 / static_cast<int64_t>(n + 1));
    }
    strangers->Call(n + 1, time / 2);
    EXPECT_GT(Look("worker").steps, steps);  // it trains on
    std::printf("%lld calls, %lld of them answered well\n",
                static_cast<long long>(strangers->calls()),
                static_cast<long long>(strangers->answered()));
    EXPECT_GT(strangers->calls(), 0);
  }
  void ExpectLittleLeft() {
    const absl::Time linger_over = absl::Now() + linger_, guard = linger_over + kGuard;
    for (const char* job : {"ps", "worker"}) {
      const int64_t steps = Look(job).steps;
      State now = Look(job);
      const int64_t at_the_end = now.heap_bytes;
      const int64_t most = before_[job].heap_bytes + kMaxGrowth;
      while ((absl::Now() < linger_over || now.heap_bytes > most) && absl::Now() < guard &&
             !HasFailure()) {
        now = Look(job);
      }
      std::printf("%s: %lld KiB in use before, %lld after, %lld when nobody has used it\n", job,
                  static_cast<long long>(before_[job].heap_bytes >> 10),
                  static_cast<long long>(at_the_end >> 10),
                  static_cast<long long>(now.heap_bytes >> 10));
      EXPECT_LE(now.heap_bytes, most) << job;
      if (std::string(job) == "worker") {
        EXPECT_GT(now.steps, steps);
      }
      EXPECT_FALSE(processes_[job]->exit_code().has_value()) << processes_[job]->output();
    }
  }

  const absl::Duration time_ = absl::Seconds(FromEnvironment("MILLRACE_SOAK_SECONDS", 12));
  const absl::Duration linger_ = std::clamp(time_ / 6, absl::Seconds(2), absl::Seconds(30));
  const uint64_t seed_ = static_cast<uint64_t>(
      FromEnvironment("MILLRACE_FUZZ_SEED", static_cast<int64_t>(RandomUint64() >> 1)));
  const ClusterPorts ports_ = FreeClusterPorts(1, 0, 1);
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::map<std::string, State> before_;
  std::vector<Target> targets_;
};

TEST_F(SoakTest, AnOpenClusterKeepsLittleOfItsStrangers) {
  ASSERT_NO_FATAL_FAILURE(Start({}, {}));
  Strangers strangers(targets_, {}, seed_);
  Soak(&strangers, time_ / 2);
  // Refused calls alone would leave nothing.
  EXPECT_GT(strangers.answered(), 100);
  ExpectLittleLeft();
}

TEST_F(SoakTest, AClusterWithATokenKeepsLittleOfStrangersAndOfMembers) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/soak_token_", ::getpid());
  WriteTestFile(path, kToken, 0600);
  const Metadata shown = {{kTokenKey, absl::StrCat(kTokenPrefix, kToken)}};
  ASSERT_NO_FATAL_FAILURE(Start({{"MILLRACE_TOKEN_FILE", path}}, shown));
  Strangers strangers(targets_, {}, seed_);
  Soak(&strangers, time_ / 4);
  EXPECT_EQ(strangers.answered(), 0);
  Strangers members(targets_, shown, seed_);
  members.SpareTheWorkOfOthers();
  Soak(&members, time_ / 4);
  EXPECT_GT(members.answered(), 100);
  ExpectLittleLeft();
}

}  // namespace
}  // namespace millrace
