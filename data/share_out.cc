// SPDX-License-Identifier: Apache-2.0
#include "data/share_out.h"

#include <utility>

#include "core/tensor.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

ElementSpec ShardSpec() {
  return {{DT_STRING, PartialShape::Scalar(), "file"},
          {DT_INT64, PartialShape::Scalar(), "begin"},
          {DT_INT64, PartialShape::Scalar(), "end"},
          {DT_INT64, PartialShape::Scalar(), "epoch"},
          {DT_INT64, PartialShape::Scalar(), "id"}};
}

Element ElementOf(const Shard& shard) {
  return {Tensor::Scalar<std::string>(shard.file), Tensor::Scalar(shard.begin),
          Tensor::Scalar(shard.end), Tensor::Scalar(shard.epoch), Tensor::Scalar(shard.id)};
}

Shard ShardOf(const Element& element) {
  return {element[0].scalar<std::string>(), element[1].scalar<int64_t>(),
          element[2].scalar<int64_t>(), element[3].scalar<int64_t>(), element[4].scalar<int64_t>()};
}

// The shards that come.
class ShardsNode : public DatasetNode {
 public:
  explicit ShardsNode(std::shared_ptr<ShareOut> source)
      : DatasetNode(ShardSpec(), kUnknownCardinality), source_(std::move(source)) {}
  std::string Text() const override { return "ShareOut"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const std::shared_ptr<ShareOut>& source() const { return source_; }

 private:
  const std::shared_ptr<ShareOut> source_;
};

class ShardsIterator : public ElementIterator {
 public:
  ShardsIterator(const ShardsNode* node, const IteratorContext& context)
      : source_(node->source()), context_(context), reader_(source_->BeginReader()) {}
  StatusOr<bool> Next(Element* element) override {
    if (ended_) return false;
    MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
    StatusOr<std::optional<Shard>> shard = source_->NextShard(reader_, context_.cancellation);
    ended_ = !shard.ok() || !shard->has_value();
    MR_RETURN_IF_ERROR(shard.status());
    if (ended_) return false;
    *element = ElementOf(**shard);
    return true;
  }
  Status Save(StateWriter*) override { return HasNoState(); }
  Status Restore(StateReader*) override { return HasNoState(); }

 private:
  static Status HasNoState() {
    return FailedPrecondition(
        "ShareOut: the position of shards that a work queue hands out must not be saved with an "
        "iterator; the queue's state is in the checkpoint");
  }

