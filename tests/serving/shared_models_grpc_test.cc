// SPDX-License-Identifier: Apache-2.0
//
// Every model of TensorFlow in the shared data, all in one model server, asked over gRPC: Predict,
// Classify, Regress and SessionRun give the values of cases.json. REST: shared_models_test.py,
// which also says what is refused.

#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/meta_graph.pb.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/input.pb.h"
#include "proto/serving/method_paths.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/regression.pb.h"
#include "proto/serving/session_service.pb.h"
#include "proto/tensor.pb.h"
#include "tests/compat/json_tensor.h"
#include "tests/serving/served_process.h"
#include "tests/serving/served_test.h"

// covers: serving: all models that TensorFlow wrote, served at once, give their expected values
//   over gRPC: Predict of each case, Classify and Regress by examples, SessionRun by names of
//   tensors and of a counter that keeps its count

namespace millrace {
namespace {

using nlohmann::json;
namespace serving = tensorflow::serving;

class SharedModelsGrpcTest : public ServedProcessTest {
 protected:
  void SetUp() override {
    ServedProcessTest::SetUp();
    cases_ = CasesOfKind("saved_model_run");
    if (cases_.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no cases.json";
    std::set<std::string> paths;
    for (const json& one : cases_) {
      if (one.at("tags") == json({"serve"})) paths.insert(one.at("path").get<std::string>());
    }
    std::string list = "model_config_list {\n";
    for (const std::string& path : paths) {
      const std::string base = Path(ModelOf(path));
      ASSERT_OK(files()->RecursivelyCreateDirectory(base));
      ASSERT_EQ(symlink(SharedDataPath(path).c_str(), JoinPath(base, "1").c_str()), 0);
      AddModel(ModelOf(path), base, &list);
    }
    for (const char* name : {kCounter, kTwoVersions}) {
      AddModel(name, SharedDataPath(absl::StrCat("serving/", name)), &list);
    }
    list += "}\n";
    ASSERT_OK(WriteFileAtomically(files(), Path("models.config"), list));
    ASSERT_OK_AND_ASSIGN(
        server_,
        ServedProcess::Start({.args = {absl::StrCat("--model_config_file=", Path("models.config")),
                                       "--trust_new_versions", "--max_num_load_retries=0",
                                       "--require_all_models", "--enable_session_run"}}));
  }
  static void AddModel(const std::string& name, const std::string& base, std::string* list) {
    absl::StrAppend(list, "config { name: \"", name, "\" base_path: \"", base,
                    "\" model_platform: \"tensorflow\" model_version_policy { all { } } }\n");
  }
  static std::string ModelOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  static std::string ModelOf(const json& one) { return ModelOf(one.at("path").get<std::string>()); }
  static bool IsServed(const json& one) { return one.at("tags") == json({"serve"}); }
  // Two aliases of its signature are one tensor, which a step takes once.
  static bool FeedsATensorTwice(const json& one) {
    std::set<std::string> tensors;
    for (const auto& [alias, value] : one.at("inputs").items()) {
      if (!tensors.insert(value.at("tensor").get<std::string>()).second) return true;
    }
    return false;
  }

  static void AddSpec(const json& one, serving::ModelSpec* spec) {
    spec->set_name(ModelOf(one));
    spec->set_signature_name(one.at("signature").get<std::string>());
  }
  static void ExpectValue(const json& one, const std::string& alias, const Tensor& got) {
    ASSERT_OK_AND_ASSIGN(const Tensor wanted, TensorFromJson(one.at("outputs").at(alias)));
    EXPECT_EQ(Difference(got, wanted, one.value("rtol", 1e-4), one.value("atol", 1e-5)), "")
        << alias;
  }
  // Of a row's class or number, by its place in the tensor of the case.
  static void ExpectFloat(const json& one, const std::string& alias, size_t at, float got) {
    const double wanted = one.at("outputs").at(alias).at("values").at(at).get<double>();
    EXPECT_NEAR(got, wanted, one.value("atol", 1e-5) + one.value("rtol", 1e-4) * std::abs(wanted))
        << alias << " " << at;
  }

  void PredictCase(const json& one) const {
    serving::PredictRequest request;
    AddSpec(one, request.mutable_model_spec());
    for (const auto& [alias, value] : one.at("inputs").items()) {
      ASSERT_OK_AND_ASSIGN(const Tensor tensor, TensorFromJson(value));
      ASSERT_OK(TensorToProto(tensor, &(*request.mutable_inputs())[alias]));
    }
    serving::PredictResponse response;
    const Status status = server_->Predict(request, &response);
    if (FeedsATensorTwice(one)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "fed more than once")) << status;
      return;
    }
    ASSERT_OK(status);
    EXPECT_EQ(response.model_spec().version().value(), 1);
    EXPECT_EQ(response.outputs().size(), one.at("outputs").size());
    for (const auto& [alias, value] : one.at("outputs").items()) {
      const auto output = response.outputs().find(alias);
      ASSERT_NE(output, response.outputs().end()) << alias;
      // Clients of TensorFlow Serving read the lists.
      EXPECT_TRUE(output->second.tensor_content().empty()) << alias;
      ASSERT_OK_AND_ASSIGN(const Tensor got, TensorFromProto(output->second));
      ExpectValue(one, alias, got);
    }
  }

