// SPDX-License-Identifier: Apache-2.0
//
// Every op that has a gradient gives the right one: one case at least for each op that is
// registered as differentiable, checked by finite differences. An op without a case fails this
// test by name, and so does a case of an op that is not differentiable.
//
// The cases here are the plainest that reach every input of an op; what an op's attrs and shapes
// do to its gradient is proved in the test of its family.

#include <complex>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/function_builder.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/control/control_flow.h"
#include "ops/control/functional.h"
#include "ops/control/tensor_array.h"
#include "ops/control/tensor_list.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/nn/fused_batch_norm.h"
#include "ops/state/state.h"
#include "proto/op_def.pb.h"
#include "runtime/testing/op_test.h"

// covers: values: a shape that the op's rule accepts, its kernel accepts; kernels never write to
//   shared inputs
// covers: values: gradients agree with finite differences
// covers: graphs: gradients of calls are those of finite differences, twice; random numbers and
//   variables are those of the call; a GradientDef wins
// covers: graphs: gradients of `While` and `For` are those of finite differences, of shapes that
//   grow and of loops with a data-dependent end; once in and around branches, in frames, three deep
//   and of lists; of variables by their handles; frames in functions are refused

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

// --- Cases ---------------------------------------------------------------------------------------

// One argument of an op: a tensor, the tensors of a list, or a handle to a variable of this value.
struct Arg {
  Arg(Tensor tensor) : tensors{std::move(tensor)} {}                          // NOLINT
  Arg(std::vector<Tensor> list) : tensors(std::move(list)), is_list(true) {}  // NOLINT
  std::vector<Tensor> tensors;
  bool is_list = false;
  bool is_variable = false;
};
Arg VariableOf(Tensor value) {
  Arg arg(std::move(value));
  arg.is_variable = true;
  return arg;
}

struct Case {
  std::string op;
  std::vector<Arg> args = {};
  std::vector<OpAttr> attrs = {};
  // Whose gradients are given; all floating outputs when empty.
  std::set<int> outputs = {};
  // The gradient function only says, in these words, that there is no gradient.
  std::string refusal = "";
  // For ops that need others around them: a graph on the tensors of `args`, instead of one node.
  BuildOutputs build = nullptr;
};

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Doubles(std::initializer_list<double> values) { return Tensor::Vector<double>(values); }
Tensor Floats(std::initializer_list<float> values) { return Tensor::Vector<float>(values); }
Tensor Scalar(double value) { return Tensor::Scalar<double>(value); }
Tensor Int(int32_t value) { return Tensor::Scalar<int32_t>(value); }

// All elements differ by more than a finite difference reaches.
Tensor Matrix() { return TensorOf<double>({2, 3}, {0.3, -1.2, 2.1, 0.5, 0.9, -0.7}); }
Tensor Rows() { return TensorOf<double>({4, 2}, {1.5, -2, 3, 0.4, 5, -6, 0.7, 8}); }
// NHWC.
Tensor Image() { return TensorOf<double>({1, 2, 4, 1}, {1, 5, 2, 3, 4, 0.5, 7, 6}); }

std::vector<Case> UnaryCases() {
  std::vector<Case> cases;
  for (const char* op :
       {"Abs",   "Neg",   "Sign", "Conj",     "Square",   "Reciprocal", "Inv",
        "Sqrt",  "Rsqrt", "Exp",  "Expm1",    "Log",      "Log1p",      "Sigmoid",
        "Tanh",  "Sinh",  "Cosh", "Asinh",    "Atanh",    "Sin",        "Cos",
        "Tan",   "Asin",  "Acos", "Atan",     "Erf",      "Erfc",       "Relu",
        "Relu6", "Elu",   "Selu", "Softplus", "Softsign", "LeakyRelu",  "Identity"}) {
    // Where each of them is defined.
    const Tensor x = Doubles({0.3, 0.8, 0.55});
    const Tensor complex = TensorOf<std::complex<double>>({2}, {{0.3, 0.8}, {-1, 2}});
    cases.push_back({.op = op, .args = {op == std::string("Conj") ? complex : x}});
  }
  cases.push_back({.op = "Acosh", .args = {Doubles({1.5, 3})}});
  for (const char* op : {"Relu", "Relu6", "Elu", "Selu", "LeakyRelu"}) {
    cases.push_back({.op = op, .args = {Doubles({-0.6, -1.5, 7})}});
  }
  // The derivative of y = f(x) times dy, as an op of its own.
  for (const char* op :
       {"SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad", "ReluGrad",
        "Relu6Grad", "EluGrad", "SeluGrad", "SoftplusGrad", "SoftsignGrad", "LeakyReluGrad"}) {
    cases.push_back({.op = op, .args = {Doubles({0.3, -0.8, 0.55}), Doubles({1.2, 0.4, -0.7})}});
  }
  return cases;
}

std::vector<Case> BinaryCases() {
  std::vector<Case> cases;
  for (const char* op : {"Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "DivNoNan", "MulNoNan",
                         "SquaredDifference", "FloorMod", "Pow", "Maximum", "Minimum", "Atan2"}) {
    const Tensor x = TensorOf<double>({2, 2}, {0.4, 1.5, 2.5, 0.9});
    cases.push_back({.op = op, .args = {x, Doubles({1.7, 0.8})}});
  }
  return cases;
}

