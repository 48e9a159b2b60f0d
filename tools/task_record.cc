// SPDX-License-Identifier: Apache-2.0
#include "tools/task_record.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr std::pair<TaskRecord::State, absl::string_view> kStates[] = {
    {TaskRecord::State::kWaiting, "waiting"},
    {TaskRecord::State::kRunning, "running"},
    {TaskRecord::State::kEnded, "ended"}};

absl::string_view StateName(TaskRecord::State state) {
  for (const auto& [one, name] : kStates) {
    if (one == state) return name;
  }
  return "";
}

nlohmann::ordered_json NumberOrNull(const std::optional<int>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

Status ReadNumber(const Json& task, const char* key, const std::string& where,
                  std::optional<int>* number) {
  const auto it = task.find(key);
  if (it == task.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_number_integer() || *it < INT32_MIN || *it > INT32_MAX) {
    return InvalidArgument(where, ".", key, " must be an integer or null");
  }
  *number = it->get<int>();
  return absl::OkStatus();
}

Status ReadText(const Json& task, const char* key, const std::string& where, std::string* text) {
  const auto it = task.find(key);
  if (it == task.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_string()) return InvalidArgument(where, ".", key, " must be a text");
  *text = it->get<std::string>();
  return absl::OkStatus();
}

StatusOr<TaskRecord> RecordFromJson(const Json& task, const std::string& where) {
  if (!task.is_object()) return InvalidArgument(where, " must be an object");
  TaskRecord record;
  std::optional<int> index, starts;
  MR_RETURN_IF_ERROR(ReadText(task, "job", where, &record.job));
  MR_RETURN_IF_ERROR(ReadNumber(task, "index", where, &index));
  MR_RETURN_IF_ERROR(ReadText(task, "address", where, &record.address));
  MR_RETURN_IF_ERROR(ReadNumber(task, "pid", where, &record.pid));
  MR_RETURN_IF_ERROR(ReadNumber(task, "starts", where, &starts));
  MR_RETURN_IF_ERROR(ReadNumber(task, "exit_code", where, &record.exit_code));
  MR_RETURN_IF_ERROR(ReadNumber(task, "signal", where, &record.signal));
  MR_RETURN_IF_ERROR(ReadText(task, "why", where, &record.why));
  record.index = index.value_or(0);
  record.starts = starts.value_or(0);
  const auto seconds = task.find("seconds");
  if (seconds != task.end() && seconds->is_number()) record.seconds = seconds->get<double>();
  std::string state;
  MR_RETURN_IF_ERROR(ReadText(task, "state", where, &state));
  for (const auto& [one, name] : kStates) {
    if (state == name) {
      record.state = one;
      return record;
    }
  }
  return InvalidArgument(where, ".state must be waiting, running or ended, got '", state, "'");
}

}  // namespace

nlohmann::ordered_json ToJson(const std::vector<TaskRecord>& tasks) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const TaskRecord& task : tasks) {
    json.push_back({{"task", absl::StrCat(task.job, " ", task.index)},
                    {"job", task.job},
                    {"index", task.index},
                    {"address", task.address.empty() ? nlohmann::ordered_json()
                                                     : nlohmann::ordered_json(task.address)},
                    {"state", std::string(StateName(task.state))},
                    {"pid", NumberOrNull(task.pid)},
                    {"starts", task.starts},
                    {"seconds", std::round(task.seconds * 1000) / 1000},
                    {"exit_code", NumberOrNull(task.exit_code)},
                    {"signal", NumberOrNull(task.signal)},
                    {"why", task.why}});
  }
  return json;
}

StatusOr<std::vector<TaskRecord>> TaskRecordsFromJson(const Json& json, const std::string& where) {
  if (!json.is_array()) return InvalidArgument(where, " must be a list of tasks");
  std::vector<TaskRecord> tasks;
  for (size_t i = 0; i < json.size(); ++i) {
    MR_ASSIGN_OR_RETURN(TaskRecord task, RecordFromJson(json[i], absl::StrCat(where, "[", i, "]")));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace millrace
