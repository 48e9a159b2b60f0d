// SPDX-License-Identifier: Apache-2.0
#include "ops/training/work_queue.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/exceptions.h"
#include "core/mutex.h"
#include "ops/kernels/work_queue.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/step_loans.h"

namespace millrace {
namespace {

using WorkQueuePtr = std::shared_ptr<WorkQueue>;

Status CheckScalars(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) {
    MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
  }
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, PartialShape::Scalar());
  return absl::OkStatus();
}

// --- WorkQueue

class WorkQueueKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "container", &container_, "shared_name", &name_));
    if (name_.empty()) name_ = c->node().name();
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MutexLock lock(&mu_);
    if (queue_ == nullptr || queue_->abandoned()) {
      MR_ASSIGN_OR_RETURN(queue_, ctx->resources()->LookupOrCreate<WorkQueue>(
                                      container_, name_, [this]() -> StatusOr<WorkQueuePtr> {
                                        return std::make_shared<WorkQueue>(name_);
                                      }));
      handle_ = Tensor::Scalar<ResourceHandle>(
          ctx->resources()->MakeHandle<WorkQueue>(container_, name_, queue_));
    }
    ctx->set_output(0, handle_);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  std::string container_, name_;
  mutable Mutex mu_;
  mutable WorkQueuePtr queue_ ABSL_GUARDED_BY(mu_);
  mutable Tensor handle_ ABSL_GUARDED_BY(mu_);
};

const OpRegistration kWorkQueue =
    OpSpec("WorkQueue", "-> handle: resource", "container: string = ''; shared_name: string = ''")
        .Stateful()
        .Shape(CheckScalars)
        .NotDifferentiable()
        .With(KernelFor<WorkQueueKernel>());

// --- WorkQueueFill

// The shapes of the list.
Status CheckList(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "handle").status());
  for (const auto& [i, name] :
       {std::pair(1, "files"), std::pair(2, "begins"), std::pair(3, "ends")}) {
    MR_RETURN_IF_ERROR(c->InputWithRank(i, 1, name).status());
  }
  MR_RETURN_IF_ERROR(c->InputWithRank(4, 0, "num_epochs").status());
  return c->InputWithRank(5, 0, "shuffle_seed").status();
}

class FillKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const WorkQueuePtr queue, ctx->ResourceInput<WorkQueue>(0));
    const Tensor &files = ctx->input(1), &begins = ctx->input(2), &ends = ctx->input(3);
    for (int i = 1; i <= 3; ++i) {
      if (ctx->input(i).rank() == 1 && ctx->input(i).num_elements() == files.num_elements()) {
        continue;
      }
      return InvalidArgument("files, begins and ends must be vectors of one length, got ",
                             files.shape(), ", ", begins.shape(), " and ", ends.shape());
    }
    WorkQueue::Content content;
    MR_ASSIGN_OR_RETURN(content.num_epochs, ctx->ScalarInput<int64_t>(4, "num_epochs"));
    MR_ASSIGN_OR_RETURN(const int64_t seed, ctx->ScalarInput<int64_t>(5, "shuffle_seed"));
    content.shuffle_seed = static_cast<uint64_t>(seed);
    const absl::Span<const std::string> names = files.raw<std::string>();
    for (size_t i = 0; i < names.size(); ++i) {
      content.shards.push_back({names[i], begins.raw<int64_t>()[i], ends.raw<int64_t>()[i]});
    }
    return queue->Fill(std::move(content));
  }
};
const OpRegistration kFill =
    OpSpec("WorkQueueFill",
           "handle: resource, files: string, begins: int64, ends: int64, num_epochs: int64, "
           "shuffle_seed: int64")
        .Stateful()
        .Shape(CheckList)
        .NotDifferentiable()
        .With(KernelFor<FillKernel>());

// --- WorkQueueTake

// The shard goes back when the step is given up (runtime/step_loans.h), or when that cannot be
// noted.
Status Lend(const KernelContext& ctx, const WorkQueuePtr& queue, int64_t id) {
  StepLoans* const loans = StepLoans::Of(ctx);
  if (loans == nullptr) return absl::OkStatus();
  Status lent = NoExceptions("WorkQueueTake", [&]() -> Status {
    loans->Lend([queue, session = ctx.session_handle(), id] { queue->GiveBack(session, id); });
    return absl::OkStatus();
  });
  if (!lent.ok()) queue->GiveBack(ctx.session_handle(), id);
  return lent;
}

class TakeShardKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    if (const Status status = Begin(ctx, &done); !status.ok()) done(status);
  }

 private:
  static Status Begin(KernelContext* ctx, DoneCallback* done) {
    MR_ASSIGN_OR_RETURN(const WorkQueuePtr queue, ctx->ResourceInput<WorkQueue>(0));
    MR_ASSIGN_OR_RETURN(const bool may_wait, ctx->ScalarInput<bool>(1, "may_wait"));
    queue->Take(ctx->session_handle(), ctx->cancellation(), may_wait,
                [ctx, queue, done = std::move(*done)](auto taken) mutable {
                  if (!taken.ok()) return done(taken.status());
                  if (taken->has_value()) {
                    if (const Status lent = Lend(*ctx, queue, (*taken)->id); !lent.ok())
                      return done(lent);
                  }
                  const WorkQueue::Taken shard =
                      (*std::move(taken)).value_or(WorkQueue::Taken{.id = -1, .shard = {}});
                  ctx->set_output(0, Tensor::Scalar<std::string>(shard.shard.file));
                  ctx->set_output(1, Tensor::Scalar(shard.shard.begin));
                  ctx->set_output(2, Tensor::Scalar(shard.shard.end));
                  ctx->set_output(3, Tensor::Scalar(shard.epoch));
                  ctx->set_output(4, Tensor::Scalar(shard.id));
                  done(absl::OkStatus());
                });
    return absl::OkStatus();
  }
};
const OpRegistration kTake =
    OpSpec("WorkQueueTake",
           "handle: resource, may_wait: bool -> file: string, begin: int64, end: int64, "
           "epoch: int64, id: int64")
        .Stateful()
        .WaitsForSteps(WaitsForSteps::kMay)
        .Shape(CheckScalars)
        .NotDifferentiable()
        .With(KernelFor<TakeShardKernel>());

// --- WorkQueueDone

class DoneKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const WorkQueuePtr queue, ctx->ResourceInput<WorkQueue>(0));
    int64_t counted = 0;
    for (const int64_t id : ctx->input(1).raw<int64_t>()) {
      if (queue->Done(ctx->session_handle(), id)) ++counted;
    }
    ctx->set_output(0, Tensor::Scalar(counted));
    return absl::OkStatus();
  }
};
const OpRegistration kDone =
    OpSpec("WorkQueueDone", "handle: resource, ids: int64 -> counted: int64")
        .Stateful()
        .Shape([](InferenceContext* c) {
          c->set_output(0, PartialShape::Scalar());
          return c->InputWithRank(0, 0, "handle").status();
        })
        .NotDifferentiable()
        .With(KernelFor<DoneKernel>());

// --- WorkQueueLeave

class LeaveKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const WorkQueuePtr queue, ctx->ResourceInput<WorkQueue>(0));
    queue->Leave(ctx->session_handle(), ctx->cancellation());
    return absl::OkStatus();
  }
};
const OpRegistration kLeave = OpSpec("WorkQueueLeave", "handle: resource")
                                  .Stateful()
                                  .Shape(CheckScalars)
                                  .NotDifferentiable()
                                  .With(KernelFor<LeaveKernel>());

// --- WorkQueueSave, WorkQueueRestore, WorkQueueLedger

class SaveQueueKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const WorkQueuePtr queue, ctx->ResourceInput<WorkQueue>(0));
    ctx->set_output(0, Tensor::Scalar<std::string>(queue->Save()));
    return absl::OkStatus();
  }
};
const OpRegistration kSave = OpSpec("WorkQueueSave", "handle: resource -> state: string")
                                 .Stateful()
                                 .Shape(CheckScalars)
                                 .NotDifferentiable()
                                 .With(KernelFor<SaveQueueKernel>());

class RestoreQueueKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const WorkQueuePtr queue, ctx->ResourceInput<WorkQueue>(0));
    MR_ASSIGN_OR_RETURN(const std::string state, ctx->ScalarInput<std::string>(1, "state"));
    return queue->Restore(state);
  }
};
// Where the state comes from a file its shape is not known.
const OpRegistration kRestore = OpSpec("WorkQueueRestore", "handle: resource, state: string")
                                    .Stateful()
                                    .Shape(CheckScalars)
                                    .NotDifferentiable()
                                    .With(KernelFor<RestoreQueueKernel>());

class LedgerKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const WorkQueuePtr queue, ctx->ResourceInput<WorkQueue>(0));
    const WorkQueue::Ledger ledger = queue->ledger();
    int output = 0;
    for (const int64_t count :
         {ledger.handed_out, ledger.done, ledger.given_back, ledger.late, ledger.held}) {
      ctx->set_output(output++, Tensor::Scalar(count));
    }
    return absl::OkStatus();
  }
};
const OpRegistration kLedger =
    OpSpec("WorkQueueLedger",
           "handle: resource -> handed_out: int64, done: int64, given_back: int64, late: int64, "
           "held: int64")
        .Stateful()
        .Shape(CheckScalars)
        .NotDifferentiable()
        .With(KernelFor<LedgerKernel>());

}  // namespace
}  // namespace millrace
