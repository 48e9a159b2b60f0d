// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/share_out_hook.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/initializable_iterator.h"
#include "data/share_out.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/hooks/checkpoint_saver.h"
#include "train/hooks/stop_at_step.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"

// covers: training: a trainer trains each example of shared data once an epoch, also when it stops
//   between shards and goes on from a checkpoint

namespace millrace {
namespace {

using data::Dataset;
using data::Shard;

constexpr int64_t kExamples = 12, kPerShard = 4, kBatch = 3;

std::vector<Shard> Shards() {
  std::vector<Shard> shards;
  for (int64_t begin = 0; begin < kExamples; begin += kPerShard) {
    shards.push_back({"numbers", begin, begin + kPerShard});
  }
  return shards;
}

// The numbers of the shard, shuffled and in batches: the last one of a shard is smaller.
StatusOr<Dataset> Batches(const Shard& shard) {
  if (shard.file == "missing") return absl::NotFoundError("missing: no such file");
  return Dataset::Range(shard.begin, shard.end).Shuffle(kPerShard, {.seed = 1}).Batch(kBatch);
}

// Runs the initializer in each session.
class InitializeHook : public SessionRunHook {
 public:
  explicit InitializeHook(data::InitializableIterator iterator) : iterator_(std::move(iterator)) {}
  std::string name() const override { return "InitializeHook"; }
  Status AfterCreateSession(RunContext*, const CreatedSession& created) override {
    return created.session->Run({{iterator_.dataset, iterator_.feed}}, {}, {iterator_.initializer})
        .status();
  }

 private:
  const data::InitializableIterator iterator_;
};

// The model is the ledger: how often each example was trained.
struct Counting {
  explicit Counting(ShareOutOptions options) {
    options.source = source;
    auto made = ShareOutHook::Make(root, std::move(options));
    EXPECT_OK(made);
    share_out = *std::move(made);
    auto vector = PartialShape::Make({-1});
    EXPECT_OK(vector);
    const auto input = data::MakeInitializableIterator(
        root, data::ReadShards(source, Batches, {{DT_INT64, *vector}}));
    initialize = std::make_shared<InitializeHook>(input);
    times = MakeVariable(root.WithName("times"), Shape{kExamples}, DT_INT64, ZerosInitializer());
    step = GlobalStep(root);
    const Operation add =
        ResourceScatterAdd(root, times.handle, input.next[0], OnesLike(root, input.next[0]));
    train = AssignAddVariableOp(root.WithControlDependencies({add}), step.handle,
                                Const(root, int64_t{1}));
  }
  Scope root;
  const std::shared_ptr<ShardsInHand> source = std::make_shared<ShardsInHand>();
  std::shared_ptr<ShareOutHook> share_out;
  std::shared_ptr<SessionRunHook> initialize;
  Variable times, step;
  Operation train;
};

class ShareOutHookTest : public ::testing::Test {
 protected:
  ShareOutHookTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("share_out_", RandomHexName()))) {
    EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_));
  }
  ~ShareOutHookTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }

  // Until the data, or so many steps, have ended. The error of the loop, else of its end.
  Status Train(ShareOutOptions options, int64_t steps, std::vector<int64_t>* times) {
    Counting model(std::move(options));
    MR_RETURN_IF_ERROR(model.root.status());
    CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1000});
    StopAtStepHook stop({.num_steps = steps > 0 ? steps : 1000});
    MonitoredSessionOptions session_options;
    session_options.hooks = {model.share_out.get(), model.initialize.get(), &stop, &saver};
    SessionCreatorOptions creator;
    creator.checkpoint_dir = dir_;
    MR_ASSIGN_OR_RETURN(
        const auto session,
        MonitoredSession::Open(
            model.root, std::make_unique<ChiefSessionCreator>(model.root, std::move(creator)),
            std::move(session_options)));
    Status status;
    while (status.ok() && !session->ShouldStop()) {
      status = session->Run({}, {}, {model.train}).status();
    }
    if (absl::IsOutOfRange(status)) status = absl::OkStatus();
    if (status.ok()) {
      const auto got = session->raw_session()->Run({}, {model.times.value});
      MR_RETURN_IF_ERROR(got.status());
      const auto values = (*got)[0].raw<int64_t>();
      times->assign(values.begin(), values.end());
    }
    const Status closed = session->Close();
    return status.ok() ? closed : status;
  }

  const std::string dir_;
};

TEST_F(ShareOutHookTest, EachExampleIsTrainedOnceAnEpoch) {
  std::vector<int64_t> times;
  ASSERT_OK(Train({.shards = Shards(), .num_epochs = 3, .shuffle_seed = 5}, 0, &times));
  EXPECT_EQ(times, std::vector<int64_t>(kExamples, 3));
  // The run is over: it has no more data.
  ASSERT_OK(Train({.shards = Shards(), .num_epochs = 3, .shuffle_seed = 5}, 0, &times));
  EXPECT_EQ(times, std::vector<int64_t>(kExamples, 3));
  // One epoch more.
  ASSERT_OK(Train({.shards = Shards(), .num_epochs = 4, .shuffle_seed = 5}, 0, &times));
  EXPECT_EQ(times, std::vector<int64_t>(kExamples, 4));
}

// A shard has two batches, of three examples and of one.
TEST_F(ShareOutHookTest, TrainingGoesOnFromACheckpointWithTheShardsThatWereNotDone) {
  std::vector<int64_t> times;
  // The third step asks behind the first shard, which is done then. It ends with the second shard
  // begun.
  ASSERT_OK(Train({.shards = Shards()}, 3, &times));
  EXPECT_EQ(times,
            (std::vector<int64_t>{1, 1, 1, 1, times[4], times[5], times[6], times[7], 0, 0, 0, 0}));
  const std::vector<int64_t> before = times;
  ASSERT_OK(Train({.shards = Shards()}, 0, &times));
  for (int64_t i = 0; i < kExamples; ++i) {
    const size_t at = static_cast<size_t>(i);
    // What was not done of the second shard is trained with all of it.
    const int64_t again = i >= kPerShard && i < 2 * kPerShard ? before[at] : 0;
    EXPECT_EQ(times[at], 1 + again) << "example " << i;
  }
}

TEST_F(ShareOutHookTest, AFileThatIsMissingIsNamedAndNotDone) {
  std::vector<int64_t> times;
  std::vector<Shard> shards = Shards();
  shards.insert(shards.begin() + 1, Shard{"missing"});
  EXPECT_STATUS(Train({.shards = shards}, 0, &times), absl::StatusCode::kNotFound,
                "missing: no such file");
  // It is there now, and has grown.
  shards[1] = {"numbers", kExamples, kExamples};
  ASSERT_OK(Train({.shards = shards}, 0, &times));
  for (const int64_t count : times) EXPECT_GE(count, 1);
}

TEST_F(ShareOutHookTest, AListWithoutShardsIsRefused) {
  std::vector<int64_t> times;
  EXPECT_STATUS(Train({}, 0, &times), absl::StatusCode::kInvalidArgument,
                "there must be at least one shard, got none");
  const Scope root;
  EXPECT_STATUS(ShareOutHook::Make(root, {}), absl::StatusCode::kInvalidArgument,
                "ShareOutHook: source must be given, got none");
}

}  // namespace
}  // namespace millrace
