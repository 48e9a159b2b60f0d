// SPDX-License-Identifier: Apache-2.0
#include "ops/array/identity.h"

#include <complex>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/math/cwise_binary.h"
#include "runtime/testing/op_test.h"

// covers: clusters: a group of operations waits on each device
// covers: graphs: a node that hands several tensors on gives each gradient to its input as it is:
//   no node is added, rows stay rows, an output without a gradient gives none

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

TEST(Identity, PassesEveryDtypeOnWithoutACopy) {
  const Tensor inputs[] = {TensorOf<float>({2}, {1, 2}), TensorOf<std::string>({1}, {"a"}),
                           TensorOf<bool>({}, {true}), TensorOf<int64_t>({0, 3}, {}),
                           TensorOf<std::complex<double>>({1}, {{1, 2}})};
  for (const char* op : {"Identity", "StopGradient", "PreventGradient"}) {
    for (const Tensor& x : inputs) {
      const Tensor y = RunOp1(OpCall(op).Input(x));
      ExpectTensorEqual(y, x);
      if (x.num_elements() > 0) {
        EXPECT_TRUE(y.SharesBufferWith(x)) << op;
      }
    }
    EXPECT_SHAPE(op, {}, {"[2,?]"}, "[2,?]");
  }
}

TEST(IdentityN, PassesAListOn) {
  const Tensor a = TensorOf<float>({1}, {1}), b = TensorOf<std::string>({}, {"x"});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(OpCall("IdentityN").Inputs({a, b})));
  ASSERT_EQ(out.size(), 2u);
  ExpectTensorEqual(out[0], a);
  ExpectTensorEqual(out[1], b);
}

TEST(Identity, ForwardsWhatAHandleHolds) {
  Scope scope;
  const Output handle = NodeBuilder(scope, "VarHandleOp")
                            .Attr("dtype", DT_FLOAT)
                            .Attr("shape", PartialShape({3, 4}))
                            .Finish()
                            .output(0);
  const Output same = Identity(scope, handle);
  const auto data = scope.refiner()->OutputHandle(*same.node(), 0);
  ASSERT_TRUE(data.has_value());
  EXPECT_EQ(data->shape.ToString(), "[3,4]");
}

TEST(NoOp, GroupRunsAfterAllItsOperations) {
  Scope scope;
  const Operation a = NoOp(scope.WithName("a")), b = NoOp(scope.WithName("b"));
  const Operation group = Group(scope, {a, b});
  ASSERT_TRUE(group.valid()) << scope.status();
  EXPECT_EQ(group.name(), "group_deps");
  EXPECT_EQ(group.node()->control_inputs().size(), 2u);
  const Output x = WithDependencies(scope, {a}, Const(scope, 1.0f));
  ASSERT_TRUE(x.valid()) << scope.status();
  EXPECT_EQ(x.node()->control_inputs().size(), 1u);
}

// "name@device <- control inputs".
std::string Described(const Node& node) {
  std::string text = absl::StrCat(node.name(), "@", node.requested_device(), " <-");
  for (const Node* control : node.control_inputs()) absl::StrAppend(&text, " ", control->name());
  return text;
}

TEST(NoOp, GroupWaitsOnEachDeviceAndOnceForAll) {
  Scope scope;
  const Scope ps0 = scope.WithDevice("/job:ps/task:0"), ps1 = scope.WithDevice("/job:ps/task:1");
  const Scope worker = scope.WithDevice("/job:worker/device:CPU:1");
  const Operation a = NoOp(ps1.WithName("a")), b = NoOp(ps0.WithName("b")),
                  c = NoOp(ps1.WithName("c")), free = NoOp(scope.WithName("free")),
                  first = NoOp(scope.WithName("first"));
  const auto described = [&](const Operation& group) {
    EXPECT_TRUE(group.valid()) << scope.status();
    std::vector<std::string> texts = {Described(*group.node())};
    for (const Node* control : group.node()->control_inputs()) {
      if (control->name().find("NoOp") != std::string::npos) texts.push_back(Described(*control));
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  // One device: the result is there, whatever the scope says; nothing of that is mixed into it.
  EXPECT_EQ(described(Group(worker.WithName("one"), {a, c})), Texts{"one@/job:ps/task:1 <- a c"});
  EXPECT_EQ(described(Group(worker.ColocatedWith(b).WithName("near"), {a, c})),
            Texts{"near@/job:ps/task:1 <- a c"});
  EXPECT_EQ(described(Group(worker.WithName("none"), {})),
            Texts{"none@/job:worker/device:CPU:1 <-"});
  EXPECT_EQ(described(Group(worker.WithName("free_one"), {free})),
            Texts{"free_one@/job:worker/device:CPU:1 <- free"});
  // Several: sorted by device, those that ask for none with the scope.
  EXPECT_EQ(described(Group(worker.WithName("all"), {a, b, c, free})),
            (Texts{"all@/job:worker/device:CPU:1 <- all/NoOp all/NoOp_1 all/NoOp_2",
                   "all/NoOp@/job:worker/device:CPU:1 <- free", "all/NoOp_1@/job:ps/task:0 <- b",
                   "all/NoOp_2@/job:ps/task:1 <- a c"}));
  // The scope's own control dependencies, a colocated result, a name that a scope has reserved.
  const Scope sub = scope.WithSubScope("sub");
  EXPECT_EQ(described(Group(sub.WithControlDependencies({first}).ColocatedWith(b).WithName("sub/"),
                            {a, b})),
            (Texts{"sub@/job:ps/task:0 <- first sub/NoOp sub/NoOp_1",
                   "sub/NoOp@/job:ps/task:0 <- first b", "sub/NoOp_1@/job:ps/task:1 <- first a"}));
  EXPECT_FALSE(HasAttr(*scope.graph()->FindNode("near"), "_class"));
}

TEST(IdentityGradients, PassOrStopOrRefuse) {
  const Tensor x = TensorOf<double>({2}, {1, 2});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) { return Identity(s, in[0]); }, {x});
  ExpectGradientsMatch(
      BuildOutputs([](const Scope& s, const std::vector<Output>& in) { return IdentityN(s, in); }),
      {x, x});
  Scope scope;
  const Output in = TestInput(scope, DT_FLOAT, {2});
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> none,
                       AddGradients(scope, {StopGradient(scope, in)}, {in}));
  EXPECT_FALSE(HasGradient(none[0]));
  EXPECT_STATUS(AddGradients(scope, {PreventGradient(scope, in, {.message = "not here"})}, {in}),
                absl::StatusCode::kNotFound, "not here");
}

