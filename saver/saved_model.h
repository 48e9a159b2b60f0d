// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_SAVED_MODEL_H_
#define MILLRACE_SAVER_SAVED_MODEL_H_

// SavedModel: a directory that holds a trained model for other programs (TensorFlow Serving,
// saved_model_cli): saved_model.pb with one or more meta graphs told apart by their tags,
// variables/ with a checkpoint, assets/ with files that the graph reads.
//
//   MR_ASSIGN_OR_RETURN(auto builder, SavedModelBuilder::Open("export/1"));
//   MR_ASSIGN_OR_RETURN(auto signature, PredictSignatureDef(scope, {{"x", x}}, {{"y", y}}));
//   MR_RETURN_IF_ERROR(builder->AddMetaGraphAndVariables(session, scope, saver,
//       {.signatures = {{kDefaultServingSignature, signature}}}));
//   MR_RETURN_IF_ERROR(builder->Save());
//   MR_ASSIGN_OR_RETURN(SavedModelBundle model,
//                       LoadSavedModel({}, "export/1", {kSavedModelTagServe}));
//
// A builder writes variables and assets first and saved_model.pb last, atomically: a directory
// without it is no model. A loader trusts nothing: graphs are verified, files checked.
//
// Thread-safety: a builder is thread-compatible; loading is pure. Lifetime: builders use their
// session only during calls.
// Failure: NotFound for what is missing (variables, tags, init op), DataLoss for damaged files,
// InvalidArgument for graphs and signatures that do not fit.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "saver/load_plan.h"  // IWYU pragma: export
#include "saver/model.h"      // IWYU pragma: export
#include "saver/saver.h"

namespace tensorflow {
class MetaGraphDef;
class SavedModel;
class TensorInfo;
}  // namespace tensorflow

namespace millrace {

// --- Signatures ----------------------------------------------------------------------------------

// Names that callers use -> tensors.
using NamedOutputs = std::map<std::string, Output>;

// Name, dtype and what the scope knows of the shape. InvalidArgument for an invalid output, here
// and below.
StatusOr<tensorflow::TensorInfo> MakeTensorInfo(const Scope& scope, Output output);
StatusOr<ModelSignature> BuildSignatureDef(const Scope& scope, const NamedOutputs& inputs,
                                           const NamedOutputs& outputs,
                                           absl::string_view method_name);
StatusOr<ModelSignature> PredictSignatureDef(const Scope& scope, const NamedOutputs& inputs,
                                             const NamedOutputs& outputs);
// Serialized examples -> classes and scores; one of them may be left out (Output()).
StatusOr<ModelSignature> ClassifySignatureDef(const Scope& scope, Output examples, Output classes,
                                              Output scores);
StatusOr<ModelSignature> RegressSignatureDef(const Scope& scope, Output examples,
                                             Output predictions);

// --- Writing -------------------------------------------------------------------------------------

// A file that the graph reads: it is copied, and its path fed to `tensor` when the model is loaded.
struct Asset {
  std::string tensor;  // "name:0" of a string scalar
  std::string source;  // the file now
};

// The files that the scope's graph reads, as its collection "asset_filepaths" names them: string
// constants (layers/lookup.h). InvalidArgument for what is none.
StatusOr<std::vector<Asset>> AssetsOf(const Scope& scope);

struct SavedModelOptions {
  std::vector<std::string> tags = {kSavedModelTagServe};
  std::map<std::string, ModelSignature> signatures = {};
  std::vector<Asset> assets = {};
  // Run after the variables have been restored (tables, assets).
  Operation main_op = {};
  // A model names no tasks of the cluster that trained it.
  bool clear_devices = true;
  bool strip_default_attrs = false;
};

// The meta graph of a scope, with what `saver` saves (null: nothing) and all but the assets.
StatusOr<tensorflow::MetaGraphDef> MakeSavedMetaGraph(const Scope& scope, const Saver* saver,
                                                      const SavedModelOptions& options);

class SavedModelBuilder {
 public:
  // FailedPrecondition when the directory exists and is not empty.
  static StatusOr<std::unique_ptr<SavedModelBuilder>> Open(
      std::string directory, FileSystem* file_system = FileSystem::Default());
  ~SavedModelBuilder();

