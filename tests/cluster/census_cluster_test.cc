// SPDX-License-Identifier: Apache-2.0
//
// examples/census in clusters of several shapes: every process ends with 0, the trained steps are
// those that were asked for, and the model that is exported is the one that a single process
// exports, but for the values of its variables.
//
// --steps=N global steps of each job (300).

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/cluster/process.h"

// covers: training: 1 to 3 ps, with chief or master, workers and evaluator, export the model that
//   one process exports, byte for byte but for values, without a task's name in any file
// covers: article 0-2, 0-3: the same `main` alone and in clusters of 1 to 3 ps, chief or master, 0
//   to 4 workers, evaluator
// covers: article 0-32, 0-33: a master in place of a chief
// covers: article 0-35: all roles as processes of one machine
// covers: article 0-37: the model that a cluster exports is that of one process but for values; no
//   task's name in it
// covers: article 4-10, 4-17: the same program in one process and as any task
// covers: scenario F3: one model by clusters of any shape: signatures, files, medians of accuracy

namespace millrace {
namespace {

int64_t steps = 300;

constexpr char kCensus[] = "examples/census/census";
constexpr char kLaunch[] = "tools/launch";
constexpr char kCli[] = "tools/saved_model_cli";
// Eight processes on a shared machine.
constexpr absl::Duration kEndTime = absl::Seconds(240);

FileSystem* Fs() { return FileSystem::Posix(); }

std::vector<std::string> Ended(const std::string& program, const std::vector<std::string>& args) {
  const auto process = Process::Start({.program = program, .args = args});
  EXPECT_OK(process.status());
  if (!process.ok()) return {};
  const StatusOr<int> code = (*process)->WaitForExit(kEndTime);
  EXPECT_OK(code.status()) << (*process)->output();
  if (code.ok()) {
    EXPECT_EQ(*code, 0) << (*process)->output();
  }
  return (*process)->lines();
}

std::vector<std::string> Census(const std::string& dir) {
  // Equal seeds: the seeds of ops are in the exported graph.
  return {kCensus, absl::StrCat("--job-dir=", dir), absl::StrCat("--train-steps=", steps),
          "--seed=1", "--wait-for-evaluator-secs=60"};
}

// The files below a directory, as relative paths.
void AddFiles(const std::string& base, const std::string& inside, std::vector<std::string>* files) {
  const auto children = Fs()->GetChildren(JoinPath(base, inside));
  ASSERT_OK(children.status());
  for (const std::string& child : *children) {
    const std::string path = inside.empty() ? child : JoinPath(inside, child);
    const auto is_directory = Fs()->IsDirectory(JoinPath(base, path));
    ASSERT_OK(is_directory.status());
    if (*is_directory) {
      AddFiles(base, path, files);
    } else {
      files->push_back(path);
    }
  }
}

std::vector<std::string> FilesIn(const std::string& dir) {
  std::vector<std::string> files;
  AddFiles(dir, "", &files);
  std::sort(files.begin(), files.end());
  return files;
}

std::string Read(const std::string& path) {
  const auto bytes = ReadFileToString(Fs(), path);
  EXPECT_OK(bytes.status());
  return bytes.ok() ? *bytes : "";
}

// A Saver's nodes have a random name for its temporary directory.
std::string WithoutTemporaryName(std::string model) {
  constexpr char kTemporary[] = "_temp_";
  constexpr size_t kDigits = 32;
  const size_t at = model.find(kTemporary);
  EXPECT_NE(at, std::string::npos);
  if (at != std::string::npos) model.replace(at + sizeof(kTemporary) - 1, kDigits, kDigits, '0');
  return model;
}

// What follows `label` in the only line that has it.
std::string After(const std::vector<std::string>& lines, const std::string& label) {
  std::vector<std::string> found;
  for (const std::string& line : lines) {
    const size_t at = line.find(label);
    if (at != std::string::npos) found.push_back(line.substr(at + label.size()));
  }
  EXPECT_EQ(found.size(), 1u) << label << "\n" << absl::StrJoin(lines, "\n");
  return found.empty() ? "" : found[0];
}

class CensusClusterTest : public ::testing::Test {
 protected:
  CensusClusterTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("census_cluster_", RandomHexName()))) {
    EXPECT_OK(Fs()->RecursivelyCreateDirectory(dir_));
  }
  ~CensusClusterTest() override { Fs()->RecursivelyDelete(dir_).IgnoreError(); }

