// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan.h"

#include <algorithm>
#include <exception>
#include <new>
#include <typeinfo>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/new_message.h"
#include "graph/attr.h"
#include "graph/frames.h"
#include "graph/function_body.h"
#include "graph/missing_op_hint.h"
#include "graph/node_body.h"
#include "graph/pure.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "proto/versions.pb.h"
#include "runtime/device.h"
#include "runtime/function_runner.h"

namespace millrace {
namespace {

// TensorFlow's text, which its users know; what follows is ours.
constexpr absl::string_view kTimedOut = "Timed out waiting for notification";
constexpr absl::string_view kWaitedFor = "; the step waited for ";

// Bounds of the packed fields; no real graph comes near.
constexpr size_t kMaxNodes = size_t{1} << 30;
constexpr int kMaxOutputs = 1 << 24;
constexpr size_t kMaxMergeControls = 0xffff;
constexpr int kMaxMergeInputs = 0x1fff;
// A graph may ask for more; each iteration under way takes memory.
constexpr int64_t kMaxParallelIterations = 1024;
// As many as there are bits for in Plan::Node::bound_inputs.
constexpr int kMaxBoundInputs = 32;

Status CopyWithMessage(const Status& status, absl::string_view message) {
  Status copy(status.code(), message);
  status.ForEachPayload(
      [&copy](absl::string_view url, const absl::Cord& payload) { copy.SetPayload(url, payload); });
  return copy;
}

// A _Retval, or a _Send to a client: of one value in a step.
bool IsResult(const Node& node) {
  if (node.is_retval()) return true;
  if (!node.is_send()) return false;
  const StatusOr<bool> client = GetAttr<bool>(node, "client_terminated");
  return client.ok() && *client;
}

}  // namespace

StatusOr<std::shared_ptr<const Kernel>> KernelStore::FindOrMake(
    absl::string_view device, absl::string_view node,
    absl::FunctionRef<StatusOr<std::unique_ptr<Kernel>>()> make) {
  const std::string key = absl::StrCat(device, "\n", node);
  MutexLock lock(&mu_);
  if (auto it = kernels_.find(key); it != kernels_.end()) return it->second;
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Kernel> made, make());
  std::shared_ptr<const Kernel> kernel = std::move(made);
  kernels_.emplace(key, kernel);
  return kernel;
}

class Plan::Builder {
 public:
  Builder(const Graph& graph, Device* device, KernelStore* kernels, TransferTable* transfers,
          FunctionRunner* functions, Plan* plan)
      : graph_(graph),
        device_(device),
        store_(kernels),
        transfers_(transfers),
        functions_(functions),
        plan_(plan) {}

  Status Build() {
    plan_->device_name_ = device_->name;
    MR_RETURN_IF_ERROR(FindFrames());
    MR_RETURN_IF_ERROR(Number());
    for (const millrace::Node* node : order_) MR_RETURN_IF_ERROR(AddNode(*node));
    EndFrames();
    for (const millrace::Node* node : order_) AddEdges(*node);
    for (size_t i = 0; i < order_.size(); ++i) plan_->nodes_[i].name = &plan_->names_[i];
    for (size_t i = 0; i < order_.size() && !plan_->has_frames(); ++i) {
      if (MayBeBound(*order_[i])) Bind(static_cast<uint32_t>(i));
    }
    FindRoots();
    return plan_->has_frames() ? absl::OkStatus() : CheckNoCycle();
  }

