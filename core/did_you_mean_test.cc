// SPDX-License-Identifier: Apache-2.0
#include "core/did_you_mean.h"

#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

// covers: accidents: the nearest name is the hint of an error

namespace millrace {
namespace {

std::string HintFor(absl::string_view name, std::initializer_list<absl::string_view> candidates) {
  DidYouMean best(name);
  for (const absl::string_view candidate : candidates) best.Consider(candidate);
  return best.Hint();
}

TEST(DidYouMeanTest, TheNearestNameIsTheHint) {
  EXPECT_EQ(HintFor("dense/kernal", {"dense/bias", "dense/kernel", "dense_1/kernel"}),
            "; did you mean 'dense/kernel'?");
  EXPECT_EQ(HintFor("imgaes", {"labels", "images"}), "; did you mean 'images'?");
  EXPECT_EQ(HintFor("loss", {"los", "losses", "cross"}), "; did you mean 'los'?");
}

TEST(DidYouMeanTest, CaseAndLastPartComeBeforeEdits) {
  EXPECT_EQ(HintFor("Dense", {"dens", "dense", "Dens"}), "; did you mean 'dense'?");
  EXPECT_EQ(HintFor("kernel", {"kernels", "dense/kernel"}), "; did you mean 'dense/kernel'?");
  EXPECT_EQ(HintFor("kernel", {"left/kernel", "right/kernel"}), "") << "two have it";
}

TEST(DidYouMeanTest, WhatIsFarIsNoHint) {
  EXPECT_EQ(HintFor("x", {"y", "z"}), "");
  EXPECT_EQ(HintFor("loss", {"accuracy", "bias"}), "");
  EXPECT_EQ(HintFor("", {"a", "a/b"}), "");
  EXPECT_EQ(HintFor("loss", {}), "");
  EXPECT_EQ(HintFor(std::string(1000, 'a'), {std::string(1001, 'a')}), "");
}

}  // namespace
}  // namespace millrace
