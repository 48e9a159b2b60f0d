// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/in_process_link.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/before_wait.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/testing/link_kinds.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// An end that does something within OnOpen, and may let go of its link when that is lost.
class BusyEnd : public RecordingEnd {
 public:
  std::function<void()> on_open;
  bool lets_go = false;

  void OnOpen(std::shared_ptr<Link> link) override {
    RecordingEnd::OnOpen(std::move(link));
    if (on_open) on_open();
  }
  void OnLost(const Status& status, bool by_peer) override {
    RecordingEnd::OnLost(status, by_peer);
    if (lets_go) LetGo();
  }
};

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
  // What is bounded while it waits.
  static SentTensors ResultsOf(int64_t step_id, uint32_t index, Tensor value) {
    SentTensors message = Of(step_id, index, std::move(value));
    message.purpose = TensorsPurpose::kResults;
    return message;
  }

  const std::shared_ptr<BusyEnd> first_ = std::make_shared<BusyEnd>();
  const std::shared_ptr<BusyEnd> second_ = std::make_shared<BusyEnd>();
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
  // The first has room.
  ASSERT_OK(first_->link()->Send(ResultsOf(1, 0, *Tensor::Zeros(DT_FLOAT, Shape{100}))));
  EXPECT_STATUS(first_->link()->Send(ResultsOf(1, 1, Tensor::Vector<float>({1}))),
                absl::StatusCode::kResourceExhausted, "max_queued_bytes");
  // Edges wait without a bound, and take none of it.
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_OK(first_->link()->Send(Of(2, i, *Tensor::Zeros(DT_FLOAT, Shape{100}))));
  }
  ASSERT_OK(first_->link()->Send(RunFrame()));
  EXPECT_GE(first_->link()->queued_bytes(), 1600);
  first_->link()->Flush();
  EXPECT_EQ(second_->lines().size(), 6u);
  EXPECT_EQ(first_->link()->queued_bytes(), 0);
}

