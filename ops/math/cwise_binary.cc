// SPDX-License-Identifier: Apache-2.0
// Element-wise ops of two tensors: one kernel runs the loops of ops/loops/binary.h over a
// BroadcastPlan; the gradients are summed back over the axes that were repeated.
#include "ops/math/cwise_binary.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/scalar_like.h"
#include "ops/kernels/cwise.h"
#include "ops/kernels/element_block.h"
#include "ops/loops/binary.h"
#include "ops/loops/broadcast.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/math/select.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::BinaryFn;
using math::BinaryOp;
using math::FindBinary;

size_t ElementSize(DType dtype) {
  return dtype == DT_STRING ? sizeof(std::string) : DTypeSize(dtype);
}

// --- Kernel --------------------------------------------------------------------------------------

class BinaryKernel : public Kernel {
 public:
  explicit BinaryKernel(BinaryOp op) : op_(op) {}

  Status Init(KernelConstruction* c) override {
    const DType in = WithoutRef(c->input_type(0));
    fn_ = FindBinary(op_, in);
    if (fn_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(in)));
    }
    in_size_ = ElementSize(in);
    out_size_ = ElementSize(c->output_type(0));
    may_forward_ = in != DT_STRING && in == c->output_type(0);
    cost_ns_ = math::BinaryCostNs(op_, in);
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    const Tensor& y = ctx->input(1);
    if (x.shape() == y.shape()) {
      MR_ASSIGN_OR_RETURN(Tensor * z, AllocateResult(ctx, x.shape()));
      return Run(ctx, x, false, y, false, z);
    }
    MR_ASSIGN_OR_RETURN(const Shape shape, BroadcastShape(x.shape(), y.shape()));
    MR_ASSIGN_OR_RETURN(Tensor * z, AllocateResult(ctx, shape));
    const BroadcastPlan plan(shape.dims(), {x.shape().dims(), y.shape().dims()});
    if (plan.is_single_run()) {
      return Run(ctx, x, plan.is_scalar_in_run(0), y, plan.is_scalar_in_run(1), z);
    }
    const char* xs = static_cast<const char*>(x.raw_data());
    const char* ys = static_cast<const char*>(y.raw_data());
    char* zs = static_cast<char*>(z->mutable_raw_data());
    const bool x_is_scalar = plan.is_scalar_in_run(0);
    const bool y_is_scalar = plan.is_scalar_in_run(1);
    // Starting a run costs about 5 ns.
    const double cost_ns =
        cost_ns_ + 5.0 / static_cast<double>(std::max<int64_t>(1, plan.run_size()));
    // Relaxed: set once or more by any thread, read after the loop has ended.
    std::atomic<bool> legal{true};
    ctx->ParallelBlocks(
        plan.num_elements(), kElementBlock, cost_ns, [&](int64_t begin, int64_t end) {
          bool ok = true;
          plan.ForEachRun(begin, end, [&](const BroadcastPlan::Run& run) {
            ok =
                fn_(xs + At(run.offset[0], in_size_), x_is_scalar, ys + At(run.offset[1], in_size_),
                    y_is_scalar, zs + At(run.out, out_size_), run.size) &&
                ok;
          });
          if (!ok) legal.store(false, std::memory_order_relaxed);
        });
    return legal.load(std::memory_order_relaxed) ? absl::OkStatus() : IllegalOperand();
  }

 private:
  static size_t At(int64_t index, size_t size) { return static_cast<size_t>(index) * size; }

  StatusOr<Tensor*> AllocateResult(KernelContext* ctx, const Shape& shape) const {
    if (may_forward_) return ctx->ForwardInputOrAllocateOutput({0, 1}, 0, shape);
    return ctx->AllocateOutput(0, shape);
  }

  Status Run(KernelContext* ctx, const Tensor& x, bool x_is_scalar, const Tensor& y,
             bool y_is_scalar, Tensor* z) const {
    const char* xs = static_cast<const char*>(x.raw_data());
    const char* ys = static_cast<const char*>(y.raw_data());
    char* zs = static_cast<char*>(z->mutable_raw_data());
    const int64_t n = z->num_elements();
    std::atomic<bool> legal{true};  // relaxed, as above
    ctx->ParallelBlocks(n, kElementBlock, cost_ns_, [&](int64_t begin, int64_t end) {
      if (!fn_(x_is_scalar ? xs : xs + At(begin, in_size_), x_is_scalar,
               y_is_scalar ? ys : ys + At(begin, in_size_), y_is_scalar, zs + At(begin, out_size_),
               end - begin)) {
        legal.store(false, std::memory_order_relaxed);
      }
    });
    return legal.load(std::memory_order_relaxed) ? absl::OkStatus() : IllegalOperand();
  }

  Status IllegalOperand() const {
    return absl::InvalidArgumentError(op_ == BinaryOp::kPow
                                          ? "Integers to negative integer powers are not allowed"
                                          : "Integer division by zero");
  }

  const BinaryOp op_;
  BinaryFn fn_ = nullptr;
  size_t in_size_ = 0;
  size_t out_size_ = 0;
  bool may_forward_ = false;
  double cost_ns_ = 1;
};

