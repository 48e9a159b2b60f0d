// SPDX-License-Identifier: Apache-2.0
#include "ops/state/resource_rows.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/distinct.h"
#include "ops/array/gather.h"
#include "ops/array/gather_gradient.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/kernels/variable_kernel.h"
#include "ops/kernels/variable_update.h"
#include "ops/math/cwise_binary.h"
#include "ops/rules/elements.h"
#include "ops/rules/gather_shape.h"
#include "ops/rules/nd_index.h"
#include "ops/rules/variable_rules.h"
#include "ops/state/resource_variable.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// --- ResourceGather ------------------------------------------------------------------------------

// The shape of the rows: indices + row; with batch_dims = b, table[:b] + indices[b:] +
// table[b + 1:].
StatusOr<PartialShape> GatheredRowsShape(const PartialShape& indices, const PartialShape& table,
                                         int64_t batch_dims) {
  if (batch_dims == 0) return RowsShape(indices, table);
  if (!indices.has_rank() || !table.has_rank()) return PartialShape();
  const int64_t axis = batch_dims < 0 ? batch_dims + indices.rank() : batch_dims;
  if (batch_dims <= indices.rank() && axis >= table.rank()) {
    return InvalidArgument("the variable must have rank > ", axis,
                           ", the number of batch dimensions, got shape ", table);
  }
  return GatheredShape(table, indices, axis, batch_dims, "the variable");
}

Status ResourceGatherShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape table, ShapeOfHandle(c));
  MR_ASSIGN_OR_RETURN(const int64_t batch_dims, c->GetAttr<int64_t>("batch_dims"));
  MR_ASSIGN_OR_RETURN(PartialShape shape, GatheredRowsShape(c->input(1), table, batch_dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// Row i of `out` is row source(i) of `table`; a row has `size` elements.
template <typename Source>
Status CopyRows(KernelContext* ctx, const Tensor& table, int64_t size, Source source, Tensor* out) {
  if (out->num_elements() == 0) return absl::OkStatus();
  return VisitElements(table.dtype(), [&]<typename E>() {
    const E* const from = ElementsOf<E>(table);
    E* const to = MutableElementsOf<E>(out);
    const double cost_ns = 5 + 0.1 * static_cast<double>(size) * sizeof(E);
    ctx->ParallelFor(out->num_elements() / size, cost_ns, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(from + source(i) * size, size, to + i * size);
      }
    });
  });
}

