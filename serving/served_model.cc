// SPDX-License-Identifier: Apache-2.0
#include "serving/served_model.h"

#include <google/protobuf/any.pb.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/deterministic_bytes.h"
#include "core/exceptions.h"
#include "core/file_system.h"
#include "core/tensor_proto.h"
#include "net/splat_bytes.h"
#include "proto/meta_graph.pb.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/model.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/regression.pb.h"
#include "proto/tensor.pb.h"
#include "saver/load_plan.h"
#include "saver/model.h"
#include "serving/example_input.h"
#include "serving/example_results.h"
#include "serving/output_sets.h"
#include "serving/run_step.h"
#include "serving/step_runner.h"

namespace millrace {
namespace {

using tensorflow::serving::ClassificationRequest;
using tensorflow::serving::ClassificationResponse;
using tensorflow::serving::GetModelMetadataRequest;
using tensorflow::serving::GetModelMetadataResponse;
using tensorflow::serving::InferenceResult;
using tensorflow::serving::InferenceTask;
using tensorflow::serving::ModelSpec;
using tensorflow::serving::MultiInferenceRequest;
using tensorflow::serving::MultiInferenceResponse;
using tensorflow::serving::PredictRequest;
using tensorflow::serving::PredictResponse;
using tensorflow::serving::RegressionRequest;
using tensorflow::serving::RegressionResponse;

constexpr char kSignatureDefField[] = "signature_def";

using Aliases = std::set<absl::string_view>;
using Tensors = absl::InlinedVector<Tensor, 4>;
using Positions = absl::InlinedVector<size_t, 8>;  // of outputs in a signature

std::string SetText(const Aliases& aliases) {
  return absl::StrCat("{", absl::StrJoin(aliases, ","), "}");
}

absl::string_view SignatureName(absl::string_view asked) {
  return asked.empty() ? kDefaultServingSignature : asked;
}

// What the graph's files take: the graph itself and the values of its variables.
int64_t FileBytes(FileSystem* fs, const std::string& directory) {
  int64_t bytes = 0;
  for (const std::string& folder : {directory, JoinPath(directory, kVariablesDirectory)}) {
    const StatusOr<std::vector<std::string>> names = fs->GetChildren(folder);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const std::string path = JoinPath(folder, name);
      const StatusOr<bool> is_directory = fs->IsDirectory(path);
      if (!is_directory.ok() || *is_directory) continue;
      const StatusOr<uint64_t> size = fs->GetFileSize(path);
      if (size.ok()) bytes = AddCapped(bytes, static_cast<int64_t>(*size));
    }
  }
  return bytes;
}

// One signature: its tensors by position, in the order of their aliases.
struct Slot {
  int number;  // in the ServableModel
  const ServableSignature* places;
  std::vector<std::string> feeds, fetches;  // names in the graph; "" for a sparse tensor
  // Of inputs that a request may leave out, by alias.
  std::map<std::string, StatusOr<Tensor>> defaults = {};

  // The aliases of `wanted`, in the order of the signature. None: all.
  template <typename Wanted>
  StatusOr<Positions> Outputs(const Wanted& wanted) const {
    Positions positions;
    if (wanted.empty()) {
      for (size_t i = 0; i < fetches.size(); ++i) positions.push_back(i);
      return positions;
    }
    std::vector<bool> is_wanted(fetches.size());
    for (const std::string& alias : wanted) {
      const auto place = std::lower_bound(
          places->outputs.begin(), places->outputs.end(), alias,
          [](const ServableSignature::Place& a, const std::string& b) { return a.key < b; });
      if (place == places->outputs.end() || place->key != alias) {
        Aliases all;
        for (const ServableSignature::Place& output : places->outputs) all.insert(output.key);
        return InvalidArgument("output tensor alias not found in signature: ", alias,
                               " Outputs expected to be in the set ", SetText(all), ".");
      }
      const auto position = static_cast<size_t>(place - places->outputs.begin());
      if (is_wanted[position]) return InvalidArgument("duplicate output tensor alias: ", alias);
      is_wanted[position] = true;
    }
    for (size_t i = 0; i < is_wanted.size(); ++i) {
      if (is_wanted[i]) positions.push_back(i);
    }
    return positions;
  }

