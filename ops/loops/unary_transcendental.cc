// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "ops/loops/number.h"
#include "ops/loops/selu.h"
#include "ops/loops/unary.h"
#include "ops/loops/unary_loop.h"

namespace millrace::math {
namespace {

// A row of elements that Eigen computes in whole vector registers: no element takes a scalar path.
template <typename W>
using Lanes = Eigen::Array<W, 64 / sizeof(W), 1>;

// y = f(x) in rows of lanes; the last row is filled up with ones. So an element's result depends on
// its value alone, not on where it stands or how the loop is cut or aligned.
template <typename W, typename F>
void ForEachLanes(const W* x, W* y, int64_t n, F f) {
  constexpr int64_t kLanes = Lanes<W>::SizeAtCompileTime;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes<W> values = Eigen::Map<const Lanes<W>>(x + i);
    const Lanes<W> results = f(values);
    Eigen::Map<Lanes<W>>(y + i) = results;
  }
  if (i == n) return;
  Lanes<W> values = Lanes<W>::Ones();
  std::copy(x + i, x + n, values.data());
  const Lanes<W> results = f(values);
  std::copy(results.data(), results.data() + (n - i), y + i);
}

// below where x < limit, else above. (Eigen's select() takes one element at a time, what it chooses
// from included.)
template <typename W>
Lanes<W> Choose(const Lanes<W>& x, W limit, const Lanes<W>& below, const Lanes<W>& above) {
  Lanes<W> chosen;
  for (int i = 0; i < Lanes<W>::SizeAtCompileTime; ++i) {
    chosen.data()[i] = x.data()[i] < limit ? below.data()[i] : above.data()[i];
  }
  return chosen;
}

// Eigen limits x to where the result is just a denormal number, also for minus infinity: below, it
// is 0.
struct Exp {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    constexpr W kLowest = sizeof(W) == sizeof(float) ? W(-88.37) : W(-708.39);
    return Choose<W>(x, kLowest, Lanes<W>::Zero(), x.exp());
  }
};
struct Expm1 {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return x.expm1();
  }
};
struct Log {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return x.log();
  }
};
struct Log1p {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return x.log1p();
  }
};
// 1 / (1 + exp(-x)); exp overflows to infinity, which gives the limit 0.
struct Sigmoid {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return (W(1) + (-x).exp()).inverse();
  }
};
struct Tanh {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return x.tanh();
  }
};
struct Sin {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return x.sin();
  }
};
struct Cos {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return x.cos();
  }
};
// The curve of ELU and SELU: negative * expm1(x) below zero, positive * x above.
template <typename W>
Lanes<W> ExponentialUnit(const Lanes<W>& x, W negative, W positive) {
  return Choose<W>(x, W(0), negative * x.expm1(), positive * x);
}
struct Elu {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return ExponentialUnit(x, W(1), W(1));
  }
};
struct Selu {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return ExponentialUnit(x, W(kSeluScaleAlpha), W(kSeluScale));
  }
};
// max(x, 0) + log1p(exp(-|x|)): exact for both signs, without overflow.
struct Softplus {
  template <typename W>
  static Lanes<W> Of(const Lanes<W>& x) {
    return x.max(W(0)) + (-x.abs()).exp().log1p();
  }
};

// The loop of a functor on lanes, as UnaryBlocks takes it.
template <typename F>
struct InLanes {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    ForEachLanes(x, y, n, [](const Lanes<W>& v) { return F::template Of<W>(v); });
  }
};

template <typename T>
struct Tan {
  static T Apply(T v) { return std::tan(v); }
};
template <typename T>
struct Asin {
  static T Apply(T v) { return std::asin(v); }
};
template <typename T>
struct Acos {
  static T Apply(T v) { return std::acos(v); }
};
template <typename T>
struct Atan {
  static T Apply(T v) { return std::atan(v); }
};
template <typename T>
struct Sinh {
  static T Apply(T v) { return std::sinh(v); }
};
template <typename T>
struct Cosh {
  static T Apply(T v) { return std::cosh(v); }
};
template <typename T>
struct Asinh {
  static T Apply(T v) { return std::asinh(v); }
};
template <typename T>
struct Acosh {
  static T Apply(T v) { return std::acosh(v); }
};
template <typename T>
struct Atanh {
  static T Apply(T v) { return std::atanh(v); }
};
template <typename T>
struct Erf {
  static T Apply(T v) { return std::erf(v); }
};
template <typename T>
struct Erfc {
  static T Apply(T v) { return std::erfc(v); }
};

template <typename F>
UnaryFn Blocks(DType dtype) {
  return LoopFor<FloatTypes>(dtype,
                             []<typename T>() -> UnaryFn { return &UnaryBlocks<InLanes<F>, T>; });
}

template <template <typename> typename F>
UnaryFn Each(DType dtype) {
  return EachOf<F, FloatTypes>(dtype);
}

}  // namespace

UnaryFn FindUnaryTranscendental(UnaryOp op, DType dtype) {
  switch (op) {
    case UnaryOp::kExp:
      return Blocks<Exp>(dtype);
    case UnaryOp::kExpm1:
      return Blocks<Expm1>(dtype);
    case UnaryOp::kLog:
      return Blocks<Log>(dtype);
    case UnaryOp::kLog1p:
      return Blocks<Log1p>(dtype);
    case UnaryOp::kSigmoid:
      return Blocks<Sigmoid>(dtype);
    case UnaryOp::kTanh:
      return Blocks<Tanh>(dtype);
    case UnaryOp::kSin:
      return Blocks<Sin>(dtype);
    case UnaryOp::kCos:
      return Blocks<Cos>(dtype);
    case UnaryOp::kElu:
      return Blocks<Elu>(dtype);
    case UnaryOp::kSelu:
      return Blocks<Selu>(dtype);
    case UnaryOp::kSoftplus:
      return Blocks<Softplus>(dtype);
    case UnaryOp::kTan:
      return Each<Tan>(dtype);
    case UnaryOp::kAsin:
      return Each<Asin>(dtype);
    case UnaryOp::kAcos:
      return Each<Acos>(dtype);
    case UnaryOp::kAtan:
      return Each<Atan>(dtype);
    case UnaryOp::kSinh:
      return Each<Sinh>(dtype);
    case UnaryOp::kCosh:
      return Each<Cosh>(dtype);
    case UnaryOp::kAsinh:
      return Each<Asinh>(dtype);
    case UnaryOp::kAcosh:
      return Each<Acosh>(dtype);
    case UnaryOp::kAtanh:
      return Each<Atanh>(dtype);
    case UnaryOp::kErf:
      return Each<Erf>(dtype);
    case UnaryOp::kErfc:
      return Each<Erfc>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace millrace::math
