// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_PROCESS_STATE_H_
#define MILLRACE_TESTS_CLUSTER_PROCESS_STATE_H_

// What the system knows of a process of ours: memory, descriptors, sockets (/proc/<pid>).
//
// Threads: pure functions of the moment, from any. Failure: of a process that has ended there is
// nothing: 0, false, an empty set.

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>

namespace millrace {

// Memory that is in RAM, shared pages too.
int64_t RssBytes(pid_t process);
int NumFds(pid_t process);
// By SIGSTOP.
bool IsStopped(pid_t process);
// Names of the Unix sockets that the process has, "@..." for abstract ones; sockets without a name
// are left out.
std::set<std::string> UnixSocketsOf(pid_t process);
// Of all processes of this network namespace.
std::set<std::string> UnixSockets();
// Files of shared memory (/dev/shm, memfd) that are mapped by the process.
std::set<std::string> SharedMemoryOf(pid_t process);

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_PROCESS_STATE_H_
