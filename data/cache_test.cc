// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"

// covers: input: caches in memory and in files are complete or absent
// covers: input: a restored iterator gives what the saved one would have given, saved after any
//   element; a state that is cut is refused
// covers: input: a cache of rows gives what a cache of objects gives

namespace millrace::data {
namespace {

// 0 to n - 1, counting in `made`.
Dataset Counted(int64_t n, std::atomic<int64_t>* made) {
  return Dataset::Range(n).Map(
      [made](Element element) -> StatusOr<Element> {
        ++*made;
        return element;
      },
      {.spec = {{DT_INT64, PartialShape::Scalar()}}});
}

std::string FreshDirectory() {
  const std::string path = JoinPath(
      testing::TempDir(),
      absl::StrCat("cache_", testing::UnitTest::GetInstance()->current_test_info()->name()));
  FileSystem::Posix()->RecursivelyDelete(path).IgnoreError();
  EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(path));
  return path;
}

TEST(MemoryCache, ReadsItsInputOnce) {
  std::atomic<int64_t> made = 0;
  EXPECT_EQ(TextOf(Counted(3, &made).Cache().Repeat(3)), "0 1 2 0 1 2 0 1 2");
  EXPECT_EQ(made, 3);
  // Another iterator has its own.
  EXPECT_EQ(TextOf(Counted(3, &made).Cache()), "0 1 2");
  EXPECT_EQ(made, 6);
}

TEST(MemoryCache, KeepsOnlyWholePassesWithoutErrors) {
  std::atomic<int64_t> made = 0;
  EXPECT_EQ(TextOf(Counted(3, &made).Cache().Take(2).Repeat(2)), "0 1 0 1");
  EXPECT_EQ(made, 4);
  const Dataset failing = Dataset::Range(3).Map([&made](Element element) -> StatusOr<Element> {
    ++made;
    if (element[0].scalar<int64_t>() == 1) return absl::UnavailableError("no 1");
    return element;
  });
  made = 0;
  EXPECT_EQ(TextOf(failing.Cache().Repeat(2)), "0 <no 1> 2 0 <no 1> 2");
  EXPECT_EQ(made, 6);
}

// Numbers, a matrix and strings of several lengths.
Dataset MixedRows(int64_t n) {
  std::vector<float> numbers;
  std::vector<std::string> texts;
  for (int64_t i = 0; i < n; ++i) {
    for (int j = 0; j < 6; ++j) numbers.push_back(static_cast<float>(i) + 0.5f);
    texts.push_back(std::string(static_cast<size_t>(i % 40), 'x') + absl::StrCat(i));
  }
  texts[0] = std::string(300, 'y');
  return Dataset::FromTensorSlices({*Tensor::FromValues<float>(*Shape::Make({n, 2, 3}), numbers),
                                    Tensor::Vector<std::string>(texts),
                                    *Tensor::Zeros(DT_BOOL, *Shape::Make({n}))});
}

TEST(MemoryCache, OfRowsIsThatOfObjects) {
  for (const Dataset& rows : {Dataset::Range(700), MixedRows(60), Dataset::Range(0)}) {
    SCOPED_TRACE(rows.DebugString());
    const Dataset objects = rows.Map([](Element element) -> StatusOr<Element> { return element; },
                                     {.spec = rows.spec()});
    EXPECT_EQ(ElementsOf(rows.Cache().Repeat(3)), ElementsOf(objects.Cache().Repeat(3)));
    EXPECT_EQ(ElementsOf(rows.Cache().Repeat(3).Batch(37)),
              ElementsOf(objects.Cache().Repeat(3).Batch(37)));
    const ShuffleOptions seeds = {.seed = 3, .seed2 = 4};
    EXPECT_EQ(ElementsOf(rows.Cache().Shuffle(20, seeds).Repeat(3).Batch(8)),
              ElementsOf(rows.Shuffle(20, seeds).Repeat(3).Batch(8)));
    ExpectKeepsItsSpec(rows.Cache().Repeat(2).Batch(9));
  }
}

// A pass of blocks with an error among them.
TEST(MemoryCache, KeepsNoRowsOfAPassWithAnError) {
  const std::string path = JoinPath(FreshDirectory(), "rows");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, "1\n2\nx\n4\n"));
  const Dataset rows =
      Dataset::TextLines({path}).Map(DecodeCsv({.defaults = {Tensor::Scalar(int32_t{0})}}));
  const std::string bad = absl::StrCat("<Text lines '", path,
                                       "', line 3: Field 0 in record 0 is not a valid int32: x>");
  EXPECT_EQ(ElementsOf(rows.Cache().Repeat(2)),
            (std::vector<std::string>{"1", "2", bad, "4", "1", "2", bad, "4"}));
  EXPECT_EQ(ElementsOf(rows.Cache().Repeat(2).IgnoreErrors().Batch(4)),
            (std::vector<std::string>{"[1 2 4 1]", "[2 4]"}));
  // The file is read once, if it can be.
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, "1\n2\n3\n"));
  ASSERT_OK_AND_ASSIGN(const auto iterator, rows.Cache().Repeat(2).Batch(3).MakeIterator());
  Element batch;
  ASSERT_OK(iterator->Next(&batch));
  ASSERT_OK(FileSystem::Posix()->DeleteFile(path));
  EXPECT_EQ(RestOf(iterator.get()), std::vector<std::string>{"[1 2 3]"});
}

