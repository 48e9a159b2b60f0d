// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/key_index.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

// covers: values: the index of look-up tables finds every key

namespace millrace::math {
namespace {

TEST(KeyIndex, GivesPlacesInOrderAndTakesThemBack) {
  KeyIndex<std::string> index;
  EXPECT_EQ(index.Find("a"), -1);
  EXPECT_EQ(index.Remove("a"), -1);
  for (const auto& [key, place, is_new] :
       {std::tuple{"a", 0, true}, {"b", 1, true}, {"", 2, true}, {"b", 1, false}, {"c", 3, true}}) {
    const auto inserted = index.Insert(key);
    EXPECT_EQ(inserted.place, place) << key;
    EXPECT_EQ(inserted.is_new, is_new) << key;
  }
  EXPECT_EQ(index.keys(), (std::vector<std::string>{"a", "b", "", "c"}));
  // The last one moves to where the removed one was.
  EXPECT_EQ(index.Remove("b"), 1);
  EXPECT_EQ(index.keys(), (std::vector<std::string>{"a", "c", ""}));
  EXPECT_EQ(index.Find("c"), 1);
  EXPECT_EQ(index.Find("b"), -1);
  EXPECT_EQ(index.Remove(""), 2);
  EXPECT_EQ(index.size(), 2);
  index.Clear();
  EXPECT_EQ(index.size(), 0);
  EXPECT_EQ(index.Find("a"), -1);
}

TEST(KeyIndex, FindsEachOfABatchAsIfAlone) {
  KeyIndex<std::string> index;
  std::vector<int64_t> places(100, 7);
  std::vector<absl::string_view> none(100, "x");
  index.FindEach<absl::string_view>(none, places.data());
  EXPECT_EQ(places, std::vector<int64_t>(100, -1));

  std::vector<std::string> texts;
  for (int i = 0; i < 1000; ++i) texts.push_back(absl::StrCat("key ", i * 7919));
  for (size_t i = 0; i < texts.size(); i += 2) index.Insert(texts[i]);
  for (const size_t n : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, texts.size()}) {
    std::vector<int64_t> each(n, -7);
    index.FindEach(absl::MakeConstSpan(texts).subspan(0, n), each.data());
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(each[i], i % 2 == 0 ? static_cast<int64_t>(i / 2) : -1) << i;
    }
  }
}

// Against the standard library's, key by key, with few keys so that they collide and come again.
template <typename K, typename KeyOf>
void ExpectLikeAMap(KeyOf key_of) {
  std::mt19937 random(17);
  KeyIndex<K> index;
  std::map<K, bool> wanted;
  for (int step = 0; step < 20000; ++step) {
    const K key = key_of(static_cast<uint32_t>(random() % 300));
    if (random() % 2 == 0) {
      EXPECT_EQ(index.Insert(key).is_new, wanted.emplace(key, true).second);
    } else {
      EXPECT_EQ(index.Remove(key) >= 0, wanted.erase(key) == 1);
    }
    ASSERT_EQ(index.size(), static_cast<int64_t>(wanted.size()));
    if (step % 500 != 0) continue;
    for (uint32_t i = 0; i < 300; ++i) {
      const int64_t place = index.Find(key_of(i));
      ASSERT_EQ(place >= 0, wanted.count(key_of(i)) == 1) << i;
      if (place < 0) continue;
      ASSERT_EQ(index.keys()[static_cast<size_t>(place)], key_of(i));
    }
  }
}

TEST(KeyIndex, IsASetUnderAnyMixOfChanges) {
  ExpectLikeAMap<int64_t>([](uint32_t i) { return int64_t{i} << 40; });
  ExpectLikeAMap<int32_t>([](uint32_t i) { return static_cast<int32_t>(i) - 150; });
  ExpectLikeAMap<std::string>(
      [](uint32_t i) { return std::string(i % 40, 'x') + std::to_string(i); });
}

}  // namespace
}  // namespace millrace::math
