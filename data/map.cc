// SPDX-License-Identifier: Apache-2.0
//
// One element in, one or none out, in the calling thread: Map, Map of a RowFunction, Filter.

#include "data/map.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/arena.h"
#include "core/exceptions.h"
#include "data/dataset.h"
#include "data/dataset_node.h"
#include "data/row_function.h"

namespace millrace::data {

Status CallMapFunction(const MapFunction& function, CancellationManager* cancellation,
                       const ElementSpec& spec, WorkTime* time, int64_t* num_timed,
                       Element* element) {
  StatusOr<Element> result = NoExceptions("Dataset.Map", [&]() -> StatusOr<Element> {
    const TimedWork timed(time, num_timed);
    return function(cancellation, std::move(*element));
  });
  MR_RETURN_IF_ERROR(result.status());
  if (result->empty()) {
    return InvalidArgument(
        "Dataset.Map: the function must return at least one component, got none");
  }
  MR_RETURN_IF_ERROR(CheckElement("Dataset.Map", spec, *result));
  *element = *std::move(result);
  return absl::OkStatus();
}

namespace {

using Inputs = std::vector<Dataset>;

// --- Map

class MapNode : public DatasetNode {
 public:
  MapNode(const Inputs& inputs, MapFunction function, ElementSpec spec)
      : DatasetNode(std::move(spec), inputs[0].cardinality(), inputs),
        function_(std::move(function)) {}
  std::string Text() const override { return "Map"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const MapFunction& function() const { return function_; }

 private:
  const MapFunction function_;
};

class MapIterator : public EndableIterator {
 public:
  MapIterator(const MapNode* node, const IteratorContext& context,
              std::unique_ptr<ElementIterator> input)
      : EndableIterator(context, std::move(input)), node_(node) {}
  StatusOr<bool> Next(Element* element) override {
    if (ended_) return false;
    MR_ASSIGN_OR_RETURN(const bool more, input_->Next(element));
    if (!more) return false;
    const Status status =
        CallMapFunction(node_->function(), context_.cancellation, node_->spec(),
                        &context_.environment->function_time, &num_timed_, element);
    if (absl::IsOutOfRange(status)) {
      ended_ = true;
      return false;
    }
    MR_RETURN_IF_ERROR(status);
    return true;
  }

 private:
  const MapNode* const node_;
  int64_t num_timed_ = 0;
};

StatusOr<std::unique_ptr<ElementIterator>> MapNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<MapNode, MapIterator>(this, context);
}

// --- Map of a RowFunction

class RowMapNode : public DatasetNode {
 public:
  RowMapNode(const Inputs& inputs, std::shared_ptr<const RowFunction> function, ElementSpec spec)
      : DatasetNode(std::move(spec), inputs[0].cardinality(), inputs),
        function_(std::move(function)) {}
  std::string Text() const override { return absl::StrCat("Map(", function_->Name(), ")"); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const RowFunction& function() const { return *function_; }

 private:
  const std::shared_ptr<const RowFunction> function_;
};

class RowMapIterator : public ElementIterator {
 public:
  RowMapIterator(const RowMapNode* node, const IteratorContext& context,
                 std::unique_ptr<ElementIterator> input)
      : node_(node), function_(node->function()), context_(context), input_(std::move(input)) {}

