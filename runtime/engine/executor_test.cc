// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/executor.h"

#include <x86intrin.h>

#include <array>
#include <atomic>
#include <map>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/buffer.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "runtime/engine/detached_parts.h"
#include "runtime/rendezvous.h"
#include "runtime/testing/run_once.h"
#include "runtime/testing/step_ops.h"
#include "runtime/variable_storage.h"

// covers: steps: a kernel that drops its callback, calls it twice or never answers holds up neither
//   Run nor Close
// covers: steps: a dropped done callback fails its node, a second call is ignored
// covers: steps: errors: the first one wins, the node is named once, the line that built it follows

namespace millrace {
namespace {

using testing::AttrOf;
using testing::SetAsyncHook;
using testing::SetHook;
using testing::TestGraph;
using testing::TestStep;

// Who ran, how often, in which order.
class Journal {
 public:
  void Add(const std::string& name) {
    MutexLock lock(&mu_);
    order_.push_back(name);
  }
  std::vector<std::string> order() {
    MutexLock lock(&mu_);
    return order_;
  }
  std::map<std::string, int> counts() {
    std::map<std::string, int> counts;
    for (const std::string& name : order()) ++counts[name];
    return counts;
  }
  bool Has(const std::string& name) { return counts().count(name) != 0; }
  void Clear() {
    MutexLock lock(&mu_);
    order_.clear();
  }

 private:
  Mutex mu_;
  std::vector<std::string> order_ ABSL_GUARDED_BY(mu_);
};

class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest() {
    // Passes the sum of its inputs on to all outputs.
    SetHook("sum", [this](KernelContext* ctx) -> Status {
      journal_.Add(ctx->node_name());
      float sum = 0;
      for (int i = 0; i < ctx->num_inputs(); ++i) sum += ctx->input(i).scalar<float>();
      for (int i = 0; i < ctx->num_outputs(); ++i) {
        ctx->set_output(i, Tensor::Scalar<float>(sum));
        last_ = sum;
      }
      if (ctx->num_outputs() == 0) last_ = sum;
      return absl::OkStatus();
    });
    SetHook("fail", [this](KernelContext* ctx) -> Status {
      journal_.Add(ctx->node_name());
      return absl::InvalidArgumentError("wanted");
    });
  }
  ~ExecutorTest() override { testing::ClearHooks(); }

