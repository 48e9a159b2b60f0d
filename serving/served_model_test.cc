// SPDX-License-Identifier: Apache-2.0
//
// Predict and metadata of one version: values, replies, every text of an error. Texts are quoted
// from TensorFlow Serving's contract.

#include "serving/served_model.h"

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/tensor_proto.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/tensor.pb.h"
#include "saver/saved_model_reader.h"
#include "serving/testing/test_model.h"

// covers: serving: Predict answers by aliases with TensorFlow Serving's replies, codes and texts;
//   output filters are compiled once and kept in bounded number
// covers: serving: the metadata of a model equals what TensorFlow Serving says of it

namespace millrace {
namespace {

using absl::StatusCode;
using tensorflow::serving::GetModelMetadataRequest;
using tensorflow::serving::GetModelMetadataResponse;
using tensorflow::serving::PredictRequest;
using tensorflow::serving::PredictResponse;
using tensorflow::serving::SignatureDefMap;

tensorflow::TensorProto ProtoOf(const Tensor& tensor) {
  tensorflow::TensorProto proto;
  EXPECT_OK(TensorToProto(tensor, &proto));
  return proto;
}

PredictRequest RequestOf(const std::vector<AliasedTensor>& inputs,
                         const std::vector<std::string>& filter = {}) {
  PredictRequest request;
  request.mutable_model_spec()->set_name("asked");
  for (const AliasedTensor& input : inputs) {
    (*request.mutable_inputs())[input.alias] = ProtoOf(input.tensor);
  }
  for (const std::string& alias : filter) request.add_output_filter(alias);
  return request;
}

// x [[1,2]], k 10.
std::vector<AliasedTensor> SoundInputs() {
  return {{"x", TensorOf<float>({1, 2}, {1, 2})}, {"k", TensorOf<float>({}, {10})}};
}

class ServedModelTest : public ServingTest {
 protected:
  std::unique_ptr<ServedModel> Load(const ServedModelOptions& options = {}) {
    auto model = ServedModel::Load("flowers", 3, dir_, options);
    EXPECT_OK(model.status());
    return model.ok() ? *std::move(model) : nullptr;
  }
  // A request that must fail leaves nothing in its response.
  static Status Refused(const ServedModel& model, const PredictRequest& request,
                        const StepBounds& bounds = {}) {
    PredictResponse response;
    response.mutable_model_spec()->set_name("of another request");
    const Status status = model.Predict(request, bounds, &response);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(response.ByteSizeLong(), 0u);
    return status;
  }
};

// k is 10 where a request leaves it out.
TEST_F(ServedModelTest, AnInputWithADefaultMayBeLeftOut) {
  const std::string path = JoinPath(dir_, "saved_model.pb");
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(FileSystem::Posix(), path));
  tensorflow::SavedModel saved;
  ASSERT_TRUE(saved.ParseFromString(bytes));
  auto& signature = (*saved.mutable_meta_graphs(0)->mutable_signature_def())["serving_default"];
  (*signature.mutable_defaults())["k"] = ProtoOf(TensorOf<float>({}, {10}));
  // Of no input: nobody asks for it.
  (*signature.mutable_defaults())["stranger"] = ProtoOf(TensorOf<float>({}, {1}));
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, saved.SerializeAsString()));
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  const AliasedTensor x = SoundInputs()[0], k = {"k", TensorOf<float>({}, {2})};
  for (const auto& [inputs, product] :
       {std::pair<std::vector<AliasedTensor>, float>({x}, 10.0f), {{x, k}, 2.0f}}) {
    PredictResponse response;
    ASSERT_OK(model->Predict(RequestOf(inputs, {"product"}), {}, &response));
    EXPECT_EQ(response.outputs().at("product").float_val(0), product);
    ASSERT_OK_AND_ASSIGN(const auto outputs,
                         model->PredictTensors("", inputs, {}, {}, PredictCaller::kRest));
    EXPECT_EQ(outputs[0].tensor.flat<float>()[0], product);
  }
  EXPECT_EQ(Refused(*model, RequestOf({k})).message(),
            "Signature input alias: x(feed name: x:0) not found in request and no default value "
            "provided. Inputs expected to be in the request {k}, or default input alias set: k");
  EXPECT_EQ(Refused(*model, RequestOf({x, {"z", k.tensor}})).message(),
            "Inputs contains invalid name. Used request inputs: x, request input: x,z");
  EXPECT_EQ(Refused(*model, RequestOf({x, k, {"z", k.tensor}})).message(),
            "input size does not match signature: 3!=2 len({k,x,z}) != len({k,x}). Sent extra: "
            "{z}. Missing but required: {}.");
}

