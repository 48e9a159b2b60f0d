// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/peer_pool.h"

#include <cstring>
#include <utility>

#include "core/buffer.h"
#include "core/dtype.h"
#include "distributed/link/outgoing_tensors.h"
#include "distributed/link/wire_tensor.h"
#include "net/call_limits.h"

namespace millrace {

PeerPool::PeerPool(std::shared_ptr<SharedSegments> segments, int64_t max_tensor_bytes,
                   std::function<void()> on_bad)
    : segments_(std::move(segments)),
      max_tensor_bytes_(max_tensor_bytes),
      on_bad_(std::move(on_bad)) {}

Status PeerPool::Bad(Status status) const {
  if (!status.ok() && on_bad_) on_bad_();
  return status;
}

Status PeerPool::OnDescriptor(OwnedFd descriptor) {
  if (segments_ == nullptr) {
    return InvalidArgument("Link: a descriptor must be asked for, got one on a link without ",
                           "pools");
  }
  if (!descriptor.open()) {
    return Bad(
        absl::UnavailableError("Link: a descriptor of the peer must find room here, got none"));
  }
  if (descriptor_.open()) {
    return InvalidArgument("Link: a descriptor must come with its SEGMENT, got another one ",
                           "before that");
  }
  descriptor_ = std::move(descriptor);
  return absl::OkStatus();
}

Status PeerPool::CheckDescriptor(const FrameReader& reader) const {
  // It has come with the first byte of the frame, so with these bytes the frame has begun.
  if (!descriptor_.open() || reader.IsWithin(FrameKind::kSegment)) return absl::OkStatus();
  return InvalidArgument("Link: a descriptor must come with a SEGMENT, got one without");
}

Status PeerPool::OnSegment(const SegmentFrame& frame) { return Bad(AddSegment(frame)); }

Status PeerPool::AddSegment(const SegmentFrame& frame) {
  if (segments_ == nullptr) {
    return InvalidArgument("Link: SEGMENT must be asked for, got one on a link without pools");
  }
  if (frame.num_bytes == 0) return segments_->Remove(frame.segment);
  OwnedFd descriptor = std::move(descriptor_);
  if (!descriptor.open()) {
    return InvalidArgument("Link: SEGMENT must come with a descriptor, got none");
  }
  return segments_->Add(frame.segment, frame.num_bytes, std::move(descriptor));
}

Status PeerPool::TakeValue(TensorEntry* entry) {
  const Status taken = Take(entry);
  return absl::IsResourceExhausted(taken) ? taken : Bad(taken);
}

Status PeerPool::Take(TensorEntry* entry) {
  if (segments_ == nullptr) {
    return InvalidArgument("Link: a tensor must come in its frame or in parts, got one in a pool ",
                           "on a link without pools");
  }
  if (entry->num_bytes < OutgoingTensors::kMinPooledBytes) {
    // So what blocks take here next to their bytes is bounded.
    return InvalidArgument("Link: a tensor in a pool must have at least ",
                           OutgoingTensors::kMinPooledBytes, " bytes, got ", entry->num_bytes);
  }
  // Also one that is refused must be where it may be, and is released.
  MR_ASSIGN_OR_RETURN(BufferRef block,
                      segments_->Take(entry->segment, entry->offset, entry->num_bytes));
  if (entry->num_bytes > max_tensor_bytes_) {
    return BeyondLimit("Link", "bytes of a tensor", "max_tensor_bytes", max_tensor_bytes_,
                       entry->num_bytes);
  }
  if (entry->form == WireTensor::Form::kRaw && IsFloating(entry->dtype)) {
    entry->value = WireTensor::Over(entry->dtype, entry->shape, std::move(block));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(entry->value,
                      WireTensor::For(entry->form, entry->dtype, entry->shape, entry->num_bytes));
  std::memcpy(entry->value.mutable_bytes().data(), block->data(), block->size());
  return absl::OkStatus();
}

void PeerPool::Close() {
  descriptor_ = OwnedFd();
  if (segments_ != nullptr) segments_->Close();
}

}  // namespace millrace
