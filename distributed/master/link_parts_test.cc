// SPDX-License-Identifier: Apache-2.0
//
// LinkParts whose tasks, at the other ends of links, are the test.
#include "distributed/master/link_parts.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/in_process_link.h"
#include "distributed/link/link.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/transport/run_times.h"
#include "gtest/gtest.h"
#include "proto/worker.pb.h"

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

class OneLink : public PeerLinks {
 public:
  void Get(absl::string_view task, Got got) override {
    if (holds) return held.push_back(std::move(got));
    if (link == nullptr) return got(absl::UnavailableError(absl::StrCat(task, " is not there")));
    got(link);
  }
  std::shared_ptr<Link> link;
  bool holds = false;  // it is still being dialled
  std::vector<Got> held;
};

// A link that takes all, and lets a test act before it takes a BIND.
class ActingLink : public Link {
 public:
  ActingLink() { set_peer({kPs, 2}); }
  Status Send(LinkMessage message) override {
    if (const auto* const bind = std::get_if<BindFrame>(&message)) {
      if (before_bind) std::exchange(before_bind, nullptr)();
      sent.push_back(absl::StrCat("bind ", bind->number));
    } else if (const auto* const unbind = std::get_if<UnbindFrame>(&message)) {
      sent.push_back(absl::StrCat("unbind ", unbind->number));
    } else if (const auto* const run = std::get_if<RunFrame>(&message)) {
      sent.push_back(absl::StrCat("run ", run->number));
    } else {
      sent.push_back("another");
    }
    return absl::OkStatus();
  }
  void Flush() override {}
  void Acknowledge(int64_t, uint64_t) override {}
  void Ask(absl::AnyInvocable<void()>) override {}
  int64_t queued_bytes() const override { return 0; }
  void Close(const Status&) override {}

  std::vector<std::string> sent;
  std::function<void()> before_bind;
};

// What of an end is a master's.
class PartsEnd : public RecordingEnd {
 public:
  explicit PartsEnd(std::shared_ptr<LinkParts> parts) : parts_(std::move(parts)) {}
  void OnOpen(std::shared_ptr<Link> link) override {
    link_ = link.get();
    parts_->OnOpen(link);
    RecordingEnd::OnOpen(std::move(link));
  }
  void OnTensors(SentTensors tensors) override { parts_->OnReport(link_, std::move(tensors)); }
  void OnEnd(EndFrame end) override { parts_->OnEnd(link_, std::move(end)); }
  void OnLost(const Status& status, bool) override { parts_->OnLost(link_, status); }

 private:
  const std::shared_ptr<LinkParts> parts_;
  const Link* link_ = nullptr;
};

class LinkPartsTest : public ::testing::Test {
 protected:
  LinkPartsTest() { links_.link = OpenInProcessLink({kWorker, 1}, own_, {kPs, 2}, peer_).first; }
  ~LinkPartsTest() override {
    if (links_.link != nullptr) links_.link->Close(absl::AbortedError("the test is over"));
    own_->LetGo();
    peer_->LetGo();
  }
  // What has been said of a part: empty until it has ended.
  std::shared_ptr<std::vector<Status>> Run(int64_t step,
                                           absl::Duration timeout = absl::InfiniteDuration(),
                                           const std::string& graph = "graph",
                                           const LinkedReport& report = {}) {
    auto ended = std::make_shared<std::vector<Status>>();
    parts_->Run(
        {kPs, "session", graph}, step, clock_.Now() + timeout, &cancellation_,
        [ended](const Status& status) { ended->push_back(status); }, report);
    return ended;
  }
  std::shared_ptr<std::vector<Status>> RunTraced(int64_t step,
                                                 tensorflow::RunGraphResponse* response) {
    return Run(step, absl::InfiniteDuration(), "graph",
               {.wants_trace = true, .wants_graphs = true, .response = response});
  }
  void Report(int64_t step, Tensor value) {
    SentTensors report;
    report.step_id = step;
    report.purpose = TensorsPurpose::kReport;
    report.tensors.emplace_back().value = std::move(value);
    EXPECT_OK(peer_->link()->Send(std::move(report)));
  }
  void EndWithReport(int64_t step) {
    EndFrame end;
    end.step_id = step;
    end.has_report = true;
    EXPECT_OK(peer_->link()->Send(std::move(end)));
  }
  static Tensor BytesOf(const tensorflow::RunGraphResponse& response) {
    const std::string bytes = response.SerializeAsString();
    return Tensor::Vector<uint8_t>(std::vector<uint8_t>(bytes.begin(), bytes.end()));
  }
  void End(int64_t step, const Status& status) {
    EndFrame end;
    end.step_id = step;
    end.status = status;
    EXPECT_OK(peer_->link()->Send(std::move(end)));
  }
  std::vector<std::string> Came() const {
    std::vector<std::string> lines = peer_->lines();
    lines.erase(lines.begin());  // "open ..."
    return lines;
  }

