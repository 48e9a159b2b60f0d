// SPDX-License-Identifier: Apache-2.0
#include "ops/control/tensor_array.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/gradient.h"
#include "graph/shape_inference.h"
#include "ops/array/identity.h"
#include "ops/kernels/step_objects.h"
#include "ops/kernels/tensor_array.h"
#include "ops/rules/elements.h"
#include "ops/rules/rows.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

constexpr char kArrays[] = "_tensor_arrays";
constexpr char kGradients[] = "_tensor_array_grads";
constexpr int64_t kMaxElements = std::numeric_limits<int32_t>::max();

// The three forms of each op.
struct Form {
  const char* suffix;
  const char* handle;  // its type
  int since;           // deprecated, 0: not
};
constexpr Form kV1{"", "Ref(string)", 16}, kV2{"V2", "string", 26}, kV3{"V3", "resource", 0};

// The op of this form: "TensorArrayWriteV2". `arguments` and `attrs` as in the spec language, with
// the handle as first argument.
OpSpec FormSpec(const Form& form, absl::string_view op, absl::string_view arguments,
                absl::string_view attrs) {
  OpSpec spec(absl::StrCat(op, form.suffix), absl::StrCat("handle: ", form.handle, arguments),
              attrs);
  if (form.since == 0) spec.Stateful();
  return spec;
}

// --- Handles -------------------------------------------------------------------------------------

// The two strings behind input 0 of the old forms.
StatusOr<Tensor> HandleNames(const KernelContext& ctx) {
  Tensor names = ctx.input(0);
  if (names.is_reference()) {
    MR_ASSIGN_OR_RETURN(const auto variable, ctx.ref_input(0));
    MR_ASSIGN_OR_RETURN(names, variable->Read());
  }
  if (names.dtype() == DT_STRING && names.num_elements() == 2) return names;
  return InvalidArgument("Tensor array handle must be 2-element vector, but had shape: ",
                         names.shape());
}

StatusOr<std::shared_ptr<TensorArrayStorage>> ArrayInput(const KernelContext& ctx) {
  if (ctx.input_dtype(0) == DT_RESOURCE) return StepObjectInput<TensorArrayStorage>(ctx, 0);
  MR_ASSIGN_OR_RETURN(const Tensor names, HandleNames(ctx));
  MR_ASSIGN_OR_RETURN(const auto objects, StepObjects::Of(ctx));
  const absl::Span<const std::string> parts = names.raw<std::string>();
  auto found = std::dynamic_pointer_cast<TensorArrayStorage>(objects->Find(parts[1]));
  if (found != nullptr) return found;
  return absl::NotFoundError(absl::StrCat("Resource ", parts[0], "/", parts[1], "/",
                                          TensorArrayStorage::kTypeName, " does not exist."));
}

// The array at input 0, whose elements must have this dtype.
StatusOr<std::shared_ptr<TensorArrayStorage>> ArrayInputOf(const KernelContext& ctx, DType dtype,
                                                           absl::string_view but_op) {
  MR_ASSIGN_OR_RETURN(auto array, ArrayInput(ctx));
  if (array->dtype() == dtype) return array;
  return InvalidArgument("TensorArray dtype is ", array->dtype(), " but Op ", but_op, " dtype ",
                         dtype, ".");
}

// Outputs 0, a handle of the array in the form that its type says, and 1, the flow where there is
// one.
Status OutputArray(KernelContext* ctx, DType handle_type, absl::string_view container,
                   const std::shared_ptr<TensorArrayStorage>& array, bool is_new) {
  if (is_new) {
    MR_ASSIGN_OR_RETURN(const auto objects, StepObjects::Of(*ctx));
    objects->Add(array->name(), array,
                 handle_type == DT_RESOURCE ? KeptBy::kHandles : KeptBy::kStep);
  }
  if (handle_type == DT_RESOURCE) {
    ctx->set_output(0, StepObjectHandle(*ctx, container, array->name(), array));
  } else {
    const Tensor names = Tensor::Vector<std::string>({std::string(container), array->name()});
    if (IsRef(handle_type)) {
      auto variable =
          std::make_shared<VariableStorage>(array->name(), DT_STRING, PartialShape({2}));
      MR_RETURN_IF_ERROR(variable->Assign(names, /*validate_shape=*/true));
      ctx->set_output_ref(0, std::move(variable));
    } else {
      ctx->set_output(0, names);
    }
  }
  if (ctx->num_outputs() > 1) ctx->set_output(1, Tensor::Scalar(0.0f));
  return absl::OkStatus();
}

