// SPDX-License-Identifier: Apache-2.0
#include "examples/wide_deep/census.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"

namespace millrace {
namespace {

constexpr size_t kColumns = 15;
// Columns of the file.
constexpr size_t kAge = 0, kEducation = 3, kOccupation = 6, kLabel = 14;
// Numbers and what makes about 1 of a large one. Money is seen by its logarithm.
constexpr std::array<size_t, kNumbers> kNumberColumns = {kAge, 4, 10, 11, 12};
constexpr std::array<double, kNumbers> kScales = {100, 16, 12, 9, 100};
constexpr std::array<size_t, kCategories> kCategoryColumns = {1, kEducation, 5, kOccupation,
                                                              7, 8,          9, 13};

// FNV-1a: the same in every process.
int64_t Bucket(absl::string_view text, int64_t buckets) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<int64_t>(hash % static_cast<uint64_t>(buckets));
}

// One person; false for columns that are no numbers where there must be.
bool Add(const std::vector<absl::string_view>& columns, Census* census) {
  for (size_t i = 0; i < kNumberColumns.size(); ++i) {
    double value = 0;
    if (!absl::SimpleAtod(columns[kNumberColumns[i]], &value)) return false;
    if (i == 2 || i == 3) value = std::log1p(std::max(value, 0.0));
    census->numbers.push_back(static_cast<float>(value / kScales[i]));
  }
  for (size_t i = 0; i < kCategoryColumns.size(); ++i) {
    census->categories.push_back(static_cast<int64_t>(i) * kCategoryIds +
                                 Bucket(columns[kCategoryColumns[i]], kCategoryIds));
  }
  const std::string pair = absl::StrCat(columns[kEducation], "|", columns[kOccupation]);
  const std::string decade(columns[kAge].substr(0, 1));
  census->crosses.push_back(Bucket(pair, kCrossIds));
  census->crosses.push_back(kCrossIds + Bucket(absl::StrCat(decade, "|", pair), kCrossIds));
  census->labels.push_back(absl::StrContains(columns[kLabel], ">50K") ? 1.0f : 0.0f);
  return true;
}

template <typename T>
StatusOr<Tensor> Rows(const std::vector<T>& values, const std::vector<size_t>& people,
                      int64_t columns) {
  MR_ASSIGN_OR_RETURN(const Shape shape,
                      Shape::Make({static_cast<int64_t>(people.size()), columns}));
  MR_ASSIGN_OR_RETURN(Tensor rows, Tensor::Allocate(DTypeOf<T>, shape));
  T* out = rows.mutable_flat<T>().data();
  for (const size_t person : people) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(person) * columns;
    out = std::copy(begin, begin + columns, out);
  }
  return rows;
}

}  // namespace

StatusOr<Census> ReadCensus(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(FileSystem::Default(), path));
  Census census;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    std::vector<absl::string_view> columns = absl::StrSplit(line, ',');
    for (absl::string_view& column : columns) column = absl::StripAsciiWhitespace(column);
    if (columns.size() != kColumns || !Add(columns, &census)) {
      return absl::DataLossError(absl::StrCat("'", path, "' line ", number, ": must have ",
                                              kColumns, " columns of a person, got '", line, "'"));
    }
  }
  return census;
}

Census DrawCensus(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&random](uint64_t n) { return random() % n; };
  Census census;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t age = 17 + below(60), education = below(16), occupation = below(14);
    // Who learned more, has the right occupation for it, and is not too young earns more.
    const uint64_t luck = below(8);
    const bool rich = age > 28 && education + (occupation + education) % 4 * 3 + luck > 15;
    std::vector<std::string> text(kColumns, "0");
    text[kAge] = absl::StrCat(age);
    text[kEducation] = absl::StrCat("school ", education);
    text[4] = absl::StrCat(education + 1);
    text[kOccupation] = absl::StrCat("occupation ", occupation);
    text[12] = absl::StrCat(20 + below(40));
    for (const size_t column :
         {size_t{1}, size_t{5}, size_t{7}, size_t{8}, size_t{9}, size_t{13}}) {
      text[column] = absl::StrCat("some ", below(6));
    }
    text[kLabel] = rich ? ">50K" : "<=50K";
    Add(std::vector<absl::string_view>(text.begin(), text.end()), &census);
  }
  return census;
}

StatusOr<CensusBatch> MakeBatch(const Census& census, const std::vector<size_t>& people) {
  CensusBatch batch;
  MR_ASSIGN_OR_RETURN(batch.numbers, Rows(census.numbers, people, kNumbers));
  MR_ASSIGN_OR_RETURN(batch.categories, Rows(census.categories, people, kCategories));
  MR_ASSIGN_OR_RETURN(batch.crosses, Rows(census.crosses, people, kCrosses));
  MR_ASSIGN_OR_RETURN(batch.labels, Rows(census.labels, people, 1));
  return batch;
}

StatusOr<CensusBatch> RandomBatch(const Census& census, size_t count, std::mt19937_64* random) {
  std::vector<size_t> people(count);
  for (size_t& person : people) person = (*random)() % census.labels.size();
  return MakeBatch(census, people);
}

}  // namespace millrace
