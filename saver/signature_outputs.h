// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_SIGNATURE_OUTPUTS_H_
#define MILLRACE_SAVER_SIGNATURE_OUTPUTS_H_

// From the names of a signature to tensors of a graph, for programs that build on a model:
//
//   MR_ASSIGN_OR_RETURN(const Scope model, ImportMetaGraph(meta));
//   MR_ASSIGN_OR_RETURN(const ModelSignature signature, SignatureOf(meta, "serving_default"));
//   MR_ASSIGN_OR_RETURN(const Output x, InputOf(model, signature, "x"));
//   MR_ASSIGN_OR_RETURN(const Output scores, OutputOf(model, signature, "scores"));
//
// Thread-safety: as the scope. Lifetime: an Output as long as its graph.
// Failure: NotFound for a name that nothing has, with those that there are; InvalidArgument for
// what is no tensor of the graph, or several. No error becomes the Scope's.

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "graph/scope.h"
#include "saver/model_signature.h"  // IWYU pragma: export

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millrace {

// The signature of this key.
StatusOr<ModelSignature> SignatureOf(const tensorflow::MetaGraphDef& meta, absl::string_view key);

// The tensor that the signature calls `name`. InvalidArgument for a sparse one, which is three
// tensors (ModelSignature::def has them).
StatusOr<Output> InputOf(const Scope& scope, const ModelSignature& signature,
                         absl::string_view name);
StatusOr<Output> OutputOf(const Scope& scope, const ModelSignature& signature,
                          absl::string_view name);

}  // namespace millrace

#endif  // MILLRACE_SAVER_SIGNATURE_OUTPUTS_H_
