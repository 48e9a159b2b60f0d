// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_ELEMENT_BLOCK_H_
#define MILLRACE_OPS_KERNELS_ELEMENT_BLOCK_H_

// The block of element-wise loops: KernelContext::ParallelBlocks(n, kElementBlock, ...).
//
// A loop over elements works in vectors and ends with single elements, for which a compiler may
// round differently (it fuses multiplications and additions as it likes). Fixed blocks put those
// ends where the shape says, on any number of threads.

#include <cstdint>

namespace millrace {

// 2 us for the cheapest loops: large compared with a call, small enough to share expensive ones. A
// multiple of every vector.
inline constexpr int64_t kElementBlock = 4096;

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_ELEMENT_BLOCK_H_
