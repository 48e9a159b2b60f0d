// SPDX-License-Identifier: Apache-2.0
//
// What a session does with memory, counted by a replaced operator new: what a step allocates and
// locks, and that a session survives the failure of any one allocation and loses no memory by it.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "graph/function_builder.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/control/functional.h"
#include "ops/math/cwise_binary.h"
#include "ops/state/state.h"
#include "proto/attr_value.pb.h"
#include "proto/config.pb.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"
#include "runtime/session/direct_session.h"

// covers: steps: a prepared step of a session allocates nothing and takes one lock; 128 signatures
//   hold a constant of 16 MB once
// covers: steps: a thread's state of steps by names is freed when the session drops it, closes or
//   abandons the step to a kernel that does not answer
// covers: steps: an allocation that fails while a session compiles, extends or runs ends the call
//   with a Status; the next call and Close work

namespace millrace {
namespace {

using testing::Allocations;
using testing::ForEveryAllocation;
using testing::LiveBlocks;

// Nothing of a step may leave the calling thread.
SessionOptions OneThread() {
  SessionOptions options;
  options.config.intra_op_parallelism_threads = 1;
  return options;
}

std::unique_ptr<Session> SessionOf(const Scope& scope, const SessionOptions& options) {
  auto session = NewSession(options);
  EXPECT_OK(session);
  EXPECT_OK((*session)->Extend(scope));
  return *std::move(session);
}

// Ten nodes between a feed and a fetch.
Scope TenNodes() {
  Scope root;
  Output y = Placeholder(root.WithName("x"), DT_FLOAT, {});
  for (int i = 0; i < 9; ++i) y = Identity(root, y);
  Identity(root.WithName("y"), y);
  return root;
}

// --- Counted -------------------------------------------------------------------------------------

TEST(SessionMemoryTest, APreparedStepAllocatesNothingAndTakesOneLock) {
  for (const int threads : {1, 2}) {
    SessionOptions options;
    options.config.intra_op_parallelism_threads = threads;
    const auto session = SessionOf(TenNodes(), options);
    ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({.feeds = {"x"}, .fetches = {"y"}}));
    const std::vector<Tensor> feeds = {Tensor::Scalar<float>(3)};
    std::vector<Tensor> results(1);
    const auto run = [&] { return step->RunInto(feeds, absl::MakeSpan(results)).ok(); };
    bool ok = true;
    for (int i = 0; i < 200; ++i) ok &= run();
    const int64_t allocated = Allocations(), locked = MutexLockCountForTesting();
    for (int i = 0; i < 1000; ++i) ok &= run();
    EXPECT_TRUE(ok);
    EXPECT_EQ(Allocations() - allocated, 0);
    EXPECT_LE(MutexLockCountForTesting() - locked, 1000);
    EXPECT_EQ(results[0].scalar<float>(), 3);

    // The vector of its results is one.
    const int64_t before = Allocations();
    for (int i = 0; i < 1000; ++i) ok &= step->Run(feeds).ok();
    EXPECT_TRUE(ok);
    EXPECT_EQ(Allocations() - before, 1000);
  }
}

// Names that no small string holds.
TEST(SessionMemoryTest, AStepByNamesAllocatesItsResultsAndTakesOneLock) {
  const std::string x = "a_name_that_is_longer_than_what_a_string_holds_in_itself/x";
  Scope root;
  const Output fed = Placeholder(root.WithName(x), DT_FLOAT, {});
  Identity(root.WithName("y"), fed);
  const auto session = SessionOf(root, OneThread());
  const std::vector<Feed> feeds = {{x, Tensor::Scalar<float>(3)}};
  const std::vector<FetchName> fetches = {"y"};
  bool ok = true;
  for (int i = 0; i < 10; ++i) ok &= session->Run(feeds, fetches).ok();
  const int64_t allocated = Allocations(), locked = MutexLockCountForTesting();
  for (int i = 0; i < 1000; ++i) ok &= session->Run(feeds, fetches).ok();
  EXPECT_TRUE(ok);
  EXPECT_EQ(Allocations() - allocated, 1000);
  EXPECT_LE(MutexLockCountForTesting() - locked, 1000);
}

// What a prepared step allocates that goes to and fro between two devices `hops` times, on an edge
// with a name that no small string holds.
int64_t AllocationsOver(int hops) {
  Scope root;
  const Scope devices[] = {root.WithDevice("/device:CPU:0"), root.WithDevice("/device:CPU:1")};
  const Output x = Placeholder(devices[0].WithName("x"), DT_FLOAT, {});
  const Output z = Placeholder(devices[1].WithName("z"), DT_FLOAT, {});
  Output y = x;
  for (int i = 1; i <= hops; ++i) {
    y = Add(devices[i % 2].WithName(absl::StrCat("a_name_that_no_small_string_holds_", i)), y,
            i % 2 == 0 ? x : z);
  }
  SessionOptions options = OneThread();
  options.config.device_count["CPU"] = 2;
  const auto session = SessionOf(root, options);
  const auto step = session->Prepare({.feeds = {"x", "z"}, .fetches = {y.name()}});
  EXPECT_OK(step);
  const std::vector<Tensor> feeds = {Tensor::Scalar<float>(3), Tensor::Scalar<float>(4)};
  std::vector<Tensor> results(1);
  const auto run = [&] { return (*step)->RunInto(feeds, absl::MakeSpan(results)).ok(); };
  bool ok = true;
  for (int i = 0; i < 20; ++i) ok &= run();
  const int64_t before = Allocations();
  for (int i = 0; i < 100; ++i) ok &= run();
  EXPECT_TRUE(ok);
  return (Allocations() - before) / 100;
}

TEST(SessionMemoryTest, TransfersBetweenDevicesNeedNoMemoryForTheirNames) {
  // The rendezvous and its slots; per transfer what receives the tensor, and twice what would hear
  // of a cancellation.
  EXPECT_EQ(AllocationsOver(2), 2 + 2 * 3);
  EXPECT_EQ(AllocationsOver(20), 2 + 20 * 3);
}

TEST(SessionMemoryTest, TensorsInAnotherOrderCostNoAllocationEither) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  const Output y = Placeholder(root.WithName("y"), DT_FLOAT, {});
  Identity(root.WithName("a"), x);
  Identity(root.WithName("b"), y);
  const auto session = SessionOf(root, OneThread());
  ASSERT_OK_AND_ASSIGN(const auto step,
                       session->Prepare({.feeds = {"y", "x"}, .fetches = {"b", "a", "y", "b"}}));
  const std::vector<Tensor> feeds = {Tensor::Scalar<float>(1), Tensor::Scalar<float>(2)};
  std::vector<Tensor> results(4);
  bool ok = true;
  for (int i = 0; i < 20; ++i) ok &= step->RunInto(feeds, absl::MakeSpan(results)).ok();
  const int64_t before = Allocations();
  for (int i = 0; i < 100; ++i) ok &= step->RunInto(feeds, absl::MakeSpan(results)).ok();
  EXPECT_TRUE(ok);
  EXPECT_EQ(Allocations() - before, 0);
  std::vector<float> values;
  for (const Tensor& t : results) values.push_back(t.scalar<float>());
  EXPECT_EQ(values, (std::vector<float>{1, 2, 1, 1}));
}

