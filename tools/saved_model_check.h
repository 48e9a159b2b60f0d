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
// A model is runnable when it can be loaded and nothing is wrong with what its signatures need;
// what is wrong elsewhere is listed, too. Loading takes up the whole graph, so that an attr that
// its op does not allow stops it wherever it is; op kinds and kernels that are missing stop only
// what needs them: the restore op, the init op, a signature (the nodes between its inputs and its
// outputs, as a step that is fed the inputs).
//
// It is the loader that is asked (PlanLoading and OpenMetaGraph of saver/saved_model.h) and the
// session that makes the steps, as `saved_model_cli run` would; but nothing is restored and no step
// is run: of a checkpoint the index and the sizes of its files are looked at, no values and not
// whether variables take their shapes. Kernels are those that the program links.
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
    kBadAttr,    // an attr that the op does not allow, or a value that its kernel refuses
    kNoKernel,   // no kernel for these types
  };
  std::string op;
  Kind kind = Kind::kUnknownOp;
  std::string what;                // "no kernel for T=half"
  std::string needs;               // what would have to be made
  std::vector<std::string> nodes;  // "dense/MatMul"; "MatMul in function f"
  bool stops_loading = false;      // no graph with these nodes is taken up
};

// What is asked of the model, and why it cannot be done.
struct CheckedTask {
  std::string name;              // "loading", "signature 'serving_default'"
  std::vector<size_t> problems;  // positions in ModelCheck::problems
  std::vector<std::string>
      other;  // what is wrong besides ops, in the words of the code that refuses it
  bool runnable() const { return problems.empty() && other.empty(); }
};

struct ModelCheck {
  std::vector<std::string> tags;
  size_t num_nodes = 0, num_functions = 0;  // that were looked at
  std::vector<OpProblem> problems;          // sorted by op
  std::vector<CheckedTask> tasks;           // loading first
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
