// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_RNN_CELL_H_
#define MILLRACE_LAYERS_RNN_CELL_H_

// Cells: one step of a recurrent network.
//
//   const LSTMCell lstm(128, {.use_peepholes = true});
//   DynamicRnnOutputs rnn = DynamicRnn(model, lstm, x);       // layers/rnn.h
//
// An RnnCell describes a cell: sizes and options, no nodes. Build makes its variables, once, in a
// scope; what it gives is stepped as often as a network has steps, within loops, too. A description
// may be built several times, with variables of their own each time; what was built may be used by
// several networks, which then share them.
//
// Variables have the names that TensorFlow's cells give them ("lstm_cell/kernel",
// "gru_cell/gates/bias", "multi_rnn_cell/cell_0/..."), so that checkpoints agree.
//
// Along a sequence (layers/rnn.h) FusedLSTMCell, and LSTMCell where its options and type are those
// of that op (float; no clip, projection or activation of one's own), run as one BlockLSTM.
//
// A state is a list of tensors [batch, size]: LSTM (c, h), GRU and basic cells (h), stacked cells
// theirs one after the other. x is [batch, inputs] with a known number of inputs.
//
// Failure: an error in the Scope, "<Cell> '<name>': ...", and invalid outputs.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "layers/weight.h"

namespace millrace {

// A cell with its variables.
class BuiltRnnCell {
 public:
  virtual ~BuiltRnnCell() = default;

  struct Step {
    Output output;              // [batch, output_size]
    std::vector<Output> state;  // the next one
  };
  // One step from `state` on. Thread-safety: as the Scope's.
  virtual Step operator()(ScopeAt at, const Output& x, const std::vector<Output>& state) const = 0;
  virtual std::vector<Variable> variables() const = 0;

  struct Sequence {
    Output outputs;              // of all steps: [time, batch, output_size]
    std::vector<Output> states;  // after each step: [time, batch, size]
  };
  // `length` (an int32 scalar, at most time) steps along x [time, batch, inputs] from `state` on,
  // by one op: the same numbers, with the products of x in one matrix product. Behind `length` are
  // zeros. Empty for a cell that has no such op.
  virtual std::optional<Sequence> Along(ScopeAt, const Output& /*x*/, const Output& /*length*/,
                                        const std::vector<Output>& /*state*/) const {
    return std::nullopt;
  }
};

class RnnCell {
 public:
  virtual ~RnnCell() = default;
  virtual std::vector<int64_t> state_sizes() const = 0;
  // Which of them are an LSTM's c: memory, not output.
  virtual std::vector<bool> is_memory() const {
    return std::vector<bool>(state_sizes().size(), false);
  }
  virtual int64_t output_size() const = 0;
  // Null after an error. `inputs` is the last dimension of x.
  virtual std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs,
                                                    DType dtype) const = 0;
};

// Zeros, a state for so many examples (an int32 scalar, or what is known).
std::vector<Output> ZeroState(ScopeAt at, const RnnCell& cell, const Output& batch, DType dtype);
std::vector<Output> ZeroState(ScopeAt at, const RnnCell& cell, int64_t batch, DType dtype);

// --- Plain cells ---------------------------------------------------------------------------------

struct BasicRNNCellAttrs {
  Activation activation = {};  // tanh when empty
  Initializer kernel_initializer = GlorotUniformInitializer();
};
// h = activation([x, h] kernel + bias). "basic_rnn_cell/{kernel,bias}".
class BasicRNNCell : public RnnCell {
 public:
  explicit BasicRNNCell(int64_t units, BasicRNNCellAttrs attrs = {})
      : units_(units), attrs_(std::move(attrs)) {}
  std::vector<int64_t> state_sizes() const override { return {units_}; }
  int64_t output_size() const override { return units_; }
  std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs, DType dtype) const override;

 private:
  const int64_t units_;
  const BasicRNNCellAttrs attrs_;
};

struct GRUCellAttrs {
  Activation activation = {};  // of the candidate; tanh when empty
  Initializer kernel_initializer = GlorotUniformInitializer();
  Initializer bias_initializer = {};  // gates begin with 1, the candidate with 0, when empty
};
// Cho et al., 2014. "gru_cell/{gates,candidate}/{kernel,bias}".
//   [r, u] = sigmoid([x, h] gates)   c = activation([x, r h] candidate)   h = u h + (1 - u) c
class GRUCell : public RnnCell {
 public:
  explicit GRUCell(int64_t units, GRUCellAttrs attrs = {})
      : units_(units), attrs_(std::move(attrs)) {}
  std::vector<int64_t> state_sizes() const override { return {units_}; }
  int64_t output_size() const override { return units_; }
  std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs, DType dtype) const override;

 private:
  const int64_t units_;
  const GRUCellAttrs attrs_;
};

