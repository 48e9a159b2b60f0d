// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_LISTEN_ADDRESS_H_
#define MILLRACE_NET_LISTEN_ADDRESS_H_

// Addresses at which a server of gRPC may listen: "host:port" and "unix:/path". gRPC itself shares
// what is in use, or takes it from others; these checks come before it.
//
// Thread-safety: functions. Between the check and gRPC's own listening another process may come.

#include <string>

#include "core/status.h"

namespace millrace {

bool IsUnixAddress(const std::string& address);
// OK: nobody listens there, and we may. FailedPrecondition with the reason; InvalidArgument for the
// path of a unix socket that is empty or too long.
Status CheckListenAddress(const std::string& address);

}  // namespace millrace

#endif  // MILLRACE_NET_LISTEN_ADDRESS_H_
