// SPDX-License-Identifier: Apache-2.0
#include "tools/command_line.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/did_you_mean.h"
#include "core/exit_code.h"

namespace millrace {
namespace {

// What to say of the first unknown flag.
std::string HintFor(absl::Span<const std::string> unknown, absl::Span<const FlagSpec> flags) {
  for (const std::string& arg : unknown) {
    if (!absl::StartsWith(arg, "--")) continue;
    DidYouMean best(absl::string_view(arg).substr(2, arg.find('=') - 2));
    for (const FlagSpec& flag : flags) best.Consider(flag.name);
    return best.Hint();
  }
  return "";
}

}  // namespace

StatusOr<CommandLine> CommandLine::Parse(absl::Span<const FlagSpec> flags,
                                         absl::Span<const std::string> args,
                                         std::vector<std::string>* rest) {
  CommandLine result;
  std::vector<std::string> unknown;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "-h" || arg == "-v") {
      result.values_[arg == "-h" ? "help" : "version"] = "";
      return result;
    }
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
    if (flag.name == "help" || flag.name == "version") return result;
    if (flag.boolean) {
      value = equals == std::string::npos ? "true" : arg.substr(equals + 1);
      // As Python's programs spell them, too.
      if (value == "True" || value == "1") value = "true";
      if (value == "False" || value == "0") value = "false";
      if (value != "true" && value != "false") {
        return InvalidArgument("argument --", flag.name, ": must be true or false, got '", value,
                               "'");
      }
    } else if (flag.value.empty()) {
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
    if (!flag.value.empty()) result.all_values_[flag.name].push_back(value);
  }
  const std::string unrecognized =
      unknown.empty() ? ""
                      : absl::StrCat("unrecognized arguments: ", absl::StrJoin(unknown, " "),
                                     HintFor(unknown, flags));
  std::vector<std::string> missing;
  for (const FlagSpec& flag : flags) {
    if (flag.required && !result.has(flag.name)) missing.push_back("--" + flag.name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the following arguments are required: ", absl::StrJoin(missing, ", "),
                     unknown.empty() ? "" : "; ", unrecognized));
  }
  if (!unknown.empty()) return absl::InvalidArgumentError(unrecognized);
  return result;
}

std::optional<CommandLine> CommandLine::ParseOrExplain(const ProgramHelp& help,
                                                       absl::Span<const std::string> args,
                                                       int* exit_code,
                                                       std::vector<std::string>* rest) {
  std::vector<FlagSpec> flags = help.flags;
  for (const char* name : {"help", "version"}) flags.push_back({.name = name});
  StatusOr<CommandLine> parsed = Parse(flags, args, rest);
  if (!parsed.ok()) {
    std::cerr << UsageText(help) << help.name << ": error: " << parsed.status().message() << "\n";
    *exit_code = kExitWrongFlags;
    return std::nullopt;
  }
  if (!parsed->has("help") && !parsed->has("version")) return *std::move(parsed);
  std::cout << (parsed->has("help") ? HelpText(help)
                                    : VersionText(help.name.substr(0, help.name.find(' '))))
            << std::flush;
  *exit_code = std::cout ? kExitOk : kExitError;
  return std::nullopt;
}

std::optional<CommandLine> CommandLine::ParseOrExplain(const ProgramHelp& help,
                                                       absl::Span<const std::string> args,
                                                       int* exit_code, std::string* argument) {
  std::vector<std::string> flags_first(args.begin(), args.end());
  if (!args.empty() && !absl::StartsWith(args[0], "-")) {
    std::rotate(flags_first.begin(), flags_first.begin() + 1, flags_first.end());
  }
  std::vector<std::string> rest;
  std::optional<CommandLine> parsed = ParseOrExplain(help, flags_first, exit_code, &rest);
  if (!parsed) return std::nullopt;
  if (rest.size() != 1) {
    std::cerr << UsageText(help) << help.name << ": error: "
              << (rest.empty() ? absl::StrCat("the following arguments are required: ", help.rest)
                               : absl::StrCat("unrecognized arguments: ",
                                              absl::StrJoin(rest.begin() + 1, rest.end(), " ")))
              << "\n";
    *exit_code = kExitWrongFlags;
    return std::nullopt;
  }
  *argument = rest[0];
  return parsed;
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
