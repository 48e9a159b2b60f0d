// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <x86intrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// An entry of a list of ready nodes: the node's index, and whether it is dead.
constexpr uint32_t kNone = 0xffffffffu;
constexpr uint32_t kDeadEntry = 1u << 31;

// Cost of a node in cycles above which another thread is worth waking (4 to 46 us, measured).
constexpr uint32_t kExpensiveCycles = 25'000;
// Before the first measurement.
constexpr uint32_t kUnknownCost = 0xffffffffu;
// Cheap nodes are measured once in so many runs (a power of two), so that they can become
// expensive again; expensive ones always.
constexpr uint32_t kSampleEvery = 16;

// Recycled step states per executor; more steps at once allocate theirs anew.
constexpr size_t kPooledSteps = 16;

bool IsEmpty(const EdgeValue& v) {
  return !v.has_value && v.ref == nullptr && !v.tensor.buffer() && !v.tensor.has_value();
}

// Frees what `v` holds. Rebuilding is cheaper than assigning member by member.
inline void Reset(EdgeValue& v) {
  std::destroy_at(&v);
  std::construct_at(&v);
}

// Puts a value into an empty slot.
template <typename Value>
inline void Place(EdgeValue& slot, Value&& value) {
  std::destroy_at(&slot);
  std::construct_at(&slot, std::forward<Value>(value));
}

Status StepCancelled() { return Derived(absl::CancelledError("Step was cancelled.")); }

Status TimedOut() { return absl::DeadlineExceededError("Timed out waiting for notification"); }

// Ready nodes of one working thread.
struct Lane {
  uint32_t head = kNone;         // stack, through the step's links
  uint32_t expensive = kNone;    // the last expensive node that became ready
  uint32_t tick = 0;             // counts nodes, for sampling
  uint64_t nodes_run = 0;        // dead ones too
  EdgeValue* outputs = nullptr;  // max_outputs empty ones
  // Everything goes onto the stack: the thread will hand it over instead of running it.
  bool collects = false;
  bool collected_expensive = false;
};

}  // namespace

// The thread in Run or RunPartitions: waits for its steps, takes on their work.
class Executor::Host {
 public:
  explicit Host(int num_steps) : outer_(current), unfinished_(num_steps) { current = this; }
  ~Host() { current = outer_; }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Whether this thread takes a loop of `step` upon itself. Only for steps that are not finished.
  bool Offer(Step* step, bool expensive) {
    const bool here = current == this;
    MutexLock lock(&mu_);
    if (!parked_ && (!here || expensive)) return false;
    offered_.push_back(step);
    if (parked_) cv_.Signal();
    return true;
  }
  void StepFinished(const Status& status) {
    MutexLock lock(&mu_);
    if (!status.ok() && (status_.ok() || (IsDerived(status_) && !IsDerived(status)))) {
      status_ = status;
    }
    --unfinished_;
    cv_.Signal();
  }
  // The next step to work for; null when all have finished. `timed_out` is set and null returned
  // when `deadline` passes first.
  Step* Next(absl::Time deadline, std::atomic<int64_t>* waits, bool* timed_out) {
    MutexLock lock(&mu_);
    while (offered_.empty() && unfinished_ > 0) {
      if (!parked_) waits->fetch_add(1, std::memory_order_relaxed);
      parked_ = true;
      if (deadline == absl::InfiniteFuture()) {
        cv_.Wait(&mu_);
      } else {
        const absl::Duration left = deadline - absl::Now();
        if (left <= absl::ZeroDuration()) {
          parked_ = false;
          *timed_out = true;
          return nullptr;
        }
        cv_.WaitWithTimeout(&mu_, left);
      }
    }
    parked_ = false;
    if (offered_.empty()) return nullptr;
    Step* step = offered_.back();
    offered_.pop_back();
    return step;
  }
  Status TakeStatus() {
    MutexLock lock(&mu_);
    return std::move(status_);
  }

 private:
  static thread_local Host* current;

  Host* const outer_;  // Run may be called from within a kernel
  Mutex mu_;
  CondVar cv_;
  bool parked_ ABSL_GUARDED_BY(mu_) = false;
  int unfinished_ ABSL_GUARDED_BY(mu_);
  absl::InlinedVector<Step*, 4> offered_ ABSL_GUARDED_BY(mu_);
  Status status_ ABSL_GUARDED_BY(mu_);
};

thread_local Executor::Host* Executor::Host::current = nullptr;

// What all steps of a plan share besides it: measured costs and recycled states.
class Executor::Engine {
 public:
  explicit Engine(std::shared_ptr<const Plan> plan)
      : plan_(std::move(plan)),
        costs_(std::make_unique<std::atomic<uint32_t>[]>(plan_->nodes().size())) {
    for (size_t i = 0; i < plan_->nodes().size(); ++i) {
      costs_[i].store(kUnknownCost, std::memory_order_relaxed);
    }
  }
  ~Engine();