  OneLink links_;
  FakeClock clock_;
  const std::shared_ptr<LinkParts> parts_ = std::make_shared<LinkParts>(&links_, &clock_);
  const std::shared_ptr<PartsEnd> own_ = std::make_shared<PartsEnd>(parts_);
  const std::shared_ptr<RecordingEnd> peer_ = std::make_shared<RecordingEnd>();
  CancellationManager cancellation_;
};

TEST_F(LinkPartsTest, AGraphIsBoundOnceAndRunByItsNumber) {
  const auto first = Run(1);
  const auto second = Run(2, absl::Milliseconds(5));
  const auto overdue = Run(3, -absl::Seconds(1));
  const auto other = Run(4, absl::InfiniteDuration(), "other");
  EXPECT_EQ(Came(), (std::vector<std::string>{
                        "bind 1 session graph", "run step=1 number=1 timeout_us=0 args=0",
                        "run step=2 number=1 timeout_us=5000 args=0",
                        "run step=3 number=1 timeout_us=1 args=0", "bind 2 session other",
                        "run step=4 number=2 timeout_us=0 args=0"}));
  EXPECT_EQ(parts_->num_bound(), 2);
  End(2, absl::OkStatus());
  End(1, absl::InternalError("the kernel failed"));
  ASSERT_EQ(first->size(), 1u);
  EXPECT_STATUS((*first)[0], absl::StatusCode::kInternal, "the kernel failed");
  ASSERT_EQ(second->size(), 1u);
  EXPECT_OK((*second)[0]);
  EXPECT_TRUE(overdue->empty());
  parts_->Forget({kPs, "session", "graph"});
  parts_->Forget({kPs, "session", "never run"});
  EXPECT_EQ(Came().back(), "unbind 1");
  EXPECT_EQ(parts_->num_bound(), 1);
}

// A task refuses a BIND by the END of its RUN.
TEST_F(LinkPartsTest, AGraphThatWasRefusedIsBoundAgain) {
  const struct {
    Status end;
    bool binds;
  } kCases[] = {
      {absl::ResourceExhaustedError("graphs of one link must be at most 2, got 3"), true},
      {absl::InvalidArgumentError("its graph must be bound, got number 1"), true},
      {absl::AbortedError("its session is over"), false},
      {absl::OkStatus(), false},
  };
  Run(99, absl::InfiniteDuration(), "other");
  int64_t step = 1;
  Run(step);
  for (const auto& c : kCases) {
    End(step, c.end);
    const size_t before = Came().size();
    Run(++step);
    EXPECT_EQ(Came().size(), before + (c.binds ? 2u : 1u)) << c.end;
    if (c.binds) {
      EXPECT_EQ(Came()[before], "bind 2 session graph");
    }
  }
  Run(++step, absl::InfiniteDuration(), "other");  // which nobody has refused
  EXPECT_TRUE(absl::StartsWith(Came().back(), "run "));
  EXPECT_FALSE(absl::StartsWith(Came()[Came().size() - 2], "bind "));
  EXPECT_EQ(parts_->num_bound(), 2);
}

TEST_F(LinkPartsTest, ACancelledPartEndsAtOnceAndItsEndIsDropped) {
  const auto ended = Run(1);
  cancellation_.StartCancel();
  ASSERT_EQ(ended->size(), 1u);
  EXPECT_TRUE(absl::IsCancelled((*ended)[0])) << (*ended)[0];
  EXPECT_EQ(Came().back(), "cancel step=1 Step was cancelled by the master.");
  End(1, absl::CancelledError("too late"));
  EXPECT_EQ(ended->size(), 1u);
  // What is cancelled before it begins is not sent.
  const auto lines = Came().size();
  const auto never = Run(2);
  ASSERT_EQ(never->size(), 1u);
  EXPECT_TRUE(absl::IsCancelled((*never)[0])) << (*never)[0];
  EXPECT_EQ(Came().size(), lines);
}

TEST_F(LinkPartsTest, ACancelledPartDoesNotWaitForItsLink) {
  links_.holds = true;
  const auto ended = Run(1);
  EXPECT_TRUE(ended->empty());
  cancellation_.StartCancel();
  ASSERT_EQ(ended->size(), 1u);
  EXPECT_TRUE(absl::IsCancelled((*ended)[0])) << (*ended)[0];
  ASSERT_EQ(links_.held.size(), 1u);
  links_.held[0](links_.link);
  EXPECT_TRUE(Came().empty());
  EXPECT_EQ(ended->size(), 1u);
}

