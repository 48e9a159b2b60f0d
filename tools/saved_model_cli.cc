// SPDX-License-Identifier: Apache-2.0
//
// saved_model_cli: shows, runs and scans SavedModels; a stand-in for TensorFlow 1.15's tool with
// the same flags, texts and exit codes.
//
//   saved_model_cli show --dir DIR [--all] [--tag_set TAGS] [--signature_def KEY]
//   saved_model_cli run --dir DIR --tag_set TAGS --signature_def KEY --inputs ... [--outdir DIR]
//   saved_model_cli scan --dir DIR [--tag_set TAGS]
//
// Exit codes: 0, 2 for wrong flags (usage on stderr), 1 for everything else: the last line on
// stderr is the exception that the Python tool would raise.

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/status.h"
#include "tools/command_line.h"
#include "tools/python_error.h"
#include "tools/saved_model_run.h"
#include "tools/saved_model_show.h"

namespace millrace {
namespace {

constexpr int kUsageError = 2;

constexpr char kUsage[] = "usage: saved_model_cli [-h] [-v] {show,run,scan,convert} ...\n";
constexpr char kShowUsage[] =
    "usage: saved_model_cli show [-h] --dir DIR [--all] [--tag_set TAG_SET]\n"
    "                            [--signature_def SIGNATURE_DEF_KEY]\n";
constexpr char kRunUsage[] =
    "usage: saved_model_cli run [-h] --dir DIR --tag_set TAG_SET --signature_def\n"
    "                           SIGNATURE_DEF_KEY [--inputs INPUTS]\n"
    "                           [--input_exprs INPUT_EXPRS]\n"
    "                           [--input_examples INPUT_EXAMPLES] [--outdir OUTDIR]\n"
    "                           [--overwrite] [--tf_debug] [--worker WORKER]\n"
    "                           [--init_tpu]\n";
constexpr char kScanUsage[] = "usage: saved_model_cli scan [-h] --dir DIR [--tag_set TAG_SET]\n";
constexpr char kHelp[] =
    "\n"
    "  show  prints tag-sets, signatures and their tensors: --dir; --tag_set a,b;\n"
    "        --signature_def key; --all for everything\n"
    "  run   runs a signature and prints its outputs: --inputs "
    "'key=file.npy;key2=file.npz[name]',\n"
    "        --input_exprs 'key=[[1.0]]' (Python literals), --input_examples "
    "'key=[{\"f\":[1.0]}]',\n"
    "        --outdir DIR (writes <key>.npy), --overwrite\n"
    "  scan  looks for ops that touch files\n";

int WrongUsage(absl::string_view usage, absl::string_view program, absl::string_view reason) {
  std::cerr << usage << program << ": error: " << reason << "\n";
  return kUsageError;
}

Status Show(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const tensorflow::SavedModel model,
                      ReadSavedModelForTool(FileSystem::Posix(), flags.value("dir")));
  if (flags.has("all")) {
    std::cout << ShowAll(model);
  } else if (!flags.has("tag_set")) {
    std::cout << ShowTagSets(model);
  } else {
    MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef* meta_graph,
                        MetaGraphWithTags(model, flags.value("tag_set")));
    if (flags.has("signature_def")) {
      std::cout << ShowSignature(*meta_graph, flags.value("signature_def"));
    } else {
      std::cout << ShowSignatureKeys(*meta_graph);
    }
  }
  return absl::OkStatus();
}

Status Scan(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const tensorflow::SavedModel model,
                      ReadSavedModelForTool(FileSystem::Posix(), flags.value("dir")));
  const std::string tag_set = flags.value("tag_set");
  MR_ASSIGN_OR_RETURN(const std::string text,
                      ScanForDeniedOps(model, flags.has("tag_set") ? &tag_set : nullptr));
  std::cout << text;
  return absl::OkStatus();
}

Status Run(const CommandLine& flags) {
  for (const char* flag : {"tf_debug", "worker", "init_tpu"}) {
    if (flags.has(flag)) {
      return PythonError("NotImplementedError",
                         absl::StrCat("--", flag, " is not supported; models run in this process"));
    }
  }
  SavedModelRun run;
  run.dir = flags.value("dir");
  run.tag_set = flags.value("tag_set");
  run.signature_key = flags.value("signature_def");
  run.inputs = {flags.value("inputs"), flags.value("input_exprs"), flags.value("input_examples")};
  run.outdir = flags.value("outdir");
  run.overwrite = flags.has("overwrite");
  return RunSavedModel(FileSystem::Posix(), run, std::cout, std::cerr);
}

int Main(const std::vector<std::string>& args) {
  if (args.empty()) return WrongUsage(kUsage, "saved_model_cli", "too few arguments");
  if (args[0] == "-v" || args[0] == "--version") {
    std::cout << "0.1.0\n";
    return 0;
  }
  if (args[0] == "-h" || args[0] == "--help") {
    std::cout << kUsage << kHelp;
    return 0;
  }
  const std::string& command = args[0];
  const char* usage = nullptr;
  std::vector<FlagSpec> flags = {{"dir", true, true}};
  Status (*action)(const CommandLine&) = nullptr;
  if (command == "show") {
    usage = kShowUsage;
    flags.insert(flags.end(), {{"all", false}, {"tag_set"}, {"signature_def"}});
    action = Show;
  } else if (command == "run") {
    usage = kRunUsage;
    flags.insert(flags.end(), {{"tag_set", true, true},
                               {"signature_def", true, true},
                               {"inputs"},
                               {"input_exprs"},
                               {"input_examples"},
                               {"outdir"},
                               {"overwrite", false},
                               {"tf_debug", false},
                               {"worker"},
                               {"init_tpu", false}});
    action = Run;
  } else if (command == "scan") {
    usage = kScanUsage;
    flags.push_back({"tag_set"});
    action = Scan;
  } else if (command == "convert") {
    std::cerr << "NotImplementedError: convert makes TensorRT engines, which need a GPU\n";
    return 1;
  } else {
    return WrongUsage(kUsage, "saved_model_cli",
                      absl::StrCat("invalid choice: '", command,
                                   "' (choose from 'show', 'run', 'scan', 'convert')"));
  }
  const absl::Span<const std::string> rest = absl::MakeConstSpan(args).subspan(1);
  for (const std::string& arg : rest) {
    if (arg == "-h" || arg == "--help") {
      std::cout << usage << kHelp;
      return 0;
    }
  }
  const StatusOr<CommandLine> parsed = CommandLine::Parse(flags, rest);
  if (!parsed.ok()) {
    return WrongUsage(usage, absl::StrCat("saved_model_cli ", command), parsed.status().message());
  }
  const Status status = action(*parsed);
  std::cout.flush();
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  if (!std::cout) {
    std::cerr << "IOError: output cannot be written\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
