// SPDX-License-Identifier: Apache-2.0
//
// saved_model_cli: shows, runs, checks and scans SavedModels; a stand-in for TensorFlow 1.15's tool
// with the same flags, texts and exit codes, and with `check`, which that tool does not have.
//
//   saved_model_cli show --dir DIR [--all] [--tag_set TAGS] [--signature_def KEY] [--json]
//   saved_model_cli run --dir DIR --tag_set TAGS --signature_def KEY --inputs ... [--outdir DIR]
//   saved_model_cli check --dir DIR [--tag_set TAGS] [--signature_def KEY] [--json]
//   saved_model_cli scan --dir DIR [--tag_set TAGS] [--json]
//
// Exit codes: 0, 2 for wrong flags (usage on stderr), 1 for everything else: the last line on
// stderr is the exception that the Python tool would raise. `check` exits with 1 when the model
// cannot be run.

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "tools/command_line.h"
#include "tools/op_libraries.h"
#include "tools/op_library_flag.h"
#include "tools/python_error.h"
#include "tools/saved_model_check.h"
#include "tools/saved_model_run.h"
#include "tools/saved_model_show.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "saved_model_cli";
constexpr char kJsonHelp[] = "prints JSON";

// The model's directory, and the model.
struct OpenedModel {
  std::string dir;
  tensorflow::SavedModel model;
};

StatusOr<OpenedModel> OpenModel(const CommandLine& flags) {
  OpenedModel opened;
  opened.dir = ModelDirectory(FileSystem::Default(), flags.value("dir"), kProgram, std::cerr);
  MR_ASSIGN_OR_RETURN(opened.model, ReadSavedModelForTool(FileSystem::Default(), opened.dir));
  return opened;
}

// The flag's value; null when it was not given.
const std::string* Given(const CommandLine& flags, const std::string& name, std::string* value) {
  *value = flags.value(name);
  return flags.has(name) ? value : nullptr;
}

StatusOr<int> Show(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(flags));
  const tensorflow::SavedModel& model = opened.model;
  if (flags.has("json")) {
    std::string tag_set, key;
    const std::string* const tags = flags.has("all") ? nullptr : Given(flags, "tag_set", &tag_set);
    const std::string* const signature =
        tags == nullptr ? nullptr : Given(flags, "signature_def", &key);
    MR_ASSIGN_OR_RETURN(const std::string text, ShowJson(model, tags, signature));
    std::cout << text;
  } else if (flags.has("all")) {
    std::cout << ShowAll(model);
  } else if (!flags.has("tag_set")) {
    std::cout << ShowTagSets(model);
  } else {
    MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef* meta_graph,
                        MetaGraphWithTags(model, flags.value("tag_set")));
    if (flags.has("signature_def")) {
      const std::string key = flags.value("signature_def");
      if (const auto found = FindSignature(*meta_graph, key); !found.ok()) {
        std::cerr << "WARNING: " << found.status().message() << "\n";
      }
      std::cout << ShowSignature(*meta_graph, key);
    } else {
      std::cout << ShowSignatureKeys(*meta_graph);
    }
  }
  return kExitOk;
}

StatusOr<int> Scan(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(flags));
  std::string tag_set;
  const std::string* const tags = Given(flags, "tag_set", &tag_set);
  MR_ASSIGN_OR_RETURN(const std::string text, flags.has("json")
                                                  ? ScanJson(opened.model, tags)
                                                  : ScanForDeniedOps(opened.model, tags));
  std::cout << text;
  return kExitOk;
}

StatusOr<int> Check(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(flags));
  std::vector<const tensorflow::MetaGraphDef*> meta_graphs;
  if (flags.has("tag_set")) {
    MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef* meta_graph,
                        MetaGraphWithTags(opened.model, flags.value("tag_set")));
    meta_graphs.push_back(meta_graph);
  } else {
    for (const auto& meta_graph : opened.model.meta_graphs()) meta_graphs.push_back(&meta_graph);
  }
  if (meta_graphs.empty()) {
    return PythonError("RuntimeError", "SavedModel must have at least one MetaGraphDef, got none");
  }
  std::string key;
  const std::string* const signature = Given(flags, "signature_def", &key);
  std::vector<ModelCheck> checks;
  bool runnable = true;
  for (const tensorflow::MetaGraphDef* meta_graph : meta_graphs) {
    MR_ASSIGN_OR_RETURN(ModelCheck check,
                        CheckModel(FileSystem::Default(), opened.dir, *meta_graph, signature));
    runnable = runnable && check.runnable();
    checks.push_back(std::move(check));
  }
  if (flags.has("json")) {
    std::cout << CheckJson(checks);
  } else {
    for (const ModelCheck& check : checks) std::cout << CheckText(check);
  }
  return runnable ? kExitOk : kExitError;
}

StatusOr<int> Run(const CommandLine& flags) {
  for (const char* flag : {"tf_debug", "worker", "init_tpu"}) {
    if (flags.has(flag)) {
      return PythonError("NotImplementedError",
                         absl::StrCat("--", flag, " is not supported; models run in this process"));
    }
  }
  SavedModelRun run;
  run.dir = ModelDirectory(FileSystem::Default(), flags.value("dir"), kProgram, std::cerr);
  run.tag_set = flags.value("tag_set");
  run.signature_key = flags.value("signature_def");
  run.inputs = {flags.value("inputs"), flags.value("input_exprs"), flags.value("input_examples")};
  run.outdir = flags.value("outdir");
  run.overwrite = flags.has("overwrite");
  run.clear_devices = flags.BoolValue("clear_devices", false);
  run.json = flags.has("json");
  MR_RETURN_IF_ERROR(RunSavedModel(FileSystem::Default(), run, std::cout, std::cerr));
  return kExitOk;
}

