// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/lstm_block.h"

#include <algorithm>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_rule.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/kernels/recurrent.h"
#include "ops/linalg/matmul.h"
#include "ops/loops/bias.h"
#include "ops/loops/recurrent.h"
#include "ops/nn/bias.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

constexpr double kForwardNs = 4, kBackwardNs = 3;  // for a cell

// --- What is legal -------------------------------------------------------------------------------

// Shapes of the operands, which begin at input `first` with x. kIsSequence: x has time before the
// batch, and seq_len_max stands before it.
template <bool kIsSequence>
struct LstmShapes {
  static constexpr int kX = kIsSequence ? 1 : 0;
  static constexpr int kState = kX + 1, kH = kX + 2, kW = kX + 3, kPeepholes = kX + 4, kB = kX + 7;
  static constexpr int kInputs = kX + 8;

  int64_t steps = -1, batch = -1, inputs = -1, cells = -1;  // -1: not known

  // `more` inputs behind b have the shape of a gate's output.
  Status Read(RuleContext* c, int more) {
    const auto merge = [](int64_t* known, int64_t dim, const char* what) -> Status {
      if (dim == -1 || dim == *known) return absl::OkStatus();
      if (*known != -1) {
        return InvalidArgument(what, " must agree, got ", *known, " and ", dim);
      }
      *known = dim;
      return absl::OkStatus();
    };
    if (kIsSequence) MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "seq_len_max").status());
    MR_ASSIGN_OR_RETURN(const PartialShape x, c->InputWithRank(kX, kIsSequence ? 3 : 2, "x"));
    if (kIsSequence) steps = x.dim(0);
    batch = x.dim(kX);
    inputs = x.dim(kX + 1);
    for (const int i : {kState, kH}) {
      MR_ASSIGN_OR_RETURN(const PartialShape state,
                          c->InputWithRank(i, 2, i == kState ? "cs_prev" : "h_prev"));
      MR_RETURN_IF_ERROR(merge(&batch, state.dim(0), "batches of x, cs_prev and h_prev"));
      MR_RETURN_IF_ERROR(merge(&cells, state.dim(1), "cells of cs_prev and h_prev"));
    }
    MR_ASSIGN_OR_RETURN(const PartialShape w, c->InputWithRank(kW, 2, "w"));
    if (w.dim(1) != -1) {
      if (w.dim(1) % 4 != 0) {
        return InvalidArgument("w must have 4 columns for each cell, got shape ", w);
      }
      MR_RETURN_IF_ERROR(merge(&cells, w.dim(1) / 4, "cells of cs_prev and w"));
    }
    if (w.dim(0) != -1 && cells != -1) {
      MR_RETURN_IF_ERROR(merge(&inputs, w.dim(0) - cells, "inputs of x and w"));
      if (w.dim(0) < cells) {
        return InvalidArgument("w must have a row for each input and cell, got shape ", w);
      }
    }
    for (int i = kPeepholes; i < kB; ++i) {
      MR_ASSIGN_OR_RETURN(const PartialShape peephole, c->InputWithRank(i, 1, "peephole weights"));
      MR_RETURN_IF_ERROR(merge(&cells, peephole.dim(0), "cells of cs_prev and peephole weights"));
    }
    MR_ASSIGN_OR_RETURN(const PartialShape b, c->InputWithRank(kB, 1, "b"));
    if (b.dim(0) != -1) {
      if (b.dim(0) % 4 != 0) {
        return InvalidArgument("b must have 4 elements for each cell, got shape ", b);
      }
      MR_RETURN_IF_ERROR(merge(&cells, b.dim(0) / 4, "cells of cs_prev and b"));
    }
    for (int i = kInputs; i < kInputs + more; ++i) {
      MR_ASSIGN_OR_RETURN(const PartialShape state, OfGate());
      if (!state.IsCompatibleWith(c->input(i))) {
        return InvalidArgument("input ", i, " must have shape ", state, ", got ", c->input(i));
      }
    }
    return absl::OkStatus();
  }
  StatusOr<PartialShape> OfGate() const {
    std::vector<int64_t> dims = {batch, cells};
    if (kIsSequence) dims.insert(dims.begin(), steps);
    return PartialShape::Make(dims);
  }
  StatusOr<int64_t> Gates() const {
    return cells == -1 ? StatusOr<int64_t>(-1) : CheckedProduct(cells, 4);
  }
};

