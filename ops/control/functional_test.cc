// SPDX-License-Identifier: Apache-2.0
#include "ops/control/functional.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/function_builder.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/attr_value.pb.h"
#include "proto/config.pb.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"

// covers: graphs: calls, `If`, `Case`, `While` and `For` run their functions without a thread that
//   waits, end with deadline and session, name node and call in errors; 100,000 calls in each other
//   are a Status and the next step runs

namespace millrace {
namespace {

using Outputs = std::vector<Output>;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Functions are called, never put into the caller's graph.
const FunctionOptions kCalled = {.no_inline = true};

std::unique_ptr<Session> SessionOf(const Scope& scope) {
  EXPECT_OK(scope.status());
  auto session = NewSession();
  EXPECT_OK(session.status());
  EXPECT_OK((*session)->Extend(scope));
  return *std::move(session);
}

StatusOr<Tensor> Get(const Scope& scope, const Output& y, std::vector<Feed> feeds = {}) {
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(scope));
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> out, session->Run(feeds, {y}));
  return out[0];
}

#define EXPECT_VALUE(scope, y, want, ...)                            \
  do {                                                               \
    StatusOr<Tensor> got = Get(scope, y __VA_OPT__(, ) __VA_ARGS__); \
    EXPECT_OK(got.status());                                         \
    if (got.ok()) ExpectTensorEqual(*got, want);                     \
  } while (false)

Tensor F(float x) { return Tensor::Scalar(x); }
Tensor I(int32_t x) { return Tensor::Scalar(x); }

DefinedFunction Square(const Scope& s) {
  return DefineFunction(
      s, "square", {DT_FLOAT},
      [](const Scope& t, const Outputs& x) { return Outputs{Mul(t, x[0], x[0])}; }, kCalled);
}

TEST(PartitionedCall, ComputesWhatTheFunctionSays) {
  Scope s;
  const DefinedFunction square = Square(s);
  const Output x = Placeholder(s, DT_FLOAT, {-1});
  const Output y = Call(s, square, Call(s, square, {x}))[0];
  EXPECT_EQ(s.shape(y).ToString(), "[?]");
  EXPECT_VALUE(s, y, TensorOf<float>({3}, {16, 81, 1}), {{x, TensorOf<float>({3}, {2, 3, -1})}});
  EXPECT_VALUE(s, y, TensorOf<float>({0}, {}), {{x, TensorOf<float>({0}, {})}});
}

TEST(PartitionedCall, ByTheFunctionsNameIsTheSame) {
  Scope s;
  const DefinedFunction square = Square(s);
  tensorflow::GraphDef def = *s.ToGraphDef();
  auto* const x = def.add_node();
  x->set_name("x");
  x->set_op("Placeholder");
  (*x->mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  auto* const y = def.add_node();
  y->set_name("y");
  y->set_op("square");
  y->add_input("x");
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(def));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{"x", F(3)}}, {"y"}));
  ExpectTensorEqual(out[0], F(9));
  // As a target, too.
  EXPECT_OK(session->Run({{"x", F(3)}}, {}, {"y"}));
}

TEST(PartitionedCall, SeesTheCallersVariablesAndRunsItsEffects) {
  Scope s;
  const Output v = VarHandleOp(s.WithName("v"), DT_FLOAT, {});
  const Operation init = AssignVariableOp(s, v, Const(s, 1.0f));
  const DefinedFunction add = DefineFunction(
      s, "add", {DT_FLOAT},
      [&](const Scope& t, const Outputs& x) {
        AssignAddVariableOp(t, v, x[0]);
        return Outputs{};
      },
      kCalled);
  EXPECT_TRUE(add.has_effects);
  const Operation twice = CallOperation(s.WithName("twice"), add, {Const(s, 2.0f)});
  const Output read =
      ReadVariableOp(s.WithControlDependencies({twice}).WithName("read"), v, DT_FLOAT);
  const auto session = SessionOf(s);
  ASSERT_OK(session->Run({}, {}, {init}));
  ASSERT_OK_AND_ASSIGN(auto out, session->Run({}, {read}));
  ExpectTensorEqual(out[0], F(3));
  ASSERT_OK(session->Run({}, {}, {twice}));
  ASSERT_OK_AND_ASSIGN(out, session->Run({}, {read}));
  ExpectTensorEqual(out[0], F(7));
}

