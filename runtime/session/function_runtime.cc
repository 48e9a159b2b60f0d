// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/function_runtime.h"

#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/dcheck.h"
#include "core/deterministic_bytes.h"
#include "core/dtype.h"
#include "core/exceptions.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "core/thread_number.h"
#include "graph/function_body.h"
#include "graph/function_copy.h"
#include "graph/graph.h"
#include "graph/place/partition.h"
#include "graph/prune.h"
#include "proto/attr_value.pb.h"
#include "proto/versions.pb.h"
#include "runtime/done_callback.h"
#include "runtime/engine/detached_parts.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/state_block.h"
#include "runtime/engine/step.h"
#include "runtime/engine/step_life.h"
#include "runtime/rendezvous.h"
#include "runtime/session/compile_path.h"
#include "runtime/step_context.h"

namespace millrace {

// A function as it runs. Immutable.
struct FunctionRuntime::Compiled {
  std::vector<StepPart> parts;
  std::shared_ptr<const TransferTable> transfers;  // null: runs need no rendezvous of their own
};

// One run of a function.
//
//   idle -> Start -> running -> idle, then `done`
//
// Threads: Start by the thread that took it; the end on that of whichever loop or kernel is last.
class FunctionRuntime::Call final : private StepEnd {
 public:
  explicit Call(Instance* instance) : instance_(instance) {}

  void Start(const Compiled& compiled, const StepContext& step, absl::Span<Tensor> arguments,
             absl::Span<Tensor> results, DoneCallback done);

 private:
  void StartParts(const Compiled& compiled);
  void StepEnded(Step* step) override { End(step->TakeResult()); }
  void End(Status status);

  Instance* const instance_;
  DoneCallback done_;
  StepContext context_;
  std::vector<StepContext> contexts_;  // of a function that runs on several devices
};

// A function as it is called at one place, or at all of them.
class FunctionRuntime::Instance final : public CalledFunction {
 public:
  Instance(FunctionRuntime* runtime, Site site,
           std::shared_ptr<const tensorflow::NameAttrList> call, bool is_stateful,
           absl::Span<const DType> arguments, absl::Span<const DType> results)
      : runtime_(runtime),
        site_(std::move(site)),
        call_(std::move(call)),
        is_stateful_(is_stateful),
        arguments_(arguments.begin(), arguments.end()),
        results_(results.begin(), results.end()) {}
  ~Instance() override {
    for (Place& place : pool_) delete place.call.load(std::memory_order_acquire);
    delete compiled_.load(std::memory_order_acquire);
  }

  absl::Span<const DType> argument_types() const override { return arguments_; }
  absl::Span<const DType> result_types() const override { return results_; }
  std::shared_ptr<CalledFunction> Share() override {
    return std::shared_ptr<CalledFunction>(runtime_->shared_from_this(), this);
  }
  void Run(const StepContext& step, absl::Span<Tensor> arguments, absl::Span<Tensor> results,
           DoneCallback done) override;

  const Site& site() const { return site_; }
  const tensorflow::NameAttrList& call() const { return *call_; }
  bool is_stateful() const { return is_stateful_; }

  // By a call that has ended.
  void Release(Call* call);

 private:
  StatusOr<const Compiled*> CompileOnce();
  Call* Take();

  FunctionRuntime* const runtime_;
  const Site site_;
  const std::shared_ptr<const tensorflow::NameAttrList> call_;
  const bool is_stateful_;
  const std::vector<DType> arguments_, results_;
  // Written once, under the runtime's compile_mu_. Release then, acquire by who runs it.
  std::atomic<const Compiled*> compiled_{nullptr};

