// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/frame.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/coding.h"
#include "core/dcheck.h"
#include "core/owned_fd.h"
#include "net/status_payloads.h"

namespace millrace {
namespace {

// The payloads of a status: PayloadBytes writes at most 3 KiB.
constexpr uint64_t kMaxPayloadTextBytes = 3 << 10;
constexpr absl::string_view kCut = " ... [truncated]";

bool IsKind(uint8_t number) {
  return number >= static_cast<uint8_t>(FrameKind::kHello) &&
         number <= static_cast<uint8_t>(FrameKind::kForget);
}
bool HasPayload(FrameKind kind) { return kind == FrameKind::kTensors || kind == FrameKind::kChunk; }

// --- Writing

void PutByte(std::string* out, uint8_t value) { out->push_back(static_cast<char>(value)); }
void PutInt64(std::string* out, int64_t value) { PutFixed64(out, static_cast<uint64_t>(value)); }
void PutCount(std::string* out, int64_t value) { PutVarint64(out, static_cast<uint64_t>(value)); }
void PutText(std::string* out, absl::string_view text) {
  PutVarint64(out, text.size());
  out->append(text.data(), text.size());
}

void PutStatus(std::string* out, const Status& status) {
  PutVarint32(out, static_cast<uint32_t>(status.code()));
  const absl::string_view text = status.message();
  if (text.size() <= kMaxFrameTextBytes) {
    PutText(out, text);
  } else {
    PutText(out, absl::StrCat(text.substr(0, kMaxFrameTextBytes - kCut.size()), kCut));
  }
  PutText(out, PayloadBytes(status));
}

Status Unwritable(FrameKind kind, absl::string_view rule, absl::string_view got) {
  return InvalidArgument("Link: frame ", FrameKindName(kind), ": ", rule, ", got ", got);
}

Status CheckName(FrameKind kind, absl::string_view what, absl::string_view name) {
  if (name.size() <= kMaxFrameNameBytes) return absl::OkStatus();
  return Unwritable(kind,
                    absl::StrCat("the ", what, " must be at most ", kMaxFrameNameBytes, " bytes"),
                    absl::StrCat(name.size()));
}

Status CheckCount(FrameKind kind, absl::string_view what, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return Unwritable(kind, absl::StrCat("the ", what, " must be >= 0"), absl::StrCat(value));
}

// --- Reading

// Fields from the front of a head. The first error is kept; what is read after it is zero or empty.
class Fields {
 public:
  explicit Fields(absl::string_view in) : in_(in) {}

  uint8_t Byte() {
    if (in_.empty()) return Refuse<uint8_t>("an end within a field");
    const uint8_t value = static_cast<uint8_t>(in_.front());
    in_.remove_prefix(1);
    return value;
  }
  uint64_t Fixed64() {
    if (in_.size() < sizeof(uint64_t)) return Refuse<uint64_t>("an end within a field");
    const uint64_t value = DecodeFixed64(in_.data());
    in_.remove_prefix(sizeof(uint64_t));
    return value;
  }
  int64_t Int64() { return static_cast<int64_t>(Fixed64()); }
  uint64_t Varint() {
    uint64_t value = 0;
    if (!GetVarint64(&in_, &value)) {
      return Refuse<uint64_t>(in_.size() < kMaxVarint64Bytes ? "an end within a field"
                                                             : "a varint of more than 64 bits");
    }
    return value;
  }
  uint32_t Varint32() {
    const uint64_t value = Varint();
    if (value > std::numeric_limits<uint32_t>::max()) {
      return Refuse<uint32_t>("a number of more than 32 bits");
    }
    return static_cast<uint32_t>(value);
  }
  // A varint that is no more than an int64 can hold.
  int64_t Count() {
    const uint64_t value = Varint();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Refuse<int64_t>("a count of more than 63 bits");
    }
    return static_cast<int64_t>(value);
  }
  // Of things that take at least `least_bytes` each.
  uint64_t NumThings(uint64_t least_bytes) {
    const uint64_t value = Varint();
    if (value > in_.size() / least_bytes) {
      return Refuse<uint64_t>("more things than there are bytes");
    }
    return value;
  }
  std::string Text(uint64_t max_bytes) {
    const uint64_t size = Varint();
    if (size > max_bytes) return Refuse<std::string>("a text that is too long");
    if (size > in_.size()) return Refuse<std::string>("an end within a text");
    std::string text(in_.data(), static_cast<size_t>(size));
    in_.remove_prefix(static_cast<size_t>(size));
    return text;
  }
  Status StatusField() {
    const uint32_t code = Varint32();
    const std::string text = Text(kMaxFrameTextBytes);
    const std::string payloads = Text(kMaxPayloadTextBytes);
    if (code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
      Refuse<int>("a status code that is none");
    }
    if (!ok() || code == 0) return absl::OkStatus();
    return WithPayloads(Status(static_cast<absl::StatusCode>(code), text), payloads);
  }
  Status ErrorField() {
    Status status = StatusField();
    if (ok() && status.ok()) Refuse<int>("a status that is no error");
    return status;
  }

