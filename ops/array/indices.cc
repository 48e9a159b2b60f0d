// SPDX-License-Identifier: Apache-2.0
#include "ops/array/indices.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/rules/elements.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// --- OneHot --------------------------------------------------------------------------------------

// Where the new dimension goes; the only place that knows which axes are legal.
StatusOr<int> OneHotAxis(int rank, int64_t axis) {
  if (axis < -1 || axis > rank) {
    return absl::InvalidArgumentError(absl::StrCat("axis must be in [-1, ", rank, "], got ", axis));
  }
  return static_cast<int>(axis == -1 ? rank : axis);
}
Status CheckDepth(int64_t depth) {
  if (depth < 0) {
    return absl::InvalidArgumentError(absl::StrCat("depth must be >= 0, got ", depth));
  }
  return absl::OkStatus();
}

Status OneHotShape(InferenceContext* c) {
  for (int i = 1; i < 4; ++i) MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
  MR_ASSIGN_OR_RETURN(const int64_t axis, c->GetAttr<int64_t>("axis"));
  const std::optional<int64_t> depth = ConstantInt(c, 1);
  if (depth) MR_RETURN_IF_ERROR(CheckDepth(*depth));
  if (!c->input(0).has_rank()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const int at, OneHotAxis(c->input(0).rank(), axis));
  Ints dims(c->input(0).dims().begin(), c->input(0).dims().end());
  dims.insert(dims.begin() + at, depth.value_or(-1));
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename Index>
class OneHotKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(axis_, c->GetAttr<int64_t>("axis"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const int64_t depth, ctx->IntScalarInput(1, "depth"));
    MR_RETURN_IF_ERROR(CheckDepth(depth));
    for (const int i : {2, 3}) {
      if (!ctx->input(i).shape().is_scalar()) {
        return absl::InvalidArgumentError(absl::StrCat(i == 2 ? "on_value" : "off_value",
                                                       " must be a scalar, got shape ",
                                                       ctx->input(i).shape().ToString()));
      }
    }
    const Tensor indices = ctx->input(0);
    const Shape& in = indices.shape();
    MR_ASSIGN_OR_RETURN(const int at, OneHotAxis(in.rank(), axis_));
    Ints dims(in.dims().begin(), in.dims().end());
    dims.insert(dims.begin() + at, depth);
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    const int64_t outer = in.NumElements(0, at), inner = in.NumElements(at, in.rank());
    const Index* index = indices.raw<Index>().data();
    return VisitElements(out->dtype(), [&]<typename E>() {
      const E on = *ElementsOf<E>(ctx->input(2)), off = *ElementsOf<E>(ctx->input(3));
      E* to = MutableElementsOf<E>(out);
      ctx->ParallelFor(outer,
                       0.3 * static_cast<double>(depth * inner) + 2 * static_cast<double>(inner),
                       [&, to, index](int64_t begin, int64_t end) {
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

 private:
  int64_t axis_ = -1;
};

const OpRegistration kOneHot = OpSpec("OneHot")
                                   .Input("indices: TI")
                                   .Input("depth: int32")
                                   .Input("on_value: T")
                                   .Input("off_value: T")
                                   .Output("output: T")
                                   .Attr("axis: int = -1")
                                   .Attr("T: type")
                                   .Attr("TI: {uint8, int32, int64} = DT_INT64")
                                   .Shape(OneHotShape)
                                   .NotDifferentiable();
const KernelRegistration kOneHot8 = KernelFor<OneHotKernel<uint8_t>>("OneHot").Type<uint8_t>("TI");
const KernelRegistration kOneHot32 = KernelFor<OneHotKernel<int32_t>>("OneHot").Type<int32_t>("TI");
const KernelRegistration kOneHot64 = KernelFor<OneHotKernel<int64_t>>("OneHot").Type<int64_t>("TI");

// --- Where ---------------------------------------------------------------------------------------

Status WhereShape(InferenceContext* c) {
  const int64_t rank = c->input(0).has_rank() ? c->input(0).rank() : -1;
  const int64_t dims[] = {-1, rank};
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

bool IsNonZero(Half v) { return ToFloat(v) != 0; }
bool IsNonZero(Bfloat16 v) { return ToFloat(v) != 0; }
template <typename T>
bool IsNonZero(T v) {
  return v != T{0};
}

template <typename T>
class WhereKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor input = ctx->input(0);
    const absl::Span<const T> values = input.raw<T>();
    int64_t count = 0;
    for (const T& v : values) count += IsNonZero(v) ? 1 : 0;
    const int rank = input.rank();
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({count, int64_t{rank}}));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    int64_t* to = out->mutable_raw<int64_t>().data();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!IsNonZero(values[i])) continue;
      int64_t rest = static_cast<int64_t>(i);
      for (int d = rank - 1; d >= 0; --d) {
        to[d] = rest % input.dim(d);
        rest /= input.dim(d);
      }
      to += rank;
    }
    return absl::OkStatus();
  }
};

const OpRegistration kWhere = OpSpec("Where")
                                  .Input("input: T")
                                  .Output("index: int64")
                                  .Attr("T: {numbertype, bool} = DT_BOOL")
                                  .Shape(WhereShape)
                                  .NotDifferentiable();
template <typename T>
KernelRegistration WhereOf() {
  return KernelFor<WhereKernel<T>>("Where").template Type<T>("T");
}
const KernelRegistration kWhereKernels[] = {
    WhereOf<bool>(),
    WhereOf<float>(),
    WhereOf<double>(),
    WhereOf<int8_t>(),
    WhereOf<uint8_t>(),
    WhereOf<int16_t>(),
    WhereOf<uint16_t>(),
    WhereOf<int32_t>(),
    WhereOf<int64_t>(),
    WhereOf<Half>(),
    WhereOf<Bfloat16>(),
    WhereOf<std::complex<float>>(),
    WhereOf<std::complex<double>>(),
};

// --- Unique, UniqueWithCounts --------------------------------------------------------------------

Status UniqueShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape x, c->InputWithRank(0, 1));
  c->set_output(0, PartialShape::UnknownOfRank(1));
  c->set_output(1, std::move(x));
  if (c->num_outputs() > 2) c->set_output(2, PartialShape::UnknownOfRank(1));
  return absl::OkStatus();
}

