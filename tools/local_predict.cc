// SPDX-License-Identifier: Apache-2.0
//
// local_predict: asks an exported model about instances, in this process; a stand-in for `gcloud
// ml-engine local predict`.
//
//   local_predict --model-dir DIR --json-instances FILE [--signature-name NAME] [--format json]
//   local_predict --model-dir DIR --text-instances FILE
//
// Exit codes: 0, 2 for wrong flags (usage on stderr), 1 for everything else, with one message.

#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "saver/loaded_model.h"
#include "tools/command_line.h"
#include "tools/instances.h"
#include "tools/local_model.h"
#include "tools/op_libraries.h"
#include "tools/op_library_flag.h"
#include "tools/prediction_table.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "local_predict";

StatusOr<std::string> TextIn(const std::string& path) {
  if (path != "-") return ReadFileToString(FileSystem::Default(), path);
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

// Of flags as they are given.
Status CheckFlags(const CommandLine& flags) {
  if (flags.has("json-instances") == flags.has("text-instances")) {
    return InvalidArgument("one of --json-instances and --text-instances must be given, got ",
                           flags.has("json-instances") ? "both" : "none");
  }
  const std::string format = flags.value("format");
  if (flags.has("format") && format != "json" && format != "table") {
    return InvalidArgument("--format must be table or json, got '", format, "'");
  }
  return absl::OkStatus();
}

StatusOr<std::string> Predictions(const CommandLine& flags) {
  MR_RETURN_IF_ERROR(CheckFlags(flags));
  MR_RETURN_IF_ERROR(LoadOpLibraries(flags));
  LocalModelOptions options = {.signature = flags.value("signature-name")};
  if (flags.has("tag-set")) options.tags = absl::StrSplit(flags.value("tag-set"), ',');
  MR_ASSIGN_OR_RETURN(
      const LocalModel model,
      OpenLocalModel(FileSystem::Default(), flags.value("model-dir"), options, std::cerr));
  const bool is_text = flags.has("text-instances");
  const std::string path = flags.value(is_text ? "text-instances" : "json-instances");
  MR_ASSIGN_OR_RETURN(const std::string text, TextIn(path));
  const StatusOr<Instances> instances =
      is_text ? TextInstances(text, model.inputs) : JsonInstances(text, model.inputs);
  if (!instances.ok()) return Prefixed(absl::StrCat("'", path, "'"), instances.status());
  MR_ASSIGN_OR_RETURN(const NamedTensors outputs, model.predict(instances->inputs));
  return flags.value("format") == "json" ? PredictionJson(outputs, instances->count)
                                         : PredictionTable(outputs, instances->count);
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = {
      .name = kProgram,
      .about =
          "Asks an exported model about instances and prints a row for each. The model is a "
          "SavedModel, a directory\nof versions of one, or export.meta with a checkpoint.",
      .flags = {{.name = "model-dir", .value = "DIR", .help = "the model", .required = true},
                {.name = "json-instances",
                 .value = "FILE",
                 .help = "a JSON value in each line: an object with a value per input; \"-\" is "
                         "stdin"},
                {.name = "text-instances",
                 .value = "FILE",
                 .help = "a text in each line, for a model with one input of strings"},
                {.name = "signature-name",
                 .value = "NAME",
                 .help = "what is asked (serving_default, else the only one)"},
                {.name = "tag-set", .value = "TAGS", .help = "of the meta graph (serve)"},
                {.name = "format", .value = "table|json", .help = "how it is printed (table)"},
                OpLibraryFlag()}};
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code);
  if (!flags) return exit_code;
  const StatusOr<std::string> text = Predictions(*flags);
  if (!text.ok()) return ReportedExitCode(kProgram, text.status());
  std::cout << *text << std::flush;
  return std::cout ? kExitOk : kExitError;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
