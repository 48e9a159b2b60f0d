// SPDX-License-Identifier: Apache-2.0
#include "net/tensor_coding.h"

#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/coding.h"
#include "core/status.h"
#include "core/tensor_proto.h"
#include "core/utf8.h"
#include "net/call_limits.h"
#include "net/splat_bytes.h"
#include "proto/tensor.pb.h"
#include "proto/tensor_shape.pb.h"

namespace millrace {
namespace {

// Protobuf's wire format.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
constexpr uint32_t Tag(int field, WireType type) {
  return static_cast<uint32_t>(field) << 3 | type;
}

// Fields of TensorProto.
constexpr int kDtypeField = 1, kShapeField = 2, kVersionField = 3, kContentField = 4;
// Fields of NamedTensorProto and of the entries of a pull.
constexpr int kNameField = 1, kValueField = 2, kDeadField = 3;

// Below this many bytes a copy is cheaper than to keep the received slice alive.
constexpr size_t kMinBytesInPlace = 64 << 10;
// A TensorProto that is read the slow way nests no deeper than this in practice; shapes are small.
constexpr uint64_t kMaxShapeBytes = 64 << 10;

// Relaxed: they only count.
struct Counters {
  std::atomic<int64_t> sent_by_reference{0}, sent_copied{0}, received_in_place{0},
      received_copied{0}, through_proto{0};
};
Counters& counters() {
  static Counters* const c = new Counters;
  return *c;
}
void Count(std::atomic<int64_t>& counter, size_t n) {
  counter.fetch_add(static_cast<int64_t>(n), std::memory_order_relaxed);
}

// Bytes over several slices, read front to back.
class SliceReader {
 public:
  explicit SliceReader(std::vector<grpc::Slice> slices) : slices_(std::move(slices)) {
    for (const grpc::Slice& slice : slices_) left_ += slice.size();
    SkipEmpty();
  }

  uint64_t left() const { return left_; }

  bool ReadByte(uint8_t* byte) {
    if (left_ == 0) return false;
    *byte = *(slices_[slice_].begin() + offset_);
    Advance(1);
    return true;
  }
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      uint8_t byte;
      if (!ReadByte(&byte)) return false;
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  // n <= left().
  void Read(char* out, uint64_t n) {
    while (n > 0) {
      const uint64_t here = std::min<uint64_t>(n, slices_[slice_].size() - offset_);
      std::memcpy(out, slices_[slice_].begin() + offset_, here);
      out += here;
      n -= here;
      Advance(here);
    }
  }
  bool ReadString(uint64_t n, std::string* out) {
    if (n > left_) return false;
    const size_t old = out->size();
    out->resize(old + n);
    Read(out->data() + old, n);
    return true;
  }
  // The next n bytes where they lie, when they are in one slice.
  const uint8_t* Contiguous(uint64_t n) const {
    if (n == 0 || slices_[slice_].size() - offset_ < n) return nullptr;
    return slices_[slice_].begin() + offset_;
  }
  const grpc::Slice& slice() const { return slices_[slice_]; }
  void Skip(uint64_t n) {
    while (n > 0) {
      const uint64_t here = std::min<uint64_t>(n, slices_[slice_].size() - offset_);
      n -= here;
      Advance(here);
    }
  }

  struct Position {
    size_t slice, offset;
    uint64_t left;
  };
  Position position() const { return {slice_, offset_, left_}; }
  void Return(const Position& p) {
    slice_ = p.slice;
    offset_ = p.offset;
    left_ = p.left;
  }

 private:
  void Advance(uint64_t n) {
    offset_ += n;
    left_ -= n;
    SkipEmpty();
  }
  void SkipEmpty() {
    while (slice_ < slices_.size() && offset_ == slices_[slice_].size()) {
      ++slice_;
      offset_ = 0;
    }
  }

