// SPDX-License-Identifier: Apache-2.0
#include "estimator/evaluation_done.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "formats/json_nesting.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxBytes = 64 << 10;

}  // namespace

bool HasLastCheckpointOf(const EvaluationDone& done, const RunEndFile& end) {
  return done.id == end.id && !done.checkpoint.empty() &&
         done.checkpoint == Basename(end.checkpoint);
}

StatusOr<std::optional<EvaluationDone>> ReadEvaluationDone(FileSystem* fs,
                                                           const std::string& model_dir) {
  const std::string path = JoinPath(model_dir, kEvaluationDoneFile);
  const StatusOr<std::string> text = ReadFileToString(fs, path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return std::optional<EvaluationDone>();
  if (!text.ok()) return text.status();
  const Json json = JsonNesting(*text) > kMaxJsonNesting
                        ? Json(Json::value_t::discarded)
                        : Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
  if (!json.is_object() || !is_text("id") || !is_text("checkpoint") ||
      !json.contains("global_step") || !json["global_step"].is_number_integer()) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' must say id, global_step and checkpoint of an evaluation"));
  }
  return std::optional<EvaluationDone>(
      EvaluationDone{.id = json["id"].get<std::string>(),
                     .global_step = json["global_step"].get<int64_t>(),
                     .checkpoint = json["checkpoint"].get<std::string>()});
}

Status WriteEvaluationDone(FileSystem* fs, const std::string& model_dir,
                           const EvaluationDone& done) {
  const Json json = {
      {"id", done.id}, {"global_step", done.global_step}, {"checkpoint", done.checkpoint}};
  return WriteFileAtomically(fs, JoinPath(model_dir, kEvaluationDoneFile),
                             json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace millrace
