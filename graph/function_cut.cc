// SPDX-License-Identifier: Apache-2.0
#include "graph/function_cut.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/backprop.h"
#include "graph/copy.h"
#include "graph/frames.h"
#include "graph/function_library.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"

namespace millrace::function_cut {

Status CopyBody(absl::Span<const KnownTensor> known, Differentiated* d) {
  Graph* const graph = d->scope.graph();
  std::vector<Node*> copies(static_cast<size_t>(d->body->graph->num_node_ids()), nullptr);
  const auto copy_of = [&](const Node* node) { return copies[static_cast<size_t>(node->id())]; };
  for (const Node* const node : d->body->order) {
    if (node->is_retval()) continue;
    MR_ASSIGN_OR_RETURN(copies[static_cast<size_t>(node->id())], CopyNode(*node, graph));
    d->forward.insert(copy_of(node));
  }
  for (const Node* const node : d->body->order) {
    if (node->is_retval()) continue;
    for (int i = 0; i < node->num_inputs(); ++i) {
      const OutputRef& input = node->input(i);
      MR_RETURN_IF_ERROR(graph->AddEdge(copy_of(input.node), input.index, copy_of(node), i));
    }
    for (const Node* const control : node->control_inputs()) {
      graph->AddControlEdge(copy_of(control), copy_of(node));
    }
  }
  for (const Node* const node : d->body->arguments) d->arguments.emplace_back(copy_of(node), 0);
  for (size_t i = 0; i < d->arguments.size() && i < known.size(); ++i) {
    d->scope.refiner()->SetKnown(*d->arguments[i].node(), known[i]);
  }
  for (const Node* const node : d->body->order) {
    if (node->is_retval() || (node->is_arg() && !known.empty())) continue;
    MR_RETURN_IF_ERROR(d->scope.refiner()->AddNode(*copy_of(node)));
  }
  for (const Node* const node : d->body->results) {
    d->results.emplace_back(copy_of(node->input(0).node), node->input(0).index);
  }
  for (const Node* const node : d->body->effects) d->effects.push_back(copy_of(node));
  return absl::OkStatus();
}

Status Differentiate(const std::vector<bool>& has_dy, const std::string& source,
                     Differentiated* d) {
  std::vector<Output> ys;
  for (size_t i = 0; i < d->results.size(); ++i) {
    if (!has_dy[i]) continue;
    const DType type = WithoutRef(d->results[i].dtype());
    if (!IsTrainable(type) && type != DT_VARIANT) {
      return Unimplemented("the gradient of result ", i, " must be of a float, got ", type);
    }
    const Output dy = NodeBuilder(d->scope.WithName(absl::StrCat("dy_", i)), "_Arg")
                          .Attr("T", type)
                          .Attr("index", static_cast<int64_t>(d->arguments.size() + i))
                          .Finish()
                          .output(0);
    MR_RETURN_IF_ERROR(d->scope.status());
    KnownTensor known;
    known.shape = d->scope.shape(d->results[i]);
    d->scope.refiner()->SetKnown(*dy.node(), known);
    ys.push_back(d->results[i]);
    d->dys.push_back(dy);
  }
  GradientOptions options;
  options.grad_ys = d->dys;
  Backprop backprop(d->scope, options, /*gated=*/false, source);
  MR_ASSIGN_OR_RETURN(d->gradients, backprop.Run(ys, d->arguments));
  return d->scope.status();
}

DType ValuesType(const Gradient& gradient) {
  if (const auto* dense = std::get_if<Output>(&gradient)) return WithoutRef(dense->dtype());
  if (const auto* slices = std::get_if<IndexedSlices>(&gradient)) {
    return WithoutRef(slices->values.dtype());
  }
  return DT_INVALID;
}

Output DenseOrZeros(Differentiated* d, size_t i, DType held) {
  const Output dense = DenseGradient(d->scope, d->gradients[i]);
  if (dense.valid() || !d->scope.ok()) return dense;
  Output like = d->arguments[i];
  if (like.dtype() == DT_RESOURCE) {
    like =
        NodeBuilder(d->scope, "ReadVariableOp").Input(like).Attr("dtype", held).Finish().output(0);
  }
  return NodeBuilder(d->scope, "ZerosLike").Input(like).Finish().output(0);
}

namespace {

bool IsSame(const OutputRef& a, const OutputRef& b) {
  return a.node == b.node && a.index == b.index;
}

std::vector<DType> TypesOf(const std::vector<OutputRef>& tensors) {
  std::vector<DType> types;
  for (const OutputRef& tensor : tensors) {
    types.push_back(WithoutRef(tensor.node->output_type(tensor.index)));
  }
  return types;
}

}  // namespace

Status Cut::Run() {
  for (const auto& node : d_->scope.graph()->nodes()) {
    if (node != nullptr && !d_->forward.contains(node.get())) backward_.insert(node.get());
  }
  MR_RETURN_IF_ERROR(RefuseFrames());
  std::vector<OutputRef> results;
  for (const Gradient& gradient : d_->gradients) {
    ArgumentGradient& place = places_.emplace_back();
    place.first = results.size();
    const auto add = [&](const Output& tensor) {
      results.push_back({tensor.node(), tensor.index()});
    };
    if (const Output* const dense = std::get_if<Output>(&gradient)) {
      place.kind = ArgumentGradient::Kind::kDense;
      add(*dense);
    } else if (const auto* const slices = std::get_if<IndexedSlices>(&gradient)) {
      place.kind = slices->dense_shape.valid() ? ArgumentGradient::Kind::kSlicesWithShape
                                               : ArgumentGradient::Kind::kSlices;
      add(slices->values);
      add(slices->indices);
      if (slices->dense_shape.valid()) add(slices->dense_shape);
    }
  }
  parts_.results = std::move(results);
  for (const OutputRef& result : parts_.results) Read(result);
  for (const Node* const node : std::vector<const Node*>(backward_.begin(), backward_.end())) {
    for (const OutputRef& input : node->inputs()) Read(input);
    for (const Node* const control : node->control_inputs()) {
      if (d_->forward.contains(control) && !control->is_arg()) waits_for_forward_ = true;
    }
  }
  // In the order of the graph: the same function each time.
  std::sort(order_.begin(), order_.end(), [](const OutputRef& a, const OutputRef& b) {
    return std::pair(a.node->id(), a.index) < std::pair(b.node->id(), b.index);
  });
  MR_RETURN_IF_ERROR(KeepDeadTensorsDead());
  for (const Node* const effect : EffectsOf(*d_->scope.graph())) {
    if (backward_.contains(effect)) parts_.effects.push_back(effect);
  }
  FindArguments();
  return absl::OkStatus();
}

// The gradient of a loop of Switch and Merge runs in such a loop, and takes what its iterations
// keep.
Status Cut::RefuseFrames() const {
  const Graph& graph = *d_->scope.graph();
  MR_ASSIGN_OR_RETURN(const Frames frames, Frames::Of(graph));
  if (frames.num_frames() == 1) return absl::OkStatus();
  int refused = 0;
  for (const auto& node : graph.nodes()) {
    if (node == nullptr || !backward_.contains(node.get())) continue;
    const int frame = std::max(frames.FrameOf(node->id()), frames.OutputFrameOf(node->id()));
    // One of the function's own if there is one, for its name.
    if (refused == 0) refused = frame;
    for (const OutputRef& input : node->inputs()) {
      if (frame != 0 && d_->forward.contains(input.node)) refused = frame;
    }
  }
  if (refused == 0) return absl::OkStatus();
  return Unimplemented(
      "no loop of Switch and Merge may be differentiated inside of a function, got ", "frame '",
      frames.frame(refused).name, "'; build it as a While or a For");
}

// A tensor that backward nodes need.
void Cut::Read(const OutputRef& tensor) {
  if (!d_->forward.contains(tensor.node)) return;
  if (tensor.node->is_const() && tensor.node->control_inputs().empty()) {
    backward_.insert(tensor.node);  // each has its own
    return;
  }
  if (read_.emplace(std::pair<const Node*, int>(tensor.node, tensor.index)).second) {
    order_.push_back(tensor);
  }
}

// Forward nodes that may be dead, those of branches.
HashSet<const Node*> Cut::ConditionalNodes() const {
  HashSet<const Node*> conditional;
  std::vector<const Node*> open;
  for (const Node* const node : d_->forward) {
    if (node->is_switch()) open.push_back(node);
  }
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    for (const Edge& edge : node->out_edges()) {
      if (d_->forward.contains(edge.dst) && conditional.insert(edge.dst).second) {
        open.push_back(edge.dst);
      }
    }
  }
  for (const Node* const node : d_->forward) {
    if (node->is_switch()) conditional.insert(node);
  }
  return conditional;
}

