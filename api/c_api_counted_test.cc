// SPDX-License-Identifier: Apache-2.0
//
// What a step through the C API allocates and locks besides what its kernels do, counted.
#include <cstdint>

#include "api/c_api.h"
#include "core/mutex.h"
#include "core/testing/counted_new.h"
#include "gtest/gtest.h"

// covers: c api: a prepared step through the C API allocates nothing and takes one lock, one by
//   names allocates the list of its results

namespace millrace {
namespace {

using testing::Allocations;

// What `calls` calls of `body` add to.
template <typename Body>
void ExpectCosts(int64_t calls, int64_t allocations, int64_t locks, Body body) {
  for (int64_t i = 0; i < 300; ++i) body();  // until handles are used again
  const int64_t allocated = Allocations(), locked = MutexLockCountForTesting();
  for (int64_t i = 0; i < calls; ++i) body();
  EXPECT_EQ(Allocations() - allocated, calls * allocations);
  EXPECT_LE(MutexLockCountForTesting() - locked, calls * locks);
}

TEST(CApiCountedTest, AStepAllocatesNothingForHandlesAndTakesNoLockForThem) {
  MillraceStatus* const status = millrace_status_new();
  MillraceGraph* const graph = millrace_graph_new(status);
  const char* const x =
      millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, nullptr, 0, status);
  const char* const y =
      millrace_graph_add_placeholder(graph, "y", MILLRACE_FLOAT, nullptr, 0, status);
  const char* const names[] = {x, y};
  const char* const sum = millrace_graph_add_node(graph, "Add", "sum", names, 2, status);
  const char* const fetches[] = {sum, sum};
  MillraceSessionOptions options = {};
  options.struct_size = sizeof(options);
  options.num_threads = 1;
  MillraceSession* const session = millrace_session_new(graph, &options, status);
  MillracePreparedStep* const step =
      millrace_session_prepare(session, names, 2, fetches, 1, nullptr, 0, status);
  MillraceTensor* const one = millrace_tensor_new(MILLRACE_FLOAT, nullptr, 0, status);
  MillraceTensor* const feeds[] = {one, one};
  ASSERT_EQ(millrace_status_code(status), MILLRACE_OK) << millrace_status_message(status);

  MillraceTensor* results[2] = {};
  ExpectCosts(1000, 0, 1, [&] {
    millrace_prepared_step_run(step, feeds, 2, results, 1, nullptr, status);
    millrace_tensor_delete(results[0]);
  });
  // The list of its results is one.
  ExpectCosts(1000, 1, 1, [&] {
    millrace_session_run(session, names, feeds, 2, fetches, results, 2, nullptr, 0, nullptr,
                         status);
    millrace_tensor_delete(results[0]);
    millrace_tensor_delete(results[1]);
  });
  EXPECT_EQ(millrace_status_code(status), MILLRACE_OK) << millrace_status_message(status);

  millrace_tensor_delete(one);
  millrace_prepared_step_delete(step);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
  millrace_status_delete(status);
}

}  // namespace
}  // namespace millrace
