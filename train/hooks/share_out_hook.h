// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_SHARE_OUT_HOOK_H_
#define MILLRACE_TRAIN_HOOKS_SHARE_OUT_HOOK_H_

// ShareOutHook: the trainers of a run share their data out among themselves: shards come from a
// work queue on one task (ops/training/work_queue.h) to whoever has done its last one, so a slow
// trainer gets fewer, and what a dead one held goes to others.
//
//   auto source = std::make_shared<ShardsInHand>();
//   MR_ASSIGN_OR_RETURN(auto hook, ShareOutHook::Make(root, {.source = source,
//                                                            .shards = {{"a.tfrecord"}, ...}}));
//   ... the input is data::ReadShards(source, ...), by data/initializable_iterator.h ...
//   Hooks hooks = {hook, initializer of the input, ...};
//
// What is promised, each for one epoch, where the rules of data/share_out.h are kept:
//   * Without deaths each example is trained once.
//   * With deaths (of trainers, of parameter servers, of all tasks) each example is trained at
//     least once in the model that goes on. Which ones are trained again: those of the shards that
//     a dead trainer held; when variables are restored, those of shards that were not done at the
//     time of the checkpoint.
//   * A checkpoint has the state of the queue (saver/work_queue_saveable.h).
// Training that stops within a shard (a number of steps, a signal) trains that shard again when it
// goes on. Epochs are those of the run: one that goes on after its last epoch has no data.
//
// The chief fills the queue, also after a parameter server has lost it, and restores its state when
// variables were restored, from their checkpoint; a checkpoint without the queue means that nothing
// is done. Others wait for that. While a shard is read the next one is taken, one at most. The end
// of the data (OutOfRange) comes to a trainer when all shards of all trainers are done.
//
// Threads: two of the session's Coordinator, one that takes shards and one that waits for the stop.
// Failure: of the queue's ops; a take that fails is the error of the dataset.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "ops/kernels/shards_in_hand.h"
#include "train/session_run_hook.h"

namespace millrace {

struct ShareOutOptions {
  std::shared_ptr<ShardsInHand> source = nullptr;
  bool is_chief = true;
  // The chief's: what the queue has, by file, begin and end.
  std::vector<Shard> shards = {};
  int64_t num_epochs = 1;    // -1: without end
  int64_t shuffle_seed = 0;  // of the order of shards, another one in each epoch; 0: as they are
  // Where the queue is: with parameter servers on the first one.
  std::string device = "";
  // Of the queue, in the graph and in checkpoints; all tasks give the same.
  std::string name = "share_out";
  FileSystem* file_system = FileSystem::Default();
};

class ShareOutHook : public SessionRunHook {
 public:
  // Adds the queue's nodes to the graph. InvalidArgument without a source.
  static StatusOr<std::shared_ptr<ShareOutHook>> Make(ScopeAt at, ShareOutOptions options);

  std::string name() const override { return "ShareOutHook"; }
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  Status End(const LoopEnd& end) override;

 private:
  // Of nodes and tensors; a thread that is left behind may outlive the graph.
  struct Names {
    std::string queue;
    std::string files, begins, ends, num_epochs, shuffle_seed, state, ids;  // that are fed
    std::string fill, restore, done, leave;
    std::vector<std::string> take_now, take;  // file, begin, end, epoch, id
  };
  struct Bringer;

  ShareOutHook(ShareOutOptions options, Names names)
      : options_(std::move(options)), names_(std::make_shared<const Names>(std::move(names))) {}
  Status PrepareQueue(const CreatedSession& created) const;

  const ShareOutOptions options_;
  const std::shared_ptr<const Names> names_;
  int64_t bringer_ = 0;  // of the last session
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_SHARE_OUT_HOOK_H_
