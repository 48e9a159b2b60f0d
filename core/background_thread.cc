// SPDX-License-Identifier: Apache-2.0
#include "core/background_thread.h"

namespace millrace {
namespace {

thread_local bool is_background = false;

}  // namespace

void BecomeBackgroundThread() { is_background = true; }
bool IsBackgroundThread() { return is_background; }

}  // namespace millrace
