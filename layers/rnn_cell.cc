// SPDX-License-Identifier: Apache-2.0
#include "layers/rnn_cell.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/tensor.h"
#include "layers/dropout.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/scalar_like.h"
#include "ops/linalg/matmul.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/nn/bias.h"
#include "ops/nn/gru_block.h"
#include "ops/nn/lstm_block.h"

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

// Where a cell's variables are, and what its errors say.
struct CellScope {
  CellScope(const ScopeAt& at, absl::string_view cell, absl::string_view name)
      : scope(at.scope.OutsideControlFlow().CompositeScope(name)), where(at.where), title(cell) {}

  ScopeAt at() const { return ScopeAt(scope, where); }
  template <typename... Parts>
  void Error(const Parts&... parts) const {
    absl::string_view name = scope.prefix();
    name.remove_suffix(1);
    scope.UpdateStatus(Prefixed(absl::StrCat(title, " '", name, "'"), InvalidArgument(parts...)),
                       where);
  }
  // Are sizes and type such that a cell can be made?
  bool Check(int64_t inputs, int64_t units, DType dtype) const {
    if (units < 1) Error("units must be >= 1, got ", units);
    if (inputs < 1) Error("x must have a known number of inputs >= 1, got ", inputs);
    if (!IsFloating(dtype)) Error("x must be floating, got ", dtype);
    return scope.ok();
  }
  Variable Weight(const char* name, std::initializer_list<int64_t> dims, DType dtype,
                  const Initializer& initializer) const {
    return MakeWeight(at(), name, dims, dtype, {.initializer = initializer});
  }

  const Scope scope;
  const std::source_location where;
  const std::string title;
};

// As many tensors as the cell has parts of its state.
bool CheckState(const ScopeAt& at, absl::string_view cell, const Outputs& state, size_t wanted) {
  if (!at.scope.ok()) return false;
  if (state.size() == wanted) return true;
  at.scope.UpdateStatus(
      InvalidArgument(cell, ": the state must have ", wanted, " tensors, got ", state.size()),
      at.where);
  return false;
}

Output Apply(const ScopeAt& at, const Activation& activation, const Output& x) {
  return activation ? Activated(at, activation, x) : Tanh(at, x);
}

// [a, b] kernel + bias
Output Affine(const ScopeAt& at, const Output& a, const Output& b, const Variable& kernel,
              const Variable& bias) {
  return BiasAdd(at, MatMul(at, ConcatV2(at, {a, b}, Const(at, 1)), kernel.value), bias.value);
}

// Within [-limit, limit].
Output Clipped(const ScopeAt& at, const Output& x, double limit) {
  return Maximum(at, Minimum(at, x, ScalarLike(at, x, limit)), ScalarLike(at, x, -limit));
}

// --- Built cells ---------------------------------------------------------------------------------

class BuiltBasicRnn : public BuiltRnnCell {
 public:
  BuiltBasicRnn(Variable kernel, Variable bias, Activation activation)
      : kernel_(std::move(kernel)), bias_(std::move(bias)), activation_(std::move(activation)) {}
  std::vector<Variable> variables() const override { return {kernel_, bias_}; }
  Step operator()(ScopeAt at, const Output& x, const Outputs& state) const override {
    if (!CheckState(at, "BasicRNNCell", state, 1)) return {};
    const Scope scope = at.scope.CompositeScope("basic_rnn_cell");
    const ScopeAt in(scope, at.where);
    const Output h = Apply(in, activation_, Affine(in, x, state[0], kernel_, bias_));
    return {h, {h}};
  }

 private:
  const Variable kernel_, bias_;
  const Activation activation_;
};

class BuiltGru : public BuiltRnnCell {
 public:
  Variable gates_kernel, gates_bias, candidate_kernel, candidate_bias;
  Activation activation;

