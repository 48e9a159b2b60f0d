// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TESTING_FREE_PORT_H_
#define MILLRACE_CORE_TESTING_FREE_PORT_H_

// Free ports: TCP ports on which nobody listens at this moment.
//
// They lie below the range from which Linux takes the ports of outgoing connections, so that
// a server may be killed and started again on its port. Nothing is reserved: another process may
// take a port before its user does; whoever starts servers tries again with other ports.
//
// Thread-safety: any thread; one process never gets a port twice.
// Failure: fails the current test and returns 0.

#include <vector>

namespace millrace {

int FreePort();
// `n` different ones.
std::vector<int> FreePorts(int n);

}  // namespace millrace

#endif  // MILLRACE_CORE_TESTING_FREE_PORT_H_
