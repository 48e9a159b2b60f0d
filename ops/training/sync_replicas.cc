// SPDX-License-Identifier: Apache-2.0
#include "ops/training/sync_replicas.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/kernels/accumulator.h"
#include "ops/kernels/sync_rounds.h"
#include "ops/loops/number.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {
namespace {

// A handle to the one resource that `Spec` names: found or made when it is first asked for.
template <typename R, typename Spec>
class NamedResourceKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(ReadSpec(c->attrs(), &spec_));
    if (spec_.name.empty()) spec_.name = c->node().name();
    return spec_.Check();
  }
  Status Compute(KernelContext* ctx) const override {
    MutexLock lock(&mu_);
    if (!handle_.has_value() || handle_.raw_scalar<ResourceHandle>().resource->abandoned()) {
      MR_ASSIGN_OR_RETURN(std::shared_ptr<R> found, ctx->resources()->template LookupOrCreate<R>(
                                                        spec_.container, spec_.name,
                                                        [this]() -> StatusOr<std::shared_ptr<R>> {
                                                          return std::make_shared<R>(spec_);
                                                        }));
      MR_RETURN_IF_ERROR(Agree(found.get(), spec_));
      handle_ = Tensor::Scalar<ResourceHandle>(
          ctx->resources()->template MakeHandle<R>(spec_.container, spec_.name, std::move(found)));
    }
    ctx->set_output(0, handle_);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  static Status ReadSpec(const NodeAttrs& attrs, SyncRoundsSpec* spec) {
    int64_t start_wait_ms = 0;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "replicas_to_aggregate", &spec->replicas, "start_wait_ms",
                                 &start_wait_ms, "container", &spec->container, "shared_name",
                                 &spec->name));
    spec->start_wait = absl::Milliseconds(start_wait_ms);
    return absl::OkStatus();
  }
  static Status ReadSpec(const NodeAttrs& attrs, AccumulatorSpec* spec) {
    return ReadAttrs(attrs, "dtype", &spec->dtype, "shape", &spec->shape, "is_sparse",
                     &spec->is_sparse, "container", &spec->container, "shared_name", &spec->name);
  }
  static Status Agree(SyncRounds* rounds, const SyncRoundsSpec& want) {
    return rounds->Agree(want);
  }
  static Status Agree(GradientAccumulator* accumulator, const AccumulatorSpec& want) {
    return accumulator->spec().CheckSame(want);
  }

  Spec spec_;
  mutable Mutex mu_;
  mutable Tensor handle_ ABSL_GUARDED_BY(mu_);
};

OpSpec HandleSpec(const char* name, const std::string& attrs) {
  return OpSpec(name, "-> handle: resource",
                absl::StrCat(attrs, "; container: string = ''; shared_name: string = ''"))
      .Stateful()
      .Shape([](InferenceContext* c) {
        c->set_output(0, Shape());
        return absl::OkStatus();
      })
      .NotDifferentiable();
}
const OpRegistration kRounds =
    HandleSpec("SyncReplicasRounds", "replicas_to_aggregate: int; start_wait_ms: int = 30000")
        .With(KernelFor<NamedResourceKernel<SyncRounds, SyncRoundsSpec>>());
const OpRegistration kAccumulator =
    HandleSpec("SyncReplicasAccumulator",
               "dtype: numbertype; shape: shape; is_sparse: bool = false")
        .With(KernelFor<NamedResourceKernel<GradientAccumulator, AccumulatorSpec>>());

// What works on a handle.
OpSpec OnHandle(const char* name, absl::string_view arguments, absl::string_view attrs = "") {
  return OpSpec(name, absl::StrCat("handle: resource", arguments), attrs)
      .Stateful()
      .NotDifferentiable();
}

// --- Rounds --------------------------------------------------------------------------------------

class JoinKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override { return ReadAttrs(c->attrs(), "trainer", &name_); }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    const auto rounds = ctx->ResourceInput<SyncRounds>(0);
    if (!rounds.ok()) return done(rounds.status());
    (*rounds)->Join(ctx->session_handle(), name_, ctx->cancellation(),
                    [ctx, done = std::move(done)](StatusOr<int64_t> round) mutable {
                      if (!round.ok()) return done(round.status());
                      ctx->set_output(0, Tensor::Scalar<int64_t>(*round));
                      done(absl::OkStatus());
                    });
  }

 private:
  std::string name_;
};

class LeaveKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto rounds, ctx->ResourceInput<SyncRounds>(0));
    // As if it were over.
    rounds->SessionEnded(ctx->session_handle());
    return absl::OkStatus();
  }
};

class RoundKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return ReadAttrs(c->attrs(), "trainer", &name_); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto rounds, ctx->ResourceInput<SyncRounds>(0));
    MR_ASSIGN_OR_RETURN(const int64_t round,
                        rounds->RoundOf(ctx->session_handle(), name_, ctx->cancellation()));
    ctx->set_output(0, Tensor::Scalar<int64_t>(round));
    return absl::OkStatus();
  }

 private:
  std::string name_;
};

class GiveKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    if (const Status status = Begin(ctx, &done); !status.ok()) done(status);
  }

 private:
  static Status Begin(KernelContext* ctx, DoneCallback* done) {
    MR_ASSIGN_OR_RETURN(const auto rounds, ctx->ResourceInput<SyncRounds>(0));
    MR_ASSIGN_OR_RETURN(const int64_t round, ctx->ScalarInput<int64_t>(1, "round"));
    rounds->Give(ctx->session_handle(), round, ctx->cancellation(),
                 [ctx, done = std::move(*done)](StatusOr<SyncRounds::Given> given) mutable {
                   if (!given.ok()) return done(given.status());
                   ctx->set_output(0, Tensor::Scalar<bool>(given->leads));
                   ctx->set_output(1, Tensor::Scalar<int64_t>(given->next_round));
                   ctx->set_output(2, Tensor::Scalar<int64_t>(given->gradients));
                   done(absl::OkStatus());
                 });
    return absl::OkStatus();
  }
};

class DoneKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto rounds, ctx->ResourceInput<SyncRounds>(0));
    MR_ASSIGN_OR_RETURN(const int64_t round, ctx->ScalarInput<int64_t>(1, "round"));
    ctx->set_output(0, Tensor::Scalar<int64_t>(rounds->Done(ctx->session_handle(), round)));
    return absl::OkStatus();
  }
};

class CountsKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto rounds, ctx->ResourceInput<SyncRounds>(0));
    const SyncRounds::Counts counts = rounds->counts();
    ctx->set_output(
        0, Tensor::Vector<int64_t>({counts.rounds, counts.given_up, counts.late, counts.trainers}));
    return absl::OkStatus();
  }
};

Status ScalarRound(InferenceContext* c) { return c->InputWithRank(1, 0, "round").status(); }

const OpRegistration kRoundOps[] = {
    OnHandle("SyncReplicasJoin", " -> round: int64", "trainer: string = ''")
        .WaitsForSteps(WaitsForSteps::kMay)
        .Shape(ScalarShape)
        .With(KernelFor<JoinKernel>()),
    OnHandle("SyncReplicasLeave", "")
        .Shape([](InferenceContext*) { return absl::OkStatus(); })
        .With(KernelFor<LeaveKernel>()),
    OnHandle("SyncReplicasRound", " -> round: int64", "trainer: string = ''")
        .Shape(ScalarShape)
        .With(KernelFor<RoundKernel>()),
    OnHandle("SyncReplicasGive",
             ", round: int64 -> leads: bool, next_round: int64, gradients: int64")
        .WaitsForSteps(WaitsForSteps::kMay)
        .Shape([](InferenceContext* c) {
          for (int i = 0; i < 3; ++i) c->set_output(i, Shape());
          return ScalarRound(c);
        })
        .With(KernelFor<GiveKernel>()),
    OnHandle("SyncReplicasDone", ", round: int64 -> next_round: int64")
        .Shape([](InferenceContext* c) {
          c->set_output(0, Shape());
          return ScalarRound(c);
        })
        .With(KernelFor<DoneKernel>()),
    OnHandle("SyncReplicasCounts", " -> counts: int64")
        .Shape([](InferenceContext* c) {
          c->set_output(0, Shape{4});
          return absl::OkStatus();
        })
        .With(KernelFor<CountsKernel>())};

// --- Accumulators --------------------------------------------------------------------------------

// The place of the first element that is infinite or NaN; -1: there is none.
template <typename T>
int64_t FirstNotFinite(const Tensor& values) {
  if constexpr (std::is_integral_v<T>) {
    return -1;
  } else {
    // In blocks without branches: the compiler makes vectors of them.
    constexpr int64_t kBlock = 1024;
    const T* const x = values.raw<T>().data();
    const int64_t n = values.num_elements();
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t end = std::min(n, begin + kBlock);
      bool is_finite = true;
      for (int64_t i = begin; i < end; ++i) {
        const auto v = math::Load(x[i]);
        is_finite &= v - v == v - v;  // NaN of infinities and NaNs alone
      }
      if (is_finite) continue;
      for (int64_t i = begin; i < end; ++i) {
        if (const auto v = math::Load(x[i]); !(v - v == v - v)) return i;
      }
    }
    return -1;
  }
}

