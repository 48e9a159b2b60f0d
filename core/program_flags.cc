// SPDX-License-Identifier: Apache-2.0
#include "core/program_flags.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/did_you_mean.h"
#include "core/exit_code.h"
#include "core/program.h"

namespace millrace {
namespace {

// What Abseil's own sources define is of no use here, but for these.
bool IsOfAbseil(const absl::CommandLineFlag& flag) {
  return absl::StrContains(flag.Filename(), "absl/flags/");
}

std::string ValueOf(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<int32_t>() || flag.IsOfType<int64_t>() || flag.IsOfType<uint32_t>() ||
      flag.IsOfType<uint64_t>()) {
    return "N";
  }
  if (flag.IsOfType<double>() || flag.IsOfType<float>()) return "X";
  return "TEXT";
}

// The program's flags, by name.
std::map<absl::string_view, absl::CommandLineFlag*> OwnFlags() {
  std::map<absl::string_view, absl::CommandLineFlag*> own;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!IsOfAbseil(*flag) && !flag->IsRetired()) own[name] = flag;
  }
  return own;
}

ProgramHelp Describe(const std::string& program) {
  ProgramHelp help;
  help.name = program;
  help.about = std::string(absl::ProgramUsageMessage());
  for (const auto& [name, flag] : OwnFlags()) {
    FlagSpec spec;
    spec.name = std::string(name);
    spec.boolean = flag->IsOfType<bool>();
    if (!spec.boolean) spec.value = ValueOf(*flag);
    spec.help = flag->Help();
    const std::string fallback = flag->DefaultValue();
    if (!fallback.empty()) absl::StrAppend(&spec.help, " (", fallback, ")");
    help.flags.push_back(std::move(spec));
  }
  return help;
}

[[noreturn]] void Refuse(const std::string& program, const std::string& reason) {
  std::fprintf(stderr, "%s: %s; see --help\n", program.c_str(), reason.c_str());
  std::exit(kExitError);
}

[[noreturn]] void Show(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::exit(std::fflush(stdout) == 0 ? kExitOk : kExitError);
}

// "x" of "--x", "-x=1", "--nox" where x is a switch; null when there is no such flag.
absl::CommandLineFlag* FindFlag(absl::string_view name) {
  if (absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name)) return flag;
  if (!absl::ConsumePrefix(&name, "no")) return nullptr;
  absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
  return flag != nullptr && flag->IsOfType<bool>() ? flag : nullptr;
}

// Abseil's own ones, too.
bool IsHelp(absl::string_view name) {
  for (const char* help :
       {"h", "help", "helpfull", "helpshort", "helpmatch", "helppackage", "helpon"}) {
    if (name == help) return true;
  }
  return false;
}

}  // namespace

void ParseProgramFlags(int argc, char** argv) {
  const std::string program = ProgramName(argc > 0 ? argv[0] : "");
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    absl::string_view name = argument;
    if (!absl::ConsumePrefix(&name, "-") || argument == "--") {
      Refuse(program, absl::StrCat("unknown argument '", argument, "'"));
    }
    absl::ConsumePrefix(&name, "-");
    const size_t equals = name.find('=');
    name = name.substr(0, equals);
    if (IsHelp(name)) Show(HelpText(Describe(program)));
    if (name == "version") Show(VersionText(program));
    const absl::CommandLineFlag* const flag = FindFlag(name);
    if (flag == nullptr) {
      DidYouMean best(name);
      for (const auto& [known, unused] : OwnFlags()) best.Consider(known);
      Refuse(program, absl::StrCat("unknown flag '--", name, "'", best.Hint()));
    }
    if (equals == absl::string_view::npos && !flag->IsOfType<bool>()) ++i;  // its value
  }
  EnterCallersDirectory();
  absl::ParseCommandLine(argc, argv);
}

}  // namespace millrace
