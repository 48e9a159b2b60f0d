// SPDX-License-Identifier: Apache-2.0
//
// Datasets that elements are made to, read one after the other or in turns: FlatMap, Interleave,
// Window, GroupByWindow.

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

using Inputs = std::vector<Dataset>;

// One dataset that was made while iterating, and the iterator over it.
struct Inner {
  Dataset dataset;  // outlives the iterator
  std::unique_ptr<ElementIterator> iterator;

  // `ordinal`: of the datasets made in this pass. Each has its own orders and caches.
  static StatusOr<Inner> Make(absl::string_view where, Dataset dataset, const ElementSpec& spec,
                              const IteratorContext& outer, uint64_t ordinal) {
    MR_RETURN_IF_ERROR(dataset.status());
    MR_RETURN_IF_ERROR(MergeSpecs(where, spec, dataset.spec()).status());
    IteratorContext context = outer.Input(1 + ordinal).Input(outer.pass);
    context.pass = (outer.pass << 32) + ordinal;
    MR_ASSIGN_OR_RETURN(std::unique_ptr<ElementIterator> iterator,
                        dataset.node()->MakeIterator(context));
    return Inner{std::move(dataset), std::move(iterator)};
  }
};

// Elements in memory, as a dataset: a window.
class ElementsNode : public DatasetNode {
 public:
  ElementsNode(const Inputs&, std::vector<Element> elements, ElementSpec spec)
      : DatasetNode(std::move(spec), static_cast<int64_t>(elements.size())),
        elements_(std::move(elements)) {}
  std::string Text() const override { return absl::StrCat("Elements(", elements_.size(), ")"); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(const IteratorContext&) const override;
  const std::vector<Element>& elements() const { return elements_; }

 private:
  const std::vector<Element> elements_;
};

class ElementsIterator : public ElementIterator {
 public:
  explicit ElementsIterator(const ElementsNode* node) : node_(node) {}
  StatusOr<bool> Next(Element* element) override {
    if (next_ == node_->elements().size()) return false;
    *element = node_->elements()[next_++];
    return true;
  }
  bool NextIsReady() const override { return true; }
  Status Save(StateWriter* state) override {
    state->PutUint(next_);
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(const int64_t next, state->GetInt(0, node_->cardinality()));
    next_ = static_cast<size_t>(next);
    return absl::OkStatus();
  }

 private:
  const ElementsNode* const node_;
  size_t next_ = 0;
};

StatusOr<std::unique_ptr<ElementIterator>> ElementsNode::MakeIterator(
    const IteratorContext&) const {
  return std::make_unique<ElementsIterator>(this);
}

Status PutElements(const std::vector<Element>& elements, StateWriter* state) {
  state->PutUint(elements.size());
  for (const Element& element : elements) MR_RETURN_IF_ERROR(state->PutElement(element));
  return absl::OkStatus();
}

StatusOr<std::vector<Element>> GetElements(StateReader* state) {
  MR_ASSIGN_OR_RETURN(const int64_t count, state->GetCount());
  std::vector<Element> elements;
  for (int64_t i = 0; i < count; ++i) {
    MR_ASSIGN_OR_RETURN(Element element, state->GetElement());
    elements.push_back(std::move(element));
  }
  return elements;
}

// --- FlatMap and Interleave

class InterleaveNode : public DatasetNode {
 public:
  InterleaveNode(const Inputs& inputs, std::string kind, DatasetFunction function,
                 InterleaveOptions options, ElementSpec spec)
      : DatasetNode(std::move(spec), inputs[0].cardinality() == 0 ? 0 : kUnknownCardinality,
                    inputs),
        kind_(std::move(kind)),
        function_(std::move(function)),
        options_(options) {}
  std::string Text() const override {
    return kind_ == "FlatMap"
               ? kind_
               : absl::StrCat(kind_, "(", options_.cycle_length, ", ", options_.block_length, ")");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const std::string& kind() const { return kind_; }
  const InterleaveOptions& options() const { return options_; }

  StatusOr<Inner> MakeInner(const Element& element, const IteratorContext& context,
                            uint64_t ordinal) const {
    const std::string where = absl::StrCat("Dataset.", kind_);
    MR_ASSIGN_OR_RETURN(Dataset dataset, NoExceptions(where, [&] {
                          return function_(context.cancellation, element);
                        }));
    if (options_.parallel) dataset = dataset.Prefetch(std::max<int64_t>(options_.block_length, 2));
    return Inner::Make(where, std::move(dataset), spec(), context, ordinal);
  }

 private:
  const std::string kind_;
  const DatasetFunction function_;
  const InterleaveOptions options_;
};

class InterleaveIterator : public ElementIterator {
 public:
  InterleaveIterator(const InterleaveNode* node, const IteratorContext& context,
                     std::unique_ptr<ElementIterator> input)
      : node_(node), context_(context), input_(std::move(input)) {}

