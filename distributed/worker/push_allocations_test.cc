// SPDX-License-Identifier: Apache-2.0
//
// What a step that pushes allocates, counted: blocks of the push, none of its tensors.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/link.h"
#include "distributed/worker/push_sink.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/step_rendezvous.h"
#include "distributed/worker/step_table.h"
#include "gtest/gtest.h"
#include "runtime/rendezvous.h"

// covers: clusters: a tensor that is pushed allocates nothing in the step that sends it

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";
// Only compared.
const Link* const kLink = reinterpret_cast<const Link*>(&kPs);

// Keeps nothing.
class Nowhere : public PushSink {
 public:
  int64_t OnTensor(uint64_t, Tensor value, bool) override {
    ++tensors;
    return value.TotalBytes();
  }
  void OnDone(const Status& status) override {
    end.Update(status);
    ++ends;
  }
  int tensors = 0;
  int ends = 0;
  Status end;
};

// A partition that sends `n` tensors to the worker, in no wave.
std::shared_ptr<const StepEdges> EdgesOf(uint32_t n) {
  auto transfers = std::make_shared<TransferTable>();
  auto edges = std::make_shared<StepEdges>();
  StepEdges::Peer peer;
  peer.task = kWorker;
  peer.fingerprint = 17;
  for (uint32_t i = 0; i < n; ++i) {
    const std::string key =
        RendezvousKey::Make(absl::StrCat(kPs, "/device:CPU:0"), 42,
                            absl::StrCat(kWorker, "/device:CPU:0"), absl::StrCat("edge", i), 0, 0);
    peer.numbers.push_back(transfers->Add(*RendezvousKey::Parse(key), absl::StrCat("send", i)));
    peer.wire_keys.push_back(key);
    peer.immediate.push_back(false);
    peer.groups.push_back(StepEdges::kNoGroup);
  }
  edges->sends.push_back(std::move(peer));
  edges->num_sends = n;
  edges->is_sent.resize(n, true);
  edges->transfers = std::move(transfers);
  return edges;
}

struct Blocks {
  int64_t push = 0;   // until it waits for its tensors
  int64_t sends = 0;  // of all tensors, until the last of them is with the sink
};

Blocks BlocksOfPushing(uint32_t n) {
  FakeClock clock;
  const auto table = std::make_shared<StepTable>(&clock);
  const std::shared_ptr<const StepEdges> edges = EdgesOf(n);
  const StatusOr<std::shared_ptr<StepRendezvous>> started = table->Start(1, edges);
  EXPECT_OK(started.status());
  if (!started.ok()) return {};
  StepRendezvous& step = **started;
  const auto sink = std::make_shared<Nowhere>();
  const Tensor value = Tensor::Scalar(1.5f);

  Blocks blocks;
  int64_t before = testing::Allocations();
  step.Push(edges->sends[0], kLink, sink);
  blocks.push = testing::Allocations() - before;
  Status status;
  before = testing::Allocations();
  for (uint32_t i = 0; i < n; ++i) status.Update(step.Send(Transfer(i), value, false));
  blocks.sends = testing::Allocations() - before;
  EXPECT_OK(status);
  EXPECT_EQ(sink->tensors, static_cast<int>(n));
  EXPECT_EQ(sink->ends, 1);
  EXPECT_OK(sink->end);
  table->End(&step, absl::OkStatus());
  table->Received(1, kWorker, kLink, n);
  EXPECT_EQ(table->num_steps(), 0);
  return blocks;
}

TEST(PushAllocationsTest, APushedTensorAllocatesNothing) {
  const Blocks two = BlocksOfPushing(2), fifty = BlocksOfPushing(50);
  std::printf("blocks of a push of 2 tensors: %d and %d, of 50: %d and %d\n",
              static_cast<int>(two.push), static_cast<int>(two.sends), static_cast<int>(fifty.push),
              static_cast<int>(fifty.sends));
  EXPECT_EQ(two.push, fifty.push);
  EXPECT_EQ(two.sends, 0);
  EXPECT_EQ(fifty.sends, 0);
}

}  // namespace
}  // namespace millrace
