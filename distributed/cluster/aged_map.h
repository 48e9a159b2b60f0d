// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_AGED_MAP_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_AGED_MAP_H_

// AgedMap: what a task remembers for callers that may come late: by key, in so many bytes, and the
// oldest entry goes first.
//
// Invariant: bytes() <= max_bytes, whoever puts entries in, and how many. So it holds only what its
// owner can do without: an entry may be gone when it is asked for.
//
// An entry is as old as its last Put. It counts kEntryBytes and what its owner says that key and
// value hold besides; one that is larger than the bound is not kept.
//
// Thread-safety: none; its owner's lock. Lifetime: Find points into the map, until the next Put,
// Erase or Drop.
// Failure: none; when memory runs out in Put (std::bad_alloc), the entry is not there.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"

namespace millrace {

template <typename Key, typename Value>
class AgedMap {
 public:
  // Of the two nodes of an entry, with malloc's own bytes.
  static constexpr int64_t kEntryBytes = 160;

  explicit AgedMap(int64_t max_bytes) : max_bytes_(max_bytes) {}
  AgedMap(const AgedMap&) = delete;
  AgedMap& operator=(const AgedMap&) = delete;

  // Takes the place of what `key` has. `held_bytes`: on the heap, by key and value.
  void Put(const Key& key, Value value, int64_t held_bytes, absl::Time now) {
    Erase(key);
    const int64_t bytes = held_bytes + kEntryBytes;
    if (bytes > max_bytes_) return;
    while (bytes_ > max_bytes_ - bytes) DropOldest();
    order_.push_back(nullptr);
    try {
      Entry entry{std::move(value), bytes, now, std::prev(order_.end())};
      order_.back() = &entries_.emplace(key, std::move(entry)).first->first;
    } catch (...) {
      order_.pop_back();
      throw;
    }
    bytes_ += bytes;
  }
  // Null when it is not there.
  const Value* Find(const Key& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second.value;
  }
  // False when it was not there.
  bool Erase(const Key& key) {
    const auto it = entries_.find(key);
    if (it == entries_.end()) return false;
    Erase(it);
    return true;
  }
  // Entries that were put before `time`.
  void DropBefore(absl::Time time) {
    while (!order_.empty() && entries_.find(*order_.front())->second.at < time) DropOldest();
  }
  // The key of what goes; not of an empty map.
  Key DropOldest() {
    const auto it = entries_.find(*order_.front());
    Key key = it->first;
    Erase(it);
    return key;
  }

  size_t size() const { return entries_.size(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    Value value;
    int64_t bytes = 0;
    absl::Time at;
    typename std::list<const Key*>::iterator place;
  };
  // Abseil's maps break when there is no memory to grow, and move their keys.
  using Entries = std::unordered_map<Key, Entry>;

  void Erase(typename Entries::iterator it) {
    bytes_ -= it->second.bytes;
    order_.erase(it->second.place);
    entries_.erase(it);
  }

  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::list<const Key*> order_;  // oldest first; keys of entries_
  Entries entries_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_AGED_MAP_H_