  template <typename T>
  T Refuse(const char* what) {
    if (error_ == nullptr) error_ = what;
    in_ = absl::string_view();
    return T();
  }
  bool ok() const { return error_ == nullptr; }
  // What is wrong, nothing may follow the fields; null when nothing is.
  const char* EndOfHead() {
    if (ok() && !in_.empty()) Refuse<int>("bytes after the last field");
    return error_;
  }

 private:
  absl::string_view in_;
  const char* error_ = nullptr;  // a literal
};

HelloFrame ReadHello(Fields* in, bool* is_other_version) {
  HelloFrame frame;
  frame.version = in->Varint32();
  *is_other_version = in->ok() && frame.version != kLinkVersion;
  if (*is_other_version) return frame;
  frame.task = in->Text(kMaxFrameNameBytes);
  frame.incarnation = in->Fixed64();
  frame.clock_ns = in->Int64();
  frame.window_bytes = in->Count();
  frame.pool_bytes = in->Count();
  frame.offer = in->Text(kMaxFrameOfferBytes);
  const uint8_t takes_offer = in->Byte();
  if (takes_offer > 1) in->Refuse<int>("a flag of another version");
  frame.takes_offer = takes_offer == 1;
  frame.kept_bytes = in->Count();
  return frame;
}

BindFrame ReadBind(Fields* in) {
  BindFrame frame;
  frame.number = in->Varint();
  frame.session_handle = in->Text(kMaxFrameNameBytes);
  frame.graph_handle = in->Text(kMaxFrameNameBytes);
  return frame;
}

RunFrame ReadRun(Fields* in) {
  RunFrame frame;
  frame.step_id = in->Int64();
  frame.number = in->Varint();
  const uint8_t flags = in->Byte();
  if ((flags & ~(RunFlags::kTrace | RunFlags::kGraphs)) != 0) {
    in->Refuse<int>("a flag of another version");
  }
  frame.wants_trace = (flags & RunFlags::kTrace) != 0;
  frame.wants_graphs = (flags & RunFlags::kGraphs) != 0;
  frame.timeout_us = in->Count();
  frame.num_args = in->Varint();
  return frame;
}

EndFrame ReadEnd(Fields* in) {
  EndFrame frame;
  frame.step_id = in->Int64();
  frame.status = in->StatusField();
  frame.num_results = in->Varint();
  const uint8_t has_report = in->Byte();
  if (has_report > 1) in->Refuse<int>("a flag of another version");
  frame.has_report = has_report == 1;
  return frame;
}

ReceivedFrame ReadReceived(Fields* in) {
  ReceivedFrame frame;
  frame.credit_bytes = in->Count();
  const uint64_t n = in->NumThings(sizeof(int64_t) + 1);
  frame.steps.reserve(static_cast<size_t>(n));
  for (uint64_t i = 0; i < n && in->ok(); ++i) {
    ReceivedFrame::Step& step = frame.steps.emplace_back();
    step.step_id = in->Int64();
    step.tensors = in->Varint();
  }
  return frame;
}

SegmentFrame ReadSegment(Fields* in) {
  SegmentFrame frame;
  frame.segment = in->Varint();
  frame.num_bytes = in->Count();
  if (in->ok() && frame.segment == 0) in->Refuse<int>("a segment without a number");
  return frame;
}

ReleaseFrame ReadRelease(Fields* in) {
  ReleaseFrame frame;
  const uint64_t n = in->NumThings(2);
  frame.blocks.reserve(static_cast<size_t>(n));
  for (uint64_t i = 0; i < n && in->ok(); ++i) {
    ReleaseFrame::Block& block = frame.blocks.emplace_back();
    block.segment = in->Varint();
    block.offset = in->Varint();
  }
  return frame;
}

ForgetFrame ReadForget(Fields* in) {
  ForgetFrame frame;
  const uint64_t n = in->NumThings(1);
  frame.numbers.reserve(static_cast<size_t>(n));
  for (uint64_t i = 0; i < n && in->ok(); ++i) frame.numbers.push_back(in->Varint());
  return frame;
}

// What the bytes of an entry are to be.
Shape ReadShape(Fields* in) {
  const uint8_t rank = in->Byte();
  if (rank > Shape::kMaxRank) return in->Refuse<Shape>("a shape of too many dimensions");
  std::vector<int64_t> dims;
  dims.reserve(rank);
  for (int i = 0; i < rank && in->ok(); ++i) dims.push_back(in->Count());
  if (!in->ok()) return Shape();
  StatusOr<Shape> shape = Shape::Make(dims);
  if (!shape.ok()) return in->Refuse<Shape>("a shape that is none");
  return *std::move(shape);
}

DType ReadDType(Fields* in) {
  const StatusOr<DType> dtype = DTypeFromNumber(in->Byte());
  if (!dtype.ok() || IsRef(*dtype) || !IsMemcopyable(*dtype)) {
    in->Refuse<int>("a dtype that has no raw form");
    return DT_INVALID;
  }
  return *dtype;
}

constexpr uint32_t kEntryFlags = EntryFlags::kDead | EntryFlags::kLoop | EntryFlags::kProto |
                                 EntryFlags::kParts | EntryFlags::kNarrow | EntryFlags::kTimes |
                                 EntryFlags::kPooled | EntryFlags::kKeep | EntryFlags::kKept;

// All but the memory. value is set by the caller.
TensorEntry ReadEntry(Fields* in) {
  TensorEntry entry;
  entry.index = in->Varint32();
  const uint32_t flags = in->Varint32();
  if ((flags & ~kEntryFlags) != 0) in->Refuse<int>("a flag of another version");
  entry.is_dead = (flags & EntryFlags::kDead) != 0;
  entry.in_loop = (flags & EntryFlags::kLoop) != 0;
  if (entry.in_loop) {
    entry.frame_id = in->Fixed64();
    entry.iteration = in->Count();
  }
  if ((flags & EntryFlags::kTimes) != 0) {
    entry.ready_ns = in->Int64();
    entry.left_ns = in->Int64();
  }
  if ((flags & (EntryFlags::kKeep | EntryFlags::kKept)) != 0) {
    // What the flags of one that is kept would tell of is not there.
    const uint32_t allowed =
        (flags & EntryFlags::kKeep) != 0
            ? EntryFlags::kKeep | EntryFlags::kParts | EntryFlags::kNarrow | EntryFlags::kTimes
            : EntryFlags::kKept | EntryFlags::kTimes;
    if ((flags & ~allowed) != 0) in->Refuse<int>("a kept tensor of another kind");
    entry.keep_number = in->Varint();
    if (in->ok() && entry.keep_number == 0) in->Refuse<int>("a kept tensor without a number");
    entry.is_kept = (flags & EntryFlags::kKept) != 0;
    if (entry.is_kept) return entry;
  }
  if (entry.is_dead) {
    if ((flags & (EntryFlags::kProto | EntryFlags::kParts | EntryFlags::kNarrow |
                  EntryFlags::kPooled)) != 0) {
      in->Refuse<int>("bytes of a dead tensor");
    }
    return entry;
  }
  const bool is_narrow = (flags & EntryFlags::kNarrow) != 0;
  if (is_narrow) entry.form = WireTensor::Form::kNarrow;
  if ((flags & EntryFlags::kProto) != 0) {
    if (is_narrow) in->Refuse<int>("a proto of narrow bytes");
    entry.form = WireTensor::Form::kProto;
  } else {
    entry.dtype = ReadDType(in);
    entry.shape = ReadShape(in);
  }
  if ((flags & EntryFlags::kParts) != 0) {
    entry.transfer = in->Varint();
    if (in->ok() && entry.transfer == 0) in->Refuse<int>("a transfer without a number");
  }
  if ((flags & EntryFlags::kPooled) != 0) {
    if (entry.transfer != 0) in->Refuse<int>("a transfer of pooled bytes");
    entry.segment = in->Varint();
    entry.offset = in->Varint();
    if (in->ok() && entry.segment == 0) in->Refuse<int>("a segment without a number");
  }
  entry.num_bytes = in->Count();
  if (in->ok() && entry.transfer != 0 && entry.num_bytes == 0) {
    in->Refuse<int>("a transfer without bytes");
  }
  if (in->ok() && entry.segment != 0 && entry.num_bytes == 0) {
    in->Refuse<int>("a pooled tensor without bytes");
  }
  return entry;
}

// A frame has each tensor once: the index of one that it has twice, outside of loops, or -1.
int64_t DoubledIndex(const std::vector<TensorEntry>& entries) {
  std::vector<uint32_t> indices;
  indices.reserve(entries.size());
  for (const TensorEntry& entry : entries) {
    if (!entry.in_loop) indices.push_back(entry.index);
  }
  // Senders mostly count up.
  if (!std::is_sorted(indices.begin(), indices.end())) std::sort(indices.begin(), indices.end());
  const auto doubled = std::adjacent_find(indices.begin(), indices.end());
  return doubled == indices.end() ? -1 : static_cast<int64_t>(*doubled);
}

}  // namespace

