// SPDX-License-Identifier: Apache-2.0
#include "layers/dense.h"

#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/normalization.h"
#include "layers/regularizers.h"
#include "layers/testing/layer_test.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"

// covers: values: layers give the values of their formulas, TensorFlow's variable names, gradients
//   of finite differences, and train

namespace millrace {
namespace {

Initializer Values(const Tensor& value) {
  return [value](ScopeAt at, const Shape&, DType) { return Const(at, value); };
}

TEST(Dense, ComputesActivationOfProductPlusBias) {
  Scope scope;
  const Output x = Placeholder(scope, DT_FLOAT, {-1, 2});
  const DenseLayer y =
      Dense(scope, x, 3,
            {.activation = Relu,
             .kernel_initializer = Values(TensorOf<float>({2, 3}, {1, 2, 3, -4, 5, -6})),
             .bias_initializer = Values(TensorOf<float>({3}, {0.5f, -1, 2}))});
  EXPECT_EQ(scope.shape(y).ToString(), "[?,3]");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunInitialized(scope, {{x, TensorOf<float>({2, 2}, {1, 1, 2, 0.5f})}}, {y}));
  ExpectTensorNear(out[0], TensorOf<float>({2, 3}, {0, 6, 0, 0.5f, 5.5f, 5}), 1e-6, 0);
}

TEST(Dense, ActsOnTheLastDimensionOfAnyRank) {
  const Tensor kernel = TensorOf<float>({2, 2}, {1, 2, 3, 4});
  const Tensor value = TensorOf<float>({1, 3, 1, 2}, {1, 0, 0, 1, 1, 1});
  const Tensor want = TensorOf<float>({1, 3, 1, 2}, {1, 2, 3, 4, 4, 6});
  const std::pair<PartialShape, const char*> shapes[] = {
      {{1, 3, 1, 2}, "[1,3,1,2]"}, {{-1, 3, 1, 2}, "[?,3,1,2]"}, {{-1, -1, -1, 2}, "[?,?,?,2]"}};
  for (const auto& [shape, text] : shapes) {
    Scope scope;
    const Output x = Placeholder(scope, DT_FLOAT, shape);
    const Output y = Dense(scope, x, 2, {.use_bias = true, .kernel_initializer = Values(kernel)});
    EXPECT_EQ(scope.shape(y).ToString(), text);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(scope, {{x, value}}, {y}));
    ExpectTensorNear(out[0], want, 1e-6, 0);
    // An empty batch, too.
    if (shape.dim(0) > 0) continue;
    ASSERT_OK_AND_ASSIGN(
        const std::vector<Tensor> none,
        RunInitialized(scope, {{x, *Tensor::Zeros(DT_FLOAT, Shape{0, 3, 1, 2})}}, {y}));
    EXPECT_EQ(none[0].shape(), (Shape{0, 3, 1, 2}));
  }
}

