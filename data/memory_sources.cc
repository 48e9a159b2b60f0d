// SPDX-License-Identifier: Apache-2.0
//
// Sources that read no file: tensors, their slices, ranges, generators.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "data/block.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

// --- FromTensors

class TensorsNode : public DatasetNode {
 public:
  TensorsNode(const std::vector<Dataset>&, Element element)
      : DatasetNode(SpecOf(element), 1), element_(std::move(element)) {}
  std::string Text() const override { return absl::StrCat("FromTensors", SpecText(spec())); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(const IteratorContext&) const override;
  const Element& element() const { return element_; }

 private:
  const Element element_;
};

class TensorsIterator : public ElementIterator {
 public:
  explicit TensorsIterator(const TensorsNode* node) : node_(node) {}
  StatusOr<bool> Next(Element* element) override {
    if (done_) return false;
    done_ = true;
    *element = node_->element();
    return true;
  }
  bool NextIsReady() const override { return true; }
  bool NeverWaits() const override { return true; }
  Status Save(StateWriter* state) override {
    state->PutBool(done_);
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(done_, state->GetBool());
    return absl::OkStatus();
  }

 private:
  const TensorsNode* const node_;
  bool done_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> TensorsNode::MakeIterator(const IteratorContext&) const {
  return std::make_unique<TensorsIterator>(this);
}

// --- FromTensorSlices

ElementSpec SliceSpec(const Element& tensors) {
  ElementSpec spec;
  for (const Tensor& t : tensors) spec.push_back({t.dtype(), t.shape().WithoutDim(0)});
  return spec;
}

class SlicesNode : public DatasetNode {
 public:
  SlicesNode(const std::vector<Dataset>&, Element tensors)
      : DatasetNode(SliceSpec(tensors), tensors[0].dim(0)), tensors_(std::move(tensors)) {}
  std::string Text() const override {
    return absl::StrCat("FromTensorSlices", SpecText(SpecOf(tensors_)));
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(const IteratorContext&) const override;
  const Element& tensors() const { return tensors_; }

 private:
  const Element tensors_;
};

class SlicesIterator : public ElementIterator {
 public:
  explicit SlicesIterator(const SlicesNode* node) : node_(node) {}
  StatusOr<bool> Next(Element* element) override {
    if (row_ == node_->cardinality()) return false;
    const Element& tensors = node_->tensors();
    const int64_t row = row_++;  // an error takes the place of its element
    element->resize(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      MR_ASSIGN_OR_RETURN((*element)[i], RowOf(tensors[i], row));
    }
    return true;
  }
  bool ServesBlocks() const override { return true; }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    const int64_t rows = std::min(max_rows, node_->cardinality() - row_);
    if (rows == 0) return false;
    block->rows = rows;
    block->columns.clear();
    for (const Tensor& tensor : node_->tensors()) {
      block->columns.push_back({.stacked = tensor.Rows(row_, row_ + rows)});
    }
    row_ += rows;
    return true;
  }
  bool NextIsReady() const override { return true; }
  bool NeverWaits() const override { return true; }
  Status Save(StateWriter* state) override {
    state->PutInt(row_);
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(row_, state->GetInt(0, node_->cardinality()));
    return absl::OkStatus();
  }

 private:
  const SlicesNode* const node_;
  int64_t row_ = 0;
};

StatusOr<std::unique_ptr<ElementIterator>> SlicesNode::MakeIterator(const IteratorContext&) const {
  return std::make_unique<SlicesIterator>(this);
}

// --- Range

// How many values; also where stop - start has no int64.
int64_t RangeSize(int64_t start, int64_t stop, int64_t step) {
  if (step > 0 ? start >= stop : start <= stop) return 0;
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t size = (distance - 1) / stride + 1;
  return static_cast<int64_t>(std::min(size, static_cast<uint64_t>(INT64_MAX)));
}

class RangeNode : public DatasetNode {
 public:
  RangeNode(const std::vector<Dataset>&, int64_t start, int64_t stop, int64_t step)
      : DatasetNode({{DT_INT64, PartialShape::Scalar()}}, RangeSize(start, stop, step)),
        start_(start),
        stop_(stop),
        step_(step) {}
  std::string Text() const override {
    return absl::StrCat("Range(", start_, ", ", stop_, ", ", step_, ")");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(const IteratorContext&) const override;
  int64_t Value(int64_t i) const {
    return static_cast<int64_t>(static_cast<uint64_t>(start_) +
                                static_cast<uint64_t>(i) * static_cast<uint64_t>(step_));
  }

 private:
  const int64_t start_, stop_, step_;
};

class RangeIterator : public ElementIterator {
 public:
  explicit RangeIterator(const RangeNode* node) : node_(node) {}
  StatusOr<bool> Next(Element* element) override {
    if (i_ == node_->cardinality()) return false;
    const int64_t value = node_->Value(i_++);  // an error takes the place of its element
    element->resize(1);
    MR_ASSIGN_OR_RETURN((*element)[0], Tensor::Allocate(DT_INT64, Shape()));
    (*element)[0].mutable_raw<int64_t>()[0] = value;
    return true;
  }
  bool ServesBlocks() const override { return true; }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    const int64_t rows = std::min({max_rows, node_->cardinality() - i_, kMostRows});
    if (rows == 0) return false;
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({rows}));
    int64_t i = i_;
    i_ += rows;  // an error takes the place of its elements
    MR_ASSIGN_OR_RETURN(Tensor values, Tensor::Allocate(DT_INT64, shape));
    for (int64_t& value : values.mutable_raw<int64_t>()) value = node_->Value(i++);
    block->rows = rows;
    block->columns.clear();
    block->columns.push_back({.stacked = std::move(values)});
    return true;
  }
  bool NextIsReady() const override { return true; }
  bool NeverWaits() const override { return true; }
  Status Save(StateWriter* state) override {
    state->PutInt(i_);
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(i_, state->GetInt(0, node_->cardinality()));
    return absl::OkStatus();
  }

