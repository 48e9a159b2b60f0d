// SPDX-License-Identifier: Apache-2.0
#include "runtime/session.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/fail_point.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/control/control_flow.h"
#include "ops/state/state.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/session/direct_session.h"
#include "runtime/testing/step_ops.h"

// covers: accidents: writing to a tensor that was fed or fetched changes no variable and no
//   constant
// covers: accidents: Run refuses an Output of another Scope; nodes added after Extend are taken up,
//   or reported as late in a session of several graphs
// covers: accidents: a session without a graph says that it must be extended first
// covers: accidents: a wrong name of a feed, fetch or target gets the nearest one as a hint
// covers: steps: the time limit of a Run covers compiling; the next Run finds what was compiled
// covers: steps: a kernel that drops its callback, calls it twice or never answers holds up neither
//   Run nor Close
// covers: steps: a step above `SessionOptions::max_step_bytes` fails and the next one works
// covers: steps: a kernel that never answers keeps its compute threads after its session ends, and
//   may answer on one of them
// covers: steps: errors: the first one wins, the node is named once, the line that built it follows

namespace millrace {
namespace {

using testing::SetAsyncHook;
using testing::SetHook;

BuiltNode ProbeNode(ScopeAt at, absl::string_view op, const std::string& hook,
                    const std::vector<Output>& inputs, int64_t outputs) {
  return NodeBuilder(at, op)
      .Input(absl::MakeConstSpan(inputs))
      .Attr("N", static_cast<int64_t>(inputs.size()))
      .Attr("M", outputs)
      .Attr("hook", hook)
      .Finish();
}
Output Sum(ScopeAt at, const std::vector<Output>& inputs) {
  return ProbeNode(at, "TestProbe", "sum", inputs, 1).output(0);
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    SetHook("sum", [this](KernelContext* ctx) -> Status {
      ++sums_;
      float sum = 0;
      for (int i = 0; i < ctx->num_inputs(); ++i) {
        for (const float value : ctx->input(i).flat<float>()) sum += value;
      }
      ctx->set_output(0, Tensor::Scalar<float>(sum));
      return absl::OkStatus();
    });
    SetHook("fail", [](KernelContext*) -> Status { return absl::DataLossError("wanted"); });
    SetAsyncHook("forever", [this](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
      CancellationManager::Token token;
      if (!ctx->cancellation()->Register(
              &token, [shared] { (*shared)(absl::CancelledError("waiting was cancelled")); })) {
        (*shared)(absl::CancelledError("waiting was cancelled"));
      }
      MutexLock lock(&mu_);
      ++waiting_;
      changed_.SignalAll();
    });
  }
  ~SessionTest() override {
    sessions_.clear();
    testing::ClearHooks();
  }

  Session* Make(const Scope& scope, const SessionOptions& options = {}) {
    StatusOr<std::unique_ptr<Session>> session = NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    sessions_.push_back(*std::move(session));
    const Status extended = sessions_.back()->Extend(scope);
    EXPECT_TRUE(extended.ok()) << extended;
    return sessions_.back().get();
  }
  void AwaitWaiting(int n) {
    MutexLock lock(&mu_);
    while (waiting_ < n) changed_.Wait(&mu_);
  }
  static float Value(const Tensor& t) { return t.scalar<float>(); }

  std::atomic<int> sums_{0};
  Mutex mu_;
  CondVar changed_;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Session>> sessions_;
};

// --- Feeds, fetches, targets ---------------------------------------------------------------------

TEST_F(SessionTest, ARunTakesUpTheNodesThatItsScopeHasGotSince) {
  Scope root;
  const Output a = Const(root.WithName("a"), 1.0f);
  Session* session = Make(root);
  const Output b = Sum(root.WithName("b"), {a, a});
  const Output c = Sum(root.WithName("c"), {b, a});
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {c, b, "a"}));
  EXPECT_EQ(out[0].scalar<float>(), 3);
  EXPECT_EQ(out[1].scalar<float>(), 2);
  // A feed and a target bring them, too, and by its name a node is found once it is here.
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  const Output y = Sum(root.WithName("y"), {x});
  EXPECT_STATUS(session->Run({{"x", Tensor::Scalar(5.0f)}}, {"y"}), absl::StatusCode::kNotFound,
                "FeedInputs: unable to find feed output x:0");
  ASSERT_OK_AND_ASSIGN(const auto fed, session->Run({{x, Tensor::Scalar(5.0f)}}, {"y"}));
  EXPECT_EQ(fed[0].scalar<float>(), 5);
  const Output last = Sum(root.WithName("last"), {y});
  EXPECT_OK(session->Run({{x, Tensor::Scalar(5.0f)}}, {}, {last.op()}));
  EXPECT_OK(session->Extend(root)) << "nothing is new";
}

TEST_F(SessionTest, OutputsOfAnotherScopeAreRefused) {
  Scope root, other;
  Const(root.WithName("a"), 1.0f);
  const Output a = Const(other.WithName("a"), 2.0f);
  Session* session = Make(root);
  const char* const rule =
      " must be of the graph that the session was extended with, got one of "
      "another Scope";
  EXPECT_STATUS(session->Run({}, {a}), absl::StatusCode::kInvalidArgument,
                absl::StrCat("Run: fetch 'a:0'", rule));
  EXPECT_STATUS(session->Run({{a, Tensor::Scalar(1.0f)}}, {"a"}),
                absl::StatusCode::kInvalidArgument, absl::StrCat("Run: feed 'a:0'", rule));
  EXPECT_STATUS(session->Run({}, {}, {a.op()}), absl::StatusCode::kInvalidArgument,
                absl::StrCat("Run: target 'a'", rule));
  EXPECT_STATUS(session->Run({}, {"a", Output()}), absl::StatusCode::kInvalidArgument,
                "Run: fetch 1 must be the output of a node or a node, got an invalid one");
  EXPECT_OK(session->Run({}, {"a"}));
  // An Extend that fails changes nothing of this.
  tensorflow::GraphDef bad;
  bad.add_node()->set_name("no op");
  EXPECT_FALSE(session->Extend(bad).ok());
  EXPECT_STATUS(session->Run({}, {a}), absl::StatusCode::kInvalidArgument, rule);
  const Output late = Const(root.WithName("late"), 4.0f);
  EXPECT_OK(session->Run({}, {late}));
}

