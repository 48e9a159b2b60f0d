// SPDX-License-Identifier: Apache-2.0
//
// Random programs of functions: calls in calls, branches by Switch and Merge and by If, While
// loops, variables, queues, assertions that fail. Each is run by a sequential interpreter of its
// own (which knows nothing of graphs) and in sessions that put calls into the graph, that call, and
// that do either as the functions are marked; results, variables and failures must be equal.
//
// Seeds are 0 to 299; MILLRACE_SEED runs another one alone.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/function_builder.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/config.pb.h"
#include "runtime/session.h"
#include "runtime/session_config.h"

// covers: graphs: random programs of functions, branches, loops, variables, queues and failures
//   give what an interpreter gives, put into the graph and called, on one and three threads

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

constexpr int kVariables = 3;

// One value of a body, made of earlier ones.
struct Instruction {
  enum Kind {
    kConst,   // number
    kAdd,     // a + b
    kMul,     // a * b
    kSub,     // a - b
    kCall,    // functions[callee](a, b)
    kBranch,  // a < b ? functions[callee](a, b) : functions[other](a, b), by Switch and Merge
    kIf,      // the same, by If
    kWhile,   // a = functions[callee](a, b), number % 4 times
    kAddToVariable,  // variables[number] += a; its value then
    kQueue,          // a, by way of a queue
    kAssert,         // a, or a failure if a % 16 == number % 16
  } kind = kConst;
  int a = 0, b = 0;  // instructions before it; 0 and 1 are the arguments
  int callee = 0, other = 0;
  int32_t number = 0;
};

// A function of two numbers: its last value.
struct Body {
  std::vector<Instruction> instructions;  // from value 2 on
  bool no_inline = false;
};

struct Program {
  std::vector<Body> functions;  // each calls only those before it
  bool asserts = false;
};

Program MakeProgram(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Program program;
  program.asserts = below(4) == 0;
  const int num_functions = 1 + below(6);
  for (int f = 0; f < num_functions; ++f) {
    Body body;
    body.no_inline = below(3) == 0;
    const int size = 1 + below(6);
    for (int i = 0; i < size; ++i) {
      Instruction one;
      one.a = below(2 + i);
      one.b = below(2 + i);
      one.number = static_cast<int32_t>(random());
      const int simple[] = {Instruction::kConst, Instruction::kAdd,           Instruction::kMul,
                            Instruction::kSub,   Instruction::kAddToVariable, Instruction::kQueue};
      const int calls[] = {Instruction::kCall, Instruction::kBranch, Instruction::kIf,
                           Instruction::kWhile};
      if (f > 0 && below(2) == 0) {
        one.kind = static_cast<Instruction::Kind>(calls[below(4)]);
        one.callee = below(f);
        one.other = below(f);
      } else if (program.asserts && below(8) == 0) {
        one.kind = Instruction::kAssert;
      } else {
        one.kind = static_cast<Instruction::Kind>(simple[below(6)]);
      }
      body.instructions.push_back(one);
    }
    program.functions.push_back(std::move(body));
  }
  return program;
}

// --- The interpreter -----------------------------------------------------------------------------

struct Machine {
  const Program& program;
  std::vector<uint32_t> variables = std::vector<uint32_t>(kVariables, 0);
  int64_t steps = 0;

  // Nothing after a failure.
  std::optional<uint32_t> Run(int function, uint32_t x, uint32_t y) {
    std::vector<uint32_t> values = {x, y};
    for (const Instruction& one : program.functions[static_cast<size_t>(function)].instructions) {
      ++steps;
      const uint32_t a = values[static_cast<size_t>(one.a)];
      const uint32_t b = values[static_cast<size_t>(one.b)];
      std::optional<uint32_t> value = a;
      switch (one.kind) {
        case Instruction::kConst:
          value = static_cast<uint32_t>(one.number);
          break;
        case Instruction::kAdd:
          value = a + b;
          break;
        case Instruction::kMul:
          value = a * b;
          break;
        case Instruction::kSub:
          value = a - b;
          break;
        case Instruction::kCall:
          value = Run(one.callee, a, b);
          break;
        case Instruction::kBranch:
        case Instruction::kIf:
          value =
              Run(static_cast<int32_t>(a) < static_cast<int32_t>(b) ? one.callee : one.other, a, b);
          break;
        case Instruction::kWhile:
          for (int i = 0; i < (one.number & 3) && value; ++i) value = Run(one.callee, *value, b);
          break;
        case Instruction::kAddToVariable:
          value = variables[VariableOf(one)] += a;
          break;
        case Instruction::kQueue:
          break;
        case Instruction::kAssert:
          if ((a & 15) == (static_cast<uint32_t>(one.number) & 15)) value = std::nullopt;
          break;
      }
      if (!value) return std::nullopt;
      values.push_back(*value);
    }
    return values.back();
  }
  static size_t VariableOf(const Instruction& one) {
    return static_cast<uint32_t>(one.number) % kVariables;
  }
};

// --- The graph -----------------------------------------------------------------------------------

