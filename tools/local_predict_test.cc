// SPDX-License-Identifier: Apache-2.0
//
// local_predict: what instances may be, how predictions are printed, and the program on a
// SavedModel and on a model of the older form.

#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/loaded_model.h"
#include "saver/meta_graph.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "tools/instances.h"
#include "tools/local_model.h"
#include "tools/prediction_table.h"

// covers: training: local_predict asks the signature that is named, the default or the only one,
//   also of a directory of versions and of export.meta; instances are JSON or text lines; keys,
//   values and shapes that do not fit are named with their line
// covers: article 0-28: no `serving_default` with 13 inputs: the log says why, tools take the only
//   signature
// covers: article 0-29, 0-30, 0-31: five columns, a row per person; the outputs agree; wrong keys
//   are named, exit code 1
// covers: scenario F13: local prediction

// covers: training: local_predict asks the signature that is named, the default or the only one,
//   also of a directory of versions and of export.meta; instances are JSON or text lines; keys,
//   values and shapes that do not fit are named with their line
// covers: article 0-28: no `serving_default` with 13 inputs: the log says why, tools take the only
//   signature
// covers: article 0-29, 0-30, 0-31: five columns, a row per person; the outputs agree; wrong keys
//   are named, exit code 1
// covers: scenario F13: local prediction