TEST(PartitionedCall, GivesEachCallStateOfItsOwn) {
  Scope s;
  const DefinedFunction dice = DefineFunction(
      s, "dice", {},
      [](const Scope& t, const Outputs&) {
        return Outputs{RandomUniform(t, Const<int32_t>(t, {2}), DT_FLOAT, {.seed = 5})};
      },
      kCalled);
  const DefinedFunction around = DefineFunction(
      s, "around", {}, [&](const Scope& t, const Outputs&) { return Call(t, dice, {}); }, kCalled);
  const Outputs fetches = {Call(s, dice, {})[0], Call(s, dice, {})[0], Call(s, around, {})[0],
                           RandomUniform(s, Const<int32_t>(s, {2}), DT_FLOAT, {.seed = 5})};
  const auto session = SessionOf(s);
  std::vector<std::vector<Tensor>> runs;
  for (size_t run = 0; run < 2; ++run) {
    ASSERT_OK_AND_ASSIGN(runs.emplace_back(),
                         session->Run({}, {fetches[0], fetches[1], fetches[2], fetches[3]}));
    for (size_t i = 0; i < 3; ++i) ExpectTensorEqual(runs[run][i], runs[run][3]);
  }
  EXPECT_NE(runs[0][0].flat<float>()[0], runs[1][0].flat<float>()[0]);
  // Another signature goes on where that one was.
  ASSERT_OK_AND_ASSIGN(const auto third, session->Run({}, {fetches[0]}));
  ASSERT_OK_AND_ASSIGN(const auto fourth, session->Run({}, {fetches[1]}));
  ExpectTensorEqual(third[0], fourth[0]);
  EXPECT_NE(third[0].flat<float>()[0], runs[1][0].flat<float>()[0]);
}

TEST(PartitionedCall, TakesItsArgumentsForItsOwn) {
  // In place all the way: what the call is the last to use is the function's to change.
  Scope s;
  const DefinedFunction f = DefineFunction(
      s, "f", {DT_FLOAT},
      [](const Scope& t, const Outputs& x) { return Outputs{Neg(t, Neg(t, x[0]))}; }, kCalled);
  const Output x = Placeholder(s, DT_FLOAT, {});
  const Output kept = Neg(s, x);
  const Output y = Add(s, Call(s, f, {kept})[0], kept);
  EXPECT_VALUE(s, y, F(-6), {{x, F(3)}});
}

TEST(PartitionedCall, ErrorsNameTheNodeAndTheCall) {
  Scope s;
  const DefinedFunction reshape = DefineFunction(
      s, "reshape", {DT_FLOAT, DT_INT32},
      [](const Scope& t, const Outputs& x) {
        return Outputs{Reshape(t.WithName("wrong"), x[0], x[1])};
      },
      kCalled);
  const Output x = Placeholder(s, DT_FLOAT), shape = Placeholder(s, DT_INT32);
  const Output y = Call(s.WithName("call"), reshape, {x, shape})[0];
  const auto session = SessionOf(s);
  const auto run = [&](std::initializer_list<int32_t> dims) {
    return session->Run(
        {{x, TensorOf<float>({4}, {1, 2, 3, 4})}, {shape, Tensor::Vector<int32_t>(dims)}}, {y});
  };
  const Status status = run({3}).status();
  EXPECT_STATUS(status, kInvalid, "Reshape 'wrong': ");
  EXPECT_TRUE(absl::StrContains(status.message(), "[[{{node wrong}}]]")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "[[call]]")) << status;
  ASSERT_OK_AND_ASSIGN(const auto out, run({2, 2}));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 2}, {1, 2, 3, 4}));
}