// A table of definitions and loops. Kernels are for every dtype that has the loop, or for `types`.
class BinaryOps {
 public:
  struct Row {
    OpSpec op;
    BinaryOp loop;
    std::vector<DType> types = {};
  };
  BinaryOps(std::initializer_list<Row> rows) {
    for (const Row& row : rows) {
      OpRegistration{row.op};
      const auto find = [&row](BinaryOp loop, DType dtype) {
        const bool wanted = row.types.empty() ||
                            std::find(row.types.begin(), row.types.end(), dtype) != row.types.end();
        return wanted ? FindBinary(loop, dtype) : nullptr;
      };
      KernelRegistration{LoopKernels<BinaryKernel>(row.op.name(), row.loop, find)};
    }
  }
};

// --- Definitions ---------------------------------------------------------------------------------

// What is known of integers element by element. kFn returns true when there is no result.
template <bool (*kFn)(int64_t a, int64_t b, int64_t* result)>
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
    int64_t result = 0;
    if (a && b && !kFn(*a, *b, &result)) z.elements[i] = IfItFits(result, c->dtype());
  }
  return z;
}
bool AddInts(int64_t a, int64_t b, int64_t* r) { return __builtin_add_overflow(a, b, r); }
bool SubInts(int64_t a, int64_t b, int64_t* r) { return __builtin_sub_overflow(a, b, r); }
bool MulInts(int64_t a, int64_t b, int64_t* r) { return __builtin_mul_overflow(a, b, r); }
bool MaxInts(int64_t a, int64_t b, int64_t* r) {
  *r = std::max(a, b);
  return false;
}
bool MinInts(int64_t a, int64_t b, int64_t* r) {
  *r = std::min(a, b);
  return false;
}
bool FloorDivInts(int64_t a, int64_t b, int64_t* r) {
  if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return true;
  *r = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  return false;
}
bool FloorModInts(int64_t a, int64_t b, int64_t* r) {
  if (FloorDivInts(a, b, r)) return true;
  *r = a - *r * b;
  return false;
}

OpSpec BinarySpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op)
      .Input("x: T")
      .Input("y: T")
      .Output("z: T")
      .Attr(absl::StrCat("T: {", types, "}"))
      .Shape(BroadcastBinaryShape);
}

OpSpec CompareSpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op)
      .Input("x: T")
      .Input("y: T")
      .Output("z: bool")
      .Attr(absl::StrCat("T: {", types, "}"))
      .Shape(BroadcastBinaryShape)
      .NotDifferentiable();
}

constexpr char kMulTypes[] =
    "bfloat16, half, float, double, uint8, int8, uint16, int16, int32, int64, complex64, "
    "complex128";
constexpr char kRealTypes[] =
    "float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, uint64";

// Both input gradients, each summed back to its input.
void SetGradients(GradientContext* c, Output x_grad, Output y_grad) {
  c->set_input_grad(0, SumToInput(c->scope(), x_grad, c->input(0), c->input(1)));
  c->set_input_grad(1, SumToInput(c->scope(), y_grad, c->input(1), c->input(0)));
}

// The conjugate of a complex factor; a real one as it is.
Output Conjugate(const Scope& s, Output x) { return IsComplex(x.dtype()) ? Conj(s, x) : x; }

// --- Sums and products ---------------------------------------------------------------------------

