// SPDX-License-Identifier: Apache-2.0
// Builders take what programs have: numbers, lists, shapes and axes in place of constants.

#include <cstdint>
#include <iterator>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/tensor_arg.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "runtime/testing/op_test.h"

// covers: values: a number or a list in place of a tensor is a constant of the dtype that the op
//   asks for there; one that the dtype does not have is refused with the line of the call
// covers: accidents: {0, 1} is a list of numbers wherever a tensor is asked, never a null node

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Output X(ScopeAt at) { return Const(at, Tensor::Of({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}})); }
Output V(ScopeAt at) { return Const(at, Tensor::Of({1.f, 2.f, 3.f})); }
Output N(ScopeAt at) { return Const(at, Tensor::Of<int32_t>({3, 1, 4, 1})); }
Output L(ScopeAt at) { return Const(at, Tensor::Of<int64_t>({3, 1, 4, 1})); }
Output Half3(ScopeAt at) { return Const(at, Tensor::Of<Half>({1.f, 2.f, 3.f})); }
Output B(ScopeAt at) { return Const(at, Tensor::Of({true, false})); }
Output T(ScopeAt at) { return Const(at, Tensor::Of({"a", "b"})); }

struct Call {
  const char* text;
  const char* want;  // what the value begins with
  Output (*build)(const Scope& m);
};
#define MR_CALL(want, ...)                                                   \
  {                                                                          \
    #__VA_ARGS__, want, [](const Scope& m) -> Output { return __VA_ARGS__; } \
  }

