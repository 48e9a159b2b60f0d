// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/testing/free_port.h"

extern char** environ;

namespace millrace {
namespace {

constexpr size_t kTailLines = 25;
// A killed process's output ends when its last child has gone; they are killed with it.
constexpr absl::Duration kOutputGrace = absl::Seconds(5);

Status SystemError(absl::string_view what, int error) {
  return absl::UnknownError(absl::StrCat(what, ": ", strerror(error)));
}

int Milliseconds(absl::Duration timeout) {
  const int64_t ms = absl::ToInt64Milliseconds(timeout);
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1 << 30));
}

// Only calls that are allowed between fork and exec.
[[noreturn]] void RunChild(const char* program, char* const* argv, char* const* envp, int out,
                           pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);  // it died before the line above
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(program, argv, envp);
  static constexpr char kText[] = "exec failed\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(127);
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

StatusOr<std::unique_ptr<Process>> Process::Start(const ProcessOptions& options) {
  std::vector<std::string> argv = {options.program};
  argv.insert(argv.end(), options.args.begin(), options.args.end());
  std::vector<std::string> env;
  for (char** e = environ; *e != nullptr; ++e) {
    const absl::string_view entry = *e;
    if (options.env.count(std::string(entry.substr(0, entry.find('=')))) == 0) {
      env.emplace_back(entry);
    }
  }
  for (const auto& [key, value] : options.env) env.push_back(absl::StrCat(key, "=", value));
  const std::vector<char*> argv_pointers = Pointers(argv), env_pointers = Pointers(env);

  if (access(options.program.c_str(), X_OK) != 0) {
    return SystemError(absl::StrCat("Process: program ", options.program, " must be executable"),
                       errno);
  }
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return SystemError("Process: pipe", errno);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    close(fds[0]);
    close(fds[1]);
    return SystemError("Process: fork", error);
  }
  if (pid == 0) {
    RunChild(options.program.c_str(), argv_pointers.data(), env_pointers.data(), fds[1], parent);
  }
  setpgid(pid, pid);  // as the child does, whoever is first
  close(fds[1]);
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pid_fd < 0) {
    const int error = errno;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(fds[0]);
    return SystemError("Process: pidfd_open", error);
  }
  return std::unique_ptr<Process>(new Process(options.name.empty() ? options.program : options.name,
                                              pid, pid_fd, fds[0], options.log_path));
}

Process::Process(std::string name, pid_t pid, int pid_fd, int pipe_fd, std::string log_path)
    : name_(std::move(name)), pid_(pid), pid_fd_(pid_fd), pipe_fd_(pipe_fd) {
  if (pipe2(stop_fds_, O_CLOEXEC) != 0) stop_fds_[0] = stop_fds_[1] = -1;
  const int log_fd = log_path.empty()
                         ? -1
                         : open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  reader_ = std::thread([this, log_fd] { Read(log_fd); });
}

Process::~Process() {
  if (!exit_code().has_value()) kill(-pid_, SIGKILL);
  Poll(absl::Seconds(60));
  {
    MutexLock lock(&mu_);
    const absl::Time deadline = absl::Now() + kOutputGrace;
    while (!eof_ && absl::Now() < deadline) {
      changed_.WaitWithTimeout(&mu_, deadline - absl::Now());
    }
  }
  const char byte = 0;
  [[maybe_unused]] const ssize_t n = write(stop_fds_[1], &byte, 1);
  reader_.join();
  close(stop_fds_[0]);
  close(stop_fds_[1]);
  close(pipe_fd_);
  close(pid_fd_);
}

