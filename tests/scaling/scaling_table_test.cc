// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/scaling_table.h"

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/scaling/click_problem.h"
#include "tests/scaling/problem.h"

// covers: training: the table of examples to one worker's AUC: medians over seeds by one worker's,
//   and what was not reached

namespace millrace::scaling {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

TEST(ScalingTableTest, IsMarkdownAndJson) {
  ScalingOptions options;
  options.workers = {2, 32};
  ScalingTable table;
  table.target_auc = 0.875;
  table.one_worker_examples = 1000;
  table.one_worker_time = 64;
  table.one_worker = {.row = "one worker",
                      .learning_rate = 0.5,
                      .examples_of_seeds = {1, 1.5},
                      .time_of_seeds = {1, kNever},
                      .examples = 1,
                      .time = 1};
  table.cells = {{.row = "a", .workers = 2, .examples = 1.234, .time = 0.5},
                 {.row = "a", .workers = 32, .examples = kNever, .time = kNever, .dropped = 0.25},
                 {.row = "b", .workers = 2, .examples = 1, .time = 2},
                 {.row = "b", .workers = 32, .examples = 2, .time = 0.0625}};
  EXPECT_EQ(ToMarkdown(table, options),
            "| update | 2 | 32 |\n"
            "|---|---|---|\n"
            "| a | 1.23, 0.50 | > 2 |\n"
            "| b | 1.00, 2.00 | 2.00, 0.06 |\n");
  const std::string json = ToJson("clicks", table);
  EXPECT_NE(json.find("{\"problem\": \"clicks\", \"target_auc\": 0.875, "), std::string::npos);
  EXPECT_NE(json.find("\"examples_of_seeds\": [1, 1.5], \"time_of_seeds\": [1, null], "),
            std::string::npos);
  EXPECT_NE(json.find("\"workers\": 32, \"learning_rate\": 0, \"examples\": null, "),
            std::string::npos);
  EXPECT_NE(json.find("\"dropped\": 0.25}"), std::string::npos);
}

TEST(ScalingTableTest, OneWorkerIsTheMeasure) {
  ASSERT_OK_AND_ASSIGN(const auto problem,
                       MakeClickProblem({.rows = 160, .train = 4'000, .held_out = 500}));
  ScalingOptions options;
  options.rows = AllScalingRows();
  options.workers = {1, 2};
  options.seeds = 1;
  options.budget = 64 * 16;
  options.evaluations = 16;
  options.job.batch = 16;
  options.job.smooth = 4;
  options.job.local_steps = 2;
  size_t seen = 0;
  ASSERT_OK_AND_ASSIGN(const ScalingTable table,
                       MeasureScaling(*problem, options, [&](const ScalingCell&) { ++seen; }));
  ASSERT_EQ(table.cells.size(), 2 * options.rows.size());
  EXPECT_EQ(seen, 1 + table.cells.size());
  EXPECT_EQ(table.one_worker.examples, 1);
  // The mean of one seed is reached at the end of its budget, if not before.
  EXPECT_LE(table.one_worker_examples, static_cast<double>(options.budget));
  for (const ScalingCell& cell : table.cells) {
    ASSERT_EQ(cell.examples_of_seeds.size(), 1);
    EXPECT_EQ(cell.examples, cell.examples_of_seeds[0]);
    if (cell.workers > 1) continue;
    // One worker is one worker, however it updates: all evaluations are those of the measure.
    EXPECT_DOUBLE_EQ(cell.examples, 1) << cell.row;
    EXPECT_NEAR(cell.time, 1, 1e-9) << cell.row;
    EXPECT_EQ(cell.learning_rate, options.job.learner.learning_rate);
  }
}

TEST(ScalingTableTest, OptionsOutOfRangeAreRefused) {
  ASSERT_OK_AND_ASSIGN(const auto problem,
                       MakeClickProblem({.rows = 160, .train = 400, .held_out = 50}));
  const auto refused = [&](const ScalingOptions& options, const char* text) {
    EXPECT_STATUS(MeasureScaling(*problem, options), absl::StatusCode::kInvalidArgument, text);
  };
  refused({.seeds = 0}, "must be >= 1, got 0");
  refused({.most = 0.5}, "most must be in [1, 1000] budgets, got 0.5");
  refused({.drop_above = -1}, "drop_above");
  refused({.evaluations = 4}, "smooth must be at most the 4 evaluations");
  // A batch is larger.
  refused({.budget = 16}, "a budget must have evaluations, got none in 16 examples");
}

}  // namespace
}  // namespace millrace::scaling
