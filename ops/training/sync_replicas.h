// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_TRAINING_SYNC_REPLICAS_H_
#define MILLRACE_OPS_TRAINING_SYNC_REPLICAS_H_

// What synchronous training is made of (train/sync_replicas.h, which is the only user). TensorFlow
// has no such ops: it takes means in a step of the chief's, and hands tokens on by a queue.
//
//   rounds  who trains, which round runs, who does its update   ops/kernels/sync_rounds.h
//   apply   a gradient to an accumulator, for a round           ops/kernels/accumulator.h
//   take    the mean of all gradients of a round
//
// Rounds and accumulators outlive steps; those of one name on one device are one and must agree in
// what they are made with. `trainer` is the task that a step is of: it gives once in a round, from
// whatever session. "": a trainer is its session.
//
// Errors: InvalidArgument for a gradient that does not fit or is not finite, of which nothing is
// added; FailedPrecondition for a session that has not joined; Cancelled for a wait; Aborted for a
// take of a round of which too little is there, after a server was started again.

#include <cstdint>
#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct SyncReplicasRoundsAttrs {
  int64_t replicas_to_aggregate = 1;
  int64_t start_wait_ms = 30'000;  // for that many trainers, before the first round
  std::string container = "";
  std::string shared_name = "";  // the node's name when empty
};
inline Output SyncReplicasRounds(ScopeAt at, const SyncReplicasRoundsAttrs& attrs) {
  return BuildOp(at, "SyncReplicasRounds", {}, "replicas_to_aggregate", attrs.replicas_to_aggregate,
                 "start_wait_ms", attrs.start_wait_ms, "container", attrs.container, "shared_name",
                 attrs.shared_name);
}
// The session becomes a trainer. int64 []: the round that its next gradient is for.
inline Output SyncReplicasJoin(ScopeAt at, Output rounds, const std::string& trainer) {
  return BuildOp(at, "SyncReplicasJoin", {rounds}, "trainer", trainer);
}
// int64 []: the round that the session holds. -1: it has not joined; now it has.
inline Output SyncReplicasRound(ScopeAt at, Output rounds, const std::string& trainer) {
  return BuildOp(at, "SyncReplicasRound", {rounds}, "trainer", trainer);
}
// The session is no trainer any more, and is not waited for.
inline Operation SyncReplicasLeave(ScopeAt at, Output rounds) {
  return BuildOp(at, "SyncReplicasLeave", {rounds});
}
struct SyncReplicasGiven {
  Output leads;       // bool []: this step does the update
  Output next_round;  // int64 []
  Output gradients;   // int64 []: of the round, where it leads
};
// All gradients of this step for `round` (int64 []) have been applied. Waits until the round is
// over, or until this step is to do its update.
inline SyncReplicasGiven SyncReplicasGive(ScopeAt at, Output rounds, Output round) {
  const BuiltNode op = BuildOp(at, "SyncReplicasGive", {rounds, round});
  return {op.output(0), op.output(1), op.output(2)};
}
// The update is done. int64 []: the next round.
inline Output SyncReplicasDone(ScopeAt at, Output rounds, Output round) {
  return BuildOp(at, "SyncReplicasDone", {rounds, round});
}
// int64 [4]: rounds that are over, rounds given up, gradients that came too late, trainers now.
inline Output SyncReplicasCounts(ScopeAt at, Output rounds) {
  return BuildOp(at, "SyncReplicasCounts", {rounds});
}

struct SyncReplicasAccumulatorAttrs {
  bool is_sparse = false;
  std::string container = "";
  std::string shared_name = "";  // the node's name when empty
};
// `shape` is that of the variable.
inline Output SyncReplicasAccumulator(ScopeAt at, DType dtype, const PartialShape& shape,
                                      const SyncReplicasAccumulatorAttrs& attrs) {
  return BuildOp(at, "SyncReplicasAccumulator", {}, "dtype", dtype, "shape", shape, "is_sparse",
                 attrs.is_sparse, "container", attrs.container, "shared_name", attrs.shared_name);
}
inline Operation SyncReplicasApply(ScopeAt at, Output accumulator, Output round, Output gradient,
                                   const std::string& trainer) {
  return BuildOp(at, "SyncReplicasApply", {accumulator, round, gradient}, "trainer", trainer);
}
// indices int64 [n], values [n, ...].
inline Operation SyncReplicasApplyRows(ScopeAt at, Output accumulator, Output round, Output indices,
                                       Output values, const std::string& trainer) {
  return BuildOp(at, "SyncReplicasApplyRows", {accumulator, round, indices, values}, "trainer",
                 trainer);
}
// Of `least` (int64 []) gradients or more.
inline Output SyncReplicasTake(ScopeAt at, Output accumulator, Output round, Output least,
                               DType dtype) {
  return BuildOp(at, "SyncReplicasTake", {accumulator, round, least}, "dtype", dtype);
}
struct SyncReplicasRows {
  Output indices;  // int64 [n], ascending
  Output values;   // [n, ...]: sums over all gradients, divided by their number
};
inline SyncReplicasRows SyncReplicasTakeRows(ScopeAt at, Output accumulator, Output round,
                                             Output least, DType dtype) {
  const BuiltNode op =
      BuildOp(at, "SyncReplicasTakeRows", {accumulator, round, least}, "dtype", dtype);
  return {op.output(0), op.output(1)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_TRAINING_SYNC_REPLICAS_H_
