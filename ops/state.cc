// SPDX-License-Identifier: Apache-2.0
#include "ops/state.h"

#include <atomic>
#include <complex>
#include <deque>
#include <functional>
#include <limits>
#include <type_traits>

#include "core/mutex.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/concat.h"
#include "ops/constant.h"
#include "ops/reshape.h"
#include "ops/slice.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Rules
// -----------------------------------------------------------------------------------------

// The shape that gathered or scattered rows have: indices + row. The only place that knows it.
StatusOr<PartialShape> RowsShape(const PartialShape& indices, const PartialShape& table) {
  if (!table.has_rank()) return PartialShape();
  if (table.rank() < 1) {
    return absl::InvalidArgumentError("the variable must have rank >= 1, got shape []");
  }
  if (!indices.has_rank()) return PartialShape();
  std::vector<int64_t> dims(indices.dims().begin(), indices.dims().end());
  dims.insert(dims.end(), table.dims().begin() + 1, table.dims().end());
  return PartialShape::Make(dims);
}

// `updates` is either a scalar or shaped like the rows.
Status CheckUpdates(const PartialShape& updates, const PartialShape& indices,
                    const PartialShape& table) {
  ASSIGN_OR_RETURN(const PartialShape rows, RowsShape(indices, table));
  if (updates.has_rank() && updates.rank() == 0) return absl::OkStatus();
  if (!updates.IsCompatibleWith(rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("updates must be a scalar or have the shape of indices followed by a row ",
                     rows.ToString(), " (indices ", indices.ToString(), ", variable ",
                     table.ToString(), "), got shape ", updates.ToString()));
  }
  return absl::OkStatus();
}

// What a variable handle holds; unknown when the graph does not say.
HandleData HandleOf(InferenceContext* c, int i) {
  return c->input_handle(i) ? *c->input_handle(i) : HandleData();
}

Status CheckHandleDtype(const HandleData& handle, DType dtype) {
  if (handle.dtype != DT_INVALID && handle.dtype != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the variable has dtype ", DTypeName(handle.dtype), ", got attr dtype ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

Status CheckStorageDtype(const VariableStorage& variable, DType dtype) {
  if (variable.dtype() != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("Trying to access resource ", variable.name(), " with dtype ",
                     DTypeName(dtype), ", but its dtype is ", DTypeName(variable.dtype())));
  }
  return absl::OkStatus();
}

Status ReadError(const VariableStorage& variable, const ResourceHandle& handle) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Error while reading resource variable ", variable.name(),
      " from Container: ", handle.container,
      ". This could mean that the variable was uninitialized. Not found: Resource ",
      handle.container, "/", handle.name, "/", VariableStorage::kTypeName, " does not exist."));
}

// --- VarHandleOp
// -----------------------------------------------------------------------------------

Status VarHandleShape(InferenceContext* c) {
  HandleData data;
  ASSIGN_OR_RETURN(data.dtype, c->GetAttr<DType>("dtype"));
  ASSIGN_OR_RETURN(data.shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, Shape());
  c->set_output_handle(0, std::move(data));
  return absl::OkStatus();
}

// Names the variable of VarHandleOp, VariableV2 and Variable nodes and finds or makes its storage.
class VariableMaker {
 public:
  Status Init(KernelConstruction* c) {
    ASSIGN_OR_RETURN(dtype_, c->GetAttr<DType>("dtype"));
    ASSIGN_OR_RETURN(shape_, c->GetAttr<PartialShape>("shape"));
    ASSIGN_OR_RETURN(container_, c->GetAttr<std::string>("container"));
    ASSIGN_OR_RETURN(name_, c->GetAttr<std::string>("shared_name"));
    if (name_.empty()) name_ = c->node().name();
    return absl::OkStatus();
  }
  StatusOr<std::shared_ptr<VariableStorage>> FindOrMake(ResourceManager* resources) const {
    ASSIGN_OR_RETURN(auto storage,
                     resources->LookupOrCreate<VariableStorage>(
                         container_, name_, [this]() -> StatusOr<std::shared_ptr<VariableStorage>> {
                           return std::make_shared<VariableStorage>(name_, dtype_, shape_);
                         }));
    RETURN_IF_ERROR(CheckStorageDtype(*storage, dtype_));
    return storage;
  }
  const std::string& container() const { return container_; }
  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  const PartialShape& shape() const { return shape_; }