TEST_F(SessionTest, ASessionDoesNotKeepTheGraphOfItsScope) {
  std::weak_ptr<Graph> graph;
  Session* session = nullptr;
  {
    Scope root;
    Const(root.WithName("a"), 3.0f);
    graph = root.graph()->weak_from_this();
    session = Make(root);
  }
  EXPECT_TRUE(graph.expired());
  EXPECT_OK(session->Run({}, {"a"}));
}

TEST_F(SessionTest, AnOutputCanBeFetchedWhenItsScopeIsGone) {
  Output a;
  Session* session = nullptr;
  {
    Scope root;
    a = Const(root.WithName("a"), 3.0f);
    session = Make(root);
  }
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {a}));
  EXPECT_EQ(out[0].scalar<float>(), 3);
}

TEST_F(SessionTest, NamesOfAnExtendedGraphDefMeanWhateverHasThem) {
  Scope root, other;
  Const(root.WithName("a"), 1.0f);
  const Output b = Const(other.WithName("b"), 2.0f);
  Session* session = Make(root);
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, other.ToGraphDef());
  ASSERT_OK(session->Extend(def));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {b, "a"}));
  EXPECT_EQ(out[0].scalar<float>(), 2);
}

TEST_F(SessionTest, MessagesNextToOneScopeDoNotKeepARunFromTakingUpItsNodes) {
  for (const bool message_first : {false, true}) {
    Scope root, other;
    Const(root.WithName("a"), 1.0f);
    Const(other.WithName("b"), 2.0f);
    ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, other.ToGraphDef());
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    if (message_first) {
      ASSERT_OK(session->Extend(def));
    }
    ASSERT_OK(session->Extend(root));
    if (!message_first) {
      ASSERT_OK(session->Extend(def));
    }
    for (int i = 0; i < 2; ++i) {
      const Output late = Const(root, 3.0f);
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {late, "b"}));
      EXPECT_EQ(out[0].scalar<float>(), 3);
    }
  }
}

TEST_F(SessionTest, ANodeThatASessionOfSeveralGraphsDoesNotHaveYetIsSaidToBeLate) {
  Scope root, other;
  const Output a = Const(root.WithName("a"), 1.0f);
  const Output b = Const(other.WithName("b"), 2.0f);
  Session* session = Make(root);
  ASSERT_OK(session->Extend(other));
  const Output c = Sum(root.WithName("c"), {a, a});
  const Output x = Placeholder(other.WithName("x"), DT_FLOAT, {});
  const char* const late =
      "' was added to its graph after this session was extended; call Extend again";
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  EXPECT_STATUS(session->Run({}, {b, c}), kNotFound, absl::StrCat("; 'c:0", late));
  EXPECT_STATUS(session->Run({}, {}, {c.op()}), kNotFound, absl::StrCat("; 'c", late));
  EXPECT_STATUS(session->Run({{x, Tensor::Scalar(1.0f)}}, {b}), kNotFound,
                absl::StrCat("; 'x:0", late));
  EXPECT_STATUS(session->Prepare({x}, {b}).status(), kNotFound, absl::StrCat("; 'x:0", late));
  // Not of names, and not of nodes that are there.
  const auto by_name = session->Run({}, {a, "c"});
  EXPECT_STATUS(by_name, kNotFound, "not found");
  EXPECT_FALSE(absl::StrContains(by_name.status().message(), "call Extend again"))
      << by_name.status();
  ASSERT_OK(session->Extend(root));
  EXPECT_OK(session->Run({}, {b, c}));
  // Who brings it as a message has brought it.
  const Output d = Const(other.WithName("d"), 3.0f);
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, other.ToGraphDef());
  ASSERT_OK(session->Extend(def));
  EXPECT_OK(session->Run({}, {d}));
}

TEST_F(SessionTest, PrepareTakesOutputsAsRunDoes) {
  Scope root, other;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  const Output foreign = Const(other.WithName("x"), 2.0f);
  Session* session = Make(root);
  const Output y = Sum(root.WithName("y"), {x, x});
  const Output z = Sum(root.WithName("z"), {y, x});
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({x}, {z, "y"}, {y.op()}));
  ASSERT_OK_AND_ASSIGN(const auto out, step->Run({Tensor::Scalar(5.0f)}));
  EXPECT_EQ(Value(out[0]), 15);
  EXPECT_EQ(Value(out[1]), 10);
  const char* const rule =
      " must be of the graph that the session was extended with, got one of another Scope";
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_STATUS(session->Prepare({foreign}, {z}).status(), kInvalid,
                absl::StrCat("Prepare: feed 'x:0'", rule));
  EXPECT_STATUS(session->Prepare({x}, {foreign}).status(), kInvalid,
                absl::StrCat("Prepare: fetch 'x:0'", rule));
  EXPECT_STATUS(session->Prepare({x}, {z}, {foreign.op()}).status(), kInvalid,
                absl::StrCat("Prepare: target 'x'", rule));
  EXPECT_STATUS(session->Prepare({x}, {Output()}).status(), kInvalid,
                "Prepare: fetch 0 must be the output of a node or a node, got an invalid one");
}

TEST_F(SessionTest, AWrongNameGetsTheNearestOne) {
  Scope root;
  const Output x = Placeholder(root.WithName("images"), DT_FLOAT, {});
  Sum(root.WithName("tower/loss"), {x});
  Session* session = Make(root);
  EXPECT_STATUS(session->Run({{"imgaes", Tensor::Scalar(1.0f)}}, {"tower/loss"}),
                absl::StatusCode::kNotFound, "imgaes:0; did you mean 'images'?");
  EXPECT_STATUS(session->Run({}, {"loss"}), absl::StatusCode::kNotFound,
                "not found; did you mean 'tower/loss'?");
  EXPECT_STATUS(session->Run({}, {}, {"Tower/Loss"}), absl::StatusCode::kNotFound,
                "not found: Tower/Loss; did you mean 'tower/loss'?");
}

