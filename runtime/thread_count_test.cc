// SPDX-License-Identifier: Apache-2.0
//
// How many threads sessions make, counted by a replaced pthread_create: with one thread to compute
// with, the caller's, none.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "runtime/session.h"

// covers: steps: a session with one thread to compute with makes no thread (counted at
//   pthread_create)

namespace {

std::atomic<int64_t> created{0};  // relaxed: a count, read when all work is done

}  // namespace

// Instead of the C library's, for every library of the process.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*function)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  created.fetch_add(1, std::memory_order_relaxed);
  return create(thread, attributes, function, argument);
}

namespace millrace {
namespace {

constexpr int64_t kElements = 1 << 20;

// The threads that come into being while a session is made and runs ten steps of eight expensive
// nodes beside each other, each a loop that two threads would share.
int64_t ThreadsOfASession(int num_threads) {
  const int64_t before = created.load(std::memory_order_relaxed);
  Scope root;
  const Output x = Placeholder(root, DT_FLOAT, {kElements});
  std::vector<FetchName> fetches;
  for (int i = 0; i < 8; ++i) fetches.emplace_back(Tanh(root, Add(root, x, x)));
  auto session = NewSession({.config = {.intra_op_parallelism_threads = num_threads}});
  EXPECT_OK(session);
  EXPECT_OK((*session)->Extend(root));
  const auto zeros = Tensor::Zeros(DT_FLOAT, Shape{kElements});
  EXPECT_OK(zeros);
  for (int step = 0; step < 10; ++step) {
    const auto out = (*session)->Run(std::vector<Feed>{{x, *zeros}}, fetches);
    EXPECT_OK(out);
    EXPECT_EQ((*out)[7].flat<float>()[kElements - 1], 0);
  }
  return created.load(std::memory_order_relaxed) - before;
}

// One test, because pools that the process shares are made once: one thread comes first.
TEST(ThreadCount, ASessionWithOneThreadMakesNone) {
  EXPECT_EQ(ThreadsOfASession(1), 0);
  EXPECT_EQ(ThreadsOfASession(1), 0);
  EXPECT_GT(ThreadsOfASession(2), 0);  // so it is seen when there are some
}

}  // namespace
}  // namespace millrace
