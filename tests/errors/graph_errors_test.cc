// SPDX-License-Identifier: Apache-2.0
//
// Bad graphs, feeds and variables, refused by a Session that stays usable.
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/import_export.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/indices.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/state/state.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"
#include "tests/errors/error_case.h"
#include "train/supervisor.h"

// covers: graphs: untrusted graphs are refused with where, what, rule and value

namespace millrace {
namespace {

using absl::StatusCode;

enum class Where { kOneProcess, kCluster };

// y = x + 1 over rows of 2, a table of 3 rows (initialised by "init"), and variables that nobody
// initialises; in one process, or with the variables on a parameter server behind gRPC.
class GraphErrors : public ::testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    SessionOptions options;
    Scope variables = root_;
    if (GetParam() == Where::kCluster) {
      StartServers();
      ASSERT_EQ(servers_.size(), 2u);
      options.target = servers_[1]->target();
      options.creation_timeout = absl::Seconds(30);
      variables = root_.WithDevice("/job:ps/task:0");
    }
    const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {-1, 2});
    const Output ids = Placeholder(root_.WithName("ids"), DT_INT32, {-1});
    const Output one = Const(root_.WithName("one"), 1.f);
    Add(root_.WithName("y"), x, one);
    table_ = VarHandleOp(variables.WithName("table"), DT_FLOAT, PartialShape({3, 2}));
    AssignVariableOp(root_.WithName("init"), table_,
                     Const(root_, TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6})));
    ReadVariableOp(root_.WithName("rows"), table_, DT_FLOAT);
    ResourceGather(root_.WithName("looked_up"), table_, ids, DT_FLOAT);
    ResourceScatterAdd(root_.WithName("scattered"), table_, ids,
                       Const(root_, TensorOf<float>({1, 2}, {10, 10})));
    const Output never = VarHandleOp(variables.WithName("never"), DT_FLOAT, PartialShape::Scalar());
    ReadVariableOp(root_.WithName("never_read"), never, DT_FLOAT);
    AssignAddVariableOp(root_.WithName("never_added"), never, one);
    const Output old = VariableV2(variables.WithName("old"), PartialShape::Scalar(), DT_FLOAT);
    Identity(root_.WithName("old_read"), old);
    ASSERT_OK_AND_ASSIGN(session_, NewSession(options));
    ASSERT_OK(session_->Extend(root_));
    ASSERT_OK(session_->Run({}, {}, {"init"}));
  }

  void StartServers() {
    // A port may be taken by others between the choice and the start.
    for (int tries = 0; tries < 3 && servers_.size() != 2; ++tries) {
      servers_.clear();
      ClusterPorts ports = FreeClusterPorts(1, 0, 1);
      ports.host = "127.0.0.1";
      for (const char* job : {"ps", "worker"}) {
        const auto config = ClusterConfig::Parse(TfConfig(ports, job, 0));
        ASSERT_OK(config.status());
        auto server = Server::Start(*config);
        if (server.ok()) servers_.push_back(*std::move(server));
      }
    }
  }

  // The next good call works, and nothing was changed.
  void ExpectStillGood() {
    const auto y = session_->Run({{"x", TensorOf<float>({1, 2}, {1, 2})}}, {"y", "rows"});
    ASSERT_OK(y.status());
    ExpectTensorEqual((*y)[0], TensorOf<float>({1, 2}, {2, 3}));
    ExpectTensorEqual((*y)[1], TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
  }

  std::vector<std::unique_ptr<Server>> servers_;
  Scope root_;
  Output table_;
  std::unique_ptr<Session> session_;
};

struct GraphCase {
  const char* name;
  const char* nodes;  // text of a GraphDef that is added to the session's graph
  const char* fetch;  // run when the graph is accepted
  WantedError want;
};

