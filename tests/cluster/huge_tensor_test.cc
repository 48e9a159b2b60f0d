// SPDX-License-Identifier: Apache-2.0
//
// A tensor of 3 GiB by each path: a link within the process, over gRPC, over a Unix socket and in
// shared memory, and a step of two servers over both networks. Its sizes need more than 31 bits.
//
// Never run by default: it takes up to 10 GiB of memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/buffer.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/link.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/testing/unix_pair.h"
#include "distributed/server.h"
#include "distributed/testing/two_servers.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/placeholder.h"
#include "runtime/session.h"

// covers: clusters: a tensor of 3 GiB arrives within a process, over gRPC, over Unix sockets and in
//   shared memory

namespace millrace {
namespace {

constexpr int64_t kElements = int64_t{3} << 28;  // int32
constexpr absl::Duration kGuard = absl::Minutes(10);

bool AwaitTensor(const RecordingEnd& end) {
  const absl::Time hang = absl::Now() + kGuard;
  while (end.tensors().empty() && end.num_losses() == 0 && absl::Now() < hang) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  return !end.tensors().empty();
}

TEST(HugeTensorTest, ArrivesOnEachKindOfLink) {
  std::set<std::string> arrived;
  for (const LinkKind& kind : LinkKinds()) {
    if (kind.name == "simulated") continue;  // each of its bytes is copied some times
    if (kind.name == "pools") continue;      // through the socket: see below
    SCOPED_TRACE(kind.name);
    const std::unique_ptr<LinkPair> pair = kind.make();
    pair->Settle();
    ASSERT_NE(pair->worker(), nullptr);
    SentTensors message;
    message.step_id = 7;
    {
      Tensor tensor = *Tensor::Zeros(DT_INT32, Shape{kElements});
      const absl::Span<int32_t> values = tensor.mutable_flat<int32_t>();
      for (int64_t i = 0; i < kElements; i += 1000) {
        values[static_cast<size_t>(i)] = static_cast<int32_t>(i);
      }
      message.tensors.emplace_back().value = tensor;
    }
    ASSERT_OK(pair->worker()->Send(std::move(message)));
    ASSERT_TRUE(AwaitTensor(*pair->ps_end)) << pair->ps_end->lost();
    const std::vector<SentTensor> came = pair->ps_end->tensors();
    ASSERT_EQ(came.size(), 1u);
    ASSERT_EQ(came[0].value.shape(), Shape{kElements});
    const absl::Span<const int32_t> values = came[0].value.flat<int32_t>();
    int64_t wrong = 0;
    for (int64_t i = 0; i < kElements; ++i) {
      const int64_t wanted = i % 1000 == 0 ? i : 0;
      wrong += values[static_cast<size_t>(i)] == static_cast<int32_t>(wanted) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0);
    arrived.insert(kind.name);
  }
  EXPECT_EQ(arrived, (std::set<std::string>{"grpc", "in_process", "unix"}));
}

// Floats lie there, whatever their size; the pools of LinkKinds have no room for them.
TEST(HugeTensorTest, ArrivesInSharedMemory) {
  const std::unique_ptr<LinkPair> pair =
      MakeUnixPair({"/job:worker/replica:0/task:0", 41}, {"/job:ps/replica:0/task:0", 42},
                   /*max_pool_bytes=*/int64_t{4} << 30);
  pair->Settle();
  ASSERT_NE(pair->worker(), nullptr);
  SentTensors message;
  message.step_id = 7;
  {
    Tensor tensor = *Tensor::Zeros(DT_FLOAT, Shape{kElements});
    const absl::Span<float> values = tensor.mutable_flat<float>();
    for (int64_t i = 0; i < kElements; i += 1000) {
      values[static_cast<size_t>(i)] = static_cast<float>(i / 1000);  // below 2^24: exact
    }
    message.tensors.emplace_back().value = tensor;
  }
  ASSERT_OK(pair->worker()->Send(std::move(message)));
  ASSERT_TRUE(AwaitTensor(*pair->ps_end)) << pair->ps_end->lost();
  const std::vector<SentTensor> came = pair->ps_end->tensors();
  ASSERT_EQ(came.size(), 1u);
  ASSERT_EQ(came[0].value.shape(), Shape{kElements});
  EXPECT_TRUE(came[0].value.buffer()->is_read_only());
  const absl::Span<const float> values = came[0].value.flat<float>();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    const int64_t wanted = i % 1000 == 0 ? i / 1000 : 0;
    wrong += values[static_cast<size_t>(i)] == static_cast<float>(wanted) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(HugeTensorTest, ArrivesInAStepOfServers) {
  for (const bool unix_links : {true, false}) {
    SCOPED_TRACE(unix_links);
    TwoServers servers({.unix_links = unix_links}, {.unix_links = unix_links});
    const Scope root;
    const Scope worker = root.WithDevice("/job:worker/task:0");
    // Fed, so that nothing is computed before.
    const Output limit = Placeholder(worker, DT_INT32, {});
    const Scope ps = root.WithDevice("/job:ps/task:0");
    const Output sent = Range(ps, Const<int32_t>(ps, 0), limit, Const<int32_t>(ps, 1));
    const auto last = static_cast<int32_t>(kElements - 1);
    const Output some =
        Gather(worker, sent, Const<int32_t>(worker, {0, 1, 1 << 28, 1 << 29, last - 1, last}));
    auto session = servers.NewSession(root);
    ASSERT_OK(session);
    ASSERT_OK_AND_ASSIGN(
        const auto values,
        (*session)->Run({{limit, Tensor::Scalar(static_cast<int32_t>(kElements))}}, {some}));
    ExpectTensorEqual(values[0], Tensor::Vector<int32_t>({0, 1, 1 << 28, 1 << 29, last - 1, last}));
  }
}

}  // namespace
}  // namespace millrace
