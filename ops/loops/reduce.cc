// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/reduce.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "ops/loops/number.h"

namespace millrace::math {
namespace {

// Elements that one task handles, about: large enough to hide its start, small enough for a float
// sum to stay exact to a few units in the last place.
constexpr int64_t kTaskElements = 32 * 1024;
// Columns that a task accumulates at once: they stay in the first-level cache.
constexpr int64_t kTileColumns = 1024;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

ReducePlan::ReducePlan(absl::Span<const int64_t> dims, absl::Span<const bool> reduced) {
  // From the innermost dimension outwards; neighbours that behave alike are joined.
  struct Joined {
    Dim dim;
    bool reduced;
  };
  absl::InlinedVector<Joined, 4> joined;
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] != 1) {
      if (!joined.empty() && joined.back().reduced == reduced[i]) {
        joined.back().dim.size *= dims[i];
      } else {
        joined.push_back({{dims[i], stride}, reduced[i]});
      }
    }
    stride *= dims[i];
  }
  for (size_t i = joined.size(); i-- > 0;) {
    const Joined& j = joined[i];
    if (j.reduced) num_reduced_ *= j.dim.size;
    if (i == 0) {
      rows_ = j.reduced;
      (rows_ ? row_ : width_) = j.dim.size;
    } else if (j.reduced) {
      reduced_.push_back(j.dim);
      outer_reduced_ *= j.dim.size;
    } else {
      kept_.push_back(j.dim);
      outer_kept_ *= j.dim.size;
    }
  }
  if (rows_) {
    row_piece_ = std::min(row_, kTaskElements);
    row_pieces_ = DivideUp(row_, row_piece_);
    piece_ = row_pieces_ > 1 ? 1 : std::max<int64_t>(1, kTaskElements / row_);
    pieces_ = DivideUp(outer_reduced_ * row_pieces_, piece_);
    elements_per_task_ = row_pieces_ > 1 ? row_piece_ : std::min(piece_, outer_reduced_) * row_;
  } else {
    tile_ = std::min(width_, kTileColumns);
    tiles_ = DivideUp(width_, tile_);
    piece_ = std::max<int64_t>(64, kTaskElements / tile_);
    pieces_ = DivideUp(outer_reduced_, piece_);
    elements_per_task_ = std::min(piece_, outer_reduced_) * tile_;
  }
}

int64_t ReducePlan::Offset(const Dims& dims, int64_t index) {
  int64_t offset = 0;
  for (size_t d = dims.size(); d-- > 0;) {
    offset += index % dims[d].size * dims[d].stride;
    index /= dims[d].size;
  }
  return offset;
}

// A reducer R has
//   T: the element type; A: the accumulator of the inner loops; P: a partial result
//   A Initial(), A Map(T) (an element as accumulator), A Combine(A, A);
//   P Merge(P, P), which also takes an A; T Finish(P, count); T Empty().
// P is wider than A where many additions would lose digits: inner loops are short, what they give
// is merged in P.
struct ReducePlan::Loops {
  // Offsets of consecutive combinations, starting anywhere.
  class Walk {
   public:
    Walk(const Dims& dims, int64_t index) : dims_(dims), index_(dims.size()) {
      for (size_t d = dims.size(); d-- > 0;) {
        index_[d] = index % dims[d].size;
        offset_ += index_[d] * dims[d].stride;
        index /= dims[d].size;
      }
    }
    int64_t offset() const { return offset_; }
    void Next() {
      for (size_t d = dims_.size(); d-- > 0;) {
        offset_ += dims_[d].stride;
        if (++index_[d] < dims_[d].size) return;
        offset_ -= dims_[d].size * dims_[d].stride;
        index_[d] = 0;
      }
    }

   private:
    const Dims& dims_;
    absl::InlinedVector<int64_t, 4> index_;
    int64_t offset_ = 0;
  };

  // Elements of a row, and rows of a column, that are combined in A before they are merged into P.
  static constexpr int64_t kRowBlock = 4096;
  static constexpr int64_t kColumnBlock = 32;