TEST(PartitionedCall, RefusesCallsThatDoNotFit) {
  const auto add_node = [](tensorflow::GraphDef* def, const std::string& f, DType in, DType out) {
    auto* const x = def->add_node();
    x->set_name("x");
    x->set_op("Placeholder");
    (*x->mutable_attr())["dtype"].set_type(static_cast<tensorflow::DataType>(in));
    auto* const y = def->add_node();
    y->set_name("y");
    y->set_op("PartitionedCall");
    y->add_input("x");
    (*y->mutable_attr())["f"].mutable_func()->set_name(f);
    (*y->mutable_attr())["Tin"].mutable_list()->add_type(static_cast<tensorflow::DataType>(in));
    (*y->mutable_attr())["Tout"].mutable_list()->add_type(static_cast<tensorflow::DataType>(out));
  };
  Scope s;
  Square(s);
  const tensorflow::GraphDef functions = *s.ToGraphDef();
  struct Case {
    const char* f;
    DType in, out;
    absl::StatusCode code;
    const char* message;
  };
  for (const Case& c :
       {Case{"sqare", DT_FLOAT, DT_FLOAT, absl::StatusCode::kNotFound, "did you mean 'square'?"},
        Case{"square", DT_INT32, DT_FLOAT, kInvalid,
             "PartitionedCall 'y': the function of attr 'f' must have arguments of types [int32], "
             "got [float]"},
        Case{"square", DT_FLOAT, DT_INT32, kInvalid,
             "must have results of types [int32], got [float]"}}) {
    tensorflow::GraphDef def = functions;
    add_node(&def, c.f, c.in, c.out);
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(def));
    const Tensor x = c.in == DT_FLOAT ? F(1) : I(1);
    for (int i = 0; i < 2; ++i) {
      EXPECT_STATUS(session->Run({{"x", x}}, {"y"}).status(), c.code, c.message);
    }
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{"x", x}}, {"x"}));
    ExpectTensorEqual(out[0], x);
  }
}

TEST(PartitionedCall, AHundredThousandCallsInEachOtherAreRefused) {
  // f0(x) = x, f1 calls f0, ...; each is only called.
  Scope s;
  DefineFunction(
      s, "f0", {DT_FLOAT}, [](const Scope&, const Outputs& x) { return Outputs{x[0]}; }, kCalled);
  DefineFunction(
      s, "f1", {DT_FLOAT},
      [](const Scope& t, const Outputs& x) {
        return PartitionedCall(t, x, {DT_FLOAT}, {"f0"}).outputs(0, 1);
      },
      kCalled);
  tensorflow::GraphDef def = *s.ToGraphDef();
  const tensorflow::FunctionDef link = def.library().function(1);
  constexpr int kCalls = 100'000;
  for (int i = 2; i <= kCalls; ++i) {
    auto* const f = def.mutable_library()->add_function();
    *f = link;
    f->mutable_signature()->set_name(absl::StrCat("f", i));
    (*f->mutable_node_def(0)->mutable_attr())["f"].mutable_func()->set_name(
        absl::StrCat("f", i - 1));
  }
  for (const int depth : {100, kCalls}) {
    auto* const y = def.add_node();
    y->set_name(absl::StrCat("y", depth));
    y->set_op(absl::StrCat("f", depth));
    y->add_input("x");
  }
  auto* const x = def.add_node();
  x->set_name("x");
  x->set_op("Placeholder");
  (*x->mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(def));
  for (int i = 0; i < 2; ++i) {
    EXPECT_STATUS(session->Run({{"x", F(2)}}, {absl::StrCat("y", kCalls)}).status(),
                  absl::StatusCode::kResourceExhausted,
                  "calls of functions must be at most 200 deep, got a further one");
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{"x", F(2)}}, {"y100"}));
    ExpectTensorEqual(out[0], F(2));
  }
}

// --- If and Case ---------------------------------------------------------------------------------