StatusOr<int> Convert(const CommandLine&) {
  return PythonError("NotImplementedError", "convert makes TensorRT engines, which need a GPU");
}

struct Command {
  ProgramHelp help;
  StatusOr<int> (*action)(const CommandLine&);
};

std::vector<Command> Commands() {
  const FlagSpec dir = {.name = "dir",
                        .value = "DIR",
                        .help = "of the SavedModel, or of its versions: the newest is used",
                        .required = true};
  const FlagSpec tag_set = {
      .name = "tag_set", .value = "TAGS", .help = "of the meta graph: 'serve' or 'serve,gpu'"};
  const FlagSpec signature = {
      .name = "signature_def", .value = "KEY", .help = "of the signature: 'serving_default'"};
  const FlagSpec json = {.name = "json", .help = kJsonHelp};
  FlagSpec needed_tag_set = tag_set, needed_signature = signature;
  needed_tag_set.required = needed_signature.required = true;
  return {
      {{.name = "show",
        .about = "Shows the tag-sets of a SavedModel, the signatures of one, or one signature.",
        .flags = {dir,
                  {.name = "all", .help = "shows everything"},
                  tag_set,
                  signature,
                  json,
                  OpLibraryFlag()}},
       Show},
      {{.name = "run",
        .about = "Runs a signature of a SavedModel and prints its outputs.",
        .flags = {dir,
                  needed_tag_set,
                  needed_signature,
                  {.name = "inputs",
                   .value = "TEXT",
                   .help = "arrays of numpy: 'key=file.npy;key2=file.npz[name]'"},
                  {.name = "input_exprs",
                   .value = "TEXT",
                   .help = "Python literals and arrays: 'key=[[1.0], [2.0]];key2=np.ones((2, 1))'"},
                  {.name = "input_examples",
                   .value = "TEXT",
                   .help = "tf.Examples: 'key=[{\"feature\": [1.0]}]'"},
                  {.name = "outdir", .value = "DIR", .help = "writes each output to DIR/<key>.npy"},
                  {.name = "overwrite", .help = "files that exist, too"},
                  {.name = "clear_devices",
                   .help = "runs nodes here whatever devices they ask for (a GPU is never needed)",
                   .boolean = true},
                  json,
                  {.name = "tf_debug", .help = "refused"},
                  {.name = "worker", .value = "TARGET", .help = "refused"},
                  {.name = "init_tpu", .help = "refused"},
                  OpLibraryFlag()}},
       Run},
      {{.name = "check",
        .about = "Says whether this program can run a SavedModel: all ops that it lacks, with the "
                 "nodes that have them and what would have to be made. Exit code 0: loading and "
                 "the signatures can be run.",
        .flags = {dir, tag_set, signature, json, OpLibraryFlag()}},
       Check},
      {{.name = "scan",
        .about = "Looks for ops that touch files.",
        .flags = {dir, tag_set, json, OpLibraryFlag()}},
       Scan},
      {{.name = "convert",
        .about = "Refused: it makes TensorRT engines, which need a GPU.",
        .flags = {}},
       Convert},
  };
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  std::vector<Command> commands = Commands();
  std::string choices;
  ProgramHelp help = {.name = kProgram, .about = "", .flags = {}, .rest = "COMMAND ..."};
  for (const Command& command : commands) {
    absl::StrAppend(&choices, choices.empty() ? "" : ", ", "'", command.help.name, "'");
    absl::StrAppend(&help.about, help.about.empty() ? "" : "\n", command.help.name, ": ",
                    command.help.about);
  }
  absl::StrAppend(&help.about, "\n\nCOMMAND --help shows the flags of a command.");
  const auto wrong_usage = [&help](const std::string& reason) {
    std::cerr << UsageText(help) << kProgram << ": error: " << reason << "\n";
    return kExitWrongFlags;
  };
  if (args.empty()) return wrong_usage("too few arguments");
  const auto command = std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& one) { return one.help.name == args[0]; });
  if (command == commands.end()) {
    if (absl::StartsWith(args[0], "-")) {
      int exit_code = kExitOk;
      if (!CommandLine::ParseOrExplain(help, args, &exit_code)) return exit_code;
    }
    return wrong_usage(absl::StrCat("invalid choice: '", args[0], "' (choose from ", choices, ")"));
  }
  command->help.name = absl::StrCat(kProgram, " ", command->help.name);
  int exit_code = kExitOk;
  std::vector<std::string> rest(args.begin() + 1, args.end());
  if (command->action == Convert) {
    // It is refused, whatever its flags are.
    std::erase_if(rest, [](const std::string& word) { return word != "-h" && word != "--help"; });
  }
  const auto flags = CommandLine::ParseOrExplain(command->help, rest, &exit_code);
  if (!flags) return exit_code;
  const Status loaded = LoadOpLibraries(*flags);
  if (!loaded.ok()) {
    std::cerr << PythonErrorFromStatus(loaded).message() << "\n";
    return kExitError;
  }
  const StatusOr<int> code = command->action(*flags);
  std::cout.flush();
  if (!code.ok()) {
    std::cerr << code.status().message() << "\n";
    return kExitError;
  }
  if (!std::cout) {
    std::cerr << "IOError: output cannot be written\n";
    return kExitError;
  }
  return *code;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