  const Plan& plan() const { return *plan_; }
  Step* Acquire();
  void Release(Step* step);

  bool IsExpensive(uint32_t node) const {
    return costs_[node].load(std::memory_order_relaxed) > kExpensiveCycles;
  }
  void AddSample(uint32_t node, uint64_t cycles) {
    const uint32_t sample = static_cast<uint32_t>(std::min<uint64_t>(cycles, kUnknownCost - 1));
    const uint32_t old = costs_[node].load(std::memory_order_relaxed);
    // The first measurement replaces the guess; after that each counts for an eighth. Threads may
    // overwrite each other's samples: it is an estimate.
    const uint32_t fresh = old == kUnknownCost ? sample : old - old / 8 + sample / 8;
    costs_[node].store(fresh, std::memory_order_relaxed);
  }

  std::atomic<int64_t> wakeups{0};         // relaxed: counts only
  std::atomic<int64_t> blocking_waits{0};  // relaxed: counts only

 private:
  const std::shared_ptr<const Plan> plan_;
  std::unique_ptr<std::atomic<uint32_t>[]> costs_;  // relaxed: estimates
  // Release by who puts a state in, acquire by who takes it out.
  std::array<std::atomic<Step*>, kPooledSteps> pool_ = {};
};

// The state of one step, recycled.
//
// References: every working thread (loop) and every asynchronous kernel that has not finished holds
// one; whoever drops the last finishes the step. Nodes on the shared stack need none: the loop that
// pushed them looks there again before it leaves, and who pushes without being a loop makes
// sure that there is one.
//
// Solo: while the step has one loop and nothing else under way, counters are changed without
// read-modify-write operations. The loop leaves solo before it hands anything to another thread
// and may return to it when its reference is the only one.
class Executor::Step {
 public:
  explicit Step(Engine* engine)
      : engine_(engine),
        plan_(engine->plan()),
        pending_(std::make_unique<std::atomic<uint32_t>[]>(plan_.nodes().size())),
        links_(std::make_unique<std::atomic<uint32_t>[]>(plan_.nodes().size())),
        slots_(plan_.num_slots()),
        outputs_(plan_.max_outputs()),
        async_(plan_.num_async()) {}