struct Branches {
  explicit Branches(const Scope& s)
      : neg(DefineFunction(s, "neg", {DT_FLOAT},
                           [](const Scope& t, const Outputs& x) { return Outputs{Neg(t, x[0])}; })),
        square(Square(s)) {}
  DefinedFunction neg, square;
};

TEST(If, RunsOneBranch) {
  Scope s;
  const Branches b(s);
  const Output x = Placeholder(s, DT_FLOAT, {2}), cond = Placeholder(s, DT_BOOL, {});
  const BuiltNode y = If(s, cond, Outputs{x}, {DT_FLOAT}, {b.neg.name}, {b.square.name});
  const BuiltNode z = StatelessIf(s, cond, Outputs{x}, {DT_FLOAT}, {b.neg.name}, {b.square.name});
  EXPECT_EQ(s.shape(y).ToString(), "[2]");
  const Tensor three = TensorOf<float>({2}, {3, 4});
  for (const BuiltNode& node : {y, z}) {
    EXPECT_VALUE(s, node, TensorOf<float>({2}, {-3, -4}),
                 {{x, three}, {cond, Tensor::Scalar(true)}});
    EXPECT_VALUE(s, node, TensorOf<float>({2}, {9, 16}),
                 {{x, three}, {cond, Tensor::Scalar(false)}});
  }
}

TEST(If, ConditionsHoldAsInTensorFlow) {
  const std::vector<std::pair<Tensor, bool>> conditions = {
      {F(0), false},
      {F(-0.5), true},
      {I(0), false},
      {I(3), true},
      {Tensor::Scalar<double>(0.0), false},
      {Tensor::Scalar<int64_t>(-1), true},
      {Tensor::Scalar<uint8_t>(0), false},
      {Tensor::Scalar<int8_t>(1), true},
      {Tensor::Scalar<int16_t>(0), false},
      {Tensor::Scalar<uint16_t>(2), true},
      {Tensor::Scalar<std::string>(""), false},
      {Tensor::Scalar<std::string>("no"), true},
      {TensorOf<float>({0}, {}), false},
      {TensorOf<bool>({1}, {false}), true}};
  for (const auto& [condition, holds] : conditions) {
    Scope s;
    const Branches b(s);
    const Output y = If(s, Const(s, condition), Outputs{Const(s, 3.0f)}, {DT_FLOAT}, {b.neg.name},
                        {b.square.name});
    EXPECT_VALUE(s, y, F(holds ? -3 : 9));
  }
  Scope s;
  const Branches b(s);
  const Output y = If(s, Cast(s, Const(s, 1.0f), DT_HALF), Outputs{Const(s, 3.0f)}, {DT_FLOAT},
                      {b.neg.name}, {b.square.name});
  EXPECT_STATUS(Get(s, y).status(), kInvalid,
                "a condition must be bool, a number or a string, got half");
}

TEST(Case, RunsTheBranchOfItsIndex) {
  Scope s;
  const Branches b(s);
  const Output x = Placeholder(s, DT_FLOAT, {}), index = Placeholder(s, DT_INT32, {});
  const Output y =
      Case(s, index, Outputs{x}, {DT_FLOAT}, {{b.neg.name}, {b.square.name}, {b.neg.name}});
  for (const auto& [i, want] :
       std::vector<std::pair<int, float>>{{0, -3}, {1, 9}, {2, -3}, {7, -3}, {-1, -3}}) {
    EXPECT_VALUE(s, y, F(want), {{x, F(3)}, {index, I(i)}});
  }
  Scope t;
  const Branches c(t);
  Case(t, Const<int32_t>(t, {1}), Outputs{Const(t, 3.0f)}, {DT_FLOAT}, {{c.neg.name}});
  EXPECT_STATUS(t.status(), kInvalid, "branch_index must have rank 0");
}

// --- While and For -------------------------------------------------------------------------------

