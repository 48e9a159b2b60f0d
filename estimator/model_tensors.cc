// SPDX-License-Identifier: Apache-2.0
#include "estimator/model_tensors.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/status.h"

namespace millrace::estimator_internal {
namespace {

std::string Names(const TensorsByName& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors.dense) names.push_back(absl::StrCat("'", name, "'"));
  for (const auto& [name, tensor] : tensors.sparse) {
    names.push_back(absl::StrCat("'", name, "' (sparse)"));
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

template <typename... Parts>
void Refuse(const TensorsByName& tensors, const NameAt& name, const Parts&... parts) {
  if (!tensors.scope) return;
  tensors.scope->UpdateStatus(
      InvalidArgument("Estimator: ", tensors.role, "['", name.name, "'] must be ", parts...),
      name.where);
}

}  // namespace

Output FindTensor(const TensorsByName& tensors, const NameAt& name) {
  const std::string key(name.name);
  const auto found = tensors.dense.find(key);
  if (found != tensors.dense.end()) return found->second;
  if (tensors.sparse.count(key) > 0) {
    Refuse(tensors, name, "a dense tensor here, got a sparse one; ask for it by ", tensors.role,
           ".sparse");
  } else {
    Refuse(tensors, name, "one of those given, ", Names(tensors), ", got '", name.name, "'");
  }
  return Output();
}

SparseTensor FindSparseTensor(const TensorsByName& tensors, const NameAt& name) {
  const std::string key(name.name);
  const auto found = tensors.sparse.find(key);
  if (found != tensors.sparse.end()) return found->second;
  if (tensors.dense.count(key) > 0) {
    Refuse(tensors, name, "a sparse tensor here, got a dense one");
  } else {
    Refuse(tensors, name, "one of those given, ", Names(tensors), ", got '", name.name, "'");
  }
  return SparseTensor();
}

Output OnlyTensor(const TensorsByName& tensors, std::source_location where) {
  if (tensors.dense.size() == 1 && tensors.sparse.empty()) return tensors.dense.begin()->second;
  if (tensors.scope) {
    tensors.scope->UpdateStatus(
        InvalidArgument("Estimator: ", tensors.role, " used as one tensor must be one",
                        tensors.sparse.empty() ? "" : " dense one", ", got ", Names(tensors)),
        where);
  }
  return Output();
}

}  // namespace millrace::estimator_internal
