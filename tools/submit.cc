// SPDX-License-Identifier: Apache-2.0
//
// submit: runs a training job that goes on without this terminal.
//
//   submit census1 --scale-tier STANDARD_1 --job-dir out/census1 -- census --train-steps 5000
//   submit census1 --config config.yaml -- census
//
//   submit census1 --backend slurm --scale-tier STANDARD_1 --job-dir /shared/census1 -- census
//
//   submit list | describe NAME | logs NAME [--follow] [--task worker/1] | stop NAME | wait NAME
//
// The first word is a command or the job's name, which is none of the commands' words. The engine
// is launch's (tools/local_cluster.h). Flags may be written with '-' or '_'. Exit codes: 0 when the
// job runs; 2 for wrong flags, 1 for everything else, with one message.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cores.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "tools/cluster_task.h"
#include "tools/command_line.h"
#include "tools/job_commands.h"
#include "tools/job_config.h"
#include "tools/job_logs.h"
#include "tools/job_names.h"
#include "tools/job_state.h"
#include "tools/job_supervisor.h"
#include "tools/local_cluster.h"
#include "tools/slurm_job.h"
#include "tools/task_record.h"

namespace millrace {
namespace {

// Flags of gcloud's command that mean nothing here.
constexpr const char* kIgnored[] = {"runtime-version", "python-version", "region",
                                    "staging-bucket",  "package-path",   "packages",
                                    "module-name",     "labels"};

ProgramHelp Help() {
  ProgramHelp help = {
      .name = "submit",
      .about =
          "Runs a training job that goes on without this terminal: submit NAME [flags] -- "
          "PROGRAM [ARGUMENT...]\n"
          "Later: submit list, submit describe|logs|stop|wait NAME; COMMAND --help shows the "
          "flags of each.",
      .flags =
          {{.name = "scale-tier",
            .value = "TIER",
            .help = "BASIC (1 master), STANDARD_1 (1 master, 4 workers, 3 ps), PREMIUM_1 (1, 19, "
                    "11) or CUSTOM"},
           {.name = "config",
            .value = "FILE",
            .help = "YAML with trainingInput: scaleTier, workerCount, parameterServerCount, args; "
                    "flags count more"},
           {.name = "job-dir",
            .value = "DIR",
            .help = "the job's directory: its state, its logs, and --job-dir of the program (a "
                    "directory of its own)"},
           {.name = "worker-count", .value = "N", .help = "of tier CUSTOM"},
           {.name = "parameter-server-count", .value = "N", .help = "of tier CUSTOM"},
           {.name = "backend",
            .value = "local|slurm",
            .help = "where the tasks run: on this machine (local), or in a job of Slurm's"},
           {.name = "sbatch",
            .value = "OPTION",
            .help = "of slurm: an option of sbatch, as in --sbatch=--partition=long; may be given "
                    "again"},
           {.name = "chief", .help = "the master's job is called chief, and does not evaluate"},
           {.name = "evaluator", .help = "one evaluator, next to a chief"},
           {.name = "again", .help = "goes on in the directory of a job that is over"},
           {.name = "dry-run", .help = "says what would run, and runs nothing"},
           {.name = "stream-logs", .help = "shows the job's lines, and ends with its exit code"},
           {.name = "no-job-dir-argument", .help = "the program does not get --job-dir"},
           {.name = "restarts",
            .value = "N",
            .help =
                "starts a dead ps, master or evaluator again, N times in all (0); of slurm: the "
                "job, after a code >= 128"},
           {.name = "threads-per-task", .value = "N", .help = "as of launch"},
           {.name = "grace-secs",
            .value = "N",
            .help = "kills a task that was asked to end after so many seconds (30)"},
           {.name = "jobs-dir",
            .value = "DIR",
            .help = "where jobs are known by name (MILLRACE_JOBS_DIR, else "
                    "~/.local/state/millrace/jobs)"}},
      .rest = "NAME -- PROGRAM [ARGUMENT...]"};
  for (const char* name : kIgnored) {
    help.flags.push_back({.name = name, .value = "VALUE", .help = "of gcloud; ignored"});
  }
  return help;
}

// "--job_dir=a_b" -> "--job-dir=a_b", up to "--".
void UseDashes(std::vector<std::string>* args) {
  for (std::string& arg : *args) {
    if (arg == "--") return;
    if (!absl::StartsWith(arg, "--")) continue;
    const size_t end = std::min(arg.find('='), arg.size());
    std::replace(arg.begin(), arg.begin() + static_cast<ptrdiff_t>(end), '_', '-');
  }
}

// What a person has asked for.
struct Order {
  std::string name;
  JobConfig config;  // of the file, with the flags over it
  JobTasks tasks;
  std::vector<std::string> command;  // program and arguments
  std::string job_dir;

