// SPDX-License-Identifier: Apache-2.0
#include "ops/state/resource_rows.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/kernels/variable_kernel.h"
#include "ops/kernels/variable_update.h"
#include "ops/rules/variable_rules.h"
#include "ops/state/resource_variable.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// --- ResourceGather ------------------------------------------------------------------------------

Status ResourceGatherShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape table, ShapeOfHandle(c));
  MR_ASSIGN_OR_RETURN(PartialShape shape, RowsShape(c->input(1), table));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename Index>
class ResourceGatherKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    int64_t batch_dims = 0;
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "dtype", &dtype_, "batch_dims", &batch_dims));
    if (batch_dims == 0) return absl::OkStatus();
    return Unimplemented("batch_dims must be 0, got ", batch_dims,
                         "; gather from the variable's value");
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, 0, dtype_));
    for (;;) {
      const Status status = IsMemcopyable(dtype_) ? GatherBytes(ctx, variable.get())
                                                  : GatherObjects(ctx, variable.get());
      if (absl::IsAborted(status)) continue;  // assigned another shape meanwhile
      if (absl::IsFailedPrecondition(status)) {
        return ReadError(*variable, ctx->input(0).raw_scalar<ResourceHandle>());
      }
      return status;
    }
  }

 private:
  static StatusOr<Tensor*> AllocateRows(KernelContext* ctx, const Shape& table) {
    MR_ASSIGN_OR_RETURN(const PartialShape rows, RowsShape(ctx->input(1).shape(), table));
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

  // Strings have no bytes to copy: a snapshot is read and its elements are copied.
  Status GatherObjects(KernelContext* ctx, VariableStorage* variable) const {
    if (dtype_ != DT_STRING) {
      return Unimplemented("rows of dtype ", dtype_, " cannot be gathered");
    }
    MR_ASSIGN_OR_RETURN(const Tensor table, variable->Read());
    MR_ASSIGN_OR_RETURN(Tensor * out, AllocateRows(ctx, table.shape()));
    const absl::Span<const Index> index = ctx->input(1).raw<Index>();
    MR_RETURN_IF_ERROR(CheckIndices(index, table.dim(0)));
    const size_t row = static_cast<size_t>(table.shape().NumElements(1, table.rank()));
    const std::string* const from = table.raw<std::string>().data();
    std::string* const to = out->mutable_raw<std::string>().data();
    for (size_t i = 0; i < index.size(); ++i) {
      std::copy_n(from + static_cast<size_t>(index[i]) * row, row, to + i * row);
    }
    return absl::OkStatus();
  }

  DType dtype_ = DT_INVALID;
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

// The gradient touches only the gathered rows: values [n, row...] at indices [n]. Shapes are
// constants when the variable's is known while the graph is built.
Status ResourceGatherGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& s = c->scope();
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
