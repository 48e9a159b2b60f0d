// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_SHARDS_IN_HAND_H_
#define MILLRACE_OPS_KERNELS_SHARDS_IN_HAND_H_

// ShardsInHand: the shards of a work queue (ops/kernels/work_queue.h) that this process has in its
// hands: between somebody who has a session and brings them (train/hooks/share_out_hook.h) and the
// dataset that reads them (data/share_out.h), which cannot ask a parameter server.
//
//   a shard here:  ready -> read -> finished
//
// A shard is finished when its reader asks for the next one.
//
// One reader at a time: one that begins ends the one before, and begins with what that was reading.
// A reader that waits keeps its thread.
//
// Thread-safety: all methods, from any thread.
// Failure: a reader gets the error of End; Cancelled when another one has begun, or its iterator is
// cancelled.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

// A part of a file, in the units of those who read it.
struct Shard {
  std::string file;
  int64_t begin = 0;
  int64_t end = -1;  // -1: to the end of the file
  int64_t epoch = 0;
  int64_t id = 0;  // of this handing out
};

class ShardsInHand {
 public:
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

  // --- For the reader

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

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_SHARDS_IN_HAND_H_