  void Begin(const StepContext& context, const ExecutorOptions& options, Host* host,
             DoneCallback done);
  // The loop of the thread that began the step. After it: DropRef.
  void WorkFromRoots();
  // A further loop of the host thread. After it: DropRef.
  void WorkAsHost();
  // True when the step is over and the caller has to finish it.
  bool DropRef() { return solo_ || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // The result; gives the state back.
  Status TakeResult();
  // The result goes where Begin said.
  void Finish();

 private:
  struct AsyncRun {
    Step* step = nullptr;
    uint32_t entry = 0;
    std::vector<EdgeValue> outputs;
    std::optional<KernelContext> context;
    Status status;
    NodeTimes times;
    bool done_called = false;  // by the thread that calls done, before its exchange of `phase`
    // 0 running; 1 ComputeAsync has returned; 2 done was called. Who comes second goes on.
    std::atomic<int> phase{0};
  };

  bool Stopped() {
    if (failed_.load(std::memory_order_relaxed)) return true;
    if (cancellation_ != nullptr && cancellation_->IsCancelled()) {
      Fail(StepCancelled());
      return true;
    }
    if (has_deadline_ && absl::Now() > deadline_) {
      Fail(TimedOut());
      return true;
    }
    return false;
  }
  void Fail(Status status);
  void CountNodes(const Lane& lane) {
    nodes_run_.fetch_add(lane.nodes_run, std::memory_order_relaxed);
  }

  void Loop(Lane& lane);
  void RunEntry(Lane& lane, uint32_t entry);
  void StartAsync(Lane& lane, uint32_t entry);
  void AsyncDone(AsyncRun* run, Status status);
  void FinishAsync(Lane& lane, AsyncRun* run);
  void ArenaTask();

  Status ReadReferences(const Plan::Node& node);
  Status Compute(const Plan::Node& node, KernelContext* ctx);
  Status CheckOutputs(const Plan::Node& node, const EdgeValue* outputs) const;
  void ResetInputs(const Plan::Node& node) {
    for (uint32_t i = 0; i < node.num_inputs; ++i) Reset(slots_[node.first_input + i]);
  }
  // Hands `outputs` on and leaves them empty; nodes that became ready go into `lane`.
  void Propagate(Lane& lane, const Plan::Node& node, EdgeValue* outputs, bool dead);
  // Returns the first edge that is left to do: `end`, or earlier when the step has left solo.
  template <bool kSolo>
  const Plan::Edge* PropagateAs(Lane& lane, const Plan::Edge* edge, const Plan::Edge* end,
                                EdgeValue* outputs, bool dead);
  template <bool kSolo>
  void ArriveAtMerge(Lane& lane, const Plan::Edge& edge, EdgeValue* value, bool dead);

  void PushReady(Lane& lane, uint32_t entry);
  void PushLocal(Lane& lane, uint32_t entry) {
    links_[entry & ~kDeadEntry].store(lane.head, std::memory_order_relaxed);
    lane.head = entry;
  }
  void PushShared(uint32_t entry);
  uint32_t PopShared();
  bool SharedIsEmpty() const {
    return static_cast<uint32_t>(shared_.load(std::memory_order_seq_cst)) == kNone;
  }
  void Publish(uint32_t entry);
  void RequestLoop(bool expensive);

  // Others read the flag: it is written only while nobody does.
  void LeaveSolo() {
    if (solo_) solo_ = false;
  }
  void Record(const Plan::Node& node, const NodeTimes& times, const EdgeValue* outputs);

  Engine* const engine_;
  const Plan& plan_;
  // Release when an edge arrives, acquire by the one that makes the node ready.
  std::unique_ptr<std::atomic<uint32_t>[]> pending_;
  // A node is in one list at a time. Relaxed: ordered by the list's head.
  std::unique_ptr<std::atomic<uint32_t>[]> links_;
  std::vector<EdgeValue> slots_;    // empty between steps
  std::vector<EdgeValue> outputs_;  // of the host's lane
  std::vector<AsyncRun> async_;
  uint32_t uses_ = 0;  // shifts which nodes are sampled

  // Of this step.
  const StepContext* context_ = nullptr;
  CancellationManager* cancellation_ = nullptr;
  StepStatsCollector* stats_ = nullptr;
  std::vector<int64_t> scheduled_;  // by node, when traced; written by who makes it ready
  absl::Time deadline_;
  bool has_deadline_ = false;
  Host* host_ = nullptr;
  DoneCallback done_;
  int num_threads_ = 1;
  bool parallel_ = false;
  bool solo_ = true;  // written only while one thread knows the step

  // Below: written by several threads.
  alignas(64) std::atomic<uint64_t> shared_{kNone};  // change count and top entry; see PushShared
  std::atomic<int> refs_{1};                         // release on drop, acquire by the last
  std::atomic<int> loops_{1};                        // seq_cst: see RequestLoop
  std::atomic<int> busy_{0};            // loops inside an expensive kernel; relaxed: a hint
  std::atomic<uint64_t> nodes_run_{0};  // relaxed: ordered by refs_
  std::atomic<bool> failed_{false};     // relaxed: only stops; the status is under mu_
  Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
};

// --- Beginning and end ---------------------------------------------------------------------------

Executor::Engine::~Engine() {
  for (std::atomic<Step*>& place : pool_) delete place.load(std::memory_order_acquire);
}

Executor::Step* Executor::Engine::Acquire() {
  for (std::atomic<Step*>& place : pool_) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (Step* step = place.exchange(nullptr, std::memory_order_acquire)) return step;
  }
  return new Step(this);
}

void Executor::Engine::Release(Step* step) {
  for (std::atomic<Step*>& place : pool_) {
    Step* expected = nullptr;
    if (place.load(std::memory_order_relaxed) == nullptr &&
        place.compare_exchange_strong(expected, step, std::memory_order_release,
                                      std::memory_order_relaxed)) {
      return;
    }
  }
  delete step;
}

void Executor::Step::Begin(const StepContext& context, const ExecutorOptions& options, Host* host,
                           DoneCallback done) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  const absl::Span<const uint32_t> initial = plan_.initial_pending();
  if (!initial.empty()) {
    std::memcpy(static_cast<void*>(pending_.get()), initial.data(),
                initial.size() * sizeof(uint32_t));
  }
  ++uses_;
  context_ = &context;
  cancellation_ = context.cancellation;
  stats_ = options.stats;
  deadline_ = options.deadline;
  has_deadline_ = options.deadline != absl::InfiniteFuture();
  host_ = host;
  done_ = std::move(done);
  num_threads_ = context.arena->num_threads();
  parallel_ = num_threads_ > 1;
  solo_ = true;
  shared_.store(kNone, std::memory_order_relaxed);
  refs_.store(1, std::memory_order_relaxed);
  loops_.store(1, std::memory_order_relaxed);
  busy_.store(0, std::memory_order_relaxed);
  nodes_run_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  if (stats_ != nullptr) scheduled_.assign(plan_.nodes().size(), absl::GetCurrentTimeNanos());
}

Status Executor::Step::TakeResult() {
  Status status;
  if (failed_.load(std::memory_order_relaxed)) {
    // What was on its way to nodes that did not run.
    for (EdgeValue& slot : slots_) {
      if (!IsEmpty(slot)) Reset(slot);
    }
    MutexLock lock(&mu_);
    status = std::exchange(status_, absl::OkStatus());
  } else if (const uint64_t run = nodes_run_.load(std::memory_order_relaxed);
             ABSL_PREDICT_FALSE(run != plan_.nodes().size())) {
    status =
        absl::InternalError(absl::StrCat("Executor: a step must run each of its ",
                                         plan_.nodes().size(), " nodes once, got ", run, " runs"));
  }
  context_ = nullptr;
  cancellation_ = nullptr;
  engine_->Release(this);
  return status;
}

