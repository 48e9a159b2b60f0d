// SPDX-License-Identifier: Apache-2.0
//
// Datasets of this process as the input of steps that servers run.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "core/cancellation.h"
#include "core/notification.h"
#include "core/resource_handle.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/dataset_variant.h"
#include "data/initializable_iterator.h"
#include "data/iterator_ops.h"
#include "data/testing/dataset_testing.h"
#include "distributed/replica_device_setter.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/session.h"
#include "tests/cluster/cluster_in_process.h"

// covers: input: a fed dataset is found by a server of its process; a task without it says so

namespace millrace {
namespace {

using absl::StatusCode;
using data::Dataset;

class DatasetFeedTest : public ClusterInProcessTest {
 protected:
  DatasetFeedTest() : ClusterInProcessTest("dataset_feed") {}
  std::unique_ptr<Session> Open(const Scope& root) {
    EXPECT_OK(root.status());
    auto session = NewSession({.target = servers_["worker"]->target()});
    EXPECT_OK(session);
    if (!session.ok()) return nullptr;
    EXPECT_OK((*session)->Extend(root));
    return *std::move(session);
  }
};

TEST_F(DatasetFeedTest, AServerOfThisProcessFindsTheDataset) {
  const Scope root;
  const Scope model = root.WithDevice(ReplicaDeviceSetter(configs_["worker"]));
  const auto input = data::MakeInitializableIterator(model, Dataset::Range(5).Batch(2));
  EXPECT_TRUE(absl::StrContains(input.handle.node()->requested_device(), "/job:worker/task:0"))
      << input.handle.node()->requested_device();
  const auto session = Open(root);
  ASSERT_NE(session, nullptr);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(session->Run({{input.dataset, input.feed}}, {}, {input.initializer}));
    for (const char* want : {"[0 1]", "[2 3]", "[4]"}) {
      ASSERT_OK_AND_ASSIGN(const auto got, session->Run({}, {input.next[0]}));
      EXPECT_EQ(data::TextOf(got), want);
    }
  }
  EXPECT_STATUS(session->Run({}, {input.next[0]}), StatusCode::kOutOfRange, "End of sequence");
  // Another session has an iterator of its own.
  const auto other = Open(root);
  ASSERT_NE(other, nullptr);
  EXPECT_STATUS(other->Run({}, {input.next[0]}), StatusCode::kFailedPrecondition,
                "the iterator has not been initialized");
  EXPECT_OK(other->Close());
  EXPECT_OK(session->Close());
}

TEST_F(DatasetFeedTest, ATaskWithoutTheDatasetSaysSo) {
  const Scope root;
  const Scope worker = root.WithDevice("/job:worker/task:0");
  const auto input = data::MakeInitializableIterator(worker, Dataset::Range(5));
  // What an op on the worker made is asked for on the ps.
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const std::vector<PartialShape> shapes = {PartialShape::Scalar()};
  const Output made =
      BuildOp(worker, "RangeDataset",
              {Const(worker, int64_t{0}), Const(worker, int64_t{5}), Const(worker, int64_t{1})},
              "output_types", std::vector<DType>{DT_INT64}, "output_shapes", shapes);
  const Operation make_on_ps = MakeIterator(ps, made, IteratorV2(ps, {DT_INT64}, shapes));
  const auto session = Open(root);
  ASSERT_NE(session, nullptr);
  EXPECT_STATUS(session->Run({}, {}, {make_on_ps}), StatusCode::kFailedPrecondition,
                "put the ops that make it on the task of the iterator");
  // As a feed arrives in a process that is not the one that made it.
  ResourceHandle handle;
  handle.name = "0123456789abcdef:1:process 7 on host3";
  Variant variant;
  variant.type_name = "millrace.Dataset";
  variant.tensors = {Tensor::Scalar(handle)};
  EXPECT_STATUS(session->Run({{input.dataset, Tensor::Scalar(variant)}}, {}, {input.initializer}),
                StatusCode::kFailedPrecondition,
                "got one of process 7 on host3; a dataset never travels");
  EXPECT_OK(session->Close());
}

TEST_F(DatasetFeedTest, TheEndOfTheSessionEndsTheGenerator) {
  // Shared: the pool's thread may still leave its wait when the test has left its own.
  const auto waits = std::make_shared<Notification>();
  const auto cancelled = std::make_shared<Notification>();
  const auto blocks = [=](CancellationManager* cancellation) -> StatusOr<data::Generator> {
    return data::Generator([=](data::Element*) -> StatusOr<bool> {
      CancellationManager::Token token;
      if (cancellation->Register(&token, [=] { cancelled->Notify(); })) {
        waits->Notify();
        cancelled->Wait();
        cancellation->Deregister(token);
      }
      return absl::CancelledError("the generator was cancelled");
    });
  };
  const Scope root;
  const auto input = data::MakeInitializableIterator(
      root.WithDevice("/job:worker/task:0"),
      Dataset::FromGenerator(blocks, {{DT_INT64, PartialShape::Scalar()}}));
  const auto session = Open(root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({{input.dataset, input.feed}}, {}, {input.initializer}));
  std::thread step([&] { EXPECT_FALSE(session->Run({}, {input.next[0]}).ok()); });
  waits->Wait();
  EXPECT_OK(session->Close());
  step.join();
  cancelled->Wait();
}

}  // namespace
}  // namespace millrace
