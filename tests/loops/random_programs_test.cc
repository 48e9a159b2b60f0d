// SPDX-License-Identifier: Apache-2.0
//
// Random programs with branches, nested loops, asynchronous kernels, failures and cancellations:
// the values that a graph gives, how often each of its ops runs and which errors it ends with are
// those of the program run statement by statement (program.h), on one thread and on several, with
// its nodes strewn over two devices, and after every rewrite.
//
// MILLRACE_LOOPS_SEED says where to begin, MILLRACE_LOOPS_PROGRAMS how many there are,
// MILLRACE_LOOPS_SIZE how large each is (0: small ones and large ones); a failure names its seed
// and prints its program.

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/place/partition.h"
#include "graph/rewrite/rewrite.h"
#include "gtest/gtest.h"
#include "runtime/constant_evaluator.h"
#include "runtime/device.h"
#include "runtime/engine/executor.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/testing/step_ops.h"
#include "tests/loops/hooks.h"
#include "tests/loops/lower.h"
#include "tests/loops/program.h"

// covers: graphs: a loop is cut at any edge: each device receives in the iterations that have what
//   it receives, in loops of loops, and when its part is cut again
// covers: steps: 1,000 random programs with branches, nested loops, asynchronous kernels, failures
//   and cancellations give what they give statement by statement, on 1 to 4 threads and on two
//   devices, rewritten or not, and leave no value behind

namespace millrace::loops {
namespace {

using testing::TestGraph;
using testing::TestStep;

constexpr uint64_t kDefaultSeed = 1;
constexpr uint64_t kDefaultPrograms = 1000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

class RandomProgramsTest : public ::testing::Test {
 protected:
  // A graph on one device or on several, ready to run.
  struct Parts {
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<std::unique_ptr<Executor>> executors;
    std::shared_ptr<const TransferTable> transfers;
  };

  Status Step(const Parts& parts, const TestStep& base, int64_t cancel_after = 0) {
    hooks_.Begin(cancel_after);
    CancellationManager cancellation;
    const std::shared_ptr<Rendezvous> rendezvous = MakeLocalRendezvous(parts.transfers);
    std::vector<StepContext> contexts(parts.executors.size(), base.context);
    std::vector<PartitionRun> runs;
    for (size_t i = 0; i < contexts.size(); ++i) {
      contexts[i].device = parts.devices[i].get();
      contexts[i].cancellation = &cancellation;
      contexts[i].rendezvous = rendezvous;
      runs.push_back({parts.executors[i].get(), &contexts[i]});
    }
    return RunPartitions(runs);
  }

  // Where each node is, is up to chance.
  StatusOr<Parts> Compile(Graph* graph, int num_devices, bool rewritten, uint64_t seed) {
    const auto device_name = [](uint64_t i) {
      return absl::StrCat("/job:localhost/replica:0/task:0/device:CPU:", i);
    };
    std::mt19937_64 random(seed);
    std::vector<Node*> outputs;
    for (const auto& node : graph->nodes()) {
      node->set_assigned_device(device_name(random() % static_cast<uint64_t>(num_devices)));
      if (absl::StartsWith(node->name(), "output")) outputs.push_back(node.get());
    }
    if (rewritten) {
      RewriteOptions options;
      for (const RewritePass& pass : RewritePasses()) options.passes.emplace_back(pass.name);
      KernelEvaluator evaluator;
      MR_ASSIGN_OR_RETURN(const RewriteReport report,
                          RunRewrites(graph, outputs, &evaluator, options));
      for (const auto& [pass, changes] : report.changes) rewrites_[pass] += changes;
    }
    MR_ASSIGN_OR_RETURN(const GraphPartitions partitions, PartitionGraph(*graph));
    Parts parts;
    const auto transfers = std::make_shared<TransferTable>();
    for (const auto& [name, part] : partitions) {
      auto device = std::make_unique<Device>();
      device->name = name;
      device->type = "CPU";
      MR_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan,
                          Plan::Build(*part, device.get(), nullptr, transfers));
      loops_ += static_cast<int64_t>(plan->frames().size()) - 1;
      MR_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor, Executor::Make(std::move(plan)));
      parts.devices.push_back(std::move(device));
      parts.executors.push_back(std::move(executor));
    }
    transfers_ += transfers->size();
    parts.transfers = transfers;
    return parts;
  }