  Journal journal_;
  std::atomic<float> last_{0};
};

// --- Order and values ----------------------------------------------------------------------------

TEST_F(ExecutorTest, EveryNodeRunsOnceAfterItsInputs) {
  for (const int threads : {1, 2, 4}) {
    SCOPED_TRACE(threads);
    journal_.Clear();
    TestGraph graph;
    std::vector<Node*> nodes;
    std::map<std::string, std::vector<std::string>> inputs_of;
    uint64_t seed = 88172645463325252u;
    const auto next = [&seed] {
      seed ^= seed << 13;
      seed ^= seed >> 7;
      return seed ^= seed << 17;
    };
    for (int i = 0; i < 300; ++i) {
      std::vector<TestGraph::In> inputs;
      std::vector<Node*> controls;
      const std::string name = absl::StrCat("n", i);
      for (uint64_t k = 0; i > 0 && k <= next() % 3; ++k) {
        Node* from = nodes[next() % nodes.size()];
        if (k == 0) {
          controls.push_back(from);
        } else {
          inputs.push_back(from);
        }
        inputs_of[name].push_back(from->name());
      }
      nodes.push_back(graph.Probe(name, inputs, 1, "sum", controls));
    }
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    for (int run = 0; run < 20; ++run) {
      journal_.Clear();
      ASSERT_TRUE(executor->Run(step.context).ok());
      const std::vector<std::string> order = journal_.order();
      ASSERT_EQ(order.size(), 300u);
      std::set<std::string> seen;
      for (const std::string& name : order) {
        for (const std::string& input : inputs_of[name]) EXPECT_TRUE(seen.count(input)) << name;
        EXPECT_TRUE(seen.insert(name).second) << name << " ran twice";
      }
    }
  }
}

TEST_F(ExecutorTest, ValuesFollowTheirEdges) {
  TestGraph graph;
  Node* a = graph.Source("a", 2);
  Node* b = graph.Source("b", 3);
  Node* c = graph.Probe("c", {a, b, a}, 2, "sum");
  graph.Probe("d", {{c, 0}, {c, 1}, b}, 0, "sum");
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(last_, 7 + 7 + 3);
}

TEST_F(ExecutorTest, AnEmptyGraphIsDoneAtOnce) {
  TestGraph graph;
  EXPECT_TRUE(RunOnce(graph).ok());
}

TEST_F(ExecutorTest, AnyNumberOfInputsIsCounted) {
  TestGraph graph;
  std::vector<Node*> controls;
  for (int i = 0; i < 70'000; ++i) controls.push_back(graph.NoOp(absl::StrCat("n", i)));
  graph.Probe("all", {}, 0, "sum", controls);
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(journal_.order().size(), 1u);
}

TEST_F(ExecutorTest, StepsRunAtTheSameTimeWithoutSeeingEachOther) {
  TestGraph graph;
  SetHook("id", [](KernelContext* ctx) -> Status {
    ctx->set_output(0, Tensor::Scalar<float>(static_cast<float>(ctx->step_id())));
    return absl::OkStatus();
  });
  SetHook("check", [](KernelContext* ctx) -> Status {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (ctx->input(i).scalar<float>() != static_cast<float>(ctx->step_id())) {
        return absl::InternalError("a value of another step");
      }
    }
    return absl::OkStatus();
  });
  Node* id = graph.Probe("id", {}, 1, "id");
  std::vector<TestGraph::In> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(graph.Identity(absl::StrCat("i", i), id));
  graph.Probe("check", ids, 0, "check");
  TestStep shared(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, shared);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        CancellationManager cancellation;
        StepContext context = shared.context;
        context.step_id = t * 1000 + i;
        context.cancellation = &cancellation;
        if (!executor->Run(context).ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

// --- Dead tensors --------------------------------------------------------------------------------

struct DeadCase {
  const char* name;
  bool pred;
  std::vector<std::string> run;      // probes that run
  std::vector<std::string> not_run;  // probes that do not
};

TEST_F(ExecutorTest, DeadnessFollowsDataAndControlEdges) {
  const std::vector<DeadCase> cases = {
      {"true", true, {"t", "t_child", "t_control", "trigger_child"}, {"f", "f_child", "both"}},
      {"false", false, {"f", "f_child", "trigger_child"}, {"t", "t_child", "t_control", "both"}},
  };
  for (const int threads : {1, 2}) {
    for (const DeadCase& c : cases) {
      SCOPED_TRACE(c.name);
      journal_.Clear();
      TestGraph graph;
      Node* data = graph.Source("data", 1);
      Node* pred = graph.Bool("pred", c.pred);
      Node* sw = graph.Switch("switch", data, pred);
      Node* f = graph.Probe("f", {{sw, 0}}, 1, "sum");
      Node* t = graph.Probe("t", {{sw, 1}}, 1, "sum");
      graph.Probe("f_child", {f}, 1, "sum");
      graph.Probe("t_child", {t}, 1, "sum");
      graph.Probe("t_control", {data}, 1, "sum", {t});
      graph.Probe("both", {f, t}, 1, "sum");
      Node* trigger = graph.Add("ControlTrigger", "trigger", {}, {}, {f, t});
      graph.Probe("trigger_child", {}, 1, "sum", {trigger});
      ASSERT_TRUE(RunOnce(graph, threads).ok());
      for (const std::string& name : c.run) EXPECT_EQ(journal_.counts()[name], 1) << name;
      for (const std::string& name : c.not_run) EXPECT_FALSE(journal_.Has(name)) << name;
    }
  }
}

struct MergeCase {
  const char* name;
  bool first, second;               // which of the two Switches lets its value through
  bool dead_control, live_control;  // control inputs of the Merge
  int value_index;                  // -1: the Merge is dead
};

TEST_F(ExecutorTest, MergeTakesTheFirstLiveInput) {
  const std::vector<MergeCase> cases = {
      {"first live", true, false, false, false, 0},
      {"second live", false, true, false, false, 1},
      {"all dead", false, false, false, false, -1},
      {"a dead control input does not kill it", true, false, true, false, 0},
      {"live and dead control inputs", false, true, true, true, 1},
      {"all dead, live control input", false, false, false, true, -1},
      {"all dead, dead control input", false, false, true, false, -1},
  };
  for (const int threads : {1, 2}) {
    for (const MergeCase& c : cases) {
      SCOPED_TRACE(c.name);
      TestGraph graph;
      Node* a = graph.Source("a", 10);
      Node* b = graph.Source("b", 20);
      Node* sa = graph.Switch("sa", a, graph.Bool("pa", c.first));
      Node* sb = graph.Switch("sb", b, graph.Bool("pb", c.second));
      std::vector<Node*> controls;
      if (c.dead_control) {
        Node* sc = graph.Switch("sc", a, graph.Bool("pc", false));
        controls.push_back(graph.Identity("dead", {sc, 1}));
      }
      if (c.live_control) controls.push_back(graph.NoOp("live"));
      Node* merge = graph.Merge("merge", {{sa, 1}, {sb, 1}}, controls);
      int index = -1;
      float value = 0;
      SetHook("got", [&](KernelContext* ctx) -> Status {
        value = ctx->input(0).scalar<float>();
        return absl::OkStatus();
      });
      graph.Probe("got", {{merge, 0}}, 0, "got");
      Node* same = graph.Identity("same", {merge, 1});
      Node* child = graph.NoOp("child", {same});
      static_cast<void>(child);
      SetHook("alive", [&](KernelContext*) -> Status {
        index = 0;
        return absl::OkStatus();
      });
      graph.Probe("alive", {}, 0, "alive", {same});
      ASSERT_TRUE(RunOnce(graph, threads).ok());
      EXPECT_EQ(index, c.value_index < 0 ? -1 : 0);
      EXPECT_EQ(value, c.value_index < 0 ? 0 : c.value_index == 0 ? 10 : 20);
    }
  }
}

TEST_F(ExecutorTest, ASecondLiveInputOfAMergeIsDroppedAndItRunsOnce) {
  for (const int threads : {1, 2}) {
    journal_.Clear();
    TestGraph graph;
    Node* a = graph.Source("a", 10);
    Node* b = graph.Source("b", 20);
    Node* merge = graph.Merge("merge", {a, b});
    graph.Probe("got", {{merge, 0}}, 0, "sum");
    // A Merge that ran twice would make one run too many, which the executor refuses.
    const Status status = RunOnce(graph, threads);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(journal_.counts()["got"], 1);
    EXPECT_TRUE(last_ == 10 || last_ == 20) << last_;
  }
}

TEST_F(ExecutorTest, ConditionalsInsideOfConditionals) {
  // cond(p, cond(q, 1, 2), 3)
  for (const bool p : {false, true}) {
    for (const bool q : {false, true}) {
      TestGraph graph;
      Node* pred_p = graph.Bool("p", p);
      Node* pred_q = graph.Bool("q", q);
      Node* one = graph.Source("one", 1);
      Node* two = graph.Source("two", 2);
      Node* three = graph.Source("three", 3);
      Node* s1 = graph.Switch("s1", one, pred_p);
      Node* s2 = graph.Switch("s2", two, pred_p);
      Node* s3 = graph.Switch("s3", three, pred_p);
      Node* inner1 = graph.Switch("inner1", {s1, 1}, pred_q);
      Node* inner2 = graph.Switch("inner2", {s2, 1}, pred_q);
      Node* inner = graph.Merge("inner", {{inner2, 0}, {inner1, 1}});
      Node* outer = graph.Merge("outer", {{s3, 0}, {inner, 0}});
      graph.Probe("got", {{outer, 0}}, 0, "sum");
      ASSERT_TRUE(RunOnce(graph).ok());
      EXPECT_EQ(last_, p ? (q ? 1 : 2) : 3);
    }
  }
}

TEST_F(ExecutorTest, DeadValuesTravelThroughSendAndRecv) {
  for (const bool live : {false, true}) {
    SCOPED_TRACE(live);
    journal_.Clear();
    TestGraph graph;
    Node* sw = graph.Switch("switch", graph.Source("data", 5), graph.Bool("pred", live));
    const std::string device = "/job:localhost/replica:0/task:0/device:CPU:0";
    const auto ends = [&](const char* type) {
      return std::vector<std::pair<std::string, tensorflow::AttrValue>>{
          {type, AttrOf(DT_FLOAT)},
          {"tensor_name", AttrOf("edge_1_switch")},
          {"send_device", AttrOf(device)},
          {"send_device_incarnation", AttrOf(int64_t{1})},
          {"recv_device", AttrOf(device)}};
    };
    graph.Add("_Send", "send", {{sw, 1}}, ends("T"));
    Node* recv = graph.Add("_Recv", "recv", {}, ends("tensor_type"));
    graph.Probe("reader", {recv}, 0, "sum");
    // The Recv itself has run: only its value is dead.
    graph.Probe("after", {}, 0, "sum", {recv});
    ASSERT_TRUE(RunOnce(graph).ok());
    EXPECT_EQ(journal_.Has("reader"), live);
    EXPECT_TRUE(journal_.Has("after"));
  }
}

// --- Errors --------------------------------------------------------------------------------------

TEST_F(ExecutorTest, AnErrorStopsTheStepAndNamesOpAndNode) {
  TestGraph graph;
  Node* a = graph.Source("a", 1);
  Node* bad = graph.Probe("scope/bad", {a}, 1, "fail");
  graph.Probe("child", {bad}, 1, "sum");
  graph.Probe("after", {}, 1, "sum", {bad});
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  const Status status = executor->Run(step.context);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "TestProbe 'scope/bad': wanted\n\t [[{{node scope/bad}}]]");
  EXPECT_EQ(journal_.order(), std::vector<std::string>{"scope/bad"});
  EXPECT_TRUE(step.cancellation.IsCancelled());
  // The rendezvous passes the error on as somebody else's.
  const StatusOr<RendezvousKey> key =
      RendezvousKey::Parse(RendezvousKey::Make("/job:a/replica:0/task:0/device:CPU:0", 1,
                                               "/job:a/replica:0/task:0/device:CPU:0", "x", 0, 0));
  ASSERT_TRUE(key.ok());
  const Status sent = step.context.rendezvous->Send(*key, Tensor::Scalar<float>(1), false);
  EXPECT_TRUE(IsDerived(sent)) << sent;
  EXPECT_TRUE(absl::StrContains(sent.message(), "wanted")) << sent;
}

TEST_F(ExecutorTest, AnErrorStopsAStepThatCannotBeCancelledToo) {
  TestGraph graph;
  Node* bad = graph.Probe("bad", {}, 0, "fail");
  graph.Probe("other", {}, 0, "sum", {graph.NoOp("before")});
  static_cast<void>(bad);
  TestStep step;
  step.context.cancellation = nullptr;
  step.context.rendezvous = nullptr;
  EXPECT_EQ(MakeExecutor(graph, step)->Run(step.context).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(journal_.order(), std::vector<std::string>{"bad"});
}

TEST_F(ExecutorTest, AfterAnErrorTheNextStepStartsClean) {
  TestGraph graph;
  std::atomic<bool> fail{true};
  SetHook("sometimes", [&](KernelContext* ctx) -> Status {
    if (fail) return absl::AbortedError("not now");
    ctx->set_output(0, ctx->TakeInput(0));
    return absl::OkStatus();
  });
  Node* a = graph.Source("a", 1);
  Node* b = graph.Source("b", 2);
  Node* bad = graph.Probe("bad", {a}, 1, "sometimes");
  graph.Probe("sum", {bad, b, b}, 0, "sum");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 5; ++i) {
    fail = i % 2 == 0;
    CancellationManager cancellation;
    StepContext context = step.context;
    context.cancellation = &cancellation;
    context.rendezvous = MakeLocalRendezvous();
    EXPECT_EQ(executor->Run(context).ok(), i % 2 == 1);
  }
  EXPECT_EQ(last_, 5);
}

TEST_F(ExecutorTest, ExceptionsBecomeStatus) {
  struct Case {
    const char* name;
    std::function<void()> thrower;
    absl::StatusCode code;
    const char* text;
  };
  const std::vector<Case> cases = {
      {"bad_alloc", [] { throw std::bad_alloc(); }, absl::StatusCode::kResourceExhausted,
       "out of memory"},
      {"runtime_error", [] { throw std::runtime_error("onednn says no"); },
       absl::StatusCode::kInternal, "onednn says no"},
      {"int", [] { throw 3; }, absl::StatusCode::kInternal, "threw"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SetHook("throw", [&](KernelContext*) -> Status {
      c.thrower();
      return absl::OkStatus();
    });
    SetAsyncHook("throw", [&](KernelContext*, AsyncKernel::DoneCallback) { c.thrower(); });
    for (const bool async : {false, true}) {
      TestGraph graph;
      if (async) {
        graph.ProbeAsync("thrower", {}, 0, "throw");
      } else {
        graph.Probe("thrower", {}, 0, "throw");
      }
      const Status status = RunOnce(graph);
      EXPECT_EQ(status.code(), c.code) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "[[{{node thrower}}]]")) << status;
    }
  }
}

TEST_F(ExecutorTest, OutputsAreChecked) {
  SetHook("missing", [](KernelContext* ctx) -> Status {
    ctx->set_output(0, Tensor::Scalar<float>(1));
    return absl::OkStatus();
  });
  SetHook("wrong type", [](KernelContext* ctx) -> Status {
    for (int i = 0; i < 2; ++i) ctx->set_output(i, Tensor::Scalar<int32_t>(1));
    return absl::OkStatus();
  });
  for (const auto& [hook, text] :
       {std::pair("missing", "Missing 1-th output from"),
        std::pair("wrong type", "output 0 must be of type float, got int32")}) {
    TestGraph graph;
    graph.Probe("bad", {}, 2, hook);
    const Status status = RunOnce(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  }
}

TEST_F(ExecutorTest, APlanOfWhatCannotRunIsRefused) {
  TestStep step;
  const auto error = [&step](TestGraph& graph) {
    return Plan::Build(*graph.graph(), &step.device, nullptr).status();
  };
  {
    TestGraph graph;
    graph.Add("TestNoKernel", "nobody");
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "nobody")) << status;
  }
  {
    TestGraph graph;
    graph.Add("MadeUpOp", "strange");
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "MadeUpOp")) << status;
  }
  {
    TestGraph graph;
    graph.Add("TestThrowsInInit", "thrower");
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "building the kernel threw")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "thrower")) << status;
  }
  {
    TestGraph graph;
    Node* a = graph.NoOp("a");
    Node* b = graph.NoOp("b", {a});
    graph.graph()->AddControlEdge(b, a);
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "cycle")) << status;
  }
  {
    TestGraph graph;
    SetHook("unused", [](KernelContext*) { return absl::OkStatus(); });
    Node* probe = graph.Probe("open", {graph.Source("a", 1)}, 0, "unused");
    graph.graph()->RemoveNode(graph.graph()->FindNode("a"));
    static_cast<void>(probe);
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "input 0 must be connected")) << status;
  }
}

