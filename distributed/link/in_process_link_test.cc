// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/in_process_link.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/testing/link_kinds.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

class InProcessLinkTest : public ::testing::Test {
 protected:
  ~InProcessLinkTest() override {
    for (const auto& end : {first_, second_}) {
      if (end->link() != nullptr) end->link()->Close(absl::AbortedError("the test is over"));
      end->LetGo();
    }
  }
  void Open(const InProcessLinkOptions& options = {}) {
    OpenInProcessLink({"/job:worker/replica:0/task:0", 41}, first_,
                      {"/job:ps/replica:0/task:0", 42}, second_, options);
  }
  static SentTensors Of(int64_t step_id, uint32_t index, Tensor value) {
    SentTensors message;
    message.step_id = step_id;
    SentTensor& tensor = message.tensors.emplace_back();
    tensor.index = index;
    tensor.value = std::move(value);
    return message;
  }

  const std::shared_ptr<RecordingEnd> first_ = std::make_shared<RecordingEnd>();
  const std::shared_ptr<RecordingEnd> second_ = std::make_shared<RecordingEnd>();
};

// covers: clusters: a link within a process hands tensors over and copies none
TEST_F(InProcessLinkTest, TensorsAreHandedOver) {
  Open();
  const Tensor sent = Tensor::Vector<float>({1, 2, 3});
  ASSERT_OK(first_->link()->Send(Of(1, 0, sent)));
  const std::vector<SentTensor> got = second_->tensors();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(got[0].value.SharesBufferWith(sent));
}

// covers: clusters: threads that send on one link: each keeps its order, and every tensor and
//   acknowledgement arrives once
TEST_F(InProcessLinkTest, ThreadsKeepTheirOrder) {
  Open();
  constexpr int kThreads = 4;
  constexpr uint32_t kMessages = 2000;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      for (uint32_t i = 0; i < kMessages; ++i) {
        EXPECT_OK(first_->link()->Send(Of(thread, i, Tensor::Vector<float>({1}))));
        if (i % 100 == 0) {
          RunFrame run;
          run.step_id = thread;
          EXPECT_OK(second_->link()->Send(run));  // the other way meanwhile
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint32_t next[kThreads] = {};
  for (const std::string& line : second_->lines()) {
    if (line.rfind("tensors ", 0) != 0) continue;
    const int thread = line[std::string("tensors step=").size()] - '0';
    ASSERT_GE(thread, 0);
    ASSERT_LT(thread, kThreads);
    EXPECT_EQ(line, "tensors step=" + std::to_string(thread) + " " + std::to_string(next[thread]));
    ++next[thread];
  }
  for (int thread = 0; thread < kThreads; ++thread) {
    EXPECT_EQ(next[thread], kMessages);
    EXPECT_EQ(first_->received(thread), kMessages);
  }
  EXPECT_EQ(first_->lines().size(), 1u + kThreads * kMessages / 100);
}

// covers: clusters: what a thread sends takes along what another one's cork holds on the same link
TEST_F(InProcessLinkTest, ACorkHoldsItsThreadOnly) {
  Open();
  LinkCork cork;
  ASSERT_OK(first_->link()->Send(Of(1, 0, Tensor::Vector<float>({1}))));
  EXPECT_TRUE(second_->tensors().empty());
  std::thread other([this] { EXPECT_OK(first_->link()->Send(RunFrame())); });
  other.join();
  EXPECT_EQ(second_->lines().size(), 3u);
  EXPECT_EQ(second_->tensors().size(), 1u);
}

TEST_F(InProcessLinkTest, WhatWaitsIsBounded) {
  Open({.max_queued_bytes = 100});
  LinkCork cork;
  ASSERT_OK(first_->link()->Send(Of(1, 0, *Tensor::Zeros(DT_FLOAT, Shape{100}))));  // the first
  EXPECT_STATUS(first_->link()->Send(Of(1, 1, Tensor::Vector<float>({1}))),
                absl::StatusCode::kResourceExhausted, "max_queued_bytes");
  ASSERT_OK(first_->link()->Send(RunFrame()));
  EXPECT_EQ(first_->link()->queued_bytes(), 400);
  first_->link()->Flush();
  EXPECT_EQ(second_->lines().size(), 3u);
}

// An end that closes its link while another thread sends on it.
TEST_F(InProcessLinkTest, ACloseWhileOthersSend) {
  for (int round = 0; round < 50; ++round) {
    const auto first = std::make_shared<RecordingEnd>();
    const auto second = std::make_shared<RecordingEnd>();
    OpenInProcessLink({"a", 1}, first, {"b", 2}, second);
    std::thread sender([&] {
      while (first->link()->Send(Of(1, 0, Tensor::Vector<float>({1}))).ok()) {
      }
    });
    std::thread closer([&] { second->link()->Close(absl::AbortedError("enough")); });
    closer.join();
    sender.join();
    for (const auto& end : {first, second}) {
      EXPECT_EQ(end->num_losses(), 1);
      EXPECT_EQ(end->lines().back().rfind("lost", 0), 0u);
      end->LetGo();
    }
  }
}

}  // namespace
}  // namespace millrace