TEST(MemoryCache, EachPlaceHasItsOwn) {
  EXPECT_EQ(
      TextOf(Dataset::Zip({Dataset::Range(2).Cache(), Dataset::Range(5, 7).Cache()}).Repeat(2)),
      "0|5 1|6 0|5 1|6");
}

TEST(MemoryCache, StatesGoOn) {
  ExpectStatesGoOn(Dataset::Range(3).Cache().Repeat(3));
  ExpectStatesGoOn(MixedRows(5).Cache().Repeat(3).Batch(2));
  ExpectStatesGoOn(
      Dataset::Range(5).Shuffle(3, {.seed = 3}).Cache().Shuffle(2, {.seed = 4}).Repeat(2));
}

TEST(FileCache, IsWrittenOnceAndReadByAll) {
  const std::string path = JoinPath(FreshDirectory(), "c");
  std::atomic<int64_t> made = 0;
  const Dataset cached = Counted(3, &made).Cache(path);
  EXPECT_EQ(TextOf(cached.Repeat(2)), "0 1 2 0 1 2");
  EXPECT_EQ(made, 3);
  EXPECT_EQ(TextOf(cached), "0 1 2");
  EXPECT_EQ(made, 3);
  ASSERT_OK_AND_ASSIGN(const auto names, FileSystem::Posix()->GetChildren(Dirname(path)));
  EXPECT_EQ(names, (std::vector<std::string>{"c"}));
  ExpectStatesGoOn(cached);
}

TEST(FileCache, APassThatIsNotTheWholeLeavesNothing) {
  const std::string path = JoinPath(FreshDirectory(), "c");
  std::atomic<int64_t> made = 0;
  EXPECT_EQ(TextOf(Counted(3, &made).Cache(path).Take(2)), "0 1");
  ASSERT_OK_AND_ASSIGN(const auto names, FileSystem::Posix()->GetChildren(Dirname(path)));
  EXPECT_TRUE(names.empty());
}

TEST(FileCache, IsWholeOrTold) {
  const std::string path = JoinPath(FreshDirectory(), "c");
  const Dataset texts = Dataset::FromTensorSlices({TensorOf<std::string>({2}, {"one", "two"})});
  const Dataset cached = texts.Cache(path);
  EXPECT_EQ(TextOf(cached), "one two");
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(FileSystem::Posix(), path));
  const auto with = [&](const std::string& changed) {
    EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, changed));
    return ElementsOf(cached);
  };
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::string> got = with(bytes.substr(0, size));
    ASSERT_FALSE(got.empty()) << size;
    EXPECT_NE(got.back().find("the file must be whole"), std::string::npos) << size << got.back();
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    EXPECT_NE(with(changed).back().find("the file must"), std::string::npos) << i;
  }
  with(bytes);
  EXPECT_EQ(
      TextOf(Dataset::Range(2).Cache(path)),
      absl::StrCat("<Dataset.Cache '", path,
                   "': the file must hold 'millrace dataset cache 1 (int64 [])', got "
                   "'millrace dataset cache 1 (string [])'; remove it or choose another path>"));
}

TEST(FileCache, ADiskThatFailsCostsTheCacheOnly) {
  for (int64_t k = 1;; ++k) {
    const std::string directory = FreshDirectory();
    const Dataset cached = Dataset::Range(3).Cache(JoinPath(directory, "c"));
    FaultyFileSystem fs(FileSystem::Posix(), directory);
    fs.FailOperation(k, absl::ResourceExhaustedError("disk full"));
    const std::vector<std::string> got = ElementsOf(cached, {.file_system = &fs});
    const bool failed = got != std::vector<std::string>{"0", "1", "2"};
    if (failed) {
      EXPECT_LE(got.size(), 4u);
      EXPECT_NE(absl::StrJoin(got, " ").find("disk full"), std::string::npos)
          << fs.OperationText(k) << ": " << absl::StrJoin(got, " ");
    }
    EXPECT_EQ(TextOf(cached), "0 1 2") << "after the failure of operation " << k;
    if (!failed) break;
    ASSERT_LT(k, 50);
  }
}

}  // namespace
}  // namespace millrace::data
