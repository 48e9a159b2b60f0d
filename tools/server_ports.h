// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_SERVER_PORTS_H_
#define MILLRACE_TOOLS_SERVER_PORTS_H_

// Ports on which programs that are started next can listen.
//
// A free port is not reserved: somebody else may take it before the program binds it. They are
// taken from where the system gives none to connections, so that only another server does.

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "core/status.h"

namespace millrace {

// Distinct ports of `host` that nobody listens on and that are not in `used`, to which they are
// added. InvalidArgument for a host that is no address of this machine, Unavailable when there are
// not so many.
StatusOr<std::vector<int>> FreeServerPorts(const std::string& host, size_t count,
                                           std::set<int>* used);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_SERVER_PORTS_H_