// Of TensorFlow 1.15's estimators: "dnn/hiddenlayer_0/kernel/part_0" and a node
// "dnn/hiddenlayer_0/kernel".
TEST(Dense, APartitionerCutsKernelAndBias) {
  const Tensor kernel = TensorOf<float>({3, 3}, {1, 2, 3, -4, 5, -6, 7, 8, 9});
  const Tensor x_value = TensorOf<float>({1, 3}, {1, 2, 3});
  const auto rows = [&](ScopeAt at, const InitialShape& shape, DType) {
    return Slice(at, Const(at, kernel),
                 Const<int32_t>(at, {static_cast<int32_t>(shape.var_offset[0]), 0}),
                 Const<int32_t>(at, {static_cast<int32_t>(shape.shape.dim(0)), 3}));
  };
  for (const int parts : {1, 2}) {
    Scope root;
    const Output x = Placeholder(root, DT_FLOAT, {-1, 3});
    const DenseLayer y = Dense(root.WithName("hiddenlayer_0"), x, 3,
                               {.kernel_initializer = rows,
                                .bias_initializer = OnesInitializer(),
                                .partitioner = FixedSizePartitioner(parts)});
    ASSERT_OK(root.status());
    EXPECT_FALSE(y.kernel.valid());
    EXPECT_EQ(y.kernel_parts.name, "hiddenlayer_0/kernel");
    EXPECT_EQ(y.kernel_parts.parts.size(), static_cast<size_t>(parts));
    std::vector<std::string> want = {"hiddenlayer_0/kernel/part_0", "hiddenlayer_0/kernel/part_1",
                                     "hiddenlayer_0/bias/part_0", "hiddenlayer_0/bias/part_1"};
    if (parts == 1) want = {want[0], want[2]};
    EXPECT_EQ(NamesOf(root, "variables"), want);
    EXPECT_EQ(y.node()->name(), "hiddenlayer_0/BiasAdd");
    EXPECT_NE(root.graph()->FindNode("hiddenlayer_0/kernel"), nullptr);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(root, {{x, x_value}}, {y}));
    ExpectTensorNear(out[0], TensorOf<float>({1, 3}, {15, 37, 19}), 1e-6, 0);
  }
  Scope root;
  const DenseLayer whole = Dense(root, Placeholder(root, DT_FLOAT, {-1, 3}), 3);
  EXPECT_EQ(whole.kernel_parts.parts.size(), 1u);
  EXPECT_EQ(whole.kernel_parts.parts[0].name, whole.kernel.name);
}

TEST(Dense, NamesVariablesAsTensorFlowsLayers) {
  Scope root;
  const Output x = Placeholder(root, DT_FLOAT, {-1, 4});
  const DenseLayer first = Dense(root, x, 8);
  const DenseLayer second = Dense(root, first, 8, {.use_bias = false});
  const DenseLayer third = Dense(root.WithName("fc1"), second, 2, {.trainable = false});
  Dense(root.WithSubScope("model"), third, 2);
  ASSERT_OK(root.status());
  EXPECT_EQ(NamesOf(root, "variables"),
            std::vector<std::string>({"dense/kernel", "dense/bias", "dense_1/kernel", "fc1/kernel",
                                      "fc1/bias", "model/dense/kernel", "model/dense/bias"}));
  EXPECT_EQ(NamesOf(root, "trainable_variables"),
            std::vector<std::string>({"dense/kernel", "dense/bias", "dense_1/kernel",
                                      "model/dense/kernel", "model/dense/bias"}));
  EXPECT_EQ(first.name(), "dense/BiasAdd:0");
  EXPECT_FALSE(second.bias.valid());
  EXPECT_EQ(third.kernel.name, "fc1/kernel");
  EXPECT_NE(root.graph()->FindNode("dense/kernel/Initializer/random_uniform/RandomUniform"),
            nullptr);
  // Operators on a layer or its variables build in the caller's scope.
  EXPECT_EQ((first + 1).name(), "add:0");
  EXPECT_EQ((first.kernel.value * 2).name(), "mul:0");
  EXPECT_EQ((2 - first).name(), "sub:0");
}

TEST(Dense, VariablesGoWhereTheDeviceFunctionSendsThem) {
  Scope root;
  const Scope model = root.WithDevice([](const tensorflow::NodeDef& def) {
    return std::string(def.op() == "VarHandleOp" ? "/job:ps/task:0" : "/job:worker");
  });
  const DenseLayer y = Dense(
      model, Placeholder(model, DT_FLOAT, {-1, 4}), 2,
      {.kernel_regularizer = [](ScopeAt at, Output w) { return ReduceSum(at, Square(at, w)); }});
  ASSERT_OK(root.status());
  EXPECT_EQ(y.node()->requested_device(), "/job:worker");
  // The initial value is made there, too, and need not travel; so is the regularisation loss.
  for (const char* name :
       {"dense/kernel", "dense/kernel/Read/ReadVariableOp",
        "dense/kernel/Initializer/random_uniform/RandomUniform", "dense/kernel/Regularizer/Sum"}) {
    const Node* const node = root.graph()->FindNode(name);
    ASSERT_NE(node, nullptr) << name;
    EXPECT_EQ(node->requested_device(), "/job:ps/task:0") << name;
  }
  EXPECT_EQ((y.kernel.value * 2).node()->requested_device(), "/job:worker");
}

