// SPDX-License-Identifier: Apache-2.0
#include "serving/available_versions.h"

#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/thread_number.h"

namespace millrace {
namespace {

std::shared_ptr<const AvailableVersion> FindIn(const AvailableVersions::Model& model,
                                               std::optional<int64_t> version) {
  if (model.versions.empty()) return nullptr;
  const auto place = version ? model.versions.find(*version) : std::prev(model.versions.end());
  return place == model.versions.end() ? nullptr : place->second;
}

}  // namespace

Status ServableNotFound(absl::string_view model, std::optional<int64_t> version) {
  return absl::NotFoundError(
      version
          ? absl::StrCat("Servable not found for request: Specific(", model, ", ", *version, ")")
          : absl::StrCat("Servable not found for request: Latest(", model, ")"));
}

void DrainedVersions::Add(std::list<void*>* id) {
  MutexLock lock(&mu_);
  ids_.splice(ids_.end(), *id);
  changed_.SignalAll();
}

void* DrainedVersions::Next() {
  MutexLock lock(&mu_);
  while (ids_.empty() && !stopped_) changed_.Wait(&mu_);
  if (ids_.empty()) return nullptr;
  void* const id = ids_.front();
  ids_.pop_front();
  return id;
}

void DrainedVersions::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.SignalAll();
}

AvailableVersion::AvailableVersion(int64_t version, std::shared_ptr<Servable> servable, void* id,
                                   std::shared_ptr<DrainedVersions> drained)
    : version_(version), servable_(std::move(servable)), id_{id}, drained_(std::move(drained)) {}

// First the pointer to the servable: the unload thread, which this wakes, has the last one.
AvailableVersion::~AvailableVersion() {
  servable_.reset();
  drained_->Add(&id_);
}

AvailableVersions::AvailableVersions() { Publish(std::make_shared<const Table>()); }

void AvailableVersions::Publish(std::shared_ptr<const Table> table) {
  // All at once: no client that asks by several threads sees an older version after a newer one.
  std::array<std::shared_ptr<const Table>, kPlaces> tables;
  tables.fill(table);
  for (Place& place : places_) place.mu.Lock();
  for (size_t i = 0; i < kPlaces; ++i) places_[i].table.swap(tables[i]);
  for (Place& place : places_) place.mu.Unlock();
  // The last pointer to the old table goes without the locks.
}

const AvailableVersions::Place& AvailableVersions::place() const {
  return places_[static_cast<size_t>(ThreadNumber()) % kPlaces];
}

StatusOr<std::shared_ptr<const AvailableVersion>> AvailableVersions::Find(
    absl::string_view model, std::optional<int64_t> version) const {
  std::shared_ptr<const AvailableVersion> found;
  {
    const Place& here = place();
    MutexLock lock(&here.mu);
    const auto entry = here.table->find(model);
    if (entry != here.table->end()) found = FindIn(entry->second, version);
  }
  if (found == nullptr) return ServableNotFound(model, version);
  return found;
}

StatusOr<std::shared_ptr<const AvailableVersion>> AvailableVersions::FindLabelled(
    absl::string_view model, absl::string_view label) const {
  std::shared_ptr<const AvailableVersion> found;
  std::optional<int64_t> version;
  {
    const Place& here = place();
    MutexLock lock(&here.mu);
    const auto entry = here.table->find(model);
    if (entry != here.table->end()) {
      const auto labelled = entry->second.labels.find(label);
      if (labelled != entry->second.labels.end()) {
        version = labelled->second;
        found = FindIn(entry->second, version);
      }
    }
  }
  if (!version) {
    return absl::InvalidArgumentError(absl::StrCat("Unrecognized servable version label: ", label));
  }
  if (found == nullptr) return ServableNotFound(model, version);
  return found;
}

}  // namespace millrace
