// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SYNC_COLLECTIONS_H_
#define MILLRACE_TRAIN_SYNC_COLLECTIONS_H_

// Collections of a graph that say what a session does to take part in synchronous training
// (train/sync_replicas.h, which fills them), for those that make sessions.
//
// Constants.

namespace millrace {

// Operations that a session runs with its local initialisers (train/session_manager.h).
inline constexpr char kSyncReplicasJoins[] = "sync_replicas_join";
// Operations that a session runs when it stays open and trains no more (train/monitored_loop.h).
inline constexpr char kSyncReplicasLeaves[] = "sync_replicas_leave";

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SYNC_COLLECTIONS_H_
