// SPDX-License-Identifier: Apache-2.0
#include "saver/loaded_model.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "core/did_you_mean.h"
#include "core/mutex.h"
#include "graph/signature.h"
#include "proto/config.pb.h"
#include "proto/meta_graph.pb.h"

namespace millrace {
namespace {

template <typename Map>
std::string Keys(const Map& map) {
  if (map.empty()) return "none";
  return absl::StrJoin(map, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "'", entry.first, "'");
  });
}

template <typename Map>
std::string Hint(const Map& map, const std::string& name) {
  DidYouMean best(name);
  for (const auto& [key, value] : map) best.Consider(key);
  return best.Hint();
}

}  // namespace

struct LoadedModel::Impl {
  // A signature as it runs: tensors by position.
  struct Prepared {
    std::vector<std::string> outputs;  // keys
    std::unique_ptr<PreparedStep> step;
  };

  ~Impl() {
    if (session != nullptr) session->Close().IgnoreError();
  }

  StatusOr<const Prepared*> Prepare(const std::string& key, const ModelSignature& signature);

  std::unique_ptr<Session> session;
  std::map<std::string, ModelSignature> signatures;

  Mutex mu;
  // Entries stay as they are once made.
  std::map<std::string, Prepared> prepared ABSL_GUARDED_BY(mu);
};

StatusOr<const LoadedModel::Impl::Prepared*> LoadedModel::Impl::Prepare(
    const std::string& key, const ModelSignature& signature) {
  MutexLock lock(&mu);
  const auto found = prepared.find(key);
  if (found != prepared.end()) return &found->second;
  Prepared made;
  RunSignature names;
  for (const auto& [name, tensor] : signature.inputs()) names.feeds.push_back(tensor.name());
  for (const auto& [name, tensor] : signature.outputs()) {
    made.outputs.push_back(name);
    names.fetches.push_back(tensor.name());
  }
  MR_ASSIGN_OR_RETURN(made.step, session->Prepare(names));
  return &prepared.emplace(key, std::move(made)).first->second;
}

LoadedModel::LoadedModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoadedModel::LoadedModel(LoadedModel&&) noexcept = default;
LoadedModel& LoadedModel::operator=(LoadedModel&&) noexcept = default;
LoadedModel::~LoadedModel() = default;

const std::map<std::string, ModelSignature>& LoadedModel::signatures() const {
  return impl_->signatures;
}

Session* LoadedModel::session() const { return impl_->session.get(); }

StatusOr<NamedTensors> LoadedModel::Predict(const NamedTensors& inputs,
                                            const PredictOptions& options) const {
  const auto found = impl_->signatures.find(options.signature);
  if (found == impl_->signatures.end()) {
    return InvalidArgument("Predict: signature '", options.signature, "' must be one of ",
                           Keys(impl_->signatures), Hint(impl_->signatures, options.signature));
  }
  const ModelSignature& signature = found->second;
  for (const auto& [key, tensor] : inputs) {
    if (signature.inputs().count(key) > 0) continue;
    return InvalidArgument("Predict: input '", key, "' must be one of signature '",
                           options.signature, "': ", Keys(signature.inputs()),
                           Hint(signature.inputs(), key));
  }
  std::vector<Tensor> values;
  for (const auto& [key, tensor] : signature.inputs()) {
    const auto given = inputs.find(key);
    if (given == inputs.end()) {
      return InvalidArgument("Predict: input '", key, "' of signature '", options.signature,
                             "' must be given, got ", Keys(inputs));
    }
    const Tensor& value = given->second;
    if (tensor.dtype() != DT_INVALID && value.dtype() != tensor.dtype()) {
      return InvalidArgument("Predict: input '", key, "' must be ", tensor.dtype(), ", got ",
                             value.dtype());
    }
    if (!tensor.shape().IsCompatibleWith(value.shape())) {
      return InvalidArgument("Predict: input '", key, "' must have shape ", tensor.shape(),
                             ", got ", value.shape());
    }
    values.push_back(value);
  }
  for (const auto* tensors : {&signature.inputs(), &signature.outputs()}) {
    for (const auto& [key, tensor] : *tensors) {
      if (!tensor.name().empty()) continue;
      return Unimplemented("Predict: '", key, "' of signature '", options.signature,
                           "' must be a dense tensor, got a sparse one; run the session()");
    }
  }
  MR_ASSIGN_OR_RETURN(const Impl::Prepared* const prepared,
                      impl_->Prepare(options.signature, signature));
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> results, prepared->step->Run(values));
  NamedTensors out;
  for (size_t i = 0; i < results.size(); ++i) {
    out.emplace(prepared->outputs[i], std::move(results[i]));
  }
  return out;
}

StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadModelOptions& options) {
  SessionOptions session_options = options.session;
  session_options.target = options.target;
  // On a server other sessions may have variables of these names.
  tensorflow::ConfigProto config = ConfigProtoOf(session_options.config);
  config.set_isolate_session_state(true);
  session_options.config = SessionConfigOf(std::move(config));
  MR_ASSIGN_OR_RETURN(SavedModelBundle bundle, LoadSavedModel(session_options, directory,
                                                              options.tags, options.file_system));
  auto impl = std::make_unique<LoadedModel::Impl>();
  impl->session = std::move(bundle.session);
  for (const auto& [key, def] : bundle.meta_graph_def->signature_def()) {
    if (key != kInitOpSignature) impl->signatures.emplace(key, def);
  }
  return LoadedModel(std::move(impl));
}

}  // namespace millrace
