// SPDX-License-Identifier: Apache-2.0
#include "run/run_file.h"

#include "absl/strings/str_cat.h"
#include "core/random_bits.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

// covers: training: a power cut leaves the old owner of a run or the new one

namespace millrace {
namespace {

class RunFileTest : public ::testing::Test {
 protected:
  RunFileTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("run_", RandomHexName()))) {
    EXPECT_OK(fs_->RecursivelyCreateDirectory(dir_));
  }
  ~RunFileTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  static RunFile Owner(const std::string& token, int64_t epoch) {
    return {.id = "0123abcd",
            .name = "run",
            .chief = "master-0 on host7, process 4711",
            .token = token,
            .epoch = epoch,
            .since = "2026-11-23T05:30:50Z"};
  }
  RunEndFile End(const std::string& token) const {
    return {.id = "0123abcd",
            .token = token,
            .global_step = 1000,
            .goal = 1000,
            .checkpoint = dir_ + "/model.ckpt-1000",
            .updates_after_checkpoint = 2,
            .reason = "reached step 1000 of 1000"};
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
};

TEST_F(RunFileTest, WhatWasWrittenIsRead) {
  ASSERT_OK_AND_ASSIGN(const auto none, ReadRunFile(fs_, dir_));
  EXPECT_FALSE(none.has_value());
  ASSERT_OK(WriteRunFile(fs_, dir_, Owner("a", 3)));
  ASSERT_OK_AND_ASSIGN(const auto run, ReadRunFile(fs_, dir_));
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->id, "0123abcd");
  EXPECT_EQ(run->name, "run");
  EXPECT_EQ(run->chief, "master-0 on host7, process 4711");
  EXPECT_EQ(run->token, "a");
  EXPECT_EQ(run->epoch, 3);
  EXPECT_EQ(run->since, "2026-11-23T05:30:50Z");
}

TEST_F(RunFileTest, AnEndCountsWhileItsWriterOwnsTheDirectory) {
  ASSERT_OK(WriteRunFile(fs_, dir_, Owner("a", 1)));
  ASSERT_OK_AND_ASSIGN(const auto none, ReadRunEnd(fs_, dir_));
  EXPECT_FALSE(none.has_value());
  ASSERT_OK(WriteRunEnd(fs_, dir_, End("a")));
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs_, dir_));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->global_step, 1000);
  EXPECT_EQ(end->goal, 1000);
  EXPECT_EQ(end->checkpoint, dir_ + "/model.ckpt-1000");
  EXPECT_EQ(end->updates_after_checkpoint, 2);
  EXPECT_EQ(end->reason, "reached step 1000 of 1000");
  // Another chief continues the training.
  ASSERT_OK(WriteRunFile(fs_, dir_, Owner("b", 2)));
  ASSERT_OK_AND_ASSIGN(const auto reopened, ReadRunEnd(fs_, dir_));
  EXPECT_FALSE(reopened.has_value());
  // The former owner writes its end too late.
  ASSERT_OK(WriteRunEnd(fs_, dir_, End("a")));
  ASSERT_OK_AND_ASSIGN(const auto late, ReadRunEnd(fs_, dir_));
  EXPECT_FALSE(late.has_value());
}

TEST_F(RunFileTest, TheDirectoryCanBeMovedWithItsEnd) {
  ASSERT_OK(WriteRunFile(fs_, dir_, Owner("a", 1)));
  ASSERT_OK(WriteRunEnd(fs_, dir_, End("a")));
  const std::string moved = dir_ + "_moved";
  ASSERT_OK(fs_->RenameFile(dir_, moved));
  const auto end = ReadRunEnd(fs_, moved);
  ASSERT_OK(fs_->RenameFile(moved, dir_));
  ASSERT_OK(end.status());
  ASSERT_TRUE(end->has_value());
  EXPECT_EQ((*end)->checkpoint, moved + "/model.ckpt-1000");
}

TEST_F(RunFileTest, FieldsOfOtherVersionsSurvive) {
  ASSERT_OK(WriteFileAtomically(fs_, RunFilePath(dir_),
                                R"({"id": "x", "token": "t", "later": {"a": [1, 2]}})"));
  ASSERT_OK_AND_ASSIGN(auto run, ReadRunFile(fs_, dir_));
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->epoch, 0);
  run->token = "u";
  ASSERT_OK(WriteRunFile(fs_, dir_, *run));
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(fs_, RunFilePath(dir_)));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["later"]["a"][1], 2);
  EXPECT_EQ(json["token"], "u");
}

