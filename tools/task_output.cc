// SPDX-License-Identifier: Apache-2.0
#include "tools/task_output.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// A task that writes no line ends gets its text in pieces of this size.
constexpr size_t kMaxLine = 64 << 10;
constexpr char kBetween[] = " | ";

std::string Named(const TaskStatus& status, absl::string_view text) {
  return absl::StrCat("[", status.task, "] ", text);
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

std::string JoinStatuses(absl::Span<const TaskStatus> statuses, size_t width) {
  std::string whole;
  for (const TaskStatus& status : statuses) {
    absl::StrAppend(&whole, whole.empty() ? "" : kBetween, Named(status, status.text));
  }
  if (whole.size() <= width || statuses.empty()) return whole.substr(0, width);
  std::string line = Named(statuses[0], statuses[0].text);
  for (size_t i = 1; i < statuses.size(); ++i) {
    // The first of the fields that are two blanks apart: "step 12/1000".
    const absl::string_view text = statuses[i].text;
    const std::string next =
        absl::StrCat(kBetween, Named(statuses[i], text.substr(0, text.find("  "))));
    const size_t left_out = statuses.size() - i;
    const std::string rest = left_out > 1 ? absl::StrCat(kBetween, "+", left_out - 1) : "";
    if (line.size() + next.size() + rest.size() > width) {
      absl::StrAppend(&line, kBetween, "+", left_out);
      break;
    }
    line += next;
  }
  return line.substr(0, width);
}

}  // namespace millrace
