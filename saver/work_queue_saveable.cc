// SPDX-License-Identifier: Apache-2.0
#include "saver/work_queue_saveable.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "ops/training/work_queue.h"
#include "proto/meta_graph.pb.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

class WorkQueueSaveable final : public Saveable {
 public:
  WorkQueueSaveable(Output queue, Output state)
      : queue_(std::move(queue)), state_(std::move(state)) {}

  std::vector<Spec> specs() const override { return {{queue_.node()->name(), "", state_}}; }
  Operation Restore(const Scope& scope, absl::Span<const Output> restored) const override {
    return WorkQueueRestore(scope.WithName("WorkQueueRestore"), queue_, restored[0]);
  }

 private:
  const Output queue_, state_;
};

}  // namespace

bool IsWorkQueueState(const Output& tensor) {
  return tensor.valid() && tensor.node()->op() == "WorkQueueSave";
}

StatusOr<std::shared_ptr<const Saveable>> MakeWorkQueueSaveable(ScopeAt at, const Output& queue) {
  const Scope& scope = at.scope;
  if (!queue.valid() || queue.node()->op() != "WorkQueue") {
    return InvalidArgument("Saver: '", queue.name(), "' must be a work queue to be saved, got ",
                           queue.valid() ? queue.node()->op() : "an invalid output");
  }
  const std::string name = absl::StrCat(queue.node()->name(), "/WorkQueueSave");
  Output state;
  if (Node* const made = scope.graph()->FindNode(name)) {
    if (made->op() != "WorkQueueSave" || made->num_inputs() != 1 ||
        made->input(0).node != queue.node()) {
      return InvalidArgument("Saver: node '", name, "' must be what saves work queue '",
                             queue.node()->name(), "', got ", made->op());
    }
    state = Output(made, 0);
  } else {
    state = WorkQueueSave(at.here()
                              .WithRootPrefix()
                              .WithoutControlDependencies()
                              .ColocatedWith(queue.op())
                              .WithName(name),
                          queue);
  }
  MR_RETURN_IF_ERROR(scope.status());
  return std::make_shared<WorkQueueSaveable>(queue, std::move(state));
}

StatusOr<std::vector<std::shared_ptr<const Saveable>>> WorkQueueSaveablesOf(ScopeAt at) {
  const Scope& scope = at.scope;
  std::vector<std::shared_ptr<const Saveable>> saveables;
  const auto found = scope.collections()->find(kWorkQueues);
  if (found == scope.collections()->end()) return saveables;
  // A copy: the collections may grow meanwhile.
  const auto names = found->second.node_list().value();
  for (const std::string& name : names) {
    Node* const node = scope.graph()->FindNode(name);
    if (node == nullptr) {
      return InvalidArgument("Saver: collection '", kWorkQueues,
                             "' must name work queues of the graph, got '", name, "'");
    }
    MR_ASSIGN_OR_RETURN(auto saveable, MakeWorkQueueSaveable(at, Output(node, 0)));
    saveables.push_back(std::move(saveable));
  }
  return saveables;
}

StatusOr<std::string> WorkQueueStateIn(FileSystem* fs, const std::string& checkpoint,
                                       const std::string& name) {
  const StatusOr<std::unique_ptr<BundleReader>> reader = BundleReader::Open(fs, checkpoint);
  // Checkpoints of the first format have no index, and no queues.
  if (absl::IsNotFound(reader.status())) return std::string();
  MR_RETURN_IF_ERROR(reader.status());
  if (!(*reader)->Contains(name)) return std::string();
  MR_ASSIGN_OR_RETURN(const Tensor state, (*reader)->Read(name));
  if (state.dtype() != DT_STRING || state.num_elements() != 1) {
    return InvalidArgument("Checkpoint '", checkpoint, "': '", name,
                           "' must be the state of a work queue, string [], got ", state.dtype(),
                           " ", state.shape());
  }
  return state.raw<std::string>()[0];
}

}  // namespace millrace
