// SPDX-License-Identifier: Apache-2.0
#include "runtime/direct_session.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <random>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "graph/device_name.h"
#include "runtime/executor.h"
#include "runtime/signature_compiler.h"
#include "runtime/source_lines.h"
#include "runtime/step_stats.h"

namespace millrace {
namespace {

constexpr int kMaxCpuDevices = 1024;
constexpr int64_t kReportedMemoryLimit = int64_t{256} << 20;  // what TensorFlow reports for a CPU

Status Closed() { return absl::CancelledError("Session has been closed."); }

uint64_t RandomIncarnation() {
  std::random_device random;
  const uint64_t value = (uint64_t{random()} << 32) | random();
  return value == 0 ? 1 : value;
}

// A step that is under way, on the stack of its Run.
struct ActiveStep {
  CancellationManager cancellation;
  std::shared_ptr<Rendezvous> rendezvous;
  int pins = 0;  // Close is using it
  std::list<ActiveStep*>::iterator place;
};

// Everything that a session and its prepared steps share.
class SessionState {
 public:
  static StatusOr<std::shared_ptr<SessionState>> Make(const SessionOptions& options);

  Status Extend(const tensorflow::GraphDef& def);
  // SignatureCompiler::Bind through the cache; `key` is the SignatureKey of the lists.
  StatusOr<std::shared_ptr<const SignatureBinding>> BindCached(
      const std::string& key, absl::FunctionRef<RunSignature()> signature);
  StatusOr<std::vector<Tensor>> Run(const tensorflow::RunOptions& options,
                                    const SignatureBinding& binding, absl::Span<const Tensor> feeds,
                                    tensorflow::RunMetadata* metadata);
  void Close();
  void ClearContainers(absl::Span<const std::string> containers);
  std::vector<tensorflow::DeviceAttributes> ListDevices() const;
  DirectSessionStats stats();
  SourceLines* source_lines() { return &source_lines_; }

 private:
  struct CacheEntry {
    std::shared_ptr<const SignatureBinding> binding;
    std::list<std::string>::iterator place;  // in recent_
  };

  SessionState() = default;
  Status CheckFeeds(const SignatureBinding& binding, absl::Span<const Tensor> feeds) const;
  Status BeginStep(ActiveStep* step);
  void EndStep(ActiveStep* step);
  Status RunParts(const tensorflow::RunOptions& options, const CompiledSignature& compiled,
                  absl::Span<const Tensor> args, absl::Span<Tensor> results,
                  tensorflow::RunMetadata* metadata);
  Arena* ArenaFor(const tensorflow::RunOptions& options) const;

  tensorflow::ConfigProto config_;
  size_t max_cached_ = 1;
  std::string handle_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Arena> own_arena_;
  Arena* arena_ = nullptr;
  SourceLines source_lines_;
  std::atomic<int64_t> next_step_id_{1};  // relaxed: hands out numbers
  std::unique_ptr<SignatureCompiler> compiler_;

