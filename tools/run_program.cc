// SPDX-License-Identifier: Apache-2.0
#include "tools/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/owned_fd.h"

extern char** environ;

namespace millrace {
namespace {

// What two pipes have, until both are closed.
Status ReadBoth(OwnedFd* output, OwnedFd* complaint, ProgramEnd* end) {
  char buffer[4096];
  while (output->open() || complaint->open()) {
    pollfd fds[2] = {{output->get(), POLLIN, 0}, {complaint->get(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return Internal("poll: ", std::strerror(errno));
    for (int i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      OwnedFd* const pipe = i == 0 ? output : complaint;
      std::string* const text = i == 0 ? &end->output : &end->complaint;
      const ssize_t n = read(pipe->get(), buffer, sizeof(buffer));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        pipe->Close();
        continue;
      }
      text->append(buffer, static_cast<size_t>(n));
      if (text->size() > kMaxProgramOutput) {
        return absl::ResourceExhaustedError(absl::StrCat("a program's output must have at most ",
                                                         kMaxProgramOutput,
                                                         " bytes, got a longer one"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<ProgramEnd> RunProgram(const std::vector<std::string>& argv) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return Internal("pipe: ", std::strerror(errno));
  OwnedFd output(out[0]), output_writer(out[1]);
  if (pipe2(err, O_CLOEXEC) != 0) return Internal("pipe: ", std::strerror(errno));
  OwnedFd complaint(err[0]), complaint_writer(err[1]);

  std::vector<std::string> copy = argv;
  std::vector<char*> words;
  for (std::string& word : copy) words.push_back(word.data());
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output_writer.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, complaint_writer.get(), 2);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat("program '", argv[0], "' must be installed, got no such file"));
  }
  if (error != 0) return Internal("program '", argv[0], "': ", std::strerror(error));
  output_writer.Close();
  complaint_writer.Close();
  ProgramEnd end;
  const Status read = ReadBoth(&output, &complaint, &end);
  output.Close();
  complaint.Close();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  MR_RETURN_IF_ERROR(read);
  end.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return end;
}

}  // namespace millrace
