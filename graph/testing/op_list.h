// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_TESTING_OP_LIST_H_
#define MILLRACE_GRAPH_TESTING_OP_LIST_H_

// The op list that TensorFlow 1.15 printed (ops/ops.pbtxt of the shared data), for tests.
//
// Thread-safety: any thread. Failure: an absent or unreadable file is an empty list.

#include "graph/op_registry.h"
#include "proto/op_def.pb.h"

namespace millrace {

// Empty when the shared data are not there.
tensorflow::OpList TensorFlowOps();

// Writes an OpDef back into the spec language. Sets of types are written out one by one.
// The shape function and the gradient are missing.
OpSpec SpecOf(const tensorflow::OpDef& def);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_TESTING_OP_LIST_H_
