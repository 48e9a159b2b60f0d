// SPDX-License-Identifier: Apache-2.0
#include "data/matching_files.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace millrace::data {

StatusOr<std::vector<std::string>> MatchingFiles(FileSystem* fs, const std::string& pattern) {
  const bool absolute = !pattern.empty() && pattern[0] == '/';
  std::vector<std::string> found = {absolute ? "/" : ""};
  for (const absl::string_view part : absl::StrSplit(pattern, '/', absl::SkipEmpty())) {
    std::vector<std::string> deeper;
    const bool literal = part.find_first_of("*?[\\") == absl::string_view::npos;
    for (const std::string& directory : found) {
      if (literal) {
        const std::string path = JoinPath(directory, part);
        if (fs->FileExists(path)) deeper.push_back(path);
        continue;
      }
      const StatusOr<bool> is_directory = fs->IsDirectory(directory);
      if (!directory.empty() && (!is_directory.ok() || !*is_directory)) continue;
      MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->GetChildren(directory));
      for (const std::string& name : names) {
        if (fnmatch(std::string(part).c_str(), name.c_str(), FNM_PERIOD) == 0) {
          deeper.push_back(JoinPath(directory, name));
        }
      }
    }
    found.swap(deeper);
  }
  if (found.size() == 1 && (found[0].empty() || found[0] == "/")) return std::vector<std::string>();
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace millrace::data
