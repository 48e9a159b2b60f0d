// SPDX-License-Identifier: Apache-2.0
// IWYU pragma: private
// What sources of tests read again and again, precompiled: that of libraries, and GoogleTest.
#ifndef MILLRACE_THIRD_PARTY_PRECOMPILED_TEST_H_
#define MILLRACE_THIRD_PARTY_PRECOMPILED_TEST_H_

#include <gtest/gtest.h>

#include "third_party/precompiled/library.h"

#endif  // MILLRACE_THIRD_PARTY_PRECOMPILED_TEST_H_