// As TensorFlow's guide and its documentation of functions call them.
const Call kCalls[] = {
    // Shapes.
    MR_CALL("float[3,2]: 1 2 3 4 5 6", Reshape(m, X(m), {3, 2})),
    MR_CALL("float[3,2]: 1 2 3 4 5 6", Reshape(m, X(m), {-1, 2})),
    MR_CALL("float[6]: 1 2 3 4 5 6", Reshape(m, X(m), {-1})),
    MR_CALL("float[1,6]: 1 2", Reshape(m, X(m), Shape{1, 6})),
    MR_CALL("float[6,1]: 1 2", Reshape(m, X(m), PartialShape{-1, 1})),
    MR_CALL("float[2,3]: 1 2", Reshape(m, X(m), std::vector<int64_t>{2, 3})),
    MR_CALL("float[2,3]: 1 2", Reshape(m, X(m), std::vector<int>{2, 3})),
    MR_CALL("float[]: 1", Reshape(m, Reshape(m, V(m)[0], {1}), {})),
    MR_CALL("float[2,3]: 1 2", Reshape(m, X(m), Const<int32_t>(m, {2, 3}))),
    MR_CALL("int32[2,2]: 1 2 3 4", Reshape(m, {1, 2, 3, 4}, {2, 2})),
    MR_CALL("float[1,3]: 1 2 3", ExpandDims(m, V(m), 0)),
    MR_CALL("float[3,1]: 1 2 3", ExpandDims(m, V(m), 1)),
    MR_CALL("float[3,1]: 1 2 3", ExpandDims(m, V(m), -1)),
    MR_CALL("float[2,3,1]: 1 2", ExpandDims(m, X(m), 2)),
    MR_CALL("float[3]: 1 2 3", Squeeze(m, ExpandDims(m, V(m), 0))),
    MR_CALL("float[2,3]: 1 2 3 1 2 3", BroadcastTo(m, V(m), {2, 3})),
    MR_CALL("float[3,2]: 1 4 2 5 3 6", Transpose(m, X(m), {1, 0})),
    MR_CALL("float[2,3]: 1 2 3 4 5 6", Transpose(m, X(m), {0, 1})),
    MR_CALL("float[1,2,3]: 1 2", Transpose(m, ExpandDims(m, X(m), 1), {1, 0, 2})),
    MR_CALL("float[2,6]: 1 2 3 1 2 3", Tile(m, X(m), {1, 2})),
    MR_CALL("float[4,3]: 1 2 3 4 5 6 1 2", Tile(m, X(m), {2, 1})),
    MR_CALL("float[5]: 0 1 2 3 0", Pad(m, V(m), {{1, 1}})),
    MR_CALL("float[4,7]: 0 0 0 0 0 0 0 0", Pad(m, X(m), {{1, 1}, {2, 2}})),
    MR_CALL("float[5]: 9 1 2 3 9", PadV2(m, V(m), {{1, 1}}, 9)),
    MR_CALL("float[5]: 2 1 2 3 2", MirrorPad(m, V(m), {{1, 1}}, "REFLECT")),
    MR_CALL("float[3]: 3 2 1", ReverseV2(m, V(m), {0})),
    MR_CALL("float[2,3]: 3 2 1 6 5 4", ReverseV2(m, X(m), {-1})),
    // Joining and parting.
    MR_CALL("float[4,3]: 1 2 3 4 5 6 1 2", Concat(m, {X(m), X(m)}, 0)),
    MR_CALL("float[2,6]: 1 2 3 1 2 3 4 5", Concat(m, {X(m), X(m)}, 1)),
    MR_CALL("float[2,6]: 1 2 3 1 2 3 4 5", Concat(m, {X(m), X(m)}, -1)),
    MR_CALL("float[6]: 1 2 3 1 2 3", ConcatV2(m, {V(m), V(m)}, 0)),
    MR_CALL("float[2,3]: 1 2 3 1 2 3", Stack(m, {V(m), V(m)})),
    MR_CALL("float[3,2]: 1 1 2 2 3 3", Stack(m, {V(m), V(m)}, 1)),
    MR_CALL("float[3,2]: 1 1 2 2 3 3", Stack(m, {V(m), V(m)}, -1)),
    MR_CALL("float[3]: 4 5 6", Unstack(m, X(m))[1]),
    MR_CALL("float[2]: 3 6", Unstack(m, X(m), 1)[2]),
    MR_CALL("float[2]: 1 4", Unstack(m, X(m), -1)[0]),
    MR_CALL("float[1,3]: 4 5 6", Split(m, X(m), 2)[1]),
    MR_CALL("float[2,1]: 3 6", Split(m, X(m), 3, 1)[2]),
    MR_CALL("float[2,2]: 2 3 5 6", SplitV(m, X(m), {1, 2}, 1, 2)[1]),
    MR_CALL("float[2,2]: 2 3 5 6", SplitV(m, X(m), {1, -1}, -1, 2)[1]),
    // Parts.
    MR_CALL("float[]: 1", V(m)[0]),
    MR_CALL("float[]: 3", V(m)[-1]),
    MR_CALL("float[3]: 4 5 6", X(m)[1]),
    MR_CALL("float[]: 6", X(m)[-1][2]),
    MR_CALL("float[1,2]: 2 3", Slice(m, X(m), {0, 1}, {1, 2})),
    MR_CALL("float[2,2]: 2 3 5 6", Slice(m, X(m), {0, 1}, {-1, -1})),
    MR_CALL("float[2]: 2 3", StridedSlice(m, V(m), {1}, {3}, {1})),
    MR_CALL("float[3]: 3 2 1", StridedSlice(m, V(m), {-1}, {0}, {-1}, {.end_mask = 1})),
    MR_CALL("float[2]: 3 1", Gather(m, V(m), {2, 0})),
    MR_CALL("float[3]: 4 5 6", Gather(m, X(m), 1)),
    MR_CALL("float[2,2]: 1 3 4 6", GatherV2(m, X(m), {0, 2}, 1)),
    MR_CALL("float[2]: 2 6", GatherNd(m, X(m), {{0, 1}, {1, 2}})),
    MR_CALL("float[4]: 0 5 0 7", ScatterNd(m, {{1}, {3}}, {5.f, 7.f}, {4})),
    MR_CALL("float[2]: 4 2", UnsortedSegmentSum(m, V(m), Const<int32_t>(m, {0, 1, 0}), 2)),
    // Constants.
    MR_CALL("float[2,3]: 0 0 0", Zeros(m, {2, 3})),
    MR_CALL("float[2]: 0 0", Zeros(m, Shape{2})),
    MR_CALL("int32[2]: 0 0", Zeros(m, {2}, DT_INT32)),
    MR_CALL("string[2]:", Zeros(m, {2}, DT_STRING)),
    MR_CALL("float[]: 0", Zeros(m, {})),
    MR_CALL("float[2,3]: 0 0 0", Zeros(m, ShapeOf(m, X(m)))),
    MR_CALL("float[3]: 1 1 1", Ones(m, {3})),
    MR_CALL("double[1,2]: 1 1", Ones(m, {1, 2}, DT_DOUBLE)),
    MR_CALL("bool[2]:", Ones(m, {2}, DT_BOOL)),
    MR_CALL("float[2,3]: 9 9 9", Fill(m, {2, 3}, 9.0f)),
    MR_CALL("int32[2]: 9 9", Fill(m, {2}, 9)),
    MR_CALL("string[2]:", Fill(m, {2}, "x")),
    MR_CALL("int32[4]: 0 1 2 3", Range(m, 0, 4, 1)),
    MR_CALL("int32[3]: 3 6 9", Range(m, 3, 10, 3)),
    MR_CALL("float[3]: 0 0.5 1", Range(m, 0, 1.5, 0.5)),
    MR_CALL("int64[2]: 0 4", Range(m, 0, int64_t{5}, Const(m, int64_t{4}))),
    MR_CALL("float[4,3]: 0 0 0 0 1 0 0 0", OneHot(m, N(m), 3)),
    MR_CALL("float[4,5]: 0 0 0 1 0 0 1 0", OneHot(m, N(m), 5)),
    MR_CALL("int32[2,3]: 7 5 5 5 7 5", OneHot(m, {0, 1}, 3, 7, 5)),
    MR_CALL("float[3,2]: 1 0 0 1 0 0", OneHot(m, {0, 1}, 3, 1.0f, 0.0f, {.axis = 0})),
    MR_CALL("double[2]: 0 1", OneHot(m, 1, 2, Const(m, 1.0), 0)),
    // Arithmetic, comparisons: the other side's dtype.
    MR_CALL("float[3]: 2 3 4", Add(m, V(m), 1)),
    MR_CALL("float[3]: 2 3 4", Add(m, 1, V(m))),
    MR_CALL("float[3]: 2 4 6", Add(m, V(m), {1, 2, 3})),
    MR_CALL("float[3]: 2 4 6", AddV2(m, V(m), {1.0, 2.0, 3.0})),
    MR_CALL("float[2,3]: 2 4 6 5 7 9", Add(m, X(m), {{1, 2, 3}})),
    MR_CALL("half[3]: 2 4 6", Mul(m, Half3(m), 2)),
    MR_CALL("int64[4]: 1 -1 2 -1", Sub(m, L(m), 2)),
    MR_CALL("int32[4]: 4 1 5 1", Add(m, N(m), Tensor::Of<int32_t>({1, 0, 1, 0}))),
    MR_CALL("float[3]: 0.5 1 1.5", RealDiv(m, V(m), 2)),
    MR_CALL("int32[4]: 1 0 2 0", FloorDiv(m, N(m), 2)),
    MR_CALL("int32[4]: 1 1 0 1", FloorMod(m, N(m), 2)),
    MR_CALL("float[3]: 1 4 9", Pow(m, V(m), 2)),
    MR_CALL("float[3]: 2 2 3", Maximum(m, V(m), 2)),
    MR_CALL("float[3]: 1 2 2", Minimum(m, 2.0, V(m))),
    MR_CALL("float[3]: 1 0 1", SquaredDifference(m, V(m), 2)),
    MR_CALL("float[]: 3.5", Add(m, 1, 2.5)),
    MR_CALL("int32[]: 3", Add(m, 1, 2)),
    MR_CALL("string[2]:", Add(m, T(m), "!")),
    MR_CALL("bool[3]:", Less(m, V(m), 1.0f)),
    MR_CALL("bool[3]:", Less(m, V(m), 2)),
    MR_CALL("bool[4]:", Greater(m, N(m), 2)),
    MR_CALL("bool[4]:", GreaterEqual(m, L(m), 2)),
    MR_CALL("bool[3]:", LessEqual(m, 0, V(m))),
    MR_CALL("bool[3]:", Equal(m, V(m), 2)),
    MR_CALL("bool[2]:", Equal(m, T(m), "a")),
    MR_CALL("bool[2]:", NotEqual(m, T(m), {"a", "c"})),
    MR_CALL("bool[2]:", LogicalAnd(m, B(m), true)),
    MR_CALL("bool[2]:", LogicalOr(m, B(m), {true, false})),
    MR_CALL("float[3]: 1 2 2.5", ClipByValue(m, V(m), 0, 2.5)),
    MR_CALL("float[3]: 0 2 3", SelectV2(m, Greater(m, V(m), 1), V(m), 0)),
    MR_CALL("float[2]: 1 5", SelectV2(m, B(m), {1.f, 2.f}, 5)),
    MR_CALL("float[3]: 0 0.5 1", Mul(m, Sub(m, V(m), 1), 0.5)),
    // Along axes.
    MR_CALL("float[]: 21", ReduceSum(m, X(m))),
    MR_CALL("float[3]: 5 7 9", ReduceSum(m, X(m), 0)),
    MR_CALL("float[2]: 6 15", ReduceSum(m, X(m), 1)),
    MR_CALL("float[2]: 6 15", ReduceSum(m, X(m), -1)),
    MR_CALL("float[]: 21", ReduceSum(m, X(m), {0, 1})),
    MR_CALL("float[2,1]: 6 15", ReduceSum(m, X(m), 1, {.keep_dims = true})),
    MR_CALL("float[2,1]: 6 15", ReduceSum(m, X(m), {1}, {.keep_dims = true})),
    MR_CALL("float[2]: 2 5", ReduceMean(m, X(m), 1)),
    MR_CALL("float[3]: 4 5 6", ReduceMax(m, X(m), 0)),
    MR_CALL("float[2]: 1 4", ReduceMin(m, X(m), {-1})),
    MR_CALL("float[2]: 6 120", ReduceProd(m, X(m), 1)),
    MR_CALL("float[]: 6", Sum(m, V(m), 0)),
    MR_CALL("float[]: 21", Sum(m, X(m), {0, 1})),
    MR_CALL("float[2]: 3 6", Max(m, X(m), 1)),
    MR_CALL("int64[2]: 2 2", ArgMax(m, X(m), 1)),
    MR_CALL("int64[3]: 1 1 1", ArgMax(m, X(m), 0)),
    MR_CALL("int64[]: 0", ArgMin(m, V(m), -1)),
    MR_CALL("float[3]: 1 3 6", Cumsum(m, V(m), 0)),
    MR_CALL("float[2,3]: 1 2 6 4 20 120", Cumprod(m, X(m), -1)),
    MR_CALL("float[2,3]:", Gelu(m, X(m))),
    MR_CALL("float[2,3]:", Gelu(m, X(m), {.approximate = true})),
    MR_CALL("float[]: 5", Norm(m, Const(m, Tensor::Of({3.f, 4.f})))),
    MR_CALL("float[2,1]:", Norm(m, X(m), 1, {.keep_dims = true})),
    MR_CALL("float[2]: 3 2", TopKV2(m, V(m), 2).values),
    // Random.
    MR_CALL("float[2,3]:", RandomNormal(m, {2, 3})),
    MR_CALL("double[2]:", RandomNormal(m, {2}, DT_DOUBLE, 1, 0.1)),
    MR_CALL("float[2,3]:", TruncatedNormal(m, {2, 3})),
    MR_CALL("float[4]:", RandomUniform(m, {4})),
    MR_CALL("float[4]:", RandomUniform(m, {4}, DT_FLOAT, -1, 1)),
    MR_CALL("int32[4]: 3 3 3 3", RandomUniformInt(m, {4}, 3, 4)),
    MR_CALL("int64[2,5]:", Multinomial(m, X(m), 5)),
};

