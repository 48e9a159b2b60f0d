// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_BYTES_H_
#define MILLRACE_OPS_LOOPS_BYTES_H_

// Bytes<N>: N bytes that are copied as one: stands for an element of any dtype of that size in
// loops that only move elements.
//
// Made of chars, so it may alias an element of any type. std::complex<double> is aligned to 8 only.

#include <cstddef>

namespace millrace {

template <size_t N>
struct alignas(N < 8 ? N : 8) Bytes {
  unsigned char bytes[N];
};

}  // namespace millrace

#endif  // MILLRACE_OPS_LOOPS_BYTES_H_
