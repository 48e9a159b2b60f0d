// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/gru_block.h"

#include <algorithm>
#include <utility>

#include "graph/gradient.h"
#include "graph/op_rule.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/kernels/recurrent.h"
#include "ops/linalg/matmul.h"
#include "ops/loops/recurrent.h"
#include "ops/math/cwise_binary.h"
#include "ops/nn/bias.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

constexpr double kCellNs = 2;  // for an element-wise pass over a cell

// Inputs of both ops; the gradient has more.
enum : int { kX, kH, kWru, kWc, kBru, kBc, kR, kU, kC, kDh };

struct GruShapes {
  int64_t batch = -1, inputs = -1, cells = -1;

  Status Read(RuleContext* c) {
    const auto merge = [](int64_t* known, int64_t dim, const char* what) -> Status {
      if (dim == -1 || dim == *known) return absl::OkStatus();
      if (*known != -1) return InvalidArgument(what, " must agree, got ", *known, " and ", dim);
      *known = dim;
      return absl::OkStatus();
    };
    MR_ASSIGN_OR_RETURN(const PartialShape x, c->InputWithRank(kX, 2, "x"));
    MR_ASSIGN_OR_RETURN(const PartialShape h, c->InputWithRank(kH, 2, "h_prev"));
    batch = x.dim(0);
    inputs = x.dim(1);
    cells = h.dim(1);
    MR_RETURN_IF_ERROR(merge(&batch, h.dim(0), "batches of x and h_prev"));
    for (const auto& [i, name] : {std::pair(kWc, "w_c"), std::pair(kWru, "w_ru")}) {
      const int64_t per_cell = i == kWru ? 2 : 1;
      MR_ASSIGN_OR_RETURN(const PartialShape w, c->InputWithRank(i, 2, name));
      if (w.dim(1) != -1) {
        if (w.dim(1) % per_cell != 0) {
          return InvalidArgument(name, " must have 2 columns for each cell, got shape ", w);
        }
        MR_RETURN_IF_ERROR(merge(&cells, w.dim(1) / per_cell, "cells of h_prev and weights"));
      }
      if (w.dim(0) != -1 && cells != -1) {
        if (w.dim(0) < cells) {
          return InvalidArgument(name, " must have a row for each input and cell, got shape ", w);
        }
        MR_RETURN_IF_ERROR(merge(&inputs, w.dim(0) - cells, "inputs of x and weights"));
      }
    }
    for (const auto& [i, name] : {std::pair(kBc, "b_c"), std::pair(kBru, "b_ru")}) {
      const int64_t per_cell = i == kBru ? 2 : 1;
      MR_ASSIGN_OR_RETURN(const PartialShape b, c->InputWithRank(i, 1, name));
      if (b.dim(0) == -1) continue;
      if (b.dim(0) % per_cell != 0) {
        return InvalidArgument(name, " must have 2 elements for each cell, got shape ", b);
      }
      MR_RETURN_IF_ERROR(merge(&cells, b.dim(0) / per_cell, "cells of h_prev and biases"));
    }
    for (int i = kR; i < c->num_inputs(); ++i) {
      const PartialShape state = {batch, cells};
      if (!state.IsCompatibleWith(c->input(i))) {
        return InvalidArgument("input ", i, " must have shape ", state, ", got ", c->input(i));
      }
    }
    return absl::OkStatus();
  }
};

struct GruRule {
  Status operator()(RuleContext* c) const {
    GruShapes shapes;
    MR_RETURN_IF_ERROR(shapes.Read(c));
    for (int i = 0; i < 4; ++i) c->set_output(i, PartialShape({shapes.batch, shapes.cells}));
    return absl::OkStatus();
  }
};

