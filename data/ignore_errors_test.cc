// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// covers: input: IgnoreErrors counts what it drops: the first error and the total in the log, the
//   number for the caller and in the state; above 1 % of 1,000 elements, or the caller's limits,
//   it ends with an error
// covers: input: data without any element is an error that names the files, where elements are
//   required

namespace millrace::data {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// 0, 1, 2, ... with an error instead of each multiple of `n`.
Dataset NoMultiples(int64_t n, int64_t size) {
  return Dataset::Range(size).Map(
      [n](Element element) -> StatusOr<Element> {
        const int64_t value = element[0].scalar<int64_t>();
        if (value % n == 0) return InvalidArgument("no ", value);
        return element;
      },
      {.spec = Dataset::Range(1).spec()});
}

// How many lines of `log` have `text`.
int64_t Lines(const std::string& log, const std::string& text) {
  int64_t count = 0;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    count += line.find(text) != absl::string_view::npos;
  }
  return count;
}

TEST(IgnoreErrors, CountsLogsAndTellsWhatItDrops) {
  std::vector<std::string> told;
  const Dataset some = NoMultiples(3, 100).IgnoreErrors(
      {.on_error = [&told](const Status& error) { told.emplace_back(error.message()); }});
  ::testing::internal::CaptureStderr();
  ASSERT_OK_AND_ASSIGN(const auto iterator, some.MakeIterator());
  EXPECT_EQ(RestOf(iterator.get()).size(), 66u);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(Lines(log, "IgnoreErrors: dropped an element: no 0"), 1) << log;
  EXPECT_EQ(Lines(log, "IgnoreErrors: dropped 10 of 28 elements"), 1) << log;
  EXPECT_EQ(Lines(log, "IgnoreErrors: dropped 34 of 100 elements (34 %), the first: no 0"), 1)
      << log;
  EXPECT_EQ(Lines(log, "IgnoreErrors"), 3) << log;
  EXPECT_EQ(iterator->times().dropped, 34);
  EXPECT_EQ(Lines(iterator->times().ToString(), "; 34 were dropped"), 1);
  ASSERT_EQ(told.size(), 34u);
  EXPECT_EQ(told.back(), "no 99");
}

TEST(IgnoreErrors, SaysNothingWhereNothingIsDropped) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(TextOf(Dataset::Range(3).IgnoreErrors()), "0 1 2");
  EXPECT_EQ(Lines(::testing::internal::GetCapturedStderr(), "IgnoreErrors"), 0);
}