  Mutex mu_;
  CondVar step_ended_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::list<ActiveStep*> active_ ABSL_GUARDED_BY(mu_);
  std::list<std::string> recent_ ABSL_GUARDED_BY(mu_);  // keys of cache_, latest first
  absl::flat_hash_map<std::string, CacheEntry> cache_ ABSL_GUARDED_BY(mu_);
};

StatusOr<std::shared_ptr<SessionState>> SessionState::Make(const SessionOptions& options) {
  static std::atomic<int64_t> next_session{1};
  std::shared_ptr<SessionState> state(new SessionState());
  state->config_ = options.config;
  state->max_cached_ = static_cast<size_t>(std::max(1, options.max_cached_plans));
  state->handle_ = absl::StrCat("direct_", next_session.fetch_add(1, std::memory_order_relaxed));

  const tensorflow::ConfigProto& config = options.config;
  const auto count = config.device_count().find("CPU");
  const int num_cpus = count == config.device_count().end() ? 1 : count->second;
  if (num_cpus < 1 || num_cpus > kMaxCpuDevices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ConfigProto: device_count['CPU'] must be in [1,", kMaxCpuDevices, "], got ", num_cpus));
  }
  for (int i = 0; i < num_cpus; ++i) {
    auto device = std::make_unique<Device>();
    device->name = FullDeviceName("localhost", 0, 0, "CPU", i);
    device->type = "CPU";
    device->incarnation = RandomIncarnation();
    device->resources = std::make_unique<ResourceManager>(device->name);
    state->devices_.push_back(std::move(device));
  }

  state->compiler_ =
      std::make_unique<SignatureCompiler>(state->devices_, state->config_, state->max_cached_);

  // One number: intra-op wins, since loops inside of kernels and nodes share the arena.
  int threads = config.intra_op_parallelism_threads();
  if (threads <= 0) threads = config.inter_op_parallelism_threads();
  if (threads < 0) threads = 1;  // "in the caller"
  if (threads > 0 || config.use_per_session_threads()) {
    state->own_arena_ = Arena::Make(threads);
  }
  state->arena_ = state->own_arena_ != nullptr ? state->own_arena_.get() : Arena::Default();
  return state;
}

// --- Signatures ----------------------------------------------------------------------------------

Status SessionState::Extend(const tensorflow::GraphDef& def) {
  {
    MutexLock lock(&mu_);
    if (closed_) return Closed();
  }
  return compiler_->Extend(def);
}

StatusOr<std::shared_ptr<const SignatureBinding>> SessionState::BindCached(
    const std::string& key, absl::FunctionRef<RunSignature()> signature) {
  {
    MutexLock lock(&mu_);
    if (closed_) return Closed();
    if (auto it = cache_.find(key); it != cache_.end()) {
      if (it->second.place != recent_.begin()) {
        recent_.splice(recent_.begin(), recent_, it->second.place);
      }
      return it->second.binding;
    }
  }
  const RunSignature names = signature();
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const SignatureBinding> binding,
                      compiler_->Bind(names.feeds, names.fetches, names.targets));
  // Let go of outside of the lock: this may be the last user of a plan.
  std::shared_ptr<const SignatureBinding> evicted;
  MutexLock lock(&mu_);
  if (closed_ || cache_.count(key) != 0) return binding;
  if (cache_.size() >= max_cached_) {
    auto oldest = cache_.find(recent_.back());
    evicted = std::move(oldest->second.binding);
    cache_.erase(oldest);
    recent_.pop_back();
  }
  recent_.push_front(key);
  cache_.emplace(key, CacheEntry{binding, recent_.begin()});
  return binding;
}

// --- Steps ---------------------------------------------------------------------------------------

Status SessionState::CheckFeeds(const SignatureBinding& binding,
                                absl::Span<const Tensor> feeds) const {
  if (feeds.size() != binding.num_feeds) {
    return absl::InvalidArgumentError(absl::StrCat("Run: the signature has ", binding.num_feeds,
                                                   " feeds, got ", feeds.size(), " tensors"));
  }
  for (size_t i = 0; i < feeds.size(); ++i) {
    const Tensor& value = feeds[i];
    const std::string& name = binding.feed_names[i];
    if (!value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Cannot feed Tensor '", name, "' without a value, got an empty Tensor"));
    }
    if (binding.compiled == nullptr) continue;
    const DType type = binding.compiled->feed_types[binding.feed_to[i]];
    if (type != DT_INVALID && value.dtype() != type) {
      return absl::InvalidArgumentError(absl::StrCat("Cannot feed value of type ",
                                                     DTypeName(value.dtype()), " for Tensor '",
                                                     name, "', which has type ", DTypeName(type)));
    }
    const PartialShape& shape = binding.compiled->feed_shapes[binding.feed_to[i]];
    if (!shape.IsCompatibleWith(value.shape())) {
      return absl::InvalidArgumentError(
          absl::StrCat("Cannot feed value of shape ", value.shape().ToString(), " for Tensor '",
                       name, "', which has shape ", shape.ToString()));
    }
  }
  return absl::OkStatus();
}

Status SessionState::BeginStep(ActiveStep* step) {
  MutexLock lock(&mu_);
  if (closed_) return Closed();
  step->place = active_.insert(active_.end(), step);
  return absl::OkStatus();
}

void SessionState::EndStep(ActiveStep* step) {
  MutexLock lock(&mu_);
  while (step->pins > 0) step_ended_.Wait(&mu_);
  active_.erase(step->place);
  if (closed_) step_ended_.SignalAll();
}

Arena* SessionState::ArenaFor(const tensorflow::RunOptions& options) const {
  if (options.inter_op_thread_pool() >= 0) return arena_;
  static Arena* const caller_only = Arena::Make(1).release();
  return caller_only;
}

Status SessionState::RunParts(const tensorflow::RunOptions& options,
                              const CompiledSignature& compiled, absl::Span<const Tensor> args,
                              absl::Span<Tensor> results, tensorflow::RunMetadata* metadata) {
  ActiveStep active;
  if (compiled.has_transfers) active.rendezvous = MakeLocalRendezvous();
  StepStatsCollector collector;
  ExecutorOptions executor_options;
  const bool traced =
      metadata != nullptr && options.trace_level() != tensorflow::RunOptions::NO_TRACE;
  if (traced) executor_options.stats = &collector;
  const int64_t timeout_ms =
      options.timeout_in_ms() > 0 ? options.timeout_in_ms() : config_.operation_timeout_in_ms();
  if (timeout_ms > 0) {
    executor_options.deadline = absl::Now() + absl::Milliseconds(timeout_ms);
  }

  const int64_t step_id = next_step_id_.fetch_add(1, std::memory_order_relaxed);
  Arena* const arena = ArenaFor(options);
  const size_t num_parts = compiled.parts.size();
  absl::InlinedVector<std::unique_ptr<ResourceManager>, 1> step_resources(num_parts);
  absl::InlinedVector<StepContext, 1> contexts(num_parts);
  absl::InlinedVector<PartitionRun, 1> runs(num_parts);
  for (size_t i = 0; i < num_parts; ++i) {
    step_resources[i] = std::make_unique<ResourceManager>(compiled.parts[i].device->name);
    StepContext& context = contexts[i];
    context.step_id = step_id;
    context.device = compiled.parts[i].device;
    context.rendezvous = active.rendezvous;
    context.cancellation = &active.cancellation;
    context.arena = arena;
    context.io_pool = IoPool::Default();
    context.step_resources = step_resources[i].get();
    context.session_handle = handle_;
    context.args = args;
    context.results = results;
    runs[i] = {compiled.parts[i].executor.get(), &context};
  }
  MR_RETURN_IF_ERROR(BeginStep(&active));
  Status status = RunPartitions(runs, executor_options);
  EndStep(&active);
  if (traced) collector.TakeInto(metadata->mutable_step_stats());
  return WithoutDerivedMark(status);
}

StatusOr<std::vector<Tensor>> SessionState::Run(const tensorflow::RunOptions& options,
                                                const SignatureBinding& binding,
                                                absl::Span<const Tensor> feeds,
                                                tensorflow::RunMetadata* metadata) {
  MR_RETURN_IF_ERROR(CheckFeeds(binding, feeds));
  const int pool = options.inter_op_thread_pool();
  if (pool < -1 || pool > std::max(0, config_.session_inter_op_thread_pool_size() - 1)) {
    return absl::InvalidArgumentError(absl::StrCat("Invalid inter_op_thread_pool: ", pool));
  }
  absl::InlinedVector<Tensor, 4> fetched;
  if (binding.compiled == nullptr) {
    MutexLock lock(&mu_);
    if (closed_) return Closed();
  } else {
    const CompiledSignature& compiled = *binding.compiled;
    absl::InlinedVector<Tensor, 4> args(compiled.signature.feeds.size());
    for (size_t i = 0; i < feeds.size(); ++i) args[binding.feed_to[i]] = feeds[i];
    fetched.resize(compiled.signature.fetches.size());
    const Status status = RunParts(options, compiled, args, absl::MakeSpan(fetched), metadata);
    if (!status.ok()) return source_lines_.Complete(status);
    if (metadata != nullptr && options.output_partition_graphs()) {
      MR_ASSIGN_OR_RETURN(const GraphPartitions partitions,
                          compiler_->Partitions(compiled.signature));
      for (const auto& [location, graph] : partitions) {
        graph->ToGraphDef(metadata->add_partition_graphs(), 0, /*assigned=*/true);
      }
    }
  }
  std::vector<Tensor> results;
  results.reserve(binding.results.size());
  for (size_t i = 0; i < binding.results.size(); ++i) {
    const SignatureBinding::Source& source = binding.results[i];
    results.push_back(source.fed ? feeds[source.index] : fetched[source.index]);
    if (!results.back().has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("Retval[", i, "] does not have value; fetch '",
                                                     binding.result_names[i],
                                                     "' is in a branch that was not taken"));
    }
  }
  return results;
}

