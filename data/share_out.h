// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_SHARE_OUT_H_
#define MILLRACE_DATA_SHARE_OUT_H_

// ShareOut: the shards of a work queue (ops/training/work_queue.h) that this process has in its
// hands, and the dataset of their elements.
//
//   auto source = std::make_shared<ShareOut>();
//   Dataset batches = ShareOut::Read(source, [](const Shard& shard) -> StatusOr<Dataset> {
//     return Dataset::TFRecords({shard.file}).Shuffle(1000).Map(parse).Batch(32);
//   }, spec);
//
// Datasets read in this process and cannot ask a parameter server: somebody who has a session
// brings the shards (train/hooks/share_out_hook.h).
//
//   a shard here:  ready -> read -> finished
//
// A shard is finished when the reader asks for the element behind its last one. So a shard counts
// as trained when the step after that of its last element begins, provided that
//   * nothing stands behind Read that keeps elements (Batch, Shuffle, Prefetch): it belongs into
//     the function, and batches end with their shard;
//   * one step at a time takes elements, once.
// An error in the place of an element does not finish a shard; who goes on behind it has decided
// to leave out the rest.
//
// One reader at a time: a new iterator ends the one before, and begins with what that was reading.
// While a reader waits for a shard it keeps its thread (of the I/O pool).
//
// Thread-safety: all methods, from any thread.
// Failure: a reader gets the error of End; Cancelled when another one has begun, or its iterator is
// cancelled. Its position cannot be saved (FailedPrecondition): the queue's state is what counts.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "data/dataset.h"

namespace millrace::data {

// A part of a file, in the units of the function that reads it.
struct Shard {
  std::string file;
  int64_t begin = 0;
  int64_t end = -1;  // -1: to the end of the file
  int64_t epoch = 0;
  int64_t id = 0;  // of this handing out

  // Its part of all rows of the file.
  Dataset PartOf(const Dataset& rows) const;
};

// The elements of one shard. Called for each shard that is read, once before for their spec.
using ReadShardFunction = std::function<StatusOr<Dataset>(const Shard&)>;

class ShareOut {
 public:
  // The elements of the shards that come, in their order. `spec`: of what `read` returns.
  static Dataset Read(std::shared_ptr<ShareOut> source, ReadShardFunction read, ElementSpec spec);
  // The same without a queue: of all these shards, once.
  static Dataset ReadAll(const std::vector<Shard>& shards, ReadShardFunction read,
                         ElementSpec spec);

  // --- For those who bring shards
  //
  // One at a time: Begin makes the caller the one, and what others still do has no effect.

  // What is in hand is forgotten: it was another session's.
  int64_t Begin();
  struct Wish {
    bool is_over = false;           // by Stop, or somebody else is the one
    std::vector<int64_t> finished;  // ids, each once
    bool wants_shard = false;       // to have one ready while another is read
    bool waits_for_shard = false;   // the reader waits, and nothing is in hand
  };
  // Waits until there is a wish.
  Wish AwaitWish(int64_t bringer);
  // What the last wish had finished was told to the queue, or could not be.
  void Told(int64_t bringer);
  void Put(int64_t bringer, Shard shard);
  // There is none that could be had without waiting: what is read comes first.
  void PutNothing(int64_t bringer);
  // OK: all shards are done, the dataset ends. Else the reader's error.
  void End(int64_t bringer, Status status);
  void Stop(int64_t bringer);
  // What no wish has had; waits for Told when one had some.
  std::vector<int64_t> TakeFinished(int64_t bringer);

  // --- For the reader's dataset

  int64_t BeginReader();
  // The shard that was read before is finished. None: the end.
  StatusOr<std::optional<Shard>> NextShard(int64_t reader, CancellationManager* cancellation);

 private:
  bool wants_shard() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return reading_.has_value() && ready_.empty() && !has_nothing_ && !end_;
  }
  bool waits_for_shard() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return num_waiting_ > 0 && !reading_ && ready_.empty() && !end_;
  }

  Mutex mu_;
  CondVar changed_;
  int64_t bringer_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t reader_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Shard> ready_ ABSL_GUARDED_BY(mu_);
  std::optional<Shard> reading_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> finished_ ABSL_GUARDED_BY(mu_);
  bool is_telling_ ABSL_GUARDED_BY(mu_) = false;   // from a wish with finished shards to Told
  int num_waiting_ ABSL_GUARDED_BY(mu_) = 0;       // 1 for the reader that waits, else 0
  bool has_nothing_ ABSL_GUARDED_BY(mu_) = false;  // since the last shard was begun
  std::optional<Status> end_ ABSL_GUARDED_BY(mu_);
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_SHARE_OUT_H_
