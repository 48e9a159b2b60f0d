// SPDX-License-Identifier: Apache-2.0
//
// fake_task: a task of a cluster that does what its arguments say, for tests of launchers.
//
//   fake_task worker1='say:hello;signal:9' ps='until_term' '*=exit:0'
//
// The first argument whose left part is the task ("worker1"), its job ("worker") or "*" counts;
// its actions are done in order and the task exits with 0 after the last:
//   say:TEXT       a line on stdout              status:TEXT  "\rTEXT" without an end
//   err:TEXT       a line on stderr              config       TF_CONFIG and MILLRACE_PROGRESS
//   exit:N         ends                          signal:N     sends itself a signal
//   lines:N        N lines on stdout             flood        lines without end; SIGTERM ends it
//   until_term     waits for SIGTERM             ignore_term  SIGTERM has no effect
//   until_int      says "ready", waits for SIGINT; later ones stay pending
//   pending        says whether a SIGINT is pending
//   forever        waits for ever
//   open:FIFO      opens it for writing, keeps it open until the process ends
//   await:FIFO     waits until nobody has it open for writing
//   alone:FIFO     says whether nobody has it open for writing
//   once:FILE      goes on only for the first process that comes here (creates FILE); later ones
//                  skip the next action
//   fds            the numbers of its open files, in one line
//   threads        with how many threads it computes
//   job            MILLRACE_JOB_NAME, MILLRACE_JOB_DIR, and the arguments from the first flag on
//   file_limit     how many files it may open
//   child          forks a process that waits for ever and keeps all files open
//
// A task that cannot do what it was told exits with 99.

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/arena.h"
#include "distributed/cluster/slurm_environment.h"

namespace {

constexpr char kOneMaster[] = R"({"task": {"type": "master", "index": 0}})";

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "fake_task: %s: %s\n", what.c_str(), std::strerror(errno));
  std::_Exit(99);
}

// The text between `before` and the next of `ends`.
std::string Between(const std::string& text, const std::string& before, const std::string& ends) {
  const size_t at = text.find(before);
  if (at == std::string::npos) return "";
  const size_t begin = at + before.size();
  return text.substr(begin, text.find_first_of(ends, begin) - begin);
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

void WaitFor(int number) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, number);
  int signal = 0;
  if (sigwait(&signals, &signal) != 0) Fail("sigwait");
}

void Await(const std::string& fifo) {
  const int fd = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  if (fd < 0) Fail(fifo);
  char c;
  while (read(fd, &c, 1) != 0) {
    pollfd wait = {fd, POLLIN, 0};
    poll(&wait, 1, -1);
  }
  close(fd);
}

// The arguments that are no tasks': " --job-dir out".
std::string flags;

