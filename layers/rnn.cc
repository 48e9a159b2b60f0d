// SPDX-License-Identifier: Apache-2.0
#include "layers/rnn.h"

#include <utility>

#include "graph/control_flow.h"
#include "layers/tensor_array.h"
#include "layers/weight.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/array/reverse.h"
#include "ops/array/slice.h"
#include "ops/array/transpose.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/math/select.h"

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

// Dimension `d` of x as an int32 scalar, known or not.
Output DimOf(const ScopeAt& at, const Output& x, int d) {
  const PartialShape shape = at.scope.shape(x);
  if (shape.has_rank() && shape.dim(d) >= 0) return Const(at, static_cast<int32_t>(shape.dim(d)));
  return StridedSlice(at, ShapeOf(at, x), Const<int32_t>(at, {d}), Const<int32_t>(at, {d + 1}),
                      Const<int32_t>(at, {1}), {.shrink_axis_mask = 1});
}

// Batch and time changed about.
Output Turned(const ScopeAt& at, const Output& x) {
  return Transpose(at, x, Const<int32_t>(at, {1, 0, 2}));
}

// The lengths as an int32 vector [batch]; invalid after an error.
Output CheckedLengths(const ScopeAt& at, absl::string_view builder, absl::string_view name,
                      const Output& lengths) {
  const PartialShape shape = at.scope.shape(lengths);
  const DType type = WithoutRef(lengths.dtype());
  if ((type != DT_INT32 && type != DT_INT64) || (shape.has_rank() && shape.rank() != 1)) {
    LayerError(at, builder, name, "sequence_length must be an int32 or int64 vector, got ", type,
               shape, " from '", lengths.name(), "'");
    return Output();
  }
  return type == DT_INT32 ? lengths : Cast(at, lengths, DT_INT32);
}

bool CheckInitialState(const ScopeAt& at, absl::string_view builder, absl::string_view name,
                       const RnnCell& cell, const Outputs& state) {
  if (state.empty() || state.size() == cell.state_sizes().size()) return at.scope.ok();
  LayerError(at, builder, name, "initial_state must have ", cell.state_sizes().size(),
             " tensors, got ", state.size());
  return false;
}

// The cell with its variables in the scope, or the shared one.
std::shared_ptr<const BuiltRnnCell> BuiltCell(const ScopeAt& in, const RnnCell& cell,
                                              const std::shared_ptr<const BuiltRnnCell>& shared,
                                              const Output& x) {
  if (shared != nullptr) return shared;
  const PartialShape shape = in.scope.shape(x);
  const int64_t inputs = shape.has_rank() && shape.rank() > 0 ? shape.dim(shape.rank() - 1) : -1;
  return cell.Build(in, inputs, WithoutRef(x.dtype()));
}

// What a step gives (Select takes rows): `now` where `time` is within an example's length, else
// `otherwise`.
Output Within(const ScopeAt& at, const Output& is_within, const Output& now,
              const Output& otherwise) {
  return Select(at, is_within, now, otherwise);
}

// Examples that have ended give zeros and keep their state. `is_within`: a vector of bools.
void KeepWithin(const ScopeAt& at, const Output& is_within, const Outputs& now,
                BuiltRnnCell::Step* step) {
  const Output zeros = ZerosLike(at, step->output);
  step->output = Within(at, is_within, step->output, zeros);
  for (size_t i = 0; i < now.size(); ++i) {
    step->state[i] = Within(at, is_within, step->state[i], now[i]);
  }
}

// Of a sequence [time, batch, ...]: step `time` of each example, where step 0 is `first` [batch,
// ...], what was before the sequence. `time` is an int32 scalar or [batch].
Output StepAt(const ScopeAt& at, const Output& first, const Output& steps, const Output& time,
              const Output& batch) {
  const Output zero = Const(at, 0);
  const Output all = ConcatV2(at, {ExpandDims(at, first, zero), steps}, zero);
  const PartialShape shape = at.scope.shape(time);
  if (shape.has_rank() && shape.rank() == 0) return GatherV2(at, all, time, zero);
  const Output example = Range(at, zero, batch, Const(at, 1));
  return GatherNd(at, all, Pack(at, {time, example}, {.axis = 1}));
}

// Zeros in [time, batch, size] where an example's steps are behind its length.
Output Masked(const ScopeAt& at, const Output& outputs, const Output& steps, const Output& batch,
              const Output& lengths) {
  const Output zero = Const(at, 0), one = Const(at, 1);
  const Output time = ExpandDims(at, Range(at, zero, steps, one), one);
  const Output is_within = Less(at, time, ExpandDims(at, lengths, zero));  // [time, batch]
  // Select takes rows.
  const Output rows =
      Reshape(at, outputs, Pack(at, {Mul(at, steps, batch), DimOf(at, outputs, 2)}));
  const Output masked =
      Within(at, Reshape(at, is_within, Const<int32_t>(at, {-1})), rows, ZerosLike(at, rows));
  return Reshape(at, masked, ShapeOf(at, outputs));
}

