// SPDX-License-Identifier: Apache-2.0
//
// People predicted by a trained census model: local_predict on exports of every form.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/example.pb.h"
#include "tests/cluster/process.h"

// covers: training: people predicted by JSON, CSV rows and Examples get the same five outputs,
//   which agree with each other
// covers: article 0-28: no `serving_default` with 13 inputs: the log says why, tools take the only
//   signature
// covers: article 0-29, 0-30, 0-31: five columns, a row per person; the outputs agree; wrong keys
//   are named, exit code 1
// covers: scenario F11: exports by JSON, CSV and Examples
// covers: scenario F13: local prediction

namespace millrace {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kTestJson[] = "examples/census/test.json";
constexpr absl::Duration kEndTime = absl::Seconds(120);

FileSystem* Fs() { return FileSystem::Posix(); }

struct Ended {
  int code = -1;
  std::vector<std::string> lines;
  std::string text() const { return absl::StrJoin(lines, "\n"); }
};

Ended RunProgram(const std::string& program, const std::vector<std::string>& args) {
  Ended ended;
  const auto process = Process::Start({.program = program, .args = args});
  EXPECT_OK(process.status());
  if (!process.ok()) return ended;
  const StatusOr<int> code = (*process)->WaitForExit(kEndTime);
  EXPECT_OK(code.status());
  if (code.ok()) ended.code = *code;
  for (const std::string& line : (*process)->lines()) {
    // What is said of a directory of versions.
    if (line.find("is a directory of versions") == std::string::npos) ended.lines.push_back(line);
  }
  return ended;
}

// The same model, by its seed, in each form.
class PredictTest : public ::testing::Test {
 protected:
  static std::string Path(const std::string& name) {
    return JoinPath(::testing::TempDir(), absl::StrCat("census_predict_", name));
  }
  static std::string Export(const std::string& format) {
    const std::string dir = Path(format);
    if (!Fs()->FileExists(dir + "/export/census")) {
      const Ended trained = RunProgram(
          "examples/census/census",
          {"--train-steps=300", "--seed=1", "--job-dir", dir, "--export-format", format});
      EXPECT_EQ(trained.code, 0) << trained.text();
    }
    return dir + "/export/census";
  }
  static std::string Write(const std::string& name, const std::string& text) {
    EXPECT_OK(WriteFileAtomically(Fs(), Path(name), text));
    return Path(name);
  }
  static std::vector<json> TestPeople() {
    const auto text = ReadFileToString(Fs(), kTestJson);
    EXPECT_OK(text.status());
    std::vector<json> people;
    for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
      people.push_back(json::parse(line));
    }
    return people;
  }
  static Ended Predict(std::vector<std::string> args) {
    return RunProgram("tools/local_predict", args);
  }
  static std::vector<json> Predictions(const Ended& ended) {
    EXPECT_EQ(ended.code, 0) << ended.text();
    const json reply = json::parse(ended.text(), nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(reply.is_object()) << ended.text();
    return reply.is_object() ? reply["predictions"].get<std::vector<json>>() : std::vector<json>();
  }
};

TEST_F(PredictTest, ShowsFiveColumns) {
  const Ended table = Predict({"--model-dir", Export("JSON"), "--json-instances", kTestJson});
  ASSERT_EQ(table.code, 0) << table.text();
  ASSERT_EQ(table.lines.size(), 11u) << table.text();
  const auto words = [](const std::string& line) -> std::vector<std::string> {
    return absl::StrSplit(line, "  ", absl::SkipEmpty());
  };
  std::vector<std::string> header;
  for (const std::string& word : words(table.lines[0])) {
    header.emplace_back(absl::StripAsciiWhitespace(word));
  }
  EXPECT_THAT(header, ::testing::ElementsAre("CLASS_IDS", "CLASSES", "LOGISTIC", "LOGITS",
                                             "PROBABILITIES"));
  for (size_t i = 1; i < table.lines.size(); ++i) {
    EXPECT_EQ(words(table.lines[i]).size(), 5u) << table.lines[i];
    EXPECT_THAT(table.lines[i], ::testing::ContainsRegex("^\\[[01]\\]  +\\['[01]'\\]  +\\["));
  }
}

TEST_F(PredictTest, OutputsAgreeWithEachOther) {
  const std::vector<json> predictions = Predictions(
      Predict({"--model-dir", Export("JSON"), "--json-instances", kTestJson, "--format", "json"}));
  ASSERT_EQ(predictions.size(), 10u);
  for (const json& one : predictions) {
    ASSERT_EQ(one.size(), 5u) << one;
    const double logit = one["logits"][0], logistic = one["logistic"][0];
    const double p0 = one["probabilities"][0], p1 = one["probabilities"][1];
    EXPECT_NEAR(logistic, 1 / (1 + std::exp(-logit)), 1e-6) << one;
    EXPECT_NEAR(p1, logistic, 1e-6) << one;
    EXPECT_NEAR(p0 + p1, 1, 1e-6) << one;
    const int64_t id = one["class_ids"][0];
    EXPECT_EQ(id, p1 > p0 ? 1 : 0) << one;
    EXPECT_EQ(one["classes"][0], absl::StrCat(id)) << one;
  }
}

// covers: article 0-22, 0-23: receivers of values, CSV rows (some columns dropped) and Examples
TEST_F(PredictTest, RowsAndExamplesPredictWhatJsonDoes) {
  const std::vector<json> people = TestPeople();
  std::string rows, examples;
  for (const json& person : people) {
    const auto text = [&](const char* key) { return person[key].get<std::string>(); };
    const auto number = [&](const char* key) { return person[key].get<int64_t>(); };
    // With what the model does not use: a weight, and no label.
    absl::StrAppend(&rows, number("age"), ",", text("workclass"), ", 1234,", text("education"),
                    ", ", number("education_num"), ",", text("marital_status"), ",",
                    text("occupation"), ",", text("relationship"), ",", text("race"), ",");
    absl::StrAppend(&rows, text("gender"), ", ", number("capital_gain"), ", ",
                    number("capital_loss"), ", ", number("hours_per_week"), ",",
                    text("native_country"), ", \n");
    tensorflow::Example example;
    auto& features = *example.mutable_features()->mutable_feature();
    for (const auto& [key, value] : person.items()) {
      if (value.is_string()) {
        features[key].mutable_bytes_list()->add_value(value.get<std::string>());
      } else {
        features[key].mutable_float_list()->add_value(value.get<float>());
      }
    }
    absl::StrAppend(&examples,
                    json{{"b64", absl::Base64Escape(example.SerializeAsString())}}.dump(), "\n");
  }
  const std::vector<json> by_json = Predictions(
      Predict({"--model-dir", Export("JSON"), "--json-instances", kTestJson, "--format", "json"}));
  const std::vector<json> by_row = Predictions(
      Predict({"--model-dir", Export("CSV"), "--text-instances", Write("people.csv", rows),
               "--signature-name", "predict", "--format", "json"}));
  const std::vector<json> by_example = Predictions(Predict(
      {"--model-dir", Export("EXAMPLE"), "--json-instances", Write("examples.json", examples),
       "--signature-name", "predict", "--format", "json"}));
  EXPECT_EQ(by_json, by_row);
  EXPECT_EQ(by_json, by_example);

  // Those two have a default, which is a classification: classes and their scores.
  const Ended table =
      Predict({"--model-dir", Export("CSV"), "--text-instances", Path("people.csv")});
  EXPECT_EQ(table.code, 0);
  ASSERT_EQ(table.lines.size(), 11u) << table.text();
  EXPECT_THAT(table.lines[0], ::testing::ContainsRegex("^CLASSES +SCORES$"));
  EXPECT_THAT(table.lines[1], ::testing::StartsWith("['0', '1']"));
}

TEST_F(PredictTest, WrongKeysAreNamed) {
  json person = TestPeople()[0];
  person["years"] = person["age"];
  person.erase("age");
  const Ended wrong = Predict(
      {"--model-dir", Export("JSON"), "--json-instances", Write("wrong.json", person.dump())});
  EXPECT_EQ(wrong.code, 1);
  ASSERT_EQ(wrong.lines.size(), 1u) << wrong.text();
  EXPECT_THAT(wrong.text(), HasSubstr("missing: 'age', unknown: 'years'"));
}

}  // namespace
}  // namespace millrace