template <bool kIsSequence>
struct LstmRule {
  float forget_bias = 0, cell_clip = 0;
  bool use_peephole = false;

  Status Init(const NodeAttrs& attrs) {
    if (HasAttr(attrs.node(), "forget_bias")) {
      MR_RETURN_IF_ERROR(ReadAttrs(attrs, "forget_bias", &forget_bias));
    }
    return ReadAttrs(attrs, "cell_clip", &cell_clip, "use_peephole", &use_peephole);
  }
  Status operator()(RuleContext* c) const {
    LstmShapes<kIsSequence> shapes;
    MR_RETURN_IF_ERROR(shapes.Read(c, 0));
    MR_ASSIGN_OR_RETURN(const PartialShape gate, shapes.OfGate());
    for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, gate);
    return absl::OkStatus();
  }
};

// What an op's kernel is given as known numbers.
template <bool kIsSequence>
LstmShapes<kIsSequence> ShapesOf(const KernelContext& ctx) {
  using S = LstmShapes<kIsSequence>;
  S shapes;
  const Shape& x = ctx.input(S::kX).shape();
  shapes.steps = kIsSequence ? x.dim(0) : 1;
  shapes.batch = x.dim(S::kX);
  shapes.inputs = x.dim(S::kX + 1);
  shapes.cells = ctx.input(S::kState).dim(1);
  return shapes;
}

// How many of the steps take place.
StatusOr<int64_t> LengthInput(const KernelContext& ctx, int64_t steps) {
  MR_ASSIGN_OR_RETURN(const int64_t length, ctx.ScalarInput<int64_t>(0, "seq_len_max"));
  if (length >= 0 && length <= steps) return length;
  return InvalidArgument("seq_len_max must be in [0, ", steps, "], the steps of x, got ", length);
}

template <bool kIsSequence>
StatusOr<math::LstmStep> StepOf(FloatOperands* operands, math::LstmGates order, int64_t cells,
                                bool use_peephole) {
  using S = LstmShapes<kIsSequence>;
  math::LstmStep step = {.order = order, .cells = cells};
  MR_ASSIGN_OR_RETURN(step.bias, operands->Input(S::kB));
  if (use_peephole) {
    MR_ASSIGN_OR_RETURN(step.wci, operands->Input(S::kPeepholes));
    MR_ASSIGN_OR_RETURN(step.wcf, operands->Input(S::kPeepholes + 1));
    MR_ASSIGN_OR_RETURN(step.wco, operands->Input(S::kPeepholes + 2));
  }
  return step;
}

// The seven outputs, i, cs, f, o, ci, co, h.
StatusOr<std::vector<float*>> GateOutputs(FloatOperands* operands) {
  std::vector<float*> outputs;
  for (int i = 0; i < 7; ++i) {
    MR_ASSIGN_OR_RETURN(float* output, operands->Output(i));
    outputs.push_back(output);
  }
  return outputs;
}

// --- One step ------------------------------------------------------------------------------------

