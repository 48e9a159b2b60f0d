// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_VISIT_H_
#define MILLRACE_CORE_VISIT_H_

// Visit: the work that a message made ready, done by the thread that took the message off the
// network. Without one, each small tensor that arrives wakes a thread of the arena.
//
//   Visit visit;                  // collects
//   deliver(message);             // whatever becomes ready here may call Visit::Offer
//   Visit::Work* work = visit.End();
//   if (work != nullptr) Visit::Run(work);   // once the thread does not poll any more
//
// A visit takes one piece of work; the next one goes elsewhere, so that two pieces never wait for
// each other on one thread. Offers count only between construction and End: work that runs must
// not leave what it waits for to its own thread. Network threads are many and cores are few: an
// offer says how many pieces may run at once in the process.
//
// Threads: made, offered to and ended on one thread; Run on any. Failure: none; nothing allocates.

namespace millrace {

class Visit {
 public:
  // Runs later, once, on the thread of the visit or on another one.
  class Work {
   public:
    virtual void RunVisit() noexcept = 0;

   protected:
    ~Work() = default;
  };

  Visit();
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  // Whether a visit of this thread takes `work`, which lives until it was run: not while `limit`
  // pieces of work were taken and have not been run to their ends.
  static bool Offer(Work* work, int limit);

  // Takes no more. What was offered, null if nothing: the caller's to Run, once.
  Work* End();
  static void Run(Work* work) noexcept;

 private:
  Visit* const outer_;
  Work* work_ = nullptr;
  bool ended_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_VISIT_H_
