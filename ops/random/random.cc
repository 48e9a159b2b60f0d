// SPDX-License-Identifier: Apache-2.0
#include "ops/random/random.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "core/mutex.h"
#include "core/random_bits.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/loops/philox.h"
#include "ops/rules/elements.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::PhiloxStream;

// Where the row of numbers of one kernel is. Each run takes what it needs and moves on.
class StreamState {
 public:
  Status Init(KernelConstruction* c) {
    MR_ASSIGN_OR_RETURN(const int64_t seed, c->GetAttr<int64_t>("seed"));
    MR_ASSIGN_OR_RETURN(const int64_t seed2, c->GetAttr<int64_t>("seed2"));
    const bool seeded = seed != 0 || seed2 != 0;
    MutexLock lock(&mu_);
    stream_ = seeded ? PhiloxStream(static_cast<uint64_t>(seed), static_cast<uint64_t>(seed2))
                     : PhiloxStream(RandomUint64(), RandomUint64());
    return absl::OkStatus();
  }
  // The stream here; the next call gets one that is blocks * times further on.
  PhiloxStream Take(uint64_t blocks, uint64_t times) const {
    MutexLock lock(&mu_);
    const PhiloxStream here = stream_;
    stream_.SkipWide(blocks, times);
    return here;
  }

 private:
  mutable Mutex mu_;
  mutable PhiloxStream stream_ ABSL_GUARDED_BY(mu_);
};

// What a run of n values moves the counter by, for each of them: room for any distribution.
constexpr uint64_t kBlocksPerValue = 256;

Status RandomShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 1).status());
  for (int i = 1; i < c->num_inputs(); ++i) MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(0));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

StatusOr<Shape> ShapeInputOf(KernelContext* ctx) {
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, ctx->IntVectorInput(0, "shape"));
  return Shape::Make(dims);
}

// fill(stream, first group, span) for all elements, in parts that begin with a group.
template <typename T, typename Fill>
void FillInParts(KernelContext* ctx, const PhiloxStream& stream, double cost_per_value, Tensor* out,
                 const Fill& fill) {
  constexpr int64_t kGroup = math::kPhiloxGroup<T>;
  const absl::Span<T> all = out->mutable_raw<T>();
  const int64_t n = static_cast<int64_t>(all.size());
  ctx->ParallelFor((n + kGroup - 1) / kGroup, cost_per_value * static_cast<double>(kGroup),
                   [&](int64_t begin, int64_t end) {
                     const int64_t from = begin * kGroup, to = std::min(n, end * kGroup);
                     fill(stream, begin,
                          all.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)));
                   });
}

template <typename T>
struct UniformRule {
  static constexpr double kCostNs = 2;
  static void Fill(const PhiloxStream& s, int64_t group, absl::Span<T> out) {
    math::PhiloxUniform<T>(s, group, out);
  }
};
template <typename T>
struct NormalRule {
  static constexpr double kCostNs = 30;
  static void Fill(const PhiloxStream& s, int64_t group, absl::Span<T> out) {
    math::PhiloxNormal<T>(s, group, out);
  }
};
template <typename T>
struct TruncatedRule {
  static constexpr double kCostNs = 40;
  static void Fill(const PhiloxStream& s, int64_t group, absl::Span<T> out) {
    math::PhiloxTruncatedNormal<T>(s, group, out);
  }
};

template <typename T, template <typename> class Rule>
class RandomKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return state_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Shape shape, ShapeInputOf(ctx));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    const PhiloxStream stream =
        state_.Take(static_cast<uint64_t>(shape.num_elements()), kBlocksPerValue);
    FillInParts<T>(ctx, stream, Rule<T>::kCostNs, out, &Rule<T>::Fill);
    return absl::OkStatus();
  }

 private:
  StreamState state_;
};

template <typename T>
class RandomUniformIntKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return state_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Shape shape, ShapeInputOf(ctx));
    MR_ASSIGN_OR_RETURN(const T low, ctx->ScalarInput<T>(1, "minval"));
    MR_ASSIGN_OR_RETURN(const T high, ctx->ScalarInput<T>(2, "maxval"));
    if (low >= high && shape.num_elements() > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("Need minval < maxval, got ", low, " >= ", high));
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    const PhiloxStream stream =
        state_.Take(static_cast<uint64_t>(shape.num_elements()), kBlocksPerValue);
    using U = std::make_unsigned_t<T>;
    const uint64_t range = static_cast<U>(static_cast<U>(high) - static_cast<U>(low));
    FillInParts<T>(ctx, stream, 3, out,
                   [=](const PhiloxStream& s, int64_t group, absl::Span<T> values) {
                     math::PhiloxUniformInt<T>(s, group, low, range, values);
                   });
    return absl::OkStatus();
  }

 private:
  StreamState state_;
};

