// SPDX-License-Identifier: Apache-2.0
#include "tools/local_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/cores.h"
#include "core/file_system.h"
#include "core/owned_fd.h"
#include "tools/cluster_task.h"
#include "tools/server_ports.h"
#include "tools/task_output.h"
#include "tools/task_threads.h"

extern char** environ;

namespace millrace {
namespace {

// What is read of one task before signals and other tasks have their turn.
constexpr size_t kReadSize = 16 << 10;
constexpr int kReadsPerTurn = 4;
// What is left in the pipe of a task that has ended: no pipe holds more. (Who left the task's
// process group may still be writing to it.)
constexpr int kLastReads = (1 << 20) / kReadSize;
// How often the launcher says what it waits for at the end.
constexpr absl::Duration kWaitReport = absl::Seconds(10);
// How often a line at the bottom of a terminal is brought up to date.
constexpr absl::Duration kStatusPeriod = absl::Seconds(1);
// More tasks are counted, not named.
constexpr size_t kMaxNames = 8;
// Of a task whose lines are not shown: what is shown of them when it has failed.
constexpr size_t kHiddenLines = 20;
// Of a terminal that does not say how wide it is.
constexpr size_t kWidth = 80;
// Besides those of the tasks: what was inherited, what is open for a moment.
constexpr rlim_t kFilesBesidesTasks = 64;

// "0:05", "1:02:03".
std::string ElapsedText(absl::Duration elapsed) {
  const int64_t seconds = absl::ToInt64Seconds(elapsed);
  if (seconds < 3600) return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

Status SystemError(absl::string_view program, absl::string_view what) {
  return absl::InternalError(absl::StrCat(program, ": ", what, ": ", std::strerror(errno)));
}

void WriteAll(int fd, absl::string_view data) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Somebody else made the file non-blocking: another program on the same terminal, say.
      pollfd room = {fd, POLLOUT, 0};
      if (poll(&room, 1, -1) >= 0 || errno == EINTR) continue;
    }
    if (n <= 0) return;  // Nobody reads any more; the job goes on.
    data.remove_prefix(static_cast<size_t>(n));
  }
}

// Signals as file descriptor; the former mask is restored.
class SignalReader {
 public:
  // `is_elastic`: SIGUSR1 and SIGUSR2, too.
  explicit SignalReader(bool is_elastic) {
    sigset_t signals;
    sigemptyset(&signals);
    for (int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, s);
    if (is_elastic) {
      for (int s : {SIGUSR1, SIGUSR2}) sigaddset(&signals, s);
    }
    sigprocmask(SIG_BLOCK, &signals, &former_);
    fd_ = OwnedFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    // A reader of our output that went away must not end the job.
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &former_pipe_);
  }
  ~SignalReader() {
    sigaction(SIGPIPE, &former_pipe_, nullptr);
    sigprocmask(SIG_SETMASK, &former_, nullptr);
  }
  int fd() const { return fd_.get(); }
  const sigset_t& former() const { return former_; }
  // The next signal; 0 when there is none.
  int Read() {
    signalfd_siginfo info = {};
    return read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t former_;
  struct sigaction former_pipe_ = {};
  OwnedFd fd_;
};

// This process may open so many files; the former limit is restored.
class FileLimit {
 public:
  ~FileLimit() {
    if (raised_) setrlimit(RLIMIT_NOFILE, &former_);
  }
  // `program`, `tasks`: for the error.
  Status Raise(rlim_t files, absl::string_view program, size_t tasks) {
    if (getrlimit(RLIMIT_NOFILE, &former_) != 0) return SystemError(program, "getrlimit");
    if (former_.rlim_cur >= files) return absl::OkStatus();
    if (former_.rlim_max < files) {
      return FailedPrecondition(program, ": ", tasks, " tasks need a limit of ", files,
                                " open files, got ", former_.rlim_max,
                                "; start fewer or raise it (ulimit -Hn)");
    }
    const rlimit wanted = {files, former_.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &wanted) != 0) return SystemError(program, "setrlimit");
    raised_ = true;
    return absl::OkStatus();
  }
  // In a child after fork: no allocation.
  void RestoreInChild() const {
    if (raised_) setrlimit(RLIMIT_NOFILE, &former_);
  }

 private:
  rlimit former_ = {};
  bool raised_ = false;
};

