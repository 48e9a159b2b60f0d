// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_PROCESS_NAME_H_
#define MILLRACE_CORE_PROCESS_NAME_H_

// ProcessName, HostName: this process and its machine, as messages to people elsewhere name them.
//
// Thread-safety: any thread. Does not fail: a host without a name is "an unknown host".

#include <string>

namespace millrace {

// "host7".
std::string HostName();
// "process 4711 on host7".
std::string ProcessName();

}  // namespace millrace

#endif  // MILLRACE_CORE_PROCESS_NAME_H_
