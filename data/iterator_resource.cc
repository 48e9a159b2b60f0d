// SPDX-License-Identifier: Apache-2.0
#include "data/iterator_resource.h"

#include <algorithm>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/dcheck.h"
#include "core/io_pool.h"
#include "data/iterator_state.h"

namespace millrace::data {
namespace {

Status NotStarted() {
  return absl::FailedPreconditionError(
      "GetNext() failed because the iterator has not been initialized. Ensure that you have run "
      "the initializer operation for this iterator before getting the next element.");
}
Status Over(absl::string_view name) {
  return absl::CancelledError(absl::StrCat("Iterator '", name, "' is over: its session has ended"));
}
Status StartedAnew(absl::string_view name) {
  return absl::CancelledError(
      absl::StrCat("Iterator '", name, "' was initialized anew while an element was waited for"));
}

// The dataset's elements must be able to be of the iterator's types and shapes.
Status CheckSpec(const ElementSpec& want, const ElementSpec& got) {
  if (got.empty()) return absl::OkStatus();  // each element is looked at
  return MergeSpecs("the dataset of an iterator", want, got).status();
}

}  // namespace

// One run over a dataset, and the calls that wait for its elements.
//
// A get: in line -> ended. The thread that takes it out of the line, under the lock, ends it
// without the lock: the task that has made its element, its cancellation, or Close.
class IteratorResource::Run : public std::enable_shared_from_this<Run> {
 public:
  Run(std::string name, const ElementSpec& spec, std::unique_ptr<Iterator> iterator)
      : name_(std::move(name)), spec_(spec), iterator_(std::move(iterator)) {}

  std::optional<StatusOr<Element>> TryNext() {
    {
      MutexLock lock(&mu_);
      if (!closed_.ok()) return closed_;
      if (kept_) return Take(&kept_);
      if (making_ || !line_.empty() || !iterator_->NextIsReady()) return std::nullopt;
      making_ = true;
    }
    StatusOr<Element> made = MakeNext();
    IoPool* pool = nullptr;
    {
      MutexLock lock(&mu_);
      pool = HasMade();
    }
    if (pool != nullptr) ScheduleMaking(pool);
    return made;
  }

  void Next(CancellationManager* cancellation, IoPool* pool, DoneCallback done) {
    auto get = std::make_shared<Get>();
    get->done = std::move(done);
    get->pool = pool;
    bool schedule = false;
    Status refused;
    {
      MutexLock lock(&mu_);
      const auto on_cancel = [run = shared_from_this(), get] { run->Cancel(get); };
      if (!closed_.ok()) {
        refused = closed_;
      } else if (cancellation != nullptr && !cancellation->Register(&get->token, on_cancel)) {
        refused = Cancelled();
      } else {
        get->cancellation = cancellation;
        line_.push_back(get);
        schedule = !making_ && !scheduled_;
        if (schedule) scheduled_ = true;
      }
    }
    if (!refused.ok()) return get->done(refused);
    if (schedule) ScheduleMaking(pool);
  }

  // What was made for a caller that has gone stands before the iterator's own state.
  StatusOr<std::string> Save() {
    MR_ASSIGN_OR_RETURN(const Idle idle, WaitUntilIdle());
    StateWriter writer;
    {
      MutexLock lock(&mu_);
      writer.PutBool(kept_.has_value());
      if (kept_) {
        writer.PutStatus(kept_->status());
        if (kept_->ok()) MR_RETURN_IF_ERROR(writer.PutElement(**kept_));
      }
    }
    MR_ASSIGN_OR_RETURN(const std::string state, iterator_->Save());
    writer.PutBytes(state);
    return writer.Take();
  }
  Status Restore(absl::string_view bytes) {
    StateReader reader(bytes);
    std::optional<StatusOr<Element>> kept;
    MR_ASSIGN_OR_RETURN(const bool has_kept, reader.GetBool());
    if (has_kept) {
      Status status;
      MR_RETURN_IF_ERROR(reader.GetStatus(&status));
      if (status.ok()) {
        MR_ASSIGN_OR_RETURN(kept, reader.GetElement());
        MR_RETURN_IF_ERROR(CheckElement("Iterator state", spec_, **kept));
      } else {
        kept = status;
      }
    }
    MR_ASSIGN_OR_RETURN(const absl::string_view state, reader.GetBytes());
    if (!reader.empty()) return absl::DataLossError("Iterator state: bytes follow its end");
    MR_ASSIGN_OR_RETURN(const Idle idle, WaitUntilIdle());
    MR_RETURN_IF_ERROR(iterator_->Restore(state));
    MutexLock lock(&mu_);
    kept_ = std::move(kept);
    return absl::OkStatus();
  }

