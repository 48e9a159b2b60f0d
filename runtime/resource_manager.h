// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_RESOURCE_MANAGER_H_
#define MILLRACE_RUNTIME_RESOURCE_MANAGER_H_

// ResourceManager: the resources of one device, by container, kind and name.
//
// Containers group resources so that they can be cleared together ("" means the
// default, "localhost"). A resource lives until it is deleted or its container is
// cleared, and then as long as somebody still uses it.
//
// Thread-safety: all methods, from any thread. `create` is called under the lock: it must not
// use the manager.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/resource_handle.h"
#include "core/status.h"

namespace millrace {

class ResourceManager {
 public:
  static constexpr const char* kDefaultContainer = "localhost";

  explicit ResourceManager(std::string device_name);
  ~ResourceManager();

  const std::string& device_name() const { return device_name_; }

  // NotFound "Resource <container>/<name>/<type> does not exist.".
  template <typename T>
  StatusOr<std::shared_ptr<T>> Lookup(absl::string_view container, absl::string_view name) const {
    MR_ASSIGN_OR_RETURN(auto found, LookupAny(container, TypeName<T>(), name));
    return std::static_pointer_cast<T>(std::move(found));
  }
  // The existing resource, or what `create` makes.
  template <typename T>
  StatusOr<std::shared_ptr<T>> LookupOrCreate(
      absl::string_view container, absl::string_view name,
      const std::function<StatusOr<std::shared_ptr<T>>()>& create) {
    MR_ASSIGN_OR_RETURN(auto found, LookupOrCreateAny(container, TypeName<T>(), name,
                                                      [&]() -> StatusOr<std::shared_ptr<Resource>> {
                                                        MR_ASSIGN_OR_RETURN(auto made, create());
                                                        return std::shared_ptr<Resource>(made);
                                                      }));
    return std::static_pointer_cast<T>(std::move(found));
  }
  // All resources of a kind, in every container, in no order.
  template <typename T>
  std::vector<std::shared_ptr<T>> All() const {
    std::vector<std::shared_ptr<T>> all;
    for (auto& any : AllAny(TypeName<T>())) all.push_back(std::static_pointer_cast<T>(any));
    return all;
  }
  // AlreadyExists.
  template <typename T>
  Status Create(absl::string_view container, absl::string_view name, std::shared_ptr<T> resource) {
    return CreateAny(container, TypeName<T>(), name, std::move(resource));
  }
  // Deletes and abandons. NotFound.
  template <typename T>
  Status Delete(absl::string_view container, absl::string_view name) {
    return DeleteAny(container, TypeName<T>(), name);
  }
  // Whatever kind the handle names.
  Status DeleteHandle(const ResourceHandle& handle);

  // What a handle refers to: its own pointer when it has one that is alive, else by look-up.
  // InvalidArgument when the handle is of another kind or device.
  template <typename T>
  StatusOr<std::shared_ptr<T>> Resolve(const ResourceHandle& handle) const {
    MR_ASSIGN_OR_RETURN(auto found, ResolveAny(handle, TypeName<T>()));
    return std::static_pointer_cast<T>(std::move(found));
  }
  // The same for a type that is given by its name.
  StatusOr<std::shared_ptr<Resource>> ResolveAny(const ResourceHandle& handle,
                                                 absl::string_view type_name) const;
  template <typename T>
  ResourceHandle MakeHandle(absl::string_view container, absl::string_view name,
                            std::shared_ptr<T> resource) const {
    ResourceHandle handle;
    handle.device = device_name_;
    handle.container = std::string(container.empty() ? kDefaultContainer : container);
    handle.name = std::string(name);
    handle.hash_code = TypeHash<T>();
    handle.type_name = TypeName<T>();
    handle.resource = std::move(resource);
    return handle;
  }

  // Tells the resources that hold something for sessions (runtime/holds_for_sessions.h), and
  // deletes those that were this one's alone.
  void TellSessionEnded(absl::string_view session_handle);

  // Abandons everything in a container (Reset).
  void ClearContainer(absl::string_view container);
  void ClearAll();
  std::vector<std::string> DebugStrings() const;  // sorted

  // T declares `static constexpr const char* kTypeName`.
  template <typename T>
  static const char* TypeName() {
    return T::kTypeName;
  }
  // The same in every process: a hash of the type's name.
  template <typename T>
  static uint64_t TypeHash() {
    return HashTypeName(T::kTypeName);
  }

 private:
  static uint64_t HashTypeName(absl::string_view name);
  Status CheckHandle(const ResourceHandle& handle, uint64_t hash, absl::string_view type) const;
  StatusOr<std::shared_ptr<Resource>> LookupAny(absl::string_view container,
                                                absl::string_view type_name,
                                                absl::string_view name) const;
  StatusOr<std::shared_ptr<Resource>> LookupOrCreateAny(
      absl::string_view container, absl::string_view type_name, absl::string_view name,
      const std::function<StatusOr<std::shared_ptr<Resource>>()>& create);
  std::vector<std::shared_ptr<Resource>> AllAny(absl::string_view type_name) const;
  Status CreateAny(absl::string_view container, absl::string_view type_name, absl::string_view name,
                   std::shared_ptr<Resource> resource);
  Status DeleteAny(absl::string_view container, absl::string_view type_name,
                   absl::string_view name);

  // Keyed by type name, which is unique per type: names of types are part of the format.
  using Key = std::pair<std::string, std::string>;  // (type name, resource name)
  const std::string device_name_;
  mutable Mutex mu_;
  HashMap<std::string, HashMap<Key, std::shared_ptr<Resource>>> containers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_RESOURCE_MANAGER_H_