void Executor::Step::Finish() {
  Host* const host = host_;
  DoneCallback done = std::move(done_);
  Status status = TakeResult();
  if (host != nullptr) {
    host->StepFinished(status);
  } else {
    done(std::move(status));
  }
}

void Executor::Step::Fail(Status status) {
  // An effect of the cancellation, not a cause of its own.
  if (absl::IsCancelled(status) && cancellation_ != nullptr && cancellation_->IsCancelled()) {
    status = Derived(status);
  }
  {
    MutexLock lock(&mu_);
    if (failed_.exchange(true, std::memory_order_relaxed)) return;
    status_ = status;
  }
  if (context_->rendezvous != nullptr) context_->rendezvous->StartAbort(Derived(status));
  if (cancellation_ != nullptr) cancellation_->StartCancel();
}

// --- Loops ---------------------------------------------------------------------------------------

void Executor::Step::WorkFromRoots() {
  Lane lane;
  lane.outputs = outputs_.data();
  lane.tick = uses_;
  const absl::Span<const uint32_t> roots = plan_.roots();
  // What comes from elsewhere is asked for before anything else is done.
  for (uint32_t i = 0; i < plan_.num_root_recvs() && !Stopped(); ++i) RunEntry(lane, roots[i]);
  for (size_t i = roots.size(); i-- > plan_.num_root_recvs();) PushReady(lane, roots[i]);
  Loop(lane);
  CountNodes(lane);
}

void Executor::Step::WorkAsHost() {
  Lane lane;
  lane.outputs = outputs_.data();
  lane.tick = uses_;
  Loop(lane);
  CountNodes(lane);
}

void Executor::Step::ArenaTask() {
  absl::InlinedVector<EdgeValue, 4> outputs(plan_.max_outputs());
  Lane lane;
  lane.outputs = outputs.data();
  lane.tick = uses_;
  Loop(lane);
  CountNodes(lane);
  if (DropRef()) Finish();
}

void Executor::Step::Loop(Lane& lane) {
  for (;;) {
    uint32_t entry;
    if (lane.head != kNone) {
      entry = lane.head;
      lane.head = links_[entry & ~kDeadEntry].load(std::memory_order_relaxed);
    } else if (lane.expensive != kNone) {
      entry = std::exchange(lane.expensive, kNone);
    } else {
      if (solo_) return;
      entry = PopShared();
      if (entry == kNone) {
        loops_.fetch_sub(1, std::memory_order_seq_cst);
        // Who pushed before this saw a loop and relied on it.
        if (SharedIsEmpty()) return;
        loops_.fetch_add(1, std::memory_order_seq_cst);
        continue;
      }
    }
    if (!Stopped()) RunEntry(lane, entry);
  }
}

// A stack of entries. The count in the upper half changes with every change, so a top that was
// taken and put back meanwhile is noticed.
void Executor::Step::PushShared(uint32_t entry) {
  uint64_t top = shared_.load(std::memory_order_relaxed);
  uint64_t fresh;
  do {
    links_[entry & ~kDeadEntry].store(static_cast<uint32_t>(top), std::memory_order_relaxed);
    fresh = (((top >> 32) + 1) << 32) | entry;
  } while (!shared_.compare_exchange_weak(top, fresh, std::memory_order_seq_cst,
                                          std::memory_order_relaxed));
}

uint32_t Executor::Step::PopShared() {
  uint64_t top = shared_.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t entry = static_cast<uint32_t>(top);
    if (entry == kNone) return kNone;
    const uint32_t next = links_[entry & ~kDeadEntry].load(std::memory_order_relaxed);
    const uint64_t fresh = (((top >> 32) + 1) << 32) | next;
    if (shared_.compare_exchange_weak(top, fresh, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      return entry;
    }
  }
}

void Executor::Step::PushReady(Lane& lane, uint32_t entry) {
  const uint32_t index = entry & ~kDeadEntry;
  if (stats_ != nullptr) scheduled_[index] = absl::GetCurrentTimeNanos();
  const bool expensive = parallel_ && (entry & kDeadEntry) == 0 &&
                         (plan_.nodes()[index].flags & Plan::kMayBeExpensive) != 0 &&
                         engine_->IsExpensive(index);
  if (!expensive) {
    PushLocal(lane, entry);
  } else if (lane.collects) {
    lane.collected_expensive = true;
    PushLocal(lane, entry);
  } else {
    // The newest stays here, its inputs are in this core's cache.
    if (lane.expensive != kNone) Publish(lane.expensive);
    lane.expensive = entry;
  }
}

