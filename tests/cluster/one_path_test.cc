// SPDX-License-Identifier: Apache-2.0
//
// A session of this process and one on a cluster are one thing to their user: each case runs in
// this process, on a cluster whose master is in this process, and on one behind a network, and must
// end with the same values, or with the same code and text.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/grpc_session.h"
#include "distributed/server.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/control/control_flow.h"
#include "ops/math/cwise_binary.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"

// covers: steps: one process and a cluster agree in code and text on names, feeds, fetches and
//   errors

namespace millrace {
namespace {

std::unique_ptr<Server> StartServer() {
  // Ports may be taken by others between the choice and the start.
  for (int tries = 0; tries < 3; ++tries) {
    ClusterPorts ports = FreeClusterPorts(0, 0, 1);
    ports.host = "127.0.0.1";
    auto config = ClusterConfig::Parse(TfConfig(ports, "worker", 0));
    EXPECT_OK(config);
    auto server = Server::Start(*config);
    if (server.ok()) return *std::move(server);
  }
  return nullptr;
}

// x [?,2], old (a scalar's shape), sum = x + two, both = x + other, dead, group.
tensorflow::GraphDef TestedGraph(int producer) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 2});
  const Output other = Placeholder(root.WithName("other"), DT_FLOAT);
  const Output two = Const(root.WithName("two"), {2.f, 2.f});
  const Output sum = Add(root.WithName("sum"), x, two);
  Identity(root.WithName("after"), sum);
  Add(root.WithName("both"), x, other);
  Identity(root.WithName("old_sum"),
           Placeholder(root.WithName("old"), DT_FLOAT, PartialShape::Scalar()));
  const BuiltNode branch = NodeBuilder(root.WithName("switch"), "Switch")
                               .Input(two)
                               .Input(Const(root.WithName("no"), false))
                               .Finish();
  Identity(root.WithName("live"), branch.output(0));
  Identity(root.WithName("dead"), branch.output(1));
  Group(root.WithName("group"), {sum.op()});
  auto def = root.ToGraphDef();
  EXPECT_OK(def);
  def->mutable_versions()->set_producer(producer);
  return *std::move(def);
}

struct Case {
  const char* name;
  std::vector<Feed> feeds;
  std::vector<FetchName> fetches;
  std::vector<FetchName> targets = {};
  // Of the error; OK cases compare values.
  absl::StatusCode code = absl::StatusCode::kOk;
  const char* text = "";
  int producer = kGraphVersion;
  int inter_op_thread_pool = 0;
};