TEST(IgnoreErrors, TellsTheTotalOfAPassThatIsNotReadToItsEnd) {
  ::testing::internal::CaptureStderr();
  {
    ASSERT_OK_AND_ASSIGN(const auto iterator, NoMultiples(3, 100).IgnoreErrors().MakeIterator());
    RestOf(iterator.get(), 4);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(Lines(log, "IgnoreErrors: dropped 2 of 6 elements"), 1) << log;
}

TEST(IgnoreErrors, LogsEqualPassesOnce) {
  ::testing::internal::CaptureStderr();
  ASSERT_OK_AND_ASSIGN(const auto iterator,
                       NoMultiples(3, 6).IgnoreErrors().Repeat(50).MakeIterator());
  EXPECT_EQ(RestOf(iterator.get()).size(), 200u);
  EXPECT_EQ(Lines(::testing::internal::GetCapturedStderr(), "IgnoreErrors"), 2);
  EXPECT_EQ(iterator->times().dropped, 100);
}

TEST(IgnoreErrors, EndsAboveOnePercentOfAThousand) {
  const std::vector<std::string> got = ElementsOf(NoMultiples(50, 2000).IgnoreErrors());
  ASSERT_EQ(got.size(), 980u);
  EXPECT_EQ(got[978], "998");
  EXPECT_EQ(got[979],
            "<IgnoreErrors: at most 1 % of the elements may be dropped, got 20 of 1000 elements "
            "(2 %), the first: no 0; IgnoreErrorsOptions::max_share (1: all) and max_errors "
            "(kForever) allow more>");
  // Few elements may all be bad, and so may one in a hundred.
  EXPECT_EQ(TextOf(NoMultiples(1, 999).IgnoreErrors()), "");
  EXPECT_EQ(ElementsOf(NoMultiples(100, 900).IgnoreErrors()).size(), 891u);
}

TEST(IgnoreErrors, EndsAboveItsCallersLimits) {
  const std::vector<std::string> got =
      ElementsOf(NoMultiples(3, 100).IgnoreErrors({.max_errors = 2}));
  ASSERT_EQ(got.size(), 5u);
  const std::string error =
      "<IgnoreErrors: at most 2 elements may be dropped, got 3 of 7 elements (42.8571 %), ";
  EXPECT_EQ(got[4].substr(0, error.size()), error);
  EXPECT_EQ(
      ElementsOf(NoMultiples(3, 100).IgnoreErrors({.max_share = 0.3, .share_from = 10})).size(),
      7u);
  EXPECT_EQ(ElementsOf(NoMultiples(2, 1900).IgnoreErrors({.max_share = 0.51})).size(), 950u);
  EXPECT_EQ(TextOf(NoMultiples(1, 3000).IgnoreErrors({.max_share = 1})), "");
}

TEST(IgnoreErrors, RefusesWhatCannotWork) {
  const Dataset rows = Dataset::Range(3);
  EXPECT_STATUS(rows.IgnoreErrors({.max_errors = -2}).status(), kInvalid,
                "max_errors must be >= 0, or kForever, got -2");
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    EXPECT_STATUS(rows.IgnoreErrors({.max_share = share}).status(), kInvalid,
                  "max_share must be in [0, 1], got ");
  }
  EXPECT_STATUS(Dataset().IgnoreErrors().status(), absl::StatusCode::kFailedPrecondition,
                "got none");
  const auto thrown = [](const Status&) { throw std::runtime_error("full"); };
  EXPECT_EQ(TextOf(NoMultiples(3, 100).IgnoreErrors({.on_error = thrown})),
            "<IgnoreErrors: an exception must not leave it, got full>");
}

TEST(IgnoreErrors, CountsOnFromAState) {
  ExpectStatesGoOn(NoMultiples(3, 20).IgnoreErrors().Repeat(2));
  ExpectStatesGoOn(NoMultiples(3, 20).IgnoreErrors({.max_errors = 3}));
  const Dataset some = NoMultiples(3, 100).IgnoreErrors({.max_errors = 20});
  ASSERT_OK_AND_ASSIGN(const auto first, some.MakeIterator());
  RestOf(first.get(), 30);
  EXPECT_EQ(first->times().dropped, 15);
  ASSERT_OK_AND_ASSIGN(const std::string state, first->Save());
  ASSERT_OK_AND_ASSIGN(const auto same, some.MakeIterator());
  ASSERT_OK(same->Restore(state));
  const std::string error = RestOf(same.get()).back();
  EXPECT_NE(error.find("got 21 of 61 elements"), std::string::npos) << error;
  EXPECT_NE(error.find("the first: no 0;"), std::string::npos) << error;
  // With another limit it goes on.
  ASSERT_OK_AND_ASSIGN(const auto other, NoMultiples(3, 100).IgnoreErrors().MakeIterator());
  ASSERT_OK(other->Restore(state));
  EXPECT_EQ(RestOf(other.get()).back(), "98");
  EXPECT_EQ(other->times().dropped, 34);
}

