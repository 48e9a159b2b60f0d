// SPDX-License-Identifier: Apache-2.0
#include "graph/place/placer.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/logging.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/missing_op_hint.h"
#include "graph/node_body.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

constexpr absl::string_view kLocationPrefix = "loc:@";
// Devices listed in one message.
constexpr size_t kMaxListed = 16;

struct Device {
  const DeviceInfo* info;
  DeviceName name;
};

// Nodes that go to one device: mostly one node, so its lists are inline.
struct Group {
  absl::InlinedVector<Node*, 1> members;  // in id order
  // What the members ask for together, and the member that asked first.
  DeviceName request;
  const Node* asked_by = nullptr;
  // The device that a member has already; empty while the group may choose.
  std::string pinned;
  const Node* pinned_by = nullptr;
  // Indices into the sorted list of devices; the first is the choice.
  absl::InlinedVector<int, 1> candidates;
  const std::string* device = nullptr;  // the name in its DeviceInfo
};

int TypePriority(absl::string_view type) {
  if (type == "GPU") return 210;
  if (type == "CPU") return 70;
  return 100;
}

// As TensorFlow has it: not a ShapeN, which has several outputs.
bool IsMetadata(const Node& node) {
  return node.traits().describes_shape && node.num_outputs() == 1;
}

bool IsGenerator(const Node& node) {
  return node.num_inputs() == 0 && node.num_outputs() == 1 && !IsRef(node.output_type(0));
}

// The input makes the node share state with its source.
bool SharesState(const Node& node, int i) {
  const OutputRef& input = node.input(i);
  if (input.node == nullptr) return false;
  const DType from = input.node->output_type(input.index);
  const DType to = node.input_type(i);
  return (IsRef(from) && IsRef(to)) || (from == DT_RESOURCE && to == DT_RESOURCE);
}

bool UsesStateOfAnother(const Node& node) {
  for (int i = 0; i < node.num_inputs(); ++i) {
    if (SharesState(node, i)) return true;
  }
  return false;
}

Status CannotAssign(const Node& node, absl::string_view why) {
  return InvalidArgument("Cannot assign a device for operation ", node.name(), ": ", why);
}

// One call of PlaceGraph.
class Placer {
 public:
  Placer(Graph* graph, const KernelSupport* kernels, const PlacementOptions& options)
      : graph_(graph), kernels_(kernels), options_(options) {}

  Status Run(absl::Span<const DeviceInfo> devices);

 private:
  Status SortDevices(absl::Span<const DeviceInfo> devices);
  Status FormGroups();
  Status CollectRequests(Group* group);
  Status Pin(Group* group, const Node& node, const std::string& device);
  Status FindCandidates(Group* group);
  void FollowInputs();
  void FollowConsumers();
  void Assign();

  // Asks once for each body and type.
  bool Supports(const Node& node, const std::string& type) {
    if (kernels_ == nullptr) return true;
    auto [it, first] = supports_.try_emplace({node.body().get(), type}, false);
    if (first) it->second = kernels_->HasKernel(node.def(), type);
    return it->second;
  }
  Status NoKernel(const Node& node) const;
  std::string DeviceList() const;
  StatusOr<DeviceName> Parsed(const Node& node, const std::string& device);

  int Find(int id) {
    while (parent_[static_cast<size_t>(id)] != id) {
      int& p = parent_[static_cast<size_t>(id)];
      p = parent_[static_cast<size_t>(p)];
      id = p;
    }
    return id;
  }
  // The lower id becomes the root, so that groups are in the order of their first members.
  void Unite(int a, int b) {
    a = Find(a);
    b = Find(b);
    if (a != b) parent_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }
  Group& GroupOf(const Node& node) {
    return groups_[static_cast<size_t>(group_of_[static_cast<size_t>(node.id())])];
  }

  Graph* const graph_;
  const KernelSupport* const kernels_;
  const PlacementOptions& options_;
  std::vector<Device> devices_;  // best first
  std::vector<std::string> types_;
  std::vector<int> parent_;    // union-find over node ids
  std::vector<int> group_of_;  // by node id
  std::vector<Group> groups_;
  // Names in _class that no node of the graph has.
  HashMap<int, std::string> pinned_by_absent_;  // root id -> device
  HashMap<std::string, DeviceName> parsed_;
  HashMap<std::pair<const NodeBody*, std::string>, bool> supports_;
  int missing_gpu_ = 0;
  const Node* first_missing_gpu_ = nullptr;
};

StatusOr<DeviceName> Placer::Parsed(const Node& node, const std::string& device) {
  auto it = parsed_.find(device);
  if (it != parsed_.end()) return it->second;
  StatusOr<DeviceName> name = DeviceName::Parse(device);
  if (!name.ok()) return CannotAssign(node, name.status().message());
  parsed_.emplace(device, *name);
  return name;
}

