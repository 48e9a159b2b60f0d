// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_LOST_FILE_H_
#define MILLRACE_DATA_LOST_FILE_H_

// The error that ends a file: the rows behind it are lost with it. IgnoreErrors counts such a file
// by itself: as one element of many it would not be seen.
//
// Thread-safety: any thread.

#include "core/status.h"

namespace millrace::data {

// `error`, with a payload that says so; its message stays.
Status LostFile(const Status& error);
// Is it one, whatever was put before or behind its message?
bool IsLostFile(const Status& error);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_LOST_FILE_H_