  StatusOr<bool> Next(Element* element) override {
    while (!input_ended_ || num_open_ > 0) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      if (turn_ < cycle_.size() && cycle_[turn_].inner.iterator != nullptr) {
        Place& place = cycle_[turn_];
        const StatusOr<bool> more = place.inner.iterator->Next(element);
        if (more.ok() && !*more) {
          place = Place();
          MR_DCHECK(num_open_ > 0, "each place with a dataset was counted");
          --num_open_;
          NextTurn();
          continue;
        }
        if (++in_block_ == node_->options().block_length) NextTurn();
        return more;
      }
      if (input_ended_) {
        NextTurn();
        continue;
      }
      MR_RETURN_IF_ERROR(Open());
    }
    return false;
  }

  Status Save(StateWriter* state) override {
    state->PutBool(input_ended_);
    state->PutUint(turn_);
    state->PutInt(in_block_);
    state->PutUint(ordinal_);
    state->PutUint(cycle_.size());
    for (const Place& place : cycle_) {
      const bool open = place.inner.iterator != nullptr;
      state->PutBool(open);
      if (!open) continue;
      state->PutUint(place.ordinal);
      MR_RETURN_IF_ERROR(state->PutElement(place.element));
      MR_RETURN_IF_ERROR(place.inner.iterator->Save(state));
    }
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    const int64_t length = node_->options().cycle_length;
    MR_ASSIGN_OR_RETURN(input_ended_, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t turn, state->GetInt(0, length - 1));
    turn_ = static_cast<size_t>(turn);
    MR_ASSIGN_OR_RETURN(in_block_, state->GetInt(0, node_->options().block_length - 1));
    MR_ASSIGN_OR_RETURN(ordinal_, state->GetUint());
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetInt(0, length));
    if (turn > count) return absl::DataLossError("Iterator state: there is no such turn");
    for (int64_t i = 0; i < count; ++i) {
      Place& place = cycle_.emplace_back();
      MR_ASSIGN_OR_RETURN(const bool open, state->GetBool());
      if (!open) continue;
      MR_ASSIGN_OR_RETURN(place.ordinal, state->GetUint());
      MR_ASSIGN_OR_RETURN(place.element, state->GetElement());
      MR_ASSIGN_OR_RETURN(place.inner, node_->MakeInner(place.element, context_, place.ordinal));
      ++num_open_;
      MR_RETURN_IF_ERROR(place.inner.iterator->Restore(state));
    }
    return input_->Restore(state);
  }

 private:
  struct Place {
    Element element;  // what the dataset was made of
    uint64_t ordinal = 0;
    Inner inner;
  };

  void NextTurn() {
    in_block_ = 0;
    // Places that were never filled hold nothing: the input ended before.
    const size_t length = input_ended_ ? std::max<size_t>(cycle_.size(), 1)
                                       : static_cast<size_t>(node_->options().cycle_length);
    turn_ = turn_ + 1 >= length ? 0 : turn_ + 1;
  }

  // The dataset of the next element of the input, for this turn.
  Status Open() {
    Place place;
    MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&place.element));
    if (!more) {
      input_ended_ = true;
      return absl::OkStatus();
    }
    place.ordinal = ordinal_++;
    MR_ASSIGN_OR_RETURN(place.inner, node_->MakeInner(place.element, context_, place.ordinal));
    // A turn without a place is the one behind the last.
    MR_DCHECK(turn_ <= cycle_.size(), "a turn comes behind a place that has been filled");
    if (turn_ >= cycle_.size()) cycle_.resize(turn_ + 1);
    MR_DCHECK(cycle_[turn_].inner.iterator == nullptr,
              "a turn reads what is open in its place before it opens more");
    cycle_[turn_] = std::move(place);
    ++num_open_;
    return absl::OkStatus();
  }

  const InterleaveNode* const node_;
  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> input_;
  std::deque<Place> cycle_;  // grows up to the cycle length
  size_t turn_ = 0;
  int64_t in_block_ = 0;  // elements of this turn so far
  int64_t num_open_ = 0;
  uint64_t ordinal_ = 0;
  bool input_ended_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> InterleaveNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<InterleaveNode, InterleaveIterator>(this, context);
}

