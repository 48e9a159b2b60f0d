// SPDX-License-Identifier: Apache-2.0
#include "tests/failures/ledger.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "saver/tensor_bundle.h"

// covers: clusters: a ledger that does not agree with a checkpoint is found: a hole, a double step,
//   an older checkpoint, one of a chief that was succeeded; in synchronous training a share that no
//   step gives

namespace millrace {
namespace {

constexpr int64_t kRows = 10;  // of a trainer; the worker's begin there

class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() : directory_(JoinPath(::testing::TempDir(), absl::StrCat("l_", RandomHexName()))) {
    FileSystem::Posix()->RecursivelyCreateDirectory(directory_).IgnoreError();
  }
  ~LedgerTest() override { FileSystem::Posix()->RecursivelyDelete(directory_).IgnoreError(); }

  std::string path(int64_t step) const { return absl::StrCat(directory_, "/model.ckpt-", step); }
  std::string file(const std::string& task) const { return JoinPath(directory_, task + ".txt"); }

  // Appends lines of `task`.
  void Say(const std::string& task, const std::vector<std::string>& lines) {
    auto appended = FileSystem::Posix()->NewAppendableFile(file(task));
    ASSERT_OK(appended.status());
    for (const std::string& line : lines) ASSERT_OK((*appended)->Append(line + "\n"));
    ASSERT_OK((*appended)->Close());
  }
  // A checkpoint in which each of `rows` was marked once.
  void Write(int64_t step, const std::vector<int64_t>& rows, int64_t sum_off = 0,
             int64_t step_off = 0) {
    ASSERT_OK_AND_ASSIGN(Tensor marks, Tensor::Zeros(DT_INT64, Shape{2 * kRows}));
    int64_t sum = sum_off;
    for (const int64_t row : rows) {
      ++marks.mutable_flat<int64_t>()[static_cast<size_t>(row)];
      sum += AmountOf(row);
    }
    ASSERT_OK_AND_ASSIGN(const auto writer, BundleWriter::Open(FileSystem::Posix(), path(step)));
    ASSERT_OK(writer->Add("global_step",
                          Tensor::Scalar<int64_t>(static_cast<int64_t>(rows.size()) + step_off)));
    ASSERT_OK(writer->Add(kMarksName, marks));
    ASSERT_OK(writer->Add(kSumName, Tensor::Scalar<int64_t>(sum)));
    ASSERT_OK(writer->Finish());
  }
  // One of synchronous training: row -> its share.
  void WriteShares(int64_t step, const std::map<int64_t, double>& shares, double sum_off = 0) {
    ASSERT_OK_AND_ASSIGN(Tensor marks, Tensor::Zeros(DT_DOUBLE, Shape{2 * kRows}));
    double sum = sum_off;
    for (const auto& [row, share] : shares) {
      marks.mutable_flat<double>()[static_cast<size_t>(row)] = share;
      sum += share * static_cast<double>(AmountOf(row));
    }
    ASSERT_OK_AND_ASSIGN(const auto writer, BundleWriter::Open(FileSystem::Posix(), path(step)));
    ASSERT_OK(writer->Add("global_step", Tensor::Scalar<int64_t>(step)));
    ASSERT_OK(writer->Add(kMarksName, marks));
    ASSERT_OK(writer->Add(kSumName, Tensor::Scalar<double>(sum)));
    ASSERT_OK(writer->Finish());
  }
  StatusOr<LedgerReport> Audit(int64_t sync = 0) {
    return AuditLedger(directory_, {{"chief-0", file("chief-0")}, {"worker-0", file("worker-0")}},
                       sync);
  }
  // Three synchronous steps: of both, of the chief alone, of both. `worker`: more of its lines.
  void SaySynchronous(const std::vector<std::string>& worker = {}) {
    Say("chief-0", {"100 start chief-0", "110 session initialized 0 -", "120 try 0", "130 ack 0 1",
                    "140 try 1", "150 ack 1 2", "160 try 2", "170 ack 2 3", "300 save 3",
                    absl::StrCat("400 saved ", path(3))});
    Say("worker-0", {"100 start worker-0", "115 session waited 0 -", "120 try 10", "130 ack 10 1",
                     "155 try 11", "170 ack 11 3"});
    Say("worker-0", worker);
  }
  // The chief has completed 0 and 1, the worker 10; the answer of 11 was lost; 12 is under way
  // while the chief saves.
  void SayUsual() {
    Say("chief-0", {"100 start chief-0", "110 session initialized 0 -", "120 try 0", "130 ack 0 1",
                    "140 try 1", "150 ack 1 2", "300 save 3", absl::StrCat("400 saved ", path(3))});
    Say("worker-0", {"100 start worker-0", "115 session waited 0 -", "160 try 10", "170 ack 10 3",
                     "180 try 11", "190 lost 11 UNAVAILABLE x y", "350 try 12", "450 ack 12 4"});
  }

