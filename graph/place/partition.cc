// SPDX-License-Identifier: Apache-2.0
#include "graph/place/partition.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/copy.h"
#include "graph/frames.h"
#include "graph/place/control_loops.h"
#include "graph/place/waves.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

StatusOr<std::string> LocationOf(const Node& node, const PartitionOptions& options) {
  std::string location = options.node_to_loc ? options.node_to_loc(node) : node.assigned_device();
  if (location.empty() || node.assigned_device().empty()) {
    return InvalidArgument("Partition: node '", node.name(), "' must have been placed, got no ",
                           location.empty() ? "location" : "device");
  }
  return location;
}

class Partitioner {
 public:
  Partitioner(const Graph& graph, const PartitionOptions& options)
      : graph_(graph), options_(options) {}

  StatusOr<GraphPartitions> Run();

 private:
  struct Place {
    Graph* graph = nullptr;
    int location = 0;
    Node* copy = nullptr;
  };
  // The _Recv (or what is behind it: an Identity, a Cast) in a partition that stands for something
  // made elsewhere: an output of a node, or (sources, kControlSlot).
  // Node ids, output, destination location, whether it is rounded.
  using CutKey = std::tuple<std::vector<int>, int, int, bool>;

  Status CopyNodes();
  Status ConnectInputs(const Node& node);
  Status ConnectControls(const Node& node);
  // Lets `recv`, which receives something of `src` for `dst`, run in the iterations that have it.
  Status PinToLoop(const Node& src, const Node& dst, Node* recv);
  StatusOr<Node*> Received(const Node& src, int output, const Node& dst, int dst_input);
  // Does a tensor lose bits on its way to `dst` at another location?
  bool IsRounded(const Node& src, int output, const Node& dst) const;
  StatusOr<Node*> AddSendRecv(const Node& src, Node* sent, int output, const Node& dst, int wave);
  // Casts output `output` of `from` to `type` where `near` is.
  StatusOr<Node*> AddCast(Node* from, int output, DType type, const Node& near,
                          absl::string_view prefix);
  // Gives `*def` a name and a device.
  StatusOr<Node*> Add(Graph* graph, const Node& near, absl::string_view prefix,
                      tensorflow::NodeDef* def);

  Place& PlaceOf(const Node& node) { return places_[static_cast<size_t>(node.id())]; }
  int WaveOf(const Node& node) const {
    return waves_.empty() ? kNoWave : waves_[static_cast<size_t>(node.id())];
  }
  uint64_t Incarnation(const std::string& device) const {
    return options_.get_incarnation ? options_.get_incarnation(device) : 0;
  }

  const Graph& graph_;
  const PartitionOptions& options_;
  // Of a graph with loops.
  Frames frames_;
  std::vector<Presence> presence_;  // by node id
  GraphPartitions result_;
  std::vector<Place> places_;  // by node id
  std::vector<int> waves_;     // by node id; empty: not asked for
  std::map<CutKey, Node*> received_;
  int next_edge_ = 0;
  int next_name_ = 0;
};

Status Partitioner::CopyNodes() {
  places_.resize(static_cast<size_t>(graph_.num_node_ids()));
  HashMap<std::string, int> locations;
  for (const auto& node : graph_.nodes()) {
    if (node == nullptr) continue;
    MR_ASSIGN_OR_RETURN(const std::string location, LocationOf(*node, options_));
    std::unique_ptr<Graph>& part = result_[location];
    if (part == nullptr) {
      part = std::make_unique<Graph>();
      part->TakeVersionsAndLibrary(graph_);
    }
    Place& place = PlaceOf(*node);
    place.graph = part.get();
    place.location = locations.emplace(location, static_cast<int>(locations.size())).first->second;
    MR_ASSIGN_OR_RETURN(place.copy, CopyNode(*node, part.get()));
  }
  return absl::OkStatus();
}

Status Partitioner::PinToLoop(const Node& src, const Node& dst, Node* recv) {
  if (presence_.empty() || frames_.OutputFrameOf(src.id()) == 0) return absl::OkStatus();
  const Node* const gate = GateOf(dst, presence_[static_cast<size_t>(src.id())]);
  if (gate == nullptr || PlaceOf(*gate).location != PlaceOf(dst).location) {
    return InvalidArgument("Partition: loop '", frames_.frame(frames_.OutputFrameOf(src.id())).name,
                           "' must have a control loop on ", dst.assigned_device(), " that '",
                           dst.name(), "' waits for, got none for what comes from '", src.name(),
                           "' on ", src.assigned_device());
  }
  PlaceOf(dst).graph->AddControlEdge(PlaceOf(*gate).copy, recv);
  return absl::OkStatus();
}

