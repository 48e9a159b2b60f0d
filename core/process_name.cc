// SPDX-License-Identifier: Apache-2.0
#include "core/process_name.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace millrace {

std::string HostName() {
  char host[256] = {};
  const bool known = ::gethostname(host, sizeof(host) - 1) == 0 && host[0] != '\0';
  return known ? host : "an unknown host";
}

std::string ProcessName() { return absl::StrCat("process ", ::getpid(), " on ", HostName()); }

}  // namespace millrace
