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
#include "core/io_pool.h"
#include "formats/graph_files.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"
#include "saver/behind_training.h"
#include "saver/save_restore.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"
#include "saver/variable_rows.h"

namespace millrace {
namespace {

// work() on the I/O pool, where the executor's boundary for exceptions does not reach, once `Rule`
// accepts the inputs.
template <typename Rule>
void RunOnIoPool(KernelContext* ctx, AsyncKernel::DoneCallback done, std::function<Status()> work) {
  StepRule step(ctx);
  if (const Status accepted = ApplyRule(Rule(), &step); !accepted.ok()) return done(accepted);
  ctx->io_pool()->Schedule([work = std::move(work), done = std::move(done)]() mutable {
    Status status;
    try {
      status = work();
    } catch (const std::bad_alloc&) {
      status = absl::ResourceExhaustedError("out of memory");
    } catch (const std::exception& e) {
      status = Internal("unexpected exception: ", e.what());
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

absl::Span<const std::string> Strings(const KernelContext* ctx, int i) {
  return ctx->input(i).raw<std::string>();
}

// Inputs prefix, tensor_names and shape_and_slices: a name and a spec for each tensor that is saved
// (the inputs after these) or restored (the outputs).
constexpr int kFirstTensor = 3;
struct NamesRule {
  Status operator()(RuleContext* c) const {
    const int tensors = c->num_inputs() - kFirstTensor + c->num_outputs();
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "prefix").status());
    for (const auto& [i, name] : {std::pair(1, "tensor_names"), std::pair(2, "shape_and_slices")}) {
      MR_ASSIGN_OR_RETURN(const PartialShape shape, c->InputWithRank(i, 1, name));
      if (shape.dim(0) >= 0 && shape.dim(0) != tensors) {
        return InvalidArgument(name, " must have one element per tensor, got ", shape.dim(0),
                               " for ", tensors);
      }
    }
    return absl::OkStatus();
  }
};

// --- SaveV2 --------------------------------------------------------------------------------------

// What SaveV2 writes for its inputs. A variable comes as a reference: in old graphs, and where a
// read in front of SaveV2 has no other reader (runtime/plan.cc). A tensor that was read just now
// and is a table of this device is let go of here. Other tensors are written as they are.
StatusOr<std::vector<ValueToSave>> ValuesToSave(KernelContext* ctx, int first) {
  std::vector<std::shared_ptr<VariableStorage>> known;
  std::vector<ValueToSave> values(static_cast<size_t>(ctx->num_inputs() - first));
  std::vector<std::shared_ptr<VariableStorage>> variables;
  std::vector<size_t> places;  // of variables among the values
  for (size_t i = 0; i < values.size(); ++i) {
    const int input = first + static_cast<int>(i);
    if (ctx->input(input).is_reference()) {
      MR_ASSIGN_OR_RETURN(auto variable, ctx->ref_input(input));
      variables.push_back(std::move(variable));
      places.push_back(i);
      continue;
    }
    Tensor value = ctx->TakeInput(input);
    if (known.empty() && ctx->resources() != nullptr) {
      known = ctx->resources()->All<VariableStorage>();
    }
    const auto owner = std::find_if(known.begin(), known.end(), [&](const auto& variable) {
      return variable->HowKept(value) == VariableStorage::Kept::kRows;
    });
    if (owner != known.end()) {
      variables.push_back(*owner);
      places.push_back(i);
    } else {
      values[i] = std::move(value);
    }
  }
  MR_ASSIGN_OR_RETURN(std::vector<ValueToSave> saved, ValuesOfVariables(variables));
  for (size_t k = 0; k < places.size(); ++k) values[places[k]] = std::move(saved[k]);
  return values;
}

class SaveKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    RunOnIoPool<NamesRule>(ctx, std::move(done), [ctx]() -> Status {
      MR_ASSIGN_OR_RETURN(const std::vector<ValueToSave> values, ValuesToSave(ctx, kFirstTensor));
      return RunBehindTraining([&](InFront in_front) {
        return SaveTensors(GraphFiles(), ctx->input(0).raw_scalar<std::string>(), Strings(ctx, 1),
                           Strings(ctx, 2), values, StopOnCancel(ctx), in_front);
      });
    });
  }
};

const OpRegistration kSaveV2 = OpSpec("SaveV2",
                                      "prefix: string, tensor_names: string, "
                                      "shape_and_slices: string, tensors: dtypes",
                                      "dtypes: list(type) >= 1")
                                   .Stateful()
                                   .UsesFiles()
                                   .TakesVariablesFrom(3, VariableUse::kSaves)
                                   .Rule<NamesRule>()
                                   .NotDifferentiable()
                                   .With(KernelFor<SaveKernel>());

// --- RestoreV2 -----------------------------------------------------------------------------------

// A slice has the shape that its spec says, a whole tensor the one that it has in the file.
struct RestoreRule {
  Status operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(NamesRule()(c));
    const Tensor* specs = c->input_tensor(2);
    for (int i = 0; specs != nullptr && i < c->num_outputs(); ++i) {
      MR_ASSIGN_OR_RETURN(const ShapeAndSlice spec,
                          ParseShapeAndSlice(specs->raw<std::string>()[static_cast<size_t>(i)]));
      if (!spec.is_whole) c->set_output(i, spec.slice_shape);
    }
    return absl::OkStatus();
  }
};

class RestoreKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* construction) override {
    for (int i = 0; i < construction->num_outputs(); ++i) {
      dtypes_.push_back(construction->output_type(i));
    }
    return absl::OkStatus();
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    RunOnIoPool<RestoreRule>(ctx, std::move(done), [this, ctx]() -> Status {
      MR_ASSIGN_OR_RETURN(
          std::vector<Tensor> tensors,
          RestoreTensors(GraphFiles(), ctx->input(0).raw_scalar<std::string>(), Strings(ctx, 1),
                         Strings(ctx, 2), dtypes_, StopOnCancel(ctx), ctx->io_pool()));
      for (int i = 0; i < ctx->num_outputs(); ++i) {
        ctx->set_output(i, std::move(tensors[static_cast<size_t>(i)]));
      }
      return absl::OkStatus();
    });
  }

 private:
  std::vector<DType> dtypes_;
};