  Status CheckNumInputs(const Aliases& sent) const {
    const bool may_be_fewer = !defaults.empty() && sent.size() < places->inputs.size();
    if (may_be_fewer || sent.size() == places->inputs.size()) return absl::OkStatus();
    Aliases expected, extra, missing;
    for (const ServableSignature::Place& input : places->inputs) expected.insert(input.key);
    std::set_difference(sent.begin(), sent.end(), expected.begin(), expected.end(),
                        std::inserter(extra, extra.end()));
    std::set_difference(expected.begin(), expected.end(), sent.begin(), sent.end(),
                        std::inserter(missing, missing.end()));
    return InvalidArgument("input size does not match signature: ", sent.size(),
                           "!=", expected.size(), " len(", SetText(sent), ") != len(",
                           SetText(expected), "). Sent extra: ", SetText(extra),
                           ". Missing but required: ", SetText(missing), ".");
  }

  // Of an input that the request has left out.
  StatusOr<Tensor> Default(size_t position, const Aliases& sent) const {
    const auto found = defaults.find(places->inputs[position].key);
    if (found != defaults.end()) return found->second;
    Aliases with_defaults;
    for (const auto& [alias, value] : defaults) with_defaults.insert(alias);
    return InvalidArgument(
        "Signature input alias: ", places->inputs[position].key, "(feed name: ", feeds[position],
        ") not found in request and no default value provided. Inputs expected "
        "to be in the request ",
        SetText(sent), ", or default input alias set: ", absl::StrJoin(with_defaults, ","));
  }

  // Where some inputs were left out others may have come that are none.
  Status CheckAllUsed(const Aliases& sent) const {
    Aliases used;
    for (const ServableSignature::Place& input : places->inputs) {
      if (sent.contains(input.key)) used.insert(input.key);
    }
    if (used.size() == sent.size()) return absl::OkStatus();
    return InvalidArgument("Inputs contains invalid name. Used request inputs: ",
                           absl::StrJoin(used, ","), ", request input: ", absl::StrJoin(sent, ","));
  }
};

StatusOr<Tensor> DefaultOf(const std::string& alias, const tensorflow::TensorProto& value,
                           int64_t max_splat_bytes) {
  StatusOr<Tensor> tensor = SplatBytes(value) > max_splat_bytes
                                ? StatusOr<Tensor>(InvalidArgument(alias))
                                : TensorFromProto(value);
  if (!tensor.ok()) return InvalidArgument("tensor parsing error: ", alias);
  return tensor;
}

}  // namespace

struct ServedModel::Impl {
  Impl(ServableModel loaded, const ServedModelOptions& chosen)
      : options(chosen),
        model(std::move(loaded)),
        sets(model.session(), options.max_output_sets, options.runner) {
    for (int i = 0; i < model.num_signatures(); ++i) {
      const ServableSignature& places = model.signature(i);
      const ModelSignature& signature = model.signatures().at(places.key);
      Slot slot{.number = i, .places = &places, .feeds = {}, .fetches = {}};
      for (const auto& [alias, tensor] : signature.inputs()) slot.feeds.push_back(tensor.name());
      for (const auto& [alias, tensor] : signature.outputs()) slot.fetches.push_back(tensor.name());
      for (const auto& [alias, value] : signature.def().defaults()) {
        if (!signature.inputs().contains(alias)) continue;
        slot.defaults.emplace(alias, DefaultOf(alias, value, chosen.max_splat_bytes));
      }
      slots.emplace(places.key, std::move(slot));
    }
  }
  ~Impl() {
    if (options.runner == nullptr) return;
    for (int i = 0; i < model.num_signatures(); ++i) {
      if (model.step(i) != nullptr) options.runner->Forget(model.step(i));
    }
  }

