// SPDX-License-Identifier: Apache-2.0
#include "saver/signature_outputs.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/did_you_mean.h"
#include "proto/meta_graph.pb.h"

namespace millrace {
namespace {

// NotFound, with the keys of `map`.
template <typename Map>
Status NoneOf(const Map& map, absl::string_view kind, absl::string_view name) {
  DidYouMean best(name);
  for (const auto& [key, value] : map) best.Consider(key);
  const std::string keys = absl::StrJoin(map, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "'", entry.first, "'");
  });
  return absl::NotFoundError(absl::StrCat("Signature: ", kind, " '", name, "' must be one of ",
                                          map.empty() ? "none" : keys, best.Hint()));
}

StatusOr<Output> TensorOf(const Scope& scope, const std::map<std::string, SignatureTensor>& map,
                          absl::string_view kind, absl::string_view name) {
  const auto found = map.find(std::string(name));
  if (found == map.end()) return NoneOf(map, kind, name);
  const std::string& tensor = found->second.name();
  if (tensor.empty()) {
    return InvalidArgument("Signature: ", kind, " '", name,
                           "' must be one tensor, got one that is sparse or has no name");
  }
  const StatusOr<Output> output = scope.Find(tensor);
  if (!output.ok()) {
    return InvalidArgument("Signature: ", kind, " '", name,
                           "' must be a tensor of the graph, got '", tensor, "'");
  }
  return output;
}

}  // namespace

StatusOr<ModelSignature> SignatureOf(const tensorflow::MetaGraphDef& meta, absl::string_view key) {
  std::map<std::string, const tensorflow::SignatureDef*> signatures;  // in the order of messages
  for (const auto& [name, signature] : meta.signature_def()) {
    if (name != kInitOpSignature) signatures[name] = &signature;
  }
  const auto found = signatures.find(std::string(key));
  if (found == signatures.end()) return NoneOf(signatures, "key", key);
  return ModelSignature(*found->second);
}

StatusOr<Output> InputOf(const Scope& scope, const ModelSignature& signature,
                         absl::string_view name) {
  return TensorOf(scope, signature.inputs(), "input", name);
}

StatusOr<Output> OutputOf(const Scope& scope, const ModelSignature& signature,
                          absl::string_view name) {
  return TensorOf(scope, signature.outputs(), "output", name);
}

}  // namespace millrace