std::vector<Case> ReductionCases() {
  std::vector<Case> cases;
  for (const char* op : {"Sum", "Mean", "Prod", "Max", "Min"}) {
    cases.push_back({.op = op, .args = {Matrix(), Ints({1})}});
    cases.push_back({.op = op, .args = {Matrix(), Ints({0})}, .attrs = {{"keep_dims", true}}});
  }
  for (const char* op : {"Cumsum", "Cumprod"}) {
    cases.push_back({.op = op, .args = {Matrix(), Int(1)}});
    cases.push_back(
        {.op = op, .args = {Matrix(), Int(0)}, .attrs = {{"exclusive", true}, {"reverse", true}}});
  }
  for (const char* op : {"SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin"}) {
    cases.push_back({.op = op, .args = {Rows(), Ints({0, 0, 2, 2})}});
  }
  for (const char* op :
       {"UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin"}) {
    cases.push_back({.op = op, .args = {Rows(), Ints({1, 0, 1, -1}), Int(2)}});
  }
  return cases;
}

std::vector<Case> MathCases() {
  const Tensor a = TensorOf<double>({2, 2, 3}, {1, -2, 3, 4, 5, -6, 0.5, 2, 1, -1, 0.3, 4});
  const Tensor b = TensorOf<double>({2, 3, 1}, {0.5, 1, -2, 3, 2, 1});
  return {
      {.op = "AddN", .args = {std::vector<Tensor>{Matrix(), Matrix()}}},
      {.op = "AccumulateNV2",
       .args = {std::vector<Tensor>{Matrix(), Matrix()}},
       .attrs = {{"shape", PartialShape({2, 3})}}},
      {.op = "BatchMatMul", .args = {a, b}},
      {.op = "BatchMatMulV2", .args = {a, TensorOf<double>({3, 1}, {0.5, 1, -2})}},
      {.op = "BroadcastTo", .args = {TensorOf<double>({2, 1}, {1, 2}), Ints({3, 2, 2})}},
      {.op = "Cast", .args = {Floats({1, 2})}, .attrs = {{"DstT", DT_DOUBLE}}},
      {.op = "CheckNumerics", .args = {Matrix()}, .attrs = {{"message", "x"}}},
      {.op = "ClipByValue", .args = {Doubles({-5, 0.5, 5}), Scalar(-1), Scalar(1)}},
      {.op = "L2Loss", .args = {Matrix()}},
      {.op = "MatMul", .args = {Matrix(), TensorOf<double>({3, 1}, {0.5, 1, -2})}},
      {.op = "Print",
       .args = {Matrix(), std::vector<Tensor>{Ints({1})}},
       .attrs = {{"first_n", int64_t{0}}}},
      {.op = "Select",
       .args = {TensorOf<bool>({3}, {true, false, true}), Doubles({1, 2, 3}), Doubles({4, 5, 6})}},
      {.op = "SelectV2",
       .args = {TensorOf<bool>({2, 1}, {true, false}), Doubles({1, 2, 3}), Scalar(4)}},
  };
}

std::vector<Case> ArrayCases() {
  const Tensor paddings = TensorOf<int32_t>({2, 2}, {1, 0, 1, 2});
  const std::vector<OpAttr> reflect = {{"mode", "REFLECT"}};
  const std::vector<Tensor> stitched = {Ints({3, 0, 1}), Ints({2})};
  const std::vector<Tensor> parts = {TensorOf<double>({3, 1}, {1, 2, 3}),
                                     TensorOf<double>({1, 1}, {4})};
  return {
      {.op = "Concat", .args = {Int(1), std::vector<Tensor>{Matrix(), Matrix()}}},
      {.op = "ConcatV2", .args = {std::vector<Tensor>{Matrix(), Matrix()}, Int(0)}},
      {.op = "ConjugateTranspose",
       .args = {TensorOf<std::complex<double>>({1, 2}, {{0.3, 0.8}, {-1, 2}}), Ints({1, 0})}},
      {.op = "DynamicPartition",
       .args = {Rows(), Ints({1, 0, 1, 1})},
       .attrs = {{"num_partitions", int64_t{2}}}},
      {.op = "DynamicStitch", .args = {stitched, parts}},
      {.op = "ExpandDims", .args = {Matrix(), Int(1)}},
      {.op = "Fill", .args = {Ints({2, 3}), Scalar(2)}},
      {.op = "Gather", .args = {Matrix(), Ints({1, 0, 1})}},
      {.op = "GatherNd", .args = {Matrix(), TensorOf<int32_t>({2, 2}, {1, 0, 1, 2})}},
      {.op = "GatherV2", .args = {Matrix(), Ints({2, 0, 2}), Int(1)}},
      {.op = "IdentityN", .args = {std::vector<Tensor>{Matrix(), Doubles({1})}}},
      {.op = "MirrorPad", .args = {Matrix(), paddings}, .attrs = reflect},
      {.op = "MirrorPadGrad",
       .args = {TensorOf<double>({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}),
                TensorOf<int32_t>({2, 2}, {0, 0, 1, 0})},
       .attrs = reflect},
      {.op = "Pack", .args = {std::vector<Tensor>{Matrix(), Matrix()}}, .attrs = {{"axis", 1}}},
      {.op = "Pad", .args = {Matrix(), paddings}},
      {.op = "PadV2", .args = {Matrix(), paddings, Scalar(4)}},
      {.op = "ParallelDynamicStitch", .args = {stitched, parts}},
      {.op = "PlaceholderWithDefault",
       .args = {Matrix()},
       .attrs = {{"shape", PartialShape({2, -1})}}},
      {.op = "PreventGradient",
       .args = {Matrix()},
       .attrs = {{"message", "not through here"}},
       .refusal = "not through here"},
      {.op = "Reshape", .args = {Matrix(), Ints({3, -1})}},
      {.op = "ReverseV2", .args = {Matrix(), Ints({1})}},
      {.op = "ScatterNd", .args = {TensorOf<int32_t>({2, 1}, {2, 0}), Doubles({1, 2}), Ints({4})}},
      {.op = "Slice", .args = {Matrix(), Ints({0, 1}), Ints({2, 2})}},
      {.op = "Split", .args = {Int(1), Matrix()}, .attrs = {{"num_split", 3}}},
      {.op = "SplitV", .args = {Matrix(), Ints({1, 2}), Int(1)}, .attrs = {{"num_split", 2}}},
      {.op = "Squeeze", .args = {TensorOf<double>({2, 1}, {1, 2})}},
      {.op = "StridedSlice", .args = {Matrix(), Ints({0, 2}), Ints({2, 0}), Ints({1, -1})}},
      {.op = "StridedSliceGrad",
       .args = {Ints({3}), Ints({0}), Ints({3}), Ints({2}), Doubles({1, 2})}},
      {.op = "Tile", .args = {Matrix(), Ints({2, 1})}},
      {.op = "Transpose", .args = {Matrix(), Ints({1, 0})}},
      {.op = "Unpack", .args = {Matrix()}, .attrs = {{"num", 2}}},
  };
}

