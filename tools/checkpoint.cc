// SPDX-License-Identifier: Apache-2.0
//
// checkpoint: what is in checkpoints, what differs between two, and new ones made of them.
//
//   checkpoint list PREFIX|DIR
//   checkpoint diff [--tolerance=X] A B
//   checkpoint edit [--rename=OLD=NEW]... [--replace=REGEX=REWRITE]... [--keep=REGEX]
//                   [--drop=REGEX] [--cast=DTYPE] FROM TO
//   checkpoint average TO FROM FROM...
//   checkpoint to_npz FROM FILE.npz
//   checkpoint from_npz FILE.npz TO
//
// What is read is of either of TensorFlow's formats, what is written of the second one: `edit`
// without flags converts. Exit codes: 0; `diff`: 1 when they differ; 1 with the reason on stderr;
// 2 for wrong flags.

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "tools/checkpoint_edit.h"
#include "tools/checkpoint_file.h"
#include "tools/command_line.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "checkpoint";
constexpr int kExitDiffers = 1;

using Words = std::vector<std::string>;

FileSystem* Files() { return FileSystem::Default(); }

StatusOr<int> Said(const StatusOr<int64_t>& written, const std::string& where) {
  MR_RETURN_IF_ERROR(written.status());
  std::cout << where << ": " << *written << (*written == 1 ? " tensor\n" : " tensors\n");
  return kExitOk;
}

StatusOr<int> List(const CommandLine&, const Words& words) {
  MR_ASSIGN_OR_RETURN(const CheckpointFile file, CheckpointFile::Open(Files(), words[0]));
  size_t width = 0;
  for (const auto& entry : file.entries) width = std::max(width, entry.name.size());
  for (const auto& entry : file.entries) {
    std::cout << absl::StrFormat("%-*s  %-8s  %s\n", static_cast<int>(width), entry.name,
                                 DTypeName(entry.dtype), entry.shape.ToString());
  }
  return kExitOk;
}

StatusOr<int> Diff(const CommandLine& flags, const Words& words) {
  double tolerance = 0;
  const std::string text = flags.value("tolerance");
  if (flags.has("tolerance") && (!absl::SimpleAtod(text, &tolerance) || !(tolerance >= 0))) {
    return InvalidArgument("--tolerance: must be a number >= 0, got '", text, "'");
  }
  MR_ASSIGN_OR_RETURN(const CheckpointFile a, CheckpointFile::Open(Files(), words[0]));
  MR_ASSIGN_OR_RETURN(const CheckpointFile b, CheckpointFile::Open(Files(), words[1]));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> differences, DifferencesOf(a, b, tolerance));
  for (const std::string& difference : differences) std::cout << difference << "\n";
  return differences.empty() ? kExitOk : kExitDiffers;
}

// "OLD=NEW" of a flag, cut at the last "=": names have none, expressions may.
StatusOr<std::vector<std::pair<std::string, std::string>>> Pairs(const CommandLine& flags,
                                                                 const std::string& flag) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& text : flags.values(flag)) {
    const size_t equals = text.rfind('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgument("--", flag, ": must be OLD=NEW, got '", text, "'");
    }
    pairs.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return pairs;
}

StatusOr<int> Edit(const CommandLine& flags, const Words& words) {
  CheckpointEdit edit;
  MR_ASSIGN_OR_RETURN(edit.renamed, Pairs(flags, "rename"));
  MR_ASSIGN_OR_RETURN(edit.replaced, Pairs(flags, "replace"));
  edit.kept = flags.value("keep");
  edit.dropped = flags.value("drop");
  if (flags.has("cast")) {
    const StatusOr<DType> dtype = DTypeFromName(flags.value("cast"));
    MR_RETURN_IF_ERROR(Prefixed("--cast", dtype.status()));
    edit.dtype = *dtype;
  }
  MR_ASSIGN_OR_RETURN(const CheckpointFile from, CheckpointFile::Open(Files(), words[0]));
  return Said(EditCheckpoint(Files(), from, edit, words[1]), words[1]);
}

StatusOr<int> Average(const CommandLine&, const Words& words) {
  std::vector<CheckpointFile> from;
  for (size_t i = 1; i < words.size(); ++i) {
    MR_ASSIGN_OR_RETURN(CheckpointFile file, CheckpointFile::Open(Files(), words[i]));
    from.push_back(std::move(file));
  }
  return Said(AverageCheckpoints(Files(), from, words[0]), words[0]);
}

