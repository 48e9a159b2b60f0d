// SPDX-License-Identifier: Apache-2.0
#include "ops/array/indices.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "graph/op_registry.h"
#include "ops/loops/number.h"
#include "ops/rules/elements.h"
#include "ops/rules/index_type.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- OneHot --------------------------------------------------------------------------------------

// The shape of indices with a new dimension of size `depth` at `axis`; -1 is after the last one.
struct OneHotRule {
  int64_t axis = -1;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "axis", &axis); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> depth, c->IntScalar(1, "depth"));
    if (depth.value_or(0) < 0) return InvalidArgument("depth must be >= 0, got ", *depth);
    for (const int i : {2, 3}) {
      if (!c->input(i).has_rank() || c->input(i).rank() == 0) continue;
      return InvalidArgument(i == 2 ? "on_value" : "off_value", " must be a scalar, got shape ",
                             c->input(i));
    }
    const PartialShape& indices = c->input(0);
    if (!indices.has_rank()) return indices;
    if (axis < -1 || axis > indices.rank()) {
      return InvalidArgument("axis must be in [-1, ", indices.rank(), "], got ", axis);
    }
    std::vector<int64_t> dims(indices.dims().begin(), indices.dims().end());
    dims.insert(axis == -1 ? dims.end() : dims.begin() + axis, depth.value_or(-1));
    return PartialShape::Make(dims);
  }
};

template <typename Index>
Status RunOneHot(KernelContext* ctx, const OneHotRule& rule) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  if (out->num_elements() == 0) return absl::OkStatus();
  const Shape& in = ctx->input(0).shape();
  const int at = rule.axis == -1 ? in.rank() : static_cast<int>(rule.axis);
  const int64_t outer = in.NumElements(0, at), inner = in.NumElements(at, in.rank());
  const int64_t depth = out->dim(at);
  const Index* index = ctx->input(0).raw<Index>().data();
  return VisitElements(out->dtype(), [&]<typename E>() {
    const E on = *ElementsOf<E>(ctx->input(2)), off = *ElementsOf<E>(ctx->input(3));
    E* to = MutableElementsOf<E>(out);
    const double cost_ns =
        0.3 * static_cast<double>(depth * inner) + 2 * static_cast<double>(inner);
    ctx->ParallelFor(outer, cost_ns, [&, to, index](int64_t begin, int64_t end) {
      std::fill(to + begin * depth * inner, to + end * depth * inner, off);
      for (int64_t o = begin; o < end; ++o) {
        for (int64_t i = 0; i < inner; ++i) {
          const int64_t k = static_cast<int64_t>(index[o * inner + i]);
          if (k >= 0 && k < depth) to[(o * depth + k) * inner + i] = on;
        }
      }
    });
  });
}

const OpRegistration kOneHot =
    OpSpec("OneHot", "indices: TI, depth: int32, on_value: T, off_value: T -> output: T",
           "axis: int = -1; T: type; TI: {uint8, int32, int64} = DT_INT64")
        .With(RuledKernelsFor<OneHotRule, uint8_t, int32_t, int64_t>(
            "TI", []<typename Index>() { return &RunOneHot<Index>; }))
        .NotDifferentiable();

// --- Where ---------------------------------------------------------------------------------------

// How many there are is for the kernel to count.
struct WhereRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    return PartialShape({-1, c->input(0).has_rank() ? c->input(0).rank() : -1});
  }
};

template <typename T>
Status RunWhere(KernelContext* ctx, const WhereRule&) {
  const Tensor& input = ctx->input(0);
  const absl::Span<const T> values = input.raw<T>();
  const auto is_set = [](const T& v) { return math::Load(v) != math::Wide<T>{}; };
  const int64_t count = std::count_if(values.begin(), values.end(), is_set);
  const int rank = input.rank();
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({count, int64_t{rank}}));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
  if (shape.num_elements() == 0) return absl::OkStatus();
  int64_t* to = out->mutable_raw<int64_t>().data();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!is_set(values[i])) continue;
    int64_t rest = static_cast<int64_t>(i);
    for (int d = rank - 1; d >= 0; --d) {
      to[d] = rest % input.dim(d);
      rest /= input.dim(d);
    }
    to += rank;
  }
  return absl::OkStatus();
}

const OpRegistration kWhere =
    OpSpec("Where", "input: T -> index: int64", "T: {numbertype, bool} = DT_BOOL")
        .With(RuledKernelsFor<WhereRule, bool, float, double, int8_t, uint8_t, int16_t, uint16_t,
                              int32_t, int64_t, Half, Bfloat16, std::complex<float>,
                              std::complex<double>>("T", []<typename T>() { return &RunWhere<T>; }))
        .NotDifferentiable();

// --- Different elements --------------------------------------------------------------------------

// May out_idx number the elements of `x`, a vector?
Status CheckNumbered(const PartialShape& x, DType out_idx) {
  if (x.has_rank() && x.rank() != 1) return InvalidArgument("x must be a vector, got shape ", x);
  if (out_idx == DT_INT32 && x.num_elements() > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("x must have at most ", std::numeric_limits<int32_t>::max(),
                           " elements for out_idx int32, got ", x.num_elements(),
                           "; use out_idx int64");
  }
  return absl::OkStatus();
}

// What an element is looked up by: strings as views, numbers by value, as == compares them.
template <typename T>
auto KeyOf(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return absl::string_view(value);
  } else {
    return math::Load(value);
  }
}
template <typename T>
using Key = decltype(KeyOf(std::declval<const T&>()));