Status CheckHandle(InferenceContext* c) {
  // A resource is a scalar; the older forms are two names. Unknown handles are of either kind.
  if (!c->input(0).has_rank()) return absl::OkStatus();
  if (c->input(0).rank() == 0) return absl::OkStatus();
  if (c->input(0).IsCompatibleWith(PartialShape({2}))) return absl::OkStatus();
  return InvalidArgument("handle must be a scalar or a vector of two strings, got shape ",
                         c->input(0));
}

// --- Creation ------------------------------------------------------------------------------------

Status CreationShape(InferenceContext* c, bool is_resource) {
  c->set_output(0, is_resource ? PartialShape::Scalar() : PartialShape({2}));
  if (c->num_outputs() > 1) c->set_output(1, Shape());
  return absl::OkStatus();
}

Status ArrayShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const std::optional<int64_t> size, c->IntScalar(0, "size"));
  if (size.value_or(0) < 0) return InvalidArgument("Size should be >= 0, got ", *size, ".");
  const bool is_resource = c->num_outputs() > 1;
  MR_RETURN_IF_ERROR(CreationShape(c, is_resource));
  if (!is_resource) return absl::OkStatus();
  HandleData data;
  MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "dtype", &data.dtype, "element_shape", &data.shape));
  c->set_output_handle(0, std::move(data));
  return absl::OkStatus();
}

class ArrayKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    handle_type_ = c->output_type(0);
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "dtype", &spec_.dtype, "element_shape",
                                 &spec_.element_shape, "dynamic_size", &spec_.dynamic_size,
                                 "clear_after_read", &spec_.clear_after_read, "tensor_array_name",
                                 &spec_.name));
    if (handle_type_ == DT_RESOURCE) {
      MR_RETURN_IF_ERROR(
          ReadAttrs(c->attrs(), "identical_element_shapes", &spec_.identical_element_shapes));
    }
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const int32_t size, ctx->ScalarInput<int32_t>(0, "size"));
    if (size < 0) return InvalidArgument("Size should be >= 0, got ", size, ".");
    TensorArraySpec spec = spec_;
    spec.size = size;
    spec.name = StepObjects::UniqueName(spec.name.empty() ? ctx->node_name() : spec.name);
    return OutputArray(ctx, handle_type_, kArrays,
                       std::make_shared<TensorArrayStorage>(std::move(spec)), /*is_new=*/true);
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType handle_type_ = DT_INVALID;
  TensorArraySpec spec_;
};

OpSpec ArraySpec(const Form& form) {
  const bool is_v3 = form.since == 0;
  const std::string handle = absl::StrCat("size: int32 -> handle: ", form.handle);
  // The oldest form has its attrs in another order.
  const char* const attrs =
      is_v3 ? "dtype: type; element_shape: shape = {unknown_rank: true}; dynamic_size: bool = "
              "false; clear_after_read: bool = true; identical_element_shapes: bool = false; "
              "tensor_array_name: string = ''"
      : form.since == 16
          ? "dtype: type; dynamic_size: bool = false; clear_after_read: bool = true; "
            "tensor_array_name: string = ''; element_shape: shape = {unknown_rank: true}"
          : "dtype: type; element_shape: shape = {unknown_rank: true}; dynamic_size: bool = false; "
            "clear_after_read: bool = true; tensor_array_name: string = ''";
  OpSpec spec(absl::StrCat("TensorArray", form.suffix), is_v3 ? handle + ", flow: float" : handle,
              attrs);
  spec.Stateful().Shape(ArrayShape).NotDifferentiable().With(KernelFor<ArrayKernel>());
  if (!is_v3) spec.Deprecated(form.since, "Use TensorArrayV3");
  return spec;
}
const OpRegistration kArraysOfAllForms[] = {ArraySpec(kV1), ArraySpec(kV2), ArraySpec(kV3)};

// --- The array of gradients ----------------------------------------------------------------------

