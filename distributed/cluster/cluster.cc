// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/cluster.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "distributed/cluster/slurm_environment.h"
#include "formats/json_nesting.h"
#include "proto/cluster.pb.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr char kChief[] = "chief";
constexpr char kMaster[] = "master";
constexpr char kWorker[] = "worker";
constexpr char kEvaluator[] = "evaluator";

// A value from outside, fit for a message of one line.
std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxLength = 100;
  const bool cut = text.size() > kMaxLength;
  return absl::StrCat("'", absl::CEscape(text.substr(0, kMaxLength)), cut ? "...'" : "'");
}

// Where a parser gave up, and what it had read last, so that a long text shows the place: `byte`
// counts from 1, and is one behind the end when the text ends too early.
std::string PlaceOf(size_t byte, absl::string_view text) {
  constexpr size_t kMaxLength = 60;
  const absl::string_view read = text.substr(0, byte);
  const size_t newline = read.rfind('\n');
  const size_t column = newline == absl::string_view::npos ? byte : byte - newline - 1;
  const size_t begin = read.size() - std::min(read.size(), kMaxLength);
  return absl::StrCat("byte ", byte, " (line ", 1 + std::count(read.begin(), read.end(), '\n'),
                      ", column ", column, "), after '", begin > 0 ? "..." : "",
                      absl::CEscape(read.substr(begin)), "'");
}

std::string Dump(const Json& value) {
  return Quoted(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool IsJobName(absl::string_view name) {
  if (name.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(name[0]))) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  return true;
}

bool IsAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  const absl::string_view host = address.substr(0, colon);
  // "::1:80" could be read in two ways: an IPv6 host is written in brackets.
  if (host.find(':') != absl::string_view::npos && (host.front() != '[' || host.back() != ']')) {
    return false;
  }
  for (const char c : host) {
    if (absl::ascii_isspace(static_cast<unsigned char>(c)) || c == '/' || c == ',' || c == ';') {
      return false;
    }
  }
  const absl::string_view port = address.substr(colon + 1);
  if (port.empty() || port.size() > 5) return false;
  for (const char c : port) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  int number = 0;
  return absl::SimpleAtoi(port, &number) && number <= 65535;
}

using Jobs = std::map<std::string, std::map<int, std::string>>;

// `where` names the source: "ClusterSpec", "TF_CONFIG: cluster".
Status CheckJobs(absl::string_view where, const Jobs& jobs) {
  std::map<std::string, std::string> seen;  // address -> the task that has it
  for (const auto& [job, tasks] : jobs) {
    if (!IsJobName(job)) {
      return InvalidArgument(where,
                             ": a job's name must be a letter followed by letters, digits or '_', ",
                             "got ", Quoted(job));
    }
    for (const auto& [task, address] : tasks) {
      const std::string who = absl::StrCat(job, "[", task, "]");
      if (task < 0) {
        return InvalidArgument(where, ": a task's number must be >= 0, got ", who);
      }
      if (!IsAddress(address)) {
        return InvalidArgument(where, ": the address of ", who, " must be host:port, got ",
                               Quoted(address));
      }
      const auto [it, fresh] = seen.emplace(address, who);
      if (!fresh) {
        return InvalidArgument(where, ": addresses must be unique, got ", Quoted(address), " for ",
                               it->second, " and ", who);
      }
    }
  }
  return absl::OkStatus();
}

// `where` names the source in messages, here and below: "TF_CONFIG".
StatusOr<Json> ParseJson(absl::string_view where, absl::string_view text) {
  // The library keeps the last of several equal keys; a second "master" must not vanish.
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const std::string key = value.get<std::string>();
      if (!keys.back().insert(key).second && duplicate.empty()) duplicate = key;
    }
    return true;
  };
  if (const int nesting = JsonNesting(text); nesting > kMaxJsonNesting) {
    return InvalidArgument(where, ": values must be nested at most ", kMaxJsonNesting,
                           " deep, got ", nesting);
  }
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& error) {
    return InvalidArgument(where, ": must be JSON, got an error at ", PlaceOf(error.byte, text));
  } catch (const Json::exception&) {  // a number that no double holds
    return InvalidArgument(where, ": must be JSON with numbers that can be read, got ",
                           Quoted(text));
  }
  if (!duplicate.empty()) {
    return InvalidArgument(where, ": a key must be given once, got ", Quoted(duplicate), " twice");
  }
  if (!json.is_object()) return InvalidArgument(where, ": must be a JSON object, got ", Dump(json));
  return json;
}