// As TensorFlow Serving's session: what is no placeholder takes any shape that its ops take.
TEST_F(ServedModelTest, InputsThatAreNoPlaceholdersHaveTheShapeThatOpsTake) {
  const std::string path = SharedDataPath("serving/saved_model_half_plus_two_2_versions/00000123");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_model_half_plus_two_2_versions";
  ASSERT_OK_AND_ASSIGN(const auto model, ServedModel::Load("half_plus_two", 123, path));
  PredictResponse response;
  ASSERT_OK(model->Predict(RequestOf({{"x", TensorOf<float>({3}, {1, 2, 5})}}), {}, &response));
  const tensorflow::TensorProto& y = response.outputs().at("y");
  ASSERT_EQ(y.float_val_size(), 3);
  EXPECT_EQ(y.float_val(2), 4.5f);
  EXPECT_EQ(y.tensor_shape().dim_size(), 1);
}

TEST_F(ServedModelTest, PredictAnswersInTypedListsWithItsVersion) {
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->name(), "flowers");
  EXPECT_EQ(model->version(), 3);
  PredictRequest request = RequestOf(SoundInputs());
  request.mutable_model_spec()->set_version_label("stable");
  PredictResponse response;
  ASSERT_OK(model->Predict(request, {}, &response));
  EXPECT_EQ(response.model_spec().name(), "asked");
  EXPECT_EQ(response.model_spec().version().value(), 3);
  EXPECT_FALSE(response.model_spec().has_version_label());
  EXPECT_EQ(response.model_spec().signature_name(), "serving_default");
  ASSERT_EQ(response.outputs().size(), 3u);
  const tensorflow::TensorProto& product = response.outputs().at("product");
  EXPECT_EQ(product.tensor_content(), "");
  ASSERT_EQ(product.float_val_size(), 2);
  EXPECT_EQ(product.float_val(0), 10);
  EXPECT_EQ(product.float_val(1), 20);
  EXPECT_EQ(response.outputs().at("sum").float_val(0), 11);
  EXPECT_EQ(response.outputs().at("words").string_val(0), "w");
  EXPECT_GE(
      model->num_bytes(),
      static_cast<int64_t>(*FileSystem::Posix()->GetFileSize(JoinPath(dir_, "saved_model.pb"))));
}

TEST_F(ServedModelTest, RepliesCarryContentOnlyWhereThatIsChosen) {
  const auto model = Load({.serialize_as_tensor_content = true});
  ASSERT_NE(model, nullptr);
  PredictResponse response;
  ASSERT_OK(model->Predict(RequestOf(SoundInputs()), {}, &response));
  const tensorflow::TensorProto& product = response.outputs().at("product");
  EXPECT_EQ(product.float_val_size(), 0);
  EXPECT_EQ(product.tensor_content().size(), 2 * sizeof(float));
  ASSERT_OK_AND_ASSIGN(const Tensor value, TensorFromProto(product));
  ExpectTensorEqual(value, TensorOf<float>({1, 2}, {10, 20}));
}

