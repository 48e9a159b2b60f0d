// SPDX-License-Identifier: Apache-2.0
#include "runtime/session.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/new_message.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"

namespace millrace {
namespace {

struct Factories {
  Mutex mu;
  struct Entry {
    SessionFactoryRegistration::Factory factory;
    SessionFactoryRegistration::TargetReset reset;
  };
  std::map<std::string, Entry> by_scheme ABSL_GUARDED_BY(mu);
};
Factories& AllFactories() {
  static Factories* const factories = new Factories;
  return *factories;
}

StatusOr<Factories::Entry> FindFactory(const std::string& target) {
  Factories& all = AllFactories();
  MutexLock lock(&all.mu);
  std::vector<std::string> known;
  for (const auto& [scheme, entry] : all.by_scheme) {
    if (scheme.empty() ? target.empty() || target == "local" : absl::StartsWith(target, scheme)) {
      return entry;
    }
    known.push_back(absl::StrCat("'", scheme, "'"));
  }
  if (target.empty() || target == "local") {
    return absl::FailedPreconditionError(
        "NewSession: sessions in this process must be linked into the program; link "
        "//runtime:direct_session");
  }
  return absl::NotFoundError(absl::StrCat(
      "NewSession: target '", target, "' must begin with a registered scheme, got none of ",
      known.empty() ? "(none)" : absl::StrJoin(known, ", "),
      absl::StartsWith(target, "grpc://") ? "; link //distributed for grpc://" : ""));
}

Status Place(std::vector<Tensor> made, absl::Span<Tensor> results) {
  if (made.size() != results.size()) {
    return InvalidArgument("Run: the signature has ", made.size(), " results, got places for ",
                           results.size());
  }
  std::move(made.begin(), made.end(), results.begin());
  return absl::OkStatus();
}

}  // namespace

SessionFactoryRegistration::SessionFactoryRegistration(absl::string_view scheme, Factory factory,
                                                       TargetReset reset) {
  Factories& all = AllFactories();
  MutexLock lock(&all.mu);
  all.by_scheme.insert_or_assign(std::string(scheme),
                                 Factories::Entry{std::move(factory), std::move(reset)});
}

StatusOr<std::unique_ptr<Session>> NewSession(const SessionOptions& options) {
  MR_ASSIGN_OR_RETURN(const Factories::Entry entry, FindFactory(options.target));
  return entry.factory(options);
}

Status ResetTarget(const SessionOptions& options, absl::Span<const std::string> containers) {
  MR_ASSIGN_OR_RETURN(const Factories::Entry entry, FindFactory(options.target));
  if (entry.reset == nullptr) {
    return Unimplemented("ResetTarget: target '", options.target, "' cannot be reset");
  }
  return entry.reset(options, containers);
}

FetchName::FetchName(absl::string_view name) : name_(name) {}
FetchName::FetchName(const std::string& name) : name_(name) {}
FetchName::FetchName(const char* name) : name_(name) {}
FetchName::FetchName(const Output& output) : FetchName(output.name(), output.node()) {}
FetchName::FetchName(const Operation& op) : FetchName(op.name(), op.node()) {}

FetchName::FetchName(const FetchName& other) = default;
FetchName::FetchName(FetchName&& other) noexcept = default;
FetchName& FetchName::operator=(const FetchName& other) = default;
FetchName& FetchName::operator=(FetchName&& other) noexcept = default;
FetchName::~FetchName() = default;

FetchName::FetchName(std::string name, const Node* node)
    : name_(std::move(name)),
      graph_id_(node == nullptr ? kInvalid : node->graph()->id()),
      node_id_(node == nullptr ? 0 : node->id()) {}

Feed::Feed(FetchName n, Tensor v) : name(std::move(n)), value(std::move(v)) {}
Feed::Feed(const Feed& other) = default;
Feed::Feed(Feed&& other) noexcept = default;
Feed& Feed::operator=(const Feed& other) = default;
Feed& Feed::operator=(Feed&& other) noexcept = default;
Feed::~Feed() = default;

Signature NamesOf(absl::Span<const Feed> feeds, absl::Span<const FetchName> fetches,
                  absl::Span<const FetchName> targets) {
  Signature names;
  for (const Feed& feed : feeds) names.feeds.push_back(feed.name.name());
  for (const FetchName& fetch : fetches) names.fetches.push_back(fetch.name());
  for (const FetchName& target : targets) names.targets.push_back(target.name());
  return names;
}

Status PreparedStep::RunInto(absl::Span<const Tensor> feeds, absl::Span<Tensor> results) {
  for (Tensor& result : results) result = Tensor();
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> made, Run(feeds));
  return Place(std::move(made), results);
}

