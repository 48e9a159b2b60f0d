// SPDX-License-Identifier: Apache-2.0
#include "ops/array/constant.h"

#include <complex>
#include <limits>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/node_body.h"
#include "graph/place/partition.h"
#include "graph/place/placer.h"
#include "graph/prune.h"
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "proto/graph.pb.h"
#include "runtime/constant_evaluator.h"
#include "runtime/plan.h"
#include "runtime/testing/op_test.h"

// covers: graphs: a constant's bytes are copied once from GraphDef to plan, attrs validated once
//   (both counted)
// covers: graphs: a session copies no constant of a Scope's graph

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

TEST(Const, GivesItsValue) {
  const Tensor value = TensorOf<std::string>({2, 1}, {"a", ""});
  ExpectTensorEqual(RunOp1(OpCall("Const").Attr("dtype", DT_STRING).Attr("value", value)), value);
  ExpectOpError(OpCall("Const").Attr("dtype", DT_FLOAT).Attr("value", value), kInvalid,
                "value must have dtype float of attr dtype, got string");
}

TEST(Const, BytesAreCopiedOnceFromTheGraphDefToThePlans) {
  Scope scope;
  constexpr int64_t kCount = 1 << 16;
  ASSERT_OK_AND_ASSIGN(const Tensor value, Tensor::Zeros(DT_FLOAT, Shape::Vector(kCount)));
  const Output large = Const(scope.WithName("large"), value);
  NodeBuilder(scope.WithName("out"), "Identity").Input(large).Finish();
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, scope.ToGraphDef());

  const int64_t bytes = ConstantBytesCopiedForTesting();
  const int64_t validations = AttrValidationsForTesting();
  Graph graph;
  ASSERT_OK(ImportGraphDef(def, {}, &graph));
  const Tensor kept = *GetAttr<Tensor>(*graph.FindNode("large"), "value");
  OpTestDevice device;
  const KernelRegistrySupport kernels;
  // Two signatures: each has a plan of its own, and the constant is the same.
  for (const char* target : {"out", "large"}) {
    ASSERT_OK_AND_ASSIGN(RunGraph run, BuildRunGraph(graph, {{}, {}, {target}}));
    ASSERT_OK(PlaceGraph(run.graph.get(), {{device.device()->name, "CPU", 1}}, &kernels, {}));
    ASSERT_OK_AND_ASSIGN(const GraphPartitions parts, PartitionGraph(std::move(run.graph)));
    ASSERT_OK_AND_ASSIGN(const auto plan,
                         Plan::Build(*parts.begin()->second, device.device(), nullptr));
    EXPECT_FALSE(kept.BufferIsUnique());
  }
  EXPECT_EQ(ConstantBytesCopiedForTesting() - bytes, kCount * 4);
  EXPECT_EQ(AttrValidationsForTesting() - validations, 2) << "one Const, one Identity";
}

TEST(Const, ALargeTensorIsSharedWithTheGraphUntilItsOwnerWritesToIt) {
  Scope scope;
  Tensor value = *Tensor::Zeros(DT_FLOAT, Shape::Vector(1 << 12));
  const int64_t bytes = ConstantBytesCopiedForTesting();
  const Output large = Const(scope.WithName("large"), value);
  EXPECT_EQ(ConstantBytesCopiedForTesting(), bytes);
  EXPECT_EQ(large.node()->body()->value()->raw_data(), value.raw_data());
  value.mutable_flat<float>()[0] = 1;
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> results, EvaluateGraph(scope, {}, {large}));
  EXPECT_EQ(results[0].flat<float>()[0], 0);
  // A message has the bytes.
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, scope.ToGraphDef());
  tensorflow::AttrValue written;
  SetAttr(results[0], &written);
  EXPECT_EQ(def.node(0).attr().at("value").SerializeAsString(), written.SerializeAsString());
}

