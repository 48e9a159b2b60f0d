// SPDX-License-Identifier: Apache-2.0
// Element-wise ops of two tensors: the kernel is in ops/kernels/cwise.h; the gradients are summed
// back over the axes that were repeated. And broadcasting itself.
#include "ops/math/cwise_binary.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/later_attrs.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/scalar_like.h"
#include "ops/kernels/cwise.h"
#include "ops/loops/broadcast.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/select.h"
#include "ops/rules/elements.h"
#include "ops/rules/shape_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::BinaryOp;

// --- Gradients -----------------------------------------------------------------------------------

// The gradients of x and y in the shape of the result, each summed back to its input.
std::vector<Output> SumToInputs(GradientContext* c, Output x_grad, Output y_grad) {
  return {SumToInput(c->scope(), x_grad, c->input(0), c->input(1)),
          SumToInput(c->scope(), y_grad, c->input(1), c->input(0))};
}

// `kGradients` gives both from the incoming gradient g and the (conjugates of the) inputs.
using Pair = std::pair<Output, Output>;
template <Pair (*kGradients)(const Scope& s, Output g, Output x, Output y)>
std::vector<Output> FromInputs(GradientContext* c) {
  const Scope& s = c->scope();
  const auto [x_grad, y_grad] =
      kGradients(s, c->dense_grad(), Conjugate(s, c->input(0)), Conjugate(s, c->input(1)));
  return SumToInputs(c, x_grad, y_grad);
}

std::vector<Output> AddGradient(GradientContext* c) {
  const Output g = c->dense_grad();
  return SumToInputs(c, g, g);
}

std::vector<Output> SubGradient(GradientContext* c) {
  const Output g = c->dense_grad();
  return SumToInputs(c, g, Neg(c->scope(), g));
}

// 2 (x - y), of |x - y|^2. Its imaginary part is always 0, so of a complex gradient the real part
// counts: g + conj(g) is twice that.
std::vector<Output> SquaredDifferenceGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  const Output twice =
      IsComplex(g.dtype()) ? Add(s, g, Conj(s, g)) : Mul(s, g, ScalarLike(s, c->input(0), 2));
  const Output x_grad = Mul(s, twice, Sub(s, c->input(0), c->input(1)));
  return SumToInputs(c, x_grad, Neg(s, x_grad));
}

// Of MulNoNan, too: its factors follow the same rule, 0 where y is 0.
template <const BinaryBuilder& kMultiply>
Pair OfProduct(const Scope& s, Output g, Output x, Output y) {
  return {kMultiply(s, g, y), kMultiply(s, x, g)};
}

// d(x/y)/dx = 1/y, d(x/y)/dy = -(x/y)/y.
template <const BinaryBuilder& kDivide>
Pair OfQuotient(const Scope& s, Output g, Output x, Output y) {
  return {kDivide(s, g, y), Mul(s, g, kDivide(s, kDivide(s, Neg(s, x), y), y))};
}

// x - y * floor(x / y)
Pair OfFloorMod(const Scope& s, Output g, Output x, Output y) {
  return {g, Mul(s, g, Neg(s, FloorDiv(s, x, y)))};
}

// The gradient goes to the input that was chosen; to x when both are equal.
template <const BinaryBuilder& kChoosesX>
Pair OfExtreme(const Scope& s, Output g, Output x, Output y) {
  const Output x_is_chosen = kChoosesX(s, x, y);
  const Output zeros = ZerosLike(s, g);
  return {Select(s, x_is_chosen, g, zeros), Select(s, x_is_chosen, zeros, g)};
}

// Input 0 is y, input 1 is x: d/dy = x / (x^2 + y^2), d/dx = -y / (x^2 + y^2).
Pair OfAtan2(const Scope& s, Output g, Output y, Output x) {
  const Output scaled = RealDiv(s, g, Add(s, Square(s, x), Square(s, y)));
  return {Mul(s, x, scaled), Mul(s, Neg(s, y), scaled)};
}