class Launcher {
 public:
  Launcher(const LocalClusterOptions& options, TaskThreads threads)
      : options_(options),
        threads_(std::move(threads)),
        terminal_(isatty(options.output_fd) == 1),
        signals_(is_elastic()) {
    const auto add = [this, &options](TaskRole role, const std::string& job, int count) {
      for (int i = 0; i < count; ++i) {
        ClusterTask& task = *tasks_.emplace_back(std::make_unique<ClusterTask>());
        task.launcher = options.name;
        task.role = role;
        task.job = job;
        task.index = i;
        task.shown = options.show.Matches(job, i);
      }
    };
    add(TaskRole::kPs, "ps", options.ps);
    if (!options.chief.empty()) add(TaskRole::kChief, options.chief, 1);
    add(TaskRole::kWorker, "worker", std::max(options.workers, options.max_workers));
    for (const auto& task : tasks_) {
      task->waits_for_start = task->role == TaskRole::kWorker && task->index >= options.workers;
    }
    if (options.evaluator) add(TaskRole::kEvaluator, "evaluator", 1);
    restarts_left_ = options.restarts;
  }

  ~Launcher() {
    // Only after an error of the system.
    for (const auto& task : tasks_) {
      if (!task->running()) continue;
      kill(-task->pid, SIGKILL);
      waitpid(task->pid, nullptr, 0);
    }
  }

  StatusOr<int> Run() {
    if (signals_.fd() < 0) return SystemError(options_.name, "signalfd");
    const size_t files_per_task = options_.log_dir.empty() ? 1 : 2;
    MR_RETURN_IF_ERROR(file_limit_.Raise(kFilesBesidesTasks + files_per_task * tasks_.size(),
                                         options_.name, tasks_.size()));
    MR_RETURN_IF_ERROR(OpenLogs());
    started_ = absl::Now();
    SayWhetherEvaluated();
    Report(threads_.text);
    if (is_elastic()) {
      Report(absl::StrCat(options_.workers, " workers, up to ", options_.max_workers,
                          ": kill -USR1 ", getpid(), " starts one, kill -USR2 ", getpid(),
                          " ends one"));
    }
    TellObserver(std::nullopt);
    MR_RETURN_IF_ERROR(HandleSignals());
    if (ending_) {
      job_code_ = 128 + ending_signal_;
    } else {
      MR_RETURN_IF_ERROR(StartAll());
    }
    while (AnyRunning()) {
      if (changed_) TellObserver(std::nullopt);
      ShowOwnStatus();
      MR_RETURN_IF_ERROR(Wait());
      MR_RETURN_IF_ERROR(HandleSignals());
      MR_RETURN_IF_ERROR(HandleEnded());
      HandleDeadlines();
    }
    ShowStatus("");
    const int code = Summary();
    TellObserver(code);
    return code;
  }