// The state behind the last step of each example: of states [time, batch, ...], where `first` is
// what was before the sequence, whose shape is `known` as far as it is.
Output LastState(const ScopeAt& at, const Output& first, const Output& states,
                 const PartialShape& known, const Output& steps, const Output& batch,
                 const Output& lengths) {
  if (lengths.valid()) {
    const Output length = Minimum(at, Maximum(at, lengths, Const(at, 0)), steps);
    return StepAt(at, first, states, length, batch);
  }
  if (!known.has_rank() || known.dim(0) <= 0) return StepAt(at, first, states, steps, batch);
  const int32_t last = static_cast<int32_t>(known.dim(0)) - 1;
  return StridedSlice(at, states, Const<int32_t>(at, {last}), Const<int32_t>(at, {last + 1}),
                      Const<int32_t>(at, {1}), {.shrink_axis_mask = 1});
}

}  // namespace

RnnOutputs DynamicRnn(ScopeAt at, const RnnCell& cell, const Output& x,
                      const DynamicRnnAttrs& attrs) {
  constexpr char kBuilder[] = "DynamicRnn", kName[] = "rnn";
  if (!CheckLayerInput(at, kBuilder, kName, x, 3, 3)) return {};
  if (!CheckInitialState(at, kBuilder, kName, cell, attrs.initial_state)) return {};
  if (attrs.parallel_iterations < 1) {
    LayerError(at, kBuilder, kName, "parallel_iterations must be >= 1, got ",
               attrs.parallel_iterations);
    return {};
  }
  Output lengths;
  if (attrs.sequence_length.valid()) {
    lengths = CheckedLengths(at, kBuilder, kName, attrs.sequence_length);
    if (!lengths.valid()) return {};
  }
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  RnnOutputs result;
  result.cell = BuiltCell(in, cell, attrs.shared_cell, x);
  if (result.cell == nullptr) return {};

  const Output steps_first = attrs.time_major ? x : Turned(in, x);
  const Output steps = DimOf(in, steps_first, 0), batch = DimOf(in, steps_first, 1);
  Outputs initial = attrs.initial_state;
  if (initial.empty()) initial = ZeroState(in, cell, batch, WithoutRef(x.dtype()));
  if (!scope.ok()) return {};
  const PartialShape known = scope.shape(steps_first);
  // Steps that no example has are left out; one is taken, so that shapes are known.
  const Output bound =
      lengths.valid()
          ? Minimum(in, steps, Maximum(in, Const(in, 1), Max(in, lengths, Const(in, 0))))
          : steps;
  // From what is [time, batch, size].
  const auto finish = [&](Output outputs) {
    if (known.has_rank()) {
      scope.SetShape(outputs, PartialShape({known.dim(0), known.dim(1), cell.output_size()}));
    }
    return attrs.time_major ? outputs : Turned(in, outputs);
  };
  if (attrs.in_one_op) {
    if (const auto sequence = result.cell->Along(in, steps_first, bound, initial)) {
      if (!scope.ok()) return {};
      for (size_t i = 0; i < initial.size(); ++i) {
        result.state.push_back(
            LastState(in, initial[i], sequence->states[i], known, steps, batch, lengths));
      }
      result.outputs = finish(lengths.valid() ? Masked(in, sequence->outputs, steps, batch, lengths)
                                              : sequence->outputs);
      return scope.ok() ? result : RnnOutputs();
    }
  }
  const TensorArray input = TensorArray::OfRows(in, steps_first);
  if (!scope.ok()) return {};
  const PartialShape element = {known.has_rank() ? known.dim(1) : -1, cell.output_size()};
  const TensorArray output(in, WithoutRef(x.dtype()), steps,
                           {.element_shape = element, .identical_element_shapes = true});

  const Scope while_scope = scope.WithSubScope("while");
  LoopBuilder loop({while_scope, at.where},
                   std::make_unique<WhileContext>(
                       while_scope.UniqueName("while_context"), scope.context(),
                       WhileContextOptions{.parallel_iterations = attrs.parallel_iterations,
                                           .swap_memory = attrs.swap_memory,
                                           .maximum_iterations = bound}));
  const int counter =
      loop.AddVariable(Const({while_scope.WithName("time"), at.where}, 0), PartialShape::Scalar());
  const int flow = loop.AddVariable(output.flow(), PartialShape::Scalar());
  std::vector<int> state;
  for (const Output& tensor : initial) {
    state.push_back(loop.AddVariable(tensor, scope.shape(tensor)));
  }
  if (!scope.ok()) return {};
  const ScopeAt body(loop.inside(), at.where);
  loop.SetCondition(Less(body, loop.at_condition(counter), bound));
  const Output time = loop.in_body(counter);
  const Output output_flow = loop.in_body(flow);
  Outputs now;
  for (const int variable : state) now.push_back(loop.in_body(variable));
  BuiltRnnCell::Step step = (*result.cell)(body, input.Read(body, time), now);
  if (!scope.ok() || step.state.size() != now.size()) return {};
  if (lengths.valid()) KeepWithin(body, Less(body, time, lengths), now, &step);
  const TensorArray written = output.WithFlow(output_flow).Write(body, time, step.output);
  loop.SetNext(counter, Add(body, time, Const(body, 1)));
  loop.SetNext(flow, written.flow());
  for (size_t i = 0; i < state.size(); ++i) {
    // A cell keeps the shape of its state, also where the batch is not known here.
    loop.inside().SetShape(step.state[i], scope.shape(initial[i]));
    loop.SetNext(state[i], step.state[i]);
  }
  if (!scope.ok()) return {};
  loop.Exit(counter);
  Output all = output.WithFlow(loop.Exit(flow)).Stack(in);
  if (!all.valid()) return {};
  result.outputs = finish(std::move(all));
  for (const int variable : state) result.state.push_back(loop.Exit(variable));
  return scope.ok() ? result : RnnOutputs();
}

