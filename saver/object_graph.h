// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_OBJECT_GRAPH_H_
#define MILLRACE_SAVER_OBJECT_GRAPH_H_

// The object graph of a SavedModel that TensorFlow 2 wrote: which variables its objects have.
//
// Such a model has no collections; its variables are objects, found by the names of attributes on
// the way from the root ("layers/0/kernel"). As variables of a scope they can be trained:
//
//   MR_ASSIGN_OR_RETURN(tensorflow::MetaGraphDef meta, ...);       // saver/saved_model_reader.h
//   MR_ASSIGN_OR_RETURN(const Scope scope, ImportMetaGraph(meta));
//   MR_ASSIGN_OR_RETURN(const auto variables, AdoptObjectVariables(scope, meta));
//   ... a loss over a signature's outputs; optimizer.Minimize(scope, loss) ...
//   MR_RETURN_IF_ERROR(session->Extend(scope));
//   ... PlanLoading(...).restore: the variables as they were saved (saver/saved_model.h) ...
//   MR_RETURN_IF_ERROR(ExportModel(session, scope, signature, "export/2"));
//
// What the file does not say is which node is an object's handle. TensorFlow makes the handles in
// the order of the objects, so a variable's is the first VarHandleOp that no other object has, of
// its dtype and shape, and of its name or one with a number behind it ("Variable_1").
//
// Thread-safety: as the scope. Failure: InvalidArgument for an object graph that is damaged (a
// child that is no object; a variable without a handle in the graph), with object and value.

#include <string>
#include <vector>

#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"

namespace tensorflow {
class MetaGraphDef;
}

namespace millrace {

struct ObjectVariable {
  std::string path;  // "layers/0/kernel", the shortest; "" when the root does not reach it
  bool trainable = false;
  Variable variable;
};

// The variables of the model, by the order of its objects; each is entered into the scope's
// collections (AdoptVariable). Empty for a model without object graph. `scope` has the graph of
// `meta`.
StatusOr<std::vector<ObjectVariable>> AdoptObjectVariables(ScopeAt at,
                                                           const tensorflow::MetaGraphDef& meta);

}  // namespace millrace

#endif  // MILLRACE_SAVER_OBJECT_GRAPH_H_
