// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_MAP_H_
#define MILLRACE_DATA_MAP_H_

// What Map with one call and with several at once share. For this folder.

#include <cstdint>

#include "core/status.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {

// The function's result for `*element`, in its place; timed, exceptions caught, checked against
// `spec`.
Status CallMapFunction(const MapFunction& function, CancellationManager* cancellation,
                       const ElementSpec& spec, WorkTime* time, int64_t* num_timed,
                       Element* element);

// data/parallel_map.cc: `parallel` > 1 calls at once, in order.
Dataset MakeParallelMap(const Dataset& input, MapFunction function, MapOptions options);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_MAP_H_
