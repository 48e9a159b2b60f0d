// SPDX-License-Identifier: Apache-2.0
#include "estimator/tf_config.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "distributed/cluster/cluster.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kFlags[] = {"ps_hosts",        "worker_hosts", "chief_hosts",
                                        "evaluator_hosts", "evaluator",    "worker_type",
                                        "worker_index",    "ps_tasks"};

std::vector<std::string> Hosts(const std::string& text) {
  std::vector<std::string> hosts;
  for (absl::string_view host : absl::StrSplit(text, absl::ByAnyChar(";,"))) {
    host = absl::StripAsciiWhitespace(host);
    if (!host.empty()) hosts.emplace_back(host);
  }
  return hosts;
}

// The flags that are there, by their names with '_'; takes them out of the arguments.
StatusOr<std::map<std::string, std::string>> TakeFlags(int* argc, char** argv) {
  std::map<std::string, std::string> given;
  int kept = std::min(*argc, 1);
  for (int i = kept; i < *argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--") {  // what follows is nobody's flag
      for (; i < *argc; ++i) argv[kept++] = argv[i];
      break;
    }
    absl::string_view rest = argument;
    const bool is_flag = absl::ConsumePrefix(&rest, "-");
    absl::ConsumePrefix(&rest, "-");
    const size_t equals = rest.find('=');
    const std::string name = absl::StrReplaceAll(rest.substr(0, equals), {{"-", "_"}});
    if (!is_flag || std::find(std::begin(kFlags), std::end(kFlags), name) == std::end(kFlags)) {
      argv[kept++] = argv[i];
      continue;
    }
    if (given.count(name) > 0) {
      return InvalidArgument("--", name, ": must be given once, got it twice");
    }
    if (equals != absl::string_view::npos) {
      given[name] = std::string(rest.substr(equals + 1));
    } else if (i + 1 < *argc) {
      given[name] = argv[++i];
    } else {
      return InvalidArgument("--", name, ": must have a value, got none");
    }
  }
  if (kept < *argc) argv[kept] = nullptr;
  *argc = kept;
  return given;
}

}  // namespace

Status SetTfConfigFromFlags(int* argc, char** argv) {
  MR_ASSIGN_OR_RETURN(auto given, TakeFlags(argc, argv));
  if (const auto ps_tasks = given.find("ps_tasks"); ps_tasks != given.end()) {
    int number = 0;
    if (!absl::SimpleAtoi(ps_tasks->second, &number) || number < 0) {
      return InvalidArgument("--ps_tasks: must be an integer >= 0, got '", ps_tasks->second, "'");
    }
    if (setenv("MILLRACE_PS_TASKS", ps_tasks->second.c_str(), 1) != 0) {
      return Internal("MILLRACE_PS_TASKS: cannot be set");
    }
    given.erase(ps_tasks);
  }
  if (given.empty()) return absl::OkStatus();
  Json cluster = Json::object();
  for (const char* job : {"ps", "worker", "chief"}) {
    const std::vector<std::string> hosts = Hosts(given[absl::StrCat(job, "_hosts")]);
    if (!hosts.empty()) cluster[job] = hosts;
  }
  const std::string type = given["worker_type"];
  if (type.empty()) {
    return InvalidArgument("--worker_type: must be ps, worker, chief or evaluator, got none");
  }
  // The evaluator is one task: its number may be left out.
  const std::string index =
      type == "evaluator" && given["worker_index"].empty() ? "0" : given["worker_index"];
  int number = 0;
  if (!absl::SimpleAtoi(index, &number) || number < 0) {
    return InvalidArgument("--worker_index: must be an integer >= 0, got ",
                           index.empty() ? "none" : absl::StrCat("'", index, "'"));
  }
  const Json config = {{"cluster", cluster}, {"task", {{"type", type}, {"index", number}}}};
  const std::string text = config.dump(-1, ' ', false, Json::error_handler_t::replace);
  MR_RETURN_IF_ERROR(ClusterConfig::Parse(text).status());
  if (setenv("TF_CONFIG", text.c_str(), 1) != 0) return Internal("TF_CONFIG: cannot be set");
  return absl::OkStatus();
}

StatusOr<std::string> MasterAsChief(absl::string_view tf_config) {
  if (absl::StripAsciiWhitespace(tf_config).empty()) return std::string(tf_config);
  // Whatever is wrong with it is said as it stands; an evaluator next to a master is right here.
  MR_RETURN_IF_ERROR(ClusterConfig::Parse(tf_config).status());
  Json json = Json::parse(tf_config.begin(), tf_config.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("TF_CONFIG: must be a JSON object");
  const auto cluster = json.find("cluster");
  if (cluster == json.end() || !cluster->is_object() || !cluster->contains("master")) {
    return std::string(tf_config);
  }
  (*cluster)["chief"] = (*cluster)["master"];
  cluster->erase("master");
  const auto task = json.find("task");
  if (task != json.end() && task->is_object() && task->value("type", Json()) == Json("master")) {
    (*task)["type"] = "chief";
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace millrace
