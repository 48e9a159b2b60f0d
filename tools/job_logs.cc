// SPDX-License-Identifier: Apache-2.0
#include "tools/job_logs.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/owned_fd.h"
#include "tools/slurm_job.h"
#include "tools/task_record.h"

namespace millrace {
namespace {

constexpr absl::Duration kFollowPoll = absl::Milliseconds(200);
constexpr size_t kReadSize = 64 << 10;

// A file that grows, and may not be there yet.
class GrowingLog {
 public:
  // `name`: "" or what is before each line.
  GrowingLog(std::string path, std::string name) : path_(std::move(path)), name_(std::move(name)) {}

  bool was_there() const { return file_.open(); }

  // Prints what has come. True when there was something.
  StatusOr<bool> Print(int output_fd) {
    if (!file_.open()) file_ = OwnedFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file_.open()) return false;
    bool any = false;
    std::string buffer(kReadSize, '\0');
    for (;;) {
      const ssize_t n = read(file_.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        return absl::UnavailableError(
            absl::StrCat("File '", path_, "': read: ", std::strerror(errno)));
      }
      if (n == 0) return any;
      any = true;
      rest_.append(buffer, 0, static_cast<size_t>(n));
      MR_RETURN_IF_ERROR(PrintLines(output_fd, /*all=*/false));
    }
  }
  // The line that has no end yet.
  Status Finish(int output_fd) { return PrintLines(output_fd, /*all=*/true); }

 private:
  Status PrintLines(int output_fd, bool all) {
    std::string lines;
    size_t begin = 0;
    for (size_t end = rest_.find('\n'); end != rest_.npos; end = rest_.find('\n', begin)) {
      absl::StrAppend(&lines, name_, rest_.substr(begin, end + 1 - begin));
      begin = end + 1;
    }
    rest_.erase(0, begin);
    if (all && !rest_.empty()) absl::StrAppend(&lines, name_, std::exchange(rest_, ""), "\n");
    for (absl::string_view text = lines; !text.empty();) {
      const ssize_t n = write(output_fd, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        return absl::UnavailableError(
            absl::StrCat("the output must take the lines, got: ", std::strerror(errno)));
      }
      text.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

  const std::string path_, name_;
  OwnedFd file_;
  std::string rest_;
};

// All files to their ends.
StatusOr<bool> PrintAll(std::vector<GrowingLog>* logs, int output_fd) {
  bool any = false;
  for (GrowingLog& log : *logs) {
    MR_ASSIGN_OR_RETURN(const bool more, log.Print(output_fd));
    any = any || more;
  }
  return any;
}

}  // namespace

std::string TaskLogPath(const JobState& state, size_t position) {
  // Slurm names files by the task's rank.
  const TaskRecord& task = state.tasks[position];
  return JoinPath(state.log_dir, state.backend == "slurm"
                                     ? absl::StrCat("task-", position, ".log")
                                     : absl::StrCat(task.job, "-", task.index, ".log"));
}

Status PrintJobLogs(const JobState& state, const TaskFilter& filter, bool follow, int output_fd) {
  std::vector<std::pair<std::string, int>> tasks;
  for (const TaskRecord& task : state.tasks) tasks.emplace_back(task.job, task.index);
  if (const std::string unused = filter.Unused(tasks); !unused.empty()) {
    return absl::NotFoundError(
        absl::StrCat("job '", state.name, "' must have the tasks of --task, got '", unused, "'"));
  }
  std::vector<GrowingLog> logs;
  if (filter.is_empty() && state.backend != "slurm") {
    logs.emplace_back(JoinPath(state.log_dir, "all.log"), "");
  } else {
    std::vector<size_t> matching;
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (filter.Matches(tasks[i].first, tasks[i].second)) matching.push_back(i);
    }
    for (const size_t i : matching) {
      logs.emplace_back(TaskLogPath(state, i),
                        matching.size() == 1
                            ? ""
                            : absl::StrCat("[", tasks[i].first, " ", tasks[i].second, "] "));
    }
  }
  for (;;) {
    // First: what came before the end is read after it is seen.
    bool over = true;
    if (follow) {
      const StatusOr<JobState> now = SeenJobState(FileSystem::Default(), state.job_dir);
      over = !now.ok() || now->is_over() || now->seen_phase() == JobState::Phase::kLost ||
             now->id != state.id;
    }
    MR_ASSIGN_OR_RETURN(const bool any, PrintAll(&logs, output_fd));
    if (over) break;
    if (!any) absl::SleepFor(kFollowPoll);
  }
  bool was_there = false;
  for (GrowingLog& log : logs) {
    MR_RETURN_IF_ERROR(log.Finish(output_fd));
    was_there = was_there || log.was_there();
  }
  if (was_there) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("job '", state.name, "' must have logs in '",
                                          state.log_dir, "', got none; they are on the machine ",
                                          "that runs it, or it has not started"));
}

}  // namespace millrace
