// SPDX-License-Identifier: Apache-2.0
#include "runtime/resource_manager.h"

#include <algorithm>

#include "core/dcheck.h"
#include "core/hash64.h"
#include "runtime/holds_for_sessions.h"

namespace millrace {
namespace {

std::string ContainerName(absl::string_view container) {
  return std::string(container.empty() ? ResourceManager::kDefaultContainer : container);
}

Status DoesNotExist(absl::string_view container, absl::string_view name, absl::string_view type) {
  return absl::NotFoundError(
      absl::StrCat("Resource ", container, "/", name, "/", type, " does not exist."));
}

}  // namespace

ResourceManager::ResourceManager(std::string device_name) : device_name_(std::move(device_name)) {}

ResourceManager::~ResourceManager() { ClearAll(); }

uint64_t ResourceManager::HashTypeName(absl::string_view name) { return Hash64(name); }

Status ResourceManager::CheckHandle(const ResourceHandle& handle, uint64_t hash,
                                    absl::string_view type) const {
  if (handle.device != device_name_) {
    return InvalidArgument("Resource '", handle.name, "' must be used on its device '",
                           handle.device, "', got '", device_name_, "'");
  }
  if (handle.hash_code != hash) {
    return InvalidArgument("Resource '", handle.name, "' must be a ", type, ", got a handle of a ",
                           handle.type_name.empty() ? "<unknown type>" : handle.type_name);
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<Resource>> ResourceManager::ResolveAny(const ResourceHandle& handle,
                                                                absl::string_view type_name) const {
  // One that holds its resource was made here, by MakeHandle: its hash is that of its type's name.
  const bool is_of_type = handle.resource != nullptr && handle.type_name == type_name;
  const uint64_t hash = is_of_type ? handle.hash_code : HashTypeName(type_name);
  MR_RETURN_IF_ERROR(CheckHandle(handle, hash, type_name));
  if (handle.resource != nullptr && !handle.resource->abandoned()) return handle.resource;
  return LookupAny(handle.container, type_name, handle.name);
}

StatusOr<std::shared_ptr<Resource>> ResourceManager::LookupAny(absl::string_view container,
                                                               absl::string_view type_name,
                                                               absl::string_view name) const {
  const std::string in = ContainerName(container);
  MutexLock lock(&mu_);
  const auto found = containers_.find(in);
  if (found != containers_.end()) {
    const auto it = found->second.find(Key(type_name, name));
    if (it != found->second.end()) return it->second;
  }
  return DoesNotExist(in, name, type_name);
}

StatusOr<std::shared_ptr<Resource>> ResourceManager::LookupOrCreateAny(
    absl::string_view container, absl::string_view type_name, absl::string_view name,
    const std::function<StatusOr<std::shared_ptr<Resource>>()>& create) {
  const std::string in = ContainerName(container);
  const Key key(type_name, name);
  MutexLock lock(&mu_);
  const auto found = containers_.find(in);
  if (found != containers_.end()) {
    const auto it = found->second.find(key);
    if (it != found->second.end()) return it->second;
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<Resource> made, create());
  if (made == nullptr) {
    return Internal("Resource ", in, "/", name, "/", type_name, " was created as null");
  }
  containers_[in][key] = made;
  return made;
}

std::vector<std::shared_ptr<Resource>> ResourceManager::AllAny(absl::string_view type_name) const {
  std::vector<std::shared_ptr<Resource>> all;
  MutexLock lock(&mu_);
  for (const auto& [container, resources] : containers_) {
    for (const auto& [key, resource] : resources) {
      if (key.first == type_name) all.push_back(resource);
    }
  }
  return all;
}

Status ResourceManager::CreateAny(absl::string_view container, absl::string_view type_name,
                                  absl::string_view name, std::shared_ptr<Resource> resource) {
  MR_DCHECK(resource != nullptr, "Create gets what its kernel has made: later it is abandoned");
  const std::string in = ContainerName(container);
  MutexLock lock(&mu_);
  if (!containers_[in].try_emplace(Key(type_name, name), std::move(resource)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("Resource ", in, "/", name, "/", type_name, " already exists."));
  }
  return absl::OkStatus();
}

Status ResourceManager::DeleteAny(absl::string_view container, absl::string_view type_name,
                                  absl::string_view name) {
  const std::string in = ContainerName(container);
  std::shared_ptr<Resource> removed;  // destroyed without the lock: a resource may own others
  {
    MutexLock lock(&mu_);
    const auto found = containers_.find(in);
    if (found == containers_.end()) return DoesNotExist(in, name, type_name);
    const auto it = found->second.find(Key(type_name, name));
    if (it == found->second.end()) return DoesNotExist(in, name, type_name);
    removed = std::move(it->second);
    found->second.erase(it);
  }
  removed->Abandon();
  return absl::OkStatus();
}

Status ResourceManager::DeleteHandle(const ResourceHandle& handle) {
  MR_RETURN_IF_ERROR(CheckHandle(handle, HashTypeName(handle.type_name), handle.type_name));
  return DeleteAny(handle.container, handle.type_name, handle.name);
}

void ResourceManager::TellSessionEnded(absl::string_view session_handle) {
  std::vector<std::shared_ptr<Resource>> all;  // told without the lock
  {
    MutexLock lock(&mu_);
    for (const auto& [in, container] : containers_) {
      for (const auto& [key, resource] : container) {
        if (dynamic_cast<HoldsForSessions*>(resource.get()) != nullptr) all.push_back(resource);
      }
    }
  }
  for (const auto& resource : all) {
    dynamic_cast<HoldsForSessions*>(resource.get())->SessionEnded(session_handle);
  }
  std::vector<std::shared_ptr<Resource>> over;  // destroyed without the lock
  {
    MutexLock lock(&mu_);
    for (auto& [in, container] : containers_) {
      for (auto it = container.begin(); it != container.end();) {
        const auto* const holder = dynamic_cast<const HoldsForSessions*>(it->second.get());
        if (holder == nullptr || !holder->EndedWithSession()) {
          ++it;
          continue;
        }
        over.push_back(std::move(it->second));
        it = container.erase(it);
      }
    }
  }
  for (const auto& resource : over) resource->Abandon();
}

void ResourceManager::ClearContainer(absl::string_view container) {
  HashMap<Key, std::shared_ptr<Resource>> removed;
  {
    MutexLock lock(&mu_);
    const auto found = containers_.find(ContainerName(container));
    if (found == containers_.end()) return;
    removed = std::move(found->second);
    containers_.erase(found);
  }
  for (auto& [key, resource] : removed) resource->Abandon();
}

void ResourceManager::ClearAll() {
  HashMap<std::string, HashMap<Key, std::shared_ptr<Resource>>> removed;
  {
    MutexLock lock(&mu_);
    removed.swap(containers_);
  }
  for (auto& [name, container] : removed) {
    for (auto& [key, resource] : container) resource->Abandon();
  }
}

std::vector<std::string> ResourceManager::DebugStrings() const {
  std::vector<std::pair<std::string, std::shared_ptr<Resource>>> all;
  {
    MutexLock lock(&mu_);
    for (const auto& [in, container] : containers_) {
      for (const auto& [key, resource] : container) {
        all.emplace_back(absl::StrCat(in, "/", key.second, "/", key.first), resource);
      }
    }
  }
  std::vector<std::string> lines;
  lines.reserve(all.size());
  for (const auto& [name, resource] : all) {
    lines.push_back(absl::StrCat(name, ": ", resource->DebugString()));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace millrace
