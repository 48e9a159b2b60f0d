// SPDX-License-Identifier: Apache-2.0
#include "run/run_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/random_bits.h"
#include "formats/json_nesting.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

// A bound against files that are none of these.
constexpr uint64_t kMaxBytes = 64 << 10;

constexpr char kEpoch[] = "run_owner-";
constexpr char kOwnEnd[] = "run_end-";
constexpr char kJson[] = ".json";
// Of a token, in the name of a file.
constexpr size_t kTokenDigits = 8;
// No directory ever had so many owners: a number above it says nothing, and there is one above it.
constexpr int64_t kMaxEpoch = int64_t{1} << 53;

std::string EpochPath(const std::string& directory, int64_t epoch) {
  return JoinPath(directory, absl::StrCat(kEpoch, epoch));
}

// 0: the name is none of an epoch.
int64_t EpochOf(absl::string_view name) {
  int64_t epoch = 0;
  return absl::ConsumePrefix(&name, kEpoch) && absl::SimpleAtoi(name, &epoch) && epoch > 0 &&
                 epoch <= kMaxEpoch
             ? epoch
             : 0;
}

int64_t NewestOf(const std::vector<std::string>& names) {
  int64_t newest = 0;
  for (const std::string& name : names) newest = std::max(newest, EpochOf(name));
  return newest;
}

// Tokens are hexadecimal digits; a file may say anything.
std::string FileNamePart(absl::string_view token) {
  std::string part;
  for (const char c : token.substr(0, kTokenDigits))
    part += absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return part;
}

// Files say anything: what is named must be in the directory, and by all of its name.
bool IsNameInDirectory(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return c == '/' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
         });
}

std::string SavesPath(const std::string& directory) {
  return JoinPath(directory, "run_saves.json");
}

std::string OwnEndPath(const std::string& directory, const std::string& token) {
  return JoinPath(directory, absl::StrCat(kOwnEnd, FileNamePart(token), kJson));
}

// nullopt: no such file.
StatusOr<std::optional<Json>> ReadObject(FileSystem* fs, const std::string& path,
                                         std::string* text) {
  if (!fs->FileExists(path)) return std::optional<Json>();
  StatusOr<std::string> read = ReadFileToString(fs, path, kMaxBytes);
  // Removed meanwhile.
  if (absl::IsNotFound(read.status())) return std::optional<Json>();
  MR_RETURN_IF_ERROR(read.status());
  if (const int nesting = JsonNesting(*read); nesting > kMaxJsonNesting) {
    return absl::DataLossError(absl::StrCat("Run file '", path, "': values must be nested at most ",
                                            kMaxJsonNesting, " deep, got ", nesting));
  }
  Json json = Json::parse(*read, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return absl::DataLossError(absl::StrCat("Run file '", path, "': must be a JSON object, got ",
                                            read->size(), " bytes that are none"));
  }
  *text = *std::move(read);
  return std::optional<Json>(std::move(json));
}

std::string Text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int64_t Number(const Json& json, const char* key, int64_t otherwise) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