  std::vector<grpc::Slice> slices_;
  size_t slice_ = 0, offset_ = 0;
  uint64_t left_ = 0;
};

// Reads a field's value and appends its bytes to `out`.
bool CopyField(SliceReader* in, uint64_t tag, std::string* out) {
  PutVarint64(out, tag);
  uint64_t value;
  switch (tag & 7) {
    case kVarint:
      if (!in->ReadVarint(&value)) return false;
      PutVarint64(out, value);
      return true;
    case kFixed64:
      return in->ReadString(8, out);
    case kFixed32:
      return in->ReadString(4, out);
    case kBytes:
      if (!in->ReadVarint(&value) || value > in->left()) return false;
      PutVarint64(out, value);
      return in->ReadString(value, out);
    default:
      return false;
  }
}

// The elements, from the reader's position. `size` has been checked against the message.
StatusOr<Tensor> ReadContent(SliceReader* in, DType dtype, const Shape& shape, uint64_t size) {
  // Bools are read through: their bytes may be any.
  const bool may_stay = size >= kMinBytesInPlace && dtype != DT_BOOL;
  const uint8_t* here = may_stay ? in->Contiguous(size) : nullptr;
  if (here != nullptr && reinterpret_cast<uintptr_t>(here) % Allocator::kAlignment == 0 &&
      in->slice().size() / 2 <= size) {
    grpc::Slice keep = in->slice();
    BufferRef buffer = Buffer::External(const_cast<uint8_t*>(here), size, [keep] {});
    in->Skip(size);
    Count(counters().received_in_place, size);
    return Tensor::FromBuffer(dtype, shape, std::move(buffer), 0);
  }
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, shape));
  const absl::Span<char> bytes = tensor.mutable_bytes();
  in->Read(bytes.data(), size);
  if (dtype == DT_BOOL) {
    // Any byte but 0 means true, and only 0 and 1 may become bools.
    for (char& b : bytes) b = b != 0 ? 1 : 0;
  }
  Count(counters().received_copied, size);
  return tensor;
}

Status Malformed(absl::string_view what, absl::string_view why) {
  return InvalidArgument(what, ": the message must be well formed, got ", why);
}

// What is left of a message's bound for elements that are not listed.
class SplatBudget {
 public:
  explicit SplatBudget(int64_t max) : max_(max) {}
  Status Take(absl::string_view what, int64_t bytes) {
    taken_ = AddCapped(taken_, bytes);
    if (taken_ <= max_) return absl::OkStatus();
    return BeyondLimit(what, "bytes of tensor elements that the message does not list",
                       "max_splat_bytes", max_, taken_);
  }

 private:
  const int64_t max_;
  int64_t taken_ = 0;
};

// A TensorProto of `size` bytes.
StatusOr<Tensor> ReadTensor(absl::string_view what, SliceReader* in, uint64_t size,
                            SplatBudget* budget) {
  const SliceReader::Position start = in->position();
  const uint64_t end = in->left() - size;
  DType dtype = DT_INVALID;
  Shape shape;
  std::optional<Tensor> result;
  bool plain = true;  // only the fields that are read here, in their usual order
  while (plain && in->left() > end) {
    uint64_t tag, value;
    if (!in->ReadVarint(&tag)) return Malformed(what, "a tensor that ends early");
    if (tag == Tag(kDtypeField, kVarint) && !result) {
      if (!in->ReadVarint(&value)) return Malformed(what, "a tensor that ends early");
      MR_ASSIGN_OR_RETURN(dtype, DTypeFromNumber(value > INT32_MAX ? -1 : static_cast<int>(value)));
    } else if (tag == Tag(kShapeField, kBytes) && !result) {
      std::string bytes;
      if (!in->ReadVarint(&value) || value > in->left() - end || value > kMaxShapeBytes ||
          !in->ReadString(value, &bytes)) {
        return Malformed(what, "a shape that is longer than the message");
      }
      tensorflow::TensorShapeProto proto;
      if (!proto.ParseFromString(bytes)) return Malformed(what, "a shape that is none");
      MR_ASSIGN_OR_RETURN(shape, Shape::FromProto(proto));
    } else if (tag == Tag(kVersionField, kVarint)) {
      if (!in->ReadVarint(&value)) return Malformed(what, "a tensor that ends early");
    } else if (tag == Tag(kContentField, kBytes) && !result && IsMemcopyable(dtype)) {
      if (!in->ReadVarint(&value) || in->left() < end || value > in->left() - end) {
        return Malformed(what, "a tensor's content that is longer than the message");
      }
      const uint64_t want = static_cast<uint64_t>(shape.num_elements()) * DTypeSize(dtype);
      if (value != want) {
        return Malformed(what, absl::StrCat(value, " bytes for a tensor ", DTypeName(dtype),
                                            shape.ToString(), " of ", want));
      }
      MR_ASSIGN_OR_RETURN(result, ReadContent(in, dtype, shape, value));
    } else {
      plain = false;
    }
  }
  if (plain && in->left() != end) return Malformed(what, "a tensor that is longer than its field");
  if (plain && result) return *std::move(result);
  if (plain && IsMemcopyable(dtype) && shape.num_elements() == 0) {
    return Tensor::Allocate(dtype, shape);
  }
  // Typed lists, strings, handles: as any other TensorProto.
  in->Return(start);
  std::string bytes;
  if (!in->ReadString(size, &bytes)) return Malformed(what, "a tensor that ends early");
  tensorflow::TensorProto proto;
  if (!proto.ParseFromString(bytes)) return Malformed(what, "a tensor that is none");
  MR_RETURN_IF_ERROR(budget->Take(what, SplatBytes(proto)));
  Count(counters().through_proto, 1);
  Count(counters().received_copied, bytes.size());
  return TensorFromProto(proto);
}