// --- Window and GroupByWindow: windows are cut from the input, then read one by one.

// What cuts: fed with elements, gives windows.
class Cutter {
 public:
  virtual ~Cutter() = default;
  // True: `*window` (with its key) is complete after this element.
  virtual StatusOr<bool> Add(Element element, int64_t* key, std::vector<Element>* window) = 0;
  // What is left at the end of the input, one by one. False: nothing.
  virtual bool Flush(int64_t* key, std::vector<Element>* window) = 0;
  virtual Status Save(StateWriter* state) = 0;
  virtual Status Restore(StateReader* state) = 0;
};

class SlidingCutter : public Cutter {
 public:
  explicit SlidingCutter(const WindowOptions& options) : options_(options) {
    if (options_.shift == 0) options_.shift = options_.size;
  }
  StatusOr<bool> Add(Element element, int64_t*, std::vector<Element>* window) override {
    if (to_skip_ > 0) {
      --to_skip_;
      return false;
    }
    held_.push_back(std::move(element));
    if (static_cast<int64_t>(held_.size()) < Span()) return false;
    Cut(window);
    return true;
  }
  bool Flush(int64_t*, std::vector<Element>* window) override {
    if (options_.drop_remainder || held_.empty()) return false;
    Cut(window);
    return true;
  }
  Status Save(StateWriter* state) override {
    state->PutInt(to_skip_);
    return PutElements(std::vector<Element>(held_.begin(), held_.end()), state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(to_skip_, state->GetInt(0, options_.shift));
    MR_ASSIGN_OR_RETURN(std::vector<Element> held, GetElements(state));
    held_.assign(held.begin(), held.end());
    return absl::OkStatus();
  }

 private:
  // From the first element of a window to its last.
  int64_t Span() const { return (options_.size - 1) * options_.stride + 1; }
  void Cut(std::vector<Element>* window) {
    window->clear();
    const size_t stride = static_cast<size_t>(options_.stride);
    for (size_t i = 0; i < held_.size() && window->size() < static_cast<size_t>(options_.size);
         i += stride) {
      window->push_back(held_[i]);
    }
    const int64_t gone = std::min(options_.shift, static_cast<int64_t>(held_.size()));
    held_.erase(held_.begin(), held_.begin() + gone);
    to_skip_ = options_.shift - gone;
  }

  WindowOptions options_;
  std::deque<Element> held_;  // from the begin of the next window on
  int64_t to_skip_ = 0;       // elements between two windows
};

class KeyCutter : public Cutter {
 public:
  KeyCutter(const GroupByWindowFunctions& functions, CancellationManager* cancellation)
      : functions_(functions), cancellation_(cancellation) {}
  StatusOr<bool> Add(Element element, int64_t* key, std::vector<Element>* window) override {
    MR_ASSIGN_OR_RETURN(
        *key, NoExceptions(kWhere, [&] { return functions_.key(cancellation_, element); }));
    auto group = groups_.find(*key);
    if (group == groups_.end()) {
      MR_ASSIGN_OR_RETURN(const int64_t size, NoExceptions(kWhere, [&] {
                            return functions_.window_size(cancellation_, *key);
                          }));
      if (size < 1) {
        return InvalidArgument(kWhere, ": window_size must be >= 1, got ", size, " for key ", *key);
      }
      group = groups_.emplace(*key, Group{size, {}}).first;
    }
    std::vector<Element>& elements = group->second.elements;
    elements.push_back(std::move(element));
    if (static_cast<int64_t>(elements.size()) < group->second.size) return false;
    *window = std::move(elements);
    groups_.erase(group);
    return true;
  }
  bool Flush(int64_t* key, std::vector<Element>* window) override {
    if (groups_.empty()) return false;
    *key = groups_.begin()->first;
    *window = std::move(groups_.begin()->second.elements);
    groups_.erase(groups_.begin());
    return true;
  }
  Status Save(StateWriter* state) override {
    state->PutUint(groups_.size());
    for (const auto& [key, group] : groups_) {
      state->PutInt(key);
      state->PutInt(group.size);
      MR_RETURN_IF_ERROR(PutElements(group.elements, state));
    }
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetCount());
    for (int64_t i = 0; i < count; ++i) {
      MR_ASSIGN_OR_RETURN(const int64_t key, state->GetInt(INT64_MIN, INT64_MAX));
      Group& group = groups_[key];
      MR_ASSIGN_OR_RETURN(group.size, state->GetInt(1, INT64_MAX));
      MR_ASSIGN_OR_RETURN(group.elements, GetElements(state));
    }
    return absl::OkStatus();
  }

