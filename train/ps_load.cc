// SPDX-License-Identifier: Apache-2.0
#include "train/ps_load.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/logging.h"
#include "core/status.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/graph.h"
#include "graph/variable_bytes.h"

namespace millrace {
namespace {

constexpr absl::string_view kPsJob = "ps";
// A parameter server with more than so many means is worth a word: the others wait for it.
constexpr double kUneven = 1.5;

std::string NameOf(int task) { return absl::StrCat("/job:", kPsJob, "/task:", task); }

}  // namespace

PsLoad PsLoad::Of(const Graph& graph, absl::Span<const int> ps_tasks) {
  PsLoad load;
  std::map<int, Task> tasks;
  for (const int task : ps_tasks) tasks[task].task = task;
  for (const std::unique_ptr<Node>& node : graph.nodes()) {
    if (node == nullptr || !node->traits().makes_variable) continue;
    const StatusOr<DeviceName> device = DeviceName::Parse(node->requested_device());
    if (!device.ok() || device->job != kPsJob || !device->task) continue;
    const NodeAttrs attrs = node->attrs();
    if (!HasVariableBytes(attrs)) ++load.num_unknown;
    const int64_t bytes = VariableBytes(attrs);
    Task& task = tasks[*device->task];
    task.task = *device->task;
    task.bytes += bytes;
    if (bytes > task.largest_bytes) {
      task.largest = node->name();
      task.largest_bytes = bytes;
    }
  }
  for (auto& [number, task] : tasks) load.tasks.push_back(std::move(task));
  return load;
}

const PsLoad::Task* PsLoad::Fullest() const {
  const auto fullest = std::max_element(
      tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.bytes < b.bytes; });
  return fullest == tasks.end() ? nullptr : &*fullest;
}

double PsLoad::FullestInMeans() const {
  double sum = 0;
  for (const Task& task : tasks) sum += static_cast<double>(task.bytes);
  if (sum == 0) return 0;
  return static_cast<double>(Fullest()->bytes) * static_cast<double>(tasks.size()) / sum;
}

std::string PsLoad::ToString() const {
  std::string text =
      absl::StrCat("variables on the parameter servers: ",
                   absl::StrJoin(tasks, ", ", [](std::string* out, const Task& task) {
                     absl::StrAppend(out, NameOf(task.task), " ", task.bytes, " bytes");
                   }));
  if (num_unknown > 0) {
    absl::StrAppend(&text, ", without ", num_unknown, " whose size is not known");
  }
  const double means = FullestInMeans();
  if (means <= kUneven) return text;
  const Task& fullest = *Fullest();
  absl::StrAppend(&text, "; ", NameOf(fullest.task), " has ", std::round(means * 10) / 10,
                  " times the mean: ");
  const double mean = static_cast<double>(fullest.bytes) / means;
  if (static_cast<double>(fullest.largest_bytes) > mean / 2) {
    absl::StrAppend(&text, "cut '", fullest.largest, "', ", fullest.largest_bytes,
                    " bytes, into parts with a partitioner");
  } else {
    absl::StrAppend(&text, "BalancedDeviceSetter places variables by their bytes");
  }
  return text;
}

void LogPsLoad(absl::string_view speaker, const PsLoad& load) {
  if (load.tasks.size() < 2) return;
  LogInfo(speaker, ": ", load.ToString());
}

}  // namespace millrace
