// SPDX-License-Identifier: Apache-2.0
#include "core/metrics.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

// covers: serving: counters and histograms lose nothing under many threads; series that were
// removed
//   are on no page; a page is what Prometheus reads, whatever bytes its labels have

namespace millrace {
namespace {

TEST(MetricsTest, ConcurrentCountsAreExact) {
  constexpr int kThreads = 4, kRounds = 10'000;
  MetricRegistry registry;
  MetricValues* const counter = registry.AddCounter({"c", "", {"a"}});
  MetricHistograms* const histogram = registry.AddHistogram({"h", "", {"a"}}, {1, 2});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const auto count = counter->Find({"x"});
      const auto values = histogram->Find({"x"});
      for (int i = 0; i < kRounds; ++i) {
        count->Add();
        values->Observe(i % 4);  // 0, 1 | 2 | 3
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const int64_t all = int64_t{kThreads} * kRounds;
  EXPECT_EQ(counter->Find({"x"})->value(), all);
  const auto values = histogram->Find({"x"});
  EXPECT_EQ(values->counts(), (std::vector<int64_t>{all / 2, all / 4, all / 4}));
  // 0 + 1 + 2 + 3 of each four, exact in a double.
  EXPECT_EQ(values->sum(), static_cast<double>(all / 4 * 6));
}

TEST(MetricsTest, BoundsAreTensorFlowServings) {
  const std::vector<double> bounds = LatencyBounds();
  ASSERT_EQ(bounds.size(), 33u);
  for (size_t k = 0; k < bounds.size(); ++k) {
    const double want = 10 * std::pow(1.8, static_cast<double>(k));
    EXPECT_NEAR(bounds[k], want, want * 1e-12) << k;
  }
  MetricRegistry registry;
  registry.AddHistogram({"h", ""}, bounds)->Find({});
  const std::string page = registry.Page();
  for (const char* le : {"10", "18", "32.4", "58.32", "104.976", "188.957", "340.122", "612.22",
                         "1102", "1.27482e+06", "1.47476e+09", "+Inf"}) {
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("h_bucket{le=\"", le, "\"} 0\n"))) << le;
  }
  EXPECT_EQ(ExponentialBounds(1, 2, 4), (std::vector<double>{1, 2, 4, 8}));
}

// A bound belongs to the bucket below it.
TEST(MetricsTest, ABoundIsInItsBucket) {
  MetricRegistry registry;
  const auto histogram = registry.AddHistogram({"h", ""}, {1, 10})->Find({});
  for (const double value : {-1.0, 1.0, 1.5, 10.0, 10.5, 1e300}) histogram->Observe(value);
  EXPECT_EQ(histogram->counts(), (std::vector<int64_t>{2, 2, 2}));
}

TEST(MetricsTest, RemovedSeriesAreGoneAndBeginAnew) {
  MetricRegistry registry;
  MetricValues* const counter = registry.AddCounter({"c", "", {"model", "version"}});
  const auto old = counter->Find({"m", "1"});
  old->Add(5);
  counter->Find({"m", "2"})->Add(7);
  counter->Find({"n", "1"})->Add(9);
  EXPECT_EQ(counter->Find({"m", "1"}), old);
  counter->Remove({"m", "1"});
  old->Add();  // of nobody
  EXPECT_EQ(registry.Page(),
            "# TYPE c counter\nc{model=\"m\",version=\"2\"} 7\nc{model=\"n\",version=\"1\"} 9\n");
  EXPECT_EQ(counter->Find({"m", "1"})->value(), 0);
  counter->RemovePrefix({"m"});
  EXPECT_EQ(registry.Page(), "# TYPE c counter\nc{model=\"n\",version=\"1\"} 9\n");
  counter->RemovePrefix({"o"});
  EXPECT_EQ(counter->cells().size(), 1u);
}

TEST(MetricsTest, APageIsPrometheusText) {
  MetricRegistry registry;
  registry.AddCounter({":b:count", "Two\nlines \\ and \"quotes\".", {"l"}})
      ->Find({"a\\b\"c\nd\xff\xc3\xa4"})
      ->Add(int64_t{1} << 52);
  registry.AddGauge({"z_gauge", "Running."})->Find({})->Add(-3);
  const auto histogram =
      registry.AddHistogram({"h", "Times.", {"api"}}, {0.5, 2e6})->Find({"Predict"});
  histogram->Observe(0.25);
  histogram->Observe(1);
  histogram->Observe(3e6);
  registry.AddReader({"r", "", {"k"}}, MetricKind::kGauge, [](MetricRegistry::Emit emit) {
    emit({"half"}, 0.5);
    emit({"nan"}, std::numeric_limits<double>::quiet_NaN());
    emit({"inf"}, -std::numeric_limits<double>::infinity());
  });
  EXPECT_EQ(registry.Page(),
            "# HELP :b:count Two\\nlines \\\\ and \"quotes\".\n"
            "# TYPE :b:count counter\n"
            ":b:count{l=\"a\\\\b\\\"c\\nd\\\\xff\xc3\xa4\"} 4503599627370496\n"
            "# HELP h Times.\n"
            "# TYPE h histogram\n"
            "h_bucket{api=\"Predict\",le=\"0.5\"} 1\n"
            "h_bucket{api=\"Predict\",le=\"2e+06\"} 2\n"
            "h_bucket{api=\"Predict\",le=\"+Inf\"} 3\n"
            "h_sum{api=\"Predict\"} 3000001.25\n"
            "h_count{api=\"Predict\"} 3\n"
            "# TYPE r gauge\n"
            "r{k=\"half\"} 0.5\n"
            "r{k=\"nan\"} NaN\n"
            "r{k=\"inf\"} -Inf\n"
            "# HELP z_gauge Running.\n"
            "# TYPE z_gauge gauge\n"
            "z_gauge -3\n");
}

}  // namespace
}  // namespace millrace
