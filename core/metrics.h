// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_METRICS_H_
#define MILLRACE_CORE_METRICS_H_

// MetricRegistry: counters, gauges and histograms with labels, written as a page for Prometheus.
//
//   MetricRegistry registry;
//   auto* const requests = registry.AddCounter({"requests_total", "Requests.", {"model"}});
//   const std::shared_ptr<MetricValue> of_census = requests->Find({"census"});   // once
//   of_census->Add();                                                            // per request
//   requests->Remove({"census"});
//   registry.Page();
//
// A family is a name with names of labels; a cell is one series of it, with a value for each label.
// Find takes a lock: callers keep the cell. What is done to a cell is one or two atomic operations.
// A cell that was removed is on no page and may still be used by those that hold it.
//
// Thread-safety: all methods, from any thread. Page holds no lock that Find or a cell waits for
// while it writes, or calls a reader.
// Lifetime: families live as long as their registry; cells as long as somebody holds them.
// Failure: none. A name of Prometheus' syntax, once per registry, is the caller's duty.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/mutex.h"

namespace millrace {

// A counter or a gauge.
class MetricValue {
 public:
  void Add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};  // relaxed: orders nothing else
};

class MetricHistogram {
 public:
  // Ascending; a bucket without a bound comes behind them.
  explicit MetricHistogram(std::shared_ptr<const std::vector<double>> bounds);

  // A number. Counts in the first bucket whose bound is not below it.
  void Observe(double value);

  absl::Span<const double> bounds() const { return *bounds_; }
  // One more than bounds; not summed up.
  std::vector<int64_t> counts() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::shared_ptr<const std::vector<double>> bounds_;
  const std::unique_ptr<std::atomic<int64_t>[]> counts_;  // relaxed, as the sum
  std::atomic<double> sum_{0};
};

// scale, scale * growth, scale * growth^2, ...
std::vector<double> ExponentialBounds(double scale, double growth, int num_bounds);
// TensorFlow Serving's of times: 10 * 1.8^k, 33 of them, in microseconds.
std::vector<double> LatencyBounds();

struct MetricName {
  std::string name, help;
  std::vector<std::string> labels = {};
};

enum class MetricKind { kCounter, kGauge, kHistogram };

template <typename Cell>
class MetricFamily {
 public:
  using Labels = std::vector<std::string>;  // values, in the order of the names
  using Make = std::function<std::shared_ptr<Cell>()>;
  explicit MetricFamily(Make make) : make_(std::move(make)) {}

  // The cell of these values, made at the first call.
  std::shared_ptr<Cell> Find(const Labels& labels) {
    MutexLock lock(&mu_);
    std::shared_ptr<Cell>& cell = cells_[labels];
    if (cell == nullptr) cell = make_();
    return cell;
  }
  // The next Find begins anew.
  void Remove(const Labels& labels) {
    MutexLock lock(&mu_);
    cells_.erase(labels);
  }
  // All whose first labels are these.
  void RemovePrefix(const Labels& labels) {
    MutexLock lock(&mu_);
    auto it = cells_.lower_bound(labels);
    while (it != cells_.end() && labels.size() <= it->first.size() &&
           std::equal(labels.begin(), labels.end(), it->first.begin())) {
      it = cells_.erase(it);
    }
  }
  std::vector<std::pair<Labels, std::shared_ptr<Cell>>> cells() const {
    MutexLock lock(&mu_);
    return {cells_.begin(), cells_.end()};
  }

 private:
  const Make make_;
  mutable Mutex mu_;
  std::map<Labels, std::shared_ptr<Cell>> cells_ ABSL_GUARDED_BY(mu_);
};

using MetricValues = MetricFamily<MetricValue>;
using MetricHistograms = MetricFamily<MetricHistogram>;

class MetricRegistry {
 public:
  using Emit = absl::FunctionRef<void(const std::vector<std::string>& labels, double value)>;
  using Reader = std::function<void(Emit emit)>;

  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  MetricValues* AddCounter(MetricName name);
  MetricValues* AddGauge(MetricName name);
  MetricHistograms* AddHistogram(MetricName name, std::vector<double> bounds);
  // Of states that somebody else keeps: `reader` is called for each page, and gives each set of
  // labels once.
  void AddReader(MetricName name, MetricKind kind, Reader reader);

  // In Prometheus' text format 0.0.4: families by name, their cells by labels. Bytes of labels that
  // are no UTF-8 are written as \xNN; a family without cells has its head only.
  std::string Page() const;

 private:
  struct Family;
  void Add(std::unique_ptr<Family> family);

  mutable Mutex mu_;
  std::map<std::string, std::unique_ptr<Family>> families_ ABSL_GUARDED_BY(mu_);
};

// The Content-Type of a page.
inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace millrace

#endif  // MILLRACE_CORE_METRICS_H_