 private:
  struct Group {
    int64_t size = 0;  // when it is complete
    std::vector<Element> elements;
  };

  static constexpr absl::string_view kWhere = "Dataset.GroupByWindow";

  const GroupByWindowFunctions& functions_;
  CancellationManager* const cancellation_;
  std::map<int64_t, Group> groups_;
};

using WindowFunction = ElementFunction<StatusOr<Dataset>(int64_t key, Dataset window)>;
using MakeCutterFn = std::function<std::unique_ptr<Cutter>(CancellationManager* cancellation)>;

class WindowNode : public DatasetNode {
 public:
  WindowNode(const Inputs& inputs, std::string text, MakeCutterFn make_cutter,
             WindowFunction function, ElementSpec spec)
      : DatasetNode(std::move(spec), inputs[0].cardinality() == 0 ? 0 : kUnknownCardinality,
                    inputs),
        text_(std::move(text)),
        make_cutter_(std::move(make_cutter)),
        function_(std::move(function)) {}
  std::string Text() const override { return text_; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  std::unique_ptr<Cutter> MakeCutter(const IteratorContext& context) const {
    return make_cutter_(context.cancellation);
  }
  StatusOr<Inner> MakeInner(int64_t key, const std::vector<Element>& window,
                            const IteratorContext& context, uint64_t ordinal) const {
    Dataset elements = MakeDataset<ElementsNode>({}, window, inputs()[0].spec());
    MR_ASSIGN_OR_RETURN(Dataset dataset, NoExceptions("Dataset.Window", [&] {
                          return function_(context.cancellation, key, std::move(elements));
                        }));
    return Inner::Make("Dataset.Window", std::move(dataset), spec(), context, ordinal);
  }

 private:
  const std::string text_;
  const MakeCutterFn make_cutter_;
  const WindowFunction function_;
};

class WindowIterator : public ElementIterator {
 public:
  WindowIterator(const WindowNode* node, const IteratorContext& context,
                 std::unique_ptr<ElementIterator> input)
      : node_(node),
        context_(context),
        input_(std::move(input)),
        cutter_(node->MakeCutter(context)) {}

  StatusOr<bool> Next(Element* element) override {
    for (;;) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      if (inner_.iterator != nullptr) {
        const StatusOr<bool> more = inner_.iterator->Next(element);
        if (!more.ok() || *more) return more;
        inner_ = Inner();
        window_.clear();
      }
      MR_ASSIGN_OR_RETURN(const bool found, Cut());
      if (!found) return false;
      MR_ASSIGN_OR_RETURN(inner_, node_->MakeInner(key_, window_, context_, ordinal_++));
    }
  }

  Status Save(StateWriter* state) override {
    state->PutBool(input_ended_);
    state->PutUint(ordinal_);
    state->PutBool(inner_.iterator != nullptr);
    if (inner_.iterator != nullptr) {
      state->PutInt(key_);
      MR_RETURN_IF_ERROR(PutElements(window_, state));
      MR_RETURN_IF_ERROR(inner_.iterator->Save(state));
    }
    MR_RETURN_IF_ERROR(cutter_->Save(state));
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(input_ended_, state->GetBool());
    MR_ASSIGN_OR_RETURN(ordinal_, state->GetUint());
    MR_ASSIGN_OR_RETURN(const bool open, state->GetBool());
    if (open) {
      MR_ASSIGN_OR_RETURN(key_, state->GetInt(INT64_MIN, INT64_MAX));
      MR_ASSIGN_OR_RETURN(window_, GetElements(state));
      MR_ASSIGN_OR_RETURN(inner_, node_->MakeInner(key_, window_, context_, ordinal_ - 1));
      MR_RETURN_IF_ERROR(inner_.iterator->Restore(state));
    }
    MR_RETURN_IF_ERROR(cutter_->Restore(state));
    return input_->Restore(state);
  }