TEST_F(LinkPartsTest, TheTimeThatALinkTakesToOpenIsThePartsOwn) {
  links_.holds = true;
  const auto ended = Run(1, absl::Seconds(30));
  const auto overdue = Run(2, absl::Seconds(5));
  clock_.Advance(absl::Seconds(8));
  ASSERT_EQ(links_.held.size(), 2u);
  for (auto& got : links_.held) got(links_.link);
  EXPECT_EQ(Came(), (std::vector<std::string>{"bind 1 session graph",
                                              "run step=1 number=1 timeout_us=22000000 args=0",
                                              "run step=2 number=1 timeout_us=1 args=0"}));
}

// The master cancels the part, and forgets its graph, while another thread sends BIND.
TEST_F(LinkPartsTest, AGraphThatIsForgottenBeforeItIsBoundLeavesNothing) {
  const auto link = std::make_shared<ActingLink>();
  const auto inner = std::exchange(links_.link, link);
  parts_->OnOpen(link);
  const LinkedGraph graph = {kPs, "session", "graph"};
  link->before_bind = [&] {
    cancellation_.StartCancel();
    parts_->Forget(graph);
  };
  const auto ended = Run(1);
  ASSERT_EQ(ended->size(), 1u);
  EXPECT_TRUE(absl::IsCancelled((*ended)[0])) << (*ended)[0];
  EXPECT_EQ(link->sent, (std::vector<std::string>{"unbind 1", "bind 1", "unbind 1"}));
  EXPECT_EQ(parts_->num_bound(), 0);
  // Nor is it taken for bound when it is run again.
  CancellationManager cancellation;
  std::vector<Status> again;
  parts_->Run(graph, 2, absl::InfiniteFuture(), &cancellation,
              [&again](const Status& status) { again.push_back(status); });
  ASSERT_EQ(link->sent.size(), 5u);
  EXPECT_EQ(link->sent[3], "bind 2");
  EXPECT_EQ(link->sent[4], "run 2");
  EXPECT_TRUE(again.empty());
  parts_->OnLost(link.get(), absl::UnavailableError("the test is over"));
  EXPECT_EQ(again.size(), 1u);
  links_.link = inner;
}

TEST_F(LinkPartsTest, ALostLinkEndsItsPartsAndForgetsItsNumbers) {
  const auto ended = Run(1);
  peer_->link()->Close(absl::UnavailableError("Socket closed"));
  ASSERT_EQ(ended->size(), 1u);
  EXPECT_STATUS((*ended)[0], absl::StatusCode::kUnavailable, "Socket closed");
  EXPECT_EQ(parts_->num_bound(), 0);
  // As long as the table has not noticed.
  const auto after = Run(2);
  ASSERT_EQ(after->size(), 1u);
  EXPECT_STATUS((*after)[0], absl::StatusCode::kUnavailable,
                "it was lost before the step was sent");
  links_.link = nullptr;
  const auto without = Run(3);
  ASSERT_EQ(without->size(), 1u);
  EXPECT_STATUS((*without)[0], absl::StatusCode::kUnavailable, "is not there");
}

TEST_F(LinkPartsTest, AnswersThatDoNotFitAreErrorsOrNothing) {
  const auto ended = Run(1);
  End(9, absl::OkStatus());
  EndFrame end;
  end.step_id = 1;
  end.num_results = 2;
  EXPECT_OK(peer_->link()->Send(end));
  ASSERT_EQ(ended->size(), 1u);
  EXPECT_STATUS((*ended)[0], absl::StatusCode::kUnimplemented, "must have no results, got 2");
  End(1, absl::OkStatus());
  EXPECT_EQ(ended->size(), 1u);
  const auto first = Run(2), doubled = Run(2);
  ASSERT_EQ(doubled->size(), 1u);
  EXPECT_STATUS((*doubled)[0], absl::StatusCode::kInternal, "must have one part on ");
  End(2, absl::OkStatus());
  ASSERT_EQ(first->size(), 1u);
  EXPECT_OK((*first)[0]);
}

