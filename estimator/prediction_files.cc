// SPDX-License-Identifier: Apache-2.0
#include "estimator/prediction_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/random_bits.h"
#include "formats/json_nesting.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// Of a hundred thousand parts, or of as many files with long names.
constexpr uint64_t kMaxBytes = 64 << 20;
constexpr char kManifest[] = "manifest.json";
constexpr char kJobDirectory[] = "_job";
constexpr char kJob[] = "job.json";
constexpr char kPart[] = "part-";
constexpr char kDone[] = ".done";

std::string TextOf(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Fields of a file; what is missing, or of another kind, is noted.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}
  std::string Text(const char* key) {
    if (!Has(key) || !json_[key].is_string()) return Missing(key), "";
    return json_[key].get<std::string>();
  }
  int64_t Number(const char* key, int64_t least, int64_t most) {
    if (!Has(key) || !json_[key].is_number_integer()) return Missing(key), least;
    // An unsigned number above int64's is negative here.
    const int64_t value = json_[key].get<int64_t>();
    if (value < least || value > most) Missing(key);
    return std::clamp(value, least, most);
  }
  PredictionFormat Format(const char* key) {
    const StatusOr<PredictionFormat> format = ParsePredictionFormat(Text(key));
    if (!format.ok()) Missing(key);
    return format.value_or(PredictionFormat::kJsonLines);
  }
  const Json& List(const char* key) {
    static const Json* const none = new Json(Json::array());
    if (!Has(key) || !json_[key].is_array()) return Missing(key), *none;
    return json_[key];
  }
  ShardContent Content() {
    constexpr int64_t kMost = int64_t{1} << 62;
    ShardContent content;
    content.rows = Number("rows", 0, kMost);
    content.bytes = Number("bytes", 0, kMost);
    content.crc32c = static_cast<uint32_t>(Number("crc32c", 0, UINT32_MAX));
    return content;
  }
  void Missing(const char* key) {
    if (missing_.empty()) missing_ = key;
  }
  Status StatusOf(const std::string& path) const {
    if (missing_.empty()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("'", path, "' must say '", missing_, "', got none, or no such value"));
  }

 private:
  bool Has(const char* key) const { return json_.is_object() && json_.contains(key); }
  const Json& json_;
  std::string missing_;
};

// nullopt: there is none.
StatusOr<std::optional<Json>> ReadJson(FileSystem* fs, const std::string& path) {
  const StatusOr<std::string> text = ReadFileToString(fs, path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return std::optional<Json>();
  if (!text.ok()) return text.status();
  Json json = JsonNesting(*text) > kMaxJsonNesting
                  ? Json(Json::value_t::discarded)
                  : Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat("'", path, "' must be an object of JSON"));
  }
  return std::optional<Json>(std::move(json));
}

std::string PartFile(int64_t part, const PredictionJob& job) {
  return absl::StrFormat("predictions-%05d-of-%05d.%s", part, job.num_parts,
                         PredictionFormatName(job.format));
}

Json ContentJson(const ShardContent& content) {
  return {{"rows", content.rows}, {"bytes", content.bytes}, {"crc32c", content.crc32c}};
}

}  // namespace

int64_t PredictionManifest::rows() const {
  int64_t rows = 0;
  for (const PredictedPart& part : parts) rows += part.content.rows;
  return rows;
}

StatusOr<std::optional<PredictionManifest>> ReadPredictionManifest(FileSystem* fs,
                                                                   const std::string& directory) {
  const std::string path = JoinPath(directory, kManifest);
  MR_ASSIGN_OR_RETURN(const std::optional<Json> json, ReadJson(fs, path));
  if (!json) return std::optional<PredictionManifest>();
  PredictionManifest manifest;
  Fields fields(*json);
  manifest.checkpoint = fields.Text("checkpoint");
  manifest.format = fields.Format("format");
  for (const Json& part : fields.List("parts")) {
    Fields of_part(part);
    PredictedPart& added = manifest.parts.emplace_back();
    added.file = of_part.Text("file");
    added.content = of_part.Content();
    added.task = of_part.Text("task");
    if (absl::StrContains(added.file, '/')) of_part.Missing("file");
    MR_RETURN_IF_ERROR(of_part.StatusOf(path));
  }
  MR_RETURN_IF_ERROR(fields.StatusOf(path));
  return std::optional<PredictionManifest>(std::move(manifest));
}

PredictionFiles::PredictionFiles(FileSystem* fs, std::string directory)
    : fs_(fs), directory_(std::move(directory)) {}

std::string PredictionFiles::job_directory() const { return JoinPath(directory_, kJobDirectory); }
std::string PredictionFiles::manifest_path() const { return JoinPath(directory_, kManifest); }

std::string PredictionFiles::AttemptPath(int64_t part, absl::string_view token) const {
  return JoinPath(job_directory(), absl::StrFormat("%s%05d.%s", kPart, part, token));
}

StatusOr<std::optional<PredictionJob>> PredictionFiles::ReadJob() const {
  const std::string path = JoinPath(job_directory(), kJob);
  MR_ASSIGN_OR_RETURN(const std::optional<Json> json, ReadJson(fs_, path));
  if (!json) return std::optional<PredictionJob>();
  Fields fields(*json);
  PredictionJob job;
  job.checkpoint = fields.Text("checkpoint");
  job.format = fields.Format("format");
  job.num_parts = fields.Number("num_parts", 1, kMaxPredictionParts);
  // As text: programs that read numbers of JSON as doubles would change it.
  if (!absl::SimpleAtoi(fields.Text("seed"), &job.seed)) fields.Missing("seed");
  for (const Json& file : fields.List("files")) {
    if (file.is_string()) {
      job.files.push_back(file.get<std::string>());
    } else {
      fields.Missing("files");
    }
  }
  MR_RETURN_IF_ERROR(fields.StatusOf(path));
  return std::optional<PredictionJob>(std::move(job));
}

