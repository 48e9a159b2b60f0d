// SPDX-License-Identifier: Apache-2.0
//
// What outlives the process: checkpoints and SavedModels.
#include <algorithm>
#include <optional>

#include "absl/strings/str_join.h"
#include "api/c_api.h"
#include "api/c_api_handle.h"
#include "api/c_api_internal.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/loaded_model.h"
#include "saver/meta_graph.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "train/moving_average.h"

namespace millrace::c_api {
namespace {

struct SignatureObject {
  using Opaque = MillraceSignature;
  static constexpr uint32_t kKind = 0x4d52000a;
  static constexpr char kName[] = "MillraceSignature";

  std::string key, method;
  std::map<std::string, std::string> inputs, outputs;  // name -> tensor
};

struct ModelObject {
  using Opaque = MillraceSavedModel;
  static constexpr uint32_t kKind = 0x4d52000b;
  static constexpr char kName[] = "MillraceSavedModel";

  std::shared_ptr<SessionState> session;
  std::shared_ptr<const LoadedModel> model;
};

template <typename Map>
std::string KeysOf(const Map& map) {
  return absl::StrJoin(map, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "'", entry.first, "'");
  });
}

// The entry of a map that a caller names.
template <typename Map>
StatusOr<const typename Map::mapped_type*> Entry(const Map& map, const char* name,
                                                 absl::string_view where, absl::string_view what) {
  MR_RETURN_IF_ERROR(CheckText(name, where, what));
  const auto found = map.find(name);
  if (found != map.end()) return &found->second;
  return absl::NotFoundError(
      absl::StrCat(where, ": ", what, " must be one of ", KeysOf(map), ", got '", name, "'"));
}

// NULL: the default one.
StatusOr<const ModelSignature*> SignatureOf(const LoadedModel& model, const char* signature,
                                            absl::string_view where) {
  return Entry(model.signatures(), signature == nullptr ? kDefaultServingSignature : signature,
               where, "signature");
}

using SignatureTensors = std::map<std::string, SignatureTensor>;
// The inputs or the outputs of a signature.
using SignatureSide = const SignatureTensors& (ModelSignature::*)() const;

// The caller's input or output, with what the file says of it.
const char* AnswerFor(const MillraceSavedModel* model, const char* signature, const char* name,
                      SignatureSide side, absl::string_view what, MillraceDType* dtype,
                      int64_t* dims, int max_dims, int* num_dims, MillraceStatus* status,
                      absl::string_view where) {
  return CallFor<const char*>(
      status, where, nullptr, [&](absl::string_view) -> StatusOr<const char*> {
        MR_ASSIGN_OR_RETURN(const ModelObject* object,
                            Handles<ModelObject>::Get(model, where, "model"));
        MR_ASSIGN_OR_RETURN(const ModelSignature* found,
                            SignatureOf(*object->model, signature, where));
        MR_ASSIGN_OR_RETURN(const SignatureTensor* tensor,
                            Entry((found->*side)(), name, where, what));
        MR_ASSIGN_OR_RETURN(const int rank, WriteShape(tensor->shape(), dims, max_dims, where));
        if (num_dims != nullptr) *num_dims = rank;
        if (dtype != nullptr) *dtype = static_cast<MillraceDType>(tensor->dtype());
        return tensor->name().c_str();
      });
}

MillraceStrings* NamesFor(const MillraceSavedModel* model, const char* signature,
                          SignatureSide side, MillraceStatus* status, absl::string_view where) {
  return CallFor<MillraceStrings*>(
      status, where, nullptr, [&](absl::string_view) -> StatusOr<MillraceStrings*> {
        MR_ASSIGN_OR_RETURN(const ModelObject* object,
                            Handles<ModelObject>::Get(model, where, "model"));
        MR_ASSIGN_OR_RETURN(const ModelSignature* found,
                            SignatureOf(*object->model, signature, where));
        StringsObject names;
        for (const auto& [name, tensor] : (found->*side)()) names.strings.push_back(name);
        return Handles<StringsObject>::New(std::move(names));
      });
}

