// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_SAVED_MODEL_SHOW_H_
#define MILLRACE_TOOLS_SAVED_MODEL_SHOW_H_

// What a SavedModel says of itself, in the exact text of TensorFlow 1.15's saved_model_cli.
//
// Only the messages are read: no op need be known to this program and nothing is run.
//
// Thread-safety: pure functions. Failure: the Statuses of tools/python_error.h, whose message is
// the last line that the Python tool would print.

#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"

namespace millrace {

// `dir`/saved_model.pb, else saved_model.pbtxt. IOError when there is neither (it names models in
// subdirectories), or it is damaged.
StatusOr<tensorflow::SavedModel> ReadSavedModelForTool(FileSystem* fs, const std::string& dir);

// `dir`, or the newest version in it when it is a directory of versions ("export/1700000001/", as
// TensorFlow Serving reads them); then `note` says so in one line that begins with the program's
// name.
std::string ModelDirectory(FileSystem* fs, const std::string& dir, const std::string& program,
                           std::ostream& note);

// The first MetaGraphDef with exactly these tags ("a,b", in any order; "" is no tag). RuntimeError
// that names those that there are.
StatusOr<const tensorflow::MetaGraphDef*> MetaGraphWithTags(const tensorflow::SavedModel& model,
                                                            absl::string_view tag_set);

// show --dir D
std::string ShowTagSets(const tensorflow::SavedModel& model);
// show --dir D --tag_set T
std::string ShowSignatureKeys(const tensorflow::MetaGraphDef& meta_graph);
// show --dir D --tag_set T --signature_def K; an unknown key shows an empty signature.
std::string ShowSignature(const tensorflow::MetaGraphDef& meta_graph, const std::string& key);
// show --dir D --all
std::string ShowAll(const tensorflow::SavedModel& model);
// The signature. ValueError that names those that there are.
StatusOr<const tensorflow::SignatureDef*> FindSignature(const tensorflow::MetaGraphDef& meta_graph,
                                                        const std::string& key);

// show --json: the meta graphs (all, or the one of the tags) and their signatures (all, or the one
// of the key). RuntimeError and ValueError as above.
StatusOr<std::string> ShowJson(const tensorflow::SavedModel& model, const std::string* tag_set,
                               const std::string* signature_key);

// scan --dir D [--tag_set T]: `tag_set` is null for all of them.
StatusOr<std::string> ScanForDeniedOps(const tensorflow::SavedModel& model,
                                       const std::string* tag_set);
StatusOr<std::string> ScanJson(const tensorflow::SavedModel& model, const std::string* tag_set);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_SAVED_MODEL_SHOW_H_
