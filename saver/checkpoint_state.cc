// SPDX-License-Identifier: Apache-2.0
//
// The `checkpoint` state file, and which checkpoint of a directory is the newest that is whole.

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/crc32c.h"
#include "core/fail_point.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/table_reader.h"
#include "proto/checkpoint_state.pb.h"
#include "saver/checkpoint_v1.h"
#include "saver/message_file.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

constexpr char kChecksumLine[] = "# crc32c: ";
// A bound against files that are no state file.
constexpr uint64_t kMaxStateBytes = 16 << 20;

// Tells of `text` once in this process. Hooks, evaluators and the end of a job ask one directory
// again and again, some each second.
void WarnOnce(const std::string& text) {
  constexpr size_t kMaxTold = 1000;
  static Mutex* const mu = new Mutex;
  static std::set<std::string>* const told = new std::set<std::string>;
  {
    MutexLock lock(mu);
    if (told->count(text) > 0) return;
    if (told->size() < kMaxTold) told->insert(text);
  }
  LogWarning(text);
}

StatusOr<tensorflow::CheckpointState> ParseState(const std::string& text, bool* has_checksum) {
  // The checksum, when our own writer made the file.
  const size_t line = text.rfind(kChecksumLine);
  if (line != std::string::npos && (line == 0 || text[line - 1] == '\n')) {
    const absl::string_view payload = absl::string_view(text).substr(0, line);
    const absl::string_view stored =
        absl::StripSuffix(absl::string_view(text).substr(line + sizeof(kChecksumLine) - 1), "\n");
    const std::string computed = absl::StrFormat("%08x", MaskCrc32c(Crc32c(payload)));
    if (stored != computed) {
      return absl::DataLossError(
          absl::StrCat("its checksum must be ", computed, ", got '", stored, "'"));
    }
    *has_checksum = true;
  }
  tensorflow::CheckpointState state;
  TextError error;
  if (!ParseText(text, "checkpoint", "CheckpointState", &state, &error).ok()) {
    return absl::DataLossError(absl::StrCat(error.line, ":", error.column, ": ", error.what));
  }
  if (state.model_checkpoint_path().empty()) {
    return absl::DataLossError("model_checkpoint_path must name a checkpoint, got \"\"");
  }
  return state;
}

// "run/" and "run" are one directory.
std::string CleanDirectory(absl::string_view directory) {
  while (directory.size() > 1 && absl::EndsWith(directory, "/")) directory.remove_suffix(1);
  return std::string(directory);
}

// The path that `prefix` has in `directory`.
std::string Inside(const std::string& directory, const std::string& prefix) {
  return JoinPath(directory, Basename(prefix));
}

// As WriteFileAtomically, but `may_commit` is asked when all that takes long is done: a writer that
// was stopped before has no say any more when the name changes.
Status WriteUnlessRefused(FileSystem* fs, const std::string& path, absl::string_view text,
                          const std::function<Status()>& may_commit) {
  if (!may_commit) return WriteFileAtomically(fs, path, text);
  const std::string temporary = absl::StrCat(path, ".tmp", RandomHexName());
  const Status status = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs->NewExclusiveFile(temporary));
    MR_RETURN_IF_ERROR(file->Append(text));
    MR_RETURN_IF_ERROR(file->Sync());
    MR_RETURN_IF_ERROR(file->Close());
    MR_RETURN_IF_ERROR(may_commit());
    return fs->RenameFile(temporary, path);
  }();
  if (!status.ok()) {
    if (fs->FileExists(temporary)) fs->DeleteFile(temporary).IgnoreError();
    return status;
  }
  return fs->SyncDirectory(Dirname(path));
}

// The number after the last '-', or -1.
int64_t StepOf(absl::string_view prefix) {
  const size_t dash = prefix.rfind('-');
  int64_t step;
  if (dash == absl::string_view::npos || !absl::SimpleAtoi(prefix.substr(dash + 1), &step)) {
    return -1;
  }
  return step;
}

}  // namespace

std::optional<CheckpointState> ReadCheckpointState(FileSystem* fs, const std::string& directory,
                                                   const std::string& latest_filename) {
  const std::string path = JoinPath(directory, latest_filename);
  if (!fs->FileExists(path)) return std::nullopt;
  const StatusOr<std::string> text = ReadFileToString(fs, path, kMaxStateBytes);
  CheckpointState state;
  const StatusOr<tensorflow::CheckpointState> parsed =
      text.ok() ? ParseState(*text, &state.has_checksum)
                : StatusOr<tensorflow::CheckpointState>(text.status());
  if (!parsed.ok()) {
    WarnOnce(absl::StrCat("State file '", path, "' is passed over: ", parsed.status().message()));
    return std::nullopt;
  }
  const std::string clean = CleanDirectory(directory);
  state.latest = JoinPath(clean, parsed->model_checkpoint_path());
  for (const std::string& one : parsed->all_model_checkpoint_paths()) {
    if (!one.empty()) state.all.push_back(JoinPath(clean, one));
  }
  return state;
}