std::vector<Case> NnCases() {
  std::vector<Case> cases = {
      {.op = "BiasAdd", .args = {Matrix(), Doubles({1, 2, 3})}},
      {.op = "BiasAddGrad", .args = {Matrix()}},
      {.op = "BiasAddV1", .args = {Matrix(), Doubles({1, 2, 3})}},
      {.op = "LRN", .args = {TensorOf<float>({1, 1, 1, 4}, {1, -2, 0.5f, 3})}},
      {.op = "LogSoftmax", .args = {Matrix()}},
      {.op = "Softmax", .args = {Matrix()}},
      {.op = "SoftmaxCrossEntropyWithLogits",
       .args = {Matrix(), TensorOf<double>({2, 3}, {0.2, 0.5, 0.3, 0.1, 0.1, 0.8})}},
      {.op = "SparseSoftmaxCrossEntropyWithLogits", .args = {Matrix(), Ints({2, 0})}},
      {.op = "TopK", .args = {Matrix()}, .attrs = {{"k", 2}}, .outputs = {0}},
      {.op = "TopKV2", .args = {Matrix(), Int(2)}, .outputs = {0}},
  };

  const std::vector<int64_t> one = {1, 1, 1, 1}, two = {1, 2, 2, 1};
  const std::vector<OpAttr> conv = {{"strides", one}, {"padding", "VALID"}};
  const Tensor filter = TensorOf<double>({2, 2, 1, 2}, {1, -2, 0.5, 3, 2, 1, -1, 0.3});
  const Tensor conv_grad = TensorOf<double>({1, 1, 3, 2}, {1, 2, -1, 0.5, 3, 2});
  cases.push_back({.op = "Conv2D", .args = {Image(), filter}, .attrs = conv});
  cases.push_back({.op = "Conv2DBackpropInput",
                   .args = {Ints({1, 2, 4, 1}), filter, conv_grad},
                   .attrs = conv});
  cases.push_back({.op = "Conv2DBackpropFilter",
                   .args = {Image(), Ints({2, 2, 1, 2}), conv_grad},
                   .attrs = conv});

  // The largest elements of Image stay the largest while one is moved.
  const std::vector<OpAttr> same = {{"padding", "VALID"}};
  const std::vector<OpAttr> window = {{"ksize", two}, {"strides", two}, {"padding", "VALID"}};
  const Tensor largest = TensorOf<double>({1, 1, 2, 1}, {5, 7});
  const Tensor pool_grad = TensorOf<double>({1, 1, 2, 1}, {0.7, -2});
  const Tensor size = Ints({1, 2, 2, 1});
  cases.push_back({.op = "AvgPool", .args = {Image()}, .attrs = window});
  cases.push_back({.op = "AvgPoolGrad", .args = {Ints({1, 2, 4, 1}), pool_grad}, .attrs = window});
  cases.push_back({.op = "MaxPool", .args = {Image()}, .attrs = window});
  cases.push_back({.op = "MaxPoolGrad", .args = {Image(), largest, pool_grad}, .attrs = window});
  cases.push_back({.op = "MaxPoolGradGrad", .args = {Image(), largest, Image()}, .attrs = window});
  cases.push_back({.op = "MaxPoolV2", .args = {Image(), size, size}, .attrs = same});
  cases.push_back(
      {.op = "MaxPoolGradV2", .args = {Image(), largest, pool_grad, size, size}, .attrs = same});
  cases.push_back(
      {.op = "MaxPoolGradGradV2", .args = {Image(), largest, Image(), size, size}, .attrs = same});

  // Mean and variance of the batch, which are outputs, are computed and not given.
  const Tensor x = TensorOf<float>({1, 2, 2, 1}, {1, -2, 0.5f, 3});
  const Tensor scale = Floats({1.5f}), none = Floats({});
  for (const char* op : {"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"}) {
    cases.push_back({.op = op,
                     .args = {x, scale, Floats({0.5f}), none, none},
                     .attrs = {{"epsilon", 0.01f}},
                     .outputs = {0}});
  }
  // Of images that the means and variances are of: those have no gradient of their own.
  for (const std::string version : {"", "V2", "V3"}) {
    cases.push_back(
        {.op = "FusedBatchNormGrad" + version,
         .args = {TensorOf<float>({1, 2, 2, 1}, {0.5f, 1, -1, 2}), x, scale},
         .build = [version](const Scope& s, const Outputs& in) {
           const Output none = Const(s, Floats({}));
           const std::string op = "FusedBatchNorm" + version;
           const FusedBatchNormOutputs norm = FusedBatchNormBuilder{op.c_str()}(
               s, in[1], in[2], ZerosLike(s, in[2]), none, none, {.epsilon = 0.01f});
           Outputs inputs = {in[0], in[1], in[2], norm.reserve_space_1, norm.reserve_space_2};
           if (version == "V3") inputs.push_back(norm.reserve_space_3);
           NodeBuilder grad(s, "FusedBatchNormGrad" + version);
           for (const Output& input : inputs) grad.Input(input);
           grad.Attr("epsilon", 0.01f);
           return grad.Finish().outputs(0, 3);
         }});
  }
  const std::string no_second = "has no gradient";
  cases.push_back({.op = "LRNGrad", .args = {x, x, x}, .refusal = no_second});
  return cases;
}