TEST(Dense, CollectsRegularizationLosses) {
  Scope scope;
  const Output x = Placeholder(scope, DT_FLOAT, {-1, 2});
  const Regularizer half_square = [](ScopeAt at, Output w) { return L2Loss(at, w); };
  Dense(scope, x, 2,
        {.kernel_initializer = ConstantInitializer(3),
         .bias_initializer = OnesInitializer(),
         .kernel_regularizer = half_square,
         .bias_regularizer = half_square});
  ASSERT_OK(scope.status());
  const auto& names = (*scope.collections())["regularization_losses"].node_list().value();
  ASSERT_EQ(names.size(), 2);
  EXPECT_EQ(names[0], "dense/kernel/Regularizer/L2Loss:0");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunInitialized(scope, {}, {names[0], names[1]}));
  ExpectTensorEqual(out[0], Tensor::Scalar<float>(18));
  ExpectTensorEqual(out[1], Tensor::Scalar<float>(1));
}

TEST(Dense, GradientsAreFiniteDifferences) {
  for (const bool deep : {false, true}) {
    Scope scope;
    const Output x =
        Placeholder(scope, DT_DOUBLE, deep ? PartialShape{2, 1, 2} : PartialShape{2, 2});
    const DenseLayer y = Dense(scope, x, 3, {.activation = Tanh});
    const std::vector<double> values = {0.3, -1.2, 0.7, 2};
    ExpectLayerGradientsMatch(
        scope, y,
        {{x, *Tensor::FromValues<double>(deep ? Shape{2, 1, 2} : Shape{2, 2}, values)},
         {y.kernel.value, TensorOf<double>({2, 3}, {0.1, -0.4, 0.5, 0.2, 0.9, -0.3})},
         {y.bias.value, TensorOf<double>({3}, {0.1, 0, -0.2})}});
  }
}

// XOR, which one layer cannot learn.
TEST(Dense, LayersTrain) {
  Scope scope;
  scope.SetGraphSeed(3);
  const Output x = Placeholder(scope, DT_FLOAT, {-1, 2});
  const Output t = Placeholder(scope, DT_FLOAT, {-1, 1});
  const Output hidden = Dense(scope, x, 8, {.activation = Tanh});
  const Output error = Dense(scope, hidden, 1) - t;
  const Output loss = ReduceMean(scope, error * error);
  std::vector<Output> handles;
  const std::vector<Variable> variables = VariablesOf(scope, "trainable_variables");
  ASSERT_EQ(variables.size(), 4u);
  for (const Variable& variable : variables) handles.push_back(variable.handle);
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> gradients, AddGradients(scope, {loss}, handles));
  std::vector<Operation> updates;
  for (size_t i = 0; i < handles.size(); ++i) {
    updates.push_back(
        AssignSubVariableOp(scope, handles[i], DenseGradient(scope, gradients[i]) * 0.3));
  }
  const Operation train = Group(scope, updates);
  ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(scope));
  const std::vector<Feed> feeds = {{x, TensorOf<float>({4, 2}, {0, 0, 0, 1, 1, 0, 1, 1})},
                                   {t, TensorOf<float>({4, 1}, {0, 1, 1, 0})}};
  for (int step = 0; step < 1000; ++step) ASSERT_OK(session->Run(feeds, {}, {train}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, session->Run(feeds, {loss}));
  EXPECT_LT(out[0].scalar<float>(), 0.01f);
}

