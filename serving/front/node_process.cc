// SPDX-License-Identifier: Apache-2.0
#include "serving/front/node_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

extern char** environ;

namespace millrace {
namespace {

constexpr size_t kReadSize = 16 << 10;
constexpr int kReadsPerTurn = 4;
constexpr size_t kMaxLine = 16 << 10;  // longer ones are cut into several
constexpr absl::Duration kKillTime = absl::Seconds(10);

Status NodeSystemError(absl::string_view what) {
  return Internal("Node process: ", what, ": ", std::strerror(errno));
}

OwnedFd OpenProcess(pid_t pid) {
  return OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// Only calls that are allowed between fork and exec.
[[noreturn]] void RunChild(char* const* argv, int output, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(128 + SIGKILL);  // it died before the line above
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  if (null > STDERR_FILENO) close(null);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(argv[0], argv);
  const char* const why = strerrordesc_np(errno);
  for (const char* const part :
       {"cannot run ", static_cast<const char*>(argv[0]), ": ", why, "\n"}) {
    [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, part, strlen(part));
  }
  _exit(127);
}

}  // namespace

StatusOr<std::unique_ptr<NodeProcess>> NodeProcess::Start(std::vector<std::string> command) {
  // Everything that allocates comes before fork.
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return NodeSystemError("pipe");
  OwnedFd reader(ends[0]), writer(ends[1]);
  if (fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0) return NodeSystemError("fcntl");
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return NodeSystemError("fork");
  if (pid == 0) RunChild(argv.data(), writer.get(), parent);
  setpgid(pid, pid);  // as the child does, whoever is first
  OwnedFd end = OpenProcess(pid);
  if (!end.open()) {
    const Status error = NodeSystemError("pidfd_open");
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return error;
  }
  return std::unique_ptr<NodeProcess>(new NodeProcess(pid, std::move(end), std::move(reader)));
}

NodeProcess::~NodeProcess() {
  if (exit_code().has_value()) return;
  kill(-pid_, SIGKILL);
  Reap(/*wait=*/true);
}

void NodeProcess::ReadOutput(const std::function<void(absl::string_view line)>& line) {
  char piece[kReadSize];
  for (int i = 0; i < kReadsPerTurn && output_fd_.open(); ++i) {
    const ssize_t got = read(output_fd_.get(), piece, sizeof(piece));
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      if (!partial_line_.empty()) line(partial_line_);
      partial_line_.clear();
      output_fd_.Close();
      return;
    }
    absl::string_view text(piece, static_cast<size_t>(got));
    while (!text.empty()) {
      const size_t end = text.find('\n');
      partial_line_.append(text.data(), std::min(end, text.size()));
      if (end == absl::string_view::npos && partial_line_.size() < kMaxLine) break;
      line(partial_line_);
      partial_line_.clear();
      text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
    }
  }
}

void NodeProcess::Signal(int signal) {
  // Not reaped yet, so the number cannot be another process's.
  if (!exit_code_.has_value()) kill(pid_, signal);
}

std::optional<int> NodeProcess::exit_code() {
  if (!exit_code_.has_value()) Reap(/*wait=*/false);
  return exit_code_;
}

void NodeProcess::Reap(bool wait) {
  int status = 0;
  pid_t ended;
  do {
    ended = waitpid(pid_, &status, wait ? 0 : WNOHANG);
  } while (ended < 0 && errno == EINTR);
  if (ended == 0) return;
  exit_code_ = ended != pid_       ? 128
               : WIFEXITED(status) ? WEXITSTATUS(status)
                                   : 128 + WTERMSIG(status);
  // Its number stays that of the group as long as somebody is in it.
  kill(-pid_, SIGKILL);
}

int KillProcessesWith(absl::string_view argument_part) {
  std::vector<OwnedFd> killed;
  DIR* const processes = opendir("/proc");
  if (processes == nullptr) return 0;
  while (const dirent* const entry = readdir(processes)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == getpid()) continue;
    // Opened before it is looked at: a number that is given to another process later harms nobody.
    OwnedFd process = OpenProcess(pid);
    const std::string directory = absl::StrCat("/proc/", pid);
    struct stat info = {};
    if (!process.open() || stat(directory.c_str(), &info) != 0 || info.st_uid != geteuid())
      continue;
    std::ifstream file(absl::StrCat(directory, "/cmdline"), std::ios::binary);
    const std::string command((std::istreambuf_iterator<char>(file)), {});
    if (!absl::StrContains(command, argument_part)) continue;
    if (syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0) {
      killed.push_back(std::move(process));
    }
  }
  closedir(processes);
  const absl::Time deadline = absl::Now() + kKillTime;
  for (const OwnedFd& process : killed) {
    pollfd end = {.fd = process.get(), .events = POLLIN, .revents = 0};
    const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    poll(&end, 1, static_cast<int>(std::max<int64_t>(ms, 0)));
  }
  return static_cast<int>(killed.size());
}

}  // namespace millrace