TEST(SessionMemoryTest, ACallOfAFunctionAllocatesNothing) {
  Scope root;
  const DefinedFunction f =
      DefineFunction(root, "f", {DT_FLOAT},
                     [](const Scope& s, const std::vector<Output>& in) {
                       return std::vector<Output>{Identity(s, Identity(s, in[0]))};
                     },
                     {.no_inline = true});
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  Identity(root.WithName("y"), Call(root, f, Call(root, f, {x}))[0]);
  const auto session = SessionOf(root, OneThread());
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({.feeds = {"x"}, .fetches = {"y"}}));
  const std::vector<Tensor> feeds = {Tensor::Scalar<float>(3)};
  std::vector<Tensor> results(1);
  bool ok = true;
  for (int i = 0; i < 20; ++i) ok &= step->RunInto(feeds, absl::MakeSpan(results)).ok();
  const int64_t before = Allocations();
  for (int i = 0; i < 100; ++i) ok &= step->RunInto(feeds, absl::MakeSpan(results)).ok();
  EXPECT_TRUE(ok);
  EXPECT_EQ(Allocations() - before, 0);
  EXPECT_EQ(results[0].scalar<float>(), 3);
}

// --- Bounded -------------------------------------------------------------------------------------

constexpr int64_t kConstantBytes = int64_t{16} << 20;

