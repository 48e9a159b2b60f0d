// SPDX-License-Identifier: Apache-2.0
//
// Shuffle and ShuffleAndRepeat: a buffer that is filled first; then each element that is given out
// is a uniformly chosen one of the buffer, and the next of the input takes its room.
//
// The order is TensorFlow's for the same seeds: the buffer is a ring in which the elements of one
// epoch lie side by side (a slice); of the oldest slice [begin, end) the element at begin + (word
// mod (end - begin)) is chosen, the one at begin takes its place, and begin moves on. So with a
// count an epoch's elements all come before those of the next, though both are in the buffer.

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "data/dataset.h"
#include "data/dataset_node.h"
#include "ops/loops/philox.h"

namespace millrace::data {
namespace {

constexpr absl::Duration kProgressPeriod = absl::Seconds(10);

int64_t RepeatedCardinality(int64_t input, int64_t count) {
  if (count == 1 || input == 0) return input;
  if (count == 0) return 0;
  if (count < 0 || input == kInfiniteCardinality) return kInfiniteCardinality;
  if (input < 0) return input;
  return input > INT64_MAX / count ? INT64_MAX : input * count;
}

class ShuffleNode : public DatasetNode {
 public:
  ShuffleNode(const std::vector<Dataset>& inputs, int64_t buffer_size, ShuffleOptions options,
              int64_t count)
      : DatasetNode(inputs[0].spec(), RepeatedCardinality(inputs[0].cardinality(), count), inputs),
        buffer_size_(buffer_size),
        options_(options),
        count_(count) {}
  std::string Text() const override {
    return absl::StrCat(count_ == 1 ? "Shuffle(" : "ShuffleAndRepeat(", buffer_size_, ", count ",
                        count_, ", seed ", options_.seed, ", seed2 ", options_.seed2,
                        options_.reshuffle_each_iteration ? ")" : ", always the same)");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t buffer_size() const { return buffer_size_; }
  const ShuffleOptions& options() const { return options_; }
  int64_t count() const { return count_; }

 private:
  const int64_t buffer_size_;
  const ShuffleOptions options_;
  const int64_t count_;  // of epochs; kForever
};

class ShuffleIterator : public ElementIterator {
 public:
  ShuffleIterator(const ShuffleNode* node, const IteratorContext& context)
      : node_(node),
        context_(context),
        seeds_(context.SeedsFor(node->options().seed, node->options().seed2,
                                node->options().reshuffle_each_iteration)) {}

  StatusOr<bool> Next(Element* element) override {
    MR_RETURN_IF_ERROR(Fill());
    while (!slices_.empty() && slices_.front().begin == slices_.front().end) slices_.pop_front();
    if (slices_.empty()) return false;
    Slice& slice = slices_.front();
    const int64_t chosen = slice.begin + Random() % (slice.end - slice.begin);
    element->swap(At(chosen));
    if (chosen != slice.begin) At(chosen).swap(At(slice.begin));
    At(slice.begin).clear();
    ++slice.begin;
    --held_;
    return true;
  }

  bool NextIsReady() const override {
    if (ended_) return true;
    return filled_once_ && input_ != nullptr && input_->NextIsReady();
  }
  Status Save(StateWriter* state) override {
    state->PutUint(words_used_);
    state->PutInt(epoch_);
    state->PutBool(epoch_gave_);
    state->PutBool(ended_);
    // Positions are counted anew: the ring begins with the oldest element.
    state->PutInt(static_cast<int64_t>(slices_.size()));
    for (const Slice& slice : slices_) {
      state->PutInt(slice.end - slice.begin);
      for (int64_t i = slice.begin; i < slice.end; ++i) {
        MR_RETURN_IF_ERROR(state->PutElement(At(i)));
      }
    }
    if (ended_) return absl::OkStatus();
    state->PutBool(input_ != nullptr);
    return input_ == nullptr ? absl::OkStatus() : input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(words_used_, state->GetUint());
    MR_ASSIGN_OR_RETURN(epoch_, state->GetInt(0, INT64_MAX));
    MR_ASSIGN_OR_RETURN(epoch_gave_, state->GetBool());
    MR_ASSIGN_OR_RETURN(ended_, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t num_slices, state->GetCount());
    for (int64_t i = 0; i < num_slices; ++i) {
      slices_.push_back({next_, next_});
      MR_ASSIGN_OR_RETURN(const int64_t n, state->GetInt(0, node_->buffer_size() - held_));
      for (int64_t j = 0; j < n; ++j) {
        MR_ASSIGN_OR_RETURN(Element element, state->GetElement());
        Add(&element);
      }
    }
    if (ended_) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const bool has_input, state->GetBool());
    if (!has_input) return absl::OkStatus();
    if (slices_.empty()) slices_.push_back({next_, next_});
    MR_RETURN_IF_ERROR(BeginEpoch());
    return input_->Restore(state);
  }