// covers: clusters: what waits on a link within a process is bounded, also tensors that have no
//   elements or are dead, and messages without tensors, which end the link beyond their bound
TEST_F(InProcessLinkTest, WhatHasNoElementsIsBoundedToo) {
  Open({.max_queued_bytes = 100'000, .max_queued_message_bytes = 10'000});
  second_->on_tensors = [this](const SentTensors& tensors) {
    if (tensors.step_id != 1) return;
    // This end is being called, so all that is sent to it waits.
    SentTensors dead = ResultsOf(2, 0, Tensor());
    dead.tensors[0].is_dead = true;
    Status status;
    int64_t sent = 0;
    for (; status.ok() && sent < 100'000; ++sent) status = first_->link()->Send(dead);
    EXPECT_STATUS(status, absl::StatusCode::kResourceExhausted, "max_queued_bytes");
    EXPECT_LT(sent, 1000);
    for (status = absl::OkStatus(), sent = 0; status.ok() && sent < 100'000; ++sent) {
      status = first_->link()->Send(RunFrame());
    }
    EXPECT_STATUS(status, absl::StatusCode::kUnavailable,
                  "Link from /job:worker/replica:0/task:0: the peer must take messages, got ");
    EXPECT_LT(sent, 1000);
  };
  ASSERT_OK(first_->link()->Send(Of(1, 0, Tensor::Vector<float>({1}))));
  for (const auto& end : {first_, second_}) {
    EXPECT_EQ(end->num_losses(), 1);
    EXPECT_STATUS(end->lost(), absl::StatusCode::kUnavailable, "the peer must take messages");
    EXPECT_EQ(end->link()->queued_bytes(), 0);
  }
  EXPECT_EQ(second_->lines().size(), 3u);  // OnOpen, the first tensor, OnLost
}

// covers: clusters: an end of a link within a process may send, flush, wait and close within its
//   OnOpen: the other end hears OnOpen first all the same
TEST_F(InProcessLinkTest, NothingComesBeforeOnOpen) {
  for (const bool closes : {false, true}) {
    SCOPED_TRACE(closes);
    const auto first = std::make_shared<BusyEnd>();
    const auto second = std::make_shared<BusyEnd>();
    first->on_open = [&] {
      EXPECT_OK(first->link()->Send(RunFrame()));
      first->link()->Flush();
      BeforeWait::Run();
      EXPECT_OK(first->link()->Send(Of(1, 0, *Tensor::Zeros(DT_FLOAT, Shape{100'000}))));
      std::thread([&] { EXPECT_OK(first->link()->Send(UnbindFrame{5})); }).join();
      EXPECT_EQ(second->lines().size(), 0u);
      if (closes) first->link()->Close(absl::AbortedError("no"));
      EXPECT_EQ(first->num_losses(), 0);  // it is being called
    };
    second->on_open = [&] {
      // Another thread does not call an end that is being called.
      std::thread([&] { first->link()->Flush(); }).join();
      EXPECT_EQ(second->lines().size(), 1u);
    };
    OpenInProcessLink({"a", 1}, first, {"b", 2}, second);
    const std::vector<std::string> at_first = first->lines(), at_second = second->lines();
    EXPECT_EQ(at_first.front(), "open b 2");
    EXPECT_EQ(at_second.front(), "open a 1");
    EXPECT_EQ(first->num_losses(), closes ? 1 : 0);
    EXPECT_EQ(second->num_losses(), closes ? 1 : 0);
    // With a close the tensor is dropped, and OnLost is the last.
    ASSERT_EQ(at_second.size(), 4u);
    EXPECT_EQ(at_second.back(),
              closes ? "lost by peer: Link to a was closed by the peer: no" : "unbind 5");
    if (!closes) first->link()->Close(absl::AbortedError("the test is over"));
    first->LetGo();
    second->LetGo();
  }
}

// covers: clusters: an end that lets go of its link when it is lost, within a call of that link
//   (ASan: nothing of the link is used afterwards)
TEST_F(InProcessLinkTest, AnEndLetsGoOfItsLinkWithinItsCall) {
  for (const int how : {0, 1, 2}) {
    SCOPED_TRACE(how);
    const auto first = std::make_shared<BusyEnd>();
    const auto second = std::make_shared<BusyEnd>();
    first->lets_go = second->lets_go = true;
    second->on_run = [&](const RunFrame&) { second->link()->Close(absl::AbortedError("no")); };
    OpenInProcessLink({"a", 1}, first, {"b", 2}, second);
    const std::weak_ptr<Link> link = first->link();
    Link* const raw = first->link().get();  // the end keeps it
    if (how == 0) {
      raw->Close(absl::AbortedError("no"));
    } else if (how == 1) {
      EXPECT_OK(raw->Send(RunFrame()));
    } else {
      // What waits is delivered by Flush: another thread's cork holds it.
      std::thread([&] {
        LinkCork cork;
        EXPECT_OK(raw->Send(RunFrame()));
        raw->Flush();
      }).join();
    }
    EXPECT_TRUE(link.expired());
    for (const auto& end : {first, second}) {
      EXPECT_EQ(end->num_losses(), 1);
      EXPECT_TRUE(end->link() == nullptr);
    }
  }
}

// covers: clusters: an end that throws loses a link within a process; nobody waits for ever
TEST_F(InProcessLinkTest, AnEndThatThrowsLosesTheLink) {
  Open();
  second_->on_run = [](const RunFrame&) { throw std::bad_alloc(); };
  EXPECT_OK(first_->link()->Send(RunFrame()));  // it was on its way
  for (const auto& end : {first_, second_}) {
    EXPECT_EQ(end->num_losses(), 1);
    EXPECT_FALSE(end->lost_by_peer());
    EXPECT_STATUS(end->lost(), absl::StatusCode::kResourceExhausted, "Link: out of memory");
    EXPECT_STATUS(end->link()->Send(RunFrame()), absl::StatusCode::kUnavailable, "out of memory");
  }
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
