// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/signature_compiler.h"

namespace millrace {

void HeldBytesSum::Add(const HeldBytes& held) {
  try {
    for (const auto& [address, bytes] : held.shared) shared_[address].bytes = bytes;
  } catch (...) {
    std::erase_if(shared_, [](const auto& entry) { return entry.second.users == 0; });
    throw;
  }
  for (const auto& [address, bytes] : held.shared) {
    if (shared_.find(address)->second.users++ == 0) total_ += bytes;
  }
  total_ += held.own;
}

void HeldBytesSum::Remove(const HeldBytes& held) {
  for (const auto& [address, bytes] : held.shared) {
    const auto it = shared_.find(address);
    if (it == shared_.end() || --it->second.users > 0) continue;
    total_ -= it->second.bytes;
    shared_.erase(it);
  }
  total_ -= held.own;
}

}  // namespace millrace