class GraphOf {
 public:
  explicit GraphOf(const Program& program) : program_(program) {
    Outputs zeros;
    std::vector<Operation> inits;
    for (int i = 0; i < kVariables; ++i) {
      variables_.push_back(VarHandleOp(s_.WithName(absl::StrCat("v", i)), DT_INT32, {}));
      inits.push_back(AssignVariableOp(s_, variables_.back(), Const(s_, 0)));
    }
    init_ = NoOp(s_.WithName("init").WithControlDependencies(inits));
    for (size_t f = 0; f < program.functions.size(); ++f) Define(f);
    x_ = Placeholder(s_.WithName("x"), DT_INT32, {});
    y_ = Placeholder(s_.WithName("y"), DT_INT32, {});
    result_ =
        Identity(s_.WithName("result"), Call(s_.WithName("main"), functions_.back(), {x_, y_})[0]);
    for (const Output& v : variables_) {
      after_.push_back(ReadVariableOp(s_.WithControlDependencies({result_.op()}), v, DT_INT32));
    }
  }
  const Scope& scope() const { return s_; }
  const std::string& failure() const { return failure_; }  // of the last step that failed

  // Result and variables; nothing after a failure.
  std::optional<std::vector<int32_t>> Run(Session* session, int32_t x, int32_t y) const {
    EXPECT_OK(session->Run({}, {}, {init_}));
    std::vector<FetchName> fetches = {result_};
    for (const Output& v : after_) fetches.emplace_back(v);
    const auto out = session->Run({{x_, Tensor::Scalar(x)}, {y_, Tensor::Scalar(y)}}, fetches);
    if (!out.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(out.status())) << out.status();
      failure_ = out.status().ToString();
      return std::nullopt;
    }
    std::vector<int32_t> values;
    for (const Tensor& t : *out) values.push_back(t.flat<int32_t>()[0]);
    return values;
  }

 private:
  void Define(size_t f) {
    const Body& body = program_.functions[f];
    functions_.push_back(
        DefineFunction(s_, absl::StrCat("f", f), {DT_INT32, DT_INT32},
                       [&](const Scope& t, const Outputs& in) {
                         Outputs values = in;
                         Operation last;  // effects come one after the other
                         for (const Instruction& one : body.instructions) {
                           const Scope at = last.valid() ? t.WithControlDependencies({last}) : t;
                           values.push_back(Build(t, at, one, values[static_cast<size_t>(one.a)],
                                                  values[static_cast<size_t>(one.b)], &last));
                         }
                         return Outputs{values.back()};
                       },
                       {.no_inline = body.no_inline}));
  }

  // `at` waits for the last effect.
  Output Build(const Scope& t, const Scope& at, const Instruction& one, const Output& a,
               const Output& b, Operation* last) {
    const auto& callee = functions_.empty() ? none_ : functions_[static_cast<size_t>(one.callee)];
    const auto& other = functions_.empty() ? none_ : functions_[static_cast<size_t>(one.other)];
    Output value;
    switch (one.kind) {
      case Instruction::kConst:
        return Const(t, one.number);
      case Instruction::kAdd:
        return Add(t, a, b);
      case Instruction::kMul:
        return Mul(t, a, b);
      case Instruction::kSub:
        return Sub(t, a, b);
      case Instruction::kCall:
        value = Call(at, callee, {a, b})[0];
        break;
      case Instruction::kBranch: {
        // What both branches may change is read after the Merge.
        const Output pred = Less(at, a, b);
        const SwitchOutputs of_a = Switch(at, a, pred), of_b = Switch(at, b, pred);
        const Output yes = Call(at, callee, {of_a.output_true, of_b.output_true})[0];
        const Output no = Call(at, other, {of_a.output_false, of_b.output_false})[0];
        value = Merge(at, {no, yes}).output;
        break;
      }
      case Instruction::kIf: {
        Outputs inputs = {a, b};
        const auto name = [&](const DefinedFunction& f) { return Wrapped(at, f, &inputs); };
        const std::string yes = name(callee), no = name(other);
        value = If(at, Less(at, a, b), inputs, {DT_INT32}, {yes}, {no});
        break;
      }
      case Instruction::kWhile: {
        const DefinedFunction cond = DefineFunction(
            at, "cond", {DT_INT32, DT_INT32, DT_INT32}, [&](const Scope& u, const Outputs& v) {
              return Outputs{Less(u, v[0], Const(u, one.number & 3))};
            });
        Outputs inputs = {Const(at, 0), a, b};
        const DefinedFunction body = DefineFunction(
            at, "body", {DT_INT32, DT_INT32, DT_INT32}, [&](const Scope& u, const Outputs& v) {
              return Outputs{Add(u, v[0], Const(u, 1)), Call(u, callee, {v[1], v[2]})[0], v[2]};
            });
        // Handles go round with the numbers.
        const auto with_handles = [&](const DefinedFunction& f, bool is_body) {
          std::vector<DType> types = {DT_INT32, DT_INT32, DT_INT32};
          types.resize(3 + body.captures.size(), DT_RESOURCE);
          return DefineFunction(at, "loop", types,
                                [&](const Scope& u, const Outputs& v) {
                                  DefinedFunction inner = f;
                                  inner.captures.assign(v.begin() + 3, v.end());
                                  if (!is_body) inner.captures.clear();
                                  Outputs results =
                                      Call(u, inner, absl::MakeConstSpan(v).subspan(0, 3));
                                  if (is_body)
                                    results.insert(results.end(), v.begin() + 3, v.end());
                                  return results;
                                })
              .name;
        };
        inputs.insert(inputs.end(), body.captures.begin(), body.captures.end());
        value =
            While(at, inputs, {with_handles(cond, false)}, {with_handles(body, true)}).output(1);
        break;
      }
      case Instruction::kAddToVariable: {
        const Output v = variables_[Machine::VariableOf(one)];
        const Operation add = AssignAddVariableOp(at, v, a);
        value = ReadVariableOp(t.WithControlDependencies({add}), v, DT_INT32);
        break;
      }
      case Instruction::kQueue: {
        // Each has a queue of its own, so that no two wait for one element.
        const Output queue = FIFOQueueV2(t, {DT_INT32});
        const Operation put = QueueEnqueueV2(at, queue, Outputs{a});
        value = QueueDequeueV2(t.WithControlDependencies({put}), queue, {DT_INT32})[0];
        break;
      }
      case Instruction::kAssert: {
        const Output rest = FloorMod(t, a, Const(t, 16));
        const Output sound = NotEqual(t, rest, Const(t, one.number & 15));
        const Operation check = Assert(at, sound, Outputs{a});
        value = Identity(t.WithControlDependencies({check}), a);
        break;
      }
    }
    *last = value.op();
    return value;
  }

  // A function of exactly `inputs` (to which the captures are added) that calls `f`.
  std::string Wrapped(const Scope& at, const DefinedFunction& f, Outputs* inputs) {
    // Both branches of an If take all inputs: every variable's handle.
    std::vector<DType> types = {DT_INT32, DT_INT32};
    types.resize(2 + variables_.size(), DT_RESOURCE);
    if (inputs->size() == 2) {
      for (const Output& v : variables_) inputs->push_back(v);
    }
    return DefineFunction(at, "branch", types,
                          [&](const Scope& u, const Outputs& v) {
                            DefinedFunction inner = f;
                            for (Output& capture : inner.captures) {
                              for (size_t i = 0; i < variables_.size(); ++i) {
                                if (capture == variables_[i]) capture = v[2 + i];
                              }
                            }
                            return Call(u, inner, {v[0], v[1]});
                          })
        .name;
  }

  const Program& program_;
  mutable std::string failure_;
  Scope s_;
  const DefinedFunction none_;
  Outputs variables_, after_;
  std::vector<DefinedFunction> functions_;
  Operation init_;
  Output x_, y_, result_;
};

