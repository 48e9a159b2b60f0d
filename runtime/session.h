// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_H_
#define MILLRACE_RUNTIME_SESSION_H_

// Session: runs steps of a graph.
//
//   MR_ASSIGN_OR_RETURN(auto session, NewSession({.target = "", .config = ...}));
//   MR_RETURN_IF_ERROR(session->Extend(scope));               // or a GraphDef
//   MR_ASSIGN_OR_RETURN(auto out, session->Run({{x, images}}, {loss, step}, {train}));
//
// A session that was extended with one Scope, and with nothing else, knows that Scope's graph: a
// Run that names an Output or Operation which the Scope has got since takes up the new nodes by
// itself (which counts as use of the Scope by that thread, and is not bounded by the time of the
// Run), and one of another Scope is refused. What is named by text is looked up by name alone.
//
// Targets: "" runs in this process; other schemes ("grpc://host:port") are
// registered by the libraries that implement them (link //distributed).
//
// A signature (feeds, fetches, targets) is compiled at its first Run and cached (bounded in number
// and bytes, least recently used first out); Prepare returns a handle that skips the look-up.
//
// States: open -> closed. Close cancels running steps (they end with Cancelled) and waits for them;
// later calls return Cancelled "Session has been closed.".
//
// Thread-safety: all methods, from any thread; many Runs at once.
// Failure: the first error of a step, with the op's and node's name; for nodes that a Scope of this
// process made, followed by "; built at file:line". Without memory: ResourceExhausted, and the
// session goes on. No exception leaves it.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/signature.h"
#include "run/run_choice.h"
#include "runtime/session_config.h"  // IWYU pragma: export

namespace tensorflow {
class DeviceAttributes;
class GraphDef;
class RunMetadata;
class RunOptions;
}  // namespace tensorflow

namespace millrace {

class Arena;                // core/arena.h
class CancellationManager;  // core/cancellation.h

class Graph;      // graph/graph.h
class Node;       // graph/graph.h
class Operation;  // graph/scope.h
class Output;     // graph/scope.h
class Scope;      // graph/scope.h

class RunSession;

struct SessionOptions {
  // "" = in this process.
  std::string target = "";
  SessionConfig config = {};
  // Compiled signatures that are kept.
  int max_cached_plans = 128;
  // What they may hold together besides the one that ran last, in this process: plans, and
  // constants (one that several hold counts once).
  int64_t max_cached_plan_bytes = int64_t{256} << 20;
  // What the kernels of one step may hold at a time in this process: outputs and scratch memory. A
  // step that needs more ends with ResourceExhausted that names the largest holders. 0: no limit.
  int64_t max_step_bytes = 0;
  // A feed must have the shape that shape inference finds for its tensor. False, in this process:
  // only a placeholder's feed must have the placeholder's shape, as in TensorFlow's C++ session.
  bool check_inferred_shapes = true;
  // How long creating a session may wait for other tasks, and for the chief of its run.
  absl::Duration creation_timeout = absl::Seconds(7200);
  // What is trained (run/training_run.h); none: resources are in the default container of the
  // tasks. A chief's session takes the run over. Another's waits until a chief has it, and is
  // RunEndedError at once when it has ended. A session in this process has resources of its own,
  // whatever stands here.
  RunChoice run = {};
  // With a target in another process: how long its master keeps a session whose client it does not
  // hear of. It is told of the client six times in that.
  absl::Duration lease = absl::Seconds(60);
};

// The name of a tensor ("x:0", "x") or of an operation; also made from what builders return, and
// then it knows the graph.
class FetchName {
 public:
  FetchName(absl::string_view name);   // NOLINT
  FetchName(const std::string& name);  // NOLINT
  FetchName(const char* name);         // NOLINT
  FetchName(const Output& output);     // NOLINT
  FetchName(const Operation& op);      // NOLINT
  FetchName(const FetchName& other);
  FetchName(FetchName&& other) noexcept;
  FetchName& operator=(const FetchName& other);
  FetchName& operator=(FetchName&& other) noexcept;
  ~FetchName();
  const std::string& name() const { return name_; }
  // Of the Output's or Operation's graph; kByName for a text, kInvalid for an invalid one.
  int64_t graph_id() const { return graph_id_; }
  int node_id() const { return node_id_; }

  static constexpr int64_t kByName = 0, kInvalid = -1;

 private:
  FetchName(std::string name, const Node* node);

