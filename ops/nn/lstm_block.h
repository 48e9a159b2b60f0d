// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_LSTM_BLOCK_H_
#define MILLRACE_OPS_NN_LSTM_BLOCK_H_

// LSTM cells as one op for a step, or for a whole sequence. T is float or half (half computes in
// float).
//
//   [gates] = [x, h_prev] * w + b, of `cells` columns each, in the order i, ci, f, o
//   i = sigmoid(gate_i + cs_prev * wci)      f = sigmoid(gate_f + forget_bias + cs_prev * wcf)
//   ci = tanh(gate_ci)                       cs = clip(ci * i + cs_prev * f, cell_clip)
//   o = sigmoid(gate_o + cs * wco)           co = tanh(cs)        h = co * o
//
// Shapes: x [batch, inputs] ([time, batch, inputs] for a sequence), cs_prev and h_prev [batch,
// cells], w [inputs + cells, 4 * cells], wci, wcf, wco [cells], b [4 * cells]; outputs as cs_prev
// ([time, batch, cells]). The peepholes wci, wcf, wco count only with use_peephole. Gradients pass
// a clip as if there were none.

#include <cstdint>

#include "graph/node_builder.h"

namespace millrace {

struct LSTMOutputs {
  Output i, cs, f, o, ci, co, h;
};
namespace lstm_block_internal {
inline LSTMOutputs OutputsOf(const BuiltNode& node) {
  return {node.output(0), node.output(1), node.output(2), node.output(3),
          node.output(4), node.output(5), node.output(6)};
}
}  // namespace lstm_block_internal

struct LSTMBlockCellAttrs {
  float forget_bias = 1;
  float cell_clip = 3;  // <= 0: none
  bool use_peephole = false;
};
// One step.
inline LSTMOutputs LSTMBlockCell(ScopeAt at, Output x, Output cs_prev, Output h_prev, Output w,
                                 Output wci, Output wcf, Output wco, Output b,
                                 const LSTMBlockCellAttrs& attrs = {}) {
  return lstm_block_internal::OutputsOf(
      BuildOp(at, "LSTMBlockCell", {x, cs_prev, h_prev, w, wci, wcf, wco, b}, "forget_bias",
              attrs.forget_bias, "cell_clip", attrs.cell_clip, "use_peephole", attrs.use_peephole));
}
// Of `seq_len_max` (int64 scalar) steps; the outputs of those behind are zeros.
inline LSTMOutputs BlockLSTM(ScopeAt at, Output seq_len_max, Output x, Output cs_prev,
                             Output h_prev, Output w, Output wci, Output wcf, Output wco, Output b,
                             const LSTMBlockCellAttrs& attrs = {}) {
  return lstm_block_internal::OutputsOf(BuildOp(
      at, "BlockLSTM", {seq_len_max, x, cs_prev, h_prev, w, wci, wcf, wco, b}, "forget_bias",
      attrs.forget_bias, "cell_clip", attrs.cell_clip, "use_peephole", attrs.use_peephole));
}
struct BlockLSTMV2Attrs {
  float cell_clip = 0;
  bool use_peephole = false;
};
// The same with gates in the order i, f, ci, o and without forget_bias.
inline LSTMOutputs BlockLSTMV2(ScopeAt at, Output seq_len_max, Output x, Output cs_prev,
                               Output h_prev, Output w, Output wci, Output wcf, Output wco,
                               Output b, const BlockLSTMV2Attrs& attrs = {}) {
  return lstm_block_internal::OutputsOf(
      BuildOp(at, "BlockLSTMV2", {seq_len_max, x, cs_prev, h_prev, w, wci, wcf, wco, b},
              "cell_clip", attrs.cell_clip, "use_peephole", attrs.use_peephole));
}

struct LSTMBlockCellGradOutputs {
  Output cs_prev_grad;
  Output dicfo;  // of the gates before their activation, [batch, 4 * cells]
  Output wci_grad, wcf_grad, wco_grad;
};
// `cell` is what LSTMBlockCell gave for the same inputs.
inline LSTMBlockCellGradOutputs LSTMBlockCellGrad(ScopeAt at, Output x, Output cs_prev,
                                                  Output h_prev, Output w, Output wci, Output wcf,
                                                  Output wco, Output b, const LSTMOutputs& cell,
                                                  Output cs_grad, Output h_grad,
                                                  bool use_peephole) {
  const BuiltNode node = BuildOp(at, "LSTMBlockCellGrad",
                                 {x, cs_prev, h_prev, w, wci, wcf, wco, b, cell.i, cell.cs, cell.f,
                                  cell.o, cell.ci, cell.co, cs_grad, h_grad},
                                 "use_peephole", use_peephole);
  return {node.output(0), node.output(1), node.output(2), node.output(3), node.output(4)};
}

struct BlockLSTMGradOutputs {
  Output x_grad, cs_prev_grad, h_prev_grad, w_grad, wci_grad, wcf_grad, wco_grad, b_grad;
};
// `cells` is what BlockLSTM (BlockLSTMV2) gave for the same inputs.
struct BlockLSTMGradBuilder {
  const char* op;
  BlockLSTMGradOutputs operator()(ScopeAt at, Output seq_len_max, Output x, Output cs_prev,
                                  Output h_prev, Output w, Output wci, Output wcf, Output wco,
                                  Output b, const LSTMOutputs& cells, Output cs_grad, Output h_grad,
                                  bool use_peephole) const {
    const BuiltNode node =
        BuildOp(at, op,
                {seq_len_max, x, cs_prev, h_prev, w, wci, wcf, wco, b, cells.i, cells.cs, cells.f,
                 cells.o, cells.ci, cells.co, cells.h, cs_grad, h_grad},
                "use_peephole", use_peephole);
    return {node.output(0), node.output(1), node.output(2), node.output(3),
            node.output(4), node.output(5), node.output(6), node.output(7)};
  }
};
inline constexpr BlockLSTMGradBuilder BlockLSTMGrad{"BlockLSTMGrad"};
inline constexpr BlockLSTMGradBuilder BlockLSTMGradV2{"BlockLSTMGradV2"};

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_LSTM_BLOCK_H_
