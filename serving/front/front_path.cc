// SPDX-License-Identifier: Apache-2.0
#include "serving/front/front_path.h"

#include <optional>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "serving/front/model_catalog.h"

namespace millrace {
namespace {

using Kind = FrontTarget::Kind;

// By what the path names; none where the method or the verb is another.
std::optional<Kind> KindOf(absl::string_view method, absl::string_view verb, size_t num_parts) {
  const bool post = method == "POST", get = method == "GET", remove = method == "DELETE";
  if (!verb.empty()) {
    if (post && verb == "predict" && (num_parts == 2 || num_parts == 4)) return Kind::kPredict;
    if (post && verb == "setDefault" && num_parts == 4) return Kind::kSetDefault;
    return std::nullopt;
  }
  switch (num_parts) {
    case 1:
      if (get) return Kind::kListModels;
      if (post) return Kind::kCreateModel;
      break;
    case 2:
      if (get) return Kind::kGetModel;
      if (remove) return Kind::kDeleteModel;
      break;
    case 3:
      if (get) return Kind::kListVersions;
      if (post) return Kind::kCreateVersion;
      break;
    case 4:
      if (get) return Kind::kGetVersion;
      if (remove) return Kind::kDeleteVersion;
      break;
    default:
      break;
  }
  return std::nullopt;
}

std::optional<FrontTarget> TargetOf(absl::string_view method, absl::string_view path,
                                    const std::string& default_project) {
  if (!absl::ConsumePrefix(&path, "/v1/")) return std::nullopt;
  absl::string_view verb;
  if (const size_t colon = path.rfind(':'); colon != absl::string_view::npos) {
    verb = path.substr(colon + 1);
    path = path.substr(0, colon);
    if (verb.empty()) return std::nullopt;
  }
  std::vector<std::string> parts = absl::StrSplit(path, '/');
  FrontTarget target;
  target.project = default_project;
  if (parts.size() > 2 && parts[0] == "projects") {
    target.project = parts[1];
    parts.erase(parts.begin(), parts.begin() + 2);
  }
  const bool of_metadata = method == "GET" && verb.empty() &&
                           (parts.size() == 3 || parts.size() == 5) && parts.back() == "metadata";
  if (of_metadata) parts.pop_back();
  if (parts[0] != "models" || (parts.size() > 2 && parts[2] != "versions")) return std::nullopt;
  const std::optional<Kind> kind = KindOf(method, verb, parts.size());
  if (!kind.has_value() || !CheckCatalogName("Project", target.project).ok()) return std::nullopt;
  target.kind = of_metadata ? Kind::kMetadata : *kind;
  if (parts.size() > 1) target.model = parts[1];
  if (parts.size() > 3) target.version = parts[3];
  for (size_t i = 1; i < parts.size(); i += 2) {
    if (!CheckCatalogName("Name", parts[i]).ok()) return std::nullopt;
  }
  return target;
}

}  // namespace

StatusOr<FrontTarget> ParseFrontPath(absl::string_view method, absl::string_view path,
                                     const std::string& default_project) {
  if (std::optional<FrontTarget> target = TargetOf(method, path, default_project)) {
    return *std::move(target);
  }
  return InvalidArgument("Malformed request: ", method.substr(0, 20), " ", path.substr(0, 1024));
}

}  // namespace millrace
