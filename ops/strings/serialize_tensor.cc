// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/serialize_tensor.h"

#include <limits>
#include <string>

#include "core/tensor_proto.h"
#include "proto/tensor.pb.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

struct SerializeTensorRule {
  StatusOr<PartialShape> operator()(RuleContext*) const { return PartialShape::Scalar(); }
};

// TensorFlow writes the elements as they lie in memory, also where there is only one.
Status WriteTensor(const Tensor& tensor, tensorflow::TensorProto* proto) {
  if (!IsMemcopyable(tensor.dtype())) return TensorToProto(tensor, proto);
  proto->set_dtype(static_cast<tensorflow::DataType>(tensor.dtype()));
  tensor.shape().ToProto(proto->mutable_tensor_shape());
  proto->set_tensor_content(tensor.bytes().data(), tensor.bytes().size());
  return absl::OkStatus();
}

Status RunSerializeTensor(KernelContext* ctx, const SerializeTensorRule&) {
  const Tensor& tensor = ctx->input(0);
  // What a message may hold.
  constexpr int64_t kMostBytes = std::numeric_limits<int32_t>::max() - (int64_t{1} << 20);
  if (tensor.TotalBytes() > kMostBytes) {
    return InvalidArgument("tensor must have at most ", kMostBytes, " bytes, got ",
                           tensor.TotalBytes());
  }
  tensorflow::TensorProto proto;
  MR_RETURN_IF_ERROR(WriteTensor(tensor, &proto));
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  if (proto.SerializeToString(&output->mutable_raw<std::string>()[0])) return absl::OkStatus();
  return InvalidArgument("tensor must fit in a message, got ", tensor.TotalBytes(), " bytes");
}

const OpRegistration kSerializeTensor =
    OpSpec("SerializeTensor", "tensor: T -> serialized: string", "T: type")
        .With(RuledKernelFor<SerializeTensorRule>(RunSerializeTensor))
        .NotDifferentiable();

struct ParseTensorRule {
  DType out_type = DT_INVALID;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "out_type", &out_type); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape& serialized = c->input(0);
    if (serialized.has_rank() && serialized.rank() != 0) {
      return InvalidArgument("Expected `serialized` to be a scalar, got shape: ", serialized);
    }
    return PartialShape();
  }
};

Status RunParseTensor(KernelContext* ctx, const ParseTensorRule& rule) {
  const std::string& serialized = ctx->input(0).raw_scalar<std::string>();
  tensorflow::TensorProto proto;
  if (!proto.ParseFromString(serialized)) {
    return InvalidArgument("Could not parse `serialized` as TensorProto, got ", serialized.size(),
                           " bytes");
  }
  MR_ASSIGN_OR_RETURN(const DType dtype, DTypeFromNumber(proto.dtype()));
  if (dtype != rule.out_type) {
    return InvalidArgument("Type mismatch between parsed tensor (", dtype, ") and dtype (",
                           rule.out_type, ")");
  }
  MR_ASSIGN_OR_RETURN(Tensor tensor, TensorFromProto(proto));
  ctx->set_output(0, std::move(tensor));
  return absl::OkStatus();
}

const OpRegistration kParseTensor =
    OpSpec("ParseTensor", "serialized: string -> output: out_type", "out_type: type")
        .With(RuledKernelFor<ParseTensorRule>(RunParseTensor))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