  const std::string directory_;
};

TEST_F(LedgerTest, WhatIsCertainMustBeThereAndTheRestMayBe) {
  SayUsual();
  for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{
           {0, 1, 10}, {0, 1, 10, 11}, {0, 1, 10, 12}, {0, 1, 10, 11, 12}}) {
    Write(3, rows);
    ASSERT_OK_AND_ASSIGN(const LedgerReport report, Audit());
    EXPECT_EQ(report.tries, 5);
    EXPECT_EQ(report.acked, 4);
    EXPECT_EQ(report.lost, 1);
    EXPECT_EQ(report.uncertain, 2);
    EXPECT_EQ(report.checkpoints, 1);
    EXPECT_EQ(report.rolled_back, 0);
  }
}

TEST_F(LedgerTest, ASynchronousStepHasAShareOfEachThatGave) {
  SaySynchronous();
  WriteShares(3, {{0, 0.5}, {10, 0.5}, {1, 1}, {2, 0.5}, {11, 0.5}});
  ASSERT_OK_AND_ASSIGN(const LedgerReport report, Audit(2));
  EXPECT_EQ(report.checkpoints, 1);
  EXPECT_EQ(report.final_step, 3);
  EXPECT_EQ(report.shared, 4);
  EXPECT_EQ(report.dropped, 0);
}

TEST_F(LedgerTest, AGradientThatCameTooLateIsCounted) {
  SaySynchronous();
  WriteShares(3, {{0, 0.5}, {10, 0.5}, {1, 1}, {2, 1}});
  ASSERT_OK_AND_ASSIGN(const LedgerReport report, Audit(2));
  EXPECT_EQ(report.shared, 2);
  EXPECT_EQ(report.dropped, 1);
}

TEST_F(LedgerTest, AStepThatWasCutOffMayBeThereInPart) {
  SaySynchronous({"180 try 12", "190 lost 12 UNAVAILABLE x y"});
  WriteShares(3, {{0, 0.5}, {10, 0.5}, {1, 1}, {2, 0.5}, {11, 0.5}, {12, 1}});
  ASSERT_OK(Audit(2).status());
}

TEST_F(LedgerTest, WrongSharesAreFound) {
  SaySynchronous();
  const auto expect = [&](const std::map<int64_t, double>& shares, const std::string& text,
                          double sum_off = 0) {
    WriteShares(3, shares, sum_off);
    EXPECT_STATUS(Audit(2), absl::StatusCode::kDataLoss, text);
  };
  expect({{0, 0.5}, {10, 0.5}, {1, 1}, {2, 2}, {11, 0.5}},
         "a step is there too often: row 2 must be in [0,1]");
  expect({{0, 0.5}, {10, 0.5}, {1, 1}, {2, 0.4}, {11, 0.6}},
         "row 2 must be 1 / n of n <= 2 trainers");
  expect({{0, 0.5}, {10, 0.5}, {1, 1}, {2, 0.5}}, "the shares of all rows must be 3, as the steps");
  expect({{0, 0.5}, {1, 1}, {2, 1}, {11, 0.5}, {12, 0.5}}, "row 12 must be in [0,0]");
  expect({{0, 0.5}, {10, 0.5}, {1, 1}, {2, 1}}, "the growth of sum must be", 1);
}

TEST_F(LedgerTest, AHoleIsFound) {
  SayUsual();
  Write(3, {0, 10});
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss, "there is a hole: row 1 must be in [1,1]");
}

