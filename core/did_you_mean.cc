// SPDX-License-Identifier: Apache-2.0
#include "core/did_you_mean.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace millrace {
namespace {

constexpr size_t kMaxEdits = 3;
// Names of nodes and keys are far shorter.
constexpr size_t kMaxLength = 256;

// Edits between a and b (optimal string alignment), or more than `most` when there are more.
size_t Edits(absl::string_view a, absl::string_view b, size_t most) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > most || b.size() > kMaxLength) return most + 1;
  // Rows i, i - 1 and i - 2 of the table.
  std::array<std::array<size_t, kMaxLength + 1>, 3> rows;
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    auto& row = rows[i % 3];
    const auto& above = rows[(i - 1) % 3];
    // Only cells near the diagonal can stay within `most`; those next to them count as too many.
    const size_t begin = i > most ? i - most : 1, end = std::min(b.size(), i + most);
    row[begin - 1] = begin == 1 ? i : most + 1;
    if (end < b.size()) row[end + 1] = most + 1;
    size_t smallest = row[begin - 1];
    for (size_t j = begin; j <= end; ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], rows[(i - 2) % 3][j - 2] + 1);
      }
      smallest = std::min(smallest, row[j]);
    }
    if (smallest > most) return most + 1;
  }
  return rows[a.size() % 3][b.size()];
}

}  // namespace

DidYouMean::DidYouMean(absl::string_view name)
    : name_(name), best_distance_(std::min(kMaxEdits, name.size() / 3) + 1) {}

void DidYouMean::Consider(absl::string_view candidate) {
  if (++considered_ > kMaxCandidates || candidate.empty() || best_distance_ == 0) return;
  if (absl::EqualsIgnoreCase(candidate, name_)) {
    best_ = candidate;
    best_distance_ = 0;
    return;
  }
  if (absl::string_view rest = candidate;
      absl::ConsumeSuffix(&rest, name_) && absl::EndsWith(rest, "/")) {
    last_part_ = candidate;
    ++num_last_parts_;
  }
  const size_t distance = Edits(name_, candidate, best_distance_ - 1);
  if (distance < best_distance_) {
    best_ = candidate;
    best_distance_ = std::max<size_t>(distance, 1);  // only another case is better
  }
}

std::string DidYouMean::Hint() const {
  const bool by_part = num_last_parts_ == 1 && !name_.empty() && best_distance_ > 0;
  const absl::string_view candidate = by_part ? last_part_ : best_;
  return candidate.empty() ? "" : absl::StrCat("; did you mean '", candidate, "'?");
}

}  // namespace millrace