// Returns false when the next action is to be skipped.
bool Do(const std::string& action) {
  const size_t colon = action.find(':');
  const std::string verb = action.substr(0, colon);
  const std::string argument = colon == std::string::npos ? "" : action.substr(colon + 1);
  if (verb == "say") {
    std::printf("%s\n", argument.c_str());
  } else if (verb == "status") {
    std::printf("\r%s", argument.c_str());
  } else if (verb == "lines") {
    for (int i = 0; i < std::atoi(argument.c_str()); ++i) std::printf("line %d\n", i);
  } else if (verb == "flood") {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    std::string lines;
    while (lines.size() < 65536) lines += "f\n";
    while (write(1, lines.data(), lines.size()) > 0 || errno == EINTR) {
    }
  } else if (verb == "err") {
    std::fprintf(stderr, "%s\n", argument.c_str());
  } else if (verb == "config") {
    const char* progress = std::getenv("MILLRACE_PROGRESS");
    std::printf("config %s progress %s\n", std::getenv("TF_CONFIG"),
                progress == nullptr ? "(none)" : progress);
  } else if (verb == "exit") {
    std::fflush(stdout);
    std::_Exit(std::atoi(argument.c_str()));
  } else if (verb == "signal") {
    std::fflush(stdout);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    raise(std::atoi(argument.c_str()));
  } else if (verb == "until_term") {
    std::fflush(stdout);
    WaitFor(SIGTERM);
    std::printf("got SIGTERM\n");
  } else if (verb == "until_int") {
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, nullptr);
    std::printf("ready\n");
    std::fflush(stdout);
    WaitFor(SIGINT);
    std::printf("got SIGINT\n");
  } else if (verb == "pending") {
    sigset_t pending;
    sigpending(&pending);
    std::printf("SIGINT is %spending\n", sigismember(&pending, SIGINT) == 1 ? "" : "not ");
  } else if (verb == "alone") {
    const int fd = open(argument.c_str(), O_RDONLY | O_NONBLOCK);
    if (fd < 0) Fail(argument);
    char c;
    std::printf("%s\n", read(fd, &c, 1) == 0 ? "alone" : "not alone");
    close(fd);
  } else if (verb == "ignore_term") {
    signal(SIGTERM, SIG_IGN);
  } else if (verb == "forever") {
    std::fflush(stdout);
    while (true) pause();
  } else if (verb == "open") {
    // Read and write: opening does not wait for a reader.
    if (open(argument.c_str(), O_RDWR) < 0) Fail(argument);
  } else if (verb == "await") {
    std::fflush(stdout);
    Await(argument);
  } else if (verb == "once") {
    const int fd = open(argument.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd < 0 && errno != EEXIST) Fail(argument);
    if (fd >= 0) close(fd);
    return fd >= 0;
  } else if (verb == "fds") {
    std::string open_files = "fds";
    for (int fd = 0; fd < 1024; ++fd) {
      if (fcntl(fd, F_GETFD) >= 0) open_files += " " + std::to_string(fd);
    }
    std::printf("%s\n", open_files.c_str());
  } else if (verb == "threads") {
    std::printf("threads %d\n", millrace::Arena::Default()->num_threads());
  } else if (verb == "job") {
    const char* const name = std::getenv("MILLRACE_JOB_NAME");
    const char* const dir = std::getenv("MILLRACE_JOB_DIR");
    std::printf("job %s in %s%s\n", name == nullptr ? "(none)" : name,
                dir == nullptr ? "(none)" : dir, flags.c_str());
  } else if (verb == "file_limit") {
    rlimit limit = {};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) Fail("getrlimit");
    std::printf("file limit %lld\n", static_cast<long long>(limit.rlim_cur));
  } else if (verb == "child") {
    std::fflush(stdout);
    const pid_t pid = fork();
    if (pid < 0) Fail("fork");
    if (pid == 0) {
      while (true) pause();
    }
  } else {
    errno = EINVAL;
    Fail(action);
  }
  std::fflush(stdout);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  // SIGTERM waits until an action asks for it, "forever" and "ignore_term" included.
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, nullptr);

  if (std::getenv("TF_CONFIG") == nullptr) {
    // In a job of Slurm's; its only task is the master.
    const auto text = millrace::TfConfigOfSlurm([](const char* name) { return std::getenv(name); });
    if (!text.ok()) Fail(std::string(text.status().message()));
    setenv("TF_CONFIG", text->empty() ? kOneMaster : text->c_str(), 1);
  }
  std::string config = std::getenv("TF_CONFIG");
  config.erase(std::remove(config.begin(), config.end(), ' '), config.end());
  const std::string task = Between(config, "\"task\":", "}");
  const std::string job = Between(task, "\"type\":\"", "\"");
  const std::string name = job + Between(task, "\"index\":", "}");
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] == '-' || !flags.empty()) flags += std::string(" ") + argv[i];
  }
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string who = argument.substr(0, equals);
    if (who != name && who != job && who != "*") continue;
    bool skip = false;
    for (const std::string& action : Split(argument.substr(equals + 1), ';')) {
      if (skip || action.empty()) {
        skip = false;
        continue;
      }
      skip = !Do(action);
    }
    return 0;
  }
  return 0;
}
