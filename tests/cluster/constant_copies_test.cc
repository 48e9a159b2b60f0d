// SPDX-License-Identifier: Apache-2.0
//
// How often the bytes of a constant are copied on their way to the task that runs it. Servers of
// both tasks live in this process and talk over gRPC; a replaced operator new sees each string and
// slice that is large enough for the constant.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/attr.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"

// covers: steps: a registered graph's constants are copied at most twice per task

namespace {

constexpr size_t kConstantBytes = size_t{8} << 20;
std::atomic<int64_t> large_allocations{0};

void* Allocate(size_t bytes) {
  if (bytes >= kConstantBytes) large_allocations.fetch_add(1, std::memory_order_relaxed);
  void* const block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }

namespace millrace {
namespace {

std::unique_ptr<Server> Start(const ClusterPorts& ports, const char* job) {
  auto config = ClusterConfig::Parse(TfConfig(ports, job, 0));
  EXPECT_OK(config);
  auto server = Server::Start(*config);
  return server.ok() ? *std::move(server) : nullptr;
}

// Twice per task: the master's makes a message of the graph and gRPC's bytes of the message; the
// other one's parses the bytes and makes the tensor. All but the tensor come from operator new; the
// first and the last are counted as copies between messages and tensors.
TEST(ConstantCopiesTest, AConstantIsCopiedTwicePerTask) {
  std::unique_ptr<Server> ps, worker;
  // Ports may be taken by others between the choice and the start.
  for (int tries = 0; tries < 3 && (ps == nullptr || worker == nullptr); ++tries) {
    ClusterPorts ports = FreeClusterPorts(1, 0, 1);
    ports.host = "127.0.0.1";
    ps = Start(ports, "ps");
    worker = Start(ports, "worker");
  }
  ASSERT_NE(ps, nullptr);
  ASSERT_NE(worker, nullptr);

  Scope root;
  const Scope there = root.WithDevice("/job:ps/task:0");
  Tensor value = *Tensor::Zeros(DT_FLOAT, ShapeOf({static_cast<int64_t>(kConstantBytes) / 4}));
  float next = 0;
  for (float& element : value.mutable_flat<float>()) element = ++next;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  Add(there.WithName("sum"), Const(there.WithName("big"), value), x);
  SessionOptions options;
  options.target = worker->target();
  options.creation_timeout = absl::Seconds(30);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(root));

  const int64_t copied = ConstantBytesCopiedForTesting();
  const int64_t allocated = large_allocations.load();
  ASSERT_OK(session->Run({{x, Tensor::Scalar<float>(1)}}, {}, {"sum"}));
  EXPECT_LE(ConstantBytesCopiedForTesting() - copied, 2 * static_cast<int64_t>(kConstantBytes));
  EXPECT_LE(large_allocations.load() - allocated, 3);

  // And never again.
  const int64_t first = ConstantBytesCopiedForTesting();
  ASSERT_OK(session->Run({{x, Tensor::Scalar<float>(2)}}, {}, {"sum"}));
  EXPECT_EQ(ConstantBytesCopiedForTesting(), first);
  EXPECT_OK(session->Close());
}

}  // namespace
}  // namespace millrace