TEST_P(GraphErrors, GraphsAreRefusedWithNodeAndRule) {
  const std::vector<GraphCase> cases = {
      {"UnknownOp",
       "node { name: 'strange' op: 'MadeUpOp' input: 'one' }",
       "strange:0",
       {StatusCode::kUnimplemented, {"MadeUpOp", "strange"}}},
      {"CycleOfTwo",
       "node { name: 'a' op: 'Identity' input: 'b' attr { key: 'T' value { type: DT_FLOAT } } }"
       "node { name: 'b' op: 'Identity' input: 'a' attr { key: 'T' value { type: DT_FLOAT } } }",
       nullptr,
       {StatusCode::kInvalidArgument, {"cycle", "'a'", "'b'"}}},
      {"CycleOfOne",
       "node { name: 'a' op: 'Identity' input: 'a' attr { key: 'T' value { type: DT_FLOAT } } }",
       nullptr,
       {StatusCode::kInvalidArgument, {"cycle", "'a'"}}},
      {"CycleOfControlEdges",
       "node { name: 'a' op: 'NoOp' input: '^b' } node { name: 'b' op: 'NoOp' input: '^a' }",
       nullptr,
       {StatusCode::kInvalidArgument, {"cycle", "'a'", "'b'"}}},
      {"EdgeToOutputThatIsNotThere",
       "node { name: 'z' op: 'Identity' input: 'one:3' attr { key: 'T' value { type: DT_FLOAT } } "
       "}",
       nullptr,
       {StatusCode::kInvalidArgument, {"'z'", "'one:3'", "has 1 output"}}},
      {"EdgeToNodeThatIsNotThere",
       "node { name: 'z' op: 'Identity' input: 'nobody' attr { key: 'T' value { type: DT_FLOAT } } "
       "}",
       nullptr,
       {StatusCode::kInvalidArgument, {"'z'", "'nobody'"}}},
      {"ControlEdgeToNodeThatIsNotThere",
       "node { name: 'z' op: 'NoOp' input: '^nobody' }",
       nullptr,
       {StatusCode::kInvalidArgument, {"'z'", "'^nobody'"}}},
      {"NameTwice",
       "node { name: 'z' op: 'NoOp' } node { name: 'z' op: 'NoOp' }",
       nullptr,
       {StatusCode::kInvalidArgument, {"'z'", "unique"}}},
      {"EdgeOfWrongType",
       "node { name: 'z' op: 'Identity' input: 'one' attr { key: 'T' value { type: DT_INT32 } } }",
       nullptr,
       {StatusCode::kInvalidArgument, {"'z'", "int32", "float"}}},
      {"InputMissing",
       "node { name: 'z' op: 'Add' input: 'one' attr { key: 'T' value { type: DT_FLOAT } } }",
       nullptr,
       {StatusCode::kInvalidArgument, {"'z'", "2 inputs", "got 1"}}},
      {"AttrMissing",
       "node { name: 'z' op: 'Identity' input: 'one' }",
       nullptr,
       {StatusCode::kInvalidArgument, {"'z'", "'T'"}}},
  };
  for (const GraphCase& c : cases) {
    SCOPED_TRACE(c.name);
    const ExpectSoon soon;
    ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, ParseGraphDefText(c.nodes));
    Status status = session_->Extend(def);
    if (c.fetch != nullptr) {
      EXPECT_OK(status);  // an op that nobody runs is no error
      status = session_->Run({}, {c.fetch}).status();
    }
    ExpectError(status, c.want);
    ExpectStillGood();
  }
}

// A call of `function` with `one`.
std::string NodeThatCalls(const std::string& name, const std::string& function,
                          const std::string& tout = "DT_FLOAT") {
  return absl::StrCat("node { name: '", name, "' op: 'PartitionedCall' input: 'one' ",
                      "attr { key: 'Tin' value { list { type: DT_FLOAT } } } ",
                      "attr { key: 'Tout' value { list { type: ", tout, " } } } ",
                      "attr { key: 'f' value { func { name: '", function, "' } } } } ");
}
// function(x: float) -> y: float, made by `nodes`; y is `result`.
std::string FunctionText(const std::string& name, const std::string& nodes,
                         const std::string& result = "n:y:0") {
  return absl::StrCat("library { function { signature { name: '", name,
                      "' input_arg { name: 'x' type: DT_FLOAT } ",
                      "output_arg { name: 'y' type: DT_FLOAT } } ", nodes,
                      " ret { key: 'y' value: '", result, "' } } } ");
}
std::string NodeInFunction(const std::string& op, const std::string& input) {
  return absl::StrCat("node_def { name: 'n' op: '", op, "' input: '", input,
                      "' attr { key: 'T' value { type: DT_FLOAT } } }");
}

