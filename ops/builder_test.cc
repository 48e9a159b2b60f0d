// SPDX-License-Identifier: Apache-2.0
//
// Every builder, called once, makes a node that its OpDef describes: as many inputs and outputs, of
// these types, all attrs of the definition and no other, each of the right kind and allowed.
//
// A registered op without a call in kCalls fails the test: add a line when you add an op. Ops
// whose name begins with '_' are emitted by the runtime itself and have no builder.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/function_builder.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "graph/verify.h"
#include "gtest/gtest.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/dynamic_partition.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/indices.h"
#include "ops/array/pad.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/array/reverse.h"
#include "ops/array/slice.h"
#include "ops/array/tile.h"
#include "ops/array/transpose.h"
#include "ops/control/asserts.h"
#include "ops/control/control_flow.h"
#include "ops/control/functional.h"
#include "ops/control/queue.h"
#include "ops/control/stack.h"
#include "ops/control/tensor_array.h"
#include "ops/control/tensor_list.h"
#include "ops/linalg/matmul.h"
#include "ops/linalg/qr.h"
#include "ops/lookup/hash_table.h"
#include "ops/lookup/lookup_table.h"
#include "ops/lookup/table_initializer.h"
#include "ops/math/add_n.h"
#include "ops/math/bucketize.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/math/scan.h"
#include "ops/math/segment.h"
#include "ops/math/select.h"
#include "ops/nn/activations.h"
#include "ops/nn/bias.h"
#include "ops/nn/conv.h"
#include "ops/nn/fused_batch_norm.h"
#include "ops/nn/gru_block.h"
#include "ops/nn/lrn.h"
#include "ops/nn/lstm_block.h"
#include "ops/nn/pool.h"
#include "ops/nn/softmax.h"
#include "ops/nn/top_k.h"
#include "ops/nn/xent.h"
#include "ops/random/random.h"
#include "ops/sparse/sparse.h"
#include "ops/state/state.h"
#include "ops/strings/as_string.h"
#include "ops/strings/base64.h"
#include "ops/strings/files.h"
#include "ops/strings/hash_bucket.h"
#include "ops/strings/regex.h"
#include "ops/strings/serialize_tensor.h"
#include "ops/strings/string_case.h"
#include "ops/strings/string_join.h"
#include "ops/strings/string_split.h"
#include "ops/strings/substr.h"
#include "ops/summary/image_summary.h"
#include "ops/summary/value_summary.h"
#include "ops/training/sync_replicas.h"
#include "ops/training/training.h"
#include "runtime/testing/op_test.h"

// covers: values: every op's signature is TensorFlow 1.15's; every builder makes the node it says