std::vector<Case> SparseCases() {
  const auto longs = [](std::initializer_list<int64_t> v) { return Tensor::Vector<int64_t>(v); };
  const Tensor shape = longs({2, 3}), indices = Tensor::Of<int64_t>({{0, 1}, {1, 0}, {1, 2}});
  const Tensor values = Doubles({1.5, -2, 0.7});
  const Tensor picked = Ints({3, 0, 3, 1}), ids = Ints({0, 0, 1, 3});
  std::vector<Case> cases = {
      {.op = "SparseFillEmptyRows",
       .args = {Tensor::Of<int64_t>({{2, 1}, {0, 0}, {2, 0}}), values, longs({4, 2}), Scalar(5)}},
      {.op = "SparseFillEmptyRowsGrad", .args = {longs({2, 0}), values}},
      {.op = "SparseReorder",
       .args = {Tensor::Of<int64_t>({{1, 2}, {0, 1}, {1, 0}}), values, shape}},
      {.op = "SparseToDense", .args = {indices, shape, values, Scalar(5)}},
      {.op = "SparseAdd",
       .args = {indices, values, shape, Tensor::Of<int64_t>({{0, 0}, {1, 0}}), Doubles({3, 4}),
                shape, Scalar(0)}},
      {.op = "SparseTensorDenseAdd", .args = {indices, values, shape, Matrix()}},
      {.op = "SparseConcat",
       .args = {std::vector<Tensor>{indices, indices}, std::vector<Tensor>{values, values},
                std::vector<Tensor>{shape, shape}},
       .attrs = {{"concat_dim", int64_t{1}}}},
      {.op = "SparseSplit",
       .args = {Tensor::Scalar<int64_t>(1), indices, values, shape},
       .attrs = {{"num_split", int64_t{2}}}},
      {.op = "SparseSlice", .args = {indices, values, shape, longs({0, 1}), longs({2, 2})}},
      {.op = "SparseTensorDenseMatMul",
       .args = {indices, values, shape, TensorOf<double>({3, 2}, {1, 2, 3, 4, 5, 6})}},
      {.op = "SparseReduceSum", .args = {indices, values, shape, Ints({1})}},
      {.op = "SparseReduceMax", .args = {indices, values, shape, Ints({1})}},
      {.op = "SparseSoftmax", .args = {indices, values, shape}},
  };
  for (const char* op : {"SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"}) {
    cases.push_back({.op = op, .args = {Rows(), picked, ids}});
    cases.push_back(
        {.op = absl::StrCat(op, "WithNumSegments"), .args = {Rows(), picked, ids, Int(5)}});
  }
  for (const char* op : {"SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv"}) {
    cases.push_back({.op = op, .args = {indices, values, shape, Doubles({3, -2, 0.5})}});
  }
  for (const char* op : {"SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad"}) {
    cases.push_back({.op = op, .args = {Rows(), picked, ids, Int(4)}});
  }
  return cases;
}

std::vector<Case> StateCases() {
  return {
      {.op = "ReadVariableOp", .args = {VariableOf(Matrix())}, .attrs = {{"dtype", DT_DOUBLE}}},
      {.op = "ResourceGather",
       .args = {VariableOf(Matrix()), Ints({1, 0, 1})},
       .attrs = {{"dtype", DT_DOUBLE}}},
      // Of two rows, of one of them twice.
      {.op = "_RowSums",
       .args = {VariableOf(Matrix()), Ints({1, 0, 1}), Ints({0, 0, 1})},
       .attrs = {{"dtype", DT_DOUBLE}}},
      {.op = "ResourceGatherNd",
       .args = {VariableOf(Matrix()), TensorOf<int32_t>({2, 2}, {1, 0, 0, 2})},
       .attrs = {{"dtype", DT_DOUBLE}}},
  };
}

