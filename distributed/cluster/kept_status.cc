// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/kept_status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

// Of a status with a text, and of each of its payloads: nodes, with malloc's own bytes.
constexpr int64_t kStatusBytes = 96;
constexpr int64_t kPayloadBytes = 128;

}  // namespace

Status KeptStatus(const Status& status) {
  if (status.message().size() <= kMaxKeptMessageBytes) return status;
  Status kept(status.code(),
              absl::StrCat(status.message().substr(0, kMaxKeptMessageBytes), " ... [truncated]"));
  status.ForEachPayload([&kept](absl::string_view type, const absl::Cord& payload) {
    kept.SetPayload(type, payload);
  });
  return kept;
}

int64_t KeptBytes(const Status& status) {
  if (status.ok()) return 0;
  int64_t bytes = kStatusBytes + static_cast<int64_t>(status.message().size());
  status.ForEachPayload([&bytes](absl::string_view type, const absl::Cord& payload) {
    bytes += kPayloadBytes + static_cast<int64_t>(type.size() + payload.size());
  });
  return bytes;
}

}  // namespace millrace
