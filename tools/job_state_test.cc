// SPDX-License-Identifier: Apache-2.0
#include "tools/job_state.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/job_names.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string TempDir(const std::string& name) {
  static int next = 0;
  const std::string path = JoinPath(
      ::testing::TempDir(), absl::StrCat("job_state_test_", getpid(), "_", ++next, "_", name));
  EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(path));
  return path;
}

JobState SomeState() {
  return {.name = "census1",
          .id = "0123",
          .attempt = 2,
          .phase = JobState::Phase::kFailed,
          .why = "worker 0: not asked",
          .backend = "local",
          .backend_id = "",
          .tier = "STANDARD_1",
          .command = {"census", "--name=a \"b\""},
          .job_dir = "/out",
          .log_dir = "/out/job/logs.2",
          .supervisor = {.host = "n1", .boot_id = "b", .pid = 4711, .start_ticks = 1234567890123},
          .submitted = absl::FromUnixMillis(1700000000123),
          .started = absl::FromUnixMillis(1700000001000),
          .updated = absl::FromUnixMillis(1700000002000),
          .ended = absl::FromUnixMillis(1700000003000),
          .exit_code = 137,
          .tasks = {{.job = "worker",
                     .index = 1,
                     .address = "127.0.0.1:1",
                     .state = TaskRecord::State::kEnded,
                     .starts = 1,
                     .seconds = 1.5,
                     .exit_code = 137,
                     .signal = 9,
                     .why = "Killed"},
                    {.job = "evaluator", .state = TaskRecord::State::kRunning, .pid = 3}}};
}

TEST(JobStateTest, SurvivesTheRoundTripThroughItsText) {
  const JobState state = SomeState();
  const std::string text = ToJson(state).dump();
  ASSERT_OK_AND_ASSIGN(const JobState copy, JobStateFromJson(text, "x"));
  EXPECT_EQ(ToJson(copy).dump(), text);
  EXPECT_EQ(copy.tasks[0].signal, 9);
  EXPECT_EQ(copy.tasks[1].pid, 3);
  EXPECT_EQ(copy.submitted, state.submitted);
  EXPECT_THAT(text, HasSubstr("\"submitted\":\"2023-11-14T22:13:20.123Z\""));
}

