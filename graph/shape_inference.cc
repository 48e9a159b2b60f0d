// SPDX-License-Identifier: Apache-2.0
#include "graph/shape_inference.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "core/hash_table.h"
#include "graph/function_body.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/placeholder_shape.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "proto/versions.pb.h"

namespace millrace {

InferenceContext::InferenceContext(const NodeAttrs& attrs, const tensorflow::OpDef* op,
                                   std::vector<PartialShape> inputs,
                                   std::vector<std::optional<HandleData>> input_handles,
                                   int num_outputs, Source* source, FunctionShapes* functions)
    : RuleContext({}, {}, source),
      attrs_(attrs),
      op_(op),
      functions_(functions),
      input_shapes_(std::move(inputs)),
      input_handles_(std::move(input_handles)),
      output_shapes_(static_cast<size_t>(num_outputs)),
      output_handles_(static_cast<size_t>(num_outputs)) {
  input_handles_.resize(input_shapes_.size());
  inputs_ = input_shapes_;
  outputs_ = absl::MakeSpan(output_shapes_);
}

KnownTensor InferenceContext::KnownInput(int i) {
  return {input(i), input_handle(i), input_tensor(i)};
}

Status UnchangedShape(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    if (c->num_inputs() > 0) ForwardInputToOutput(c, 0, i);
  }
  return absl::OkStatus();
}

Status ScalarShape(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, PartialShape::Scalar());
  return absl::OkStatus();
}

Status NoOutputShape(InferenceContext*) { return absl::OkStatus(); }

Status BroadcastBinaryShape(InferenceContext* c) {
  if (c->num_inputs() < 2) {
    return InvalidArgument("must have 2 inputs to broadcast, got ", c->num_inputs());
  }
  MR_ASSIGN_OR_RETURN(PartialShape shape, BroadcastShape(c->input(0), c->input(1)));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, shape);
  return absl::OkStatus();
}

Status ValueDependentShape(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, PartialShape());
  return absl::OkStatus();
}

void ForwardInputToOutput(InferenceContext* c, int input, int output) {
  c->set_output(output, c->input(input));
  if (c->input_handle(input).has_value()) c->set_output_handle(output, *c->input_handle(input));
}

Status InferCall(InferenceContext* c, const tensorflow::NameAttrList& function, ArgRange inputs) {
  if (c->functions() == nullptr) return absl::OkStatus();
  std::vector<KnownTensor> arguments;
  for (int i = inputs.begin; i < inputs.end; ++i) arguments.push_back(c->KnownInput(i));
  MR_ASSIGN_OR_RETURN(const std::vector<KnownTensor> results,
                      c->functions()->Infer(function, arguments));
  if (results.empty()) return absl::OkStatus();
  if (static_cast<int>(results.size()) != c->num_outputs()) {
    return InvalidArgument("Function '", function.name(), "': must have ", c->num_outputs(),
                           " results as the call, got ", results.size());
  }
  for (int i = 0; i < c->num_outputs(); ++i) {
    const KnownTensor& result = results[static_cast<size_t>(i)];
    c->set_output(i, result.shape);
    if (result.handle.has_value()) c->set_output_handle(i, *result.handle);
  }
  return absl::OkStatus();
}

struct ShapeRefiner::Impl {
  struct Info {
    std::vector<PartialShape> shapes;
    std::vector<std::optional<HandleData>> handles;
    // Known values by output; filled when they are asked for.
    std::vector<std::unique_ptr<Tensor>> values;
    // False: no value of this node can ever be computed before a step runs. Keeps searches short:
    // they never leave the part of the graph that hangs on constants and shapes alone.
    bool maybe_constant = false;
  };

  void SetKnown(const Node& node, const KnownTensor& known) {
    auto info = std::make_unique<Info>();
    info->shapes = {known.shape};
    info->handles = {known.handle};
    if (known.value != nullptr) {
      info->values.push_back(std::make_unique<Tensor>(*known.value));
      info->maybe_constant = true;
    }
    infos[&node] = std::move(info);
  }

  // Nodes whose value a search has failed to find, so that it visits none twice.
  struct Search {
    HashMap<std::pair<const Node*, int>, std::optional<PartialValue>> partial;
    HashMap<const Node*, bool> failed;
  };

  explicit Impl(ConstantEvaluator* e) : evaluator(e) {}

  Info* Find(const Node& node) {
    auto it = infos.find(&node);
    return it == infos.end() ? nullptr : it->second.get();
  }