 private:
  DType dtype_ = DT_INVALID;
  PartialShape shape_;
  std::string container_;
  std::string name_;
};

// The handle is made once and handed out by every step without a lock; after a Reset of the
// container it is made anew. Handles that steps may still hold stay until the kernel goes.
class VarHandleKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return maker_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    const Tensor* handle = current_.load(std::memory_order_acquire);
    if (handle == nullptr || handle->scalar<ResourceHandle>().resource->abandoned()) {
      ASSIGN_OR_RETURN(handle, MakeHandle(ctx->resources()));
    }
    ctx->set_output(0, *handle);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  StatusOr<const Tensor*> MakeHandle(ResourceManager* resources) const {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(auto storage, maker_.FindOrMake(resources));
    ResourceHandle handle =
        resources->MakeHandle<VariableStorage>(maker_.container(), maker_.name(), storage);
    handle.dtypes = {maker_.dtype()};
    handle.shapes = {maker_.shape()};
    all_.push_back(Tensor::Scalar<ResourceHandle>(std::move(handle)));
    current_.store(&all_.back(), std::memory_order_release);
    return &all_.back();
  }

  VariableMaker maker_;
  mutable std::atomic<const Tensor*> current_{nullptr};  // release after the element is complete
  mutable Mutex mu_;
  mutable std::deque<Tensor> all_ ABSL_GUARDED_BY(mu_);
};

const OpRegistration kVarHandleOp = OpSpec("VarHandleOp")
                                        .Output("resource: resource")
                                        .Attr("container: string = ''")
                                        .Attr("shared_name: string = ''")
                                        .Attr("dtype: type")
                                        .Attr("shape: shape")
                                        .Stateful()
                                        .Shape(VarHandleShape)
                                        .NotDifferentiable();
const KernelRegistration kVarHandleKernel = KernelFor<VarHandleKernel>("VarHandleOp");

// --- VarIsInitializedOp, ReadVariableOp, VariableShape, DestroyResourceOp
// --------------------------

Status BoolScalar(KernelContext* ctx, bool value) {
  ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
  out->mutable_flat<bool>()[0] = value;
  return absl::OkStatus();
}

class VarIsInitializedKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    auto variable = ctx->ResourceInput<VariableStorage>(0);
    if (!variable.ok() && !absl::IsNotFound(variable.status())) return variable.status();
    return BoolScalar(ctx, variable.ok() && (*variable)->IsInitialized());
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kVarIsInitialized = OpSpec("VarIsInitializedOp")
                                             .Input("resource: resource")
                                             .Output("is_initialized: bool")
                                             .Stateful()
                                             .Shape(ScalarShape)
                                             .NotDifferentiable();
const KernelRegistration kVarIsInitializedKernel =
    KernelFor<VarIsInitializedKernel>("VarIsInitializedOp");

Status ReadVariableShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  RETURN_IF_ERROR(CheckHandleDtype(handle, dtype));
  c->set_output(0, handle.shape);
  return absl::OkStatus();
}

class ReadVariableKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(dtype_, c->GetAttr<DType>("dtype"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    RETURN_IF_ERROR(CheckStorageDtype(*variable, dtype_));
    StatusOr<Tensor> value = variable->Read();
    if (absl::IsFailedPrecondition(value.status())) {
      return ReadError(*variable, ctx->input(0).scalar<ResourceHandle>());
    }
    RETURN_IF_ERROR(value.status());
    ctx->set_output(0, *std::move(value));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType dtype_ = DT_INVALID;
};

// The gradient of the value is the gradient of the variable.
Status ReadVariableGradient(GradientContext* c) {
  const Gradient& grad = c->grad(0);
  if (const Output* dense = std::get_if<Output>(&grad)) c->set_input_grad(0, *dense);
  if (const IndexedSlices* slices = std::get_if<IndexedSlices>(&grad)) {
    c->set_input_grad(0, *slices);
  }
  return absl::OkStatus();
}

const OpRegistration kReadVariable = OpSpec("ReadVariableOp")
                                         .Input("resource: resource")
                                         .Output("value: dtype")
                                         .Attr("dtype: type")
                                         .Stateful()
                                         .Shape(ReadVariableShape)
                                         .Gradient(ReadVariableGradient);
const KernelRegistration kReadVariableKernel = KernelFor<ReadVariableKernel>("ReadVariableOp");

Status VariableShapeShape(InferenceContext* c) {
  const HandleData handle = HandleOf(c, 0);
  const int64_t rank = handle.shape.has_rank() ? handle.shape.rank() : -1;
  ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make({rank}));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class VariableShapeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    ASSIGN_OR_RETURN(const Shape shape, variable->shape());
    ASSIGN_OR_RETURN(Tensor * out,
                     ctx->AllocateOutput(0, Shape::Vector(static_cast<size_t>(shape.rank()))));
    for (int i = 0; i < shape.rank(); ++i) {
      if (out->dtype() == DT_INT64) {
        out->mutable_flat<int64_t>()[static_cast<size_t>(i)] = shape.dim(i);
        continue;
      }
      if (shape.dim(i) > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(
            absl::StrCat("dimension ", i, " must fit into out_type int32, got ", shape.dim(i)));
      }
      out->mutable_flat<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(shape.dim(i));
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kVariableShape = OpSpec("VariableShape")
                                          .Input("input: resource")
                                          .Output("output: out_type")
                                          .Attr("out_type: {int32, int64} = DT_INT32")
                                          .Stateful()
                                          .Shape(VariableShapeShape)
                                          .NotDifferentiable();
const KernelRegistration kVariableShapeKernel = KernelFor<VariableShapeKernel>("VariableShape");

class DestroyResourceKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(ignore_lookup_error_, c->GetAttr<bool>("ignore_lookup_error"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    if (!ctx->input(0).shape().is_scalar()) {
      return absl::InvalidArgumentError(
          absl::StrCat("resource must be a scalar, got shape ", ctx->input(0).shape().ToString()));
    }
    const Status status = ctx->resources()->DeleteHandle(ctx->input(0).scalar<ResourceHandle>());
    return ignore_lookup_error_ && absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

 private:
  bool ignore_lookup_error_ = true;
};

const OpRegistration kDestroyResource = OpSpec("DestroyResourceOp")
                                            .Input("resource: resource")
                                            .Attr("ignore_lookup_error: bool = true")
                                            .Stateful()
                                            .Shape(NoOutputShape)
                                            .NotDifferentiable();
const KernelRegistration kDestroyResourceKernel =
    KernelFor<DestroyResourceKernel>("DestroyResourceOp");

// --- AssignVariableOp, AssignAddVariableOp, AssignSubVariableOp
// ------------------------------------

Status AssignVariableShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  RETURN_IF_ERROR(CheckHandleDtype(handle, dtype));
  if (!handle.shape.IsCompatibleWith(c->input(1))) {
    return absl::InvalidArgumentError(absl::StrCat("value must have the variable's shape ",
                                                   handle.shape.ToString(), ", got ",
                                                   c->input(1).ToString()));
  }
  return absl::OkStatus();
}

class AssignVariableKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    RETURN_IF_ERROR(CheckStorageDtype(*variable, ctx->input(1).dtype()));
    return variable->Assign(ctx->TakeInput(1), /*validate_shape=*/true);
  }
};

const OpRegistration kAssignVariable = OpSpec("AssignVariableOp")
                                           .Input("resource: resource")
                                           .Input("value: dtype")
                                           .Attr("dtype: type")
                                           .Stateful()
                                           .Shape(AssignVariableShape)
                                           .NotDifferentiable();
const KernelRegistration kAssignVariableKernel =
    KernelFor<AssignVariableKernel>("AssignVariableOp");

// a + b and a - b; integers wrap.
template <typename T>
T WrapAdd(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}
template <typename T>
T WrapSub(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
  } else {
    return a - b;
  }
}
template <typename T>
struct AddRule {
  static T Apply(T a, T b) { return WrapAdd(a, b); }
};
template <typename T>
struct SubRule {
  static T Apply(T a, T b) { return WrapSub(a, b); }
};
template <typename T>
struct UpdateRule {
  static T Apply(T, T b) { return b; }
};
// Half and bfloat16 compute in float.
template <>
struct AddRule<Half> {
  static Half Apply(Half a, Half b) { return ToHalf(ToFloat(a) + ToFloat(b)); }
};
template <>
struct SubRule<Half> {
  static Half Apply(Half a, Half b) { return ToHalf(ToFloat(a) - ToFloat(b)); }
};
template <>
struct AddRule<Bfloat16> {
  static Bfloat16 Apply(Bfloat16 a, Bfloat16 b) { return ToBfloat16(ToFloat(a) + ToFloat(b)); }
};
template <>
struct SubRule<Bfloat16> {
  static Bfloat16 Apply(Bfloat16 a, Bfloat16 b) { return ToBfloat16(ToFloat(a) - ToFloat(b)); }
};