 private:
  bool is_elastic() const { return options_.max_workers > options_.workers; }
  bool AnyRunning() const {
    return std::any_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return t->running(); });
  }
  bool TrainersRun() const {
    return std::any_of(tasks_.begin(), tasks_.end(),
                       [](const auto& t) { return t->trainer() && t->running(); });
  }

  bool AnyTrainerSucceeded() const {
    return std::any_of(tasks_.begin(), tasks_.end(),
                       [](const auto& t) { return t->trainer() && t->succeeded(); });
  }

  Status OpenLogs() {
    if (options_.log_dir.empty()) return absl::OkStatus();
    FileSystem* const files = FileSystem::Default();
    Status status = files->RecursivelyCreateDirectory(options_.log_dir);
    for (const auto& task : tasks_) {
      StatusOr<std::unique_ptr<WritableFile>> log = files->NewWritableFile(
          JoinPath(options_.log_dir, absl::StrCat(task->job, "-", task->index, ".log")));
      status.Update(log.status());
      if (log.ok()) task->log = *std::move(log);
    }
    if (status.ok() || options_.needs_logs) return status;
    Report(
        absl::StrCat("some logs cannot be made, the job goes on without them: ", status.message()));
    return absl::OkStatus();
  }

  void TellObserver(std::optional<int> code) {
    changed_ = false;
    if (options_.observer == nullptr) return;
    LocalClusterView view = {.asked_to_end = signalled_, .code = code};
    const absl::Time now = absl::Now();
    for (const auto& task : tasks_) view.tasks.push_back(task->record(now));
    options_.observer->Changed(view);
  }

  // Output.

  // Of the line at the bottom of a terminal: its last column makes some begin a new line.
  size_t Width() const {
    winsize size = {};
    if (ioctl(options_.output_fd, TIOCGWINSZ, &size) != 0 || size.ws_col <= 1) return kWidth - 1;
    return static_cast<size_t>(size.ws_col - 1);
  }

  // Replaces the line at the bottom of a terminal.
  void ShowStatus(const std::string& text) {
    if (!terminal_) return;
    std::string line = text.substr(0, Width());
    if (!line.empty() || !status_.empty()) {
      WriteAll(options_.output_fd, absl::StrCat("\r\x1b[K", line));
    }
    status_ = std::move(line);
  }

  void Print(const std::string& line) {
    const std::string status = status_;
    ShowStatus("");
    WriteAll(options_.output_fd, line + "\n");
    ShowStatus(status);
  }

  void Report(absl::string_view text) { Print(absl::StrCat(options_.name, ": ", text)); }

  // No task can know it: an evaluator is in no cluster. Whether the program calls TrainAndEvaluate
  // is not known here.
  void SayWhetherEvaluated() {
    if (options_.evaluator || options_.chief.empty()) return;
    const char* const as_chief = std::getenv("MILLRACE_MASTER_AS_CHIEF");
    if (options_.chief == "master" && (as_chief == nullptr || absl::string_view(as_chief) != "1")) {
      return;
    }
    Report(
        "no evaluator: a program of TrainAndEvaluate trains and saves, and is never evaluated, "
        "stopped early by a metric or exported; --evaluator starts one");
  }

  // The progress of all trainers that show some, in one line.
  void ShowTrainers() {
    if (!terminal_) return;
    std::vector<TaskStatus> statuses;
    for (const auto& task : tasks_) {
      if (!task->trainer() || task->output.status().empty()) continue;
      statuses.push_back({task->name(), task->output.status()});
    }
    ShowStatus(JoinStatuses(statuses, Width()));
  }

  // "0:12, running: ps 0, master 0, worker 0".
  std::string RunningText() const {
    std::vector<std::string> names;
    for (const auto& task : tasks_) {
      if (task->running()) names.push_back(task->name());
    }
    const std::string elapsed = ElapsedText(absl::Now() - started_);
    if (names.size() > kMaxNames) return absl::StrCat(elapsed, ", ", names.size(), " tasks run");
    return absl::StrCat(elapsed, ", running: ", absl::StrJoin(names, ", "));
  }

  // The progress of a program that shows none.
  void ShowOwnStatus() {
    const absl::Time now = absl::Now();
    if (now < next_status_) return;
    if (!terminal_) {
      if (next_status_ != absl::InfinitePast()) Report(RunningText());
      next_status_ = now + options_.silence;
    } else if (task_shows_status_) {
      next_status_ = absl::InfiniteFuture();
    } else {
      ShowStatus(absl::StrCat(options_.name, ": ", RunningText()));
      next_status_ = now + kStatusPeriod;
    }
  }

  void PrintLines(ClusterTask* task, const std::vector<std::string>& lines) {
    if (!terminal_ && !lines.empty() && task->shown) {
      next_status_ = absl::Now() + options_.silence;
    }
    for (const std::string& line : lines) {
      task->Note(line);
      if (task->port_in_use()) ++task->lines_since_port;
      if (absl::StrContains(line, "port is in use") ||
          absl::StrContains(line, "ddress already in use")) {
        task->lines_since_port = 0;
      }
      // A log that cannot be written (a full disk) does not stop the job.
      if (task->log != nullptr && !(task->log->Append(line + "\n")).ok()) {
        task->log = nullptr;
        Report(absl::StrCat("log of ", task->name(), " cannot be written and ends here"));
      }
      if (task->shown) {
        Print(absl::StrCat("[", task->name(), "] ", line));
        continue;
      }
      task->hidden.push_back(line);
      if (task->hidden.size() > kHiddenLines) task->hidden.pop_front();
    }
    if (task->log != nullptr && !lines.empty()) task->log->Flush().IgnoreError();
  }

  void ReadOutput(ClusterTask* task, int max_reads) {
    std::array<char, kReadSize> buffer;
    for (int reads = 0; reads < max_reads && task->pipe.open(); ++reads) {
      const ssize_t n = read(task->pipe.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) {
        task->pipe.Close();
        return;
      }
      std::vector<std::string> lines;
      const bool changed = task->output.Add({buffer.data(), static_cast<size_t>(n)}, &lines);
      // Before the lines: a status that has become one is not shown twice.
      if (changed && task->trainer()) {
        task_shows_status_ = true;
        ShowTrainers();
      }
      PrintLines(task, lines);
    }
  }

  // Starting.

  Status StartAll() {
    const auto with_port =
        static_cast<size_t>(std::count_if(tasks_.begin(), tasks_.end(), [](const auto& task) {
          return task->role != TaskRole::kEvaluator;
        }));
    MR_ASSIGN_OR_RETURN(const std::vector<int> ports,
                        FreeServerPorts(options_.host, with_port, &used_ports_));
    addresses_.clear();
    size_t next = 0;
    for (const auto& task : tasks_) {
      if (task->role == TaskRole::kEvaluator) continue;
      const bool ipv6 = absl::StrContains(options_.host, ':');
      task->address =
          absl::StrCat(ipv6 ? "[" : "", options_.host, ipv6 ? "]:" : ":", ports[next++]);
      if (addresses_.empty() || addresses_.back().first != task->job) {
        addresses_.push_back({task->job, {}});
      }
      addresses_.back().second.push_back(task->address);
    }
    for (const auto& task : tasks_) {
      task->started_alone = false;
      if (task->waits_for_start) continue;
      MR_RETURN_IF_ERROR(Start(task.get()));
    }
    return absl::OkStatus();
  }

  Status Start(ClusterTask* task) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return SystemError(options_.name, "pipe");
    OwnedFd reader(ends[0]), writer(ends[1]);
    if (fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0) return SystemError(options_.name, "fcntl");

    // Everything that allocates comes before fork.
    std::vector<std::string> environment = {
        absl::StrCat("TF_CONFIG=", TfConfigText(addresses_, task->job, task->index)),
        absl::StrCat("MILLRACE_PROGRESS=", terminal_ && task->trainer() ? "live" : "plain")};
    if (threads_.per_task) {
      environment.push_back(absl::StrCat(kNumThreadsVariable, "=", *threads_.per_task));
    }
    environment.insert(environment.end(), options_.environment.begin(), options_.environment.end());
    // What is inherited, but for the variables above.
    const size_t own = environment.size();
    for (char** e = environ; *e != nullptr; ++e) {
      const absl::string_view inherited = *e;
      const bool replaced =
          std::any_of(environment.begin(), environment.begin() + static_cast<ptrdiff_t>(own),
                      [inherited](const std::string& set) {
                        return absl::StartsWith(inherited, set.substr(0, set.find('=') + 1));
                      });
      if (!replaced) environment.emplace_back(inherited);
    }
    std::vector<char*> envp, argv;
    for (std::string& e : environment) envp.push_back(e.data());
    envp.push_back(nullptr);
    std::vector<std::string> arguments = options_.command;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    const std::string cannot = absl::StrCat(options_.name, ": cannot run '", arguments[0], "': ");

    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) return SystemError(options_.name, "fork");
    if (pid == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(128 + SIGKILL);
      const int null = open("/dev/null", O_RDONLY);
      if (null >= 0) dup2(null, 0);
      if (null > 2) close(null);
      dup2(writer.get(), 1);
      dup2(writer.get(), 2);
      file_limit_.RestoreInChild();
      signal(SIGPIPE, SIG_DFL);
      sigprocmask(SIG_SETMASK, &signals_.former(), nullptr);
      execvpe(argv[0], argv.data(), envp.data());
      const char* const why = errno == ENOENT ? "no such program" : strerrordesc_np(errno);
      for (const absl::string_view part :
           {absl::string_view(cannot), absl::string_view(why), absl::string_view("\n")}) {
        [[maybe_unused]] const ssize_t n = write(2, part.data(), part.size());
      }
      _exit(127);
    }
    setpgid(pid, pid);  // the first of the two does it
    task->pid = pid;
    task->pipe = std::move(reader);
    task->output = TaskOutput();
    task->lines_since_port = ClusterTask::kPortLines;
    task->asked.clear();
    task->last_line.clear();
    task->hidden.clear();
    task->killed_by_grace = false;
    task->waits_for_start = false;
    task->own_deadline = absl::InfiniteFuture();
    task->started = absl::Now();
    changed_ = true;
    ++task->starts;
    Report(absl::StrCat(task->name(), " started",
                        task->address.empty() ? "" : absl::StrCat(" at ", task->address), ", pid ",
                        pid));
    return absl::OkStatus();
  }

  // More and fewer workers.

  int WorkersThatRun() const {
    return static_cast<int>(std::count_if(tasks_.begin(), tasks_.end(), [](const auto& task) {
      return task->role == TaskRole::kWorker && task->running() && task->asked.empty();
    }));
  }

  // The job goes on as it is, whatever the answer.
  Status StartOneWorker() {
    if (ending_ || trainers_ended_) {
      Report("got SIGUSR1: starts no worker, the job ends");
      return absl::OkStatus();
    }
    for (const auto& task : tasks_) {
      if (task->role != TaskRole::kWorker || task->running()) continue;
      // One that has ended well without being asked to.
      if (task->succeeded() && !task->waits_for_start) continue;
      Report(absl::StrCat("got SIGUSR1: starting ", task->name()));
      task->started_alone = true;
      return Start(task.get());
    }
    Report(absl::StrCat("got SIGUSR1: starts no worker, all ", options_.max_workers,
                        " run or have done their work"));
    return absl::OkStatus();
  }

  void EndOneWorker() {
    if (ending_ || trainers_ended_) return Report("got SIGUSR2: ends no worker, the job ends");
    const int running = WorkersThatRun();
    if (running <= options_.workers) {
      return Report(absl::StrCat("got SIGUSR2: ends no worker, ", options_.workers,
                                 " must run and ", running, " do"));
    }
    for (auto task = tasks_.rbegin(); task != tasks_.rend(); ++task) {
      ClusterTask& worker = **task;
      if (worker.role != TaskRole::kWorker || !worker.running() || !worker.asked.empty()) continue;
      Report(absl::StrCat("got SIGUSR2: asking ", worker.name(), " to end"));
      worker.asked = absl::StrCat(options_.name, " got SIGUSR2");
      changed_ = true;
      worker.waits_for_start = true;
      worker.own_deadline = absl::Now() + options_.grace;
      return Signal(&worker, SIGTERM);
    }
  }

  // Ending.

  void Signal(ClusterTask* task, int signal) {
    if (task->running()) kill(-task->pid, signal);
  }

  // Asks the parameter servers, or all others, to end; they are killed after the grace.
  void AskToEnd(int signal, bool ps, const std::string& why) {
    for (const auto& task : tasks_) {
      if ((task->role == TaskRole::kPs) != ps || !task->running() || !task->asked.empty()) continue;
      task->asked = why;
      changed_ = true;
      Signal(task.get(), signal);
      deadline_ = absl::Now() + options_.grace;
    }
  }

  // Trainers and evaluator first: what they do at their end may need the parameter servers.
  // `code`: of the task that is the reason; none when that is a signal.
  void EndJob(std::optional<int> code, int signal, const std::string& why) {
    if (!job_code_) job_code_ = code;
    ending_ = true;
    ending_signal_ = signal;
    ending_why_ = why;
    next_report_ = absl::Now() + kWaitReport;
    AskToEnd(signal, /*ps=*/false, why);
    AskPsWhenOthersEnded();
  }

  void AskPsWhenOthersEnded() {
    const bool others_run = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& task) {
      return task->role != TaskRole::kPs && task->running();
    });
    if (!others_run) AskToEnd(ending_signal_, /*ps=*/true, ending_why_);
  }

  // Blocks until something happens.
  Status Wait() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<ClusterTask*> readers;
    for (const auto& task : tasks_) {
      if (!task->pipe.open()) continue;
      fds.push_back({task->pipe.get(), POLLIN, 0});
      readers.push_back(task.get());
    }
    absl::Time next = std::min({deadline_, next_report_, next_status_});
    for (const auto& task : tasks_) {
      if (task->running()) next = std::min(next, task->own_deadline);
    }
    int timeout_ms = -1;
    if (next != absl::InfiniteFuture()) {
      timeout_ms = static_cast<int>(
          std::clamp<int64_t>(absl::ToInt64Milliseconds(next - absl::Now()) + 1, 0, 60000));
    }
    if (poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) {
      return SystemError(options_.name, "poll");
    }
    for (size_t i = 0; i < readers.size(); ++i) {
      if (fds[i + 1].revents != 0) ReadOutput(readers[i], kReadsPerTurn);
    }
    return absl::OkStatus();
  }

  Status HandleSignals() {
    while (const int signal = signals_.Read()) {
      if (signal == SIGCHLD) continue;  // HandleEnded looks at every task.
      if (signal == SIGUSR1) {
        MR_RETURN_IF_ERROR(StartOneWorker());
        continue;
      }
      if (signal == SIGUSR2) {
        EndOneWorker();
        continue;
      }
      if (signalled_) {
        Report("second signal: killing all tasks");
        for (const auto& task : tasks_) Signal(task.get(), SIGKILL);
        continue;
      }
      signalled_ = true;
      Report(absl::StrCat("got signal ", signal, " (", strsignal(signal),
                          "), passing it on to all tasks; a second one kills them"));
      // A task may be stopped or ignore SIGHUP and SIGINT as background jobs do.
      EndJob(std::nullopt, signal == SIGHUP ? SIGTERM : signal,
             absl::StrCat(options_.name, " got signal ", signal));
    }
    return absl::OkStatus();
  }

  // Collects a task that has ended: its last output, what is left of its process group.
  void Collect(ClusterTask* task) {
    ReadOutput(task, kLastReads);
    // The zombie keeps the number of the group from being used for another.
    kill(-task->pid, SIGKILL);
    waitpid(task->pid, &task->wait_status, 0);
    ReadOutput(task, kLastReads);
    task->pipe.Close();
    std::vector<std::string> rest;
    task->output.Finish(&rest);
    PrintLines(task, rest);
    if (task->trainer() && task_shows_status_) ShowTrainers();
    task->ran += absl::Now() - task->started;
    task->pid = -1;
    changed_ = true;
  }

  bool HasEnded(const ClusterTask& task) const {
    if (!task.running()) return false;
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(task.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == task.pid;
  }

  Status HandleEnded() {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      ClusterTask* task = tasks_[i].get();
      if (!HasEnded(*task)) continue;
      Collect(task);
      if (task->asked.empty() && task->code() != 0) ShowHidden(*task);
      if (ending_) {
        ReportEnding(*task);
        continue;
      }
      if (task->role == TaskRole::kWorker && !task->asked.empty() && !trainers_ended_) {
        Report(absl::StrCat(task->name(), " ", task->ending(),
                            ", as it was asked to; workers that run: ", WorkersThatRun()));
        continue;
      }
      if (task->port_in_use() && task->code() != 0 && !task->started_alone) {
        if (port_retries_ < kMaxPortRetries) {
          ++port_retries_;
          Report(absl::StrCat(task->name(), " found its port ", task->address,
                              " in use; all tasks start again on new ports (", port_retries_,
                              " of ", kMaxPortRetries, ")"));
          for (const auto& other : tasks_) {
            if (!other->running()) continue;
            Signal(other.get(), SIGKILL);
            Collect(other.get());
          }
          trainers_ended_ = false;
          deadline_ = next_report_ = absl::InfiniteFuture();
          return StartAll();
        }
        Report(absl::StrCat(task->name(), " found its port in use again after ", kMaxPortRetries,
                            " times new ports; the job ends"));
        EndJob(task->code(), SIGTERM, absl::StrCat(task->name(), " found its port in use"));
        continue;
      }
      if (task->code() == 0 || (trainers_ended_ && task->role == TaskRole::kPs)) {
        ReportEnding(*task);
      } else if (task->role == TaskRole::kWorker ||
                 (task->role == TaskRole::kEvaluator && restarts_left_ == 0)) {
        Report(absl::StrCat(task->name(), " ", task->ending(), "; the job goes on"));
      } else if (restarts_left_ > 0) {
        --restarts_left_;
        Report(absl::StrCat(task->name(), " ", task->ending(), "; starting it again (",
                            options_.restarts - restarts_left_, " of ", options_.restarts, ")"));
        task->started_alone = true;
        MR_RETURN_IF_ERROR(Start(task));
      } else {
        Report(absl::StrCat(task->name(), " ", task->ending(), "; the job ends"));
        EndJob(task->code(), SIGTERM, absl::StrCat(task->name(), " ", task->ending()));
      }
    }
    if (ending_) AskPsWhenOthersEnded();
    if (!ending_ && !trainers_ended_ && !TrainersRun()) {
      trainers_ended_ = true;
      if (options_.ps > 0) Report("all trainers have ended; ending ps");
      AskToEnd(SIGTERM, /*ps=*/true, "all trainers had ended");
      // An evaluator waits for the end of a run that nobody will write.
      if (!AnyTrainerSucceeded()) AskToEnd(SIGTERM, /*ps=*/false, "no trainer had succeeded");
      next_report_ = absl::Now() + kWaitReport;
    }
    return absl::OkStatus();
  }

  // What led to a failure is shown whatever the filter says.
  void ShowHidden(const ClusterTask& task) {
    if (task.hidden.empty()) return;
    Report(absl::StrCat("the last ", task.hidden.size(), " lines of ", task.name(),
                        ", which --show leaves out:"));
    for (const std::string& line : task.hidden) {
      Print(absl::StrCat("[", task.name(), "] ", line));
    }
  }

  void ReportEnding(const ClusterTask& task) {
    if (task.killed_by_grace) {
      Report(absl::StrCat(task.name(), " did not end within ", absl::ToInt64Seconds(options_.grace),
                          " s and was killed"));
    } else if (task.code() != 0) {
      Report(absl::StrCat(task.name(), " ", task.ending()));
    }
  }

  void HandleDeadlines() {
    const absl::Time now = absl::Now();
    if (now >= deadline_) {
      deadline_ = absl::InfiniteFuture();
      for (const auto& task : tasks_) {
        if (!task->running() || task->asked.empty()) continue;
        task->killed_by_grace = true;
        Signal(task.get(), SIGKILL);
      }
    }
    for (const auto& task : tasks_) {
      if (!task->running() || now < task->own_deadline) continue;
      task->own_deadline = absl::InfiniteFuture();
      task->killed_by_grace = true;
      Signal(task.get(), SIGKILL);
    }
    if (now >= next_report_) {
      next_report_ = now + kWaitReport;
      std::vector<std::string> names;
      for (const auto& task : tasks_) {
        if (task->running()) names.push_back(absl::StrCat(task->name(), " (pid ", task->pid, ")"));
      }
      if (!names.empty()) Report(absl::StrCat("waiting for ", absl::StrJoin(names, ", ")));
    }
  }

  // The table, and the code of the job.
  int Summary() {
    Report(TaskTableHead());
    std::optional<int> chief, worker_failed, worker_killed, evaluator;
    bool worker_succeeded = false;
    for (const auto& task : tasks_) {
      Report(TaskTableRow(*task));
      if (task->role == TaskRole::kChief) chief = task->code();
      // One that was killed is not missed, but it has not done its work when we were told to end.
      if (task->role == TaskRole::kEvaluator && (signalled_ || !task->was_killed())) {
        evaluator = task->code();
      }
      if (task->role != TaskRole::kWorker || task->starts == 0) continue;
      if (task->succeeded()) {
        worker_succeeded = true;
      } else if (task->waits_for_start) {
        // Asked to end while the job went on: it is not missed, however it ended.
      } else if (task->was_killed()) {
        if (!worker_killed) worker_killed = task->code();
      } else if (!worker_failed) {
        worker_failed = task->code();
      }
    }
    int code = 0;
    if (job_code_) {
      code = *job_code_;
    } else if (chief && *chief != 0) {
      code = *chief;
    } else if (worker_failed) {
      code = *worker_failed;
    } else if (worker_killed && (signalled_ || (!chief && !worker_succeeded))) {
      code = *worker_killed;
    } else if (evaluator) {
      code = *evaluator;
    }
    Report(absl::StrCat("job ended with code ", code));
    return code;
  }

  const LocalClusterOptions& options_;
  const TaskThreads threads_;
  const bool terminal_;
  FileLimit file_limit_;
  SignalReader signals_;
  std::vector<std::unique_ptr<ClusterTask>> tasks_;
  std::vector<std::pair<std::string, std::vector<std::string>>> addresses_;
  std::string status_;

  std::set<int> used_ports_;
  int restarts_left_ = 0;
  int port_retries_ = 0;
  bool trainers_ended_ = false;
  bool ending_ = false;  // all tasks were asked to end
  bool signalled_ = false;
  bool changed_ = false;  // since the observer was told
  int ending_signal_ = SIGTERM;
  std::string ending_why_;
  bool task_shows_status_ = false;  // a task writes a progress line
  std::optional<int> job_code_;
  absl::Time deadline_ = absl::InfiniteFuture();     // when those who were asked are killed
  absl::Time next_report_ = absl::InfiniteFuture();  // when to say what is waited for
  absl::Time next_status_ = absl::InfinitePast();    // when it is said who runs
  absl::Time started_;
};

