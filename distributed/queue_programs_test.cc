// SPDX-License-Identifier: Apache-2.0
//
// Random programs of several steps at once on three tasks that hand each other values by queues.
// Nodes, queues and conditionals are strewn over the tasks. There is an order in which one thread
// could run all of a program's statements, so a step may wait only for what comes before; a tensor
// that is held back for one behind a dequeue ends a program in its time limit. Values are compared
// with those of the statements in that order. They are whole numbers below 2^53: exact.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/server_counts.h"
#include "distributed/testing/loopback_cluster.h"
#include "graph/op_registry.h"
#include "graph/op_traits.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/placeholder.h"
#include "ops/control/control_flow.h"
#include "ops/control/queue.h"
#include "ops/math/cwise_binary.h"
#include "proto/config.pb.h"
#include "proto/op_def.pb.h"
#include "runtime/session.h"

// covers: clusters: what a step sends to a task in one wave leaves together, whatever of it is dead
//   or large; what may wait for another step, in a function too, and what is in a loop holds
//   nothing back

namespace millrace {
namespace {

constexpr int kPrograms = 25;
constexpr int kStatements = 40;  // each doubles a value at most
constexpr int kRuns = 3;

struct Value {
  Output output;
  double number;
};

// One Run.
struct Step {
  std::vector<Value> values;
  std::vector<Feed> feeds;
  std::vector<FetchName> targets;
};

struct Program {
  Scope root;
  std::vector<Step> steps;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : seed_(seed), random_(seed) {}

  Program Make() {
    program_.steps.resize(2 + Below(2));
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      Begin(&program_.steps[i], static_cast<double>(i + 1));
    }
    for (int i = 0; i < kStatements; ++i) {
      Step* const step = &Any(&program_.steps);
      const size_t kind = Below(8);
      if (kind < 4) {
        Compute(step);
      } else if (kind < 5) {
        Choose(step);
      } else if (kind < 6 || filled_.empty()) {
        Enqueue(step);
      } else {
        Dequeue(step);
      }
    }
    while (!filled_.empty()) Dequeue(&Any(&program_.steps));
    return std::move(program_);
  }

 private:
  struct Filled {
    Scope at;
    Output queue;
    double number;
  };

  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }
  template <typename T>
  T& Any(std::vector<T>* list) {
    return (*list)[Below(list->size())];
  }
  Scope Anywhere() {
    const char* const tasks[] = {"/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"};
    return program_.root.WithDevice(tasks[Below(3)]);
  }

