// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_SHARED_SEGMENTS_H_
#define MILLRACE_CORE_SHARED_SEGMENTS_H_

// SharedSegments: what this process reads of another one's SharedPool.
//
// Nothing that the owner says is believed. A segment is mapped, to be read, when it is a memory
// file of the size that was said, with seals by which nobody can change the size or write but its
// owner; and within a bound. A block must lie within a segment and apart from all blocks that were
// not released. So no read fails, and only bytes of blocks may change under their reader, by an
// owner that breaks its word: what must not change after it was checked has to be copied first.
//
//   taken -> released     the last reference to the block's buffer is gone
//   released -> free      TakeReleased: the owner may hear of it and use the block again
//
// Thread-safety: all methods. A buffer may go on any thread, under any lock: this class calls
// nobody under its own. Lifetime: buffers keep what they refer to mapped, longer than this and its
// owner if need be. Failure: InvalidArgument when the owner breaks a rule; Unavailable when the
// system refuses; after either the caller ends the connection.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "core/mutex.h"
#include "core/owned_fd.h"
#include "core/status.h"

namespace millrace {

class SharedSegments : public std::enable_shared_from_this<SharedSegments> {
 public:
  struct Block {
    uint64_t segment = 0;
    uint64_t offset = 0;
  };

  // `max_bytes`: of all segments that are not gone.
  static std::shared_ptr<SharedSegments> Make(int64_t max_bytes);
  ~SharedSegments();
  SharedSegments(const SharedSegments&) = delete;
  SharedSegments& operator=(const SharedSegments&) = delete;

  Status Add(uint64_t segment, int64_t bytes, OwnedFd fd);
  // None of its blocks is in use.
  Status Remove(uint64_t segment);
  // A block that the owner has filled: read-only.
  StatusOr<BufferRef> Take(uint64_t segment, uint64_t offset, int64_t bytes);

  // Blocks that were released and that the owner has to hear of, and their bytes.
  std::vector<Block> TakeReleased();
  int64_t released_bytes() const { return released_bytes_.load(std::memory_order_relaxed); }
  // The owner is gone: what is released from now on nobody asks for.
  void Close();

 private:
  class Mapping;
  struct Segment {
    std::shared_ptr<const Mapping> mapping;
    std::map<uint64_t, int64_t> blocks;  // their bytes, by offset, until TakeReleased
    uint64_t asked = 0;                  // the memory below was there once, and so it is for good
  };

  explicit SharedSegments(int64_t max_bytes) : max_bytes_(max_bytes) {}
  void Release(uint64_t segment, uint64_t offset);

  const int64_t max_bytes_;
  mutable Mutex mu_;
  std::map<uint64_t, Segment> segments_ ABSL_GUARDED_BY(mu_);
  uint64_t last_segment_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t segment_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t num_taken_ ABSL_GUARDED_BY(mu_) = 0;         // blocks, released or not
  std::vector<Block> released_ ABSL_GUARDED_BY(mu_);  // has room for all that are taken
  std::atomic<int64_t> released_bytes_{0};            // written under mu_; relaxed: a hint
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_SHARED_SEGMENTS_H_
