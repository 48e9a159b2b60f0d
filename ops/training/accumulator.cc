// SPDX-License-Identifier: Apache-2.0
#include "ops/training/accumulator.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/kernels/accumulator.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

using AccumulatorPtr = std::shared_ptr<GradientAccumulator>;

// --- Handles -------------------------------------------------------------------------------------

// A reference is to the names of its accumulator: {container, name}.
constexpr int64_t kNames = 2;

StatusOr<AccumulatorPtr> AccumulatorInput(KernelContext* ctx) {
  if (!ctx->input(0).is_reference()) return ctx->ResourceInput<GradientAccumulator>(0);
  MR_ASSIGN_OR_RETURN(const auto variable, ctx->ref_input(0));
  MR_ASSIGN_OR_RETURN(const Tensor names, variable->Read());
  if (names.dtype() != DT_STRING || names.num_elements() != kNames) {
    return InvalidArgument("handle must be an accumulator's, got ", names.dtype(), names.shape());
  }
  const absl::Span<const std::string> parts = names.raw<std::string>();
  return ctx->resources()->Lookup<GradientAccumulator>(parts[0], parts[1]);
}

// An accumulator, by a reference or by a handle.
class AccumulatorKernel : public Kernel {
 public:
  explicit AccumulatorKernel(bool is_sparse) : is_sparse_(is_sparse) {}

  Status Init(KernelConstruction* c) override {
    by_handle_ = c->output_type(0) == DT_RESOURCE;
    MR_RETURN_IF_ERROR(spec_.Init(is_sparse_, c->attrs()));
    if (spec_.name.empty()) spec_.name = c->node().name();
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MutexLock lock(&mu_);
    if (accumulator_ == nullptr || accumulator_->abandoned()) {
      MR_RETURN_IF_ERROR(Find(ctx->resources()));
    }
    if (by_handle_) {
      ctx->set_output(0, handle_);
    } else {
      ctx->set_output_ref(0, names_);
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  Status Find(ResourceManager* resources) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    MR_ASSIGN_OR_RETURN(AccumulatorPtr found,
                        resources->LookupOrCreate<GradientAccumulator>(
                            spec_.container, spec_.name, [this]() -> StatusOr<AccumulatorPtr> {
                              return std::make_shared<GradientAccumulator>(spec_);
                            }));
    MR_RETURN_IF_ERROR(found->spec().CheckSame(spec_));
    if (by_handle_) {
      ResourceHandle handle =
          resources->MakeHandle<GradientAccumulator>(spec_.container, spec_.name, found);
      handle.dtypes = {spec_.dtype};
      handle.shapes = {spec_.shape};
      handle_ = Tensor::Scalar<ResourceHandle>(std::move(handle));
    } else {
      auto names =
          std::make_shared<VariableStorage>(spec_.name, DT_STRING, PartialShape(Shape{kNames}));
      MR_RETURN_IF_ERROR(
          names->Assign(Tensor::Vector<std::string>({spec_.container, spec_.name}), true));
      names_ = std::move(names);
    }
    accumulator_ = std::move(found);
    return absl::OkStatus();
  }

  const bool is_sparse_;
  AccumulatorSpec spec_;
  bool by_handle_ = false;
  mutable Mutex mu_;
  mutable AccumulatorPtr accumulator_ ABSL_GUARDED_BY(mu_);
  mutable Tensor handle_ ABSL_GUARDED_BY(mu_);
  mutable std::shared_ptr<VariableStorage> names_ ABSL_GUARDED_BY(mu_);
};

constexpr char kAccumulatorAttrs[] =
    "dtype: numbertype; shape: shape; container: string = ''; shared_name: string = ''; "
    "reduction_type: {'MEAN', 'SUM'} = 'MEAN'";

OpSpec RefSpec(const char* name, bool is_sparse) {
  return OpSpec(name, "-> handle: Ref(string)", kAccumulatorAttrs)
      .Stateful()
      .Shape([](InferenceContext* c) {
        c->set_output(0, Shape{kNames});
        return absl::OkStatus();
      })
      .NotDifferentiable()
      .With(KernelFor<AccumulatorKernel>(is_sparse));
}
const OpRegistration kDense = RefSpec("ConditionalAccumulator", false);
const OpRegistration kSparse = RefSpec("SparseConditionalAccumulator", true);
const OpRegistration kResource =
    OpSpec("ResourceConditionalAccumulator", "-> handle: resource", kAccumulatorAttrs)
        .Stateful()
        .Shape([](InferenceContext* c) -> Status {
          c->set_output(0, Shape());
          MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
          MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
          c->set_output_handle(0, {dtype, std::move(shape)});
          return absl::OkStatus();
        })
        .NotDifferentiable()
        .With(KernelFor<AccumulatorKernel>(false));

// The accumulators of references and of resources have the same ops by other names. TensorFlow's
// definitions call those of resources alone stateful.
OpSpec OnAccumulator(bool by_handle, absl::string_view op, absl::string_view arguments,
                     absl::string_view attrs = "") {
  OpSpec spec =
      OpSpec(absl::StrCat(by_handle ? "Resource" : "", op),
             absl::StrCat("handle: ", by_handle ? "resource" : "Ref(string)", arguments), attrs)
          .NotDifferentiable();
  if (by_handle) spec.Stateful();
  return spec;
}

// --- Apply ---------------------------------------------------------------------------------------

Status CheckScalar(InferenceContext* c, int input, const char* name) {
  const PartialShape& shape = c->input(input);
  if (!shape.has_rank() || shape.rank() == 0) return absl::OkStatus();
  return InvalidArgument(name, " must be a scalar, got shape ", shape);
}
Status ApplyShape(InferenceContext* c) { return CheckScalar(c, 1, "local_step"); }

class ApplyKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const AccumulatorPtr accumulator, AccumulatorInput(ctx));
    MR_ASSIGN_OR_RETURN(const int64_t step, ctx->ScalarInput<int64_t>(1, "local_step"));
    if (accumulator->spec().is_sparse) return NotThisForm(accumulator, "dense");
    return accumulator->Apply(step, {.values = ctx->TakeInput(2)}).status();
  }
  static Status NotThisForm(const AccumulatorPtr& accumulator, const char* form) {
    return InvalidArgument("Accumulator '", accumulator->spec().name, "' must be ", form,
                           " for this op, got the other form");
  }
};
constexpr char kApplyArguments[] = ", local_step: int64, gradient: dtype";
const OpRegistration kApplies[] = {
    OnAccumulator(false, "AccumulatorApplyGradient", kApplyArguments, "dtype: numbertype")
        .Shape(ApplyShape)
        .With(KernelFor<ApplyKernel>()),
    OnAccumulator(true, "AccumulatorApplyGradient", kApplyArguments, "dtype: numbertype")
        .Shape(ApplyShape)
        .With(KernelFor<ApplyKernel>())};

class SparseApplyKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "has_known_shape", &has_known_shape_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const AccumulatorPtr accumulator, AccumulatorInput(ctx));
    MR_ASSIGN_OR_RETURN(const int64_t step, ctx->ScalarInput<int64_t>(1, "local_step"));
    if (!accumulator->spec().is_sparse) return ApplyKernel::NotThisForm(accumulator, "sparse");
    const Tensor& shape = ctx->input(4);
    if (has_known_shape_ && shape.rank() != 1) {
      return InvalidArgument("gradient_shape must be a vector, got shape ", shape.shape());
    }
    return accumulator
        ->Apply(step,
                {.values = ctx->input(3),
                 .indices = ctx->input(2),
                 .shape = has_known_shape_ ? shape.raw<int64_t>() : absl::Span<const int64_t>(),
                 .has_shape = has_known_shape_})
        .status();
  }

 private:
  bool has_known_shape_ = true;
};
const OpRegistration kSparseApply =
    OnAccumulator(false, "SparseAccumulatorApplyGradient",
                  ", local_step: int64, gradient_indices: int64, gradient_values: dtype, "
                  "gradient_shape: int64",
                  "dtype: numbertype; has_known_shape: bool")
        .Shape(ApplyShape)
        .With(KernelFor<SparseApplyKernel>());

// --- Take ----------------------------------------------------------------------------------------

class TakeKernel : public AsyncKernel {
 public:
  explicit TakeKernel(bool is_sparse) : is_sparse_(is_sparse) {}