  StatusOr<bool> Next(Element* element) override {
    if (next_ == rest_.rows && !input_->ServesBlocks()) {
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&in_));
      if (!more) return false;
      MR_ASSIGN_OR_RETURN(*element, Call());
      return true;
    }
    // A few rows ahead: then it is known where each was read.
    if (next_ == rest_.rows) {
      constexpr int64_t kRowsAhead = 64;
      MR_ASSIGN_OR_RETURN(const bool more, Refill(kRowsAhead));
      if (!more) return false;
    }
    MR_RETURN_IF_ERROR(ElementOf(rest_, next_, &in_));
    StatusOr<Element> made = Call();
    if (!made.ok()) return rest_.origin.Tell(next_++, made.status());
    ++next_;
    *element = *std::move(made);
    return true;
  }
  bool ServesBlocks() const override { return input_->ServesBlocks(); }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    if (next_ == rest_.rows) {
      MR_ASSIGN_OR_RETURN(const bool more, Refill(max_rows));
      if (!more) return false;
    }
    const int64_t end = std::min(rest_.rows, next_ + max_rows);
    const bool whole = next_ == 0 && end == rest_.rows;
    Status error;
    const Status status = NoExceptions(function_.Name(), [&] {
      const TimedWork timed(&context_.environment->function_time);
      Arena* const arena = context_.environment->options.arena;
      return whole ? function_.CallBlock(rest_, arena, block, &error)
                   : function_.CallBlock(Slice(rest_, next_, end), arena, block, &error);
    });
    if (!status.ok()) {
      next_ = end;
      return status;
    }
    if (block->rows == 0 && !error.ok()) return rest_.origin.Tell(next_++, error);
    const size_t components = node_->spec().size();
    if (block->rows < 1 || block->rows > end - next_ || block->columns.size() != components) {
      const int64_t rows = block->rows;
      const int64_t most = end - std::exchange(next_, end);
      return Internal(function_.Name(), ": it must make 1 to ", most, " rows of ", components,
                      " components, got ", rows, " of ", block->columns.size());
    }
    // A row each of the rows of the input.
    block->origin = rest_.origin;
    block->origin.first += next_;
    next_ += block->rows;
    if (next_ == rest_.rows) {
      rest_ = Block();
      next_ = 0;
    }
    return true;
  }
  // The rows that wait, then where they were read: behind a restore a bad one still has its place.
  Status Save(StateWriter* state) override {
    state->PutInt(rest_.rows - next_);
    Element element;
    for (int64_t row = next_; row < rest_.rows; ++row) {
      MR_RETURN_IF_ERROR(ElementOf(rest_, row, &element));
      MR_RETURN_IF_ERROR(state->PutElement(element));
    }
    if (next_ < rest_.rows) PutOrigin(state);
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(const int64_t rows, state->GetCount());
    std::vector<Element> elements;
    for (int64_t row = 0; row < rows; ++row) {
      MR_ASSIGN_OR_RETURN(Element element, state->GetElement());
      elements.push_back(std::move(element));
    }
    if (rows > 0) {
      StatusOr<Element> stacked = Stacked(absl::MakeSpan(elements));
      if (!stacked.ok()) {
        return absl::DataLossError(absl::StrCat("Iterator state: ", stacked.status().message()));
      }
      rest_.rows = rows;
      for (Tensor& tensor : *stacked) rest_.columns.push_back({.stacked = std::move(tensor)});
      if (state->version() >= 2) MR_RETURN_IF_ERROR(GetOrigin(state));
    }
    return input_->Restore(state);
  }

 private:
  StatusOr<bool> Refill(int64_t max_rows) {
    rest_ = Block();
    next_ = 0;
    return input_->NextBlock(max_rows, &rest_);
  }
  // Of row `next_` of the rest.
  void PutOrigin(StateWriter* state) const {
    const RowOrigin& origin = rest_.origin;
    state->PutBool(origin.file != nullptr);
    if (origin.file == nullptr) return;
    state->PutBytes(*origin.file);
    state->PutInt(origin.first + next_);
    state->PutBytes(origin.kind);
    state->PutBytes(origin.unit);
  }
  Status GetOrigin(StateReader* state) {
    MR_ASSIGN_OR_RETURN(const bool known, state->GetBool());
    if (!known) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const absl::string_view file, state->GetBytes());
    MR_ASSIGN_OR_RETURN(rest_.origin.first, state->GetInt(0, int64_t{1} << 62));
    MR_ASSIGN_OR_RETURN(const absl::string_view kind, state->GetBytes());
    MR_ASSIGN_OR_RETURN(const absl::string_view unit, state->GetBytes());
    rest_.origin.file = std::make_shared<const std::string>(file);
    rest_.origin.kind = std::string(kind);
    rest_.origin.unit = std::string(unit);
    return absl::OkStatus();
  }
  // The function's result for `in_`.
  StatusOr<Element> Call() {
    const TimedWork timed(&context_.environment->function_time, &num_timed_);
    return NoExceptions(function_.Name(),
                        [&] { return function_.Call(in_, context_.environment->options.arena); });
  }

  const RowMapNode* const node_;
  const RowFunction& function_;
  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> input_;
  Block rest_;        // of the input
  int64_t next_ = 0;  // row of it that was not given to the function yet
  Element in_;
  int64_t num_timed_ = 0;
};

