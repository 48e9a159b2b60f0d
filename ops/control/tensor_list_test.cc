// SPDX-License-Identifier: Apache-2.0
#include "ops/control/tensor_list.h"

#include <string>
#include <vector>

#include "core/coding.h"
#include "core/resource_handle.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/math/add_n.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "proto/tensor.pb.h"
#include "runtime/testing/op_test.h"

// covers: values: tensor arrays, tensor lists and stacks: read twice, written twice, out of range,
//   of another dtype, closed are refused in TensorFlow's words; what they hold ends with the step
//   or its last handle (buffers counted); sums of gradients do not depend on the order of writes

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Int(int32_t value) { return Tensor::Scalar(value); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Longs(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }
const Tensor kAny = Int(-1);  // an element_shape that says nothing

OpCall Empty(const Tensor& element_shape = kAny, int32_t max = -1, DType dtype = DT_FLOAT) {
  return OpCall("EmptyTensorList")
      .Input(element_shape)
      .Input(Int(max))
      .Attr("element_dtype", dtype);
}
OpCall Reserve(const Tensor& element_shape, int32_t n, DType dtype = DT_FLOAT) {
  return OpCall("TensorListReserve")
      .Input(element_shape)
      .Input(Int(n))
      .Attr("element_dtype", dtype);
}
OpCall Push(const Tensor& list, const Tensor& value) {
  return OpCall("TensorListPushBack").Input(list).Input(value);
}
OpCall Pop(const Tensor& list, const Tensor& element_shape = kAny, DType dtype = DT_FLOAT) {
  return OpCall("TensorListPopBack").Input(list).Input(element_shape).Attr("element_dtype", dtype);
}
OpCall Set(const Tensor& list, int32_t index, const Tensor& value) {
  return OpCall("TensorListSetItem").Input(list).Input(Int(index)).Input(value);
}
OpCall Get(const Tensor& list, int32_t index, const Tensor& element_shape = kAny,
           DType dtype = DT_FLOAT) {
  return OpCall("TensorListGetItem")
      .Input(list)
      .Input(Int(index))
      .Input(element_shape)
      .Attr("element_dtype", dtype);
}
OpCall Stack(const Tensor& list, const Tensor& element_shape = kAny, int64_t n = -1,
             DType dtype = DT_FLOAT) {
  return OpCall("TensorListStack")
      .Input(list)
      .Input(element_shape)
      .Attr("element_dtype", dtype)
      .Attr("num_elements", n);
}
OpCall FromTensor(const Tensor& tensor, const Tensor& element_shape = kAny) {
  return OpCall("TensorListFromTensor").Input(tensor).Input(element_shape);
}
OpCall Length(const Tensor& list) { return OpCall("TensorListLength").Input(list); }
OpCall Resize(const Tensor& list, int32_t size) {
  return OpCall("TensorListResize").Input(list).Input(Int(size));
}
OpCall Gather(const Tensor& list, const Tensor& indices, const Tensor& element_shape = kAny) {
  return OpCall("TensorListGather")
      .Input(list)
      .Input(indices)
      .Input(element_shape)
      .Attr("element_dtype", DT_FLOAT);
}
OpCall Concat(const Tensor& list, const Tensor& element_shape, const Tensor& leading_dims) {
  return OpCall("TensorListConcatV2")
      .Input(list)
      .Input(element_shape)
      .Input(leading_dims)
      .Attr("element_dtype", DT_FLOAT);
}

const Tensor kOne = TensorOf<float>({2}, {1, 2});
const Tensor kTwo = TensorOf<float>({2}, {3, 4});
const Tensor kRows = TensorOf<float>({2, 2}, {1, 2, 3, 4});

Tensor ListOfTwo() { return RunOp1(FromTensor(kRows)); }

TEST(TensorList, GrowsAndShrinksAtItsEnd) {
  Tensor list = RunOp1(Empty());
  ExpectTensorEqual(RunOp1(Length(list)), Int(0));
  const Tensor one = RunOp1(Push(list, kOne));
  const Tensor two = RunOp1(Push(one, kTwo));
  // A list is a value: it is not changed by what is made of it.
  ExpectTensorEqual(RunOp1(Length(one)), Int(1));
  ExpectTensorEqual(RunOp1(Stack(two)), kRows);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> popped, RunOp(Pop(two)));
  ExpectTensorEqual(popped[1], kTwo);
  ExpectTensorEqual(RunOp1(Stack(popped[0])), TensorOf<float>({1, 2}, {1, 2}));
  ExpectTensorEqual(RunOp1(Length(two)), Int(2));
}