Status AddGradient(GradientContext* c) {
  const Output g = c->dense_grad();
  SetGradients(c, g, g);
  return absl::OkStatus();
}

Status SubGradient(GradientContext* c) {
  const Output g = c->dense_grad();
  SetGradients(c, g, Neg(c->scope(), g));
  return absl::OkStatus();
}

Status MulGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  SetGradients(c, Mul(s, g, Conjugate(s, c->input(1))), Mul(s, Conjugate(s, c->input(0)), g));
  return absl::OkStatus();
}

Status SquaredDifferenceGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output two = ScalarLike(s, c->input(0), 2);
  const Output difference = Sub(s, c->input(0), c->input(1));
  const Output x_grad = Mul(s, c->dense_grad(), Conjugate(s, Mul(s, two, difference)));
  SetGradients(c, x_grad, Neg(s, x_grad));
  return absl::OkStatus();
}

// --- Quotients -----------------------------------------------------------------------------------

// d(x/y)/dx = 1/y, d(x/y)/dy = -(x/y)/y, with `divide` for the quotients.
using Divide = const BinaryBuilder&;
Status QuotientGradient(GradientContext* c, Divide divide) {
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  const Output x = Conjugate(s, c->input(0));
  const Output y = Conjugate(s, c->input(1));
  SetGradients(c, divide(s, g, y), Mul(s, g, divide(s, divide(s, Neg(s, x), y), y)));
  return absl::OkStatus();
}
Status RealDivGradient(GradientContext* c) { return QuotientGradient(c, RealDiv); }
Status DivNoNanGradient(GradientContext* c) { return QuotientGradient(c, DivNoNan); }

// z = x * y, and 0 where y is 0: the factors of the gradients follow the same rule.
Status MulNoNanGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  SetGradients(c, MulNoNan(s, g, Conjugate(s, c->input(1))),
               MulNoNan(s, Conjugate(s, c->input(0)), g));
  return absl::OkStatus();
}

// x - y * floor(x / y)
Status FloorModGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  SetGradients(c, g, Mul(s, g, Neg(s, FloorDiv(s, c->input(0), c->input(1)))));
  return absl::OkStatus();
}

// --- Powers, extremes, angles --------------------------------------------------------------------

// d(x^y)/dx = y x^(y-1); d(x^y)/dy = x^y log x, 0 where x <= 0 (for complex numbers: where x is 0).
Status PowGradient(GradientContext* c) {
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
  SetGradients(c, x_grad, Mul(s, Mul(s, g, z), log_x));
  return absl::OkStatus();
}

// The gradient goes to the input that was chosen; to x when both are equal.
Status ExtremeGradient(GradientContext* c, Output x_is_chosen) {
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  const Output zeros = ZerosLike(s, g);
  SetGradients(c, Select(s, x_is_chosen, g, zeros), Select(s, x_is_chosen, zeros, g));
  return absl::OkStatus();
}
Status MaximumGradient(GradientContext* c) {
  return ExtremeGradient(c, GreaterEqual(c->scope(), c->input(0), c->input(1)));
}
Status MinimumGradient(GradientContext* c) {
  return ExtremeGradient(c, LessEqual(c->scope(), c->input(0), c->input(1)));
}

// Input 0 is y, input 1 is x: d/dy = x / (x^2 + y^2), d/dx = -y / (x^2 + y^2).
Status Atan2Gradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output y = c->input(0);
  const Output x = c->input(1);
  const Output scaled = RealDiv(s, c->dense_grad(), Add(s, Square(s, x), Square(s, y)));
  SetGradients(c, Mul(s, x, scaled), Mul(s, Neg(s, y), scaled));
  return absl::OkStatus();
}

// --- Comparisons ---------------------------------------------------------------------------------

constexpr char kEqualTypes[] =
    "bfloat16, half, float, double, uint8, int8, int16, int32, int64, complex64, quint8, qint8, "
    "qint32, string, bool, complex128";

OpSpec LogicalSpec(absl::string_view op) {
  return OpSpec(op)
      .Input("x: bool")
      .Input("y: bool")
      .Output("z: bool")
      .Commutative()
      .Shape(BroadcastBinaryShape)
      .NotDifferentiable();
}

