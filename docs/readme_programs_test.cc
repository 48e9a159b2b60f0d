// SPDX-License-Identifier: Apache-2.0
//
// The three programs of the top README, built from its text, run as a reader would.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "saver/saver.h"
#include "tests/cluster/process.h"

// covers: values: the README's programs, built from its text, train, save their last step, export,
//   predict, serve, go on after Ctrl-C and may be started again, alone and under `launch`

namespace millrace {
namespace {

// For the programs to end, on a busy machine.
constexpr absl::Duration kEndTime = absl::Seconds(120);
// A program that ends before the signal reaches it is started again.
constexpr int kTries = 5;

std::optional<int64_t> NumberAfter(const std::string& line, const std::string& label) {
  const size_t at = line.find(label);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + label.size();
  const size_t end = line.find_first_not_of("0123456789", begin);
  int64_t number = 0;
  if (!absl::SimpleAtoi(line.substr(begin, end - begin), &number)) return std::nullopt;
  return number;
}

class ReadmeProgramsTest : public ::testing::Test {
 protected:
  ReadmeProgramsTest()
      : home_(std::filesystem::current_path()),
        alone_((home_ / "docs/readme_alone").string()),
        cluster_((home_ / "docs/readme_cluster").string()),
        serve_((home_ / "docs/readme_serve").string()),
        launch_((home_ / "tools/launch").string()) {
    GoToNewDirectory();
  }
  ~ReadmeProgramsTest() override { std::filesystem::current_path(home_); }

  // The programs write to where they are started.
  static void GoToNewDirectory() {
    const std::string directory = JoinPath(std::getenv("TEST_TMPDIR"), RandomHexName());
    std::filesystem::create_directory(directory);
    std::filesystem::current_path(directory);
  }
  static StatusOr<std::unique_ptr<Process>> Start(const std::string& program,
                                                  std::vector<std::string> args = {}) {
    ProcessOptions options;
    options.program = program;
    options.args = std::move(args);
    return Process::Start(options);
  }
  StatusOr<std::unique_ptr<Process>> Launch() {
    return Start(launch_, {"--ps=1", "--master", "--workers=2", "--", cluster_});
  }
  static void ExpectEndsWith(Process* process, int code) {
    const auto ended = process->WaitForExit(kEndTime);
    EXPECT_OK(ended.status());
    EXPECT_EQ(ended.value_or(-1), code) << process->output();
  }
  // Of the program alone in "run", of the cluster in "cluster".
  static int64_t LatestStep(const std::string& directory = "run") {
    const auto latest = LatestCheckpoint(FileSystem::Posix(), directory);
    return NumberAfter(latest.value_or(""), directory + "/model.ckpt-").value_or(-1);
  }