// { 1: name or index, 2: TensorProto, 3: is_dead } of `size` bytes.
StatusOr<DecodedTensor> ReadEntry(absl::string_view what, SliceReader* in, uint64_t size,
                                  SplatBudget* budget) {
  const uint64_t end = in->left() - size;
  DecodedTensor entry;
  while (in->left() > end) {
    uint64_t tag, value;
    if (!in->ReadVarint(&tag) || !in->ReadVarint(&value)) {
      return Malformed(what, "an entry that ends early");
    }
    const bool is_bytes = (tag & 7) == kBytes;
    if (is_bytes && (in->left() < end || value > in->left() - end)) {
      return Malformed(what, "an entry's field that is longer than the message");
    }
    if (tag == Tag(kNameField, kBytes)) {
      entry.name.clear();
      in->ReadString(value, &entry.name);
    } else if (tag == Tag(kNameField, kVarint)) {
      entry.index = value;
    } else if (tag == Tag(kDeadField, kVarint)) {
      entry.is_dead = value != 0;
    } else if (tag == Tag(kValueField, kBytes)) {
      MR_ASSIGN_OR_RETURN(entry.value, ReadTensor(what, in, value, budget));
    } else if (is_bytes) {
      in->Skip(value);
    } else if ((tag & 7) != kVarint) {
      return Malformed(what, absl::StrCat("an entry with field ", tag >> 3));
    }
  }
  if (in->left() != end) return Malformed(what, "an entry that is longer than its field");
  return entry;
}

void PutTag(std::string* out, int field, WireType type) { PutVarint32(out, Tag(field, type)); }

}  // namespace

// A TensorProto: its bytes up to the elements, and the elements unless they are among these.
struct MessageWriter::Encoded {
  std::string header;
  grpc::Slice content;
  int64_t num_bytes = 0;

  static StatusOr<Encoded> Of(const Tensor& tensor);
};