Status Placer::SortDevices(absl::Span<const DeviceInfo> devices) {
  if (devices.empty()) {
    return absl::InvalidArgumentError("Placement: devices must not be empty, got none");
  }
  for (const DeviceInfo& info : devices) {
    MR_ASSIGN_OR_RETURN(DeviceName name, DeviceName::Parse(info.name));
    if (!name.IsFull() || *name.type != info.type) {
      return InvalidArgument("Placement: device '", info.name, "' must have a full name of type ",
                             info.type, ", got '", name.ToString(), "'");
    }
    devices_.push_back(Device{&info, std::move(name)});
  }
  MR_ASSIGN_OR_RETURN(const DeviceName preferred,
                      DeviceName::Parse(options_.default_device.empty() ? devices[0].name
                                                                        : options_.default_device));
  const auto key = [&preferred](const Device& d) {
    return std::make_tuple(-TypePriority(*d.name.type), !(d.name == preferred),
                           !d.name.IsSameTask(preferred), *d.name.job, *d.name.replica,
                           *d.name.task, *d.name.type, *d.name.id);
  };
  std::stable_sort(devices_.begin(), devices_.end(),
                   [&key](const Device& a, const Device& b) { return key(a) < key(b); });
  for (const Device& d : devices_) {
    if (std::find(types_.begin(), types_.end(), *d.name.type) == types_.end()) {
      types_.push_back(*d.name.type);
    }
  }
  return absl::OkStatus();
}

std::string Placer::DeviceList() const {
  std::vector<std::string> names;
  for (const Device& d : devices_) {
    if (names.size() == kMaxListed) {
      names.push_back(absl::StrCat("... (", devices_.size(), " in all)"));
      break;
    }
    names.push_back(d.info->name);
  }
  return absl::StrCat("[ ", absl::StrJoin(names, ", "), " ]");
}

Status Placer::FormGroups() {
  parent_.resize(static_cast<size_t>(graph_->num_node_ids()));
  std::iota(parent_.begin(), parent_.end(), 0);
  HashMap<std::string, int> absent;  // class name -> a node of that class
  for (const auto& node : graph_->nodes()) {
    if (node == nullptr) continue;
    if (HasAttr(*node, "_class")) {
      MR_ASSIGN_OR_RETURN(const std::vector<std::string> classes,
                          GetAttr<std::vector<std::string>>(*node, "_class"));
      for (absl::string_view location : classes) {
        if (!absl::ConsumePrefix(&location, kLocationPrefix)) continue;
        if (const Node* other = graph_->FindNode(location)) {
          Unite(node->id(), other->id());
        } else {
          auto [it, first] = absent.emplace(std::string(location), node->id());
          if (!first) Unite(node->id(), it->second);
        }
      }
    }
    for (int i = 0; i < node->num_inputs(); ++i) {
      if (SharesState(*node, i)) Unite(node->id(), node->input(i).node->id());
    }
  }
  group_of_.assign(parent_.size(), -1);
  groups_.reserve(static_cast<size_t>(std::count_if(
      graph_->nodes().begin(), graph_->nodes().end(),
      [&](const auto& node) { return node != nullptr && Find(node->id()) == node->id(); })));
  for (const auto& node : graph_->nodes()) {
    if (node == nullptr) continue;
    const size_t root = static_cast<size_t>(Find(node->id()));
    if (group_of_[root] < 0) {
      group_of_[root] = static_cast<int>(groups_.size());
      groups_.emplace_back();
    }
    group_of_[static_cast<size_t>(node->id())] = group_of_[root];
    groups_[static_cast<size_t>(group_of_[root])].members.push_back(node.get());
  }
  if (options_.stateful_placements != nullptr) {
    for (const auto& [name, id] : absent) {
      auto it = options_.stateful_placements->find(name);
      if (it != options_.stateful_placements->end()) pinned_by_absent_[Find(id)] = it->second;
    }
  }
  return absl::OkStatus();
}

Status Placer::Pin(Group* group, const Node& node, const std::string& device) {
  MR_ASSIGN_OR_RETURN(const DeviceName name, Parsed(node, device));
  if (!group->pinned.empty()) {
    MR_ASSIGN_OR_RETURN(const DeviceName pinned, Parsed(node, group->pinned));
    if (pinned == name) return absl::OkStatus();
    return InvalidArgument("Stateful placement mismatch. Current assignment of ", node.name(),
                           " to ", device, " does not match ", group->pinned, " of ",
                           group->pinned_by->name(), ", with which it shares state");
  }
  group->pinned = device;
  group->pinned_by = &node;
  return absl::OkStatus();
}

