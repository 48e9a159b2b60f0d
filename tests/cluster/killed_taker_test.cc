// SPDX-License-Identifier: Apache-2.0
//
// What a step has taken from a queue, and its client, which was killed, never got: real processes.
#include <signal.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/control/queue.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"

// covers: clusters: elements that a killed client took and never received are back in the queue

namespace millrace {
namespace {

constexpr absl::Duration kGuard = absl::Seconds(120);

TEST(KilledTakerTest, AnElementThatAKilledClientsStepTookIsInItsQueueAgainAndComesFirst) {
  const ClusterPorts ports = FreeClusterPorts(1, 0, 1);
  const auto start = [&](const char* job) {
    return Process::Start({.name = job,
                           .program = "tests/cluster/take_and_wait",
                           .env = {{"TF_CONFIG", TfConfig(ports, job, 0)}}});
  };
  ASSERT_OK_AND_ASSIGN(const auto ps, start("ps"));
  ASSERT_OK(ps->WaitForLine("listens on", kGuard).status());

  Scope root;
  const Output queue = FIFOQueueV2(root, {DT_INT32}, {.shared_name = "shards"});
  std::vector<Operation> puts;
  for (const int32_t value : {7, 8}) {
    puts.push_back(QueueEnqueueV2(root, queue, {Const(root, value)}));
  }
  const Output size = QueueSizeV2(root, queue);
  const Output taken = QueueDequeueV2(root, queue, {DT_INT32})[0];
  ASSERT_OK_AND_ASSIGN(
      const auto session,
      NewSession({.target = absl::StrCat("grpc://", ports.host, ":", ports.ps[0])}));
  ASSERT_OK(session->Extend(root));
  const auto value = [&](Output what) -> int32_t {
    const auto result = session->Run({}, {what});
    EXPECT_OK(result.status());
    return result.ok() ? (*result)[0].scalar<int32_t>() : -1;
  };
  const auto await_size = [&](int32_t wanted) {
    for (const absl::Time guard = absl::Now() + kGuard; absl::Now() < guard;) {
      if (value(size) == wanted) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  };
  for (const Operation& put : puts) ASSERT_OK(session->Run({}, {}, {put}));
  ASSERT_OK_AND_ASSIGN(const auto client, start("worker"));
  ASSERT_TRUE(await_size(1)) << client->output();
  ASSERT_OK(client->Signal(SIGKILL));
  ASSERT_TRUE(await_size(2)) << "what the killed client took is lost";
  EXPECT_EQ(value(taken), 7);
  EXPECT_EQ(value(taken), 8);
  ASSERT_OK(session->Close());
}

}  // namespace
}  // namespace millrace
