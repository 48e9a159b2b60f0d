// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/rest_lanes.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/http/http_server.h"
#include "serving/step_bounds.h"

// covers: serving: a REST request that takes long runs on no loop of the HTTP server; what waits is
//   bounded in number and time

namespace millrace {
namespace {

class FakeRequest : public HttpRequest {
 public:
  explicit FakeRequest(std::string body = "") : body_(std::move(body)) {}
  absl::string_view method() const override { return "POST"; }
  absl::string_view path() const override { return "/"; }
  absl::string_view query() const override { return ""; }
  absl::string_view header(absl::string_view) const override { return ""; }
  absl::Span<const std::pair<absl::string_view, absl::string_view>> headers() const override {
    return {};
  }
  absl::string_view body() const override { return body_; }
  absl::string_view peer() const override { return ""; }
  void Answer(int, HttpHeaders, std::string) override {}
  void OnDisconnect(absl::AnyInvocable<void()> gone) override { gone(); }  // it has left already

 private:
  const std::string body_;
};

// Its body is gzip until a thread unpacks it.
class PackedRequest : public FakeRequest {
 public:
  explicit PackedRequest(bool is_sound) : is_sound_(is_sound) {}
  void OnDisconnect(absl::AnyInvocable<void()>) override {}  // its client stays
  bool is_packed() const override { return !unpacked_by_; }
  bool Unpack() override {
    unpacked_by_ = std::this_thread::get_id();
    return is_sound_;
  }
  std::optional<std::thread::id> unpacked_by() const { return unpacked_by_; }

