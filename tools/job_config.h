// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_JOB_CONFIG_H_
#define MILLRACE_TOOLS_JOB_CONFIG_H_

// What a training job asks for: a scale tier, or the file in which gcloud reads one.
//
//   trainingInput:
//     scaleTier: CUSTOM
//     masterType: standard
//     workerType: standard
//     workerCount: 4
//     parameterServerType: large_model
//     parameterServerCount: 3
//     args: ["--train-steps", "5000"]
//
//   BASIC        1 master
//   STANDARD_1   1 master,  4 workers,  3 parameter servers
//   PREMIUM_1    1 master, 19 workers, 11 parameter servers
//   CUSTOM       1 master, and the counts of the file
//
// A tier's letters may be small, "_" may be "-", and "SCALE_TIER_" may be before it, as gcloud and
// the console write it. Tiers and machine types with a GPU or a TPU are refused: tensors are in the
// memory of the CPU here. What a CPU machine is called means nothing here.
//
// Keys that mean nothing here (region, runtimeVersion, packageUris, ...) are named in `warnings`.
// One that is nearly a key above is an error: a job without its workers helps nobody.
//
// A file comes from a stranger: it has at most kMaxJobConfigBytes, one document, values nested at
// most kMaxJobConfigDepth deep, kMaxJobConfigValues values and kMaxJobConfigAliases aliases, which
// are never copied.
//
// Thread-safety: pure functions. Failure: InvalidArgument "config.yaml:4:16: <key> <rule>, got
// <value>" with line and column; Unimplemented for GPUs and TPUs.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

inline constexpr size_t kMaxJobConfigBytes = 64 << 10;
inline constexpr int kMaxJobConfigDepth = 20;
inline constexpr int kMaxJobConfigValues = 10'000;
inline constexpr int kMaxJobConfigAliases = 100;
inline constexpr int kMaxTasksOfJob = 1000;

// What a file, or flags, say of a job. Fields without a value are not given.
struct JobConfig {
  std::optional<std::string> scale_tier = {};
  std::optional<std::string> master_type = {};
  std::optional<std::string> worker_type = {};
  std::optional<std::string> parameter_server_type = {};
  std::optional<std::string> evaluator_type = {};
  std::optional<int> worker_count = {};
  std::optional<int> parameter_server_count = {};
  std::optional<int> evaluator_count = {};
  // The master's job is called "chief" (useChiefInTfConfig).
  std::optional<bool> use_chief = {};
  std::optional<std::vector<std::string>> args = {};
  std::optional<std::string> job_dir = {};
  // One sentence each: what was read and means nothing here.
  std::vector<std::string> warnings = {};
};

// The text of a file; `name` is what messages call it.
StatusOr<JobConfig> ParseJobConfig(absl::string_view text, absl::string_view name);

// `flags` over `file`: what the flags give counts. A warning says so where both give arguments.
JobConfig OverJobConfig(const JobConfig& file, const JobConfig& flags);

// The tasks of a job.
struct JobTasks {
  std::string tier;              // "STANDARD_1"
  std::string chief = "master";  // or "chief": the job of the one that saves
  int workers = 0;
  int ps = 0;
  // One; it is next to a chief only, a master evaluates itself.
  bool evaluator = false;

  int trainers() const { return workers + 1; }
};

// The tasks that a config asks for. Without a tier: CUSTOM if it has a count, else BASIC.
// InvalidArgument for counts with another tier than CUSTOM, and trainers that share no parameter
// server; Unimplemented for GPUs and TPUs.
StatusOr<JobTasks> TasksOf(const JobConfig& config);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_JOB_CONFIG_H_