struct Loop {
  explicit Loop(const Scope& s)
      : cond(DefineFunction(
            s, "cond", {DT_INT32, DT_FLOAT},
            [](const Scope& t, const Outputs& x) { return Outputs{Less(t, x[0], Const(t, 10))}; })),
        body(DefineFunction(s, "body", {DT_INT32, DT_FLOAT}, [](const Scope& t, const Outputs& x) {
          return Outputs{Add(t, x[0], Const(t, 1)), Add(t, x[1], Cast(t, x[0], DT_FLOAT))};
        })) {}
  DefinedFunction cond, body;
};

TEST(While, RepeatsItsBody) {
  Scope s;
  const Loop loop(s);
  const Output n = Placeholder(s, DT_INT32, PartialShape::Scalar());
  for (const bool stateful : {true, false}) {
    const Outputs inputs = {n, Const(s, 0.5f)};
    const BuiltNode y = stateful ? While(s, inputs, {loop.cond.name}, {loop.body.name})
                                 : StatelessWhile(s, inputs, {loop.cond.name}, {loop.body.name});
    EXPECT_EQ(s.shape(y.output(1)).ToString(), "[]");
    EXPECT_VALUE(s, y.output(1), F(45.5), {{n, I(0)}});
    EXPECT_VALUE(s, y.output(0), I(10), {{n, I(7)}});
    EXPECT_VALUE(s, y.output(0), I(12), {{n, I(12)}});
  }
}

TEST(While, MayHaveOneFunctionForBoth) {
  Scope s;
  const DefinedFunction negate =
      DefineFunction(s, "negate", {DT_BOOL},
                     [](const Scope& t, const Outputs& x) { return Outputs{LogicalNot(t, x[0])}; });
  const Output start = Placeholder(s, DT_BOOL, PartialShape::Scalar());
  const Output y = While(s, Outputs{start}, {negate.name}, {negate.name});
  for (const bool value : {true, false}) {
    EXPECT_VALUE(s, y, Tensor::Scalar(true), {{start, Tensor::Scalar(value)}});
  }
}