TEST_F(ServedModelTest, AFilterChoosesOutputsAndFewFiltersAreKept) {
  const auto model = Load({.max_output_sets = 2});
  ASSERT_NE(model, nullptr);
  const struct {
    std::vector<std::string> filter;
    int sets;  // that are kept afterwards
  } kRequests[] = {
      {{"words", "sum", "product"}, 0},  // the whole signature
      {{"sum"}, 1},
      {{"sum"}, 1},
      {{"sum", "product"}, 2},
      {{"product", "sum"}, 2},  // the same set
      {{"product"}, 2},
      {{"sum"}, 2},  // compiled again
  };
  for (const auto& [filter, sets] : kRequests) {
    PredictResponse response;
    ASSERT_OK(model->Predict(RequestOf(SoundInputs(), filter), {}, &response));
    EXPECT_EQ(response.outputs().size(), filter.size());
    for (const std::string& alias : filter) EXPECT_EQ(response.outputs().count(alias), 1u) << alias;
    if (response.outputs().count("sum") > 0) {
      EXPECT_EQ(response.outputs().at("sum").float_val(1), 12);
    }
    EXPECT_EQ(model->num_output_sets(), sets);
  }
}

TEST_F(ServedModelTest, WrongRequestsHaveTheTextsOfTensorFlowServing) {
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  const Tensor x = TensorOf<float>({1, 2}, {1, 2}), k = TensorOf<float>({}, {10});
  const struct {
    std::string signature;
    std::vector<AliasedTensor> inputs;
    std::vector<std::string> filter;
    StatusCode code;
    std::string text;
  } kCases[] = {
      {"nil", {}, {}, StatusCode::kFailedPrecondition, "Serving signature key \"nil\" not found."},
      {"",
       {{"x", x}},
       {},
       StatusCode::kInvalidArgument,
       "input size does not match signature: 1!=2 len({x}) != len({k,x}). Sent extra: {}. "
       "Missing but required: {k}."},
      {"",
       {{"x", x}, {"k", k}, {"z", k}},
       {},
       StatusCode::kInvalidArgument,
       "input size does not match signature: 3!=2 len({k,x,z}) != len({k,x}). Sent extra: {z}. "
       "Missing but required: {}."},
      {"",
       {{"x", x}, {"z", k}},
       {},
       StatusCode::kInvalidArgument,
       "Signature input alias: k(feed name: k:0) not found in request and no default value "
       "provided. Inputs expected to be in the request {x,z}, or default input alias set: "},
      {"",
       {{"x", x}, {"k", k}},
       {"nil"},
       StatusCode::kInvalidArgument,
       "output tensor alias not found in signature: nil Outputs expected to be in the set "
       "{product,sum,words}."},
      {"",
       {{"x", x}, {"k", k}},
       {"sum", "sum"},
       StatusCode::kInvalidArgument,
       "duplicate output tensor alias: sum"},
      // The session's own checks.
      {"", {{"x", x}, {"k", TensorOf<int32_t>({}, {1})}}, {}, StatusCode::kInvalidArgument, "k"},
      {"",
       {{"x", TensorOf<float>({1, 3}, {1, 2, 3})}, {"k", k}},
       {},
       StatusCode::kInvalidArgument,
       "x"},
  };
  for (const auto& c : kCases) {
    PredictRequest request = RequestOf(c.inputs, c.filter);
    request.mutable_model_spec()->set_signature_name(c.signature);
    const Status status = Refused(*model, request);
    EXPECT_STATUS(status, c.code, c.text);
    if (c.text.size() > 1) {
      EXPECT_EQ(status.message(), c.text);
    }
  }
}

TEST_F(ServedModelTest, TensorsThatCannotBeReadAreNamed) {
  const auto model = Load({.max_splat_bytes = 1024});
  ASSERT_NE(model, nullptr);
  PredictRequest request = RequestOf(SoundInputs());
  tensorflow::TensorProto& x = (*request.mutable_inputs())["x"];
  x.set_tensor_content("abc");
  Status status = Refused(*model, request);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "tensor parsing error: x");
  // Few bytes that stand for many.
  x.clear_tensor_content();
  x.add_float_val(1);
  x.mutable_tensor_shape()->mutable_dim(0)->set_size(int64_t{1} << 30);
  EXPECT_STATUS(Refused(*model, request), StatusCode::kResourceExhausted, "got 8589934588 up to");
  x.mutable_tensor_shape()->mutable_dim(0)->set_size(-1);
  status = Refused(*model, request);
  EXPECT_EQ(status.message(), "tensor parsing error: x");
  x.mutable_tensor_shape()->mutable_dim(0)->set_size(4);
  PredictResponse response;
  ASSERT_OK(model->Predict(request, {}, &response));
  EXPECT_EQ(response.outputs().at("product").float_val_size(), 8);
}

