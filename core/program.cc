// SPDX-License-Identifier: Apache-2.0
#include "core/program.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/version.h"

namespace millrace {
namespace {

constexpr size_t kWidth = 100;
// Flags that are longer have their help on the next line.
constexpr size_t kMaxFlagColumn = 28;

// Appends words to the last line of `text`, which is broken where it would be too long.
void AppendWords(const std::vector<std::string>& words, size_t indent, std::string* text) {
  const size_t newline = text->rfind('\n');
  size_t column = newline == std::string::npos ? text->size() : text->size() - newline - 1;
  for (const std::string& word : words) {
    if (column + 1 + word.size() > kWidth && column > indent) {
      absl::StrAppend(text, "\n", std::string(indent, ' '));
      column = indent;
    } else if (column > indent || (column > 0 && text->back() != ' ')) {
      text->push_back(' ');
      ++column;
    }
    text->append(word);
    column += word.size();
  }
}

std::string FlagText(const FlagSpec& flag) {
  if (flag.boolean) return absl::StrCat("--", flag.name, "[=false]");
  return absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value);
}

void AppendFlag(const std::string& flag, const std::string& help, size_t column,
                std::string* text) {
  absl::StrAppend(text, "  ", flag);
  if (2 + flag.size() + 2 > column) {
    absl::StrAppend(text, "\n", std::string(column, ' '));
  } else {
    text->append(column - 2 - flag.size(), ' ');
  }
  const std::vector<std::string> words = absl::StrSplit(help, ' ', absl::SkipEmpty());
  AppendWords(words, column, text);
  text->push_back('\n');
}

}  // namespace

std::string UsageText(const ProgramHelp& help) {
  std::string text = absl::StrCat("usage: ", help.name);
  const size_t indent = text.size() + 1;
  std::vector<std::string> words;
  for (const bool required : {true, false}) {
    for (const FlagSpec& flag : help.flags) {
      if (flag.required != required) continue;
      words.push_back(required ? FlagText(flag) : absl::StrCat("[", FlagText(flag), "]"));
    }
  }
  words.insert(words.end(), {"[-h]", "[--version]"});
  if (!help.rest.empty()) words.push_back(help.rest);
  AppendWords(words, indent, &text);
  return absl::StrCat(text, "\n");
}

std::string HelpText(const ProgramHelp& help) {
  std::string text = absl::StrCat(UsageText(help), "\n");
  for (absl::string_view line : absl::StrSplit(help.about, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    AppendWords(words, 0, &text);
    text.push_back('\n');
  }
  text.push_back('\n');
  size_t column = std::string("  -h, --help  ").size();
  for (const FlagSpec& flag : help.flags) {
    column = std::max(column, std::min(kMaxFlagColumn, FlagText(flag).size() + 5));
  }
  for (const FlagSpec& flag : help.flags) AppendFlag(FlagText(flag), flag.help, column, &text);
  AppendFlag("-h, --help", "shows this text", column, &text);
  AppendFlag("--version", "shows the version", column, &text);
  return text;
}

std::string VersionText(absl::string_view program) {
  return absl::StrCat(program, " (Millrace) ", kVersion, "\n");
}

std::string ProgramName(absl::string_view argv0) {
  const size_t slash = argv0.rfind('/');
  return std::string(slash == absl::string_view::npos ? argv0 : argv0.substr(slash + 1));
}

void EnterCallersDirectory() {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr) return;
  // A program that such a program starts has its directory from there.
  char* const current = getcwd(nullptr, 0);
  const bool started_by_bazel = current != nullptr && absl::StrContains(current, ".runfiles/");
  std::free(current);
  if (!started_by_bazel) return;
  if (chdir(directory) != 0) {
    // What is written to relative paths would go into Bazel's folders.
    std::fprintf(stderr, "BUILD_WORKING_DIRECTORY: '%s' must be a directory that can be entered\n",
                 directory);
    std::exit(1);
  }
  unsetenv("BUILD_WORKING_DIRECTORY");
}

}  // namespace millrace
