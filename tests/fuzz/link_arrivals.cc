// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/link_arrivals.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>
#include <variant>

#include "core/dtype.h"
#include "core/shape.h"
#include "distributed/link/outgoing_tensors.h"
#include "distributed/link/wire_tensor.h"

namespace millrace {
namespace {

StatusOr<Tensor> Decode(const TensorEntry& entry, const char* bytes) {
  MR_ASSIGN_OR_RETURN(WireTensor value,
                      WireTensor::For(entry.form, entry.dtype, entry.shape, entry.num_bytes));
  const absl::Span<char> place = value.mutable_bytes();
  if (!place.empty()) std::memcpy(place.data(), bytes, place.size());
  int64_t splat_bytes = Arrivals::kSplatBytes;
  return value.TakeTensor(&splat_bytes);
}

bool IsNext(const Arrivals::Parts& transfer, const ChunkFrame& chunk) {
  return chunk.offset == transfer.filled &&
         chunk.num_bytes <= static_cast<uint64_t>(transfer.entry.num_bytes) - transfer.filled;
}

}  // namespace

bool IsSame(const Tensor& a, const Tensor& b) {
  if (a.has_value() != b.has_value()) return false;
  if (!a.has_value()) return true;
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  if (a.dtype() == DT_STRING) return a.flat<std::string>() == b.flat<std::string>();
  if (!IsMemcopyable(a.dtype())) return true;  // handles and variants, of mutated protos
  const absl::Span<const char> x = a.bytes(), y = b.bytes();
  return absl::string_view(x.data(), x.size()) == absl::string_view(y.data(), y.size());
}

bool IsSame(const SentTensor& a, const SentTensor& b) {
  return a.index == b.index && a.is_dead == b.is_dead && a.in_loop == b.in_loop &&
         a.frame_id == b.frame_id && a.iteration == b.iteration && a.ready_ns == b.ready_ns &&
         a.left_ns == b.left_ns && IsSame(a.value, b.value);
}

Status Arrivals::OnFrame(LinkFrame frame, int64_t num_bytes) {
  if (on_frame) on_frame(frame, num_bytes);
  if (auto* const message = std::get_if<TensorsFrame>(&frame)) {
    for (TensorEntry& entry : message->tensors) Take(*message, &entry);
  } else if (const auto* const chunk = std::get_if<ChunkFrame>(&frame)) {
    Take(*chunk);
  } else if (const auto* const end = std::get_if<EndFrame>(&frame)) {
    if (!end->status.ok()) EndStep(end->step_id);
  } else if (const auto* const cancel = std::get_if<CancelFrame>(&frame)) {
    EndStep(cancel->step_id);
  } else if (const auto* const forget = std::get_if<ForgetFrame>(&frame)) {
    for (const uint64_t number : forget->numbers) kept.erase(number);
  }
  return absl::OkStatus();
}

StatusOr<absl::Span<char>> Arrivals::PlaceFor(const ChunkFrame& chunk) {
  const auto it = transfers.find(chunk.transfer);
  if (it == transfers.end() || it->second.is_dropped || !IsNext(it->second, chunk)) {
    return absl::Span<char>();
  }
  std::string& bytes = it->second.bytes;
  bytes.resize(static_cast<size_t>(chunk.offset + chunk.num_bytes));
  return absl::MakeSpan(bytes).subspan(static_cast<size_t>(chunk.offset));
}

void Arrivals::Take(const TensorsFrame& message, TensorEntry* entry) {
  if (entry->is_dead) return Push(message.step_id, message.purpose, *entry, Tensor(), false);
  if (entry->is_kept) {
    const auto it = kept.find(entry->keep_number);
    if (it == kept.end()) return;  // breaks a rule
    return Push(message.step_id, message.purpose, *entry, it->second, false);
  }
  if (entry->transfer != 0) return Announce(message, *entry);
  if (entry->segment == 0) {
    int64_t splat_bytes = kSplatBytes;
    StatusOr<Tensor> value = entry->value.TakeTensor(&splat_bytes);
    return Push(message.step_id, message.purpose, *entry, std::move(value), false);
  }
  if (entry->num_bytes < OutgoingTensors::kMinPooledBytes) return;  // breaks a rule
  const char* const bytes = region ? region(*entry) : nullptr;
  if (bytes == nullptr) return;  // as this does
  if (entry->num_bytes > kMaxTensorBytes) {
    ++num_refused;
    return;
  }
  Push(message.step_id, message.purpose, *entry, Decode(*entry, bytes),
       entry->form == WireTensor::Form::kRaw && IsFloating(entry->dtype));
}

void Arrivals::Announce(const TensorsFrame& message, const TensorEntry& entry) {
  int64_t pending = 0;
  for (const auto& [number, other] : transfers) {
    if (!other.is_dropped) pending += other.entry.num_bytes;
  }
  Parts& transfer = transfers[entry.transfer];
  transfer = Parts();
  transfer.step_id = message.step_id;
  transfer.purpose = message.purpose;
  transfer.entry = entry;
  transfer.is_dropped = entry.num_bytes > kMaxTensorBytes ||
                        static_cast<int64_t>(transfers.size()) > kMaxTransfers ||
                        entry.num_bytes > kMaxPendingBytes - pending;
  if (transfer.is_dropped) ++num_refused;
  last_transfer = std::max(last_transfer, entry.transfer);
}

void Arrivals::Take(const ChunkFrame& chunk) {
  const auto it = transfers.find(chunk.transfer);
  if (it == transfers.end() || !IsNext(it->second, chunk)) return;
  Parts& transfer = it->second;
  transfer.filled += chunk.num_bytes;
  if (transfer.filled < static_cast<uint64_t>(transfer.entry.num_bytes)) return;
  if (!transfer.is_dropped) {
    Push(transfer.step_id, transfer.purpose, transfer.entry,
         Decode(transfer.entry, transfer.bytes.data()), false);
  }
  transfers.erase(it);
}

// A report comes all the same.
void Arrivals::EndStep(int64_t step_id) {
  for (auto it = transfers.begin(); it != transfers.end();) {
    const auto next = std::next(it);
    if (it->second.step_id == step_id && it->second.purpose != TensorsPurpose::kReport) {
      transfers.erase(it);
    }
    it = next;
  }
}

void Arrivals::Push(int64_t step_id, TensorsPurpose purpose, const TensorEntry& entry,
                    StatusOr<Tensor> value, bool is_shared) {
  if (!value.ok()) {
    ++num_refused;
    return;
  }
  ++num_tensors;
  Arrival& arrival = tensors.emplace_back();
  arrival.step_id = step_id;
  arrival.purpose = purpose;
  arrival.is_shared = is_shared;
  SentTensor& tensor = arrival.tensor;
  tensor.index = entry.index;
  tensor.is_dead = entry.is_dead;
  tensor.in_loop = entry.in_loop;
  tensor.frame_id = entry.frame_id;
  tensor.iteration = entry.iteration;
  tensor.ready_ns = entry.ready_ns;
  tensor.left_ns = entry.left_ns;
  tensor.value = *std::move(value);
  if (entry.keep_number == 0 || entry.is_kept) return;
  kept.emplace(entry.keep_number, tensor.value);
  last_kept = std::max(last_kept, entry.keep_number);
}

}  // namespace millrace