Status Placer::CollectRequests(Group* group) {
  const StatefulPlacements* placed = options_.stateful_placements;
  for (const Node* node : group->members) {
    if (!node->assigned_device().empty()) {
      MR_RETURN_IF_ERROR(Pin(group, *node, node->assigned_device()));
    }
    if (placed != nullptr && node->is_stateful()) {
      auto it = placed->find(node->name());
      if (it != placed->end()) MR_RETURN_IF_ERROR(Pin(group, *node, it->second));
    }
  }
  const Node& first = *group->members[0];
  auto absent = pinned_by_absent_.find(Find(first.id()));
  if (absent != pinned_by_absent_.end() && group->pinned.empty()) {
    MR_RETURN_IF_ERROR(Pin(group, first, absent->second));
  }

  // Owners of state and nodes that share none first: their requests bind.
  for (const bool binding : {true, false}) {
    for (const Node* node : group->members) {
      if (UsesStateOfAnother(*node) == binding || node->requested_device().empty()) continue;
      MR_ASSIGN_OR_RETURN(const DeviceName asked, Parsed(*node, node->requested_device()));
      if (!binding && !group->pinned.empty()) {
        MR_ASSIGN_OR_RETURN(const DeviceName pinned, Parsed(*group->pinned_by, group->pinned));
        if (!pinned.Matches(asked)) continue;
      }
      const Status status = group->request.Intersect(asked, options_.allow_soft_placement);
      if (status.ok()) {
        if (group->asked_by == nullptr) group->asked_by = node;
        continue;
      }
      if (!binding) {
        if (options_.log_device_placement) {
          LogInfo(node->name(), ": its request '", node->requested_device(),
                  "' gives way to where its state is, '", group->request.ToString(), "'");
        }
        continue;
      }
      return CannotAssign(
          *node, absl::StrCat("it must be on one device with '", group->asked_by->name(),
                              "', which asks for '", group->request.ToString(),
                              "', but it asks for '", node->requested_device(), "' itself"));
    }
  }
  return absl::OkStatus();
}

Status Placer::NoKernel(const Node& node) const {
  std::string attrs;
  for (const auto& [name, value] : node.def().attr()) {
    if (value.value_case() == tensorflow::AttrValue::kType && name[0] != '_') {
      absl::StrAppend(&attrs, attrs.empty() ? " (" : ", ", name, "=",
                      DTypeName(static_cast<DType>(value.type())));
    }
  }
  if (!attrs.empty()) attrs += ")";
  const std::string known = kernels_->DescribeKernels(node.op());
  return Unimplemented("Op '", node.op(), "' of node '", node.name(),
                       "' has no kernel registered for device type ", absl::StrJoin(types_, " or "),
                       attrs, "; registered kernels: ", known.empty() ? "none" : known,
                       MissingOpHint(node));
}

Status Placer::FindCandidates(Group* group) {
  const Node& first = *group->members[0];
  // Device types on which every member has a kernel.
  std::vector<std::string> types;
  for (const std::string& type : types_) {
    bool all = true;
    for (const Node* node : group->members) all = all && Supports(*node, type);
    if (all) types.push_back(type);
  }
  if (types.empty()) {
    for (const Node* node : group->members) {
      bool any = false;
      for (const std::string& type : types_) any = any || Supports(*node, type);
      if (!any) return NoKernel(*node);
    }
    std::vector<std::string> names;
    for (const Node* node : group->members) {
      if (names.size() < kMaxListed) names.push_back(node->name());
    }
    return CannotAssign(first, absl::StrCat("no device type has kernels for all nodes that must be "
                                            "on one device, got ",
                                            absl::StrJoin(names, ", ")));
  }
  const auto search = [&](const DeviceName& request) {
    absl::InlinedVector<int, 1> found;
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (!devices_[i].name.Matches(request)) continue;
      if (std::find(types.begin(), types.end(), *devices_[i].name.type) == types.end()) continue;
      found.push_back(static_cast<int>(i));
    }
    return found;
  };

  if (!group->pinned.empty()) {
    MR_ASSIGN_OR_RETURN(const DeviceName pinned, Parsed(*group->pinned_by, group->pinned));
    group->candidates = search(pinned);
    if (group->candidates.size() != 1) {
      return CannotAssign(*group->pinned_by,
                          absl::StrCat("it has been placed on '", group->pinned,
                                       "', but available devices are ", DeviceList()));
    }
    const DeviceName& device = devices_[static_cast<size_t>(group->candidates[0])].name;
    DeviceName task_request = group->request.Task();
    const bool moves = options_.allow_soft_placement ? !device.Matches(task_request)
                                                     : !device.Matches(group->request);
    if (moves && group->asked_by != nullptr) {
      return InvalidArgument("Stateful placement mismatch. Current assignment of ",
                             group->pinned_by->name(), " to ", group->pinned, " does not match ",
                             group->request.ToString(), ", which ", group->asked_by->name(),
                             " asks for");
    }
    return absl::OkStatus();
  }

  group->candidates = search(group->request);
  if (group->candidates.empty() && options_.allow_soft_placement) {
    group->candidates = search(group->request.Task());
    if (!group->candidates.empty() && group->request.type == "GPU") {
      for (const Node* node : group->members) {
        if (!absl::StrContains(node->requested_device(), "GPU") &&
            !absl::StrContains(node->requested_device(), "gpu")) {
          continue;
        }
        if (first_missing_gpu_ == nullptr) first_missing_gpu_ = node;
        ++missing_gpu_;
      }
    }
  }
  if (!group->candidates.empty()) return absl::OkStatus();

  const Node& asker = group->asked_by == nullptr ? first : *group->asked_by;
  bool exists = false;
  for (const Device& d : devices_) exists = exists || d.name.Matches(group->request);
  const std::string asked = group->request.ToString();
  if (exists) {
    for (const Node* node : group->members) {
      if (group->request.type && !Supports(*node, *group->request.type)) {
        return CannotAssign(
            *node, absl::StrCat("it was explicitly assigned to ", asked, ", but op '", node->op(),
                                "' has no kernel for device type ", *group->request.type,
                                "; registered kernels are for ", absl::StrJoin(types, ", ")));
      }
    }
  }
  return CannotAssign(
      asker,
      absl::StrCat("it was explicitly assigned to ", asked, " but available devices are ",
                   DeviceList(), ". Make sure the device specification refers to a valid device."));
}