 private:
  const bool is_sound_;
  std::optional<std::thread::id> unpacked_by_;
};

// Which thread ran it, and with which bounds.
struct Ran {
  std::optional<std::thread::id> thread;
  bool was_cancelled = false;
  bool succeeds = true;
  Notification done;
};

RestLanes::Work NoteIn(Ran* ran) {
  return [ran](HttpRequest*, const StepBounds& bounds) {
    ran->thread = std::this_thread::get_id();
    ran->was_cancelled = bounds.cancellation != nullptr && bounds.cancellation->IsCancelled();
    ran->done.Notify();
    return ran->succeeds;
  };
}

Status RunIn(RestLanes* lanes, absl::string_view kind, RestLanes::Work work, std::string body = "",
             absl::Time deadline = absl::InfiniteFuture()) {
  std::unique_ptr<HttpRequest> request = std::make_unique<FakeRequest>(std::move(body));
  const Status status = lanes->Run(&request, kind, deadline, std::move(work));
  EXPECT_EQ(request == nullptr, status.ok()) << "it is taken, or left";
  return status;
}

TEST(RestLanesTest, WhatIsKnownToBeShortRunsOnTheLoopThatReadIt) {
  FakeClock clock;
  RestLanes lanes({.num_threads = 1, .clock = &clock});
  const auto here = std::this_thread::get_id();
  Ran first, second, third, other;
  ASSERT_OK(RunIn(&lanes, "a", NoteIn(&first)));
  first.done.Wait();
  EXPECT_NE(first.thread, here) << "nothing is known of it";
  EXPECT_TRUE(first.was_cancelled) << "its client has gone";
  // The thread learns before it takes the next one.
  ASSERT_OK(RunIn(&lanes, "b", NoteIn(&other)));
  other.done.Wait();
  EXPECT_NE(other.thread, here);
  ASSERT_OK(RunIn(&lanes, "a", NoteIn(&second)));
  EXPECT_EQ(second.thread, here);
  EXPECT_FALSE(second.was_cancelled);
  ASSERT_OK(RunIn(&lanes, "a", NoteIn(&third), std::string(100'000, 'x')));
  third.done.Wait();
  EXPECT_NE(third.thread, here) << "it is large";
  EXPECT_EQ(lanes.num_on_loops(), 1);
  EXPECT_EQ(lanes.num_handed_over(), 3);
}

TEST(RestLanesTest, APackedBodyIsUnpackedOnNoLoop) {
  FakeClock clock;
  RestLanes lanes({.num_threads = 1, .clock = &clock});
  Ran first, other;
  ASSERT_OK(RunIn(&lanes, "a", NoteIn(&first)));
  first.done.Wait();
  ASSERT_OK(RunIn(&lanes, "b", NoteIn(&other)));  // behind it: it has been learnt from
  other.done.Wait();
  // "a" is known to be short, but not this one.
  std::unique_ptr<HttpRequest> sound = std::make_unique<PackedRequest>(true);
  std::optional<std::thread::id> unpacked_by, ran_by;
  Notification done;
  ASSERT_OK(
      lanes.Run(&sound, "a", absl::InfiniteFuture(), [&](HttpRequest* request, const StepBounds&) {
        unpacked_by = static_cast<PackedRequest*>(request)->unpacked_by();
        ran_by = std::this_thread::get_id();
        done.Notify();
        return true;
      }));
  done.Wait();
  EXPECT_TRUE(unpacked_by.has_value());
  EXPECT_EQ(unpacked_by, ran_by);
  EXPECT_NE(ran_by, std::this_thread::get_id());
  // One that cannot be unpacked is answered by that, and does not run.
  std::unique_ptr<HttpRequest> broken = std::make_unique<PackedRequest>(false);
  bool broken_ran = false;
  ASSERT_OK(lanes.Run(&broken, "a", absl::InfiniteFuture(), [&](HttpRequest*, const StepBounds&) {
    broken_ran = true;
    return true;
  }));
  Ran last;
  ASSERT_OK(RunIn(&lanes, "c", NoteIn(&last)));  // behind it, on the one thread
  last.done.Wait();
  EXPECT_FALSE(broken_ran);
  EXPECT_EQ(lanes.num_on_loops(), 0);
}

// It is answered, and neither unpacked nor run.
class LateRequest : public PackedRequest {
 public:
  LateRequest(bool is_gone, int* status, bool* was_unpacked)
      : PackedRequest(true), is_gone_(is_gone), status_(status), was_unpacked_(was_unpacked) {}
  ~LateRequest() override { *was_unpacked_ = unpacked_by().has_value(); }
  void Answer(int status, HttpHeaders, std::string) override { *status_ = status; }
  void OnDisconnect(absl::AnyInvocable<void()> gone) override {
    if (is_gone_) gone();
  }

 private:
  const bool is_gone_;
  int* const status_;
  bool* const was_unpacked_;
};

TEST(RestLanesTest, APackedBodyThatNobodyWaitsForIsNotUnpacked) {
  FakeClock clock;
  for (const bool is_gone : {false, true}) {
    SCOPED_TRACE(is_gone);
    int status = 0;
    bool was_unpacked = true, has_run = false;
    {
      RestLanes lanes({.num_threads = 1, .clock = &clock});
      std::unique_ptr<HttpRequest> request =
          std::make_unique<LateRequest>(is_gone, &status, &was_unpacked);
      ASSERT_OK(lanes.Run(&request, "a", is_gone ? absl::InfiniteFuture() : clock.Now(),
                          [&](HttpRequest*, const StepBounds&) {
                            has_run = true;
                            return true;
                          }));
    }
    EXPECT_EQ(status, 504);
    EXPECT_FALSE(was_unpacked);
    EXPECT_FALSE(has_run);
  }
}

TEST(RestLanesTest, OneThatTookLongIsHandedOverUntilThatHasFaded) {
  FakeClock clock;
  RestLanes lanes({.num_threads = 1, .clock = &clock});
  const auto run = [&](absl::Duration takes) {
    Notification done;
    EXPECT_OK(RunIn(&lanes, "a", [&](HttpRequest*, const StepBounds&) {
      clock.Advance(takes);
      done.Notify();
      return true;
    }));
    done.Wait();
    // Behind it: it has been learnt from.
    Ran ran;
    EXPECT_OK(RunIn(&lanes, "other", NoteIn(&ran), std::string(100'000, 'x')));
    ran.done.Wait();
  };
  run(absl::Microseconds(10));
  run(absl::Seconds(10));  // on the loop: it was short before
  EXPECT_EQ(lanes.num_on_loops(), 1);
  run(absl::Microseconds(10));
  EXPECT_EQ(lanes.num_on_loops(), 1);
  // 10 s fade to 1 ms by an eighth at a time: log(1e4) / log(8 / 7) = 69 times.
  for (int i = 0; i < 80; ++i) run(absl::Microseconds(10));
  EXPECT_GT(lanes.num_on_loops(), 1);
}

TEST(RestLanesTest, WhatFailsSaysNothingOfTheOthers) {
  FakeClock clock;
  RestLanes lanes({.num_threads = 1, .clock = &clock});
  for (int i = 0; i < 3; ++i) {
    Ran refused;
    refused.succeeds = false;
    ASSERT_OK(RunIn(&lanes, "a", NoteIn(&refused)));
    refused.done.Wait();
  }
  EXPECT_EQ(lanes.num_on_loops(), 0) << "a bad request is short, and its kind is still new";
}

TEST(RestLanesTest, WithoutPlacesToWaitItStillRuns) {
  FakeClock clock;
  RestLanes lanes({.num_threads = 1, .max_waiting = 0, .clock = &clock});
  Notification runs, may_end;
  ASSERT_OK(RunIn(&lanes, "blocks", [&](HttpRequest*, const StepBounds&) {
    runs.Notify();
    may_end.Wait();
    return true;
  }));
  runs.Wait();
  Ran refused;
  EXPECT_STATUS(RunIn(&lanes, "any", NoteIn(&refused)), absl::StatusCode::kResourceExhausted,
                "Too many requests wait");
  may_end.Notify();
}

TEST(RestLanesTest, AllAreHandedOverWhereTheyMayWait) {
  FakeClock clock;
  RestLanes lanes({.num_threads = 1, .hand_over_all = true, .clock = &clock});
  for (int i = 0; i < 3; ++i) {
    Ran ran;
    ASSERT_OK(RunIn(&lanes, "a", NoteIn(&ran)));
    ran.done.Wait();
  }
  EXPECT_EQ(lanes.num_on_loops(), 0);
}

TEST(RestLanesTest, WhatWaitsIsBoundedInNumberAndTime) {
  FakeClock clock;
  RestLanes lanes({.num_threads = 1, .max_waiting = 2, .clock = &clock});
  // Known to take 10 s.
  Notification learnt;
  ASSERT_OK(RunIn(&lanes, "slow", [&](HttpRequest*, const StepBounds&) {
    clock.Advance(absl::Seconds(10));
    learnt.Notify();
    return true;
  }));
  learnt.Wait();
  Notification runs, may_end;
  ASSERT_OK(RunIn(&lanes, "blocks", [&](HttpRequest*, const StepBounds&) {
    runs.Notify();
    may_end.Wait();
    return true;
  }));
  runs.Wait();
  Ran waits, second, refused;
  ASSERT_OK(RunIn(&lanes, "slow", NoteIn(&waits)));
  EXPECT_STATUS(RunIn(&lanes, "any", NoteIn(&refused), "", clock.Now() + absl::Seconds(9)),
                absl::StatusCode::kResourceExhausted, "would take all of its time");
  ASSERT_OK(RunIn(&lanes, "any", NoteIn(&second), "", clock.Now() + absl::Seconds(11)));
  EXPECT_EQ(lanes.num_waiting(), 2);
  EXPECT_STATUS(RunIn(&lanes, "any", NoteIn(&refused)), absl::StatusCode::kResourceExhausted,
                "Too many requests wait");
  may_end.Notify();
  second.done.Wait();
  EXPECT_EQ(lanes.num_waiting(), 0);
  EXPECT_FALSE(refused.thread.has_value());
  // Nothing waits: a short time is enough.
  Ran last;
  EXPECT_OK(RunIn(&lanes, "any", NoteIn(&last), "", clock.Now() + absl::Seconds(1)));
  last.done.Wait();
}

TEST(RestLanesTest, WhatWaitsAtTheEndRuns) {
  FakeClock clock;
  Ran waits;
  Notification runs, may_end;
  {
    RestLanes lanes({.num_threads = 1, .clock = &clock});
    ASSERT_OK(RunIn(&lanes, "blocks", [&](HttpRequest*, const StepBounds&) {
      runs.Notify();
      may_end.Wait();
      return true;
    }));
    runs.Wait();
    ASSERT_OK(RunIn(&lanes, "a", NoteIn(&waits)));
    may_end.Notify();
  }
  EXPECT_TRUE(waits.thread.has_value());
}

}  // namespace
}  // namespace millrace
