// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PENDING_REGISTRATIONS_H_
#define MILLRACE_GRAPH_PENDING_REGISTRATIONS_H_

// PendingRegistrations: what a library registers while it is being loaded, until it is known
// whether all of it can stay.
//
// Registrations are objects of namespace scope: they act before anybody knows whether the library
// is a good one. So every registry asks, before it makes something seen, whether this thread loads
// a library, and puts it there instead (Current).
//
//   PendingRegistrations pending;
//   {
//     PendingRegistrations::Collect collect(&pending);
//     dlopen(...);
//   }
//   MR_RETURN_IF_ERROR(pending.Check());
//   pending.Publish();
//
// A registry of a later layer (kernels) keeps its share in a Part of its own.
//
// Thread-safety: thread-compatible; Current is that of the calling thread.
// Lifetime: while something is collected, the object stays where it is.
// Failure: Check says why the registrations cannot stay; destroying them without Publish leaves no
// trace of them. Publish cannot fail.

#include <list>
#include <memory>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "graph/op_registry.h"

namespace millrace {

class PendingRegistrations {
 public:
  // What one registry has of it.
  class Part {
   public:
    virtual ~Part() = default;
    // Whether all of it can be registered. `all` is complete.
    virtual Status Check(const PendingRegistrations& all) const = 0;
    // Makes it seen; the ops that it belongs to are not seen yet.
    virtual void Publish() noexcept = 0;
  };

  // While it lives, what this thread registers goes to `pending`.
  class Collect {
   public:
    explicit Collect(PendingRegistrations* pending);
    ~Collect();
    Collect(const Collect&) = delete;
    Collect& operator=(const Collect&) = delete;

   private:
    PendingRegistrations* const outer_;
  };

  PendingRegistrations() = default;
  PendingRegistrations(const PendingRegistrations&) = delete;
  PendingRegistrations& operator=(const PendingRegistrations&) = delete;

  // Null when this thread loads no library.
  static PendingRegistrations* Current();

  void AddOp(const OpSpec& spec) { ops_.push_back(spec); }
  // The part of type P, made at the first call.
  template <typename P>
  P* Get() {
    for (auto& [type, part] : parts_) {
      if (type == std::type_index(typeid(P))) return static_cast<P*>(part.get());
    }
    parts_.emplace_back(typeid(P), std::make_unique<P>());
    return static_cast<P*>(parts_.back().second.get());
  }

  bool empty() const { return ops_.empty() && parts_.empty(); }
  bool HasOp(absl::string_view name) const;
  // The names of the ops, sorted.
  std::vector<std::string> OpNames() const;

  // AlreadyExists for an op kind that is registered, or is here twice, by name; InvalidArgument for
  // a bad spec; what the parts say.
  Status Check() const;
  // All of it, ops last. Requires that Check was OK. Nothing is left here.
  void Publish() noexcept;

 private:
  Status CheckOps() const;

  std::list<OpSpec> ops_;
  std::vector<std::pair<std::type_index, std::unique_ptr<Part>>> parts_;
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PENDING_REGISTRATIONS_H_
