// SPDX-License-Identifier: Apache-2.0
//
// Classify, Regress and MultiInference of one version: values, contexts, every text of an error.
// Texts are quoted from TensorFlow Serving's contract.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/input.pb.h"
#include "proto/serving/regression.pb.h"
#include "saver/model_signature.h"
#include "serving/served_model.h"
#include "serving/testing/test_model.h"

// covers: serving: Classify, Regress and MultiInference over examples with and without a context
//   answer with TensorFlow Serving's replies, codes and texts

namespace millrace {
namespace {

using absl::StatusCode;
using tensorflow::serving::ClassificationRequest;
using tensorflow::serving::ClassificationResponse;
using tensorflow::serving::Input;
using tensorflow::serving::MultiInferenceRequest;
using tensorflow::serving::MultiInferenceResponse;
using tensorflow::serving::RegressionRequest;
using tensorflow::serving::RegressionResponse;

template <typename Request>
Request AskFor(const std::string& signature, const Input& input) {
  Request request;
  request.mutable_model_spec()->set_name("asked");
  request.mutable_model_spec()->set_signature_name(signature);
  *request.mutable_input() = input;
  return request;
}

class ExampleAnswersTest : public ServingTest {
 protected:
  void SetUp() override {
    ServingTest::SetUp();
    Load({});
  }
  void Load(const ServedModelOptions& options) {
    auto model = ServedModel::Load("flowers", 3, dir_, options);
    ASSERT_OK(model.status());
    model_ = *std::move(model);
  }
  Status Classify(const std::string& signature, const Input& input,
                  ClassificationResponse* response) {
    return model_->Classify(AskFor<ClassificationRequest>(signature, input), {}, response);
  }
  Status Regress(const std::string& signature, const Input& input, RegressionResponse* response) {
    return model_->Regress(AskFor<RegressionRequest>(signature, input), {}, response);
  }