// --- Table ---------------------------------------------------------------------------------------

const BinaryOps kBinaryOps = {
    {BinarySpec("Add",
                "bfloat16, half, float, double, uint8, int8, int16, int32, int64, complex64, "
                "complex128, string")
         .Gradient(AddGradient),
     BinaryOp::kAdd},
    {BinarySpec("AddV2",
                "bfloat16, half, float, double, uint8, int8, int16, int32, int64, complex64, "
                "complex128")
         .Aggregate()
         .Commutative()
         .Gradient(AddGradient),
     BinaryOp::kAdd},
    {BinarySpec("Sub", kMulTypes).Gradient(SubGradient), BinaryOp::kSub},
    {BinarySpec("Mul", kMulTypes).Commutative().Gradient(MulGradient), BinaryOp::kMul},
    {BinarySpec("SquaredDifference",
                "bfloat16, half, float, double, int32, int64, complex64, complex128")
         .Commutative()
         .Gradient(SquaredDifferenceGradient),
     BinaryOp::kSquaredDifference},
    {BinarySpec("Div", kMulTypes).Gradient(RealDivGradient), BinaryOp::kDiv},
    {BinarySpec("RealDiv", kMulTypes).Gradient(RealDivGradient),
     BinaryOp::kDiv,
     {DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE, DT_COMPLEX64, DT_COMPLEX128}},
    {BinarySpec("DivNoNan", "half, float, double, complex64, complex128")
         .Gradient(DivNoNanGradient),
     BinaryOp::kDivNoNan},
    {BinarySpec("MulNoNan", "half, float, double, complex64, complex128")
         .Gradient(MulNoNanGradient),
     BinaryOp::kMulNoNan},
    {BinarySpec("FloorDiv", kMulTypes).NotDifferentiable(), BinaryOp::kFloorDiv},
    {BinarySpec("TruncateDiv", kMulTypes).NotDifferentiable(),
     BinaryOp::kDiv,
     {DT_UINT8, DT_INT8, DT_UINT16, DT_INT16, DT_INT32, DT_INT64}},
    {BinarySpec("FloorMod", "int32, int64, bfloat16, half, float, double")
         .Gradient(FloorModGradient),
     BinaryOp::kFloorMod},
    {BinarySpec("Mod", "int32, int64, half, half, bfloat16, float, double").NotDifferentiable(),
     BinaryOp::kTruncateMod},
    {BinarySpec("TruncateMod", "int32, int64, bfloat16, half, float, double").NotDifferentiable(),
     BinaryOp::kTruncateMod},
    {BinarySpec("Pow", "bfloat16, float, half, double, int32, int64, complex64, complex128")
         .Gradient(PowGradient),
     BinaryOp::kPow},
    {BinarySpec("Maximum", "bfloat16, half, float, double, int32, int64").Gradient(MaximumGradient),
     BinaryOp::kMaximum},
    {BinarySpec("Minimum", "bfloat16, half, float, double, int32, int64").Gradient(MinimumGradient),
     BinaryOp::kMinimum},
    {OpSpec("Atan2")
         .Input("y: T")
         .Input("x: T")
         .Output("z: T")
         .Attr("T: {bfloat16, half, float, double}")
         .Shape(BroadcastBinaryShape)
         .Gradient(Atan2Gradient),
     BinaryOp::kAtan2},
    {CompareSpec("Equal", kEqualTypes).Commutative(), BinaryOp::kEqual},
    {CompareSpec("NotEqual", kEqualTypes).Commutative(), BinaryOp::kNotEqual},
    {CompareSpec("Less", kRealTypes), BinaryOp::kLess},
    {CompareSpec("LessEqual", kRealTypes), BinaryOp::kLessEqual},
    {CompareSpec("Greater", kRealTypes), BinaryOp::kGreater},
    {CompareSpec("GreaterEqual", kRealTypes), BinaryOp::kGreaterEqual},
    {LogicalSpec("LogicalAnd"), BinaryOp::kLogicalAnd},
    {LogicalSpec("LogicalOr"), BinaryOp::kLogicalOr},
};

// --- BroadcastTo ---------------------------------------------------------------------------------

