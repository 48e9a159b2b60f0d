// SPDX-License-Identifier: Apache-2.0
//
// Where a block is, from the hand of a kernel downwards:
//
//   in use <-> cache of the thread that frees (blocks up to kMaxSmallBlock)
//                <-> small store (one list per class, batches move)
//   in use <-> large store (blocks above kMaxSmallBlock, oldest leaves first)
//                 both stores <-> system
//
// Sizes are rounded up to classes (four per power of two), so a block of a class
// serves every request of that class. Figures are counted per thread and reported
// to the process when they add up to kReportBytes, so that the fast path touches
// no shared cache line.
//
// Under AddressSanitizer and ThreadSanitizer nothing is cached: the sanitizers see
// the life of every block.
#include "core/allocator.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/cached_memory.h"
#include "core/dcheck.h"
#include "core/mutex.h"

namespace millrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCaching = false;
#else
constexpr bool kCaching = true;
#endif

// Pointers are 47 bits: no request above this can succeed.
constexpr size_t kMaxRequest = size_t{1} << 47;
// The sanitizers end the process at a request that they find too large (1 TB and more).
constexpr size_t kMaxSanitizedRequest = size_t{1} << 38;
// Largest block that threads cache. Larger ones take long enough to fill that one lock is nothing.
constexpr size_t kMaxSmallBlock = size_t{256} << 10;
// A thread keeps at most this much in all and in one class; beyond it, half of a class moves on.
constexpr int64_t kThreadCacheBytes = int64_t{4} << 20;
constexpr int64_t kThreadClassBytes = int64_t{1} << 20;
// What moves between a thread and the small store at once.
constexpr size_t kBatchBlocks = 32;
constexpr size_t kBatchBytes = size_t{512} << 10;
// The small store keeps at most this much. The large one keeps kMinLargeStoreBytes (several 64 MB
// transfers) or this part of the machine's memory, whichever is more: what a step of a large model
// gives back must be there for the next step, or the system maps and clears every page again.
constexpr int64_t kSmallStoreBytes = int64_t{64} << 20;
constexpr int64_t kMinLargeStoreBytes = int64_t{512} << 20;
constexpr int64_t kLargeStorePartOfMemory = 16;
// Blocks from here on are aligned to huge pages and ask for them.
constexpr size_t kHugePageSize = size_t{2} << 20;
constexpr size_t kMinHugeBlock = size_t{4} << 20;
// What a thread may have in its own count of bytes in use before it reports them.
constexpr int64_t kReportBytes = int64_t{64} << 10;

// Classes: 64, 128, 192, 256, then four per power of two (320, 384, 448, 512, 640, ...).
constexpr size_t kNumLinearClasses = 4;
constexpr int kFirstLog = 8;
constexpr int kLastLog = 46;
constexpr size_t kNumClasses = kNumLinearClasses + 4 * (kLastLog - kFirstLog + 1);

constexpr size_t ClassOf(size_t bytes) {
  if (bytes <= 256) return (bytes - 1) / 64;
  const size_t last = bytes - 1;
  const int log = 63 - std::countl_zero(last);
  const size_t quarter = (last >> (log - 2)) & 3;
  return kNumLinearClasses + 4 * static_cast<size_t>(log - kFirstLog) + quarter;
}

constexpr size_t ClassSize(size_t c) {
  if (c < kNumLinearClasses) return 64 * (c + 1);
  const size_t base = size_t{1} << (kFirstLog + (c - kNumLinearClasses) / 4);
  return base + (1 + (c - kNumLinearClasses) % 4) * (base / 4);
}

static_assert(ClassSize(ClassOf(1)) == 64 && ClassSize(ClassOf(256)) == 256);
static_assert(ClassSize(ClassOf(257)) == 320 && ClassSize(ClassOf(320)) == 320);
static_assert(ClassSize(ClassOf(513)) == 640 && ClassSize(ClassOf(1024)) == 1024);
static_assert(ClassOf(kMaxRequest) == kNumClasses - 1);

constexpr size_t kNumSmallClasses = ClassOf(kMaxSmallBlock) + 1;
static_assert(ClassSize(kNumSmallClasses - 1) == kMaxSmallBlock);

constexpr size_t BatchOf(size_t c) {
  return std::max(size_t{1}, std::min(kBatchBlocks, kBatchBytes / ClassSize(c)));
}

