// SPDX-License-Identifier: Apache-2.0
#include "ops/array/identity.h"

#include <complex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: clusters: a group of operations waits on each device

namespace millrace {
namespace {

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

}  // namespace
}  // namespace millrace