// A constant and `n` nodes that use it.
Scope UsersOfAConstant(int n) {
  Scope root;
  Tensor value = *Tensor::Zeros(DT_FLOAT, ShapeOf({kConstantBytes / 4}));
  float next = 0;
  for (float& element : value.mutable_raw<float>()) element = ++next;
  const Output big = Const(root.WithName("big"), value);
  for (int i = 0; i < n; ++i) Identity(root.WithName(absl::StrCat("user", i)), big);
  return root;
}

TEST(SessionMemoryTest, ManySignaturesOfALargeConstantHoldItOnce) {
  constexpr int kSignatures = 128;
  const auto session = SessionOf(UsersOfAConstant(kSignatures), OneThread());
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  for (int i = 0; i < kSignatures; ++i) {
    ASSERT_OK(session->Run({}, {absl::StrCat("user", i)}));
  }
  EXPECT_LE(DefaultAllocatorStats().bytes_in_use - before, 2 * kConstantBytes);
  EXPECT_EQ(StatsOfDirectSession(*session)->cached_signatures, kSignatures);
  EXPECT_LE(StatsOfDirectSession(*session)->cached_bytes, 2 * kConstantBytes);
}

TEST(SessionMemoryTest, WhatHadToGoIsNotHeldByThreadsThatRanIt) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  Scope root;
  for (int i = 0; i < 4; ++i) {
    // What is folded is the plan's own.
    const Output size = Const(root, Tensor::Of<int32_t>({kBytes / 4}));
    Fill(root.WithName(absl::StrCat("user", i)), size, Const(root, static_cast<float>(i)));
  }
  const auto run = [](Session* session, int i) {
    return session->Run({}, {absl::StrCat("user", i)}).ok();
  };
  // At most one of them, though each is run by a thread whose next step never comes.
  SessionOptions options = OneThread();
  options.max_cached_plans = 1;
  const auto session = SessionOf(root, options);
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  for (int i = 0; i < 4; ++i) {
    // Threads at the same time, so that each has a state of its own.
    Notification has_run, end;
    std::thread thread([&] {
      EXPECT_TRUE(run(session.get(), i));
      has_run.Notify();
      end.Wait();
    });
    has_run.Wait();
    EXPECT_LE(DefaultAllocatorStats().bytes_in_use - before, 2 * kBytes) << i;
    end.Notify();
    thread.join();
  }
  // By a thread that ends, which leaves nothing uncounted to the tests that set a limit.
  std::thread([&] { EXPECT_OK(session->Close()); }).join();
  EXPECT_LE(DefaultAllocatorStats().bytes_in_use - before, kBytes / 2);
}

TEST(SessionMemoryTest, SignaturesAreKeptWithinABoundOfBytes) {
  Scope root;
  for (int i = 0; i < 6; ++i) {
    Identity(root.WithName(absl::StrCat("user", i)),
             Const(root, TensorOf<float>({4}, {1, 2, 3, static_cast<float>(i)})));
  }
  SessionOptions options = OneThread();
  options.max_cached_plan_bytes = 1;  // besides the latest
  const auto session = SessionOf(root, options);
  for (int i = 0; i < 6; ++i) {
    for (int run = 0; run < 2; ++run) {
      ASSERT_OK(session->Run({}, {absl::StrCat("user", i)}));
      EXPECT_EQ(StatsOfDirectSession(*session)->cached_signatures, 1);
      EXPECT_EQ(StatsOfDirectSession(*session)->compilations, i + 1);
    }
  }
}

// --- Failing -------------------------------------------------------------------------------------

