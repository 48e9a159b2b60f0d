// SPDX-License-Identifier: Apache-2.0
#include "data/spilling_counter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/coding.h"

namespace millrace::data {
namespace {

// What a key costs besides its bytes and sums: its object, its slot and a growing vector's reserve.
constexpr size_t kKeyBytes = 96;

ExternalSortOptions Half(ExternalSortOptions options) {
  options.max_bytes /= 2;
  return options;
}

}  // namespace

SpillingCounter::SpillingCounter(size_t num_counts, const ExternalSortOptions& options)
    : num_counts_(num_counts), max_bytes_(options.max_bytes / 2), sort_(Half(options)) {}

Status SpillingCounter::AddTo(absl::string_view key, absl::Span<const int64_t> counts,
                              absl::Span<int64_t> sums) {
  for (size_t i = 0; i < sums.size(); ++i) {
    if (__builtin_add_overflow(sums[i], counts[i], &sums[i])) {
      return OutOfRange("the count of '", key, "' must be below 2^63, got more");
    }
  }
  return absl::OkStatus();
}

Status SpillingCounter::Add(absl::string_view key, absl::Span<const int64_t> counts) {
  if (counts.size() != num_counts_) {
    return InvalidArgument("SpillingCounter: a key must have ", num_counts_, " counts, got ",
                           counts.size());
  }
  const size_t bytes =
      key_bytes_ + static_cast<size_t>(index_.size()) * (kKeyBytes + num_counts_ * sizeof(int64_t));
  if (bytes > max_bytes_ && index_.Find(key) < 0) MR_RETURN_IF_ERROR(Spill());
  const auto [place, is_new] = index_.Insert(key);
  if (is_new) {
    key_bytes_ += key.size();
    sums_.resize(sums_.size() + num_counts_);
  }
  return AddTo(
      key, counts,
      absl::MakeSpan(sums_).subspan(static_cast<size_t>(place) * num_counts_, num_counts_));
}

Status SpillingCounter::Spill() {
  std::string record;
  for (size_t i = 0; i < index_.keys().size(); ++i) {
    record.clear();
    PutOrderedString(&record, index_.keys()[i]);
    for (size_t c = 0; c < num_counts_; ++c) {
      PutVarint64(&record, static_cast<uint64_t>(sums_[i * num_counts_ + c]));
    }
    MR_RETURN_IF_ERROR(sort_.Add(record));
  }
  index_ = {};
  sums_.clear();
  key_bytes_ = 0;
  ++num_spills_;
  return absl::OkStatus();
}

Status SpillingCounter::Decode(std::string* key, std::vector<int64_t>* counts) const {
  absl::string_view in = sort_.record();
  counts->resize(num_counts_);
  bool good = GetOrderedString(&in, key);
  for (int64_t& count : *counts) {
    uint64_t value = 0;
    good = good && GetVarint64(&in, &value);
    count = static_cast<int64_t>(value);
  }
  if (good && in.empty()) return absl::OkStatus();
  return absl::DataLossError("SpillingCounter: a record must be as it was written, got another");
}

Status SpillingCounter::Finish() {
  MR_RETURN_IF_ERROR(Spill());
  --num_spills_;
  MR_RETURN_IF_ERROR(sort_.Finish());
  MR_ASSIGN_OR_RETURN(has_next_, sort_.Next());
  return has_next_ ? Decode(&next_key_, &next_counts_) : absl::OkStatus();
}

StatusOr<bool> SpillingCounter::Next() {
  if (!has_next_) return false;
  std::swap(key_, next_key_);
  std::swap(counts_, next_counts_);
  while (true) {
    MR_ASSIGN_OR_RETURN(has_next_, sort_.Next());
    if (!has_next_) return true;
    MR_RETURN_IF_ERROR(Decode(&next_key_, &next_counts_));
    if (next_key_ != key_) return true;
    MR_RETURN_IF_ERROR(AddTo(key_, next_counts_, absl::MakeSpan(counts_)));
  }
}

}  // namespace millrace::data