TEST(TensorList, SetsAndGetsItems) {
  const Tensor list = RunOp1(Set(ListOfTwo(), 0, TensorOf<float>({2}, {5, 6})));
  ExpectTensorEqual(RunOp1(Get(list, 0)), TensorOf<float>({2}, {5, 6}));
  ExpectTensorEqual(RunOp1(Get(list, 1)), kTwo);
}

TEST(TensorList, TakesWhatWasNotSetForZerosWhereItKnowsTheShape) {
  const Tensor reserved = RunOp1(Reserve(Ints({2}), 2));
  ExpectTensorEqual(RunOp1(Get(reserved, 1)), TensorOf<float>({2}, {0, 0}));
  ExpectTensorEqual(RunOp1(Stack(RunOp1(Set(reserved, 1, kOne)))),
                    TensorOf<float>({2, 2}, {0, 0, 1, 2}));
  const Tensor unknown = RunOp1(Reserve(kAny, 2));
  ExpectTensorEqual(RunOp1(Get(unknown, 0, Ints({1}))), TensorOf<float>({1}, {0}));
  ExpectTensorEqual(RunOp1(Get(RunOp1(Set(unknown, 1, kOne)), 0)), TensorOf<float>({2}, {0, 0}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> popped, RunOp(Pop(unknown, Ints({1}))));
  ExpectTensorEqual(popped[1], TensorOf<float>({1}, {0}));
  ExpectTensorEqual(RunOp1(Stack(RunOp1(Reserve(Ints({1}), 2, DT_STRING)), kAny, -1, DT_STRING)),
                    TensorOf<std::string>({2, 1}, {"", ""}));
}

TEST(TensorList, Resizes) {
  ExpectTensorEqual(RunOp1(Stack(RunOp1(Resize(ListOfTwo(), 1)))), TensorOf<float>({1, 2}, {1, 2}));
  ExpectTensorEqual(RunOp1(Stack(RunOp1(Resize(ListOfTwo(), 3)))),
                    TensorOf<float>({3, 2}, {1, 2, 3, 4, 0, 0}));
}

TEST(TensorList, GathersAndScatters) {
  ExpectTensorEqual(RunOp1(Gather(ListOfTwo(), Ints({1, 1, 0}))),
                    TensorOf<float>({3, 2}, {3, 4, 3, 4, 1, 2}));
  ExpectTensorEqual(RunOp1(Gather(ListOfTwo(), Ints({}), Ints({2}))), TensorOf<float>({0, 2}, {}));
  const OpCall scatter =
      OpCall("TensorListScatterV2").Input(kRows).Input(Ints({2, 0})).Input(kAny).Input(Int(4));
  ExpectTensorEqual(RunOp1(Stack(RunOp1(scatter))),
                    TensorOf<float>({4, 2}, {3, 4, 0, 0, 1, 2, 0, 0}));
  const OpCall first = OpCall("TensorListScatter").Input(kRows).Input(Ints({2, 0})).Input(kAny);
  ExpectTensorEqual(RunOp1(Length(RunOp1(first))), Int(3));
  const OpCall into = OpCall("TensorListScatterIntoExistingList")
                          .Input(ListOfTwo())
                          .Input(TensorOf<float>({2, 2}, {5, 6, 7, 8}))
                          .Input(Ints({2, 0}));
  ExpectTensorEqual(RunOp1(Stack(RunOp1(into))), TensorOf<float>({3, 2}, {7, 8, 3, 4, 5, 6}));
}

TEST(TensorList, SplitsAndConcatenates) {
  const Tensor rows = TensorOf<float>({3, 1}, {1, 2, 3});
  const Tensor list =
      RunOp1(OpCall("TensorListSplit").Input(rows).Input(Ints({-1, 1})).Input(Longs({2, 0, 1})));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(Concat(list, kAny, Longs({}))));
  ExpectTensorEqual(out[0], rows);
  ExpectTensorEqual(out[1], Longs({2, 0, 1}));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> old,
      RunOp(OpCall("TensorListConcat").Input(list).Attr("element_dtype", DT_FLOAT)));
  ExpectTensorEqual(old[0], rows);
  // What was not set has as many rows as leading_dims say, or as the others.
  const Tensor gap = RunOp1(Set(RunOp1(Reserve(kAny, 2)), 0, rows));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> told,
                       RunOp(Concat(gap, Ints({-1, 1}), Longs({9, 1}))));
  ExpectTensorEqual(told[0], TensorOf<float>({4, 1}, {1, 2, 3, 0}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> untold, RunOp(Concat(gap, kAny, Longs({}))));
  ExpectTensorEqual(untold[1], Longs({3, 3}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none,
                       RunOp(Concat(RunOp1(Empty()), Ints({-1, 1}), Longs({}))));
  ExpectTensorEqual(none[0], TensorOf<float>({0, 1}, {}));
}

TEST(TensorList, TellsItsElementShape) {
  const auto shape = [](const Tensor& list, DType type) {
    return RunOp1(OpCall("TensorListElementShape").Input(list).Attr("shape_type", type));
  };
  ExpectTensorEqual(shape(RunOp1(Empty(Ints({-1, 3}))), DT_INT32), Ints({-1, 3}));
  ExpectTensorEqual(shape(RunOp1(Empty(Longs({-1, 3}))), DT_INT64), Longs({-1, 3}));
  ExpectTensorEqual(shape(RunOp1(Empty()), DT_INT32), Int(-1));
  ExpectTensorEqual(shape(RunOp1(Empty(Ints({}))), DT_INT32), Ints({}));
}

TEST(TensorList, WorksOnVectorsOfLists) {
  const Tensor shape = Ints({2});
  const Tensor a = RunOp1(FromTensor(kRows, shape));
  const Tensor b = RunOp1(Push(RunOp1(Empty(shape)), kOne));
  const Tensor both =
      RunOp1(OpCall("TensorListConcatLists").Input(a).Input(b).Attr("element_dtype", DT_FLOAT));
  ExpectTensorEqual(RunOp1(Stack(both)), TensorOf<float>({3, 2}, {1, 2, 3, 4, 1, 2}));
  ASSERT_OK_AND_ASSIGN(Tensor lists, Tensor::Allocate(DT_VARIANT, Shape{2}));
  lists.mutable_flat<Variant>()[0] = a.scalar<Variant>();
  lists.mutable_flat<Variant>()[1] = b.scalar<Variant>();
  const Tensor pushed = RunOp1(OpCall("TensorListPushBackBatch").Input(lists).Input(kRows));
  ExpectTensorEqual(RunOp1(Stack(Tensor::Scalar(pushed.flat<Variant>()[1]))),
                    TensorOf<float>({2, 2}, {1, 2, 3, 4}));
  ExpectOpError(OpCall("TensorListPushBackBatch").Input(lists).Input(kOne), kInvalid,
                "Tried to append a tensor with incompatible shape to a list. Op element shape: [] "
                "list shape: [2]");
}

TEST(TensorList, IsAddedUpAndZeroedAsNumbersAre) {
  const Tensor a = ListOfTwo();
  const Tensor b = RunOp1(Set(RunOp1(Reserve(kAny, 2)), 1, kOne));
  const Tensor sum = RunOp1(OpCall("AddN").Inputs({a, b, a}));
  ExpectTensorEqual(RunOp1(Stack(sum)), TensorOf<float>({2, 2}, {2, 4, 7, 10}));
  ExpectTensorEqual(RunOp1(Stack(RunOp1(OpCall("ZerosLike").Input(a)))),
                    TensorOf<float>({2, 2}, {0, 0, 0, 0}));
  ExpectOpError(OpCall("AddN").Inputs({a, RunOp1(Empty())}), kInvalid,
                "Trying to add two lists of tensors with different lengths. One is 2 and the other "
                "is 0");
  ExpectOpError(OpCall("AddN").Inputs({a, RunOp1(Reserve(kAny, 2, DT_INT32))}), kInvalid,
                "Trying to add two lists of tensors of different dtypes. One is float and the "
                "other is int32");
}

TEST(TensorList, HoldsLists) {
  Tensor outer = RunOp1(Push(RunOp1(Empty(kAny, -1, DT_VARIANT)), ListOfTwo()));
  const Tensor sum = RunOp1(OpCall("AddN").Inputs({outer, outer}));
  const Tensor inner = RunOp1(Get(sum, 0, kAny, DT_VARIANT));
  ExpectTensorEqual(RunOp1(Stack(inner)), TensorOf<float>({2, 2}, {2, 4, 6, 8}));
  // As deep as messages hold them, and no deeper: the end of one takes a stack frame per level.
  Status status;
  int depth = 1;
  while (status.ok() && depth < 100) {
    StatusOr<std::vector<Tensor>> deeper = RunOp(Push(RunOp1(Empty(kAny, -1, DT_VARIANT)), outer));
    status = deeper.status();
    if (status.ok()) outer = (*deeper)[0];
    ++depth;
  }
  EXPECT_STATUS(status, kInvalid, "lists must be nested at most 32 deep, got one more");
  EXPECT_EQ(depth, 32);
}

TEST(TensorList, RefusesWhatIsNotLegal) {
  const Tensor list = ListOfTwo();
  ExpectOpError(Get(list, 2), kInvalid, "Trying to access element 2 in a list with 2 elements.");
  ExpectOpError(Get(list, -1), kInvalid, "Trying to access element -1 in a list with 2 elements.");
  ExpectOpError(Get(list, 0, kAny, DT_INT32), kInvalid,
                "Invalid data types; op elements int32 but list elements float");
  ExpectOpError(Get(RunOp1(Reserve(kAny, 1)), 0), kInvalid,
                "Trying to read an uninitialized tensor but element_shape is not fully defined: "
                "<unknown> and no list element is set.");
  ExpectOpError(Set(list, 2, kOne), kInvalid,
                "Trying to modify element 2 in a list with 2 elements.");
  ExpectOpError(Set(list, -1, kOne), kInvalid, "Trying to modify element -1");
  ExpectOpError(Set(RunOp1(Reserve(Ints({3}), 1)), 0, kOne), kInvalid,
                "Tried to set a tensor with incompatible shape at a list index. Item element "
                "shape: [2] list shape: [3]");
  ExpectOpError(Push(RunOp1(Empty(Ints({3}))), kOne), kInvalid,
                "Tried to append a tensor with incompatible shape to a list. Op element shape: [2] "
                "list shape: [3]");
  ExpectOpError(Push(list, Int(1)), kInvalid,
                "Invalid data types; op elements int32 but list elements float");
  ExpectOpError(Push(RunOp1(Empty(kAny, 0)), kOne), kInvalid,
                "Tried to push item into a full list list size: 0 max_num_elements: 0");
  ExpectOpError(Pop(RunOp1(Empty())), kInvalid, "Trying to pop from an empty list.");
  ExpectOpError(Stack(list, kAny, 3), kInvalid,
                "Operation expected a list with 3 elements but got a list with 2 elements.");
  ExpectOpError(Stack(RunOp1(Empty())), kInvalid,
                "Tried to stack elements of an empty list with non-fully-defined element_shape");
  ExpectOpError(Stack(RunOp1(Reserve(kAny, 1))), kInvalid,
                "Tried to stack list which only contains uninitialized tensors");
  ExpectOpError(Stack(list, Ints({3})), kInvalid, "[3]");
  ExpectOpError(Gather(list, Ints({2})), kInvalid,
                "Index 2 out o range; list only has 2 elements.");
  ExpectOpError(Gather(list, Ints({-1})), kInvalid, "Index -1 out o range");
  ExpectOpError(FromTensor(kRows, Ints({3})), kInvalid, "Specified a list with shape [3]");
  ExpectOpError(Resize(list, -1), kInvalid,
                "TensorListSlice expects size to be non-negative. Got: -1");
  ExpectOpError(Empty(Int(2)), kInvalid,
                "The only valid scalar shape tensor is the fully unknown shape specified as -1");
  ExpectOpError(Empty(Ints({-2})), kInvalid, "-2");
  ExpectOpError(
      OpCall("TensorListScatterV2").Input(kRows).Input(Ints({0, -1})).Input(kAny).Input(Int(4)),
      kInvalid, "Indices in TensorListScatter must all be non-negative, got -1");
  ExpectOpError(
      OpCall("TensorListScatterV2").Input(kRows).Input(Ints({0, 4})).Input(kAny).Input(Int(4)),
      kInvalid, "TensorListScatter: Trying to scatter at index 4 in list with size 4");
  ExpectOpError(OpCall("TensorListSplit").Input(kRows).Input(kAny).Input(Longs({1})), kInvalid,
                "Unused values in tensor. Length of tensor: 2 Values used: 1");
  ExpectOpError(OpCall("TensorListSplit").Input(kRows).Input(kAny).Input(Longs({3})), kInvalid,
                "from tensor with length 2");
}

TEST(TensorList, RefusesSizesThatOnlyAnAttackHas) {
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  ExpectOpError(Reserve(kAny, 2147483647), kExhausted,
                "a list must have at most 16777216 elements, got 2147483647");
  ExpectOpError(Reserve(kAny, -1), kInvalid, "a list's size must be >= 0, got -1");
  ExpectOpError(Resize(ListOfTwo(), 2147483647), kExhausted, "a list must have at most");
  const OpCall scatter = OpCall("TensorListScatter")
                             .Input(TensorOf<float>({1, 1}, {1}))
                             .Input(Ints({2147483647}))
                             .Input(kAny);
  ExpectOpError(scatter, kExhausted, "a list must have at most");
  ExpectOpError(
      Concat(RunOp1(Reserve(Ints({-1, 1}), 2)), kAny, Longs({int64_t{1} << 40, int64_t{1} << 40})),
      kInvalid, "the elements must have at most");
}

TEST(TensorList, RefusesVariantsThatAreNoLists) {
  Variant variant;
  for (const auto& [type, metadata] : std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {"tensorflow::data::Optional", ""},
           {"tensorflow::TensorList", ""},
           {"tensorflow::TensorList", std::string("\xff\xff\xff\xff\x0f", 5)},
           {"tensorflow::TensorList", std::string("\x01\x07\x01\x01", 4)},
           {"tensorflow::TensorList", std::string("\x00\x63\x01", 3)},
           {"tensorflow::TensorList", std::string("\x00\x01\x01\x12\x7f", 5)}}) {
    variant.type_name = type;
    variant.metadata = metadata;
    ExpectOpError(Length(Tensor::Scalar(variant)), kInvalid, "Input handle is not a list. Saw: '");
  }
  // A list of floats with an int in it.
  variant = RunOp1(Empty()).scalar<Variant>();
  variant.tensors.push_back(Int(1));
  ExpectOpError(Get(Tensor::Scalar(variant), 0), kInvalid,
                "Input handle is not a list of float. Saw an element of type int32");
  ExpectOpError(Stack(Tensor::Scalar(variant)), kInvalid, "Saw an element of type int32");
}

