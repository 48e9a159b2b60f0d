// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/serialize_sparse.h"

#include <string>
#include <utility>
#include <vector>

#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "proto/tensor.pb.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are serialized as TensorFlow does; wrong indices and shapes are
//   refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

struct Sparse {
  Tensor indices, values, shape;
};
Sparse Input() {
  return {Tensor::Of<int64_t>({{0, 1}, {0, 2}, {2, 0}}), Tensor::Of({"a", "b", "c"}), Ints({3, 4})};
}
OpCall Serialize(const char* op, const Sparse& s, DType type) {
  return OpCall(op).Input(s.indices).Input(s.values).Input(s.shape).Attr("out_type", type);
}
OpCall Deserialize(Tensor serialized, DType dtype) {
  return OpCall("DeserializeSparse").Input(std::move(serialized)).Attr("dtype", dtype);
}
void ExpectSparse(const OpCall& call, const Sparse& expected) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
  ExpectTensorEqual(out[0], expected.indices);
  ExpectTensorEqual(out[1], expected.values);
  ExpectTensorEqual(out[2], expected.shape);
}
std::string Proto(const Tensor& t) {
  tensorflow::TensorProto proto;
  EXPECT_OK(TensorToProto(t, &proto));
  return proto.SerializeAsString();
}

TEST(SerializeSparse, ComesBackAsItWas) {
  const Sparse others[] = {
      Input(),
      {TensorOf<int64_t>({0, 2}, {}), TensorOf<float>({0}, {}), Ints({5, 0})},
      {Tensor::Of<int64_t>({{3}}), Tensor::Vector<double>({0.5}), Ints({9})},
      {TensorOf<int64_t>({1, 0}, {}), Tensor::Of({true}), Ints({})},
  };
  for (const Sparse& s : others) {
    for (const DType type : {DT_STRING, DT_VARIANT}) {
      const Tensor serialized = RunOp1(Serialize("SerializeSparse", s, type));
      EXPECT_EQ(serialized.shape(), Shape({3}));
      EXPECT_EQ(serialized.dtype(), type);
      ExpectSparse(Deserialize(serialized, s.values.dtype()), s);
    }
  }
  // Each element is the proto of a tensor, which others read.
  const Tensor serialized = RunOp1(Serialize("SerializeSparse", Input(), DT_STRING));
  tensorflow::TensorProto proto;
  ASSERT_TRUE(proto.ParseFromString(serialized.flat<std::string>()[2]));
  ASSERT_OK_AND_ASSIGN(const Tensor shape, TensorFromProto(proto));
  ExpectTensorEqual(shape, Ints({3, 4}));
}

TEST(SerializeManySparse, TakesExamplesApartAndJoinsThem) {
  for (const DType type : {DT_STRING, DT_VARIANT}) {
    const Tensor many = RunOp1(Serialize("SerializeManySparse", Input(), type));
    EXPECT_EQ(many.shape(), Shape({3, 3}));
    ExpectSparse(Deserialize(many.Rows(0, 1), DT_STRING),
                 {Tensor::Of<int64_t>({{0, 1}, {0, 2}}), Tensor::Of({"a", "b"}), Ints({1, 4})});
    ExpectSparse(Deserialize(many, DT_STRING), Input());
    if (type == DT_STRING) {
      ExpectSparse(OpCall("DeserializeManySparse").Input(many).Attr("dtype", DT_STRING), Input());
    }
  }
  const Sparse none = {TensorOf<int64_t>({0, 2}, {}), TensorOf<float>({0}, {}), Ints({2, 5})};
  const Tensor two = RunOp1(Serialize("SerializeManySparse", none, DT_STRING));
  EXPECT_EQ(two.shape(), Shape({2, 3}));
  ExpectSparse(Deserialize(two, DT_FLOAT), none);
}

// Examples of different sizes: the largest count. Any number of leading dimensions.
TEST(DeserializeSparse, JoinsShapes) {
  const Tensor a = RunOp1(Serialize(
      "SerializeSparse", {Tensor::Of<int64_t>({{1}, {4}}), Tensor::Of<float>({1, 2}), Ints({5})},
      DT_STRING));
  const Tensor b =
      RunOp1(Serialize("SerializeSparse",
                       {Tensor::Of<int64_t>({{0}}), Tensor::Of<float>({3}), Ints({2})}, DT_STRING));
  std::vector<std::string> elements;
  for (const Tensor& t : {b, a, b, b}) {
    for (const std::string& s : t.flat<std::string>()) elements.push_back(s);
  }
  ASSERT_OK_AND_ASSIGN(const Tensor grid,
                       Tensor::FromValues<std::string>(Shape({2, 2, 3}), elements));
  ExpectSparse(Deserialize(grid, DT_FLOAT),
               {Tensor::Of<int64_t>({{0, 0, 0}, {0, 1, 1}, {0, 1, 4}, {1, 0, 0}, {1, 1, 0}}),
                Tensor::Of<float>({3, 1, 2, 3, 3}), Ints({2, 2, 5})});
}

