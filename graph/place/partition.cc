// SPDX-License-Identifier: Apache-2.0
#include "graph/place/partition.h"

#include <algorithm>
#include <deque>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/copy.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// Loops nested deeper than this are refused; it also ends the walk over a loop that is never left.
constexpr int kMaxLoopDepth = 100;

// The loop that each node's outputs are in; empty for none.
class Loops {
 public:
  static StatusOr<Loops> Of(const Graph& graph);
  // "" outside of loops.
  const std::string& LoopOf(const Node& node) const {
    return frames_[static_cast<size_t>(output_frame_[static_cast<size_t>(node.id())])].name;
  }

 private:
  struct Frame {
    std::string name;
    int parent;
    int depth;
  };
  std::vector<Frame> frames_ = {{"", 0, 0}};
  std::vector<int> output_frame_;  // by node id
};

StatusOr<Loops> Loops::Of(const Graph& graph) {
  Loops loops;
  loops.output_frame_.assign(static_cast<size_t>(graph.num_node_ids()), 0);
  std::deque<const Node*> queue;
  for (const auto& node : graph.nodes()) {
    if (node != nullptr && node->is_enter()) queue.push_back(node.get());
  }
  std::map<std::pair<int, std::string>, int> children;
  // A node is in the deepest frame that one of its inputs comes from; frames only get deeper, so
  // this ends.
  while (!queue.empty()) {
    const Node* node = queue.front();
    queue.pop_front();
    int frame = 0;
    const auto consider = [&](const Node* input) {
      const int f = loops.output_frame_[static_cast<size_t>(input->id())];
      if (loops.frames_[static_cast<size_t>(f)].depth >
          loops.frames_[static_cast<size_t>(frame)].depth) {
        frame = f;
      }
    };
    for (const OutputRef& input : node->inputs()) {
      if (input.node != nullptr) consider(input.node);
    }
    for (const Node* control : node->control_inputs()) consider(control);
    if (node->is_exit()) {
      frame = loops.frames_[static_cast<size_t>(frame)].parent;
    } else if (node->is_enter()) {
      MR_ASSIGN_OR_RETURN(const std::string name, GetAttr<std::string>(*node, "frame_name"));
      auto [it, first] =
          children.emplace(std::make_pair(frame, name), static_cast<int>(loops.frames_.size()));
      if (first) {
        const int depth = loops.frames_[static_cast<size_t>(frame)].depth + 1;
        if (depth > kMaxLoopDepth) {
          return InvalidArgument("Partition: loops must be nested at most ", kMaxLoopDepth,
                                 " deep, got more at '", node->name(), "' of loop '", name, "'");
        }
        loops.frames_.push_back(Frame{name, frame, depth});
      }
      frame = it->second;
    }
    int& known = loops.output_frame_[static_cast<size_t>(node->id())];
    if (loops.frames_[static_cast<size_t>(known)].depth >=
        loops.frames_[static_cast<size_t>(frame)].depth) {
      continue;
    }
    known = frame;
    for (const Edge& edge : node->out_edges()) queue.push_back(edge.dst);
  }
  return loops;
}

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
  // The _Recv (or Identity after it) in a partition that stands for something made elsewhere: an
  // output of a node, or (sources, kControlSlot).
  using CutKey = std::tuple<std::vector<int>, int, int>;  // node ids, output, destination location

  Status CopyNodes();
  Status ConnectInputs(const Node& node);
  Status ConnectControls(const Node& node);
  Status CheckLoop(const Node& src, int output, const Node& dst) const;
  StatusOr<Node*> Received(const Node& src, int output, const Node& dst, int dst_input);
  StatusOr<Node*> AddSendRecv(const Node& src, Node* sent, int output, const Node& dst);
  // Gives `*def` a name and a device.
  StatusOr<Node*> Add(Graph* graph, const Node& near, absl::string_view prefix,
                      tensorflow::NodeDef* def);

  Place& PlaceOf(const Node& node) { return places_[static_cast<size_t>(node.id())]; }
  uint64_t Incarnation(const std::string& device) const {
    return options_.get_incarnation ? options_.get_incarnation(device) : 0;
  }

  const Graph& graph_;
  const PartitionOptions& options_;
  Loops loops_;
  GraphPartitions result_;
  std::vector<Place> places_;  // by node id
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

Status Partitioner::CheckLoop(const Node& src, int output, const Node& dst) const {
  const std::string& loop = loops_.LoopOf(src);
  if (loop.empty()) return absl::OkStatus();
  return Unimplemented("Partition: all nodes of a while loop must be on one device, got '",
                       src.name(), "'",
                       output == kControlSlot ? " (control)" : absl::StrCat(":", output), " on ",
                       src.assigned_device(), " feeding '", dst.name(), "' on ",
                       dst.assigned_device(), " inside loop '", loop, "'");
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
StatusOr<Node*> Partitioner::AddSendRecv(const Node& src, Node* sent, int output, const Node& dst) {
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
  }
  MR_ASSIGN_OR_RETURN(Node * send_node, Add(PlaceOf(src).graph, src, src.name(), send.get()));
  MR_RETURN_IF_ERROR(PlaceOf(src).graph->AddEdge(sent, output, send_node, 0));
  return Add(PlaceOf(dst).graph, dst, src.name(), recv.get());
}

StatusOr<Node*> Partitioner::Received(const Node& src, int output, const Node& dst, int dst_input) {
  MR_RETURN_IF_ERROR(CheckLoop(src, output, dst));
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
  if (IsRef(type)) return AddSendRecv(src, PlaceOf(src).copy, output, dst);
  Node*& recv = received_[CutKey({src.id()}, output, PlaceOf(dst).location)];
  if (recv == nullptr) {
    MR_ASSIGN_OR_RETURN(recv, AddSendRecv(src, PlaceOf(src).copy, output, dst));
  }
  return recv;
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
    MR_RETURN_IF_ERROR(CheckLoop(*control, kControlSlot, node));
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
    Node*& arrived = received_[CutKey(std::move(ids), kControlSlot, place.location)];
    if (arrived == nullptr) {
      const Node& first = *sources[0];
      const std::string prefix = absl::StrCat(first.name(), "/ctrl");
      MR_ASSIGN_OR_RETURN(const Tensor nothing, Tensor::Zeros(DT_FLOAT, Shape::Vector(0)));
      const auto dummy = NewMessage<tensorflow::NodeDef>();
      dummy->set_op("Const");
      SetAttr(DT_FLOAT, &(*dummy->mutable_attr())["dtype"]);
      SetAttr(nothing, &(*dummy->mutable_attr())["value"]);
      MR_ASSIGN_OR_RETURN(Node * token, Add(PlaceOf(first).graph, first, prefix, dummy.get()));
      for (const Node* source : sources) {
        PlaceOf(first).graph->AddControlEdge(PlaceOf(*source).copy, token);
      }
      MR_ASSIGN_OR_RETURN(Node * recv, AddSendRecv(first, token, 0, node));
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
  MR_ASSIGN_OR_RETURN(loops_, Loops::Of(graph_));
  MR_RETURN_IF_ERROR(CopyNodes());
  for (const auto& node : graph_.nodes()) {
    if (node != nullptr) MR_RETURN_IF_ERROR(ConnectInputs(*node));
  }
  return std::move(result_);
}

}  // namespace

StatusOr<GraphPartitions> PartitionGraph(const Graph& graph, const PartitionOptions& options) {
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
    node->mutable_attr("send_device_incarnation")
        ->set_i(static_cast<int64_t>(get_incarnation(*device)));
  }
}

}  // namespace millrace