// Numbers beside rows of a table, two examples of one row and one without; and of a part of a
// table, which has no row of id 0.
std::vector<Case> ColumnCases() {
  Arg tables = VariableOf(TensorOf<float>({2, 2}, {0.5f, -1, 2, 1.5f}));
  tables.is_list = true;
  return {{.op = "_ColumnLayer",
           .args = {TensorOf<int64_t>({1, 3}, {1, -1, 1}),
                    std::vector<Tensor>{TensorOf<float>({3, 1}, {1, 2, -0.5f})}, tables},
           .attrs = {{"kinds", std::vector<std::string>{"numbers", "rows"}},
                     {"from", std::vector<int64_t>{0, 0}},
                     {"of_table", std::vector<int64_t>{-1, 0}},
                     {"offsets", std::vector<int64_t>{0, 1}},
                     {"widths", std::vector<int64_t>{1, 2}},
                     {"width", int64_t{3}}}},
          {.op = "_ColumnLayer",
           .args = {TensorOf<int64_t>({1, 4}, {2, -1, 0, 2}),
                    std::vector<Tensor>{TensorOf<float>({4, 1}, {1, 2, -0.5f, 3})}, tables},
           .attrs = {{"kinds", std::vector<std::string>{"numbers", "rows"}},
                     {"from", std::vector<int64_t>{0, 0}},
                     {"of_table", std::vector<int64_t>{-1, 0}},
                     {"offsets", std::vector<int64_t>{0, 1}},
                     {"widths", std::vector<int64_t>{1, 2}},
                     {"width", int64_t{3}},
                     {"row_begins", std::vector<int64_t>{1}},
                     {"row_ends", std::vector<int64_t>{3}},
                     {"row_counts", std::vector<int64_t>{3}}}},
          {.op = "_ColumnPick",
           .args = {TensorOf<float>({2, 3}, {0.5f, -1, 2, 1.5f, 0.25f, -2}),
                    TensorOf<int32_t>({2, 3}, {1, 0, 1, 0, 0, 0})},
           .attrs = {{"widths", std::vector<int64_t>{1, 2}}}}};
}

// Either branch of a conditional.
std::vector<Case> ControlCases() {
  std::vector<Case> cases;
  for (const char* op : {"Switch", "Merge"}) {
    for (const bool pred : {false, true}) {
      cases.push_back({.op = op,
                       .args = {Matrix()},
                       .build = [pred](const Scope& s, const std::vector<Output>& x) {
                         const SwitchOutputs ways = Switch(s, x[0], Const(s, pred));
                         return std::vector<Output>{
                             Merge(s, {Identity(s, ways.output_false), ways.output_true}).output};
                       }});
    }
  }
  return cases;
}

std::vector<Case> RecurrentCases() {
  const auto matrix = [](int64_t rows, int64_t columns, float from) {
    std::vector<float> values;
    for (int64_t i = 0; i < rows * columns; ++i) {
      values.push_back(from + 0.37f * static_cast<float>((i * 7) % 5) - 0.6f);
    }
    return *Tensor::FromValues<float>(*Shape::Make({rows, columns}), values);
  };
  const auto vector = [&](int64_t n, float from) {
    return *matrix(1, n, from).Reshaped(*Shape::Make({n}));
  };
  // Two examples, three inputs, two cells.
  std::vector<Arg> lstm = {matrix(2, 3, 0.1f), matrix(2, 2, 0.2f), matrix(2, 2, -0.1f),
                           matrix(5, 8, 0),    vector(2, 0.3f),    vector(2, 0.1f),
                           vector(2, -0.2f),   vector(8, 0.2f)};
  std::vector<Case> cases;
  for (const bool peephole : {false, true}) {
    cases.push_back({.op = "LSTMBlockCell",
                     .args = lstm,
                     .attrs = {{"use_peephole", peephole}, {"cell_clip", 100.0f}},
                     .outputs = {1, 6}});
  }
  for (const char* op : {"BlockLSTM", "BlockLSTMV2"}) {
    std::vector<Arg> sequence = lstm;
    sequence[0] = *matrix(6, 3, 0.1f).Reshaped(Shape{3, 2, 3});
    sequence.insert(sequence.begin(), Tensor::Scalar<int64_t>(2));  // of three steps
    for (const bool peephole : {false, true}) {
      cases.push_back({.op = op,
                       .args = sequence,
                       .attrs = {{"use_peephole", peephole}, {"cell_clip", 100.0f}},
                       .outputs = {1, 6}});
    }
  }
  cases.push_back({.op = "GRUBlockCell",
                   .args = {matrix(2, 3, 0.1f), matrix(2, 2, 0.2f), matrix(5, 4, 0),
                            matrix(5, 2, 0.1f), vector(4, 0.2f), vector(2, -0.1f)},
                   .outputs = {3}});
  cases.push_back(
      {.op = "ReverseSequence", .args = {Matrix(), Ints({1, 3})}, .attrs = {{"seq_dim", 1}}});
  return cases;
}

// Each form of each op: an array that `write` fills and `read` empties.
std::vector<Case> TensorArrayCases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& op, const std::string& form, const std::string& write,
                       const std::string& read) {
    cases.push_back(
        {.op = op, .args = {Matrix()}, .build = [=](const Scope& s, const std::vector<Output>& x) {
           const Output size = Const(s, 2), one = Const(s, 1), both = Const<int32_t>(s, {1, 0});
           const Output lengths = Const<int64_t>(s, {0, 2});
           Output array;
           if (form == "V3") {
             array = TensorArrayV3(s, size, DT_DOUBLE).handle;
           } else {
             array = (form == "V2" ? TensorArrayV2 : TensorArrayV1)(s, size, DT_DOUBLE, {});
           }
           const std::string writer = "TensorArray" + write + form;
           Output flow = Const(s, 0.0f);
           if (write == "Write") flow = BuildOp(s, writer, {array, one, x[0], flow});
           if (write == "Scatter") flow = BuildOp(s, writer, {array, both, x[0], flow});
           if (write == "Unpack") flow = BuildOp(s, writer, {array, x[0], flow});
           if (write == "Split") flow = BuildOp(s, writer, {array, x[0], lengths, flow});
           const std::string reader = "TensorArray" + read + form;
           if (read == "Read") {
             return std::vector<Output>{BuildOp(s, reader, {array, one, flow}, "dtype", DT_DOUBLE)};
           }
           if (read == "Gather") {
             return std::vector<Output>{
                 BuildOp(s, reader, {array, both, flow}, "dtype", DT_DOUBLE)};
           }
           return std::vector<Output>{BuildOp(s, reader, {array, flow}, "dtype", DT_DOUBLE)};
         }});
  };
  for (const std::string form : {"", "V2", "V3"}) {
    add("TensorArrayWrite" + form, form, "Write", "Read");
    add("TensorArrayRead" + form, form, "Scatter", "Read");
    add("TensorArrayGather" + form, form, "Scatter", "Gather");
    add("TensorArrayScatter" + form, form, "Scatter", "Gather");
    add("TensorArrayConcat" + form, form, "Split", "Concat");
    add("TensorArraySplit" + form, form, "Split", "Concat");
  }
  add("TensorArrayPack", "", "Unpack", "Pack");
  add("TensorArrayUnpack", "", "Unpack", "Pack");
  return cases;
}

