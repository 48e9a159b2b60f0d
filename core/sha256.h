// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_SHA256_H_
#define MILLRACE_CORE_SHA256_H_

// Sha256: a name for bytes that nobody can give to other bytes. For what strangers send and is
// taken for equal by its name; Hash64 is for keys that nobody gains by making collide.
//
// SHA-256 (FIPS 180-4) of OpenSSL, which uses the processor's instructions for it. Any thread.
// Failure: Internal when OpenSSL has no SHA-256 or no memory.

#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// 32 bytes.
StatusOr<std::string> Sha256(absl::string_view data);

}  // namespace millrace

#endif  // MILLRACE_CORE_SHA256_H_
