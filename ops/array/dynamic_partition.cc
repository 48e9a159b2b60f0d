// SPDX-License-Identifier: Apache-2.0
#include "ops/array/dynamic_partition.h"

#include <algorithm>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/rules/elements.h"
#include "ops/rules/leading_dims.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// --- DynamicPartition ----------------------------------------------------------------------------

// How many rows each output gets is for the kernel to count.
struct PartitionRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape part,
                        RowsBehind(-1, c->input(0), c->input(1), "partitions"));
    for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, part);
    return absl::OkStatus();
  }
};

Status RunDynamicPartition(KernelContext* ctx, const PartitionRule&) {
  const Tensor& data = ctx->input(0);
  const int rank = ctx->input(1).rank(), num_partitions = ctx->num_outputs();
  const absl::Span<const int32_t> number = ctx->input(1).raw<int32_t>();
  Ints counts(static_cast<size_t>(num_partitions), 0);
  for (size_t i = 0; i < number.size(); ++i) {
    if (number[i] < 0 || number[i] >= num_partitions) {
      return InvalidArgument("partitions[", i, "] = ", number[i], " is not in [0, ", num_partitions,
                             ")");
    }
    ++counts[static_cast<size_t>(number[i])];
  }
  Ints dims = {0};
  dims.insert(dims.end(), data.shape().dims().begin() + rank, data.shape().dims().end());
  for (int p = 0; p < num_partitions; ++p) {
    dims[0] = counts[static_cast<size_t>(p)];
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_RETURN_IF_ERROR(ctx->AllocateOutput(p, shape).status());
  }
  const int64_t width = data.shape().NumElements(rank, data.rank());
  return VisitElements(data.dtype(), [&]<typename E>() {
    std::vector<E*> to;
    for (int p = 0; p < num_partitions; ++p) {
      to.push_back(MutableElementsOf<E>(ctx->mutable_output(p)));
    }
    const E* from = ElementsOf<E>(data);
    for (const int32_t p : number) {
      E*& place = to[static_cast<size_t>(p)];
      place = std::copy(from, from + width, place);
      from += width;
    }
  });
}

// The places that rows came from are dealt out like the rows; the gradients are stitched there.
Status DynamicPartitionGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output partitions = c->input(1);
  const Output places =
      Reshape(s, Range(s, Const(s, 0), Size(s, partitions), Const(s, 1)), ShapeOf(s, partitions));
  std::vector<Output> grads;
  for (int i = 0; i < c->num_outputs(); ++i) grads.push_back(c->dense_grad(i));
  const Output rows =
      ParallelDynamicStitch(s, DynamicPartition(s, places, partitions, c->num_outputs()), grads);
  c->set_input_grad(0, Reshape(s, rows, ShapeOf(s, c->input(0))));
  return absl::OkStatus();
}

const OpRegistration kDynamicPartition =
    OpSpec("DynamicPartition", "data: T, partitions: int32 -> outputs: num_partitions * T",
           "num_partitions: int >= 1; T: type")
        .With(RuledKernelFor<PartitionRule>(RunDynamicPartition))
        .Gradient(DynamicPartitionGradient);

// --- DynamicStitch -------------------------------------------------------------------------------

// As many rows as the largest index + 1; a row is what every data[m].shape has behind
// indices[m].shape.
struct StitchRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const int n = c->num_inputs() / 2;
    PartialShape row;
    int64_t rows = 0;  // -1 once indices are not known
    for (int m = 0; m < n; ++m) {
      const PartialShape &indices = c->input(m), &data = c->input(n + m);
      if (!BeginsWith(data, indices)) {
        return InvalidArgument("data[", m, "].shape = ", data, " does not start with indices[", m,
                               "].shape = ", indices);
      }
      if (data.has_rank() && indices.has_rank()) {
        const size_t skip = static_cast<size_t>(indices.rank());
        MR_ASSIGN_OR_RETURN(const PartialShape own, PartialShape::Make(data.dims().subspan(skip)));
        if (!row.IsCompatibleWith(own)) {
          return InvalidArgument("all data must have the same row shape, got ", row, " before and ",
                                 own, " for data[", m, "]");
        }
        MR_ASSIGN_OR_RETURN(row, row.MergeWith(own));
      }
      const Tensor* const known = rows == -1 ? nullptr : c->input_tensor(m);
      if (known == nullptr) {
        rows = -1;
        continue;
      }
      const absl::Span<const int32_t> values = known->raw<int32_t>();
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] < 0) {
          return InvalidArgument("indices[", m, "][", i, "] must be >= 0, got ", values[i]);
        }
        rows = std::max(rows, int64_t{values[i]} + 1);
      }
    }
    return RowsBehind(rows, row, PartialShape::Scalar(), "indices");
  }
};

Status RunDynamicStitch(KernelContext* ctx, const StitchRule&) {
  const Shape& shape = ctx->output_shape(0);
  if (shape.num_elements() == 0) return ctx->AllocateOutput(0).status();
  const int n = ctx->num_inputs() / 2;
  std::vector<bool> named(static_cast<size_t>(shape.dim(0)), false);
  for (int m = 0; m < n; ++m) {
    for (const int32_t i : ctx->input(m).raw<int32_t>()) named[static_cast<size_t>(i)] = true;
  }
  const bool all_named = std::find(named.begin(), named.end(), false) == named.end();
  MR_ASSIGN_OR_RETURN(Tensor * out, all_named ? ctx->AllocateOutput(0) : ctx->AllocateZeros(0));
  const int64_t width = shape.NumElements(1, shape.rank());
  return VisitElements(out->dtype(), [&]<typename E>() {
    E* to = MutableElementsOf<E>(out);
    for (int m = 0; m < n; ++m) {
      const E* from = ElementsOf<E>(ctx->input(n + m));
      for (const int32_t i : ctx->input(m).raw<int32_t>()) {
        std::copy(from, from + width, to + i * width);
        from += width;
      }
    }
  });
}

// Rows that were overwritten contribute, too, where an index repeats: as in TensorFlow.
std::vector<Output> DynamicStitchGradient(GradientContext* c) {
  const int n = c->num_inputs() / 2;
  std::vector<Output> grads(static_cast<size_t>(n));  // none for the indices
  const Output grad = c->dense_grad();
  for (int m = 0; m < n; ++m) {
    grads.push_back(GatherV2(c->scope(), grad, c->input(m), Const(c->scope(), 0)));
  }
  return grads;
}

OpSpec StitchSpec(const char* name) {
  return OpSpec(name, "indices: N * int32, data: N * T -> merged: T", "N: int >= 1; T: type")
      .With(RuledKernelFor<StitchRule>(RunDynamicStitch))
      .Gradient(DynamicStitchGradient);
}
const OpRegistration kStitches[] = {StitchSpec("DynamicStitch"),
                                    StitchSpec("ParallelDynamicStitch")};

}  // namespace
}  // namespace millrace