  std::string name_;
  int64_t graph_id_ = kByName;
  int node_id_ = 0;
};

// What an element of a literal in a Feed may be.
template <typename T>
concept FedElement =
    std::is_arithmetic_v<T> || std::is_same_v<T, const char*> || std::is_same_v<T, std::string>;

struct Feed {
  Feed(FetchName n, Tensor v);
  // A literal of rank 0, 1 or 2, as Tensor::Scalar and Tensor::Of make it: {x, 1.0f},
  // {x, {1.0f, 2.0f}}, {words, "a"}. It has its elements' type: 1 is int32.
  template <FedElement T>
  Feed(FetchName n, T element) : Feed(std::move(n), Tensor::Scalar(std::move(element))) {}
  template <FedElement T>
  Feed(FetchName n, std::initializer_list<T> row) : Feed(std::move(n), Tensor::Of(row)) {}
  template <FedElement T>
  Feed(FetchName n, std::initializer_list<std::initializer_list<T>> rows)
      : Feed(std::move(n), Tensor::Of(rows)) {}
  Feed(const Feed& other);
  Feed(Feed&& other) noexcept;
  Feed& operator=(const Feed& other);
  Feed& operator=(Feed&& other) noexcept;
  ~Feed();

  FetchName name;
  Tensor value;
};

// The lists of a Run: written in the call, or vectors. They refer to what they are made of: for the
// arguments of one call.
class FeedList {
 public:
  FeedList() = default;
  FeedList(std::initializer_list<Feed> feeds)  // NOLINT
      : feeds_(absl::MakeConstSpan(feeds.begin(), feeds.size())) {}
  FeedList(const std::vector<Feed>& feeds) : feeds_(feeds) {}  // NOLINT
  absl::Span<const Feed> feeds() const { return feeds_; }

 private:
  absl::Span<const Feed> feeds_;
};

class FetchList {
 public:
  FetchList() = default;
  FetchList(std::initializer_list<FetchName> names)  // NOLINT
      : names_(absl::MakeConstSpan(names.begin(), names.size())) {}
  FetchList(const std::vector<FetchName>& names) : names_(names) {}  // NOLINT
  // Of Outputs, Operations or texts.
  template <typename T>
    requires std::is_convertible_v<const T&, FetchName>
  FetchList(const std::vector<T>& names)  // NOLINT
      : FetchList(names.begin(), names.end()) {}
  template <std::input_iterator Iterator>
    requires std::is_convertible_v<std::iter_reference_t<Iterator>, FetchName>
  FetchList(Iterator begin, Iterator end) : made_(begin, end), names_(made_) {}
  FetchList(const FetchList&) = delete;
  FetchList& operator=(const FetchList&) = delete;
  absl::Span<const FetchName> names() const { return names_; }

 private:
  std::vector<FetchName> made_;  // what names_ refers to, where the caller has none
  absl::Span<const FetchName> names_;
};

// {.feeds = {"x"}, .fetches = {"y:0"}, .targets = {"train"}}
using Signature = RunSignature;
// The names of a Run's lists, and nothing else: of which graphs they are is not checked.
Signature NamesOf(absl::Span<const Feed> feeds, absl::Span<const FetchName> fetches,
                  absl::Span<const FetchName> targets);

// Of one run of a prepared step.
struct StepOptions {
  // By absl::Now. No node begins after it: DeadlineExceeded.
  absl::Time deadline = absl::InfiniteFuture();
  // Once it is cancelled no further node begins: Cancelled. Lives until the run has returned. Null:
  // nobody cancels.
  CancellationManager* cancellation = nullptr;
  // Where kernels find threads besides the caller's; null: where the session's config says.
  Arena* arena = nullptr;
};

// A compiled signature. Keeps what it needs of its session alive; after Close its runs fail.
class PreparedStep {
 public:
  virtual ~PreparedStep() = default;
  // `feeds` in the order of the signature; the result in the order of its fetches.
  virtual StatusOr<std::vector<Tensor>> Run(absl::Span<const Tensor> feeds) = 0;
  virtual StatusOr<std::vector<Tensor>> Run(const tensorflow::RunOptions& options,
                                            absl::Span<const Tensor> feeds,
                                            tensorflow::RunMetadata* metadata) = 0;
  // The same with places for the results, one per fetched tensor; in this process a step allocates
  // nothing then but what its kernels do. Empty places after an error.
  virtual Status RunInto(absl::Span<const Tensor> feeds, absl::Span<Tensor> results);
  // The default, for steps of other processes, asks `cancellation` before the step begins, and no
  // `arena`.
  virtual Status RunInto(const StepOptions& options, absl::Span<const Tensor> feeds,
                         absl::Span<Tensor> results);
};

class Session {
 public:
  virtual ~Session();

  // Adds nodes; the first call gives the session its graph. InvalidArgument for a name that exists
  // with another definition.
  Status Extend(const tensorflow::GraphDef& graph);
  // The graph of a Scope, with the source lines of its nodes for error messages.
  Status Extend(const Scope& scope);

