// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace millrace {

namespace {

// What kAuto stands for.
bool RewritesLines(FILE* output) {
  const char* said = std::getenv("MILLRACE_PROGRESS");
  if (said != nullptr && std::strcmp(said, "live") == 0) return true;
  if (said != nullptr && std::strcmp(said, "plain") == 0) return false;
  return isatty(fileno(output)) == 1;
}

}  // namespace

std::string ClockText(double seconds) {
  constexpr double kMost = 1e9;
  const int64_t whole = std::llround(seconds < kMost ? std::max(seconds, 0.0) : kMost);
  if (whole < 3600) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  terminal_ = options_.style == ProgressOptions::Style::kAuto
                  ? RewritesLines(options_.output)
                  : options_.style == ProgressOptions::Style::kTerminal;
}

Progress::~Progress() { EndLine(); }

std::string Progress::Format(int64_t step, int64_t last_step, std::optional<double> loss,
                             double steps_per_second, double staleness) {
  std::string line = absl::StrFormat("step %d", step);
  if (last_step > 0) absl::StrAppendFormat(&line, "/%d", last_step);
  if (loss) absl::StrAppendFormat(&line, "  loss %.4g", *loss);
  if (staleness >= 0.5) absl::StrAppendFormat(&line, "  staleness %.0f", staleness);
  if (steps_per_second > 0) {
    absl::StrAppendFormat(&line, "  %.1f steps/s", steps_per_second);
    if (last_step <= 0) return line;
    const double seconds =
        static_cast<double>(std::max<int64_t>(0, last_step - step)) / steps_per_second;
    // Beyond a hundred hours nobody counts seconds.
    if (seconds < 360000) absl::StrAppend(&line, "  ", ClockText(seconds), " left");
  }
  return line;
}

void Progress::Update(int64_t step, std::optional<double> loss, double staleness) {
  const absl::Time now = options_.clock->Now();
  if (!started_) {
    started_ = true;
    first_step_ = step;
    first_time_ = now;
    next_time_ = now;
  }
  if (now < next_time_ && (options_.last_step <= 0 || step < options_.last_step)) return;
  next_time_ = now + (terminal_ ? options_.terminal_period : options_.plain_period);
  const double seconds = absl::ToDoubleSeconds(now - first_time_);
  const double rate = seconds > 0 ? static_cast<double>(step - first_step_) / seconds : 0;
  const std::string line = Format(step, options_.last_step, loss, rate, staleness);
  if (terminal_) {
    // Blanks wipe what a longer line left.
    const std::string blanks(line.size() < width_ ? width_ - line.size() : 0, ' ');
    absl::FPrintF(options_.output, "\r%s%s", line, blanks);
    width_ = line.size();
    line_open_ = true;
  } else {
    absl::FPrintF(options_.output, "%s\n", line);
  }
  std::fflush(options_.output);
}

void Progress::EndLine() {
  if (!line_open_) return;
  std::fputc('\n', options_.output);
  std::fflush(options_.output);
  line_open_ = false;
  width_ = 0;
}

}  // namespace millrace
