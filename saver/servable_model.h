// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_SERVABLE_MODEL_H_
#define MILLRACE_SAVER_SERVABLE_MODEL_H_

// ServableModel: a loaded model as a server calls it: signatures by number, tensors by position.
//
//   MR_ASSIGN_OR_RETURN(ServableModel model, ServableModel::Load("export/1"));
//   MR_ASSIGN_OR_RETURN(const int predict, model.FindSignature("serving_default"));
//   std::vector<Tensor> outputs(model.signature(predict).outputs.size());
//   MR_RETURN_IF_ERROR(model.Predict(predict, {ids}, absl::MakeSpan(outputs)));
//
// All signatures are compiled when the model is loaded: no Predict compiles, waits for another
// signature, takes a lock of the model or looks up a name. A signature that needs an op kind that
// nobody has registered in this process, where the model is to run, is an error of Load, which
// names both: the library of the op was not loaded. (What no signature reaches, as the part that
// trained the model, may have any op.) To serve the others, name them: then one that cannot be
// compiled leaves them alone, and its own Predict says why. So does, in any case, one whose ops
// have no kernel, that a server cannot compile, or that names a sparse tensor. Of a model on a
// server several signatures are compiled at a time: each is a call.
//
// When a model goes, its memory goes back to the system (core/cached_memory.h), but for 8 MiB that
// the allocator may keep and what the caches of other threads hold.
//
// Thread-safety: all methods, from any thread; many Predicts at once.
// Failure: Load as ReadModel (saver/model.h) and OpenModel (saver/saved_model.h), Unimplemented for
// ops that nobody has registered, InvalidArgument for the name of no signature, and an error that
// may pass (no memory, a server that does not answer) while a signature is compiled. Predict:
// InvalidArgument for a number that no signature has, another number of tensors, a wrong dtype or
// shape (which names the signature and the input); what compiling the signature said; else the
// error of the step. Outputs are empty after an error.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/session.h"
#include "saver/model.h"

namespace millrace {

// Which of a directory's models is loaded, and where it runs.
struct LoadModelOptions {
  std::vector<std::string> tags = {"serve"};
  // Where the model runs: "" in this process, else a server ("grpc://host:port").
  std::string target = "";
  SessionOptions session = {};  // target is the one above
  // Those whose ops must be there; empty: all.
  std::vector<std::string> signatures = {};
  FileSystem* file_system = FileSystem::Default();
};

// A signature with its tensors in the order of their keys.
struct ServableSignature {
  struct Place {
    std::string key;
    DType dtype;         // DT_INVALID: the file does not say
    PartialShape shape;  // unknown where the file says nothing sound
  };
  std::string key;
  std::vector<Place> inputs, outputs;
};

class ServableModel {
 public:
  static StatusOr<ServableModel> Load(const std::string& directory,
                                      const LoadModelOptions& options = {});
  // `model` is not used afterwards. `signatures` as in LoadModelOptions.
  static StatusOr<ServableModel> Load(const Model& model, const SessionOptions& options = {},
                                      const std::vector<std::string>& signatures = {});
  ServableModel(ServableModel&&) noexcept;
  ServableModel& operator=(ServableModel&&) noexcept;
  ~ServableModel();  // closes the session

  // In the order of their keys, without the one that names the init op.
  int num_signatures() const;
  // Requires 0 <= number < num_signatures(). Valid as long as the model.
  const ServableSignature& signature(int number) const;
  // InvalidArgument with the keys that there are.
  StatusOr<int> FindSignature(absl::string_view key) const;
  // What compiling the signature said; requires as signature().
  const Status& status(int number) const;
  // The compiled step, for callers that check tensors otherwise than Predict; null where status()
  // is an error. Valid as long as the model.
  PreparedStep* step(int number) const;

  // One tensor for each input of the signature, and a place for each output, which is no input's.
  Status Predict(int signature, absl::Span<const Tensor> inputs, absl::Span<Tensor> outputs) const;

  // By their keys.
  const std::map<std::string, ModelSignature>& signatures() const;
  // For what no signature names. Valid as long as the model.
  Session* session() const;

 private:
  struct Impl;
  explicit ServableModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_SAVER_SERVABLE_MODEL_H_
