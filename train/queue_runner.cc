// SPDX-License-Identifier: Apache-2.0
#include "train/queue_runner.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "graph/graph.h"
#include "ops/control/queue.h"
#include "proto/meta_graph.pb.h"
#include "train/session_manager.h"

namespace millrace {
namespace {

constexpr char kQueueRunners[] = "queue_runners";

// Does this status of an enqueue say that its data has ended?
bool IsEndOfData(const tensorflow::QueueRunnerDef& def, const Status& status) {
  const auto& codes = def.queue_closed_exception_types();
  if (codes.empty()) return absl::IsOutOfRange(status);
  return std::any_of(codes.begin(), codes.end(),
                     [&](int code) { return code == static_cast<int>(status.code()); });
}

}  // namespace

void AddQueueRunner(ScopeAt at, Output queue, absl::Span<const Operation> enqueues) {
  const Scope& scope = at.scope;
  if (!scope.ok()) return;
  if (!queue.valid() || enqueues.empty()) {
    scope.UpdateStatus(
        InvalidArgument("AddQueueRunner: there must be a queue and operations that fill it, got ",
                        queue.valid() ? absl::StrCat("'", queue.name(), "'") : "an invalid queue",
                        " and ", enqueues.size()),
        at.where);
    return;
  }
  const Scope beside = scope.WithoutControlDependencies().ColocatedWith(queue.op());
  tensorflow::QueueRunnerDef def;
  def.set_queue_name(queue.op().name());
  for (const Operation& enqueue : enqueues) def.add_enqueue_op_name(enqueue.name());
  const std::string name = queue.op().name().substr(queue.op().name().rfind('/') + 1);
  def.set_close_op_name(QueueCloseV2({beside.WithName(name + "_Close"), at.where}, queue).name());
  def.set_cancel_op_name(QueueCloseV2({beside.WithName(name + "_Close"), at.where}, queue,
                                      {.cancel_pending_enqueues = true})
                             .name());
  if (!scope.ok()) return;
  scope.AddToBytesCollection(kQueueRunners, def.SerializeAsString());
}

StatusOr<std::vector<tensorflow::QueueRunnerDef>> QueueRunnersOf(const Scope& scope) {
  std::vector<tensorflow::QueueRunnerDef> defs;
  const auto found = scope.collections()->find(kQueueRunners);
  if (found == scope.collections()->end()) return defs;
  for (const std::string& bytes : found->second.bytes_list().value()) {
    tensorflow::QueueRunnerDef def;
    if (!def.ParseFromString(bytes)) {
      return InvalidArgument("Collection '", kQueueRunners, "': entry ", defs.size(),
                             " must be a QueueRunnerDef, got ", bytes.size(),
                             " bytes of something else");
    }
    std::vector<std::string> names(def.enqueue_op_name().begin(), def.enqueue_op_name().end());
    for (const std::string& name : {def.close_op_name(), def.cancel_op_name()}) {
      if (!name.empty()) names.push_back(name);
    }
    for (const std::string& name : names) {
      if (scope.graph()->FindNode(name) != nullptr) continue;
      return InvalidArgument("Collection '", kQueueRunners, "': the runner of '", def.queue_name(),
                             "' must name operations of the graph, got '", name, "'");
    }
    defs.push_back(std::move(def));
  }
  return defs;
}

namespace {

// `graph`: where the operations are, for a session that does not have them yet; null: not known.
void Start(const tensorflow::QueueRunnerDef& def, const Graph* graph,
           const std::shared_ptr<Session>& session, const Coordinator& coordinator) {
  // Those whose data has not ended.
  const auto running = std::make_shared<std::atomic<int>>(def.enqueue_op_name_size());
  for (const std::string& enqueue : def.enqueue_op_name()) {
    Node* const node = graph == nullptr ? nullptr : graph->FindNode(enqueue);
    const FetchName late = node == nullptr ? FetchName(enqueue) : FetchName(Operation(node));
    coordinator.Start(
        absl::StrCat("the queue runner of '", def.queue_name(), "'"),
        [def, enqueue, late, session, running](const Coordinator& c) -> Status {
          auto prepared = session->Prepare({}, {}, {enqueue});
          // Added after the session was extended: by the node the session takes it up.
          if (absl::IsNotFound(prepared.status())) prepared = session->Prepare({}, {}, {late});
          while (!c.ShouldStop()) {
            const Status status = prepared.ok() ? (*prepared)->Run({}).status()
                                                : session->Run({}, {}, {enqueue}).status();
            if (status.ok()) continue;
            if (c.ShouldStop()) break;  // why the queue was closed under it
            if (!IsEndOfData(def, status)) {
              return Prefixed(absl::StrCat("Queue runner of '", def.queue_name(), "'"), status);
            }
            if (running->fetch_sub(1) > 1 || def.close_op_name().empty()) break;
            return session->Run({}, {}, {def.close_op_name()}).status();
          }
          return absl::OkStatus();
        });
  }
  if (def.cancel_op_name().empty()) return;
  coordinator.Start(absl::StrCat("the end of the queue '", def.queue_name(), "'"),
                    [def, session](const Coordinator& c) {
                      c.WaitForStop();
                      // The next session goes on with the queue, which may outlive this one.
                      if (IsSessionLost(c.error())) return absl::OkStatus();
                      // The session may have been closed.
                      const Status status = session->Run({}, {}, {def.cancel_op_name()}).status();
                      if (!status.ok() && !absl::IsCancelled(status)) {
                        LogInfo("Queue '", def.queue_name(), "' not closed: ", status.message());
                      }
                      return absl::OkStatus();
                    });
}

}  // namespace

void StartQueueRunner(const tensorflow::QueueRunnerDef& def,
                      const std::shared_ptr<Session>& session, const Coordinator& coordinator) {
  Start(def, nullptr, session, coordinator);
}

StatusOr<int> StartQueueRunners(const Scope& scope, const std::shared_ptr<Session>& session,
                                const Coordinator& coordinator) {
  MR_ASSIGN_OR_RETURN(const std::vector<tensorflow::QueueRunnerDef> defs, QueueRunnersOf(scope));
  int threads = 0;
  for (const tensorflow::QueueRunnerDef& def : defs) {
    Start(def, scope.graph(), session, coordinator);
    threads += def.enqueue_op_name_size();
  }
  return threads;
}

}  // namespace millrace