TEST(NodeErrorTest, PutsWhereInFrontAndTheSuffixBehindOnce) {
  const Status plain = absl::InvalidArgumentError("axis must be >= 0, got -1");
  const Status once = NodeError(plain, "Tile", "a/b");
  EXPECT_EQ(once.message(), "Tile 'a/b': axis must be >= 0, got -1\n\t [[{{node a/b}}]]");
  EXPECT_EQ(NodeError(absl::InvalidArgumentError("Tile 'a/b': bad"), "Tile", "a/b").message(),
            "Tile 'a/b': bad\n\t [[{{node a/b}}]]");
  EXPECT_EQ(NodeError(once, "Call", "c").message(), absl::StrCat(once.message(), "\n\t [[c]]"));
  const Status derived = Derived(once);
  EXPECT_EQ(NodeError(derived, "_Recv", "r"), derived);
  EXPECT_EQ(WithoutDerivedMark(derived), once);
  EXPECT_EQ(Derived(derived), derived);
  EXPECT_TRUE(NodeError(absl::OkStatus(), "X", "x").ok());
}

// --- References ----------------------------------------------------------------------------------

TEST_F(ExecutorTest, ReferencesAreReadWhenAKernelStarts) {
  auto variable = std::make_shared<VariableStorage>("v", DT_FLOAT, PartialShape(Shape()));
  testing::SetTestVariable("v", variable);
  TestGraph graph;
  Node* v = graph.Add("TestVariable", "scope/v", {}, {{"name", AttrOf("v")}});
  Node* assign = graph.Add("TestAssign", "assign", {v, graph.Source("value", 7)});
  Node* read = graph.Identity("read", v, {assign});
  Node* through = graph.Identity("through", assign);
  graph.Probe("sum", {read, through}, 0, "sum");
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(last_, 14);
}

TEST_F(ExecutorTest, AnUninitializedReferenceIsNamedByItsNode) {
  auto variable = std::make_shared<VariableStorage>("v", DT_FLOAT, PartialShape(Shape()));
  testing::SetTestVariable("v", variable);
  for (const char* reader : {"Identity", "TestUseRef"}) {
    TestGraph graph;
    Node* v = graph.Add("TestVariable", "scope/v", {}, {{"name", AttrOf("v")}});
    if (std::string(reader) == "Identity") {
      graph.Identity("reader", v);
    } else {
      graph.Add(reader, "reader", {v});
    }
    const Status status = RunOnce(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              absl::StrCat(reader,
                           " 'reader': Attempting to use uninitialized value scope/v"
                           "\n\t [[{{node reader}}]]"));
  }
}

// --- Memory --------------------------------------------------------------------------------------

TEST_F(ExecutorTest, TheOnlyReaderOwnsItsInput) {
  std::vector<const void*> places;
  SetHook("in place", [&](KernelContext* ctx) -> Status {
    EXPECT_TRUE(ctx->input(0).BufferIsUnique()) << ctx->node_name();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0, Shape()));
    out->mutable_raw<float>()[0] += 1;
    places.push_back(out->raw_data());
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* node = graph.Source("a", 0);
  for (int i = 0; i < 5; ++i) node = graph.Probe(absl::StrCat("n", i), {node}, 1, "in place");
  graph.Probe("sum", {node}, 0, "sum");
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(last_, 5);
  EXPECT_EQ(std::set<const void*>(places.begin(), places.end()).size(), 1u);
}