Status RunCell(KernelContext* ctx, const GruRule&) {
  const int64_t batch = ctx->input(kX).dim(0), inputs = ctx->input(kX).dim(1);
  const int64_t cells = ctx->input(kH).dim(1);
  FloatOperands operands(ctx);
  MR_ASSIGN_OR_RETURN(float* r, operands.Output(0));
  MR_ASSIGN_OR_RETURN(float* u, operands.Output(1));
  MR_ASSIGN_OR_RETURN(float* c, operands.Output(2));
  MR_ASSIGN_OR_RETURN(float* h, operands.Output(3));
  if (batch == 0 || cells == 0) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const float* x, operands.Input(kX));
  MR_ASSIGN_OR_RETURN(const float* h_prev, operands.Input(kH));
  MR_ASSIGN_OR_RETURN(const float* w_ru, operands.Input(kWru));
  MR_ASSIGN_OR_RETURN(const float* w_c, operands.Input(kWc));
  MR_ASSIGN_OR_RETURN(const float* b_ru, operands.Input(kBru));
  MR_ASSIGN_OR_RETURN(const float* b_c, operands.Input(kBc));
  MR_ASSIGN_OR_RETURN(float* xh, operands.Scratch(batch, inputs + cells));
  MR_ASSIGN_OR_RETURN(float* product, operands.Scratch(batch, 2 * cells));
  MR_ASSIGN_OR_RETURN(float* hr, operands.Scratch(batch, cells));
  FloatOperands::Beside(batch, x, inputs, h_prev, cells, xh);
  operands.Product({.m = batch, .n = 2 * cells, .k = inputs + cells}, xh, w_ru, product);
  operands.ForEachRow(batch, cells, kCellNs, [&](int64_t row) {
    const int64_t at = row * cells;
    math::GruGates(cells, {.gates = product + 2 * at,
                           .bias = b_ru,
                           .h_prev = h_prev + at,
                           .r = r + at,
                           .u = u + at,
                           .hr = hr + at});
  });
  FloatOperands::Beside(batch, x, inputs, hr, cells, xh);
  operands.Product({.m = batch, .n = cells, .k = inputs + cells}, xh, w_c, product);
  operands.ForEachRow(batch, cells, kCellNs, [&](int64_t row) {
    const int64_t at = row * cells;
    math::GruState(cells, {.product = product + at,
                           .bias = b_c,
                           .u = u + at,
                           .h_prev = h_prev + at,
                           .c = c + at,
                           .h = h + at});
  });
  return absl::OkStatus();
}

// Gradients flow through h; the others are there for the op of the gradient.
Status CellGradient(GradientContext* c) {
  static constexpr const char* kNames[] = {"r", "u", "c"};
  for (int i = 0; i < 3; ++i) {
    if (c->has_grad(i)) {
      return InvalidArgument("gradients must flow through h only, got one of '", kNames[i], "'");
    }
  }
  if (!c->has_grad(3)) return absl::OkStatus();
  const Scope& s = c->scope();
  const Output x = c->input(kX), h_prev = c->input(kH), r = c->output(0);
  const GRUGradOutputs grad =
      GRUBlockCellGrad(s, x, h_prev, c->input(kWru), c->input(kWc), c->input(kBru), c->input(kBc),
                       r, c->output(1), c->output(2), c->dense_grad(3));
  const Output axis = Const(s, 1);
  const Output xh = ConcatV2(s, {x, h_prev}, axis);
  const Output xhr = ConcatV2(s, {x, Mul(s, h_prev, r)}, axis);
  c->set_input_grads({grad.d_x, grad.d_h_prev,
                      MatMul(s, xh, grad.d_r_bar_u_bar, {.transpose_a = true}),
                      MatMul(s, xhr, grad.d_c_bar, {.transpose_a = true}),
                      BiasAddGrad(s, grad.d_r_bar_u_bar), BiasAddGrad(s, grad.d_c_bar)});
  return absl::OkStatus();
}

const OpRegistration kCell =
    OpSpec("GRUBlockCell",
           "x: T, h_prev: T, w_ru: T, w_c: T, b_ru: T, b_c: T -> r: T, u: T, c: T, h: T",
           "T: {float}")
        .With(RuledKernelFor<GruRule>(RunCell))
        .Gradient(CellGradient);

