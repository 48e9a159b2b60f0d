// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster_task.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace millrace {
namespace {

// What a table still shows of a task's last line.
constexpr size_t kMaxLastLine = 160;
// "W1129 01:55:03.123456 12345 session.cc:55] ": within so many bytes.
constexpr size_t kMaxLogPrefix = 200;

// The text of a log line; other lines as they are.
absl::string_view WithoutLogPrefix(absl::string_view line) {
  constexpr size_t kDateEnd = 5;  // one letter, four digits
  if (line.size() <= kDateEnd || line[kDateEnd] != ' ' ||
      absl::string_view("IWEF").find(line[0]) == absl::string_view::npos) {
    return line;
  }
  for (const char c : line.substr(1, kDateEnd - 1)) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return line;
  }
  const size_t end = line.substr(0, kMaxLogPrefix).find("] ");
  return end == absl::string_view::npos ? line : line.substr(end + 2);
}

}  // namespace

void ClusterTask::Note(absl::string_view line) {
  const absl::string_view text = absl::StripAsciiWhitespace(WithoutLogPrefix(line));
  if (text.empty()) return;
  const bool goes_on = line[0] == ' ' || line[0] == '\t';
  if (!goes_on || last_line.empty()) last_line = std::string(text);
}

std::string ClusterTask::name() const { return absl::StrCat(job, " ", index); }

int ClusterTask::code() const {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

bool ClusterTask::was_killed() const {
  return WIFSIGNALED(wait_status) || code() == 128 + SIGTERM || code() == 128 + SIGINT;
}

std::string ClusterTask::ending() const {
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("was killed by signal ", WTERMSIG(wait_status), " (",
                        strsignal(WTERMSIG(wait_status)), ")");
  }
  return absl::StrCat("ended with code ", code());
}

std::string ClusterTask::reason() const {
  if (starts == 0) return "never started";
  if (killed_by_grace) return absl::StrCat("killed: it did not end when asked: ", asked);
  if (!asked.empty()) return absl::StrCat("asked to end: ", asked);
  if (code() == 0) return "done";
  std::string text = WIFSIGNALED(wait_status)
                         ? absl::StrCat(strsignal(WTERMSIG(wait_status)), ", not by ", launcher)
                         : "not asked";
  if (!last_line.empty()) {
    absl::StrAppend(&text, "; last line: ", last_line.substr(0, kMaxLastLine),
                    last_line.size() > kMaxLastLine ? "..." : "");
  }
  return text;
}

TaskRecord ClusterTask::record(absl::Time now) const {
  TaskRecord record = {.job = job,
                       .index = index,
                       .address = address,
                       .starts = starts,
                       .seconds = absl::ToDoubleSeconds(running() ? ran + (now - started) : ran)};
  if (running()) {
    record.state = TaskRecord::State::kRunning;
    record.pid = pid;
    record.why = asked.empty() ? "" : absl::StrCat("asked to end: ", asked);
    return record;
  }
  record.why = reason();
  if (starts == 0) return record;
  record.state = TaskRecord::State::kEnded;
  record.exit_code = code();
  if (WIFSIGNALED(wait_status)) record.signal = WTERMSIG(wait_status);
  return record;
}

std::string TaskTableHead() {
  return absl::StrFormat("%-14s %-10s %-8s %-6s %s", "task", "ended", "seconds", "starts", "why");
}

std::string TaskTableRow(const ClusterTask& task) {
  const std::string ended = task.starts == 0 ? "-"
                            : WIFSIGNALED(task.wait_status)
                                ? absl::StrCat("signal ", WTERMSIG(task.wait_status))
                                : absl::StrCat("exit ", task.code());
  return absl::StrFormat("%-14s %-10s %-8.1f %-6d %s", task.name(), ended,
                         absl::ToDoubleSeconds(task.ran), task.starts, task.reason());
}

StatusOr<TaskFilter> TaskFilter::Parse(absl::string_view text, absl::string_view flag) {
  TaskFilter filter;
  if (text.empty()) return filter;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(absl::StripAsciiWhitespace(word), absl::MaxSplits('-', 1));
    Part part;
    part.job = std::string(halves.first);
    const bool role = part.job == "ps" || part.job == "master" || part.job == "chief" ||
                      part.job == "worker" || part.job == "evaluator";
    const bool indexed = absl::StrContains(word, '-');
    if (!role || (indexed && (!absl::SimpleAtoi(halves.second, &part.index) || part.index < 0))) {
      return InvalidArgument("argument ", flag, ": must name roles (ps, master, chief, worker, ",
                             "evaluator) or tasks (worker-1), got '", word, "'");
    }
    filter.parts_.push_back(std::move(part));
  }
  return filter;
}

bool TaskFilter::Matches(absl::string_view job, int index) const {
  if (parts_.empty()) return true;
  for (const Part& part : parts_) {
    if (part.Matches(job, index)) return true;
  }
  return false;
}

std::string TaskFilter::Unused(const std::vector<std::pair<std::string, int>>& tasks) const {
  for (const Part& part : parts_) {
    bool used = false;
    for (const auto& [job, index] : tasks) used = used || part.Matches(job, index);
    if (used) continue;
    return part.index < 0 ? part.job : absl::StrCat(part.job, "-", part.index);
  }
  return "";
}

}  // namespace millrace