  void Check(uint64_t seed, const ProgramOptions& options, int num_devices, bool rewritten,
             std::initializer_list<int> thread_counts) {
    const Program program = RandomProgram(seed, options);
    const Outcome want = RunProgram(program);
    total_runs_ += static_cast<int64_t>(want.runs.size());
    failing_ += want.failures.empty() ? 0 : 1;
    std::mt19937_64 random(seed);
    for (const int threads : thread_counts) {
      TestGraph graph;
      Lower(program, &graph);
      const TestStep step(threads);
      const StatusOr<Parts> parts = Compile(graph.graph(), num_devices, rewritten, seed);
      EXPECT_OK(parts.status());
      if (!parts.ok()) break;
      const int64_t bytes = DefaultAllocatorStats().bytes_in_use;
      for (int run = 0; run < 3; ++run) {
        SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", num_devices, " devices, ", threads,
                                  " threads, run ", run));
        hooks_.ExpectOutcome(want, Step(*parts, step));
        if (run == 2) break;
        // Somewhere in the middle, and once more as if nothing had been.
        const int64_t after = 1 + static_cast<int64_t>(random() % (want.runs.size() * 2 + 1));
        const Status status = Step(*parts, step, after);
        if (!absl::IsCancelled(status)) hooks_.ExpectOutcome(want, status);
      }
      EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, bytes) << "a value is left over";
    }
    if (HasFailure()) ADD_FAILURE() << "seed " << seed << ":\n" << ToText(program);
  }

  void CheckAll(int num_devices, bool rewritten, std::initializer_list<int> thread_counts) {
    const uint64_t first = FromEnvironment("MILLRACE_LOOPS_SEED", kDefaultSeed);
    const uint64_t count = FromEnvironment("MILLRACE_LOOPS_PROGRAMS", kDefaultPrograms);
    const uint64_t size = FromEnvironment("MILLRACE_LOOPS_SIZE", 0);
    std::printf("%llu programs from seed %llu\n", static_cast<unsigned long long>(count),
                static_cast<unsigned long long>(first));
    for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
      // Small and large, with failures and without.
      ProgramOptions options;
      options.size = size > 0 ? static_cast<int>(size) : 3 + static_cast<int>(seed % 40);
      options.failure_chance = seed % 4 == 3 ? 0.5 : 0;
      Check(seed, options, num_devices, rewritten, thread_counts);
    }
    if (HasFailure() || count < kDefaultPrograms || size > 0) return;
    // The programs are what they are meant to be.
    EXPECT_GT(loops_, static_cast<int64_t>(count));
    EXPECT_GT(total_runs_, static_cast<int64_t>(count) * 4);
    EXPECT_GT(failing_, static_cast<int64_t>(count) / 40);
    EXPECT_GE(transfers_, num_devices > 1 ? static_cast<int64_t>(count) * 4 : 0);
  }

  Hooks hooks_;
  int64_t total_runs_ = 0, failing_ = 0, loops_ = 0, transfers_ = 0;
  std::map<std::string, int> rewrites_;  // changes by pass
};

TEST_F(RandomProgramsTest, GiveWhatTheirStatementsGive) {
  CheckAll(1, /*rewritten=*/false, {1, 2, 4});
}

TEST_F(RandomProgramsTest, GiveTheSameOnTwoDevices) { CheckAll(2, /*rewritten=*/false, {1, 2}); }

TEST_F(RandomProgramsTest, GiveTheSameWhenTheyAreRewritten) {
  CheckAll(1, /*rewritten=*/true, {1, 2});
  if (FromEnvironment("MILLRACE_LOOPS_PROGRAMS", kDefaultPrograms) < kDefaultPrograms) return;
  // Not of graphs with loops: dead_branches. Not in these programs: what the others look for.
  for (const char* pass : {"constant_folding", "identities", "common_subexpressions"}) {
    EXPECT_GT(rewrites_[pass], 0) << pass;
  }
}

TEST_F(RandomProgramsTest, GiveTheSameRewrittenOnTwoDevices) {
  CheckAll(2, /*rewritten=*/true, {1});
}

}  // namespace
}  // namespace millrace::loops