  // The same by names of tensors: each is fed once, the last value of its aliases.
  void RunCase(const json& one) const {
    serving::SessionRunRequest request;
    request.mutable_model_spec()->set_name(ModelOf(one));
    std::map<std::string, json> feeds;
    for (const auto& [alias, value] : one.at("inputs").items()) {
      feeds[value.at("tensor").get<std::string>()] = value;
    }
    for (const auto& [name, value] : feeds) {
      ASSERT_OK_AND_ASSIGN(const Tensor tensor, TensorFromJson(value));
      auto* const feed = request.add_feed();
      feed->set_name(name);
      ASSERT_OK(TensorToProto(tensor, feed->mutable_tensor()));
    }
    std::map<std::string, std::string> aliases;  // by tensor
    for (const auto& [alias, value] : one.at("outputs").items()) {
      aliases[value.at("tensor").get<std::string>()] = alias;
    }
    for (const auto& [name, alias] : aliases) request.add_fetch(name);
    serving::SessionRunResponse response;
    ASSERT_OK(server_->Call(kSessionRunPath, request, &response));
    ASSERT_EQ(response.tensor_size(), static_cast<int>(aliases.size()));
    for (const auto& output : response.tensor()) {
      ASSERT_EQ(aliases.count(output.name()), 1u) << output.name();
      ASSERT_OK_AND_ASSIGN(const Tensor got, TensorFromProto(output.tensor()));
      ExpectValue(one, aliases.at(output.name()), got);
    }
  }

  // "tensorflow/serving/classify", ..., of the case's signature.
  std::string MethodOf(const json& one) const {
    serving::GetModelMetadataRequest request;
    request.mutable_model_spec()->set_name(ModelOf(one));
    request.add_metadata_field("signature_def");
    serving::GetModelMetadataResponse response;
    EXPECT_OK(server_->Call(kGetModelMetadataPath, request, &response));
    serving::SignatureDefMap signatures;
    const auto found = response.metadata().find("signature_def");
    if (found == response.metadata().end() || !found->second.UnpackTo(&signatures)) return "";
    const auto signature = signatures.signature_def().find(one.at("signature").get<std::string>());
    return signature == signatures.signature_def().end() ? "" : signature->second.method_name();
  }

  // The case's examples, which are strings to its signature.
  static void AddExamples(const json& one, serving::Input* input) {
    ASSERT_OK_AND_ASSIGN(const Tensor examples, TensorFromJson(one.at("inputs").begin().value()));
    for (const std::string& bytes : examples.flat<std::string>()) {
      ASSERT_TRUE(input->mutable_example_list()->add_examples()->ParseFromString(bytes));
    }
  }
  void ClassifyCase(const json& one) const {
    serving::ClassificationRequest request;
    AddSpec(one, request.mutable_model_spec());
    ASSERT_NO_FATAL_FAILURE(AddExamples(one, request.mutable_input()));
    serving::ClassificationResponse response;
    ASSERT_OK(server_->Call(kClassifyPath, request, &response));
    const json& scores = one.at("outputs").at("scores");
    const int rows = scores.at("shape").at(0), classes = scores.at("shape").at(1);
    ASSERT_EQ(response.result().classifications_size(), rows);
    for (int row = 0; row < rows; ++row) {
      const auto& of_row = response.result().classifications(row).classes();
      ASSERT_EQ(of_row.size(), classes);
      for (int i = 0; i < classes; ++i) {
        const size_t at = static_cast<size_t>(row * classes + i);
        ExpectFloat(one, "scores", at, of_row[i].score());
        if (!one.at("outputs").contains("classes")) continue;
        EXPECT_EQ(of_row[i].label(), one.at("outputs").at("classes").at("values").at(at));
      }
    }
  }
  void RegressCase(const json& one) const {
    serving::RegressionRequest request;
    AddSpec(one, request.mutable_model_spec());
    ASSERT_NO_FATAL_FAILURE(AddExamples(one, request.mutable_input()));
    serving::RegressionResponse response;
    ASSERT_OK(server_->Call(kRegressPath, request, &response));
    const int rows = one.at("outputs").at("outputs").at("shape").at(0);
    ASSERT_EQ(response.result().regressions_size(), rows);
    for (int row = 0; row < rows; ++row) {
      ExpectFloat(one, "outputs", static_cast<size_t>(row),
                  response.result().regressions(row).value());
    }
  }

