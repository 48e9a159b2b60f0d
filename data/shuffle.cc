// SPDX-License-Identifier: Apache-2.0
//
// Shuffle and ShuffleAndRepeat: a buffer that is filled first; then each element that is given out
// is a uniformly chosen one of the buffer, and the next of the input takes its room.
//
// The order is TensorFlow's for the same seeds: the buffer is a ring in which the elements of one
// epoch lie side by side (a slice); of the oldest slice [begin, end) the element at begin + (word
// mod (end - begin)) is chosen, the one at begin takes its place, and begin moves on. So with a
// count an epoch's elements all come before those of the next, though both are in the buffer.
//
// Small rows of known shapes (data/row_store.h) that come in blocks are kept packed: a copy of some
// bytes into the buffer, and one out of it into a block. Other elements are objects.

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "data/dataset.h"
#include "data/dataset_node.h"
#include "data/row_store.h"
#include "ops/loops/philox.h"

namespace millrace::data {
namespace {

constexpr absl::Duration kProgressPeriod = absl::Seconds(10);
// Rows that are asked of the input at a time.
constexpr int64_t kRowsAhead = 256;
// Of a block that is given out.
constexpr int64_t kMostRows = 4096;
// How many rows before it is given out a row is fetched into the cache, and then its texts.
constexpr int64_t kFetchAhead = 16, kFetchTextsAhead = 8;
// A buffer of fewer bytes is in the cache anyway.
constexpr int64_t kNearBytes = int64_t{128} << 10;

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
  // The first epoch is begun at once: whether it serves blocks is that of all.
  Status Begin() {
    if (node_->count() == 0) return absl::OkStatus();
    MR_RETURN_IF_ERROR(BeginEpoch());
    if (input_->ServesBlocks() && RowStore::CanHold(node_->spec())) rows_.emplace(node_->spec());
    fetches_ahead_ =
        rows_ && node_->buffer_size() >
                     kNearBytes / std::max<int64_t>(static_cast<int64_t>(rows_->row_bytes()), 1);
    return absl::OkStatus();
  }

  StatusOr<bool> Next(Element* element) override {
    MR_RETURN_IF_ERROR(Fill());
    if (!HasElement()) return false;
    const Draw draw = DrawPlaces();
    if (rows_) {
      MR_RETURN_IF_ERROR(rows_->Copy(draw.chosen, element));
      rows_->Move(draw.first, draw.chosen);
      return true;
    }
    element->swap(ring_[static_cast<size_t>(draw.chosen)]);
    Element& first = ring_[static_cast<size_t>(draw.first)];
    if (draw.chosen != draw.first) ring_[static_cast<size_t>(draw.chosen)].swap(first);
    first.clear();
    return true;
  }
  bool ServesBlocks() const override { return rows_.has_value(); }
  // It ends where more of the input would have to be waited for.
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    return FillBlock(max_rows, /*waits=*/false, block);
  }
  StatusOr<bool> NextRows(int64_t max_rows, Block* block) override {
    return FillBlock(max_rows, /*waits=*/true, block);
  }

