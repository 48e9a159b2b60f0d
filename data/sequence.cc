// SPDX-License-Identifier: Apache-2.0
//
// Which elements, how often, in what company: Take, Skip, Shard, Repeat, Concatenate, Zip,
// Enumerate.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

using Inputs = std::vector<Dataset>;

// --- Take

int64_t TakenCardinality(int64_t input, int64_t count) {
  if (count < 0) return input;
  if (input == kInfiniteCardinality) return count;
  if (input == kUnknownCardinality) return count == 0 ? 0 : kUnknownCardinality;
  return std::min(input, count);
}

class TakeNode : public DatasetNode {
 public:
  TakeNode(const Inputs& inputs, int64_t count)
      : DatasetNode(inputs[0].spec(), TakenCardinality(inputs[0].cardinality(), count), inputs),
        count_(count) {}
  std::string Text() const override { return absl::StrCat("Take(", count_, ")"); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t count() const { return count_ < 0 ? INT64_MAX : count_; }

 private:
  const int64_t count_;
};

class TakeIterator : public ElementIterator {
 public:
  TakeIterator(const TakeNode* node, const IteratorContext&, std::unique_ptr<ElementIterator> input)
      : input_(std::move(input)), count_(node->count()), left_(count_) {}
  StatusOr<bool> Next(Element* element) override {
    if (left_ == 0) return false;
    --left_;  // an error takes the place of its element
    return input_->Next(element);
  }
  bool ServesBlocks() const override { return input_->ServesBlocks(); }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    if (left_ == 0) return false;
    StatusOr<bool> more = input_->NextBlock(std::min(max_rows, left_), block);
    if (!more.ok()) {
      --left_;
    } else if (*more) {
      left_ -= block->rows;
    }
    return more;
  }
  bool NextIsReady() const override { return left_ == 0 || input_->NextIsReady(); }
  bool NeverWaits() const override { return input_->NeverWaits(); }
  Status Save(StateWriter* state) override {
    state->PutInt(left_);
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(left_, state->GetInt(0, count_));
    return input_->Restore(state);
  }

 private:
  const std::unique_ptr<ElementIterator> input_;
  const int64_t count_;
  int64_t left_;
};

StatusOr<std::unique_ptr<ElementIterator>> TakeNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<TakeNode, TakeIterator>(this, context);
}

// --- Skip

int64_t SkippedCardinality(int64_t input, int64_t count) {
  if (count < 0) return 0;
  if (input < 0) return input;
  return std::max<int64_t>(input - count, 0);
}

class SkipNode : public DatasetNode {
 public:
  SkipNode(const Inputs& inputs, int64_t count)
      : DatasetNode(inputs[0].spec(), SkippedCardinality(inputs[0].cardinality(), count), inputs),
        count_(count) {}
  std::string Text() const override { return absl::StrCat("Skip(", count_, ")"); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t count() const { return count_; }

 private:
  const int64_t count_;
};

class SkipIterator : public ElementIterator {
 public:
  SkipIterator(const SkipNode* node, const IteratorContext& context,
               std::unique_ptr<ElementIterator> input)
      : input_(std::move(input)), context_(context), count_(node->count()), left_(count_) {}
  StatusOr<bool> Next(Element* element) override {
    MR_ASSIGN_OR_RETURN(const bool more, SkipAll());
    if (!more) return false;
    return input_->Next(element);
  }
  bool ServesBlocks() const override { return input_->ServesBlocks(); }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    MR_ASSIGN_OR_RETURN(const bool more, SkipAll());
    if (!more) return false;
    return input_->NextBlock(max_rows, block);
  }
  StatusOr<bool> NextRows(int64_t max_rows, Block* block) override {
    MR_ASSIGN_OR_RETURN(const bool more, SkipAll());
    if (!more) return false;
    return input_->NextRows(max_rows, block);
  }
  bool NextIsReady() const override { return left_ == 0 && input_->NextIsReady(); }
  bool NeverWaits() const override { return left_ == 0 && input_->NeverWaits(); }
  Status Save(StateWriter* state) override {
    state->PutInt(left_);
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(left_,
                        state->GetInt(std::min<int64_t>(count_, 0), std::max<int64_t>(count_, 0)));
    return input_->Restore(state);
  }