 private:
  Status FindFrames() {
    if (!graph_.has_loops()) {
      plan_->frames_.emplace_back();
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(frames_, Frames::Of(graph_));
    plan_->frames_.resize(static_cast<size_t>(frames_.num_frames()));
    for (int i = 0; i < frames_.num_frames(); ++i) {
      const Frames::Frame& from = frames_.frame(i);
      Plan::Frame& frame = plan_->frames_[static_cast<size_t>(i)];
      frame.name = from.name;
      frame.parallel_iterations =
          static_cast<uint32_t>(std::min(from.parallel_iterations, kMaxParallelIterations));
      if (i == 0) continue;
      frame.parent = static_cast<uint32_t>(from.parent);
      frame.place = plan_->frames_[frame.parent].num_children++;
    }
    return absl::OkStatus();
  }
  // Where a node runs.
  uint32_t FrameOf(const millrace::Node& node) const {
    return plan_->has_frames() ? static_cast<uint32_t>(frames_.FrameOf(node.id())) : 0;
  }

  // Numbers the nodes in the order in which one thread runs them, so that a step walks through
  // memory from front to back. Nodes that only a loop reaches, or a cycle, come last; each frame
  // follows its parent.
  Status Number() {
    size_t num_nodes = 0;
    std::vector<uint32_t> missing(static_cast<size_t>(graph_.num_node_ids()), 0);
    std::vector<const millrace::Node*> stack, roots;
    for (const auto& node : graph_.nodes()) {
      if (node == nullptr) continue;
      ++num_nodes;
      // The first of a Merge's data inputs starts it.
      const size_t data =
          node->is_merge() ? std::min<size_t>(1, node->inputs().size()) : node->inputs().size();
      const size_t count = data + node->control_inputs().size();
      missing[static_cast<size_t>(node->id())] = static_cast<uint32_t>(count);
    }
    if (num_nodes > kMaxNodes) {
      return absl::InvalidArgumentError(absl::StrCat("Graph: a partition must have at most ",
                                                     kMaxNodes, " nodes, got ", num_nodes));
    }
    const auto may_be_bound = [this](const millrace::Node& node) {
      return !plan_->has_frames() && MayBeBound(node);
    };
    // Bound nodes come last: a step passes over none of them.
    for (const auto& node : graph_.nodes()) {
      if (node == nullptr || !may_be_bound(*node)) continue;
      for (const millrace::Edge& edge : node->out_edges()) {
        --missing[static_cast<size_t>(edge.dst->id())];
      }
    }
    for (const auto& node : graph_.nodes()) {
      if (node == nullptr || missing[static_cast<size_t>(node->id())] != 0) continue;
      if (!may_be_bound(*node)) (node->is_recv() ? stack : roots).push_back(node.get());
    }
    ids_.assign(static_cast<size_t>(graph_.num_node_ids()), kUnnumbered);
    order_.reserve(num_nodes);
    std::reverse(stack.begin(), stack.end());
    stack.insert(stack.begin(), roots.rbegin(), roots.rend());
    std::vector<const millrace::Edge*> edges;
    while (!stack.empty()) {
      const millrace::Node* node = stack.back();
      stack.pop_back();
      if (!TakeNumber(node)) continue;
      SortEdges(*node, &edges);
      for (const millrace::Edge* edge : edges) {
        uint32_t& left = missing[static_cast<size_t>(edge->dst->id())];
        if (left != 0 && --left == 0) stack.push_back(edge->dst);
      }
    }
    for (const auto& node : graph_.nodes()) {
      if (node != nullptr) TakeNumber(node.get());
    }
    if (plan_->has_frames()) {
      std::stable_sort(order_.begin(), order_.end(),
                       [this](const millrace::Node* a, const millrace::Node* b) {
                         return FrameOf(*a) < FrameOf(*b);
                       });
      for (size_t i = 0; i < order_.size(); ++i) {
        ids_[static_cast<size_t>(order_[i]->id())] = static_cast<uint32_t>(i);
      }
    }
    plan_->nodes_.reserve(num_nodes);
    plan_->names_.reserve(num_nodes);
    return absl::OkStatus();
  }

  bool TakeNumber(const millrace::Node* node) {
    uint32_t& id = ids_[static_cast<size_t>(node->id())];
    if (id != kUnnumbered) return false;
    id = static_cast<uint32_t>(order_.size());
    order_.push_back(node);
    return true;
  }

  // Does a node give the same in every step, and do its readers leave it in their slots? Those that
  // are known to hand their inputs on do not (here and in Bind), nor asynchronous ones (Bind). When
  // another takes one, the next step runs the bound nodes again.
  static bool MayBeBound(const millrace::Node& node) {
    if (!node.traits().same_each_step) return false;
    if (!node.inputs().empty() || !node.control_inputs().empty()) return false;
    for (const millrace::Edge& edge : node.out_edges()) {
      const millrace::Node& dst = *edge.dst;
      if (dst.is_merge() || dst.is_switch() || IsTrigger(dst)) return false;
      if (edge.is_control()) continue;
      if (edge.dst_input >= kMaxBoundInputs || dst.is_send() || dst.is_retval() ||
          dst.traits().hands_on != HandsOn::kNothing) {
        return false;
      }
    }
    return !node.out_edges().empty();
  }

  // The last edge's node is on top of the stack: Sends run at once. Order is otherwise kept.
  static void SortEdges(const millrace::Node& node, std::vector<const millrace::Edge*>* edges) {
    edges->clear();
    for (const millrace::Edge& edge : node.out_edges()) edges->push_back(&edge);
    std::stable_partition(edges->begin(), edges->end(),
                          [](const millrace::Edge* edge) { return !edge->dst->is_send(); });
  }

  // The sources and types of a node's inputs. Is one of them a reference?
  StatusOr<bool> AddInputs(const millrace::Node& node) {
    bool ref_inputs = false;
    for (int i = 0; i < node.num_inputs(); ++i) {
      const OutputRef& input = node.input(i);
      if (input.node == nullptr) {
        return NodeError(InvalidArgument("input ", i, " must be connected, got no edge"), node.op(),
                         node.name());
      }
      const bool is_ref =
          IsRef(input.node->output_type(input.index)) || IsReadForSavesOnly(*input.node);
      ref_inputs |= is_ref;
      // A save gets the variable itself, of graphs of both kinds.
      plan_->input_types_.push_back(is_ref && Saves(node, i) ? RefOf(WithoutRef(node.input_type(i)))
                                                             : node.input_type(i));
      plan_->sources_.push_back(
          {ids_[static_cast<size_t>(input.node->id())], static_cast<uint32_t>(input.index)});
    }
    return ref_inputs;
  }

  // What the engines ask of a node, but for what hangs on its loop (SetFlow).
  static uint32_t FlagsOf(const millrace::Node& node, const Plan::Node& item, bool ref_inputs) {
    uint32_t flags = kEveryNode;
    if (node.is_switch()) flags |= kSwitch | kMayLeaveOutputsDead;
    if (node.is_merge()) flags |= kMerge;
    if (node.is_send()) flags |= kSend | kRunsWhenDead;
    if (node.is_recv()) flags |= kRecv | kRunsWhenDead | kMayLeaveOutputsDead;
    if (IsTrigger(node)) flags |= kControlTrigger;
    if (ref_inputs) flags |= kRefInputs;
    if (node.op_entry()->def.allows_uninitialized_input()) flags |= kAllowsUninitialized;
    // Starting an asynchronous kernel is cheap: what it waits for happens elsewhere.
    if (item.async != nullptr) {
      flags |= kAsync;
    } else if (item.kernel->may_be_expensive()) {
      flags |= kMayBeExpensive;
    }
    return flags;
  }

  // Where a node of a loop takes what it gets.
  void SetFlow(const millrace::Node& node, Plan::Frame* frame, Plan::Node* item) {
    if (node.is_enter()) {
      item->flags |= kEnter;
      item->flow = static_cast<uint32_t>(frames_.OutputFrameOf(node.id()));
      Plan::Frame& into = plan_->frames_[item->flow];
      ++into.num_enters;
      const StatusOr<bool> constant = GetAttr<bool>(node, "is_constant");
      if (constant.ok() && *constant) {
        item->flags |= kConstant;
        item->constant = into.num_constants++;
      }
    } else if (node.is_exit()) {
      item->flags |= kExit;
      item->flow = frame->num_exits++;
    } else if (node.is_next_iteration()) {
      item->flags |= kNextIteration;
      item->flow = frame->num_next_iterations++;
    }
    frame->has_transfers |= node.is_send() || node.is_recv();
  }

  // Before a node runs: the edges that it waits for, or the counts of a Merge.
  static StatusOr<uint32_t> PendingOf(const millrace::Node& node) {
    if (node.is_merge()) {
      if (node.control_inputs().size() > kMaxMergeControls || node.num_inputs() > kMaxMergeInputs) {
        return NodeError(InvalidArgument("must have at most ", kMaxMergeInputs, " inputs and ",
                                         kMaxMergeControls, " control inputs, got ",
                                         node.num_inputs(), " and ", node.control_inputs().size()),
                         node.op(), node.name());
      }
      return kMergeNoLive + static_cast<uint32_t>(node.control_inputs().size()) * kMergeOneControl;
    }
    return static_cast<uint32_t>(node.control_inputs().size() + node.inputs().size());
  }

  Status AddNode(const millrace::Node& node) {
    const auto error = [&node](const Status& status) {
      return NodeError(status, node.op(), node.name());
    };
    if (node.op_entry() == nullptr) {
      return error(Unimplemented("op kind '", node.op(), "' is not registered in this program",
                                 MissingOpHint(node)));
    }
    if (node.num_outputs() >= kMaxOutputs) {
      return error(absl::InvalidArgumentError(
          absl::StrCat("number of outputs must be < ", kMaxOutputs, ", got ", node.num_outputs())));
    }
    Plan::Node item = {};
    item.first_input = plan_->num_slots();
    item.num_inputs = static_cast<uint32_t>(node.num_inputs());
    item.first_output = static_cast<uint32_t>(plan_->output_types_.size());
    item.num_outputs = static_cast<uint32_t>(node.num_outputs());
    plan_->max_outputs_ = std::max(plan_->max_outputs_, item.num_outputs);
    MR_ASSIGN_OR_RETURN(const bool ref_inputs, AddInputs(node));
    const bool saved = IsReadForSavesOnly(node);
    for (const DType type : node.output_types()) {
      plan_->output_types_.push_back(saved ? RefOf(type) : type);
    }

    StatusOr<std::shared_ptr<const Kernel>> kernel = FindKernel(node);
    if (!kernel.ok()) return error(kernel.status());
    item.kernel = kernel->get();
    item.async = item.kernel->AsAsync();
    Plan::Frame& frame = plan_->frames_[FrameOf(node)];
    if (frame.num_nodes++ == 0) {
      frame.first_node = static_cast<uint32_t>(plan_->nodes_.size());
      frame.first_slot = item.first_input;
      frame.first_async = plan_->num_async_;
    }
    frame.num_slots += item.num_inputs;
    if (item.async != nullptr) {
      item.async_index = plan_->num_async_++;
      ++frame.num_async;
    }
    if (&frame != plan_->frames_.data() && IsResult(node)) {
      return error(
          InvalidArgument("what is fetched must be outside of loops, got a tensor of loop '",
                          frame.name, "'; fetch what leaves the loop through an Exit"));
    }

    item.flags = FlagsOf(node, item, ref_inputs);
    SetFlow(node, &frame, &item);
    MR_ASSIGN_OR_RETURN(const uint32_t pending, PendingOf(node));
    plan_->initial_pending_.push_back(pending);
    plan_->names_.push_back(node.name());
    plan_->ops_.push_back(node.op());
    plan_->kernels_.push_back(*std::move(kernel));
    plan_->nodes_.push_back(item);
    return absl::OkStatus();
  }

  static bool Saves(const millrace::Node& node, int i) {
    return node.traits().VariableUseOf(i) == VariableUse::kSaves;
  }
  // The value of a variable that nobody but saves looks at is not read: the read passes a reference
  // on and the save has the variable itself, whose rows it walks (saver/save_restore.h). A read
  // would freeze the table from that moment on, and each row that is updated until the save begins
  // would cost a copy of its stripe. A node that waits for the read (a control edge) may change the
  // variable before the save begins, which is to have what was read: then the read is a real one.
  static bool IsReadForSavesOnly(const millrace::Node& node) {
    if (node.traits().VariableUseOf(0) != VariableUse::kReads) return false;
    bool saved = false;
    for (const millrace::Edge& edge : node.out_edges()) {
      if (edge.is_control() || !Saves(*edge.dst, edge.dst_input)) return false;
      saved = true;
    }
    return saved;
  }

  StatusOr<std::unique_ptr<Kernel>> Make(const millrace::Node& node, const NodeAttrs& attrs) {
    const bool saved = IsReadForSavesOnly(node);
    const DType by_reference[] = {RefOf(saved ? node.output_type(0) : DT_INVALID)};
    KernelConstruction construction(attrs, &node.op_entry()->def, device_, node.input_types(),
                                    saved ? absl::MakeConstSpan(by_reference) : node.output_types(),
                                    graph_.versions().producer());
    construction.set_functions(functions_, graph_.shared_library());
    try {
      return MakeKernel(&construction);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory while building the kernel");
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("building the kernel threw: ", e.what()));
    } catch (...) {
      return absl::InternalError("building the kernel threw something that is no std::exception");
    }
  }

