// SPDX-License-Identifier: Apache-2.0
#include "data/lost_file.h"

#include "absl/strings/cord.h"

namespace millrace::data {
namespace {

constexpr char kPayload[] = "millrace.LostFile";

}  // namespace

Status LostFile(const Status& error) {
  Status lost = error;
  if (!lost.ok()) lost.SetPayload(kPayload, absl::Cord("1"));
  return lost;
}

bool IsLostFile(const Status& error) { return error.GetPayload(kPayload).has_value(); }

}  // namespace millrace::data