Status RunCell(KernelContext* ctx, const LstmRule<false>& rule) {
  using S = LstmShapes<false>;
  const S shapes = ShapesOf<false>(*ctx);
  const int64_t batch = shapes.batch, inputs = shapes.inputs, cells = shapes.cells;
  FloatOperands operands(ctx);
  MR_ASSIGN_OR_RETURN(const std::vector<float*> out, GateOutputs(&operands));
  if (batch == 0 || cells == 0) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const float* x, operands.Input(S::kX));
  MR_ASSIGN_OR_RETURN(const float* cs_prev, operands.Input(S::kState));
  MR_ASSIGN_OR_RETURN(const float* h_prev, operands.Input(S::kH));
  MR_ASSIGN_OR_RETURN(const float* w, operands.Input(S::kW));
  MR_ASSIGN_OR_RETURN(math::LstmStep step,
                      StepOf<false>(&operands, math::kLstmIcfo, cells, rule.use_peephole));
  step.forget_bias = rule.forget_bias;
  step.cell_clip = rule.cell_clip;
  MR_ASSIGN_OR_RETURN(float* xh, operands.Scratch(batch, inputs + cells));
  MR_ASSIGN_OR_RETURN(float* gates, operands.Scratch(batch, 4 * cells));
  FloatOperands::Beside(batch, x, inputs, h_prev, cells, xh);
  operands.Product({.m = batch, .n = 4 * cells, .k = inputs + cells}, xh, w, gates);
  operands.ForEachRow(batch, cells, kForwardNs, [&](int64_t row) {
    const int64_t at = row * cells;
    math::LstmForward(step, {.gates = gates + 4 * at,
                             .cs_prev = cs_prev + at,
                             .i = out[0] + at,
                             .cs = out[1] + at,
                             .f = out[2] + at,
                             .o = out[3] + at,
                             .ci = out[4] + at,
                             .co = out[5] + at,
                             .h = out[6] + at});
  });
  operands.Finish();
  return absl::OkStatus();
}

constexpr char kCellAttrs[] =
    "forget_bias: float = 1; cell_clip: float = 3; use_peephole: bool = false; T: {half, float}";
constexpr char kCellOutputs[] = "i: T, cs: T, f: T, o: T, ci: T, co: T, h: T";

// Gradients flow through cs and h; the others are there for the op of the gradient.
Status CheckGradients(GradientContext* c) {
  static constexpr const char* kNames[] = {"i", "cs", "f", "o", "ci", "co", "h"};
  for (const int i : {0, 2, 3, 4, 5}) {
    if (!c->has_grad(i)) continue;
    return InvalidArgument("gradients must flow through cs and h only, got one of '", kNames[i],
                           "'");
  }
  return absl::OkStatus();
}

Status CellGradient(GradientContext* c) {
  MR_RETURN_IF_ERROR(CheckGradients(c));
  if (!c->has_grad(1) && !c->has_grad(6)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const bool use_peephole, c->GetAttr<bool>("use_peephole"));
  const Scope& s = c->scope();
  const LSTMOutputs cell = {c->output(0), c->output(1), c->output(2), c->output(3),
                            c->output(4), c->output(5), c->output(6)};
  const LSTMBlockCellGradOutputs grad = LSTMBlockCellGrad(
      s, c->input(0), c->input(1), c->input(2), c->input(3), c->input(4), c->input(5), c->input(6),
      c->input(7), cell, c->dense_grad(1), c->dense_grad(6), use_peephole);
  const Output inputs_and_cells = MatMul(s, grad.dicfo, c->input(3), {.transpose_b = true});
  // x_grad and h_prev_grad next to each other.
  const Output zero = Const(s, 0), one = Const(s, 1);
  const auto columns = [&](const Output& like) {
    return StridedSlice(s, ShapeOf(s, like), Pack(s, {one}), Const<int32_t>(s, {2}), Pack(s, {one}),
                        {.shrink_axis_mask = 1});
  };
  const Output num_inputs = columns(c->input(0));
  const Output all = Const(s, -1);
  const Output x_grad =
      Slice(s, inputs_and_cells, Pack(s, {zero, zero}), Pack(s, {all, num_inputs}));
  const Output h_grad =
      Slice(s, inputs_and_cells, Pack(s, {zero, num_inputs}), Pack(s, {all, all}));
  const Output xh = ConcatV2(s, {c->input(0), c->input(2)}, one);
  const Output w_grad = MatMul(s, xh, grad.dicfo, {.transpose_a = true});
  c->set_input_grads({x_grad, grad.cs_prev_grad, h_grad, w_grad, grad.wci_grad, grad.wcf_grad,
                      grad.wco_grad, BiasAddGrad(s, grad.dicfo)});
  return absl::OkStatus();
}

const OpRegistration kCell =
    OpSpec("LSTMBlockCell",
           absl::StrCat("x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, b: T -> ",
                        kCellOutputs),
           kCellAttrs)
        .With(RuledKernelFor<LstmRule<false>>(RunCell))
        .Gradient(CellGradient);

