// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_INITIAL_VALUES_H_
#define MILLRACE_LAYERS_INITIAL_VALUES_H_

// Variables with the initial values that models begin from, float32. The initial value's nodes are
// in "<name>/Initializer". Errors go into the scope.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

Variable FilledVariable(const Scope& scope, const std::string& name,
                        const std::vector<int32_t>& shape, float value);

// Mean 0; what is farther from it than two standard deviations is drawn again.
Variable TruncatedNormalVariable(const Scope& scope, const std::string& name,
                                 std::initializer_list<int64_t> shape, double stddev);

// A matrix, uniform within +-sqrt(6 / (rows + columns)) (Glorot and Bengio, 2010).
Variable GlorotUniformVariable(const Scope& scope, const std::string& name, int64_t rows,
                               int64_t columns);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_INITIAL_VALUES_H_
