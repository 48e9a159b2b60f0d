// SPDX-License-Identifier: Apache-2.0
//
// cluster_status: asks the running tasks of a cluster who they are, whose sessions they have open,
// and what they have exchanged with each other.
//
//   cluster_status --cluster_spec='{"ps": ["a:2222"], "worker": ["b:2222"]}' [--json]
//   cluster_status --target a:2222 --watch 5
//
// Without either it takes the cluster of TF_CONFIG. All tasks are asked at once. Exit codes: 0 when
// all answer, 1 when one does not, 2 for wrong flags, TF_CONFIG or files of credentials.

#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/program.h"
#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "distributed/task_status.h"
#include "net/security.h"
#include "tools/cluster_report.h"
#include "tools/command_line.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "cluster_status";

ProgramHelp Help() {
  return {.name = kProgram,
          .about =
              "Asks the running tasks of a cluster who they are, whose sessions they have open, "
              "and what they have exchanged.\n"
              "Where tasks ask for a token or certificates, MILLRACE_TOKEN_FILE, "
              "MILLRACE_CA_FILE, MILLRACE_CERTIFICATE_FILE and MILLRACE_KEY_FILE name them, as "
              "for the tasks.",
          .flags = {{.name = "cluster_spec",
                     .value = "JSON",
                     .help = "the cluster, {\"ps\": [\"host:port\"], ...} (that of TF_CONFIG)"},
                    {.name = "target",
                     .value = "HOST:PORT",
                     .help = "one task instead of a cluster; may be given again"},
                    {.name = "timeout", .value = "SECONDS", .help = "to wait for answers (5)"},
                    {.name = "json", .help = "prints one JSON object on one line"},
                    {.name = "watch",
                     .value = "SECONDS",
                     .help = "asks again at this interval until it is interrupted"}}};
}

StatusOr<std::vector<AskedTask>> TargetsOf(const CommandLine& flags) {
  std::vector<std::string> addresses = flags.values("target");
  for (std::string& address : addresses) {
    address = std::string(absl::StripPrefix(address, "grpc://"));
  }
  if (const Status status = ClusterSpec::Make({{"target", addresses}}).status(); !status.ok()) {
    return InvalidArgument("argument --target: ", status.message());
  }
  std::vector<AskedTask> tasks;
  for (std::string& address : addresses) tasks.push_back({.address = std::move(address)});
  return tasks;
}

StatusOr<std::vector<AskedTask>> TasksOf(const CommandLine& flags) {
  const bool has_spec = flags.has("cluster_spec");
  if (flags.has("target")) {
    if (has_spec) {
      return InvalidArgument("argument --target: not allowed with argument --cluster_spec");
    }
    return TargetsOf(flags);
  }
  ClusterSpec cluster;
  if (has_spec) {
    MR_ASSIGN_OR_RETURN(cluster,
                        ClusterSpec::Parse(flags.value("cluster_spec"), "argument --cluster_spec"));
    if (cluster.empty()) {
      return InvalidArgument("argument --cluster_spec: must name a task that listens, got '",
                             flags.value("cluster_spec"), "'");
    }
  } else {
    MR_ASSIGN_OR_RETURN(const ClusterConfig config, ClusterConfig::FromEnvironment());
    cluster = config.cluster();
    if (cluster.empty()) {
      return InvalidArgument(
          "one of --cluster_spec, --target and a TF_CONFIG with a cluster is needed");
    }
  }
  std::vector<AskedTask> tasks;
  for (const std::string& job : cluster.jobs()) {
    for (const int index : cluster.tasks(job)) {
      MR_ASSIGN_OR_RETURN(std::string address, cluster.address(job, index));
      tasks.push_back({absl::StrCat("/job:", job, "/task:", index), std::move(address)});
    }
  }
  return tasks;
}

struct Options {
  std::vector<AskedTask> tasks;
  absl::Duration timeout;
  std::optional<absl::Duration> watch = std::nullopt;
  bool as_json = false;
};

StatusOr<Options> OptionsOf(const CommandLine& flags) {
  Options options;
  MR_ASSIGN_OR_RETURN(options.tasks, TasksOf(flags));
  MR_ASSIGN_OR_RETURN(const int timeout, flags.IntValue("timeout", 5, 1, 3600));
  options.timeout = absl::Seconds(timeout);
  MR_ASSIGN_OR_RETURN(const int watch, flags.IntValue("watch", 0, 1, 86400));
  if (watch > 0) options.watch = absl::Seconds(watch);
  options.as_json = flags.has("json");
  return options;
}

// Returns after one report, or when nobody reads the next one.
int Report(const Options& options) {
  TaskAsker asker(options.tasks);
  for (bool is_first = true;; is_first = false) {
    const absl::Time begun = absl::Now();
    const std::vector<TaskAnswer> tasks = asker.Ask(options.timeout);
    if (options.as_json) {
      std::cout << ClusterReportJson(tasks) << "\n";
    } else {
      std::cout << (is_first ? "" : "\n") << ClusterReport(tasks);
    }
    if (!(std::cout << std::flush)) return kExitError;
    if (!options.watch.has_value()) {
      for (const TaskAnswer& task : tasks) {
        if (task.state != TaskAnswer::State::kAnswers) return kExitError;
      }
      return kExitOk;
    }
    absl::SleepFor(begun + *options.watch - absl::Now());
  }
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = Help();
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code);
  if (!flags) return exit_code;
  const StatusOr<Options> options = OptionsOf(*flags);
  if (!options.ok()) {
    std::cerr << UsageText(help) << kProgram << ": error: " << options.status().message() << "\n";
    return kExitWrongFlags;
  }
  if (const Status status = ClusterCredentials().status(); !status.ok()) {
    std::cerr << kProgram << ": error: " << status.message() << "\n";
    return kExitWrongFlags;
  }
  return Report(*options);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