  // Null: the model has no such signature.
  const Slot* Find(absl::string_view asked) const {
    const auto found = slots.find(SignatureName(asked));
    return found == slots.end() ? nullptr : &found->second;
  }
  StatusOr<const Slot*> FindToPredict(absl::string_view asked, PredictCaller caller) const {
    const Slot* const slot = Find(asked);
    if (slot == nullptr && caller == PredictCaller::kRest) {
      return InvalidArgument("Serving signature name: \"", SignatureName(asked),
                             "\" not found in signature def");
    }
    if (slot == nullptr) {
      return FailedPrecondition("Serving signature key \"", SignatureName(asked), "\" not found.");
    }
    const std::string& method = SignatureOf(*slot).method_name();
    if (options.check_method_names && method != kPredictMethod && method != kClassifyMethod &&
        method != kRegressMethod) {
      return Internal("Expected prediction signature method_name to be one of {", kPredictMethod,
                      ", ", kClassifyMethod, ", ", kRegressMethod, "}. Was: ", method);
    }
    return slot;
  }
  const ModelSignature& SignatureOf(const Slot& slot) const {
    return model.signatures().at(slot.places->key);
  }

  // Checks what a few bytes may stand for, then reads.
  StatusOr<Tensor> Parse(const std::string& alias, const tensorflow::TensorProto& proto,
                         int64_t* splat_bytes) const {
    *splat_bytes = AddCapped(*splat_bytes, SplatBytes(proto));
    if (*splat_bytes > options.max_splat_bytes && ValidateTensorProto(proto).ok()) {
      return TooManySplatBytes(alias, *splat_bytes);
    }
    StatusOr<Tensor> tensor = TensorFromProto(proto);
    if (absl::IsInvalidArgument(tensor.status())) {
      return InvalidArgument("tensor parsing error: ", alias);
    }
    return tensor;
  }
  Status TooManySplatBytes(const std::string& alias, int64_t bytes) const {
    return absl::ResourceExhaustedError(
        absl::StrCat("Predict: elements that the inputs do not list must take at most ",
                     options.max_splat_bytes, " bytes, got ", bytes, " up to input '", alias, "'"));
  }

  // Each step of a request goes through here.
  Status RunChosen(PreparedStep* step, const StepBounds& bounds, absl::Span<const Tensor> feeds,
                   absl::Span<Tensor> results) const {
    if (options.runner == nullptr || bounds.runs_alone) {
      return RunStep(step, bounds, feeds, results);
    }
    return options.runner->Run(step, bounds, feeds, results);
  }

  // Runs the signature for these of its outputs.
  Status Run(const Slot& slot, absl::Span<const size_t> outputs, const StepBounds& bounds,
             absl::Span<const Tensor> inputs, absl::Span<Tensor> results) {
    if (outputs.size() == slot.fetches.size()) {
      MR_RETURN_IF_ERROR(model.status(slot.number));
      return RunChosen(model.step(slot.number), bounds, inputs, results);
    }
    std::vector<std::string> fetches;
    for (const size_t output : outputs) fetches.push_back(slot.fetches[output]);
    return RunNamed(slot, slot.feeds, fetches, bounds, inputs, results);
  }
  // Runs any part of the graph; `slot` has the reason why a sparse tensor is none.
  Status RunNamed(const Slot& slot, const std::vector<std::string>& feeds,
                  const std::vector<std::string>& fetches, const StepBounds& bounds,
                  absl::Span<const Tensor> inputs, absl::Span<Tensor> results) {
    for (const auto* names : {&feeds, &fetches}) {
      if (std::find(names->begin(), names->end(), "") == names->end()) continue;
      MR_RETURN_IF_ERROR(model.status(slot.number));
      return Internal("Predict: signature '", slot.places->key, "' has a tensor without a name");
    }
    MR_RETURN_IF_ERROR(CheckBounds(bounds));  // before it is compiled
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<PreparedStep> step, sets.Find(feeds, fetches));
    return RunChosen(step.get(), bounds, inputs, results);
  }

  Status Predict(const PredictRequest& request, const StepBounds& bounds,
                 PredictResponse* response);
  StatusOr<std::vector<AliasedTensor>> PredictTensors(absl::string_view signature_name,
                                                      absl::Span<const AliasedTensor> inputs,
                                                      absl::Span<const std::string> filter,
                                                      const StepBounds& bounds,
                                                      PredictCaller caller);
  Status Classify(const ClassificationRequest& request, const StepBounds& bounds,
                  ClassificationResponse* response);
  Status Regress(const RegressionRequest& request, const StepBounds& bounds,
                 RegressionResponse* response);
  Status MultiInference(const MultiInferenceRequest& request, const StepBounds& bounds,
                        MultiInferenceResponse* response);
  Status GetModelMetadata(const GetModelMetadataRequest& request,
                          GetModelMetadataResponse* response) const;

  // Feeds the examples to `feed`; the values of `fetches`.
  Status RunExamples(const Slot& slot, const std::string& feed,
                     const std::vector<std::string>& fetches, const StepBounds& bounds,
                     const Tensor& examples, absl::Span<Tensor> results) {
    const bool is_whole =
        slot.feeds.size() == 1 && slot.feeds[0] == feed && slot.fetches == fetches;
    if (!is_whole) return RunNamed(slot, {feed}, fetches, bounds, {&examples, 1}, results);
    MR_RETURN_IF_ERROR(model.status(slot.number));
    return RunChosen(model.step(slot.number), bounds, {&examples, 1}, results);
  }

  const ServedModelOptions options;
  std::string name;
  int64_t version = 0;
  int64_t num_bytes = 0;
  std::string signature_defs;  // a SignatureDefMap
  ServableModel model;
  OutputSets sets;
  std::map<std::string, Slot, std::less<>> slots;
};