// Elements in a hash table: floats by value, as == compares them.
template <typename T>
struct UniqueKey {
  using type = T;
};
template <>
struct UniqueKey<std::string> {
  using type = absl::string_view;
};

template <typename T, typename Index>
class UniqueKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor x = ctx->input(0);
    if (!x.shape().is_vector()) {
      return absl::InvalidArgumentError(
          absl::StrCat("x must be a vector, got shape ", x.shape().ToString()));
    }
    if (x.num_elements() > std::numeric_limits<Index>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "x must have at most ", std::numeric_limits<Index>::max(),
          " elements for out_idx int32, got ", x.num_elements(), "; use out_idx int64"));
    }
    const absl::Span<const T> values = x.raw<T>();
    MR_ASSIGN_OR_RETURN(Tensor * idx, ctx->AllocateOutput(1, x.shape()));
    absl::Span<Index> index = idx->mutable_raw<Index>();
    std::vector<size_t> first;  // where each different element appears first
    std::vector<Index> counts;
    absl::flat_hash_map<typename UniqueKey<T>::type, Index> seen;
    seen.reserve(values.size() / 2);
    for (size_t i = 0; i < values.size(); ++i) {
      Index number = static_cast<Index>(first.size());
      // A NaN differs from all, itself included: the map may not have it (equal hashes of keys that
      // are never equal would also make look-ups slow).
      const bool is_nan = values[i] != values[i];
      if (!is_nan) number = seen.try_emplace(values[i], number).first->second;
      index[i] = number;
      if (static_cast<size_t>(number) == first.size()) {
        first.push_back(i);
        counts.push_back(1);
      } else {
        ++counts[static_cast<size_t>(number)];
      }
    }
    MR_ASSIGN_OR_RETURN(Tensor * y, ctx->AllocateOutput(0, Shape::Vector(first.size())));
    absl::Span<T> unique = y->mutable_raw<T>();
    for (size_t i = 0; i < first.size(); ++i) unique[i] = values[first[i]];
    if (ctx->num_outputs() < 3) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(Tensor * count, ctx->AllocateOutput(2, Shape::Vector(counts.size())));
    std::copy(counts.begin(), counts.end(), count->mutable_raw<Index>().begin());
    return absl::OkStatus();
  }
};

OpSpec UniqueSpec(const char* name) {
  return OpSpec(name)
      .Input("x: T")
      .Output("y: T")
      .Output("idx: out_idx")
      .Attr("T: type")
      .Attr("out_idx: {int32, int64} = DT_INT32")
      .Shape(UniqueShape)
      .NotDifferentiable();
}
const OpRegistration kUnique = UniqueSpec("Unique");
const OpRegistration kUniqueWithCounts = UniqueSpec("UniqueWithCounts").Output("count: out_idx");

template <typename T>
struct UniqueKernels {
  template <typename Index>
  static KernelRegistration Of(const char* op) {
    return KernelFor<UniqueKernel<T, Index>>(op).template Type<T>("T").template Type<Index>(
        "out_idx");
  }
  KernelRegistration all[4] = {Of<int32_t>("Unique"), Of<int64_t>("Unique"),
                               Of<int32_t>("UniqueWithCounts"), Of<int64_t>("UniqueWithCounts")};
};
const UniqueKernels<float> kUniqueFloat;
const UniqueKernels<double> kUniqueDouble;
const UniqueKernels<int32_t> kUniqueInt32;
const UniqueKernels<int64_t> kUniqueInt64;
const UniqueKernels<uint8_t> kUniqueUint8;
const UniqueKernels<bool> kUniqueBool;
const UniqueKernels<std::string> kUniqueString;

}  // namespace
}  // namespace millrace