// 0 when the system does not say.
int64_t PhysicalBytes() {
  static const int64_t bytes = [] {
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page_size = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_size > 0 ? pages * page_size : 0;
  }();
  return bytes;
}

// One request may take all the memory of the machine, but not more: an overcommitting kernel would
// grant it, and kill the process when the memory is touched.
size_t MaxRequest() {
  constexpr size_t kBound = kCaching ? kMaxRequest : kMaxSanitizedRequest;
  const int64_t physical = PhysicalBytes();
  return physical == 0 ? kBound : std::min(kBound, static_cast<size_t>(physical));
}

int64_t LargeStoreBytes() {
  return std::max(kMinLargeStoreBytes, PhysicalBytes() / kLargeStorePartOfMemory);
}

void* SystemAllocate(size_t size) {
  if (size < kMinHugeBlock) return std::aligned_alloc(Allocator::kAlignment, size);
  const size_t whole = (size + kHugePageSize - 1) / kHugePageSize * kHugePageSize;
  void* const block = std::aligned_alloc(kHugePageSize, whole);
  // A wish: without huge pages the block is as good, only slower to touch.
  if (block != nullptr) (void)madvise(block, size, MADV_HUGEPAGE);
  return block;
}

// A free block of the small classes; lives in the block.
struct FreeBlock {
  FreeBlock* next;
};

struct FreeList {
  FreeBlock* head = nullptr;
  size_t count = 0;

  void Push(void* block) {
    head = new (block) FreeBlock{head};
    ++count;
  }
  void* Pop() {
    FreeBlock* const block = head;
    head = block->next;
    --count;
    return block;
  }
};

// Written by its thread alone (relaxed load and store, no read-modify-write), read by anyone for
// a snapshot; no other memory hangs on the order.
class OwnCounter {
 public:
  void Add(int64_t n) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void Clear() { value_.store(0, std::memory_order_relaxed); }
  int64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// What one thread keeps. Only the thread itself touches the lists.
struct ThreadCache {
  std::array<FreeList, kNumSmallClasses> lists;
  OwnCounter unreported;  // bytes in use, not in Recycler::in_use_ yet; may be negative
  OwnCounter num_allocations;
  OwnCounter cached_bytes;
};

// Blocks of the small classes that no thread keeps.
class SmallStore {
 public:
  // Moves up to `n` blocks of class `c` into `list`.
  void Take(size_t c, size_t n, FreeList* list) {
    Class& from = classes_[c];
    MutexLock lock(&from.mu);
    size_t taken = 0;
    while (taken < n && from.list.head != nullptr) {
      list->Push(from.list.Pop());
      ++taken;
    }
    MR_DCHECK((from.list.head == nullptr) == (from.list.count == 0),
              "each block of the list was counted when it came");
    bytes_.fetch_sub(static_cast<int64_t>(taken * ClassSize(c)), std::memory_order_relaxed);
  }

  // Moves `n` blocks out of `list`. When that passes the cap, as many bytes leave, of other classes
  // first: blocks of a class that is no longer in use must not keep out those that are.
  void Put(size_t c, size_t n, FreeList* list) {
    {
      Class& to = classes_[c];
      MutexLock lock(&to.mu);
      for (size_t i = 0; i < n; ++i) to.list.Push(list->Pop());
    }
    const int64_t moved = static_cast<int64_t>(n * ClassSize(c));
    if (bytes_.fetch_add(moved, std::memory_order_relaxed) + moved > kSmallStoreBytes) Shrink(c);
  }

  void FreeAll() {
    for (size_t c = 0; c < kNumSmallClasses; ++c) {
      FreeList all;
      Take(c, static_cast<size_t>(-1), &all);
      while (all.head != nullptr) std::free(all.Pop());
    }
  }

  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Class {
    Mutex mu;
    FreeList list ABSL_GUARDED_BY(mu);
  };

  // Frees blocks until the cap holds: of one class after the other, of `spared` last.
  void Shrink(size_t spared) {
    for (size_t tried = 0; tried <= kNumSmallClasses; ++tried) {
      const int64_t excess = bytes() - kSmallStoreBytes;
      if (excess <= 0) return;
      size_t c = spared;
      if (tried < kNumSmallClasses) {
        c = next_victim_.fetch_add(1, std::memory_order_relaxed) % kNumSmallClasses;
        if (c == spared) continue;
      }
      FreeList evicted;
      Take(c, static_cast<size_t>(excess) / ClassSize(c) + 1, &evicted);
      while (evicted.head != nullptr) std::free(evicted.Pop());
    }
  }

