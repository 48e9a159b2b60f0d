// SPDX-License-Identifier: Apache-2.0
//
// batch_predict, as a process: killed again and again, and against a model server in this process.

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/owned_fd.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/security.h"
#include "serving/server/model_server.h"
#include "serving/testing/test_model.h"

// covers: serving: `batch_predict` that is killed several times writes each row once in the end
// covers: scenario F15: (b) on a cluster: three processes of `batch_predict` share the rows out and
//   write what one writes, one of them killed with SIGKILL; `launch --no_ps` starts them, and a ps
//   is told that it is not needed
// covers: serving: `batch_predict` asks a server what it asks a local model

namespace millrace {
namespace {

class BatchPredictTest : public ServingTest {
 protected:
  ~BatchPredictTest() override { server_.reset(); }
  void SetUp() override {
    ASSERT_OK(Fs()->RecursivelyCreateDirectory(dir_));
    ASSERT_OK(ExportTestModel(JoinPath(dir_, "model/3")));
  }
  static FileSystem* Fs() { return FileSystem::Posix(); }

  struct Child {
    pid_t pid = -1;
    OwnedFd says;  // its stdout and stderr; at its end when the process has ended
  };
  static Child Start(std::vector<std::string> args,
                     const std::string& program = "tools/batch_predict") {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    args.insert(args.begin(), program);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    Child child;
    child.pid = fork();
    if (child.pid == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(99);
    }
    close(ends[1]);
    child.says = OwnedFd(ends[0]);
    return child;
  }
  struct Ended {
    int code = 0;  // -N: by signal N
    std::string text;
  };
  static Ended Wait(Child child) {
    Ended ended;
    char piece[4096];
    for (ssize_t n = 0; (n = read(child.says.get(), piece, sizeof(piece))) > 0;) {
      ended.text.append(piece, static_cast<size_t>(n));
    }
    int status = 0;
    EXPECT_EQ(waitpid(child.pid, &status, 0), child.pid);
    ended.code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    return ended;
  }
  // All shards of a kind.
  static std::string All(const std::string& out, const std::string& kind, int num_shards) {
    std::string all;
    for (int i = 0; i < num_shards; ++i) {
      const StatusOr<std::string> text = ReadFileToString(
          Fs(), JoinPath(out, absl::StrFormat("prediction.%s-%05d-of-%05d", kind, i, num_shards)));
      EXPECT_OK(text);
      absl::StrAppend(&all, text.value_or(""));
    }
    return all;
  }

  std::unique_ptr<ModelServer> server_;
};

TEST_F(BatchPredictTest, KilledSeveralTimesItWritesEachRowOnce) {
  constexpr int kRows = 400, kBadEvery = 50, kKills = 3;
  std::string rows, results;
  int num_bad = 0;
  for (int i = 1; i <= kRows; ++i) {
    if (i % kBadEvery == 0) {
      absl::StrAppend(&rows, "[", i, "]\n");  // one number; the model takes two
      ++num_bad;
      continue;
    }
    absl::StrAppend(&rows, "[", i, ", 0.5]\n");
    absl::StrAppend(&results, "[-", i, ".0,-0.5]\n");
  }
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "rows.json"), rows));
  const std::string out = JoinPath(dir_, "out"), parts = JoinPath(out, ".batch_predict/parts");
  ASSERT_OK(Fs()->RecursivelyCreateDirectory(parts));
  const std::vector<std::string> args = {"--model_dir",  JoinPath(dir_, "model"),
                                         "--signature",  "regress_x",
                                         "--input",      JoinPath(dir_, "rows.json"),
                                         "--output_dir", out,
                                         "--batch_size", "2",
                                         "--part_rows",  "2",
                                         "--num_shards", "3"};
  for (int i = 0; i < kKills; ++i) {
    // Killed when its first part gets its name. A run that ends before that is fine, too: what the
    // last one says and writes does not depend on it.
    const OwnedFd watch(inotify_init1(IN_CLOEXEC));
    ASSERT_GE(inotify_add_watch(watch.get(), parts.c_str(), IN_MOVED_TO), 0);
    Child child = Start(args);
    pollfd either[2] = {{watch.get(), POLLIN, 0}, {child.says.get(), 0, 0}};
    while (poll(either, 2, -1) < 0 && errno == EINTR) {
    }
    kill(child.pid, SIGKILL);
    const Ended ended = Wait(std::move(child));
    EXPECT_TRUE(ended.code == -SIGKILL || ended.code == 0) << ended.code << " " << ended.text;
    if (!Fs()->FileExists(parts)) break;  // it was done
  }
  const Ended ended = Wait(Start(args));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_TRUE(absl::StrContains(ended.text, absl::StrCat("batch_predict: ", kRows - num_bad,
                                                         " results and ", num_bad, " errors; ")))
      << ended.text;
  EXPECT_TRUE(absl::StrContains(ended.text, " of these rows were done before in '")) << ended.text;
  EXPECT_EQ(All(out, "results", 3), results);
  const std::string errors = All(out, "errors_stats", 3);
  size_t at = 0;
  for (int i = kBadEvery; i <= kRows; i += kBadEvery) {
    at = errors.find(absl::StrCat("\"row\":", i, ",\"error\":\"INVALID_ARGUMENT: input 'inputs'"),
                     at);
    ASSERT_NE(at, std::string::npos) << i << "\n" << errors;
  }
  EXPECT_FALSE(Fs()->FileExists(parts));
}