// A call takes and gives no dead tensors. What is read of a branch leaves the forward function
// with the word whether it was alive, and is dead again in the backward function if it was not.
Status Cut::KeepDeadTensorsDead() {
  const HashSet<const Node*> conditional = ConditionalNodes();
  if (conditional.empty()) return absl::OkStatus();
  Graph* const graph = d_->scope.graph();
  std::vector<Node*> readers;
  for (const auto& node : graph->nodes()) {
    if (node != nullptr && backward_.contains(node.get())) readers.push_back(node.get());
  }
  std::vector<OutputRef> order;
  for (const OutputRef& tensor : order_) {
    if (!conditional.contains(tensor.node)) {
      order.push_back(tensor);
      continue;
    }
    MR_ASSIGN_OR_RETURN(const OutputRef again, Again(tensor, &order));
    for (Node* const reader : readers) {
      for (int i = 0; i < reader->num_inputs(); ++i) {
        if (!IsSame(reader->input(i), tensor)) continue;
        MR_RETURN_IF_ERROR(graph->UpdateInput(reader, i, again.node, again.index));
      }
    }
    for (OutputRef& result : parts_.results) {
      if (IsSame(result, tensor)) result = again;
    }
  }
  HashMap<const Node*, Node*> instead;  // of a forward node whose death is passed on by control
  for (Node* const reader : readers) {
    const std::vector<Node*> controls(reader->control_inputs().begin(),
                                      reader->control_inputs().end());
    for (Node* const control : controls) {
      if (!conditional.contains(control)) continue;
      Node*& own = instead[control];
      if (own == nullptr) {
        const Scope after = d_->scope.WithControlDependencies({Operation(control)});
        const Output sign = NodeBuilder(after, "Const")
                                .Attr("dtype", DT_BOOL)
                                .Attr("value", Tensor::Scalar(true))
                                .Finish()
                                .output(0);
        MR_RETURN_IF_ERROR(d_->scope.status());
        d_->forward.insert(sign.node());
        MR_ASSIGN_OR_RETURN(const OutputRef again, Again({sign.node(), 0}, &order));
        own = NodeBuilder(d_->scope, "Identity")
                  .Input(Output(again.node, again.index))
                  .Finish()
                  .output(0)
                  .node();
        MR_RETURN_IF_ERROR(d_->scope.status());
        backward_.insert(own);
      }
      graph->AddControlEdge(own, reader);
    }
  }
  order_ = std::move(order);
  return absl::OkStatus();
}

