// SPDX-License-Identifier: Apache-2.0
//
// Random programs of everything together: loops and branches of Switch and Merge, functions that
// are called, and If, Case, While and For of them, each in each other, with asynchronous kernels,
// failures and cancellations. In a session, results, how often each op runs and errors are those of
// the program run statement by statement (program.h), whether calls are put into the graph or
// called, on one thread and on several, on one device and on two.
//
// MILLRACE_LOOPS_SEED says where to begin, MILLRACE_LOOPS_PROGRAMS how many there are; a failure
// names its seed and prints its program.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/config.pb.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"
#include "runtime/session_config.h"
#include "tests/loops/hooks.h"
#include "tests/loops/lower.h"
#include "tests/loops/program.h"

// covers: steps: 1,000 random programs of loops, branches, functions (called, and in If, Case,
//   While, For), asynchronous kernels, failures and cancellations together give what they give
//   statement by statement, put into the graph and called, on 1 and 3 threads and on two devices,
//   and leave no value behind (also under both sanitizers)

namespace millrace::loops {
namespace {

constexpr uint64_t kDefaultSeed = 1;
constexpr uint64_t kDefaultPrograms = 1000;
// Loops of calls of loops: a program that takes longer is left out.
constexpr int64_t kMaxStatements = 3000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// How a session runs a program.
struct Way {
  bool inlined = true;  // but for functions that are marked
  int threads = 1;
  int num_devices = 1;
};

// Not in step with what else the seed decides.
int ThreadsOf(uint64_t seed) { return seed / 4 % 2 == 0 ? 1 : 3; }

class MixedProgramsTest : public ::testing::Test {
 protected:
  static SessionOptions OptionsOf(const Way& way) {
    tensorflow::ConfigProto config;
    config.set_intra_op_parallelism_threads(way.threads);
    (*config.mutable_device_count())["CPU"] = way.num_devices;
    if (!way.inlined) {
      config.mutable_graph_options()->mutable_rewrite_options()->set_function_optimization(
          tensorflow::RewriterConfig::OFF);
    }
    SessionOptions options;
    options.config = SessionConfigOf(config);
    return options;
  }

  Status Step(Session* session, const Program& program, int64_t cancel_after = 0) {
    hooks_.Begin(cancel_after);
    std::vector<FetchName> targets;
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      targets.emplace_back(absl::StrCat("output", i));
    }
    return session->Run({}, {}, targets).status();
  }

  void CheckInSession(const Program& program, const Outcome& want,
                      const tensorflow::GraphDef& graph, const Way& way, uint64_t seed) {
    int64_t total = 0;
    for (const auto& [name, runs] : want.runs) total += runs;
    std::mt19937_64 random(seed);
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession(OptionsOf(way)));
    ASSERT_OK(session->Extend(graph));
    for (int run = 0; run < 3; ++run) {
      SCOPED_TRACE(absl::StrCat("run ", run));
      hooks_.ExpectOutcome(want, Step(session.get(), program));
      if (run == 2) break;
      // Somewhere in the middle, and once more as if nothing had been.
      const auto after = static_cast<int64_t>(random() % static_cast<uint64_t>(total + 1));
      const Status status = Step(session.get(), program, 1 + after);
      if (absl::IsCancelled(status)) {
        ++cancelled_;
      } else {
        hooks_.ExpectOutcome(want, status);
      }
    }
  }

  // False: it was left out.
  bool Check(uint64_t seed, const Way& way) {
    ProgramOptions options;
    options.size = 6 + static_cast<int>(seed % 25);
    options.max_depth = 2;
    options.max_functions = 6;
    options.failure_chance = seed % 4 == 3 ? 0.4 : 0;
    // The other half is in a function, where nothing is left out that has effects.
    options.all_needed = seed % 2 == 0;
    const Program program = RandomProgram(seed, options);
    const Outcome want = RunProgram(program, kMaxStatements);
    if (want.is_too_long) return false;
    failing_ += want.failures.empty() ? 0 : 1;
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", way.inlined ? "inlined" : "called", ", ",
                              way.num_devices, " devices, ", way.threads, " threads"));
    LowerOptions lower;
    lower.in_function = !options.all_needed;
    lower.num_devices = way.num_devices;
    lower.seed = seed;
    const tensorflow::GraphDef graph = LowerToGraphDef(program, lower);
    const int64_t bytes = DefaultAllocatorStats().bytes_in_use;
    CheckInSession(program, want, graph, way, seed);
    EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, bytes) << "a value is left over";
    if (HasFailure()) ADD_FAILURE() << "seed " << seed << ":\n" << ToText(program);
    return true;
  }

  void CheckAll(Way (*way_of)(uint64_t seed)) {
    const uint64_t first = FromEnvironment("MILLRACE_LOOPS_SEED", kDefaultSeed);
    const uint64_t count = FromEnvironment("MILLRACE_LOOPS_PROGRAMS", kDefaultPrograms);
    std::printf("%llu programs from seed %llu\n", static_cast<unsigned long long>(count),
                static_cast<unsigned long long>(first));
    uint64_t checked = 0, seed = first;
    for (; checked < count && !HasFailure(); ++seed) checked += Check(seed, way_of(seed)) ? 1u : 0u;
    if (HasFailure() || count < kDefaultPrograms) return;
    // The programs are what they are meant to be.
    EXPECT_LT(seed - first - count, count / 10) << "left out";
    EXPECT_GT(failing_, static_cast<int64_t>(count) / 20);
    EXPECT_GT(cancelled_, static_cast<int64_t>(count) / 2);
  }

  Hooks hooks_;
  int64_t failing_ = 0, cancelled_ = 0;
};

TEST_F(MixedProgramsTest, GiveWhatTheirStatementsGiveWhenTheyAreInlined) {
  CheckAll([](uint64_t seed) { return Way{.inlined = true, .threads = ThreadsOf(seed)}; });
}

TEST_F(MixedProgramsTest, GiveTheSameWhenTheyAreCalled) {
  CheckAll([](uint64_t seed) { return Way{.inlined = false, .threads = 4 - ThreadsOf(seed)}; });
}

TEST_F(MixedProgramsTest, GiveTheSameOnTwoDevices) {
  CheckAll([](uint64_t seed) {
    return Way{.inlined = seed / 8 % 2 == 0, .threads = ThreadsOf(seed), .num_devices = 2};
  });
}

}  // namespace
}  // namespace millrace::loops