// An integer, or one in text; -1 for anything else.
int64_t IndexOf(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    return number > INT32_MAX ? -1 : static_cast<int64_t>(number);
  }
  int64_t number = -1;
  if (value.is_string() && absl::SimpleAtoi(value.get<std::string>(), &number) &&
      number <= INT32_MAX) {
    return number;
  }
  return -1;
}

StatusOr<Jobs> ParseCluster(absl::string_view where, const Json& cluster) {
  Jobs jobs;
  for (const auto& [job, tasks] : cluster.items()) {
    const std::string field = absl::StrCat(where, Quoted(job));
    if (!tasks.is_array() && !tasks.is_object()) {
      return InvalidArgument(field, " must be a list of addresses, got ", Dump(tasks));
    }
    std::map<int, std::string>& addresses = jobs[job];
    int64_t next = 0;
    for (const auto& [key, address] : tasks.items()) {
      if (!address.is_string()) {
        return InvalidArgument(field, "[", Quoted(key), "] must be host:port, got ", Dump(address));
      }
      const int64_t task = tasks.is_array() ? next++ : IndexOf(Json(key));
      if (task < 0) {
        return InvalidArgument(field, ": a task's number must be an integer >= 0, got ",
                               Quoted(key));
      }
      if (!addresses.emplace(static_cast<int>(task), address.get<std::string>()).second) {
        return InvalidArgument(field, ": each task must be given once, got ", task, " twice");
      }
    }
    if (addresses.empty()) jobs.erase(job);
  }
  return jobs;
}

tensorflow::ClusterDef ToDef(const Jobs& jobs) {
  tensorflow::ClusterDef def;
  for (const auto& [job, tasks] : jobs) {
    tensorflow::JobDef* const out = def.add_job();
    out->set_name(job);
    for (const auto& [task, address] : tasks) (*out->mutable_tasks())[task] = address;
  }
  return def;
}

Status CheckRoles(const Jobs& jobs) {
  for (const char* chief : {kChief, kMaster}) {
    const auto it = jobs.find(chief);
    if (it != jobs.end() && it->second.size() != 1) {
      return InvalidArgument("TF_CONFIG: cluster.", chief, " must have exactly 1 task, got ",
                             it->second.size());
    }
  }
  if (jobs.count(kChief) != 0 && jobs.count(kMaster) != 0) {
    return InvalidArgument("TF_CONFIG: cluster must have either 'chief' or 'master', got both");
  }
  if (jobs.count(kChief) + jobs.count(kMaster) + jobs.count(kWorker) == 0) {
    std::vector<std::string> names;
    for (const auto& [job, tasks] : jobs) names.push_back(job);
    return InvalidArgument("TF_CONFIG: cluster must have a chief, master or worker task, got only ",
                           absl::StrJoin(names, ", "));
  }
  return absl::OkStatus();
}

StatusOr<TfConfigExtras> ParseExtras(const Json& json) {
  TfConfigExtras extras;
  for (const auto& [key, field] : {std::pair<const char*, std::optional<std::string>*>{
                                       "session_master", &extras.session_master},
                                   {"eval_session_master", &extras.eval_session_master},
                                   {"model_dir", &extras.model_dir},
                                   {"environment", &extras.environment}}) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) continue;
    if (!found->is_string()) {
      return InvalidArgument("TF_CONFIG: ", key, " must be a text, got ", Dump(*found));
    }
    *field = found->get<std::string>();
  }
  const auto service = json.find("service");
  if (service == json.end() || service->is_null()) return extras;
  if (!service->is_object()) {
    return InvalidArgument("TF_CONFIG: service must be an object, got ", Dump(*service));
  }
  for (const auto& [name, value] : service->items()) {
    extras.service[name] = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return extras;
}