  // Runs that are over, for reuse; each thread has a favourite place.
  static constexpr size_t kPooledCalls = 16;
  struct alignas(64) Place {
    std::atomic<Call*> call{nullptr};  // release when put in, acquire when taken out
  };
  std::array<Place, kPooledCalls> pool_;
};

// --- Call ----------------------------------------------------------------------------------------

void FunctionRuntime::Call::Start(const Compiled& compiled, const StepContext& step,
                                  absl::Span<Tensor> arguments, absl::Span<Tensor> results,
                                  DoneCallback done) {
  MR_DCHECK(context_.rendezvous == nullptr && context_.memory == nullptr && contexts_.empty(),
            "End lets go of the step before the call may be used again");
  done_ = std::move(done);
  try {
    context_ = step;
    context_.args = {};
    context_.own_args = arguments;
    context_.results = results;
    ++context_.call_depth;
    if (compiled.parts.size() != 1) return StartParts(compiled);
    context_.device = compiled.parts[0].device;
    Step* const run = compiled.parts[0].executor->engine()->Begin(
        {.context = &context_, .stats = step.stats, .deadline = step.deadline, .end = this});
    if (run->WorkFromRoots()) StepEnded(run);
  } catch (const std::bad_alloc&) {
    End(NoMemory());
  }
}

void FunctionRuntime::Call::StartParts(const Compiled& compiled) {
  if (compiled.parts.empty()) return End(absl::OkStatus());
  if (compiled.transfers != nullptr) {
    context_.rendezvous = MakeLocalRendezvous(compiled.transfers);
    context_.cancel_aborts_rendezvous = false;  // the caller's step does not know this one
  }
  contexts_.assign(compiled.parts.size(), context_);
  std::vector<PartitionRun> runs;
  for (size_t i = 0; i < compiled.parts.size(); ++i) {
    contexts_[i].device = compiled.parts[i].device;
    runs.push_back({compiled.parts[i].executor.get(), &contexts_[i]});
  }
  ExecutorOptions options;
  options.stats = context_.stats;
  options.deadline = context_.deadline;
  // Lives as long as one of its methods runs, here or elsewhere: this object may be used again as
  // soon as it has ended.
  const auto parts = std::make_shared<DetachedParts>();
  parts->Start(runs, options, [this, parts](Status status) { End(std::move(status)); });
}

void FunctionRuntime::Call::End(Status status) {
  // The caller's own step says that the time is over.
  if (IsTimedOut(status)) status = Derived(status);
  if (status.ok()) {
    for (size_t i = 0; i < context_.results.size(); ++i) {
      if (context_.results[i].has_value()) continue;
      status = InvalidArgument("Retval[", i, "] does not have value: a result of function '",
                               instance_->call().name(),
                               "' must be computed, got a branch that was not taken");
      break;
    }
  }
  DoneCallback done = std::move(done_);
  context_.rendezvous = nullptr;
  context_.memory = nullptr;
  contexts_.clear();
  instance_->Release(this);
  done(std::move(status));
}

// --- Instance ------------------------------------------------------------------------------------

FunctionRuntime::Call* FunctionRuntime::Instance::Take() {
  const size_t mine = static_cast<size_t>(ThreadNumber()) % kPooledCalls;
  for (size_t i = 0; i < kPooledCalls; ++i) {
    std::atomic<Call*>& place = pool_[(mine + i) % kPooledCalls].call;
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (Call* const call = place.exchange(nullptr, std::memory_order_acquire)) return call;
  }
  return new Call(this);
}

void FunctionRuntime::Instance::Release(Call* call) {
  const size_t mine = static_cast<size_t>(ThreadNumber()) % kPooledCalls;
  for (size_t i = 0; i < kPooledCalls; ++i) {
    std::atomic<Call*>& place = pool_[(mine + i) % kPooledCalls].call;
    Call* expected = nullptr;
    if (place.load(std::memory_order_relaxed) == nullptr &&
        place.compare_exchange_strong(expected, call, std::memory_order_release,
                                      std::memory_order_relaxed)) {
      return;
    }
  }
  delete call;
}

StatusOr<const FunctionRuntime::Compiled*> FunctionRuntime::Instance::CompileOnce() {
  return NoExceptions("Function", [&]() -> StatusOr<const Compiled*> {
    MutexLock lock(&runtime_->compile_mu_);
    if (const Compiled* const known = compiled_.load(std::memory_order_acquire)) return known;
    MR_ASSIGN_OR_RETURN(std::unique_ptr<const Compiled> compiled, runtime_->Compile(*this));
    compiled_.store(compiled.get(), std::memory_order_release);
    return compiled.release();
  });
}

void FunctionRuntime::Instance::Run(const StepContext& step, absl::Span<Tensor> arguments,
                                    absl::Span<Tensor> results, DoneCallback done) {
  if (step.call_depth >= kMaxCallDepth) {
    return done(absl::ResourceExhaustedError(
        absl::StrCat("calls of functions must be at most ", kMaxCallDepth,
                     " deep, got a further one, of '", call_->name(), "'")));
  }
  const Compiled* compiled = compiled_.load(std::memory_order_acquire);
  if (compiled == nullptr) {
    StatusOr<const Compiled*> made = CompileOnce();
    if (!made.ok()) return done(made.status());
    compiled = *made;
  }
  Call* call = nullptr;
  try {
    call = Take();
  } catch (const std::bad_alloc&) {
    return done(NoMemory());
  }
  call->Start(*compiled, step, arguments, results, std::move(done));
}

// --- FunctionRuntime -----------------------------------------------------------------------------

std::shared_ptr<FunctionRuntime> FunctionRuntime::Make(const tensorflow::ConfigProto& config,
                                                       std::vector<std::shared_ptr<Device>> devices,
                                                       std::shared_ptr<KernelStore> kernels) {
  return std::shared_ptr<FunctionRuntime>(
      new FunctionRuntime(config, std::move(devices), std::move(kernels)));
}

FunctionRuntime::FunctionRuntime(const tensorflow::ConfigProto& config,
                                 std::vector<std::shared_ptr<Device>> devices,
                                 std::shared_ptr<KernelStore> kernels)
    : config_(config), devices_(std::move(devices)), kernels_(std::move(kernels)) {
  for (const auto& device : devices_) {
    device_infos_.push_back({device->name, device->type, device->incarnation});
  }
}

FunctionRuntime::~FunctionRuntime() = default;

StatusOr<CalledFunction*> FunctionRuntime::Find(const tensorflow::NameAttrList& function,
                                                const Site& site) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<const FunctionBody> body, site.library->Body(function));
  const bool is_stateful = site.library->IsStateful(*body->function);
  const std::string key = absl::StrCat(is_stateful ? site.name : "", "\n\n", site.device->name,
                                       "\n\n", DeterministicBytes(function));
  MutexLock lock(&mu_);
  if (const auto it = instances_.find(key); it != instances_.end()) return it->second.get();
  if (instances_.size() >= kMaxCalledFunctions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "function '", function.name(), "': a session must call at most ", kMaxCalledFunctions,
        " functions by different attrs and places, got a further one"));
  }
  const auto call = NewMessage<tensorflow::NameAttrList>();
  *call = function;
  auto instance = std::make_unique<Instance>(this, site, call, is_stateful, body->argument_types,
                                             body->result_types);
  return instances_.emplace(key, std::move(instance)).first->second.get();
}

