// SPDX-License-Identifier: Apache-2.0
#include "tools/job_state.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/version.h"
#include "formats/json_nesting.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Phase = JobState::Phase;

constexpr int kFormat = 1;
constexpr uint64_t kMaxStateBytes = 8 << 20;  // of a thousand tasks: 1 MB

constexpr std::pair<Phase, absl::string_view> kPhases[] = {
    {Phase::kPreparing, "PREPARING"}, {Phase::kQueued, "QUEUED"},
    {Phase::kRunning, "RUNNING"},     {Phase::kStopping, "STOPPING"},
    {Phase::kSucceeded, "SUCCEEDED"}, {Phase::kFailed, "FAILED"},
    {Phase::kStopped, "STOPPED"},     {Phase::kLost, "LOST"}};

// Of a file in /proc, which has no size; "" without it.
std::string ProcText(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::string HostName() {
  utsname name = {};
  return uname(&name) == 0 ? name.nodename : "";
}

std::string BootId() {
  return std::string(absl::StripAsciiWhitespace(ProcText("/proc/sys/kernel/random/boot_id")));
}

// The 22nd field of /proc/<pid>/stat, when the process started; 0 for none. The second field, the
// program's name, may have blanks and brackets.
int64_t StartTicks(int pid) {
  const std::string stat = ProcText(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kField = 22 - 3;
  int64_t ticks = 0;
  if (fields.size() <= kField || !absl::SimpleAtoi(fields[kField], &ticks)) return 0;
  // A zombie is gone: its parent has not looked yet.
  return fields[0] == "Z" ? 0 : ticks;
}

nlohmann::ordered_json TimeJson(const std::optional<absl::Time>& time) {
  if (!time) return nullptr;
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", *time, absl::UTCTimeZone());
}

// Reads the fields of an object, each with its type or null; the first mistake stays.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  void Get(const char* key, std::string* text) {
    if (const Json* value = Find(key, &Json::is_string)) *text = value->get<std::string>();
  }
  void Get(const char* key, std::vector<std::string>* texts) {
    const Json* const value = Find(key, &Json::is_array);
    if (value == nullptr) return;
    for (const Json& item : *value) {
      if (!item.is_string()) return Fail(key);
      texts->push_back(item.get<std::string>());
    }
  }
  void Get(const char* key, int64_t* number) {
    if (const Json* value = Find(key, &Json::is_number_integer)) *number = value->get<int64_t>();
  }
  void Get(const char* key, int* number) {
    int64_t wide = *number;
    Get(key, &wide);
    if (wide < INT32_MIN || wide > INT32_MAX) return Fail(key);
    *number = static_cast<int>(wide);
  }
  void Get(const char* key, std::optional<int>* number) {
    int value = INT32_MIN;
    Get(key, &value);
    if (value != INT32_MIN) *number = value;
  }
  void Get(const char* key, std::optional<absl::Time>* time) {
    std::string text;
    Get(key, &text);
    if (text.empty()) return;
    absl::Time value;
    if (!absl::ParseTime(absl::RFC3339_full, text, &value, nullptr)) return Fail(key);
    *time = value;
  }
  const Status& status() const { return status_; }

 private:
  const Json* Find(const char* key, bool (Json::*is)() const noexcept) {
    const auto it = json_.find(key);
    if (it == json_.end() || it->is_null()) return nullptr;
    if (((*it).*is)()) return &*it;
    Fail(key);
    return nullptr;
  }
  void Fail(const char* key) {
    if (status_.ok()) {
      status_ = absl::DataLossError(absl::StrCat(where_, ": '", key, "' must be of its type"));
    }
  }

  const Json& json_;
  const std::string where_;
  Status status_;
};

}  // namespace

ProcessIdentity ProcessIdentity::OfThisProcess() {
  return {.host = HostName(),
          .boot_id = BootId(),
          .pid = getpid(),
          .start_ticks = StartTicks(getpid())};
}

bool ProcessIdentity::is_of_this_machine() const {
  return host == HostName() && boot_id == BootId();
}

bool ProcessIdentity::is_alive() const {
  if (pid <= 0 || start_ticks == 0) return false;
  return StartTicks(pid) == start_ticks;
}

absl::string_view PhaseName(Phase phase) {
  for (const auto& [one, name] : kPhases) {
    if (one == phase) return name;
  }
  return "";
}

Phase JobState::seen_phase() const {
  if (is_over() || supervisor.pid == 0 || !supervisor.is_of_this_machine()) return phase;
  return supervisor.is_alive() ? phase : Phase::kLost;
}

std::string JobState::text() const {
  const Phase seen = seen_phase();
  std::string text(PhaseName(seen));
  if (seen == Phase::kLost || (!is_over() && supervisor.pid != 0)) {
    absl::StrAppend(&text, " on ", supervisor.host, ", pid ", supervisor.pid);
  }
  if (!backend_id.empty()) absl::StrAppend(&text, ", ", backend, " job ", backend_id);
  return text;
}

