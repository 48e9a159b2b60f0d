// SPDX-License-Identifier: Apache-2.0
//
// Steps of servers over links, in one process: over loopback, and within the host where both
// servers want it, as they do unless they are told otherwise.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/two_servers.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_unary.h"
#include "runtime/session.h"

namespace millrace {
namespace {

int64_t CallsOf(const std::map<std::string, int64_t>& calls, const std::string& name) {
  int64_t sum = 0;
  for (const auto& [method, n] : calls) {
    if (method.size() >= name.size() &&
        method.compare(method.size() - name.size(), name.size(), name) == 0) {
      sum += n;
    }
  }
  return sum;
}

// MILLRACE_LINK_SHARED_BYTES would take the place of what a test says in limits.
class WithoutSharedBytesOfEnvironment {
 public:
  WithoutSharedBytesOfEnvironment() {
    const char* const value = std::getenv("MILLRACE_LINK_SHARED_BYTES");
    if (value != nullptr) kept_ = value;
    ::unsetenv("MILLRACE_LINK_SHARED_BYTES");
  }
  ~WithoutSharedBytesOfEnvironment() {
    ::setenv("MILLRACE_LINK_SHARED_BYTES", kept_.c_str(), 1);  // empty: as not set
  }

 private:
  std::string kept_;
};

TEST(ServerLinksTest, AServerMakesStepsWithoutCalls) {
  TwoServers servers;
  const SmallModel model = MakeSmallModel();
  ASSERT_OK_AND_ASSIGN(const auto session, servers.NewSession(model.root));
  ASSERT_OK(session->Run({}, {}, {model.init}));
  const std::vector<Feed> batch = SmallModelBatch(model);
  ASSERT_OK(session->Run(batch, {}, {model.train}));
  const auto before = RpcCallsBegun();
  for (int i = 0; i < 20; ++i) EXPECT_OK(session->Run(batch, {model.loss}, {model.train}));
  const auto calls = CallsSince(before);
  EXPECT_EQ(CallsOf(calls, "/RunGraph"), 0);
  EXPECT_EQ(CallsOf(calls, "/RecvTensor"), 0);
}

// covers: clusters: two tasks of one host carry their steps over a Unix socket when both want it,
//   else over the network, with the same values
TEST(ServerLinksTest, ServersOfAHostExchangeStepsOverAUnixSocket) {
  const struct {
    bool ps, worker;
  } cases[] = {{true, true}, {true, false}, {false, true}, {false, false}};
  std::vector<Tensor> first;  // values of the first case
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat("ps ", c.ps, " worker ", c.worker));
    TwoServers servers({.unix_links = c.ps}, {.unix_links = c.worker});
    const bool both = c.ps && c.worker;
    const auto sent = [&] {
      return CountsOf(servers.ps()).messages("Connect") +
             CountsOf(servers.worker()).messages("Connect");
    };
    const SmallModel model = MakeSmallModel();
    auto session = servers.NewSession(model.root);
    ASSERT_OK(session);
    EXPECT_EQ(CountsOf(servers.ps()).unix_links, 0);  // a link is dialled when a step needs it
    ASSERT_OK((*session)->Run({}, {}, {model.init}));
    const std::vector<Feed> batch = SmallModelBatch(model);
    ASSERT_OK((*session)->Run(batch, {}, {model.train}));
    EXPECT_EQ(CountsOf(servers.ps()).unix_links, both ? 1 : 0);
    EXPECT_EQ(CountsOf(servers.worker()).unix_links, both ? 1 : 0);
    const int64_t before = sent();
    for (int i = 0; i < 20; ++i) ASSERT_OK((*session)->Run(batch, {model.loss}, {model.train}));
    if (both) {
      EXPECT_LT(sent() - before, 10);  // signs of life, when the machine is slow
    } else {
      EXPECT_GE(sent() - before, 20);
    }
    ASSERT_OK_AND_ASSIGN(const auto values, (*session)->Run({}, {model.w.value, model.b.value}));
    ASSERT_EQ(values.size(), 2u);
    if (first.empty()) first = values;
    for (size_t i = 0; i < 2; ++i) ExpectTensorEqual(values[i], first[i]);
  }
}

class ServerLinksOfAKindTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Wires, ServerLinksOfAKindTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Unix" : "Grpc"; });

TEST_P(ServerLinksOfAKindTest, TensorsAboveAFrameTravelWhole) {
  TwoServers servers({}, {.unix_links = GetParam()});
  const Scope root;
  const Scope on_worker = root.WithDevice("/job:worker/task:0");
  const Output x = Placeholder(on_worker.WithName("x"), DT_FLOAT, {-1});
  const Output there = Identity(root.WithDevice("/job:ps/task:0"), x);
  const Output back = Identity(on_worker, there);
  auto session = servers.NewSession(root);
  ASSERT_OK(session);
  std::vector<float> values(1'000'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor large = Tensor::Vector<float>(values);
  ASSERT_OK_AND_ASSIGN(const auto out, (*session)->Run({{x, large}}, {back}));
  ExpectTensorEqual(out[0], large);
}

// covers: clusters: large tensors of two servers of a host go through shared memory when both have
//   it, with the same values
TEST(ServerLinksTest, LargeTensorsOfServersOfAHostGoThroughSharedMemory) {
  const WithoutSharedBytesOfEnvironment limits_hold;
  const struct {
    int64_t ps, worker;
  } cases[] = {{64 << 20, 64 << 20}, {64 << 20, 0}, {0, 64 << 20}, {0, 0}};
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat("ps ", c.ps, " worker ", c.worker));
    ServerOptions ps, worker;
    ps.unix_links = worker.unix_links = true;
    ps.limits.max_link_shared_bytes = c.ps;
    worker.limits.max_link_shared_bytes = c.worker;
    TwoServers servers(ps, worker);
    const Scope root;
    const Scope on_worker = root.WithDevice("/job:worker/task:0");
    const Scope on_ps = root.WithDevice("/job:ps/task:0");
    const Output x = Placeholder(on_worker.WithName("x"), DT_FLOAT, {-1});
    const Output ids = Placeholder(on_worker.WithName("ids"), DT_INT64, {-1});
    const Output x_back = Identity(on_worker, Identity(on_ps, x));
    const Output ids_back = Identity(on_worker, Identity(on_ps, ids));
    auto session = servers.NewSession(root);
    ASSERT_OK(session);
    Tensor large = *Tensor::Zeros(DT_FLOAT, Shape{300'000});
    Tensor wide = *Tensor::Zeros(DT_INT64, Shape{50'000});
    constexpr int kSteps = 5;
    for (int step = 0; step < kSteps; ++step) {
      large.mutable_flat<float>().back() = static_cast<float>(step);
      wide.mutable_flat<int64_t>().back() = (int64_t{1} << 40) + step;
      ASSERT_OK_AND_ASSIGN(const auto out,
                           (*session)->Run({{x, large}, {ids, wide}}, {x_back, ids_back}));
      ExpectTensorEqual(out[0], large);
      ExpectTensorEqual(out[1], wide);
    }
    const int64_t from_ps = CountsOf(servers.ps()).pooled_tensors;
    const int64_t from_worker = CountsOf(servers.worker()).pooled_tensors;
    if (c.ps > 0 && c.worker > 0) {
      // Two tensors a step each way; all of them have 8 MB, and find room.
      EXPECT_EQ(from_ps, 2 * kSteps);
      EXPECT_EQ(from_worker, 2 * kSteps);
    } else {
      EXPECT_EQ(from_ps, 0);
      EXPECT_EQ(from_worker, 0);
    }
  }
}

TEST(ServerLinksTest, WhatFindsNoRoomInSharedMemoryGoesThroughTheSocketAndIsCounted) {
  const WithoutSharedBytesOfEnvironment limits_hold;
  ServerOptions ps, worker;
  ps.unix_links = worker.unix_links = true;
  ps.limits.max_link_shared_bytes = worker.limits.max_link_shared_bytes = 1 << 20;
  TwoServers servers(ps, worker);
  const Scope root;
  const Scope on_worker = root.WithDevice("/job:worker/task:0");
  const Output x = Placeholder(on_worker.WithName("x"), DT_FLOAT, {-1});
  const Output back = Identity(on_worker, Identity(root.WithDevice("/job:ps/task:0"), x));
  auto session = servers.NewSession(root);
  ASSERT_OK(session);
  Tensor large = *Tensor::Zeros(DT_FLOAT, Shape{300'000});  // more than all that is shared
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps; ++step) {
    large.mutable_flat<float>().back() = static_cast<float>(step);
    ASSERT_OK_AND_ASSIGN(const auto out, (*session)->Run({{x, large}}, {back}));
    ExpectTensorEqual(out[0], large);
  }
  for (const Server* const server : {&servers.ps(), &servers.worker()}) {
    EXPECT_EQ(CountsOf(*server).pooled_tensors, 0);
    EXPECT_EQ(CountsOf(*server).pooled_bytes, 0);
    // One tensor a step each way.
    EXPECT_EQ(CountsOf(*server).unpooled_tensors, kSteps);
  }
}

// Kernels that work in the memory of their input take another one for what came to be read.
TEST(ServerLinksTest, NothingIsWrittenWhereItCame) {
  const WithoutSharedBytesOfEnvironment limits_hold;
  ServerOptions ps, worker;
  ps.unix_links = worker.unix_links = true;
  ps.limits.max_link_shared_bytes = worker.limits.max_link_shared_bytes = 64 << 20;
  TwoServers servers(ps, worker);
  const Scope root;
  const Scope on_worker = root.WithDevice("/job:worker/task:0");
  const Scope on_ps = root.WithDevice("/job:ps/task:0");
  const Output x = Placeholder(on_worker.WithName("x"), DT_FLOAT, {-1});
  // Each node is the last to use its input, which came in shared memory.
  const Output there = Neg(on_ps, Identity(on_ps, x));
  const Output back = Neg(on_worker, Identity(on_worker, there));
  auto session = servers.NewSession(root);
  ASSERT_OK(session);
  Tensor large = *Tensor::Zeros(DT_FLOAT, Shape{100'000});
  for (int step = 0; step < 3; ++step) {
    large.mutable_flat<float>().front() = static_cast<float>(step);
    ASSERT_OK_AND_ASSIGN(auto out, (*session)->Run({{x, large}}, {back, there}));
    ExpectTensorEqual(out[0], large);
    // A fetched tensor may be written: not where it came.
    out[1].mutable_flat<float>()[0] = 7;
    EXPECT_EQ(out[0].flat<float>()[0], static_cast<float>(step));
  }
  EXPECT_GE(CountsOf(servers.ps()).pooled_tensors, 3);
}

TEST_P(ServerLinksOfAKindTest, LimitsOfAServerAreThoseOfItsLinks) {
  ServerOptions ps;
  ps.unix_links = GetParam();
  ps.limits.max_tensor_bytes = 1'000'000;
  TwoServers servers(ps);
  const Scope root;
  const Scope on_worker = root.WithDevice("/job:worker/task:0");
  const Output x = Placeholder(on_worker.WithName("x"), DT_FLOAT, {-1});
  const Output there = Identity(root.WithDevice("/job:ps/task:0"), x);
  const Output back = Identity(on_worker, there);
  auto session = servers.NewSession(root);
  ASSERT_OK(session);
  const auto run = [&](int64_t elements) {
    return (*session)->Run({{x, *Tensor::Zeros(DT_FLOAT, Shape{elements})}}, {back}).status();
  };
  EXPECT_OK(run(200'000));
  EXPECT_STATUS(run(300'000), absl::StatusCode::kResourceExhausted,
                "bytes of a tensor must be at most 1000000 (ServerLimits::max_tensor_bytes), got "
                "1200000");
  // The link goes on.
  EXPECT_OK(run(200'000));
}

// A master that was added when the parameter server ran already.
TEST(ServerLinksTest, AMasterThatAParameterServerDoesNotKnowHasALinkToIt) {
  const std::vector<int> ports = FreePorts(3);
  const std::string ps_address = absl::StrCat("\"127.0.0.1:", ports[0], "\"");
  const std::string worker_address = absl::StrCat("\"127.0.0.1:", ports[1], "\"");
  const auto ps_config = ClusterConfig::Parse(
      absl::StrCat("{\"cluster\": {\"ps\": [", ps_address, "], \"chief\": [\"127.0.0.1:", ports[2],
                   "\"]}, \"task\": {\"type\": \"ps\", \"index\": 0}}"));
  const auto worker_config = ClusterConfig::Parse(
      absl::StrCat("{\"cluster\": {\"ps\": [", ps_address, "], \"worker\": [", worker_address,
                   "]}, \"task\": {\"type\": \"worker\", \"index\": 0}}"));
  ASSERT_OK(ps_config);
  ASSERT_OK(worker_config);
  const auto ps = Server::Start(*ps_config);
  ASSERT_OK(ps);
  const auto worker = Server::Start(*worker_config);
  ASSERT_OK(worker);
  SessionOptions options;
  options.target = (*worker)->target();
  options.creation_timeout = absl::Seconds(30);
  auto session = NewSession(options);
  ASSERT_OK(session);
  const SmallModel model = MakeSmallModel();
  ASSERT_OK((*session)->Extend(model.root));
  ASSERT_OK((*session)->Run({}, {}, {model.init}));
  const auto before = RpcCallsBegun();
  ASSERT_OK_AND_ASSIGN(const auto values, (*session)->Run({}, {model.w.value, model.b.value}));
  EXPECT_EQ(CallsOf(CallsSince(before), "/RunGraph"), 0);
  for (const Tensor& value : values) ExpectTensorEqual(value, Tensor::Scalar(0.0f));
}

TEST_P(ServerLinksOfAKindTest, AServerThatStopsEndsTheStepsThatWaitForItAndIsNamed) {
  TwoServers servers({}, {.unix_links = GetParam()});
  SmallModel model = MakeSmallModel();
  const Output wait = TestWait(model.root.WithDevice("/job:ps/task:0"));
  const Output after =
      Identity(model.root.WithDevice("/job:worker/task:0").WithName("after"), wait);
  auto session = servers.NewSession(model.root);
  ASSERT_OK(session);
  ASSERT_OK((*session)->Run({}, {}, {model.init}));
  Status ended;
  std::thread step([&] { ended = (*session)->Run({}, {after}).status(); });
  absl::SleepFor(absl::Milliseconds(50));  // mostly it waits by now; it fails the same otherwise
  servers.ps().Stop();
  step.join();
  EXPECT_FALSE(ended.ok());
  EXPECT_NE(ended.message().find("/job:ps/replica:0/task:0"), absl::string_view::npos) << ended;
}

TEST(ServerLinksTest, WhatTheEnvironmentSaysMustBeKnown) {
  const char* const old = std::getenv("MILLRACE_WIRE");
  const std::string kept = old == nullptr ? "" : old;
  ::setenv("MILLRACE_WIRE", "calls", 1);
  const auto config = ClusterConfig::Parse(
      "{\"cluster\": {\"worker\": [\"127.0.0.1:0\"]}, \"task\": {\"type\": \"worker\", "
      "\"index\": 0}}");
  ASSERT_OK(config);
  EXPECT_STATUS(Server::Start(*config), absl::StatusCode::kInvalidArgument,
                "MILLRACE_WIRE must be 'links', 'unix' or 'grpc', got 'calls'");
  ::setenv("MILLRACE_WIRE", kept.c_str(), 1);
  ::setenv("MILLRACE_UNIX_LINKS", "pigeons", 1);
  EXPECT_STATUS(Server::Start(*config), absl::StatusCode::kInvalidArgument,
                "MILLRACE_UNIX_LINKS must be '0' or '1', got 'pigeons'");
  ::unsetenv("MILLRACE_UNIX_LINKS");
  const char* const shared = std::getenv("MILLRACE_LINK_SHARED_BYTES");
  const std::string kept_shared = shared == nullptr ? "" : shared;
  ::setenv("MILLRACE_LINK_SHARED_BYTES", "-1", 1);
  EXPECT_STATUS(Server::Start(*config), absl::StatusCode::kInvalidArgument,
                "MILLRACE_LINK_SHARED_BYTES must be >= 0, got '-1'");
  ::setenv("MILLRACE_LINK_SHARED_BYTES", kept_shared.c_str(), 1);
}

}  // namespace
}  // namespace millrace
