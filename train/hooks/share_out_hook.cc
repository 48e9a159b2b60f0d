// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/share_out_hook.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/training/work_queue.h"
#include "runtime/session.h"
#include "saver/work_queue_saveable.h"
#include "train/coordinator.h"
#include "train/session_manager.h"

namespace millrace {

StatusOr<std::shared_ptr<ShareOutHook>> ShareOutHook::Make(ScopeAt at, ShareOutOptions options) {
  if (options.source == nullptr) {
    return InvalidArgument("ShareOutHook: source must be given, got none");
  }
  const Scope scope = at.here()
                          .WithRootPrefix()
                          .WithoutControlDependencies()
                          .WithDevice(options.device)
                          .WithSubScope(options.name);
  const auto named = [&](const char* name) { return scope.WithName(name); };
  const auto fed = [&](const char* name, DType dtype, const PartialShape& shape) {
    return Placeholder(named(name), dtype, shape);
  };
  MR_ASSIGN_OR_RETURN(const PartialShape vector, PartialShape::Make({-1}));
  const PartialShape scalar = PartialShape::Scalar();
  const Output queue = WorkQueueHandle(named("queue"));
  const Output files = fed("files", DT_STRING, vector);
  const Output begins = fed("begins", DT_INT64, vector);
  const Output ends = fed("ends", DT_INT64, vector);
  const Output num_epochs = fed("num_epochs", DT_INT64, scalar);
  const Output shuffle_seed = fed("shuffle_seed", DT_INT64, scalar);
  const Output state = fed("state", DT_STRING, scalar);
  const Output ids = fed("ids", DT_INT64, vector);
  const Operation fill =
      WorkQueueFill(named("fill"), queue, files, begins, ends, num_epochs, shuffle_seed);
  const Operation restore = WorkQueueRestore(named("restore"), queue, state);
  const Output done = WorkQueueDone(named("done"), queue, ids);
  const Operation leave = WorkQueueLeave(named("leave"), queue);
  const TakenShard now =
      WorkQueueTake(named("take_now"), queue, Const(named("take_now/may_wait"), false));
  const TakenShard then = WorkQueueTake(named("take"), queue, Const(named("take/may_wait"), true));
  MR_RETURN_IF_ERROR(scope.status());
  scope.AddToNodeCollection(kWorkQueues, queue.node()->name());
  const auto outputs = [](const TakenShard& shard) -> std::vector<std::string> {
    return {shard.file.name(), shard.begin.name(), shard.end.name(), shard.epoch.name(),
            shard.id.name()};
  };
  Names names{.queue = queue.node()->name(),
              .files = files.name(),
              .begins = begins.name(),
              .ends = ends.name(),
              .num_epochs = num_epochs.name(),
              .shuffle_seed = shuffle_seed.name(),
              .state = state.name(),
              .ids = ids.name(),
              .fill = fill.name(),
              .restore = restore.name(),
              .done = done.node()->name(),
              .leave = leave.name(),
              .take_now = outputs(now),
              .take = outputs(then)};
  return std::shared_ptr<ShareOutHook>(new ShareOutHook(std::move(options), std::move(names)));
}

// Brings the shards of one session.
struct ShareOutHook::Bringer {
  const std::shared_ptr<const Names> names;
  const std::shared_ptr<ShardsInHand> source;
  const std::shared_ptr<Session> session;
  const int64_t id;
  // Sequentially consistent: either the taking thread sees the stop, or the stopping one this.
  std::atomic<bool> may_wait{false};