// variable = Rule(variable, value), element by element.
template <typename T, template <typename> class Rule>
Status UpdateDense(KernelContext* ctx, VariableStorage* variable, const Tensor& value) {
  VariableStorage* const variables[] = {variable};
  return VariableStorage::UpdateDense(
      variables,
      [&](absl::Span<const Tensor> old) -> Status {
        if (old[0].shape() != value.shape()) {
          return absl::InvalidArgumentError(
              absl::StrCat("value must have the shape of variable '", variable->name(), "' ",
                           old[0].shape().ToString(), ", got ", value.shape().ToString()));
        }
        return absl::OkStatus();
      },
      [&](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) -> Status {
        const T* a = old[0].flat<T>().data();
        const T* b = value.flat<T>().data();
        T* out = fresh[0].mutable_flat<T>().data();
        ctx->ParallelFor(value.num_elements(), 0.5, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) out[i] = Rule<T>::Apply(a[i], b[i]);
        });
        return absl::OkStatus();
      });
}

template <typename T, template <typename> class Rule>
class AssignUpdateVariableKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    RETURN_IF_ERROR(CheckStorageDtype(*variable, DTypeOf<T>));
    return UpdateDense<T, Rule>(ctx, variable.get(), ctx->input(1));
  }
};

OpSpec AssignUpdateSpec(const char* name) {
  return OpSpec(name)
      .Input("resource: resource")
      .Input("value: dtype")
      .Attr("dtype: type")
      .Stateful()
      .Shape(AssignVariableShape)
      .NotDifferentiable();
}
const OpRegistration kAssignAddVariable = AssignUpdateSpec("AssignAddVariableOp");
const OpRegistration kAssignSubVariable = AssignUpdateSpec("AssignSubVariableOp");

// --- ResourceGather
// --------------------------------------------------------------------------------

Status ResourceGatherShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  RETURN_IF_ERROR(CheckHandleDtype(handle, dtype));
  ASSIGN_OR_RETURN(PartialShape shape, RowsShape(c->input(1), handle.shape));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename Index>
class ResourceGatherKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(dtype_, c->GetAttr<DType>("dtype"));
    ASSIGN_OR_RETURN(const int64_t batch_dims, c->GetAttr<int64_t>("batch_dims"));
    if (batch_dims != 0) {
      return absl::UnimplementedError(absl::StrCat("batch_dims must be 0, got ", batch_dims,
                                                   "; gather from the variable's value"));
    }
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    RETURN_IF_ERROR(CheckStorageDtype(*variable, dtype_));
    StatusOr<Shape> table = variable->shape();
    if (absl::IsFailedPrecondition(table.status())) {
      return ReadError(*variable, ctx->input(0).scalar<ResourceHandle>());
    }
    RETURN_IF_ERROR(table.status());
    const Tensor& indices = ctx->input(1);
    ASSIGN_OR_RETURN(const PartialShape rows, RowsShape(indices.shape(), *table));
    ASSIGN_OR_RETURN(const Shape shape, rows.ToShape());
    ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (!IsMemcopyable(dtype_)) return GatherObjects(variable.get(), indices, out);
    absl::Span<const Index> index = indices.flat<Index>();
    char* data = out->mutable_bytes().data();
    const size_t row_bytes =
        static_cast<size_t>(table->NumElements(1, table->rank())) * DTypeSize(dtype_);
    constexpr size_t kRowsPerTask = 2048;
    if (index.size() < 2 * kRowsPerTask || ctx->num_threads() == 1) {
      return variable->GatherRows<Index>(index, data);
    }
    // Indices are checked as one list first, so that a message counts them from the beginning.
    for (size_t i = 0; i < index.size(); ++i) {
      if (index[i] < 0 || index[i] >= table->dim(0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("indices[", i, "] = ", index[i], " is not in [0, ", table->dim(0), ")"));
      }
    }
    const int64_t tasks = static_cast<int64_t>((index.size() + kRowsPerTask - 1) / kRowsPerTask);
    Mutex mu;
    Status first;
    ctx->ParallelFor(tasks, 100.0 * kRowsPerTask, [&](int64_t begin, int64_t end) {
      const size_t from = static_cast<size_t>(begin) * kRowsPerTask;
      const size_t to = std::min(index.size(), static_cast<size_t>(end) * kRowsPerTask);
      const Status status =
          variable->GatherRows<Index>(index.subspan(from, to - from), data + from * row_bytes);
      if (!status.ok()) {
        MutexLock lock(&mu);
        first.Update(status);
      }
    });
    return first;
  }

 private:
  // Strings have no bytes to copy: a snapshot is read and its elements are copied.
  static Status GatherObjects(VariableStorage* variable, const Tensor& indices, Tensor* out) {
    ASSIGN_OR_RETURN(const Tensor table, variable->Read());
    if (table.dtype() != DT_STRING) {
      return absl::UnimplementedError(
          absl::StrCat("rows of dtype ", DTypeName(table.dtype()), " cannot be gathered"));
    }
    const size_t row = static_cast<size_t>(table.shape().NumElements(1, table.rank()));
    absl::Span<const Index> index = indices.flat<Index>();
    for (size_t i = 0; i < index.size(); ++i) {
      if (index[i] < 0 || index[i] >= table.dim(0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("indices[", i, "] = ", index[i], " is not in [0, ", table.dim(0), ")"));
      }
      for (size_t j = 0; j < row; ++j) {
        out->mutable_flat<std::string>()[i * row + j] =
            table.flat<std::string>()[static_cast<size_t>(index[i]) * row + j];
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

// --- Scatter
// ---------------------------------------------------------------------------------------

Status ResourceScatterShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  RETURN_IF_ERROR(CheckHandleDtype(handle, dtype));
  return CheckUpdates(c->input(2), c->input(1), handle.shape);
}

template <typename T, typename Index, template <typename> class Rule>
Status ScatterRows(VariableStorage* variable, const Tensor& indices, const Tensor& updates,
                   bool exclusive) {
  ASSIGN_OR_RETURN(const Shape table, variable->shape());
  RETURN_IF_ERROR(CheckUpdates(updates.shape(), indices.shape(), table));
  const bool is_scalar = updates.shape().is_scalar();
  const int64_t row = table.NumElements(1, table.rank());
  const T* from = updates.flat<T>().data();
  VariableStorage* const variables[] = {variable};
  return VariableStorage::UpdateRows<Index>(
      variables, indices.flat<Index>(), exclusive, [=](int64_t i, absl::Span<char* const> rows) {
        T* to = reinterpret_cast<T*>(rows[0]);
        for (int64_t j = 0; j < row; ++j) {
          to[j] = Rule<T>::Apply(to[j], is_scalar ? *from : from[i * row + j]);
        }
      });
}

template <typename T, typename Index, template <typename> class Rule>
class ResourceScatterKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    RETURN_IF_ERROR(CheckStorageDtype(*variable, DTypeOf<T>));
    return ScatterRows<T, Index, Rule>(variable.get(), ctx->input(1), ctx->input(2),
                                       /*exclusive=*/false);
  }
};

constexpr const char* kNumberTypes =
    "{float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, uint16, complex128, half, uint32, uint64}";

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

// --- Reference variables
// ---------------------------------------------------------------------------

Status VariableRefShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// In graphs of the oldest form an empty shape means that it is not known.
Status VariableV1Shape(InferenceContext* c) {
  ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, shape.has_rank() && shape.rank() == 0 ? PartialShape() : shape);
  return absl::OkStatus();
}

// As VarHandleKernel: found once, handed out without a lock.
class VariableRefKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return maker_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    const std::shared_ptr<VariableStorage>* storage = current_.load(std::memory_order_acquire);
    if (storage == nullptr || (*storage)->abandoned()) {
      MutexLock lock(&mu_);
      ASSIGN_OR_RETURN(auto found, maker_.FindOrMake(ctx->resources()));
      all_.push_back(std::move(found));
      storage = &all_.back();
      current_.store(storage, std::memory_order_release);
    }
    ctx->set_output_ref(0, *storage);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  VariableMaker maker_;
  mutable std::atomic<const std::shared_ptr<VariableStorage>*> current_{
      nullptr};  // release/acquire
  mutable Mutex mu_;
  mutable std::deque<std::shared_ptr<VariableStorage>> all_ ABSL_GUARDED_BY(mu_);
};

