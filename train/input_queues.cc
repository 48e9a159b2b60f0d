// SPDX-License-Identifier: Apache-2.0
#include "train/input_queues.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/control/queue.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/random/random.h"
#include "ops/state/count_up_to.h"
#include "train/queue_runner.h"
#include "train/summaries.h"

namespace millrace {
namespace {

// A builder while it works: its sub-scope, and what goes wrong.
struct Input {
  Input(const ScopeAt& from, const char* name)
      : where(from.where),
        title(absl::StrCat("'", from.scope.prefix(), from.scope.RequestedName(name), "'")),
        scope(from.here().CompositeScope(name)) {}
  template <typename... Parts>
  void Refuse(const Parts&... parts) const {
    scope.UpdateStatus(InvalidArgument("Input queue ", title, ": ", parts...), where);
  }
  ScopeAt at() const { return ScopeAt(scope, where); }

  const std::source_location where;
  const std::string title;
  const Scope scope;
};

// Without the first dimension.
StatusOr<PartialShape> RowShape(const PartialShape& rows) {
  if (!rows.has_rank()) return PartialShape();
  if (rows.rank() == 0) return InvalidArgument("must have rows, got shape []");
  return PartialShape::Make(std::vector<int64_t>(rows.dims().begin() + 1, rows.dims().end()));
}

// How full a queue is, of 0 to 1, from `least` on.
void AddFullness(const Input& input, const Output& queue, int64_t least, int64_t capacity,
                 const std::string& name) {
  const Scope& s = input.scope;
  Output size = Cast(s, QueueSizeV2(s, queue), DT_FLOAT);
  if (least > 0) {
    size = Maximum(s, Const(s, 0.0f), Sub(s, size, Const(s, static_cast<float>(least))));
  }
  const Output fraction = Mul(s, size, Const(s, 1.0f / static_cast<float>(capacity - least)));
  AddScalarSummary(s, name, fraction);
}

// Element types and shapes, and the enqueue operation. False after an error.
struct Elements {
  std::vector<DType> types;
  std::vector<PartialShape> shapes;
};
bool ElementsOf(const Input& input, absl::Span<const Output> tensors, bool enqueue_many,
                bool partial, Elements* elements) {
  if (!input.scope.ok()) return false;
  if (tensors.empty()) {
    input.Refuse("there must be tensors to enqueue, got none");
    return false;
  }
  for (const Output& tensor : tensors) {
    if (!tensor.valid() || tensor.node()->graph() != input.scope.graph()) {
      input.Refuse(
          "tensors must be of the graph, got ",
          tensor.valid() ? absl::StrCat("'", tensor.name(), "' of another") : "an invalid Output");
      return false;
    }
    PartialShape shape = input.scope.shape(tensor);
    if (enqueue_many) {
      StatusOr<PartialShape> row = RowShape(shape);
      if (!row.ok()) {
        input.Refuse("'", tensor.name(), "' ", row.status().message());
        return false;
      }
      shape = *std::move(row);
    }
    if (partial ? !shape.has_rank() : !shape.IsFullyDefined()) {
      input.Refuse("'", tensor.name(), "' must have a known ", partial ? "rank" : "shape", ", got ",
                   shape, "; SetShape says what the graph does not know",
                   partial ? "" : ", dynamic_pad pads");
      return false;
    }
    elements->types.push_back(tensor.dtype());
    elements->shapes.push_back(std::move(shape));
  }
  return true;
}

std::vector<Output> Finish(const Input& input, const Output& queue, const Elements& elements,
                           absl::Span<const Output> tensors, int num_threads, bool enqueue_many,
                           bool allow_smaller, int batch_size) {
  const Operation enqueue = enqueue_many ? QueueEnqueueManyV2(input.at(), queue, tensors)
                                         : QueueEnqueueV2(input.at(), queue, tensors);
  AddQueueRunner(input.at(), queue,
                 std::vector<Operation>(static_cast<size_t>(num_threads), enqueue));
  const Output n =
      Const({input.scope.WithName("n"), input.where}, static_cast<int32_t>(batch_size));
  return allow_smaller ? QueueDequeueUpToV2(input.at(), queue, n, elements.types)
                       : QueueDequeueManyV2(input.at(), queue, n, elements.types);
}

bool CheckCounts(const Input& input, int batch_size, int num_threads, int64_t capacity) {
  if (batch_size > 0 && num_threads > 0 && capacity > 0) return true;
  input.Refuse("batch_size, num_threads and capacity must be > 0, got ", batch_size, ", ",
               num_threads, " and ", capacity);
  return false;
}

}  // namespace

Output InputProducer(ScopeAt at, Output rows, const InputProducerAttrs& attrs) {
  const Input input(at, "input_producer");
  Elements elements;
  if (!ElementsOf(input, {rows}, /*enqueue_many=*/true, /*partial=*/false, &elements)) return {};
  if (attrs.capacity <= 0 || attrs.num_epochs.value_or(1) <= 0) {
    input.Refuse("capacity and num_epochs must be > 0, got ", attrs.capacity, " and ",
                 attrs.num_epochs.value_or(1));
    return {};
  }
  if (attrs.num_epochs) {
    const Scope limit = input.scope.WithSubScope("limit_epochs");
    const Variable epochs =
        MakeVariable({limit.WithName("epochs"), input.where}, Const(limit, int64_t{0}),
                     {.trainable = false, .local = true});
    const Output counted = ResourceCountUpTo({limit.WithName("CountUpTo"), input.where},
                                             epochs.handle, *attrs.num_epochs, DT_INT64);
    rows = Identity({limit.WithControlDependencies({counted.op()}), input.where}, rows);
  }
  if (attrs.shuffle) rows = RandomShuffle(input.at(), rows, {.seed = attrs.seed});
  const Output queue = FIFOQueueV2(
      input.at(), elements.types,
      {.shapes = elements.shapes, .capacity = attrs.capacity, .shared_name = attrs.shared_name});
  if (!input.scope.ok()) return {};
  AddQueueRunner(input.at(), queue, {QueueEnqueueManyV2(input.at(), queue, {rows})});
  AddFullness(input, queue, 0, attrs.capacity,
              absl::StrCat("fraction_of_", attrs.capacity, "_full"));
  return queue;
}

Output StringInputProducer(ScopeAt at, const std::vector<std::string>& strings,
                           const InputProducerAttrs& attrs) {
  if (strings.empty()) {
    at.scope.UpdateStatus(
        InvalidArgument("string_input_producer requires a non-null input tensor, got no strings"),
        at.where);
    return {};
  }
  return InputProducer(at, Const(at, Tensor::Vector<std::string>(strings)), attrs);
}

std::vector<Output> Batch(ScopeAt at, absl::Span<const Output> tensors, int batch_size,
                          const BatchAttrs& attrs) {
  const Input input(at, "batch");
  Elements elements;
  if (!CheckCounts(input, batch_size, attrs.num_threads, attrs.capacity) ||
      !ElementsOf(input, tensors, attrs.enqueue_many, attrs.dynamic_pad, &elements)) {
    return std::vector<Output>(tensors.size());
  }
  const Output queue =
      attrs.dynamic_pad
          ? PaddingFIFOQueueV2(input.at(), elements.types, elements.shapes,
                               {.capacity = attrs.capacity, .shared_name = attrs.shared_name})
          : FIFOQueueV2(input.at(), elements.types,
                        {.shapes = elements.shapes,
                         .capacity = attrs.capacity,
                         .shared_name = attrs.shared_name});
  AddFullness(input, queue, 0, attrs.capacity,
              absl::StrCat("fraction_of_", attrs.capacity, "_full"));
  return Finish(input, queue, elements, tensors, attrs.num_threads, attrs.enqueue_many,
                attrs.allow_smaller_final_batch, batch_size);
}

std::vector<Output> ShuffleBatch(ScopeAt at, absl::Span<const Output> tensors, int batch_size,
                                 const ShuffleBatchAttrs& attrs) {
  const Input input(at, "shuffle_batch");
  Elements elements;
  if (!CheckCounts(input, batch_size, attrs.num_threads, attrs.capacity) ||
      !ElementsOf(input, tensors, attrs.enqueue_many, /*partial=*/false, &elements)) {
    return std::vector<Output>(tensors.size());
  }
  if (attrs.min_after_dequeue < 0 || attrs.min_after_dequeue >= attrs.capacity) {
    input.Refuse("min_after_dequeue must be >= 0 and below capacity, got ", attrs.min_after_dequeue,
                 " and ", attrs.capacity);
    return std::vector<Output>(tensors.size());
  }
  const SeedPair seeds = RandomSeed(input.scope, attrs.seed);
  const Output queue = RandomShuffleQueueV2(input.at(), elements.types,
                                            {.shapes = elements.shapes,
                                             .capacity = attrs.capacity,
                                             .min_after_dequeue = attrs.min_after_dequeue,
                                             .seed = seeds.seed,
                                             .seed2 = seeds.seed2,
                                             .shared_name = attrs.shared_name});
  AddFullness(input, queue, attrs.min_after_dequeue, attrs.capacity,
              absl::StrCat("fraction_over_", attrs.min_after_dequeue, "_of_",
                           attrs.capacity - attrs.min_after_dequeue, "_full"));
  return Finish(input, queue, elements, tensors, attrs.num_threads, attrs.enqueue_many,
                attrs.allow_smaller_final_batch, batch_size);
}

}  // namespace millrace