SessionOptions Options(bool inlined, int threads) {
  tensorflow::ConfigProto config;
  config.set_intra_op_parallelism_threads(threads);
  if (!inlined) {
    config.mutable_graph_options()->mutable_rewrite_options()->set_function_optimization(
        tensorflow::RewriterConfig::OFF);
  }
  SessionOptions options;
  options.config = SessionConfigOf(config);
  return options;
}

void Check(uint64_t seed) {
  SCOPED_TRACE(absl::StrCat("MILLRACE_SEED=", seed));
  const Program program = MakeProgram(seed);
  const int main = static_cast<int>(program.functions.size()) - 1;
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<std::pair<int32_t, int32_t>> inputs;
  for (int i = 0; i < 3; ++i) {
    inputs.emplace_back(static_cast<int32_t>(random()), static_cast<int32_t>(random()));
  }
  const GraphOf graph(program);
  ASSERT_OK(graph.scope().status());
  for (const bool inlined : {true, false}) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(inlined ? "inlined" : "called", " on ", threads, " threads"));
      ASSERT_OK_AND_ASSIGN(const auto session, NewSession(Options(inlined, threads)));
      ASSERT_OK(session->Extend(graph.scope()));
      for (const auto& [x, y] : inputs) {
        Machine machine{program};
        const std::optional<uint32_t> want =
            machine.Run(main, static_cast<uint32_t>(x), static_cast<uint32_t>(y));
        const auto got = graph.Run(session.get(), x, y);
        ASSERT_EQ(got.has_value(), want.has_value()) << graph.failure();
        if (!want) continue;
        std::vector<int32_t> all = {static_cast<int32_t>(*want)};
        for (const uint32_t v : machine.variables) all.push_back(static_cast<int32_t>(v));
        ASSERT_EQ(*got, all);
      }
    }
  }
}

TEST(RandomFunctions, GiveWhatASequentialInterpreterGives) {
  if (const char* const seed = std::getenv("MILLRACE_SEED")) {
    return Check(std::strtoull(seed, nullptr, 10));
  }
  for (uint64_t seed = 0; seed < 300 && !HasFatalFailure(); ++seed) Check(seed);
}

}  // namespace
}  // namespace millrace
