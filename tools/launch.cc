// SPDX-License-Identifier: Apache-2.0
//
// launch: runs one program as a cluster of processes on this machine.
//
//   launch --ps=1 --master --workers=2 -- mnist --max_steps=1000
//
// Each process gets TF_CONFIG; what happens when one of them ends is said in
// tools/local_cluster.h. Exit codes: the job's; 2 for wrong flags.

#include <iostream>
#include <string>
#include <vector>

#include "core/exit_code.h"
#include "core/status.h"
#include "tools/command_line.h"
#include "tools/local_cluster.h"

namespace millrace {
namespace {

constexpr char kUsage[] =
    "usage: launch [--ps=N] [--master | --chief] [--workers=N] [--evaluator] [--restarts=N]\n"
    "              [--log_dir=DIR] [--host=127.0.0.1] -- PROGRAM [ARGUMENT...]\n"
    "  --restarts=N  start a dead ps or master again, N times in all\n"
    "  --log_dir=DIR write each task's output to DIR/<job>-<index>.log too\n";

StatusOr<LocalClusterOptions> ParseFlags(const std::vector<std::string>& args) {
  const std::vector<FlagSpec> specs = {
      {"ps"},       {"master", false}, {"chief", false}, {"workers"}, {"evaluator", false},
      {"restarts"}, {"log_dir"},       {"host"}};
  LocalClusterOptions options;
  MR_ASSIGN_OR_RETURN(const CommandLine flags, CommandLine::Parse(specs, args, &options.command));
  MR_ASSIGN_OR_RETURN(options.ps, flags.IntValue("ps", 0, 0, 1000));
  MR_ASSIGN_OR_RETURN(options.workers, flags.IntValue("workers", 0, 0, 1000));
  MR_ASSIGN_OR_RETURN(options.restarts, flags.IntValue("restarts", 0, 0, 1000));
  if (flags.has("master") && flags.has("chief")) {
    return absl::InvalidArgumentError("argument --chief: not allowed with argument --master");
  }
  options.chief = flags.has("master") ? "master" : flags.has("chief") ? "chief" : "";
  options.evaluator = flags.has("evaluator");
  options.log_dir = flags.value("log_dir");
  if (flags.has("host")) options.host = flags.value("host");
  if (options.command.empty()) return absl::InvalidArgumentError("a program must follow --");
  if (options.chief.empty() && options.workers == 0) {
    return absl::InvalidArgumentError("one of --master, --chief and --workers=N is needed");
  }
  return options;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (!args.empty() && (args[0] == "-h" || args[0] == "--help")) {
    std::cout << millrace::kUsage;
    return 0;
  }
  const auto options = millrace::ParseFlags(args);
  if (!options.ok()) {
    std::cerr << millrace::kUsage << "launch: error: " << options.status().message() << "\n";
    return 2;
  }
  const absl::StatusOr<int> code = millrace::RunLocalCluster(*options);
  if (!code.ok()) {
    std::cerr << code.status().message() << "\n";
    return millrace::ExitCode(code.status());
  }
  return *code;
}