OpSpec VariableRefSpec(const char* name, ShapeFn shape) {
  return OpSpec(name)
      .Output("ref: Ref(dtype)")
      .Attr("shape: shape")
      .Attr("dtype: type")
      .Attr("container: string = ''")
      .Attr("shared_name: string = ''")
      .Stateful()
      .Shape(std::move(shape))
      .NotDifferentiable();
}
const OpRegistration kVariableV2 = VariableRefSpec("VariableV2", VariableRefShape);
const KernelRegistration kVariableV2Kernel = KernelFor<VariableRefKernel>("VariableV2");
const OpRegistration kVariableV1 = VariableRefSpec("Variable", VariableV1Shape);
const KernelRegistration kVariableV1Kernel = KernelFor<VariableRefKernel>("Variable");

class IsVariableInitializedKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    return BoolScalar(ctx, variable->IsInitialized());
  }
  bool may_be_expensive() const override { return false; }
};
const OpRegistration kIsVariableInitialized = OpSpec("IsVariableInitialized")
                                                  .Input("ref: Ref(dtype)")
                                                  .Output("is_initialized: bool")
                                                  .Attr("dtype: type")
                                                  .AllowsUninitializedInput()
                                                  .Shape(ScalarShape)
                                                  .NotDifferentiable();
const KernelRegistration kIsVariableInitializedKernel =
    KernelFor<IsVariableInitializedKernel>("IsVariableInitialized");

// The only place that knows which value shapes Assign takes.
Status CheckAssign(const PartialShape& variable, const PartialShape& value, bool validate_shape) {
  if (validate_shape && !variable.IsCompatibleWith(value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Assign requires shapes of both tensors to match. lhs shape= ", variable.ToString(),
        " rhs shape= ", value.ToString()));
  }
  return absl::OkStatus();
}

Status AssignShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const bool validate_shape, c->GetAttr<bool>("validate_shape"));
  RETURN_IF_ERROR(CheckAssign(c->input(0), c->input(1), validate_shape));
  if (!validate_shape) {
    c->set_output(0, c->input(1));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(PartialShape merged, c->input(0).MergeWith(c->input(1)));
  c->set_output(0, std::move(merged));
  return absl::OkStatus();
}

class AssignKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(validate_shape_, c->GetAttr<bool>("validate_shape"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    if (validate_shape_) {
      const StatusOr<Shape> shape = variable->shape();
      RETURN_IF_ERROR(CheckAssign(shape.ok() ? PartialShape(*shape) : variable->declared_shape(),
                                  ctx->input(1).shape(), true));
    }
    RETURN_IF_ERROR(variable->Assign(ctx->TakeInput(1), /*validate_shape=*/false));
    ctx->set_output_ref(0, std::move(variable));
    return absl::OkStatus();
  }

 private:
  bool validate_shape_ = true;
};
const OpRegistration kAssign = OpSpec("Assign")
                                   .Input("ref: Ref(T)")
                                   .Input("value: T")
                                   .Output("output_ref: Ref(T)")
                                   .Attr("T: type")
                                   .Attr("validate_shape: bool = true")
                                   .Attr("use_locking: bool = true")
                                   .AllowsUninitializedInput()
                                   .Shape(AssignShape)
                                   .NotDifferentiable();
const KernelRegistration kAssignKernel = KernelFor<AssignKernel>("Assign");

Status AssignUpdateShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(PartialShape merged, c->input(0).MergeWith(c->input(1)));
  c->set_output(0, std::move(merged));
  return absl::OkStatus();
}

template <typename T, template <typename> class Rule>
class AssignUpdateKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    RETURN_IF_ERROR((UpdateDense<T, Rule>(ctx, variable.get(), ctx->input(1))));
    ctx->set_output_ref(0, std::move(variable));
    return absl::OkStatus();
  }
};

OpSpec RefUpdateSpec(const char* name) {
  return OpSpec(name)
      .Input("ref: Ref(T)")
      .Input("value: T")
      .Output("output_ref: Ref(T)")
      .Attr(absl::StrCat("T: ", kNumberTypes))
      .Attr("use_locking: bool = false")
      .Shape(AssignUpdateShape)
      .NotDifferentiable();
}
const OpRegistration kAssignAdd = RefUpdateSpec("AssignAdd");
const OpRegistration kAssignSub = RefUpdateSpec("AssignSub");