std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

std::string TfConfigText(
    const std::vector<std::pair<std::string, std::vector<std::string>>>& addresses,
    const std::string& job, int index) {
  const std::string jobs = absl::StrJoin(addresses, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, JsonString(entry.first), ": [",
                    absl::StrJoin(entry.second, ", ",
                                  [](std::string* text, const std::string& address) {
                                    absl::StrAppend(text, JsonString(address));
                                  }),
                    "]");
  });
  return absl::StrCat("{\"cluster\": {", jobs, "}, \"task\": {\"type\": ", JsonString(job),
                      ", \"index\": ", index, "}, \"environment\": \"cloud\"}");
}

StatusOr<int> RunLocalCluster(const LocalClusterOptions& options) {
  if (options.command.empty()) {
    return InvalidArgument(options.name, ": a program must follow the flags, got none");
  }
  if (options.chief.empty() && options.workers == 0) {
    return InvalidArgument(
        options.name,
        ": a job must have a trainer, got none; use --master, --chief or --workers=N");
  }
  for (const int count : {options.ps, options.workers, options.max_workers, options.restarts}) {
    if (count < 0 || count > 1000) {
      return InvalidArgument(options.name,
                             ": --ps, --workers and --restarts must be in [0, 1000], got ", count);
    }
  }
  if (!options.chief.empty() && options.chief != "master" && options.chief != "chief") {
    return InvalidArgument(options.name, ": chief must be 'master' or 'chief', got '",
                           options.chief, "'");
  }
  if (options.max_workers != 0 && options.max_workers < options.workers) {
    return InvalidArgument(options.name, ": --workers=MIN..MAX must have MIN <= MAX, got ",
                           options.workers, "..", options.max_workers);
  }
  const int workers = std::max(options.workers, options.max_workers);
  const int trainers = workers + (options.chief.empty() ? 0 : 1);
  if (options.no_ps && options.ps > 0) {
    return InvalidArgument(options.name,
                           ": --no_ps must be given without a ps, got --ps=", options.ps);
  }
  if (trainers > 1 && options.ps == 0 && !options.no_ps) {
    return InvalidArgument(
        options.name, ": ", trainers,
        " trainers must share their variables on parameter servers, got --ps=0: "
        "each would train a model of its own; add --ps=1 (or --no_ps, if the program "
        "trains nothing)");
  }
  std::vector<std::pair<std::string, int>> tasks;
  const auto add = [&tasks](const std::string& job, int count) {
    for (int i = 0; i < count; ++i) tasks.emplace_back(job, i);
  };
  add("ps", options.ps);
  if (!options.chief.empty()) add(options.chief, 1);
  add("worker", workers);
  if (options.evaluator) add("evaluator", 1);
  if (const std::string unused = options.show.Unused(tasks); !unused.empty()) {
    return InvalidArgument(options.name, ": --show must name tasks of this job, got '", unused,
                           "'");
  }
  MR_ASSIGN_OR_RETURN(TaskThreads threads,
                      ThreadsOfTasks(UsableCores(), trainers, options.threads_per_task,
                                     std::getenv(kNumThreadsVariable)));
  return Launcher(options, std::move(threads)).Run();
}

}  // namespace millrace