  PartialShape OutputShape(const Node& node, int output) {
    const Info* info = Find(node);
    if (info == nullptr || output < 0 || static_cast<size_t>(output) >= info->shapes.size()) {
      return PartialShape();
    }
    return info->shapes[static_cast<size_t>(output)];
  }

  // Do all outputs of the node have the value of its first input, where they have one?
  static bool IsPassedOn(const Node& node) {
    if (node.is_switch()) return true;
    if (!node.is_enter()) return false;
    const StatusOr<bool> is_constant = GetAttr<bool>(node, "is_constant");
    return is_constant.ok() && *is_constant;
  }

  bool MaybeConstant(const Node& node) {
    if (node.op_entry() == nullptr || node.is_stateful() || node.num_outputs() == 0) return false;
    if (node.is_const() || node.traits().describes_shape) return true;
    // What comes into a branch, or into every iteration of a loop, has the value that it has
    // outside.
    if (IsPassedOn(node)) {
      const Info* info = node.input(0).node == nullptr ? nullptr : Find(*node.input(0).node);
      return info != nullptr && info->maybe_constant && !IsRef(node.output_type(0));
    }
    if (node.num_inputs() == 0 || node.is_switch() || node.is_merge() || node.is_enter() ||
        node.is_exit() || node.is_next_iteration()) {
      return false;
    }
    for (DType type : node.output_types()) {
      if (IsRef(type) || type == DT_RESOURCE || type == DT_VARIANT) return false;
    }
    for (const OutputRef& input : node.inputs()) {
      if (input.node == nullptr) return false;
      const Info* info = Find(*input.node);
      if (info == nullptr || !info->maybe_constant) return false;
    }
    return true;
  }

  // The element values of an int scalar or vector, as far as they are known.
  std::optional<PartialValue> Partial(const Node& node, int output, int depth, Search* search) {
    if (depth > kMaxConstantDepth || output < 0 || output >= node.num_outputs() ||
        !IsIndexType(node.output_type(output))) {
      return std::nullopt;
    }
    const std::pair<const Node*, int> key(&node, output);
    if (auto it = search->partial.find(key); it != search->partial.end()) return it->second;
    // Stops a walk that comes back here (a broken graph).
    search->partial.emplace(key, std::nullopt);
    std::optional<PartialValue> value = ComputePartial(node, output, depth, search);
    if (value.has_value() && value->elements.size() > static_cast<size_t>(kMaxConstantElements)) {
      value.reset();
    }
    search->partial[key] = value;
    return value;
  }

  std::optional<PartialValue> InputPartial(const Node& node, int i, int depth, Search* search) {
    if (i >= node.num_inputs() || node.input(i).node == nullptr) return std::nullopt;
    return Partial(*node.input(i).node, node.input(i).index, depth + 1, search);
  }

  std::optional<PartialValue> ComputePartial(const Node& node, int output, int depth,
                                             Search* search) {
    if (IsPassedOn(node)) return InputPartial(node, 0, depth, search);
    std::optional<PartialValue> known = FollowOp(node, output, depth, search);
    if (known.has_value()) return known;
    if (const Tensor* value = Constant(node, output, depth, search); value != nullptr) {
      return PartialValue::FromTensor(*value);
    }
    // A known number of unknown elements still tells something to Pack and ConcatV2.
    if (node.is_const()) return std::nullopt;
    return PartialValue::Unknown(OutputShape(node, output));
  }

  // What the op's own rule says.
  std::optional<PartialValue> FollowOp(const Node& node, int output, int depth, Search* search) {
    const PartialValueRule* const rule = PartialValueRule::Find(node.op());
    if (node.op_entry() == nullptr || rule == nullptr) return std::nullopt;
    struct InputsOfNode : PartialValueContext::Source {
      std::optional<PartialValue> Value(int i) override {
        return impl->InputPartial(*node, i, depth, search);
      }
      PartialShape InputShape(int i) override {
        const OutputRef& in = node->input(i);
        return in.node == nullptr ? PartialShape() : impl->OutputShape(*in.node, in.index);
      }
      PartialShape OutputShape(int i) override { return impl->OutputShape(*node, i); }
      bool MayAssumeSuccess() override { return true; }
      Impl* impl;
      const Node* node;
      int depth;
      Search* search;
    } source;
    source.impl = this;
    source.node = &node;
    source.depth = depth;
    source.search = search;
    PartialValueContext context(node.attrs(), node.num_inputs(), output, node.output_type(output),
                                &source);
    return (*rule)(&context);
  }

