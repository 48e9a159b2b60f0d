// SPDX-License-Identifier: Apache-2.0
#include "graph/shape_inference.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

Status ShapeOfAttr(InferenceContext *c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, shape);
  return absl::OkStatus();
}
Status ConstShape(InferenceContext *c) {
  MR_ASSIGN_OR_RETURN(Tensor value, c->GetAttr<Tensor>("value"));
  c->set_output(0, value.shape());
  return absl::OkStatus();
}
Status RankVectorShape(InferenceContext *c) {
  c->set_output(0,
                c->input(0).has_rank() ? PartialShape({c->input(0).rank()}) : PartialShape({-1}));
  return absl::OkStatus();
}
// As the first input says: what Reshape, Fill, Placeholder-like ops do.
Status DescribedShape(InferenceContext *c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(0));
  c->set_output(0, shape);
  return absl::OkStatus();
}
// A vector as long as the scalar input says.
Status CountedShape(InferenceContext *c) {
  const Tensor *n = c->input_tensor(0);
  c->set_output(0, n == nullptr ? PartialShape({-1}) : PartialShape({n->scalar<int32_t>()}));
  return absl::OkStatus();
}
Status HandleShape(InferenceContext *c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, PartialShape::Scalar());
  c->set_output_handle(0, HandleData{DT_FLOAT, shape});
  return absl::OkStatus();
}
Status ReadShape(InferenceContext *c) {
  c->set_output(0, c->input_handle(0).has_value() ? c->input_handle(0)->shape : PartialShape());
  return absl::OkStatus();
}
Status PackShape(InferenceContext *c) {
  MR_ASSIGN_OR_RETURN(PartialShape each, MergeAll(c, 0, c->num_inputs()));
  if (each.has_rank() && each.rank() == 0) c->set_output(0, PartialShape({c->num_inputs()}));
  return absl::OkStatus();
}
Status MatrixShape(InferenceContext *c) {
  MR_ASSIGN_OR_RETURN(PartialShape a, c->InputWithRank(0, 2));
  c->set_output(0, a);
  return absl::OkStatus();
}

// What is known of their values; the rules of real ops are tested beside them.
std::optional<PartialValue> PackValue(PartialValueContext *c) {
  PartialValue packed;
  for (int i = 0; i < c->num_inputs(); ++i) {
    const std::optional<PartialValue> value = c->input(i);
    packed.elements.push_back(value && value->is_scalar ? value->elements[0] : std::nullopt);
  }
  return packed;
}
std::optional<PartialValue> ElementValue(PartialValueContext *c) {
  const std::optional<PartialValue> value = c->input(0);
  const StatusOr<int64_t> index = c->GetAttr<int64_t>("index");
  if (!value || !index.ok()) return std::nullopt;
  return PartialValue{/*is_scalar=*/true, {value->elements[static_cast<size_t>(*index)]}};
}
std::optional<PartialValue> MulValue(PartialValueContext *c) {
  const std::optional<PartialValue> x = c->input(0), y = c->input(1);
  if (!x || !y) return std::nullopt;
  PartialValue z{/*is_scalar=*/true, {std::nullopt}};
  if (x->elements[0] && y->elements[0]) z.elements[0] = *x->elements[0] * *y->elements[0];
  return z;
}

