// SPDX-License-Identifier: Apache-2.0
//
// What every link promises, whatever carries it (testing/link_kinds.h;
// MILLRACE_LINK_KINDS=in_process,...).

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/status_kind.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/link.h"
#include "distributed/link/testing/link_kinds.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using Lines = std::vector<std::string>;

// A new pair of each kind, not open yet.
void ForEachKind(absl::FunctionRef<void(LinkPair*)> test) {
  const std::vector<LinkKind> kinds = LinkKinds();
  EXPECT_FALSE(kinds.empty());
  for (const LinkKind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    const std::unique_ptr<LinkPair> pair = kind.make();
    test(pair.get());
  }
}

// The same, open.
void ForEachOpen(absl::FunctionRef<void(LinkPair*)> test) {
  ForEachKind([&](LinkPair* pair) {
    pair->Settle();
    ASSERT_TRUE(pair->worker_end->link() != nullptr);
    ASSERT_TRUE(pair->ps_end->link() != nullptr);
    test(pair);
  });
}

SentTensor Numbered(uint32_t index, Tensor value) {
  SentTensor tensor;
  tensor.index = index;
  tensor.value = std::move(value);
  return tensor;
}

SentTensors Of(int64_t step_id, std::vector<SentTensor> tensors) {
  SentTensors message;
  message.step_id = step_id;
  message.tensors = std::move(tensors);
  return message;
}

RunFrame RunOf(int64_t step_id) {
  RunFrame run;
  run.step_id = step_id;
  run.number = 1;
  return run;
}

EndFrame EndOf(int64_t step_id, Status status = absl::OkStatus()) {
  EndFrame end;
  end.step_id = step_id;
  end.status = std::move(status);
  return end;
}

// 1 MiB, so that it comes in parts where there are parts.
Tensor Large(float value) {
  Tensor tensor = *Tensor::Zeros(DT_FLOAT, Shape{256 << 10});
  for (float& element : tensor.mutable_flat<float>()) element = value;
  return tensor;
}

// Ids, of which the last one is `last`.
Tensor Ids(int64_t count, int64_t last) {
  Tensor tensor = *Tensor::Zeros(DT_INT64, *Shape::Make({count}));
  int64_t next = -1;
  for (int64_t& id : tensor.mutable_flat<int64_t>()) id = next++;
  tensor.mutable_flat<int64_t>().back() = last;
  return tensor;
}

// covers: clusters: each end of a link knows the task and the incarnation of the other one before
//   anything else comes
TEST(LinkPromisesTest, EachEndKnowsWhoTheOtherOneIs) {
  ForEachOpen([](LinkPair* pair) {
    EXPECT_EQ(pair->worker_end->lines(), Lines{"open /job:ps/replica:0/task:0 42"});
    EXPECT_EQ(pair->ps_end->lines(), Lines{"open /job:worker/replica:0/task:0 41"});
    EXPECT_EQ(pair->worker()->peer().task, "/job:ps/replica:0/task:0");
    EXPECT_EQ(pair->ps()->peer().incarnation, 41u);
  });
}

// covers: clusters: messages of a link arrive in the order in which they were sent, both ways
TEST(LinkPromisesTest, MessagesArriveInOrder) {
  ForEachOpen([](LinkPair* pair) {
    ASSERT_OK(pair->worker()->Send(BindFrame{1, "session", "graph"}));
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_OK(pair->worker()->Send(RunOf(step)));
      ASSERT_OK(pair->worker()->Send(Of(step, {Numbered(0, Tensor::Vector<float>({1}))})));
    }
    ASSERT_OK(pair->worker()->Send(CancelFrame{9, absl::CancelledError("by the test")}));
    ASSERT_OK(pair->worker()->Send(UnbindFrame{1}));
    ASSERT_OK(pair->ps()->Send(EndOf(1)));
    ASSERT_OK(pair->ps()->Send(EndOf(2, absl::AbortedError("no"))));
    pair->Settle();
    EXPECT_EQ(pair->ps_end->lines(),
              (Lines{"open /job:worker/replica:0/task:0 41", "bind 1 session graph",
                     "run step=1 number=1 timeout_us=0 args=0", "tensors step=1 0",
                     "run step=2 number=1 timeout_us=0 args=0", "tensors step=2 0",
                     "run step=3 number=1 timeout_us=0 args=0", "tensors step=3 0",
                     "cancel step=9 by the test", "unbind 1"}));
    EXPECT_EQ(pair->worker_end->lines(),
              (Lines{"open /job:ps/replica:0/task:0 42", "end step=1 OK", "end step=2 no"}));
  });
}