  std::vector<Variable> variables() const override {
    return {gates_kernel, gates_bias, candidate_kernel, candidate_bias};
  }
  Step operator()(ScopeAt at, const Output& x, const Outputs& state) const override {
    if (!CheckState(at, "GRUCell", state, 1)) return {};
    const Scope scope = at.scope.CompositeScope("gru_cell");
    const ScopeAt in(scope, at.where);
    const Output& h = state[0];
    const Output gates = Sigmoid(in, Affine(in, x, h, gates_kernel, gates_bias));
    const Outputs split = Split(in, Const(in, 1), gates, 2);
    if (split.size() != 2) return {};
    const Output &r = split[0], &u = split[1];
    const Output c =
        Apply(in, activation, Affine(in, x, Mul(in, r, h), candidate_kernel, candidate_bias));
    const Output next = Add(in, Mul(in, u, h), Mul(in, Sub(in, ScalarLike(in, u, 1), u), c));
    return {next, {next}};
  }
};

// Ops of whole cells are given peepholes in any case.
Output NoPeephole(const ScopeAt& at, int64_t units, DType dtype) {
  const StatusOr<Tensor> zeros = Tensor::Zeros(dtype, Shape::Vector(static_cast<size_t>(units)));
  if (zeros.ok()) return Const(at, *zeros);
  at.scope.UpdateStatus(zeros.status(), at.where);
  return Output();
}

// BlockLSTM, which has the variables of all LSTM cells.
struct LstmWeights {
  Output kernel, bias, w_i, w_f, w_o;
};
BuiltRnnCell::Sequence LstmAlong(const ScopeAt& at, const Output& x, const Output& length,
                                 const Outputs& state, const LstmWeights& weights,
                                 const LSTMBlockCellAttrs& attrs) {
  const LSTMOutputs steps =
      BlockLSTM(at, Cast(at, length, DT_INT64), x, state[0], state[1], weights.kernel, weights.w_i,
                weights.w_f, weights.w_o, weights.bias, attrs);
  return {steps.h, {steps.cs, steps.h}};
}

class BuiltLstm : public BuiltRnnCell {
 public:
  std::string name;
  LSTMCellAttrs attrs;
  DType dtype = DT_FLOAT;
  int64_t units = 0;
  Variable kernel, bias, w_f, w_i, w_o, projection;

  std::vector<Variable> variables() const override {
    std::vector<Variable> all;
    for (const Variable& v : {kernel, bias, w_f, w_i, w_o, projection}) {
      if (v.valid()) all.push_back(v);
    }
    return all;
  }
  Step operator()(ScopeAt at, const Output& x, const Outputs& state) const override {
    if (!CheckState(at, "LSTMCell", state, 2)) return {};
    const Scope scope = at.scope.CompositeScope(name);
    const ScopeAt in(scope, at.where);
    const Output& c = state[0];
    const Outputs gates = Split(in, Const(in, 1), Affine(in, x, state[1], kernel, bias), 4);
    if (gates.size() != 4) return {};
    const Output &i = gates[0], &j = gates[1], &f = gates[2], &o = gates[3];
    const auto with_peephole = [&](const Output& gate, const Variable& weight, const Output& cell) {
      return weight.valid() ? Add(in, gate, Mul(in, weight.value, cell)) : gate;
    };
    const Output biased =
        attrs.forget_bias == 0 ? f : Add(in, f, ScalarLike(in, f, attrs.forget_bias));
    const Output forget = Sigmoid(in, with_peephole(biased, w_f, c));
    const Output in_gate = Sigmoid(in, with_peephole(i, w_i, c));
    Output next = Add(in, Mul(in, forget, c), Mul(in, in_gate, Apply(in, attrs.activation, j)));
    if (attrs.cell_clip) next = Clipped(in, next, *attrs.cell_clip);
    Output h = Mul(in, Sigmoid(in, with_peephole(o, w_o, next)), Apply(in, attrs.activation, next));
    if (projection.valid()) {
      h = MatMul(in, h, projection.value);
      if (attrs.proj_clip) h = Clipped(in, h, *attrs.proj_clip);
    }
    return {h, {next, h}};
  }
  std::optional<Sequence> Along(ScopeAt at, const Output& x, const Output& length,
                                const Outputs& state) const override {
    // The op's gradient passes a clip as if there were none.
    const bool has_op = dtype == DT_FLOAT && !attrs.activation && !attrs.cell_clip &&
                        !projection.valid() && !attrs.proj_clip;
    if (!has_op || state.size() != 2) return std::nullopt;
    const Scope scope = at.scope.CompositeScope(name);
    const ScopeAt in(scope, at.where);
    const Output no_peephole = attrs.use_peepholes ? Output() : NoPeephole(in, units, dtype);
    const auto peephole = [&](const Variable& weight) {
      return weight.valid() ? weight.value : no_peephole;
    };
    return LstmAlong(in, x, length, state,
                     {kernel.value, bias.value, peephole(w_i), peephole(w_f), peephole(w_o)},
                     {.forget_bias = static_cast<float>(attrs.forget_bias),
                      .cell_clip = -1,
                      .use_peephole = attrs.use_peepholes});
  }
};

