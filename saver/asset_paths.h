// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_ASSET_PATHS_H_
#define MILLRACE_SAVER_ASSET_PATHS_H_

// SetAssetPaths: a SavedModel's graph that finds its files by itself.
//
// The graph of a SavedModel names its files (vocabularies) by the paths that they had when it was
// exported. A loader feeds the paths that they have now. A program that trains the model on cannot
// feed them: initialisers of tables are run for it (Train, Supervisor, MonitoredTrainingSession),
// and an export copies the files that the graph names. It writes the paths into the graph:
//
//   MR_RETURN_IF_ERROR(SetAssetPaths("export/1", &meta));
//   MR_ASSIGN_OR_RETURN(const Scope model, ImportMetaGraph(meta));
//
// Thread-safety: a pure function. Failure: as AssetFilesOf (saver/load_plan.h), and InvalidArgument
// for an asset whose tensor is no constant text; the message begins with the model's directory, and
// `meta` is as it was. A file that is not there is an error of the op that reads it.

#include <string>

#include "core/status.h"

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millrace {

// `meta` is of the SavedModel in `directory`. A relative directory makes relative paths.
Status SetAssetPaths(const std::string& directory, tensorflow::MetaGraphDef* meta);

}  // namespace millrace

#endif  // MILLRACE_SAVER_ASSET_PATHS_H_