StatusOr<MessageWriter::Encoded> MessageWriter::Encoded::Of(const Tensor& tensor) {
  Encoded result;
  if (!IsMemcopyable(tensor.dtype())) {
    tensorflow::TensorProto proto;
    MR_RETURN_IF_ERROR(TensorToProto(tensor, &proto));
    if (proto.ByteSizeLong() > static_cast<size_t>(kMaxMessageBytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("Tensor ", DTypeName(tensor.dtype()), tensor.shape().ToString(),
                       ": must be below 2 GiB to travel, got ", proto.ByteSizeLong(), " bytes"));
    }
    result.header = proto.SerializeAsString();
    result.num_bytes = static_cast<int64_t>(result.header.size());
    Count(counters().through_proto, 1);
    Count(counters().sent_copied, result.header.size());
    return result;
  }
  PutTag(&result.header, kDtypeField, kVarint);
  PutVarint32(&result.header, static_cast<uint32_t>(tensor.dtype()));
  tensorflow::TensorShapeProto shape;
  tensor.shape().ToProto(&shape);
  const std::string shape_bytes = shape.SerializeAsString();
  PutTag(&result.header, kShapeField, kBytes);
  PutVarint64(&result.header, shape_bytes.size());
  result.header += shape_bytes;
  const absl::Span<const char> bytes = tensor.bytes();
  if (!bytes.empty()) {
    PutTag(&result.header, kContentField, kBytes);
    PutVarint64(&result.header, bytes.size());
  }
  result.num_bytes = static_cast<int64_t>(result.header.size() + bytes.size());
  if (static_cast<int64_t>(bytes.size()) < kMinBytesByReference) {
    result.header.append(bytes.data(), bytes.size());
    Count(counters().sent_copied, bytes.size());
    return result;
  }
  // The slice holds the buffer; gRPC drops it on whatever thread has sent it.
  const Buffer* const buffer = tensor.buffer().get();
  buffer->Ref();
  result.content = grpc::Slice(
      const_cast<char*>(bytes.data()), bytes.size(),
      [](void* data) { static_cast<const Buffer*>(data)->Unref(); }, const_cast<Buffer*>(buffer));
  Count(counters().sent_by_reference, bytes.size());
  return result;
}

MessageWriter::MessageWriter() = default;
MessageWriter::~MessageWriter() = default;

void MessageWriter::AddMessage(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size >= static_cast<size_t>(kMinBytesByReference)) {
    // Into the slice that travels, at once: a graph's constants are in such messages.
    Flush();
    num_bytes_ += static_cast<int64_t>(size);
    if (num_bytes_ > kMaxMessageBytes) return;  // Finish says so
    grpc::Slice slice(size);
    message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
    slices_.push_back(std::move(slice));
    return;
  }
  const size_t old = pending_.size();
  message.AppendPartialToString(&pending_);
  num_bytes_ += static_cast<int64_t>(pending_.size() - old);
}

void MessageWriter::Flush() {
  if (pending_.empty()) return;
  slices_.emplace_back(pending_);
  pending_.clear();
}

Status MessageWriter::AddTensor(int field, const Tensor& tensor) {
  MR_ASSIGN_OR_RETURN(Encoded encoded, Encoded::Of(tensor));
  const size_t old = pending_.size();
  PutTag(&pending_, field, kBytes);
  PutVarint64(&pending_, static_cast<uint64_t>(encoded.num_bytes));
  num_bytes_ += static_cast<int64_t>(pending_.size() - old) + encoded.num_bytes;
  pending_ += encoded.header;
  if (encoded.content.size() > 0) {
    Flush();
    slices_.push_back(std::move(encoded.content));
  }
  return absl::OkStatus();
}

Status MessageWriter::AddEntry(int field, absl::string_view prefix, const Tensor& tensor,
                               bool has_tensor) {
  Encoded encoded;
  std::string head(prefix);
  if (has_tensor) {
    MR_ASSIGN_OR_RETURN(encoded, Encoded::Of(tensor));
    PutTag(&head, kValueField, kBytes);
    PutVarint64(&head, static_cast<uint64_t>(encoded.num_bytes));
  }
  const size_t old = pending_.size();
  PutTag(&pending_, field, kBytes);
  PutVarint64(&pending_, head.size() + static_cast<uint64_t>(encoded.num_bytes));
  pending_ += head;
  num_bytes_ += static_cast<int64_t>(pending_.size() - old) + encoded.num_bytes;
  pending_ += encoded.header;
  if (encoded.content.size() > 0) {
    Flush();
    slices_.push_back(std::move(encoded.content));
  }
  return absl::OkStatus();
}

Status MessageWriter::AddNamedTensor(int field, absl::string_view name, const Tensor& tensor) {
  std::string prefix;
  PutTag(&prefix, kNameField, kBytes);
  PutVarint64(&prefix, name.size());
  prefix.append(name.data(), name.size());
  return AddEntry(field, prefix, tensor, true);
}

Status MessageWriter::AddIndexedTensor(int field, uint64_t index, const Tensor& tensor,
                                       bool is_dead) {
  std::string prefix;
  PutTag(&prefix, kNameField, kVarint);
  PutVarint64(&prefix, index);
  if (is_dead) {
    PutTag(&prefix, kDeadField, kVarint);
    PutVarint64(&prefix, 1);
  }
  return AddEntry(field, prefix, tensor, !is_dead && tensor.has_value());
}

