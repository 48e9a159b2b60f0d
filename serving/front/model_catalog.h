// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_FRONT_MODEL_CATALOG_H_
#define MILLRACE_SERVING_FRONT_MODEL_CATALOG_H_

// ModelCatalog: which models and versions a front has, and which version is a model's default. It
// is a file, written as a whole before a change is told to anyone.
//
//   project -> model -> version      a version: a directory with a SavedModel, and how many nodes
//
// Always:
//   * A model that has versions has a default version: its first one, until another is set.
//   * The default version goes last; a model goes only without versions.
//   * A version never changes, and its `id` is never given again, not even to one of its name.
//   * After a kill at any moment the file is the old or the new one.
// Names are those of the hosted service: letters, digits and underscores, a letter first, at most
// kMaxNameBytes. Fields that the catalog does not know are refused.
//
// Thread-safety: all methods, from any thread; changes one at a time.
// Failure: InvalidArgument for what can never be; NotFound and AlreadyExists for names;
// FailedPrecondition for what must be done in another order; of Open DataLoss for a file that is no
// catalog. After an error nothing has changed.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

struct CatalogVersion {
  int64_t id = 0;
  std::string directory;  // absolute, has a SavedModel
  std::string description = "";
  int64_t create_seconds = 0;  // since the epoch
  int min_nodes = 0;
  int max_nodes = 2;
  int concurrency_target = 8;  // requests per node
  int idle_seconds = 300;
};

struct CatalogModel {
  std::string description = "";
  std::string default_version = "";  // "": it has none
  int64_t create_seconds = 0;
  std::map<std::string, CatalogVersion> versions = {};
};

struct CatalogContents {
  int64_t next_id = 1;
  // By project and name.
  std::map<std::pair<std::string, std::string>, CatalogModel> models = {};

  // NotFound: "Model 'm' of project 'p': it must exist, got no such model".
  StatusOr<const CatalogModel*> FindModel(const std::string& project,
                                          const std::string& model) const;
  StatusOr<const CatalogVersion*> FindVersion(const std::string& project, const std::string& model,
                                              const std::string& version) const;
  // The default version of the model; FailedPrecondition when it has none.
  StatusOr<std::string> DefaultVersion(const std::string& project, const std::string& model) const;
};

class ModelCatalog {
 public:
  static constexpr size_t kMaxNameBytes = 128;
  static constexpr int kMaxNodes = 64;

  struct Options {
    FileSystem* file_system = FileSystem::Default();  // outlives the catalog
    std::string path;                                 // absent: no models yet
    // Seconds since the epoch.
    std::function<int64_t()> now;
    // Is called after a change is in the file and before readers see it; one call at a time.
    std::function<void(const CatalogContents&)> on_change = nullptr;
  };
  static StatusOr<std::unique_ptr<ModelCatalog>> Open(Options options);

  // As it is now; never changes.
  std::shared_ptr<const CatalogContents> contents() const;

  // `body`: {"name": "census"}; also description, and fields of the hosted service that mean
  // nothing here: regions, labels, onlinePredictionLogging. Returns the name.
  StatusOr<std::string> CreateModel(const std::string& project, absl::string_view body);
  Status DeleteModel(const std::string& project, const std::string& model);
  // `body`: {"name": "v1", "deploymentUri": "/models/census/1"}; also description, minNodes,
  // maxNodes (these two also in autoScaling), concurrencyTarget, idleSeconds, and without a meaning
  // runtimeVersion, pythonVersion, machineType, labels; framework must be TENSORFLOW.
  StatusOr<std::string> CreateVersion(const std::string& project, const std::string& model,
                                      absl::string_view body);
  Status DeleteVersion(const std::string& project, const std::string& model,
                       const std::string& version);
  Status SetDefault(const std::string& project, const std::string& model,
                    const std::string& version);

 private:
  explicit ModelCatalog(Options options) : options_(std::move(options)) {}
  // Copies, changes, writes, tells, publishes.
  Status Change(const std::function<Status(CatalogContents*)>& change);

  const Options options_;
  Mutex change_mu_;  // one change at a time; before mu_
  mutable Mutex mu_;
  std::shared_ptr<const CatalogContents> contents_ ABSL_GUARDED_BY(mu_);
};

// InvalidArgument unless it may name a project ("where": "Project"), a model or a version. Projects
// may have dashes, as those of the hosted service.
Status CheckCatalogName(absl::string_view where, absl::string_view name);

// The file's text, and back; DataLoss for what is no catalog.
std::string CatalogText(const CatalogContents& contents);
StatusOr<CatalogContents> ReadCatalog(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_SERVING_FRONT_MODEL_CATALOG_H_