template <typename Index>
class ResourceGatherKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "dtype", &dtype_, "batch_dims", &batch_dims_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, 0, dtype_));
    for (;;) {
      const Status status = IsMemcopyable(dtype_) && batch_dims_ == 0
                                ? GatherBytes(ctx, variable.get())
                                : GatherFromValue(ctx, variable.get());
      if (absl::IsAborted(status)) continue;  // assigned another shape meanwhile
      if (absl::IsFailedPrecondition(status)) {
        return ReadError(*variable, ctx->input(0).raw_scalar<ResourceHandle>());
      }
      return status;
    }
  }

 private:
  StatusOr<Tensor*> AllocateRows(KernelContext* ctx, const Shape& table) const {
    MR_ASSIGN_OR_RETURN(const PartialShape rows,
                        GatheredRowsShape(ctx->input(1).shape(), table, batch_dims_));
    MR_ASSIGN_OR_RETURN(const Shape shape, rows.ToShape());
    return ctx->AllocateOutput(0, shape);
  }

  // One message for both ways of copying; it counts the indices from the beginning.
  static Status CheckIndices(absl::Span<const Index> indices, int64_t num_rows) {
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] < 0 || indices[i] >= num_rows) {
        return InvalidArgument("indices[", i, "] = ", indices[i], " is not in [0, ", num_rows, ")");
      }
    }
    return absl::OkStatus();
  }

  // Aborted when the variable's shape changed after the output was allocated.
  Status GatherBytes(KernelContext* ctx, VariableStorage* variable) const {
    MR_ASSIGN_OR_RETURN(const Shape table, variable->shape());
    MR_ASSIGN_OR_RETURN(Tensor * out, AllocateRows(ctx, table));
    const absl::Span<const Index> index = ctx->input(1).raw<Index>();
    char* const data = out->mutable_bytes().data();
    constexpr size_t kRowsPerTask = 2048;
    if (index.size() < 2 * kRowsPerTask || ctx->num_threads() == 1) {
      return variable->GatherRows<Index>(index, table, data);
    }
    MR_RETURN_IF_ERROR(CheckIndices(index, table.dim(0)));
    const size_t row_bytes =
        static_cast<size_t>(table.NumElements(1, table.rank())) * DTypeSize(dtype_);
    const int64_t tasks = static_cast<int64_t>((index.size() + kRowsPerTask - 1) / kRowsPerTask);
    Mutex mu;
    Status first;
    ctx->ParallelFor(tasks, 100.0 * kRowsPerTask, [&](int64_t begin, int64_t end) {
      const size_t from = static_cast<size_t>(begin) * kRowsPerTask;
      const size_t to = std::min(index.size(), static_cast<size_t>(end) * kRowsPerTask);
      const Status status = variable->GatherRows<Index>(index.subspan(from, to - from), table,
                                                        data + from * row_bytes);
      if (!status.ok()) {
        MutexLock lock(&mu);
        first.Update(status);
      }
    });
    return first;
  }

  // Strings have no bytes to copy, and rows of batches are no rows of the storage: the value of one
  // moment is read, and its elements are copied.
  Status GatherFromValue(KernelContext* ctx, VariableStorage* variable) const {
    if (!IsMemcopyable(dtype_) && dtype_ != DT_STRING) {
      return Unimplemented("rows of dtype ", dtype_, " cannot be gathered");
    }
    MR_ASSIGN_OR_RETURN(const Tensor table, variable->Read());
    MR_ASSIGN_OR_RETURN(Tensor * out, AllocateRows(ctx, table.shape()));
    const Tensor& indices = ctx->input(1);
    const absl::Span<const Index> index = indices.raw<Index>();
    const int batch =
        static_cast<int>(batch_dims_ < 0 ? batch_dims_ + indices.rank() : batch_dims_);
    const int64_t rows = table.dim(batch);  // of a batch
    MR_RETURN_IF_ERROR(CheckIndices(index, rows));
    const int64_t per_batch = indices.shape().NumElements(batch, indices.rank());
    return CopyRows(
        ctx, table, table.shape().NumElements(batch + 1, table.rank()),
        [=](int64_t i) { return i / per_batch * rows + index[static_cast<size_t>(i)]; }, out);
  }

  DType dtype_ = DT_INVALID;
  int64_t batch_dims_ = 0;
};

// The shape of what a handle holds when it is known while the graph is built.
std::optional<std::vector<int32_t>> KnownTableShape(const Scope& scope, Output resource) {
  const auto handle = scope.refiner()->OutputHandle(*resource.node(), resource.index());
  if (!handle || !handle->shape.IsFullyDefined() || handle->shape.rank() == 0) return std::nullopt;
  const absl::Span<const int64_t> dims = handle->shape.dims();
  if (*std::max_element(dims.begin(), dims.end()) > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  return std::vector<int32_t>(dims.begin(), dims.end());
}

// The gradient touches only the gathered rows: values [n, row...] at indices [n]; with batch
// dimensions it is dense. Shapes are constants when the variable's is known while the graph is
// built.
Status ResourceGatherGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& s = c->scope();
  MR_ASSIGN_OR_RETURN(const int64_t batch_dims, GetAttr<int64_t>(c->node().attrs(), "batch_dims"));
  if (batch_dims != 0) {
    const std::optional<std::vector<int32_t>> dims = KnownTableShape(s, c->input(0));
    const Output shape = dims ? ConstVector<int32_t>(s, *dims) : VariableShape(s, c->input(0));
    Output axis = Const(s, static_cast<int32_t>(batch_dims));
    if (batch_dims < 0) axis = Add(s, axis, Rank(s, c->input(1)));
    c->set_input_grad(
        0, DenseGatherGradient(s, shape, c->input(1), axis, batch_dims, c->dense_grad(0)));
    return absl::OkStatus();
  }
  const Output minus_one = Const<int32_t>(s, {-1});
  IndexedSlices slices;
  Output values_shape;  // [-1] + table[1:]
  if (std::optional<std::vector<int32_t>> dims = KnownTableShape(s, c->input(0))) {
    slices.dense_shape = ConstVector<int32_t>(s, *dims);
    (*dims)[0] = -1;
    values_shape = ConstVector<int32_t>(s, *dims);
  } else {
    slices.dense_shape = VariableShape(s, c->input(0));
    const Output one = Const<int32_t>(s, {1});
    const Output row = StridedSlice(s, slices.dense_shape, one, one, one, {.end_mask = 1});
    values_shape = ConcatV2(s, {minus_one, row}, Const(s, 0));
  }
  slices.values = Reshape(s, c->dense_grad(0), values_shape);
  slices.indices = Reshape(s, c->input(1), minus_one);
  slices.unique_indices = IsDistinct(c->input(1));
  c->set_input_grad(0, slices);
  return absl::OkStatus();
}

