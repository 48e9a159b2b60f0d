// SPDX-License-Identifier: Apache-2.0
#include "graph/gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/testing/tiny_ops.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

using testing::Call;
using testing::Constant;
using ::testing::HasSubstr;
using testing::Input;
using testing::Read;
using ::testing::StartsWith;
using testing::Variable;

// Computes graphs of the tiny ops on scalars and vectors in double precision: the reference for the
// gradients. A dead tensor has no value.
class Interpreter {
 public:
  using Value = std::vector<double>;
  explicit Interpreter(std::map<std::string, Value> feeds) : feeds_(std::move(feeds)) {}

  std::optional<Value> Evaluate(Output tensor) {
    const auto key = std::make_pair(tensor.node(), tensor.index());
    auto it = known_.find(key);
    if (it == known_.end()) it = known_.emplace(key, Compute(tensor)).first;
    return it->second;
  }

 private:
  std::optional<Value> Compute(Output tensor) {
    const Node& node = *tensor.node();
    for (Node* control : node.control_inputs()) {
      if (control->num_outputs() > 0 && !Evaluate(Output(control, 0))) return std::nullopt;
    }
    if (node.is_merge()) {
      for (int i = 0; i < node.num_inputs(); ++i) {
        std::optional<Value> in = Evaluate(Output(node.input(i).node, node.input(i).index));
        if (!in) continue;
        for (int j = i + 1; j < node.num_inputs(); ++j) {
          EXPECT_FALSE(Evaluate(Output(node.input(j).node, node.input(j).index)))
              << node.name() << " has two live inputs";
        }
        return tensor.index() == 0 ? in : Value{static_cast<double>(i)};
      }
      return std::nullopt;
    }
    std::vector<Value> in;
    for (const OutputRef& input : node.inputs()) {
      std::optional<Value> value = Evaluate(Output(input.node, input.index));
      if (!value) return std::nullopt;
      in.push_back(*value);
    }
    return Apply(node, tensor.index(), in);
  }

  static double At(const Value& v, size_t i) { return v.size() == 1 ? v[0] : v[i]; }

  std::optional<Value> Apply(const Node& node, int output, const std::vector<Value>& in) {
    const std::string& op = node.op();
    Value out;
    if (op == "Const") {
      const Tensor t = *GetAttr<Tensor>(node.def(), "value");
      for (size_t i = 0; i < static_cast<size_t>(t.num_elements()); ++i) {
        if (t.dtype() == DT_FLOAT) out.push_back(static_cast<double>(t.flat<float>()[i]));
        if (t.dtype() == DT_INT32) out.push_back(t.flat<int32_t>()[i]);
        if (t.dtype() == DT_INT64) out.push_back(static_cast<double>(t.flat<int64_t>()[i]));
        if (t.dtype() == DT_BOOL) out.push_back(t.flat<bool>()[i] ? 1 : 0);
      }
      return out;
    }
    if (op == "Placeholder" || op == "VarHandleOp") return feeds_.at(node.name());
    if (op == "Identity" || op == "ReadVariableOp" || op == "Cast" || op == "Enter") return in[0];
    if (op == "Floor") return in[0];
    if (op == "Add" || op == "Mul" || op == "Equal") {
      for (size_t i = 0; i < std::max(in[0].size(), in[1].size()); ++i) {
        const double a = At(in[0], i), b = At(in[1], i);
        out.push_back(op == "Add" ? a + b : op == "Mul" ? a * b : a == b ? 1 : 0);
      }
      return out;
    }
    if (op == "AddN") {
      out = in[0];
      for (size_t k = 1; k < in.size(); ++k) {
        EXPECT_EQ(in[k].size(), out.size()) << node.name();
        for (size_t i = 0; i < out.size(); ++i) out[i] += in[k][i];
      }
      return out;
    }
    if (op == "ZerosLike" || op == "OnesLike") {
      return Value(in[0].size(), op == "OnesLike" ? 1 : 0);
    }
    if (op == "Fill") return Value(static_cast<size_t>(in[0].at(0)), in[1][0]);
    if (op == "Shape" || op == "VariableShape") return Value{static_cast<double>(in[0].size())};
    if (op == "StridedSlice") return Value{in[0].at(0)};
    if (op == "TwoOutputs") {
      for (double x : in[0]) out.push_back(output == 0 ? x : 2 * x);
      return out;
    }
    if (op == "Switch") {
      if ((in[1][0] != 0) != (output == 1)) return std::nullopt;
      return in[0];
    }
    if (op == "ConcatV2") {
      for (size_t k = 0; k + 1 < in.size(); ++k) out.insert(out.end(), in[k].begin(), in[k].end());
      return out;
    }
    if (op == "Gather" || op == "ResourceGather") {
      for (double i : in[1]) out.push_back(in[0].at(static_cast<size_t>(i)));
      return out;
    }
    if (op == "UnsortedSegmentSum") {
      EXPECT_EQ(in[0].size(), in[1].size()) << node.name();
      out.assign(static_cast<size_t>(in[2].at(0)), 0);
      for (size_t i = 0; i < in[0].size(); ++i) out.at(static_cast<size_t>(in[1][i])) += in[0][i];
      return out;
    }
    ADD_FAILURE() << "no reference for op " << op;
    return std::nullopt;
  }