  // Of a _Send or _Recv, which is told its number.
  StatusOr<std::shared_ptr<const Kernel>> MakeTransfer(const millrace::Node& node) {
    const NamedAttrs attrs(node);
    MR_ASSIGN_OR_RETURN(RendezvousKey key, RendezvousKey::Of(attrs.attrs()));
    const uint32_t number = transfers_->Add(key, node.name(), FrameOf(node) != 0);
    const auto index = static_cast<uint32_t>(plan_->nodes_.size());
    plan_->transfers_.push_back({index, number, node.is_send(), std::move(key)});
    const auto numbered = NewMessage<tensorflow::NodeDef>();
    *numbered = attrs.attrs().node();
    SetAttr(int64_t{number}, &(*numbered->mutable_attr())[kTransferAttr]);
    return Make(node, NodeAttrs(node.name(), numbered.get(), nullptr));
  }

  StatusOr<std::shared_ptr<const Kernel>> FindKernel(const millrace::Node& node) {
    if (node.is_send() || node.is_recv()) return MakeTransfer(node);
    // Another kernel than that of a signature with other readers.
    if (IsReadForSavesOnly(node)) {
      MR_ASSIGN_OR_RETURN(std::unique_ptr<Kernel> made, Make(node, NamedAttrs(node).attrs()));
      return std::shared_ptr<const Kernel>(std::move(made));
    }
    const auto make = [&] { return Make(node, NamedAttrs(node).attrs()); };
    // What the runtime itself puts into a graph is named anew for every signature.
    const bool internal = absl::StartsWith(node.op(), "_");
    if (store_ != nullptr && node.is_stateful() && !internal) {
      MR_ASSIGN_OR_RETURN(const std::string identity, IdentityOf(node.attrs()));
      return store_->FindOrMake(device_->name, identity, make);
    }
    // Nodes that share a body share a kernel without a look at the attrs.
    if (auto it = kernels_of_bodies_.find(node.body().get()); it != kernels_of_bodies_.end()) {
      return it->second;
    }
    const std::string key = ShareKey(node);
    if (!key.empty()) {
      if (auto it = shared_kernels_.find(key); it != shared_kernels_.end()) {
        kernels_of_bodies_.emplace(node.body().get(), it->second);
        return it->second;
      }
    }
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Kernel> made, make());
    std::shared_ptr<const Kernel> kernel = std::move(made);
    if (!key.empty()) {
      shared_kernels_.emplace(key, kernel);
      kernels_of_bodies_.emplace(node.body().get(), kernel);
    }
    return kernel;
  }

  // Stateless nodes of one kind whose attrs are equal share a kernel: fewer objects to build, and
  // to fetch from memory in a step. Only for attrs that are cheap to compare; "" otherwise.
  static std::string ShareKey(const millrace::Node& node) {
    if (node.is_stateful()) return std::string();
    std::vector<std::string> parts;
    for (const auto& [name, attr] : node.def().attr()) {
      if (absl::StartsWith(name, "_")) continue;
      switch (attr.value_case()) {
        case tensorflow::AttrValue::kType:
          parts.push_back(absl::StrCat(name, "=t", static_cast<int>(attr.type())));
          break;
        case tensorflow::AttrValue::kI:
          parts.push_back(absl::StrCat(name, "=i", attr.i()));
          break;
        case tensorflow::AttrValue::kB:
          parts.push_back(absl::StrCat(name, "=b", static_cast<int>(attr.b())));
          break;
        default:
          return std::string();
      }
    }
    std::sort(parts.begin(), parts.end());
    return absl::StrCat(node.op(), ";", absl::StrJoin(parts, ";"));
  }

  void AddEdges(const millrace::Node& node) {
    Plan::Node& item = plan_->nodes_[ids_[static_cast<size_t>(node.id())]];
    const size_t first = plan_->edges_.size();
    SortEdges(node, &sorted_edges_);
    for (const millrace::Edge* const graph_edge : sorted_edges_) {
      const millrace::Edge& edge = *graph_edge;
      Plan::Edge e = {};
      e.dst = ids_[static_cast<size_t>(edge.dst->id())];
      const Plan::Node& dst = plan_->nodes_[e.dst];
      uint32_t flags = kEveryEdge;
      if (edge.is_control()) {
        e.slot = kNoSlot;
        flags |= kControl;
      } else {
        e.slot = dst.first_input + static_cast<uint32_t>(edge.dst_input);
        e.output = static_cast<uint32_t>(edge.src_output) & (kMaxOutputs - 1);
      }
      if ((dst.flags & kMerge) != 0) flags |= kToMerge;
      if ((dst.flags & kControlTrigger) != 0) flags |= kToTrigger;
      if ((dst.flags & kMayBeExpensive) != 0) flags |= kToMeasured;
      e.flags = flags & 0xffu;
      plan_->edges_.push_back(e);
    }
    std::vector<bool> seen(item.num_outputs, false);
    for (size_t i = plan_->edges_.size(); i-- > first;) {
      Plan::Edge& e = plan_->edges_[i];
      if ((e.flags & kControl) != 0 || seen[e.output]) continue;
      seen[e.output] = true;
      e.flags = (e.flags | kMoves) & 0xffu;
    }
    item.first_edge = static_cast<uint32_t>(first);
    item.num_edges = static_cast<uint32_t>(plan_->edges_.size() - first);
  }

  // Unless an asynchronous kernel reads it: their inputs are emptied elsewhere.
  void Bind(uint32_t index) {
    const Plan::Node& node = plan_->nodes_[index];
    const auto edges = absl::MakeConstSpan(plan_->edges_).subspan(node.first_edge, node.num_edges);
    for (const Plan::Edge& e : edges) {
      if (e.slot == kNoSlot) continue;
      const Plan::Node& dst = plan_->nodes_[e.dst];
      if (dst.async != nullptr || typeid(*dst.kernel) == typeid(PassInputKernel)) return;
    }
    for (const Plan::Edge& e : edges) {
      --plan_->initial_pending_[e.dst];
      if (e.slot == kNoSlot) continue;
      Plan::Node& dst = plan_->nodes_[e.dst];
      dst.flags |= kBoundInputs;
      dst.bound_inputs |= 1u << (e.slot - dst.first_input);
    }
    plan_->bound_.push_back(index);
  }

  // What lies in a frame lies in those around it, too.
  void EndFrames() {
    for (size_t i = plan_->frames_.size(); i-- > 1;) {
      Plan::Frame& frame = plan_->frames_[i];
      plan_->frames_[frame.parent].has_transfers |= frame.has_transfers;
    }
  }

  void FindRoots() {
    std::vector<uint32_t> others;
    for (uint32_t i = 0; i < plan_->nodes_.size(); ++i) {
      if (plan_->initial_pending_[i] != 0) continue;
      if (std::binary_search(plan_->bound_.begin(), plan_->bound_.end(), i)) continue;
      const bool recv = (plan_->nodes_[i].flags & kRecv) != 0;
      (recv ? plan_->roots_ : others).push_back(i);
    }
    plan_->num_root_recvs_ = static_cast<uint32_t>(plan_->roots_.size());
    plan_->roots_.insert(plan_->roots_.end(), others.begin(), others.end());
  }

  Status CheckNoCycle() const {
    std::vector<uint32_t> missing(plan_->nodes_.size(), 0);
    for (const Plan::Edge& e : plan_->edges_) ++missing[e.dst];
    // What only bound nodes lead to is among the roots.
    for (const uint32_t bound : plan_->bound_) {
      const Plan::Node& node = plan_->nodes_[bound];
      for (uint32_t i = 0; i < node.num_edges; ++i) {
        --missing[plan_->edges_[node.first_edge + i].dst];
      }
    }
    std::vector<uint32_t> ready = plan_->roots_;
    size_t reached = plan_->bound_.size();
    while (!ready.empty()) {
      const Plan::Node& node = plan_->nodes_[ready.back()];
      ready.pop_back();
      ++reached;
      for (uint32_t i = 0; i < node.num_edges; ++i) {
        const uint32_t dst = plan_->edges_[node.first_edge + i].dst;
        if (--missing[dst] == 0) ready.push_back(dst);
      }
    }
    if (reached == plan_->nodes_.size()) return absl::OkStatus();
    const auto it = std::find_if(missing.begin(), missing.end(), [](uint32_t m) { return m != 0; });
    return absl::InvalidArgumentError(absl::StrCat(
        "Graph: must have no cycle outside of a while loop, got one that '",
        plan_->names_[static_cast<size_t>(it - missing.begin())], "' is part of or depends on"));
  }

  const Graph& graph_;
  Device* const device_;
  KernelStore* const store_;
  TransferTable* const transfers_;
  FunctionRunner* const functions_;
  Plan* const plan_;
  Frames frames_;  // of a graph with loops
  static constexpr uint32_t kUnnumbered = 0xffffffffu;
  std::vector<uint32_t> ids_;  // graph id -> plan index
  std::vector<const millrace::Node*> order_;
  std::vector<const millrace::Edge*> sorted_edges_;  // kept for its memory
  HashMap<std::string, std::shared_ptr<const Kernel>> shared_kernels_;
  HashMap<const NodeBody*, std::shared_ptr<const Kernel>> kernels_of_bodies_;
};