TEST(JobStateTest, AFileThatIsNoStateIsNamed) {
  const std::string good = ToJson(SomeState()).dump();
  const std::pair<std::string, std::string> cases[] = {
      {"", "x: must be a job's state, got no JSON object"},
      {"[]", "x: must be a job's state, got no JSON object"},
      {good.substr(0, good.size() / 2), "got no JSON object"},
      {std::string(100'000, '['), "got deep nesting"},
      {"{}", "format must be 1, got 0"},
      {absl::StrReplaceAll(good, {{"\"format\":1", "\"format\":2"}}),
       "format must be 1, got 2; another release has written it"},
      {absl::StrReplaceAll(good, {{"\"FAILED\"", "\"FINE\""}}), "got 'FINE'"},
      {absl::StrReplaceAll(good, {{"\"attempt\":2", "\"attempt\":\"2\""}}),
       "'attempt' must be of its type"},
      {absl::StrReplaceAll(good, {{"\"attempt\":2", "\"attempt\":2000000000000"}}),
       "'attempt' must be of its type"},
      {absl::StrReplaceAll(good, {{"2023-11-14T22:13:20.123Z", "yesterday"}}),
       "'submitted' must be of its type"},
      {absl::StrReplaceAll(good, {{"\"state\":\"ended\"", "\"state\":\"gone\""}}),
       "tasks[0].state must be waiting, running or ended, got 'gone'"},
      {absl::StrReplaceAll(good, {{"\"index\":1", "\"index\":1e9"}}), "tasks[0].index must be"},
      {absl::StrReplaceAll(good, {{"\"command\":[\"census\"", "\"command\":[7"}}),
       "'command' must be of its type"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_STATUS(JobStateFromJson(text, "x"), absl::StatusCode::kDataLoss, message) << text;
  }
}

TEST(JobStateTest, IsReadWhereItWasMoved) {
  JobState state = SomeState();
  const std::string old_dir = TempDir("old"), new_dir = TempDir("new");
  state.job_dir = old_dir;
  state.log_dir = JoinPath(JobFolder(old_dir), "logs");
  ASSERT_OK(FileSystem::Posix()->CreateDirectory(JobFolder(old_dir)));
  EXPECT_STATUS(ReadJobState(FileSystem::Posix(), old_dir), absl::StatusCode::kNotFound, "");
  ASSERT_OK(WriteJobState(FileSystem::Posix(), state));
  ASSERT_OK(FileSystem::Posix()->RenameFile(JobFolder(old_dir), JobFolder(new_dir)));
  ASSERT_OK_AND_ASSIGN(const JobState moved, ReadJobState(FileSystem::Posix(), new_dir));
  EXPECT_EQ(moved.job_dir, new_dir);
  EXPECT_EQ(moved.log_dir, JoinPath(JobFolder(new_dir), "logs"));
}

TEST(JobStateTest, AJobWhoseSupervisorIsGoneIsLostForReadersOfItsMachine) {
  JobState state = SomeState();
  state.phase = JobState::Phase::kRunning;
  EXPECT_EQ(PhaseName(state.seen_phase()), "RUNNING") << "another machine's";
  EXPECT_EQ(state.text(), "RUNNING on n1, pid 4711");
  state.supervisor = ProcessIdentity::OfThisProcess();
  EXPECT_EQ(PhaseName(state.seen_phase()), "RUNNING");
  // The number was given to another process.
  ++state.supervisor.start_ticks;
  EXPECT_EQ(PhaseName(state.seen_phase()), "LOST");
  state.phase = JobState::Phase::kSucceeded;
  EXPECT_EQ(PhaseName(state.seen_phase()), "SUCCEEDED");

  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    char c;
    (void)!read(ends[0], &c, 1);
    _exit(0);
  }
  state.phase = JobState::Phase::kRunning;
  // This process's identity, with the child's number and start.
  state.supervisor.pid = child;
  state.supervisor.start_ticks = 0;
  EXPECT_EQ(PhaseName(state.seen_phase()), "LOST") << "a process without a start is none";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(JobNamesTest, NamesAreLettersDigitsAndNoCommands) {
  for (const char* name : {"a", "census_1", "Job-7"}) EXPECT_OK(CheckJobName(name)) << name;
  for (const char* name : {"", "1a", "-a", "_a", "a b", "a/b", "..", "a.json", "\xff"}) {
    EXPECT_STATUS(CheckJobName(name), absl::StatusCode::kInvalidArgument,
                  "a job's name must be a letter and at most 99 letters")
        << name;
  }
  EXPECT_STATUS(CheckJobName(std::string(101, 'a')), absl::StatusCode::kInvalidArgument, "got 'aa");
  for (const std::string& command : SubmitCommands()) {
    EXPECT_STATUS(CheckJobName(command), absl::StatusCode::kInvalidArgument,
                  absl::StrCat("which are commands of submit, got '", command, "'"));
  }
}

TEST(JobNamesTest, AreFoundListedAndReplaced) {
  const std::string dir = JoinPath(TempDir("names"), "deep/er");
  ASSERT_OK_AND_ASSIGN(const JobNames names, JobNames::Open(dir));
  EXPECT_STATUS(
      names.Find("census1"), absl::StatusCode::kNotFound,
      absl::StrCat("job 'census1' must have been submitted, got no such job in '", dir, "'"));
  ASSERT_OK(names.Set("census1", "/a"));
  ASSERT_OK(names.Set("b", "/b"));
  ASSERT_OK(names.Set("census1", "/c"));
  ASSERT_OK(FileSystem::Posix()->CreateDirectory(names.DefaultJobDir("b")));
  ASSERT_OK_AND_ASSIGN(const auto bad,
                       FileSystem::Posix()->NewWritableFile(JoinPath(dir, "bad.json")));
  ASSERT_OK(bad->Close());
  EXPECT_EQ(names.Find("census1").value(), "/c");
  EXPECT_STATUS(names.Find("bad"), absl::StatusCode::kDataLoss, "must say where a job is");
  EXPECT_STATUS(names.Find("censsu1"), absl::StatusCode::kNotFound, "did you mean 'census1'?");
  ASSERT_OK_AND_ASSIGN(const auto all, names.List());
  EXPECT_THAT(all, ElementsAre(Pair("b", "/b"), Pair("census1", "/c")));
}

TEST(JobNamesTest, TheirDirectoryIsOfTheEnvironment) {
  const std::string dir = TempDir("home");
  for (const char* name : {"MILLRACE_JOBS_DIR", "XDG_STATE_HOME", "HOME"}) unsetenv(name);
  EXPECT_STATUS(JobNames::Open("").status(), absl::StatusCode::kFailedPrecondition,
                "got neither MILLRACE_JOBS_DIR nor HOME");
  setenv("HOME", dir.c_str(), 1);
  EXPECT_EQ(JobNames::Open("")->directory(), dir + "/.local/state/millrace/jobs");
  setenv("XDG_STATE_HOME", (dir + "/s").c_str(), 1);
  EXPECT_EQ(JobNames::Open("")->directory(), dir + "/s/millrace/jobs");
  setenv("MILLRACE_JOBS_DIR", (dir + "/m").c_str(), 1);
  EXPECT_EQ(JobNames::Open("")->directory(), dir + "/m");
  EXPECT_EQ(JobNames::Open(dir + "/f")->directory(), dir + "/f");
  EXPECT_STATUS(JobNames::Open("s3://bucket/jobs").status(), absl::StatusCode::kInvalidArgument,
                "must be of this machine");
}

}  // namespace
}  // namespace millrace