TEST_F(LedgerTest, AStepThatIsThereTwiceIsFound) {
  SayUsual();
  Write(3, {0, 1, 1, 10});
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss,
                "a step is there too often: row 1 must be in [1,1] by the ledger, got 2");
  // A lost answer is one step at most.
  Write(3, {0, 1, 10, 11, 11});
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss, "row 11 must be in [0,1]");
  // Nobody has asked for it.
  Write(3, {0, 1, 5, 10});
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss, "row 5 must be in [0,0]");
}

TEST_F(LedgerTest, ASumOrACountOfItsOwnIsFound) {
  SayUsual();
  Write(3, {0, 1, 10}, /*sum_off=*/100);
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss, "the growth of sum");
  Write(3, {0, 1, 10}, 0, /*step_off=*/-3);
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss, "the growth of global_step");
}

TEST_F(LedgerTest, ALifeBeginsWithTheNewestCheckpointAndLosesWhatCameAfterIt) {
  SayUsual();
  Write(3, {0, 1, 10});
  // The ps is lost at 500 and comes again; 12 was acknowledged at 450 and is gone.
  Say("worker-0", {"490 try 13", "510 lost 13 UNAVAILABLE x", "620 session waited 3 -",
                   "630 try 13", "640 ack 13 4"});
  Say("chief-0",
      {"480 try 2", "520 lost 2 UNAVAILABLE x", absl::StrCat("600 session restored 3 ", path(3)),
       "700 save 4", absl::StrCat("710 saved ", path(4))});
  Write(4, {0, 1, 10, 13});
  ASSERT_OK_AND_ASSIGN(const LedgerReport report, Audit());
  EXPECT_EQ(report.lives, 2);
  EXPECT_EQ(report.rolled_back, 1);
  EXPECT_EQ(report.checkpoints, 2);
  EXPECT_EQ(report.uncertain, 0);
  EXPECT_EQ(report.final_step, 4);
  // A ghost of the former life.
  Write(4, {0, 1, 10, 12, 13});
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss, "row 12 must be in [0,0]");
}

TEST_F(LedgerTest, ALifeThatBeginsAnewAlthoughThereWasACheckpointIsFound) {
  SayUsual();
  Write(3, {0, 1, 10});
  Say("chief-0", {"480 try 2", "520 lost 2 UNAVAILABLE x", "600 session initialized 0 -",
                  "700 save 0", absl::StrCat("710 saved ", path(0))});
  Write(0, {});
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss, "which was committed, got an initialisation");
}

TEST_F(LedgerTest, ACheckpointOfAChiefThatWasSucceededIsFound) {
  SayUsual();
  Write(3, {0, 1, 10});
  Say("worker-0", {"500 start chief-0", "510 session adopted 4 -"});  // another process
  Say("chief-0", {"600 save 4", absl::StrCat("610 saved ", path(4))});
  Write(4, {0, 1, 10, 12});
  EXPECT_STATUS(Audit(), absl::StatusCode::kDataLoss, "which had the run, got chief-0 at 100");
}

TEST_F(LedgerTest, AProcessGoesOnBehindTheRowsOfTheOneBefore) {
  {
    ASSERT_OK_AND_ASSIGN(Ledger ledger, Ledger::Open(file("chief-0"), 0, 3));
    ASSERT_OK_AND_ASSIGN(const int64_t row, ledger.NextRow());
    EXPECT_EQ(row, 0);
    ledger.Write("try", "0");
    ledger.Write("lost", "0 UNAVAILABLE of\ntwo lines");
  }
  ASSERT_OK_AND_ASSIGN(Ledger ledger, Ledger::Open(file("chief-0"), 0, 3));
  ASSERT_OK_AND_ASSIGN(const int64_t row, ledger.NextRow());
  EXPECT_EQ(row, 1);
  EXPECT_OK(ledger.NextRow().status());
  EXPECT_STATUS(ledger.NextRow(), absl::StatusCode::kOutOfRange, "must be below 3, got 3");
  ASSERT_OK_AND_ASSIGN(const auto events, ReadLedger(file("chief-0")));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].what, "lost");
  EXPECT_EQ(events[1].row(), 0);
  EXPECT_LE(events[0].time_ns, events[1].time_ns);
}

}  // namespace
}  // namespace millrace