 private:
  // False: the input ended before. An error is one of what is skipped, and told.
  StatusOr<bool> SkipAll() {
    if (left_ < 0) return false;
    Block block;
    Element element;
    while (left_ > 0) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      const bool blocks = input_->ServesBlocks();
      StatusOr<bool> more = blocks ? input_->NextBlock(left_, &block) : input_->Next(&element);
      left_ -= more.ok() && *more && blocks ? block.rows : 1;
      if (!more.ok()) return more;
      if (!*more) {
        left_ = 0;
        return false;  // the input repeats its end
      }
    }
    return true;
  }

  const std::unique_ptr<ElementIterator> input_;
  const IteratorContext context_;
  const int64_t count_;
  int64_t left_;
};

StatusOr<std::unique_ptr<ElementIterator>> SkipNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<SkipNode, SkipIterator>(this, context);
}

// --- Shard

int64_t ShardCardinality(int64_t input, int64_t num_shards, int64_t index) {
  return input < 0 ? input : input / num_shards + (index < input % num_shards ? 1 : 0);
}

class ShardNode : public DatasetNode {
 public:
  ShardNode(const Inputs& inputs, int64_t num_shards, int64_t index)
      : DatasetNode(inputs[0].spec(), ShardCardinality(inputs[0].cardinality(), num_shards, index),
                    inputs),
        num_shards_(num_shards),
        index_(index) {}
  std::string Text() const override {
    return absl::StrCat("Shard(", num_shards_, ", ", index_, ")");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t num_shards() const { return num_shards_; }
  int64_t index() const { return index_; }

 private:
  const int64_t num_shards_, index_;
};

class ShardIterator : public ElementIterator {
 public:
  ShardIterator(const ShardNode* node, const IteratorContext& context,
                std::unique_ptr<ElementIterator> input)
      : node_(node), input_(std::move(input)), context_(context) {}
  StatusOr<bool> Next(Element* element) override {
    for (;;) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      const bool ours = position_ == node_->index();
      position_ = (position_ + 1) % node_->num_shards();
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(element));
      if (!more || ours) return more;
    }
  }
  bool NeverWaits() const override { return input_->NeverWaits(); }
  Status Save(StateWriter* state) override {
    state->PutInt(position_);
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(position_, state->GetInt(0, node_->num_shards() - 1));
    return input_->Restore(state);
  }

 private:
  const ShardNode* const node_;
  const std::unique_ptr<ElementIterator> input_;
  const IteratorContext context_;
  int64_t position_ = 0;  // of the next element, modulo the number of shards
};

StatusOr<std::unique_ptr<ElementIterator>> ShardNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<ShardNode, ShardIterator>(this, context);
}

// --- Repeat

int64_t RepeatedCardinality(int64_t input, int64_t count) {
  if (count == 0 || input == 0) return 0;
  // Of an unknown one, too: who would evaluate it to its end must be warned.
  if (count < 0 || input == kInfiniteCardinality) return kInfiniteCardinality;
  if (input == kUnknownCardinality) return kUnknownCardinality;
  return input > INT64_MAX / count ? INT64_MAX : input * count;
}

