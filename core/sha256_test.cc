// SPDX-License-Identifier: Apache-2.0
#include "core/sha256.h"

#include <string>

#include "absl/strings/escaping.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(Sha256Test, EqualsPublishedValues) {
  const struct {
    std::string data;
    const char* digest;
  } cases[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {std::string(1'000'000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& c : cases) {
    ASSERT_OK_AND_ASSIGN(const std::string digest, Sha256(c.data));
    EXPECT_EQ(absl::BytesToHexString(digest), c.digest) << c.data.size() << " bytes";
  }
}

}  // namespace
}  // namespace millrace