// The only place that knows which (input, shape) pairs are legal.
Status CheckBroadcastTo(const PartialShape& input, const PartialShape& shape) {
  if (!input.has_rank() || !shape.has_rank()) return absl::OkStatus();
  const int missing = shape.rank() - input.rank();
  bool legal = missing >= 0;
  for (int i = 0; legal && i < input.rank(); ++i) {
    const int64_t from = input.dim(i);
    const int64_t to = shape.dim(i + missing);
    legal = from == to || from == 1 || from == -1 || to == -1;
  }
  if (legal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Incompatible shapes: ", input.ToString(), " vs. ",
                                                 shape.ToString(),
                                                 "; the input must be broadcast to the shape"));
}

Status BroadcastToShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 1).status());
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(1));
  MR_RETURN_IF_ERROR(CheckBroadcastTo(c->input(0), shape));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename T>
void CopyRuns(const BroadcastPlan& plan, int64_t begin, int64_t end, const Tensor& in,
              Tensor* out) {
  const T* from = static_cast<const T*>(in.raw_data());
  T* to = static_cast<T*>(out->mutable_raw_data());
  plan.ForEachRun(begin, end, [&](const BroadcastPlan::Run& run) {
    if (plan.is_scalar_in_run(0)) {
      std::fill_n(to + run.out, run.size, from[run.offset[0]]);
    } else {
      std::copy_n(from + run.offset[0], run.size, to + run.out);
    }
  });
}

struct Bytes16 {
  uint64_t low, high;
};

class BroadcastToKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& in = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, ctx->IntVectorInput(1, "shape"));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_RETURN_IF_ERROR(CheckBroadcastTo(in.shape(), shape));
    if (shape == in.shape()) {
      ctx->set_output(0, ctx->TakeInput(0));
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    const BroadcastPlan plan(shape.dims(), {in.shape().dims()});
    ctx->ParallelFor(plan.num_elements(), 0.5, [&](int64_t begin, int64_t end) {
      switch (in.dtype()) {
        case DT_STRING:
          return CopyRuns<std::string>(plan, begin, end, in, out);
        case DT_RESOURCE:
          return CopyRuns<ResourceHandle>(plan, begin, end, in, out);
        case DT_VARIANT:
          return CopyRuns<Variant>(plan, begin, end, in, out);
        default:
          break;
      }
      switch (DTypeSize(in.dtype())) {
        case 1:
          return CopyRuns<uint8_t>(plan, begin, end, in, out);
        case 2:
          return CopyRuns<uint16_t>(plan, begin, end, in, out);
        case 4:
          return CopyRuns<uint32_t>(plan, begin, end, in, out);
        case 8:
          return CopyRuns<uint64_t>(plan, begin, end, in, out);
        default:
          return CopyRuns<Bytes16>(plan, begin, end, in, out);
      }
    });
    return absl::OkStatus();
  }
};

// The gradient is summed over the axes that were repeated.
Status BroadcastToGradient(GradientContext* c) {
  c->set_input_grad(0, SumToInput(c->scope(), c->dense_grad(), c->input(0), c->output(0)));
  return absl::OkStatus();
}

const OpRegistration kBroadcastTo = OpSpec("BroadcastTo")
                                        .Input("input: T")
                                        .Input("shape: Tidx")
                                        .Output("output: T")
                                        .Attr("T: type")
                                        .Attr("Tidx: {int32, int64} = DT_INT32")
                                        .Shape(BroadcastToShape)
                                        .Gradient(BroadcastToGradient);
const KernelRegistration kBroadcastToKernel = KernelFor<BroadcastToKernel>("BroadcastTo");

// --- BroadcastArgs, BroadcastGradientArgs --------------------------------------------------------

// The shapes that inputs 0 and 1 of a kernel describe.
StatusOr<std::pair<Shape, Shape>> ShapeInputs(KernelContext* ctx) {
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> s0, ctx->IntVectorInput(0, "s0"));
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> s1, ctx->IntVectorInput(1, "s1"));
  MR_ASSIGN_OR_RETURN(Shape a, Shape::Make(s0));
  MR_ASSIGN_OR_RETURN(Shape b, Shape::Make(s1));
  return std::make_pair(std::move(a), std::move(b));
}

