// SPDX-License-Identifier: Apache-2.0
//
// SaveV2, RestoreV2, MergeV2Checkpoints, ShardedFilename and ShardedFilespec: definitions, shapes
// and kernels. Kernels that touch files run on the I/O pool.

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"
#include "runtime/variable_walk.h"
#include "saver/save_restore.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"

namespace millrace {
namespace {

// The executor's boundary for exceptions does not reach the I/O pool's threads.
void RunOnIoPool(KernelContext* ctx, AsyncKernel::DoneCallback done, std::function<Status()> work) {
  ctx->io_pool()->Schedule([work = std::move(work), done = std::move(done)]() mutable {
    Status status;
    try {
      status = work();
    } catch (const std::bad_alloc&) {
      status = absl::ResourceExhaustedError("out of memory");
    } catch (const std::exception& e) {
      status = absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
    }
    done(std::move(status));
  });
}

StopCheck StopOnCancel(const KernelContext* ctx) {
  return [cancellation = ctx->cancellation()] {
    return cancellation != nullptr && cancellation->IsCancelled()
               ? absl::CancelledError("the step was cancelled")
               : absl::OkStatus();
  };
}

// The elements of a string vector input.
StatusOr<absl::Span<const std::string>> StringVector(const KernelContext* ctx, int i,
                                                     absl::string_view name) {
  const Tensor& input = ctx->input(i);
  if (!input.shape().is_vector()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be a vector, got shape ", input.shape().ToString()));
  }
  return input.raw<std::string>();
}

// The only place that knows which numbers of names, specs and tensors go together. -1 is unknown.
Status CheckCounts(int64_t names, int64_t specs, int64_t tensors) {
  if (names >= 0 && names != tensors) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor_names must have one element per tensor, got ", names, " for ", tensors));
  }
  if (specs >= 0 && specs != tensors) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape_and_slices must have one element per tensor, got ", specs, " for ", tensors));
  }
  return absl::OkStatus();
}

// Inputs prefix, tensor_names and shape_and_slices, for `tensors` tensors.
Status CheckNameShapes(InferenceContext* c, int64_t tensors) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0).status());
  MR_ASSIGN_OR_RETURN(const PartialShape names, c->InputWithRank(1, 1));
  MR_ASSIGN_OR_RETURN(const PartialShape specs, c->InputWithRank(2, 1));
  return CheckCounts(names.dim(0), specs.dim(0), tensors);
}

// --- SaveV2 --------------------------------------------------------------------------------------

constexpr int kFirstTensor = 3;

Status SaveShape(InferenceContext* c) { return CheckNameShapes(c, c->num_inputs() - kFirstTensor); }

// The rows of a variable as a walk sees them, from the first on.
TensorPieces RowsOf(std::shared_ptr<VariableStorage> variable, const Tensor& value,
                    const StopCheck& stop) {
  TensorPieces pieces;
  pieces.dtype = value.dtype();
  pieces.shape = value.shape();
  pieces.next = [variable = std::move(variable), shape = value.shape(), stop,
                 walk = std::shared_ptr<VariableWalk>()]() mutable -> StatusOr<absl::string_view> {
    MR_RETURN_IF_ERROR(stop());
    if (walk == nullptr) {
      MR_ASSIGN_OR_RETURN(VariableWalk begun, VariableWalk::Begin({variable}));
      walk = std::make_shared<VariableWalk>(std::move(begun));
      if (walk->shape(0) != shape) {
        return absl::AbortedError(
            absl::StrCat("Variable '", variable->name(), "' must keep its shape ", shape.ToString(),
                         " while it is saved, got ", walk->shape(0).ToString()));
      }
    }
    MR_RETURN_IF_ERROR(walk->Next().status());
    return absl::string_view(walk->bytes(0).data(), walk->bytes(0).size());
  };
  return pieces;
}

