// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/direct_session.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/exceptions.h"
#include "core/fail_point.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/device_name.h"
#include "graph/graph.h"
#include "graph/place/partition.h"
#include "graph/place/placer.h"
#include "graph/signature.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "runtime/device.h"
#include "runtime/engine/executor.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/resource_manager.h"
#include "runtime/session/compile_path.h"
#include "runtime/session/direct_binding.h"
#include "runtime/session/function_runtime.h"
#include "runtime/session/limited_compile.h"
#include "runtime/session/run_key.h"
#include "runtime/session/signature_compiler.h"
#include "runtime/session/step_pool.h"
#include "runtime/source_lines.h"
#include "runtime/step_context.h"
#include "runtime/step_memory.h"
#include "runtime/step_stats.h"

namespace millrace {
namespace {

constexpr int kMaxCpuDevices = 1024;
// Of a session one compiles, the others wait for it.
constexpr int kCompileThreads = 64;
constexpr int64_t kReportedMemoryLimit = int64_t{256} << 20;  // what TensorFlow reports for a CPU

uint64_t RandomIncarnation() {
  std::random_device random;
  const uint64_t value = (uint64_t{random()} << 32) | random();
  return value == 0 ? 1 : value;
}

// Everything that a session and its prepared steps share.
class SessionState : public std::enable_shared_from_this<SessionState> {
 public:
  ~SessionState();
  static StatusOr<std::shared_ptr<SessionState>> Make(const SessionOptions& options, Clock* clock);

  Status Extend(const tensorflow::GraphDef& def) { return compiler_.Extend(def); }
  Status Extend(const Graph& graph, int first_id) { return compiler_.Extend(graph, first_id); }
  // `key` is the SignatureKey of the lists.
  StatusOr<std::shared_ptr<const DirectBinding>> Bind(const std::string& key,
                                                      absl::FunctionRef<RunSignature()> signature);
  // The same for a Run that must have ended at `deadline`: DeadlineExceeded then, and the signature
  // is compiled further.
  StatusOr<std::shared_ptr<const DirectBinding>> BindBefore(
      absl::Time deadline, const std::string& key, absl::FunctionRef<RunSignature()> signature);
  // A step of what was prepared.
  Status Run(const tensorflow::RunOptions& options, const DirectBinding& binding,
             absl::Span<const Tensor> feeds, absl::Span<Tensor> results,
             tensorflow::RunMetadata* metadata);
  Status Run(const StepOptions& options, const DirectBinding& binding,
             absl::Span<const Tensor> feeds, absl::Span<Tensor> results);
  // A step by names; `key` and `signature` as for Bind, `feeds` in their order.
  StatusOr<std::vector<Tensor>> RunByNames(const tensorflow::RunOptions& options,
                                           const std::string& key,
                                           absl::FunctionRef<RunSignature()> signature,
                                           absl::Span<const Tensor> feeds,
                                           tensorflow::RunMetadata* metadata);
  void Close();
  void ClearContainers(absl::Span<const std::string> containers);
  std::vector<tensorflow::DeviceAttributes> ListDevices() const;
  DirectSessionStats stats();
  SourceLines* source_lines() { return &source_lines_; }

 private:
  SessionState(const SessionOptions& options, Clock* clock);
  Status MakeDevices();
  StatusOr<GraphPartitions> Cut(const Graph& graph, const RunSignature& signature);
  StatusOr<std::shared_ptr<const CompiledSignature>> Compile(const Graph& graph,
                                                             const RunSignature& signature);
  Device* FindDevice(absl::string_view name) const;
  // When the time of a call is over, by clock_; InfiniteFuture for one that has no limit.
  absl::Time DeadlineOf(const tensorflow::RunOptions& options) const;
  // `limits` with its deadline by clock_.
  Status RunStep(const tensorflow::RunOptions& options, const StepOptions& limits,
                 const DirectBinding& binding, StepPool::Step& step, absl::Span<const Tensor> feeds,
                 absl::Span<Tensor> results, tensorflow::RunMetadata* metadata);
  Status RunParts(const tensorflow::RunOptions& options, const StepOptions& limits,
                  const CompiledSignature& compiled, StepPool::Step& step,
                  absl::Span<const Tensor> args, absl::Span<Tensor> results,
                  tensorflow::RunMetadata* metadata);
  Arena* ArenaFor(const tensorflow::RunOptions& options) const;