const OpRegistration kOps[] = {
    OpSpec("In")
        .Output("y: dtype")
        .Attr("dtype: type = DT_FLOAT")
        .Attr("shape: shape = { unknown_rank: true }")
        .Shape(ShapeOfAttr),
    OpSpec("Const")
        .Output("output: dtype")
        .Attr("value: tensor")
        .Attr("dtype: type")
        .Shape(ConstShape),
    OpSpec("Shape")
        .Input("input: T")
        .Output("output: out_type")
        .Attr("T: type")
        .Attr("out_type: {int32, int64} = DT_INT32")
        .Shape(RankVectorShape)
        .With(PartialValueRule(ShapeOfInputValue, PartialValueRule::kOfShapes)),
    OpSpec("Pack")
        .Input("values: N * T")
        .Output("output: T")
        .Attr("N: int >= 1")
        .Attr("T: type")
        .Attr("axis: int = 0")
        .Shape(PackShape)
        .With(PartialValueRule(PackValue)),
    // Element `index` of a vector.
    OpSpec("Element")
        .Input("input: T")
        .Output("output: T")
        .Attr("T: type")
        .Attr("index: int")
        .Shape(ScalarShape)
        .With(PartialValueRule(ElementValue)),
    OpSpec("Identity")
        .Input("input: T")
        .Output("output: T")
        .Attr("T: type")
        .Shape(UnchangedShape)
        .With(PartialValueRule(FirstInputValue)),
    OpSpec("Mul")
        .Input("x: T")
        .Input("y: T")
        .Output("z: T")
        .Attr("T: type")
        .Shape(BroadcastBinaryShape)
        .With(PartialValueRule(MulValue)),
    OpSpec("Described")
        .Input("shape: T")
        .Output("y: float")
        .Attr("T: {int32, int64}")
        .Shape(DescribedShape),
    OpSpec("Counted").Input("n: int32").Output("y: float").Shape(CountedShape),
    OpSpec("Handle").Output("h: resource").Attr("shape: shape").Stateful().Shape(HandleShape),
    OpSpec("HandleRead").Input("h: resource").Output("y: float").Stateful().Shape(ReadShape),
    OpSpec("Matrix").Input("x: float").Output("y: float").Shape(MatrixShape),
    OpSpec("Square").Input("x: int32").Output("y: int32").Shape(UnchangedShape),
    OpSpec("Dice").Input("x: int32").Output("y: int32").Stateful().Shape(UnchangedShape),
};

class Shapes : public ::testing::Test {
 protected:
  Output In(const PartialShape &shape, DType dtype = DT_FLOAT) {
    return NodeBuilder(root_, "In").Attr("dtype", dtype).Attr("shape", shape).Finish().output(0);
  }
  Output Const(const Tensor &value) {
    return NodeBuilder(root_, "Const")
        .Attr("dtype", value.dtype())
        .Attr("value", value)
        .Finish()
        .output(0);
  }
  Output Int(int32_t value) { return Const(Tensor::Scalar(value)); }
  Output Ints(std::initializer_list<int32_t> values) {
    return Const(Tensor::Vector<int32_t>(values));
  }
  Output Call(const char *op, std::initializer_list<Output> inputs) {
    NodeBuilder builder(root_, op);
    for (Output input : inputs) builder.Input(input);
    return builder.Finish().output(0);
  }
  Output ShapeOf(Output x) { return Call("Shape", {x}); }
  Output Pack(std::vector<Output> values) {
    return NodeBuilder(root_, "Pack").Input(values).Finish().output(0);
  }
  // x[i]
  Output At(Output x, int32_t i) {
    return NodeBuilder(root_, "Element").Input(x).Attr("index", i).Finish().output(0);
  }
  // The shape of a tensor whose shape `x` gives.
  std::string Described(Output x) {
    Output y = Call("Described", {x});
    EXPECT_TRUE(root_.ok()) << root_.status();
    return root_.shape(y).ToString();
  }

  Scope root_;
};

TEST_F(Shapes, BroadcastingFollowsNumPy) {
  EXPECT_EQ(root_.shape(Call("Mul", {In({-1, 3}), In({5, 1, 1})})).ToString(), "[5,?,3]");
  EXPECT_EQ(root_.shape(Call("Mul", {In(PartialShape()), In({2})})).ToString(), "<unknown>");
  Call("Mul", {In({2}), In({3})});
  EXPECT_FALSE(root_.ok());
}

TEST_F(Shapes, RanksAreCheckedWithOpAndNodeInTheMessage) {
  EXPECT_EQ(root_.shape(Call("Matrix", {In(PartialShape())})).ToString(), "[?,?]");
  Call("Matrix", {In({2, 3, 4})});
  EXPECT_EQ(std::string(root_.status().message()).substr(0, 73),
            "Matrix 'Matrix_1': input 0 must have rank 2, got shape [2,3,4]; "
            "built at ");
}

TEST_F(Shapes, AConstantVectorDescribesAShape) {
  EXPECT_EQ(Described(Ints({2, -1, 3})), "[2,?,3]");
  EXPECT_EQ(Described(Ints({})), "[]");
  EXPECT_EQ(Described(Int(-1)), "<unknown>");
  EXPECT_EQ(Described(Const(Tensor::Vector<int64_t>({4}))), "[4]");
}

