// SPDX-License-Identifier: Apache-2.0
#include "tools/local_cluster.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"

extern char** environ;

namespace millrace {
namespace {

// A task that writes no line ends gets its text in pieces of this size.
constexpr size_t kMaxLine = 64 << 10;
// What is read of one task before signals and other tasks have their turn.
constexpr size_t kReadSize = 16 << 10;
constexpr int kReadsPerTurn = 4;
// What is left in the pipe of a task that has ended: no pipe holds more. (Who left the task's
// process group may still be writing to it.)
constexpr int kLastReads = (1 << 20) / kReadSize;
// A task that ends within so many lines after it said that its port is in use ended because of it.
constexpr int kPortLines = 50;
// How often it is said whom the launcher waits for at the end.
constexpr absl::Duration kWaitReport = absl::Seconds(10);
// How often a line at the bottom of a terminal is brought up to date.
constexpr absl::Duration kStatusPeriod = absl::Seconds(1);
// More tasks are counted, not named.
constexpr size_t kMaxNames = 8;

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "0:05", "1:02:03".
std::string ElapsedText(absl::Duration elapsed) {
  const int64_t seconds = absl::ToInt64Seconds(elapsed);
  if (seconds < 3600) return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

Status SystemError(absl::string_view what) {
  return absl::InternalError(absl::StrCat("launch: ", what, ": ", std::strerror(errno)));
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

// Ports that the system does not give to connections: a connection that got a task's port before
// the task binds it would keep it, or even connect to itself.
struct PortRange {
  int low = 10240, high = 32767;
};

PortRange PortsForServers() {
  int first = 0, last = 0;
  FILE* file = std::fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
  if (file == nullptr) return PortRange();
  const int read = std::fscanf(file, "%d %d", &first, &last);
  std::fclose(file);
  if (read != 2) return PortRange();
  if (first > 12000) return {10240, first - 1};
  if (last < 63000) return {last + 1, 65535};
  return PortRange();  // No range is free of connections.
}

// Distinct ports of `host` that nobody listens on and that are not in `used`, to which they are
// added.
StatusOr<std::vector<int>> FreePorts(const std::string& host, size_t count, std::set<int>* used) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const auto bad_host = [&host](const char* reason) {
    return absl::InvalidArgumentError(absl::StrCat(
        "launch: --host must be an address of this machine, got '", host, "': ", reason));
  };
  if (const int error = getaddrinfo(host.c_str(), "0", &hints, &found); error != 0) {
    return bad_host(gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> address(found, freeaddrinfo);
  const PortRange range = PortsForServers();
  const auto width = static_cast<uint64_t>(range.high - range.low + 1);
  std::vector<int> ports;
  // A few tasks among thousands of ports: far more tries than are ever needed.
  for (int tries = 0; ports.size() < count; ++tries) {
    if (tries == 100000) {
      return absl::UnavailableError(absl::StrCat("launch: ", count, " free ports in [", range.low,
                                                 ", ", range.high, "] are needed, got ",
                                                 ports.size()));
    }
    const int port = range.low + static_cast<int>(RandomUint64() % width);
    if (used->count(port) > 0) continue;
    const uint16_t wire_port = htons(static_cast<uint16_t>(port));
    if (address->ai_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(address->ai_addr)->sin6_port = wire_port;
    } else {
      reinterpret_cast<sockaddr_in*>(address->ai_addr)->sin_port = wire_port;
    }
    const Fd fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.open()) return SystemError("socket");
    if (bind(fd.get(), address->ai_addr, address->ai_addrlen) != 0) {
      if (errno == EADDRINUSE || errno == EACCES) continue;
      return bad_host(std::strerror(errno));
    }
    used->insert(port);
    ports.push_back(port);
  }
  return ports;
}

// Signals as file descriptor; the former mask is restored.
class SignalReader {
 public:
  SignalReader() {
    sigset_t signals;
    sigemptyset(&signals);
    for (int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, s);
    sigprocmask(SIG_BLOCK, &signals, &former_);
    fd_ = Fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
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
  Fd fd_;
};

enum class Role { kPs, kChief, kWorker, kEvaluator };

struct Task {
  Role role = Role::kWorker;
  std::string job;
  int index = 0;
  std::string address;  // "" for an evaluator

  pid_t pid = -1;  // -1: not running
  Fd pipe;         // its stdout and stderr
  TaskOutput output;
  std::unique_ptr<WritableFile> log;
  absl::Time started;
  absl::Duration ran;
  int starts = 0;
  int lines_since_port = kPortLines;  // since its output said that its port is in use
  bool started_alone = false;         // not with all others: it had its port once
  bool asked = false;                 // to end
  bool killed_by_grace = false;       // it was asked to end and did not
  int wait_status = 0;                // of the last run

  std::string name() const { return absl::StrCat(job, " ", index); }
  bool running() const { return pid > 0; }
  bool port_in_use() const { return lines_since_port < kPortLines; }
  bool trainer() const { return role == Role::kChief || role == Role::kWorker; }
  // 128 + n for signal n.
  int code() const {
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  }
  bool succeeded() const { return starts > 0 && !running() && code() == 0; }
  // By a signal, or by its own handler of one.
  bool was_killed() const {
    return WIFSIGNALED(wait_status) || code() == 128 + SIGTERM || code() == 128 + SIGINT;
  }
  std::string ending() const {
    if (WIFSIGNALED(wait_status)) {
      return absl::StrCat("was killed by signal ", WTERMSIG(wait_status), " (",
                          strsignal(WTERMSIG(wait_status)), ")");
    }
    return absl::StrCat("ended with code ", code());
  }
};

class Launcher {
 public:
  explicit Launcher(const LocalClusterOptions& options)
      : options_(options), terminal_(isatty(options.output_fd) == 1) {
    const auto add = [this](Role role, const std::string& job, int count) {
      for (int i = 0; i < count; ++i) {
        Task& task = *tasks_.emplace_back(std::make_unique<Task>());
        task.role = role;
        task.job = job;
        task.index = i;
      }
    };
    add(Role::kPs, "ps", options.ps);
    if (!options.chief.empty()) add(Role::kChief, options.chief, 1);
    add(Role::kWorker, "worker", options.workers);
    if (options.evaluator) add(Role::kEvaluator, "evaluator", 1);
    // Who shows progress: the chief, else the first worker.
    for (const auto& task : tasks_) {
      if (task->trainer() && shown_ == nullptr) shown_ = task.get();
    }
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
    if (signals_.fd() < 0) return SystemError("signalfd");
    if (!options_.log_dir.empty()) {
      MR_RETURN_IF_ERROR(FileSystem::Posix()->RecursivelyCreateDirectory(options_.log_dir));
      for (const auto& task : tasks_) {
        MR_ASSIGN_OR_RETURN(
            task->log, FileSystem::Posix()->NewWritableFile(JoinPath(
                           options_.log_dir, absl::StrCat(task->job, "-", task->index, ".log"))));
      }
    }
    started_ = absl::Now();
    MR_RETURN_IF_ERROR(StartAll());
    while (AnyRunning()) {
      ShowOwnStatus();
      MR_RETURN_IF_ERROR(Wait());
      MR_RETURN_IF_ERROR(HandleSignals());
      MR_RETURN_IF_ERROR(HandleEnded());
      HandleDeadlines();
    }
    ShowStatus("");
    return Summary();
  }

 private:
  bool AnyRunning() const {
    return std::any_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return t->running(); });
  }
  bool TrainersRun() const {
    return std::any_of(tasks_.begin(), tasks_.end(),
                       [](const auto& t) { return t->trainer() && t->running(); });
  }

  // Output.

  // Replaces the line at the bottom of a terminal.
  void ShowStatus(const std::string& text) {
    if (!terminal_) return;
    std::string line = text;
    winsize size = {};
    if (ioctl(options_.output_fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 &&
        line.size() >= size.ws_col) {
      line.resize(static_cast<size_t>(size.ws_col - 1));
    }
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

  void Report(absl::string_view text) { Print(absl::StrCat("launch: ", text)); }

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
      ShowStatus(absl::StrCat("launch: ", RunningText()));
      next_status_ = now + kStatusPeriod;
    }
  }

  void PrintLines(Task* task, const std::vector<std::string>& lines) {
    if (!terminal_ && !lines.empty()) next_status_ = absl::Now() + options_.silence;
    for (const std::string& line : lines) {
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
      Print(absl::StrCat("[", task->name(), "] ", line));
    }
    if (task->log != nullptr && !lines.empty()) task->log->Flush().IgnoreError();
  }

  void ReadOutput(Task* task, int max_reads) {
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
      // A status that has become a line is not shown twice.
      if (changed && task == shown_) {
        task_shows_status_ = true;
        ShowStatus("");
      }
      PrintLines(task, lines);
      if (changed && task == shown_) {
        ShowStatus(task->output.status().empty()
                       ? ""
                       : absl::StrCat("[", task->name(), "] ", task->output.status()));
      }
    }
  }

  // Starting.

  Status StartAll() {
    const auto with_port =
        static_cast<size_t>(std::count_if(tasks_.begin(), tasks_.end(), [](const auto& task) {
          return task->role != Role::kEvaluator;
        }));
    MR_ASSIGN_OR_RETURN(const std::vector<int> ports,
                        FreePorts(options_.host, with_port, &used_ports_));
    addresses_.clear();
    size_t next = 0;
    for (const auto& task : tasks_) {
      if (task->role == Role::kEvaluator) continue;
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
      MR_RETURN_IF_ERROR(Start(task.get()));
    }
    return absl::OkStatus();
  }

  Status Start(Task* task) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe");
    Fd reader(ends[0]), writer(ends[1]);
    if (fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0) return SystemError("fcntl");

    // Everything that allocates comes before fork.
    std::vector<std::string> environment = {
        absl::StrCat("TF_CONFIG=", TfConfigText(addresses_, task->job, task->index)),
        absl::StrCat("MILLRACE_PROGRESS=", terminal_ && task == shown_ ? "live" : "plain")};
    for (char** e = environ; *e != nullptr; ++e) {
      if (!absl::StartsWith(*e, "TF_CONFIG=") && !absl::StartsWith(*e, "MILLRACE_PROGRESS=")) {
        environment.push_back(*e);
      }
    }
    std::vector<char*> envp, argv;
    for (std::string& e : environment) envp.push_back(e.data());
    envp.push_back(nullptr);
    std::vector<std::string> arguments = options_.command;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    const std::string cannot =
        absl::StrCat("launch: cannot run '", arguments[0], "': no such program\n");

    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) return SystemError("fork");
    if (pid == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(128 + SIGKILL);
      const int null = open("/dev/null", O_RDONLY);
      if (null >= 0) dup2(null, 0);
      if (null > 2) close(null);
      dup2(writer.get(), 1);
      dup2(writer.get(), 2);
      signal(SIGPIPE, SIG_DFL);
      sigprocmask(SIG_SETMASK, &signals_.former(), nullptr);
      execvpe(argv[0], argv.data(), envp.data());
      [[maybe_unused]] const ssize_t n = write(2, cannot.data(), cannot.size());
      _exit(127);
    }
    setpgid(pid, pid);  // whoever of the two comes first
    task->pid = pid;
    task->pipe = std::move(reader);
    task->output = TaskOutput();
    task->lines_since_port = kPortLines;
    task->asked = task->killed_by_grace = false;
    task->started = absl::Now();
    ++task->starts;
    Report(absl::StrCat(task->name(), " started",
                        task->address.empty() ? "" : absl::StrCat(" at ", task->address), ", pid ",
                        pid));
    return absl::OkStatus();
  }