  std::map<std::string, Value> feeds_;
  std::map<std::pair<const Node*, int>, std::optional<Value>> known_;
};

using Feeds = std::map<std::string, std::vector<double>>;

// Compares the gradient of sum(y) with central differences, which are exact up to rounding for
// polynomials of second degree.
void ExpectGradient(const Scope& root, Output y, Output x, const Feeds& feeds) {
  const int before = root.graph()->num_node_ids();
  StatusOr<std::vector<Gradient>> gradients = AddGradients(root, {y}, {x});
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  ASSERT_TRUE(HasGradient((*gradients)[0]));
  const Output dense = DenseGradient(root, (*gradients)[0]);
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_GT(root.graph()->num_node_ids(), before);
  const std::optional<std::vector<double>> got = Interpreter(feeds).Evaluate(dense);
  ASSERT_TRUE(got.has_value());
  const std::string name = x.node()->name();
  const std::vector<double> point = feeds.at(name);
  ASSERT_EQ(got->size(), point.size());
  const auto sum_at = [&](size_t i, double delta) {
    Feeds moved = feeds;
    moved[name][i] += delta;
    double sum = 0;
    const std::optional<std::vector<double>> values = Interpreter(moved).Evaluate(y);
    for (double v : *values) sum += v;
    return sum;
  };
  constexpr double kStep = 1.0 / 1024;
  for (size_t i = 0; i < point.size(); ++i) {
    const double expected = (sum_at(i, kStep) - sum_at(i, -kStep)) / (2 * kStep);
    EXPECT_NEAR((*got)[i], expected, 1e-6) << name << "[" << i << "]";
  }
}

Output Named(const Scope& scope, const char* name, const PartialShape& shape = {3}) {
  return Input(scope.WithName(name), DT_FLOAT, shape);
}

Output MergeOf(const Scope& scope, Output a, Output b) {
  const Output both[] = {a, b};
  return NodeBuilder(scope, "Merge").Input(absl::MakeConstSpan(both)).Finish().output(0);
}

int CountOps(const Graph& graph, const std::string& op) {
  int n = 0;
  for (const auto& node : graph.nodes()) n += node != nullptr && node->op() == op;
  return n;
}

TEST(GradientTest, ProductsAndSumsMatchFiniteDifferences) {
  Scope root;
  const Output x = Named(root, "x"), w = Named(root, "w");
  const Output y = Call(root, "Add", {Call(root, "Mul", {x, w}), Call(root, "Mul", {x, x})});
  const Feeds feeds = {{"x", {1, 2, -3}}, {"w", {0.5, 0, 4}}};
  ExpectGradient(root, y, x, feeds);
  ExpectGradient(root, y, w, feeds);
}