absl::string_view FrameKindName(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
      return "HELLO";
    case FrameKind::kBind:
      return "BIND";
    case FrameKind::kUnbind:
      return "UNBIND";
    case FrameKind::kRun:
      return "RUN";
    case FrameKind::kTensors:
      return "TENSORS";
    case FrameKind::kChunk:
      return "CHUNK";
    case FrameKind::kEnd:
      return "END";
    case FrameKind::kCancel:
      return "CANCEL";
    case FrameKind::kReceived:
      return "RECEIVED";
    case FrameKind::kPing:
      return "PING";
    case FrameKind::kPong:
      return "PONG";
    case FrameKind::kBye:
      return "BYE";
    case FrameKind::kSegment:
      return "SEGMENT";
    case FrameKind::kRelease:
      return "RELEASE";
    case FrameKind::kForget:
      return "FORGET";
  }
  return "of no kind";
}

// --- FrameWriter

Status FrameWriter::Put(FrameKind kind, absl::string_view head, uint64_t payload_bytes,
                        std::shared_ptr<const OwnedFd> fd) {
  if (head.size() > kMaxFrameHeadBytes) {
    return Unwritable(kind, absl::StrCat("its head must be at most ", kMaxFrameHeadBytes, " bytes"),
                      absl::StrCat(head.size()));
  }
  if (payload_bytes > kMaxFramePayloadBytes) {
    return Unwritable(kind,
                      absl::StrCat("its payload must be at most ", kMaxFramePayloadBytes, " bytes"),
                      absl::StrCat(payload_bytes));
  }
  std::string prefix;
  PutByte(&prefix, static_cast<uint8_t>(kind));
  PutVarint64(&prefix, head.size());
  PutVarint64(&prefix, payload_bytes);
  if (fd != nullptr) {
    chain_.AppendWithDescriptor(prefix, std::move(fd));
  } else {
    chain_.Append(prefix);
  }
  chain_.Append(head);
  return absl::OkStatus();
}