  template <typename R>
  static typename R::P LongRow(const typename R::T* x, int64_t n) {
    typename R::P total = R::Initial();
    for (int64_t i = 0; i < n; i += kRowBlock) {
      total = R::Merge(total, Row<R>(x + i, std::min(kRowBlock, n - i)));
    }
    return total;
  }

  // One block, in independent lanes that the compiler keeps in vector registers.
  template <typename R>
  static typename R::A Row(const typename R::T* x, int64_t n) {
    using A = typename R::A;
    constexpr int64_t kLanes = sizeof(A) <= 8 ? 256 / static_cast<int64_t>(sizeof(A)) : 4;
    A total = R::Initial();
    int64_t i = 0;
    if (n >= kLanes) {
      A lanes[static_cast<size_t>(kLanes)];
      for (int64_t j = 0; j < kLanes; ++j) lanes[j] = R::Initial();
      for (; i + kLanes <= n; i += kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) lanes[j] = R::Combine(lanes[j], R::Map(x[i + j]));
      }
      for (int64_t width = kLanes / 2; width > 0; width /= 2) {
        for (int64_t j = 0; j < width; ++j) lanes[j] = R::Combine(lanes[j], lanes[j + width]);
      }
      total = lanes[0];
    }
    for (; i < n; ++i) total = R::Combine(total, R::Map(x[i]));
    return total;
  }

  // Partial results lie as [piece][output].
  template <typename R>
  static void Run(const ReducePlan& p, int64_t task, const void* in, void* partials) {
    using A = typename R::A;
    using P = typename R::P;
    using T = typename R::T;
    const T* x = static_cast<const T*>(in);
    const int64_t piece = task % p.pieces_;
    const int64_t tile = task / p.pieces_ % p.tiles_;
    const int64_t kept = task / p.pieces_ / p.tiles_;
    P* out = static_cast<P*>(partials) + piece * p.num_outputs() + kept * p.width_;
    const T* base = x + Offset(p.kept_, kept);
    if (p.rows_) {
      const int64_t begin = piece * p.piece_;
      const int64_t end = std::min(begin + p.piece_, p.outer_reduced_ * p.row_pieces_);
      P total = R::Initial();
      Walk walk(p.reduced_, begin / p.row_pieces_);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = i % p.row_pieces_ * p.row_piece_;
        const int64_t size = std::min(p.row_piece_, p.row_ - from);
        total = R::Merge(total, LongRow<R>(base + walk.offset() + from, size));
        if ((i + 1) % p.row_pieces_ == 0) walk.Next();
      }
      *out = total;
      return;
    }
    const int64_t column = tile * p.tile_;
    const int64_t columns = std::min(p.tile_, p.width_ - column);
    const int64_t begin = piece * p.piece_;
    const int64_t end = std::min(begin + p.piece_, p.outer_reduced_);
    out += column;
    for (int64_t j = 0; j < columns; ++j) out[j] = R::Initial();
    Walk walk(p.reduced_, begin);
    A block[static_cast<size_t>(kTileColumns)];
    for (int64_t from = begin; from < end; from += kColumnBlock) {
      const int64_t to = std::min(from + kColumnBlock, end);
      for (int64_t j = 0; j < columns; ++j) block[j] = R::Initial();
      for (int64_t i = from; i < to; ++i, walk.Next()) {
        const T* row = base + walk.offset() + column;
        for (int64_t j = 0; j < columns; ++j) block[j] = R::Combine(block[j], R::Map(row[j]));
      }
      for (int64_t j = 0; j < columns; ++j) out[j] = R::Merge(out[j], block[j]);
    }
  }

  template <typename R>
  static void Finish(const ReducePlan& p, int64_t begin, int64_t end, const void* partials,
                     void* out_memory) {
    using P = typename R::P;
    const P* parts = static_cast<const P*>(partials);
    typename R::T* out = static_cast<typename R::T*>(out_memory);
    for (int64_t i = begin; i < end; ++i) {
      P total = parts[i];
      for (int64_t piece = 1; piece < p.pieces_; ++piece) {
        total = R::Merge(total, parts[piece * p.num_outputs() + i]);
      }
      out[i] = R::Finish(total, p.num_reduced_);
    }
  }

  template <typename R>
  static void FillEmpty(void* out, int64_t n) {
    std::fill_n(static_cast<typename R::T*>(out), n, R::Empty());
  }

  template <typename R>
  static constexpr ReduceFns Fns() {
    return {&Run<R>, &Finish<R>, &FillEmpty<R>, sizeof(typename R::P)};
  }
};