Status WriteCheckpointState(FileSystem* fs, const std::string& directory,
                            const CheckpointState& state, const std::string& latest_filename,
                            bool relative_paths, const std::function<Status()>& may_commit) {
  const std::string clean = CleanDirectory(directory);
  const auto relative = [&](const std::string& path) -> StatusOr<std::string> {
    if (Dirname(path) == clean && (relative_paths || !IsAbsolutePath(path))) {
      return Basename(path);
    }
    if (IsAbsolutePath(path)) return path;
    return InvalidArgument("State file of '", directory,
                           "': checkpoints must be in the directory or have absolute paths, got '",
                           path, "'");
  };
  tensorflow::CheckpointState message;
  MR_ASSIGN_OR_RETURN(*message.mutable_model_checkpoint_path(), relative(state.latest));
  for (const std::string& path : state.all) {
    MR_ASSIGN_OR_RETURN(*message.add_all_model_checkpoint_paths(), relative(path));
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  const uint32_t crc = MaskCrc32c(Crc32c(text));
  absl::StrAppendFormat(&text, "%s%08x\n", kChecksumLine, crc);
  MR_RETURN_IF_ERROR(FailPoint("saver/before_state"));
  MR_RETURN_IF_ERROR(WriteUnlessRefused(fs, JoinPath(clean, latest_filename), text, may_commit));
  return FailPoint("saver/after_state");
}

bool CheckpointExists(FileSystem* fs, const std::string& prefix) {
  if (Basename(prefix).empty()) return false;
  if (fs->FileExists(BundleIndexPath(prefix))) {
    const auto reader = BundleReader::Open(fs, prefix);
    const Status whole = reader.ok() ? (*reader)->CheckFiles() : reader.status();
    if (!whole.ok()) {
      WarnOnce(absl::StrCat("Checkpoint '", prefix, "' is not whole: ", whole.message()));
    }
    return whole.ok();
  }
  // A bundle's data files alone are no checkpoint of the first format.
  for (const std::string& file : CheckpointV1Files(fs, prefix)) {
    if (!TableReader::Open(fs, file, {.lenient = true}).ok()) return false;
  }
  return !CheckpointV1Files(fs, prefix).empty();
}

std::optional<std::string> LatestCheckpoint(FileSystem* fs, const std::string& directory,
                                            const std::string& latest_filename) {
  const std::string clean = CleanDirectory(directory);
  const std::optional<CheckpointState> state = ReadCheckpointState(fs, clean, latest_filename);
  if (state) {
    std::vector<std::string> candidates = {state->latest};
    candidates.insert(candidates.end(), state->all.rbegin(), state->all.rend());
    for (const std::string& candidate : candidates) {
      // The directory may have been moved, or copied, since the file was written.
      std::string path = Inside(clean, candidate);
      if (!CheckpointExists(fs, path)) {
        if (candidate == path || !CheckpointExists(fs, candidate)) continue;
        path = candidate;
      }
      if (candidate != candidates[0]) {
        WarnOnce(absl::StrCat("Checkpoint '", candidates[0],
                              "', the latest by its state file, is not there; '", path,
                              "' is used"));
      }
      return path;
    }
  }
  const StatusOr<std::vector<std::string>> names = fs->GetChildren(clean);
  if (!names.ok()) return std::nullopt;
  std::vector<std::tuple<int64_t, double, std::string>> found;
  for (const std::string& name : *names) {
    absl::string_view base = name;
    if (!absl::ConsumeSuffix(&base, ".index") || base.empty()) continue;
    const double time = fs->GetModificationTime(JoinPath(clean, name)).value_or(0);
    found.emplace_back(StepOf(base), time, JoinPath(clean, base));
  }
  std::sort(found.rbegin(), found.rend());
  for (const auto& [step, time, prefix] : found) {
    if (!CheckpointExists(fs, prefix)) continue;
    WarnOnce(absl::StrCat("Directory '", clean,
                          "' has no state file that names a whole checkpoint; '", prefix,
                          "' is used"));
    return prefix;
  }
  return std::nullopt;
}

}  // namespace millrace