class BuiltFusedLstm : public BuiltRnnCell {
 public:
  LSTMBlockCellOptions options;
  Variable kernel, bias, w_i, w_f, w_o;  // peepholes only where they are used
  Output no_peephole;                    // zeros, outside of loops

  std::vector<Variable> variables() const override {
    std::vector<Variable> all = {kernel, bias};
    if (options.use_peephole) all.insert(all.end(), {w_i, w_f, w_o});
    return all;
  }
  Step operator()(ScopeAt at, const Output& x, const Outputs& state) const override {
    if (!CheckState(at, "FusedLSTMCell", state, 2)) return {};
    const LstmWeights w = weights();
    const LSTMOutputs step =
        LSTMBlockCell(at, x, state[0], state[1], w.kernel, w.w_i, w.w_f, w.w_o, w.bias, attrs());
    return {step.h, {step.cs, step.h}};
  }
  std::optional<Sequence> Along(ScopeAt at, const Output& x, const Output& length,
                                const Outputs& state) const override {
    if (!CheckState(at, "FusedLSTMCell", state, 2)) return std::nullopt;
    return LstmAlong(at, x, length, state, weights(), attrs());
  }

 private:
  LstmWeights weights() const {
    const auto peephole = [&](const Variable& weight) {
      return options.use_peephole ? weight.value : no_peephole;
    };
    return {kernel.value, bias.value, peephole(w_i), peephole(w_f), peephole(w_o)};
  }
  LSTMBlockCellAttrs attrs() const {
    return {.forget_bias = static_cast<float>(options.forget_bias),
            .cell_clip = static_cast<float>(options.cell_clip.value_or(-1)),
            .use_peephole = options.use_peephole};
  }
};

class BuiltFusedGru : public BuiltRnnCell {
 public:
  Variable gates_kernel, gates_bias, candidate_kernel, candidate_bias;

  std::vector<Variable> variables() const override {
    return {gates_kernel, gates_bias, candidate_kernel, candidate_bias};
  }
  Step operator()(ScopeAt at, const Output& x, const Outputs& state) const override {
    if (!CheckState(at, "FusedGRUCell", state, 1)) return {};
    const Output h = GRUBlockCell(at, x, state[0], gates_kernel.value, candidate_kernel.value,
                                  gates_bias.value, candidate_bias.value)
                         .h;
    return {h, {h}};
  }
};

class BuiltMulti : public BuiltRnnCell {
 public:
  std::vector<std::unique_ptr<const BuiltRnnCell>> cells;
  std::vector<size_t> state_counts;