Status FrameWriter::Add(const HelloFrame& frame) {
  MR_RETURN_IF_ERROR(CheckName(FrameKind::kHello, "task", frame.task));
  MR_RETURN_IF_ERROR(CheckCount(FrameKind::kHello, "window", frame.window_bytes));
  MR_RETURN_IF_ERROR(CheckCount(FrameKind::kHello, "pool", frame.pool_bytes));
  MR_RETURN_IF_ERROR(CheckCount(FrameKind::kHello, "kept bytes", frame.kept_bytes));
  if (frame.offer.size() > kMaxFrameOfferBytes) {
    return Unwritable(FrameKind::kHello,
                      absl::StrCat("the offer must be at most ", kMaxFrameOfferBytes, " bytes"),
                      absl::StrCat(frame.offer.size()));
  }
  std::string head;
  PutVarint32(&head, frame.version);
  PutText(&head, frame.task);
  PutFixed64(&head, frame.incarnation);
  PutInt64(&head, frame.clock_ns);
  PutCount(&head, frame.window_bytes);
  PutCount(&head, frame.pool_bytes);
  PutText(&head, frame.offer);
  PutByte(&head, frame.takes_offer ? 1 : 0);
  PutCount(&head, frame.kept_bytes);
  return Put(FrameKind::kHello, head);
}

Status FrameWriter::Add(const BindFrame& frame) {
  MR_RETURN_IF_ERROR(CheckName(FrameKind::kBind, "session handle", frame.session_handle));
  MR_RETURN_IF_ERROR(CheckName(FrameKind::kBind, "graph handle", frame.graph_handle));
  std::string head;
  PutVarint64(&head, frame.number);
  PutText(&head, frame.session_handle);
  PutText(&head, frame.graph_handle);
  return Put(FrameKind::kBind, head);
}

Status FrameWriter::Add(const UnbindFrame& frame) {
  std::string head;
  PutVarint64(&head, frame.number);
  return Put(FrameKind::kUnbind, head);
}

Status FrameWriter::Add(const RunFrame& frame) {
  MR_RETURN_IF_ERROR(CheckCount(FrameKind::kRun, "time left", frame.timeout_us));
  std::string head;
  PutInt64(&head, frame.step_id);
  PutVarint64(&head, frame.number);
  PutByte(&head, static_cast<uint8_t>((frame.wants_trace ? RunFlags::kTrace : 0) |
                                      (frame.wants_graphs ? RunFlags::kGraphs : 0)));
  PutCount(&head, frame.timeout_us);
  PutVarint64(&head, frame.num_args);
  return Put(FrameKind::kRun, head);
}

namespace {

Status CheckKept(TensorsPurpose purpose, const TensorEntry& entry, bool is_proto) {
  if (entry.keep_number == 0) {
    if (!entry.is_kept) return absl::OkStatus();
    return Unwritable(FrameKind::kTensors, "a kept tensor must have a number",
                      absl::StrCat("none for number ", entry.index));
  }
  const bool is_elsewhere =
      entry.segment != 0 ||
      (entry.is_kept && (entry.transfer != 0 || entry.value.dtype() != DT_INVALID));
  if (purpose == TensorsPurpose::kEdges && !entry.is_dead && !entry.in_loop && !is_proto &&
      !is_elsewhere) {
    return absl::OkStatus();
  }
  return Unwritable(FrameKind::kTensors, "a kept tensor must be an edge with a value of its own",
                    absl::StrCat("another one for number ", entry.index));
}

}  // namespace

