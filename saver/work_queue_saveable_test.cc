// SPDX-License-Identifier: Apache-2.0
#include "saver/work_queue_saveable.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/saver.h"

// covers: training: the state of a work queue is in checkpoints, read before any variable

namespace millrace {
namespace {

// A queue and a variable.
struct QueueModel {
  explicit QueueModel(bool is_saved = true) {
    if (is_saved) root.AddToNodeCollection(kWorkQueues, queue.node()->name());
    init = GlobalVariablesInitializer(root);
  }
  Scope root;
  Output queue = WorkQueueHandle(root.WithName("shards"));
  Operation fill = WorkQueueFill(
      root, queue, ConstVector<std::string>(root, {"a", "b"}), ConstVector<int64_t>(root, {0, 0}),
      ConstVector<int64_t>(root, {-1, -1}), Const(root, int64_t{1}), Const(root, int64_t{0}));
  TakenShard taken = WorkQueueTake(root, queue, Const(root, false));
  Output ids = Placeholder(root, DT_INT64, PartialShape::Scalar());
  Output state = Placeholder(root, DT_STRING, PartialShape::Scalar());
  Operation restore = WorkQueueRestore(root, queue, state);
  Output done = WorkQueueDone(root, queue, ids);
  Variable v = MakeVariable(root.WithName("v"), Shape{2}, DT_FLOAT, ConstantInitializer(3.0f));
  Operation init;
};

class WorkQueueSaveableTest : public ::testing::Test {
 protected:
  WorkQueueSaveableTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("queues_", RandomHexName()))) {
    EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_));
  }
  ~WorkQueueSaveableTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }
  const std::string dir_;
};

TEST_F(WorkQueueSaveableTest, AQueueGoesOnFromACheckpointWhichDoesNotKnowWhoHeldWhat) {
  for (const bool sharded : {true, false}) {
    SCOPED_TRACE(sharded);
    std::string checkpoint;
    {
      QueueModel model;
      ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(model.root, {.sharded = sharded}));
      ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
      ASSERT_OK(session->Extend(model.root));
      ASSERT_OK(session->Run({}, {}, {model.init, model.fill}).status());
      ASSERT_OK_AND_ASSIGN(const auto a, session->Run({}, {model.taken.file, model.taken.id}));
      EXPECT_EQ(a[0].scalar<std::string>(), "a");
      ASSERT_OK(session->Run({{model.ids, a[1]}}, {model.done}).status());
      ASSERT_OK_AND_ASSIGN(const auto b, session->Run({}, {model.taken.file}));
      EXPECT_EQ(b[0].scalar<std::string>(), "b");
      ASSERT_OK_AND_ASSIGN(checkpoint, saver->Save(session.get(), JoinPath(dir_, "model"), 1));
    }
    QueueModel model;
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(model.root, {.sharded = sharded}));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(model.root));
    ASSERT_OK(saver->Restore(session.get(), checkpoint));
    ASSERT_OK_AND_ASSIGN(const std::string state,
                         WorkQueueStateIn(FileSystem::Posix(), checkpoint, "shards"));
    ASSERT_OK(session->Run({{model.state, Tensor::Scalar<std::string>(state)}}, {}, {model.restore})
                  .status());
    ASSERT_OK(session->Run({}, {}, {model.fill}).status());
    ASSERT_OK_AND_ASSIGN(const auto b, session->Run({}, {model.taken.file, model.taken.id}));
    EXPECT_EQ(b[0].scalar<std::string>(), "b");
    ASSERT_OK(session->Run({{model.ids, b[1]}}, {model.done}).status());
    EXPECT_STATUS(session->Run({}, {model.taken.file}), absl::StatusCode::kOutOfRange, "are done");
    ASSERT_OK_AND_ASSIGN(const auto v, session->Run({}, {model.v.value}));
    ExpectTensorEqual(v[0], Tensor::Vector<float>({3, 3}));
  }
}

TEST_F(WorkQueueSaveableTest, ANodeOfTheNameThatSavesSomethingElseIsRefused) {
  Scope root;
  const Output queue = WorkQueueHandle(root.WithName("shards"));
  Const(root.WithName("shards/WorkQueueSave"), std::string("none"));
  EXPECT_STATUS(MakeWorkQueueSaveable(root, queue).status(), absl::StatusCode::kInvalidArgument,
                "Saver: node 'shards/WorkQueueSave' must be what saves work queue 'shards', got "
                "Const");
  Scope other;
  const Output first = WorkQueueHandle(other.WithName("first"));
  const Output second = WorkQueueHandle(other.WithName("second"));
  WorkQueueSave(other.WithName("second/WorkQueueSave"), first);
  EXPECT_EQ(MakeWorkQueueSaveable(other, second).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Every SaveV2, and every read of a variable for it, waits for the state.
TEST_F(WorkQueueSaveableTest, VariablesAreReadBehindTheState) {
  QueueModel model;
  ASSERT_OK(Saver::Make(model.root).status());
  int reads = 0, saves = 0;
  for (const auto& node : model.root.graph()->nodes()) {
    if (node == nullptr) continue;
    const bool is_save = node->op() == "SaveV2";
    if (!is_save && (node->op() != "ReadVariableOp" || node->name().rfind("save/", 0) != 0)) {
      continue;
    }
    ++(is_save ? saves : reads);
    bool waits = false;
    for (const Node* input : node->control_inputs()) waits |= input->op() == "WorkQueueSave";
    EXPECT_TRUE(waits) << node->name();
  }
  EXPECT_EQ(reads, 1);  // the only variable
  EXPECT_EQ(saves, 1);  // one device
}

// A run may begin to share its data out in the middle, and stop.
TEST_F(WorkQueueSaveableTest, ACheckpointWithoutTheQueueHasNoStateAndIsRestored) {
  for (const bool has_queue : {false, true}) {
    QueueModel before(has_queue), after(!has_queue);
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(before.root));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(before.root));
    ASSERT_OK(session->Run({}, {}, {before.init}).status());
    ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                         saver->Save(session.get(), JoinPath(dir_, "model"), 1));
    ASSERT_OK_AND_ASSIGN(const auto other, Saver::Make(after.root));
    ASSERT_OK_AND_ASSIGN(const auto next, NewSession());
    ASSERT_OK(next->Extend(after.root));
    EXPECT_OK(other->Restore(next.get(), checkpoint));
    ASSERT_OK_AND_ASSIGN(const std::string state,
                         WorkQueueStateIn(FileSystem::Posix(), checkpoint, "shards"));
    EXPECT_EQ(state, "");  // also where it was saved: the queue was not filled
  }
}

TEST_F(WorkQueueSaveableTest, WhatIsNoQueueIsNamed) {
  QueueModel model;
  EXPECT_STATUS(MakeWorkQueueSaveable(model.root, model.v.value),
                absl::StatusCode::kInvalidArgument, "must be a work queue to be saved, got ");
  model.root.AddToNodeCollection(kWorkQueues, "nobody");
  EXPECT_STATUS(Saver::Make(model.root), absl::StatusCode::kInvalidArgument,
                "Saver: collection 'work_queues' must name work queues of the graph, got 'nobody'");
}

}  // namespace
}  // namespace millrace