Status ServedModel::Impl::Predict(const PredictRequest& request, const StepBounds& bounds,
                                  PredictResponse* response) {
  MR_ASSIGN_OR_RETURN(const Slot* slot,
                      FindToPredict(request.model_spec().signature_name(), PredictCaller::kGrpc));
  const auto sent = [&] {
    Aliases aliases;
    for (const auto& [alias, proto] : request.inputs()) aliases.insert(alias);
    return aliases;
  };
  const bool are_all_sent =
      static_cast<size_t>(request.inputs().size()) == slot->places->inputs.size();
  if (!are_all_sent) MR_RETURN_IF_ERROR(slot->CheckNumInputs(sent()));
  Tensors inputs;
  size_t num_defaults = 0;
  int64_t splat_bytes = 0;
  for (size_t i = 0; i < slot->places->inputs.size(); ++i) {
    const std::string& alias = slot->places->inputs[i].key;
    const auto found = request.inputs().find(alias);
    if (found == request.inputs().end()) {
      MR_ASSIGN_OR_RETURN(Tensor tensor, slot->Default(i, sent()));
      inputs.push_back(std::move(tensor));
      num_defaults += 1;
      continue;
    }
    MR_ASSIGN_OR_RETURN(Tensor tensor, Parse(alias, found->second, &splat_bytes));
    inputs.push_back(std::move(tensor));
  }
  if (num_defaults > 0) MR_RETURN_IF_ERROR(slot->CheckAllUsed(sent()));
  MR_ASSIGN_OR_RETURN(const Positions outputs, slot->Outputs(request.output_filter()));
  Tensors results(outputs.size());
  MR_RETURN_IF_ERROR(Run(*slot, outputs, bounds, inputs, absl::MakeSpan(results)));
  FillModelSpec(request.model_spec(), version, response->mutable_model_spec());
  for (size_t i = 0; i < outputs.size(); ++i) {
    tensorflow::TensorProto* const proto =
        &(*response->mutable_outputs())[slot->places->outputs[outputs[i]].key];
    MR_RETURN_IF_ERROR(options.serialize_as_tensor_content
                           ? TensorToContentProto(results[i], proto)
                           : TensorToListedProto(results[i], proto));
  }
  return absl::OkStatus();
}

