// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_KEPT_TENSORS_H_
#define MILLRACE_DISTRIBUTED_LINK_KEPT_TENSORS_H_

// Tensors that the receiver of a link keeps, so that they need not travel again: KeptByPeer at the
// end that sends them, KeptForPeer at the end that keeps them.
//
//   TENSORS with `keep number`      the receiver keeps the tensor when it has it whole
//   TENSORS with `kept number`      the same tensor again, without bytes
//   FORGET number                   the sender will not name it again
//
// The numbers are the sender's, of one direction of one link, and none is used twice: so it does
// not matter which steps overlap, which edges the tensors travel on, and in which order they come.
//
// A sender keeps a reference to what it has told the peer to keep. A buffer to which somebody
// refers is never written, so what lies in the same place of the same buffer, with the same dtype
// and shape, is the same tensor.
//
//   an Entry:  on its way -> there      the peer says that it has received all of that step
//              on its way -> lost       the step failed: whether it came is not known
//
// `kept` may leave when the entry is there, and only while the sender of the tensors holds the
// entry, until the peer has received them or was told CANCEL: FORGET leaves when nobody holds it.
// Messages overtake tensors, so FORGET would otherwise come before what it ends.
//
// Both ends bound the bytes, of one link and of all links of a task, and HELLO says the receiver's
// bound. A peer that goes beyond it, or names what was never kept, breaks the rules of the link.
// What no step has named for two minutes the sender lets go: the session may never send it again.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// Smaller tensors are not kept, so that a bound of bytes is one of numbers as well.
inline constexpr int64_t kMinKeptBytes = int64_t{4} << 10;

// Of all links of a task, and their bound for each direction. Relaxed: counters, and bounds that
// guard nothing else.
struct KeptCounts {
  explicit KeptCounts(int64_t max_bytes = INT64_MAX) : max_bytes(max_bytes) {}

  const int64_t max_bytes;
  std::atomic<int64_t> kept_tensors{0};    // that left without their bytes
  std::atomic<int64_t> bytes_at_peers{0};  // what peers keep now; buffers, to which this end refers
  std::atomic<int64_t> bytes_for_peers{0};  // what is kept here now
  std::atomic<int64_t> offered_bytes{0};    // what links have told their peers that they may keep
};

// Threads: all methods, from any thread and under any lock. Lifetime: entries keep it. Failure: a
// tensor that cannot be kept travels whole.
class KeptByPeer : public std::enable_shared_from_this<KeptByPeer> {
 public:
  class Entry;
  struct Held {
    Tensor value;
    Entry* entry;
  };
  // Calls of Age after which an entry that no message names is let go.
  static constexpr int kMaxIdle = 120;

  // A tensor that the peer was told to keep; it is forgotten with the last reference.
  class Entry {
   public:
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    uint64_t number() const { return number_; }
    bool is_of(const KeptByPeer* table) const { return table_.get() == table; }
    // Whether it is this tensor. False once the link is lost, or the entry was too old.
    bool Is(const Tensor& value) const;
    // A message is to name it: until EndUse it is not too old. False when it is not this tensor, or
    // the peer does not have it.
    bool Use(const Tensor& value);
    void EndUse();
    bool is_there() const { return state_.load(std::memory_order_acquire) == State::kThere; }
    bool is_lost() const { return state_.load(std::memory_order_acquire) == State::kLost; }
    // By the sender of the message that brings it, once.
    void HasCome() { state_.store(State::kThere, std::memory_order_release); }
    void MayNotCome() { state_.store(State::kLost, std::memory_order_release); }

   private:
    friend class KeptByPeer;
    enum class State { kOnItsWay, kThere, kLost };

    Entry(std::shared_ptr<KeptByPeer> table, int64_t cost, std::list<Held>::iterator held)
        : table_(std::move(table)), cost_(cost), held_(held) {}
    // Under table_->mu_.
    bool IsLocked(const Tensor& value) const;

    const std::shared_ptr<KeptByPeer> table_;
    const int64_t cost_;
    const std::list<Held>::iterator held_;  // in table_->values_ while the entry is listed
    uint64_t number_ = 0;                   // 0: there was no room; set before others see it
    // Under table_->mu_.
    bool is_listed_ = false;
    int64_t uses_ = 1;  // by messages; the first is that which brings it
    int idle_ = 0;      // how often Age found it without a use
    // Release by whoever heard of it, acquire by those who send.
    std::atomic<State> state_{State::kOnItsWay};
  };

  // `counts` may be null. Nothing may be kept before Open.
  explicit KeptByPeer(std::shared_ptr<KeptCounts> counts);
  ~KeptByPeer();
  KeptByPeer(const KeptByPeer&) = delete;
  KeptByPeer& operator=(const KeptByPeer&) = delete;

  // The link is open: the peer keeps so much.
  void Open(int64_t max_bytes);
  // Whether a tensor is one that peers keep: plain bytes, of kMinKeptBytes at least, in memory that
  // is this process's own. A buffer that its owner may write to (Buffer::External), or that lies in
  // another task's pool (read-only), is not referred to beyond the step.
  static bool MayKeep(const Tensor& value);
  // A new entry for a tensor that MayKeep, which the caller then sends with its number: a use,
  // until EndUse. Null when there is no room, or no link. The whole buffer counts, of which the
  // tensor may be a part.
  std::shared_ptr<Entry> Keep(const Tensor& value);

  // By the link, each second: lets go of what was not named for kMaxIdle calls.
  void Age();
  // By the link: the numbers of entries that are gone, at most so many.
  std::vector<uint64_t> TakeForgotten(size_t most);
  // Of these; without a lock, as each write asks.
  int64_t forgotten_bytes() const { return forgotten_bytes_.load(std::memory_order_relaxed); }
  // By the link, when it is lost: lets go of all tensors.
  void Close();
  bool is_closed() const;
  // As counted against the bound.
  int64_t bytes() const;

  KeptCounts* counts() const { return counts_.get(); }  // never null

 private:
  // The entry's end, under mu_: its number is to be forgotten, its tensor is moved to `gone`.
  void Unlist(Entry* entry, std::list<Held>* gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<KeptCounts> counts_;
  mutable Mutex mu_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  int64_t max_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::list<Held> values_ ABSL_GUARDED_BY(mu_);  // of the listed entries
  // Has room for all entries: to forget one takes no memory.
  std::vector<uint64_t> forgotten_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> forgotten_bytes_{0};  // relaxed: written under mu_
};

// Thread-compatible: the thread that reads the link. Failure: InvalidArgument when the peer breaks
// a rule, after which the link ends.
class KeptForPeer {
 public:
  // It may have `max_bytes`, or as much as a quarter of what the task's other links leave.
  // `counts` may be null.
  KeptForPeer(int64_t max_bytes, std::shared_ptr<KeptCounts> counts);
  ~KeptForPeer();
  KeptForPeer(const KeptForPeer&) = delete;
  KeptForPeer& operator=(const KeptForPeer&) = delete;

  Status Keep(uint64_t number, const Tensor& value);
  // What is kept under the number.
  StatusOr<Tensor> Find(uint64_t number) const;
  // Nothing happens to a number that is not kept: its tensor may have failed.
  void Forget(uint64_t number);
  void Clear();
  int64_t bytes() const { return bytes_; }
  // What the peer may have kept here.
  int64_t max_bytes() const { return max_bytes_; }

 private:
  void Count(int64_t bytes);

  const std::shared_ptr<KeptCounts> counts_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  HashMap<uint64_t, Tensor> tensors_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_KEPT_TENSORS_H_