OpSpec RandomSpec(const char* name) {
  return OpSpec(name)
      .Input("shape: T")
      .Output("output: dtype")
      .Attr("seed: int = 0")
      .Attr("seed2: int = 0")
      .Attr("dtype: {half, bfloat16, float, double}")
      .Attr("T: {int32, int64}")
      .Stateful()
      .Shape(RandomShape)
      .NotDifferentiable();
}
const OpRegistration kRandomUniform = RandomSpec("RandomUniform");
const OpRegistration kRandomStandardNormal = RandomSpec("RandomStandardNormal");
const OpRegistration kTruncatedNormal = RandomSpec("TruncatedNormal");

template <typename T>
struct RandomKernels {
  KernelRegistration all[3] = {
      KernelFor<RandomKernel<T, UniformRule>>("RandomUniform").template Type<T>("dtype"),
      KernelFor<RandomKernel<T, NormalRule>>("RandomStandardNormal").template Type<T>("dtype"),
      KernelFor<RandomKernel<T, TruncatedRule>>("TruncatedNormal").template Type<T>("dtype"),
  };
};
const RandomKernels<float> kRandomFloat;
const RandomKernels<double> kRandomDouble;
const RandomKernels<Half> kRandomHalf;
const RandomKernels<Bfloat16> kRandomBfloat16;

const OpRegistration kRandomUniformInt = OpSpec("RandomUniformInt")
                                             .Input("shape: T")
                                             .Input("minval: Tout")
                                             .Input("maxval: Tout")
                                             .Output("output: Tout")
                                             .Attr("seed: int = 0")
                                             .Attr("seed2: int = 0")
                                             .Attr("Tout: {int32, int64}")
                                             .Attr("T: {int32, int64}")
                                             .Stateful()
                                             .Shape(RandomShape)
                                             .NotDifferentiable();
const KernelRegistration kRandomUniformInt32 =
    KernelFor<RandomUniformIntKernel<int32_t>>("RandomUniformInt").Type<int32_t>("Tout");
const KernelRegistration kRandomUniformInt64 =
    KernelFor<RandomUniformIntKernel<int64_t>>("RandomUniformInt").Type<int64_t>("Tout");

// --- RandomShuffle -------------------------------------------------------------------------------

class RandomShuffleKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return state_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    const Tensor value = ctx->input(0);
    const int64_t n = value.rank() == 0 ? 1 : value.dim(0);
    if (n <= 1) {
      ctx->set_output(0, value);
      return absl::OkStatus();
    }
    if (n > int64_t{std::numeric_limits<uint32_t>::max()}) {
      return absl::InvalidArgumentError(absl::StrCat(
          "value must have at most ", std::numeric_limits<uint32_t>::max(), " rows, got ", n));
    }
    PhiloxStream stream = state_.Take(static_cast<uint64_t>(n - 1 + 3) / 4, 1);
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    PhiloxStream::Block words = {};
    for (int64_t i = 0; i + 1 < n; ++i) {
      if (i % 4 == 0) words = stream.Next();
      const uint32_t left = static_cast<uint32_t>(n - i);
      const int64_t other = i + words[static_cast<size_t>(i % 4)] % left;
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(other)]);
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, value.shape()));
    const int64_t row = value.num_elements() / n;
    return VisitElements(value.dtype(), [&]<typename E>() {
      const E* from = ElementsOf<E>(value);
      E* to = MutableElementsOf<E>(out);
      for (const int64_t r : order) to = std::copy(from + r * row, from + (r + 1) * row, to);
    });
  }

 private:
  StreamState state_;
};

const OpRegistration kRandomShuffle = OpSpec("RandomShuffle")
                                          .Input("value: T")
                                          .Output("output: T")
                                          .Attr("seed: int = 0")
                                          .Attr("seed2: int = 0")
                                          .Attr("T: type")
                                          .Stateful()
                                          .Shape(UnchangedShape)
                                          .NotDifferentiable();
const KernelRegistration kRandomShuffleKernel = KernelFor<RandomShuffleKernel>("RandomShuffle");

}  // namespace
}  // namespace millrace
