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

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "absl/utility/utility.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/coding.h"
#include "core/dtype.h"
#include "core/shape.h"
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
// The list of TensorProto that has the elements of `dtype`, packed, as they lie in memory; 0: none.
constexpr int RawListField(DType dtype) {
  switch (dtype) {
    case DT_FLOAT:
      return 5;  // float_val
    case DT_DOUBLE:
      return 6;  // double_val
    case DT_COMPLEX64:
      return 9;  // scomplex_val
    case DT_COMPLEX128:
      return 12;  // dcomplex_val
    case DT_BOOL:
      return 11;  // bool_val; who writes it may use more bytes for one, so it is not read so
    default:
      return 0;
  }
}
constexpr bool IsListToRead(DType dtype, uint64_t tag) {
  const int field = dtype == DT_BOOL ? 0 : RawListField(dtype);
  return field != 0 && tag == Tag(field, kBytes);
}
// Of TensorShapeProto, and of its dimensions.
constexpr int kDimField = 2, kSizeField = 1;
// Fields of NamedTensorProto and of other messages that hold tensors.
constexpr int kNameField = 1, kValueField = 2, kDeadField = 3;

// Below this many bytes a copy is cheaper than to keep the received slice alive.
constexpr size_t kMinBytesInPlace = 64 << 10;
// A TensorProto that is read the slow way nests no deeper than this in practice; shapes are small.
constexpr uint64_t kMaxShapeBytes = 64 << 10;
// What a writer takes at once: room for the heads of a wave and some small tensors.
constexpr size_t kFirstBytes = 512;
// What protobuf may read of a message whose tensors are bounded, all together and of each tensor.
constexpr uint64_t kMaxOtherBytes = 1 << 20;
// Fields that DecodeMessageAround leaves where they are.
constexpr size_t kMaxFieldsAround = 4096;
// Of fields that are no tensors, as a reader takes memory for them: a RunGraph's fit.
constexpr uint64_t kOthersAtOnce = 128;

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
    Enter(0);
  }
  SliceReader(const SliceReader&) = delete;
  SliceReader& operator=(const SliceReader&) = delete;

  uint64_t left() const { return left_; }

  bool ReadByte(uint8_t* byte) {
    if (left_ == 0) return false;
    *byte = *at_;
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
  // As protobuf: of at most five bytes, of a field above 0.
  bool ReadTag(uint64_t* tag) {
    const uint64_t before = left_;
    return ReadVarint(tag) && before - left_ <= 5 && *tag <= UINT32_MAX && *tag >> 3 != 0;
  }
  // n <= left().
  void Read(char* out, uint64_t n) {
    while (n > 0) {
      const uint64_t here = std::min(n, HereLeft());
      std::memcpy(out, at_, here);
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
  const uint8_t* Contiguous(uint64_t n) const { return n == 0 || HereLeft() < n ? nullptr : at_; }
  const grpc::Slice& slice() const { return slices_[slice_]; }
  void Skip(uint64_t n) {
    while (n > 0) {
      const uint64_t here = std::min(n, HereLeft());
      n -= here;
      Advance(here);
    }
  }

  // The next n <= left() bytes, as they lie in `copy`, which has the same slices. A slice of few
  // bytes has them within itself.
  void SkipIn(const std::vector<grpc::Slice>& copy, uint64_t n, ReceivedBytes* bytes) {
    bytes->size = n;
    while (n > 0) {
      const uint64_t here = std::min(n, HereLeft());
      const auto offset = at_ - slices_[slice_].begin();
      bytes->pieces.emplace_back(reinterpret_cast<const char*>(copy[slice_].begin()) + offset,
                                 here);
      n -= here;
      Advance(here);
    }
  }

  struct Position {
    size_t slice;
    const uint8_t* at;
    uint64_t left;
  };
  Position position() const { return {slice_, at_, left_}; }
  void Return(const Position& p) {
    slice_ = p.slice;
    at_ = p.at;
    slice_end_ = slice_ < slices_.size() ? slices_[slice_].end() : nullptr;
    left_ = p.left;
  }

 private:
  uint64_t HereLeft() const { return static_cast<uint64_t>(slice_end_ - at_); }
  // n <= HereLeft().
  void Advance(uint64_t n) {
    at_ += n;
    left_ -= n;
    if (at_ == slice_end_) Enter(slice_ + 1);
  }
  // To the beginning of this slice, or of the first one behind it that has bytes.
  void Enter(size_t slice) {
    while (slice < slices_.size() && slices_[slice].size() == 0) ++slice;
    slice_ = slice;
    const bool has_more = slice < slices_.size();
    at_ = has_more ? slices_[slice].begin() : nullptr;
    slice_end_ = has_more ? slices_[slice].end() : nullptr;
  }

  const std::vector<grpc::Slice> slices_;
  size_t slice_ = 0;                                    // where at_ is; their number at the end
  const uint8_t *at_ = nullptr, *slice_end_ = nullptr;  // null at the end
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
  // A tensor of more than `max_proto_bytes` is not read by protobuf, where two bytes may become
  // forty: senders that are strangers.
  SplatBudget(int64_t max, uint64_t max_proto_bytes)
      : max_(max), max_proto_bytes_(max_proto_bytes) {}
  uint64_t max_proto_bytes() const { return max_proto_bytes_; }
  Status Take(absl::string_view what, int64_t bytes) {
    taken_ = AddCapped(taken_, bytes);
    if (taken_ <= max_) return absl::OkStatus();
    return BeyondLimit(what, "bytes of tensor elements that the message does not list",
                       "max_splat_bytes", max_, taken_);
  }

 private:
  const int64_t max_;
  const uint64_t max_proto_bytes_;
  int64_t taken_ = 0;
};

// The dimensions of a TensorShapeProto of `size` bytes that says nothing else. False, and the
// reader somewhere in it, for one that does, and for bytes that are none.
bool ReadPlainDims(SliceReader* in, uint64_t size, absl::InlinedVector<int64_t, 4>* dims) {
  const uint64_t end = in->left() - size;
  while (in->left() > end) {
    uint64_t tag, dim_bytes;
    if (!in->ReadTag(&tag) || tag != Tag(kDimField, kBytes) || !in->ReadVarint(&dim_bytes) ||
        in->left() < end || dim_bytes > in->left() - end) {
      return false;
    }
    const uint64_t dim_end = in->left() - dim_bytes;
    uint64_t dim = 0;  // protobuf leaves out what is 0
    while (in->left() > dim_end) {
      if (!in->ReadTag(&tag) || tag != Tag(kSizeField, kVarint) || !in->ReadVarint(&dim)) {
        return false;
      }
    }
    if (in->left() != dim_end) return false;
    dims->push_back(static_cast<int64_t>(dim));
  }
  return true;
}

// A TensorShapeProto of `size` bytes, size <= in->left().
StatusOr<Shape> ReadShape(absl::string_view what, SliceReader* in, uint64_t size) {
  const SliceReader::Position start = in->position();
  absl::InlinedVector<int64_t, 4> dims;
  if (ReadPlainDims(in, size, &dims)) return Shape::Make(dims);
  // Names of dimensions, an unknown rank, fields of others: as any other TensorShapeProto.
  in->Return(start);
  std::string bytes;
  tensorflow::TensorShapeProto proto;
  if (!in->ReadString(size, &bytes) || !proto.ParseFromString(bytes)) {
    return Malformed(what, "a shape that is none");
  }
  return Shape::FromProto(proto);
}

// A TensorProto of `size` bytes.
StatusOr<Tensor> ReadTensor(absl::string_view what, SliceReader* in, uint64_t size,
                            SplatBudget* budget) {
  const SliceReader::Position start = in->position();
  const uint64_t end = in->left() - size;
  DType dtype = DT_INVALID;
  Shape shape;
  std::optional<Tensor> result;
  bool plain = true;  // only the fields that are read here, once each, in their usual order
  bool has_shape = false;
  while (plain && in->left() > end) {
    uint64_t tag, value;
    if (!in->ReadTag(&tag)) return Malformed(what, "a tensor that ends early");
    if (tag == Tag(kDtypeField, kVarint) && !result && dtype == DT_INVALID) {
      if (!in->ReadVarint(&value)) return Malformed(what, "a tensor that ends early");
      MR_ASSIGN_OR_RETURN(dtype, DTypeFromNumber(value > INT32_MAX ? -1 : static_cast<int>(value)));
    } else if (tag == Tag(kShapeField, kBytes) && !result && !has_shape) {
      has_shape = true;
      if (!in->ReadVarint(&value) || in->left() < end || value > in->left() - end ||
          value > kMaxShapeBytes) {
        return Malformed(what, "a shape that is longer than the message");
      }
      MR_ASSIGN_OR_RETURN(shape, ReadShape(what, in, value));
    } else if (tag == Tag(kVersionField, kVarint)) {
      if (!in->ReadVarint(&value)) return Malformed(what, "a tensor that ends early");
    } else if (!result && IsMemcopyable(dtype) &&
               (tag == Tag(kContentField, kBytes) || IsListToRead(dtype, tag))) {
      if (!in->ReadVarint(&value) || in->left() < end || value > in->left() - end) {
        return Malformed(what, "a tensor's content that is longer than the message");
      }
      const uint64_t want = static_cast<uint64_t>(shape.num_elements()) * DTypeSize(dtype);
      if (value != want && tag != Tag(kContentField, kBytes)) {
        plain = false;  // the last one repeats, or there are more lists
        break;
      }
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
  if (size > budget->max_proto_bytes()) return Malformed(what, "a large tensor of other fields");
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
    if (!in->ReadTag(&tag) || !in->ReadVarint(&value)) {
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
      // Protobuf would merge them.
      if (entry.value.has_value()) return Malformed(what, "an entry with two values");
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

// Of a field that is a message of `num_bytes`, or a text.
size_t BytesOfField(int field, size_t num_bytes) {
  return VarintLength(Tag(field, kBytes)) + VarintLength(num_bytes) + num_bytes;
}
void PutBytesHead(std::string* out, int field, size_t num_bytes) {
  PutTag(out, field, kBytes);
  PutVarint64(out, num_bytes);
}
size_t BytesOfNumber(int field, uint64_t value) {
  return VarintLength(Tag(field, kVarint)) + VarintLength(value);
}
void PutNumber(std::string* out, int field, uint64_t value) {
  PutTag(out, field, kVarint);
  PutVarint64(out, value);
}

// A dimension's message; protobuf leaves out what is 0.
size_t BytesOfDim(int64_t dim) {
  return dim == 0 ? 0 : BytesOfNumber(kSizeField, static_cast<uint64_t>(dim));
}
size_t BytesOfShape(const Shape& shape) {
  size_t num_bytes = 0;
  for (const int64_t dim : shape.dims()) num_bytes += BytesOfField(kDimField, BytesOfDim(dim));
  return num_bytes;
}
void PutShape(std::string* out, const Shape& shape) {
  for (const int64_t dim : shape.dims()) {
    PutBytesHead(out, kDimField, BytesOfDim(dim));
    if (dim != 0) PutNumber(out, kSizeField, static_cast<uint64_t>(dim));
  }
}

}  // namespace

// A tensor that is about to be written as a TensorProto.
struct MessageWriter::Encoded {
  bool is_raw = true;
  int elements_field = kContentField;  // of a raw one
  size_t shape_bytes = 0;              // of a raw one
  std::string proto;                   // of another one
  size_t num_bytes = 0;                // of the TensorProto

  static StatusOr<Encoded> Of(const Tensor& tensor, TensorForm form = TensorForm::kContent);
};

StatusOr<MessageWriter::Encoded> MessageWriter::Encoded::Of(const Tensor& tensor, TensorForm form) {
  Encoded result;
  const bool is_listed = form == TensorForm::kListed;
  if (is_listed) result.elements_field = RawListField(tensor.dtype());
  if (!IsMemcopyable(tensor.dtype()) || result.elements_field == 0) {
    tensorflow::TensorProto proto;
    MR_RETURN_IF_ERROR(is_listed                         ? TensorToListedProto(tensor, &proto)
                       : form == TensorForm::kAllContent ? TensorToContentProto(tensor, &proto)
                                                         : TensorToProto(tensor, &proto));
    if (proto.ByteSizeLong() > static_cast<size_t>(kMaxMessageBytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("Tensor ", DTypeName(tensor.dtype()), tensor.shape().ToString(),
                       ": must be below 2 GiB to travel, got ", proto.ByteSizeLong(), " bytes"));
    }
    result.is_raw = false;
    result.proto = proto.SerializeAsString();
    result.num_bytes = result.proto.size();
    return result;
  }
  result.shape_bytes = BytesOfShape(tensor.shape());
  result.num_bytes = BytesOfNumber(kDtypeField, static_cast<uint32_t>(tensor.dtype())) +
                     BytesOfField(kShapeField, result.shape_bytes);
  const size_t content = tensor.bytes().size();
  if (content > 0) result.num_bytes += BytesOfField(result.elements_field, content);
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
  pending_.resize(old + size);
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(pending_.data() + old));
  num_bytes_ += static_cast<int64_t>(size);
}

void MessageWriter::Flush() {
  if (pending_.empty()) return;
  slices_.emplace_back(pending_);
  pending_.clear();
}

void MessageWriter::BeginField(int field, size_t num_bytes) {
  if (pending_.capacity() < kFirstBytes) pending_.reserve(kFirstBytes);
  PutBytesHead(&pending_, field, num_bytes);
  num_bytes_ += static_cast<int64_t>(BytesOfField(field, num_bytes));
}

void MessageWriter::PutTensor(const Tensor& tensor, const Encoded& encoded) {
  if (!encoded.is_raw) {
    pending_ += encoded.proto;
    Count(counters().through_proto, 1);
    Count(counters().sent_copied, encoded.proto.size());
    return;
  }
  PutNumber(&pending_, kDtypeField, static_cast<uint32_t>(tensor.dtype()));
  PutBytesHead(&pending_, kShapeField, encoded.shape_bytes);
  PutShape(&pending_, tensor.shape());
  const absl::Span<const char> bytes = tensor.bytes();
  if (!bytes.empty()) PutBytesHead(&pending_, encoded.elements_field, bytes.size());
  if (static_cast<int64_t>(bytes.size()) < kMinBytesByReference) {
    pending_.append(bytes.data(), bytes.size());
    Count(counters().sent_copied, bytes.size());
    return;
  }
  Flush();
  // The slice holds the buffer; gRPC drops it on whatever thread has sent it.
  const Buffer* const buffer = tensor.buffer().get();
  buffer->Ref();
  slices_.push_back(grpc::Slice(
      const_cast<char*>(bytes.data()), bytes.size(),
      [](void* data) { static_cast<const Buffer*>(data)->Unref(); }, const_cast<Buffer*>(buffer)));
  Count(counters().sent_by_reference, bytes.size());
}

Status MessageWriter::AddTensor(int field, const Tensor& tensor) {
  MR_ASSIGN_OR_RETURN(const Encoded encoded, Encoded::Of(tensor));
  BeginField(field, encoded.num_bytes);
  PutTensor(tensor, encoded);
  return absl::OkStatus();
}

Status MessageWriter::AddNamedTensor(int field, absl::string_view name, const Tensor& tensor,
                                     TensorForm form) {
  MR_ASSIGN_OR_RETURN(const Encoded encoded, Encoded::Of(tensor, form));
  BeginField(field,
             BytesOfField(kNameField, name.size()) + BytesOfField(kValueField, encoded.num_bytes));
  PutBytesHead(&pending_, kNameField, name.size());
  pending_.append(name.data(), name.size());
  PutBytesHead(&pending_, kValueField, encoded.num_bytes);
  PutTensor(tensor, encoded);
  return absl::OkStatus();
}

Status MessageWriter::AddIndexedTensor(int field, uint64_t index, const Tensor& tensor,
                                       bool is_dead) {
  const bool has_value = !is_dead && tensor.has_value();
  Encoded encoded;
  size_t num_bytes = BytesOfNumber(kNameField, index);
  if (is_dead) num_bytes += BytesOfNumber(kDeadField, 1);
  if (has_value) {
    MR_ASSIGN_OR_RETURN(encoded, Encoded::Of(tensor));
    num_bytes += BytesOfField(kValueField, encoded.num_bytes);
  }
  BeginField(field, num_bytes);
  PutNumber(&pending_, kNameField, index);
  if (is_dead) PutNumber(&pending_, kDeadField, 1);
  if (has_value) {
    PutBytesHead(&pending_, kValueField, encoded.num_bytes);
    PutTensor(tensor, encoded);
  }
  return absl::OkStatus();
}

StatusOr<grpc::ByteBuffer> MessageWriter::Finish() {
  const int64_t num_bytes = std::exchange(num_bytes_, 0);
  if (slices_.empty() && !pending_.empty() && num_bytes <= kMaxMessageBytes) {
    // Small messages, as most are, need no list.
    const grpc::Slice all(pending_);
    pending_.clear();
    return StatusOr<grpc::ByteBuffer>(absl::in_place, &all, size_t{1});
  }
  Flush();
  const std::vector<grpc::Slice> slices = std::exchange(slices_, {});
  if (num_bytes > kMaxMessageBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "Message: tensors that travel together must be below 2 GiB, got ", num_bytes, " bytes"));
  }
  // In its place: a ByteBuffer cannot be moved, and a copy of it counts each of its slices.
  return StatusOr<grpc::ByteBuffer>(absl::in_place, slices.data(), slices.size());
}

StatusOr<grpc::ByteBuffer> EncodeMessage(const google::protobuf::MessageLite& message) {
  MessageWriter writer;
  writer.AddMessage(message);
  return writer.Finish();
}

Status DecodeMessage(absl::string_view what, const grpc::ByteBuffer& buffer, int field,
                     TensorField form, std::vector<DecodedTensor>* tensors,
                     google::protobuf::MessageLite* rest, int64_t max_splat_bytes,
                     size_t max_tensors) {
  // Who bounds the tensors has strangers as senders.
  const bool is_bounded = max_tensors < SIZE_MAX;
  const uint64_t max_others = is_bounded ? kMaxOtherBytes : UINT64_MAX;
  SplatBudget budget(max_splat_bytes, max_others);
  std::vector<grpc::Slice> slices;
  if (buffer.Length() > 0 && !buffer.Dump(&slices).ok()) {
    return Malformed(what, "bytes that cannot be read");
  }
  SliceReader in(std::move(slices));
  std::string others;
  while (in.left() > 0) {
    uint64_t tag;
    if (!in.ReadTag(&tag)) return Malformed(what, "an end within a field");
    if (tag != Tag(field, kBytes)) {
      if (others.empty()) others.reserve(std::min<uint64_t>(in.left(), kOthersAtOnce));
      if (!CopyField(&in, tag, &others)) return Malformed(what, "an end within a field");
      if (others.size() > max_others) return Malformed(what, "many other fields");
      continue;
    }
    uint64_t size;
    if (!in.ReadVarint(&size) || size > in.left()) return Malformed(what, "an end within a tensor");
    if (tensors->size() >= max_tensors) {
      return Malformed(what, absl::StrCat("more than ", max_tensors, " tensors"));
    }
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

Status DecodeMessageAround(absl::string_view what, const grpc::ByteBuffer& buffer, int field,
                           std::vector<grpc::Slice>* slices, std::vector<ReceivedBytes>* fields,
                           google::protobuf::MessageLite* rest) {
  if (buffer.Length() > 0 && !buffer.Dump(slices).ok()) {
    return Malformed(what, "bytes that cannot be read");
  }
  // The others, in runs as they lie.
  SliceReader in(*slices);
  std::vector<ReceivedBytes> others;
  SliceReader::Position run = in.position();
  const auto end_run = [&](const SliceReader::Position& end) {
    const uint64_t size = run.left - end.left;
    if (size == 0) return;
    in.Return(run);
    in.SkipIn(*slices, size, &others.emplace_back());
  };
  while (in.left() > 0) {
    const SliceReader::Position begin = in.position();
    uint64_t tag, size = 0;
    if (!in.ReadTag(&tag)) return Malformed(what, "an end within a field");
    switch (tag & 7) {
      case kVarint:
        if (!in.ReadVarint(&size)) return Malformed(what, "an end within a field");
        size = 0;
        break;
      case kFixed64:
        size = 8;
        break;
      case kFixed32:
        size = 4;
        break;
      case kBytes:
        if (!in.ReadVarint(&size)) return Malformed(what, "an end within a field");
        break;
      default:
        return Malformed(what, "fields of another message");
    }
    if (size > in.left()) return Malformed(what, "an end within a field");
    if (tag != Tag(field, kBytes)) {
      in.Skip(size);
      continue;
    }
    // Each takes some fifty bytes, on the wire it may be two.
    if (fields->size() >= kMaxFieldsAround) {
      return Malformed(what, absl::StrCat("more than ", kMaxFieldsAround, " fields ", field));
    }
    const SliceReader::Position bytes = in.position();
    end_run(begin);
    in.Return(bytes);
    in.SkipIn(*slices, size, &fields->emplace_back());
    run = in.position();
  }
  end_run(in.position());
  std::deque<google::protobuf::io::ArrayInputStream> pieces;
  std::vector<google::protobuf::io::ZeroCopyInputStream*> streams;
  for (const ReceivedBytes& run : others) {
    for (const absl::string_view piece : run.pieces) {
      streams.push_back(&pieces.emplace_back(piece.data(), static_cast<int>(piece.size())));
    }
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
