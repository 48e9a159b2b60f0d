// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/slurm_environment.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "distributed/cluster/host_list.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxPort = 65'535;
constexpr int kMaxTasks = 65'536;
constexpr int kMaxGroups = 128;  // of a heterogeneous job, as in Slurm

// A variable that is set, and its name for messages.
struct Variable {
  std::string name;
  std::string value;
};

class Environment {
 public:
  explicit Environment(EnvironmentLookup get) : get_(get) {}

  // The first of these that is set to something.
  std::optional<Variable> Find(std::initializer_list<absl::string_view> names) const {
    for (const absl::string_view name : names) {
      const std::string text(name);
      const char* const value = get_(text.c_str());
      if (value != nullptr && *value != '\0') return Variable{text, value};
    }
    return std::nullopt;
  }
  StatusOr<Variable> Get(std::initializer_list<absl::string_view> names) const {
    std::optional<Variable> variable = Find(names);
    if (variable) return *std::move(variable);
    return InvalidArgument("MILLRACE_CLUSTER=slurm: ", *names.begin(),
                           " must be set, got nothing; is this a task of srun?");
  }
  StatusOr<std::optional<int>> FindInt(std::initializer_list<absl::string_view> names, int low,
                                       int high) const {
    const std::optional<Variable> variable = Find(names);
    if (!variable) return std::optional<int>();
    int number = 0;
    if (!absl::SimpleAtoi(variable->value, &number) || number < low || number > high) {
      return InvalidArgument(variable->name, ": must be an integer in [", low, ", ", high,
                             "], got '", absl::CHexEscape(variable->value), "'");
    }
    return std::optional<int>(number);
  }
  StatusOr<int> GetInt(std::initializer_list<absl::string_view> names, int low, int high) const {
    MR_RETURN_IF_ERROR(Get(names).status());
    MR_ASSIGN_OR_RETURN(const std::optional<int> number, FindInt(names, low, high));
    return *number;
  }

 private:
  const EnvironmentLookup get_;
};

// Hosts that one distribution of tasks goes over.
struct Group {
  std::vector<std::string> hosts;
  std::vector<int> tasks;  // of each

  int num_tasks() const { return std::accumulate(tasks.begin(), tasks.end(), 0); }
};

// The places of tasks, by rank.
struct Place {
  std::string host;
  int node = 0;
  int slot = 0;  // number of the task on its host
};

StatusOr<Group> ReadGroup(const Variable& hosts, const Variable& counts) {
  Group group;
  MR_ASSIGN_OR_RETURN(group.hosts, ExpandHostList(hosts.value, hosts.name));
  MR_ASSIGN_OR_RETURN(group.tasks, ExpandTaskCounts(counts.value, counts.name));
  const bool is_one_for_all = counts.name == "SLURM_NTASKS_PER_NODE";
  if (is_one_for_all && group.tasks.size() == 1) {
    group.tasks.resize(group.hosts.size(), group.tasks[0]);
  }
  if (group.tasks.size() != group.hosts.size()) {
    return InvalidArgument(counts.name, ": must be of the ", group.hosts.size(), " hosts of ",
                           hosts.name, " ('", hosts.value, "'), got ", group.tasks.size(), " ('",
                           counts.value, "')");
  }
  return group;
}

