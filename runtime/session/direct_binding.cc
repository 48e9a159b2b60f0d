// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/direct_binding.h"

#include <memory>
#include <string>
#include <utility>

namespace millrace {

const DirectBinding* KeptBindings::Keep(const std::string& key,
                                        std::shared_ptr<const DirectBinding> binding) {
  Entry& entry = entries_[next_];
  entry.binding = nullptr;
  entry.key = key;
  entry.binding = std::move(binding);
  next_ = (next_ + 1) % kEntries;
  return entry.binding.get();
}

void KeptBindings::Clear() {
  for (Entry& entry : entries_) entry.binding = nullptr;
  next_ = 0;
}

}  // namespace millrace
