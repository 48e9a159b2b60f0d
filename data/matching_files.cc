// SPDX-License-Identifier: Apache-2.0
#include "data/matching_files.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace millrace::data {

StatusOr<std::vector<std::string>> MatchingFiles(FileSystem* fs, const std::string& pattern) {
  // Where the search begins: "/", "" (here), "s3://bucket", "file:///".
  std::string root = absl::StartsWith(pattern, "/") ? "/" : "";
  absl::string_view rest = pattern;
  if (const absl::string_view scheme = PathScheme(pattern); !scheme.empty()) {
    root = pattern.substr(0, pattern.find('/', scheme.size() + absl::string_view("://").size()));
    rest.remove_prefix(root.size());
    if (absl::EndsWith(root, "://")) root += "/";
  }
  std::vector<std::string> found = {root};
  for (const absl::string_view part : absl::StrSplit(rest, '/', absl::SkipEmpty())) {
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
  if (found.size() == 1 && found[0] == root) return std::vector<std::string>();
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace millrace::data