StatusOr<std::vector<Group>> ReadGroups(const Environment& environment, bool by_mpirun, int size) {
  MR_ASSIGN_OR_RETURN(const std::optional<int> groups,
                      environment.FindInt({"SLURM_HET_SIZE", "SLURM_PACK_SIZE"}, 1, kMaxGroups));
  if (groups.value_or(1) > 1 && !by_mpirun) {
    const bool old = !environment.Find({"SLURM_HET_SIZE"});
    std::vector<Group> result;
    int tasks = 0;
    for (int i = 0; i < *groups; ++i) {
      const std::string suffix = absl::StrCat(old ? "_PACK_GROUP_" : "_HET_GROUP_", i);
      MR_ASSIGN_OR_RETURN(const Variable hosts, environment.Get({"SLURM_JOB_NODELIST" + suffix,
                                                                 "SLURM_NODELIST" + suffix}));
      MR_ASSIGN_OR_RETURN(const Variable counts,
                          environment.Get({"SLURM_TASKS_PER_NODE" + suffix}));
      MR_ASSIGN_OR_RETURN(Group group, ReadGroup(hosts, counts));
      tasks += group.num_tasks();
      result.push_back(std::move(group));
    }
    // The lists of a step of all groups are sorted by host: ranks go through the groups.
    if (tasks == size) return result;
  }
  if (!by_mpirun) {
    MR_ASSIGN_OR_RETURN(
        const Variable hosts,
        environment.Get({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}));
    MR_ASSIGN_OR_RETURN(const Variable counts,
                        environment.Get({"MILLRACE_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE",
                                         "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"}));
    MR_ASSIGN_OR_RETURN(Group group, ReadGroup(hosts, counts));
    return std::vector<Group>{std::move(group)};
  }
  MR_ASSIGN_OR_RETURN(const Variable hosts,
                      environment.Get({"SLURM_JOB_NODELIST", "SLURM_NODELIST"}));
  if (const auto counts = environment.Find({"MILLRACE_TASKS_PER_NODE"})) {
    MR_ASSIGN_OR_RETURN(Group group, ReadGroup(hosts, *counts));
    return std::vector<Group>{std::move(group)};
  }
  // A daemon of mpirun has the counts of its own step: they are right only if they add up.
  if (const auto counts = environment.Find({"SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"})) {
    StatusOr<Group> group = ReadGroup(hosts, *counts);
    if (group.ok() && group->num_tasks() == size) return std::vector<Group>{*std::move(group)};
  }
  Group group;
  MR_ASSIGN_OR_RETURN(group.hosts, ExpandHostList(hosts.value, hosts.name));
  MR_ASSIGN_OR_RETURN(const int local,
                      environment.GetInt({"OMPI_COMM_WORLD_LOCAL_SIZE"}, 1, kMaxTasks));
  group.tasks.resize(group.hosts.size(), local);
  return std::vector<Group>{std::move(group)};
}

// The order of ranks over hosts: how many follow each other on one host.
StatusOr<int> TasksInTurn(const Environment& environment, size_t num_groups) {
  // Each task sees the distribution of its own group, which srun chooses by its size.
  if (num_groups > 1) return kMaxTasks;
  const std::optional<Variable> distribution = environment.Find({"SLURM_DISTRIBUTION"});
  if (!distribution) return kMaxTasks;
  // "block:cyclic,nopack": the first part is about hosts.
  const std::string kind =
      std::vector<std::string>(absl::StrSplit(distribution->value, absl::ByAnyChar(":,=")))[0];
  if (kind == "block" || kind == "*" || kind == "unknown") return kMaxTasks;
  if (kind == "cyclic") return 1;
  if (kind == "plane") return environment.GetInt({"SLURM_DIST_PLANESIZE"}, 1, kMaxTasks);
  return InvalidArgument("SLURM_DISTRIBUTION: must begin with block, cyclic or plane, got '",
                         absl::CHexEscape(distribution->value), "'");
}

std::vector<Place> PlacesOf(const std::vector<Group>& groups, int in_turn) {
  std::vector<Place> places;
  int first_node = 0;  // of the group
  for (const Group& group : groups) {
    std::vector<int> used(group.hosts.size(), 0);
    for (int left = group.num_tasks(); left > 0;) {
      for (size_t node = 0; node < group.hosts.size(); ++node) {
        for (int i = 0; i < in_turn && used[node] < group.tasks[node]; ++i, --left) {
          places.push_back({group.hosts[node], first_node + static_cast<int>(node), used[node]++});
        }
      }
    }
    first_node += static_cast<int>(group.hosts.size());
  }
  return places;
}