Status PredictionFiles::WriteJob(const PredictionJob& job) const {
  MR_RETURN_IF_ERROR(fs_->RecursivelyCreateDirectory(job_directory()));
  const Json json = {{"checkpoint", job.checkpoint},
                     {"format", PredictionFormatName(job.format)},
                     {"num_parts", job.num_parts},
                     {"seed", absl::StrCat(job.seed)},
                     {"files", job.files}};
  return WriteFileAtomically(fs_, JoinPath(job_directory(), kJob), TextOf(json));
}

StatusOr<PredictionFiles::Attempt> PredictionFiles::Begin(int64_t part,
                                                          PredictionFormat format) const {
  Attempt attempt = {.part = part, .token = RandomHexName(), .writer = nullptr};
  MR_ASSIGN_OR_RETURN(attempt.writer,
                      PredictionShardWriter::Create(fs_, AttemptPath(part, attempt.token), format));
  return attempt;
}

StatusOr<ShardContent> PredictionFiles::Commit(Attempt* attempt, absl::string_view task) const {
  MR_ASSIGN_OR_RETURN(const ShardContent content, attempt->writer->Finish());
  attempt->writer = nullptr;
  // Late: somebody else's was chosen, and nobody would remove this one.
  if (fs_->FileExists(manifest_path())) {
    Abandon(attempt);
    return content;
  }
  Json json = ContentJson(content);
  json["task"] = std::string(task);
  MR_RETURN_IF_ERROR(
      WriteFileAtomically(fs_, AttemptPath(attempt->part, attempt->token) + kDone, TextOf(json)));
  return content;
}

void PredictionFiles::Abandon(Attempt* attempt) const {
  attempt->writer = nullptr;
  fs_->DeleteFile(AttemptPath(attempt->part, attempt->token)).IgnoreError();
}

StatusOr<std::map<int64_t, PredictionFiles::PartState>> PredictionFiles::Look() const {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->GetChildren(job_directory()));
  std::map<int64_t, PartState> parts;
  for (const std::string& name : names) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, kPart)) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(rest, '.');
    int64_t part = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[0], &part)) continue;
    const std::string token(words[1]);
    if (words.size() == 3 && absl::StrCat(".", words[2]) == kDone) {
      parts[part].whole.push_back(token);
    } else if (words.size() == 2) {
      const StatusOr<uint64_t> size = fs_->GetFileSize(JoinPath(job_directory(), name));
      if (size.ok()) parts[part].unended[token] = *size;  // else it was removed meanwhile
    }
  }
  for (auto& [number, part] : parts) {
    for (const std::string& token : part.whole) part.unended.erase(token);
  }
  return parts;
}

StatusOr<PredictedPart> PredictionFiles::Choose(int64_t part, const PartState& state,
                                                const PredictionJob& job) const {
  PredictedPart chosen = {.file = PartFile(part, job)};
  const std::string target = JoinPath(directory_, chosen.file);
  std::string why = "none is whole";
  // One that a chief has renamed before it died is not to be replaced: it may be the only whole one
  // by now.
  for (const bool renamed : {true, false}) {
    for (const std::string& token : state.whole) {
      const std::string source = AttemptPath(part, token);
      if (fs_->FileExists(source) == renamed) continue;
      MR_ASSIGN_OR_RETURN(const std::optional<Json> json, ReadJson(fs_, source + kDone));
      if (!json) continue;
      Fields fields(*json);
      chosen.content = fields.Content();
      chosen.task = fields.Text("task");
      MR_RETURN_IF_ERROR(fields.StatusOf(source + kDone));
      const StatusOr<uint64_t> size = fs_->GetFileSize(renamed ? target : source);
      if (!size.ok() || static_cast<int64_t>(*size) != chosen.content.bytes) {
        why = size.ok() ? absl::StrCat("'", renamed ? target : source, "' has ", *size,
                                       " bytes in place of ", chosen.content.bytes)
                        : std::string(size.status().message());
        continue;
      }
      if (!renamed) MR_RETURN_IF_ERROR(fs_->RenameFile(source, target));
      return chosen;
    }
  }
  return absl::DataLossError(
      absl::StrCat("part ", part, " of the predictions in '", directory_, "' is not there: ", why));
}

Status PredictionFiles::WriteManifest(const PredictionManifest& manifest) const {
  MR_RETURN_IF_ERROR(fs_->SyncDirectory(directory_));  // the renamed parts
  Json parts = Json::array();
  for (const PredictedPart& part : manifest.parts) {
    Json json = {{"file", part.file}};
    json.update(ContentJson(part.content));
    json["task"] = part.task;
    parts.push_back(std::move(json));
  }
  const Json json = {{"checkpoint", manifest.checkpoint},
                     {"format", PredictionFormatName(manifest.format)},
                     {"rows", manifest.rows()},
                     {"parts", std::move(parts)}};
  return WriteFileAtomically(fs_, manifest_path(), TextOf(json));
}

void PredictionFiles::Sweep() const {
  const StatusOr<std::vector<std::string>> names = fs_->GetChildren(job_directory());
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (absl::StartsWith(name, kPart)) {
      fs_->DeleteFile(JoinPath(job_directory(), name)).IgnoreError();
    }
  }
}

}  // namespace millrace