Status FrameWriter::Add(const TensorsFrame& frame) {
  const int64_t doubled = DoubledIndex(frame.tensors);
  if (doubled >= 0) {
    return Unwritable(FrameKind::kTensors, "each tensor must be there once",
                      absl::StrCat("number ", doubled, " twice"));
  }
  std::string head;
  PutInt64(&head, frame.step_id);
  PutByte(&head, static_cast<uint8_t>(frame.purpose));
  PutFixed64(&head, frame.fingerprint);
  PutVarint64(&head, frame.tensors.size());
  uint64_t payload_bytes = 0;
  bool takes_credit = false;
  for (const TensorEntry& entry : frame.tensors) {
    const bool in_parts = entry.transfer != 0;
    const bool is_pooled = entry.segment != 0;
    const bool is_elsewhere = in_parts || is_pooled;
    const WireTensor& value = entry.value;
    const WireTensor::Form form = is_elsewhere ? entry.form : value.form();
    const bool is_proto = !entry.is_dead && form == WireTensor::Form::kProto;
    const bool is_narrow = !entry.is_dead && form == WireTensor::Form::kNarrow;
    const bool has_times = entry.ready_ns != 0 || entry.left_ns != 0;
    const bool is_numbered = entry.keep_number != 0;
    MR_RETURN_IF_ERROR(CheckKept(frame.purpose, entry, is_proto));
    PutVarint32(&head, entry.index);
    PutVarint32(&head,
                (entry.is_dead ? uint32_t{EntryFlags::kDead} : 0) |
                    (entry.in_loop ? EntryFlags::kLoop : 0) | (is_proto ? EntryFlags::kProto : 0) |
                    (is_narrow ? EntryFlags::kNarrow : 0) | (has_times ? EntryFlags::kTimes : 0) |
                    (!entry.is_dead && in_parts ? EntryFlags::kParts : 0) |
                    (!entry.is_dead && is_pooled ? EntryFlags::kPooled : 0) |
                    (is_numbered && !entry.is_kept ? EntryFlags::kKeep : 0) |
                    (entry.is_kept ? EntryFlags::kKept : 0));
    if (entry.in_loop) {
      MR_RETURN_IF_ERROR(CheckCount(FrameKind::kTensors, "iteration", entry.iteration));
      PutFixed64(&head, entry.frame_id);
      PutCount(&head, entry.iteration);
    }
    if (has_times) {
      PutInt64(&head, entry.ready_ns);
      PutInt64(&head, entry.left_ns);
    }
    if (is_numbered) PutVarint64(&head, entry.keep_number);
    takes_credit = takes_credit || entry.is_kept;
    if (entry.is_dead || entry.is_kept) continue;
    if (!is_proto) {
      const DType dtype = is_elsewhere ? entry.dtype : value.dtype();
      if (dtype == DT_INVALID) {
        return Unwritable(FrameKind::kTensors, "a tensor that is not dead must have a value",
                          absl::StrCat("none for number ", entry.index));
      }
      const Shape& shape = is_elsewhere ? entry.shape : value.shape();
      PutByte(&head, static_cast<uint8_t>(dtype));
      PutByte(&head, static_cast<uint8_t>(shape.rank()));
      for (const int64_t dim : shape.dims()) PutCount(&head, dim);
    }
    if (in_parts) {
      MR_RETURN_IF_ERROR(CheckCount(FrameKind::kTensors, "bytes of a transfer", entry.num_bytes));
      PutVarint64(&head, entry.transfer);
      PutCount(&head, entry.num_bytes);
    } else if (is_pooled) {
      takes_credit = true;
      MR_RETURN_IF_ERROR(
          CheckCount(FrameKind::kTensors, "bytes of a pooled tensor", entry.num_bytes));
      PutVarint64(&head, entry.segment);
      PutVarint64(&head, entry.offset);
      PutCount(&head, entry.num_bytes);
    } else {
      PutCount(&head, value.num_bytes());
      payload_bytes += static_cast<uint64_t>(value.num_bytes());
    }
  }
  if (takes_credit) PutInt64(&head, frame.credit_bytes);
  MR_RETURN_IF_ERROR(Put(FrameKind::kTensors, head, payload_bytes));
  for (const TensorEntry& entry : frame.tensors) {
    if (entry.is_dead || entry.is_kept || entry.transfer != 0 || entry.segment != 0) continue;
    if (entry.value.num_bytes() < kMinReferredBytes) {
      chain_.Append(entry.value.bytes());
    } else {
      chain_.AppendReference(entry.value.buffer(), entry.value.bytes());
    }
  }
  return absl::OkStatus();
}

Status FrameWriter::Add(const ChunkFrame& frame, const BufferRef& buffer, absl::string_view bytes) {
  if (bytes.empty() || bytes.size() != frame.num_bytes) {
    return Unwritable(FrameKind::kChunk, "all of its bytes must be there, and one at least",
                      absl::StrCat(bytes.size(), " of ", frame.num_bytes));
  }
  std::string head;
  PutVarint64(&head, frame.transfer);
  PutVarint64(&head, frame.offset);
  MR_RETURN_IF_ERROR(Put(FrameKind::kChunk, head, frame.num_bytes));
  chain_.AppendReference(buffer, bytes);
  return absl::OkStatus();
}

