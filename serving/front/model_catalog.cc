// SPDX-License-Identifier: Apache-2.0
#include "serving/front/model_catalog.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/did_you_mean.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;  // of the file
constexpr size_t kMaxShown = 200;
constexpr size_t kMaxDescription = 10'000;
constexpr size_t kMaxDirectory = 4'000;
constexpr int kMaxTarget = 1'000;
constexpr int kMaxIdleSeconds = 30 * 86'400;

std::string Shown(absl::string_view text) { return std::string(text.substr(0, kMaxShown)); }

// For messages.
std::string ValueText(const Json& value) {
  return Shown(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The fields of one object; all must be read or be known to mean nothing.
class Fields {
 public:
  Fields(std::string where, const Json& object) : where_(std::move(where)), object_(object) {}

  Status Text(const char* name, size_t max_bytes, std::string* out) {
    const Json* const value = Find(name);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_string() || value->get_ref<const std::string&>().size() > max_bytes) {
      return InvalidArgument(where_, ": ", name, " must be a string of at most ", max_bytes,
                             " bytes, got ", ValueText(*value));
    }
    *out = value->get<std::string>();
    return absl::OkStatus();
  }
  template <typename Integer>
  Status Number(const char* name, int64_t low, int64_t high, Integer* out) {
    const Json* const value = Find(name);
    if (value == nullptr) return absl::OkStatus();
    const bool fits = value->is_number_unsigned()
                          ? value->get<uint64_t>() <= static_cast<uint64_t>(high)
                          : value->is_number_integer();
    if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) {
      return InvalidArgument(where_, ": ", name, " must be an integer of ", low, " to ", high,
                             ", got ", ValueText(*value));
    }
    *out = static_cast<Integer>(value->get<int64_t>());
    return absl::OkStatus();
  }
  const Json* Find(const char* name) {
    known_.insert(name);
    const auto it = object_.find(name);
    return it == object_.end() ? nullptr : &*it;
  }
  void Ignore(std::initializer_list<const char*> names) {
    for (const char* const name : names) known_.insert(name);
  }
  Status CheckAllKnown() const {
    for (const auto& [name, value] : object_.items()) {
      if (known_.count(name) > 0) continue;
      DidYouMean nearest(name);
      for (const std::string& known : known_) nearest.Consider(known);
      return InvalidArgument(where_, ": its fields must be ", absl::StrJoin(known_, ", "),
                             ", got '", Shown(name), "'", nearest.Hint());
    }
    return absl::OkStatus();
  }

 private:
  const std::string where_;
  const Json& object_;
  std::set<std::string> known_;
};

StatusOr<Json> ParseObject(absl::string_view where, absl::string_view text) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return InvalidArgument(
      where, ": it must be a JSON object, got ",
      json.is_discarded() ? absl::StrCat("'", Shown(text), "'") : ValueText(json));
}

Status ReadNodes(Fields* fields, CatalogVersion* version) {
  MR_RETURN_IF_ERROR(fields->Number("minNodes", 0, ModelCatalog::kMaxNodes, &version->min_nodes));
  return fields->Number("maxNodes", 1, ModelCatalog::kMaxNodes, &version->max_nodes);
}

// What a version is in a request and in the file.
Status ReadVersion(const std::string& where, Fields* fields, CatalogVersion* version) {
  MR_RETURN_IF_ERROR(fields->Text("deploymentUri", kMaxDirectory, &version->directory));
  MR_RETURN_IF_ERROR(fields->Text("description", kMaxDescription, &version->description));
  version->max_nodes = 0;  // none was said
  if (const Json* const scaling = fields->Find("autoScaling"); scaling != nullptr) {
    const std::string part = absl::StrCat(where, ": autoScaling");
    if (!scaling->is_object()) {
      return InvalidArgument(part, " must be an object, got ", ValueText(*scaling));
    }
    Fields nodes(part, *scaling);
    MR_RETURN_IF_ERROR(ReadNodes(&nodes, version));
    MR_RETURN_IF_ERROR(nodes.CheckAllKnown());
  }
  MR_RETURN_IF_ERROR(ReadNodes(fields, version));
  if (version->max_nodes == 0) {
    version->max_nodes = std::max(CatalogVersion().max_nodes, version->min_nodes);
  }
  if (version->max_nodes < version->min_nodes) {
    return InvalidArgument(where, ": maxNodes must be >= minNodes, got ", version->max_nodes,
                           " and ", version->min_nodes);
  }
  MR_RETURN_IF_ERROR(
      fields->Number("concurrencyTarget", 1, kMaxTarget, &version->concurrency_target));
  return fields->Number("idleSeconds", 1, kMaxIdleSeconds, &version->idle_seconds);
}