 private:
  // Of one epoch: positions, which only grow; the place in the ring is the remainder.
  struct Slice {
    int64_t begin, end;
  };

  Element& At(int64_t position) {
    return ring_[static_cast<size_t>(position % node_->buffer_size())];
  }

  // Requires a slice and room. `element` becomes what was there: an empty one, whose memory the
  // next takes.
  void Add(Element* element) {
    const size_t place = static_cast<size_t>(next_ % node_->buffer_size());
    if (place == ring_.size()) {
      ring_.push_back(std::move(*element));
    } else {
      ring_[place].swap(*element);
    }
    slices_.back().end = ++next_;
    ++held_;
  }

  Status BeginEpoch() {
    IteratorContext context = context_;
    const uint64_t count = node_->count() < 0 ? 1 : static_cast<uint64_t>(node_->count());
    context.pass = context_.pass * count + static_cast<uint64_t>(epoch_);
    MR_ASSIGN_OR_RETURN(input_, MakeInput(*node_, context));
    return absl::OkStatus();
  }

  // Until the buffer is full or the input has ended. An error is returned at once: what is in the
  // buffer stays there.
  Status Fill() {
    if (node_->count() == 0) ended_ = true;
    while (!ended_ && held_ < node_->buffer_size()) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      if (input_ == nullptr) {
        MR_RETURN_IF_ERROR(BeginEpoch());
        slices_.push_back({next_, next_});
        epoch_gave_ = false;
      }
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&next_element_));
      if (more) {
        epoch_gave_ = true;
        Add(&next_element_);
        if (!filled_once_) LogProgress();
        continue;
      }
      input_.reset();
      ++epoch_;
      if (!epoch_gave_ && node_->count() < 0) {
        LogWarning("Dataset.ShuffleAndRepeat: a dataset without elements is repeated without end; ",
                   "it ends: ", node_->inputs()[0].DebugString());
      }
      ended_ = !epoch_gave_ || epoch_ == node_->count();
    }
    filled_once_ = true;
    return absl::OkStatus();
  }

  void LogProgress() {
    if (held_ % 64 != 0 || !progress_.ShouldLog()) return;
    LogInfo("Dataset.Shuffle: filling the buffer (this may take a while): ", held_, " of ",
            node_->buffer_size());
  }

  uint32_t Random() {
    const uint64_t block = words_used_ / 4;
    if (words_used_ % 4 == 0 || !has_words_) {
      words_ = math::PhiloxStream(seeds_.first, seeds_.second).At(block).Next();
      has_words_ = true;
    }
    return words_[words_used_++ % 4];
  }

  const ShuffleNode* const node_;
  const IteratorContext context_;
  const IteratorContext::Seeds seeds_;
  std::unique_ptr<ElementIterator> input_;  // of the epoch that is read; null between epochs
  Element next_element_;                    // of the input, on its way to the ring
  std::vector<Element> ring_;               // grows up to the buffer size
  std::deque<Slice> slices_;                // oldest epoch first
  int64_t next_ = 0;                        // position of the next element of the input
  int64_t held_ = 0;
  int64_t epoch_ = 0;        // that is read
  bool epoch_gave_ = false;  // an element
  bool ended_ = false;       // the input, for good
  bool filled_once_ = false;
  bool has_words_ = false;
  uint64_t words_used_ = 0;
  math::PhiloxStream::Block words_{};
  LogThrottle progress_{kProgressPeriod, /*wait_first=*/true, context_.environment->options.clock};
};

StatusOr<std::unique_ptr<ElementIterator>> ShuffleNode::MakeIterator(
    const IteratorContext& context) const {
  return std::make_unique<ShuffleIterator>(this, context);
}

Dataset MakeShuffle(const Dataset& input, absl::string_view where, int64_t buffer_size,
                    ShuffleOptions options, int64_t count) {
  if (!input.status().ok()) return input;
  if (buffer_size < 1) {
    return Dataset::Error(InvalidArgument(where, ": buffer_size must be >= 1, got ", buffer_size));
  }
  return MakeDataset<ShuffleNode>({input}, buffer_size, options, count);
}

}  // namespace

Dataset Dataset::Shuffle(int64_t buffer_size, ShuffleOptions options) const {
  return MakeShuffle(*this, "Dataset.Shuffle", buffer_size, options, 1);
}

Dataset Dataset::ShuffleAndRepeat(int64_t buffer_size, int64_t count,
                                  ShuffleOptions options) const {
  return MakeShuffle(*this, "Dataset.ShuffleAndRepeat", buffer_size, options, count);
}

}  // namespace millrace::data