Status FrameWriter::Add(const EndFrame& frame) {
  std::string head;
  PutInt64(&head, frame.step_id);
  PutStatus(&head, frame.status);
  PutVarint64(&head, frame.num_results);
  PutByte(&head, frame.has_report ? 1 : 0);
  return Put(FrameKind::kEnd, head);
}

Status FrameWriter::Add(const CancelFrame& frame) {
  if (frame.status.ok()) {
    return Unwritable(FrameKind::kCancel, "its status must be an error", "OK");
  }
  std::string head;
  PutInt64(&head, frame.step_id);
  PutStatus(&head, frame.status);
  return Put(FrameKind::kCancel, head);
}

Status FrameWriter::Add(const ReceivedFrame& frame) {
  MR_RETURN_IF_ERROR(CheckCount(FrameKind::kReceived, "credit", frame.credit_bytes));
  std::string head;
  PutCount(&head, frame.credit_bytes);
  PutVarint64(&head, frame.steps.size());
  for (const ReceivedFrame::Step& step : frame.steps) {
    PutInt64(&head, step.step_id);
    PutVarint64(&head, step.tensors);
  }
  return Put(FrameKind::kReceived, head);
}

Status FrameWriter::Add(const PingFrame& frame) {
  std::string head;
  PutInt64(&head, frame.clock_ns);
  return Put(FrameKind::kPing, head);
}

Status FrameWriter::Add(const PongFrame& frame) {
  std::string head;
  PutInt64(&head, frame.ping_clock_ns);
  PutInt64(&head, frame.clock_ns);
  return Put(FrameKind::kPong, head);
}

Status FrameWriter::Add(const ByeFrame& frame) {
  if (frame.status.ok()) return Unwritable(FrameKind::kBye, "its status must be an error", "OK");
  std::string head;
  PutStatus(&head, frame.status);
  return Put(FrameKind::kBye, head);
}

Status FrameWriter::Add(const SegmentFrame& frame, std::shared_ptr<const OwnedFd> fd) {
  MR_RETURN_IF_ERROR(CheckCount(FrameKind::kSegment, "bytes", frame.num_bytes));
  if (frame.segment == 0) {
    return Unwritable(FrameKind::kSegment, "the segment must have a number", "0");
  }
  std::string head;
  PutVarint64(&head, frame.segment);
  PutCount(&head, frame.num_bytes);
  return Put(FrameKind::kSegment, head, 0, std::move(fd));
}

Status FrameWriter::Add(const ReleaseFrame& frame) {
  std::string head;
  PutVarint64(&head, frame.blocks.size());
  for (const ReleaseFrame::Block& block : frame.blocks) {
    PutVarint64(&head, block.segment);
    PutVarint64(&head, block.offset);
  }
  return Put(FrameKind::kRelease, head);
}

Status FrameWriter::Add(const ForgetFrame& frame) {
  std::string head;
  PutVarint64(&head, frame.numbers.size());
  for (const uint64_t number : frame.numbers) PutVarint64(&head, number);
  return Put(FrameKind::kForget, head);
}

uint64_t FrameWriter::MaxEntryHeadBytes(const TensorEntry& entry) {
  // Index, flags, frame and iteration, times, the number of one that is kept, dtype and rank,
  // transfer or segment and offset, bytes; and the dims.
  const bool is_elsewhere = entry.transfer != 0 || entry.segment != 0;
  const int rank = is_elsewhere ? entry.shape.rank() : entry.value.shape().rank();
  const bool has_times = entry.ready_ns != 0 || entry.left_ns != 0;
  const uint64_t optional_bytes = (has_times ? 16u : 0u) + (entry.keep_number != 0 ? 10u : 0u);
  return optional_bytes + 5 + 2 + 8 + 10 + 2 + 10 + 10 + 10 + static_cast<uint64_t>(rank) * 10;
}

ByteChain FrameWriter::Finish() { return std::exchange(chain_, ByteChain()); }

// --- FrameReader

Status FrameReader::Fail(Status status) {
  MR_DCHECK(!status.ok(), "only an error ends the reading");
  failed_ = std::move(status);
  places_.clear();
  frame_ = LinkFrame();
  return failed_;
}

Status FrameReader::Malformed(absl::string_view what) const {
  return InvalidArgument("Link: frame ", FrameKindName(kind_), " must be well formed, got ", what);
}

Status FrameReader::Read(absl::string_view bytes) {
  if (!failed_.ok()) return failed_;
  Status status = ReadOrFail(bytes);
  if (status.ok()) return status;
  return Fail(std::move(status));
}