 private:
  // Of a block: batches of a size that nobody has memory for come to their error in pieces.
  static constexpr int64_t kMostRows = 65536;

  const RangeNode* const node_;
  int64_t i_ = 0;
};

StatusOr<std::unique_ptr<ElementIterator>> RangeNode::MakeIterator(const IteratorContext&) const {
  return std::make_unique<RangeIterator>(this);
}

// --- FromGenerator

class GeneratorNode : public DatasetNode {
 public:
  GeneratorNode(const std::vector<Dataset>&, GeneratorFactory factory, ElementSpec spec)
      : DatasetNode(std::move(spec), kUnknownCardinality), factory_(std::move(factory)) {}
  std::string Text() const override { return absl::StrCat("FromGenerator", SpecText(spec())); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const GeneratorFactory& factory() const { return factory_; }

 private:
  const GeneratorFactory factory_;
};

class GeneratorIterator : public ElementIterator {
 public:
  GeneratorIterator(const GeneratorNode* node, const IteratorContext& context)
      : node_(node), context_(context) {}

  StatusOr<bool> Next(Element* element) override {
    if (ended_) return false;
    MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
    StatusOr<bool> more = NoExceptions("Generator", [&] { return Generate(element); });
    if (more.ok() && *more) {
      ++count_;
      const Status fits = CheckElement("Generator", node_->spec(), *element);
      if (fits.ok()) return true;
      more = fits;
    }
    ended_ = true;  // the generator is not asked again
    generator_ = nullptr;
    return more;
  }
  Status Save(StateWriter* state) override {
    state->PutInt(count_);
    state->PutBool(ended_);
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetInt(0, INT64_MAX));
    MR_ASSIGN_OR_RETURN(const bool ended, state->GetBool());
    Element element;
    while (!ended && count_ < count) {  // Next looks at cancellation
      MR_ASSIGN_OR_RETURN(const bool more, Next(&element));
      if (!more) {
        return absl::DataLossError(absl::StrCat("Iterator state: the generator must give ", count,
                                                " elements again, got ", count_));
      }
    }
    ended_ = ended;
    return absl::OkStatus();
  }

 private:
  StatusOr<bool> Generate(Element* element) {
    const TimedWork timed(&context_.environment->source_time, &num_timed_);
    if (generator_ == nullptr) {
      MR_ASSIGN_OR_RETURN(generator_, node_->factory()(context_.cancellation));
      if (generator_ == nullptr) {
        return InvalidArgument("Dataset.FromGenerator: the factory must return a generator");
      }
    }
    return generator_(element);
  }

  const GeneratorNode* const node_;
  const IteratorContext context_;
  Generator generator_;
  int64_t count_ = 0, num_timed_ = 0;
  bool ended_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> GeneratorNode::MakeIterator(
    const IteratorContext& context) const {
  return std::make_unique<GeneratorIterator>(this, context);
}

Status CheckComponents(absl::string_view where, const Element& element) {
  if (element.empty()) {
    return InvalidArgument(where, ": an element must have at least one component, got none");
  }
  for (size_t i = 0; i < element.size(); ++i) {
    if (!element[i].has_value() || element[i].is_reference()) {
      return InvalidArgument(where, ": component ", i, " must be a value, got ",
                             element[i].dtype());
    }
  }
  return absl::OkStatus();
}

}  // namespace

Dataset Dataset::FromTensors(Element element) {
  const Status status = CheckComponents("Dataset.FromTensors", element);
  if (!status.ok()) return Error(status);
  return MakeDataset<TensorsNode>({}, std::move(element));
}

Dataset Dataset::FromTensorSlices(Element tensors) {
  constexpr absl::string_view kWhere = "Dataset.FromTensorSlices";
  const Status status = CheckComponents(kWhere, tensors);
  if (!status.ok()) return Error(status);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].rank() == 0) {
      return Error(InvalidArgument(kWhere, ": component ", i, " must have rows, got a scalar"));
    }
    if (tensors[i].dim(0) != tensors[0].dim(0)) {
      return Error(InvalidArgument(kWhere, ": component ", i,
                                   " must have as many rows as component 0 (", tensors[0].dim(0),
                                   "), got ", tensors[i].dim(0)));
    }
  }
  return MakeDataset<SlicesNode>({}, std::move(tensors));
}

Dataset Dataset::Range(int64_t start, int64_t stop, int64_t step) {
  if (step == 0) return Error(InvalidArgument("Dataset.Range: step must not be 0, got 0"));
  return MakeDataset<RangeNode>({}, start, stop, step);
}

Dataset Dataset::FromGenerator(GeneratorFactory factory, ElementSpec spec) {
  if (factory == nullptr) {
    return Error(
        InvalidArgument("Dataset.FromGenerator: the factory must be a function, got none"));
  }
  return MakeDataset<GeneratorNode>({}, std::move(factory), std::move(spec));
}

}  // namespace millrace::data