  const tensorflow::ConfigProto config_;
  const int64_t max_step_bytes_;
  const std::string handle_;
  Clock* const clock_;
  // What calls say after Close, which needs no memory to say it.
  const Status closed_ = absl::CancelledError("Session has been closed.");
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<DeviceInfo> device_infos_;
  std::unique_ptr<Arena> own_arena_;
  Arena* arena_ = nullptr;
  SourceLines source_lines_;
  const std::shared_ptr<KernelStore> kernels_ = std::make_shared<KernelStore>();
  std::shared_ptr<FunctionRuntime> functions_;
  // For the thread that compiles; there is one at a time.
  StatefulPlacements placements_;
  bool warned_of_missing_gpu_ = false;
  SignatureCompiler<const CompiledSignature> compiler_;
  LimitedCompile<DirectBinding> compiling_;  // for Runs that have a limit
  StepPool steps_;
};

// Where signatures are compiled for Runs that have a limit, in all sessions. Never destroyed.
IoPool* CompilePool() {
  static IoPool* const pool = new IoPool(kCompileThreads);
  return pool;
}

std::string NextHandle() {
  static std::atomic<int64_t> next{1};  // relaxed: hands out numbers
  return absl::StrCat("direct_", next.fetch_add(1, std::memory_order_relaxed));
}

SessionState::SessionState(const SessionOptions& options, Clock* clock)
    : config_(ConfigProtoOf(options.config)),
      max_step_bytes_(options.max_step_bytes),
      handle_(NextHandle()),
      clock_(clock),
      compiler_(OperationFetch::kIsTarget,
                static_cast<size_t>(std::max(1, options.max_cached_plans)),
                options.max_cached_plan_bytes,
                options.check_inferred_shapes ? FedShapes::kInferred : FedShapes::kOfPlaceholders,
                [this](const Graph& graph, const RunSignature& signature) {
                  return Compile(graph, signature);
                }),
      steps_(absl::StrCat(handle_, "/step")) {}

// Iterators may call functions, which keep the devices whose resources the iterators are.
SessionState::~SessionState() {
  for (const std::shared_ptr<Device>& device : devices_) device->resources->ClearAll();
}

StatusOr<std::shared_ptr<SessionState>> SessionState::Make(const SessionOptions& options,
                                                           Clock* clock) {
  if (options.max_step_bytes < 0) {
    return InvalidArgument("SessionOptions: max_step_bytes must be >= 0, got ",
                           options.max_step_bytes);
  }
  std::shared_ptr<SessionState> state(new SessionState(options, clock));
  MR_RETURN_IF_ERROR(state->MakeDevices());
  const int threads = ComputeThreads(state->config_);
  if (threads > 0 || state->config_.use_per_session_threads()) {
    state->own_arena_ = Arena::Make(threads);
  }
  state->arena_ = state->own_arena_ != nullptr ? state->own_arena_.get() : Arena::Default();
  return state;
}

Status SessionState::MakeDevices() {
  const auto count = config_.device_count().find("CPU");
  const int num_cpus = count == config_.device_count().end() ? 1 : count->second;
  if (num_cpus < 1 || num_cpus > kMaxCpuDevices) {
    return InvalidArgument("ConfigProto: device_count['CPU'] must be in [1,", kMaxCpuDevices,
                           "], got ", num_cpus);
  }
  for (int i = 0; i < num_cpus; ++i) {
    auto device = std::make_shared<Device>();
    device->name = FullDeviceName("localhost", 0, 0, "CPU", i);
    device->type = "CPU";
    device->incarnation = RandomIncarnation();
    device->resources = std::make_unique<ResourceManager>(device->name);
    device_infos_.push_back({device->name, device->type, device->incarnation});
    devices_.push_back(std::move(device));
  }
  functions_ = FunctionRuntime::Make(config_, devices_, kernels_);
  return absl::OkStatus();
}

// --- Signatures ----------------------------------------------------------------------------------

Device* SessionState::FindDevice(absl::string_view name) const {
  for (const std::shared_ptr<Device>& device : devices_) {
    if (device->name == name) return device.get();
  }
  return nullptr;
}

StatusOr<GraphPartitions> SessionState::Cut(const Graph& graph, const RunSignature& signature) {
  CutOptions options;
  options.config = &config_;
  options.cut = CutBy::kDevice;
  options.devices = device_infos_;
  options.default_device = devices_[0]->name;
  options.placements = &placements_;
  options.warned_of_missing_gpu = &warned_of_missing_gpu_;
  return CutForSignature(graph, signature, options);
}

StatusOr<std::shared_ptr<const CompiledSignature>> SessionState::Compile(
    const Graph& graph, const RunSignature& signature) {
  MR_RETURN_IF_ERROR(FailPoint("session/compile"));
  auto compiled = std::make_shared<CompiledSignature>();
  MR_ASSIGN_OR_RETURN(const GraphPartitions partitions, Cut(graph, signature));
  MR_ASSIGN_OR_RETURN(compiled->parts,
                      BuildParts(
                          partitions, [this](absl::string_view name) { return FindDevice(name); },
                          kernels_.get(), functions_.get(), &compiled->held));
  compiled->transfers = TransfersOf(compiled->parts);
  compiled->signature = signature;
  return std::shared_ptr<const CompiledSignature>(std::move(compiled));
}

StatusOr<std::shared_ptr<const DirectBinding>> SessionState::Bind(
    const std::string& key, absl::FunctionRef<RunSignature()> signature) {
  SignatureCompiler<const CompiledSignature>::Entries dropped;
  StatusOr<std::shared_ptr<const DirectBinding>> binding = compiler_.Bind(key, signature, &dropped);
  if (!dropped.empty()) steps_.Forget();
  if (!binding.ok()) return source_lines_.Complete(binding.status());
  return binding;
}

StatusOr<std::shared_ptr<const DirectBinding>> SessionState::BindBefore(
    absl::Time deadline, const std::string& key, absl::FunctionRef<RunSignature()> signature) {
  if (deadline == absl::InfiniteFuture()) return Bind(key, signature);
  const auto bound = compiling_.Await(
      key,
      [self = shared_from_this(), key, names = signature()] {
        return self->Bind(key, [&names] { return names; });
      },
      CompilePool(), clock_, deadline);
  // Also when it has come just too late for its step.
  if (bound.has_value() && (!bound->ok() || clock_->Now() < deadline)) return *bound;
  return TimedOutWaitingFor(
      "its signature to be compiled, which took all of its time; it is compiled to the end and "
      "kept for the next Run");
}

// --- Steps ---------------------------------------------------------------------------------------

Arena* SessionState::ArenaFor(const tensorflow::RunOptions& options) const {
  if (options.inter_op_thread_pool() >= 0) return arena_;
  static Arena* const caller_only = Arena::Make(1).release();
  return caller_only;
}

absl::Time SessionState::DeadlineOf(const tensorflow::RunOptions& options) const {
  const int64_t timeout_ms =
      options.timeout_in_ms() > 0 ? options.timeout_in_ms() : config_.operation_timeout_in_ms();
  if (timeout_ms <= 0) return absl::InfiniteFuture();
  return clock_->Now() + absl::Milliseconds(timeout_ms);
}

// Passes a caller's cancellation on to a step, while the step runs.
class PassedOn {
 public:
  PassedOn(CancellationManager* from, CancellationManager* to) : from_(from) {
    if (from_ == nullptr) return;
    is_registered_ = from_->Register(&token_, [to] { to->StartCancel(); });
    if (!is_registered_) to->StartCancel();
  }
  ~PassedOn() {
    if (is_registered_) from_->Deregister(token_);
  }
  PassedOn(const PassedOn&) = delete;
  PassedOn& operator=(const PassedOn&) = delete;