Status SetIntVector(KernelContext* ctx, int output, absl::Span<const int64_t> values) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(output, Shape::Vector(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    if (out->dtype() == DT_INT64) {
      out->mutable_raw<int64_t>()[i] = values[i];
    } else {
      if (values[i] > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a dimension must fit into int32 to be a result of that type, got ", values[i]));
      }
      out->mutable_raw<int32_t>()[i] = static_cast<int32_t>(values[i]);
    }
  }
  return absl::OkStatus();
}

class BroadcastArgsKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto shapes, ShapeInputs(ctx));
    MR_ASSIGN_OR_RETURN(const Shape result, BroadcastShape(shapes.first, shapes.second));
    return SetIntVector(ctx, 0, result.dims());
  }
  bool may_be_expensive() const override { return false; }
};

Status BroadcastArgsShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape a, c->InputWithRank(0, 1));
  MR_ASSIGN_OR_RETURN(const PartialShape b, c->InputWithRank(1, 1));
  // The rank of the result is the larger of the two.
  const int64_t rank = a.dim(0) < 0 || b.dim(0) < 0 ? -1 : std::max(a.dim(0), b.dim(0));
  c->set_output(0, {rank});
  return absl::OkStatus();
}

class BroadcastGradientArgsKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto shapes, ShapeInputs(ctx));
    MR_ASSIGN_OR_RETURN(const Shape result, BroadcastShape(shapes.first, shapes.second));
    MR_RETURN_IF_ERROR(SetIntVector(ctx, 0, RepeatedAxes(shapes.first, result)));
    return SetIntVector(ctx, 1, RepeatedAxes(shapes.second, result));
  }
  bool may_be_expensive() const override { return false; }

 private:
  // Axes that `input` lacks or has with size 1; where the result has size 1 too, summing is
  // harmless.
  static std::vector<int64_t> RepeatedAxes(const Shape& input, const Shape& result) {
    std::vector<int64_t> axes;
    const int missing = result.rank() - input.rank();
    if (missing == 0 && input == result) return axes;
    for (int i = 0; i < result.rank(); ++i) {
      if (i < missing || input.dim(i - missing) == 1) axes.push_back(i);
    }
    return axes;
  }
};

Status BroadcastGradientArgsShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 1).status());
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 1).status());
  // How many axes are repeated depends on the values.
  c->set_output(0, {-1});
  c->set_output(1, {-1});
  return absl::OkStatus();
}

const OpRegistration kBroadcastArgs = OpSpec("BroadcastArgs")
                                          .Input("s0: T")
                                          .Input("s1: T")
                                          .Output("r0: T")
                                          .Attr("T: {int32, int64} = DT_INT32")
                                          .Shape(BroadcastArgsShape)
                                          .NotDifferentiable();
const KernelRegistration kBroadcastArgsKernel = KernelFor<BroadcastArgsKernel>("BroadcastArgs");

const OpRegistration kBroadcastGradientArgs = OpSpec("BroadcastGradientArgs")
                                                  .Input("s0: T")
                                                  .Input("s1: T")
                                                  .Output("r0: T")
                                                  .Output("r1: T")
                                                  .Attr("T: {int32, int64} = DT_INT32")
                                                  .Shape(BroadcastGradientArgsShape)
                                                  .NotDifferentiable();
const KernelRegistration kBroadcastGradientArgsKernel =
    KernelFor<BroadcastGradientArgsKernel>("BroadcastGradientArgs");

// --- What is known of int vectors (graph/partial_value.h) ---------------------------------------

const PartialValueRule kAddRule("Add", ElementwiseValue<AddInts>);
const PartialValueRule kAddV2Rule("AddV2", ElementwiseValue<AddInts>);
const PartialValueRule kSubRule("Sub", ElementwiseValue<SubInts>);
const PartialValueRule kMulRule("Mul", ElementwiseValue<MulInts>);
const PartialValueRule kFloorDivRule("FloorDiv", ElementwiseValue<FloorDivInts>);
const PartialValueRule kFloorModRule("FloorMod", ElementwiseValue<FloorModInts>);
const PartialValueRule kMaximumRule("Maximum", ElementwiseValue<MaxInts>);
const PartialValueRule kMinimumRule("Minimum", ElementwiseValue<MinInts>);

}  // namespace
}  // namespace millrace
