// SPDX-License-Identifier: Apache-2.0
//
// launch: runs one program as a cluster of processes on this machine.
//
//   launch --ps=1 --master --workers=2 -- mnist --max_steps=1000
//   launch --ps=1 --chief --workers=2..4 -- mnist --max_steps=1000
//
// Each process gets TF_CONFIG; what happens when one of them ends is said in
// tools/local_cluster.h. Exit codes: the job's; 1 for a job that cannot be; 2 for wrong flags.

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/cores.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "tools/cluster_task.h"
#include "tools/command_line.h"
#include "tools/local_cluster.h"
#include "tools/task_record.h"

namespace millrace {
namespace {

constexpr int kMostWorkers = 1000;

ProgramHelp Help() {
  return {
      .name = "launch",
      .about = "Runs one program as a cluster of processes on this machine. Each gets TF_CONFIG.",
      .flags =
          {{.name = "ps", .value = "N", .help = "parameter servers (0)"},
           {.name = "master",
            .help = "one master: a chief that in TrainAndEvaluate also evaluates and exports"},
           {.name = "chief",
            .help = "one chief; in TrainAndEvaluate the evaluator alone evaluates and exports"},
           {.name = "workers",
            .value = "N|MIN..MAX",
            .help = "workers (0). MIN..MAX: MIN are started; while the job runs, SIGUSR1 to launch "
                    "starts one more, SIGUSR2 ends one"},
           {.name = "no_ps",
            .help = "several workers without a ps: of a program that trains nothing, as "
                    "batch_predict"},
           {.name = "evaluator",
            .help = "one evaluator; without it a job of TrainAndEvaluate with a chief evaluates "
                    "nothing, never stops early by a metric, and exports nothing"},
           {.name = "restarts",
            .value = "N",
            .help = "starts a dead ps, master or evaluator again, N times in all (0)"},
           {.name = "show",
            .value = "TASKS",
            .help = "shows the lines of these only: roles and tasks, as in chief,worker-1"},
           {.name = "log_dir",
            .value = "DIR",
            .help = "writes each task's output to DIR/<job>-<index>.log too"},
           {.name = "host", .value = "ADDRESS", .help = "of the tasks (127.0.0.1)"},
           {.name = "threads_per_task",
            .value = "N",
            .help = "each task computes with N threads; 0: as MILLRACE_NUM_THREADS says, or as "
                    "many as cores (MILLRACE_NUM_THREADS if it is set, else the cores divided "
                    "among master, chief and workers)"},
           {.name = "json",
            .value = "FILE|-",
            .help = "writes the table at the end as JSON, too: to a file, or as the last line of "
                    "the output"},
           {.name = "grace_secs",
            .value = "N",
            .help = "kills a task that was asked to end after so many seconds (30)"}},
      .rest = "-- PROGRAM [ARGUMENT...]"};
}

// N, or MIN..MAX.
Status SetWorkers(const CommandLine& flags, LocalClusterOptions* options) {
  const std::pair<std::string, std::string> ends =
      absl::StrSplit(flags.value("workers"), absl::MaxSplits("..", 1));
  if (!absl::StrContains(flags.value("workers"), "..")) {
    MR_ASSIGN_OR_RETURN(options->workers, flags.IntValue("workers", 0, 0, kMostWorkers));
    return absl::OkStatus();
  }
  if (!absl::SimpleAtoi(ends.first, &options->workers) ||
      !absl::SimpleAtoi(ends.second, &options->max_workers) || options->workers < 0 ||
      options->max_workers < std::max(1, options->workers) || options->max_workers > kMostWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument --workers: must be an integer in [0, ", kMostWorkers,
                     "] or MIN..MAX with MIN <= MAX there, got '", flags.value("workers"), "'"));
  }
  return absl::OkStatus();
}

StatusOr<LocalClusterOptions> OptionsOf(const CommandLine& flags,
                                        std::vector<std::string> command) {
  LocalClusterOptions options;
  options.command = std::move(command);
  MR_ASSIGN_OR_RETURN(options.ps, flags.IntValue("ps", 0, 0, 1000));
  MR_RETURN_IF_ERROR(SetWorkers(flags, &options));
  MR_ASSIGN_OR_RETURN(options.restarts, flags.IntValue("restarts", 0, 0, 1000));
  MR_ASSIGN_OR_RETURN(const int grace, flags.IntValue("grace_secs", 30, 1, 86400));
  options.grace = absl::Seconds(grace);
  if (flags.has("master") && flags.has("chief")) {
    return absl::InvalidArgumentError("argument --chief: not allowed with argument --master");
  }
  options.chief = flags.has("master") ? "master" : flags.has("chief") ? "chief" : "";
  options.evaluator = flags.has("evaluator");
  options.no_ps = flags.has("no_ps");
  options.log_dir = flags.value("log_dir");
  MR_ASSIGN_OR_RETURN(options.show, TaskFilter::Parse(flags.value("show")));
  if (flags.has("threads_per_task")) {
    MR_ASSIGN_OR_RETURN(options.threads_per_task,
                        flags.IntValue("threads_per_task", 0, 0, kMaxComputingThreads));
  }
  if (flags.has("host")) options.host = flags.value("host");
  if (options.command.empty()) return absl::InvalidArgumentError("a program must follow --");
  if (options.chief.empty() && options.workers == 0) {
    return absl::InvalidArgumentError("one of --master, --chief and --workers=N is needed");
  }
  return options;
}

// Keeps the tasks of a job at its end.
class LastTable : public LocalClusterObserver {
 public:
  void Changed(const LocalClusterView& view) override {
    if (view.code) json_ = {{"code", *view.code}, {"tasks", ToJson(view.tasks)}};
  }
  // To a file, or with "-" to stdout.
  Status Write(const std::string& path) const {
    const std::string line = absl::StrCat(
        json_.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), "\n");
    if (path != "-") return WriteFileAtomically(FileSystem::Default(), path, line);
    std::cout << line << std::flush;
    if (std::cout) return absl::OkStatus();
    return absl::UnavailableError("stdout must take the table, got an error");
  }

 private:
  nlohmann::ordered_json json_;
};

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = Help();
  std::vector<std::string> command;
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code, &command);
  if (!flags) return exit_code;
  StatusOr<LocalClusterOptions> options = OptionsOf(*flags, std::move(command));
  if (!options.ok()) {
    std::cerr << UsageText(help) << "launch: error: " << options.status().message() << "\n";
    return kExitWrongFlags;
  }
  const std::string json = flags->value("json");
  if (flags->has("json") && json != "-") {
    // Before anything runs: a job's end is late for this.
    if (const Status known = CheckPathScheme(json); json.empty() || !known.ok()) {
      std::cerr << "launch: --json must be a file or -, got '" << json << "'"
                << (known.ok() ? "" : "; ") << known.message() << "\n";
      return kExitError;
    }
  }
  LastTable table;
  if (flags->has("json")) options->observer = &table;
  const StatusOr<int> code = RunLocalCluster(*options);
  if (!code.ok()) {
    std::cerr << code.status().message() << "\n";
    return ExitCode(code.status());
  }
  if (flags->has("json")) {
    const Status written = table.Write(json);
    if (!written.ok()) {
      std::cerr << "launch: --json: " << written.message() << "\n";
      return *code != kExitOk ? *code : ExitCode(written);
    }
  }
  return *code;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