std::vector<Case> TensorListCases() {
  std::vector<Case> cases;
  const auto any = [](const Scope& s) { return Const(s, -1); };
  const auto both = [](const Scope& s) { return Const<int32_t>(s, {1, 0}); };
  const auto rows = [any](const Scope& s, const Output& list) {
    return std::vector<Output>{TensorListStack(s, list, any(s), DT_DOUBLE)};
  };
  // `make` gives a list or what is taken out of one, of a matrix or its rows as a list.
  const auto add = [&](const char* op,
                       std::function<Output(const Scope&, Output x, Output l)> make) {
    cases.push_back(
        {.op = op, .args = {Matrix()}, .build = [=](const Scope& s, const std::vector<Output>& x) {
           const Output made = make(s, x[0], TensorListFromTensor(s, x[0], any(s)));
           return made.dtype() == DT_VARIANT ? rows(s, made) : std::vector<Output>{made};
         }});
  };
  add("TensorListFromTensor", [](const Scope&, Output, Output list) { return list; });
  add("TensorListStack", [](const Scope&, Output, Output list) { return list; });
  add("TensorListPushBack", [=](const Scope& s, Output x, Output list) {
    return TensorListPushBack(s, list, TensorListGetItem(s, list, Const(s, 1), any(s), x.dtype()));
  });
  add("TensorListPopBack", [=](const Scope& s, Output x, Output list) {
    return TensorListPopBack(s, list, any(s), x.dtype()).tensor;
  });
  add("TensorListSetItem", [=](const Scope& s, Output x, Output list) {
    return TensorListSetItem(s, list, Const(s, 0),
                             TensorListGetItem(s, list, Const(s, 1), any(s), x.dtype()));
  });
  add("TensorListGetItem", [=](const Scope& s, Output x, Output list) {
    return TensorListGetItem(s, list, Const(s, 1), any(s), x.dtype());
  });
  add("TensorListResize",
      [](const Scope& s, Output, Output list) { return TensorListResize(s, list, Const(s, 1)); });
  add("TensorListGather", [=](const Scope& s, Output x, Output list) {
    return TensorListGather(s, list, both(s), any(s), x.dtype());
  });
  add("TensorListScatter",
      [=](const Scope& s, Output x, Output) { return TensorListScatter(s, x, both(s), any(s)); });
  add("TensorListScatterV2", [=](const Scope& s, Output x, Output) {
    return TensorListScatterV2(s, x, both(s), any(s), Const(s, 3));
  });
  add("TensorListScatterIntoExistingList", [=](const Scope& s, Output x, Output list) {
    return TensorListScatterIntoExistingList(s, list, x, Const<int32_t>(s, {2, 1}));
  });
  for (const char* op : {"TensorListSplit", "TensorListConcat", "TensorListConcatV2"}) {
    add(op, [=](const Scope& s, Output x, Output) {
      const Output list = TensorListSplit(s, x, any(s), Const<int64_t>(s, {2, 0}));
      if (op == std::string("TensorListConcat")) return TensorListConcat(s, list, DT_DOUBLE).tensor;
      const Output none = Const<int64_t>(s, std::initializer_list<int64_t>{});
      return TensorListConcatV2(s, list, any(s), none, DT_DOUBLE).tensor;
    });
  }
  return cases;
}

// Condition and body of a loop over (i, x) that makes x to -x^2 twice.
std::pair<FunctionName, FunctionName> TwoRounds(const Scope& s) {
  const std::vector<DType> types = {DT_INT32, DT_DOUBLE};
  const FunctionName cond = {
      DefineFunction(s, "cond", types, [](const Scope& t, const Outputs& in) {
        return Outputs{Less(t, in[0], Const(t, 2))};
      }).name};
  const FunctionName body = {
      DefineFunction(s, "body", types, [](const Scope& t, const Outputs& in) {
        return Outputs{Add(t, in[0], Const(t, 1)), Mul(t, in[1], Neg(t, in[1]))};
      }).name};
  return {cond, body};
}