  const std::string dir_;
};

TEST_F(CensusClusterTest, EveryShapeExportsTheModelOfOneProcess) {
  std::vector<std::string> alone = Census(dir_ + "/alone");
  alone.erase(alone.begin());
  const std::string local = After(Ended(kCensus, alone), "Exported: ");
  const std::vector<std::string> files = FilesIn(local);
  EXPECT_EQ(files, (std::vector<std::string>{"export_is_complete", "saved_model.pb",
                                             "variables/variables.data-00000-of-00001",
                                             "variables/variables.index"}));
  const std::string model = WithoutTemporaryName(Read(local + "/saved_model.pb"));
  const auto shown = [](const std::string& dir) {
    return absl::StrJoin(Ended(kCli, {"show", "--dir", dir, "--all"}), "\n");
  };
  const std::string signatures = shown(local);

  const struct {
    const char* name;
    std::vector<std::string> tasks;
    size_t processes;
  } shapes[] = {
      {"1 ps + chief + evaluator", {"--ps=1", "--chief", "--evaluator"}, 3},
      {"1 ps + chief + worker + evaluator", {"--ps=1", "--chief", "--workers=1", "--evaluator"}, 4},
      {"2 ps + chief + worker + evaluator", {"--ps=2", "--chief", "--workers=1", "--evaluator"}, 5},
      {"3 ps + master + 4 workers", {"--ps=3", "--master", "--workers=4"}, 8},
  };
  for (const auto& [name, tasks, processes] : shapes) {
    SCOPED_TRACE(name);
    const std::string dir = absl::StrCat(dir_, "/", tasks.size(), "_", processes);
    std::vector<std::string> args = tasks;
    args.push_back("--");
    for (const std::string& arg : Census(dir)) args.push_back(arg);
    const std::vector<std::string> lines = Ended(kLaunch, args);
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [](const std::string& line) {
                              return absl::StartsWith(line, "launch: ") &&
                                     absl::StrContains(line, " exit 0 ");
                            }),
              static_cast<ptrdiff_t>(processes))
        << absl::StrJoin(lines, "\n");

    // The last steps of all trainers may be done at once.
    int64_t step = 0;
    const std::string evaluated = After(lines, "Evaluation: ");
    const std::vector<std::string> parts = absl::StrSplit(evaluated, "global_step = ");
    ASSERT_EQ(parts.size(), 2u) << evaluated;
    ASSERT_TRUE(absl::SimpleAtoi(parts[1].substr(0, parts[1].find(',')), &step)) << evaluated;
    EXPECT_GE(step, steps);
    EXPECT_LE(step, steps + 10);

    const std::string exported = After(lines, "Exported: ");
    EXPECT_EQ(FilesIn(exported), files);
    EXPECT_TRUE(WithoutTemporaryName(Read(exported + "/saved_model.pb")) == model)
        << "the exported graph must be that of one process, but for values";
    for (const std::string& file : FilesIn(exported)) {
      EXPECT_FALSE(absl::StrContains(Read(JoinPath(exported, file)), "/job:")) << file;
    }
    EXPECT_EQ(shown(exported), signatures);
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    if (!absl::ConsumePrefix(&flag, "--steps=") || !absl::SimpleAtoi(flag, &millrace::steps)) {
      return 1;
    }
  }
  return RUN_ALL_TESTS();
}