StatusOr<std::unique_ptr<const FunctionRuntime::Compiled>> FunctionRuntime::Compile(
    const Instance& instance) {
  const Site& site = instance.site();
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<const FunctionBody> body,
                      site.library->Body(instance.call()));
  RunGraph run;
  run.graph = std::make_unique<Graph>();
  run.graph->mutable_versions()->set_producer(site.graph_producer);
  run.graph->set_library(site.library);
  FunctionCopyOptions copy;
  copy.site = site.name;
  copy.boundary = true;
  // A function without state has no place of its own.
  if (instance.is_stateful()) {
    copy.prefix = absl::StrCat(absl::StrReplaceAll(site.name, {{"\n", "/"}}), "/");
  }
  MR_ASSIGN_OR_RETURN(const std::vector<Node*> copies,
                      CopyFunctionNodes(*body, copy, run.graph.get()));
  const auto copy_of = [&](const Node* node) { return copies[static_cast<size_t>(node->id())]; };
  run.signature.feed_types = body->argument_types;
  run.signature.fetch_types = body->result_types;
  for (const Node* const node : body->arguments) run.signature.feed_nodes.push_back(copy_of(node));
  for (const Node* const node : body->results) run.signature.fetch_nodes.push_back(copy_of(node));
  for (const Node* const node : body->effects) run.signature.target_nodes.push_back(copy_of(node));

  CutOptions options;
  options.config = &config_;
  options.cut = CutBy::kDevice;
  options.devices = device_infos_;
  options.default_device = site.device->name;
  options.placements = &placements_;
  options.warned_of_missing_gpu = &warned_of_missing_gpu_;
  MR_ASSIGN_OR_RETURN(const GraphPartitions partitions, CutRunGraph(std::move(run), options));
  auto compiled = std::make_unique<Compiled>();
  const auto find_device = [this](absl::string_view name) -> Device* {
    for (const auto& device : devices_) {
      if (device->name == name) return device.get();
    }
    return nullptr;
  };
  MR_ASSIGN_OR_RETURN(compiled->parts,
                      BuildParts(partitions, find_device, kernels_.get(), this, nullptr));
  compiled->transfers = TransfersOf(compiled->parts);
  MutexLock lock(&mu_);
  ++compilations_;
  return std::unique_ptr<const Compiled>(std::move(compiled));
}

FunctionRuntime::Stats FunctionRuntime::stats() const {
  MutexLock lock(&mu_);
  return {static_cast<int64_t>(instances_.size()), compilations_};
}

}  // namespace millrace
