// SPDX-License-Identifier: Apache-2.0
#include "tools/command_line.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {

StatusOr<CommandLine> CommandLine::Parse(absl::Span<const FlagSpec> flags,
                                         absl::Span<const std::string> args,
                                         std::vector<std::string>* rest) {
  CommandLine result;
  std::vector<std::string> unknown;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const bool is_flag = absl::StartsWith(arg, "--") && arg.size() > 2;
    if (rest != nullptr && !is_flag) {
      rest->assign(args.begin() + static_cast<ptrdiff_t>(arg == "--" ? i + 1 : i), args.end());
      break;
    }
    if (!is_flag) {
      unknown.push_back(arg);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name =
        arg.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
    std::vector<const FlagSpec*> matches;
    for (const FlagSpec& flag : flags) {
      if (flag.name == name) {
        matches = {&flag};
        break;
      }
      if (absl::StartsWith(flag.name, name)) matches.push_back(&flag);
    }
    if (matches.size() > 1) {
      const std::string names = absl::StrJoin(matches, ", ", [](std::string* out, auto* flag) {
        absl::StrAppend(out, "--", flag->name);
      });
      return absl::InvalidArgumentError(
          absl::StrCat("ambiguous option: ", arg, " could match ", names));
    }
    if (matches.empty()) {
      unknown.push_back(arg);
      continue;
    }
    const FlagSpec& flag = *matches[0];
    std::string& value = result.values_[flag.name];
    if (!flag.takes_value) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat("argument --", flag.name,
                                                       ": ignored explicit argument '",
                                                       arg.substr(equals + 1), "'"));
      }
      value = "1";
    } else if (equals != std::string::npos) {
      value = arg.substr(equals + 1);
    } else if (i + 1 < args.size() && !(absl::StartsWith(args[i + 1], "--"))) {
      value = args[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("argument --", flag.name, ": expected one argument"));
    }
  }
  std::vector<std::string> missing;
  for (const FlagSpec& flag : flags) {
    if (flag.required && !result.has(flag.name)) missing.push_back("--" + flag.name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the following arguments are required: ", absl::StrJoin(missing, ", ")));
  }
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unrecognized arguments: ", absl::StrJoin(unknown, " ")));
  }
  return result;
}

StatusOr<int> CommandLine::IntValue(const std::string& name, int fallback, int low,
                                    int high) const {
  if (!has(name)) return fallback;
  int number = 0;
  if (!absl::SimpleAtoi(value(name), &number) || number < low || number > high) {
    return absl::InvalidArgumentError(absl::StrCat("argument --", name, ": must be an integer in [",
                                                   low, ", ", high, "], got '", value(name), "'"));
  }
  return number;
}

}  // namespace millrace