// A NaN differs from all, itself included: a table may not have it (equal hashes of keys that are
// never equal would also make look-ups slow).
template <typename K>
bool IsNan(const K& key) {
  if constexpr (std::is_floating_point_v<K>) {
    return std::isnan(key);
  } else {
    return false;
  }
}

// --- Unique, UniqueWithCounts --------------------------------------------------------------------

struct UniqueRule {
  DType out_idx = DT_INT32;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "out_idx", &out_idx); }
  Status operator()(RuleContext* c) const {
    const PartialShape& x = c->input(0);
    MR_RETURN_IF_ERROR(CheckNumbered(x, out_idx));
    for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, PartialShape::UnknownOfRank(1));
    if (x.has_rank()) c->set_output(1, x);
    return absl::OkStatus();
  }
};

template <typename T, typename Index>
Status FindUnique(KernelContext* ctx) {
  const absl::Span<const T> values = ctx->input(0).raw<T>();
  MR_ASSIGN_OR_RETURN(Tensor * idx, ctx->AllocateOutput(1));
  absl::Span<Index> index = idx->mutable_raw<Index>();
  std::vector<size_t> first;  // where each different element appears first
  absl::flat_hash_map<Key<T>, Index> seen;
  seen.reserve(values.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    Index number = static_cast<Index>(first.size());
    const Key<T> key = KeyOf(values[i]);
    if (!IsNan(key)) number = seen.try_emplace(key, number).first->second;
    index[i] = number;
    if (static_cast<size_t>(number) == first.size()) first.push_back(i);
  }
  MR_ASSIGN_OR_RETURN(Tensor * y, ctx->AllocateOutput(0, Shape::Vector(first.size())));
  absl::Span<T> unique = y->mutable_raw<T>();
  for (size_t i = 0; i < first.size(); ++i) unique[i] = values[first[i]];
  if (ctx->num_outputs() < 3) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(Tensor * count, ctx->AllocateZeros(2, Shape::Vector(first.size())));
  const absl::Span<Index> counts = count->mutable_raw<Index>();
  for (const Index number : index) ++counts[static_cast<size_t>(number)];
  return absl::OkStatus();
}

template <typename T>
Status RunUnique(KernelContext* ctx, const UniqueRule& rule) {
  return VisitIndexType(rule.out_idx, [&]<typename Index>() { return FindUnique<T, Index>(ctx); });
}

OpSpec UniqueSpec(absl::string_view op) {
  return OpSpec(op, "x: T -> y: T, idx: out_idx", "T: type; out_idx: {int32, int64} = DT_INT32")
      .With(RuledKernelsFor<UniqueRule, float, double, Half, Bfloat16, int8_t, uint8_t, int16_t,
                            uint16_t, int32_t, int64_t, bool, std::string>(
          "T", []<typename T>() { return &RunUnique<T>; }))
      .NotDifferentiable();
}
const OpRegistration kUnique = UniqueSpec("Unique");
const OpRegistration kUniqueWithCounts = UniqueSpec("UniqueWithCounts").Output("count: out_idx");

// --- ListDiff ------------------------------------------------------------------------------------

struct ListDiffRule {
  DType out_idx = DT_INT32;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "out_idx", &out_idx); }
  Status operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(CheckNumbered(c->input(0), out_idx));
    const PartialShape& y = c->input(1);
    if (y.has_rank() && y.rank() != 1) return InvalidArgument("y must be a vector, got shape ", y);
    for (const int i : {0, 1}) c->set_output(i, PartialShape::UnknownOfRank(1));
    return absl::OkStatus();
  }
};

template <typename T>
Status RunListDiff(KernelContext* ctx, const ListDiffRule& rule) {
  const absl::Span<const T> x = ctx->input(0).raw<T>(), y = ctx->input(1).raw<T>();
  absl::flat_hash_set<Key<T>> excluded;
  excluded.reserve(y.size());
  for (const T& value : y) {
    if (const Key<T> key = KeyOf(value); !IsNan(key)) excluded.insert(key);
  }
  std::vector<size_t> kept;  // where they are in x
  for (size_t i = 0; i < x.size(); ++i) {
    const Key<T> key = KeyOf(x[i]);
    if (IsNan(key) || !excluded.contains(key)) kept.push_back(i);
  }
  const Shape shape = Shape::Vector(kept.size());
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
  MR_ASSIGN_OR_RETURN(Tensor * idx, ctx->AllocateOutput(1, shape));
  T* to = out->mutable_raw<T>().data();
  for (const size_t i : kept) *to++ = x[i];
  VisitIndexType(rule.out_idx, [&]<typename Index>() {
    std::transform(kept.begin(), kept.end(), idx->mutable_raw<Index>().begin(),
                   [](size_t i) { return static_cast<Index>(i); });
  });
  return absl::OkStatus();
}

const OpRegistration kListDiff =
    OpSpec("ListDiff", "x: T, y: T -> out: T, idx: out_idx",
           "T: type; out_idx: {int32, int64} = DT_INT32")
        .With(RuledKernelsFor<ListDiffRule, float, double, Half, Bfloat16, int8_t, uint8_t, int16_t,
                              uint16_t, int32_t, int64_t, std::string>(
            "T", []<typename T>() { return &RunListDiff<T>; }))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