StaticRnnOutputs StaticRnn(ScopeAt at, const RnnCell& cell, const std::vector<Output>& x,
                           const StaticRnnAttrs& attrs) {
  constexpr char kBuilder[] = "StaticRnn", kName[] = "rnn";
  if (x.empty()) {
    LayerError(at, kBuilder, kName, "there must be a step, got none");
    return {};
  }
  for (const Output& step : x) {
    if (!CheckLayerInput(at, kBuilder, kName, step, 2, 2)) return {};
  }
  if (!CheckInitialState(at, kBuilder, kName, cell, attrs.initial_state)) return {};
  Output lengths;
  if (attrs.sequence_length.valid()) {
    lengths = CheckedLengths(at, kBuilder, kName, attrs.sequence_length);
    if (!lengths.valid()) return {};
  }
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  StaticRnnOutputs result;
  result.cell = BuiltCell(in, cell, attrs.shared_cell, x[0]);
  if (result.cell == nullptr) return {};
  result.state = attrs.initial_state;
  if (result.state.empty()) {
    result.state = ZeroState(in, cell, DimOf(in, x[0], 0), WithoutRef(x[0].dtype()));
  }
  for (size_t t = 0; t < x.size(); ++t) {
    BuiltRnnCell::Step step = (*result.cell)(in, x[t], result.state);
    if (!scope.ok() || step.state.size() != result.state.size()) return {};
    if (lengths.valid()) {
      const Output is_within = Less(in, Const(in, static_cast<int32_t>(t)), lengths);
      step.output = Within(in, is_within, step.output, ZerosLike(in, step.output));
      for (size_t i = 0; i < step.state.size(); ++i) {
        step.state[i] = Within(in, is_within, step.state[i], result.state[i]);
      }
    }
    result.outputs.push_back(step.output);
    result.state = std::move(step.state);
  }
  return scope.ok() ? result : StaticRnnOutputs();
}

BidirectionalRnnOutputs BidirectionalDynamicRnn(ScopeAt at, const RnnCell& cell_fw,
                                                const RnnCell& cell_bw, const Output& x,
                                                const BidirectionalRnnAttrs& attrs) {
  constexpr char kBuilder[] = "BidirectionalDynamicRnn", kName[] = "bidirectional_rnn";
  if (!CheckLayerInput(at, kBuilder, kName, x, 3, 3)) return {};
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  const int64_t time_dim = attrs.time_major ? 0 : 1, batch_dim = 1 - time_dim;
  const auto backwards = [&](const Output& sequence) {
    if (attrs.sequence_length.valid()) {
      return ReverseSequence(in, sequence, attrs.sequence_length, time_dim,
                             {.batch_dim = batch_dim});
    }
    return ReverseV2(in, sequence, Const<int32_t>(in, {static_cast<int32_t>(time_dim)}));
  };
  const auto along = [&](const char* name, const RnnCell& cell, const Output& sequence,
                         const Outputs& initial) {
    return DynamicRnn({scope.WithName(name), at.where}, cell, sequence,
                      {.sequence_length = attrs.sequence_length,
                       .initial_state = initial,
                       .time_major = attrs.time_major,
                       .parallel_iterations = attrs.parallel_iterations,
                       .swap_memory = attrs.swap_memory});
  };
  const RnnOutputs fw = along("fw", cell_fw, x, attrs.initial_state_fw);
  if (!fw.outputs.valid()) return {};
  const RnnOutputs bw = along("bw", cell_bw, backwards(x), attrs.initial_state_bw);
  if (!bw.outputs.valid()) return {};
  return {fw.outputs, backwards(bw.outputs), fw.state, bw.state};
}

}  // namespace millrace
