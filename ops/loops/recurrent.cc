// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/recurrent.h"

#include <algorithm>

#include "core/dtype.h"
#include "ops/loops/unary.h"

namespace millrace::math {
namespace {

void Sigmoid(float* x, int64_t n) {
  static const UnaryFn function = FindUnary(UnaryOp::kSigmoid, DT_FLOAT);
  function(x, x, n);
}
void Tanh(const float* x, float* y, int64_t n) {
  static const UnaryFn function = FindUnary(UnaryOp::kTanh, DT_FLOAT);
  function(x, y, n);
}

}  // namespace

void LstmForward(const LstmStep& step, const LstmRow& row) {
  const int64_t n = step.cells;
  // Gate `number` of the row, with bias.
  const auto load = [&](int number, float add, float* to) {
    const float* const from = row.gates + number * n;
    const float* const bias = step.bias + number * n;
    if (row.more_gates == nullptr) {
#pragma GCC ivdep
      for (int64_t c = 0; c < n; ++c) to[c] = from[c] + (bias[c] + add);
    } else {
      const float* const more = row.more_gates + number * n;
#pragma GCC ivdep
      for (int64_t c = 0; c < n; ++c) to[c] = from[c] + more[c] + (bias[c] + add);
    }
  };
  load(step.order.i, 0, row.i);
  load(step.order.f, step.forget_bias, row.f);
  load(step.order.ci, 0, row.ci);
  load(step.order.o, 0, row.o);
  if (step.wci != nullptr) {
    for (int64_t c = 0; c < n; ++c) row.i[c] += step.wci[c] * row.cs_prev[c];
    for (int64_t c = 0; c < n; ++c) row.f[c] += step.wcf[c] * row.cs_prev[c];
  }
  Sigmoid(row.i, n);
  Sigmoid(row.f, n);
  Tanh(row.ci, row.ci, n);
#pragma GCC ivdep
  for (int64_t c = 0; c < n; ++c) row.cs[c] = row.ci[c] * row.i[c] + row.cs_prev[c] * row.f[c];
  if (step.cell_clip > 0) {
    for (int64_t c = 0; c < n; ++c) {
      row.cs[c] = std::min(std::max(row.cs[c], -step.cell_clip), step.cell_clip);
    }
  }
  if (step.wco != nullptr) {
    for (int64_t c = 0; c < n; ++c) row.o[c] += step.wco[c] * row.cs[c];
  }
  Sigmoid(row.o, n);
  Tanh(row.cs, row.co, n);
#pragma GCC ivdep
  for (int64_t c = 0; c < n; ++c) row.h[c] = row.co[c] * row.o[c];
}

namespace {

// A step for each combination of what may be there: with nothing to ask within it, and no
// dependence between elements, the loop becomes one of vectors.
template <bool kHasMore, bool kHasPeepholes>
void LstmBackwardAs(const LstmStep& step, const LstmGradRow& row) {
  const int64_t n = step.cells;
  float* const d_i = row.gates_grad + step.order.i * n;
  float* const d_ci = row.gates_grad + step.order.ci * n;
  float* const d_f = row.gates_grad + step.order.f * n;
  float* const d_o = row.gates_grad + step.order.o * n;
#pragma GCC ivdep
  for (int64_t c = 0; c < n; ++c) {
    float dh = row.h_grad[c], d_cs = row.cs_grad[c];
    if constexpr (kHasMore) {
      dh += row.more_h_grad[c];
      d_cs += row.more_cs_grad[c];
    }
    const float i = row.i[c], f = row.f[c], o = row.o[c], ci = row.ci[c], co = row.co[c];
    const float of_o = o * (1 - o) * dh * co;
    d_cs += (1 - co * co) * dh * o;
    if constexpr (kHasPeepholes) d_cs += of_o * step.wco[c];
    const float of_i = i * (1 - i) * d_cs * ci;
    const float of_f = f * (1 - f) * d_cs * row.cs_prev[c];
    float back = d_cs * f;
    if constexpr (kHasPeepholes) back += of_i * step.wci[c] + of_f * step.wcf[c];
    d_o[c] = of_o;
    d_i[c] = of_i;
    d_f[c] = of_f;
    d_ci[c] = (1 - ci * ci) * d_cs * i;
    row.cs_prev_grad[c] = back;
  }
}

}  // namespace

void LstmBackward(const LstmStep& step, const LstmGradRow& row) {
  if (row.more_h_grad != nullptr) {
    step.wco != nullptr ? LstmBackwardAs<true, true>(step, row)
                        : LstmBackwardAs<true, false>(step, row);
  } else {
    step.wco != nullptr ? LstmBackwardAs<false, true>(step, row)
                        : LstmBackwardAs<false, false>(step, row);
  }
}

void GruGates(int64_t cells, const GruGatesRow& row) {
  for (int64_t c = 0; c < cells; ++c) row.r[c] = row.gates[c] + row.bias[c];
  for (int64_t c = 0; c < cells; ++c) row.u[c] = row.gates[cells + c] + row.bias[cells + c];
  Sigmoid(row.r, cells);
  Sigmoid(row.u, cells);
  for (int64_t c = 0; c < cells; ++c) row.hr[c] = row.h_prev[c] * row.r[c];
}

void GruState(int64_t cells, const GruStateRow& row) {
  for (int64_t c = 0; c < cells; ++c) row.c[c] = row.product[c] + row.bias[c];
  Tanh(row.c, row.c, cells);
  for (int64_t c = 0; c < cells; ++c) {
    row.h[c] = row.u[c] * (row.h_prev[c] - row.c[c]) + row.c[c];
  }
}

void GruStateGrad(int64_t cells, const GruStateGradRow& row) {
  for (int64_t c = 0; c < cells; ++c) {
    const float u = row.u[c], state = row.c[c], dh = row.d_h[c];
    row.d_c_bar[c] = dh * (1 - u) * (1 - state * state);
    row.d_u_bar[c] = dh * (row.h_prev[c] - state) * u * (1 - u);
  }
}

void GruResetGrad(int64_t cells, const float* d_hr, const float* h_prev, const float* r,
                  float* d_r_bar) {
  for (int64_t c = 0; c < cells; ++c) d_r_bar[c] = d_hr[c] * h_prev[c] * r[c] * (1 - r[c]);
}

}  // namespace millrace::math