// The object to set the known fields of.
Json Base(const std::string& unknown) {
  Json json = Json::parse(unknown, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

std::string TextOf(const Json& json) {
  // Names of files may be no UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status Write(FileSystem* fs, const std::string& path, const Json& json) {
  return WriteFileAtomically(fs, path, TextOf(json));
}

Status MustHave(const std::string& path, const char* key, const std::string& value) {
  if (!value.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("Run file '", path, "': must have the text '", key, "', got none"));
}

}  // namespace

std::string RunFilePath(const std::string& directory) { return JoinPath(directory, "run.json"); }

std::string RunEndFilePath(const std::string& directory) {
  return JoinPath(directory, "run_end.json");
}

namespace {

StatusOr<std::optional<RunFile>> ReadRunIn(FileSystem* fs, const std::string& path) {
  RunFile run;
  MR_ASSIGN_OR_RETURN(const std::optional<Json> json, ReadObject(fs, path, &run.unknown));
  if (!json) return std::optional<RunFile>();
  run.id = Text(*json, "id");
  run.name = Text(*json, "name");
  run.chief = Text(*json, "chief");
  run.token = Text(*json, "token");
  run.epoch = Number(*json, "epoch", 0);
  if (run.epoch < 0 || run.epoch > kMaxEpoch) run.epoch = 0;
  run.since = Text(*json, "since");
  MR_RETURN_IF_ERROR(MustHave(path, "id", run.id));
  MR_RETURN_IF_ERROR(MustHave(path, "token", run.token));
  return std::optional<RunFile>(std::move(run));
}

Json JsonOf(const RunFile& run) {
  Json json = Base(run.unknown);
  json["id"] = run.id;
  json["name"] = run.name;
  json["chief"] = run.chief;
  json["token"] = run.token;
  json["epoch"] = run.epoch;
  json["since"] = run.since;
  return json;
}

}  // namespace

StatusOr<std::optional<RunFile>> ReadRunFile(FileSystem* fs, const std::string& directory) {
  return ReadRunIn(fs, RunFilePath(directory));
}

Status WriteRunFile(FileSystem* fs, const std::string& directory, const RunFile& run) {
  return Write(fs, RunFilePath(directory), JsonOf(run));
}

StatusOr<std::optional<RunFile>> ReadRunEpoch(FileSystem* fs, const std::string& directory,
                                              int64_t epoch) {
  return ReadRunIn(fs, EpochPath(directory, epoch));
}

Status ClaimRunEpoch(FileSystem* fs, const std::string& directory, const RunFile& run) {
  const std::string path = EpochPath(directory, run.epoch);
  MR_ASSIGN_OR_RETURN(const auto file, fs->NewExclusiveFile(path));
  const Status written = [&]() -> Status {
    MR_RETURN_IF_ERROR(file->Append(TextOf(JsonOf(run))));
    MR_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }();
  // Of nobody, then, and in nobody's way.
  if (!written.ok()) fs->DeleteFile(path).IgnoreError();
  return written;
}

StatusOr<int64_t> NewestRunEpoch(FileSystem* fs, const std::string& directory) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->GetChildren(directory));
  return NewestOf(names);
}

StatusOr<double> RunEpochTime(FileSystem* fs, const std::string& directory, int64_t epoch) {
  return fs->GetModificationTime(EpochPath(directory, epoch));
}

void SweepRunFiles(FileSystem* fs, const std::string& directory, int64_t epoch,
                   const std::string& token) {
  const auto names = fs->GetChildren(directory);
  // Nothing is an older one's when the caller is.
  if (!names.ok() || NewestOf(*names) > epoch) return;
  const std::string own_end = Basename(OwnEndPath(directory, token));
  for (const std::string& name : *names) {
    const int64_t of = EpochOf(name);
    const bool is_end = absl::StartsWith(name, kOwnEnd) && absl::EndsWith(name, kJson);
    if ((of > 0 && of < epoch) || (is_end && name != own_end)) {
      fs->DeleteFile(JoinPath(directory, name)).IgnoreError();
    }
  }
}

namespace {

// What one file says, whichever chief wrote it.
StatusOr<std::optional<RunEndFile>> ReadEndIn(FileSystem* fs, const std::string& directory,
                                              const std::string& path) {
  RunEndFile end;
  MR_ASSIGN_OR_RETURN(const std::optional<Json> json, ReadObject(fs, path, &end.unknown));
  if (!json) return std::optional<RunEndFile>();
  end.id = Text(*json, "id");
  end.token = Text(*json, "token");
  end.global_step = Number(*json, "global_step", -1);
  end.goal = Number(*json, "goal", 0);
  end.updates_after_checkpoint = std::max<int64_t>(Number(*json, "updates_after_checkpoint", 0), 0);
  end.reason = Text(*json, "reason");
  const std::string checkpoint = Text(*json, "checkpoint");
  if (!checkpoint.empty()) end.checkpoint = JoinPath(directory, checkpoint);
  MR_RETURN_IF_ERROR(MustHave(path, "id", end.id));
  MR_RETURN_IF_ERROR(MustHave(path, "token", end.token));
  return std::optional<RunEndFile>(std::move(end));
}

bool IsOf(const std::optional<RunEndFile>& end, const std::optional<RunFile>& run) {
  return end && run && run->id == end->id && run->token == end->token;
}

}  // namespace

