// SPDX-License-Identifier: Apache-2.0
#include "tools/event_curves.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "formats/json_value.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "saver/event_scan.h"
#include "tools/curve_svg.h"

namespace millrace {
namespace {

constexpr size_t kMaxTagsTold = 20;

// One for all paths that lead to it.
std::string PlaceOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(path, error);
  return error ? path : canonical.string();
}

// Run -> directory: all below `root` that have event files. What cannot be listed goes to `damage`.
std::map<std::string, std::string> RunsBelow(FileSystem* fs, const std::string& root,
                                             std::vector<Status>* damage) {
  std::map<std::string, std::string> runs;
  std::set<std::string> seen = {PlaceOf(root)};
  std::deque<std::string> names = {"."};  // of directories that are to be looked at
  for (; !names.empty(); names.pop_front()) {
    const std::string& name = names.front();
    const std::string directory = name == "." ? root : JoinPath(root, name);
    const StatusOr<std::vector<std::string>> children = fs->GetChildren(directory);
    if (!children.ok()) {
      damage->push_back(children.status());
      continue;
    }
    for (const std::string& child : *children) {
      const std::string path = JoinPath(directory, child);
      const StatusOr<bool> is_directory = fs->IsDirectory(path);
      if (!is_directory.ok()) continue;  // gone by now
      if (!*is_directory && absl::StrContains(child, "tfevents")) runs.emplace(name, directory);
      if (*is_directory && seen.insert(PlaceOf(path)).second) {
        names.push_back(name == "." ? child : JoinPath(name, child));
      }
    }
  }
  return runs;
}

// What was seen of other tags, and of this one where it is no scalar.
struct OtherTags {
  std::set<std::string> scalars;
  bool is_no_scalar = false;
  bool any_event = false;
};

std::vector<CurveEvent> CurveIn(FileSystem* fs, const std::string& path, const std::string& tag,
                                OtherTags* others, std::vector<Status>* damage) {
  std::vector<CurveEvent> events;
  const auto damaged = [&](const Status& status) { damage->push_back(status); };
  const Status status = ScanEvents(
      fs, path,
      [&](const std::string&, const tensorflow::Event& event) {
        others->any_event = true;
        for (const tensorflow::Summary::Value& value : event.summary().value()) {
          const std::string& name = TagOf(value);
          const std::optional<double> number = ScalarOf(value);
          if (name != tag) {
            if (number) others->scalars.insert(name);
          } else if (number) {
            events.push_back({event.step(), event.wall_time(), *number});
          } else {
            others->is_no_scalar = true;
          }
        }
      },
      damaged);
  if (!status.ok()) damaged(status);
  return events;
}

Status NoSuchCurve(const std::string& path, const std::string& tag, const OtherTags& others) {
  if (!others.any_event) {
    return absl::NotFoundError(absl::StrCat(
        "'", path,
        "': a directory must have event files, with 'tfevents' in their names, in it or below it, ",
        "got none with a record"));
  }
  std::vector<std::string> names(others.scalars.begin(), others.scalars.end());
  const size_t more = names.size() > kMaxTagsTold ? names.size() - kMaxTagsTold : 0;
  names.resize(names.size() - more);
  const std::string there =
      names.empty() ? "there are none"
                    : absl::StrCat("there are '", absl::StrJoin(names, "', '"), "'",
                                   more > 0 ? absl::StrCat(" and ", more, " more") : "");
  if (others.is_no_scalar) {
    return InvalidArgument("'", path, "': a curve must be of scalars, got '", tag,
                           "', which has other values; of scalars ", there);
  }
  return absl::NotFoundError(
      absl::StrCat("'", path, "': tag must be one of its scalars, got '", tag, "'; ", there));
}

bool IsFloat(double value) {
  return std::isfinite(value) && std::fabs(value) <= 3e38 &&
         static_cast<double>(static_cast<float>(value)) == value;
}

// The shortest text that reads back to the value: that of the float where it was one.
std::string NumberText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text;
  if (IsFloat(value)) {
    AppendJson(static_cast<float>(value), &text);
  } else {
    AppendJson(value, &text);
  }
  return text;
}

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