StatusOr<int> ToNpz(const CommandLine&, const Words& words) {
  MR_ASSIGN_OR_RETURN(const CheckpointFile from, CheckpointFile::Open(Files(), words[0]));
  return Said(CheckpointToNpz(Files(), from, words[1]), words[1]);
}

StatusOr<int> FromNpz(const CommandLine&, const Words& words) {
  return Said(NpzToCheckpoint(Files(), words[0], words[1]), words[1]);
}

struct Command {
  ProgramHelp help;
  size_t min_words, max_words;
  StatusOr<int> (*action)(const CommandLine&, const Words&);
};

std::vector<Command> Commands() {
  constexpr size_t kAny = 10'000;
  return {
      {{.name = "list",
        .about = "Names, dtypes and shapes of the tensors.",
        .flags = {},
        .rest = "PREFIX|DIR"},
       1,
       1,
       List},
      {{.name = "diff",
        .about = "What differs between two checkpoints, a line each. Exit code 1: they differ.",
        .flags = {{.name = "tolerance",
                   .value = "X",
                   .help = "values of floating tensors may differ by so much; 0 without it"}},
        .rest = "A B"},
       2,
       2,
       Diff},
      {{.name = "edit",
        .about = "Writes a checkpoint with other names or dtypes, or with fewer tensors; without "
                 "flags the same one in TensorFlow's second format.",
        .flags = {{.name = "rename", .value = "OLD=NEW", .help = "a tensor; may be given again"},
                  {.name = "replace",
                   .value = "REGEX=REWRITE",
                   .help = "in all names (RE2; \\1 is the first group); may be given again"},
                  {.name = "keep", .value = "REGEX", .help = "only tensors of such names"},
                  {.name = "drop", .value = "REGEX", .help = "no tensors of such names"},
                  {.name = "cast",
                   .value = "DTYPE",
                   .help = "floating tensors become half, bfloat16, float or double"}},
        .rest = "FROM TO"},
       2,
       2,
       Edit},
      {{.name = "average",
        .about = "Writes the mean of checkpoints; what is not floating is the last one's.",
        .flags = {},
        .rest = "TO FROM FROM..."},
       2,
       kAny,
       Average},
      {{.name = "to_npz", .about = "Writes numpy's file.", .flags = {}, .rest = "FROM FILE.npz"},
       2,
       2,
       ToNpz},
      {{.name = "from_npz",
        .about = "Writes a checkpoint of the arrays of numpy's file.",
        .flags = {},
        .rest = "FILE.npz TO"},
       2,
       2,
       FromNpz},
  };
}

int Main(const Words& args) {
  EnterCallersDirectory();
  std::vector<Command> commands = Commands();
  ProgramHelp help = {.name = kProgram, .about = "", .flags = {}, .rest = "COMMAND ..."};
  std::string choices;
  for (const Command& command : commands) {
    absl::StrAppend(&choices, choices.empty() ? "" : ", ", "'", command.help.name, "'");
    absl::StrAppend(&help.about, help.about.empty() ? "" : "\n", command.help.name, ": ",
                    command.help.about);
  }
  absl::StrAppend(&help.about, "\n\nCOMMAND --help shows the flags of a command.");
  const auto wrong_usage = [](const ProgramHelp& of, const std::string& reason) {
    std::cerr << UsageText(of) << of.name << ": error: " << reason << "\n";
    return kExitWrongFlags;
  };
  int exit_code = kExitOk;
  if (args.empty()) return wrong_usage(help, "too few arguments");
  const auto command = std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& one) { return one.help.name == args[0]; });
  if (command == commands.end()) {
    if (args[0][0] == '-' && !CommandLine::ParseOrExplain(help, args, &exit_code)) return exit_code;
    return wrong_usage(help,
                       absl::StrCat("invalid choice: '", args[0], "' (choose from ", choices, ")"));
  }
  command->help.name = absl::StrCat(kProgram, " ", command->help.name);
  Words words;
  const auto flags = CommandLine::ParseOrExplain(
      command->help, absl::MakeConstSpan(args).subspan(1), &exit_code, &words);
  if (!flags) return exit_code;
  if (words.size() < command->min_words || words.size() > command->max_words) {
    return wrong_usage(command->help, absl::StrCat("arguments must be ", command->help.rest,
                                                   ", got ", words.size()));
  }
  const StatusOr<int> code = command->action(*flags, words);
  std::cout.flush();
  if (!code.ok()) {
    std::cerr << kProgram << ": " << code.status().message() << "\n";
    return ExitCode(code.status());
  }
  return *code;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
