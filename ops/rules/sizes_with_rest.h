// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_SIZES_WITH_REST_H_
#define MILLRACE_OPS_RULES_SIZES_WITH_REST_H_

// Sizes of which one may be given as -1, what remains: of a reshape, of the parts of a split.
//
// Failure: InvalidArgument that names the input.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/status.h"
#include "graph/op_rule.h"

namespace millrace {

struct SizesWithRest {
  std::vector<int64_t> sizes;  // -1 where a size is open: not known, or the rest
  std::optional<int> rest;     // where -1 was given
  int num_open = 0;

  // The first open one. With only one open it is the rest, whether that was said or not.
  int64_t& open() { return *std::find(sizes.begin(), sizes.end(), -1); }

  // Of the `n` elements of int vector `name`.
  static StatusOr<SizesWithRest> Read(const char* name, const PartialInts& given, int n) {
    SizesWithRest result;
    result.sizes.reserve(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      const std::optional<int64_t> size = given.at(i);
      if (size.value_or(0) < -1) {
        return InvalidArgument(name, "[", i, "] must be >= -1, got ", *size);
      }
      if (size == -1 && result.rest) {
        return InvalidArgument(name, " must have at most one -1, got one at [", *result.rest,
                               "] and one at [", i, "]");
      }
      if (size == -1) result.rest = i;
      result.sizes.push_back(size.value_or(-1));
      result.num_open += result.sizes.back() == -1 ? 1 : 0;
    }
    return result;
  }
};

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_SIZES_WITH_REST_H_
