// SPDX-License-Identifier: Apache-2.0
#include "estimator/warm_start.h"

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/remapped_variable.h"
#include "estimator/vocab_remap.h"
#include "estimator/warm_start_saver.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "saver/tensor_bundle.h"

// covers: training: a WarmStart takes patterns, lists, other names and other parts; rows and
//   columns follow their words

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class WarmStartTest : public testing::Test {
 protected:
  WarmStartTest()
      : dir_(absl::StrCat(testing::TempDir(), "/",
                          testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs()->RecursivelyDelete(dir_).IgnoreError();
    EXPECT_OK(fs()->RecursivelyCreateDirectory(dir_));
  }
  static FileSystem* fs() { return FileSystem::Posix(); }
  std::string checkpoint() const { return dir_ + "/old"; }

  void WriteCheckpoint(const std::vector<std::pair<std::string, Tensor>>& tensors) {
    auto writer = BundleWriter::Open(fs(), checkpoint());
    ASSERT_OK(writer.status());
    for (const auto& [name, value] : tensors) ASSERT_OK((*writer)->Add(name, value));
    ASSERT_OK((*writer)->Finish());
  }
  std::string WriteWords(const std::string& name, const std::string& text) {
    const std::string path = dir_ + "/" + name;
    EXPECT_OK(WriteFileAtomically(fs(), path, text));
    return path;
  }
  // A variable with this value everywhere; partitioned when `parts` is not 0.
  void Make(const std::string& name, const Shape& shape, float value, int parts = 0,
            bool trainable = true) {
    if (parts == 0) {
      MakeVariable(scope_.WithName(name), shape, DT_FLOAT, ConstantInitializer(value),
                   {.trainable = trainable});
    } else {
      MakePartitionedVariable(scope_.WithName(name), shape, DT_FLOAT, parts,
                              ConstantInitializer(value), {.trainable = trainable});
    }
  }
  Status Start(const WarmStart& from) {
    const Operation init = GlobalVariablesInitializer(scope_);
    MR_ASSIGN_OR_RETURN(const auto saver, WarmStartSaver::Make(scope_, from, fs()));
    scope_.Finalize();
    MR_ASSIGN_OR_RETURN(session_, NewSession());
    MR_RETURN_IF_ERROR(session_->Extend(scope_));
    MR_RETURN_IF_ERROR(session_->Run({}, {}, {init}).status());
    return saver->Restore(session_.get());
  }
  Tensor Value(const std::string& variable) {
    auto out = session_->Run({}, {variable + "/Read/ReadVariableOp:0"});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0] : Tensor();
  }

  const std::string dir_;
  const Scope scope_;
  std::unique_ptr<Session> session_;
};

TEST_F(WarmStartTest, APatternIsOfTrainablesAListOfAll) {
  const std::vector<std::pair<std::string, Tensor>> old = {{"a/w", Tensor::Of({1.f, 2.f})},
                                                           {"a/w/Adam", Tensor::Of({3.f, 4.f})},
                                                           {"b/w", Tensor::Of({5.f, 6.f})}};
  WriteCheckpoint(old);
  struct Case {
    WarmStartVariables wanted;
    std::vector<Tensor> want;
  };
  const Tensor begun = Tensor::Of({0.f, 0.f});
  for (const Case& c :
       std::vector<Case>{{".*", {old[0].second, begun, old[2].second}},
                         {"a/", {old[0].second, begun, begun}},
                         {std::vector<std::string>{"a/"}, {old[0].second, old[1].second, begun}},
                         {{"b/.*", "a/w/Ad"}, {begun, old[1].second, old[2].second}},
                         {std::nullopt, {begun, begun, begun}}}) {
    const Scope scope;
    const auto make = [&](const std::string& name, bool trainable) {
      return MakeVariable(scope.WithName(name), Shape{2}, DT_FLOAT, ZerosInitializer(),
                          {.trainable = trainable});
    };
    const std::vector<Output> values = {make("a/w", true).value, make("a/w/Adam", false).value,
                                        make("b/w", true).value};
    const Operation init = GlobalVariablesInitializer(scope);
    ASSERT_OK_AND_ASSIGN(
        const auto saver,
        WarmStartSaver::Make(
            scope, {.checkpoint = checkpoint() + ".index", .vars_to_warm_start = c.wanted}, fs()));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(scope));
    ASSERT_OK(session->Run({}, {}, {init}));
    ASSERT_OK(saver->Restore(session.get()));
    ASSERT_OK_AND_ASSIGN(const auto got, session->Run({}, {values[0], values[1], values[2]}));
    for (size_t i = 0; i < got.size(); ++i) ExpectTensorEqual(got[i], c.want[i]);
  }
}