  std::unique_ptr<ServedModel> model_;
};

TEST_F(ExampleAnswersTest, EachExampleHasItsClasses) {
  const Input input = InputOf({1, 2});
  ClassificationResponse response;
  ASSERT_OK(Classify("classify", input, &response));
  EXPECT_EQ(response.model_spec().name(), "asked");
  EXPECT_EQ(response.model_spec().version().value(), 3);
  EXPECT_EQ(response.model_spec().signature_name(), "classify");
  ASSERT_EQ(response.result().classifications_size(), 2);
  for (int i = 0; i < 2; ++i) {
    const auto& classes = response.result().classifications(i).classes();
    ASSERT_EQ(classes.size(), 1);
    // The model's classes are what it is fed.
    EXPECT_EQ(classes[0].label(), input.example_list().examples(i).SerializeAsString());
    EXPECT_EQ(classes[0].score(), i == 0 ? 3 : 5);
  }
  ASSERT_OK(Classify("classify_classes", input, &response));
  EXPECT_EQ(response.result().classifications(0).classes(0).score(), 0);
  EXPECT_NE(response.result().classifications(0).classes(0).label(), "");
  ASSERT_OK(Classify("classify_scores", input, &response));
  EXPECT_EQ(response.result().classifications(1).classes(0).score(), 5);
  EXPECT_EQ(response.result().classifications(1).classes(0).label(), "");
  EXPECT_EQ(model_->num_output_sets(), 0);  // whole signatures
}

TEST_F(ExampleAnswersTest, EachExampleHasItsNumber) {
  RegressionResponse response;
  ASSERT_OK(Regress("regress", InputOf({1, 2, -4}), &response));
  EXPECT_EQ(response.model_spec().name(), "asked");
  EXPECT_EQ(response.model_spec().signature_name(), "regress");
  ASSERT_EQ(response.result().regressions_size(), 3);
  EXPECT_EQ(response.result().regressions(0).value(), 3);
  EXPECT_EQ(response.result().regressions(2).value(), -12);
  ASSERT_OK(Regress("regress_column", InputOf({1, 2}), &response));
  ASSERT_EQ(response.result().regressions_size(), 2);
  EXPECT_EQ(response.result().regressions(1).value(), 5);
}

TEST_F(ExampleAnswersTest, AContextIsPartOfEachExample) {
  Input input;
  auto* const list = input.mutable_example_list_with_context();
  *list->mutable_context() = ExampleOf("v", 7);
  *list->add_examples() = ExampleOf("u", 1);
  *list->add_examples() = ExampleOf("v", 2);  // the later one counts
  ClassificationResponse response;
  ASSERT_OK(Classify("classify", input, &response));
  ASSERT_EQ(response.result().classifications_size(), 2);
  EXPECT_EQ(response.result().classifications(0).classes(0).score(), 15);
  EXPECT_EQ(response.result().classifications(1).classes(0).score(), 5);
  EXPECT_EQ(
      response.result().classifications(0).classes(0).label(),
      absl::StrCat(list->context().SerializeAsString(), list->examples(0).SerializeAsString()));
}

TEST_F(ExampleAnswersTest, NoExamplesAreAnError) {
  Input no_list, no_context;
  no_list.mutable_example_list();
  *no_context.mutable_example_list_with_context()->mutable_context() = ExampleOf("v", 7);
  for (const Input& input : {Input(), no_list, no_context}) {
    ClassificationResponse classification;
    const Status status = Classify("classify", input, &classification);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "Input is empty.");
    RegressionResponse regression;
    EXPECT_EQ(Regress("regress", input, &regression), status);
  }
}

TEST_F(ExampleAnswersTest, WrongSignaturesHaveTheTextsOfTensorFlowServing) {
  constexpr StatusCode kArgument = StatusCode::kInvalidArgument;
  constexpr StatusCode kPrecondition = StatusCode::kFailedPrecondition;
  const struct {
    std::string signature;
    StatusCode code;
    std::string text;  // the whole; what ends with ": " is followed by the signature
  } kCases[] = {
      {"nil", kArgument, "No signature was found with the name: nil"},
      {"", kArgument, "Expected one input Tensor."},  // serving_default has two
      {"classify_three_outputs", kArgument, "Expected one or two output Tensors, found 3"},
      {"classify_no_inputs", kPrecondition, "No classification inputs found in SignatureDef: "},
      {"classify_no_outputs", kPrecondition,
       "Expected classification signature outputs to contain at least one of \"classes\" or "
       "\"scores\". Signature was: "},
      {"classify_flat", kArgument, "Expected Tensor shape: [batch_size num_classes] but got [2]"},
      {"classify_number_classes", kArgument, "Expected classes Tensor of DT_STRING. Got: DT_FLOAT"},
      {"classify_string_scores", kArgument, "Expected scores Tensor of DT_FLOAT. Got: DT_STRING"},
      {"classify_one_row", kArgument, "Expected scores output batch size of 2. Got: 1"},
      {"classify_other_widths", kArgument,
       "Tensors class and score should match in dim_size(1). Got 1 vs. 2"},
      {"regress", kPrecondition,
       "Expected classification signature outputs to contain at least one of \"classes\" or "
       "\"scores\". Signature was: "},
      {"regress_two", kArgument, "No signature was found with the name: regress_two"},
  };
  const auto check = [](const std::string& signature, const Status& status, StatusCode code,
                        const std::string& text) {
    EXPECT_EQ(status.code(), code) << signature;
    if (absl::EndsWith(text, ": ")) {
      EXPECT_TRUE(absl::StartsWith(status.message(), text)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "method_name")) << status;
    } else {
      EXPECT_EQ(status.message(), text);
    }
  };
  for (const auto& c : kCases) {
    ClassificationResponse response;
    check(c.signature, Classify(c.signature, InputOf({1, 2}), &response), c.code, c.text);
    EXPECT_EQ(response.ByteSizeLong(), 0u) << c.signature;
  }
  const struct {
    std::string signature;
    StatusCode code;
    std::string text;
  } kRegressions[] = {
      {"nil", kArgument, "No signature was found with the name: nil"},
      {"", kArgument, "Expected one input Tensor."},
      {"classify", kArgument, "Expected one output Tensor."},
      {"regress_no_inputs", kPrecondition, "No regression inputs found in SignatureDef: "},
      {"regress_no_outputs", kPrecondition, "No regression outputs found in SignatureDef: "},
      {"regress_wide", kArgument,
       "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got [2,2]"},
      {"regress_one_row", kArgument, "Input batch size did not match output batch size: 2 vs. 1"},
      {"regress_string", kArgument, "Expected output Tensor of DT_FLOAT.  Got: DT_STRING"},
  };
  for (const auto& c : kRegressions) {
    RegressionResponse response;
    check(c.signature, Regress(c.signature, InputOf({1, 2}), &response), c.code, c.text);
    EXPECT_EQ(response.ByteSizeLong(), 0u) << c.signature;
  }
}

