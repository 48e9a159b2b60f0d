// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SUMMARY_SUMMARY_H_
#define MILLRACE_OPS_SUMMARY_SUMMARY_H_

// The builders of this drawer: values of a step as messages for TensorBoard.

#include "ops/summary/image_summary.h"  // IWYU pragma: export
#include "ops/summary/value_summary.h"  // IWYU pragma: export

#endif  // MILLRACE_OPS_SUMMARY_SUMMARY_H_