TEST_F(ServedModelTest, MethodNamesAreCheckedWhereThatIsChosen) {
  ASSERT_OK_AND_ASSIGN(tensorflow::SavedModel file, ReadSavedModel(FileSystem::Posix(), dir_));
  auto& signatures = *file.mutable_meta_graphs(0)->mutable_signature_def();
  signatures["serving_default"].set_method_name("other/method");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), JoinPath(dir_, "saved_model.pb"),
                                file.SerializeAsString()));
  PredictResponse response;
  auto model = Load();
  ASSERT_NE(model, nullptr);
  EXPECT_OK(model->Predict(RequestOf(SoundInputs()), {}, &response));
  model = Load({.check_method_names = true});
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(Refused(*model, RequestOf(SoundInputs())).message(),
            "Expected prediction signature method_name to be one of {tensorflow/serving/predict, "
            "tensorflow/serving/classify, tensorflow/serving/regress}. Was: other/method");
}

TEST_F(ServedModelTest, ASignatureThatCannotRunLeavesTheOthersAlone) {
  ASSERT_OK_AND_ASSIGN(tensorflow::SavedModel file, ReadSavedModel(FileSystem::Posix(), dir_));
  tensorflow::SignatureDef& sparse =
      (*file.mutable_meta_graphs(0)->mutable_signature_def())["sparse"];
  sparse.set_method_name(kPredictMethod);
  auto* const info = (*sparse.mutable_inputs())["x"].mutable_coo_sparse();
  info->set_values_tensor_name("x:0");
  info->set_indices_tensor_name("x:0");
  info->set_dense_shape_tensor_name("x:0");
  auto& outputs = *sparse.mutable_outputs();
  outputs["y"].set_name("sum:0");
  outputs["y"].set_dtype(tensorflow::DT_FLOAT);
  outputs["z"] = outputs["y"];
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), JoinPath(dir_, "saved_model.pb"),
                                file.SerializeAsString()));
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  for (const std::vector<std::string>& filter : {std::vector<std::string>{}, {"y"}}) {
    PredictRequest request = RequestOf({{"x", TensorOf<float>({1, 2}, {1, 2})}}, filter);
    request.mutable_model_spec()->set_signature_name("sparse");
    EXPECT_STATUS(Refused(*model, request), StatusCode::kUnimplemented, "sparse");
  }
  PredictResponse response;
  EXPECT_OK(model->Predict(RequestOf(SoundInputs()), {}, &response));
}

TEST_F(ServedModelTest, TensorsByAliasesForOtherFronts) {
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<AliasedTensor> all,
      model->PredictTensors("serving_default", SoundInputs(), {}, {}, PredictCaller::kRest));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].alias, "product");
  ExpectTensorEqual(all[0].tensor, TensorOf<float>({1, 2}, {10, 20}));
  EXPECT_EQ(all[1].alias, "sum");
  ExpectTensorEqual(all[1].tensor, TensorOf<float>({1, 2}, {11, 12}));
  EXPECT_EQ(all[2].alias, "words");
  const std::vector<std::string> filter = {"words", "product"};
  ASSERT_OK_AND_ASSIGN(const std::vector<AliasedTensor> some,
                       model->PredictTensors("", SoundInputs(), filter, {}, PredictCaller::kRest));
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0].alias, "product");
  EXPECT_EQ(some[1].alias, "words");

  const auto refused = [&](absl::string_view signature, std::vector<AliasedTensor> inputs,
                           PredictCaller caller) {
    return model->PredictTensors(signature, inputs, {}, {}, caller).status();
  };
  Status status = refused("nil", SoundInputs(), PredictCaller::kRest);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "Serving signature name: \"nil\" not found in signature def");
  EXPECT_EQ(refused("nil", SoundInputs(), PredictCaller::kGrpc).code(),
            StatusCode::kFailedPrecondition);
  std::vector<AliasedTensor> doubled = SoundInputs();
  doubled[1] = doubled[0];
  EXPECT_STATUS(refused("", doubled, PredictCaller::kRest), StatusCode::kInvalidArgument,
                "duplicate input tensor alias: x");
  EXPECT_STATUS(refused("", {}, PredictCaller::kRest), StatusCode::kInvalidArgument,
                "input size does not match signature: 0!=2 len({}) != len({k,x})");
}