  void Begin(Step* step, double number) {
    const Scope at = program_.root.WithDevice("/job:worker/task:0");
    const Output in = Placeholder(at, DT_DOUBLE, PartialShape::Scalar());
    step->feeds.emplace_back(in, Tensor::Scalar(number));
    step->values.push_back({Add(at, in, in), number + number});  // what is fed is not fetched
  }
  void Compute(Step* step) {
    const Value a = Any(&step->values), b = Any(&step->values);
    Scope at = Anywhere();
    if (Below(4) == 0) at = at.WithControlDependencies({Any(&step->values).output.op()});
    if (Below(2) == 0) {
      step->values.push_back({Add(at, a.output, b.output), a.number + b.number});
    } else {
      step->values.push_back({Sub(at, a.output, b.output), a.number - b.number});
    }
  }
  // One of two ways is dead.
  void Choose(Step* step) {
    const Value a = Any(&step->values), b = Any(&step->values);
    const bool taken = Below(2) == 0;
    const Output p = Placeholder(Anywhere(), DT_BOOL, PartialShape::Scalar());
    step->feeds.emplace_back(p, Tensor::Scalar(taken));
    const SwitchOutputs ways = Switch(Anywhere(), a.output, p);
    const std::vector<Output> ends = {Sub(Anywhere(), ways.output_false, b.output),
                                      Add(Anywhere(), ways.output_true, b.output)};
    step->values.push_back(
        {Merge(Anywhere(), ends).output, taken ? a.number + b.number : a.number - b.number});
  }
  void Enqueue(Step* step) {
    const Value value = Any(&step->values);
    const Scope at = Anywhere();
    const std::string name = absl::StrCat("queue_", seed_, "_", num_queues_++);
    const Output queue = FIFOQueueV2(at, {DT_DOUBLE}, {.shared_name = name});
    const std::vector<Output> components = {value.output};
    step->targets.emplace_back(QueueEnqueueV2(at, queue, components));
    filled_.push_back({at, queue, value.number});
  }
  void Dequeue(Step* step) {
    const size_t i = Below(filled_.size());
    const Filled filled = filled_[i];
    filled_.erase(filled_.begin() + static_cast<std::ptrdiff_t>(i));
    const Output taken = QueueDequeueV2(filled.at, filled.queue, {DT_DOUBLE})[0];
    step->targets.emplace_back(taken.op());  // also when nothing needs it
    step->values.push_back({taken, filled.number});
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  Program program_;
  std::vector<Filled> filled_;
  int num_queues_ = 0;
};

bool EnvironmentSays(const char* name, absl::string_view value) {
  const char* const text = std::getenv(name);
  return text != nullptr && value == text;
}

// The programs have travelled as the environment says. The tasks of a program differ, so not each
// pair needs to have a link: all together have some.
void ExpectWireOfEnvironment(LoopbackCluster* cluster) {
  int64_t runs = 0, unix_links = 0, link_messages = 0;
  for (const auto& [job, task] : {std::pair("ps", 0), std::pair("ps", 1), std::pair("worker", 0)}) {
    const ServerCounts counts = CountsOf(*cluster->server(job, task));
    runs += counts.calls("RunGraph");
    unix_links += counts.unix_links;
    link_messages += counts.messages("Connect");
  }
  const bool has_unix = !EnvironmentSays("MILLRACE_UNIX_LINKS", "0");
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(unix_links > 0, has_unix) << unix_links;
  // A Unix link has a link over gRPC, too, on which its ends met.
  EXPECT_GT(link_messages, 0);
}

// Also of ops that are not there yet.
TEST(QueueProgramsTest, OpsWhoseNamesSayThatTheyWaitHaveTheTrait) {
  int waiting = 0;
  for (const OpEntry* op : AllOps()) {
    const std::string& name = op->def.name();
    bool says_so = false;
    for (const char* part : {"Dequeue", "Enqueue", "TakeGradient", "BarrierTake", "Unstage",
                             "MapStage", "ReaderRead", "ReaderReset", "MutexLock", "RemoteCall"}) {
      says_so |= absl::StrContains(name, part);
    }
    if (!says_so) continue;
    ++waiting;
    EXPECT_EQ(op->traits.waits_for_steps, WaitsForSteps::kMay) << name;
  }
  EXPECT_GE(waiting, 9);  // five of queues, three of readers, RemoteCall
  for (const char* loop : {"While", "StatelessWhile"}) {
    EXPECT_EQ(TraitsOf(loop).waits_for_steps, WaitsForSteps::kMay) << loop;
  }
  for (const char* next : {"IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional",
                           "SerializeIterator", "DeserializeIterator"}) {
    EXPECT_EQ(TraitsOf(next).waits_for_steps, WaitsForSteps::kInFunctions) << next;
  }
  for (const char* op : {"ReadVariableOp", "AssignVariableOp", "QueueSizeV2", "FIFOQueueV2"}) {
    EXPECT_EQ(TraitsOf(op).waits_for_steps, WaitsForSteps::kNever) << op;
  }
}

TEST(QueueProgramsTest, RandomProgramsWithQueuesBetweenStepsEndWithTheirValues) {
  LoopbackCluster cluster(/*num_ps=*/2);
  tensorflow::RunOptions limit;
  limit.set_timeout_in_ms(60'000);
  for (uint64_t seed = 1; seed <= kPrograms; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Program program = Generator(seed).Make();
    ASSERT_OK(program.root.status());
    const auto session = cluster.NewSession(program.root);
    ASSERT_NE(session, nullptr);
    for (int run = 0; run < kRuns; ++run) {
      std::vector<StatusOr<std::vector<Tensor>>> results(
          program.steps.size(), StatusOr<std::vector<Tensor>>(absl::UnknownError("not run")));
      std::vector<std::thread> threads;
      for (size_t i = 0; i < program.steps.size(); ++i) {
        threads.emplace_back([&, i] {
          const Step& step = program.steps[i];
          std::vector<FetchName> fetches;
          for (const Value& value : step.values) fetches.emplace_back(value.output);
          tensorflow::RunMetadata metadata;
          results[i] = session->Run(limit, step.feeds, fetches, step.targets, &metadata);
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (size_t i = 0; i < program.steps.size(); ++i) {
        ASSERT_OK(results[i].status()) << "step " << i;
        for (size_t k = 0; k < program.steps[i].values.size(); ++k) {
          EXPECT_EQ((*results[i])[k].scalar<double>(), program.steps[i].values[k].number)
              << "step " << i << ", value " << k;
        }
      }
    }
    EXPECT_OK(session->Close());
  }
  ExpectWireOfEnvironment(&cluster);
}

}  // namespace
}  // namespace millrace
