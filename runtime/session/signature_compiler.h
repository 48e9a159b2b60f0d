// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_SIGNATURE_COMPILER_H_
#define MILLRACE_RUNTIME_SESSION_SIGNATURE_COMPILER_H_

// SignatureCompiler: a session's graph, and the signatures compiled of it, which it keeps while
// they are used.
//
//   open -> closed   nothing is found or compiled any more; what is kept is handed out
//
// Invariants:
//   * the graph only grows, so what was compiled stays right;
//   * a canonical signature is compiled once while anybody keeps it, whatever the names, their
//     order and duplicates that it was asked for with (BindSignature);
//   * at most `max_entries` lists of names are kept, and signatures that hold at most `max_bytes`
//     besides the one just compiled, with their names; the least recently used go first. A constant
//     that several signatures hold counts once.
//
// A caller that remembers a binding and uses it without asking here says so by `is_used`; what was
// used so counts as used when the next one has to go, before what was looked up since then.
//
// `Compiled` is what a signature is compiled to: executors in a session of this process, handles of
// the tasks' graphs in a master. It has a member `HeldBytes held`.
//
// Thread-safety: all methods, from any thread; compiling and extending take turns, what is found
// passes them by. Lifetime: `compile` is called during Bind only. What was found lives as long as
// its owners; no lock is held when the last reference is dropped here.
// Failure: what binding and compiling say; the status of Close later. A graph that could not be
// extended is as it was. No exception leaves it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/exceptions.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/graph_extension.h"
#include "graph/signature.h"
#include "runtime/session/compile_path.h"

namespace millrace {

// What a caller's lists of names stand for.
template <typename Compiled>
struct SignatureBinding {
  BoundSignature bound;
  std::vector<FeedRule> feed_rules;    // of bound.signature
  std::shared_ptr<Compiled> compiled;  // null when everything that is fetched was fed
  // Since it was kept or spared; relaxed: a hint. Written only when it is not set, so that threads
  // that use it do not write to one cache line.
  mutable std::atomic<bool> is_used{false};
  void SayUsed() const {
    if (!is_used.load(std::memory_order_relaxed)) is_used.store(true, std::memory_order_relaxed);
  }
};

// What a fetch of an operation means: a target that has no result, or, to a master whose clients
// count the answers by the names that they asked for, an error.
enum class OperationFetch { kIsTarget, kIsAnError };

// The bytes that a set of signatures holds together. Not thread-safe.
class HeldBytesSum {
 public:
  void Add(const HeldBytes& held);
  void Remove(const HeldBytes& held);
  int64_t total() const { return total_; }

 private:
  struct Shared {
    int64_t bytes = 0;
    int users = 0;
  };
  HashMap<const void*, Shared> shared_;
  int64_t total_ = 0;
};

template <typename Compiled>
class SignatureCompiler {
 public:
  using Binding = SignatureBinding<Compiled>;
  using Compile =
      std::function<StatusOr<std::shared_ptr<Compiled>>(const Graph&, const RunSignature&)>;

  SignatureCompiler(OperationFetch operations, size_t max_entries, int64_t max_bytes,
                    FedShapes fed_shapes, Compile compile)
      : operations_(operations),
        max_entries_(max_entries),
        max_bytes_(max_bytes),
        fed_shapes_(fed_shapes),
        compile_(std::move(compile)) {}

  // Adds nodes. A name that exists must come with an equal definition.
  Status Extend(const tensorflow::GraphDef& def);
  // Those of `graph` from id `first_id` on; their bodies are shared (graph/graph_extension.h).
  Status Extend(const Graph& graph, int first_id);

  // `key` is the SignatureKey of what `names` returns, which is called only when it is not kept.
  StatusOr<std::shared_ptr<const Binding>> Bind(const std::string& key,
                                                absl::FunctionRef<RunSignature()> names) {
    Entries dropped;
    return Bind(key, names, &dropped);
  }

  // Null when it is not kept: nothing is compiled.
  StatusOr<std::shared_ptr<const Binding>> Find(const std::string& key);

  // Calls with the graph while it does not grow.
  Status WithGraph(absl::FunctionRef<Status(const Graph&)> body);

  struct Entry {
    std::string key;
    std::shared_ptr<const Binding> binding;
  };
  using Entries = std::list<Entry>;  // latest first
  // Also what had to go for it, for the caller to forget and to drop, without a lock.
  StatusOr<std::shared_ptr<const Binding>> Bind(const std::string& key,
                                                absl::FunctionRef<RunSignature()> names,
                                                Entries* dropped);
  // What was kept, for the caller to drop. `status` must not be OK; the first one counts. Needs no
  // memory.
  Entries Close(const Status& status);