Status PreparedStep::RunInto(const StepOptions& options, absl::Span<const Tensor> feeds,
                             absl::Span<Tensor> results) {
  for (Tensor& result : results) result = Tensor();
  if (options.cancellation != nullptr && options.cancellation->IsCancelled()) {
    return absl::CancelledError("Run: it was cancelled before it began");
  }
  if (options.deadline == absl::InfiniteFuture()) return RunInto(feeds, results);
  const absl::Duration left = options.deadline - absl::Now();
  if (left <= absl::ZeroDuration()) {
    return absl::DeadlineExceededError("Run: its time was over before it began");
  }
  tensorflow::RunOptions with_timeout;
  with_timeout.set_timeout_in_ms(
      std::max(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), int64_t{1}));
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> made, Run(with_timeout, feeds, nullptr));
  return Place(std::move(made), results);
}

Session::~Session() = default;

// --- The graph that a session knows --------------------------------------------------------------

namespace {

// The number of nodes of a session of several Scopes, or of none: it takes nothing up.
constexpr int kNothingIsNew = std::numeric_limits<int>::max();

}  // namespace

Status Session::Extend(const tensorflow::GraphDef& graph) {
  MutexLock lock(&extend_mu_);
  MR_RETURN_IF_ERROR(DoExtend(graph));
  if (nodes_of_.empty()) num_nodes_.store(kNothingIsNew, std::memory_order_relaxed);
  graph_id_.store(kManyGraphs, std::memory_order_release);
  return absl::OkStatus();
}

Status Session::Extend(const Scope& scope) {
  return NoExceptions("Extend", [&]() -> Status {
    MR_RETURN_IF_ERROR(scope.status());
    MutexLock lock(&extend_mu_);
    const Graph& graph = *scope.graph();
    int& here = nodes_of_[graph.id()];  // first, because nothing may fail once the nodes are here
    MR_RETURN_IF_ERROR(ExtendFrom(graph, 0));
    const int64_t known = graph_id_.load(std::memory_order_relaxed);
    const bool is_only_one = known == kNoGraph || known == graph.id();
    // Messages next to one Scope do not count: the library itself adds nodes so.
    const bool is_only_scope = is_only_one || nodes_of_.size() == 1;
    if (is_only_scope) graph_ = graph.weak_from_this();
    num_nodes_.store(is_only_scope ? graph.num_node_ids() : kNothingIsNew,
                     std::memory_order_relaxed);
    graph_id_.store(is_only_one ? graph.id() : kManyGraphs, std::memory_order_release);
    here = graph.num_node_ids();
    return absl::OkStatus();
  });
}

Status Session::ExtendFrom(const Graph& graph, int first_id) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& node : graph.nodes().subspan(static_cast<size_t>(first_id))) {
    if (node != nullptr && !node->built_at().empty()) {
      lines.emplace_back(node->name(), node->built_at());
    }
  }
  AddSourceLines(std::move(lines));
  return DoExtendFrom(graph, first_id);
}

Status Session::DoExtendFrom(const Graph& graph, int first_id) {
  const auto def = NewMessage<tensorflow::GraphDef>();
  graph.ToGraphDef(def.get(), first_id);
  return DoExtend(*def);
}