TEST(Literals, TakeThePlaceOfConstants) {
  EXPECT_GE(std::size(kCalls), 125u);
  for (const Call& call : kCalls) {
    SCOPED_TRACE(call.text);
    Scope m;
    const Output output = call.build(m);
    ASSERT_OK(m.status());
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, EvaluateGraph(m, {}, {output}));
    EXPECT_TRUE(absl::StartsWith(got[0].DebugString(), call.want)) << got[0];
  }
}

TEST(Literals, AreNodesOfTensorFlowsNamesAtTheLineOfTheCall) {
  Scope root;
  const Scope m = root.WithSubScope("model");
  const Output x = X(root);
  const std::string line = absl::StrCat(__FILE__, ":", __LINE__ + 1);
  const Output y = Reshape(m, x, {-1, 2}), z = Less(m.WithName("small"), x, 2);
  ASSERT_OK(root.status());
  EXPECT_EQ(y.name(), "model/Reshape:0");
  EXPECT_EQ(z.name(), "model/small:0");
  for (const char* const name : {"model/Reshape/shape", "model/small/y"}) {
    const Node* const node = root.graph()->FindNode(name);
    ASSERT_NE(node, nullptr) << name;
    EXPECT_EQ(node->op(), "Const");
    EXPECT_EQ(node->built_at(), line);
  }
  // A second one of the name, and one in the scope of a reserved name.
  EXPECT_EQ(Reshape(m, x, {6}).name(), "model/Reshape_1:0");
  EXPECT_NE(root.graph()->FindNode("model/Reshape_1/shape"), nullptr);
  EXPECT_EQ(Reshape(m.WithName("model/Reshape_1/again/"), x, {6}).name(),
            "model/Reshape_1/again:0");
  // They are known to shape inference.
  EXPECT_EQ(root.shape(y).ToString(), "[3,2]");
  // They wait for nothing, what uses them does.
  const Operation first = NoOp(root);
  const Output last = Add(root.WithName("last").WithControlDependencies({first}), x, 1);
  EXPECT_FALSE(last.node()->control_inputs().empty());
  EXPECT_TRUE(root.graph()->FindNode("last/y")->control_inputs().empty());
}