TEST(TensorList, ReadsWhatTensorFlowWrites) {
  // Elements 0 and 2 of three are not set; dtype, no maximum, element shape [?,2].
  Variant variant;
  variant.type_name = "tensorflow::TensorList";
  PutVarint64(&variant.metadata, 2);
  PutVarint64(&variant.metadata, 0);
  PutVarint64(&variant.metadata, 2);
  PutVarint64(&variant.metadata, DT_FLOAT);
  PutVarint64(&variant.metadata, static_cast<uint64_t>(-1));
  tensorflow::TensorShapeProto shape;
  shape.add_dim()->set_size(-1);
  shape.add_dim()->set_size(2);
  variant.metadata += shape.SerializeAsString();
  variant.tensors = {kRows};
  const Tensor list = Tensor::Scalar(variant);
  ExpectTensorEqual(RunOp1(Length(list)), Int(3));
  ExpectTensorEqual(RunOp1(Get(list, 1)), kRows);
  ExpectTensorEqual(RunOp1(Stack(RunOp1(Set(list, 0, kRows)))),
                    TensorOf<float>({3, 2, 2}, {1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0, 0}));
  ExpectOpError(Push(list, kOne), kInvalid, "list shape: [?,2]");
}

TEST(TensorList, TravelsAsAMessage) {
  const Tensor list = RunOp1(Set(RunOp1(Reserve(Ints({-1}), 2)), 1, kOne));
  tensorflow::TensorProto proto;
  ASSERT_OK(TensorToProto(list, &proto));
  ASSERT_OK_AND_ASSIGN(const Tensor back, TensorFromProto(proto));
  ExpectTensorEqual(RunOp1(Stack(back)), TensorOf<float>({2, 2}, {0, 0, 1, 2}));
  ExpectOpError(Push(back, kRows), kInvalid, "list shape: [?]");
  // The form of what is known is TensorFlow's.
  absl::string_view metadata = back.scalar<Variant>().metadata;
  uint64_t gaps, dtype, max;
  ASSERT_TRUE(GetVarint64(&metadata, &gaps) && GetVarint64(&metadata, &dtype) &&
              GetVarint64(&metadata, &max));
  EXPECT_EQ(dtype, static_cast<uint64_t>(DT_FLOAT));
  EXPECT_EQ(static_cast<int32_t>(max), -1);
  tensorflow::TensorShapeProto shape;
  ASSERT_TRUE(shape.ParseFromString(std::string(metadata)));
  ASSERT_EQ(shape.dim_size(), 1);
  EXPECT_EQ(shape.dim(0).size(), -1);
}

