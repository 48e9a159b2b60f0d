// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_PROCESS_NAME_H_
#define MILLRACE_CORE_PROCESS_NAME_H_

// ProcessName: this process, as messages to people on other machines name it.
//
// Thread-safety: any thread. Does not fail: a host without a name is "an unknown host".

#include <string>

namespace millrace {

// "process 4711 on host7".
std::string ProcessName();

}  // namespace millrace

#endif  // MILLRACE_CORE_PROCESS_NAME_H_
