// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the ops at the border of a step: _Arg and _Retval (what a session feeds and fetches),
// _Send and _Recv (the two ends of an edge between partitions). Their ops: graph/internal_ops.cc.

#include <memory>
#include <string>
#include <utility>

#include "core/cancellation.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/step_context.h"

namespace millrace {
namespace {

class ArgKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const int64_t index, c->GetAttr<int64_t>("index"));
    index_ = static_cast<size_t>(index);
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const absl::Span<Tensor> own = ctx->step().own_args;
    if (index_ < own.size()) {
      ctx->set_output(0, std::move(own[index_]));
      return absl::OkStatus();
    }
    const absl::Span<const Tensor> args = ctx->step().args;
    if (index_ >= args.size()) {
      return absl::InternalError(
          absl::StrCat("argument ", index_, " must be given, got ", args.size(), " arguments"));
    }
    ctx->set_output(0, args[index_]);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  size_t index_ = 0;
};

class RetvalKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const int64_t index, c->GetAttr<int64_t>("index"));
    index_ = static_cast<size_t>(index);
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const absl::Span<Tensor> results = ctx->step().results;
    if (index_ >= results.size()) {
      return absl::InternalError(
          absl::StrCat("result ", index_, " must have a place, got ", results.size(), " places"));
    }
    results[index_] = ctx->TakeInput(0);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  size_t index_ = 0;
};

// What a _Send or _Recv is to the rendezvous: a number, in a loop with the iteration.
class TransferEnd {
 public:
  Status Init(KernelConstruction* c) {
    MR_ASSIGN_OR_RETURN(root_key_, RendezvousKey::Of(c->attrs()));
    const StatusOr<int64_t> number = c->GetAttr<int64_t>(kTransferAttr);
    if (number.ok()) number_ = static_cast<uint32_t>(*number);
    return absl::OkStatus();
  }
  Transfer In(const KernelContext& ctx) const {
    return Transfer(number_, root_key_.text, ctx.frame_id(), ctx.iteration());
  }

 private:
  RendezvousKey root_key_;
  uint32_t number_ = Transfer::kUnnumbered;  // outside of a plan
};

Status NoRendezvous() { return absl::InternalError("the step must have a rendezvous, got none"); }

class SendKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return end_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    if (ctx->rendezvous() == nullptr) return NoRendezvous();
    const bool dead = ctx->is_input_dead() || !ctx->has_input(0);
    Tensor value = dead ? Tensor() : ctx->TakeInput(0);
    return ctx->rendezvous()->Send(end_.In(*ctx), std::move(value), dead);
  }
  bool may_be_expensive() const override { return false; }

 private:
  TransferEnd end_;
};

class RecvKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    dtype_ = c->output_type(0);
    return end_.Init(c);
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    Rendezvous* const rendezvous = ctx->rendezvous();
    if (rendezvous == nullptr) return done(NoRendezvous());
    // A step that is cancelled ends all its receives.
    CancellationManager* const cancellation =
        ctx->step().cancel_aborts_rendezvous ? nullptr : ctx->cancellation();
    CancellationManager::Token token = -1;
    if (cancellation != nullptr && !cancellation->Register(&token, [keep = ctx->step().rendezvous] {
          keep->StartAbort(Derived(absl::CancelledError("Step was cancelled.")));
        })) {
      return done(Derived(absl::CancelledError("Step was cancelled.")));
    }
    rendezvous->RecvAsync(
        end_.In(*ctx), [ctx, cancellation, token, dtype = dtype_, done = std::move(done)](
                           const Status& status, Tensor value, bool is_dead) mutable {
          if (cancellation != nullptr) cancellation->Deregister(token);
          if (!status.ok() || is_dead) return done(status);
          if (!value.has_value()) {
            return done(absl::InternalError(absl::StrCat("the tensor that came must be of type ",
                                                         DTypeName(dtype), ", got no value")));
          }
          ctx->set_output(0, std::move(value));
          done(absl::OkStatus());
        });
  }

 private:
  DType dtype_ = DT_INVALID;
  TransferEnd end_;
};

const KernelRegistration kArg("_Arg", KernelFor<ArgKernel>());
const KernelRegistration kRetval("_Retval", KernelFor<RetvalKernel>());
const KernelRegistration kSend("_Send", KernelFor<SendKernel>());
const KernelRegistration kHostSend("_HostSend", KernelFor<SendKernel>());
const KernelRegistration kRecv("_Recv", KernelFor<RecvKernel>());
const KernelRegistration kHostRecv("_HostRecv", KernelFor<RecvKernel>());

}  // namespace
}  // namespace millrace
