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
  explicit ShardsNode(std::shared_ptr<ShardsInHand> source)
      : DatasetNode(ShardSpec(), kUnknownCardinality), source_(std::move(source)) {}
  std::string Text() const override { return "ShareOut"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const std::shared_ptr<ShardsInHand>& source() const { return source_; }

 private:
  const std::shared_ptr<ShardsInHand> source_;
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

  const std::shared_ptr<ShardsInHand> source_;
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

Dataset PartOf(const Shard& shard, const Dataset& rows) {
  const Dataset part = shard.begin > 0 ? rows.Skip(shard.begin) : rows;
  return shard.end >= 0 ? part.Take(shard.end - shard.begin) : part;
}

Dataset ReadShards(std::shared_ptr<ShardsInHand> source, ReadShardFunction read, ElementSpec spec) {
  return ReadEach(Dataset::FromNode(std::make_shared<const ShardsNode>(std::move(source))),
                  std::move(read), std::move(spec));
}

Dataset ReadAllShards(const std::vector<Shard>& shards, ReadShardFunction read, ElementSpec spec) {
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

}  // namespace millrace::data
