// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/cord.h"

namespace millrace {
namespace {

Status WithMessage(const Status& status, absl::string_view message) {
  Status result(status.code(), message);
  status.ForEachPayload([&result](absl::string_view type_url, const absl::Cord& payload) {
    result.SetPayload(type_url, payload);
  });
  return result;
}

}  // namespace

Status Prefixed(absl::string_view where, const Status& status) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat(where, ": ", status.message()));
}

Status Suffixed(const Status& status, absl::string_view text) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat(status.message(), text));
}

void EndProgram(const Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::abort();
}

}  // namespace millrace