// What SaveV2 writes for its inputs. Graphs save a variable by a read in front of SaveV2, and keep
// TensorFlow's form; a tensor that is a table of this device, read just now, is let go of here and
// walked: rows that change during the save cost no copy of the table, and are saved each as it is
// when the walk meets it. Other tensors are written as they are.
std::vector<ValueToSave> ValuesToSave(KernelContext* ctx, int first) {
  std::vector<std::shared_ptr<VariableStorage>> variables;
  if (ctx->resources() != nullptr) variables = ctx->resources()->All<VariableStorage>();
  std::vector<ValueToSave> values;
  for (int i = first; i < ctx->num_inputs(); ++i) {
    Tensor value = ctx->TakeInput(i);
    const auto owner = std::find_if(variables.begin(), variables.end(), [&](const auto& variable) {
      return variable->IsRowsOf(value);
    });
    if (owner != variables.end()) {
      values.push_back(RowsOf(*owner, value, StopOnCancel(ctx)));
    } else {
      values.push_back(std::move(value));
    }
  }
  return values;
}

class SaveKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    RunOnIoPool(ctx, std::move(done), [ctx]() -> Status {
      MR_ASSIGN_OR_RETURN(const std::string prefix, ctx->ScalarInput<std::string>(0, "prefix"));
      MR_ASSIGN_OR_RETURN(const auto names, StringVector(ctx, 1, "tensor_names"));
      MR_ASSIGN_OR_RETURN(const auto specs, StringVector(ctx, 2, "shape_and_slices"));
      MR_RETURN_IF_ERROR(CheckCounts(static_cast<int64_t>(names.size()),
                                     static_cast<int64_t>(specs.size()),
                                     ctx->num_inputs() - kFirstTensor));
      return SaveTensors(FileSystem::Posix(), prefix, names, specs, ValuesToSave(ctx, kFirstTensor),
                         StopOnCancel(ctx));
    });
  }
};

const OpRegistration kSaveV2 = OpSpec("SaveV2")
                                   .Input("prefix: string")
                                   .Input("tensor_names: string")
                                   .Input("shape_and_slices: string")
                                   .Input("tensors: dtypes")
                                   .Attr("dtypes: list(type) >= 1")
                                   .Stateful()
                                   .Shape(SaveShape)
                                   .NotDifferentiable();
const KernelRegistration kSaveV2Kernel = KernelFor<SaveKernel>("SaveV2");

// --- RestoreV2 -----------------------------------------------------------------------------------

Status RestoreShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckNameShapes(c, c->num_outputs()));
  const Tensor* specs = c->input_tensor(2);
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, PartialShape::Unknown());
    if (specs == nullptr) continue;
    MR_ASSIGN_OR_RETURN(const ShapeAndSlice spec,
                        ParseShapeAndSlice(specs->raw<std::string>()[static_cast<size_t>(i)]));
    if (!spec.is_whole) c->set_output(i, spec.slice_shape);
  }
  return absl::OkStatus();
}

class RestoreKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* construction) override {
    for (int i = 0; i < construction->num_outputs(); ++i) {
      dtypes_.push_back(construction->output_type(i));
    }
    return absl::OkStatus();
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    RunOnIoPool(ctx, std::move(done), [this, ctx]() -> Status {
      MR_ASSIGN_OR_RETURN(const std::string prefix, ctx->ScalarInput<std::string>(0, "prefix"));
      MR_ASSIGN_OR_RETURN(const auto names, StringVector(ctx, 1, "tensor_names"));
      MR_ASSIGN_OR_RETURN(const auto specs, StringVector(ctx, 2, "shape_and_slices"));
      MR_RETURN_IF_ERROR(CheckCounts(static_cast<int64_t>(names.size()),
                                     static_cast<int64_t>(specs.size()), ctx->num_outputs()));
      MR_ASSIGN_OR_RETURN(
          std::vector<Tensor> tensors,
          RestoreTensors(FileSystem::Posix(), prefix, names, specs, dtypes_, StopOnCancel(ctx)));
      for (int i = 0; i < ctx->num_outputs(); ++i) {
        ctx->set_output(i, std::move(tensors[static_cast<size_t>(i)]));
      }
      return absl::OkStatus();
    });
  }

 private:
  std::vector<DType> dtypes_;
};