// covers: clusters: tensors of any dtype, size, dead or in a loop, arrive over a link once and as
//   they were
TEST(LinkPromisesTest, EachTensorArrivesOnceAsItWas) {
  ForEachOpen([](LinkPair* pair) {
    std::string long_text(100'000, 'x');
    std::vector<SentTensor> sent = {
        Numbered(0, Tensor::Vector<float>({1, 2, 3})),
        Numbered(1, Tensor::Of({"a", ""})),
        Numbered(2, Large(7)),
        Numbered(3, Tensor::Scalar(true)),
        Numbered(4, *Tensor::Zeros(DT_INT64, *Shape::Make({0, 5}))),
        Numbered(5, Tensor::Scalar(long_text)),
        Numbered(6, Large(8)),
        Numbered(7, Tensor()),
        Numbered(7, Tensor::Scalar<int64_t>(70)),
        // Over bytes those that fit travel as int32, up to 1 MiB; in parts above 64 KiB.
        Numbered(8, Ids(1'000, INT32_MIN)),
        Numbered(9, Ids(1'000, int64_t{1} << 31)),
        Numbered(10, Ids(50'000, INT32_MAX)),
        Numbered(11, Ids(50'000, INT64_MIN)),
        Numbered(12, Ids(200'000, 7)),
    };
    sent[7].is_dead = true;
    sent[8].in_loop = true;
    sent[8].frame_id = 5;
    sent[8].iteration = 3;
    for (const size_t i : {size_t{0}, size_t{7}, size_t{8}, size_t{12}}) {  // the last in parts
      sent[i].ready_ns = 1'700'000'000'000'000'000 + static_cast<int64_t>(i);
      sent[i].left_ns = 2 * sent[i].ready_ns;
    }
    ASSERT_OK(pair->worker()->Send(Of(7, sent)));
    pair->Settle();
    std::vector<SentTensor> got = pair->ps_end->tensors();
    ASSERT_EQ(got.size(), sent.size());
    // Large ones may come later.
    std::stable_sort(got.begin(), got.end(), [](const SentTensor& a, const SentTensor& b) {
      return std::make_pair(a.index, a.in_loop) < std::make_pair(b.index, b.in_loop);
    });
    for (size_t i = 0; i < sent.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(got[i].index, sent[i].index);
      EXPECT_EQ(got[i].is_dead, sent[i].is_dead);
      EXPECT_EQ(got[i].in_loop, sent[i].in_loop);
      EXPECT_EQ(got[i].frame_id, sent[i].frame_id);
      EXPECT_EQ(got[i].iteration, sent[i].iteration);
      EXPECT_EQ(got[i].ready_ns, sent[i].ready_ns);
      EXPECT_EQ(got[i].left_ns, sent[i].left_ns);
      ASSERT_EQ(got[i].value.has_value(), sent[i].value.has_value());
      if (sent[i].value.has_value()) ExpectTensorEqual(got[i].value, sent[i].value);
    }
  });
}

// covers: clusters: the error of a step comes over a link with its code, text and kind
TEST(LinkPromisesTest, TheErrorOfAStepKeepsItsCodeTextAndKind) {
  ForEachOpen([](LinkPair* pair) {
    Status status = absl::AbortedError("the run is over");
    status.SetPayload(kRunEndKind, absl::Cord("why"));
    EndFrame end = EndOf(7, status);
    end.num_results = 3;
    end.has_report = true;
    ASSERT_OK(pair->ps()->Send(end));
    pair->Settle();
    const EndFrame got = pair->worker_end->last_end();
    EXPECT_EQ(got.step_id, 7);
    EXPECT_EQ(got.status, status);
    EXPECT_EQ(got.num_results, 3u);
    EXPECT_TRUE(got.has_report);
  });
}

// covers: clusters: a sender hears from its link when its tensors are in the peer's memory: with
//   the peer's next message, or when the peer flushes (loans, Stop's wait for what is taken)
TEST(LinkPromisesTest, WhatIsInThePeersMemoryIsAcknowledged) {
  ForEachOpen([](LinkPair* pair) {
    ASSERT_OK(
        pair->ps()->Send(Of(7, {Numbered(0, Tensor::Vector<float>({1})), Numbered(1, Large(1))})));
    pair->Settle();
    ASSERT_OK(pair->worker()->Send(RunOf(8)));
    pair->Settle();
    EXPECT_EQ(pair->ps_end->received(7), 2u);
    EXPECT_EQ(pair->worker_end->received(7), 0u);
    // A step after which the receiver has nothing to say.
    ASSERT_OK(pair->ps()->Send(Of(9, {Numbered(0, Tensor::Vector<float>({1}))})));
    pair->Settle();
    pair->worker()->Flush();
    pair->Settle();
    EXPECT_EQ(pair->ps_end->received(9), 1u);
    EXPECT_EQ(pair->ps()->queued_bytes(), 0);
  });
}

// covers: clusters: what a task says to have taken, its peer hears before the answer to its
//   question, and before the farewell; what it does not, the peer does not hear
TEST(LinkPromisesTest, TheAnswerComesBehindWhatWasAcknowledged) {
  ForEachKind([](LinkPair* pair) {
    pair->worker_end->acknowledges = true;
    pair->Settle();
    ASSERT_TRUE(pair->ps_end->link() != nullptr);
    Mutex mu;
    std::vector<uint64_t> heard;  // at each answer
    const auto answers = [&] {
      MutexLock lock(&mu);
      return heard.size();
    };
    const auto ask = [&](int64_t step_id) {
      const size_t before = answers();
      pair->ps()->Ask([&, step_id] {
        const uint64_t received = pair->ps_end->received(step_id);
        MutexLock lock(&mu);
        heard.push_back(received);
      });
      for (int i = 0; i < 20'000 && answers() == before; ++i) {
        pair->Settle();
        if (answers() == before) absl::SleepFor(absl::Milliseconds(1));
      }
    };
    ASSERT_OK(
        pair->ps()->Send(Of(7, {Numbered(0, Tensor::Vector<float>({1})), Numbered(1, Large(1))})));
    pair->Settle();
    ask(7);
    pair->worker()->Acknowledge(7, 2);
    ask(7);
    // Not an edge: no one acknowledges it.
    SentTensors result = Of(8, {Numbered(0, Tensor::Vector<float>({1}))});
    result.purpose = TensorsPurpose::kResults;
    ASSERT_OK(pair->ps()->Send(std::move(result)));
    pair->Settle();
    ask(8);
    pair->worker()->Acknowledge(9, 3);  // its peer may be told of any step
    pair->worker()->Close(absl::UnavailableError("the trainer leaves"));
    pair->Settle();
    EXPECT_EQ(pair->ps_end->num_losses(), 1);
    EXPECT_EQ(pair->ps_end->received(9), 3u);
    const auto asked = std::make_shared<int>(0);
    pair->ps()->Ask([asked, &heard] { heard.push_back(99); });
    pair->Settle();
    EXPECT_EQ(asked.use_count(), 1);
    EXPECT_EQ(heard, (std::vector<uint64_t>{0, 2, 0}));
  });
}

// covers: clusters: tensors of a step that failed or was cancelled, and that wait on a link, do not
//   leave any more
TEST(LinkPromisesTest, AnEndedStepDropsWhatWaits) {
  ForEachOpen([](LinkPair* pair) {
    {
      LinkCork cork;
      ASSERT_OK(pair->ps()->Send(Of(1, {Numbered(0, Tensor::Vector<float>({1}))})));
      ASSERT_OK(pair->ps()->Send(Of(2, {Numbered(0, Tensor::Vector<float>({2}))})));
      ASSERT_OK(pair->ps()->Send(Of(3, {Numbered(0, Tensor::Vector<float>({3}))})));
      ASSERT_OK(pair->ps()->Send(CancelFrame{1, absl::CancelledError("stop")}));
      ASSERT_OK(pair->ps()->Send(EndOf(2, absl::InternalError("broken"))));
      ASSERT_OK(pair->ps()->Send(EndOf(3)));
    }
    pair->Settle();
    EXPECT_EQ(pair->worker_end->lines(),
              (Lines{"open /job:ps/replica:0/task:0 42", "tensors step=3 0", "cancel step=1 stop",
                     "end step=2 broken", "end step=3 OK"}));
    EXPECT_EQ(pair->ps()->queued_bytes(), 0);
  });
}

// A small and a large report: the second one comes behind CANCEL where it comes in parts.
// covers: clusters: a CANCEL of what a step pushes does not drop the report of its part
TEST(LinkPromisesTest, AReportOutlivesTheCancelOfItsStep) {
  ForEachOpen([](LinkPair* pair) {
    {
      LinkCork cork;
      for (const int64_t step : {1, 2}) {
        SentTensors report =
            Of(step, {Numbered(7, step == 1 ? Tensor::Vector<float>({1}) : Large(1))});
        report.purpose = TensorsPurpose::kReport;
        ASSERT_OK(pair->ps()->Send(Of(step, {Numbered(0, Tensor::Vector<float>({1}))})));
        ASSERT_OK(pair->ps()->Send(std::move(report)));
        ASSERT_OK(pair->ps()->Send(EndOf(step)));
        ASSERT_OK(pair->ps()->Send(CancelFrame{step, absl::CancelledError("stop")}));
      }
    }
    pair->Settle();
    const Lines lines = pair->worker_end->lines();
    for (const int64_t step : {1, 2}) {
      EXPECT_EQ(std::count(lines.begin(), lines.end(), absl::StrCat("tensors step=", step, " 7")),
                1);
      EXPECT_EQ(std::count(lines.begin(), lines.end(), absl::StrCat("cancel step=", step, " stop")),
                1);
    }
    EXPECT_EQ(pair->worker_end->num_losses(), 0);
    EXPECT_EQ(pair->ps()->queued_bytes(), 0);
  });
}

// covers: clusters: what a thread sends behind a cork leaves when the outermost cork ends
TEST(LinkPromisesTest, ACorkHoldsUntilItEnds) {
  ForEachOpen([](LinkPair* pair) {
    {
      LinkCork cork;
      ASSERT_OK(pair->worker()->Send(RunOf(1)));
      {
        LinkCork inner;
        ASSERT_OK(pair->worker()->Send(Of(1, {Numbered(0, Tensor::Vector<float>({1, 2}))})));
      }
      pair->Settle();
      EXPECT_EQ(pair->ps_end->lines().size(), 1u);  // OnOpen
      EXPECT_GE(pair->worker()->queued_bytes(), 8);
    }
    pair->Settle();
    EXPECT_EQ(pair->ps_end->lines().size(), 3u);
    EXPECT_EQ(pair->worker()->queued_bytes(), 0);
    // Larger than what a cork holds.
    LinkCork cork;
    ASSERT_OK(pair->worker()->Send(Of(2, {Numbered(0, Large(1))})));
    pair->Settle();
    EXPECT_EQ(pair->ps_end->tensors().size(), 2u);
  });
}

// covers: clusters: a link that is closed is lost at both ends once, last, with the reason; the
// peer
//   knows that it was closed and not broken (a caller that is gone, a server that stops)
TEST(LinkPromisesTest, ACloseIsHeardAtBothEndsOnceAndLast) {
  ForEachOpen([](LinkPair* pair) {
    ASSERT_OK(pair->worker()->Send(RunOf(1)));
    pair->worker()->Close(absl::UnavailableError("the trainer leaves"));
    pair->Settle();
    pair->worker()->Close(absl::UnavailableError("again"));
    pair->ps()->Close(absl::UnavailableError("I, too"));
    pair->Settle();
    EXPECT_EQ(pair->worker_end->num_losses(), 1);
    EXPECT_FALSE(pair->worker_end->lost_by_peer());
    EXPECT_STATUS(pair->worker_end->lost(), absl::StatusCode::kUnavailable, "the trainer leaves");
    EXPECT_EQ(pair->ps_end->num_losses(), 1);
    EXPECT_TRUE(pair->ps_end->lost_by_peer());
    EXPECT_STATUS(
        pair->ps_end->lost(), absl::StatusCode::kUnavailable,
        "Link to /job:worker/replica:0/task:0 was closed by the peer: the trainer leaves");
    const Lines at_ps = pair->ps_end->lines();
    ASSERT_EQ(at_ps.size(), 3u);
    EXPECT_EQ(at_ps[1], "run step=1 number=1 timeout_us=0 args=0");
    EXPECT_TRUE(absl::StartsWith(at_ps[2], "lost by peer: ")) << at_ps[2];
    // Nothing can be sent any more, and the error says why.
    EXPECT_STATUS(pair->worker()->Send(RunOf(2)), absl::StatusCode::kUnavailable,
                  "the trainer leaves");
    EXPECT_STATUS(pair->ps()->Send(RunOf(2)), absl::StatusCode::kUnavailable, "the trainer leaves");
    pair->worker()->Flush();
    pair->Settle();
    EXPECT_EQ(pair->ps_end->lines().size(), 3u);
    EXPECT_EQ(pair->worker()->queued_bytes(), 0);
  });
}

// covers: clusters: a call of a link's end may send, also in answer to an answer, without a deep
//   stack and without a lock of the link
TEST(LinkPromisesTest, AnEndMayAnswerWithinItsCalls) {
  ForEachKind([](LinkPair* pair) {
    constexpr int64_t kSteps = 20'000;
    const auto answer_to = [](const std::shared_ptr<RecordingEnd>& end) {
      return [end = end.get()](const RunFrame& run) {
        if (run.step_id < kSteps) {
          EXPECT_OK(end->link()->Send(RunOf(run.step_id + 1)));
        }
      };
    };
    pair->worker_end->on_run = answer_to(pair->worker_end);
    pair->ps_end->on_run = answer_to(pair->ps_end);
    pair->Settle();
    ASSERT_OK(pair->worker()->Send(RunOf(1)));
    pair->Settle();
    EXPECT_EQ(pair->ps_end->lines().size() + pair->worker_end->lines().size(),
              static_cast<size_t>(kSteps) + 2);
  });
}

// covers: clusters: a step's variables, gradients and end take their turns over a link
TEST(LinkPromisesTest, AStepRunsAsItsMessagesCome) {
  ForEachKind([](LinkPair* pair) {
    RecordingEnd* const ps = pair->ps_end.get();
    RecordingEnd* const worker = pair->worker_end.get();
    ps->on_run = [ps](const RunFrame& run) {
      LinkCork cork;
      EXPECT_OK(ps->link()->Send(
          Of(run.step_id, {Numbered(0, Tensor::Vector<float>({1})), Numbered(1, Large(2))})));
    };
    int left = 2;
    worker->on_tensors = [worker, &left](const SentTensors& tensors) {
      left -= static_cast<int>(tensors.tensors.size());
      if (left > 0) return;
      EXPECT_OK(worker->link()->Send(
          Of(tensors.step_id, {Numbered(0, Large(3)), Numbered(1, Tensor::Vector<float>({4}))})));
    };
    int gradients_left = 2;
    ps->on_tensors = [ps, &gradients_left](const SentTensors& tensors) {
      gradients_left -= static_cast<int>(tensors.tensors.size());
      if (gradients_left > 0) return;
      EXPECT_OK(ps->link()->Send(EndOf(tensors.step_id)));
    };
    pair->Settle();
    ASSERT_OK(pair->worker()->Send(RunOf(5)));
    pair->Settle();
    EXPECT_EQ(worker->lines().back(), "end step=5 OK");
    // Nobody waits for an acknowledgement of its own: all of them came with what was sent anyway.
    EXPECT_EQ(ps->received(5), 2u);
    EXPECT_EQ(worker->received(5), 2u);
  });
}

// covers: clusters: what no link can carry is refused where it is sent, nothing of it leaves, and
//   the link goes on
TEST(LinkPromisesTest, WhatCannotTravelIsRefusedWhereItIsSent) {
  ForEachOpen([](LinkPair* pair) {
    Link* const link = pair->worker();
    const Tensor one = Tensor::Vector<float>({1});
    EXPECT_STATUS(link->Send(Of(1, {Numbered(0, one), Numbered(3, Tensor())})),
                  absl::StatusCode::kInvalidArgument,
                  "Link: tensor 3 of step 1 must have a value, got none");
    EXPECT_STATUS(link->Send(Of(1, {Numbered(2, one), Numbered(1, one), Numbered(2, one)})),
                  absl::StatusCode::kInvalidArgument,
                  "each tensor of step 1 must be sent once, got number 2 twice");
    SentTensor in_loop = Numbered(0, one);
    in_loop.in_loop = true;
    in_loop.iteration = -1;
    EXPECT_STATUS(link->Send(Of(1, {in_loop})), absl::StatusCode::kInvalidArgument,
                  "iteration of tensor 0 of step 1 must be >= 0, got -1");
    EXPECT_STATUS(link->Send(CancelFrame{1, absl::OkStatus()}), absl::StatusCode::kInvalidArgument,
                  "CANCEL of step 1 must have an error");
    EXPECT_OK(link->Send(Of(1, {})));  // nothing to send
    EXPECT_EQ(link->queued_bytes(), 0);
    ASSERT_OK(link->Send(RunOf(2)));
    pair->Settle();
    EXPECT_EQ(pair->ps_end->lines(), (Lines{"open /job:worker/replica:0/task:0 41",
                                            "run step=2 number=1 timeout_us=0 args=0"}));
  });
}

}  // namespace
}  // namespace millrace
