// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_COMMAND_LINE_H_
#define MILLRACE_TOOLS_COMMAND_LINE_H_

// CommandLine: the flags of a program as Python's argparse reads them.
//
//   --flag VALUE, --flag=VALUE, --switch, --boolean, --boolean=false; a long name may be cut short
//   while only one flag begins so; the last of equal flags wins where one value is asked for; "--"
//   ends the flags.
//
// --help (-h) and --version (-v) are flags of every program. Texts: core/program.h.
//
// Thread-safety: thread-compatible. Failure: InvalidArgument with argparse's text
// ("unrecognized arguments: --x"), for which programs exit with 2 after their usage.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/program.h"
#include "core/status.h"

namespace millrace {

// For wrong flags, as Python's programs: other mistakes of the user are kExitError.
inline constexpr int kExitWrongFlags = 2;

class CommandLine {
 public:
  // `args` without the program's name. With `rest`, all after "--" and everything from the first
  // word that is no flag goes there; without it, words that are no flags are an error. After
  // "help" or "version" nothing is looked at.
  static StatusOr<CommandLine> Parse(absl::Span<const FlagSpec> flags,
                                     absl::Span<const std::string> args,
                                     std::vector<std::string>* rest = nullptr);

  // The same for a program's main: answers --help and --version on stdout (`exit_code` 0) and wrong
  // flags on stderr (kExitWrongFlags); then there is nothing to run.
  static std::optional<CommandLine> ParseOrExplain(const ProgramHelp& help,
                                                   absl::Span<const std::string> args,
                                                   int* exit_code,
                                                   std::vector<std::string>* rest = nullptr);

  // The same for a program of exactly one argument that is no flag, before or behind the flags;
  // help.rest says what it is ("FILE|DIR").
  static std::optional<CommandLine> ParseOrExplain(const ProgramHelp& help,
                                                   absl::Span<const std::string> args,
                                                   int* exit_code, std::string* argument);

  bool has(const std::string& name) const { return values_.count(name) > 0; }
  // "" when not given.
  std::string value(const std::string& name) const {
    const auto it = values_.find(name);
    return it == values_.end() ? "" : it->second;
  }
  // Of a flag that may be given several times, in their order.
  std::vector<std::string> values(const std::string& name) const {
    const auto it = all_values_.find(name);
    return it == all_values_.end() ? std::vector<std::string>() : it->second;
  }
  // Of a boolean flag.
  bool BoolValue(const std::string& name, bool fallback) const {
    return has(name) ? value(name) == "true" : fallback;
  }
  // `fallback` when not given; InvalidArgument unless it is an integer in [low, high].
  StatusOr<int> IntValue(const std::string& name, int fallback, int low, int high) const;

 private:
  std::map<std::string, std::string> values_;                   // the last of each flag
  std::map<std::string, std::vector<std::string>> all_values_;  // of flags that take one
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_COMMAND_LINE_H_