TEST(GradientTest, UnknownShapesGetOnesAtRunTime) {
  Scope root;
  const Output x = Named(root, "x", PartialShape::Unknown());
  ExpectGradient(root, Call(root, "Mul", {x, x}), x, {{"x", {1, 2, -3, 4}}});
  EXPECT_EQ(CountOps(*root.graph(), "OnesLike"), 1);
  EXPECT_EQ(CountOps(*root.graph(), "Fill"), 0);
}

TEST(GradientTest, MissingGradientOfOneOutputIsZero) {
  for (const PartialShape& shape : {PartialShape({3}), PartialShape::Unknown()}) {
    Scope root;
    const Output x = Named(root, "x", shape);
    const Output second = Call(root, "TwoOutputs", {x}, 1);
    ExpectGradient(root, Call(root, "Mul", {second, second}), x, {{"x", {1, 2, -3}}});
  }
}

TEST(GradientTest, NodesAreNamedAfterTheOpsTheyBelongTo) {
  Scope root;
  const Output x = Named(root, "x");
  const Output y = Call(root.WithSubScope("layer").WithName("product"), "Mul", {x, x});
  ASSERT_TRUE(AddGradients(root, {y}, {x}).ok());
  EXPECT_NE(root.graph()->FindNode("gradients/grad_ys_0"), nullptr);
  EXPECT_NE(root.graph()->FindNode("gradients/layer/product_grad/Mul"), nullptr);
  EXPECT_NE(root.graph()->FindNode("gradients/layer/product_grad/Mul_1"), nullptr);
  EXPECT_NE(root.graph()->FindNode("gradients/AddN"), nullptr);
  ASSERT_TRUE(AddGradients(root, {y}, {x}).ok());
  EXPECT_NE(root.graph()->FindNode("gradients_1/layer/product_grad/Mul"), nullptr);
}

TEST(GradientTest, OnePathNeedsNoAddN) {
  Scope root;
  const Output x = Named(root, "x"), w = Named(root, "w");
  StatusOr<std::vector<Gradient>> g = AddGradients(root, {Call(root, "Mul", {x, w})}, {x, w, x});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(CountOps(*root.graph(), "AddN"), 0);
  EXPECT_EQ(std::get<Output>((*g)[0]), std::get<Output>((*g)[2]));
}

TEST(GradientTest, SeveralYsAddUpAndAnXMayBeAYOrLieBetween) {
  Scope root;
  const Output x = Named(root, "x");
  const Output between = Call(root, "Mul", {x, x});
  const Output y = Call(root, "Mul", {between, between});
  StatusOr<std::vector<Gradient>> g = AddGradients(root, {y, between, x}, {x, between, y});
  ASSERT_TRUE(g.ok()) << g.status();
  Interpreter at({{"x", {1, 2, -1}}});
  // y = x^4: 4x^3 + 2x + 1; with respect to b = x^2: 2b + 1; with respect to y itself: 1.
  EXPECT_EQ(*at.Evaluate(std::get<Output>((*g)[0])), (std::vector<double>{7, 37, -5}));
  EXPECT_EQ(*at.Evaluate(std::get<Output>((*g)[1])), (std::vector<double>{3, 9, 3}));
  EXPECT_EQ(*at.Evaluate(std::get<Output>((*g)[2])), (std::vector<double>{1, 1, 1}));
}

TEST(GradientTest, GivenGradientsOfYsAreUsed) {
  Scope root;
  const Output x = Named(root, "x");
  GradientOptions options;
  options.grad_ys = {Constant(root, Tensor::Vector<float>({10, 20, 30}))};
  StatusOr<std::vector<Gradient>> g = AddGradients(root, {Call(root, "Mul", {x, x})}, {x}, options);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(*Interpreter({{"x", {1, 2, 3}}}).Evaluate(std::get<Output>((*g)[0])),
            (std::vector<double>{20, 80, 180}));
}

