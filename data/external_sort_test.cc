// SPDX-License-Identifier: Apache-2.0
//
// ExternalSort and SpillingCounter, against the standard library's sort and map.
#include "data/external_sort.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "data/spilling_counter.h"
#include "gtest/gtest.h"

// covers: input: more records and keys than memory holds are sorted and counted; no temporary file
//   is left

namespace millrace::data {
namespace {

FileSystem* const kFiles = FileSystem::Posix();

class ExternalSortTest : public ::testing::Test {
 protected:
  ExternalSortTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("external_sort_", RandomHexName()))) {
    EXPECT_OK(kFiles->RecursivelyCreateDirectory(dir_));
  }
  ~ExternalSortTest() override { kFiles->RecursivelyDelete(dir_).IgnoreError(); }

  // Random texts of up to `longest` bytes; many come again.
  static std::vector<std::string> Texts(size_t n, size_t longest) {
    std::mt19937_64 random(n);
    std::vector<std::string> texts(n);
    for (std::string& text : texts) {
      text.resize(random() % (longest + 1));
      for (char& c : text) c = static_cast<char>(random() % 3 == 0 ? random() % 256 : 'a');
    }
    return texts;
  }
  static std::vector<std::string> All(ExternalSort* sort) {
    std::vector<std::string> records;
    while (true) {
      const StatusOr<bool> more = sort->Next();
      EXPECT_OK(more.status());
      if (!more.value_or(false)) return records;
      records.emplace_back(sort->record());
    }
  }
  size_t FilesLeft() const {
    const auto children = kFiles->GetChildren(dir_);
    return children.ok() ? children->size() : 0;
  }

  const std::string dir_;
};