// d(x^y)/dx = y x^(y-1); d(x^y)/dy = x^y log x, 0 where x <= 0 (for complex numbers: where x is 0).
std::vector<Output> PowGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  const Output x = Conjugate(s, c->input(0));
  const Output y = Conjugate(s, c->input(1));
  const Output z = Conjugate(s, c->output(0));
  const Output one = ScalarLike(s, x, 1);
  const Output x_grad = Mul(s, Mul(s, g, y), Pow(s, x, Sub(s, y, one)));
  const Output zeros = ZerosLike(s, x);
  const Output positive = IsComplex(x.dtype()) ? NotEqual(s, x, zeros) : Greater(s, x, zeros);
  const Output safe_x = Select(s, positive, x, OnesLike(s, x));
  const Output log_x = Select(s, positive, Log(s, safe_x), zeros);
  return SumToInputs(c, x_grad, Mul(s, Mul(s, g, z), log_x));
}

// --- What is known of ints, element by element (graph/partial_value.h) ---------------------------

// Nothing that an op does overflows in 128 bits. kNothing is no result.
__extension__ using Wide = __int128;
constexpr Wide kNothing = Wide{1} << 100;

template <Wide (*kFn)(Wide a, Wide b)>
std::optional<PartialValue> ElementwiseValue(PartialValueContext* c) {
  const std::optional<PartialValue> x = c->input(0);
  const std::optional<PartialValue> y = c->input(1);
  if (!x || !y) return std::nullopt;
  const size_t xn = x->elements.size(), yn = y->elements.size();
  if (xn != yn && xn != 1 && yn != 1) return std::nullopt;
  PartialValue z;
  z.is_scalar = x->is_scalar && y->is_scalar;
  z.elements.resize(xn == 1 ? yn : xn);
  for (size_t i = 0; i < z.elements.size(); ++i) {
    const std::optional<int64_t>& a = x->elements[xn == 1 ? 0 : i];
    const std::optional<int64_t>& b = y->elements[yn == 1 ? 0 : i];
    const Wide result = a && b ? kFn(*a, *b) : kNothing;
    const int64_t narrow = static_cast<int64_t>(result);
    if (narrow == result) z.elements[i] = IfItFits(narrow, c->dtype());
  }
  return z;
}
Wide AddInts(Wide a, Wide b) { return a + b; }
Wide SubInts(Wide a, Wide b) { return a - b; }
Wide MulInts(Wide a, Wide b) { return a * b; }
Wide MaxInts(Wide a, Wide b) { return std::max(a, b); }
Wide MinInts(Wide a, Wide b) { return std::min(a, b); }
Wide FloorDivInts(Wide a, Wide b) {
  if (b == 0) return kNothing;
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}
Wide FloorModInts(Wide a, Wide b) { return b == 0 ? kNothing : a - FloorDivInts(a, b) * b; }

// --- Equal and NotEqual of unequal shapes --------------------------------------------------------

// An attr of TensorFlow 2, which the ops of 1.15 lack: with false, tensors whose shapes do not fit
// are not equal, as a scalar says. A node that does not have it says true.
constexpr char kShapeErrorAttr[] = "incompatible_shape_error";

StatusOr<bool> MayDifferInShape(const NodeAttrs& attrs) {
  if (!HasAttr(attrs.node(), kShapeErrorAttr)) return false;
  MR_ASSIGN_OR_RETURN(const bool is_error, GetAttr<bool>(attrs, kShapeErrorAttr));
  return !is_error;
}

Status EqualShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool may_differ, MayDifferInShape(c->attrs()));
  if (!may_differ) return BroadcastBinaryShape(c);
  const PartialShape &x = c->input(0), &y = c->input(1);
  const StatusOr<PartialShape> both = BroadcastShape(x, y);
  const auto is_scalar = [](const PartialShape& s) { return s.has_rank() && s.rank() == 0; };
  if (!both.ok()) {
    c->set_output(0, PartialShape::Scalar());
  } else if ((x.IsFullyDefined() && y.IsFullyDefined()) || is_scalar(x) || is_scalar(y)) {
    c->set_output(0, *both);
  } else {  // whether they fit is seen in the step
    c->set_output(0, PartialShape());
  }
  return absl::OkStatus();
}

