// SPDX-License-Identifier: Apache-2.0
#include "tools/curve_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/utf8.h"

namespace millrace {
namespace {

// In pixels.
constexpr double kLeft = 80, kTop = 40, kPlotWidth = 600, kPlotHeight = 300;
constexpr double kRight = 20, kBottom = 50, kLegendWidth = 180, kLegendLine = 18;
constexpr int kXTicks = 8, kYTicks = 7;
constexpr size_t kMaxNames = 15;      // in the legend
constexpr size_t kMaxNameBytes = 24;  // of each; the whole one is shown under the mouse
// The colours of Okabe and Ito, which people who do not see all colours tell apart.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#000000"};

struct Range {
  double low = 0, high = 1;

  // Where `value` is in it, from 0 to 1. Halves: the whole may be too large for a double.
  double PlaceOf(double value) const { return (value / 2 - low / 2) / (high / 2 - low / 2); }
};

bool IsFinite(const CurvePoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

// Of all finite points; never empty.
Range RangeOf(const std::vector<Curve>& curves, double CurvePoint::*coordinate) {
  bool any = false;
  Range range;
  for (const Curve& curve : curves) {
    for (const CurvePoint& point : curve.points) {
      if (!IsFinite(point)) continue;
      const double value = point.*coordinate;
      range.low = any ? std::min(range.low, value) : value;
      range.high = any ? std::max(range.high, value) : value;
      any = true;
    }
  }
  // One value alone stands in the middle, also where doubles lie far apart.
  if (range.high / 2 - range.low / 2 > 0) return range;
  constexpr double kMax = std::numeric_limits<double>::max();
  const double margin = range.low == 0 ? 1 : std::max(std::fabs(range.low) * 0.1, 1e-300);
  return {std::max(range.low - margin, -kMax), std::min(range.high + margin, kMax)};
}

// Of points in one column of pixels what its pixels show: the first, the lowest, the highest and
// the last one, in their order.
std::vector<CurvePoint> Thinned(const std::vector<CurvePoint>& points, const Range& x) {
  constexpr double kPointsPerPixel = 4;
  if (static_cast<double>(points.size()) <= kPointsPerPixel * kPlotWidth) return points;
  const auto column = [&](size_t i) { return std::floor(x.PlaceOf(points[i].x) * kPlotWidth); };
  std::vector<CurvePoint> kept;
  for (size_t begin = 0, end = 0; begin < points.size(); begin = end) {
    size_t low = begin, high = begin;
    for (end = begin + 1; end < points.size() && column(end) == column(begin); ++end) {
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
    }
    std::array<size_t, 4> shown = {begin, low, high, end - 1};
    std::sort(shown.begin(), shown.end());
    for (size_t i = 0; i < shown.size(); ++i) {
      if (i == 0 || shown[i] != shown[i - 1]) kept.push_back(points[shown[i]]);
    }
  }
  return kept;
}

std::string Text(double x, double y, absl::string_view attributes, absl::string_view text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, attributes,
                         XmlText(text));
}

std::string Line(double x1, double y1, double x2, double y2, absl::string_view stroke) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                         x1, y1, x2, y2, stroke);
}

double XOf(const Range& range, double value) { return kLeft + range.PlaceOf(value) * kPlotWidth; }
double YOf(const Range& range, double value) {
  return kTop + (1 - range.PlaceOf(value)) * kPlotHeight;
}

std::string Axes(const Range& x, const Range& y, absl::string_view x_label) {
  constexpr char kGrid[] = "#dddddd", kAxis[] = "#333333";
  const double bottom = kTop + kPlotHeight;
  std::string svg;
  const auto step_of = [](const std::vector<double>& ticks) {
    return ticks.size() > 1 ? ticks[1] - ticks[0] : 0.0;
  };
  const std::vector<double> y_ticks = AxisTicks(y.low, y.high, kYTicks);
  for (const double tick : y_ticks) {
    const double at = YOf(y, tick);
    absl::StrAppend(
        &svg, Line(kLeft, at, kLeft + kPlotWidth, at, kGrid),
        Text(kLeft - 8, at + 4, " text-anchor=\"end\"", TickText(tick, step_of(y_ticks))));
  }
  const std::vector<double> x_ticks = AxisTicks(x.low, x.high, kXTicks);
  for (const double tick : x_ticks) {
    const double at = XOf(x, tick);
    absl::StrAppend(
        &svg, Line(at, bottom, at, bottom + 5, kAxis),
        Text(at, bottom + 20, " text-anchor=\"middle\"", TickText(tick, step_of(x_ticks))));
  }
  absl::StrAppend(&svg, Line(kLeft, kTop, kLeft, bottom, kAxis),
                  Line(kLeft, bottom, kLeft + kPlotWidth, bottom, kAxis),
                  Text(kLeft + kPlotWidth / 2, bottom + 40, " text-anchor=\"middle\"", x_label));
  return svg;
}

std::string Polyline(const std::vector<CurvePoint>& points, const Range& x, const Range& y,
                     absl::string_view colour) {
  std::string places;
  const auto append = [&](const CurvePoint& point) {
    absl::StrAppendFormat(&places, "%s%.1f,%.1f", places.empty() ? "" : " ", XOf(x, point.x),
                          YOf(y, point.y));
  };
  for (const CurvePoint& point : points) append(point);
  // With round ends a line to itself is a dot.
  if (points.size() == 1) append(points[0]);
  return absl::StrFormat(
      "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" stroke-linejoin=\"round\" "
      "stroke-linecap=\"round\" points=\"%s\"/>\n",
      colour, points.size() == 1 ? "5" : "1.5", places);
}