StatusOr<std::optional<RunEndFile>> ReadRunEnd(FileSystem* fs, const std::string& directory) {
  const std::string path = RunEndFilePath(directory);
  MR_ASSIGN_OR_RETURN(std::optional<RunEndFile> end, ReadEndIn(fs, directory, path));
  if (!end) return end;
  // Afterwards: an owner that has come meanwhile is seen.
  MR_ASSIGN_OR_RETURN(const std::optional<RunFile> run, ReadRunFile(fs, directory));
  if (IsOf(end, run)) return end;
  if (!run) return std::optional<RunEndFile>();
  // An older owner's, or it was late and has replaced the newer one's.
  MR_ASSIGN_OR_RETURN(end, ReadEndIn(fs, directory, OwnEndPath(directory, run->token)));
  return IsOf(end, run) ? end : std::optional<RunEndFile>();
}

Status WriteRunEnd(FileSystem* fs, const std::string& directory, const RunEndFile& end) {
  Json json = Base(end.unknown);
  json["id"] = end.id;
  json["token"] = end.token;
  json["global_step"] = end.global_step;
  json["goal"] = end.goal;
  json["updates_after_checkpoint"] = end.updates_after_checkpoint;
  json["reason"] = end.reason;
  json["checkpoint"] =
      !end.checkpoint.empty() && Dirname(end.checkpoint) == Dirname(RunEndFilePath(directory))
          ? Basename(end.checkpoint)
          : end.checkpoint;
  MR_RETURN_IF_ERROR(Write(fs, OwnEndPath(directory, end.token), json));
  return Write(fs, RunEndFilePath(directory), json);
}

StatusOr<std::optional<RunSavesFile>> ReadRunSaves(FileSystem* fs, const std::string& directory) {
  const std::string path = SavesPath(directory);
  std::string text;
  MR_ASSIGN_OR_RETURN(const std::optional<Json> json, ReadObject(fs, path, &text));
  if (!json) return std::optional<RunSavesFile>();
  RunSavesFile saves;
  saves.id = Text(*json, "id");
  MR_RETURN_IF_ERROR(MustHave(path, "id", saves.id));
  const auto found = json->find("checkpoints");
  if (found == json->end() || !found->is_array()) return std::optional<RunSavesFile>(saves);
  for (const Json& one : *found) {
    if (!one.is_string() || saves.checkpoints.size() == kMaxRunSaves) continue;
    std::string name = one.get<std::string>();
    if (IsNameInDirectory(name)) saves.checkpoints.push_back(std::move(name));
  }
  return std::optional<RunSavesFile>(std::move(saves));
}

Status WriteRunSaves(FileSystem* fs, const std::string& directory, const RunSavesFile& saves) {
  Json names = Json::array();
  const size_t first = saves.checkpoints.size() - std::min(saves.checkpoints.size(), kMaxRunSaves);
  for (size_t i = first; i < saves.checkpoints.size(); ++i) names.push_back(saves.checkpoints[i]);
  const Json json = {{"id", saves.id}, {"checkpoints", std::move(names)}};
  // A save waits for it: a power failure may cost what it says, a killed process does not.
  const std::string path = SavesPath(directory);
  const std::string temporary = absl::StrCat(path, ".tmp", RandomHexName());
  const Status written = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const auto file, fs->NewExclusiveFile(temporary));
    MR_RETURN_IF_ERROR(file->Append(TextOf(json)));
    MR_RETURN_IF_ERROR(file->Close());
    return fs->RenameFile(temporary, path);
  }();
  if (!written.ok()) fs->DeleteFile(temporary).IgnoreError();
  return written;
}

}  // namespace millrace
