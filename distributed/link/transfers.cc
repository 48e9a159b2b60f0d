// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/transfers.h"

#include <utility>

#include "distributed/link/wire_tensor.h"
#include "net/call_limits.h"

namespace millrace {

IncomingTransfers::IncomingTransfers(const TransferLimits& limits)
    : limits_(limits),
      pending_(limits.pending != nullptr ? limits.pending
                                         : std::make_shared<ByteBudget>(limits.max_pending_bytes)) {
}

Status IncomingTransfers::Announce(const TensorsFrame& frame, const TensorEntry& entry) {
  if (entry.transfer <= last_) {
    return InvalidArgument("Link: the number of a transfer must be above ", last_, ", got ",
                           entry.transfer);
  }
  // Dropped transfers take no memory but their place here.
  if (num_transfers() >= 2 * limits_.max_transfers) {
    return InvalidArgument("Link: transfers that are dropped must end, got ", num_transfers(),
                           " that have not");
  }
  last_ = entry.transfer;
  if (frame.purpose != TensorsPurpose::kReport) {
    of_steps_[frame.step_id].insert(entry.transfer);
  }
  Transfer& transfer = open_[entry.transfer];
  transfer.step_id = frame.step_id;
  transfer.num_bytes = static_cast<uint64_t>(entry.num_bytes);
  if (entry.num_bytes > limits_.max_tensor_bytes) {
    return BeyondLimit("Link", "bytes of a tensor", "max_tensor_bytes", limits_.max_tensor_bytes,
                       entry.num_bytes);
  }
  if (num_transfers() > limits_.max_transfers) {
    return BeyondLimit("Link", "tensors that have not arrived whole", "max_transfers",
                       limits_.max_transfers, num_transfers());
  }
  auto whole = std::make_unique<Whole>();
  whole->step_id = frame.step_id;
  whole->purpose = frame.purpose;
  whole->fingerprint = frame.fingerprint;
  whole->entry = entry;
  if (!pending_->Take(entry.num_bytes)) {
    return BeyondLimit("Link", "bytes of tensors that have not arrived whole", "max_pending_bytes",
                       pending_->left(), entry.num_bytes);
  }
  pending_bytes_ += entry.num_bytes;
  StatusOr<WireTensor> value =
      WireTensor::For(entry.form, entry.dtype, entry.shape, entry.num_bytes);
  if (!value.ok()) {
    LetGoOf(entry.num_bytes);
    return value.status();
  }
  whole->entry.value = *std::move(value);
  transfer.tensor = std::move(whole);
  return absl::OkStatus();
}

void IncomingTransfers::LetGoOf(int64_t bytes) {
  pending_bytes_ -= bytes;
  pending_->Return(bytes);
}

StatusOr<absl::Span<char>> IncomingTransfers::PlaceFor(const ChunkFrame& chunk) {
  const auto it = open_.find(chunk.transfer);
  if (it == open_.end()) {
    return InvalidArgument("Link: a chunk must be of a transfer that is open, got number ",
                           chunk.transfer);
  }
  const Transfer& transfer = it->second;
  if (chunk.offset != transfer.filled) {
    return InvalidArgument("Link: the next chunk of transfer ", chunk.transfer,
                           " must begin at byte ", transfer.filled, ", got ", chunk.offset);
  }
  if (chunk.num_bytes > transfer.num_bytes - transfer.filled) {
    return InvalidArgument("Link: transfer ", chunk.transfer, " must have ", transfer.num_bytes,
                           " bytes, got ", chunk.num_bytes, " from byte ", chunk.offset);
  }
  if (transfer.tensor == nullptr) return absl::Span<char>();
  return transfer.tensor->entry.value.mutable_bytes().subspan(static_cast<size_t>(chunk.offset),
                                                              static_cast<size_t>(chunk.num_bytes));
}

std::unique_ptr<IncomingTransfers::Whole> IncomingTransfers::Filled(const ChunkFrame& chunk) {
  const auto it = open_.find(chunk.transfer);
  if (it == open_.end()) return nullptr;
  Transfer& transfer = it->second;
  transfer.filled += chunk.num_bytes;
  if (transfer.filled < transfer.num_bytes) return nullptr;
  std::unique_ptr<Whole> whole = std::move(transfer.tensor);
  const auto of_step = of_steps_.find(transfer.step_id);
  if (of_step != of_steps_.end()) {
    of_step->second.erase(chunk.transfer);
    if (of_step->second.empty()) of_steps_.erase(of_step);
  }
  open_.erase(it);
  if (whole != nullptr) LetGoOf(whole->entry.num_bytes);
  return whole;
}

void IncomingTransfers::EndStep(int64_t step_id) {
  const auto of_step = of_steps_.find(step_id);
  if (of_step == of_steps_.end()) return;
  for (const uint64_t number : of_step->second) {
    const auto it = open_.find(number);
    if (it->second.tensor != nullptr) LetGoOf(it->second.tensor->entry.num_bytes);
    open_.erase(it);
  }
  of_steps_.erase(of_step);
}

void IncomingTransfers::EndAll() {
  open_.clear();
  of_steps_.clear();
  LetGoOf(pending_bytes_);
}

}  // namespace millrace