StatusOr<std::shared_ptr<const Plan>> Plan::Build(const Graph& graph, Device* device,
                                                  KernelStore* kernels,
                                                  std::shared_ptr<TransferTable> transfers,
                                                  FunctionRunner* functions) {
  std::shared_ptr<Plan> plan(new Plan());
  if (transfers == nullptr) transfers = std::make_shared<TransferTable>();
  MR_RETURN_IF_ERROR(
      Builder(graph, device, kernels, transfers.get(), functions, plan.get()).Build());
  plan->transfer_table_ = std::move(transfers);
  return std::shared_ptr<const Plan>(std::move(plan));
}

uint32_t Plan::frame_of(uint32_t node) const {
  uint32_t i = 0;
  while (node - frames_[i].first_node >= frames_[i].num_nodes) ++i;
  return i;
}

std::string Plan::InputName(const Node& node, uint32_t input) const {
  const Source& source = sources_[node.first_input + input];
  if (source.output == 0) return names_[source.node];
  return absl::StrCat(names_[source.node], ":", source.output);
}

const Plan::TransferEnd* Plan::FindTransfer(const Node& node) const {
  const auto end =
      std::lower_bound(transfers_.begin(), transfers_.end(), Index(node),
                       [](const TransferEnd& e, size_t index) { return e.node < index; });
  return end == transfers_.end() || end->node != Index(node) ? nullptr : &*end;
}