Status GradientArrayShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckHandle(c));
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "flow_in").status());
  const bool is_resource = c->num_outputs() > 1;
  MR_RETURN_IF_ERROR(CreationShape(c, is_resource));
  PartialShape prepended = PartialShape::Scalar();
  if (c->num_inputs() > 2) {
    MR_ASSIGN_OR_RETURN(prepended, c->input_as_shape(2));
  }
  if (!is_resource || !c->input_handle(0)) return absl::OkStatus();
  HandleData data = *c->input_handle(0);
  if (!prepended.has_rank() || !data.shape.has_rank()) {
    data.shape = PartialShape();
  } else {
    std::vector<int64_t> dims(prepended.dims().begin(), prepended.dims().end());
    dims.insert(dims.end(), data.shape.dims().begin(), data.shape.dims().end());
    MR_ASSIGN_OR_RETURN(data.shape, PartialShape::Make(dims));
  }
  c->set_output_handle(0, std::move(data));
  return absl::OkStatus();
}

class GradientArrayKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    handle_type_ = c->output_type(0);
    return ReadAttrs(c->attrs(), "source", &source_);
  }
  Status Compute(KernelContext* ctx) const override {
    if (ctx->input_dtype(0) != DT_RESOURCE) {
      MR_ASSIGN_OR_RETURN(const Tensor names, HandleNames(*ctx));
      if (const std::string& container = names.raw<std::string>()[0]; container != kArrays) {
        return InvalidArgument("Input container should be '", kArrays, "',  but received '",
                               container, "'");
      }
    }
    MR_ASSIGN_OR_RETURN(const auto array, ArrayInput(*ctx));
    Shape prepended;
    if (ctx->num_inputs() > 2) {
      if (ctx->input(2).rank() != 1) {
        return InvalidArgument("shape_to_prepend must be a vector, got shape ",
                               ctx->input(2).shape());
      }
      MR_ASSIGN_OR_RETURN(prepended, Shape::Make(ctx->input(2).ints().ToVector()));
    }
    MR_ASSIGN_OR_RETURN(const auto gradient, array->Gradient(source_, prepended));
    return OutputArray(ctx, handle_type_, kGradients, gradient.array, gradient.is_new);
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType handle_type_ = DT_INVALID;
  std::string source_;
};

OpSpec GradientArraySpec(const char* op, const char* arguments) {
  return OpSpec(op, arguments, "source: string")
      .Stateful()
      .Shape(GradientArrayShape)
      .NotDifferentiable()
      .With(KernelFor<GradientArrayKernel>());
}
const OpRegistration kGradientArrays[] = {
    GradientArraySpec("TensorArrayGrad",
                      "handle: string, flow_in: float -> grad_handle: Ref(string)")
        .Deprecated(16, "Use TensorArrayGradV3"),
    GradientArraySpec("TensorArrayGradV2", "handle: string, flow_in: float -> grad_handle: string")
        .Deprecated(26, "Use TensorArrayGradV3"),
    GradientArraySpec("TensorArrayGradV3",
                      "handle: resource, flow_in: float -> grad_handle: resource, flow_out: float"),
    GradientArraySpec("TensorArrayGradWithShape",
                      "handle: resource, flow_in: float, shape_to_prepend: int32 -> "
                      "grad_handle: resource, flow_out: float")};

// In a gradient function: the array of gradients of the array at input 0, there when `flow` is. Ops
// of the form that the function's op has.
struct GradientArray {
  std::string suffix;  // of the form
  Output handle, flow;
};
GradientArray GradientArrayOf(GradientContext* c, const Output& flow) {
  const Scope s = c->scope().ColocatedWith(c->input(0).op());
  GradientArray result;
  const DType handle_type = c->input(0).dtype();
  result.suffix = handle_type == DT_RESOURCE ? "V3" : IsRef(handle_type) ? "" : "V2";
  result.handle = BuildOp(s, absl::StrCat("TensorArrayGrad", result.suffix), {c->input(0), flow},
                          "source", c->source());
  // What uses the flow comes after the array was made.
  result.flow = Identity(
      c->scope().WithName("gradient_flow").WithControlDependencies({result.handle.op()}), flow);
  return result;
}
BuiltNode OnGradients(GradientContext* c, const GradientArray& array, absl::string_view op,
                      std::initializer_list<BuilderInput> inputs) {
  return BuildOp(c->scope(), absl::StrCat("TensorArray", op, array.suffix), inputs);
}
BuiltNode FromGradients(GradientContext* c, const GradientArray& array, absl::string_view op,
                        std::initializer_list<BuilderInput> inputs, DType dtype) {
  return BuildOp(c->scope(), absl::StrCat("TensorArray", op, array.suffix), inputs, "dtype", dtype);
}

// --- Shapes of the other ops ---------------------------------------------------------------------

// What is known of an element of the array at input 0.
PartialShape KnownElement(InferenceContext* c) {
  return c->input_handle(0) ? c->input_handle(0)->shape : PartialShape();
}

