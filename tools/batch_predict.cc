// SPDX-License-Identifier: Apache-2.0
//
// batch_predict: asks a model about every row of files; results and errors go to shards. Started
// again after any end, kill -9 included, it goes on where it stopped (tools/batch_predict_job.h).
//
//   batch_predict --model_dir export/1 --input 'rows/*.json' --output_dir out
//   batch_predict --server localhost:8500 --model census --format csv --header
//       --input 'rows-*.csv' --output_dir out --num_shards 4
//
// Several tasks share the rows out (tools/batch_predict_tasks.h): the same command in each, which
// is told who it is by TF_CONFIG or by --task_index and --num_tasks.
//
//   launch --no_ps --workers=3 -- batch_predict --model_dir export/1 --input 'rows/*.json' ...
//
// Exit codes: 0, also with rows in the error files; 2 for wrong flags (usage on stderr); 1 for
// everything else, or 128 and more for what is worth another try, with one message.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "tools/batch_predict_job.h"
#include "tools/batch_rows.h"
#include "tools/batch_task.h"
#include "tools/command_line.h"
#include "tools/local_model.h"
#include "tools/op_libraries.h"
#include "tools/op_library_flag.h"
#include "tools/remote_model.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "batch_predict";
constexpr int kMaxBatch = 1'000'000, kMaxTimeoutSeconds = 7 * 24 * 3600;
constexpr int kTimeoutSeconds = 60, kMaxTasks = 100'000;
// With several tasks a part is what one does next: small ones are shared out better.
constexpr int kPartRows = 10'000, kPartRowsOfTasks = 1'000;

StatusOr<BatchRowFormat> FormatOf(const CommandLine& flags) {
  const std::string name = flags.has("format") ? flags.value("format") : "json";
  if (name == "json") return BatchRowFormat::kJson;
  if (name == "csv") return BatchRowFormat::kCsv;
  if (name == "tfrecord") return BatchRowFormat::kRecords;
  if (name == "text") return BatchRowFormat::kText;
  return InvalidArgument("--format must be json, csv, tfrecord or text, got '", name, "'");
}

// What is asked, and in `words` what that is.
StatusOr<LocalModel> ModelOf(const CommandLine& flags, std::string* words) {
  const std::string signature = flags.value("signature");
  if (flags.has("model_dir") == flags.has("server")) {
    return InvalidArgument("one of --model_dir and --server must be given, got ",
                           flags.has("server") ? "both" : "none");
  }
  if (flags.has("model_dir")) {
    for (const char* name : {"model", "model_version", "label", "timeout_seconds"}) {
      if (flags.has(name)) {
        return InvalidArgument("--", name, " must be given with --server only, got --model_dir");
      }
    }
    MR_RETURN_IF_ERROR(LoadOpLibraries(flags));
    *words = absl::StrCat("'", flags.value("model_dir"), "' signature '", signature, "'");
    return OpenLocalModel(
        FileSystem::Default(), flags.value("model_dir"),
        {.signature = signature, .program = kProgram, .signature_flag = "--signature"}, std::cerr);
  }
  if (!flags.has("model")) return InvalidArgument("--model must be given with --server");
  if (flags.has("model_version") && flags.has("label")) {
    return InvalidArgument("at most one of --model_version and --label must be given, got both");
  }
  RemoteModel model = {.address = flags.value("server"),
                       .name = flags.value("model"),
                       .which = {.label = flags.value("label")},
                       .signature = signature};
  if (flags.has("model_version")) {
    int64_t version = 0;
    if (!absl::SimpleAtoi(flags.value("model_version"), &version) || version < 0) {
      return InvalidArgument("--model_version must be a number >= 0, got '",
                             flags.value("model_version"), "'");
    }
    model.which.version = version;
  }
  MR_ASSIGN_OR_RETURN(const int seconds,
                      flags.IntValue("timeout_seconds", kTimeoutSeconds, 1, kMaxTimeoutSeconds));
  model.timeout = absl::Seconds(seconds);
  // Without the address: a server may come back at another one.
  *words = absl::StrCat("served '", model.name, "' version '", flags.value("model_version"),
                        "' label '", model.which.label, "' signature '", signature, "'");
  return OpenRemoteModel(model);
}

StatusOr<BatchTaskRole> RoleOf(const CommandLine& flags) {
  std::optional<int> index, num_tasks;
  if (flags.has("task_index")) {
    MR_ASSIGN_OR_RETURN(index, flags.IntValue("task_index", 0, 0, kMaxTasks));
  }
  if (flags.has("num_tasks")) {
    MR_ASSIGN_OR_RETURN(num_tasks, flags.IntValue("num_tasks", 1, 1, kMaxTasks));
  }
  ClusterConfig cluster;
  if (!index && !num_tasks) {
    MR_ASSIGN_OR_RETURN(cluster, ClusterConfig::FromEnvironment());
  }
  MR_ASSIGN_OR_RETURN(BatchTaskRole role, BatchTaskRoleOf(index, num_tasks, cluster));
  if (!role.task) {
    for (const char* name : {"takeover_seconds", "max_wait_seconds"}) {
      if (role.idle.empty() && flags.has(name)) {
        return InvalidArgument("--", name, " must be given with several tasks only (TF_CONFIG, or ",
                               "--task_index and --num_tasks), got none");
      }
    }
    return role;
  }
  // A server that is slow is no task that is dead.
  MR_ASSIGN_OR_RETURN(const int timeout,
                      flags.IntValue("timeout_seconds", kTimeoutSeconds, 1, kMaxTimeoutSeconds));
  const int takeover = flags.has("server") ? timeout + kTimeoutSeconds / 2 : kTimeoutSeconds;
  MR_ASSIGN_OR_RETURN(const int takeover_seconds,
                      flags.IntValue("takeover_seconds", takeover, 1, 2 * kMaxTimeoutSeconds));
  MR_ASSIGN_OR_RETURN(const int max_wait,
                      flags.IntValue("max_wait_seconds", std::max(3600, 2 * takeover_seconds), 1,
                                     4 * kMaxTimeoutSeconds));
  if (max_wait <= takeover_seconds) {
    return InvalidArgument("--max_wait_seconds must be more than --takeover_seconds = ",
                           takeover_seconds, ", got ", max_wait);
  }
  role.task->takeover = absl::Seconds(takeover_seconds);
  role.task->max_wait = absl::Seconds(max_wait);
  return role;
}