 private:
  CancellationManager* const from_;
  CancellationManager::Token token_ = 0;
  bool is_registered_ = false;
};

// In RunStep, as that in its callers.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline Status SessionState::RunParts(
    const tensorflow::RunOptions& options, const StepOptions& limits,
    const CompiledSignature& compiled, StepPool::Step& step, absl::Span<const Tensor> args,
    absl::Span<Tensor> results, tensorflow::RunMetadata* metadata) {
  std::optional<StepStatsCollector> collector;
  ExecutorOptions executor_options;
  if (metadata != nullptr && options.trace_level() != tensorflow::RunOptions::NO_TRACE) {
    executor_options.stats = &collector.emplace();
  }
  if (limits.deadline != absl::InfiniteFuture()) {
    executor_options.deadline = absl::Now() + (limits.deadline - clock_->Now());
    executor_options.keep = step.Share(shared_from_this());
  }

  if (compiled.transfers != nullptr) step->rendezvous = MakeLocalRendezvous(compiled.transfers);
  Arena* const arena = limits.arena != nullptr ? limits.arena : ArenaFor(options);
  const std::shared_ptr<StepMemory> memory =
      max_step_bytes_ > 0 ? StepMemory::Make(max_step_bytes_) : nullptr;
  step->contexts.resize(compiled.parts.size());
  step->runs.resize(compiled.parts.size());
  for (size_t i = 0; i < compiled.parts.size(); ++i) {
    StepContext& context = step->contexts[i];
    context.step_id = step.number();
    context.device = compiled.parts[i].device;
    context.rendezvous = step->rendezvous;
    context.cancellation = &*step->cancellation;
    context.arena = arena;
    context.io_pool = IoPool::Default();
    context.step_resources = &step->resources;
    context.memory = memory;
    context.session_handle = handle_;
    context.args = args;
    context.results = results;
    context.deadline = executor_options.deadline;
    context.stats = executor_options.stats;
    step->runs[i] = {compiled.parts[i].executor.get(), &context};
  }
  const PassedOn cancellation(limits.cancellation, &*step->cancellation);
  const Status status = RunPartitions(step->runs, executor_options);
  if (collector) collector->TakeInto(metadata->mutable_step_stats());
  return WithoutDerivedMark(status);
}

// In both of its callers: a call costs as much as a check of the feeds.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline Status SessionState::RunStep(
    const tensorflow::RunOptions& options, const StepOptions& limits, const DirectBinding& binding,
    StepPool::Step& step, absl::Span<const Tensor> feeds, absl::Span<Tensor> results,
    tensorflow::RunMetadata* metadata) {
  const BoundSignature& bound = binding.bound;
  MR_RETURN_IF_ERROR(CheckFeeds(bound, binding.feed_rules, feeds));
  MR_RETURN_IF_ERROR(CheckRunOptions(config_, options));
  if (binding.compiled == nullptr) {
    ArrangeResults(bound, feeds, {}, results);
    return absl::OkStatus();
  }
  const CompiledSignature& compiled = *binding.compiled;
  absl::Span<const Tensor> args = feeds;
  if (!bound.feeds_in_order) {
    step->args.resize(feeds.size());
    for (size_t i = 0; i < feeds.size(); ++i) step->args[bound.feed_to[i]] = feeds[i];
    args = step->args;
  }
  absl::Span<Tensor> fetched = results;
  if (bound.results_in_order) {
    for (Tensor& result : results) result = Tensor();
  } else {
    step->fetched.resize(compiled.signature.fetches.size());
    fetched = absl::MakeSpan(step->fetched);
  }
  Status status = RunParts(options, limits, compiled, step, args, fetched, metadata);
  if (status.ok()) status = CheckFetched(compiled.signature, fetched);
  if (!status.ok()) {
    for (Tensor& tensor : fetched) tensor = Tensor();
    return source_lines_.Complete(status);
  }
  if (metadata != nullptr && options.output_partition_graphs()) {
    MR_RETURN_IF_ERROR(compiler_.WithGraph([&](const Graph& graph) -> Status {
      MR_ASSIGN_OR_RETURN(const GraphPartitions partitions, Cut(graph, compiled.signature));
      for (const auto& [location, part] : partitions) {
        part->ToGraphDef(metadata->add_partition_graphs(), 0, /*assigned=*/true);
      }
      return absl::OkStatus();
    }));
  }
  if (!bound.results_in_order) ArrangeResults(bound, feeds, fetched, results);
  return absl::OkStatus();
}

