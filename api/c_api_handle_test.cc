// SPDX-License-Identifier: Apache-2.0
#include "api/c_api_handle.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: c api: NULL, deleted handles, handles of another kind, wrong sizes, dtypes and names are
//   a Status with its text, and change nothing (table)

struct FirstHandle;
struct SecondHandle;

namespace millrace::c_api {
namespace {

struct First {
  using Opaque = FirstHandle;
  static constexpr uint32_t kKind = 1;
  static constexpr char kName[] = "First";
  std::string text;
};

struct Second {
  using Opaque = SecondHandle;
  static constexpr uint32_t kKind = 2;
  static constexpr char kName[] = "Second";
  std::string text;
};

TEST(HandlesTest, AHandleLeadsToItsObjectUntilItIsDeleted) {
  FirstHandle* const handle = Handles<First>::New({"a"});
  ASSERT_NE(Handles<First>::Find(handle), nullptr);
  EXPECT_EQ(Handles<First>::Find(handle)->text, "a");
  EXPECT_TRUE(Handles<First>::Delete(handle));
  EXPECT_EQ(Handles<First>::Find(handle), nullptr);
  EXPECT_FALSE(Handles<First>::Delete(handle));
}

TEST(HandlesTest, WhatIsNoHandleOfTheKindIsRefusedByName) {
  FirstHandle* const first = Handles<First>::New({"a"});
  const auto get = [](void* handle) {
    return Handles<Second>::Get(static_cast<SecondHandle*>(handle), "f", "x").status();
  };
  EXPECT_STATUS(get(nullptr), absl::StatusCode::kInvalidArgument,
                "f: x must be a living Second, got NULL");
  EXPECT_STATUS(get(first), absl::StatusCode::kInvalidArgument, "got no handle of this kind");
  EXPECT_STATUS(get(reinterpret_cast<char*>(first) + 1), absl::StatusCode::kInvalidArgument,
                "got no handle");
  SecondHandle* const second = Handles<Second>::New({"b"});
  EXPECT_OK(get(second));
  Handles<Second>::Delete(second);
  EXPECT_STATUS(get(second), absl::StatusCode::kInvalidArgument, "got one that was deleted");
  Handles<First>::Delete(first);
}

TEST(HandlesTest, ADeletedHandleIsNotGivenOutAgainSoon) {
  FirstHandle* const old = Handles<First>::New({"old"});
  Handles<First>::Delete(old);
  std::vector<FirstHandle*> others;
  for (int i = 0; i < 40; ++i) {
    others.push_back(Handles<First>::New({absl::StrCat(i)}));
    EXPECT_NE(others.back(), old);
    Handles<First>::Delete(others.back());
  }
  EXPECT_EQ(Handles<First>::Find(old), nullptr);
}

TEST(HandlesTest, MemoryIsUsedAgain) {
  std::vector<FirstHandle*> seen;
  bool is_again = false;
  for (int i = 0; i < 1000 && !is_again; ++i) {
    FirstHandle* const handle = Handles<First>::New({"x"});
    for (FirstHandle* const other : seen) is_again = is_again || other == handle;
    seen.push_back(handle);
    Handles<First>::Delete(handle);
  }
  EXPECT_TRUE(is_again);
}

TEST(HandlesTest, MemoryIsUsedAgainWhenAnotherThreadDeletes) {
  std::set<FirstHandle*> seen;
  for (int i = 0; i < 1000; ++i) {
    FirstHandle* const handle = Handles<First>::New({"x"});
    seen.insert(handle);
    std::thread([handle] { EXPECT_TRUE(Handles<First>::Delete(handle)); }).join();
  }
  EXPECT_LT(seen.size(), 500u);
}

TEST(HandlesTest, ManyThreadsMakeAndDeleteAtOnce) {
  FirstHandle* const shared = Handles<First>::New({"shared"});
  std::vector<std::thread> threads;
  std::atomic<int> deleted{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::string text = absl::StrCat(t, "/", i);
        FirstHandle* const handle = Handles<First>::New({text});
        EXPECT_EQ(Handles<First>::Find(handle)->text, text);
        EXPECT_TRUE(Handles<First>::Delete(handle));
      }
      // One of those who delete the same handle does it.
      deleted += Handles<First>::Delete(shared) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(deleted, 1);
}

}  // namespace
}  // namespace millrace::c_api