TEST_F(ExecutorTest, TheLastOfSeveralReadersOwnsItsInput) {
  std::vector<bool> unique;
  SetHook("read", [&](KernelContext* ctx) -> Status {
    unique.push_back(ctx->input(0).BufferIsUnique());
    EXPECT_EQ(ctx->input(0).scalar<float>(), 4);
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* a = graph.Source("a", 4);
  for (int i = 0; i < 4; ++i) graph.Probe(absl::StrCat("r", i), {a}, 0, "read");
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(unique, (std::vector<bool>{false, false, false, true}));
}

TEST_F(ExecutorTest, ValuesAreFreedWhenTheirLastReaderIsDone) {
  std::atomic<bool> freed{false};
  SetHook("make", [&](KernelContext* ctx) -> Status {
    static float memory[16];
    BufferRef buffer = Buffer::External(memory, sizeof(memory), [&freed] { freed = true; });
    MR_ASSIGN_OR_RETURN(Tensor t, Tensor::FromBuffer(DT_FLOAT, Shape(), std::move(buffer), 0));
    ctx->set_output(0, std::move(t));
    return absl::OkStatus();
  });
  bool freed_at_check = false;
  SetHook("check", [&](KernelContext*) -> Status {
    freed_at_check = freed;
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* made = graph.Probe("make", {}, 1, "make");
  Node* reader = graph.Probe("reader", {made}, 0, "sum");
  graph.Probe("check", {}, 0, "check", {reader});
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_TRUE(freed_at_check);
}

TEST_F(ExecutorTest, ValuesOfAFailedStepAreFreedBeforeItsEnd) {
  std::atomic<int> alive{0};
  SetHook("make", [&](KernelContext* ctx) -> Status {
    static float memory[16];
    ++alive;
    BufferRef buffer = Buffer::External(memory, sizeof(memory), [&alive] { --alive; });
    MR_ASSIGN_OR_RETURN(Tensor t, Tensor::FromBuffer(DT_FLOAT, Shape(), std::move(buffer), 0));
    ctx->set_output(0, std::move(t));
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* made = graph.Probe("make", {}, 1, "make");
  Node* bad = graph.Probe("bad", {}, 1, "fail", {made});
  graph.Probe("reader", {made, bad}, 0, "sum");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  EXPECT_FALSE(executor->Run(step.context).ok());
  EXPECT_EQ(alive, 0);
}

// --- Asynchronous kernels ------------------------------------------------------------------------

// A place where asynchronous kernels wait until a test lets them go.
class Gate {
 public:
  void Wait(KernelContext* ctx, AsyncKernel::DoneCallback done) {
    MutexLock lock(&mu_);
    for (int i = 0; i < ctx->num_outputs(); ++i) ctx->set_output(i, Tensor::Scalar<float>(1));
    waiting_.push_back(std::move(done));
    changed_.SignalAll();
  }
  void AwaitWaiters(size_t n) {
    MutexLock lock(&mu_);
    while (waiting_.size() < n) changed_.Wait(&mu_);
  }
  // Lets everybody go, in the calling thread.
  size_t Open(const Status& status = absl::OkStatus()) {
    std::vector<AsyncKernel::DoneCallback> going;
    {
      MutexLock lock(&mu_);
      going.swap(waiting_);
    }
    for (AsyncKernel::DoneCallback& done : going) done(status);
    return going.size();
  }
  // Forgets everybody, in the calling thread.
  void Drop() {
    std::vector<AsyncKernel::DoneCallback> dropped;
    MutexLock lock(&mu_);
    dropped.swap(waiting_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<AsyncKernel::DoneCallback> waiting_ ABSL_GUARDED_BY(mu_);
};

TEST_F(ExecutorTest, MoreWaitingKernelsThanThreadsDoNotStopAStep) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    journal_.Clear();
    Gate gate;
    SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    TestGraph graph;
    std::vector<TestGraph::In> waiting;
    for (int i = 0; i < 50; ++i) {
      waiting.push_back(graph.ProbeAsync(absl::StrCat("wait", i), {}, 1, "wait"));
    }
    graph.Probe("sum", waiting, 0, "sum");
    graph.Probe("meanwhile", {graph.Source("a", 1)}, 0, "sum");
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::thread opener([&] {
      gate.AwaitWaiters(50);
      gate.Open();
    });
    ASSERT_TRUE(executor->Run(step.context).ok());
    opener.join();
    EXPECT_TRUE(journal_.Has("meanwhile"));
    EXPECT_EQ(last_, 50);
  }
}

TEST_F(ExecutorTest, AnAsynchronousKernelMayFinishBeforeItReturns) {
  SetAsyncHook("now", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    ctx->set_output(0, Tensor::Scalar<float>(ctx->input(0).scalar<float>() + 1));
    done(absl::OkStatus());
  });
  TestGraph graph;
  Node* node = graph.Source("a", 0);
  for (int i = 0; i < 100; ++i) node = graph.ProbeAsync(absl::StrCat("n", i), {node}, 1, "now");
  graph.Probe("sum", {node}, 0, "sum");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(executor->Run(step.context).ok());
  EXPECT_EQ(last_, 100);
  EXPECT_EQ(executor->counters().wakeups, 0);
  EXPECT_EQ(executor->counters().blocking_waits, 0);
}

TEST_F(ExecutorTest, LongChainsOfWaitingKernelsKeepTheStackFlat) {
  // Each node is finished by another thread, which must not run the rest of the step inside.
  Gate gate;
  SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  Node* node = graph.Source("a", 0);
  for (int i = 0; i < 500; ++i) node = graph.ProbeAsync(absl::StrCat("n", i), {node}, 1, "wait");
  graph.Probe("sum", {node}, 0, "sum");
  TestStep step(1);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  std::thread opener([&] {
    for (size_t opened = 0; opened < 500;) {
      gate.AwaitWaiters(1);
      opened += gate.Open();
    }
  });
  ASSERT_TRUE(executor->Run(step.context).ok());
  opener.join();
  EXPECT_EQ(last_, 1);
}

TEST_F(ExecutorTest, AnErrorOfAnAsynchronousKernelEndsTheStepOnce) {
  for (const int threads : {1, 2}) {
    Gate gate;
    SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    TestGraph graph;
    for (int i = 0; i < 8; ++i) graph.ProbeAsync(absl::StrCat("n", i), {}, 1, "wait");
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::atomic<int> calls{0};
    Notification finished;
    Status result;
    const PartitionRun part = {executor.get(), &step.context};
    DetachedParts parts;
    parts.Start({&part, 1}, {}, [&](Status status) {
      ++calls;
      result = status;
      finished.Notify();
    });
    gate.AwaitWaiters(8);
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(gate.Open(absl::OutOfRangeError("no more")), 8u);
    finished.Wait();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(result.code(), absl::StatusCode::kOutOfRange);
    EXPECT_TRUE(absl::StrContains(result.message(), "TestProbeAsync 'n")) << result;
  }
}

TEST_F(ExecutorTest, DetachedPartsReturnWhileKernelsWait) {
  for (const int threads : {1, 2}) {
    journal_.Clear();
    Gate gate;
    SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    TestGraph graph;
    Node* waiting = graph.ProbeAsync("wait", {}, 1, "wait");
    Node* a = graph.Probe("a", {waiting}, 1, "sum");
    graph.Probe("b", {a, waiting}, 0, "sum");
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    Notification finished;
    const PartitionRun part = {executor.get(), &step.context};
    DetachedParts parts;
    parts.Start({&part, 1}, {}, [&](Status status) {
      EXPECT_TRUE(status.ok()) << status;
      finished.Notify();
    });
    EXPECT_FALSE(finished.HasBeenNotified());
    EXPECT_EQ(gate.Open(), 1u);
    finished.Wait();
    EXPECT_EQ(last_, 2);
  }
}

// --- Kernels that break the rules of `done`
// ---------------------------------------------------------

TEST_F(ExecutorTest, AKernelThatDropsDoneFailsItsNode) {
  SetAsyncHook("drop", [](KernelContext*, AsyncKernel::DoneCallback) {});
  for (const int threads : {1, 2}) {
    TestGraph graph;
    graph.NoOp("after", {graph.ProbeAsync("drop", {}, 0, "drop")});
    const Status status = RunOnce(graph, threads);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(status.message(),
              "TestProbeAsync 'drop': the kernel dropped its done callback without calling it"
              "\n\t [[{{node drop}}]]");
  }
}

TEST_F(ExecutorTest, AKernelThatDropsDoneLaterOnAnotherThreadEndsTheStep) {
  Gate gate;
  SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  graph.NoOp("after", {graph.ProbeAsync("drop", {}, 0, "wait")});
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  std::thread dropper([&] {
    gate.AwaitWaiters(1);
    gate.Drop();
  });
  const Status status = executor->Run(step.context);
  dropper.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "TestProbeAsync 'drop': the kernel dropped"))
      << status;
}

TEST_F(ExecutorTest, ASecondCallOfDoneChangesNothing) {
  SetAsyncHook("twice", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    ctx->set_output(0, Tensor::Scalar<float>(1));
    done(absl::OkStatus());
    done(absl::InternalError("again"));
  });
  TestGraph graph;
  Node* node = graph.ProbeAsync("twice", {}, 1, "twice");
  graph.Probe("sum", {node}, 0, "sum");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 3; ++i) {
    const Status status = executor->Run(step.context);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(last_, 1);
  }
}

TEST_F(ExecutorTest, AKernelThatThrowsAfterItGaveDoneAwayHasFailedWhenDoneIsCalled) {
  Gate gate;
  SetAsyncHook("throw", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
    throw std::runtime_error("too late");
  });
  TestGraph graph;
  graph.NoOp("after", {graph.ProbeAsync("thrower", {}, 1, "throw")});
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  Notification finished;
  Status result;
  const PartitionRun part = {executor.get(), &step.context};
  DetachedParts parts;
  parts.Start({&part, 1}, {}, [&](Status status) {
    result = status;
    finished.Notify();
  });
  EXPECT_FALSE(finished.HasBeenNotified());
  EXPECT_EQ(gate.Open(), 1u);
  finished.Wait();
  EXPECT_EQ(result.message(),
            "TestProbeAsync 'thrower': the kernel threw: too late\n\t [[{{node thrower}}]]");
}

