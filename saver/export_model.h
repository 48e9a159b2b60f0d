// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_EXPORT_MODEL_H_
#define MILLRACE_SAVER_EXPORT_MODEL_H_

// What a signature needs of a training graph, with the values that a session holds: as a Model, or
// as a SavedModel in a directory.
//
//   MR_RETURN_IF_ERROR(ExportModel(session, model, {.inputs = {{"x", x}}, .outputs = {{"y", y}}},
//                                  "export/1"));
//   MR_ASSIGN_OR_RETURN(const Model value, MakeServingModel(session, model, signatures));
//   MR_RETURN_IF_ERROR(WriteModel(value, "export/2"));
//
// Several signatures share one graph. What one of them is fed and another computes stays as it is;
// any tensor may be fed.
//
// The exported graph has what the outputs are computed from and the variables that they read, with
// their initialisers: no gradients, no optimizer and none of its slots, no devices. Look-up tables
// are filled when the model is loaded, from copies of their files (in assets/). An input that
// is no placeholder (a batch from a queue, say) becomes one; what makes it is left behind. Nodes
// that the outputs pass through stay as they are: where training and serving differ (dropout),
// name the outputs that serve, or make the difference a PlaceholderWithDefault.
//
// The directory is there whole or not at all: the model is written to `<directory>.unfinished` and
// renamed; what an interrupted export left there is deleted by the next one.
//
// Thread-safety: as Scope; the session may be training meanwhile (each variable is read once).
// Failure: InvalidArgument for a signature that does not fit the graph, FailedPrecondition for a
// directory that is not new or empty, the session's and the file system's errors. A model that
// cannot be written leaves no directory.

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "saver/model.h"
#include "saver/saved_model.h"

namespace millrace {

// What callers of a model name, and the tensors of the graph that they get. An empty `outputs`
// stands for "no signature".
struct ServingSignature {
  NamedOutputs inputs = {};
  NamedOutputs outputs = {};
  std::string key = kDefaultServingSignature;
  std::string method = kPredictMethod;
};

struct ExportModelOptions {
  std::vector<std::string> tags = {kSavedModelTagServe};
  // Run when the model is loaded, once its variables are restored (tables). It needs no input and
  // no local variable: those get their initial values at the same time.
  Operation main_op = {};
  // Where the files are that become assets, and where a directory is written.
  FileSystem* file_system = FileSystem::Default();
};

// What can be known to be wrong before there is a session: for programs that train before they
// export.
Status CheckServingSignature(const Scope& scope, const ServingSignature& signature);
Status CheckExportDirectory(const std::string& directory,
                            FileSystem* file_system = FileSystem::Default());

// The Model has all values and assets in memory and needs the session no more. `name` stands in
// messages about it.
StatusOr<Model> MakeServingModel(Session* session, ScopeAt at,
                                 absl::Span<const ServingSignature> signatures,
                                 const ExportModelOptions& options = {},
                                 const std::string& name = "serving model");
// Any Model, wherever it is from, as a SavedModel.
Status WriteModel(const Model& model, const std::string& directory,
                  FileSystem* file_system = FileSystem::Default());

// MakeServingModel and WriteModel. The directory is looked at first.
Status ExportModel(Session* session, ScopeAt at, absl::Span<const ServingSignature> signatures,
                   const std::string& directory, const ExportModelOptions& options = {});
Status ExportModel(Session* session, ScopeAt at, const ServingSignature& signature,
                   const std::string& directory, FileSystem* file_system = FileSystem::Default());

}  // namespace millrace

#endif  // MILLRACE_SAVER_EXPORT_MODEL_H_