  // Ending.

  void Signal(Task* task, int signal) {
    if (task->running()) kill(-task->pid, signal);
  }

  // Asks the parameter servers, or all others, to end; they are killed after the grace.
  void AskToEnd(int signal, bool ps) {
    for (const auto& task : tasks_) {
      if ((task->role == Role::kPs) != ps || !task->running() || task->asked) continue;
      task->asked = true;
      Signal(task.get(), signal);
      deadline_ = absl::Now() + options_.grace;
    }
  }

  // Trainers and evaluator first: what they do at their end may need the parameter servers.
  void EndJob(int code, int signal) {
    if (!job_code_) job_code_ = code;
    ending_ = true;
    ending_signal_ = signal;
    next_report_ = absl::Now() + kWaitReport;
    AskToEnd(signal, /*ps=*/false);
    AskPsWhenOthersEnded();
  }

  void AskPsWhenOthersEnded() {
    const bool others_run = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& task) {
      return task->role != Role::kPs && task->running();
    });
    if (!others_run) AskToEnd(ending_signal_, /*ps=*/true);
  }

  // Blocks until something happens.
  Status Wait() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<Task*> readers;
    for (const auto& task : tasks_) {
      if (!task->pipe.open()) continue;
      fds.push_back({task->pipe.get(), POLLIN, 0});
      readers.push_back(task.get());
    }
    const absl::Time next = std::min({deadline_, next_report_, next_status_});
    int timeout_ms = -1;
    if (next != absl::InfiniteFuture()) {
      timeout_ms = static_cast<int>(
          std::clamp<int64_t>(absl::ToInt64Milliseconds(next - absl::Now()) + 1, 0, 60000));
    }
    if (poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) return SystemError("poll");
    for (size_t i = 0; i < readers.size(); ++i) {
      if (fds[i + 1].revents != 0) ReadOutput(readers[i], kReadsPerTurn);
    }
    return absl::OkStatus();
  }

  Status HandleSignals() {
    while (const int signal = signals_.Read()) {
      if (signal == SIGCHLD) continue;  // HandleEnded looks at every task.
      if (signalled_) {
        Report("second signal: killing all tasks");
        for (const auto& task : tasks_) Signal(task.get(), SIGKILL);
        continue;
      }
      signalled_ = true;
      Report(absl::StrCat("got signal ", signal, " (", strsignal(signal),
                          "), passing it on to all tasks; a second one kills them"));
      job_code_ = 128 + signal;
      // A task may be stopped or ignore SIGHUP and SIGINT as background jobs do.
      EndJob(128 + signal, signal == SIGHUP ? SIGTERM : signal);
    }
    return absl::OkStatus();
  }

  // Collects a task that has ended: its last output, what is left of its process group.
  void Collect(Task* task) {
    ReadOutput(task, kLastReads);
    // The zombie keeps the number of the group from being used for another.
    kill(-task->pid, SIGKILL);
    waitpid(task->pid, &task->wait_status, 0);
    ReadOutput(task, kLastReads);
    task->pipe.Close();
    std::vector<std::string> rest;
    task->output.Finish(&rest);
    PrintLines(task, rest);
    if (task == shown_) ShowStatus("");
    task->ran += absl::Now() - task->started;
    task->pid = -1;
  }

  bool HasEnded(const Task& task) const {
    if (!task.running()) return false;
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(task.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == task.pid;
  }

  Status HandleEnded() {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      Task* task = tasks_[i].get();
      if (!HasEnded(*task)) continue;
      Collect(task);
      if (ending_) {
        ReportEnding(*task);
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
        EndJob(task->code(), SIGTERM);
        continue;
      }
      if (task->code() == 0 || (trainers_ended_ && task->role == Role::kPs)) {
        ReportEnding(*task);
      } else if (task->role == Role::kWorker || task->role == Role::kEvaluator) {
        Report(absl::StrCat(task->name(), " ", task->ending(), "; the job goes on"));
      } else if (restarts_left_ > 0) {
        --restarts_left_;
        Report(absl::StrCat(task->name(), " ", task->ending(), "; starting it again (",
                            options_.restarts - restarts_left_, " of ", options_.restarts, ")"));
        task->started_alone = true;
        MR_RETURN_IF_ERROR(Start(task));
      } else {
        Report(absl::StrCat(task->name(), " ", task->ending(), "; the job ends"));
        EndJob(task->code(), SIGTERM);
      }
    }
    if (ending_) AskPsWhenOthersEnded();
    if (!ending_ && !trainers_ended_ && !TrainersRun()) {
      trainers_ended_ = true;
      if (options_.ps > 0) Report("all trainers have ended; ending ps");
      AskToEnd(SIGTERM, /*ps=*/true);
      next_report_ = absl::Now() + kWaitReport;
    }
    return absl::OkStatus();
  }

  void ReportEnding(const Task& task) {
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
        if (!task->running() || !task->asked) continue;
        task->killed_by_grace = true;
        Signal(task.get(), SIGKILL);
      }
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
    Report(absl::StrFormat("%-14s %-10s %-8s %s", "task", "ended", "seconds", "starts"));
    std::optional<int> chief, worker_failed, worker_killed;
    bool worker_succeeded = false;
    for (const auto& task : tasks_) {
      const std::string ended = WIFSIGNALED(task->wait_status)
                                    ? absl::StrCat("signal ", WTERMSIG(task->wait_status))
                                    : absl::StrCat("exit ", task->code());
      Report(absl::StrFormat("%-14s %-10s %-8.1f %d", task->name(), ended,
                             absl::ToDoubleSeconds(task->ran), task->starts));
      if (task->role == Role::kChief) chief = task->code();
      if (task->role != Role::kWorker) continue;
      if (task->succeeded()) {
        worker_succeeded = true;
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
    } else if (!chief && !worker_succeeded && worker_killed) {
      code = *worker_killed;
    }
    Report(absl::StrCat("job ended with code ", code));
    return code;
  }

  const LocalClusterOptions& options_;
  const bool terminal_;
  SignalReader signals_;
  std::vector<std::unique_ptr<Task>> tasks_;
  Task* shown_ = nullptr;
  std::vector<std::pair<std::string, std::vector<std::string>>> addresses_;
  std::string status_;

  std::set<int> used_ports_;
  int restarts_left_ = 0;
  int port_retries_ = 0;
  bool trainers_ended_ = false;
  bool ending_ = false;  // all tasks were asked to end
  bool signalled_ = false;
  int ending_signal_ = SIGTERM;
  bool task_shows_status_ = false;  // a task writes a progress line
  std::optional<int> job_code_;
  absl::Time deadline_ = absl::InfiniteFuture();     // when those who were asked are killed
  absl::Time next_report_ = absl::InfiniteFuture();  // when it is said who is waited for
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