// The forward tensor on the backward side; `order` gets what takes it there.
StatusOr<OutputRef> Cut::Again(const OutputRef& tensor, std::vector<OutputRef>* order) {
  const Output alive =
      NodeBuilder(d_->scope, "_Alive").Input(Output(tensor.node, tensor.index)).Finish().output(0);
  MR_RETURN_IF_ERROR(d_->scope.status());
  d_->forward.insert(alive.node());
  const Output again = NodeBuilder(d_->scope, "Switch")
                           .Input(alive)
                           .Input(Output(alive.node(), 1))
                           .Finish()
                           .output(1);
  MR_RETURN_IF_ERROR(d_->scope.status());
  backward_.insert(again.node());
  order->push_back({alive.node(), 0});
  order->push_back({alive.node(), 1});
  return OutputRef{again.node(), again.index()};
}

void Cut::FindArguments() {
  parts_.nodes = &backward_;
  for (size_t i = 0; i < d_->arguments.size(); ++i) {
    if (!read_.contains({d_->arguments[i].node(), 0})) continue;
    from_call_.push_back(i);
    parts_.arguments.push_back({d_->arguments[i].node(), 0});
  }
  for (const OutputRef& tensor : order_) {
    if (tensor.node->is_arg()) continue;
    inside_.push_back(tensor);
    parts_.arguments.push_back(tensor);
  }
  for (const Output& dy : d_->dys) parts_.arguments.push_back({dy.node(), 0});
}

