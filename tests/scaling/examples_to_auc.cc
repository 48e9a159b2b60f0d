// SPDX-License-Identifier: Apache-2.0
// examples_to_auc: how many examples, and how much time, 2 to 32 workers need for the AUC that one
// worker has after its budget, by the way in which they update the variables.
//
//   examples_to_auc --problem=census
//   examples_to_auc --problem=clicks --json
//
// What is measured, and what is virtual: many_workers.h and scaling_table.h.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/testing/shared_data.h"
#include "examples/wide_deep/census.h"
#include "tests/scaling/census_problem.h"
#include "tests/scaling/click_problem.h"
#include "tests/scaling/many_workers.h"
#include "tests/scaling/problem.h"
#include "tests/scaling/scaling_table.h"

ABSL_FLAG(std::string, problem, "census",
          "census: the people of the UCI data; clicks: a click log that the program draws");
ABSL_FLAG(std::string, census_dir, "",
          "directory with adult.data.csv and adult.test.csv; empty: census below MILLRACE_SHARED's "
          "data");
ABSL_FLAG(int64_t, rows, 100'000, "clicks: of the tables");
ABSL_FLAG(int64_t, train_examples, 600'000, "clicks: in the log");
ABSL_FLAG(double, click_rate, 0.2, "clicks: share of the examples with a click");
ABSL_FLAG(int64_t, held_out, 4'096, "examples that the AUC is of; census: at most those there are");
ABSL_FLAG(std::vector<std::string>, workers, (std::vector<std::string>{"2", "4", "8", "32"}),
          "columns of the table");
ABSL_FLAG(std::vector<std::string>, updates, {},
          "rows of the table: names, in which commas are left out; empty: all");
ABSL_FLAG(int64_t, seeds, 3, "of initial values, order of examples and times; results are medians");
ABSL_FLAG(uint64_t, first_seed, 1, "the others follow it");
ABSL_FLAG(int64_t, budget, 0, "examples of one worker; 0: census 131,072, clicks 262,144");
ABSL_FLAG(double, most, 2, "budgets after which many workers give up");
ABSL_FLAG(int64_t, evaluations, 40, "in a budget");
ABSL_FLAG(int64_t, smooth, 5, "the moving mean is over the examples of so many evaluations");
ABSL_FLAG(int64_t, batch, 0, "examples in a worker's step; 0: census 32, clicks 128");
ABSL_FLAG(std::string, optimizer, "adagrad", "adagrad, sgd or momentum (of 0.9)");
ABSL_FLAG(double, learning_rate, 0.02, "of one worker, and of the rows that do not say otherwise");
ABSL_FLAG(double, initial_accumulator, 0, "of Adagrad; 0: census 0.1, clicks 1e-5");
ABSL_FLAG(double, scale_by_staleness, 1, "staleness-aware: the power");
ABSL_FLAG(double, drop_above, 4, "staleness-aware: staleness by the number of workers");
ABSL_FLAG(int64_t, local_steps, 8, "local: steps between two means");
ABSL_FLAG(double, step_time_sigma, 0.3, "of the logarithm of a step's time; its mean is 1");
ABSL_FLAG(double, slow_share, 0.125, "of the workers that are slow, rounded down");
ABSL_FLAG(double, slow_factor, 2, "how many times as long a slow worker's steps take");
ABSL_FLAG(bool, json, false, "one JSON object instead of the table");

namespace millrace::scaling {
namespace {

StatusOr<std::unique_ptr<Problem>> ChosenProblem() {
  const std::string problem = absl::GetFlag(FLAGS_problem);
  const int64_t held_out = absl::GetFlag(FLAGS_held_out);
  if (held_out < 1) return InvalidArgument("--held_out must be >= 1, got ", held_out);
  if (problem == "clicks") {
    return MakeClickProblem({.rows = absl::GetFlag(FLAGS_rows),
                             .train = absl::GetFlag(FLAGS_train_examples),
                             .held_out = held_out,
                             .click_rate = absl::GetFlag(FLAGS_click_rate)});
  }
  if (problem != "census") {
    return InvalidArgument("--problem must be 'census' or 'clicks', got '", problem, "'");
  }
  std::string dir = absl::GetFlag(FLAGS_census_dir);
  if (dir.empty()) dir = SharedDataPath("census");
  if (dir.empty()) {
    return InvalidArgument(
        "--census_dir must name a directory with adult.data.csv and adult.test.csv where "
        "MILLRACE_SHARED has none, got ''");
  }
  MR_ASSIGN_OR_RETURN(Census people, ReadCensus(dir + "/adult.data.csv"));
  MR_ASSIGN_OR_RETURN(const Census test, ReadCensus(dir + "/adult.test.csv"));
  return MakeCensusProblem(std::move(people), test, static_cast<size_t>(held_out));
}

StatusOr<std::vector<ScalingRow>> ChosenRows() {
  const std::vector<std::string> names = absl::GetFlag(FLAGS_updates);
  std::vector<ScalingRow> all = AllScalingRows(), chosen;
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (ScalingRow& row : all) {
    // A flag's list is cut at commas.
    std::string plain = row.name;
    std::erase(plain, ',');
    known.push_back(plain);
  }
  for (const std::string& name : names) {
    size_t i = 0;
    while (i < known.size() && known[i] != name) ++i;
    if (i == known.size()) {
      return InvalidArgument("--updates must be of '", absl::StrJoin(known, "', '"), "', got '",
                             name, "'");
    }
    chosen.push_back(all[i]);
  }
  return chosen;
}

Status Run() {
  ScalingOptions options;
  options.workers.clear();
  for (const std::string& text : absl::GetFlag(FLAGS_workers)) {
    int64_t workers = 0;
    if (!absl::SimpleAtoi(text, &workers) || workers < 1) {
      return InvalidArgument("--workers must be numbers >= 1, got '", text, "'");
    }
    options.workers.push_back(workers);
  }
  if (options.workers.empty()) return InvalidArgument("--workers must be numbers >= 1, got none");
  MR_ASSIGN_OR_RETURN(options.rows, ChosenRows());
  TogetherOptions& job = options.job;
  job.batch = absl::GetFlag(FLAGS_batch);
  const bool is_clicks = absl::GetFlag(FLAGS_problem) == "clicks";
  if (job.batch == 0) job.batch = is_clicks ? 128 : 32;
  if (job.batch < 1 || job.batch > 1'000'000) {
    return InvalidArgument("--batch must be in [1, 1000000], got ", job.batch);
  }
  job.seed = absl::GetFlag(FLAGS_first_seed);
  job.smooth = absl::GetFlag(FLAGS_smooth);
  job.local_steps = absl::GetFlag(FLAGS_local_steps);
  job.learner.optimizer = absl::GetFlag(FLAGS_optimizer);
  job.learner.learning_rate = absl::GetFlag(FLAGS_learning_rate);
  job.learner.initial_accumulator = absl::GetFlag(FLAGS_initial_accumulator);
  // A row of the click log is in few examples of a batch: its gradient is some thousandths.
  if (job.learner.initial_accumulator == 0)
    job.learner.initial_accumulator = is_clicks ? 1e-5 : 0.1;
  job.speeds = {.sigma = absl::GetFlag(FLAGS_step_time_sigma),
                .slow_share = absl::GetFlag(FLAGS_slow_share),
                .slow_factor = absl::GetFlag(FLAGS_slow_factor)};
  options.seeds = absl::GetFlag(FLAGS_seeds);
  options.budget = absl::GetFlag(FLAGS_budget);
  if (options.budget == 0) options.budget = is_clicks ? 262'144 : 131'072;
  options.most = absl::GetFlag(FLAGS_most);
  options.evaluations = absl::GetFlag(FLAGS_evaluations);
  options.scale_by_staleness = absl::GetFlag(FLAGS_scale_by_staleness);
  options.drop_above = absl::GetFlag(FLAGS_drop_above);

  MR_ASSIGN_OR_RETURN(const auto problem, ChosenProblem());
  MR_ASSIGN_OR_RETURN(
      const ScalingTable table, MeasureScaling(*problem, options, [](const ScalingCell& cell) {
        std::fprintf(stderr, "%s, %lld workers: %.3f examples, %.3f time, %.1f %% dropped\n",
                     cell.row.c_str(), static_cast<long long>(cell.workers), cell.examples,
                     cell.time, 100 * cell.dropped);
      }));
  if (absl::GetFlag(FLAGS_json)) {
    std::fputs(ToJson(absl::GetFlag(FLAGS_problem), table).c_str(), stdout);
    return absl::OkStatus();
  }
  const std::vector<double>& seeds = table.one_worker.examples_of_seeds;
  std::vector<std::string> noise;
  for (const double of_seed : seeds) noise.push_back(absl::StrFormat("%.2f", of_seed));
  std::printf("%s: one worker has an AUC of %.4f after %.0f examples; its seeds need %s of that\n",
              absl::GetFlag(FLAGS_problem).c_str(), table.target_auc, table.one_worker_examples,
              absl::StrJoin(noise, ", ").c_str());
  std::fputs(ToMarkdown(table, options).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::scaling

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Measures what examples and virtual time many workers need for one worker's AUC.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::scaling::Run());
}
