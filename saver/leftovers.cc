// SPDX-License-Identifier: Apache-2.0
#include "saver/leftovers.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/logging.h"
#include "core/process_name.h"
#include "saver/bundle_paths.h"
#include "saver/checkpoint_v1.h"

namespace millrace {

bool IsHex(absl::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool ConsumeHexSuffix(absl::string_view* text, absl::string_view mark, size_t digits) {
  if (text->size() < digits || !IsHex(text->substr(text->size() - digits), digits)) return false;
  absl::string_view rest = text->substr(0, text->size() - digits);
  if (!absl::ConsumeSuffix(&rest, mark)) return false;
  *text = rest;
  return true;
}

Leftovers::PartName Leftovers::Parse(absl::string_view name, const Family& family) {
  absl::string_view rest = name;
  if (ConsumeHexSuffix(&rest, ".tmp", kHexDigits) && rest == family.state_file) {
    return {Part::kUnfinishedFile, ""};
  }
  rest = name;
  if (!absl::ConsumePrefix(&rest, family.base) || !absl::ConsumePrefix(&rest, "-")) return {};
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0) return {};
  rest.remove_prefix(digits);
  const std::string checkpoint(name.substr(0, name.size() - rest.size()));
  if (rest == ".meta") return {Part::kMetaGraph, checkpoint};
  if (rest == ".lock") return {Part::kLock, checkpoint};
  if (IsDataSuffix(rest)) return {Part::kData, checkpoint};
  if (ConsumeHexSuffix(&rest, kTempMark, kTempDigits)) {
    return {rest.empty() ? Part::kUnfinishedDirectory : Part::kNone, checkpoint};
  }
  const bool unfinished = ConsumeHexSuffix(&rest, ".tempstate", kHexDigits)
                              ? rest == ".index" || IsDataSuffix(rest)
                              : ConsumeHexSuffix(&rest, ".tmp", kHexDigits) && rest == ".meta";
  return {unfinished ? Part::kUnfinishedFile : Part::kNone, checkpoint};
}

std::optional<Leftovers::State> Leftovers::StateOf(const std::string& path, const PartName& name,
                                                   IsKept is_kept) {
  if (name.part == Part::kNone) return std::nullopt;
  if (name.part == Part::kUnfinishedDirectory) {
    if (!HoldsPartsOnly(path)) return std::nullopt;
  } else if (name.part == Part::kData || name.part == Part::kMetaGraph) {
    const std::string checkpoint = JoinPath(Dirname(path), name.checkpoint);
    if (is_kept(checkpoint) || fs_->FileExists(BundleIndexPath(checkpoint)) ||
        !CheckpointV1Files(fs_, checkpoint).empty()) {
      return std::nullopt;
    }
  }
  const StatusOr<double> time = fs_->GetModificationTime(path);
  if (!time.ok()) return std::nullopt;
  return std::make_pair(fs_->GetFileSize(path).value_or(0), *time);
}

void Leftovers::Note(const Family& family, IsKept is_kept) {
  noted_.clear();
  if (!family.deletes && family.run_digits.empty()) return;
  const StatusOr<std::vector<std::string>> names = fs_->GetChildren(family.directory);
  if (!names.ok()) return;
  std::set<std::string> with_data;  // checkpoints
  std::set<std::string> begun;      // by saves of this run that did not end
  for (const std::string& name : *names) {
    const PartName part = Parse(name, family);
    if (part.part == Part::kData) with_data.insert(part.checkpoint);
    if (IsOwnDirectory(name, part, family)) begun.insert(part.checkpoint);
  }
  for (const std::string& name : *names) {
    const std::string path = JoinPath(family.directory, name);
    const PartName part = Parse(name, family);
    switch (part.part) {
      case Part::kNone:
        continue;
      case Part::kUnfinishedDirectory:
        if (!family.run_digits.empty() && !IsOwnDirectory(name, part, family)) continue;
        break;
      case Part::kUnfinishedFile:
      case Part::kLock:
        break;
      case Part::kMetaGraph:
        // By itself it is a file that people keep.
        if (with_data.count(part.checkpoint) == 0) continue;
        [[fallthrough]];
      case Part::kData:
        if (!family.deletes && begun.count(part.checkpoint) == 0) continue;
        break;
    }
    const auto state = StateOf(path, part, is_kept);
    if (state) noted_.push_back({path, part, *state});
  }
  // Meta graphs before their data, for the same reason; directories after the files that are
  // known by them.
  const auto order = [](const Leftover& leftover) {
    return leftover.name.part == Part::kMetaGraph             ? 0
           : leftover.name.part == Part::kUnfinishedDirectory ? 2
                                                              : 1;
  };
  std::stable_sort(noted_.begin(), noted_.end(),
                   [&order](const Leftover& a, const Leftover& b) { return order(a) < order(b); });
}

bool Leftovers::IsOwnDirectory(absl::string_view name, const PartName& part, const Family& family) {
  return part.part == Part::kUnfinishedDirectory && !family.run_digits.empty() &&
         absl::StartsWith(name.substr(part.checkpoint.size()),
                          absl::StrCat(kTempMark, family.run_digits));
}

void Leftovers::Delete(IsKept is_kept) {
  for (const Leftover& leftover : noted_) {
    if (StateOf(leftover.path, leftover.name, is_kept) != leftover.state) continue;
    LogInfo("Saver: deleting '", leftover.path, "', which an interrupted save left");
    if (leftover.name.part == Part::kUnfinishedDirectory) {
      fs_->RecursivelyDelete(leftover.path).IgnoreError();
    } else if (leftover.name.part == Part::kLock) {
      // Goes with the lock; not while somebody has it.
      fs_->TryLockFile(leftover.path, ProcessName()).status().IgnoreError();
    } else {
      fs_->DeleteFile(leftover.path).IgnoreError();
    }
  }
  noted_.clear();
}

void Leftovers::Sweep(const Family& family) {
  if (!family.run_digits.empty()) return;
  const StatusOr<std::vector<std::string>> names = fs_->GetChildren(family.directory);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = JoinPath(family.directory, name);
    const PartName part = Parse(name, family);
    if (part.part == Part::kUnfinishedDirectory && HoldsPartsOnly(path)) {
      fs_->RecursivelyDelete(path).IgnoreError();
    }
    if (part.part == Part::kUnfinishedFile && absl::StrContains(name, ".tempstate")) {
      fs_->DeleteFile(path).IgnoreError();
    }
  }
}

bool Leftovers::HoldsPartsOnly(const std::string& directory) {
  const StatusOr<std::vector<std::string>> names = fs_->GetChildren(directory);
  return names.ok() && std::all_of(names->begin(), names->end(), [](const std::string& name) {
           return absl::StartsWith(name, "part-");
         });
}

}  // namespace millrace