const OpRegistration kRestoreV2 =
    OpSpec("RestoreV2",
           "prefix: string, tensor_names: string, shape_and_slices: string -> tensors: dtypes",
           "dtypes: list(type) >= 1")
        .Stateful()
        .UsesFiles()
        .Rule<RestoreRule>()
        .NotDifferentiable()
        .With(KernelFor<RestoreKernel>());

// --- MergeV2Checkpoints --------------------------------------------------------------------------

struct MergeRule {
  Status operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 1, "checkpoint_prefixes").status());
    return c->InputWithRank(1, 0, "destination_prefix").status();
  }
};

class MergeKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "delete_old_dirs", &delete_old_dirs_);
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    RunOnIoPool<MergeRule>(ctx, std::move(done), [this, ctx]() -> Status {
      const StopCheck stop = StopOnCancel(ctx);
      MR_RETURN_IF_ERROR(stop());
      return MergeBundles(GraphFiles(), Strings(ctx, 0), ctx->input(1).raw_scalar<std::string>(),
                          delete_old_dirs_, stop);
    });
  }

 private:
  bool delete_old_dirs_ = true;
};

const OpRegistration kMergeV2Checkpoints =
    OpSpec("MergeV2Checkpoints", "checkpoint_prefixes: string, destination_prefix: string",
           "delete_old_dirs: bool = true")
        .Stateful()
        .UsesFiles()
        .Rule<MergeRule>()
        .NotDifferentiable()
        .With(KernelFor<MergeKernel>());

// --- ShardedFilename, ShardedFilespec ------------------------------------------------------------

// Inputs basename, shard (of ShardedFilename) and num_shards.
struct ShardedRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const int last = c->num_inputs() - 1;
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "basename").status());
    MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, last == 1 ? "num_shards" : "shard").status());
    MR_RETURN_IF_ERROR(c->InputWithRank(last, 0, "num_shards").status());
    return PartialShape::Scalar();
  }
};

Status RunShardedFilename(KernelContext* ctx, const ShardedRule&) {
  MR_ASSIGN_OR_RETURN(std::string name, ShardedName(ctx->input(0).raw_scalar<std::string>(),
                                                    ctx->input(1).raw_scalar<int32_t>(),
                                                    ctx->input(2).raw_scalar<int32_t>()));
  ctx->set_output(0, Tensor::Scalar<std::string>(std::move(name)));
  return absl::OkStatus();
}

const OpRegistration kShardedFilename =
    OpSpec("ShardedFilename",
           "basename: string, shard: int32, num_shards: int32 -> "
           "filename: string")
        .With(RuledKernelFor<ShardedRule>(RunShardedFilename))
        .NotDifferentiable();

Status RunShardedFilespec(KernelContext* ctx, const ShardedRule&) {
  const int32_t num_shards = ctx->input(1).raw_scalar<int32_t>();
  if (num_shards < 1) return InvalidArgument("num_shards must be >= 1, got ", num_shards);
  ctx->set_output(
      0, Tensor::Scalar(absl::StrFormat("%s-\?\?\?\?\?-of-%05d",
                                        ctx->input(0).raw_scalar<std::string>(), num_shards)));
  return absl::OkStatus();
}

const OpRegistration kShardedFilespec =
    OpSpec("ShardedFilespec", "basename: string, num_shards: int32 -> filename: string")
        .With(RuledKernelFor<ShardedRule>(RunShardedFilespec))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