// A step whose parts have one owner, so that it can be left to a kernel that does not answer.
struct OwnedStep {
  explicit OwnedStep(int threads) : step(threads) {}
  TestStep step;
};

TEST_F(ExecutorTest, AKernelThatNeverAnswersIsNamedAtTheDeadlineAndKeepsWhatItUses) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    Gate gate;
    KernelContext* seen = nullptr;
    SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      seen = ctx;
      gate.Wait(ctx, std::move(done));
    });
    auto owned = std::make_shared<OwnedStep>(threads);
    const std::weak_ptr<OwnedStep> watch = owned;
    {
      TestGraph graph;
      Node* silent = graph.ProbeAsync("scope/silent", {graph.Source("a", 7)}, 1, "silent");
      graph.Probe("reader", {silent}, 0, "sum");
      std::unique_ptr<Executor> executor = MakeExecutor(graph, owned->step);
      const Status status = executor->Run(
          owned->step.context, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = owned});
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_EQ(status.message(),
                "Timed out waiting for notification; the step waited for TestProbeAsync "
                "'scope/silent'");
      owned.reset();
    }
    ASSERT_FALSE(watch.expired());
    EXPECT_EQ(seen->input(0).scalar<float>(), 7);
    EXPECT_TRUE(seen->cancellation()->IsCancelled());
    EXPECT_EQ(seen->node_name(), "scope/silent");
    seen->set_output(0, Tensor::Scalar<float>(2));
    gate.Open();
    EXPECT_TRUE(watch.expired());
    EXPECT_FALSE(journal_.Has("reader"));
  }
}

TEST_F(ExecutorTest, DetachedPartsNameAKernelThatNeverAnswersAndLeaveItBehind) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    Gate gate;
    SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    auto owned = std::make_shared<OwnedStep>(threads);
    const std::weak_ptr<OwnedStep> watch = owned;
    {
      TestGraph graph;
      Node* silent = graph.ProbeAsync("scope/silent", {}, 1, "silent");
      graph.Probe("reader", {silent}, 0, "sum");
      std::unique_ptr<Executor> executor = MakeExecutor(graph, owned->step);
      const PartitionRun part = {executor.get(), &owned->step.context};
      DetachedParts parts;
      int ended = 0;
      Status result;
      parts.Start({&part, 1}, {.keep = std::move(owned)}, [&](Status status) {
        ++ended;
        result = std::move(status);
      });
      parts.EndOverdue().IgnoreError();
      EXPECT_EQ(ended, 0);
      EXPECT_TRUE(parts.LeaveSilent());
      EXPECT_EQ(ended, 1);
      EXPECT_EQ(result.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_EQ(result.message(),
                "Timed out waiting for notification; the step waited for TestProbeAsync "
                "'scope/silent'");
      EXPECT_TRUE(parts.LeaveSilent());
    }
    EXPECT_FALSE(watch.expired());
    gate.Open();
    EXPECT_TRUE(watch.expired());
    EXPECT_FALSE(journal_.Has("reader"));
  }
}

TEST_F(ExecutorTest, AStepThatWasAbandonedIsNotInTheWayOfTheNextOne) {
  Gate gate;
  std::atomic<bool> wait{true};
  SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    if (wait) return gate.Wait(ctx, std::move(done));
    ctx->set_output(0, Tensor::Scalar<float>(5));
    done(absl::OkStatus());
  });
  TestGraph graph;
  graph.Probe("reader", {graph.ProbeAsync("silent", {}, 1, "silent")}, 0, "sum");
  auto first = std::make_shared<OwnedStep>(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, first->step);
  const Status overdue = executor->Run(
      first->step.context, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = first});
  EXPECT_EQ(overdue.code(), absl::StatusCode::kDeadlineExceeded) << overdue;
  CancellationManager cancellation;
  StepContext context = first->step.context;
  context.cancellation = &cancellation;
  context.rendezvous = MakeLocalRendezvous();
  wait = false;
  const Status status = executor->Run(context);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(last_, 5);
  gate.Open();
}

TEST_F(ExecutorTest, AnErrorBeforeTheDeadlineIsReportedInsteadOfIt) {
  Gate gate;
  SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  Node* silent = graph.ProbeAsync("silent", {}, 0, "silent");
  graph.Probe("bad", {}, 0, "fail", {graph.NoOp("first")});
  graph.NoOp("after", {silent});
  auto owned = std::make_shared<OwnedStep>(1);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, owned->step);
  const Status status = executor->Run(
      owned->step.context, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = owned});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(status.message(), "TestProbe 'bad': wanted\n\t [[{{node bad}}]]");
  gate.Open();
}