// Adds the nodes of a Saver. (It writes no meta graphs itself: it would hold on to a Scope, which a
// graph may leave behind.)
StatusOr<std::shared_ptr<SaverState>> MakeSaver(GraphState* graph,
                                                absl::Span<const std::string> names,
                                                const char* moving_average, int max_to_keep,
                                                absl::string_view where) {
  auto state = std::make_shared<SaverState>();
  state->graph = graph;
  MutexLock lock(&state->mu);
  MR_RETURN_IF_ERROR(graph->Edit([&](const Scope& scope) -> Status {
    SaverOptions options;
    MR_ASSIGN_OR_RETURN(options.variables, FindVariables(scope, names, where));
    if (moving_average != nullptr) {
      const ExponentialMovingAverage average({.name = moving_average});
      options.named_variables = average.VariablesToRestore(scope, options.variables);
      options.variables.clear();
    }
    options.max_to_keep = max_to_keep;
    options.write_meta_graph = false;
    MR_ASSIGN_OR_RETURN(state->saver, Saver::Make(scope, options));
    return absl::OkStatus();
  }));
  return state;
}

// The session is to be one of the saver's graph.
Status CheckSameGraph(const SaverState& saver, const SessionState& session,
                      absl::string_view where) {
  if (session.graph.get() == saver.graph) return absl::OkStatus();
  return InvalidArgument(where, ": the session must be one of the saver's graph, got ",
                         session.graph == nullptr ? "a loaded model's" : "one of another graph");
}

StatusOr<NamedOutputs> OutputsOf(const Scope& scope,
                                 const std::map<std::string, std::string>& names,
                                 absl::string_view where) {
  NamedOutputs outputs;
  for (const auto& [name, tensor] : names) {
    MR_ASSIGN_OR_RETURN(outputs[name], FindTensor(scope, tensor, where));
  }
  return outputs;
}

}  // namespace
}  // namespace millrace::c_api

using namespace millrace;         // NOLINT: this file is the C face of it
using namespace millrace::c_api;  // NOLINT

// --- Checkpoints ---------------------------------------------------------------------------------

MillraceSaver* millrace_saver_new(MillraceGraph* graph, const MillraceSaverOptions* options,
                                  MillraceStatus* status) {
  return CallFor<MillraceSaver*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceSaver*> {
        MR_ASSIGN_OR_RETURN(const GraphObject* object,
                            Handles<GraphObject>::Get(graph, where, "graph"));
        MillraceSaverOptions given;
        MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &given));
        MR_ASSIGN_OR_RETURN(
            const std::vector<std::string> names,
            TextsOf(given.variables, given.num_variables, where, "options.variables"));
        if (given.max_to_keep < -1) {
          return InvalidArgument(where, ": options.max_to_keep must be >= -1, got ",
                                 given.max_to_keep);
        }
        const int keep = given.max_to_keep == 0  ? SaverOptions().max_to_keep
                         : given.max_to_keep < 0 ? 0
                                                 : given.max_to_keep;
        const std::shared_ptr<GraphState> graph_state = object->state;
        MR_ASSIGN_OR_RETURN(auto state,
                            MakeSaver(graph_state.get(), names, given.moving_average, keep, where));
        return Handles<SaverObject>::New({graph_state, std::move(state)});
      });
}

void millrace_saver_delete(MillraceSaver* saver) { DeleteHandle<SaverObject>(saver, __func__); }