TEST_F(SessionTest, WritingToWhatWasFetchedOrFedChangesNothingElse) {
  Scope root;
  const Output c = Const(root.WithName("c"), {1.0f, 2.0f});
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {2});
  const Output v = VarHandleOp(root.WithName("v"), DT_FLOAT, PartialShape({2}));
  const Operation assign = AssignVariableOp(root.WithName("assign"), v, x);
  const Output read = ReadVariableOp(root.WithName("read"), v, DT_FLOAT);
  Session* session = Make(root);
  Tensor fed = Tensor::Of({3.0f, 4.0f});
  ASSERT_OK(session->Run({{x, fed}}, {}, {assign}));
  fed.mutable_flat<float>()[0] = -1;
  for (int round = 0; round < 2; ++round) {
    ASSERT_OK_AND_ASSIGN(auto out, session->Run({}, {c, read}));
    ExpectTensorEqual(out[0], Tensor::Of({1.0f, 2.0f}));
    ExpectTensorEqual(out[1], Tensor::Of({3.0f, 4.0f}));
    for (Tensor& tensor : out) tensor.mutable_flat<float>()[1] = -1;
  }
}

TEST_F(SessionTest, RunsWhatAFetchNeeds) {
  Scope root;
  Output x = Placeholder(root, DT_FLOAT, {});
  Output y = Sum(root, {x, Const(root, 2.f)});
  Sum(root, {Placeholder(root, DT_FLOAT, {})});  // not needed, not fed
  Session* session = Make(root);
  auto out = session->Run({{x, Tensor::Scalar<float>(3)}}, {y});
  ASSERT_TRUE(out.ok()) << out.status();
  ASSERT_EQ(out->size(), 1u);
  EXPECT_EQ(Value((*out)[0]), 5);
  EXPECT_EQ(sums_, 1);
}

TEST_F(SessionTest, ResultsComeInTheOrderOfTheFetchesWithDuplicates) {
  Scope root;
  Output a = Const(root.WithName("a"), 1.f);
  Const(root.WithName("b"), 2.f);
  Output c = Const(root.WithName("c"), 3.f);
  Session* session = Make(root);
  auto out = session->Run({}, {c, a, "b", a, "c:0"});
  ASSERT_TRUE(out.ok()) << out.status();
  std::vector<float> values;
  for (const Tensor& t : *out) values.push_back(Value(t));
  EXPECT_EQ(values, (std::vector<float>{3, 1, 2, 1, 3}));
}

TEST_F(SessionTest, AnyTensorMayBeFed) {
  Scope root;
  Output c = Const(root.WithName("c"), 1.f);
  Output middle = Sum(root.WithName("middle"), {c, c});
  Output y = Sum(root, {middle, c});
  Session* session = Make(root);
  EXPECT_EQ(Value((*session->Run({}, {y}))[0]), 3);
  auto fed = session->Run({{"middle", Tensor::Scalar<float>(10)}}, {y});
  ASSERT_TRUE(fed.ok()) << fed.status();
  EXPECT_EQ(Value((*fed)[0]), 11);
  fed = session->Run({{c, Tensor::Scalar<float>(10)}}, {y});
  ASSERT_TRUE(fed.ok()) << fed.status();
  EXPECT_EQ(Value((*fed)[0]), 30);
}

TEST_F(SessionTest, AFedTensorThatIsFetchedIsReturned) {
  Scope root;
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  Output y = Sum(root, {x});
  Session* session = Make(root);
  auto out = session->Run({{"x", Tensor::Scalar<float>(4)}}, {"x:0", y, x});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(Value((*out)[0]), 4);
  EXPECT_EQ(Value((*out)[1]), 4);
  EXPECT_EQ(Value((*out)[2]), 4);
  sums_ = 0;
  out = session->Run({{x, Tensor::Scalar<float>(4)}}, {x});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(Value((*out)[0]), 4);
  EXPECT_EQ(sums_, 0);
}

TEST_F(SessionTest, OperationsAreRunAsTargetsOrFetches) {
  Scope root;
  Output y = Sum(root, {Const(root, 1.f)});
  Operation group = Group(root.WithName("group"), {y.op()});
  Session* session = Make(root);
  auto out = session->Run({}, {}, {group});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_TRUE(out->empty());
  out = session->Run({}, {"group", y});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->size(), 1u);
  EXPECT_EQ(sums_, 2);
}

TEST_F(SessionTest, VariablesOutliveSignatures) {
  Scope root;
  Output handle = VarHandleOp(root.WithName("v"), DT_FLOAT, PartialShape::Scalar());
  Output x = Placeholder(root, DT_FLOAT, {});
  Operation assign = AssignVariableOp(root, handle, x);
  Operation add = AssignAddVariableOp(root, handle, x);
  Output read = ReadVariableOp(root.WithName("read"), handle, DT_FLOAT);
  Session* session = Make(root);
  const Status uninitialized = session->Run({}, {read}).status();
  EXPECT_EQ(uninitialized.code(), absl::StatusCode::kFailedPrecondition) << uninitialized;
  EXPECT_TRUE(absl::StrContains(uninitialized.message(), "uninitialized")) << uninitialized;
  ASSERT_TRUE(session->Run({{x, Tensor::Scalar<float>(5)}}, {}, {assign}).ok());
  ASSERT_TRUE(session->Run({{x, Tensor::Scalar<float>(2)}}, {}, {add}).ok());
  EXPECT_EQ(Value((*session->Run({}, {read}))[0]), 7);
  // Another session has its own.
  Session* other = Make(root);
  EXPECT_FALSE(other->Run({}, {read}).ok());
}

// --- Errors --------------------------------------------------------------------------------------

TEST(SessionWithoutGraph, SaysThatItMustBeExtended) {
  constexpr char kText[] =
      "Session: must have a graph before it runs or prepares a step, got "
      "none; call Extend first";
  Scope root;
  const Output x = Const(root.WithName("x"), 1.0f);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  EXPECT_STATUS(session->Run({}, {x}), absl::StatusCode::kFailedPrecondition, kText);
  EXPECT_STATUS(session->Run({}, {"x"}), absl::StatusCode::kFailedPrecondition, kText);
  EXPECT_STATUS(session->Run({}, {}, {"init"}), absl::StatusCode::kFailedPrecondition, kText);
  EXPECT_STATUS(session->Prepare({.fetches = {"x:0"}}), absl::StatusCode::kFailedPrecondition,
                kText);
  // A graph without nodes is one.
  ASSERT_OK(session->Extend(Scope()));
  EXPECT_STATUS(session->Run({}, {"x"}), absl::StatusCode::kNotFound, "x:0: not found");
  ASSERT_OK(session->Extend(root));
  EXPECT_OK(session->Run({}, {x}).status());
}

struct ErrorCase {
  const char* name;
  std::vector<Feed> feeds;
  std::vector<FetchName> fetches, targets;
  absl::StatusCode code;
  const char* text;
};