StatusOr<Node*> Partitioner::Add(Graph* graph, const Node& near, absl::string_view prefix,
                                 tensorflow::NodeDef* def) {
  std::string name;
  do {
    name = absl::StrCat(prefix, "/", options_.new_name_mark, next_name_++);
  } while (graph_.FindNode(name) != nullptr || graph->FindNode(name) != nullptr);
  def->set_name(name);
  def->set_device(near.assigned_device());
  MR_ASSIGN_OR_RETURN(Node * node, graph->AddNode(*def));
  node->set_assigned_device(near.assigned_device());
  node->set_built_at(near.built_at());
  return node;
}

// Sends output `output` of `sent` (a node of the partition of `src`) to the partition of `dst`;
// returns the _Recv.
StatusOr<Node*> Partitioner::AddSendRecv(const Node& src, Node* sent, int output, const Node& dst,
                                         int wave) {
  const DType type = WithoutRef(sent->output_type(output));
  const std::string edge_name = absl::StrCat("edge_", next_edge_++, "_", src.name());
  const uint64_t incarnation = Incarnation(src.assigned_device());
  const auto send = NewMessage<tensorflow::NodeDef>(), recv = NewMessage<tensorflow::NodeDef>();
  for (tensorflow::NodeDef* def : {send.get(), recv.get()}) {
    const auto set = [def](const char* name, const auto& value) {
      SetAttr(value, &(*def->mutable_attr())[name]);
    };
    def->set_op(def == send.get() ? "_Send" : "_Recv");
    set(def == send.get() ? "T" : "tensor_type", type);
    set("tensor_name", edge_name);
    set("send_device", src.assigned_device());
    set("send_device_incarnation", static_cast<int64_t>(incarnation));
    set("recv_device", dst.assigned_device());
    set("client_terminated", false);
    if (wave != kNoWave) set(kWaveAttr, int64_t{wave});
  }
  MR_ASSIGN_OR_RETURN(Node * send_node, Add(PlaceOf(src).graph, src, src.name(), send.get()));
  MR_RETURN_IF_ERROR(PlaceOf(src).graph->AddEdge(sent, output, send_node, 0));
  return Add(PlaceOf(dst).graph, dst, src.name(), recv.get());
}

bool Partitioner::IsRounded(const Node& src, int output, const Node& dst) const {
  return options_.floats_as_bfloat16 && src.output_type(output) == DT_FLOAT && !src.is_arg() &&
         !dst.is_retval() && !src.traits().uses_files && !dst.traits().uses_files;
}

StatusOr<Node*> Partitioner::AddCast(Node* from, int output, DType type, const Node& near,
                                     absl::string_view prefix) {
  Graph* const graph = PlaceOf(near).graph;
  const auto def = NewMessage<tensorflow::NodeDef>();
  def->set_op("Cast");
  SetAttr(from->output_type(output), &(*def->mutable_attr())["SrcT"]);
  SetAttr(type, &(*def->mutable_attr())["DstT"]);
  SetAttr(false, &(*def->mutable_attr())["Truncate"]);
  MR_ASSIGN_OR_RETURN(Node * cast, Add(graph, near, prefix, def.get()));
  if (cast->op_entry() == nullptr) {
    return Unimplemented("Partition: op 'Cast' must be known to this program to send '", prefix,
                         "' as bfloat16, got one that is not registered");
  }
  MR_RETURN_IF_ERROR(graph->AddEdge(from, output, cast, 0));
  return cast;
}