TEST_F(WarmStartTest, AVariableMayHaveHadAnotherNameAndOtherParts) {
  WriteCheckpoint({{"old/w", Tensor::Of({{1.f}, {2.f}, {3.f}, {4.f}, {5.f}})}});
  Make("new/w", Shape{5, 1}, 0, /*parts=*/2);
  ASSERT_OK(Start({.checkpoint = checkpoint(), .var_name_to_prev_var_name = {{"new/w", "old/w"}}}));
  ExpectTensorEqual(Value("new/w/part_0"), Tensor::Of({{1.f}, {2.f}, {3.f}}));
  ExpectTensorEqual(Value("new/w/part_1"), Tensor::Of({{4.f}, {5.f}}));
}

TEST_F(WarmStartTest, RowsFollowTheirWords) {
  for (const int parts : {0, 1, 2, 3}) {
    SCOPED_TRACE(parts);
    fs()->RecursivelyDelete(dir_).IgnoreError();
    ASSERT_OK(fs()->RecursivelyCreateDirectory(dir_));
    WriteCheckpoint(
        {{"w", Tensor::Of({{1.f, 10.f}, {2.f, 20.f}, {3.f, 30.f}, {4.f, 40.f}})},  // a b c d
         {"bias", Tensor::Of({7.f, 8.f})}});
    const Scope scope;
    std::vector<Output> values;
    if (parts == 0) {
      values.push_back(
          MakeVariable(scope.WithName("w"), Shape{5, 2}, DT_FLOAT, ZerosInitializer()).value);
    } else {
      for (const Variable& part : MakePartitionedVariable(scope.WithName("w"), Shape{5, 2},
                                                          DT_FLOAT, parts, ZerosInitializer())
                                      .parts) {
        values.push_back(part.value);
      }
    }
    values.push_back(
        MakeVariable(scope.WithName("bias"), Shape{2}, DT_FLOAT, ZerosInitializer()).value);
    const Operation init = GlobalVariablesInitializer(scope);
    // The lines end with CRLF, the last one has no end.
    ASSERT_OK_AND_ASSIGN(
        const auto saver,
        WarmStartSaver::Make(
            scope,
            {.checkpoint = checkpoint(),
             .var_name_to_vocab_info = {{"w",
                                         {.new_vocab = WriteWords("new.txt", "d\nx\na\nb\nunused"),
                                          .new_vocab_size = 4,
                                          .num_oov_buckets = 1,
                                          .old_vocab = WriteWords("old.txt", "a\r\nb\r\nc\r\nd"),
                                          .backup_initializer = ConstantInitializer(-1)}}}},
            fs()));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(scope));
    ASSERT_OK(session->Run({}, {}, {init}));
    ASSERT_OK(saver->Restore(session.get()));
    std::vector<FetchName> fetches(values.begin(), values.end());
    ASSERT_OK_AND_ASSIGN(const auto got, session->Run({}, fetches));
    std::vector<float> rows;
    for (size_t i = 0; i + 1 < got.size(); ++i) {
      rows.insert(rows.end(), got[i].flat<float>().begin(), got[i].flat<float>().end());
    }
    EXPECT_EQ(rows, (std::vector<float>{4, 40, -1, -1, 1, 10, 2, 20, -1, -1}));
    ExpectTensorEqual(got.back(), Tensor::Of({7.f, 8.f}));  // unchanged
  }
}