TEST_F(SessionTest, ErrorsSayWhatIsWrong) {
  Scope root;
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 784});
  Sum(root.WithName("y"), {x});
  Output constant = Const(root.WithName("constant"), {1.f, 2.f});
  ProbeNode(root.WithName("bad"), "TestProbe", "fail", {}, 1);
  BuiltNode branch = NodeBuilder(root.WithName("switch"), "Switch")
                         .Input(constant)
                         .Input(Const(root, false))
                         .Finish();
  Identity(root.WithName("dead"), branch.output(1));
  NoOp(root.WithName("noop"));
  Session* session = Make(root);
  const Tensor good = *Tensor::Zeros(DT_FLOAT, *Shape::Make({2, 784}));
  const std::vector<ErrorCase> cases = {
      {"nothing",
       {},
       {},
       {},
       absl::StatusCode::kInvalidArgument,
       "Must specify at least one target to fetch or execute."},
      {"unknown fetch", {}, {"nobody"}, {}, absl::StatusCode::kNotFound, "nobody"},
      {"unknown target", {}, {}, {"nobody"}, absl::StatusCode::kNotFound, "nobody"},
      {"unknown feed", {{"nobody:0", good}}, {"y"}, {}, absl::StatusCode::kNotFound, "nobody"},
      {"unknown feed that is fetched",
       {{"nobody:0", good}},
       {"nobody"},
       {},
       absl::StatusCode::kNotFound,
       "nobody"},
      {"a control edge that is fed and fetched",
       {{"^x", good}},
       {"^x"},
       {},
       absl::StatusCode::kInvalidArgument,
       "Feed '^x' must name a tensor"},
      {"output index", {}, {"y:1"}, {}, absl::StatusCode::kInvalidArgument, "y:1"},
      {"fed twice",
       {{"x", good}, {"x:0", good}},
       {"y"},
       {},
       absl::StatusCode::kInvalidArgument,
       "Endpoint \"x:0\" fed more than once."},
      {"unfed placeholder",
       {},
       {"y"},
       {},
       absl::StatusCode::kInvalidArgument,
       "You must feed a value for placeholder tensor 'x' with dtype float and shape [?,784]"},
      {"dtype of a feed",
       {{"x", Tensor::Scalar<int32_t>(1)}},
       {"y"},
       {},
       absl::StatusCode::kInvalidArgument,
       "Cannot feed value of type int32 for Tensor 'x:0', which has type float"},
      {"shape of a feed",
       {{"x", Tensor::Scalar<float>(1)}},
       {"y"},
       {},
       absl::StatusCode::kInvalidArgument,
       "Cannot feed value of shape [] for Tensor 'x:0', which has shape [?,784]"},
      {"a row of a feed",
       {{"x", *Tensor::Zeros(DT_FLOAT, *Shape::Make({784}))}},
       {"y"},
       {},
       absl::StatusCode::kInvalidArgument,
       "Cannot feed value of shape [784] for Tensor 'x:0', which has shape [?,784]; it is one row: "
       "did you forget the batch dimension, as in [1,784]?"},
      {"shape of a fed constant",
       {{"constant", Tensor::Scalar<float>(1)}},
       {"dead"},
       {},
       absl::StatusCode::kInvalidArgument,
       "Cannot feed value of shape [] for Tensor 'constant:0', which has shape [2]"},
      {"empty feed", {{"x", Tensor()}}, {"y"}, {}, absl::StatusCode::kInvalidArgument, "x:0"},
      {"a kernel's error",
       {},
       {"bad"},
       {},
       absl::StatusCode::kDataLoss,
       "TestProbe 'bad': wanted\n\t [[{{node bad}}]]; built at runtime/session_test.cc:"},
      {"dead fetch",
       {},
       {"dead"},
       {},
       absl::StatusCode::kInvalidArgument,
       "Retval[0] does not have value"},
  };
  for (const ErrorCase& c : cases) {
    SCOPED_TRACE(c.name);
    for (int run = 0; run < 2; ++run) {
      const Status status = session->Run(c.feeds, c.fetches, c.targets).status();
      EXPECT_EQ(status.code(), c.code) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status;
    }
  }
  EXPECT_TRUE(session->Run({{"x", good}}, {"y"}).ok());
}

// What was compiled for several names must not be found for one name that looks like their list.
TEST_F(SessionTest, ANameWithSeparatorsIsNoListOfNames) {
  Scope root;
  Const(root.WithName("a"), 1.f);
  Const(root.WithName("b"), 2.f);
  Session* session = Make(root);
  ASSERT_TRUE(session->Run({}, {"a:0", "b:0"}).ok());
  ASSERT_TRUE(session->Run({}, {}, {"a", "b"}).ok());
  ASSERT_TRUE(session->Prepare({.fetches = {"a:0", "b:0"}}).ok());
  EXPECT_FALSE(session->Run({}, {"a:0,b:0"}).ok());
  EXPECT_FALSE(session->Run({}, {}, {"a,b"}).ok());
  EXPECT_FALSE(session->Run({}, {"a:0,/b"}).ok());
  EXPECT_FALSE(session->Prepare({.fetches = {"a:0,b:0"}}).ok());
}

TEST_F(SessionTest, AnUnknownOpIsNoErrorUntilItRuns) {
  StatusOr<std::unique_ptr<Session>> session = NewSession();
  ASSERT_TRUE(session.ok());
  tensorflow::GraphDef def;
  tensorflow::NodeDef* node = def.add_node();
  node->set_name("strange");
  node->set_op("MadeUpOp");
  node = def.add_node();
  node->set_name("plain");
  node->set_op("NoOp");
  ASSERT_TRUE((*session)->Extend(def).ok());
  EXPECT_TRUE((*session)->Run({}, {}, {"plain"}).ok());
  const Status status = (*session)->Run({}, {}, {"strange"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "MadeUpOp")) << status;
}

// --- Extend --------------------------------------------------------------------------------------