const OpRegistration kResourceGather =
    OpSpec("ResourceGather", "resource: resource, indices: Tindices -> output: dtype",
           "batch_dims: int = 0; validate_indices: bool = true; dtype: type; "
           "Tindices: {int32, int64}")
        .Stateful()
        .TakesVariable(0, VariableUse::kReadsRows)
        .Shape(ResourceGatherShape)
        .Gradient(ResourceGatherGradient)
        .With(KernelsFor<ResourceGatherKernel, int32_t, int64_t>("Tindices"));

// --- ResourceGatherNd ----------------------------------------------------------------------------

Status ResourceGatherNdShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape table, ShapeOfHandle(c));
  MR_ASSIGN_OR_RETURN(PartialShape shape, NdSlices(c->input(1), table));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// Slices of the value of one moment.
class ResourceGatherNdKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return ReadAttrs(c->attrs(), "dtype", &dtype_); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, 0, dtype_));
    const StatusOr<Tensor> value = variable->Read();
    if (absl::IsFailedPrecondition(value.status())) {
      return ReadError(*variable, ctx->input(0).raw_scalar<ResourceHandle>());
    }
    MR_RETURN_IF_ERROR(value.status());
    const Shape& table = value->shape();
    const Tensor& indices = ctx->input(1);
    MR_ASSIGN_OR_RETURN(const PartialShape slices, NdSlices(indices.shape(), table));
    MR_ASSIGN_OR_RETURN(const Shape shape, slices.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    // Indices without coordinates may be too many to list.
    if (indices.num_elements() == 0 && out->num_elements() == 0) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> flat, FlatSlices(indices, table));
    const int depth = static_cast<int>(indices.dim(indices.rank() - 1));
    return CopyRows(
        ctx, *value, table.NumElements(depth, table.rank()),
        [slice = flat.data()](int64_t i) { return slice[i]; }, out);
  }

 private:
  DType dtype_ = DT_INVALID;
};

Status ResourceGatherNdGradient(GradientContext* c) {
  return GatherNdGradientOf(
      c, [c](DType type) { return VariableShape(c->scope(), c->input(0), {.out_type = type}); });
}

const OpRegistration kResourceGatherNd =
    OpSpec("ResourceGatherNd", "resource: resource, indices: Tindices -> output: dtype",
           "dtype: type; Tindices: {int32, int64}")
        .Stateful()
        .TakesVariable(0, VariableUse::kReadsRows)
        .Shape(ResourceGatherNdShape)
        .Gradient(ResourceGatherNdGradient)
        .With(KernelFor<ResourceGatherNdKernel>());

// --- ResourceScatterAdd, ResourceScatterSub, ResourceScatterUpdate -------------------------------

Status ResourceScatterShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape table, ShapeOfHandle(c));
  return CheckUpdates(c->input(2), c->input(1), table);
}

OpSpec ScatterSpec(const char* name, const char* dtype) {
  return OpSpec(name, "resource: resource, indices: Tindices, updates: dtype",
                absl::StrCat("dtype: ", dtype, "; Tindices: {int32, int64}"))
      .Stateful()
      .Shape(ResourceScatterShape)
      .NotDifferentiable();
}
const OpRegistration kScatters[] = {
    ScatterSpec("ResourceScatterAdd", "numbertype")
        .With(KernelsForNumbers<VariableUpdate<AddRule>::Rows>("dtype")),
    ScatterSpec("ResourceScatterSub", "numbertype")
        .With(KernelsForNumbers<VariableUpdate<SubRule>::Rows>("dtype")),
    ScatterSpec("ResourceScatterUpdate", "type")
        .With(KernelsForNumbers<VariableUpdate<UpdateRule>::Rows>("dtype"))
        .With(KernelsFor<VariableUpdate<UpdateRule>::Rows, bool>("dtype"))};

}  // namespace
}  // namespace millrace