// Components of a heterogeneous job may share a host: their tasks are numbered there together.
void NumberTogether(std::vector<Place>* places) {
  std::map<std::string, int> used;
  for (Place& place : *places) place.slot = used[place.host]++;
}

StatusOr<std::vector<int>> ReadPorts(const Environment& environment, int slots) {
  std::vector<int> ports;
  if (const auto reserved = environment.Find({"SLURM_STEP_RESV_PORTS"})) {
    for (const absl::string_view part : absl::StrSplit(reserved->value, ',')) {
      const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
      int first = 0, last = 0;
      if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
          !absl::SimpleAtoi(ends.back(), &last) || first < 1 || last < first || last > kMaxPort) {
        return InvalidArgument("SLURM_STEP_RESV_PORTS: must be ports and ranges of ports, got '",
                               absl::CHexEscape(reserved->value), "'");
      }
      for (int port = first; port <= last; ++port) ports.push_back(port);
    }
    if (static_cast<int>(ports.size()) < slots) {
      return InvalidArgument("SLURM_STEP_RESV_PORTS: must have a port for each of the ", slots,
                             " tasks of a host, got ", ports.size(), "; srun --resv-ports=", slots);
    }
    return ports;
  }
  MR_ASSIGN_OR_RETURN(const std::optional<int> base,
                      environment.FindInt({"MILLRACE_PORT"}, 1, kMaxPort));
  const int first = base.value_or(kSlurmPort);
  if (first + slots - 1 > kMaxPort) {
    return InvalidArgument("MILLRACE_PORT: must leave a port for each of the ", slots,
                           " tasks of a host, got ", first);
  }
  for (int slot = 0; slot < slots; ++slot) ports.push_back(first + slot);
  return ports;
}

// How many tasks have which role.
struct Roles {
  std::string chief = "chief";
  int evaluators = 0;
  int ps = 0;

  // The job and index of a rank.
  std::pair<std::string, int> Of(int rank) const {
    if (rank == 0) return {chief, 0};
    if (rank <= evaluators) return {"evaluator", rank - 1};
    const int behind = rank - 1 - evaluators;
    if (behind < ps) return {"ps", behind};
    return {"worker", behind - ps};
  }
};

StatusOr<Roles> ReadRoles(const Environment& environment, int size) {
  Roles roles;
  MR_ASSIGN_OR_RETURN(const std::optional<int> ps,
                      environment.FindInt({"MILLRACE_PS_TASKS"}, 0, kMaxTasks));
  MR_ASSIGN_OR_RETURN(const std::optional<int> evaluators,
                      environment.FindInt({"MILLRACE_EVALUATOR_TASKS"}, 0, 1));
  if (const auto chief = environment.Find({"MILLRACE_CHIEF_JOB"})) roles.chief = chief->value;
  if (roles.chief != "chief" && roles.chief != "master") {
    return InvalidArgument("MILLRACE_CHIEF_JOB: must be 'chief' or 'master', got '",
                           absl::CHexEscape(roles.chief), "'");
  }
  if (!ps && size > 1) {
    return InvalidArgument("MILLRACE_PS_TASKS: must say how many of the ", size,
                           " tasks are parameter servers, got nothing; 0 is none");
  }
  roles.ps = ps.value_or(0);
  roles.evaluators = evaluators.value_or(0);
  if (roles.ps + roles.evaluators >= size) {
    return InvalidArgument("MILLRACE_PS_TASKS: must leave a trainer of the ", size, " tasks, got ",
                           roles.ps, " ps and ", roles.evaluators, " evaluators");
  }
  return roles;
}