Status FrameReader::ReadOrFail(absl::string_view bytes) {
  while (!bytes.empty()) {
    switch (state_) {
      case State::kKind:
      case State::kHeadBytes:
      case State::kPayloadBytes:
        MR_RETURN_IF_ERROR(ReadPrefixByte(static_cast<uint8_t>(bytes.front())));
        bytes.remove_prefix(1);
        break;
      case State::kHead: {
        const size_t missing = static_cast<size_t>(head_bytes_) - head_.size();
        const absl::string_view here = bytes.substr(0, missing);
        bytes.remove_prefix(here.size());
        if (head_.empty() && here.size() == missing) {
          MR_RETURN_IF_ERROR(ReadHead(here));
        } else {
          head_.append(here.data(), here.size());
          if (here.size() == missing) MR_RETURN_IF_ERROR(ReadHead(head_));
        }
        break;
      }
      case State::kPayload: {
        size_t n = 0;
        if (place_ < places_.size()) {
          const absl::Span<char> place = places_[place_];
          n = std::min(place.size(), bytes.size());
          std::memcpy(place.data(), bytes.data(), n);
        } else {
          n = static_cast<size_t>(std::min<uint64_t>(payload_left_, bytes.size()));
        }
        bytes.remove_prefix(n);
        Advance(n);
        MR_RETURN_IF_ERROR(EndFrameIfWhole());
        break;
      }
    }
  }
  return absl::OkStatus();
}

Status FrameReader::ReadPrefixByte(uint8_t byte) {
  ++frame_bytes_;
  if (state_ == State::kKind) {
    kind_ = static_cast<FrameKind>(byte);
    if (!IsKind(byte)) return Malformed(absl::StrCat("kind ", byte));
    state_ = State::kHeadBytes;
    return absl::OkStatus();
  }
  const uint64_t bits = byte & 0x7f;
  if (shift_ > 63 || (shift_ == 63 && bits > 1)) return Malformed("a varint of more than 64 bits");
  varint_ |= bits << shift_;
  shift_ += 7;
  if ((byte & 0x80) != 0) return absl::OkStatus();
  const uint64_t value = std::exchange(varint_, 0);
  shift_ = 0;
  if (state_ == State::kHeadBytes) {
    if (value > kMaxFrameHeadBytes) {
      return Malformed(absl::StrCat("a head of ", value, " bytes, more than ", kMaxFrameHeadBytes));
    }
    head_bytes_ = value;
    state_ = State::kPayloadBytes;
    return absl::OkStatus();
  }
  if (value > kMaxFramePayloadBytes) {
    return Malformed(
        absl::StrCat("a payload of ", value, " bytes, more than ", kMaxFramePayloadBytes));
  }
  if (value > 0 && !HasPayload(kind_)) return Malformed("a payload");
  payload_left_ = value;
  state_ = State::kHead;
  // No kind has an empty head; the fields say what is missing.
  return head_bytes_ == 0 ? ReadHead(absl::string_view()) : absl::OkStatus();
}

Status FrameReader::ReadHead(absl::string_view head) {
  frame_bytes_ += static_cast<int64_t>(head.size());
  if (kind_ == FrameKind::kTensors) {
    MR_RETURN_IF_ERROR(ReadTensors(head));
  } else if (kind_ == FrameKind::kChunk) {
    MR_RETURN_IF_ERROR(ReadChunk(head));
  } else {
    Fields in(head);
    bool is_other_version = false;
    switch (kind_) {
      case FrameKind::kHello:
        frame_ = ReadHello(&in, &is_other_version);
        break;
      case FrameKind::kBind:
        frame_ = ReadBind(&in);
        break;
      case FrameKind::kUnbind:
        frame_ = UnbindFrame{in.Varint()};
        break;
      case FrameKind::kRun:
        frame_ = ReadRun(&in);
        break;
      case FrameKind::kEnd:
        frame_ = ReadEnd(&in);
        break;
      case FrameKind::kCancel: {
        CancelFrame cancel;
        cancel.step_id = in.Int64();
        cancel.status = in.ErrorField();
        frame_ = std::move(cancel);
        break;
      }
      case FrameKind::kReceived:
        frame_ = ReadReceived(&in);
        break;
      case FrameKind::kPing:
        frame_ = PingFrame{in.Int64()};
        break;
      case FrameKind::kPong: {
        PongFrame pong;
        pong.ping_clock_ns = in.Int64();
        pong.clock_ns = in.Int64();
        frame_ = pong;
        break;
      }
      case FrameKind::kBye:
        frame_ = ByeFrame{in.ErrorField()};
        break;
      case FrameKind::kSegment:
        frame_ = ReadSegment(&in);
        break;
      case FrameKind::kRelease:
        frame_ = ReadRelease(&in);
        break;
      case FrameKind::kForget:
        frame_ = ReadForget(&in);
        break;
      case FrameKind::kTensors:
      case FrameKind::kChunk:
        break;
    }
    if (!is_other_version) {
      const char* const error = in.EndOfHead();
      if (error != nullptr) return Malformed(error);
    }
  }
  head_.clear();
  state_ = State::kPayload;
  return EndFrameIfWhole();
}

