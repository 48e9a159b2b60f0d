// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_CENSUS_FLAGS_H_
#define MILLRACE_EXAMPLES_CENSUS_FLAGS_H_

// The flags of census: those of the trainer that Cloud ML Engine's users have, spelled alike.
//
//   --train-files a.csv b.csv --train-steps=1000 --job-dir run
//
// Dashes and underscores are the same; a name may be cut short while only one flag begins so; a
// list ends with the next flag; the last of equal flags wins. A flag that is not known is no error,
// for managers hand on flags of their own: its name and the words behind it are in `ignored`.
//
// Failure: InvalidArgument, naming the flag, what it must be and what was given.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/logging.h"
#include "core/program.h"
#include "core/status.h"
#include "examples/census/model.h"

namespace millrace::census {

struct Flags {
  std::vector<std::string> train_files = {}, eval_files = {};  // both or none
  std::optional<int64_t> num_epochs = {};
  std::optional<int64_t> train_steps = {};
  int64_t train_batch_size = 40;
  int64_t eval_batch_size = 40;
  std::optional<int64_t> eval_steps = 100;  // 0: to the end of the files
  int64_t embedding_size = 8;
  int64_t first_layer_size = 100;
  int64_t num_layers = 4;
  double scale_factor = 0.7;
  std::string job_dir = "";
  LogLevel verbosity = LogLevel::kInfo;
  ExportFormat export_format = ExportFormat::kJson;

  // What that trainer has not.
  int64_t skip_header_lines = 0;
  int64_t keep_mb = 64;  // files of at most so many MB are parsed once
  int64_t seed = 0;      // 0: chance
  std::optional<int64_t> save_checkpoints_steps = {};
  int64_t eval_start_delay_secs = 0;
  int64_t eval_throttle_secs = 60;
  int64_t max_worker_delay_secs = 0;
  int64_t wait_for_evaluator_secs = 0;
  double capital_gain_scale = 1;

  bool help = false, version = false;
  std::vector<std::string> ignored = {};
};

// `args` without the program's name. What is asked for with --help or --version is not checked.
StatusOr<Flags> ParseFlags(absl::Span<const std::string> args);
// What --help shows.
ProgramHelp Help();

}  // namespace millrace::census

#endif  // MILLRACE_EXAMPLES_CENSUS_FLAGS_H_
