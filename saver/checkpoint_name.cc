// SPDX-License-Identifier: Apache-2.0
#include "saver/checkpoint_name.h"

#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "saver/bundle_paths.h"
#include "saver/checkpoint_v1.h"
#include "saver/saver.h"

namespace millrace {
namespace {

constexpr char kStateFile[] = "checkpoint";
// More than any state file has: what is larger is none.
constexpr uint64_t kMaxStateBytes = 16 << 20;

// A text that TensorFlow's CheckpointState is written as. A damaged one counts, too: the search for
// the newest checkpoint passes it over with a warning.
bool IsStateFile(FileSystem* fs, const std::string& path) {
  if (Basename(path) == kStateFile) return true;
  const StatusOr<std::string> text = ReadFileToString(fs, path, kMaxStateBytes);
  return text.ok() && absl::StartsWith(*text, "model_checkpoint_path:");
}

// What a state file names that is not there, for messages; "" without a state file.
std::string NamedByState(FileSystem* fs, const std::string& directory, const std::string& file) {
  const std::optional<CheckpointState> state = ReadCheckpointState(fs, directory, file);
  if (!state) return "";
  return absl::StrCat("; the state file names '", state->latest,
                      "', and there is no whole checkpoint there or of that name in the directory");
}

// "run/old" of "run/old-00000-of-00002", one file of several; nullopt of other names.
std::optional<std::string> WholeOfFirstFormat(FileSystem* fs, const std::string& file) {
  const absl::string_view path = file;
  const size_t dash = path.rfind("-of-");
  const size_t begin = dash == absl::string_view::npos ? dash : path.rfind('-', dash - 1);
  if (begin == absl::string_view::npos ||
      !IsDataSuffix(absl::StrCat(".data", path.substr(begin)))) {
    return std::nullopt;
  }
  std::string whole(path.substr(0, begin));
  if (CheckpointV1Files(fs, whole).size() < 2) return std::nullopt;
  return whole;
}

}  // namespace

StatusOr<std::string> CheckpointNamed(FileSystem* fs, const std::string& name) {
  if (name.empty() || fs->FileExists(BundleIndexPath(name))) return name;
  // Not ok: nothing of that name, or nothing that is seen from here.
  const StatusOr<bool> is_directory = fs->IsDirectory(name);
  if (!is_directory.value_or(false)) {
    if (std::string checkpoint = CheckpointOfFile(name); checkpoint != name) return checkpoint;
  }
  if (!is_directory.ok()) return name;
  if (*is_directory) {
    const std::string variables = JoinPath(name, "variables/variables");
    if (fs->FileExists(BundleIndexPath(variables))) return variables;
    if (const auto latest = LatestCheckpoint(fs, name)) return *latest;
    return absl::NotFoundError(
        absl::StrCat("Checkpoint '", name,
                     "': a directory must have a whole checkpoint or a SavedModel, got neither",
                     NamedByState(fs, name, kStateFile)));
  }
  if (IsStateFile(fs, name)) {
    if (const auto latest = LatestCheckpoint(fs, Dirname(name), Basename(name))) return *latest;
    return absl::NotFoundError(absl::StrCat("Checkpoint '", name,
                                            "': a state file, or its directory, must have a whole "
                                            "checkpoint, got none",
                                            NamedByState(fs, Dirname(name), Basename(name))));
  }
  return WholeOfFirstFormat(fs, name).value_or(name);
}

}  // namespace millrace
