// SPDX-License-Identifier: Apache-2.0
#include "net/splat_bytes.h"

#include <algorithm>
#include <string>

#include "core/dtype.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "proto/tensor.pb.h"
#include "proto/tensor_shape.pb.h"
#include "proto/types.pb.h"

namespace millrace {
namespace {

int64_t MultiplyCapped(int64_t a, int64_t b) {
  return b != 0 && a > INT64_MAX / b ? INT64_MAX : a * b;
}

// Elements that the message lists where those of its dtype are read from; those of complex types
// are pairs.
int64_t NumListed(const tensorflow::TensorProto& proto) {
  switch (proto.dtype()) {
    case tensorflow::DT_FLOAT:
      return proto.float_val_size();
    case tensorflow::DT_DOUBLE:
      return proto.double_val_size();
    case tensorflow::DT_INT32:
    case tensorflow::DT_INT16:
    case tensorflow::DT_INT8:
    case tensorflow::DT_UINT16:
    case tensorflow::DT_UINT8:
    case tensorflow::DT_QINT32:
    case tensorflow::DT_QINT16:
    case tensorflow::DT_QINT8:
    case tensorflow::DT_QUINT16:
    case tensorflow::DT_QUINT8:
      return proto.int_val_size();
    case tensorflow::DT_INT64:
      return proto.int64_val_size();
    case tensorflow::DT_UINT32:
      return proto.uint32_val_size();
    case tensorflow::DT_UINT64:
      return proto.uint64_val_size();
    case tensorflow::DT_BOOL:
      return proto.bool_val_size();
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
      return proto.half_val_size();
    case tensorflow::DT_COMPLEX64:
      return proto.scomplex_val_size() / 2;
    case tensorflow::DT_COMPLEX128:
      return proto.dcomplex_val_size() / 2;
    case tensorflow::DT_STRING:
      return proto.string_val_size();
    case tensorflow::DT_RESOURCE:
      return proto.resource_handle_val_size();
    case tensorflow::DT_VARIANT:
      return proto.variant_val_size();
    default:
      return 0;  // no tensor's
  }
}

}  // namespace

int64_t SplatBytes(const tensorflow::TensorProto& proto) {
  int64_t bytes = 0;
  for (const auto& variant : proto.variant_val()) {
    for (const auto& inner : variant.tensors()) bytes = AddCapped(bytes, SplatBytes(inner));
  }
  int64_t elements = 1;
  for (const auto& dim : proto.tensor_shape().dim()) {
    elements = MultiplyCapped(elements, std::max(dim.size(), int64_t{0}));
  }
  // Raw content is all there, or refused.
  const int64_t missing = elements - NumListed(proto);
  if (missing <= 0 || !proto.tensor_content().empty()) return bytes;
  int64_t each = 0;
  switch (proto.dtype()) {
    case tensorflow::DT_STRING:
      each = sizeof(std::string);
      if (proto.string_val_size() > 0) {
        each += static_cast<int64_t>(proto.string_val(proto.string_val_size() - 1).size());
      }
      break;
    case tensorflow::DT_RESOURCE:
      each = sizeof(ResourceHandle);
      if (proto.resource_handle_val_size() > 0) {
        const auto& last = proto.resource_handle_val(proto.resource_handle_val_size() - 1);
        each += static_cast<int64_t>(last.ByteSizeLong());
      }
      break;
    case tensorflow::DT_VARIANT:
      each = sizeof(Variant);
      break;
    default: {
      const StatusOr<DType> dtype = DTypeFromNumber(proto.dtype());
      each = dtype.ok() ? static_cast<int64_t>(DTypeSize(*dtype)) : 0;
    }
  }
  return AddCapped(bytes, MultiplyCapped(missing, each));
}

}  // namespace millrace
