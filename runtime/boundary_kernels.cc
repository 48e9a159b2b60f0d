// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the ops at the border of a step: _Arg and _Retval (what a session feeds and fetches),
// _Send and _Recv (the two ends of an edge between partitions). Their ops: graph/internal_ops.cc.

#include <memory>
#include <optional>
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

// The rendezvous key of a node: made once for the root frame, anew inside of loops.
class EdgeKey {
 public:
  Status Init(KernelConstruction* c) {
    MR_ASSIGN_OR_RETURN(src_device_, c->GetAttr<std::string>("send_device"));
    MR_ASSIGN_OR_RETURN(dst_device_, c->GetAttr<std::string>("recv_device"));
    MR_ASSIGN_OR_RETURN(name_, c->GetAttr<std::string>("tensor_name"));
    MR_ASSIGN_OR_RETURN(const int64_t incarnation, c->GetAttr<int64_t>("send_device_incarnation"));
    src_incarnation_ = static_cast<uint64_t>(incarnation);
    MR_ASSIGN_OR_RETURN(root_key_, Key(0, 0));
    return absl::OkStatus();
  }
  StatusOr<RendezvousKey> KeyFor(const KernelContext& ctx) const {
    if (ctx.frame_id() == 0 && ctx.iteration() == 0) return root_key_;
    return Key(ctx.frame_id(), ctx.iteration());
  }
  const RendezvousKey* RootKey(const KernelContext& ctx) const {
    return ctx.frame_id() == 0 && ctx.iteration() == 0 ? &root_key_ : nullptr;
  }

 private:
  StatusOr<RendezvousKey> Key(uint64_t frame_id, int64_t iteration) const {
    return RendezvousKey::Parse(RendezvousKey::Make(src_device_, src_incarnation_, dst_device_,
                                                    name_, frame_id, iteration));
  }
  std::string src_device_, dst_device_, name_;
  uint64_t src_incarnation_ = 0;
  RendezvousKey root_key_;
};

Status NoRendezvous() { return absl::InternalError("the step must have a rendezvous, got none"); }

class SendKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return edge_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    if (ctx->rendezvous() == nullptr) return NoRendezvous();
    const bool dead = ctx->is_input_dead() || !ctx->has_input(0);
    Tensor value = dead ? Tensor() : ctx->TakeInput(0);
    if (const RendezvousKey* key = edge_.RootKey(*ctx)) {
      return ctx->rendezvous()->Send(*key, std::move(value), dead);
    }
    MR_ASSIGN_OR_RETURN(const RendezvousKey key, edge_.KeyFor(*ctx));
    return ctx->rendezvous()->Send(key, std::move(value), dead);
  }
  bool may_be_expensive() const override { return false; }

 private:
  EdgeKey edge_;
};

class RecvKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    dtype_ = c->output_type(0);
    return edge_.Init(c);
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    Rendezvous* const rendezvous = ctx->rendezvous();
    if (rendezvous == nullptr) return done(NoRendezvous());
    StatusOr<RendezvousKey> key = edge_.KeyFor(*ctx);
    if (!key.ok()) return done(key.status());
    // A step that is cancelled ends all its receives.
    CancellationManager* const cancellation = ctx->cancellation();
    CancellationManager::Token token = -1;
    if (cancellation != nullptr && !cancellation->Register(&token, [keep = ctx->step().rendezvous] {
          keep->StartAbort(Derived(absl::CancelledError("Step was cancelled.")));
        })) {
      return done(Derived(absl::CancelledError("Step was cancelled.")));
    }
    rendezvous->RecvAsync(*key, [ctx, cancellation, token, dtype = dtype_, done = std::move(done)](
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
  EdgeKey edge_;
};

const KernelRegistration kArg("_Arg", KernelFor<ArgKernel>());
const KernelRegistration kRetval("_Retval", KernelFor<RetvalKernel>());
const KernelRegistration kSend("_Send", KernelFor<SendKernel>());
const KernelRegistration kHostSend("_HostSend", KernelFor<SendKernel>());
const KernelRegistration kRecv("_Recv", KernelFor<RecvKernel>());
const KernelRegistration kHostRecv("_HostRecv", KernelFor<RecvKernel>());

}  // namespace
}  // namespace millrace
