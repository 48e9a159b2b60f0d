// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/v2_tensors.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

struct Row {
  absl::string_view datatype;
  DType dtype;
};
constexpr Row kRows[] = {
    {"BOOL", DT_BOOL},     {"UINT8", DT_UINT8},   {"UINT16", DT_UINT16}, {"UINT32", DT_UINT32},
    {"UINT64", DT_UINT64}, {"INT8", DT_INT8},     {"INT16", DT_INT16},   {"INT32", DT_INT32},
    {"INT64", DT_INT64},   {"FP16", DT_HALF},     {"FP32", DT_FLOAT},    {"FP64", DT_DOUBLE},
    {"BYTES", DT_STRING},  {"BF16", DT_BFLOAT16},
};

// Longest part of a client's text that a message shows.
constexpr size_t kMaxShown = 64;
// gRPC's messages end there.
constexpr size_t kMaxRawBytes = INT32_MAX;
constexpr size_t kLengthBytes = 4;

StatusOr<Tensor> Strings(absl::string_view where, const Shape& shape, absl::string_view raw) {
  const int64_t elements = shape.num_elements();
  // Each element has its length at least; elements <= Shape::kMaxElements.
  if (static_cast<uint64_t>(elements) * kLengthBytes > raw.size()) {
    return InvalidArgument(where, ": ", elements,
                           " elements must have 4 bytes of length each, got ", raw.size(),
                           " bytes in all");
  }
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(DT_STRING, shape));
  size_t at = 0;
  for (std::string& element : tensor.mutable_raw<std::string>()) {
    const size_t left = raw.size() - at;
    uint32_t length = 0;
    if (left >= kLengthBytes) std::memcpy(&length, raw.data() + at, kLengthBytes);
    if (left < kLengthBytes || length > left - kLengthBytes) {
      return InvalidArgument(where, ": an element of BYTES must lie within its ", raw.size(),
                             " bytes, got one at byte ", at, " of length ", length);
    }
    element.assign(raw.data() + at + kLengthBytes, length);
    at += kLengthBytes + length;
  }
  if (at != raw.size()) {
    return InvalidArgument(where, ": ", elements, " elements must fill ", raw.size(),
                           " bytes, got elements of ", at, " bytes");
  }
  return tensor;
}

}  // namespace

absl::string_view V2Datatype(DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return row.datatype;
  }
  return "";
}

StatusOr<DType> DTypeOfV2(absl::string_view where, absl::string_view datatype) {
  for (const Row& row : kRows) {
    if (row.datatype == datatype) return row.dtype;
  }
  return InvalidArgument(where, ": datatype must be one of the protocol (BOOL, INT32, FP32, BYTES,",
                         " ...), got '", datatype.substr(0, kMaxShown), "'");
}

bool HasTypedV2Form(DType dtype) {
  return dtype != DT_HALF && dtype != DT_BFLOAT16 && !V2Datatype(dtype).empty();
}

StatusOr<Shape> ShapeOfV2(absl::string_view where, absl::Span<const int64_t> dims) {
  StatusOr<Shape> shape = Shape::Make(dims);
  if (!shape.ok()) return Prefixed(where, shape.status());
  return shape;
}

StatusOr<Tensor> TensorOfRawV2(absl::string_view where, DType dtype, const Shape& shape,
                               absl::string_view raw) {
  return TensorOfRawPiecesV2(where, dtype, shape, {&raw, 1});
}

StatusOr<Tensor> TensorOfRawPiecesV2(absl::string_view where, DType dtype, const Shape& shape,
                                     absl::Span<const absl::string_view> pieces) {
  if (dtype == DT_STRING) {
    // An element may lie in two pieces.
    return pieces.size() == 1 ? Strings(where, shape, pieces[0])
                              : Strings(where, shape, absl::StrJoin(pieces, ""));
  }
  uint64_t size = 0;
  for (const absl::string_view piece : pieces) size += piece.size();
  // No overflow: at most 2^40 elements of 8 bytes.
  const uint64_t wanted = static_cast<uint64_t>(shape.num_elements()) * DTypeSize(dtype);
  if (size != wanted) {
    return InvalidArgument(where, ": ", V2Datatype(dtype), " of shape ", shape.ToString(),
                           " must have ", wanted, " bytes, got ", size);
  }
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, shape));
  if (dtype == DT_BOOL) {
    // A bool may have no other bits than these.
    bool* element = tensor.mutable_raw<bool>().data();
    for (const absl::string_view piece : pieces) {
      for (const char byte : piece) *element++ = byte != 0;
    }
    return tensor;
  }
  char* to = static_cast<char*>(tensor.mutable_raw_data());
  for (const absl::string_view piece : pieces) {
    if (piece.empty()) continue;
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  return tensor;
}

StatusOr<std::string> RawV2(absl::string_view where, const Tensor& tensor) {
  if (V2Datatype(tensor.dtype()).empty()) {
    return Unimplemented(where, ": dtype must be one that the protocol has, got ",
                         DTypeName(tensor.dtype()));
  }
  const auto too_large = [&] {
    return absl::ResourceExhaustedError(absl::StrCat(where, ": elements must have at most ",
                                                     kMaxRawBytes, " bytes in all, got more"));
  };
  if (tensor.dtype() != DT_STRING) {
    const absl::Span<const char> bytes = tensor.bytes();
    if (bytes.size() > kMaxRawBytes) return too_large();
    return std::string(bytes.data(), bytes.size());
  }
  size_t size = 0;
  for (const std::string& element : tensor.raw<std::string>()) {
    size += kLengthBytes + element.size();
    if (size > kMaxRawBytes) return too_large();
  }
  std::string raw;
  raw.reserve(size);
  for (const std::string& element : tensor.raw<std::string>()) {
    const auto length = static_cast<uint32_t>(element.size());
    raw.append(reinterpret_cast<const char*>(&length), kLengthBytes);
    raw.append(element);
  }
  return raw;
}

}  // namespace millrace