TEST(TensorList, InfersWhatItCan) {
  const ShapeInput list(DT_FLOAT, "[2,?]");
  EXPECT_SHAPE("EmptyTensorList", {{"element_dtype", DT_FLOAT}}, {"[?]", "[]"}, "[]");
  EXPECT_SHAPE_ERROR("EmptyTensorList", {{"element_dtype", DT_FLOAT}}, {"[?]", "[1]"},
                     "max_num_elements must have rank 0");
  const OpAttr dtype = {"element_dtype", DT_FLOAT};
  EXPECT_SHAPE("TensorListGetItem", {dtype}, {"[]", "[]", Ints({-1, 3})}, "[?,3]");
  EXPECT_SHAPE("TensorListGetItem", {dtype}, {"[]", "[]", kAny}, "<unknown>");
  EXPECT_SHAPE("TensorListStack", {dtype, {"num_elements", 4}}, {"[]", Ints({-1, 3})}, "[4,?,3]");
  EXPECT_SHAPE("TensorListGather", {dtype}, {"[]", "[5]", Ints({3})}, "[5,3]");
  EXPECT_SHAPE("TensorListConcatV2", {dtype}, {"[]", Ints({-1, 3}), "[?]"}, "[?,3];[?]");
  EXPECT_SHAPE_ERROR("TensorListConcatV2", {dtype}, {"[]", Ints({}), "[?]"},
                     "Concat requires elements to be at least vectors");
  EXPECT_SHAPE_ERROR("TensorListFromTensor", {dtype}, {"[2,3]", Ints({4})},
                     "Specified a list with shape [4]");
  EXPECT_SHAPE("TensorListLength", {}, {"[]"}, "[]");
}