StatusOr<std::vector<AliasedTensor>> ServedModel::Impl::PredictTensors(
    absl::string_view signature_name, absl::Span<const AliasedTensor> inputs,
    absl::Span<const std::string> filter, const StepBounds& bounds, PredictCaller caller) {
  MR_ASSIGN_OR_RETURN(const Slot* slot, FindToPredict(signature_name, caller));
  Aliases sent;
  for (const AliasedTensor& input : inputs) {
    if (!sent.insert(input.alias).second) {
      return InvalidArgument("duplicate input tensor alias: ", input.alias);
    }
  }
  MR_RETURN_IF_ERROR(slot->CheckNumInputs(sent));
  Tensors feeds;
  for (size_t i = 0; i < slot->places->inputs.size(); ++i) {
    const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const AliasedTensor& input) {
      return input.alias == slot->places->inputs[i].key;
    });
    if (found != inputs.end()) {
      feeds.push_back(found->tensor);
      continue;
    }
    MR_ASSIGN_OR_RETURN(Tensor tensor, slot->Default(i, sent));
    feeds.push_back(std::move(tensor));
  }
  MR_RETURN_IF_ERROR(slot->CheckAllUsed(sent));
  MR_ASSIGN_OR_RETURN(const Positions outputs, slot->Outputs(filter));
  Tensors results(outputs.size());
  MR_RETURN_IF_ERROR(Run(*slot, outputs, bounds, feeds, absl::MakeSpan(results)));
  std::vector<AliasedTensor> named;
  for (size_t i = 0; i < outputs.size(); ++i) {
    named.push_back({slot->places->outputs[outputs[i]].key, std::move(results[i])});
  }
  return named;
}

Status ServedModel::Impl::Classify(const ClassificationRequest& request, const StepBounds& bounds,
                                   ClassificationResponse* response) {
  const Slot* const slot = Find(request.model_spec().signature_name());
  if (slot == nullptr) {
    return InvalidArgument("No signature was found with the name: ",
                           SignatureName(request.model_spec().signature_name()));
  }
  MR_ASSIGN_OR_RETURN(const ClassifyTensors names,
                      ClassifyTensorsOf(SignatureOf(*slot), options.check_method_names));
  MR_ASSIGN_OR_RETURN(const Tensor examples, SerializedExamples(request.input()));
  std::vector<std::string> fetches;
  const bool has_classes = names.has_classes, has_scores = names.has_scores;
  if (has_classes) fetches.push_back(names.classes);
  if (has_scores) fetches.push_back(names.scores);
  Tensors results(fetches.size());
  MR_RETURN_IF_ERROR(
      RunExamples(*slot, names.examples, fetches, bounds, examples, absl::MakeSpan(results)));
  FillModelSpec(request.model_spec(), version, response->mutable_model_spec());
  return AddClassifications(has_classes ? &results.front() : nullptr,
                            has_scores ? &results.back() : nullptr, examples.dim(0),
                            response->mutable_result());
}

Status ServedModel::Impl::Regress(const RegressionRequest& request, const StepBounds& bounds,
                                  RegressionResponse* response) {
  const Slot* const slot = Find(request.model_spec().signature_name());
  if (slot == nullptr) {
    return InvalidArgument("No signature was found with the name: ",
                           SignatureName(request.model_spec().signature_name()));
  }
  MR_ASSIGN_OR_RETURN(const RegressTensors names,
                      RegressTensorsOf(SignatureOf(*slot), options.check_method_names));
  MR_ASSIGN_OR_RETURN(const Tensor examples, SerializedExamples(request.input()));
  Tensor values;
  MR_RETURN_IF_ERROR(
      RunExamples(*slot, names.examples, {names.values}, bounds, examples, {&values, 1}));
  FillModelSpec(request.model_spec(), version, response->mutable_model_spec());
  return AddRegressions(values, examples.dim(0), response->mutable_result());
}

namespace {

// A task of MultiInference, checked: names of tensors in the graph.
struct CheckedTask {
  const Slot* slot;
  bool is_classify;
  ClassifyTensors classify;
  RegressTensors regress;

  const std::string& examples() const { return is_classify ? classify.examples : regress.examples; }
  void AddFetches(std::set<std::string>* fetches) const {
    if (!is_classify) fetches->insert(regress.values);
    if (is_classify && classify.has_classes) fetches->insert(classify.classes);
    if (is_classify && classify.has_scores) fetches->insert(classify.scores);
  }
};

}  // namespace