StatusOr<std::unique_ptr<ElementIterator>> RowMapNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<RowMapNode, RowMapIterator>(this, context);
}

// --- Filter

class FilterNode : public DatasetNode {
 public:
  FilterNode(const Inputs& inputs, Predicate predicate)
      : DatasetNode(inputs[0].spec(), CardinalityOf(inputs[0]), inputs),
        predicate_(std::move(predicate)) {}
  std::string Text() const override { return "Filter"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const Predicate& predicate() const { return predicate_; }

 private:
  static int64_t CardinalityOf(const Dataset& input) {
    return input.cardinality() == 0 ? 0 : kUnknownCardinality;
  }

  const Predicate predicate_;
};

class FilterIterator : public EndableIterator {
 public:
  FilterIterator(const FilterNode* node, const IteratorContext& context,
                 std::unique_ptr<ElementIterator> input)
      : EndableIterator(context, std::move(input)), node_(node) {}
  StatusOr<bool> Next(Element* element) override {
    while (!ended_) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(element));
      if (!more) return false;
      const StatusOr<bool> keep = NoExceptions("Dataset.Filter", [&] {
        const TimedWork timed(&context_.environment->function_time, &num_timed_);
        return node_->predicate()(context_.cancellation, *element);
      });
      ended_ = absl::IsOutOfRange(keep.status());
      if (ended_) break;
      MR_RETURN_IF_ERROR(keep.status());
      if (*keep) return true;
    }
    return false;
  }

 private:
  const FilterNode* const node_;
  int64_t num_timed_ = 0;
};

StatusOr<std::unique_ptr<ElementIterator>> FilterNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<FilterNode, FilterIterator>(this, context);
}

}  // namespace

Dataset Dataset::Map(MapFunction function, MapOptions options) const {
  if (!status_.ok()) return *this;
  if (function == nullptr) {
    return Error(InvalidArgument("Dataset.Map: the function must be one, got none"));
  }
  if (options.num_parallel_calls < 1) {
    return Error(InvalidArgument("Dataset.Map: num_parallel_calls must be >= 1, got ",
                                 options.num_parallel_calls));
  }
  if (options.num_parallel_calls > 1) {
    return MakeParallelMap(*this, std::move(function), std::move(options));
  }
  return MakeDataset<MapNode>({*this}, std::move(function), std::move(options.spec));
}

Dataset Dataset::Map(StatusOr<std::shared_ptr<const RowFunction>> row_function) const {
  if (!status_.ok()) return *this;
  if (!row_function.ok()) return Error(row_function.status());
  std::shared_ptr<const RowFunction> function = *std::move(row_function);
  if (function == nullptr) {
    return Error(InvalidArgument("Dataset.Map: the function must be one, got none"));
  }
  StatusOr<ElementSpec> spec = function->OutputSpec(this->spec());
  if (!spec.ok()) return Error(Prefixed("Dataset.Map", spec.status()));
  return MakeDataset<RowMapNode>({*this}, std::move(function), *std::move(spec));
}

Dataset Dataset::Filter(Predicate predicate) const {
  if (!status_.ok()) return *this;
  if (predicate == nullptr) {
    return Error(InvalidArgument("Dataset.Filter: the predicate must be a function, got none"));
  }
  return MakeDataset<FilterNode>({*this}, std::move(predicate));
}

}  // namespace millrace::data