TEST_F(RunFileTest, ADeeplyNestedFileIsRefusedAndDoesNotCrash) {
  // Valid JSON of 60 KB. To write it again would take a stack of 30,000 levels.
  const std::string deep = absl::StrCat("{\"id\": \"a\", \"more\": ", std::string(30000, '['),
                                        std::string(30000, ']'), "}");
  ASSERT_OK(WriteFileAtomically(fs_, RunFilePath(dir_), deep));
  EXPECT_STATUS(ReadRunFile(fs_, dir_).status(), absl::StatusCode::kDataLoss,
                "values must be nested at most 64 deep, got 30001");
  ASSERT_OK(WriteFileAtomically(fs_, RunEndFilePath(dir_), deep));
  EXPECT_STATUS(ReadRunEnd(fs_, dir_).status(), absl::StatusCode::kDataLoss, "nested");
  // Brackets in a text do not nest.
  ASSERT_OK(WriteFileAtomically(fs_, RunFilePath(dir_),
                                absl::StrCat("{\"id\": \"a\", \"token\": \"t\", \"more\": \"\\\"",
                                             std::string(1000, '['), "\"}")));
  EXPECT_OK(ReadRunFile(fs_, dir_));
}

TEST_F(RunFileTest, AMalformedFileIsNamed) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"", "must be a JSON object"},
      {"{\"id\": \"x\", ", "must be a JSON object"},
      {"[1]", "must be a JSON object"},
      {"{\"id\": 3, \"token\": \"t\"}", "must have the text 'id', got none"},
      {"{\"id\": \"x\"}", "must have the text 'token', got none"},
  };
  for (const auto& c : kCases) {
    ASSERT_OK(WriteFileAtomically(fs_, RunFilePath(dir_), c.text));
    EXPECT_STATUS(ReadRunFile(fs_, dir_).status(), absl::StatusCode::kDataLoss,
                  absl::StrCat("Run file '", RunFilePath(dir_), "': ", c.message));
  }
  ASSERT_OK(WriteFileAtomically(fs_, RunEndFilePath(dir_), "{}"));
  EXPECT_STATUS(ReadRunEnd(fs_, dir_).status(), absl::StatusCode::kDataLoss, "run_end.json");
  ASSERT_OK(WriteFileAtomically(fs_, RunFilePath(dir_), std::string(100'000, ' ')));
  EXPECT_FALSE(ReadRunFile(fs_, dir_).ok());
}

TEST_F(RunFileTest, APowerCutLeavesTheOldOwnerOrTheNewOne) {
  ASSERT_OK(WriteRunFile(fs_, dir_, Owner("a", 1)));
  FaultyFileSystem faulty(fs_, dir_);
  ASSERT_OK(WriteRunFile(&faulty, dir_, Owner("b", 2)));
  const std::string after = dir_ + "_after";
  for (const Loss loss : {Loss::kEverythingUnsynced, Loss::kUnsyncedData, Loss::kUnsyncedNames}) {
    for (int64_t cut = 0; cut <= faulty.num_operations(); ++cut) {
      ASSERT_OK(faulty.RestoreCut(cut, loss, 1, after));
      const auto run = ReadRunFile(fs_, after);
      ASSERT_OK(run.status());
      ASSERT_TRUE(run->has_value());
      const bool is_new = (*run)->token == "b";
      EXPECT_TRUE(is_new || (*run)->token == "a") << (*run)->token;
      if (cut == faulty.num_operations()) {
        EXPECT_TRUE(is_new);
      }
    }
  }
  fs_->RecursivelyDelete(after).IgnoreError();
}

TEST_F(RunFileTest, TheRecordOfSavesIsReadAsItWasWrittenWithoutWhatIsElsewhere) {
  ASSERT_OK_AND_ASSIGN(const auto none, ReadRunSaves(fs_, dir_));
  EXPECT_FALSE(none.has_value());
  ASSERT_OK(
      WriteRunSaves(fs_, dir_,
                    {.id = "0123abcd",
                     .checkpoints = {"m-1", "../m-2", "", ".", std::string("m-2\0x", 5), "m-3"}}));
  ASSERT_OK_AND_ASSIGN(const auto saves, ReadRunSaves(fs_, dir_));
  ASSERT_TRUE(saves.has_value());
  EXPECT_EQ(saves->id, "0123abcd");
  EXPECT_EQ(saves->checkpoints, (std::vector<std::string>{"m-1", "m-3"}));
  // Of very many the last ones.
  RunSavesFile many = {.id = "0123abcd"};
  for (size_t i = 0; i < kMaxRunSaves + 2; ++i) many.checkpoints.push_back(absl::StrCat("m-", i));
  ASSERT_OK(WriteRunSaves(fs_, dir_, many));
  ASSERT_OK_AND_ASSIGN(const auto newest, ReadRunSaves(fs_, dir_));
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->checkpoints.size(), kMaxRunSaves);
  EXPECT_EQ(newest->checkpoints[0], "m-2");
  // One file, and no other.
  ASSERT_OK_AND_ASSIGN(const auto names, fs_->GetChildren(dir_));
  EXPECT_EQ(names, std::vector<std::string>{"run_saves.json"});
}

}  // namespace
}  // namespace millrace