TEST_F(SessionTest, ExtendAddsNodesThatUseOldOnes) {
  Scope root;
  Output a = Const(root.WithName("a"), 1.f);
  Session* session = Make(root);
  EXPECT_EQ(Value((*session->Run({}, {a}))[0]), 1);
  Output b = Sum(root.WithName("b"), {a, a});
  ASSERT_TRUE(session->Extend(root).ok());  // the old nodes come again, unchanged
  EXPECT_EQ(Value((*session->Run({}, {b}))[0]), 2);

  tensorflow::GraphDef only_new;
  tensorflow::NodeDef* node = only_new.add_node();
  node->set_name("c");
  node->set_op("Identity");
  node->add_input("b:0");
  node->add_input("^a");
  (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
  ASSERT_TRUE(session->Extend(only_new).ok());
  EXPECT_EQ(Value((*session->Run({}, {"c"}))[0]), 2);
}

TEST_F(SessionTest, ExtendWithAnotherDefinitionOfANameIsRefused) {
  Scope root;
  Const(root.WithName("a"), 1.f);
  Session* session = Make(root);
  Scope other;
  Const(other.WithName("a"), 2.f);
  Const(other.WithName("new"), 3.f);
  const Status status = session->Extend(other);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "'a'")) << status;
  EXPECT_FALSE(session->Run({}, {"new"}).ok());
  EXPECT_EQ(Value((*session->Run({}, {"a"}))[0]), 1);
}

// --- Signatures ----------------------------------------------------------------------------------

TEST_F(SessionTest, PermutedSignaturesShareAPlan) {
  Scope root;
  Output x = Placeholder(root, DT_FLOAT, {});
  Output y = Placeholder(root, DT_FLOAT, {});
  Output twice = Sum(root, {x, x});
  Output both = Sum(root, {x, y});
  Session* session = Make(root);
  const Tensor one = Tensor::Scalar<float>(1), ten = Tensor::Scalar<float>(10);
  auto out = session->Run({{x, one}, {y, ten}}, {twice, both});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(Value((*out)[0]), 2);
  EXPECT_EQ(Value((*out)[1]), 11);
  out = session->Run({{y, ten}, {x, one}}, {both, twice});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(Value((*out)[0]), 11);
  EXPECT_EQ(Value((*out)[1]), 2);
  EXPECT_EQ(StatsOfDirectSession(*session)->compilations, 1);
}

TEST_F(SessionTest, TheCacheOfSignaturesIsBounded) {
  Scope root;
  std::vector<Output> constants;
  for (int i = 0; i < 20; ++i) constants.push_back(Const(root, static_cast<float>(i)));
  Session* session = Make(root, {.max_cached_plans = 4});
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(Value((*session->Run({}, {constants[static_cast<size_t>(i)]}))[0]), i);
      EXPECT_TRUE(session->Run({}, {constants[0]}).ok());
      EXPECT_LE(StatsOfDirectSession(*session)->cached_signatures, 4);
    }
  }
  // The one in use all the time was compiled once, the others in each round.
  EXPECT_EQ(StatsOfDirectSession(*session)->compilations, 1 + 2 * 19);
}

TEST_F(SessionTest, ASignatureThatIsRunAllTheTimeStays) {
  Scope root;
  const Output a = Const(root, 1.f), b = Const(root, 2.f), c = Const(root, 3.f);
  Session* session = Make(root, {.max_cached_plans = 2});
  const auto compilations = [&] { return StatsOfDirectSession(*session)->compilations; };
  EXPECT_EQ(Value((*session->Run({}, {a}))[0]), 1);
  EXPECT_EQ(Value((*session->Run({}, {b}))[0]), 2);
  EXPECT_EQ(Value((*session->Run({}, {a}))[0]), 1);
  EXPECT_EQ(compilations(), 2);
  EXPECT_EQ(Value((*session->Run({}, {c}))[0]), 3);  // instead of b
  EXPECT_EQ(Value((*session->Run({}, {a}))[0]), 1);
  EXPECT_EQ(compilations(), 3);
  EXPECT_EQ(Value((*session->Run({}, {b}))[0]), 2);
  EXPECT_EQ(compilations(), 4);
}

