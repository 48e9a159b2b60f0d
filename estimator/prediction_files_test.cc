// SPDX-License-Identifier: Apache-2.0
#include "estimator/prediction_files.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/crc32c.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/prediction_shard.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"

// covers: training: prediction files: one attempt at a part is chosen for good, never a cut one; a
//   late attempt leaves nothing; JSON lines and Examples

namespace millrace {
namespace {

class PredictionFilesTest : public testing::Test {
 protected:
  PredictionFilesTest()
      : dir_(absl::StrCat(testing::TempDir(), "/predictions_",
                          testing::UnitTest::GetInstance()->current_test_info()->name())),
        files_(fs(), dir_) {
    fs()->RecursivelyDelete(dir_).IgnoreError();
    EXPECT_OK(fs()->RecursivelyCreateDirectory(dir_));
  }
  static FileSystem* fs() { return FileSystem::Posix(); }
  std::string Text(const std::string& path) const {
    const auto text = ReadFileToString(fs(), path);
    EXPECT_OK(text.status());
    return text.value_or("");
  }
  // The bytes of a file with these rows.
  std::string Written(PredictionFormat format, const std::vector<std::string>& names,
                      const std::vector<Tensor>& values) {
    const std::string path = dir_ + "/rows";
    auto writer = PredictionShardWriter::Create(fs(), path, format);
    EXPECT_OK(writer.status());
    EXPECT_OK((*writer)->Write(names, values));
    const auto content = (*writer)->Finish();
    EXPECT_OK(content.status());
    const std::string text = Text(path);
    EXPECT_EQ(content->bytes, static_cast<int64_t>(text.size()));
    EXPECT_EQ(content->crc32c, Crc32c(text));
    return text;
  }

  // Commits an attempt for `part` with one row, whose column is `what`.
  void Predict(int64_t part, const std::string& what, const char* task = "worker 0") {
    ASSERT_OK_AND_ASSIGN(auto attempt, files_.Begin(part, PredictionFormat::kJsonLines));
    ASSERT_OK(attempt.writer->Write({"what"}, {Tensor::Of<std::string>({what})}));
    ASSERT_OK_AND_ASSIGN(const ShardContent content, files_.Commit(&attempt, task));
    EXPECT_EQ(content.rows, 1);
  }
  std::string ChosenText(const PredictionJob& job, int64_t part) {
    const auto seen = files_.Look();
    EXPECT_OK(seen.status());
    const auto chosen = files_.Choose(part, seen->at(part), job);
    EXPECT_OK(chosen.status());
    return chosen.ok() ? Text(JoinPath(dir_, chosen->file)) : "";
  }