// What Slurm says of this task has to be what was computed.
Status CheckPlace(const Environment& environment, const Place& place, int rank, bool by_mpirun) {
  MR_ASSIGN_OR_RETURN(const std::optional<int> local,
                      by_mpirun ? environment.FindInt({"OMPI_COMM_WORLD_LOCAL_RANK"}, 0, kMaxTasks)
                                : environment.FindInt({"SLURM_LOCALID"}, 0, kMaxTasks));
  const char* const name = by_mpirun ? "OMPI_COMM_WORLD_LOCAL_RANK" : "SLURM_LOCALID";
  const char* const hint =
      "; ranks must go over the hosts as SLURM_DISTRIBUTION says, block without it and in a "
      "heterogeneous job";
  if (local && *local != place.slot) {
    return InvalidArgument(name, ": must be ", place.slot, " for rank ", rank, " on host '",
                           place.host, "', got ", *local, hint);
  }
  if (by_mpirun) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::optional<int> node,
                      environment.FindInt({"SLURM_NODEID"}, 0, kMaxTasks));
  if (node && *node != place.node) {
    return InvalidArgument("SLURM_NODEID: must be ", place.node, " for rank ", rank, " on host '",
                           place.host, "', got ", *node, hint);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<bool> WantsSlurm(EnvironmentLookup get) {
  const char* const value = get("MILLRACE_CLUSTER");
  if (value == nullptr || *value == '\0') return false;
  if (absl::string_view(value) == "slurm") return true;
  return InvalidArgument("MILLRACE_CLUSTER: must be 'slurm' or not set, got '",
                         absl::CHexEscape(value), "'");
}

StatusOr<std::string> TfConfigOfSlurm(EnvironmentLookup get) {
  const Environment environment(get);
  const bool by_mpirun = environment.Find({"OMPI_COMM_WORLD_RANK"}).has_value();
  int size = 0, rank = 0;
  if (by_mpirun) {
    MR_ASSIGN_OR_RETURN(size, environment.GetInt({"OMPI_COMM_WORLD_SIZE"}, 1, kMaxTasks));
    MR_ASSIGN_OR_RETURN(rank, environment.GetInt({"OMPI_COMM_WORLD_RANK"}, 0, size - 1));
  } else {
    MR_ASSIGN_OR_RETURN(
        size,
        environment.GetInt({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}, 1, kMaxTasks));
    MR_ASSIGN_OR_RETURN(rank, environment.GetInt({"SLURM_PROCID"}, 0, size - 1));
  }
  MR_ASSIGN_OR_RETURN(const Roles roles, ReadRoles(environment, size));
  if (size == 1) return std::string();
  if (!by_mpirun && !environment.Find({"SLURM_STEP_ID", "SLURM_STEPID"})) {
    return InvalidArgument("MILLRACE_CLUSTER=slurm: a program of ", size,
                           " tasks must be started by srun, got one of the batch script itself "
                           "(SLURM_STEP_ID is not set)");
  }
  MR_ASSIGN_OR_RETURN(const std::vector<Group> groups, ReadGroups(environment, by_mpirun, size));
  MR_ASSIGN_OR_RETURN(const int in_turn, TasksInTurn(environment, groups.size()));
  std::vector<Place> places = PlacesOf(groups, in_turn);
  if (static_cast<int>(places.size()) != size) {
    return InvalidArgument(by_mpirun ? "OMPI_COMM_WORLD_SIZE" : "SLURM_NTASKS",
                           ": must be the tasks of all hosts together, ", places.size(), ", got ",
                           size);
  }
  MR_RETURN_IF_ERROR(CheckPlace(environment, places[static_cast<size_t>(rank)], rank, by_mpirun));
  NumberTogether(&places);
  int slots = 0;
  for (const Place& place : places) slots = std::max(slots, place.slot + 1);
  MR_ASSIGN_OR_RETURN(const std::vector<int> ports, ReadPorts(environment, slots));

  Json cluster = Json::object();
  for (int i = 0; i < size; ++i) {
    const auto& [job, index] = roles.Of(i);
    if (job == "evaluator") continue;  // in no cluster
    const Place& place = places[static_cast<size_t>(i)];
    cluster[job].push_back(absl::StrCat(place.host, ":", ports[static_cast<size_t>(place.slot)]));
  }
  const auto& [job, index] = roles.Of(rank);
  const Json config = {{"cluster", cluster}, {"task", {{"type", job}, {"index", index}}}};
  return config.dump();
}

}  // namespace millrace