// By a loop that has another expensive node to run.
void Executor::Step::Publish(uint32_t entry) {
  LeaveSolo();
  PushShared(entry);
  if (loops_.load(std::memory_order_relaxed) < num_threads_) RequestLoop(/*expensive=*/true);
}

// By a holder of a reference. A loop that leaves first counts itself out and then looks at the
// shared stack; who pushes first pushes and then looks at the count; all four are seq_cst, so one
// of them sees the other.
void Executor::Step::RequestLoop(bool expensive) {
  refs_.fetch_add(1, std::memory_order_relaxed);
  loops_.fetch_add(1, std::memory_order_seq_cst);
  if (host_ != nullptr && host_->Offer(this, expensive)) return;
  engine_->wakeups.fetch_add(1, std::memory_order_relaxed);
  context_->arena->Schedule([this] { ArenaTask(); });
}

// --- Nodes ---------------------------------------------------------------------------------------

Status Executor::Step::ReadReferences(const Plan::Node& node) {
  const absl::Span<const DType> types = plan_.input_types(node);
  for (uint32_t i = 0; i < node.num_inputs; ++i) {
    EdgeValue& in = slots_[node.first_input + i];
    if (in.ref == nullptr) continue;
    StatusOr<Tensor> value = in.ref->Read();
    if (value.ok()) {
      in.tensor = *std::move(value);
    } else if ((node.flags & Plan::kAllowsUninitialized) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("Attempting to use uninitialized value ", plan_.InputName(node, i)));
    }
    if (!IsRef(types[i])) in.ref = nullptr;
  }
  return absl::OkStatus();
}

Status Executor::Step::Compute(const Plan::Node& node, KernelContext* ctx) {
  try {
    return node.kernel->Compute(ctx);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory in the kernel");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the kernel threw: ", e.what()));
  } catch (...) {
    return absl::InternalError("the kernel threw something that is no std::exception");
  }
}

Status Executor::Step::CheckOutputs(const Plan::Node& node, const EdgeValue* outputs) const {
  const absl::Span<const DType> types = plan_.output_types(node);
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const EdgeValue& out = outputs[i];
    if (ABSL_PREDICT_FALSE(!out.has_value)) {
      if ((node.flags & Plan::kMayLeaveOutputsDead) != 0) continue;
      return absl::InternalError(absl::StrCat("Missing ", i, "-th output from '", *node.name, "'"));
    }
    if (ABSL_PREDICT_FALSE(out.ref != nullptr)) {
      if (IsRef(types[i]) && out.ref->dtype() == WithoutRef(types[i])) continue;
      return absl::InternalError(absl::StrCat("output ", i, " must be of type ",
                                              DTypeName(types[i]), ", got a reference to ",
                                              DTypeName(out.ref->dtype())));
    }
    if (ABSL_PREDICT_FALSE(out.tensor.dtype() != types[i])) {
      return absl::InternalError(absl::StrCat("output ", i, " must be of type ",
                                              DTypeName(types[i]), ", got ",
                                              DTypeName(out.tensor.dtype())));
    }
  }
  return absl::OkStatus();
}

void Executor::Step::RunEntry(Lane& lane, uint32_t entry) {
  ++lane.nodes_run;
  const uint32_t index = entry & ~kDeadEntry;
  const bool dead = (entry & kDeadEntry) != 0;
  const Plan::Node& node = plan_.nodes()[index];
  if (ABSL_PREDICT_FALSE(dead) && (node.flags & Plan::kRunsWhenDead) == 0) {
    ResetInputs(node);
    Propagate(lane, node, lane.outputs, /*dead=*/true);
    return;
  }
  if (node.async != nullptr) {
    StartAsync(lane, entry);
    return;
  }
  NodeTimes times;
  if (ABSL_PREDICT_FALSE(stats_ != nullptr)) {
    times.scheduled = scheduled_[index];
    times.start = absl::GetCurrentTimeNanos();
  }
  if (ABSL_PREDICT_FALSE((node.flags & Plan::kRefInputs) != 0)) {
    if (Status status = ReadReferences(node); !status.ok()) {
      return Fail(NodeError(status, plan_.op(node), *node.name));
    }
  }
  KernelContext::Params params;
  params.step = context_;
  params.node_name = node.name;
  params.inputs = absl::MakeSpan(slots_.data() + node.first_input, node.num_inputs);
  params.output_types = plan_.output_types(node);
  params.outputs = absl::MakeSpan(lane.outputs, node.num_outputs);
  params.is_input_dead = dead;
  KernelContext ctx(params);

  Status status;
  if (ABSL_PREDICT_FALSE(stats_ != nullptr)) times.op_start = absl::GetCurrentTimeNanos();
  const bool measurable = parallel_ && (node.flags & Plan::kMayBeExpensive) != 0;
  const bool expensive = measurable && engine_->IsExpensive(index);
  if (expensive || (measurable && (++lane.tick & (kSampleEvery - 1)) == 0)) {
    const bool counted = expensive && !solo_;
    if (counted) busy_.fetch_add(1, std::memory_order_relaxed);
    const uint64_t begin = __rdtsc();
    status = Compute(node, &ctx);
    engine_->AddSample(index, __rdtsc() - begin);
    if (counted) busy_.fetch_sub(1, std::memory_order_relaxed);
  } else {
    status = Compute(node, &ctx);
  }
  if (ABSL_PREDICT_FALSE(stats_ != nullptr)) times.op_end = absl::GetCurrentTimeNanos();
  if (status.ok() && node.num_outputs != 0) status = CheckOutputs(node, lane.outputs);
  ResetInputs(node);
  if (ABSL_PREDICT_FALSE(!status.ok())) {
    for (uint32_t i = 0; i < node.num_outputs; ++i) Reset(lane.outputs[i]);
    return Fail(NodeError(status, plan_.op(node), *node.name));
  }
  if (ABSL_PREDICT_FALSE(stats_ != nullptr)) {
    times.end = absl::GetCurrentTimeNanos();
    Record(node, times, lane.outputs);
  }
  Propagate(lane, node, lane.outputs, dead);
}

