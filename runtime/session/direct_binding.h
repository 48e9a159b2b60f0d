// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_DIRECT_BINDING_H_
#define MILLRACE_RUNTIME_SESSION_DIRECT_BINDING_H_

// What names are compiled to in a session of this process, and what a thread's steps remember of
// it: KeptBindings.
//
// The session's own table (SignatureCompiler) is behind a lock, and a thread that takes a binding
// out of it counts a reference: two threads that run steps by names would meet there in every step.
// So the state of a step (step_pool.h), which a thread finds again, remembers the bindings that it
// ran last.
//
// Invariant: what is remembered is of one version of the table; the table gets another version when
// it drops an entry, and what is dropped must not be remembered any longer (StepPool::Forget).
//
// Threads: of one thread at a time, its owner sees to it. Lifetime: a binding that Find or Keep
// returns lives until the next call of Keep or Clear.
// Failure: Keep throws std::bad_alloc, and remembers no more than before.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/signature.h"
#include "runtime/rendezvous.h"
#include "runtime/session/compile_path.h"
#include "runtime/session/signature_compiler.h"

namespace millrace {

// Immutable but for counters.
struct CompiledSignature {
  RunSignature signature;
  std::vector<StepPart> parts;
  std::shared_ptr<const TransferTable> transfers;  // null: steps need no rendezvous
  HeldBytes held;
};
using DirectBinding = SignatureBinding<const CompiledSignature>;

class KeptBindings {
 public:
  // Null when the names of `key` are not remembered.
  const DirectBinding* Find(const std::string& key) const {
    for (const Entry& entry : entries_) {
      if (entry.binding != nullptr && entry.key == key) return entry.binding.get();
    }
    return nullptr;
  }
  const DirectBinding* Keep(const std::string& key, std::shared_ptr<const DirectBinding> binding);
  void Clear();

 private:
  // More than the signatures of a training loop; few enough to look through.
  static constexpr size_t kEntries = 8;
  struct Entry {
    std::string key;
    std::shared_ptr<const DirectBinding> binding;  // null: free
  };

  std::array<Entry, kEntries> entries_;
  size_t next_ = 0;  // to be replaced
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_DIRECT_BINDING_H_