std::vector<Case> Cases() {
  using absl::StatusCode;
  const Tensor x = TensorOf<float>({1, 2}, {1, 2});
  const Tensor vector = TensorOf<float>({2}, {5, 6});
  const Tensor three = TensorOf<float>({3}, {5, 6, 7});
  const Tensor ints = TensorOf<int32_t>({1, 2}, {1, 2});
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  return {
      {"a fetch", {{"x", x}}, {"sum"}},
      {"order and duplicates", {{"other", x}, {"x:0", x}}, {"two", "sum:0", "both", "two:0"}},
      {"an operation that is fetched", {{"x", x}}, {"group", "sum"}},
      {"an operation alone", {{"x", x}}, {"group"}},
      {"a target by the name of a tensor", {{"x", x}}, {}, {"sum:0"}},
      {"a fed tensor that is fetched", {{"x", x}}, {"x", "sum", "x:0"}},
      {"fetching what was only fed", {{"x", x}, {"two", vector}}, {"two", "x"}},
      {"an intermediate that is fed", {{"sum", x}}, {"after"}},
      {"a constant that is fed", {{"two", vector}, {"x", x}}, {"sum"}},
      {"the taken branch", {}, {"live"}},
      {"an old placeholder takes any shape",
       {{"old", vector}},
       {"old_sum"},
       {},
       StatusCode::kOk,
       "",
       21},
      {"a scalar's placeholder takes scalars only",
       {{"old", vector}},
       {"old_sum"},
       {},
       kInvalid,
       "Cannot feed value of shape [2] for Tensor 'old:0', which has shape []"},
      {"shape of a fed intermediate",
       {{"sum", three}},
       {"after"},
       {},
       kInvalid,
       "Cannot feed value of shape [3] for Tensor 'sum:0', which has shape [?,2]"},
      {"shape of a fed constant",
       {{"two", three}, {"x", x}},
       {"sum"},
       {},
       kInvalid,
       "Cannot feed value of shape [3] for Tensor 'two:0', which has shape [2]"},
      {"shape of a placeholder",
       {{"x", vector}},
       {"sum"},
       {},
       kInvalid,
       "Cannot feed value of shape [2] for Tensor 'x:0', which has shape [?,2]; it is one row: did "
       "you forget the batch dimension, as in [1,2]?"},
      {"dtype of a feed",
       {{"x", ints}},
       {"sum"},
       {},
       kInvalid,
       "Cannot feed value of type int32 for Tensor 'x:0', which has type float"},
      {"dtype of a feed that is only fetched",
       {{"x", ints}},
       {"x"},
       {},
       kInvalid,
       "Cannot feed value of type int32 for Tensor 'x:0', which has type float"},
      {"the first wrong feed is named",
       {{"x", vector}, {"other", ints}},
       {"both"},
       {},
       kInvalid,
       "Tensor 'x:0'"},
      {"an empty feed",
       {{"x", Tensor()}},
       {"sum"},
       {},
       kInvalid,
       "Cannot feed Tensor 'x:0' without a value, got an empty Tensor"},
      {"fed twice",
       {{"x", x}, {"x:0", x}},
       {"sum"},
       {},
       kInvalid,
       "Endpoint \"x:0\" fed more than once."},
      {"nothing", {}, {}, {}, kInvalid, "Must specify at least one target to fetch or execute."},
      {"unknown feed",
       {{"nobody", x}},
       {"two"},
       {},
       StatusCode::kNotFound,
       "FeedInputs: unable to find feed output nobody:0"},
      {"unknown feed that is fetched",
       {{"nobody", x}},
       {"nobody"},
       {},
       StatusCode::kNotFound,
       "FeedInputs: unable to find feed output nobody:0"},
      {"output of a feed",
       {{"x:1", x}},
       {"two"},
       {},
       kInvalid,
       "FeedInputs: x:1 should have output index < 1"},
      {"a control edge that is fed",
       {{"^x", x}},
       {"^x"},
       {},
       kInvalid,
       "Feed '^x' must name a tensor, got a control edge"},
      {"unknown fetch",
       {},
       {"nobody"},
       {},
       StatusCode::kNotFound,
       "FetchOutputs node nobody:0: not found"},
      {"output of a fetch",
       {},
       {"two:7"},
       {},
       kInvalid,
       "FetchOutputs two:7: output index too large, must be < 1"},
      {"unknown targets",
       {},
       {},
       {"nobody", "gone"},
       StatusCode::kNotFound,
       "PruneForTargets: Some target nodes not found: gone, nobody"},
      {"malformed name", {}, {"x:y"}, {}, kInvalid, "x:y"},
      {"dead fetch",
       {},
       {"two", "dead", "dead:0"},
       {},
       kInvalid,
       "Retval[0] does not have value. The tensor returned for dead:0 was not valid."},
      {"a placeholder that is not fed",
       {},
       {"sum"},
       {},
       kInvalid,
       "You must feed a value for placeholder tensor 'x' with dtype float"},
      {"a kernel's error", {{"x", x}, {"other", three}}, {"both"}, {}, kInvalid, "'both'"},
      {"a thread pool that is not there",
       {{"x", x}},
       {"sum"},
       {},
       kInvalid,
       "Invalid inter_op_thread_pool: 5",
       kGraphVersion,
       5},
  };
}

