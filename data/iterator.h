// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ITERATOR_H_
#define MILLRACE_DATA_ITERATOR_H_

// Iterator: one run over the elements of a Dataset.
//
//   running -> ended           the end was seen; it repeats
//   running, ended -> running  by Restore
//   any -> cancelled           by Cancel or the destructor; final
//
// What runs ahead (Prefetch, parallel calls) does so on the I/O pool, begins with the first Next
// and holds what its dataset says, no more. Next works in the calling thread whatever is not there
// yet, so it needs no thread of the pool to come to an end.
//
// State: Save writes where the iterator stands, buffered elements included; Restore, of the same
// description in this or another process, goes on from there: it gives what would have come next.
// What changed outside meanwhile (files, functions) is not noticed.
//
// Thread-safety: all methods, from any thread; elements are handed out one at a time. Save and
// Restore wait for a Next that runs.
// Lifetime: keeps the description alive. The destructor cancels and waits for the work that runs on
// the pool: for the file that is read and the function that is called now.
// Failure: see data/dataset.h; Cancelled after Cancel.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"   // IWYU pragma: export
#include "data/element.h"  // IWYU pragma: export

namespace millrace {
class Arena;
class Clock;
class FileSystem;
class IoPool;
}  // namespace millrace

namespace millrace::data {

class Dataset;

struct IteratorOptions {
  // What shuffles without seeds of their own are made of; 0: chance.
  uint64_t seed = 0;
  // Which of the tasks that read the same data this is: their unseeded shuffles differ. With
  // `mix_task_into_seeds` those with seeds differ, too.
  uint64_t task = 0;
  bool mix_task_into_seeds = false;
  // Null: those of the process. They must outlive the iterator.
  FileSystem* file_system = nullptr;
  IoPool* io_pool = nullptr;
  Arena* arena = nullptr;
  Clock* clock = nullptr;
};

// Where the time goes. Times of functions and sources are sampled; parallel calls add up.
struct IteratorTimes {
  int64_t elements = 0;              // given out
  absl::Duration waited = {};        // by the consumer, inside Next
  absl::Duration consumed = {};      // by the consumer, between two calls of Next
  absl::Duration in_sources = {};    // reading files, in generators
  absl::Duration in_functions = {};  // of Map, Filter, ...
  // Errors, with their elements, by IgnoreErrors: since the iterator began, or those of its last
  // pass before a Restore and all since then.
  int64_t dropped = 0;
  // Which of the three is to be made faster first.
  enum class Limit { kNone, kSource, kFunctions, kConsumer };
  Limit limit() const;
  // "1200 elements: waited 1.2s, consumed 300ms, sources 1s, functions 100ms; limited by sources",
  // and "; 3 were dropped" where that is so.
  std::string ToString() const;
};

class Iterator {
 public:
  static StatusOr<std::unique_ptr<Iterator>> Make(const Dataset& dataset,
                                                  const IteratorOptions& options = {});
  ~Iterator();
  Iterator(const Iterator&) = delete;
  Iterator& operator=(const Iterator&) = delete;

  // False: the end. `element` is overwritten; what it held is freed or used again.
  StatusOr<bool> Next(Element* element);
  // The same for steps: OutOfRange "End of sequence".
  StatusOr<Element> Next();
  // True: Next would return without waiting for anything. False means nothing.
  bool NextIsReady() const;

  StatusOr<std::string> Save();
  // InvalidArgument or DataLoss, and the iterator stays as it is, when the state is of another
  // description or is none.
  Status Restore(absl::string_view state);

  // Ends what runs and waits; every Next returns Cancelled from now on.
  void Cancel();

  IteratorTimes times() const;
  const ElementSpec& spec() const;

 private:
  struct Run;
  struct State;
  explicit Iterator(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ITERATOR_H_