TEST_F(ServedModelTest, BoundsEndARequest) {
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  for (const std::vector<std::string>& filter : {std::vector<std::string>{}, {"sum"}}) {
    const PredictRequest request = RequestOf(SoundInputs(), filter);
    EXPECT_EQ(Refused(*model, request, {.deadline = absl::Now() - absl::Seconds(1)}).code(),
              StatusCode::kDeadlineExceeded);
    EXPECT_EQ(model->num_output_sets(), 0);  // nothing was compiled for it
  }
  const PredictRequest request = RequestOf(SoundInputs());
  CancellationManager cancellation;
  const StepBounds bounds = {.deadline = absl::Now() + absl::Hours(1),
                             .cancellation = &cancellation};
  PredictResponse response;
  ASSERT_OK(model->Predict(request, bounds, &response));
  EXPECT_EQ(response.outputs().at("product").float_val(1), 20);
  cancellation.StartCancel();
  EXPECT_EQ(Refused(*model, request, bounds).code(), StatusCode::kCancelled);
}

TEST_F(ServedModelTest, ManyThreadsAskForDifferentOutputs) {
  const auto model = Load({.max_output_sets = 1});  // two filters push each other out
  ASSERT_NE(model, nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&model, t] {
      const std::vector<std::string> filters[] = {{"sum"}, {"product"}, {}};
      for (int i = 0; i < 30; ++i) {
        const auto number = static_cast<float>(100 * t + i);
        PredictResponse response;
        const Status status = model->Predict(RequestOf({{"x", TensorOf<float>({1, 2}, {number, 0})},
                                                        {"k", TensorOf<float>({}, {1})}},
                                                       filters[(t + i) % 3]),
                                             {}, &response);
        EXPECT_OK(status);
        for (const auto& [alias, value] : response.outputs()) {
          if (alias == "words") continue;
          EXPECT_EQ(value.float_val(0), alias == "sum" ? number + 1 : number) << alias;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(model->num_output_sets(), 1);
}

TEST_F(ServedModelTest, AModelThatIsNotThereIsAnError) {
  EXPECT_STATUS(ServedModel::Load("flowers", 3, JoinPath(dir_, "nil")).status(),
                StatusCode::kNotFound, "nil");
  EXPECT_STATUS(ServedModel::Load("flowers", 3, dir_, {.load = {.tags = {"train"}}}).status(),
                StatusCode::kNotFound, "");
}

TEST_F(ServedModelTest, MetadataIsOfSignaturesAlone) {
  const auto model = Load();
  ASSERT_NE(model, nullptr);
  GetModelMetadataRequest request;
  GetModelMetadataResponse response;
  Status status = model->GetModelMetadata(request, &response);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "GetModelMetadataRequest must specify at least one metadata_field");
  request.add_metadata_field("signature_def");
  ASSERT_OK(model->GetModelMetadata(request, &response));
  EXPECT_EQ(response.model_spec().name(), "flowers");
  EXPECT_EQ(response.model_spec().version().value(), 3);
  EXPECT_EQ(response.model_spec().signature_name(), "");
  SignatureDefMap map;
  ASSERT_EQ(response.metadata().size(), 1u);
  ASSERT_TRUE(response.metadata().at("signature_def").UnpackTo(&map));
  ASSERT_GE(map.signature_def().size(), model->signatures().size());  // the init op's, too
  EXPECT_EQ(map.signature_def().at("classify").outputs().at("scores").dtype(),
            tensorflow::DT_FLOAT);
  request.add_metadata_field("size");
  status = model->GetModelMetadata(request, &response);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "Metadata field size is not supported");
  EXPECT_EQ(response.ByteSizeLong(), 0u);
}

// --- TensorFlow Serving's own models -------------------------------------------------------------

TEST(SharedModels, HalfPlusTwoIsServed) {
  const std::string path = SharedDataPath("serving/saved_model_half_plus_two_2_versions/00000123");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_model_half_plus_two_2_versions";
  ASSERT_OK_AND_ASSIGN(const auto model, ServedModel::Load("half_plus_two", 123, path));
  const PredictRequest request = RequestOf({{"x", TensorOf<float>({3, 1}, {1, 2, 5})}});
  PredictResponse response;
  ASSERT_OK(model->Predict(request, {}, &response));
  const tensorflow::TensorProto& y = response.outputs().at("y");
  ASSERT_EQ(y.float_val_size(), 3);
  EXPECT_EQ(y.float_val(0), 2.5f);
  EXPECT_EQ(y.float_val(1), 3.0f);
  EXPECT_EQ(y.float_val(2), 4.5f);
}

TEST(SharedModels, MetadataEqualsWhatTensorFlowServingSays) {
  const struct {
    std::string model, json;
  } kModels[] = {
      {"serving/saved_model_half_plus_two_2_versions/00000123",
       "serving/saved_model_half_plus_two_2_versions_metadata.json"},
      {"saved_models/half_plus_two_cpu", "serving/half_plus_two_model_metadata.json"},
  };
  for (const auto& c : kModels) {
    const std::string path = SharedDataPath(c.model), json = SharedDataPath(c.json);
    if (path.empty() || json.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no " << c.model;
    ASSERT_OK_AND_ASSIGN(const auto model, ServedModel::Load("default", 123, path));
    GetModelMetadataRequest request;
    request.add_metadata_field("signature_def");
    GetModelMetadataResponse response;
    ASSERT_OK(model->GetModelMetadata(request, &response));
    SignatureDefMap got, want;
    ASSERT_TRUE(response.metadata().at("signature_def").UnpackTo(&got));
    // What stands in the file as "metadata": {"signature_def": {...}} is a SignatureDefMap.
    ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(FileSystem::Posix(), json));
    const size_t begin = text.find('{', text.find("\"signature_def\""));
    ASSERT_NE(begin, std::string::npos);
    size_t end = begin;
    for (int depth = 0; end < text.size(); ++end) {
      depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
      if (depth == 0) break;
    }
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;  // "defaults", which SignatureDef has later
    const auto status = google::protobuf::util::JsonStringToMessage(
        text.substr(begin, end + 1 - begin), &want, options);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_GT(want.signature_def().size(), 0u);
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(got, want))
        << got.DebugString() << "\nwant " << want.DebugString();
  }
}

TEST(SharedModels, ACounterCounts) {
  const std::string path = SharedDataPath("serving/saved_model_counter/00000123");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_model_counter";
  ASSERT_OK_AND_ASSIGN(const auto model, ServedModel::Load("counter", 123, path));
  const auto ask = [&](const std::string& signature, const std::vector<AliasedTensor>& inputs) {
    PredictRequest request = RequestOf(inputs);
    request.mutable_model_spec()->set_signature_name(signature);
    PredictResponse response;
    const Status status = model->Predict(request, {}, &response);
    EXPECT_OK(status);
    return status.ok() ? response.outputs().at("output").float_val(0)
                       : std::numeric_limits<float>::quiet_NaN();
  };
  EXPECT_EQ(ask("get_counter", {}), 0);
  EXPECT_EQ(ask("incr_counter", {}), 1);
  EXPECT_EQ(ask("incr_counter_by", {{"delta", TensorOf<float>({}, {3})}}), 4);
  EXPECT_EQ(ask("reset_counter", {}), 0);
  EXPECT_EQ(ask("get_counter", {}), 0);
}

}  // namespace
}  // namespace millrace