StatusOr<Node*> Partitioner::Received(const Node& src, int output, const Node& dst, int dst_input) {
  const DType type = src.output_type(output);
  if ((IsRef(type) && IsRef(dst.input_type(dst_input))) || type == DT_RESOURCE) {
    return InvalidArgument("Partition: a ", IsRef(type) ? "reference" : "resource handle",
                           " must be used where it is made, got '", TensorNameString(src, output),
                           "' on ", src.assigned_device(), " as input ", dst_input, " of '",
                           dst.name(), "' on ", dst.assigned_device());
  }
  if (type == DT_INVALID) {
    return Unimplemented(
        "Partition: op '", src.op(), "' of node '", src.name(),
        "' must be known to this program to be sent from, got one that is not registered");
  }
  if (IsRef(type)) {
    MR_ASSIGN_OR_RETURN(Node * late, AddSendRecv(src, PlaceOf(src).copy, output, dst, WaveOf(src)));
    MR_RETURN_IF_ERROR(PinToLoop(src, dst, late));
    return late;
  }
  // One that is also fetched has two pairs: what is computed does not depend on fetches.
  const bool rounded = IsRounded(src, output, dst);
  Node*& arrived = received_[CutKey({src.id()}, output, PlaceOf(dst).location, rounded)];
  if (arrived != nullptr) return arrived;
  Node* sent = PlaceOf(src).copy;
  if (rounded) {
    MR_ASSIGN_OR_RETURN(sent, AddCast(sent, output, DT_BFLOAT16, src, src.name()));
  }
  // A Cast needs nothing but its input, and has its wave.
  MR_ASSIGN_OR_RETURN(Node * recv, AddSendRecv(src, sent, rounded ? 0 : output, dst, WaveOf(src)));
  MR_RETURN_IF_ERROR(PinToLoop(src, dst, recv));
  if (rounded) {
    MR_ASSIGN_OR_RETURN(recv, AddCast(recv, 0, DT_FLOAT, dst, src.name()));
  }
  arrived = recv;
  return arrived;
}

Status Partitioner::ConnectInputs(const Node& node) {
  const Place& place = PlaceOf(node);
  std::vector<Node*> late;    // _Recvs of references
  std::vector<Node*> others;  // what stands for the other data inputs here
  for (int i = 0; i < node.num_inputs(); ++i) {
    const OutputRef& input = node.input(i);
    if (input.node == nullptr) continue;
    const Place& source = PlaceOf(*input.node);
    if (source.location == place.location) {
      MR_RETURN_IF_ERROR(place.graph->AddEdge(source.copy, input.index, place.copy, i));
      others.push_back(source.copy);
      continue;
    }
    MR_ASSIGN_OR_RETURN(Node * recv, Received(*input.node, input.index, node, i));
    MR_RETURN_IF_ERROR(place.graph->AddEdge(recv, 0, place.copy, i));
    (IsRef(input.node->output_type(input.index)) ? late : others).push_back(recv);
  }
  MR_RETURN_IF_ERROR(ConnectControls(node));
  if (late.empty()) return absl::OkStatus();
  for (Node* control : place.copy->control_inputs()) others.push_back(control);
  for (Node* recv : late) {
    for (Node* other : others) place.graph->AddControlEdge(other, recv);
  }
  return absl::OkStatus();
}

Status Partitioner::ConnectControls(const Node& node) {
  const Place& place = PlaceOf(node);
  // By location; in the order in which locations appear among the control inputs.
  std::vector<std::pair<int, std::vector<const Node*>>> remote;
  for (const Node* control : node.control_inputs()) {
    const Place& source = PlaceOf(*control);
    if (source.location == place.location) {
      place.graph->AddControlEdge(source.copy, place.copy);
      continue;
    }
    auto it = std::find_if(remote.begin(), remote.end(),
                           [&](const auto& r) { return r.first == source.location; });
    if (it == remote.end()) it = remote.insert(it, {source.location, {}});
    it->second.push_back(control);
  }
  for (auto& [location, sources] : remote) {
    std::sort(sources.begin(), sources.end(),
              [](const Node* a, const Node* b) { return a->id() < b->id(); });
    std::vector<int> ids;
    for (const Node* source : sources) ids.push_back(source->id());
    Node*& arrived = received_[CutKey(std::move(ids), kControlSlot, place.location, false)];
    if (arrived == nullptr) {
      const Node& first = *sources[0];
      const std::string prefix = absl::StrCat(first.name(), "/ctrl");
      MR_ASSIGN_OR_RETURN(const Tensor nothing, Tensor::Zeros(DT_FLOAT, Shape::Vector(0)));
      const auto dummy = NewMessage<tensorflow::NodeDef>();
      dummy->set_op("Const");
      SetAttr(DT_FLOAT, &(*dummy->mutable_attr())["dtype"]);
      SetAttr(nothing, &(*dummy->mutable_attr())["value"]);
      MR_ASSIGN_OR_RETURN(Node * token, Add(PlaceOf(first).graph, first, prefix, dummy.get()));
      int wave = WaveOf(first);  // the token needs all sources
      for (const Node* source : sources) {
        PlaceOf(first).graph->AddControlEdge(PlaceOf(*source).copy, token);
        const int other = WaveOf(*source);
        wave = wave == kNoWave || other == kNoWave ? kNoWave : std::max(wave, other);
      }
      MR_ASSIGN_OR_RETURN(Node * recv, AddSendRecv(first, token, 0, node, wave));
      for (const Node* source : sources) MR_RETURN_IF_ERROR(PinToLoop(*source, node, recv));
      const auto identity = NewMessage<tensorflow::NodeDef>();
      identity->set_op("Identity");
      SetAttr(DT_FLOAT, &(*identity->mutable_attr())["T"]);
      MR_ASSIGN_OR_RETURN(arrived, Add(place.graph, node, prefix, identity.get()));
      MR_RETURN_IF_ERROR(place.graph->AddEdge(recv, 0, arrived, 0));
    }
    place.graph->AddControlEdge(arrived, place.copy);
  }
  return absl::OkStatus();
}