// "0.25@100"; "-" where all are nan.
std::string Extreme(const std::vector<CurveEvent>& events, bool lowest) {
  const CurveEvent* best = nullptr;
  for (const CurveEvent& event : events) {
    if (std::isnan(event.value)) continue;
    if (best == nullptr || (lowest ? event.value < best->value : event.value > best->value)) {
      best = &event;
    }
  }
  return best == nullptr ? "-" : absl::StrCat(NumberText(best->value), "@", best->step);
}

}  // namespace

StatusOr<EventCurves> ReadEventCurves(FileSystem* fs, const std::string& path,
                                      const std::string& tag) {
  MR_ASSIGN_OR_RETURN(const bool is_directory, fs->IsDirectory(path));
  EventCurves curves;
  curves.tag = tag;
  std::map<std::string, std::string> runs = {{".", path}};
  if (is_directory) runs = RunsBelow(fs, path, &curves.damage);
  OtherTags others;
  for (const auto& [run, place] : runs) {
    std::vector<CurveEvent> events = CurveIn(fs, place, tag, &others, &curves.damage);
    if (!events.empty()) curves.runs.push_back({run, std::move(events)});
  }
  if (!curves.runs.empty()) return curves;
  return curves.damage.empty() || others.any_event ? NoSuchCurve(path, tag, others)
                                                   : curves.damage[0];
}

std::vector<CurveEvent> LastPass(const std::vector<CurveEvent>& events) {
  std::vector<CurveEvent> last;
  for (const CurveEvent& event : events) {
    while (!last.empty() && last.back().step >= event.step) last.pop_back();
    last.push_back(event);
  }
  return last;
}

std::string CurvesCsv(const EventCurves& curves) {
  std::string csv = "run,step,wall_time,value\n";
  for (const RunCurve& curve : curves.runs) {
    const std::string run = CsvField(curve.run);
    for (const CurveEvent& event : curve.events) {
      absl::StrAppendFormat(&csv, "%s,%d,%.6f,%s\n", run, event.step, event.wall_time,
                            NumberText(event.value));
    }
  }
  return csv;
}

std::string CurvesText(const EventCurves& curves) {
  size_t width = 3;
  for (const RunCurve& curve : curves.runs) width = std::max(width, curve.run.size());
  const int run_width = static_cast<int>(width);
  std::string text =
      absl::StrFormat("%s\n%-*s  %6s  %-14s  %-12s  %-12s  %-18s  %s\n", curves.tag, run_width,
                      "run", "count", "steps", "first", "last", "lowest", "highest");
  for (const RunCurve& curve : curves.runs) {
    const CurveEvent &first = curve.events.front(), &last = curve.events.back();
    absl::StrAppendFormat(&text, "%-*s  %6d  %-14s  %-12s  %-12s  %-18s  %s\n", run_width,
                          curve.run, curve.events.size(), absl::StrCat(first.step, "..", last.step),
                          NumberText(first.value), NumberText(last.value),
                          Extreme(curve.events, /*lowest=*/true),
                          Extreme(curve.events, /*lowest=*/false));
  }
  return text;
}

nlohmann::ordered_json CurvesJson(const EventCurves& curves) {
  nlohmann::ordered_json json;
  json["tag"] = curves.tag;
  json["runs"] = nlohmann::ordered_json::object();
  for (const RunCurve& curve : curves.runs) {
    nlohmann::ordered_json steps = nlohmann::ordered_json::array(), times = steps, values = steps;
    for (const CurveEvent& event : curve.events) {
      steps.push_back(event.step);
      times.push_back(ToJson(event.wall_time));
      values.push_back(IsFloat(event.value) ? ToJson(static_cast<float>(event.value))
                                            : ToJson(event.value));
    }
    json["runs"][curve.run] = {{"steps", std::move(steps)},
                               {"wall_times", std::move(times)},
                               {"values", std::move(values)}};
  }
  return json;
}

std::string CurvesSvg(const EventCurves& curves, absl::string_view title) {
  CurvePicture picture = {.title = std::string(title), .x_label = "step", .curves = {}};
  for (const RunCurve& run : curves.runs) {
    Curve curve = {.name = run.run, .points = {}};
    for (const CurveEvent& event : LastPass(run.events)) {
      curve.points.push_back({static_cast<double>(event.step), event.value});
    }
    picture.curves.push_back(std::move(curve));
  }
  return CurveSvg(picture);
}

}  // namespace millrace
