// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_SENT_READS_H_
#define MILLRACE_DISTRIBUTED_WORKER_SENT_READS_H_

// SentReads: which tensors that a graph's steps send to one task have not changed since they left
// last, so that the receiver may keep them (link/kept_tensors.h): variables that nobody updates,
// constants.
//
//   changes -> looked at -> kept -> kept again ...      it left twice in the same place, with equal
//      ^           |          |                         samples of its bytes
//      +-----------+----------+                         it lies elsewhere, or is another one
//
// What an edge sends is looked at in four sends of a hundred: its place and a few of its bytes are
// compared with those of the send before. Equal ones are a guess, for which the receiver keeps the
// tensor and this end a reference. From then on nothing is guessed: the tensor that leaves is
// compared with the one that is referred to, which nobody writes while it is. An edge of which that
// has saved something is kept at once when it changes; for one of which it has not, the hundred
// begins again. So the edges of a training step pay a counter. A wrong guess costs a reference
// until the next send: an update meanwhile writes to other memory (of rows, it copies what it
// touches).
//
// Threads: all methods, from any thread: steps of a graph overlap. Lifetime: the graph and the
// steps that send share it; with it goes what peers keep for its edges. Failure: none; without room
// tensors travel whole.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "core/tensor.h"
#include "distributed/link/kept_tensors.h"

namespace millrace {

class SentReads {
 public:
  // Sends that are looked at, and those that are not, until the next ones are.
  static constexpr uint32_t kLooks = 4, kRest = 96;

  explicit SentReads(size_t num_edges) : edges_(num_edges) {}
  SentReads(const SentReads&) = delete;
  SentReads& operator=(const SentReads&) = delete;

  // How a tensor is to travel. The sender holds it until the peer has received its message, or was
  // told that it will not come: a use of the entry.
  class Choice {
   public:
    Choice() = default;
    Choice(std::shared_ptr<KeptByPeer::Entry> entry, bool is_kept)
        : entry_(std::move(entry)), is_kept_(is_kept) {}
    Choice(Choice&&) = default;
    Choice& operator=(Choice&&) = delete;
    ~Choice() {
      if (entry_ != nullptr) entry_->EndUse();
    }
    KeptByPeer::Entry* entry() const { return entry_.get(); }  // null: whole, and nobody keeps it
    bool is_kept() const { return is_kept_; }  // the peer has it; else it is to keep it

   private:
    std::shared_ptr<KeptByPeer::Entry> entry_;
    bool is_kept_ = false;
  };
  // Of what edge number `index` sends by the link of `table`.
  Choice Choose(size_t index, const Tensor& value, KeptByPeer* table);

 private:
  struct Edge {
    // Relaxed: hints for a guess. Steps that overlap may mix them up.
    std::atomic<uint32_t> rest{0};   // so many sends are not looked at
    std::atomic<uint32_t> looks{0};  // so many were, one after the other
    std::atomic<const void*> place{nullptr};
    std::atomic<uint64_t> sample{0};
    std::atomic<bool> is_kept{false};  // as `entry`; read without the lock
    // Under mu_.
    std::shared_ptr<KeptByPeer::Entry> entry;  // null: nothing is kept
    int64_t saved = 0;                         // how often it left without its bytes
  };

  // Whether it lies where the last one lay, and looks the same.
  static bool LooksEqual(const Tensor& value, Edge* edge);
  static void Rest(Edge* edge);

  Mutex mu_;  // of what is kept
  std::vector<Edge> edges_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_SENT_READS_H_
