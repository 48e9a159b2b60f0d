// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/random_bits.h"

namespace millrace {

const char* QueueKindName(QueueKind kind) {
  switch (kind) {
    case QueueKind::kShuffle:
      return "RandomShuffleQueue";
    case QueueKind::kPadding:
      return "PaddingFIFOQueue";
    case QueueKind::kFifo:
      break;
  }
  return "FIFOQueue";
}

// --- QueueSpec -----------------------------------------------------------------------------------

Status QueueSpec::Init(QueueKind of, const NodeAttrs& attrs) {
  kind = of;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "component_types", &types, "shapes", &shapes, "capacity",
                               &capacity, "container", &container, "shared_name", &name));
  capacity = std::max<int64_t>(capacity, -1);
  if (kind == QueueKind::kShuffle) {
    MR_RETURN_IF_ERROR(
        ReadAttrs(attrs, "min_after_dequeue", &min_after_dequeue, "seed", &seed, "seed2", &seed2));
    if (min_after_dequeue < 0 || (capacity >= 0 && min_after_dequeue >= capacity)) {
      return InvalidArgument("min_after_dequeue must be >= 0 and below the capacity, got ",
                             min_after_dequeue, " of ", capacity);
    }
  }
  const bool may_be_empty = kind != QueueKind::kPadding;
  if (!(may_be_empty && shapes.empty()) && shapes.size() != types.size()) {
    return InvalidArgument("shapes must ", may_be_empty ? "be empty or " : "",
                           "have one shape for each of the ", types.size(),
                           " component_types, got ", shapes.size());
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (kind == QueueKind::kPadding && shapes[i].has_rank()) continue;
    if (shapes[i].IsFullyDefined()) continue;
    return InvalidArgument("shapes[", i, "] must ",
                           kind == QueueKind::kPadding ? "have a known rank" : "be fully defined",
                           ", got ", shapes[i]);
  }
  return absl::OkStatus();
}

std::string QueueSpec::Title() const { return absl::StrCat(QueueKindName(kind), " '", name, "'"); }

Status QueueSpec::CheckTypes(const std::vector<DType>& got) const {
  if (got == types) return absl::OkStatus();
  return InvalidArgument(Title(), " has component types ", ListText(types), ", got ",
                         ListText(got));
}

Status QueueSpec::CheckSame(const QueueSpec& want) const {
  const auto check = [this](const char* what, const char* were, const std::string& have,
                            const std::string& requested) {
    if (have == requested) return absl::OkStatus();
    return InvalidArgument("Shared queue '", name, "' has ", what, " ", have, " but requested ",
                           what, " ", were, " ", requested);
  };
  MR_RETURN_IF_ERROR(check("type", "was", QueueKindName(kind), QueueKindName(want.kind)));
  MR_RETURN_IF_ERROR(check("capacity", "was", absl::StrCat(capacity), absl::StrCat(want.capacity)));
  MR_RETURN_IF_ERROR(check("component types", "were", ListText(types), ListText(want.types)));
  MR_RETURN_IF_ERROR(check("component shapes", "were", ListText(shapes), ListText(want.shapes)));
  MR_RETURN_IF_ERROR(check("min_after_dequeue", "was", absl::StrCat(min_after_dequeue),
                           absl::StrCat(want.min_after_dequeue)));
  // Without a seed any is taken.
  if (want.seed == 0 && want.seed2 == 0) return absl::OkStatus();
  return check("random seeds", "were", absl::StrCat("(", seed, ", ", seed2, ")"),
               absl::StrCat("(", want.seed, ", ", want.seed2, ")"));
}

// --- Queue ---------------------------------------------------------------------------------------

Queue::Queue(QueueSpec spec) : spec_(std::move(spec)) {
  if (spec_.kind != QueueKind::kShuffle) return;
  const bool is_seeded = spec_.seed != 0 || spec_.seed2 != 0;
  random_ = math::PhiloxStream(is_seeded ? static_cast<uint64_t>(spec_.seed) : RandomUint64(),
                               is_seeded ? static_cast<uint64_t>(spec_.seed2) : RandomUint64());
}

std::string Queue::DebugString() const {
  MutexLock lock(&mu_);
  return absl::StrCat(spec_.Title(), ": ", elements_.size(), " elements",
                      closed_ ? ", closed" : "");
}

size_t Queue::size() const {
  MutexLock lock(&mu_);
  return elements_.size();
}

bool Queue::closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