TEST_F(SessionTest, APreparedStepRunsWithoutNames) {
  Scope root;
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  Output y = Placeholder(root.WithName("y"), DT_FLOAT, {});
  Sum(root.WithName("sum"), {x, x, y});
  Session* session = Make(root);
  auto step = session->Prepare({.feeds = {"y", "x"}, .fetches = {"sum", "y"}});
  ASSERT_TRUE(step.ok()) << step.status();
  for (int i = 0; i < 3; ++i) {
    const std::vector<Tensor> feeds = {Tensor::Scalar<float>(1),
                                       Tensor::Scalar<float>(static_cast<float>(i))};
    auto out = (*step)->Run(feeds);
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(Value((*out)[0]), 2 * i + 1);
    EXPECT_EQ(Value((*out)[1]), 1);
  }
  EXPECT_EQ((*step)->Run({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session->Prepare({.fetches = {"nobody"}}).status().code(), absl::StatusCode::kNotFound);
  // By names it is the same signature.
  const std::optional<DirectSessionStats> before = StatsOfDirectSession(*session);
  EXPECT_TRUE(
      session->Run({{"y", Tensor::Scalar<float>(1)}, {"x", Tensor::Scalar<float>(1)}}, {"sum", "y"})
          .ok());
  EXPECT_EQ(StatsOfDirectSession(*session)->cached_signatures, before->cached_signatures);
  sessions_.clear();
  const std::vector<Tensor> feeds = {Tensor::Scalar<float>(1), Tensor::Scalar<float>(1)};
  EXPECT_EQ((*step)->Run(feeds).status().message(), "Session has been closed.");
}

// --- Time and threads ----------------------------------------------------------------------------

TEST_F(SessionTest, ATimeoutCancelsTheStep) {
  Scope root;
  Output never = ProbeNode(root, "TestProbeAsync", "forever", {}, 1).output(0);
  Session* session = Make(root);
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(20);
  const std::vector<FetchName> fetches = {never};
  Status status = session->Run(options, {}, fetches, {}, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "Timed out waiting for notification")) << status;

  SessionOptions session_options;
  session_options.config.operation_timeout_in_ms = 20;
  status = Make(root, session_options)->Run({}, {never}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST_F(SessionTest, APreparedStepEndsAtItsDeadline) {
  Scope root;
  Output never = ProbeNode(root, "TestProbeAsync", "forever", {}, 1).output(0);
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  ASSERT_OK_AND_ASSIGN(const auto step, Make(root)->Prepare({x}, {Sum(root, {x})}));
  ASSERT_OK_AND_ASSIGN(const auto waits, sessions_.back()->Prepare({}, {never}));
  std::vector<Tensor> results(1);
  EXPECT_STATUS(waits->RunInto({.deadline = absl::Now() + absl::Milliseconds(20)}, {},
                               absl::MakeSpan(results)),
                absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
  // Over before it begins: nothing runs.
  const int before = waiting_;
  EXPECT_STATUS(waits->RunInto({.deadline = absl::Now() - absl::Milliseconds(1)}, {},
                               absl::MakeSpan(results)),
                absl::StatusCode::kDeadlineExceeded, "its time was over before it began");
  EXPECT_EQ(waiting_, before);
  // One that is not reached changes nothing.
  const std::vector<Tensor> fed = {Tensor::Scalar(3.0f)};
  EXPECT_OK(
      step->RunInto({.deadline = absl::Now() + absl::Hours(1)}, fed, absl::MakeSpan(results)));
  EXPECT_EQ(Value(results[0]), 3);
}

TEST_F(SessionTest, ACallersCancellationEndsAPreparedStep) {
  Scope root;
  Output never = ProbeNode(root, "TestProbeAsync", "forever", {}, 1).output(0);
  Output one = Sum(root, {Const(root, 1.f)});
  Session* session = Make(root);
  ASSERT_OK_AND_ASSIGN(const auto waits, session->Prepare({}, {never}));
  ASSERT_OK_AND_ASSIGN(const auto sums, session->Prepare({}, {one}));
  std::vector<Tensor> results(1);
  CancellationManager cancellation;
  std::thread canceller([&] {
    AwaitWaiting(1);
    cancellation.StartCancel();
  });
  EXPECT_STATUS(waits->RunInto({.cancellation = &cancellation}, {}, absl::MakeSpan(results)),
                absl::StatusCode::kCancelled, "");
  canceller.join();
  // Cancelled before: no node begins. (The state of a step is used again: nothing stays of it.)
  const int before = sums_;
  EXPECT_STATUS(sums->RunInto({.cancellation = &cancellation}, {}, absl::MakeSpan(results)),
                absl::StatusCode::kCancelled, "");
  EXPECT_EQ(sums_, before);
  EXPECT_FALSE(results[0].has_value());
  CancellationManager quiet;
  EXPECT_OK(sums->RunInto({.cancellation = &quiet}, {}, absl::MakeSpan(results)));
  EXPECT_EQ(Value(results[0]), 1);
  quiet.StartCancel();  // of what has ended
  EXPECT_OK(sums->RunInto({}, absl::MakeSpan(results)));
}

TEST_F(SessionTest, APreparedStepRunsInTheArenaThatItIsGiven) {
  Scope root;
  const Arena* seen = nullptr;
  SetHook("arena", [&](KernelContext* ctx) -> Status {
    seen = ctx->step().arena;
    ctx->set_output(0, Tensor::Scalar<float>(0));
    return absl::OkStatus();
  });
  Output y = ProbeNode(root, "TestProbe", "arena", {}, 1).output(0);
  ASSERT_OK_AND_ASSIGN(const auto step, Make(root)->Prepare({}, {y}));
  const std::unique_ptr<Arena> own = Arena::Make(1);
  std::vector<Tensor> results(1);
  EXPECT_OK(step->RunInto({.arena = own.get()}, {}, absl::MakeSpan(results)));
  EXPECT_EQ(seen, own.get());
  EXPECT_OK(step->RunInto({}, absl::MakeSpan(results)));
  EXPECT_NE(seen, own.get());
}

TEST_F(SessionTest, InferredShapesOfFeedsAreCheckedUnlessASessionTakesAny) {
  Scope root;
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 1});
  Output same = Identity(root.WithName("same"), x);  // [?,1]
  Output y = Sum(root.WithName("y"), {same});
  const std::vector<Feed> row = {{"same", Tensor::Of({1.0f, 2.0f})}};
  EXPECT_STATUS(Make(root)->Run(row, {y}), absl::StatusCode::kInvalidArgument,
                "Cannot feed value of shape [2] for Tensor 'same:0', which has shape [?,1]");
  Session* const any = Make(root, {.check_inferred_shapes = false});
  ASSERT_OK_AND_ASSIGN(const auto sum, any->Run(row, {y}));
  EXPECT_EQ(Value(sum[0]), 3);
  // A placeholder says itself what it takes.
  EXPECT_STATUS(any->Run({{"x", Tensor::Of({1.0f, 2.0f})}}, {y}),
                absl::StatusCode::kInvalidArgument,
                "Cannot feed value of shape [2] for Tensor 'x:0', which has shape [?,1]");
}

// It is told that the step is over and does not react; what it holds lives until it does.
TEST_F(SessionTest, AKernelThatDoesNotAnswerHoldsUpNeitherRunNorClose) {
  std::vector<AsyncKernel::DoneCallback> silent;
  SetAsyncHook("silent", [&](KernelContext*, AsyncKernel::DoneCallback done) {
    MutexLock lock(&mu_);
    silent.push_back(std::move(done));
  });
  Scope root;
  Output never = ProbeNode(root.WithName("mute"), "TestProbeAsync", "silent", {}, 1).output(0);
  Output one = Const(root, 1.f);
  Session* session = Make(root);
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(20);
  const std::vector<FetchName> fetches = {never};
  const Status status = session->Run(options, {}, fetches, {}, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "'mute'")) << status;
  EXPECT_TRUE(session->Run({}, {one}).ok());
  EXPECT_TRUE(session->Close().ok());
  sessions_.clear();
  MutexLock lock(&mu_);
  ASSERT_EQ(silent.size(), 1u);
  silent[0](absl::OkStatus());  // a sanitizer would see memory that is gone
}

// It computes there when the session is gone, and lets go of the session on one of them.
TEST_F(SessionTest, AKernelThatDoesNotAnswerKeepsTheThreadsOfItsSession) {
  KernelContext* context = nullptr;
  AsyncKernel::DoneCallback silent;
  SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    MutexLock lock(&mu_);
    context = ctx;
    silent = std::move(done);
  });
  for (const int threads : {1, 2}) {
    Scope root;
    Output never = ProbeNode(root.WithName("mute"), "TestProbeAsync", "silent", {}, 1).output(0);
    SessionOptions session_options;
    session_options.config.intra_op_parallelism_threads = threads;
    tensorflow::RunOptions options;
    options.set_timeout_in_ms(20);
    const std::vector<FetchName> fetches = {never};
    EXPECT_STATUS(Make(root, session_options)->Run(options, {}, fetches, {}, nullptr),
                  absl::StatusCode::kDeadlineExceeded, "'mute'");
    sessions_.clear();
    MutexLock lock(&mu_);
    const auto answered = std::make_shared<Notification>();
    context->step().arena->Schedule([answered, context, done = std::move(silent)]() mutable {
      context->ParallelFor(1000, 1e4, [](int64_t, int64_t) {});
      done(absl::OkStatus());
      answered->Notify();
    });
    answered->Wait();
  }
}

