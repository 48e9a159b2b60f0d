// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_AVAILABLE_VERSIONS_H_
#define MILLRACE_SERVING_AVAILABLE_VERSIONS_H_

// AvailableVersions: what requests look up: the available versions of all models, and their labels.
//
// Its owner publishes an immutable table; a request copies one pointer out of it, under a lock of
// its thread's place that is held for a look-up or an exchange of pointers only. So a version that
// is no longer in the table gets no new requests, and when the last of them has let go of the
// pointer, and the owner has, it has drained: it puts itself on a list on which the unload thread
// waits. The request's thread frees nothing: the owner still has the servable.
//
// Thread-safety: all methods, from any thread; publications come one at a time.
// Failure: none, but that of a look-up.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/status.h"
#include "serving/servable.h"

namespace millrace {

// NotFound with TensorFlow Serving's text for a request of what is not there.
Status ServableNotFound(absl::string_view model, std::optional<int64_t> version);

// The versions that have drained, by what their owner calls them.
class DrainedVersions {
 public:
  // Moves the one element of `id` here.
  void Add(std::list<void*>* id);
  // Waits for the next one; null when Stop was called and there is none.
  void* Next();
  void Stop();

 private:
  Mutex mu_;
  CondVar changed_;
  std::list<void*> ids_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

class AvailableVersion {
 public:
  AvailableVersion(int64_t version, std::shared_ptr<Servable> servable, void* id,
                   std::shared_ptr<DrainedVersions> drained);
  // Drained.
  ~AvailableVersion();
  AvailableVersion(const AvailableVersion&) = delete;
  AvailableVersion& operator=(const AvailableVersion&) = delete;

  int64_t version() const { return version_; }
  Servable* servable() const { return servable_.get(); }

  // A request has it. Writes only the first time after TakeUsed: a store per request would move its
  // cache line from core to core.
  void Use() const {
    if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
  }
  // Was it used since the last call?
  bool TakeUsed() const {
    return used_.load(std::memory_order_relaxed) &&
           used_.exchange(false, std::memory_order_relaxed);
  }

 private:
  mutable std::atomic<bool> used_{false};  // relaxed: says about when, orders nothing
  const int64_t version_;
  std::shared_ptr<Servable> servable_;
  std::list<void*> id_;  // made when memory may still be refused
  const std::shared_ptr<DrainedVersions> drained_;
};

class AvailableVersions {
 public:
  struct Model {
    std::map<int64_t, std::shared_ptr<const AvailableVersion>> versions;
    std::map<std::string, int64_t, std::less<>> labels;
  };
  using Table = std::map<std::string, Model, std::less<>>;

  AvailableVersions();

  // When it returns, every look-up sees this table.
  void Publish(std::shared_ptr<const Table> table);

  // The highest or that one. NotFound: "Servable not found for request: Latest(NAME)" or "...
  // Specific(NAME, V)".
  StatusOr<std::shared_ptr<const AvailableVersion>> Find(absl::string_view model,
                                                         std::optional<int64_t> version) const;
  // InvalidArgument: "Unrecognized servable version label: L".
  StatusOr<std::shared_ptr<const AvailableVersion>> FindLabelled(absl::string_view model,
                                                                 absl::string_view label) const;

 private:
  // Threads are spread over them: a lock that each request takes is in the cache of one core.
  static constexpr size_t kPlaces = 16;
  struct alignas(64) Place {
    mutable Mutex mu;
    std::shared_ptr<const Table> table ABSL_GUARDED_BY(mu);
  };
  const Place& place() const;

  std::array<Place, kPlaces> places_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_AVAILABLE_VERSIONS_H_