// Calls of functions; what a function's gradient does with what is inside of it is proved in the
// families' test.
std::vector<Case> FunctionCases() {
  const auto define = [](const Scope& s) {
    return DefineFunction(s, "f", {DT_DOUBLE, DT_DOUBLE}, [](const Scope& t, const Outputs& x) {
      return Outputs{Mul(t, Tanh(t, x[0]), x[1]), x[1]};
    });
  };
  std::vector<Case> cases;
  cases.push_back(
      {.op = "PartitionedCall",
       .args = {Matrix(), Matrix()},
       .build = [define](const Scope& s, const Outputs& x) { return Call(s, define(s), x); }});
  cases.push_back({.op = "StatefulPartitionedCall",
                   .args = {Matrix(), VariableOf(Matrix())},
                   .build = [](const Scope& s, const Outputs& x) {
                     const DefinedFunction f = DefineFunction(
                         s, "f", {DT_DOUBLE, DT_RESOURCE}, [&](const Scope& t, const Outputs& in) {
                           // Twice the same variable: as an argument, and from around the function.
                           const Output v = ReadVariableOp(t, in[1], DT_DOUBLE);
                           const Output w = ReadVariableOp(t, x[1], DT_DOUBLE);
                           return Outputs{Mul(t, Mul(t, v, Square(t, in[0])), w)};
                         });
                     return Call(s, f, x);
                   }});
  cases.push_back(
      {.op = "SymbolicGradient",
       .args = {Matrix(), Matrix(), Matrix(), Matrix()},
       .build = [define](const Scope& s, const Outputs& x) {
         const BuiltNode node = SymbolicGradient(s, x, {DT_DOUBLE, DT_DOUBLE}, {define(s).name});
         return node.outputs(0, 2);
       }});
  // Branches that keep different things for their gradients, and of which one has none for an
  // argument.
  const auto branches = [](const Scope& s) {
    std::vector<FunctionName> names;
    for (const bool first : {true, false}) {
      names.push_back({DefineFunction(s, "branch", {DT_DOUBLE, DT_DOUBLE, DT_RESOURCE},
                                      [&](const Scope& t, const Outputs& x) {
                                        if (first) return Outputs{Mul(t, Exp(t, x[0]), x[1])};
                                        const Output v = ReadVariableOp(t, x[2], DT_DOUBLE);
                                        return Outputs{Mul(t, Sin(t, x[0]), v)};
                                      })
                           .name});
    }
    return names;
  };
  for (const std::string op : {"If", "StatelessIf", "Case"}) {
    for (const bool first : {true, false}) {
      cases.push_back({.op = op,
                       .args = {Matrix(), Matrix(), VariableOf(Matrix())},
                       .build = [=](const Scope& s, const Outputs& x) {
                         const std::vector<FunctionName> f = branches(s);
                         if (op == "Case") {
                           return Outputs{
                               millrace::Case(s, Const(s, first ? 0 : 1), x, {DT_DOUBLE}, f)};
                         }
                         const Output p = Const(s, first);
                         return Outputs{op == "If" ? If(s, p, x, {DT_DOUBLE}, f[0], f[1])
                                                   : StatelessIf(s, p, x, {DT_DOUBLE}, f[0], f[1])};
                       }});
    }
  }
  cases.push_back({.op = "_Alive", .args = {Matrix()}, .outputs = {0}});
  for (const std::string op : {"While", "StatelessWhile"}) {
    cases.push_back({.op = op, .args = {Matrix()}, .build = [=](const Scope& s, const Outputs& x) {
                       const auto [cond, body] = TwoRounds(s);
                       const Outputs variables = {Const(s, 0), x[0]};
                       return Outputs{op == "While"
                                          ? While(s, variables, cond, body).output(1)
                                          : StatelessWhile(s, variables, cond, body).output(1)};
                     }});
  }
  cases.push_back({.op = "For", .args = {Matrix()}, .build = [](const Scope& s, const Outputs& x) {
                     const DefinedFunction body = DefineFunction(
                         s, "body", {DT_INT32, DT_DOUBLE}, [](const Scope& t, const Outputs& in) {
                           return Outputs{Mul(t, in[1], in[1])};
                         });
                     return Outputs{For(s, Const(s, 0), Const(s, 2), Const(s, 1), x, {body.name})};
                   }});
  return cases;
}

std::vector<Case> AllCases() {
  std::vector<Case> all;
  for (const auto& family : {UnaryCases, BinaryCases, ReductionCases, MathCases, ArrayCases,
                             NnCases, SparseCases, StateCases, ColumnCases, ControlCases,
                             TensorArrayCases, TensorListCases, RecurrentCases, FunctionCases}) {
    for (Case& c : family()) all.push_back(std::move(c));
  }
  return all;
}

// --- Checks --------------------------------------------------------------------------------------

// The gradient is checked for this argument. What gets none (where the largest elements of a pool
// are) must not matter.
bool IsChecked(const Case& c, size_t arg) {
  return c.args[arg].is_variable || IsTrainable(c.args[arg].tensors[0].dtype());
}

// One node of op `c.op`. An argument comes from `inputs`, as far as it `is_fed`, or is a constant.
template <typename IsFed>
std::vector<Output> BuildNode(const Case& c, const Scope& scope, const std::vector<Output>& inputs,
                              IsFed is_fed) {
  NodeBuilder builder(scope, c.op);
  auto input = inputs.begin();
  for (size_t a = 0; a < c.args.size(); ++a) {
    std::vector<Output> outputs;
    for (const Tensor& t : c.args[a].tensors) {
      outputs.push_back(is_fed(a) ? *input++ : Const(scope, t));
    }
    c.args[a].is_list ? builder.Input(outputs) : builder.Input(outputs[0]);
  }
  for (const OpAttr& attr : c.attrs) builder.Attr(attr.name, attr.value);
  const BuiltNode node = builder.Finish();
  std::vector<Output> outputs;
  for (int i = 0; i < node.num_outputs(); ++i) {
    if (c.outputs.empty() ? IsTrainable(node.output(i).dtype()) : c.outputs.contains(i)) {
      outputs.push_back(node.output(i));
    }
  }
  return outputs;
}

