// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/send_queue.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/dcheck.h"
#include "core/shared_pool.h"

namespace millrace {
namespace {

// What a message that waits takes next to its bytes.
constexpr int64_t kMessageBytes = 128;

}  // namespace

int64_t SendQueue::Message::cost() const {
  return kMessageBytes + static_cast<int64_t>(bytes.size());
}

void SendQueue::Add(std::list<Message>* messages) {
  for (Message& message : *messages) {
    message_bytes_ += message.cost();
    message.order = ++last_order_;
  }
  messages_.splice(messages_.end(), *messages);
}

void SendQueue::Add(OutgoingTensors* tensors, int64_t cost) {
  for (OutgoingFrame& frame : tensors->frames) frame.order = ++last_order_;
  for (OutgoingTransfer& transfer : tensors->transfers) transfer.order = ++last_order_;
  frames_.splice(frames_.end(), tensors->frames);
  transfers_.splice(transfers_.end(), tensors->transfers);
  Count(tensors->purpose(), cost);
}

void SendQueue::Count(TensorsPurpose purpose, int64_t bytes) {
  tensor_bytes_ += bytes;
  if (purpose != TensorsPurpose::kEdges) bounded_bytes_ += bytes;
}

void SendQueue::DropStep(int64_t step_id, Dropped* dropped) {
  for (auto it = frames_.begin(); it != frames_.end();) {
    const auto frame = it++;
    if (frame->step_id != step_id || frame->purpose == TensorsPurpose::kReport) continue;
    Count(frame->purpose, -frame->cost());
    dropped->frames.splice(dropped->frames.end(), frames_, frame);
  }
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const auto transfer = it++;
    const TensorsPurpose purpose = transfer->announcement.purpose;
    if (transfer->step_id != step_id || purpose == TensorsPurpose::kReport) continue;
    Count(purpose, -transfer->cost());
    dropped->transfers.splice(dropped->transfers.end(), transfers_, transfer);
  }
  parts_.StopWaiting();  // the next Fill says whether another one waits
  if (frames_.empty() && transfers_.empty()) credit_.StopWaiting();
}

void SendQueue::DropTensors(Dropped* dropped) {
  dropped->frames.splice(dropped->frames.end(), frames_);
  dropped->transfers.splice(dropped->transfers.end(), transfers_);
  tensor_bytes_ = bounded_bytes_ = 0;
  parts_.StopWaiting();
  credit_.StopWaiting();
}

void SendQueue::DropMessages(Dropped* dropped) {
  dropped->messages.splice(dropped->messages.end(), messages_);
  message_bytes_ = 0;
}

void SendQueue::Fill(absl::Time now, ByteChain* batch) {
  bool has_credit = true, has_chunk = false;
  // The last write brought none. What was sent before the large tensor still leaves before it.
  if (chunk_is_due_ && HasChunk(now)) {
    const uint64_t order = transfers_.front().order;
    if ((messages_.empty() || order < messages_.front().order) &&
        (frames_.empty() || order < frames_.front().order)) {
      has_chunk = has_credit = FillChunk(now, batch);
    }
  }
  while (batch->num_bytes() < kBatchBytes) {
    const bool may_take = has_credit && !frames_.empty();
    if (may_take && (messages_.empty() || frames_.front().order < messages_.front().order)) {
      has_credit = FillFrame(now, batch);
    } else if (!messages_.empty()) {
      FillMessage(batch);
    } else {
      break;
    }
  }
  // They do not wait for all tensors before them: those are overtaken that do not fit in.
  const int64_t most = batch->num_bytes() + kBatchBytes;
  while (!messages_.empty() && batch->num_bytes() < most) FillMessage(batch);
  while (has_credit && batch->num_bytes() < kBatchBytes && HasChunk(now)) {
    has_credit = FillChunk(now, batch);
    has_chunk = has_chunk || has_credit;
  }
  chunk_is_due_ = !has_chunk && !transfers_.empty();
}

void SendQueue::FillMessage(ByteChain* batch) {
  message_bytes_ -= messages_.front().cost();
  batch->Append(messages_.front().bytes);
  messages_.pop_front();
}

bool SendQueue::FillFrame(absl::Time now, ByteChain* batch) {
  OutgoingFrame& next = frames_.front();
  const int64_t num_bytes = next.bytes.num_bytes();
  const int64_t bytes_elsewhere = next.pooled_bytes + next.kept_bytes;
  if (bytes_elsewhere == 0) {
    if (!credit_.Take(num_bytes, now)) return false;
  } else {
    next.frame.credit_bytes = credit_.TakePooled(num_bytes, bytes_elsewhere, now);
    if (next.frame.credit_bytes == 0) return false;
  }
  Count(next.purpose, -next.cost());
  if (bytes_elsewhere == 0) {
    batch->Append(std::move(next.bytes));
  } else {
    FrameWriter writer;
    const Status status = writer.Add(next.frame);
    MR_DCHECK(status.ok(), "a frame is checked when it is made, and its credit takes eight bytes");
    batch->Append(writer.Finish());
  }
  for (SharedBlock& block : next.blocks) block.Give();
  frames_.pop_front();
  return true;
}

bool SendQueue::HasChunk(absl::Time now) {
  if (transfers_.empty()) return false;
  const OutgoingTransfer& next = transfers_.front();
  const uint64_t left = next.value.bytes().size() - next.sent;
  return !bounds_parts_ ||
         parts_.MayLeave(static_cast<int64_t>(std::min(left, kMaxFramePayloadBytes)), now);
}

bool SendQueue::FillChunk(absl::Time now, ByteChain* batch) {
  OutgoingTransfer& next = transfers_.front();
  const absl::string_view left = next.value.bytes().substr(static_cast<size_t>(next.sent));
  const absl::string_view bytes = left.substr(0, static_cast<size_t>(kMaxFramePayloadBytes));
  FrameWriter writer;
  Status status;
  uint64_t& number = next.announcement.tensors.front().transfer;
  if (next.sent == 0) {
    // Announced by its first chunk: the peer sets memory aside for one large tensor at a time.
    number = last_transfer_ + 1;
    status = writer.Add(next.announcement);
  }
  status.Update(
      writer.Add(ChunkFrame{number, next.sent, bytes.size()}, next.value.buffer(), bytes));
  MR_DCHECK(status.ok(), "a transfer is checked when it is sent, and leaves with its last byte");
  if (!credit_.Take(writer.num_bytes(), now)) return false;
  last_transfer_ = number;
  batch->Append(writer.Finish());
  const TensorsPurpose purpose = next.announcement.purpose;
  Count(purpose, -static_cast<int64_t>(bytes.size()));
  next.sent += bytes.size();
  parts_.Left(static_cast<int64_t>(bytes.size()));
  if (bytes.size() == left.size()) {
    Count(purpose, -next.cost());
    transfers_.pop_front();
  }
  return true;
}

}  // namespace millrace