  // For tests.
  struct Stats {
    int64_t compilations = 0;
    int64_t entries = 0;
    int64_t bytes = 0;
  };
  Stats stats();
  // Those that are kept.
  std::vector<std::shared_ptr<Compiled>> Kept();

 private:
  Status Extend(absl::FunctionRef<Status(Graph*)> extend);
  StatusOr<std::shared_ptr<const Binding>> Make(const RunSignature& names)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(graph_mu_);
  // Moves what must go to `dropped`.
  void Keep(const std::string& key, std::shared_ptr<const Binding> binding, Entries* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Account(const Compiled* compiled, int change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const OperationFetch operations_;
  const size_t max_entries_;
  const int64_t max_bytes_;
  const FedShapes fed_shapes_;
  const Compile compile_;
  std::atomic<int64_t> compilations_{0};  // relaxed: counts only

  // Compiling and extending, one at a time. Taken before mu_.
  Mutex graph_mu_;
  Graph graph_ ABSL_GUARDED_BY(graph_mu_);
  bool has_graph_ ABSL_GUARDED_BY(graph_mu_) = false;  // also one without nodes
  // By the key of the canonical signature.
  HashMap<std::string, std::weak_ptr<Compiled>> compiled_ ABSL_GUARDED_BY(graph_mu_);

  Mutex mu_;
  Status closed_ ABSL_GUARDED_BY(mu_);
  Entries entries_ ABSL_GUARDED_BY(mu_);
  HashMap<std::string, typename Entries::iterator> by_key_ ABSL_GUARDED_BY(mu_);
  HashMap<const Compiled*, int> users_ ABSL_GUARDED_BY(mu_);  // among the entries
  HeldBytesSum held_ ABSL_GUARDED_BY(mu_);
  // A list may name one tensor a million times: it is in the entry, its place, its binding, and in
  // compiled_.
  static constexpr int64_t kCopiesOfNames = 4;
  int64_t name_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of the entries
};

// -------------------------------------------------------------------------------------------------

template <typename Compiled>
Status SignatureCompiler<Compiled>::Extend(const tensorflow::GraphDef& def) {
  return Extend([&def](Graph* graph) { return ExtendGraph(def, graph); });
}

template <typename Compiled>
Status SignatureCompiler<Compiled>::Extend(const Graph& graph, int first_id) {
  return Extend([&](Graph* mine) { return ExtendGraph(graph, first_id, mine); });
}

template <typename Compiled>
Status SignatureCompiler<Compiled>::Extend(absl::FunctionRef<Status(Graph*)> extend) {
  MutexLock lock(&graph_mu_);
  {
    MutexLock state(&mu_);
    MR_RETURN_IF_ERROR(closed_);
  }
  MR_RETURN_IF_ERROR(NoExceptions("Extend", [&] { return extend(&graph_); }));
  has_graph_ = true;
  return absl::OkStatus();
}

template <typename Compiled>
Status SignatureCompiler<Compiled>::WithGraph(absl::FunctionRef<Status(const Graph&)> body) {
  MutexLock lock(&graph_mu_);
  return NoExceptions("Session", [&] { return body(graph_); });
}

template <typename Compiled>
StatusOr<std::shared_ptr<const SignatureBinding<Compiled>>> SignatureCompiler<Compiled>::Find(
    const std::string& key) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(closed_);
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return std::shared_ptr<const Binding>();
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->binding;
}

template <typename Compiled>
StatusOr<std::shared_ptr<const SignatureBinding<Compiled>>> SignatureCompiler<Compiled>::Bind(
    const std::string& key, absl::FunctionRef<RunSignature()> names, Entries* dropped) {
  return NoExceptions("Session", [&]() -> StatusOr<std::shared_ptr<const Binding>> {
    MR_ASSIGN_OR_RETURN(std::shared_ptr<const Binding> binding, Find(key));
    if (binding != nullptr) return binding;
    MutexLock graph_lock(&graph_mu_);
    MR_ASSIGN_OR_RETURN(binding, Find(key));
    if (binding != nullptr) return binding;  // somebody else was faster
    StatusOr<std::shared_ptr<const Binding>> made = Make(names());
    MutexLock lock(&mu_);
    // Closing may take away what compiling needs.
    MR_RETURN_IF_ERROR(closed_);
    MR_RETURN_IF_ERROR(made.status());
    Keep(key, *made, dropped);
    return made;
  });
}

template <typename Compiled>
StatusOr<std::shared_ptr<const SignatureBinding<Compiled>>> SignatureCompiler<Compiled>::Make(
    const RunSignature& names) {
  if (!has_graph_) {
    return FailedPrecondition(
        "Session: must have a graph before it runs or prepares a step, got none; call Extend "
        "first (in C: add nodes to the session's graph)");
  }
  auto binding = std::make_shared<Binding>();
  MR_ASSIGN_OR_RETURN(binding->bound, BindSignature(names, [&](const std::string& name) {
                        return operations_ == OperationFetch::kIsTarget &&
                               IsOperation(graph_, name);
                      }));
  const RunSignature& signature = binding->bound.signature;
  if (binding->bound.runs()) {
    const std::string key = SignatureKey(signature);
    if (const auto it = compiled_.find(key); it != compiled_.end()) {
      binding->compiled = it->second.lock();
    }
    if (binding->compiled == nullptr) {
      MR_ASSIGN_OR_RETURN(binding->compiled, compile_(graph_, signature));
      compilations_.fetch_add(1, std::memory_order_relaxed);
      compiled_[key] = binding->compiled;
      // Entries of what is gone would add up.
      if (compiled_.size() > 2 * max_entries_) {
        std::erase_if(compiled_, [](const auto& entry) { return entry.second.expired(); });
      }
    }
  }
  MR_ASSIGN_OR_RETURN(binding->feed_rules, FeedRules(graph_, signature, fed_shapes_));
  return std::shared_ptr<const Binding>(std::move(binding));
}

template <typename Compiled>
void SignatureCompiler<Compiled>::Keep(const std::string& key,
                                       std::shared_ptr<const Binding> binding, Entries* dropped) {
  Entries fresh;
  fresh.push_back({key, std::move(binding)});
  by_key_.emplace(key, fresh.begin());
  try {
    Account(fresh.front().binding->compiled.get(), 1);
  } catch (...) {
    by_key_.erase(key);
    throw;
  }
  entries_.splice(entries_.begin(), fresh);
  const int64_t latest_names = kCopiesOfNames * static_cast<int64_t>(key.size());
  name_bytes_ += latest_names;
  const Compiled* const latest = entries_.front().binding->compiled.get();
  const int64_t latest_bytes = latest_names + (latest == nullptr ? 0 : latest->held.total());
  // Each at most once, so that somebody goes.
  size_t may_be_spared = entries_.size() - 1;
  while (entries_.size() > 1 && (entries_.size() > max_entries_ ||
                                 held_.total() + name_bytes_ - latest_bytes > max_bytes_)) {
    const auto oldest = std::prev(entries_.end());
    if (may_be_spared > 0 && oldest->binding->is_used.exchange(false, std::memory_order_relaxed)) {
      --may_be_spared;
      entries_.splice(std::next(entries_.begin()), entries_, oldest);
      continue;
    }
    Account(entries_.back().binding->compiled.get(), -1);
    name_bytes_ -= kCopiesOfNames * static_cast<int64_t>(entries_.back().key.size());
    by_key_.erase(entries_.back().key);
    dropped->splice(dropped->end(), entries_, std::prev(entries_.end()));
  }
}

template <typename Compiled>
void SignatureCompiler<Compiled>::Account(const Compiled* compiled, int change) {
  if (compiled == nullptr) return;
  int& users = users_[compiled];
  if (change > 0 && users == 0) held_.Add(compiled->held);
  users += change;
  if (users > 0) return;
  held_.Remove(compiled->held);
  users_.erase(compiled);
}

template <typename Compiled>
typename SignatureCompiler<Compiled>::Entries SignatureCompiler<Compiled>::Close(
    const Status& status) {
  Entries entries;
  MutexLock lock(&mu_);
  if (closed_.ok()) closed_ = status;
  entries.swap(entries_);
  by_key_.clear();
  users_.clear();
  held_ = HeldBytesSum();
  name_bytes_ = 0;
  return entries;
}

template <typename Compiled>
typename SignatureCompiler<Compiled>::Stats SignatureCompiler<Compiled>::stats() {
  MutexLock lock(&mu_);
  return {compilations_.load(std::memory_order_relaxed), static_cast<int64_t>(entries_.size()),
          held_.total()};
}

template <typename Compiled>
std::vector<std::shared_ptr<Compiled>> SignatureCompiler<Compiled>::Kept() {
  MutexLock lock(&mu_);
  HashMap<const Compiled*, std::shared_ptr<Compiled>> distinct;
  for (const Entry& entry : entries_) {
    if (entry.binding->compiled != nullptr) {
      distinct.emplace(entry.binding->compiled.get(), entry.binding->compiled);
    }
  }
  std::vector<std::shared_ptr<Compiled>> kept;
  for (auto& [pointer, compiled] : distinct) kept.push_back(std::move(compiled));
  return kept;
}

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_SIGNATURE_COMPILER_H_
