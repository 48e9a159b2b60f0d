// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_END_BELIEF_H_
#define MILLRACE_RUN_END_BELIEF_H_

// EndBelief: whether the end of a training run that somebody tells of is to be believed yet.
//
// An end that stands in a directory (run/run_file.h), or that a server remembers, may be old: the
// job was started again with more steps or more data, and its chief is on its way. This is the one
// rule of trainers, servers and evaluators, with an object for each source; by what is known:
//
//   the end reaches the caller's goal or last    at once
//     step
//   it is below that goal                        when it has stood for the grace
//   no goal is known, and it came while we       at once
//     listened
//   no goal is known, and it stood there when    when it has stood for the grace
//     we heard the source first
//
// An end of another token is another end: it came while we listened.
//
//   nothing heard -> no end <-> an end that is doubted -> believed
//                        '-------------------------------'
//
// Thread-safety: none. Time is the caller's.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "run/run_file.h"

namespace millrace {

class EndBelief {
 public:
  struct Rule {
    absl::Duration grace;
    int64_t goal = 0;  // the global step that the caller means to reach; 0: not known
    // The last step that the caller waits for. An end below it may be one all the same: a hook
    // stopped the run, or its data ended.
    std::optional<int64_t> last_step = std::nullopt;
  };
  // An end, as its source tells it.
  struct Told {
    std::string token = "";  // of the owner that ended the run; "" when the source does not say
    int64_t global_step = -1;
  };

  explicit EndBelief(Rule rule) : rule_(rule) {}

  // What a directory tells: the end that its owner has written there.
  static std::optional<Told> ToldBy(const std::optional<RunEndFile>& end);

  // What the source says now; nullopt: there is no end. True when that is an end which it did not
  // tell of before.
  bool Hear(const std::optional<Told>& end, absl::Time now);
  // As if the source had never been heard: a chief has taken over what it tells of.
  void Forget();

  // InfiniteFuture without an end.
  absl::Time believed_from() const;
  bool is_believed(absl::Time now) const { return now >= believed_from(); }
  // There is an end, and it has to stand for the grace.
  bool is_doubted() const;

 private:
  const Rule rule_;
  bool was_heard_ = false;
  std::optional<Told> end_;
  absl::Time since_ = absl::InfiniteFuture();  // it was told
  bool from_first_hearing_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_RUN_END_BELIEF_H_
