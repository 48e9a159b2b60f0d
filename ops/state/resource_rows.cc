// SPDX-License-Identifier: Apache-2.0
#include "ops/state/resource_rows.h"

#include <algorithm>
#include <complex>
#include <limits>
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
#include "ops/kernels/variable_update.h"
#include "ops/rules/variable_rules.h"
#include "ops/state/resource_variable.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// --- ResourceGather ------------------------------------------------------------------------------

Status ResourceGatherShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  MR_RETURN_IF_ERROR(CheckHandleDtype(handle, dtype));
  MR_ASSIGN_OR_RETURN(PartialShape shape, RowsShape(c->input(1), handle.shape));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename Index>
class ResourceGatherKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(dtype_, c->GetAttr<DType>("dtype"));
    MR_ASSIGN_OR_RETURN(const int64_t batch_dims, c->GetAttr<int64_t>("batch_dims"));
    if (batch_dims != 0) {
      return absl::UnimplementedError(absl::StrCat("batch_dims must be 0, got ", batch_dims,
                                                   "; gather from the variable's value"));
    }
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    MR_RETURN_IF_ERROR(CheckStorageDtype(*variable, dtype_));
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
        return absl::InvalidArgumentError(
            absl::StrCat("indices[", i, "] = ", indices[i], " is not in [0, ", num_rows, ")"));
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
      return absl::UnimplementedError(
          absl::StrCat("rows of dtype ", DTypeName(dtype_), " cannot be gathered"));
    }
    MR_ASSIGN_OR_RETURN(const Tensor table, variable->Read());
    MR_ASSIGN_OR_RETURN(Tensor * out, AllocateRows(ctx, table.shape()));
    const absl::Span<const Index> index = ctx->input(1).raw<Index>();
    MR_RETURN_IF_ERROR(CheckIndices(index, table.dim(0)));
    const size_t row = static_cast<size_t>(table.shape().NumElements(1, table.rank()));
    const absl::Span<const std::string> from = table.raw<std::string>();
    const absl::Span<std::string> to = out->mutable_raw<std::string>();
    for (size_t i = 0; i < index.size(); ++i) {
      for (size_t j = 0; j < row; ++j) {
        to[i * row + j] = from[static_cast<size_t>(index[i]) * row + j];
      }
    }
    return absl::OkStatus();
  }

  DType dtype_ = DT_INVALID;
};

// [-1] + shape[1:] and shape, as int32 vectors: constants when the variable's shape is known while
// the graph is built.
struct RowShapes {
  Output values, table;
};
RowShapes ShapesOfRows(const Scope& scope, Output resource) {
  const auto handle = scope.refiner()->OutputHandle(*resource.node(), resource.index());
  if (handle && handle->shape.IsFullyDefined() && handle->shape.rank() > 0) {
    std::vector<int32_t> dims;
    bool fits = true;
    for (int64_t d : handle->shape.dims()) {
      fits = fits && d <= std::numeric_limits<int32_t>::max();
      dims.push_back(static_cast<int32_t>(d));
    }
    if (fits) {
      const Output table = ConstVector<int32_t>(scope, dims);
      dims[0] = -1;
      return {ConstVector<int32_t>(scope, dims), table};
    }
  }
  const Output table = VariableShape(scope, resource);
  const Output one = Const<int32_t>(scope, {1});
  const Output row = StridedSlice(scope, table, one, one, one, {.end_mask = 1});
  return {ConcatV2(scope, {Const<int32_t>(scope, {-1}), row}, Const(scope, int32_t{0})), table};
}

// The gradient touches only the gathered rows: values [n, row...] at indices [n].
Status ResourceGatherGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const RowShapes shapes = ShapesOfRows(scope, c->input(0));
  IndexedSlices slices;
  slices.values = Reshape(scope, c->dense_grad(0), shapes.values);
  slices.indices = Reshape(scope, c->input(1), Const<int32_t>(scope, {-1}));
  slices.dense_shape = shapes.table;
  c->set_input_grad(0, slices);
  return absl::OkStatus();
}

const OpRegistration kResourceGather = OpSpec("ResourceGather")
                                           .Input("resource: resource")
                                           .Input("indices: Tindices")
                                           .Output("output: dtype")
                                           .Attr("batch_dims: int = 0")
                                           .Attr("validate_indices: bool = true")
                                           .Attr("dtype: type")
                                           .Attr("Tindices: {int32, int64}")
                                           .Stateful()
                                           .Shape(ResourceGatherShape)
                                           .Gradient(ResourceGatherGradient);
const KernelRegistration kResourceGather32 =
    KernelFor<ResourceGatherKernel<int32_t>>("ResourceGather").Type<int32_t>("Tindices");
const KernelRegistration kResourceGather64 =
    KernelFor<ResourceGatherKernel<int64_t>>("ResourceGather").Type<int64_t>("Tindices");

// --- ResourceScatterAdd, ResourceScatterSub, ResourceScatterUpdate -------------------------------

Status ResourceScatterShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  MR_RETURN_IF_ERROR(CheckHandleDtype(handle, dtype));
  return CheckUpdates(c->input(2), c->input(1), handle.shape);
}

template <typename T, typename Index, template <typename> class Rule>
class ResourceScatterKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    MR_RETURN_IF_ERROR(CheckStorageDtype(*variable, DTypeOf<T>));
    return ScatterRows<T, Index, Rule>(ctx, variable.get(), ctx->input(1), ctx->input(2),
                                       /*exclusive=*/false);
  }
};

OpSpec ResourceScatterSpec(const char* name, const std::string& dtype) {
  return OpSpec(name)
      .Input("resource: resource")
      .Input("indices: Tindices")
      .Input("updates: dtype")
      .Attr(absl::StrCat("dtype: ", dtype))
      .Attr("Tindices: {int32, int64}")
      .Stateful()
      .Shape(ResourceScatterShape)
      .NotDifferentiable();
}
const OpRegistration kResourceScatterAdd = ResourceScatterSpec("ResourceScatterAdd", kNumberTypes);
const OpRegistration kResourceScatterSub = ResourceScatterSpec("ResourceScatterSub", kNumberTypes);
const OpRegistration kResourceScatterUpdate = ResourceScatterSpec("ResourceScatterUpdate", "type");

template <typename T>
struct UpdateKernels {
  ScatterKernels<ResourceScatterKernel, T, AddRule> add{"ResourceScatterAdd", "dtype"};
  ScatterKernels<ResourceScatterKernel, T, SubRule> sub{"ResourceScatterSub", "dtype"};
  ScatterKernels<ResourceScatterKernel, T, UpdateRule> update{"ResourceScatterUpdate", "dtype"};
};
const ForNumbers<UpdateKernels> kUpdates;
const ScatterKernels<ResourceScatterKernel, bool, UpdateRule> kBoolUpdates{"ResourceScatterUpdate",
                                                                           "dtype"};

}  // namespace
}  // namespace millrace