TEST(GradientTest, NothingFlowsWhereYDoesNotDependOnX) {
  Scope root;
  const Output x = Named(root, "x"), other = Named(root, "other");
  const Output ids = Constant(root, Tensor::Vector<int32_t>({0, 1}));
  StatusOr<std::vector<Gradient>> g =
      AddGradients(root, {Call(root, "Gather", {x, ids})}, {other, ids, x});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_FALSE(HasGradient((*g)[0]));
  EXPECT_FALSE(HasGradient((*g)[1]));
  EXPECT_TRUE(HasGradient((*g)[2]));
}

TEST(GradientTest, StoppedTensorsCountAsConstants) {
  Scope root;
  const Output x = Named(root, "x");
  const Output square = Call(root, "Mul", {x, x});
  const Output y = Call(root, "Mul", {square, x});
  GradientOptions options;
  options.stop_gradients = {square};
  StatusOr<std::vector<Gradient>> g = AddGradients(root, {y}, {x, square}, options);
  ASSERT_TRUE(g.ok()) << g.status();
  Interpreter at({{"x", {1, 2, 3}}});
  EXPECT_EQ(*at.Evaluate(std::get<Output>((*g)[0])), (std::vector<double>{1, 4, 9}));
  EXPECT_EQ(*at.Evaluate(std::get<Output>((*g)[1])), (std::vector<double>{1, 2, 3}));
}

TEST(GradientTest, NotDifferentiableOpsEndTheWay) {
  Scope root;
  const Output x = Named(root, "x");
  StatusOr<std::vector<Gradient>> g = AddGradients(root, {Call(root, "Floor", {x})}, {x});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_FALSE(HasGradient((*g)[0]));
  ExpectGradient(
      root,
      Call(root, "Mul", {Call(root, "Identity", {x}), Constant(root, Tensor::Scalar<float>(3))}), x,
      {{"x", {1, 2, 3}}});
}

TEST(GradientTest, AnOpWithoutGradientIsAnErrorOnlyOnTheWay) {
  Scope root;
  const Output x = Named(root, "x"), w = Named(root, "w");
  const Output opaque = Call(root.WithName("block/dark"), "Opaque", {x});
  const Output y = Call(root, "Mul", {opaque, w});
  const Status status = AddGradients(root, {y}, {x}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "No gradient defined for operation 'block/dark' (op type: Opaque)");
  EXPECT_TRUE(AddGradients(root, {y}, {w}).ok());
}

