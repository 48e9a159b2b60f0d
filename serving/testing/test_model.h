// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_TESTING_TEST_MODEL_H_
#define MILLRACE_SERVING_TESTING_TEST_MODEL_H_

// A model for tests of serving, exported anew for each: signatures of every kind, sound and wrong.
//
//   serving_default     x float [?,2], k float []  ->  product x * k, sum x + k, words "w" [1]
//   classify, regress   inputs: serialized examples with the float feature v
//                       classes: the examples [?,1], scores: 2 v + 1 [?,1]; outputs: 3 v [?]
//   classify_*, regress_*   one thing wrong, as the name says
//
// Tests that include it link the kernels: //ops and //data.

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/parse_example.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/example.pb.h"
#include "proto/feature.pb.h"
#include "proto/serving/input.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/model_signature.h"
#include "saver/saved_model.h"

namespace millrace {

inline Status ExportTestModel(const std::string& directory) {
  const Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 2});
  const Output k = Placeholder(root.WithName("k"), DT_FLOAT, PartialShape::Scalar());
  const Variable one = MakeVariable(root.WithName("one"), Const(root, 1.0f));
  const Output product = Mul(root.WithName("product"), Mul(root, x, k), one.value);
  const Output sum = Add(root.WithName("sum"), x, k);
  const Output words = Const(root.WithName("words"), Tensor::Of({"w"}));

  const Output examples = Placeholder(root.WithName("examples"), DT_STRING, {-1});
  const Output v = ParseExample(root, examples,
                                {.dense = {{.key = "v",
                                            .shape = PartialShape::Scalar(),
                                            .default_value = Tensor::Scalar(0.0f)}}})
                       .dense[0];
  const Output column = Const(root, Tensor::Of<int32_t>({-1, 1}));
  const Output flat_classes = Identity(root.WithName("flat_classes"), examples);
  const Output classes = Reshape(root.WithName("classes"), flat_classes, column);
  const Output scores =
      Reshape(root.WithName("scores"),
              Add(root, Mul(root, v, Const(root, 2.0f)), Const(root, 1.0f)), column);
  const Output twice = Concat(root.WithName("twice"), {scores, scores}, Const(root, int32_t{1}));
  const Output one_row = Const(root.WithName("one_row"), Tensor::Of<float>({{1}}));
  const Output values = Mul(root.WithName("values"), v, Const(root, 3.0f));

  std::vector<ServingSignature> signatures = {
      {.inputs = {{"x", x}, {"k", k}},
       .outputs = {{"product", product}, {"sum", sum}, {"words", words}}}};
  const auto add = [&](const std::string& key, const std::string& method, NamedOutputs inputs,
                       NamedOutputs outputs) {
    signatures.push_back(
        {.inputs = std::move(inputs), .outputs = std::move(outputs), .key = key, .method = method});
  };
  const NamedOutputs in = {{"inputs", examples}};
  add("classify", kClassifyMethod, in, {{"classes", classes}, {"scores", scores}});
  add("classify_classes", kClassifyMethod, in, {{"classes", classes}});
  add("classify_scores", kClassifyMethod, in, {{"scores", scores}});
  add("classify_flat", kClassifyMethod, in, {{"classes", flat_classes}});
  add("classify_number_classes", kClassifyMethod, in, {{"classes", scores}});
  add("classify_string_scores", kClassifyMethod, in, {{"scores", classes}});
  add("classify_one_row", kClassifyMethod, in, {{"scores", one_row}});
  add("classify_other_widths", kClassifyMethod, in, {{"classes", classes}, {"scores", twice}});
  add("classify_no_outputs", kClassifyMethod, in, {{"labels", classes}});
  add("classify_no_inputs", kClassifyMethod, {{"examples", examples}}, {{"scores", scores}});
  add("classify_three_outputs", kClassifyMethod, in,
      {{"classes", classes}, {"scores", scores}, {"values", values}});
  add("regress", kRegressMethod, in, {{"outputs", values}});
  add("regress_column", kRegressMethod, in, {{"outputs", scores}});
  add("regress_wide", kRegressMethod, in, {{"outputs", twice}});
  add("regress_one_row", kRegressMethod, in, {{"outputs", one_row}});
  add("regress_string", kRegressMethod, in, {{"outputs", classes}});
  add("regress_no_outputs", kRegressMethod, in, {{"values", values}});
  add("regress_no_inputs", kRegressMethod, {{"examples", examples}}, {{"outputs", values}});
  add("regress_x", kRegressMethod, {{"inputs", x}}, {{"outputs", Neg(root, x)}});
  MR_RETURN_IF_ERROR(root.status());

  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {one.initializer}).status());
  return ExportModel(session.get(), root, signatures, directory);
}

// Exported for each test, deleted after it.
class ServingTest : public ::testing::Test {
 protected:
  ServingTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("served_", RandomHexName()))) {}
  ~ServingTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }
  void SetUp() override { ASSERT_OK(ExportTestModel(dir_)); }

  const std::string dir_;
};

inline tensorflow::Example ExampleOf(const std::string& feature, float value) {
  tensorflow::Example example;
  (*example.mutable_features()->mutable_feature())[feature].mutable_float_list()->add_value(value);
  return example;
}

// Examples with these values of v.
inline tensorflow::serving::Input InputOf(std::initializer_list<float> values) {
  tensorflow::serving::Input input;
  auto* const list = input.mutable_example_list();
  for (const float value : values) *list->add_examples() = ExampleOf("v", value);
  return input;
}

}  // namespace millrace

#endif  // MILLRACE_SERVING_TESTING_TEST_MODEL_H_
