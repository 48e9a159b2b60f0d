// SPDX-License-Identifier: Apache-2.0
//
// model_server: serves exported models over gRPC and REST, for the clients and with the flags of
// TensorFlow Serving.
//
//   model_server --rest_api_port=8501 --model_name=census --model_base_path=/models/census
//   model_server --rest_api_port=8501 --model_config_file=models.config
//
// SIGTERM and Ctrl-C, also while the first models load: probes hear that it is not ready
// (--not_ready_seconds), requests that run end (--drain_seconds), then exit 0. Exit codes: 0, 2 for
// wrong flags, 1 for everything else, with one message.

#include "serving/server/model_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/owned_fd.h"
#include "core/program.h"
#include "core/status.h"
#include "core/termination.h"
#include "graph/op_registry.h"
#include "serving/model_config_file.h"
#include "serving/model_versions.h"
#include "tools/command_line.h"
#include "tools/model_server_flags.h"
#include "tools/op_libraries.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "model_server";
// For what must end after the requests: connections, versions, logs.
constexpr absl::Duration kEndTime = absl::Seconds(15);
// For loads that are told to end.
constexpr absl::Duration kLoadEndTime = absl::Seconds(1);

// A connection is an open file; many systems allow 1,024 unless asked.
void AllowManyFiles() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

// A kernel that never returns must not keep the process: who stops it has been told how long it
// takes.
void EndAfter(absl::Duration time) {
  std::thread([time] {
    absl::SleepFor(time);
    LogWarning("Something does not end; the process does");
    _exit(kExitOk);
  }).detach();
}

// While it lives, a signal ends the start of the server.
class StartWatch {
 public:
  explicit StartWatch(const TerminationRequest* request) : request_(request) {}
  ~StartWatch() {
    const uint64_t one = 1;
    (void)!write(over_.get(), &one, sizeof(one));
    if (thread_.joinable()) thread_.join();
  }
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;
  Status Begin() {
    if (!over_.open()) return absl::ResourceExhaustedError("A file must be free, got none");
    return NoExceptions("The watch of signals", [&] {
      thread_ = std::thread([this] { Run(); });
      return absl::OkStatus();
    });
  }
  CancellationManager* cancellation() { return &cancellation_; }

 private:
  void Run() {
    pollfd waits[] = {{.fd = request_->fd(), .events = POLLIN, .revents = 0},
                      {.fd = over_.get(), .events = POLLIN, .revents = 0}};
    while (request_->signal() == 0 && (waits[1].revents & POLLIN) == 0) poll(waits, 2, 1000);
    if (request_->signal() != 0) cancellation_.StartCancel();
  }

  const TerminationRequest* const request_;
  const OwnedFd over_{eventfd(0, EFD_CLOEXEC)};
  CancellationManager cancellation_;
  std::thread thread_;
};

Status Serve(const CommandLine& flags) {
  AllowManyFiles();
  MR_RETURN_IF_ERROR(LoadOpLibraries(flags));
  // The first look-up builds the list of ops. Here, for the heap of this thread grows in large
  // steps; those of others by a page and a system call each, hundreds of them.
  LookUpOp("NoOp");
  MR_ASSIGN_OR_RETURN(ModelServerFlags read, ReadModelServerFlags(flags));
  const TerminationRequest request;
  std::unique_ptr<ModelServer> server;
  {
    StartWatch watch(&request);
    MR_RETURN_IF_ERROR(watch.Begin());
    read.options.start_cancellation = watch.cancellation();
    MR_ASSIGN_OR_RETURN(server, ModelServer::Start(std::move(read.options)));
  }
  // Before it serves it has only requests to end, of --listen_early: a load, which may take as long
  // as it likes, holds nothing that must be kept.
  if (request.signal() != 0 && !server->is_ready()) {
    LogInfo("Stops before all models were there: requests that run have ",
            absl::FormatDuration(read.drain));
    EndAfter(read.drain + kEndTime);
    server->Stop(read.drain);
    EndAfter(kLoadEndTime);
    server.reset();
    return absl::OkStatus();
  }
  std::unique_ptr<ModelConfigFile> config;
  if (read.config_period < absl::InfiniteDuration()) {
    MR_ASSIGN_OR_RETURN(
        config,
        ModelConfigFile::Create({.path = read.config_file, .period = read.config_period},
                                read.config_content, [&server](std::vector<ModelSettings> models) {
                                  return server->versions()->Reload(
                                      std::move(models), absl::Now() + absl::Minutes(10));
                                }));
  }
  while (request.signal() == 0) {
    pollfd wait = {.fd = request.fd(), .events = POLLIN, .revents = 0};
    poll(&wait, 1, 1000);
  }
  if (read.not_ready > absl::ZeroDuration()) {
    server->SetNotReady();
    LogInfo("Is not ready any more, and serves for ", absl::FormatDuration(read.not_ready));
    absl::SleepFor(read.not_ready);  // a second signal ends the process
  }
  LogInfo("Stops: requests that run have ", absl::FormatDuration(read.drain));
  EndAfter(read.drain + kEndTime);
  server->Stop(read.drain);
  config.reset();
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = ModelServerHelp();
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code);
  if (!flags) return exit_code;
  if (!flags->has("model_base_path") && !flags->has("model_config_file")) {
    std::cerr
        << UsageText(help) << help.name
        << ": error: one of the arguments --model_base_path --model_config_file is required\n";
    return kExitWrongFlags;
  }
  const Status served = Serve(*flags);
  return served.ok() ? kExitOk : ReportedExitCode(kProgram, served);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
