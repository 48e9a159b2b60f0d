// SPDX-License-Identifier: Apache-2.0
#include "run/training_run.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "core/exit_code.h"
#include "gtest/gtest.h"
#include "run/run_id_text.h"

// covers: clusters: session terms and run status travel next to TensorFlow's fields; malformed ones
//   are refused or left out

namespace millrace {
namespace {

const TrainingRun kRun = {.name = "/runs/a", .id = "0123abcd", .is_chief = true};

TEST(TrainingRunTest, TheEndOfARunIsKnownFromTheStatus) {
  const RunEnd end = {.global_step = 1000,
                      .checkpoint = "/runs/a=b\n/ckpt-1000",
                      .reason = "reached step 1000 of 1000"};
  const Status status = RunEndedError("Session", kRun, end);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "Session: run '/runs/a' (0123abcd) must be under way, got one that has ended at step "
            "1000: reached step 1000 of 1000; its checkpoint is '/runs/a=b\n/ckpt-1000'");
  EXPECT_EQ(RunEndOf(status), end);
  EXPECT_EQ(RunEndOf(Prefixed("From /job:ps/replica:0/task:0", status)), end);
  EXPECT_FALSE(IsFenced(status));
}

TEST(TrainingRunTest, AnEndIsNoFailureOfTheProgramAndAFenceIsOne) {
  EXPECT_EQ(ExitCode(Prefixed("Train", RunEndedError("Session", kRun, {}))), kExitOk);
  EXPECT_EQ(ExitCode(FencedError("Session", kRun, "another")), kExitError);
}

TEST(TrainingRunTest, AnEndOfWhichNothingIsKnownIsAnEnd) {
  EXPECT_EQ(RunEndOf(RunEndedError("Session", kRun, {})), RunEnd());
}

TEST(TrainingRunTest, LongTextsAreCutSoThatTheEndTravels) {
  const Status status = RunEndedError(
      "Session", kRun,
      {.global_step = 3, .checkpoint = std::string(2000, 'c'), .reason = std::string(2000, 'r')});
  EXPECT_EQ(RunEndOf(status), (RunEnd{.global_step = 3, .reason = std::string(512, 'r')}));
}

TEST(TrainingRunTest, OtherStatusesTellOfNoEnd) {
  EXPECT_EQ(RunEndOf(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(RunEndOf(FailedPrecondition("x")), std::nullopt);
  EXPECT_EQ(RunEndOf(FencedError("Session", kRun, "/job:chief/task:0")), std::nullopt);
  EXPECT_FALSE(IsFenced(absl::OkStatus()));
  EXPECT_FALSE(IsFenced(FailedPrecondition("fenced by nobody")));
}

TEST(TrainingRunTest, AnEndWithUnknownAndBrokenLinesKeepsTheOthers) {
  Status status = FailedPrecondition("x");
  status.SetPayload("millrace.run/end",
                    absl::Cord("later=1\nglobal_step=many\nnonsense\n=\nreason=\\q\n"
                               "checkpoint=c-1\n"));
  EXPECT_EQ(RunEndOf(status), (RunEnd{.global_step = -1, .checkpoint = "c-1", .reason = ""}));
}

TEST(TrainingRunTest, AFencedSessionNamesWhoFencedIt) {
  const Status status = FencedError("Session", kRun, "/job:chief/replica:0/task:0 since 12:00");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsFenced(Suffixed(status, "; x")));
  EXPECT_TRUE(
      absl::StrContains(status.message(), "fenced by /job:chief/replica:0/task:0 since 12:00"));
}

TEST(TrainingRunTest, IdsDiffer) {
  const std::string id = NewRunId();
  EXPECT_EQ(id.size(), 32u);
  EXPECT_NE(id, NewRunId());
  EXPECT_TRUE(CheckRun({.name = "a", .id = id, .is_chief = true}).ok());
}

// What people see of 32 digits.
TEST(TrainingRunTest, MessagesHaveTheFirstDigitsOfAnId) {
  const TrainingRun run = {
      .name = "/runs/a", .id = "0123456789abcdef0123456789abcdef", .chief = "chief-0"};
  for (const Status& status : {RunEndedError("Session", run, {}), FencedError("Session", run, "x"),
                               BusyRunError("ps-0", run, "another")}) {
    EXPECT_TRUE(absl::StrContains(status.message(), "'/runs/a' (01234567)")) << status;
  }
  EXPECT_EQ(RunIdText("a1"), "a1");
  EXPECT_EQ(RunIdText(""), "");
}

TEST(TrainingRunTest, InvalidNamesAndIdsAreRefused) {
  EXPECT_TRUE(CheckRun({}).ok());
  EXPECT_TRUE(CheckRun({.name = "/runs/a"}).ok());
  const struct {
    TrainingRun run;
    const char* message;
  } kCases[] = {
      {{.name = "a", .is_chief = true}, "Run 'a': its chief must have an id for it, got none"},
      {{.name = "a", .id = "../b"}, "id must be at most 64 letters and digits, got '../b'"},
      {{.name = "a", .id = std::string(65, 'a')}, "id must be at most 64"},
      {{.name = std::string(5000, 'a')}, "name must have at most 1024 bytes, got 5000"},
      {{.name = "a", .chief = std::string(300, 'a')}, "chief must have at most 256 bytes, got 300"},
  };
  for (const auto& c : kCases) {
    const Status status = CheckRun(c.run);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), c.message)) << status;
  }
}

}  // namespace
}  // namespace millrace
