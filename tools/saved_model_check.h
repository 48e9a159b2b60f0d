// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_SAVED_MODEL_CHECK_H_
#define MILLRACE_TOOLS_SAVED_MODEL_CHECK_H_

// `saved_model_cli check`: can this program run a model? Everything that it lacks at once, not the
// first thing that a step meets.
//
// Each node of the main graph and of the function library is looked at: is its op kind known, are
// its attrs legal, is there a kernel for its types, does the kernel accept its attrs? What is
// wrong is gathered by kind, with the nodes and what would have to be made.
//
// A model is runnable when nothing is wrong with the nodes that loading it (the restore op, the
// init op) and its signatures need; what is wrong elsewhere is listed, too. A signature needs the
// nodes between its inputs and its outputs, as a step that is fed the inputs.
//
// Nothing is restored and no step is run. Kernels are those that the program links.
//
// Thread-safety: pure functions. Failure: the Statuses of tools/python_error.h, for a signature
// that the model does not have.

#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "proto/meta_graph.pb.h"

namespace millrace {

// What is wrong with some nodes of one op kind.
struct OpProblem {
  enum class Kind {
    kUnknownOp,  // no op of this name
    kFunction,   // the op is a function of the model's library
    kBadAttr,    // an attr that the op does not allow, or a value that its kernel refuses
    kNoKernel,   // no kernel for these types
  };
  std::string op;
  Kind kind = Kind::kUnknownOp;
  std::string what;                // "no kernel for T=half"
  std::string needs;               // what would have to be made
  std::vector<std::string> nodes;  // "dense/MatMul"; "MatMul in function f"
};

// What is asked of the model, and why it cannot be done.
struct CheckedTask {
  std::string name;                // "loading", "signature 'serving_default'"
  std::vector<size_t> problems;    // positions in ModelCheck::problems
  std::vector<std::string> other;  // what is wrong beside ops: an output that no node has
  bool runnable() const { return problems.empty() && other.empty(); }
};

struct ModelCheck {
  std::vector<std::string> tags;
  size_t num_nodes = 0, num_functions = 0;  // that were looked at
  std::vector<OpProblem> problems;          // sorted by op
  std::vector<CheckedTask> tasks;           // loading first
  std::vector<std::string> other;           // of the graph as a whole: it does not verify
  bool runnable() const;
};

// `directory` is where the meta graph's variables are. `signature_key` is null for all signatures.
StatusOr<ModelCheck> CheckModel(FileSystem* fs, const std::string& directory,
                                const tensorflow::MetaGraphDef& meta_graph,
                                const std::string* signature_key);

// For a person: problems, tasks, and in the last line the verdict.
std::string CheckText(const ModelCheck& check);
// A list of models as JSON: {"runnable": ..., "meta_graphs": [...]}.
std::string CheckJson(const std::vector<ModelCheck>& checks);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_SAVED_MODEL_CHECK_H_