TEST_F(LinkPartsTest, APartWhoseReportIsWantedEndsWhenBothHaveCome) {
  tensorflow::RunGraphResponse report;
  report.mutable_step_stats()->add_dev_stats()->set_device("of the ps");
  report.add_partition_graph();
  const int64_t now_ns = absl::GetCurrentTimeNanos();
  AddWorkerTimes(now_ns, now_ns, &report);
  for (const bool end_first : {false, true}) {
    tensorflow::RunGraphResponse response;
    const int64_t step = end_first ? 1 : 2;
    const auto ended = RunTraced(step, &response);
    if (end_first) EndWithReport(step);
    Report(7, BytesOf(report));  // a stranger's
    if (!end_first) Report(step, BytesOf(report));
    EXPECT_TRUE(ended->empty());
    if (end_first) Report(step, BytesOf(report));
    if (!end_first) EndWithReport(step);
    ASSERT_EQ(ended->size(), 1u);
    EXPECT_OK((*ended)[0]);
    ASSERT_EQ(response.step_stats().dev_stats_size(), 1);
    EXPECT_EQ(response.step_stats().dev_stats(0).device(), "of the ps");
    EXPECT_EQ(response.partition_graph_size(), 1);
    const auto exchange = ClockExchangeOf(response);
    ASSERT_TRUE(exchange.has_value());
    EXPECT_EQ(exchange->begun_ns, now_ns);
    EXPECT_LE(exchange->asked_ns, exchange->answered_ns);
    const std::vector<std::string> came = Came();
    EXPECT_TRUE(absl::StrContains(came.back(), "args=0 trace graphs")) << came.back();
  }
}

TEST_F(LinkPartsTest, AReportThatDoesNotFitOrDoesNotComeEndsThePart) {
  tensorflow::RunGraphResponse response;
  const Tensor report = BytesOf(response), other = Tensor::Vector<float>({1});
  const Tensor wrong = Tensor::Vector<uint8_t>({0xff, 0xff, 0xff});
  const struct {
    std::function<void(int64_t step)> act;
    std::string error;
  } kCases[] = {
      {[&](int64_t step) { End(step, absl::OkStatus()); }, "when one is wanted, got none"},
      {[&](int64_t step) { End(step, absl::AbortedError("the kernel failed")); },
       "the kernel failed"},
      {[&](int64_t step) { Report(step, other); }, "one report of bytes"},
      {[&](int64_t step) {
         Report(step, report);
         Report(step, report);
       },
       "one report of bytes"},
      {[&](int64_t step) {
         Report(step, wrong);
         EndWithReport(step);
       },
       "must be a RunGraphResponse, got 3 other bytes"},
      {[&](int64_t step) {
         EndWithReport(step);
         EXPECT_TRUE(
             parts_->OnRefused(links_.link.get(), step, absl::ResourceExhaustedError("too large")));
       },
       "too large"},
  };
  int64_t step = 0;
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.error);
    const auto ended = RunTraced(++step, &response);
    c.act(step);
    ASSERT_EQ(ended->size(), 1u);
    EXPECT_TRUE(absl::StrContains((*ended)[0].message(), c.error)) << (*ended)[0];
    // What comes later finds nothing.
    Report(step, report);
    EndWithReport(step);
    EXPECT_EQ(ended->size(), 1u);
  }
  const auto plain = Run(++step);
  const Status refused = absl::ResourceExhaustedError("an edge");
  EXPECT_FALSE(parts_->OnRefused(links_.link.get(), step, refused));
  EXPECT_FALSE(parts_->OnRefused(links_.link.get(), step + 1, refused));
  EXPECT_TRUE(plain->empty());
  EndWithReport(step);
  ASSERT_EQ(plain->size(), 1u);
  EXPECT_STATUS((*plain)[0], absl::StatusCode::kInternal, "got one that is not");
  // The loss of the link, and a cancellation, end what waits for its report.
  const auto cancelled = RunTraced(++step, &response);
  EndWithReport(step);
  EXPECT_TRUE(cancelled->empty());
  cancellation_.StartCancel();
  ASSERT_EQ(cancelled->size(), 1u);
  EXPECT_TRUE(absl::IsCancelled((*cancelled)[0]));
  Report(step, report);
  EXPECT_EQ(cancelled->size(), 1u);
}

TEST_F(LinkPartsTest, ALostLinkEndsAPartThatWaitsForItsReport) {
  tensorflow::RunGraphResponse response;
  const auto ended = RunTraced(1, &response);
  EndWithReport(1);
  EXPECT_TRUE(ended->empty());
  peer_->link()->Close(absl::UnavailableError("Socket closed"));
  ASSERT_EQ(ended->size(), 1u);
  EXPECT_STATUS((*ended)[0], absl::StatusCode::kUnavailable, "Socket closed");
}

}  // namespace
}  // namespace millrace
