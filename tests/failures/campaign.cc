// SPDX-License-Identifier: Apache-2.0
// campaign: kills a role again and again at random moments, and compares the ledger in the end.
//
//   bazel test //tests/failures:campaign --test_output=streamed --test_arg=--kills=100
//   ... --test_arg=--wire=grpc
//   ... --test_arg=--role=ps --test_arg=--seed=7
//   ... --test_arg=--fault=stop --test_arg=--stop_secs=60 --test_arg=--kills=3
//
// Each kill falls at a random moment of up to --max_gap_secs after the job trains again; now and
// then the task is stopped for a while before (--stops), or killed once more before it is
// ready (--while_recovering). Prints one line per role:
//
//   CAMPAIGN ps over unix: 100 of 100 kills recovered, acknowledged steps lost 0 (2874 newer than
//   the checkpoint went with the ps), steps again after 0.6 s (median), 1.1 s (worst), committed
//   checkpoints lost 0, ledger exact; left: 0 sockets, 0 in /dev/shm, 0 temporary files
//
// and ends with 1 where it is not so, with the seed of the run. What is left is counted once all
// tasks have ended: Unix sockets of links, names in /dev/shm that have come meanwhile, and files in
// the tasks' TMPDIR and unfinished ones in the run's directory. Sockets must be gone, files may
// stay: the next chief of the run sweeps them (train/run_sweep.h).

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/random_bits.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/failures/ledger.h"
#include "tests/failures/ledger_job.h"

// covers: clusters: ps, chief, worker, evaluator × killed and started again (same address, another
//   one), stopped, partitioned, disk full: the others act as `docs/failures.md` says, and no
//   acknowledged step is lost or applied twice beyond it

ABSL_FLAG(int, kills, 100, "of each role");
ABSL_FLAG(std::string, role, "ps,chief,worker,evaluator", "which, with commas between them");
ABSL_FLAG(std::string, wire, "unix",
          "what steps travel on: unix (links within the host), grpc (links over the network)");
ABSL_FLAG(uint64_t, seed, 1, "of the moments");
ABSL_FLAG(double, max_gap_secs, 1.5, "between a recovery and the next kill, at most");
ABSL_FLAG(double, while_recovering, 0.2, "share of kills that come again before the task is ready");
ABSL_FLAG(double, stops, 0.1, "share of kills that come after a stop");
ABSL_FLAG(double, stop_secs, 2, "how long a task is stopped");
ABSL_FLAG(std::string, fault, "kill", "kill, or stop: SIGSTOP and SIGCONT, no kill");

namespace millrace {
namespace {

using Names = std::set<std::string>;

// Of the sockets by which tasks of this host meet (unix_offer.cc).
Names SocketsOfLinks() {
  Names names;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const size_t name = line.rfind('@');
    if (name != std::string::npos && absl::StrContains(line, "@millrace")) {
      names.insert(line.substr(name));
    }
  }
  return names;
}

Names FilesOf(const std::string& directory) {
  const auto files = FileSystem::Posix()->GetChildren(directory);
  return files.ok() ? Names(files->begin(), files->end()) : Names();
}

Names Since(const Names& before, const Names& now) {
  Names added;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                      std::inserter(added, added.end()));
  return added;
}

// Where the tasks of all roles have their temporary files.
const std::string& TemporaryDirectory() {
  static const std::string* const directory =
      new std::string(JoinPath(::testing::TempDir(), "campaign_tmp_" + RandomHexName()));
  return *directory;
}

// What tasks that have ended have left.
class Leftovers {
 public:
  // Before they begin.
  Leftovers() : sockets_(SocketsOfLinks()), shm_(FilesOf("/dev/shm")) {}
  // When they have ended. "0 sockets, 0 in /dev/shm, 0 temporary files", and which.
  std::string Count(const std::string& log_dir) const {
    const Names sockets = Since(sockets_, SocketsOfLinks());
    EXPECT_EQ(sockets, Names()) << "sockets go with the last process that has them";
    const Names shm = Since(shm_, FilesOf("/dev/shm"));
    Names files = FilesOf(TemporaryDirectory());
    for (const std::string& file : FilesOf(log_dir)) {
      if (absl::StrContains(file, ".tmp") || absl::StrContains(file, ".tempstate")) {
        files.insert(file);
      }
    }
    return absl::StrCat(Counted(sockets, "sockets"), ", ", Counted(shm, "in /dev/shm"), ", ",
                        Counted(files, "temporary files"));
  }

 private:
  static std::string Counted(const Names& names, absl::string_view what) {
    return names.empty()
               ? absl::StrCat("0 ", what)
               : absl::StrCat(names.size(), " ", what, " (", absl::StrJoin(names, ", "), ")");
  }

  const Names sockets_, shm_;
};

std::map<std::string, std::map<std::string, std::string>> EnvironmentOfTasks() {
  const std::string wire = absl::GetFlag(FLAGS_wire);
  std::map<std::string, std::map<std::string, std::string>> of_tasks;
  for (const char* task : {"ps-0", "chief-0", "worker-0", "evaluator-0"}) {
    of_tasks[task] = {{"MILLRACE_WIRE", wire},
                      {"MILLRACE_UNIX_LINKS", wire == "grpc" ? "0" : "1"},
                      {"TMPDIR", TemporaryDirectory()}};
  }
  return of_tasks;
}

