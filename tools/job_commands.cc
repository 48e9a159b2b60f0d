// SPDX-License-Identifier: Apache-2.0
#include "tools/job_commands.h"

#include <algorithm>
#include <csignal>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "nlohmann/json.hpp"
#include "tools/cluster_task.h"
#include "tools/job_logs.h"
#include "tools/job_names.h"
#include "tools/slurm_job.h"
#include "tools/task_record.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using Phase = JobState::Phase;

constexpr int kExitTimeout = 124;  // as of timeout(1)
constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr absl::Duration kReport = absl::Seconds(10);
// A job of another machine of which nobody has heard for so long is lost.
constexpr absl::Duration kGone = absl::Minutes(10);

std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string TimeText(const std::optional<absl::Time>& time) {
  return time ? absl::FormatTime("%Y-%m-%d %H:%M:%S", *time, absl::LocalTimeZone()) : "-";
}

std::string SecondsText(const JobState& state) {
  if (!state.started) return "-";
  return absl::StrFormat("%.1f",
                         absl::ToDoubleSeconds(state.ended.value_or(absl::Now()) - *state.started));
}

// "heard of 3 s ago"; of a job that is over: "".
std::string HeardText(const JobState& state) {
  if (state.is_over() || !state.updated) return "";
  return absl::StrCat("heard of ",
                      std::max<int64_t>(0, absl::ToInt64Seconds(absl::Now() - *state.updated)),
                      " s ago");
}

StatusOr<std::string> JobDirOf(const std::string& name, const CommandLine& flags) {
  if (flags.has("job-dir")) {
    if (name.empty()) return flags.value("job-dir");
    return InvalidArgument("a job must be given by its name or by --job-dir, got both");
  }
  if (name.empty()) return InvalidArgument("a job's name must follow, or --job-dir, got none");
  MR_ASSIGN_OR_RETURN(const JobNames names, JobNames::Open(flags.value("jobs-dir")));
  return names.Find(name);
}

StatusOr<JobState> StateOf(const std::string& job_dir) {
  StatusOr<JobState> state = SeenJobState(FileSystem::Default(), job_dir);
  if (!absl::IsNotFound(state.status())) return state;
  return absl::NotFoundError(absl::StrCat("directory '", job_dir,
                                          "' must be that of a job, got none: it has no '",
                                          JobStatePath(job_dir), "'"));
}

// As it is seen from here.
Json SeenJson(const JobState& state) {
  Json json = ToJson(state);
  json["state"] = std::string(PhaseName(state.seen_phase()));
  return json;
}

StatusOr<int> List(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const JobNames names, JobNames::Open(flags.value("jobs-dir")));
  MR_ASSIGN_OR_RETURN(const auto entries, names.List());
  std::vector<JobState> states;
  for (const auto& [name, job_dir] : entries) {
    StatusOr<JobState> state = SeenJobState(FileSystem::Default(), job_dir);
    if (absl::IsNotFound(state.status()) || (state.ok() && state->name != name)) continue;  // gone
    if (!state.ok()) {
      std::cerr << "submit: " << state.status().message() << "\n";
      continue;
    }
    states.push_back(*std::move(state));
  }
  std::stable_sort(states.begin(), states.end(), [](const JobState& a, const JobState& b) {
    return a.submitted.value_or(absl::InfinitePast()) < b.submitted.value_or(absl::InfinitePast());
  });
  if (flags.has("json")) {
    Json list = Json::array();
    for (const JobState& state : states) list.push_back(SeenJson(state));
    std::cout << Dump(list, -1) << "\n";
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"job", "state", "backend", "tier", "submitted", "seconds", "directory"}};
  for (const JobState& state : states) {
    rows.push_back({state.name, std::string(PhaseName(state.seen_phase())), state.backend,
                    state.tier, TimeText(state.submitted), SecondsText(state), state.job_dir});
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      std::cout << row[i] << std::string(widths[i] - row[i].size() + 2, ' ');
    }
    std::cout << row.back() << "\n";
  }
  return kExitOk;
}