TEST_F(Shapes, UnknownVectorOfKnownLengthGivesTheRank) {
  EXPECT_EQ(Described(In({3}, DT_INT32)), "[?,?,?]");
  EXPECT_EQ(Described(In({-1}, DT_INT32)), "<unknown>");
  EXPECT_EQ(Described(In(PartialShape(), DT_INT32)), "<unknown>");
}

TEST_F(Shapes, WrongShapeVectorsAreErrors) {
  for (const auto &[shape, text] : std::vector<std::pair<PartialShape, std::string>>{
           {{2, 2}, "input 0 must be a vector that gives a shape, got shape [2,2]"},
           {{255}, "input 0 must give a shape of rank <= 254, got 255"}}) {
    Scope scope;
    Output x =
        NodeBuilder(scope, "In").Attr("dtype", DT_INT32).Attr("shape", shape).Finish().output(0);
    NodeBuilder(scope, "Described").Input(x).Finish();
    EXPECT_NE(std::string(scope.status().message()).find(text), std::string::npos)
        << scope.status();
  }
  Call("Described", {Int(7)});
  EXPECT_NE(root_.status().message().find("got the scalar 7"), absl::string_view::npos);
}

TEST_F(Shapes, PartlyKnownShapesFlowThroughShapeArithmetic) {
  Output x = In({-1, 28, 28, 3});
  Output s = ShapeOf(x);
  EXPECT_EQ(Described(s), "[?,28,28,3]");
  EXPECT_EQ(Described(Call("Identity", {s})), "[?,28,28,3]");
  EXPECT_EQ(Described(Pack({At(s, 0), Int(-1)})), "[?,?]");
  EXPECT_EQ(Described(Pack({At(s, 0), Call("Mul", {At(s, 1), At(s, 2)}), At(s, 3)})), "[?,784,3]");
  EXPECT_EQ(Described(Pack({Call("Mul", {At(s, 0), At(s, 1)})})), "[?]");
  EXPECT_EQ(Described(ShapeOf(In(PartialShape()))), "<unknown>");
}

TEST_F(Shapes, ConstantValuesAreKnownWithoutAnEvaluator) {
  Output s = ShapeOf(In({4, 6}));
  const Tensor *value = root_.constant_value(s);
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(*value, Tensor::Vector<int32_t>({4, 6}));
  EXPECT_EQ(root_.shape(Call("Counted", {At(s, 1)})).ToString(), "[6]");
  EXPECT_EQ(root_.shape(Call("Counted", {At(ShapeOf(In({-1})), 0)})).ToString(), "[?]");
  EXPECT_EQ(root_.constant_value(ShapeOf(In({-1}))), nullptr);
  EXPECT_EQ(root_.constant_value(In({2}, DT_INT32)), nullptr);
  EXPECT_EQ(root_.constant_value(Call("Square", {Int(3)})), nullptr) << "no evaluator";
}

TEST_F(Shapes, HandleDataFollowsResources) {
  Output h = NodeBuilder(root_, "Handle").Attr("shape", PartialShape({2, -1})).Finish().output(0);
  EXPECT_EQ(root_.shape(Call("HandleRead", {Call("Identity", {h})})).ToString(), "[2,?]");
}

// Squares what it is given and counts how often it is asked.
class SquareEvaluator : public ConstantEvaluator {
 public:
  StatusOr<std::vector<Tensor>> Evaluate(const Node &node,
                                         absl::Span<const Tensor> inputs) override {
    ++calls;
    if (node.op() != "Square") return absl::UnimplementedError("no kernel");
    Tensor out = *inputs[0].Clone();
    for (int32_t &x : out.mutable_flat<int32_t>()) x *= x;
    return std::vector<Tensor>{out};
  }
  int calls = 0;
};

Output Constant(const Scope &scope, const Tensor &value) {
  return NodeBuilder(scope, "Const")
      .Attr("dtype", value.dtype())
      .Attr("value", value)
      .Finish()
      .output(0);
}