TEST_F(SessionTest, CloseCancelsRunningStepsAndLaterOnesFail) {
  Scope root;
  Output never = ProbeNode(root, "TestProbeAsync", "forever", {}, 1).output(0);
  Output one = Const(root, 1.f);
  Session* session = Make(root);
  std::vector<std::thread> threads;
  std::atomic<int> cancelled{0};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      if (absl::IsCancelled(session->Run({}, {never}).status())) ++cancelled;
    });
  }
  AwaitWaiting(3);
  EXPECT_TRUE(session->Close().ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cancelled, 3);
  const Status status = session->Run({}, {one}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(status.message(), "Session has been closed.");
  EXPECT_TRUE(absl::IsCancelled(session->Extend(root)));
  EXPECT_TRUE(session->Close().ok());
}

TEST_F(SessionTest, TheTimeOfARunCoversCompiling) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  const Output y = Sum(root.WithName("y"), {x});
  FakeClock clock;
  SessionOptions session_options;
  session_options.config.operation_timeout_in_ms = 60'000;
  for (const bool by_options : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto session,
                         NewDirectSession(by_options ? SessionOptions() : session_options, &clock));
    ASSERT_OK(session->Extend(root));
    tensorflow::RunOptions options;
    if (by_options) options.set_timeout_in_ms(60'000);
    const std::vector<Feed> feeds = {{x, Tensor::Scalar(5.0f)}};
    const std::vector<FetchName> fetches = {y};
    const auto run = [&] { return session->Run(options, feeds, fetches, {}, nullptr); };

    SetFailPointHook([&](absl::string_view name) {
      if (name == "session/compile") clock.Advance(absl::Seconds(60));
      return absl::OkStatus();
    });
    sums_ = 0;
    EXPECT_STATUS(
        run().status(), absl::StatusCode::kDeadlineExceeded,
        "Timed out waiting for notification; the step waited for its signature to be "
        "compiled, which took all of its time; it is compiled to the end and kept for the "
        "next Run");
    EXPECT_EQ(sums_, 0);
    // What was compiled is there.
    ASSERT_OK_AND_ASSIGN(const auto out, run());
    EXPECT_EQ(Value(out[0]), 5);
    EXPECT_EQ(StatsOfDirectSession(*session)->compilations, 1);

    // Compiling that leaves a little.
    SetFailPointHook([&](absl::string_view name) {
      if (name == "session/compile") clock.Advance(absl::Milliseconds(59'000));
      return absl::OkStatus();
    });
    EXPECT_OK(session->Run(options, {}, std::vector<FetchName>{Const(root, 1.f)}, {}, nullptr));
    SetFailPointHook(nullptr);
  }
}

TEST_F(SessionTest, ARunWhoseTimeIsOverDoesNotWaitForItsCompiling) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  const Output y = Sum(root.WithName("y"), {x});
  FakeClock clock;
  ASSERT_OK_AND_ASSIGN(const auto session, NewDirectSession(SessionOptions(), &clock));
  ASSERT_OK(session->Extend(root));
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(60'000);
  const auto run = [&] {
    return session->Run(options, std::vector<Feed>{{x, Tensor::Scalar(5.0f)}},
                        std::vector<FetchName>{y}, {}, nullptr);
  };
  Notification compiles, may_end;
  SetFailPointHook([&](absl::string_view name) {
    if (name == "session/compile") {
      compiles.Notify();
      may_end.Wait();
    }
    return absl::OkStatus();
  });
  Status first;
  std::thread waits([&] { first = run().status(); });
  compiles.Wait();
  clock.Advance(absl::Seconds(60));
  waits.join();  // while it is still compiled
  EXPECT_STATUS(first, absl::StatusCode::kDeadlineExceeded, "its signature to be compiled");
  // Who asks again waits for the same one.
  StatusOr<std::vector<Tensor>> second = absl::UnknownError("not yet");
  std::thread again([&] { second = run(); });
  may_end.Notify();
  again.join();
  SetFailPointHook(nullptr);
  ASSERT_OK(second);
  EXPECT_EQ(Value((*second)[0]), 5);
  EXPECT_EQ(StatsOfDirectSession(*session)->compilations, 1);
}

TEST_F(SessionTest, ManyThreadsRunManySignatures) {
  Scope root;
  Output x = Placeholder(root, DT_FLOAT, {});
  std::vector<Output> sums;
  for (int i = 1; i <= 5; ++i) {
    sums.push_back(Sum(root, std::vector<Output>(static_cast<size_t>(i), x)));
  }
  Session* session = Make(root, {.max_cached_plans = 3});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const size_t which = static_cast<size_t>(t + i) % sums.size();
        const float value = static_cast<float>(t * 100 + i);
        auto out = session->Run({{x, Tensor::Scalar<float>(value)}}, {sums[which]});
        if (!out.ok() || Value((*out)[0]) != value * static_cast<float>(which + 1)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(SessionTest, ThreadCountsOfTheConfigAreAccepted) {
  for (const auto& [intra, inter] : {std::pair(1, 0), {2, 1}, {0, 2}, {0, -1}}) {
    Scope root;
    Output y = Sum(root, {Const(root, 1.f)});
    SessionOptions options;
    options.config.intra_op_parallelism_threads = intra;
    options.config.inter_op_parallelism_threads = inter;
    options.config.use_per_session_threads = true;
    Session* session = Make(root, options);
    tensorflow::RunOptions run;
    run.set_inter_op_thread_pool(-1);
    const std::vector<FetchName> fetches = {y};
    EXPECT_TRUE(session->Run(run, {}, fetches, {}, nullptr).ok());
    run.set_inter_op_thread_pool(5);
    EXPECT_EQ(session->Run(run, {}, fetches, {}, nullptr).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// --- Devices -------------------------------------------------------------------------------------

SessionOptions WithCpus(int n) {
  SessionOptions options;
  options.config.device_count["CPU"] = n;
  return options;
}

TEST_F(SessionTest, NodesRunOnTheDevicesTheyAskFor) {
  Scope root;
  Output x = Placeholder(root.WithDevice("/cpu:0"), DT_FLOAT, {});
  Output value = x;
  for (int i = 0; i < 20; ++i) {
    value = Sum(root.WithDevice(absl::StrCat("/cpu:", i % 3)), {value, Const(root, 1.f)});
  }
  Session* session = Make(root, WithCpus(3));
  for (int i = 0; i < 5; ++i) {
    auto out = session->Run({{x, Tensor::Scalar<float>(static_cast<float>(i))}}, {value});
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(Value((*out)[0]), i + 20);
  }
  auto devices = session->ListDevices();
  ASSERT_TRUE(devices.ok());
  ASSERT_EQ(devices->size(), 3u);
  EXPECT_EQ((*devices)[2].name(), "/job:localhost/replica:0/task:0/device:CPU:2");
  EXPECT_NE((*devices)[2].incarnation(), 0u);

  Session* small = Make(root, WithCpus(1));
  const Status status = small->Run({{x, Tensor::Scalar<float>(1)}}, {value}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "Cannot assign a device for operation"))
      << status;
}

TEST_F(SessionTest, AnErrorOnOneDeviceIsTheErrorOfTheStep) {
  Scope root;
  Output bad =
      ProbeNode(root.WithName("bad").WithDevice("/cpu:1"), "TestProbe", "fail", {}, 1).output(0);
  Output y = Sum(root.WithDevice("/cpu:0"), {bad});
  Session* session = Make(root, WithCpus(2));
  const Status status = session->Run({}, {y}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(absl::StartsWith(status.message(), "TestProbe 'bad': wanted\n\t [[{{node bad}}]]"))
      << status;
}

TEST_F(SessionTest, BadDeviceCountsAreRefused) {
  for (const int n : {0, -1, 1'000'000}) {
    EXPECT_EQ(NewSession(WithCpus(n)).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// --- Memory of a step ----------------------------------------------------------------------------

TEST_F(SessionTest, AStepBeyondItsMemoryNamesTheHoldersAndTheNextOneWorks) {
  // As many floats as the first input says.
  SetHook("fill", [](KernelContext* ctx) -> Status {
    const auto n = static_cast<int64_t>(ctx->input(0).scalar<float>());
    MR_ASSIGN_OR_RETURN(Tensor* const out, ctx->AllocateOutput(0, ShapeOf({n})));
    for (float& value : out->mutable_flat<float>()) value = 1;
    return absl::OkStatus();
  });
  constexpr float kTooMany = 1000, kFew = 100;  // floats of each of the two outputs
  for (const char* second_device : {"/cpu:0", "/cpu:1"}) {
    Scope root;
    const Output n = Placeholder(root.WithName("n"), DT_FLOAT, {});
    const Output first = ProbeNode(root.WithName("first"), "TestProbe", "fill", {n}, 1).output(0);
    const Output second = ProbeNode(root.WithName("second").WithDevice(second_device), "TestProbe",
                                    "fill", {n, first}, 1)
                              .output(0);
    const Output y = Sum(root.WithName("y"), {first, second});
    SessionOptions options = WithCpus(2);
    options.max_step_bytes = 6000;
    Session* const session = Make(root, options);
    const auto step = session->Prepare({.feeds = {"n"}, .fetches = {"y"}});
    ASSERT_TRUE(step.ok()) << step.status();
    for (int i = 0; i < 3; ++i) {
      const Tensor too_many = Tensor::Scalar<float>(kTooMany);
      const std::vector<Tensor> feeds = {too_many};
      for (const Status& status :
           {session->Run({{n, too_many}}, {y}).status(), (*step)->Run(feeds).status()}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
        EXPECT_TRUE(
            absl::StartsWith(status.message(),
                             "TestProbe 'second': output 0: step memory must be at most 6000 "
                             "bytes, got 4"))
            << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "held by 'first' (4")) << status;
      }
      const auto out = session->Run({{n, Tensor::Scalar<float>(kFew)}}, {y, first});
      ASSERT_TRUE(out.ok()) << out.status();
      EXPECT_EQ(Value((*out)[0]), 2 * kFew);
      EXPECT_EQ((*out)[1].num_elements(), static_cast<int64_t>(kFew));
    }
  }
}

TEST_F(SessionTest, AStepsMemoryLimitMustNotBeNegative) {
  const Status status = NewSession({.max_step_bytes = -1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "SessionOptions: max_step_bytes must be >= 0, got -1");
}

// --- Metadata ------------------------------------------------------------------------------------

TEST_F(SessionTest, ATracedRunFillsItsMetadata) {
  Scope root;
  Output a = Const(root.WithName("a"), 1.f);
  Output y = Sum(root.WithName("y"), {a, a});
  Session* session = Make(root);
  tensorflow::RunOptions options;
  options.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  options.set_output_partition_graphs(true);
  tensorflow::RunMetadata metadata;
  const std::vector<FetchName> fetches = {y};
  ASSERT_TRUE(session->Run(options, {}, fetches, {}, &metadata).ok());
  ASSERT_EQ(metadata.step_stats().dev_stats_size(), 1);
  std::map<std::string, std::string> labels;
  for (const auto& node : metadata.step_stats().dev_stats(0).node_stats()) {
    labels[node.node_name()] = node.timeline_label();
  }
  EXPECT_EQ(labels["y"], "y = TestProbe(a, a)");
  ASSERT_EQ(metadata.partition_graphs_size(), 1);
  EXPECT_EQ(metadata.partition_graphs(0).node_size(), 3);
}

// --- Targets -------------------------------------------------------------------------------------

TEST_F(SessionTest, TargetsNameTheirFactory) {
  EXPECT_TRUE(NewSession({.target = "local"}).ok());
  const Status status = NewSession({.target = "ftp://host"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ftp://host")) << status;
}

TEST_F(SessionTest, ResetTargetClosesSessions) {
  Scope root;
  Output one = Const(root, 1.f);
  Session* session = Make(root);
  EXPECT_TRUE(session->Run({}, {one}).ok());
  ASSERT_TRUE(ResetTarget({}, {}).ok());
  EXPECT_TRUE(absl::IsCancelled(session->Run({}, {one}).status()));
  EXPECT_TRUE(Make(root)->Run({}, {one}).ok());
}

}  // namespace
}  // namespace millrace