class EqualKernel : public BinaryKernel<true> {
 public:
  explicit EqualKernel(BinaryOp op) : BinaryKernel(op) {}
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(may_differ_, MayDifferInShape(c->attrs()));
    return BinaryKernel::Init(c);
  }
  Status Compute(KernelContext* ctx) const override {
    if (!may_differ_ || BroadcastShape(ctx->input(0).shape(), ctx->input(1).shape()).ok()) {
      return BinaryKernel::Compute(ctx);
    }
    MR_ASSIGN_OR_RETURN(Tensor * z, ctx->AllocateOutput(0, Shape()));
    z->mutable_raw<bool>()[0] = op_ == BinaryOp::kNotEqual;
    return absl::OkStatus();
  }

 private:
  bool may_differ_ = false;
};
using EqualOps = LoopOps<EqualKernel>;

// --- Table ---------------------------------------------------------------------------------------

OpSpec BroadcastSpec(absl::string_view op, absl::string_view arguments, absl::string_view types) {
  return OpSpec(op, arguments, absl::StrCat("T: {", types, "}")).Shape(BroadcastBinaryShape);
}
OpSpec BinarySpec(absl::string_view op, absl::string_view types) {
  return BroadcastSpec(op, "x: T, y: T -> z: T", types);
}
// One whose ints are followed as kFn says.
template <Wide (*kFn)(Wide a, Wide b)>
OpSpec IntSpec(absl::string_view op, absl::string_view types) {
  return BinarySpec(op, types).With(PartialValueRule(ElementwiseValue<kFn>));
}
OpSpec CompareSpec(absl::string_view op, absl::string_view types) {
  return BroadcastSpec(op, "x: T, y: T -> z: bool", types).NotDifferentiable();
}
OpSpec EqualSpec(absl::string_view op, absl::string_view types) {
  return CompareSpec(op, types)
      .Commutative()
      .Shape(EqualShape)
      .With(LaterAttr(absl::StrCat(kShapeErrorAttr, ": bool = true"), LaterAttr::kHeeded));
}
OpSpec LogicalSpec(absl::string_view op) {
  return OpSpec(op, "x: bool, y: bool -> z: bool")
      .Commutative()
      .Shape(BroadcastBinaryShape)
      .NotDifferentiable();
}

constexpr char kMulTypes[] =
    "bfloat16, half, float, double, uint8, int8, uint16, int16, int32, int64, complex64, "
    "complex128";
constexpr char kAddTypes[] =
    "bfloat16, half, float, double, uint8, int8, int16, int32, int64, complex64, complex128";
constexpr char kNoNanTypes[] = "half, float, double, complex64, complex128";
constexpr char kModTypes[] = "int32, int64, bfloat16, half, float, double";
constexpr char kExtremeTypes[] = "bfloat16, half, float, double, int32, int64";
constexpr char kEqualTypes[] =
    "bfloat16, half, float, double, uint8, int8, int16, int32, int64, complex64, quint8, qint8, "
    "qint32, string, bool, complex128";

