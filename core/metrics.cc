// SPDX-License-Identifier: Apache-2.0
#include "core/metrics.h"

#include <charconv>
#include <cmath>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/utf8.h"

namespace millrace {
namespace {

using Labels = std::vector<std::string>;

constexpr double kMostWhole = 9007199254740992.0;  // 2^53: all below are exact

bool IsName(absl::string_view name) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':';
  });
}

absl::string_view KindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "untyped";
}

// One byte that is no character would cost Prometheus the whole page.
void AppendEscaped(absl::string_view text, bool is_label, std::string* out) {
  while (!text.empty()) {
    const size_t n = Utf8Length(text);
    if (n == 0) {
      absl::StrAppend(out, "\\\\x", absl::BytesToHexString(text.substr(0, 1)));
    } else if (text[0] == '\\') {
      out->append("\\\\");
    } else if (text[0] == '\n') {
      out->append("\\n");
    } else if (text[0] == '"' && is_label) {
      out->append("\\\"");
    } else {
      out->append(text.data(), n);
    }
    text.remove_prefix(std::max(n, size_t{1}));
  }
}

// Whole numbers in full, others as short as they read back.
void AppendNumber(double value, std::string* out) {
  if (std::isnan(value)) {
    out->append("NaN");
  } else if (std::isinf(value)) {
    out->append(value > 0 ? "+Inf" : "-Inf");
  } else if (value == std::trunc(value) && std::abs(value) < kMostWhole) {
    absl::StrAppend(out, static_cast<int64_t>(value));
  } else {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof(text), value);
    out->append(text, end.ptr);
  }
}

// "{a="1",b="2"}", with `le` behind unless it is "". Nothing without labels.
void AppendLabels(const MetricName& name, const Labels& labels, absl::string_view le,
                  std::string* out) {
  const size_t n = std::min(name.labels.size(), labels.size());
  if (n == 0 && le.empty()) return;
  absl::string_view before = "{";
  for (size_t i = 0; i < n; ++i) {
    absl::StrAppend(out, before, name.labels[i], "=\"");
    AppendEscaped(labels[i], true, out);
    out->append("\"");
    before = ",";
  }
  if (!le.empty()) absl::StrAppend(out, before, "le=\"", le, "\"");
  out->append("}");
}

void AppendSample(const MetricName& name, absl::string_view suffix, const Labels& labels,
                  absl::string_view le, double value, std::string* out) {
  absl::StrAppend(out, name.name, suffix);
  AppendLabels(name, labels, le, out);
  out->append(" ");
  AppendNumber(value, out);
  out->append("\n");
}

void AppendHistogram(const MetricName& name, const Labels& labels, const MetricHistogram& histogram,
                     std::string* out) {
  const absl::Span<const double> bounds = histogram.bounds();
  const std::vector<int64_t> counts = histogram.counts();
  int64_t count = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    count += counts[i];
    // Six digits, as TensorFlow Serving's: dashboards ask for these texts.
    AppendSample(name, "_bucket", labels, i < bounds.size() ? absl::StrCat(bounds[i]) : "+Inf",
                 static_cast<double>(count), out);
  }
  AppendSample(name, "_sum", labels, "", histogram.sum(), out);
  AppendSample(name, "_count", labels, "", static_cast<double>(count), out);
}

}  // namespace

MetricHistogram::MetricHistogram(std::shared_ptr<const std::vector<double>> bounds)
    : bounds_(std::move(bounds)),
      counts_(std::make_unique<std::atomic<int64_t>[]>(bounds_->size() + 1)) {}

void MetricHistogram::Observe(double value) {
  const auto bucket = std::lower_bound(bounds_->begin(), bounds_->end(), value) - bounds_->begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<int64_t> MetricHistogram::counts() const {
  std::vector<int64_t> counts(bounds_->size() + 1);
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = counts_[i].load(std::memory_order_relaxed);
  }
  return counts;
}

std::vector<double> ExponentialBounds(double scale, double growth, int num_bounds) {
  std::vector<double> bounds;
  for (double bound = scale; num_bounds > 0; --num_bounds, bound *= growth) {
    bounds.push_back(bound);
  }
  return bounds;
}

std::vector<double> LatencyBounds() { return ExponentialBounds(10, 1.8, 33); }

struct MetricRegistry::Family {
  MetricName name;
  MetricKind kind;
  // One of them.
  std::unique_ptr<MetricValues> values = nullptr;
  std::unique_ptr<MetricHistograms> histograms = nullptr;
  Reader reader = nullptr;

  void Append(std::string* out) const {
    if (!name.help.empty()) {
      absl::StrAppend(out, "# HELP ", name.name, " ");
      AppendEscaped(name.help, false, out);
      out->append("\n");
    }
    absl::StrAppend(out, "# TYPE ", name.name, " ", KindName(kind), "\n");
    if (values != nullptr) {
      for (const auto& [labels, cell] : values->cells()) {
        AppendSample(name, "", labels, "", static_cast<double>(cell->value()), out);
      }
    }
    if (histograms != nullptr) {
      for (const auto& [labels, cell] : histograms->cells()) {
        AppendHistogram(name, labels, *cell, out);
      }
    }
    if (reader) {
      reader([&](const Labels& labels, double value) {
        AppendSample(name, "", labels, "", value, out);
      });
    }
  }
};

MetricRegistry::MetricRegistry() = default;
MetricRegistry::~MetricRegistry() = default;

void MetricRegistry::Add(std::unique_ptr<Family> family) {
  const std::string name = family->name.name;
  MR_DCHECK(IsName(name), "a metric has a name of Prometheus' syntax");
  MutexLock lock(&mu_);
  const bool is_new = families_.emplace(name, std::move(family)).second;
  MR_DCHECK(is_new, "a metric is added once");
  (void)is_new;
}

namespace {

std::unique_ptr<MetricValues> NewValues() {
  return std::make_unique<MetricValues>([] { return std::make_shared<MetricValue>(); });
}

}  // namespace

MetricValues* MetricRegistry::AddCounter(MetricName name) {
  std::unique_ptr<Family> family(
      new Family{.name = std::move(name), .kind = MetricKind::kCounter, .values = NewValues()});
  MetricValues* const values = family->values.get();
  Add(std::move(family));
  return values;
}

MetricValues* MetricRegistry::AddGauge(MetricName name) {
  std::unique_ptr<Family> family(
      new Family{.name = std::move(name), .kind = MetricKind::kGauge, .values = NewValues()});
  MetricValues* const values = family->values.get();
  Add(std::move(family));
  return values;
}

MetricHistograms* MetricRegistry::AddHistogram(MetricName name, std::vector<double> bounds) {
  const auto shared = std::make_shared<const std::vector<double>>(std::move(bounds));
  std::unique_ptr<Family> family(
      new Family{.name = std::move(name),
                 .kind = MetricKind::kHistogram,
                 .histograms = std::make_unique<MetricHistograms>(
                     [shared] { return std::make_shared<MetricHistogram>(shared); })});
  MetricHistograms* const histograms = family->histograms.get();
  Add(std::move(family));
  return histograms;
}

void MetricRegistry::AddReader(MetricName name, MetricKind kind, Reader reader) {
  Add(std::unique_ptr<Family>(
      new Family{.name = std::move(name), .kind = kind, .reader = std::move(reader)}));
}

std::string MetricRegistry::Page() const {
  std::vector<const Family*> families;  // they stay
  {
    MutexLock lock(&mu_);
    for (const auto& [name, family] : families_) families.push_back(family.get());
  }
  std::string page;
  for (const Family* const family : families) family->Append(&page);
  return page;
}

}  // namespace millrace
