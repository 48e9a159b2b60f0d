// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TESTING_LINK_KINDS_H_
#define MILLRACE_DISTRIBUTED_LINK_TESTING_LINK_KINDS_H_

// Links of each kind, with ends that write down what they are called with, for tests of what every
// link promises.
//
// $MILLRACE_LINK_KINDS names the kinds to test, separated by commas; without it all are. A new
// network adds itself to LinkKinds() and has all tests of link_promises_test.cc.
//
// Threads: a RecordingEnd: any; a LinkPair: one. Failure: a kind that is not there fails the test.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/link.h"

namespace millrace {

class RecordingEnd : public LinkEnd {
 public:
  // One line for each call: "open /job:ps/task:0 41", "run step=7 ...", "tensors step=7 0",
  // "end step=7 OK", "lost by peer: ...".
  std::vector<std::string> lines() const;
  // All tensors, in their order.
  std::vector<SentTensor> tensors() const;
  // Of OnReceived, for a step.
  uint64_t received(int64_t step_id) const;
  Status lost() const;  // OK until it is
  bool lost_by_peer() const;
  int num_losses() const;
  // Of OnEnd, the last.
  EndFrame last_end() const;
  std::shared_ptr<Link> link() const;
  // The test is over: lets go of the link.
  void LetGo();

  // False: RUN and tensors are not written down, for benchmarks. Set before the link opens.
  bool writes_down = true;
  // True: edges are acknowledged by Link::Acknowledge alone. Set before the link opens.
  bool acknowledges = false;
  // Called after the line was written, without a lock. Set before the link opens.
  std::function<void(const RunFrame&)> on_run;
  std::function<void(const SentTensors&)> on_tensors;

  void OnOpen(std::shared_ptr<Link> link) override;
  void OnBind(BindFrame bind) override;
  void OnUnbind(uint64_t number) override;
  void OnRun(RunFrame run) override;
  void OnTensors(SentTensors tensors) override;
  bool acknowledges_edges() const override { return acknowledges; }
  void OnEnd(EndFrame end) override;
  void OnCancel(int64_t step_id, const Status& status) override;
  void OnReceived(int64_t step_id, uint64_t tensors) override;
  void OnRefused(int64_t step_id, const Status& status) override;
  void OnLost(const Status& status, bool by_peer) override;

 private:
  void Line(std::string line);

  mutable Mutex mu_;
  std::shared_ptr<Link> link_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
  std::vector<SentTensor> tensors_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<int64_t, uint64_t>> received_ ABSL_GUARDED_BY(mu_);
  EndFrame last_end_ ABSL_GUARDED_BY(mu_);
  Status lost_ ABSL_GUARDED_BY(mu_);
  bool lost_by_peer_ ABSL_GUARDED_BY(mu_) = false;
  int num_losses_ ABSL_GUARDED_BY(mu_) = 0;
};

// Two tasks, "/job:worker/replica:0/task:0" of incarnation 41 and "/job:ps/replica:0/task:0" of 42,
// and the link between them. It opens with the first Settle, so that a test can say before what its
// ends do.
class LinkPair {
 public:
  virtual ~LinkPair() = default;
  // Until nothing is on its way. A link that goes round fails the test.
  virtual void Settle() = 0;

  Link* worker() { return worker_end->link().get(); }
  Link* ps() { return ps_end->link().get(); }

  const std::shared_ptr<RecordingEnd> worker_end = std::make_shared<RecordingEnd>();
  const std::shared_ptr<RecordingEnd> ps_end = std::make_shared<RecordingEnd>();
};

struct LinkKind {
  std::string name;
  std::function<std::unique_ptr<LinkPair>()> make;
};

// Those that are tested.
std::vector<LinkKind> LinkKinds();

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TESTING_LINK_KINDS_H_
