// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_LOAD_PLAN_H_
#define MILLRACE_SAVER_LOAD_PLAN_H_

// LoadPlan: what loading does to a session that has a model's graph, as far as its files and
// messages say; with the rules that both loaders and writers of SavedModels obey.
//
// Thread-safety: pure functions over files; they open no session.
// Failure: NotFound for what is missing, DataLoss for damaged files, InvalidArgument for what does
// not fit the graph. PlanLoading notes all errors that it finds.

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/file_system.h"
#include "core/status.h"
#include "runtime/session.h"

namespace tensorflow {
class AssetFileDef;
class MetaGraphDef;
}  // namespace tensorflow

namespace millrace {

inline constexpr char kSavedModelTagServe[] = "serve";
inline constexpr char kSavedModelTagTrain[] = "train";
inline constexpr char kSavedModelTagEval[] = "eval";
inline constexpr char kSavedModelTagGpu[] = "gpu";
inline constexpr char kSavedModelTagTpu[] = "tpu";

inline constexpr char kVariablesDirectory[] = "variables";
inline constexpr char kVariablesFile[] = "variables";
inline constexpr char kAssetsDirectory[] = "assets";

// Collections that loaders of older and newer files know.
inline constexpr char kAssetsCollection[] = "saved_model_assets";
inline constexpr char kMainOpCollection[] = "saved_model_main_op";
inline constexpr char kLegacyInitOpCollection[] = "legacy_init_op";

struct LoadPlan {
  struct Step {
    std::vector<Feed> feeds;
    std::string target;
  };
  std::optional<Step> restore;  // of the variables; none: there is nothing to restore
  std::optional<Step> init;     // the init op
  // All that stands in the way, in the order in which loading looks: it ends with the first. A
  // missing asset is a warning only: the op that reads it fails, if there is one.
  std::vector<Status> errors;
};
LoadPlan PlanLoading(FileSystem* fs, const std::string& directory,
                     const tensorflow::MetaGraphDef& meta);

// --- The rules, one by one -----------------------------------------------------------------------

// "export/1/variables/variables".
std::string VariablesPrefix(const std::string& directory);
// The status with "SavedModel '<name>': " before its message.
Status OfSavedModel(const std::string& name, const Status& status);

// InvalidArgument unless every tensor of every signature is one of the graph.
Status CheckSignatures(const tensorflow::MetaGraphDef& meta);
// The operation that makes a model ready once its variables are restored; "" when it has none.
// NotFound when it names one that is not in the graph.
StatusOr<std::string> InitOpOf(const tensorflow::MetaGraphDef& meta);
// The assets of a meta graph: its field, else the collection of older files. InvalidArgument for a
// file that is not in assets/, NotFound for a tensor that is not in the graph.
StatusOr<std::vector<tensorflow::AssetFileDef>> AssetFilesOf(const tensorflow::MetaGraphDef& meta);

// Enters an asset into both places where loaders look.
void AddAssetFile(const std::string& tensor, const std::string& file_name,
                  tensorflow::MetaGraphDef* meta);
// The name of an asset in assets/: the first of "base", "base_1", ... that may have it, because it
// is free or its file has the same bytes.
StatusOr<std::string> AssetFileName(
    const std::string& base, absl::FunctionRef<StatusOr<bool>(const std::string& name)> may_have);

}  // namespace millrace

#endif  // MILLRACE_SAVER_LOAD_PLAN_H_