Status SessionState::Run(const tensorflow::RunOptions& options, const DirectBinding& binding,
                         absl::Span<const Tensor> feeds, absl::Span<Tensor> results,
                         tensorflow::RunMetadata* metadata) {
  if (results.size() != binding.bound.results.size()) {
    return InvalidArgument("Run: the signature has ", binding.bound.results.size(),
                           " results, got places for ", results.size());
  }
  MR_ASSIGN_OR_RETURN(StepPool::Step step, steps_.Begin());
  return RunStep(options, {.deadline = DeadlineOf(options)}, binding, step, feeds, results,
                 metadata);
}

Status SessionState::Run(const StepOptions& options, const DirectBinding& binding,
                         absl::Span<const Tensor> feeds, absl::Span<Tensor> results) {
  if (results.size() != binding.bound.results.size()) {
    return InvalidArgument("Run: the signature has ", binding.bound.results.size(),
                           " results, got places for ", results.size());
  }
  const tensorflow::RunOptions& no_options = tensorflow::RunOptions::default_instance();
  StepOptions limits = options;
  limits.deadline = DeadlineOf(no_options);
  if (options.deadline != absl::InfiniteFuture()) {
    const absl::Time now = absl::Now();
    if (options.deadline <= now) {
      return absl::DeadlineExceededError("Run: its time was over before it began");
    }
    limits.deadline = std::min(limits.deadline, clock_->Now() + (options.deadline - now));
  }
  MR_ASSIGN_OR_RETURN(StepPool::Step step, steps_.Begin());
  return RunStep(no_options, limits, binding, step, feeds, results, nullptr);
}

