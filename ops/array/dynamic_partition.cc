// SPDX-License-Identifier: Apache-2.0
#include "ops/array/dynamic_partition.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/rules/elements.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// Does `shape` begin with the dimensions of `prefix`, as far as they are known?
bool BeginsWith(const PartialShape& shape, const PartialShape& prefix) {
  if (!shape.has_rank() || !prefix.has_rank()) return true;
  if (prefix.rank() > shape.rank()) return false;
  for (int d = 0; d < prefix.rank(); ++d) {
    if (prefix.dim(d) != -1 && shape.dim(d) != -1 && prefix.dim(d) != shape.dim(d)) return false;
  }
  return true;
}

// [rows] + the dimensions of `shape` behind the first `skip`.
StatusOr<PartialShape> RowsOf(int64_t rows, const PartialShape& shape, int skip) {
  Ints dims = {rows};
  dims.insert(dims.end(), shape.dims().begin() + skip, shape.dims().end());
  return PartialShape::Make(dims);
}

// --- DynamicPartition ----------------------------------------------------------------------------

Status CheckPartitions(const PartialShape& data, const PartialShape& partitions) {
  if (!BeginsWith(data, partitions)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shape of partitions must begin the shape of data ", data.ToString(),
                     ", got ", partitions.ToString()));
  }
  return absl::OkStatus();
}

Status DynamicPartitionShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckPartitions(c->input(0), c->input(1)));
  if (!c->input(0).has_rank() || !c->input(1).has_rank()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const PartialShape part, RowsOf(-1, c->input(0), c->input(1).rank()));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, part);
  return absl::OkStatus();
}

class DynamicPartitionKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor data = ctx->input(0);
    const Tensor partitions = ctx->input(1);
    MR_RETURN_IF_ERROR(CheckPartitions(data.shape(), partitions.shape()));
    const int num_partitions = ctx->num_outputs();
    const absl::Span<const int32_t> number = partitions.raw<int32_t>();
    Ints counts(static_cast<size_t>(num_partitions), 0);
    for (size_t i = 0; i < number.size(); ++i) {
      if (number[i] < 0 || number[i] >= num_partitions) {
        return absl::InvalidArgumentError(absl::StrCat("partitions[", i, "] = ", number[i],
                                                       " is not in [0, ", num_partitions, ")"));
      }
      ++counts[static_cast<size_t>(number[i])];
    }
    std::vector<Tensor*> outputs;
    for (int p = 0; p < num_partitions; ++p) {
      MR_ASSIGN_OR_RETURN(const PartialShape known,
                          RowsOf(counts[static_cast<size_t>(p)], data.shape(), partitions.rank()));
      MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
      MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(p, shape));
      outputs.push_back(out);
    }
    const int64_t width = data.shape().NumElements(partitions.rank(), data.rank());
    return VisitElements(data.dtype(), [&]<typename E>() {
      std::vector<E*> to;
      for (Tensor* out : outputs) to.push_back(MutableElementsOf<E>(out));
      const E* from = ElementsOf<E>(data);
      for (const int32_t p : number) {
        E*& place = to[static_cast<size_t>(p)];
        place = std::copy(from, from + width, place);
        from += width;
      }
    });
  }
};

// The places that rows came from are dealt out like the rows; the gradients are stitched there.
Status DynamicPartitionGradient(GradientContext* c) {
  const Scope& scope = c->scope();
  const Output partitions = c->input(1);
  const Output places = Reshape(
      scope,
      Range(scope, Const(scope, int32_t{0}), Size(scope, partitions), Const(scope, int32_t{1})),
      ShapeOf(scope, partitions));
  std::vector<Output> grads;
  for (int i = 0; i < c->num_outputs(); ++i) grads.push_back(c->dense_grad(i));
  const Output rows = ParallelDynamicStitch(
      scope, DynamicPartition(scope, places, partitions, c->num_outputs()), grads);
  c->set_input_grad(0, Reshape(scope, rows, ShapeOf(scope, c->input(0))));
  return absl::OkStatus();
}

const OpRegistration kDynamicPartition = OpSpec("DynamicPartition")
                                             .Input("data: T")
                                             .Input("partitions: int32")
                                             .Output("outputs: num_partitions * T")
                                             .Attr("num_partitions: int >= 1")
                                             .Attr("T: type")
                                             .Shape(DynamicPartitionShape)
                                             .Gradient(DynamicPartitionGradient);
const KernelRegistration kDynamicPartitionKernel =
    KernelFor<DynamicPartitionKernel>("DynamicPartition");

// --- DynamicStitch -------------------------------------------------------------------------------