Status ServedModel::Impl::MultiInference(const MultiInferenceRequest& request,
                                         const StepBounds& bounds,
                                         MultiInferenceResponse* response) {
  if (request.tasks().empty()) {
    return InvalidArgument("MultiInference: tasks must be at least one, got 0");
  }
  std::vector<CheckedTask> tasks;
  std::set<std::string> signatures, fetched;
  for (const InferenceTask& task : request.tasks()) {
    const ModelSpec& spec = task.model_spec();
    if (spec.name().empty()) return InvalidArgument("Found ModelSpec with an empty model name.");
    if (spec.name() != request.tasks(0).model_spec().name()) {
      return InvalidArgument(
          "All ModelSpecs in a MultiInferenceRequest must access the same model name.");
    }
    const absl::string_view signature_name = SignatureName(spec.signature_name());
    if (!signatures.insert(std::string(signature_name)).second) {
      return InvalidArgument("Duplicate evaluation of signature: ", signature_name);
    }
    CheckedTask& checked = tasks.emplace_back();
    checked.slot = Find(signature_name);
    if (checked.slot == nullptr) {
      return InvalidArgument("Requested signature not found in model graph: ", signature_name);
    }
    const ModelSignature& signature = SignatureOf(*checked.slot);
    checked.is_classify = task.method_name() == kClassifyMethod;
    if (checked.is_classify) {
      MR_ASSIGN_OR_RETURN(checked.classify,
                          ClassifyTensorsOf(signature, options.check_method_names));
    } else if (task.method_name() == kRegressMethod) {
      MR_ASSIGN_OR_RETURN(checked.regress, RegressTensorsOf(signature, options.check_method_names));
    } else {
      return Unimplemented("Unsupported signature method_name: ", task.method_name());
    }
    if (checked.examples() != tasks[0].examples()) {
      return InvalidArgument("Input tensor must be the same for all Signatures.");
    }
    checked.AddFetches(&fetched);
  }
  MR_ASSIGN_OR_RETURN(const Tensor examples, SerializedExamples(request.input()));
  const std::vector<std::string> fetches(fetched.begin(), fetched.end());
  Tensors results(fetches.size());
  MR_RETURN_IF_ERROR(RunExamples(*tasks[0].slot, tasks[0].examples(), fetches, bounds, examples,
                                 absl::MakeSpan(results)));
  const auto value_of = [&](const std::string& name) -> const Tensor& {
    return results[static_cast<size_t>(std::lower_bound(fetches.begin(), fetches.end(), name) -
                                       fetches.begin())];
  };
  for (size_t i = 0; i < tasks.size(); ++i) {
    const CheckedTask& task = tasks[i];
    InferenceResult* const result = response->add_results();
    FillModelSpec(request.tasks(static_cast<int>(i)).model_spec(), version,
                  result->mutable_model_spec());
    MR_RETURN_IF_ERROR(
        task.is_classify
            ? AddClassifications(
                  task.classify.has_classes ? &value_of(task.classify.classes) : nullptr,
                  task.classify.has_scores ? &value_of(task.classify.scores) : nullptr,
                  examples.dim(0), result->mutable_classification_result())
            : AddRegressions(value_of(task.regress.values), examples.dim(0),
                             result->mutable_regression_result()));
  }
  return absl::OkStatus();
}

Status ServedModel::Impl::GetModelMetadata(const GetModelMetadataRequest& request,
                                           GetModelMetadataResponse* response) const {
  if (request.metadata_field().empty()) {
    return InvalidArgument("GetModelMetadataRequest must specify at least one metadata_field");
  }
  for (const std::string& field : request.metadata_field()) {
    if (field == kSignatureDefField) continue;
    return InvalidArgument("Metadata field ", field, " is not supported");
  }
  response->mutable_model_spec()->set_name(name);
  response->mutable_model_spec()->mutable_version()->set_value(version);
  google::protobuf::Any& any = (*response->mutable_metadata())[kSignatureDefField];
  any.set_type_url("type.googleapis.com/tensorflow.serving.SignatureDefMap");
  any.set_value(signature_defs);
  return absl::OkStatus();
}

ServedModel::ServedModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServedModel::~ServedModel() = default;