namespace {

using Loops = ReducePlan::Loops;

// Sums of floats are merged in double.
template <typename A>
using SumPartial = std::conditional_t<std::is_same_v<A, float>, double, A>;

template <typename E>
struct SumOf {
  using T = E;
  using A = Wide<E>;
  using P = SumPartial<A>;
  static A Initial() { return A(0); }
  static A Map(T v) { return Load(v); }
  static A Combine(A a, A b) { return WrapAdd(a, b); }
  static P Merge(P a, P b) { return WrapAdd(a, b); }
  static T Finish(P p, int64_t) { return Store<T>(static_cast<A>(p)); }
  static T Empty() { return Store<T>(A(0)); }
};

template <typename E>
struct MeanOf : SumOf<E> {
  using A = Wide<E>;
  using P = SumPartial<A>;
  static E Finish(P p, int64_t count) {
    if constexpr (kIsComplex<A>) {
      return p / static_cast<typename A::value_type>(count);
    } else if constexpr (std::is_same_v<E, uint64_t>) {
      return p / static_cast<uint64_t>(count);
    } else if constexpr (std::is_integral_v<A>) {
      // The count may not fit into a narrow type; the sum, which has wrapped, does.
      return static_cast<E>(static_cast<int64_t>(p) / count);
    } else {
      return Store<E>(static_cast<A>(p / static_cast<P>(count)));
    }
  }
  static E Empty() {
    if constexpr (std::is_integral_v<A>) {
      return E(0);
    } else {
      return Store<E>(A(std::numeric_limits<float>::quiet_NaN()));
    }
  }
};

template <typename E>
struct HalfSumOfSquaresOf : SumOf<E> {
  using A = Wide<E>;
  using P = SumPartial<A>;
  static A Map(E v) { return Load(v) * Load(v); }
  static E Finish(P p, int64_t) { return Store<E>(static_cast<A>(p / P(2))); }
};

template <typename E>
struct ProdOf {
  using T = E;
  using A = Wide<E>;
  using P = A;
  static A Initial() { return A(1); }
  static A Map(T v) { return Load(v); }
  static A Combine(A a, A b) { return WrapMul(a, b); }
  static P Merge(P a, P b) { return Combine(a, b); }
  static T Finish(P a, int64_t) { return Store<T>(a); }
  static T Empty() { return Store<T>(A(1)); }
};

template <typename A>
constexpr A Lowest() {
  if constexpr (std::is_integral_v<A>) {
    return std::numeric_limits<A>::lowest();
  } else {
    return -std::numeric_limits<A>::infinity();
  }
}
template <typename A>
constexpr A Highest() {
  if constexpr (std::is_integral_v<A>) {
    return std::numeric_limits<A>::max();
  } else {
    return std::numeric_limits<A>::infinity();
  }
}

// NaN wins: a comparison with it is false, so the accumulated NaN stays, and a new one is taken.
template <typename E>
struct MaxOf {
  using T = E;
  using A = Wide<E>;
  using P = A;
  static A Initial() { return Lowest<A>(); }
  static A Map(T v) { return Load(v); }
  static A Combine(A a, A b) { return (b > a) | (b != b) ? b : a; }
  static P Merge(P a, P b) { return Combine(a, b); }
  static T Finish(P a, int64_t) { return Store<T>(a); }
  static T Empty() { return Store<T>(Lowest<A>()); }
};
template <typename E>
struct MinOf {
  using T = E;
  using A = Wide<E>;
  using P = A;
  static A Initial() { return Highest<A>(); }
  static A Map(T v) { return Load(v); }
  static A Combine(A a, A b) { return (b < a) | (b != b) ? b : a; }
  static P Merge(P a, P b) { return Combine(a, b); }
  static T Finish(P a, int64_t) { return Store<T>(a); }
  static T Empty() { return Store<T>(Highest<A>()); }
};

// On the bytes of bools, which are 0 or 1.
struct AnyOf {
  using T = uint8_t;
  using A = uint8_t;
  using P = uint8_t;
  static A Initial() { return 0; }
  static A Map(T v) { return v; }
  static A Combine(A a, A b) { return static_cast<A>(a | b); }
  static P Merge(P a, P b) { return Combine(a, b); }
  static T Finish(P a, int64_t) { return a; }
  static T Empty() { return 0; }
};
struct AllOf {
  using T = uint8_t;
  using A = uint8_t;
  using P = uint8_t;
  static A Initial() { return 1; }
  static A Map(T v) { return v; }
  static A Combine(A a, A b) { return static_cast<A>(a & b); }
  static P Merge(P a, P b) { return Combine(a, b); }
  static T Finish(P a, int64_t) { return a; }
  static T Empty() { return 1; }
};

template <template <typename> typename R, typename List>
ReduceFns FnsOf(DType dtype) {
  return LoopFor<List>(dtype, []<typename T> { return Loops::Fns<R<T>>(); });
}
template <template <typename> typename R>
ReduceFns SignlessFnsOf(DType dtype) {
  return LoopFor<NumberTypes>(dtype, []<typename T> { return Loops::Fns<R<Signless<T>>>(); });
}

template <typename E, bool kMax>
void ArgReduce(const void* memory, int64_t n, int64_t inner, int64_t* out) {
  const E* x = static_cast<const E*>(memory);
  if (inner == 1) {
    Wide<E> best = Load(x[0]);
    int64_t at = 0;
    for (int64_t j = 1; j < n; ++j) {
      const Wide<E> v = Load(x[j]);
      if (kMax ? v > best : v < best) {
        best = v;
        at = j;
      }
    }
    out[0] = at;
    return;
  }
  // Row by row: memory is read in order.
  std::vector<Wide<E>> best(static_cast<size_t>(inner));
  for (int64_t i = 0; i < inner; ++i) {
    best[static_cast<size_t>(i)] = Load(x[i]);
    out[i] = 0;
  }
  for (int64_t j = 1; j < n; ++j) {
    for (int64_t i = 0; i < inner; ++i) {
      const Wide<E> v = Load(x[j * inner + i]);
      Wide<E>& b = best[static_cast<size_t>(i)];
      if (kMax ? v > b : v < b) {
        b = v;
        out[i] = j;
      }
    }
  }
}

template <bool kMax>
ArgReduceFn FindArg(DType dtype) {
  return LoopFor<RealTypes>(dtype, []<typename T>() -> ArgReduceFn { return &ArgReduce<T, kMax>; });
}

}  // namespace

ReduceFns FindReduce(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::kSum:
      return SignlessFnsOf<SumOf>(dtype);
    case ReduceOp::kMean:
      return FnsOf<MeanOf, NumberTypes>(dtype);
    case ReduceOp::kProd:
      return SignlessFnsOf<ProdOf>(dtype);
    case ReduceOp::kMax:
      return FnsOf<MaxOf, RealTypes>(dtype);
    case ReduceOp::kMin:
      return FnsOf<MinOf, RealTypes>(dtype);
    case ReduceOp::kAny:
      return dtype == DT_BOOL ? Loops::Fns<AnyOf>() : ReduceFns{};
    case ReduceOp::kAll:
      return dtype == DT_BOOL ? Loops::Fns<AllOf>() : ReduceFns{};
    case ReduceOp::kHalfSumOfSquares:
      return FnsOf<HalfSumOfSquaresOf, FloatTypes>(dtype);
  }
  return {};
}

ArgReduceFn FindArgReduce(ReduceOp op, DType dtype) {
  return op == ReduceOp::kMax ? FindArg<true>(dtype) : FindArg<false>(dtype);
}

}  // namespace millrace::math