  const std::string dir_;
  PredictionFiles files_;
};

TEST_F(PredictionFilesTest, JsonLinesAreOneRowEach) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor matrix = *Tensor::FromValues<float>(Shape{2, 2, 1}, {0.1f, -2, 1e20f, -inf});
  EXPECT_EQ(Written(PredictionFormat::kJsonLines, {"b", "d", "i", "m", "n"},
                    {Tensor::Vector<bool>({true, false}), Tensor::Vector<double>({0.1, 1.0 / 3}),
                     Tensor::Vector<int64_t>({-(int64_t{1} << 53) - 1, 7}), matrix,
                     Tensor::Vector<float>({std::numeric_limits<float>::quiet_NaN(), 0})}),
            "{\"b\":true,\"d\":0.1,\"i\":-9007199254740993,\"m\":[[0.1],[-2]],\"n\":\"nan\"}\n"
            "{\"b\":false,\"d\":0.3333333333333333,\"i\":7,\"m\":[[1e+20],[\"-inf\"]],\"n\":0}\n");
}

TEST_F(PredictionFilesTest, TextIsTextAndBytesAreBase64) {
  const std::vector<std::string> texts = {
      "plain", "a \"b\" \\ \n\t\r", "Z\xC3\xBCrich \xE2\x82\xAC \xF0\x9F\x98\x80", "\xFF\xFE",
      // Not UTF-8: overlong, a surrogate, above U+10FFFF, cut.
      "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", ""};
  const std::string lines =
      Written(PredictionFormat::kJsonLines, {"s"}, {Tensor::Vector<std::string>(texts)});
  EXPECT_EQ(lines,
            "{\"s\":\"plain\"}\n{\"s\":\"a \\\"b\\\" \\\\ \\n\\t\\r\"}\n"
            "{\"s\":\"Z\xC3\xBCrich \xE2\x82\xAC \xF0\x9F\x98\x80\"}\n{\"s\":{\"b64\":\"//4=\"}}\n"
            "{\"s\":{\"b64\":\"wIA=\"}}\n{\"s\":{\"b64\":\"7aCA\"}}\n"
            "{\"s\":{\"b64\":\"9JCAgA==\"}}\n{\"s\":{\"b64\":\"4oI=\"}}\n{\"s\":\"\"}\n");
  // Another program's reader takes all of them.
  size_t begin = 0, count = 0;
  for (size_t end; (end = lines.find('\n', begin)) != std::string::npos; begin = end + 1, ++count) {
    EXPECT_FALSE(
        nlohmann::json::parse(lines.substr(begin, end - begin), nullptr, false).is_discarded());
  }
  EXPECT_EQ(count, texts.size());
}

TEST_F(PredictionFilesTest, EmptyTensorsHaveNoRowsOrEmptyLists) {
  EXPECT_EQ(Written(PredictionFormat::kJsonLines, {"x"}, {*Tensor::Zeros(DT_FLOAT, Shape{0, 3})}),
            "");
  // Dimensions without an element do not make text.
  EXPECT_EQ(Written(PredictionFormat::kJsonLines, {"x"},
                    {*Tensor::Zeros(DT_FLOAT, Shape{2, int64_t{1} << 39, 0})}),
            "{\"x\":[]}\n{\"x\":[]}\n");
  EXPECT_EQ(Written(PredictionFormat::kTfRecord, {"x"}, {*Tensor::Zeros(DT_FLOAT, Shape{0, 3})}),
            "");
}

TEST_F(PredictionFilesTest, RecordsAreExamples) {
  Written(
      PredictionFormat::kTfRecord, {"b", "f", "i", "s"},
      {Tensor::Vector<bool>({true, false}), *Tensor::FromValues<double>(Shape{2, 2}, {1, 2, 3, 4}),
       Tensor::Vector<int32_t>({5, -6}), Tensor::Vector<std::string>({"x", "\xFF"})});
  ASSERT_OK_AND_ASSIGN(auto reader, RecordReader::Open(fs(), dir_ + "/rows"));
  tensorflow::Example example;
  for (int row = 0; row < 2; ++row) {
    ASSERT_OK_AND_ASSIGN(const absl::string_view record, reader->Next());
    ASSERT_TRUE(example.ParseFromArray(record.data(), static_cast<int>(record.size())));
    const auto& features = example.features().feature();
    ASSERT_EQ(features.size(), 4u);
    EXPECT_EQ(features.at("b").int64_list().value(0), row == 0 ? 1 : 0);
    ASSERT_EQ(features.at("f").float_list().value_size(), 2);
    EXPECT_EQ(features.at("f").float_list().value(1), row == 0 ? 2 : 4);
    EXPECT_EQ(features.at("i").int64_list().value(0), row == 0 ? 5 : -6);
    EXPECT_EQ(features.at("s").bytes_list().value(0), row == 0 ? "x" : "\xFF");
  }
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(PredictionFilesTest, WhatIsNoRowIsRefused) {
  for (const auto format : {PredictionFormat::kJsonLines, PredictionFormat::kTfRecord}) {
    ASSERT_OK_AND_ASSIGN(auto writer, PredictionShardWriter::Create(fs(), dir_ + "/bad", format));
    const Tensor two = Tensor::Vector<float>({1, 2}), three = Tensor::Vector<float>({1, 2, 3});
    EXPECT_EQ(
        writer->Write({"a", "b"}, {two, three}),
        InvalidArgument("Predictions: all must have as many rows, got 2 of 'a' and 3 of 'b'"));
    EXPECT_EQ(writer->Write({"a"}, {Tensor::Scalar(1.f)}),
              InvalidArgument("Predictions: 'a' must have a row per example, got a scalar"));
    const Status complex = writer->Write({"c"}, {*Tensor::Zeros(DT_COMPLEX64, Shape{2})});
    EXPECT_EQ(complex.code(), absl::StatusCode::kUnimplemented) << complex;
    EXPECT_TRUE(absl::StrContains(complex.message(), "'c' must be numbers, bools or strings"))
        << complex;
    EXPECT_STATUS(writer->Write({"\xFFz"}, {Tensor::Vector<float>({1})}),
                  absl::StatusCode::kInvalidArgument,
                  "Predictions: a name must be text to be written, got '\\xffz'");
  }
}

TEST_F(PredictionFilesTest, OneOfSeveralAttemptsIsChosenForGood) {
  const PredictionJob job = {.num_parts = 2};
  ASSERT_OK(files_.WriteJob(job));
  Predict(1, "first");
  const std::string chosen = ChosenText(job, 1);
  EXPECT_EQ(chosen, "{\"what\":\"first\"}\n");
  // Another attempt ends late, and the chief died before it wrote the manifest: it chooses again.
  Predict(1, "other");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ChosenText(job, 1), chosen);
  ASSERT_OK_AND_ASSIGN(const auto names, fs()->GetChildren(dir_));
  EXPECT_EQ(names, (std::vector<std::string>{"_job", "predictions-00001-of-00002.jsonl"}));
}

TEST_F(PredictionFilesTest, AttemptsShowHowFarTheyAre) {
  const PredictionJob job = {.num_parts = 1};
  ASSERT_OK(files_.WriteJob(job));
  ASSERT_OK_AND_ASSIGN(auto attempt, files_.Begin(0, PredictionFormat::kJsonLines));
  const std::vector<Tensor> row = {Tensor::Vector<float>({1})};
  for (uint64_t bytes : {uint64_t{8}, uint64_t{16}}) {
    ASSERT_OK(attempt.writer->Write({"x"}, row));  // {"x":1}
    ASSERT_OK(attempt.writer->Flush());
    ASSERT_OK_AND_ASSIGN(const auto seen, files_.Look());
    EXPECT_EQ(seen.at(0).unended, (std::map<std::string, uint64_t>{{attempt.token, bytes}}));
    EXPECT_TRUE(seen.at(0).whole.empty());
    EXPECT_EQ(files_.Choose(0, seen.at(0), job).status().code(), absl::StatusCode::kDataLoss);
  }
  files_.Abandon(&attempt);
  ASSERT_OK_AND_ASSIGN(const auto seen, files_.Look());
  EXPECT_TRUE(seen.empty());
}

TEST_F(PredictionFilesTest, APartThatWasCutIsNotChosen) {
  const PredictionJob job = {.num_parts = 1};
  ASSERT_OK(files_.WriteJob(job));
  Predict(0, "cut");
  ASSERT_OK_AND_ASSIGN(auto seen, files_.Look());
  const std::string part = files_.job_directory() + "/part-00000." + seen.at(0).whole[0];
  ASSERT_OK(WriteFileAtomically(fs(), part, "{\"wh"));
  const Status status = files_.Choose(0, seen.at(0), job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), "has 4 bytes in place of 15")) << status;
  // Another attempt is complete.
  Predict(0, "whole");
  EXPECT_EQ(ChosenText(job, 0), "{\"what\":\"whole\"}\n");
}