StatusOr<GraphPartitions> Partitioner::Run() {
  if (graph_.has_loops()) {
    MR_ASSIGN_OR_RETURN(frames_, Frames::Of(graph_));
    MR_ASSIGN_OR_RETURN(presence_, FindPresence(graph_, frames_));
  }
  MR_RETURN_IF_ERROR(CopyNodes());
  if (options_.marks_waves) {
    MR_ASSIGN_OR_RETURN(
        waves_, WavesOf(graph_, [this](const Node& node) { return PlaceOf(node).location; }));
  }
  for (const auto& node : graph_.nodes()) {
    if (node != nullptr) MR_RETURN_IF_ERROR(ConnectInputs(*node));
  }
  return std::move(result_);
}

}  // namespace

StatusOr<GraphPartitions> PartitionGraph(const Graph& graph, const PartitionOptions& options) {
  if (graph.has_loops() && !options.has_control_loops) {
    MR_ASSIGN_OR_RETURN(const Frames frames, Frames::Of(graph));
    if (LoopsSpanDevices(graph, frames)) {
      MR_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> looped, CopyGraph(graph));
      MR_RETURN_IF_ERROR(AddControlLoops(looped.get()));
      return Partitioner(*looped, options).Run();
    }
  }
  return Partitioner(graph, options).Run();
}

StatusOr<GraphPartitions> PartitionGraph(std::unique_ptr<Graph> graph,
                                         const PartitionOptions& options) {
  std::string location;
  const std::string* device = nullptr;  // of the node before; one text per device and graph
  for (const auto& node : graph->nodes()) {
    if (node == nullptr) continue;
    if (!options.node_to_loc && &node->assigned_device() == device) continue;
    device = &node->assigned_device();
    MR_ASSIGN_OR_RETURN(std::string here, LocationOf(*node, options));
    if (!location.empty() && here != location) return PartitionGraph(*graph, options);
    location = std::move(here);
  }
  // Several devices of one location, which cuts it again.
  if (graph->has_loops() && !options.has_control_loops) {
    MR_ASSIGN_OR_RETURN(const Frames frames, Frames::Of(*graph));
    if (LoopsSpanDevices(*graph, frames)) MR_RETURN_IF_ERROR(AddControlLoops(graph.get()));
  }
  GraphPartitions partitions;
  if (!location.empty()) partitions[location] = std::move(graph);
  return partitions;
}

Status PartitionGraph(const Graph& graph, const PartitionOptions& options,
                      std::map<std::string, tensorflow::GraphDef>* partitions) {
  MR_ASSIGN_OR_RETURN(const GraphPartitions graphs, PartitionGraph(graph, options));
  partitions->clear();
  for (const auto& [location, part] : graphs) {
    part->ToGraphDef(&(*partitions)[location], 0, /*assigned=*/true);
  }
  return absl::OkStatus();
}

void FillIncarnations(Graph* graph,
                      const std::function<uint64_t(absl::string_view device)>& get_incarnation) {
  for (const auto& node : graph->nodes()) {
    if (node == nullptr || !(node->is_send() || node->is_recv())) continue;
    const StatusOr<int64_t> known = GetAttr<int64_t>(*node, "send_device_incarnation");
    if (known.ok() && *known != 0) continue;
    const StatusOr<std::string> device = GetAttr<std::string>(*node, "send_device");
    if (!device.ok()) continue;
    node->EditAttr("send_device_incarnation", [&](tensorflow::AttrValue* attr) {
      attr->set_i(static_cast<int64_t>(get_incarnation(*device)));
    });
  }
}

}  // namespace millrace
