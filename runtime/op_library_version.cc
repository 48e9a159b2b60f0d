// SPDX-License-Identifier: Apache-2.0
#include "runtime/op_library.h"

MILLRACE_OP_LIBRARY();
