// SPDX-License-Identifier: Apache-2.0
//
// The names of docs/metrics.md and of the dashboard are those that a training task has.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/file_system.h"
#include "core/process_metrics.h"
#include "distributed/task_metrics.h"
#include "gtest/gtest.h"
#include "re2/re2.h"
#include "train/training_metrics.h"

// covers: clusters: the page on metrics names each series of a task, and the dashboard no other

namespace millrace {
namespace {

std::string TextOf(const std::string& path) {
  return ReadFileToString(FileSystem::Posix(), path).value_or("");
}

std::set<std::string> Found(absl::string_view text, const RE2& expression) {
  std::set<std::string> names;
  std::string name;
  re2::StringPiece rest(text.data(), text.size());
  while (RE2::FindAndConsume(&rest, expression, &name)) names.insert(name);
  return names;
}

// The families of this process with a task that trains.
std::set<std::string> Families() {
  const TaskMetrics task([] { return TaskFigures{.task = "/job:ps/replica:0/task:0"}; });
  CountTrainSteps(1);
  return Found(ProcessMetrics().Page(), RE2("# TYPE millrace_(\\w+) "));
}

TEST(MetricsPageTest, ThePageNamesEachSeries) {
  std::set<std::string> on_page;
  bool in_table = false;
  for (const absl::string_view line : absl::StrSplit(TextOf("docs/metrics.md"), '\n')) {
    if (absl::StartsWith(line, "| series |")) in_table = true;
    if (line.empty()) in_table = false;
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    if (!in_table || cells.size() < 2) continue;
    // "`saves_total{result}`", "`a`, `b` `{task,peer}`"
    on_page.merge(Found(cells[1], RE2("`(\\w+)")));
  }
  EXPECT_EQ(on_page, Families());
}

TEST(MetricsPageTest, TheDashboardAsksForSeriesThatThereAre) {
  const std::set<std::string> families = Families();
  const std::set<std::string> asked =
      Found(TextOf("docs/dashboards/millrace.json"), RE2("millrace_(\\w+)"));
  EXPECT_FALSE(asked.empty());
  for (const std::string& name : asked) {
    EXPECT_TRUE(families.contains(std::string(absl::StripSuffix(name, "_bucket")))) << name;
  }
}

}  // namespace
}  // namespace millrace
