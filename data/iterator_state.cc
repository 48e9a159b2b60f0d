// SPDX-License-Identifier: Apache-2.0
#include "data/iterator_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/coding.h"
#include "core/tensor_proto.h"
#include "data/lost_file.h"
#include "proto/tensor.pb.h"

namespace millrace::data {
namespace {

Status EndsEarly() { return absl::DataLossError("Iterator state: it ends early"); }

Status OutOfBounds(absl::string_view what, uint64_t value) {
  return absl::DataLossError(
      absl::StrCat("Iterator state: ", what, " is out of bounds, got ", value));
}

// How a tensor follows: as a TensorProto, or a scalar int64 or string without one.
enum Encoding : uint64_t { kProto = 0, kInt64 = 1, kString = 2 };

constexpr uint64_t kMostCode = 16;
// Added to the code of a lost file.
constexpr uint64_t kLostFile = 64;

}  // namespace

void StateWriter::PutUint(uint64_t value) { PutVarint64(&bytes_, value); }

void StateWriter::PutBytes(absl::string_view bytes) {
  PutUint(bytes.size());
  bytes_.append(bytes.data(), bytes.size());
}

void StateWriter::PutStatus(const Status& status) {
  PutUint(static_cast<uint64_t>(status.raw_code()) + (IsLostFile(status) ? kLostFile : 0));
  PutBytes(status.message());
}

Status StateWriter::PutElement(const Element& element) {
  PutUint(element.size());
  for (const Tensor& tensor : element) {
    if (tensor.dtype() == DT_INT64 && tensor.rank() == 0) {
      PutUint(kInt64);
      PutInt(tensor.raw_scalar<int64_t>());
    } else if (tensor.dtype() == DT_STRING && tensor.rank() == 0) {
      PutUint(kString);
      PutBytes(tensor.raw_scalar<std::string>());
    } else {
      tensorflow::TensorProto proto;
      MR_RETURN_IF_ERROR(Prefixed("Iterator state", TensorToProto(tensor, &proto)));
      PutUint(kProto);
      std::string bytes;
      if (!proto.SerializeToString(&bytes)) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "Iterator state: a tensor must be below 2 GiB, got ", tensor.TotalBytes(), " bytes"));
      }
      PutBytes(bytes);
    }
  }
  return absl::OkStatus();
}

StatusOr<uint64_t> StateReader::GetUint() {
  uint64_t value;
  if (!GetVarint64(&bytes_, &value)) return EndsEarly();
  return value;
}

StatusOr<int64_t> StateReader::GetInt(int64_t low, int64_t high) {
  MR_ASSIGN_OR_RETURN(const uint64_t bits, GetUint());
  const int64_t value = static_cast<int64_t>(bits);
  if (value < low || value > high) return OutOfBounds("a position", bits);
  return value;
}

StatusOr<bool> StateReader::GetBool() {
  MR_ASSIGN_OR_RETURN(const int64_t value, GetInt(0, 1));
  return value == 1;
}

StatusOr<absl::string_view> StateReader::GetBytes() {
  MR_ASSIGN_OR_RETURN(const uint64_t size, GetUint());
  if (size > bytes_.size()) return EndsEarly();
  const absl::string_view bytes = bytes_.substr(0, static_cast<size_t>(size));
  bytes_.remove_prefix(static_cast<size_t>(size));
  return bytes;
}

Status StateReader::GetStatus(Status* status) {
  MR_ASSIGN_OR_RETURN(const uint64_t bits, GetUint());
  const bool is_lost_file = bits >= kLostFile;
  const uint64_t code = is_lost_file ? bits - kLostFile : bits;
  if (code > kMostCode) return OutOfBounds("the code of an error", bits);
  MR_ASSIGN_OR_RETURN(const absl::string_view message, GetBytes());
  *status = Status(static_cast<absl::StatusCode>(code), message);
  if (is_lost_file) *status = LostFile(*status);
  return absl::OkStatus();
}

StatusOr<int64_t> StateReader::GetCount() {
  MR_ASSIGN_OR_RETURN(const uint64_t count, GetUint());
  if (count > bytes_.size()) return EndsEarly();
  return static_cast<int64_t>(count);
}

StatusOr<Element> StateReader::GetElement() {
  MR_ASSIGN_OR_RETURN(const int64_t count, GetCount());
  Element element;
  for (int64_t i = 0; i < count; ++i) {
    MR_ASSIGN_OR_RETURN(const uint64_t encoding, GetUint());
    switch (encoding) {
      case kInt64: {
        MR_ASSIGN_OR_RETURN(const uint64_t value, GetUint());
        element.push_back(Tensor::Scalar(static_cast<int64_t>(value)));
        break;
      }
      case kString: {
        MR_ASSIGN_OR_RETURN(const absl::string_view value, GetBytes());
        element.push_back(Tensor::Scalar(std::string(value)));
        break;
      }
      case kProto: {
        MR_ASSIGN_OR_RETURN(const absl::string_view bytes, GetBytes());
        tensorflow::TensorProto proto;
        if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
          return absl::DataLossError("Iterator state: a tensor cannot be read");
        }
        StatusOr<Tensor> tensor = TensorFromProto(proto);
        if (!tensor.ok()) {
          return absl::DataLossError(absl::StrCat("Iterator state: ", tensor.status().message()));
        }
        element.push_back(*std::move(tensor));
        break;
      }
      default:
        return OutOfBounds("the encoding of a tensor", encoding);
    }
  }
  return element;
}

}  // namespace millrace::data