const BinaryOps kBinaryOps = {
    {IntSpec<AddInts>("Add", absl::StrCat(kAddTypes, ", string")).Gradient(AddGradient),
     BinaryOp::kAdd},
    {IntSpec<AddInts>("AddV2", kAddTypes).Aggregate().Commutative().Gradient(AddGradient),
     BinaryOp::kAdd},
    {IntSpec<SubInts>("Sub", kMulTypes).Gradient(SubGradient), BinaryOp::kSub},
    {IntSpec<MulInts>("Mul", kMulTypes).Commutative().Gradient(FromInputs<OfProduct<Mul>>),
     BinaryOp::kMul},
    {BinarySpec("SquaredDifference",
                "bfloat16, half, float, double, int32, int64, complex64, complex128")
         .Commutative()
         .Gradient(SquaredDifferenceGradient),
     BinaryOp::kSquaredDifference},
    {BinarySpec("Div", kMulTypes).Gradient(FromInputs<OfQuotient<RealDiv>>), BinaryOp::kDiv},
    {BinarySpec("RealDiv", kMulTypes).Gradient(FromInputs<OfQuotient<RealDiv>>), BinaryOp::kDiv,
     IsTrainable},
    {BinarySpec("DivNoNan", kNoNanTypes).Gradient(FromInputs<OfQuotient<DivNoNan>>),
     BinaryOp::kDivNoNan},
    {BinarySpec("MulNoNan", kNoNanTypes).Gradient(FromInputs<OfProduct<MulNoNan>>),
     BinaryOp::kMulNoNan},
    {IntSpec<FloorDivInts>("FloorDiv", kMulTypes).NotDifferentiable(), BinaryOp::kFloorDiv},
    {BinarySpec("TruncateDiv", kMulTypes).NotDifferentiable(), BinaryOp::kDiv, IsInteger},
    {IntSpec<FloorModInts>("FloorMod", kModTypes).Gradient(FromInputs<OfFloorMod>),
     BinaryOp::kFloorMod},
    {BinarySpec("Mod", "int32, int64, half, half, bfloat16, float, double").NotDifferentiable(),
     BinaryOp::kTruncateMod},
    {BinarySpec("TruncateMod", kModTypes).NotDifferentiable(), BinaryOp::kTruncateMod},
    {BinarySpec("Pow", "bfloat16, float, half, double, int32, int64, complex64, complex128")
         .Gradient(PowGradient),
     BinaryOp::kPow},
    {IntSpec<MaxInts>("Maximum", kExtremeTypes).Gradient(FromInputs<OfExtreme<GreaterEqual>>),
     BinaryOp::kMaximum},
    {IntSpec<MinInts>("Minimum", kExtremeTypes).Gradient(FromInputs<OfExtreme<LessEqual>>),
     BinaryOp::kMinimum},
    {BroadcastSpec("Atan2", "y: T, x: T -> z: T", "bfloat16, half, float, double")
         .Gradient(FromInputs<OfAtan2>),
     BinaryOp::kAtan2},
    {CompareSpec("Less", "realnumbertype"), BinaryOp::kLess},
    {CompareSpec("LessEqual", "realnumbertype"), BinaryOp::kLessEqual},
    {CompareSpec("Greater", "realnumbertype"), BinaryOp::kGreater},
    {CompareSpec("GreaterEqual", "realnumbertype"), BinaryOp::kGreaterEqual},
    {LogicalSpec("LogicalAnd"), BinaryOp::kLogicalAnd},
    {LogicalSpec("LogicalOr"), BinaryOp::kLogicalOr},
};
const EqualOps kEqualOps = {
    {EqualSpec("Equal", kEqualTypes), BinaryOp::kEqual},
    {EqualSpec("NotEqual", kEqualTypes), BinaryOp::kNotEqual},
};

// --- BroadcastTo ---------------------------------------------------------------------------------

struct BroadcastToRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape& input = c->input(0);
    MR_ASSIGN_OR_RETURN(PartialShape shape, ShapeOfInput(c, 1, "shape"));
    if (!input.has_rank() || !shape.has_rank()) return shape;
    const int missing = shape.rank() - input.rank();
    bool legal = missing >= 0;
    for (int i = 0; legal && i < input.rank(); ++i) {
      const int64_t from = input.dim(i), to = shape.dim(i + missing);
      legal = from == to || from == 1 || from == -1 || to == -1;
    }
    if (legal) return shape;
    return InvalidArgument("Incompatible shapes: ", input, " vs. ", shape,
                           "; the input must be broadcast to the shape");
  }
};

Status RunBroadcastTo(KernelContext* ctx, const BroadcastToRule&) {
  const Tensor& in = ctx->input(0);
  const Shape& shape = ctx->output_shape(0);
  if (shape == in.shape()) return ctx->PassInput(0);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const BroadcastPlan plan(shape.dims(), {in.shape().dims()});
  return VisitElements(in.dtype(), [&]<typename E>() {
    const E* const from = ElementsOf<E>(in);
    E* const to = MutableElementsOf<E>(out);
    ctx->ParallelFor(plan.num_elements(), 0.5, [&](int64_t begin, int64_t end) {
      plan.ForEachRun(begin, end, [&](const BroadcastPlan::Run& run) {
        if (plan.is_scalar_in_run(0)) {
          std::fill_n(to + run.out, run.size, from[run.offset[0]]);
        } else {
          std::copy_n(from + run.offset[0], run.size, to + run.out);
        }
      });
    });
  });
}

