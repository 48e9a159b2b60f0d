// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/feature_columns.md, as it stands there.

#include <set>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/feature_spec.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/columns/parse_spec.h"
#include "estimator/columns/row_ids.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adagrad.h"

// covers: columns: the page's program

namespace millrace {
namespace {

#include "docs/feature_columns_program.inc"

TEST(FeatureColumnsPageTest, TheModelLearns) {
  Scope root;
  root.SetGraphSeed(7);
  const Features features = {
      {"age", Const(root, Tensor::Of({23.0f, 51.0f, 38.0f, 19.0f}))},
      {"hours_per_week", Const(root, Tensor::Of({40.0f, 50.0f, 38.0f, 20.0f}))},
      {"gender", Const(root, Tensor::Of({" Male", " Female", " Female", " Male"}))},
      {"occupation", Const(root, Tensor::Of({" Sales", " Tech-support", " Sales", " ?"}))}};
  const Output labels = Const(root, Tensor::Of<float>({{0}, {1}, {1}, {0}}));
  const Output logits = WideAndDeep(root, features);
  const Output loss = SigmoidCrossEntropy(root, labels, logits);
  const Operation step = AdagradOptimizer({.learning_rate = 0.05}).Minimize(root, loss);
  const Operation variables = GlobalVariablesInitializer(root), tables = TablesInitializer(root);
  ASSERT_OK(root.status());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {variables, tables}).status());
  for (int i = 0; i < 300; ++i) ASSERT_OK(session->Run({}, {}, {step}).status());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, session->Run({}, {loss}));
  EXPECT_LT(out[0].scalar<float>(), 0.2f);
}

TEST(FeatureColumnsPageTest, ParsersReadWhatColumnsNeed) {
  ASSERT_OK_AND_ASSIGN(const FeatureSpecs specs, WhatExamplesHave());
  EXPECT_EQ(specs.size(), 4u);
  EXPECT_EQ(specs.count("occupation"), 1u);
}

TEST(FeatureColumnsPageTest, IdsAreMadeWhereRowsAreRead) {
  const Tensor number = Tensor::Scalar(0.0f), text = Tensor::Scalar("");
  const data::Dataset people =
      data::Dataset::FromTensorSlices({Tensor::Of({"23,40, Male, Sales", "51,50, Female, ?"})})
          .Map(data::DecodeCsv({.defaults = {number, number, text, text},
                                .names = {"age", "hours_per_week", "gender", "occupation"}}));
  const data::Dataset given = WithRowIds(people);
  ASSERT_OK(given.status());
  std::set<std::string> names;
  for (const data::ComponentSpec& component : given.spec()) names.insert(component.name);
  EXPECT_EQ(names.count("age") + names.count("hours_per_week"), 2u);
  EXPECT_EQ(names.count("gender") + names.count("occupation"), 0u) << "only their ids are left";
  ASSERT_OK_AND_ASSIGN(const auto iterator, given.MakeIterator());
  ASSERT_OK(iterator->Next().status());
}

}  // namespace
}  // namespace millrace
