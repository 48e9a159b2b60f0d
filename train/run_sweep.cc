// SPDX-License-Identifier: Apache-2.0
#include "train/run_sweep.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/logging.h"
#include "run/run_file.h"
#include "saver/bundle_paths.h"
#include "saver/bundle_place.h"
#include "saver/checkpoint_v1.h"
#include "saver/leftovers.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

// How writers end the names of files that are not finished, before kHexDigits digits.
constexpr char kAtomicMark[] = ".tmp";           // WriteFileAtomically
constexpr char kBundleMark[] = ".tempstate";     // a checkpoint's
constexpr char kWritableProbe[] = ".writable_";  // of a chief that tries its directory
// Names that only chiefs write. Another chief that is at it still is fenced.
constexpr std::array<absl::string_view, 5> kOfChiefs = {"graph.pbtxt", "run.json", "run_end.json",
                                                        "run_saves.json", "checkpoint"};
// An evaluator of this job may just be writing it.
constexpr absl::string_view kOfEvaluators = "evaluation_done";
constexpr double kWritingSecs = 60;

// The checkpoint of a file "<checkpoint>.index" or "<checkpoint>.data-...".
std::string CheckpointOf(absl::string_view file) {
  if (absl::ConsumeSuffix(&file, ".index")) return std::string(file);
  const size_t at = file.rfind(".data-");
  return at == absl::string_view::npos ? std::string() : std::string(file.substr(0, at));
}

// How old a file of this name must be to be nobody's: so many seconds before the chief came; none:
// it is no temporary file of a run.
std::optional<double> AgeOfNobodys(absl::string_view name, const std::set<std::string>& suspects) {
  absl::string_view rest = name;
  if (ConsumeHexSuffix(&rest, kWritableProbe, kHexDigits)) {
    return rest.empty() ? std::optional<double>(0.0) : std::nullopt;
  }
  if (ConsumeHexSuffix(&rest, kBundleMark, kHexDigits)) {
    return suspects.count(CheckpointOf(rest)) > 0 ? std::optional<double>(0.0) : std::nullopt;
  }
  if (!ConsumeHexSuffix(&rest, kAtomicMark, kHexDigits)) return std::nullopt;
  if (rest == kOfEvaluators) return kWritingSecs;
  const bool is_end = absl::StartsWith(rest, "run_end-") && absl::EndsWith(rest, ".json");
  if (is_end || std::find(kOfChiefs.begin(), kOfChiefs.end(), rest) != kOfChiefs.end()) return 0.0;
  if (absl::ConsumeSuffix(&rest, ".meta") && suspects.count(std::string(rest)) > 0) return 0.0;
  return std::nullopt;
}

// Names of the checkpoints of a state file.
std::set<std::string> ListedIn(const CheckpointState& state) {
  std::set<std::string> names = {Basename(state.latest)};
  for (const std::string& path : state.all) names.insert(Basename(path));
  return names;
}

}  // namespace

RunSweep::RunSweep(FileSystem* fs, std::string speaker, std::string directory)
    : fs_(fs), speaker_(std::move(speaker)), directory_(std::move(directory)) {}

bool RunSweep::IsInside(const std::string& path) const {
  return !path.empty() && Dirname(path) == Dirname(JoinPath(directory_, "x"));
}

void RunSweep::TookOver(const TrainingRun& run) {
  {
    MutexLock lock(&mu_);
    if (run_.id == run.id && run_.epoch == run.epoch) return;
  }
  const StatusOr<std::optional<RunSavesFile>> saves = ReadRunSaves(fs_, directory_);
  const double since = RunEpochTime(fs_, directory_, run.epoch).value_or(0);
  MutexLock lock(&mu_);
  run_ = run;
  since_ = since;
  left_.clear();
  // In a directory that was copied they are another run's, and perhaps somebody's.
  if (saves.ok() && *saves && (*saves)->id == run.id) {
    left_.insert((*saves)->checkpoints.begin(), (*saves)->checkpoints.end());
  }
}