class RepeatNode : public DatasetNode {
 public:
  RepeatNode(const Inputs& inputs, int64_t count)
      : DatasetNode(inputs[0].spec(), RepeatedCardinality(inputs[0].cardinality(), count), inputs),
        count_(count) {}
  std::string Text() const override { return absl::StrCat("Repeat(", count_, ")"); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t count() const { return count_; }

 private:
  const int64_t count_;
};

class RepeatIterator : public ElementIterator {
 public:
  RepeatIterator(const RepeatNode* node, const IteratorContext& context)
      : node_(node), context_(context) {}
  // The first pass is made at once: whether it serves blocks is that of all.
  Status Begin() {
    const uint64_t count = node_->count() < 0 ? 1 : static_cast<uint64_t>(node_->count());
    IteratorContext pass = context_;
    pass.pass = context_.pass * count + static_cast<uint64_t>(pass_);
    MR_ASSIGN_OR_RETURN(input_, MakeInput(*node_, pass));
    serves_blocks_ = input_->ServesBlocks();
    return absl::OkStatus();
  }
  StatusOr<bool> Next(Element* element) override {
    return Continue([&] { return input_->Next(element); });
  }
  bool ServesBlocks() const override { return serves_blocks_; }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    return Continue([&] { return input_->NextBlock(max_rows, block); });
  }
  StatusOr<bool> NextRows(int64_t max_rows, Block* block) override {
    return Continue([&] { return input_->NextRows(max_rows, block); });
  }
  bool NextIsReady() const override { return !ended_ && input_->NextIsReady(); }
  bool NeverWaits() const override { return input_->NeverWaits(); }
  Status Save(StateWriter* state) override {
    state->PutInt(pass_);
    state->PutBool(pass_gave_);
    state->PutBool(ended_);
    return ended_ ? absl::OkStatus() : input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(pass_, state->GetInt(0, INT64_MAX));
    MR_ASSIGN_OR_RETURN(pass_gave_, state->GetBool());
    MR_ASSIGN_OR_RETURN(ended_, state->GetBool());
    if (ended_) return absl::OkStatus();
    MR_RETURN_IF_ERROR(Begin());
    return input_->Restore(state);
  }

 private:
  template <typename Pull>
  StatusOr<bool> Continue(const Pull& pull) {
    if (node_->count() == 0) ended_ = true;
    while (!ended_) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      MR_ASSIGN_OR_RETURN(const bool more, pull());
      if (more) {
        pass_gave_ = true;
        return true;
      }
      ++pass_;
      if (!pass_gave_ && node_->count() < 0) {
        LogWarning("Dataset.Repeat: a dataset without elements is repeated without end; it ends: ",
                   node_->inputs()[0].DebugString());
        ended_ = true;
      } else if (!pass_gave_ || pass_ == node_->count()) {
        ended_ = true;
      } else {
        pass_gave_ = false;
        const Status begun = Begin();
        if (!begun.ok()) ended_ = true;  // it would fail for ever
        MR_RETURN_IF_ERROR(begun);
      }
    }
    return false;
  }

  const RepeatNode* const node_;
  const IteratorContext context_;
  std::unique_ptr<ElementIterator> input_;
  int64_t pass_ = 0;
  bool pass_gave_ = false;  // an element
  bool ended_ = false;
  bool serves_blocks_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> RepeatNode::MakeIterator(
    const IteratorContext& context) const {
  auto iterator = std::make_unique<RepeatIterator>(this, context);
  MR_RETURN_IF_ERROR(iterator->Begin());
  return iterator;
}

// --- Concatenate

int64_t SumOfCardinalities(int64_t a, int64_t b) {
  if (a == kInfiniteCardinality || b == kInfiniteCardinality) return kInfiniteCardinality;
  if (a == kUnknownCardinality || b == kUnknownCardinality) return kUnknownCardinality;
  return a > INT64_MAX - b ? INT64_MAX : a + b;
}