TEST(Const, MemoryOfTheCallersAndAFewRowsOfManyAreCopied) {
  std::vector<float> own(1 << 12, 1);
  ASSERT_OK_AND_ASSIGN(
      const Tensor external,
      Tensor::FromBuffer(DT_FLOAT, Shape::Vector(1 << 12),
                         Buffer::External(own.data(), own.size() * sizeof(float), [] {}), 0));
  ASSERT_OK_AND_ASSIGN(const Tensor many, Tensor::Zeros(DT_FLOAT, ShapeOf({16, 1024})));
  const Tensor few = many.Rows(2, 3);
  for (const Tensor& value : {external, few}) {
    Scope scope;
    const Output constant = Const(scope, value);
    ASSERT_TRUE(constant.valid());
    EXPECT_NE(constant.node()->body()->value()->raw_data(), value.raw_data());
    ExpectTensorEqual(*constant.node()->body()->value(), value);
  }
}

TEST(Const, BuildersMakeScalarsAndVectors) {
  Scope scope;
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> values,
                       EvaluateGraph(scope, {},
                                     {Const(scope, 1.5f), Const(scope, "text"),
                                      Const<int64_t>(scope, {1, 2}), Const(scope, true)}));
  ExpectTensorEqual(values[0], Tensor::Scalar<float>(1.5f));
  ExpectTensorEqual(values[1], Tensor::Scalar("text"));
  ExpectTensorEqual(values[2], TensorOf<int64_t>({2}, {1, 2}));
  ExpectTensorEqual(values[3], Tensor::Scalar<bool>(true));
}

TEST(Fill, RepeatsAScalar) {
  ExpectTensorEqual(RunOp1(OpCall("Fill").Input(Ints({2, 2})).Input(Tensor::Scalar<float>(7))),
                    TensorOf<float>({2, 2}, {7, 7, 7, 7}));
  ExpectTensorEqual(RunOp1(OpCall("Fill").Input(Ints({2})).Input(Tensor::Scalar("x"))),
                    TensorOf<std::string>({2}, {"x", "x"}));
  ExpectTensorEqual(RunOp1(OpCall("Fill")
                               .Input(TensorOf<int64_t>({1}, {3}))
                               .Input(Tensor::Scalar<std::complex<double>>({1, 2}))),
                    TensorOf<std::complex<double>>({3}, {{1, 2}, {1, 2}, {1, 2}}));
  ExpectTensorEqual(RunOp1(OpCall("Fill").Input(Ints({0, 3})).Input(Tensor::Scalar<int8_t>(1))),
                    TensorOf<int8_t>({0, 3}, {}));
  ExpectTensorEqual(RunOp1(OpCall("Fill").Input(Ints({})).Input(Tensor::Scalar<bool>(true))),
                    Tensor::Scalar<bool>(true));
}

TEST(Fill, RefusesBadShapesAndValues) {
  ExpectOpError(OpCall("Fill").Input(Ints({-1})).Input(Tensor::Scalar<float>(7)), kInvalid, "-1");
  ExpectOpError(OpCall("Fill").Input(Ints({1})).Input(TensorOf<float>({1}, {7})), kInvalid,
                "value must be a scalar, got shape [1]");
  ExpectOpError(OpCall("Fill")
                    .Input(Tensor::Vector<int64_t>({int64_t{1} << 40, int64_t{1} << 40}))
                    .Input(Tensor::Scalar<float>(7)),
                kInvalid, "");
  EXPECT_SHAPE("Fill", {}, {Ints({2, 3}), "[]"}, "[2,3]");
  EXPECT_SHAPE("Fill", {}, {"[2]", "[]"}, "[?,?]");
  EXPECT_SHAPE_ERROR("Fill", {}, {Ints({-2}), "[]"}, "-2");
}