  const std::shared_ptr<ShareOut> source_;
  const IteratorContext context_;
  const int64_t reader_;
  bool ended_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> ShardsNode::MakeIterator(
    const IteratorContext& context) const {
  return std::make_unique<ShardsIterator>(this, context);
}

Dataset ReadEach(const Dataset& shards, ReadShardFunction read, ElementSpec spec) {
  return shards.FlatMap(
      [read = std::move(read)](const Element& element) { return read(ShardOf(element)); },
      std::move(spec));
}

}  // namespace

Dataset Shard::PartOf(const Dataset& rows) const {
  Dataset part = begin > 0 ? rows.Skip(begin) : rows;
  return end >= 0 ? part.Take(end - begin) : part;
}

Dataset ShareOut::Read(std::shared_ptr<ShareOut> source, ReadShardFunction read, ElementSpec spec) {
  return ReadEach(Dataset::FromNode(std::make_shared<const ShardsNode>(std::move(source))),
                  std::move(read), std::move(spec));
}

Dataset ShareOut::ReadAll(const std::vector<Shard>& shards, ReadShardFunction read,
                          ElementSpec spec) {
  std::vector<std::string> files;
  std::vector<int64_t> begins, ends, epochs, ids;
  for (const Shard& shard : shards) {
    files.push_back(shard.file);
    begins.push_back(shard.begin);
    ends.push_back(shard.end);
    epochs.push_back(shard.epoch);
    ids.push_back(shard.id);
  }
  return ReadEach(
      Dataset::FromTensorSlices({Tensor::Vector<std::string>(files),
                                 Tensor::Vector<int64_t>(begins), Tensor::Vector<int64_t>(ends),
                                 Tensor::Vector<int64_t>(epochs), Tensor::Vector<int64_t>(ids)}),
      std::move(read), std::move(spec));
}

// --- For those who bring shards ------------------------------------------------------------------

int64_t ShareOut::Begin() {
  MutexLock lock(&mu_);
  ready_.clear();
  reading_.reset();
  finished_.clear();
  is_telling_ = false;
  has_nothing_ = false;
  end_.reset();
  is_stopped_ = false;
  changed_.SignalAll();
  return ++bringer_;
}

ShareOut::Wish ShareOut::AwaitWish(int64_t bringer) {
  MutexLock lock(&mu_);
  while (bringer == bringer_ && !is_stopped_ && finished_.empty() && !wants_shard() &&
         !waits_for_shard()) {
    changed_.Wait(&mu_);
  }
  Wish wish;
  wish.is_over = bringer != bringer_ || is_stopped_;
  if (wish.is_over) return wish;
  wish.finished.swap(finished_);
  is_telling_ = !wish.finished.empty();
  wish.wants_shard = wants_shard();
  wish.waits_for_shard = waits_for_shard();
  return wish;
}

void ShareOut::Told(int64_t bringer) {
  MutexLock lock(&mu_);
  if (bringer != bringer_) return;
  is_telling_ = false;
  changed_.SignalAll();
}

void ShareOut::Put(int64_t bringer, Shard shard) {
  MutexLock lock(&mu_);
  if (bringer != bringer_) return;
  ready_.push_back(std::move(shard));
  changed_.SignalAll();
}

void ShareOut::PutNothing(int64_t bringer) {
  MutexLock lock(&mu_);
  if (bringer == bringer_) has_nothing_ = true;
}

void ShareOut::End(int64_t bringer, Status status) {
  MutexLock lock(&mu_);
  if (bringer != bringer_) return;
  end_ = std::move(status);
  changed_.SignalAll();
}

void ShareOut::Stop(int64_t bringer) {
  MutexLock lock(&mu_);
  if (bringer != bringer_) return;
  is_stopped_ = true;
  changed_.SignalAll();
}

std::vector<int64_t> ShareOut::TakeFinished(int64_t bringer) {
  MutexLock lock(&mu_);
  while (bringer == bringer_ && is_telling_) changed_.Wait(&mu_);
  return bringer == bringer_ ? std::exchange(finished_, {}) : std::vector<int64_t>();
}

// --- For the reader's dataset --------------------------------------------------------------------

int64_t ShareOut::BeginReader() {
  MutexLock lock(&mu_);
  if (reading_) ready_.push_front(*std::exchange(reading_, std::nullopt));
  changed_.SignalAll();
  return ++reader_;
}

StatusOr<std::optional<Shard>> ShareOut::NextShard(int64_t reader,
                                                   CancellationManager* cancellation) {
  CancellationManager::Token token = 0;
  if (!cancellation->Register(&token, [this] {
        MutexLock lock(&mu_);
        changed_.SignalAll();
      })) {
    return absl::CancelledError("ShareOut: the reader was cancelled");
  }
  StatusOr<std::optional<Shard>> next = [&]() -> StatusOr<std::optional<Shard>> {
    MutexLock lock(&mu_);
    if (reader == reader_ && reading_) {
      finished_.push_back(std::exchange(reading_, std::nullopt)->id);
      changed_.SignalAll();
    }
    while (reader == reader_ && !cancellation->IsCancelled() && ready_.empty() && !end_) {
      ++num_waiting_;
      changed_.SignalAll();
      changed_.Wait(&mu_);
      --num_waiting_;
    }
    if (reader != reader_ || cancellation->IsCancelled()) {
      return absl::CancelledError("ShareOut: the reader was cancelled");
    }
    if (!ready_.empty()) {
      reading_ = std::move(ready_.front());
      ready_.pop_front();
      has_nothing_ = false;
      changed_.SignalAll();
      return reading_;
    }
    MR_RETURN_IF_ERROR(*end_);
    return std::optional<Shard>();
  }();
  cancellation->Deregister(token);
  return next;
}

}  // namespace millrace::data