  std::vector<Variable> variables() const override {
    std::vector<Variable> all;
    for (const auto& cell : cells) {
      for (Variable& v : cell->variables()) all.push_back(std::move(v));
    }
    return all;
  }
  Step operator()(ScopeAt at, const Output& x, const Outputs& state) const override {
    size_t wanted = 0;
    for (const size_t count : state_counts) wanted += count;
    if (!CheckState(at, "MultiRNNCell", state, wanted)) return {};
    Step all = {x, {}};
    auto begin = state.begin();
    for (size_t i = 0; i < cells.size(); ++i) {
      const auto end = begin + static_cast<std::ptrdiff_t>(state_counts[i]);
      Step step = (*cells[i])(at, all.output, Outputs(begin, end));
      begin = end;
      all.output = step.output;
      all.state.insert(all.state.end(), step.state.begin(), step.state.end());
    }
    return all;
  }
};

class BuiltDropout : public BuiltRnnCell {
 public:
  BuiltDropout(std::unique_ptr<const BuiltRnnCell> cell, const DropoutWrapperAttrs& attrs,
               std::vector<bool> is_memory)
      : cell_(std::move(cell)), attrs_(attrs), is_memory_(std::move(is_memory)) {}
  std::vector<Variable> variables() const override { return cell_->variables(); }
  Step operator()(ScopeAt at, const Output& x, const Outputs& state) const override {
    const auto drop = [&](const Output& tensor, double keep) {
      return keep < 1 ? DropoutByKeepProb(at, tensor, keep, {.seed = attrs_.seed}) : tensor;
    };
    Step step = (*cell_)(at, drop(x, attrs_.input_keep_prob), state);
    for (size_t i = 0; i < step.state.size(); ++i) {
      if (!is_memory_[i]) step.state[i] = drop(step.state[i], attrs_.state_keep_prob);
    }
    step.output = drop(step.output, attrs_.output_keep_prob);
    return step;
  }

 private:
  const std::unique_ptr<const BuiltRnnCell> cell_;
  const DropoutWrapperAttrs attrs_;
  const std::vector<bool> is_memory_;
};

class BuiltResidual : public BuiltRnnCell {
 public:
  explicit BuiltResidual(std::unique_ptr<const BuiltRnnCell> cell) : cell_(std::move(cell)) {}
  std::vector<Variable> variables() const override { return cell_->variables(); }
  Step operator()(ScopeAt at, const Output& x, const Outputs& state) const override {
    Step step = (*cell_)(at, x, state);
    if (step.output.valid()) step.output = Add(at, x, step.output);
    return step;
  }

 private:
  const std::unique_ptr<const BuiltRnnCell> cell_;
};

// "gates/..." and "candidate/..." of both kinds of GRU cells.
template <typename Built>
bool MakeGruWeights(const CellScope& cell, int64_t inputs, int64_t units, DType dtype,
                    const Initializer& kernel, const Initializer& bias, Built* built) {
  const Initializer gates = bias ? bias : OnesInitializer();
  const Initializer candidate = bias ? bias : ZerosInitializer();
  built->gates_kernel = cell.Weight("gates/kernel", {inputs + units, 2 * units}, dtype, kernel);
  built->gates_bias = cell.Weight("gates/bias", {2 * units}, dtype, gates);
  built->candidate_kernel = cell.Weight("candidate/kernel", {inputs + units, units}, dtype, kernel);
  built->candidate_bias = cell.Weight("candidate/bias", {units}, dtype, candidate);
  return cell.scope.ok();
}

}  // namespace

// --- Descriptions --------------------------------------------------------------------------------

std::vector<Output> ZeroState(ScopeAt at, const RnnCell& cell, const Output& batch, DType dtype) {
  const Scope scope = at.scope.CompositeScope("zero_state");
  const ScopeAt in(scope, at.where);
  Outputs state;
  for (const int64_t size : cell.state_sizes()) {
    const Output shape = Pack(in, {batch, Const(in, static_cast<int32_t>(size))});
    const StatusOr<Tensor> zero = Tensor::Zeros(dtype, Shape());
    if (!zero.ok()) {
      at.scope.UpdateStatus(zero.status(), at.where);
      return {};
    }
    state.push_back(Fill(in, shape, Const(in, *zero)));
  }
  return state;
}

