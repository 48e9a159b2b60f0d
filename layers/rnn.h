// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_RNN_H_
#define MILLRACE_LAYERS_RNN_H_

// Recurrent networks: a cell (layers/rnn_cell.h) along a sequence.
//
//   const LSTMCell lstm(128);
//   const RnnOutputs rnn = DynamicRnn(model, lstm, x, {.sequence_length = lengths});
//   Output last = rnn.state[1];                       // h after the last step of each example
//
// x is [batch, time, inputs] ([time, batch, inputs] with time_major) with known inputs; outputs are
// [batch, time, output_size]. With sequence_length ([batch], int32 or int64), an example's outputs
// behind its length are zeros and its state is that of its last step.
//
// The cell's variables stand in the scope "rnn" ("rnn/lstm_cell/kernel"), or what WithName says.
//
// Failure: an error in the Scope, "<builder> '<name>': ..." or that of the cell, and invalid
// outputs.

#include <cstdint>
#include <memory>
#include <vector>

#include "graph/scope.h"
#include "layers/rnn_cell.h"

namespace millrace {

struct RnnOutputs {
  Output outputs;             // of all steps
  std::vector<Output> state;  // after the last one
  // The cell with its variables: for networks that share them.
  std::shared_ptr<const BuiltRnnCell> cell;
};

struct DynamicRnnAttrs {
  Output sequence_length = {};             // invalid: all steps of all examples
  std::vector<Output> initial_state = {};  // zeros when empty
  bool time_major = false;
  int64_t parallel_iterations = 32;
  bool swap_memory = false;
  std::shared_ptr<const BuiltRnnCell> shared_cell = nullptr;  // instead of variables of its own
  // Without a loop where the cell has an op for whole sequences (BuiltRnnCell::Along), which keeps
  // what a gradient needs of all steps also when there is none: for very long sequences in
  // inference a loop takes less memory. parallel_iterations and swap_memory are those of loops.
  bool in_one_op = true;
};
// Along time, of any length: by one op, or by a loop.
RnnOutputs DynamicRnn(ScopeAt at, const RnnCell& cell, const Output& x,
                      const DynamicRnnAttrs& attrs = {});

struct StaticRnnAttrs {
  Output sequence_length = {};
  std::vector<Output> initial_state = {};
  std::shared_ptr<const BuiltRnnCell> shared_cell = nullptr;
};
struct StaticRnnOutputs {
  std::vector<Output> outputs;  // one for each step
  std::vector<Output> state;
  std::shared_ptr<const BuiltRnnCell> cell;
};
// The steps one behind the other, each with nodes of its own; x is a tensor [batch, inputs] a step.
StaticRnnOutputs StaticRnn(ScopeAt at, const RnnCell& cell, const std::vector<Output>& x,
                           const StaticRnnAttrs& attrs = {});

struct BidirectionalRnnAttrs {
  Output sequence_length = {};
  std::vector<Output> initial_state_fw = {}, initial_state_bw = {};
  bool time_major = false;
  int64_t parallel_iterations = 32;
  bool swap_memory = false;
};
struct BidirectionalRnnOutputs {
  Output outputs_fw, outputs_bw;  // both in the order of x
  std::vector<Output> state_fw, state_bw;
};
// One cell from the first step to the last, the other from the last (of each example) to the first.
// "bidirectional_rnn/fw/...", "bidirectional_rnn/bw/...".
BidirectionalRnnOutputs BidirectionalDynamicRnn(ScopeAt at, const RnnCell& cell_fw,
                                                const RnnCell& cell_bw, const Output& x,
                                                const BidirectionalRnnAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_LAYERS_RNN_H_