TEST(SerializeSparse, RefusesWhatIsNoSparseTensor) {
  Sparse bad = Input();
  bad.indices = Tensor::Of<int64_t>({{2, 1}, {0, 2}, {2, 0}});
  ExpectOpError(Serialize("SerializeManySparse", bad, DT_STRING), kInvalid,
                "sparse_indices[1,0] must be in [2, 3), in the order of rows, got 0");
  bad.indices = Tensor::Of<int64_t>({{3, 1}, {3, 2}, {3, 0}});
  ExpectOpError(Serialize("SerializeManySparse", bad, DT_STRING), kInvalid,
                "sparse_indices[0,0] must be in [0, 3)");
  ExpectOpError(
      Serialize("SerializeManySparse",
                {Tensor::Of<int64_t>({{3}}), Tensor::Vector<double>({0.5}), Ints({9})}, DT_STRING),
      kInvalid, "sparse_shape must have at least 2 dimensions, got 1");
  bad = Input();
  bad.shape = Ints({-1, 4});
  ExpectOpError(Serialize("SerializeManySparse", bad, DT_STRING), kInvalid,
                "sparse_shape[0] must be >= 0, got -1");
  bad.shape = Ints({3});
  ExpectOpError(Serialize("SerializeSparse", bad, DT_STRING), kInvalid,
                "sparse_indices must have one column for each");
  EXPECT_SHAPE("SerializeManySparse", {}, {"[?,2]", "[?]", Ints({7, 2})}, "[7,3]");
  EXPECT_SHAPE("SerializeSparse", {}, {"[?,2]", "[?]", "[?]"}, "[3]");
}

TEST(DeserializeSparse, RefusesBytesThatAreNoSparseTensor) {
  const std::string indices = Proto(Tensor::Of<int64_t>({{1}})),
                    values = Proto(Tensor::Of<float>({2})), shape = Proto(Ints({4}));
  const auto call = [](std::vector<std::string> elements) {
    return Deserialize(Tensor::Vector<std::string>(elements), DT_FLOAT);
  };
  ExpectSparse(call({indices, values, shape}),
               {Tensor::Of<int64_t>({{1}}), Tensor::Of<float>({2}), Ints({4})});
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"\xff", values, shape}, "sparse tensor 0: indices must be a serialized TensorProto, got 1"},
      {{indices, "", shape}, "sparse tensor 0: values"},
      {{values, values, shape}, "indices must be an int64 matrix, got float of shape [1]"},
      {{indices, shape, shape}, "values must be a vector of float, got int64 of shape [1]"},
      {{indices, values, values}, "shape must be an int64 vector, got float of shape [1]"},
      {{indices, Proto(Tensor::Of<float>({2, 3})), shape},
       "indices must have shape [2,1] for these values and this shape, got [1,1]"},
      {{indices, values, Proto(Ints({4, 4}))},
       "indices must have shape [1,2] for these values and this shape, got [1,1]"},
      {{indices, values}, "serialized_sparse must have shape [...,3], got [2]"},
  };
  for (const auto& [elements, text] : cases) ExpectOpError(call(elements), kInvalid, text);
  // One value for a thousand million elements.
  tensorflow::TensorProto huge;
  huge.set_dtype(tensorflow::DT_FLOAT);
  huge.mutable_tensor_shape()->add_dim()->set_size(1000000000);
  huge.add_float_val(1);
  ExpectOpError(call({indices, huge.SerializeAsString(), shape}), kInvalid,
                "values must have a value for each of its elements, got shape [1000000000]");
  // Ranks that differ, and none at all.
  ASSERT_OK_AND_ASSIGN(
      const Tensor two,
      Tensor::FromValues<std::string>(
          Shape({2, 3}),
          std::vector<std::string>{indices, values, shape, Proto(Tensor::Of<int64_t>({{1, 1}})),
                                   values, Proto(Ints({4, 4}))}));
  ExpectOpError(Deserialize(two, DT_FLOAT), kInvalid,
                "sparse tensor 1: rank must be 1 as of those before it, got 2");
  ExpectOpError(Deserialize(TensorOf<std::string>({0, 3}, {}), DT_FLOAT), kInvalid,
                "serialized_sparse must have at least one sparse tensor, got shape [0,3]");
  ExpectOpError(OpCall("DeserializeManySparse")
                    .Input(TensorOf<std::string>({3}, {indices, values, shape}))
                    .Attr("dtype", DT_FLOAT),
                kInvalid, "serialized_sparse must have shape [n,3], got [3]");
  Variant variant;
  variant.tensors.resize(2);
  ExpectOpError(Deserialize(TensorOf<Variant>({3}, {variant, variant, variant}), DT_FLOAT),
                kInvalid, "indices must be a variant of one tensor, got one of 2");
  EXPECT_SHAPE("DeserializeSparse", {}, {"[?,3]"}, "[?,?];[?];[?]");
}

}  // namespace
}  // namespace millrace