TEST(ConstantEvaluatorTest, SmallConstantSubgraphsAreComputedOnce) {
  SquareEvaluator evaluator;
  Scope root(&evaluator);
  Output a = NodeBuilder(root, "Square")
                 .Input(Constant(root, Tensor::Scalar<int32_t>(3)))
                 .Finish()
                 .output(0);
  Output b = NodeBuilder(root, "Square").Input(a).Finish().output(0);
  Output y = NodeBuilder(root, "Counted").Input(b).Finish().output(0);
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(root.shape(y).ToString(), "[81]");
  EXPECT_EQ(evaluator.calls, 2);
  NodeBuilder(root, "Counted").Input(b).Finish();
  EXPECT_EQ(evaluator.calls, 2) << "values are kept";
}

TEST(ConstantEvaluatorTest, StatefulAndLargeAndUnknownNodesAreNotComputed) {
  SquareEvaluator evaluator;
  Scope root(&evaluator);
  auto call = [&](const char *op, Output x) {
    return NodeBuilder(root, op).Input(x).Finish().output(0);
  };
  Output three = Constant(root, Tensor::Scalar<int32_t>(3));
  EXPECT_EQ(root.constant_value(call("Square", call("Dice", three))), nullptr);
  Output large = Constant(root, *Tensor::Zeros(DT_INT32, *Shape::Make({kMaxConstantElements + 1})));
  EXPECT_EQ(root.constant_value(call("Square", large)), nullptr);
  EXPECT_NE(root.constant_value(large), nullptr) << "a Const of any size is known";
  Output in = NodeBuilder(root, "In")
                  .Attr("dtype", DT_INT32)
                  .Attr("shape", PartialShape({}))
                  .Finish()
                  .output(0);
  EXPECT_EQ(root.constant_value(call("Square", in)), nullptr);
  EXPECT_EQ(evaluator.calls, 0);
}

TEST(ConstantEvaluatorTest, SearchesEndOnDeepAndWideGraphs) {
  // Each level uses the one below twice: 2^400 paths.
  Scope root;
  Output x = Constant(root, Tensor::Scalar<int32_t>(1));
  for (int i = 0; i < 400; ++i) {
    x = NodeBuilder(root, "Mul").Input(x).Input(x).Finish().output(0);
  }
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(root.constant_value(x), nullptr) << "deeper than kMaxConstantDepth";
  Scope shallow;
  Output y = Constant(shallow, Tensor::Scalar<int32_t>(1));
  for (int i = 0; i < 100; ++i) {
    y = NodeBuilder(shallow, "Mul").Input(y).Input(y).Finish().output(0);
  }
  const Tensor *one = shallow.constant_value(y);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->scalar<int32_t>(), 1);
}

TEST(ShapeRefinerTest, UnknownNodesAndOutputsAreUnknown) {
  Graph graph;
  tensorflow::NodeDef def;
  def.set_name("x");
  def.set_op("NobodyKnows");
  StatusOr<Node *> node = graph.AddNode(def);
  ASSERT_TRUE(node.ok());
  ShapeRefiner refiner;
  EXPECT_EQ(refiner.OutputShape(**node, 0).ToString(), "<unknown>");
  EXPECT_TRUE(refiner.AddNode(**node).ok());
  EXPECT_EQ(refiner.OutputShape(**node, 5).ToString(), "<unknown>");
  EXPECT_EQ(refiner.MergeOutputShape(**node, 0, {1}).message(),
            "NobodyKnows 'x': output must be in [0, 0), got 0");
}

TEST(PartialValueRules, AreFoundWithoutALockWhileOthersAreRegistered) {
  const PartialValueRule *const first = PartialValueRule::Find("Mul");
  ASSERT_NE(first, nullptr);
  const int64_t before = MutexLockCountForTesting();
  EXPECT_EQ(PartialValueRule::Find("Mul"), first);
  EXPECT_EQ(PartialValueRule::Find("PartialValueNone"), nullptr);
  EXPECT_EQ(MutexLockCountForTesting(), before);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) EXPECT_NE(PartialValueRule::Find("Mul"), nullptr);
  });
  for (int i = 0; i < 50; ++i) {
    const std::string op = absl::StrCat("PartialValueLate", i);
    [[maybe_unused]] const OpRegistration late = OpSpec(op, "x: int32 -> y: int32")
                                                     .Shape(UnchangedShape)
                                                     .With(PartialValueRule(FirstInputValue));
    EXPECT_NE(PartialValueRule::Find(op), nullptr);
  }
  done.store(true);
  reader.join();
}

}  // namespace
}  // namespace millrace
