// SPDX-License-Identifier: Apache-2.0
#include "ops/operators.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/control_flow_context.h"
#include "graph/node_builder.h"
#include "ops/array/constant.h"
#include "ops/array/slice.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"

namespace millrace {

Output Output::operator[](const RowIndex& row) const {
  const std::optional<Scope> home = Scope::HomeOf(*this);
  if (!home || !home->ok()) return Output();
  const Scope named = home->WithName("strided_slice");
  const int64_t end = row.index + 1;  // 0 behind the last element: it is left out
  return StridedSlice({named, row.where}, *this, {row.index}, {end}, {1},
                      {.end_mask = end == 0 ? 1 : 0, .shrink_axis_mask = 1});
}

namespace operators_internal {
namespace {

// TensorFlow's names of the nodes.
const char* NameOf(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "add";
    case Operator::kSub:
      return "sub";
    case Operator::kMul:
      return "mul";
    case Operator::kTrueDiv:
      return "truediv";
  }
  return "";
}

// What a dtype is divided as.
DType QuotientType(DType dtype) {
  if (!IsInteger(dtype)) return dtype;
  return DTypeSize(dtype) < 4 ? DT_FLOAT : DT_DOUBLE;
}

const Output* OutputOf(const OutputOperand& x) {
  return x.value().is_number() ? nullptr : &x.value().output();
}

// The place of the first Output that has one; of the other one where that is of a function, branch
// or loop inside of the first one's.
std::optional<Scope> HomeOf(const OutputOperand& x, const OutputOperand& y) {
  std::optional<Scope> found;
  for (const OutputOperand* operand : {&x, &y}) {
    const Output* const output = OutputOf(*operand);
    if (output == nullptr) continue;
    std::optional<Scope> home = Scope::HomeOf(*output);
    if (!home) continue;
    if (found) {
      const bool is_inside =
          home->function_depth() == found->function_depth()
              ? home->context() != found->context() && Reaches(home->context(), found->context())
              : home->function_depth() > found->function_depth();
      if (!is_inside) continue;
    }
    found = std::move(home);
  }
  return found;
}

// The builder of one operator's nodes: `<name>` and its inputs `<name>/...`.
class OperatorNodes {
 public:
  OperatorNodes(const Scope& home, Operator op, const std::source_location& where)
      : name_(home.UniqueName(NameOf(op))),
        home_(home),
        inputs_(home.WithSubScope(name_ + "/")),
        where_(where) {}

  // The operand; a number in the dtype of `other`, the other operand.
  Output Input(const char* name, const OutputOperand& operand, const OutputOperand& other) const {
    if (const Output* output = OutputOf(operand)) return *output;
    const DType dtype = WithoutRef(OutputOf(other)->dtype());
    const StatusOr<Tensor> number = operand.value().NumberAs(dtype);
    if (number.ok()) return Const(ScopeAt(inputs_.WithName(name), where_), *number);
    // Names the number and, by the Output that has it, the dtype.
    home_.UpdateStatus(Suffixed(Prefixed(absl::StrCat("operator '", name_, "'"), number.status()),
                                absl::StrCat(", next to '", OutputOf(other)->name(), "'")),
                       where_);
    return Output();
  }
  Output CastTo(DType dtype, Output x) const {
    return WithoutRef(x.dtype()) == dtype ? x : Cast(ScopeAt(inputs_, where_), x, dtype);
  }
  Output Build(const BinaryBuilder& builder, const Output& x, const Output& y) const {
    return builder(ScopeAt(home_.WithName(name_ + "/"), where_), x, y);
  }

 private:
  const std::string name_;
  const Scope home_;
  const Scope inputs_;
  const std::source_location where_;
};

}  // namespace

Output Apply(Operator op, const OutputOperand& x, const OutputOperand& y,
             std::source_location where) {
  const std::optional<Scope> home = HomeOf(x, y);
  if (!home || !home->ok()) return Output();
  const OperatorNodes nodes(*home, op, where);
  Output left = nodes.Input("x", x, y);
  Output right = nodes.Input("y", y, x);
  if (!home->ok()) return Output();
  switch (op) {
    case Operator::kAdd:
      // AddV2 does not join strings.
      return nodes.Build(WithoutRef(left.dtype()) == DT_STRING ? Add : AddV2, left, right);
    case Operator::kSub:
      return nodes.Build(Sub, left, right);
    case Operator::kMul:
      return nodes.Build(Mul, left, right);
    case Operator::kTrueDiv:
      break;
  }
  // Of two dtypes or an invalid Output, RealDiv tells what is wrong.
  const DType dtype = WithoutRef(left.dtype());
  if (left.valid() && right.valid() && left.node()->graph() == right.node()->graph() &&
      WithoutRef(right.dtype()) == dtype) {
    left = nodes.CastTo(QuotientType(dtype), left);
    right = nodes.CastTo(QuotientType(dtype), right);
  }
  return nodes.Build(RealDiv, left, right);
}

Output Negate(const OutputOperand& x) {
  const std::optional<Scope> home = HomeOf(x, x);
  if (!home) return Output();
  return Neg(ScopeAt(*home, x.where()), *OutputOf(x));
}

}  // namespace operators_internal
}  // namespace millrace
