// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/wire_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/allocator.h"
#include "core/coding.h"
#include "core/tensor_proto.h"
#include "net/call_limits.h"
#include "net/splat_bytes.h"
#include "proto/tensor.pb.h"

namespace millrace {
namespace {

// Protobuf's sizes are ints.
constexpr int64_t kMaxProtoBytes = std::numeric_limits<int32_t>::max();

// The messages that a TensorProto may hold.
enum class Kind { kTensor, kVariant, kShape, kDim, kHandle, kHandleShape };

// What one takes in memory once it is parsed, with its place and the allocator's share, at least.
constexpr int64_t ParsedBytes(Kind kind) {
  switch (kind) {
    case Kind::kTensor:
      return 400;
    case Kind::kHandle:
      return 160;
    case Kind::kVariant:
      return 128;
    case Kind::kShape:
    case Kind::kDim:
    case Kind::kHandleShape:
      return 96;
  }
  return 0;
}
// A field that this release does not know is kept by the parser.
constexpr int64_t kUnknownFieldBytes = 64;
// As protobuf's parser allows.
constexpr int kMaxNesting = 100;

// Of a field that has a length.
enum class Field { kMessage, kPlain, kUnknown };

Field FieldOf(Kind kind, uint64_t number, Kind* inner) {
  const auto message = [inner](Kind of) {
    *inner = of;
    return Field::kMessage;
  };
  switch (kind) {
    case Kind::kTensor:
      if (number == 2) return message(Kind::kShape);
      if (number == 14) return message(Kind::kHandle);
      if (number == 15) return message(Kind::kVariant);
      // Content, numbers that are packed, and strings, which the tensor has, too.
      return (number >= 4 && number <= 17) ? Field::kPlain : Field::kUnknown;
    case Kind::kVariant:
      if (number == 3) return message(Kind::kTensor);
      return number <= 2 ? Field::kPlain : Field::kUnknown;
    case Kind::kShape:
      return number == 2 ? message(Kind::kDim) : Field::kUnknown;
    case Kind::kDim:
      return number == 2 ? Field::kPlain : Field::kUnknown;
    case Kind::kHandle:
      if (number == 6) return message(Kind::kHandleShape);
      return number <= 3 ? Field::kPlain : Field::kUnknown;
    case Kind::kHandleShape:
      return number == 2 ? message(Kind::kShape) : Field::kUnknown;
  }
  return Field::kUnknown;
}

// What the messages within `bytes`, one of `kind`, take once they are parsed. Negative for bytes
// that are no such message. An empty message takes two bytes, so this must be known before.
int64_t ParsedBytesWithin(absl::string_view bytes, Kind kind, int nesting) {
  if (nesting > kMaxNesting) return -1;
  int64_t parsed = 0;
  while (!bytes.empty()) {
    uint64_t tag = 0;
    if (!GetVarint64(&bytes, &tag)) return -1;
    size_t size = 0;  // of the value
    switch (tag & 7) {
      case 0:
        while (size < bytes.size() && size < 9 && (bytes[size] & 0x80) != 0) ++size;
        ++size;
        break;
      case 1:
        size = 8;
        break;
      case 5:
        size = 4;
        break;
      case 2: {
        uint64_t length = 0;
        if (!GetVarint64(&bytes, &length) || length > bytes.size()) return -1;
        size = static_cast<size_t>(length);
        Kind inner = kind;
        const Field field = FieldOf(kind, tag >> 3, &inner);
        if (field == Field::kUnknown) parsed += kUnknownFieldBytes;
        if (field != Field::kMessage) break;
        const int64_t within = ParsedBytesWithin(bytes.substr(0, size), inner, nesting + 1);
        if (within < 0) return -1;
        parsed += ParsedBytes(inner) + within;
        break;
      }
      default:
        return -1;  // a group: no writer of these messages has any
    }
    if (size > bytes.size()) return -1;
    bytes.remove_prefix(size);
  }
  return parsed;
}

bool IsRaw(DType dtype) { return !IsRef(dtype) && IsMemcopyable(dtype) && DTypeSize(dtype) > 0; }

// Does each fit into an int32? Fingerprints, of which the first do not, cost one block.
bool FitInt32(absl::Span<const int64_t> values) {
  constexpr size_t kBlock = 512;
  while (!values.empty()) {
    uint64_t beyond = 0;  // one pass without branches
    for (const int64_t value : values.subspan(0, kBlock)) {
      beyond |= (static_cast<uint64_t>(value) + (uint64_t{1} << 31)) >> 32;
    }
    if (beyond != 0) return false;
    values.remove_prefix(std::min(kBlock, values.size()));
  }
  return true;
}

bool TravelsNarrow(const Tensor& tensor) {
  if (tensor.dtype() != DT_INT64) return false;
  const absl::Span<const int64_t> values = tensor.raw<int64_t>();
  const auto num_bytes = static_cast<int64_t>(values.size() * sizeof(int64_t));
  return num_bytes >= WireTensor::kMinNarrowedBytes && num_bytes <= WireTensor::kMaxNarrowedBytes &&
         FitInt32(values);
}

}  // namespace

StatusOr<WireTensor> WireTensor::Allocate(Form form, int64_t num_bytes) {
  WireTensor result;
  result.form_ = form;
  result.is_ours_ = true;
  if (num_bytes == 0) return result;
  result.buffer_ = Buffer::Allocate(DefaultAllocator(), static_cast<size_t>(num_bytes));
  if (!result.buffer_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Link: a tensor needs memory for ", num_bytes, " bytes, got none"));
  }
  result.bytes_ = absl::string_view(static_cast<const char*>(result.buffer_->data()),
                                    static_cast<size_t>(num_bytes));
  return result;
}

StatusOr<WireTensor> WireTensor::Of(const Tensor& tensor) {
  if (!tensor.has_value() || tensor.is_reference()) {
    return InvalidArgument("Link: a tensor that travels must have a value, got ",
                           tensor.has_value() ? "a reference to a variable" : "none");
  }
  if (TravelsNarrow(tensor)) {
    const absl::Span<const int64_t> values = tensor.raw<int64_t>();
    StatusOr<WireTensor> result =
        Allocate(Form::kNarrow, static_cast<int64_t>(values.size() * sizeof(int32_t)));
    // Without memory for it the tensor leaves as it is.
    if (result.ok()) {
      result->dtype_ = DT_INT64;
      result->shape_ = tensor.shape();
      auto* const to = static_cast<int32_t*>(result->buffer_->data());
      for (size_t i = 0; i < values.size(); ++i) to[i] = static_cast<int32_t>(values[i]);
      return result;
    }
  }
  if (IsRaw(tensor.dtype())) {
    WireTensor result;
    result.dtype_ = tensor.dtype();
    result.shape_ = tensor.shape();
    const absl::Span<const char> bytes = tensor.bytes();
    if (bytes.empty()) return result;
    result.buffer_ = tensor.buffer();
    result.bytes_ = absl::string_view(bytes.data(), bytes.size());
    return result;
  }
  tensorflow::TensorProto proto;
  MR_RETURN_IF_ERROR(TensorToProto(tensor, &proto));
  const size_t size = proto.ByteSizeLong();
  if (size > static_cast<size_t>(kMaxProtoBytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("Link: a tensor of ",
                                                     DTypeName(tensor.dtype()),
                                                     " must be below 2 GiB, got ", size, " bytes"));
  }
  MR_ASSIGN_OR_RETURN(WireTensor result, Allocate(Form::kProto, static_cast<int64_t>(size)));
  if (size > 0 && !proto.SerializeToArray(result.mutable_bytes().data(), static_cast<int>(size))) {
    return Internal("Link: a TensorProto must be written whole, got an error after ", size,
                    " bytes were counted");
  }
  return result;
}

Status WireTensor::CheckBytes(Form form, DType dtype, const Shape& shape, int64_t num_bytes) {
  switch (form) {
    case Form::kRaw: {
      if (!IsRaw(dtype)) {
        return InvalidArgument("Link: raw bytes must be of a dtype of fixed size, got ", dtype);
      }
      // At most 2^40 elements of 16 bytes.
      const int64_t wanted = shape.num_elements() * static_cast<int64_t>(DTypeSize(dtype));
      if (num_bytes == wanted) return absl::OkStatus();
      return InvalidArgument("Link: a tensor ", dtype, shape, " must have ", wanted, " bytes, got ",
                             num_bytes);
    }
    case Form::kNarrow: {
      if (dtype != DT_INT64) {
        return InvalidArgument("Link: narrow bytes must be of int64, got ", dtype);
      }
      const int64_t elements = shape.num_elements();  // at most 2^40
      if (elements > kMaxNarrowedBytes / static_cast<int64_t>(sizeof(int64_t))) {
        return InvalidArgument("Link: a narrow tensor must have at most ", kMaxNarrowedBytes,
                               " bytes, got int64", shape);
      }
      const int64_t wanted = elements * static_cast<int64_t>(sizeof(int32_t));
      if (num_bytes == wanted) return absl::OkStatus();
      return InvalidArgument("Link: a narrow tensor int64", shape, " must have ", wanted,
                             " bytes, got ", num_bytes);
    }
    case Form::kProto:
      if (num_bytes >= 0 && num_bytes <= kMaxProtoBytes) return absl::OkStatus();
      return InvalidArgument("Link: a TensorProto must be below 2 GiB, got ", num_bytes, " bytes");
  }
  return Internal("Link: a tensor must have a form, got number ", static_cast<int>(form));
}

StatusOr<WireTensor> WireTensor::For(Form form, DType dtype, const Shape& shape,
                                     int64_t num_bytes) {
  MR_RETURN_IF_ERROR(CheckBytes(form, dtype, shape, num_bytes));
  MR_ASSIGN_OR_RETURN(WireTensor result, Allocate(form, num_bytes));
  if (form == Form::kProto) return result;
  result.dtype_ = dtype;
  result.shape_ = shape;
  return result;
}

WireTensor WireTensor::Over(DType dtype, const Shape& shape, BufferRef buffer) {
  WireTensor result;
  result.dtype_ = dtype;
  result.shape_ = shape;
  result.buffer_ = std::move(buffer);
  result.bytes_ =
      absl::string_view(static_cast<const char*>(result.buffer_->data()), result.buffer_->size());
  return result;
}

absl::Span<char> WireTensor::mutable_bytes() {
  if (!is_ours_ || !buffer_) return {};
  return absl::Span<char>(static_cast<char*>(buffer_->data()), bytes_.size());
}

StatusOr<Tensor> WireTensor::Widened() const {
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(DT_INT64, shape_));
  if (!buffer_) return tensor;  // no elements
  const absl::Span<int64_t> values = tensor.mutable_raw<int64_t>();
  const auto* const from = static_cast<const int32_t*>(buffer_->data());
  for (size_t i = 0; i < values.size(); ++i) values[i] = from[i];
  return tensor;
}