// Sums over rows of a step, for the weights of peepholes: in double, row after row.
void AddPeepholeGrads(const math::LstmGates& order, int64_t rows, int64_t cells,
                      const float* gates_grad, const float* cs_prev, const float* cs,
                      std::vector<double>* sums) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* const gates = gates_grad + row * 4 * cells;
    const int64_t at = row * cells;
    for (int64_t c = 0; c < cells; ++c) {
      double* const sum = sums->data() + c;
      sum[0] += static_cast<double>(gates[order.i * cells + c]) * cs_prev[at + c];
      sum[cells] += static_cast<double>(gates[order.f * cells + c]) * cs_prev[at + c];
      sum[2 * cells] += static_cast<double>(gates[order.o * cells + c]) * cs[at + c];
    }
  }
}

struct CellGradRule {
  bool use_peephole = false;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "use_peephole", &use_peephole); }
  Status operator()(RuleContext* c) const {
    LstmShapes<false> shapes;
    MR_RETURN_IF_ERROR(shapes.Read(c, 8));
    MR_ASSIGN_OR_RETURN(const int64_t gates, shapes.Gates());
    MR_ASSIGN_OR_RETURN(PartialShape state, shapes.OfGate());
    c->set_output(0, std::move(state));
    MR_ASSIGN_OR_RETURN(PartialShape all, PartialShape::Make({{shapes.batch, gates}}));
    c->set_output(1, std::move(all));
    for (int i = 2; i < 5; ++i) c->set_output(i, PartialShape({shapes.cells}));
    return absl::OkStatus();
  }
};

Status RunCellGrad(KernelContext* ctx, const CellGradRule& rule) {
  using S = LstmShapes<false>;
  const S shapes = ShapesOf<false>(*ctx);
  const int64_t batch = shapes.batch, cells = shapes.cells;
  FloatOperands operands(ctx);
  MR_ASSIGN_OR_RETURN(float* cs_prev_grad, operands.Output(0));
  MR_ASSIGN_OR_RETURN(float* gates_grad, operands.Output(1));
  MR_ASSIGN_OR_RETURN(const float* cs_prev, operands.Input(S::kState));
  MR_ASSIGN_OR_RETURN(const math::LstmStep step,
                      StepOf<false>(&operands, math::kLstmIcfo, cells, rule.use_peephole));
  std::vector<const float*> gates;  // i, cs, f, o, ci, co, cs_grad, h_grad
  for (int i = S::kInputs; i < S::kInputs + 8; ++i) {
    MR_ASSIGN_OR_RETURN(const float* gate, operands.Input(i));
    gates.push_back(gate);
  }
  operands.ForEachRow(batch, cells, kBackwardNs, [&](int64_t row) {
    const int64_t at = row * cells;
    math::LstmBackward(step, {.cs_prev = cs_prev + at,
                              .i = gates[0] + at,
                              .cs = gates[1] + at,
                              .f = gates[2] + at,
                              .o = gates[3] + at,
                              .ci = gates[4] + at,
                              .co = gates[5] + at,
                              .cs_grad = gates[6] + at,
                              .h_grad = gates[7] + at,
                              .gates_grad = gates_grad + 4 * at,
                              .cs_prev_grad = cs_prev_grad + at});
  });
  std::vector<double> sums(static_cast<size_t>(3 * cells));
  if (rule.use_peephole) {
    AddPeepholeGrads(math::kLstmIcfo, batch, cells, gates_grad, cs_prev, gates[1], &sums);
  }
  for (int p = 0; p < 3; ++p) {
    MR_ASSIGN_OR_RETURN(float* grad, operands.Output(2 + p));
    std::transform(sums.begin() + p * cells, sums.begin() + (p + 1) * cells, grad,
                   [](double sum) { return static_cast<float>(sum); });
  }
  operands.Finish();
  return absl::OkStatus();
}