  static void ExpectCount(const StatusOr<float>& got, float wanted) {
    ASSERT_OK(got.status());
    EXPECT_EQ(*got, wanted);
  }

  static constexpr char kCounter[] = "saved_model_counter";
  static constexpr char kTwoVersions[] = "saved_model_half_plus_two_2_versions";
  std::vector<json> cases_;
  std::unique_ptr<ServedProcess> server_;
};

TEST_F(SharedModelsGrpcTest, PredictGivesTheExpectedValues) {
  for (const json& one : cases_) {
    if (!IsServed(one)) continue;
    SCOPED_TRACE(one.at("name").get<std::string>());
    PredictCase(one);
  }
}

TEST_F(SharedModelsGrpcTest, SessionRunGivesTheExpectedValues) {
  bool fed_twice = false;
  for (const json& one : cases_) {
    if (!IsServed(one)) continue;
    SCOPED_TRACE(one.at("name").get<std::string>());
    RunCase(one);
    fed_twice = fed_twice || FeedsATensorTwice(one);
  }
  EXPECT_TRUE(fed_twice) << "what Predict refuses must be among the cases";
}

TEST_F(SharedModelsGrpcTest, ClassifyAndRegressGiveTheExpectedValues) {
  int num_classified = 0, num_regressed = 0;
  for (const json& one : cases_) {
    if (!IsServed(one) || !one.value("inputs_are_serialized_tf_examples", false)) continue;
    SCOPED_TRACE(one.at("name").get<std::string>());
    const std::string method = MethodOf(one);
    if (method == "tensorflow/serving/classify") {
      ClassifyCase(one);
      ++num_classified;
    } else if (method == "tensorflow/serving/regress") {
      RegressCase(one);
      ++num_regressed;
    } else {
      EXPECT_EQ(method, "tensorflow/serving/predict");
    }
  }
  // Three models half_plus_two; two signatures of the taxi model.
  EXPECT_EQ(num_classified, 3 * 1 + 2);
  EXPECT_EQ(num_regressed, 3 * 2 + 1);
}

TEST_F(SharedModelsGrpcTest, TheCounterKeepsItsCount) {
  const auto ask = [this](const std::string& signature, float delta) -> StatusOr<float> {
    serving::SessionRunRequest request;
    request.mutable_model_spec()->set_name(kCounter);
    request.mutable_model_spec()->set_signature_name(signature);
    request.set_tensor_name_is_alias(true);
    if (delta != 0) {
      auto* const feed = request.add_feed();
      feed->set_name("delta");
      MR_RETURN_IF_ERROR(TensorToProto(Tensor::Scalar(delta), feed->mutable_tensor()));
    }
    request.add_fetch("output");
    serving::SessionRunResponse response;
    MR_RETURN_IF_ERROR(server_->Call(kSessionRunPath, request, &response));
    if (response.tensor_size() != 1) return Internal("one tensor must come");
    MR_ASSIGN_OR_RETURN(const Tensor tensor, TensorFromProto(response.tensor(0).tensor()));
    return tensor.flat<float>()[0];
  };
  ExpectCount(ask("get_counter", 0), 0);
  ExpectCount(ask("incr_counter", 0), 1);
  ExpectCount(ask("incr_counter_by", 3), 4);
  // Predict sees the same variable.
  serving::PredictRequest request;
  request.mutable_model_spec()->set_name(kCounter);
  request.mutable_model_spec()->set_signature_name("get_counter");
  serving::PredictResponse response;
  ASSERT_OK(server_->Predict(request, &response));
  EXPECT_EQ(response.outputs().at("output").float_val(0), 4);
  ExpectCount(ask("reset_counter", 0), 0);
}

TEST_F(SharedModelsGrpcTest, BothVersionsOfHalfPlusTwoAnswer) {
  for (const int version : {123, 124}) {
    serving::PredictRequest request;
    request.mutable_model_spec()->set_name(kTwoVersions);
    request.mutable_model_spec()->mutable_version()->set_value(version);
    ASSERT_OK(TensorToProto(Tensor::Of<float>({{1}, {2}, {5}}), &(*request.mutable_inputs())["x"]));
    serving::PredictResponse response;
    ASSERT_OK(server_->Predict(request, &response));
    EXPECT_EQ(response.model_spec().version().value(), version);
    const tensorflow::TensorProto& y = response.outputs().at("y");
    ASSERT_EQ(y.float_val_size(), 3);
    EXPECT_EQ(y.float_val(0), 2.5f);
    EXPECT_EQ(y.float_val(2), 4.5f);
  }
}

}  // namespace
}  // namespace millrace