TEST_F(WarmStartTest, LessOfTheOldVocabularyMayHaveBeenUsed) {
  WriteCheckpoint({{"w", Tensor::Of({1.f, 2.f})}});
  Make("w", Shape{2}, 0);
  ASSERT_OK(Start({.checkpoint = checkpoint(),
                   .vars_to_warm_start = std::nullopt,
                   .var_name_to_vocab_info = {{"w",
                                               {.new_vocab = WriteWords("new", "c\nb\n"),
                                                .new_vocab_size = 2,
                                                .old_vocab = WriteWords("old", "a\nb\nc\n"),
                                                .old_vocab_size = 2}}}}));
  ExpectTensorEqual(Value("w"), Tensor::Of({0.f, 2.f}));
}

TEST_F(WarmStartTest, ColumnsFollowTheirWords) {
  WriteCheckpoint({{"logits", Tensor::Of({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}, {7.f, 8.f, 9.f}})}});
  Make("logits", Shape{3, 4}, 0, /*parts=*/2);
  ASSERT_OK(Start({.checkpoint = checkpoint(),
                   .var_name_to_vocab_info = {{"logits",
                                               {.new_vocab = WriteWords("new", "z\ny\nx\n"),
                                                .new_vocab_size = 3,
                                                .num_oov_buckets = 1,
                                                .old_vocab = WriteWords("old", "x\nw\nz\n"),
                                                .backup_initializer = OnesInitializer(),
                                                .axis = 1}}}}));
  ExpectTensorEqual(Value("logits/part_0"),
                    Tensor::Of({{3.f, 1.f, 1.f, 1.f}, {6.f, 1.f, 4.f, 1.f}}));
  ExpectTensorEqual(Value("logits/part_1"), Tensor::Of({{9.f, 1.f, 7.f, 1.f}}));
}

TEST_F(WarmStartTest, ALargeTableIsReadInPieces) {
  constexpr int64_t kRows = 1000;
  std::vector<float> old(kRows * 2);
  std::iota(old.begin(), old.end(), 0.0f);
  WriteCheckpoint({{"w", *Tensor::FromValues<float>(Shape{kRows, 2}, old)}});
  std::string words, reversed;
  for (int64_t i = 0; i < kRows; ++i) {
    absl::StrAppend(&words, "w", i, "\n");
    absl::StrAppend(&reversed, "w", kRows - 1 - i, "\n");
  }
  const PartitionedVariable table = MakePartitionedVariable(scope_.WithName("w"), Shape{kRows, 2},
                                                            DT_FLOAT, 3, ZerosInitializer());
  ASSERT_OK_AND_ASSIGN(const auto remapped,
                       RemappedVariable::Make(scope_, "w", table.parts,
                                              {.new_vocab = WriteWords("new", reversed),
                                               .new_vocab_size = kRows,
                                               .old_vocab = WriteWords("old", words)},
                                              "w", fs()));
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(fs(), checkpoint()));
  ASSERT_OK_AND_ASSIGN(session_, NewSession());
  ASSERT_OK(session_->Extend(scope_));
  ASSERT_OK(remapped->Restore(session_.get(), *reader, /*piece_bytes=*/7 * 8));
  std::vector<float> got;
  for (const int i : {0, 1, 2}) {
    const Tensor part = Value(absl::StrCat("w/part_", i));
    got.insert(got.end(), part.flat<float>().begin(), part.flat<float>().end());
  }
  ASSERT_EQ(got.size(), old.size());
  for (size_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(got[2 * row], old[2 * (kRows - 1 - row)]);
    EXPECT_EQ(got[2 * row + 1], old[2 * (kRows - 1 - row) + 1]);
  }
}