const char* millrace_saver_save(MillraceSaver* saver, MillraceSession* session, const char* prefix,
                                int64_t global_step, MillraceStatus* status) {
  return CallFor<const char*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<const char*> {
        MR_ASSIGN_OR_RETURN(const SaverObject* saver_object,
                            Handles<SaverObject>::Get(saver, where, "saver"));
        MR_ASSIGN_OR_RETURN(const SessionObject* session_object,
                            Handles<SessionObject>::Get(session, where, "session"));
        MR_RETURN_IF_ERROR(CheckText(prefix, where, "prefix"));
        const std::shared_ptr<SaverState> state = saver_object->state;
        const std::shared_ptr<SessionState> run = session_object->state;
        MR_RETURN_IF_ERROR(CheckSameGraph(*state, *run, where));
        MR_RETURN_IF_ERROR(run->CatchUp());
        MutexLock lock(&state->mu);
        MR_ASSIGN_OR_RETURN(
            const std::string path,
            state->saver->Save(run->session.get(), prefix,
                               global_step < 0 ? std::nullopt : std::optional(global_step)));
        tensorflow::MetaGraphDef meta;
        MR_RETURN_IF_ERROR(state->graph->Read([&](const Scope& scope) -> Status {
          MR_ASSIGN_OR_RETURN(meta, ExportMetaGraph(scope, {.saver_def = state->saver->def()}));
          return absl::OkStatus();
        }));
        MR_RETURN_IF_ERROR(WriteMetaGraph(FileSystem::Default(), path + ".meta", meta));
        return state->paths.insert(path).first->c_str();
      });
}

MillraceCode millrace_saver_restore(MillraceSaver* saver, MillraceSession* session,
                                    const char* checkpoint, MillraceStatus* status) {
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const SaverObject* saver_object,
                        Handles<SaverObject>::Get(saver, where, "saver"));
    MR_ASSIGN_OR_RETURN(const SessionObject* session_object,
                        Handles<SessionObject>::Get(session, where, "session"));
    MR_RETURN_IF_ERROR(CheckText(checkpoint, where, "checkpoint"));
    const std::shared_ptr<SaverState> state = saver_object->state;
    const std::shared_ptr<SessionState> run = session_object->state;
    MR_RETURN_IF_ERROR(CheckSameGraph(*state, *run, where));
    MR_RETURN_IF_ERROR(run->CatchUp());
    MutexLock lock(&state->mu);
    return state->saver->Restore(run->session.get(), checkpoint);
  });
}

MillraceBuffer* millrace_latest_checkpoint(const char* directory, MillraceStatus* status) {
  return CallFor<MillraceBuffer*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceBuffer*> {
        MR_RETURN_IF_ERROR(CheckText(directory, where, "directory"));
        std::optional<std::string> path = LatestCheckpoint(FileSystem::Default(), directory);
        if (!path) {
          return absl::NotFoundError(absl::StrCat(where, ": directory '", directory,
                                                  "' must have a whole checkpoint, got none"));
        }
        return Handles<BufferObject>::New({*std::move(path)});
      });
}

// --- Signatures and export -----------------------------------------------------------------------

MillraceSignature* millrace_signature_new(const char* key, const char* method,
                                          MillraceStatus* status) {
  return CallFor<MillraceSignature*>(status, __func__, nullptr,
                                     [&](absl::string_view) -> StatusOr<MillraceSignature*> {
                                       SignatureObject made;
                                       made.key = key == nullptr ? kDefaultServingSignature : key;
                                       made.method = method == nullptr ? kPredictMethod : method;
                                       return Handles<SignatureObject>::New(std::move(made));
                                     });
}

void millrace_signature_delete(MillraceSignature* signature) {
  DeleteHandle<SignatureObject>(signature, __func__);
}

namespace {

MillraceCode AddTo(MillraceSignature* signature,
                   std::map<std::string, std::string> SignatureObject::*side, const char* name,
                   const char* tensor, MillraceStatus* status, absl::string_view where) {
  return Call(status, where, [&](absl::string_view) -> Status {
    MR_ASSIGN_OR_RETURN(SignatureObject * object,
                        Handles<SignatureObject>::Get(signature, where, "signature"));
    MR_RETURN_IF_ERROR(CheckText(name, where, "name"));
    MR_RETURN_IF_ERROR(CheckText(tensor, where, "tensor"));
    if ((object->*side).emplace(name, tensor).second) return absl::OkStatus();
    return InvalidArgument(where, ": name must be new in signature '", object->key, "', got '",
                           name, "' again");
  });
}

}  // namespace

