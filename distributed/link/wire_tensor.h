// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_WIRE_TENSOR_H_
#define MILLRACE_DISTRIBUTED_LINK_WIRE_TENSOR_H_

// WireTensor: a tensor as its bytes lie on a link, in one piece of memory.
//
//   raw     the elements in row-major order, little-endian: every dtype that is plain bytes.
//           Nothing is copied: the bytes are those of the tensor's own buffer.
//   narrow  int64 elements as int32, half as many bytes: ids and counts, of which all fit. The
//           tensor that the receiver takes out is int64 again.
//   proto   a serialized TensorProto: strings, handles, variants.
//
// The sender makes one Of a tensor, which chooses the form. The receiver makes one For the form and
// size that a frame announces, fills mutable_bytes() as bytes arrive, and takes the tensor out when
// all are there; raw bytes become the tensor's buffer.
//
// A value; copies share the bytes. Threads: distinct objects may be used from different threads.
// Failure: InvalidArgument for what no tensor can be, Unimplemented for a variant that cannot be
// serialized, ResourceExhausted when there is no memory and beyond a limit.

#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/buffer.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

class WireTensor {
 public:
  enum class Form { kRaw, kNarrow, kProto };

  // Of the int64 tensors that travel narrow. Smaller ones save less than memory for their int32
  // takes; larger ones arrive straight in their memory. A receiver refuses larger ones.
  static constexpr int64_t kMinNarrowedBytes = int64_t{1} << 10;
  static constexpr int64_t kMaxNarrowedBytes = int64_t{1} << 20;

  // Empty: neither dtype nor bytes. What a dead tensor has.
  WireTensor() = default;
  // `tensor` has a value and is no reference.
  static StatusOr<WireTensor> Of(const Tensor& tensor);
  // Memory for bytes that are to come; not touched. `dtype` and `shape` are not those of a proto.
  // InvalidArgument when `num_bytes` are not those of the form, the dtype and the shape.
  static StatusOr<WireTensor> For(Form form, DType dtype, const Shape& shape, int64_t num_bytes);

  // What For asks of them; allocates nothing.
  static Status CheckBytes(Form form, DType dtype, const Shape& shape, int64_t num_bytes);
  // Of a pooled tensor that is handed over: `buffer`, which has the bytes and is never written.
  static WireTensor Over(DType dtype, const Shape& shape, BufferRef buffer);

  Form form() const { return form_; }
  // Of the tensor, unless it is a proto.
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }

  int64_t num_bytes() const { return static_cast<int64_t>(bytes_.size()); }
  absl::string_view bytes() const { return bytes_; }
  // Null when there are no bytes.
  const BufferRef& buffer() const { return buffer_; }
  // Of memory that For made; empty when the bytes are a tensor's own.
  absl::Span<char> mutable_bytes();

  // The tensor, once all bytes are there; this is empty afterwards. `splat_bytes_left`: what
  // elements that a TensorProto does not list may take, and beforehand, what the messages within
  // its bytes take beyond these once they are parsed; both are subtracted. ResourceExhausted beyond
  // it, before anything is parsed or allocated.
  StatusOr<Tensor> TakeTensor(int64_t* splat_bytes_left);

 private:
  static StatusOr<WireTensor> Allocate(Form form, int64_t num_bytes);
  StatusOr<Tensor> Widened() const;

  Form form_ = Form::kRaw;
  bool is_ours_ = false;  // from Allocate
  DType dtype_ = DT_INVALID;
  Shape shape_;
  BufferRef buffer_;
  absl::string_view bytes_;  // in *buffer_
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_WIRE_TENSOR_H_