void Queue::Begin(CancellationManager* cancellation, Attempt wish) {
  const auto attempt = std::make_shared<Attempt>(std::move(wish));
  Line arrived = {attempt};
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Attempt* const a = attempt.get();
    Line& line = LineOf(*a);
    bool waits = false;
    if (a->is_enqueue && closed_) {
      a->status = absl::CancelledError(absl::StrCat(spec_.Title(), " is closed."));
    } else if (!line.empty() || !TryEnd(a)) {
      Restore(a);  // what TryEnd did in part stays done only when the attempt stands in line
      waits = cancellation == nullptr ||
              cancellation->Register(
                  &a->token, [queue = shared_from_this(), attempt] { queue->Cancel(attempt); });
      if (waits) a->cancellation = cancellation;
      if (!waits) a->status = CancelledStatus(*a);
    }
    Line& place = waits ? line : *ended;
    place.splice(place.end(), arrived);
  });
}

void Queue::GiveBack(std::vector<Tuple> tuples) {
  Change([&](Line*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { PutBack(&tuples); });
}

void Queue::Close(bool cancel_pending_enqueues) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    closed_ = true;
    if (!cancel_pending_enqueues) return;
    for (auto& attempt : enqueues_) attempt->status = CancelledStatus(*attempt);
    ended->swap(enqueues_);
  });
}

void Queue::Cancel(const std::shared_ptr<Attempt>& attempt) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Line& line = LineOf(*attempt);
    const auto found = std::find(line.begin(), line.end(), attempt);
    if (found == line.end()) return;  // ended by somebody else
    ended->splice(ended->end(), line, found);
    if (!attempt->is_enqueue) Restore(attempt.get());
    attempt->status = CancelledStatus(*attempt);
  });
}

void Queue::Change(absl::FunctionRef<void(Line* ended)> change) {
  Line ended;
  {
    MutexLock lock(&mu_);
    change(&ended);
    Serve(&ended);
  }
  for (const std::shared_ptr<Attempt>& a : ended) {
    // When its callback has begun, it finds that the attempt has left its line.
    if (a->cancellation != nullptr) a->cancellation->Deregister(a->token);
    a->status.ok() ? a->done(std::move(a->tuples)) : a->done(a->status);
  }
}

Status Queue::CancelledStatus(const Attempt& attempt) {
  return absl::CancelledError(attempt.is_enqueue ? "Enqueue operation was cancelled"
                                                 : "Dequeue operation was cancelled");
}

Queue::Line& Queue::LineOf(const Attempt& attempt) {
  return attempt.is_enqueue ? enqueues_ : dequeues_;
}

bool Queue::HasRoom() const {
  return spec_.capacity < 0 || static_cast<int64_t>(elements_.size()) < spec_.capacity;
}

bool Queue::HasElement() const {
  const int64_t stay = closed_ ? 0 : spec_.min_after_dequeue;
  return static_cast<int64_t>(elements_.size()) > stay;
}

uint32_t Queue::NextRandom() {
  if (words_used_ == words_.size()) {
    words_ = random_.Next();
    words_used_ = 0;
  }
  return words_[words_used_++];
}

Tuple Queue::TakeElement() {
  // The last one takes the place of the one that was drawn, as in TensorFlow.
  if (spec_.kind == QueueKind::kShuffle) {
    const size_t drawn = NextRandom() % elements_.size();
    Tuple taken = std::move(elements_[drawn]);
    if (drawn + 1 < elements_.size()) elements_[drawn] = std::move(elements_.back());
    elements_.pop_back();
    return taken;
  }
  Tuple taken = std::move(elements_.front());
  elements_.pop_front();
  return taken;
}

void Queue::Serve(Line* ended) {
  do {
    for (Line* line : {&enqueues_, &dequeues_}) {
      while (!line->empty() && TryEnd(line->front().get())) {
        ended->splice(ended->end(), *line, line->begin());
      }
    }
    // Dequeues may have made room for a part of what the first enqueue has.
  } while (!enqueues_.empty() && HasRoom());
}

bool Queue::TryEnd(Attempt* a) {
  if (a->is_enqueue) {
    while (a->put < a->tuples.size() && HasRoom()) {
      elements_.push_back(std::move(a->tuples[a->put++]));
    }
    return a->put == a->tuples.size();
  }
  while (a->tuples.size() < a->wanted && HasElement()) a->tuples.push_back(TakeElement());
  const size_t have = a->tuples.size();
  if (have == a->wanted) return true;
  if (!closed_ || !enqueues_.empty()) return false;
  if (a->allow_fewer && have > 0) return true;
  Restore(a);
  a->status = OutOfRange(spec_.Title(), " is closed and has insufficient elements (requested ",
                         a->wanted, ", current size ", have, ")");
  return true;
}

void Queue::Restore(Attempt* a) {
  if (a->is_enqueue) {
    for (; a->put > 0; elements_.pop_back()) a->tuples[--a->put] = std::move(elements_.back());
    return;
  }
  PutBack(&a->tuples);
}

void Queue::PutBack(std::vector<Tuple>* tuples) {
  for (size_t i = tuples->size(); i-- > 0;) elements_.push_front(std::move((*tuples)[i]));
  tuples->clear();
}

}  // namespace millrace