// A step with a variable, a constant that is folded and tensors that kernels make; `sum` is on
// `device`.
Scope StatefulStep(const std::string& device = "/cpu:0") {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {2});
  const Output handle = VarHandleOp(root.WithName("v"), DT_FLOAT, PartialShape({2}));
  AssignVariableOp(root.WithName("assign"), handle, x);
  const Output c = Add(root.WithName("c"), Const(root, {1.f, 1.f}), Const(root, {0.f, 1.f}));
  const Output sum = Add(root.WithName("sum").WithDevice(device), x, c);
  const Output read = ReadVariableOp(root.WithName("read"), handle, DT_FLOAT);
  Add(root.WithName("y"), sum, read);
  return root;
}

// StatefulStep and more: a function, a node of an op that nobody knows between old and new nodes,
// an attr map that grows.
tensorflow::GraphDef LargerStep() {
  Scope root = StatefulStep();
  Identity(root.WithName("z"), Const(root.WithName("fresh"), {3.f, 4.f}));
  tensorflow::GraphDef def = *root.ToGraphDef();
  tensorflow::NodeDef* const unknown = def.add_node();
  unknown->set_name("unknown");
  unknown->set_op("NobodyKnowsThisOne");
  for (const char* input : {"y", "z", "^sum", "^fresh"}) unknown->add_input(input);
  for (int i = 0; i < 30; ++i) {
    auto& attr = (*unknown->mutable_attr())[absl::StrCat("attr", i)];
    attr.set_s("a text that is longer than a string's own room");
  }
  tensorflow::FunctionDef* const function = def.mutable_library()->add_function();
  function->mutable_signature()->set_name("AFunctionWithoutNodes");
  for (int i = 0; i < 10; ++i) (*function->mutable_attr())[absl::StrCat("attr", i)].set_i(i);
  return def;
}

class FailingAllocationTest : public ::testing::Test {
 protected:
  const Tensor x_ = TensorOf<float>({2}, {10, 20});
  const std::vector<Feed> feeds_ = {{"x", x_}};
  const std::vector<FetchName> fetches_ = {"y"}, none_;
  const tensorflow::RunOptions options_;

  // With StatefulStep on as many devices, and its variable assigned.
  std::unique_ptr<Session> Make(int devices = 1) {
    SessionOptions options = OneThread();
    options.config.device_count["CPU"] = devices;
    auto session = SessionOf(StatefulStep(absl::StrCat("/cpu:", devices - 1)), options);
    EXPECT_OK(session->Run(feeds_, {}, {"assign"}));
    return session;
  }
  Status Run(Session* session) {
    return session->Run(options_, feeds_, fetches_, none_, nullptr).status();
  }
  void ExpectWorks(Session* session) {
    const auto out = session->Run(options_, feeds_, fetches_, none_, nullptr);
    ASSERT_OK(out);
    ExpectTensorEqual((*out)[0], TensorOf<float>({2}, {21, 42}));
  }
  // `after` is told whether the call was OK: it may be in spite of an allocation that failed.
  // Returns how many allocations have failed.
  static int64_t ForEveryFailure(absl::FunctionRef<Status()> body,
                                 absl::FunctionRef<void(bool ok)> after) {
    Status status;
    return ForEveryAllocation([&] { status = body(); },
                              [&](int64_t k, bool failed) {
                                const bool ok = status.ok();
                                EXPECT_TRUE(ok || (failed && absl::IsResourceExhausted(status)))
                                    << k << ": " << status;
                                status = absl::OkStatus();
                                after(ok);
                              });
  }
};

TEST_F(FailingAllocationTest, AFirstRunThatFailsLeavesTheNextOneAndCloseWorking) {
  for (const int devices : {1, 2}) {
    auto session = Make(devices);
    ExpectWorks(session.get());
    const int64_t bytes = StatsOfDirectSession(*session)->cached_bytes;
    session = nullptr;
    const int64_t blocks = LiveBlocks();
    session = Make(devices);
    const int64_t failed =
        ForEveryFailure([&] { return Run(session.get()); },
                        [&](bool ok) {
                          ExpectWorks(session.get());
                          // A constant that could not be folded for want of memory is no error.
                          if (!ok) {
                            EXPECT_EQ(StatsOfDirectSession(*session)->cached_bytes, bytes);
                          }
                          EXPECT_OK(session->Close());
                          session = nullptr;
                          EXPECT_EQ(LiveBlocks(), blocks);
                          session = Make(devices);
                        });
    EXPECT_GT(failed, 50);
  }
}

