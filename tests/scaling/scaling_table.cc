// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/scaling_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/scaling/auc.h"

namespace millrace::scaling {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Of an even number the lower one of the two in the middle, which is never a mean with infinity.
double Median(std::vector<double> values) {
  if (values.empty()) return kNever;
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

TogetherOptions JobOf(const ScalingOptions& options, const ScalingRow& row, int64_t workers,
                      int64_t seed) {
  TogetherOptions job = options.job;
  job.mode = row.mode;
  job.workers = workers;
  job.backup_workers = row.backup_workers;
  job.seed += static_cast<uint64_t>(seed);
  job.learner.seed = job.seed;
  if (row.is_staleness_aware) {
    const double most = std::floor(options.drop_above * static_cast<double>(workers));
    job.learner.staleness.scale_by_staleness = options.scale_by_staleness;
    job.learner.staleness.drop_above = static_cast<int64_t>(most);
  }
  if (row.is_rate_scaled) {
    job.learner.learning_rate *=
        static_cast<double>(std::max<int64_t>(1, workers - row.backup_workers));
  }
  job.evaluate_every = std::max<int64_t>(1, options.budget / options.evaluations);
  return job;
}

Status Check(const ScalingOptions& options) {
  if (options.seeds < 1 || options.budget < 1 || options.evaluations < 1) {
    return InvalidArgument("scaling: seeds, budget and evaluations must be >= 1, got ",
                           options.seeds, ", ", options.budget, " and ", options.evaluations);
  }
  if (!(options.most >= 1 && options.most <= 1000)) {
    return InvalidArgument("scaling: most must be in [1, 1000] budgets, got ", options.most);
  }
  if (!(options.drop_above >= 0 && options.drop_above <= 1e6)) {
    return InvalidArgument("scaling: drop_above must be in [0, 1e6], got ", options.drop_above);
  }
  if (options.job.smooth > options.evaluations) {
    return InvalidArgument("scaling: smooth must be at most the ", options.evaluations,
                           " evaluations of a budget, got ", options.job.smooth);
  }
  return absl::OkStatus();
}

// The number as JSON and as text of a cell.
std::string JsonNumber(double x) { return std::isfinite(x) ? absl::StrFormat("%.6g", x) : "null"; }
std::string JsonNumbers(const std::vector<double>& numbers) {
  std::vector<std::string> texts;
  for (const double x : numbers) texts.push_back(JsonNumber(x));
  return absl::StrCat("[", absl::StrJoin(texts, ", "), "]");
}
std::string JsonCell(const ScalingCell& cell) {
  return absl::StrCat("{\"update\": \"", cell.row, "\", \"workers\": ", cell.workers,
                      ", \"learning_rate\": ", JsonNumber(cell.learning_rate),
                      ", \"examples\": ", JsonNumber(cell.examples),
                      ", \"time\": ", JsonNumber(cell.time),
                      ", \"examples_of_seeds\": ", JsonNumbers(cell.examples_of_seeds),
                      ", \"time_of_seeds\": ", JsonNumbers(cell.time_of_seeds),
                      ", \"dropped\": ", JsonNumber(cell.dropped), "}");
}

}  // namespace

std::vector<ScalingRow> AllScalingRows() {
  return {
      {.name = "asynchronous"},
      {.name = "staleness-aware", .is_staleness_aware = true},
      {.name = "synchronous", .mode = UpdateMode::kSynchronous},
      {.name = "synchronous, rate times gradients",
       .mode = UpdateMode::kSynchronous,
       .is_rate_scaled = true},
      {.name = "synchronous, 1 backup", .mode = UpdateMode::kSynchronous, .backup_workers = 1},
      {.name = "synchronous, 1 backup, rate times gradients",
       .mode = UpdateMode::kSynchronous,
       .backup_workers = 1,
       .is_rate_scaled = true},
      {.name = "local", .mode = UpdateMode::kLocal},
  };
}

StatusOr<ScalingTable> MeasureScaling(const Problem& problem, const ScalingOptions& options,
                                      const std::function<void(const ScalingCell&)>& progress) {
  MR_RETURN_IF_ERROR(Check(options));
  const auto most = static_cast<int64_t>(options.most * static_cast<double>(options.budget));
  ScalingTable table;

  // One worker goes on behind its budget: a seed may reach the mean of all later.
  std::vector<std::vector<AucPoint>> curves;
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    TogetherOptions job = JobOf(options, ScalingRow{}, 1, seed);
    job.until_examples = std::min(most, options.budget + options.budget / 2);
    MR_ASSIGN_OR_RETURN(const Together together, TrainTogether(problem, job));
    // Those within the budget.
    std::vector<AucPoint> within;
    for (const AucPoint& point : together.evaluations) {
      if (point.examples <= static_cast<double>(options.budget)) within.push_back(point);
    }
    within = Smoothed(within, SmoothSpan(job));
    if (within.empty()) {
      return InvalidArgument("scaling: a budget must have evaluations, got none in ",
                             options.budget, " examples with batches of ", job.batch,
                             "; give a larger budget or a smaller batch");
    }
    table.target_auc += within.back().auc / static_cast<double>(options.seeds);
    curves.push_back(Smoothed(together.evaluations, SmoothSpan(job)));
  }
  std::vector<double> examples, times;
  for (const std::vector<AucPoint>& curve : curves) {
    const std::optional<AucPoint> at = Reached(curve, table.target_auc);
    examples.push_back(at ? at->examples : kNever);
    times.push_back(at ? at->time : kNever);
  }
  table.one_worker_examples = Median(examples);
  table.one_worker_time = Median(times);
  if (!std::isfinite(table.one_worker_examples)) {
    return Internal("scaling: most seeds of one worker must reach their mean AUC of ",
                    table.target_auc,
                    " within one and a half budgets, got too few; give a larger "
                    "budget or more seeds");
  }
  const auto relate = [&](ScalingCell* cell) {
    for (double& x : cell->examples_of_seeds) x /= table.one_worker_examples;
    for (double& x : cell->time_of_seeds) x /= table.one_worker_time;
    cell->examples = Median(cell->examples_of_seeds);
    cell->time = Median(cell->time_of_seeds);
    if (progress) progress(*cell);
  };
  table.one_worker = {.row = "one worker",
                      .workers = 1,
                      .learning_rate = options.job.learner.learning_rate,
                      .examples_of_seeds = std::move(examples),
                      .time_of_seeds = std::move(times)};
  relate(&table.one_worker);