StatusOr<grpc::ByteBuffer> MessageWriter::Finish() {
  Flush();
  const int64_t num_bytes = std::exchange(num_bytes_, 0);
  const std::vector<grpc::Slice> slices = std::exchange(slices_, {});
  if (num_bytes > kMaxMessageBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "Message: tensors that travel together must be below 2 GiB, got ", num_bytes, " bytes"));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

StatusOr<grpc::ByteBuffer> EncodeMessage(const google::protobuf::MessageLite& message) {
  MessageWriter writer;
  writer.AddMessage(message);
  return writer.Finish();
}

Status DecodeMessage(absl::string_view what, const grpc::ByteBuffer& buffer, int field,
                     TensorField form, std::vector<DecodedTensor>* tensors,
                     google::protobuf::MessageLite* rest, int64_t max_splat_bytes) {
  SplatBudget budget(max_splat_bytes);
  std::vector<grpc::Slice> slices;
  if (buffer.Length() > 0 && !buffer.Dump(&slices).ok()) {
    return Malformed(what, "bytes that cannot be read");
  }
  SliceReader in(std::move(slices));
  std::string others;
  while (in.left() > 0) {
    uint64_t tag;
    if (!in.ReadVarint(&tag)) return Malformed(what, "an end within a field");
    if (tag != Tag(field, kBytes)) {
      if (!CopyField(&in, tag, &others)) return Malformed(what, "an end within a field");
      continue;
    }
    uint64_t size;
    if (!in.ReadVarint(&size) || size > in.left()) return Malformed(what, "an end within a tensor");
    if (form == TensorField::kTensor) {
      DecodedTensor tensor;
      MR_ASSIGN_OR_RETURN(tensor.value, ReadTensor(what, &in, size, &budget));
      tensors->push_back(std::move(tensor));
    } else {
      MR_ASSIGN_OR_RETURN(DecodedTensor tensor, ReadEntry(what, &in, size, &budget));
      tensors->push_back(std::move(tensor));
    }
  }
  if (rest != nullptr && !rest->ParseFromString(others)) {
    return Malformed(what, "fields of another message");
  }
  return absl::OkStatus();
}

Status DecodeMessage(absl::string_view what, const grpc::ByteBuffer& buffer,
                     google::protobuf::MessageLite* rest) {
  std::vector<grpc::Slice> slices;
  if (buffer.Length() > 0 && !buffer.Dump(&slices).ok()) {
    return Malformed(what, "bytes that cannot be read");
  }
  // From where they lie: strings of the message are the only copy.
  std::deque<google::protobuf::io::ArrayInputStream> pieces;
  std::vector<google::protobuf::io::ZeroCopyInputStream*> streams;
  for (const grpc::Slice& slice : slices) {
    streams.push_back(&pieces.emplace_back(slice.begin(), static_cast<int>(slice.size())));
  }
  google::protobuf::io::ConcatenatingInputStream all(streams.data(),
                                                     static_cast<int>(streams.size()));
  if (!rest->ParseFromZeroCopyStream(&all)) return Malformed(what, "fields of another message");
  return absl::OkStatus();
}

std::string WireText(absl::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t n = Utf8Length(text);
    if (n == 0) {
      absl::StrAppend(&result, "\\x",
                      absl::Hex(static_cast<uint8_t>(text.front()), absl::kZeroPad2));
    } else {
      result.append(text.data(), n);
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return result;
}

TensorCodingCounters GetTensorCodingCounters() {
  const Counters& c = counters();
  TensorCodingCounters result;
  result.sent_by_reference = c.sent_by_reference.load(std::memory_order_relaxed);
  result.sent_copied = c.sent_copied.load(std::memory_order_relaxed);
  result.received_in_place = c.received_in_place.load(std::memory_order_relaxed);
  result.received_copied = c.received_copied.load(std::memory_order_relaxed);
  result.through_proto = c.through_proto.load(std::memory_order_relaxed);
  return result;
}

}  // namespace millrace