// What is known of a list's elements goes along with it.
TEST(TensorList, ElementShapesAreKnownWhileTheGraphIsBuilt) {
  Scope s;
  const Output any = Const(s, -1);
  Output list = EmptyTensorList(s, Const<int32_t>(s, {-1, 3}), any, DT_FLOAT);
  list = TensorListPushBack(s, list, TestInput(s, DT_FLOAT, {2, 3}));
  EXPECT_EQ(s.shape(TensorListStack(s, list, any, DT_FLOAT)).ToString(), "[?,?,3]");
  TensorListPushBack(s, list, TestInput(s, DT_FLOAT, {2, 4}));
  EXPECT_STATUS(s.status(), kInvalid, "the list's element shape [?,3] must allow what is put into");
}

TEST(TensorList, GradientsMatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 2}, {0.5, -1.5, 2, 0.3});
  const Tensor y = TensorOf<double>({2}, {0.7, -0.2});
  const auto check = [&](const BuildOutput& build) { ExpectGradientsMatch(build, {x, y}); };
  const auto any = [](const Scope& s) { return Const(s, -1); };
  check([&](const Scope& s, const std::vector<Output>& in) {
    Output list = TensorListFromTensor(s, in[0], any(s));
    list = TensorListPushBack(s, list, in[1]);
    list = TensorListSetItem(s, list, Const(s, 0), Square(s, in[1]));
    return Square(s, TensorListStack(s, list, any(s), DT_DOUBLE));
  });
  check([&](const Scope& s, const std::vector<Output>& in) {
    const Output list = TensorListPushBack(s, TensorListFromTensor(s, in[0], any(s)), in[1]);
    const auto popped = TensorListPopBack(s, list, any(s), DT_DOUBLE);
    const Output item = TensorListGetItem(s, popped.list, Const(s, 1), any(s), DT_DOUBLE);
    return Mul(s, popped.tensor, Square(s, item));
  });
  check([&](const Scope& s, const std::vector<Output>& in) {
    Output list = TensorListScatterV2(s, in[0], Const<int32_t>(s, {3, 0}), any(s), Const(s, 5));
    list = TensorListScatterIntoExistingList(s, list, Square(s, in[0]), Const<int32_t>(s, {0, 1}));
    list = TensorListResize(s, list, Const(s, 4));
    return Square(s, TensorListGather(s, list, Const<int32_t>(s, {0, 3, 0}), any(s), DT_DOUBLE));
  });
  check([&](const Scope& s, const std::vector<Output>& in) {
    const Output list =
        TensorListSplit(s, in[0], Const<int32_t>(s, {-1, 2}), Const<int64_t>(s, {0, 2}));
    const Output none = Const<int64_t>(s, std::initializer_list<int64_t>{});
    return Mul(s, Square(s, TensorListConcatV2(s, list, any(s), none, DT_DOUBLE).tensor), in[1]);
  });
  check([&](const Scope& s, const std::vector<Output>& in) {
    // The list is used twice: its gradients are added up.
    const Output list = TensorListScatter(s, in[0], Const<int32_t>(s, {1, 0}), any(s));
    const Output stacked = TensorListStack(s, list, any(s), DT_DOUBLE);
    const Output joined = TensorListConcat(s, list, DT_DOUBLE).tensor;
    return Mul(s, Square(s, stacked), Reshape(s, joined, Const<int32_t>(s, {2, 2})));
  });
}

}  // namespace
}  // namespace millrace
