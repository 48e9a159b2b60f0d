// SPDX-License-Identifier: Apache-2.0
#include "core/before_wait.h"

#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace millrace {
namespace {

class PutOff : private BeforeWait {
 public:
  PutOff(char name, std::string* done) : name_(name), done_(done) {}

 private:
  void Do() noexcept override { done_->push_back(name_); }

  const char name_;
  std::string* const done_;
};

TEST(BeforeWaitTest, WhatAThreadHasPutOffIsDoneInnermostFirstWhileItLives) {
  std::string done;
  BeforeWait::Run();
  {
    PutOff outer('a', &done);
    {
      PutOff inner('b', &done);
      BeforeWait::Run();
      EXPECT_EQ(done, "ba");
    }
    BeforeWait::Run();
    EXPECT_EQ(done, "baa");
    std::thread([] { BeforeWait::Run(); }).join();
  }
  BeforeWait::Run();
  EXPECT_EQ(done, "baa");
}

}  // namespace
}  // namespace millrace