TEST_P(GraphErrors, FunctionsAreRefusedWithCallAndRule) {
  struct Case {
    const char* name;
    std::string graph;
    const char* fetch;  // run when the graph is accepted
    WantedError want;
  };
  const std::vector<Case> cases = {
      {"NoSuchFunction",
       NodeThatCalls("a", "missing"),
       "a",
       {StatusCode::kNotFound, {"PartitionedCall 'a'", "Function 'missing'"}}},
      {"OtherResults",
       FunctionText("f1", NodeInFunction("Neg", "x")) + NodeThatCalls("b", "f1", "DT_INT32"),
       "b",
       {StatusCode::kInvalidArgument, {"PartitionedCall 'b'", "'f'", "float", "int32"}}},
      {"UnknownOpInside",
       FunctionText("f2", NodeInFunction("MadeUpOp", "x")) + NodeThatCalls("c", "f2"),
       "c",
       {StatusCode::kUnimplemented, {"PartitionedCall 'c'", "'f2'", "'n'", "MadeUpOp"}}},
      {"InputOfNobody",
       FunctionText("f3", NodeInFunction("Neg", "z")) + NodeThatCalls("d", "f3"),
       nullptr,
       {StatusCode::kInvalidArgument, {"Function 'f3'", "'n'", "input 0", "'z'"}}},
      {"ResultOfNobody",
       FunctionText("f4", NodeInFunction("Neg", "x"), "m:y:0") + NodeThatCalls("e", "f4"),
       nullptr,
       {StatusCode::kInvalidArgument, {"Function 'f4'", "output 'y'", "m:y:0"}}},
      {"Recursion",
       FunctionText("f5", NodeInFunction("f5", "x")),
       nullptr,
       {StatusCode::kInvalidArgument, {"must not call itself", "'f5'"}}},
      {"AnotherOfTheName",
       FunctionText("f1", NodeInFunction("Abs", "x")),
       nullptr,
       {StatusCode::kInvalidArgument, {"'f1'"}}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const ExpectSoon soon;
    ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, ParseGraphDefText(c.graph));
    Status status = session_->Extend(def);
    if (c.fetch != nullptr) {
      EXPECT_OK(status);
      status = session_->Run({}, {c.fetch}).status();
    }
    ExpectError(status, c.want);
    ExpectStillGood();
  }
}

struct StepCase {
  const char* name;
  std::vector<Feed> feeds;
  std::vector<FetchName> fetches, targets;
  WantedError want;
};

TEST_P(GraphErrors, StepsAreRefusedWithTensorAndValue) {
  const Tensor good = TensorOf<float>({1, 2}, {1, 2});
  const std::vector<StepCase> cases = {
      {"FeedOfWrongDtype",
       {{"x", TensorOf<int32_t>({1, 2}, {1, 2})}},
       {"y"},
       {},
       {StatusCode::kInvalidArgument, {"type int32", "'x:0'", "type float"}}},
      {"FeedOfWrongShape",
       {{"x", TensorOf<float>({1, 3}, {1, 2, 3})}},
       {"y"},
       {},
       {StatusCode::kInvalidArgument, {"shape [1,3]", "'x:0'", "[?,2]"}}},
      {"FeedOfWrongRank",
       {{"x", Tensor::Scalar<float>(1)}},
       {"y"},
       {},
       {StatusCode::kInvalidArgument, {"shape []", "'x:0'", "[?,2]"}}},
      {"FeedMissing",
       {},
       {"y"},
       {},
       {StatusCode::kInvalidArgument, {"must feed", "'x'", "float", "[?,2]"}}},
      {"FeedOfUnknownTensor",
       {{"nobody:0", good}},
       {"y"},
       {},
       {StatusCode::kNotFound, {"nobody:0"}}},
      {"FeedTwice",
       {{"x", good}, {"x:0", good}},
       {"y"},
       {},
       {StatusCode::kInvalidArgument, {"x:0", "more than once"}}},
      {"FetchOfUnknownTensor", {}, {"nobody:0"}, {}, {StatusCode::kNotFound, {"nobody"}}},
      {"FetchOfOutputThatIsNotThere", {}, {"one:7"}, {}, {StatusCode::kInvalidArgument, {"one:7"}}},
      {"UninitialisedVariable",
       {},
       {"never_read"},
       {},
       {StatusCode::kFailedPrecondition, {"ninitialized", "never", "[[{{node never_read}}]]"}}},
      {"UninitialisedVariableUpdated",
       {},
       {},
       {"never_added"},
       {StatusCode::kFailedPrecondition, {"ninitialized", "never"}}},
      {"UninitialisedRefVariable",
       {},
       {"old_read"},
       {},
       {StatusCode::kFailedPrecondition, {"uninitialized value old"}}},
      {"IdAboveTheTable",
       {{"ids", TensorOf<int32_t>({3}, {0, 2, 3})}},
       {"looked_up"},
       {},
       {StatusCode::kInvalidArgument,
        {"ResourceGather 'looked_up'", "indices[2] = 3 is not in [0, 3)"}}},
      {"IdBelowTheTable",
       {{"ids", TensorOf<int32_t>({1}, {-1})}},
       {"looked_up"},
       {},
       {StatusCode::kInvalidArgument, {"indices[0] = -1 is not in [0, 3)"}}},
      {"IdOfAnUpdateAboveTheTable",
       {{"ids", TensorOf<int32_t>({1}, {2147483647})}},
       {},
       {"scattered"},
       {StatusCode::kInvalidArgument, {"indices[0] = 2147483647 is not in [0, 3)"}}},
  };
  for (const StepCase& c : cases) {
    SCOPED_TRACE(c.name);
    for (int again = 0; again < 2; ++again) {
      const ExpectSoon soon;
      ExpectError(session_->Run(c.feeds, c.fetches, c.targets).status(), c.want);
      ExpectStillGood();
    }
  }
}

