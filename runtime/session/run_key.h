// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_RUN_KEY_H_
#define MILLRACE_RUNTIME_SESSION_RUN_KEY_H_

// The key by which a session keeps what a Run by names resolved to: equal for equal lists of names.
//
// Thread-safety: a function of its arguments.

#include <string>

#include "absl/types/span.h"
#include "graph/signature.h"
#include "runtime/session.h"

namespace millrace {

// Replaces `key` by the SignatureKey of NamesOf(feeds, fetches, targets), without making the lists.
// Callers keep `key` between steps for its memory.
inline void MakeRunKey(absl::Span<const Feed> feeds, absl::Span<const FetchName> fetches,
                       absl::Span<const FetchName> targets, std::string* key) {
  const auto name_of = [](const FetchName& fetch) -> const std::string& { return fetch.name(); };
  key->clear();
  AppendNames(
      feeds, [](const Feed& feed) -> const std::string& { return feed.name.name(); }, key);
  AppendNames(fetches, name_of, key);
  AppendNames(targets, name_of, key);
}

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_RUN_KEY_H_
