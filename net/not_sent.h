// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_NOT_SENT_H_
#define MILLRACE_NET_NOT_SENT_H_

// Calls that were surely not sent: they never had a connection, so nobody has run them.
//
// RpcChannel marks their status, which is Unavailable, with a payload that stays in the process. A
// connection that broke under a call is no such thing.
//
// Thread-safety: pure functions. Failure: none.

#include "core/status.h"

namespace millrace {

bool WasNotSent(const Status& status);
// The status, so marked.
Status AsNotSent(Status status);

}  // namespace millrace

#endif  // MILLRACE_NET_NOT_SENT_H_