TEST_F(ExampleAnswersTest, MethodNamesAreCheckedWhereThatIsChosen) {
  Load({.check_method_names = true});
  ClassificationResponse classification;
  EXPECT_OK(Classify("classify", InputOf({1}), &classification));
  EXPECT_EQ(Classify("regress", InputOf({1}), &classification).message(),
            "Expected classification signature method_name to be tensorflow/serving/classify. "
            "Was: tensorflow/serving/regress");
  RegressionResponse regression;
  EXPECT_OK(Regress("regress", InputOf({1}), &regression));
  EXPECT_EQ(Regress("classify", InputOf({1}), &regression).message(),
            "Expected regression signature method_name to be tensorflow/serving/regress. "
            "Was: tensorflow/serving/classify");
}

// Signature and method of each task.
MultiInferenceRequest TasksOf(const std::vector<std::pair<std::string, std::string>>& tasks,
                              const Input& input) {
  MultiInferenceRequest request;
  for (const auto& [signature, method] : tasks) {
    auto* const task = request.add_tasks();
    task->mutable_model_spec()->set_name("asked");
    task->mutable_model_spec()->set_signature_name(signature);
    task->set_method_name(method);
  }
  *request.mutable_input() = input;
  return request;
}

TEST_F(ExampleAnswersTest, SeveralSignaturesAnswerInOneStep) {
  MultiInferenceResponse response;
  const MultiInferenceRequest request = TasksOf({{"regress", kRegressMethod},
                                                 {"classify", kClassifyMethod},
                                                 {"regress_column", kRegressMethod}},
                                                InputOf({1, 2}));
  ASSERT_OK(model_->MultiInference(request, {}, &response));
  ASSERT_EQ(response.results_size(), 3);
  EXPECT_EQ(response.results(0).model_spec().name(), "asked");
  EXPECT_EQ(response.results(0).model_spec().signature_name(), "regress");
  EXPECT_EQ(response.results(0).model_spec().version().value(), 3);
  EXPECT_EQ(response.results(0).regression_result().regressions(1).value(), 6);
  EXPECT_EQ(response.results(1).model_spec().signature_name(), "classify");
  EXPECT_EQ(response.results(1).classification_result().classifications(1).classes(0).score(), 5);
  EXPECT_NE(response.results(1).classification_result().classifications(1).classes(0).label(), "");
  EXPECT_EQ(response.results(2).regression_result().regressions(0).value(), 3);
  EXPECT_EQ(model_->num_output_sets(), 1);
  ASSERT_OK(model_->MultiInference(request, {}, &response));
  EXPECT_EQ(response.results_size(), 3);
  EXPECT_EQ(model_->num_output_sets(), 1);
}

