// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_QUEUE_H_
#define MILLRACE_OPS_CONTROL_QUEUE_H_

// Queues: steps hand tuples of tensors to other steps: first in, first out (FIFOQueueV2,
// PaddingFIFOQueueV2), or in a random order (RandomShuffleQueueV2).
//
// An enqueue into a full queue and a dequeue from an empty one wait without a thread, in the order
// in which they came, until they can go on, their step is cancelled or the queue is closed:
//   * enqueue into a closed queue: Cancelled "FIFOQueue '<name>' is closed.";
//   * dequeue when too little is left and nothing can come: OutOfRange "FIFOQueue '<name>' is
//     closed and has insufficient elements (requested N, current size M)": the end of the data;
//   * cancelled step: Cancelled "Dequeue operation was cancelled".
// On a server, what a step has dequeued goes back, to the front and in its order, when the step is
// cancelled, or its session ends before anybody has asked for what the step sends: its client was
// killed, say. What a step that ended well has sent away, or one that failed by itself has taken,
// stays taken, as in TensorFlow. (A queue that was closed and empty meanwhile has said so already.)
//
// In these texts FIFOQueue stands for the kind of the queue. Queues outlive steps; those of one
// name on one device are one queue and must agree in kind, capacity, types, shapes,
// min_after_dequeue and (unless none are given) seeds.

#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct FIFOQueueAttrs {
  std::vector<PartialShape> shapes = {};  // of the components, fully defined; empty: any
  int64_t capacity = -1;                  // elements; -1: no limit
  std::string container = "";
  std::string shared_name = "";  // the node's name when empty
};
// A handle to a queue whose elements are tuples of these types.
inline Output FIFOQueueV2(ScopeAt at, const std::vector<DType>& component_types,
                          const FIFOQueueAttrs& attrs = {}) {
  return BuildOp(at, "FIFOQueueV2", {}, "component_types", component_types, "shapes", attrs.shapes,
                 "capacity", attrs.capacity, "container", attrs.container, "shared_name",
                 attrs.shared_name);
}
struct PaddingFIFOQueueAttrs {
  int64_t capacity = -1;
  std::string container = "";
  std::string shared_name = "";
};
// The same, whose elements may differ in the dimensions that `shapes` (one for each component, of
// known rank) leave open; DequeueMany and DequeueUpTo pad them at the end, with zeros, false or "",
// to the largest of the batch.
inline Output PaddingFIFOQueueV2(ScopeAt at, const std::vector<DType>& component_types,
                                 const std::vector<PartialShape>& shapes,
                                 const PaddingFIFOQueueAttrs& attrs = {}) {
  return BuildOp(at, "PaddingFIFOQueueV2", {}, "component_types", component_types, "shapes", shapes,
                 "capacity", attrs.capacity, "container", attrs.container, "shared_name",
                 attrs.shared_name);
}

struct RandomShuffleQueueAttrs {
  std::vector<PartialShape> shapes = {};
  int64_t capacity = -1;
  // So many stay in the queue, to draw from, as long as it is not closed.
  int64_t min_after_dequeue = 0;
  // The draws are a function of both; another one in each process when both are 0.
  int64_t seed = 0, seed2 = 0;
  std::string container = "";
  std::string shared_name = "";
};
// Dequeues draw any of the elements.
inline Output RandomShuffleQueueV2(ScopeAt at, const std::vector<DType>& component_types,
                                   const RandomShuffleQueueAttrs& attrs = {}) {
  return BuildOp(at, "RandomShuffleQueueV2", {}, "component_types", component_types, "shapes",
                 attrs.shapes, "capacity", attrs.capacity, "min_after_dequeue",
                 attrs.min_after_dequeue, "seed", attrs.seed, "seed2", attrs.seed2, "container",
                 attrs.container, "shared_name", attrs.shared_name);
}

// One element: a tensor for each component.
inline Operation QueueEnqueueV2(ScopeAt at, Output handle, absl::Span<const Output> components) {
  return BuildOp(at, "QueueEnqueueV2", {handle, components});
}
// Many elements: the rows of the components, which all have equally many.
inline Operation QueueEnqueueManyV2(ScopeAt at, Output handle,
                                    absl::Span<const Output> components) {
  return BuildOp(at, "QueueEnqueueManyV2", {handle, components});
}
// One element.
inline std::vector<Output> QueueDequeueV2(ScopeAt at, Output handle,
                                          const std::vector<DType>& component_types) {
  return BuildOp(at, "QueueDequeueV2", {handle}, "component_types", component_types)
      .outputs(0, static_cast<int>(component_types.size()));
}
// `n` (int32 scalar) elements as the rows of one tensor per component. The queue must have shapes.
inline std::vector<Output> QueueDequeueManyV2(ScopeAt at, Output handle, Output n,
                                              const std::vector<DType>& component_types) {
  return BuildOp(at, "QueueDequeueManyV2", {handle, n}, "component_types", component_types)
      .outputs(0, static_cast<int>(component_types.size()));
}
// The same; the rest, when the queue is closed with fewer but not 0 elements.
inline std::vector<Output> QueueDequeueUpToV2(ScopeAt at, Output handle, Output n,
                                              const std::vector<DType>& component_types) {
  return BuildOp(at, "QueueDequeueUpToV2", {handle, n}, "component_types", component_types)
      .outputs(0, static_cast<int>(component_types.size()));
}
struct QueueCloseAttrs {
  bool cancel_pending_enqueues = false;  // those that wait fail with Cancelled, else they go on
};
// No more enqueues. Closing twice is no error.
inline Operation QueueCloseV2(ScopeAt at, Output handle, const QueueCloseAttrs& attrs = {}) {
  return BuildOp(at, "QueueCloseV2", {handle}, "cancel_pending_enqueues",
                 attrs.cancel_pending_enqueues);
}
// The number of elements, an int32 scalar.
inline Output QueueSizeV2(ScopeAt at, Output handle) {
  return BuildOp(at, "QueueSizeV2", {handle});
}
// Bool scalar.
inline Output QueueIsClosedV2(ScopeAt at, Output handle) {
  return BuildOp(at, "QueueIsClosedV2", {handle});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_CONTROL_QUEUE_H_