TEST_F(ExecutorTest, WhatAnswersTheCancellationEndsAnOverdueStepWithoutBeingAbandoned) {
  // Without `keep` Run must wait, and does not have to wait long.
  Gate gate;
  SetAsyncHook("late", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  for (int i = 0; i < 12; ++i) graph.ProbeAsync(absl::StrCat("late", i), {}, 0, "late");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  CancellationManager::Token token;
  ASSERT_TRUE(step.cancellation.Register(
      &token, [&] { gate.Open(absl::CancelledError("wait was cancelled")); }));
  const Status status =
      executor->Run(step.context, {.deadline = absl::Now() + absl::Milliseconds(20)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "TestProbeAsync 'late0', ")) << status;
  EXPECT_TRUE(absl::EndsWith(status.message(), " and 4 more")) << status;
}

// --- Cancellation --------------------------------------------------------------------------------

TEST_F(ExecutorTest, CancellationBetweenAnyTwoNodesStopsTheStep) {
  constexpr int kNodes = 20;
  for (int at = 0; at < kNodes; ++at) {
    journal_.Clear();
    TestStep step(2);
    SetHook("node", [&](KernelContext* ctx) -> Status {
      journal_.Add(ctx->node_name());
      if (journal_.order().size() == static_cast<size_t>(at + 1)) step.cancellation.StartCancel();
      ctx->set_output(0, ctx->TakeInput(0));
      return absl::OkStatus();
    });
    TestGraph graph;
    Node* node = graph.Source("a", 0);
    for (int i = 0; i < kNodes; ++i) node = graph.Probe(absl::StrCat("n", i), {node}, 1, "node");
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    const Status status = executor->Run(step.context);
    EXPECT_EQ(journal_.order().size(), static_cast<size_t>(at + 1));
    if (at + 1 < kNodes) {
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_TRUE(IsDerived(status));
    }
  }
}

TEST_F(ExecutorTest, CancellationEndsAStepThatOnlyWaits) {
  SetAsyncHook("cancellable", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
    CancellationManager::Token token;
    if (!ctx->cancellation()->Register(
            &token, [shared] { (*shared)(absl::CancelledError("wait was cancelled")); })) {
      (*shared)(absl::CancelledError("wait was cancelled"));
    }
  });
  for (const int threads : {1, 2}) {
    TestGraph graph;
    for (int i = 0; i < 5; ++i) {
      graph.NoOp(absl::StrCat("after", i),
                 {graph.ProbeAsync(absl::StrCat("wait", i), {}, 0, "cancellable")});
    }
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::thread canceller([&] { step.cancellation.StartCancel(); });
    const Status status = executor->Run(step.context);
    canceller.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
}

TEST_F(ExecutorTest, ARecvThatNobodyServesEndsAtTheDeadlineOrByCancellation) {
  const std::string device = "/job:localhost/replica:0/task:0/device:CPU:0";
  TestGraph graph;
  Node* recv = graph.Add("_Recv", "recv", {},
                         {{"tensor_type", AttrOf(DT_FLOAT)},
                          {"tensor_name", AttrOf("nobody_sends_this")},
                          {"send_device", AttrOf(device)},
                          {"send_device_incarnation", AttrOf(int64_t{1})},
                          {"recv_device", AttrOf(device)}});
  graph.Probe("reader", {recv}, 0, "sum");
  {
    TestStep step;
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    const Status status =
        executor->Run(step.context, {.deadline = absl::Now() + absl::Milliseconds(20)});
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "Timed out waiting for notification"));
    EXPECT_EQ(executor->counters().blocking_waits, 1);
  }
  {
    TestStep step;
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::thread canceller([&] { step.cancellation.StartCancel(); });
    EXPECT_EQ(executor->Run(step.context).code(), absl::StatusCode::kCancelled);
    canceller.join();
  }
}

TEST_F(ExecutorTest, ADeadlineThatPassedStopsBetweenNodes) {
  TestGraph graph;
  Node* a = graph.Source("a", 1);
  graph.Probe("never", {a}, 0, "sum");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  const Status status = executor->Run(step.context, {.deadline = absl::InfinitePast()});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(journal_.order().empty());
}

// --- Parallelism ---------------------------------------------------------------------------------

TEST_F(ExecutorTest, TwoExpensiveNodesRunAtTheSameTime) {
  // Each waits until the other one has begun: with one thread this would never end.
  std::atomic<int> begun{0};
  std::atomic<bool> meet{false};
  SetHook("work", [&](KernelContext*) -> Status {
    if (meet) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
    }
    return absl::OkStatus();
  });
  TestGraph graph;
  graph.Probe("x", {}, 0, "work");
  graph.Probe("y", {}, 0, "work");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  meet = true;  // kernels that were never measured count as expensive
  ASSERT_TRUE(executor->Run(step.context).ok());
  EXPECT_EQ(begun, 2);
  EXPECT_GE(executor->counters().wakeups, 1);
}

