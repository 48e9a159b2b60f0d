// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_EVENT_SCAN_H_
#define MILLRACE_SAVER_EVENT_SCAN_H_

// ScanEvents, ScanScalars: everything that event files hold by now, from the first event to the
// last, as far as it can be read.
//
//   MR_RETURN_IF_ERROR(ScanScalars(fs, "run", [&](const EventScalar& scalar) {
//     if (scalar.tag == "loss") losses.push_back(scalar.value);
//   }));
//
// The order is that of EventReader (saver/event_reader.h), which follows files that grow; a scan
// reads them once. Where training went back to a checkpoint, later events have smaller steps.
//
// Thread-safety: functions of their arguments and of the files.
// Failure: NotFound when there is no such file or directory; that of the storage. Wrong bytes are
// no failure: `damaged` hears of them once per file, and the scan goes on with the next file.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"

namespace millrace {

// For callers to whom damage is nothing to tell.
void IgnoreDamage(const Status& damage);

// `take` may keep the event. `file`: where it is from.
Status ScanEvents(FileSystem* fs, const std::string& path,
                  absl::FunctionRef<void(const std::string& file, tensorflow::Event event)> take,
                  absl::FunctionRef<void(const Status& damage)> damaged = IgnoreDamage);

// One number of a curve.
struct EventScalar {
  absl::string_view tag;  // until the call returns
  int64_t step = 0;
  double wall_time = 0;  // seconds since 1970
  double value = 0;
};

Status ScanScalars(FileSystem* fs, const std::string& path,
                   absl::FunctionRef<void(const EventScalar& scalar)> take,
                   absl::FunctionRef<void(const Status& damage)> damaged = IgnoreDamage);

// The name of a value's curve: its tag; the node that made it in files from before there were tags.
const std::string& TagOf(const tensorflow::Summary::Value& value);

// The number that a value is: a simple value, or a tensor of one number (as TensorFlow 2 writes
// scalars). nullopt: it is none.
std::optional<double> ScalarOf(const tensorflow::Summary::Value& value);

}  // namespace millrace

#endif  // MILLRACE_SAVER_EVENT_SCAN_H_