bool HasNodeOf(const Scope& scope, absl::string_view op) {
  for (const auto& node : scope.graph()->nodes()) {
    if (node != nullptr && node->op() == op) return true;
  }
  return false;
}

// The arguments that are not checked are fed, or constants, which gradient functions may look at.
void ExpectRightGradients(const Case& c) {
  for (const bool others_are_fed : {true, false}) {
    SCOPED_TRACE(others_are_fed ? "the others are fed" : "the others are constants");
    const auto is_fed = [&](size_t arg) { return others_are_fed || IsChecked(c, arg); };
    OpTestDevice device;
    std::vector<Tensor> fed;
    GradientCheckOptions options;
    for (size_t a = 0; a < c.args.size(); ++a) {
      for (const Tensor& t : c.args[a].tensors) {
        if (!is_fed(a)) continue;
        fed.push_back(c.args[a].is_variable ? device.VariableHandle("variable", t) : t);
      }
    }
    options.device = &device;
    const BuildOutputs build = [&](const Scope& scope, const std::vector<Output>& inputs) {
      const std::vector<Output> outputs =
          c.build ? c.build(scope, inputs) : BuildNode(c, scope, inputs, is_fed);
      EXPECT_FALSE(outputs.empty());
      EXPECT_TRUE(HasNodeOf(scope, c.op));
      return outputs;
    };
    ExpectGradientsMatch(build, fed, options);
  }
}

void ExpectRefusal(const Case& c) {
  Scope scope;
  std::vector<Output> inputs;
  for (const Arg& arg : c.args) {
    for (const Tensor& t : arg.tensors) inputs.push_back(TestInput(scope, t.dtype(), t.shape()));
  }
  const std::vector<Output> outputs =
      c.build ? c.build(scope, inputs) : BuildNode(c, scope, inputs, [](size_t) { return true; });
  ASSERT_OK(scope.status());
  const Status status = AddGradients(scope, outputs, inputs).status();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), c.refusal)) << status;
}

TEST(DifferentiableOps, HaveACaseEach) {
  std::set<std::string> cases, ops;
  for (const Case& c : AllCases()) cases.insert(c.op);
  for (const OpEntry* entry : AllOps()) {
    if (entry->differentiability != OpEntry::Differentiability::kHasGradient) continue;
    ops.insert(entry->def.name());
    EXPECT_TRUE(cases.contains(entry->def.name()))
        << entry->def.name() << " has a gradient: give it a case in ops/differentiable_test.cc";
  }
  for (const std::string& op : cases) {
    EXPECT_TRUE(ops.contains(op)) << "the case of " << op << " is of no differentiable op";
  }
}

TEST(DifferentiableOps, HaveTheGradientThatFiniteDifferencesGive) {
  for (const Case& c : AllCases()) {
    SCOPED_TRACE(c.op);
    c.refusal.empty() ? ExpectRightGradients(c) : ExpectRefusal(c);
  }
}

// --- Functions -----------------------------------------------------------------------------------

Output GradientOf(const Scope& s, const Output& y, const Output& x) {
  const StatusOr<std::vector<Gradient>> grads = AddGradients(s, {y}, {x});
  EXPECT_OK(grads.status());
  return grads.ok() ? DenseGradient(s, (*grads)[0]) : Output();
}

// The branch that is not taken keeps a list of what its loop has been through: of the second order,
// too, there is nothing in place of it.
TEST(DifferentiableFunctions, OfTheSecondOrderWhereABranchHasALoop) {
  for (const bool loops : {true, false}) {
    SCOPED_TRACE(loops ? "the loop's branch" : "the other branch");
    const BuildOutput build = [loops](const Scope& s, const Outputs& x) {
      const auto rounds = TwoRounds(s);
      const FunctionName loop = {
          DefineFunction(s, "loop", {DT_DOUBLE}, [&](const Scope& t, const Outputs& in) {
            return Outputs{While(t, {Const(t, 0), in[0]}, rounds.first, rounds.second).output(1)};
          }).name};
      const FunctionName square = {
          DefineFunction(s, "square", {DT_DOUBLE}, [](const Scope& t, const Outputs& in) {
            return Outputs{Mul(t, Square(t, in[0]), in[0])};
          }).name};
      const Output y = If(s, Const(s, loops), Outputs{x[0]}, {DT_DOUBLE}, loop, square);
      return GradientOf(s, y, x[0]);
    };
    ExpectGradientsMatch(build, {Matrix()});
  }
}

// Each calculation of gradients has arrays of its own, also within a function: two in one step, and
// one of the other.
TEST(DifferentiableFunctions, ThroughAnArrayTwiceInOneStep) {
  ExpectGradientsMatch(
      [](const Scope& s, const Outputs& x) {
        const DefinedFunction f =
            DefineFunction(s, "f", {DT_DOUBLE}, [](const Scope& t, const Outputs& in) {
              const Output array = TensorArrayV3(t, Const(t, 2), DT_DOUBLE).handle;
              const Output one = Const(t, 1);
              const Output flow =
                  BuildOp(t, "TensorArrayWriteV3",
                          {array, one, Mul(t, Square(t, in[0]), in[0]), Output(Const(t, 0.0f))});
              return Outputs{
                  BuildOp(t, "TensorArrayReadV3", {array, one, flow}, "dtype", DT_DOUBLE)};
            });
        const Output y = Call(s, f, x)[0];
        return Add(s, GradientOf(s, y, x[0]), GradientOf(s, Square(s, y), x[0]));
      },
      {Matrix()});
}

}  // namespace
}  // namespace millrace