TEST(GradientTest, AnUnknownOpOnTheWayIsNamed) {
  auto graph = std::make_unique<Graph>();
  tensorflow::NodeDef x, mystery, id;
  x.set_name("x");
  x.set_op("Placeholder");
  SetAttr(DT_FLOAT, &(*x.mutable_attr())["dtype"]);
  mystery.set_name("mystery");
  mystery.set_op("FromAnotherWorld");
  mystery.add_input("x");
  id.set_name("y");
  id.set_op("Identity");
  SetAttr(DT_FLOAT, &(*id.mutable_attr())["T"]);
  Node* nodes[] = {*graph->AddNode(x), *graph->AddNode(mystery), *graph->AddNode(id)};
  ASSERT_TRUE(graph->AddEdge(nodes[0], 0, nodes[1], 0).ok());
  ASSERT_TRUE(graph->AddEdge(nodes[1], 0, nodes[2], 0).ok());
  StatusOr<Scope> root = Scope::ForGraph(std::move(graph));
  ASSERT_TRUE(root.ok()) << root.status();
  const Status status = AddGradients(*root, {Output(nodes[2], 0)}, {Output(nodes[0], 0)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "No gradient defined for operation 'mystery' (op type: FromAnotherWorld)");
}

TEST(GradientTest, GatheredRowsAddUpAsSlices) {
  Scope root;
  const Output table = Named(root, "table", {5});
  const Output a = Constant(root, Tensor::Vector<int32_t>({1, 3, 1}));
  const Output b = Constant(root, Tensor::Vector<int64_t>({4, 3}));
  const Output rows_a = Call(root, "Gather", {table, a});
  const Output rows_b = Call(root, "Gather", {table, b});
  StatusOr<std::vector<Gradient>> g = AddGradients(
      root, {Call(root, "Mul", {rows_a, rows_a}), Call(root, "Mul", {rows_b, rows_b})}, {table});
  ASSERT_TRUE(g.ok()) << g.status();
  ASSERT_TRUE(std::holds_alternative<IndexedSlices>((*g)[0]));
  const IndexedSlices& slices = std::get<IndexedSlices>((*g)[0]);
  EXPECT_EQ(slices.indices.dtype(), DT_INT64);
  EXPECT_EQ(CountOps(*root.graph(), "UnsortedSegmentSum"), 0);
  Interpreter at({{"table", {10, 20, 30, 40, 50}}});
  EXPECT_EQ(*at.Evaluate(DenseGradient(root, slices)), (std::vector<double>{0, 80, 0, 160, 100}));
  EXPECT_EQ(at.Evaluate(slices.values)->size(), 5u);
}

TEST(GradientTest, SlicesAndDenseContributionsBecomeDense) {
  Scope root;
  const Output table = Named(root, "table", {5});
  const Output rows =
      Call(root, "Gather", {table, Constant(root, Tensor::Vector<int32_t>({1, 3, 1}))});
  const Output squares = Call(root, "Mul", {table, table});
  StatusOr<std::vector<Gradient>> g = AddGradients(root, {rows, squares}, {table});
  ASSERT_TRUE(g.ok()) << g.status();
  ASSERT_TRUE(std::holds_alternative<Output>((*g)[0]));
  EXPECT_EQ(*Interpreter({{"table", {1, 2, 3, 4, 5}}}).Evaluate(std::get<Output>((*g)[0])),
            (std::vector<double>{2, 6, 6, 9, 10}));
}

TEST(GradientTest, TheGradientOfAVariableGathersAtItsHandle) {
  Scope root;
  const Output w = Variable(root.WithName("w"), DT_FLOAT, {3});
  const Output y = Call(root, "Mul", {Read(root, w, DT_FLOAT), Read(root, w, DT_FLOAT)});
  ExpectGradient(root, y, w, {{"w", {1, 2, -3}}});
  const Output rows = NodeBuilder(root, "ResourceGather")
                          .Input(w)
                          .Input(Constant(root, Tensor::Vector<int32_t>({2, 2})))
                          .Attr("dtype", DT_FLOAT)
                          .Finish()
                          .output(0);
  StatusOr<std::vector<Gradient>> g = AddGradients(root, {rows}, {w});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_TRUE(std::holds_alternative<IndexedSlices>((*g)[0]));
  ExpectGradient(root, Call(root, "Mul", {rows, rows}), w, {{"w", {1, 2, -3}}});
}

TEST(GradientTest, ColocationFollowsTheForwardNode) {
  Scope root;
  const Output x = Named(root, "x");
  const Output y = Call(root.WithDevice("/job:ps/task:1").WithName("y"), "Mul", {x, x});
  GradientOptions options;
  options.colocate_with_ops = true;
  ASSERT_TRUE(AddGradients(root, {y}, {x}, options).ok());
  const Node* node = root.graph()->FindNode("gradients/y_grad/Mul");
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(*GetAttr<std::vector<std::string>>(node->def(), "_class"),
            std::vector<std::string>{"loc:@y"});
  EXPECT_EQ(node->requested_device(), "/job:ps/task:1");
}

TEST(GradientTest, DeepChainsNeedNoDeepStack) {
  Scope root;
  const Output x = Named(root, "x");
  Output y = x;
  for (int i = 0; i < 20000; ++i) y = Call(root, "Identity", {y});
  StatusOr<std::vector<Gradient>> g = AddGradients(root, {y}, {x});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(std::get<Output>((*g)[0]).node()->op(), "Fill");
}

// y = pred ? x * x : w * x, both branches behind Switches of their inputs.
struct Conditional {
  explicit Conditional(const Scope& root, const PartialShape& shape = {3}) {
    x = Named(root, "x", shape);
    w = Named(root, "w", shape);
    pred = Input(root.WithName("pred"), DT_BOOL, {});
    const Output x_true = Call(root, "Switch", {x, pred}, 1);
    const Output x_false = Call(root, "Switch", {x, pred}, 0);
    const Output w_false = Call(root, "Switch", {w, pred}, 0);
    y = MergeOf(root, Call(root, "Mul", {w_false, x_false}), Call(root, "Mul", {x_true, x_true}));
  }
  Output x, w, pred, y;
};

TEST(GradientTest, AConditionalRunsBackwardsAlongTheBranchThatWasTaken) {
  for (const double pred : {0.0, 1.0}) {
    for (const PartialShape& shape : {PartialShape({3}), PartialShape::Unknown()}) {
      Scope root;
      const Conditional c(root, shape);
      const Feeds feeds = {{"x", {1, 2, -3}}, {"w", {0.5, 7, 4}}, {"pred", {pred}}};
      ExpectGradient(root, c.y, c.x, feeds);
      ExpectGradient(root, c.y, c.w, feeds);
    }
  }
}

TEST(GradientTest, NestedConditionalsRunBackwards) {
  for (const double outer : {0.0, 1.0}) {
    for (const double inner : {0.0, 1.0}) {
      Scope root;
      const Output x = Named(root, "x");
      const Output p = Input(root.WithName("outer"), DT_BOOL, {});
      const Output q = Input(root.WithName("inner"), DT_BOOL, {});
      const Output x_true = Call(root, "Switch", {x, p}, 1);
      const Output x_false = Call(root, "Switch", {x, p}, 0);
      const Output q_true = Call(root, "Switch", {q, p}, 1);
      const Output xx_true = Call(root, "Switch", {x_true, q_true}, 1);
      const Output xx_false = Call(root, "Switch", {x_true, q_true}, 0);
      const Output three = Constant(root, Tensor::Scalar<float>(3));
      const Output inside = MergeOf(root, Call(root, "Mul", {xx_false, three}),
                                    Call(root, "Mul", {xx_true, xx_true}));
      const Output y = MergeOf(root, Call(root, "Identity", {x_false}), inside);
      ExpectGradient(root, y, x, {{"x", {1, 2, -3}}, {"outer", {outer}}, {"inner", {inner}}});
    }
  }
}

TEST(GradientTest, VariablesAndTableRowsInOneBranchWork) {
  for (const bool rows : {false, true}) {
    for (const double pred : {0.0, 1.0}) {
      Scope root;
      const Output w = Variable(root.WithName("w"), DT_FLOAT, {3});
      const Output p = Input(root.WithName("pred"), DT_BOOL, {});
      const Output w_true = Call(root, "Switch", {w, p}, 1);
      const Output ids = Constant(root, Tensor::Vector<int32_t>({2, 0, 2}));
      const Output taken = rows ? NodeBuilder(root, "ResourceGather")
                                      .Input(w_true)
                                      .Input(ids)
                                      .Attr("dtype", DT_FLOAT)
                                      .Finish()
                                      .output(0)
                                : Read(root, w_true, DT_FLOAT);
      const Output other =
          Call(root, "Switch", {Constant(root, Tensor::Vector<float>({5, 5, 5})), p}, 0);
      const Output y = MergeOf(root, other, Call(root, "Mul", {taken, taken}));
      StatusOr<std::vector<Gradient>> g = AddGradients(root, {y}, {w});
      ASSERT_TRUE(g.ok()) << g.status();
      EXPECT_EQ(std::holds_alternative<IndexedSlices>((*g)[0]), rows);
      ExpectGradient(root, y, w, {{"w", {1, 2, -3}}, {"pred", {pred}}});
    }
  }
}

TEST(GradientTest, ALoopOnTheWayIsNamed) {
  Scope root;
  const Output x = Named(root, "x");
  const Output entered =
      NodeBuilder(root, "Enter").Input(x).Attr("frame_name", "while/ctx").Finish().output(0);
  const Output y = Call(root, "Exit", {Call(root, "Mul", {entered, entered})});
  const Status status = AddGradients(root, {y}, {x}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("loop 'while/ctx' must have a LoopCond to be differentiated, got none"));
}

TEST(GradientTest, WrongGradientsOfAnOpAreReportedWithTheOp) {
  Scope root;
  const Output x = Named(root, "x");
  const Status shape =
      AddGradients(root, {Call(root.WithName("bad"), "WrongShape", {x})}, {x}).status();
  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(shape.message(),
            "Incompatible shapes between op input and calculated input gradient. Forward "
            "operation: bad. Input index: 0. Original input shape: [3]. Calculated input gradient "
            "shape: [5]");
  const Status type =
      AddGradients(root, {Call(root.WithName("bad"), "WrongType", {x})}, {x}).status();
  EXPECT_EQ(type.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(type.message(),
            "Gradient of WrongType 'bad_1': the gradient of input 0 must be float, got double");
  const Status count =
      AddGradients(root, {Call(root.WithName("bad"), "TooMany", {x})}, {x}).status();
  EXPECT_EQ(count.code(), absl::StatusCode::kInternal);
  EXPECT_NE(count.message().find("must have 1 gradients or fewer, one an input, got 2"),
            absl::string_view::npos)
      << count;
}

TEST(GradientTest, BadArgumentsAreRefused) {
  Scope root, other;
  const Output x = Named(root, "x"), foreign = Named(other, "x");
  const Output y = Call(root, "Mul", {x, x});
  const Output number = Constant(root.WithName("number"), Tensor::Scalar<int32_t>(1));
  const Output complex = Input(root.WithName("complex"), DT_COMPLEX64, {3});
  const Output wrong_type = Constant(root.WithName("wrong"), Tensor::Scalar<double>(1));
  const Output wrong_shape = Constant(root.WithName("long"), Tensor::Vector<float>({1, 2}));
  const struct {
    Output y, x;
    std::vector<Output> grad_ys;
    const char* message;
  } kCases[] = {
      {y, Output(), {}, "xs[0] must be a tensor of this graph, got none"},
      {y, foreign, {}, "xs[0] must be a tensor of this graph, got another graph's"},
      {Output(), x, {}, "ys[0] must be a tensor of this graph"},
      {Output(y.node(), 1), x, {}, "ys[0] must be a tensor of this graph"},
      {number, x, {}, "ys[0] 'number:0' must be floating or complex, got int32"},
      {complex, x, {}, "ys[0] 'complex:0' must have a grad_y"},
      {y, x, {y, y}, "grad_ys must be as many as ys (1), got 2"},
      {y, x, {Output()}, "grad_ys[0] must be a tensor"},
      {y, x, {wrong_type}, "grad_ys[0] 'wrong:0' must be float as its y, got double"},
      {y, x, {wrong_shape}, "grad_ys[0] 'long:0' must have the shape of its y [3], got [2]"},
  };
  const int before = root.graph()->num_nodes();
  for (const auto& c : kCases) {
    GradientOptions options;
    options.grad_ys = c.grad_ys;
    const Status status = AddGradients(root, {c.y}, {c.x}, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(status.message()), StartsWith("Gradients: "));
  }
  EXPECT_EQ(root.graph()->num_nodes(), before);
  EXPECT_TRUE(root.ok());
}

TEST(GradientTest, SlicesWithoutDenseShapeCannotBecomeDense) {
  Scope root;
  const Output values = Named(root, "values");
  const Output ids = Constant(root, Tensor::Vector<int32_t>({0, 1, 2}));
  EXPECT_FALSE(DenseGradient(root, IndexedSlices{values, ids, Output()}).valid());
  EXPECT_THAT(std::string(root.status().message()),
              HasSubstr("slices 'values:0' must have a dense_shape"));
  Scope clean;
  EXPECT_FALSE(DenseGradient(clean, Gradient()).valid());
  EXPECT_TRUE(clean.ok());
}

TEST(GradientTest, AnEarlierErrorOfTheScopeIsReturned) {
  Scope root;
  const Output x = Named(root, "x");
  Call(root, "NoSuchOp", {x});
  const Status first = root.status();
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(AddGradients(root, {x}, {x}).status(), first);
}

}  // namespace
}  // namespace millrace
