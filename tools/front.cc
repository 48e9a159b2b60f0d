// SPDX-License-Identifier: Apache-2.0
//
// front: owns models and versions, and starts and stops model servers for them with traffic.
//
//   front --state_dir=/var/lib/front --address=127.0.0.1:8080
//
//   POST /v1/models                  {"name": "census"}
//   POST /v1/models/census/versions  {"name": "v1", "deploymentUri": "/models/census/1"}
//   POST /v1/models/census:predict   {"instances": [...]}
//
// SIGTERM and Ctrl-C: probes hear that it is not ready (--not_ready_seconds), requests that run end
// (--drain_seconds), then the nodes, then exit 0. Exit codes: 0, 2 for wrong flags, 1 for
// everything else, with one message.

#include <poll.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/program.h"
#include "core/status.h"
#include "core/termination.h"
#include "serving/front/model_front.h"
#include "serving/front/node_fleet.h"
#include "tools/command_line.h"

namespace millrace {
namespace {

constexpr char kFrontProgram[] = "front";
constexpr int kMaxSeconds = 86'400;

// The program of this name next to this one.
std::string ProgramNextToThis(const std::string& name) {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size <= 0) return name;
  return JoinPath(Dirname(std::string(path, static_cast<size_t>(size))), name);
}

StatusOr<absl::Duration> SecondsOf(const CommandLine& flags, const char* name, int fallback) {
  MR_ASSIGN_OR_RETURN(const int seconds, flags.IntValue(name, fallback, 1, kMaxSeconds));
  return absl::Seconds(seconds);
}

StatusOr<ModelFrontOptions> FrontOptionsOf(const CommandLine& flags,
                                           std::vector<std::string> node_flags) {
  ModelFrontOptions options;
  options.state_dir = flags.value("state_dir");
  options.addresses = flags.values("address");
  if (options.addresses.empty()) options.addresses = {"127.0.0.1:8080"};
  options.model_server =
      flags.has("model_server") ? flags.value("model_server") : ProgramNextToThis("model_server");
  options.node_flags = std::move(node_flags);
  if (flags.has("project")) options.default_project = flags.value("project");
  if (flags.has("socket_dir")) options.socket_parent = flags.value("socket_dir");
  NodeFleet::Options& nodes = options.nodes;
  MR_ASSIGN_OR_RETURN(nodes.hold_time, SecondsOf(flags, "hold_seconds", 30));
  MR_ASSIGN_OR_RETURN(nodes.request_time, SecondsOf(flags, "request_seconds", 60));
  MR_ASSIGN_OR_RETURN(nodes.plan.start_time, SecondsOf(flags, "start_seconds", 300));
  MR_ASSIGN_OR_RETURN(nodes.plan.drain_time, SecondsOf(flags, "drain_seconds", 30));
  MR_ASSIGN_OR_RETURN(const int waiting, flags.IntValue("max_waiting", 1'000, 0, 1'000'000));
  nodes.plan.max_waiting = static_cast<size_t>(waiting);
  return options;
}

Status ServeFront(const CommandLine& flags, std::vector<std::string> node_flags) {
  MR_ASSIGN_OR_RETURN(ModelFrontOptions options, FrontOptionsOf(flags, std::move(node_flags)));
  MR_ASSIGN_OR_RETURN(const int not_ready, flags.IntValue("not_ready_seconds", 0, 0, kMaxSeconds));
  const absl::Duration drain = options.nodes.plan.drain_time;
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFront> front,
                      ModelFront::Start(std::move(options)));
  const TerminationRequest request;
  LogInfo("Serves at ", absl::StrJoin(front->addresses(), ", "));
  while (request.signal() == 0) {
    pollfd wait = {.fd = request.fd(), .events = POLLIN, .revents = 0};
    poll(&wait, 1, 1000);
  }
  if (not_ready > 0) {
    front->SetNotReady();
    LogInfo("Is not ready any more, and serves for ", not_ready, " s");
    absl::SleepFor(absl::Seconds(not_ready));  // a second signal ends the process
  }
  LogInfo("Stops: requests that run have ", absl::FormatDuration(drain));
  front->Stop(drain);
  return absl::OkStatus();
}

FlagSpec FrontNumber(const char* name, const char* help) {
  return {.name = name, .value = "N", .help = help};
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = {
      .name = kFrontProgram,
      .about =
          "Owns models and versions by REST, and starts and stops model servers for them with "
          "traffic.\nModels and versions are in the state directory; a killed front finds "
          "them again.",
      .flags = {{.name = "state_dir",
                 .value = "DIR",
                 .help = "models and versions; one front has it at a time",
                 .required = true},
                {.name = "address",
                 .value = "ADDRESS",
                 .help = "HOST:PORT or unix:/path, several times for several (127.0.0.1:8080)"},
                {.name = "model_server",
                 .value = "FILE",
                 .help = "the program of nodes (model_server next to this one)"},
                {.name = "project", .value = "NAME", .help = "of paths that name none (default)"},
                {.name = "socket_dir",
                 .value = "DIR",
                 .help = "where the directory of the nodes' sockets is made; a short name (/tmp)"},
                FrontNumber("max_waiting", "requests of a version that wait for a node (1000)"),
                FrontNumber("hold_seconds", "for a request to get a node (30)"),
                FrontNumber("request_seconds", "from then to its reply (60)"),
                FrontNumber("start_seconds", "for a node to start (300)"),
                FrontNumber("not_ready_seconds",
                            "from SIGTERM on served, but not ready for probes (0)"),
                FrontNumber("drain_seconds",
                            "for requests that run at SIGTERM and in deleted versions (30)")},
      .rest = "[-- FLAG OF MODEL_SERVER...]"};
  int exit_code = kExitOk;
  std::vector<std::string> node_flags;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code, &node_flags);
  if (!flags) return exit_code;
  const Status served = ServeFront(*flags, std::move(node_flags));
  return served.ok() ? kExitOk : ReportedExitCode(kFrontProgram, served);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
