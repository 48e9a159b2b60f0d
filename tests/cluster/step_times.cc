// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/step_times.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace millrace {
namespace {

constexpr double kSizesOfTwice = 32;  // from a time to twice that time
constexpr size_t kSizes = 1536;       // 2^48 ns
constexpr size_t kLongestLine = 1000;

size_t SizeOf(absl::Duration time) {
  const double ns = std::max(1.0, absl::ToDoubleNanoseconds(time));
  const double size = std::min(kSizesOfTwice * std::log2(ns), static_cast<double>(kSizes - 1));
  return static_cast<size_t>(size);
}

}  // namespace

void StepTimes::AddAt(size_t size, int64_t count) {
  if (counts_.size() <= size) counts_.resize(size + 1);
  counts_[size] += count;
  count_ += count;
}

void StepTimes::Add(absl::Duration time) { AddAt(SizeOf(time), 1); }

void StepTimes::Add(const StepTimes& others) {
  for (size_t size = 0; size < others.counts_.size(); ++size) {
    if (others.counts_[size] > 0) AddAt(size, others.counts_[size]);
  }
}

absl::Duration StepTimes::Percentile(double percent) const {
  if (count_ == 0) return absl::ZeroDuration();
  const double rank = std::ceil(percent / 100 * static_cast<double>(count_));
  const int64_t wanted = std::clamp(static_cast<int64_t>(rank), int64_t{1}, count_);
  int64_t seen = 0;
  size_t size = 0;
  while ((seen += counts_[size]) < wanted) ++size;
  // The middle of those of this size.
  return absl::Nanoseconds(std::exp2((static_cast<double>(size) + 0.5) / kSizesOfTwice));
}

std::vector<std::string> StepTimes::ToLines() const {
  std::vector<std::string> lines;
  for (size_t size = 0; size < counts_.size(); ++size) {
    if (counts_[size] == 0) continue;
    const std::string word = absl::StrCat(size, ":", counts_[size]);
    if (lines.empty() || lines.back().size() + 1 + word.size() > kLongestLine) {
      lines.push_back(word);
    } else {
      absl::StrAppend(&lines.back(), ",", word);
    }
  }
  return lines;
}

Status StepTimes::AddLine(absl::string_view line) {
  StepTimes added;
  for (const absl::string_view word : absl::StrSplit(line, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits(':', 1));
    uint64_t size = 0;
    int64_t count = 0;
    if (!absl::SimpleAtoi(parts.first, &size) || !absl::SimpleAtoi(parts.second, &count) ||
        size >= kSizes || count < 1) {
      return InvalidArgument("StepTimes: a line must be <size>:<count>,..., got '", line, "'");
    }
    added.AddAt(size, count);
  }
  Add(added);
  return absl::OkStatus();
}

}  // namespace millrace