TEST_F(ExampleAnswersTest, WrongTasksHaveTheTextsOfTensorFlowServing) {
  constexpr StatusCode kArgument = StatusCode::kInvalidArgument;
  const struct {
    std::vector<std::pair<std::string, std::string>> tasks;
    StatusCode code;
    std::string text;
  } kCases[] = {
      {{{"nil", kRegressMethod}}, kArgument, "Requested signature not found in model graph: nil"},
      {{{"regress", kRegressMethod}, {"regress", kRegressMethod}},
       kArgument,
       "Duplicate evaluation of signature: regress"},
      {{{"regress", kPredictMethod}},
       StatusCode::kUnimplemented,
       "Unsupported signature method_name: tensorflow/serving/predict"},
      {{{"regress", kRegressMethod}, {"regress_x", kRegressMethod}},
       kArgument,
       "Input tensor must be the same for all Signatures."},
      {{{"classify", kRegressMethod}}, kArgument, "Expected one output Tensor."},
      {{{"regress", kRegressMethod}, {"classify_flat", kClassifyMethod}},
       kArgument,
       "Expected Tensor shape: [batch_size num_classes] but got [1]"},
  };
  for (const auto& c : kCases) {
    MultiInferenceResponse response;
    const Status status = model_->MultiInference(TasksOf(c.tasks, InputOf({1})), {}, &response);
    EXPECT_EQ(status.code(), c.code);
    EXPECT_EQ(status.message(), c.text);
    EXPECT_EQ(response.ByteSizeLong(), 0u);
  }
  MultiInferenceResponse response;
  EXPECT_STATUS(model_->MultiInference(TasksOf({}, InputOf({1})), {}, &response), kArgument,
                "tasks must be at least one, got 0");
  MultiInferenceRequest request =
      TasksOf({{"regress", kRegressMethod}, {"classify", kClassifyMethod}}, InputOf({1}));
  request.mutable_tasks(1)->mutable_model_spec()->set_name("other");
  EXPECT_EQ(model_->MultiInference(request, {}, &response).message(),
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.");
  request.mutable_tasks(1)->mutable_model_spec()->clear_name();
  EXPECT_EQ(model_->MultiInference(request, {}, &response).message(),
            "Found ModelSpec with an empty model name.");
  EXPECT_EQ(model_->MultiInference(TasksOf({{"regress", kRegressMethod}}, Input()), {}, &response)
                .message(),
            "Input is empty.");
}

// Before each example stands the context.
TEST_F(ExampleAnswersTest, AContextIsNotRepeatedWithoutBound) {
  Input input;
  auto* const list = input.mutable_example_list_with_context();
  (*list->mutable_context()->mutable_features()->mutable_feature())["c"]
      .mutable_bytes_list()
      ->add_value(std::string(1 << 20, 'c'));
  for (int i = 0; i < 256; ++i) list->add_examples();
  ClassificationResponse response;
  const Status status = Classify("classify", input, &response);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
}

// Of TensorFlow Serving's tests: y = x / 2 + 2 over examples with the feature x.
TEST(SharedExamples, HalfPlusTwoClassifiesAndRegresses) {
  const std::string path = SharedDataPath("serving/saved_model_half_plus_two_2_versions/00000123");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_model_half_plus_two_2_versions";
  ASSERT_OK_AND_ASSIGN(const auto model, ServedModel::Load("half_plus_two", 123, path));
  Input input;
  *input.mutable_example_list()->add_examples() = ExampleOf("x", 2);
  *input.mutable_example_list()->add_examples() = ExampleOf("x", 5);
  ClassificationResponse classification;
  ASSERT_OK(model->Classify(AskFor<ClassificationRequest>("classify_x_to_y", input), {},
                            &classification));
  ASSERT_EQ(classification.result().classifications_size(), 2);
  EXPECT_EQ(classification.result().classifications(0).classes(0).score(), 3);
  EXPECT_EQ(classification.result().classifications(1).classes(0).score(), 4.5f);
  RegressionResponse regression;
  ASSERT_OK(model->Regress(AskFor<RegressionRequest>("regress_x_to_y", input), {}, &regression));
  ASSERT_EQ(regression.result().regressions_size(), 2);
  EXPECT_EQ(regression.result().regressions(1).value(), 4.5f);
  MultiInferenceResponse response;
  ASSERT_OK(model->MultiInference(
      TasksOf({{"regress_x_to_y", kRegressMethod}, {"classify_x_to_y", kClassifyMethod}}, input),
      {}, &response));
  EXPECT_EQ(response.results(0).regression_result().regressions(0).value(), 3);
  EXPECT_EQ(response.results(1).classification_result().classifications(0).classes(0).score(), 3);
}

}  // namespace
}  // namespace millrace