  std::array<Class, kNumSmallClasses> classes_;
  // Both relaxed: a bound and a turn, not an order.
  std::atomic<int64_t> bytes_{0};
  std::atomic<size_t> next_victim_{0};
};

// Free blocks above kMaxSmallBlock, by class and by age.
class LargeStore {
 public:
  // Null when there is none of class `c`.
  void* Take(size_t c) {
    MutexLock lock(&mu_);
    Node* const node = newest_of_class_[c];
    if (node != nullptr) Remove(node);
    return node;
  }

  // Keeps the block; the oldest ones leave until all fit.
  void Put(size_t c, void* block) {
    const int64_t size = static_cast<int64_t>(ClassSize(c));
    if (size > capacity_) {
      std::free(block);
      return;
    }
    Node* evicted = nullptr;
    {
      MutexLock lock(&mu_);
      while (bytes_ + size > capacity_) {
        Node* const node = oldest_;
        MR_DCHECK(node != nullptr, "the block alone has room: others must be in its way");
        Remove(node);
        node->newer = evicted;  // what leaves is freed without the lock
        evicted = node;
      }
      Node* const node = new (block) Node{c, nullptr, newest_of_class_[c], nullptr, newest_};
      if (node->older_in_class != nullptr) node->older_in_class->newer_in_class = node;
      if (node->older != nullptr) node->older->newer = node;
      newest_of_class_[c] = node;
      newest_ = node;
      if (oldest_ == nullptr) oldest_ = node;
      bytes_ += size;
    }
    FreeChain(evicted);
  }

  void FreeAll() {
    Node* all = nullptr;
    {
      MutexLock lock(&mu_);
      all = oldest_;
      oldest_ = newest_ = nullptr;
      newest_of_class_.fill(nullptr);
      bytes_ = 0;
    }
    FreeChain(all);
  }

  int64_t bytes() const {
    MutexLock lock(&mu_);
    return bytes_;
  }

 private:
  // Lives in the free block.
  struct Node {
    size_t c;
    Node* newer_in_class;
    Node* older_in_class;
    Node* newer;
    Node* older;
  };

  void Remove(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    (node->newer_in_class != nullptr ? node->newer_in_class->older_in_class
                                     : newest_of_class_[node->c]) = node->older_in_class;
    if (node->older_in_class != nullptr) {
      node->older_in_class->newer_in_class = node->newer_in_class;
    }
    (node->newer != nullptr ? node->newer->older : newest_) = node->older;
    (node->older != nullptr ? node->older->newer : oldest_) = node->newer;
    bytes_ -= static_cast<int64_t>(ClassSize(node->c));
    MR_DCHECK((oldest_ == nullptr) == (bytes_ == 0) && (newest_ == nullptr) == (bytes_ == 0),
              "the bytes that are kept are those of the list by age");
  }

  static void FreeChain(Node* node) {
    while (node != nullptr) {
      Node* const next = node->newer;
      std::free(node);
      node = next;
    }
  }

  const int64_t capacity_ = LargeStoreBytes();
  mutable Mutex mu_;
  std::array<Node*, kNumClasses> newest_of_class_ ABSL_GUARDED_BY(mu_) = {};
  Node* newest_ ABSL_GUARDED_BY(mu_) = nullptr;
  Node* oldest_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

class Recycler final : public Allocator {
 public:
  void* Allocate(size_t bytes) override;
  void Deallocate(void* block, size_t bytes) override;

  AllocatorStats Stats();
  void SetLimit(int64_t bytes);
  int64_t ReleaseCached();
  // The thread of `cache` ends.
  void Retire(ThreadCache* cache);

 private:
  // Counts `bytes` as in use. False when the limit forbids it.
  bool Charge(ThreadCache* cache, int64_t bytes);
  void Discharge(ThreadCache* cache, int64_t bytes);
  // Moves `bytes` into in_use_. False, without moving, when that passes `limit` (0 = none).
  bool Report(int64_t bytes, int64_t limit);
  void* FromSystem(size_t c);
  void* TakeSmall(ThreadCache* cache, size_t c);
  void GiveSmall(ThreadCache* cache, size_t c, void* block);
  // This thread's cache; null when the thread is ending.
  ThreadCache* Mine();