Status ScatterShape(InferenceContext* c) {
  RETURN_IF_ERROR(CheckUpdates(c->input(2), c->input(1), c->input(0)));
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

template <typename T, typename Index, template <typename> class Rule>
class ScatterKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(exclusive_, c->GetAttr<bool>("use_locking"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    RETURN_IF_ERROR(
        (ScatterRows<T, Index, Rule>(variable.get(), ctx->input(1), ctx->input(2), exclusive_)));
    ctx->set_output_ref(0, std::move(variable));
    return absl::OkStatus();
  }

 private:
  bool exclusive_ = false;
};

OpSpec ScatterSpec(const char* name, const std::string& dtype, const char* use_locking) {
  return OpSpec(name)
      .Input("ref: Ref(T)")
      .Input("indices: Tindices")
      .Input("updates: T")
      .Output("output_ref: Ref(T)")
      .Attr(absl::StrCat("T: ", dtype))
      .Attr("Tindices: {int32, int64}")
      .Attr(absl::StrCat("use_locking: bool = ", use_locking))
      .Shape(ScatterShape)
      .NotDifferentiable();
}
const OpRegistration kScatterAdd = ScatterSpec("ScatterAdd", kNumberTypes, "false");
const OpRegistration kScatterSub = ScatterSpec("ScatterSub", kNumberTypes, "false");
const OpRegistration kScatterUpdate = ScatterSpec("ScatterUpdate", "type", "true");

// --- Kernels by element type
// -----------------------------------------------------------------------

template <typename T, template <typename> class Rule>
struct ScatterKernels {
  ScatterKernels(const char* resource_op, const char* ref_op)
      : resource32(KernelFor<ResourceScatterKernel<T, int32_t, Rule>>(resource_op)
                       .template Type<T>("dtype")
                       .template Type<int32_t>("Tindices")),
        resource64(KernelFor<ResourceScatterKernel<T, int64_t, Rule>>(resource_op)
                       .template Type<T>("dtype")
                       .template Type<int64_t>("Tindices")),
        ref32(KernelFor<ScatterKernel<T, int32_t, Rule>>(ref_op)
                  .template Type<T>("T")
                  .template Type<int32_t>("Tindices")),
        ref64(KernelFor<ScatterKernel<T, int64_t, Rule>>(ref_op)
                  .template Type<T>("T")
                  .template Type<int64_t>("Tindices")) {}
  KernelRegistration resource32, resource64, ref32, ref64;
};

template <typename T, template <typename> class Rule>
struct AssignUpdateKernels {
  AssignUpdateKernels(const char* resource_op, const char* ref_op)
      : resource(
            KernelFor<AssignUpdateVariableKernel<T, Rule>>(resource_op).template Type<T>("dtype")),
        ref(KernelFor<AssignUpdateKernel<T, Rule>>(ref_op).template Type<T>("T")) {}
  KernelRegistration resource, ref;
};

template <typename T>
struct UpdateKernels {
  AssignUpdateKernels<T, AddRule> add{"AssignAddVariableOp", "AssignAdd"};
  AssignUpdateKernels<T, SubRule> sub{"AssignSubVariableOp", "AssignSub"};
  ScatterKernels<T, AddRule> scatter_add{"ResourceScatterAdd", "ScatterAdd"};
  ScatterKernels<T, SubRule> scatter_sub{"ResourceScatterSub", "ScatterSub"};
  ScatterKernels<T, UpdateRule> scatter_update{"ResourceScatterUpdate", "ScatterUpdate"};
};

const UpdateKernels<float> kFloatUpdates;
const UpdateKernels<double> kDoubleUpdates;
const UpdateKernels<int32_t> kInt32Updates;
const UpdateKernels<int64_t> kInt64Updates;
const UpdateKernels<Half> kHalfUpdates;
const UpdateKernels<Bfloat16> kBfloat16Updates;
const UpdateKernels<std::complex<float>> kComplex64Updates;
const ScatterKernels<bool, UpdateRule> kBoolUpdates{"ResourceScatterUpdate", "ScatterUpdate"};

}  // namespace
}  // namespace millrace
