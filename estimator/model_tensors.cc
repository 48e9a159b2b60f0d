// SPDX-License-Identifier: Apache-2.0
#include "estimator/model_tensors.h"

#include "absl/strings/str_join.h"
#include "core/status.h"

namespace millrace::estimator_internal {
namespace {

std::string Names(const TensorMap& tensors) {
  if (tensors.empty()) return "none";
  return absl::StrJoin(tensors, ", ", [](std::string* out, const auto& tensor) {
    absl::StrAppend(out, "'", tensor.first, "'");
  });
}

}  // namespace

Output FindTensor(const char* role, const TensorMap& tensors, const std::optional<Scope>& scope,
                  const NameAt& name) {
  const auto found = tensors.find(std::string(name.name));
  if (found != tensors.end()) return found->second;
  if (scope) {
    scope->UpdateStatus(
        InvalidArgument("Estimator: ", role, "['", name.name, "'] must be one of those given, ",
                        Names(tensors), ", got '", name.name, "'"),
        name.where);
  }
  return Output();
}

Output OnlyTensor(const char* role, const TensorMap& tensors, const std::optional<Scope>& scope,
                  std::source_location where) {
  if (tensors.size() == 1) return tensors.begin()->second;
  if (scope) {
    scope->UpdateStatus(InvalidArgument("Estimator: ", role,
                                        " used as one tensor must be one, got ", Names(tensors)),
                        where);
  }
  return Output();
}

}  // namespace millrace::estimator_internal