std::string Plan::WaitLabel(const Node& node, const Rendezvous* rendezvous) const {
  const std::string label = absl::StrCat(op(node), " '", *node.name, "'");
  const TransferEnd* const end = FindTransfer(node);
  if (end == nullptr || end->is_send) return label;
  std::string tensor = rendezvous == nullptr ? "" : rendezvous->Describe(end->number);
  if (tensor.empty()) {
    tensor = absl::StrCat("tensor '", end->key.edge_name, "' of ", end->key.src_device);
  }
  return absl::StrCat(label, " (", tensor, ")");
}

std::string Plan::TransferLabel(const Node& node) const {
  const TransferEnd* const end = FindTransfer(node);
  if (end == nullptr) return std::string();
  return absl::StrCat(end->key.edge_name, " @",
                      end->is_send ? end->key.dst_device : end->key.src_device);
}

bool IsDerived(const Status& status) { return absl::StartsWith(status.message(), kDerivedMark); }

Status Derived(const Status& status) {
  if (status.ok() || IsDerived(status)) return status;
  return CopyWithMessage(status, absl::StrCat(kDerivedMark, status.message()));
}

Status WithoutDerivedMark(const Status& status) {
  if (!IsDerived(status)) return status;
  return CopyWithMessage(status, absl::StripPrefix(status.message(), kDerivedMark));
}