Status Session::TakeUp(absl::string_view where, absl::string_view what, size_t index,
                       const FetchName& name) {
  if (name.graph_id() == FetchName::kByName) return absl::OkStatus();
  if (name.graph_id() == FetchName::kInvalid) {
    return InvalidArgument(where, ": ", what, " ", index,
                           " must be the output of a node or a node, ",
                           "got an invalid one; the Scope's status() says why");
  }
  const int64_t known = graph_id_.load(std::memory_order_acquire);
  if (known == kNoGraph) return absl::OkStatus();
  if (known != kManyGraphs && known != name.graph_id()) {
    return InvalidArgument(where, ": ", what, " '", name.name(),
                           "' must be of the graph that the session was extended with, got one of "
                           "another Scope");
  }
  if (name.node_id() < num_nodes_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(&extend_mu_);
  const int first_id = num_nodes_.load(std::memory_order_relaxed);
  const std::shared_ptr<const Graph> graph = graph_.lock();
  if (graph == nullptr || graph->id() != name.graph_id() || name.node_id() < first_id) {
    return absl::OkStatus();
  }
  int& here = nodes_of_[graph->id()];
  MR_RETURN_IF_ERROR(
      Prefixed(absl::StrCat("'", name.name(), "' was added after the session was extended"),
               ExtendFrom(*graph, first_id)));
  num_nodes_.store(graph->num_node_ids(), std::memory_order_release);
  here = graph->num_node_ids();
  return absl::OkStatus();
}

Status Session::TakeUp(absl::string_view where, absl::Span<const Feed> feeds,
                       absl::Span<const FetchName> fetches, absl::Span<const FetchName> targets) {
  return NoExceptions(where, [&]() -> Status {
    for (size_t i = 0; i < feeds.size(); ++i) {
      MR_RETURN_IF_ERROR(TakeUp(where, "feed", i, feeds[i].name));
    }
    for (size_t i = 0; i < fetches.size(); ++i) {
      MR_RETURN_IF_ERROR(TakeUp(where, "fetch", i, fetches[i]));
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      MR_RETURN_IF_ERROR(TakeUp(where, "target", i, targets[i]));
    }
    return absl::OkStatus();
  });
}

Status Session::ExplainNotFound(const Status& status, absl::Span<const Feed> feeds,
                                absl::Span<const FetchName> fetches,
                                absl::Span<const FetchName> targets) {
  if (!absl::IsNotFound(status)) return status;
  return NoExceptions("Run", [&]() -> Status {
    std::vector<const FetchName*> names;
    for (const Feed& feed : feeds) names.push_back(&feed.name);
    for (const FetchName& fetch : fetches) names.push_back(&fetch);
    for (const FetchName& target : targets) names.push_back(&target);
    MutexLock lock(&extend_mu_);
    for (const FetchName* name : names) {
      const auto it = nodes_of_.find(name->graph_id());
      if (it == nodes_of_.end() || it->second == 0 || name->node_id() < it->second) continue;
      return Suffixed(status, absl::StrCat("; '", name->name(),
                                           "' was added to its graph after this session was "
                                           "extended; call Extend again"));
    }
    return status;
  });
}

StatusOr<std::vector<Tensor>> Session::Run(const tensorflow::RunOptions& options,
                                           absl::Span<const Feed> feeds,
                                           absl::Span<const FetchName> fetches,
                                           absl::Span<const FetchName> targets,
                                           tensorflow::RunMetadata* metadata) {
  MR_RETURN_IF_ERROR(TakeUp("Run", feeds, fetches, targets));
  StatusOr<std::vector<Tensor>> results = DoRun(options, feeds, fetches, targets, metadata);
  if (!results.ok()) return ExplainNotFound(results.status(), feeds, fetches, targets);
  return results;
}

StatusOr<std::unique_ptr<PreparedStep>> Session::Prepare(const std::vector<FetchName>& feeds,
                                                         const std::vector<FetchName>& fetches,
                                                         const std::vector<FetchName>& targets) {
  return NoExceptions("Prepare", [&]() -> StatusOr<std::unique_ptr<PreparedStep>> {
    std::vector<Feed> places;
    for (const FetchName& feed : feeds) places.emplace_back(feed, Tensor());
    MR_RETURN_IF_ERROR(TakeUp("Prepare", places, fetches, targets));
    StatusOr<std::unique_ptr<PreparedStep>> step = Prepare(NamesOf(places, fetches, targets));
    if (!step.ok()) return ExplainNotFound(step.status(), places, fetches, targets);
    return step;
  });
}

StatusOr<std::vector<Tensor>> Session::Run(const FeedList& feeds, const FetchList& fetches,
                                           const FetchList& targets) {
  return Run(tensorflow::RunOptions::default_instance(), feeds.feeds(), fetches.names(),
             targets.names(), nullptr);
}

Status Session::Run(const FeedList& feeds, const FetchList& fetches, const FetchList& targets,
                    std::vector<Tensor>* outputs) {
  return Run(tensorflow::RunOptions::default_instance(), feeds, fetches, targets, outputs, nullptr);
}

Status Session::Run(const tensorflow::RunOptions& options, const FeedList& feeds,
                    const FetchList& fetches, const FetchList& targets,
                    std::vector<Tensor>* outputs, tensorflow::RunMetadata* metadata) {
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> results,
                      Run(options, feeds.feeds(), fetches.names(), targets.names(), metadata));
  if (outputs != nullptr) *outputs = std::move(results);
  return absl::OkStatus();
}

}  // namespace millrace