  // Null when the value cannot be computed now. The tensor lives in the node's Info.
  const Tensor* Constant(const Node& node, int output, int depth, Search* search) {
    Info* info = Find(node);
    if (info == nullptr || !info->maybe_constant || output < 0 || output >= node.num_outputs() ||
        depth > kMaxConstantDepth) {
      return nullptr;
    }
    if (IsPassedOn(node)) {
      return Constant(*node.input(0).node, node.input(0).index, depth + 1, search);
    }
    info->values.resize(static_cast<size_t>(node.num_outputs()));
    std::unique_ptr<Tensor>& slot = info->values[static_cast<size_t>(output)];
    if (slot != nullptr) return slot.get();
    if (search->failed.contains(&node)) return nullptr;
    if (node.is_const()) {
      StatusOr<Tensor> value = GetAttr<Tensor>(node, "value");
      if (!value.ok()) return nullptr;
      slot = std::make_unique<Tensor>(*std::move(value));
      return slot.get();
    }
    if (IsIndexType(node.output_type(output))) {
      std::optional<PartialValue> value = FollowOp(node, output, depth, search);
      if (value.has_value()) {
        if (std::optional<Tensor> tensor = value->ToTensor(node.output_type(output))) {
          slot = std::make_unique<Tensor>(*std::move(tensor));
          return slot.get();
        }
      }
    }
    search->failed[&node] = true;  // unless the evaluator has it
    if (node.traits().describes_shape || evaluator == nullptr) return nullptr;
    for (const PartialShape& shape : info->shapes) {
      if (!shape.IsFullyDefined() || shape.num_elements() > kMaxConstantElements) return nullptr;
    }
    std::vector<Tensor> inputs;
    for (const OutputRef& input : node.inputs()) {
      const Tensor* value = Constant(*input.node, input.index, depth + 1, search);
      if (value == nullptr || value->num_elements() > kMaxConstantElements) return nullptr;
      inputs.push_back(*value);
    }
    StatusOr<std::vector<Tensor>> outputs = evaluator->Evaluate(node, inputs);
    // A node that cannot be computed here may still run in a step, and says then what is wrong.
    if (!outputs.ok() || outputs->size() != static_cast<size_t>(node.num_outputs())) return nullptr;
    for (size_t i = 0; i < outputs->size(); ++i) {
      if (info->values[i] == nullptr && (*outputs)[i].has_value()) {
        info->values[i] = std::make_unique<Tensor>(std::move((*outputs)[i]));
      }
    }
    search->failed.erase(&node);
    return info->values[static_cast<size_t>(output)].get();
  }

  StatusOr<PartialShape> ConstantShape(const Node& node, int output) {
    Search search;
    std::optional<PartialValue> value = Partial(node, output, 0, &search);
    if (!value.has_value()) return PartialShape();
    if (value->is_scalar) {
      const std::optional<int64_t>& element = value->elements[0];
      if (element.has_value() && *element != -1) {
        return InvalidArgument(
            "a shape must be a vector, or the scalar -1 when its rank is unknown, got "
            "the scalar ",
            *element);
      }
      return PartialShape();
    }
    if (value->elements.size() > static_cast<size_t>(Shape::kMaxRank)) {
      return InvalidArgument("a shape must have rank <= ", Shape::kMaxRank, ", got ",
                             value->elements.size());
    }
    std::vector<int64_t> dims;
    for (const auto& e : value->elements) dims.push_back(e && *e >= 0 ? *e : -1);
    return PartialShape::Make(dims);
  }

  ConstantEvaluator* const evaluator;
  // Of a function's body: what it may call, how deep it is, how many nodes may still be inferred.
  const FunctionLibrary* library = nullptr;
  int depth = 0;
  int* nodes_left = nullptr;
  HashMap<const Node*, std::unique_ptr<Info>> infos;
};

