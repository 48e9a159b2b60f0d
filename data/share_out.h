// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_SHARE_OUT_H_
#define MILLRACE_DATA_SHARE_OUT_H_

// Datasets of shards that a work queue hands out (ops/training/work_queue.h).
//
//   auto in_hand = std::make_shared<ShardsInHand>();
//   Dataset batches = ReadShards(in_hand, [](const Shard& shard) -> StatusOr<Dataset> {
//     return Dataset::TFRecords({shard.file}).Shuffle(1000).Map(parse).Batch(32);
//   }, spec);
//
// Somebody who has a session brings the shards (train/hooks/share_out_hook.h).
//
// A shard is finished when the reader asks for the element behind its last one. So a shard counts
// as trained when the step after that of its last element begins, provided that
//   * nothing stands behind ReadShards that keeps elements (Batch, Shuffle, Prefetch): it belongs
//     into the function, and batches end with their shard;
//   * one step at a time takes elements, once.
// An error in the place of an element does not finish a shard; who goes on behind it has decided
// to leave out the rest.
//
// While a reader waits for a shard it keeps its thread (of the I/O pool).
//
// Values. Failure: as ops/kernels/shards_in_hand.h. A position cannot be saved
// (FailedPrecondition): the queue's state is what counts.

#include <functional>
#include <memory>
#include <vector>

#include "core/status.h"
#include "data/dataset.h"
#include "ops/kernels/shards_in_hand.h"  // IWYU pragma: export

namespace millrace::data {

using millrace::Shard;

// The elements of one shard. Called for each shard that is read.
using ReadShardFunction = std::function<StatusOr<Dataset>(const Shard&)>;

// The elements of the shards that come, in their order. `spec`: of what `read` returns.
Dataset ReadShards(std::shared_ptr<ShardsInHand> source, ReadShardFunction read, ElementSpec spec);
// The same without a queue: of all these shards, once.
Dataset ReadAllShards(const std::vector<Shard>& shards, ReadShardFunction read, ElementSpec spec);

// The shard's part of all rows of its file.
Dataset PartOf(const Shard& shard, const Dataset& rows);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_SHARE_OUT_H_