namespace millrace {
namespace {

using S = Scope;
using Outputs = std::vector<Output>;

// Inputs of unknown shape.
Output F(const S& s) { return TestInput(s, DT_FLOAT); }
Output I(const S& s) { return TestInput(s, DT_INT32); }
Output L(const S& s) { return TestInput(s, DT_INT64); }
Output B(const S& s) { return TestInput(s, DT_BOOL); }
Output C(const S& s) { return TestInput(s, DT_COMPLEX64); }
Output Str(const S& s) { return TestInput(s, DT_STRING); }
SparseTensor Sp(const S& s, const Output& values) { return {L(s), values, L(s)}; }
SparseTensor Sp(const S& s) { return Sp(s, F(s)); }
// The name of a function (first, float) -> float.
std::string Fn(const S& s, DType first) {
  return DefineFunction(s, "f", {first, DT_FLOAT},
                        [](const S&, const Outputs& x) { return Outputs{x[1]}; })
      .name;
}
// A handle and a reference of a float variable of unknown shape.
Output Handle(const S& s) { return VarHandleOp(s, DT_FLOAT, PartialShape()); }
Output Ref(const S& s) { return VariableV2(s, PartialShape(), DT_FLOAT); }
// A handle or list of some op.
Output Resource(const S& s) { return TestInput(s, DT_RESOURCE); }
Output Names(const S& s) { return VariableV2(s, PartialShape({2}), DT_STRING); }
// A reference to an accumulator.
Output Sums(const S& s) { return ConditionalAccumulator(s, DT_FLOAT, PartialShape()); }
Output List(const S& s) { return TestInput(s, DT_VARIANT); }
Output Longs(const S& s) { return TestInput(s, DT_INT64); }
LSTMOutputs Gates(const S& s) { return {F(s), F(s), F(s), F(s), F(s), F(s), F(s)}; }

// A handle and a reference of a table from strings to int32 numbers.
Output Table(const S& s) { return HashTableV2(s, DT_STRING, DT_INT32); }
Output TableRef(const S& s) { return HashTableV1(s, DT_STRING, DT_INT32); }

struct Call {
  const char* op;
  std::function<void(const S&)> build;
};

#define MR_UNARY(Op)                     \
  {                                      \
    #Op, [](const S& s) { Op(s, F(s)); } \
  }
#define MR_BINARY(Op)                          \
  {                                            \
    #Op, [](const S& s) { Op(s, F(s), F(s)); } \
  }
#define MR_LOGICAL(Op)                         \
  {                                            \
    #Op, [](const S& s) { Op(s, B(s), B(s)); } \
  }
#define MR_REDUCTION(Op)                                            \
  {                                                                 \
    #Op, [](const S& s) { Op(s, F(s), I(s), {.keep_dims = true}); } \
  }

const std::vector<Call>& Calls() {
  static const std::vector<Call>* calls = new std::vector<Call>{
      // activations
      MR_UNARY(Relu),
      MR_UNARY(Relu6),
      MR_UNARY(Elu),
      MR_UNARY(Selu),
      MR_UNARY(Softplus),
      MR_UNARY(Softsign),
      {"LeakyRelu", [](const S& s) { LeakyRelu(s, F(s), {.alpha = 0.5f}); }},
      MR_BINARY(ReluGrad),
      MR_BINARY(Relu6Grad),
      MR_BINARY(EluGrad),
      MR_BINARY(SeluGrad),
      MR_BINARY(SoftplusGrad),
      MR_BINARY(SoftsignGrad),
      {"LeakyReluGrad", [](const S& s) { LeakyReluGrad(s, F(s), F(s), {.alpha = 0.5f}); }},
      // add_n
      {"AddN", [](const S& s) { AddN(s, Outputs{F(s), F(s)}); }},
      {"AccumulateNV2", [](const S& s) { AccumulateNV2(s, Outputs{F(s), F(s)}, {2}); }},
      // asserts
      {"Assert", [](const S& s) { Assert(s, B(s), Outputs{F(s), Str(s)}, {.summarize = 4}); }},
      {"CheckNumerics", [](const S& s) { CheckNumerics(s, F(s), "loss"); }},
      {"Print", [](const S& s) { Print(s, F(s), Outputs{F(s), Str(s)}, {.message = "x"}); }},
      // bias
      {"BiasAdd", [](const S& s) { BiasAdd(s, F(s), F(s), {.data_format = "NCHW"}); }},
      MR_BINARY(BiasAddV1),
      {"BiasAddGrad", [](const S& s) { BiasAddGrad(s, F(s), {.data_format = "NCHW"}); }},
      // bucketize
      {"Bucketize", [](const S& s) { Bucketize(s, F(s), {.boundaries = {1, 2}}); }},
      {"BucketizeWithInputBoundaries",
       [](const S& s) { BucketizeWithInputBoundaries(s, I(s), F(s)); }},
      // cast
      {"Cast", [](const S& s) { Cast(s, F(s), DT_BFLOAT16, {.truncate = true}); }},
      {"Bitcast", [](const S& s) { Bitcast(s, F(s), DT_INT32); }},
      // concat
      {"ConcatV2", [](const S& s) { ConcatV2(s, Outputs{F(s), F(s)}, I(s)); }},
      {"Concat", [](const S& s) { Concat(s, I(s), Outputs{F(s), F(s)}); }},
      {"ConcatOffset", [](const S& s) { ConcatOffset(s, I(s), Outputs{I(s), I(s)}); }},
      {"Pack", [](const S& s) { Pack(s, Outputs{F(s), F(s)}, {.axis = 1}); }},
      {"Unpack", [](const S& s) { Unpack(s, F(s), 2, {.axis = 1}); }},
      {"Split", [](const S& s) { Split(s, I(s), F(s), 2); }},
      {"SplitV", [](const S& s) { SplitV(s, F(s), I(s), I(s), 2); }},
      // constant
      {"Const", [](const S& s) { Const(s, 1.0f); }},
      {"Fill", [](const S& s) { Fill(s, I(s), F(s)); }},
      MR_UNARY(ZerosLike),
      MR_UNARY(OnesLike),
      {"Range", [](const S& s) { Range(s, I(s), I(s), I(s)); }},
      // control_flow
      {"Switch", [](const S& s) { Switch(s, F(s), B(s)); }},
      {"RefSwitch", [](const S& s) { RefSwitch(s, Ref(s), B(s)); }},
      {"Merge", [](const S& s) { Merge(s, Outputs{F(s), F(s)}); }},
      {"RefMerge", [](const S& s) { RefMerge(s, Outputs{Ref(s), Ref(s)}); }},
      {"ControlTrigger", [](const S& s) { ControlTrigger(s); }},
      {"Enter",
       [](const S& s) { Enter(s, F(s), "loop", {.is_constant = true, .parallel_iterations = 2}); }},
      {"RefEnter", [](const S& s) { RefEnter(s, Ref(s), "loop"); }},
      {"Exit", [](const S& s) { Exit(s, Enter(s, F(s), "loop")); }},
      {"RefExit", [](const S& s) { RefExit(s, RefEnter(s, Ref(s), "loop")); }},
      {"NextIteration", [](const S& s) { NextIteration(s, Enter(s, F(s), "loop")); }},
      {"RefNextIteration",
       [](const S& s) { RefNextIteration(s, RefEnter(s, Ref(s), "loop")); }},
      {"LoopCond", [](const S& s) { LoopCond(s, Enter(s, B(s), "loop")); }},
      {"ReverseSequence",
       [](const S& s) { ReverseSequence(s, F(s), Longs(s), 1, {.batch_dim = 2}); }},
      {"LSTMBlockCell",
       [](const S& s) {
         LSTMBlockCell(s, F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s),
                       {.forget_bias = 0, .cell_clip = 1, .use_peephole = true});
       }},
      {"LSTMBlockCellGrad",
       [](const S& s) {
         LSTMBlockCellGrad(s, F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), Gates(s), F(s), F(s),
                           true);
       }},
      {"BlockLSTM",
       [](const S& s) {
         BlockLSTM(s, Longs(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s));
       }},
      {"BlockLSTMV2",
       [](const S& s) {
         BlockLSTMV2(s, Longs(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s),
                     {.cell_clip = 1, .use_peephole = true});
       }},
      {"BlockLSTMGrad",
       [](const S& s) {
         BlockLSTMGrad(s, Longs(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), Gates(s), F(s),
                       F(s), true);
       }},
      {"BlockLSTMGradV2",
       [](const S& s) {
         BlockLSTMGradV2(s, Longs(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), Gates(s),
                         F(s), F(s), true);
       }},
      {"GRUBlockCell",
       [](const S& s) { GRUBlockCell(s, F(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"GRUBlockCellGrad",
       [](const S& s) {
         GRUBlockCellGrad(s, F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s));
       }},
      // stack
      {"Stack", [](const S& s) { StackV1(s, DT_FLOAT, {.stack_name = "s"}); }},
      {"StackV2", [](const S& s) { StackV2(s, I(s), DT_FLOAT, {.stack_name = "s"}); }},
      {"StackPush", [](const S& s) { StackPushV1(s, Names(s), F(s), {.swap_memory = true}); }},
      {"StackPushV2", [](const S& s) { StackPushV2(s, Resource(s), F(s), {.swap_memory = true}); }},
      {"StackPop", [](const S& s) { StackPopV1(s, Names(s), DT_FLOAT); }},
      {"StackPopV2", [](const S& s) { StackPopV2(s, Resource(s), DT_FLOAT); }},
      {"StackClose", [](const S& s) { StackCloseV1(s, Names(s)); }},
      {"StackCloseV2", [](const S& s) { StackCloseV2(s, Resource(s)); }},
      // tensor_array
      {"TensorArray", [](const S& s) { TensorArrayV1(s, I(s), DT_FLOAT, {.dynamic_size = true}); }},
      {"TensorArrayV2", [](const S& s) { TensorArrayV2(s, I(s), DT_FLOAT); }},
      {"TensorArrayV3",
       [](const S& s) {
         TensorArrayV3(s, I(s), DT_FLOAT,
                       {.element_shape = {2},
                        .clear_after_read = false,
                        .identical_element_shapes = true,
                        .tensor_array_name = "a"});
       }},
      {"TensorArrayGrad", [](const S& s) { TensorArrayGradV1(s, Names(s), F(s), "g"); }},
      {"TensorArrayGradV2", [](const S& s) { TensorArrayGradV2(s, Str(s), F(s), "g"); }},
      {"TensorArrayGradV3", [](const S& s) { TensorArrayGradV3(s, Resource(s), F(s), "g"); }},
      {"TensorArrayGradWithShape",
       [](const S& s) { TensorArrayGradWithShape(s, Resource(s), F(s), I(s), "g"); }},
      {"TensorArrayWrite", [](const S& s) { TensorArrayWriteV1(s, Names(s), I(s), F(s), F(s)); }},
      {"TensorArrayWriteV2", [](const S& s) { TensorArrayWriteV2(s, Str(s), I(s), F(s), F(s)); }},
      {"TensorArrayWriteV3",
       [](const S& s) { TensorArrayWriteV3(s, Resource(s), I(s), F(s), F(s)); }},
      {"TensorArrayRead", [](const S& s) { TensorArrayReadV1(s, Names(s), I(s), F(s), DT_FLOAT); }},
      {"TensorArrayReadV2", [](const S& s) { TensorArrayReadV2(s, Str(s), I(s), F(s), DT_FLOAT); }},
      {"TensorArrayReadV3",
       [](const S& s) { TensorArrayReadV3(s, Resource(s), I(s), F(s), DT_FLOAT); }},
      {"TensorArrayGather",
       [](const S& s) { TensorArrayGatherV1(s, Names(s), I(s), F(s), DT_FLOAT); }},
      {"TensorArrayGatherV2",
       [](const S& s) { TensorArrayGatherV2(s, Str(s), I(s), F(s), DT_FLOAT); }},
      {"TensorArrayGatherV3",
       [](const S& s) {
         TensorArrayGatherV3(s, Resource(s), I(s), F(s), DT_FLOAT, {.element_shape = {2}});
       }},
      {"TensorArrayPack", [](const S& s) { TensorArrayPack(s, Names(s), F(s), DT_FLOAT); }},
      {"TensorArrayScatter",
       [](const S& s) { TensorArrayScatterV1(s, Names(s), I(s), F(s), F(s)); }},
      {"TensorArrayScatterV2",
       [](const S& s) { TensorArrayScatterV2(s, Str(s), I(s), F(s), F(s)); }},
      {"TensorArrayScatterV3",
       [](const S& s) { TensorArrayScatterV3(s, Resource(s), I(s), F(s), F(s)); }},
      {"TensorArrayUnpack", [](const S& s) { TensorArrayUnpack(s, Names(s), F(s), F(s)); }},
      {"TensorArrayConcat", [](const S& s) { TensorArrayConcatV1(s, Names(s), F(s), DT_FLOAT); }},
      {"TensorArrayConcatV2", [](const S& s) { TensorArrayConcatV2(s, Str(s), F(s), DT_FLOAT); }},
      {"TensorArrayConcatV3",
       [](const S& s) {
         TensorArrayConcatV3(s, Resource(s), F(s), DT_FLOAT, {.element_shape_except0 = {2}});
       }},
      {"TensorArraySplit",
       [](const S& s) { TensorArraySplitV1(s, Names(s), F(s), Longs(s), F(s)); }},
      {"TensorArraySplitV2",
       [](const S& s) { TensorArraySplitV2(s, Str(s), F(s), Longs(s), F(s)); }},
      {"TensorArraySplitV3",
       [](const S& s) { TensorArraySplitV3(s, Resource(s), F(s), Longs(s), F(s)); }},
      {"TensorArraySize", [](const S& s) { TensorArraySizeV1(s, Names(s), F(s)); }},
      {"TensorArraySizeV2", [](const S& s) { TensorArraySizeV2(s, Str(s), F(s)); }},
      {"TensorArraySizeV3", [](const S& s) { TensorArraySizeV3(s, Resource(s), F(s)); }},
      {"TensorArrayClose", [](const S& s) { TensorArrayCloseV1(s, Names(s)); }},
      {"TensorArrayCloseV2", [](const S& s) { TensorArrayCloseV2(s, Str(s)); }},
      {"TensorArrayCloseV3", [](const S& s) { TensorArrayCloseV3(s, Resource(s)); }},
      // tensor_list
      {"EmptyTensorList", [](const S& s) { EmptyTensorList(s, I(s), I(s), DT_FLOAT); }},
      {"TensorListReserve", [](const S& s) { TensorListReserve(s, I(s), I(s), DT_FLOAT); }},
      {"TensorListFromTensor", [](const S& s) { TensorListFromTensor(s, F(s), I(s)); }},
      {"TensorListSplit", [](const S& s) { TensorListSplit(s, F(s), I(s), Longs(s)); }},
      {"TensorListScatter", [](const S& s) { TensorListScatter(s, F(s), I(s), I(s)); }},
      {"TensorListScatterV2", [](const S& s) { TensorListScatterV2(s, F(s), I(s), I(s), I(s)); }},
      {"TensorListScatterIntoExistingList",
       [](const S& s) { TensorListScatterIntoExistingList(s, List(s), F(s), I(s)); }},
      {"TensorListPushBack", [](const S& s) { TensorListPushBack(s, List(s), F(s)); }},
      {"TensorListPushBackBatch", [](const S& s) { TensorListPushBackBatch(s, List(s), F(s)); }},
      {"TensorListPopBack", [](const S& s) { TensorListPopBack(s, List(s), I(s), DT_FLOAT); }},
      {"TensorListSetItem", [](const S& s) { TensorListSetItem(s, List(s), I(s), F(s)); }},
      {"TensorListGetItem",
       [](const S& s) { TensorListGetItem(s, List(s), I(s), I(s), DT_FLOAT); }},
      {"TensorListResize", [](const S& s) { TensorListResize(s, List(s), I(s)); }},
      {"TensorListStack",
       [](const S& s) { TensorListStack(s, List(s), I(s), DT_FLOAT, {.num_elements = 2}); }},
      {"TensorListGather", [](const S& s) { TensorListGather(s, List(s), I(s), I(s), DT_FLOAT); }},
      {"TensorListConcat",
       [](const S& s) { TensorListConcat(s, List(s), DT_FLOAT, {.element_shape = {2}}); }},
      {"TensorListConcatV2",
       [](const S& s) { TensorListConcatV2(s, List(s), I(s), Longs(s), DT_FLOAT); }},
      {"TensorListLength", [](const S& s) { TensorListLength(s, List(s)); }},
      {"TensorListElementShape",
       [](const S& s) { TensorListElementShape(s, List(s), DT_INT64); }},
      {"TensorListConcatLists",
       [](const S& s) { TensorListConcatLists(s, List(s), List(s), DT_FLOAT); }},
      // conv
      {"Conv2D", [](const S& s) { Conv2D(s, F(s), F(s), {.padding = "VALID"}); }},
      {"Conv2DBackpropInput", [](const S& s) { Conv2DBackpropInput(s, I(s), F(s), F(s)); }},
      {"Conv2DBackpropFilter", [](const S& s) { Conv2DBackpropFilter(s, F(s), I(s), F(s)); }},
      // cwise_binary
      MR_BINARY(Add),
      MR_BINARY(AddV2),
      MR_BINARY(Sub),
      MR_BINARY(Mul),
      MR_BINARY(Div),
      MR_BINARY(RealDiv),
      MR_BINARY(FloorDiv),
      {"TruncateDiv", [](const S& s) { TruncateDiv(s, I(s), I(s)); }},
      MR_BINARY(FloorMod),
      MR_BINARY(Mod),
      MR_BINARY(TruncateMod),
      MR_BINARY(Pow),
      MR_BINARY(Maximum),
      MR_BINARY(Minimum),
      MR_BINARY(SquaredDifference),
      MR_BINARY(DivNoNan),
      MR_BINARY(MulNoNan),
      MR_BINARY(Atan2),
      MR_BINARY(Equal),
      MR_BINARY(NotEqual),
      MR_BINARY(Less),
      MR_BINARY(LessEqual),
      MR_BINARY(Greater),
      MR_BINARY(GreaterEqual),
      MR_LOGICAL(LogicalAnd),
      MR_LOGICAL(LogicalOr),
      {"BroadcastTo", [](const S& s) { BroadcastTo(s, F(s), I(s)); }},
      {"BroadcastArgs", [](const S& s) { BroadcastArgs(s, I(s), I(s)); }},
      {"BroadcastGradientArgs", [](const S& s) { BroadcastGradientArgs(s, I(s), I(s)); }},
      // cwise_unary
      MR_UNARY(Abs),
      MR_UNARY(Neg),
      MR_UNARY(Sign),
      MR_UNARY(Square),
      MR_UNARY(Reciprocal),
      MR_UNARY(Inv),
      MR_UNARY(Sqrt),
      MR_UNARY(Rsqrt),
      MR_UNARY(Exp),
      MR_UNARY(Expm1),
      MR_UNARY(Log),
      MR_UNARY(Log1p),
      MR_UNARY(Sigmoid),
      MR_UNARY(Tanh),
      MR_UNARY(Sin),
      MR_UNARY(Cos),
      MR_UNARY(Tan),
      MR_UNARY(Asin),
      MR_UNARY(Acos),
      MR_UNARY(Atan),
      MR_UNARY(Sinh),
      MR_UNARY(Cosh),
      MR_UNARY(Asinh),
      MR_UNARY(Acosh),
      MR_UNARY(Atanh),
      MR_UNARY(Erf),
      MR_UNARY(Erfc),
      MR_UNARY(Floor),
      MR_UNARY(Ceil),
      MR_UNARY(Round),
      MR_UNARY(Rint),
      {"Conj", [](const S& s) { Conj(s, C(s)); }},
      MR_UNARY(IsNan),
      MR_UNARY(IsInf),
      MR_UNARY(IsFinite),
      {"LogicalNot", [](const S& s) { LogicalNot(s, B(s)); }},
      MR_BINARY(SigmoidGrad),
      MR_BINARY(TanhGrad),
      MR_BINARY(SqrtGrad),
      MR_BINARY(RsqrtGrad),
      MR_BINARY(ReciprocalGrad),
      MR_BINARY(InvGrad),
      // dynamic_partition
      {"DynamicPartition", [](const S& s) { DynamicPartition(s, F(s), I(s), 2); }},
      {"DynamicStitch",
       [](const S& s) { DynamicStitch(s, Outputs{I(s), I(s)}, Outputs{F(s), F(s)}); }},
      {"ParallelDynamicStitch",
       [](const S& s) { ParallelDynamicStitch(s, Outputs{I(s)}, Outputs{F(s)}); }},
      // fused_batch_norm
      {"FusedBatchNorm", [](const S& s) { FusedBatchNorm(s, F(s), F(s), F(s), F(s), F(s)); }},
      {"FusedBatchNormV2", [](const S& s) { FusedBatchNormV2(s, F(s), F(s), F(s), F(s), F(s)); }},
      {"FusedBatchNormV3", [](const S& s) { FusedBatchNormV3(s, F(s), F(s), F(s), F(s), F(s)); }},
      {"FusedBatchNormGrad",
       [](const S& s) { FusedBatchNormGrad(s, F(s), F(s), F(s), F(s), F(s)); }},
      {"FusedBatchNormGradV2",
       [](const S& s) { FusedBatchNormGradV2(s, F(s), F(s), F(s), F(s), F(s)); }},
      {"FusedBatchNormGradV3",
       [](const S& s) { FusedBatchNormGradV3(s, F(s), F(s), F(s), F(s), F(s), F(s)); }},
      // gather
      {"GatherV2", [](const S& s) { GatherV2(s, F(s), I(s), I(s)); }},
      {"Gather", [](const S& s) { Gather(s, F(s), I(s)); }},
      {"GatherNd", [](const S& s) { GatherNd(s, F(s), I(s)); }},
      {"ScatterNd", [](const S& s) { ScatterNd(s, I(s), F(s), I(s)); }},
      // identity
      MR_UNARY(Identity),
      {"IdentityN", [](const S& s) { IdentityN(s, Outputs{F(s), I(s)}); }},
      MR_UNARY(StopGradient),
      {"PreventGradient", [](const S& s) { PreventGradient(s, F(s), {.message = "no"}); }},
      {"NoOp", [](const S& s) { NoOp(s); }},
      // indices
      {"OneHot", [](const S& s) { OneHot(s, I(s), I(s), F(s), F(s), {.axis = 0}); }},
      {"Where", [](const S& s) { Where(s, B(s)); }},
      {"Unique", [](const S& s) { Unique(s, F(s), {.out_idx = DT_INT64}); }},
      {"ListDiff", [](const S& s) { ListDiff(s, F(s), F(s), {.out_idx = DT_INT64}); }},
      {"UniqueWithCounts", [](const S& s) { UniqueWithCounts(s, F(s), {.out_idx = DT_INT64}); }},
      // lrn
      {"LRN", [](const S& s) { LRN(s, F(s), {.depth_radius = 2}); }},
      {"LRNGrad", [](const S& s) { LRNGrad(s, F(s), F(s), F(s), {.depth_radius = 2}); }},
      // matmul
      {"Qr", [](const S& s) { Qr(s, F(s), {.full_matrices = true}); }},
      {"MatMul", [](const S& s) { MatMul(s, F(s), F(s), {.transpose_b = true}); }},
      {"BatchMatMul", [](const S& s) { BatchMatMul(s, F(s), F(s), {.adj_y = true}); }},
      {"BatchMatMulV2", [](const S& s) { BatchMatMulV2(s, F(s), F(s), {.adj_x = true}); }},
      // placeholder
      {"Placeholder", [](const S& s) { Placeholder(s, DT_FLOAT, {-1, 2}); }},
      {"PlaceholderV2", [](const S& s) { PlaceholderV2(s, DT_FLOAT, {-1, 2}); }},
      {"PlaceholderWithDefault",
       [](const S& s) { PlaceholderWithDefault(s, F(s), PartialShape({-1, 2})); }},
      // pool
      {"MaxPool", [](const S& s) { MaxPool(s, F(s)); }},
      {"MaxPoolGrad", [](const S& s) { MaxPoolGrad(s, F(s), F(s), F(s)); }},
      {"MaxPoolGradGrad", [](const S& s) { MaxPoolGradGrad(s, F(s), F(s), F(s)); }},
      {"AvgPool", [](const S& s) { AvgPool(s, F(s)); }},
      {"AvgPoolGrad", [](const S& s) { AvgPoolGrad(s, I(s), F(s)); }},
      {"MaxPoolV2", [](const S& s) { MaxPoolV2(s, F(s), I(s), I(s)); }},
      {"MaxPoolGradV2", [](const S& s) { MaxPoolGradV2(s, F(s), F(s), F(s), I(s), I(s)); }},
      {"MaxPoolGradGradV2", [](const S& s) { MaxPoolGradGradV2(s, F(s), F(s), F(s), I(s), I(s)); }},
      // queue
      {"FIFOQueueV2",
       [](const S& s) { FIFOQueueV2(s, {DT_FLOAT}, {.shapes = {PartialShape({2})}, .capacity = 3}); }},
      {"PaddingFIFOQueueV2",
       [](const S& s) { PaddingFIFOQueueV2(s, {DT_FLOAT}, {PartialShape({-1})}, {.capacity = 3}); }},
      {"RandomShuffleQueueV2",
       [](const S& s) {
         RandomShuffleQueueV2(s, {DT_FLOAT}, {.capacity = 3, .min_after_dequeue = 1, .seed = 5});
       }},
      {"QueueEnqueueV2",
       [](const S& s) { QueueEnqueueV2(s, FIFOQueueV2(s, {DT_FLOAT}), Outputs{F(s)}); }},
      {"QueueEnqueueManyV2",
       [](const S& s) { QueueEnqueueManyV2(s, FIFOQueueV2(s, {DT_FLOAT}), Outputs{F(s)}); }},
      {"QueueDequeueV2",
       [](const S& s) { QueueDequeueV2(s, FIFOQueueV2(s, {DT_FLOAT}), {DT_FLOAT}); }},
      {"QueueDequeueManyV2",
       [](const S& s) { QueueDequeueManyV2(s, FIFOQueueV2(s, {DT_FLOAT}), I(s), {DT_FLOAT}); }},
      {"QueueDequeueUpToV2",
       [](const S& s) { QueueDequeueUpToV2(s, FIFOQueueV2(s, {DT_FLOAT}), I(s), {DT_FLOAT}); }},
      {"QueueCloseV2",
       [](const S& s) {
         QueueCloseV2(s, FIFOQueueV2(s, {DT_FLOAT}), {.cancel_pending_enqueues = true});
       }},
      {"QueueSizeV2", [](const S& s) { QueueSizeV2(s, FIFOQueueV2(s, {DT_FLOAT})); }},
      {"QueueIsClosedV2", [](const S& s) { QueueIsClosedV2(s, FIFOQueueV2(s, {DT_FLOAT})); }},
      // accumulator
      {"ConditionalAccumulator",
       [](const S& s) {
         ConditionalAccumulator(s, DT_FLOAT, PartialShape({2}), {.reduction_type = "SUM"});
       }},
      {"SparseConditionalAccumulator",
       [](const S& s) {
         SparseConditionalAccumulator(s, DT_FLOAT, PartialShape({2}), {.shared_name = "a"});
       }},
      {"ResourceConditionalAccumulator",
       [](const S& s) {
         ResourceConditionalAccumulator(s, DT_FLOAT, PartialShape({2}), {.container = "c"});
       }},
      {"AccumulatorApplyGradient",
       [](const S& s) { AccumulatorApplyGradient(s, Sums(s), Longs(s), F(s)); }},
      {"ResourceAccumulatorApplyGradient",
       [](const S& s) { ResourceAccumulatorApplyGradient(s, Resource(s), Longs(s), F(s)); }},
      {"SparseAccumulatorApplyGradient",
       [](const S& s) {
         SparseAccumulatorApplyGradient(s, Sums(s), Longs(s), Longs(s), F(s), Longs(s), false);
       }},
      {"AccumulatorTakeGradient",
       [](const S& s) { AccumulatorTakeGradient(s, Sums(s), I(s), DT_FLOAT); }},
      {"ResourceAccumulatorTakeGradient",
       [](const S& s) { ResourceAccumulatorTakeGradient(s, Resource(s), I(s), DT_FLOAT); }},
      {"SparseAccumulatorTakeGradient",
       [](const S& s) { SparseAccumulatorTakeGradient(s, Sums(s), I(s), DT_FLOAT); }},
      {"AccumulatorSetGlobalStep",
       [](const S& s) { AccumulatorSetGlobalStep(s, Sums(s), Longs(s)); }},
      {"ResourceAccumulatorSetGlobalStep",
       [](const S& s) { ResourceAccumulatorSetGlobalStep(s, Resource(s), Longs(s)); }},
      {"SyncReplicasRounds",
       [](const S& s) {
         SyncReplicasRounds(s, {.replicas_to_aggregate = 2, .shared_name = "r"});
       }},
      {"SyncReplicasJoin", [](const S& s) { SyncReplicasJoin(s, Resource(s), "t"); }},
      {"SyncReplicasLeave", [](const S& s) { SyncReplicasLeave(s, Resource(s)); }},
      {"SyncReplicasRound", [](const S& s) { SyncReplicasRound(s, Resource(s), "t"); }},
      {"SyncReplicasGive", [](const S& s) { SyncReplicasGive(s, Resource(s), Longs(s)); }},
      {"SyncReplicasDone", [](const S& s) { SyncReplicasDone(s, Resource(s), Longs(s)); }},
      {"SyncReplicasCounts", [](const S& s) { SyncReplicasCounts(s, Resource(s)); }},
      {"SyncReplicasAccumulator",
       [](const S& s) {
         SyncReplicasAccumulator(s, DT_FLOAT, PartialShape({2}), {.is_sparse = true});
       }},
      {"SyncReplicasApply",
       [](const S& s) { SyncReplicasApply(s, Resource(s), Longs(s), F(s), "t"); }},
      {"SyncReplicasApplyRows",
       [](const S& s) { SyncReplicasApplyRows(s, Resource(s), Longs(s), Longs(s), F(s), "t"); }},
      {"SyncReplicasTake",
       [](const S& s) { SyncReplicasTake(s, Resource(s), Longs(s), Longs(s), DT_FLOAT); }},
      {"SyncReplicasTakeRows",
       [](const S& s) { SyncReplicasTakeRows(s, Resource(s), Longs(s), Longs(s), DT_FLOAT); }},
      {"AccumulatorNumAccumulated", [](const S& s) { AccumulatorNumAccumulated(s, Sums(s)); }},
      {"ResourceAccumulatorNumAccumulated",
       [](const S& s) { ResourceAccumulatorNumAccumulated(s, Resource(s)); }},
      // work_queue
      {"WorkQueue", [](const S& s) { WorkQueueHandle(s, {.shared_name = "q"}); }},
      {"WorkQueueFill",
       [](const S& s) {
         WorkQueueFill(s, Resource(s), TestInput(s, DT_STRING), Longs(s), Longs(s), Longs(s),
                       Longs(s));
       }},
      {"WorkQueueTake",
       [](const S& s) { WorkQueueTake(s, Resource(s), TestInput(s, DT_BOOL)); }},
      {"WorkQueueDone", [](const S& s) { WorkQueueDone(s, Resource(s), Longs(s)); }},
      {"WorkQueueLeave", [](const S& s) { WorkQueueLeave(s, Resource(s)); }},
      {"WorkQueueSave", [](const S& s) { WorkQueueSave(s, Resource(s)); }},
      {"WorkQueueRestore",
       [](const S& s) { WorkQueueRestore(s, Resource(s), TestInput(s, DT_STRING)); }},
      {"WorkQueueLedger", [](const S& s) { WorkQueueLedger(s, Resource(s)); }},
      // functional
      {"PartitionedCall",
       [](const S& s) { PartitionedCall(s, Outputs{F(s), F(s)}, {DT_FLOAT}, {Fn(s, DT_FLOAT)}); }},
      {"StatefulPartitionedCall",
       [](const S& s) {
         StatefulPartitionedCall(s, Outputs{F(s), F(s)}, {DT_FLOAT}, {Fn(s, DT_FLOAT)});
       }},
      {"SymbolicGradient",
       [](const S& s) {
         SymbolicGradient(s, Outputs{F(s), F(s), F(s)}, {DT_FLOAT, DT_FLOAT}, {Fn(s, DT_FLOAT)});
       }},
      {"RemoteCall",
       [](const S& s) { RemoteCall(s, Str(s), Outputs{F(s)}, {DT_FLOAT}, {Fn(s, DT_FLOAT)}); }},
      {"If",
       [](const S& s) {
         If(s, B(s), Outputs{F(s), F(s)}, {DT_FLOAT}, {Fn(s, DT_FLOAT)}, {Fn(s, DT_FLOAT)},
            {.output_shapes = {PartialShape()}});
       }},
      {"StatelessIf",
       [](const S& s) {
         StatelessIf(s, B(s), Outputs{F(s), F(s)}, {DT_FLOAT}, {Fn(s, DT_FLOAT)},
                     {Fn(s, DT_FLOAT)});
       }},
      {"Case",
       [](const S& s) {
         Case(s, Const(s, 0), Outputs{F(s), F(s)}, {DT_FLOAT}, {{Fn(s, DT_FLOAT)}});
       }},
      {"While",
       [](const S& s) {
         const DefinedFunction body =
             DefineFunction(s, "body", {DT_FLOAT},
                            [](const S&, const Outputs& x) { return Outputs{x[0]}; });
         While(s, Outputs{F(s)}, {body.name}, {body.name}, {.parallel_iterations = 1});
       }},
      {"StatelessWhile",
       [](const S& s) {
         const DefinedFunction body =
             DefineFunction(s, "body", {DT_FLOAT},
                            [](const S&, const Outputs& x) { return Outputs{x[0]}; });
         StatelessWhile(s, Outputs{F(s)}, {body.name}, {body.name});
       }},
      {"For",
       [](const S& s) {
         For(s, Const(s, 0), Const(s, 1), Const(s, 1), Outputs{F(s)}, {Fn(s, DT_INT32)});
       }},
      {"FakeParam", [](const S& s) { FakeParam(s, DT_FLOAT, PartialShape()); }},
      // random
      {"RandomUniform", [](const S& s) { RandomUniform(s, I(s), DT_FLOAT, {.seed = 3}); }},
      {"RandomUniformInt", [](const S& s) { RandomUniformInt(s, I(s), I(s), I(s), {.seed = 3}); }},
      {"RandomStandardNormal",
       [](const S& s) { RandomStandardNormal(s, I(s), DT_FLOAT, {.seed = 3}); }},
      {"TruncatedNormal", [](const S& s) { TruncatedNormal(s, I(s), DT_FLOAT, {.seed = 3}); }},
      {"RandomShuffle", [](const S& s) { RandomShuffle(s, F(s), {.seed = 3}); }},
      {"Multinomial", [](const S& s) { Multinomial(s, F(s), I(s), {.output_dtype = DT_INT32}); }},
      // reduction
      MR_REDUCTION(Sum),
      MR_REDUCTION(Mean),
      MR_REDUCTION(Prod),
      MR_REDUCTION(Max),
      MR_REDUCTION(Min),
      {"Any", [](const S& s) { Any(s, B(s), I(s), {.keep_dims = true}); }},
      {"All", [](const S& s) { All(s, B(s), I(s), {.keep_dims = true}); }},
      {"ArgMax", [](const S& s) { ArgMax(s, F(s), I(s), {.output_type = DT_INT32}); }},
      {"ArgMin", [](const S& s) { ArgMin(s, F(s), I(s), {.output_type = DT_INT32}); }},
      MR_UNARY(L2Loss),
      // reshape
      {"Reshape", [](const S& s) { Reshape(s, F(s), I(s)); }},
      {"ExpandDims", [](const S& s) { ExpandDims(s, F(s), I(s)); }},
      {"Squeeze", [](const S& s) { Squeeze(s, F(s), {.squeeze_dims = {0}}); }},
      {"Shape", [](const S& s) { ShapeOf(s, F(s), {.out_type = DT_INT64}); }},
      {"ShapeN", [](const S& s) { ShapeN(s, Outputs{F(s), F(s)}, {.out_type = DT_INT64}); }},
      {"Size", [](const S& s) { Size(s, F(s), {.out_type = DT_INT64}); }},
      MR_UNARY(Rank),
      // scan
      {"Cumsum", [](const S& s) { Cumsum(s, F(s), I(s), {.exclusive = true}); }},
      {"Cumprod", [](const S& s) { Cumprod(s, F(s), I(s), {.reverse = true}); }},
      // segment
      {"UnsortedSegmentSum", [](const S& s) { UnsortedSegmentSum(s, F(s), I(s), I(s)); }},
      {"UnsortedSegmentProd", [](const S& s) { UnsortedSegmentProd(s, F(s), I(s), I(s)); }},
      {"UnsortedSegmentMax", [](const S& s) { UnsortedSegmentMax(s, F(s), I(s), I(s)); }},
      {"UnsortedSegmentMin", [](const S& s) { UnsortedSegmentMin(s, F(s), I(s), I(s)); }},
      {"SegmentSum", [](const S& s) { SegmentSum(s, F(s), I(s)); }},
      {"SegmentMean", [](const S& s) { SegmentMean(s, F(s), I(s)); }},
      {"SegmentProd", [](const S& s) { SegmentProd(s, F(s), I(s)); }},
      {"SegmentMax", [](const S& s) { SegmentMax(s, F(s), I(s)); }},
      {"SegmentMin", [](const S& s) { SegmentMin(s, F(s), I(s)); }},
      // select
      {"Select", [](const S& s) { Select(s, B(s), F(s), F(s)); }},
      {"SelectV2", [](const S& s) { SelectV2(s, B(s), F(s), F(s)); }},
      {"ClipByValue", [](const S& s) { ClipByValue(s, F(s), F(s), F(s)); }},
      // slice
      {"Slice", [](const S& s) { Slice(s, F(s), I(s), I(s)); }},
      {"StridedSlice", [](const S& s) { StridedSlice(s, F(s), I(s), I(s), I(s), {.end_mask = 1}); }},
      {"StridedSliceGrad",
       [](const S& s) { StridedSliceGrad(s, I(s), I(s), I(s), I(s), F(s), {.end_mask = 1}); }},
      {"Pad", [](const S& s) { Pad(s, F(s), I(s)); }},
      {"PadV2", [](const S& s) { PadV2(s, F(s), I(s), F(s)); }},
      {"MirrorPad", [](const S& s) { MirrorPad(s, F(s), I(s), "REFLECT"); }},
      {"MirrorPadGrad", [](const S& s) { MirrorPadGrad(s, F(s), I(s), "SYMMETRIC"); }},
      {"Tile", [](const S& s) { Tile(s, F(s), I(s)); }},
      {"ReverseV2", [](const S& s) { ReverseV2(s, F(s), I(s)); }},
      // softmax, xent
      MR_UNARY(Softmax),
      MR_UNARY(LogSoftmax),
      MR_BINARY(SoftmaxCrossEntropyWithLogits),
      {"SparseSoftmaxCrossEntropyWithLogits",
       [](const S& s) { SparseSoftmaxCrossEntropyWithLogits(s, F(s), I(s)); }},
      // state
      {"VarHandleOp", [](const S& s) { VarHandleOp(s, DT_FLOAT, {2}, {.shared_name = "v"}); }},
      {"VarIsInitializedOp", [](const S& s) { VarIsInitializedOp(s, Handle(s)); }},
      {"ReadVariableOp", [](const S& s) { ReadVariableOp(s, Handle(s), DT_FLOAT); }},
      {"AssignVariableOp", [](const S& s) { AssignVariableOp(s, Handle(s), F(s)); }},
      {"AssignAddVariableOp", [](const S& s) { AssignAddVariableOp(s, Handle(s), F(s)); }},
      {"AssignSubVariableOp", [](const S& s) { AssignSubVariableOp(s, Handle(s), F(s)); }},
      {"VariableShape", [](const S& s) { VariableShape(s, Handle(s), {.out_type = DT_INT64}); }},
      {"ResourceCountUpTo",
       [](const S& s) { ResourceCountUpTo(s, Handle(s), 7, DT_INT64); }},
      {"DestroyResourceOp",
       [](const S& s) { DestroyResourceOp(s, Handle(s), {.ignore_lookup_error = false}); }},
      {"ResourceGather", [](const S& s) { ResourceGather(s, Handle(s), I(s), DT_FLOAT); }},
      {"ResourceGatherNd", [](const S& s) { ResourceGatherNd(s, Handle(s), I(s), DT_FLOAT); }},
      {"ResourceScatterAdd", [](const S& s) { ResourceScatterAdd(s, Handle(s), I(s), F(s)); }},
      {"ResourceScatterSub", [](const S& s) { ResourceScatterSub(s, Handle(s), I(s), F(s)); }},
      {"ResourceScatterUpdate", [](const S& s) { ResourceScatterUpdate(s, Handle(s), I(s), F(s)); }},
      {"VariableV2", [](const S& s) { VariableV2(s, {2}, DT_FLOAT, {.shared_name = "v"}); }},
      {"Variable", [](const S& s) { VariableV1(s, {2}, DT_FLOAT, {.shared_name = "v"}); }},
      {"IsVariableInitialized", [](const S& s) { IsVariableInitialized(s, Ref(s)); }},
      {"Assign", [](const S& s) { Assign(s, Ref(s), F(s), {.use_locking = false}); }},
      {"AssignAdd", [](const S& s) { AssignAdd(s, Ref(s), F(s), {.use_locking = true}); }},
      {"AssignSub", [](const S& s) { AssignSub(s, Ref(s), F(s), {.use_locking = true}); }},
      {"ScatterAdd", [](const S& s) { ScatterAdd(s, Ref(s), I(s), F(s), {.use_locking = true}); }},
      {"ScatterSub", [](const S& s) { ScatterSub(s, Ref(s), I(s), F(s), {.use_locking = true}); }},
      {"ScatterUpdate",
       [](const S& s) { ScatterUpdate(s, Ref(s), I(s), F(s), {.use_locking = false}); }},
      // sparse: in the order of their headers
      {"SerializeSparse",
       [](const S& s) { SerializeSparse(s, Sp(s), {.out_type = DT_VARIANT}); }},
      {"SerializeManySparse", [](const S& s) { SerializeManySparse(s, Sp(s)); }},
      {"DeserializeSparse", [](const S& s) { DeserializeSparse(s, Str(s), DT_FLOAT); }},
      {"DeserializeManySparse", [](const S& s) { DeserializeManySparse(s, Str(s), DT_FLOAT); }},
      {"SparseAdd", [](const S& s) { SparseAdd(s, Sp(s), Sp(s), F(s)); }},
      {"SparseAddGrad", [](const S& s) { SparseAddGrad(s, F(s), L(s), L(s), L(s)); }},
      {"SparseTensorDenseAdd", [](const S& s) { SparseTensorDenseAdd(s, Sp(s), F(s)); }},
      {"SparseSparseMaximum", [](const S& s) { SparseSparseMaximum(s, Sp(s), Sp(s)); }},
      {"SparseSparseMinimum", [](const S& s) { SparseSparseMinimum(s, Sp(s), Sp(s)); }},
      {"SparseDenseCwiseAdd", [](const S& s) { SparseDenseCwiseAdd(s, Sp(s), F(s)); }},
      {"SparseDenseCwiseMul", [](const S& s) { SparseDenseCwiseMul(s, Sp(s), F(s)); }},
      {"SparseDenseCwiseDiv", [](const S& s) { SparseDenseCwiseDiv(s, Sp(s), F(s)); }},
      {"SparseConcat",
       [](const S& s) { SparseConcat(s, std::vector<SparseTensor>{Sp(s), Sp(s)}, 1); }},
      {"SparseSplit", [](const S& s) { SparseSplit(s, L(s), Sp(s), 3); }},
      {"SparseSlice", [](const S& s) { SparseSlice(s, Sp(s), L(s), L(s)); }},
      {"SparseSliceGrad", [](const S& s) { SparseSliceGrad(s, F(s), L(s), L(s), L(s)); }},
      {"SparseCross",
       [](const S& s) {
         SparseCross(s, std::vector<SparseTensor>{Sp(s, L(s)), Sp(s, Str(s))}, Outputs{Str(s)},
                     {.num_buckets = 7});
       }},
      {"SparseFillEmptyRows", [](const S& s) { SparseFillEmptyRows(s, Sp(s), F(s)); }},
      {"SparseFillEmptyRowsGrad", [](const S& s) { SparseFillEmptyRowsGrad(s, L(s), F(s)); }},
      {"SparseTensorDenseMatMul",
       [](const S& s) { SparseTensorDenseMatMul(s, Sp(s), F(s), {.adjoint_b = true}); }},
      {"SparseReduceSum",
       [](const S& s) { SparseReduceSum(s, Sp(s), I(s), {.keep_dims = true}); }},
      {"SparseReduceMax", [](const S& s) { SparseReduceMax(s, Sp(s), I(s)); }},
      {"SparseReduceSumSparse", [](const S& s) { SparseReduceSumSparse(s, Sp(s), I(s)); }},
      {"SparseReduceMaxSparse",
       [](const S& s) { SparseReduceMaxSparse(s, Sp(s), I(s), {.keep_dims = true}); }},
      {"SparseSoftmax", [](const S& s) { SparseSoftmax(s, Sp(s)); }},
      {"SparseReshape", [](const S& s) { SparseReshape(s, Sp(s), L(s)); }},
      {"SparseReorder", [](const S& s) { SparseReorder(s, Sp(s)); }},
      {"SparseSegmentSum", [](const S& s) { SparseSegmentSum(s, F(s), L(s), I(s)); }},
      {"SparseSegmentMean", [](const S& s) { SparseSegmentMean(s, F(s), I(s), I(s)); }},
      {"SparseSegmentSqrtN", [](const S& s) { SparseSegmentSqrtN(s, F(s), I(s), I(s)); }},
      {"SparseSegmentSumWithNumSegments",
       [](const S& s) { SparseSegmentSumWithNumSegments(s, F(s), I(s), I(s), L(s)); }},
      {"SparseSegmentMeanWithNumSegments",
       [](const S& s) { SparseSegmentMeanWithNumSegments(s, F(s), I(s), I(s), I(s)); }},
      {"SparseSegmentSqrtNWithNumSegments",
       [](const S& s) { SparseSegmentSqrtNWithNumSegments(s, F(s), I(s), I(s), I(s)); }},
      {"SparseSegmentMeanGrad",
       [](const S& s) { SparseSegmentMeanGrad(s, F(s), I(s), I(s), I(s)); }},
      {"SparseSegmentSqrtNGrad",
       [](const S& s) { SparseSegmentSqrtNGrad(s, F(s), I(s), I(s), I(s)); }},
      {"SparseToDense",
       [](const S& s) { SparseToDense(s, L(s), L(s), F(s), F(s), {.validate_indices = false}); }},
      // hash_table
      {"HashTableV2",
       [](const S& s) { HashTableV2(s, DT_INT64, DT_STRING, {.shared_name = "t"}); }},
      {"HashTable", [](const S& s) { HashTableV1(s, DT_INT64, DT_STRING, {.container = "c"}); }},
      {"MutableHashTableV2",
       [](const S& s) {
         MutableHashTableV2(s, DT_INT64, DT_FLOAT, {.use_node_name_sharing = true});
       }},
      {"MutableHashTable", [](const S& s) { MutableHashTableV1(s, DT_INT64, DT_FLOAT); }},
      {"MutableHashTableOfTensorsV2",
       [](const S& s) { MutableHashTableOfTensorsV2(s, DT_INT64, DT_FLOAT, {3}); }},
      {"MutableHashTableOfTensors",
       [](const S& s) { MutableHashTableOfTensorsV1(s, DT_INT64, DT_FLOAT, {3}); }},
      {"MutableDenseHashTableV2",
       [](const S& s) {
         MutableDenseHashTableV2(s, I(s), I(s), DT_FLOAT,
                                 {.value_shape = {2}, .initial_num_buckets = 8});
       }},
      {"MutableDenseHashTable",
       [](const S& s) {
         MutableDenseHashTableV1(s, I(s), DT_FLOAT, {.max_load_factor = 0.5f});
       }},
      // lookup_table
      {"LookupTableFindV2", [](const S& s) { LookupTableFindV2(s, Table(s), Str(s), I(s)); }},
      {"LookupTableFind", [](const S& s) { LookupTableFind(s, TableRef(s), Str(s), I(s)); }},
      {"LookupTableInsertV2", [](const S& s) { LookupTableInsertV2(s, Table(s), Str(s), I(s)); }},
      {"LookupTableInsert", [](const S& s) { LookupTableInsert(s, TableRef(s), Str(s), I(s)); }},
      {"LookupTableRemoveV2", [](const S& s) { LookupTableRemoveV2(s, Table(s), Str(s)); }},
      {"LookupTableSizeV2", [](const S& s) { LookupTableSizeV2(s, Table(s)); }},
      {"LookupTableSize", [](const S& s) { LookupTableSize(s, TableRef(s)); }},
      {"LookupTableExportV2",
       [](const S& s) { LookupTableExportV2(s, Table(s), DT_STRING, DT_INT32); }},
      {"LookupTableExport",
       [](const S& s) { LookupTableExport(s, TableRef(s), DT_STRING, DT_INT32); }},
      {"LookupTableImportV2", [](const S& s) { LookupTableImportV2(s, Table(s), Str(s), I(s)); }},
      {"LookupTableImport", [](const S& s) { LookupTableImport(s, TableRef(s), Str(s), I(s)); }},
      // table_initializer
      {"InitializeTableV2", [](const S& s) { InitializeTableV2(s, Table(s), Str(s), I(s)); }},
      {"InitializeTable", [](const S& s) { InitializeTable(s, TableRef(s), Str(s), I(s)); }},
      {"InitializeTableFromTextFileV2",
       [](const S& s) {
         InitializeTableFromTextFileV2(s, Table(s), Str(s), kWholeLine, kLineNumber,
                                       {.vocab_size = 7, .delimiter = ","});
       }},
      {"InitializeTableFromTextFile",
       [](const S& s) { InitializeTableFromTextFile(s, TableRef(s), Str(s), 0, 1); }},
      // strings
      {"AsString", [](const S& s) { AsString(s, F(s), {.precision = 2, .width = 9, .fill = "0"}); }},
      {"DecodeBase64", [](const S& s) { DecodeBase64(s, Str(s)); }},
      {"EncodeBase64", [](const S& s) { EncodeBase64(s, Str(s), {.pad = true}); }},
      {"ReadFile", [](const S& s) { ReadFile(s, Str(s)); }},
      {"WriteFile", [](const S& s) { WriteFile(s, Str(s), Str(s)); }},
      {"ParseTensor", [](const S& s) { ParseTensor(s, Str(s), DT_HALF); }},
      {"RegexFullMatch", [](const S& s) { RegexFullMatch(s, Str(s), Str(s)); }},
      {"RegexReplace",
       [](const S& s) { RegexReplace(s, Str(s), Str(s), Str(s), {.replace_global = false}); }},
      {"SerializeTensor", [](const S& s) { SerializeTensor(s, F(s)); }},
      {"StaticRegexFullMatch", [](const S& s) { StaticRegexFullMatch(s, Str(s), "a+"); }},
      {"StaticRegexReplace",
       [](const S& s) { StaticRegexReplace(s, Str(s), "a(b)", "\\1", {.replace_global = false}); }},
      {"StringLength", [](const S& s) { StringLength(s, Str(s), {.unit = "UTF8_CHAR"}); }},
      {"StringLower", [](const S& s) { StringLower(s, Str(s), {.encoding = "utf-8"}); }},
      {"StringSplitV2", [](const S& s) { StringSplitV2(s, Str(s), Str(s), {.maxsplit = 2}); }},
      {"StringStrip", [](const S& s) { StringStrip(s, Str(s)); }},
      {"StringUpper", [](const S& s) { StringUpper(s, Str(s), {.encoding = "utf-8"}); }},
      {"Substr", [](const S& s) { Substr(s, Str(s), I(s), I(s), {.unit = "UTF8_CHAR"}); }},
      {"UnsortedSegmentJoin",
       [](const S& s) { UnsortedSegmentJoin(s, Str(s), I(s), I(s), {.separator = ","}); }},
      {"StringToHashBucket", [](const S& s) { StringToHashBucket(s, Str(s), 3); }},
      {"StringToHashBucketFast", [](const S& s) { StringToHashBucketFast(s, Str(s), 3); }},
      {"StringToHashBucketStrong",
       [](const S& s) { StringToHashBucketStrong(s, Str(s), 3, {1, 2}); }},
      {"StringToNumber", [](const S& s) { StringToNumber(s, Str(s), {.out_type = DT_INT64}); }},
      {"StringJoin", [](const S& s) { StringJoin(s, Outputs{Str(s), Str(s)}, {.separator = ","}); }},
      // string_split
      {"StringSplit", [](const S& s) { StringSplit(s, Str(s), Str(s), {.skip_empty = false}); }},
      {"ReduceJoin", [](const S& s) { ReduceJoin(s, Str(s), I(s), {.separator = "-"}); }},
      // summary
      {"ScalarSummary", [](const S& s) { ScalarSummary(s, Str(s), F(s)); }},
      {"HistogramSummary", [](const S& s) { HistogramSummary(s, Str(s), F(s)); }},
      {"ImageSummary", [](const S& s) { ImageSummary(s, Str(s), F(s), {.max_images = 1}); }},
      {"MergeSummary", [](const S& s) { MergeSummary(s, Outputs{Str(s), Str(s)}); }},
      {"TensorSummary", [](const S& s) { TensorSummary(s, F(s), {.labels = {"a"}}); }},
      {"TensorSummaryV2", [](const S& s) { TensorSummaryV2(s, Str(s), F(s), Str(s)); }},
      // top_k
      {"TopKV2", [](const S& s) { TopKV2(s, F(s), I(s), {.sorted = false}); }},
      {"TopK", [](const S& s) { TopK(s, F(s), 2); }},
      {"InTopKV2", [](const S& s) { InTopKV2(s, F(s), I(s), I(s)); }},
      {"InTopK", [](const S& s) { InTopK(s, F(s), I(s), 2); }},
      // training_ops
      {"ApplyGradientDescent", [](const S& s) { ApplyGradientDescent(s, Ref(s), F(s), F(s)); }},
      {"ResourceApplyGradientDescent",
       [](const S& s) { ResourceApplyGradientDescent(s, Handle(s), F(s), F(s)); }},
      {"ApplyAdam",
       [](const S& s) {
         ApplyAdam(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s), F(s), F(s),
                   {.use_nesterov = true});
       }},
      {"ResourceApplyAdam",
       [](const S& s) {
         ResourceApplyAdam(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s), F(s),
                           F(s), {.use_nesterov = true});
       }},
      {"ApplyAdagrad", [](const S& s) { ApplyAdagrad(s, Ref(s), Ref(s), F(s), F(s)); }},
      {"ResourceApplyAdagrad",
       [](const S& s) { ResourceApplyAdagrad(s, Handle(s), Handle(s), F(s), F(s)); }},
      {"SparseApplyAdagrad",
       [](const S& s) { SparseApplyAdagrad(s, Ref(s), Ref(s), F(s), F(s), I(s)); }},
      {"ResourceSparseApplyAdagrad",
       [](const S& s) { ResourceSparseApplyAdagrad(s, Handle(s), Handle(s), F(s), F(s), I(s)); }},
      {"ApplyMomentum", [](const S& s) { ApplyMomentum(s, Ref(s), Ref(s), F(s), F(s), F(s)); }},
      {"ResourceApplyMomentum",
       [](const S& s) { ResourceApplyMomentum(s, Handle(s), Handle(s), F(s), F(s), F(s)); }},
      {"SparseApplyMomentum",
       [](const S& s) { SparseApplyMomentum(s, Ref(s), Ref(s), F(s), F(s), I(s), F(s)); }},
      {"ResourceSparseApplyMomentum",
       [](const S& s) {
         ResourceSparseApplyMomentum(s, Handle(s), Handle(s), F(s), F(s), I(s), F(s));
       }},
      {"ApplyRMSProp", [](const S& s) { ApplyRMSProp(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyRMSProp", [](const S& s) { ResourceApplyRMSProp(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"SparseApplyRMSProp", [](const S& s) { SparseApplyRMSProp(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ResourceSparseApplyRMSProp", [](const S& s) { ResourceSparseApplyRMSProp(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ApplyCenteredRMSProp", [](const S& s) { ApplyCenteredRMSProp(s, Ref(s), Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyCenteredRMSProp", [](const S& s) { ResourceApplyCenteredRMSProp(s, Handle(s), Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"SparseApplyCenteredRMSProp", [](const S& s) { SparseApplyCenteredRMSProp(s, Ref(s), Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ResourceSparseApplyCenteredRMSProp", [](const S& s) { ResourceSparseApplyCenteredRMSProp(s, Handle(s), Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ApplyFtrl", [](const S& s) { ApplyFtrl(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyFtrl", [](const S& s) { ResourceApplyFtrl(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"SparseApplyFtrl", [](const S& s) { SparseApplyFtrl(s, Ref(s), Ref(s), Ref(s), F(s), I(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceSparseApplyFtrl", [](const S& s) { ResourceSparseApplyFtrl(s, Handle(s), Handle(s), Handle(s), F(s), I(s), F(s), F(s), F(s), F(s)); }},
      {"ApplyFtrlV2", [](const S& s) { ApplyFtrlV2(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyFtrlV2", [](const S& s) { ResourceApplyFtrlV2(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"SparseApplyFtrlV2", [](const S& s) { SparseApplyFtrlV2(s, Ref(s), Ref(s), Ref(s), F(s), I(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceSparseApplyFtrlV2", [](const S& s) { ResourceSparseApplyFtrlV2(s, Handle(s), Handle(s), Handle(s), F(s), I(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ApplyAdadelta", [](const S& s) { ApplyAdadelta(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyAdadelta", [](const S& s) { ResourceApplyAdadelta(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s)); }},
      {"SparseApplyAdadelta", [](const S& s) { SparseApplyAdadelta(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ResourceSparseApplyAdadelta", [](const S& s) { ResourceSparseApplyAdadelta(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ApplyAdaMax", [](const S& s) { ApplyAdaMax(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyAdaMax", [](const S& s) { ResourceApplyAdaMax(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ApplyAdagradV2", [](const S& s) { ApplyAdagradV2(s, Ref(s), Ref(s), F(s), F(s), F(s)); }},
      {"ResourceApplyAdagradV2", [](const S& s) { ResourceApplyAdagradV2(s, Handle(s), Handle(s), F(s), F(s), F(s)); }},
      {"SparseApplyAdagradV2", [](const S& s) { SparseApplyAdagradV2(s, Ref(s), Ref(s), F(s), F(s), F(s), I(s)); }},
      {"ResourceSparseApplyAdagradV2", [](const S& s) { ResourceSparseApplyAdagradV2(s, Handle(s), Handle(s), F(s), F(s), F(s), I(s)); }},
      {"ApplyAdagradDA", [](const S& s) { ApplyAdagradDA(s, Ref(s), Ref(s), Ref(s), F(s), F(s), F(s), F(s), L(s)); }},
      {"ResourceApplyAdagradDA", [](const S& s) { ResourceApplyAdagradDA(s, Handle(s), Handle(s), Handle(s), F(s), F(s), F(s), F(s), L(s)); }},
      {"SparseApplyAdagradDA", [](const S& s) { SparseApplyAdagradDA(s, Ref(s), Ref(s), Ref(s), F(s), I(s), F(s), F(s), F(s), L(s)); }},
      {"ResourceSparseApplyAdagradDA", [](const S& s) { ResourceSparseApplyAdagradDA(s, Handle(s), Handle(s), Handle(s), F(s), I(s), F(s), F(s), F(s), L(s)); }},
      {"ApplyProximalGradientDescent", [](const S& s) { ApplyProximalGradientDescent(s, Ref(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyProximalGradientDescent", [](const S& s) { ResourceApplyProximalGradientDescent(s, Handle(s), F(s), F(s), F(s), F(s)); }},
      {"SparseApplyProximalGradientDescent", [](const S& s) { SparseApplyProximalGradientDescent(s, Ref(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ResourceSparseApplyProximalGradientDescent", [](const S& s) { ResourceSparseApplyProximalGradientDescent(s, Handle(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ApplyProximalAdagrad", [](const S& s) { ApplyProximalAdagrad(s, Ref(s), Ref(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyProximalAdagrad", [](const S& s) { ResourceApplyProximalAdagrad(s, Handle(s), Handle(s), F(s), F(s), F(s), F(s)); }},
      {"SparseApplyProximalAdagrad", [](const S& s) { SparseApplyProximalAdagrad(s, Ref(s), Ref(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ResourceSparseApplyProximalAdagrad", [](const S& s) { ResourceSparseApplyProximalAdagrad(s, Handle(s), Handle(s), F(s), F(s), F(s), F(s), I(s)); }},
      {"ApplyAddSign", [](const S& s) { ApplyAddSign(s, Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyAddSign", [](const S& s) { ResourceApplyAddSign(s, Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ApplyPowerSign", [](const S& s) { ApplyPowerSign(s, Ref(s), Ref(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyPowerSign", [](const S& s) { ResourceApplyPowerSign(s, Handle(s), Handle(s), F(s), F(s), F(s), F(s), F(s)); }},
      {"ResourceApplyKerasMomentum", [](const S& s) { ResourceApplyKerasMomentum(s, Handle(s), Handle(s), F(s), F(s), F(s)); }},
      {"ResourceSparseApplyKerasMomentum", [](const S& s) { ResourceSparseApplyKerasMomentum(s, Handle(s), Handle(s), F(s), F(s), I(s), F(s)); }},
      // transpose
      {"Transpose", [](const S& s) { Transpose(s, F(s), I(s)); }},
      {"ConjugateTranspose", [](const S& s) { ConjugateTranspose(s, C(s), I(s)); }},
      {"InvertPermutation", [](const S& s) { InvertPermutation(s, I(s)); }},
  };
  return *calls;
}

bool IsInternal(const std::string& op) { return op[0] == '_'; }

void ExpectNodeFitsDefinition(const Node& node) {
  const OpEntry* entry = LookUpOp(node.op());
  ASSERT_NE(entry, nullptr) << node.op();
  const tensorflow::OpDef& op = entry->def;
  const tensorflow::NodeDef& def = node.def();
  std::set<std::string> defined, present;
  for (const auto& attr : op.attr()) defined.insert(attr.name());
  for (const auto& [name, value] : def.attr()) {
    if (!IsInternal(name)) present.insert(name);  // _class and the like
  }
  EXPECT_EQ(present, defined);
  std::vector<DType> inputs, outputs;
  ASSERT_OK(NodeTypes(def, op, &inputs, &outputs));
  EXPECT_EQ(std::vector<DType>(node.output_types().begin(), node.output_types().end()), outputs);
  ASSERT_EQ(node.num_inputs(), static_cast<int>(inputs.size()));
  for (int i = 0; i < node.num_inputs(); ++i) {
    const OutputRef& source = node.input(i);
    ASSERT_NE(source.node, nullptr) << "input " << i;
    const DType given = source.node->output_type(source.index);
    const DType wanted = inputs[static_cast<size_t>(i)];
    EXPECT_TRUE(given == wanted || WithoutRef(given) == wanted)
        << "input " << i << ": " << DTypeName(given) << " for " << DTypeName(wanted);
  }
}

TEST(Builders, MakeNodesThatTheirDefinitionsDescribe) {
  ASSERT_OK(OpRegistrationStatus());
  for (const Call& call : Calls()) {
    SCOPED_TRACE(call.op);
    Scope scope;
    call.build(scope);
    ASSERT_OK(scope.status());
    // The last node of this kind is the builder's (a handle may be made on the way).
    const Node* made = nullptr;
    for (const auto& node : scope.graph()->nodes()) {
      if (node != nullptr && node->op() == call.op) made = node.get();
    }
    ASSERT_NE(made, nullptr) << "the builder made no " << call.op;
    ExpectNodeFitsDefinition(*made);
    // The graph as a whole passes what imported graphs must pass.
    ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef graph, scope.ToGraphDef());
    EXPECT_OK(VerifyGraphDef(graph));
  }
}

TEST(Builders, EveryRegisteredOpHasOne) {
  std::set<std::string> called;
  for (const Call& call : Calls()) {
    EXPECT_TRUE(called.insert(call.op).second) << call.op << " is called twice";
  }
  for (const OpEntry* entry : AllOps()) {
    const std::string& op = entry->def.name();
    // TestInput's op is the op test kit's own.
    if (IsInternal(op) || op == "TestInput") continue;
    EXPECT_EQ(called.count(op), 1u) << op << " has no builder call in ops/builder_test.cc";
  }
}

}  // namespace
}  // namespace millrace