MillraceCode millrace_signature_add_input(MillraceSignature* signature, const char* name,
                                          const char* tensor, MillraceStatus* status) {
  return AddTo(signature, &SignatureObject::inputs, name, tensor, status, __func__);
}

MillraceCode millrace_signature_add_output(MillraceSignature* signature, const char* name,
                                           const char* tensor, MillraceStatus* status) {
  return AddTo(signature, &SignatureObject::outputs, name, tensor, status, __func__);
}

MillraceCode millrace_session_export(MillraceSession* session, const char* directory,
                                     MillraceSignature* const* signatures, int num_signatures,
                                     const MillraceExportOptions* options, MillraceStatus* status) {
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const SessionObject* session_object,
                        Handles<SessionObject>::Get(session, where, "session"));
    MR_RETURN_IF_ERROR(CheckText(directory, where, "directory"));
    MR_RETURN_IF_ERROR(CheckArray(signatures, num_signatures, where, "signatures"));
    MillraceExportOptions given;
    MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &given));
    const std::shared_ptr<SessionState> run = session_object->state;
    if (run->graph == nullptr) {
      return FailedPrecondition(where,
                                ": the session must be one of a graph, got a loaded model's");
    }
    ExportModelOptions model_options;
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> tags,
                        TextsOf(given.tags, given.num_tags, where, "options.tags"));
    if (!tags.empty()) model_options.tags = tags;
    const auto export_model = [&](const Scope& scope) -> Status {
      std::vector<ServingSignature> served;
      for (int i = 0; i < num_signatures; ++i) {
        MR_ASSIGN_OR_RETURN(const SignatureObject* signature,
                            Handles<SignatureObject>::Get(signatures[i], where,
                                                          absl::StrCat("signatures[", i, "]")));
        ServingSignature& one = served.emplace_back();
        one.key = signature->key;
        one.method = signature->method;
        MR_ASSIGN_OR_RETURN(one.inputs, OutputsOf(scope, signature->inputs, where));
        MR_ASSIGN_OR_RETURN(one.outputs, OutputsOf(scope, signature->outputs, where));
      }
      if (given.main_op != nullptr) {
        MR_ASSIGN_OR_RETURN(model_options.main_op, FindNode(scope, given.main_op, where));
      }
      return ExportModel(run->session.get(), scope, served, directory, model_options);
    };
    return run->graph->Read(run->session.get(), &run->position, export_model);
  });
}

// --- Loaded models -------------------------------------------------------------------------------

MillraceSavedModel* millrace_saved_model_load(const char* directory, const char* const* tags,
                                              int num_tags, const MillraceSessionOptions* options,
                                              MillraceStatus* status) {
  return CallFor<MillraceSavedModel*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceSavedModel*> {
        MR_RETURN_IF_ERROR(CheckText(directory, where, "directory"));
        LoadModelOptions load;
        if (tags != nullptr || num_tags != 0) {
          MR_ASSIGN_OR_RETURN(load.tags, TextsOf(tags, num_tags, where, "tags"));
        }
        MR_ASSIGN_OR_RETURN(load.session, SessionOptionsOf(options, where));
        load.target = load.session.target;
        MR_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(directory, load));
        ModelObject object;
        object.model = std::make_shared<const LoadedModel>(std::move(loaded));
        object.session = std::make_shared<SessionState>();
        object.session->session = std::shared_ptr<Session>(object.model, object.model->session());
        return Handles<ModelObject>::New(std::move(object));
      });
}

void millrace_saved_model_delete(MillraceSavedModel* model) {
  DeleteHandle<ModelObject>(model, __func__);
}

MillraceStrings* millrace_saved_model_signatures(const MillraceSavedModel* model,
                                                 MillraceStatus* status) {
  return CallFor<MillraceStrings*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceStrings*> {
        MR_ASSIGN_OR_RETURN(const ModelObject* object,
                            Handles<ModelObject>::Get(model, where, "model"));
        StringsObject keys;
        for (const auto& [key, signature] : object->model->signatures())
          keys.strings.push_back(key);
        return Handles<StringsObject>::New(std::move(keys));
      });
}