TEST(Literals, ThatTheDTypeDoesNotHaveAreRefusedWithTheLineOfTheCall) {
  struct Case {
    void (*build)(const Scope& m);
    const char* want;
  };
  const Case cases[] = {
      {[](const Scope& m) { Less(m.WithName("small"), N(m), 1.5); }, "Less 'small': input 'y': "},
      {[](const Scope& m) { Add(m, Const(m, int8_t{1}), 300); }, "Add 'Add': input 'y': "},
      {[](const Scope& m) { Add(m, V(m), "text"); },
       "Add 'Add': input 'y': a value must be of the dtype float, got the text 'text'"},
      {[](const Scope& m) { Add(m, V(m), true); },
       "Add 'Add': input 'y': a value must be of the dtype float, got a bool"},
      {[](const Scope& m) { Reshape(m, X(m), 1.5); }, "Reshape"},
      {[](const Scope& m) {
         Pad(m, X(m), {{1, 1}, {1}});
       },
       "Pad 'Pad': input 'paddings': all rows of a list must be as long as the first, 2"},
      {[](const Scope& m) { Add(m, V(m), Tensor::Of<int32_t>({1})); },
       "Add 'Add': input 'y': a Tensor must be of the dtype float, got int32"},
      {[](const Scope& m) { Unstack(m, Placeholder(m, DT_FLOAT)); },
       "Unstack: dimension 0 of 'Placeholder:0' must be known, got shape <unknown>"},
      {[](const Scope& m) { Unstack(m, V(m), 1); }, "Unstack: dimension 1 of 'Const:0' must be"},
      {[](const Scope& m) { Ones(m, {2}, DT_STRING); }, "ones 'ones': "},
  };
  for (const Case& c : cases) {
    Scope m;
    c.build(m);
    EXPECT_STATUS(m.status(), kInvalid, c.want);
    EXPECT_TRUE(absl::StrContains(m.status().message(), absl::StrCat("; built at ", __FILE__, ":")))
        << m.status();
  }
}

