// SPDX-License-Identifier: Apache-2.0
#include "ops/array/reverse.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/elements.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

struct ReverseRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialInts axes, c->IntVector(1, "axis"));
    const PartialShape& input = c->input(0);
    if (!input.has_rank() || !axes.has_size()) return input;
    std::vector<bool> reversed(static_cast<size_t>(input.rank()), false);
    for (int i = 0; i < axes.size(); ++i) {
      const std::optional<int64_t> given = axes.at(i);
      if (!given) continue;
      const StatusOr<int> axis = ResolveAxis(*given, input.rank());
      if (!axis.ok()) {
        return InvalidArgument("axis[", i, "] must be in [", -input.rank(), ", ", input.rank(),
                               "), got ", *given);
      }
      if (reversed[static_cast<size_t>(*axis)]) {
        return InvalidArgument("axis must name a dimension once, got ", *axis, " twice");
      }
      reversed[static_cast<size_t>(*axis)] = true;
    }
    return input;
  }
};

Status RunReverse(KernelContext* ctx, const ReverseRule&) {
  const Tensor& input = ctx->input(0);
  const IntSpan axes = ctx->input(1).ints();
  if (axes.empty() || input.num_elements() == 0) return ctx->PassInput(0);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const absl::Span<const int64_t> dims = input.shape().dims();
  BoxSide from = DenseSide(dims);
  for (const int64_t axis : axes) {
    const size_t d = static_cast<size_t>(axis < 0 ? axis + input.rank() : axis);
    from.origin += (dims[d] - 1) * from.strides[d];
    from.strides[d] = -from.strides[d];
  }
  return CopyBox(ctx, dims, input, from, out, DenseSide(dims));
}

Output ReverseGradient(GradientContext* c) {
  return ReverseV2(c->scope(), c->dense_grad(), c->input(1));
}

const OpRegistration kReverseV2 =
    OpSpec("ReverseV2", "tensor: T, axis: Tidx -> output: T",
           "Tidx: {int32, int64} = DT_INT32; "
           "T: {uint8, int8, uint16, int16, int32, int64, bool, bfloat16, half, float, double, "
           "complex64, complex128, string}")
        .With(RuledKernelFor<ReverseRule>(RunReverse))
        .Gradient(ReverseGradient);

// --- ReverseSequence -----------------------------------------------------------------------------

struct ReverseSequenceRule {
  int64_t seq_dim = 0, batch_dim = 0;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "seq_dim", &seq_dim, "batch_dim", &batch_dim));
    if (seq_dim == batch_dim) {
      return InvalidArgument("batch_dim must not be seq_dim, got ", batch_dim, " for both");
    }
    return absl::OkStatus();
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape lengths, c->InputWithRank(1, 1, "seq_lengths"));
    const PartialShape& input = c->input(0);
    if (!input.has_rank()) return input;
    for (const auto& [dim, name] :
         {std::pair(seq_dim, "seq_dim"), std::pair(batch_dim, "batch_dim")}) {
      if (dim >= 0 && dim < input.rank()) continue;
      return InvalidArgument(name, " must be in [0, ", input.rank(),
                             "), the rank of the input, got ", dim);
    }
    const PartialShape batch = {input.dim(static_cast<int>(batch_dim))};
    if (!batch.IsCompatibleWith(lengths)) {
      return InvalidArgument("seq_lengths must have an element for each of the ", batch.dim(0),
                             " of dimension ", batch_dim, ", got shape ", lengths);
    }
    return input;
  }
};

Status RunReverseSequence(KernelContext* ctx, const ReverseSequenceRule& rule) {
  const Tensor& input = ctx->input(0);
  const Shape& shape = input.shape();
  const IntSpan lengths = ctx->input(1).ints();
  const int seq = static_cast<int>(rule.seq_dim), batch = static_cast<int>(rule.batch_dim);
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] >= 0 && lengths[b] <= shape.dim(seq)) continue;
    return InvalidArgument("seq_lengths[", b, "] must be in [0, ", shape.dim(seq),
                           "], the size of dimension ", seq, ", got ", lengths[b]);
  }
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  if (out->num_elements() == 0) return absl::OkStatus();
  // [before, first, between, second, behind]: one of first and second is the sequence.
  const int first = std::min(seq, batch), second = std::max(seq, batch);
  const bool seq_is_first = seq == first;
  const int64_t n_first = shape.dim(first), n_second = shape.dim(second);
  const int64_t between = shape.NumElements(first + 1, second);
  const int64_t behind = shape.NumElements(second + 1, shape.rank());
  const int64_t block = between * n_second * behind;  // of one index of `first`
  return VisitElements(input.dtype(), [&]<typename E>() {
    const E* const from = ElementsOf<E>(input);
    E* const to = MutableElementsOf<E>(out);
    const int64_t rows = out->num_elements() / block;
    const double row_ns = 5 + 0.2 * static_cast<double>(block) * sizeof(E);
    ctx->ParallelFor(rows, row_ns, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t outer = row / n_first, i = row % n_first;
        for (int64_t m = 0; m < between; ++m) {
          for (int64_t j = 0; j < n_second; ++j) {
            const int64_t length = lengths[static_cast<size_t>(seq_is_first ? j : i)];
            const int64_t at = seq_is_first ? i : j;
            const int64_t source = at < length ? length - 1 - at : at;
            const int64_t source_row = outer * n_first + (seq_is_first ? source : i);
            const E* const piece =
                from + source_row * block + (m * n_second + (seq_is_first ? j : source)) * behind;
            std::copy(piece, piece + behind, to + row * block + (m * n_second + j) * behind);
          }
        }
      }
    });
  });
}

StatusOr<Output> ReverseSequenceGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const ReverseSequenceRule rule, c->GetRule<ReverseSequenceRule>());
  return ReverseSequence(c->scope(), c->dense_grad(), c->input(1), rule.seq_dim,
                         {.batch_dim = rule.batch_dim});
}

const OpRegistration kReverseSequence =
    OpSpec("ReverseSequence", "input: T, seq_lengths: Tlen -> output: T",
           "seq_dim: int; batch_dim: int = 0; T: type; Tlen: {int32, int64} = DT_INT64")
        .With(RuledKernelFor<ReverseSequenceRule>(RunReverseSequence))
        .Gradient(ReverseSequenceGradient);

}  // namespace
}  // namespace millrace