// What all data[m].shape have behind indices[m].shape; the only place that knows which fit.
StatusOr<PartialShape> CommonRow(absl::Span<const PartialShape> indices,
                                 absl::Span<const PartialShape> data) {
  PartialShape row;
  for (size_t m = 0; m < indices.size(); ++m) {
    if (!BeginsWith(data[m], indices[m])) {
      return absl::InvalidArgumentError(absl::StrCat("data[", m, "].shape = ", data[m].ToString(),
                                                     " does not start with indices[", m,
                                                     "].shape = ", indices[m].ToString()));
    }
    if (!data[m].has_rank() || !indices[m].has_rank()) continue;
    MR_ASSIGN_OR_RETURN(
        const PartialShape own,
        PartialShape::Make(data[m].dims().subspan(static_cast<size_t>(indices[m].rank()))));
    const StatusOr<PartialShape> merged = row.MergeWith(own);
    if (!merged.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("all data must have the same row shape, got ",
                                                     row.ToString(), " before and ", own.ToString(),
                                                     " for data[", m, "]"));
    }
    row = *merged;
  }
  return row;
}

// The number of rows: the largest index + 1.
StatusOr<int64_t> StitchedRows(size_t m, const Tensor& indices, int64_t rows) {
  const absl::Span<const int32_t> values = indices.raw<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("indices[", m, "][", i, "] must be >= 0, got ", values[i]));
    }
    rows = std::max(rows, int64_t{values[i]} + 1);
  }
  return rows;
}

Status DynamicStitchShape(InferenceContext* c) {
  const int n = c->num_inputs() / 2;
  std::vector<PartialShape> indices, data;
  int64_t rows = 0;
  for (int m = 0; m < n; ++m) {
    indices.push_back(c->input(m));
    data.push_back(c->input(n + m));
    const Tensor* constant = rows == -1 ? nullptr : c->input_tensor(m);
    if (constant == nullptr) {
      rows = -1;
      continue;
    }
    MR_ASSIGN_OR_RETURN(rows, StitchedRows(static_cast<size_t>(m), *constant, rows));
  }
  MR_ASSIGN_OR_RETURN(const PartialShape row, CommonRow(indices, data));
  if (!row.has_rank()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(PartialShape shape, RowsOf(rows, row, 0));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class DynamicStitchKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const int n = ctx->num_inputs() / 2;
    std::vector<PartialShape> indices, data;
    int64_t rows = 0;
    for (int m = 0; m < n; ++m) {
      indices.push_back(ctx->input(m).shape());
      data.push_back(ctx->input(n + m).shape());
      MR_ASSIGN_OR_RETURN(rows, StitchedRows(static_cast<size_t>(m), ctx->input(m), rows));
    }
    MR_ASSIGN_OR_RETURN(const PartialShape row, CommonRow(indices, data));
    MR_ASSIGN_OR_RETURN(const PartialShape known, RowsOf(rows, row, 0));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    // Rows that no index names are zeros.
    std::vector<bool> seen(static_cast<size_t>(rows), false);
    int64_t missing = rows;
    for (int m = 0; m < n; ++m) {
      for (const int32_t i : ctx->input(m).raw<int32_t>()) {
        missing -= seen[static_cast<size_t>(i)] ? 0 : 1;
        seen[static_cast<size_t>(i)] = true;
      }
    }
    if (missing > 0 && !out->mutable_bytes().empty()) {
      std::memset(out->mutable_bytes().data(), 0, out->mutable_bytes().size());
    }
    const int64_t width = shape.num_elements() / rows;
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
};

// Rows that were overwritten contribute, too, where an index repeats: as in TensorFlow.
Status DynamicStitchGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output grad = c->dense_grad(0);
  const int n = c->num_inputs() / 2;
  for (int m = 0; m < n; ++m) {
    c->set_input_grad(n + m, GatherV2(scope, grad, c->input(m), Const(scope, int32_t{0})));
  }
  return absl::OkStatus();
}

OpSpec StitchSpec(const char* name) {
  return OpSpec(name)
      .Input("indices: N * int32")
      .Input("data: N * T")
      .Output("merged: T")
      .Attr("N: int >= 1")
      .Attr("T: type")
      .Shape(DynamicStitchShape)
      .Gradient(DynamicStitchGradient);
}
const OpRegistration kDynamicStitch = StitchSpec("DynamicStitch");
const KernelRegistration kDynamicStitchKernel = KernelFor<DynamicStitchKernel>("DynamicStitch");
const OpRegistration kParallelDynamicStitch = StitchSpec("ParallelDynamicStitch");
const KernelRegistration kParallelDynamicStitchKernel =
    KernelFor<DynamicStitchKernel>("ParallelDynamicStitch");

}  // namespace
}  // namespace millrace
