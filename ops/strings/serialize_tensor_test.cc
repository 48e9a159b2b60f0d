// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/serialize_tensor.h"

#include <complex>
#include <string>
#include <vector>

#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/tensor.pb.h"
#include "runtime/testing/op_test.h"

// covers: input: tensors are serialized and parsed as TensorFlow's

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Parse(const Tensor& serialized, DType dtype) {
  return OpCall("ParseTensor").Input(serialized).Attr("out_type", dtype);
}

TEST(SerializeTensor, EveryTensorComesBack) {
  const std::vector<Tensor> tensors = {
      Tensor::Of<float>({{1, 2}, {3, 4}}),
      Tensor::Scalar(int64_t{-7}),
      Tensor::Scalar(true),
      Tensor::Of({"a", "", "\xff"}),
      Tensor::Scalar(std::complex<float>(1, -1)),
      TensorOf<double>({0, 3}, {}),
      Tensor::Of<uint8_t>({255}),
  };
  for (const Tensor& tensor : tensors) {
    const Tensor bytes = RunOp1(OpCall("SerializeTensor").Input(tensor));
    ExpectTensorEqual(RunOp1(Parse(bytes, tensor.dtype())), tensor);
  }
}

// dtype = 1 (float), shape { dim { size: 1 } }, tensor_content = 1.0f.
TEST(SerializeTensor, WritesTensorFlowsBytes) {
  ExpectTensorEqual(
      RunOp1(OpCall("SerializeTensor").Input(Tensor::Of({1.0f}))),
      Tensor::Scalar(std::string("\x08\x01\x12\x04\x12\x02\x08\x01\x22\x04\x00\x00\x80\x3f", 14)));
  // A scalar, too, is written as it lies in memory.
  ExpectTensorEqual(RunOp1(OpCall("SerializeTensor").Input(Tensor::Scalar(1.0f))),
                    Tensor::Scalar(std::string("\x08\x01\x12\x00\x22\x04\x00\x00\x80\x3f", 10)));
}

TEST(ParseTensor, ReadsEveryEncoding) {
  tensorflow::TensorProto proto;
  proto.set_dtype(tensorflow::DT_FLOAT);
  proto.mutable_tensor_shape()->add_dim()->set_size(3);
  proto.add_float_val(1);
  proto.add_float_val(2);  // repeats
  ExpectTensorEqual(RunOp1(Parse(Tensor::Scalar(proto.SerializeAsString()), DT_FLOAT)),
                    Tensor::Of<float>({1, 2, 2}));
}

TEST(ParseTensor, RefusesOtherBytes) {
  const auto bytes = [](const char* text) { return Tensor::Scalar(text); };
  ExpectOpError(Parse(bytes("bogus"), DT_FLOAT), kInvalid,
                "Could not parse `serialized` as TensorProto, got 5 bytes");
  ExpectOpError(Parse(bytes(""), DT_FLOAT), kInvalid, "Type mismatch between parsed tensor");
  ExpectOpError(Parse(RunOp1(OpCall("SerializeTensor").Input(Tensor::Scalar(1.0))), DT_FLOAT),
                kInvalid, "Type mismatch between parsed tensor (double) and dtype (float)");
  ExpectOpError(Parse(Tensor::Of({"a"}), DT_FLOAT), kInvalid,
                "Expected `serialized` to be a scalar, got shape: [1]");
  tensorflow::TensorProto proto;
  proto.set_dtype(tensorflow::DT_FLOAT);
  proto.mutable_tensor_shape()->add_dim()->set_size(int64_t{1} << 40);  // four terabytes
  proto.set_tensor_content("1234");
  ExpectOpError(Parse(Tensor::Scalar(proto.SerializeAsString()), DT_FLOAT), kInvalid, "");
  proto.mutable_tensor_shape()->mutable_dim(0)->set_size(-5);
  ExpectOpError(Parse(Tensor::Scalar(proto.SerializeAsString()), DT_FLOAT), kInvalid, "");
  proto.Clear();
  proto.set_dtype(static_cast<tensorflow::DataType>(999));
  ExpectOpError(Parse(Tensor::Scalar(proto.SerializeAsString()), DT_FLOAT), kInvalid, "999");
}

TEST(SerializeTensor, InfersShapes) {
  EXPECT_SHAPE("SerializeTensor", {}, {"[2,?]"}, "[]");
  EXPECT_SHAPE("ParseTensor", {{"out_type", DT_FLOAT}}, {"[]"}, "<unknown>");
  EXPECT_SHAPE_ERROR("ParseTensor", {{"out_type", DT_FLOAT}}, {"[2]"}, "to be a scalar");
}

}  // namespace
}  // namespace millrace
