// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/arithmetic.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/pure.h"

namespace millrace {
namespace {

// Larger constants are not looked at.
constexpr int64_t kMaxNeutralElements = 1024;

// The value of a constant operand that leaves the other as it is.
enum class Neutral { kZero, kPositiveZero, kNegativeZero, kOne };

template <typename T>
bool AllAre(const Tensor& tensor, Neutral neutral) {
  for (const T value : tensor.raw<T>()) {
    const bool fits = neutral == Neutral::kOne ? value == T{1} : value == T{0};
    if (!fits) return false;
    if constexpr (std::is_floating_point_v<T>) {
      if (neutral == Neutral::kPositiveZero && std::signbit(value)) return false;
      if (neutral == Neutral::kNegativeZero && !std::signbit(value)) return false;
    }
  }
  return true;
}

bool AllElementsAre(const Tensor& tensor, Neutral neutral) {
  switch (tensor.dtype()) {
    case DT_FLOAT:
      return AllAre<float>(tensor, neutral);
    case DT_DOUBLE:
      return AllAre<double>(tensor, neutral);
    case DT_INT8:
      return AllAre<int8_t>(tensor, neutral);
    case DT_INT16:
      return AllAre<int16_t>(tensor, neutral);
    case DT_INT32:
      return AllAre<int32_t>(tensor, neutral);
    case DT_INT64:
      return AllAre<int64_t>(tensor, neutral);
    case DT_UINT8:
      return AllAre<uint8_t>(tensor, neutral);
    case DT_UINT16:
      return AllAre<uint16_t>(tensor, neutral);
    default:
      return false;
  }
}

bool IsFloatOrDouble(DType type) { return type == DT_FLOAT || type == DT_DOUBLE; }

bool IsPlainInt(DType type) {
  return type == DT_INT8 || type == DT_INT16 || type == DT_INT32 || type == DT_INT64 ||
         type == DT_UINT8 || type == DT_UINT16;
}

// What operand `i` of a binary op must be for the other one to be the result, bit for bit.
std::optional<Neutral> NeutralOperand(absl::string_view op, DType type, int i) {
  const bool floating = IsFloatOrDouble(type);
  if (!floating && !IsPlainInt(type)) return std::nullopt;
  if (op == "Mul") return Neutral::kOne;
  // -0.0 + 0.0 is 0.0, but x + -0.0 is x for every x.
  if (op == "Add" || op == "AddV2") return floating ? Neutral::kNegativeZero : Neutral::kZero;
  if (i != 1) return std::nullopt;
  if (op == "Sub") return floating ? Neutral::kPositiveZero : Neutral::kZero;
  if (op == "Div" || op == "RealDiv") return Neutral::kOne;
  if (!floating && (op == "FloorDiv" || op == "TruncateDiv")) return Neutral::kOne;
  return std::nullopt;
}

// Arithmetic turns a signalling NaN into a quiet one and leaves that alone: a second operation
// finds nothing to quiet.
bool HasNoSignallingNaN(const OutputRef& tensor) {
  const DType type = tensor.node->output_type(tensor.index);
  if (IsPlainInt(type)) return true;
  const std::string& op = tensor.node->op();
  return tensor.node->op_entry() != nullptr &&
         (op == "Add" || op == "AddV2" || op == "Sub" || op == "Mul" || op == "RealDiv" ||
          op == "Div" || op == "Sqrt" || op == "Exp" || op == "Tanh" || op == "Sigmoid");
}

// Of two of these in a row nothing is left.
bool UndoesItself(absl::string_view op) {
  return op == "Neg" || op == "Conj" || op == "LogicalNot";
}

class Simplifier {
 public:
  explicit Simplifier(RewriteContext* context) : context_(context) {}

  StatusOr<bool> Visit(Node* node) {
    if (node->num_outputs() != 1 || node->num_inputs() < 1) return false;
    std::optional<OutputRef> equal;
    std::vector<Node*> controls(node->control_inputs().begin(), node->control_inputs().end());
    if (node->op() == "AddN" || node->op() == "AccumulateNV2") {
      if (node->num_inputs() == 1) equal = node->input(0);
    } else if (UndoesItself(node->op()) && node->num_inputs() == 1) {
      equal = UndoneInput(*node, &controls);
    } else if (node->num_inputs() == 2) {
      equal = OperandThatStays(*node, &controls);
    }
    if (!equal || !CheckIsPure(*node).ok()) return false;
    RemoveDoubles(&controls);
    return context_->Bypass(node, *equal, controls);
  }

 private:
  std::optional<OutputRef> UndoneInput(const Node& node, std::vector<Node*>* controls) {
    const Node* inner = node.input(0).node;
    if (inner == nullptr || inner->op() != node.op() || inner->num_inputs() != 1 ||
        inner->op_entry() != node.op_entry() || inner->input(0).node == nullptr) {
      return std::nullopt;
    }
    controls->insert(controls->end(), inner->control_inputs().begin(),
                     inner->control_inputs().end());
    context_->MarkUnneeded(*inner);  // flipping signs cannot fail
    return inner->input(0);
  }

  std::optional<OutputRef> OperandThatStays(const Node& node, std::vector<Node*>* controls) {
    for (const int i : {1, 0}) {
      const OutputRef& constant = node.input(i);
      const OutputRef& other = node.input(1 - i);
      if (constant.node == nullptr || other.node == nullptr || !IsConst(*constant.node)) continue;
      const std::optional<Neutral> neutral = NeutralOperand(node.op(), node.output_type(0), i);
      if (!neutral || !HasNoSignallingNaN(other)) continue;
      const int64_t elements = ConstElements(*constant.node);
      if (elements < 0 || elements > kMaxNeutralElements) continue;
      const StatusOr<Tensor> value = ConstValue(*constant.node);
      if (!value.ok() || !AllElementsAre(*value, *neutral)) continue;
      if (!KeepsShape(other, value->shape())) continue;
      if (!context_->AppendOrderAfter(constant, controls)) continue;
      return other;
    }
    return std::nullopt;
  }

  // Whether broadcasting `tensor` with `shape` gives the tensor's own shape.
  bool KeepsShape(const OutputRef& tensor, const Shape& shape) {
    if (shape.is_scalar()) return true;
    const PartialShape known = context_->ShapeOf(tensor);
    if (!known.has_rank() || known.rank() < shape.rank()) return false;
    for (int d = 0; d < shape.rank(); ++d) {
      const int64_t dim = known.dim(known.rank() - shape.rank() + d);
      if (shape.dim(d) != 1 && shape.dim(d) != dim) return false;
    }
    return true;
  }

  RewriteContext* const context_;
};

}  // namespace

StatusOr<int> SimplifyArithmetic(RewriteContext* context) {
  Simplifier simplifier(context);
  int changed = 0;
  for (const int id : context->Order()) {
    Node* node = context->node(id);
    if (node == nullptr) continue;
    MR_ASSIGN_OR_RETURN(const bool simplified, simplifier.Visit(node));
    changed += simplified;
  }
  return changed;
}

}  // namespace millrace