TEST(Likes, GiveZerosAndOnesOfTheInputsShape) {
  ExpectTensorEqual(RunOp1(OpCall("ZerosLike").Input(TensorOf<float>({2}, {1, 2}))),
                    TensorOf<float>({2}, {0, 0}));
  ExpectTensorEqual(RunOp1(OpCall("ZerosLike").Input(TensorOf<std::string>({1}, {"a"}))),
                    TensorOf<std::string>({1}, {""}));
  ExpectTensorEqual(RunOp1(OpCall("OnesLike").Input(TensorOf<bool>({2}, {false, true}))),
                    TensorOf<bool>({2}, {true, true}));
  ExpectTensorEqual(RunOp1(OpCall("OnesLike").Input(TensorOf<int16_t>({0}, {}))),
                    TensorOf<int16_t>({0}, {}));
  const Tensor half = RunOp1(OpCall("OnesLike").Input(TensorOf<Half>({1}, {ToHalf(3)})));
  EXPECT_EQ(ToFloat(half.flat<Half>()[0]), 1.0f);
}

OpCall RangeCall(Tensor start, Tensor limit, Tensor delta) {
  return OpCall("Range").Input(std::move(start)).Input(std::move(limit)).Input(std::move(delta));
}
Tensor Int(int32_t v) { return Tensor::Scalar<int32_t>(v); }

TEST(Range, CountsUpAndDown) {
  ExpectTensorEqual(RunOp1(RangeCall(Int(2), Int(9), Int(3))), Ints({2, 5, 8}));
  ExpectTensorEqual(RunOp1(RangeCall(Int(3), Int(0), Int(-2))), Ints({3, 1}));
  ExpectTensorEqual(RunOp1(RangeCall(Int(3), Int(3), Int(1))), Ints({}));
  ExpectTensorEqual(RunOp1(RangeCall(Tensor::Scalar<float>(0), Tensor::Scalar<float>(1),
                                     Tensor::Scalar<float>(0.25f))),
                    TensorOf<float>({4}, {0, 0.25f, 0.5f, 0.75f}));
  const int32_t max = std::numeric_limits<int32_t>::max();
  ExpectTensorEqual(RunOp1(RangeCall(Int(max - 1), Int(max), Int(5))), Ints({max - 1}));
  // Counted in the type: in double 0.3f / 0.1f is above 3.
  EXPECT_EQ(
      RunOp1(RangeCall(Tensor::Scalar(0.0f), Tensor::Scalar(0.3f), Tensor::Scalar(0.1f))).shape(),
      ShapeOf({3}));
  EXPECT_SHAPE("Range", {}, {Int(2), Int(9), Int(3)}, "[3]");
  EXPECT_SHAPE("Range", {}, {"[]", Int(9), Int(3)}, "[?]");
}

TEST(Range, RefusesEndlessAndBackwardRanges) {
  ExpectOpError(RangeCall(Int(0), Int(1), Int(0)), kInvalid, "delta must not be 0, got 0");
  ExpectOpError(RangeCall(Int(1), Int(0), Int(1)), kInvalid, "start 1 must be <= limit 0");
  ExpectOpError(RangeCall(Int(0), Int(1), Int(-1)), kInvalid, "start 0 must be >= limit 1");
  const float inf = std::numeric_limits<float>::infinity();
  ExpectOpError(
      RangeCall(Tensor::Scalar<float>(0), Tensor::Scalar<float>(inf), Tensor::Scalar<float>(1)),
      kInvalid, "must be finite");
  ExpectOpError(RangeCall(Tensor::Scalar<int64_t>(std::numeric_limits<int64_t>::min()),
                          Tensor::Scalar<int64_t>(std::numeric_limits<int64_t>::max()),
                          Tensor::Scalar<int64_t>(1)),
                kInvalid, "the number of elements must be <=");
  ExpectOpError(RangeCall(Ints({0}), Int(1), Int(1)), kInvalid, "start must be a scalar");
}

TEST(FillGradient, AddsUpAllCopies) {
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return Fill(s, Const<int32_t>(s, {2, 3}), in[0]);
      },
      {Tensor::Scalar<double>(2)});
}

}  // namespace
}  // namespace millrace