struct LSTMCellAttrs {
  bool use_peepholes = false;            // "w_f_diag", "w_i_diag", "w_o_diag"
  std::optional<double> cell_clip = {};  // c stays within it
  std::optional<int64_t> num_proj = {};  // h is projected to so many: "projection/kernel"
  std::optional<double> proj_clip = {};  // h stays within it
  double forget_bias = 1;                // added to the forget gate
  Activation activation = {};            // of candidate and cell; tanh when empty
  Initializer initializer = GlorotUniformInitializer();
};
// Hochreiter and Schmidhuber, 1997, with forget gates. "lstm_cell/{kernel,bias}", gates in the
// order i, j, f, o. State (c, h).
//   c = sigmoid(f + forget_bias) c + sigmoid(i) activation(j)     h = sigmoid(o) activation(c)
class LSTMCell : public RnnCell {
 public:
  explicit LSTMCell(int64_t units, LSTMCellAttrs attrs = {})
      : units_(units), attrs_(std::move(attrs)) {}
  std::vector<int64_t> state_sizes() const override { return {units_, output_size()}; }
  std::vector<bool> is_memory() const override { return {true, false}; }
  int64_t output_size() const override { return attrs_.num_proj.value_or(units_); }
  std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs, DType dtype) const override;

 protected:
  LSTMCell(const char* name, int64_t units, LSTMCellAttrs attrs)
      : name_(name), units_(units), attrs_(std::move(attrs)) {}

 private:
  const char* const name_ = "lstm_cell";
  const int64_t units_;
  const LSTMCellAttrs attrs_;
};

struct BasicLSTMCellAttrs {
  double forget_bias = 1;
  Activation activation = {};  // tanh when empty
};
// The same without options: "basic_lstm_cell/{kernel,bias}".
class BasicLSTMCell : public LSTMCell {
 public:
  explicit BasicLSTMCell(int64_t units, const BasicLSTMCellAttrs& attrs = {})
      : LSTMCell("basic_lstm_cell", units,
                 {.forget_bias = attrs.forget_bias, .activation = attrs.activation}) {}
};

// --- Cells of one op -----------------------------------------------------------------------------

struct LSTMBlockCellOptions {
  double forget_bias = 1;
  std::optional<double> cell_clip = {};
  bool use_peephole = false;
};
// As LSTMCell with one op for a step: float or half. "lstm_cell/{kernel,bias,w_*_diag}".
class FusedLSTMCell : public RnnCell {
 public:
  explicit FusedLSTMCell(int64_t units, LSTMBlockCellOptions options = {})
      : units_(units), options_(options) {}
  std::vector<int64_t> state_sizes() const override { return {units_, units_}; }
  std::vector<bool> is_memory() const override { return {true, false}; }
  int64_t output_size() const override { return units_; }
  std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs, DType dtype) const override;

 private:
  const int64_t units_;
  const LSTMBlockCellOptions options_;
};

// As GRUCell with one op for a step: float. "gru_cell/{gates,candidate}/{kernel,bias}".
class FusedGRUCell : public RnnCell {
 public:
  explicit FusedGRUCell(int64_t units) : units_(units) {}
  std::vector<int64_t> state_sizes() const override { return {units_}; }
  int64_t output_size() const override { return units_; }
  std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs, DType dtype) const override;

 private:
  const int64_t units_;
};

// --- Cells of cells ------------------------------------------------------------------------------

// Each cell's output is the next one's x. "multi_rnn_cell/cell_0/...", ...
class MultiRNNCell : public RnnCell {
 public:
  explicit MultiRNNCell(std::vector<std::shared_ptr<const RnnCell>> cells)
      : cells_(std::move(cells)) {}
  std::vector<int64_t> state_sizes() const override;
  std::vector<bool> is_memory() const override;
  int64_t output_size() const override { return cells_.empty() ? 0 : cells_.back()->output_size(); }
  std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs, DType dtype) const override;

 private:
  const std::vector<std::shared_ptr<const RnnCell>> cells_;
};

struct DropoutWrapperAttrs {
  double input_keep_prob = 1;
  double output_keep_prob = 1;
  double state_keep_prob = 1;  // of what goes to the next step
  std::optional<int64_t> seed = std::nullopt;
};
// Dropout around a cell; other elements in each step. (Not of the c of an LSTM, whose loss would be
// for good.)
class DropoutWrapper : public RnnCell {
 public:
  explicit DropoutWrapper(std::shared_ptr<const RnnCell> cell, DropoutWrapperAttrs attrs = {})
      : cell_(std::move(cell)), attrs_(attrs) {}
  std::vector<int64_t> state_sizes() const override { return cell_->state_sizes(); }
  std::vector<bool> is_memory() const override { return cell_->is_memory(); }
  int64_t output_size() const override { return cell_->output_size(); }
  std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs, DType dtype) const override;

 private:
  const std::shared_ptr<const RnnCell> cell_;
  const DropoutWrapperAttrs attrs_;
};

// The cell's output and its x together, which have one size.
class ResidualWrapper : public RnnCell {
 public:
  explicit ResidualWrapper(std::shared_ptr<const RnnCell> cell) : cell_(std::move(cell)) {}
  std::vector<int64_t> state_sizes() const override { return cell_->state_sizes(); }
  std::vector<bool> is_memory() const override { return cell_->is_memory(); }
  int64_t output_size() const override { return cell_->output_size(); }
  std::unique_ptr<const BuiltRnnCell> Build(ScopeAt at, int64_t inputs, DType dtype) const override;

 private:
  const std::shared_ptr<const RnnCell> cell_;
};

}  // namespace millrace

#endif  // MILLRACE_LAYERS_RNN_CELL_H_
