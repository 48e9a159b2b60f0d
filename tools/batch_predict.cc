// SPDX-License-Identifier: Apache-2.0
//
// batch_predict: asks a model about every row of files; results and errors go to shards. Started
// again after any end, kill -9 included, it goes on where it stopped (tools/batch_predict_job.h).
//
//   batch_predict --model_dir export/1 --input 'rows/*.json' --output_dir out
//   batch_predict --server localhost:8500 --model census --format csv --header
//       --input 'rows-*.csv' --output_dir out --num_shards 4
//
// Exit codes: 0, also with rows in the error files; 2 for wrong flags (usage on stderr); 1 for
// everything else, or 128 and more for what is worth another try, with one message.

#include <cstdint>
#include <iostream>
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
#include "tools/batch_predict_job.h"
#include "tools/command_line.h"
#include "tools/local_model.h"
#include "tools/op_libraries.h"
#include "tools/op_library_flag.h"
#include "tools/remote_model.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "batch_predict";
constexpr int kMaxBatch = 1'000'000, kMaxTimeoutSeconds = 7 * 24 * 3600;

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
        FileSystem::Posix(), flags.value("model_dir"),
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
                      flags.IntValue("timeout_seconds", 60, 1, kMaxTimeoutSeconds));
  model.timeout = absl::Seconds(seconds);
  // Without the address: a server may come back at another one.
  *words = absl::StrCat("served '", model.name, "' version '", flags.value("model_version"),
                        "' label '", model.which.label, "' signature '", signature, "'");
  return OpenRemoteModel(model);
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
  MR_ASSIGN_OR_RETURN(options.part_rows, flags.IntValue("part_rows", 10'000, 1, 1'000'000'000));
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
          "rows to\nprediction.errors_stats-*. Started again it goes on where it stopped.",
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
                 .help = "what a restart may have to ask again at most (10000)"},
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