Status TimedOutWaitingFor(absl::string_view kernels) {
  if (kernels.empty()) return absl::DeadlineExceededError(kTimedOut);
  return absl::DeadlineExceededError(absl::StrCat(kTimedOut, kWaitedFor, kernels));
}

bool IsTimedOut(const Status& status) {
  return absl::IsDeadlineExceeded(status) && absl::StartsWith(status.message(), kTimedOut);
}

absl::string_view WaitedFor(const Status& status) {
  absl::string_view text = status.message();
  if (!absl::ConsumePrefix(&text, kTimedOut) || !absl::ConsumePrefix(&text, kWaitedFor)) return "";
  return text;
}

Status NodeError(const Status& status, absl::string_view op, absl::string_view node) {
  if (status.ok() || IsDerived(status)) return status;
  const absl::string_view message = status.message();
  if (absl::StrContains(message, "{{node ")) {
    return CopyWithMessage(status, absl::StrCat(message, "\n\t [[", node, "]]"));
  }
  const std::string where = absl::StrCat(op, " '", node, "'");
  const std::string prefix =
      absl::StartsWith(message, where) ? std::string() : absl::StrCat(where, ": ");
  return CopyWithMessage(status, absl::StrCat(prefix, message, "\n\t [[{{node ", node, "}}]]"));
}

}  // namespace millrace
