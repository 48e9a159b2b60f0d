// SPDX-License-Identifier: Apache-2.0
#include "saver/saved_model_reader.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/paced_thread.h"

namespace millrace {

std::optional<std::string> SavedModelPath(FileSystem* fs, const std::string& directory) {
  for (const char* name : {kSavedModelFile, kSavedModelTextFile}) {
    std::string path = JoinPath(directory, name);
    if (fs->FileExists(path)) return path;
  }
  return std::nullopt;
}

std::optional<std::string> NewestModelVersion(FileSystem* fs, const std::string& directory) {
  std::optional<std::string> newest;
  int64_t newest_version = -1;
  for (const std::string& name : fs->GetChildren(directory).value_or(std::vector<std::string>())) {
    int64_t version = 0;
    const bool digits = std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
    if (!digits || !absl::SimpleAtoi(name, &version) || version <= newest_version) continue;
    std::string path = JoinPath(directory, name);
    if (!SavedModelPath(fs, path)) continue;
    newest_version = version;
    newest = std::move(path);
  }
  return newest;
}

std::string ModelNear(FileSystem* fs, const std::string& path) {
  // One of the model's own files: "export/1/saved_model.pb", "export/1/variables/variables.index".
  std::string above = path;
  for (int i = 0; i < 2; ++i) {
    above = Dirname(above);
    if (SavedModelPath(fs, above)) {
      return absl::StrCat("; the model's directory is '", above.empty() ? "." : above, "'");
    }
  }
  if (const std::optional<std::string> newest = NewestModelVersion(fs, path)) {
    return absl::StrCat("; its newest version is '", *newest, "'");
  }
  for (const std::string& file : {absl::StrCat(path, ".index"), JoinPath(path, "checkpoint")}) {
    if (!fs->FileExists(file)) continue;
    return absl::StrCat("; it has a checkpoint ('", file,
                        "'), which a Saver restores into a graph; a SavedModel is exported");
  }
  return "";
}

StatusOr<tensorflow::SavedModel> ReadSavedModelFile(FileSystem* fs, const std::string& path,
                                                    TextError* error) {
  // No message is larger.
  MR_ASSIGN_OR_RETURN(const std::string bytes,
                      ReadFileToString(fs, path, std::numeric_limits<int>::max()));
  tensorflow::SavedModel model;
  MR_RETURN_IF_ERROR(AtLowPriority([&] {
    return absl::EndsWith(path, "txt") ? ParseText(bytes, path, "SavedModel", &model, error)
                                       : ParseBytes(bytes, path, "SavedModel", &model);
  }));
  return model;
}

StatusOr<tensorflow::SavedModel> ReadSavedModel(FileSystem* fs, const std::string& directory) {
  const std::optional<std::string> path = SavedModelPath(fs, directory);
  if (!path) {
    return absl::NotFoundError(absl::StrCat(
        "Could not find SavedModel .pb or .pbtxt at supplied export directory path: ", directory,
        ModelNear(fs, directory)));
  }
  MR_ASSIGN_OR_RETURN(tensorflow::SavedModel model, ReadSavedModelFile(fs, *path));
  if (model.meta_graphs().empty()) {
    return absl::DataLossError(
        absl::StrCat("SavedModel '", *path, "' must have at least one meta graph, got none"));
  }
  return model;
}

std::vector<std::string> TensorsOf(const tensorflow::TensorInfo& info) {
  if (info.has_coo_sparse()) {
    return {info.coo_sparse().values_tensor_name(), info.coo_sparse().indices_tensor_name(),
            info.coo_sparse().dense_shape_tensor_name()};
  }
  if (info.encoding_case() == tensorflow::TensorInfo::kName) return {info.name()};
  return {};
}

std::set<std::string> TagSet(const tensorflow::MetaGraphDef& meta) {
  return {meta.meta_info_def().tags().begin(), meta.meta_info_def().tags().end()};
}

StatusOr<const tensorflow::MetaGraphDef*> FindMetaGraph(const tensorflow::SavedModel& model,
                                                        absl::Span<const std::string> tags) {
  const std::set<std::string> wanted(tags.begin(), tags.end());
  for (const tensorflow::MetaGraphDef& meta : model.meta_graphs()) {
    if (TagSet(meta) == wanted) return &meta;
  }
  const std::string there =
      absl::StrJoin(model.meta_graphs(), ", ", [](std::string* out, const auto& meta) {
        absl::StrAppend(out, "{ ", absl::StrJoin(TagSet(meta), ", "), " }");
      });
  // TensorFlow's text, which users search for.
  return absl::NotFoundError(absl::StrCat(
      "Could not find meta graph def matching supplied tags: { ", absl::StrJoin(wanted, ", "),
      " }. To inspect available tag-sets in the SavedModel, please use the SavedModel "
      "CLI: `saved_model_cli`; it has ",
      there));
}

}  // namespace millrace
