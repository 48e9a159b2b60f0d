// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_SPLAT_BYTES_H_
#define MILLRACE_NET_SPLAT_BYTES_H_

// Elements that a TensorProto does not list: the last one repeats, so a message of a few bytes can
// stand for gigabytes. Who decodes what strangers send counts them before it allocates.
//
// Thread-safety: pure functions. Failure: none; what does not fit counts as INT64_MAX.

#include <cstdint>

namespace tensorflow {
class TensorProto;
}

namespace millrace {

// a + b, at most INT64_MAX; both >= 0.
inline int64_t AddCapped(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

// What the elements that `proto` does not list take in memory, at least; those of tensors inside
// its variants, too. As much as there is for a shape that is none.
int64_t SplatBytes(const tensorflow::TensorProto& proto);

}  // namespace millrace

#endif  // MILLRACE_NET_SPLAT_BYTES_H_