StatusOr<Tensor> WireTensor::TakeTensor(int64_t* splat_bytes_left) {
  WireTensor taken = std::move(*this);
  bytes_ = {};
  dtype_ = DT_INVALID;
  if (taken.form_ == Form::kNarrow) return taken.Widened();
  if (taken.form_ == Form::kRaw) {
    if (!taken.buffer_) return Tensor::Allocate(taken.dtype_, taken.shape_);  // no elements
    if (taken.dtype_ == DT_BOOL) {
      // Any byte but 0 means true, and only 0 and 1 may become bools.
      for (char& b : taken.mutable_bytes()) b = b != 0 ? 1 : 0;
    }
    const auto offset = taken.bytes_.data() - static_cast<const char*>(taken.buffer_->data());
    return Tensor::FromBuffer(taken.dtype_, taken.shape_, std::move(taken.buffer_),
                              static_cast<size_t>(offset));
  }
  const int64_t parsed_bytes = ParsedBytesWithin(taken.bytes_, Kind::kTensor, 0);
  const int64_t beyond_own = parsed_bytes - taken.num_bytes();
  if (beyond_own > *splat_bytes_left) {
    return BeyondLimit("Link", "bytes of messages within a tensor, beyond what they have come in,",
                       "max_splat_bytes", *splat_bytes_left, beyond_own);
  }
  if (beyond_own > 0) *splat_bytes_left -= beyond_own;
  tensorflow::TensorProto proto;
  if (parsed_bytes < 0 ||
      !proto.ParseFromArray(taken.bytes_.data(), static_cast<int>(taken.bytes_.size()))) {
    return InvalidArgument("Link: the bytes of a tensor must be a TensorProto, got ",
                           taken.bytes_.size(), " bytes that are none");
  }
  const int64_t splat_bytes = SplatBytes(proto);
  if (splat_bytes > *splat_bytes_left) {
    return BeyondLimit("Link", "bytes of tensor elements that a frame does not list",
                       "max_splat_bytes", *splat_bytes_left, splat_bytes);
  }
  *splat_bytes_left -= splat_bytes;
  return TensorFromProto(proto);
}

}  // namespace millrace