void Executor::Step::StartAsync(Lane& lane, uint32_t entry) {
  const Plan::Node& node = plan_.nodes()[entry & ~kDeadEntry];
  AsyncRun& run = async_[node.async_index];
  run.step = this;
  run.entry = entry;
  run.outputs.resize(node.num_outputs);
  run.done_called = false;
  run.phase.store(0, std::memory_order_relaxed);
  if (stats_ != nullptr) {
    run.times.scheduled = scheduled_[entry & ~kDeadEntry];
    run.times.start = run.times.op_start = absl::GetCurrentTimeNanos();
  }
  if ((node.flags & Plan::kRefInputs) != 0) {
    if (Status status = ReadReferences(node); !status.ok()) {
      return Fail(NodeError(status, plan_.op(node), *node.name));
    }
  }
  KernelContext::Params params;
  params.step = context_;
  params.node_name = node.name;
  params.inputs = absl::MakeSpan(slots_.data() + node.first_input, node.num_inputs);
  params.output_types = plan_.output_types(node);
  params.outputs = absl::MakeSpan(run.outputs);
  params.is_input_dead = (entry & kDeadEntry) != 0;
  run.context.emplace(params);

  refs_.fetch_add(1, std::memory_order_relaxed);
  LeaveSolo();
  AsyncRun* const pointer = &run;
  Status thrown;
  try {
    node.async->ComputeAsync(&*run.context, [pointer](Status status) {
      pointer->step->AsyncDone(pointer, std::move(status));
    });
  } catch (const std::bad_alloc&) {
    thrown = absl::ResourceExhaustedError("out of memory in the kernel");
  } catch (const std::exception& e) {
    thrown = absl::InternalError(absl::StrCat("the kernel threw: ", e.what()));
  } catch (...) {
    thrown = absl::InternalError("the kernel threw something that is no std::exception");
  }
  // A kernel that throws has not handed `done` to anybody, or has called it here.
  if (!thrown.ok() && !run.done_called) AsyncDone(pointer, std::move(thrown));
  if (run.phase.exchange(1, std::memory_order_acq_rel) == 0) return;
  // Done already: go on here.
  FinishAsync(lane, pointer);
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 2) {
    // The reference that is left is this loop's.
    if (SharedIsEmpty()) solo_ = true;
  }
}

// By the kernel, on any thread.
void Executor::Step::AsyncDone(AsyncRun* run, Status status) {
  run->done_called = true;
  run->status = std::move(status);
  if (run->phase.exchange(2, std::memory_order_acq_rel) == 0) return;
  Lane lane;
  lane.collects = true;
  FinishAsync(lane, run);
  if (lane.head != kNone) {
    do {
      const uint32_t entry = lane.head;
      lane.head = links_[entry & ~kDeadEntry].load(std::memory_order_relaxed);
      PushShared(entry);
    } while (lane.head != kNone);
    const int loops = loops_.load(std::memory_order_seq_cst);
    const bool all_busy = busy_.load(std::memory_order_relaxed) >= loops;
    if (loops == 0 || (loops < num_threads_ && (lane.collected_expensive || all_busy))) {
      RequestLoop(lane.collected_expensive);
    }
  }
  if (DropRef()) Finish();
}