TEST_F(BatchPredictTest, ThreeProcessesOfWhichOneIsKilledWriteWhatOneWrites) {
  std::string rows;
  for (int i = 1; i <= 300; ++i) {
    absl::StrAppend(&rows, "[", i, i % 50 == 0 ? "]\n" : ", 0.5]\n");
  }
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "rows.json"), rows));
  const std::string alone = JoinPath(dir_, "alone"), out = JoinPath(dir_, "out");
  const auto args_to = [&](const std::string& directory) {
    return std::vector<std::string>{"--model_dir",  JoinPath(dir_, "model"),
                                    "--signature",  "regress_x",
                                    "--input",      JoinPath(dir_, "rows.json"),
                                    "--output_dir", directory,
                                    "--batch_size", "2",
                                    "--num_shards", "3"};
  };
  const Ended one = Wait(Start(args_to(alone)));
  ASSERT_EQ(one.code, 0) << one.text;
  EXPECT_TRUE(absl::StrContains(one.text, "294 results and 6 errors")) << one.text;

  const std::string parts = JoinPath(out, ".batch_predict/parts");
  ASSERT_OK(Fs()->RecursivelyCreateDirectory(parts));
  const auto start = [&](int task) {
    std::vector<std::string> args = args_to(out);
    // A takeover after one second: on a busy machine some work is done twice, and written once.
    for (const std::string& arg :
         {std::string("--part_rows"), std::string("2"), std::string("--task_index"),
          absl::StrCat(task), std::string("--num_tasks"), std::string("3"),
          std::string("--takeover_seconds"), std::string("1")}) {
      args.push_back(arg);
    }
    return Start(args);
  };
  const OwnedFd watch(inotify_init1(IN_CLOEXEC));
  ASSERT_GE(inotify_add_watch(watch.get(), parts.c_str(), IN_MOVED_TO), 0);
  Child killed = start(0), second = start(1), third = start(2);
  // When the first part of one of them gets its name. Whether task 0 is in the middle of another
  // one then, before its first or has ended: the rest goes the same way.
  pollfd either[2] = {{watch.get(), POLLIN, 0}, {killed.says.get(), 0, 0}};
  while (poll(either, 2, -1) < 0 && errno == EINTR) {
  }
  kill(killed.pid, SIGKILL);
  const Ended ended = Wait(std::move(killed));
  EXPECT_TRUE(ended.code == -SIGKILL || ended.code == 0) << ended.code << " " << ended.text;
  for (Child* child : {&second, &third}) {
    const Ended other = Wait(std::move(*child));
    EXPECT_EQ(other.code, 0) << other.text;
    EXPECT_TRUE(absl::StrContains(other.text, "294 results and 6 errors")) << other.text;
  }
  for (const char* kind : {"results", "errors_stats"}) {
    EXPECT_EQ(All(out, kind, 3), All(alone, kind, 3)) << kind;
  }
  // Started again it has nothing to do.
  const Ended again = Wait(start(0));
  EXPECT_EQ(again.code, 0) << again.text;
  EXPECT_TRUE(absl::StrContains(again.text, "; 0 by task 0 now in '")) << again.text;
}

