// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_HOST_LIST_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_HOST_LIST_H_

// The lists in which Slurm names hosts and counts tasks.
//
//   "n[001-003,7],m"   n001 n002 n003 n7 m       numbers keep the width of the first one
//   "r[1-2]n[0-1]"     r1n0 r1n1 r2n0 r2n1
//   "2(x3),1"          2 2 2 1                   tasks of each host, in the hosts' order
//
// Texts of the environment: they are checked, and at most kMaxHosts come out.
//
// Thread-safety: pure functions. Failure: InvalidArgument "<where>: <rule>, got <value> at byte 7,
// after 'n[001-'".

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

inline constexpr size_t kMaxHosts = 65'536;

// `where` names the text in messages: "SLURM_JOB_NODELIST". At least one; none twice.
StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view text, absl::string_view where);

// At least one, each in [1, kMaxHosts].
StatusOr<std::vector<int>> ExpandTaskCounts(absl::string_view text, absl::string_view where);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_HOST_LIST_H_