  Status SayDone(const std::vector<int64_t>& finished) const {
    if (finished.empty()) return absl::OkStatus();
    return session
        ->Run({{names->ids, Tensor::Vector<int64_t>(finished)}}, {}, {FetchName(names->done)})
        .status();
  }
  // False: all are done.
  StatusOr<bool> Take(bool waits) const {
    const std::vector<std::string>& fetches = waits ? names->take : names->take_now;
    const StatusOr<std::vector<Tensor>> taken =
        session->Run({}, std::vector<FetchName>(fetches.begin(), fetches.end()));
    if (absl::IsOutOfRange(taken.status())) return false;
    MR_RETURN_IF_ERROR(taken.status());
    Shard shard{(*taken)[0].scalar<std::string>(), (*taken)[1].scalar<int64_t>(),
                (*taken)[2].scalar<int64_t>(), (*taken)[3].scalar<int64_t>(),
                (*taken)[4].scalar<int64_t>()};
    if (shard.id < 0) {
      source->PutNothing(id);
    } else {
      source->Put(id, std::move(shard));
    }
    return true;
  }
  Status Bring(const Coordinator& coordinator) {
    while (true) {
      const ShardsInHand::Wish wish = source->AwaitWish(id);
      if (wish.is_over) return absl::OkStatus();
      // A take that waits comes behind the Dones: nothing is held then, so it may be the last one.
      Status status = SayDone(wish.finished);
      source->Told(id);
      if (status.ok() && (wish.waits_for_shard || wish.wants_shard)) {
        may_wait = wish.waits_for_shard;
        if (coordinator.ShouldStop()) return absl::OkStatus();
        const StatusOr<bool> more = Take(wish.waits_for_shard);
        may_wait = false;
        status = more.status();
        if (more.ok() && !*more) {
          LogInfo("ShareOutHook: all shards of all trainers are done");
          source->End(id, absl::OkStatus());
        }
      }
      if (status.ok()) continue;
      if (coordinator.ShouldStop()) return absl::OkStatus();
      source->End(id, status);
      return status;
    }
  }
  // A take that waits would hold up the end of the session.
  Status EndWaits() const {
    source->Stop(id);
    if (!may_wait) return absl::OkStatus();
    const Status left = session->Run({}, {}, {FetchName(names->leave)}).status();
    if (!left.ok())
      LogInfo("ShareOutHook: the take that waits ends with the session: ", left.message());
    return absl::OkStatus();
  }
};

Status ShareOutHook::PrepareQueue(const CreatedSession& created) const {
  Session* const session = created.session.get();
  using Start = SessionManager::Start;
  if (created.start != Start::kAdopted) {
    std::string state;
    if (created.start == Start::kRestored && !created.restored_checkpoint.empty()) {
      MR_ASSIGN_OR_RETURN(state, WorkQueueStateIn(options_.file_system, created.restored_checkpoint,
                                                  names_->queue));
      LogInfo("ShareOutHook: ", state.empty() ? "nothing is done, by '" : "goes on from '",
              created.restored_checkpoint, "'");
    }
    MR_RETURN_IF_ERROR(session
                           ->Run({{names_->state, Tensor::Scalar<std::string>(state)}}, {},
                                 {FetchName(names_->restore)})
                           .status());
  }
  std::vector<std::string> files;
  std::vector<int64_t> begins, ends;
  for (const Shard& shard : options_.shards) {
    files.push_back(shard.file);
    begins.push_back(shard.begin);
    ends.push_back(shard.end);
  }
  return session
      ->Run({{names_->files, Tensor::Vector<std::string>(files)},
             {names_->begins, Tensor::Vector<int64_t>(begins)},
             {names_->ends, Tensor::Vector<int64_t>(ends)},
             {names_->num_epochs, Tensor::Scalar(options_.num_epochs)},
             {names_->shuffle_seed, Tensor::Scalar(options_.shuffle_seed)}},
            {}, {FetchName(names_->fill)})
      .status();
}

Status ShareOutHook::AfterCreateSession(RunContext*, const CreatedSession& created) {
  bringer_ = options_.source->Begin();
  if (options_.is_chief) MR_RETURN_IF_ERROR(PrepareQueue(created));
  const std::shared_ptr<Bringer> bringer(
      new Bringer{names_, options_.source, created.session, bringer_});
  created.coordinator.Start(options_.name,
                            [bringer](const Coordinator& c) { return bringer->Bring(c); });
  created.coordinator.Start(absl::StrCat(options_.name, "_stop"), [bringer](const Coordinator& c) {
    c.WaitForStop();
    return bringer->EndWaits();
  });
  return absl::OkStatus();
}

Status ShareOutHook::End(const LoopEnd& end) {
  const std::vector<int64_t> finished = options_.source->TakeFinished(bringer_);
  if (finished.empty()) return absl::OkStatus();
  return end.session
      ->Run({{names_->ids, Tensor::Vector<int64_t>(finished)}}, {}, {FetchName(names_->done)})
      .status();
}

}  // namespace millrace
