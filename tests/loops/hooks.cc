// SPDX-License-Identifier: Apache-2.0
#include "tests/loops/hooks.h"

#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/step_ops.h"

namespace millrace::loops {
namespace {

using testing::SetAsyncHook;
using testing::SetHook;

uint32_t ValueOf(const Tensor& tensor) { return static_cast<uint32_t>(tensor.scalar<float>()); }

// "call3/op7" -> "op7"
std::string LastPart(const std::string& name) { return name.substr(name.rfind('/') + 1); }

}  // namespace

// Answers asynchronous kernels from two threads of its own, in no particular order.
class Hooks::Answerer {
 public:
  Answerer() {
    for (std::thread& thread : threads_) {
      thread = std::thread([this] { Loop(); });
    }
  }
  ~Answerer() {
    {
      MutexLock lock(&mu_);
      ends_ = true;
      changed_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  void Add(AsyncKernel::DoneCallback done, Status status) {
    MutexLock lock(&mu_);
    waiting_.emplace_back(std::move(done), std::move(status));
    changed_.Signal();
  }

 private:
  void Loop() {
    std::mt19937 random(7);
    for (;;) {
      std::pair<AsyncKernel::DoneCallback, Status> answer;
      {
        MutexLock lock(&mu_);
        while (waiting_.empty() && !ends_) changed_.Wait(&mu_);
        if (waiting_.empty()) return;
        std::swap(waiting_[random() % waiting_.size()], waiting_.back());
        answer = std::move(waiting_.back());
        waiting_.pop_back();
      }
      answer.first(std::move(answer.second));
    }
  }

  Mutex mu_;
  CondVar changed_;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::pair<AsyncKernel::DoneCallback, Status>> waiting_ ABSL_GUARDED_BY(mu_);
  std::thread threads_[2];
};

Hooks::Hooks() : answerer_(std::make_unique<Answerer>()) {
  for (uint32_t n = 0; n <= 20; ++n) {
    const std::string fail = n == 0 ? "" : absl::StrCat("_or_fail", n);
    SetHook(absl::StrCat("mix", fail),
            [this, n](KernelContext* ctx) { return ComputeMix(ctx, n); });
    SetAsyncHook(absl::StrCat("mix_now", fail),
                 [this, n](KernelContext* ctx, AsyncKernel::DoneCallback done) {
                   done(ComputeMix(ctx, n));
                 });
    SetAsyncHook(absl::StrCat("mix_late", fail),
                 [this, n](KernelContext* ctx, AsyncKernel::DoneCallback done) {
                   Status status = ComputeMix(ctx, n);
                   answerer_->Add(std::move(done), std::move(status));
                 });
  }
  SetHook("limit", [](KernelContext* ctx) -> Status {
    const uint32_t limit = ValueOf(ctx->input(0)) % kMaxTrips;
    ctx->set_output(0, Tensor::Scalar<float>(static_cast<float>(limit)));
    return absl::OkStatus();
  });
  SetHook("next", [](KernelContext* ctx) -> Status {
    ctx->set_output(0, Tensor::Scalar<float>(ctx->input(0).scalar<float>() + 1));
    return absl::OkStatus();
  });
  SetHook("output", [this](KernelContext* ctx) -> Status {
    MutexLock lock(&mu_);
    outputs_[std::string(ctx->node_name())].push_back(ValueOf(ctx->input(0)));
    return absl::OkStatus();
  });
}

Hooks::~Hooks() { testing::ClearHooks(); }

void Hooks::Begin(int64_t cancel_after) {
  MutexLock lock(&mu_);
  runs_.clear();
  outputs_.clear();
  left_ = cancel_after;
}

void Hooks::NoteRun(const std::string& name, KernelContext* ctx) {
  bool cancel;
  {
    MutexLock lock(&mu_);
    ++runs_[name];
    cancel = left_ > 0 && --left_ == 0;
  }
  if (cancel) ctx->cancellation()->StartCancel();
}

Status Hooks::ComputeMix(KernelContext* ctx, uint32_t fails_in) {
  const std::string name = LastPart(std::string(ctx->node_name()));
  NoteRun(name, ctx);
  std::vector<uint32_t> inputs;
  for (int i = 0; i < ctx->num_inputs(); ++i) inputs.push_back(ValueOf(ctx->input(i)));
  const uint32_t value = Mix(name, inputs);
  if (fails_in > 0 && value % fails_in == 0) return absl::InvalidArgumentError("wanted");
  // In the input's memory where that is free: what others still read must not change.
  if (ctx->num_inputs() > 0) {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0, Shape()));
    out->mutable_raw<float>()[0] = static_cast<float>(value);
  } else {
    ctx->set_output(0, Tensor::Scalar<float>(static_cast<float>(value)));
  }
  return absl::OkStatus();
}

void Hooks::ExpectOutcome(const Outcome& want, const Status& status) {
  if (!want.failures.empty()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    bool known = false;
    for (const std::string& name : want.failures) {
      for (const char* before : {"'", "/"}) {
        known |= absl::StrContains(status.message(), absl::StrCat(before, name, "': wanted"));
      }
    }
    EXPECT_TRUE(known) << status;
    return;
  }
  EXPECT_OK(status);
  MutexLock lock(&mu_);
  EXPECT_EQ(runs_, want.runs);
  for (size_t i = 0; i < want.outputs.size(); ++i) {
    EXPECT_EQ(outputs_[absl::StrCat("output", i)], std::vector<uint32_t>{want.outputs[i]});
  }
}

}  // namespace millrace::loops
