// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TENSOR_PROTO_H_
#define MILLRACE_CORE_TENSOR_PROTO_H_

// Tensors to and from TensorProto, in every encoding that TensorFlow writes
// (raw content, typed lists, a last value that repeats).
//
// Sizes are checked before anything is allocated. Source: TensorFlow's tensor.proto.

#include "core/allocator.h"
#include "core/tensor.h"

namespace tensorflow {
class TensorProto;
}

namespace millrace {

// InvalidArgument when dtype, shape and data do not agree.
StatusOr<Tensor> TensorFromProto(const tensorflow::TensorProto& proto,
                                 Allocator* allocator = DefaultAllocator());

// Checks what TensorFromProto checks, without making the tensor.
Status ValidateTensorProto(const tensorflow::TensorProto& proto);

// As TensorFlow's Python writers do: raw content for more than one element of the types that they
// write so, typed lists otherwise. Unimplemented for variants that cannot be serialized.
Status TensorToProto(const Tensor& tensor, tensorflow::TensorProto* proto);
// Would it write the tensor's bytes as raw content?
bool HasRawContent(const Tensor& tensor);

// As TensorFlow's servers reply, whose clients read the lists: all elements in the typed list of
// the dtype, never raw content. Fails as TensorToProto.
Status TensorToListedProto(const Tensor& tensor, tensorflow::TensorProto* proto);
// All elements as raw content, strings behind their lengths; handles and variants, which have none,
// in their lists. Fails as TensorToProto.
Status TensorToContentProto(const Tensor& tensor, tensorflow::TensorProto* proto);

}  // namespace millrace

#endif  // MILLRACE_CORE_TENSOR_PROTO_H_