  // The first meta graph, of the scope's graph, with the session's values of the variables that
  // `saver` saves (null: the model has none). FailedPrecondition when called again.
  Status AddMetaGraphAndVariables(Session* session, const Scope& scope, const Saver* saver,
                                  const SavedModelOptions& options = {});
  // A further meta graph over the same variables. FailedPrecondition when it comes first;
  // InvalidArgument when its tags were used before.
  Status AddMetaGraph(const Scope& scope, const Saver* saver,
                      const SavedModelOptions& options = {});

  // The same for meta graphs that are made already: variables are saved as their SaverDef says.
  Status AddMetaGraphAndVariables(Session* session, tensorflow::MetaGraphDef meta,
                                  absl::Span<const Asset> assets = {});
  Status AddMetaGraph(tensorflow::MetaGraphDef meta, absl::Span<const Asset> assets = {});

  // A Model as the first meta graph, with its values and its assets. A checkpoint is copied as it
  // is; other values are written as one.
  Status AddModel(const Model& model);

  // Writes saved_model.pb (or .pbtxt): now the directory is a model.
  Status Save(bool as_text = false);

 private:
  SavedModelBuilder(std::string directory, FileSystem* fs);
  Status Add(tensorflow::MetaGraphDef meta, absl::Span<const Asset> assets);
  Status Add(tensorflow::MetaGraphDef meta, absl::Span<const ModelAsset> assets);
  // FailedPrecondition unless there is no meta graph yet.
  Status CheckFirst() const;
  // The name of the copy in assets/.
  StatusOr<std::string> CopyAsset(const ModelAsset& asset);
  Status WriteValues(const Model& model) const;

  const std::string directory_;
  FileSystem* const fs_;
  const std::unique_ptr<tensorflow::SavedModel> model_;
  std::map<std::string, std::string> assets_;  // name in assets/ -> checksum and size
};

// --- Reading -------------------------------------------------------------------------------------

struct SavedModelBundle {
  // The directory with copies of assets that are in memory, which goes with the last bundle.
  std::shared_ptr<const void> asset_copies;
  std::unique_ptr<Session> session;
  std::shared_ptr<const tensorflow::MetaGraphDef> meta_graph_def;
  // NotFound names the signatures that there are.
  StatusOr<ModelSignature> Signature(const std::string& key) const;
};

// Opens a session with the graph, restores the variables, runs the init op. A model of a directory
// is restored from its files, which a server that is the target reads by their paths. Other values
// are fed: they are twice in memory meanwhile, and go over the wire to a server. What only the
// graph itself can read (assets, and a checkpoint that a function reads) is copied to a directory
// below $TMPDIR: Unimplemented for a target in another process.
StatusOr<SavedModelBundle> OpenModel(const SessionOptions& options, const Model& model);

// The same with the model of a directory (ReadModel).
StatusOr<SavedModelBundle> LoadSavedModel(const SessionOptions& options,
                                          const std::string& directory,
                                          absl::Span<const std::string> tags,
                                          FileSystem* file_system = FileSystem::Default());
StatusOr<SavedModelBundle> LoadSavedModel(const SessionOptions& options,
                                          const std::string& directory,
                                          std::initializer_list<std::string> tags);

// The same with a meta graph of the model that the caller has read, and perhaps changed.
StatusOr<SavedModelBundle> LoadMetaGraph(const SessionOptions& options,
                                         const std::string& directory,
                                         tensorflow::MetaGraphDef meta_graph,
                                         FileSystem* file_system = FileSystem::Default());

// A part of loading, for programs that ask what it would do (as PlanLoading): a session with the
// meta graph's graph, nothing restored. Attrs that this program's ops lack are removed from the
// graph, as RemoveUnknownDefaultAttrs does (saver/meta_graph.h). InvalidArgument for a graph that
// does not verify, whether anything needs what is wrong or not.
StatusOr<std::unique_ptr<Session>> OpenMetaGraph(const SessionOptions& options,
                                                 const std::string& directory,
                                                 tensorflow::MetaGraphDef* meta);

}  // namespace millrace

#endif  // MILLRACE_SAVER_SAVED_MODEL_H_