struct GruGradRule {
  Status operator()(RuleContext* c) const {
    GruShapes shapes;
    MR_RETURN_IF_ERROR(shapes.Read(c));
    int64_t both = -1;
    if (shapes.cells != -1) {
      MR_ASSIGN_OR_RETURN(both, CheckedProduct(shapes.cells, 2));
    }
    c->set_output(0, PartialShape({shapes.batch, shapes.inputs}));
    c->set_output(1, PartialShape({shapes.batch, shapes.cells}));
    c->set_output(2, PartialShape({shapes.batch, shapes.cells}));
    c->set_output(3, PartialShape({shapes.batch, both}));
    return absl::OkStatus();
  }
};

Status RunCellGrad(KernelContext* ctx, const GruGradRule&) {
  const int64_t batch = ctx->input(kX).dim(0), inputs = ctx->input(kX).dim(1);
  const int64_t cells = ctx->input(kH).dim(1), columns = inputs + cells;
  FloatOperands operands(ctx);
  MR_ASSIGN_OR_RETURN(float* d_x, operands.Output(0));
  MR_ASSIGN_OR_RETURN(float* d_h_prev, operands.Output(1));
  MR_ASSIGN_OR_RETURN(float* d_c_bar, operands.Output(2));
  MR_ASSIGN_OR_RETURN(float* d_ru_bar, operands.Output(3));
  if (batch == 0) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const float* h_prev, operands.Input(kH));
  MR_ASSIGN_OR_RETURN(const float* w_ru, operands.Input(kWru));
  MR_ASSIGN_OR_RETURN(const float* w_c, operands.Input(kWc));
  MR_ASSIGN_OR_RETURN(const float* r, operands.Input(kR));
  MR_ASSIGN_OR_RETURN(const float* u, operands.Input(kU));
  MR_ASSIGN_OR_RETURN(const float* c, operands.Input(kC));
  MR_ASSIGN_OR_RETURN(const float* d_h, operands.Input(kDh));
  MR_ASSIGN_OR_RETURN(float* of_c, operands.Scratch(batch, columns));   // d_[x, hr]
  MR_ASSIGN_OR_RETURN(float* of_ru, operands.Scratch(batch, columns));  // d_[x, h]
  operands.ForEachRow(batch, cells, kCellNs, [&](int64_t row) {
    const int64_t at = row * cells;
    math::GruStateGrad(cells, {.d_h = d_h + at,
                               .u = u + at,
                               .c = c + at,
                               .h_prev = h_prev + at,
                               .d_c_bar = d_c_bar + at,
                               .d_u_bar = d_ru_bar + 2 * at + cells});
  });
  operands.Product({.m = batch, .n = columns, .k = cells, .b = math::Operand::kTransposed}, d_c_bar,
                   w_c, of_c);
  operands.ForEachRow(batch, cells, kCellNs, [&](int64_t row) {
    const int64_t at = row * cells;
    math::GruResetGrad(cells, of_c + row * columns + inputs, h_prev + at, r + at,
                       d_ru_bar + 2 * at);
  });
  operands.Product({.m = batch, .n = columns, .k = 2 * cells, .b = math::Operand::kTransposed},
                   d_ru_bar, w_ru, of_ru);
  operands.ForEachRow(batch, columns, kCellNs, [&](int64_t row) {
    const float *const from_c = of_c + row * columns, *const from_ru = of_ru + row * columns;
    for (int64_t i = 0; i < inputs; ++i) d_x[row * inputs + i] = from_c[i] + from_ru[i];
    for (int64_t i = 0; i < cells; ++i) {
      const int64_t at = row * cells + i;
      d_h_prev[at] = from_c[inputs + i] * r[at] + d_h[at] * u[at] + from_ru[inputs + i];
    }
  });
  return absl::OkStatus();
}

const OpRegistration kCellGrad =
    OpSpec("GRUBlockCellGrad",
           "x: T, h_prev: T, w_ru: T, w_c: T, b_ru: T, b_c: T, r: T, u: T, c: T, d_h: T -> d_x: T, "
           "d_h_prev: T, d_c_bar: T, d_r_bar_u_bar: T",
           "T: {float}")
        .With(RuledKernelFor<GruGradRule>(RunCellGrad))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
