// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_CORES_H_
#define MILLRACE_CORE_CORES_H_

// Cores: how many this process may use, and how many threads its environment asks for.
//
// The cores of a process are those of its affinity mask (taskset, a cpuset), or fewer where a
// cgroup gives it less time than they have (a container's limit, of version 1 or 2): its own group
// or one above it. Parts of a core count as one: a quota of 1.5 is two cores, one of 0.5 one.
//
// Thread-safety: all functions, from any thread; an affinity mask is that of the calling thread.
// Failure: what the system does not tell is no limit.

#include <optional>
#include <string>

#include "core/status.h"

namespace millrace {

// As many threads as an arena ever has.
inline constexpr int kMaxComputingThreads = 1'024;

// The variable that says with how many threads a process computes.
inline constexpr char kNumThreadsVariable[] = "MILLRACE_NUM_THREADS";

// >= 1. Reads a few small files.
int UsableCores();

// The quota of this process' cgroups, in whole cores; none without one. `root`: where /proc and
// /sys are, "" for the system's.
std::optional<int> QuotaOfCgroups(const std::string& root);

// What the variable's value asks for: none when it is not set (null) or empty, 0 for as many
// threads as cores. InvalidArgument for what is no integer in [0, kMaxComputingThreads].
StatusOr<std::optional<int>> NumThreadsFromText(const char* text);

}  // namespace millrace

#endif  // MILLRACE_CORE_CORES_H_
