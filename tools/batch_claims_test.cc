// SPDX-License-Identifier: Apache-2.0
//
// Claims of several tasks in one directory, with a clock that stands still.
#include "tools/batch_claims.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: serving: of several tasks of a batch prediction one claims each part; a claim ends when
//   its task gives up, is silent for the time that a flag sets, or starts again, and one task takes
//   it over

namespace millrace {
namespace {

constexpr absl::Duration kTakeover = absl::Seconds(60);

class BatchClaimsTest : public ::testing::Test {
 protected:
  BatchClaimsTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("claims_", RandomHexName()))) {
    EXPECT_OK(Fs()->RecursivelyCreateDirectory(dir_));
  }
  ~BatchClaimsTest() override { Fs()->RecursivelyDelete(dir_).IgnoreError(); }
  static FileSystem* Fs() { return FileSystem::Posix(); }

  BatchClaims Of(const std::string& holder) { return {Fs(), dir_, holder, kTakeover, &clock_}; }
  static void Look(BatchClaims* claims) {
    ASSERT_OK(claims->Look([](absl::string_view) { return true; }));
  }
  static std::optional<BatchClaim> Claim(BatchClaims* claims, const std::string& item) {
    StatusOr<std::optional<BatchClaim>> claim = claims->TryClaim(item);
    EXPECT_OK(claim);
    return claim.ok() ? *std::move(claim) : std::nullopt;
  }

  const std::string dir_;
  FakeClock clock_;
};

TEST_F(BatchClaimsTest, OneTaskClaimsAnItem) {
  BatchClaims a = Of("worker 0"), b = Of("worker 1");
  EXPECT_TRUE(a.IsFree("x"));
  EXPECT_EQ(a.HolderOf("x"), "");
  const std::optional<BatchClaim> claim = Claim(&a, "x");
  EXPECT_TRUE(claim.has_value());
  // Without having looked.
  EXPECT_FALSE(Claim(&b, "x").has_value());
  EXPECT_FALSE(b.IsFree("x"));
  Look(&b);
  EXPECT_FALSE(b.IsFree("x"));
  EXPECT_EQ(b.HolderOf("x"), "worker 0");
  EXPECT_TRUE(Claim(&b, "y").has_value());
}

TEST_F(BatchClaimsTest, AClaimThatIsGivenUpIsFreeAtOnce) {
  BatchClaims a = Of("worker 0"), b = Of("worker 1");
  { const std::optional<BatchClaim> claim = Claim(&a, "x"); }
  Look(&b);
  EXPECT_TRUE(b.IsFree("x"));
  EXPECT_TRUE(Claim(&b, "x").has_value());
}

TEST_F(BatchClaimsTest, ASilentTaskLosesItsClaimToOneOther) {
  BatchClaims a = Of("worker 0"), b = Of("worker 1"), c = Of("worker 2");
  std::optional<BatchClaim> claim = Claim(&a, "x");
  ASSERT_TRUE(claim.has_value());
  for (BatchClaims* other : {&b, &c}) Look(other);
  // Longer than a takeover, with beats.
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(kTakeover / 2);
    claim->Beat();
    for (BatchClaims* other : {&b, &c}) {
      Look(other);
      EXPECT_FALSE(other->IsFree("x"));
      EXPECT_EQ(other->LastSignOf("x"), clock_.Now());
    }
  }
  clock_.Advance(kTakeover - absl::Seconds(1));
  for (BatchClaims* other : {&b, &c}) {
    Look(other);
    EXPECT_FALSE(other->IsFree("x"));
  }
  clock_.Advance(absl::Seconds(1));
  for (BatchClaims* other : {&b, &c}) {
    Look(other);
    EXPECT_TRUE(other->IsFree("x"));
  }
  const std::optional<BatchClaim> taken = Claim(&b, "x");
  EXPECT_TRUE(taken.has_value());
  EXPECT_FALSE(Claim(&c, "x").has_value());
  // The one that was silent wakes up: its beats are of a claim that is over.
  clock_.Advance(kTakeover / 2);
  claim->Beat();
  Look(&c);
  EXPECT_FALSE(c.IsFree("x"));
  EXPECT_EQ(c.HolderOf("x"), "worker 1");
  clock_.Advance(kTakeover);
  claim->Beat();
  Look(&c);
  EXPECT_TRUE(c.IsFree("x"));
}

TEST_F(BatchClaimsTest, BeatsAreWrittenWhenTheyAreDue) {
  BatchClaims a = Of("worker 0"), b = Of("worker 1");
  std::optional<BatchClaim> claim = Claim(&a, "x");
  ASSERT_TRUE(claim.has_value());
  const std::string path = JoinPath(dir_, "x.00000");
  ASSERT_OK_AND_ASSIGN(const uint64_t before, Fs()->GetFileSize(path));
  for (int i = 0; i < 100; ++i) claim->Beat();
  EXPECT_EQ(Fs()->GetFileSize(path).value_or(0), before);
  clock_.Advance(kTakeover / 2);
  for (int i = 0; i < 100; ++i) claim->Beat();
  EXPECT_EQ(Fs()->GetFileSize(path).value_or(0), before + 1);
}

TEST_F(BatchClaimsTest, ATaskThatStartsAgainTakesItsOwnClaims) {
  // As a killed process leaves it: not given up.
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "x.00000"), "worker 0\n0123\n.."));
  BatchClaims again = Of("worker 0"), other = Of("worker 1");
  for (BatchClaims* claims : {&again, &other}) Look(claims);
  EXPECT_FALSE(other.IsFree("x"));
  EXPECT_TRUE(again.IsFree("x"));
  std::optional<BatchClaim> claim = Claim(&again, "x");
  ASSERT_TRUE(claim.has_value());
  // Its present one is its own, too, and not free.
  Look(&again);
  EXPECT_FALSE(again.IsFree("x"));
}

TEST_F(BatchClaimsTest, AClaimWithoutATextIsOfSomebody) {
  // Killed between the file and its text.
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "x.00007"), ""));
  BatchClaims a = Of("worker 0");
  Look(&a);
  EXPECT_FALSE(a.IsFree("x"));
  EXPECT_EQ(a.HolderOf("x"), "another task");
  clock_.Advance(kTakeover);
  Look(&a);
  EXPECT_TRUE(a.IsFree("x"));
  EXPECT_TRUE(Claim(&a, "x").has_value());
  EXPECT_TRUE(Fs()->FileExists(JoinPath(dir_, "x.00008")));
}

}  // namespace
}  // namespace millrace
