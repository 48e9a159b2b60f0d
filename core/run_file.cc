// SPDX-License-Identifier: Apache-2.0
#include "core/run_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/json_nesting.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

// A bound against files that are none of these.
constexpr uint64_t kMaxBytes = 64 << 10;

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

Status Write(FileSystem* fs, const std::string& path, const Json& json) {
  // Names of files may be no UTF-8.
  return WriteFileAtomically(fs, path,
                             json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
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

StatusOr<std::optional<RunFile>> ReadRunFile(FileSystem* fs, const std::string& directory) {
  const std::string path = RunFilePath(directory);
  RunFile run;
  MR_ASSIGN_OR_RETURN(const std::optional<Json> json, ReadObject(fs, path, &run.unknown));
  if (!json) return std::optional<RunFile>();
  run.id = Text(*json, "id");
  run.name = Text(*json, "name");
  run.chief = Text(*json, "chief");
  run.token = Text(*json, "token");
  run.epoch = Number(*json, "epoch", 0);
  run.since = Text(*json, "since");
  MR_RETURN_IF_ERROR(MustHave(path, "id", run.id));
  MR_RETURN_IF_ERROR(MustHave(path, "token", run.token));
  return std::optional<RunFile>(std::move(run));
}

Status WriteRunFile(FileSystem* fs, const std::string& directory, const RunFile& run) {
  Json json = Base(run.unknown);
  json["id"] = run.id;
  json["name"] = run.name;
  json["chief"] = run.chief;
  json["token"] = run.token;
  json["epoch"] = run.epoch;
  json["since"] = run.since;
  return Write(fs, RunFilePath(directory), json);
}

StatusOr<std::optional<RunEndFile>> ReadRunEnd(FileSystem* fs, const std::string& directory) {
  const std::string path = RunEndFilePath(directory);
  RunEndFile end;
  MR_ASSIGN_OR_RETURN(const std::optional<Json> json, ReadObject(fs, path, &end.unknown));
  if (!json) return std::optional<RunEndFile>();
  end.id = Text(*json, "id");
  end.token = Text(*json, "token");
  end.global_step = Number(*json, "global_step", -1);
  end.goal = Number(*json, "goal", 0);
  end.reason = Text(*json, "reason");
  const std::string checkpoint = Text(*json, "checkpoint");
  if (!checkpoint.empty()) end.checkpoint = JoinPath(directory, checkpoint);
  MR_RETURN_IF_ERROR(MustHave(path, "id", end.id));
  MR_RETURN_IF_ERROR(MustHave(path, "token", end.token));
  // Afterwards: an owner that has come meanwhile is seen.
  MR_ASSIGN_OR_RETURN(const std::optional<RunFile> run, ReadRunFile(fs, directory));
  if (!run || run->id != end.id || run->token != end.token) return std::optional<RunEndFile>();
  return std::optional<RunEndFile>(std::move(end));
}

Status WriteRunEnd(FileSystem* fs, const std::string& directory, const RunEndFile& end) {
  Json json = Base(end.unknown);
  json["id"] = end.id;
  json["token"] = end.token;
  json["global_step"] = end.global_step;
  json["goal"] = end.goal;
  json["reason"] = end.reason;
  json["checkpoint"] =
      !end.checkpoint.empty() && Dirname(end.checkpoint) == Dirname(RunEndFilePath(directory))
          ? Basename(end.checkpoint)
          : end.checkpoint;
  return Write(fs, RunEndFilePath(directory), json);
}

}  // namespace millrace
