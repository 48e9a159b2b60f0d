// SPDX-License-Identifier: Apache-2.0
#include "tools/curve_svg.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

// covers: events: curves are pictures: round ticks, one polyline a run, escaped words, values that
//   are not finite or at the ends of what doubles hold

namespace millrace {
namespace {

constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

std::string TextsOf(const std::vector<double>& ticks) {
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 0;
  return absl::StrJoin(ticks, " ", [step](std::string* out, double tick) {
    absl::StrAppend(out, TickText(tick, step));
  });
}

TEST(CurveSvg, TicksAreRoundNumbersWithinTheirRange) {
  struct Case {
    double low, high;
    int at_most;
    std::string want;
  };
  const std::vector<Case> cases = {
      {0, 1, 6, "0 0.2 0.4 0.6 0.8 1.0"},
      {0, 1000, 6, "0 200 400 600 800 1000"},
      {1, 1000, 8, "200 400 600 800 1000"},
      {-1, 1, 5, "-1.0 -0.5 0 0.5 1.0"},
      {0.13, 0.27, 7, "0.15 0.20 0.25"},
      {0, 3e7, 4, "0 1e+07 2e+07 3e+07"},
      {0, 5e-7, 6, "0 1e-07 2e-07 3e-07 4e-07 5e-07"},
      {1000000, 1000004, 5, "1000000 1000001 1000002 1000003 1000004"},
      {7, 7, 5, "7"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(TextsOf(AxisTicks(c.low, c.high, c.at_most)), c.want) << c.low << ".." << c.high;
  }
}

TEST(CurveSvg, TicksOfEveryRangeAreFewGrowingAndInside) {
  const std::vector<std::pair<double, double>> ranges = {{-kMax, kMax},
                                                         {0, kMax},
                                                         {kMax / 2, kMax},
                                                         {-5e-324, 5e-324},
                                                         {0, 1e-320},
                                                         {1e16, 1e16 + 4},
                                                         {1, std::nextafter(1.0, 2.0)},
                                                         {-1e-300, 1e300},
                                                         {0.9, 1.9}};
  for (const auto& [low, high] : ranges) {
    for (const int at_most : {2, 3, 8}) {
      const std::vector<double> ticks = AxisTicks(low, high, at_most);
      ASSERT_FALSE(ticks.empty());
      EXPECT_LE(ticks.size(), static_cast<size_t>(at_most)) << low << ".." << high;
      for (size_t i = 0; i < ticks.size(); ++i) {
        EXPECT_GE(ticks[i], low);
        EXPECT_LE(ticks[i], high);
        if (i > 0) {
          EXPECT_GT(ticks[i], ticks[i - 1]) << low << ".." << high;
        }
        EXPECT_FALSE(TickText(ticks[i], ticks.size() > 1 ? ticks[1] - ticks[0] : 0).empty());
      }
    }
  }
}

TEST(CurveSvg, TextIsEscaped) {
  struct Case {
    std::string text, want;
  };
  const std::vector<Case> cases = {
      {"a < b & \"c\" > d", "a &lt; b &amp; &quot;c&quot; &gt; d"},
      {"</text><script>", "&lt;/text&gt;&lt;script&gt;"},
      {"a\tb\nc", "a b c"},
      {std::string("\0\x1b", 2), "??"},
      {"\xff ok", "? ok"},
      {"\xef\xbf\xbf", "?"},
      {"Verlust \xc3\xbc", "Verlust \xc3\xbc"},
      {"", ""},
  };
  for (const Case& c : cases) EXPECT_EQ(XmlText(c.text), c.want);
}

TEST(CurveSvg, APictureHasATitleAxesAndALine) {
  const std::string svg = CurveSvg({.title = "loss & more",
                                    .x_label = "step",
                                    .curves = {{".", {{0, 1}, {50, 0.5}, {100, 0}}}}});
  EXPECT_EQ(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\""), 0u) << svg;
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(Count(svg, "loss &amp; more"), 2u) << svg;
  EXPECT_NE(svg.find(">step</text>"), std::string::npos) << svg;
  EXPECT_NE(svg.find(">0.4</text>"), std::string::npos) << svg;
  EXPECT_NE(svg.find(">60</text>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("points=\"80.0,40.0 380.0,190.0 680.0,340.0\""), std::string::npos) << svg;
  EXPECT_EQ(Count(svg, "<polyline"), 1u);
  EXPECT_EQ(Count(svg, "<g>"), 0u) << "one curve needs no legend";
  EXPECT_EQ(Count(svg, "<text"), Count(svg, "</text>"));
}

TEST(CurveSvg, EachRunHasItsLineAndItsName) {
  CurvePicture picture = {.title = "auc", .x_label = "step", .curves = {}};
  for (int i = 0; i < 20; ++i) {
    picture.curves.push_back({absl::StrCat("run<", i, ">"), {{0, 0}, {1, 1.0 * i}}});
  }
  const std::string svg = CurveSvg(picture);
  EXPECT_EQ(Count(svg, "<polyline"), 20u);
  EXPECT_NE(svg.find(">run&lt;3&gt;</text>"), std::string::npos);
  EXPECT_NE(svg.find(">+5</text>"), std::string::npos) << "of many the legend names some";
  EXPECT_EQ(Count(svg, "<g>"), Count(svg, "</g>"));
}

TEST(CurveSvg, ValuesThatAreNotFiniteAreLeftOutAndCounted) {
  const std::string svg =
      CurveSvg({.title = "t",
                .x_label = "step",
                .curves = {{".", {{0, 1}, {1, kNan}, {2, kInf}, {3, -kInf}, {4, 3}}}}});
  EXPECT_NE(svg.find("points=\"80.0,340.0 680.0,40.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find(">3 not finite, not shown</text>"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
}

TEST(CurveSvg, FewValuesAndExtremeOnesHaveAPlace) {
  struct Case {
    std::string name;
    std::vector<CurvePoint> points;
    std::string want;
  };
  const std::vector<Case> cases = {
      {"no value", {}, ""},
      {"one value is a dot", {{10, 2}}, "points=\"380.0,190.0 380.0,190.0\""},
      {"always zero", {{0, 0}, {10, 0}}, "points=\"80.0,190.0 680.0,190.0\""},
      {"the ends of doubles", {{0, -kMax}, {1, kMax}}, "points=\"80.0,340.0 680.0,40.0\""},
      {"the largest double", {{0, kMax}, {1, kMax}}, "points=\"80.0,"},
      {"the smallest double", {{0, 5e-324}, {1, 5e-324}}, "points=\"80.0,190.0 680.0,190.0\""},
  };
  for (const Case& c : cases) {
    const std::string svg =
        CurveSvg({.title = "t", .x_label = "step", .curves = {{".", c.points}}});
    EXPECT_NE(svg.find(c.want), std::string::npos) << c.name << "\n" << svg;
    EXPECT_EQ(Count(svg, "<polyline"), c.points.empty() ? 0u : 1u) << c.name;
    for (const char* const wrong : {"nan", "inf"}) {
      EXPECT_EQ(svg.find(wrong), std::string::npos) << c.name << "\n" << svg;
    }
  }
}

TEST(CurveSvg, ALongCurveIsThinnedAndKeepsItsExtremes) {
  CurvePicture picture = {.title = "t", .x_label = "step", .curves = {{"long", {}}}};
  std::vector<CurvePoint>& points = picture.curves[0].points;
  for (int i = 0; i < 200000; ++i) points.push_back({1.0 * i, i % 2 == 0 ? 0.0 : 1.0});
  points[77777].y = 10;
  const std::string svg = CurveSvg(picture);
  EXPECT_LT(svg.size(), 60000u);
  EXPECT_EQ(Count(svg, ",40.0 "), 1u) << "the highest value";
}

}  // namespace
}  // namespace millrace