  for (const ScalingRow& row : options.rows) {
    for (const int64_t workers : options.workers) {
      ScalingCell cell{.row = row.name, .workers = workers};
      for (int64_t seed = 0; seed < options.seeds; ++seed) {
        TogetherOptions job = JobOf(options, row, workers, seed);
        job.until_examples = most;
        job.until_auc = table.target_auc;
        MR_ASSIGN_OR_RETURN(const Together together, TrainTogether(problem, job));
        const std::optional<AucPoint> at =
            Reached(Smoothed(together.evaluations, SmoothSpan(job)), table.target_auc);
        cell.learning_rate = job.learner.learning_rate;
        cell.examples_of_seeds.push_back(at ? at->examples : kNever);
        cell.time_of_seeds.push_back(at ? at->time : kNever);
        cell.dropped += static_cast<double>(together.dropped * job.batch) /
                        static_cast<double>(std::max<int64_t>(together.examples, 1)) /
                        static_cast<double>(options.seeds);
      }
      relate(&cell);
      table.cells.push_back(std::move(cell));
    }
  }
  return table;
}

std::string ToMarkdown(const ScalingTable& table, const ScalingOptions& options) {
  std::string text = "| update |";
  for (const int64_t workers : options.workers) absl::StrAppend(&text, " ", workers, " |");
  absl::StrAppend(&text, "\n|---|");
  for (size_t i = 0; i < options.workers.size(); ++i) absl::StrAppend(&text, "---|");
  absl::StrAppend(&text, "\n");
  for (size_t i = 0; i < table.cells.size(); ++i) {
    const ScalingCell& cell = table.cells[i];
    if (i % options.workers.size() == 0) absl::StrAppend(&text, "| ", cell.row, " |");
    absl::StrAppend(&text, " ",
                    std::isfinite(cell.examples)
                        ? absl::StrFormat("%.2f, %.2f", cell.examples, cell.time)
                        : absl::StrFormat("> %g", options.most),
                    " |");
    if ((i + 1) % options.workers.size() == 0) absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string ToJson(const std::string& problem, const ScalingTable& table) {
  std::vector<std::string> cells;
  for (const ScalingCell& cell : table.cells) cells.push_back(JsonCell(cell));
  return absl::StrCat("{\"problem\": \"", problem,
                      "\", \"target_auc\": ", JsonNumber(table.target_auc),
                      ", \"one_worker_examples\": ", JsonNumber(table.one_worker_examples),
                      ", \"one_worker_time\": ", JsonNumber(table.one_worker_time),
                      ", \"one_worker\": ", JsonCell(table.one_worker), ", \"cells\": [",
                      absl::StrJoin(cells, ", "), "]}\n");
}

}  // namespace millrace::scaling
