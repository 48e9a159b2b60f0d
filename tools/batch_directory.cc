// SPDX-License-Identifier: Apache-2.0
#include "tools/batch_directory.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/random_bits.h"
#include "nlohmann/json.hpp"
#include "tools/batch_rows.h"

namespace millrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kState[] = ".batch_predict";
constexpr char kResults[] = "prediction.results", kErrors[] = "prediction.errors_stats";
constexpr size_t kMaxValueText = 60;

std::string ShardName(absl::string_view kind, int shard, int num_shards) {
  return absl::StrFormat("%s-%05d-of-%05d", kind, shard, num_shards);
}

std::string ShortText(const json& object, const std::string& key) {
  if (!object.contains(key)) return "none";
  std::string text = object[key].dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxValueText) text = absl::StrCat(text.substr(0, kMaxValueText), "...");
  return text;
}

// "num_tasks: 3, not 2": the values there, not those here.
std::string Differences(const std::string& there, const std::string& here) {
  const json a = json::parse(there, nullptr, /*allow_exceptions=*/false);
  const json b = json::parse(here, nullptr, /*allow_exceptions=*/false);
  if (!a.is_object() || !b.is_object()) return "no job";
  json keys = a;
  keys.update(b);
  std::vector<std::string> differences;
  for (const auto& [key, value] : keys.items()) {
    if (a.contains(key) && b.contains(key) && a[key] == b[key]) continue;
    differences.push_back(absl::StrCat(key, ": ", ShortText(a, key), ", not ", ShortText(b, key)));
  }
  return absl::StrJoin(differences, "; ");
}

// The two files of one shard, under other names until they are whole. Those of a crash stay among
// the parts.
class ShardWriter {
 public:
  static StatusOr<ShardWriter> Open(FileSystem* fs, const std::string& directory) {
    ShardWriter writer(fs, JoinPath(directory, absl::StrCat("tmp-", RandomHexName())));
    MR_ASSIGN_OR_RETURN(writer.results_,
                        fs->NewExclusiveFile(absl::StrCat(writer.path_, "-", kResults)));
    MR_ASSIGN_OR_RETURN(writer.errors_,
                        fs->NewExclusiveFile(absl::StrCat(writer.path_, "-", kErrors)));
    return writer;
  }
  // A line with its end.
  Status Append(bool is_result, absl::string_view line) {
    return (is_result ? results_ : errors_)->Append(line);
  }
  Status Close(const std::string& out, int shard, int num_shards) {
    for (WritableFile* file : {results_.get(), errors_.get()}) {
      MR_RETURN_IF_ERROR(file->Sync());
      MR_RETURN_IF_ERROR(file->Close());
    }
    for (const char* kind : {kResults, kErrors}) {
      MR_RETURN_IF_ERROR(fs_->RenameFile(absl::StrCat(path_, "-", kind),
                                         JoinPath(out, ShardName(kind, shard, num_shards))));
    }
    return absl::OkStatus();
  }

 private:
  ShardWriter(FileSystem* fs, std::string path) : fs_(fs), path_(std::move(path)) {}

  FileSystem* fs_;
  std::string path_;
  std::unique_ptr<WritableFile> results_, errors_;
};

}  // namespace

BatchDirectory::BatchDirectory(FileSystem* fs, std::string directory, std::string job,
                               int num_shards)
    : fs_(fs),
      directory_(std::move(directory)),
      job_(std::move(job)),
      state_(JoinPath(directory_, kState)),
      parts_(JoinPath(state_, "parts")),
      claims_(JoinPath(state_, "claims")),
      done_(JoinPath(state_, "done.json")),
      num_shards_(num_shards) {}

Status BatchDirectory::Create() const { return fs_->RecursivelyCreateDirectory(state_); }

Status BatchDirectory::CreateParts(bool claimed) const {
  MR_RETURN_IF_ERROR(fs_->RecursivelyCreateDirectory(parts_));
  if (claimed) MR_RETURN_IF_ERROR(fs_->RecursivelyCreateDirectory(claims_));
  return fs_->SyncDirectory(state_);
}

StatusOr<std::unique_ptr<FileLock>> BatchDirectory::TryLock(const std::string& name,
                                                            const std::string& holder) const {
  return fs_->TryLockFile(JoinPath(state_, name), holder);
}