  // Ends the gets in line and all later ones with `why`.
  void Close(const Status& why) {
    Line ended;
    {
      MutexLock lock(&mu_);
      if (closed_.ok()) closed_ = why;
      ended.swap(line_);
      kept_.reset();
    }
    iterator_->Cancel();
    for (const auto& get : ended) EndGet(get, why);
  }
  // After Close: until nothing of the dataset runs, and frees it.
  void AwaitEnd() {
    std::unique_ptr<Iterator> iterator;
    {
      MutexLock lock(&mu_);
      while (making_) idle_.Wait(&mu_);
      iterator = std::move(iterator_);
    }
  }

 private:
  struct Get {
    DoneCallback done;
    IoPool* pool = nullptr;
    // Set while registered; outlives the step's kernels.
    CancellationManager* cancellation = nullptr;
    CancellationManager::Token token = 0;
  };
  using Line = std::list<std::shared_ptr<Get>>;

  // Nobody makes an element as long as it lives.
  class Idle {
   public:
    explicit Idle(Run* run) : run_(run) {}
    Idle(Idle&& other) noexcept : run_(std::exchange(other.run_, nullptr)) {}
    ~Idle() {
      if (run_ != nullptr) run_->EndIdle();
    }
    Idle(const Idle&) = delete;
    Idle& operator=(const Idle&) = delete;

   private:
    Run* run_;
  };

  StatusOr<Idle> WaitUntilIdle() {
    MutexLock lock(&mu_);
    while (making_) idle_.Wait(&mu_);
    if (!closed_.ok()) return closed_;
    making_ = true;
    return Idle(this);
  }
  void EndIdle() {
    IoPool* pool = nullptr;
    {
      MutexLock lock(&mu_);
      pool = HasMade();
    }
    if (pool != nullptr) ScheduleMaking(pool);
  }

  static Status Cancelled() { return absl::CancelledError("GetNext operation was cancelled"); }

  static StatusOr<Element> Take(std::optional<StatusOr<Element>>* kept) {
    StatusOr<Element> taken = *std::move(*kept);
    kept->reset();
    return taken;
  }

  static void EndGet(const std::shared_ptr<Get>& get, StatusOr<Element> made) {
    // When its callback has begun, it finds that the get has left the line.
    if (get->cancellation != nullptr) get->cancellation->Deregister(get->token);
    get->done(std::move(made));
  }

  void Cancel(const std::shared_ptr<Get>& get) {
    {
      MutexLock lock(&mu_);
      const auto found = std::find(line_.begin(), line_.end(), get);
      if (found == line_.end()) return;  // ended by somebody else
      line_.erase(found);
    }
    EndGet(get, Cancelled());
  }

  // For the thread that has set making_.
  StatusOr<Element> MakeNext() {
    Element element;
    MR_ASSIGN_OR_RETURN(const bool more, iterator_->Next(&element));
    if (!more) return absl::OutOfRangeError("End of sequence");
    MR_RETURN_IF_ERROR(CheckElement("the dataset of an iterator", spec_, element));
    return element;
  }

  // The pool on which to go on for the line, or none.
  IoPool* HasMade() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    MR_DCHECK(making_,
              "only the thread that has set it, to make an element or to keep others out, ends it");
    making_ = false;
    idle_.SignalAll();
    if (line_.empty() || scheduled_) return nullptr;
    scheduled_ = true;
    return line_.front()->pool;
  }

  // Requires scheduled_, without the lock.
  void ScheduleMaking(IoPool* pool) {
    pool->Schedule([run = shared_from_this()] { run->MakeForFirst(); });
  }