  // "STANDARD_1: 1 master, 4 workers, 3 ps; directory /out".
  std::string what() const;
};

StatusOr<JobConfig> ConfigOf(const CommandLine& flags, const std::vector<std::string>& command) {
  JobConfig config;
  if (flags.has("config")) {
    const std::string path = flags.value("config");
    MR_ASSIGN_OR_RETURN(const std::string text,
                        ReadFileToString(FileSystem::Default(), path, kMaxJobConfigBytes));
    MR_ASSIGN_OR_RETURN(config, ParseJobConfig(text, path));
  }
  JobConfig given;
  if (flags.has("scale-tier")) given.scale_tier = flags.value("scale-tier");
  if (flags.has("worker-count")) {
    MR_ASSIGN_OR_RETURN(given.worker_count, flags.IntValue("worker-count", 0, 0, kMaxTasksOfJob));
  }
  if (flags.has("parameter-server-count")) {
    MR_ASSIGN_OR_RETURN(given.parameter_server_count,
                        flags.IntValue("parameter-server-count", 0, 0, kMaxTasksOfJob));
  }
  if (flags.has("chief")) given.use_chief = true;
  if (flags.has("evaluator")) given.evaluator_count = 1;
  if (flags.has("job-dir")) given.job_dir = flags.value("job-dir");
  if (command.size() > 1) given.args.emplace(command.begin() + 1, command.end());
  for (const char* name : kIgnored) {
    if (!flags.has(name)) continue;
    given.warnings.push_back(absl::StrCat("--", name, " means nothing here and is ignored"));
  }
  return OverJobConfig(config, given);
}

std::string AbsolutePath(const std::string& path) {
  if (IsAbsolutePath(path)) return path;
  char* const directory = getcwd(nullptr, 0);
  const std::string here = directory == nullptr ? "." : directory;
  std::free(directory);
  return JoinPath(here, path);
}

bool HasJobDirArgument(const std::vector<std::string>& command) {
  return std::any_of(command.begin(), command.end(), [](const std::string& argument) {
    const std::string name(argument.substr(0, argument.find('=')));
    return name == "--job-dir" || name == "--job_dir";
  });
}

StatusOr<Order> OrderOf(const std::string& name, const CommandLine& flags, const JobNames& names,
                        const std::vector<std::string>& command) {
  Order order = {.name = name, .config = {}, .tasks = {}, .command = {}, .job_dir = {}};
  MR_RETURN_IF_ERROR(CheckJobName(name));
  if (command.empty()) return InvalidArgument("a program must follow --, got none");
  MR_ASSIGN_OR_RETURN(order.config, ConfigOf(flags, command));
  MR_ASSIGN_OR_RETURN(order.tasks, TasksOf(order.config));
  order.command = {command[0]};
  if (order.config.args) {
    order.command.insert(order.command.end(), order.config.args->begin(), order.config.args->end());
  }
  if (!order.config.job_dir) {
    order.job_dir = names.DefaultJobDir(name);
    return order;
  }
  if (order.config.job_dir->empty())
    return InvalidArgument("--job-dir must be a directory, got ''");
  order.job_dir = AbsolutePath(*order.config.job_dir);
  MR_RETURN_IF_ERROR(CheckPathScheme(order.job_dir));
  if (!flags.has("no-job-dir-argument") && !HasJobDirArgument(order.command)) {
    order.command.push_back("--job-dir");
    order.command.push_back(order.job_dir);
  }
  return order;
}

std::string Order::what() const {
  std::string text = absl::StrCat(tasks.tier, ": 1 ", tasks.chief);
  if (tasks.workers > 0) absl::StrAppend(&text, ", ", tasks.workers, " workers");
  if (tasks.ps > 0) absl::StrAppend(&text, ", ", tasks.ps, " ps");
  if (tasks.evaluator) absl::StrAppend(&text, ", 1 evaluator");
  return absl::StrCat(text, "; directory ", job_dir);
}

// In the order of the engine's table.
std::vector<TaskRecord> RecordsOf(const JobTasks& tasks) {
  std::vector<TaskRecord> records;
  const auto add = [&records](const std::string& job, int count) {
    for (int i = 0; i < count; ++i) {
      records.push_back({.job = job, .index = i, .why = "never started"});
    }
  };
  add("ps", tasks.ps);
  add(tasks.chief, 1);
  add("worker", tasks.workers);
  add("evaluator", tasks.evaluator ? 1 : 0);
  return records;
}

// A program that no task could run is said at once: the user is still here. As execvp finds it.
Status CheckProgram(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::vector<std::string> places = {program};
  if (program.find('/') == std::string::npos) {
    places.clear();
    for (const absl::string_view folder :
         absl::StrSplit(path == nullptr ? "/bin:/usr/bin" : path, ':')) {
      places.push_back(JoinPath(folder.empty() ? "." : folder, program));
    }
  }
  bool is_file = false;
  for (const std::string& place : places) {
    struct stat info = {};
    if (stat(place.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    is_file = true;
    if (access(place.c_str(), X_OK) == 0) return absl::OkStatus();
  }
  return InvalidArgument("the program must be one that can be run, got '", program, "', ",
                         is_file ? "which must not be run" : "which is no file");
}

StatusOr<LocalClusterOptions> ClusterOf(const Order& order, const CommandLine& flags) {
  LocalClusterOptions options;
  options.name = "submit";
  options.ps = order.tasks.ps;
  options.chief = order.tasks.chief;
  options.workers = order.tasks.workers;
  options.evaluator = order.tasks.evaluator;
  options.command = order.command;
  MR_ASSIGN_OR_RETURN(options.restarts, flags.IntValue("restarts", 0, 0, 1000));
  MR_ASSIGN_OR_RETURN(const int grace, flags.IntValue("grace-secs", 30, 1, 86400));
  options.grace = absl::Seconds(grace);
  if (flags.has("threads-per-task")) {
    MR_ASSIGN_OR_RETURN(options.threads_per_task,
                        flags.IntValue("threads-per-task", 0, 0, kMaxComputingThreads));
  }
  return options;
}

StatusOr<int> StreamLogs(const JobState& state) {
  std::cout << std::flush;
  MR_RETURN_IF_ERROR(PrintJobLogs(state, TaskFilter(), /*follow=*/true, 1));
  return AwaitJob(state.job_dir, absl::InfiniteDuration());
}

StatusOr<int> SubmitLocal(const JobNames& names, const JobState& job, const Order& order,
                          const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const LocalClusterOptions cluster, ClusterOf(order, flags));
  MR_RETURN_IF_ERROR(CheckProgram(order.command[0]));
  if (flags.has("dry-run")) {
    std::cout << "submit: would run job '" << job.name << "', " << order.what() << "\n"
              << "submit: each task would run: " << absl::StrJoin(order.command, " ") << "\n";
    return kExitOk;
  }
  MR_ASSIGN_OR_RETURN(
      const JobState state,
      StartJob(names, {.job = job, .cluster = cluster, .again = flags.has("again")}));
  std::cout << "submit: job '" << job.name << "' runs, " << order.what() << "\n";
  if (flags.has("stream-logs")) return StreamLogs(state);
  std::cout << "submit: submit logs " << job.name << " --follow shows its lines, submit stop "
            << job.name << " ends it\n";
  return kExitOk;
}

StatusOr<int> SubmitSlurm(const JobNames& names, const JobState& job, const Order& order,
                          const CommandLine& flags) {
  SlurmScriptOptions options = {.sbatch = flags.values("sbatch")};
  MR_ASSIGN_OR_RETURN(options.restarts, flags.IntValue("restarts", 0, 0, 1000));
  MR_ASSIGN_OR_RETURN(options.grace_secs, flags.IntValue("grace-secs", 30, 1, 86400));
  if (!PathScheme(job.job_dir).empty()) {
    return InvalidArgument("--job-dir must be a directory that all hosts share for Slurm, got '",
                           job.job_dir, "'; the program's own flags may name a store");
  }
  if (flags.has("dry-run")) {
    JobState planned = job;
    planned.id = "dry-run";
    planned.log_dir = JoinPath(JobFolder(job.job_dir), "logs");
    MR_ASSIGN_OR_RETURN(const std::string script, SlurmScript(planned, order.tasks, options));
    std::cout << script;
    return kExitOk;
  }
  MR_ASSIGN_OR_RETURN(JobState state, RegisterJob(names, job, flags.has("again")));
  StatusOr<std::string> script = SlurmScript(state, order.tasks, options);
  const StatusOr<std::string> id = script.ok() ? SubmitToSlurm(state, *script) : script.status();
  if (id.ok()) {
    state.backend_id = *id;
  } else {
    state.phase = JobState::Phase::kFailed;
    state.why = std::string(id.status().message());
    state.exit_code = kExitError;
    state.ended = absl::Now();
  }
  MR_RETURN_IF_ERROR(WriteJobState(FileSystem::Posix(), state));
  MR_RETURN_IF_ERROR(id.status());
  std::cout << "submit: job '" << job.name << "' is Slurm's job " << *id << ", " << order.what()
            << "\n";
  if (flags.has("stream-logs")) return StreamLogs(state);
  return kExitOk;
}

StatusOr<int> Submit(const std::string& name, const CommandLine& flags,
                     const std::vector<std::string>& command) {
  MR_ASSIGN_OR_RETURN(const JobNames names, JobNames::Open(flags.value("jobs-dir")));
  MR_ASSIGN_OR_RETURN(const Order order, OrderOf(name, flags, names, command));
  for (const std::string& warning : order.config.warnings) {
    std::cerr << "submit: warning: " << warning << "\n";
  }
  const std::string backend = flags.has("backend") ? flags.value("backend") : "local";
  const bool is_local = backend == "local";
  if (!is_local && backend != "slurm") {
    return InvalidArgument("argument --backend: must be local or slurm, got '", backend, "'");
  }
  const JobState job = {.name = name,
                        .id = "",
                        .phase = is_local ? JobState::Phase::kPreparing : JobState::Phase::kQueued,
                        .backend = backend,
                        .tier = order.tasks.tier,
                        .command = order.command,
                        .job_dir = order.job_dir,
                        .tasks = is_local ? RecordsOf(order.tasks) : TasksByRank(order.tasks)};
  if (backend == "slurm") return SubmitSlurm(names, job, order, flags);
  return SubmitLocal(names, job, order, flags);
}

int WrongUsage(const ProgramHelp& help, absl::string_view reason) {
  std::cerr << UsageText(help) << help.name << ": error: " << reason << "\n";
  return kExitWrongFlags;
}

int ExitAfter(const StatusOr<int>& code) {
  std::cout.flush();
  if (!code.ok()) {
    std::cerr << "submit: " << code.status().message() << "\n";
    return absl::StartsWith(code.status().message(), "argument --") ? kExitWrongFlags : kExitError;
  }
  if (!std::cout) {
    std::cerr << "submit: the output cannot be written\n";
    return *code == kExitOk ? kExitError : *code;
  }
  return *code;
}

int MainOfCommand(const std::string& command, std::vector<std::string> args) {
  const ProgramHelp help = HelpOfJobCommand(command);
  if (std::find(args.begin(), args.end(), "--") != args.end()) {
    return WrongUsage(help, absl::StrCat("'", command,
                                         "' is a command of submit and no name of a job; choose "
                                         "another name"));
  }
  std::string name;
  if (!args.empty() && !absl::StartsWith(args[0], "-")) {
    name = args[0];
    args.erase(args.begin());
  }
  int exit_code = kExitOk;
  std::vector<std::string> rest;
  auto flags = CommandLine::ParseOrExplain(help, args, &exit_code, &rest);
  if (!flags) return exit_code;
  if (name.empty() && rest.size() == 1) name = std::exchange(rest, {})[0];
  if (!rest.empty() || (command == "list" && !name.empty())) {
    return WrongUsage(help, absl::StrCat("unrecognized arguments: ",
                                         rest.empty() ? name : absl::StrJoin(rest, " ")));
  }
  return ExitAfter(RunJobCommand(command, name, *flags));
}

int Main(std::vector<std::string> args) {
  EnterCallersDirectory();
  UseDashes(&args);
  const auto& commands = SubmitCommands();
  if (!args.empty() && std::find(commands.begin(), commands.end(), args[0]) != commands.end()) {
    return MainOfCommand(args[0], {args.begin() + 1, args.end()});
  }
  const ProgramHelp help = Help();
  // What is before "--": flags and the name, in any order.
  const auto end = std::find(args.begin(), args.end(), "--");
  std::vector<std::string> front(args.begin(), end), command;
  if (end != args.end()) command.assign(end + 1, args.end());
  std::string name;
  int exit_code = kExitOk;
  std::vector<std::string> rest;
  auto flags = CommandLine::ParseOrExplain(help, front, &exit_code, &rest);
  if (flags && !rest.empty()) {
    name = rest[0];
    // The name stood before some flags.
    front.erase(front.end() - static_cast<ptrdiff_t>(rest.size()));
    rest.clear();
    flags = CommandLine::ParseOrExplain(help, front, &exit_code, &rest);
  }
  if (!flags) return exit_code;
  if (name.empty()) return WrongUsage(help, "a job's name must be given, got none");
  if (!rest.empty()) {
    return WrongUsage(
        help, absl::StrCat("a program must follow --, got '", rest[0], "' after '", name, "'"));
  }
  return ExitAfter(Submit(name, *flags, command));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