  const std::filesystem::path home_;
  const std::string alone_, cluster_, serve_, launch_;
};

TEST_F(ReadmeProgramsTest, OneProcessTrainsSavesAndPredicts) {
  ASSERT_OK_AND_ASSIGN(const auto first, Start(alone_));
  ExpectEndsWith(first.get(), 0);
  const auto trained = first->FindLastLine("100000 steps, loss ");
  ASSERT_TRUE(trained.has_value()) << first->output();
  EXPECT_TRUE(first->FindLastLine("y(10) = 29.00").has_value()) << first->output();
  EXPECT_EQ(LatestStep(), 100'000);
  EXPECT_TRUE(FileSystem::Posix()->FileExists("line/saved_model.pb"));

  // mkdir models && mv line models/1
  std::filesystem::create_directory("models");
  std::filesystem::rename("line", "models/1");
  ASSERT_OK_AND_ASSIGN(const auto serve, Start(serve_));
  ExpectEndsWith(serve.get(), 0);
  EXPECT_TRUE(serve->FindLastLine("y(10) = 29.00, says version 1").has_value()) << serve->output();
  std::filesystem::rename("models/1", "line");

  // Everything is done already; the loss is still known.
  ASSERT_OK_AND_ASSIGN(const auto second, Start(alone_));
  ExpectEndsWith(second.get(), 0);
  EXPECT_EQ(second->FindLastLine("100000 steps, loss "), trained) << second->output();
  EXPECT_TRUE(second->FindLastLine("y(10) = 29.00").has_value()) << second->output();
}

// As a reader does who tries one after the other, in one folder.
TEST_F(ReadmeProgramsTest, TheProgramForAClusterIsOneProcessWithoutTFConfigAlsoTwice) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto alone, Start(alone_));
    ExpectEndsWith(alone.get(), 0);
    ASSERT_OK_AND_ASSIGN(const auto cluster, Start(cluster_));
    ExpectEndsWith(cluster.get(), 0);
    EXPECT_EQ(LatestStep(), 100'000);
    EXPECT_EQ(LatestStep("cluster"), 5'000);
  }
  // What the one has left is no directory for the other.
  std::filesystem::rename("run", "old_run");
  std::filesystem::rename("cluster", "run");
  ASSERT_OK_AND_ASSIGN(const auto refused, Start(alone_));
  ExpectEndsWith(refused.get(), 1);
  const auto line = refused->FindLastLine("' must hold checkpoints of this model, got another");
  ASSERT_TRUE(line.has_value()) << refused->output();
  for (const char* part : {"'run/model.ckpt-5000' lacks ", "'run' is that of ", ", since 20",
                           "; give this program another logdir, or move that one away"}) {
    EXPECT_TRUE(absl::StrContains(*line, part)) << part << " is not in " << *line;
  }
}

TEST_F(ReadmeProgramsTest, CtrlCEndsOneProcessAndTheSameCommandGoesOn) {
  int64_t ended_at = -1;
  for (int i = 0; i < kTries && ended_at < 0; ++i) {
    GoToNewDirectory();
    ASSERT_OK_AND_ASSIGN(const auto process, Start(alone_));
    ASSERT_OK(process->WaitForLine("step 1/100000", kEndTime).status());
    if (!process->Signal(SIGINT).ok()) continue;
    const auto code = process->WaitForExit(kEndTime);
    ASSERT_OK(code.status());
    if (*code == 0) continue;  // it was done
    EXPECT_EQ(*code, 130) << process->output();
    const auto line = process->FindLastLine("ended by SIGINT at global step ");
    ASSERT_TRUE(line.has_value()) << process->output();
    ended_at = NumberAfter(*line, "saved run/model.ckpt-").value_or(-1);
    ASSERT_GE(ended_at, 1) << *line;
  }
  ASSERT_GE(ended_at, 1) << "the program was done " << kTries << " times before its signal came";
  EXPECT_EQ(LatestStep(), ended_at);
  ASSERT_OK_AND_ASSIGN(const auto again, Start(alone_));
  ExpectEndsWith(again.get(), 0);
  EXPECT_TRUE(again->FindLastLine(absl::StrCat("First step is ", ended_at)).has_value())
      << again->output();
  EXPECT_EQ(LatestStep(), 100'000);
}

TEST_F(ReadmeProgramsTest, TheClusterTrainsAndSaves) {
  ASSERT_OK_AND_ASSIGN(const auto launch, Launch());
  ExpectEndsWith(launch.get(), 0);
  EXPECT_GE(LatestStep("cluster"), 5'000);
}

// As Ctrl-C reaches the chief: the launcher passes it on.
TEST_F(ReadmeProgramsTest, AClusterWhoseChiefIsInterruptedGoesOnFromItsLastCheckpoint) {
  int64_t ended_at = -1;
  for (int i = 0; i < kTries && ended_at < 0; ++i) {
    GoToNewDirectory();
    ASSERT_OK_AND_ASSIGN(const auto launch, Launch());
    ASSERT_OK_AND_ASSIGN(const std::string started,
                         launch->WaitForLine("launch: master 0 started", kEndTime));
    const int64_t pid = NumberAfter(started, "pid ").value_or(0);
    ASSERT_GT(pid, 1) << started;
    ASSERT_OK(launch->WaitForLine("[master 0] step ", kEndTime).status());
    if (kill(static_cast<pid_t>(pid), SIGINT) != 0) continue;
    const auto code = launch->WaitForExit(kEndTime);
    ASSERT_OK(code.status());
    if (*code == 0) continue;  // it was done
    EXPECT_EQ(*code, 130) << launch->output();
    const auto line = launch->FindLastLine("ended by SIGINT at global step ");
    ASSERT_TRUE(line.has_value()) << launch->output();
    ended_at = NumberAfter(*line, "saved cluster/model.ckpt-").value_or(-1);
    ASSERT_GE(ended_at, 1) << launch->output();
  }
  ASSERT_GE(ended_at, 1) << "the job was done " << kTries << " times before its signal came";
  ASSERT_OK_AND_ASSIGN(const auto again, Launch());
  ExpectEndsWith(again.get(), 0);
  const auto line = again->FindLastLine("Supervisor: restored");
  ASSERT_TRUE(line.has_value()) << again->output();
  EXPECT_GE(NumberAfter(*line, "at global step ").value_or(-1), ended_at) << *line;
  EXPECT_GE(LatestStep("cluster"), 5'000);
}

}  // namespace
}  // namespace millrace