// Checks what all ops have: the handle, scalars by index and name.
Status CheckArguments(InferenceContext* c,
                      std::initializer_list<std::pair<int, const char*>> scalars) {
  MR_RETURN_IF_ERROR(CheckHandle(c));
  for (const auto& [i, name] : scalars) {
    MR_RETURN_IF_ERROR(c->InputWithRank(i, 0, name).status());
  }
  return absl::OkStatus();
}

// --- Write, Read ---------------------------------------------------------------------------------

Status WriteShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckArguments(c, {{1, "index"}, {3, "flow_in"}}));
  const PartialShape element = KnownElement(c);
  if (!element.IsCompatibleWith(c->input(2))) {
    return InvalidArgument("value must have the array's element shape ", element, ", got shape ",
                           c->input(2));
  }
  c->set_output(0, Shape());
  return absl::OkStatus();
}

class WriteKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const int32_t index, ctx->ScalarInput<int32_t>(1, "index"));
    MR_ASSIGN_OR_RETURN(const auto array,
                        ArrayInputOf(*ctx, ctx->input_dtype(2), "is trying to write"));
    MR_RETURN_IF_ERROR(array->Write(*ctx, index, ctx->TakeInput(2)));
    ctx->set_output(0, ctx->TakeInput(3));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

// What came back along the flow passes on; the value's gradient is what the readers have written.
Status WriteGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Output flow = c->dense_grad();
  c->set_input_grad(3, flow);
  const DType dtype = c->input(2).dtype();
  if (!IsTrainable(dtype)) return absl::OkStatus();
  const GradientArray array = GradientArrayOf(c, flow);
  c->set_input_grad(
      2, FromGradients(c, array, "Read", {array.handle, c->input(1), array.flow}, dtype));
  return absl::OkStatus();
}

OpSpec WriteSpec(const Form& form) {
  OpSpec spec = FormSpec(form, "TensorArrayWrite",
                         ", index: int32, value: T, flow_in: float -> flow_out: float", "T: type");
  if (form.since != 0) spec.Deprecated(form.since, "Use TensorArrayWriteV3");
  return spec.Shape(WriteShape).Gradient(WriteGradient).With(KernelFor<WriteKernel>());
}
const OpRegistration kWrites[] = {WriteSpec(kV1), WriteSpec(kV2), WriteSpec(kV3)};

Status ReadShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckArguments(c, {{1, "index"}, {2, "flow_in"}}));
  c->set_output(0, KnownElement(c));
  return absl::OkStatus();
}

class ReadKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return ReadAttrs(c->attrs(), "dtype", &dtype_); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const int32_t index, ctx->ScalarInput<int32_t>(1, "index"));
    MR_ASSIGN_OR_RETURN(const auto array, ArrayInputOf(*ctx, dtype_, "requested"));
    MR_ASSIGN_OR_RETURN(Tensor value, array->Read(ctx, index));
    ctx->set_output(0, std::move(value));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType dtype_ = DT_INVALID;
};

Status ReadGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const GradientArray array = GradientArrayOf(c, c->input(2));
  c->set_input_grad(
      2, OnGradients(c, array, "Write", {array.handle, c->input(1), c->dense_grad(), array.flow}));
  return absl::OkStatus();
}

OpSpec ReadSpec(const Form& form) {
  OpSpec spec = FormSpec(form, "TensorArrayRead", ", index: int32, flow_in: float -> value: dtype",
                         "dtype: type");
  if (form.since != 0) spec.Deprecated(form.since, "Use TensorArrayReadV3");
  return spec.Shape(ReadShape).Gradient(ReadGradient).With(KernelFor<ReadKernel>());
}
const OpRegistration kReads[] = {ReadSpec(kV1), ReadSpec(kV2), ReadSpec(kV3)};

// --- Gather, Pack --------------------------------------------------------------------------------