TEST_F(WarmStartTest, WhatIsWrongIsNamed) {
  WriteCheckpoint(
      {{"w", Tensor::Of({{1.f}, {2.f}, {3.f}})}, {"i", Tensor::Of<int32_t>({{1}, {2}})}});
  const std::string ab = WriteWords("ab", "a\nb\n"), abcd = WriteWords("abcd", "a\nb\nc\nd\n");
  const std::string twice = WriteWords("twice", "a\nb\na\n");
  struct Wrong {
    WarmStart from;
    absl::StatusCode code;
    std::string message;
  };
  const VocabInfo good = {.new_vocab = ab, .new_vocab_size = 2, .old_vocab = ab};
  const auto with = [&](const VocabInfo& info) {
    return WarmStart{.checkpoint = checkpoint(), .var_name_to_vocab_info = {{"w", info}}};
  };
  const auto changed = [&](auto change) {
    VocabInfo info = good;
    change(&info);
    return with(info);
  };
  for (
      const Wrong& wrong : std::vector<Wrong>{
          {{.checkpoint = dir_ + "/nowhere"},
           absl::StatusCode::kNotFound,
           "WarmStart: there must be a checkpoint"},
          {{.checkpoint = checkpoint(), .vars_to_warm_start = "("},
           kInvalid,
           "WarmStart: vars_to_warm_start must be a regular expression, got '('"},
          {{.checkpoint = checkpoint(), .var_name_to_prev_var_name = {{"v", "w"}}},
           kInvalid,
           "WarmStart: var_name_to_prev_var_name must name variables that are warm started ('w'), "
           "got 'v'"},
          {{.checkpoint = checkpoint(), .var_name_to_vocab_info = {{"v", good}}},
           kInvalid,
           "WarmStart: var_name_to_vocab_info must name variables that are warm started ('w'), got "
           "'v'"},
          {{.checkpoint = checkpoint(), .var_name_to_prev_var_name = {{"w", "gone"}}},
           absl::StatusCode::kNotFound,
           "gone"},
          {changed([](VocabInfo* info) { info->new_vocab_size = 0; }), kInvalid,
           "WarmStart: variable 'w': new_vocab_size must be > 0, got 0"},
          {changed([](VocabInfo* info) { info->axis = 2; }), kInvalid,
           "axis must be 0 or 1, got 2"},
          {changed([](VocabInfo* info) { info->num_oov_buckets = -1; }), kInvalid,
           "num_oov_buckets must be >= 0, got -1"},
          {changed([](VocabInfo* info) { info->old_vocab_size = 0; }), kInvalid,
           "old_vocab_size must be > 0 or -1, got 0"},
          {changed([](VocabInfo* info) { info->num_oov_buckets = 1; }), kInvalid,
           "its dimension 0 must be new_vocab_size + num_oov_buckets, 3, got shape [2,1]"},
          {changed([](VocabInfo* info) { info->new_vocab_size = 3; }), kInvalid,
           "' must have the 3 words that are to be used, got 2 lines"},
          {changed([&](VocabInfo* info) { info->old_vocab = twice; }), kInvalid,
           "' must have each word once, got 'a' in lines 1 and 3"},
          {changed([&](VocabInfo* info) { info->old_vocab = dir_ + "/gone"; }),
           absl::StatusCode::kNotFound, "gone"},
          {changed([&](VocabInfo* info) {
             info->old_vocab = abcd;
             info->new_vocab = WriteWords("da", "d\na\n");
           }),
           kInvalid,
           "'w' of the checkpoint must have a place for each of the 4 words of the old vocabulary, "
           "got shape [3,1]"},
          {{.checkpoint = checkpoint(),
          .var_name_to_vocab_info = {{"w", good}},
          .var_name_to_prev_var_name = {{"w", "i"}}},
           kInvalid,
           "'i' of the checkpoint must be float[2,1] but for dimension 0, got int32[2,1]"},
          {changed([](VocabInfo* info) { info->backup_initializer = nullptr; }), kInvalid,
           "backup_initializer must be a function, got none"}}) {
    const Scope scope;
    MakeVariable(scope.WithName("w"), Shape{2, 1}, DT_FLOAT, ZerosInitializer());
    const Operation init = GlobalVariablesInitializer(scope);
    const auto start = [&]() -> Status {
      MR_ASSIGN_OR_RETURN(const auto saver, WarmStartSaver::Make(scope, wrong.from, fs()));
      MR_ASSIGN_OR_RETURN(const auto session, NewSession());
      MR_RETURN_IF_ERROR(session->Extend(scope));
      MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
      return saver->Restore(session.get());
    };
    EXPECT_STATUS(start(), wrong.code, wrong.message);
  }
}

}  // namespace
}  // namespace millrace
