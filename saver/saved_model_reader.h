// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_SAVED_MODEL_READER_H_
#define MILLRACE_SAVER_SAVED_MODEL_READER_H_

// What a SavedModel's file says: the messages alone, for programs that look at models (and for the
// loader, which then runs them). Links no op, no kernel and no session.
//
// Thread-safety: pure functions.
// Failure: NotFound for what is missing (the file, the tags), DataLoss for damaged files.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/status.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "saver/message_file.h"

namespace millrace {

inline constexpr char kSavedModelFile[] = "saved_model.pb";
inline constexpr char kSavedModelTextFile[] = "saved_model.pbtxt";

// `directory`/saved_model.pb, else saved_model.pbtxt; nullopt when there is neither.
std::optional<std::string> SavedModelPath(FileSystem* fs, const std::string& directory);

// The model in a directory of versions ("export/1700000001/", as TensorFlow Serving reads them): of
// the subdirectories whose names are numbers and that hold a model, the one with the greatest; a
// model's file is written last, so that it is whole. nullopt when there is none.
std::optional<std::string> NewestModelVersion(FileSystem* fs, const std::string& directory);

// Where the model is that a wrong path is near to, to follow an error: of one of a model's files
// its directory, of a directory of versions the newest; of a checkpoint that it is one. "" of
// others.
std::string ModelNear(FileSystem* fs, const std::string& path);

// The message in a file that SavedModelPath found, whatever it holds. `error`, when not null, gets
// the place of what is wrong in a text.
StatusOr<tensorflow::SavedModel> ReadSavedModelFile(FileSystem* fs, const std::string& path,
                                                    TextError* error = nullptr);

// The model of a directory. NotFound names the directory that may be meant where one of its files,
// its versions or checkpoints are given. DataLoss when it has no meta graph: then there is nothing
// to load.
StatusOr<tensorflow::SavedModel> ReadSavedModel(FileSystem* fs, const std::string& directory);

// The tensors that an input or output of a signature is: one, or the three of a sparse one.
std::vector<std::string> TensorsOf(const tensorflow::TensorInfo& info);

std::set<std::string> TagSet(const tensorflow::MetaGraphDef& meta);
// The first meta graph that has exactly these tags, in any order. Valid as long as `model`.
StatusOr<const tensorflow::MetaGraphDef*> FindMetaGraph(const tensorflow::SavedModel& model,
                                                        absl::Span<const std::string> tags);

}  // namespace millrace

#endif  // MILLRACE_SAVER_SAVED_MODEL_READER_H_
