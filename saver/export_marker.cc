// SPDX-License-Identifier: Apache-2.0
#include "saver/export_marker.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

constexpr char kFirstLine[] = "millrace export 1";
constexpr char kLastLine[] = "end";
// 10,000 files (the most of a served version) of 400 bytes.
constexpr uint64_t kMostBytes = 4'000'000;
constexpr int kMostDepth = 16;

Status AddFiles(FileSystem* fs, const std::string& directory, const std::string& relative,
                int depth, std::map<std::string, uint64_t>* sizes) {
  if (depth > kMostDepth) {
    return InvalidArgument("'", directory, "' must be at most ", kMostDepth,
                           " levels deep in its model");
  }
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->GetChildren(directory));
  for (const std::string& name : names) {
    const std::string path = JoinPath(directory, name);
    const std::string inside = relative.empty() ? name : absl::StrCat(relative, "/", name);
    MR_ASSIGN_OR_RETURN(const bool is_directory, fs->IsDirectory(path));
    if (is_directory) {
      MR_RETURN_IF_ERROR(AddFiles(fs, path, inside, depth + 1, sizes));
    } else if (inside != kExportIsComplete) {
      MR_ASSIGN_OR_RETURN((*sizes)[inside], fs->GetFileSize(path));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Status WriteExportMarker(FileSystem* fs, const std::string& directory) {
  std::map<std::string, uint64_t> sizes;
  MR_RETURN_IF_ERROR(AddFiles(fs, directory, "", 1, &sizes));
  std::string text = absl::StrCat(kFirstLine, "\n");
  for (const auto& [name, size] : sizes) {
    absl::StrAppend(&text, size, " ", absl::CEscape(name), "\n");
  }
  absl::StrAppend(&text, kLastLine, "\n");
  return WriteFileAtomically(fs, JoinPath(directory, kExportIsComplete), text);
}

StatusOr<std::map<std::string, uint64_t>> ReadExportMarker(FileSystem* fs,
                                                           const std::string& directory) {
  const std::string path = JoinPath(directory, kExportIsComplete);
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path, kMostBytes));
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  // The last line ends, too: a cut through it shows.
  if (lines.size() < 3 || lines[0] != kFirstLine || lines[lines.size() - 2] != kLastLine ||
      !lines.back().empty()) {
    return absl::DataLossError(absl::StrCat(
        "File '", path, "' must begin with '", kFirstLine, "' and end with '", kLastLine, "', got ",
        text.size(), " bytes that do not; delete it when the export is ", "complete without it"));
  }
  std::map<std::string, uint64_t> sizes;
  for (size_t i = 1; i + 2 < lines.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(lines[i], absl::MaxSplits(' ', 1));
    uint64_t size;
    std::string name;
    if (!absl::SimpleAtoi(parts.first, &size) || !absl::CUnescape(parts.second, &name)) {
      return absl::DataLossError(absl::StrCat("File '", path, "' line ", i + 1,
                                              " must be a size and a name, got '",
                                              absl::CEscape(lines[i].substr(0, 100)), "'"));
    }
    sizes[std::move(name)] = size;
  }
  return sizes;
}

Status CheckExportMarker(FileSystem* fs, const std::string& directory) {
  MR_ASSIGN_OR_RETURN(const auto sizes, ReadExportMarker(fs, directory));
  for (const auto& [name, size] : sizes) {
    if (absl::StartsWith(name, "/") || absl::StrContains(name, "../")) {
      return absl::DataLossError(absl::StrCat("File '", JoinPath(directory, kExportIsComplete),
                                              "' must list files of its directory, got '",
                                              absl::CEscape(name.substr(0, 100)), "'"));
    }
    MR_ASSIGN_OR_RETURN(const uint64_t found, fs->GetFileSize(JoinPath(directory, name)));
    if (found == size) continue;
    return absl::DataLossError(
        absl::StrCat("File '", JoinPath(directory, name), "' must have ", size, " bytes, as '",
                     kExportIsComplete, "' says, got ", found,
                     "; delete that list when the file was replaced on purpose"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
