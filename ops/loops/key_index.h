// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_KEY_INDEX_H_
#define MILLRACE_OPS_LOOPS_KEY_INDEX_H_

// KeyIndex: the places of keys: each key has one of the numbers [0, size()), so that what belongs
// to it can stand in plain arrays.
//
//   KeyIndex<std::string> index;
//   index.Insert("a").place;  // 0
//   index.Find("b");          // -1
//
// A new key gets the last place; when one is removed, the key of the last place moves to its.
//
// Strings are asked by any string without a copy. Batches (FindEach) hide the memory's latency:
// the places of several keys are fetched before the first is looked at.
//
// How: open addressing with linear probing; a slot has 32 bits of the key's hash and its place, so
// that a probe looks at a key only when it is most likely the right one, and nothing is hashed
// again when the slots grow or a key is removed.
//
// Thread-safety: thread-compatible.
// Failure: std::bad_alloc, after which the index is as it was.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace::math {

template <typename K>  // std::string or an integer
class KeyIndex {
 public:
  using View = std::conditional_t<std::is_same_v<K, std::string>, absl::string_view, K>;
  // Places are 32 bits, one of them is taken.
  static constexpr int64_t kMaxKeys = int64_t{0xffffffff};

  int64_t size() const { return static_cast<int64_t>(keys_.size()); }
  // The key of each place.
  const std::vector<K>& keys() const { return keys_; }

  // The place of `key`, -1 when it is not there.
  int64_t Find(View key) const { return slots_.empty() ? -1 : FindHashed(key, HashOf(key)); }
  // places[i] = Find(keys[i]); Key converts to View.
  template <typename Key>
  void FindEach(absl::Span<const Key> keys, int64_t* places) const {
    constexpr size_t kBlock = 16;
    uint32_t hashes[kBlock];
    for (size_t begin = 0; begin < keys.size(); begin += kBlock) {
      const absl::Span<const Key> block = keys.subspan(begin, kBlock);
      if (slots_.empty()) {
        for (size_t i = 0; i < block.size(); ++i) places[begin + i] = -1;
        continue;
      }
      for (size_t i = 0; i < block.size(); ++i) {
        hashes[i] = HashOf(View(block[i]));
        __builtin_prefetch(&slots_[hashes[i] & mask_]);
      }
      for (size_t i = 0; i < block.size(); ++i) {
        const Slot& slot = slots_[hashes[i] & mask_];
        if (slot.place != kFree) __builtin_prefetch(&keys_[slot.place]);
      }
      for (size_t i = 0; i < block.size(); ++i) {
        places[begin + i] = FindHashed(View(block[i]), hashes[i]);
      }
    }
  }

  // Memory for `n` keys. A growing index doubles: a loop may ask before every key.
  void Reserve(int64_t n) {
    size_t wanted = slots_.empty() ? size_t{8} : slots_.size();
    while (!HasRoom(static_cast<size_t>(n), wanted)) wanted *= 2;
    if (wanted > slots_.size()) Spread(wanted);
    if (static_cast<size_t>(n) > keys_.capacity()) {
      keys_.reserve(std::max(static_cast<size_t>(n), 2 * keys_.capacity()));
    }
  }

  struct Inserted {
    int64_t place;
    bool is_new;
  };
  // Requires size() < kMaxKeys.
  Inserted Insert(View key) {
    if (!HasRoom(keys_.size() + 1, slots_.size())) Reserve(size() + 1);
    const uint32_t hash = HashOf(key);
    size_t at = hash & mask_;
    for (; slots_[at].place != kFree; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.hash == hash && View(keys_[slot.place]) == key) return {slot.place, false};
    }
    keys_.emplace_back(key);
    slots_[at] = {hash, static_cast<uint32_t>(keys_.size() - 1)};
    return {size() - 1, true};
  }

  // The place that is free now (to which the key of the last place, size(), has moved, unless it
  // was that one); -1 when the key is not there.
  int64_t Remove(View key) {
    if (slots_.empty()) return -1;
    const uint32_t hash = HashOf(key);
    size_t at = hash & mask_;
    for (;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.place == kFree) return -1;
      if (slot.hash == hash && View(keys_[slot.place]) == key) break;
    }
    const uint32_t place = slots_[at].place;
    const uint32_t last = static_cast<uint32_t>(keys_.size() - 1);
    if (place != last) {
      const uint32_t last_hash = HashOf(View(keys_[last]));
      size_t moved = last_hash & mask_;
      while (slots_[moved].place != last) moved = (moved + 1) & mask_;
      slots_[moved].place = place;
      keys_[place] = std::move(keys_[last]);
    }
    keys_.pop_back();
    CloseGap(at);
    return place;
  }

  void Clear() {
    keys_.clear();
    for (Slot& slot : slots_) slot = Slot();
  }

 private:
  static constexpr uint32_t kFree = 0xffffffff;
  struct Slot {
    uint32_t hash = 0;
    uint32_t place = kFree;
  };

  static uint32_t HashOf(View key) { return static_cast<uint32_t>(absl::Hash<View>()(key)); }
  // At most two of three slots are taken.
  static bool HasRoom(size_t keys, size_t slots) { return keys <= slots / 3 * 2; }

  int64_t FindHashed(View key, uint32_t hash) const {
    for (size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.place == kFree) return -1;
      if (slot.hash == hash && View(keys_[slot.place]) == key) return slot.place;
    }
  }

  // The same keys in `size` slots, a power of two.
  void Spread(size_t size) {
    std::vector<Slot> slots(size);
    const size_t mask = size - 1;
    for (const Slot& slot : slots_) {
      if (slot.place == kFree) continue;
      size_t at = slot.hash & mask;
      while (slots[at].place != kFree) at = (at + 1) & mask;
      slots[at] = slot;
    }
    slots_.swap(slots);
    mask_ = mask;
  }

  // Slot `gap` is free from now on: those behind it that were pushed past it move up.
  void CloseGap(size_t gap) {
    for (size_t at = (gap + 1) & mask_; slots_[at].place != kFree; at = (at + 1) & mask_) {
      const size_t home = slots_[at].hash & mask_;
      if (((at - home) & mask_) < ((at - gap) & mask_)) continue;  // its home is behind the gap
      slots_[gap] = slots_[at];
      gap = at;
    }
    slots_[gap] = Slot();
  }

  std::vector<K> keys_;
  std::vector<Slot> slots_;
  size_t mask_ = 0;  // slots_.size() - 1
};

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_KEY_INDEX_H_