// A cluster says which task had the error.
std::string WithoutTask(const Status& status) {
  absl::string_view text = status.message();
  if (absl::ConsumePrefix(&text, "From /job:worker/replica:0/task:0:\n")) return std::string(text);
  return std::string(status.message());
}

class OnePathTest : public ::testing::Test {
 protected:
  OnePathTest() : server_(StartServer()) {}

  enum Kind { kLocal, kOwnMaster, kNetwork };
  std::unique_ptr<Session> NewSessionOf(Kind kind, const tensorflow::GraphDef& graph) {
    SessionOptions options;
    options.creation_timeout = absl::Seconds(30);
    if (kind != kLocal) options.target = server_->target();
    const std::string address(absl::StripPrefix(server_->target(), "grpc://"));
    if (kind == kNetwork) UnregisterLocalMaster(address);
    auto session = NewSession(options);
    EXPECT_OK(session);
    if (!session.ok()) return nullptr;
    EXPECT_OK((*session)->Extend(graph));
    return *std::move(session);
  }

  const std::unique_ptr<Server> server_;
};

TEST_F(OnePathTest, EachCaseEndsInOneWayWhereverItRuns) {
  ASSERT_NE(server_, nullptr);
  const std::vector<Case> cases = Cases();
  struct Ended {
    Status status;
    std::vector<Tensor> values;
  };
  std::map<std::string, Ended> expected;
  for (const Kind kind : {kLocal, kOwnMaster, kNetwork}) {
    std::map<int, std::unique_ptr<Session>> sessions;
    for (const Case& c : cases) {
      for (const bool prepared : {false, true}) {
        if (prepared && c.inter_op_thread_pool != 0 && kind == kNetwork) continue;  // do not travel
        SCOPED_TRACE(absl::StrCat(c.name, prepared ? ", prepared" : "", ", kind ", kind));
        std::unique_ptr<Session>& session = sessions[c.producer];
        if (session == nullptr) session = NewSessionOf(kind, TestedGraph(c.producer));
        ASSERT_NE(session, nullptr);
        tensorflow::RunOptions options;
        options.set_inter_op_thread_pool(c.inter_op_thread_pool);
        StatusOr<std::vector<Tensor>> out;
        if (prepared) {
          auto step = session->Prepare(NamesOf(c.feeds, c.fetches, c.targets));
          std::vector<Tensor> values;
          for (const Feed& feed : c.feeds) values.push_back(feed.value);
          out = step.ok() ? (*step)->Run(options, values, nullptr) : step.status();
        } else {
          out = session->Run(options, c.feeds, c.fetches, c.targets, nullptr);
        }
        EXPECT_EQ(out.status().code(), c.code) << out.status();
        EXPECT_TRUE(absl::StrContains(out.status().message(), c.text)) << out.status();
        const auto [it, first] = expected.emplace(c.name, Ended());
        if (first) {
          it->second.status = out.status();
          if (out.ok()) it->second.values = *out;
          continue;
        }
        EXPECT_EQ(WithoutTask(out.status()), it->second.status.message());
        if (!out.ok()) continue;
        ASSERT_EQ(out->size(), it->second.values.size());
        for (size_t i = 0; i < out->size(); ++i) {
          ExpectTensorEqual((*out)[i], it->second.values[i]);
        }
      }
    }
    for (const auto& [producer, session] : sessions) {
      auto step = session->Prepare({.feeds = {"x"}, .fetches = {"sum"}});
      ASSERT_OK(step);
      EXPECT_STATUS((*step)->Run({}), absl::StatusCode::kInvalidArgument,
                    "Run: the signature has 1 feeds, got 0 tensors");
      ASSERT_OK(session->Close());
      EXPECT_EQ((*step)->Run({}).status(), absl::CancelledError("Session has been closed."));
      EXPECT_EQ(session->Run({}, {"two"}).status(),
                absl::CancelledError("Session has been closed."));
      EXPECT_EQ(session->Prepare({.fetches = {"two"}}).status(),
                absl::CancelledError("Session has been closed."));
    }
  }
}

}  // namespace
}  // namespace millrace
