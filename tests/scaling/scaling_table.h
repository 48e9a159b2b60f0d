// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_SCALING_TABLE_H_
#define MILLRACE_TESTS_SCALING_SCALING_TABLE_H_

// ScalingTable: how many examples, and how much virtual time, many workers need for what one worker
// has learned.
//
//   1. One worker is trained on its budget with each seed. The target is the mean AUC at the end.
//   2. What it needs to reach the target is the measure: the median over the seeds.
//   3. Every other number of workers, in every way of updating, is trained until it reaches the
//      target. The result is the median over the seeds by the measure of one worker.
//
// A seed that has not reached the target after `most` budgets counts as infinite, and so does the
// median of such seeds.
//
// Values; MeasureScaling uses one thread. Failure: of TrainTogether.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "tests/scaling/many_workers.h"
#include "tests/scaling/problem.h"

namespace millrace::scaling {

// A row of the table: a way of updating, with its name for people.
struct ScalingRow {
  std::string name;
  UpdateMode mode = UpdateMode::kAsynchronous;
  int64_t backup_workers = 0;
  bool is_staleness_aware = false;
  // The learning rate is multiplied by the number of gradients in a mean.
  bool is_rate_scaled = false;
};
// All that can be asked for, in the order of the table.
std::vector<ScalingRow> AllScalingRows();

struct ScalingOptions {
  std::vector<ScalingRow> rows = AllScalingRows();
  std::vector<int64_t> workers = {2, 4, 8, 32};
  int64_t seeds = 3;
  int64_t budget = 131'072;  // examples of one worker
  double most = 2;           // budgets
  int64_t evaluations = 40;  // in a budget
  double scale_by_staleness = 1;
  double drop_above = 4;  // times the number of workers
  // Of one worker; mode, workers, backups, seeds and ends are set by the table.
  TogetherOptions job = {};
};

struct ScalingCell {
  std::string row;
  int64_t workers = 1;
  double learning_rate = 0;
  // Relative to one worker, of each seed and the median. Infinite: not reached.
  std::vector<double> examples_of_seeds = {}, time_of_seeds = {};
  double examples = 0, time = 0;
  double dropped = 0;  // of all gradients, the mean over the seeds
};

struct ScalingTable {
  double target_auc = 0;
  ScalingCell one_worker;  // its medians are 1 by definition: its seeds show the noise
  double one_worker_examples = 0, one_worker_time = 0;  // absolute
  std::vector<ScalingCell> cells;                       // by row, then by workers
};

// Calls `progress` after each cell.
StatusOr<ScalingTable> MeasureScaling(
    const Problem& problem, const ScalingOptions& options,
    const std::function<void(const ScalingCell&)>& progress = nullptr);

// Lines of Markdown: a row for each way of updating, a column for each number of workers; in a
// cell examples and time, as "1.03, 0.52", or "> 3" examples where the target was not reached.
std::string ToMarkdown(const ScalingTable& table, const ScalingOptions& options);
// One JSON object; infinite numbers are null.
std::string ToJson(const std::string& problem, const ScalingTable& table);

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_SCALING_TABLE_H_