TEST(While, TakesNoStack) {
  Scope s;
  const DefinedFunction cond = DefineFunction(
      s, "cond", {DT_INT32},
      [](const Scope& t, const Outputs& x) { return Outputs{Less(t, x[0], Const(t, 100'000))}; });
  const DefinedFunction body = DefineFunction(
      s, "body", {DT_INT32},
      [](const Scope& t, const Outputs& x) { return Outputs{Add(t, x[0], Const(t, 1))}; });
  EXPECT_VALUE(s, While(s, Outputs{Const(s, 0)}, {cond.name}, {body.name}), I(100'000));
}

// What its condition does not read is held by nobody else when its body runs.
TEST(While, LeavesItsVariablesToItsBody) {
  Scope s;
  constexpr int32_t kLong = 1 << 22;
  const Output x = Fill(s, Const(s, {kLong}), Const(s, 1.0f));
  const DefinedFunction cond = DefineFunction(
      s, "cond", {DT_INT32, DT_FLOAT},
      [](const Scope& t, const Outputs& v) { return Outputs{Less(t, v[0], Const(t, 8))}; });
  const DefinedFunction body =
      DefineFunction(s, "body", {DT_INT32, DT_FLOAT}, [](const Scope& t, const Outputs& v) {
        return Outputs{Add(t, v[0], Const(t, 1)), Add(t, v[1], Const(t, 1.0f))};
      });
  const Output y = While(s, {Const(s, 0), x}, {cond.name}, {body.name}).output(1);
  const auto session = SessionOf(s);
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {y}));
  ASSERT_EQ(out[0].num_elements(), kLong);
  EXPECT_EQ(out[0].flat<float>()[kLong - 1], 9.0f);
  constexpr int64_t kBytes = int64_t{kLong} * int64_t{sizeof(float)};
  EXPECT_LT(DefaultAllocatorStats().peak_bytes_in_use - before, kBytes * 3 / 2);
}

TEST(While, KnowsOnlyTheShapesThatStay) {
  Scope s;
  const DefinedFunction cond =
      DefineFunction(s, "cond", {DT_FLOAT, DT_FLOAT}, [](const Scope& t, const Outputs& x) {
        return Outputs{Less(t, Size(t, x[0]), Const(t, 9))};
      });
  const DefinedFunction body =
      DefineFunction(s, "body", {DT_FLOAT, DT_FLOAT}, [](const Scope& t, const Outputs& x) {
        return Outputs{ConcatV2(t, {x[0], x[0]}, Const(t, 0)), x[1]};
      });
  const Output x = Const(s, TensorOf<float>({1, 2}, {1, 2}));
  const BuiltNode y = While(s, Outputs{x, x}, {cond.name}, {body.name});
  EXPECT_EQ(s.shape(y.output(0)).ToString(), "[?,2]");
  EXPECT_EQ(s.shape(y.output(1)).ToString(), "[1,2]");
  ASSERT_OK_AND_ASSIGN(const Tensor grown, Get(s, y));
  EXPECT_EQ(grown.shape().ToString(), "[8,2]");

  const BuiltNode declared =
      While(s, Outputs{x, x}, {cond.name}, {body.name},
            {.output_shapes = {*PartialShape::Make({8, -1}), PartialShape()}});
  EXPECT_EQ(s.shape(declared.output(0)).ToString(), "[8,2]");
  While(s, Outputs{x, x}, {cond.name}, {body.name},
        {.output_shapes = {*PartialShape::Make({8, 3}), PartialShape()}});
  EXPECT_STATUS(s.status(), kInvalid, "attr 'output_shapes'[0] must fit the shape of result 0");
}

TEST(While, EndsWithItsDeadlineAndWithItsSession) {
  Scope s;
  const DefinedFunction cond =
      DefineFunction(s, "cond", {DT_INT32},
                     [](const Scope& t, const Outputs&) { return Outputs{Const(t, true)}; });
  const DefinedFunction body = DefineFunction(
      s, "body", {DT_INT32},
      [](const Scope& t, const Outputs& x) { return Outputs{Add(t, x[0], Const(t, 1))}; });
  const Output y = While(s.WithName("endless"), Outputs{Const(s, 0)}, {cond.name}, {body.name});
  const Output z = Const(s, 7);
  const auto session = SessionOf(s);
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(20);
  for (int i = 0; i < 2; ++i) {
    const std::vector<FetchName> fetches = {y}, none;
    EXPECT_STATUS(session->Run(options, {}, fetches, none, nullptr).status(),
                  absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {z}));
    ExpectTensorEqual(out[0], I(7));
  }
}

TEST(For, CountsFromStartToLimit) {
  Scope s;
  const DefinedFunction body =
      DefineFunction(s, "body", {DT_INT32, DT_INT32}, [](const Scope& t, const Outputs& x) {
        return Outputs{Add(t, Mul(t, x[1], Const(t, 10)), x[0])};
      });
  const Output start = Placeholder(s, DT_INT32, {}), limit = Placeholder(s, DT_INT32, {}),
               delta = Placeholder(s, DT_INT32, {});
  const Output y = For(s, start, limit, delta, Outputs{Const(s, 0)}, {body.name});
  struct Case {
    int start, limit, delta, want;
  };
  for (const Case& c : {Case{1, 4, 1, 123}, Case{1, 6, 2, 135}, Case{3, 0, -1, 321},
                        Case{2, 2, 0, 0}, Case{5, 5, 1, 0}}) {
    EXPECT_VALUE(s, y, I(c.want), {{start, I(c.start)}, {limit, I(c.limit)}, {delta, I(c.delta)}});
  }
  for (const Case& c : {Case{1, 4, 0, 0}, Case{1, 4, -1, 0}, Case{4, 1, 1, 0}}) {
    EXPECT_STATUS(
        Get(s, y, {{start, I(c.start)}, {limit, I(c.limit)}, {delta, I(c.delta)}}).status(),
        kInvalid, "delta must lead from start to limit, got start");
  }
}

// --- The rest ------------------------------------------------------------------------------------

TEST(FakeParam, HasItsShapeAsFarAsItIsKnown) {
  Scope s;
  EXPECT_VALUE(s, FakeParam(s, DT_FLOAT, *PartialShape::Make({-1, 2})),
               TensorOf<float>({0, 2}, {}));
  EXPECT_VALUE(s, FakeParam(s, DT_INT32, PartialShape()), I(0));
}

TEST(RemoteCall, IsRefusedByName) {
  Scope s;
  const DefinedFunction square = Square(s);
  const Output y = RemoteCall(s.WithName("far"), Const(s, std::string("/job:ps/task:0")),
                              Outputs{Const(s, 1.0f)}, {DT_FLOAT}, {square.name});
  EXPECT_STATUS(Get(s, y).status(), absl::StatusCode::kUnimplemented, "RemoteCall 'far': ");
}

TEST(Functions, WhoseResultIsInADeadBranchSaySo) {
  Scope s;
  const DefinedFunction f = DefineFunction(
      s, "f", {DT_FLOAT, DT_BOOL},
      [](const Scope& t, const Outputs& x) { return Outputs{Switch(t, x[0], x[1]).output_true}; },
      kCalled);
  const Output pred = Placeholder(s, DT_BOOL, {});
  const Output y = Call(s.WithName("call"), f, {Const(s, 1.0f), pred})[0];
  EXPECT_STATUS(Get(s, y, {{pred, Tensor::Scalar(false)}}).status(), kInvalid,
                "Retval[0] does not have value");
  EXPECT_VALUE(s, y, F(1), {{pred, Tensor::Scalar(true)}});
}

TEST(Functions, RunOnTheDevicesThatTheirNodesAskFor) {
  Scope s;
  const DefinedFunction f = DefineFunction(
      s, "f", {DT_FLOAT},
      [](const Scope& t, const Outputs& x) {
        const Output a = Neg(t.WithDevice("/cpu:1"), x[0]);
        return Outputs{Mul(t.WithDevice("/cpu:0"), a, x[0])};
      },
      kCalled);
  const Output x = Placeholder(s, DT_FLOAT, {});
  const Output y = Call(s, f, {x})[0];
  ASSERT_OK(s.status());
  SessionOptions options;
  options.config.device_count["CPU"] = 2;
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(s));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, F(3)}}, {y}));
    ExpectTensorEqual(out[0], F(-9));
  }
}

