// SPDX-License-Identifier: Apache-2.0
#include "core/fingerprint64.h"

#include <farmhash.h>

namespace millrace {

uint64_t Fingerprint64(absl::string_view data) {
  return util::Fingerprint64(data.data(), data.size());
}

}  // namespace millrace