TEST_F(ExecutorTest, OneExpensiveNodeAtATimeWakesNobody) {
  TestGraph graph;
  Node* previous = graph.NoOp("start");
  for (int i = 0; i < 10; ++i) {
    previous = graph.Add("TestSpin", absl::StrCat("spin", i), {},
                         {{"cycles", AttrOf(int64_t{100'000})}}, {previous});
  }
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(executor->Run(step.context).ok());
  EXPECT_EQ(executor->counters().wakeups, 0);
}

TEST_F(ExecutorTest, MeasuredCheapNodesWakeNobodyAndBecomeExpensiveAgain) {
  std::atomic<int64_t> cycles{0};
  SetHook("work", [&](KernelContext*) -> Status {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(cycles)) {
    }
    return absl::OkStatus();
  });
  TestGraph graph;
  for (int i = 0; i < 10; ++i) graph.Probe(absl::StrCat("n", i), {}, 0, "work");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  const auto wakeups_of = [&](int steps) {
    const int64_t before = executor->counters().wakeups;
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(executor->Run(step.context).ok());
    return executor->counters().wakeups - before;
  };
  wakeups_of(100);
  // A descheduled thread makes a cheap node look expensive for a while: rare, not never.
  EXPECT_LT(wakeups_of(100), 20);
  cycles = 200;
  wakeups_of(100);
  EXPECT_GE(wakeups_of(20), 20);
}

TEST_F(ExecutorTest, ParallelStepsGiveTheResultsOfSerialOnes) {
  TestGraph graph;
  std::vector<TestGraph::In> last;
  for (int chain = 0; chain < 8; ++chain) {
    Node* node = graph.Source(absl::StrCat("s", chain), static_cast<float>(chain));
    for (int i = 0; i < 10; ++i) {
      Node* spin = graph.Add("TestSpin", absl::StrCat("spin", chain, "_", i), {},
                             {{"cycles", AttrOf(int64_t{40'000})}}, {node});
      node = graph.Probe(absl::StrCat("n", chain, "_", i), {node}, 1, "sum", {spin});
    }
    last.push_back(node);
  }
  graph.Probe("total", last, 0, "sum");
  for (const int threads : {1, 2, 4}) {
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(executor->Run(step.context).ok());
      EXPECT_EQ(last_, 28);
    }
  }
}

TEST_F(ExecutorTest, ErrorsWhileSeveralThreadsWorkEndTheStepOnce) {
  TestGraph graph;
  SetHook("spin or fail", [](KernelContext* ctx) -> Status {
    if (absl::EndsWith(ctx->node_name(), "7")) return absl::DataLossError("seven");
    return absl::OkStatus();
  });
  for (int i = 0; i < 40; ++i) {
    Node* spin =
        graph.Add("TestSpin", absl::StrCat("spin", i), {}, {{"cycles", AttrOf(int64_t{40'000})}});
    graph.Probe(absl::StrCat("n", i), {}, 0, "spin or fail", {spin});
  }
  TestStep step(4);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 50; ++i) {
    CancellationManager cancellation;
    StepContext context = step.context;
    context.cancellation = &cancellation;
    context.rendezvous = MakeLocalRendezvous();
    EXPECT_EQ(executor->Run(context).code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(ExecutorTest, HandingOverInTheMiddleOfALongListOfEdgesLosesNoArrival) {
  // `root` makes two expensive nodes ready, hands one over and goes on with its many edges to
  // `join`, while those of the other node arrive there from another thread.
  constexpr int kEdges = 20'000;
  SetHook("spin", [](KernelContext* ctx) -> Status {
    const uint64_t begin = __rdtsc();
    while (__rdtsc() - begin < 30'000) {
    }
    ctx->set_output(0, Tensor::Scalar<float>(1));
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* root = graph.Source("root", 1);
  Node* spins[2] = {graph.Probe("spin0", {}, 1, "spin", {root}),
                    graph.Probe("spin1", {}, 1, "spin", {root})};
  std::vector<TestGraph::In> inputs;
  for (int i = 0; i < kEdges; ++i) inputs.push_back(root);
  for (int i = 0; i < kEdges; ++i) inputs.push_back(spins[0]);
  for (int i = 0; i < kEdges; ++i) inputs.push_back(spins[1]);
  graph.Probe("join", inputs, 0, "sum");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 50; ++i) {
    const Status status = executor->Run(step.context);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(last_, 3 * kEdges);
  }
}

TEST_F(ExecutorTest, NothingIsLostWhenAKernelFinishesWhileTheLastLoopLeaves) {
  // Another thread spins for `done` and calls it the moment it sees it.
  constexpr int kNodes = 200, kSteps = 100;
  std::atomic<AsyncKernel::DoneCallback*> box{nullptr};
  SetAsyncHook("box", [&](KernelContext*, AsyncKernel::DoneCallback done) {
    box.store(new AsyncKernel::DoneCallback(std::move(done)));
  });
  TestGraph graph;
  Node* node = graph.NoOp("start");
  for (int i = 0; i < kNodes; ++i) {
    // What the loop has to do before it leaves.
    for (int k = 0; k < i % 40; ++k) graph.NoOp(absl::StrCat("n", i, "_", k), {node});
    node = graph.ProbeAsync(absl::StrCat("n", i), {}, 0, "box", {node});
  }
  for (const int threads : {1, 2}) {
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::atomic<bool> stop{false};
    std::thread finisher([&] {
      uint32_t seed = 1;
      while (!stop) {
        AsyncKernel::DoneCallback* done = box.exchange(nullptr);
        if (done == nullptr) continue;
        // A little later or earlier each time, to meet every moment of the other thread.
        seed = seed * 1664525u + 1013904223u;
        for (uint32_t i = 0; i < seed >> 22; ++i) asm volatile("");
        (*done)(absl::OkStatus());
        delete done;
      }
    });
    for (int i = 0; i < kSteps; ++i) {
      const Status status = executor->Run(step.context);
      ASSERT_TRUE(status.ok()) << status;
    }
    stop = true;
    finisher.join();
  }
}

// --- Partitions ----------------------------------------------------------------------------------

class PartitionTest : public ExecutorTest {
 protected:
  static constexpr const char* kDevices[2] = {"/job:localhost/replica:0/task:0/device:CPU:0",
                                              "/job:localhost/replica:0/task:0/device:CPU:1"};
  static std::vector<std::pair<std::string, tensorflow::AttrValue>> Ends(const char* type,
                                                                         const std::string& edge,
                                                                         int from) {
    return {{type, AttrOf(DT_FLOAT)},
            {"tensor_name", AttrOf(edge)},
            {"send_device", AttrOf(std::string(kDevices[from]))},
            {"send_device_incarnation", AttrOf(int64_t{1})},
            {"recv_device", AttrOf(std::string(kDevices[1 - from]))}};
  }
};

TEST_F(PartitionTest, AValueThatGoesToAndFroEndsWhereItShould) {
  constexpr int kHops = 200;
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    TestGraph graphs[2];
    Node* value = graphs[0].Source("start", 0);
    for (int hop = 0; hop < kHops; ++hop) {
      const int here = hop % 2;
      const std::string edge = absl::StrCat("edge_", hop, "_x");
      graphs[here].Add("_Send", absl::StrCat("send", hop), {value}, Ends("T", edge, here));
      Node* recv = graphs[1 - here].Add("_Recv", absl::StrCat("recv", hop), {},
                                        Ends("tensor_type", edge, here));
      Node* one = graphs[1 - here].Source(absl::StrCat("one", hop), 1);
      value = graphs[1 - here].Probe(absl::StrCat("add", hop), {recv, one}, 1, "sum");
    }
    graphs[kHops % 2].Probe("end", {value}, 0, "sum");
    TestStep steps[2] = {TestStep(threads), TestStep(threads)};
    steps[1].context.rendezvous = steps[0].context.rendezvous;
    steps[1].context.cancellation = steps[0].context.cancellation;
    std::unique_ptr<Executor> executors[2] = {MakeExecutor(graphs[0], steps[0]),
                                              MakeExecutor(graphs[1], steps[1])};
    for (int i = 0; i < 3; ++i) {
      const std::array<PartitionRun, 2> runs = {
          PartitionRun{executors[0].get(), &steps[0].context},
          PartitionRun{executors[1].get(), &steps[1].context}};
      last_ = 0;
      ASSERT_TRUE(RunPartitions(runs).ok());
      EXPECT_EQ(last_, kHops);
    }
  }
}

TEST_F(PartitionTest, ThePlansOfAStepNumberTheirTransfersTogether) {
  TestGraph graphs[2];
  for (const int here : {0, 1}) {
    Node* made = graphs[here].Source("made", 1);
    graphs[here].Add("_Send", "send", {made}, Ends("T", absl::StrCat("edge", here), here));
    graphs[here].Add("_Recv", "recv", {},
                     Ends("tensor_type", absl::StrCat("edge", 1 - here), 1 - here));
  }
  TestStep step;
  const auto table = std::make_shared<TransferTable>();
  uint32_t sends[2], recvs[2];
  for (const int here : {0, 1}) {
    const auto plan = Plan::Build(*graphs[here].graph(), &step.device, nullptr, table);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ((*plan)->transfer_table(), table);
    ASSERT_EQ((*plan)->transfers().size(), 2u);
    for (const Plan::TransferEnd& end : (*plan)->transfers()) {
      const Plan::Node& node = (*plan)->nodes()[end.node];
      EXPECT_EQ(*node.name, end.is_send ? "send" : "recv");
      EXPECT_EQ(end.key.edge_name, absl::StrCat("edge", end.is_send ? here : 1 - here));
      EXPECT_EQ((*plan)->TransferLabel(node),
                absl::StrCat(end.key.edge_name, " @", kDevices[1 - here]));
      EXPECT_EQ(table->NumberOfKey(end.key.text), end.number);
      (end.is_send ? sends : recvs)[here] = end.number;
    }
    for (const Plan::Node& node : (*plan)->nodes()) {
      if (*node.name == "made") {
        EXPECT_EQ((*plan)->TransferLabel(node), "");
      }
    }
  }
  EXPECT_EQ(table->size(), 2u);
  EXPECT_EQ(sends[0], recvs[1]);
  EXPECT_EQ(sends[1], recvs[0]);
  EXPECT_NE(sends[0], sends[1]);
}

TEST_F(PartitionTest, ASilentPartDoesNotHideTheErrorOfAnother) {
  Gate gate;
  SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  for (const int failing : {0, 1}) {
    TestGraph graphs[2];
    graphs[failing].Probe("bad", {}, 0, "fail");
    graphs[1 - failing].NoOp("after", {graphs[1 - failing].ProbeAsync("silent", {}, 0, "silent")});
    struct Steps {
      TestStep steps[2];
    };
    auto owned = std::make_shared<Steps>();
    TestStep* const steps = owned->steps;
    steps[1].context.rendezvous = steps[0].context.rendezvous;
    steps[1].context.cancellation = steps[0].context.cancellation;
    std::unique_ptr<Executor> executors[2] = {MakeExecutor(graphs[0], steps[0]),
                                              MakeExecutor(graphs[1], steps[1])};
    const std::array<PartitionRun, 2> runs = {PartitionRun{executors[0].get(), &steps[0].context},
                                              PartitionRun{executors[1].get(), &steps[1].context}};
    const Status status =
        RunPartitions(runs, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = owned});
    EXPECT_EQ(status.message(), "TestProbe 'bad': wanted\n\t [[{{node bad}}]]");
    gate.Open();
  }
}

TEST_F(PartitionTest, TheErrorOfThePartThatFailedIsReported) {
  for (const int failing : {0, 1}) {
    TestGraph graphs[2];
    // Both wait for each other's value; one fails instead of sending.
    for (int here : {0, 1}) {
      Node* made = graphs[here].Probe("make", {}, 1, here == failing ? "fail" : "sum");
      graphs[here].Add("_Send", "send", {made}, Ends("T", absl::StrCat("edge", here), here));
      Node* recv = graphs[here].Add("_Recv", "recv", {},
                                    Ends("tensor_type", absl::StrCat("edge", 1 - here), 1 - here));
      graphs[here].Probe("reader", {recv}, 0, "sum");
    }
    TestStep steps[2];
    steps[1].context.rendezvous = steps[0].context.rendezvous;
    steps[1].context.cancellation = steps[0].context.cancellation;
    std::unique_ptr<Executor> executors[2] = {MakeExecutor(graphs[0], steps[0]),
                                              MakeExecutor(graphs[1], steps[1])};
    const std::array<PartitionRun, 2> runs = {PartitionRun{executors[0].get(), &steps[0].context},
                                              PartitionRun{executors[1].get(), &steps[1].context}};
    const Status status = RunPartitions(runs);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(status.message(), "TestProbe 'make': wanted\n\t [[{{node make}}]]");
  }
}

// --- Traces --------------------------------------------------------------------------------------

TEST_F(ExecutorTest, ATracedStepTellsWhatEveryNodeDid) {
  TestGraph graph;
  Node* a = graph.Source("a", 2);
  Node* b = graph.Probe("b", {a, a}, 2, "sum");
  graph.Probe("c", {{b, 1}}, 0, "sum");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  StepStatsCollector collector;
  ASSERT_TRUE(executor->Run(step.context, {.stats = &collector}).ok());
  tensorflow::StepStats stats;
  collector.TakeInto(&stats);
  ASSERT_EQ(stats.dev_stats_size(), 1);
  EXPECT_EQ(stats.dev_stats(0).device(), step.device.name);
  std::map<std::string, tensorflow::NodeExecStats> nodes;
  for (const auto& node : stats.dev_stats(0).node_stats()) nodes[node.node_name()] = node;
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes["b"].timeline_label(), "b = TestProbe(a, a)");
  EXPECT_EQ(nodes["c"].timeline_label(), "c = TestProbe(b:1)");
  EXPECT_EQ(nodes["b"].output_size(), 2);
  EXPECT_EQ(nodes["a"].output(0).tensor_description().dtype(), tensorflow::DT_FLOAT);
  for (const auto& [name, node] : nodes) {
    EXPECT_GT(node.scheduled_nanos(), 0) << name;
    EXPECT_GE(node.all_start_nanos(), node.scheduled_nanos()) << name;
    EXPECT_GE(node.op_end_rel_nanos(), node.op_start_rel_nanos()) << name;
    EXPECT_GE(node.all_end_rel_nanos(), node.op_end_rel_nanos()) << name;
  }
}

TEST(ChromeTraceTest, InALoopArrowsBeginAtTheRunThatHadEnded) {
  tensorflow::StepStats stats;
  tensorflow::DeviceStepStats* device = stats.add_dev_stats();
  device->set_device("/cpu:0");
  for (int i = 0; i < 3; ++i) {
    const std::string where = absl::StrCat(" in iteration ", i, " of a (loop)");
    for (const bool reads : {false, true}) {
      tensorflow::NodeExecStats* node = device->add_node_stats();
      node->set_node_name(reads ? "y" : "x");
      node->set_timeline_label(absl::StrCat(reads ? "y = Neg(x)" : "x = Merge()", where));
      node->set_all_start_micros(100 * i + (reads ? 50 : 10));
      node->set_all_end_rel_micros(20);
    }
  }
  const std::string trace = WriteChromeTrace(stats);
  for (int i = 0; i < 3; ++i) {
    const std::string iteration = absl::StrCat(i, " of a (loop)");
    EXPECT_TRUE(absl::StrContains(trace, iteration)) << trace;
    // From the end of x to the beginning of y in the same iteration.
    for (const int at : {30, 50}) {
      const std::string arrow = absl::StrCat("\"id\": ", i, ",\n   \"pid\": 0,\n   \"tid\": 0,\n",
                                             "   \"ts\": ", 100 * i + at);
      EXPECT_TRUE(absl::StrContains(trace, arrow)) << arrow << " in " << trace;
    }
  }
}

TEST(StepStatsCollectorTest, KeepsABoundedNumberOfRuns) {
  StepStatsCollector collector;
  for (int64_t i = 0; i < StepStatsCollector::kMaxNodes; ++i) collector.Add("/cpu:0", {});
  EXPECT_TRUE(collector.is_full());
  collector.Add("/cpu:0", {});
  tensorflow::StepStats stats;
  collector.TakeInto(&stats);
  EXPECT_EQ(stats.dev_stats(0).node_stats_size(), StepStatsCollector::kMaxNodes);
}

TEST(ChromeTraceTest, SlicesDoNotOverlapAndArrowsConnectThem) {
  tensorflow::StepStats stats;
  tensorflow::DeviceStepStats* device = stats.add_dev_stats();
  device->set_device("/cpu:0");
  const auto add = [device](const char* name, const char* label, int64_t start, int64_t length) {
    tensorflow::NodeExecStats* node = device->add_node_stats();
    node->set_node_name(name);
    node->set_timeline_label(label);
    node->set_all_start_micros(start);
    node->set_all_end_rel_micros(length);
  };
  add("a", "a = Const()", 100, 10);
  add("b", "b = Tanh(a)", 105, 10);
  add("c", "c = Add(a, b:1)", 120, 5);
  EXPECT_EQ(WriteChromeTrace(stats), R"({
 "traceEvents": [
  {
   "name": "process_name",
   "ph": "M",
   "pid": 0,
   "args": {
    "name": "/cpu:0 Compute"
   }
  },
  {
   "name": "Const",
   "cat": "Op",
   "ph": "X",
   "pid": 0,
   "tid": 0,
   "ts": 100,
   "dur": 10,
   "args": {
    "name": "a",
    "op": "Const"
   }
  },
  {
   "name": "Tanh",
   "cat": "Op",
   "ph": "X",
   "pid": 0,
   "tid": 1,
   "ts": 105,
   "dur": 10,
   "args": {
    "name": "b",
    "op": "Tanh",
    "input0": "a"
   }
  },
  {
   "name": "Add",
   "cat": "Op",
   "ph": "X",
   "pid": 0,
   "tid": 0,
   "ts": 120,
   "dur": 5,
   "args": {
    "name": "c",
    "op": "Add",
    "input0": "a",
    "input1": "b:1"
   }
  },
  {
   "name": "a",
   "cat": "DataFlow",
   "ph": "s",
   "id": 0,
   "pid": 0,
   "tid": 0,
   "ts": 110
  },
  {
   "name": "a",
   "cat": "DataFlow",
   "ph": "t",
   "id": 0,
   "pid": 0,
   "tid": 1,
   "ts": 105
  },
  {
   "name": "a",
   "cat": "DataFlow",
   "ph": "s",
   "id": 1,
   "pid": 0,
   "tid": 0,
   "ts": 110
  },
  {
   "name": "a",
   "cat": "DataFlow",
   "ph": "t",
   "id": 1,
   "pid": 0,
   "tid": 0,
   "ts": 120
  },
  {
   "name": "b",
   "cat": "DataFlow",
   "ph": "s",
   "id": 2,
   "pid": 0,
   "tid": 1,
   "ts": 115
  },
  {
   "name": "b",
   "cat": "DataFlow",
   "ph": "t",
   "id": 2,
   "pid": 0,
   "tid": 0,
   "ts": 120
  }
 ]
})");
}

}  // namespace
}  // namespace millrace