TEST_P(GraphErrors, AFailedStepNamesTheLineThatBuiltTheNode) {
  const Status status = session_->Run({}, {"never_read"}).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "; built at tests/errors/graph_errors_test.cc:"))
      << status;
}

TEST_P(GraphErrors, AnUpdateWithOneBadIdChangesNoRow) {
  ASSERT_OK_AND_ASSIGN(
      const tensorflow::GraphDef def,
      ParseGraphDefText(
          "node { name: 'more' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }"
          "node { name: 'bad_update' op: 'ResourceScatterAdd' input: 'table' input: 'ids'"
          "  input: 'more' attr { key: 'dtype' value { type: DT_FLOAT } }"
          "  attr { key: 'Tindices' value { type: DT_INT32 } } }"));
  ASSERT_OK(session_->Extend(def));
  ExpectError(session_
                  ->Run({{"ids", TensorOf<int32_t>({2}, {0, 5})},
                         {"more", TensorOf<float>({2, 2}, {9, 9, 9, 9})}},
                        {}, {"bad_update"})
                  .status(),
              {StatusCode::kInvalidArgument, {"indices[1] = 5 is not in [0, 3)"}});
  ExpectStillGood();
}

// In one process: on a cluster the buffers of calls are freed a little later.
class GraphMemory : public GraphErrors {};

TEST_P(GraphMemory, FailedStepsGiveTheirMemoryBack) {
  const auto fail = [this] {
    const Tensor ids = TensorOf<int32_t>({3}, {0, 2, 3});
    EXPECT_FALSE(session_->Run({{"ids", ids}}, {"looked_up"}).ok());
    EXPECT_FALSE(session_->Run({{"x", TensorOf<float>({1, 3}, {1, 2, 3})}}, {"y"}).ok());
    EXPECT_FALSE(session_->Run({}, {"never_read"}).ok());
  };
  for (int i = 0; i < 3; ++i) fail();
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  for (int i = 0; i < 200; ++i) fail();
  EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, before);
  ExpectStillGood();
}

std::string WhereName(const ::testing::TestParamInfo<Where>& info) {
  return info.param == Where::kCluster ? "Cluster" : "OneProcess";
}
INSTANTIATE_TEST_SUITE_P(Everywhere, GraphErrors,
                         ::testing::Values(Where::kOneProcess, Where::kCluster), WhereName);
INSTANTIATE_TEST_SUITE_P(Here, GraphMemory, ::testing::Values(Where::kOneProcess), WhereName);

TEST(LossErrors, TheGuardNamesTheStepOfALossThatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const struct {
    const char* name;
    Tensor loss;
    WantedError want;
  } cases[] = {
      {"Nan", Tensor::Scalar<float>(nan), {StatusCode::kInvalidArgument, {"got nan", "step 12"}}},
      {"Inf", Tensor::Scalar<float>(inf), {StatusCode::kInvalidArgument, {"got inf", "step 12"}}},
      {"MinusInf",
       Tensor::Scalar<double>(-std::numeric_limits<double>::infinity()),
       {StatusCode::kInvalidArgument, {"got -inf", "step 12"}}},
      {"OneOfABatch",
       TensorOf<float>({3}, {1, nan, 2}),
       {StatusCode::kInvalidArgument, {"got nan", "step 12"}}},
      {"OfWrongDtype",
       Tensor::Scalar<int32_t>(1),
       {StatusCode::kInvalidArgument, {"float or double", "int32"}}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    ExpectError(CheckLossIsFinite(c.loss, 12), c.want);
  }
  EXPECT_OK(CheckLossIsFinite(Tensor::Scalar<float>(1e30f), 12));
}

}  // namespace
}  // namespace millrace
