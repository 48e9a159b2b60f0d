// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_MODEL_H_
#define MILLRACE_SAVER_MODEL_H_

// Model: a trained model as a value: its graph, where the values of its variables come from, its
// signatures, its init op and its assets.
//
//   MR_ASSIGN_OR_RETURN(const Model model, ReadModel("export/1"));
//   MR_ASSIGN_OR_RETURN(ServableModel served, ServableModel::Load(model));
//
//   ReadModel, ReadModelFromBytes, MakeServingModel, FreezeModel -> Model
//   Model -> OpenModel, ServableModel::Load, LoadModel, FreezeModel, WriteModel
//
// A Model is immutable, and copies share what it has. It has no session and is of no process: the
// same Model may be opened many times. What its files say was checked when it was made: tags,
// signatures, init op, assets, and the checkpoint's index with the sizes of its data files. The
// checksums of values are compared when the values are read.
//
// Lifetime: a Model of a directory reads the values and assets there each time that it is opened:
// the directory stays until then. One of bytes needs nothing but itself.
//
// Thread-safety: all methods, from any thread.
// Failure: NotFound for what is missing (the file, the tags, a value), DataLoss for damaged bytes,
// InvalidArgument for graphs, signatures and values that do not fit. Messages begin with the
// model's name.

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/file_system.h"
#include "core/memory_files.h"
#include "core/status.h"
#include "core/tensor.h"
#include "saver/load_plan.h"
#include "saver/model_signature.h"  // IWYU pragma: export

namespace tensorflow {
class GraphDef;
class MetaGraphDef;
}  // namespace tensorflow

namespace millrace {

// A checkpoint among some files.
struct CheckpointSource {
  std::shared_ptr<FileSystem> files;
  std::string prefix;
};

// What a variable, a part of one, or a table gets when the model is opened.
struct ModelValue {
  std::string name;   // that checkpoints have it under
  std::string slice;  // "", or which part of a larger tensor, as SaveV2 names it (tensor_slice.h)
  DType dtype;
  std::variant<std::shared_ptr<const CheckpointSource>, Tensor> source;
};

// The values, in their order. Those of a checkpoint are read together, by several threads.
StatusOr<std::vector<Tensor>> ReadValues(absl::Span<const ModelValue> values);

// A file that the graph reads by its path, which `tensor` gets.
struct ModelAsset {
  std::string tensor;     // "name:0", a string scalar
  std::string file_name;  // in assets/; equal ones are one file
  std::shared_ptr<FileSystem> files;
  std::string path;  // among `files`
};

class Model {
 public:
  // Of its parts. `meta` has the graph, the signatures, the init op and, in its SaverDef, the
  // op that restores the values; `name` stands in messages.
  //   InvalidArgument: a signature, a value's dtype or an attr does not fit the graph.
  //   NotFound: the graph restores a value that is not given, or has no node that a part names.
  static StatusOr<Model> Make(std::string name, tensorflow::MetaGraphDef meta,
                              std::vector<ModelValue> values = {},
                              std::vector<ModelAsset> assets = {});
  // Of a meta graph of a SavedModel that the caller has read, and perhaps changed, in `directory`
  // among `files`. `constants`: see constants().
  static StatusOr<Model> InDirectory(std::string directory, tensorflow::MetaGraphDef meta,
                                     std::shared_ptr<FileSystem> files,
                                     std::map<std::string, Tensor> constants = {});

  const std::string& name() const;
  const tensorflow::GraphDef& graph() const;
  // By their keys, without the one that names the init op.
  const std::map<std::string, ModelSignature>& signatures() const;
  // The node that is run once the values are there; "": none.
  const std::string& init_op() const;
  // What nodes of the graph restore. What a function restores is not among them.
  const std::vector<ModelValue>& values() const;
  const std::vector<ModelAsset>& assets() const;
  // Values of Const nodes, by their names, for which marks stand in graph(): of a Model that was
  // read to be opened (ReadModelOptions); none of others. Such a Model cannot be written.
  const std::map<std::string, Tensor>& constants() const;
  // The message, as files have it, but for the values that are in constants().
  const std::shared_ptr<const tensorflow::MetaGraphDef>& meta_graph() const;

  // How an opened graph gets its values: `op` is run while tensors[i] is fed values()[i]. Where
  // they all come from one checkpoint, `filename_tensor` may be fed its prefix instead.
  struct Restoring {
    std::string op;
    std::vector<std::string> tensors;
    std::string filename_tensor;
    std::shared_ptr<const CheckpointSource> checkpoint;  // null: of several sources
    // `op` opens the checkpoint whatever is fed: in a function, as TensorFlow 2 writes graphs.
    bool op_reads_files = false;
  };
  const std::optional<Restoring>& restoring() const;  // nullopt: there is nothing to restore

 private:
  struct Content;
  explicit Model(std::shared_ptr<const Content> content);
  static StatusOr<std::shared_ptr<Content>> Begin(std::string name, tensorflow::MetaGraphDef meta);
  std::shared_ptr<const Content> content_;
};

struct ReadModelOptions {
  std::vector<std::string> tags = {kSavedModelTagServe};
  FileSystem* file_system = FileSystem::Default();  // outlives the Model
  // The Model is only opened, by this program: its large constants are read into tensors that the
  // session then has, and are not in graph() (saver/large_constants.h). So a frozen model takes its
  // memory once.
  bool only_to_open = false;
};
// The SavedModel of a directory: the one meta graph that has exactly these tags.
StatusOr<Model> ReadModel(const std::string& directory, const ReadModelOptions& options = {});

struct ModelBytesOptions {
  std::vector<std::string> tags = {kSavedModelTagServe};
  std::string name = "in memory";  // in messages, where others have their directory
};
// The same of the files of such a directory, by their paths in it: "saved_model.pb",
// "variables/variables.index", "assets/words.txt". Cut or damaged bytes are DataLoss (what the
// graph's message, the index or a checksum covers), at the latest when the values are read; of an
// asset only the op that reads it can tell.
StatusOr<Model> ReadModelFromBytes(NamedBytes files, const ModelBytesOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_SAVER_MODEL_H_
