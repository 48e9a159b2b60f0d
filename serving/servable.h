// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVABLE_H_
#define MILLRACE_SERVING_SERVABLE_H_

// Servable: one loaded version of a model, as its manager sees it: something that takes memory
// until it is destroyed.
//
// Thread-safety: num_bytes from any thread. The destructor runs once, after the last request; it
// may take long.

#include <cstdint>

namespace millrace {

class Servable {
 public:
  virtual ~Servable() = default;
  // About how much memory it takes.
  virtual int64_t num_bytes() const = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVABLE_H_