 private:
  // The next window. False: there is none.
  StatusOr<bool> Cut() {
    while (!input_ended_) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      Element element;
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&element));
      if (!more) {
        input_ended_ = true;
        break;
      }
      MR_ASSIGN_OR_RETURN(const bool complete, cutter_->Add(std::move(element), &key_, &window_));
      if (complete) return true;
    }
    return cutter_->Flush(&key_, &window_);
  }

  const WindowNode* const node_;
  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> input_;
  const std::unique_ptr<Cutter> cutter_;
  int64_t key_ = 0;
  std::vector<Element> window_;  // that is read
  Inner inner_;                  // over it
  uint64_t ordinal_ = 0;
  bool input_ended_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> WindowNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<WindowNode, WindowIterator>(this, context);
}

Status NoFunction(absl::string_view where) {
  return InvalidArgument(where, ": the function must be one, got none");
}

}  // namespace

Dataset Dataset::FlatMap(DatasetFunction function, ElementSpec spec) const {
  if (!status_.ok()) return *this;
  if (function == nullptr) return Error(NoFunction("Dataset.FlatMap"));
  return MakeDataset<InterleaveNode>({*this}, "FlatMap", std::move(function), InterleaveOptions(),
                                     std::move(spec));
}

Dataset Dataset::Interleave(DatasetFunction function, InterleaveOptions options,
                            ElementSpec spec) const {
  if (!status_.ok()) return *this;
  if (function == nullptr) return Error(NoFunction("Dataset.Interleave"));
  if (options.cycle_length < 1) {
    return Error(InvalidArgument("Dataset.Interleave: cycle_length must be >= 1, got ",
                                 options.cycle_length));
  }
  if (options.block_length < 1) {
    return Error(InvalidArgument("Dataset.Interleave: block_length must be >= 1, got ",
                                 options.block_length));
  }
  return MakeDataset<InterleaveNode>({*this}, "Interleave", std::move(function), options,
                                     std::move(spec));
}

Dataset Dataset::Window(WindowOptions options, std::function<StatusOr<Dataset>(Dataset)> function,
                        ElementSpec spec) const {
  constexpr absl::string_view kWhere = "Dataset.Window";
  if (!status_.ok()) return *this;
  if (function == nullptr) return Error(NoFunction(kWhere));
  constexpr int64_t kMost = int64_t{1} << 31;  // products have room
  const struct {
    const char* name;
    int64_t value, least;
  } numbers[] = {
      {"size", options.size, 1}, {"shift", options.shift, 0}, {"stride", options.stride, 1}};
  for (const auto& number : numbers) {
    if (number.value < number.least || number.value > kMost) {
      return Error(InvalidArgument(kWhere, ": ", number.name, " must be >= ", number.least,
                                   " and at most ", kMost, ", got ", number.value));
    }
  }
  return MakeDataset<WindowNode>(
      {*this},
      absl::StrCat("Window(", options.size, ", ", options.shift, ", ", options.stride,
                   options.drop_remainder ? ", drop_remainder)" : ")"),
      [options](CancellationManager*) { return std::make_unique<SlidingCutter>(options); },
      [function = std::move(function)](int64_t, Dataset window) {
        return function(std::move(window));
      },
      std::move(spec));
}

Dataset Dataset::GroupByWindow(std::function<StatusOr<int64_t>(const Element&)> key,
                               std::function<StatusOr<Dataset>(int64_t, Dataset)> function,
                               int64_t window_size, ElementSpec spec) const {
  if (!status_.ok()) return *this;
  if (window_size < 1) {
    return Error(
        InvalidArgument("Dataset.GroupByWindow: window_size must be >= 1, got ", window_size));
  }
  return GroupByWindow({.key = std::move(key),
                        .window_size = [window_size](int64_t) { return window_size; },
                        .window = std::move(function)},
                       std::move(spec));
}

Dataset Dataset::GroupByWindow(GroupByWindowFunctions functions, ElementSpec spec) const {
  if (!status_.ok()) return *this;
  if (functions.key == nullptr || functions.window_size == nullptr || functions.window == nullptr) {
    return Error(NoFunction("Dataset.GroupByWindow"));
  }
  WindowFunction window = functions.window;
  return MakeDataset<WindowNode>(
      {*this}, "GroupByWindow",
      [functions = std::make_shared<const GroupByWindowFunctions>(std::move(functions))](
          CancellationManager* cancellation) {
        return std::make_unique<KeyCutter>(*functions, cancellation);
      },
      std::move(window), std::move(spec));
}

}  // namespace millrace::data
