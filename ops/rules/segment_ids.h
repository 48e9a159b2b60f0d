// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_SEGMENT_IDS_H_
#define MILLRACE_OPS_RULES_SEGMENT_IDS_H_

// Segment ids in increasing order: which are legal, and how many segments they make.
//
// Pure function. Failure: InvalidArgument that names the id.

#include <cstdint>

#include "core/int_span.h"
#include "core/shape.h"
#include "core/status.h"

namespace millrace {

// The last id + 1; ids begin at 0 or above and do not decrease.
inline StatusOr<int64_t> CountSegments(IntSpan ids) {
  int64_t last = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < last) {
      if (i == 0) return InvalidArgument("segment_ids[0] must be >= 0, got ", ids[0]);
      return InvalidArgument("segment ids are not increasing: segment_ids[", i,
                             "] must be >= ", last, ", got ", ids[i]);
    }
    last = ids[i];
  }
  if (last < Shape::kMaxElements) return ids.empty() ? 0 : last + 1;
  return InvalidArgument("segment_ids must be < ", Shape::kMaxElements, ", got ", last);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_SEGMENT_IDS_H_