namespace millrace {
namespace {

using ::testing::HasSubstr;

FileSystem* Fs() { return FileSystem::Posix(); }

// --- Instances -----------------------------------------------------------------------------------

SignatureInputs Inputs(std::vector<std::tuple<std::string, DType, PartialShape>> all) {
  const Scope scope;
  SignatureInputs inputs;
  for (const auto& [name, dtype, shape] : all) {
    const auto info = MakeTensorInfo(scope, Placeholder(scope.WithName(name), dtype, shape));
    EXPECT_OK(info.status());
    inputs.emplace(name, SignatureTensor(*info));
  }
  return inputs;
}

const SignatureInputs& AgeAndWords() {
  static const auto* const inputs = new SignatureInputs(
      Inputs({{"age", DT_FLOAT, {-1}}, {"words", DT_STRING, PartialShape({-1, 2})}}));
  return *inputs;
}

TEST(Instances, StackLinesByInput) {
  ASSERT_OK_AND_ASSIGN(const Instances got,
                       JsonInstances("{\"age\": 25, \"words\": [\" a\", \"b\"]}\r\n\n"
                                     "{\"words\": [\"\", {\"b64\": \"AAE=\"}], \"age\": -1.5}",
                                     AgeAndWords()));
  EXPECT_EQ(got.count, 2);
  ExpectTensorEqual(got.inputs.at("age"), Tensor::Of({25.f, -1.5f}));
  ExpectTensorEqual(got.inputs.at("words"),
                    Tensor::Of<std::string>({{std::string(" a"), std::string("b")},
                                             {std::string(), std::string("\0\1", 2)}}));
}

TEST(Instances, OfOneInputMayBeBare) {
  const SignatureInputs x = Inputs({{"x", DT_INT32, PartialShape({-1, 2})}});
  ASSERT_OK_AND_ASSIGN(const Instances got, JsonInstances("[1, 2]\n{\"x\": [3, 4]}", x));
  ExpectTensorEqual(got.inputs.at("x"), Tensor::Of<int32_t>({{1, 2}, {3, 4}}));
  const SignatureInputs text = Inputs({{"row", DT_STRING, {-1}}});
  ASSERT_OK_AND_ASSIGN(const Instances bytes, JsonInstances("{\"b64\": \"AAE=\"}\n\"b\"", text));
  ExpectTensorEqual(bytes.inputs.at("row"),
                    Tensor::Of<std::string>({std::string("\0\1", 2), std::string("b")}));
  ASSERT_OK_AND_ASSIGN(const Instances rows, TextInstances("1, a\n\n 2\r\n", text));
  ExpectTensorEqual(rows.inputs.at("row"), Tensor::Of<std::string>({"1, a", "", " 2"}));
  const SignatureInputs yes = Inputs({{"b", DT_BOOL, {-1}}});
  ASSERT_OK_AND_ASSIGN(const Instances booleans, JsonInstances("true\nfalse", yes));
  ExpectTensorEqual(booleans.inputs.at("b"), Tensor::Of<bool>({true, false}));
}

// What predictions are written as (formats/json_value.h) is read.
TEST(Instances, MayHaveNumbersThatJsonHasNot) {
  const SignatureInputs x = Inputs({{"x", DT_FLOAT, {-1}}});
  ASSERT_OK_AND_ASSIGN(const Instances got, JsonInstances("\"-inf\"\n{\"x\": \"nan\"}\n0.5", x));
  const auto values = got.inputs.at("x").flat<float>();
  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(values[0], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], 0.5f);
}

TEST(Instances, WrongOnesAreNamed) {
  const struct {
    std::string text, error;
  } cases[] = {
      {"", "must have an instance in a line, got none"},
      {"\n{", "line 2: must be a JSON value, got '{'"},
      {"7", "line 1: must be an object with the keys 'age', 'words', got 7"},
      {R"({"age": 1})",
       "line 1: keys must be those of the signature, 'age', 'words'; missing: "
       "'words', unknown: none"},
      {R"({"agee": 1, "words": ["a", "b"]})", "missing: 'age', unknown: 'agee'"},
      {R"({"age": "1", "words": ["a", "b"]})", "input 'age' must be of float with shape [], got"},
      {R"({"age": [1], "words": ["a", "b"]})",
       "input 'age' must have shape [?] as a batch, got [1,1]"},
      {"{\"age\": 1, \"words\": [\"a\", \"b\"]}\n{\"age\": 1, \"words\": [\"a\"]}",
       "line 2: input 'words' must be of string with shape [2] like the instances before, got "
       "[\"a\"]"},
      {R"({"age": 1, "words": [["a"], "b"]})", "input 'words' must be of string with shape [2,1]"},
      {R"({"age": 1, "words": ["a", {"b64": "*"}]})", "input 'words' must be of string"},
      {std::string(100, '[') + std::string(100, ']'), "must be nested at most 64 deep, got 100"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_STATUS(JsonInstances(text, AgeAndWords()), absl::StatusCode::kInvalidArgument, error)
        << text;
  }
  EXPECT_STATUS(TextInstances("a", AgeAndWords()), absl::StatusCode::kInvalidArgument,
                "text is for a signature with one input of strings, got 'age: float'");
  const SignatureInputs byte = Inputs({{"x", DT_UINT8, {-1}}});
  for (const char* text : {"256", "-1", "1.0", "18446744073709551615", "true"}) {
    EXPECT_STATUS(JsonInstances(text, byte), absl::StatusCode::kInvalidArgument,
                  "input 'x' must be of uint8 with shape [], got ")
        << text;
  }
  const SignatureInputs number = Inputs({{"x", DT_INT64, {-1}}});
  ASSERT_OK_AND_ASSIGN(const Instances far, JsonInstances("-9223372036854775808", number));
  ExpectTensorEqual(far.inputs.at("x"), Tensor::Of<int64_t>({INT64_MIN}));
}

// --- Tables --------------------------------------------------------------------------------------

TEST(PredictionTable, HasAColumnForEachOutput) {
  const NamedTensors outputs = {{"classes", Tensor::Of<std::string>({{"0"}, {"it's"}})},
                                {"class_ids", Tensor::Of<int64_t>({{0}, {1}})},
                                {"logistic", Tensor::Of<float>({{0.0658264f}, {0.5f}})},
                                {"right", Tensor::Of<bool>({true, false})},
                                {"x", Tensor::Of({{1e20f, -2.f}, {0.958065f, 3.f}})}};
  ASSERT_OK_AND_ASSIGN(const std::string table, PredictionTable(outputs, 2));
  EXPECT_EQ(table,
            "CLASS_IDS  CLASSES   LOGISTIC     RIGHT  X\n"
            "[0]        ['0']     [0.0658264]  true   [1e+20, -2.0]\n"
            "[1]        [\"it's\"]  [0.5]        false  [0.958065, 3.0]\n");
}

TEST(PredictionTable, AsJsonIsAServersReply) {
  ASSERT_OK_AND_ASSIGN(
      const std::string both,
      PredictionJson({{"a", Tensor::Of<int32_t>({1, 2})}, {"b", Tensor::Of<float>({{3}, {4}})}},
                     2));
  EXPECT_EQ(both,
            "{\n  \"predictions\": [\n    {\n      \"a\": 1,\n      \"b\": [\n        3.0\n      "
            "]\n    },\n    {\n      \"a\": 2,\n      \"b\": [\n        4.0\n      ]\n    }\n  "
            "]\n}\n");
  ASSERT_OK_AND_ASSIGN(const std::string one,
                       PredictionJson({{"a", Tensor::Of<int32_t>({1, 2})}}, 2));
  EXPECT_EQ(one, "{\n  \"predictions\": [\n    1,\n    2\n  ]\n}\n");
}

TEST(PredictionTable, NeedsARowForEachInstance) {
  EXPECT_STATUS(PredictionTable({{"a", Tensor::Scalar(1.f)}}, 1),
                absl::StatusCode::kInvalidArgument,
                "output 'a' must have a row for each of the 1 instances, got shape []");
  EXPECT_STATUS(PredictionJson({{"a", Tensor::Of({1.f, 2.f})}}, 3),
                absl::StatusCode::kInvalidArgument, "got shape [2]");
}

// --- The program ---------------------------------------------------------------------------------

class LocalPredict : public ::testing::Test {
 protected:
  LocalPredict()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("local_predict_", RandomHexName()))) {
    EXPECT_OK(Fs()->RecursivelyCreateDirectory(dir_));
  }
  ~LocalPredict() override { Fs()->RecursivelyDelete(dir_).IgnoreError(); }