TEST_F(FailingAllocationTest, ACachedRunThatFailsLeavesTheNextOneWorking) {
  auto session = Make();
  ExpectWorks(session.get());
  ForEveryFailure([&] { return Run(session.get()); }, [&](bool) { ExpectWorks(session.get()); });
  EXPECT_OK(session->Close());
}

TEST_F(FailingAllocationTest, APreparedStepThatFailsLeavesTheNextOneWorking) {
  auto session = Make();
  const std::vector<Tensor> values = {x_};
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({.feeds = {"x"}, .fetches = {"y"}}));
  ForEveryFailure([&] { return step->Run(values).status(); },
                  [&](bool) { ExpectWorks(session.get()); });
  EXPECT_OK(session->Close());
}

// y = 2 (3 n + v) where n iterations of a While add 3 to v, by calls in calls.
Scope StepOfFunctions() {
  using Outputs = std::vector<Output>;
  const FunctionOptions called = {.no_inline = true};
  Scope root;
  const Output n = Placeholder(root.WithName("n"), DT_FLOAT, PartialShape::Scalar());
  const Output v = VarHandleOp(root.WithName("v"), DT_FLOAT, PartialShape::Scalar());
  AssignVariableOp(root.WithName("assign"), v, n);
  const DefinedFunction add = DefineFunction(
      root, "add", {DT_RESOURCE},
      [](const Scope& s, const Outputs& in) {
        const Operation done = AssignAddVariableOp(s, in[0], Const(s, 3.0f));
        return Outputs{ReadVariableOp(s.WithControlDependencies({done}), in[0], DT_FLOAT)};
      },
      called);
  const DefinedFunction cond = DefineFunction(
      root, "cond", {DT_FLOAT, DT_RESOURCE},
      [](const Scope& s, const Outputs& in) { return Outputs{Less(s, Const(s, 0.0f), in[0])}; });
  const DefinedFunction body =
      DefineFunction(root, "body", {DT_FLOAT, DT_RESOURCE}, [&](const Scope& s, const Outputs& in) {
        const Output sum = Call(s, add, {in[1]})[0];
        const Output one = Identity(s.WithControlDependencies({sum.op()}), Const(s, 1.0f));
        return Outputs{Sub(s, in[0], one), in[1]};
      });
  const BuiltNode loop = While(root, {n, v}, {cond.name}, {body.name});
  const Output after =
      ReadVariableOp(root.WithControlDependencies({loop.output(0).op()}), v, DT_FLOAT);
  const DefinedFunction twice = DefineFunction(
      root, "twice", {DT_FLOAT},
      [](const Scope& s, const Outputs& in) { return Outputs{Add(s, in[0], in[0])}; }, called);
  const DefinedFunction not_taken = DefineFunction(
      root, "not_taken", {DT_FLOAT},
      [](const Scope& s, const Outputs& in) { return Outputs{Identity(s, in[0])}; }, called);
  const Output big = Less(root, Const(root, 0.0f), after);
  Identity(root.WithName("y"), If(root, big, {after}, {DT_FLOAT}, {twice.name}, {not_taken.name}));
  return root;
}

TEST_F(FailingAllocationTest, AStepOfCalledFunctionsThatFailsLeavesTheNextOneWorking) {
  const std::vector<Feed> feeds = {{"n", Tensor::Scalar(2.0f)}};
  const auto make = [&] {
    auto session = SessionOf(StepOfFunctions(), OneThread());
    EXPECT_OK(session->Run({{"n", Tensor::Scalar(0.0f)}}, {}, {"assign"}));
    return session;
  };
  const auto run = [&](Session* session) {
    return session->Run(options_, feeds, fetches_, none_, nullptr).status();
  };
  const auto expect_works = [&](Session* session) {
    EXPECT_OK(session->Run({{"n", Tensor::Scalar(1.0f)}}, {}, {"assign"}));
    const auto out = session->Run(feeds, {"y"});
    ASSERT_OK(out);
    ExpectTensorEqual((*out)[0], Tensor::Scalar(14.0f));
  };
  auto session = make();
  expect_works(session.get());
  // Steps that have run before.
  ForEveryFailure([&] { return run(session.get()); }, [&](bool) { expect_works(session.get()); });
  // First ones, which compile.
  session = nullptr;
  const int64_t blocks = LiveBlocks();
  session = make();
  const int64_t failed = ForEveryFailure([&] { return run(session.get()); },
                                         [&](bool) {
                                           expect_works(session.get());
                                           EXPECT_OK(session->Close());
                                           session = nullptr;
                                           EXPECT_EQ(LiveBlocks(), blocks);
                                           session = make();
                                         });
  EXPECT_GT(failed, 50);
}