TEST_F(BatchPredictTest, LaunchStartsTheTasks) {
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "rows.json"), "[1, 2]\n[3]\n[5, 6]\n"));
  const std::vector<std::string> job = {"--",          "tools/batch_predict",
                                        "--model_dir", JoinPath(dir_, "model"),
                                        "--signature", "regress_x",
                                        "--input",     JoinPath(dir_, "rows.json"),
                                        "--part_rows", "1",
                                        "--output_dir"};
  const struct {
    std::vector<std::string> flags;
    std::vector<std::string> says;
  } cases[] = {
      {{"--no_ps", "--workers=3"}, {" by worker 0 now", " by worker 1 now", " by worker 2 now"}},
      {{"--ps=1", "--chief", "--workers=1", "--evaluator"},
       {" by chief 0 now", " by worker 0 now", "batch_predict: ps 0 is not needed",
        "batch_predict: evaluator 0 is not needed"}},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    std::vector<std::string> args = cases[i].flags;
    args.insert(args.end(), job.begin(), job.end());
    args.push_back(JoinPath(dir_, absl::StrCat("out", i)));
    const Ended ended = Wait(Start(args, "tools/launch"));
    EXPECT_EQ(ended.code, 0) << ended.text;
    for (const std::string& text : cases[i].says) {
      EXPECT_TRUE(absl::StrContains(ended.text, text)) << text << "\n" << ended.text;
    }
    EXPECT_EQ(All(args.back(), "results", 1), "[-1.0,-2.0]\n[-5.0,-6.0]\n");
  }
}

TEST_F(BatchPredictTest, AsksAServer) {
  ModelServerOptions options;
  options.models.push_back({.name = "m", .base_path = JoinPath(dir_, "model")});
  options.grpc_address = "127.0.0.1:0";
  options.credentials = std::make_shared<Credentials>();
  options.versions.source.trust_new_versions = true;
  options.versions.poll_period = absl::ZeroDuration();
  options.start_timeout = absl::Seconds(60);
  ASSERT_OK_AND_ASSIGN(server_, ModelServer::Start(std::move(options)));
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "rows.json"), "[1, 2]\n[3]\n[5, 6]\n"));
  const std::string at = absl::StrCat("127.0.0.1:", server_->grpc_port());
  const std::string out = JoinPath(dir_, "out"), input = JoinPath(dir_, "rows.json");
  const std::vector<std::string> args = {"--server",     at,          "--model", "m",
                                         "--signature",  "regress_x", "--input", input,
                                         "--output_dir", out};
  const Ended ended = Wait(Start(args));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text, absl::StrCat("batch_predict: 2 results and 1 errors in '", out, "'\n"));
  EXPECT_EQ(All(out, "results", 1), "[-1.0,-2.0]\n[-5.0,-6.0]\n");
}

TEST_F(BatchPredictTest, MistakesAreExplained) {
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "rows.json"), "[1, 2]\n"));
  const std::string model = JoinPath(dir_, "model");
  const struct {
    std::vector<std::string> args;
    int code;
    std::string text;
  } cases[] = {
      {{}, 1, "one of --model_dir and --server must be given, got none"},
      {{"--model_dir", model, "--server", "a:1"}, 1, "got both"},
      {{"--model_dir", model, "--label", "l"}, 1, "--label must be given with --server only"},
      {{"--model_dir", model, "--signature", "s"}, 1, "--signature must be one of "},
      {{"--server", "a:1"}, 1, "--model must be given with --server"},
      {{"--model_dir", model, "--format", "xml"},
       1,
       "--format must be json, csv, tfrecord or text"},
      {{"--model_dir", model, "--header"}, 1, "with --format csv only"},
      {{"--model_dir", model, "--batch_size", "0"}, 1, "--batch_size"},
      {{"--task_index", "1"}, 1, "must be given together, got only --task_index"},
      {{"--task_index", "2", "--num_tasks", "2"}, 1, "in [0, --num_tasks = 2), got 2"},
      {{"--model_dir", model, "--takeover_seconds", "5"}, 1, "with several tasks only"},
      {{"--task_index", "0", "--num_tasks", "2", "--max_wait_seconds", "60"},
       1,
       "--max_wait_seconds must be more than --takeover_seconds = 60, got 60"},
      {{"--rows", "1"}, 2, "--rows"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> args = {"--input", JoinPath(dir_, "rows.json"), "--output_dir",
                                     JoinPath(dir_, "out")};
    args.insert(args.end(), c.args.begin(), c.args.end());
    const Ended ended = Wait(Start(args));
    EXPECT_EQ(ended.code, c.code) << c.text << "\n" << ended.text;
    EXPECT_TRUE(absl::StrContains(ended.text, c.text)) << c.text << "\n" << ended.text;
  }
}

}  // namespace
}  // namespace millrace
