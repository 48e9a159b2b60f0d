// SPDX-License-Identifier: Apache-2.0
#include "ops/random/random.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/mutex.h"
#include "core/random_bits.h"
#include "ops/loops/number.h"
#include "ops/loops/philox.h"
#include "ops/rules/elements.h"
#include "ops/rules/index_type.h"
#include "ops/rules/shape_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::PhiloxStream;

// Knows where its row of numbers is. Each run takes what it needs and moves on.
template <typename R>
class StreamKernel : public RuledKernel<R> {
 protected:
  Status Prepare(KernelConstruction* c) override {
    int64_t seed = 0, seed2 = 0;
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "seed", &seed, "seed2", &seed2));
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

// --- Distributions -------------------------------------------------------------------------------

struct RandomRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const { return ShapeOfInput(c, 0, "shape"); }
};

struct UniformIntRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(PartialShape shape, ShapeOfInput(c, 0, "shape"));
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> low, c->IntScalar(1, "minval"));
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> high, c->IntScalar(2, "maxval"));
    if (low && high && *low >= *high && shape.num_elements() > 0) {
      return InvalidArgument("Need minval < maxval, got ", *low, " >= ", *high);
    }
    return shape;
  }
};

using FillFn = void (*)(KernelContext* ctx, const PhiloxStream& stream, Tensor* out);

template <typename R>
class RandomKernel : public StreamKernel<R> {
 public:
  explicit RandomKernel(FillFn fill) : fill_(fill) {}

 protected:
  Status Run(KernelContext* ctx) const override {
    // What a run moves the counter by, for each value: room for any distribution.
    constexpr uint64_t kBlocksPerValue = 256;
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
    const uint64_t n = static_cast<uint64_t>(out->num_elements());
    if (n > 0) fill_(ctx, this->Take(n, kBlocksPerValue), out);
    return absl::OkStatus();
  }

 private:
  const FillFn fill_;
};

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

template <typename T, int kCostNs, auto kFill>
void FillOutput(KernelContext* ctx, const PhiloxStream& stream, Tensor* out) {
  FillInParts<T>(ctx, stream, kCostNs, out, kFill);
}
template <typename T>
void FillUniformInt(KernelContext* ctx, const PhiloxStream& stream, Tensor* out) {
  using U = std::make_unsigned_t<T>;
  const T low = ctx->input(1).raw_scalar<T>(), high = ctx->input(2).raw_scalar<T>();
  const uint64_t range = static_cast<U>(static_cast<U>(high) - static_cast<U>(low));
  FillInParts<T>(ctx, stream, 3, out,
                 [=](const PhiloxStream& s, int64_t group, absl::Span<T> values) {
                   math::PhiloxUniformInt<T>(s, group, low, range, values);
                 });
}

// An op and its kernel for each of `Ts` as attr `attr`; fill() gives the function for T.
template <typename R, typename... Ts>
struct RandomOp {
  template <typename F>
  RandomOp(absl::string_view op, absl::string_view arguments, absl::string_view attr,
           absl::string_view types, F fill) {
    const std::vector<KernelSpec> kernels = {
        KernelFor<RandomKernel<R>>(FillFn(fill.template operator()<Ts>()))
            .template Type<Ts>(attr)...};
    OpRegistration{OpSpec(op, arguments,
                          absl::StrCat("seed: int = 0; seed2: int = 0; ", attr, ": {", types,
                                       "}; T: {int32, int64}"))
                       .Stateful()
                       .With(kernels)
                       .NotDifferentiable()};
  }
};
struct FloatingRandomOp : RandomOp<RandomRule, float, double, Half, Bfloat16> {
  template <typename F>
  FloatingRandomOp(absl::string_view op, F fill)
      : RandomOp(op, "shape: T -> output: dtype", "dtype", "half, bfloat16, float, double", fill) {}
};

const FloatingRandomOp kUniform("RandomUniform", []<typename T>() {
  return FillOutput<T, 2, math::PhiloxUniform<T>>;
});
const FloatingRandomOp kNormal("RandomStandardNormal", []<typename T>() {
  return FillOutput<T, 30, math::PhiloxNormal<T>>;
});
const FloatingRandomOp kTruncatedNormal("TruncatedNormal", []<typename T>() {
  return FillOutput<T, 40, math::PhiloxTruncatedNormal<T>>;
});
const RandomOp<UniformIntRule, int32_t, int64_t> kUniformInt(
    "RandomUniformInt", "shape: T, minval: Tout, maxval: Tout -> output: Tout", "Tout",
    "int32, int64", []<typename T>() { return FillUniformInt<T>; });

// --- Multinomial ---------------------------------------------------------------------------------

struct MultinomialRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape logits, c->InputWithRank(0, 2, "logits"));
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> samples, c->IntScalar(1, "num_samples"));
    if (samples.value_or(0) < 0) return InvalidArgument("num_samples must be >= 0, got ", *samples);
    constexpr int64_t kMaxClasses = std::numeric_limits<int32_t>::max();  // of output indices
    if (logits.dim(1) == 0 || logits.dim(1) > kMaxClasses) {
      return InvalidArgument("logits must have 1 to ", kMaxClasses, " classes, got shape ", logits);
    }
    return PartialShape::Make({logits.dim(0), samples.value_or(-1)});
  }
};