const OpRegistration kRestoreV2 = OpSpec("RestoreV2")
                                      .Input("prefix: string")
                                      .Input("tensor_names: string")
                                      .Input("shape_and_slices: string")
                                      .Output("tensors: dtypes")
                                      .Attr("dtypes: list(type) >= 1")
                                      .Stateful()
                                      .Shape(RestoreShape)
                                      .NotDifferentiable();
const KernelRegistration kRestoreV2Kernel = KernelFor<RestoreKernel>("RestoreV2");

// --- MergeV2Checkpoints --------------------------------------------------------------------------

Status MergeShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 1).status());
  return c->InputWithRank(1, 0).status();
}

class MergeKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* construction) override {
    MR_ASSIGN_OR_RETURN(delete_old_dirs_, construction->GetAttr<bool>("delete_old_dirs"));
    return absl::OkStatus();
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    RunOnIoPool(ctx, std::move(done), [this, ctx]() -> Status {
      MR_ASSIGN_OR_RETURN(const auto parts, StringVector(ctx, 0, "checkpoint_prefixes"));
      MR_ASSIGN_OR_RETURN(const std::string merged,
                          ctx->ScalarInput<std::string>(1, "destination_prefix"));
      MR_RETURN_IF_ERROR(StopOnCancel(ctx)());
      return MergeBundles(FileSystem::Posix(), parts, merged, delete_old_dirs_);
    });
  }

 private:
  bool delete_old_dirs_ = true;
};

const OpRegistration kMergeV2Checkpoints = OpSpec("MergeV2Checkpoints")
                                               .Input("checkpoint_prefixes: string")
                                               .Input("destination_prefix: string")
                                               .Attr("delete_old_dirs: bool = true")
                                               .Stateful()
                                               .Shape(MergeShape)
                                               .NotDifferentiable();
const KernelRegistration kMergeV2CheckpointsKernel = KernelFor<MergeKernel>("MergeV2Checkpoints");

// --- ShardedFilename, ShardedFilespec ------------------------------------------------------------

Status AllScalarsShape(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
  return ScalarShape(c);
}

class ShardedFilenameKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::string basename, ctx->ScalarInput<std::string>(0, "basename"));
    MR_ASSIGN_OR_RETURN(const int32_t shard, ctx->ScalarInput<int32_t>(1, "shard"));
    MR_ASSIGN_OR_RETURN(const int32_t num_shards, ctx->ScalarInput<int32_t>(2, "num_shards"));
    MR_ASSIGN_OR_RETURN(std::string name, ShardedName(basename, shard, num_shards));
    ctx->set_output(0, Tensor::Scalar<std::string>(std::move(name)));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kShardedFilename = OpSpec("ShardedFilename")
                                            .Input("basename: string")
                                            .Input("shard: int32")
                                            .Input("num_shards: int32")
                                            .Output("filename: string")
                                            .Shape(AllScalarsShape)
                                            .NotDifferentiable();
const KernelRegistration kShardedFilenameKernel =
    KernelFor<ShardedFilenameKernel>("ShardedFilename");

class ShardedFilespecKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::string basename, ctx->ScalarInput<std::string>(0, "basename"));
    MR_ASSIGN_OR_RETURN(const int32_t num_shards, ctx->ScalarInput<int32_t>(1, "num_shards"));
    if (num_shards < 1) {
      return absl::InvalidArgumentError(absl::StrCat("num_shards must be >= 1, got ", num_shards));
    }
    ctx->set_output(0, Tensor::Scalar<std::string>(
                           absl::StrFormat("%s-\?\?\?\?\?-of-%05d", basename, num_shards)));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kShardedFilespec = OpSpec("ShardedFilespec")
                                            .Input("basename: string")
                                            .Input("num_shards: int32")
                                            .Output("filename: string")
                                            .Shape(AllScalarsShape)
                                            .NotDifferentiable();
const KernelRegistration kShardedFilespecKernel =
    KernelFor<ShardedFilespecKernel>("ShardedFilespec");

}  // namespace
}  // namespace millrace
