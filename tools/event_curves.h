// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_EVENT_CURVES_H_
#define MILLRACE_TOOLS_EVENT_CURVES_H_

// EventCurves: how one scalar went, in each run below a directory, and as what a person or another
// program reads it.
//
// A run is a directory with event files, as in TensorBoard: "." is the directory that was asked
// for, "eval" the one in it. A directory that several links lead to is one run.
//
// Thread-safety: a function of the files, and functions of their arguments.
// Failure: NotFound for a path that is not there, and for a tag that no run has, with those that
// there are; InvalidArgument for a tag whose values are no scalars. What cannot be read is in
// `damage`, next to all else.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "nlohmann/json.hpp"

namespace millrace {

struct CurveEvent {
  int64_t step = 0;
  double wall_time = 0;  // seconds since 1970
  double value = 0;
};

struct RunCurve {
  std::string run;
  std::vector<CurveEvent> events;  // as they were written; never empty
};

struct EventCurves {
  std::string tag;
  std::vector<RunCurve> runs;  // by name
  std::vector<Status> damage;
};

// `path`: a directory, with all below it, or one file, which is the run ".".
StatusOr<EventCurves> ReadEventCurves(FileSystem* fs, const std::string& path,
                                      const std::string& tag);

// Without the steps that training did again after it went back to a checkpoint: an event takes
// back all before it whose step is not smaller.
std::vector<CurveEvent> LastPass(const std::vector<CurveEvent>& events);

// "run,step,wall_time,value" and a line for each event (RFC 4180, with '\n').
std::string CurvesCsv(const EventCurves& curves);
// A row for each run: how many, which steps, the first, last, lowest and highest value.
std::string CurvesText(const EventCurves& curves);
// {"tag": ..., "runs": {".": {"steps": [...], "wall_times": [...], "values": [...]}}}.
nlohmann::ordered_json CurvesJson(const EventCurves& curves);
// The last pass of each run (tools/curve_svg.h). `title`: for people.
std::string CurvesSvg(const EventCurves& curves, absl::string_view title);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_EVENT_CURVES_H_