class Campaign {
 public:
  explicit Campaign(std::string role)
      : role_(std::move(role)),
        task_(absl::StrCat(role_, "-0")),
        random_(absl::GetFlag(FLAGS_seed)),
        job_(absl::StrCat("campaign_", role_),
             {.evaluator = true,
              .args = {"--rows=40000", "--trainers=2", "--save_secs=0.5", "--steps_per_second=60"},
              .env = EnvironmentOfTasks()}) {}

  void Run() {
    ASSERT_OK(job_.Start());
    ASSERT_OK(job_.AwaitSteps("worker-0").status());
    ASSERT_OK(job_.AwaitSaved().status());
    const int kills = absl::GetFlag(FLAGS_kills);
    std::vector<absl::Duration> times;  // until all step again
    for (int i = 0; i < kills && !::testing::Test::HasFailure(); ++i) {
      Clock::Real()->SleepFor(Seconds(absl::GetFlag(FLAGS_max_gap_secs)));
      const bool kills_it = absl::GetFlag(FLAGS_fault) == "kill";
      if (!kills_it || Chance(absl::GetFlag(FLAGS_stops))) {
        job_.Pause(task_);
        Clock::Real()->SleepFor(absl::Seconds(absl::GetFlag(FLAGS_stop_secs)));
      }
      const absl::Time begin = Clock::Real()->Now();
      if (kills_it) {
        ASSERT_NO_FATAL_FAILURE(Kill());
      } else {
        job_.Continue(task_);
      }
      if (kills_it && role_ == "evaluator") {
        ASSERT_OK(job_.task(task_)->WaitForLine("Evaluated step", kGuard).status());
      }
      ASSERT_OK(job_.AwaitSteps("chief-0", 1).status());
      ASSERT_OK(job_.AwaitSteps("worker-0", 1).status());
      times.push_back(Clock::Real()->Now() - begin);
    }
    ASSERT_OK(job_.AwaitSaved().status());
    job_.ExpectEndsWell();
    const LedgerReport report = job_.ExpectLedgerHolds(std::numeric_limits<int64_t>::max());
    // The ledger says that these, and no others, came after the newest checkpoint.
    const bool takes_variables = role_ == "ps" && absl::GetFlag(FLAGS_fault) == "kill";
    const int64_t went = takes_variables ? report.rolled_back : 0;
    EXPECT_EQ(report.rolled_back - went, 0);
    if (!takes_variables) {
      EXPECT_EQ(report.lives, 1);
    }
    const std::string left = leftovers_.Count(job_.log_dir());
    std::sort(times.begin(), times.end());
    const bool none = times.empty();
    std::printf(
        "CAMPAIGN %s over %s: %zu of %d %s recovered, acknowledged steps lost %lld (%lld newer "
        "than "
        "the checkpoint went with the ps), steps again after %.1f s (median), %.1f s (worst), %s; "
        "left: %s\n",
        role_.c_str(), absl::GetFlag(FLAGS_wire).c_str(), times.size(), kills,
        absl::GetFlag(FLAGS_fault) == "kill" ? "kills" : "stops",
        static_cast<long long>(report.rolled_back - went), static_cast<long long>(went),
        none ? 0.0 : absl::ToDoubleSeconds(times[times.size() / 2]),
        none ? 0.0 : absl::ToDoubleSeconds(times.back()),
        ::testing::Test::HasFailure()
            ? absl::StrCat("NOT exact, seed ", absl::GetFlag(FLAGS_seed)).c_str()
            : "committed checkpoints lost 0, ledger exact",
        left.c_str());
  }

 private:
  void Kill() {
    ASSERT_NO_FATAL_FAILURE(job_.Kill(task_));
    ASSERT_OK(job_.StartTask(task_));
    if (!Chance(absl::GetFlag(FLAGS_while_recovering))) return;
    Clock::Real()->SleepFor(Seconds(0.3));
    ASSERT_NO_FATAL_FAILURE(job_.Kill(task_));
    ASSERT_OK(job_.StartTask(task_));
  }
  bool Chance(double share) { return std::bernoulli_distribution(share)(random_); }
  absl::Duration Seconds(double most) {
    return absl::Seconds(std::uniform_real_distribution<double>(0, most)(random_));
  }

  const std::string role_, task_;
  std::mt19937_64 random_;
  const Leftovers leftovers_;
  LedgerJob job_;
};

TEST(CampaignTest, EachRole) {
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(TemporaryDirectory()));
  for (const absl::string_view role : absl::StrSplit(absl::GetFlag(FLAGS_role), ',')) {
    Campaign campaign{std::string(role)};
    ASSERT_NO_FATAL_FAILURE(campaign.Run());
  }
  EXPECT_OK(FileSystem::Posix()->RecursivelyDelete(TemporaryDirectory()));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::SetProgramUsageMessage("Kills tasks of a training job and compares its ledger.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  const std::string wire = absl::GetFlag(FLAGS_wire);
  if (wire != "unix" && wire != "grpc") {
    std::fprintf(stderr, "--wire: must be unix or grpc, got %s\n", wire.c_str());
    return 1;
  }
  const std::string fault = absl::GetFlag(FLAGS_fault);
  if (fault != "kill" && fault != "stop") {
    std::fprintf(stderr, "--fault: must be kill or stop, got %s\n", fault.c_str());
    return 1;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return RUN_ALL_TESTS();
}