TEST_F(FailingAllocationTest, AnExtendThatFailsLeavesTheGraphAsItWas) {
  const tensorflow::GraphDef def = LargerStep();
  auto session = Make();
  EXPECT_OK(session->Extend(def));
  ExpectWorks(session.get());
  EXPECT_OK(session->Run({}, {"z"}));
  session = nullptr;
  const int64_t blocks = LiveBlocks();
  session = Make();
  const int64_t failed =
      ForEveryFailure([&] { return session->Extend(def); },
                      [&](bool ok) {
                        ExpectWorks(session.get());
                        if (!ok) {
                          EXPECT_TRUE(absl::IsNotFound(session->Run({}, {"z"}).status()));
                        }
                        EXPECT_OK(session->Extend(def));
                        EXPECT_OK(session->Run({}, {"z"}));
                        EXPECT_OK(session->Close());
                        session = nullptr;
                        EXPECT_EQ(LiveBlocks(), blocks);
                        session = Make();
                      });
  EXPECT_GT(failed, 50);
}

TEST_F(FailingAllocationTest, AnExtendByAScopeThatFailsLeavesNothingBehind) {
  const Scope more = StatefulStep();
  Identity(more.WithName("z"), Const(more.WithName("fresh"), {3.f, 4.f}));
  auto session = Make();
  EXPECT_OK(session->Extend(more));
  session = nullptr;
  const int64_t blocks = LiveBlocks();
  session = Make();
  const int64_t failed = ForEveryFailure([&] { return session->Extend(more); },
                                         [&](bool ok) {
                                           EXPECT_EQ(session->Run({}, {"z"}).ok(), ok);
                                           session = nullptr;
                                           EXPECT_EQ(LiveBlocks(), blocks);
                                           session = Make();
                                         });
  EXPECT_GT(failed, 50);
}

TEST_F(FailingAllocationTest, AnExtendByWhatIsThereThatFailsChangesNothing) {
  const tensorflow::GraphDef def = LargerStep();
  auto session = Make();
  EXPECT_OK(session->Extend(def));
  EXPECT_OK(session->Extend(def));
  ExpectWorks(session.get());
  const int64_t blocks = LiveBlocks();
  const int64_t failed = ForEveryFailure([&] { return session->Extend(def); },
                                         [&](bool) { EXPECT_EQ(LiveBlocks(), blocks); });
  EXPECT_GT(failed, 50);
  ExpectWorks(session.get());
  EXPECT_OK(session->Run({}, {"z"}));
}

TEST_F(FailingAllocationTest, AStepWithoutMemoryForATensorFailsAndTheNextOneWorks) {
  auto session = Make();
  ExpectWorks(session.get());
  int failed = 0;
  for (int64_t room = 0;; room += static_cast<int64_t>(Allocator::kAlignment)) {
    SetDefaultAllocatorLimit(DefaultAllocatorStats().bytes_in_use + 1 + room);
    const Status status = Run(session.get());
    SetDefaultAllocatorLimit(0);
    ExpectWorks(session.get());
    if (status.ok()) break;
    ++failed;
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ASSERT_LT(failed, 10'000);
  }
  EXPECT_GT(failed, 0);
  EXPECT_OK(session->Close());
}

TEST_F(FailingAllocationTest, CloseNeedsNoMemory) {
  auto session = Make();
  ForEveryFailure([&] { return session->Close(); },
                  [&](bool) {
                    EXPECT_OK(session->Close());
                    EXPECT_TRUE(absl::IsCancelled(Run(session.get())));
                    session = Make();
                  });
}

}  // namespace
}  // namespace millrace
