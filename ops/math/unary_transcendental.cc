// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>
#include <cmath>

#include "ops/math/selu.h"
#include "ops/math/unary_loop.h"

namespace millrace::math {
namespace {

template <typename W>
using In = Eigen::Map<const Eigen::Array<W, Eigen::Dynamic, 1>>;
template <typename W>
using Out = Eigen::Map<Eigen::Array<W, Eigen::Dynamic, 1>>;

// Eigen limits x to where the result is just a denormal number, also for minus infinity: below, it
// is 0.
struct Exp {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    constexpr W kLowest = sizeof(W) == sizeof(float) ? W(-88.37) : W(-708.39);
    constexpr int64_t kBlock = 1024;  // y may be the memory of x
    W values[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = std::min(kBlock, n - begin);
      Out<W>(values, size) = In<W>(x + begin, size).exp();
      for (int64_t i = 0; i < size; ++i) {
        y[begin + i] = x[begin + i] < kLowest ? W(0) : values[i];
      }
    }
  }
};
struct Expm1 {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    Out<W>(y, n) = In<W>(x, n).expm1();
  }
};
struct Log {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    Out<W>(y, n) = In<W>(x, n).log();
  }
};
struct Log1p {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    Out<W>(y, n) = In<W>(x, n).log1p();
  }
};
// 1 / (1 + exp(-x)); exp overflows to infinity, which gives the limit 0.
struct Sigmoid {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    Out<W>(y, n) = (W(1) + (-In<W>(x, n)).exp()).inverse();
  }
};
struct Tanh {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    Out<W>(y, n) = In<W>(x, n).tanh();
  }
};
struct Sin {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    Out<W>(y, n) = In<W>(x, n).sin();
  }
};
struct Cos {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    Out<W>(y, n) = In<W>(x, n).cos();
  }
};
// The curve of ELU and SELU: negative * expm1(x) below zero, positive * x above. In blocks that fit
// into the first-level cache, because y may be the memory of x.
template <typename W>
void ExponentialUnit(const W* x, W* y, int64_t n, W negative, W positive) {
  constexpr int64_t kBlock = 1024;
  W curve[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    Out<W>(curve, size) = negative * In<W>(x + begin, size).expm1();
    for (int64_t i = 0; i < size; ++i) {
      const W v = x[begin + i];
      y[begin + i] = v < W(0) ? curve[i] : positive * v;
    }
  }
}
struct Elu {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    ExponentialUnit(x, y, n, W(1), W(1));
  }
};
struct Selu {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    ExponentialUnit(x, y, n, W(kSeluScaleAlpha), W(kSeluScale));
  }
};
// max(x, 0) + log1p(exp(-|x|)): exact for both signs, without overflow.
struct Softplus {
  template <typename W>
  static void Block(const W* x, W* y, int64_t n) {
    const In<W> in(x, n);
    Out<W>(y, n) = in.max(W(0)) + (-in.abs()).exp().log1p();
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
  switch (dtype) {
    case DT_FLOAT:
      return &UnaryBlocks<F, float>;
    case DT_DOUBLE:
      return &UnaryBlocks<F, double>;
    case DT_HALF:
      return &UnaryBlocks<F, Half>;
    case DT_BFLOAT16:
      return &UnaryBlocks<F, Bfloat16>;
    default:
      return nullptr;
  }
}

template <template <typename> typename F>
UnaryFn Each(DType dtype) {
  switch (dtype) {
    case DT_FLOAT:
      return &UnaryEach<F<float>, float>;
    case DT_DOUBLE:
      return &UnaryEach<F<double>, double>;
    case DT_HALF:
      return &UnaryEach<F<float>, Half>;
    case DT_BFLOAT16:
      return &UnaryEach<F<float>, Bfloat16>;
    default:
      return nullptr;
  }
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