template <typename T>
class MultinomialKernel : public StreamKernel<MultinomialRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
    if (out->num_elements() == 0) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(Tensor uniform, ctx->AllocateTemp(DT_DOUBLE, out->shape()));
    // TensorFlow's count: a double is two numbers, a row has whole blocks of four doubles.
    const uint64_t rows = static_cast<uint64_t>(out->dim(0));
    const uint64_t samples = static_cast<uint64_t>(out->dim(1));
    const PhiloxStream stream = Take(rows * ((samples + 3) / 4 * 8), 256);
    FillInParts<double>(ctx, stream, 2, &uniform, &math::PhiloxUniform<double>);
    return VisitIndexType(out->dtype(), [&]<typename Index>() {
      return DrawRows<Index>(ctx, uniform.raw<double>().data(), out);
    });
  }

 private:
  // Each number of `uniform` is a place in the row's sum of exp(logit - largest logit), where a
  // class is as wide as its term. Logits that are not finite have no place.
  template <typename Index>
  static Status DrawRows(KernelContext* ctx, const double* uniform, Tensor* out) {
    const T* const logits = ctx->input(0).raw<T>().data();
    const int64_t rows = out->dim(0), samples = out->dim(1), classes = ctx->input(0).dim(1);
    Index* const to = out->mutable_raw<Index>().data();
    std::atomic<int64_t> first_bad{rows};  // relaxed: read after the loop has ended
    const double cost_ns = 15 * static_cast<double>(classes) + 30 * static_cast<double>(samples);
    ctx->ParallelFor(rows, cost_ns, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(static_cast<size_t>(classes));
      for (int64_t row = begin; row < end; ++row) {
        const double total = SumClasses(logits + row * classes, absl::MakeSpan(sums));
        if (total == 0) {
          int64_t seen = first_bad.load(std::memory_order_relaxed);
          while (row < seen &&
                 !first_bad.compare_exchange_weak(seen, row, std::memory_order_relaxed)) {
          }
          continue;
        }
        for (int64_t i = row * samples; i < (row + 1) * samples; ++i) {
          to[i] = static_cast<Index>(
              std::upper_bound(sums.begin(), sums.end(), uniform[i] * total) - sums.begin());
        }
      }
    });
    const int64_t bad = first_bad.load(std::memory_order_relaxed);
    if (bad == rows) return absl::OkStatus();
    return InvalidArgument("logits must have a finite value in each row, got none in row ", bad);
  }

  // sums[i]: of the terms up to that of class i. Returns the last one, 0 without a finite logit.
  static double SumClasses(const T* logits, absl::Span<double> sums) {
    double largest = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < sums.size(); ++i) {
      const double logit = static_cast<double>(math::Load(logits[i]));
      if (std::isfinite(logit)) largest = std::max(largest, logit);
    }
    double total = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      const double logit = static_cast<double>(math::Load(logits[i]));
      if (std::isfinite(logit)) total += std::exp(logit - largest);
      sums[i] = total;
    }
    return total;
  }
};

const OpRegistration kMultinomial =
    OpSpec("Multinomial", "logits: T, num_samples: int32 -> output: output_dtype",
           "seed: int = 0; seed2: int = 0; T: realnumbertype; "
           "output_dtype: {int32, int64} = DT_INT64")
        .Stateful()
        .With(KernelsFor<MultinomialKernel, float, double, Half, Bfloat16>("T"))
        .NotDifferentiable();

// --- RandomShuffle -------------------------------------------------------------------------------

class RandomShuffleKernel : public StreamKernel<UnchangedShapeRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    const Tensor& value = ctx->input(0);
    const int64_t n = value.rank() == 0 ? 1 : value.dim(0);
    if (n <= 1 || value.num_elements() == 0) return ctx->PassInput(0);
    constexpr uint32_t kMaxRows = std::numeric_limits<uint32_t>::max();
    if (n > kMaxRows) {
      return InvalidArgument("value must have at most ", kMaxRows, " rows, got ", n);
    }
    PhiloxStream stream = Take(static_cast<uint64_t>(n - 1 + 3) / 4, 1);
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    PhiloxStream::Block words = {};
    for (int64_t i = 0; i + 1 < n; ++i) {
      if (i % 4 == 0) words = stream.Next();
      const uint32_t left = static_cast<uint32_t>(n - i);
      const int64_t other = i + words[static_cast<size_t>(i % 4)] % left;
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(other)]);
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
    const int64_t row = value.num_elements() / n;
    return VisitElements(value.dtype(), [&]<typename E>() {
      const E* from = ElementsOf<E>(value);
      E* to = MutableElementsOf<E>(out);
      for (const int64_t r : order) to = std::copy(from + r * row, from + (r + 1) * row, to);
    });
  }
};

const OpRegistration kRandomShuffle =
    OpSpec("RandomShuffle", "value: T -> output: T", "seed: int = 0; seed2: int = 0; T: type")
        .Stateful()
        .With(KernelFor<RandomShuffleKernel>())
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