const OpRegistration kCellGrad =
    OpSpec("LSTMBlockCellGrad",
           "x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, b: T, i: T, cs: T, f: T, "
           "o: T, ci: T, co: T, cs_grad: T, h_grad: T -> cs_prev_grad: T, dicfo: T, wci_grad: T, "
           "wcf_grad: T, wco_grad: T",
           "use_peephole: bool; T: {half, float}")
        .With(RuledKernelFor<CellGradRule>(RunCellGrad))
        .NotDifferentiable();

// --- A sequence ----------------------------------------------------------------------------------

// The products with x of all steps are one; those with h come step by step.
template <bool kIsV2>
Status RunSequence(KernelContext* ctx, const LstmRule<true>& rule) {
  using S = LstmShapes<true>;
  const S shapes = ShapesOf<true>(*ctx);
  const int64_t batch = shapes.batch, inputs = shapes.inputs, cells = shapes.cells;
  MR_ASSIGN_OR_RETURN(const int64_t length, LengthInput(*ctx, shapes.steps));
  FloatOperands operands(ctx);
  MR_ASSIGN_OR_RETURN(const std::vector<float*> out, GateOutputs(&operands));
  const int64_t size = batch * cells;  // of a step
  for (float* gate : out) std::fill(gate + length * size, gate + shapes.steps * size, 0.0f);
  if (size > 0 && length > 0) {
    MR_ASSIGN_OR_RETURN(const float* x, operands.Input(S::kX));
    MR_ASSIGN_OR_RETURN(const float* cs_prev, operands.Input(S::kState));
    MR_ASSIGN_OR_RETURN(const float* h_prev, operands.Input(S::kH));
    MR_ASSIGN_OR_RETURN(const float* w, operands.Input(S::kW));
    MR_ASSIGN_OR_RETURN(math::LstmStep step,
                        StepOf<true>(&operands, kIsV2 ? math::kLstmIfco : math::kLstmIcfo, cells,
                                     rule.use_peephole));
    step.forget_bias = rule.forget_bias;
    step.cell_clip = rule.cell_clip;
    MR_ASSIGN_OR_RETURN(float* of_x, operands.Scratch(length * batch, 4 * cells));
    MR_ASSIGN_OR_RETURN(float* of_h, operands.Scratch(batch, 4 * cells));
    operands.Product({.m = length * batch, .n = 4 * cells, .k = inputs}, x, w, of_x);
    for (int64_t t = 0; t < length; ++t) {
      const float* const h = t == 0 ? h_prev : out[6] + (t - 1) * size;
      const float* const cs = t == 0 ? cs_prev : out[1] + (t - 1) * size;
      operands.Product({.m = batch, .n = 4 * cells, .k = cells}, h, w + inputs * 4 * cells, of_h);
      operands.ForEachRow(batch, cells, kForwardNs, [&](int64_t row) {
        const int64_t at = t * size + row * cells;
        math::LstmForward(step, {.gates = of_x + 4 * at,
                                 .more_gates = of_h + 4 * row * cells,
                                 .cs_prev = cs + row * cells,
                                 .i = out[0] + at,
                                 .cs = out[1] + at,
                                 .f = out[2] + at,
                                 .o = out[3] + at,
                                 .ci = out[4] + at,
                                 .co = out[5] + at,
                                 .h = out[6] + at});
      });
    }
  }
  operands.Finish();
  return absl::OkStatus();
}

template <bool kIsV2>
Status SequenceGradient(GradientContext* c) {
  MR_RETURN_IF_ERROR(CheckGradients(c));
  if (!c->has_grad(1) && !c->has_grad(6)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const bool use_peephole, c->GetAttr<bool>("use_peephole"));
  const LSTMOutputs cells = {c->output(0), c->output(1), c->output(2), c->output(3),
                             c->output(4), c->output(5), c->output(6)};
  const auto& builder = kIsV2 ? BlockLSTMGradV2 : BlockLSTMGrad;
  const BlockLSTMGradOutputs grad =
      builder(c->scope(), c->input(0), c->input(1), c->input(2), c->input(3), c->input(4),
              c->input(5), c->input(6), c->input(7), c->input(8), cells, c->dense_grad(1),
              c->dense_grad(6), use_peephole);
  c->set_input_grads({Output(), grad.x_grad, grad.cs_prev_grad, grad.h_prev_grad, grad.w_grad,
                      grad.wci_grad, grad.wcf_grad, grad.wco_grad, grad.b_grad});
  return absl::OkStatus();
}