StatusOr<std::vector<Tensor>> SessionState::RunByNames(const tensorflow::RunOptions& options,
                                                       const std::string& key,
                                                       absl::FunctionRef<RunSignature()> signature,
                                                       absl::Span<const Tensor> feeds,
                                                       tensorflow::RunMetadata* metadata) {
  const absl::Time deadline = DeadlineOf(options);
  std::optional<StepPool::Step> step;
  const auto begin = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(StepPool::Step begun, steps_.Begin());
    step.emplace(std::move(begun));
    return absl::OkStatus();
  };
  MR_RETURN_IF_ERROR(begin());
  const DirectBinding* binding = step->Find(key);
  if (binding != nullptr) {
    binding->SayUsed();
  } else {
    const uint64_t version = steps_.version();
    MR_ASSIGN_OR_RETURN(std::shared_ptr<const DirectBinding> bound, compiler_.Find(key));
    if (bound == nullptr) {
      step.reset();  // Close does not wait for compilations
      MR_ASSIGN_OR_RETURN(bound, BindBefore(deadline, key, signature));
      MR_RETURN_IF_ERROR(begin());
    }
    binding = step->Keep(key, std::move(bound), version);
  }
  std::vector<Tensor> results(binding->bound.results.size());
  MR_RETURN_IF_ERROR(RunStep(options, {.deadline = deadline}, *binding, *step, feeds,
                             absl::MakeSpan(results), metadata));
  return results;
}

