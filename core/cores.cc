// SPDX-License-Identifier: Apache-2.0
#include "core/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

// "" for a file that is not there or cannot be read. The system's files have no size.
std::string Contents(const std::string& path) {
  std::string contents;
  FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return contents;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) {
    contents.append(buffer, n);
  }
  std::fclose(file);
  return contents;
}

// Times in microseconds; none for "max", "-1" and what is no number.
std::optional<int> QuotaOf(absl::string_view quota, absl::string_view period) {
  int64_t quota_us = 0, period_us = 0;
  if (!absl::SimpleAtoi(quota, &quota_us) || !absl::SimpleAtoi(period, &period_us) ||
      quota_us <= 0 || period_us <= 0) {
    return std::nullopt;
  }
  const int64_t cores = quota_us / period_us + (quota_us % period_us != 0);
  return static_cast<int>(std::min<int64_t>(cores, std::numeric_limits<int>::max()));
}

// Of one group, whose files are in `dir`.
std::optional<int> QuotaOfGroup(const std::string& dir, bool version_2) {
  if (!version_2)
    return QuotaOf(Contents(dir + "/cpu.cfs_quota_us"), Contents(dir + "/cpu.cfs_period_us"));
  const std::string limit = Contents(dir + "/cpu.max");
  const std::vector<absl::string_view> words =
      absl::StrSplit(limit, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return words.size() == 2 ? QuotaOf(words[0], words[1]) : std::nullopt;
}

int CoresOfAffinity() {
  // A mask that is too short for the machine is refused.
  constexpr size_t kMostSets = 256;
  for (size_t sets = 1; sets <= kMostSets; sets *= 4) {
    std::vector<cpu_set_t> mask(sets);
    const size_t bytes = sets * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) return CPU_COUNT_S(bytes, mask.data());
    if (errno != EINVAL) break;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

std::optional<int> QuotaOfCgroups(const std::string& root) {
  std::optional<int> least;
  // Lines "4:cpu,cpuacct:/a/b" (version 1) and "0::/a/b" (version 2).
  const std::string groups = Contents(root + "/proc/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    const bool version_2 = parts[0] == "0" && parts[1].empty();
    if (!version_2 && std::find(controllers.begin(), controllers.end(), "cpu") == controllers.end())
      continue;
    const std::string mount = absl::StrCat(root, "/sys/fs/cgroup", version_2 ? "" : "/cpu");
    // Up to the root: a container sees its own group there, and perhaps not by its name.
    for (absl::string_view group = parts[2];;) {
      while (!group.empty() && group.back() == '/') group.remove_suffix(1);
      const std::optional<int> quota = QuotaOfGroup(absl::StrCat(mount, group), version_2);
      if (quota && (!least || *quota < *least)) least = quota;
      const size_t slash = group.rfind('/');
      if (slash == absl::string_view::npos) break;
      group = group.substr(0, slash);
    }
  }
  return least;
}

int UsableCores() {
  int cores = CoresOfAffinity();
  if (const std::optional<int> quota = QuotaOfCgroups("")) cores = std::min(cores, *quota);
  return std::max(cores, 1);
}

StatusOr<std::optional<int>> NumThreadsFromText(const char* text) {
  if (text == nullptr || *text == '\0') return std::optional<int>();
  int threads = 0;
  if (!absl::SimpleAtoi(text, &threads) || threads < 0 || threads > kMaxComputingThreads) {
    return InvalidArgument(kNumThreadsVariable, " must be an integer in [0, ", kMaxComputingThreads,
                           "], got '", text, "'; 0 is as many threads as cores");
  }
  return std::optional<int>(threads);
}

}  // namespace millrace
