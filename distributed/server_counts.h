// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_SERVER_COUNTS_H_
#define MILLRACE_DISTRIBUTED_SERVER_COUNTS_H_

// ServerCounts: what the task of one server has done since it started, for tests and benchmarks
// that count. Several servers of one process count apart.
//
//   const ServerCounts before = CountsOf(*server);
//   ... steps ...
//   const PeerCounts ps = CountsOf(*server).peers.at("/job:ps/replica:0/task:0");
//   EXPECT_EQ(ps.messages_sent, before.peers.at("/job:ps/replica:0/task:0").messages_sent + steps);
//
// A plain value. Counts are exact when no step runs; while one does they may miss its last part.

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "distributed/server.h"
#include "distributed/transport/peer_counts.h"

namespace millrace {

struct ServerCounts {
  struct Method {
    int64_t calls = 0;     // taken up
    int64_t messages = 0;  // sent in answer to them; an error without a body is none
  };
  // By "/package.Service/Method"; those that were called.
  std::map<std::string, Method> methods;
  // Tasks that steps here have given to the arena, each a thread that is woken; of graphs that are
  // registered now.
  int64_t wakeups = 0;
  // Tasks to which steps go over a Unix socket now.
  int unix_links = 0;
  // Tensors that left from here by shared memory, on all links so far.
  int64_t pooled_tensors = 0;
  // Tensors for which there was no room in it: they went through the socket.
  int64_t unpooled_tensors = 0;
  // Of tensors that lie in it now: they wait to leave, or other tasks read them.
  int64_t pooled_bytes = 0;
  // Tensors that left from here without their bytes, as their receiver has kept them since they
  // left last.
  int64_t kept_tensors = 0;
  // Of tensors that other tasks keep for this one now, and this one for them.
  int64_t bytes_kept_at_peers = 0;
  int64_t bytes_kept_for_peers = 0;
  // By the other task's name ("/job:ps/replica:0/task:0"); those with which tensors were exchanged.
  std::map<std::string, PeerCounts> peers;

  // Of all methods of this name ("EndRun"), whatever their service.
  int64_t calls(absl::string_view method) const;
  int64_t messages(absl::string_view method) const;
};

// Nothing for a server without a cluster.
ServerCounts CountsOf(const Server& server);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_SERVER_COUNTS_H_