TEST_F(PredictionFilesTest, ALateAttemptLeavesNothing) {
  const PredictionJob job = {.num_parts = 1};
  ASSERT_OK(files_.WriteJob(job));
  ASSERT_OK_AND_ASSIGN(auto late, files_.Begin(0, PredictionFormat::kJsonLines));
  Predict(0, "chosen", "chief 0");
  ASSERT_OK_AND_ASSIGN(const auto seen, files_.Look());
  ASSERT_OK_AND_ASSIGN(const PredictedPart chosen, files_.Choose(0, seen.at(0), job));
  ASSERT_OK(files_.WriteManifest({.checkpoint = "c", .parts = {chosen}}));
  files_.Sweep();
  ASSERT_OK(late.writer->Write({"what"}, {Tensor::Of<std::string>({"late"})}));
  ASSERT_OK(files_.Commit(&late, "worker 0").status());
  ASSERT_OK_AND_ASSIGN(const auto names, fs()->GetChildren(files_.job_directory()));
  EXPECT_EQ(names, std::vector<std::string>{"job.json"});
  ASSERT_OK_AND_ASSIGN(const auto manifest, ReadPredictionManifest(fs(), dir_));
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->rows(), 1);
  EXPECT_EQ(manifest->parts[0].task, "chief 0");
  EXPECT_EQ(manifest->parts[0].content.crc32c, Crc32c(Text(dir_ + "/" + chosen.file)));
}