StatusOr<bool> BatchDirectory::HasBegun() const {
  const std::string path = JoinPath(state_, "job.json");
  if (!fs_->FileExists(path)) return false;
  MR_ASSIGN_OR_RETURN(const std::string there, ReadFileToString(fs_, path));
  if (there == job_) return true;
  return FailedPrecondition("'", directory_,
                            "': it must be of the same model, inputs, format and numbers of shards "
                            "and tasks, got another job's ('",
                            path, "' has ", Differences(there, job_),
                            "); delete it, or write elsewhere");
}

Status BatchDirectory::Begin() const {
  MR_ASSIGN_OR_RETURN(const bool has_begun, HasBegun());
  if (has_begun) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->GetChildren(directory_));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kResults) && !absl::StartsWith(name, kErrors)) continue;
    return FailedPrecondition("'", directory_, "': it must have no predictions yet, got '", name,
                              "'");
  }
  // The directory's name must last as long as the shards next to it.
  MR_RETURN_IF_ERROR(WriteFileAtomically(fs_, JoinPath(state_, "job.json"), job_));
  return fs_->SyncDirectory(directory_);
}

StatusOr<std::optional<BatchLineCounts>> BatchDirectory::Finished() const {
  if (!fs_->FileExists(done_)) return std::optional<BatchLineCounts>();
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs_, done_));
  const json done = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!done.is_object() || !done.contains("results") || !done["results"].is_number_integer() ||
      !done.contains("errors") || !done["errors"].is_number_integer()) {
    return absl::DataLossError(
        absl::StrCat("'", done_, "': it must have the numbers of results and errors, got '",
                     absl::string_view(text).substr(0, kMaxValueText), "'"));
  }
  return BatchLineCounts{.results = done["results"].get<int64_t>(),
                         .errors = done["errors"].get<int64_t>()};
}

StatusOr<BatchLineCounts> BatchDirectory::WriteShards(const std::vector<BatchPart>& parts,
                                                      absl::FunctionRef<void()> after_part) const {
  MR_RETURN_IF_ERROR(CheckBatchPartsFollow(parts, parts_));
  int64_t total = 0;
  for (const BatchPart& part : parts) total += part.lines;
  BatchLineCounts counts;
  int64_t line_number = 0;
  auto part = parts.begin();
  std::string text;  // of a part, from `left` on not written yet
  absl::string_view left;
  int64_t lines_left = 0;
  for (int shard = 0; shard < num_shards_; ++shard) {
    MR_ASSIGN_OR_RETURN(ShardWriter writer, ShardWriter::Open(fs_, parts_));
    const int64_t end_of_shard = total * (shard + 1) / num_shards_;
    while (line_number < end_of_shard) {
      while (lines_left == 0) {
        // Ends: `total` is the sum of what the parts have.
        MR_ASSIGN_OR_RETURN(text, ReadFileToString(fs_, JoinPath(parts_, part->Name())));
        left = text;
        lines_left = part->lines;
        const auto lines = std::count(text.begin(), text.end(), '\n');
        if (lines != part->lines || (!text.empty() && text.back() != '\n')) {
          return absl::DataLossError(absl::StrCat("'", JoinPath(parts_, part->Name()),
                                                  "': it must have ", part->lines,
                                                  " whole lines, got ", lines));
        }
        ++part;
        after_part();
      }
      const size_t size = left.find('\n') + 1;
      const bool is_result = left[0] == kBatchResultMark;
      if (!is_result && left[0] != kBatchErrorMark) {
        return absl::DataLossError(
            absl::StrCat("'", JoinPath(parts_, std::prev(part)->Name()),
                         "': its lines must begin with '", std::string(1, kBatchResultMark),
                         "' or '", std::string(1, kBatchErrorMark), "', got another one"));
      }
      (is_result ? counts.results : counts.errors) += 1;
      MR_RETURN_IF_ERROR(writer.Append(is_result, left.substr(1, size - 1)));
      left.remove_prefix(size);
      --lines_left;
      ++line_number;
    }
    MR_RETURN_IF_ERROR(writer.Close(directory_, shard, num_shards_));
  }
  MR_RETURN_IF_ERROR(fs_->SyncDirectory(directory_));
  const ordered_json done = {{"results", counts.results}, {"errors", counts.errors}};
  MR_RETURN_IF_ERROR(WriteFileAtomically(fs_, done_, absl::StrCat(done.dump(), "\n")));
  return counts;
}

void BatchDirectory::Clear() const {
  fs_->RecursivelyDelete(parts_).IgnoreError();
  if (fs_->FileExists(claims_)) fs_->RecursivelyDelete(claims_).IgnoreError();
}

}  // namespace millrace