StatusOr<std::shared_ptr<GradientAccumulator>> AccumulatorOf(KernelContext* ctx, bool is_sparse) {
  MR_ASSIGN_OR_RETURN(auto accumulator, ctx->ResourceInput<GradientAccumulator>(0));
  if (accumulator->spec().is_sparse == is_sparse) return accumulator;
  return InvalidArgument("SyncReplicas: accumulator '", accumulator->spec().name, "' must be ",
                         is_sparse ? "sparse" : "dense", " for this op, got the other form");
}

class SyncApplyKernel : public Kernel {
 public:
  explicit SyncApplyKernel(bool is_sparse) : is_sparse_(is_sparse) {}
  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "trainer", &trainer_));
    const DType dtype = c->input_type(is_sparse_ ? 3 : 2);
    first_not_finite_ =
        math::LoopFor<math::NumberTypes>(dtype, []<typename T> { return &FirstNotFinite<T>; });
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto accumulator, AccumulatorOf(ctx, is_sparse_));
    MR_ASSIGN_OR_RETURN(const int64_t round, ctx->ScalarInput<int64_t>(1, "round"));
    Tensor values = ctx->TakeInput(is_sparse_ ? 3 : 2);
    const int64_t bad = first_not_finite_ == nullptr ? -1 : first_not_finite_(values);
    if (bad >= 0) {
      return InvalidArgument("SyncReplicas: the gradient of ", who(), " for '",
                             accumulator->spec().name,
                             "' must be finite, got an infinite number or NaN at element ", bad,
                             "; a lower learning rate, or clipped gradients, may help");
    }
    const std::string& giver = trainer_.empty() ? ctx->session_handle() : trainer_;
    GradientAccumulator::NewGradient gradient{.values = std::move(values)};
    if (is_sparse_) gradient.indices = ctx->input(2);
    const StatusOr<bool> applied = accumulator->ApplyForRound(round, giver, std::move(gradient));
    if (applied.ok()) return absl::OkStatus();
    return Prefixed(absl::StrCat("SyncReplicas: the gradient of ", who(), " for '",
                                 accumulator->spec().name, "'"),
                    applied.status());
  }

 private:
  const char* who() const { return trainer_.empty() ? "this process" : trainer_.c_str(); }

  const bool is_sparse_;
  std::string trainer_;
  int64_t (*first_not_finite_)(const Tensor&) = nullptr;
};

class SyncTakeKernel : public Kernel {
 public:
  explicit SyncTakeKernel(bool is_sparse) : is_sparse_(is_sparse) {}
  Status Init(KernelConstruction* c) override { return ReadAttrs(c->attrs(), "dtype", &dtype_); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto accumulator, AccumulatorOf(ctx, is_sparse_));
    MR_ASSIGN_OR_RETURN(const int64_t round, ctx->ScalarInput<int64_t>(1, "round"));
    if (accumulator->spec().dtype != dtype_) {
      return InvalidArgument("SyncReplicas: accumulator '", accumulator->spec().name,
                             "' must be of ", dtype_, " for this op, got ",
                             accumulator->spec().dtype);
    }
    MR_ASSIGN_OR_RETURN(const int64_t least, ctx->ScalarInput<int64_t>(2, "least"));
    MR_ASSIGN_OR_RETURN(GradientAccumulator::Taken taken, accumulator->TakeRound(round, least));
    int output = 0;
    if (is_sparse_) ctx->set_output(output++, std::move(taken.indices));
    ctx->set_output(output, std::move(taken.values));
    return absl::OkStatus();
  }

 private:
  const bool is_sparse_;
  DType dtype_ = DT_INVALID;
};

const OpRegistration kAccumulatorOps[] = {
    OnHandle("SyncReplicasApply", ", round: int64, gradient: dtype",
             "dtype: numbertype; trainer: string = ''")
        .Shape(ScalarRound)
        .With(KernelFor<SyncApplyKernel>(false)),
    OnHandle("SyncReplicasApplyRows", ", round: int64, indices: int64, values: dtype",
             "dtype: numbertype; trainer: string = ''")
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRank(2, 1, "indices").status());
          return ScalarRound(c);
        })
        .With(KernelFor<SyncApplyKernel>(true)),
    OnHandle("SyncReplicasTake", ", round: int64, least: int64 -> mean: dtype", "dtype: numbertype")
        .Shape(ScalarRound)
        .With(KernelFor<SyncTakeKernel>(false)),
    OnHandle("SyncReplicasTakeRows",
             ", round: int64, least: int64 -> indices: int64, values: dtype", "dtype: numbertype")
        .Shape([](InferenceContext* c) -> Status {
          MR_ASSIGN_OR_RETURN(PartialShape vector, PartialShape::Make({-1}));
          c->set_output(0, std::move(vector));
          return ScalarRound(c);
        })
        .With(KernelFor<SyncTakeKernel>(true))};

}  // namespace
}  // namespace millrace