Status FrameReader::ReadTensors(absl::string_view head) {
  Fields in(head);
  TensorsFrame frame;
  frame.step_id = in.Int64();
  const uint8_t purpose = in.Byte();
  if (purpose > static_cast<uint8_t>(TensorsPurpose::kReport)) {
    in.Refuse<int>("a purpose of another version");
  }
  frame.purpose = static_cast<TensorsPurpose>(purpose);
  frame.fingerprint = in.Fixed64();
  // An index and flags, each a byte at least.
  const uint64_t n = in.NumThings(2);
  frame.tensors.reserve(static_cast<size_t>(n));
  uint64_t bytes = 0;
  bool takes_credit = false;
  for (uint64_t i = 0; i < n && in.ok(); ++i) {
    TensorEntry entry = ReadEntry(&in);
    if (entry.keep_number != 0 && frame.purpose != TensorsPurpose::kEdges) {
      in.Refuse<int>("a kept tensor that is no edge");
    }
    if (!entry.is_dead && !entry.is_kept && entry.transfer == 0 && entry.segment == 0) {
      // No overflow: each is below 2^63, and the first that is too large ends the reading.
      bytes += static_cast<uint64_t>(entry.num_bytes);
      if (bytes > payload_left_) in.Refuse<int>("tensors of more bytes than its payload");
    }
    takes_credit = takes_credit || entry.segment != 0 || entry.is_kept;
    frame.tensors.push_back(std::move(entry));
  }
  if (takes_credit) frame.credit_bytes = in.Int64();
  const char* const error = in.EndOfHead();
  if (error != nullptr) return Malformed(error);
  if (bytes != payload_left_) return Malformed("a payload of more bytes than its tensors");
  const int64_t doubled = DoubledIndex(frame.tensors);
  if (doubled >= 0) return Malformed(absl::StrCat("tensor number ", doubled, " twice"));
  places_.clear();
  place_ = 0;
  for (TensorEntry& entry : frame.tensors) {
    if (entry.is_dead || entry.is_kept || entry.transfer != 0) continue;
    if (entry.segment != 0) {
      MR_RETURN_IF_ERROR(
          WireTensor::CheckBytes(entry.form, entry.dtype, entry.shape, entry.num_bytes));
      continue;
    }
    MR_ASSIGN_OR_RETURN(entry.value,
                        WireTensor::For(entry.form, entry.dtype, entry.shape, entry.num_bytes));
    if (entry.num_bytes > 0) places_.push_back(entry.value.mutable_bytes());
  }
  frame_ = std::move(frame);
  return absl::OkStatus();
}

Status FrameReader::ReadChunk(absl::string_view head) {
  Fields in(head);
  ChunkFrame chunk;
  chunk.transfer = in.Varint();
  chunk.offset = in.Varint();
  const char* const error = in.EndOfHead();
  if (error != nullptr) return Malformed(error);
  if (payload_left_ == 0) return Malformed("no payload");
  chunk.num_bytes = payload_left_;
  places_.clear();
  place_ = 0;
  MR_ASSIGN_OR_RETURN(const absl::Span<char> place, owner_->PlaceFor(chunk));
  if (!place.empty()) {
    if (place.size() != chunk.num_bytes) {
      return Internal("Link: a chunk of ", chunk.num_bytes, " bytes must have a place of as many, ",
                      "got ", place.size());
    }
    places_.push_back(place);
  }
  frame_ = chunk;
  return absl::OkStatus();
}

absl::Span<char> FrameReader::Direct() {
  if (!failed_.ok() || state_ != State::kPayload || place_ >= places_.size()) return {};
  return places_[place_];
}

Status FrameReader::Filled(size_t num_bytes) {
  if (!failed_.ok()) return failed_;
  if (num_bytes > Direct().size()) {
    return Fail(Internal("Link: Filled must tell of what Direct gave, ", Direct().size(),
                         " bytes, got ", num_bytes));
  }
  if (num_bytes == 0) return absl::OkStatus();
  Advance(num_bytes);
  Status status = EndFrameIfWhole();
  if (status.ok()) return status;
  return Fail(std::move(status));
}

void FrameReader::Advance(size_t n) {
  payload_left_ -= n;
  frame_bytes_ += static_cast<int64_t>(n);
  if (place_ >= places_.size()) return;  // skipped
  places_[place_].remove_prefix(n);
  if (places_[place_].empty()) ++place_;
}

Status FrameReader::EndFrameIfWhole() {
  if (payload_left_ > 0) return absl::OkStatus();
  state_ = State::kKind;
  places_.clear();
  place_ = 0;
  const int64_t num_bytes = std::exchange(frame_bytes_, 0);
  return owner_->OnFrame(std::exchange(frame_, LinkFrame()), num_bytes);
}

Status FrameReader::End() {
  if (!failed_.ok()) return failed_;
  if (state_ == State::kKind) return absl::OkStatus();
  return Fail(Malformed("an end in the middle of it"));
}

}  // namespace millrace