TEST(IdentityNGradients, EachInputGetsThatOfItsOutputAsItIs) {
  Scope scope;
  const Output a = TestInput(scope, DT_DOUBLE, {2}), n = TestInput(scope, DT_INT32, {2}),
               b = TestInput(scope, DT_DOUBLE, {3});
  const Output da = TestInput(scope, DT_DOUBLE, {2}), db = TestInput(scope, DT_DOUBLE, {3});
  const Outputs y = IdentityN(scope, {a, n, b});
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Gradient> both,
      AddGradients(scope, {y[0], y[2]}, {a, n, b}, GradientOptions{.grad_ys = {da, db}}));
  EXPECT_TRUE(std::get<Output>(both[0]) == da);
  EXPECT_FALSE(HasGradient(both[1]));
  EXPECT_TRUE(std::get<Output>(both[2]) == db);
  // What nothing is made of gets none, though another output of the node does.
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> last,
                       AddGradients(scope, {y[2]}, {a, n, b}, GradientOptions{.grad_ys = {db}}));
  EXPECT_FALSE(HasGradient(last[0]));
  EXPECT_FALSE(HasGradient(last[1]));
  EXPECT_TRUE(std::get<Output>(last[2]) == db);
}

TEST(IdentityNGradients, AnOutputWithoutAGradientGivesItsInputNone) {
  Scope scope;
  const Output a = TestInput(scope, DT_DOUBLE, {2}), b = TestInput(scope, DT_DOUBLE, {2});
  const Outputs y = IdentityN(scope, {a, b});
  const Output product = Mul(scope, y[0], StopGradient(scope, y[1]));
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> grads, AddGradients(scope, {product}, {a, b}));
  EXPECT_FALSE(HasGradient(grads[1]));
  const Tensor three_four = TensorOf<double>({2}, {3, 4});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> values,
                       EvaluateGraph(scope, {{a, TensorOf<double>({2}, {1, 2})}, {b, three_four}},
                                     {std::get<Output>(grads[0])}));
  ExpectTensorEqual(values[0], three_four);
}

TEST(IdentityNGradients, MatchFiniteDifferencesThroughTwoNodes) {
  ExpectGradientsMatch(
      [](const Scope& s, const Outputs& in) {
        // in[0] comes twice: what comes back along both ways adds up.
        const Outputs first = IdentityN(s, {in[0], in[1], in[0]});
        const Outputs second = IdentityN(s, {first[2], first[1]});
        return Mul(s, Mul(s, second[0], second[1]), first[0]);
      },
      {TensorOf<double>({2}, {1.5, -2}), TensorOf<double>({2}, {0.5, 3})});
}

TEST(IdentityNGradients, RowsStayRows) {
  Scope scope;
  const Output other = TestInput(scope, DT_DOUBLE, {2}),
               table = TestInput(scope, DT_DOUBLE, {3, 2});
  const Outputs y = IdentityN(scope, {other, table});
  const Output rows = GatherV2(scope, y[1], Const<int32_t>(scope, {2, 0, 2}), Const(scope, 0));
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> grads,
                       AddGradients(scope, {rows}, {table, y[1], other}));
  const auto* const slices = std::get_if<IndexedSlices>(&grads[0]);
  const auto* const behind = std::get_if<IndexedSlices>(&grads[1]);
  ASSERT_NE(slices, nullptr);
  ASSERT_NE(behind, nullptr);
  EXPECT_TRUE(slices->values == behind->values);
  EXPECT_TRUE(slices->indices == behind->indices);
  EXPECT_TRUE(slices->dense_shape == behind->dense_shape);
  EXPECT_FALSE(HasGradient(grads[2]));
  const Output dense = DenseGradient(scope, grads[0]);
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> values,
                       EvaluateGraph(scope,
                                     {{other, TensorOf<double>({2}, {7, 7})},
                                      {table, TensorOf<double>({3, 2}, {1, 2, 3, 4, 5, 6})}},
                                     {dense}));
  ExpectTensorEqual(values[0], TensorOf<double>({3, 2}, {1, 1, 0, 0, 2, 2}));
}

}  // namespace
}  // namespace millrace