// Without a cluster there is one task; another one was meant for a cluster that is missing.
Status CheckLocalTask(const Json& json) {
  const auto task = json.find("task");
  if (task == json.end() || task->is_null()) return absl::OkStatus();
  if (!task->is_object()) {
    return InvalidArgument("TF_CONFIG: task must be an object with type and index, got ",
                           Dump(*task));
  }
  const auto type = task->find("type");
  if (type != task->end() && !(type->is_string() && type->get<std::string>() == kWorker)) {
    return InvalidArgument("TF_CONFIG: task.type must be 'worker' without a cluster, got ",
                           type->is_string() ? Quoted(type->get<std::string>()) : Dump(*type),
                           "; give the cluster to every task");
  }
  const auto index = task->find("index");
  if (index != task->end() && IndexOf(*index) != 0) {
    return InvalidArgument("TF_CONFIG: task.index must be 0 without a cluster, got ", Dump(*index));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<ClusterSpec> ClusterSpec::Make(
    const std::map<std::string, std::vector<std::string>>& jobs) {
  ClusterSpec spec;
  for (const auto& [job, addresses] : jobs) {
    std::map<int, std::string>& tasks = spec.jobs_[job];
    for (size_t i = 0; i < addresses.size(); ++i) tasks[static_cast<int>(i)] = addresses[i];
  }
  MR_RETURN_IF_ERROR(CheckJobs("ClusterSpec", spec.jobs_));
  return spec;
}

StatusOr<ClusterSpec> ClusterSpec::FromProto(const tensorflow::ClusterDef& def) {
  ClusterSpec spec;
  for (const tensorflow::JobDef& job : def.job()) {
    const auto [it, fresh] = spec.jobs_.emplace(job.name(), std::map<int, std::string>());
    if (!fresh) {
      return InvalidArgument("ClusterSpec: each job must be given once, got ", Quoted(job.name()),
                             " twice");
    }
    for (const auto& [task, address] : job.tasks()) it->second[task] = address;
  }
  MR_RETURN_IF_ERROR(CheckJobs("ClusterSpec", spec.jobs_));
  return spec;
}

StatusOr<ClusterSpec> ClusterSpec::Parse(absl::string_view json, absl::string_view where) {
  ClusterSpec spec;
  MR_ASSIGN_OR_RETURN(const Json cluster, ParseJson(where, json));
  MR_ASSIGN_OR_RETURN(spec.jobs_, ParseCluster(absl::StrCat(where, ": "), cluster));
  MR_RETURN_IF_ERROR(CheckJobs(where, spec.jobs_));
  spec.jobs_.erase(kEvaluator);  // as in TF_CONFIG
  return spec;
}

tensorflow::ClusterDef ClusterSpec::ToProto() const { return ToDef(jobs_); }

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

std::vector<int> ClusterSpec::tasks(absl::string_view job) const {
  std::vector<int> numbers;
  const auto it = jobs_.find(std::string(job));
  if (it == jobs_.end()) return numbers;
  for (const auto& [task, address] : it->second) numbers.push_back(task);
  return numbers;
}

int ClusterSpec::num_tasks(absl::string_view job) const {
  return static_cast<int>(tasks(job).size());
}

StatusOr<std::string> ClusterSpec::address(absl::string_view job, int task) const {
  const auto it = jobs_.find(std::string(job));
  if (it != jobs_.end()) {
    const auto found = it->second.find(task);
    if (found != it->second.end()) return found->second;
  }
  return absl::NotFoundError(absl::StrCat("ClusterSpec: task ", task, " of job ", Quoted(job),
                                          " must be in the cluster, got jobs ",
                                          absl::StrJoin(jobs(), ", ")));
}

StatusOr<ClusterConfig> ClusterConfig::Parse(absl::string_view text) {
  ClusterConfig config;
  if (absl::StripAsciiWhitespace(text).empty()) return config;
  MR_ASSIGN_OR_RETURN(const Json json, ParseJson("TF_CONFIG", text));
  MR_ASSIGN_OR_RETURN(config.extras_, ParseExtras(json));
  const auto cluster = json.find("cluster");
  if (cluster == json.end() || cluster->is_null()) {
    MR_RETURN_IF_ERROR(CheckLocalTask(json));
    return config;
  }
  if (!cluster->is_object()) {
    return InvalidArgument("TF_CONFIG: cluster must be an object, got ", Dump(*cluster));
  }
  MR_ASSIGN_OR_RETURN(Jobs jobs, ParseCluster("TF_CONFIG: cluster.", *cluster));
  MR_RETURN_IF_ERROR(CheckJobs("TF_CONFIG: cluster", jobs));
  // Some launchers list the evaluator, which nobody may dial or count.
  jobs.erase(kEvaluator);
  if (jobs.empty()) {
    MR_RETURN_IF_ERROR(CheckLocalTask(json));
    return config;
  }
  MR_RETURN_IF_ERROR(CheckRoles(jobs));

  const auto task = json.find("task");
  if (task == json.end() || !task->is_object()) {
    return InvalidArgument("TF_CONFIG: task must be an object with type and index, got ",
                           task == json.end() ? "none" : Dump(*task));
  }
  const auto type = task->find("type");
  if (type == task->end() || !type->is_string()) {
    return InvalidArgument("TF_CONFIG: task.type must be a job's name, got ",
                           type == task->end() ? "none" : Dump(*type));
  }
  config.job_ = type->get<std::string>();
  MR_ASSIGN_OR_RETURN(config.cluster_, ClusterSpec::FromProto(ToDef(jobs)));
  const std::vector<std::string> names = config.cluster_.jobs();
  if (config.job_ != kEvaluator && config.cluster_.num_tasks(config.job_) == 0) {
    return InvalidArgument("TF_CONFIG: task.type must be one of ", absl::StrJoin(names, ", "),
                           " or evaluator, got ", Quoted(config.job_));
  }
  const auto index = task->find("index");
  const int64_t number = index == task->end() ? -1 : IndexOf(*index);
  if (number < 0) {
    return InvalidArgument("TF_CONFIG: task.index must be an integer >= 0, got ",
                           index == task->end() ? "none" : Dump(*index));
  }
  config.task_ = static_cast<int>(number);
  if (config.job_ != kEvaluator && !config.cluster_.address(config.job_, config.task_).ok()) {
    const std::vector<int> tasks = config.cluster_.tasks(config.job_);
    const bool dense = tasks.back() == static_cast<int>(tasks.size()) - 1;
    return InvalidArgument("TF_CONFIG: task.index must be ",
                           dense ? absl::StrCat("in [0,", tasks.back(), "]")
                                 : absl::StrCat("one of ", absl::StrJoin(tasks, ", ")),
                           " for job '", config.job_, "', got ", number);
  }
  return config;
}

StatusOr<ClusterConfig> ClusterConfig::FromEnvironment() {
  MR_ASSIGN_OR_RETURN(const std::string text, TextOfEnvironment());
  return Parse(text);
}

StatusOr<std::string> ClusterConfig::TextOfEnvironment() {
  const auto get = [](const char* name) -> const char* { return std::getenv(name); };
  const char* const text = get("TF_CONFIG");
  if (text != nullptr && !absl::StripAsciiWhitespace(text).empty()) return std::string(text);
  MR_ASSIGN_OR_RETURN(const bool wants_slurm, WantsSlurm(get));
  if (wants_slurm) return TfConfigOfSlurm(get);
  return std::string();
}

bool ClusterConfig::is_chief() const {
  if (is_local() || job_ == kChief || job_ == kMaster) return true;
  if (job_ != kWorker) return false;
  if (cluster_.num_tasks(kChief) + cluster_.num_tasks(kMaster) > 0) return false;
  return task_ == cluster_.tasks(kWorker).front();
}

std::string ClusterConfig::task_device() const {
  return is_local() ? std::string() : absl::StrCat("/job:", job_, "/task:", task_);
}

}  // namespace millrace
