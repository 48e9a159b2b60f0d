// SPDX-License-Identifier: Apache-2.0
#include "core/exit_code.h"

#include <cstdio>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "core/status_kind.h"

namespace millrace {
namespace {

constexpr char kPayload[] = "exit_code";

}  // namespace

Status WithExitCode(Status status, int code) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(code)));
  return status;
}

int ExitCode(const Status& status) {
  if (status.ok()) return kExitOk;
  const auto said = status.GetPayload(kPayload);
  int code = 0;
  if (said && absl::SimpleAtoi(std::string(*said), &code)) return code;
  if (status.GetPayload(kRunEndKind).has_value()) return kExitOk;
  if (status.GetPayload(kRefusalKind).has_value()) return kExitError;
  return absl::IsUnavailable(status) || absl::IsAborted(status) ? kExitRetryable : kExitError;
}

int ReportedExitCode(absl::string_view program, const Status& status) {
  if (!status.ok()) {
    const std::string name(program.substr(program.rfind('/') + 1));
    const std::string text =
        status.ToString(absl::StatusToStringMode::kWithNoExtraData);  // the code says it
    std::fprintf(stderr, "%s: %s\n", name.c_str(), text.c_str());
  }
  return ExitCode(status);
}

}  // namespace millrace