StatusOr<int> Describe(const JobState& state, const CommandLine& flags) {
  if (flags.has("json")) {
    std::cout << Dump(SeenJson(state), -1) << "\n";
    return kExitOk;
  }
  const auto line = [](absl::string_view key, absl::string_view value) {
    if (!value.empty()) std::cout << absl::StrFormat("%-11s", key) << value << "\n";
  };
  const std::string heard = HeardText(state);
  line("job", absl::StrCat(state.name,
                           state.attempt > 1 ? absl::StrCat(", attempt ", state.attempt) : ""));
  line("state", absl::StrCat(state.text(), heard.empty() ? "" : "; ", heard));
  line("why", state.why);
  line("exit code", state.exit_code ? absl::StrCat(*state.exit_code) : "");
  line("backend", state.backend);
  line("tier", state.tier);
  line("directory", state.job_dir);
  line("logs", state.log_dir);
  line("command", absl::StrJoin(state.command, " "));
  line("submitted", TimeText(state.submitted));
  line("started", TimeText(state.started));
  line("ended", TimeText(state.ended));
  if (state.tasks.empty()) return kExitOk;
  // Slurm says neither when its tasks started nor where.
  std::cout << "\n"
            << absl::StrFormat("%-14s %-10s %-8s %-6s %s", "task", "state", "seconds", "starts",
                               "why")
            << "\n";
  for (const TaskRecord& task : state.tasks) {
    const std::string ended = task.state == TaskRecord::State::kWaiting   ? "waiting"
                              : task.state == TaskRecord::State::kRunning ? "running"
                              : task.signal ? absl::StrCat("signal ", *task.signal)
                                            : absl::StrCat("exit ", task.exit_code.value_or(0));
    const std::string why =
        !task.why.empty() ? task.why
        : task.pid
            ? absl::StrCat("pid ", *task.pid, task.address.empty() ? "" : " at ", task.address)
            : "";
    std::cout << absl::StrFormat("%-14s %-10s %-8.1f %-6d %s",
                                 absl::StrCat(task.job, " ", task.index), ended, task.seconds,
                                 task.starts, why)
              << "\n";
  }
  return kExitOk;
}

StatusOr<int> Logs(const JobState& state, const CommandLine& flags) {
  // The form is worker/1, launch's worker-1.
  MR_ASSIGN_OR_RETURN(
      const TaskFilter filter,
      TaskFilter::Parse(absl::StrReplaceAll(flags.value("task"), {{"/", "-"}}), "--task"));
  MR_RETURN_IF_ERROR(PrintJobLogs(state, filter, flags.has("follow"), 1));
  return kExitOk;
}

// By the files that the supervisor, or Slurm's script, looks for; where they cannot be made, by
// signals. What waits in Slurm's queue, or is to be killed there, is cancelled.
Status AskToStop(const JobState& state, bool kills) {
  const std::string path =
      kills ? JobKillPath(state.job_dir, state.id) : JobStopPath(state.job_dir, state.id);
  const StatusOr<std::unique_ptr<WritableFile>> file = FileSystem::Default()->NewWritableFile(path);
  const Status made = file.ok() ? (*file)->Close() : file.status();
  if (state.backend == "slurm" && (kills || state.phase == Phase::kQueued)) {
    return CancelInSlurm(state, kills);
  }
  if (made.ok()) return absl::OkStatus();
  const ProcessIdentity& supervisor = state.supervisor;
  if (!supervisor.is_of_this_machine() || !supervisor.is_alive()) return made;
  kill(supervisor.pid, SIGTERM);
  if (kills) kill(supervisor.pid, SIGINT);
  return absl::OkStatus();
}

StatusOr<int> Stop(const JobState& state, const CommandLine& flags) {
  if (state.is_over() || state.seen_phase() == Phase::kLost) {
    std::cout << "submit: job '" << state.name << "' is over already: " << state.text() << "\n";
    return kExitOk;
  }
  MR_RETURN_IF_ERROR(AskToStop(state, flags.has("kill")));
  if (flags.has("no-wait")) {
    std::cout << "submit: job '" << state.name << "' is asked to stop\n";
    return kExitOk;
  }
  MR_RETURN_IF_ERROR(AwaitJob(state.job_dir, absl::InfiniteDuration()).status());
  return kExitOk;
}