void Process::Read(int log_fd) {
  char buffer[4096];
  while (true) {
    pollfd fds[2] = {{pipe_fd_, POLLIN, 0}, {stop_fds_[0], POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (fds[0].revents == 0) break;  // told to stop
    const ssize_t n = read(pipe_fd_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (log_fd >= 0) {
      [[maybe_unused]] const ssize_t written = write(log_fd, buffer, static_cast<size_t>(n));
    }
    MutexLock lock(&mu_);
    absl::string_view text(buffer, static_cast<size_t>(n));
    while (!text.empty()) {
      if (!line_open_) lines_.emplace_back();
      const size_t end = text.find('\n');
      lines_.back().append(text.data(), std::min(end, text.size()));
      line_open_ = end == absl::string_view::npos;
      text.remove_prefix(line_open_ ? text.size() : end + 1);
    }
    changed_.SignalAll();
  }
  if (log_fd >= 0) close(log_fd);
  MutexLock lock(&mu_);
  eof_ = true;
  line_open_ = false;
  changed_.SignalAll();
}

std::vector<std::string> Process::lines() const {
  MutexLock lock(&mu_);
  return lines_;
}

std::string Process::output() const { return absl::StrJoin(lines(), "\n"); }

std::string Process::Tail() const {
  const std::vector<std::string> all = lines();
  const size_t first = all.size() > kTailLines ? all.size() - kTailLines : 0;
  return absl::StrJoin(all.begin() + static_cast<ptrdiff_t>(first), all.end(), "\n  ");
}

std::optional<std::string> Process::FindLastLine(absl::string_view text) const {
  MutexLock lock(&mu_);
  for (auto it = lines_.rbegin(); it != lines_.rend(); ++it) {
    if (absl::StrContains(*it, text)) return *it;
  }
  return std::nullopt;
}

StatusOr<std::string> Process::WaitForLine(absl::string_view text, absl::Duration timeout,
                                           size_t* from) {
  const absl::Time deadline = absl::Now() + timeout;
  size_t next = from == nullptr ? 0 : *from;
  bool eof = false;
  {
    MutexLock lock(&mu_);
    while (true) {
      const size_t complete = lines_.size() - (line_open_ ? 1 : 0);
      for (; next < complete; ++next) {
        if (!absl::StrContains(lines_[next], text)) continue;
        if (from != nullptr) *from = next + 1;
        return lines_[next];
      }
      const absl::Duration left = deadline - absl::Now();
      eof = eof_;
      if (eof || left <= absl::ZeroDuration()) break;
      changed_.WaitWithTimeout(&mu_, left);
    }
  }
  const std::string message =
      absl::StrCat(name_, ": must print '", text, "', got ",
                   eof ? "the end of its output"
                       : absl::StrCat("nothing such in ", absl::FormatDuration(timeout)),
                   "; its last lines:\n  ", Tail());
  return eof ? absl::OutOfRangeError(message) : absl::DeadlineExceededError(message);
}

Status Process::Signal(int signal) {
  MutexLock lock(&wait_mu_);
  if (exit_code_.has_value()) {
    return absl::NotFoundError(absl::StrCat(name_, ": must be running to get signal ", signal,
                                            ", got exit code ", *exit_code_));
  }
  // Not reaped yet, so the number cannot be another process's.
  if (kill(pid_, signal) != 0) return SystemError(absl::StrCat(name_, ": kill"), errno);
  return absl::OkStatus();
}

bool Process::Poll(absl::Duration timeout) {
  {
    MutexLock lock(&wait_mu_);
    if (exit_code_.has_value()) return true;
  }
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    pollfd fd = {pid_fd_, POLLIN, 0};
    const int ready = poll(&fd, 1, Milliseconds(deadline - absl::Now()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    break;
  }
  MutexLock lock(&wait_mu_);
  if (exit_code_.has_value()) return true;
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return false;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // Its number stays that of the group as long as somebody is in it.
  left_processes_ = kill(-pid_, SIGKILL) == 0;
  return true;
}

std::optional<int> Process::exit_code() {
  Poll(absl::ZeroDuration());
  MutexLock lock(&wait_mu_);
  return exit_code_;
}

bool Process::left_processes() {
  MutexLock lock(&wait_mu_);
  return left_processes_;
}

StatusOr<int> Process::WaitForExit(absl::Duration timeout) {
  if (!Poll(timeout)) {
    return absl::DeadlineExceededError(absl::StrCat(name_, ": must end within ",
                                                    absl::FormatDuration(timeout),
                                                    ", got none; its last lines:\n  ", Tail()));
  }
  {
    MutexLock lock(&mu_);
    const absl::Time deadline = absl::Now() + kOutputGrace;
    while (!eof_ && absl::Now() < deadline) {
      changed_.WaitWithTimeout(&mu_, deadline - absl::Now());
    }
  }
  MutexLock lock(&wait_mu_);
  return *exit_code_;
}

ClusterPorts FreeClusterPorts(int ps, int masters, int workers) {
  return {.ps = FreePorts(ps), .master = FreePorts(masters), .worker = FreePorts(workers)};
}

std::string ClusterSpecJson(const ClusterPorts& ports) {
  std::vector<std::string> jobs;
  const auto add = [&](absl::string_view job, const std::vector<int>& tasks) {
    if (tasks.empty()) return;
    jobs.push_back(absl::StrCat("\"", job, "\": [",
                                absl::StrJoin(tasks, ", ",
                                              [&](std::string* out, int port) {
                                                absl::StrAppend(out, "\"", ports.host, ":", port,
                                                                "\"");
                                              }),
                                "]"));
  };
  add("ps", ports.ps);
  add("master", ports.master);
  add("chief", ports.chief);
  add("worker", ports.worker);
  return absl::StrCat("{", absl::StrJoin(jobs, ", "), "}");
}

std::string TfConfig(const ClusterPorts& ports, absl::string_view job, int task) {
  return absl::StrCat("{\"cluster\": ", ClusterSpecJson(ports), ", \"task\": {\"type\": \"", job,
                      "\", \"index\": ", task, "}}");
}

bool EndedBecausePortIsInUse(Process* process) {
  const std::optional<int> code = process->exit_code();
  if (!code.has_value() || *code == 0) return false;
  return process->FindLastLine("in use").has_value();
}

}  // namespace millrace