std::string Legend(const std::vector<Curve>& curves) {
  const double left = kLeft + kPlotWidth + kRight;
  std::string svg;
  for (size_t i = 0; i < curves.size(); ++i) {
    const double at = kTop + kLegendLine * static_cast<double>(std::min(i, kMaxNames));
    if (i == kMaxNames) {
      absl::StrAppend(&svg, Text(left, at + 4, "", absl::StrCat("+", curves.size() - i)));
      break;
    }
    const std::string& name = curves[i].name;
    const std::string shown = name.size() <= kMaxNameBytes
                                  ? name
                                  : absl::StrCat("...", name.substr(name.size() - kMaxNameBytes));
    absl::StrAppend(&svg, "<g><title>", XmlText(name), "</title>\n",
                    Line(left, at, left + 20, at, kColours[i % kColours.size()]),
                    Text(left + 26, at + 4, "", shown), "</g>\n");
  }
  return svg;
}

}  // namespace

std::string CurveSvg(const CurvePicture& picture) {
  const Range x = RangeOf(picture.curves, &CurvePoint::x);
  const Range y = RangeOf(picture.curves, &CurvePoint::y);
  const bool has_legend = picture.curves.size() > 1;
  const double width = kLeft + kPlotWidth + kRight + (has_legend ? kLegendWidth : 0);
  const double height = kTop + kPlotHeight + kBottom;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333333\">\n",
      width, height, width, height);
  absl::StrAppend(&svg, "<title>", XmlText(picture.title), "</title>\n");
  absl::StrAppendFormat(&svg, "<rect width=\"%.0f\" height=\"%.0f\" fill=\"white\"/>\n", width,
                        height);
  absl::StrAppend(&svg, Text(kLeft, 24, " font-size=\"16\"", picture.title),
                  Axes(x, y, picture.x_label));
  size_t left_out = 0;
  for (size_t i = 0; i < picture.curves.size(); ++i) {
    std::vector<CurvePoint> points = picture.curves[i].points;
    left_out += std::erase_if(points, [](const CurvePoint& point) { return !IsFinite(point); });
    if (points.empty()) continue;
    absl::StrAppend(&svg, Polyline(Thinned(points, x), x, y, kColours[i % kColours.size()]));
  }
  if (has_legend) absl::StrAppend(&svg, Legend(picture.curves));
  if (left_out > 0) {
    absl::StrAppend(&svg, Text(kLeft + kPlotWidth, 24, " text-anchor=\"end\"",
                               absl::StrCat(left_out, " not finite, not shown")));
  }
  absl::StrAppend(&svg, "</svg>\n");
  return svg;
}

std::vector<double> AxisTicks(double low, double high, int at_most) {
  const double half = high / 2 - low / 2;
  if (!(half > 0)) return {low};
  const std::vector<double> ends = {low, high};
  const double least = half / (0.5 * (at_most - 1));
  const double power = std::pow(10, std::floor(std::log10(least)));
  if (!std::isfinite(least) || !(power > 0)) return ends;  // at the ends of what doubles can hold
  double step = power;
  for (const double digit : {1.0, 2.0, 5.0, 10.0}) {
    step = digit * power;
    if (step >= least * (1 - 1e-9)) break;
  }
  if (!std::isfinite(step)) return ends;
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i < at_most; ++i) {
    const double tick = (first + i) * step;
    if (tick > high + step * 1e-9) break;
    // No negative zero.
    const double inside = tick == 0 ? 0.0 : std::min(std::max(tick, low), high);
    if (ticks.empty() || inside > ticks.back()) ticks.push_back(inside);
  }
  return ticks.size() < 2 ? ends : ticks;
}

std::string TickText(double tick, double step) {
  if (tick == 0) return "0";
  if (!std::isfinite(step) || !(step > 0)) return absl::StrFormat("%g", tick);
  const double size = std::fabs(tick);
  // The power of ten of the last digit in which two ticks differ.
  const int last = static_cast<int>(std::floor(std::log10(step) + 1e-9));
  if (size >= 1e-4 && size < 1e7) {
    return absl::StrFormat("%.*f", std::min(std::max(-last, 0), 15), tick);
  }
  const int first = static_cast<int>(std::floor(std::log10(size) + 1e-9));
  return absl::StrFormat("%.*g", std::min(std::max(first - last + 1, 1), 17), tick);
}

std::string XmlText(absl::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const absl::string_view character = text.substr(0, std::max<size_t>(length, 1));
    text.remove_prefix(character.size());
    if (character == "&") {
      escaped += "&amp;";
    } else if (character == "<") {
      escaped += "&lt;";
    } else if (character == ">") {
      escaped += "&gt;";
    } else if (character == "\"") {
      escaped += "&quot;";
    } else if (character == "\t" || character == "\n" || character == "\r") {
      escaped += ' ';
    } else if (length == 0 || static_cast<unsigned char>(character[0]) < 0x20 ||
               character == "\xef\xbf\xbe" || character == "\xef\xbf\xbf") {
      escaped += '?';
    } else {
      escaped.append(character.data(), character.size());
    }
  }
  return escaped;
}

}  // namespace millrace