// Output 0, allocated, is the elements of `values` one behind the other.
Status CopyJoined(KernelContext* ctx, const std::vector<Tensor>& values, Tensor* out) {
  if (out->num_elements() == 0) return absl::OkStatus();
  std::vector<int64_t> begins;
  int64_t begin = 0;
  for (const Tensor& value : values) {
    begins.push_back(begin);
    begin += value.num_elements();
  }
  return VisitElements(out->dtype(), [&]<typename E>() {
    E* const to = MutableElementsOf<E>(out);
    const int64_t n = static_cast<int64_t>(values.size());
    const double cost_ns =
        10 + 0.1 * static_cast<double>(out->num_elements() / n) * static_cast<double>(sizeof(E));
    ctx->ParallelFor(n, cost_ns, [&](int64_t first, int64_t end) {
      for (size_t i = static_cast<size_t>(first); i < static_cast<size_t>(end); ++i) {
        const E* const from = ElementsOf<E>(values[i]);
        std::copy(from, from + values[i].num_elements(), to + begins[i]);
      }
    });
  });
}

Status GatherShape(InferenceContext* c) {
  // Pack has no indices.
  const bool is_gather = c->num_inputs() == 3;
  MR_RETURN_IF_ERROR(CheckArguments(c, {{is_gather ? 2 : 1, "flow_in"}}));
  MR_ASSIGN_OR_RETURN(PartialShape element, c->GetAttr<PartialShape>("element_shape"));
  MR_ASSIGN_OR_RETURN(element, element.MergeWith(KnownElement(c)));
  int64_t n = -1;
  if (is_gather) {
    MR_ASSIGN_OR_RETURN(const PartialShape indices, c->InputWithRank(1, 1, "indices"));
    n = indices.dim(0);
  }
  c->set_output(0, ShapeOfRows(n, element));
  return absl::OkStatus();
}

template <bool kIsPack>
class GatherKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "dtype", &dtype_, "element_shape", &element_shape_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto array, ArrayInputOf(*ctx, dtype_, "requested"));
    MR_RETURN_IF_ERROR(array->MergeElementShape(element_shape_));
    std::vector<Tensor> values;
    if (kIsPack) {
      MR_ASSIGN_OR_RETURN(const int64_t n, array->PackedSize());
      MR_ASSIGN_OR_RETURN(values, array->ReadFirst(ctx, n));
    } else {
      const Tensor& indices = ctx->input(1);
      if (indices.rank() != 1) {
        return InvalidArgument("Expected indices to be a vector, but received shape: ",
                               indices.shape());
      }
      MR_ASSIGN_OR_RETURN(values, array->ReadMany(ctx, indices.raw<int32_t>()));
    }
    Shape element;
    if (values.empty()) {
      const StatusOr<Shape> known = element_shape_.ToShape();
      if (!known.ok()) {
        return Unimplemented("TensorArray has size zero, but element shape ", element_shape_,
                             " is not fully defined. Currently only static shapes are supported "
                             "when packing zero-size TensorArrays.");
      }
      element = *known;
    } else {
      element = values[0].shape();
      for (size_t i = 1; i < values.size(); ++i) {
        if (values[i].shape() == element) continue;
        return InvalidArgument("TensorArray has inconsistent shapes.  Index 0 has shape: ", element,
                               " but index ", i, " has shape: ", values[i].shape());
      }
    }
    MR_ASSIGN_OR_RETURN(const Shape shape,
                        ShapeOfRows(static_cast<int64_t>(values.size()), element));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    return CopyJoined(ctx, values, out);
  }

 private:
  DType dtype_ = DT_INVALID;
  PartialShape element_shape_;
};

Status GatherGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const bool is_gather = c->num_inputs() == 3;
  const int flow = is_gather ? 2 : 1;
  const GradientArray array = GradientArrayOf(c, c->input(flow));
  if (is_gather) {
    c->set_input_grad(flow, OnGradients(c, array, "Scatter",
                                        {array.handle, c->input(1), c->dense_grad(), array.flow}));
  } else {
    c->set_input_grad(flow,
                      OnGradients(c, array, "Unpack", {array.handle, c->dense_grad(), array.flow}));
  }
  return absl::OkStatus();
}

constexpr char kGatherAttrs[] = "dtype: type; element_shape: shape = {unknown_rank: true}";
OpSpec GatherSpec(const Form& form) {
  OpSpec spec = FormSpec(form, "TensorArrayGather",
                         ", indices: int32, flow_in: float -> value: dtype", kGatherAttrs);
  if (form.since != 0) spec.Deprecated(form.since, "Use TensorArrayGatherV3");
  return spec.Shape(GatherShape).Gradient(GatherGradient).With(KernelFor<GatherKernel<false>>());
}
const OpRegistration kGathers[] = {GatherSpec(kV1), GatherSpec(kV2), GatherSpec(kV3)};
const OpRegistration kPack =
    FormSpec(kV1, "TensorArrayPack", ", flow_in: float -> value: dtype", kGatherAttrs)
        .Deprecated(16, "Use TensorArrayGatherV3 with RangeOp")
        .Shape(GatherShape)
        .Gradient(GatherGradient)
        .With(KernelFor<GatherKernel<true>>());