namespace {

// Gives one node's context its inputs' values.
template <typename Refiner>
class RefinerSource : public InferenceContext::Source {
 public:
  RefinerSource(Refiner* refiner, const Node* node) : refiner_(refiner), node_(node) {}
  const Tensor* ConstantInput(int i) override {
    if (i < 0 || i >= node_->num_inputs() || node_->input(i).node == nullptr) return nullptr;
    return refiner_->ConstantValue(*node_->input(i).node, node_->input(i).index);
  }
  StatusOr<PartialShape> ShapeInput(int i) override {
    if (i < 0 || i >= node_->num_inputs() || node_->input(i).node == nullptr) {
      return PartialShape();
    }
    StatusOr<PartialShape> shape =
        refiner_->ConstantShape(*node_->input(i).node, node_->input(i).index);
    if (!shape.ok()) return Prefixed(absl::StrCat("input ", i), shape.status());
    return shape;
  }
  std::optional<PartialValue> PartialInput(int i) override {
    if (i < 0 || i >= node_->num_inputs() || node_->input(i).node == nullptr) return std::nullopt;
    return refiner_->KnownInts(*node_->input(i).node, node_->input(i).index);
  }

 private:
  Refiner* refiner_;
  const Node* node_;
};

}  // namespace

// Functions as nodes of one refiner call them.
class ShapeRefiner::Functions : public FunctionShapes {
 public:
  // `nodes_left` of an outermost call is this object's.
  Functions(Impl* impl, const FunctionLibrary* library)
      : impl_(impl),
        library_(library),
        nodes_left_(impl->nodes_left == nullptr ? &own_nodes_left_ : impl->nodes_left) {}

  StatusOr<std::vector<KnownTensor>> Infer(const tensorflow::NameAttrList& function,
                                           absl::Span<const KnownTensor> arguments) override {
    const std::vector<KnownTensor> nothing;
    if (impl_->depth >= kMaxInferredCalls) return nothing;
    StatusOr<std::shared_ptr<const FunctionBody>> made = library_->Body(function);
    // An op that nobody knows is an error of who runs it.
    if (absl::IsUnimplemented(made.status())) return nothing;
    MR_RETURN_IF_ERROR(made.status());
    const FunctionBody& body = **made;
    if (arguments.size() != body.arguments.size()) {
      return InvalidArgument("Function '", function.name(), "': must have ", body.arguments.size(),
                             " arguments, got ", arguments.size());
    }
    *nodes_left_ -= body.graph->num_nodes();
    if (*nodes_left_ < 0) return nothing;

    ShapeRefiner refiner(impl_->evaluator);
    refiner.impl_->library = library_;
    refiner.impl_->depth = impl_->depth + 1;
    refiner.impl_->nodes_left = nodes_left_;
    for (size_t i = 0; i < arguments.size(); ++i) {
      refiner.impl_->SetKnown(*body.arguments[i], arguments[i]);
    }
    for (const Node* const node : body.order) {
      if (node->is_arg()) continue;
      MR_RETURN_IF_ERROR(
          Prefixed(absl::StrCat("Function '", function.name(), "'"), refiner.AddNode(*node)));
    }
    std::vector<KnownTensor> results;
    for (const Node* const node : body.results) {
      const OutputRef& source = node->input(0);
      results.push_back({refiner.OutputShape(*source.node, source.index),
                         refiner.OutputHandle(*source.node, source.index), nullptr});
    }
    return results;
  }

 private:
  Impl* const impl_;
  const FunctionLibrary* const library_;
  int own_nodes_left_ = kMaxInferredNodes;
  int* const nodes_left_;
};

// By the op's shape function, or through the function that the node calls by its name.
Status ShapeRefiner::Infer(const Node& node, InferenceContext* context) {
  if (node.body()->function() == nullptr) return node.op_entry()->shape_fn(context);
  tensorflow::NameAttrList call;
  call.set_name(node.op());
  *call.mutable_attr() = node.def().attr();
  return InferCall(context, call, {0, node.num_inputs()});
}

ShapeRefiner::ShapeRefiner(ConstantEvaluator* evaluator)
    : impl_(std::make_unique<Impl>(evaluator)) {}
ShapeRefiner::~ShapeRefiner() = default;

