// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_PROGRAM_H_
#define MILLRACE_CORE_PROGRAM_H_

// What a program says of itself: --help and --version, in one form for all programs.
//
//   usage: run_graph --graph FILE [--feeds FILE] --fetches NAMES [-h] [--version]
//
//   Runs a GraphDef on arrays of numpy.
//
//     --graph FILE    the graph: .pb or .pbtxt
//     ...
//
// The texts are made of the descriptions of the flags that the program accepts. Programs whose
// flags are ABSL_FLAGs call core/program_flags.h instead.
//
// Thread-safety: pure functions, but for EnterCallersDirectory. Failure: none.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace {

struct FlagSpec {
  std::string name;        // without dashes
  std::string value = "";  // what stands after it: "FILE"; "" for a switch
  std::string help = "";   // begins with a small letter, has no full stop
  bool required = false;
  // The flag alone means "true"; a value is "true" or "false".
  bool boolean = false;
};

struct ProgramHelp {
  std::string name;   // "run_graph", "saved_model_cli show"
  std::string about;  // what it does; several lines where there is more to say
  std::vector<FlagSpec> flags = {};
  std::string rest = "";  // what follows the flags: "-- PROGRAM [ARGUMENT...]"
};

// The first lines of the help: "usage: ...".
std::string UsageText(const ProgramHelp& help);
std::string HelpText(const ProgramHelp& help);
// "run_graph (Millrace) 1.2.3" and the end of the line.
std::string VersionText(absl::string_view program);
// "path/of/run_graph" -> "run_graph".
std::string ProgramName(absl::string_view argv0);

// `bazel run` starts programs in a directory of its own: relative paths mean the directory in which
// the user typed it. Goes there; does nothing otherwise. Call it before paths are used and before
// threads are started: it changes the process's directory and environment.
void EnterCallersDirectory();

}  // namespace millrace

#endif  // MILLRACE_CORE_PROGRAM_H_