std::vector<DType> Cut::inside_types() const { return TypesOf(inside_); }
std::vector<DType> Cut::result_types() const { return TypesOf(parts_.results); }

FunctionDefParts Cut::ForwardParts() const {
  FunctionDefParts parts;
  for (const Output& argument : d_->arguments) parts.arguments.push_back({argument.node(), 0});
  for (const Output& result : d_->results) parts.results.push_back({result.node(), result.index()});
  parts.results.insert(parts.results.end(), inside_.begin(), inside_.end());
  parts.effects = d_->effects;
  parts.nodes = &d_->forward;
  return parts;
}

StatusOr<std::string> Define(const Scope& scope, absl::string_view name, const Graph& graph,
                             const FunctionDefParts& parts) {
  std::string free(name);
  for (int k = 1; scope.graph()->library().Find(free) != nullptr; ++k) {
    free = absl::StrCat(name, "_", k);
  }
  MR_ASSIGN_OR_RETURN(const auto def, FunctionDefOf(graph, free, parts));
  tensorflow::FunctionDefLibrary more;
  *more.add_function() = *def;
  MR_ASSIGN_OR_RETURN(auto library, scope.graph()->library().With(more));
  scope.graph()->set_library(std::move(library));
  return free;
}

Status CallInstead(const Scope& scope, Node* node, const std::string& function,
                   absl::Span<const DType> more) {
  Graph* const graph = node->graph();
  std::vector<DType> results(node->output_types().begin(), node->output_types().end());
  results.insert(results.end(), more.begin(), more.end());
  const auto def = NewMessage<tensorflow::NodeDef>();
  def->set_name(node->name());
  def->set_op(graph->library().IsStateful(*graph->library().Find(function))
                  ? "StatefulPartitionedCall"
                  : "PartitionedCall");
  MR_RETURN_IF_ERROR(FindOp(def->op()).status());
  auto& attrs = *def->mutable_attr();
  // Its own attrs are those of a call.
  const bool is_call = node->op() == "PartitionedCall" || node->op() == "StatefulPartitionedCall";
  for (const auto& [name, value] : node->def().attr()) {
    // Shapes that somebody wrote down are of the results that there were.
    const bool keep = name[0] == '_' ? name != "_output_shapes" : is_call;
    if (keep) attrs[name] = value;
  }
  SetAttr(std::vector<DType>(node->input_types().begin(), node->input_types().end()),
          &attrs["Tin"]);
  SetAttr(results, &attrs["Tout"]);
  attrs["f"].mutable_func()->Clear();
  attrs["f"].mutable_func()->set_name(function);
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const NodeBody> body,
                      graph->bodies()->Make(*def, nullptr, [](const tensorflow::NodeDef&) {
                        return absl::OkStatus();
                      }));
  MR_RETURN_IF_ERROR(graph->ReplaceBody(node, std::move(body)));
  return scope.refiner()->AddNode(*node);
}

BuiltNode CallNamed(const Scope& scope, const std::string& function,
                    const std::vector<Output>& inputs, const std::vector<DType>& results,
                    Operation after) {
  const FunctionLibrary& library = scope.graph()->library();
  tensorflow::NameAttrList call;
  call.set_name(function);
  NodeBuilder builder(scope, library.IsStateful(*library.Find(function)) ? "StatefulPartitionedCall"
                                                                         : "PartitionedCall");
  builder.Input(absl::MakeConstSpan(inputs)).Attr("Tout", results).Attr("f", call);
  return builder.ControlInput(std::move(after)).Finish();
}

}  // namespace millrace::function_cut