bool TaskOutput::Add(absl::string_view data, std::vector<std::string>* lines) {
  for (char c : data) {
    if (return_seen_ && c != '\n') {
      // What came before is overwritten, except when nothing follows it.
      line_.clear();
      after_return_ = true;
    }
    return_seen_ = c == '\r';
    if (c == '\r') continue;
    if (c == '\n' || line_.size() >= kMaxLine) {
      if (after_return_) line_.erase(line_.find_last_not_of(' ') + 1);
      lines->push_back(std::move(line_));
      line_.clear();
      after_return_ = false;
    }
    if (c != '\n') line_ += c;
  }
  std::string status;
  if (after_return_ || return_seen_) status = line_;
  status.erase(status.find_last_not_of(' ') + 1);
  const bool changed = status != status_;
  status_ = std::move(status);
  return changed;
}

void TaskOutput::Finish(std::vector<std::string>* lines) {
  if (after_return_ || return_seen_) line_.erase(line_.find_last_not_of(' ') + 1);
  if (!line_.empty()) lines->push_back(std::move(line_));
  *this = TaskOutput();
}

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
    return absl::InvalidArgumentError("launch: a program must follow the flags, got none");
  }
  if (options.chief.empty() && options.workers == 0) {
    return absl::InvalidArgumentError(
        "launch: a job must have a trainer, got none; use --master, --chief or --workers=N");
  }
  for (const int count : {options.ps, options.workers, options.restarts}) {
    if (count < 0 || count > 1000) {
      return absl::InvalidArgumentError(
          absl::StrCat("launch: --ps, --workers and --restarts must be in [0, 1000], got ", count));
    }
  }
  if (!options.chief.empty() && options.chief != "master" && options.chief != "chief") {
    return absl::InvalidArgumentError(
        absl::StrCat("launch: chief must be 'master' or 'chief', got '", options.chief, "'"));
  }
  const int trainers = options.workers + (options.chief.empty() ? 0 : 1);
  if (trainers > 1 && options.ps == 0) {
    return InvalidArgument("launch: ", trainers,
                           " trainers must share their variables on parameter servers, got --ps=0: "
                           "each would train a model of its own; add --ps=1");
  }
  return Launcher(options).Run();
}

}  // namespace millrace