void Executor::Step::FinishAsync(Lane& lane, AsyncRun* run) {
  const Plan::Node& node = plan_.nodes()[run->entry & ~kDeadEntry];
  EdgeValue* const outputs = run->outputs.data();
  Status status = std::exchange(run->status, absl::OkStatus());
  if (stats_ != nullptr) run->times.op_end = absl::GetCurrentTimeNanos();
  if (status.ok()) status = CheckOutputs(node, outputs);
  run->context.reset();
  ResetInputs(node);
  if (!status.ok()) {
    for (EdgeValue& out : run->outputs) Reset(out);
    return Fail(NodeError(status, plan_.op(node), *node.name));
  }
  if (stats_ != nullptr) {
    run->times.end = absl::GetCurrentTimeNanos();
    Record(node, run->times, outputs);
  }
  Propagate(lane, node, outputs, (run->entry & kDeadEntry) != 0);
}

void Executor::Step::Record(const Plan::Node& node, const NodeTimes& times,
                            const EdgeValue* outputs) {
  tensorflow::NodeExecStats stats;
  stats.set_node_name(*node.name);
  stats.set_thread_id(TraceThreadId());
  SetTimes(times, &stats);
  if ((node.flags & (Plan::kSend | Plan::kRecv)) != 0) {
    stats.set_timeline_label(
        absl::StrCat(*node.name, " = ", plan_.op(node), "(", plan_.transfer_label(node), ")"));
  } else {
    std::vector<std::string> inputs;
    for (uint32_t i = 0; i < node.num_inputs; ++i) inputs.push_back(plan_.InputName(node, i));
    stats.set_timeline_label(
        absl::StrCat(*node.name, " = ", plan_.op(node), "(", absl::StrJoin(inputs, ", "), ")"));
  }
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    if (outputs[i].has_value) AddOutput(static_cast<int>(i), outputs[i].tensor, &stats);
  }
  stats_->Add(plan_.device_name(), std::move(stats));
}

// --- Edges ---------------------------------------------------------------------------------------

void Executor::Step::Propagate(Lane& lane, const Plan::Node& node, EdgeValue* outputs, bool dead) {
  const Plan::Edge* edge = plan_.edges().data() + node.first_edge;
  const Plan::Edge* const end = edge + node.num_edges;
  if (solo_) edge = PropagateAs<true>(lane, edge, end, outputs, dead);
  if (edge != end) PropagateAs<false>(lane, edge, end, outputs, dead);
  for (uint32_t i = 0; i < node.num_outputs; ++i) Reset(outputs[i]);
}

template <bool kSolo>
const Plan::Edge* Executor::Step::PropagateAs(Lane& lane, const Plan::Edge* edge,
                                              const Plan::Edge* end, EdgeValue* outputs,
                                              bool dead) {
  for (; edge != end; ++edge) {
    // A node that just became ready may have been handed to another thread.
    if (kSolo && !solo_) return edge;
    EdgeValue* value = nullptr;
    bool edge_dead = dead;
    if ((edge->flags & Plan::kControl) == 0) {
      value = outputs + edge->output;
      edge_dead |= !value->has_value;
    }
    if (ABSL_PREDICT_FALSE((edge->flags & Plan::kToMerge) != 0)) {
      ArriveAtMerge<kSolo>(lane, *edge, value, edge_dead);
      continue;
    }
    if (value != nullptr && !edge_dead) {
      EdgeValue& slot = slots_[edge->slot];
      if ((edge->flags & Plan::kMoves) != 0) {
        Place(slot, std::move(*value));
      } else {
        Place(slot, static_cast<const EdgeValue&>(*value));
      }
    }
    if ((edge->flags & Plan::kToTrigger) != 0) edge_dead = false;
    std::atomic<uint32_t>& pending = pending_[edge->dst];
    uint32_t word;
    if (kSolo) {
      word = pending.load(std::memory_order_relaxed) - 1;
      if (edge_dead) word |= Plan::kDeadBit;
      pending.store(word, std::memory_order_relaxed);
    } else {
      word = pending.load(std::memory_order_acquire);
      if ((word & ~Plan::kDeadBit) == 1) {
        // Everybody else has arrived: nobody changes the word any more.
        word -= 1;
        if (edge_dead) word |= Plan::kDeadBit;
      } else {
        if (edge_dead) pending.fetch_or(Plan::kDeadBit, std::memory_order_relaxed);
        word = pending.fetch_sub(1, std::memory_order_acq_rel) - 1;
      }
    }
    static_assert(kDeadEntry == Plan::kDeadBit);
    if ((word & ~Plan::kDeadBit) == 0) PushReady(lane, edge->dst | word);
  }
  return end;
}