void RunSweep::SaveBegins(const std::string& path, const std::vector<std::string>& kept,
                          const Retention& retention) {
  // Without a limit nothing is anybody's to delete.
  if (retention.max_to_keep <= 0 || !IsInside(path)) return;
  RunSavesFile file;
  {
    MutexLock lock(&mu_);
    if (run_.id.empty()) return;
    in_progress_ = Basename(path);
    recorded_ = {in_progress_};
    for (const std::string& one : kept) {
      if (Dirname(one) != Dirname(path)) continue;
      left_.erase(Basename(one));
      if (!retention.keeps_some_forever) recorded_.insert(Basename(one));
    }
    file.id = run_.id;
    // Of very many the record has the last ones: this save's.
    file.checkpoints.assign(left_.begin(), left_.end());
    file.checkpoints.insert(file.checkpoints.end(), recorded_.begin(), recorded_.end());
  }
  // Where it cannot be written, what a killed save leaves stays.
  WriteRunSaves(fs_, directory_, file).IgnoreError();
}

void RunSweep::SaveEnded(const std::string& path, const Status& status) {
  MutexLock lock(&mu_);
  if (in_progress_.empty()) return;
  in_progress_.clear();
  if (status.ok()) {
    left_.erase(Basename(path));
  } else if (left_.size() < kMaxRunSaves) {
    // A task may be at it still, and finish it when nobody looks.
    left_.insert(Basename(path));
  }
}

bool RunSweep::IsSaving() const {
  MutexLock lock(&mu_);
  return !in_progress_.empty();
}

std::set<std::string> RunSweep::Suspects() const {
  std::set<std::string> all = left_;
  all.insert(recorded_.begin(), recorded_.end());
  return all;
}

void RunSweep::Sweep(const std::string& in_use) {
  std::set<std::string> suspects;
  double since = 0;
  {
    MutexLock lock(&mu_);
    if (run_.id.empty() || !in_progress_.empty()) return;
    suspects = Suspects();
    since = since_;
  }
  const std::set<std::string> may_come = SweepCheckpoints(suspects, in_use);
  if (since > 0) {
    SweepTemporaryFiles(suspects, since);
    SweepHalves(suspects, may_come, since);
  }
  RunSavesFile file;
  {
    MutexLock lock(&mu_);
    std::erase_if(left_, [&](const std::string& name) {
      return suspects.count(name) > 0 && may_come.count(name) == 0;
    });
    // A save that began meanwhile has a record of its own.
    if (suspects.empty() || !in_progress_.empty()) return;
    recorded_.clear();
    file.id = run_.id;
    file.checkpoints.assign(left_.begin(), left_.end());
  }
  // What is put back under a name of the last save, from a copy, is its owner's.
  WriteRunSaves(fs_, directory_, file).IgnoreError();
}

void RunSweep::Forget() {
  MutexLock lock(&mu_);
  left_.clear();
}

std::set<std::string> RunSweep::SweepCheckpoints(const std::set<std::string>& suspects,
                                                 const std::string& in_use) const {
  std::set<std::string> may_come;
  if (suspects.empty()) return may_come;
  const std::optional<CheckpointState> state = ReadCheckpointState(fs_, directory_);
  const std::set<std::string> listed = state ? ListedIn(*state) : std::set<std::string>();
  const bool is_used_unlisted = IsInside(in_use) && listed.count(Basename(in_use)) == 0;
  if (!state || !state->has_checksum || is_used_unlisted) {
    // What was found without a list is of use until there is one.
    if (is_used_unlisted && suspects.count(Basename(in_use)) > 0) may_come = {Basename(in_use)};
    return may_come;
  }
  for (const std::string& name : suspects) {
    if (listed.count(name) > 0) continue;
    const std::string path = JoinPath(directory_, name);
    if (!fs_->FileExists(BundleIndexPath(path))) {
      may_come.insert(name);
      continue;
    }
    // Not while somebody gives files their names under it.
    const auto hold = PrefixHold::Take(fs_, path, Clock::Real(), absl::ZeroDuration());
    // A save that has ended since the look above has listed it; one that runs is about to.
    if (IsSaving()) {
      may_come.insert(name);
      continue;
    }
    const std::optional<CheckpointState> now = ReadCheckpointState(fs_, directory_);
    if (!now) may_come.insert(name);
    if (!now || ListedIn(*now).count(name) > 0) continue;
    const Status deleted = hold.ok() ? DeleteCheckpoint(fs_, path) : hold.status();
    if (deleted.ok()) {
      LogInfo(speaker_, ": deleted '", path, "', which a save of this run had left unlisted");
    } else {
      may_come.insert(name);
      LogWarning(speaker_, ": '", path,
                 "', which a save of this run has left unlisted, stays: ", deleted.message());
    }
  }
  return may_come;
}