  bool NextIsReady() const override {
    if (ended_) return true;
    if (!filled_once_) return false;
    return ahead_next_ < ahead_.rows || (input_ != nullptr && input_->NextIsReady());
  }
  bool NeverWaits() const override {
    return ended_ || (filled_once_ && input_ != nullptr && input_->NeverWaits());
  }
  Status Save(StateWriter* state) override {
    state->PutUint(words_used_);
    state->PutInt(epoch_);
    state->PutBool(epoch_gave_);
    state->PutBool(ended_);
    // Positions are counted anew: the ring begins with the oldest element.
    state->PutInt(static_cast<int64_t>(slices_.size()));
    Element element;
    for (const Slice& slice : slices_) {
      state->PutInt(slice.end - slice.begin);
      for (int64_t i = slice.begin; i < slice.end; ++i) {
        const int64_t place = PlaceOf(i);
        if (rows_) MR_RETURN_IF_ERROR(rows_->Copy(place, &element));
        MR_RETURN_IF_ERROR(state->PutElement(rows_ ? element : ring_[static_cast<size_t>(place)]));
      }
    }
    state->PutInt(ahead_.rows - ahead_next_);
    for (int64_t row = ahead_next_; row < ahead_.rows; ++row) {
      MR_RETURN_IF_ERROR(ElementOf(ahead_, row, &element));
      MR_RETURN_IF_ERROR(state->PutElement(element));
    }
    if (ended_) return absl::OkStatus();
    state->PutBool(input_ != nullptr);
    return input_ == nullptr ? absl::OkStatus() : input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    slices_.clear();
    input_.reset();
    MR_ASSIGN_OR_RETURN(words_used_, state->GetUint());
    if (words_used_ > uint64_t{INT64_MAX}) {
      return absl::DataLossError("Iterator state: there are not so many random words");
    }
    words_made_ = words_used_ / 4 * 4;
    MR_ASSIGN_OR_RETURN(epoch_, state->GetInt(0, INT64_MAX));
    MR_ASSIGN_OR_RETURN(epoch_gave_, state->GetBool());
    MR_ASSIGN_OR_RETURN(ended_, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t num_slices, state->GetCount());
    for (int64_t i = 0; i < num_slices; ++i) {
      slices_.push_back({next_, next_});
      MR_ASSIGN_OR_RETURN(const int64_t n, state->GetInt(0, node_->buffer_size() - held_));
      for (int64_t j = 0; j < n; ++j) {
        MR_ASSIGN_OR_RETURN(Element element, state->GetElement());
        MR_RETURN_IF_ERROR(AddSaved(&element));
      }
    }
    MR_RETURN_IF_ERROR(RestoreAhead(state));
    if (ended_) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const bool has_input, state->GetBool());
    if (!has_input) return absl::OkStatus();
    const bool has_slice = !slices_.empty();
    MR_RETURN_IF_ERROR(BeginEpoch());
    if (has_slice) slices_.pop_back();  // that of the epoch was saved
    return input_->Restore(state);
  }

 private:
  StatusOr<bool> FillBlock(int64_t max_rows, bool waits, Block* block) {
    MR_RETURN_IF_ERROR(Fill());
    if (!HasElement()) return false;
    int64_t most = std::min(max_rows, kMostRows);
    if (ended_) most = std::min(most, held_);
    MR_ASSIGN_OR_RETURN(RowStore::NewRows rows, rows_->AllocateRows(most));
    int64_t row = 0;
    do {
      if (fetches_ahead_) FetchAhead();
      const Draw draw = DrawPlaces();
      rows_->CopyRow(draw.chosen, row++, rows);
      rows_->Move(draw.first, draw.chosen);
      if (row == most) break;
      if (ended_) continue;
      if (ahead_next_ < ahead_.rows) {
        AddRow();
      } else if (waits) {
        MR_RETURN_IF_ERROR(Fill());
      } else {
        break;
      }
    } while (HasElement());
    *block = row == most ? std::move(rows.block) : millrace::data::Slice(rows.block, 0, row);
    return true;
  }

  // Of one epoch: positions, which only grow; the place in the ring is the remainder.
  struct Slice {
    int64_t begin, end;
  };
  // Places: of the element to be given out, and of the one that takes its place.
  struct Draw {
    int64_t chosen, first;
  };

  int64_t PlaceOf(int64_t position) const { return position % node_->buffer_size(); }

  // The place that the draw `ahead` draws from now will choose, if until then each is followed by
  // one more row of the input, as mostly. -1: not known.
  int64_t PlaceAhead(int64_t ahead) {
    const Slice& slice = slices_.front();
    const int64_t begin = slice.begin + ahead;
    const int64_t end = slice.end + (ended_ || slices_.size() > 1 ? 0 : ahead);
    if (begin >= end) return -1;
    const int64_t chosen =
        begin + WordAt(words_used_ + static_cast<uint64_t>(ahead)) % (end - begin);
    // What is to come from the input.
    return chosen < next_ ? PlaceOf(chosen) : -1;
  }
  void FetchAhead() {
    if (const int64_t place = PlaceAhead(kFetchAhead); place >= 0) rows_->Fetch(place);
    if (!rows_->has_texts()) return;
    if (const int64_t place = PlaceAhead(kFetchTextsAhead); place >= 0) rows_->FetchTexts(place);
  }

  // Is there one to be given out? Requires a full buffer, or an input that has ended.
  bool HasElement() {
    while (!slices_.empty() && slices_.front().begin == slices_.front().end) slices_.pop_front();
    return !slices_.empty();
  }
  Draw DrawPlaces() {
    Slice& slice = slices_.front();
    MR_DCHECK(held_ > 0 && slice.begin < slice.end, "HasElement drops slices that are empty");
    const int64_t chosen = slice.begin + Random() % (slice.end - slice.begin);
    --held_;
    return {PlaceOf(chosen), PlaceOf(slice.begin++)};
  }

  // The place of the next element of the input. Requires a slice and room.
  int64_t NextPlace() {
    MR_DCHECK(!slices_.empty() && held_ < node_->buffer_size(),
              "an element comes where one was given out: its place in the ring is free");
    const int64_t place = PlaceOf(next_);
    slices_.back().end = ++next_;
    ++held_;
    return place;
  }
  // `element` becomes what was there: an empty one, whose memory the next takes.
  void Add(Element* element) {
    if (PlaceOf(next_) == static_cast<int64_t>(ring_.size())) ring_.emplace_back();
    ring_[static_cast<size_t>(NextPlace())].swap(*element);
  }
  // Requires a row that was read ahead.
  void AddRow() {
    const int64_t place = PlaceOf(next_);
    rows_->Put(ahead_rows_, ahead_next_++, place);
    NextPlace();
  }
  Status AddSaved(Element* element) {
    if (!rows_) {
      Add(element);
      return absl::OkStatus();
    }
    const Status put = rows_->Put("Iterator state", *element, PlaceOf(next_));
    if (!put.ok()) return absl::DataLossError(put.message());
    NextPlace();
    return absl::OkStatus();
  }
  Status RestoreAhead(StateReader* state) {
    ahead_ = Block();
    ahead_next_ = 0;
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetCount());
    if (count == 0) return absl::OkStatus();
    std::vector<Element> elements;
    for (int64_t i = 0; i < count; ++i) {
      MR_ASSIGN_OR_RETURN(Element element, state->GetElement());
      elements.push_back(std::move(element));
    }
    StatusOr<Element> stacked = Stacked(absl::MakeSpan(elements));
    if (!stacked.ok() || !rows_) return absl::DataLossError("Iterator state: there are no rows");
    ahead_.rows = count;
    for (Tensor& tensor : *stacked) ahead_.columns.push_back({.stacked = std::move(tensor)});
    const Status fits = rows_->Check("Iterator state", ahead_);
    if (!fits.ok()) return absl::DataLossError(fits.message());
    ahead_rows_ = rows_->Rows(ahead_);
    return absl::OkStatus();
  }

  Status BeginEpoch() {
    IteratorContext context = context_;
    const uint64_t count = node_->count() < 0 ? 1 : static_cast<uint64_t>(node_->count());
    context.pass = context_.pass * count + static_cast<uint64_t>(epoch_);
    MR_ASSIGN_OR_RETURN(input_, MakeInput(*node_, context));
    slices_.push_back({next_, next_});
    return absl::OkStatus();
  }

  // The next element of the input into the buffer. False: the input has ended.
  StatusOr<bool> AddNext() {
    if (!rows_) {
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&next_element_));
      if (more) Add(&next_element_);
      return more;
    }
    if (ahead_next_ == ahead_.rows) {
      ahead_next_ = 0;
      ahead_ = Block();
      Block block;
      MR_ASSIGN_OR_RETURN(const bool more, input_->NextBlock(kRowsAhead, &block));
      if (!more) return false;
      MR_RETURN_IF_ERROR(rows_->Check("Dataset.Shuffle", block));
      ahead_ = std::move(block);
      ahead_rows_ = rows_->Rows(ahead_);
    }
    AddRow();
    return true;
  }

  // Until the buffer is full or the input has ended. An error is returned at once: what is in the
  // buffer stays there.
  Status Fill() {
    if (node_->count() == 0) ended_ = true;
    while (!ended_ && held_ < node_->buffer_size()) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      if (input_ == nullptr) {
        const Status begun = BeginEpoch();
        if (!begun.ok()) ended_ = true;  // it would fail for ever
        MR_RETURN_IF_ERROR(begun);
        epoch_gave_ = false;
      }
      MR_ASSIGN_OR_RETURN(const bool more, AddNext());
      if (more) {
        epoch_gave_ = true;
        if (!filled_once_) LogProgress();
        continue;
      }
      input_.reset();
      ++epoch_;
      if (!epoch_gave_ && node_->count() < 0) {
        LogWarning(
            "Dataset.ShuffleAndRepeat: a dataset without elements is "
            "repeated without end; ",
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

  uint32_t Random() { return WordAt(words_used_++); }
  // Word `index` of the generator, which is at most kFetchAhead behind those that were used.
  uint32_t WordAt(uint64_t index) {
    while (index >= words_made_) {
      const math::PhiloxStream::Block block =
          math::PhiloxStream(seeds_.first, seeds_.second).At(words_made_ / 4).Next();
      for (const uint32_t word : block) words_[words_made_++ % kWords] = word;
    }
    return words_[index % kWords];
  }

  const ShuffleNode* const node_;
  const IteratorContext context_;
  const IteratorContext::Seeds seeds_;
  std::unique_ptr<ElementIterator> input_;  // of the epoch that is read; null between epochs
  // The ring: rows, or elements. It grows up to the buffer size.
  std::optional<RowStore> rows_;
  std::vector<Element> ring_;
  Element next_element_;  // of the input, on its way to the ring
  Block ahead_;           // of the input, on their way to the rows
  RowStore::RowsOf ahead_rows_;
  int64_t ahead_next_ = 0;    // row of it that is next
  std::deque<Slice> slices_;  // oldest epoch first
  int64_t next_ = 0;          // position of the next element of the input
  int64_t held_ = 0;
  int64_t epoch_ = 0;        // that is read
  bool epoch_gave_ = false;  // an element
  bool ended_ = false;       // the input, for good
  bool filled_once_ = false;
  bool fetches_ahead_ = false;  // of rows
  uint64_t words_used_ = 0;
  // The last words that were made, word i at i mod kWords: they are made in fours.
  static constexpr uint64_t kWords = 32;
  static_assert(kWords >= kFetchAhead + 8);
  uint64_t words_made_ = 0;
  std::array<uint32_t, kWords> words_{};
  LogThrottle progress_{kProgressPeriod, /*wait_first=*/true, context_.environment->options.clock};
};

StatusOr<std::unique_ptr<ElementIterator>> ShuffleNode::MakeIterator(
    const IteratorContext& context) const {
  auto iterator = std::make_unique<ShuffleIterator>(this, context);
  MR_RETURN_IF_ERROR(iterator->Begin());
  return iterator;
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