// One column declared as another type than it has.
TEST(IgnoreErrors, DoesNotLoseMostRowsOfAFileInSilence) {
  const std::string path = JoinPath(::testing::TempDir(), "ignore_errors.csv");
  std::string text;
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&text, i, i % 33 == 0 ? ",1\n" : ",1.5\n");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, text));
  const Tensor number = Tensor::Scalar(int32_t{0});
  const Dataset rows = CsvDataset({path}, {.defaults = {number, number}, .names = {"id", "price"}});
  const std::string first =
      absl::StrCat("the first: CSV '", path,
                   "', line 2: column 'price': Field 1 in record 0 is not a valid int32: 1.5");
  for (const Dataset& dropped : {rows.IgnoreErrors(), rows.IgnoreErrors().Batch(64)}) {
    const std::string error = ElementsOf(dropped).back();
    EXPECT_NE(error.find("of 1000 elements (96.9 %)"), std::string::npos) << error;
    EXPECT_NE(error.find(first), std::string::npos) << error;
  }
  // In blocks and row by row the same rows are left.
  const Dataset all = rows.IgnoreErrors({.max_share = 1});
  const std::vector<std::string> want = ElementsOf(all);
  EXPECT_EQ(want.size(), 91u);
  EXPECT_EQ(ElementsOf(all.Batch(7).Unbatch()), want);
  ASSERT_OK_AND_ASSIGN(const auto iterator, all.Batch(7).MakeIterator());
  RestOf(iterator.get());
  EXPECT_EQ(iterator->times().dropped, 3000 - 91);
}

// One error of 501, and half of the data.
TEST(IgnoreErrors, AFileIsNoElement) {
  const std::string good = JoinPath(::testing::TempDir(), "ignore_errors_good.csv");
  const std::string other = JoinPath(::testing::TempDir(), "ignore_errors_other.csv");
  std::string rows;
  for (int i = 0; i < 500; ++i) absl::StrAppend(&rows, i, "\n");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), good, "price\n" + rows));
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), other, "Price\n" + rows));
  const std::string none = JoinPath(::testing::TempDir(), "ignore_errors_none.csv");
  const auto read = [](std::vector<std::string> paths) {
    CsvRecordsOptions options;
    options.has_header = true;
    options.columns = {"price"};
    return Dataset::CsvRecords(std::move(paths), std::move(options));
  };
  for (const std::string& lost : {other, none}) {
    const Dataset data = read({good, lost});
    const std::vector<std::string> got = ElementsOf(data.IgnoreErrors());
    ASSERT_EQ(got.size(), 501u);
    EXPECT_THAT(got.back(), HasSubstr(lost));
    EXPECT_THAT(got.back(),
                HasSubstr("; the rest of the file is left out, and IgnoreErrors may "
                          "leave out 0 files: IgnoreErrorsOptions::max_files allows more"));
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(ElementsOf(data.IgnoreErrors({.max_files = 1})).size(), 500u);
    EXPECT_EQ(Lines(::testing::internal::GetCapturedStderr(),
                    "IgnoreErrors: dropped the rest of a file: "),
              1);
  }
  EXPECT_EQ(ElementsOf(read({other, none, good}).IgnoreErrors({.max_files = 1})).size(), 1u);
  EXPECT_EQ(ElementsOf(read({other, none, good}).IgnoreErrors({.max_files = kForever})).size(),
            500u);
  EXPECT_STATUS(NoMultiples(1, 1).IgnoreErrors({.max_files = -2}).status(), kInvalid,
                "max_files must be >= 0, or kForever, got -2");
}