void SessionState::Close() {
  const auto dropped = compiler_.Close(closed_);  // without a lock
  steps_.Close(closed_);
}

void SessionState::ClearContainers(absl::Span<const std::string> containers) {
  for (const std::shared_ptr<Device>& device : devices_) {
    if (containers.empty()) device->resources->ClearContainer(ResourceManager::kDefaultContainer);
    for (const std::string& container : containers) device->resources->ClearContainer(container);
  }
}

std::vector<tensorflow::DeviceAttributes> SessionState::ListDevices() const {
  std::vector<tensorflow::DeviceAttributes> result;
  for (const std::shared_ptr<Device>& device : devices_) {
    tensorflow::DeviceAttributes attributes;
    attributes.set_name(device->name);
    attributes.set_device_type(device->type);
    attributes.set_memory_limit(kReportedMemoryLimit);
    attributes.set_incarnation(device->incarnation);
    result.push_back(std::move(attributes));
  }
  return result;
}

DirectSessionStats SessionState::stats() {
  const auto kept = compiler_.stats();
  DirectSessionStats stats;
  stats.compilations = kept.compilations;
  stats.cached_signatures = kept.entries;
  stats.cached_bytes = kept.bytes;
  for (const auto& compiled : compiler_.Kept()) {
    for (const StepPart& part : compiled->parts) {
      const ExecutorCounters counters = part.executor->counters();
      stats.wakeups += counters.wakeups;
      stats.blocking_waits += counters.blocking_waits;
    }
  }
  return stats;
}

// --- The session ---------------------------------------------------------------------------------

class DirectPreparedStep : public PreparedStep {
 public:
  DirectPreparedStep(std::shared_ptr<SessionState> state,
                     std::shared_ptr<const DirectBinding> binding)
      : state_(std::move(state)), binding_(std::move(binding)) {}
  StatusOr<std::vector<Tensor>> Run(absl::Span<const Tensor> feeds) override {
    return Run(tensorflow::RunOptions::default_instance(), feeds, nullptr);
  }
  StatusOr<std::vector<Tensor>> Run(const tensorflow::RunOptions& options,
                                    absl::Span<const Tensor> feeds,
                                    tensorflow::RunMetadata* metadata) override {
    return NoExceptions("Run", [&]() -> StatusOr<std::vector<Tensor>> {
      std::vector<Tensor> results(binding_->bound.results.size());
      MR_RETURN_IF_ERROR(state_->Run(options, *binding_, feeds, absl::MakeSpan(results), metadata));
      return results;
    });
  }
  Status RunInto(absl::Span<const Tensor> feeds, absl::Span<Tensor> results) override {
    return NoExceptions("Run", [&] {
      return state_->Run(tensorflow::RunOptions::default_instance(), *binding_, feeds, results,
                         nullptr);
    });
  }
  Status RunInto(const StepOptions& options, absl::Span<const Tensor> feeds,
                 absl::Span<Tensor> results) override {
    for (Tensor& result : results) result = Tensor();
    return NoExceptions("Run", [&] { return state_->Run(options, *binding_, feeds, results); });
  }

 private:
  const std::shared_ptr<SessionState> state_;
  const std::shared_ptr<const DirectBinding> binding_;
};

// Sessions that exist, for ResetTarget.
struct LiveSessions {
  Mutex mu;
  std::vector<std::weak_ptr<SessionState>> states ABSL_GUARDED_BY(mu);
};
LiveSessions& AllSessions() {
  static LiveSessions* const sessions = new LiveSessions;
  return *sessions;
}

class DirectSession : public Session {
 public:
  explicit DirectSession(std::shared_ptr<SessionState> state) : state_(std::move(state)) {}
  ~DirectSession() override { Close().IgnoreError(); }

