// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_API_C_API_HANDLE_H_
#define MILLRACE_API_C_API_HANDLE_H_

// Handles of the C API: objects that a caller knows by pointers whose validity can be asked.
//
// A handle points to a block that begins with a word for the kind of its object and goes on with
// the object. Blocks are never given back to the system: one that was deleted has another word, so
// that a call with its pointer reads memory that is there and sees that it is dead. It is used
// again for an object of its kind when kQuarantine others of its store have been deleted after it.
// What no check can see: a pointer that was never a handle, and one whose block lives again.
//
// Each thread has a store of blocks of its own, so that making and deleting a handle there takes no
// lock; what another thread deletes comes back to the store. A thread that ends leaves its store to
// the next one.
//
// Memory, of each kind: a store keeps as many blocks as handles from it were alive at one time, and
// kQuarantine. All of them keep the sum of these peaks, which were at different times where threads
// took turns at making many handles. There are as many stores as threads with handles at one time.
//
// Thread-safety: all functions, from any thread. Deleting twice at once: one call does it.
// Failure: New throws std::bad_alloc; the others do not fail.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace::c_api {

// Every block begins so.
struct HandleHead {
  std::atomic<uint32_t>
      kind;  // release by the thread that makes or ends the object, acquire by readers
};
inline constexpr uint32_t kDeadHandle = 0xdeadbeef;

// Object has `Opaque` (the C type), `kKind` (a number of its own) and `kName` (of the C type).
template <typename Object>
class Handles {
 public:
  using Opaque = typename Object::Opaque;

  static Opaque* New(Object&& object) {
    const StoreUse store;
    Block* block = store->Take();
    if (block == nullptr) {
      block = new Block;
      block->home = store.get();
    }
    try {
      new (block->object) Object(std::move(object));
    } catch (...) {
      store->Put(block);
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
    if (block->home == my_store) {
      my_store->Put(block);
    } else {
      block->home->Return(block);
    }
    return true;
  }

 private:
  static constexpr int kQuarantine = 64;

  struct Store;
  struct Block {
    HandleHead head;
    Store* home = nullptr;  // of the thread that made the block
    Block* next = nullptr;  // of a dead one in its list
    alignas(Object) unsigned char object[sizeof(Object)];
  };

  // Dead blocks. All but Return by the thread that has the store.
  struct alignas(64) Store {
    // Null when none has been dead for long enough.
    Block* Take() {
      if (count <= kQuarantine) {
        if (returned.load(std::memory_order_relaxed) == nullptr) return nullptr;
        TakeReturned();
        if (count <= kQuarantine) return nullptr;
      }
      Block* const block = first;
      first = block->next;
      --count;
      // Dozens of blocks lie between its last use and the next: it may not be in the cache.
      __builtin_prefetch(first, 1);
      __builtin_prefetch(reinterpret_cast<const char*>(first) + sizeof(Block) - 1, 1);
      return block;
    }
    void Put(Block* block) {
      block->head.kind.store(kDeadHandle, std::memory_order_relaxed);
      block->next = nullptr;
      (count == 0 ? first : last->next) = block;
      last = block;
      ++count;
    }
    void Return(Block* block) {
      Block* newest = returned.load(std::memory_order_relaxed);
      do {
        block->next = newest;
      } while (!returned.compare_exchange_weak(newest, block, std::memory_order_release,
                                               std::memory_order_relaxed));
    }
    // The one that was returned first is put first.
    void TakeReturned() {
      Block* newest = returned.exchange(nullptr, std::memory_order_acquire);
      Block* oldest = nullptr;
      while (newest != nullptr) {
        Block* const older = std::exchange(newest->next, oldest);
        oldest = std::exchange(newest, older);
      }
      while (oldest != nullptr) Put(std::exchange(oldest, oldest->next));
    }

    // The oldest first.
    Block* first = nullptr;
    Block* last = nullptr;
    int count = 0;
    Store* next_spare = nullptr;
    // What other threads have deleted, the newest first. Release by who deletes, acquire by who
    // takes all of it.
    alignas(64) std::atomic<Block*> returned{nullptr};
  };

  // Stores that no thread has.
  struct Spares {
    Store* Take() {
      {
        MutexLock lock(&mu);
        if (Store* const store = first; store != nullptr) {
          first = store->next_spare;
          return store;
        }
      }
      return new Store;
    }
    void Put(Store* store) {
      MutexLock lock(&mu);
      store->next_spare = first;
      first = store;
    }
    Mutex mu;
    Store* first ABSL_GUARDED_BY(mu) = nullptr;
  };
  static Spares& TheSpares() {
    static Spares* const spares = new Spares;
    return *spares;
  }

  // Leaves the thread's store to others when the thread ends.
  struct StoreOwner {
    ~StoreOwner() {
      has_ended = true;
      if (my_store != nullptr) TheSpares().Put(std::exchange(my_store, nullptr));
    }
  };
  inline static constinit thread_local Store* my_store = nullptr;
  inline static constinit thread_local bool has_ended = false;

  // The thread's store; one for the moment while the thread ends.
  class StoreUse {
   public:
    StoreUse() : store_(my_store) {
      if (ABSL_PREDICT_TRUE(store_ != nullptr)) return;
      store_ = TheSpares().Take();
      if (has_ended) return;
      my_store = store_;
      thread_local const StoreOwner owner;
      static_cast<void>(owner);
    }
    ~StoreUse() {
      if (ABSL_PREDICT_FALSE(store_ != my_store)) TheSpares().Put(store_);
    }
    StoreUse(const StoreUse&) = delete;
    StoreUse& operator=(const StoreUse&) = delete;
    Store* get() const { return store_; }
    Store* operator->() const { return store_; }

   private:
    Store* store_;
  };

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
