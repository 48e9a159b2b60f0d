// SPDX-License-Identifier: Apache-2.0
#include "train/other_model.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "run/run_file.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

constexpr size_t kNames = 3;

// "3 ('a', 'b', 'c')", of many the first few.
std::string Some(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNames);
  return absl::StrCat(
      names.size(), " (",
      absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "),
      shown < names.size() ? ", ...)" : ")");
}

// What this model needs and the checkpoint has not, and the other way round.
std::string InWords(const CheckpointDifference& difference) {
  std::vector<std::string> parts;
  if (!difference.missing.empty()) {
    parts.push_back(absl::StrCat("lacks ", Some(difference.missing), " of the ",
                                 difference.num_expected, " variables of this one"));
  }
  if (!difference.changed.empty()) {
    parts.push_back(absl::StrCat("differs in ", Some(difference.changed)));
  }
  if (!difference.unwanted.empty()) {
    std::vector<std::string> quoted;
    for (const std::string& name : difference.unwanted) {
      quoted.push_back(absl::StrCat("'", name, "'"));
    }
    parts.push_back(absl::StrCat("has ", Some(quoted), " that this one has not"));
  }
  return absl::StrJoin(parts, ", ");
}

// Whose it is, and since when, as far as the directory says.
std::string Owner(const std::string& directory, const std::string& checkpoint, FileSystem* fs) {
  const StatusOr<std::optional<RunFile>> run = ReadRunFile(fs, directory);
  if (run.ok() && *run && !(*run)->chief.empty()) {
    return absl::StrCat("'", directory, "' is that of ", (*run)->chief,
                        (*run)->since.empty() ? "" : absl::StrCat(", since ", (*run)->since));
  }
  std::string text = absl::StrCat("'", directory, "' has no run.json that says whose it is");
  const StatusOr<double> time = fs->GetModificationTime(BundleIndexPath(checkpoint));
  if (!time.ok()) return text;
  return absl::StrCat(
      text, ", and that checkpoint is of ",
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::UnixEpoch() + absl::Seconds(*time),
                       absl::UTCTimeZone()));
}

}  // namespace

Status CheckModelOf(const ModelDirectory& where, Saver* saver, FileSystem* fs) {
  const std::optional<std::string> latest = LatestCheckpoint(fs, where.directory);
  if (!latest) return absl::OkStatus();
  const StatusOr<CheckpointDifference> difference = saver->Compare(*latest);
  if (!difference.ok() || difference->fits()) return absl::OkStatus();
  return FailedPrecondition(where.speaker, ": ", where.option, " '", where.directory,
                            "' must hold checkpoints of this model, got another model's: '",
                            *latest, "' ", InWords(*difference), "; ",
                            Owner(where.directory, *latest, fs), "; give this program another ",
                            where.option, ", or move that one away");
}

}  // namespace millrace