  // All relaxed: figures and bounds; blocks pass between threads under the mutexes of the stores.
  std::atomic<int64_t> in_use_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> limit_{0};
  std::atomic<int64_t> num_allocations_{0};  // of threads that have ended
  std::atomic<int64_t> num_system_calls_{0};

  SmallStore small_;
  LargeStore large_;

  Mutex mu_;
  std::vector<ThreadCache*> caches_ ABSL_GUARDED_BY(mu_);
};

Recycler* TheRecycler() {
  static Recycler* const recycler = new Recycler;
  return recycler;
}

// Gives the cache back when the thread ends. Objects of the thread that are destroyed later find
// tls_ended and use the stores.
struct CacheOwner {
  ThreadCache* cache = nullptr;
  ~CacheOwner();
};

// Plain words, so that reading them needs no check for first use.
constinit thread_local ThreadCache* tls_cache = nullptr;
constinit thread_local bool tls_ended = false;
thread_local CacheOwner tls_owner;

CacheOwner::~CacheOwner() {
  tls_ended = true;
  tls_cache = nullptr;
  if (cache != nullptr) TheRecycler()->Retire(cache);
}

ThreadCache* Recycler::Mine() {
  if (tls_cache != nullptr) return tls_cache;
  if (tls_ended) return nullptr;
  ThreadCache* const cache = new ThreadCache;
  {
    MutexLock lock(&mu_);
    caches_.push_back(cache);
  }
  tls_owner.cache = cache;
  tls_cache = cache;
  return cache;
}

void Recycler::Retire(ThreadCache* cache) {
  for (size_t c = 0; c < kNumSmallClasses; ++c) {
    if (cache->lists[c].count > 0) small_.Put(c, cache->lists[c].count, &cache->lists[c]);
  }
  MutexLock lock(&mu_);
  Report(cache->unreported.Get(), 0);
  num_allocations_.fetch_add(cache->num_allocations.Get(), std::memory_order_relaxed);
  std::erase(caches_, cache);
  delete cache;
}

bool Recycler::Report(int64_t bytes, int64_t limit) {
  const int64_t total = in_use_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (limit > 0 && bytes > 0 && total > limit) {
    in_use_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (total > peak && !peak_.compare_exchange_weak(peak, total, std::memory_order_relaxed)) {
  }
  return true;
}

bool Recycler::Charge(ThreadCache* cache, int64_t bytes) {
  const int64_t limit = limit_.load(std::memory_order_relaxed);
  if (cache == nullptr) {
    num_allocations_.fetch_add(1, std::memory_order_relaxed);
    return Report(bytes, limit);
  }
  cache->num_allocations.Add(1);
  const int64_t pending = cache->unreported.Get() + bytes;
  // Under a limit every byte is reported at once.
  if (limit == 0 && pending < kReportBytes) {
    cache->unreported.Add(bytes);
    return true;
  }
  if (!Report(pending, limit)) return false;
  cache->unreported.Clear();
  return true;
}

void Recycler::Discharge(ThreadCache* cache, int64_t bytes) {
  if (cache == nullptr) {
    Report(-bytes, 0);
    return;
  }
  cache->unreported.Add(-bytes);
  if (cache->unreported.Get() <= -kReportBytes || limit_.load(std::memory_order_relaxed) != 0) {
    Report(cache->unreported.Get(), 0);
    cache->unreported.Clear();
  }
}

void* Recycler::FromSystem(size_t c) {
  num_system_calls_.fetch_add(1, std::memory_order_relaxed);
  void* block = SystemAllocate(ClassSize(c));
  if (block == nullptr && kCaching) {
    // What the stores keep may be just what is missing.
    small_.FreeAll();
    large_.FreeAll();
    block = SystemAllocate(ClassSize(c));
  }
  return block;
}

void* Recycler::TakeSmall(ThreadCache* cache, size_t c) {
  if (cache == nullptr) {
    FreeList one;
    small_.Take(c, 1, &one);
    return one.head != nullptr ? one.Pop() : FromSystem(c);
  }
  FreeList& list = cache->lists[c];
  const int64_t size = static_cast<int64_t>(ClassSize(c));
  if (list.head == nullptr) {
    small_.Take(c, BatchOf(c), &list);
    if (list.head == nullptr) return FromSystem(c);
    cache->cached_bytes.Add(size * static_cast<int64_t>(list.count));
  }
  cache->cached_bytes.Add(-size);
  return list.Pop();
}

void Recycler::GiveSmall(ThreadCache* cache, size_t c, void* block) {
  if (cache == nullptr) {
    FreeList one;
    one.Push(block);
    small_.Put(c, 1, &one);
    return;
  }
  FreeList& list = cache->lists[c];
  const int64_t size = static_cast<int64_t>(ClassSize(c));
  list.Push(block);
  cache->cached_bytes.Add(size);
  if (size * static_cast<int64_t>(list.count) > kThreadClassBytes ||
      cache->cached_bytes.Get() > kThreadCacheBytes) {
    const size_t n = (list.count + 1) / 2;
    small_.Put(c, n, &list);
    cache->cached_bytes.Add(-size * static_cast<int64_t>(n));
  }
}

void* Recycler::Allocate(size_t bytes) {
  if (bytes == 0 || bytes > MaxRequest()) return nullptr;
  ThreadCache* const cache = Mine();
  if (!Charge(cache, static_cast<int64_t>(bytes))) return nullptr;
  const size_t c = ClassOf(bytes);
  void* block = nullptr;
  if (!kCaching) {
    // The exact size, so that AddressSanitizer sees the first byte behind the block.
    num_system_calls_.fetch_add(1, std::memory_order_relaxed);
    void* aligned = nullptr;
    if (posix_memalign(&aligned, kAlignment, bytes) == 0) block = aligned;
  } else if (c < kNumSmallClasses) {
    block = TakeSmall(cache, c);
  } else {
    block = large_.Take(c);
    if (block == nullptr) block = FromSystem(c);
  }
  if (block == nullptr) Discharge(cache, static_cast<int64_t>(bytes));
  return block;
}

void Recycler::Deallocate(void* block, size_t bytes) {
  if (block == nullptr) return;
  ThreadCache* const cache = Mine();
  Discharge(cache, static_cast<int64_t>(bytes));
  const size_t c = ClassOf(bytes);
  if (!kCaching) {
    std::free(block);
  } else if (c < kNumSmallClasses) {
    GiveSmall(cache, c, block);
  } else {
    large_.Put(c, block);
  }
}

AllocatorStats Recycler::Stats() {
  AllocatorStats stats;
  MutexLock lock(&mu_);
  stats.bytes_in_use = in_use_.load(std::memory_order_relaxed);
  stats.num_allocations = num_allocations_.load(std::memory_order_relaxed);
  stats.num_system_calls = num_system_calls_.load(std::memory_order_relaxed);
  stats.bytes_cached = small_.bytes() + large_.bytes();
  for (const ThreadCache* cache : caches_) {
    stats.bytes_in_use += cache->unreported.Get();
    stats.num_allocations += cache->num_allocations.Get();
    stats.bytes_cached += cache->cached_bytes.Get();
  }
  stats.peak_bytes_in_use = std::max(peak_.load(std::memory_order_relaxed), stats.bytes_in_use);
  return stats;
}

int64_t Recycler::ReleaseCached() {
  int64_t freed = 0;
  if (ThreadCache* const cache = kCaching ? Mine() : nullptr; cache != nullptr) {
    for (size_t c = 0; c < kNumSmallClasses; ++c) {
      FreeList& list = cache->lists[c];
      freed += static_cast<int64_t>(list.count * ClassSize(c));
      while (list.head != nullptr) std::free(list.Pop());
    }
    cache->cached_bytes.Clear();
  }
  freed += small_.bytes() + large_.bytes();
  small_.FreeAll();
  large_.FreeAll();
  malloc_trim(0);
  return freed;
}

void Recycler::SetLimit(int64_t bytes) {
  limit_.store(std::max(int64_t{0}, bytes), std::memory_order_relaxed);
}

}  // namespace

Allocator* DefaultAllocator() { return TheRecycler(); }

AllocatorStats DefaultAllocatorStats() { return TheRecycler()->Stats(); }

int64_t ReleaseCachedMemory() { return TheRecycler()->ReleaseCached(); }

void SetDefaultAllocatorLimit(int64_t bytes) { TheRecycler()->SetLimit(bytes); }

}  // namespace millrace
