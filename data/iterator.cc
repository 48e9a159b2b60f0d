// SPDX-License-Identifier: Apache-2.0
#include "data/iterator.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "data/dataset.h"
#include "data/dataset_node.h"
#include "data/iterator_state.h"

namespace millrace::data {
namespace {

constexpr absl::string_view kStateMagic = "millrace iterator ";  // and the version
using SteadyTime = std::chrono::steady_clock::time_point;

int64_t Nanoseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::nanoseconds(time).count();
}

// By its only writer.
void Add(int64_t n, std::atomic<int64_t>* figure) {
  figure->store(figure->load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

// Of a state that begins with `magic`.
StatusOr<int> VersionOf(absl::string_view magic) {
  int version = 0;
  if (!absl::ConsumePrefix(&magic, kStateMagic) || !absl::SimpleAtoi(magic, &version) ||
      version < 1) {
    return absl::DataLossError("Iterator state: it must begin as one does");
  }
  if (version > kIteratorStateVersion) {
    return absl::UnimplementedError(absl::StrCat("Iterator state: its version must be at most ",
                                                 kIteratorStateVersion, ", got ", version,
                                                 "; a later Millrace wrote it"));
  }
  return version;
}

}  // namespace

IteratorTimes::Limit IteratorTimes::limit() const {
  if (elements == 0) return Limit::kNone;
  // The consumer seldom waits: nothing in front of it is worth while.
  if (waited * 4 < consumed) return Limit::kConsumer;
  return in_functions > in_sources ? Limit::kFunctions : Limit::kSource;
}

std::string IteratorTimes::ToString() const {
  static constexpr absl::string_view kLimits[] = {"nothing yet", "sources", "functions",
                                                  "the consumer"};
  return absl::StrCat(elements, " elements: waited ", absl::FormatDuration(waited), ", consumed ",
                      absl::FormatDuration(consumed), ", sources ",
                      absl::FormatDuration(in_sources), ", functions ",
                      absl::FormatDuration(in_functions), "; limited by ",
                      kLimits[static_cast<size_t>(limit())],
                      dropped > 0 ? absl::StrCat("; ", dropped, " were dropped") : "");
}

// One tree and what it shares. Cancelled, then destroyed root first.
struct Iterator::Run {
  std::unique_ptr<IteratorEnvironment> environment = std::make_unique<IteratorEnvironment>();
  std::unique_ptr<ElementIterator> root;

  static StatusOr<std::unique_ptr<Run>> Make(const Dataset& dataset, const IteratorOptions& options,
                                             uint64_t base_seed) {
    auto run = std::make_unique<Run>();
    run->environment->options = options;
    run->environment->base_seed = base_seed;
    IteratorContext context;
    context.environment = run->environment.get();
    context.cancellation = &run->environment->cancellation;
    MR_ASSIGN_OR_RETURN(run->root, dataset.node()->MakeIterator(context));
    return run;
  }
  ~Run() { environment->cancellation.StartCancel(); }
};

struct Iterator::State {
  const Dataset dataset;
  const IteratorOptions options;
  const uint64_t base_seed;

  State(const Dataset& d, const IteratorOptions& o, uint64_t seed)
      : dataset(d), options(o), base_seed(seed) {}

  mutable Mutex mu;  // its holder may call the tree
  bool ended ABSL_GUARDED_BY(mu) = false;
  SteadyTime last_return ABSL_GUARDED_BY(mu);

  // Changed with both mutexes held. Cancel and times take the second alone: they must not wait for
  // a Next that runs.
  mutable Mutex run_mu;
  std::shared_ptr<Run> run;
  // Of a Restore that goes on: what it calls may block, or come to no end by itself.
  std::shared_ptr<Run> restored ABSL_GUARDED_BY(run_mu);
  bool cancelled ABSL_GUARDED_BY(run_mu) = false;
  Mutex restore_mu;  // one Restore at a time; taken first

  // Written under `mu`, read by anybody; relaxed: figures.
  std::atomic<int64_t> elements{0}, waited_ns{0}, consumed_ns{0};

  std::shared_ptr<Run> CurrentRun() const {
    MutexLock lock(&run_mu);
    return run;
  }
};

Iterator::Iterator(std::unique_ptr<State> state) : state_(std::move(state)) {}

Iterator::~Iterator() { Cancel(); }

StatusOr<std::unique_ptr<Iterator>> Iterator::Make(const Dataset& dataset,
                                                   const IteratorOptions& options) {
  MR_RETURN_IF_ERROR(dataset.status());
  return NoExceptions("Iterator", [&]() -> StatusOr<std::unique_ptr<Iterator>> {
    IteratorOptions filled = options;
    if (filled.file_system == nullptr) filled.file_system = FileSystem::Default();
    if (filled.io_pool == nullptr) filled.io_pool = IoPool::Default();
    if (filled.arena == nullptr) filled.arena = Arena::Default();
    if (filled.clock == nullptr) filled.clock = Clock::Real();
    auto state =
        std::make_unique<State>(dataset, filled, options.seed != 0 ? options.seed : RandomUint64());
    MR_ASSIGN_OR_RETURN(state->run, Run::Make(dataset, filled, state->base_seed));
    return std::unique_ptr<Iterator>(new Iterator(std::move(state)));
  });
}

StatusOr<bool> Iterator::Next(Element* element) {
  const SteadyTime start = std::chrono::steady_clock::now();
  State& s = *state_;
  MutexLock lock(&s.mu);
  if (s.run->environment->cancellation.IsCancelled()) {
    return absl::CancelledError("Iterator: it was cancelled");
  }
  if (s.ended) return false;
  StatusOr<bool> more = NoExceptions("Iterator", [&] { return s.run->root->Next(element); });
  const SteadyTime now = std::chrono::steady_clock::now();
  if (more.ok()) {
    if (*more) {
      Add(1, &s.elements);
    } else {
      s.ended = true;
    }
  }
  // Calls of several threads overlap: then nobody consumes in between.
  if (s.last_return != SteadyTime() && start > s.last_return) {
    Add(Nanoseconds(start - s.last_return), &s.consumed_ns);
  }
  Add(Nanoseconds(now - start), &s.waited_ns);
  s.last_return = now;
  return more;
}

StatusOr<Element> Iterator::Next() {
  Element element;
  MR_ASSIGN_OR_RETURN(const bool more, Next(&element));
  if (!more) return absl::OutOfRangeError("End of sequence");
  return element;
}

bool Iterator::NextIsReady() const {
  if (!state_->mu.TryLock()) return false;
  const ElementIterator& root = *state_->run->root;
  const bool ready = state_->ended || root.NextIsReady() || root.NeverWaits();
  state_->mu.Unlock();
  return ready;
}

StatusOr<std::string> Iterator::Save() {
  return NoExceptions("Iterator.Save", [&]() -> StatusOr<std::string> {
    MutexLock lock(&state_->mu);
    const std::shared_ptr<Run>& run = state_->run;
    if (run->environment->cancellation.IsCancelled()) {
      return absl::CancelledError("Iterator: it was cancelled");
    }
    StateWriter writer;
    writer.PutBytes(absl::StrCat(kStateMagic, kIteratorStateVersion));
    writer.PutBytes(state_->dataset.DebugString());
    writer.PutUint(run->environment->base_seed);
    writer.PutBool(state_->ended);
    MR_RETURN_IF_ERROR(run->root->Save(&writer));
    return writer.Take();
  });
}

Status Iterator::Restore(absl::string_view bytes) {
  return NoExceptions("Iterator.Restore", [&]() -> Status {
    StateReader reader(bytes);
    MR_ASSIGN_OR_RETURN(const absl::string_view magic, reader.GetBytes());
    MR_ASSIGN_OR_RETURN(const int version, VersionOf(magic));
    reader.set_version(version);
    MR_ASSIGN_OR_RETURN(const absl::string_view text, reader.GetBytes());
    if (text != state_->dataset.DebugString()) {
      return InvalidArgument("Iterator state: it must be of the dataset '",
                             state_->dataset.DebugString(), "', got one of '", text, "'");
    }
    MR_ASSIGN_OR_RETURN(const uint64_t base_seed, reader.GetUint());
    MR_ASSIGN_OR_RETURN(const bool ended, reader.GetBool());
    MR_ASSIGN_OR_RETURN(std::shared_ptr<Run> run,
                        Run::Make(state_->dataset, state_->options, base_seed));
    MutexLock restore_lock(&state_->restore_mu);
    const auto set_restored = [&](std::shared_ptr<Run> now) -> Status {
      MutexLock lock(&state_->run_mu);
      MR_DCHECK((state_->restored == nullptr) == (now != nullptr),
                "restore_mu lets one Restore at a time set its tree and take it back");
      state_->restored = std::move(now);
      return state_->cancelled ? absl::CancelledError("Iterator: it was cancelled")
                               : absl::OkStatus();
    };
    Status restored = set_restored(run);
    if (restored.ok()) {
      restored = NoExceptions("Iterator.Restore", [&] { return run->root->Restore(&reader); });
    }
    const Status open = set_restored(nullptr);
    MR_RETURN_IF_ERROR(open);
    MR_RETURN_IF_ERROR(restored);
    if (!reader.empty()) return absl::DataLossError("Iterator state: bytes follow its end");
    MutexLock lock(&state_->mu);
    {
      MutexLock run_lock(&state_->run_mu);
      if (state_->cancelled) return absl::CancelledError("Iterator: it was cancelled");
      state_->run.swap(run);
    }
    state_->ended = ended;
    run.reset();  // waits for what runs there
    return absl::OkStatus();
  });
}

void Iterator::Cancel() {
  std::shared_ptr<Run> run, restored;
  {
    MutexLock lock(&state_->run_mu);
    state_->cancelled = true;
    run = state_->run;
    restored = state_->restored;
  }
  run->environment->cancellation.StartCancel();
  if (restored != nullptr) restored->environment->cancellation.StartCancel();
}

IteratorTimes Iterator::times() const {
  const std::shared_ptr<Run> run = state_->CurrentRun();
  IteratorTimes times;
  times.elements = state_->elements.load(std::memory_order_relaxed);
  times.waited = absl::Nanoseconds(state_->waited_ns.load(std::memory_order_relaxed));
  times.consumed = absl::Nanoseconds(state_->consumed_ns.load(std::memory_order_relaxed));
  times.in_sources = absl::Nanoseconds(run->environment->source_time.ns());
  times.in_functions = absl::Nanoseconds(run->environment->function_time.ns());
  times.dropped = run->environment->dropped.load(std::memory_order_relaxed);
  return times;
}

const ElementSpec& Iterator::spec() const { return state_->dataset.spec(); }

}  // namespace millrace::data
