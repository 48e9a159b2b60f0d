// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/outgoing_tensors.h"

#include <atomic>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/dtype.h"

namespace millrace {
namespace {

// Of a TENSORS frame's head without entries.
constexpr uint64_t kTensorsHeadBytes = 64;
// What waits takes this much next to its bytes: a frame of TENSORS, a large tensor.
constexpr int64_t kFrameBytes = 256;
constexpr int64_t kTransferBytes = 512;
// Tensors in a pool that one frame has, unless it has one that is larger: their credit comes back
// frame by frame.
constexpr int64_t kFramePooledBytes = int64_t{16} << 20;
// Larger tensors that the receiver copies out of a pool come straight into its memory otherwise.
constexpr int64_t kMaxCopiedBytes = int64_t{1} << 20;

StatusOr<ByteChain> Encode(const TensorsFrame& frame) {
  FrameWriter writer;
  MR_RETURN_IF_ERROR(writer.Add(frame));
  return writer.Finish();
}

// Of what comes in parts, or lies in a pool: the entry says what its value was.
WireTensor Tell(TensorEntry* entry) {
  WireTensor value;
  std::swap(value, entry->value);
  entry->form = value.form();
  entry->dtype = value.dtype();
  entry->shape = value.shape();
  entry->num_bytes = value.num_bytes();
  return value;
}

}  // namespace

int64_t OutgoingFrame::cost() const { return kFrameBytes + bytes.num_bytes() + pooled_bytes; }

int64_t OutgoingTransfer::cost() const {
  return kTransferBytes + value.num_bytes() - static_cast<int64_t>(sent);
}

OutgoingTensors::OutgoingTensors(const SentTensors& message, SharedPool* pool, LinkPools* counts)
    : message_(message), pool_(pool), counts_(counts), head_bytes_(kTensorsHeadBytes) {
  frame_.step_id = message.step_id;
  frame_.purpose = message.purpose;
  frame_.fingerprint = message.fingerprint;
}

Status OutgoingTensors::Next() {
  if (std::exchange(has_uncopied_, false)) {
    MR_RETURN_IF_ERROR(AddUncopied());
    MR_RETURN_IF_ERROR(EndFrame());
  }
  // The peer reads what has left while the next is copied. What may be refused leaves as a whole.
  const bool leaves_early = message_.purpose == TensorsPurpose::kEdges;
  while (next_for_pool_ < for_pool_.size()) {
    if (leaves_early && !frames.empty()) return absl::OkStatus();
    TensorEntry& entry = for_pool_[next_for_pool_++];
    SharedBlock block = CopyToPool(entry.value);
    if (block) {
      MR_RETURN_IF_ERROR(AddPooled(std::move(entry), std::move(block)));
    } else {
      MR_RETURN_IF_ERROR(AddTransfer(std::move(entry)));
    }
  }
  is_done_ = true;
  return EndFrame();
}

Status OutgoingTensors::AddUncopied() {
  for (const SentTensor& tensor : message_.tensors) {
    TensorEntry entry;
    entry.index = tensor.index;
    entry.is_dead = tensor.is_dead;
    entry.in_loop = tensor.in_loop;
    entry.frame_id = tensor.frame_id;
    entry.iteration = tensor.iteration;
    entry.ready_ns = tensor.ready_ns;
    entry.left_ns = tensor.left_ns;
    entry.keep_number = tensor.keep_number;
    entry.is_kept = tensor.is_kept;
    if (!tensor.is_dead && !tensor.is_kept) {
      MR_ASSIGN_OR_RETURN(entry.value, WireTensor::Of(tensor.value));
    }
    if (tensor.is_kept) {
      MR_RETURN_IF_ERROR(Add(std::move(entry), 0, SharedBlock()));
      kept_bytes_ += tensor.value.TotalBytes();
      continue;
    }
    const int64_t whole_bytes = entry.value.num_bytes();
    if (pool_ != nullptr && entry.keep_number == 0 && IsForPool(entry.value)) {
      for_pool_.push_back(std::move(entry));
    } else if (whole_bytes > kMaxWholeBytes) {
      MR_RETURN_IF_ERROR(AddTransfer(std::move(entry)));
    } else {
      MR_RETURN_IF_ERROR(Add(std::move(entry), whole_bytes, SharedBlock()));
    }
  }
  return absl::OkStatus();
}

bool OutgoingTensors::IsForPool(const WireTensor& value) {
  const int64_t num_bytes = value.num_bytes();
  const bool is_handed_over = value.form() == WireTensor::Form::kRaw && IsFloating(value.dtype());
  return num_bytes >= kMinPooledBytes && (is_handed_over || num_bytes <= kMaxCopiedBytes);
}

SharedBlock OutgoingTensors::CopyToPool(const WireTensor& value) {
  SharedBlock block = pool_->Allocate(value.num_bytes());
  if (!block) {
    if (counts_ != nullptr) counts_->refused_tensors.fetch_add(1, std::memory_order_relaxed);
    return block;
  }
  const absl::string_view bytes = value.bytes();
  std::memcpy(block.data(), bytes.data(), bytes.size());
  if (counts_ != nullptr) {
    counts_->sent_tensors.fetch_add(1, std::memory_order_relaxed);
    counts_->sent_bytes.fetch_add(value.num_bytes(), std::memory_order_relaxed);
  }
  return block;
}

Status OutgoingTensors::Add(TensorEntry entry, int64_t whole_bytes, SharedBlock block) {
  const uint64_t entry_bytes = FrameWriter::MaxEntryHeadBytes(entry);
  const int64_t block_bytes = block ? entry.num_bytes : 0;
  const bool is_much = pooled_bytes_ > 0 && block_bytes > kFramePooledBytes - pooled_bytes_;
  if (is_much || head_bytes_ + entry_bytes > kMaxFrameHeadBytes ||
      tensor_bytes_ + whole_bytes > static_cast<int64_t>(kMaxFramePayloadBytes)) {
    MR_RETURN_IF_ERROR(EndFrame());
  }
  head_bytes_ += entry_bytes;
  tensor_bytes_ += whole_bytes;
  pooled_bytes_ += block_bytes;
  if (block) blocks_.push_back(std::move(block));
  frame_.tensors.push_back(std::move(entry));
  return pooled_bytes_ < kFramePooledBytes ? absl::OkStatus() : EndFrame();
}

Status OutgoingTensors::AddPooled(TensorEntry entry, SharedBlock block) {
  Tell(&entry);
  entry.segment = block.segment();
  entry.offset = block.offset();
  return Add(std::move(entry), 0, std::move(block));
}

Status OutgoingTensors::AddTransfer(TensorEntry entry) {
  OutgoingTransfer& transfer = transfers.emplace_back();
  transfer.step_id = frame_.step_id;
  transfer.value = Tell(&entry);
  // Its number is given when it leaves; the longest one for now.
  entry.transfer = std::numeric_limits<uint64_t>::max();
  TensorsFrame& announced = transfer.announcement;
  announced.step_id = frame_.step_id;
  announced.purpose = frame_.purpose;
  announced.fingerprint = frame_.fingerprint;
  announced.tensors.push_back(std::move(entry));
  return Encode(announced).status();
}

Status OutgoingTensors::EndFrame() {
  if (frame_.tensors.empty()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(ByteChain bytes, Encode(frame_));
  OutgoingFrame& ended = frames.emplace_back();
  ended.step_id = frame_.step_id;
  ended.purpose = frame_.purpose;
  ended.bytes = std::move(bytes);
  if (pooled_bytes_ + kept_bytes_ > 0) ended.frame = frame_;
  ended.blocks = std::exchange(blocks_, {});
  ended.pooled_bytes = pooled_bytes_;
  ended.kept_bytes = kept_bytes_;
  frame_.tensors.clear();
  head_bytes_ = kTensorsHeadBytes;
  tensor_bytes_ = pooled_bytes_ = kept_bytes_ = 0;
  return absl::OkStatus();
}

}  // namespace millrace