  Status Init(KernelConstruction* c) override { return ReadAttrs(c->attrs(), "dtype", &dtype_); }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    if (const Status status = Begin(ctx, &done); !status.ok()) done(status);
  }

 private:
  Status Begin(KernelContext* ctx, DoneCallback* done) const {
    MR_ASSIGN_OR_RETURN(const AccumulatorPtr accumulator, AccumulatorInput(ctx));
    MR_ASSIGN_OR_RETURN(const int32_t required, ctx->ScalarInput<int32_t>(1, "num_required"));
    if (accumulator->spec().is_sparse != is_sparse_) {
      return ApplyKernel::NotThisForm(accumulator, is_sparse_ ? "sparse" : "dense");
    }
    if (accumulator->spec().dtype != dtype_) {
      return InvalidArgument("Accumulator '", accumulator->spec().name, "' has type ",
                             accumulator->spec().dtype, ", got a take of ", dtype_);
    }
    accumulator->Take(ctx->cancellation(), required,
                      [ctx, is_sparse = is_sparse_, done = std::move(*done)](
                          StatusOr<GradientAccumulator::Taken> taken) mutable {
                        if (!taken.ok()) return done(taken.status());
                        int output = 0;
                        if (is_sparse) ctx->set_output(output++, std::move(taken->indices));
                        ctx->set_output(output++, std::move(taken->values));
                        if (is_sparse) ctx->set_output(output, std::move(taken->shape));
                        done(absl::OkStatus());
                      });
    return absl::OkStatus();
  }

  const bool is_sparse_;
  DType dtype_ = DT_INVALID;
};

// Of a sum any gradient's shape: the declared one may be smaller.
Status TakeShape(InferenceContext* c) { return CheckScalar(c, 1, "num_required"); }
Status SparseTakeShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape vector, PartialShape::Make({-1}));
  c->set_output(0, vector);
  c->set_output(2, std::move(vector));
  return TakeShape(c);
}
OpSpec TakeSpec(bool by_handle) {
  return OnAccumulator(by_handle, "AccumulatorTakeGradient",
                       ", num_required: int32 -> average: dtype", "dtype: numbertype")
      .WaitsForSteps(WaitsForSteps::kMay)
      .Shape(TakeShape)
      .With(KernelFor<TakeKernel>(false));
}
const OpRegistration kTakes[] = {
    TakeSpec(false), TakeSpec(true),
    OnAccumulator(false, "SparseAccumulatorTakeGradient",
                  ", num_required: int32 -> indices: int64, values: dtype, shape: int64",
                  "dtype: numbertype")
        .WaitsForSteps(WaitsForSteps::kMay)
        .Shape(SparseTakeShape)
        .With(KernelFor<TakeKernel>(true))};

// --- SetGlobalStep, NumAccumulated ---------------------------------------------------------------

class SetStepKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const AccumulatorPtr accumulator, AccumulatorInput(ctx));
    MR_ASSIGN_OR_RETURN(const int64_t step, ctx->ScalarInput<int64_t>(1, "new_global_step"));
    accumulator->SetGlobalStep(step);
    return absl::OkStatus();
  }
};
class NumAccumulatedKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const AccumulatorPtr accumulator, AccumulatorInput(ctx));
    ctx->set_output(0,
                    Tensor::Scalar<int32_t>(static_cast<int32_t>(accumulator->num_accumulated())));
    return absl::OkStatus();
  }
};
OpSpec SetSpec(bool by_handle) {
  return OnAccumulator(by_handle, "AccumulatorSetGlobalStep", ", new_global_step: int64")
      .Shape([](InferenceContext* c) { return CheckScalar(c, 1, "new_global_step"); })
      .With(KernelFor<SetStepKernel>());
}
OpSpec NumSpec(bool by_handle) {
  return OnAccumulator(by_handle, "AccumulatorNumAccumulated", " -> num_accumulated: int32")
      .Shape(ScalarShape)
      .With(KernelFor<NumAccumulatedKernel>());
}
const OpRegistration kRest[] = {SetSpec(false), SetSpec(true), NumSpec(false), NumSpec(true)};

}  // namespace
}  // namespace millrace