class ConcatenateNode : public DatasetNode {
 public:
  ConcatenateNode(const Inputs& inputs, ElementSpec spec)
      : DatasetNode(std::move(spec),
                    SumOfCardinalities(inputs[0].cardinality(), inputs[1].cardinality()), inputs) {}
  std::string Text() const override { return "Concatenate"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
};

class ConcatenateIterator : public ElementIterator {
 public:
  ConcatenateIterator(std::unique_ptr<ElementIterator> first,
                      std::unique_ptr<ElementIterator> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  StatusOr<bool> Next(Element* element) override {
    if (in_first_) {
      MR_ASSIGN_OR_RETURN(const bool more, first_->Next(element));
      if (more) return true;
      in_first_ = false;
    }
    return second_->Next(element);
  }
  bool NextIsReady() const override {
    return in_first_ ? first_->NextIsReady() : second_->NextIsReady();
  }
  bool NeverWaits() const override { return first_->NeverWaits() && second_->NeverWaits(); }
  Status Save(StateWriter* state) override {
    state->PutBool(in_first_);
    return in_first_ ? first_->Save(state) : second_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(in_first_, state->GetBool());
    return in_first_ ? first_->Restore(state) : second_->Restore(state);
  }

 private:
  const std::unique_ptr<ElementIterator> first_, second_;
  bool in_first_ = true;
};

StatusOr<std::unique_ptr<ElementIterator>> ConcatenateNode::MakeIterator(
    const IteratorContext& context) const {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<ElementIterator> first, MakeInput(*this, context, 0));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<ElementIterator> second, MakeInput(*this, context, 1));
  return std::make_unique<ConcatenateIterator>(std::move(first), std::move(second));
}

// --- Zip

ElementSpec ZippedSpec(const Inputs& inputs) {
  ElementSpec spec;
  for (const Dataset& input : inputs) {
    if (input.spec().empty()) return {};
    spec.insert(spec.end(), input.spec().begin(), input.spec().end());
  }
  return spec;
}

int64_t ZippedCardinality(const Inputs& inputs) {
  int64_t shortest = kInfiniteCardinality;
  for (const Dataset& input : inputs) {
    const int64_t n = input.cardinality();
    if (n == 0) return 0;
    if (n == kInfiniteCardinality || shortest == kUnknownCardinality) continue;
    shortest =
        n == kUnknownCardinality || shortest == kInfiniteCardinality ? n : std::min(shortest, n);
  }
  return shortest;
}

