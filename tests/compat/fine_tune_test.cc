// SPDX-License-Identifier: Apache-2.0
//
// A SavedModel that TensorFlow 2 wrote is trained on: its variables are found, a loss is built over
// its signature, gradients go through its functions, what was learned is saved and served again.

#include <filesystem>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "proto/saver.pb.h"
#include "proto/versions.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/meta_graph.h"
#include "saver/object_graph.h"
#include "saver/saved_model.h"
#include "saver/saved_model_reader.h"
#include "saver/saver.h"
#include "train/adam.h"
#include "train/gradient_descent.h"

// covers: values: a model of TensorFlow 2 is trained on: the variables of its objects are found,
//   gradients go through the functions of its signature, and what was learned is exported and
//   served; damaged object graphs are named
// covers: values: in graphs of producers up to 21 a placeholder of shape [] is of unknown shape;
//   an old op Variable that may have any shape is trained on once its shape is said

namespace millrace {
namespace {

// y = 0.5 x + 2, written by a program that said [] for shapes that it did not know: of its
// placeholder, and of its variables, which are scalars.
TEST(FineTune, AGraphThatSaysScalarForUnknownLearnsWhenItsVariablesAreSaidToBeScalars) {
  const std::string dir = SharedDataPath("session_bundle/half_plus_two");
  if (dir.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no session_bundle/half_plus_two";
  ASSERT_OK_AND_ASSIGN(const auto meta,
                       ReadMetaGraph(FileSystem::Posix(), JoinPath(dir, "export.meta")));
  EXPECT_EQ(meta.graph_def().versions().producer(), 19);
  const auto build_step = [](const Scope& scope, const std::vector<Variable>& weights, Output* x,
                             Output* target) -> Operation {
    const StatusOr<Output> found_x = scope.Find("x"), y = scope.Find("y");
    if (!found_x.ok() || !y.ok()) return Operation();
    *x = *found_x;
    *target = Placeholder(scope.WithName("target"), DT_FLOAT, {1, 1});
    const Output loss = ReduceSum(scope, Square(scope, Sub(scope, *y, *target)));
    return AdamOptimizer({.learning_rate = 0.25}).Minimize(scope, loss, {.variables = weights});
  };
  const auto weights_of = [](const Scope& scope) {
    std::vector<Variable> weights = VariablesOf(scope, "trainable_variables");
    weights.resize(2);  // without the global step
    return weights;
  };
  Output x, target;
  {
    ASSERT_OK_AND_ASSIGN(const Scope scope, ImportMetaGraph(meta));
    ASSERT_OK_AND_ASSIGN(const Output example, scope.Find("tf_example"));
    EXPECT_EQ(scope.shape(example).ToString(), "<unknown>");
    ASSERT_EQ(VariablesOf(scope, "trainable_variables").size(), 3u);
    build_step(scope, weights_of(scope), &x, &target);
    EXPECT_STATUS(scope.status(), absl::StatusCode::kInvalidArgument,
                  "Adam: variable 'a' must have a shape that is known whole, got <unknown>");
    EXPECT_STATUS(scope.status(), absl::StatusCode::kInvalidArgument,
                  "scope.SetShape(*scope.Find(\"a/read:0\"), PartialShape::Scalar())");
  }

  ASSERT_OK_AND_ASSIGN(const Scope scope, ImportMetaGraph(meta));
  for (const Variable& variable : weights_of(scope)) {
    scope.SetShape(variable.value, PartialShape::Scalar());
  }
  const std::vector<Variable> weights = weights_of(scope);
  const Operation step = build_step(scope, weights, &x, &target);
  const Operation init = GlobalVariablesInitializer(scope);
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK(session->Run({}, {}, {init}));
  ASSERT_OK(Saver::FromDef(meta.saver_def())
                ->Restore(session.get(), JoinPath(dir, "export-\?\?\?\?\?-of-00001")));
  // The gradients are 2 * 4 * (4 - 10) and 2 * (4 - 10): the first step of Adam goes by the
  // learning rate, up.
  ASSERT_OK(session->Run(
      {{x, TensorOf<float>({1, 1}, {4})}, {target, TensorOf<float>({1, 1}, {10})}}, {}, {step}));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {weights[0].value, weights[1].value}));
  EXPECT_NEAR(out[0].raw_scalar<float>(), 0.75f, 1e-5f);
  EXPECT_NEAR(out[1].raw_scalar<float>(), 2.25f, 1e-5f);
}

// y = v x; v is 3 in the file.
TEST(FineTune, AModelOfTensorFlow2LearnsAndIsServedAgain) {
  const std::string dir = SharedDataPath("saved_models/times_three_float");
  if (dir.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models/times_three_float";
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK_AND_ASSIGN(const auto model, ReadSavedModel(fs, dir));
  const tensorflow::MetaGraphDef& meta = model.meta_graphs(0);
  ASSERT_OK_AND_ASSIGN(const Scope scope, ImportMetaGraph(meta));

  ASSERT_OK_AND_ASSIGN(const auto variables, AdoptObjectVariables(scope, meta));
  ASSERT_EQ(variables.size(), 1u);
  EXPECT_EQ(variables[0].path, "v");
  EXPECT_TRUE(variables[0].trainable);
  const Output v = variables[0].variable.value;

  const auto tensor = [&](const tensorflow::TensorInfo& info) {
    const StatusOr<TensorName> name = ParseTensorName(info.name());
    return Output(scope.graph()->FindNode(name->node), name->index);
  };
  const tensorflow::SignatureDef& signature = meta.signature_def().at("serving_default");
  const Output x = tensor(signature.inputs().at("x"));
  const Output y = tensor(signature.outputs().at("output_0"));
  const Output target = Placeholder(scope.WithName("target"), DT_FLOAT, PartialShape::Scalar());
  const Output loss = Square(scope, Sub(scope, y, target));
  const Operation train = GradientDescentOptimizer({.learning_rate = 0.1}).Minimize(scope, loss);
  ASSERT_OK(scope.status());

  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  const LoadPlan plan = PlanLoading(fs, dir, meta);
  ASSERT_TRUE(plan.errors.empty()) << plan.errors.front();
  ASSERT_TRUE(plan.restore.has_value());
  ASSERT_OK(session->Run(plan.restore->feeds, {}, {plan.restore->target}));
  ASSERT_OK_AND_ASSIGN(auto out, session->Run({}, {v}));
  EXPECT_EQ(out[0].raw_scalar<float>(), 3.0f);

  // One step by hand: d/dv (v x - t)^2 = 2 x (v x - t) = 2 * 2 * (6 - 10) = -16.
  const std::vector<Feed> feeds = {{x, Tensor::Scalar(2.0f)}, {target, Tensor::Scalar(10.0f)}};
  ASSERT_OK(session->Run(feeds, {}, {train}));
  ASSERT_OK_AND_ASSIGN(out, session->Run({}, {v}));
  EXPECT_NEAR(out[0].raw_scalar<float>(), 4.6f, 1e-6f);
  for (int step = 0; step < 30; ++step) ASSERT_OK(session->Run(feeds, {}, {train}));

  const std::string to =
      (std::filesystem::path(::testing::TempDir()) / "fine_tuned_times_three").string();
  std::filesystem::remove_all(to);
  ASSERT_OK(
      ExportModel(session.get(), scope, {.inputs = {{"x", x}}, .outputs = {{"output_0", y}}}, to));
  ASSERT_OK_AND_ASSIGN(const SavedModelBundle served,
                       LoadSavedModel({}, to, {kSavedModelTagServe}));
  ASSERT_OK_AND_ASSIGN(const ModelSignature again, served.Signature("serving_default"));
  ASSERT_OK_AND_ASSIGN(out,
                       served.session->Run({{again.inputs().at("x").name(), Tensor::Scalar(7.0f)}},
                                           {again.outputs().at("output_0").name()}));
  EXPECT_NEAR(out[0].raw_scalar<float>(), 35.0f, 1e-3f);
}

TEST(FineTune, EveryVariableOfAnObjectIsFound) {
  const std::string dir = SharedDataPath("saved_models/multi_signatures");
  if (dir.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models/multi_signatures";
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK_AND_ASSIGN(const auto model, ReadSavedModel(fs, dir));
  const tensorflow::MetaGraphDef& meta = model.meta_graphs(0);
  ASSERT_OK_AND_ASSIGN(const Scope scope, ImportMetaGraph(meta));
  ASSERT_OK_AND_ASSIGN(const auto variables, AdoptObjectVariables(scope, meta));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  const LoadPlan plan = PlanLoading(fs, dir, meta);
  ASSERT_TRUE(plan.restore.has_value());
  ASSERT_OK(session->Run(plan.restore->feeds, {}, {plan.restore->target}));
  std::map<std::string, float> values;
  for (const ObjectVariable& one : variables) {
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {one.variable.value}));
    values[one.path] = out[0].raw_scalar<float>();
  }
  EXPECT_EQ(values, (std::map<std::string, float>{{"two", 2.0f}, {"v", 3.0f}}));
}

// --- Object graphs that are none

TEST(ObjectGraph, WhatIsDamagedIsNamed) {
  const auto adopt = [](const std::function<void(tensorflow::SavedObjectGraph*)>& change) {
    Scope scope;
    VarHandleOp(scope.WithName("w"), DT_FLOAT, {2});
    tensorflow::MetaGraphDef meta;
    tensorflow::SavedObjectGraph* const objects = meta.mutable_object_graph_def();
    auto* const child = objects->add_nodes()->add_children();
    child->set_node_id(1);
    child->set_local_name("kernel");
    tensorflow::SavedVariable* const variable = objects->add_nodes()->mutable_variable();
    variable->set_name("w");
    variable->set_dtype(tensorflow::DT_FLOAT);
    variable->mutable_shape()->add_dim()->set_size(2);
    if (change) change(objects);
    return AdoptObjectVariables(scope, meta);
  };
  ASSERT_OK_AND_ASSIGN(const auto variables, adopt(nullptr));
  ASSERT_EQ(variables.size(), 1u);
  EXPECT_EQ(variables[0].path, "kernel");
  EXPECT_EQ(variables[0].variable.name, "w");
  const auto invalid = absl::StatusCode::kInvalidArgument;
  for (const int id : {-1, 2, 1'000'000}) {
    EXPECT_STATUS(adopt([id](auto* o) {
                    o->mutable_nodes(0)->mutable_children(0)->set_node_id(id);
                  }).status(),
                  invalid, "child 'kernel' must be one of the 2 objects");
  }
  EXPECT_STATUS(
      adopt([](auto* o) { o->mutable_nodes(1)->mutable_variable()->set_name("v"); }).status(),
      invalid, "variable 'v' must have a handle in the graph");
  EXPECT_STATUS(adopt([](auto* o) {
                  o->mutable_nodes(1)->mutable_variable()->set_dtype(tensorflow::DT_INT32);
                }).status(),
                invalid, "a VarHandleOp of int32[2]");
  EXPECT_STATUS(adopt([](auto* o) {
                  *o->add_nodes() = o->nodes(1);  // two objects, one handle
                }).status(),
                invalid, "object 2");
  EXPECT_STATUS(
      adopt([](auto* o) {
        o->mutable_nodes(1)->mutable_variable()->mutable_shape()->mutable_dim(0)->set_size(-7);
      }).status(),
      invalid, "object 1");
  // A way that leads back is none.
  ASSERT_OK(adopt([](auto* o) {
              auto* const back = o->mutable_nodes(1)->add_children();
              back->set_node_id(0);
              back->set_local_name("parent");
            }).status());
}

}  // namespace
}  // namespace millrace