nlohmann::ordered_json ToJson(const JobState& state) {
  return {{"format", kFormat},
          {"millrace_version", kVersion},
          {"name", state.name},
          {"id", state.id},
          {"attempt", state.attempt},
          {"state", std::string(PhaseName(state.phase))},
          {"why", state.why},
          {"exit_code", state.exit_code ? Json(*state.exit_code) : Json()},
          {"backend", state.backend},
          {"backend_id", state.backend_id},
          {"scale_tier", state.tier},
          {"command", state.command},
          {"job_dir", state.job_dir},
          {"log_dir", state.log_dir},
          {"host", state.supervisor.host},
          {"boot_id", state.supervisor.boot_id},
          {"supervisor_pid", state.supervisor.pid},
          {"supervisor_start_ticks", state.supervisor.start_ticks},
          {"submitted", TimeJson(state.submitted)},
          {"started", TimeJson(state.started)},
          {"updated", TimeJson(state.updated)},
          {"ended", TimeJson(state.ended)},
          {"tasks", ToJson(state.tasks)}};
}

StatusOr<JobState> JobStateFromJson(absl::string_view text, const std::string& where) {
  const auto wrong = [&where](absl::string_view rule) {
    return absl::DataLossError(absl::StrCat(where, ": ", rule));
  };
  if (JsonNesting(text) > kMaxJsonNesting) return wrong("must be a job's state, got deep nesting");
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return wrong("must be a job's state, got no JSON object");
  JobState state;
  Fields fields(json, where);
  int format = 0;
  std::string phase;
  fields.Get("format", &format);
  fields.Get("name", &state.name);
  fields.Get("id", &state.id);
  fields.Get("attempt", &state.attempt);
  fields.Get("state", &phase);
  fields.Get("why", &state.why);
  fields.Get("exit_code", &state.exit_code);
  fields.Get("backend", &state.backend);
  fields.Get("backend_id", &state.backend_id);
  fields.Get("scale_tier", &state.tier);
  fields.Get("command", &state.command);
  fields.Get("job_dir", &state.job_dir);
  fields.Get("log_dir", &state.log_dir);
  fields.Get("host", &state.supervisor.host);
  fields.Get("boot_id", &state.supervisor.boot_id);
  fields.Get("supervisor_pid", &state.supervisor.pid);
  fields.Get("supervisor_start_ticks", &state.supervisor.start_ticks);
  fields.Get("submitted", &state.submitted);
  fields.Get("started", &state.started);
  fields.Get("updated", &state.updated);
  fields.Get("ended", &state.ended);
  MR_RETURN_IF_ERROR(fields.status());
  if (format != kFormat) {
    return wrong(absl::StrCat("format must be ", kFormat, ", got ", format,
                              "; another release has written it"));
  }
  bool known = false;
  for (const auto& [one, name] : kPhases) {
    if (phase != name) continue;
    state.phase = one;
    known = true;
  }
  if (!known) return wrong(absl::StrCat("state must be one of a job, got '", phase, "'"));
  const auto tasks = json.find("tasks");
  if (tasks != json.end()) {
    StatusOr<std::vector<TaskRecord>> records =
        TaskRecordsFromJson(*tasks, absl::StrCat(where, ": tasks"));
    if (!records.ok()) return absl::DataLossError(records.status().message());
    state.tasks = *std::move(records);
  }
  return state;
}

std::string JobFolder(const std::string& job_dir) { return JoinPath(job_dir, "job"); }
std::string JobStatePath(const std::string& job_dir) {
  return JoinPath(JobFolder(job_dir), "state.json");
}
std::string JobStopPath(const std::string& job_dir, const std::string& id) {
  return JoinPath(JobFolder(job_dir), absl::StrCat("stop-", id));
}
std::string JobKillPath(const std::string& job_dir, const std::string& id) {
  return JoinPath(JobFolder(job_dir), absl::StrCat("kill-", id));
}

StatusOr<JobState> ReadJobState(FileSystem* files, const std::string& job_dir) {
  const std::string path = JobStatePath(job_dir);
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(files, path, kMaxStateBytes));
  MR_ASSIGN_OR_RETURN(JobState state, JobStateFromJson(text, absl::StrCat("File '", path, "'")));
  // Where it was found counts: it may be mounted elsewhere on this machine.
  absl::string_view log_dir = state.log_dir;
  if (absl::ConsumePrefix(&log_dir, absl::StrCat(state.job_dir, "/"))) {
    state.log_dir = JoinPath(job_dir, log_dir);
  }
  state.job_dir = job_dir;
  return state;
}

Status WriteJobState(FileSystem* files, const JobState& state) {
  const std::string text =
      absl::StrCat(ToJson(state).dump(2, ' ', false, Json::error_handler_t::replace), "\n");
  return WriteFileAtomically(files, JobStatePath(state.job_dir), text);
}

}  // namespace millrace
