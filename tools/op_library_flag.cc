// SPDX-License-Identifier: Apache-2.0
#include "tools/op_library_flag.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"

namespace millrace {
namespace {

constexpr char kFlag[] = "op_library";

}  // namespace

FlagSpec OpLibraryFlag() {
  return {.name = kFlag,
          .value = "FILE",
          .help = absl::StrCat("a library with further ops; may be given again; also ",
                               kOpLibrariesVariable, "=FILE:FILE")};
}

std::vector<OpLibraryPath> OpLibraryPaths(const CommandLine& flags) {
  std::vector<OpLibraryPath> paths;
  const char* const variable = std::getenv(kOpLibrariesVariable);
  for (const absl::string_view path : absl::StrSplit(
           absl::string_view(variable == nullptr ? "" : variable), ':', absl::SkipEmpty())) {
    paths.push_back({kOpLibrariesVariable, std::string(path)});
  }
  for (const std::string& path : flags.values(kFlag)) {
    paths.push_back({absl::StrCat("--", kFlag), path});
  }
  return paths;
}

Status LookForOpLibraries(const CommandLine& flags) {
  for (const OpLibraryPath& library : OpLibraryPaths(flags)) {
    if (FileSystem::Default()->FileExists(library.path)) continue;
    return absl::NotFoundError(
        absl::StrCat(library.source, ": '", library.path, "' must exist, got no file"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