TEST(Literals, AreNoNullTensors) {
  EXPECT_FALSE((std::is_convertible_v<int, Output>));
  EXPECT_FALSE((std::is_constructible_v<Output, int, int>));
  EXPECT_TRUE((std::is_constructible_v<Output, Node*, int>));
  // What has no home has no rows.
  EXPECT_FALSE(Output()[0].valid());
}

TEST(Literals, TensorsAreFoundByName) {
  Scope root;
  const Output x = X(root.WithSubScope("a").WithName("x"));
  ASSERT_OK_AND_ASSIGN(const Output found, root.Find("a/x:0"));
  EXPECT_EQ(found, x);
  ASSERT_OK_AND_ASSIGN(const Output first, root.Find("a/x"));
  EXPECT_EQ(first, x);
  EXPECT_STATUS(root.Find("b:0"), absl::StatusCode::kNotFound,
                "Find: tensor 'b:0' must be of the graph, got no node 'b'");
  EXPECT_STATUS(root.Find("a/x:1"), absl::StatusCode::kNotFound, "got a node with 1 outputs");
  EXPECT_STATUS(root.Find("a/x:text"), absl::StatusCode::kInvalidArgument, "got 'a/x:text'");
  for (const char* control : {"^a/x", "^b"}) {
    EXPECT_STATUS(root.Find(control), absl::StatusCode::kInvalidArgument,
                  absl::StrCat("Find: tensor '", control,
                               "' must be 'node' or 'node:index', got a control edge"));
  }
  EXPECT_OK(root.status());
}

TEST(Literals, TensorsOfSeveralTypesAndOfNothing) {
  EXPECT_EQ(Tensor::Of<float>({1, 2.5f}), Tensor::Of({1.f, 2.5f}));
  EXPECT_EQ(Tensor::Of<double>({1, 2.5f}), Tensor::Of({1.0, 2.5}));
  EXPECT_EQ(Tensor::Of<float>({}).shape(), Shape{0});
  EXPECT_EQ(Tensor::Of<std::string>({}).dtype(), DT_STRING);
  std::ostringstream out;
  out << Tensor::Of({1.f, 2.f}) << " " << Shape{2, 3} << " " << PartialShape{-1, 3};
  EXPECT_EQ(out.str(), "float[2]: 1 2 [2,3] [?,3]");
}

}  // namespace
}  // namespace millrace