template <bool kSolo>
void Executor::Step::ArriveAtMerge(Lane& lane, const Plan::Edge& edge, EdgeValue* value,
                                   bool dead) {
  std::atomic<uint32_t>& pending = pending_[edge.dst];
  // One operation on the word; the word after it.
  const auto change = [&pending](auto plain, auto atomic) {
    if (kSolo) {
      const uint32_t word = plain(pending.load(std::memory_order_relaxed));
      pending.store(word, std::memory_order_relaxed);
      return word;
    }
    return plain(atomic());
  };
  const auto all_dead = [&](uint32_t word) {
    return ((word >> Plan::kMergeDeadShift) & Plan::kMergeDeadMask) ==
           plan_.nodes()[edge.dst].num_inputs;
  };
  uint32_t word;
  if (value == nullptr) {
    // A control edge counts, dead or not.
    word = change(
        [](uint32_t w) { return w - Plan::kMergeOneControl; },
        [&] { return pending.fetch_sub(Plan::kMergeOneControl, std::memory_order_acq_rel); });
  } else if (dead) {
    word =
        change([](uint32_t w) { return w + Plan::kMergeOneDead; },
               [&] { return pending.fetch_add(Plan::kMergeOneDead, std::memory_order_acq_rel); });
  } else {
    // The first live input is taken, then put in place, and only then it counts.
    const uint32_t before = kSolo ? pending.load(std::memory_order_relaxed)
                                  : pending.fetch_or(Plan::kMergeTaken, std::memory_order_relaxed);
    if ((before & Plan::kMergeTaken) != 0) return;
    if (kSolo) pending.store(before | Plan::kMergeTaken, std::memory_order_relaxed);
    if ((edge.flags & Plan::kMoves) != 0) {
      Place(slots_[edge.slot], std::move(*value));
    } else {
      Place(slots_[edge.slot], static_cast<const EdgeValue&>(*value));
    }
    word =
        change([](uint32_t w) { return w & ~Plan::kMergeNoLive; },
               [&] { return pending.fetch_and(~Plan::kMergeNoLive, std::memory_order_acq_rel); });
  }
  if ((word & Plan::kMergeControlMask) != 0) return;
  if ((word & Plan::kMergeNoLive) == 0) {
    // A dead input after the live one must not start it again.
    if (value == nullptr || !dead) PushReady(lane, edge.dst);
  } else if (all_dead(word)) {
    PushReady(lane, edge.dst | kDeadEntry);
  }
}

// --- Executor ------------------------------------------------------------------------------------

Executor::Executor(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
Executor::~Executor() = default;

StatusOr<std::unique_ptr<Executor>> Executor::Make(std::shared_ptr<const Plan> plan) {
  if (plan->has_frames()) {
    return absl::UnimplementedError(absl::StrCat("Executor: '", plan->frame_node(),
                                                 "' is part of a while loop; loops are not "
                                                 "implemented"));
  }
  return std::unique_ptr<Executor>(new Executor(std::make_unique<Engine>(std::move(plan))));
}

const Plan& Executor::plan() const { return engine_->plan(); }

ExecutorCounters Executor::counters() const {
  return {engine_->wakeups.load(std::memory_order_relaxed),
          engine_->blocking_waits.load(std::memory_order_relaxed)};
}

void Executor::RunAsync(const StepContext& context, const ExecutorOptions& options,
                        DoneCallback done) {
  Step* const step = engine_->Acquire();
  step->Begin(context, options, nullptr, std::move(done));
  step->WorkFromRoots();
  if (step->DropRef()) step->Finish();
}

Status Executor::Run(const StepContext& context, const ExecutorOptions& options) {
  const PartitionRun run = {this, &context};
  return RunPartitions(absl::MakeConstSpan(&run, 1), options);
}

Status RunPartitions(absl::Span<const PartitionRun> partitions, const ExecutorOptions& options) {
  if (partitions.empty()) return absl::OkStatus();
  Executor::Host host(static_cast<int>(partitions.size()));
  absl::InlinedVector<Executor::Step*, 4> steps;
  for (const PartitionRun& partition : partitions) {
    steps.push_back(partition.executor->engine_->Acquire());
    steps.back()->Begin(*partition.step, options, &host, nullptr);
  }
  for (Executor::Step* step : steps) {
    step->WorkFromRoots();
    if (!step->DropRef()) continue;
    if (steps.size() == 1) return step->TakeResult();
    step->Finish();
  }
  absl::Time deadline = options.deadline;
  std::atomic<int64_t>* const waits = &partitions[0].executor->engine_->blocking_waits;
  bool timed_out = false;
  for (;;) {
    bool time_is_over = false;
    Executor::Step* const step = host.Next(deadline, waits, &time_is_over);
    if (step != nullptr) {
      step->WorkAsHost();
      if (step->DropRef()) step->Finish();
    } else if (time_is_over) {
      timed_out = true;
      deadline = absl::InfiniteFuture();
      // The steps end by themselves now; one that is over already is not touched.
      const StepContext& context = *partitions[0].step;
      if (context.rendezvous != nullptr) context.rendezvous->StartAbort(Derived(TimedOut()));
      if (context.cancellation != nullptr) context.cancellation->StartCancel();
    } else {
      break;
    }
  }
  Status status = host.TakeStatus();
  if (timed_out && !status.ok()) return TimedOut();
  return status;
}

}  // namespace millrace