const std::string kSequenceArguments = absl::StrCat(
    "seq_len_max: int64, x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, "
    "b: T -> ",
    kCellOutputs);
const OpRegistration kSequence = OpSpec("BlockLSTM", kSequenceArguments, kCellAttrs)
                                     .With(RuledKernelFor<LstmRule<true>>(RunSequence<false>))
                                     .Gradient(SequenceGradient<false>);
const OpRegistration kSequenceV2 =
    OpSpec("BlockLSTMV2", kSequenceArguments,
           "cell_clip: float = 0; use_peephole: bool = false; T: {half, float}")
        .With(RuledKernelFor<LstmRule<true>>(RunSequence<true>))
        .Gradient(SequenceGradient<true>);

struct SequenceGradRule {
  bool use_peephole = false;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "use_peephole", &use_peephole); }
  Status operator()(RuleContext* c) const {
    LstmShapes<true> shapes;
    MR_RETURN_IF_ERROR(shapes.Read(c, 9));
    MR_ASSIGN_OR_RETURN(const int64_t gates, shapes.Gates());
    const PartialShape state = {shapes.batch, shapes.cells};
    const int64_t rows =
        shapes.inputs == -1 || shapes.cells == -1 ? -1 : shapes.inputs + shapes.cells;
    MR_ASSIGN_OR_RETURN(PartialShape x,
                        PartialShape::Make({{shapes.steps, shapes.batch, shapes.inputs}}));
    MR_ASSIGN_OR_RETURN(PartialShape w, PartialShape::Make({{rows, gates}}));
    c->set_output(0, std::move(x));
    c->set_output(1, state);
    c->set_output(2, state);
    c->set_output(3, std::move(w));
    for (int i = 4; i < 7; ++i) c->set_output(i, PartialShape({shapes.cells}));
    c->set_output(7, PartialShape({gates}));
    return absl::OkStatus();
  }
};