Json VersionJson(const CatalogVersion& version) {
  return {{"deploymentUri", version.directory},
          {"description", version.description},
          {"minNodes", version.min_nodes},
          {"maxNodes", version.max_nodes},
          {"concurrencyTarget", version.concurrency_target},
          {"idleSeconds", version.idle_seconds},
          {"id", version.id},
          {"createSeconds", version.create_seconds}};
}

Status CheckDirectory(FileSystem* fs, const std::string& where, const std::string& directory) {
  if (directory.empty() || directory[0] != '/' || directory.find('\0') != std::string::npos) {
    return InvalidArgument(where, ": deploymentUri must be an absolute directory, got '",
                           Shown(directory), "'");
  }
  for (const char* const file : {"saved_model.pb", "saved_model.pbtxt"}) {
    if (fs->FileExists(JoinPath(directory, file))) return absl::OkStatus();
  }
  return InvalidArgument(where, ": deploymentUri must have a saved_model.pb, got '",
                         Shown(directory), "' without one");
}

std::string ModelWhere(const std::string& project, const std::string& model) {
  return absl::StrCat("Model '", Shown(model), "' of project '", Shown(project), "'");
}

}  // namespace

Status CheckCatalogName(absl::string_view where, absl::string_view name) {
  const bool is_project = where == "Project";
  bool is_good = !name.empty() && name.size() <= ModelCatalog::kMaxNameBytes &&
                 absl::ascii_isalpha(static_cast<unsigned char>(name[0]));
  for (const char c : name) {
    is_good = is_good && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
                          (is_project && c == '-'));
  }
  if (is_good) return absl::OkStatus();
  return InvalidArgument(where, ": its name must be at most ", ModelCatalog::kMaxNameBytes,
                         " letters, digits", is_project ? ", dashes" : "",
                         " and underscores, a letter first, got '", Shown(name), "'");
}

StatusOr<const CatalogModel*> CatalogContents::FindModel(const std::string& project,
                                                         const std::string& model) const {
  const auto it = models.find({project, model});
  if (it != models.end()) return &it->second;
  return absl::NotFoundError(
      absl::StrCat(ModelWhere(project, model), ": it must exist, got no such model"));
}

StatusOr<const CatalogVersion*> CatalogContents::FindVersion(const std::string& project,
                                                             const std::string& model,
                                                             const std::string& version) const {
  MR_ASSIGN_OR_RETURN(const CatalogModel* const found, FindModel(project, model));
  const auto it = found->versions.find(version);
  if (it != found->versions.end()) return &it->second;
  return absl::NotFoundError(absl::StrCat(ModelWhere(project, model), ": version '", Shown(version),
                                          "' must exist, got no such version"));
}

StatusOr<std::string> CatalogContents::DefaultVersion(const std::string& project,
                                                      const std::string& model) const {
  MR_ASSIGN_OR_RETURN(const CatalogModel* const found, FindModel(project, model));
  if (!found->default_version.empty()) return found->default_version;
  return FailedPrecondition(ModelWhere(project, model), ": it must have a version, got none");
}

