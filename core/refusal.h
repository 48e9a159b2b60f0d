// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_REFUSAL_H_
#define MILLRACE_CORE_REFUSAL_H_

// Refusals: errors of a peer that nothing but another configuration, here or there, can mend.
//
// A wait for a peer that may come ends when the peer refuses. The mark is a payload of
// the status, which travels with it from task to task (core/status_kind.h).
//
// Thread-safety: pure functions. Failure: none.

#include "core/status.h"

namespace millrace {

// Whether nothing but another configuration, here or there, can make this status OK: a peer that
// refuses our token, our certificate or our version, or that speaks TLS where we do not.
bool IsRefusal(const Status& status);
// The status, so marked; a program that ends with it is not worth another try (core/exit_code.h).
Status AsRefusal(Status status);

}  // namespace millrace

#endif  // MILLRACE_CORE_REFUSAL_H_