TEST_F(PredictionFilesTest, JobsAndManifestsAreReadAsTheyWereWritten) {
  ASSERT_OK_AND_ASSIGN(const auto none, files_.ReadJob());
  EXPECT_FALSE(none);
  const PredictionJob job = {.checkpoint = "m/model.ckpt-7",
                             .format = PredictionFormat::kTfRecord,
                             .num_parts = 3,
                             .seed = UINT64_MAX,
                             .files = {"a \"b\"", "c"}};
  ASSERT_OK(files_.WriteJob(job));
  ASSERT_OK_AND_ASSIGN(const auto read, files_.ReadJob());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->checkpoint, job.checkpoint);
  EXPECT_EQ(read->format, job.format);
  EXPECT_EQ(read->num_parts, 3);
  EXPECT_EQ(read->seed, UINT64_MAX);
  EXPECT_EQ(read->files, job.files);
}

TEST_F(PredictionFilesTest, DamagedFilesAreNamed) {
  ASSERT_OK(fs()->RecursivelyCreateDirectory(files_.job_directory()));
  const std::string job = files_.job_directory() + "/job.json", manifest = dir_ + "/manifest.json";
  for (const char* text :
       {"", "{", "[]", "{}", "{\"checkpoint\": 1}",
        "{\"checkpoint\": \"\", \"format\": \"xml\", \"num_parts\": 1, \"seed\": \"1\"}",
        "{\"checkpoint\": \"\", \"format\": \"jsonl\", \"num_parts\": 0, \"seed\": \"1\"}",
        "{\"checkpoint\": \"\", \"format\": \"jsonl\", \"num_parts\": 1e30, \"seed\": \"1\"}",
        "{\"checkpoint\": \"\", \"format\": \"jsonl\", \"num_parts\": 18446744073709551615}",
        "{\"checkpoint\": \"\", \"format\": \"jsonl\", \"num_parts\": 1, \"seed\": \"x\"}",
        "{\"checkpoint\": \"\", \"format\": \"jsonl\", \"parts\": [1]}",
        "{\"checkpoint\": \"\", \"format\": \"jsonl\", \"parts\": [{\"file\": \"../x\", \"rows\": "
        "1, \"bytes\": 1, \"crc32c\": 1, \"task\": \"\"}]}",
        "{\"checkpoint\": \"\", \"format\": \"jsonl\", \"parts\": [{\"file\": \"x\", \"rows\": -1, "
        "\"bytes\": 1, \"crc32c\": 1, \"task\": \"\"}]}"}) {
    SCOPED_TRACE(text);
    ASSERT_OK(WriteFileAtomically(fs(), job, text));
    ASSERT_OK(WriteFileAtomically(fs(), manifest, text));
    const Status of_job = files_.ReadJob().status();
    EXPECT_EQ(of_job.code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(absl::StrContains(of_job.message(), job)) << of_job;
    const Status of_manifest = ReadPredictionManifest(fs(), dir_).status();
    EXPECT_EQ(of_manifest.code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(absl::StrContains(of_manifest.message(), manifest)) << of_manifest;
  }
}

}  // namespace
}  // namespace millrace
