// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_SAVER_NODES_H_
#define MILLRACE_SAVER_SAVER_NODES_H_

// What the nodes of a Saver restore and save, read off the graph that they are in.
//
// Apart from load_plan.h, which public headers include: a RestoreRequest brings messages along.
//
// Thread-safety: pure functions.

#include <string>
#include <vector>

#include "core/status.h"
#include "saver/save_restore.h"

namespace tensorflow {
class GraphDef;
class SaverDef;
}  // namespace tensorflow

namespace millrace {

// A RestoreV2 that the restore op of a Saver runs on the Saver's file.
struct RestoreNode {
  std::string name;
  RestoreRequest request;
  // Are the names, slices and dtypes constants of the graph? Otherwise the request is empty.
  bool is_constant = false;
};
// Empty, too, where the graph is not sound: the step that restores says what is wrong.
std::vector<RestoreNode> RestoreNodesOf(const tensorflow::GraphDef& graph,
                                        const tensorflow::SaverDef& saver);

// A tensor that the save op of a Saver writes.
struct SavedTensor {
  std::string name, slice;  // in the checkpoint
  std::string tensor;       // of the graph
};
// InvalidArgument for a SaveV2 that does not name its tensors by constants, and for a save op that
// is not in the graph.
StatusOr<std::vector<SavedTensor>> SavedTensorsOf(const tensorflow::GraphDef& graph,
                                                  const tensorflow::SaverDef& saver);

}  // namespace millrace

#endif  // MILLRACE_SAVER_SAVER_NODES_H_