  Status DoExtend(const tensorflow::GraphDef& graph) override {
    return NoExceptions("Extend",
                        [&] { return state_->source_lines()->Complete(state_->Extend(graph)); });
  }
  Status DoExtendFrom(const Graph& graph, int first_id) override {
    return NoExceptions("Extend", [&] {
      return state_->source_lines()->Complete(state_->Extend(graph, first_id));
    });
  }

  StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                      absl::Span<const Feed> feeds,
                                      absl::Span<const FetchName> fetches,
                                      absl::Span<const FetchName> targets,
                                      tensorflow::RunMetadata* metadata) override {
    return NoExceptions("Run", [&]() -> StatusOr<std::vector<Tensor>> {
      // Kept between calls for its memory.
      thread_local std::string key;
      MakeRunKey(feeds, fetches, targets, &key);
      const auto names = [&] { return NamesOf(feeds, fetches, targets); };
      if (feeds.size() == 1) {
        return state_->RunByNames(options, key, names, absl::MakeConstSpan(&feeds[0].value, 1),
                                  metadata);
      }
      absl::InlinedVector<Tensor, 4> values;
      for (const Feed& feed : feeds) values.push_back(feed.value);
      return state_->RunByNames(options, key, names, values, metadata);
    });
  }

  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature& signature) override {
    return NoExceptions("Prepare", [&]() -> StatusOr<std::unique_ptr<PreparedStep>> {
      MR_ASSIGN_OR_RETURN(std::shared_ptr<const DirectBinding> binding,
                          state_->Bind(SignatureKey(signature), [&] { return signature; }));
      return std::unique_ptr<PreparedStep>(
          std::make_unique<DirectPreparedStep>(state_, std::move(binding)));
    });
  }

  Status Close() override {
    return NoExceptions("Close", [&] {
      state_->Close();
      return absl::OkStatus();
    });
  }
  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override {
    return NoExceptions("ListDevices",
                        [&]() -> StatusOr<std::vector<tensorflow::DeviceAttributes>> {
                          return state_->ListDevices();
                        });
  }
  DirectSessionStats stats() const { return state_->stats(); }

 protected:
  void AddSourceLines(std::vector<std::pair<std::string, std::string>> lines) override {
    state_->source_lines()->Add(std::move(lines));
  }

 private:
  const std::shared_ptr<SessionState> state_;
};

Status ResetDirectSessions(const SessionOptions&, absl::Span<const std::string> containers) {
  std::vector<std::shared_ptr<SessionState>> states;
  {
    LiveSessions& all = AllSessions();
    MutexLock lock(&all.mu);
    for (const std::weak_ptr<SessionState>& weak : all.states) {
      if (std::shared_ptr<SessionState> state = weak.lock()) states.push_back(std::move(state));
    }
    all.states.clear();
  }
  for (const std::shared_ptr<SessionState>& state : states) {
    state->ClearContainers(containers);
    state->Close();
  }
  return absl::OkStatus();
}

const SessionFactoryRegistration kDirect(
    "", [](const SessionOptions& options) { return NewDirectSession(options); },
    ResetDirectSessions);

}  // namespace

StatusOr<std::unique_ptr<Session>> NewDirectSession(const SessionOptions& options, Clock* clock) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<SessionState> state, SessionState::Make(options, clock));
  {
    LiveSessions& all = AllSessions();
    MutexLock lock(&all.mu);
    all.states.erase(std::remove_if(all.states.begin(), all.states.end(),
                                    [](const auto& weak) { return weak.expired(); }),
                     all.states.end());
    all.states.push_back(state);
  }
  return std::unique_ptr<Session>(std::make_unique<DirectSession>(std::move(state)));
}

std::optional<DirectSessionStats> StatsOfDirectSession(const Session& session) {
  const auto* direct = dynamic_cast<const DirectSession*>(&session);
  if (direct == nullptr) return std::nullopt;
  return direct->stats();
}

}  // namespace millrace