// Before, between and behind two files that are not there, of which one may be.
TEST(IgnoreErrors, CountsLostFilesOnFromAState) {
  const std::string good = JoinPath(::testing::TempDir(), "ignore_errors_state.csv");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), good, "1\n2\n"));
  const auto none = [](int i) {
    return JoinPath(::testing::TempDir(), absl::StrCat("ignore_errors_none_", i));
  };
  const Dataset rows = Dataset::TextLines({good, none(1), good, none(2), good});
  const Dataset one = rows.IgnoreErrors({.max_files = 1});
  const std::vector<std::string> got = ElementsOf(one);
  ASSERT_EQ(got.size(), 5u);
  EXPECT_THAT(got.back(), HasSubstr("IgnoreErrors may leave out 1 files"));
  EXPECT_THAT(got.back(), HasSubstr(none(2)));
  ExpectStatesGoOn(one);
  ExpectStatesGoOn(one.Repeat(2));
  ExpectStatesGoOn(rows.IgnoreErrors({.max_files = 2}));
  // Both numbers are there after a restore: the limit of errors counts files, too.
  ASSERT_OK_AND_ASSIGN(const auto first, one.MakeIterator());
  RestOf(first.get(), 3);
  ASSERT_OK_AND_ASSIGN(const std::string state, first->Save());
  ASSERT_OK_AND_ASSIGN(const auto second, one.MakeIterator());
  ASSERT_OK(second->Restore(state));
  EXPECT_EQ(second->times().dropped, 1);
  // With another limit it goes on.
  ASSERT_OK_AND_ASSIGN(const auto two, rows.IgnoreErrors({.max_files = 2}).MakeIterator());
  ASSERT_OK(two->Restore(state));
  EXPECT_EQ(RestOf(two.get()), (std::vector<std::string>{"2", "1", "2"}));
  EXPECT_EQ(two->times().dropped, 2);
}

// As an error that waits in a buffer it is still a file's.
TEST(IgnoreErrors, AFileThatWaitsInAStateIsNoElement) {
  const std::string good = JoinPath(::testing::TempDir(), "ignore_errors_waits.csv");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), good, "1\n"));
  const std::string none = JoinPath(::testing::TempDir(), "ignore_errors_none");
  const Dataset rows = Dataset::TextLines({good, none, good}).Prefetch(4).IgnoreErrors();
  ASSERT_OK_AND_ASSIGN(const auto first, rows.MakeIterator());
  ASSERT_EQ(RestOf(first.get(), 1), std::vector<std::string>{"1"});
  while (!first->NextIsReady()) std::this_thread::yield();  // the error has come
  ASSERT_OK_AND_ASSIGN(const std::string state, first->Save());
  ASSERT_OK_AND_ASSIGN(const auto second, rows.MakeIterator());
  ASSERT_OK(second->Restore(state));
  const std::vector<std::string> got = RestOf(second.get());
  ASSERT_EQ(got.size(), 1u);
  EXPECT_THAT(got[0], HasSubstr("IgnoreErrors may leave out 0 files"));
}

TEST(RequireElements, NamesTheSourcesOfNothing) {
  const std::string path = JoinPath(::testing::TempDir(), "require_elements.csv");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, "id\n"));
  const Dataset lines = Dataset::TextLines({path});
  const std::string none = absl::StrCat(
      "<the data must have at least one element, got none from TextLines('", path, "').Skip(1)");
  EXPECT_EQ(TextOf(lines.Skip(1).RequireElements()), none + ">");
  EXPECT_EQ(TextOf(lines.Skip(1).Batch(2).RequireElements()), none + ".Batch(2)>");
  // For what needs blocks, too; once.
  EXPECT_EQ(TextOf(lines.Skip(1).RequireElements().Batch(2)), none + ">");
  EXPECT_EQ(TextOf(lines.RequireElements()), "id");
  // An error says enough.
  EXPECT_EQ(TextOf(NoMultiples(1, 1).RequireElements()), "<no 0>");
  EXPECT_EQ(TextOf(NoMultiples(1, 2).IgnoreErrors().RequireElements()),
            "<the data must have at least one element, got none from Range(0, 2, 1).Map"
            ".IgnoreErrors(); IgnoreErrors dropped 2>");
  EXPECT_EQ(lines.RequireElements().cardinality(), kUnknownCardinality);
  ExpectStatesGoOn(Dataset::Range(3).RequireElements());
  ExpectKeepsItsSpec(Dataset::Range(3).RequireElements());
}

}  // namespace
}  // namespace millrace::data
