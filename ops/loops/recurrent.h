// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_RECURRENT_H_
#define MILLRACE_OPS_LOOPS_RECURRENT_H_

// The element-wise part of LSTM and GRU cells, one example (a row) at a time, in float: what stands
// between the products of a step.
//
//   i = sigmoid(gate_i + wci * cs_prev)      f = sigmoid(gate_f + forget_bias + wcf * cs_prev)
//   ci = tanh(gate_ci)                       cs = clip(ci * i + cs_prev * f)
//   o = sigmoid(gate_o + wco * cs)           co = tanh(cs)        h = co * o
//
// where the four gates of a row lie one behind the other, each of `cells` numbers.
//
// Thread-safety: pure functions. Rows may be worked on in any order: an element depends on its own
// row alone.

#include <cstdint>

namespace millrace::math {

// Where the gates are among the four of a row.
struct LstmGates {
  int i, ci, f, o;
};
inline constexpr LstmGates kLstmIcfo{0, 1, 2, 3};
inline constexpr LstmGates kLstmIfco{0, 2, 1, 3};

// What the rows of a step have in common.
struct LstmStep {
  LstmGates order;
  int64_t cells;
  float forget_bias = 0;
  float cell_clip = 0;          // cs stays within it; <= 0: anywhere
  const float* bias = nullptr;  // of the gates
  const float* wci = nullptr;   // all three or none: weights of peepholes
  const float* wcf = nullptr;
  const float* wco = nullptr;
};

struct LstmRow {
  const float* gates;                 // the product of the step, without bias
  const float* more_gates = nullptr;  // to be added to it, or null
  const float* cs_prev;
  float *i, *cs, *f, *o, *ci, *co, *h;
};
void LstmForward(const LstmStep& step, const LstmRow& row);

// The gradients of the gates before their activation, and of cs_prev.
struct LstmGradRow {
  const float *cs_prev, *i, *cs, *f, *o, *ci, *co;  // as they were
  const float *cs_grad, *h_grad;
  // To be added to these; both or neither.
  const float *more_cs_grad = nullptr, *more_h_grad = nullptr;
  float* gates_grad;
  float* cs_prev_grad;  // may be cs_grad or more_cs_grad
};
void LstmBackward(const LstmStep& step, const LstmGradRow& row);

// GRU: r and u, before their activation one behind the other in `gates`, without bias.
//   r = sigmoid(.), u = sigmoid(.), hr = h_prev * r
struct GruGatesRow {
  const float* gates;
  const float* bias;
  const float* h_prev;
  float *r, *u, *hr;
};
void GruGates(int64_t cells, const GruGatesRow& row);
// c = tanh(product + bias), h = (1 - u) * c + u * h_prev
struct GruStateRow {
  const float* product;
  const float* bias;
  const float *u, *h_prev;
  float *c, *h;
};
void GruState(int64_t cells, const GruStateRow& row);

// d_c_bar = d_h (1 - u)(1 - c^2), d_u_bar = d_h (h_prev - c) u (1 - u)
struct GruStateGradRow {
  const float *d_h, *u, *c, *h_prev;
  float *d_c_bar, *d_u_bar;
};
void GruStateGrad(int64_t cells, const GruStateGradRow& row);
// From d_hr, what flows back to h_prev * r: d_r_bar = d_hr h_prev r (1 - r).
void GruResetGrad(int64_t cells, const float* d_hr, const float* h_prev, const float* r,
                  float* d_r_bar);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_RECURRENT_H_