std::string CatalogText(const CatalogContents& contents) {
  Json models = Json::array();
  for (const auto& [key, model] : contents.models) {
    Json versions = Json::object();
    for (const auto& [name, version] : model.versions) versions[name] = VersionJson(version);
    models.push_back({{"project", key.first},
                      {"name", key.second},
                      {"description", model.description},
                      {"createSeconds", model.create_seconds},
                      {"defaultVersion", model.default_version},
                      {"versions", std::move(versions)}});
  }
  const Json json = {
      {"format", kFormat}, {"nextId", contents.next_id}, {"models", std::move(models)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

constexpr int64_t kMaxInt64 = INT64_MAX;

Status ReadModel(const Json& json, CatalogContents* contents) {
  const std::string where = "a model";
  if (!json.is_object()) return InvalidArgument(where, " must be an object");
  Fields fields(where, json);
  std::string project, name;
  CatalogModel model;
  MR_RETURN_IF_ERROR(fields.Text("project", ModelCatalog::kMaxNameBytes, &project));
  MR_RETURN_IF_ERROR(fields.Text("name", ModelCatalog::kMaxNameBytes, &name));
  MR_RETURN_IF_ERROR(CheckCatalogName("Project", project));
  MR_RETURN_IF_ERROR(CheckCatalogName("Model", name));
  MR_RETURN_IF_ERROR(fields.Text("description", kMaxDescription, &model.description));
  MR_RETURN_IF_ERROR(fields.Number("createSeconds", 0, kMaxInt64, &model.create_seconds));
  MR_RETURN_IF_ERROR(
      fields.Text("defaultVersion", ModelCatalog::kMaxNameBytes, &model.default_version));
  const Json* const versions = fields.Find("versions");
  if (versions == nullptr || !versions->is_object()) {
    return InvalidArgument(where, ": versions must be an object");
  }
  MR_RETURN_IF_ERROR(fields.CheckAllKnown());
  for (const auto& [version_name, value] : versions->items()) {
    MR_RETURN_IF_ERROR(CheckCatalogName("Version", version_name));
    if (!value.is_object()) return InvalidArgument("a version must be an object");
    const std::string version_where = absl::StrCat("version '", version_name, "'");
    Fields version_fields(version_where, value);
    CatalogVersion version;
    MR_RETURN_IF_ERROR(ReadVersion(version_where, &version_fields, &version));
    MR_RETURN_IF_ERROR(version_fields.Number("id", 1, contents->next_id - 1, &version.id));
    MR_RETURN_IF_ERROR(
        version_fields.Number("createSeconds", 0, kMaxInt64, &version.create_seconds));
    MR_RETURN_IF_ERROR(version_fields.CheckAllKnown());
    model.versions[version_name] = std::move(version);
  }
  if (model.versions.empty() ? !model.default_version.empty()
                             : model.versions.count(model.default_version) == 0) {
    return InvalidArgument(ModelWhere(project, name), ": its default version must be one of its ",
                           model.versions.size(), " version(s), got '", model.default_version, "'");
  }
  contents->models[{project, name}] = std::move(model);
  return absl::OkStatus();
}

Status ReadModels(const Json& models, CatalogContents* contents) {
  std::set<int64_t> ids;
  for (const Json& model : models) MR_RETURN_IF_ERROR(ReadModel(model, contents));
  for (const auto& [key, model] : contents->models) {
    for (const auto& [name, version] : model.versions) {
      if (version.id > 0 && ids.insert(version.id).second) continue;
      return InvalidArgument(ModelWhere(key.first, key.second), ": version '", name,
                             "' must have an id of its own, got ", version.id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<CatalogContents> ReadCatalog(absl::string_view text) {
  const auto read = [text]() -> StatusOr<CatalogContents> {
    MR_ASSIGN_OR_RETURN(const Json json, ParseObject("it", text));
    Fields fields("it", json);
    CatalogContents contents;
    int format = 0;
    MR_RETURN_IF_ERROR(fields.Number("format", kFormat, kFormat, &format));
    MR_RETURN_IF_ERROR(fields.Number("nextId", 1, kMaxInt64, &contents.next_id));
    const Json* const models = fields.Find("models");
    if (format == 0 || models == nullptr || !models->is_array()) {
      return InvalidArgument("it must have format, nextId and a list of models");
    }
    MR_RETURN_IF_ERROR(fields.CheckAllKnown());
    MR_RETURN_IF_ERROR(ReadModels(*models, &contents));
    return contents;
  };
  StatusOr<CatalogContents> contents = read();
  if (contents.ok()) return contents;
  return absl::DataLossError(absl::StrCat("Catalog of models: ", contents.status().message()));
}

StatusOr<std::unique_ptr<ModelCatalog>> ModelCatalog::Open(Options options) {
  CatalogContents contents;
  if (options.file_system->FileExists(options.path)) {
    MR_ASSIGN_OR_RETURN(const std::string text,
                        ReadFileToString(options.file_system, options.path));
    StatusOr<CatalogContents> read = ReadCatalog(text);
    if (!read.ok()) return Prefixed(absl::StrCat("'", options.path, "'"), read.status());
    contents = *std::move(read);
  }
  auto catalog = std::unique_ptr<ModelCatalog>(new ModelCatalog(std::move(options)));
  MutexLock lock(&catalog->mu_);
  catalog->contents_ = std::make_shared<const CatalogContents>(std::move(contents));
  return catalog;
}

std::shared_ptr<const CatalogContents> ModelCatalog::contents() const {
  MutexLock lock(&mu_);
  return contents_;
}

Status ModelCatalog::Change(const std::function<Status(CatalogContents*)>& change) {
  MutexLock changing(&change_mu_);
  auto next = std::make_shared<CatalogContents>(*contents());
  MR_RETURN_IF_ERROR(change(next.get()));
  MR_RETURN_IF_ERROR(WriteFileAtomically(options_.file_system, options_.path, CatalogText(*next)));
  if (options_.on_change) options_.on_change(*next);
  MutexLock lock(&mu_);
  contents_ = std::move(next);
  return absl::OkStatus();
}

StatusOr<std::string> ModelCatalog::CreateModel(const std::string& project,
                                                absl::string_view body) {
  MR_RETURN_IF_ERROR(CheckCatalogName("Project", project));
  MR_ASSIGN_OR_RETURN(const Json json, ParseObject("Model", body));
  Fields fields("Model", json);
  std::string name;
  CatalogModel model;
  MR_RETURN_IF_ERROR(fields.Text("name", kMaxNameBytes, &name));
  MR_RETURN_IF_ERROR(fields.Text("description", kMaxDescription, &model.description));
  fields.Ignore({"regions", "labels", "onlinePredictionLogging", "onlinePredictionConsoleLogging"});
  MR_RETURN_IF_ERROR(fields.CheckAllKnown());
  MR_RETURN_IF_ERROR(CheckCatalogName("Model", name));
  model.create_seconds = options_.now();
  MR_RETURN_IF_ERROR(Change([&](CatalogContents* contents) -> Status {
    if (contents->models.try_emplace({project, name}, std::move(model)).second) {
      return absl::OkStatus();
    }
    return absl::AlreadyExistsError(absl::StrCat(
        ModelWhere(project, name), ": its name must be new, got that of another model"));
  }));
  return name;
}

Status ModelCatalog::DeleteModel(const std::string& project, const std::string& model) {
  return Change([&](CatalogContents* contents) -> Status {
    MR_ASSIGN_OR_RETURN(const CatalogModel* const found, contents->FindModel(project, model));
    if (!found->versions.empty()) {
      return FailedPrecondition(ModelWhere(project, model),
                                ": it must have no versions to be deleted, got ",
                                found->versions.size(), "; delete them first");
    }
    contents->models.erase({project, model});
    return absl::OkStatus();
  });
}

StatusOr<std::string> ModelCatalog::CreateVersion(const std::string& project,
                                                  const std::string& model,
                                                  absl::string_view body) {
  MR_ASSIGN_OR_RETURN(const Json json, ParseObject("Version", body));
  Fields fields("Version", json);
  std::string name, framework = "TENSORFLOW";
  CatalogVersion version;
  MR_RETURN_IF_ERROR(fields.Text("name", kMaxNameBytes, &name));
  MR_RETURN_IF_ERROR(ReadVersion("Version", &fields, &version));
  MR_RETURN_IF_ERROR(fields.Text("framework", kMaxNameBytes, &framework));
  fields.Ignore({"runtimeVersion", "pythonVersion", "machineType", "labels"});
  MR_RETURN_IF_ERROR(fields.CheckAllKnown());
  MR_RETURN_IF_ERROR(CheckCatalogName("Version", name));
  if (framework != "TENSORFLOW") {
    return InvalidArgument("Version: framework must be TENSORFLOW, got '", Shown(framework), "'");
  }
  // A model that is not there is said first.
  MR_RETURN_IF_ERROR(contents()->FindModel(project, model).status());
  MR_RETURN_IF_ERROR(CheckDirectory(options_.file_system, "Version", version.directory));
  version.create_seconds = options_.now();
  MR_RETURN_IF_ERROR(Change([&](CatalogContents* contents) -> Status {
    MR_RETURN_IF_ERROR(contents->FindModel(project, model).status());
    CatalogModel& found = contents->models[{project, model}];
    if (found.versions.count(name) > 0) {
      return absl::AlreadyExistsError(absl::StrCat(ModelWhere(project, model), ": version '", name,
                                                   "' must be new, got the name of another one"));
    }
    version.id = contents->next_id++;
    found.versions[name] = std::move(version);
    if (found.default_version.empty()) found.default_version = name;
    return absl::OkStatus();
  }));
  return name;
}

Status ModelCatalog::DeleteVersion(const std::string& project, const std::string& model,
                                   const std::string& version) {
  return Change([&](CatalogContents* contents) -> Status {
    MR_RETURN_IF_ERROR(contents->FindVersion(project, model, version).status());
    CatalogModel& found = contents->models[{project, model}];
    if (found.default_version == version && found.versions.size() > 1) {
      return FailedPrecondition(ModelWhere(project, model), ": version '", version,
                                "' must not be the default to be deleted while there are others, "
                                "got the default of ",
                                found.versions.size(), "; set another default first");
    }
    found.versions.erase(version);
    if (found.versions.empty()) found.default_version.clear();
    return absl::OkStatus();
  });
}

Status ModelCatalog::SetDefault(const std::string& project, const std::string& model,
                                const std::string& version) {
  return Change([&](CatalogContents* contents) -> Status {
    MR_RETURN_IF_ERROR(contents->FindVersion(project, model, version).status());
    contents->models[{project, model}].default_version = version;
    return absl::OkStatus();
  });
}

}  // namespace millrace