std::vector<Output> ZeroState(ScopeAt at, const RnnCell& cell, int64_t batch, DType dtype) {
  return ZeroState(at, cell, Const(at, static_cast<int32_t>(batch)), dtype);
}

std::unique_ptr<const BuiltRnnCell> BasicRNNCell::Build(ScopeAt at, int64_t inputs,
                                                        DType dtype) const {
  const CellScope cell(at, "BasicRNNCell", "basic_rnn_cell");
  if (!cell.Check(inputs, units_, dtype)) return nullptr;
  Variable kernel =
      cell.Weight("kernel", {inputs + units_, units_}, dtype, attrs_.kernel_initializer);
  Variable bias = cell.Weight("bias", {units_}, dtype, ZerosInitializer());
  if (!cell.scope.ok()) return nullptr;
  return std::make_unique<BuiltBasicRnn>(std::move(kernel), std::move(bias), attrs_.activation);
}

std::unique_ptr<const BuiltRnnCell> GRUCell::Build(ScopeAt at, int64_t inputs, DType dtype) const {
  const CellScope cell(at, "GRUCell", "gru_cell");
  if (!cell.Check(inputs, units_, dtype)) return nullptr;
  auto built = std::make_unique<BuiltGru>();
  built->activation = attrs_.activation;
  if (!MakeGruWeights(cell, inputs, units_, dtype, attrs_.kernel_initializer,
                      attrs_.bias_initializer, built.get())) {
    return nullptr;
  }
  return built;
}

std::unique_ptr<const BuiltRnnCell> LSTMCell::Build(ScopeAt at, int64_t inputs, DType dtype) const {
  const CellScope cell(at, "LSTMCell", name_);
  if (!cell.Check(inputs, units_, dtype)) return nullptr;
  const int64_t outputs = output_size();
  if (outputs < 1) cell.Error("num_proj must be >= 1, got ", outputs);
  for (const auto& [clip, name] :
       {std::pair(attrs_.cell_clip, "cell_clip"), std::pair(attrs_.proj_clip, "proj_clip")}) {
    if (clip && !(*clip > 0)) cell.Error(name, " must be > 0, got ", *clip);
  }
  if (attrs_.proj_clip && !attrs_.num_proj) {
    cell.Error("proj_clip must come with num_proj, got none");
  }
  if (!cell.scope.ok()) return nullptr;
  auto built = std::make_unique<BuiltLstm>();
  built->name = name_;
  built->attrs = attrs_;
  built->dtype = dtype;
  built->units = units_;
  built->kernel = cell.Weight("kernel", {inputs + outputs, 4 * units_}, dtype, attrs_.initializer);
  built->bias = cell.Weight("bias", {4 * units_}, dtype, ZerosInitializer());
  if (attrs_.use_peepholes) {
    built->w_f = cell.Weight("w_f_diag", {units_}, dtype, attrs_.initializer);
    built->w_i = cell.Weight("w_i_diag", {units_}, dtype, attrs_.initializer);
    built->w_o = cell.Weight("w_o_diag", {units_}, dtype, attrs_.initializer);
  }
  if (attrs_.num_proj) {
    built->projection =
        cell.Weight("projection/kernel", {units_, outputs}, dtype, attrs_.initializer);
  }
  return cell.scope.ok() ? std::move(built) : nullptr;
}

std::unique_ptr<const BuiltRnnCell> FusedLSTMCell::Build(ScopeAt at, int64_t inputs,
                                                         DType dtype) const {
  const CellScope cell(at, "FusedLSTMCell", "lstm_cell");
  if (!cell.Check(inputs, units_, dtype)) return nullptr;
  if (dtype != DT_FLOAT && dtype != DT_HALF) {
    cell.Error("x must be float or half, got ", dtype);
    return nullptr;
  }
  auto built = std::make_unique<BuiltFusedLstm>();
  built->options = options_;
  built->kernel =
      cell.Weight("kernel", {inputs + units_, 4 * units_}, dtype, GlorotUniformInitializer());
  built->bias = cell.Weight("bias", {4 * units_}, dtype, ZerosInitializer());
  if (options_.use_peephole) {
    built->w_i = cell.Weight("w_i_diag", {units_}, dtype, GlorotUniformInitializer());
    built->w_f = cell.Weight("w_f_diag", {units_}, dtype, GlorotUniformInitializer());
    built->w_o = cell.Weight("w_o_diag", {units_}, dtype, GlorotUniformInitializer());
  } else {
    built->no_peephole = NoPeephole(cell.at(), units_, dtype);
  }
  return cell.scope.ok() ? std::move(built) : nullptr;
}