template <bool kIsV2>
Status RunSequenceGrad(KernelContext* ctx, const SequenceGradRule& rule) {
  using S = LstmShapes<true>;
  constexpr math::LstmGates kOrder = kIsV2 ? math::kLstmIfco : math::kLstmIcfo;
  const S shapes = ShapesOf<true>(*ctx);
  const int64_t batch = shapes.batch, inputs = shapes.inputs, cells = shapes.cells;
  MR_ASSIGN_OR_RETURN(const int64_t length, LengthInput(*ctx, shapes.steps));
  FloatOperands operands(ctx);
  std::vector<float*> out;  // x, cs_prev, h_prev, w, wci, wcf, wco, b
  for (int i = 0; i < 8; ++i) {
    MR_ASSIGN_OR_RETURN(float* grad, operands.Output(i));
    std::fill(grad, grad + ctx->output_shape(i).num_elements(), 0.0f);
    out.push_back(grad);
  }
  const int64_t size = batch * cells;
  if (size > 0 && length > 0) {
    MR_ASSIGN_OR_RETURN(const float* x, operands.Input(S::kX));
    MR_ASSIGN_OR_RETURN(const float* cs_prev, operands.Input(S::kState));
    MR_ASSIGN_OR_RETURN(const float* h_prev, operands.Input(S::kH));
    MR_ASSIGN_OR_RETURN(const float* w, operands.Input(S::kW));
    MR_ASSIGN_OR_RETURN(const math::LstmStep step,
                        StepOf<true>(&operands, kOrder, cells, rule.use_peephole));
    std::vector<const float*> gates;  // i, cs, f, o, ci, co, h, cs_grad, h_grad
    for (int i = S::kInputs; i < S::kInputs + 9; ++i) {
      MR_ASSIGN_OR_RETURN(const float* gate, operands.Input(i));
      gates.push_back(gate);
    }
    MR_ASSIGN_OR_RETURN(float* gates_grad, operands.Scratch(length * batch, 4 * cells));
    // What flows back from the step behind.
    float *const cs_back = out[1], *const h_back = out[2];
    // The part of w that h meets, turned: each step multiplies by it, and a product of plain
    // matrices takes two thirds of the time.
    MR_ASSIGN_OR_RETURN(float* w_h, operands.Scratch(4 * cells, cells));
    operands.Transpose(w + inputs * 4 * cells, cells, 4 * cells, w_h);
    std::vector<double> sums(static_cast<size_t>(3 * cells));
    for (int64_t t = length - 1; t >= 0; --t) {
      const float* const cs = t == 0 ? cs_prev : gates[1] + (t - 1) * size;
      operands.ForEachRow(batch, cells, kBackwardNs, [&](int64_t row) {
        const int64_t at = t * size + row * cells;
        math::LstmBackward(step, {.cs_prev = cs + row * cells,
                                  .i = gates[0] + at,
                                  .cs = gates[1] + at,
                                  .f = gates[2] + at,
                                  .o = gates[3] + at,
                                  .ci = gates[4] + at,
                                  .co = gates[5] + at,
                                  .cs_grad = gates[7] + at,
                                  .h_grad = gates[8] + at,
                                  .more_cs_grad = cs_back + row * cells,
                                  .more_h_grad = h_back + row * cells,
                                  .gates_grad = gates_grad + 4 * at,
                                  .cs_prev_grad = cs_back + row * cells});
      });
      const float* const of_step = gates_grad + 4 * t * size;
      operands.Product({.m = batch, .n = cells, .k = 4 * cells}, of_step, w_h, h_back);
      if (rule.use_peephole) {
        AddPeepholeGrads(kOrder, batch, cells, of_step, cs, gates[1] + t * size, &sums);
      }
    }
    operands.Product(
        {.m = length * batch, .n = inputs, .k = 4 * cells, .b = math::Operand::kTransposed},
        gates_grad, w, out[0]);
    operands.Product(
        {.m = inputs, .n = 4 * cells, .k = length * batch, .a = math::Operand::kTransposed}, x,
        gates_grad, out[3]);
    // The states that the steps began with, one behind the other.
    MR_ASSIGN_OR_RETURN(float* h, operands.Scratch(length * batch, cells));
    std::copy(gates[6], gates[6] + (length - 1) * size, std::copy(h_prev, h_prev + size, h));
    operands.Product(
        {.m = cells, .n = 4 * cells, .k = length * batch, .a = math::Operand::kTransposed}, h,
        gates_grad, out[3] + inputs * 4 * cells);
    for (int p = 0; p < 3; ++p) {
      std::transform(sums.begin() + p * cells, sums.begin() + (p + 1) * cells,
                     out[4 + static_cast<size_t>(p)],
                     [](double sum) { return static_cast<float>(sum); });
    }
    const math::BiasLoops* const bias = math::FindBias(DT_FLOAT);
    std::vector<char> wide(bias->wide_size * static_cast<size_t>(4 * cells));
    bias->sum_last(gates_grad, length * batch, 4 * cells, wide.data());
    bias->finish(wide.data(), 1, 4 * cells, out[7]);
  }
  operands.Finish();
  return absl::OkStatus();
}

template <bool kIsV2>
OpSpec SequenceGradSpec(const char* op) {
  return OpSpec(op,
                "seq_len_max: int64, x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, "
                "b: T, i: T, cs: T, f: T, o: T, ci: T, co: T, h: T, cs_grad: T, h_grad: T -> "
                "x_grad: T, cs_prev_grad: T, h_prev_grad: T, w_grad: T, wci_grad: T, wcf_grad: T, "
                "wco_grad: T, b_grad: T",
                "use_peephole: bool; T: {half, float}")
      .With(RuledKernelFor<SequenceGradRule>(RunSequenceGrad<kIsV2>))
      .NotDifferentiable();
}
const OpRegistration kSequenceGrads[] = {SequenceGradSpec<false>("BlockLSTMGrad"),
                                         SequenceGradSpec<true>("BlockLSTMGradV2")};

}  // namespace
}  // namespace millrace