StatusOr<std::string> Predicted(const CommandLine& flags) {
  BatchPredictOptions options = {.inputs = flags.values("input"),
                                 .has_header = flags.BoolValue("header", false),
                                 .output_directory = flags.value("output_dir")};
  MR_ASSIGN_OR_RETURN(options.format, FormatOf(flags));
  if (flags.has("columns")) options.columns = absl::StrSplit(flags.value("columns"), ',');
  const std::string delim = flags.value("field_delim");
  if (flags.has("field_delim")) {
    if (delim.size() != 1) {
      return InvalidArgument("--field_delim must be one character, got '", delim, "'");
    }
    options.field_delim = delim[0];
  }
  if (options.format != BatchRowFormat::kCsv &&
      (options.has_header || flags.has("columns") || flags.has("field_delim"))) {
    return InvalidArgument(
        "--header, --columns and --field_delim must be given with --format csv only");
  }
  MR_ASSIGN_OR_RETURN(options.batch_size,
                      flags.IntValue("batch_size", options.batch_size, 1, kMaxBatch));
  MR_ASSIGN_OR_RETURN(options.num_shards, flags.IntValue("num_shards", 1, 1, 99'999));
  MR_ASSIGN_OR_RETURN(BatchTaskRole role, RoleOf(flags));
  if (!role.idle.empty()) {
    return absl::StrCat(kProgram, ": ", role.idle,
                        " is not needed: each chief, master and worker has the model itself\n");
  }
  options.task = role.task;
  MR_ASSIGN_OR_RETURN(
      options.part_rows,
      flags.IntValue("part_rows", options.task ? kPartRowsOfTasks : kPartRows, 1, 1'000'000'000));
  MR_ASSIGN_OR_RETURN(const LocalModel model, ModelOf(flags, &options.model));
  MR_ASSIGN_OR_RETURN(const BatchPredictSummary summary, RunBatchPredict(options, model));
  return absl::StrCat(kProgram, ": ", summary.ToString(), " in '", options.output_directory, "'\n");
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = {
      .name = kProgram,
      .about =
          "Asks a model about every row of files. Predictions go to prediction.results-*, bad "
          "rows to\nprediction.errors_stats-*. Started again it goes on where it stopped. Started "
          "as several\ntasks, each told by TF_CONFIG or by --task_index who it is, it shares the "
          "rows out.",
      .flags = {{.name = "input",
                 .value = "PATTERN",
                 .help = "files with rows; may be given several times",
                 .required = true},
                {.name = "format",
                 .value = "json|csv|tfrecord|text",
                 .help = "of the files: a JSON value or a text in each line, CSV records, or "
                         "TFRecords of strings (json)"},
                {.name = "header", .help = "CSV files begin with their columns", .boolean = true},
                {.name = "columns", .value = "NAMES", .help = "of CSV files: the inputs' names"},
                {.name = "field_delim", .value = "C", .help = "of CSV files (,)"},
                {.name = "output_dir", .value = "DIR", .help = "the shards", .required = true},
                {.name = "num_shards", .value = "N", .help = "of both kinds (1)"},
                {.name = "batch_size", .value = "N", .help = "rows that are asked at once (64)"},
                {.name = "part_rows",
                 .value = "N",
                 .help = "what a restart may have to ask again at most (10000), and what a task "
                         "does at a time (1000)"},
                {.name = "task_index",
                 .value = "I",
                 .help = "which of --num_tasks this is, instead of TF_CONFIG"},
                {.name = "num_tasks",
                 .value = "N",
                 .help = "processes with this command and one output directory"},
                {.name = "takeover_seconds",
                 .value = "N",
                 .help = "others do the work of a task that is silent for so long; longer than a "
                         "call takes (60; with --server its --timeout_seconds and 30)"},
                {.name = "max_wait_seconds",
                 .value = "N",
                 .help = "a task gives up when it had nothing to do, and no other has done "
                         "anything, for so long (3600)"},
                {.name = "model_dir", .value = "DIR", .help = "the model, asked in this process"},
                {.name = "server",
                 .value = "HOST:PORT|unix:/PATH",
                 .help = "a model server's gRPC port, instead of --model_dir"},
                {.name = "model", .value = "NAME", .help = "the server's model"},
                {.name = "model_version", .value = "N", .help = "of it (the newest)"},
                {.name = "label", .value = "L", .help = "of a version, instead of its number"},
                {.name = "timeout_seconds", .value = "N", .help = "of each call (60)"},
                {.name = "signature",
                 .value = "NAME",
                 .help = "what is asked (serving_default, else the only one)"},
                OpLibraryFlag()}};
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code);
  if (!flags) return exit_code;
  const StatusOr<std::string> text = Predicted(*flags);
  if (!text.ok()) return ReportedExitCode(kProgram, text.status());
  std::cout << *text << std::flush;
  return std::cout ? kExitOk : kExitError;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
