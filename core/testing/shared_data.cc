// SPDX-License-Identifier: Apache-2.0

#include "core/testing/shared_data.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/string_view.h"

namespace millrace {

std::string SharedDataPath(absl::string_view relative) {
  const char* shared = std::getenv("MILLRACE_SHARED");
  if (shared == nullptr || *shared == '\0') return "";
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(shared, error);
  if (error) return "";
  path /= "data";
  if (!relative.empty()) path /= std::string(relative);
  if (!std::filesystem::exists(path, error) || error) return "";
  return path.string();
}

bool SharedDataAvailable() { return !SharedDataPath("").empty(); }

}  // namespace millrace