// --- Scatter, Unpack -----------------------------------------------------------------------------

Status ScatterShape(InferenceContext* c) {
  const bool is_scatter = c->num_inputs() == 4;
  const int at = is_scatter ? 2 : 1;  // the value; the flow is behind it
  MR_RETURN_IF_ERROR(CheckArguments(c, {{at + 1, "flow_in"}}));
  MR_ASSIGN_OR_RETURN(const PartialShape value, c->InputWithRankAtLeast(at, 1, "value"));
  if (is_scatter) {
    MR_ASSIGN_OR_RETURN(const PartialShape indices, c->InputWithRank(1, 1, "indices"));
    if (value.has_rank() && !indices.IsCompatibleWith(PartialShape({value.dim(0)}))) {
      return InvalidArgument("Expected len(indices) == values.shape[0], but saw: ", indices.dim(0),
                             " vs. ", value.dim(0));
    }
  }
  const PartialShape element = KnownElement(c);
  if (!ShapeOfRows(-1, element).IsCompatibleWith(value)) {
    return InvalidArgument("value must have rows of the array's element shape ", element,
                           ", got shape ", value);
  }
  c->set_output(0, Shape());
  return absl::OkStatus();
}

template <bool kIsUnpack>
class ScatterKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const int at = kIsUnpack ? 1 : 2;
    const Tensor& value = ctx->input(at);
    MR_ASSIGN_OR_RETURN(const auto array, ArrayInputOf(*ctx, value.dtype(), "is trying to write"));
    if (value.rank() == 0) {
      return InvalidArgument(
          "Input value for unpack must be at least a vector but received shape: ", value.shape());
    }
    const int64_t rows = value.dim(0);
    if (rows >= kMaxElements) return InvalidArgument("tensor dim0 too large to unpack");
    MR_ASSIGN_OR_RETURN(int64_t size, array->Size());
    const auto row = [&value](int64_t i) { return RowOf(value, i); };
    if (kIsUnpack) {
      if (array->has_dynamic_size()) size = std::max(size, rows);
      if (rows != size) {
        return InvalidArgument("Input value must have first dimension equal to the array size (",
                               rows, " vs. ", size, ")");
      }
      MR_RETURN_IF_ERROR(array->Fill(*ctx, rows, row));
    } else {
      const Tensor& indices = ctx->input(1);
      if (indices.rank() != 1) {
        return InvalidArgument("Expected indices to be a vector, but received shape: ",
                               indices.shape());
      }
      if (indices.num_elements() != rows) {
        return InvalidArgument("Expected len(indices) == values.shape[0], but saw: ",
                               indices.num_elements(), " vs. ", rows);
      }
      const absl::Span<const int32_t> to = indices.raw<int32_t>();
      const int64_t last = to.empty() ? -1 : *std::max_element(to.begin(), to.end());
      if (last >= size && !array->has_dynamic_size()) {
        return InvalidArgument("Max scatter index must be < array size (", last, " vs. ", size,
                               ")");
      }
      MR_RETURN_IF_ERROR(array->WriteMany(*ctx, to, row));
    }
    ctx->set_output(0, ctx->TakeInput(at + 1));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

Status ScatterGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const bool is_scatter = c->num_inputs() == 4;
  const int at = is_scatter ? 2 : 1;
  const Output flow = c->dense_grad();
  c->set_input_grad(at + 1, flow);
  const DType dtype = c->input(at).dtype();
  if (!IsTrainable(dtype)) return absl::OkStatus();
  const GradientArray array = GradientArrayOf(c, flow);
  if (is_scatter) {
    c->set_input_grad(
        at, FromGradients(c, array, "Gather", {array.handle, c->input(1), array.flow}, dtype));
  } else {
    c->set_input_grad(at, FromGradients(c, array, "Pack", {array.handle, array.flow}, dtype));
  }
  return absl::OkStatus();
}

