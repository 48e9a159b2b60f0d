// SPDX-License-Identifier: Apache-2.0
#include "train/train_events.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "saver/event_reader.h"
#include "saver/event_writer.h"

// covers: training: the curves of Train survive its checkpoints' disks and end no training

namespace millrace {
namespace {

class TrainEventsTest : public ::testing::Test {
 protected:
  TrainEventsTest()
      : fs_(FileSystem::Posix()),
        dir_(JoinPath(::testing::TempDir(), absl::StrCat("train_events_", RandomHexName()))) {}
  ~TrainEventsTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  // "loss=2@1", "CHECKPOINT m-1@1".
  std::string Events() const {
    std::vector<std::string> texts;
    auto reader = EventReader::Open(fs_, dir_);
    while (reader.ok()) {
      const auto event = (*reader)->Next();
      if (!event.ok()) break;
      if (event->has_session_log()) {
        const std::string& path = event->session_log().checkpoint_path();
        texts.push_back(absl::StrCat("CHECKPOINT ", path, "@", event->step()));
      }
      for (const auto& value : event->summary().value()) {
        texts.push_back(absl::StrCat(value.tag(), "=", value.simple_value(), "@", event->step()));
      }
    }
    return absl::StrJoin(texts, " ");
  }

  FileSystem* const fs_;
  const std::string dir_;
};

TEST_F(TrainEventsTest, WhatWasAddedIsInTheFileWhenACheckpointIs) {
  TrainEvents events(dir_, fs_, Clock::Real());
  EXPECT_FALSE(fs_->FileExists(dir_)) << "nothing was added";
  events.AddScalar(kLossTag, 2, 1);
  events.AddCheckpoint("m-1", 1);
  EXPECT_EQ(Events(), "loss=2@1 CHECKPOINT m-1@1");
  events.AddScalar("global_step/sec", 50, 2);
  events.AddCheckpoint("m", -1);
  EXPECT_EQ(Events(), "loss=2@1 CHECKPOINT m-1@1 global_step/sec=50@2 CHECKPOINT m@0");
}

TEST_F(TrainEventsTest, AfterAnErrorOfTheDiskAnotherFileGoesOnWithTheNextCheckpoint) {
  int64_t num_operations = 0;  // until the first checkpoint, of a disk that never fails
  for (int64_t k = 0; k <= num_operations; ++k) {
    fs_->RecursivelyDelete(dir_).IgnoreError();
    FaultyFileSystem fs(fs_, dir_);
    if (k > 0) fs.FailOperation(k, absl::ResourceExhaustedError("disk full"));
    {
      TrainEvents events(dir_, &fs, Clock::Real());
      for (int64_t step = 1; step <= 3; ++step) {
        events.AddScalar(kLossTag, static_cast<double>(step), step);
        events.AddCheckpoint(absl::StrCat("m-", step), step);
        if (k == 0 && step == 1) num_operations = fs.num_operations();
      }
      EXPECT_EQ(LossShownAt(fs_, dir_, 3), 3) << k << ": " << Events();
    }
    ASSERT_GT(num_operations, 2);
  }
}

TEST_F(TrainEventsTest, ADirectoryThatCannotBeMadeIsAWarningAndNoMore) {
  ASSERT_OK(WriteFileAtomically(fs_, dir_, "no directory"));
  TrainEvents events(dir_, fs_, Clock::Real());
  ::testing::internal::CaptureStderr();
  for (int64_t step = 1; step <= 3; ++step) events.AddScalar(kLossTag, 1, step);
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string warning = "Train: events for TensorBoard are lost until the next checkpoint";
  const size_t at = log.find(warning);
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find(warning, at + 1), std::string::npos) << log;
}

TEST_F(TrainEventsTest, TheLossOfAStepIsTheLastOneUpToIt) {
  EXPECT_EQ(LossShownAt(fs_, dir_, 10), std::nullopt);
  {
    TrainEvents events(dir_, fs_, Clock::Real());
    events.AddScalar(kLossTag, 4, 10);
    events.AddScalar("accuracy", 7, 15);
    events.AddScalar(kLossTag, 3, 20);
    events.AddCheckpoint("m-20", 20);
  }
  {
    // Training went back to step 10, in a later file.
    TrainEvents events(dir_, fs_, Clock::Real());
    events.AddScalar(kLossTag, 2, 20);
    events.AddCheckpoint("m-20", 20);
  }
  EXPECT_EQ(LossShownAt(fs_, dir_, 9), std::nullopt);
  EXPECT_EQ(LossShownAt(fs_, dir_, 10), 4);
  EXPECT_EQ(LossShownAt(fs_, dir_, 19), 4);
  EXPECT_EQ(LossShownAt(fs_, dir_, 20), 2);
  EXPECT_EQ(LossShownAt(fs_, dir_, 1000), 2);
  // What is torn or wrong is passed over.
  ASSERT_OK_AND_ASSIGN(const auto files, EventFiles(fs_, dir_));
  ASSERT_EQ(files.size(), 2u);
  ASSERT_OK(
      WriteFileAtomically(fs_, JoinPath(dir_, Basename(files[0])), "wrong bytes, all of them"));
  EXPECT_EQ(LossShownAt(fs_, dir_, 1000), 2);
}

}  // namespace
}  // namespace millrace
