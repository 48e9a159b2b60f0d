// SPDX-License-Identifier: Apache-2.0
#include "graph/shape_inference.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "core/tensor_proto.h"
#include "graph/op_registry.h"

namespace millrace {
namespace {

// An int scalar or vector of which single elements may be unknown: what shape arithmetic computes.
struct PartialValue {
  bool is_scalar = false;
  std::vector<std::optional<int64_t>> elements;
};

// Integer arithmetic of the cwise ops that shapes are computed with; nullopt for others.
std::optional<int64_t> ApplyBinary(absl::string_view op, int64_t a, int64_t b) {
  int64_t r = 0;
  bool overflow = false;
  if (op == "Add" || op == "AddV2") {
    overflow = __builtin_add_overflow(a, b, &r);
    return overflow ? std::nullopt : std::optional<int64_t>(r);
  }
  if (op == "Sub") {
    overflow = __builtin_sub_overflow(a, b, &r);
    return overflow ? std::nullopt : std::optional<int64_t>(r);
  }
  if (op == "Mul") {
    overflow = __builtin_mul_overflow(a, b, &r);
    return overflow ? std::nullopt : std::optional<int64_t>(r);
  }
  if (op == "Maximum") return std::max(a, b);
  if (op == "Minimum") return std::min(a, b);
  if (op == "FloorDiv" || op == "FloorMod") {
    if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return std::nullopt;
    const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    return op == "FloorDiv" ? quotient : a - quotient * b;
  }
  return std::nullopt;
}

bool IsShapeArithmetic(absl::string_view op) {
  return op == "Add" || op == "AddV2" || op == "Sub" || op == "Mul" || op == "Maximum" ||
         op == "Minimum" || op == "FloorDiv" || op == "FloorMod";
}

bool IsShapeDescription(absl::string_view op) {
  return op == "Shape" || op == "ShapeN" || op == "Size" || op == "Rank";
}

bool IsIndexType(DType type) { return type == DT_INT32 || type == DT_INT64; }

std::optional<PartialValue> FromTensor(const Tensor& tensor) {
  if (!IsIndexType(tensor.dtype()) || tensor.rank() > 1 ||
      tensor.num_elements() > kMaxConstantElements) {
    return std::nullopt;
  }
  PartialValue value;
  value.is_scalar = tensor.rank() == 0;
  if (tensor.dtype() == DT_INT32) {
    const auto data = tensor.raw<int32_t>();
    value.elements.assign(data.begin(), data.end());
  } else {
    const auto data = tensor.raw<int64_t>();
    value.elements.assign(data.begin(), data.end());
  }
  return value;
}

// Null unless every element is known and fits `dtype`.
StatusOr<Tensor> ToTensor(const PartialValue& value, DType dtype) {
  const Shape shape = value.is_scalar ? Shape() : Shape::Vector(value.elements.size());
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, shape));
  for (size_t i = 0; i < value.elements.size(); ++i) {
    const std::optional<int64_t>& element = value.elements[i];
    if (!element.has_value()) return absl::NotFoundError("not constant");
    if (dtype == DT_INT32) {
      if (*element < std::numeric_limits<int32_t>::min() ||
          *element > std::numeric_limits<int32_t>::max()) {
        return absl::NotFoundError("not constant");
      }
      tensor.mutable_raw<int32_t>()[i] = static_cast<int32_t>(*element);
    } else {
      tensor.mutable_raw<int64_t>()[i] = *element;
    }
  }
  return tensor;
}

}  // namespace

InferenceContext::InferenceContext(const NodeAttrs& attrs, const tensorflow::OpDef* op,
                                   std::vector<PartialShape> inputs,
                                   std::vector<std::optional<HandleData>> input_handles,
                                   int num_outputs, Source* source)
    : attrs_(attrs),
      op_(op),
      inputs_(std::move(inputs)),
      input_handles_(std::move(input_handles)),
      outputs_(static_cast<size_t>(num_outputs)),
      output_handles_(static_cast<size_t>(num_outputs)),
      source_(source) {
  input_handles_.resize(inputs_.size());
}