StatusOr<int> Wait(const JobState& state, const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const int timeout, flags.IntValue("timeout", 0, 1, 30 * 86400));
  return AwaitJob(state.job_dir,
                  flags.has("timeout") ? absl::Seconds(timeout) : absl::InfiniteDuration());
}

}  // namespace

ProgramHelp HelpOfJobCommand(const std::string& command) {
  ProgramHelp help = {.name = absl::StrCat("submit ", command), .about = "", .rest = "NAME"};
  const FlagSpec jobs_dir = {.name = "jobs-dir",
                             .value = "DIR",
                             .help =
                                 "where jobs are known by name (MILLRACE_JOBS_DIR, else "
                                 "~/.local/state/millrace/jobs)"};
  const FlagSpec job_dir = {
      .name = "job-dir",
      .value = "DIR",
      .help = "the job's directory, in place of its name: also from another machine"};
  const FlagSpec json = {.name = "json", .help = "prints one JSON value on one line"};
  if (command == "list") {
    help.about = "Shows the jobs that were submitted here, the oldest first.";
    help.flags = {json, jobs_dir};
    help.rest = "";
    return help;
  }
  help.flags = {job_dir, jobs_dir};
  if (command == "describe") {
    help.about = "Shows what is known of a job and of its tasks.";
    help.flags.push_back(json);
  } else if (command == "logs") {
    help.about = "Shows the lines that the tasks of a job have written.";
    help.flags.push_back({.name = "follow", .help = "goes on until the job is over"});
    help.flags.push_back({.name = "task",
                          .value = "TASKS",
                          .help = "of these only: roles and tasks, as in chief,worker/1"});
  } else if (command == "stop") {
    help.about = "Ends a job as Ctrl-C ends launch, and waits for its end: the chief may save.";
    help.flags.push_back({.name = "kill", .help = "kills its tasks"});
    help.flags.push_back({.name = "no-wait", .help = "only asks"});
  } else {
    help.about =
        "Waits until a job is over. The exit code is the job's; 128 of one that is lost, 124 when "
        "the time is over.";
    help.flags.push_back({.name = "timeout", .value = "SECONDS", .help = "waits so long at most"});
  }
  return help;
}

StatusOr<int> RunJobCommand(const std::string& command, const std::string& name,
                            const CommandLine& flags) {
  if (command == "list") return List(flags);
  MR_ASSIGN_OR_RETURN(const std::string job_dir, JobDirOf(name, flags));
  MR_ASSIGN_OR_RETURN(const JobState state, StateOf(job_dir));
  if (command == "describe") return Describe(state, flags);
  if (command == "logs") return Logs(state, flags);
  if (command == "stop") return Stop(state, flags);
  return Wait(state, flags);
}

StatusOr<int> AwaitJob(const std::string& job_dir, absl::Duration timeout) {
  const absl::Time begin = absl::Now();
  absl::Time next_report = begin + kReport;
  for (;;) {
    MR_ASSIGN_OR_RETURN(const JobState state, StateOf(job_dir));
    const absl::Time now = absl::Now();
    const bool silent = state.backend == "local" && state.updated && now - *state.updated > kGone &&
                        !state.supervisor.is_of_this_machine();
    if (state.is_over() || state.seen_phase() == Phase::kLost || silent) {
      std::cout << "submit: job '" << state.name << "' " << state.text()
                << (state.why.empty() ? "" : ": ") << state.why << "\n";
      if (state.phase == Phase::kSucceeded) return kExitOk;
      if (!state.is_over() || state.phase == Phase::kLost) return kExitRetryable;
      const int code = state.exit_code.value_or(kExitRetryable);
      return code == kExitOk ? kExitRetryable : code;
    }
    if (now - begin >= timeout) {
      std::cerr << "submit: job '" << state.name << "' is not over after "
                << absl::FormatDuration(timeout) << ": " << state.text() << "\n";
      return kExitTimeout;
    }
    if (now >= next_report) {
      next_report = now + kReport;
      std::cerr << "submit: waits for job '" << state.name << "': " << state.text() << "; "
                << HeardText(state) << "\n";
    }
    absl::SleepFor(std::min(kPoll, begin + timeout - now));
  }
}

}  // namespace millrace