  struct Ended {
    int code = 0;
    std::string text;  // stdout and stderr
  };
  // "$" is the test's directory.
  Ended Run(std::string arguments) const {
    for (size_t at; (at = arguments.find('$')) != std::string::npos;) {
      arguments.replace(at, 1, dir_);
    }
    FILE* const pipe = popen(absl::StrCat("tools/local_predict ", arguments, " 2>&1").c_str(), "r");
    Ended ended;
    char buffer[4096];
    for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
      ended.text.append(buffer, n);
    }
    ended.code = WEXITSTATUS(pclose(pipe));
    return ended;
  }
  void Write(const std::string& name, const std::string& text) const {
    EXPECT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, name), text));
  }

  // y = 3 x and its key, as a SavedModel with these signatures or in the older form.
  void WriteModel(const std::vector<std::string>& signatures, bool legacy) const {
    const Scope root;
    const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1});
    const Output key = Placeholder(root.WithName("key"), DT_INT64, {-1});
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 3.f));
    const Output y = Mul(root.WithName("y"), x, w.value);
    const Output key_out = Identity(root.WithName("key_out"), key);
    root.AddToBytesCollection("inputs", R"({"image": "x:0", "key": "key:0"})");
    root.AddToBytesCollection("outputs", R"({"score": "y:0", "key": "key_out"})");
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(root));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}).status());
    if (legacy) {
      ASSERT_OK(saver->Save(session.get(), JoinPath(dir_, "export"), std::nullopt).status());
      return;
    }
    SavedModelOptions options;
    for (const std::string& name : signatures) {
      ASSERT_OK_AND_ASSIGN(options.signatures[name],
                           PredictSignatureDef(root, {{"x", x}}, {{"y", y}}));
    }
    ASSERT_OK_AND_ASSIGN(const auto builder,
                         SavedModelBuilder::Open(JoinPath(dir_, "model/1700000001"), Fs()));
    ASSERT_OK(builder->AddMetaGraphAndVariables(session.get(), root, saver.get(), options));
    ASSERT_OK(builder->Save());
  }

  const std::string dir_;
};

TEST_F(LocalPredict, AsksTheOnlySignatureOfTheNewestVersion) {
  WriteModel({"predict"}, /*legacy=*/false);
  Write("x.json", "{\"x\": 1}\n2.5\n");
  const Ended table = Run("--model-dir $/model --json-instances $/x.json");
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.text, HasSubstr("is a directory of versions"));
  EXPECT_THAT(table.text, ::testing::EndsWith("\nY\n3.0\n7.5\n"));
  const Ended stdin_json =
      Run("--model-dir $/model/1700000001 --json-instances - --format json < $/x.json");
  EXPECT_EQ(stdin_json.code, 0);
  EXPECT_EQ(stdin_json.text, "{\n  \"predictions\": [\n    3.0,\n    7.5\n  ]\n}\n");
}