std::unique_ptr<const BuiltRnnCell> FusedGRUCell::Build(ScopeAt at, int64_t inputs,
                                                        DType dtype) const {
  const CellScope cell(at, "FusedGRUCell", "gru_cell");
  if (!cell.Check(inputs, units_, dtype)) return nullptr;
  if (dtype != DT_FLOAT) {
    cell.Error("x must be float, got ", dtype);
    return nullptr;
  }
  auto built = std::make_unique<BuiltFusedGru>();
  if (!MakeGruWeights(cell, inputs, units_, dtype, GlorotUniformInitializer(), {}, built.get())) {
    return nullptr;
  }
  return built;
}

std::vector<int64_t> MultiRNNCell::state_sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& cell : cells_) {
    for (const int64_t size : cell->state_sizes()) sizes.push_back(size);
  }
  return sizes;
}

std::vector<bool> MultiRNNCell::is_memory() const {
  std::vector<bool> all;
  for (const auto& cell : cells_) {
    for (const bool memory : cell->is_memory()) all.push_back(memory);
  }
  return all;
}

std::unique_ptr<const BuiltRnnCell> MultiRNNCell::Build(ScopeAt at, int64_t inputs,
                                                        DType dtype) const {
  const CellScope scope(at, "MultiRNNCell", "multi_rnn_cell");
  if (cells_.empty()) {
    scope.Error("there must be a cell, got none");
    return nullptr;
  }
  auto built = std::make_unique<BuiltMulti>();
  for (size_t i = 0; i < cells_.size(); ++i) {
    const Scope here = scope.scope.WithSubScope(absl::StrCat("cell_", i));
    auto cell = cells_[i]->Build({here, at.where}, inputs, dtype);
    if (cell == nullptr) return nullptr;
    built->cells.push_back(std::move(cell));
    built->state_counts.push_back(cells_[i]->state_sizes().size());
    inputs = cells_[i]->output_size();
  }
  return built;
}

std::unique_ptr<const BuiltRnnCell> DropoutWrapper::Build(ScopeAt at, int64_t inputs,
                                                          DType dtype) const {
  for (const auto& [keep, name] : {std::pair(attrs_.input_keep_prob, "input_keep_prob"),
                                   std::pair(attrs_.output_keep_prob, "output_keep_prob"),
                                   std::pair(attrs_.state_keep_prob, "state_keep_prob")}) {
    if (keep > 0 && keep <= 1) continue;
    at.scope.UpdateStatus(
        InvalidArgument("DropoutWrapper: ", name, " must be in the range (0, 1], got ", keep),
        at.where);
    return nullptr;
  }
  auto cell = cell_->Build(at, inputs, dtype);
  if (cell == nullptr) return nullptr;
  return std::make_unique<BuiltDropout>(std::move(cell), attrs_, cell_->is_memory());
}

std::unique_ptr<const BuiltRnnCell> ResidualWrapper::Build(ScopeAt at, int64_t inputs,
                                                           DType dtype) const {
  if (inputs != cell_->output_size()) {
    at.scope.UpdateStatus(
        InvalidArgument("ResidualWrapper: x must have as many inputs as the cell has outputs (",
                        cell_->output_size(), "), got ", inputs),
        at.where);
    return nullptr;
  }
  auto cell = cell_->Build(at, inputs, dtype);
  return cell == nullptr ? nullptr : std::make_unique<BuiltResidual>(std::move(cell));
}

}  // namespace millrace