TEST(Functions, WaitForQueuesWithoutAThread) {
  // More calls that wait than there are threads.
  Scope s;
  const Output queue = FIFOQueueV2(s, {DT_FLOAT}, {.shared_name = "q"});
  const DefinedFunction take = DefineFunction(
      s, "take", {},
      [&](const Scope& t, const Outputs&) {
        return Outputs{QueueDequeueV2(t, queue, {DT_FLOAT})[0]};
      },
      kCalled);
  Outputs taken;
  for (int i = 0; i < 20; ++i) taken.push_back(Call(s, take, {})[0]);
  const Output sum = AddN(s, taken);
  Outputs values;
  for (int i = 0; i < 20; ++i) values.push_back(Const(s, 1.0f));
  const Operation fill = QueueEnqueueManyV2(s, queue, Outputs{Pack(s, values)});
  const auto session = SessionOf(s);
  std::thread filler([&] { EXPECT_OK(session->Run({}, {}, {fill})); });
  const auto out = session->Run({}, {sum});
  filler.join();
  ASSERT_OK(out.status());
  ExpectTensorEqual((*out)[0], F(20));
  // And end with their session.
  std::thread waiter(
      [&] { EXPECT_STATUS(session->Run({}, {sum}).status(), absl::StatusCode::kCancelled, ""); });
  EXPECT_OK(session->Close());
  waiter.join();
}

}  // namespace
}  // namespace millrace
