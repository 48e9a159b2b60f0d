// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_BEFORE_WAIT_H_
#define MILLRACE_CORE_BEFORE_WAIT_H_

// BeforeWait: what a thread has put off, and does at the latest before it waits for others or works
// for long. What is held back to leave together with more must not be held back then.
//
//   class Cork : private BeforeWait { void Do() noexcept override; ... };   // lives on the stack
//   BeforeWait::Run();  // by who is about to wait
//
// Objects of one thread nest: the innermost is done first. Each is done in each Run while it lives.
//
// Threads: an object belongs to the thread that made it. Failure: none; nothing here allocates.

namespace millrace {

class BeforeWait {
 public:
  // All of this thread.
  static void Run() noexcept;

 protected:
  BeforeWait() noexcept;
  ~BeforeWait();
  BeforeWait(const BeforeWait&) = delete;
  BeforeWait& operator=(const BeforeWait&) = delete;

 private:
  // May be called more than once. It makes and destroys no BeforeWait that outlives it.
  virtual void Do() noexcept = 0;

  BeforeWait* const outer_;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_BEFORE_WAIT_H_
