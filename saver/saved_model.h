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
//   MR_ASSIGN_OR_RETURN(SavedModelBundle model, LoadSavedModel({}, "export/1",
//   {kSavedModelTagServe}));
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
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "runtime/session.h"
#include "saver/saved_model_reader.h"
#include "saver/saver.h"

namespace millrace {

inline constexpr char kSavedModelTagServe[] = "serve";
inline constexpr char kSavedModelTagTrain[] = "train";
inline constexpr char kSavedModelTagEval[] = "eval";
inline constexpr char kSavedModelTagGpu[] = "gpu";
inline constexpr char kSavedModelTagTpu[] = "tpu";

inline constexpr char kDefaultServingSignature[] = "serving_default";
inline constexpr char kInitOpSignature[] = "__saved_model_init_op";
inline constexpr char kPredictMethod[] = "tensorflow/serving/predict";
inline constexpr char kClassifyMethod[] = "tensorflow/serving/classify";
inline constexpr char kRegressMethod[] = "tensorflow/serving/regress";

inline constexpr char kVariablesDirectory[] = "variables";
inline constexpr char kVariablesFile[] = "variables";
inline constexpr char kAssetsDirectory[] = "assets";

// --- Signatures ----------------------------------------------------------------------------------

// Names that callers use -> tensors.
using NamedOutputs = std::map<std::string, Output>;

// Name, dtype and what the scope knows of the shape. InvalidArgument for an invalid output, here
// and below.
StatusOr<tensorflow::TensorInfo> MakeTensorInfo(const Scope& scope, Output output);
StatusOr<tensorflow::SignatureDef> BuildSignatureDef(const Scope& scope, const NamedOutputs& inputs,
                                                     const NamedOutputs& outputs,
                                                     absl::string_view method_name);
StatusOr<tensorflow::SignatureDef> PredictSignatureDef(const Scope& scope,
                                                       const NamedOutputs& inputs,
                                                       const NamedOutputs& outputs);
// Serialized examples -> classes and scores; one of them may be left out (Output()).
StatusOr<tensorflow::SignatureDef> ClassifySignatureDef(const Scope& scope, Output examples,
                                                        Output classes, Output scores);
StatusOr<tensorflow::SignatureDef> RegressSignatureDef(const Scope& scope, Output examples,
                                                       Output predictions);

// --- Writing -------------------------------------------------------------------------------------

// A file that the graph reads: it is copied, and its path fed to `tensor` when the model is loaded.
struct Asset {
  std::string tensor;  // "name:0" of a string scalar
  std::string source;  // the file now
};

struct SavedModelOptions {
  std::vector<std::string> tags = {kSavedModelTagServe};
  std::map<std::string, tensorflow::SignatureDef> signatures = {};
  std::vector<Asset> assets = {};
  // Run after the variables have been restored (tables, assets).
  Operation main_op = {};
  // A model names no tasks of the cluster that trained it.
  bool clear_devices = true;
  bool strip_default_attrs = false;
};

class SavedModelBuilder {
 public:
  // FailedPrecondition when the directory exists and is not empty.
  static StatusOr<std::unique_ptr<SavedModelBuilder>> Open(
      std::string directory, FileSystem* file_system = FileSystem::Posix());

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

  // Writes saved_model.pb (or .pbtxt): now the directory is a model.
  Status Save(bool as_text = false);

 private:
  SavedModelBuilder(std::string directory, FileSystem* fs)
      : directory_(std::move(directory)), fs_(fs) {}
  Status Add(tensorflow::MetaGraphDef meta, absl::Span<const Asset> assets);
  // The name of the copy in assets/.
  StatusOr<std::string> CopyAsset(const std::string& source);

  const std::string directory_;
  FileSystem* const fs_;
  tensorflow::SavedModel model_;
  std::map<std::string, std::string> assets_;  // name in assets/ -> checksum and size
};

// --- Reading -------------------------------------------------------------------------------------

struct SavedModelBundle {
  std::unique_ptr<Session> session;
  tensorflow::MetaGraphDef meta_graph_def;
  // NotFound names the signatures that there are.
  StatusOr<tensorflow::SignatureDef> Signature(const std::string& key) const;
};

// The paths of the files that the meta graph's assets name, as feeds. A missing file is a warning:
// the op that reads it fails, if there is one.
StatusOr<std::vector<Feed>> AssetFeeds(FileSystem* fs, const std::string& directory,
                                       const tensorflow::MetaGraphDef& meta);

// Opens a session with the graph, restores the variables, runs the init op.
StatusOr<SavedModelBundle> LoadSavedModel(const SessionOptions& options,
                                          const std::string& directory,
                                          absl::Span<const std::string> tags,
                                          FileSystem* file_system = FileSystem::Posix());
StatusOr<SavedModelBundle> LoadSavedModel(const SessionOptions& options,
                                          const std::string& directory,
                                          std::initializer_list<std::string> tags);

}  // namespace millrace

#endif  // MILLRACE_SAVER_SAVED_MODEL_H_