OpSpec ScatterSpec(const Form& form) {
  OpSpec spec =
      FormSpec(form, "TensorArrayScatter",
               ", indices: int32, value: T, flow_in: float -> flow_out: float", "T: type");
  if (form.since == 16) spec.Deprecated(19, "Use TensorArrayGradV3");
  if (form.since == 26) spec.Deprecated(26, "Use TensorArrayScatterV3");
  return spec.Shape(ScatterShape).Gradient(ScatterGradient).With(KernelFor<ScatterKernel<false>>());
}
const OpRegistration kScatters[] = {ScatterSpec(kV1), ScatterSpec(kV2), ScatterSpec(kV3)};
const OpRegistration kUnpack =
    FormSpec(kV1, "TensorArrayUnpack", ", value: T, flow_in: float -> flow_out: float", "T: type")
        .Deprecated(20, "Use TensorArrayScatterV3 with RangeOp")
        .Shape(ScatterShape)
        .Gradient(ScatterGradient)
        .With(KernelFor<ScatterKernel<true>>());

// --- Concat --------------------------------------------------------------------------------------

Status ConcatShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckArguments(c, {{1, "flow_in"}}));
  MR_ASSIGN_OR_RETURN(const PartialShape rest, c->GetAttr<PartialShape>("element_shape_except0"));
  c->set_output(0, ShapeOfRows(-1, rest));
  c->set_output(1, PartialShape({-1}));
  return absl::OkStatus();
}

class ConcatKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "dtype", &dtype_, "element_shape_except0", &except0_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto array, ArrayInputOf(*ctx, dtype_, "requested"));
    MR_ASSIGN_OR_RETURN(const int64_t n, array->PackedSize());
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> values, array->ReadFirst(ctx, n));
    std::vector<int64_t> dims = {0};
    if (values.empty()) {
      const StatusOr<Shape> rest = except0_.ToShape();
      if (!rest.ok()) {
        return Unimplemented("TensorArray has size zero, but element_shape_except0 ", except0_,
                             " is not fully defined. Currently only static shapes are supported "
                             "when concatenating zero-size TensorArrays.");
      }
      dims.insert(dims.end(), rest->dims().begin(), rest->dims().end());
    }
    MR_ASSIGN_OR_RETURN(Tensor * lengths, ctx->AllocateOutput(1, Shape::Vector(values.size())));
    Shape first;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].rank() == 0) {
        return InvalidArgument("Concat saw a scalar shape at index ", i,
                               " but requires at least vectors.  Did you mean to call pack?");
      }
      lengths->mutable_raw<int64_t>()[i] = values[i].dim(0);
      dims[0] += values[i].dim(0);
      const Shape rest = values[i].shape().WithoutDim(0);
      if (i == 0) {
        if (!except0_.IsCompatibleWith(rest)) {
          return InvalidArgument("TensorArray was passed element_shape_except0 ", except0_,
                                 " but index 0 has (excepting dimension 0) shape: ", rest,
                                 " which does not match.");
        }
        first = rest;
        dims.insert(dims.end(), rest.dims().begin(), rest.dims().end());
      } else if (rest != first) {
        return InvalidArgument(
            "TensorArray has inconsistent shapes.  Index 0 has (excepting dimension 0) shape: ",
            first, " but index ", i, " has (excepting dimension 0) shape: ", rest);
      }
    }
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    return CopyJoined(ctx, values, out);
  }

 private:
  DType dtype_ = DT_INVALID;
  PartialShape except0_;
};

Status ConcatGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const GradientArray array = GradientArrayOf(c, c->input(1));
  c->set_input_grad(
      1, OnGradients(c, array, "Split", {array.handle, c->dense_grad(), c->output(1), array.flow}));
  return absl::OkStatus();
}

OpSpec ConcatSpec(const Form& form) {
  OpSpec spec =
      FormSpec(form, "TensorArrayConcat", ", flow_in: float -> value: dtype, lengths: int64",
               "dtype: type; element_shape_except0: shape = {unknown_rank: true}");
  if (form.since == 16) spec.Deprecated(16, "Use TensorArrayGradV3");
  return spec.Shape(ConcatShape).Gradient(ConcatGradient).With(KernelFor<ConcatKernel>());
}
const OpRegistration kConcats[] = {ConcatSpec(kV1), ConcatSpec(kV2), ConcatSpec(kV3)};

// --- Split ---------------------------------------------------------------------------------------

Status SplitShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckArguments(c, {{3, "flow_in"}}));
  MR_RETURN_IF_ERROR(c->InputWithRankAtLeast(1, 1, "value").status());
  MR_RETURN_IF_ERROR(c->InputWithRank(2, 1, "lengths").status());
  c->set_output(0, Shape());
  return absl::OkStatus();
}

class SplitKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& value = ctx->input(1);
    const Tensor& lengths = ctx->input(2);
    MR_ASSIGN_OR_RETURN(const auto array, ArrayInputOf(*ctx, value.dtype(), "is trying to write"));
    if (lengths.rank() != 1) {
      return InvalidArgument("Expected lengths to be a vector, received shape: ", lengths.shape());
    }
    if (value.rank() == 0) {
      return InvalidArgument("Expected value to be at least a vector, but received shape: ",
                             value.shape());
    }
    const int64_t n = lengths.num_elements();
    if (n >= kMaxElements) {
      return InvalidArgument("Expected lengths to have < max int32 entries");
    }
    std::vector<int64_t> ends;
    int64_t total = 0;
    for (const int64_t length : lengths.raw<int64_t>()) {
      if (length < 0 || length > value.dim(0) - total) {
        return InvalidArgument(
            "Expected sum of lengths to be equal to values.shape[0], but lengths[", ends.size(),
            "] is ", length, " behind ", total, " rows and value's shape is: ", value.shape());
      }
      total += length;
      ends.push_back(total);
    }
    if (total != value.dim(0)) {
      return InvalidArgument(
          "Expected sum of lengths to be equal to values.shape[0], but sum of lengths is ", total,
          " and value's shape is: ", value.shape());
    }
    MR_ASSIGN_OR_RETURN(int64_t size, array->Size());
    if (array->has_dynamic_size()) size = std::max(size, n);
    if (size != n) {
      return InvalidArgument("TensorArray's size is not equal to the size of lengths (", size,
                             " vs. ", n,
                             "), and the TensorArray is not marked as dynamically resizeable");
    }
    MR_RETURN_IF_ERROR(array->Fill(*ctx, n, [&](int64_t i) -> StatusOr<Tensor> {
      const size_t at = static_cast<size_t>(i);
      return value.Rows(at == 0 ? 0 : ends[at - 1], ends[at]);
    }));
    ctx->set_output(0, ctx->TakeInput(3));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

Status SplitGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Output flow = c->dense_grad();
  c->set_input_grad(3, flow);
  const DType dtype = c->input(1).dtype();
  if (!IsTrainable(dtype)) return absl::OkStatus();
  const GradientArray array = GradientArrayOf(c, flow);
  c->set_input_grad(1, FromGradients(c, array, "Concat", {array.handle, array.flow}, dtype));
  return absl::OkStatus();
}

OpSpec SplitSpec(const Form& form) {
  OpSpec spec =
      FormSpec(form, "TensorArraySplit",
               ", value: T, lengths: int64, flow_in: float -> flow_out: float", "T: type");
  if (form.since != 0) spec.Deprecated(form.since, "Use TensorArraySplitV3");
  return spec.Shape(SplitShape).Gradient(SplitGradient).With(KernelFor<SplitKernel>());
}
const OpRegistration kSplits[] = {SplitSpec(kV1), SplitSpec(kV2), SplitSpec(kV3)};

// --- Size, Close ---------------------------------------------------------------------------------

Status SizeShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckArguments(c, {{1, "flow_in"}}));
  c->set_output(0, Shape());
  return absl::OkStatus();
}

class SizeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto array, ArrayInput(*ctx));
    MR_ASSIGN_OR_RETURN(const int64_t size, array->Size());
    ctx->set_output(0, Tensor::Scalar(static_cast<int32_t>(size)));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

OpSpec SizeSpec(const Form& form) {
  OpSpec spec = FormSpec(form, "TensorArraySize", ", flow_in: float -> size: int32", "");
  if (form.since != 0) spec.Deprecated(form.since, "Use TensorArraySizeV3");
  return spec.Shape(SizeShape).NotDifferentiable().With(KernelFor<SizeKernel>());
}
const OpRegistration kSizes[] = {SizeSpec(kV1), SizeSpec(kV2), SizeSpec(kV3)};

class CloseKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto array, ArrayInput(*ctx));
    array->Close();
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

OpSpec CloseSpec(const Form& form) {
  OpSpec spec = FormSpec(form, "TensorArrayClose", "", "");
  if (form.since != 0) spec.Deprecated(form.since, "Use TensorArrayCloseV3");
  return spec.Shape(CheckHandle).NotDifferentiable().With(KernelFor<CloseKernel>());
}
const OpRegistration kCloses[] = {CloseSpec(kV1), CloseSpec(kV2), CloseSpec(kV3)};

}  // namespace
}  // namespace millrace
