// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_PEER_POOL_H_
#define MILLRACE_DISTRIBUTED_LINK_PEER_POOL_H_

// PeerPool: the peer's pool (core/shared_pool.h) as an end of a ByteLink reads it: descriptors and
// SEGMENT, and the tensors that lie in it.
//
// A descriptor comes with the first byte of its SEGMENT:
//
//   none -> waits         OnDescriptor
//   waits -> none         the SEGMENT that has begun with these bytes takes it; else the link ends
//
// Floats are handed over where they lie, read-only. All else is copied before anybody looks at it,
// because a peer that breaks its word may still write there.
//
// Threads: the one that reads the link; what the pool is to be told of (shared_segments.h), any.
// Lifetime: tensors keep what they lie in. Failure: InvalidArgument when the peer breaks a rule,
// Unavailable when the system refuses, after which the link ends; `on_bad` has been called then if
// the next link should have no pools. ResourceExhausted: only the step of the tensor is harmed.

#include <cstdint>
#include <functional>
#include <memory>

#include "core/owned_fd.h"
#include "core/shared_segments.h"
#include "core/status.h"
#include "distributed/link/frame.h"

namespace millrace {

class PeerPool {
 public:
  // `segments`: null on a link without pools, where nothing of them is taken. `on_bad` may be null.
  PeerPool(std::shared_ptr<SharedSegments> segments, int64_t max_tensor_bytes,
           std::function<void()> on_bad);

  Status OnDescriptor(OwnedFd descriptor);
  // After the bytes that came with it were read.
  Status CheckDescriptor(const FrameReader& reader) const;
  Status OnSegment(const SegmentFrame& frame);
  // Sets the value of an entry that lies in the pool.
  Status TakeValue(TensorEntry* entry);
  // The link is lost.
  void Close();

 private:
  Status AddSegment(const SegmentFrame& frame);
  Status Take(TensorEntry* entry);
  // `status`, and tells of it.
  Status Bad(Status status) const;

  const std::shared_ptr<SharedSegments> segments_;  // may be null
  const int64_t max_tensor_bytes_;
  const std::function<void()> on_bad_;  // may be null
  OwnedFd descriptor_;                  // has come, and its SEGMENT has not
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_PEER_POOL_H_