// The gradient is summed over the axes that were repeated.
Output BroadcastToGradient(GradientContext* c) {
  return SumToInput(c->scope(), c->dense_grad(), c->input(0), c->output(0));
}

const OpRegistration kBroadcastTo = OpSpec("BroadcastTo", "input: T, shape: Tidx -> output: T",
                                           "T: type; Tidx: {int32, int64} = DT_INT32")
                                        .With(RuledKernelFor<BroadcastToRule>(RunBroadcastTo))
                                        .Gradient(BroadcastToGradient);

// --- BroadcastArgs, BroadcastGradientArgs --------------------------------------------------------

// Inputs are the shapes of two tensors that are broadcast together.
struct BroadcastArgsRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape a, ShapeOfInput(c, 0, "s0"));
    MR_ASSIGN_OR_RETURN(const PartialShape b, ShapeOfInput(c, 1, "s1"));
    MR_ASSIGN_OR_RETURN(const PartialShape both, BroadcastShape(a, b));
    if (c->num_outputs() == 1) {
      c->set_output(0, {both.has_rank() ? both.rank() : -1});
    } else {  // how many axes are repeated is left to the kernel
      c->set_output(0, {-1});
      c->set_output(1, {-1});
    }
    return absl::OkStatus();
  }
};

class BroadcastArgsKernel : public RuledKernel<BroadcastArgsRule> {
 public:
  bool may_be_expensive() const override { return false; }

 protected:
  Status Run(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Shape a, Shape::Make(ctx->input(0).ints().ToVector()));
    MR_ASSIGN_OR_RETURN(const Shape b, Shape::Make(ctx->input(1).ints().ToVector()));
    MR_ASSIGN_OR_RETURN(const Shape both, BroadcastShape(a, b));
    if (ctx->num_outputs() == 1) return SetInts(ctx, 0, both.dims());
    const bool repeats = a != b;
    MR_RETURN_IF_ERROR(SetInts(ctx, 0, repeats ? RepeatedAxes(a, both) : std::vector<int64_t>()));
    return SetInts(ctx, 1, repeats ? RepeatedAxes(b, both) : std::vector<int64_t>());
  }

 private:
  // Axes that `input` lacks or has with size 1. Also those where the result has size 1, as
  // TensorFlow lists them, unless both shapes are equal: summing over them is harmless.
  static std::vector<int64_t> RepeatedAxes(const Shape& input, const Shape& result) {
    std::vector<int64_t> axes;
    const int missing = result.rank() - input.rank();
    for (int i = 0; i < result.rank(); ++i) {
      if (i < missing || input.dim(i - missing) == 1) axes.push_back(i);
    }
    return axes;
  }
  static Status SetInts(KernelContext* ctx, int output, absl::Span<const int64_t> values) {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(output, Shape::Vector(values.size())));
    if (out->dtype() == DT_INT64) {
      std::copy(values.begin(), values.end(), out->mutable_raw<int64_t>().begin());
      return absl::OkStatus();
    }
    int32_t* to = out->mutable_raw<int32_t>().data();
    for (const int64_t value : values) {
      if (!IfItFits(value, DT_INT32)) {
        return InvalidArgument("a dimension must fit into int32 to be a result of that type, got ",
                               value);
      }
      *to++ = static_cast<int32_t>(value);
    }
    return absl::OkStatus();
  }
};

OpSpec ArgsSpec(absl::string_view op, absl::string_view arguments) {
  return OpSpec(op, arguments, "T: {int32, int64} = DT_INT32")
      .With(KernelFor<BroadcastArgsKernel>())
      .NotDifferentiable();
}
const OpRegistration kBroadcastArgs = ArgsSpec("BroadcastArgs", "s0: T, s1: T -> r0: T");
const OpRegistration kBroadcastGradientArgs =
    ArgsSpec("BroadcastGradientArgs", "s0: T, s1: T -> r0: T, r1: T");

}  // namespace
}  // namespace millrace
