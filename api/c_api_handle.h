// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_API_C_API_HANDLE_H_
#define MILLRACE_API_C_API_HANDLE_H_

// Handles of the C API: objects that a caller knows by pointers whose validity can be asked.
//
// A handle points to a block that begins with a word for the kind of its object and goes on with
// the object. Blocks are never given back to the system: one that was deleted has another word, so
// that a call with its pointer reads memory that is there and sees that it is dead. It is used
// again for an object of its kind when kQuarantine others of its shard have been deleted after it.
// What no check can see: a pointer that was never a handle, and one whose block lives again.
//
// Memory: as many blocks as handles were alive at one time, and kShards * kQuarantine of each kind.
//
// Thread-safety: all functions, from any thread. Deleting twice at once: one call does it.
// Failure: New throws std::bad_alloc; the others do not fail.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace::c_api {

// Every block begins so.
struct HandleHead {
  std::atomic<uint32_t> kind;  // release by who makes or ends the object, acquire by who asks
};
inline constexpr uint32_t kDeadHandle = 0xdeadbeef;

// Object has `Opaque` (the C type), `kKind` (a number of its own) and `kName` (of the C type).
template <typename Object>
class Handles {
 public:
  using Opaque = typename Object::Opaque;

  static Opaque* New(Object&& object) {
    Shard& shard = MyShard();
    Block* block = shard.Take();
    if (block == nullptr) {
      block = new Block;
      block->home = &shard;
    }
    try {
      new (block->object) Object(std::move(object));
    } catch (...) {
      shard.Put(block);
      throw;
    }
    block->head.kind.store(Object::kKind, std::memory_order_release);
    return reinterpret_cast<Opaque*>(block);
  }

  // Null when the pointer is null or no living handle of this kind.
  static Object* Find(const Opaque* handle) {
    if (handle == nullptr || reinterpret_cast<uintptr_t>(handle) % alignof(Block) != 0) {
      return nullptr;
    }
    Block* const block = BlockOf(handle);
    if (block->head.kind.load(std::memory_order_acquire) != Object::kKind) return nullptr;
    return ObjectOf(block);
  }

  // InvalidArgument "<where>: <what> must be a living MillraceTensor, got NULL".
  static StatusOr<Object*> Get(const Opaque* handle, absl::string_view where,
                               absl::string_view what) {
    Object* const object = Find(handle);
    if (ABSL_PREDICT_TRUE(object != nullptr)) return object;
    return Refusal(handle, where, what);
  }
  static Status Refusal(const Opaque* handle, absl::string_view where, absl::string_view what) {
    return InvalidArgument(where, ": ", what, " must be a living ", Object::kName, ", got ",
                           WhatIs(handle));
  }

  // False when there is no such handle.
  static bool Delete(Opaque* handle) {
    if (Find(handle) == nullptr) return false;
    Block* const block = BlockOf(handle);
    uint32_t kind = Object::kKind;
    if (!block->head.kind.compare_exchange_strong(kind, kDeadHandle, std::memory_order_acq_rel)) {
      return false;
    }
    ObjectOf(block)->~Object();
    block->home->Put(block);  // whichever thread deletes it: who makes finds it again
    return true;
  }

 private:
  static constexpr int kShards = 8;
  static constexpr int kQuarantine = 64;

  struct Shard;
  struct Block {
    HandleHead head;
    Shard* home = nullptr;  // of the thread that made the block
    Block* next = nullptr;  // of a dead one in its list
    alignas(Object) unsigned char object[sizeof(Object)];
  };

  // Dead blocks, the oldest first.
  struct alignas(64) Shard {
    // Null when none has been dead for long enough.
    Block* Take() {
      MutexLock lock(&mu);
      if (count <= kQuarantine) return nullptr;
      Block* const block = first;
      first = block->next;
      --count;
      return block;
    }
    void Put(Block* block) {
      block->head.kind.store(kDeadHandle, std::memory_order_relaxed);
      block->next = nullptr;
      MutexLock lock(&mu);
      (count == 0 ? first : last->next) = block;
      last = block;
      ++count;
    }
    Mutex mu;
    Block* first ABSL_GUARDED_BY(mu) = nullptr;
    Block* last ABSL_GUARDED_BY(mu) = nullptr;
    int count ABSL_GUARDED_BY(mu) = 0;
  };

  // Threads that come and go use all of them.
  static Shard& MyShard() {
    static Shard* const shards = new Shard[kShards];
    static std::atomic<uint32_t> next{0};  // relaxed: hands out numbers
    thread_local const uint32_t mine = next.fetch_add(1, std::memory_order_relaxed) % kShards;
    return shards[mine];
  }

  static Block* BlockOf(const Opaque* handle) {
    return reinterpret_cast<Block*>(const_cast<Opaque*>(handle));
  }
  static Object* ObjectOf(Block* block) {
    return std::launder(reinterpret_cast<Object*>(block->object));
  }
  static absl::string_view WhatIs(const Opaque* handle) {
    if (handle == nullptr) return "NULL";
    if (reinterpret_cast<uintptr_t>(handle) % alignof(Block) != 0) return "no handle";
    const uint32_t kind = BlockOf(handle)->head.kind.load(std::memory_order_acquire);
    return kind == kDeadHandle ? "one that was deleted" : "no handle of this kind";
  }
};

}  // namespace millrace::c_api

#endif  // MILLRACE_API_C_API_HANDLE_H_