MillraceStrings* millrace_saved_model_inputs(const MillraceSavedModel* model, const char* signature,
                                             MillraceStatus* status) {
  return NamesFor(model, signature, &ModelSignature::inputs, status, __func__);
}

MillraceStrings* millrace_saved_model_outputs(const MillraceSavedModel* model,
                                              const char* signature, MillraceStatus* status) {
  return NamesFor(model, signature, &ModelSignature::outputs, status, __func__);
}

const char* millrace_saved_model_input(const MillraceSavedModel* model, const char* signature,
                                       const char* name, MillraceDType* dtype, int64_t* dims,
                                       int max_dims, int* num_dims, MillraceStatus* status) {
  return AnswerFor(model, signature, name, &ModelSignature::inputs, "input", dtype, dims, max_dims,
                   num_dims, status, __func__);
}

const char* millrace_saved_model_output(const MillraceSavedModel* model, const char* signature,
                                        const char* name, MillraceDType* dtype, int64_t* dims,
                                        int max_dims, int* num_dims, MillraceStatus* status) {
  return AnswerFor(model, signature, name, &ModelSignature::outputs, "output", dtype, dims,
                   max_dims, num_dims, status, __func__);
}

MillraceCode millrace_saved_model_run(MillraceSavedModel* model, const char* signature,
                                      const char* const* input_names, MillraceTensor* const* inputs,
                                      int num_inputs, const char* const* output_names,
                                      MillraceTensor** results, int num_outputs,
                                      const MillraceRunOptions* options, MillraceStatus* status) {
  if (results != nullptr) std::fill_n(results, std::max(num_outputs, 0), nullptr);
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const ModelObject* object,
                        Handles<ModelObject>::Get(model, where, "model"));
    const std::shared_ptr<SessionState> state = object->session;
    const std::shared_ptr<const LoadedModel> loaded = object->model;
    MR_ASSIGN_OR_RETURN(const ModelSignature* found, SignatureOf(*loaded, signature, where));
    TensorsOfHandles values;
    MR_RETURN_IF_ERROR(values.Take(inputs, num_inputs, where, "inputs"));
    MR_RETURN_IF_ERROR(CheckArray(input_names, num_inputs, where, "input_names"));
    MR_RETURN_IF_ERROR(CheckArray(output_names, num_outputs, where, "output_names"));
    MR_RETURN_IF_ERROR(CheckArray(results, num_outputs, where, "results"));
    const auto tensor_of = [&](const SignatureTensors& side, const char* name,
                               absl::string_view what) -> StatusOr<FetchName> {
      MR_ASSIGN_OR_RETURN(const SignatureTensor* tensor, Entry(side, name, where, what));
      if (!tensor->name().empty()) return FetchName(tensor->name());
      return Unimplemented(where, ": ", what, " '", name,
                           "' must be one tensor, got a sparse one; run the model's session");
    };
    std::vector<Feed> feeds;
    for (int i = 0; i < num_inputs; ++i) {
      MR_ASSIGN_OR_RETURN(FetchName name, tensor_of(found->inputs(), input_names[i], "input"));
      feeds.emplace_back(std::move(name), values.get()[static_cast<size_t>(i)]);
    }
    std::vector<FetchName> fetches;
    for (int i = 0; i < num_outputs; ++i) {
      MR_ASSIGN_OR_RETURN(FetchName name, tensor_of(found->outputs(), output_names[i], "output"));
      fetches.push_back(std::move(name));
    }
    return RunStep(state.get(), feeds, fetches, {}, options, where, results);
  });
}

MillraceSession* millrace_saved_model_session(MillraceSavedModel* model, MillraceStatus* status) {
  return CallFor<MillraceSession*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceSession*> {
        MR_ASSIGN_OR_RETURN(const ModelObject* object,
                            Handles<ModelObject>::Get(model, where, "model"));
        return Handles<SessionObject>::New({object->session});
      });
}
