// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/access_log.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/logging.h"
#include "google/protobuf/message.h"
#include "serving/cut_text.h"
#include "serving/monitoring/sampling.h"
#include "serving/served_model.h"

namespace millrace {
namespace {

constexpr size_t kMaxNameBytes = 200;

// A client's bytes make no line of their own.
std::string Quoted(absl::string_view name) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(CutText(name, kMaxNameBytes)), "\"");
}

std::string Number(int64_t value) { return value > 0 ? absl::StrCat(value) : "-"; }

}  // namespace

void AccessLog::Ended(const RequestRecord& record) {
  if (IsSampled(sampling_rate_)) LogInfo(AccessLine(record));
}

std::string AccessLine(const RequestRecord& record) {
  int64_t bytes_out = record.bytes_out;
  if (bytes_out == 0 && record.response != nullptr && record.status.ok()) {
    bytes_out = static_cast<int64_t>(record.response->ByteSizeLong());
  }
  return absl::StrCat(
      "request ", RequestEntrypointName(record.origin.entrypoint), " ", RequestApiName(record.api),
      " model=", Quoted(record.model),
      " version=", record.served == nullptr ? "-" : absl::StrCat(record.served->version()),
      " signature=", Quoted(record.signature),
      " status=", absl::StatusCodeToString(record.status.code()),
      " latency_us=", absl::ToInt64Microseconds(record.latency),
      " in=", Number(record.origin.bytes_in), " out=", Number(bytes_out),
      " client=", record.origin.client.empty() ? "-" : Quoted(record.origin.client));
}

}  // namespace millrace