StatusOr<PartialShape> InferenceContext::input_as_shape(int i) {
  const PartialShape& in = input(i);
  if (in.has_rank() && in.rank() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input ", i, " must be a vector that gives a shape, got shape ", in.ToString()));
  }
  if (in.has_rank() && in.rank() == 1 && in.dim(0) > Shape::kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input ", i, " must give a shape of rank <= ", Shape::kMaxRank, ", got ", in.dim(0)));
  }
  PartialShape result;
  if (source_ != nullptr) {
    MR_ASSIGN_OR_RETURN(result, source_->ShapeInput(i));
  }
  if (!result.has_rank() && in.has_rank() && in.rank() == 1 && in.dim(0) >= 0) {
    return PartialShape::UnknownOfRank(static_cast<int>(in.dim(0)));
  }
  return result;
}

StatusOr<PartialShape> InferenceContext::InputWithRank(int i, int rank) const {
  const PartialShape& in = input(i);
  if (!in.has_rank()) return PartialShape::UnknownOfRank(rank);
  if (in.rank() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", i, " must have rank ", rank, ", got shape ", in.ToString()));
  }
  return in;
}

StatusOr<PartialShape> InferenceContext::InputWithRankAtLeast(int i, int rank) const {
  const PartialShape& in = input(i);
  if (in.has_rank() && in.rank() < rank) {
    return absl::InvalidArgumentError(absl::StrCat("input ", i, " must have rank at least ", rank,
                                                   ", got shape ", in.ToString()));
  }
  return in;
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
    return absl::InvalidArgumentError(
        absl::StrCat("must have 2 inputs to broadcast, got ", c->num_inputs()));
  }
  MR_ASSIGN_OR_RETURN(PartialShape shape, BroadcastShape(c->input(0), c->input(1)));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, shape);
  return absl::OkStatus();
}

Status ValueDependentShape(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, PartialShape());
  return absl::OkStatus();
}

StatusOr<PartialShape> MergeAll(InferenceContext* c, int begin_input, int end_input) {
  PartialShape merged;
  for (int i = begin_input; i < end_input; ++i) {
    StatusOr<PartialShape> next = merged.MergeWith(c->input(i));
    if (!next.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", i, " must have the shape of the inputs before it, ",
                       merged.ToString(), ", got ", c->input(i).ToString()));
    }
    merged = *std::move(next);
  }
  return merged;
}