TEST_F(ExternalSortTest, SortsAsManyRecordsAsThereAreInAnyMemory) {
  std::vector<std::string> texts = Texts(20'000, 30);
  std::vector<std::string> sorted = texts;
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [max_bytes, least_runs, most_runs] :
       {std::tuple<size_t, int64_t, int64_t>{size_t{64} << 20, 0, 0},
        {size_t{100} << 10, 2, 16},
        // More runs than are merged at a time.
        {size_t{8} << 10, 60, 200}}) {
    ExternalSort sort({.max_bytes = max_bytes, .directory = dir_});
    for (const std::string& text : texts) ASSERT_OK(sort.Add(text));
    ASSERT_OK(sort.Finish());
    EXPECT_EQ(All(&sort), sorted) << max_bytes;
    EXPECT_EQ(sort.num_records(), 20'000);
    EXPECT_GE(sort.num_runs(), least_runs);
    EXPECT_LE(sort.num_runs(), most_runs);
    EXPECT_FALSE(*sort.Next()) << "the end repeats";
  }
  EXPECT_EQ(FilesLeft(), 0u);
}

TEST_F(ExternalSortTest, TakesNoRecordAndOnesThatAreLargerThanItsMemory) {
  ExternalSort none({.directory = dir_});
  ASSERT_OK(none.Finish());
  EXPECT_FALSE(*none.Next());

  ExternalSort large({.max_bytes = 1000, .directory = dir_});
  const std::string long_text(300'000, 'm');
  for (const std::string& text : {std::string("z"), long_text, std::string(), std::string("a")}) {
    ASSERT_OK(large.Add(text));
  }
  ASSERT_OK(large.Finish());
  EXPECT_EQ(All(&large), (std::vector<std::string>{"", "a", long_text, "z"}));
}

TEST_F(ExternalSortTest, LeavesNoFilesWhereverItEnds) {
  {
    ExternalSort sort({.max_bytes = 4096, .directory = JoinPath(dir_, "made/for/it")});
    for (const std::string& text : Texts(5000, 30)) ASSERT_OK(sort.Add(text));
    EXPECT_GT(sort.num_runs(), 1);
  }
  ASSERT_OK_AND_ASSIGN(const auto left, kFiles->GetChildren(JoinPath(dir_, "made/for/it")));
  EXPECT_EQ(left.size(), 0u) << "before Finish";
  {
    ExternalSort sort({.max_bytes = 4096, .directory = dir_});
    for (const std::string& text : Texts(5000, 30)) ASSERT_OK(sort.Add(text));
    ASSERT_OK(sort.Finish());
    ASSERT_TRUE(*sort.Next());
  }
  EXPECT_EQ(FilesLeft(), 1u) << "before the end (made/ is left)";
}

TEST_F(ExternalSortTest, TellsOfADiskThatFailsAndOfRunsThatChange) {
  FaultyFileSystem faulty(kFiles, dir_);
  {
    ExternalSort sort({.max_bytes = 4096, .directory = dir_, .file_system = &faulty});
    faulty.FailOperation(10, absl::ResourceExhaustedError("no space"), /*sticky=*/true);
    Status status;
    for (const std::string& text : Texts(5000, 30)) {
      status = sort.Add(text);
      if (!status.ok()) break;
    }
    EXPECT_STATUS(status, absl::StatusCode::kResourceExhausted, "no space");
  }
  const std::string directory = JoinPath(dir_, "changed");
  ExternalSort sort({.max_bytes = 4096, .directory = directory});
  for (const std::string& text : Texts(500, 30)) ASSERT_OK(sort.Add(text));
  ASSERT_OK_AND_ASSIGN(const auto runs, kFiles->GetChildren(directory));
  ASSERT_FALSE(runs.empty());
  // A length beyond the file's end.
  ASSERT_OK(WriteFileAtomically(kFiles, JoinPath(directory, runs[0]), "\xff\xff\xff\xff\x0f"));
  EXPECT_STATUS(sort.Finish(), absl::StatusCode::kDataLoss, "it must be as it was written");
}

// --- SpillingCounter -----------------------------------------------------------------------------

TEST_F(ExternalSortTest, CountsAddUpInAnyMemory) {
  std::mt19937_64 random(3);
  std::map<std::string, std::vector<int64_t>> wanted;
  std::vector<std::pair<std::string, std::vector<int64_t>>> added;
  for (int i = 0; i < 30'000; ++i) {
    // Frequent ones and rare ones.
    const uint64_t r = random();
    const std::string key = absl::StrCat("key ", r % 3 == 0 ? r / 3 % 10 : r / 3 % 5000);
    const std::vector<int64_t> counts = {1, static_cast<int64_t>(r % 7)};
    added.emplace_back(key, counts);
    std::vector<int64_t>& sums = wanted.emplace(key, std::vector<int64_t>{0, 0}).first->second;
    for (size_t c = 0; c < 2; ++c) sums[c] += counts[c];
  }
  for (const size_t max_bytes : {size_t{64} << 20, size_t{300} << 10, size_t{20} << 10}) {
    SpillingCounter counter(2, {.max_bytes = max_bytes, .directory = dir_});
    for (const auto& [key, counts] : added) ASSERT_OK(counter.Add(key, counts));
    ASSERT_OK(counter.Finish());
    auto next = wanted.begin();
    while (*counter.Next()) {
      ASSERT_NE(next, wanted.end());
      EXPECT_EQ(counter.key(), next->first);
      EXPECT_EQ(std::vector<int64_t>(counter.counts().begin(), counter.counts().end()),
                next->second);
      ++next;
    }
    EXPECT_EQ(next, wanted.end());
    EXPECT_EQ(counter.num_spills() > 0, max_bytes < size_t{1} << 20) << max_bytes;
    EXPECT_FALSE(*counter.Next());
  }
  EXPECT_EQ(FilesLeft(), 0u);
}

TEST_F(ExternalSortTest, ACountThatIsTooLargeIsNamed) {
  SpillingCounter counter(1, {.directory = dir_});
  ASSERT_OK(counter.Add("a", {std::numeric_limits<int64_t>::max()}));
  EXPECT_STATUS(counter.Add("a"), absl::StatusCode::kOutOfRange,
                "the count of 'a' must be below 2^63");
  EXPECT_STATUS(counter.Add("a", {1, 2}), absl::StatusCode::kInvalidArgument,
                "a key must have 1 counts, got 2");
  SpillingCounter none(1, {.directory = dir_});
  ASSERT_OK(none.Finish());
  EXPECT_FALSE(*none.Next());
}

}  // namespace
}  // namespace millrace::data