class ZipNode : public DatasetNode {
 public:
  explicit ZipNode(const Inputs& inputs)
      : DatasetNode(ZippedSpec(inputs), ZippedCardinality(inputs), inputs) {}
  std::string Text() const override { return "Zip"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
};

class ZipIterator : public ElementIterator {
 public:
  explicit ZipIterator(std::vector<std::unique_ptr<ElementIterator>> inputs)
      : inputs_(std::move(inputs)), parts_(inputs_.size()) {}
  // Every input moves on by one, also where another one has an error: rows stay together.
  StatusOr<bool> Next(Element* element) override {
    if (ended_) return false;
    Status first_error;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const StatusOr<bool> more = inputs_[i]->Next(&parts_[i]);
      if (!more.ok()) {
        if (first_error.ok()) first_error = more.status();
      } else if (!*more) {
        ended_ = true;
        break;
      }
    }
    MR_RETURN_IF_ERROR(first_error);
    if (ended_) return false;
    element->clear();
    for (Element& part : parts_) {
      for (Tensor& tensor : part) element->push_back(std::move(tensor));
    }
    return true;
  }
  bool NextIsReady() const override {
    return ended_ || std::all_of(inputs_.begin(), inputs_.end(),
                                 [](const auto& input) { return input->NextIsReady(); });
  }
  bool NeverWaits() const override {
    return std::all_of(inputs_.begin(), inputs_.end(),
                       [](const auto& input) { return input->NeverWaits(); });
  }
  Status Save(StateWriter* state) override {
    state->PutBool(ended_);
    for (const auto& input : inputs_) MR_RETURN_IF_ERROR(input->Save(state));
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(ended_, state->GetBool());
    for (const auto& input : inputs_) MR_RETURN_IF_ERROR(input->Restore(state));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<ElementIterator>> inputs_;
  std::vector<Element> parts_;
  bool ended_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> ZipNode::MakeIterator(
    const IteratorContext& context) const {
  std::vector<std::unique_ptr<ElementIterator>> iterators;
  for (size_t i = 0; i < inputs().size(); ++i) {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<ElementIterator> input, MakeInput(*this, context, i));
    iterators.push_back(std::move(input));
  }
  return std::make_unique<ZipIterator>(std::move(iterators));
}

// --- Enumerate

ElementSpec EnumeratedSpec(const ElementSpec& input) {
  if (input.empty()) return {};
  ElementSpec spec = {{DT_INT64, PartialShape::Scalar()}};
  spec.insert(spec.end(), input.begin(), input.end());
  return spec;
}

class EnumerateNode : public DatasetNode {
 public:
  EnumerateNode(const Inputs& inputs, int64_t start)
      : DatasetNode(EnumeratedSpec(inputs[0].spec()), inputs[0].cardinality(), inputs),
        start_(start) {}
  std::string Text() const override { return absl::StrCat("Enumerate(", start_, ")"); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t start() const { return start_; }

 private:
  const int64_t start_;
};

class EnumerateIterator : public ElementIterator {
 public:
  EnumerateIterator(const EnumerateNode* node, const IteratorContext&,
                    std::unique_ptr<ElementIterator> input)
      : input_(std::move(input)), next_(static_cast<uint64_t>(node->start())) {}
  StatusOr<bool> Next(Element* element) override {
    MR_ASSIGN_OR_RETURN(const bool more, input_->Next(element));
    if (!more) return false;
    element->insert(element->begin(), Tensor::Scalar(static_cast<int64_t>(next_++)));
    return true;
  }
  bool NextIsReady() const override { return input_->NextIsReady(); }
  bool NeverWaits() const override { return input_->NeverWaits(); }
  Status Save(StateWriter* state) override {
    state->PutUint(next_);
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(next_, state->GetUint());
    return input_->Restore(state);
  }

 private:
  const std::unique_ptr<ElementIterator> input_;
  uint64_t next_;
};

StatusOr<std::unique_ptr<ElementIterator>> EnumerateNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<EnumerateNode, EnumerateIterator>(this, context);
}

}  // namespace

Dataset Dataset::Take(int64_t count) const { return MakeDataset<TakeNode>({*this}, count); }

Dataset Dataset::Skip(int64_t count) const { return MakeDataset<SkipNode>({*this}, count); }

Dataset Dataset::Shard(int64_t num_shards, int64_t index) const {
  if (!status_.ok()) return *this;
  if (num_shards < 1) {
    return Error(InvalidArgument("Dataset.Shard: num_shards must be >= 1, got ", num_shards));
  }
  if (index < 0 || index >= num_shards) {
    return Error(InvalidArgument("Dataset.Shard: index must be >= 0 and below num_shards ",
                                 num_shards, ", got ", index));
  }
  return MakeDataset<ShardNode>({*this}, num_shards, index);
}

Dataset Dataset::Repeat(int64_t count) const { return MakeDataset<RepeatNode>({*this}, count); }

Dataset Dataset::Concatenate(const Dataset& next) const {
  if (!status_.ok()) return *this;
  if (!next.status_.ok()) return next;
  StatusOr<ElementSpec> spec = CommonSpec("Dataset.Concatenate", this->spec(), next.spec());
  if (!spec.ok()) return Error(spec.status());
  return MakeDataset<ConcatenateNode>({*this, next}, *std::move(spec));
}

Dataset Dataset::Zip(std::vector<Dataset> datasets) {
  if (datasets.empty()) {
    return Error(InvalidArgument("Dataset.Zip: there must be at least one dataset, got none"));
  }
  return MakeDataset<ZipNode>(datasets);
}

Dataset Dataset::Enumerate(int64_t start) const {
  return MakeDataset<EnumerateNode>({*this}, start);
}

}  // namespace millrace::data
