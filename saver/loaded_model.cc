// SPDX-License-Identifier: Apache-2.0
#include "saver/loaded_model.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "core/did_you_mean.h"

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

StatusOr<NamedTensors> LoadedModel::Predict(const NamedTensors& inputs,
                                            const PredictOptions& options) const {
  MR_ASSIGN_OR_RETURN(const int number, model_.FindSignature(options.signature));
  const ServableSignature& signature = model_.signature(number);
  std::vector<Tensor> values;
  size_t used = 0;
  for (const ServableSignature::Place& place : signature.inputs) {
    const auto given = inputs.find(place.key);
    if (given == inputs.end()) continue;
    values.push_back(given->second);
    ++used;
  }
  if (used < inputs.size()) {
    const std::map<std::string, SignatureTensor>& known = signatures().at(signature.key).inputs();
    for (const auto& [key, tensor] : inputs) {
      if (known.count(key) > 0) continue;
      return InvalidArgument("Predict: input '", key, "' must be one of signature '",
                             options.signature, "': ", Keys(known), Hint(known, key));
    }
  }
  if (used < signature.inputs.size()) {
    for (const ServableSignature::Place& place : signature.inputs) {
      if (inputs.count(place.key) > 0) continue;
      return InvalidArgument("Predict: input '", place.key, "' of signature '", options.signature,
                             "' must be given, got ", Keys(inputs));
    }
  }
  std::vector<Tensor> results(signature.outputs.size());
  MR_RETURN_IF_ERROR(model_.Predict(number, values, absl::MakeSpan(results)));
  NamedTensors out;
  for (size_t i = 0; i < results.size(); ++i) {
    out.emplace(signature.outputs[i].key, std::move(results[i]));
  }
  return out;
}

StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadModelOptions& options) {
  MR_ASSIGN_OR_RETURN(ServableModel model, ServableModel::Load(directory, options));
  return LoadedModel(std::move(model));
}

StatusOr<LoadedModel> LoadModel(const Model& model, const SessionOptions& options,
                                const std::vector<std::string>& signatures) {
  MR_ASSIGN_OR_RETURN(ServableModel servable, ServableModel::Load(model, options, signatures));
  return LoadedModel(std::move(servable));
}

}  // namespace millrace