  void MakeForFirst() {
    std::optional<StatusOr<Element>> made;
    {
      MutexLock lock(&mu_);
      MR_DCHECK(scheduled_, "one task at a time is on its way to the pool");
      scheduled_ = false;
      if (line_.empty() || making_) return;  // the thread that makes goes on for the line
      making_ = true;
      if (kept_) made = Take(&kept_);
    }
    if (!made) made = MakeNext();
    std::shared_ptr<Get> first;
    IoPool* pool = nullptr;
    {
      MutexLock lock(&mu_);
      if (!line_.empty()) {
        first = std::move(line_.front());
        line_.pop_front();
      } else if (closed_.ok()) {
        MR_DCHECK(!kept_.has_value(), "a maker first takes the element that was kept");
        kept_ = std::move(made);
      }
      pool = HasMade();
    }
    if (pool != nullptr) ScheduleMaking(pool);
    // The last: it may end this run's resource, in this thread.
    if (first != nullptr) EndGet(first, *std::move(made));
  }

  const std::string name_;
  const ElementSpec spec_;
  // For the thread that has set making_; Cancel and NextIsReady for any until AwaitEnd.
  std::unique_ptr<Iterator> iterator_;
  Mutex mu_;
  CondVar idle_;
  Line line_ ABSL_GUARDED_BY(mu_);
  std::optional<StatusOr<Element>> kept_ ABSL_GUARDED_BY(mu_);  // for the next caller
  bool making_ ABSL_GUARDED_BY(mu_) = false;                    // somebody is in the iterator
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;                 // MakeForFirst will run
  Status closed_ ABSL_GUARDED_BY(mu_);                          // OK: open
};

IteratorResource::IteratorResource(std::string name, ElementSpec spec)
    : name_(std::move(name)), spec_(std::move(spec)) {}

IteratorResource::~IteratorResource() {
  if (const auto last = run(); last != nullptr) {
    last->Close(Over(name_));
    last->AwaitEnd();
  }
}

std::string IteratorResource::DebugString() const {
  MutexLock lock(&mu_);
  return absl::StrCat("Iterator '", name_, "' ", SpecText(spec_),
                      over_             ? ", over"
                      : run_ == nullptr ? ", not initialized"
                                        : "");
}

std::shared_ptr<IteratorResource::Run> IteratorResource::run() const {
  MutexLock lock(&mu_);
  return run_;
}

Status IteratorResource::WithoutRun() const { return over() ? Over(name_) : NotStarted(); }

Status IteratorResource::Start(const Dataset& dataset, const IteratorOptions& options) {
  MR_RETURN_IF_ERROR(dataset.status());
  MR_RETURN_IF_ERROR(CheckSpec(spec_, dataset.spec()));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Iterator> iterator, dataset.MakeIterator(options));
  auto run = std::make_shared<Run>(name_, spec_, std::move(iterator));
  bool over = false;
  {
    MutexLock lock(&mu_);
    over = over_;
    if (!over) run_.swap(run);
  }
  if (run != nullptr) {
    run->Close(StartedAnew(name_));
    run->AwaitEnd();
  }
  return over ? Over(name_) : absl::OkStatus();
}

std::optional<StatusOr<Element>> IteratorResource::TryGetNext() {
  const std::shared_ptr<Run> now = run();
  if (now == nullptr) return WithoutRun();
  return now->TryNext();
}

void IteratorResource::GetNext(CancellationManager* cancellation, IoPool* pool, DoneCallback done) {
  const std::shared_ptr<Run> now = run();
  if (now == nullptr) return done(WithoutRun());
  now->Next(cancellation, pool, std::move(done));
}

StatusOr<std::string> IteratorResource::Save() {
  const std::shared_ptr<Run> now = run();
  if (now == nullptr) return WithoutRun();
  return now->Save();
}

Status IteratorResource::Restore(absl::string_view state) {
  const std::shared_ptr<Run> now = run();
  if (now == nullptr) return WithoutRun();
  return now->Restore(state);
}

std::shared_ptr<IteratorResource::Run> IteratorResource::BeOver() {
  std::shared_ptr<Run> last;
  {
    MutexLock lock(&mu_);
    over_ = true;
    last.swap(run_);
  }
  if (last != nullptr) last->Close(Over(name_));
  return last;
}

void IteratorResource::End(IoPool* pool) {
  std::shared_ptr<Run> last = BeOver();
  if (last == nullptr) return;
  pool->Schedule([last = std::move(last)] { last->AwaitEnd(); });
}

void IteratorResource::OnAbandoned() {
  if (const std::shared_ptr<Run> last = BeOver(); last != nullptr) last->AwaitEnd();
}

bool IteratorResource::over() const {
  MutexLock lock(&mu_);
  return over_;
}

}  // namespace millrace::data