StatusOr<std::unique_ptr<ServedModel>> ServedModel::Load(std::string name, int64_t version,
                                                         const std::string& directory,
                                                         const ServedModelOptions& options) {
  return NoExceptions("ServedModel", [&]() -> StatusOr<std::unique_ptr<ServedModel>> {
    SessionOptions session = options.load.session;
    session.target = options.load.target;
    session.check_inferred_shapes = false;  // as the session of TensorFlow Serving
    FileSystem* const fs = options.load.file_system;
    std::string signature_defs;
    std::optional<ServableModel> loaded;
    {
      MR_ASSIGN_OR_RETURN(const Model model,
                          ReadModel(directory, {.tags = options.load.tags,
                                                .file_system = fs,
                                                .only_to_open = options.load.target.empty()}));
      tensorflow::serving::SignatureDefMap map;
      *map.mutable_signature_def() = model.meta_graph()->signature_def();
      signature_defs = DeterministicBytes(map);
      MR_ASSIGN_OR_RETURN(loaded, ServableModel::Load(model, session, options.load.signatures));
    }  // the meta graph goes
    auto impl = std::make_unique<Impl>(*std::move(loaded), options);
    impl->name = std::move(name);
    impl->version = version;
    impl->num_bytes = FileBytes(fs, directory);
    impl->signature_defs = std::move(signature_defs);
    return std::unique_ptr<ServedModel>(new ServedModel(std::move(impl)));
  });
}

const std::string& ServedModel::name() const { return impl_->name; }
int64_t ServedModel::version() const { return impl_->version; }
int64_t ServedModel::num_bytes() const { return impl_->num_bytes; }
Session* ServedModel::session() const { return impl_->model.session(); }
bool ServedModel::serializes_as_tensor_content() const {
  return impl_->options.serialize_as_tensor_content;
}
int ServedModel::num_output_sets() const { return impl_->sets.size(); }

const std::map<std::string, ModelSignature>& ServedModel::signatures() const {
  return impl_->model.signatures();
}

namespace {

// An empty response after an error.
template <typename Response, typename Body>
Status Answer(absl::string_view where, Response* response, const Body& body) {
  response->Clear();
  Status status = NoExceptions(where, body);
  if (!status.ok()) response->Clear();
  return status;
}

}  // namespace

Status ServedModel::Predict(const PredictRequest& request, const StepBounds& bounds,
                            PredictResponse* response) const {
  return Answer("Predict", response, [&] { return impl_->Predict(request, bounds, response); });
}

StatusOr<std::vector<AliasedTensor>> ServedModel::PredictTensors(
    absl::string_view signature_name, absl::Span<const AliasedTensor> inputs,
    absl::Span<const std::string> filter, const StepBounds& bounds, PredictCaller caller) const {
  return NoExceptions("Predict", [&] {
    return impl_->PredictTensors(signature_name, inputs, filter, bounds, caller);
  });
}

Status ServedModel::Classify(const ClassificationRequest& request, const StepBounds& bounds,
                             ClassificationResponse* response) const {
  return Answer("Classify", response, [&] { return impl_->Classify(request, bounds, response); });
}

Status ServedModel::Regress(const RegressionRequest& request, const StepBounds& bounds,
                            RegressionResponse* response) const {
  return Answer("Regress", response, [&] { return impl_->Regress(request, bounds, response); });
}

Status ServedModel::MultiInference(const MultiInferenceRequest& request, const StepBounds& bounds,
                                   MultiInferenceResponse* response) const {
  return Answer("MultiInference", response,
                [&] { return impl_->MultiInference(request, bounds, response); });
}

Status ServedModel::GetModelMetadata(const GetModelMetadataRequest& request,
                                     GetModelMetadataResponse* response) const {
  return Answer("GetModelMetadata", response,
                [&] { return impl_->GetModelMetadata(request, response); });
}

void FillModelSpec(const ModelSpec& asked, int64_t version, ModelSpec* spec) {
  spec->set_name(asked.name());
  spec->set_signature_name(std::string(SignatureName(asked.signature_name())));
  spec->mutable_version()->set_value(version);
}

}  // namespace millrace