TEST_F(LocalPredict, WrongCallsEndWithOneMessage) {
  WriteModel({"one", "two"}, /*legacy=*/false);
  Write("x.json", "{\"x\": 1}\n");
  Write("z.json", "{\"x\": 1}\n{\"z\": 1}\n");
  const struct {
    std::string arguments;
    int code;
    std::string error;
  } cases[] = {
      {"--json-instances $/x.json", 2, "the following arguments are required: --model-dir"},
      {"--model-dir $/model/1700000001", 1,
       "local_predict: INVALID_ARGUMENT: one of --json-instances and --text-instances must be "
       "given, got none"},
      {"--model-dir $/model/1700000001 --json-instances $/x.json", 1,
       "--signature-name must be given: the model has no 'serving_default', but 'one', 'two'"},
      {"--model-dir $/model/1700000001 --json-instances $/x.json --signature-name three", 1,
       "--signature-name must be one of 'one', 'two', got 'three'"},
      {"--model-dir $/model/1700000001 --json-instances $/z.json --signature-name one", 1,
       "z.json': line 2: keys must be those of the signature, 'x'; missing: 'x', unknown: 'z'"},
      {"--model-dir $/model/1700000001 --text-instances $/x.json --signature-name one", 1,
       "text is for a signature with one input of strings"},
      {"--model-dir $/model/1700000001 --json-instances $/none --signature-name one", 1, "none"},
      {"--model-dir $/model/1700000001 --json-instances $/x.json --format xml", 1,
       "--format must be table or json, got 'xml'"},
      {"--model-dir $/nothing --json-instances $/x.json", 1, "nothing"},
  };
  for (const auto& [arguments, code, error] : cases) {
    const Ended ended = Run(arguments);
    EXPECT_EQ(ended.code, code) << arguments << "\n" << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(error)) << arguments;
    const std::vector<std::string> lines = absl::StrSplit(ended.text, "local_predict: ");
    EXPECT_EQ(lines.size(), 2u) << ended.text;
  }
}

TEST_F(LocalPredict, ReadsTheOlderForm) {
  WriteModel({}, /*legacy=*/true);
  Write("x.json", "{\"image\": 2, \"key\": 9007199254740993}\n{\"image\": -1, \"key\": 7}\n");
  const Ended table = Run("--model-dir $ --json-instances $/x.json");
  EXPECT_EQ(table.code, 0);
  EXPECT_EQ(table.text, "KEY               SCORE\n9007199254740993  6.0\n7                 -3.0\n");
  const Ended named = Run("--model-dir $ --json-instances $/x.json --signature-name predict");
  EXPECT_EQ(named.code, 1);
  EXPECT_THAT(named.text, HasSubstr("which has no signatures, got 'predict'"));
  Write("z.json", "{\"image\": 2}\n");
  const Ended wrong = Run("--model-dir $ --json-instances $/z.json");
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.text, HasSubstr("missing: 'key'"));
}

TEST_F(LocalPredict, RefusesAnOlderFormThatNamesNoTensors) {
  WriteModel({}, /*legacy=*/true);
  ASSERT_OK_AND_ASSIGN(tensorflow::MetaGraphDef meta,
                       ReadMetaGraph(Fs(), JoinPath(dir_, "export.meta")));
  const struct {
    std::string inputs, error;
  } cases[] = {
      {"", "collection 'inputs' must have a JSON object, alias -> tensor, got none"},
      {"[1]", "collection 'inputs' must have a JSON object"},
      {std::string(1000, '['), "collection 'inputs' must have a JSON object"},
      {R"({"image": "x:7"})", "'image' must be a tensor of the graph, got 'x:7'"},
      {R"({"image": "none:0"})", "'image' must be a tensor of the graph, got 'none:0'"},
      {R"({"image": 3})", "export.meta'"},
  };
  for (const auto& [inputs, error] : cases) {
    (*meta.mutable_collection_def())["inputs"].mutable_bytes_list()->set_value(0, inputs);
    ASSERT_OK(WriteMetaGraph(Fs(), JoinPath(dir_, "export.meta"), meta));
    std::ostringstream note;
    EXPECT_STATUS(OpenLocalModel(Fs(), dir_, {}, note), absl::StatusCode::kInvalidArgument, error)
        << inputs;
  }
}

}  // namespace
}  // namespace millrace