void ForwardInputToOutput(InferenceContext* c, int input, int output) {
  c->set_output(output, c->input(input));
  if (c->input_handle(input).has_value()) c->set_output_handle(output, *c->input_handle(input));
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

  // Nodes whose value a search has failed to find, so that it visits none twice.
  struct Search {
    absl::flat_hash_map<std::pair<const Node*, int>, std::optional<PartialValue>> partial;
    absl::flat_hash_map<const Node*, bool> failed;
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

  bool MaybeConstant(const Node& node) {
    if (node.op_entry() == nullptr || node.is_stateful() || node.num_outputs() == 0) return false;
    if (node.op() == "Const" || IsShapeDescription(node.op())) return true;
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

  // One known int of an input; nullopt when it is not one.
  std::optional<int64_t> InputInt(const Node& node, int i, int depth, Search* search) {
    std::optional<PartialValue> value = InputPartial(node, i, depth, search);
    if (!value.has_value() || value->elements.size() != 1) return std::nullopt;
    return value->elements[0];
  }

  static std::optional<PartialValue> AllUnknown(const PartialShape& shape) {
    if (!shape.has_rank() || shape.rank() > 1) return std::nullopt;
    PartialValue value;
    value.is_scalar = shape.rank() == 0;
    if (!value.is_scalar && (shape.dim(0) < 0 || shape.dim(0) > kMaxConstantElements)) {
      return std::nullopt;
    }
    value.elements.resize(value.is_scalar ? 1 : static_cast<size_t>(shape.dim(0)));
    return value;
  }

  std::optional<PartialValue> ComputePartial(const Node& node, int output, int depth,
                                             Search* search) {
    const std::string& op = node.op();
    std::optional<PartialValue> known = FollowOp(node, output, depth, search);
    if (known.has_value()) return known;
    if (const Tensor* value = Constant(node, output, depth, search); value != nullptr) {
      return FromTensor(*value);
    }
    // A known number of unknown elements still tells something to Pack and ConcatV2.
    if (op == "Const") return std::nullopt;
    return AllUnknown(OutputShape(node, output));
  }

  std::optional<PartialValue> FollowOp(const Node& node, int output, int depth, Search* search) {
    const std::string& op = node.op();
    PartialValue result;
    if (op == "Shape" || op == "ShapeN") {
      if (output >= node.num_inputs() || node.input(output).node == nullptr) return std::nullopt;
      const OutputRef& in = node.input(output);
      const PartialShape shape = OutputShape(*in.node, in.index);
      if (!shape.has_rank()) return std::nullopt;
      for (int64_t dim : shape.dims()) {
        result.elements.push_back(dim < 0 ? std::nullopt : std::optional<int64_t>(dim));
      }
      return result;
    }
    if (op == "Rank" || op == "Size") {
      if (node.num_inputs() < 1 || node.input(0).node == nullptr) return std::nullopt;
      const PartialShape shape = OutputShape(*node.input(0).node, node.input(0).index);
      result.is_scalar = true;
      result.elements.resize(1);
      if (op == "Rank" && shape.has_rank()) result.elements[0] = shape.rank();
      if (op == "Size" && shape.IsFullyDefined()) result.elements[0] = shape.num_elements();
      return result;
    }
    if (op == "Identity" || op == "StopGradient" || op == "Snapshot") {
      return InputPartial(node, 0, depth, search);
    }
    if (op == "Cast") {
      std::optional<PartialValue> value = InputPartial(node, 0, depth, search);
      if (value.has_value() && node.output_type(0) == DT_INT32) {
        for (auto& e : value->elements) {
          if (e.has_value() && (*e < std::numeric_limits<int32_t>::min() ||
                                *e > std::numeric_limits<int32_t>::max())) {
            e.reset();
          }
        }
      }
      return value;
    }
    if (op == "ExpandDims" || op == "Squeeze" || op == "Reshape") {
      // Scalar <-> vector of one element; a vector may also keep its shape.
      std::optional<PartialValue> value = InputPartial(node, 0, depth, search);
      const PartialShape out = OutputShape(node, 0);
      if (!value.has_value() || !out.has_rank() || out.rank() > 1) return std::nullopt;
      if (out.rank() == 0 && value->elements.size() != 1) return std::nullopt;
      value->is_scalar = out.rank() == 0;
      return value;
    }
    if (op == "Pack") {
      const PartialShape out = OutputShape(node, 0);
      for (int i = 0; i < node.num_inputs(); ++i) {
        std::optional<PartialValue> value = InputPartial(node, i, depth, search);
        if (value.has_value() && !value->is_scalar) return std::nullopt;
        if (!value.has_value()) {
          // Not even its rank is known unless its shape says so.
          if (node.input(i).node == nullptr) return std::nullopt;
          const PartialShape in = OutputShape(*node.input(i).node, node.input(i).index);
          if (!(in.has_rank() && in.rank() == 0) && !(out.has_rank() && out.rank() == 1)) {
            return std::nullopt;
          }
          result.elements.emplace_back();
        } else {
          result.elements.push_back(value->elements[0]);
        }
      }
      return result;
    }
    if (op == "ConcatV2" || op == "Concat") {
      const int first = op == "Concat" ? 1 : 0;
      const int end = node.num_inputs() - (op == "ConcatV2" ? 1 : 0);
      for (int i = first; i < end; ++i) {
        std::optional<PartialValue> value = InputPartial(node, i, depth, search);
        if (!value.has_value() || value->is_scalar) return std::nullopt;
        result.elements.insert(result.elements.end(), value->elements.begin(),
                               value->elements.end());
        if (result.elements.size() > static_cast<size_t>(kMaxConstantElements)) {
          return std::nullopt;
        }
      }
      return result;
    }
    if (op == "Slice") {
      std::optional<PartialValue> value = InputPartial(node, 0, depth, search);
      const std::optional<int64_t> begin = InputInt(node, 1, depth, search);
      const std::optional<int64_t> size = InputInt(node, 2, depth, search);
      if (!value.has_value() || value->is_scalar || !begin || !size) return std::nullopt;
      const int64_t n = static_cast<int64_t>(value->elements.size());
      if (*begin < 0 || *begin > n) return std::nullopt;
      const int64_t count = *size == -1 ? n - *begin : *size;
      if (count < 0 || count > n - *begin) return std::nullopt;
      result.elements.assign(value->elements.begin() + *begin,
                             value->elements.begin() + *begin + count);
      return result;
    }
    if (op == "StridedSlice") return FollowStridedSlice(node, depth, search);
    if (op == "Gather" || op == "GatherV2") {
      std::optional<PartialValue> value = InputPartial(node, 0, depth, search);
      std::optional<PartialValue> indices = InputPartial(node, 1, depth, search);
      if (!value.has_value() || value->is_scalar || !indices.has_value()) return std::nullopt;
      result.is_scalar = indices->is_scalar;
      for (const std::optional<int64_t>& i : indices->elements) {
        if (i && (*i < 0 || *i >= static_cast<int64_t>(value->elements.size()))) {
          return std::nullopt;
        }
        result.elements.push_back(i ? value->elements[static_cast<size_t>(*i)] : std::nullopt);
      }
      return result;
    }
    if (op == "Prod") {
      const PartialShape out = OutputShape(node, 0);
      std::optional<PartialValue> value = InputPartial(node, 0, depth, search);
      // Of a vector over its only axis.
      std::optional<PartialValue> axes = InputPartial(node, 1, depth, search);
      if (!value.has_value() || value->is_scalar || !axes.has_value() ||
          axes->elements.size() != 1 || !axes->elements[0] || !out.has_rank() || out.rank() > 1) {
        return std::nullopt;
      }
      std::optional<int64_t> product = 1;
      for (const auto& e : value->elements) {
        if (!product || !e) {
          product.reset();
          break;
        }
        product = ApplyBinary("Mul", *product, *e);
      }
      result.is_scalar = out.rank() == 0;
      result.elements = {product};
      return result;
    }
    if (IsShapeArithmetic(op)) {
      std::optional<PartialValue> a = InputPartial(node, 0, depth, search);
      std::optional<PartialValue> b = InputPartial(node, 1, depth, search);
      if (!a || !b) return std::nullopt;
      const size_t n = std::max(a->elements.size(), b->elements.size());
      for (const auto* v : {&*a, &*b}) {
        if (v->elements.size() != n && v->elements.size() != 1) return std::nullopt;
      }
      result.is_scalar = a->is_scalar && b->is_scalar;
      // Two int32 operands wrap at 32 bits at run time: what does not fit is not known.
      const bool narrow = node.output_type(0) == DT_INT32;
      for (size_t i = 0; i < n; ++i) {
        const auto& x = a->elements[a->elements.size() == 1 ? 0 : i];
        const auto& y = b->elements[b->elements.size() == 1 ? 0 : i];
        std::optional<int64_t> r = x && y ? ApplyBinary(op, *x, *y) : std::nullopt;
        if (r && narrow &&
            (*r < std::numeric_limits<int32_t>::min() ||
             *r > std::numeric_limits<int32_t>::max())) {
          r.reset();
        }
        result.elements.push_back(r);
      }
      return result;
    }
    return std::nullopt;
  }

  // A slice or one element of a vector, with known constant bounds.
  std::optional<PartialValue> FollowStridedSlice(const Node& node, int depth, Search* search) {
    std::optional<PartialValue> value = InputPartial(node, 0, depth, search);
    if (!value.has_value() || value->is_scalar) return std::nullopt;
    auto mask = [&](const char* name) {
      StatusOr<int64_t> bits = GetAttr<int64_t>(node, name);
      return bits.ok() ? *bits : 0;
    };
    if (mask("ellipsis_mask") != 0 || mask("new_axis_mask") != 0) return std::nullopt;
    const int64_t n = static_cast<int64_t>(value->elements.size());
    const std::optional<int64_t> stride = InputInt(node, 3, depth, search);
    if (!stride || *stride == 0) return std::nullopt;
    const bool begin_masked = (mask("begin_mask") & 1) != 0;
    const bool end_masked = (mask("end_mask") & 1) != 0;
    std::optional<int64_t> begin = InputInt(node, 1, depth, search);
    std::optional<int64_t> end = InputInt(node, 2, depth, search);
    PartialValue result;
    if ((mask("shrink_axis_mask") & 1) != 0) {
      if (!begin) return std::nullopt;
      const int64_t at = begin_masked ? 0 : (*begin < 0 ? *begin + n : *begin);
      if (at < 0 || at >= n) return std::nullopt;
      result.is_scalar = true;
      result.elements = {value->elements[static_cast<size_t>(at)]};
      return result;
    }
    if ((!begin && !begin_masked) || (!end && !end_masked)) return std::nullopt;
    const int64_t low = *stride > 0 ? 0 : -1;
    const int64_t high = *stride > 0 ? n : n - 1;
    auto clamp = [&](int64_t i) { return std::clamp(i < 0 ? i + n : i, low, high); };
    const int64_t from = begin_masked ? (*stride > 0 ? low : high) : clamp(*begin);
    const int64_t to = end_masked ? (*stride > 0 ? high : low) : clamp(*end);
    // A stride beyond the length visits one element at most; cutting it avoids overflow.
    const int64_t step = std::clamp(*stride, -(n + 1), n + 1);
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
      result.elements.push_back(value->elements[static_cast<size_t>(i)]);
    }
    return result;
  }

  // Null when the value cannot be computed now. The tensor lives in the node's Info.
  const Tensor* Constant(const Node& node, int output, int depth, Search* search) {
    Info* info = Find(node);
    if (info == nullptr || !info->maybe_constant || output < 0 || output >= node.num_outputs() ||
        depth > kMaxConstantDepth) {
      return nullptr;
    }
    info->values.resize(static_cast<size_t>(node.num_outputs()));
    std::unique_ptr<Tensor>& slot = info->values[static_cast<size_t>(output)];
    if (slot != nullptr) return slot.get();
    if (search->failed.contains(&node)) return nullptr;
    if (node.op() == "Const") {
      StatusOr<Tensor> value = GetAttr<Tensor>(node, "value");
      if (!value.ok()) return nullptr;
      slot = std::make_unique<Tensor>(*std::move(value));
      return slot.get();
    }
    if (IsIndexType(node.output_type(output))) {
      std::optional<PartialValue> value = FollowOp(node, output, depth, search);
      if (value.has_value()) {
        StatusOr<Tensor> tensor = ToTensor(*value, node.output_type(output));
        if (tensor.ok()) {
          slot = std::make_unique<Tensor>(*std::move(tensor));
          return slot.get();
        }
      }
    }
    search->failed[&node] = true;  // unless the evaluator has it
    if (IsShapeDescription(node.op()) || evaluator == nullptr) return nullptr;
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
        return absl::InvalidArgumentError(
            absl::StrCat("a shape must be a vector, or the scalar -1 when its rank is unknown, got "
                         "the scalar ",
                         *element));
      }
      return PartialShape();
    }
    if (value->elements.size() > static_cast<size_t>(Shape::kMaxRank)) {
      return absl::InvalidArgumentError(absl::StrCat("a shape must have rank <= ", Shape::kMaxRank,
                                                     ", got ", value->elements.size()));
    }
    std::vector<int64_t> dims;
    for (const auto& e : value->elements) dims.push_back(e && *e >= 0 ? *e : -1);
    return PartialShape::Make(dims);
  }

  ConstantEvaluator* const evaluator;
  absl::flat_hash_map<const Node*, std::unique_ptr<Info>> infos;
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

 private:
  Refiner* refiner_;
  const Node* node_;
};

}  // namespace

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
  InferenceContext context(node.attrs(), &node.op_entry()->def, std::move(inputs),
                           std::move(handles), node.num_outputs(), &source);
  const std::string where = absl::StrCat(node.op(), " '", node.name(), "'");
  if (Status status = node.op_entry()->shape_fn(&context); !status.ok()) {
    // Some parts (attr look-ups) name the node themselves.
    return absl::StartsWith(status.message(), where) ? status : Prefixed(where, status);
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    if (!context.outputs()[i].valid()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": output ", i, " must have at most ",
                                                     Shape::kMaxElements, " elements and rank ",
                                                     Shape::kMaxRank, ", got more"));
    }
    info->shapes[i] = context.outputs()[i];
    info->handles[i] = context.output_handles()[i];
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

StatusOr<PartialShape> ShapeRefiner::ConstantShape(const Node& node, int output) {
  return impl_->ConstantShape(node, output);
}

Status ShapeRefiner::MergeOutputShape(const Node& node, int output, const PartialShape& shape) {
  const std::string where = absl::StrCat(node.op(), " '", node.name(), "'");
  if (output < 0 || output >= node.num_outputs()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": output must be in [0, ", node.num_outputs(), "), got ", output));
  }
  if (!shape.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": output ", output, " must get a legal shape, got an invalid one"));
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
    return absl::InvalidArgumentError(absl::StrCat(where, ": output ", output, " must have shape ",
                                                   known.ToString(), ", got ", shape.ToString()));
  }
  known = *std::move(merged);
  return absl::OkStatus();
}

}  // namespace millrace
