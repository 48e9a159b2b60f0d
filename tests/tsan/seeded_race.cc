// SPDX-License-Identifier: Apache-2.0
//
// A program with a data race on purpose: two kernels of one step, run by two threads of the
// executor, add to one int without a lock. ThreadSanitizer must report it; seeded_race_test checks
// that it does, so that a silent sanitizer (threads that it does not see, suppressions that hide
// too much) is noticed.
//
// Exit codes: 0 without ThreadSanitizer; 66 (its own) when it reported; 3 when the kernels never
// ran at the same time; 0 under ThreadSanitizer means that the race was not seen.
#include <atomic>
#include <cstdio>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "runtime/engine/executor.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/testing/step_ops.h"

namespace millrace {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kSeesRaces = true;
#else
constexpr bool kSeesRaces = false;
#endif

// How long a kernel waits for the other one; far longer than a thread needs to wake.
constexpr absl::Duration kMeetingTime = absl::Milliseconds(200);
constexpr int kMaxSteps = 50;

int racy_sum = 0;
// Relaxed: they bring the threads together in time and order nothing.
std::atomic<int> arrived{0};
std::atomic<int> meetings{0};

Status AddWithoutLock(KernelContext* ctx) {
  arrived.fetch_add(1, std::memory_order_relaxed);
  const absl::Time end = absl::Now() + kMeetingTime;
  while (arrived.load(std::memory_order_relaxed) % 2 != 0 && absl::Now() < end) {
  }
  if (arrived.load(std::memory_order_relaxed) % 2 == 0) {
    meetings.fetch_add(1, std::memory_order_relaxed);
  }
  ++racy_sum;  // the race
  ctx->set_output(0, Tensor::Scalar<float>(1));
  return absl::OkStatus();
}

int Main() {
  if (!kSeesRaces) {
    std::printf("skipped: this build has no ThreadSanitizer (--config=tsan)\n");
    return 0;
  }
  testing::SetHook("race", AddWithoutLock);
  testing::TestGraph graph;
  Node* const source = graph.Source("source", 0);
  graph.Probe("left", {source}, 1, "race");
  graph.Probe("right", {source}, 1, "race");
  testing::TestStep step(4);
  const auto plan = Plan::Build(*graph.graph(), &step.device, nullptr);
  if (!plan.ok()) return 4;
  const auto executor = Executor::Make(*plan);
  if (!executor.ok()) return 4;
  for (int i = 0; i < kMaxSteps && meetings.load(std::memory_order_relaxed) < 2; ++i) {
    arrived.store(0, std::memory_order_relaxed);
    if (!(*executor)->Run(step.context).ok()) return 4;
  }
  testing::ClearHooks();
  std::printf("sum %d, meetings %d\n", racy_sum, meetings.load(std::memory_order_relaxed));
  return meetings.load(std::memory_order_relaxed) < 2 ? 3 : 0;
}

}  // namespace
}  // namespace millrace

int main() { return millrace::Main(); }
