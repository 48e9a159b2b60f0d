// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_V2_TENSORS_H_
#define MILLRACE_SERVING_PROTOCOLS_V2_TENSORS_H_

// Tensors of the Open Inference Protocol: its names of datatypes, and its raw form of elements.
//
//   BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16 BYTES
//
// Raw: little-endian, row-major, without gaps. BOOL is one byte, 0 is false. An element of BYTES
// stands behind its length, four bytes.
//
// What a message says of sizes is compared with the bytes that are there before anything is
// allocated.
//
// Thread-safety: pure functions. Failure: InvalidArgument for what a client sent; Unimplemented for
// a tensor of ours that the protocol has no datatype for. Messages begin with `where`.

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// "FP32"; "" for dtypes that the protocol has no name for.
absl::string_view V2Datatype(DType dtype);
StatusOr<DType> DTypeOfV2(absl::string_view where, absl::string_view datatype);
// Elements have typed fields and a form in JSON; FP16 and BF16 have the raw form alone.
bool HasTypedV2Form(DType dtype);

// Of a request: no negative and no unknown dimension.
StatusOr<Shape> ShapeOfV2(absl::string_view where, absl::Span<const int64_t> dims);

StatusOr<Tensor> TensorOfRawV2(absl::string_view where, DType dtype, const Shape& shape,
                               absl::string_view raw);
// The same of bytes that lie in pieces, which are copied once.
StatusOr<Tensor> TensorOfRawPiecesV2(absl::string_view where, DType dtype, const Shape& shape,
                                     absl::Span<const absl::string_view> pieces);
// ResourceExhausted for more bytes than a message may have, or an element of 2^32 and more.
StatusOr<std::string> RawV2(absl::string_view where, const Tensor& tensor);

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_V2_TENSORS_H_
