// SPDX-License-Identifier: Apache-2.0
#include "tools/task_threads.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/cores.h"

namespace millrace {
namespace {

std::string Counted(int n, absl::string_view what) {
  return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
}

std::string InEachTask(int threads) {
  return absl::StrCat(Counted(threads, "thread"), threads == 1 ? " computes" : " compute",
                      " in each task: ");
}

}  // namespace

StatusOr<TaskThreads> ThreadsOfTasks(int cores, int trainers, std::optional<int> flag,
                                     const char* variable) {
  if (flag) {
    if (*flag < 0 || *flag > kMaxComputingThreads) {
      return InvalidArgument("launch: --threads_per_task must be in [0, ", kMaxComputingThreads,
                             "], got ", *flag);
    }
    const std::string given = absl::StrCat("--threads_per_task=", *flag);
    if (*flag > 0) return TaskThreads{flag, absl::StrCat(InEachTask(*flag), given)};
    return TaskThreads{
        std::nullopt,
        absl::StrCat(given, ": ", kNumThreadsVariable, " of the tasks stays as it is",
                     variable == nullptr ? ", not set" : absl::StrCat(", '", variable, "'"))};
  }
  const auto asked = NumThreadsFromText(variable);
  if (!asked.ok()) return InvalidArgument("launch: ", asked.status().message());
  if (*asked) {
    const std::string given = absl::StrCat(kNumThreadsVariable, "=", **asked);
    return TaskThreads{std::nullopt, **asked > 0
                                         ? absl::StrCat(InEachTask(**asked), given)
                                         : absl::StrCat("as many threads as cores compute in each "
                                                        "task: ",
                                                        given)};
  }
  const int threads = std::clamp(cores / std::max(trainers, 1), 1, kMaxComputingThreads);
  return TaskThreads{
      threads, absl::StrCat(InEachTask(threads), Counted(cores, "core"), " for ",
                            Counted(trainers, "trainer"), "; --threads_per_task=N changes it")};
}

}  // namespace millrace
