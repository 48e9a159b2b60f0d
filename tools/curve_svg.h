// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_CURVE_SVG_H_
#define MILLRACE_TOOLS_CURVE_SVG_H_

// CurveSvg: curves as a picture that every browser shows: a title, axes with ticks, one polyline
// per curve, and their names where there are several.
//
// The same curves give the same bytes. All text is escaped: tags and directories are others' words.
// Values that are not finite have no place; the picture says how many it lacks. A curve of very
// many points is thinned to those that its pixels show, extremes among them.
//
// Thread-safety: pure functions. Failure: none; a picture without a value has axes from 0 to 1.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace {

struct CurvePoint {
  double x = 0, y = 0;
};

struct Curve {
  std::string name;
  std::vector<CurvePoint> points;  // joined in this order
};

struct CurvePicture {
  std::string title;
  std::string x_label;
  std::vector<Curve> curves;
};

std::string CurveSvg(const CurvePicture& picture);

// Round numbers from `low` to `high`, both finite, low <= high: 1, 2 or 5 times a power of ten
// apart, at most `at_most` (>= 2) and, unless low == high, at least 2 where doubles lie so close.
std::vector<double> AxisTicks(double low, double high, int at_most);
// `tick` for people, `step` from the next one: "0.25", "1500", "1e-07".
std::string TickText(double tick, double step);
// "a < b & c" -> "a &lt; b &amp; c". What XML cannot have is "?", also bytes that are no UTF-8.
std::string XmlText(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_CURVE_SVG_H_
