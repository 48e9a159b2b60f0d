// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_CONNECTIONS_H_
#define MILLRACE_TESTS_CLUSTER_CONNECTIONS_H_

// Which processes of a job are connected with each other: TCP, by the kernel's own tables
// (/proc/<pid>/fd, /proc/net/tcp, tcp6).
//
// Thread-safety: a pure function of the moment. What it reads changes while it reads: a connection
// that is seen was there, one that lives for a few milliseconds may be missed.

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <utility>

namespace millrace {

// Pairs of names, the smaller first; a process that is connected with itself is a pair, too.
// Processes that have ended have no connections.
std::set<std::pair<std::string, std::string>> ConnectionsBetween(
    const std::map<std::string, pid_t>& processes);

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_CONNECTIONS_H_
