// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_GRU_BLOCK_H_
#define MILLRACE_OPS_NN_GRU_BLOCK_H_

// A step of a GRU cell as one op. float.
//
//   [r, u] = sigmoid([x, h_prev] * w_ru + b_ru)
//   c = tanh([x, h_prev * r] * w_c + b_c)            h = (1 - u) * c + u * h_prev
//
// Shapes: x [batch, inputs], h_prev [batch, cells], w_ru [inputs + cells, 2 * cells], w_c [inputs +
// cells, cells], b_ru [2 * cells], b_c [cells]; outputs as h_prev.

#include "graph/node_builder.h"

namespace millrace {

struct GRUOutputs {
  Output r, u, c, h;
};
inline GRUOutputs GRUBlockCell(ScopeAt at, Output x, Output h_prev, Output w_ru, Output w_c,
                               Output b_ru, Output b_c) {
  const BuiltNode node = BuildOp(at, "GRUBlockCell", {x, h_prev, w_ru, w_c, b_ru, b_c});
  return {node.output(0), node.output(1), node.output(2), node.output(3)};
}

struct GRUGradOutputs {
  Output d_x, d_h_prev;
  Output d_c_bar, d_r_bar_u_bar;  // of c and of r, u before their activation
};
// r, u and c are what GRUBlockCell gave for the same inputs.
inline GRUGradOutputs GRUBlockCellGrad(ScopeAt at, Output x, Output h_prev, Output w_ru, Output w_c,
                                       Output b_ru, Output b_c, Output r, Output u, Output c,
                                       Output d_h) {
  const BuiltNode node =
      BuildOp(at, "GRUBlockCellGrad", {x, h_prev, w_ru, w_c, b_ru, b_c, r, u, c, d_h});
  return {node.output(0), node.output(1), node.output(2), node.output(3)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_GRU_BLOCK_H_