void Placer::FollowInputs() {
  for (Group& group : groups_) {
    if (group.members.size() != 1 || !group.pinned.empty()) continue;
    const Node& node = *group.members[0];
    if (!IsMetadata(node) || node.num_inputs() != 1 || node.input(0).node == nullptr) continue;
    const std::string* const wanted = GroupOf(*node.input(0).node).device;
    for (int candidate : group.candidates) {
      if (&devices_[static_cast<size_t>(candidate)].info->name == wanted) group.device = wanted;
    }
  }
}

void Placer::FollowConsumers() {
  for (Group& group : groups_) {
    if (group.members.size() != 1 || !group.pinned.empty()) continue;
    const Node& node = *group.members[0];
    if (!IsGenerator(node) || node.out_edges().empty()) continue;
    const std::string* const wanted = GroupOf(*(*node.out_edges().begin()).dst).device;
    bool all = true;
    for (const Edge& edge : node.out_edges()) all = all && GroupOf(*edge.dst).device == wanted;
    if (!all) continue;
    for (int candidate : group.candidates) {
      if (&devices_[static_cast<size_t>(candidate)].info->name == wanted) group.device = wanted;
    }
  }
}

void Placer::Assign() {
  for (const auto& node : graph_->nodes()) {
    if (node == nullptr) continue;
    const std::string& device = *GroupOf(*node).device;
    node->set_assigned_device(device);
    if (options_.log_device_placement) LogInfo(node->name(), ": (", node->op(), "): ", device);
    if (options_.stateful_placements != nullptr && node->is_stateful()) {
      options_.stateful_placements->emplace(node->name(), device);
    }
  }
  bool* const warned = options_.warned_of_missing_gpu;
  if (first_missing_gpu_ != nullptr && (warned == nullptr || !*warned)) {
    if (warned != nullptr) *warned = true;
    LogWarning(missing_gpu_, missing_gpu_ == 1 ? " node asks" : " nodes ask",
               " for a GPU that does not exist or cannot run the op ('", first_missing_gpu_->name(),
               "' is the first); placed on CPU, as soft placement allows");
  }
}

Status Placer::Run(absl::Span<const DeviceInfo> devices) {
  MR_RETURN_IF_ERROR(SortDevices(devices));
  MR_RETURN_IF_ERROR(FormGroups());
  for (Group& group : groups_) {
    MR_RETURN_IF_ERROR(CollectRequests(&group));
    MR_RETURN_IF_ERROR(FindCandidates(&group));
    group.device = &devices_[static_cast<size_t>(group.candidates[0])].info->name;
  }
  FollowInputs();
  FollowConsumers();
  Assign();
  return absl::OkStatus();
}

}  // namespace

Status PlaceGraph(Graph* graph, absl::Span<const DeviceInfo> devices, const KernelSupport* kernels,
                  const PlacementOptions& options) {
  return Placer(graph, kernels, options).Run(devices);
}

}  // namespace millrace