TEST(Dense, BadArgumentsAreErrorsOfTheScope) {
  const auto in = [](const Scope& s, const PartialShape& shape = {-1, 4}) {
    return Placeholder(s.WithName("x"), DT_FLOAT, shape);
  };
  ExpectBadCalls({
      {[&](const Scope& s) { return Dense(s, in(s), 0); },
       "Dense 'm/dense': units must be >= 1, got 0"},
      {[&](const Scope& s) { return Dense(s.WithName("fc"), in(s), -1); },
       "Dense 'm/fc': units must be >= 1, got -1"},
      {[&](const Scope& s) { return Dense(s, in(s), int64_t{1} << 40); },
       "Variable 'm/dense/kernel': "},
      {[&](const Scope& s) { return Dense(s, in(s, {4}), 2); },
       "Dense 'm/dense': x must have rank >= 2, got shape [4] of 'm/x:0'"},
      {[&](const Scope& s) {
         return Dense(s, in(s, {3, -1}), 2);
       },
       "the last dimension of x must be known and >= 1, got shape [3,?] of 'm/x:0'"},
      {[&](const Scope& s) { return Dense(s, in(s, PartialShape()), 2); },
       "the last dimension of x must be known and >= 1, got shape <unknown>"},
      {[&](const Scope& s) { return Dense(s, Output(), 2); },
       "Dense 'm/dense': x must be the output of a node, got an invalid Output"},
      {[&](const Scope& s) {
         return Dense(s, Placeholder(s, DT_INT32, {1, 2}), 2);
       },
       "x must be floating, got int32 from 'm/Placeholder:0'"},
      {[&](const Scope& s) {
         Scope other;
         return Dense(s, in(other), 2);
       },
       "x must be of the same graph, got 'x:0' of another"},
      {[&](const Scope& s) { return Dense(s, in(s), 2, {.kernel_initializer = {}}); },
       "Variable 'm/dense/kernel': the initializer must be a function, got none"},
      {[&](const Scope& s) {
         return Dense(s, in(s), 2, {.kernel_initializer = Values(TensorOf<float>({2}, {1, 2}))});
       },
       "Variable 'm/dense/kernel': the initializer must give float[4,2], got float[2] from "
       "'m/dense/kernel/Initializer/Const:0'"},
      {[&](const Scope& s) {
         return Dense(s, in(s), 2,
                      {.bias_initializer = [](ScopeAt, const Shape&, DType) { return Output(); }});
       },
       "Variable 'm/dense/bias': the initializer must give a tensor, got an invalid Output"},
      {[&](const Scope& s) { return Flatten(s, in(s, PartialShape::Scalar())); },
       "Flatten 'm/flatten': x must have"},
  });
}

TEST(Flatten, KeepsTheBatch) {
  struct Case {
    PartialShape shape;
    Shape fed;
    const char* known;
    Shape want;
  };
  const Case cases[] = {
      {{-1, 2, 3}, Shape{4, 2, 3}, "[?,6]", Shape{4, 6}},
      {{4, -1, 3}, Shape{4, 2, 3}, "[4,?]", Shape{4, 6}},
      {{-1, -1}, Shape{0, 2}, "[?,?]", Shape{0, 2}},
      {{-1, 0, 3}, Shape{5, 0, 3}, "[?,0]", Shape{5, 0}},
      {{-1}, Shape{3}, "[?,1]", Shape{3, 1}},
  };
  for (const Case& c : cases) {
    Scope scope;
    const Output x = Placeholder(scope, DT_INT32, c.shape);
    const Output y = Flatten(scope, x);
    EXPECT_EQ(scope.shape(y).ToString(), c.known) << c.shape.ToString();
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                         RunInitialized(scope, {{x, *Tensor::Zeros(DT_INT32, c.fed)}}, {y}));
    EXPECT_EQ(out[0].shape(), c.want) << c.shape.ToString();
  }
  Scope scope;
  const Output x = Placeholder(scope, DT_FLOAT, PartialShape());
  const Output y = Flatten(scope, x);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunInitialized(scope, {{x, *Tensor::Zeros(DT_FLOAT, Shape{2, 3, 4})}}, {y}));
  EXPECT_EQ(out[0].shape(), (Shape{2, 12}));
}

}  // namespace
}  // namespace millrace
