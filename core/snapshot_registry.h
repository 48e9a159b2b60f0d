// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_SNAPSHOT_REGISTRY_H_
#define MILLRACE_CORE_SNAPSHOT_REGISTRY_H_

// SnapshotRegistry: what is registered now and then and looked up all the time.
//
//   SnapshotRegistry<OpSpec, Ops> registry(&AddToOps);
//   registry.Add(spec);                     // before main, or by a library that is loaded later
//   registry.Read().entries.find(name);
//
// What is added waits until it is looked for; the look-up makes a copy of the last snapshot with
// all that waits in it and publishes that. A snapshot never changes and is never destroyed: who
// looked something up may keep a reference to it.
//
// Thread-safety: any thread. Read takes no lock, but for the first one after an Add.
// Lifetime: a registry lives as long as the process; what it holds, too.
// Failure: std::bad_alloc, and what `merge` throws; nothing has changed then.

#include <atomic>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "core/mutex.h"

namespace millrace {

template <typename Item, typename Snapshot>
class SnapshotRegistry {
 public:
  // Puts items, in the order in which they were added, into what becomes the next snapshot.
  using Merge = void (*)(const std::list<Item>& items, Snapshot* next);

  explicit SnapshotRegistry(Merge merge) : merge_(merge) {}
  SnapshotRegistry(const SnapshotRegistry&) = delete;
  SnapshotRegistry& operator=(const SnapshotRegistry&) = delete;

  void Add(Item item) {
    std::list<Item> one;
    one.push_back(std::move(item));
    AddAll(&one);
  }
  // Takes all of the items, or none: it cannot fail.
  void AddAll(std::list<Item>* items) noexcept {
    if (items->empty()) return;
    MutexLock lock(&mu_);
    waiting_.splice(waiting_.end(), *items);
    current_.store(nullptr, std::memory_order_release);
  }

  // Has everything whose Add returned before.
  const Snapshot& Read() {
    const Snapshot* const snapshot = current_.load(std::memory_order_acquire);
    return snapshot != nullptr ? *snapshot : Publish();
  }

 private:
  const Snapshot& Publish() {
    MutexLock lock(&mu_);
    if (snapshots_.empty() || !waiting_.empty()) {
      auto next = snapshots_.empty() ? std::make_unique<Snapshot>()
                                     : std::make_unique<Snapshot>(*snapshots_.back());
      merge_(waiting_, next.get());
      snapshots_.push_back(std::move(next));
      waiting_.clear();
    }
    const Snapshot* const last = snapshots_.back().get();
    current_.store(last, std::memory_order_release);
    return *last;
  }

  const Merge merge_;
  Mutex mu_;
  std::list<Item> waiting_ ABSL_GUARDED_BY(mu_);
  // All that were published, the last one at the end: readers may hold any.
  std::vector<std::unique_ptr<Snapshot>> snapshots_ ABSL_GUARDED_BY(mu_);
  // The last snapshot; null while something waits. Release after the snapshot is complete, acquire
  // before it is read.
  std::atomic<const Snapshot*> current_{nullptr};
};

}  // namespace millrace

#endif  // MILLRACE_CORE_SNAPSHOT_REGISTRY_H_