bool RunSweep::IsOlder(const std::string& path, double since) const {
  const StatusOr<double> time = fs_->GetModificationTime(path);
  return time.ok() && *time < since;
}

bool RunSweep::HoldsOlderPartsOnly(const std::string& directory, double since) const {
  const StatusOr<std::vector<std::string>> names = fs_->GetChildren(directory);
  return names.ok() && IsOlder(directory, since) &&
         std::all_of(names->begin(), names->end(), [&](const std::string& name) {
           return absl::StartsWith(name, "part-") && IsOlder(JoinPath(directory, name), since);
         });
}

void RunSweep::SweepHalves(const std::set<std::string>& suspects,
                           const std::set<std::string>& unlisted, double since) const {
  const StatusOr<std::vector<std::string>> names = fs_->GetChildren(directory_);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    absl::string_view rest = name;
    if (!ConsumeHexSuffix(&rest, kTempMark, kTempDigits)) continue;
    const std::string path = JoinPath(directory_, name);
    if (suspects.count(std::string(rest)) == 0 || !HoldsOlderPartsOnly(path, since)) continue;
    if (fs_->RecursivelyDelete(path).ok()) {
      LogInfo(speaker_, ": deleted '", path, "', the parts of a save that was killed");
    }
  }
  for (const std::string& checkpoint : unlisted) {
    const std::string path = JoinPath(directory_, checkpoint);
    if (fs_->FileExists(BundleIndexPath(path)) || !CheckpointV1Files(fs_, path).empty()) continue;
    bool has_data = false, is_older = true;
    for (const std::string& name : *names) {
      absl::string_view rest = name;
      if (!absl::ConsumePrefix(&rest, checkpoint)) continue;
      if (!IsDataSuffix(rest) && rest != ".meta") continue;
      has_data = has_data || IsDataSuffix(rest);
      is_older = is_older && IsOlder(JoinPath(directory_, name), since);
    }
    // A meta graph by itself is a file that people keep.
    if (!has_data || !is_older) continue;
    const auto hold = PrefixHold::Take(fs_, path, Clock::Real(), absl::ZeroDuration());
    if (hold.ok() && DeleteCheckpoint(fs_, path).ok()) {
      LogInfo(speaker_, ": deleted the data of '", path, "', a save that was killed before it had ",
              "an index");
    }
  }
}

void RunSweep::SweepTemporaryFiles(const std::set<std::string>& suspects, double since) const {
  const StatusOr<std::vector<std::string>> names = fs_->GetChildren(directory_);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::optional<double> age = AgeOfNobodys(name, suspects);
    if (!age) continue;
    const std::string path = JoinPath(directory_, name);
    const StatusOr<bool> is_directory = fs_->IsDirectory(path);
    const StatusOr<double> time = fs_->GetModificationTime(path);
    if (!is_directory.ok() || *is_directory || !time.ok() || *time >= since - *age) continue;
    if (fs_->DeleteFile(path).ok()) {
      LogInfo(speaker_, ": deleted '", path, "', which a killed process had left unfinished");
    }
  }
}

}  // namespace millrace
