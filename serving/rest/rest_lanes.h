// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_REST_LANES_H_
#define MILLRACE_SERVING_REST_REST_LANES_H_

// RestLanes: where requests of REST run. A loop of the HTTP server has many connections: a request
// that takes long there holds up all of them, status and health included. A hand-over to another
// thread costs a short request more than all the rest. So:
//
//   short, as far as we know        on the loop that read it
//   long, large, or of a new kind,  on one of a bounded number of threads, at most `max_waiting`
//   or its body is still gzip       behind them; there it is inflated, unless its time is over or
//                                   its client has gone: then it is answered 504
//
// How long requests of a kind and size take is learnt of those that succeed: the longest of late
// counts, and fades. One that fails early says nothing of the others.
//
// A request that would be answered too late, by what is known, is refused at once. One on a
// thread of the lanes is cancelled when its client leaves; on a loop it is over too soon for that.
//
// Thread-safety: all methods, from any thread.
// Lifetime: the destructor runs what waits (it ends soon, if its deadline has passed or its client
// has gone) and waits for it. Not from `work`.
// Failure: ResourceExhausted, and the request is as it was.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "net/http/http_server.h"
#include "serving/step_bounds.h"

namespace millrace {

class RestLanes {
 public:
  struct Options {
    int num_threads = 0;         // 0: DefaultThreads()
    int max_waiting = 1'000;     // beyond those that run there
    bool hand_over_all = false;  // nothing runs on a loop
    absl::Duration short_time = absl::Milliseconds(1);
    size_t short_body = 64 << 10;
    Clock* clock = Clock::Real();  // of deadlines, too
  };
  // Answers the request, once. False: it failed.
  using Work = std::function<bool(HttpRequest* request, const StepBounds& bounds)>;

  // Four per core, as in TensorFlow Serving.
  static int DefaultThreads();
  explicit RestLanes(const Options& options);
  ~RestLanes();
  RestLanes(const RestLanes&) = delete;
  RestLanes& operator=(const RestLanes&) = delete;

  // Takes the request, unless it returns an error. `kind`: requests of one kind take about as long
  // as each other.
  Status Run(std::unique_ptr<HttpRequest>* request, absl::string_view kind, absl::Time deadline,
             Work work);

  // So far.
  int64_t num_on_loops() const { return num_on_loops_.load(std::memory_order_relaxed); }
  int64_t num_handed_over() const { return num_handed_over_.load(std::memory_order_relaxed); }
  int num_waiting() const { return num_waiting_->load(std::memory_order_relaxed); }
  // The same for who may outlive the lanes.
  std::shared_ptr<const std::atomic<int>> waiting() const { return num_waiting_; }

 private:
  // Kinds that share a place share what is known.
  static constexpr size_t kPlaces = 1'024;

  struct HandedOver;

  std::atomic<int64_t>* PlaceOf(absl::string_view kind, size_t body, bool is_packed);
  void Learn(std::atomic<int64_t>* place, bool succeeded, absl::Time began);

  const Options options_;
  const int num_threads_;
  // All relaxed: hints, counts and bounds, no protocol.
  std::array<std::atomic<int64_t>, kPlaces> ns_of_kind_ = {};  // 0: not known
  std::atomic<int> num_taken_{0};                              // handed over and not ended
  const std::shared_ptr<std::atomic<int>> num_waiting_ = std::make_shared<std::atomic<int>>(0);
  std::atomic<int64_t> waiting_ns_{0};  // what those that wait will take, as far as we know
  std::atomic<int64_t> num_on_loops_{0}, num_handed_over_{0};
  std::unique_ptr<IoPool> pool_;  // the last: its threads use the others
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_REST_LANES_H_
