// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ITERATOR_RESOURCE_H_
#define MILLRACE_DATA_ITERATOR_RESOURCE_H_

// IteratorResource: the iterator that graph ops share: started by one step (MakeIterator), asked by
// others (IteratorGetNext).
//
//   idle -> started            by Start
//   started -> started         by Start: what waits ends with Cancelled, the run before is over
//   any -> over                by End, Abandon or the destructor; final
//
// Elements go out in the order in which they were asked for. A caller gets an element at once
// when there is one without waiting; else it stands in line, which takes no thread, while one task
// of the I/O pool at a time makes the element of the first. An element that was made for somebody
// who was cancelled meanwhile goes to the next: none is lost.
//
// Thread-safety: all methods, from any thread. `done` is called once, without a lock held.
// Lifetime: the pool and what the IteratorOptions name outlive it. Start, Abandon and the
// destructor wait until no function of the dataset runs (Iterator's destructor). Failure:
// FailedPrecondition before Start; OutOfRange "End of sequence"; an error of the dataset in the
// place of its element; InvalidArgument for elements that are not as the spec says.

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "data/dataset.h"
#include "data/element.h"
#include "data/iterator.h"

namespace millrace {
class CancellationManager;
class IoPool;
}  // namespace millrace

namespace millrace::data {

class IteratorResource : public Resource {
 public:
  static constexpr const char* kTypeName = "Iterator";
  using DoneCallback = absl::AnyInvocable<void(StatusOr<Element>)>;

  // All datasets that it runs over have elements of this spec, which is not empty.
  IteratorResource(std::string name, ElementSpec spec);
  ~IteratorResource() override;

  std::string DebugString() const override;
  const ElementSpec& spec() const { return spec_; }

  // Blocks: files may be listed. InvalidArgument unless the dataset's elements may be of the spec.
  Status Start(const Dataset& dataset, const IteratorOptions& options);
  // The next element if nobody has to be waited for, or the error in its place; else none.
  std::optional<StatusOr<Element>> TryGetNext();
  // Cancelled when `cancellation` (may be null) is cancelled while this waits.
  void GetNext(CancellationManager* cancellation, IoPool* pool, DoneCallback done);

  // Where it stands (Iterator::Save); blocks while an element is made.
  StatusOr<std::string> Save();
  Status Restore(absl::string_view state);

  // Cancels what runs and waits in line; everything is Cancelled from now on. Does not wait: what
  // is left of the run is freed on `pool`.
  void End(IoPool* pool);
  bool over() const;

 protected:
  void OnAbandoned() override;

 private:
  class Run;

  // After the return nothing begins; the run that was, if there was one.
  std::shared_ptr<Run> BeOver();

  std::shared_ptr<Run> run() const;
  Status WithoutRun() const;

  const std::string name_;
  const ElementSpec spec_;
  mutable Mutex mu_;
  std::shared_ptr<Run> run_ ABSL_GUARDED_BY(mu_);  // null before Start
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ITERATOR_RESOURCE_H_