  // A fetch that names an operation (no ":k" and no outputs) is run and returns no tensor, so
  // results are one per fetched tensor, in order.
  StatusOr<std::vector<Tensor>> Run(const tensorflow::RunOptions& options,
                                    absl::Span<const Feed> feeds,
                                    absl::Span<const FetchName> fetches,
                                    absl::Span<const FetchName> targets,
                                    tensorflow::RunMetadata* metadata);
  StatusOr<std::vector<Tensor>> Run(const FeedList& feeds, const FetchList& fetches,
                                    const FetchList& targets = {});

  // The same as TensorFlow's ClientSession has them. `outputs` gets the results; after an error it
  // is as it was. Null, where that may be said: the results are dropped.
  template <std::same_as<std::vector<Tensor>> Outputs>  // so that {} is no pointer
  Status Run(const FetchList& fetches, Outputs* outputs) {
    return Run({}, fetches, {}, outputs);
  }
  template <std::same_as<std::vector<Tensor>> Outputs>
  Status Run(const FeedList& feeds, const FetchList& fetches, Outputs* outputs) {
    return Run(feeds, fetches, {}, outputs);
  }
  Status Run(const FeedList& feeds, const FetchList& fetches, const FetchList& targets,
             std::vector<Tensor>* outputs);
  Status Run(const tensorflow::RunOptions& options, const FeedList& feeds, const FetchList& fetches,
             const FetchList& targets, std::vector<Tensor>* outputs,
             tensorflow::RunMetadata* metadata);

  // By names alone.
  virtual StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature& signature) = 0;
  // By what builders return, too: checked, and taken up, as by Run.
  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const std::vector<FetchName>& feeds,
                                                  const std::vector<FetchName>& fetches,
                                                  const std::vector<FetchName>& targets = {});

  virtual Status Close() = 0;
  virtual StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() = 0;

  // What the session knows of its training run and can say of it (run/run_session.h); null: it is
  // of no run, or in this process. Lives as long as the session.
  virtual RunSession* run_session() { return nullptr; }

 protected:
  virtual Status DoExtend(const tensorflow::GraphDef& graph) = 0;
  // The nodes of `graph` from `first_id` on. A session in this process takes them as they are; the
  // default makes a message of them.
  virtual Status DoExtendFrom(const Graph& graph, int first_id);
  virtual StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                              absl::Span<const Feed> feeds,
                                              absl::Span<const FetchName> fetches,
                                              absl::Span<const FetchName> targets,
                                              tensorflow::RunMetadata* metadata) = 0;
  // Source lines by node name, from Extend(scope); used to complete error messages.
  virtual void AddSourceLines(std::vector<std::pair<std::string, std::string>> lines) = 0;

 private:
  static constexpr int64_t kNoGraph = 0, kManyGraphs = -1;

  // By the nodes from `first_id` on.
  Status ExtendFrom(const Graph& graph, int first_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(extend_mu_);
  // Checks what is named by Output or Operation, and takes up nodes that are new. `where` ("Run")
  // is for messages.
  Status TakeUp(absl::string_view where, absl::Span<const Feed> feeds,
                absl::Span<const FetchName> fetches, absl::Span<const FetchName> targets);
  Status TakeUp(absl::string_view where, absl::string_view what, size_t index,
                const FetchName& name);
  // What a NotFound leaves out: that one of the names is of a node that its graph has got since.
  Status ExplainNotFound(const Status& status, absl::Span<const Feed> feeds,
                         absl::Span<const FetchName> fetches, absl::Span<const FetchName> targets);

  // The graph whose nodes with smaller ids than num_nodes_ are here. Release by who extends, under
  // the lock; acquire by readers without it.
  std::atomic<int64_t> graph_id_{kNoGraph};
  std::atomic<int> num_nodes_{0};
  Mutex extend_mu_;
  std::weak_ptr<const Graph> graph_ ABSL_GUARDED_BY(extend_mu_);  // the first one
  // How many nodes of each graph are here, by its id.
  std::map<int64_t, int> nodes_of_ ABSL_GUARDED_BY(extend_mu_);
};

// FailedPrecondition / NotFound when no factory handles the target.
StatusOr<std::unique_ptr<Session>> NewSession(const SessionOptions& options = {});

// Registers a factory for targets that begin with `scheme` ("grpc://") before main. The scheme ""
// stands for the targets "" and "local" only.
class SessionFactoryRegistration {
 public:
  using Factory = std::function<StatusOr<std::unique_ptr<Session>>(const SessionOptions&)>;
  // What ResetTarget does for such a target; Unimplemented when empty.
  using TargetReset = std::function<Status(const SessionOptions&, absl::Span<const std::string>)>;
  SessionFactoryRegistration(absl::string_view scheme, Factory factory,
                             TargetReset reset = nullptr);
};

// Closes all sessions of a target and clears containers there (empty = the default container).
Status ResetTarget(const SessionOptions& options, absl::Span<const std::string> containers);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_H_