Status ShapeRefiner::AddNode(const Node& node) {
  auto info = std::make_unique<Impl::Info>();
  const size_t num_outputs = static_cast<size_t>(node.num_outputs());
  info->shapes.resize(num_outputs);
  info->handles.resize(num_outputs);
  info->maybe_constant = impl_->MaybeConstant(node);
  if (node.op_entry() == nullptr) {
    impl_->infos[&node] = std::move(info);
    return absl::OkStatus();
  }
  std::vector<PartialShape> inputs;
  std::vector<std::optional<HandleData>> handles;
  for (const OutputRef& input : node.inputs()) {
    inputs.push_back(input.node == nullptr ? PartialShape()
                                           : OutputShape(*input.node, input.index));
    handles.push_back(input.node == nullptr ? std::nullopt
                                            : OutputHandle(*input.node, input.index));
  }
  RefinerSource<ShapeRefiner> source(this, &node);
  Functions functions(impl_.get(),
                      impl_->library != nullptr ? impl_->library : &node.graph()->library());
  InferenceContext context(node.attrs(), &node.op_entry()->def, std::move(inputs),
                           std::move(handles), node.num_outputs(), &source, &functions);
  const std::string where = absl::StrCat(node.op(), " '", node.name(), "'");
  if (Status status = Infer(node, &context); !status.ok()) {
    // Some parts (attr look-ups) name the node themselves.
    return absl::StartsWith(status.message(), where) ? status : Prefixed(where, status);
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    if (!context.outputs()[i].valid()) {
      return InvalidArgument(where, ": output ", i, " must have at most ", Shape::kMaxElements,
                             " elements and rank ", Shape::kMaxRank, ", got more");
    }
    info->shapes[i] = context.outputs()[i];
    info->handles[i] = context.output_handles()[i];
  }
  // The op's rule sees the node alone, not which program made the graph.
  if (node.traits().feeding == Feeding::kRequired && num_outputs == 1) {
    info->shapes[0] =
        ShapeOfPlaceholder(node.op(), info->shapes[0], node.graph()->versions().producer());
  }
  impl_->infos[&node] = std::move(info);
  return absl::OkStatus();
}

PartialShape ShapeRefiner::OutputShape(const Node& node, int output) const {
  return impl_->OutputShape(node, output);
}

std::optional<HandleData> ShapeRefiner::OutputHandle(const Node& node, int output) const {
  const Impl::Info* info = impl_->Find(node);
  if (info == nullptr || output < 0 || static_cast<size_t>(output) >= info->handles.size()) {
    return std::nullopt;
  }
  return info->handles[static_cast<size_t>(output)];
}

const Tensor* ShapeRefiner::ConstantValue(const Node& node, int output) {
  Impl::Search search;
  return impl_->Constant(node, output, 0, &search);
}

std::optional<PartialValue> ShapeRefiner::KnownInts(const Node& node, int output) {
  Impl::Search search;
  return impl_->Partial(node, output, 0, &search);
}

StatusOr<PartialShape> ShapeRefiner::ConstantShape(const Node& node, int output) {
  return impl_->ConstantShape(node, output);
}

KnownTensor ShapeRefiner::Known(const Node& node, int output) {
  return {OutputShape(node, output), OutputHandle(node, output), ConstantValue(node, output)};
}

void ShapeRefiner::SetKnown(const Node& node, const KnownTensor& known) {
  impl_->SetKnown(node, known);
}

ConstantEvaluator* ShapeRefiner::evaluator() const { return impl_->evaluator; }

void ShapeRefiner::ReplaceOutputShape(const Node& node, int output, PartialShape shape) {
  Impl::Info* const info = impl_->Find(node);
  if (info == nullptr || static_cast<size_t>(output) >= info->shapes.size()) return;
  info->shapes[static_cast<size_t>(output)] = std::move(shape);
}

Status ShapeRefiner::MergeOutputShape(const Node& node, int output, const PartialShape& shape) {
  const std::string where = absl::StrCat(node.op(), " '", node.name(), "'");
  if (output < 0 || output >= node.num_outputs()) {
    return InvalidArgument(where, ": output must be in [0, ", node.num_outputs(), "), got ",
                           output);
  }
  if (!shape.valid()) {
    return InvalidArgument(where, ": output ", output,
                           " must get a legal shape, got an invalid one");
  }
  std::unique_ptr<Impl::Info>& info = impl_->infos[&node];
  if (info == nullptr) info = std::make_unique<Impl::Info>();
  const size_t n = static_cast<size_t>(node.num_outputs());
  if (info->shapes.size() < n) {
    info->shapes.resize(n);
    info->handles.resize(n);
  }
  PartialShape& known = info->shapes[static_cast<size_t>(output)];
  StatusOr<PartialShape> merged = known.MergeWith(shape);
  if (!merged.ok()) {
    return InvalidArgument(where, ": output ", output, " must have shape ", known.ToString(),
                           ", got ", shape.ToString());
  }
  known = *std::move(merged);
  return absl::OkStatus();
}

}  // namespace millrace
