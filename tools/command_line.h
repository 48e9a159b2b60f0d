// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_COMMAND_LINE_H_
#define MILLRACE_TOOLS_COMMAND_LINE_H_

// CommandLine: the flags of a program as Python's argparse reads them.
//
//   --flag VALUE, --flag=VALUE, --switch; a long name may be cut short while only one flag begins
//   so; the last of equal flags wins; "--" ends the flags.
//
// Thread-safety: thread-compatible. Failure: InvalidArgument with argparse's text
// ("unrecognized arguments: --x"), for which programs exit with 2 after their usage.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"

namespace millrace {

struct FlagSpec {
  std::string name;  // without dashes
  bool takes_value = true;
  bool required = false;
};

class CommandLine {
 public:
  // `args` without the program's name. With `rest`, all after "--" and everything from the first
  // word that is no flag goes there; without it, words that are no flags are an error.
  static StatusOr<CommandLine> Parse(absl::Span<const FlagSpec> flags,
                                     absl::Span<const std::string> args,
                                     std::vector<std::string>* rest = nullptr);

  bool has(const std::string& name) const { return values_.count(name) > 0; }
  // "" when not given.
  std::string value(const std::string& name) const {
    const auto it = values_.find(name);
    return it == values_.end() ? "" : it->second;
  }
  // `fallback` when not given; InvalidArgument unless it is an integer in [low, high].
  StatusOr<int> IntValue(const std::string& name, int fallback, int low, int high) const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_COMMAND_LINE_H_