void SessionState::Close() {
  std::list<std::string> recent;
  absl::flat_hash_map<std::string, CacheEntry> cache;
  MutexLock lock(&mu_);
  closed_ = true;
  // Plans that nobody uses go with the cache, outside of the lock.
  recent.swap(recent_);
  cache.swap(cache_);
  for (;;) {
    auto it = std::find_if(active_.begin(), active_.end(), [](const ActiveStep* step) {
      return !step->cancellation.IsCancelled();
    });
    if (it == active_.end()) break;
    ActiveStep* const step = *it;
    ++step->pins;
    mu_.Unlock();
    step->cancellation.StartCancel();
    if (step->rendezvous != nullptr) {
      step->rendezvous->StartAbort(Derived(absl::CancelledError("Step was cancelled.")));
    }
    mu_.Lock();
    --step->pins;
    step_ended_.SignalAll();
  }
  while (!active_.empty()) step_ended_.Wait(&mu_);
}

void SessionState::ClearContainers(absl::Span<const std::string> containers) {
  for (const std::unique_ptr<Device>& device : devices_) {
    if (containers.empty()) device->resources->ClearContainer(ResourceManager::kDefaultContainer);
    for (const std::string& container : containers) device->resources->ClearContainer(container);
  }
}

std::vector<tensorflow::DeviceAttributes> SessionState::ListDevices() const {
  std::vector<tensorflow::DeviceAttributes> result;
  for (const std::unique_ptr<Device>& device : devices_) {
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
  DirectSessionStats stats;
  stats.compilations = compiler_->compilations();
  MutexLock lock(&mu_);
  stats.cached_signatures = static_cast<int64_t>(cache_.size());
  absl::flat_hash_set<const CompiledSignature*> seen;
  for (const auto& [key, entry] : cache_) {
    const CompiledSignature* compiled = entry.binding->compiled.get();
    if (compiled == nullptr || !seen.insert(compiled).second) continue;
    for (const CompiledSignature::Part& part : compiled->parts) {
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
                     std::shared_ptr<const SignatureBinding> binding)
      : state_(std::move(state)), binding_(std::move(binding)) {}
  StatusOr<std::vector<Tensor>> Run(absl::Span<const Tensor> feeds) override {
    return state_->Run(tensorflow::RunOptions::default_instance(), *binding_, feeds, nullptr);
  }
  StatusOr<std::vector<Tensor>> Run(const tensorflow::RunOptions& options,
                                    absl::Span<const Tensor> feeds,
                                    tensorflow::RunMetadata* metadata) override {
    return state_->Run(options, *binding_, feeds, metadata);
  }

 private:
  const std::shared_ptr<SessionState> state_;
  const std::shared_ptr<const SignatureBinding> binding_;
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
  ~DirectSession() override { state_->Close(); }

  using Session::Extend;
  using Session::Run;

  Status Extend(const tensorflow::GraphDef& graph) override {
    return state_->source_lines()->Complete(state_->Extend(graph));
  }

  StatusOr<std::vector<Tensor>> Run(const tensorflow::RunOptions& options,
                                    absl::Span<const Feed> feeds,
                                    absl::Span<const FetchName> fetches,
                                    absl::Span<const FetchName> targets,
                                    tensorflow::RunMetadata* metadata) override {
    // Kept between calls for its memory.
    thread_local std::string key;
    key.clear();
    const auto name_of_fetch = [](const FetchName& fetch) -> const std::string& {
      return fetch.name();
    };
    AppendNames(
        feeds, [](const Feed& feed) -> const std::string& { return feed.name; }, &key);
    AppendNames(fetches, name_of_fetch, &key);
    AppendNames(targets, name_of_fetch, &key);
    StatusOr<std::shared_ptr<const SignatureBinding>> binding = state_->BindCached(key, [&] {
      RunSignature signature;
      for (const Feed& feed : feeds) signature.feeds.push_back(feed.name);
      for (const FetchName& fetch : fetches) signature.fetches.push_back(fetch.name());
      for (const FetchName& target : targets) signature.targets.push_back(target.name());
      return signature;
    });
    if (!binding.ok()) return state_->source_lines()->Complete(binding.status());
    absl::InlinedVector<Tensor, 4> values;
    for (const Feed& feed : feeds) values.push_back(feed.value);
    return state_->Run(options, **binding, values, metadata);
  }

  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature& signature) override {
    const RunSignature names{signature.feeds, signature.fetches, signature.targets};
    StatusOr<std::shared_ptr<const SignatureBinding>> binding =
        state_->BindCached(SignatureKey(names), [&] { return names; });
    if (!binding.ok()) return state_->source_lines()->Complete(binding.status());
    return std::unique_ptr<PreparedStep>(
        std::make_unique<DirectPreparedStep>(state_, *std::move(binding)));
  }

  Status Close() override {
    state_->Close();
    return absl::OkStatus();
  }
  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override {
    return state_->ListDevices();
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

const SessionFactoryRegistration kDirect("", NewDirectSession, ResetDirectSessions);

}  // namespace

StatusOr<std::unique_ptr<Session>> NewDirectSession(const SessionOptions& options) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<SessionState> state, SessionState::Make(options));
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
